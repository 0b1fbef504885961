/*
 * check_slots.h - the checks (hooks/check.h), around the calls of the verbs
 */
#ifndef SOFTHCA_VERBS_CHECK_SLOTS_H
#define SOFTHCA_VERBS_CHECK_SLOTS_H

#include "transport/shared.h"

/* What they ask for. */
extern const struct check_env shca_check_env;
/* The slots of a context, and of a CQ, if the program is checked. */
void shca_check_slots(struct ibv_context_ops *ops);
void shca_check_readers(struct ibv_cq_ex *cq);
int shca_check_channel_get(struct ibv_comp_channel *ch, struct ibv_cq **cq,
			   void **cq_context,
			   int (*get)(struct ibv_comp_channel *ch,
				      struct ibv_cq **cq, void **cq_context));
/* The program posts, or lets the QP go on: its peers are shown when. Its lock is
 * held. */
void shca_check_posting(struct shca_qp *qp);
/* Posts all or none, checked or not. */
int shca_check_post_all(struct ibv_qp *qp, struct ibv_send_wr *wr);

#endif

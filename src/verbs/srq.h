/*
 * srq.h - shared receive queues
 */
#ifndef SOFTHCA_VERBS_SRQ_H
#define SOFTHCA_VERBS_SRQ_H

#include "cq.h"

#include "qp/rq.h"

struct shca_srq {
	struct ibv_srq srq;
	struct shca_live live;
	enum ibv_srq_type type;
	struct shca_cq *cq; /* XRC: where its receives complete */
	/* XRC, see xrcd.c. */
	struct ibv_xrcd *xrcd;
	uint32_t num;
	struct shca_srq *next;

	uint32_t async_reported; /* the context's async_lock */
	_Atomic unsigned users;
	struct lock lock; /* of what follows; after a QP's */
	struct qp_rq rq;
	uint32_t limit;
};

static inline struct shca_srq *to_srq(struct ibv_srq *srq)
{
	return container_of(srq, struct shca_srq, srq);
}

int shca_srq_create(struct ibv_srq_init_attr_ex *attr, struct ibv_srq **srq);
int shca_srq_modify(struct ibv_srq *srq, const struct ibv_srq_attr *attr,
		    int mask);
int shca_srq_query(struct ibv_srq *srq, struct ibv_srq_attr *attr);
int shca_srq_destroy(struct ibv_srq *srq);
int shca_srq_post(struct ibv_srq *srq, struct ibv_recv_wr *wr,
		  struct ibv_recv_wr **bad);
int shca_srq_take(struct shca_srq *srq, uint64_t room, struct qp_recv *out);

#endif

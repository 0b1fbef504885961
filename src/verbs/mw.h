/*
 * mw.h - memory windows
 */
#ifndef SOFTHCA_VERBS_MW_H
#define SOFTHCA_VERBS_MW_H

#include "transport/shared.h"

struct shca_mw {
	struct ibv_mw mw;
	struct shca_live live;
};

static inline struct shca_mw *to_mw(struct ibv_mw *mw)
{
	return container_of(mw, struct shca_mw, mw);
}

int shca_mw_alloc(struct ibv_pd *pd, enum ibv_mw_type type, struct ibv_mw **mw);
int shca_mw_free(struct ibv_mw *mw);
int shca_mw_bind(struct ibv_qp *qp, struct ibv_mw *mw,
		 struct ibv_mw_bind *bind);
/* A QP goes: unbinds the windows of type 2 that are bound to it. */
void shca_mw_qp_gone(struct shca_qp *qp);
int shca_mw_env_bind(struct qp *core, const struct qp_bind *how);
int shca_mw_env_invalidate(struct qp *core, uint32_t rkey);

#endif

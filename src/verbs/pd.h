/*
 * pd.h - protection domains, thread domains, parent domains
 */
#ifndef SOFTHCA_VERBS_PD_H
#define SOFTHCA_VERBS_PD_H

#include "transport/shared.h"

struct shca_td {
	struct ibv_td td;
	_Atomic unsigned users;
};

struct shca_pd {
	struct ibv_pd pd;
	struct shca_live live;
	uint32_t num;
	_Atomic unsigned refs; /* the program's, and of what is made with it */
	struct shca_pd *next; /* in the process's list; under memory.lock */
	/* Of parent domains. */
	bool parent;
	struct shca_pd *of;
	struct shca_td *td;
	void *(*alloc)(struct ibv_pd *pd, void *pd_context, size_t size,
		       size_t alignment, uint64_t resource_type);
	void (*free)(struct ibv_pd *pd, void *pd_context, void *ptr,
		     uint64_t resource_type);
	void *pd_context;
};

static inline struct shca_pd *to_pd(struct ibv_pd *pd)
{
	return container_of(pd, struct shca_pd, pd);
}

/* What a program's allocator allocates: lower half of resource_type. */
enum { SHCA_MEM_SQ = QP_MEM_SQ, SHCA_MEM_RQ = QP_MEM_RQ, SHCA_MEM_CQ };

int shca_pd_alloc(struct ibv_context *ctx, struct ibv_pd **pd);
int shca_pd_parent(struct ibv_context *ctx,
		   const struct ibv_parent_domain_init_attr *attr,
		   struct ibv_pd **pd);
int shca_pd_free(struct ibv_pd *pd);
int shca_pd_import(struct ibv_context *ctx, uint32_t handle,
		   struct ibv_pd **pd);
void shca_pd_unimport(struct ibv_pd *pd);
void shca_pd_get(struct ibv_pd *pd);
void shca_pd_put(struct ibv_pd *pd);
/* The allocator of queues: the PD's, or the C library's; pd may be NULL. */
struct qp_mem shca_pd_mem(struct ibv_pd *pd);

int shca_td_alloc(struct ibv_context *ctx, const struct ibv_td_init_attr *attr,
		  struct ibv_td **td);
int shca_td_free(struct ibv_td *td);

#endif

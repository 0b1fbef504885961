/*
 * rq.h - a receive queue: of one QP, or shared by many
 *
 * A ring of receive work requests. The lock of its owner (QP or SRQ) covers
 * all of it.
 */
#ifndef SOFTHCA_QP_RQ_H
#define SOFTHCA_QP_RQ_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define QP_MAX_MSG 0x80000000u /* 2 GiB; max_msg_sz of the port */
#define QP_MAX_SGE 32 /* of any work request; announced as max_sge */

/* Where the memory of queues comes from; alloc NULL: the C library. */
struct qp_mem {
	void *(*alloc)(void *arg, size_t size, unsigned what);
	void (*free)(void *arg, void *mem);
	void *arg;
};

enum qp_mem_what { QP_MEM_SQ = 1, QP_MEM_RQ };

void *qp_mem_alloc(const struct qp_mem *mem, size_t size, unsigned what);
void qp_mem_free(const struct qp_mem *mem, void *p);

/* A receive WQE taken from a queue, to be filled by one message. */
struct qp_recv {
	uint64_t wr_id;
	uint64_t length; /* sum of the SGEs */
	uint32_t pd; /* whose keys the SGEs name */
	uint32_t num_sge;
	void *cq; /* where it completes; NULL: the QP's recv_cq */
	struct ibv_sge sge[QP_MAX_SGE];
};

struct qp_rq {
	uint32_t depth; /* power of two, >= max_wr */
	uint32_t max_wr;
	uint32_t max_sge;
	uint32_t pd;
	uint32_t head, tail; /* free-running; head: oldest */
	size_t stride;
	uint8_t *ring;
	struct qp_mem mem;
};

/* max_wr may be 0, mem NULL. Returns 0, -ENOMEM, or -EINVAL: max_sge >
 * QP_MAX_SGE. */
int qp_rq_init(struct qp_rq *rq, uint32_t max_wr, uint32_t max_sge, uint32_t pd,
	       const struct qp_mem *mem);
void qp_rq_fini(struct qp_rq *rq);

/* -ENOMEM: full; -EINVAL: more SGEs than max_sge, or a length over 2 GiB. */
int qp_rq_post(struct qp_rq *rq, const struct ibv_recv_wr *wr);
/*
 * The oldest, if it has room for so many bytes: 0; -EMSGSIZE: it has not, and
 * stays; -EAGAIN: there is none.
 */
int qp_rq_take(struct qp_rq *rq, uint64_t room, struct qp_recv *out);

static inline uint32_t qp_rq_count(const struct qp_rq *rq)
{
	return rq->tail - rq->head;
}

/*
 * Grows or shrinks to max_wr, keeping what is posted (ibv_modify_srq). Returns
 * 0, -ENOMEM, or -EINVAL when more than max_wr are posted.
 */
int qp_rq_resize(struct qp_rq *rq, uint32_t max_wr);

#endif

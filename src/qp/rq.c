/*
 * rq.c - a ring of receive work requests
 *
 * A slot is a fixed head and room for max_sge SGEs, so that queues of programs
 * that use one SGE stay small. head and tail run freely and are masked on use.
 */
#include "rq.h"

#include "base/bytes.h"
#include "base/why.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct slot {
	uint64_t wr_id;
	uint64_t length;
	uint32_t num_sge;
	struct ibv_sge sge[];
};

static struct slot *slot_at(const struct qp_rq *rq, uint32_t pos)
{
	return (void *)(rq->ring + (pos & (rq->depth - 1)) * rq->stride);
}

void *qp_mem_alloc(const struct qp_mem *mem, size_t size, unsigned what)
{
	return mem->alloc ? mem->alloc(mem->arg, size, what) : malloc(size);
}

void qp_mem_free(const struct qp_mem *mem, void *p)
{
	if (mem->alloc)
		mem->free(mem->arg, p);
	else
		free(p);
}

int qp_rq_init(struct qp_rq *rq, uint32_t max_wr, uint32_t max_sge, uint32_t pd,
	       const struct qp_mem *mem)
{
	uint32_t depth;

	if (max_sge > QP_MAX_SGE || max_wr > 1u << 31)
		return -EINVAL;
	depth = round_up_pow2(max_wr);
	*rq = (struct qp_rq){
		.depth = depth,
		.max_wr = max_wr,
		.max_sge = max_sge,
		.pd = pd,
		.stride =
			sizeof(struct slot) + max_sge * sizeof(struct ibv_sge),
	};
	if (mem)
		rq->mem = *mem;
	if (max_wr) {
		rq->ring =
			qp_mem_alloc(&rq->mem, depth * rq->stride, QP_MEM_RQ);
		if (!rq->ring)
			return -ENOMEM;
	}
	return 0;
}

void qp_rq_fini(struct qp_rq *rq)
{
	qp_mem_free(&rq->mem, rq->ring);
	*rq = (struct qp_rq){ 0 };
}

/* Reasons are kept out of the way of posts that succeed. */
__attribute__((noinline, cold)) static int
too_many(const struct qp_rq *rq, const struct ibv_recv_wr *wr)
{
	return why(-EINVAL,
		   "num_sge of the receive is %d; the queue was created with "
		   "max_recv_sge (SRQ: max_sge) %u",
		   wr->num_sge, rq->max_sge);
}

__attribute__((noinline, cold)) static int too_long(uint64_t length)
{
	return why(-EINVAL,
		   "the SGEs of the receive have %llu bytes together; a "
		   "message has at most %u",
		   (unsigned long long)length, QP_MAX_MSG);
}

__attribute__((noinline, cold)) static int full(const struct qp_rq *rq)
{
	if (!rq->max_wr)
		return why(-ENOMEM, "the receive queue has no room at all: "
				    "create the QP with cap.max_recv_wr > 0");
	return why(-ENOMEM,
		   "the receive queue is full: %u receives are posted and no "
		   "message has come for them yet (cap.max_recv_wr; of an SRQ "
		   "max_wr)",
		   rq->max_wr);
}

int qp_rq_post(struct qp_rq *rq, const struct ibv_recv_wr *wr)
{
	uint64_t length = 0;
	struct slot *s;

	if ((uint32_t)wr->num_sge > rq->max_sge) /* or negative */
		return too_many(rq, wr);
	if (qp_rq_count(rq) >= rq->max_wr)
		return full(rq);
	s = slot_at(rq, rq->tail);
	for (int i = 0; i < wr->num_sge; i++) {
		s->sge[i] = wr->sg_list[i];
		length += s->sge[i].length;
	}
	if (length > QP_MAX_MSG)
		return too_long(length);
	s->wr_id = wr->wr_id;
	s->length = length;
	s->num_sge = (uint32_t)wr->num_sge;
	rq->tail++;
	return 0;
}

int qp_rq_take(struct qp_rq *rq, uint64_t room, struct qp_recv *out)
{
	const struct slot *s;

	if (rq->head == rq->tail)
		return -EAGAIN;
	s = slot_at(rq, rq->head);
	if (s->length < room)
		return -EMSGSIZE;
	rq->head++;
	out->wr_id = s->wr_id;
	out->length = s->length;
	out->pd = rq->pd;
	out->cq = NULL;
	out->num_sge = s->num_sge;
	for (uint32_t i = 0; i < s->num_sge; i++)
		out->sge[i] = s->sge[i];
	return 0;
}

int qp_rq_resize(struct qp_rq *rq, uint32_t max_wr)
{
	struct qp_rq to;
	uint32_t pos;
	int err;

	if (max_wr < qp_rq_count(rq))
		return why(-EINVAL,
			   "max_wr %u is less than the %u receives that are "
			   "posted",
			   max_wr, qp_rq_count(rq));
	err = qp_rq_init(&to, max_wr, rq->max_sge, rq->pd, &rq->mem);
	if (err)
		return err;
	for (pos = rq->head; pos != rq->tail; pos++)
		memcpy(slot_at(&to, to.tail++), slot_at(rq, pos), rq->stride);
	qp_mem_free(&rq->mem, rq->ring);
	*rq = to;
	return 0;
}

/*
 * srq.c - shared receive queues
 */
#include "verbs.h"

#include "base/why.h"
#include "transport/record.h"

#include <errno.h>
#include <stdlib.h>

static int srq_init_check(const struct ibv_srq_init_attr_ex *attr)
{
	const uint32_t xrc = IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
	const uint32_t known =
		IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | xrc;
	enum ibv_srq_type type = IBV_SRQT_BASIC;

	if (attr->comp_mask & IBV_SRQ_INIT_ATTR_TYPE)
		type = attr->srq_type;
	if (attr->comp_mask & ~known ||
	    (type != IBV_SRQT_BASIC && type != IBV_SRQT_XRC))
		return why(-EOPNOTSUPP,
			   "comp_mask 0x%x or srq_type %u requests what this "
			   "device does not have: it has basic and XRC SRQs",
			   attr->comp_mask, (unsigned)type);
	if (!(attr->comp_mask & IBV_SRQ_INIT_ATTR_PD) || !attr->pd)
		return why(-EINVAL, "no PD is given");
	if (type == IBV_SRQT_XRC &&
	    ((attr->comp_mask & xrc) != xrc || !attr->xrcd || !attr->cq))
		return why(-EINVAL,
			   "an XRC SRQ needs xrcd (%p) and cq (%p), and their "
			   "bits in comp_mask (0x%x)",
			   (attr->comp_mask & IBV_SRQ_INIT_ATTR_XRCD) ?
				   (void *)attr->xrcd :
				   NULL,
			   (attr->comp_mask & IBV_SRQ_INIT_ATTR_CQ) ?
				   (void *)attr->cq :
				   NULL,
			   attr->comp_mask);
	if (!attr->attr.max_wr || attr->attr.max_wr > QP_MAX_WR)
		return why(-EINVAL, "attr.max_wr is %u, not in 1..%u",
			   attr->attr.max_wr, QP_MAX_WR);
	if (attr->attr.max_sge > QP_MAX_SGE)
		return why(-EINVAL,
			   "attr.max_sge is %u, but the device has at most %u",
			   attr->attr.max_sge, QP_MAX_SGE);
	return 0;
}

int shca_srq_create(struct ibv_srq_init_attr_ex *attr, struct ibv_srq **out)
{
	struct ibv_pd *pd = attr->pd;
	struct qp_mem mem;
	struct shca_srq *srq;
	struct engine *e;
	int err;

	err = engine_fault(FAULT_CREATE_SRQ) ?: srq_init_check(attr);
	if (!err)
		err = shca_check(pd, SHCA_PD);
	if (!err && attr->comp_mask & IBV_SRQ_INIT_ATTR_TYPE &&
	    attr->srq_type == IBV_SRQT_XRC)
		err = shca_check(attr->cq, SHCA_CQ);
	if (err)
		return err;
	e = to_ctx(pd->context)->engine;
	err = shca_count(e, SHCA_SRQ);
	if (err)
		return err;
	mem = shca_pd_mem(pd);
	srq = calloc(1, sizeof(*srq));
	err = srq ? qp_rq_init(&srq->rq, attr->attr.max_wr, attr->attr.max_sge,
			       to_pd(pd)->num, &mem) :
		    -ENOMEM;
	if (err) {
		free(srq);
		shca_uncount(e, SHCA_SRQ);
		return err;
	}
	if (attr->comp_mask & IBV_SRQ_INIT_ATTR_TYPE &&
	    attr->srq_type == IBV_SRQT_XRC)
		srq->type = IBV_SRQT_XRC;
	srq->srq.context = pd->context;
	srq->srq.srq_context = attr->srq_context;
	srq->srq.pd = pd;
	pthread_mutex_init(&srq->srq.mutex, NULL);
	pthread_cond_init(&srq->srq.cond, NULL);
	if (srq->type == IBV_SRQT_XRC) {
		srq->cq = to_cq(attr->cq);
		err = shca_xrc_srq_add(srq, attr->xrcd);
		if (err)
			goto err_free;
		atomic_fetch_add(&srq->cq->users, 1);
	}
	attr->attr.max_wr = srq->rq.max_wr;
	attr->attr.max_sge = srq->rq.max_sge;
	shca_pd_get(pd);
	shca_live_add(&srq->live, &srq->srq, SHCA_SRQ);
	*out = &srq->srq;
	return 0;

err_free:
	qp_rq_fini(&srq->rq);
	free(srq);
	shca_uncount(e, SHCA_SRQ);
	return err;
}

int shca_srq_modify(struct ibv_srq *ibsrq, const struct ibv_srq_attr *attr,
		    int mask)
{
	struct shca_srq *srq = to_srq(ibsrq);
	int err = shca_check(ibsrq, SHCA_SRQ);
	uint32_t max_wr;

	if (err)
		return err;
	if (mask & ~(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT))
		return why(-EINVAL,
			   "srq_attr_mask 0x%x: only IBV_SRQ_MAX_WR and "
			   "IBV_SRQ_LIMIT can be changed",
			   (unsigned)mask);
	lock_take(&srq->lock);
	max_wr = mask & IBV_SRQ_MAX_WR ? attr->max_wr : srq->rq.max_wr;
	if (!max_wr || max_wr > QP_MAX_WR || max_wr < qp_rq_count(&srq->rq) ||
	    ((mask & IBV_SRQ_LIMIT) && attr->srq_limit > max_wr) ||
	    (!(mask & IBV_SRQ_LIMIT) && srq->limit > max_wr))
		err = why(-EINVAL,
			  "max_wr %u with srq_limit %u: max_wr is in 1..%u, "
			  "holds the %u receives that are posted, and the "
			  "limit is at most max_wr",
			  max_wr,
			  mask & IBV_SRQ_LIMIT ? attr->srq_limit : srq->limit,
			  QP_MAX_WR, qp_rq_count(&srq->rq));
	if (!err && (mask & IBV_SRQ_MAX_WR))
		err = qp_rq_resize(&srq->rq, max_wr);
	if (!err && (mask & IBV_SRQ_LIMIT))
		srq->limit = attr->srq_limit;
	lock_drop(&srq->lock);
	return err;
}

int shca_srq_query(struct ibv_srq *ibsrq, struct ibv_srq_attr *attr)
{
	struct shca_srq *srq = to_srq(ibsrq);
	int err = shca_check(ibsrq, SHCA_SRQ);

	if (err)
		return err;
	lock_take(&srq->lock);
	attr->max_wr = srq->rq.max_wr;
	attr->max_sge = srq->rq.max_sge;
	attr->srq_limit = srq->limit;
	lock_drop(&srq->lock);
	return 0;
}

int shca_srq_destroy(struct ibv_srq *ibsrq)
{
	struct shca_srq *srq = to_srq(ibsrq);
	int err = shca_check(ibsrq, SHCA_SRQ);
	struct shca_context *ctx;

	if (err)
		return err;
	if (atomic_load(&srq->users))
		return shca_busy(ibsrq, "the SRQ");
	shca_live_remove(&srq->live);
	ctx = to_ctx(ibsrq->context);
	if (srq->type == IBV_SRQT_XRC) {
		shca_xrc_srq_remove(srq);
		atomic_fetch_sub(&srq->cq->users, 1);
	}
	shca_async_drop(ctx, ibsrq, SHCA_SRQ);
	qp_rq_fini(&srq->rq);
	shca_uncount(ctx->engine, SHCA_SRQ);
	shca_pd_put(ibsrq->pd);
	free(srq);
	return 0;
}

int shca_srq_post(struct ibv_srq *ibsrq, struct ibv_recv_wr *wr,
		  struct ibv_recv_wr **bad)
{
	struct shca_srq *srq = to_srq(ibsrq);
	int err = engine_dead(to_ctx(ibsrq->context)->engine) ?
			  -EIO :
			  engine_fault(FAULT_POST_SRQ_RECV);

	if (err) {
		*bad = wr;
		return err;
	}
	lock_take(&srq->lock);
	for (; wr; wr = wr->next) {
		err = qp_rq_post(&srq->rq, wr);
		if (err) {
			*bad = wr;
			break;
		}
		if (tracing())
			shca_record_srq_recv(ibsrq->handle, wr);
	}
	lock_drop(&srq->lock);
	return err;
}

int shca_srq_take(struct shca_srq *srq, uint64_t room, struct qp_recv *out)
{
	struct ibv_async_event ev = {
		.event_type = IBV_EVENT_SRQ_LIMIT_REACHED,
		.element.srq = &srq->srq,
	};
	bool low = false;
	int err;

	lock_take(&srq->lock);
	err = qp_rq_take(&srq->rq, room, out);
	if (!err && qp_rq_count(&srq->rq) < srq->limit) {
		srq->limit = 0; /* once per arming */
		low = true;
	}
	lock_drop(&srq->lock);
	if (low)
		shca_async_raise(to_ctx(srq->srq.context), &ev);
	return err;
}

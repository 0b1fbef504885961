/*
 * pause.c - a requester whose peer is suspended waits for it
 *
 * As after an RNR NAK: nothing is sent, and nobody owes an answer. What was out
 * may have come to nobody, so it is sent again after that. Answers that were on
 * their way count.
 */
#include "roce_internal.h"

void roce_qp_pause(struct roce_qp *qp, uint64_t until_ns, uint64_t now_ns)
{
	struct roce_requester *r = &qp->req;

	if (qp->base.state != IBV_QPS_RTS && qp->base.state != IBV_QPS_SQD)
		return;
	if (r->una != r->end_psn && !r->rnr_until_ns)
		recovery_rnr(qp);
	r->paused = true;
	/* Not before what an RNR NAK has asked for. */
	r->rnr_until_ns = max_u64(r->rnr_until_ns, max_u64(until_ns, now_ns));
	r->timer_ns = 0;
	r->unarmed = false;
	r->retries = 0;
}

bool roce_qp_paused(const struct roce_qp *qp)
{
	return qp->req.paused;
}

void roce_qp_go_on(struct roce_qp *qp, uint64_t now_ns)
{
	struct roce_requester *r = &qp->req;

	if (!r->paused)
		return;
	r->paused = false;
	r->rnr_until_ns = 0;
	r->progress_ns = now_ns;
}

void roce_qp_follow(struct roce_qp *qp, const struct roce_path *path,
		    uint32_t dest_qpn)
{
	roce_qp_moved(qp, path);
	qp->dest_qpn = dest_qpn;
	qp_public_set(&qp->base.pub->dest_qpn, dest_qpn);
	/* It sends from other ports, perhaps. */
	qp->req.sport = qp->rsp.sport = 0;
}

bool roce_qp_places(const struct roce_qp *qp, struct roce_places *p)
{
	const enum ibv_qp_state state = qp->base.state;

	if (qp->base.type != IBV_QPT_RC ||
	    (state != IBV_QPS_RTS && state != IBV_QPS_RTR))
		return false;
	*p = (struct roce_places){
		.una = qp->req.una,
		.end_psn = qp->req.end_psn,
		.epsn = qp->rsp.epsn,
		.silent = state == IBV_QPS_RTR,
		.unheard = qp->rsp.epsn == qp->base.attr.rq_psn,
	};
	return true;
}

/*
 * roce_direct.c - requests that need no packets, see qp/direct.h
 *
 * They use no PSNs, so to the responder they never were: only when nothing is
 * on its way can one be carried out in its turn. Of a program that always has
 * some outstanding, something would always be on its way, once one had to be
 * sent; so behind others of its kind alone a request waits for their end.
 *
 * A small one takes the kernel longer than it takes this process and the peer to
 * send and to receive it: what waits for one is served sooner, but many take
 * longer. So those that are posted in numbers are sent.
 */
#include "roce_internal.h"

#include "qp/direct.h"

/* Up to this size a packet takes less time, both ends together, than a copy. */
#define SMALL 1024u

static bool is_sent_instead(const struct roce_qp *qp, const struct qp_wqe *w)
{
	return qp->direct_many && w->length <= SMALL;
}

bool roce_direct_ready(const struct roce_qp *qp)
{
	const struct roce_requester *r = &qp->req;
	const struct qp_sq *sq = &qp->base.sq;

	return sq->head != sq->tail && sq->nxt == sq->head &&
	       qp->base.state == IBV_QPS_RTS && r->una == r->end_psn &&
	       /* Not in the middle of it, either. */
	       psn_diff(r->una,
			roce_wqe(qp_sq_slot(sq, sq->head))->first_psn) <= 0 &&
	       !r->rnr_until_ns && roce_path_in_host(&qp->path) &&
	       qp_direct_kind(&qp->base, qp_sq_slot(sq, sq->head)) &&
	       !is_sent_instead(qp, qp_sq_slot(sq, sq->head));
}

/* UC hears of nothing that arrives. Nothing is on its way when the peer has read
 * all that has been sent to it. */
static void uc_settle(struct roce_qp *qp)
{
	uint64_t mark[2] = { 0 };

	if (qp->req.una != qp->req.end_psn && roce_env(qp)->unread &&
	    !roce_env(qp)->unread(&qp->base, mark))
		qp->req.una = qp->req.end_psn;
}

void roce_direct_expect(struct roce_qp *qp, bool likely, bool many)
{
	if (likely && qp->base.type == IBV_QPT_UC)
		uc_settle(qp);
	qp->direct_likely = likely;
	qp->direct_many = many;
}

bool roce_direct_waits(const struct roce_qp *qp, const struct qp_wqe *w)
{
	const struct qp_sq *sq = &qp->base.sq;

	if (!qp->direct_likely || sq->nxt == sq->head ||
	    is_sent_instead(qp, w) || !qp_direct_kind(&qp->base, w))
		return false;
	for (uint32_t i = sq->head; i != sq->nxt; i++)
		if (!qp_direct_kind(&qp->base, qp_sq_slot(sq, i)))
			return false;
	return true;
}

/* What is left in the queue gets the PSNs that were not used. */
static void renumber_queue(struct roce_qp *qp)
{
	uint32_t psn = qp->req.una;

	for (uint32_t i = qp->base.sq.head; i != qp->base.sq.tail; i++) {
		struct roce_wqe *w = roce_wqe(qp_sq_slot(&qp->base.sq, i));
		uint32_t npkts = (w->last_psn - w->first_psn + 1) & PSN_MASK;

		w->first_psn = psn;
		psn = psn_add(psn, npkts);
		w->last_psn = psn_add(psn, PSN_MASK);
	}
	qp->req.post_psn = psn;
}

/* The oldest one is done. False: that was the end of the QP. */
static bool complete_direct(struct roce_qp *qp, int err)
{
	const struct qp_wqe *w = qp_sq_slot(&qp->base.sq, qp->base.sq.head);

	if (err) {
		qp_sq_complete(&qp->base, IBV_WC_LOC_PROT_ERR);
		roce_to_err(qp);
		return false;
	}
	qp->stats.direct++;
	if (!qp_wqe_has_response(w))
		qp->stats.direct_writes++;
	else if (w->opcode == IBV_WR_RDMA_READ)
		qp->stats.direct_reads++;
	else
		qp->stats.direct_atomics++;
	qp->stats.direct_bytes += w->length;
	if (qp_sq_complete(&qp->base, IBV_WC_SUCCESS))
		return true;
	roce_fail(qp, IBV_EVENT_QP_FATAL);
	return false;
}

void roce_direct(struct roce_qp *qp, struct qp_remote *remote)
{
	const struct qp_direct_peer peer = {
		.qpn = qp->dest_qpn,
		.psn = qp->base.attr.sq_psn,
		.mtu = qp->mtu,
		.path_hash = roce_path_there(&qp->path),
	};
	bool any = false;

	while (roce_direct_ready(qp)) {
		struct qp_wqe *w = qp_sq_slot(&qp->base.sq, qp->base.sq.head);
		int err = qp_direct(&qp->base, w, remote, &peer);

		if (err && err != -EINPROGRESS)
			break;
		any = true;
		if (!complete_direct(qp, err))
			return;
	}
	if (any)
		renumber_queue(qp);
}

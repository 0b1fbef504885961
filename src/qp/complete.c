/*
 * complete.c - work requests out of the queues: completions and flushing
 */
#include "qp.h"

bool qp_sq_report(struct qp *qp, const struct qp_wqe *w,
		  enum ibv_wc_status status)
{
	const struct ibv_wc wc = {
		.wr_id = w->wr_id,
		.status = status,
		.opcode = (enum ibv_wc_opcode)qp_opcodes[w->opcode].completion,
		.byte_len = w->length,
		.qp_num = qp->qpn,
	};

	return qp->env->complete(qp, qp->send_cq, &wc, false) == 0;
}

bool qp_sq_complete(struct qp *qp, enum ibv_wc_status status)
{
	struct qp_sq *sq = &qp->sq;

	if (sq->nxt == sq->head)
		sq->nxt++;
	if (status == IBV_WC_SUCCESS)
		return qp_sq_done(qp, qp_sq_slot(sq, sq->head));
	if (status == IBV_WC_WR_FLUSH_ERR)
		qp->sq_flushed++;
	else
		qp->sq_errors++;
	return qp_sq_report(qp, qp_sq_slot(sq, sq->head++), status);
}

uint32_t qp_sq_unsignaled(const struct qp *qp)
{
	const struct qp_sq *sq = &qp->sq;
	uint32_t n = 0;

	if (qp->sq_sig_all || sq->head != sq->tail)
		return 0;
	/* Slots keep what was posted until they are used again. */
	while (n < sq->depth && n < sq->head &&
	       !(qp_sq_slot(sq, sq->head - 1 - n)->flags & IBV_SEND_SIGNALED))
		n++;
	return n;
}

void qp_flush_sq(struct qp *qp)
{
	while (qp->sq.head != qp->sq.tail)
		qp_sq_complete(qp, IBV_WC_WR_FLUSH_ERR);
	qp->sq.nxt = qp->sq.head;
}

static void flush_recv(struct qp *qp, const struct qp_recv *r)
{
	struct ibv_wc wc = {
		.status = IBV_WC_WR_FLUSH_ERR,
		.opcode = IBV_WC_RECV,
	};

	qp->rq_flushed++;
	qp_recv_complete(qp, r, &wc, false);
}

void qp_flush_rq(struct qp *qp)
{
	struct qp_recv r;

	if (qp->recv_valid) {
		qp->recv_valid = false;
		flush_recv(qp, &qp->recv);
	}
	if (qp->type == IBV_QPT_XRC_SEND)
		return;
	if (qp->srq || qp->type == IBV_QPT_XRC_RECV) {
		qp->env->event(qp, IBV_EVENT_QP_LAST_WQE_REACHED);
		return;
	}
	while (!qp_rq_take(&qp->rq, 0, &r))
		flush_recv(qp, &r);
}

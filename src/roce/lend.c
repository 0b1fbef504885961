/*
 * lend.c - the responder of a QP goes on elsewhere
 *
 * What is left of a responder between two messages is a few numbers, provided
 * that it owes the peer nothing: no response that waits for the link, no ACK.
 * Whoever has them, and the QP's attributes, can take the next request.
 */
#include "roce_internal.h"

void roce_rsp_get(const struct roce_qp *qp, struct roce_rsp_state *s)
{
	const struct roce_responder *r = &qp->rsp;

	*s = (struct roce_rsp_state){
		.epsn = r->epsn,
		.msn = r->msn,
		.ack_back = r->ack_back,
		.nak_seq_sent = r->nak_seq_sent,
		.rnr_sent = r->rnr_sent,
		.between = r->in == IN_NOTHING,
		.idle = r->in == IN_NOTHING && !rsp_ready(qp),
	};
}

void roce_rsp_set(struct roce_qp *qp, const struct roce_rsp_state *s)
{
	struct roce_responder *r = &qp->rsp;

	reorder_free(qp);
	r->stream_pos += (s->epsn - r->epsn) & PSN_MASK;
	r->epsn = s->epsn & PSN_MASK;
	r->msn = s->msn & PSN_MASK;
	r->ack_back = s->ack_back & PSN_MASK;
	r->nak_seq_sent = s->nak_seq_sent;
	r->nak_for = r->epsn;
	r->rnr_sent = s->rnr_sent;
	r->reads_unknown = r->reads_size;
	if (qp->base.state == IBV_QPS_RTR && !qp->comm_est)
		roce_established(qp);
}

void roce_rsp_failed(struct roce_qp *qp, int event)
{
	if (event < 0)
		roce_to_err(qp);
	else
		roce_fail(qp, (enum ibv_event_type)event);
}

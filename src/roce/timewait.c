/*
 * timewait.c - the last ACK of a connection, again
 *
 * A program that has received everything destroys its QP, and the ACK of what
 * came last may be lost. The peer, all of whose data has arrived, would repeat
 * it without an answer, and end in IBV_WC_RETRY_EXC_ERR. So a few numbers
 * outlive the QP: enough to acknowledge again, for the peer of the connection
 * alone, the SENDs and WRITEs that were executed. Nothing is executed any more,
 * so there is no answer to what is new, and none to reads and atomics, whose
 * memory may be gone. The specification knows the state (TimeWait, 12.9.8.3.1),
 * though it only keeps the number of the QP from being used again in it.
 *
 * The answer is always the same, so one in ACK_GAP_NS is enough, and a packet
 * never causes more than one, of 20 bytes, which is no amplifier for a flood.
 */
#include "timewait.h"

#include "roce_internal.h"

#define ACK_GAP_NS (100 * USEC)

bool roce_timewait_init(struct roce_timewait *w, const struct roce_qp *qp)
{
	const struct roce_responder *r = &qp->rsp;
	const struct roce_qp_stats *s = &qp->stats;

	if (!qp_is_reliable(&qp->base) || qp->base.type == IBV_QPT_XRC_SEND ||
	    qp->base.state < IBV_QPS_RTR || qp->base.state == IBV_QPS_ERR)
		return false;
	*w = (struct roce_timewait){
		.qpn = qp->base.wire_qpn,
		.dest_qpn = qp->dest_qpn,
		.ack_psn = rsp_ack_psn(qp),
		.msn = r->msn,
		.seed = qp->seed,
		.service = qp->service,
		.lossy = s->duplicates || s->nak_tx != s->rnr_tx,
		.path = qp->path,
		.asked_ns = r->asked_ns,
	};
	/* Nothing has been executed but reads and atomics, if anything. */
	return psn_add(w->ack_psn, 1) != qp->base.attr.rq_psn;
}

bool roce_timewait_rx(struct roce_timewait *w, const struct roce_rx *pkt,
		      struct roce_batch *b, uint64_t now_ns)
{
	uint32_t f = roce_opcode(pkt->h.opcode)->flags;
	int32_t d = psn_diff(pkt->h.psn, w->ack_psn);
	struct roce_pkt *p;

	b->n = b->data.n = b->data.nkeys = 0;
	if (pkt->h.dest_qpn != w->qpn ||
	    roce_check_connected(pkt, w->service, &w->path,
				 roce_path_back(&w->path)) ||
	    !(f & ROCE_F_REQUEST) || f & (ROCE_F_READ | ROCE_F_ATOMIC) ||
	    d > 0 || d < -PSN_WINDOW)
		return false;
	w->asked_ns = now_ns;
	w->lossy = true;
	if (w->acked_ns && now_ns < w->acked_ns + ACK_GAP_NS)
		return true;
	w->acked_ns = now_ns;
	p = batch_open(b);
	ack_fill(&p->h, w->service, w->dest_qpn, w->ack_psn, w->msn);
	batch_push(b, p, &w->path, w->seed);
	return true;
}

/*
 * record.c - events of queue pairs and completions, where they are recorded
 *
 * A packet is recorded after it was sent, with the time before: its receiver
 * may be faster than its sender. Completions by a small packet, and those that
 * a program polls at once, have the packet's time.
 */
#include "record.h"

#include "base/bytes.h"
#include "wire/mad.h"

static void put_wqe(enum trace_type type, const struct qp *core,
		    const struct qp_wqe *w, uint64_t ns)
{
	uint32_t first = 0, last = 0, flags = w->local ? TRACE_LOCAL : 0;

	/* Those of iWARP have no PSNs. */
	if (shca_qp_is_roce(core->owner))
		roce_wqe_psns(w, &first, &last);
	if (core->sq_sig_all || w->flags & IBV_SEND_SIGNALED)
		flags |= TRACE_SIGNALED;
	trace_put(type, core->qpn, last << 8 | flags, w->wr_id,
		  shca_record_psn_op(first, w->opcode), w->length, ns);
}

void shca_record_posts(struct qp *core, uint32_t from)
{
	const uint64_t ns = trace_now();

	trace_forget(); /* if there are none */
	for (; from != core->sq.tail; from++)
		put_wqe(TRACE_POST_SEND, core, qp_sq_slot(&core->sq, from), ns);
}

static uint32_t length_of(const struct ibv_recv_wr *wr)
{
	uint32_t len = 0;

	for (int i = 0; i < wr->num_sge; i++)
		len += wr->sg_list[i].length;
	return len;
}

void shca_record_recv(uint32_t qpn, const struct ibv_recv_wr *wr)
{
	trace_put(TRACE_POST_RECV, qpn, 0, wr->wr_id, 0, length_of(wr), 0);
}

void shca_record_srq_recv(uint32_t handle, const struct ibv_recv_wr *wr)
{
	trace_put(TRACE_POST_RECV, 0, handle, wr->wr_id, 0, length_of(wr), 0);
}

unsigned shca_record_small(struct shca_qp *qp, bool posted, uint64_t *now)
{
	const struct qp *core = qp->core;
	const uint64_t ns = posted ? TRACE_LAST : trace_now();
	const uint32_t from = core->sq.nxt;
	const unsigned n =
		engine_send_small(&qp->sched, roce_qp(qp->core), now);

	for (unsigned i = 0; i < n; i++) {
		const struct qp_wqe *w = qp_sq_slot(&core->sq, from + i);
		uint32_t first, last;

		roce_wqe_psns(w, &first, &last);
		trace_put(
			TRACE_PKT_OUT, core->qpn,
			last << 8 | TRACE_HOST | TRACE_ACK_REQ,
			roce_qp_dest(roce_qp_const(core)),
			shca_record_psn_op(
				first, roce_wqe_opcode(roce_qp_const(core), w)),
			w->length, ns);
	}
	return n;
}

size_t shca_record_send(struct shca_qp *qp, const struct roce_batch *b,
			int *err)
{
	const struct roce_qp *r = roce_qp_const(qp->core);
	const uint64_t ns = trace_now();
	const size_t sent = engine_send(qp->sched.engine, &qp->sched, b, err);

	for (size_t i = 0; i < sent; i++) {
		const struct roce_pkt *p = &b->pkt[i];
		const bool aeth = roce_opcode(p->h.opcode)->flags & ROCE_F_AETH;
		const uint32_t flags = (roce_tx_again(r, p) ? TRACE_AGAIN : 0) |
				       (p->h.ack_req ? TRACE_ACK_REQ : 0) |
				       (qp->sched.way.peer ? TRACE_HOST : 0);

		trace_put(TRACE_PKT_OUT, qp->core->qpn,
			  p->last_psn << 8 | flags,
			  TRACE_KEY(p->h.dest_qpn, aeth ? p->h.syndrome : 0,
				    aeth ? p->h.msn : 0),
			  shca_record_psn_op(p->h.psn, p->h.opcode), p->payload,
			  ns);
	}
	return sent;
}

void shca_record_direct(struct shca_qp *qp, struct qp_remote *remote)
{
	const struct qp *core = qp->core;
	const uint64_t ns = trace_now();
	const uint64_t direct = roce_qp_stats(roce_qp_const(core))->direct;
	uint32_t i = core->sq.head;
	uint64_t n;

	roce_direct(roce_qp(qp->core), remote);
	n = roce_qp_stats(roce_qp_const(core))->direct - direct;
	for (; n; n--, i++)
		put_wqe(TRACE_DIRECT, core, qp_sq_slot(&core->sq, i), ns);
}

static void put_rx(const struct shca_qp *qp, const struct roce_rx *pkt)
{
	const struct roce_hdr *h = &pkt->h;
	const uint32_t op = roce_opcode(h->opcode)->flags;
	const uint32_t qpn = qp->core->qpn;
	const bool aeth = op & ROCE_F_AETH;

	if (pkt->ack_note) {
		trace_put(TRACE_PKT_IN, qpn,
			  h->psn << 8 | TRACE_VERDICT | TRACE_HOST,
			  roce_qp_dest(roce_qp_const(qp->core)),
			  shca_record_psn_op(h->psn, ROCE_RC | ROCE_ACK), 0, 0);
		return;
	}
	trace_put(TRACE_PKT_IN, qpn,
		  h->psn << 8 | (h->ack_req ? TRACE_ACK_REQ : 0) |
			  (pkt->host ? TRACE_HOST : 0),
		  TRACE_KEY(op & ROCE_F_DETH ?
				    h->src_qpn :
				    roce_qp_dest(roce_qp_const(qp->core)),
			    aeth ? h->syndrome : 0, aeth ? h->msn : 0),
		  shca_record_psn_op(h->psn, h->opcode), (uint32_t)pkt->len, 0);
}

/* So much payload takes no time that is seen. */
#define SMALL 1024u

/* The time of completions, while a thread takes a small packet. */
static _Thread_local __attribute__((tls_model("initial-exec"))) bool in_packet;

void shca_record_rx(struct shca_qp *qp, const struct roce_rx *pkt, uint64_t now)
{
	put_rx(qp, pkt);
	in_packet = pkt->len <= SMALL;
	shca_qp_rx(qp, pkt, now);
	in_packet = false;
}

void shca_record_expire(struct shca_qp *qp, uint64_t now)
{
	const struct roce_qp_stats *s = roce_qp_stats(roce_qp_const(qp->core));
	const uint64_t timeouts = s->timeouts, again = s->retransmits;
	const bool ready = roce_tx_ready(roce_qp_const(qp->core));

	roce_expire(roce_qp(qp->core), now);
	if (s->timeouts != timeouts)
		trace_put(TRACE_TIMER, qp->core->qpn, TRACE_T_TIMEOUT, 0, 0, 0,
			  0);
	else if (s->retransmits != again ||
		 (!ready && roce_tx_ready(roce_qp_const(qp->core))))
		trace_put(TRACE_TIMER, qp->core->qpn, TRACE_T_PROBE, 0, 0, 0,
			  0);
}

static void put_wc(enum trace_type type, uint32_t qpn, const struct ibv_wc *wc,
		   uint64_t ns)
{
	trace_put(type, qpn, wc->status, wc->wr_id,
		  shca_record_psn_op(0, wc->opcode), wc->byte_len, ns);
}

void shca_record_complete(uint32_t qpn, const struct ibv_wc *wc)
{
	put_wc(TRACE_COMPLETE, qpn, wc, in_packet ? TRACE_LAST : 0);
}

void shca_record_polled(const struct ibv_wc *wc, int n)
{
	for (int i = 0; i < n; i++)
		put_wc(TRACE_POLLED, wc[i].qp_num, &wc[i], TRACE_LAST);
}

void shca_record_modify(const struct shca_qp *qp,
			const struct ibv_qp_attr *attr, int mask,
			const struct roce_path *path)
{
	const uint32_t qpn = shca_qpn(qp);

	if (mask & IBV_QP_AV) {
		trace_keep_bytes(TRACE_QP_SGID, qpn, &path->sgid);
		trace_keep_bytes(TRACE_QP_DGID, qpn, &path->dgid);
	}
	if (mask & IBV_QP_STATE)
		trace_keep(TRACE_QP_STATE, qpn, attr->qp_state,
			   mask & IBV_QP_DEST_QPN ? attr->dest_qp_num : 0, 0,
			   mask & IBV_QP_PATH_MTU ? 128u << attr->path_mtu : 0);
}

void shca_record_mad(enum trace_type type, const uint8_t *mad, size_t len)
{
	if (len == MAD_LEN)
		trace_keep(type, 1, (uint32_t)mad[16] << 8 | mad[17],
			   get_be64(mad + 8), 0, 0);
}

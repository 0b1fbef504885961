/*
 * responder.c - the requests that arrive on one RC or UC queue pair
 *
 * epsn is the PSN of the next request not yet executed. At epsn: new, execute
 * once. Before it: a duplicate whose effects already happened. SEND and WRITE
 * are acknowledged again, READ is read again, an atomic is answered from its
 * saved result, because running it twice would show. After it: something was
 * lost. NAK once, then stay silent until epsn arrives, so a gap followed by a
 * hundred packets costs one retry rather than a hundred; what is behind the gap
 * is kept until then (reorder.c). UC has no NAK: it
 * drops the message it was in, and a message may begin with any PSN.
 */
#include "responder.h"

/* Repetitions of a request until its ACK counts as ignored: ack_ignored(). */
#define AGAIN_MAX 2

/* ---- failing ----------------------------------------------------------- */

void rsp_fail_access(struct roce_qp *qp)
{
	rsp_owe_nak(qp, ROCE_AETH_NAK | ROCE_NAK_REMOTE_ACCESS);
	if (qp->base.state != IBV_QPS_ERR)
		roce_fail(qp, IBV_EVENT_QP_ACCESS_ERR);
}

/* A receive WQE for the message, unless it has one: 0, -EAGAIN, -ENOENT, or
 * -EBUSY: it looks on purpose as if there were none. */
static inline int take_recv(struct roce_qp *qp, uint32_t srqn)
{
	struct roce_responder *r = &qp->rsp;
	int err;

	if (qp->base.recv_valid)
		return 0;
	if (__builtin_expect(roce_env(qp)->withhold != NULL, 0) &&
	    roce_env(qp)->withhold(&qp->base))
		return -EBUSY;
	if (qp->base.type == IBV_QPT_XRC_RECV)
		err = roce_env(qp)->xrc_srq_take(&qp->base, srqn,
						 &qp->base.recv);
	else
		err = qp_recv_take(&qp->base, 0, &qp->base.recv);
	if (err)
		return err;
	qp_landing(&qp->base, &qp->base.recv);
	qp->base.recv_valid = true;
	r->recv_srqn = srqn;
	return 0;
}

/* The receive in progress ends with an error of its own. */
static void fail_recv(struct roce_qp *qp, enum ibv_wc_status status)
{
	struct ibv_wc wc = { .status = status, .opcode = IBV_WC_RECV };

	if (!qp->base.recv_valid)
		return;
	qp->base.recv_valid = false;
	qp->base.rq_errors++;
	roce_recv_complete(qp, &qp->base.recv, &wc, false);
}

static void drop_refused(struct roce_qp *qp, enum verdict v)
{
	if (v == DROP || v == V_NAK_PSN || v == V_AGAIN)
		roce_drop(qp, ROCE_DROP_GAP);
	else if (v == V_RNR)
		roce_drop(qp, ROCE_DROP_NO_RECV);
	else
		roce_drop(qp, ROCE_DROP_REFUSED);
}

/*
 * Asks for epsn, once per gap, which psn shows. PSNs grow until the requester
 * goes back: one that was here already, and epsn still is not, means that epsn
 * has been lost again.
 */
static void nak_gap(struct roce_qp *qp, uint32_t psn)
{
	struct roce_responder *r = &qp->rsp;

	if (r->rnr_sent || (r->nak_seq_sent && psn_diff(psn, r->nak_for) > 0))
		return;
	r->nak_seq_sent = true;
	r->nak_for = psn;
	/*
	 * A NAK accepts what is before it, but rxe as requester takes no second
	 * one before it has seen an ACK: it would wait for its timer, gap after
	 * gap, until it is out of retries.
	 */
	if (r->nak_last)
		rsp_owe_ack(qp);
	rsp_owe_nak(qp, ROCE_AETH_NAK | ROCE_NAK_PSN);
}

__attribute__((noinline, cold)) static void
refuse_rc(struct roce_qp *qp, const struct roce_rx *pkt, enum verdict v)
{
	uint32_t f = roce_opcode(pkt->h.opcode)->flags;
	struct roce_responder *r = &qp->rsp;

	if (v == V_NAK_PSN && !r->rnr_sent && reorder_keep(qp, pkt)) {
		qp->stats.gaps++;
		nak_gap(qp, pkt->h.psn);
		return;
	}
	drop_refused(qp, v);
	switch (v) {
	case PASS:
	case DROP:
	case DUPLICATE:
		return;
	case V_NAK_PSN:
		nak_gap(qp, pkt->h.psn);
		return;
	case V_AGAIN:
		/* It is here, so the gap before it is closed. */
		r->nak_seq_sent = r->rnr_sent = false;
		nak_gap(qp, pkt->h.psn);
		return;
	case V_RNR:
		r->rnr_sent = true;
		qp->stats.rnr_tx++;
		rsp_owe_nak(qp, (uint8_t)(ROCE_AETH_RNR |
					  qp->base.attr.min_rnr_timer));
		return;
	case V_LENGTH:
		rsp_owe_nak(qp, ROCE_AETH_NAK | ROCE_NAK_INVALID_REQUEST);
		fail_recv(qp, IBV_WC_LOC_LEN_ERR);
		roce_to_err(qp);
		return;
	case V_OPERATIONAL:
		rsp_owe_nak(qp, ROCE_AETH_NAK | ROCE_NAK_REMOTE_OPERATIONAL);
		fail_recv(qp, IBV_WC_LOC_PROT_ERR);
		roce_to_err(qp);
		return;
	case V_INVALID:
		rsp_owe_nak(qp, ROCE_AETH_NAK | ROCE_NAK_INVALID_REQUEST);
		fail_recv(qp, IBV_WC_REM_INV_REQ_ERR);
		roce_fail(qp, IBV_EVENT_QP_REQ_ERR);
		return;
	case V_ACCESS:
		/* The receive that the write would have completed (11.6.2). */
		if (f & ROCE_F_WRITE && f & ROCE_F_IMM &&
		    !take_recv(qp, pkt->h.xrc_srqn))
			fail_recv(qp, IBV_WC_LOC_ACCESS_ERR);
		fail_recv(qp, IBV_WC_REM_ACCESS_ERR);
		rsp_fail_access(qp);
		return;
	case V_INVALIDATE:
		/* Its data is here: no NAK (9.9.3.1, class J). */
		rsp_owe_ack_of(qp, rx_last_psn(qp, pkt));
		fail_recv(qp, IBV_WC_REM_INV_REQ_ERR);
		roce_fail(qp, IBV_EVENT_QP_ACCESS_ERR);
		return;
	case V_CQ_FULL:
		return;
	}
}

/*
 * UC drops a message it cannot take, and says nothing. A receive that it had
 * begun to fill waits for the next message (9.8.2.2; rxe fails it, and the QP).
 */
__attribute__((noinline)) static void refuse_uc(struct roce_qp *qp,
						enum verdict v)
{
	if (v == PASS)
		return;
	drop_refused(qp, v);
	qp->rsp.in = IN_NOTHING;
}

/* ---- checks ------------------------------------------------------------ */

/*
 * Whether a packet that is not the one due can come from a requester that goes
 * on, or goes back to what it has outstanding. One that is very far from there,
 * alone, cannot: another is going to follow, or the same again. The second of
 * a row is trusted.
 *
 * Only what can be is answered, since rxe starts its retransmission timer anew
 * with whatever answer comes in: answers to forged packets would put it off for
 * as long as they come, while a packet is missing, or the one NAK of its gap,
 * which a forged packet might have used up.
 */
__attribute__((noinline)) static bool psn_in_window(struct roce_responder *r,
						    uint32_t psn, uint32_t span)
{
	int32_t d = psn_diff(psn, r->epsn);
	bool row = psn == r->out_of_window_psn ||
		   psn_add(psn, span) == r->out_of_window_psn;

	if (d >= -PSN_WINDOW && d <= PSN_WINDOW)
		return true;
	r->out_of_window_psn = psn_add(psn, span);
	return row;
}

RSP_INLINE enum verdict check_psn(struct roce_qp *qp, const struct roce_rx *pkt,
				  uint32_t f)
{
	struct roce_responder *r = &qp->rsp;
	int32_t d = psn_diff(pkt->h.psn, r->epsn);

	if (qp->base.type == IBV_QPT_UC) {
		/*
		 * 9.8.2.2: out of sequence ends the message in progress, and
		 * only the beginning of another is taken: from whatever PSN,
		 * or one that came astray would cost all up to its own.
		 */
		r->epsn = pkt->h.psn;
		if (!d || f & ROCE_F_FIRST)
			return PASS;
		r->in = IN_NOTHING;
		return DROP;
	}
	if (d > 0)
		return psn_in_window(r, pkt->h.psn,
				     span_of(pkt->len, qp->mtu)) ?
			       V_NAK_PSN :
			       DROP;
	return d == 0 ? PASS : DUPLICATE;
}

/* Opcode sequence (9.7.4.1.2 and table 36), lengths of packets (9.7.4.1.6). */
RSP_INLINE enum verdict check_order(const struct roce_qp *qp,
				    const struct roce_rx *pkt, uint32_t f)
{
	const struct roce_responder *r = &qp->rsp;
	enum resp_in kind = f & ROCE_F_SEND  ? IN_SEND :
			    f & ROCE_F_WRITE ? IN_WRITE :
					       IN_NOTHING;

	if (f & (ROCE_F_READ | ROCE_F_ATOMIC))
		return r->in == IN_NOTHING ? PASS : V_INVALID;
	if (f & ROCE_F_FIRST) {
		if (r->in != IN_NOTHING) {
			if (qp_is_reliable(&qp->base))
				return V_INVALID;
		}
	} else if (r->in != kind) {
		return V_INVALID;
	}
	if (pkt->len > (pkt->large ? QP_MAX_MSG : qp->mtu))
		return V_INVALID;
	if (f & ROCE_F_LAST) {
		/* A LAST that carries nothing would make the message end one
		 * packet earlier; zero bytes only in an ONLY. */
		if (!(f & ROCE_F_FIRST) && pkt->len == 0)
			return V_INVALID;
	} else if (!pkt->len || pkt->len & (qp->mtu - 1)) {
		return V_INVALID;
	}
	return PASS;
}

/* Once a second: the peer may try a thousand times. */
static void no_recv_explain(struct roce_qp *qp)
{
	struct roce_responder *r = &qp->rsp;

	if (r->rnr_count++ && r->asked_ns - r->rnr_said_ns < SAY_NS)
		return;
	if (r->rnr_said)
		explain(qp,
			"messages arrive, but no receive is posted (%u times "
			"more in %.1f s); post receives before the peer sends",
			r->rnr_count - r->rnr_said,
			(double)(r->asked_ns - r->rnr_said_ns) / 1e9);
	else
		explain(qp, "a message arrived, but no receive was posted; "
			    "post receives before the peer sends");
	r->rnr_said = r->rnr_count;
	r->rnr_said_ns = r->asked_ns;
}

__attribute__((noinline, cold)) static enum verdict
no_recv(struct roce_qp *qp, uint32_t srqn, int err)
{
	if (err == -ENOENT) {
		explain(qp,
			"a message for XRC SRQ %u, which is not (or no longer) "
			"in this QP's domain",
			srqn);
		return V_INVALID;
	}
	if (err != -EBUSY)
		no_recv_explain(qp);
	return V_RNR;
}

/* A receive WQE for a SEND, or a WRITE with immediate data. */
RSP_INLINE enum verdict need_recv(struct roce_qp *qp, uint32_t srqn)
{
	int err = take_recv(qp, srqn);

	return err ? no_recv(qp, srqn, err) : PASS;
}

void roce_srq_gone(struct roce_qp *qp, uint32_t srqn)
{
	struct roce_responder *r = &qp->rsp;

	if (qp->base.type != IBV_QPT_XRC_RECV || !qp->base.recv_valid ||
	    r->recv_srqn != srqn)
		return;
	qp->base.recv_valid = false;
	rsp_owe_nak(qp, ROCE_AETH_NAK | ROCE_NAK_REMOTE_OPERATIONAL);
	roce_fail(qp, IBV_EVENT_QP_FATAL);
}

RSP_INLINE enum verdict check_resources(struct roce_qp *qp,
					const struct roce_rx *pkt, uint32_t f)
{
	struct roce_responder *r = &qp->rsp;

	if ((f & ROCE_F_SEND && f & ROCE_F_FIRST) ||
	    (f & ROCE_F_WRITE && f & ROCE_F_IMM))
		return need_recv(qp, pkt->h.xrc_srqn);
	if (f & (ROCE_F_READ | ROCE_F_ATOMIC)) {
		/* The requester has gone on: it does not need repetitions. */
		if (rsp_count(r) >= qp->base.attr.max_dest_rd_atomic)
			rsp_drop_repeats(r);
		if (rsp_count(r) >= qp->base.attr.max_dest_rd_atomic) {
			explain(qp,
				"more reads and atomics outstanding than "
				"max_dest_rd_atomic=%u: lower the peer's "
				"max_rd_atomic",
				qp->base.attr.max_dest_rd_atomic);
			return V_INVALID;
		}
	}
	return PASS;
}

/* Whose keys a request names that begins now. */
static int find_pd(struct roce_qp *qp, uint32_t srqn)
{
	qp->rsp.req_pd = qp->base.pd;
	if (qp->base.type != IBV_QPT_XRC_RECV || !roce_env(qp)->xrc_pd)
		return 0;
	return roce_env(qp)->xrc_pd(&qp->base, srqn, &qp->rsp.req_pd);
}

/* Whether the whole range that a RETH names may be accessed. */
static enum verdict check_access(struct roce_qp *qp, const struct roce_rx *pkt,
				 uint32_t f)
{
	const struct roce_hdr *h = &pkt->h;
	uint32_t flag, len = h->dma_len;
	struct key_entry *e;
	const char *what;
	void *p;

	if (f & ROCE_F_RETH && f & ROCE_F_WRITE) {
		flag = IBV_ACCESS_REMOTE_WRITE;
		what = "write";
	} else if (f & ROCE_F_READ) {
		flag = IBV_ACCESS_REMOTE_READ;
		what = "read";
	} else if (f & ROCE_F_ATOMIC) {
		bool write = f & ROCE_F_RETH;

		flag = write ? IBV_ACCESS_REMOTE_WRITE :
			       IBV_ACCESS_REMOTE_ATOMIC;
		what = write ? "atomic write" : "atomic";
		if (write && (len != 8 || pkt->len != 8))
			return V_INVALID;
		len = 8;
		if (h->va & 7) {
			explain(qp,
				"atomic at 0x%llx refused: the address is not "
				"a multiple of 8",
				(unsigned long long)h->va);
			return V_INVALID;
		}
	} else {
		return PASS;
	}
	if (f & ROCE_F_RETH && len > QP_MAX_MSG)
		return V_INVALID;
	if (!(qp->base.access & flag)) {
		explain(qp,
			"%s of %u bytes at 0x%llx with rkey 0x%08x refused: "
			"the QP's qp_access_flags lack %s: set that with "
			"IBV_QP_ACCESS_FLAGS in the transition to INIT",
			what, len, (unsigned long long)h->va, h->rkey,
			key_access_str(flag));
		return V_INVALID; /* not a request this QP supports */
	}
	if (!len)
		return PASS; /* 9.7.4.1.5: zero length is not checked */
	if (find_pd(qp, h->xrc_srqn)) {
		explain(qp,
			"%s for XRC SRQ %u, which is not (or no longer) in "
			"this QP's domain",
			what, h->xrc_srqn);
		return V_INVALID;
	}
	e = qp_remote(&qp->base, qp->rsp.req_pd, h->rkey, h->va, len, flag, &p);
	if (!e) {
		qp_explain_remote(&qp->base, what, qp->rsp.req_pd, h->rkey,
				  h->va, len, flag);
		return V_ACCESS;
	}
	keys_put(e);
	return PASS;
}

static bool is_write_end(const struct roce_rx *pkt, unsigned service)
{
	return pkt->h.opcode == (service | ROCE_WRITE_ONLY) ||
	       pkt->h.opcode == (service | ROCE_WRITE_LAST);
}

/*
 * A write that no completion tells of: the program sees it in its memory, and
 * so does the peer's what that answers. Until then an ACK that comes with it
 * keeps the peer's program at its CQ, where it takes the answer itself.
 */
static bool waits_for_answer(struct roce_qp *qp, const struct roce_rx *pkt)
{
	struct roce_responder *r = &qp->rsp;

	if (!is_write_end(pkt, ROCE_RC))
		return false;
	return r->ack_held || !backoff_skips(&r->hold);
}

/*
 * All that has been executed is to be acknowledged, which ends with this packet.
 * If the link has offered to say so it does, but not before what else is owed.
 */
static void rsp_acknowledge(struct roce_qp *qp, const struct roce_rx *pkt)
{
	struct roce_responder *r = &qp->rsp;

	r->ack_pending = true;
	if (pkt->acked && !(r->nak_pending | r->cnp_pending) && !rsp_count(r) &&
	    !waits_for_answer(qp, pkt)) {
		r->ack_pending = r->nak_last = false;
		*pkt->acked = true;
	}
}

/* ---- duplicates -------------------------------------------------------- */

/* Where in the stream of requests a PSN is that lies before epsn. */
static uint64_t stream_pos_of(const struct roce_responder *r, uint32_t psn)
{
	return r->stream_pos - (uint32_t)psn_diff(r->epsn, psn);
}

/* Part of a read that has been executed: a requester has no more of them, and
 * of atomics, outstanding than we have resources for. */
static bool read_before(const struct roce_responder *r, uint32_t psn,
			uint32_t npkts)
{
	for (uint32_t i = 0; i < r->reads_size; i++) {
		const struct roce_read_done *d = &r->reads[i];
		uint64_t at = stream_pos_of(r, psn) - d->stream_pos;

		if (at < d->npkts && npkts <= d->npkts - at)
			return true;
	}
	return r->reads_unknown > 0;
}

/*
 * The peer repeats one request, which has been executed, although more has been
 * acknowledged. Perhaps it has not sent what is behind it, since an attacker
 * has (reorder.c), and ignores an ACK for that. Then the request is
 * acknowledged with its own PSN.
 */
static bool ack_ignored(struct roce_responder *r, uint32_t psn)
{
	const bool done = (uint32_t)psn_diff(r->epsn, psn) < r->stream_pos;

	if (psn != r->again_psn || !done)
		r->again = 0;
	else if (r->again < AGAIN_MAX)
		r->again++;
	r->again_psn = psn;
	return r->again == AGAIN_MAX;
}

__attribute__((noinline)) static void rsp_duplicate(struct roce_qp *qp,
						    const struct roce_rx *pkt)
{
	struct roce_responder *r = &qp->rsp;
	uint32_t f = roce_opcode(pkt->h.opcode)->flags;

	qp->stats.duplicates++;
	roce_drop(qp, ROCE_DROP_DUPLICATE);
	if (f & ROCE_F_READ) {
		uint32_t npkts = pkts_of(pkt->h.dma_len, qp->mtu);
		uint32_t end = psn_add(pkt->h.psn, npkts);

		/* Only what has been read before, and only if it still may. */
		if (psn_diff(end, r->epsn) > 0 ||
		    !read_before(r, pkt->h.psn, npkts) ||
		    rsp_read_pending(qp, pkt->h.psn) ||
		    rsp_count(r) >= r->resp_size ||
		    check_access(qp, pkt, f) != PASS)
			return;
		rsp_owe_read(qp, &pkt->h, true);
	} else if (f & ROCE_F_ATOMIC) {
		for (uint32_t i = 0; i < r->atomics_size; i++) {
			struct roce_atomic_done *a = &r->atomics[i];

			if (a->stream_pos &&
			    a->stream_pos == stream_pos_of(r, pkt->h.psn) &&
			    rsp_count(r) < r->resp_size) {
				rsp_owe_atomic(qp, a->kind, pkt->h.psn, r->msn,
					       a->orig, true);
				return;
			}
		}
	} else {
		uint32_t span = span_of(pkt->len, qp->mtu);

		if (!psn_in_window(r, pkt->h.psn, span))
			return;
		if (rsp_ack_psn(qp) == rx_last_psn(qp, pkt))
			rsp_acknowledge(qp, pkt);
		else if (ack_ignored(r, pkt->h.psn))
			rsp_owe_ack_of(qp, rx_last_psn(qp, pkt));
		else
			rsp_owe_ack(qp);
		/* A large packet of which a part is new: that comes again. */
		if (psn_diff(psn_add(pkt->h.psn, span), r->epsn) > 0 &&
		    !r->nak_seq_sent)
			nak_gap(qp, r->epsn);
	}
}

/* f: the flags of its opcode. */
RSP_INLINE void rsp_request(struct roce_qp *qp, const struct roce_rx *pkt,
			    const uint32_t f)
{
	enum verdict v = check_psn(qp, pkt, f);

	if (v == DUPLICATE) {
		rsp_duplicate(qp, pkt);
		return;
	}
	if (v == PASS)
		v = check_order(qp, pkt, f);
	if (v == PASS && f & (ROCE_F_RETH | ROCE_F_ATOMICETH))
		v = check_access(qp, pkt, f);
	if (v == PASS)
		v = check_resources(qp, pkt, f);
	if (v == PASS)
		v = f == RSP_SEND_ONLY ? rsp_execute_send(qp, pkt) :
					 rsp_execute(qp, pkt, f);
	if (qp->base.type == IBV_QPT_UC) {
		refuse_uc(qp, v);
		qp->rsp.epsn = psn_add(rx_last_psn(qp, pkt), 1);
		if (v == PASS && is_write_end(pkt, ROCE_UC) &&
		    roce_env(qp)->uc_written)
			roce_env(qp)->uc_written(&qp->base);
		return;
	}
	if (v != PASS) {
		refuse_rc(qp, pkt, v);
		return;
	}
	qp->rsp.sport = pkt->sport;
	if (pkt->h.ack_req && !(f & (ROCE_F_READ | ROCE_F_ATOMIC)))
		rsp_acknowledge(qp, pkt);
}

/*
 * What was kept behind a gap that may be closed now. The next gap is not asked
 * for before another packet has come: it may be the one that closes it, from a
 * peer that sends all of it again.
 */
__attribute__((noinline)) static void execute_kept(struct roce_qp *qp)
{
	struct roce_responder *r = &qp->rsp;
	struct roce_rx pkt;

	while (r->reorder && reorder_take(qp, &pkt))
		rsp_request(qp, &pkt, roce_opcode(pkt.h.opcode)->flags);
	if (r->reorder)
		reorder_idle(qp);
}

void rsp_rx(struct roce_qp *qp, const struct roce_rx *pkt)
{
	rsp_request(qp, pkt, roce_opcode(pkt->h.opcode)->flags);
	if (__builtin_expect(qp->rsp.reorder != NULL, 0))
		execute_kept(qp);
}

__attribute__((flatten)) void rsp_rx_send(struct roce_qp *qp,
					  const struct roce_rx *pkt)
{
	rsp_request(qp, pkt, RSP_SEND_ONLY);
}

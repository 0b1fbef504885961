/*
 * completer.c - what comes back to the requester: ACK, NAK, data; and timers
 *
 * Acknowledgements are cumulative: PSN p accepts every request up to p, except
 * that a read or atomic before p whose response has not come is lost, and is
 * asked for again. una is the oldest PSN that is still open; the oldest WQE of
 * the send queue contains it.
 *
 * Two clocks watch for losses. The specification's local ACK timeout (9.7.6.1)
 * counts against the retry count and ends in IBV_WC_RETRY_EXC_ERR. Long before
 * it, a few round trips after the last progress, the oldest packet is sent once
 * more as a probe, which does not count: hardware has no such thing, but a
 * lossless fabric, and in software a lost last packet would cost milliseconds
 * by the hundred. The answer tells what else is to be sent again.
 *
 * Neither is for a process that waits for a processor. As long as env->unread()
 * says that we have yet to read what has come, or that the peer's process is alive
 * and has yet to read what it was sent, nothing can have been lost, and that time
 * does not count. A timer that is
 * late, since it is this process that waited, counts as one timeout, however
 * late.
 */
#include "roce_internal.h"

#include "base/lines.h"

#include <stdio.h>

#define PROBE_MIN_NS (100 * USEC)
#define PROBE_UNKNOWN_NS (4 * MSEC) /* the round trip, or nothing is lost */
#define PROBE_FIRST_MAX_NS (32 * MSEC)
/*
 * A peer among many more processes than processors answers after hundreds of
 * milliseconds: whoever asks it all that time keeps it from what it has to do.
 */
#define PROBE_MAX_NS (256 * MSEC)

/*
 * The specification lets a timeout of 4.096 us * 2^t take up to four times as
 * long. Twice, and never below what a descheduled peer process needs.
 */
#define ACK_TIMEOUT_MIN_NS (32 * MSEC)

/* One answer about a PSN that was never sent may be of a connection before. */
#define STRAYS_SURE 3u

static uint64_t ack_timeout_ns(const struct roce_qp *qp)
{
	uint64_t t = 4096ull << qp->base.timeout;

	if (qp->base.timeout == 0)
		return UINT64_MAX;
	t *= 2;
	return t < ACK_TIMEOUT_MIN_NS ? ACK_TIMEOUT_MIN_NS : t;
}

/* RNR timer field to microseconds (9.7.5.2.8, table 45). */
static uint64_t rnr_delay_ns(uint8_t field)
{
	static const uint32_t usec[32] = {
		655360, 10,    20,    30,     40,     60,     80,     120,
		160,    240,   320,   480,    640,    960,    1280,   1920,
		2560,   3840,  5120,  7680,   10240,  15360,  20480,  30720,
		40960,  61440, 81920, 122880, 163840, 245760, 327680, 491520,
	};

	return usec[field & 31] * USEC;
}

static bool any_outstanding(const struct roce_qp *qp)
{
	return psn_diff(qp->req.end_psn, qp->req.una) > 0;
}

/*
 * Time of the next look: the probe, or the rest of the ACK timeout. During an
 * RNR wait, which may be longer than all retries, nobody owes an answer; the
 * first packet behind it arms the timer again. now_ns 0: it is armed by whoever
 * knows the time.
 */
void comp_arm(struct roce_qp *qp, uint64_t now_ns)
{
	struct roce_requester *r = &qp->req;
	const bool alone = r->rec.mode == SELECTIVE;
	uint64_t timeout;

	r->timer_ns = 0;
	r->unarmed = !now_ns;
	if (!now_ns || r->rnr_until_ns)
		return;
	timeout = ack_timeout_ns(qp);
	if (!r->probe_ns) {
		/* The answer to one packet alone is not put off. */
		r->probe_ns = r->cc.srtt_ns * (alone ? 1 : 2) +
			      r->cc.rttvar_ns * (alone ? 2 : 4);
		r->probe_ns =
			max_u64(r->probe_ns, r->cc.srtt_ns ? PROBE_MIN_NS :
							     PROBE_UNKNOWN_NS);
		r->probe_ns = min_u64(r->probe_ns, PROBE_FIRST_MAX_NS);
		r->unread[0] = r->unread[1] = 0;
	}
	r->armed_ns = now_ns;
	r->timer_ns = now_ns + min_u64(r->probe_ns, timeout);
}

/* una moved by n packets: the path works. */
static void una_moved(struct roce_qp *qp, uint32_t n, uint64_t now_ns)
{
	struct roce_requester *r = &qp->req;

	r->progress_ns = now_ns;
	r->retries = 0;
	r->rnr_retries = 0;
	r->probe_ns = 0;
	r->looks = 0;
	recovery_acked(qp, now_ns);
	if (!qp->path.lossless)
		cc_acked(qp, n, now_ns);
	if (any_outstanding(qp)) {
		comp_arm(qp, now_ns);
		return;
	}
	r->timer_ns = 0;
	r->unarmed = false;
}

static void fail_head(struct roce_qp *qp, enum ibv_wc_status status)
{
	qp_new_generation(&qp->base);
	if (qp->base.sq.head != qp->base.sq.tail)
		qp_sq_complete(&qp->base, status);
	if (qp_is_reliable(&qp->base))
		roce_to_err(qp);
	else
		roce_to_sqe(qp);
}

/* In SQD only what was begun ends (10.3.1.5). */
bool may_fail(const struct roce_qp *qp, const struct qp_wqe *w)
{
	return qp->base.state != IBV_QPS_SQD || w->executed ||
	       psn_diff(qp->req.end_psn, roce_wqe(w)->first_psn) > 0;
}

void comp_head(struct roce_qp *qp)
{
	while (qp->base.sq.head != qp->base.sq.tail) {
		struct qp_wqe *w = qp_sq_slot(&qp->base.sq, qp->base.sq.head);

		if (w->status != IBV_WC_SUCCESS) {
			if (may_fail(qp, w))
				fail_head(qp, w->status);
			return;
		}
		if (!w->local || !w->executed)
			return;
		if (!qp_sq_complete(&qp->base, IBV_WC_SUCCESS)) {
			roce_fail(qp, IBV_EVENT_QP_FATAL);
			return;
		}
	}
}

/*
 * Accepts everything up to, not including, psn. Stops before a read or atomic
 * that has no response yet; returns false then.
 */
static bool ack_before(struct roce_qp *qp, uint32_t psn, uint64_t now_ns)
{
	struct roce_requester *r = &qp->req;
	struct qp_sq *sq = &qp->base.sq;
	uint32_t before = r->una;
	bool all = true;

	/* Most are one packet, and have a PSN each. */
	while (sq->head != sq->nxt && psn_diff(psn, r->una) > 0) {
		struct qp_wqe *w = qp_sq_slot(sq, sq->head);

		if (!roce_wqe(w)->simple)
			break;
		r->una = psn_add(r->una, 1);
		if (!qp_sq_done(&qp->base, w)) {
			roce_fail(qp, IBV_EVENT_QP_FATAL);
			return true;
		}
	}
	if (r->una != before && sq->head != sq->tail)
		comp_head(qp);
	if (qp->base.state == IBV_QPS_ERR)
		return true;
	if (r->una == psn && psn_diff(psn, r->nxt_psn) <= 0 && psn != before) {
		una_moved(qp, (uint32_t)psn_diff(psn, before), now_ns);
		return true;
	}
	while (qp->base.sq.head != qp->base.sq.tail &&
	       psn_diff(psn, r->una) > 0) {
		struct qp_wqe *w = qp_sq_slot(&qp->base.sq, qp->base.sq.head);

		if (w->local)
			break; /* not its turn yet: nothing behind it is out */
		if (qp_wqe_has_response(w)) {
			all = false;
			break;
		}
		if (psn_diff(psn, roce_wqe(w)->last_psn) <= 0) {
			r->una = psn;
			break;
		}
		r->una = psn_add(roce_wqe(w)->last_psn, 1);
		if (!qp_sq_complete(&qp->base, IBV_WC_SUCCESS)) {
			roce_fail(qp, IBV_EVENT_QP_FATAL);
			return true;
		}
		comp_head(qp);
		if (qp->base.state == IBV_QPS_ERR)
			return true;
	}
	/* A late ACK may pass what we went back to send again. */
	if (psn_diff(r->una, r->nxt_psn) > 0) {
		uint32_t una = r->una, i = qp->base.sq.head;

		recovery_overtaken(qp, now_ns);
		for (; i != qp->base.sq.tail; i++) {
			struct qp_wqe *w = qp_sq_slot(&qp->base.sq, i);

			if (w->local ?
				    !w->executed :
				    psn_diff(una, roce_wqe(w)->last_psn) <= 0)
				break;
		}
		qp->base.sq.nxt = i;
		r->nxt_psn = una;
	}
	if (r->una != before)
		una_moved(qp, (uint32_t)psn_diff(r->una, before), now_ns);
	return all;
}

static const char *nak_text(uint8_t code)
{
	switch (code) {
	case ROCE_NAK_INVALID_REQUEST:
		return "the peer found the request invalid (NAK 0x61): an "
		       "operation that its QP's qp_access_flags do not allow, "
		       "a message longer than its receive buffer, an atomic to "
		       "an address that is not a multiple of 8, an XRC SRQ "
		       "that does not exist, more reads than "
		       "max_dest_rd_atomic, or an opcode out of order";
	case ROCE_NAK_REMOTE_ACCESS:
		return "the peer refused access (NAK 0x62): check rkey, "
		       "address range, the region's access flags and PD, and "
		       "that the region is still registered";
	default:
		return "the peer could not execute the request (NAK 0x63): its "
		       "receive buffer's lkey is bad, or the message is longer "
		       "than the buffer";
	}
}

/*
 * Each NAK has its status (table 109). rxe says 0x63 where 0x61 is due, for a
 * send longer than the receive: the program gets what the peer said.
 */
static void nak_fatal(struct roce_qp *qp, uint8_t code)
{
	static const enum ibv_wc_status status[] = {
		[ROCE_NAK_INVALID_REQUEST] = IBV_WC_REM_INV_REQ_ERR,
		[ROCE_NAK_REMOTE_ACCESS] = IBV_WC_REM_ACCESS_ERR,
		[ROCE_NAK_REMOTE_OPERATIONAL] = IBV_WC_REM_OP_ERR,
		[ROCE_NAK_INVALID_RD_REQUEST] = IBV_WC_REM_INV_RD_REQ_ERR,
	};
	struct qp_wqe *w = qp_sq_slot(&qp->base.sq, qp->base.sq.head);
	const char *text = NULL;
	struct key_why why;
	char to[64] = "";

	if (qp->base.env->explain && roce_env(qp)->refusal) {
		const struct key_ask ask = {
			.key = w->rkey,
			.remote = true,
			.va = w->remote_addr,
			.len = w->length,
			.access = qp_wqe_access(w),
		};

		text = roce_env(qp)->refusal(
			&qp->base, code == ROCE_NAK_REMOTE_ACCESS ? &ask : NULL,
			&why);
	}
	/* A send has none of these. */
	if (qp_wqe_access(w))
		snprintf(to, sizeof(to), " at remote 0x%llx rkey 0x%08x",
			 (unsigned long long)w->remote_addr, w->rkey);
	if (text)
		explain(qp,
			"the peer refused %s (NAK 0x%02x), work request "
			"0x%llx, %u byte%s%s: %s",
			code == ROCE_NAK_REMOTE_ACCESS ? "access" :
							 "the request",
			ROCE_AETH_NAK | code, (unsigned long long)w->wr_id,
			w->length, plural(w->length), to, text);
	else
		explain(qp, "%s; work request 0x%llx, %u byte%s%s",
			nak_text(code), (unsigned long long)w->wr_id, w->length,
			plural(w->length), to);
	fail_head(qp, status[code]);
}

static void rx_rnr(struct roce_qp *qp, uint8_t timer, uint64_t now_ns)
{
	struct roce_requester *r = &qp->req;

	qp->stats.rnr_rx++;
	if (r->rnr_until_ns) /* another one for packets of the same burst */
		return;
	if (qp->base.attr.rnr_retry != 7 &&
	    r->rnr_retries >= qp->base.attr.rnr_retry) {
		explain(qp,
			"RNR retry exceeded: the peer had no receive posted "
			"for %.1f ms (rnr_retry=%u): post receives there "
			"before sending, or use rnr_retry 7",
			(double)(r->rnr_retries ? now_ns - r->rnr_since_ns :
						  0) /
				1e6,
			qp->base.attr.rnr_retry);
		fail_head(qp, IBV_WC_RNR_RETRY_EXC_ERR);
		return;
	}
	if (!r->rnr_retries++)
		r->rnr_since_ns = r->rnr_said_ns = now_ns;
	if (now_ns - r->rnr_said_ns >= SAY_NS) {
		r->rnr_said_ns = now_ns;
		explain(qp,
			"the peer has had no receive posted for %.1f s (%u RNR "
			"NAKs)%s; post receives there before sending here",
			(double)(now_ns - r->rnr_since_ns) / 1e9,
			r->rnr_retries,
			qp->base.attr.rnr_retry == 7 ?
				", and rnr_retry=7 waits indefinitely" :
				"");
	}
	recovery_rnr(qp);
	r->rnr_until_ns = now_ns + rnr_delay_ns(timer);
	/* The wait is no sign of loss. */
	r->timer_ns = 0;
	r->retries = 0;
}

static void rx_aeth(struct roce_qp *qp, const struct roce_rx *pkt,
		    uint64_t now_ns)
{
	struct roce_requester *r = &qp->req;
	uint8_t kind = pkt->h.syndrome & ROCE_AETH_KIND;
	uint8_t value = pkt->h.syndrome & ROCE_AETH_VALUE;
	uint32_t psn = pkt->h.psn;

	/*
	 * The MSN is not looked at: the PSN says it all, and rxe acknowledges a
	 * send whose invalidation it then refuses without counting it.
	 */
	if (kind == ROCE_AETH_ACK) {
		if (!ack_before(qp, psn_add(psn, 1), now_ns))
			recovery_response(qp, now_ns);
		return;
	}
	/* A negative answer to psn accepts everything before it. */
	if (!ack_before(qp, psn, now_ns)) {
		recovery_response(qp, now_ns);
		return;
	}
	if (qp->base.state == IBV_QPS_ERR || psn != r->una ||
	    qp->base.sq.head == qp->base.sq.tail)
		return; /* about something already settled */
	if (kind == ROCE_AETH_RNR) {
		rx_rnr(qp, value, now_ns);
		return;
	}
	if (kind != ROCE_AETH_NAK || value > ROCE_NAK_INVALID_RD_REQUEST) {
		roce_drop(qp, ROCE_DROP_OPCODE);
		return;
	}
	qp->stats.nak_rx++;
	qp->stats.nak_psn_rx += value == ROCE_NAK_PSN;
	qp->stats.access_rx += value == ROCE_NAK_REMOTE_ACCESS;
	qp->stats.invalid_rx += value == ROCE_NAK_INVALID_REQUEST;
	if (value != ROCE_NAK_PSN) {
		nak_fatal(qp, value);
		return;
	}
	/*
	 * While an RNR wait goes on nothing is sent all the same: rxe NAKs the
	 * rest of a burst whose first packet it was not ready to receive, where
	 * the specification is silent after the RNR NAK (9.7.5.2.8).
	 */
	recovery_nak(qp, now_ns);
}

/* Whether a read response may have so much, at PSN una of this WQE. */
static bool read_length_good(const struct roce_qp *qp, const struct qp_wqe *w,
			     const struct roce_rx *pkt)
{
	uint32_t at = (uint32_t)psn_diff(pkt->h.psn, roce_wqe(w)->first_psn);
	uint32_t left = w->length - at * qp->mtu;
	uint32_t chunk = qp->req.read_chunk;

	/* An atomic write is answered by a read response without data. */
	if (qp_wqe_has_value(w))
		return !pkt->len;
	if (!pkt->large || pkt->len <= qp->mtu)
		return pkt->len == min_u32(left, qp->mtu);
	return pkt->len == left ?
		       span_of(left, qp->mtu) <= chunk - at % chunk :
		       pkt->len < left && !(pkt->len & (qp->mtu - 1)) &&
			       pkt->len / qp->mtu <= chunk - at % chunk;
}

/* Data for the read or atomic that is the oldest open request. */
static void rx_data(struct roce_qp *qp, const struct roce_rx *pkt,
		    uint64_t now_ns)
{
	struct roce_requester *r = &qp->req;
	struct qp_wqe *w = qp_sq_slot(&qp->base.sq, qp->base.sq.head);
	const struct ibv_sge *sge = qp_wqe_sge(&qp->base.sq, w);
	uint32_t at = (uint32_t)psn_diff(pkt->h.psn, roce_wqe(w)->first_psn);
	uint32_t offset = at * qp->mtu;
	uint32_t span = span_of(pkt->len, qp->mtu);
	uint32_t next = psn_add(pkt->h.psn, span);
	bool last = psn_diff(next, roce_wqe(w)->last_psn) > 0;
	bool is_read = (roce_opcode(pkt->h.opcode)->flags & ROCE_F_READ) != 0;
	uint32_t bad = 0;
	int err;

	if (is_read != (wqe_is_read(w) || qp_wqe_has_value(w)) ||
	    (is_read && !read_length_good(qp, w, pkt))) {
		explain(qp,
			"response %s of %zu bytes to work request 0x%llx, of "
			"which %u bytes were to come",
			roce_opcode(pkt->h.opcode)->name, pkt->len,
			(unsigned long long)w->wr_id, w->length - offset);
		fail_head(qp, IBV_WC_BAD_RESP_ERR);
		return;
	}
	qp_arriving(&qp->base, w, !at);
	if (is_read && pkt->source)
		err = qp_scatter_from(&qp->base, qp->base.pd, sge, w->num_sge,
				      offset, pkt->source, pkt->len, &bad);
	else if (is_read)
		err = qp_scatter(&qp->base, qp->base.pd, sge, w->num_sge,
				 offset, pkt->payload, pkt->len, &bad);
	else
		err = qp_scatter(&qp->base, qp->base.pd, sge, w->num_sge, 0,
				 (const uint8_t *)&pkt->h.atomic_orig, 8, &bad);
	if (err == -ESTALE) {
		roce_drop(qp, ROCE_DROP_GAP);
		return;
	}
	if (err == -EACCES) {
		/* What the peer would say if it were asked for it again now. */
		fail_head(qp, IBV_WC_REM_ACCESS_ERR);
		return;
	}
	if (err == -EAGAIN) {
		recovery_response(qp, now_ns);
		return;
	}
	if (err) {
		if (err == -EFAULT)
			qp_explain_sge(&qp->base, "work request", w->wr_id, bad,
				       &sge[bad], qp->base.pd,
				       IBV_ACCESS_LOCAL_WRITE);
		fail_head(qp, IBV_WC_LOC_PROT_ERR);
		return;
	}
	r->una = next;
	if (r->rd_out && (last || (at + span) % r->read_chunk == 0))
		r->rd_out--;
	/* Data that overtakes a repeated request makes it superfluous. */
	if (psn_diff(r->una, r->nxt_psn) > 0) {
		r->nxt_psn = r->una;
		recovery_overtaken(qp, now_ns);
		if (last && qp->base.sq.nxt == qp->base.sq.head)
			qp->base.sq.nxt++;
	}
	if (last && !qp_sq_complete(&qp->base, IBV_WC_SUCCESS)) {
		roce_fail(qp, IBV_EVENT_QP_FATAL);
		return;
	}
	una_moved(qp, span, now_ns);
	comp_head(qp);
}

/*
 * An answer to nothing that was sent. If nothing has been acknowledged yet, the
 * two ends do not begin with the same PSN, perhaps.
 */
static void rx_ghost(struct roce_qp *qp, const struct roce_rx *pkt, bool is_ack)
{
	struct roce_requester *r = &qp->req;
	uint32_t psn = pkt->h.psn;

	roce_drop(qp, ROCE_DROP_DUPLICATE);
	if (!is_ack || r->una != qp->base.attr.sq_psn)
		return;
	if ((pkt->h.syndrome & ROCE_AETH_KIND) == ROCE_AETH_ACK)
		psn = psn_add(psn, 1);
	r->strays = psn == r->stray_psn ? r->strays + 1 : 1;
	r->stray_psn = psn;
}

void comp_rx(struct roce_qp *qp, const struct roce_rx *pkt, uint64_t now_ns)
{
	struct roce_requester *r = &qp->req;
	const bool is_ack = (pkt->h.opcode & 0x1f) == ROCE_ACK;
	uint32_t psn = pkt->h.psn;

	/*
	 * Only what we have sent can be answered; older answers are ghosts, or
	 * one of those that rxe gives to each duplicate by itself: they must
	 * not count as a sign of loss.
	 */
	if (psn_diff(psn, r->una) < 0 || psn_diff(r->end_psn, psn) <= 0) {
		rx_ghost(qp, pkt, is_ack);
		return;
	}
	r->sport = pkt->sport;
	/* A response says nothing of what else the peer has. */
	if (!is_ack)
		recovery_unsaid(r);
	if (is_ack) {
		rx_aeth(qp, pkt, now_ns);
	} else if (!ack_before(qp, psn, now_ns)) {
		recovery_response(qp, now_ns);
	} else if (qp->base.state != IBV_QPS_ERR &&
		   qp->base.sq.head != qp->base.sq.tail && psn == r->una) {
		if (qp_wqe_has_response(
			    qp_sq_slot(&qp->base.sq, qp->base.sq.head)))
			rx_data(qp, pkt, now_ns);
		else
			roce_drop(qp, ROCE_DROP_OPCODE);
	}
	req_check_drained(qp);
}

__attribute__((noinline, flatten)) bool
roce_acked(struct roce_qp *qp, uint32_t psn, bool early, uint64_t now_ns)
{
	struct roce_requester *r = &qp->req;
	bool all;

	if ((qp->base.type != IBV_QPT_RC &&
	     qp->base.type != IBV_QPT_XRC_SEND) ||
	    qp->base.state < IBV_QPS_RTS || qp->base.state == IBV_QPS_ERR)
		return true;
	if (psn_diff(psn, r->una) < 0 || psn_diff(r->end_psn, psn) <= 0)
		return true; /* known already */
	all = ack_before(qp, psn_add(psn, 1), now_ns);
	if (!all && !early)
		recovery_response(qp, now_ns);
	req_check_drained(qp);
	return all;
}

void roce_qp_waits(const struct roce_qp *qp, struct roce_waits *w)
{
	const struct roce_requester *r = &qp->req;
	const bool stuck = r->stuck_ns && r->stuck_psn == r->una;

	*w = (struct roce_waits){
		.rnr_since_ns = r->rnr_retries ? r->rnr_since_ns : 0,
		.rnr_naks = r->rnr_retries,
		.retries = r->retries,
	};
	if (qp_is_reliable(&qp->base) && any_outstanding(qp)) {
		w->unacked = (uint32_t)psn_diff(r->end_psn, r->una);
		w->since_ns = stuck ? r->stuck_ns : r->progress_ns;
		if (r->cc.cwnd < r->cc.cwnd_max)
			w->window = r->cc.cwnd / CWND_UNIT;
	}
}

bool roce_qp_unanswered(const struct roce_qp *qp)
{
	return qp->base.state >= IBV_QPS_RTS &&
	       qp->req.una == qp->base.attr.sq_psn;
}

/* What its answers say of PSNs; NULL: nothing. */
static const char *expected_psn(const struct roce_qp *qp, struct key_why *why)
{
	const struct roce_requester *r = &qp->req;

	if (!r->strays)
		return NULL;
	snprintf(why->text, sizeof(why->text),
		 "the peer answers, but expects PSN 0x%06x, and sq_psn here is "
		 "0x%06x: its rq_psn must be the same",
		 r->stray_psn, r->una);
	return why->text;
}

/* Why there is no answer, as far as that can be known; or NULL. */
static const char *why_silent(struct roce_qp *qp, struct key_why *why)
{
	return roce_env(qp)->silent ? roce_env(qp)->silent(&qp->base, why) :
				      NULL;
}

/*
 * What no retry ends is said after 1, 2, 4... s: a peer that does not read may go on
 * any time, and with timeout 0 an answer is waited for indefinitely (9.7.6.1).
 */
__attribute__((noinline, cold)) static void
stuck_explain(struct roce_qp *qp, bool unread, uint64_t now_ns)
{
	struct roce_requester *r = &qp->req;
	const char *text = NULL;
	struct key_why why;

	if (!r->stuck_ns || r->stuck_psn != r->una) {
		r->stuck_ns = r->stuck_said = now_ns;
		r->stuck_psn = r->una;
		return;
	}
	if (now_ns - r->stuck_said < SAY_NS ||
	    now_ns - r->stuck_ns < 2 * (r->stuck_said - r->stuck_ns))
		return;
	r->stuck_said = now_ns;
	if (!qp->base.env->explain)
		return;
	if (!unread)
		text = expected_psn(qp, &why);
	if (!text)
		text = why_silent(qp, &why);
	explain(qp, "%s for %.1f s, and this QP waits %s%s%s",
		unread ? "the peer has read no packet" : "no answer",
		(double)(now_ns - r->stuck_ns) / 1e9,
		unread ? "for it" : "indefinitely (timeout=0)",
		text ? ": " : "", text ? text : "");
}

__attribute__((noinline, cold)) static void silence_explain(struct roce_qp *qp,
							    uint64_t now_ns)
{
	const struct roce_requester *r = &qp->req;
	struct key_why why;
	const char *text = expected_psn(qp, &why);

	if (roce_env(qp)->unanswered && roce_qp_unanswered(qp))
		roce_env(qp)->unanswered(&qp->base,
					 r->strays < STRAYS_SURE ? NULL : text);
	if (!qp->base.env->explain)
		return;
	if (!text)
		text = why_silent(qp, &why);
	explain(qp, "no answer for %.0f ms (timeout=%u, retry_cnt=%u)%s%s",
		(double)(now_ns - r->progress_ns) / 1e6, qp->base.attr.timeout,
		qp->base.attr.retry_cnt, text ? ": " : "", text ? text : "");
}

void comp_expire(struct roce_qp *qp, uint64_t now_ns)
{
	struct roce_requester *r = &qp->req;
	uint64_t timeout;
	bool again;

	if (r->rnr_until_ns && now_ns >= r->rnr_until_ns) {
		r->rnr_until_ns = 0;
		r->paused = false;
		r->progress_ns = now_ns;
	}
	if (r->unarmed && any_outstanding(qp)) {
		req_arm(qp, now_ns);
		return;
	}
	if (!r->timer_ns || now_ns < r->timer_ns)
		return;
	if (!any_outstanding(qp)) {
		r->timer_ns = 0;
		return;
	}
	if (roce_env(qp)->unread &&
	    roce_env(qp)->unread(&qp->base, r->unread)) {
		r->progress_ns = min_u64(
			now_ns, r->progress_ns + (now_ns - r->armed_ns));
		r->probe_ns = min_u64(2 * r->probe_ns, PROBE_FIRST_MAX_NS);
		stuck_explain(qp, true, now_ns);
		comp_arm(qp, now_ns);
		return;
	}
	timeout = ack_timeout_ns(qp);
	if (timeout == UINT64_MAX)
		stuck_explain(qp, false, now_ns);
	/* Clocks of several threads: progress may be later than now. */
	else if (now_ns > r->progress_ns &&
		 now_ns - r->progress_ns >= timeout * (r->retries + 1ull)) {
		r->progress_ns = now_ns - timeout * (r->retries + 1ull);
		qp->stats.timeouts++;
		if (r->retries++ >= qp->base.attr.retry_cnt) {
			silence_explain(qp, now_ns);
			fail_head(qp, IBV_WC_RETRY_EXC_ERR);
			return;
		}
	}
	again = r->looks++;
	if (again)
		cc_silent(qp);
	recovery_silence(qp, again, now_ns);
	r->probe_ns = min_u64(2 * r->probe_ns, PROBE_MAX_NS);
	comp_arm(qp, now_ns);
	/* Never sleep past the moment when the timeout counts. */
	if (timeout != UINT64_MAX)
		r->timer_ns =
			min_u64(r->timer_ns,
				r->progress_ns + timeout * (r->retries + 1ull));
}

/*
 * recovery.c - what a requester sends again
 *
 * RoCE has no selective acknowledgement: a NAK says which packet is missing, not
 * what came behind it. Responders drop that, or, as ours do, keep it
 * (reorder.c). So the requester is in one of three modes:
 *
 *	FRESH		all that is sent is new
 *	GO_BACK_N	all that was out is sent again, until una is where
 *			sending had got to
 *	SELECTIVE	the oldest packet alone is sent again, as a probe, until
 *			una has passed it
 *
 * A NAK leads to SELECTIVE where that is worth it (sel_is_worth_it()), and so
 * does an answer that shows another gap; else both lead to GO_BACK_N. So do a
 * response that was passed over, and a probe behind which the peer has nothing.
 * An RNR NAK ends SELECTIVE: nothing is sent for a while. recovery_enter()
 * alone changes the mode.
 *
 * A probe asks in any mode: the oldest packet, once more, whose answer is for all
 * that the peer has. It is due when nothing has been heard for some time
 * (completer.c), may be due again while it is out, and a response, or the end of
 * what it asked about, makes it void.
 */
#include "roce_internal.h"

/* Selective retransmit (sel_*) is given up when the peer turns out so often in
 * a row not to have what is behind a gap. */
#define SELECTIVE_TRIES 3u

static void recovery_enter(struct roce_requester *r, enum recovery_mode mode,
			   uint64_t now_ns)
{
	struct roce_recovery *v = &r->rec;

	v->mode = mode;
	switch (mode) {
	case FRESH:
		return; /* A probe goes on. */
	case GO_BACK_N:
		v->end_psn = r->end_psn;
		v->probe = PROBE_NONE;
		v->copying = true;
		v->copy_psn = r->end_psn;
		break;
	case SELECTIVE:
		v->end_psn = psn_add(r->una, 1);
		v->probe = PROBE_DUE;
		break;
	}
	v->since_ns = now_ns;
}

/* An answer to what was sent again cannot have arrived yet. */
static bool before_answer(const struct roce_requester *r, uint64_t now_ns)
{
	return now_ns >= r->rec.since_ns &&
	       now_ns - r->rec.since_ns < r->cc.min_rtt_ns;
}

static void rewind_to_una(struct roce_qp *qp)
{
	qp->stats.retransmits++;
	qp->req.cc.sent_ns = 0;
	req_rewind(qp, qp->req.una);
}

static void go_back(struct roce_qp *qp, bool by_nak, uint64_t now_ns)
{
	recovery_enter(&qp->req, GO_BACK_N, now_ns);
	qp->req.rec.by_nak = by_nak;
	rewind_to_una(qp);
	comp_arm(qp, now_ns);
}

/* Everything that is out is lost. */
__attribute__((noinline)) static void lost_all(struct roce_qp *qp,
					       uint64_t now_ns)
{
	cc_lost(qp, now_ns);
	go_back(qp, false, now_ns);
}

static void sel_begin(struct roce_qp *qp, uint64_t now_ns)
{
	recovery_enter(&qp->req, SELECTIVE, now_ns);
	comp_arm(qp, now_ns);
}

/*
 * Whether selective retransmit is worth it, judged by its results so far. Each
 * gap takes a round trip, and longer if it is lost again: if there is more than
 * one in what is out, all of them are closed at once by sending all of it.
 */
static bool sel_is_worth_it(const struct roce_qp *qp)
{
	const struct roce_requester *r = &qp->req;
	const struct roce_recovery *v = &r->rec;

	/* Within the host a NAK is for what could not be read. */
	return v->sel_failed < SELECTIVE_TRIES && qp->base.type == IBV_QPT_RC &&
	       !qp->path.lossless && v->mode != GO_BACK_N && !r->rnr_until_ns &&
	       2 * (qp->stats.tx_pkts - v->lost_tx) >
		       (uint32_t)psn_diff(r->nxt_psn, r->una);
}

/* The same, for a gap that has just been found. */
static bool sel_gap_found(struct roce_qp *qp)
{
	const bool may = sel_is_worth_it(qp);

	qp->req.rec.lost_tx = qp->stats.tx_pkts;
	return may;
}

void recovery_nak(struct roce_qp *qp, uint64_t now_ns)
{
	struct roce_recovery *v = &qp->req.rec;

	/* It is an answer to what was sent before. */
	if (v->mode != FRESH && before_answer(&qp->req, now_ns))
		return;
	if (sel_gap_found(qp)) {
		cc_lost(qp, now_ns);
		v->gaps_end = qp->req.nxt_psn;
		sel_begin(qp, now_ns);
		return;
	}
	/* One that does keep them has lost several in a row. */
	if (v->peer_keeps)
		v->sel_failed = 0;
	cc_lost(qp, now_ns);
	go_back(qp, true, now_ns);
}

/*
 * SELECTIVE: the packet has arrived, by itself, or with what was sent behind it,
 * up to the next one that was lost.
 */
static void sel_arrived(struct roce_qp *qp, uint64_t now_ns)
{
	struct roce_requester *r = &qp->req;
	struct roce_recovery *v = &r->rec;
	const bool more = psn_diff(v->gaps_end, r->una) > 0;

	recovery_enter(r, FRESH, now_ns);
	if (r->una == v->end_psn) {
		if (more && v->sel_failed < SELECTIVE_TRIES)
			v->sel_failed++;
		return; /* probe_answered() */
	}
	v->peer_keeps = true;
	v->sel_failed = 0;
	if (before_answer(r, now_ns)) {
		/* It was late, and what was sent again is still on its way. */
		cc_not_lost(qp);
	} else if (more) {
		if (sel_gap_found(qp))
			sel_begin(qp, now_ns);
		else
			go_back(qp, true, now_ns);
	}
}

/*
 * The peer has said what it had when the probe came. If that was the probe and
 * nothing behind it, all that had been sent by then is lost; else nothing was.
 */
static void probe_answered(struct roce_qp *qp, uint64_t now_ns)
{
	struct roce_requester *r = &qp->req;
	struct roce_recovery *v = &r->rec;

	v->probe = PROBE_NONE;
	if (r->una == psn_add(v->probe_psn, 1) &&
	    psn_diff(v->probe_nxt, r->una) > 0)
		lost_all(qp, now_ns);
	else
		cc_heard(qp);
}

/* What was out before is lost: the window, which repeated silence has closed, is
 * as after any loss. */
static void silence_ended(struct roce_qp *qp, uint64_t now_ns)
{
	if (qp->req.rec.silent)
		cc_lost(qp, now_ns);
	qp->req.rec.silent = false;
}

__attribute__((noinline)) void recovery_advance(struct roce_qp *qp,
						uint64_t now_ns)
{
	struct roce_requester *r = &qp->req;
	struct roce_recovery *v = &r->rec;

	v->probe &= ~(unsigned)PROBE_DUE;
	silence_ended(qp, now_ns);
	if (v->mode != FRESH && psn_diff(r->una, v->end_psn) >= 0) {
		if (v->mode == SELECTIVE)
			sel_arrived(qp, now_ns);
		else
			recovery_enter(r, FRESH, now_ns);
	}
	if (v->probe & PROBE_OUT && psn_diff(r->una, v->probe_psn) > 0)
		probe_answered(qp, now_ns);
}

/*
 * What was sent again had arrived the first time. So had what a timer was set
 * for. What a NAK asked for had not, if the peer keeps what is behind it and
 * there has been time for another.
 */
void recovery_overtaken(struct roce_qp *qp, uint64_t now_ns)
{
	struct roce_requester *r = &qp->req;
	struct roce_recovery *v = &r->rec;

	r->cc.sent_ns = 0; /* of no round trip */
	if (v->mode != GO_BACK_N)
		return;
	silence_ended(qp, now_ns);
	recovery_enter(r, FRESH, now_ns);
	if (!(v->by_nak | v->peer_keeps) || before_answer(r, now_ns))
		cc_not_lost(qp);
}

/* Once per gap. */
__attribute__((noinline, cold)) void recovery_response(struct roce_qp *qp,
						       uint64_t now_ns)
{
	const struct roce_requester *r = &qp->req;

	qp->stats.implied++;
	if (r->rec.mode != GO_BACK_N || psn_diff(r->rec.end_psn, r->una) <= 0)
		lost_all(qp, now_ns);
}

void recovery_rnr(struct roce_qp *qp)
{
	struct roce_recovery *v = &qp->req.rec;

	if (v->mode == SELECTIVE)
		recovery_enter(&qp->req, FRESH, 0);
	v->probe = PROBE_NONE;
	rewind_to_una(qp);
}

void recovery_silence(struct roce_qp *qp, bool again, uint64_t now_ns)
{
	/* A read that is asked for again says nothing of what is behind it. */
	if (!qp_wqe_has_response(qp_sq_slot(&qp->base.sq, qp->base.sq.head))) {
		qp->req.rec.probe |= PROBE_DUE;
	} else if (again) {
		go_back(qp, false, now_ns);
		qp->req.rec.silent = true;
	} else {
		lost_all(qp, now_ns);
	}
}

/* ---- the probe at the link --------------------------------------------- */

void recovery_copy_una(struct roce_requester *r)
{
	struct roce_recovery *v = &r->rec;

	if (!v->copying || psn_diff(v->copy_psn, r->una) <= 0)
		v->copy_psn = psn_add(r->una, 1);
	v->copying = true;
}

void recovery_probe_sent(struct roce_requester *r, uint32_t psn,
			 uint32_t nxt_psn)
{
	r->rec.probe = PROBE_OUT;
	r->rec.probe_psn = psn;
	r->rec.probe_nxt = nxt_psn;
}

void recovery_probe_untaken(struct roce_requester *r)
{
	r->rec.probe = PROBE_DUE;
}

void recovery_stop(struct roce_requester *r)
{
	r->rec.probe = PROBE_NONE;
}

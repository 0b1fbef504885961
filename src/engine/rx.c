/*
 * rx.c - from a link to the QP that a packet is for
 *
 * A QP's lock is kept over a run of packets for it, unless a thread waits for
 * it. Answers are sent at the end of the round, so that one ACK answers many
 * packets.
 */
#include "engine_internal.h"

#include "hooks/faults.h"
#include "hooks/trace.h"

/* Unlocks a QP that may go as soon as it is unlocked. */
static void unlock_last(struct engine_qp *qp)
{
	if (engine_qp_unlock_fast(qp))
		return;
	engine_qp_get(qp);
	engine_qp_unlock(qp);
	engine_qp_put(qp);
}

static inline void flush_unlock(struct rx_round *r, struct engine_qp *qp)
{
	if (!qp->dead && !delayed_ack_hold(r, qp))
		qp->ops->flush(qp, r->now);
	unlock_last(qp);
}

__attribute__((noinline)) static void flush_touched(struct rx_round *r)
{
	for (size_t i = 0; i < r->n; i++) {
		struct engine_qp *qp = r->touched[i];

		if (engine_qp_trylock(qp))
			flush_unlock(r, qp);
		engine_qp_put(qp);
	}
	r->n = 0;
}

void rx_round_end(struct rx_round *r)
{
	struct engine_qp *qp = r->cur;

	r->cur = NULL;
	if (qp && !r->noted)
		flush_unlock(r, qp);
	else if (qp)
		engine_qp_unlock(qp);
	if (r->n)
		flush_touched(r);
}

/* Lets go of the current QP, which may have something to send. */
static void round_release(struct rx_round *r)
{
	struct engine_qp *qp = r->cur;

	if (!qp)
		return;
	if (!r->noted && r->n == RX_TOUCHED) {
		rx_round_end(r);
		return;
	}
	if (!r->noted) {
		engine_qp_get(qp);
		r->touched[r->n++] = qp;
	}
	engine_qp_unlock(qp);
	r->cur = NULL;
}

static bool is_touched(const struct rx_round *r, const struct engine_qp *qp)
{
	for (size_t i = 0; i < r->n; i++)
		if (r->touched[i] == qp)
			return true;
	return false;
}

/* Makes qp the current one. False: its holder does the rest. */
static inline bool round_turn(struct rx_round *r, struct engine_qp *qp,
			      const struct roce_rx *pkt)
{
	bool mine = true;

	round_release(r);
	if (!engine_qp_trylock(qp)) {
		mine = false;
		if (!engine_qp_defer(qp, pkt))
			return false;
	}
	r->cur = qp;
	r->noted = r->n && is_touched(r, qp);
	return mine;
}

static void count_stranger(struct engine *e, const struct roce_rx *pkt)
{
	if (tracing())
		trace_put(TRACE_DROP, pkt->h.dest_qpn, TRACE_NO_QP, 0, 0, 0, 0);
	atomic_fetch_add_explicit(&e->no_qp, 1, memory_order_relaxed);
}

/* What is not for a QP of its number; or a packet inside it is. */
__attribute__((noinline)) static void rx_special(struct rx_round *r,
						 const struct roce_rx *pkt)
{
	struct engine_qp *qp = NULL;
	struct engine *e = r->e;
	struct roce_rx inner;

	round_release(r);
	switch (pkt->h.dest_qpn) {
	case ROCE_MULTICAST_QPN:
		if (!e->ops->mcast(e, pkt, r->now))
			count_stranger(e, pkt);
		break;
	case 1:
		e->ops->gsi(e, pkt, r->now);
		break;
	case 0:
		if (!e->ops->word(e, pkt, &qp, &inner, r->now))
			count_stranger(e, pkt);
		break;
	}
	if (qp && round_turn(r, qp, &inner) && !qp->dead)
		qp->ops->rx(qp, &inner, r->now);
}

__attribute__((noinline)) static void rx_stray(struct rx_round *r,
					       const struct roce_rx *pkt)
{
	struct engine *e = r->e;

	if (pkt->ack_note)
		return; /* it has gone */
	if (e->ops->stray(e, pkt, r->now ? r->now : clock_ns()))
		engine_dropped(e, ROCE_DROP_DUPLICATE);
	else
		count_stranger(e, pkt);
}

/* Not for the current QP, and there is more to do than to lock its own. */
__attribute__((noinline)) static void rx_turn(struct rx_round *r,
					      const struct roce_rx *pkt)
{
	const uint32_t qpn = pkt->h.dest_qpn;
	struct engine_qp *qp = r->cur;

	if (qpn <= 1 || qpn == ROCE_MULTICAST_QPN) {
		rx_special(r, pkt);
		return;
	}
	if (!qp || qp->num != qpn || qp->foreign)
		qp = engine_qp_find(r->e, qpn & 0xffffff);
	if (!qp)
		rx_stray(r, pkt);
	else if ((qp == r->cur && !engine_qp_wanted(qp)) ||
		 round_turn(r, qp, pkt))
		if (!qp->dead)
			qp->ops->rx(qp, pkt, r->now);
}

/* Mostly it is the first packet of a round, or for the QP of the one before. */
static inline void rx_next(struct rx_round *r, const struct roce_rx *pkt)
{
	const uint32_t qpn = pkt->h.dest_qpn;
	struct engine_qp *qp = r->cur;

	if (!qp) {
		qp = qpn - 2 < ROCE_MULTICAST_QPN - 2 ?
			     engine_qp_find(r->e, qpn) :
			     NULL;
		if (!qp || r->n || !engine_qp_lock_fast(qp)) {
			rx_turn(r, pkt);
			return;
		}
		r->cur = qp;
		r->noted = false;
	} else if (qp->num != qpn || qp->foreign || engine_qp_wanted(qp)) {
		rx_turn(r, pkt);
		return;
	}
	if (!qp->dead)
		qp->ops->rx(qp, pkt, r->now);
}

/* Apart: what comes by a ring is not timed. */
__attribute__((noinline)) static void rx_timed(struct rx_round *r,
					       const struct roce_rx *pkt)
{
	r->now = clock_ns();
	rx_next(r, pkt);
}

void rx_packet(void *round, const struct roce_rx *pkt)
{
	struct rx_round *r = round;

	if (!r->now && roce_rx_timed(pkt))
		rx_timed(r, pkt);
	else
		rx_next(r, pkt);
}

void rx_fault(void *round, const struct roce_rx *pkt)
{
	faults_ops->rx(((struct rx_round *)round)->e, pkt, rx_packet, round);
}

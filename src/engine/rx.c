/*
 * rx.c - from a link to the QP that a packet is for
 *
 * A QP's lock is kept over a run of packets for it, unless a thread waits for
 * it. Answers are sent at the end of the round, so that one ACK answers many
 * packets.
 */
#include "internal.h"

#define TOUCHED_MAX 32

/*
 * One round of receiving. A QP that is not locked any more may be destroyed, so
 * those among touched have a reference. The current one gets it only when it
 * has to make way for another: mostly there is none.
 */
struct rx_round {
	struct engine *e;
	uint64_t now; /* 0: nothing has come that needs it */
	struct engine_qp *cur; /* locked: the QP of the last packet */
	bool noted; /* it is among touched */
	size_t n;
	struct engine_qp *touched[TOUCHED_MAX]; /* may have something to send */
};

/* Unlocks a QP that may go as soon as it is unlocked. */
static void unlock_last(struct engine_qp *qp)
{
	if (engine_qp_unlock_fast(qp))
		return;
	engine_qp_get(qp);
	engine_qp_unlock(qp);
	engine_qp_put(qp);
}

static void flush_unlock(struct rx_round *r, struct engine_qp *qp)
{
	if (!qp->dead)
		qp->ops->flush(qp, r->now);
	unlock_last(qp);
}

static void round_end(struct rx_round *r)
{
	size_t i;

	if (r->cur && !r->noted)
		flush_unlock(r, r->cur);
	else if (r->cur)
		engine_qp_unlock(r->cur);
	r->cur = NULL;
	for (i = 0; i < r->n; i++) {
		struct engine_qp *qp = r->touched[i];

		if (engine_qp_trylock(qp))
			flush_unlock(r, qp);
		engine_qp_put(qp);
	}
	r->n = 0;
}

/* Lets go of the current QP, which may have something to send. */
static void round_release(struct rx_round *r)
{
	struct engine_qp *qp = r->cur;

	if (!qp)
		return;
	if (!r->noted && r->n == TOUCHED_MAX) {
		round_end(r);
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

static void round_rx(struct rx_round *r, struct engine_qp *qp,
		     const struct roce_rx *pkt)
{
	bool deferred = false;

	if (r->cur != qp || engine_qp_wanted(qp)) {
		round_release(r);
		if (!engine_qp_trylock(qp)) {
			deferred = true;
			if (!engine_qp_defer(qp, pkt))
				return;
		}
		r->cur = qp;
		r->noted = is_touched(r, qp);
	}
	if (!deferred && !qp->dead)
		qp->ops->rx(qp, pkt, r->now);
}

static void count_stranger(struct engine *e)
{
	atomic_fetch_add_explicit(&e->no_qp, 1, memory_order_relaxed);
}

/* What is not for a QP of its number; or a packet inside it is, in *inner. */
static struct engine_qp *rx_special(struct rx_round *r,
				    const struct roce_rx *pkt,
				    struct roce_rx *inner)
{
	struct engine_qp *qp = NULL;
	struct engine *e = r->e;

	round_release(r);
	switch (pkt->h.dest_qpn) {
	case ROCE_MULTICAST_QPN:
		if (!e->ops->mcast(e, pkt, r->now))
			count_stranger(e);
		break;
	case 1:
		e->ops->gsi(e, pkt, r->now);
		break;
	case 0:
		if (!e->ops->word(e, pkt, &qp, inner, r->now))
			count_stranger(e);
		break;
	}
	return qp;
}

static void rx_stray(struct engine *e, const struct roce_rx *pkt, uint64_t now)
{
	if (e->ops->stray(e, pkt, now))
		engine_dropped(e, ROCE_DROP_DUPLICATE);
	else
		count_stranger(e);
}

static void rx(void *arg, const struct roce_rx *pkt)
{
	struct rx_round *r = arg;
	const uint32_t qpn = pkt->h.dest_qpn;
	struct engine_qp *qp = r->cur;
	struct roce_rx inner;

	if (!r->now)
		r->now = clock_ns();
	if (qpn <= 1 || qpn == ROCE_MULTICAST_QPN) {
		qp = rx_special(r, pkt, &inner);
		if (qp)
			round_rx(r, qp, &inner);
		return;
	}
	if (!qp || qp->num != qpn || qp->foreign)
		qp = engine_qp_find(r->e, qpn & 0xffffff);
	if (qp)
		round_rx(r, qp, pkt);
	else if (pkt->verdict)
		return; /* it has gone */
	else
		rx_stray(r->e, pkt, r->now);
}

int rx_poll(struct engine *e, struct link *l, unsigned budget, uint64_t *now)
{
	struct rx_round r;
	int n;

	r.e = e;
	r.now = *now;
	r.cur = NULL;
	r.n = 0;
	n = l->ops->poll(l, budget, rx, &r);
	if (r.cur || r.n)
		round_end(&r);
	*now = r.now;
	return n;
}

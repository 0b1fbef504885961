/*
 * delayed_ack.c - acknowledgements that wait for the program's answer
 *
 * An ACK of its own costs a system call here and a wake or a look at the peer,
 * and where it leaves first, the program's answer waits for it. So when an ACK
 * is all that a QP owes after a round, and its program has answered before
 * (roce_ack_hold()), the QP is on a list instead. What it posts takes the ACK
 * along. If it posts nothing, the first of these sends the ACK: a program that
 * polls again, or is about to sleep; or the thread, DELAYED_ACK_NS later, or when it
 * ticks (poller.h). A QP whose ACK has left stays on the list for its next one, as
 * long as none waits there in vain.
 */
#include "engine_internal.h"

#include <stdlib.h>

#define DELAYED_ACK_NS 200000

/*
 * What this round has brought wakes the thread, if it was asleep then and has
 * not stepped back, and it looks at the list when it goes to sleep again. It
 * may have done so already.
 */
static void sleeps_past(const struct rx_round *r)
{
	struct engine *e = r->e;

	if (atomic_load(&e->naps) != r->naps && !poller_is_back(&e->poller) &&
	    atomic_load(&e->asleep_until) > atomic_load(&e->held_until))
		thread_wake(e);
}

/*
 * The list has a reference. Whoever takes a QP off clears is_held before he tries
 * its lock, which the caller has: then he puts it back.
 */
static void put_on_list(struct engine *e, struct engine_qp *qp, uint64_t now)
{
	if (atomic_load(&qp->is_held) || atomic_exchange(&qp->is_held, true))
		return;
	engine_qp_get(qp);
	qp->held = atomic_load(&e->held);
	do {
		if (!qp->held)
			atomic_store(&e->held_until, now + DELAYED_ACK_NS);
	} while (!atomic_compare_exchange_weak(&e->held, &qp->held, qp));
	atomic_store_explicit(&e->held_seen, false, memory_order_relaxed);
}

bool delayed_ack_hold(struct rx_round *r, struct engine_qp *qp)
{
	struct engine *e = r->e;

	if (!qp->ops->hold(qp))
		return false;
	if (!qp->ack_waits) {
		qp->ack_waits = true;
		if (!atomic_load(&e->acks))
			atomic_store(&e->held_until, r->now + DELAYED_ACK_NS);
		atomic_fetch_add(&e->acks, 1);
		atomic_store_explicit(&e->held_seen, false,
				      memory_order_relaxed);
	}
	put_on_list(e, qp, r->now);
	sleeps_past(r);
	return true;
}

void delayed_ack_release_all(struct engine *e, uint64_t now)
{
	struct engine_qp *qp, *next;

	for (qp = atomic_exchange(&e->held, NULL); qp; qp = next) {
		next = qp->held;
		atomic_store(&qp->is_held, false);
		if (engine_qp_trylock(qp)) {
			if (!qp->dead)
				qp->ops->release(qp, now);
			engine_ack_waits(qp, false);
			engine_qp_unlock(qp);
		} else {
			/* Whoever has the lock may be posting the answer. */
			put_on_list(e, qp, now);
		}
		engine_qp_put(qp);
	}
}

void delayed_ack_end(struct engine *e)
{
	struct engine_qp *qp, *next;

	for (qp = atomic_exchange(&e->held, NULL); qp; qp = next) {
		next = qp->held;
		engine_qp_put(qp);
	}
}

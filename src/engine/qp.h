/*
 * qp.h - a QP as the engine sees it: packets come for it, and its timer expires
 *
 * A thread that makes progress never waits for a QP's lock, because the holder
 * may be a program's thread that was preempted, perhaps by this very one. It
 * leaves its work behind, and the holder does it on unlocking: when
 * engine_qp_trylock() returns false, the work is as good as done. Nor does such
 * a thread take the lock while another waits for it.
 *
 * References: the program holds one until ibv_destroy_qp(); a timer being run
 * and a packet being answered hold one each, find the QP dead after destroy,
 * and let go. The receive side finds QPs without one, because destroy waits for
 * the receive side once (engine_qpn_free()).
 */
#ifndef SOFTHCA_ENGINE_QP_H
#define SOFTHCA_ENGINE_QP_H

#include "base/aligned.h"
#include "link/link.h"
#include "roce/qp.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct engine;
struct engine_packet;
struct engine_qp;

/* Called with the lock held and the QP not dead, except for free. */
struct engine_qp_ops {
	/* Takes a packet. Sends nothing: flush follows. */
	void (*rx)(struct engine_qp *qp, const struct roce_rx *pkt,
		   uint64_t now);
	/* Sends what is ready to be sent, and sets the timer. */
	void (*flush)(struct engine_qp *qp, uint64_t now);
	/* Does what is due by now, then flushes. */
	void (*run)(struct engine_qp *qp, uint64_t now);
	/*
	 * Whether all that it owes is an acknowledgement that may wait for what
	 * the program posts next. Then it is not flushed, but released soon: if
	 * nothing has been posted by then, that is flushed.
	 */
	bool (*hold)(struct engine_qp *qp);
	void (*release)(struct engine_qp *qp, uint64_t now);
	/* The last reference is gone. */
	void (*free)(struct engine_qp *qp);
};

/*
 * The lock is one word, so whoever changes it knows who else is there. Mostly
 * it is 0 or ENGINE_QP_HELD, and taking and dropping it is one instruction.
 */
enum engine_qp_lock {
	ENGINE_QP_HELD = 1,
	ENGINE_QP_PENDING = 2, /* something was left behind for the holder */
	ENGINE_QP_SLEEPS = 4, /* so do one or more of those who wait */
	ENGINE_QP_WAITER = 8, /* how many wait, times this */
};

struct engine_qp {
	_Alignas(CACHE_LINE) const struct engine_qp_ops *ops;
	struct engine *engine;
	uint32_t num; /* on the wire */
	bool foreign; /* num belongs to another process; not in the table */
	bool dead; /* under lock; whoever finds it set lets go */
	bool ack_waits; /* under lock: counted in engine.acks */
	_Atomic bool is_held; /* it is on held's list */

	_Atomic uint32_t lock; /* enum engine_qp_lock */
	_Atomic unsigned refs; /* whoever may lock it */
	_Atomic unsigned
		kill_line; /* by this line of a script (hooks/faults.h), or 0 */
	_Atomic bool is_starved; /* it is on starved's list */
	_Atomic uint64_t timer_due; /* when its entry in the heap is due */
	size_t timer_pos; /* of that entry + 1; the timers' lock */
	struct link
		*used; /* under lock: counted there (idle_link.h), or NULL */

	struct link_way way; /* under lock: where it sends */

	/* For the holder of the lock, from those who did not wait for it. */
	_Atomic(struct engine_packet *) backlog; /* newest first */
	_Atomic unsigned nbacklog;
	struct engine_qp *starved; /* send.c: the next without room */
	struct engine_qp *held; /* delayed_ack.c: the next that waits */
};

/* Begins with one reference, and dead: the owner clears that. */
void engine_qp_init(struct engine_qp *qp, struct engine *e,
		    const struct engine_qp_ops *ops);

void engine_qp_get(struct engine_qp *qp);
void engine_qp_put(struct engine_qp *qp);

/* engine_qp.c: what the functions below do where they are not alone. */
void engine_qp_lock_slow(struct engine_qp *qp);
bool engine_qp_trylock_slow(struct engine_qp *qp);
void engine_qp_unlock_slow(struct engine_qp *qp);

/* Whether it was free, nobody waited, and nothing was left behind. */
static inline bool engine_qp_lock_fast(struct engine_qp *qp)
{
	uint32_t free = 0;

	return atomic_compare_exchange_strong_explicit(
		&qp->lock, &free, ENGINE_QP_HELD, memory_order_acquire,
		memory_order_relaxed);
}

/* False: it is still held, since somebody waits or has left something. */
static inline bool engine_qp_unlock_fast(struct engine_qp *qp)
{
	uint32_t held = ENGINE_QP_HELD;

	return atomic_compare_exchange_strong_explicit(&qp->lock, &held, 0,
						       memory_order_release,
						       memory_order_relaxed);
}

/* Waits. Work that was left behind is done first, so that a QP about to leave
 * its state has taken everything received before. */
static inline void engine_qp_lock(struct engine_qp *qp)
{
	if (!engine_qp_lock_fast(qp))
		engine_qp_lock_slow(qp);
}

static inline bool engine_qp_trylock(struct engine_qp *qp)
{
	return engine_qp_lock_fast(qp) || engine_qp_trylock_slow(qp);
}

static inline void engine_qp_unlock(struct engine_qp *qp)
{
	if (!engine_qp_unlock_fast(qp))
		engine_qp_unlock_slow(qp);
}

/*
 * For who may not do what is left behind: takes the lock if it is free, whoever
 * waits; drops it, and returns whether something is left for the next holder.
 */
bool engine_qp_seize(struct engine_qp *qp);
bool engine_qp_release(struct engine_qp *qp);

/* Whether a thread waits. A holder that keeps the lock over several packets or
 * batches lets go between two, and then engine_qp_trylock() fails. */
static inline bool engine_qp_wanted(const struct engine_qp *qp)
{
	return atomic_load_explicit(&qp->lock, memory_order_relaxed) >=
	       ENGINE_QP_WAITER;
}

/* The holder leaves the rest of its work to the next one. */
static inline void engine_qp_later(struct engine_qp *qp)
{
	atomic_fetch_or_explicit(&qp->lock, ENGINE_QP_PENDING,
				 memory_order_release);
}

/*
 * Leaves a packet behind for the holder of the lock. True: the caller holds the
 * lock now and the packet is taken, because the lock was free after all, or
 * because so many packets were left behind already that this call waited.
 */
bool engine_qp_defer(struct engine_qp *qp, const struct roce_rx *pkt);

#endif

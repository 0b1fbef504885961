/*
 * presence.h - whether programs are here to receive, or the thread has to
 *
 * A program that spins in ibv_poll_cq() and a thread that wakes for every
 * packet would fight for the CPU, so the thread steps back. But a program may
 * also spin on its own memory until a peer's RDMA WRITE changes it, and poll
 * only now and then; then only the thread can receive that write, and it must
 * not be late. What distinguishes the two is the time that a program spends
 * outside this library. The rules:
 *
 * - Programs take over once they have polled for PRESENCE_TAKEOVER_NS and were
 *   never away for more than PRESENCE_AWAY_NS at a time. A poll of a CQ that is
 *   armed takes nothing over, since the program may be about to sleep.
 * - The thread steps forward again when a program arms a CQ, or after
 *   PRESENCE_IDLE_NS without a poll.
 * - If it steps forward within PRESENCE_WORTH_NS, the next takeover takes twice
 *   as long, up to PRESENCE_TAKEOVER_MAX_NS; otherwise as long as the first
 * one.
 *
 * The state is the process's, not each thread's. Any thread may call any of
 * these functions at any time, except the two that need the caller's lock.
 * There is neither a clock nor I/O in here: times are arguments, in nanoseconds
 * of CLOCK_MONOTONIC, and never 0.
 *
 * What programs write is relaxed: each value stands for itself, and one that is
 * seen late delays a decision by a poll. `back` is not, because who sets a
 * timer and the thread that goes to sleep have to see each other (timers.c).
 */
#ifndef SOFTHCA_ENGINE_PRESENCE_H
#define SOFTHCA_ENGINE_PRESENCE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define PRESENCE_AWAY_NS 3000
#define PRESENCE_TAKEOVER_NS 200000
#define PRESENCE_TAKEOVER_MAX_NS 2000000
#define PRESENCE_WORTH_NS 5000000
#define PRESENCE_IDLE_NS 20000
#define PRESENCE_BLOCKED_NS 20000

/* Programs write it in every poll: it has a cache line of its own. */
struct presence {
	_Alignas(64) _Atomic uint64_t seen; /* a program was last in here */
	_Atomic uint64_t polled; /* and polled last */
	_Atomic uint64_t since; /* they have hardly been away since then */
	_Atomic uint64_t blocked; /* they find the link taken since; 0: not */
	_Atomic uint64_t back; /* the thread has stepped back since; 0: not */
	_Atomic uint64_t takeover; /* how long they poll before it does */
};

void presence_init(struct presence *p);

/* A program has been in the library from one time until the other. */
static inline void presence_note(struct presence *p, uint64_t from,
				 uint64_t until)
{
	uint64_t seen = atomic_load_explicit(&p->seen, memory_order_relaxed);

	if (from > seen + PRESENCE_AWAY_NS)
		atomic_store_explicit(&p->since, from, memory_order_relaxed);
	if (until > seen)
		atomic_store_explicit(&p->seen, until, memory_order_relaxed);
}

/*
 * The same for one that has polled. armed: a CQ is, so that it may be about to
 * sleep. True: the thread is to step back.
 */
static inline bool presence_polled(struct presence *p, uint64_t from,
				   uint64_t until, bool armed)
{
	presence_note(p, from, until);
	atomic_store_explicit(&p->polled, until, memory_order_relaxed);
	return !armed &&
	       !atomic_load_explicit(&p->back, memory_order_relaxed) &&
	       until > atomic_load_explicit(&p->since, memory_order_relaxed) +
			       atomic_load_explicit(&p->takeover,
						    memory_order_relaxed);
}

/* A program arms a CQ: the time before a takeover begins again. */
void presence_sleeps(struct presence *p, uint64_t now);

/* Whether no program has polled for PRESENCE_IDLE_NS. */
bool presence_idle(const struct presence *p, uint64_t now);

static inline bool presence_is_back(const struct presence *p)
{
	return atomic_load(&p->back);
}

/*
 * The thread steps back or forward. A lock of the caller's serialises the
 * calls. False: it had done so before.
 */
bool presence_step_back(struct presence *p, uint64_t now);
bool presence_step_forward(struct presence *p, uint64_t now);

/*
 * A program that polls has found another thread receiving. True: for
 * PRESENCE_BLOCKED_NS all have, so that thread may be waiting for the CPU that
 * this one spins on, and this one is to wait for it. Where many threads poll,
 * the link is free now and then, and nobody waits: sleepers would have to be
 * woken, one by one.
 */
bool presence_blocked(struct presence *p, uint64_t now);

/* A thread has received, or waited until it could. */
static inline void presence_unblocked(struct presence *p)
{
	if (atomic_load_explicit(&p->blocked, memory_order_relaxed))
		atomic_store_explicit(&p->blocked, 0, memory_order_relaxed);
}

#endif

/*
 * poller.h - whether programs receive, or the thread has to
 *
 * A program that spins in ibv_poll_cq() and a thread that wakes for every
 * packet would fight for the CPU, so the thread steps back. But a program may
 * also spin on its own memory until a peer's RDMA WRITE changes it, and poll
 * only now and then; then only the thread can receive that write, and it must
 * not be late. No clock tells the two apart, since either may lose its CPU at
 * any time; so the thread tries. The rules:
 *
 * - A thread that wakes for packets, and sees that programs have polled since
 *   it last received, leaves the packets to them for POLLER_PROBE_NS. Have
 *   they taken some by then, POLLER_PROBES times in a row, it steps back. Are
 *   all still there, they are late by that time, so it takes twice as many
 *   wakes as before until it tries again (base/backoff.h), POLLER_SKIP_MAX at
 *   most.
 * - While it has stepped back it ticks: it steps forward when no program has
 *   polled since the last tick, or packets wait for longer than a probe while
 *   programs poll now and then. If it has been back for less than
 *   POLLER_WORTH_NS and programs have taken less than POLLER_WORTH packets,
 *   that counts as an attempt that failed.
 * - A program that waits for a CPU cannot poll, which says nothing: what holds
 *   is what it did when it last ran. So a probe lasts until the program's thread
 *   that has polled last has had a CPU for its time, or sleeps, POLLER_NAP_NS
 *   at most. If it sleeps, it does not poll, but nothing has failed.
 *   Where it has to share a CPU each tick takes time from those who have work,
 *   so there are fewer.
 * - A poll that goes on counts as well: it may take many large packets.
 * - Polls of a CQ that is armed do not count: the program may be about to sleep
 *   in poll(2). When it arms one, the thread steps forward, and what it has
 *   polled before counts no more.
 * - A program that sleeps in ibv_get_cq_event() receives as well (sleep.c).
 *   Where it alone does, the thread rests: it has stepped back and does not
 *   even tick. When the program wakes up, the thread steps forward again, or
 *   ticks if the program sleeps and wakes often.
 *
 * The state is the process's, not each thread's. There is neither a clock nor
 * I/O in here: times are arguments, in nanoseconds of CLOCK_MONOTONIC.
 */
#ifndef SOFTHCA_ENGINE_POLLER_H
#define SOFTHCA_ENGINE_POLLER_H

#include "base/backoff.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define POLLER_PROBE_NS 20000
#define POLLER_SEND_NS 200000
#define POLLER_NAP_NS 10000000
#define POLLER_RAN_NS 100000 /* CPU time without a poll: it does not poll */
#define POLLER_PROBES 3
#define POLLER_SKIP_MAX 1024
#define POLLER_TICK_MIN_NS 200000
#define POLLER_TICK_MAX_NS 1000000
#define POLLER_TICK_CROWDED_NS 8000000
#define POLLER_WORTH_NS 5000000
#define POLLER_WORTH 8 /* polls that have found packets */
#define POLLER_OFTEN_NS 2000000
#define POLLER_BLOCKED 1000

/* The program's thread that has polled last, since the thread last asked. */
enum poller_cpu {
	POLLER_RAN, /* it had a CPU, as far as anybody knows */
	POLLER_SHARES, /* the same, but it waited for it most of the time */
	POLLER_WAITS, /* it is ready to run, and could not */
	POLLER_SLEEPS,
};

struct poller {
	/* Programs write these all the time. */
	_Alignas(64) _Atomic uint32_t polls; /* wraps; some may be lost */
	_Atomic uint32_t took; /* of them found packets; the same */
	_Atomic uint32_t sends; /* by UDP; the same */
	_Atomic bool sending; /* one goes on; the same */
	_Atomic bool inside; /* a poll goes on; or another ends just now */
	_Atomic uint32_t armed; /* polls when a CQ was armed last */
	_Atomic uint32_t blocked; /* polls in a row that found a link taken */

	_Alignas(64) _Atomic bool back; /* the thread has stepped back */
	_Atomic bool rests; /* and does not tick */
	_Atomic uintptr_t asleep; /* who of a program's threads sleeps, or 0 */
	_Atomic uint64_t woke; /* when one last woke from the thread's rest */

	/* The thread's own, and under the caller's lock what is marked so. */
	/* polls, took and sends when it last looked */
	uint32_t seen, seen_took, seen_sends;
	_Atomic uint32_t back_took; /* took when it stepped back */
	bool polling; /* what programs did then */
	uint32_t good; /* probes in a row that programs have passed; lock */
	struct backoff backoff; /* a try: a probe at a wake; lock */
	_Atomic uint64_t
		since; /* programs have made it step back; 0: to rest */
	_Atomic uint64_t tick; /* between ticks */
	_Atomic uint64_t tick_at; /* the next one */
};

void poller_init(struct poller *p);

/* A program has polled, or woken up, and found nothing to return. */
static inline void poller_polled(struct poller *p)
{
	/* Each of several threads may undo the other's: it changes anyway. */
	uint32_t n = atomic_load_explicit(&p->polls, memory_order_relaxed);

	atomic_store_explicit(&p->polls, n + 1, memory_order_relaxed);
}

/* It has armed a CQ. */
static inline void poller_armed(struct poller *p)
{
	atomic_store_explicit(
		&p->armed,
		atomic_load_explicit(&p->polls, memory_order_relaxed),
		memory_order_relaxed);
}

/* The call in which a program polls begins, ends. */
static inline void poller_inside(struct poller *p, bool inside)
{
	atomic_store_explicit(&p->inside, inside, memory_order_relaxed);
}

/* It has found packets. */
static inline void poller_took(struct poller *p)
{
	uint32_t n = atomic_load_explicit(&p->took, memory_order_relaxed);

	atomic_store_explicit(&p->took, n + 1, memory_order_relaxed);
}

/* One begins to send, which takes long, and will poll; it has. */
static inline void poller_sends(struct poller *p, bool begins)
{
	uint32_t n = atomic_load_explicit(&p->sends, memory_order_relaxed);

	atomic_store_explicit(&p->sends, n + begins, memory_order_relaxed);
	atomic_store_explicit(&p->sending, begins, memory_order_relaxed);
}

static inline bool poller_is_back(const struct poller *p)
{
	return atomic_load(&p->back);
}

static inline bool poller_is_asleep(const struct poller *p)
{
	return atomic_load(&p->asleep);
}

static inline bool poller_rests(const struct poller *p)
{
	return atomic_load(&p->rests);
}

/* Whether cpu matters: programs have polled, but not since it last asked. */
bool poller_asks(const struct poller *p);

/*
 * With the caller's lock, as poller_tick(), and all that steps back or forward.
 * The thread has woken for packets. If the result is not 0 it leaves them alone
 * for so many nanoseconds and then calls poller_probed(), none: no packet
 * waits any more. That returns whether programs have taken them.
 */
uint64_t poller_probe(struct poller *p, enum poller_cpu cpu);
bool poller_probed(struct poller *p, bool none, enum poller_cpu cpu);
/* They have often enough: the thread is to step back. */
bool poller_taken_over(const struct poller *p);

/*
 * The thread has stepped back: when it ticks next, UINT64_MAX: it rests. When
 * that time has come it calls poller_tick(). True: it is to step forward.
 */
uint64_t poller_tick_at(const struct poller *p);
bool poller_tick(struct poller *p, uint64_t now, enum poller_cpu cpu);
/* After a tick, packets have been left alone for a while: whether
 * programs have taken none of them, and could have. Then it steps forward. */
bool poller_is_late(const struct poller *p, enum poller_cpu cpu);

/* Packets have been left alone, and programs have taken none: whether they have
 * sent some meanwhile. */
bool poller_has_sent(struct poller *p);

/*
 * The thread steps back or forward. A lock of the caller's serialises the
 * calls. False: it had done so before.
 */
bool poller_step_back(struct poller *p, uint64_t now);
bool poller_step_forward(struct poller *p, uint64_t now);

/*
 * A thread of a program, who is not 0, is about to sleep, and receives until it
 * wakes. False: another one does. If the thread watches the links, it steps
 * back and rests (poller_rest(), the caller's lock held).
 */
bool poller_sleep(struct poller *p, uintptr_t who);
void poller_rest(struct poller *p, uint64_t now);

enum poller_then {
	POLLER_NOTHING,
	POLLER_TICKS, /* wake the thread, so that it ticks */
	POLLER_FORWARD, /* it is to step forward */
};

/* It has woken up. What is to happen to the thread that has rested meanwhile.
 * alone: no other thread waits for what the thread receives. */
enum poller_then poller_wake(struct poller *p, uint64_t now, bool alone);

/*
 * A program that polls has found another thread receiving. True: for
 * POLLER_BLOCKED polls all have, so that thread may be waiting for the CPU
 * that this one spins on, and this one is to wait for it. Where many threads
 * poll, the link is free now and then, and nobody waits: sleepers would have to
 * be woken, one by one.
 */
bool poller_blocked(struct poller *p);

/* A thread has received, or waited until it could. */
static inline void poller_unblocked(struct poller *p)
{
	if (atomic_load_explicit(&p->blocked, memory_order_relaxed))
		atomic_store_explicit(&p->blocked, 0, memory_order_relaxed);
}

#endif

/*
 * presence.h - whether programs receive, or the thread has to
 *
 * A program that spins in ibv_poll_cq() and a thread that wakes for every
 * packet would fight for the CPU, so the thread steps back. But a program may
 * also spin on its own memory until a peer's RDMA WRITE changes it, and poll
 * only now and then; then only the thread can receive that write, and it must
 * not be late. No clock tells the two apart, since either may lose its CPU at
 * any time; so the thread tries. The rules:
 *
 * - A thread that wakes for packets, and sees that programs have polled since
 *   it last received, leaves the packets to them for PRESENCE_PROBE_NS. Have
 *   they taken some by then, PRESENCE_PROBES times in a row, it steps back. Are
 *   all still there, they are late by that time, so it takes twice as many
 *   wakes as before until it tries again (base/backoff.h), PRESENCE_SKIP_MAX at
 *   most.
 * - While it has stepped back it ticks: it steps forward when no program has
 *   polled since the last tick, or packets wait for longer than a probe while
 *   programs poll now and then. If it has been back for less than
 *   PRESENCE_WORTH_NS and programs have taken less than PRESENCE_WORTH packets,
 *   that counts as an attempt that failed.
 * - A program that waits for a CPU cannot poll, which says nothing: what holds
 *   is what it did when it last ran. So a probe lasts until the program's thread
 *   that has polled last has had a CPU for its time, or sleeps, PRESENCE_NAP_NS
 *   at most. If it sleeps, it does not poll, but nothing has failed.
 *   Where it has to share a CPU each tick takes time from those who have work,
 *   so there are fewer.
 * - A poll that goes on counts as well: it may take many large packets.
 * - Polls of a CQ that is armed do not count: the program may be about to sleep
 *   in poll(2). When it arms one, the thread steps forward.
 * - A program that sleeps in ibv_get_cq_event() receives as well (sleep.c).
 *   Where it alone does, the thread rests: it has stepped back and does not
 *   even tick. When the program wakes up, the thread steps forward again, or
 *   ticks if the program sleeps and wakes often.
 *
 * The state is the process's, not each thread's. There is neither a clock nor
 * I/O in here: times are arguments, in nanoseconds of CLOCK_MONOTONIC.
 */
#ifndef SOFTHCA_ENGINE_PRESENCE_H
#define SOFTHCA_ENGINE_PRESENCE_H

#include "base/backoff.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define PRESENCE_PROBE_NS 20000
#define PRESENCE_SEND_NS 200000
#define PRESENCE_NAP_NS 10000000
#define PRESENCE_RAN_NS 100000 /* CPU time without a poll: it does not poll */
#define PRESENCE_PROBES 3
#define PRESENCE_SKIP_MAX 1024
#define PRESENCE_TICK_MIN_NS 200000
#define PRESENCE_TICK_MAX_NS 1000000
#define PRESENCE_TICK_CROWDED_NS 8000000
#define PRESENCE_WORTH_NS 5000000
#define PRESENCE_WORTH 8 /* polls that have found packets */
#define PRESENCE_OFTEN_NS 2000000
#define PRESENCE_BLOCKED 1000

/* The program's thread that has polled last, since the thread last asked. */
enum presence_cpu {
	PRESENCE_RAN, /* it had a CPU, as far as anybody knows */
	PRESENCE_SHARES, /* the same, but it waited for it most of the time */
	PRESENCE_WAITS, /* it is ready to run, and could not */
	PRESENCE_SLEEPS,
};

struct presence {
	/* Programs write these all the time. */
	_Alignas(64) _Atomic uint32_t polls; /* wraps; some may be lost */
	_Atomic uint32_t took; /* of them found packets; the same */
	_Atomic uint32_t sends; /* by UDP; the same */
	_Atomic bool sending; /* one goes on; the same */
	_Atomic bool inside; /* a poll goes on; or another ends just now */
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
	uint32_t good; /* probes in a row that programs have passed */
	struct backoff backoff; /* a try: a probe at a wake; lock */
	_Atomic uint64_t since; /* programs have made it step back; 0: to rest */
	_Atomic uint64_t tick; /* between ticks */
	_Atomic uint64_t tick_at; /* the next one */
};

void presence_init(struct presence *p);

/* A program has polled, or woken up, and found nothing to return. */
static inline void presence_polled(struct presence *p)
{
	/* Each of several threads may undo the other's: it changes anyway. */
	uint32_t n = atomic_load_explicit(&p->polls, memory_order_relaxed);

	atomic_store_explicit(&p->polls, n + 1, memory_order_relaxed);
}

/* The call in which a program polls begins, ends. */
static inline void presence_inside(struct presence *p, bool inside)
{
	atomic_store_explicit(&p->inside, inside, memory_order_relaxed);
}

/* It has found packets. */
static inline void presence_took(struct presence *p)
{
	uint32_t n = atomic_load_explicit(&p->took, memory_order_relaxed);

	atomic_store_explicit(&p->took, n + 1, memory_order_relaxed);
}

/* One begins to send, which takes long, and will poll; it has. */
static inline void presence_sends(struct presence *p, bool begins)
{
	uint32_t n = atomic_load_explicit(&p->sends, memory_order_relaxed);

	atomic_store_explicit(&p->sends, n + begins, memory_order_relaxed);
	atomic_store_explicit(&p->sending, begins, memory_order_relaxed);
}

static inline bool presence_is_back(const struct presence *p)
{
	return atomic_load(&p->back);
}

static inline bool presence_is_asleep(const struct presence *p)
{
	return atomic_load(&p->asleep);
}

static inline bool presence_rests(const struct presence *p)
{
	return atomic_load(&p->rests);
}

/* Whether cpu matters: programs have polled, but not since it last asked. */
bool presence_asks(const struct presence *p);

/*
 * The thread has woken for packets. If the result is not 0 it leaves them alone
 * for so many nanoseconds and then calls presence_probed(), none: no packet
 * waits any more. That returns whether programs have taken them.
 */
uint64_t presence_probe(struct presence *p, enum presence_cpu cpu);
bool presence_probed(struct presence *p, bool none, enum presence_cpu cpu);
/* They have often enough: the thread is to step back. */
bool presence_taken_over(const struct presence *p);

/*
 * The thread has stepped back: when it ticks next, UINT64_MAX: it rests. When
 * that time has come it calls presence_tick(). True: it is to step forward.
 */
uint64_t presence_tick_at(const struct presence *p);
bool presence_tick(struct presence *p, uint64_t now, enum presence_cpu cpu);
/* After a tick, packets have been left alone for a while: whether
 * programs have taken none of them, and could have. Then it steps forward. */
bool presence_is_late(const struct presence *p, enum presence_cpu cpu);

/* Packets have been left alone, and programs have taken none: whether they have
 * sent some meanwhile. */
bool presence_has_sent(struct presence *p);

/*
 * The thread steps back or forward. A lock of the caller's serialises the
 * calls. False: it had done so before.
 */
bool presence_step_back(struct presence *p, uint64_t now);
bool presence_step_forward(struct presence *p, uint64_t now);

/*
 * A thread of a program, who is not 0, is about to sleep, and receives until it
 * wakes. False: another one does. If the thread watches the links, it steps
 * back and rests (presence_rest(), the caller's lock held).
 */
bool presence_sleep(struct presence *p, uintptr_t who);
void presence_rest(struct presence *p, uint64_t now);

enum presence_then {
	PRESENCE_NOTHING,
	PRESENCE_TICKS, /* wake the thread, so that it ticks */
	PRESENCE_FORWARD, /* it is to step forward */
};

/* It has woken up. What is to happen to the thread that has rested meanwhile.
 * alone: no other thread waits for what the thread receives. */
enum presence_then presence_wake(struct presence *p, uint64_t now, bool alone);

/*
 * A program that polls has found another thread receiving. True: for
 * PRESENCE_BLOCKED polls all have, so that thread may be waiting for the CPU
 * that this one spins on, and this one is to wait for it. Where many threads
 * poll, the link is free now and then, and nobody waits: sleepers would have to
 * be woken, one by one.
 */
bool presence_blocked(struct presence *p);

/* A thread has received, or waited until it could. */
static inline void presence_unblocked(struct presence *p)
{
	if (atomic_load_explicit(&p->blocked, memory_order_relaxed))
		atomic_store_explicit(&p->blocked, 0, memory_order_relaxed);
}

#endif

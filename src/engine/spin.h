/*
 * spin.h - whether a thread that polls lets others have its CPU
 *
 * On one processor, or with more threads that spin than processors, a message
 * waits until its receiver's slice comes, which takes milliseconds. So a thread
 * that polls and finds nothing yields, if that helps; sched_yield(2) on a CPU
 * without other runnable threads is a wasted system call. That others want the
 * CPU shows in a few polls that took far longer than usual: SPIN_GAP_NS. That a
 * yield did not help shows in its own time, SPIN_ALONE times in a row.
 *
 * Other threads that spin yield in turn, so the CPU is back soon. A thread that
 * computes keeps it for a time slice, and packets that arrive meanwhile do not
 * change that: a thread that has yielded is runnable, so nothing wakes it. A
 * thread that sleeps until packets arrive preempts the one that computes. But a
 * peer on the same CPU is best left to finish its work, and that takes as long.
 * So where yields take long (SPIN_LONG_NS), or many in a row bring nothing
 * since the scheduler returns the CPU at once to a thread that it owes time
 * (CFS), the thread tries both for SPIN_TRY_NS each, and keeps to the one that
 * brings more packets for SPIN_KEEP_NS. Where packets are few anyway it sleeps,
 * which brings them earlier.
 *
 * A thread that arms a CQ is about to sleep in poll(2), and lets others have its
 * CPU so. It is left alone until it has polled SPIN_ARMED times since: to yield
 * would delay what it does before it sleeps, and how long it has slept is no gap.
 *
 * The state is a thread's own; all zeros at first. Times are arguments.
 */
#ifndef SOFTHCA_ENGINE_SPIN_H
#define SOFTHCA_ENGINE_SPIN_H

#include <stdbool.h>
#include <stdint.h>

#define SPIN_LOOK 16 /* empty polls between two looks at the clock */
#define SPIN_CROWDED 4 /* the same where others want the CPU */
#define SPIN_ARMED                                                             \
	64 /* polls; some programs poll 16 times before they arm again */
#define SPIN_GAP_NS 400000
#define SPIN_HELPED_NS 2000 /* a yield that lasts as long has let others run */
#define SPIN_ALONE 8
#define SPIN_LONG_NS 500000
#define SPIN_VAIN 64
#define SPIN_TRY_NS 20000000
#define SPIN_KEEP_NS 1000000000
#define SPIN_FEW 1000 /* packets a second, where only their latency matters */
#define SPIN_NAP_NS 100000 /* a sleep at most: the program may spin on memory */

enum spin_way {
	SPIN_YIELD,
	SPIN_NAP, /* sleep until packets come, for SPIN_NAP_NS at most */
	SPIN_ON,
};

struct spin {
	uint32_t polls; /* since the last look */
	uint32_t armed; /* polls until it is one that spins */
	uint32_t
		alone; /* yields in a row that did not help; at the limit: is */
	uint32_t vain; /* others, since packets came */
	bool lost; /* too long, or too many in vain, since it counts */
	bool tries; /* SPIN_NAP, to see what it brings */
	enum spin_way way; /* where others want the CPU */
	uint32_t packets; /* since it counts */
	uint64_t per_s; /* of them by yielding, before it tries */
	uint64_t since_ns; /* it counts; 0: never */
	uint64_t keep_ns; /* it does not try until then */
	uint64_t looked_ns; /* 0: never */
};

static inline bool spin_is_crowded(const struct spin *s)
{
	return s->alone < SPIN_ALONE;
}

/* It has armed a CQ. */
static inline void spin_arm(struct spin *s)
{
	s->armed = SPIN_ARMED;
	s->looked_ns = 0;
}

/* A poll that found nothing. True: time to look. */
static inline bool spin_poll(struct spin *s)
{
	if (s->armed)
		s->armed--;
	return ++s->polls >=
	       (uint32_t)(spin_is_crowded(s) ? SPIN_CROWDED : SPIN_LOOK);
}

/* A poll, or a nap, has found n packets. */
static inline void spin_took(struct spin *s, int n)
{
	s->vain = 0;
	s->packets += (uint32_t)n;
}

/* It was time to look, and the poll has found something. */
static inline void spin_found(struct spin *s, uint64_t now)
{
	s->looked_ns = now;
	s->polls = 0;
}

/* It has counted for long enough: what to do from now on. */
static inline void spin_choose(struct spin *s, uint64_t now)
{
	const uint64_t per_s =
		s->packets * (uint64_t)1000000000 / (now - s->since_ns);

	if (s->tries) {
		s->way = per_s + SPIN_FEW >= s->per_s + s->per_s / 8 ?
				 SPIN_NAP :
				 SPIN_YIELD;
		s->tries = false;
		s->keep_ns = now + SPIN_KEEP_NS;
	} else if (now >= s->keep_ns) {
		/* After a long time of naps yields are counted first. */
		s->tries = s->way == SPIN_YIELD && s->lost;
		s->way = s->tries ? SPIN_NAP : SPIN_YIELD;
		s->per_s = per_s;
	}
	s->since_ns = now;
	s->packets = 0;
	s->lost = false;
}

/* What to do. It says so when it has: spin_yielded(), spin_napped(). */
static inline enum spin_way spin_look(struct spin *s, uint64_t now)
{
	if (s->looked_ns && now - s->looked_ns > SPIN_GAP_NS)
		s->alone = 0;
	s->looked_ns = now;
	s->polls = 0;
	if (s->armed || !spin_is_crowded(s))
		return SPIN_ON;
	if (now - s->since_ns >= SPIN_TRY_NS)
		spin_choose(s, now);
	return s->way;
}

static inline void spin_yielded(struct spin *s, uint64_t now)
{
	const uint64_t took = now - s->looked_ns;

	s->alone = took < SPIN_HELPED_NS ? s->alone + 1 : 0;
	s->vain = s->alone ? 0 : s->vain + 1;
	s->lost |= took >= SPIN_LONG_NS || s->vain >= SPIN_VAIN;
	s->looked_ns = now;
}

static inline void spin_napped(struct spin *s, uint64_t now)
{
	s->looked_ns = now;
}

#endif

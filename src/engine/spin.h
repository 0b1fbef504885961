/*
 * spin.h - whether a thread that polls lets others have its CPU
 *
 * On one processor, or with more threads that spin than processors, a message
 * waits until its receiver's slice comes, which takes milliseconds. So a thread
 * that polls and finds nothing yields, if that helps; sched_yield(2) on a CPU
 * that nobody else wants is a system call for nothing. That others want the CPU
 * shows in a few polls that took far longer than they do: SPIN_GAP_NS. That it
 * did not help shows in the yield's own time, SPIN_ALONE times in a row.
 *
 * The state is a thread's own; all zeros at first. Times are arguments.
 */
#ifndef SOFTHCA_ENGINE_SPIN_H
#define SOFTHCA_ENGINE_SPIN_H

#include <stdbool.h>
#include <stdint.h>

#define SPIN_LOOK 16 /* empty polls between two looks at the clock */
#define SPIN_CROWDED 4 /* the same where others want the CPU */
#define SPIN_GAP_NS 400000
#define SPIN_HELPED_NS 2000 /* a yield that lasts as long has let others run */
#define SPIN_ALONE 8

struct spin {
	uint32_t polls; /* since the last look */
	uint32_t alone; /* yields in a row that did not help; at the limit: is */
	uint64_t looked_ns; /* 0: never */
};

static inline bool spin_is_crowded(const struct spin *s)
{
	return s->alone < SPIN_ALONE;
}

/* A poll that found nothing. True: time to look. */
static inline bool spin_poll(struct spin *s)
{
	return ++s->polls >=
	       (uint32_t)(spin_is_crowded(s) ? SPIN_CROWDED : SPIN_LOOK);
}

/* It was time to look, and the poll has found something. */
static inline void spin_found(struct spin *s, uint64_t now)
{
	s->looked_ns = now;
	s->polls = 0;
}

/* Whether to yield. */
static inline bool spin_look(struct spin *s, uint64_t now)
{
	if (s->looked_ns && now - s->looked_ns > SPIN_GAP_NS)
		s->alone = 0;
	s->looked_ns = now;
	s->polls = 0;
	return spin_is_crowded(s);
}

/* It has, and is back now. */
static inline void spin_yielded(struct spin *s, uint64_t now)
{
	s->alone = now - s->looked_ns < SPIN_HELPED_NS ? s->alone + 1 : 0;
	s->looked_ns = now;
}

#endif

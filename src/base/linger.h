/*
 * linger.h - whether to spin before a sleep
 *
 * A thread that has just answered a request often gets the next one within
 * microseconds, and a sleep would cost both ends more than that. Where spinning
 * found nothing, as on one processor, or the thread lost its processor meanwhile,
 * it is skipped more often: a thread that is woken gets a processor sooner.
 *
 * The state is a thread's own; all zeros at first.
 */
#ifndef SOFTHCA_BASE_LINGER_H
#define SOFTHCA_BASE_LINGER_H

#include <stdbool.h>
#include <stdint.h>

#define LINGER_NS 50000
#define LINGER_SKIP_MAX 64

struct linger_state {
	uint32_t skip; /* so often it is left out */
	uint32_t interval; /* that often after the next failure */
};

/* Whether to spin now, for LINGER_NS at most. */
static inline bool linger_begin(struct linger_state *l)
{
	if (!l->skip)
		return true;
	l->skip--;
	return false;
}

/* Whether that was of use, within the time. */
static inline void linger_end(struct linger_state *l, bool useful)
{
	if (useful)
		l->interval = 0;
	else if (l->interval < LINGER_SKIP_MAX)
		l->interval = 2 * l->interval + 1;
	l->skip = l->interval;
}

#endif

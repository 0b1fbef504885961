/*
 * stay.h - whether the thread looks for more packets before it sleeps again
 *
 * To wake it costs the sender a system call, and the packet several
 * microseconds. Who sends one request at a time, or some now and then, would
 * pay that for each. So when packets have come the thread polls on for
 * STAY_NS, since the last one.
 *
 * That is wasted where nothing comes so soon, and it does harm where the CPU that
 * it takes is the one that a program needs to send the next packet, or to see
 * this one; then nothing can come meanwhile. So after STAY_VAIN fruitless times
 * in a row it takes twice as many wakes as before until it tries again
 * (base/backoff.h), STAY_SKIP_MAX at most. It stops as soon as a program polls,
 * and after STAY_MAX_NS it looks at its other descriptors.
 *
 * The state is the thread's own; all zeros at first. Times are arguments.
 */
#ifndef SOFTHCA_ENGINE_STAY_H
#define SOFTHCA_ENGINE_STAY_H

#include "base/backoff.h"

#include <stdbool.h>
#include <stdint.h>

#define STAY_NS 20000
#define STAY_MAX_NS 200000
#define STAY_VAIN 4
#define STAY_SKIP_MAX 1024

struct stay {
	uint64_t woke_ns;
	uint64_t last_ns; /* when it has found packets last; 0: none yet */
	bool waits; /* the last look found nothing */
	uint32_t polls; /* by programs, when it woke */
	struct backoff backoff; /* a try: to poll on after a wake */
};

/* The thread has woken; polls: a count that changes when a program polls. */
static inline void stay_begin(struct stay *s, uint64_t now, uint32_t polls)
{
	s->woke_ns = now;
	s->last_ns = 0;
	s->waits = false;
	s->polls = polls;
}

static inline void stay_in_vain(struct stay *s)
{
	static const struct backoff_rule rule = { .free = STAY_VAIN - 1,
						  .first = 1,
						  .most = STAY_SKIP_MAX };

	backoff_fail(&s->backoff, &rule);
}

/* What it has waited for has come; or it had lost its CPU until then. */
static inline void stay_waited(struct stay *s, uint64_t ns)
{
	s->waits = false;
	if (ns < 2 * STAY_NS)
		backoff_succeed(&s->backoff);
	else
		stay_in_vain(s);
}

/* It has looked and found n packets, by now. True: look again. */
static inline bool stay(struct stay *s, int n, uint64_t now, uint32_t polls)
{
	if (n > 0) {
		if (s->waits)
			stay_waited(s, now - s->last_ns);
		s->last_ns = now;
		return now - s->woke_ns < STAY_MAX_NS;
	}
	if (!s->last_ns)
		return false; /* it was not for packets */
	if (backoff_skips(&s->backoff))
		return false;
	if (polls != s->polls)
		return false;
	s->waits = true;
	if (now - s->last_ns < STAY_NS)
		return now - s->woke_ns < STAY_MAX_NS;
	stay_in_vain(s);
	return false;
}

#endif

/*
 * busy_poll.h - whether the thread looks for more packets before it sleeps again
 *
 * To wake it costs the sender a system call, and the packet several
 * microseconds. Who sends one request at a time, or some now and then, would
 * pay that for each. So when packets have come the thread polls on for
 * BUSY_POLL_NS, since the last one.
 *
 * That is wasted where nothing comes so soon, and it does harm where the CPU that
 * it takes is the one that a program needs to send the next packet, or to see
 * this one; then nothing can come meanwhile. So after BUSY_POLL_VAIN fruitless times
 * in a row it takes twice as many wakes as before until it tries again
 * (base/backoff.h), BUSY_POLL_SKIP_MAX at most. It stops as soon as a program polls,
 * and after BUSY_POLL_MAX_NS it looks at its other descriptors.
 *
 * The state is the thread's own; all zeros at first. Times are arguments.
 */
#ifndef SOFTHCA_ENGINE_BUSY_POLL_H
#define SOFTHCA_ENGINE_BUSY_POLL_H

#include "base/backoff.h"

#include <stdbool.h>
#include <stdint.h>

#define BUSY_POLL_NS 20000
#define BUSY_POLL_MAX_NS 200000
#define BUSY_POLL_VAIN 4
#define BUSY_POLL_SKIP_MAX 1024

struct busy_poll {
	uint64_t woke_ns;
	uint64_t last_ns; /* when it has found packets last; 0: none yet */
	bool waits; /* the last look found nothing */
	uint32_t polls; /* by programs, when it woke */
	struct backoff backoff; /* a try: to poll on after a wake */
};

/* The thread has woken; polls: a count that changes when a program polls. */
static inline void busy_poll_begin(struct busy_poll *s, uint64_t now,
				   uint32_t polls)
{
	s->woke_ns = now;
	s->last_ns = 0;
	s->waits = false;
	s->polls = polls;
}

static inline void busy_poll_in_vain(struct busy_poll *s)
{
	static const struct backoff_rule rule = { .free = BUSY_POLL_VAIN - 1,
						  .first = 1,
						  .most = BUSY_POLL_SKIP_MAX };

	backoff_fail(&s->backoff, &rule);
}

/* What it has waited for has come; or it had lost its CPU until then. */
static inline void busy_poll_waited(struct busy_poll *s, uint64_t ns)
{
	s->waits = false;
	if (ns < 2 * BUSY_POLL_NS)
		backoff_succeed(&s->backoff);
	else
		busy_poll_in_vain(s);
}

/* It has looked and found n packets, by now. True: look again. */
static inline bool busy_poll(struct busy_poll *s, int n, uint64_t now,
			     uint32_t polls)
{
	if (n > 0) {
		if (s->waits)
			busy_poll_waited(s, now - s->last_ns);
		s->last_ns = now;
		return now - s->woke_ns < BUSY_POLL_MAX_NS;
	}
	if (!s->last_ns)
		return false; /* it was not for packets */
	if (backoff_skips(&s->backoff))
		return false;
	if (polls != s->polls)
		return false;
	s->waits = true;
	if (now - s->last_ns < BUSY_POLL_NS)
		return now - s->woke_ns < BUSY_POLL_MAX_NS;
	busy_poll_in_vain(s);
	return false;
}

#endif

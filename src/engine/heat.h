/*
 * heat.h - which links programs skip when they poll
 *
 * Polling UDP takes a system call, and where all peers of a process are on its
 * own host hardly anything arrives that way. So such a link gets cold: a
 * packet that comes or goes heats it, each poll that finds nothing takes some
 * of that away, and with nothing left programs leave it out. The thread watches
 * a cold link while programs receive, and takes its packets. As long as the
 * last packet of some QP has gone by the link it does not get cold, however
 * seldom those packets are. A link that can be asked for nothing never does.
 *
 * Threads that heat and cool at once may undo each other's: then the link gets
 * cold a little sooner, or later.
 */
#ifndef SOFTHCA_ENGINE_HEAT_H
#define SOFTHCA_ENGINE_HEAT_H

#include "link/link.h"

#include <stdatomic.h>

#define HEAT_POLLS 2048

static inline bool heat_is_hot(const struct link *l)
{
	return l->ops->ready ||
	       atomic_load_explicit(&l->heat, memory_order_relaxed) ||
	       atomic_load_explicit(&l->users, memory_order_relaxed);
}

/* A packet has come, or gone. */
static inline void heat_add(struct link *l)
{
	if (atomic_load_explicit(&l->heat, memory_order_relaxed) != HEAT_POLLS)
		atomic_store_explicit(&l->heat, HEAT_POLLS,
				      memory_order_relaxed);
}

/* A poll has found nothing. True: the link is cold now, and was not before. */
static inline bool heat_take(struct link *l)
{
	uint32_t n = atomic_load_explicit(&l->heat, memory_order_relaxed);

	if (!n || l->ops->ready ||
	    atomic_load_explicit(&l->users, memory_order_relaxed))
		return false;
	atomic_store_explicit(&l->heat, n - 1, memory_order_relaxed);
	return n == 1;
}

/* A QP sends there from now on; no longer. */
static inline void heat_use(struct link *l, bool uses)
{
	/* First: between the two it would be cold, and nobody told. */
	heat_add(l);
	if (uses)
		atomic_fetch_add(&l->users, 1);
	else
		atomic_fetch_sub(&l->users, 1);
}

#endif

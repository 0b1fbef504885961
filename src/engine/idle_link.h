/*
 * idle_link.h - which links programs skip when they poll
 *
 * Polling UDP takes a system call, and where all peers of a process are on its
 * own host hardly anything arrives that way. So such a link becomes idle after
 * IDLE_LINK_POLLS polls in a row that find nothing, where a packet that is sent
 * counts as one that comes, and programs leave it out. The thread watches an
 * idle link while programs receive, and takes its packets. As long as the last
 * packet of some QP has gone by the link it does not become idle, however seldom
 * those packets are. A link that costs nothing to ask (ready) never does.
 *
 * Threads that count at once may undo each other's: then the link becomes idle a
 * little sooner, or later.
 */
#ifndef SOFTHCA_ENGINE_IDLE_LINK_H
#define SOFTHCA_ENGINE_IDLE_LINK_H

#include "link/link.h"

#include <stdatomic.h>

#define IDLE_LINK_POLLS 2048

/* ops: what link_now() has said. */
static inline bool idle_link_is_active_by(const struct link *l,
					  const struct link_ops *ops)
{
	return ops->ready ||
	       atomic_load_explicit(&l->idle_after, memory_order_relaxed) ||
	       atomic_load_explicit(&l->users, memory_order_relaxed);
}

static inline bool idle_link_is_active(const struct link *l)
{
	return idle_link_is_active_by(l, link_now(l));
}

/* A packet has come, or gone. */
static inline void idle_link_activity(struct link *l)
{
	if (atomic_load_explicit(&l->idle_after, memory_order_relaxed) !=
	    IDLE_LINK_POLLS)
		atomic_store_explicit(&l->idle_after, IDLE_LINK_POLLS,
				      memory_order_relaxed);
}

/* A poll has found nothing. True: the link is idle now, and was not before. */
static inline bool idle_link_empty_poll(struct link *l)
{
	uint32_t n = atomic_load_explicit(&l->idle_after, memory_order_relaxed);

	if (!n || link_now(l)->ready ||
	    atomic_load_explicit(&l->users, memory_order_relaxed))
		return false;
	atomic_store_explicit(&l->idle_after, n - 1, memory_order_relaxed);
	return n == 1;
}

/* A QP sends there from now on; no longer. */
static inline void idle_link_use(struct link *l, bool uses)
{
	/* First: between the two it would be idle, and nobody told. */
	idle_link_activity(l);
	if (uses)
		atomic_fetch_add(&l->users, 1);
	else
		atomic_fetch_sub(&l->users, 1);
}

#endif

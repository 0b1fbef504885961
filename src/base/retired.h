/*
 * retired.h - objects that threads may still have in hand when they have ended
 *
 * A program may destroy an event channel while another of its threads is about
 * to ask it for an event. With rdma-core that thread finds a descriptor that is
 * closed. So what has ended stays for a while, marked as ended by its owner,
 * before its memory is given back: until RETIRED more of its kind have ended.
 */
#ifndef SOFTHCA_BASE_RETIRED_H
#define SOFTHCA_BASE_RETIRED_H

#include <stdatomic.h>

#define RETIRED 64u

struct retired {
	_Atomic unsigned next;
	void *_Atomic at[RETIRED];
};

/* p has ended. Returns one that has ended long ago, to be freed, or NULL. */
static inline void *retire(struct retired *r, void *p)
{
	return atomic_exchange(&r->at[atomic_fetch_add(&r->next, 1) % RETIRED],
			       p);
}

#endif

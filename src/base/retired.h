/*
 * retired.h - objects that threads may still have in hand when they have ended
 *
 * A program may destroy an event channel while another of its threads is about
 * to ask it for an event. With rdma-core that thread finds a descriptor that is
 * closed. So what has ended stays for a while, marked as ended by its owner,
 * before its memory is given back: until RETIRED more of its kind have ended.
 * What a thread is seen to be in, or was before it jumped out of a handler, is
 * kept for good, where leak checkers find it.
 */
#ifndef SOFTHCA_BASE_RETIRED_H
#define SOFTHCA_BASE_RETIRED_H

#include <stdatomic.h>

#define RETIRED 64u

struct retired {
	_Atomic unsigned next;
	void *_Atomic at[RETIRED];
	struct retired_kept *_Atomic kept;
};

struct retired_kept {
	struct retired_kept *next;
};

/* p has ended. Returns one that has ended long ago, to be freed, or NULL. */
static inline void *retire(struct retired *r, void *p)
{
	return atomic_exchange(&r->at[atomic_fetch_add(&r->next, 1) % RETIRED],
			       p);
}

/* k is a part of what has ended, and threads are in it. */
static inline void retired_keep(struct retired *r, struct retired_kept *k)
{
	k->next = atomic_load(&r->kept);
	while (!atomic_compare_exchange_weak(&r->kept, &k->next, k))
		;
}

#endif

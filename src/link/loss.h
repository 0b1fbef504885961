/*
 * loss.h - packets that are lost on purpose (--loss)
 *
 * The same packets for the same seed, as far as their order is the same.
 */
#ifndef SOFTHCA_LINK_LOSS_H
#define SOFTHCA_LINK_LOSS_H

#include "base/hash64.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct loss {
	bool some; /* otherwise none is, */
	double share; /* of packets dropped on sending, 0..1 */
	uint64_t seed;
	_Atomic uint64_t draws; /* random numbers used so far */
};

static inline void loss_init(struct loss *l, double share, uint64_t seed)
{
	l->some = share > 0;
	l->share = share;
	l->seed = seed;
}

__attribute__((noinline, unused)) static bool loss_next(struct loss *l)
{
	const uint64_t n =
		atomic_fetch_add_explicit(&l->draws, 1, memory_order_relaxed);

	return (double)(hash64(l->seed + (n + 1) * HASH64_STEP) >> 11) *
		       0x1p-53 <
	       l->share;
}

/* Whether the next packet is lost. Any thread may ask. */
static inline bool loss_draw(struct loss *l)
{
	return __builtin_expect(l->some, 0) && loss_next(l);
}

#endif

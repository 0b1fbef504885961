/*
 * random.h - what the random programs of test_random.c and iwarp_random.c share
 *
 * A failure prints the seed; SIM_SEED=n runs just that one, SIM_RUNS=n sets how
 * many are tried, SIM_TEST=name picks one test, SIM_VERBOSE=1 explains errors.
 */
#ifndef SOFTHCA_TESTS_SIM_RANDOM_H
#define SOFTHCA_TESTS_SIM_RANDOM_H

#include "sim.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t current_seed;

#define CHECK(cond)                                                            \
	do {                                                                   \
		if (!(cond)) {                                                 \
			fprintf(stderr, "%s:%d: %s  (SIM_SEED=%llu)\n",        \
				__FILE__, __LINE__, #cond,                     \
				(unsigned long long)current_seed);             \
			fail();                                                \
		}                                                              \
	} while (0)

static inline void fill(struct sim_rng *r, uint8_t *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		p[i] = (uint8_t)sim_rand(r);
}

/* Short, around a limit that matters, a few KiB, or up to max. */
static inline uint32_t random_len(struct sim_rng *r, uint32_t around,
				  uint32_t max)
{
	switch (sim_below(r, 4)) {
	case 0:
		return sim_below(r, 9);
	case 1:
		return around - 4 + sim_below(r, 10);
	case 2:
		return sim_below(r, 4100);
	default:
		return sim_below(r, max);
	}
}

/* SGEs over [addr, addr + len), in up to three pieces. */
static inline int pieces(struct sim_rng *r, struct ibv_sge *sge, void *addr,
			 uint32_t len, uint32_t lkey)
{
	int n = 1 + (int)sim_below(r, 3);
	uint64_t a = (uintptr_t)addr;

	for (int i = 0; i < n; i++) {
		uint32_t l = i == n - 1 ? len : sim_below(r, len + 1);

		sge[i] = (struct ibv_sge){ a, l, lkey };
		a += l;
		len -= l;
	}
	return n;
}

/* How many seeds are tried. Each way within the host has its own. */
static inline unsigned runs(unsigned dflt)
{
	const char *e = getenv("SIM_RUNS");

	if (e)
		return (unsigned)strtoul(e, NULL, 0);
	return getenv("SIM_WAY") ? dflt / 2 : dflt;
}

/* n seeds from base on, or SIM_SEED alone. */
static inline void seeds(uint64_t base, unsigned n, uint64_t *first,
			 uint64_t *end)
{
	const char *one = getenv("SIM_SEED");

	*first = one ? strtoull(one, NULL, 0) : base;
	*end = *first + (one ? 1 : n);
}

#endif

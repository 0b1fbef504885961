/*
 * unit.h - what every unit test includes: cmocka, and a small generator of
 * random numbers whose seed a failing test can be run with again
 */
#ifndef SOFTHCA_TESTS_UNIT_H
#define SOFTHCA_TESTS_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

/* xorshift64*; never 0. */
static inline uint64_t rnd(uint64_t *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * 0x2545f4914f6cdd1du;
}

static inline void rnd_fill(uint64_t *state, void *p, size_t len)
{
	uint8_t *b = p;

	while (len--)
		*b++ = (uint8_t)(rnd(state) >> 32);
}

/* From SOFTHCA_TEST_SEED, or the time; printed, so that it can be given. */
static inline uint64_t rnd_seed(void)
{
	const char *env = getenv("SOFTHCA_TEST_SEED");
	struct timespec ts;
	uint64_t seed;

	clock_gettime(CLOCK_REALTIME, &ts);
	seed = (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
	if (env)
		seed = strtoull(env, NULL, 0);
	seed = seed ? seed : 1;
	print_message("SOFTHCA_TEST_SEED=0x%llx\n", (unsigned long long)seed);
	return seed;
}

#endif

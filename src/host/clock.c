/*
 * clock.c - the monotonic clock
 */
#include "config.h"

#include <time.h>

static uint64_t read_clock(clockid_t id)
{
	struct timespec ts;

	clock_gettime(id, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

uint64_t clock_ns(void)
{
	return read_clock(CLOCK_MONOTONIC);
}

uint64_t clock_coarse_ns(void)
{
	return read_clock(CLOCK_MONOTONIC_COARSE);
}

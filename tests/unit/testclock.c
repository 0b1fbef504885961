/*
 * testclock.c - the monotonic clock of a test
 *
 * Time is what has passed, unless that is stopped, and what the test adds to
 * it. It never goes back.
 */
#include "testclock.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

static struct test_clock {
	_Atomic bool stopped;
	_Atomic uint64_t added_ns;
	_Atomic uint64_t step_ns;
} * tc;

__attribute__((constructor)) static void make(void)
{
	tc = mmap(NULL, sizeof(*tc), PROT_READ | PROT_WRITE,
		  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (tc == MAP_FAILED)
		abort();
}

static uint64_t passed_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

uint64_t clock_ns(void)
{
	if (tc->stopped)
		return atomic_fetch_add(&tc->added_ns, tc->step_ns);
	return tc->added_ns + passed_ns();
}

uint64_t clock_coarse_ns(void)
{
	return clock_ns();
}

void clock_forward(uint64_t ns)
{
	atomic_fetch_add(&tc->added_ns, ns);
}

void clock_by_readings(uint64_t step_ns)
{
	atomic_fetch_add(&tc->added_ns, passed_ns());
	tc->step_ns = step_ns;
	tc->stopped = true;
}

void clock_by_time(void)
{
	atomic_fetch_sub(&tc->added_ns, passed_ns());
	tc->stopped = false;
}

/*
 * clock.c - preloaded into perftest in a guest: a gettimeofday(2) that agrees
 * with the processor's counter
 *
 * perftest counts cycles and asks gettimeofday() for what a cycle lasts, 200
 * times within some hundred microseconds each. Where that is a system call of
 * microseconds, on a machine that does other things as well, it finds nothing
 * or tries for ever. Here the counter itself is the clock, compared once with
 * the kernel's over a tenth of a second.
 */
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <x86intrin.h>

#define NS_PER_S 1000000000u

struct moment {
	uint64_t cycles, ns;
};

/* The best of many: whoever loses the processor in between is no good. */
static struct moment look(void)
{
	struct moment best = { 0, 0 };
	uint64_t width = UINT64_MAX;

	for (int i = 0; i < 100; i++) {
		uint64_t before = __rdtsc(), after;
		struct timespec t;

		clock_gettime(CLOCK_MONOTONIC, &t);
		after = __rdtsc();
		if (after - before < width) {
			width = after - before;
			best.cycles = before + width / 2;
			best.ns = (uint64_t)t.tv_sec * NS_PER_S +
				  (uint64_t)t.tv_nsec;
		}
	}
	return best;
}

static double per_us;
static uint64_t start;

/* Before main(): perftest counts the cycles of its calls. Other programs with
 * the same environment are not to wait for it. */
__attribute__((constructor)) static void compare(void)
{
	struct timespec t = { .tv_nsec = NS_PER_S / 10 };
	struct moment a, b;

	if (strncmp(program_invocation_short_name, "ib_", 3) != 0)
		return;
	a = look();
	nanosleep(&t, NULL);
	b = look();
	per_us = (double)(b.cycles - a.cycles) * 1e3 / (double)(b.ns - a.ns);
	start = a.cycles;
}

/* Since the start, which is as good as any other beginning. */
int gettimeofday(struct timeval *restrict tv, void *restrict tz)
{
	double us = per_us > 0 ? (double)(__rdtsc() - start) / per_us : 0;

	(void)tz;
	tv->tv_sec = (time_t)(us / 1e6);
	tv->tv_usec = (suseconds_t)(us - 1e6 * (double)tv->tv_sec);
	return 0;
}

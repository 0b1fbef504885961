/*
 * measure.h - what the measurements share: a clock, an order, an end
 */
#ifndef SOFTHCA_TESTS_BENCH_MEASURE_H
#define SOFTHCA_TESTS_BENCH_MEASURE_H

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* Prints errno. */
static inline _Noreturn void fail(const char *what)
{
	perror(what);
	exit(1);
}

/* Seconds, on the monotonic clock. */
static inline double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Of floats, for qsort(). */
static inline int compare(const void *a, const void *b)
{
	const float *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

#endif

/*
 * testclock.h - the monotonic clock of a test, which the test sets
 *
 * testclock.c stands in for src/os/clock.c in a test program. What the code
 * under test does after a second it does when the test says that a second has
 * passed. The processes that a test forks have the same clock: what one of them
 * sets holds for all.
 */
#ifndef SOFTHCA_TESTS_TESTCLOCK_H
#define SOFTHCA_TESTS_TESTCLOCK_H

#include "os/config.h"

#include <stdint.h>

void clock_forward(uint64_t ns);

/*
 * Time passes by step_ns each time that somebody looks at the clock, and not
 * otherwise: what waits does so for a number of readings that is known,
 * however busy the machine is. Until clock_by_time().
 */
void clock_by_readings(uint64_t step_ns);
void clock_by_time(void);

#endif

/*
 * clock.c - the monotonic clock
 *
 * Mostly the kernel lets programs read its clock without a system call, which
 * takes 20 ns. Where it does not, as in user-mode Linux, a reading takes as
 * long as everything else about a small message; there the processor's counter
 * is read, which the kernel's clock sets right every few milliseconds
 * (counter.h). That takes a counter that runs at one rate in all states of the
 * processor.
 *
 * What the counter shows is never less than what the clock showed before: a
 * reading of the clock counts as one at the beginning of the call.
 *
 * While the process is suspended (src/migrate) its time stands still, and from
 * then on it is behind the kernel's.
 */
#include "config.h"
#include "counter.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

#define SLOW_NS 1000u /* to read a clock that takes a system call */
#define TRIES 8
#define STOP_NS 1000000u /* from when it is read until it stands */
#define START_NS                                                               \
	10000000u /* by the clock, before the counter's rate is known */

static uint64_t read_clock(clockid_t id)
{
	struct timespec ts;

	clock_gettime(id, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

enum way {
	UNKNOWN,
	CLOCK,
	STARTING, /* the clock, until the counter's rate is known */
	COUNTER,
	CLOCK_AGAIN, /* the counter was wrong: not before where it was */
	BEHIND, /* the clock, less what it was ahead when we went on */
	STANDS,
};

static _Atomic uint64_t behind, stands;

static uint64_t our_clock(void)
{
	return read_clock(CLOCK_MONOTONIC) -
	       atomic_load_explicit(&behind, memory_order_relaxed);
}

#if defined(__x86_64__)

/* What one thread at a time sets; or nobody, while time stands. */
static struct {
	atomic_flag taken;
	uint64_t first_cycles, first_ns;
	uint64_t width; /* of the call that reads the clock, at best */
	struct counter counter;
} setting = { .taken = ATOMIC_FLAG_INIT };

/* What all read: a copy of the counter, whole if seq is even and the same. */
static _Atomic enum way way;
static _Atomic uint32_t seq;
static _Atomic uint64_t shown[3], interval, least;

/* When the clock was read, at the earliest, and how long that took. */
struct reading {
	uint64_t cycles, width, ns;
};

static struct reading take_reading(void)
{
	struct reading r = { .cycles = __rdtsc() };

	r.ns = our_clock();
	r.width = __rdtsc() - r.cycles;
	return r;
}

static bool is_steady(void)
{
	unsigned a, b, c, d;

	return __get_cpuid(0x80000007, &a, &b, &c, &d) && d & 1u << 8;
}

static void publish_counter(const struct counter *c)
{
	atomic_store(&shown[0], c->cycles);
	atomic_store(&shown[1], c->ns);
	atomic_store(&shown[2], c->rate);
}

/* In a child: another thread of the parent's may have been setting it. */
static void clock_reset(void)
{
	atomic_store(&way, UNKNOWN);
	atomic_store(&seq, 0);
	atomic_flag_clear(&setting.taken);
}

/* Decides which way, by the clock alone. */
static void choose_way(void)
{
	static bool forks;
	struct reading r, best = take_reading();
	uint64_t least_ns = UINT64_MAX, before = best.ns;

	for (int i = 0; i < TRIES; i++) {
		r = take_reading();
		least_ns = r.ns - before < least_ns ? r.ns - before : least_ns;
		before = r.ns;
		best = r.width < best.width ? r : best;
	}
	if (least_ns < SLOW_NS || !is_steady()) {
		atomic_store(&way, atomic_load(&behind) ? BEHIND : CLOCK);
		return;
	}
	setting.first_cycles = best.cycles;
	setting.first_ns = best.ns;
	setting.width = best.width;
	if (!forks) /* once, as a child's children have the handler as well */
		pthread_atfork(NULL, NULL, clock_reset);
	forks = true;
	atomic_store(&way, STARTING);
}

static void start_counter(void)
{
	struct reading r = take_reading();

	if (r.ns - setting.first_ns < START_NS ||
	    !counter_is_good(&setting.width, r.width))
		return;
	counter_init(&setting.counter, setting.first_cycles, setting.first_ns,
		     r.cycles, r.ns);
	publish_counter(&setting.counter);
	atomic_store(&interval,
		     ((uint64_t)COUNTER_SET_NS << 32) / setting.counter.rate);
	atomic_store(&way, COUNTER);
}

static void correct_counter(void)
{
	struct reading r = take_reading();

	if (!counter_is_good(&setting.width, r.width))
		return;
	/* Who has read the counter before this reads what was shown before. */
	atomic_fetch_add(&seq, 1);
	if (counter_set(&setting.counter, r.cycles, r.ns, __rdtsc())) {
		publish_counter(&setting.counter);
	} else {
		atomic_store(&least, counter_ns(&setting.counter, __rdtsc()));
		atomic_store(&way, CLOCK_AGAIN);
	}
	atomic_fetch_add(&seq, 1);
}

static uint64_t read_counter(bool *old)
{
	struct counter c;
	uint64_t cycles;
	uint32_t s;

	do {
		s = atomic_load_explicit(&seq, memory_order_acquire);
		c.cycles =
			atomic_load_explicit(&shown[0], memory_order_acquire);
		c.ns = atomic_load_explicit(&shown[1], memory_order_acquire);
		c.rate = atomic_load_explicit(&shown[2], memory_order_acquire);
		cycles = __rdtsc();
	} while (s & 1 || s != atomic_load(&seq));
	*old = (int64_t)(cycles - c.cycles) >
	       (int64_t)atomic_load_explicit(&interval, memory_order_relaxed);
	return counter_ns(&c, cycles);
}

/* Another thread that does the same is not waited for. */
static void run_alone(void (*does)(void))
{
	if (atomic_flag_test_and_set(&setting.taken))
		return;
	does();
	atomic_flag_clear(&setting.taken);
}

__attribute__((noinline)) static uint64_t other_way(void)
{
	uint64_t ns;
	bool old;

	switch (atomic_load(&way)) {
	case UNKNOWN:
		run_alone(choose_way);
		break;
	case STARTING:
		run_alone(start_counter);
		break;
	case COUNTER:
		ns = read_counter(&old);
		if (old) {
			run_alone(correct_counter);
			ns = read_counter(&old);
		}
		return ns;
	case CLOCK_AGAIN:
		ns = our_clock();
		return ns > atomic_load(&least) ? ns : atomic_load(&least);
	case STANDS:
		return atomic_load(&stands);
	case CLOCK:
	case BEHIND:
		break;
	}
	return our_clock();
}

static void hold_setting(void)
{
	while (atomic_flag_test_and_set(&setting.taken))
		sched_yield();
}

static void drop_setting(void)
{
	atomic_flag_clear(&setting.taken);
}

#define FIRST UNKNOWN

#else

static _Atomic enum way way = CLOCK;

static uint64_t other_way(void)
{
	return atomic_load(&way) == STANDS ? atomic_load(&stands) : our_clock();
}

static void hold_setting(void)
{
}

static void drop_setting(void)
{
}

#define FIRST BEHIND

#endif

static bool by_clock(void)
{
	return atomic_load_explicit(&way, memory_order_relaxed) == CLOCK;
}

void clock_stop(void)
{
	hold_setting();
	/* Nobody has read a later one when it stands, but for who was about to
	 * read it, and lost its CPU. */
	atomic_store(&stands, clock_ns() + STOP_NS);
	atomic_store(&way, STANDS);
}

void clock_go(void)
{
	if (atomic_load(&way) != STANDS)
		return;
	atomic_store(&behind,
		     read_clock(CLOCK_MONOTONIC) - atomic_load(&stands));
	atomic_store(&way, FIRST);
	drop_setting();
}

uint64_t clock_of_kernel(uint64_t ns)
{
	return ns - atomic_load_explicit(&behind, memory_order_relaxed);
}

uint64_t clock_ns(void)
{
	return by_clock() ? read_clock(CLOCK_MONOTONIC) : other_way();
}

uint64_t clock_coarse_ns(void)
{
	return by_clock() ? read_clock(CLOCK_MONOTONIC_COARSE) : other_way();
}

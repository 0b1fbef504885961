/*
 * test_clock.c - the monotonic clock, where the kernel's takes long to read
 */
#include "unit.h"

#include "os/config.h"
#include "os/counter.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#define SECOND UINT64_C(1000000000)
#define GHZ UINT64_C(3) /* cycles per ns of the counters in here */
#define START_NS (10 * UINT64_C(1000000))

static uint64_t kernel_ns(void)
{
	struct timespec ts;

	syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * SECOND + (uint64_t)ts.tv_nsec;
}

static _Atomic unsigned calls;

/* The library's is this one: it takes microseconds. */
int clock_gettime(clockid_t id, struct timespec *ts)
{
	const uint64_t end = kernel_ns() + 3000;

	calls++;
	while (kernel_ns() < end)
		;
	return (int)syscall(SYS_clock_gettime, id, ts);
}

/* A counter of that rate since the time 0, whose rate is known to be off by so
 * many parts of a million. */
static struct counter counter_of(int64_t ppm)
{
	struct counter c;

	counter_init(&c, GHZ * SECOND, SECOND, GHZ * (SECOND + START_NS),
		     SECOND + START_NS +
			     (uint64_t)((int64_t)START_NS * ppm / 1000000));
	return c;
}

static void counter_counts(void **state)
{
	struct counter c = counter_of(0);
	uint64_t ns = counter_ns(&c, GHZ * 5 * SECOND);

	(void)state;
	assert_in_range(ns, 5 * SECOND - 10, 5 * SECOND + 10);
	/* Another processor's is a little behind. */
	assert_int_equal(counter_ns(&c, c.cycles - 50), c.ns);
}

/* Set right again and again, by readings that are right. */
static void becomes_right(int64_t ppm)
{
	struct counter c = counter_of(ppm);
	uint64_t now, before = 0, ns = 0;

	for (int i = 1; i <= 1000; i++) {
		now = SECOND + START_NS + (uint64_t)i * COUNTER_SET_NS;
		assert_true(counter_ns(&c, GHZ * now) >= before);
		assert_true(counter_set(&c, GHZ * now, now, GHZ * (now + 100)));
		before = ns = counter_ns(&c, GHZ * (now + 200));
	}
	assert_in_range(ns, now + 200 - 1000, now + 200 + 1000);
}

static void what_is_behind_catches_up(void **state)
{
	(void)state;
	becomes_right(-1000);
}

static void what_is_ahead_waits(void **state)
{
	(void)state;
	becomes_right(1000);
}

/* The machine was suspended: the clock stood still, or the counter. */
static void what_does_not_count_time_is_noticed(void **state)
{
	struct counter c = counter_of(0);
	uint64_t now = SECOND + START_NS + COUNTER_SET_NS;

	(void)state;
	assert_false(counter_set(&c, GHZ * (now + SECOND), now,
				 GHZ * (now + SECOND)));
	assert_false(counter_set(&c, GHZ * now, now + SECOND, GHZ * now));
	assert_false(counter_set(&c, GHZ, now, GHZ));
	assert_true(counter_set(&c, GHZ * now, now, GHZ * now));
}

/* It is the kernel's but for some microseconds, and never goes back. */
static void *reads(void *arg)
{
	const uint64_t off = 1000000, end = kernel_ns() + SECOND / 5;
	uint64_t before = 0, least, ns;

	do {
		least = kernel_ns();
		ns = clock_ns();
		assert_true(ns + off > least);
		assert_true(ns < kernel_ns() + off);
		assert_true(ns >= before);
		before = ns;
	} while (least < end);
	return arg;
}

static void is_the_kernels(void **state)
{
	pthread_t other;

	(void)state;
	assert_int_equal(pthread_create(&other, NULL, reads, NULL), 0);
	reads(NULL);
	assert_int_equal(pthread_join(other, NULL), 0);
}

/* Whether the processor has a counter that runs at one rate. */
static bool has_counter(void)
{
#if defined(__x86_64__)
	unsigned a, b, c, d;

	return __get_cpuid(0x80000007, &a, &b, &c, &d) && d & 1u << 8;
#else
	return false;
#endif
}

static void is_seldom_read(void **state)
{
	unsigned before;

	(void)state;
	if (!has_counter())
		skip();
	reads(NULL); /* which takes longer than to start */
	before = calls;
	for (int i = 0; i < 100000; i++)
		clock_ns();
	assert_in_range(calls - before, 0, 50000);
}

static void is_the_same_in_a_child(void **state)
{
	int status;
	pid_t pid;

	(void)state;
	reads(NULL);
	pid = fork();
	if (!pid) {
		reads(NULL);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

/* Last, as it is behind the kernel's from then on. */
static void stands_and_goes_on(void **state)
{
	const uint64_t off = 1000000;
	uint64_t stood, went, before, kernels, after;

	(void)state;
	clock_go(); /* it does */
	reads(NULL);
	for (int i = 0; i < 5; i++) {
		before = clock_ns();
		clock_stop();
		stood = clock_ns();
		assert_true(stood > before);
		usleep(20000);
		assert_int_equal(clock_ns(), stood);
		went = kernel_ns();
		clock_go();
		before = clock_ns();
		assert_true(before >= stood);
		kernels = clock_of_kernel(kernel_ns());
		after = clock_ns();
		assert_true(kernels + off > before && kernels < after + off);
		usleep(30000); /* the counter's rate is found out again */
		clock_ns();
		after = clock_ns();
		assert_true(after > stood + 30000000 - off);
		assert_true(after < stood + kernel_ns() - went + off);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(counter_counts),
		cmocka_unit_test(what_is_behind_catches_up),
		cmocka_unit_test(what_is_ahead_waits),
		cmocka_unit_test(what_does_not_count_time_is_noticed),
		cmocka_unit_test(is_the_kernels),
		cmocka_unit_test(is_seldom_read),
		cmocka_unit_test(is_the_same_in_a_child),
		cmocka_unit_test(stands_and_goes_on),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * test_handlers.c - how often the program's signal handlers are read
 */
#include "unit.h"

#include "os/dump_signal.h"
#include "os/guard.h"
#include "os/handlers.h"
#include "testclock.h"

#include <signal.h>

#define US UINT64_C(1000)
#define MS (1000 * US)

static void handler(int sig)
{
	(void)sig;
}

static void install(int flags)
{
	struct sigaction sa = { .sa_handler = handler, .sa_flags = flags };

	assert_int_equal(sigaction(SIGUSR1, &sa, NULL), 0);
}

/* Whether all have SA_RESTART, as cmocka's do. */
static bool restarts(uint64_t now_ns)
{
	return handlers_kinds(now_ns) == HANDLERS_RESTART;
}

/* Reads them, which takes so long, and then changes them. */
static uint64_t read_and_change(uint64_t takes_ns)
{
#ifdef __SANITIZE_THREAD__
	skip(); /* it has handlers of its own, without SA_RESTART */
#endif
	install(SA_RESTART);
	clock_by_readings(takes_ns);
	assert_true(restarts(UINT64_MAX));
	install(0);
	return clock_ns();
}

static void are_read_again_after_a_while(void **state)
{
	uint64_t now = read_and_change(10 * US);

	(void)state;
	assert_true(restarts(now + MS));
	assert_false(restarts(now + 2 * MS));
	clock_by_time();
}

static void are_read_at_once_if_need_be(void **state)
{
	(void)state;
	read_and_change(10 * US);
	assert_false(restarts(UINT64_MAX));
	clock_by_time();
}

/* Where that takes a millisecond, one in fifty. */
static void are_read_less_often_where_that_is_slow(void **state)
{
	uint64_t now = read_and_change(MS);

	(void)state;
	assert_true(restarts(now + 40 * MS));
	assert_false(restarts(now + 50 * MS));
	clock_by_time();
}

/* Who loses the processor meanwhile has not taken long. */
static void are_not_trusted_for_long(void **state)
{
	uint64_t now = read_and_change(1000 * MS);

	(void)state;
	assert_false(restarts(now + 100 * MS));
	clock_by_time();
}

/* Those for faults, which nobody sends, and for --explain are none of the
 * program's: they do not interrupt its waiting. */
static void ours_are_none_of_them(void **state)
{
	struct sigaction interrupts = { .sa_handler = handler };

	(void)state;
	for (int sig = 1; sig < NSIG; sig++) /* cmocka's */
		signal(sig, SIG_DFL);
	guard_install();
	clock_by_readings(10 * US);
	assert_int_equal(handlers_kinds(UINT64_MAX), 0);
	dump_signal_begin();
	assert_true(restarts(UINT64_MAX));
	assert_int_equal(sigaction(SIGUSR2, &interrupts, NULL), 0);
	assert_int_equal(handlers_kinds(UINT64_MAX), HANDLERS_INTERRUPT);
	clock_by_time();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(are_read_again_after_a_while),
		cmocka_unit_test(are_read_at_once_if_need_be),
		cmocka_unit_test(are_read_less_often_where_that_is_slow),
		cmocka_unit_test(are_not_trusted_for_long),
		cmocka_unit_test(ours_are_none_of_them),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

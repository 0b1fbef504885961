/*
 * test_busy_poll.c - how long the thread looks for more packets
 */
#include "unit.h"

#include "engine/busy_poll.h"

#define BEGIN_NS 1000000000000
#define LOOK_NS 100
#define LOOKS (BUSY_POLL_NS / LOOK_NS)

static struct busy_poll s;
static uint64_t now;
static uint32_t polls;

static int setup(void **state)
{
	(void)state;
	s = (struct busy_poll){ 0 };
	now = BEGIN_NS;
	polls = 7;
	return 0;
}

/* It wakes, and finds packets at once. */
static void wake(void)
{
	busy_poll_begin(&s, now, polls);
	now += LOOK_NS;
	assert_true(busy_poll(&s, 1, now, polls));
}

/* Nothing comes; returns how often it looks in vain. */
static unsigned nothing(void)
{
	unsigned n = 1;

	for (now += LOOK_NS; busy_poll(&s, 0, now, polls); now += LOOK_NS)
		n++;
	return n;
}

static void looks_for_a_while(void **state)
{
	(void)state;
	wake();
	assert_int_equal(nothing(), LOOKS);
}

static void not_when_woken_for_something_else(void **state)
{
	(void)state;
	busy_poll_begin(&s, now, polls);
	assert_false(busy_poll(&s, 0, now + LOOK_NS, polls));
}

static void the_last_packet_counts(void **state)
{
	(void)state;
	wake();
	now += LOOK_NS;
	assert_true(busy_poll(&s, 0, now, polls));
	now += BUSY_POLL_NS - 2 * LOOK_NS;
	assert_true(busy_poll(&s, 3, now, polls));
	assert_int_equal(nothing(), LOOKS);
}

static void gives_way_to_a_program_that_polls(void **state)
{
	(void)state;
	wake();
	now += LOOK_NS;
	assert_true(busy_poll(&s, 0, now, polls));
	polls++;
	now += LOOK_NS;
	assert_false(busy_poll(&s, 0, now, polls));
	/* That was not in vain, however often. */
	for (unsigned i = 0; i < 10 * BUSY_POLL_VAIN; i++) {
		wake();
		polls++;
		assert_false(busy_poll(&s, 0, now, polls));
	}
	wake();
	assert_int_equal(nothing(), LOOKS);
}

static void packets_do_not_keep_it_for_ever(void **state)
{
	const uint64_t woke = now;

	(void)state;
	busy_poll_begin(&s, now, polls);
	do {
		now += LOOK_NS;
		assert_in_range(now - woke, 0, BUSY_POLL_MAX_NS);
	} while (busy_poll(&s, 1, now, polls));
	assert_int_equal(now - woke, BUSY_POLL_MAX_NS);
}

/* So many wakes with nothing after them; returns for how many it stays. */
static unsigned in_vain(unsigned wakes)
{
	unsigned n = 0;

	while (wakes--) {
		wake();
		n += nothing() > 1;
		now += 100 * BUSY_POLL_NS;
	}
	return n;
}

static void gives_up_where_it_is_in_vain(void **state)
{
	(void)state;
	assert_int_equal(in_vain(BUSY_POLL_VAIN), BUSY_POLL_VAIN);
	assert_in_range(in_vain(2 * BUSY_POLL_SKIP_MAX), 5, 15);
	assert_in_range(in_vain(100 * BUSY_POLL_SKIP_MAX), 50, 110);
}

static void one_that_comes_is_enough(void **state)
{
	unsigned skipped = 0;

	(void)state;
	in_vain(10 * BUSY_POLL_SKIP_MAX);
	for (;; skipped++) {
		wake();
		now += LOOK_NS;
		if (busy_poll(&s, 0, now, polls))
			break;
	}
	assert_in_range(skipped, 1, BUSY_POLL_SKIP_MAX);
	now += LOOK_NS;
	assert_true(busy_poll(&s, 1, now, polls));
	assert_int_equal(in_vain(BUSY_POLL_VAIN), BUSY_POLL_VAIN);
}

/* What comes while others have the CPU would have come anyway. */
static void a_lost_cpu_is_in_vain(void **state)
{
	(void)state;
	for (unsigned i = 0; i <= BUSY_POLL_VAIN; i++) {
		wake();
		now += LOOK_NS;
		assert_true(busy_poll(&s, 0, now, polls));
		now += 2 * BUSY_POLL_NS;
		assert_true(busy_poll(&s, 1, now, polls));
		polls++; /* it ends otherwise */
		assert_int_equal(nothing(), 1);
	}
	wake();
	assert_int_equal(nothing(), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(looks_for_a_while, setup),
		cmocka_unit_test_setup(not_when_woken_for_something_else,
				       setup),
		cmocka_unit_test_setup(the_last_packet_counts, setup),
		cmocka_unit_test_setup(gives_way_to_a_program_that_polls,
				       setup),
		cmocka_unit_test_setup(packets_do_not_keep_it_for_ever, setup),
		cmocka_unit_test_setup(gives_up_where_it_is_in_vain, setup),
		cmocka_unit_test_setup(one_that_comes_is_enough, setup),
		cmocka_unit_test_setup(a_lost_cpu_is_in_vain, setup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

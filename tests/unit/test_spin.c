/*
 * test_spin.c - when a thread that polls yields
 */
#include "unit.h"

#include "engine/spin.h"

#define BEGIN_NS 1000000000000
#define POLL_NS 100

static struct spin s;
static uint64_t now;

static int setup(void **state)
{
	(void)state;
	s = (struct spin){ 0 };
	now = BEGIN_NS;
	return 0;
}

/* So many empty polls; returns how many yields, each of that length. */
static unsigned polls(unsigned n, uint64_t yield_ns)
{
	unsigned yields = 0;

	while (n--) {
		now += POLL_NS;
		if (!spin_poll(&s) || !spin_look(&s, now))
			continue;
		yields++;
		now += yield_ns;
		spin_yielded(&s, now);
	}
	return yields;
}

static void soon_learns_to_be_alone(void **state)
{
	(void)state;
	assert_int_equal(polls(1000, SPIN_HELPED_NS - 1), SPIN_ALONE);
	assert_false(spin_is_crowded(&s));
	assert_int_equal(polls(1000000, SPIN_HELPED_NS - 1), 0);
}

static void yields_where_it_helps(void **state)
{
	(void)state;
	assert_int_equal(polls(1000, SPIN_HELPED_NS), 1000 / SPIN_CROWDED);
	assert_true(spin_is_crowded(&s));
}

/* It has lost its CPU for a slice. */
static void learns_of_others(void **state)
{
	(void)state;
	polls(1000, 0);
	now += SPIN_GAP_NS;
	assert_in_range(polls(SPIN_LOOK + 2 * SPIN_CROWDED, SPIN_HELPED_NS), 3,
			SPIN_LOOK);
	/* Then they go. */
	assert_int_equal(polls(1000, 0), SPIN_ALONE);
	/* A tick of the timer, or another thread of ours, is no other. */
	now += SPIN_GAP_NS / 2;
	assert_int_equal(polls(1000, 0), 0);
}

/* Of yields one in a few helps, as when there are two processors. */
static void helps_now_and_then(void **state)
{
	unsigned i;

	(void)state;
	for (i = 0; i < 100; i++) {
		assert_int_equal(polls(SPIN_CROWDED * (SPIN_ALONE - 1), 0),
				 SPIN_ALONE - 1);
		assert_int_equal(polls(SPIN_CROWDED, SPIN_HELPED_NS), 1);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(soon_learns_to_be_alone, setup),
		cmocka_unit_test_setup(yields_where_it_helps, setup),
		cmocka_unit_test_setup(learns_of_others, setup),
		cmocka_unit_test_setup(helps_now_and_then, setup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * test_heat.c - when a link gets cold, and what keeps it hot
 */
#include "unit.h"

#include "engine/heat.h"

static struct link_ops ops;
static struct link l;

static int setup(void **state)
{
	(void)state;
	ops = (struct link_ops){ 0 };
	l = (struct link){ .ops = &ops };
	return 0;
}

/* Polls that find nothing, until it is cold; how many there were. */
static unsigned cool(void)
{
	unsigned n = 1;

	while (!heat_take(&l)) {
		assert_true(heat_is_hot(&l));
		assert_in_range(++n, 1, HEAT_POLLS);
	}
	assert_false(heat_is_hot(&l));
	return n;
}

static void gets_cold_once(void **state)
{
	(void)state;
	assert_false(heat_is_hot(&l));
	heat_add(&l);
	assert_int_equal(cool(), HEAT_POLLS);
	/* That was said. */
	assert_false(heat_take(&l));
	assert_false(heat_is_hot(&l));
}

static void packets_keep_it_hot(void **state)
{
	(void)state;
	heat_add(&l);
	for (int i = 1; i < 10 * HEAT_POLLS; i++) {
		assert_false(heat_take(&l));
		if (!(i % (HEAT_POLLS - 1)))
			heat_add(&l);
	}
	cool();
}

/* However seldom what they send is answered. */
static void users_keep_it_hot(void **state)
{
	(void)state;
	heat_use(&l, true);
	heat_use(&l, true);
	heat_use(&l, false);
	for (int i = 0; i < 10 * HEAT_POLLS; i++)
		assert_false(heat_take(&l));
	assert_true(heat_is_hot(&l));
	heat_use(&l, false);
	/* Whoever polls says so when it is cold. */
	assert_int_equal(cool(), HEAT_POLLS);
}

static bool nothing(struct link *link)
{
	(void)link;
	return false;
}

static void costs_nothing_to_ask(void **state)
{
	(void)state;
	ops.ready = nothing;
	for (int i = 0; i < 2 * HEAT_POLLS; i++) {
		assert_true(heat_is_hot(&l));
		assert_false(heat_take(&l));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(gets_cold_once, setup),
		cmocka_unit_test_setup(packets_keep_it_hot, setup),
		cmocka_unit_test_setup(users_keep_it_hot, setup),
		cmocka_unit_test_setup(costs_nothing_to_ask, setup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

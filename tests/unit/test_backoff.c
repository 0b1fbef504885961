/*
 * test_backoff.c - how many tries are left out after failures
 */
#include "unit.h"

#include "base/backoff.h"

static struct backoff b;

static int setup(void **state)
{
	(void)state;
	b = (struct backoff){ 0 };
	return 0;
}

/* How many tries are left out from here on. */
static unsigned skipped(void)
{
	unsigned n = 0;

	while (backoff_skips(&b))
		n++;
	return n;
}

static void twice_as_many_each_time(void **state)
{
	static const struct backoff_rule rule = { .first = 2, .most = 16 };
	static const unsigned want[] = { 2, 4, 8, 16, 16, 16 };

	(void)state;
	assert_int_equal(skipped(), 0);
	for (unsigned round = 0; round < 2; round++) {
		for (unsigned i = 0; i < sizeof(want) / sizeof(*want); i++) {
			backoff_fail(&b, &rule);
			assert_int_equal(skipped(), want[i]);
		}
		backoff_succeed(&b);
		assert_int_equal(skipped(), 0);
	}
}

static void the_first_failures_cost_nothing(void **state)
{
	static const struct backoff_rule rule = { .free = 3,
						  .first = 1,
						  .most = 1024 };

	(void)state;
	for (unsigned i = 0; i < 3; i++) {
		backoff_fail(&b, &rule);
		assert_int_equal(skipped(), 0);
	}
	for (unsigned n = 1; n <= 1024; n *= 2) {
		backoff_fail(&b, &rule);
		assert_int_equal(skipped(), n);
	}
	for (unsigned i = 0; i < 100; i++)
		backoff_fail(&b, &rule);
	assert_int_equal(skipped(), 1024);
}

static void a_success_allows_them_again(void **state)
{
	static const struct backoff_rule rule = { .free = 2,
						  .first = 2,
						  .most = 8 };

	(void)state;
	for (unsigned i = 0; i < 3; i++)
		backoff_fail(&b, &rule);
	assert_int_equal(skipped(), 2);
	backoff_succeed(&b);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(backoff_grow(&b, &rule), 0);
	assert_int_equal(backoff_grow(&b, &rule), 2);
	assert_int_equal(skipped(), 0); /* who asks how much does it itself */
}

static void one_spin_of_128_at_least(void **state)
{
	(void)state;
	for (unsigned of = 2; of <= 128; of *= 2) {
		backoff_spun(&b, false);
		assert_int_equal(skipped(), of - 1);
	}
	backoff_spun(&b, false);
	assert_int_equal(skipped(), 127);
	backoff_spun(&b, true);
	assert_int_equal(skipped(), 0);
	backoff_spun(&b, false);
	assert_int_equal(skipped(), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(twice_as_many_each_time, setup),
		cmocka_unit_test_setup(the_first_failures_cost_nothing, setup),
		cmocka_unit_test_setup(a_success_allows_them_again, setup),
		cmocka_unit_test_setup(one_spin_of_128_at_least, setup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

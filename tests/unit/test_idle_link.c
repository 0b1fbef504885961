/*
 * test_idle_link.c - when a link becomes idle, and what keeps it active
 */
#include "unit.h"

#include "engine/idle_link.h"

static struct link_ops ops;
static struct link l;

static int setup(void **state)
{
	(void)state;
	ops = (struct link_ops){ 0 };
	l = (struct link){ .ops = &ops };
	return 0;
}

/* Polls that find nothing, until it is idle; how many there were. */
static unsigned idle_polls(void)
{
	unsigned n = 1;

	while (!idle_link_empty_poll(&l)) {
		assert_true(idle_link_is_active(&l));
		assert_in_range(++n, 1, IDLE_LINK_POLLS);
	}
	assert_false(idle_link_is_active(&l));
	return n;
}

static void becomes_idle_once(void **state)
{
	(void)state;
	assert_false(idle_link_is_active(&l));
	idle_link_activity(&l);
	assert_int_equal(idle_polls(), IDLE_LINK_POLLS);
	/* That was said. */
	assert_false(idle_link_empty_poll(&l));
	assert_false(idle_link_is_active(&l));
}

static void packets_keep_it_active(void **state)
{
	(void)state;
	idle_link_activity(&l);
	for (int i = 1; i < 10 * IDLE_LINK_POLLS; i++) {
		assert_false(idle_link_empty_poll(&l));
		if (!(i % (IDLE_LINK_POLLS - 1)))
			idle_link_activity(&l);
	}
	idle_polls();
}

/* However seldom what they send is answered. */
static void users_keep_it_active(void **state)
{
	(void)state;
	idle_link_use(&l, true);
	idle_link_use(&l, true);
	idle_link_use(&l, false);
	for (int i = 0; i < 10 * IDLE_LINK_POLLS; i++)
		assert_false(idle_link_empty_poll(&l));
	assert_true(idle_link_is_active(&l));
	idle_link_use(&l, false);
	/* Whoever polls says so when it is idle. */
	assert_int_equal(idle_polls(), IDLE_LINK_POLLS);
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
	for (int i = 0; i < 2 * IDLE_LINK_POLLS; i++) {
		assert_true(idle_link_is_active(&l));
		assert_false(idle_link_empty_poll(&l));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(becomes_idle_once, setup),
		cmocka_unit_test_setup(packets_keep_it_active, setup),
		cmocka_unit_test_setup(users_keep_it_active, setup),
		cmocka_unit_test_setup(costs_nothing_to_ask, setup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

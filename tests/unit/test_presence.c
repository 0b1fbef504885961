/*
 * test_presence.c - when the thread steps back, and when it returns
 */
#include "unit.h"

#include "engine/presence.h"

#define STEP_NS 1000
#define BEGIN_NS 1000000000000

static struct presence p;
static uint64_t now;

static int setup(void **state)
{
	(void)state;
	presence_init(&p);
	now = BEGIN_NS;
	return 0;
}

/* Polls on and on for a time; true as soon as the thread is to step back. */
static bool spin(uint64_t ns, bool armed)
{
	const uint64_t end = now + ns;

	for (; now <= end; now += STEP_NS)
		if (presence_polled(&p, now, now + STEP_NS / 2, armed))
			return true;
	return false;
}

/* As spin(), but for how long it took. */
static uint64_t takeover(void)
{
	const uint64_t begin = now;

	assert_true(spin(2 * PRESENCE_TAKEOVER_MAX_NS, false));
	assert_true(presence_step_back(&p, now));
	return now - begin;
}

/* The thread steps forward so long after it has stepped back. */
static void forward_after(uint64_t ns)
{
	now += ns;
	assert_true(presence_step_forward(&p, now));
	now += PRESENCE_AWAY_NS + 2 * STEP_NS; /* whoever polls begins anew */
}

static void takes_over(void **state)
{
	(void)state;
	assert_false(presence_is_back(&p));
	assert_false(spin(PRESENCE_TAKEOVER_NS - STEP_NS, false));
	assert_true(spin(2 * STEP_NS, false));
	/* Only a suggestion: the thread does it. */
	assert_false(presence_is_back(&p));
	assert_true(presence_step_back(&p, now));
	assert_true(presence_is_back(&p));
	assert_false(presence_step_back(&p, now));
	assert_false(spin(PRESENCE_TAKEOVER_NS, false));
}

static void armed_takes_nothing_over(void **state)
{
	(void)state;
	assert_false(spin(10 * PRESENCE_TAKEOVER_MAX_NS, true));
	/* Another CQ, which is not armed, in the same program. */
	assert_true(spin(STEP_NS, false));
}

static void away_begins_anew(void **state)
{
	int i;

	(void)state;
	for (i = 0; i < 10; i++) {
		assert_false(spin(PRESENCE_TAKEOVER_NS * 3 / 4, false));
		now += PRESENCE_AWAY_NS + STEP_NS;
	}
	assert_true(spin(PRESENCE_TAKEOVER_NS + 2 * STEP_NS, false));
}

/* Time in the library is not time away, whatever it is spent on. */
static void posts_are_present(void **state)
{
	const uint64_t begin = now;

	(void)state;
	while (now < begin + PRESENCE_TAKEOVER_NS) {
		presence_note(&p, now, now + 10 * PRESENCE_AWAY_NS);
		now += 10 * PRESENCE_AWAY_NS;
	}
	assert_true(presence_polled(&p, now, now + STEP_NS, false));
}

/* Of two threads' times the later one counts, in whatever order they come. */
static void time_never_goes_back(void **state)
{
	(void)state;
	presence_note(&p, now, now + 10 * PRESENCE_AWAY_NS);
	presence_note(&p, now + STEP_NS, now + 2 * STEP_NS);
	now += 10 * PRESENCE_AWAY_NS;
	assert_int_equal(p.seen, now);
	assert_int_equal(p.since, BEGIN_NS);
}

static void arming_begins_anew(void **state)
{
	(void)state;
	assert_false(spin(PRESENCE_TAKEOVER_NS - STEP_NS, false));
	presence_sleeps(&p, now);
	assert_false(spin(PRESENCE_TAKEOVER_NS - STEP_NS, false));
	assert_true(spin(3 * STEP_NS, false));
}

static void idle_without_polls(void **state)
{
	(void)state;
	assert_true(presence_idle(&p, now));
	presence_polled(&p, now, now, false);
	assert_false(presence_idle(&p, now));
	assert_false(presence_idle(&p, now + PRESENCE_IDLE_NS - 1));
	assert_true(presence_idle(&p, now + PRESENCE_IDLE_NS));
	/* Posts do not receive. */
	presence_note(&p, now, now + PRESENCE_IDLE_NS);
	assert_true(presence_idle(&p, now + PRESENCE_IDLE_NS));
}

static void doubles_until_worth_it(void **state)
{
	uint64_t first = takeover(), last = first, next;
	int i;

	(void)state;
	assert_in_range(first, PRESENCE_TAKEOVER_NS,
			PRESENCE_TAKEOVER_NS + 2 * STEP_NS);
	for (i = 0; i < 8; i++) {
		forward_after(PRESENCE_WORTH_NS - 1);
		assert_false(presence_is_back(&p));
		next = takeover();
		if (2 * last <= PRESENCE_TAKEOVER_MAX_NS)
			assert_in_range(next, 2 * last - 4 * STEP_NS,
					2 * last + 4 * STEP_NS);
		last = next;
	}
	assert_in_range(last, PRESENCE_TAKEOVER_MAX_NS,
			PRESENCE_TAKEOVER_MAX_NS + 2 * STEP_NS);
	forward_after(PRESENCE_WORTH_NS);
	assert_int_equal(takeover(), first);
}

static void forward_once(void **state)
{
	(void)state;
	assert_false(presence_step_forward(&p, now));
	assert_true(presence_step_back(&p, now));
	assert_true(presence_step_forward(&p, now + 1));
	assert_false(presence_step_forward(&p, now + 2));
	assert_int_equal(p.takeover, 2 * PRESENCE_TAKEOVER_NS);
}

static void blocked_for_long(void **state)
{
	(void)state;
	assert_false(presence_blocked(&p, now));
	assert_false(presence_blocked(&p, now + PRESENCE_BLOCKED_NS));
	assert_true(presence_blocked(&p, now + PRESENCE_BLOCKED_NS + 1));
	presence_unblocked(&p);
	now += 10 * PRESENCE_BLOCKED_NS;
	assert_false(presence_blocked(&p, now));
	assert_false(presence_blocked(&p, now + PRESENCE_BLOCKED_NS));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(takes_over, setup),
		cmocka_unit_test_setup(armed_takes_nothing_over, setup),
		cmocka_unit_test_setup(away_begins_anew, setup),
		cmocka_unit_test_setup(posts_are_present, setup),
		cmocka_unit_test_setup(time_never_goes_back, setup),
		cmocka_unit_test_setup(arming_begins_anew, setup),
		cmocka_unit_test_setup(idle_without_polls, setup),
		cmocka_unit_test_setup(doubles_until_worth_it, setup),
		cmocka_unit_test_setup(forward_once, setup),
		cmocka_unit_test_setup(blocked_for_long, setup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * test_poller.c - when the thread steps back, and when it returns
 */
#include "unit.h"

#include "engine/poller.h"

#define BEGIN_NS 1000000000000
#define BETWEEN_NS 10000 /* two packets */

static struct poller p;
static uint64_t now;
static enum poller_cpu cpu; /* of the program, since it was last asked */

static int setup(void **state)
{
	(void)state;
	poller_init(&p);
	now = BEGIN_NS;
	cpu = POLLER_RAN;
	return 0;
}

/*
 * A packet comes and wakes the thread. polling: programs do nothing else, so
 * they take it if the thread leaves it. Returns whether the thread steps back.
 */
static bool packet(bool polling, bool *left)
{
	bool back = false;
	uint64_t ns;

	now += BETWEEN_NS + 1;
	if (polling)
		poller_polled(&p);
	ns = poller_probe(&p, cpu);
	*left = ns != 0;
	if (ns) {
		assert_int_equal(ns, POLLER_PROBE_NS);
		now += ns;
		if (polling) {
			poller_polled(&p);
			poller_took(&p);
		}
		/* Another one waits already, or not. */
		assert_int_equal(poller_probed(&p, now & 1, cpu), polling);
		back = poller_taken_over(&p);
	}
	if (back)
		assert_true(poller_step_back(&p, now));
	return back;
}

/* As a program that spins; returns how many packets it took. */
static unsigned takeover(void)
{
	unsigned n = 1;
	bool left;

	while (!packet(true, &left)) {
		assert_in_range(n, 1, 10 * POLLER_SKIP_MAX);
		n++;
	}
	return n;
}

/* The next tick, at its time; returns how long it was until then. */
static uint64_t tick(bool *forward)
{
	uint64_t at = poller_tick_at(&p), after = at - now;

	assert_in_range(at, now, now + POLLER_TICK_CROWDED_NS);
	now = at;
	*forward = poller_tick(&p, now, cpu);
	if (*forward)
		assert_true(poller_step_forward(&p, now));
	return after;
}

/* Programs do not poll any more. */
static void forward(void)
{
	bool is;

	poller_polled(&p);
	tick(&is);
	assert_false(is);
	tick(&is);
	assert_true(is);
	assert_false(poller_is_back(&p));
}

static void takes_over(void **state)
{
	bool left;
	int i;

	(void)state;
	assert_false(poller_is_back(&p));
	assert_true(poller_tick_at(&p) == UINT64_MAX);
	for (i = 1; i < POLLER_PROBES; i++) {
		assert_false(packet(true, &left));
		assert_true(left);
	}
	assert_true(packet(true, &left));
	assert_true(poller_is_back(&p));
	assert_false(poller_step_back(&p, now));
}

/* A poll that takes many large packets ends when the next probe is over. */
static void a_long_poll_is_one(void **state)
{
	int i;

	(void)state;
	poller_polled(&p);
	poller_inside(&p, true);
	for (i = 0; i < POLLER_PROBES; i++) {
		assert_false(poller_taken_over(&p));
		assert_int_equal(poller_probe(&p, cpu), POLLER_PROBE_NS);
		assert_true(poller_probed(&p, false, cpu));
	}
	assert_true(poller_taken_over(&p));
}

/* However long a program, or the thread, has waited for its CPU. */
static void time_does_not_matter(void **state)
{
	bool left;
	int i;

	(void)state;
	for (i = 1; i < POLLER_PROBES; i++) {
		packet(true, &left);
		now += 1000000000;
	}
	assert_true(packet(true, &left));
}

/* A program that spins on its memory gets each packet from the thread. */
static void who_does_not_poll_takes_nothing_over(void **state)
{
	bool left;
	int i;

	(void)state;
	for (i = 0; i < 1000; i++) {
		assert_false(packet(false, &left));
		assert_false(left);
	}
}

/* Others have the CPU for a while: what it did when it ran holds. */
static void waits_for_its_cpu(void **state)
{
	bool is, left;
	int i;

	(void)state;
	packet(true, &left);
	cpu = POLLER_WAITS;
	for (i = 0; i < 10; i++) {
		/* Neither taken nor late. */
		assert_int_equal(poller_probe(&p, cpu), POLLER_PROBE_NS);
		assert_false(poller_probed(&p, false, cpu));
		assert_false(poller_taken_over(&p));
	}
	while (!packet(true, &left))
		assert_true(left);
	for (i = 0; i < 100; i++) {
		tick(&is);
		assert_false(is);
	}
	cpu = POLLER_RAN;
	tick(&is);
	assert_true(is);
	/* Nor is it known to poll any more. */
	cpu = POLLER_WAITS;
	assert_int_equal(poller_probe(&p, cpu), 0);
}

/* It sleeps, but in no call of ours: it may take over again as soon as before. */
static void sleeps_elsewhere(void **state)
{
	unsigned first = takeover();
	bool is;

	(void)state;
	poller_polled(&p);
	tick(&is);
	assert_false(is);
	cpu = POLLER_SLEEPS;
	tick(&is);
	assert_true(is);
	cpu = POLLER_RAN;
	assert_int_equal(takeover(), first);
	/* What is left to it is late, but it is not tried again before it polls. */
	forward();
	poller_polled(&p);
	cpu = POLLER_SLEEPS;
	while (!poller_probe(&p, cpu))
		poller_polled(&p);
	assert_false(poller_probed(&p, false, cpu));
	assert_int_equal(poller_probe(&p, cpu), 0);
}

/*
 * It has polled, but takes no packet: each that is left to it is late, so that
 * is tried ever more seldom.
 */
static void fails_ever_more_seldom(void **state)
{
	unsigned last = 0, n, i;

	(void)state;
	for (i = 0; i < 14; i++) {
		for (n = 1;; n++) {
			poller_polled(&p);
			if (poller_probe(&p, cpu))
				break;
		}
		assert_false(poller_probed(&p, false, cpu));
		assert_false(poller_taken_over(&p));
		if (i < 2)
			assert_int_equal(n, i + 1);
		else
			assert_int_equal(n - 1,
					 2 * (last - 1) < POLLER_SKIP_MAX ?
						 2 * (last - 1) :
						 POLLER_SKIP_MAX);
		last = n;
	}
	assert_int_equal(last, POLLER_SKIP_MAX + 1);
	/* When it does spin, the thread steps back, after one such time. */
	assert_in_range(takeover(), POLLER_PROBES,
			POLLER_SKIP_MAX + POLLER_PROBES);
}

/* Two of a kind, then a packet that only the thread received. */
static void successes_are_in_a_row(void **state)
{
	bool left;
	int i;

	(void)state;
	for (i = 0; i < 10; i++) {
		assert_false(packet(true, &left));
		assert_true(left);
		assert_false(packet(true, &left));
		assert_false(packet(false, &left));
		assert_false(left);
	}
}

static void ticks_seldom_while_they_poll(void **state)
{
	uint64_t after, last = POLLER_TICK_MIN_NS / 2;
	bool is;
	int i;

	(void)state;
	takeover();
	for (i = 0; i < 20; i++) {
		poller_polled(&p);
		after = tick(&is);
		assert_false(is);
		assert_int_equal(after, 2 * last > POLLER_TICK_MAX_NS ?
						POLLER_TICK_MAX_NS :
						2 * last);
		last = after;
	}
	tick(&is);
	assert_true(is);
}

static void ticks_more_seldom_where_they_share_a_cpu(void **state)
{
	bool is;
	int i;

	(void)state;
	takeover();
	cpu = POLLER_SHARES;
	for (i = 0; i < 20; i++) {
		poller_polled(&p);
		tick(&is);
		assert_false(is);
	}
	cpu = POLLER_WAITS;
	assert_int_equal(tick(&is), POLLER_TICK_CROWDED_NS);
	assert_false(is);
	assert_int_equal(tick(&is), POLLER_TICK_CROWDED_NS);
	assert_false(is);
	/* It has a CPU of its own again. */
	cpu = POLLER_RAN;
	poller_polled(&p);
	tick(&is);
	poller_polled(&p);
	assert_int_equal(tick(&is), POLLER_TICK_MAX_NS);
	/* It has run and not polled: that it shares a CPU is no reason. */
	cpu = POLLER_SHARES;
	tick(&is);
	assert_true(is);
}

static void costs_more_until_worth_it(void **state)
{
	unsigned first = takeover(), last = first, next;
	bool is;
	int i;

	(void)state;
	for (i = 0; i < 12; i++) {
		forward();
		next = takeover();
		assert_in_range(next, last, 2 * last + POLLER_PROBES);
		last = next;
	}
	assert_in_range(last, POLLER_SKIP_MAX, POLLER_SKIP_MAX + POLLER_PROBES);
	while (now < p.since + POLLER_WORTH_NS) {
		poller_polled(&p);
		tick(&is);
	}
	forward();
	assert_int_equal(takeover(), first);
}

/* A program that polls now and then and looks at its memory in between. */
static void late_while_they_poll(void **state)
{
	bool is;

	(void)state;
	takeover();
	poller_polled(&p);
	tick(&is);
	assert_false(is);
	assert_true(poller_is_late(&p, POLLER_RAN));
	assert_true(poller_is_late(&p, POLLER_SHARES));
	/* It could not. */
	assert_false(poller_is_late(&p, POLLER_WAITS));
	poller_inside(&p, true);
	assert_false(poller_is_late(&p, POLLER_RAN));
	poller_inside(&p, false);
	assert_true(poller_is_late(&p, POLLER_RAN));
	poller_took(&p);
	assert_false(poller_is_late(&p, POLLER_RAN));
}

/* To send takes long, and then it polls. */
static void who_sends_is_waited_for(void **state)
{
	bool is;

	(void)state;
	takeover();
	poller_polled(&p);
	tick(&is);
	assert_false(poller_has_sent(&p));
	poller_sends(&p, true);
	assert_true(poller_has_sent(&p));
	assert_true(poller_has_sent(&p)); /* still does */
	poller_sends(&p, false);
	assert_false(poller_has_sent(&p));
	poller_sends(&p, true);
	poller_sends(&p, false);
	assert_true(poller_has_sent(&p));
	assert_false(poller_has_sent(&p));
	poller_sends(&p, true);
	poller_took(&p);
	assert_false(poller_has_sent(&p)); /* nothing to wait for */
}

/* Short, but programs have taken much in that time: it is tried again at once. */
static void much_is_worth_it(void **state)
{
	unsigned first = takeover();
	int i;

	(void)state;
	for (i = 0; i < 5; i++) {
		for (int k = 0; k < POLLER_WORTH; k++)
			poller_took(&p);
		forward();
		assert_int_equal(takeover(), first);
	}
}

static void forward_once(void **state)
{
	(void)state;
	assert_false(poller_step_forward(&p, now));
	assert_true(poller_step_back(&p, now));
	assert_true(poller_step_forward(&p, now + 1));
	assert_false(poller_step_forward(&p, now + 2));
}

/* A program sleeps, and the thread rests until that wakes. */
static void rests(void **state)
{
	(void)state;
	assert_true(poller_sleep(&p, 1));
	poller_rest(&p, now);
	assert_true(poller_is_back(&p) && poller_rests(&p));
	assert_true(poller_tick_at(&p) == UINT64_MAX);
	now += 10 * POLLER_OFTEN_NS;
	assert_int_equal(poller_wake(&p, now, true), POLLER_FORWARD);
	assert_true(poller_step_forward(&p, now));
	assert_false(poller_rests(&p));
	/* That says nothing of programs that poll. */
	assert_int_equal(takeover(), POLLER_PROBES);
}

/* One that sleeps and wakes often lets the thread tick, until it sleeps on. */
static void rests_when_nothing_happens(void **state)
{
	bool is;
	int i;

	(void)state;
	poller_sleep(&p, 1);
	poller_rest(&p, now);
	assert_int_equal(poller_wake(&p, now, true), POLLER_FORWARD);
	poller_step_forward(&p, now);
	poller_sleep(&p, 1);
	poller_rest(&p, now);
	now += POLLER_OFTEN_NS - 1;
	assert_int_equal(poller_wake(&p, now, true), POLLER_TICKS);
	for (i = 0; i < 10; i++) {
		poller_sleep(&p, 1);
		assert_int_equal(poller_wake(&p, now, true), POLLER_NOTHING);
		poller_sleep(&p, 1);
		tick(&is);
		assert_false(is);
		assert_true(poller_is_back(&p) && !poller_rests(&p));
		assert_int_equal(poller_wake(&p, now, true), POLLER_NOTHING);
	}
	poller_sleep(&p, 1);
	tick(&is);
	tick(&is);
	assert_false(is);
	assert_true(poller_rests(&p));
	now += POLLER_OFTEN_NS;
	assert_int_equal(poller_wake(&p, now, true), POLLER_FORWARD);
	poller_step_forward(&p, now);
	poller_sleep(&p, 1);
	poller_rest(&p, now);
	assert_int_equal(poller_wake(&p, now, false), POLLER_FORWARD);
}

/* A program that polls some times before it arms its CQ, and sleeps in poll(2)
 * then, is not tried: what wakes it comes from the thread. */
static void who_arms_is_not_tried(void **state)
{
	bool left;
	int i;

	(void)state;
	for (i = 0; i < 100; i++) {
		poller_polled(&p);
		poller_polled(&p);
		poller_armed(&p);
		assert_false(poller_asks(&p));
		assert_false(packet(false, &left));
		assert_false(left);
	}
	/* Others may poll meanwhile. */
	poller_armed(&p);
	assert_false(packet(true, &left));
	assert_true(left);
}

/* What comes meanwhile on another link is the thread's. */
static void who_sleeps_is_not_tried(void **state)
{
	bool left;
	int i;

	(void)state;
	for (i = 0; i < 100; i++) {
		assert_true(poller_sleep(&p, 1));
		assert_false(poller_sleep(&p, 2));
		assert_false(packet(true, &left));
		assert_false(left);
		assert_int_equal(poller_wake(&p, now, true), POLLER_NOTHING);
	}
}

static void blocked_for_long(void **state)
{
	int round, i;

	(void)state;
	for (round = 0; round < 2; round++) {
		for (i = 0; i < POLLER_BLOCKED; i++)
			assert_false(poller_blocked(&p));
		assert_true(poller_blocked(&p));
		poller_unblocked(&p);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(takes_over, setup),
		cmocka_unit_test_setup(a_long_poll_is_one, setup),
		cmocka_unit_test_setup(time_does_not_matter, setup),
		cmocka_unit_test_setup(who_does_not_poll_takes_nothing_over,
				       setup),
		cmocka_unit_test_setup(waits_for_its_cpu, setup),
		cmocka_unit_test_setup(sleeps_elsewhere, setup),
		cmocka_unit_test_setup(fails_ever_more_seldom, setup),
		cmocka_unit_test_setup(successes_are_in_a_row, setup),
		cmocka_unit_test_setup(ticks_seldom_while_they_poll, setup),
		cmocka_unit_test_setup(ticks_more_seldom_where_they_share_a_cpu,
				       setup),
		cmocka_unit_test_setup(costs_more_until_worth_it, setup),
		cmocka_unit_test_setup(late_while_they_poll, setup),
		cmocka_unit_test_setup(who_sends_is_waited_for, setup),
		cmocka_unit_test_setup(much_is_worth_it, setup),
		cmocka_unit_test_setup(forward_once, setup),
		cmocka_unit_test_setup(rests, setup),
		cmocka_unit_test_setup(rests_when_nothing_happens, setup),
		cmocka_unit_test_setup(who_arms_is_not_tried, setup),
		cmocka_unit_test_setup(who_sleeps_is_not_tried, setup),
		cmocka_unit_test_setup(blocked_for_long, setup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

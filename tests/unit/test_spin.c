/*
 * test_spin.c - when a thread that polls yields, and when it naps
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
		if (!spin_poll(&s) || spin_look(&s, now) != SPIN_YIELD)
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

/* How many of so many empty polls let others have the CPU, by either way. */
static unsigned lets_others(unsigned n)
{
	unsigned yes = 0;

	while (n--) {
		now += POLL_NS;
		yes += spin_poll(&s) && spin_look(&s, now) != SPIN_ON;
	}
	return yes;
}

/*
 * It arms a CQ, sleeps, and polls a few times when it wakes: it neither yields
 * nor naps, however long it has slept and whoever wants its CPU. If it spins all
 * the same it does as others do.
 */
static void leaves_who_sleeps_alone(void **state)
{
	(void)state;
	assert_true(spin_is_crowded(&s));
	for (unsigned i = 0; i < 1000; i++) {
		spin_arm(&s);
		now += 10 * SPIN_LONG_NS;
		assert_int_equal(lets_others(SPIN_ARMED / 2), 0);
	}
	spin_arm(&s);
	assert_in_range(lets_others(SPIN_ARMED + 10 * SPIN_CROWDED), 10, 11);
	/* Who has found that it is alone does not forget it by sleeping. */
	polls(1000, 0);
	assert_false(spin_is_crowded(&s));
	spin_arm(&s);
	now += 10 * SPIN_GAP_NS;
	assert_int_equal(lets_others(1000), 0);
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

/* What a yield and a nap bring to a thread that polls. */
struct world {
	uint64_t yield_ns, nap_ns;
	int yield_packets, nap_packets;
};

/* How often it does which of them in so many seconds. */
static unsigned done[SPIN_ON];

static void lives(const struct world *w, uint64_t seconds)
{
	const uint64_t end = now + seconds * 1000000000;
	int n = 0;

	done[SPIN_YIELD] = done[SPIN_NAP] = 0;
	while (now < end) {
		now += POLL_NS;
		if (n) {
			spin_took(&s, n);
			n = 0;
			continue;
		}
		if (!spin_poll(&s))
			continue;
		switch (spin_look(&s, now)) {
		case SPIN_ON:
			break;
		case SPIN_YIELD:
			done[SPIN_YIELD]++;
			now += w->yield_ns;
			spin_yielded(&s, now);
			n = w->yield_packets;
			break;
		case SPIN_NAP:
			done[SPIN_NAP]++;
			now += w->nap_ns;
			spin_napped(&s, now);
			spin_took(&s, w->nap_packets);
			break;
		}
	}
}

/* Of the time, the share that yields have taken, in percent. */
static unsigned yields_share(const struct world *w, uint64_t seconds)
{
	return (unsigned)(done[SPIN_YIELD] * w->yield_ns /
			  (seconds * 10000000));
}

/* Somebody who computes has the CPU for 3 ms each time. */
static void naps_beside_who_computes(void **state)
{
	const struct world w = { .yield_ns = 3000000,
				 .yield_packets = 1,
				 .nap_ns = 30000,
				 .nap_packets = 1 };

	(void)state;
	lives(&w, 1); /* it learns */
	lives(&w, 10);
	assert_in_range(yields_share(&w, 10), 1, 10); /* it looks again */
	assert_true(done[SPIN_NAP] > 10000000000 / w.nap_ns * 8 / 10);
}

/* A peer on the same CPU does in a long time what it has to. */
static void leaves_the_cpu_to_its_peer(void **state)
{
	const struct world w = { .yield_ns = 1000000,
				 .yield_packets = 100,
				 .nap_ns = 30000,
				 .nap_packets = 1 };

	(void)state;
	lives(&w, 1);
	lives(&w, 10);
	assert_in_range(yields_share(&w, 10), 90, 100);
	assert_true(done[SPIN_NAP] > 0);
}

/* Packets are few in either way, and come earlier in this one. */
static void naps_where_packets_are_few(void **state)
{
	const struct world w = { .yield_ns = 3000000, .nap_ns = 100000 };

	(void)state;
	lives(&w, 1);
	lives(&w, 10);
	assert_in_range(yields_share(&w, 10), 1, 10);
}

/* Yields are short, but bring nothing, unlike naps. */
static void yields_in_vain(void **state)
{
	const struct world w = { .yield_ns = 2 * SPIN_HELPED_NS,
				 .nap_ns = 50000,
				 .nap_packets = 1 };

	(void)state;
	lives(&w, 1);
	lives(&w, 10);
	assert_in_range(yields_share(&w, 10), 1, 10);
}

/* Neither is tried where nobody else wants the CPU, nor where yields help. */
static void nothing_to_try(void **state)
{
	const struct world alone = { .yield_ns = 0 };
	const struct world swift = { .yield_ns = SPIN_HELPED_NS,
				     .yield_packets = 1 };

	(void)state;
	lives(&swift, 3);
	assert_int_equal(done[SPIN_NAP], 0);
	lives(&alone, 3);
	assert_int_equal(done[SPIN_NAP], 0);
	assert_int_equal(done[SPIN_YIELD], SPIN_ALONE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(soon_learns_to_be_alone, setup),
		cmocka_unit_test_setup(yields_where_it_helps, setup),
		cmocka_unit_test_setup(learns_of_others, setup),
		cmocka_unit_test_setup(leaves_who_sleeps_alone, setup),
		cmocka_unit_test_setup(helps_now_and_then, setup),
		cmocka_unit_test_setup(naps_beside_who_computes, setup),
		cmocka_unit_test_setup(leaves_the_cpu_to_its_peer, setup),
		cmocka_unit_test_setup(naps_where_packets_are_few, setup),
		cmocka_unit_test_setup(yields_in_vain, setup),
		cmocka_unit_test_setup(nothing_to_try, setup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

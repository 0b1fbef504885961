/*
 * poller.c - what poller.h says, but for what every poll does
 */
#include "poller.h"

static uint32_t count_get(const _Atomic uint32_t *what)
{
	return atomic_load_explicit(what, memory_order_relaxed);
}

static void count_set(_Atomic uint32_t *what, uint32_t n)
{
	atomic_store_explicit(what, n, memory_order_relaxed);
}

void poller_init(struct poller *p)
{
	*p = (struct poller){ 0 };
}

/* A probe, or a time that the thread was back for, was no success. */
static void probe_failed(struct poller *p)
{
	static const struct backoff_rule rule = { .first = 1,
						  .most = POLLER_SKIP_MAX };

	p->good = 0;
	backoff_fail(&p->backoff, &rule);
}

static bool is_inside(const struct poller *p)
{
	return atomic_load_explicit(&p->inside, memory_order_relaxed);
}

static bool polls_ceased(const struct poller *p)
{
	const uint32_t polls = count_get(&p->polls);

	return (polls == p->seen || polls == count_get(&p->armed)) &&
	       !is_inside(p);
}

bool poller_asks(const struct poller *p)
{
	return p->polling && polls_ceased(p);
}

/* Whether any program has polled since this was last asked, or does so now, or
 * would if it ran. */
static bool programs_poll(struct poller *p, enum poller_cpu cpu)
{
	if (!polls_ceased(p))
		p->polling = true;
	else if (cpu != POLLER_WAITS)
		p->polling = false;
	p->seen = count_get(&p->polls);
	return p->polling;
}

uint64_t poller_probe(struct poller *p, enum poller_cpu cpu)
{
	/* One that sleeps leaves to the thread what it does not receive. */
	if (!programs_poll(p, cpu) || atomic_load(&p->asleep)) {
		p->good = 0;
		return 0;
	}
	if (backoff_skips(&p->backoff))
		return 0;
	p->seen_took = count_get(&p->took);
	p->seen_sends = count_get(&p->sends);
	return POLLER_PROBE_NS;
}

bool poller_probed(struct poller *p, bool none, enum poller_cpu cpu)
{
	/* A poll that has not ended by now has found much. */
	bool took = count_get(&p->took) != p->seen_took || is_inside(p);

	programs_poll(p, cpu);
	/* What waits now may have come later. */
	if (took)
		p->good++;
	else if (!none && (cpu == POLLER_RAN || cpu == POLLER_SHARES))
		probe_failed(p);
	return took || none;
}

bool poller_has_sent(struct poller *p)
{
	const uint32_t sends = count_get(&p->sends);
	const bool sent =
		sends != p->seen_sends ||
		atomic_load_explicit(&p->sending, memory_order_relaxed);

	p->seen_sends = sends;
	return sent && count_get(&p->took) == p->seen_took && !is_inside(p);
}

bool poller_is_late(const struct poller *p, enum poller_cpu cpu)
{
	return count_get(&p->took) == p->seen_took && !is_inside(p) &&
	       (cpu == POLLER_RAN || cpu == POLLER_SHARES);
}

bool poller_taken_over(const struct poller *p)
{
	return p->good >= POLLER_PROBES;
}

bool poller_step_back(struct poller *p, uint64_t now)
{
	if (poller_is_back(p))
		return false;
	atomic_store(&p->since, now);
	count_set(&p->back_took, count_get(&p->took));
	atomic_store(&p->tick, POLLER_TICK_MIN_NS);
	atomic_store(&p->tick_at, now + POLLER_TICK_MIN_NS);
	atomic_store(&p->back, true);
	return true;
}

bool poller_step_forward(struct poller *p, uint64_t now)
{
	uint64_t since = atomic_load(&p->since);

	if (!poller_is_back(p))
		return false;
	if (since && now - since < POLLER_WORTH_NS &&
	    count_get(&p->took) - count_get(&p->back_took) < POLLER_WORTH) {
		probe_failed(p);
	} else if (since) {
		backoff_succeed(&p->backoff);
	}
	atomic_store(&p->rests, false);
	atomic_store(&p->back, false);
	return true;
}

uint64_t poller_tick_at(const struct poller *p)
{
	return !poller_is_back(p) || poller_rests(p) ? UINT64_MAX :
						       atomic_load(&p->tick_at);
}

/*
 * A program that wakes either sees that the thread rests, or the thread sees
 * that it has woken.
 */
static bool rest_if_asleep(struct poller *p)
{
	if (!atomic_load(&p->asleep))
		return false;
	atomic_store(&p->rests, true);
	return atomic_load(&p->asleep) || !atomic_exchange(&p->rests, false);
}

bool poller_tick(struct poller *p, uint64_t now, enum poller_cpu cpu)
{
	const bool crowded = cpu == POLLER_SHARES || cpu == POLLER_WAITS;
	const uint64_t most =
		crowded ? POLLER_TICK_CROWDED_NS : POLLER_TICK_MAX_NS;
	uint64_t next;

	if (!programs_poll(p, cpu)) {
		p->good = 0;
		if (rest_if_asleep(p))
			return false;
		/* Or one has just woken. */
		if (!programs_poll(p, cpu)) {
			if (cpu == POLLER_SLEEPS)
				atomic_store(&p->since, 0);
			return true;
		}
	}
	next = 2 * atomic_load(&p->tick);
	next = next > most ? most : next;
	p->seen_took = count_get(&p->took);
	p->seen_sends = count_get(&p->sends);
	atomic_store(&p->tick, next);
	atomic_store(&p->tick_at, now + next);
	return false;
}

bool poller_sleep(struct poller *p, uintptr_t who)
{
	uintptr_t nobody = 0;

	return atomic_compare_exchange_strong(&p->asleep, &nobody, who);
}

void poller_rest(struct poller *p, uint64_t now)
{
	if (!poller_step_back(p, now))
		return;
	atomic_store(&p->since, 0);
	atomic_store(&p->rests, true);
}

enum poller_then poller_wake(struct poller *p, uint64_t now, bool alone)
{
	uint64_t before;

	atomic_store(&p->asleep, 0);
	poller_polled(p);
	if (!atomic_load(&p->rests) || !atomic_exchange(&p->rests, false))
		return POLLER_NOTHING;
	before = atomic_exchange(&p->woke, now);
	if (!alone || now - before >= POLLER_OFTEN_NS)
		return POLLER_FORWARD;
	atomic_store(&p->tick_at, now + POLLER_TICK_MIN_NS);
	return POLLER_TICKS;
}

bool poller_blocked(struct poller *p)
{
	uint32_t n = count_get(&p->blocked) + 1;

	count_set(&p->blocked, n);
	return n > POLLER_BLOCKED;
}

/*
 * presence.c - what presence.h says, but for what every poll does
 */
#include "presence.h"

static uint32_t get(const _Atomic uint32_t *what)
{
	return atomic_load_explicit(what, memory_order_relaxed);
}

static void put(_Atomic uint32_t *what, uint32_t n)
{
	atomic_store_explicit(what, n, memory_order_relaxed);
}

void presence_init(struct presence *p)
{
	*p = (struct presence){ 0 };
}

/* A probe, or a time that the thread was back for, was no success. */
static void failed(struct presence *p)
{
	uint32_t n = get(&p->interval);

	p->good = 0;
	n = !n ? 1 : n >= PRESENCE_SKIP_MAX / 2 ? PRESENCE_SKIP_MAX : 2 * n;
	put(&p->interval, n);
	put(&p->skip, n);
}

static bool inside(const struct presence *p)
{
	return atomic_load_explicit(&p->inside, memory_order_relaxed);
}

/* Whether any program has polled since this was last asked, or does so now. */
static bool polled(struct presence *p)
{
	uint32_t polls = get(&p->polls);
	bool changed = polls != p->seen || inside(p);

	p->seen = polls;
	return changed;
}

uint64_t presence_probe(struct presence *p)
{
	uint32_t skip = get(&p->skip);

	/* One that sleeps leaves to the thread what it does not receive. */
	if (!polled(p) || atomic_load(&p->asleep)) {
		p->good = 0;
		return 0;
	}
	if (skip) {
		put(&p->skip, skip - 1);
		return 0;
	}
	p->seen_took = get(&p->took);
	return PRESENCE_PROBE_NS;
}

bool presence_probed(struct presence *p, bool none)
{
	/* A poll that has not ended by now has found much. */
	bool took = get(&p->took) != p->seen_took || inside(p);

	p->seen = get(&p->polls);
	/* What waits now may have come later. */
	if (took)
		p->good++;
	else if (!none)
		failed(p);
	return took || none;
}

bool presence_taken_over(const struct presence *p)
{
	return p->good >= PRESENCE_PROBES;
}

bool presence_step_back(struct presence *p, uint64_t now)
{
	if (presence_is_back(p))
		return false;
	p->since = now;
	p->quiet = 0;
	p->tick = PRESENCE_TICK_MIN_NS;
	atomic_store(&p->tick_at, now + p->tick);
	atomic_store(&p->back, true);
	return true;
}

bool presence_step_forward(struct presence *p, uint64_t now)
{
	if (!presence_is_back(p))
		return false;
	if (p->since && now - p->since < PRESENCE_WORTH_NS) {
		failed(p);
	} else if (p->since) {
		put(&p->interval, 0);
		put(&p->skip, 0);
	}
	atomic_store(&p->rests, false);
	atomic_store(&p->back, false);
	return true;
}

uint64_t presence_tick_at(const struct presence *p)
{
	return !presence_is_back(p) || presence_rests(p) ?
		       UINT64_MAX :
		       atomic_load(&p->tick_at);
}

/*
 * A program that wakes either sees that the thread rests, or the thread sees
 * that it has woken.
 */
static bool rest(struct presence *p)
{
	if (!atomic_load(&p->asleep))
		return false;
	atomic_store(&p->rests, true);
	return atomic_load(&p->asleep) || !atomic_exchange(&p->rests, false);
}

/* None has polled. True: step forward. */
static bool silence(struct presence *p, bool ran)
{
	if (polled(p))
		return false; /* one has just woken */
	p->tick = PRESENCE_TICK_MIN_NS / 2;
	if (!ran && ++p->quiet < PRESENCE_QUIET)
		return false;
	if (!ran)
		p->since = 0;
	return true;
}

bool presence_tick(struct presence *p, uint64_t now, bool ran)
{
	if (polled(p)) {
		p->quiet = 0;
	} else {
		p->good = 0;
		if (rest(p))
			return false;
		if (silence(p, ran))
			return true;
	}
	p->tick = p->tick * 2 > PRESENCE_TICK_MAX_NS ? PRESENCE_TICK_MAX_NS :
						       p->tick * 2;
	atomic_store(&p->tick_at, now + p->tick);
	return false;
}

bool presence_sleep(struct presence *p, uintptr_t who)
{
	uintptr_t nobody = 0;

	return atomic_compare_exchange_strong(&p->asleep, &nobody, who);
}

void presence_rest(struct presence *p, uint64_t now)
{
	if (!presence_step_back(p, now))
		return;
	p->since = 0;
	atomic_store(&p->rests, true);
}

enum presence_then presence_wake(struct presence *p, uint64_t now, bool alone)
{
	uint64_t before;

	atomic_store(&p->asleep, 0);
	presence_polled(p);
	if (!atomic_load(&p->rests) || !atomic_exchange(&p->rests, false))
		return PRESENCE_NOTHING;
	before = atomic_exchange(&p->woke, now);
	if (!alone || now - before >= PRESENCE_OFTEN_NS)
		return PRESENCE_FORWARD;
	atomic_store(&p->tick_at, now + PRESENCE_TICK_MIN_NS);
	return PRESENCE_TICKS;
}

bool presence_blocked(struct presence *p)
{
	uint32_t n = get(&p->blocked) + 1;

	put(&p->blocked, n);
	return n > PRESENCE_BLOCKED;
}

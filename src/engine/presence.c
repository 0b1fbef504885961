/*
 * presence.c - what presence.h says, but for what every poll does
 */
#include "presence.h"

static uint64_t load(const _Atomic uint64_t *what)
{
	return atomic_load_explicit(what, memory_order_relaxed);
}

static void store(_Atomic uint64_t *what, uint64_t ns)
{
	atomic_store_explicit(what, ns, memory_order_relaxed);
}

void presence_init(struct presence *p)
{
	*p = (struct presence){ .takeover = PRESENCE_TAKEOVER_NS };
}

void presence_sleeps(struct presence *p, uint64_t now)
{
	store(&p->since, now);
}

bool presence_idle(const struct presence *p, uint64_t now)
{
	return now >= PRESENCE_IDLE_NS + atomic_load(&p->polled);
}

bool presence_step_back(struct presence *p, uint64_t now)
{
	if (presence_is_back(p))
		return false;
	atomic_store(&p->back, now);
	return true;
}

bool presence_step_forward(struct presence *p, uint64_t now)
{
	uint64_t since = atomic_load(&p->back), next = load(&p->takeover) * 2;

	if (!since)
		return false;
	/* It was not worth it: be slower to believe it next time. */
	if (now - since >= PRESENCE_WORTH_NS)
		next = PRESENCE_TAKEOVER_NS;
	else if (next > PRESENCE_TAKEOVER_MAX_NS)
		next = PRESENCE_TAKEOVER_MAX_NS;
	store(&p->takeover, next);
	atomic_store(&p->back, 0);
	return true;
}

bool presence_blocked(struct presence *p, uint64_t now)
{
	uint64_t since = load(&p->blocked);

	if (since)
		return now > since + PRESENCE_BLOCKED_NS;
	store(&p->blocked, now);
	return false;
}

/*
 * progress.c - receive, run what is due, and who of all threads does so
 *
 * Programs that poll an empty CQ and the thread do the same. They do not wait
 * for each other, because the receive side of a link is taken with trylock,
 * unless one of them has it for long.
 */
#include "internal.h"

#include "base/sys.h"

#include <errno.h>

#define RX_BUDGET 32

int progress(struct engine *e, uint64_t now, bool *busy)
{
	bool drained = true;
	int n = 0, r;
	unsigned i;

	*busy = false;
	for (i = 0; i < e->nlinks; i++) {
		r = rx_poll(e, e->link[i], RX_BUDGET, now);
		drained &= r >= 0 && r < RX_BUDGET;
		*busy |= r == -EBUSY;
		if (r > 0)
			n += r;
	}
	if (!*busy)
		presence_unblocked(&e->presence);
	if (timers_due(e, now))
		timers_run(e, now);
	if (drained &&
	    atomic_load_explicit(&e->unsettled, memory_order_relaxed))
		e->ops->settle(e, now);
	if (e->cfg->explain)
		drops_explain_at(e, now);
	return n;
}

void engine_quiesce(struct engine *e)
{
	for (unsigned i = 0; i < e->nlinks; i++)
		e->link[i]->ops->wait(e->link[i]);
}

static void step_back(struct engine *e)
{
	pthread_mutex_lock(&e->thread_lock);
	if (presence_is_back(&e->presence))
		goto out;
	if (thread_watch_links(e, false)) {
		thread_watch_links(e, true);
		goto out;
	}
	presence_step_back(&e->presence, clock_ns());
	thread_wake(e); /* from now on it checks now and then */
out:
	pthread_mutex_unlock(&e->thread_lock);
}

void progress_step_forward(struct engine *e, uint64_t now)
{
	pthread_mutex_lock(&e->thread_lock);
	if (presence_step_forward(&e->presence, now))
		thread_watch_links(e, true);
	pthread_mutex_unlock(&e->thread_lock);
}

void engine_poll(struct engine *e, bool armed)
{
	uint64_t from = clock_ns(), until = from;
	bool busy;

	if (progress(e, from, &busy)) {
		until = clock_ns();
	} else if (busy && presence_blocked(&e->presence, from)) {
		engine_quiesce(e);
		presence_unblocked(&e->presence);
	}
	if (presence_polled(&e->presence, from, until, armed) &&
	    atomic_load_explicit(&e->started, memory_order_relaxed))
		step_back(e);
}

void engine_watch(struct engine *e)
{
	uint64_t now;

	if (!presence_is_back(&e->presence))
		return;
	now = clock_ns();
	presence_sleeps(&e->presence, now);
	progress_step_forward(e, now);
}

/*
 * progress.c - receive, run what is due, and who of all threads does so
 *
 * Programs that poll an empty CQ and the thread do the same. They do not wait
 * for each other, because the receive side of a link is taken with trylock,
 * unless one of them has it for long.
 */
#include "engine_internal.h"

#include "base/sys.h"
#include "idle_link.h"
#include "spin.h"

#include <errno.h>
#include <sched.h>

static _Thread_local
	__attribute__((tls_model("initial-exec"))) struct spin spin;

/* What this thread does when it has received, last first. */
static _Thread_local
	__attribute__((tls_model("initial-exec"))) struct afterwards {
	bool receives;
	struct engine_after *first;
} after;

bool engine_after(struct engine_after *a)
{
	if (!after.receives)
		return false;
	a->next = after.first;
	after.first = a;
	return true;
}

__attribute__((noinline)) static void after_run(void)
{
	struct engine_after *a = after.first, *next;

	after.first = NULL;
	for (; a; a = next) {
		next = a->next;
		a->run(a);
	}
}

/* What else is due by now. */
__attribute__((noinline)) static void due(struct engine *e, uint64_t now)
{
	if (timers_due(e, now))
		timers_run(e, now);
	if (e->cfg->explain)
		drops_explain_at(e, now);
}

/* progress(), where it is called all the time. */
__attribute__((always_inline)) static inline int
receive(struct engine *e, uint64_t now, bool *busy)
{
	struct rx_round round; /* not cleared: it is large */
	bool drained = true;
	int n = 0;

	*busy = false;
	round.e = e;
	round.now = now;
	round.naps = atomic_load(&e->naps);
	round.cur = NULL;
	round.n = 0;
	after.receives = true;
	for (unsigned i = 0; i < e->nlinks; i++) {
		struct link *l = e->link[i];
		const struct link_ops *ops = link_now(l);
		int r;

		if (!idle_link_is_active_by(l, ops))
			continue;
		r = ops->poll(l, RX_BUDGET, e->faults ? rx_fault : rx_packet,
			      &round);
		if (round.cur || round.n)
			rx_round_end(&round);
		if (r > 0) {
			n += r;
			idle_link_activity(l);
		} else if (!r && idle_link_empty_poll(l)) {
			thread_rewatch(e);
		}
		if (r < 0 || r >= RX_BUDGET) {
			drained = false;
			*busy |= r == -EBUSY;
		}
	}
	if (!*busy)
		poller_unblocked(&e->poller);
	if (atomic_load(&e->starved))
		send_starved(e);
	if (drained &&
	    atomic_load_explicit(&e->unsettled, memory_order_relaxed))
		e->ops->settle(e, round.now ? round.now : clock_ns());
	if (round.now)
		due(e, round.now);
	after.receives = false;
	if (after.first)
		after_run();
	return n;
}

int progress(struct engine *e, uint64_t now, bool *busy)
{
	return receive(e, now, busy);
}

void engine_quiesce(struct engine *e)
{
	for (unsigned i = 0; i < e->nlinks; i++)
		e->link[i]->ops->wait(e->link[i]);
}

static bool links_ready(struct engine *e)
{
	for (unsigned i = 0; i < e->nlinks; i++) {
		struct link *l = e->link[i];

		const struct link_ops *ops = link_now(l);

		if (ops->ready && ops->ready(l))
			return true;
	}
	return false;
}

void engine_catch_up(struct engine *e, uint64_t limit_ns)
{
	const uint64_t begin = clock_ns();
	uint64_t now = begin;
	bool busy;

	for (; now - begin < limit_ns; now = clock_ns()) {
		/* A link that somebody polls is not called ready. */
		engine_quiesce(e);
		if (!links_ready(e))
			return;
		progress(e, now, &busy);
	}
}

void progress_step_back(struct engine *e, uint64_t now)
{
	pthread_mutex_lock(&e->thread_lock);
	if (!poller_is_back(&e->poller) && !thread_watch_links(e, false))
		poller_step_back(&e->poller, now);
	pthread_mutex_unlock(&e->thread_lock);
}

void progress_step_forward(struct engine *e, uint64_t now)
{
	pthread_mutex_lock(&e->thread_lock);
	if (poller_step_forward(&e->poller, now)) {
		thread_watch_links(e, true);
		thread_announce(e);
	}
	pthread_mutex_unlock(&e->thread_lock);
}

bool progress_waiting(struct engine *e)
{
	struct pollfd p[ENGINE_LINKS];
	unsigned n = 0;

	for (unsigned i = 0; i < e->nlinks; i++) {
		struct link *l = e->link[i];

		if (!idle_link_is_active(l))
			continue;
		if (!l->ops->ready)
			p[n++] = (struct pollfd){ .fd = l->ops->fd(l),
						  .events = POLLIN };
		else if (l->ops->ready(l))
			return true;
	}
	return sys_poll(p, n, 0) > 0;
}

bool progress_ready(struct engine *e, uint64_t now)
{
	return links_ready(e) || timers_due(e, now);
}

/* Others may want this CPU. armed: the program may be about to sleep. */
static void let_others(struct engine *e, uint64_t now, bool armed)
{
	const enum spin_way way = spin_look(&spin, now);
	int n;

	if (way == SPIN_ON)
		return;
	if (way == SPIN_NAP && !armed) {
		n = engine_nap(e, now + SPIN_NAP_NS);
		if (n >= 0) {
			spin_took(&spin, n);
			spin_napped(&spin, clock_ns());
			return;
		}
	}
	sched_yield();
	spin_yielded(&spin, clock_ns());
}

/* It is time to look at the clock, and at what depends on it. */
__attribute__((noinline)) static void poll_look(struct engine *e, bool armed)
{
	const uint64_t now = clock_ns();
	bool busy;
	int n;

	thread_poller(e);
	n = progress(e, now, &busy);
	poller_inside(&e->poller, false);
	if (n) {
		poller_took(&e->poller);
		spin_took(&spin, n);
		spin_found(&spin, now);
	} else if (busy && poller_blocked(&e->poller)) {
		engine_quiesce(e);
		poller_unblocked(&e->poller);
	} else {
		let_others(e, now, armed);
	}
}

/*
 * Mostly it finds nothing, and the program tries again at once; so it looks at
 * the clock only now and then.
 */
void engine_poll(struct engine *e, bool armed)
{
	bool busy;
	int n;

	delayed_ack_polled(e);
	if (!armed)
		poller_polled(&e->poller);
	poller_inside(&e->poller, !armed);
	if (atomic_load_explicit(&e->poller.asleep, memory_order_relaxed))
		sleep_forget(e);
	if (spin_poll(&spin)) {
		poll_look(e, armed);
		return;
	}
	n = receive(e, 0, &busy);
	if (n) {
		spin_took(&spin, n);
		poller_inside(&e->poller, false);
		poller_took(&e->poller);
		return;
	}
	poller_inside(&e->poller, false);
	if (busy && poller_blocked(&e->poller)) {
		engine_quiesce(e);
		poller_unblocked(&e->poller);
	}
}

void engine_watch(struct engine *e)
{
	spin_arm(&spin);
	poller_armed(&e->poller);
	/* If it does not sleep there any more, the next tick makes up for it. */
	if (poller_is_back(&e->poller) && !sleep_is_waiter(e))
		progress_step_forward(e, clock_ns());
}

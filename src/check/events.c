/*
 * events.c - programs that wait for what does not come
 *
 * Threads that sleep in ibv_get_cq_event() are in a list, and another thread
 * checks it periodically. A CQ that is armed and has completions that are not
 * polled was armed after they had arrived: they raise no event any more.
 * Another thread of the program may be about to poll, so it has to be so for a
 * while.
 */
#include "check_internal.h"

#include "base/lines.h"
#include "base/sys.h"
#include "base/thread.h"
#include "os/config.h"

#include <pthread.h>

#define LOOK_NS 250000000
#define STUCK_NS 1000000000u
#define STUCK_LOOKS 5u

static struct {
	pthread_mutex_t lock; /* before a CQ table's */
	pthread_cond_t cond; /* somebody sleeps */
	struct check_sleep *sleeps;
	bool started;
} watch = { .lock = PTHREAD_MUTEX_INITIALIZER,
	    .cond = PTHREAD_COND_INITIALIZER };

void check_events_forked(void)
{
	pthread_mutex_init(&watch.lock, NULL);
	pthread_cond_init(&watch.cond, NULL);
	watch.sleeps = NULL;
	watch.started = false;
}

/* The CQs' table does not change. */
static void look_at_cq(struct check_cq *c, void *arg)
{
	const struct check_sleep *s = arg;
	const uint64_t now = clock_ns();
	uint32_t head, count;

	if (c->ib->channel != s->channel)
		return;
	if (!check_env.waits(c->ib, &head, &count)) {
		c->stuck_since = 0;
		return;
	}
	if (!c->stuck_since || c->stuck_head != head) {
		c->stuck_since = now;
		c->stuck_head = head;
		c->stuck_looks = 0;
	}
	/* By the clock alone it might be the process that was stopped. */
	if (++c->stuck_looks < STUCK_LOOKS || now - c->stuck_since < STUCK_NS ||
	    now - s->since < STUCK_NS)
		return;
	check_report(CHECK_LOST_WAKEUP, 0,
		     (const struct check_side[]){
			     { "it sleeps", s->stack },
			     { "the CQ was armed", atomic_load(&c->armed) },
			     { "the CQ was created", c->made },
		     },
		     3,
		     "ibv_get_cq_event() sleeps, and a CQ of its channel holds "
		     "%u completion%s that arrived before ibv_req_notify_cq(): "
		     "no event comes of that",
		     count, plural(count));
	c->stuck_since = 0; /* and again, counted, if it goes on */
}

static void *events_thread(void *arg)
{
	(void)arg;
	pthread_setname_np(pthread_self(), "softhca-check");
	for (;;) {
		pthread_mutex_lock(&watch.lock);
		while (!watch.sleeps)
			pthread_cond_wait(&watch.cond, &watch.lock);
		for (struct check_sleep *s = watch.sleeps; s; s = s->next)
			check_cqs_each(look_at_cq, s);
		pthread_mutex_unlock(&watch.lock);
		sys_sleep(LOOK_NS);
	}
	return NULL;
}

void check_sleep_begin(struct check_sleep *s, struct ibv_comp_channel *channel)
{
	*s = (struct check_sleep){
		.channel = channel,
		.stack = check_here(),
		.since = clock_ns(),
	};
	pthread_mutex_lock(&watch.lock);
	if (!watch.started)
		watch.started = !thread_start(events_thread, NULL);
	s->next = watch.sleeps;
	watch.sleeps = s;
	pthread_cond_signal(&watch.cond);
	pthread_mutex_unlock(&watch.lock);
}

void check_sleep_end(void *sleep)
{
	struct check_sleep **p;

	pthread_mutex_lock(&watch.lock);
	for (p = &watch.sleeps; *p && *p != sleep; p = &(*p)->next)
		;
	if (*p)
		*p = (*p)->next;
	pthread_mutex_unlock(&watch.lock);
}

void check_unacked(struct ibv_cq *cq, const char *call, const char *ack,
		   uint32_t missing)
{
	struct check_cq *c = cq ? check_cq_get(cq) : NULL;
	const struct check_side sides[] = {
		{ "it waits", check_here() },
		{ "the last event was fetched", c ? atomic_load(&c->got) : 0 },
	};

	check_report(
		CHECK_UNACKED, 0, sides, c ? 2 : 1,
		"%s has waited for %u s and still waits: %u event%s of the "
		"object, fetched and not acknowledged, by %s",
		call, CHECK_UNACKED_S, missing, plural(missing), ack);
	check_cq_put(c);
}

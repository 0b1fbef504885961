/*
 * halt.c - an engine that does nothing for a while (src/migrate)
 *
 * No packet and no poll pays for it. UDP, which takes whatever no other link does,
 * has another table meanwhile (udp_link.c), whose send() never has room, and no
 * other link reaches anybody. Who sends for a QP holds its lock, so when each lock has been
 * taken once, and the QP's way forgotten, all have seen that. Polls find nothing
 * where there is nothing; timers, which they run now and then, look whether they
 * may.
 *
 * The thread ends, and starts again: so it sets up what it needs wherever the
 * process is by then. A program that sleeps on the links is woken until it leaves
 * receiving to others and sleeps on its own descriptor (sleep.c), where it stays.
 */
#include "engine_internal.h"

#include "base/sys.h"
#include "idle_link.h"
#include "segment/segment.h"

#include <errno.h>
#include <sched.h>

#define NAP_NS 100000
#define WAKE_NS 5000000000u /* for a sleeper to wake */

/* engine.halt: and the thread is to start when it goes on. */
enum { HALTED = 1, HALTED_THREAD = 2 };

struct each {
	void (*fn)(struct engine_qp *qp, void *arg);
	void *arg;
};

static void stop_qp(struct engine_qp *qp, void *arg)
{
	const struct each *each = arg;

	link_way_forget(&qp->way);
	qp->way.link = NULL;
	send_unuse(qp);
	each->fn(qp, each->arg);
}

void engine_suspend_links(struct engine *e, enum link_suspend step)
{
	for (unsigned i = 0; i < e->nlinks; i++)
		if (e->link[i]->ops->suspend)
			e->link[i]->ops->suspend(e->link[i], step);
}

int engine_halt(struct engine *e, void (*fn)(struct engine_qp *qp, void *arg),
		void *arg)
{
	struct each each = { fn, arg };

	atomic_store(&e->halt, HALTED);
	engine_suspend_links(e, LINK_STOPS);
	return engine_qps_each(e, stop_qp, &each) ? 0 : -ENOMEM;
}

static bool links_drained(struct engine *e)
{
	for (unsigned i = 0; i < e->nlinks; i++) {
		struct link *l = e->link[i];

		if (l->ops->drained && !l->ops->drained(l))
			return false;
	}
	return true;
}

void engine_drain(struct engine *e, uint64_t limit_ns)
{
	const uint64_t begin = clock_ns();
	bool busy, drained;

	idle_link_activity(e->link[0]);
	do {
		/* UDP asks all of its sockets, not the last one alone. */
		e->link[0]->ops->wake(e->link[0], true);
		drained = !progress(e, clock_ns(), &busy) && !busy &&
			  links_drained(e);
		if (busy)
			sched_yield();
	} while (!drained && clock_ns() - begin < limit_ns);
}

/* A program's thread sleeps on the links' descriptors. */
static int wake_sleeper(struct engine *e)
{
	const uint64_t begin = clock_ns();

	sleep_forget(e);
	while (poller_is_asleep(&e->poller)) {
		if (clock_ns() - begin > WAKE_NS)
			return -EBUSY;
		if (e->segment)
			segment_poke_own(e->segment);
		udp_wake(e->udp);
		sys_sleep(NAP_NS);
	}
	return 0;
}

static void nothing_more(struct engine_qp *qp, void *arg)
{
	(void)qp;
	(void)arg;
}

int engine_rest(struct engine *e)
{
	bool started;
	int err;

	/* One that is being started is there by then. */
	pthread_mutex_lock(&e->thread_lock);
	started = atomic_exchange(&e->started, false);
	pthread_mutex_unlock(&e->thread_lock);
	/* Nobody begins to sleep on the links from now on. */
	if (started) {
		atomic_fetch_or(&e->halt, HALTED_THREAD);
		thread_end(e);
		atomic_store(&e->stop, false);
	}
	err = wake_sleeper(e);
	if (err)
		return err;
	progress_step_forward(e, clock_ns());
	engine_suspend_links(e, LINK_RESTS);
	thread_remove_links(e);
	engine_quiesce(e);
	/* What was left behind for the holders of their locks, they take. */
	return engine_qps_each(e, nothing_more, NULL) ? 0 : -ENOMEM;
}

bool halt_starts(struct engine *e)
{
	if (!engine_halted(e))
		return false;
	atomic_fetch_or(&e->halt, HALTED_THREAD);
	return true;
}

int engine_go(struct engine *e, void (*fn)(struct engine_qp *qp, void *arg),
	      void *arg)
{
	bool thread;
	int err;

	err = thread_add_links(e);
	if (err)
		return err;
	pthread_mutex_lock(&e->thread_lock);
	engine_suspend_links(e, LINK_IS_BACK);
	thread = atomic_exchange(&e->halt, 0) & HALTED_THREAD;
	pthread_mutex_unlock(&e->thread_lock);
	/* Without one, which is said, who calls in receives; and a queue pair
	 * that is connected tries again. */
	if (thread)
		engine_start(e);
	engine_qps_each(e, fn, arg);
	return 0;
}

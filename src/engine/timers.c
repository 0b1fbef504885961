/*
 * timers.c - when a QP is next to be run, and alarms of the layer above
 *
 * A QP has at most one entry in a heap, due at or before its deadline.
 * Deadlines mostly move away, so an entry is checked again when it is due
 * rather than moved with every packet. Alarms are few, and not in the heap.
 *
 * Threads that make progress read when the heap's top and the alarms are due,
 * without a lock. Setting one takes no lock either if it is an alarm: a program
 * may call exit() where the thread that it interrupts holds the heap's. The
 * thread is woken if it would sleep past what is set, unless it has stepped
 * back: programs run the timers then, and the thread when it ticks. A program
 * that sleeps then leaves to it timers that may be late (sleep.c), unless some
 * that may not be were set lately: after a loss there are more to come.
 */
#include "engine_internal.h"

#include "base/bytes.h"

#include <stdlib.h>

#define HURRY_NS 10000000

static void timer_heap_put(struct engine *e, size_t i, struct timer t)
{
	e->heap[i] = t;
	t.qp->timer_pos = i + 1;
}

static void heap_up(struct engine *e, size_t i, struct timer t)
{
	while (i && e->heap[(i - 1) / 2].due > t.due) {
		timer_heap_put(e, i, e->heap[(i - 1) / 2]);
		i = (i - 1) / 2;
	}
	timer_heap_put(e, i, t);
}

static void heap_down(struct engine *e, size_t i, struct timer t)
{
	size_t c;

	while ((c = 2 * i + 1) < e->ntimers) {
		if (c + 1 < e->ntimers && e->heap[c + 1].due < e->heap[c].due)
			c++;
		if (e->heap[c].due >= t.due)
			break;
		timer_heap_put(e, i, e->heap[c]);
		i = c;
	}
	timer_heap_put(e, i, t);
}

static void heap_remove(struct engine *e, struct engine_qp *qp)
{
	size_t i = qp->timer_pos - 1;
	struct timer last = e->heap[--e->ntimers];

	qp->timer_pos = 0;
	atomic_store_explicit(&qp->timer_due, UINT64_MAX, memory_order_relaxed);
	if (last.qp == qp)
		return;
	if (i && e->heap[(i - 1) / 2].due > last.due)
		heap_up(e, i, last);
	else
		heap_down(e, i, last);
}

static void heap_changed(struct engine *e)
{
	atomic_store(&e->heap_due, e->ntimers ? e->heap[0].due : UINT64_MAX);
}

uint64_t timers_next(const struct engine *e)
{
	uint64_t due = atomic_load(&e->heap_due);
	const struct engine_alarm *a;

	for (a = e->alarms; a; a = a->next)
		due = min_u64(due, atomic_load(&a->due));
	return due;
}

/* The thread calls timers_next() after it has announced how long it sleeps. */
static void wake_before(struct engine *e, uint64_t due)
{
	if (due < atomic_load(&e->asleep_until) &&
	    (!poller_is_back(&e->poller) || poller_rests(&e->poller)))
		thread_wake(e);
}

/* Room for one more entry. */
static bool heap_grow(struct engine *e)
{
	size_t size = e->timer_size ? 2 * e->timer_size : 64;
	struct timer *heap;

	if (e->ntimers < e->timer_size)
		return true;
	heap = realloc(e->heap, size * sizeof(*heap));
	if (!heap)
		return false;
	e->heap = heap;
	e->timer_size = size;
	return true;
}

static void entry_set(struct engine *e, struct engine_qp *qp, uint64_t due)
{
	struct timer t = { due, qp };

	if (qp->timer_pos && due >= e->heap[qp->timer_pos - 1].due)
		return;
	atomic_store_explicit(&qp->timer_due, due, memory_order_relaxed);
	heap_up(e, qp->timer_pos ? qp->timer_pos - 1 : e->ntimers++, t);
	heap_changed(e);
}

void engine_timer_set(struct engine *e, struct engine_qp *qp, uint64_t due)
{
	const uint64_t until = due + HURRY_NS;

	/* Also if the heap has an earlier entry, which may be late. */
	if (until > atomic_load_explicit(&e->hurry_until, memory_order_relaxed))
		atomic_store_explicit(&e->hurry_until, until,
				      memory_order_relaxed);
	engine_timer_set_lax(e, qp, due);
}

void engine_timer_set_lax(struct engine *e, struct engine_qp *qp, uint64_t due)
{
	if (due >= atomic_load_explicit(&qp->timer_due, memory_order_relaxed))
		return;
	pthread_mutex_lock(&e->timer_lock);
	/* Without memory the next packet or post of this QP tries again. */
	if (qp->timer_pos || heap_grow(e))
		entry_set(e, qp, due);
	pthread_mutex_unlock(&e->timer_lock);
	wake_before(e, due);
}

bool timer_try(struct engine *e, struct engine_qp *qp, uint64_t due)
{
	bool room;

	if (pthread_mutex_trylock(&e->timer_lock))
		return false;
	room = qp->timer_pos || e->ntimers < e->timer_size;
	if (room)
		entry_set(e, qp, due);
	pthread_mutex_unlock(&e->timer_lock);
	if (room)
		wake_before(e, due);
	return room;
}

void engine_timer_drop(struct engine *e, struct engine_qp *qp)
{
	pthread_mutex_lock(&e->timer_lock);
	if (qp->timer_pos) {
		heap_remove(e, qp);
		heap_changed(e);
	}
	pthread_mutex_unlock(&e->timer_lock);
}

void engine_alarm_add(struct engine *e, struct engine_alarm *a,
		      void (*expire)(struct engine *e, uint64_t now))
{
	atomic_store(&a->due, UINT64_MAX);
	a->expire = expire;
	a->next = e->alarms;
	e->alarms = a;
}

void engine_alarm_set(struct engine *e, struct engine_alarm *a, uint64_t due)
{
	atomic_store(&a->due, due);
	wake_before(e, due);
}

void engine_alarm_by(struct engine *e, struct engine_alarm *a, uint64_t due)
{
	uint64_t was = atomic_load(&a->due);

	while (due < was)
		if (atomic_compare_exchange_weak(&a->due, &was, due)) {
			wake_before(e, due);
			return;
		}
}

static struct engine_qp *timer_take(struct engine *e, uint64_t now)
{
	struct engine_qp *qp = NULL;

	/* Many threads may find something due at once: one of them is enough.
	 */
	if (pthread_mutex_trylock(&e->timer_lock))
		return NULL;
	if (e->ntimers && e->heap[0].due <= now) {
		qp = e->heap[0].qp;
		engine_qp_get(qp);
		heap_remove(e, qp);
		heap_changed(e);
	}
	pthread_mutex_unlock(&e->timer_lock);
	return qp;
}

void timers_run(struct engine *e, uint64_t now)
{
	struct engine_alarm *a;
	struct engine_qp *qp;

	if (engine_halted(e))
		return;
	for (a = e->alarms; a; a = a->next)
		if (atomic_load_explicit(&a->due, memory_order_relaxed) <= now)
			a->expire(e, now);
	/* Timers set meanwhile are due after now, so this ends. */
	while ((qp = timer_take(e, now))) {
		if (engine_qp_trylock(qp)) {
			if (!qp->dead)
				qp->ops->run(qp, now);
			engine_qp_unlock(qp);
		}
		engine_qp_put(qp);
	}
}

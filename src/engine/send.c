/*
 * send.c - which link a packet goes by, and the QPs that wait for room
 *
 * Between processes that both have shared memory packets go there, all others
 * by UDP. A QP keeps its way (link/link.h), so that its packets do not overtake
 * each other. UDP does not signal when there is room again, and is tried again
 * soon; shared memory does, so a QP that finds a ring full is put on a list, and
 * is flushed when the receive side finds room.
 */
#include "engine_internal.h"

#include "idle_link.h"

#include "hooks/faults.h"
#include "hooks/trace.h"

#include <errno.h>

/* The QP's lock is held. The list has a reference. */
static void qp_starve(struct engine *e, struct engine_qp *qp)
{
	if (atomic_exchange(&qp->is_starved, true))
		return;
	engine_qp_get(qp);
	qp->starved = atomic_load(&e->starved);
	while (!atomic_compare_exchange_weak(&e->starved, &qp->starved, qp))
		;
	/* Room was found meanwhile, and the list was empty then? */
	atomic_thread_fence(memory_order_seq_cst);
	if (!link_starved(&qp->way))
		engine_timer_set(e, qp, clock_ns());
}

/* Since this was asked last. */
static bool link_has_room(struct link *l)
{
	return atomic_load_explicit(&l->room, memory_order_relaxed) &&
	       atomic_exchange(&l->room, false);
}

void send_starved(struct engine *e)
{
	struct engine_qp *qp, *next;
	bool room = false;
	uint64_t now;

	if (engine_halted(e))
		return;
	for (unsigned i = 0; i < e->nlinks; i++)
		room |= link_has_room(e->link[i]);
	if (!room)
		return;
	now = clock_ns();
	for (qp = atomic_exchange(&e->starved, NULL); qp; qp = next) {
		next = qp->starved;
		/* Whoever has the lock flushes it, and may starve again. */
		atomic_store(&qp->is_starved, false);
		if (engine_qp_trylock(qp)) {
			if (!qp->dead)
				qp->ops->flush(qp, now);
			engine_qp_unlock(qp);
		}
		engine_qp_put(qp);
	}
}

void send_end(struct engine *e)
{
	struct engine_qp *qp, *next;

	for (qp = atomic_exchange(&e->starved, NULL); qp; qp = next) {
		next = qp->starved;
		engine_qp_put(qp);
	}
}

void engine_limits(struct engine_qp *qp, const struct qp *core,
		   struct roce_batch *b)
{
	struct link_way *w = &qp->way;
	const struct link_ops *ops;

	b->max_payload = b->max_copy = 0;
	if (!w->link || core->type == IBV_QPT_UD)
		return;
	ops = link_now(w->link);
	if (!ops->limits)
		return;
	w->own = qp->foreign ? 0 : qp->num;
	w->generation = core->pub == &core->unseen ?
				0 :
				qp_public_get(&core->pub->generation);
	w->keys = core->env->keys;
	ops->limits(w, b);
}

/* On a link that may become idle; and to send takes a system call. */
static inline void send_begins(struct engine *e, struct link *l)
{
	idle_link_activity(l);
	poller_sends(&e->poller, true);
}

static inline size_t send_on(struct engine *e, struct link_way *w,
			     const struct roce_batch *b, size_t from, size_t to,
			     int *err)
{
	struct link *l = w->link;
	const struct link_ops *ops = link_now(l);
	size_t sent;

	if (ops->ready)
		return ops->send(l, w, b, from, to, err);
	send_begins(e, l);
	sent = ops->send(l, w, b, from, to, err);
	poller_sends(&e->poller, false);
	return sent;
}

/* By the links that the packets' ways lead to. large: not as on a wire. */
static inline size_t send_by(struct engine *e, struct link_way *w,
			     const struct roce_batch *b, bool large, int *err)
{
	size_t i = 0, end = 0;

	while (i == end && i < b->n) {
		end = i + link_route(e->link, e->nlinks, w, b, i);
		if (large && !link_now(w->link)->limits)
			break; /* it is gone: the next batch is shorter */
		i = send_on(e, w, b, i, end, err);
	}
	return i;
}

/* What its last packet has gone by. */
static void qp_use_link(struct engine_qp *qp, struct link *l)
{
	if (qp->used)
		idle_link_use(qp->used, false);
	qp->used = l;
	if (l)
		idle_link_use(l, true);
}

void send_unuse(struct engine_qp *qp)
{
	qp_use_link(qp, NULL);
}

size_t engine_send(struct engine *e, struct engine_qp *qp,
		   const struct roce_batch *b, int *err)
{
	struct link_way once;
	size_t sent;

	*err = 0;
	if (__builtin_expect(e->faults != NULL, 0))
		return faults_ops->send(e, qp, b, err);
	if (!e->choice)
		return link_now(e->link[0])
			->send(e->link[0], qp ? &qp->way : NULL, b, 0, b->n,
			       err);
	if (!qp) {
		once = (struct link_way){ .peer = NULL };
		sent = send_by(e, &once, b, false, err);
		link_way_forget(&once);
		return sent;
	}
	qp->way.own = qp->foreign ? 0 : qp->num;
	sent = send_by(e, &qp->way, b, b->max_payload, err);
	if (__builtin_expect(qp->used != qp->way.link, 0))
		qp_use_link(qp, qp->way.link);
	if (sent < b->n && link_starved(&qp->way))
		qp_starve(e, qp);
	return sent;
}

/* The same by a link that may lose it. Recorded, it is as others are. */
__attribute__((noinline)) static unsigned send_timed(struct engine_qp *qp,
						     struct roce_qp *core,
						     struct link *l,
						     uint64_t *now)
{
	const struct engine *e = qp->engine;
	const struct link_ops *ops = link_now(l);
	struct roce_small s;
	unsigned n;

	if (e->faults || tracing() || !ops->send_small ||
	    !roce_small_begin(core, &s, true))
		return 0;
	if (!*now)
		*now = clock_ns();
	if (e->choice)
		send_begins(qp->engine, l);
	n = ops->send_small(l, &qp->way, &s);
	if (e->choice)
		poller_sends(&qp->engine->poller, false);
	roce_small_end(&s, n, *now);
	return n;
}

__attribute__((flatten)) unsigned
engine_send_small(struct engine_qp *qp, struct roce_qp *core, uint64_t *now)
{
	struct link_way *w = &qp->way;
	const struct link_ops *ops;
	struct roce_small s;
	unsigned n;

	if (!qp->engine->choice)
		return send_timed(qp, core, qp->engine->link[0], now);
	if (!w->known || w->path != roce_qp_path(core) ||
	    w->qpn != roce_qp_dest(core))
		return 0;
	if (!w->link->lossless)
		return send_timed(qp, core, w->link, now);
	ops = link_now(w->link);
	if (!ops->send_small || !roce_small_begin(core, &s, false))
		return 0;
	n = ops->send_small(w->link, w, &s);
	roce_small_end(&s, n, 0);
	return n;
}

bool engine_starved(struct engine_qp *qp)
{
	if (!link_starved(&qp->way))
		return false;
	/* It may be off the list: that was for room which is gone again. */
	qp_starve(qp->engine, qp);
	return true;
}

bool engine_is_of_host(const struct engine *e, uint32_t qpn,
		       const struct roce_path *path)
{
	return e->registry && path->local &&
	       registry_owner(e->registry, qpn) >= 0;
}

bool engine_keeps_seat(struct engine *e, uint32_t qpn,
		       const struct roce_path *path)
{
	return e->registry && roce_path_in_host(path) &&
	       registry_keeps_seat(e->registry, qpn, path->net);
}

bool engine_unread(struct engine *e, struct engine_qp *qp, uint32_t qpn,
		   const struct roce_path *path, uint64_t mark[2])
{
	struct link_way at = { .qpn = qpn, .path = path };
	const bool by_peer = qp->way.peer && qp->way.qpn == qpn;
	struct link *l = by_peer ? qp->way.link : engine_wire(e, path);

	/* Its process is suspended, and will come back. */
	if (engine_keeps_seat(e, qpn, path)) {
		mark[0] = mark[1] = 0;
		return true;
	}
	return l->ops->unread(l, by_peer ? &qp->way : &at, mark);
}

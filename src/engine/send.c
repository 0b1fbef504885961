/*
 * send.c - which link a packet goes by, and the QPs that wait for room
 *
 * Between processes that both have shared memory packets go there, all others
 * by UDP. A QP keeps its way (link/shm.h), so that its packets do not overtake
 * each other. UDP does not signal when there is room again, and is tried again
 * soon; a ring does, so a QP that finds it full is put on a list, and is
 * flushed when the receive side finds room.
 */
#include "internal.h"

#include "heat.h"

#include "hooks/faults.h"

#include <errno.h>

/* The QP's lock is held. The list has a reference. */
static void starve(struct engine *e, struct engine_qp *qp)
{
	if (atomic_exchange(&qp->is_starved, true))
		return;
	engine_qp_get(qp);
	qp->starved = atomic_load(&e->starved);
	while (!atomic_compare_exchange_weak(&e->starved, &qp->starved, qp))
		;
	/* Room was found meanwhile, and the list was empty then? */
	atomic_thread_fence(memory_order_seq_cst);
	if (!shm_starved(&qp->way))
		engine_timer_set(e, qp, clock_ns());
}

void send_starved(struct engine *e)
{
	struct engine_qp *qp, *next;
	uint64_t now;

	if (!shm_room(e->shm))
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
	struct shm_way *w = &qp->way;

	b->max_payload = b->max_copy = 0;
	if (!w->peer || core->type == IBV_QPT_UD)
		return;
	w->own = qp->foreign ? 0 : qp->num;
	w->life = core->pub == &core->unseen ? 0 :
					       qp_public_get(&core->pub->life);
	w->keys = core->env->keys;
	shm_limits(w, b);
}

static size_t by_udp(struct engine *e, const struct roce_batch *b, size_t from,
		     size_t to, int *err)
{
	struct link *udp = e->link[0];
	size_t sent;

	heat_add(udp);
	presence_sends(&e->presence, true);
	sent = udp->ops->send(udp, b, from, to, err);
	presence_sends(&e->presence, false);
	return sent;
}

/* By a ring where the way leads to one, else by UDP. large: not by UDP. */
static inline size_t send_by(struct engine *e, struct shm_way *w,
			     const struct roce_batch *b, bool large, int *err)
{
	size_t i = 0, end = 0;

	while (i == end && i < b->n) {
		end = i + shm_route(e->shm, w, b, i);
		if (w->peer)
			i = shm_send(e->shm, w, b, i, end, err);
		else if (large)
			break; /* it is gone: the next batch is shorter */
		else
			i = by_udp(e, b, i, end, err);
	}
	return i;
}

/* What its last packet has gone by, NULL: by a link that is never cold. */
static void use(struct engine_qp *qp, struct link *l)
{
	if (qp->used)
		heat_use(qp->used, false);
	qp->used = l;
	if (l)
		heat_use(l, true);
}

void send_unuse(struct engine_qp *qp)
{
	use(qp, NULL);
}

size_t engine_send(struct engine *e, struct engine_qp *qp,
		   const struct roce_batch *b, int *err)
{
	struct link *udp = e->link[0];
	struct shm_way once;
	size_t sent;

	*err = 0;
	if (__builtin_expect(e->faults != NULL, 0))
		return faults_ops->send(e, qp, b, err);
	if (!e->shm)
		return udp->ops->send(udp, b, 0, b->n, err);
	if (!qp) {
		once = (struct shm_way){ .peer = NULL };
		sent = send_by(e, &once, b, false, err);
		shm_way_forget(&once);
		return sent;
	}
	qp->way.own = qp->foreign ? 0 : qp->num;
	sent = send_by(e, &qp->way, b, b->max_payload, err);
	if (__builtin_expect(qp->used != (qp->way.peer ? NULL : udp), 0))
		use(qp, qp->way.peer ? NULL : udp);
	if (sent < b->n && shm_starved(&qp->way))
		starve(e, qp);
	return sent;
}

__attribute__((flatten)) unsigned engine_send_small(struct engine_qp *qp,
						    struct roce_qp *core)
{
	struct engine *e = qp->engine;
	struct shm_way *w = &qp->way;
	struct roce_small s;
	unsigned n;

	/* Whether UDP is in use has to be looked at. */
	if (!e->shm || qp->used || !w->peer || !w->known ||
	    w->path != roce_qp_path(core) || w->qpn != roce_qp_dest(core) ||
	    !roce_small_begin(core, &s))
		return 0;
	n = shm_send_small(e->shm, w, &s);
	roce_small_end(&s, n);
	return n;
}

bool engine_starved(struct engine_qp *qp)
{
	if (!shm_starved(&qp->way))
		return false;
	/* It may be off the list: that was for room which is gone again. */
	starve(qp->engine, qp);
	return true;
}

bool engine_unread(struct engine *e, struct engine_qp *qp, uint32_t qpn,
		   const struct roce_path *path, uint64_t mark[2])
{
	const bool by_shm = qp->way.peer && qp->way.qpn == qpn;

	/* What another link has noted there says nothing. */
	if (by_shm != shm_has_mark(mark))
		mark[0] = mark[1] = 0;
	if (by_shm)
		return shm_unread(e->shm, &qp->way, mark);
	return udp_unread(e->udp, path, qpn, mark);
}

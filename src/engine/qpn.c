/*
 * qpn.c - QP numbers: whose packets are whose
 *
 * Numbers come in chunks leased from the registry, so that every process of
 * this host can tell whose a packet is. A number is reused late, because
 * packets for the QP that had it may still be on their way.
 *
 * Looking a number up takes no lock: chunks stay for good, and destroying a QP
 * waits for the receive side before it is freed.
 *
 * A process that was suspended may find its numbers with another one. Then a
 * chunk gets others on the wire (engine_renumber()), where the table is of; its
 * program goes on with those it knows, and no more are given out of that chunk.
 */
#include "engine_internal.h"

#include "base/sys.h"

#include <errno.h>
#include <stdlib.h>

#define LEASE_TRIES 64

/* 4096 QPNs leased from the registry, and who has them. */
struct qpn_chunk {
	uint32_t first; /* on the wire, */
	uint32_t named; /* and for the program: mostly the same */
	uint32_t used;
	uint32_t cursor; /* where to look for a free one: reused late */
	_Atomic(struct engine_qp *) qp[REGISTRY_CHUNK];
};

struct engine_qp *engine_qp_find(struct engine *e, uint32_t qpn)
{
	struct qpn_chunk *c = atomic_load_explicit(
		&e->chunk[qpn / REGISTRY_CHUNK], memory_order_acquire);

	return c ? atomic_load_explicit(&c->qp[qpn % REGISTRY_CHUNK],
					memory_order_acquire) :
		   NULL;
}

struct engine_qp *engine_qp_look(struct engine *e, uint32_t qpn)
{
	struct engine_qp *qp;

	if (qpn / REGISTRY_CHUNK >= REGISTRY_CHUNKS)
		return NULL;
	pthread_mutex_lock(&e->qpn_lock);
	qp = engine_qp_find(e, qpn);
	if (qp)
		engine_qp_get(qp);
	pthread_mutex_unlock(&e->qpn_lock);
	return qp;
}

bool engine_has_qp(struct engine *e, uint32_t qpn)
{
	struct engine_qp *qp = engine_qp_look(e, qpn);

	if (qp)
		engine_qp_put(qp);
	return qp;
}

static struct qpn_chunk *owned(struct engine *e, uint32_t nth)
{
	return atomic_load(&e->chunk[e->owned[nth]]);
}

/* Which chunk is the program's with this number; or nowned. */
static uint32_t nth_named(struct engine *e, uint32_t qpn)
{
	uint32_t nth;

	for (nth = 0; nth < e->nowned; nth++)
		if (owned(e, nth)->named == qpn - qpn % REGISTRY_CHUNK)
			break;
	return nth;
}

/* One that the program has not known before as another one. While the process is
 * suspended this waits, and it can go on only with qpn_lock: nobody has it then. */
static int lease(struct engine *e)
{
	int first = -ENOSPC;

	for (unsigned i = 0; i <= LEASE_TRIES; i++) {
		pthread_mutex_unlock(&e->qpn_lock);
		if (i)
			registry_release(e->registry, (uint32_t)first);
		first = registry_lease(e->registry);
		pthread_mutex_lock(&e->qpn_lock);
		/* Suspended since, it may have got another one for it. */
		if (first < 0 ||
		    (registry_owner(e->registry, (uint32_t)first) ==
			     (int)registry_slot(e->registry) &&
		     nth_named(e, (uint32_t)first) == e->nowned))
			break;
	}
	if (e->rocev1)
		rocev1_numbers(e->rocev1);
	return first;
}

/* Alone any chunk will do, but not the one that the next process takes, in case a
 * peer remembers this one. */
static int pick(struct engine *e)
{
	uint32_t i;

	do {
		if (e->nowned > REGISTRY_CHUNKS / 2)
			return -ENOSPC;
		if (!sys_random(&i, sizeof(i)))
			return -EIO;
		i = 1 + i % (REGISTRY_CHUNKS - 2);
	} while (atomic_load(&e->chunk[i]));
	return (int)(i * REGISTRY_CHUNK);
}

/* qpn_lock is held, but not all the time. */
static int chunk_lease(struct engine *e)
{
	struct qpn_chunk *c = calloc(1, sizeof(*c));
	uint32_t i;
	int first;

	if (!c)
		return -ENOMEM;
	first = e->registry ? lease(e) : pick(e);
	if (first < 0) {
		free(c);
		return first;
	}
	i = (uint32_t)first / REGISTRY_CHUNK;
	c->first = c->named = (uint32_t)first;
	/* Strangers are not to guess it; without random numbers they may. */
	if (sys_random(&c->cursor, sizeof(c->cursor)))
		c->cursor %= REGISTRY_CHUNK;
	atomic_store_explicit(&e->chunk[i], c, memory_order_release);
	e->owned[e->nowned++] = i;
	return 0;
}

static struct qpn_chunk *chunk_with(struct engine *e, uint32_t room)
{
	uint32_t i;

	for (i = 0; i < e->nowned; i++) {
		struct qpn_chunk *c = owned(e, i);

		if (c->first == c->named && REGISTRY_CHUNK - c->used >= room)
			return c;
	}
	return NULL;
}

int engine_qpn_alloc(struct engine *e, struct engine_qp *qp, uint32_t *qpn)
{
	struct qpn_chunk *c;
	int err = 0;

	pthread_mutex_lock(&e->qpn_lock);
	/* Leave room so that a number comes back late. */
	c = chunk_with(e, REGISTRY_CHUNK / 4);
	if (!c) {
		err = chunk_lease(e);
		c = chunk_with(e, 1);
	}
	if (c) {
		err = 0;
		do {
			c->cursor = (c->cursor + 1) % REGISTRY_CHUNK;
		} while (atomic_load(&c->qp[c->cursor]));
		*qpn = qp->num = c->first + c->cursor;
		c->used++;
		atomic_store_explicit(&c->qp[c->cursor], qp,
				      memory_order_release);
	}
	pthread_mutex_unlock(&e->qpn_lock);
	return err;
}

uint32_t engine_qpn_nth(struct engine *e, uint32_t qpn)
{
	uint32_t nth;

	pthread_mutex_lock(&e->qpn_lock);
	nth = nth_named(e, qpn);
	pthread_mutex_unlock(&e->qpn_lock);
	return nth;
}

uint32_t engine_qpn_wire(struct engine *e, uint32_t qpn)
{
	uint32_t nth;

	pthread_mutex_lock(&e->qpn_lock);
	nth = nth_named(e, qpn);
	if (nth < e->nowned)
		qpn = owned(e, nth)->first + qpn % REGISTRY_CHUNK;
	pthread_mutex_unlock(&e->qpn_lock);
	return qpn;
}

/* One that is being made, or has just gone, is dead. */
static void renumber(struct engine *e, struct qpn_chunk *c, uint32_t k,
		     void (*fn)(struct engine_qp *qp, void *arg), void *arg)
{
	struct engine_qp *qp;

	pthread_mutex_lock(&e->qpn_lock);
	qp = atomic_load(&c->qp[k]);
	if (qp)
		engine_qp_get(qp);
	pthread_mutex_unlock(&e->qpn_lock);
	if (!qp)
		return;
	engine_qp_lock(qp);
	/* Who holds either lock may read it. */
	pthread_mutex_lock(&e->qpn_lock);
	qp->num = c->first + k;
	pthread_mutex_unlock(&e->qpn_lock);
	if (!qp->dead)
		fn(qp, arg);
	engine_qp_unlock(qp);
	engine_qp_put(qp);
}

void engine_renumber(struct engine *e, uint32_t from, uint32_t to,
		     void (*fn)(struct engine_qp *qp, void *arg), void *arg)
{
	const uint32_t was = from / REGISTRY_CHUNK, is = to / REGISTRY_CHUNK;
	struct qpn_chunk *c;

	pthread_mutex_lock(&e->qpn_lock);
	c = atomic_load(&e->chunk[was]);
	if (!c) {
		pthread_mutex_unlock(&e->qpn_lock);
		return;
	}
	for (uint32_t i = 0; i < e->nowned; i++)
		if (e->owned[i] == was)
			e->owned[i] = is;
	atomic_store(&e->chunk[is], c);
	c->first = to;
	pthread_mutex_unlock(&e->qpn_lock);
	for (uint32_t k = 0; k < REGISTRY_CHUNK; k++)
		renumber(e, c, k, fn, arg);
	atomic_store(&e->chunk[was], NULL);
}

int engine_number(struct engine *e, uint32_t n, uint32_t *num)
{
	uint32_t i = n / REGISTRY_CHUNK;
	int err = 0;

	pthread_mutex_lock(&e->qpn_lock);
	while (!err && i >= e->nowned)
		err = chunk_lease(e);
	if (!err)
		*num = e->owned[i] * REGISTRY_CHUNK + n % REGISTRY_CHUNK;
	pthread_mutex_unlock(&e->qpn_lock);
	return err;
}

void engine_qpn_free(struct engine *e, struct engine_qp *qp)
{
	struct qpn_chunk *c;

	pthread_mutex_lock(&e->qpn_lock);
	c = atomic_load(&e->chunk[qp->num / REGISTRY_CHUNK]);
	atomic_store(&c->qp[qp->num % REGISTRY_CHUNK], NULL);
	c->used--;
	pthread_mutex_unlock(&e->qpn_lock);
	engine_quiesce(e);
	/* It may have stayed on a list, which is a reference to it. */
	if (atomic_load(&qp->is_held))
		delayed_ack_release_all(e, clock_ns());
}

bool engine_qps_look(struct engine *e,
		     void (*fn)(struct engine_qp *qp, void *arg), void *arg)
{
	bool all = true;

	if (pthread_mutex_trylock(&e->qpn_lock))
		return false;
	for (uint32_t i = 0; i < e->nowned; i++) {
		struct qpn_chunk *c = owned(e, i);

		for (uint32_t k = 0; c->used && k < REGISTRY_CHUNK; k++) {
			struct engine_qp *qp = atomic_load(&c->qp[k]);
			bool live;

			if (!qp)
				continue;
			if (!engine_qp_seize(qp)) {
				all = false;
				continue;
			}
			live = !qp->dead;
			if (live)
				fn(qp, arg);
			/* Others left this behind meanwhile. The caller may not
			 * do it, so whoever runs timers does. */
			if (engine_qp_release(qp) && live &&
			    !timer_try(e, qp, clock_ns()))
				all = false;
		}
	}
	pthread_mutex_unlock(&e->qpn_lock);
	return all;
}

/* All of a chunk with a reference; how many. */
static uint32_t chunk_get(struct engine *e, struct qpn_chunk *c,
			  struct engine_qp **qps)
{
	uint32_t n = 0;

	pthread_mutex_lock(&e->qpn_lock);
	for (uint32_t k = 0; c->used && k < REGISTRY_CHUNK; k++) {
		qps[n] = atomic_load(&c->qp[k]);
		if (qps[n])
			engine_qp_get(qps[n++]);
	}
	pthread_mutex_unlock(&e->qpn_lock);
	return n;
}

bool engine_qps_each(struct engine *e,
		     void (*fn)(struct engine_qp *qp, void *arg), void *arg)
{
	struct engine_qp **qps = calloc(REGISTRY_CHUNK, sizeof(*qps));

	if (!qps)
		return false;
	for (uint32_t i = 0; i < REGISTRY_CHUNKS; i++) {
		struct qpn_chunk *c = atomic_load(&e->chunk[i]);
		uint32_t n = c ? chunk_get(e, c, qps) : 0;

		for (uint32_t k = 0; k < n; k++) {
			engine_qp_lock(qps[k]);
			if (!qps[k]->dead)
				fn(qps[k], arg);
			engine_qp_unlock(qps[k]);
			engine_qp_put(qps[k]);
		}
	}
	free(qps);
	return true;
}

void qpn_fini(struct engine *e)
{
	for (uint32_t i = 0; i < e->nowned; i++)
		free(owned(e, i));
}

/*
 * handles.c - which objects exist
 *
 * A pointer from a program is looked up before anything behind it is read, and
 * the object's handle and context, which the program can overwrite, must be
 * what they were when it was made. Programs pass objects that they have
 * destroyed, copied or overwritten; a kernel notices, since it is passed a
 * handle. Calls on the data path do not check.
 *
 * There is one table for all contexts, since a context that cannot be trusted
 * cannot name the table to search.
 */
#include "verbs.h"

#include "base/why.h"

#include <stdio.h>
#include <stdlib.h>

#define FIRST_BUCKETS 1024u

static pthread_mutex_t live_lock = PTHREAD_MUTEX_INITIALIZER; /* innermost */
static struct shca_live *first[FIRST_BUCKETS];
static struct shca_live **bucket = first;
static size_t nbuckets = FIRST_BUCKETS; /* a power of two */
static size_t nlive;
static uint32_t next_handle;

/* Every public struct begins with its context. */
static const size_t handle_at[SHCA_KINDS] = {
	[SHCA_PD] = offsetof(struct ibv_pd, handle),
	[SHCA_MR] = offsetof(struct ibv_mr, handle),
	[SHCA_MW] = offsetof(struct ibv_mw, handle),
	[SHCA_CQ] = offsetof(struct ibv_cq, handle),
	[SHCA_SRQ] = offsetof(struct ibv_srq, handle),
	[SHCA_QP] = offsetof(struct ibv_qp, handle),
	[SHCA_AH] = offsetof(struct ibv_ah, handle),
};

static const char *const kinds[SHCA_KINDS] = {
	[SHCA_PD] = "a PD",  [SHCA_MR] = "an MR",   [SHCA_MW] = "an MW",
	[SHCA_CQ] = "a CQ",  [SHCA_SRQ] = "an SRQ", [SHCA_QP] = "a QP",
	[SHCA_AH] = "an AH",
};

static uint32_t *handle_of(void *object, enum shca_kind kind)
{
	return (uint32_t *)(void *)((char *)object + handle_at[kind]);
}

static struct ibv_context *context_of(const void *object)
{
	return *(struct ibv_context *const *)object;
}

static struct shca_live **bucket_of(const void *object)
{
	uint64_t x = (uintptr_t)object * 0x9e3779b97f4a7c15u;

	return &bucket[(x >> 32) & (nbuckets - 1)];
}

/* If there is no memory for more buckets, chains grow longer. */
static void buckets_grow(void)
{
	struct shca_live **old = bucket, *l, *next;
	const size_t n = nbuckets;
	size_t i;

	bucket = calloc(2 * n, sizeof(struct shca_live *));
	if (!bucket) {
		bucket = old;
		return;
	}
	nbuckets = 2 * n;
	for (i = 0; i < n; i++)
		for (l = old[i]; l; l = next) {
			struct shca_live **p = bucket_of(l->object);

			next = l->next;
			l->next = *p;
			*p = l;
		}
	if (old != first)
		free(old);
}

void shca_live_add(struct shca_live *l, void *object, enum shca_kind kind)
{
	struct shca_live **p;

	pthread_mutex_lock(&live_lock);
	/* The handle of memory and domains is their number, see dm.c. */
	if (kind != SHCA_PD && kind != SHCA_MR && kind != SHCA_MW)
		*handle_of(object, kind) = ++next_handle;
	*l = (struct shca_live){
		.object = object,
		.context = context_of(object),
		.handle = *handle_of(object, kind),
		.kind = kind,
		.made = check_on() ? check_callsite() : 0,
	};
	if (nlive >= nbuckets)
		buckets_grow();
	nlive++;
	p = bucket_of(object);
	l->next = *p;
	*p = l;
	pthread_mutex_unlock(&live_lock);
}

void shca_live_remove(struct shca_live *l)
{
	struct shca_live **p;

	pthread_mutex_lock(&live_lock);
	for (p = bucket_of(l->object); *p != l; p = &(*p)->next)
		;
	*p = l->next;
	nlive--;
	pthread_mutex_unlock(&live_lock);
}

int shca_check(const void *object, enum shca_kind kind)
{
	const struct shca_live *l;
	bool moved = false;
	int err = -ENOENT;

	pthread_mutex_lock(&live_lock);
	for (l = *bucket_of(object); l; l = l->next)
		if (l->object == object)
			break;
	if (l && l->kind == kind) {
		moved = context_of(object) != l->context;
		if (!moved && *handle_of(l->object, kind) == l->handle)
			err = engine_dead(to_ctx(l->context)->engine) ? -EIO :
									0;
	}
	pthread_mutex_unlock(&live_lock);
	if (moved)
		return why(err, "the context in %s at %p was overwritten",
			   kinds[kind], object);
	if (err == -ENOENT)
		return why(
			err,
			"%p is not %s, or it has been destroyed or overwritten",
			object, kinds[kind]);
	return err;
}

/* Whether an object was made with another. */
static bool live_uses(const struct shca_live *l, const void *other)
{
	switch (l->kind) {
	case SHCA_MR:
		return ((const struct ibv_mr *)l->object)->pd == other;
	case SHCA_MW:
		return ((const struct ibv_mw *)l->object)->pd == other;
	case SHCA_AH:
		return ((const struct ibv_ah *)l->object)->pd == other;
	case SHCA_CQ: {
		struct shca_cq *cq = to_cq(l->object);

		return cq->ex.channel == other || cq->parent == other;
	}
	case SHCA_SRQ: {
		struct shca_srq *srq = to_srq(l->object);

		return srq->srq.pd == other ||
		       (srq->cq && (void *)srq->cq == other);
	}
	case SHCA_QP: {
		const struct ibv_qp *qp = l->object;

		return qp->pd == other || qp->send_cq == other ||
		       qp->recv_cq == other || qp->srq == other;
	}
	case SHCA_PD: {
		const struct shca_pd *of = to_pd(l->object)->of;

		return of && &of->pd == other;
	}
	case SHCA_KINDS:
		break;
	}
	return false;
}

/* With what the program knows it by. */
static int live_describe(const struct shca_live *l, char *text, size_t size)
{
	switch (l->kind) {
	case SHCA_QP:
		return snprintf(text, size, "QP 0x%06x",
				((const struct ibv_qp *)l->object)->qp_num);
	case SHCA_MR:
		return snprintf(text, size, "the MR with lkey 0x%08x",
				((const struct ibv_mr *)l->object)->lkey);
	case SHCA_MW:
		return snprintf(text, size, "the MW with rkey 0x%08x",
				((const struct ibv_mw *)l->object)->rkey);
	default:
		return snprintf(text, size, "%s", kinds[l->kind]);
	}
}

int shca_busy(const void *object, const char *what)
{
	unsigned n = 0;
	char text[400] = "", *p = text;
	size_t i, room = sizeof(text);

	if (!why_wanted())
		return -EBUSY;
	pthread_mutex_lock(&live_lock);
	for (i = 0; i < nbuckets; i++)
		for (const struct shca_live *l = bucket[i]; l; l = l->next) {
			int len;

			if (!live_uses(l, object) || n++ >= 4)
				continue;
			len = live_describe(l, p, room);
			len += snprintf(p + len, room - (size_t)len, ", ");
			p += len;
			room -= (size_t)len;
		}
	pthread_mutex_unlock(&live_lock);
	if (n > 4)
		snprintf(p, room, "and %u more ", n - 4);
	else if (p - text > 2)
		p[-2] = '\0';
	return why(-EBUSY, "%s is still used by %s: destroy %s first", what,
		   n ? text : "work that is not finished",
		   n == 1 ? "that" : "those");
}

void shca_live_stays(struct shca_live *l)
{
	pthread_mutex_lock(&live_lock);
	l->stays = true;
	pthread_mutex_unlock(&live_lock);
}

void shca_live_leaked(const struct ibv_context *context, const char *call)
{
	bool any = false;
	char text[64];

	pthread_mutex_lock(&live_lock);
	for (size_t i = 0; i < nbuckets; i++)
		for (struct shca_live *l = bucket[i]; l; l = l->next) {
			if (l->stays || (context && l->context != context) ||
			    engine_dead(to_ctx(l->context)->engine))
				continue;
			any = l->stays = true;
			live_describe(l, text, sizeof(text));
			check_ops->leaked(call, text, l->made);
		}
	pthread_mutex_unlock(&live_lock);
	if (context && !any)
		check_ops->leaked(call,
				  "a completion channel, an XRC domain, a "
				  "thread domain or device memory",
				  0);
}

void shca_live_each(const struct engine *e, enum shca_kind kind,
		    void (*fn)(void *object, void *arg), void *arg)
{
	pthread_mutex_lock(&live_lock);
	for (size_t i = 0; i < nbuckets; i++)
		for (const struct shca_live *l = bucket[i]; l; l = l->next)
			if (l->kind == kind && to_ctx(l->context)->engine == e)
				fn(l->object, arg);
	pthread_mutex_unlock(&live_lock);
}

/* Around fork(). */

void shca_live_hold(void)
{
	pthread_mutex_lock(&live_lock);
}

void shca_live_release(void)
{
	pthread_mutex_unlock(&live_lock);
}

int shca_count(struct engine *e, enum shca_kind kind)
{
	struct shca_process *proc = to_process(e);

	if (atomic_fetch_add(&proc->nobjects[kind], 1) < SHCA_MAX_OBJECTS)
		return 0;
	atomic_fetch_sub(&proc->nobjects[kind], 1);
	return why(-ENOMEM,
		   "there are %d objects of this kind, as many as a process "
		   "can have: destroy some",
		   SHCA_MAX_OBJECTS);
}

void shca_uncount(struct engine *e, enum shca_kind kind)
{
	atomic_fetch_sub(&to_process(e)->nobjects[kind], 1);
}

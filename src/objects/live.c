/*
 * live.c - which objects exist
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
#include "process.h"

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

static uint32_t *handle_of(void *object, enum shca_kind kind)
{
	return (uint32_t *)(void *)((char *)object + handle_at[kind]);
}

static struct ibv_context *context_of(const void *object)
{
	return *(struct ibv_context *const *)object;
}

static struct shca_live **place(const void *object)
{
	uint64_t x = (uintptr_t)object * 0x9e3779b97f4a7c15u;

	return &bucket[(x >> 32) & (nbuckets - 1)];
}

/* If there is no memory for more buckets, chains grow longer. */
static void grow(void)
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
			struct shca_live **p = place(l->object);

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
	};
	if (nlive >= nbuckets)
		grow();
	nlive++;
	p = place(object);
	l->next = *p;
	*p = l;
	pthread_mutex_unlock(&live_lock);
}

void shca_live_remove(struct shca_live *l)
{
	struct shca_live **p;

	pthread_mutex_lock(&live_lock);
	for (p = place(l->object); *p != l; p = &(*p)->next)
		;
	*p = l->next;
	nlive--;
	pthread_mutex_unlock(&live_lock);
}

int shca_check(const void *object, enum shca_kind kind)
{
	const struct shca_live *l;
	int err = -ENOENT;

	pthread_mutex_lock(&live_lock);
	for (l = *place(object); l; l = l->next)
		if (l->object == object)
			break;
	if (l && l->kind == kind) {
		if (context_of(object) != l->context)
			err = -EINVAL;
		else if (*handle_of(l->object, kind) == l->handle)
			err = engine_dead(to_ctx(l->context)->engine) ? -EIO :
									0;
	}
	pthread_mutex_unlock(&live_lock);
	return err;
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

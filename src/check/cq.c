/*
 * cq.c - what is known of completion queues
 */
#include "check_internal.h"

#include "base/hash64.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define BUCKETS 256u

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct check_cq *cqs[BUCKETS];

void check_cqs_forked(void)
{
	/* What was there is the parent's, and leaks. */
	pthread_mutex_init(&lock, NULL);
	memset(cqs, 0, sizeof(cqs));
}

static struct check_cq **cq_bucket(const struct ibv_cq *ib)
{
	struct check_cq **p = &cqs[hash64((uintptr_t)ib) % BUCKETS];

	while (*p && (*p)->ib != ib)
		p = &(*p)->next;
	return p;
}

struct check_cq *check_cq_get(const struct ibv_cq *ib)
{
	struct check_cq *c;

	pthread_mutex_lock(&lock);
	c = *cq_bucket(ib);
	if (c)
		atomic_fetch_add(&c->refs, 1);
	pthread_mutex_unlock(&lock);
	return c;
}

void check_cq_put(struct check_cq *c)
{
	if (c && atomic_fetch_sub(&c->refs, 1) == 1)
		free(c);
}

void check_cqs_each(void (*fn)(struct check_cq *c, void *arg), void *arg)
{
	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < BUCKETS; i++)
		for (struct check_cq *c = cqs[i]; c; c = c->next)
			fn(c, arg);
	pthread_mutex_unlock(&lock);
}

void check_cq_created(struct ibv_cq *ib, int cqe)
{
	struct check_cq **bucket = &cqs[hash64((uintptr_t)ib) % BUCKETS];
	struct check_cq *c = calloc(1, sizeof(*c));

	if (!c)
		return;
	c->ib = ib;
	atomic_store(&c->refs, 1);
	atomic_store(&c->cqe, cqe);
	c->made = check_here();
	pthread_mutex_init(&c->lock, NULL);
	pthread_mutex_lock(&lock);
	c->next = *bucket;
	*bucket = c;
	pthread_mutex_unlock(&lock);
}

void check_cq_resized(struct ibv_cq *ib, int cqe)
{
	struct check_cq *c = check_cq_get(ib);

	if (c)
		atomic_store(&c->cqe, cqe);
	check_cq_put(c);
}

void check_cq_gone(struct ibv_cq *ib)
{
	struct check_cq **p, *c;

	pthread_mutex_lock(&lock);
	p = cq_bucket(ib);
	c = *p;
	if (c)
		*p = c->next;
	pthread_mutex_unlock(&lock);
	check_cq_put(c);
}

void check_cq_armed(struct ibv_cq *ib)
{
	struct check_cq *c = check_cq_get(ib);

	if (c)
		atomic_store(&c->armed, check_here());
	check_cq_put(c);
}

void check_cq_event(struct ibv_cq *ib)
{
	struct check_cq *c = check_cq_get(ib);

	if (c)
		atomic_store(&c->got, check_here());
	check_cq_put(c);
}

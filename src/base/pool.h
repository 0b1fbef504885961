/*
 * pool.h - a limited number of large pieces of memory, zeroed, for a while
 *
 * The pieces are from the kernel rather than from malloc(3): they can be had in
 * a signal handler, and are gone when they are given back. Layers that do no
 * I/O are handed a pool, which has the functions for that.
 */
#ifndef SOFTHCA_BASE_POOL_H
#define SOFTHCA_BASE_POOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#define POOL_MAX 64 /* pieces in use, */
#define POOL_FEW 8 /* of which so many may be idle */

struct pool {
	_Atomic unsigned used;
	void *(*map)(size_t bytes); /* NULL: there is none */
	void (*unmap)(void *p, size_t bytes);
};

#define POOL_INIT                                                              \
	{                                                                      \
		.map = pool_map, .unmap = pool_unmap                           \
	}

void *pool_map(size_t bytes);
void pool_unmap(void *p, size_t bytes);

/* NULL: none is left. */
static inline void *pool_get(struct pool *pool, size_t bytes)
{
	void *p = NULL;

	if (atomic_fetch_add(&pool->used, 1) < POOL_MAX)
		p = pool->map(bytes);
	if (!p)
		atomic_fetch_sub(&pool->used, 1);
	return p;
}

static inline void pool_put(struct pool *pool, void *p, size_t bytes)
{
	pool->unmap(p, bytes);
	atomic_fetch_sub(&pool->used, 1);
}

/* Whether who has one that is idle should give it back. */
static inline bool pool_scarce(const struct pool *pool)
{
	return atomic_load(&pool->used) > POOL_FEW;
}

#endif

/*
 * pool.h - a limited number of large pieces of memory, zeroed, for a while
 *
 * From the kernel rather than from malloc(3): it can be had in a signal handler,
 * and is gone when it is given back.
 */
#ifndef SOFTHCA_BASE_POOL_H
#define SOFTHCA_BASE_POOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/mman.h>

#define POOL_MAX 64 /* pieces in use, */
#define POOL_FEW 8 /* of which so many may be idle */

struct pool {
	_Atomic unsigned used;
};

/* NULL: none is left. */
static inline void *pool_get(struct pool *pool, size_t bytes)
{
	void *p = MAP_FAILED;

	if (atomic_fetch_add(&pool->used, 1) < POOL_MAX)
		p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p != MAP_FAILED)
		return p;
	atomic_fetch_sub(&pool->used, 1);
	return NULL;
}

static inline void pool_put(struct pool *pool, void *p, size_t bytes)
{
	munmap(p, bytes);
	atomic_fetch_sub(&pool->used, 1);
}

/* Whether who has one that is idle should give it back. */
static inline bool pool_scarce(const struct pool *pool)
{
	return atomic_load(&pool->used) > POOL_FEW;
}

#endif

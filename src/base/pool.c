/*
 * pool.c - the memory of a pool
 */
#include "pool.h"

#include <sys/mman.h>

void *pool_map(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

void pool_unmap(void *p, size_t bytes)
{
	munmap(p, bytes);
}

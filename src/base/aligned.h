/*
 * aligned.h - memory for structs that say where their cache lines begin
 *
 * calloc(3) aligns to 16 bytes; free(3) is for this, too.
 */
#ifndef SOFTHCA_BASE_ALIGNED_H
#define SOFTHCA_BASE_ALIGNED_H

#include <stdlib.h>
#include <string.h>

#define CACHE_LINE 64

/* Zeroed; size: of such a struct, so a multiple of CACHE_LINE. NULL: none. */
static inline void *aligned_zalloc(size_t size)
{
	void *p = aligned_alloc(CACHE_LINE, size);

	return p ? memset(p, 0, size) : NULL;
}

#endif

/*
 * fd_table.h - what a library keeps for descriptors, read without locks
 *
 * A pointer for each number, in chunks that are made when they are first needed
 * and stay. What a slot points to may have ended when a reader gets to it: its
 * owner says how that is seen.
 */
#ifndef SOFTHCA_BASE_FD_TABLE_H
#define SOFTHCA_BASE_FD_TABLE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#define FD_CHUNK 1024u
#define FD_CHUNKS 1024u
#define FD_TABLE_MAX (FD_CHUNK * FD_CHUNKS) /* no descriptor from here on */

struct fd_chunk {
	_Atomic(void *) slot[FD_CHUNK];
};

struct fd_table {
	_Atomic(struct fd_chunk *) chunk[FD_CHUNKS];
};

/* NULL if there is none, or with make if there is no memory for it. */
static inline _Atomic(void *) *fd_slot(struct fd_table *t, int fd, bool make)
{
	struct fd_chunk *c, *none = NULL;
	_Atomic(struct fd_chunk *) *p;

	if (fd < 0 || (unsigned)fd >= FD_TABLE_MAX)
		return NULL;
	p = &t->chunk[(unsigned)fd / FD_CHUNK];
	c = atomic_load_explicit(p, memory_order_acquire);
	if (!c && make) {
		c = calloc(1, sizeof(*c));
		if (!c)
			return NULL;
		if (!atomic_compare_exchange_strong(p, &none, c)) {
			free(c);
			c = none;
		}
	}
	return c ? &c->slot[(unsigned)fd % FD_CHUNK] : NULL;
}

static inline void *fd_find(struct fd_table *t, int fd)
{
	_Atomic(void *) *slot = fd_slot(t, fd, false);

	return slot ? atomic_load_explicit(slot, memory_order_acquire) : NULL;
}

/* The first at *fd or behind it, which becomes its descriptor; or NULL. */
static inline void *fd_next(struct fd_table *t, unsigned *fd)
{
	struct fd_chunk *c;
	void *p;

	while (*fd < FD_TABLE_MAX) {
		c = atomic_load(&t->chunk[*fd / FD_CHUNK]);
		p = c ? atomic_load(&c->slot[*fd % FD_CHUNK]) : NULL;
		if (p)
			return p;
		*fd += c ? 1 : FD_CHUNK - *fd % FD_CHUNK;
	}
	return NULL;
}

#endif

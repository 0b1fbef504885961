/*
 * spare.h - buffers in which packets are put together, kept for the next time
 *
 * A program may post while it is in malloc(): a signal's handler of perftest
 * opens files, and would wait for itself if what it has interrupted here held the
 * allocator's lock. So buffers are the kernel's, and as many as have been in use
 * at once are kept.
 */
#ifndef SOFTHCA_LINK_SPARE_H
#define SOFTHCA_LINK_SPARE_H

#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>

#define SPARE_MOST 8 /* are kept */

struct spare {
	size_t bytes; /* of each */
	_Atomic(void *) buf[SPARE_MOST]; /* that nobody uses, or NULL */
};

/* NULL: no memory. */
static inline void *spare_take(struct spare *s)
{
	void *buf;

	for (size_t i = 0; i < SPARE_MOST; i++) {
		buf = atomic_exchange(&s->buf[i], NULL);
		if (buf)
			return buf;
	}
	buf = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return buf == MAP_FAILED ? NULL : buf;
}

static inline void spare_put(struct spare *s, void *buf)
{
	void *none;

	for (size_t i = 0; i < SPARE_MOST; i++) {
		none = NULL;
		if (atomic_compare_exchange_strong(&s->buf[i], &none, buf))
			return;
	}
	munmap(buf, s->bytes);
}

static inline void spare_fini(struct spare *s)
{
	void *buf;

	for (size_t i = 0; i < SPARE_MOST; i++) {
		buf = atomic_exchange(&s->buf[i], NULL);
		if (buf)
			munmap(buf, s->bytes);
	}
}

#endif

/*
 * ring_ends.h - both ends of a ring, whose records have numbers: from a number
 * follows what is in the record
 */
#ifndef SOFTHCA_TESTS_UNIT_RING_ENDS_H
#define SOFTHCA_TESTS_UNIT_RING_ENDS_H

#include "unit.h"

#include "link/ring.h"

#include <sys/mman.h>

/* Both ends, and the numbers of the records between them. */
struct ends {
	struct ring_mem *mem;
	struct ring_out out;
	struct ring_in in;
	uint32_t put, got; /* records */
	uint8_t *data; /* RING_DATA_MAX bytes that look random */
};

#define LIFE 7

static inline struct ring_mem *new_mem(void)
{
	void *p = mmap(NULL, RING_BYTES, PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(p, MAP_FAILED);
	return p;
}

static inline struct ends *ends_new(void)
{
	struct ends *e = aligned_alloc(64, sizeof(*e) + 64 - sizeof(*e) % 64);
	uint64_t state = 4711;

	assert_non_null(e);
	memset(e, 0, sizeof(*e));
	e->mem = new_mem();
	e->data = malloc(2 * RING_DATA_MAX);
	rnd_fill(&state, e->data, 2 * RING_DATA_MAX);
	ring_in_init(&e->in, e->mem);
	assert_int_equal(ring_out_attach(&e->out, e->mem, LIFE), 0);
	return e;
}

static inline void ends_free(struct ends *e)
{
	munmap(e->mem, RING_BYTES);
	free(e->data);
	free(e);
}

/* How many bytes record number n has, so that the consumer knows as well. */
static inline uint32_t bytes_of(uint32_t n, uint32_t max)
{
	uint64_t state = n * 0x9e3779b97f4a7c15u + 1;

	rnd(&state);
	return (uint32_t)(rnd(&state) % (rnd(&state) % 4 ? 33 : max + 1));
}

static inline const uint8_t *data_of(const struct ends *e, uint32_t n)
{
	return e->data + n % RING_DATA_MAX;
}

static inline void fill(const struct ends *e, struct ring_rec *rec, uint32_t n,
			uint32_t bytes)
{
	rec->qpn_opcode = n * 3;
	rec->psn_flags = n * 5;
	rec->path = n * 7;
	rec->len = bytes;
	rec->imm = n;
	rec->va = n * 0x100000001u;
	rec->rkey = n * 11;
	rec->dma_len = n * 13;
	memcpy(ring_data(rec), data_of(e, n), bytes);
}

static inline bool is(const struct ends *e, const struct ring_in *in,
		      struct ring_rec *rec, uint32_t n, uint32_t bytes)
{
	ring_get_rest(in, rec);
	return ring_bytes(rec) == bytes && rec->len == bytes &&
	       rec->qpn_opcode == n * 3 && rec->psn_flags == n * 5 &&
	       rec->path == n * 7 && rec->imm == n &&
	       rec->va == n * 0x100000001u && rec->rkey == n * 11 &&
	       rec->dma_len == n * 13 &&
	       !memcmp(ring_in_data(in), data_of(e, n), bytes);
}

/* Puts the next record, or returns false where there is no room. */
static inline bool put(struct ends *e, uint32_t bytes, uint32_t qpn)
{
	struct ring_rec *rec = ring_begin(&e->out, bytes);

	if (!rec)
		return false;
	fill(e, rec, e->put, bytes);
	ring_commit(&e->out, bytes, qpn, e->put & 0xffffff, e->put * 17);
	e->put++;
	return true;
}

/* The same, and all that is not published. */
static inline bool put_now(struct ends *e, uint32_t bytes, uint32_t qpn)
{
	struct ring_rec *rec = ring_begin(&e->out, bytes);

	if (!rec)
		return false;
	fill(e, rec, e->put, bytes);
	ring_put(&e->out, bytes, qpn, e->put & 0xffffff, e->put * 17);
	e->put++;
	return true;
}

static inline void take(struct ends *e, uint32_t bytes, enum ring_ack_note v)
{
	struct ring_rec rec = { .word = 0 };

	assert_true(ring_ready(&e->in));
	assert_true(ring_get(&e->in, &rec));
	assert_int_equal(ring_generation(&rec), LIFE);
	assert_true(is(e, &e->in, &rec, e->got, bytes));
	e->got++;
	ring_release(&e->in, v);
}

static inline void reap_nothing(struct ends *e)
{
	struct ring_ack ack;

	assert_false(ring_reap(&e->out, &ack));
}

#endif

/*
 * ring.c - what happens in a ring of records once a lap, or once in its life
 */
#include "ring.h"

#include <errno.h>

#define SKIP 0xffffu /* instead of the bytes of a record: go on at the start */

_Static_assert(SKIP > RING_DATA_MAX, "no record has so many bytes");
/* Wherever the next one begins, it fits when the ring is empty. */
_Static_assert(2 * ((RING_DATA_MAX + RING_HDR) / RING_UNIT + 2) < RING_UNITS,
	       "the largest record");

/* A skip record is never before this: what needs it would have fit. */
static uint32_t skip_first(void)
{
	return RING_UNITS - ring_units(RING_DATA_MAX);
}

/*
 * The units of the record at index at whose first word this is; 0: the word
 * makes no sense there.
 */
static uint32_t units_at(uint32_t at, uint32_t word)
{
	const uint32_t bytes = word & 0xffff;

	if (!word)
		return 0;
	if (bytes == SKIP)
		return at >= skip_first() ? RING_UNITS - at : 0;
	if (bytes > RING_DATA_MAX || at + ring_units(bytes) >= RING_UNITS)
		return 0;
	return ring_units(bytes);
}

static uint32_t *first_word(struct ring_mem *mem, uint32_t at)
{
	return &mem->unit[at].word;
}

/* ---- The producer ------------------------------------------------------- */

/* Units from at on that can be written, the one that is cleared included. */
static uint32_t ring_room(const struct ring_out *out)
{
	return RING_UNITS -
	       (out->put - __atomic_load_n(&out->taken, __ATOMIC_ACQUIRE));
}

static void set_limit(struct ring_out *out)
{
	const uint32_t n = ring_room(out), end = RING_UNITS - out->at;

	out->limit = out->at + (n < end ? n : end);
}

/* The dead producer's records: they lie between consumer and us. */
static int find_end(struct ring_out *out)
{
	uint32_t word, units;

	for (;;) {
		word = __atomic_load_n(first_word(out->mem, out->at),
				       __ATOMIC_ACQUIRE);
		if (!word)
			return 0;
		units = units_at(out->at, word);
		/* One unit, ours, has a word that is 0. */
		if (!units || out->put + units >= RING_UNITS)
			return -EPROTO;
		ring_account(out, out->at, units, 0, 0, 0);
		out->at %= RING_UNITS;
	}
}

int ring_out_attach(struct ring_out *out, struct ring_mem *mem,
		    uint16_t generation)
{
	const uint32_t pos = __atomic_load_n(&mem->in.pos, __ATOMIC_ACQUIRE);
	const uint32_t at = pos & 0xffff, lap = pos >> 16;
	int err;

	memset(out, 0, sizeof(*out));
	if (__atomic_load_n(&mem->in.broken, __ATOMIC_ACQUIRE))
		return -EPIPE;
	if (at >= RING_UNITS || lap > RING_LAP_LAST || lap & 1)
		return -EPROTO;
	out->mem = mem;
	out->generation = (uint32_t)generation << 16;
	out->at = out->oldest = at;
	out->lap = lap ? (uint8_t)lap : RING_LAP_FIRST;
	err = find_end(out);
	if (err)
		return err;
	out->clear = out->at + 1;
	set_limit(out);
	return 0;
}

/* The rest of the lap is skipped; the unit where the next one begins is free. */
static void ring_skip(struct ring_out *out)
{
	const uint32_t units = RING_UNITS - out->at;
	uint32_t *word = first_word(out->mem, out->at);

	__atomic_store_n(first_word(out->mem, 0), 0, __ATOMIC_RELAXED);
	if (out->unpublished) {
		__atomic_store_n(word, out->generation | SKIP,
				 __ATOMIC_RELAXED);
	} else {
		out->unpublished = word;
		out->word = out->generation | SKIP;
	}
	ring_account(out, out->at, units, 0, 0, 0);
	out->at = 0;
	out->clear = 1;
}

struct ring_rec *ring_begin_slow(struct ring_out *out, uint32_t bytes)
{
	const uint32_t units = ring_units(bytes), end = RING_UNITS - out->at;

	if (ring_out_broken(out))
		return NULL;
	set_limit(out);
	if (out->at + units >= out->limit) {
		if (units < end || end + units >= ring_room(out))
			return NULL;
		ring_skip(out);
		set_limit(out);
	}
	if (units > 1)
		out->clear = out->at + 1;
	return &out->mem->unit[out->at];
}

static void out_break(struct ring_out *out)
{
	__atomic_store_n(&out->broken, 1, __ATOMIC_RELEASE);
}

bool ring_reap_some(struct ring_out *out, struct ring_ack *ack, bool *more)
{
	const uint32_t put = __atomic_load_n(&out->put, __ATOMIC_ACQUIRE);
	uint32_t taken = out->taken, at = out->oldest, qpn = 0;
	const struct ring_shadow *s, *last = NULL;
	uint8_t v;

	*more = false;
	while (taken != put) {
		v = __atomic_load_n(&out->mem->ack_note[at], __ATOMIC_ACQUIRE);
		if ((v & ~RING_ACKED) != out->lap) {
			if (v == RING_ACK_NOTE_BROKEN)
				out_break(out);
			break;
		}
		s = &out->shadow[at];
		if (v & RING_ACKED && s->qpn) {
			if (qpn && qpn != s->qpn) {
				*more = true;
				break;
			}
			qpn = s->qpn;
			last = s;
		}
		taken += s->units;
		at += s->units;
		if (at == RING_UNITS) {
			at = 0;
			out->lap = ring_lap_next(out->lap);
		}
	}
	/* The producer may write there again when it is taken. */
	if (last) {
		ack->qpn = qpn;
		ack->psn = last->psn;
		ack->cookie = last->cookie;
	}
	out->oldest = at;
	__atomic_store_n(&out->taken, taken, __ATOMIC_RELEASE);
	return last;
}

/* Whether the consumer, who has not said so, may be done with the oldest. */
static bool is_near(const struct ring_out *out, uint32_t pos)
{
	const uint32_t next = out->oldest + out->shadow[out->oldest].units;

	if (!pos) /* it has not begun */
		pos = RING_LAP_FIRST << 16;
	if (pos == (out->oldest | (uint32_t)out->lap << 16))
		return true;
	return next < RING_UNITS ?
		       pos == (next | (uint32_t)out->lap << 16) :
		       pos == (uint32_t)ring_lap_next(out->lap) << 16;
}

bool ring_out_check(struct ring_out *out)
{
	struct ring_mem *mem = out->mem;
	uint32_t *first = first_word(mem, out->oldest), pos, word;
	uint8_t v;

	if (__atomic_load_n(&mem->in.broken, __ATOMIC_ACQUIRE))
		out_break(out);
	if (ring_out_broken(out))
		return false;
	if (!ring_unread(out) || first == out->unpublished)
		return true;
	/* A consumer at work stores pos, then the ACK note. */
	pos = __atomic_load_n(&mem->in.pos, __ATOMIC_ACQUIRE);
	word = __atomic_load_n(first, __ATOMIC_ACQUIRE);
	v = __atomic_load_n(&mem->ack_note[out->oldest], __ATOMIC_ACQUIRE);
	if ((v & ~RING_ACKED) == out->lap)
		return true;
	if (!is_near(out, pos) ||
	    units_at(out->oldest, word) != out->shadow[out->oldest].units)
		out_break(out);
	return !ring_out_broken(out);
}

/* ---- The consumer ------------------------------------------------------- */

static uint32_t in_at(const struct ring_in *in)
{
	return in->pos & 0xffff;
}

static uint8_t in_lap(const struct ring_in *in)
{
	return (uint8_t)(in->pos >> 16);
}

static void say_pos(struct ring_in *in)
{
	__atomic_store_n(&in->mem->in.pos, in->pos, __ATOMIC_RELEASE);
}

static void begin_lap(struct ring_in *in, uint8_t lap)
{
	in->pos = (uint32_t)lap << 16;
	in->line = &in->mem->unit[0];
	say_pos(in);
}

void ring_in_init(struct ring_in *in, struct ring_mem *mem)
{
	*in = (struct ring_in){ .mem = mem };
	begin_lap(in, RING_LAP_FIRST);
}

void ring_in_reset(struct ring_in *in)
{
	struct ring_mem *mem = in->mem;

	__atomic_store_n(first_word(mem, 0), 0, __ATOMIC_RELAXED);
	memset(mem->ack_note, 0, sizeof(mem->ack_note));
	ring_in_init(in, mem);
	__atomic_store_n(&mem->in.broken, 0, __ATOMIC_RELEASE);
}

static void say_broken(struct ring_in *in)
{
	for (uint32_t i = 0; i < RING_UNITS; i++)
		__atomic_store_n(&in->mem->ack_note[i], RING_ACK_NOTE_BROKEN,
				 __ATOMIC_RELAXED);
	__atomic_store_n(&in->mem->in.broken, 1, __ATOMIC_RELEASE);
}

void ring_in_break(struct ring_in *in, const char *why)
{
	in->broken = why;
	in->line = &in->none;
	say_broken(in);
}

uint32_t ring_odd(struct ring_in *in, uint32_t word)
{
	const uint32_t at = in_at(in), units = units_at(at, word);

	if (!units) {
		ring_in_break(in, "a record that is longer than the ring");
		return 0;
	}
	in->lap_before = in_lap(in);
	begin_lap(in, ring_lap_next(in->lap_before));
	ring_done(in->mem, at, units, in->lap_before);
	word = __atomic_load_n(&in->line->word, __ATOMIC_ACQUIRE);
	/* No second one: a skip record is not at the start. */
	return ring_is_odd(in, word) ? ring_odd(in, word) : word;
}

void ring_in_check(struct ring_in *in)
{
	struct ring_mem *mem = in->mem;
	uint8_t *v, lap;

	if (in->broken) {
		say_broken(in);
		return;
	}
	for (uint32_t i = 0; i < RING_UNITS; i++) {
		v = &mem->ack_note[i];
		lap = i < in_at(in) ? in_lap(in) : in->lap_before;
		/* An acknowledgement may have been lost, then: not for ever. */
		if ((__atomic_load_n(v, __ATOMIC_RELAXED) & ~RING_ACKED) != lap)
			__atomic_store_n(v, lap, __ATOMIC_RELEASE);
	}
	__atomic_store_n(&mem->in.broken, 0, __ATOMIC_RELEASE);
	say_pos(in);
}

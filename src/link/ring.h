/*
 * ring.h - a ring of records in shared memory, from one process to another
 *
 * One producer, one consumer, and no index between them: the consumer looks at
 * the first word of the record that comes next, which the producer stores last.
 * So a small record travels in one cache line, which the producer writes and
 * the consumer reads. The way back has none either: for each unit there is a
 * byte that the consumer sets when it is done with a record, to the number of
 * its lap and one bit, the ACK note. An ACK note acknowledges an RC request, so
 * that no record has to travel for it.
 *
 * The memory (struct ring_mem) is RING_BYTES, zero at first. A record lies in
 * whole units of 64 bytes that are contiguous: a header of RING_HDR bytes, then
 * its data. What does not fit before the end of the ring begins at its start,
 * and a skip record stands in the rest.
 *
 * Invariant: the first word of the unit where the next record will begin is 0
 * when that unit becomes the next one. The producer has to see to it before it
 * publishes what is before that unit, as old data lies there. A producer can
 * therefore be killed between any two instructions: what it has not published
 * has never been there, and another one goes on at the same place
 * (ring_out_attach). A consumer lives as long as the memory does.
 *
 * Nothing here makes a system call or takes a lock. ring_begin() to
 * ring_publish() are one thread's at a time, the producing side's; so are
 * ring_reap() and what is said to go with it; so is the consuming side. The
 * producing side and the reaping side of a ring may be two threads at once.
 *
 * Any process that maps the memory can write anything there at any time. The
 * consumer copies a header once and then checks it; what it finds wrong breaks
 * the ring: no record comes from it any more and the producer is told. Nothing
 * in the way back can harm the producer: a byte there either is the one it
 * waits for or not. Somebody who overwrites a byte that counts can make both
 * wait for each other; ring_out_check() and ring_in_check(), called when
 * something takes long, find this out.
 */
#ifndef SOFTHCA_LINK_RING_H
#define SOFTHCA_LINK_RING_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define RING_BYTES 65536u
#define RING_UNIT 64u
#define RING_UNITS 1000u
#define RING_HDR 40u
#define RING_SMALL (RING_UNIT - RING_HDR) /* data within the first line */
#define RING_DATA_MAX 18432u /* bytes of data in one record */

/* Units that a record with so many bytes of data takes. */
static inline uint32_t ring_units(uint32_t bytes)
{
	return (bytes + RING_HDR + RING_UNIT - 1) / RING_UNIT;
}

/*
 * The first line of a record; the consumer's copy of it lacks small.
 * All but word is the link's: nothing in ring.c looks at it. Host order.
 */
struct ring_rec {
	uint32_t word; /* ring_begin() to ring_publish(); use ring_bytes() */
	uint32_t qpn_opcode; /* destination QPN << 8 | opcode */
	uint32_t psn_flags; /* PSN << 8 | enum ring_flags */
	uint32_t path; /* hash of both GIDs as the receiver sees them */
	uint32_t len; /* payload bytes of the packet */
	uint32_t imm; /* ImmDt or IETH; or AETH: syndrome << 24 | MSN */
	uint64_t va; /* RETH, AtomicETH; or AtomicAckETH's value */
	uint32_t rkey; /* RETH, AtomicETH */
	uint32_t dma_len; /* RETH */
	uint8_t small[RING_SMALL];
};

enum ring_flags {
	RING_F_SOLICITED = 1 << 0,
	RING_F_ACK_REQ = 1 << 1,
	RING_F_LARGE = 1 << 2, /* may exceed the path MTU */
	RING_F_REF = 1 << 3, /* the data says where the payload lies */
	RING_F_EXT = 1 << 4, /* an extension is before payload or places */
};

/*
 * The memory. Fields that one side writes and the other reads are accessed
 * atomically, by the functions below.
 */
struct ring_mem {
	/* Written by the consumer, with each record; the producer does not read
	 * there as long as all is well. */
	struct {
		uint32_t pos; /* index | lap << 16, for ring_out_attach() */
		uint32_t broken;
	} in __attribute__((aligned(64)));
	/* Written by the producer, rarely. */
	struct {
		uint32_t word[16]; /* the link's */
	} out __attribute__((aligned(64)));
	/* Written by the consumer, rarely. */
	struct {
		uint32_t word[16]; /* the link's: what it tells the producer */
	} told __attribute__((aligned(64)));
	uint8_t reserved[5][64];
	uint8_t ack_note[1024]; /* of RING_UNITS; written by the consumer */
	struct ring_rec unit[RING_UNITS];
};
_Static_assert(sizeof(struct ring_rec) == RING_UNIT, "one cache line");
_Static_assert(sizeof(struct ring_mem) == RING_BYTES, "as in segment.h");
_Static_assert(offsetof(struct ring_rec, small) == RING_HDR, "no padding");

/* The data of a record that lies in the ring. */
static inline uint8_t *ring_data(struct ring_rec *rec)
{
	return (uint8_t *)rec + RING_HDR;
}

static inline uint32_t ring_bytes(const struct ring_rec *rec)
{
	return rec->word & 0xffff;
}

/* The generation of who has produced it. */
static inline uint16_t ring_generation(const struct ring_rec *rec)
{
	return (uint16_t)(rec->word >> 16);
}

/*
 * Numbers of laps are even, 2 to 254, then 2 again: an ACK note byte is the lap
 * and RING_ACKED or not. 0 stands in fresh memory, 1 in a broken ring.
 */
enum ring_ack_note { RING_DONE = 0, RING_ACKED = 1 };

#define RING_LAP_FIRST 2u
#define RING_LAP_LAST 254u
#define RING_ACK_NOTE_BROKEN 1u

static inline uint8_t ring_lap_next(uint8_t lap)
{
	return lap == RING_LAP_LAST ? RING_LAP_FIRST : (uint8_t)(lap + 2);
}

/* ---- The producer ------------------------------------------------------- */

/* What an acknowledgement of a record is worth. */
struct ring_shadow {
	uint32_t qpn; /* 0: nobody waits for one */
	uint32_t psn;
	uint32_t cookie;
	uint32_t units; /* that the record takes in the ring */
};

/* What is private of a ring to the process that produces into it: 16 KiB. */
struct ring_out {
	struct ring_mem *mem;
	uint32_t at; /* index of the unit where the next record begins */
	uint32_t limit; /* before it: at + units < limit fits for certain */
	uint32_t clear; /* first words in at..clear-1 are 0; at least at + 1 */
	uint32_t generation; /* << 16 */
	/* The first record that is not published: those behind it wait too. */
	uint32_t *unpublished;
	uint32_t word; /* to be stored there */
	uint32_t put; /* units, free-running; read by the reaping side */

	/* The reaping side. */
	uint32_t taken __attribute__((aligned(64))); /* of put; read by both */
	uint32_t oldest; /* index of the oldest record not taken */
	uint8_t lap; /* of that one */
	uint8_t broken; /* read by both */

	struct ring_shadow shadow[RING_UNITS] __attribute__((aligned(64)));
};

/*
 * Begins to produce, or goes on where another process has stopped, which must
 * be dead. generation is not 0; another one than that process's. Returns 0, or
 * -EPIPE: the ring is broken and stays so until ring_in_reset() at the other
 * end; or -EPROTO: what lies in the ring makes no sense.
 */
int ring_out_attach(struct ring_out *out, struct ring_mem *mem,
		    uint16_t generation);

/* Where at + units < limit does not hold; see ring_begin(). */
__attribute__((noinline, cold)) struct ring_rec *
ring_begin_slow(struct ring_out *out, uint32_t bytes);

/* ring_begin() where the record fits for certain. */
static inline struct ring_rec *ring_place(struct ring_out *out, uint32_t bytes)
{
	/* The data will lie where words were cleared ahead. */
	if (ring_units(bytes) > 1)
		out->clear = out->at + 1;
	return &out->mem->unit[out->at];
}

/*
 * The place for a record with so many bytes of data, at most RING_DATA_MAX;
 * NULL: the consumer has not made room yet, or the ring is broken. The caller
 * stores the header, all but word, and the data, at ring_data(); it does not
 * read there. It may then give up, or go on with ring_commit(). What the place
 * holds is arbitrary: what the consumer looks at has to be stored.
 */
static inline struct ring_rec *ring_begin(struct ring_out *out, uint32_t bytes)
{
	assert(bytes <= RING_DATA_MAX);
	if (__builtin_expect(out->at + ring_units(bytes) >= out->limit, 0))
		return ring_begin_slow(out, bytes);
	return ring_place(out, bytes);
}

/* Where what is behind the record begins: see the invariant above. */
static inline void ring_clear(struct ring_out *out, uint32_t at)
{
	__atomic_store_n(&out->mem->unit[at].word, 0, __ATOMIC_RELAXED);
	out->clear = at + 1;
}

/* The record at index at is on its way, or will be. */
static inline void ring_account(struct ring_out *out, uint32_t at,
				uint32_t units, uint32_t qpn, uint32_t psn,
				uint32_t cookie)
{
	const uint32_t put = out->put + units;

	out->at = at + units;
	out->shadow[at] = (struct ring_shadow){ qpn, psn, cookie, units };
	__atomic_store_n(&out->put, put, __ATOMIC_RELEASE);
}

/*
 * Ends the record begun with the same number of bytes. ring_reap() gives qpn,
 * psn and cookie back if the consumer acknowledges it; qpn 0: it need not.
 */
static inline void ring_commit(struct ring_out *out, uint32_t bytes,
			       uint32_t qpn, uint32_t psn, uint32_t cookie)
{
	const uint32_t at = out->at, units = ring_units(bytes);
	const uint32_t word = out->generation | bytes;
	struct ring_rec *rec = &out->mem->unit[at];

	if (at + units >= out->clear)
		ring_clear(out, at + units);
	if (out->unpublished) {
		__atomic_store_n(&rec->word, word, __ATOMIC_RELAXED);
	} else {
		out->unpublished = &rec->word;
		out->word = word;
	}
	ring_account(out, at, units, qpn, psn, cookie);
}

/*
 * Clears where the record after the next one begins, if that is a small one:
 * not when it is on its way, as that line is far away.
 */
static inline void ring_clear_ahead(struct ring_out *out, uint32_t next)
{
	if (next + 1 < out->limit)
		ring_clear(out, next + 1);
}

/*
 * Lets the consumer see all records committed so far. Returns whether there
 * were any: the consumer may have to be woken then (a full fence, and a look
 * at whether it sleeps, are the caller's).
 */
static inline bool ring_publish(struct ring_out *out)
{
	if (!out->unpublished)
		return false;
	__atomic_store_n(out->unpublished, out->word, __ATOMIC_RELEASE);
	out->unpublished = NULL;
	ring_clear_ahead(out, out->at);
	return true;
}

/* ring_commit() and ring_publish() in one, in fewer instructions. */
static inline void ring_put(struct ring_out *out, uint32_t bytes, uint32_t qpn,
			    uint32_t psn, uint32_t cookie)
{
	const uint32_t at = out->at, units = ring_units(bytes);

	if (at + units >= out->clear)
		ring_clear(out, at + units);
	/* First: who looks whether to sleep for ACK notes sees one is due. */
	ring_account(out, at, units, qpn, psn, cookie);
	__atomic_store_n(&out->mem->unit[at].word, out->generation | bytes,
			 __ATOMIC_RELEASE);
	if (__builtin_expect(out->unpublished != NULL, 0)) {
		__atomic_store_n(out->unpublished, out->word, __ATOMIC_RELEASE);
		out->unpublished = NULL;
	}
	ring_clear_ahead(out, at + units);
}

/* What the consumer has acknowledged: all of this QP's up to psn. */
struct ring_ack {
	uint32_t qpn, psn;
	uint32_t cookie; /* of the last one */
};

/* As ring_reap(), where there may be nothing; *more: of another QP there is. */
bool ring_reap_some(struct ring_out *out, struct ring_ack *ack, bool *more);

/* Records that the consumer has not said to be done with. Units. */
static inline uint32_t ring_unread(const struct ring_out *out)
{
	return __atomic_load_n(&out->put, __ATOMIC_ACQUIRE) -
	       __atomic_load_n(&out->taken, __ATOMIC_RELAXED);
}

/* Whether ring_reap() has something to do. */
static inline bool ring_has_ack_note(const struct ring_out *out)
{
	uint8_t v;

	if (!ring_unread(out))
		return false;
	v = __atomic_load_n(&out->mem->ack_note[out->oldest], __ATOMIC_RELAXED);
	return (v & ~RING_ACKED) == out->lap || v == RING_ACK_NOTE_BROKEN;
}

/*
 * Takes back the room of records that the consumer is done with, and says what
 * it has acknowledged: one QP's at a time, in order; true: *ack is set, and
 * there may be more. Where nothing has happened this is a few loads. There is
 * room in the ring only after this was called until it said false.
 */
static inline bool ring_reap(struct ring_out *out, struct ring_ack *ack)
{
	bool more;

	return ring_has_ack_note(out) && ring_reap_some(out, ack, &more);
}

/*
 * How much has been put so far, and whether the consumer is done with all of
 * that. Free-running; any thread may ask. For roce_env.unread(): a consumer
 * that lives has not read yet what was put until then.
 */
static inline uint32_t ring_mark(const struct ring_out *out)
{
	return __atomic_load_n(&out->put, __ATOMIC_RELAXED);
}

static inline uint32_t ring_taken(const struct ring_out *out)
{
	return __atomic_load_n(&out->taken, __ATOMIC_RELAXED);
}

static inline bool ring_mark_taken(const struct ring_out *out, uint32_t mark)
{
	return (int32_t)(ring_taken(out) - mark) >= 0 ||
	       __atomic_load_n(&out->broken, __ATOMIC_RELAXED);
}

/* Nothing can be put, and what was put counts as lost. */
static inline bool ring_out_broken(const struct ring_out *out)
{
	return __atomic_load_n(&out->broken, __ATOMIC_RELAXED);
}

/*
 * Something takes long: whether the oldest record lies in the ring as it was
 * put, the consumer stands there, and has not declared the ring broken. To be
 * called when ring_reap() has said false; no other thread is on the producing
 * or the reaping side. False: it is broken from now on.
 */
bool ring_out_check(struct ring_out *out);

/* ---- The consumer ------------------------------------------------------- */

struct ring_in {
	struct ring_rec *line; /* where the next record begins, or none */
	struct ring_mem *mem;
	uint32_t pos; /* index of line | lap << 16 */
	uint32_t units; /* of the record that ring_get() returned */
	uint8_t lap_before; /* 0: there was none */
	const char *broken; /* why; or NULL */
	struct ring_rec none; /* zeros: what a broken ring holds */
};

/* mem is new: nothing has been consumed from it yet. */
void ring_in_init(struct ring_in *in, struct ring_mem *mem);

/*
 * Begins anew with a ring that is broken; until then no producer can attach.
 * The process that produced into it must be dead.
 */
void ring_in_reset(struct ring_in *in);

/* The ring is not to be trusted any more; why: a sentence that stays. */
void ring_in_break(struct ring_in *in, const char *why);

/*
 * What the way back says of units that the consumer is done with: all of them,
 * so that no byte is ever more than a lap behind.
 */
static inline void ring_done(struct ring_mem *mem, uint32_t at, uint32_t units,
			     uint8_t ack_note)
{
	if (units > 1)
		mem->ack_note[at + 1] = ack_note;
	if (units > 2)
		memset(&mem->ack_note[at + 2], ack_note, units - 2);
	__atomic_store_n(&mem->ack_note[at], ack_note, __ATOMIC_RELEASE);
}

/* A first word that is not that of a record: the one of what comes after a skip
 * record, or 0: there is none, or the ring is broken now. */
uint32_t ring_odd(struct ring_in *in, uint32_t word);

static inline bool ring_is_odd(const struct ring_in *in, uint32_t word)
{
	const uint32_t bytes = word & 0xffff;

	return bytes > RING_DATA_MAX ||
	       (in->pos & 0xffff) + ring_units(bytes) >= RING_UNITS;
}

/* Whether there is a record. */
static inline bool ring_ready(const struct ring_in *in)
{
	return __atomic_load_n(&in->line->word, __ATOMIC_RELAXED);
}

/*
 * Copies what each packet has of the next record's header to *rec, a field with
 * one load; ring_get_rest() copies the others. ring_in_data() is its data,
 * ring_bytes(rec) of it. Returns false if there is none, or the ring is broken
 * (in->broken then says why). The record stays until ring_release().
 */
static inline bool ring_get(struct ring_in *in, struct ring_rec *rec)
{
	uint32_t word = __atomic_load_n(&in->line->word, __ATOMIC_ACQUIRE);
	const struct ring_rec *at;

	if (!word)
		return false;
	if (__builtin_expect(ring_is_odd(in, word), 0)) {
		word = ring_odd(in, word);
		if (!word)
			return false;
	}
	at = in->line;
	rec->word = word;
	rec->qpn_opcode = __atomic_load_n(&at->qpn_opcode, __ATOMIC_RELAXED);
	rec->psn_flags = __atomic_load_n(&at->psn_flags, __ATOMIC_RELAXED);
	rec->path = __atomic_load_n(&at->path, __ATOMIC_RELAXED);
	rec->len = __atomic_load_n(&at->len, __ATOMIC_RELAXED);
	in->units = ring_units(word & 0xffff);
	return true;
}

static inline void ring_get_rest(const struct ring_in *in, struct ring_rec *rec)
{
	const struct ring_rec *at = in->line;

	rec->imm = __atomic_load_n(&at->imm, __ATOMIC_RELAXED);
	rec->va = __atomic_load_n(&at->va, __ATOMIC_RELAXED);
	rec->rkey = __atomic_load_n(&at->rkey, __ATOMIC_RELAXED);
	rec->dma_len = __atomic_load_n(&at->dma_len, __ATOMIC_RELAXED);
}

/*
 * The data of the record that ring_get() returned. It is in the ring, where it
 * may change while it is read: what is checked has to be copied first.
 */
static inline const uint8_t *ring_in_data(const struct ring_in *in)
{
	return (const uint8_t *)in->line + RING_HDR;
}

/*
 * Gives the record that ring_get() returned back. RING_ACKED: the request it
 * held, and all before it of that QP, need no other acknowledgement. The
 * producer may have to be woken (as after ring_publish()).
 */
static inline void ring_release(struct ring_in *in, enum ring_ack_note ack_note)
{
	struct ring_mem *mem = in->mem;
	const uint32_t pos = in->pos, units = in->units;

	in->line += units;
	in->pos = pos + units;
	/* First: what is done is never behind it. */
	__atomic_store_n(&mem->in.pos, pos + units, __ATOMIC_RELEASE);
	ring_done(mem, pos & 0xffff, units, (uint8_t)(pos >> 16 | ack_note));
}

/*
 * Something takes long: stores again what the way back has to say, in case that
 * somebody else has written there.
 */
void ring_in_check(struct ring_in *in);

#endif

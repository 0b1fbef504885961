/*
 * backoff.h - what does not pay is tried less often
 *
 * A thread that tries something which helps some programs and costs others,
 * such as spinning before a sleep, finds out each time which it was. After each
 * failure it leaves out twice as many tries as after the one before, up to a
 * limit; a success begins again. A rule has the figures, and each place says
 * what its tries and failures are.
 *
 * All zeros at first. Several threads may use one state without a lock: then
 * one more try is left out, or one less.
 */
#ifndef SOFTHCA_BASE_BACKOFF_H
#define SOFTHCA_BASE_BACKOFF_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct backoff_rule {
	uint32_t free; /* failures in a row that cost nothing */
	uint32_t
		first; /* tries left out after the next one: doubled with each */
	uint32_t most; /* up to here */
};

struct backoff {
	_Atomic uint32_t skip; /* so many tries are left out */
	_Atomic uint32_t
		failed; /* in a row, until the rule's most is reached */
};

static inline uint32_t backoff_get(const _Atomic uint32_t *what)
{
	return atomic_load_explicit(what, memory_order_relaxed);
}

static inline void backoff_put(_Atomic uint32_t *what, uint32_t n)
{
	atomic_store_explicit(what, n, memory_order_relaxed);
}

/* Whether this try is left out. */
static inline bool backoff_skips(struct backoff *b)
{
	uint32_t skip = backoff_get(&b->skip);

	if (!skip)
		return false;
	backoff_put(&b->skip, skip - 1);
	return true;
}

/* The next n tries are left out. */
static inline void backoff_skip(struct backoff *b, uint32_t n)
{
	backoff_put(&b->skip, n);
}

/* A try has failed. How much is to be left out now, for a caller who does that
 * in another way than by so many tries. */
static inline uint32_t backoff_grow(struct backoff *b,
				    const struct backoff_rule *r)
{
	uint32_t failed = backoff_get(&b->failed), n = 0;

	if (failed >= r->free)
		n = r->first << (failed - r->free);
	if (n < r->most)
		backoff_put(&b->failed, failed + 1);
	return n < r->most ? n : r->most;
}

/* The same, and so many tries are left out. */
static inline void backoff_fail(struct backoff *b, const struct backoff_rule *r)
{
	backoff_skip(b, backoff_grow(b, r));
}

/* A try has succeeded. */
static inline void backoff_succeed(struct backoff *b)
{
	backoff_put(&b->failed, 0);
	backoff_skip(b, 0);
}

/*
 * Whether to spin before a sleep: a thread that has just answered a request
 * often gets the next one within microseconds, and a sleep would cost both ends
 * more than that. Where spinning found nothing, as on one processor, or the
 * thread lost its processor meanwhile, it is left out: a thread that is woken
 * gets a processor sooner. The state is a thread's own.
 */
#define BACKOFF_SPIN_NS 50000 /* at most */

/* The spin is over. useful: what it was for has come, within the time. */
static inline void backoff_spun(struct backoff *b, bool useful)
{
	static const struct backoff_rule rule = { .first = 1, .most = 64 };

	if (useful)
		backoff_succeed(b);
	else /* one of 2, of 4, ... of 128 spins */
		backoff_skip(b, 2 * backoff_grow(b, &rule) - 1);
}

#endif

/*
 * stack.c - where the program was: backtraces, each kept once
 *
 * A backtrace is a number, so what is posted can keep one in four bytes. The
 * table never gives any up: a program has few places from which it calls the
 * verbs, and when the table is full new ones are not known.
 */
#include "check_internal.h"

#include "base/hash64.h"

#include <execinfo.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define STACKS 16384u /* a power of two */

struct stack {
	_Atomic uint64_t hash; /* 0: free; written first */
	_Atomic unsigned n; /* 0: not yet complete */
	void *frame[CHECK_FRAMES];
};

static struct stack *stacks;

static void make_room(void)
{
	void *frame[2];

	/* The first call loads the unwinder, which allocates. */
	backtrace(frame, 2);
	stacks = calloc(STACKS, sizeof(*stacks));
}

void check_callsites(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, make_room);
}

uint32_t check_here(void)
{
	void *frame[CHECK_FRAMES + 1];
	uint64_t hash = 1, seen;
	int n;

	if (!stacks)
		return 0;
	n = backtrace(frame, CHECK_FRAMES + 1) - 1; /* without this function */
	if (n <= 0)
		return 0;
	for (int i = 1; i <= n; i++)
		hash = hash64(hash + (uintptr_t)frame[i] + HASH64_STEP);
	hash += !hash;
	for (uint32_t i = 0; i < 64; i++) {
		const uint32_t at = (uint32_t)(hash + i) & (STACKS - 1);
		struct stack *s = &stacks[at];

		seen = 0;
		if (atomic_compare_exchange_strong(&s->hash, &seen, hash)) {
			memcpy(s->frame, frame + 1,
			       (size_t)n * sizeof(frame[0]));
			atomic_store(&s->n, (unsigned)n);
			return at + 1;
		}
		if (seen == hash)
			return at + 1;
	}
	return 0;
}

unsigned check_frames(uint32_t stack, void *frames[CHECK_FRAMES])
{
	unsigned n = 0;

	if (stack && stacks)
		n = atomic_load(&stacks[stack - 1].n);
	if (n)
		memcpy(frames, stacks[stack - 1].frame, n * sizeof(frames[0]));
	return n;
}

/*
 * lock.h - a lock in one word
 *
 * For what threads hold for a moment and seldom want at once: taking it and
 * dropping it are one atomic instruction each. Whoever finds it taken spins for
 * some microseconds, then sleeps. All zeros is free. It is for the threads of
 * one process; a child of a fork finds it as it was and leaves it alone.
 */
#ifndef SOFTHCA_BASE_LOCK_H
#define SOFTHCA_BASE_LOCK_H

#include "cpu.h"
#include "sys.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdbool.h>

#define LOCK_TRIES 100

/* Sleeps while *word has this value; may return at any time. */
static inline void lock_sleep(_Atomic uint32_t *word, uint32_t value)
{
	syscall(SYS_FUTEX, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

/* Wakes one who sleeps. */
__attribute__((noinline, cold, unused)) static void
lock_wake(_Atomic uint32_t *word)
{
	syscall(SYS_FUTEX, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* Wakes all who do. */
__attribute__((noinline, cold, unused)) static void
lock_wake_all(_Atomic uint32_t *word)
{
	syscall(SYS_FUTEX, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

struct lock {
	_Atomic uint32_t word; /* 0: free, 1: taken, 2: and somebody sleeps */
};

static inline bool lock_try(struct lock *l)
{
	uint32_t was = 0;

	return atomic_compare_exchange_strong_explicit(
		&l->word, &was, 1, memory_order_acquire, memory_order_relaxed);
}

__attribute__((noinline, cold, unused)) static void lock_wait(struct lock *l)
{
	for (int i = 0; i < LOCK_TRIES; i++) {
		cpu_relax();
		if (!atomic_load_explicit(&l->word, memory_order_relaxed) &&
		    lock_try(l))
			return;
	}
	/* Whoever has slept cannot know that nobody else does. */
	while (atomic_exchange_explicit(&l->word, 2, memory_order_acquire))
		lock_sleep(&l->word, 2);
}

static inline void lock_take(struct lock *l)
{
	if (!lock_try(l))
		lock_wait(l);
}

static inline void lock_drop(struct lock *l)
{
	if (atomic_exchange_explicit(&l->word, 0, memory_order_release) == 2)
		lock_wake(&l->word);
}

/* What was stored before can be seen by others when what is loaded from now on
 * is loaded. */
static inline void lock_drop_fence(struct lock *l)
{
	lock_drop(l);
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
	/* Its exchange was one already: for the processor, not in C. */
	atomic_signal_fence(memory_order_seq_cst);
#else
	atomic_thread_fence(memory_order_seq_cst);
#endif
}

#endif

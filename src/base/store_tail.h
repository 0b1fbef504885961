/*
 * store_tail.h - payload into memory that a program watches
 *
 * Programs spin on the last byte of a message, then read all of it, and some
 * write their answer to the same place. So the last bytes are stored after all
 * others, and each of them once: memcpy() of 8 bytes may store them twice, and
 * a thread that loses its CPU between the two takes back what the program has
 * written there meanwhile.
 *
 * Who copies by the kernel (process_vm_writev(2), recvmsg(2)) gets that from
 * one call with the last bytes as a piece of their own where stores are seen in
 * their order, and needs a fence between two calls elsewhere: the kernel has
 * none between pieces (tests/unit/test_litmus.py, "tail").
 */
#ifndef SOFTHCA_BASE_STORE_TAIL_H
#define SOFTHCA_BASE_STORE_TAIL_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define STORE_TAIL 8u /* at most so many bytes are the last ones */

/* Whether stores, also the kernel's, are seen in the order in which they are
 * made. Tests set it. */
#ifndef STORE_IN_ORDER
#if defined(__x86_64__)
#define STORE_IN_ORDER 1
#else
#define STORE_IN_ORDER 0
#endif
#endif

static inline size_t store_tail(size_t len)
{
	return len < STORE_TAIL ? len : STORE_TAIL;
}

/* Neither split nor merged by the compiler. */
struct store_word {
	uint64_t v;
} __attribute__((packed, may_alias));

/* Whether 8 bytes there are stored at once: x86 does within a cache line, Armv8
 * before 8.4 where they are aligned. */
static inline int store_is_word(const void *to)
{
	const uintptr_t at = (uintptr_t)to;

	return STORE_IN_ORDER ? (at & 63) <= 56 : !(at & 7);
}

/* A program that spins on what is stored here races, on purpose. */
#ifdef __SANITIZE_THREAD__
__attribute__((no_sanitize("thread")))
#endif
static inline void
store_tail_last(void *dst, const void *src, size_t len)
{
	const size_t tail = store_tail(len), first = len - tail;
	const uint8_t *from = (const uint8_t *)src + first;
	uint8_t *to = (uint8_t *)dst + first;

	if (first)
		memcpy(dst, src, first);
	atomic_thread_fence(memory_order_release);
	if (tail == STORE_TAIL && store_is_word(to)) {
		uint64_t v;

		memcpy(&v, from, sizeof(v));
		((volatile struct store_word *)to)->v = v;
		return;
	}
	for (size_t i = 0; i < tail; i++) {
		if (i == tail - 1)
			atomic_thread_fence(memory_order_release);
		((volatile uint8_t *)to)[i] = from[i];
	}
}

#endif

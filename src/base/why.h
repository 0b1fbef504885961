/*
 * why.h - why a call of the program fails, in words (softhca run --explain)
 *
 * The place that finds the error knows the reason, and the public function that
 * returns it knows the call. In between the reason waits beside the thread:
 *
 *	return why(-EINVAL, "QP 0x%06x: ...", qpn);
 *
 * and who turns -errno into one of the public conventions calls why_report()
 * (os/report.c). Nobody wants reasons unless --explain is given: then why() is
 * its first argument, after one branch on a path that fails anyway.
 */
#ifndef SOFTHCA_BASE_WHY_H
#define SOFTHCA_BASE_WHY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

/* Keeps the reason of this thread's error and returns err. */
typedef int why_fn(int err, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* NULL: no reasons are wanted. Set once. */
extern why_fn *_Atomic why_note;

static inline why_fn *why_noter(void)
{
	return atomic_load_explicit(&why_note, memory_order_relaxed);
}

static inline bool why_wanted(void)
{
	return __builtin_expect(why_noter() != NULL, false);
}

#define why(err, ...) (why_wanted() ? why_noter()(err, __VA_ARGS__) : (err))

#endif

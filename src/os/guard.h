/*
 * guard.h - memory that a program may have taken away
 *
 * Hardware pins the memory of a region. We cannot, so we may touch memory that
 * the program has unmapped, or that lies behind the end of a file. Inside
 * guard_run() or guard_copy() such a fault is an error.
 */
#ifndef SOFTHCA_OS_GUARD_H
#define SOFTHCA_OS_GUARD_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

/*
 * Takes over SIGSEGV and SIGBUS, once, for faults inside these two alone; all
 * others go where they went before. A handler that the program installs later
 * replaces ours, and they then protect from nothing.
 */
void guard_install(void);

/* Whether a signal's handler is that alone, and no program's is behind it. */
bool guard_is_alone(int sig, const struct sigaction *sa);

/*
 * Runs fn(arg), which does nothing but read and write memory. -EFAULT: it was
 * broken off, because some of [p, p + len) is not there.
 */
int guard_run(void (*fn)(void *), void *arg, const void *p, size_t len);

/* store_tail_last() (base/store_tail.h) where p, which is dst or src, is such
 * memory: the same in fewer instructions, since most copies are small. */
int guard_copy(void *dst, const void *src, size_t len, const void *p);

#endif

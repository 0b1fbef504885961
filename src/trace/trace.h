/*
 * trace.h - what happens in this process, in a file per process (format.h)
 *
 * A thread records into a ring of its own, without locks. Where nothing is
 * recorded an event costs a look at one word. A forked child records into a file
 * of its own from when it opens a device.
 */
#ifndef SOFTHCA_TRACE_TRACE_H
#define SOFTHCA_TRACE_TRACE_H

#include "format.h"

#include <stdbool.h>
#include <stddef.h>

extern bool trace_on __attribute__((visibility("hidden")));

/*
 * Begins to record in a new file of dir, which is made if it is not there, both
 * for their owner alone; once in a process. Returns 0 or -errno.
 */
int trace_begin(const char *dir);
/* In the child of a fork: nothing is recorded any more. */
void trace_forked(void);

static inline bool tracing(void)
{
	return __builtin_expect(trace_on, 0);
}

/*
 * Only where tracing(). ns 0: now; TRACE_LAST: when the last event of the thread
 * was, of which this is a part.
 */
#define TRACE_LAST 1u
void trace_put(enum trace_type type, uint32_t num, uint32_t x, uint64_t key,
	       uint32_t psn_op, uint32_t len, uint64_t ns);
/* When that was; 0 after trace_forget(), until there is another. */
uint64_t trace_last(void);
void trace_forget(void);
/* The time, as events have it. */
uint64_t trace_now(void);
/* The same of what is rare, and is to be kept: now. Takes a lock. */
void trace_keep(enum trace_type type, uint32_t num, uint32_t x, uint64_t key,
		uint32_t psn_op, uint32_t len);
/* One of those that carry 16 bytes, likewise. */
void trace_keep_bytes(enum trace_type type, uint32_t num, const void *bytes);

#endif

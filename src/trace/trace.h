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

/*
 * Begins to record in a new file of dir, which is made if it is not there, both
 * for their owner alone; once in a process. Returns 0 or -errno.
 */
int trace_begin(const char *dir);
/* In the child of a fork: nothing is recorded any more. */
void trace_forked(void);

#endif

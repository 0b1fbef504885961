/*
 * counters.h - files of the port that have another value each time
 */
#ifndef SOFTHCA_SHIM_COUNTERS_H
#define SOFTHCA_SHIM_COUNTERS_H

#include <stdatomic.h>
#include <stdbool.h>

/* Where the tree is; NULL: nowhere (shim.c). */
const char *shim_root(void);

/*
 * Whether a path that an open is for, relative to dir as in openat(2), is that of
 * a counter in the tree. Then *fd is a descriptor of a file with its value, at its
 * beginning, or -1 with errno.
 */
bool counters_open(int dir, const char *path, int flags, int *fd);

/* Before a read of fd, if any counter is open; from_start: at offset 0, whatever
 * fd's is. Its value is the one of now, then. */
extern _Atomic bool counters_any __attribute__((visibility("hidden")));
void counters_read(int fd, bool from_start);

#endif

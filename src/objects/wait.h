/*
 * wait.h - waiting for a descriptor, and for this process's packets
 */
#ifndef SOFTHCA_OBJECTS_WAIT_H
#define SOFTHCA_OBJECTS_WAIT_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * Waits until fd is readable, and receives meanwhile, so that one thread wakes
 * for a message: 1, 0 at until_ns (of CLOCK_MONOTONIC; UINT64_MAX: never),
 * -EINTR, or -ENODEV: no device is open. mask, or NULL, holds while it sleeps.
 * spin: it may spin before that (base/linger.h). The caller's devices stay open
 * meanwhile. A cancellation point.
 */
int shca_wait(int fd, uint64_t until_ns, const sigset_t *mask, bool spin);

#endif

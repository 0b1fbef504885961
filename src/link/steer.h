/*
 * steer.h - which of several sockets bound to one address gets a packet
 */
#ifndef SOFTHCA_LINK_STEER_H
#define SOFTHCA_LINK_STEER_H

#include "registry/registry.h"

#include <linux/filter.h>

#define STEER_RANGES 600

/*
 * Writes a classic BPF program that returns the index of the range in which
 * the destination QPN of a packet lies, or the communication ID that a message
 * to QP1 names. Returns its length, at most STEER_PROGRAM(n).
 */
#define STEER_PROGRAM(n) (3 * (n) + 13)
size_t steer_program(struct sock_filter *prog,
		     const struct registry_range *range, size_t n);

/*
 * Makes the program of these ranges decide for all sockets that share fd's
 * address and port. Returns 0 or -errno; -EINVAL: fd is the only one.
 */
int steer_attach(int fd, const struct registry_range *range, size_t n);

#endif

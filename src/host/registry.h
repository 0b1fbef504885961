/*
 * registry.h - the processes of one user on one host, and who owns which QPN
 *
 * A file in shared memory (one per user and network namespace, owner-only)
 * maps each of 4096 chunks of 4096 QPNs to a slot, and each slot to a living
 * process: its private UDP port and its receive backlog. Joining, leasing and
 * leaving take a file lock with a bounded wait; looking up does not. A slot is
 * alive while its process holds a record lock on the slot's byte, which the
 * kernel lets go when the process ends, however it ends.
 */
#ifndef SOFTHCA_HOST_REGISTRY_H
#define SOFTHCA_HOST_REGISTRY_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define REGISTRY_CHUNK 4096 /* QPNs leased at a time */
#define REGISTRY_CHUNKS 4096

struct registry;

/*
 * dir: where the file lives; NULL: $SOFTHCA_RUNDIR, else /dev/shm, else
 * $XDG_RUNTIME_DIR, else /tmp. Returns 0 or -errno; *why, if not NULL, gets a
 * sentence (static storage) on failure. Without any writable place the caller
 * goes on alone (registry NULL).
 */
int registry_join(struct registry **r, const char *dir, const char **why);

/* Gives back everything; after fork, the child calls registry_abandon(). */
void registry_leave(struct registry *r);
void registry_abandon(struct registry *r);

/* Leases a chunk: its first QPN, or -ENOSPC. QPNs 0, 1 and 0xffffff are never
 * given out: chunks 0 and 4095 are not leased. */
int registry_lease(struct registry *r);
void registry_release(struct registry *r, uint32_t first_qpn);

#endif

/*
 * config.h - the SOFTHCA_* environment, read once
 *
 * softhca run turns its options into these variables, so that they reach every
 * process of a job. A value that makes no sense is reported once on stderr and
 * ignored.
 */
#ifndef SOFTHCA_OS_CONFIG_H
#define SOFTHCA_OS_CONFIG_H

#include "os/options.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The ways between two processes of a host that a process may take. A pair
 * takes the best one that both ends may take and that works between them. */
enum same_host {
	SAME_HOST_AUTO, /* shared memory, payload copied by process_vm(2) */
	SAME_HOST_COPY, /* shared memory, payload copied through it */
	SAME_HOST_UDP, /* a private UDP port */
};

/* Which devices there are. */
enum iwarp {
	IWARP_NONE, /* RoCE's */
	IWARP_ONLY, /* iWARP's */
	IWARP_BOTH, /* RoCE's, then iWARP's: rdma_cm connects by RoCE */
	IWARP_FIRST, /* iWARP's, then RoCE's: rdma_cm connects by iWARP */
};

enum infiniband {
	INFINIBAND_NONE,
	INFINIBAND_ONLY, /* instead of RoCE's */
	INFINIBAND_BOTH, /* behind RoCE's, by which rdma_cm connects */
};

/* What is explained on stderr. */
enum explain {
	EXPLAIN_OFF,
	EXPLAIN_ON,
	EXPLAIN_FULL, /* with the program's own lines */
};

/* The rows of options.h, whose comments say more. */
struct config {
#define FIELD(field, type, ...) type field;
	SOFTHCA_OPTIONS(FIELD, FIELD)
#undef FIELD
};

const struct config *config_get(void);
/* Whether devices can be named so: once %d, and of letters, digits and "-_.". */
bool config_names_valid(const char *pattern);
/* The name of device n. */
void config_name(const char *pattern, unsigned n, char *out, size_t size);
/* Variables whose values are ignored, NULL behind the last one. */
const char *const *config_ignored(void);

/* A monotonic clock in nanoseconds: the kernel's, unless the process was
 * suspended before. */
uint64_t clock_ns(void);
/* The same as of the last tick, some ms ago at most: much cheaper. */
uint64_t clock_coarse_ns(void);
/* Time stands still; it goes on from there, also by the clock of another host. */
void clock_stop(void);
void clock_go(void);
/* What our clock shows when the kernel's CLOCK_MONOTONIC shows ns. */
uint64_t clock_of_kernel(uint64_t ns);

#endif

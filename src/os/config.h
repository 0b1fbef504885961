/*
 * config.h - the SOFTHCA_* environment, read once
 *
 * softhca run turns its options into these variables, so that they reach every
 * process of a job. A value that makes no sense is reported once on stderr and
 * ignored.
 */
#ifndef SOFTHCA_OS_CONFIG_H
#define SOFTHCA_OS_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

/* The ways between two processes of a host that a process may take. A pair
 * takes the best one that both ends may take and that works between them. */
enum same_host {
	SAME_HOST_AUTO, /* shared memory, payload copied by process_vm(2) */
	SAME_HOST_COPY, /* shared memory, payload copied through it */
	SAME_HOST_UDP,  /* a private UDP port */
};

/* Which devices there are. */
enum iwarp {
	IWARP_NONE, /* RoCE's */
	IWARP_ONLY, /* iWARP's */
	IWARP_BOTH, /* RoCE's, then iWARP's: rdma_cm connects by RoCE */
	IWARP_FIRST, /* iWARP's, then RoCE's: rdma_cm connects by iWARP */
};

struct config {
	bool wire;           /* SOFTHCA_WIRE=1, or SOFTHCA_FAULTS */
	enum same_host same_host; /* SOFTHCA_SAME_HOST=auto|copy|udp */
	enum iwarp iwarp;    /* SOFTHCA_IWARP=1|only|both|first */
	bool mpa_crc;        /* SOFTHCA_MPA_CRC=1: MPA's CRC32C, always */
	const char *addr;    /* SOFTHCA_ADDR: address of GID index 0 */
	const char *devices; /* SOFTHCA_DEVICES=eth0,eth1: one device each */
	double loss;         /* SOFTHCA_LOSS, percent 0..100, here 0..1 */
	uint64_t seed;       /* SOFTHCA_SEED; 0: from the clock */
	const char *faults;  /* SOFTHCA_FAULTS: a script (src/faults) */
	const char *faults_log; /* SOFTHCA_FAULTS_LOG: what it has done */
	const char *check;   /* SOFTHCA_CHECK (src/check/options.h) */
	const char *check_json; /* SOFTHCA_CHECK_JSON: findings */
	const char *pcap;    /* SOFTHCA_PCAP: file name, %p is the pid */
	const char *trace;   /* SOFTHCA_TRACE: directory for events */
	bool explain;        /* SOFTHCA_EXPLAIN=1 */
	bool explain_full;   /* =full: with the program's own lines */
	uint32_t part_id;    /* SOFTHCA_PART_ID: vendor_part_id to show */
	uint32_t vendor_id;  /* SOFTHCA_VENDOR_ID */
	const char *rundir;  /* SOFTHCA_RUNDIR */
	const char *tree;    /* SOFTHCA_SYSFS: what programs see of /sys */
	uint8_t cm_retries;  /* SOFTHCA_CM_RETRIES, 1..15; 0: default */
};

const struct config *config_get(void);

/* A monotonic clock in nanoseconds. */
uint64_t clock_ns(void);
/* The same as of the last tick, some ms ago at most: much cheaper. */
uint64_t clock_coarse_ns(void);

#endif

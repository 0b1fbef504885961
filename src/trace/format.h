/*
 * format.h - a file of events, as a process writes it and softhca trace reads
 * it
 *
 * One file per process: a header, then a ring of records for each of its
 * threads at a time. The file is mapped, so that the recording is complete
 * however the process ends. A ring has its full size from the start; its oldest
 * records are overwritten, and how many were is known from how many were
 * written. The first ring is for what is rare and explains the rest: the life
 * of QPs and regions, connections. All numbers have the byte order of the
 * writer. No payload is recorded.
 */
#ifndef SOFTHCA_TRACE_FORMAT_H
#define SOFTHCA_TRACE_FORMAT_H

#include "hooks/trace.h"

#include <stdint.h>

#define TRACE_MAGIC "SHCAEVT\n"
#define TRACE_VERSION 2u
/* Where the rings begin: they are mapped, and pages have at most 64 KiB. */
#define TRACE_RINGS_AT 65536u
#define TRACE_SUFFIX ".events"
#define TRACE_RINGS 32u /* threads at a time, and one; others are counted */
#define TRACE_RING_RECORDS (1u << 17) /* a power of two */

struct trace_rec {
	uint64_t ns; /* CLOCK_MONOTONIC, but for clock_error */
	uint32_t what; /* num << 8 | enum trace_type */
	uint32_t x;
	uint64_t key;
	uint32_t psn_op; /* psn << 8 | op */
	uint32_t len;
};

struct trace_ring {
	uint64_t written; /* records ever, after which the record is there */
	uint32_t tid; /* of who writes, or wrote last */
	uint32_t unused;
	char name[16];
	uint64_t unused2[4];
};

struct trace_header {
	char magic[8];
	uint32_t version;
	uint32_t header_size; /* TRACE_RINGS_AT */
	uint32_t record_size;
	uint32_t ring_records;
	uint32_t nrings;
	uint32_t pid;
	uint64_t real_ns, mono_ns; /* CLOCK_REALTIME when CLOCK_MONOTONIC was */
	uint64_t netns, timens; /* inodes of its namespaces */
	uint64_t unrecorded; /* events of threads for which there was no ring */
	char boot[40]; /* /proc/sys/kernel/random/boot_id */
	char host[72];
	char program[64];
	uint64_t clock_error; /* ns that times are off, at most */
	char unused[2048 - 256];
	struct trace_ring ring[TRACE_RINGS];
};

_Static_assert(sizeof(struct trace_rec) == 32, "its layout is the file's");
_Static_assert(sizeof(struct trace_header) == 4096, "its layout is the file's");

#endif

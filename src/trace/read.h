/*
 * read.h - the files of events of one directory, joined
 *
 * Files may come from anybody: everything is checked, and nothing of them is
 * used as an index, a size or a string before. What makes no sense is counted
 * and left out.
 *
 * Processes of one boot share a clock. Clocks of different hosts are set by what
 * they send each other: a packet arrives after it leaves, in both directions, so
 * the least delays of both bound the difference.
 */
#ifndef SOFTHCA_TRACE_READ_H
#define SOFTHCA_TRACE_READ_H

#include "format.h"

#include <stdbool.h>
#include <stddef.h>

#define TRACE_NOTHING UINT32_MAX /* an index of nothing */

/* A clock that processes share. */
struct trace_clock {
	char boot[40];
	uint64_t timens;
	int64_t offset; /* to be added, so that it shows what the first one does */
	uint64_t own; /* ns that its times are off itself, at most */
	uint64_t error; /* at most; */
	bool known; /* from packets; else by the time of day, and no error is known */
};

struct trace_proc {
	char *name; /* of its file */
	struct trace_header head; /* strings end within their arrays */
	uint32_t clock;
	uint64_t lost; /* records that others have overwritten */
	uint64_t senseless;
};

struct trace_qp {
	uint32_t proc, num;
	uint32_t type; /* enum ibv_qp_type; 0: not known */
	uint32_t dest, mtu;
	uint32_t ports; /* of iWARP: ours << 16 | the peer's; else 0 */
	uint8_t sgid[16], dgid[16];
	uint32_t peer; /* index of a QP, or TRACE_NOTHING */
};

struct trace_event {
	struct trace_rec rec; /* rec.ns is by the first clock */
	uint32_t proc, tid;
	uint32_t qp; /* index, or TRACE_NOTHING */
	uint32_t other; /* of a packet: where it left or arrived, or so */
	uint32_t wr; /* that it belongs to, or so */
	uint8_t reason; /* of what is sent again: enum trace_reason */
	uint8_t dropped; /* 1 + what TRACE_DROP says; 0: it was not */
};

enum trace_reason {
	TRACE_R_UNKNOWN,
	TRACE_R_NAK,
	TRACE_R_RNR,
	TRACE_R_TIMEOUT,
	TRACE_R_PROBE,
};

/* A work request. Times that are not known are 0. */
struct trace_wr {
	uint64_t wr_id;
	uint32_t qp;
	uint32_t len;
	uint32_t first_psn, last_psn;
	uint8_t opcode, flags; /* enum trace_post */
	uint8_t status; /* enum ibv_wc_status, where it is complete */
	bool recv, direct;
	uint64_t posted, first, last, acked, completed, polled;
	uint32_t packets, again, naks, rnrs;
};

struct trace_set {
	struct trace_proc *proc;
	struct trace_clock *clock;
	struct trace_qp *qp;
	struct trace_event *event; /* by time */
	struct trace_wr *wr; /* as they were posted */
	uint32_t nprocs, nclocks, nqps, nevents, nwrs;
};

/*
 * Reads all files of a directory and joins them. bad() is told of each that
 * cannot be used, and why. 0, -ENOENT: there are no files, -EINVAL: none can be
 * used, or another -errno.
 */
int trace_read(struct trace_set *t, const char *dir,
	       void (*bad)(const char *path, const char *why));
void trace_read_free(struct trace_set *t);

static inline uint32_t trace_type(const struct trace_rec *r)
{
	return r->what & 0xff;
}

/* Of a packet: it is none, but an FPDU of this enum rdmap_opcode. */
static inline bool trace_is_fpdu(const struct trace_rec *r, uint32_t *opcode)
{
	*opcode = r->psn_op & 0xff & ~TRACE_FPDU;
	return (r->psn_op & TRACE_FPDU) == TRACE_FPDU;
}

/* A phase of a work request's life. */
enum trace_phase {
	TRACE_P_WINDOW, /* from posted to the first packet */
	TRACE_P_SENDING, /* to the last one */
	TRACE_P_ANSWER, /* to its acknowledgement */
	TRACE_P_COMPLETING, /* to its completion */
	TRACE_P_POLLING, /* to when the program has that */
	TRACE_PHASES
};

/* How long each was, and all. */
uint64_t trace_phases(const struct trace_wr *w, uint64_t ns[TRACE_PHASES]);

#endif

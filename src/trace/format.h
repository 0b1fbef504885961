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

#include <stdint.h>

#define TRACE_MAGIC "SHCAEVT\n"
#define TRACE_VERSION 2u
/* Where the rings begin: they are mapped, and pages have at most 64 KiB. */
#define TRACE_RINGS_AT 65536u
#define TRACE_SUFFIX ".events"
#define TRACE_RINGS 32u /* threads at a time, and one; others are counted */
#define TRACE_RING_RECORDS (1u << 17) /* a power of two */

enum trace_type {
	TRACE_NONE,
	/* num: QP; key: wr_id; psn, op: of its first packet, enum ibv_wr_opcode;
	 * x: last PSN << 8 | enum trace_post */
	TRACE_POST_SEND,
	/* The same without PSNs and opcode. num 0: to an SRQ, x: its handle */
	TRACE_POST_RECV,
	/* num: QP; key: TRACE_KEY(); psn, op: as on the wire; x: last PSN
	 * that it stands for << 8 | enum trace_pkt. An FPDU of iWARP: op:
	 * TRACE_FPDU | enum rdmap_opcode; psn: how many were before it in its
	 * direction of the stream; key: wr_id of TRACE_OF_WR */
	TRACE_PKT_OUT,
	TRACE_PKT_IN,
	/* The packet that came in before did nothing. x: enum roce_drop, or
	 * TRACE_NO_QP */
	TRACE_DROP,
	TRACE_DIRECT, /* as TRACE_POST_SEND: carried out without a packet */
	/* num: QP; key: wr_id; op: enum ibv_wc_opcode; x: enum ibv_wc_status */
	TRACE_COMPLETE,
	TRACE_POLLED,
	TRACE_CQ_RAISED, /* key: the CQ */
	TRACE_CQ_GOT,
	/* num: QP; x: what has happened, enum trace_timer */
	TRACE_TIMER,
	TRACE_QP_NEW, /* num; x: enum ibv_qp_type */
	/* x: enum ibv_qp_state; key: the peer's QP, or TRACE_PORTS(); len: MTU */
	TRACE_QP_STATE,
	TRACE_QP_SGID, /* 16 bytes from key on */
	TRACE_QP_DGID,
	TRACE_QP_GONE,
	TRACE_MR_NEW, /* num: 0; x: lkey; key: address; len, psn_op: length */
	TRACE_MR_GONE, /* x: lkey */
	/* num: 1, its QP; x: attribute ID, or enum trace_mpa; key: transaction
	 * ID, or what both ends make of their addresses */
	TRACE_CM_OUT,
	TRACE_CM_IN,
	TRACE_SLEEP, /* a thread: x: enum trace_place */
	TRACE_WAKE,
	TRACE_ASYNC, /* x: enum ibv_event_type */
	TRACE_THREAD, /* who writes here from now on: x: its ID; name from key on */
	TRACE_TYPES
};

enum trace_post {
	TRACE_SIGNALED = 1,
	TRACE_LOCAL = 2, /* no packets, no PSN */
};

enum trace_pkt {
	TRACE_AGAIN = 1, /* it was sent before */
	TRACE_ACK_REQ = 2,
	TRACE_HOST = 4, /* by a link within the host */
	TRACE_VERDICT = 8, /* no packet: a ring says that up to psn all is
			    * accepted */
	/* FPDUs: */
	TRACE_END = 16, /* the last one of its message, */
	TRACE_OF_WR = 32, /* which is a work request */
};

#define TRACE_FPDU 0xc0u

/* The frames that begin a connection of iWARP. */
enum trace_mpa {
	TRACE_MPA_REQUEST = 0x100,
	TRACE_MPA_REPLY,
	TRACE_MPA_REJECT, /* a reply, too */
};

#define TRACE_NO_QP 255u

enum trace_timer {
	TRACE_T_TIMEOUT = 1, /* the local ACK timeout: it counts as a retry */
	TRACE_T_PROBE = 2, /* no answer: the oldest packet is sent once more */
};

enum trace_place {
	TRACE_IN_THREAD, /* the library's own */
	TRACE_IN_PROGRAM, /* a program that waits for an event */
};

/* Packets' key: the other QP, the syndrome and the MSN of an AETH. */
#define TRACE_KEY(qpn, syndrome, msn)                                          \
	((uint64_t)(qpn) | (uint64_t)(syndrome) << 24 | (uint64_t)(msn) << 32)

/* A QP of iWARP has its connection's ports, ours and the peer's. */
#define TRACE_HAS_PORTS (1ull << 63)
#define TRACE_PORTS(ours, peers)                                               \
	(TRACE_HAS_PORTS | (uint64_t)(ours) << 16 | (uint64_t)(peers))

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

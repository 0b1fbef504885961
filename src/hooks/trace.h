/*
 * trace.h - events, for who records what happens (src/trace)
 *
 * Where nothing is recorded an event costs a look at one word.
 */
#ifndef SOFTHCA_HOOKS_TRACE_H
#define SOFTHCA_HOOKS_TRACE_H

#include <stdbool.h>
#include <stdint.h>

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
	/* The process is suspended, and goes on: key: ns for which its clock has
	 * stood still; later events have times as if it had not */
	TRACE_AWAY,
	TRACE_BACK,
	/* num: QP; its peer is suspended for x seconds at most, and is back */
	TRACE_PEER_AWAY,
	TRACE_PEER_BACK,
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

struct trace_ops {
	void (*put)(enum trace_type type, uint32_t num, uint32_t x,
		    uint64_t key, uint32_t psn_op, uint32_t len, uint64_t ns);
	void (*keep)(enum trace_type type, uint32_t num, uint32_t x,
		     uint64_t key, uint32_t psn_op, uint32_t len);
	void (*keep_bytes)(enum trace_type type, uint32_t num,
			   const void *bytes);
	void (*forget)(void);
	uint64_t (*now)(void);
};

/* Set before trace_on is; stays in the child of a fork, where nothing is on. */
extern const struct trace_ops *trace_ops __attribute__((visibility("hidden")));
extern bool trace_on __attribute__((visibility("hidden")));

static inline bool tracing(void)
{
	return __builtin_expect(trace_on, 0);
}

/*
 * What follows only where tracing(). ns 0: now; TRACE_LAST: when the last event
 * of the thread was, of which this is a part.
 */
#define TRACE_LAST 1u
static inline void trace_put(enum trace_type type, uint32_t num, uint32_t x,
			     uint64_t key, uint32_t psn_op, uint32_t len,
			     uint64_t ns)
{
	trace_ops->put(type, num, x, key, psn_op, len, ns);
}

/* TRACE_LAST is 0 until there is another event. */
static inline void trace_forget(void)
{
	trace_ops->forget();
}

/* The time, as events have it. */
static inline uint64_t trace_now(void)
{
	return trace_ops->now();
}

/* trace_put() of what is rare, and is to be kept: now. Takes a lock. */
static inline void trace_keep(enum trace_type type, uint32_t num, uint32_t x,
			      uint64_t key, uint32_t psn_op, uint32_t len)
{
	trace_ops->keep(type, num, x, key, psn_op, len);
}

/* One of those that carry 16 bytes, likewise. */
static inline void trace_keep_bytes(enum trace_type type, uint32_t num,
				    const void *bytes)
{
	trace_ops->keep_bytes(type, num, bytes);
}

#endif

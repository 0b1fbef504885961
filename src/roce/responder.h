/*
 * responder.h - what the responder's files share
 *
 * responder.c checks a request and refuses it, execute.c carries it out, and
 * response.c has what the peer is owed.
 */
#ifndef SOFTHCA_ROCE_RESPONDER_H
#define SOFTHCA_ROCE_RESPONDER_H

#include "roce_internal.h"

/* Verdicts on a request. */
enum verdict {
	PASS,
	DROP,
	DUPLICATE,
	V_NAK_PSN,
	V_AGAIN, /* its payload could not be read: NAK 0x60 of it */
	V_RNR,
	V_INVALID, /* NAK 0x61 */
	V_ACCESS, /* NAK 0x62 */
	V_OPERATIONAL, /* NAK 0x63 */
	V_LENGTH, /* message longer than the receive buffer: NAK 0x61 */
	V_INVALIDATE, /* class J: the receive fails, the send does not */
	V_CQ_FULL, /* the message cannot be reported: no answer */
};

/* responder.c: a NAK of the access, which ends the QP */
void rsp_fail_access(struct roce_qp *qp);

/*
 * The flags of a SEND Only's opcode. Most messages are small: a caller that tests
 * for these flags and passes them on as a constant lets the compiler drop
 * everything that a SEND Only does not need.
 */
#define RSP_SEND_ONLY                                                          \
	(ROCE_F_REQUEST | ROCE_F_SEND | ROCE_F_PAYLOAD | ROCE_F_FIRST |        \
	 ROCE_F_LAST)
#define RSP_INLINE static inline __attribute__((always_inline))

/* execute.c */
/* f: the flags of its opcode. */
enum verdict rsp_execute(struct roce_qp *qp, const struct roce_rx *pkt,
			 uint32_t f);
enum verdict rsp_execute_send(struct roce_qp *qp, const struct roce_rx *pkt);

/* reorder.c */

/* Keeps a request from behind a gap. False: it is dropped. */
bool reorder_keep(struct roce_qp *qp, const struct roce_rx *pkt);
/* Where qp->rsp.reorder: the one that is due, if it is here; its payload is
 * until reorder_free(), which the end of the QP calls. */
bool reorder_take(struct roce_qp *qp, struct roce_rx *pkt);
/* No other is due: others need the memory, perhaps. */
void reorder_idle(struct roce_qp *qp);

/* response.c */

static inline uint32_t rsp_count(const struct roce_responder *r)
{
	return r->resp_tail - r->resp_head;
}

/* Forgets the answers that wait only because they were asked for again. */
void rsp_drop_repeats(struct roce_responder *r);
static inline void rsp_owe_ack(struct roce_qp *qp)
{
	qp->rsp.ack_pending = true;
}
void rsp_owe_nak(struct roce_qp *qp, uint8_t syndrome);
/* An ACK that names psn, though more has been executed. */
void rsp_owe_ack_of(struct roce_qp *qp, uint32_t psn);
void rsp_owe_read(struct roce_qp *qp, const struct roce_hdr *h, bool again);
void rsp_owe_atomic(struct roce_qp *qp, enum resp_kind kind, uint32_t psn,
		    uint32_t msn, uint64_t orig, bool again);
/* A read that still waits to be sent will answer its repetition, too. */
bool rsp_read_pending(const struct roce_qp *qp, uint32_t psn);

#endif

/*
 * control.h - the control messages between two processes about a lease
 *
 * lease.c is the home's side and explains the protocol; remote_rsp.c is the
 * other. A control message is a packet to QP 0, which may be followed by a
 * packet for the QP. Offsets and lengths are in bytes, numbers big-endian.
 */
#ifndef SOFTHCA_XRC_CONTROL_H
#define SOFTHCA_XRC_CONTROL_H

#include "lease.h"

#include "base/bytes.h"
#include "wire/roce.h"

#define CTRL_MAGIC 0x58524c32u

enum ctrl { LEND = 1, AGAIN, RETURN, RECALL };

enum { F_NAK_SEQ = 1, F_RNR = 2, F_FAILED = 4, F_UNKNOWN = 8, F_KEEPS = 16 };

/* Offsets in a control message. */
enum {
	C_MAGIC = 0,
	C_KIND = 4,
	C_FLAGS = 5,
	C_SLOT = 6, /* the sender's */
	C_QPN = 8,
	C_LEASE = 12,
	C_QP_ID = 16,
	C_EPSN = 24,
	C_MSN = 28,
	C_ACK_BACK = 32,
	C_EVENT = 36,
	C_SRQN = 40,
	C_ATTR = 44, /* of the QP; to C_LEN */
	C_DEST_QPN = 44,
	C_ACCESS = 48,
	C_MTU = 52,
	C_RD_ATOMIC = 53,
	C_RNR_TIMER = 54,
	C_LOCAL = 55, /* 1: local, 2: lossless */
	C_DOMAIN = 56,
	C_SGID = 88,
	C_DGID = 104,
	C_SCOPE = 120,
	C_FLOW = 124,
	C_SPORT = 128,
	C_TCLASS = 130,
	C_HOPS = 131,
	C_LEN = 132
};

_Static_assert(C_SGID - C_DOMAIN == SHCA_DOMAIN_KEY, "");
/* BTH and DETH, a control message, and behind it the longest packet. */
_Static_assert(20 + C_LEN + ROCE_HDR_MAX + ROCE_MTU_MAX <= UDP_HANDOVER_MAX,
	       "");

/* Fills in a control message of C_LEN bytes: sender, lease and state of the
 * responder. */
void shca_ctrl_begin(uint8_t *w, enum ctrl kind, const struct engine *e,
		     uint32_t qpn, uint32_t lease, uint64_t qp_id,
		     const struct roce_rsp_state *s);
struct roce_rsp_state shca_ctrl_state(const uint8_t *w);
/*
 * Sends a control message to the process in a slot, followed by pkt; if that is
 * NULL, path gives the addresses. 0 or -errno.
 */
int shca_ctrl_send(struct engine *e, unsigned slot, const uint8_t *w,
		   const struct roce_path *path, const struct roce_rx *pkt);

/* Whether a request is answered by more than an ACK. */
static inline bool shca_has_answer(const struct roce_rx *pkt)
{
	return roce_opcode(pkt->h.opcode)->flags &
	       (ROCE_F_READ | ROCE_F_ATOMIC);
}

/* A packet for a remote responder, its lock held. True: it is done with. */
bool shca_remote_rsp_rx(struct shca_qp *qp, const struct roce_rx *pkt,
			uint64_t now);
/*
 * LEND or AGAIN, followed by inner; on the receive side, no lock. Returns the
 * remote responder that inner is for, or NULL.
 */
struct shca_qp *shca_remote_rsp_ctrl(struct engine *e, const uint8_t *w,
				     const struct roce_rx *inner, uint64_t now);
/* RECALL: the remote responder gives the responder back as soon as it can. */
void shca_remote_rsp_recall(struct engine *e, const uint8_t *w);
/* The same for all remote responders; one that cannot now, or 0. */
uint32_t shca_remote_rsps_recall(struct engine *e);

#endif

/*
 * word.h - the messages ("words") between two processes about a loan
 *
 * loan.c is the home's side and explains the protocol; guest.c is the other. A
 * word is a packet to QP 0, which may be followed by a packet for the QP.
 * Offsets and lengths are in bytes, numbers big-endian.
 */
#ifndef SOFTHCA_XRC_WORD_H
#define SOFTHCA_XRC_WORD_H

#include "loan.h"

#include "base/bytes.h"
#include "wire/roce.h"

#define WORD_MAGIC 0x58524c32u

enum word { LEND = 1, AGAIN, RETURN, RECALL };

enum { F_NAK_SEQ = 1, F_RNR = 2, F_FAILED = 4, F_UNKNOWN = 8, F_KEEPS = 16 };

/* Offsets in a word. */
enum {
	W_MAGIC = 0,
	W_KIND = 4,
	W_FLAGS = 5,
	W_SLOT = 6, /* the sender's */
	W_QPN = 8,
	W_LOAN = 12,
	W_QP_ID = 16,
	W_EPSN = 24,
	W_MSN = 28,
	W_ACK_BACK = 32,
	W_EVENT = 36,
	W_SRQN = 40,
	W_ATTR = 44, /* of the QP; to W_LEN */
	W_DEST_QPN = 44,
	W_ACCESS = 48,
	W_MTU = 52,
	W_RD_ATOMIC = 53,
	W_RNR_TIMER = 54,
	W_LOCAL = 55, /* 1: local, 2: lossless */
	W_DOMAIN = 56,
	W_SGID = 88,
	W_DGID = 104,
	W_SCOPE = 120,
	W_FLOW = 124,
	W_SPORT = 128,
	W_TCLASS = 130,
	W_HOPS = 131,
	W_LEN = 132
};

_Static_assert(W_SGID - W_DOMAIN == SHCA_DOMAIN_KEY, "");
/* BTH and DETH, a word, and behind it the longest packet. */
_Static_assert(20 + W_LEN + ROCE_HDR_MAX + ROCE_MTU_MAX <= UDP_HANDOVER_MAX,
	       "");

/* Fills in a word of W_LEN bytes: sender, loan and state of the responder. */
void shca_word_begin(uint8_t *w, enum word kind, const struct engine *e,
		     uint32_t qpn, uint32_t loan, uint64_t qp_id,
		     const struct roce_rsp_state *s);
struct roce_rsp_state shca_word_state(const uint8_t *w);
/*
 * Sends a word to the process in a slot, followed by pkt; if that is NULL, path
 * gives the addresses. 0 or -errno.
 */
int shca_word_send(struct engine *e, unsigned slot, const uint8_t *w,
		   const struct roce_path *path, const struct roce_rx *pkt);

/* Whether a request is answered by more than an ACK. */
static inline bool shca_has_answer(const struct roce_rx *pkt)
{
	return roce_opcode(pkt->h.opcode)->flags &
	       (ROCE_F_READ | ROCE_F_ATOMIC);
}

/* A packet for a guest, its lock held. True: it is done with. */
bool shca_guest_rx(struct shca_qp *qp, const struct roce_rx *pkt, uint64_t now);
/*
 * LEND or AGAIN, followed by inner; on the receive side, no lock. Returns the
 * guest that inner is for, or NULL.
 */
struct shca_qp *shca_guest_word(struct engine *e, const uint8_t *w,
				const struct roce_rx *inner, uint64_t now);
/* RECALL: the guest gives the responder back as soon as it can. */
void shca_guest_recall(struct engine *e, const uint8_t *w);
/* The same for all guests; one that cannot now, or 0. */
uint32_t shca_guests_recall(struct engine *e);

#endif

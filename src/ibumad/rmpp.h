/*
 * rmpp.h - messages of several packets: RMPP (IBA 13.6)
 *
 * As the kernel does it for programs: a program hands over, and gets, the message
 * whole. The sender begins with one segment, and then keeps to the window that
 * the receiver has acknowledged; what is not acknowledged in time is sent again
 * from there. The receiver takes segments in order.
 */
#ifndef SOFTHCA_IBUMAD_RMPP_H
#define SOFTHCA_IBUMAD_RMPP_H

#include "umad_internal.h"

/* s->mad is the message, s->len long: it leaves in segments. 0 or -ENOMEM. */
int rmpp_tx_new(struct sent *s);
void rmpp_tx_free(struct rmpp_tx *t);
/* The next segment that is due; false: none, and s->due_ns says when. */
bool rmpp_tx_next(struct sent *s, uint64_t now_ns, uint8_t mad[MAD_LEN]);
/* Whether the receiver has all, or will never. */
bool rmpp_tx_ended(const struct sent *s);

static inline bool rmpp_is_active(const uint8_t *mad)
{
	return mad_has_rmpp(mad[1]) && mad[26] & UMAD_RMPP_FLAG_ACTIVE;
}

/* Whether it is a segment of data; others are the sender's affair. */
bool rmpp_is_data(const uint8_t *mad);
/* ACK, STOP or ABORT for a message of ours. */
void rmpp_tx_answer(struct sent *s, const uint8_t *mad, uint64_t now_ns);

/*
 * A segment from a peer. answer: what is to be sent back, nothing where it begins
 * with 0. Returns the message's length if it is whole now, in *message, to be freed;
 * 0: there is more to come, or it was whole before.
 */
size_t rmpp_rx(struct port *p, const union ibv_gid *from, const uint8_t *mad,
	       uint64_t now_ns, uint8_t answer[MAD_LEN], uint8_t **message);
void rmpp_rx_free(struct port *p);

#endif

/*
 * timewait.h - what is left of a connection when its QP is gone
 *
 * See timewait.c. As with a QP, its user serialises the calls and brings the
 * time.
 */
#ifndef SOFTHCA_ROCE_TIMEWAIT_H
#define SOFTHCA_ROCE_TIMEWAIT_H

#include "qp.h"

struct roce_timewait {
	uint32_t qpn; /* ours, that of the QP which is gone */
	uint32_t dest_qpn; /* the peer's */
	uint32_t ack_psn; /* everything up to here has been executed */
	uint32_t msn;
	uint32_t seed;
	uint8_t service; /* enum roce_service */
	bool lossy; /* packets of this connection were lost, or late */
	struct roce_path path;
	uint64_t asked_ns; /* the peer's last request, or repetition of one */
	uint64_t acked_ns; /* the last answer from here; 0: none */
};

/*
 * What is to be remembered of a QP that is about to be destroyed. False: its
 * peer has nothing to ask for.
 */
bool roce_timewait_init(struct roce_timewait *w, const struct roce_qp *qp);

/*
 * A packet for w->qpn, which no QP has. True: the connection's peer has
 * repeated what was executed, and *b holds the answer, whose path is in *w; or
 * nothing, if the same answer has only just left.
 */
bool roce_timewait_rx(struct roce_timewait *w, const struct roce_rx *pkt,
		      struct roce_batch *b, uint64_t now_ns);

#endif

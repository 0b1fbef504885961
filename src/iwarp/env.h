/*
 * env.h - what iWARP needs of its environment beyond qp/env.h
 */
#ifndef SOFTHCA_IWARP_ENV_H
#define SOFTHCA_IWARP_ENV_H

#include "qp/env.h"

/* An FPDU, for whoever records what passes. */
struct iwarp_fpdu {
	bool outbound;
	bool last; /* of its message */
	bool has_wr; /* outbound: it is of a work request: */
	uint64_t wr_id;
	uint8_t opcode; /* enum rdmap_opcode */
	uint32_t number; /* from 0 on, in its direction of the stream */
	uint32_t len; /* behind the header of DDP */
};

struct iwarp_env {
	struct qp_env base;

	/*
	 * Responder: the initiator's first message is here, so this end may
	 * send, and the connection is established for its program. Not called
	 * where no such message was agreed on (enum iwarp_rtr). NULL: nobody
	 * asks.
	 */
	void (*established)(struct qp *qp);

	/*
	 * The QP has left RTS, by itself or because the program moved it, and
	 * what was posted is flushed. The stream is not at its end yet: what
	 * is to become of it says iwarp_shut(). Called once a connection. NULL:
	 * nobody asks.
	 */
	void (*ended)(struct qp *qp);

	/* The socket has taken the last byte of an FPDU, or one has come, and
	 * nothing that it leads to has happened. NULL: nobody asks. */
	void (*fpdu)(struct qp *qp, const struct iwarp_fpdu *f);
};

#endif

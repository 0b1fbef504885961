/*
 * qp_iwarp.h - a QP of iWARP, and the connection that it is given
 *
 * Who connects (connect/iw.c) makes the connection, and has it again when the QP has let
 * go. In between the QP reads and writes its stream, and says what becomes of it
 * by the table here. A QP's lock is held in all of this.
 */
#ifndef SOFTHCA_RNIC_QP_IWARP_H
#define SOFTHCA_RNIC_QP_IWARP_H

#include "iwarp/iwarp.h"
#include "link/stream.h"
#include "transport/shared.h"

/* How long a peer may take to end what we have ended. */
#define SHCA_IW_END_NS 5000000000ull

struct shca_conn_ops {
	/* It carries the QP's messages; it does no longer. */
	void (*established)(struct shca_conn *c);
	void (*ended)(struct shca_conn *c);
	/* It is closed unless that is taken back by then; UINT64_MAX: not. */
	void (*until)(struct shca_conn *c, uint64_t due);
	/* The QP has let go: the stream is closed, or, if linger, has sent FIN
	 * and waits for the peer's. */
	void (*leave)(struct shca_conn *c, bool linger);
};

struct shca_conn {
	struct stream stream; /* first */
	const struct shca_conn_ops *ops;
	struct sockaddr_storage peer;
};

/* The stream of a QP has these events, as stream_ops.ready. */
int shca_iwarp_stream(struct shca_qp *qp, uint32_t events, uint8_t *buffer);
/* The QP's stream has ended by our clock; how: in words. */
void shca_iwarp_late(struct shca_qp *qp, const char *how);
/* The QP has the connection: it goes to RTS, and sends. wrong: it sends that the
 * peer's frame was. */
int shca_iwarp_start(struct shca_qp *qp, struct shca_conn *conn,
		     const struct iwarp_agreed *a, uint32_t fpdu_max,
		     enum iwarp_setup_error wrong);
/* It is to end, its QP moved to SQD or ERR. */
void shca_iwarp_end(struct shca_qp *qp, enum ibv_qp_state to);

extern const struct shca_transport shca_iwarp;

/* Parts of a process (src/process): process->iw_env. */
int shca_iwarp_init(struct engine *e);
void shca_iwarp_fini(struct engine *e);

#endif

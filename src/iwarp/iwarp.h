/*
 * iwarp.h - a queue pair over a stream of bytes: MPA, DDP and RDMAP
 *
 * RFC 5044 cuts the stream into FPDUs, RFC 5041 says where the payload of each
 * belongs, RFC 5040 what the message is for. A QP begins with a struct qp and
 * shares src/qp with RoCE; it has no PSNs, no timers and no acknowledgements,
 * since TCP has them.
 *
 * The core does no I/O, takes no locks and has no clock. Whoever owns a QP
 * serialises all calls on it (in a process: struct shca_qp's lock) and stands
 * between it and a socket. A connection is set up by the frames of setup.h,
 * then:
 *
 *	iwarp_qp_start(qp, &agreed, fpdu_max);
 *
 *	what there is to send, whenever the socket has room:
 *		while (iwarp_tx_ready(qp)) {
 *			iwarp_tx(qp, &batch, max_bytes);
 *			sent = sendmsg(batch.data.iov, batch.data.n);
 *			iwarp_tx_done(qp, &batch, sent > 0 ? sent : 0);
 *			if (sent < batch.bytes)
 *				break;	(later, when it is writable)
 *		}
 *
 *	what has come, a buffer at a time:
 *		n = iwarp_rx_direct(qp, iov, ROOM);
 *		iov[n] = a buffer that may be shared by all QPs;
 *		got = readv(iov, n + 1);
 *		placed = min(got, bytes in iov[0 .. n));
 *		iwarp_rx_placed(qp, placed);
 *		iwarp_rx(qp, buffer, got - placed);
 *	or, the same without the direct way:
 *		got = recv(buffer);
 *		iwarp_rx(qp, buffer, got);
 *	0 is the peer's FIN: iwarp_rx_eof(qp); an error: iwarp_lost(qp, how).
 *
 *	and after any of these calls, and after iwarp_qp_modify(), a look at
 *	iwarp_tx_ready() and iwarp_shut(qp).
 *
 * What comes in may make something to send: read responses, a Terminate.
 *
 * Completions: a send or write completes when the socket has taken its last
 * byte, since its memory may be used again then; a read when all of its response
 * has been placed, and its CRC was right. They come in the order of posting. So
 * success of a write does not say that it has arrived, as with every RNIC.
 *
 * Errors of the peer's requests end the connection: a Terminate message says
 * why (RFC 5040 4.8, 5041 chapter 7, 5044 chapter 8), after the FPDU at hand.
 */
#ifndef SOFTHCA_IWARP_IWARP_H
#define SOFTHCA_IWARP_IWARP_H

#include "env.h"
#include "setup.h"

#include "qp/qp.h"
#include "wire/rdmap.h"

struct iwarp_qp;

/*
 * Allocates a QP in state RESET: of type RC, or -EOPNOTSUPP; otherwise as
 * roce_qp_create(). init->env is that of a struct iwarp_env.
 */
int iwarp_qp_create(struct iwarp_qp **qp, struct qp_init *init);
/* The owner closes the socket. */
void iwarp_qp_destroy(struct iwarp_qp *qp);

/* A QP begins with what every transport has of it. */
static inline struct qp *iwarp_qp_base(struct iwarp_qp *qp)
{
	return (struct qp *)(void *)qp;
}

static inline struct iwarp_qp *iwarp_qp(struct qp *qp)
{
	return (struct iwarp_qp *)(void *)qp;
}

static inline const struct iwarp_qp *iwarp_qp_const(const struct qp *qp)
{
	return (const struct iwarp_qp *)(const void *)qp;
}

/*
 * ibv_modify_qp(3), by siw's rules: attributes that an RNIC has no use for are
 * ignored, and only a connection (iwarp_qp_start()) leads to RTS.
 *
 *	RESET, INIT, RTR to INIT or RTR: receives may be posted
 *	RTS to RTS:  qp_access_flags
 *	RTS to SQD:  orderly end (rdma_disconnect(3)): both queues are flushed,
 *		     the FPDU at hand is completed, then FIN. What has
 *		     completed still goes. The QP is in ERR.
 *	RTS to SQE:  the same, with a Terminate message before FIN
 *	any to ERR:  as SQD
 *	any to RESET: what was posted is dropped, silently, and so is the
 *		     stream: iwarp_shut() says nothing of it any more, the
 *		     owner closes the socket
 *
 * Returns 0, -EINVAL, or -EOPNOTSUPP: an attribute of IBV_QP_RATE_LIMIT's kind.
 */
int iwarp_qp_modify(struct iwarp_qp *qp, const struct ibv_qp_attr *attr,
		    int mask);
/* ibv_query_qp(3), all attributes but ah_attr and alt_ah_attr. */
void iwarp_qp_query(const struct iwarp_qp *qp, struct ibv_qp_attr *attr,
		    struct ibv_qp_init_attr *init);

/*
 * One work request: 0, -ENOMEM, or -EINVAL, as qp_post_send(). A read has at
 * most one SGE (max_sge_rd); there is no immediate data, and there are no
 * atomics. Receives are posted by qp_post_recv().
 */
int iwarp_post_send(struct iwarp_qp *qp, const struct ibv_send_wr *wr);
/* Takes back what was posted since sq.tail was this, provided that iwarp_tx()
 * has not been called since. */
void iwarp_sq_undo(struct iwarp_qp *qp, uint32_t tail);

/* ---- the stream -------------------------------------------------------- */

/* FPDUs, from the length to the CRC, markers aside. */
#define IWARP_FPDU_MIN 128u /* least that iwarp_qp_start() takes, */
#define IWARP_FPDU_MAX 65536u /* and most */

/*
 * The stream begins, with its first FPDU: INIT or RTR to RTS. FPDUs are made of
 * at most fpdu_max bytes: TCP's maximum segment size, so that segments and
 * FPDUs end together, or more where agreed->tx_large allows it. -EINVAL: the QP
 * is in another state; -ENOMEM.
 */
int iwarp_qp_start(struct iwarp_qp *qp, const struct iwarp_agreed *agreed,
		   uint32_t fpdu_max);
/*
 * A responder sends nothing before the initiator's first FPDU has come (RFC 5044
 * 7.1). Where no message was agreed on that would bring it, the initiator may be
 * one that waits for this end to begin, as with siw's. So its owner lets it
 * begin after a while: the peer should have read the reply, behind which it
 * accepts no bytes until then. iwarp_tx_waits(): whether it is such a one, and
 * nothing has come yet.
 */
bool iwarp_tx_waits(const struct iwarp_qp *qp);
void iwarp_tx_begin(struct iwarp_qp *qp);
/*
 * siw looks at the initiator's first message only if that comes when it has
 * finished with its reply, and else when the next one comes: for a responder
 * whose program is to send first that is never. So the message, a write of no
 * bytes, may leave again, until something has come from such a peer.
 * iwarp_tx_asks(): whether it may.
 */
bool iwarp_tx_asks(const struct iwarp_qp *qp);
void iwarp_tx_ask_again(struct iwarp_qp *qp);
/* The path has another segment size, for what is made from now on. */
void iwarp_set_fpdu_max(struct iwarp_qp *qp, uint32_t fpdu_max);
/* iwarp_setup_agreed() has failed: a Terminate message says so (started QPs,
 * IWARP_SETUP_IRD and IWARP_SETUP_RTR only). */
void iwarp_fail_setup(struct iwarp_qp *qp, enum iwarp_setup_error e);

/* Bytes to send: pieces in their order, for sendmsg(2). */
struct iwarp_batch {
	size_t bytes;
	struct qp_pieces data;
};

/* Whether iwarp_tx() would make anything now. Local operations, which need no
 * bytes, are carried out by iwarp_tx() as well. */
bool iwarp_tx_ready(const struct iwarp_qp *qp);

/*
 * The next bytes of the stream, about max_bytes of them; what the socket has not
 * taken of the last batch comes first. The memory stays where the program has
 * it, and is kept until iwarp_tx_done(), which says how much was taken. Both are
 * called in turn, with no other call on the QP between them but
 * iwarp_tx_doubt(). b->bytes 0: there is nothing to send.
 */
void iwarp_tx(struct iwarp_qp *qp, struct iwarp_batch *b, size_t max_bytes);
/*
 * Before iwarp_tx_done() with 0 bytes: the socket found memory missing (EFAULT).
 * It is looked for before it is sent again, which ends in an error that says so.
 * False: it was looked for, and is there; the stream is to be given up
 * (iwarp_lost()).
 */
bool iwarp_tx_doubt(struct iwarp_qp *qp);
void iwarp_tx_done(struct iwarp_qp *qp, struct iwarp_batch *b, size_t sent);

/*
 * Where the next bytes of the stream belong in the program's memory, at most max
 * pieces; 0: they are for iwarp_rx(). Worth it for much payload, and only where
 * there are neither CRCs nor markers. The memory is kept until
 * iwarp_rx_placed(), which says how much of it was filled and is called whenever
 * there were pieces, with no other call on the QP between them.
 */
size_t iwarp_rx_direct(struct iwarp_qp *qp, struct iovec *iov, size_t max);
/* Then: how many bytes of payload the FPDU at hand has in all. */
uint32_t iwarp_rx_payload(const struct iwarp_qp *qp);
void iwarp_rx_placed(struct iwarp_qp *qp, size_t n);

/* Bytes of the stream, cut anywhere: all of them are consumed. What makes no
 * sense ends the connection; what comes after its end is dropped. */
void iwarp_rx(struct iwarp_qp *qp, const uint8_t *p, size_t len);
/* The peer sends no more (FIN): the connection ends. */
void iwarp_rx_eof(struct iwarp_qp *qp);
/* The stream is gone: reset, timed out; in words, sys_strerror()'s. */
void iwarp_lost(struct iwarp_qp *qp, const char *how);

/* What is to be done with the socket. */
enum iwarp_shut {
	IWARP_OPEN, /* nothing: it is in use, or none is */
	IWARP_DRAIN, /* what iwarp_tx() has is still to be sent; if that takes
		      * too long, IWARP_RESET */
	IWARP_FIN, /* shutdown(SHUT_WR); close when the peer has done so, or
		      * after a while. What comes in until then is read and
		      * dropped: to close with bytes unread resets the stream,
		      * and what was sent may be lost with it */
	IWARP_RESET, /* abort it: SO_LINGER of 0, close */
};
enum iwarp_shut iwarp_shut(const struct iwarp_qp *qp);

/* ---- for tools and tests ----------------------------------------------- */

/* How the connection ended; NULL: not by a Terminate message of either end.
 * *sent says by whose. */
const struct rdmap_terminate *iwarp_terminated(const struct iwarp_qp *qp,
					       bool *sent);

struct iwarp_qp_stats {
	QP_COUNTS(QP_COUNT_FIELD, QP_NO_COUNT) /* a packet is an FPDU */
	uint64_t tx_stalls; /* batches that the socket did not take whole */
	uint64_t rx_direct; /* bytes of payload that came the direct way */
	uint64_t crc_errors;
};
const struct iwarp_qp_stats *iwarp_qp_stats(const struct iwarp_qp *qp);

/* What was agreed when the stream began. */
const struct iwarp_agreed *iwarp_agreed(const struct iwarp_qp *qp);

#endif

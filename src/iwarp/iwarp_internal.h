/*
 * iwarp_internal.h - what the files of the iWARP core share: the queue pair
 *
 * iwarp_qp.c: creation, states, the ends of a connection; tx.c: from work
 * requests and reads that are owed to FPDUs; frame.c: an FPDU's bytes; rx.c:
 * from bytes to FPDUs; segment.c: what a segment is for, and where its payload
 * goes. All of it runs under the lock of the QP's owner.
 */
#ifndef SOFTHCA_IWARP_INTERNAL_H
#define SOFTHCA_IWARP_INTERNAL_H

#include "iwarp.h"

#include "qp/refused.h"

#include <errno.h>
#include <string.h>

struct iwarp_wqe {
	struct qp_wqe base;
	bool done; /* its last byte has been taken; a read: all has come */
	uint8_t fate; /* enum ibv_wc_status, of one that has failed when it was
		       * on its way, or 0 */
	uint32_t msn; /* of a read's request */
};

static inline struct iwarp_wqe *iwarp_wqe(const struct qp_wqe *w)
{
	return (struct iwarp_wqe *)(void *)(uintptr_t)w;
}

/* Payload up to this is copied behind its header: it makes one piece. */
#define FPDU_SMALL 128u
#define FPDU_HEAD (MPA_LEN_LEN + DDP_UNTAGGED_LEN + RDMAP_TERMINATE_MAX)
#define FPDU_TAIL (3u + MPA_CRC_LEN)
#define FPDU_BYTES (MPA_LEN_LEN + DDP_HDR_MAX + FPDU_SMALL + 3u + MPA_CRC_LEN)
_Static_assert(FPDU_BYTES >= FPDU_HEAD + FPDU_TAIL, "a Terminate fits");

/* Where payload lies. */
enum from { FROM_NOWHERE, FROM_WQE, FROM_KEY };

/*
 * An FPDU that has been made: its place in the stream is fixed, and it stays
 * until the socket has taken all of it.
 */
struct fpdu {
	const uint8_t *head; /* bytes, or a buffer of the QP's */
	uint32_t head_len;
	uint32_t len; /* of the payload behind that */
	uint32_t tail_len; /* pad and CRC, behind that */
	bool sealed; /* its CRC is there */
	bool last; /* then its WQE is done: a send or write, no read request */
	bool end; /* of its message */
	uint8_t opcode; /* enum rdmap_opcode */
	uint16_t payload; /* bytes behind DDP's header, wherever they are */
	uint8_t from; /* enum from */
	uint8_t tail_at; /* in bytes */
	uint32_t wqe; /* FROM_WQE: its place in the SQ, */
	uint32_t offset; /* and the payload's in its data */
	uint32_t stag; /* FROM_KEY */
	uint64_t va;
	uint8_t bytes[FPDU_BYTES];
};

#define RING 32u /* FPDUs that may have been made, a power of two */

/* A read that the peer waits for. */
struct owed {
	struct rdmap_read read;
	uint32_t msn;
};

/* Nothing more is made, and when the socket has taken all: */
enum stop {
	STOP_NOT,
	STOP_WQE, /* the WQE that is next fails, with stop_status, */
	STOP_PEER, /* or a read of the peer's is refused: refusal says why */
};

/* The message that is being cut into FPDUs. */
enum message { MSG_NONE, MSG_WQE, MSG_RESPONSE };

struct iwarp_tx {
	struct fpdu *ring;
	uint32_t head, tail; /* made, and not taken; run freely */
	uint32_t sent; /* bytes of the oldest that have been taken */
	uint32_t fpdu_max;
	uint64_t pos; /* in the stream, of what is made next */
	uint32_t fpdus; /* that have been taken */
	uint8_t *flat; /* one FPDU as a whole: with markers; what was left of
			* one when the QP ended */
	uint8_t message; /* enum message */
	uint8_t stop; /* enum stop */
	uint8_t stop_status; /* enum ibv_wc_status */
	uint8_t rtr; /* enum iwarp_rtr: that message is due */
	bool hold; /* responder: until the initiator has sent something, or
		    * iwarp_tx_begin() */
	bool turn; /* a response was next: now a WQE is, if there is one */
	uint32_t offset; /* in message, or STOP_PEER's */
	uint32_t msn[RDMAP_QUEUES]; /* of the next message */
	uint32_t reads; /* requests without their response */
	struct rdmap_terminate refusal;

	/* Reads of the peer: a ring of owed_size, a power of two. */
	struct owed *owed;
	uint32_t owed_size, owed_head, owed_tail;
};

/* Where in an FPDU the next byte is. */
enum rx_in { RX_HEAD, RX_PAYLOAD, RX_TAIL };

/* Pieces of memory that the socket fills. */
struct placing {
	size_t n, nkeys;
	size_t bytes;
	struct key_entry *key[QP_MAX_SGE];
};

struct iwarp_rx {
	uint8_t in; /* enum rx_in */
	uint8_t opcode; /* of the segment, */
	bool first; /* that of its message */
	bool verified; /* its CRC was looked at first, and is right */
	bool rtr; /* the next read response belongs to no WQE */
	uint64_t fpdus_before; /* stats.rx_pkts when the stream began */
	uint32_t have, need; /* bytes of head, or of tail */
	uint32_t ulpdu;
	uint32_t left; /* of the segment's payload */
	uint32_t crc;
	struct ddp_hdr h;
	uint8_t head[MPA_LEN_LEN + DDP_HDR_MAX];
	uint8_t tail[FPDU_TAIL];

	/* Markers. */
	uint64_t pos, fpdu_pos;
	uint32_t marker_have;
	uint8_t marker[MPA_MARKER_LEN];

	/* Messages: of each queue the next, and where it is. */
	uint32_t msn[RDMAP_QUEUES];
	uint32_t offset[RDMAP_QUEUES];
	uint8_t send_opcode; /* of the one that has begun */
	/* Tagged: the one that has begun, if its last segment is to come. */
	bool tagged;
	uint8_t tagged_opcode;
	uint64_t to; /* where the segment's payload goes on */
	uint32_t read_wqe; /* the oldest read that is out is here or later */
	uint32_t read_offset;
	uint8_t own[RDMAP_TERMINATE_MAX]; /* payload that is RDMAP's */
	uint32_t own_have;
	struct placing placing;
};

struct iwarp_qp {
	struct qp base;
	struct iwarp_agreed agreed;
	bool started;
	bool up; /* started, and not ended */
	bool lost; /* the stream is of no use */
	bool has_term, term_sent;
	struct rdmap_terminate term;
	struct iwarp_tx tx;
	struct iwarp_rx rx;
	struct iwarp_qp_stats stats;
};

static inline const struct iwarp_env *iwarp_env(const struct iwarp_qp *qp)
{
	return (const struct iwarp_env *)(const void *)qp->base.env;
}

#define explain(qp, ...) qp_explain(&(qp)->base, __VA_ARGS__)

static inline struct fpdu *fpdu_at(const struct iwarp_qp *qp, uint32_t i)
{
	return &qp->tx.ring[i & (RING - 1)];
}

static inline bool tx_empty(const struct iwarp_qp *qp)
{
	return qp->tx.head == qp->tx.tail;
}

/* iwarp_qp.c */

/*
 * The connection ends: flushes, and what the socket has not taken of the FPDU at
 * hand is still to be sent; behind it term, if that is not NULL.
 */
void iwarp_end(struct iwarp_qp *qp, const struct rdmap_terminate *term);
/* The same with a Terminate of no message, and the event. */
void iwarp_end_error(struct iwarp_qp *qp, enum rdmap_error e);
/* And nothing more can be sent. */
void iwarp_end_lost(struct iwarp_qp *qp);

/* tx.c */

/* Completes what is done, the oldest first. */
void tx_retire(struct iwarp_qp *qp);
/* A Terminate, as the next FPDU. */
void tx_terminate(struct iwarp_qp *qp, const struct rdmap_terminate *term);
/* A read request's response is complete. */
void tx_read_done(struct iwarp_qp *qp, struct iwarp_wqe *w);
/* What a read asks for. */
struct rdmap_read tx_read_request(struct iwarp_qp *qp, struct iwarp_wqe *w);
/* The oldest read whose response is not complete, or NULL. */
struct iwarp_wqe *tx_read_first(struct iwarp_qp *qp);
/* Whether the peer may have one more read under way; and it reads. */
bool tx_may_owe(const struct iwarp_qp *qp);
void tx_owe(struct iwarp_qp *qp, const struct rdmap_read *r, uint32_t msn);

/* frame.c */

/*
 * A new FPDU: its DDP header, own bytes of RDMAP behind that, len bytes of
 * payload, from where the caller says then.
 */
struct fpdu *frame_new(struct iwarp_qp *qp, const struct ddp_hdr *h,
		       const uint8_t *own, uint32_t own_len, uint32_t len);
/* How much payload one has at most behind such a DDP header. */
uint32_t frame_room(const struct iwarp_qp *qp, uint32_t hdr_len);
static inline uint32_t frame_len(const struct fpdu *f)
{
	return f->head_len + f->len + f->tail_len;
}
/*
 * Adds what is to be sent of an FPDU, skip bytes of which have been, to a batch.
 * 0; -EAGAIN: there is no room; -EFAULT or -ENXIO as qp_gather().
 */
int frame_append(struct iwarp_qp *qp, struct iwarp_batch *b, struct fpdu *f,
		 uint32_t skip);
/* Takes what is left of the FPDU at hand, if it was begun, out of the program's
 * memory, and drops the others. False: that memory is gone. */
bool frame_freeze(struct iwarp_qp *qp);

/* rx.c */
void rx_start(struct iwarp_qp *qp);

/* segment.c: false: the connection has ended. */
bool segment_begin(struct iwarp_qp *qp);
bool segment_place(struct iwarp_qp *qp, const uint8_t *p, uint32_t n);
/* So many bytes of its payload have been placed by others. */
void segment_placed(struct iwarp_qp *qp, uint32_t n);
bool segment_end(struct iwarp_qp *qp);
/* Pieces of memory where its payload goes; may find none. */
void segment_pieces(struct iwarp_qp *qp, struct iovec *iov, size_t max);
/* What a Terminate says of the segment at hand. */
void segment_name(const struct iwarp_qp *qp, struct rdmap_terminate *t);
/*
 * A remote key's memory: 0 and *e with a reference, or what is wrong, as RDMAP
 * has it.
 */
int segment_remote(struct iwarp_qp *qp, uint32_t stag, uint64_t va,
		   uint64_t len, uint32_t access, struct key_entry **e,
		   void **p);

#endif

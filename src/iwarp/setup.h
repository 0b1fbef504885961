/*
 * setup.h - the two frames with which an MPA connection begins
 *
 * Once TCP has connected, the initiator sends a request frame and the responder
 * a reply (RFC 5044 chapter 7, RFC 6581), both with private data of the
 * programs. They settle CRC, markers and, in the enhanced form, how many reads
 * either end may have under way, and whether the initiator's first message is
 * one of its own that no program sees, so that the responder may send. Then the
 * stream is FPDUs, and belongs to a QP (iwarp.h).
 *
 *	initiator                         responder
 *	iwarp_setup_init(s, true)         iwarp_setup_init(s, false)
 *	iwarp_setup_request(s, ..)  --->  iwarp_setup_rx(s, ..): 0
 *	                                  the program accepts or rejects
 *	iwarp_setup_rx(s, ..): 0   <----  iwarp_setup_reply(s, ..) or _reject()
 *	iwarp_setup_agreed(s, &a)         iwarp_setup_agreed(s, &a)
 *	iwarp_qp_start(qp, &a)            iwarp_qp_start(qp, &a)
 *
 * No I/O and no time: whoever owns the socket reads at most iwarp_setup_want()
 * bytes at a time, so that nothing behind the frame is read, and closes a
 * connection whose frame does not come.
 */
#ifndef SOFTHCA_IWARP_SETUP_H
#define SOFTHCA_IWARP_SETUP_H

#include "wire/mpa.h"

/* What one end wants of a connection. */
struct iwarp_offer {
	bool crc; /* CRCs are used if either end wants them */
	bool markers; /* the peer is to send markers */
	bool large; /* we take FPDUs longer than a TCP segment: a bit that
			* siw has in its frames, too (MPA_F_LARGE) */
	bool enhanced; /* initiator: the frame of RFC 6581, or one without IRD,
			* ORD and ready-to-receive message */
	bool peer_to_peer; /* initiator, enhanced: a write of no bytes leaves
			    * first, or, where the responder wants that, a
			    * read */
	uint32_t ird; /* reads that we answer at a time, */
	uint32_t ord; /* that we ask for; 0..MPA_MAX_RD each */
};

/* Which message of the initiator's lets the responder send. */
enum iwarp_rtr { IWARP_RTR_NONE, IWARP_RTR_WRITE, IWARP_RTR_READ };

/* What both have settled on, as one end sees it. */
struct iwarp_agreed {
	bool initiator;
	bool crc;
	bool rx_markers, tx_markers;
	bool tx_large; /* FPDUs longer than a segment are welcome there */
	bool enhanced;
	enum iwarp_rtr rtr;
	uint32_t ird, ord;
};

/* Why iwarp_setup_rx() or iwarp_setup_agreed() failed. */
enum iwarp_setup_error {
	IWARP_SETUP_OK,
	IWARP_SETUP_KEY, /* these are not the bytes of such a frame */
	IWARP_SETUP_REVISION, /* of MPA: not 0, 1 or 2 */
	IWARP_SETUP_LENGTH, /* too much private data, or too little for what
			       * an enhanced frame has to say */
	IWARP_SETUP_REJECTED, /* by the peer; its private data is there */
	IWARP_SETUP_PLAIN, /* the reply to an enhanced request is not one */
	IWARP_SETUP_IRD, /* the peer asks for more reads at a time than we
			       * answer, */
	IWARP_SETUP_RTR, /* or for a first message that we have not
			       * offered: the stream is to begin, and
			       * iwarp_fail_setup() to end it */
};
/* In words, for a message: "the peer's MPA revision is not supported". */
const char *iwarp_setup_error_str(enum iwarp_setup_error e);

struct iwarp_setup {
	bool initiator;
	bool done; /* the peer's frame is complete */
	bool answered; /* responder: reply is what has been sent */
	enum iwarp_setup_error error;
	struct iwarp_offer offer;
	struct mpa_frame sent; /* ours; its private data is not kept */
	struct mpa_frame peer; /* theirs, once done */
	size_t have;
	uint8_t buf[MPA_FRAME_MAX]; /* theirs as it came */
};

void iwarp_setup_init(struct iwarp_setup *s, bool initiator);

/*
 * The initiator's request, into out, which has room for MPA_FRAME_MAX bytes;
 * its length, or -EINVAL: too much private data, of which there may be
 * MPA_PRIVATE_MAX bytes, less MPA_ENHANCED_LEN where it is enhanced.
 */
int iwarp_setup_request(struct iwarp_setup *s, const struct iwarp_offer *offer,
			const void *priv, size_t priv_len, uint8_t *out);

/* Bytes of the peer's frame that are certainly still to come: read no more. 0:
 * it is complete, or wrong. */
size_t iwarp_setup_want(const struct iwarp_setup *s);

/*
 * Bytes of the peer's frame, cut anywhere, at most iwarp_setup_want().
 *
 *	0:            complete: s->peer has all of it
 *	-EAGAIN:      there is more to come
 *	-ECONNREFUSED: complete, and a rejection
 *	-EPROTO:      no such frame; s->error says why
 *
 * A responder that gets -EPROTO closes the connection, after a rejection
 * (iwarp_setup_reject()) where s->error is IWARP_SETUP_REVISION or _LENGTH.
 */
int iwarp_setup_rx(struct iwarp_setup *s, const uint8_t *p, size_t len);

/* The peer's private data, once it is complete or rejected. */
const uint8_t *iwarp_setup_private(const struct iwarp_setup *s, size_t *len);

/* What the peer asks for: for the event of a connection request or reply. Not
 * known (no enhanced frame): what limit says. */
void iwarp_setup_asked(const struct iwarp_setup *s, uint32_t limit,
		       uint32_t *ird, uint32_t *ord);

/*
 * The responder's reply: as iwarp_setup_request(). Of offer: crc, markers,
 * large, ird and ord, which are lowered to what the peer can make use of.
 */
int iwarp_setup_reply(struct iwarp_setup *s, const struct iwarp_offer *offer,
		      const void *priv, size_t priv_len, uint8_t *out);
int iwarp_setup_reject(struct iwarp_setup *s, const void *priv, size_t priv_len,
		       uint8_t *out);

/*
 * What has been settled, when both frames are known. 0; -EPROTO: nothing was,
 * s->error says why, and of IWARP_SETUP_IRD and _RTR the peer is told by a
 * Terminate message: *a is filled in for that, too.
 */
int iwarp_setup_agreed(struct iwarp_setup *s, struct iwarp_agreed *a);

#endif

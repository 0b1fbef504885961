/*
 * message.h - what processes tell each other when one of them is suspended
 *
 * A MAD of a vendor's class with an OUI (IBTA 16.5: 0x30 to 0x4f, an RMPP header
 * that is not used, the OUI), sent to QP1. Whoever does not know the class drops
 * it. Method Send, so nobody has to answer, not even that it is not supported.
 *
 *	byte	bits
 *	0	192	common MAD header: version 1, class, class version 1,
 *			Send, the counter as transaction ID, the kind as
 *			attribute
 *	24	96	RMPP header, zeros
 *	36	32	0, OUI
 *	40	8	version of what follows, 1
 *	41	8	entries, 8 at most
 *	42	8	1: the key is made of a shared secret, too
 *	43	8	0
 *	44	32	a QP of the receiver's process: who gets it
 *	48	32	one of the sender's, that the answer is for
 *	52	32	PAUSE: seconds; answers: 1 << entry, of those that hold;
 *			RESUME: 0, or 12 bits each: the chunk that the sender's
 *			communication IDs were of, and are of (connect/gsi.c)
 *	56	64	counter of the process that is suspended
 *	64	64	its number
 *	72	128	its nonce
 *	88	128	the address that the peer's QPs are connected to
 *	104	128	the address that they are to be (PAUSE: the same); HELLO:
 *			0; its answer: the peer's nonce
 *	120	8 x 120	entries
 *	240	128	MAC of all before it; HELLO: 0
 *
 * An entry: QPN that the peer is connected to, QPN from now on, the peer's QPN,
 * the oldest PSN that is not acknowledged, and the PSN that is expected: 24 bits
 * each. What is not used is zero, or the message is none.
 */
#ifndef SOFTHCA_MOVE_MESSAGE_H
#define SOFTHCA_MOVE_MESSAGE_H

#include "siphash.h"

#include "wire/mad.h"

#include <infiniband/verbs.h>

#define MOVE_CLASS 0x38
/* Locally administered, so that it is nobody's. */
#define MOVE_OUI 0x025348u
#define MOVE_VERSION 1
#define MOVE_ENTRIES 8
#define MOVE_NONCE 16
#define MOVE_KEYED 1
#define MOVE_SECONDS_MAX 3600u
/* Of QPNs and communication IDs: how many are a chunk (REGISTRY_CHUNK), and how
 * many of those there are. */
#define MOVE_CHUNK_BITS 12
#define MOVE_CHUNK (1u << MOVE_CHUNK_BITS)
#define MOVE_CHUNKS (1u << (24 - MOVE_CHUNK_BITS))

enum move_kind {
	MOVE_HELLO = 1,
	MOVE_HELLO_ANSWER,
	MOVE_PAUSE,
	MOVE_PAUSE_ANSWER,
	MOVE_RESUME,
	MOVE_RESUME_ANSWER,
	MOVE_KINDS
};

struct move_entry {
	uint32_t was, now; /* QPN of the one that is suspended */
	uint32_t peer; /* QPN */
	uint32_t una, epsn;
};

struct move_message {
	enum move_kind kind;
	bool keyed;
	uint32_t to, from; /* QPNs */
	uint32_t value;
	uint64_t counter, process;
	uint8_t nonce[MOVE_NONCE];
	union ibv_gid was, now;
	uint8_t n;
	struct move_entry entry[MOVE_ENTRIES];
};

/* Whether it is of this class; and the QPN that says whose it is. */
bool move_is(const uint8_t *mad, size_t len);
uint32_t move_to(const uint8_t mad[MAD_LEN]);

/* The only bytes that stand for it. key: NULL of a HELLO. */
void move_encode(const struct move_message *m, const uint8_t *key,
		 uint8_t mad[MAD_LEN]);
/* 0, or -EINVAL: it cannot be one. Whose it is, is not checked. */
int move_decode(struct move_message *m, const uint8_t *mad, size_t len);
/* Whether it was made with this key. */
bool move_sealed(const uint8_t mad[MAD_LEN], const uint8_t key[SIPHASH_KEY]);

#endif

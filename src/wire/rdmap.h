/*
 * rdmap.h - RDMAP: what messages mean, reads, and the Terminate message
 *
 * RDMAP has a control byte in each DDP header, and two messages whose payload is
 * its own: the Read Request, which says what to read and where to write it, and
 * the Terminate, which is the last of a stream and says what was wrong.
 *
 * Reference: RFC 5040 chapter 4, RFC 5041 chapter 7, RFC 5044 chapter 8,
 * RFC 6581 chapter 10; the registry of codes is RFC 6580's.
 */
#ifndef SOFTHCA_WIRE_RDMAP_H
#define SOFTHCA_WIRE_RDMAP_H

#include "ddp.h"

#define RDMAP_VERSION 1

enum rdmap_opcode {
	RDMAP_WRITE = 0,
	RDMAP_READ_REQUEST = 1,
	RDMAP_READ_RESPONSE = 2,
	RDMAP_SEND = 3,
	RDMAP_SEND_INV = 4, /* and invalidate an STag */
	RDMAP_SEND_SE = 5, /* with a solicited event */
	RDMAP_SEND_SE_INV = 6,
	RDMAP_TERMINATE = 7,
	RDMAP_OPCODES
};

/* "RDMA Write", or NULL. */
const char *rdmap_opcode_name(unsigned opcode);

/* The queues of untagged messages. */
enum rdmap_queue {
	RDMAP_Q_SEND = 0,
	RDMAP_Q_READ = 1, /* requests */
	RDMAP_Q_TERMINATE = 2,
	RDMAP_QUEUES
};

/* The control byte: version, opcode. */
static inline uint8_t rdmap_control(enum rdmap_opcode opcode)
{
	return (uint8_t)(RDMAP_VERSION << 6 | opcode);
}

static inline unsigned rdmap_version(uint8_t control)
{
	return control >> 6;
}

static inline unsigned rdmap_opcode(uint8_t control)
{
	return control & 0xf;
}

static inline bool rdmap_is_tagged(unsigned opcode)
{
	return opcode == RDMAP_WRITE || opcode == RDMAP_READ_RESPONSE;
}

static inline bool rdmap_is_send(unsigned opcode)
{
	return opcode >= RDMAP_SEND && opcode <= RDMAP_SEND_SE_INV;
}

/* The payload of a Read Request. */
#define RDMAP_READ_LEN 28

struct rdmap_read {
	uint32_t sink_stag; /* where the requester wants it */
	uint64_t sink_to;
	uint32_t size; /* bytes */
	uint32_t src_stag;
	uint64_t src_to;
};

void rdmap_read_decode(struct rdmap_read *r, const uint8_t p[RDMAP_READ_LEN]);
void rdmap_read_encode(const struct rdmap_read *r, uint8_t p[RDMAP_READ_LEN]);

/* Layer, type and code of an error: 4, 4 and 8 bits. */
#define RDMAP_ERROR(layer, type, code) ((layer) << 12 | (type) << 8 | (code))

enum rdmap_error {
	/* RDMAP: of the local end; of what protects memory; of operations */
	RDMAP_E_CATASTROPHIC = RDMAP_ERROR(0, 0, 0x00),
	RDMAP_E_STAG = RDMAP_ERROR(0, 1, 0x00),
	RDMAP_E_BOUNDS = RDMAP_ERROR(0, 1, 0x01),
	RDMAP_E_ACCESS = RDMAP_ERROR(0, 1, 0x02),
	RDMAP_E_STREAM = RDMAP_ERROR(0, 1, 0x03),
	RDMAP_E_WRAP = RDMAP_ERROR(0, 1, 0x04),
	RDMAP_E_INVALIDATE = RDMAP_ERROR(0, 1, 0x09),
	RDMAP_E_PROTECTION = RDMAP_ERROR(0, 1, 0xff),
	RDMAP_E_VERSION = RDMAP_ERROR(0, 2, 0x05),
	RDMAP_E_OPCODE = RDMAP_ERROR(0, 2, 0x06),
	RDMAP_E_THIS_STREAM = RDMAP_ERROR(0, 2, 0x07),
	RDMAP_E_ALL_STREAMS = RDMAP_ERROR(0, 2, 0x08),
	RDMAP_E_NO_INVALIDATE = RDMAP_ERROR(0, 2, 0x09),
	RDMAP_E_UNSPECIFIED = RDMAP_ERROR(0, 2, 0xff),
	/* DDP: of the local end; tagged; untagged */
	DDP_E_CATASTROPHIC = RDMAP_ERROR(1, 0, 0x00),
	DDP_E_STAG = RDMAP_ERROR(1, 1, 0x00),
	DDP_E_BOUNDS = RDMAP_ERROR(1, 1, 0x01),
	DDP_E_STREAM = RDMAP_ERROR(1, 1, 0x02),
	DDP_E_WRAP = RDMAP_ERROR(1, 1, 0x03),
	DDP_E_TAGGED_VERSION = RDMAP_ERROR(1, 1, 0x04),
	DDP_E_QUEUE = RDMAP_ERROR(1, 2, 0x01),
	DDP_E_NO_BUFFER = RDMAP_ERROR(1, 2, 0x02),
	DDP_E_MSN = RDMAP_ERROR(1, 2, 0x03),
	DDP_E_OFFSET = RDMAP_ERROR(1, 2, 0x04),
	DDP_E_TOO_LONG = RDMAP_ERROR(1, 2, 0x05),
	DDP_E_UNTAGGED_VERSION = RDMAP_ERROR(1, 2, 0x06),
	/* MPA */
	MPA_E_CLOSED = RDMAP_ERROR(2, 0, 0x01),
	MPA_E_CRC = RDMAP_ERROR(2, 0, 0x02),
	MPA_E_MARKER = RDMAP_ERROR(2, 0, 0x03),
	MPA_E_FRAME = RDMAP_ERROR(2, 0, 0x04),
	MPA_E_LOCAL = RDMAP_ERROR(2, 0, 0x05),
	MPA_E_IRD = RDMAP_ERROR(2, 0, 0x06),
	MPA_E_RTR = RDMAP_ERROR(2, 0, 0x07),
};

/* In words, "unknown error" where the code is none. */
const char *rdmap_error_str(unsigned error);

/*
 * The payload of a Terminate. What of the message that is wrong goes with it
 * follows the control word: the length of its segment, its DDP header, and of a
 * Read Request its payload.
 */
#define RDMAP_TERMINATE_LEN 4 /* of the control word */
#define RDMAP_TERMINATE_MAX                                                    \
	(RDMAP_TERMINATE_LEN + 2 + DDP_HDR_MAX + RDMAP_READ_LEN)

struct rdmap_terminate {
	uint16_t error; /* enum rdmap_error, if it is one of these */
	bool has_ddp; /* segment_len and ddp are there, */
	bool has_read; /* and so is read */
	uint16_t segment_len; /* the ULPDU's */
	struct ddp_hdr ddp;
	struct rdmap_read read;
};

/*
 * Decodes as much of it as there is; -EINVAL: not even the control word. has_ddp
 * is false where only its length, or part of it, has come. As siw of a
 * little-endian machine writes it, it is understood, too.
 */
int rdmap_terminate_decode(struct rdmap_terminate *t, const uint8_t *p,
			   size_t len);
/* Writes it to p, which has room for RDMAP_TERMINATE_MAX bytes; its length. */
size_t rdmap_terminate_encode(const struct rdmap_terminate *t, uint8_t *p);

#endif

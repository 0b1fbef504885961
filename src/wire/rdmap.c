/*
 * rdmap.c - encodes and decodes what RDMAP has of its own; names of its errors
 */
#include "rdmap.h"

#include <errno.h>

const char *rdmap_opcode_name(unsigned opcode)
{
	static const char *const names[] = {
		[RDMAP_WRITE] = "RDMA Write",
		[RDMAP_READ_REQUEST] = "RDMA Read Request",
		[RDMAP_READ_RESPONSE] = "RDMA Read Response",
		[RDMAP_SEND] = "Send",
		[RDMAP_SEND_INV] = "Send with Invalidate",
		[RDMAP_SEND_SE] = "Send with SE",
		[RDMAP_SEND_SE_INV] = "Send with SE and Invalidate",
		[RDMAP_TERMINATE] = "Terminate",
	};

	_Static_assert(ARRAY_SIZE(names) == RDMAP_OPCODES, "one name each");
	return opcode < RDMAP_OPCODES ? names[opcode] : NULL;
}

const char *rdmap_error_str(unsigned error)
{
	static const struct {
		uint16_t error;
		const char *name;
	} names[] = {
		{ RDMAP_E_STAG, "invalid STag (rkey)" },
		{ RDMAP_E_BOUNDS, "outside of the region" },
		{ RDMAP_E_ACCESS, "access not allowed" },
		{ RDMAP_E_STREAM, "STag (rkey) not of this QP or its PD" },
		{ RDMAP_E_WRAP, "address range beyond 2^64" },
		{ RDMAP_E_INVALIDATE, "STag (rkey) cannot be invalidated" },
		{ RDMAP_E_PROTECTION, "remote protection error" },
		{ RDMAP_E_VERSION, "RDMAP version not supported" },
		{ RDMAP_E_OPCODE, "unexpected RDMAP opcode" },
		{ RDMAP_E_THIS_STREAM, "catastrophic error of this stream" },
		{ RDMAP_E_ALL_STREAMS, "catastrophic error of all streams" },
		{ RDMAP_E_NO_INVALIDATE, "STag (rkey) cannot be invalidated" },
		{ RDMAP_E_UNSPECIFIED, "remote operation error" },
		{ DDP_E_STAG, "invalid STag (rkey)" },
		{ DDP_E_BOUNDS, "outside of the region" },
		{ DDP_E_STREAM, "STag (rkey) not of this QP or its PD" },
		{ DDP_E_WRAP, "address range beyond 2^64" },
		{ DDP_E_TAGGED_VERSION, "DDP version not supported" },
		{ DDP_E_QUEUE, "invalid DDP queue" },
		{ DDP_E_NO_BUFFER, "no receive is posted" },
		{ DDP_E_MSN, "message sequence number out of order" },
		{ DDP_E_OFFSET, "invalid message offset" },
		{ DDP_E_TOO_LONG, "message longer than the receive" },
		{ DDP_E_UNTAGGED_VERSION, "DDP version not supported" },
		{ MPA_E_CLOSED, "TCP connection lost" },
		{ MPA_E_CRC, "MPA CRC error" },
		{ MPA_E_MARKER, "MPA marker and FPDU length do not match" },
		{ MPA_E_FRAME, "invalid MPA request or reply frame" },
		{ MPA_E_LOCAL, "local catastrophic error" },
		{ MPA_E_IRD, "insufficient IRD" },
		{ MPA_E_RTR, "no matching ready-to-receive message" },
	};

	/* Of the local end, whatever the code. */
	if (error >> 8 == RDMAP_E_CATASTROPHIC >> 8 ||
	    error >> 8 == DDP_E_CATASTROPHIC >> 8)
		return "local catastrophic error";
	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		if (names[i].error == error)
			return names[i].name;
	return "unknown error";
}

void rdmap_read_decode(struct rdmap_read *r, const uint8_t p[RDMAP_READ_LEN])
{
	*r = (struct rdmap_read){
		.sink_stag = get_be32(p),
		.sink_to = get_be64(p + 4),
		.size = get_be32(p + 12),
		.src_stag = get_be32(p + 16),
		.src_to = get_be64(p + 20),
	};
}

void rdmap_read_encode(const struct rdmap_read *r, uint8_t p[RDMAP_READ_LEN])
{
	put_be32(p, r->sink_stag);
	put_be64(p + 4, r->sink_to);
	put_be32(p + 12, r->size);
	put_be32(p + 16, r->src_stag);
	put_be64(p + 20, r->src_to);
}

/* Which headers are there. */
enum { F_LENGTH = 0x80, F_DDP = 0x40, F_READ = 0x20, F_ALL = 0xe0 };

/*
 * On a little-endian machine siw fills each byte of the control word from its
 * other end: layer and type have changed places, and the flags are among the
 * reserved bits. Without flags nothing shows that.
 */
static bool is_siws(const uint8_t *p)
{
	return !(p[2] & F_ALL) && p[2] & 7 && !(p[2] >> 3);
}

static uint8_t siws_flags(uint8_t f)
{
	return (uint8_t)((f & 1 ? F_LENGTH : 0) | (f & 2 ? F_DDP : 0) |
			 (f & 4 ? F_READ : 0));
}

int rdmap_terminate_decode(struct rdmap_terminate *t, const uint8_t *p,
			   size_t len)
{
	uint8_t flags;
	int n;

	if (len < RDMAP_TERMINATE_LEN)
		return -EINVAL;
	*t = (struct rdmap_terminate){ .error = get_be16(p) };
	flags = p[2];
	if (is_siws(p)) {
		flags = siws_flags(flags);
		t->error =
			(uint16_t)((p[0] & 0xf) << 12 | p[0] >> 4 << 8 | p[1]);
	}
	p += RDMAP_TERMINATE_LEN;
	len -= RDMAP_TERMINATE_LEN;
	if (!(flags & F_LENGTH) || len < 2)
		return 0;
	t->segment_len = get_be16(p);
	p += 2;
	len -= 2;
	if (!(flags & F_DDP))
		return 0;
	n = ddp_decode(&t->ddp, p, len);
	if (n < 0)
		return 0;
	t->has_ddp = true;
	if (!(flags & F_READ) || len < (size_t)n + RDMAP_READ_LEN)
		return 0;
	rdmap_read_decode(&t->read, p + n);
	t->has_read = true;
	return 0;
}

size_t rdmap_terminate_encode(const struct rdmap_terminate *t, uint8_t *p)
{
	uint8_t *begin = p;

	put_be32(p, (uint32_t)t->error << 16);
	p[2] = (uint8_t)((t->has_ddp ? F_LENGTH | F_DDP : 0) |
			 (t->has_ddp && t->has_read ? F_READ : 0));
	p += RDMAP_TERMINATE_LEN;
	if (!t->has_ddp)
		return RDMAP_TERMINATE_LEN;
	put_be16(p, t->segment_len);
	p += 2;
	p += ddp_encode(&t->ddp, p);
	if (t->has_read) {
		rdmap_read_encode(&t->read, p);
		p += RDMAP_READ_LEN;
	}
	return (size_t)(p - begin);
}

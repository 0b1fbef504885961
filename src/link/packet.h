/*
 * packet.h - a packet as the bytes that leave
 */
#ifndef SOFTHCA_LINK_PACKET_H
#define SOFTHCA_LINK_PACKET_H

#include "os/guard.h"
#include "roce/qp.h"
#include "wire/icrc.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

/* Of a packet without its payload. */
static inline size_t packet_head_size(const struct roce_hdr *h)
{
	return (size_t)roce_opcode(h->opcode)->hdr_len + h->pad + ROCE_ICRC_LEN;
}

/* From BTH to ICRC. */
static inline size_t packet_size(const struct roce_pkt *p)
{
	return packet_head_size(&p->h) + p->payload;
}

/* What is put together to a packet. */
struct packet_parts {
	const struct roce_hdr *h;
	const struct iovec *iov; /* its payload */
	size_t niov;
	size_t size; /* of the packet, BTH to ICRC */
	bool damaged;
};

static inline struct packet_parts packet_parts(const struct roce_batch *b,
					       const struct roce_pkt *p)
{
	return (struct packet_parts){ &p->h, &b->data.iov[p->iov], p->niov,
				      packet_size(p), p->damaged };
}

/* Puts it together at out, all but its ICRC. Returns 0, or EFAULT as sendmsg(2)
 * does: the program's memory is not there. */
static inline int packet_put(const struct packet_parts *p, uint8_t *out)
{
	const struct iovec *v = p->iov, *end = v + p->niov;
	size_t len = roce_encode(p->h, out);

	for (; v != end; v++) {
		if (guard_copy(out + len, v->iov_base, v->iov_len, v->iov_base))
			return EFAULT;
		len += v->iov_len;
	}
	for (unsigned i = 0; i < p->h->pad; i++)
		out[len++] = 0;
	assert(len + ROCE_ICRC_LEN == p->size);
	return 0;
}

/* And that: crc is its state in front of the BTH. */
static inline void packet_put_icrc(const struct packet_parts *p, uint32_t crc,
				   uint8_t *out)
{
	uint8_t *end = out + p->size - ROCE_ICRC_LEN;

	crc = icrc_bth_own(crc, out, (size_t)(end - out));
	icrc_put(end, p->damaged ? ~crc : crc);
}

/* Errors that will pass: the packet is not taken. */
static inline bool packet_is_busy(int err)
{
	return err == EAGAIN || err == ENOBUFS || err == ENOMEM;
}

#endif

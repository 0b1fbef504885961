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

/* From BTH to ICRC. */
static inline size_t packet_size(const struct roce_pkt *p)
{
	return (size_t)roce_opcode(p->h.opcode)->hdr_len + p->payload +
	       p->h.pad + ROCE_ICRC_LEN;
}

/* Puts a packet of a batch together at out, all but its ICRC. Returns 0, or EFAULT
 * as sendmsg(2) does: the program's memory is not there. */
static inline int packet_put(const struct roce_batch *b,
			     const struct roce_pkt *p, uint8_t *out)
{
	const struct iovec *v = &b->data.iov[p->iov], *end = v + p->niov;
	size_t len = roce_encode(&p->h, out);

	for (; v != end; v++) {
		if (guard_copy(out + len, v->iov_base, v->iov_len, v->iov_base))
			return EFAULT;
		len += v->iov_len;
	}
	for (unsigned i = 0; i < p->h.pad; i++)
		out[len++] = 0;
	assert(len + ROCE_ICRC_LEN == packet_size(p));
	return 0;
}

/* And that: crc is its state in front of the BTH, size the packet's with it. */
static inline void packet_put_icrc(uint32_t crc, uint8_t *out, size_t size,
				   bool damaged)
{
	uint8_t *end = out + size - ROCE_ICRC_LEN;

	crc = icrc_bth_own(crc, out, (size_t)(end - out));
	icrc_put(end, damaged ? ~crc : crc);
}

/* Errors that will pass: the packet is not taken. */
static inline bool packet_is_busy(int err)
{
	return err == EAGAIN || err == ENOBUFS || err == ENOMEM;
}

#endif

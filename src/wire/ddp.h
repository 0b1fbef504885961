/*
 * ddp.h - the header of a DDP segment, which says where its payload belongs
 *
 *   tagged:   T L version | ULP (1) | STag (4) | offset (8)
 *   untagged: T L version | ULP (5) | queue (4) | MSN (4) | offset (4)
 *
 * What stands for the upper layer is RDMAP's: a byte (rdmap.h), and of untagged
 * segments four more.
 *
 * Reference: RFC 5041 chapter 4.
 */
#ifndef SOFTHCA_WIRE_DDP_H
#define SOFTHCA_WIRE_DDP_H

#include "base/bytes.h"

#include <stdbool.h>

#define DDP_VERSION 1
#define DDP_TAGGED_LEN 14
#define DDP_UNTAGGED_LEN 18
#define DDP_HDR_MAX DDP_UNTAGGED_LEN

struct ddp_hdr {
	bool tagged;
	bool last; /* segment of its message */
	uint8_t version;
	uint8_t ulp; /* RDMAP's control byte */

	uint32_t stag; /* tagged */
	uint64_t to; /* tagged offset: an address */

	uint32_t ulp_data; /* untagged: the STag to invalidate, or 0 */
	uint32_t qn; /* enum rdmap_queue */
	uint32_t msn; /* from 1 on, per queue */
	uint32_t mo; /* bytes of the message before this segment's */
};

/* How long the header is that begins with this byte. */
static inline size_t ddp_hdr_len(uint8_t first)
{
	return first & 0x80 ? DDP_TAGGED_LEN : DDP_UNTAGGED_LEN;
}

/*
 * Decodes the header of the len bytes at p; its length, or -EINVAL: they are
 * fewer. Reserved bits are ignored, versions are not checked.
 */
int ddp_decode(struct ddp_hdr *h, const uint8_t *p, size_t len);

/* Writes it to p, which has room for DDP_HDR_MAX bytes; its length. */
size_t ddp_encode(const struct ddp_hdr *h, uint8_t *p);

#endif

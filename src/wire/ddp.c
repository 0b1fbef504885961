/*
 * ddp.c - encodes and decodes DDP headers
 */
#include "ddp.h"

#include <errno.h>

#define F_TAGGED 0x80
#define F_LAST 0x40
#define VERSION 0x03

int ddp_decode(struct ddp_hdr *h, const uint8_t *p, size_t len)
{
	if (!len || len < ddp_hdr_len(p[0]))
		return -EINVAL;
	*h = (struct ddp_hdr){
		.tagged = p[0] & F_TAGGED,
		.last = p[0] & F_LAST,
		.version = p[0] & VERSION,
		.ulp = p[1],
	};
	if (h->tagged) {
		h->stag = get_be32(p + 2);
		h->to = get_be64(p + 6);
		return DDP_TAGGED_LEN;
	}
	h->ulp_data = get_be32(p + 2);
	h->qn = get_be32(p + 6);
	h->msn = get_be32(p + 10);
	h->mo = get_be32(p + 14);
	return DDP_UNTAGGED_LEN;
}

size_t ddp_encode(const struct ddp_hdr *h, uint8_t *p)
{
	p[0] = (uint8_t)((h->tagged ? F_TAGGED : 0) | (h->last ? F_LAST : 0) |
			 (h->version & VERSION));
	p[1] = h->ulp;
	if (h->tagged) {
		put_be32(p + 2, h->stag);
		put_be64(p + 6, h->to);
		return DDP_TAGGED_LEN;
	}
	put_be32(p + 2, h->ulp_data);
	put_be32(p + 6, h->qn);
	put_be32(p + 10, h->msn);
	put_be32(p + 14, h->mo);
	return DDP_UNTAGGED_LEN;
}

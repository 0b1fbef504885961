/*
 * roce.c - encodes and decodes the BTH and the extended headers
 *
 * An opcode's row says which extended headers follow the BTH. Several appear in
 * the order in which the code below handles them (9.2.1, figure 59 on; XRCETH
 * first, A14.3.1).
 */
#include "roce.h"

#include "base/bytes.h"

#include <errno.h>
#include <string.h>

int roce_decode(struct roce_hdr *h, const uint8_t *p, size_t len)
{
	const struct roce_opcode *op;
	uint8_t pad;

	if (len < ROCE_BTH_LEN)
		return -EINVAL;
	op = roce_opcode(p[0]);
	pad = (p[1] >> 4) & 3;
	if (!op->name || len < op->hdr_len || len % 4 != 0)
		return -EINVAL;
	if (pad > len - op->hdr_len)
		return -EINVAL;
	if (!(op->flags & ROCE_F_PAYLOAD) && len != op->hdr_len)
		return -EINVAL;

	*h = (struct roce_hdr){
		.opcode = p[0],
		.solicited = p[1] & 0x80,
		.mig_req = p[1] & 0x40,
		.pad = pad,
		.tver = p[1] & 0x0f,
		.pkey = get_be16(p + 2),
		.fecn = p[4] & 0x80,
		.becn = p[4] & 0x40,
		.dest_qpn = get_be24(p + 5),
		.ack_req = p[8] & 0x80,
		.psn = get_be24(p + 9),
	};
	if (op->hdr_len == ROCE_BTH_LEN)
		return ROCE_BTH_LEN;
	p += ROCE_BTH_LEN;

	if (op->flags & ROCE_F_XRCETH) {
		h->xrc_srqn = get_be24(p + 1);
		p += 4;
	}
	if (op->flags & ROCE_F_DETH) {
		h->qkey = get_be32(p);
		h->src_qpn = get_be24(p + 5);
		p += 8;
	}
	if (op->flags & ROCE_F_RETH) {
		h->va = get_be64(p);
		h->rkey = get_be32(p + 8);
		h->dma_len = get_be32(p + 12);
		p += 16;
	}
	if (op->flags & ROCE_F_ATOMICETH) {
		h->va = get_be64(p);
		h->rkey = get_be32(p + 8);
		h->swap_add = get_be64(p + 12);
		h->compare = get_be64(p + 20);
		p += 28;
	}
	if (op->flags & ROCE_F_AETH) {
		h->syndrome = p[0];
		h->msn = get_be24(p + 1);
		p += 4;
	}
	if (op->flags & ROCE_F_ATOMICACKETH) {
		h->atomic_orig = get_be64(p);
		p += 8;
	}
	if (op->flags & ROCE_F_IMM) {
		memcpy(&h->imm, p, 4);
		p += 4;
	}
	if (op->flags & ROCE_F_IETH)
		h->inv_rkey = get_be32(p);
	return op->hdr_len;
}

size_t roce_encode(const struct roce_hdr *h, uint8_t *p)
{
	const struct roce_opcode *op = roce_opcode(h->opcode);

	put_be32(p, (uint32_t)h->opcode << 24 | (uint32_t)h->solicited << 23 |
			    (uint32_t)h->mig_req << 22 | (h->pad & 3u) << 20 |
			    (h->tver & 0x0fu) << 16 | h->pkey);
	put_be32(p + 4, (uint32_t)h->fecn << 31 | (uint32_t)h->becn << 30 |
				(h->dest_qpn & 0xffffff));
	put_be32(p + 8, (uint32_t)h->ack_req << 31 | (h->psn & PSN_MASK));
	if (op->hdr_len == ROCE_BTH_LEN)
		return ROCE_BTH_LEN;
	if (h->opcode == ROCE_CNP)
		memset(p + ROCE_BTH_LEN, 0, op->hdr_len - ROCE_BTH_LEN);
	p += ROCE_BTH_LEN;

	if (op->flags & ROCE_F_XRCETH) {
		p[0] = 0;
		put_be24(p + 1, h->xrc_srqn);
		p += 4;
	}
	if (op->flags & ROCE_F_DETH) {
		put_be32(p, h->qkey);
		p[4] = 0;
		put_be24(p + 5, h->src_qpn);
		p += 8;
	}
	if (op->flags & ROCE_F_RETH) {
		put_be64(p, h->va);
		put_be32(p + 8, h->rkey);
		put_be32(p + 12, h->dma_len);
		p += 16;
	}
	if (op->flags & ROCE_F_ATOMICETH) {
		put_be64(p, h->va);
		put_be32(p + 8, h->rkey);
		put_be64(p + 12, h->swap_add);
		put_be64(p + 20, h->compare);
		p += 28;
	}
	if (op->flags & ROCE_F_AETH) {
		p[0] = h->syndrome;
		put_be24(p + 1, h->msn);
		p += 4;
	}
	if (op->flags & ROCE_F_ATOMICACKETH) {
		put_be64(p, h->atomic_orig);
		p += 8;
	}
	if (op->flags & ROCE_F_IMM) {
		memcpy(p, &h->imm, 4);
		p += 4;
	}
	if (op->flags & ROCE_F_IETH)
		put_be32(p, h->inv_rkey);
	return op->hdr_len;
}

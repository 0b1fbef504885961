/*
 * lrh.c - see lrh.h
 */
#include "lrh.h"

#include "crc.h"
#include "icrc.h"

#include <string.h>

#define LNH_LOCAL 2u /* a BTH follows, */
#define LNH_GLOBAL 3u /* or a GRH */
#define VCRC_POLY 0xd008u /* 0x100b, its bits reversed */

void lrh_put(uint8_t *h, const struct lrh *l, size_t transport_len)
{
	h[0] = 0; /* virtual lane 0, version 0 */
	h[1] = l->global ? LNH_GLOBAL : LNH_LOCAL; /* service level 0 */
	put_be16(h + 2, l->dlid);
	/* In words, up to the ICRC. */
	put_be16(h + 4, (uint32_t)((lrh_len(l) + transport_len) / 4));
	put_be16(h + 6, l->slid);
	if (!l->global)
		return;
	grh_put(h + LRH_LEN,
		&(struct grh){ .sgid = l->sgid,
			       .dgid = l->dgid,
			       .flow_label = l->flow_label,
			       .tclass = l->tclass,
			       .hop_limit = l->hop_limit,
			       .pay_len = (uint16_t)transport_len });
}

/* What switches and routers may change is taken as ones; of a packet with a GRH
 * that is all of the LRH. */
static uint32_t icrc_of_headers(const uint8_t *pkt, const struct lrh *l)
{
	uint8_t h[LRH_LEN];

	if (l->global)
		return icrc_grh(pkt + LRH_LEN);
	memcpy(h, pkt, LRH_LEN);
	h[0] |= 0xf0;
	return icrc_update(0, h, LRH_LEN);
}

static uint16_t vcrc(const uint8_t *p, size_t len)
{
	uint32_t crc = 0xffff;

	for (size_t i = 0; i < len; i++) {
		crc ^= p[i];
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? VCRC_POLY : 0);
	}
	return (uint16_t)~crc;
}

void lrh_put_crcs(uint8_t *pkt, const struct lrh *l, size_t len)
{
	const size_t head = lrh_len(l);
	uint8_t *end = pkt + len - LRH_VCRC_LEN;
	uint32_t crc = icrc_of_headers(pkt, l);
	uint16_t v;

	crc = icrc_bth(crc, pkt + head,
		       (size_t)(end - pkt) - head - ROCE_ICRC_LEN);
	icrc_put(end - ROCE_ICRC_LEN, crc);
	v = vcrc(pkt, (size_t)(end - pkt));
	/* As the ICRC: the least significant byte first. */
	end[0] = (uint8_t)v;
	end[1] = (uint8_t)(v >> 8);
}

/*
 * lrh.h - what a packet of InfiniBand has that one of RoCEv2 has not: the local
 * and global route headers in front of the BTH (IBTA 7.7, 8.3), an ICRC that
 * covers them (7.8.1), and the variant CRC behind it (7.8.2)
 */
#ifndef SOFTHCA_WIRE_LRH_H
#define SOFTHCA_WIRE_LRH_H

#include "grh.h"

#define LRH_LEN 8u
#define LRH_VCRC_LEN 2u

struct lrh {
	uint16_t slid, dlid;
	bool global; /* a GRH follows: */
	union ibv_gid sgid, dgid;
	uint32_t flow_label;
	uint8_t tclass, hop_limit;
};

/* The length of its headers. */
static inline size_t lrh_len(const struct lrh *l)
{
	return LRH_LEN + (l->global ? GRH_LEN : 0);
}

/* Writes them; transport_len: from BTH to ICRC inclusive. */
void lrh_put(uint8_t *h, const struct lrh *l, size_t transport_len);

/* Writes the CRCs of a packet whose headers and payload are there: pkt is len
 * bytes from the LRH to the VCRC inclusive. */
void lrh_put_crcs(uint8_t *pkt, const struct lrh *l, size_t len);

#endif

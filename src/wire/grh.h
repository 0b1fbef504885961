/*
 * grh.h - the global route header (IBTA 8.3)
 *
 * Packets of RoCE v1 begin with it, behind an Ethernet header of type 0x8915
 * (annex A16); those of InfiniBand may have one between LRH and BTH. It is laid
 * out as a header of IPv6.
 */
#ifndef SOFTHCA_WIRE_GRH_H
#define SOFTHCA_WIRE_GRH_H

#include "roce.h"

#define ROCEV1_ETHERTYPE 0x8915u
#define GRH_LEN 40u
#define GRH_NEXT_BTH 0x1b /* of a transport of InfiniBand */

struct grh {
	union ibv_gid sgid, dgid;
	uint32_t flow_label; /* 20 bits */
	uint8_t tclass, hop_limit;
	uint16_t pay_len; /* from BTH to ICRC inclusive */
};

void grh_put(uint8_t h[GRH_LEN], const struct grh *g);

/*
 * Reads the header that the len bytes at p begin with. -EINVAL: it is none, what
 * follows it is no BTH, or not all of that is there. Bytes behind pay_len are
 * padding.
 */
int grh_get(struct grh *g, const uint8_t *p, size_t len);

#endif

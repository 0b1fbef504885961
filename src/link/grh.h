/*
 * grh.h - the header that a UD receiver finds in front of its data
 *
 * 40 bytes: a GRH, or an IPv4 header in the last 20 of them (annex A17.4.5.2).
 */
#ifndef SOFTHCA_LINK_GRH_H
#define SOFTHCA_LINK_GRH_H

#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdint.h>

#define LINK_GRH_LEN 40

struct link_grh {
	const union ibv_gid *src, *dst;
	uint8_t tclass;
	uint8_t hop_limit;
	uint16_t ip_id; /* IPv4 */
	size_t len; /* of the packet, from BTH to ICRC */
};

void link_grh_build(uint8_t out[LINK_GRH_LEN], const struct link_grh *g);

#endif

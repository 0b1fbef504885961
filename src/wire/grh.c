/*
 * grh.c - see grh.h
 */
#include "grh.h"

#include <errno.h>
#include <string.h>

void grh_put(uint8_t h[GRH_LEN], const struct grh *g)
{
	put_be32(h, 6u << 28 | (uint32_t)g->tclass << 20 |
			    (g->flow_label & 0xfffff));
	put_be16(h + 4, g->pay_len);
	h[6] = GRH_NEXT_BTH;
	h[7] = g->hop_limit;
	memcpy(h + 8, g->sgid.raw, 16);
	memcpy(h + 24, g->dgid.raw, 16);
}

int grh_get(struct grh *g, const uint8_t *p, size_t len)
{
	uint32_t first;

	if (len < GRH_LEN || p[0] >> 4 != 6 || p[6] != GRH_NEXT_BTH ||
	    get_be16(p + 4) > len - GRH_LEN)
		return -EINVAL;
	first = get_be32(p);
	g->tclass = (uint8_t)(first >> 20);
	g->flow_label = first & 0xfffff;
	g->pay_len = get_be16(p + 4);
	g->hop_limit = p[7];
	memcpy(g->sgid.raw, p + 8, 16);
	memcpy(g->dgid.raw, p + 24, 16);
	return 0;
}

#include "grh.h"

#include "base/bytes.h"
#include "base/checksum.h"
#include "wire/roce.h"

#include <netinet/in.h>
#include <string.h>

void link_grh_build(uint8_t out[LINK_GRH_LEN], const struct link_grh *g)
{
	uint8_t *ip = out + 20;

	memset(out, 0, LINK_GRH_LEN);
	if (roce_gid_is_v4(g->dst)) {
		ip[0] = 0x45;
		ip[1] = g->tclass;
		put_be16(ip + 2, (uint32_t)(20 + 8 + g->len));
		put_be16(ip + 4, g->ip_id);
		put_be16(ip + 6, 0x4000); /* DF */
		ip[8] = g->hop_limit;
		ip[9] = IPPROTO_UDP;
		memcpy(ip + 12, g->src->raw + 12, 4);
		memcpy(ip + 16, g->dst->raw + 12, 4);
		put_be16(ip + 10, inet_fold(inet_sum(0, ip, 20)));
	} else {
		put_be32(out, 6u << 28 | (uint32_t)g->tclass << 20);
		put_be16(out + 4, (uint32_t)(8 + g->len));
		out[6] = IPPROTO_UDP;
		out[7] = g->hop_limit;
		memcpy(out + 8, g->src->raw, 16);
		memcpy(out + 24, g->dst->raw, 16);
	}
}

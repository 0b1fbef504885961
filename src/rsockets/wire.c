/*
 * wire.c - encode and decode what rsockets exchange
 *
 * Fields are big-endian, except in the target tables (see rsw_sge).
 */
#include "rsockets/wire.h"
#include "base/bytes.h"

#include <errno.h>
#include <string.h>

enum { CONN_VERSION = 1, CONN_BIG_ENDIAN = 1 << 0, CONN_IOMAPS = 1 << 1 };

static bool big_endian(void)
{
	return __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__;
}

static uint8_t scale_size(uint32_t n)
{
	if (n <= 128)
		return (uint8_t)n;
	return (uint8_t)(128 | min_u32(n >> 8, 127));
}

/* 128 stands for itself; scale_size() writes it for 129 to 255 too. */
static uint32_t unscale_size(uint8_t s)
{
	return s <= 128 ? s : (uint32_t)(s & 127) << 8;
}

uint32_t rsw_iomaps_round(uint32_t n)
{
	return unscale_size(scale_size(n));
}

static void put_sge(uint8_t *p, const struct rsw_sge *sge)
{
	put_be64(p, sge->addr);
	put_be32(p + 8, sge->key);
	put_be32(p + 12, sge->length);
}

static struct rsw_sge get_sge(const uint8_t *p)
{
	return (struct rsw_sge){ .addr = get_be64(p),
				 .key = get_be32(p + 8),
				 .length = get_be32(p + 12) };
}

void rsw_conn_encode(uint8_t p[RSW_CONN_LEN], const struct rsw_conn *conn)
{
	memset(p, 0, RSW_CONN_LEN);
	p[0] = CONN_VERSION;
	p[1] = (uint8_t)(CONN_IOMAPS | (big_endian() ? CONN_BIG_ENDIAN : 0));
	put_be16(p + 2, conn->credits);
	put_be16(p + 4, conn->port);
	p[7] = scale_size(conn->iomaps);
	put_sge(p + 8, &conn->target);
	put_sge(p + 24, &conn->buffer);
}

int rsw_conn_decode(const void *data, size_t len, struct rsw_conn *conn)
{
	const uint8_t *p = data;

	if (!p || len < RSW_CONN_LEN)
		return -EPROTO;
	if (p[0] != CONN_VERSION)
		return -EPROTONOSUPPORT;
	*conn = (struct rsw_conn){
		.swap = !!(p[1] & CONN_BIG_ENDIAN) != big_endian(),
		.has_iomaps = p[1] & CONN_IOMAPS,
		.credits = get_be16(p + 2),
		.port = get_be16(p + 4),
		.iomaps = unscale_size(p[7]),
		.target = get_sge(p + 8),
		.buffer = get_sge(p + 24),
	};
	if (!conn->has_iomaps)
		conn->iomaps = 0;
	/* Otherwise nothing could ever be sent, nor granted. */
	if (!conn->target.length || !conn->buffer.length)
		return -EPROTO;
	return 0;
}

size_t rsw_dgram_encode(uint8_t p[RSW_DGRAM_IP6], const union rsw_addr *src)
{
	bool ip4 = src->sa.sa_family == AF_INET;

	p[0] = ip4 ? 4 : 6;
	p[1] = ip4 ? RSW_DGRAM_IP4 : RSW_DGRAM_IP6;
	if (ip4) {
		memcpy(p + 2, &src->sin.sin_port, 2);
		memcpy(p + 4, &src->sin.sin_addr, 4);
	} else {
		memcpy(p + 2, &src->sin6.sin6_port, 2);
		memcpy(p + 4, &src->sin6.sin6_flowinfo, 4);
		memcpy(p + 8, &src->sin6.sin6_addr, 16);
	}
	return p[1];
}

int rsw_dgram_decode(const uint8_t *p, size_t len, union rsw_addr *src)
{
	memset(src, 0, sizeof(*src));
	if (len >= RSW_DGRAM_IP4 && p[0] == 4 && p[1] == RSW_DGRAM_IP4) {
		src->sin.sin_family = AF_INET;
		memcpy(&src->sin.sin_port, p + 2, 2);
		memcpy(&src->sin.sin_addr, p + 4, 4);
		return RSW_DGRAM_IP4;
	}
	if (len >= RSW_DGRAM_IP6 && p[0] == 6 && p[1] == RSW_DGRAM_IP6) {
		src->sin6.sin6_family = AF_INET6;
		memcpy(&src->sin6.sin6_port, p + 2, 2);
		memcpy(&src->sin6.sin6_flowinfo, p + 4, 4);
		memcpy(&src->sin6.sin6_addr, p + 8, 16);
		return RSW_DGRAM_IP6;
	}
	return -EPROTO;
}

#define UDP_TAG 0x55555555u

size_t rsw_udp_encode(uint8_t p[RSW_UDP_IP6], const struct rsw_udp *udp,
		      const union rsw_addr *src)
{
	bool ip4 = src->sa.sa_family == AF_INET;

	memset(p, 0, RSW_UDP_IP6);
	put_be32(p, UDP_TAG);
	p[4] = ip4 ? 4 : 6;
	p[5] = udp->data ? RSW_DATA : RSW_CTRL;
	p[6] = ip4 ? RSW_UDP_IP4 : RSW_UDP_IP6;
	put_be32(p + 8, udp->qpn & 0xffffff);
	if (ip4)
		memcpy(p + 12, &src->sin.sin_addr, 4);
	else
		memcpy(p + 12, &src->sin6.sin6_addr, 16);
	return p[6];
}

int rsw_udp_decode(const uint8_t *p, size_t len, int family,
		   struct rsw_udp *udp)
{
	size_t want = family == AF_INET ? RSW_UDP_IP4 : RSW_UDP_IP6;

	if (len < want || get_be32(p) != UDP_TAG || p[6] != want ||
	    p[4] != (family == AF_INET ? 4 : 6))
		return -EPROTO;
	if (p[5] != RSW_DATA && p[5] != RSW_CTRL)
		return -EPROTO;
	udp->data = p[5] == RSW_DATA;
	udp->qpn = get_be32(p + 8) & 0xffffff;
	return (int)want;
}

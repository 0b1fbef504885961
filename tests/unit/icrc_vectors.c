/*
 * icrc_vectors.c - prints random RoCEv2 packets, from the IP header to the
 * ICRC, in hexadecimal, one a line, for another implementation to check
 *
 *	icrc_vectors COUNT SEED
 *
 * The fields that the ICRC does not cover have random values too.
 */
#include "base/bytes.h"
#include "wire/icrc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAYLOAD_MAX 4096

static uint64_t state;

static uint32_t rnd(void)
{
	state ^= state >> 12;
	state ^= state << 25;
	state ^= state >> 27;
	return (uint32_t)((state * 0x2545f4914f6cdd1du) >> 32);
}

static void fill(uint8_t *p, size_t len)
{
	while (len--)
		*p++ = (uint8_t)rnd();
}

static void v4_mapped(union ibv_gid *gid)
{
	memset(gid->raw, 0, 10);
	gid->raw[10] = gid->raw[11] = 0xff;
}

static size_t put_ip(uint8_t *p, const union ibv_gid *src,
		     const union ibv_gid *dst, uint16_t id, size_t udp_len)
{
	if (roce_gid_is_v4(src)) {
		p[0] = 0x45;
		p[1] = (uint8_t)rnd();
		put_be16(p + 2, (uint32_t)(20 + udp_len));
		put_be16(p + 4, id);
		put_be16(p + 6, 0x4000);
		p[8] = (uint8_t)rnd();
		p[9] = 17;
		put_be16(p + 10, rnd());
		memcpy(p + 12, src->raw + 12, 4);
		memcpy(p + 16, dst->raw + 12, 4);
		return 20;
	}
	put_be32(p, 0x60000000 | (rnd() & 0x0fffffff));
	put_be16(p + 4, (uint32_t)udp_len);
	p[6] = 17;
	p[7] = (uint8_t)rnd();
	memcpy(p + 8, src->raw, 16);
	memcpy(p + 24, dst->raw, 16);
	return 40;
}

static void print_packet(bool v4)
{
	uint8_t pkt[40 + 8 + ROCE_HDR_MAX + PAYLOAD_MAX + ROCE_ICRC_LEN];
	uint8_t bth[ROCE_HDR_MAX + PAYLOAD_MAX + ROCE_ICRC_LEN];
	size_t len, hdr_len, payload = 0, n, i;
	const struct roce_opcode *op;
	union ibv_gid src, dst;
	struct roce_hdr h;
	uint16_t sport, id;
	uint32_t crc;

	/* Random bytes for all fields, and an opcode that exists. */
	do {
		fill(bth, sizeof(bth));
		op = roce_opcode(bth[0]);
	} while (!op->name);
	if (op->flags & ROCE_F_PAYLOAD)
		payload = rnd() % (rnd() % 4 ? 100 : PAYLOAD_MAX) / 4 * 4;
	else
		bth[1] &= 0xcf;
	if (!payload)
		bth[1] &= 0xcf;
	hdr_len = op->hdr_len;
	if (roce_decode(&h, bth, hdr_len + payload) != (int)hdr_len)
		abort();
	roce_encode(&h, bth);
	len = hdr_len + payload + ROCE_ICRC_LEN;

	fill(src.raw, 16);
	fill(dst.raw, 16);
	src.raw[0] = dst.raw[0] = 0xfd;
	if (v4) {
		v4_mapped(&src);
		v4_mapped(&dst);
	}
	sport = (uint16_t)rnd();
	id = (uint16_t)rnd();
	crc = icrc_begin(&src, &dst, sport, ROCE_UDP_PORT, len, id);
	crc = icrc_bth(crc, bth, hdr_len);
	crc = icrc_update(crc, bth + hdr_len, payload);
	icrc_put(bth + hdr_len + payload, crc);

	n = put_ip(pkt, &src, &dst, id, 8 + len);
	put_be16(pkt + n, sport);
	put_be16(pkt + n + 2, ROCE_UDP_PORT);
	put_be16(pkt + n + 4, (uint32_t)(8 + len));
	put_be16(pkt + n + 6, rnd());
	memcpy(pkt + n + 8, bth, len);
	n += 8 + len;
	for (i = 0; i < n; i++)
		printf("%02x", pkt[i]);
	putchar('\n');
}

int main(int argc, char **argv)
{
	long i, count;

	if (argc != 3) {
		fprintf(stderr, "usage: %s COUNT SEED\n", argv[0]);
		return 2;
	}
	count = strtol(argv[1], NULL, 0);
	state = strtoull(argv[2], NULL, 0) | 1;
	for (i = 0; i < count; i++)
		print_packet(i % 2);
	return 0;
}

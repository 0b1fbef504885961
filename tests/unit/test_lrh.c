/*
 * test_lrh.c - route headers and CRCs of InfiniBand's packets
 */
#include "unit.h"

#include "wire/lrh.h"

/* The example of IBTA 7.8: an RDMA WRITE of 14 bytes, without its CRCs. */
static const uint8_t example[] = {
	0x70, 0x12, 0x37, 0x5c, 0x00, 0x0e, 0x17, 0xd2, 0x0a, 0x20, 0x24,
	0x87, 0x00, 0x87, 0xb1, 0xb3, 0x00, 0x0d, 0xec, 0x2a, 0x01, 0x71,
	0x0a, 0x1c, 0x01, 0x5d, 0x40, 0x02, 0x38, 0xf2, 0x7a, 0x05, 0x00,
	0x00, 0x00, 0x0e, 0xbb, 0x88, 0x4d, 0x85, 0xfd, 0x5c, 0xfb, 0xa4,
	0x72, 0x8b, 0xc0, 0x69, 0x0e, 0xd4, 0x00, 0x00,
};

static void invariant_crc(void **state)
{
	static const uint8_t want[4] = { 0x96, 0x25, 0xb7, 0x5a };
	uint8_t pkt[sizeof(example) + 6];
	const struct lrh l = { .slid = 0x17d2, .dlid = 0x375c };

	(void)state;
	memcpy(pkt, example, sizeof(example));
	lrh_put_crcs(pkt, &l, sizeof(pkt));
	assert_memory_equal(pkt + sizeof(example), want, sizeof(want));
}

/* A CRC over a packet and its CRC is the same for all packets. */
static uint32_t residue(const uint8_t *p, size_t len)
{
	uint32_t crc = 0xffff;

	for (size_t i = 0; i < len; i++)
		for (int bit = 0; bit < 8; bit++) {
			const uint32_t in = (p[i] >> bit ^ crc) & 1;

			crc = crc >> 1 ^ (in ? 0xd008u : 0);
		}
	return crc;
}

static void variant_crc(void **state)
{
	uint8_t pkt[sizeof(example) + 6];
	const struct lrh l = { .slid = 0x17d2, .dlid = 0x375c };
	uint32_t first = 0;

	(void)state;
	memcpy(pkt, example, sizeof(example));
	for (unsigned i = 0; i < 64; i++) {
		pkt[i % sizeof(example)] ^= (uint8_t)(i + 1);
		lrh_put_crcs(pkt, &l, sizeof(pkt));
		if (!i)
			first = residue(pkt, sizeof(pkt));
		assert_int_equal(residue(pkt, sizeof(pkt)), first);
		pkt[9] ^= 1;
		assert_int_not_equal(residue(pkt, sizeof(pkt)), first);
	}
}

static void headers(void **state)
{
	struct lrh l = { .slid = 1, .dlid = 0xc002 };
	uint8_t h[LRH_LEN + GRH_LEN];
	static const uint8_t local[] = { 0, 2, 0xc0, 2, 0, 13, 0, 1 };
	static const uint8_t global[] = { 0, 3, 0xc0, 2, 0, 23, 0, 1 };

	(void)state;
	lrh_put(h, &l, 44);
	assert_int_equal(lrh_len(&l), LRH_LEN);
	assert_memory_equal(h, local, sizeof(local));
	l.global = true;
	l.tclass = 0x60;
	l.flow_label = 0x12345;
	l.hop_limit = 7;
	l.sgid.raw[0] = 0xfe;
	l.dgid.raw[15] = 9;
	lrh_put(h, &l, 44);
	assert_int_equal(lrh_len(&l), sizeof(h));
	assert_memory_equal(h, global, sizeof(global));
	assert_int_equal(get_be32(h + 8), 0x66012345);
	assert_int_equal(get_be16(h + 12), 44);
	assert_int_equal(h[14], 0x1b);
	assert_int_equal(h[15], 7);
	assert_memory_equal(h + 16, l.sgid.raw, 16);
	assert_memory_equal(h + 32, l.dgid.raw, 16);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(invariant_crc),
		cmocka_unit_test(variant_crc),
		cmocka_unit_test(headers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

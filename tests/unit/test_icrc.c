/*
 * test_icrc.c - the ICRC against a second computation, bit by bit, written
 * from annex A17.3.3 alone, and the search for the IPv4 identification
 */
#include "unit.h"

#include "base/bytes.h"
#include "wire/icrc.h"

#define MAX 4200

/* CRC-32 of Ethernet, one bit at a time, least significant bit first. */
static uint32_t slow_crc(const uint8_t *p, size_t len)
{
	uint32_t crc = 0xffffffff;
	int bit;

	while (len--) {
		crc ^= *p++;
		for (bit = 0; bit < 8; bit++)
			crc = crc & 1 ? crc >> 1 ^ 0xedb88320 : crc >> 1;
	}
	return ~crc;
}

struct flow {
	union ibv_gid src, dst;
	uint16_t sport, dport;
};

static void random_flow(uint64_t *rng, struct flow *f, bool v4)
{
	rnd_fill(rng, f, sizeof(*f));
	if (v4) {
		memset(f->src.raw, 0, 10);
		memset(f->src.raw + 10, 0xff, 2);
		memset(f->dst.raw, 0, 10);
		memset(f->dst.raw + 10, 0xff, 2);
	} else {
		f->src.raw[0] = f->dst.raw[0] = 0xfd;
	}
}

static uint32_t slow_icrc(const struct flow *f, const uint8_t *bth, size_t len,
			  uint16_t id)
{
	uint8_t m[8 + 40 + 8 + MAX];
	size_t n = 8;

	memset(m, 0xff, sizeof(m));
	if (roce_gid_is_v4(&f->src)) {
		const uint8_t ip[] = { 0x45, 0xff, 0,    0,  0,    0,
				       0x40, 0,    0xff, 17, 0xff, 0xff };

		memcpy(m + n, ip, sizeof(ip));
		put_be16(m + n + 2, (uint32_t)(20 + 8 + len));
		put_be16(m + n + 4, id);
		memcpy(m + n + 12, f->src.raw + 12, 4);
		memcpy(m + n + 16, f->dst.raw + 12, 4);
		n += 20;
	} else {
		m[n] = 0x6f;
		put_be16(m + n + 4, (uint32_t)(8 + len));
		m[n + 6] = 17;
		memcpy(m + n + 8, f->src.raw, 16);
		memcpy(m + n + 24, f->dst.raw, 16);
		n += 40;
	}
	put_be16(m + n, f->sport);
	put_be16(m + n + 2, f->dport);
	put_be16(m + n + 4, (uint32_t)(8 + len));
	n += 8;
	memcpy(m + n, bth, len - 4);
	m[n + 4] = 0xff;
	return slow_crc(m, n + len - 4);
}

static uint32_t icrc(const struct flow *f, const uint8_t *bth, size_t len,
		     uint16_t id)
{
	uint32_t crc;

	crc = icrc_begin(&f->src, &f->dst, f->sport, f->dport, len, id);
	return icrc_bth(crc, bth, len - 4);
}

static bool check(const struct flow *f, const uint8_t *bth, size_t len,
		  uint16_t *id)
{
	return icrc_check(&f->src, &f->dst, f->sport, f->dport, bth, len, id);
}

/* The CRC's own check value: "123456789" gives cbf43926. */
static void check_value(void **state)
{
	uint8_t out[4];

	(void)state;
	assert_int_equal(slow_crc((const uint8_t *)"123456789", 9), 0xcbf43926);
	assert_int_equal(icrc_update(0, "123456789", 9), 0xcbf43926);
	assert_int_equal(icrc_update(icrc_update(0, "1234", 4), "56789", 5),
			 0xcbf43926);
	assert_int_equal(icrc_update(0x1234, NULL, 0), 0x1234);
	icrc_put(out, 0xcbf43926);
	assert_memory_equal(out, "\x26\x39\xf4\xcb", 4);
}

static void same_as_slow(void **state)
{
	uint64_t rng = rnd_seed();
	uint8_t pkt[MAX];
	struct flow f;
	uint16_t id;
	size_t len;
	int i;

	(void)state;
	for (i = 0; i < 3000; i++) {
		len = i < 200 ? 16 + (size_t)i : 16 + rnd(&rng) % (MAX - 16);
		random_flow(&rng, &f, i & 1);
		rnd_fill(&rng, pkt, len);
		id = (uint16_t)rnd(&rng);
		assert_int_equal(icrc(&f, pkt, len, id),
				 slow_icrc(&f, pkt, len, id));
	}
}

/* However a packet's bytes are cut into pieces, the result is the same. */
static void in_pieces(void **state)
{
	uint64_t rng = rnd_seed();
	uint8_t pkt[600];
	struct flow f;
	uint32_t crc;
	size_t at, n;
	int i;

	(void)state;
	random_flow(&rng, &f, true);
	rnd_fill(&rng, pkt, sizeof(pkt));
	for (i = 0; i < 500; i++) {
		crc = icrc_begin(&f.src, &f.dst, f.sport, f.dport, sizeof(pkt),
				 7);
		at = 12 + rnd(&rng) % 100;
		crc = icrc_bth(crc, pkt, at);
		for (; at < sizeof(pkt) - 4; at += n) {
			n = rnd(&rng) % 200;
			if (n > sizeof(pkt) - 4 - at)
				n = sizeof(pkt) - 4 - at;
			crc = icrc_update(crc, pkt + at, n);
		}
		assert_int_equal(crc, slow_icrc(&f, pkt, sizeof(pkt), 7));
	}
}

/* Every identification is found, from every guess, at every length. */
static void finds_every_id(void **state)
{
	/* The last: longer than any packet's, and not a multiple of four. */
	static const size_t lens[] = { 16, 20, 1040, 1056, 4156, MAX - 1 };
	uint64_t rng = rnd_seed();
	uint8_t pkt[MAX];
	uint16_t id, found;
	struct flow f;
	size_t i, len;
	unsigned n;

	(void)state;
	for (i = 0; i < ARRAY_SIZE(lens); i++) {
		len = lens[i];
		rnd_fill(&rng, pkt, len);
		random_flow(&rng, &f, true);
		for (n = 0; n < 0x10000; n += (len > 1100 ? 61 : 1)) {
			id = (uint16_t)n;
			icrc_put(pkt + len - 4, icrc(&f, pkt, len, id));
			found = (uint16_t)rnd(&rng);
			assert_true(check(&f, pkt, len, &found));
			assert_int_equal(found, id);
		}
		assert_true(check(&f, pkt, len, NULL));
	}
	for (len = 16; len < MAX; len++) {
		id = (uint16_t)rnd(&rng);
		icrc_put(pkt + len - 4, icrc(&f, pkt, len, id));
		found = 0;
		assert_true(check(&f, pkt, len, &found));
		assert_int_equal(found, id);
	}
}

/* About one wrong CRC in 65536 has an identification that explains it. */
static void refuses_the_rest(void **state)
{
	uint64_t rng = rnd_seed();
	unsigned n, passed = 0;
	uint8_t pkt[64], crc[4];
	struct flow f;
	uint16_t id;

	(void)state;
	for (n = 0; n < 0x40000; n++) {
		if (n % 1024 == 0)
			random_flow(&rng, &f, true);
		rnd_fill(&rng, pkt, sizeof(pkt));
		id = 0x4242;
		if (!check(&f, pkt, sizeof(pkt), &id)) {
			assert_int_equal(id, 0x4242);
			continue;
		}
		passed++;
		/* Then it really has that identification. */
		icrc_put(crc, slow_icrc(&f, pkt, sizeof(pkt), id));
		assert_memory_equal(crc, pkt + sizeof(pkt) - 4, 4);
	}
	/* 4 expected; 30 has a probability below 1e-15. */
	assert_true(passed < 30);
}

static void v6_has_no_id(void **state)
{
	uint64_t rng = rnd_seed();
	uint8_t pkt[64];
	struct flow f;
	uint16_t id = 77;
	unsigned n;

	(void)state;
	random_flow(&rng, &f, false);
	rnd_fill(&rng, pkt, sizeof(pkt));
	icrc_put(pkt + 60, icrc(&f, pkt, 64, 0));
	assert_int_equal(icrc(&f, pkt, 64, 0), icrc(&f, pkt, 64, 0xffff));
	assert_true(check(&f, pkt, 64, &id));
	assert_int_equal(id, 77);
	assert_true(check(&f, pkt, 64, NULL));
	/* Only FECN, BECN and the reserved bits beside them do not count. */
	for (n = 0; n < 64 * 8; n++) {
		pkt[n / 8] ^= (uint8_t)(1 << n % 8);
		assert_int_equal(check(&f, pkt, 64, NULL), n / 8 == 4);
		pkt[n / 8] ^= (uint8_t)(1 << n % 8);
	}
}

/* What the ICRC is there for: the wrong place. */
static void covers_the_addresses(void **state)
{
	uint64_t rng = rnd_seed();
	struct flow f, g;
	uint8_t pkt[32];
	unsigned n;

	(void)state;
	random_flow(&rng, &f, false);
	rnd_fill(&rng, pkt, sizeof(pkt));
	icrc_put(pkt + 28, icrc(&f, pkt, 32, 0));
	for (n = 0; n < 128; n++) {
		g = f;
		g.src.raw[n / 8] ^= (uint8_t)(1 << n % 8);
		assert_false(check(&g, pkt, 32, NULL));
		g = f;
		g.dst.raw[n / 8] ^= (uint8_t)(1 << n % 8);
		assert_false(check(&g, pkt, 32, NULL));
	}
	for (n = 0; n < 16; n++) {
		g = f;
		g.sport ^= (uint16_t)(1 << n);
		assert_false(check(&g, pkt, 32, NULL));
		g = f;
		g.dport ^= (uint16_t)(1 << n);
		assert_false(check(&g, pkt, 32, NULL));
	}
}

static void bad_lengths(void **state)
{
	uint64_t rng = rnd_seed();
	static uint8_t big[65536];
	struct flow f;
	size_t len;

	(void)state;
	random_flow(&rng, &f, true);
	for (len = 0; len < 16; len++) {
		uint8_t *p = calloc(1, len ? len : 1);

		assert_non_null(p);
		assert_false(check(&f, p, len, NULL));
		free(p);
	}
	assert_false(check(&f, big, 65508, NULL));
	assert_false(check(&f, big, sizeof(big), NULL));
	icrc_put(big + 65503, icrc(&f, big, 65507, 0xfedc));
	assert_true(check(&f, big, 65507, NULL));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(check_value),
		cmocka_unit_test(same_as_slow),
		cmocka_unit_test(in_pieces),
		cmocka_unit_test(finds_every_id),
		cmocka_unit_test(refuses_the_rest),
		cmocka_unit_test(v6_has_no_id),
		cmocka_unit_test(covers_the_addresses),
		cmocka_unit_test(bad_lengths),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

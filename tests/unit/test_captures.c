/*
 * test_captures.c - every packet that the kernel's soft RoCE was seen to send
 * decodes, has an ICRC that we agree with, and encodes to the same bytes
 */
#include "unit.h"

#include "capture.h"

#include "base/bytes.h"
#include "wire/icrc.h"

static struct captures captures;

#define FOR_EACH(c) for (c = captures.pkt; c < captures.pkt + captures.n; c++)

#define CHECK(c, cond)                                                         \
	do {                                                                   \
		if (!(cond))                                                   \
			fail_msg("%s packet %u: %s", (c)->file, (c)->number,   \
				 #cond);                                       \
	} while (0)

static bool check(const struct captured *c, uint16_t *id)
{
	return icrc_check(&c->src, &c->dst, c->sport, c->dport, c->data, c->len,
			  id);
}

static void round_trip(void **state)
{
	uint8_t out[ROCE_HDR_MAX];
	const struct captured *c;
	struct roce_hdr h;
	int len;

	(void)state;
	FOR_EACH(c)
	{
		len = roce_decode(&h, c->data, c->len - ROCE_ICRC_LEN);
		CHECK(c, len >= ROCE_BTH_LEN);
		CHECK(c, roce_encode(&h, out) == (size_t)len);
		CHECK(c, memcmp(out, c->data, (size_t)len) == 0);
	}
}

static void icrc_agrees(void **state)
{
	const struct captured *c;
	uint8_t out[4];
	uint16_t id;
	uint32_t crc;

	(void)state;
	FOR_EACH(c)
	{
		crc = icrc_begin(&c->src, &c->dst, c->sport, c->dport, c->len,
				 c->ip_id);
		crc = icrc_bth(crc, c->data, ROCE_BTH_LEN);
		crc = icrc_update(crc, c->data + ROCE_BTH_LEN,
				  c->len - ROCE_BTH_LEN - ROCE_ICRC_LEN);
		icrc_put(out, crc);
		CHECK(c, memcmp(out, c->data + c->len - 4, 4) == 0);

		/* And without knowing the identification. */
		id = 0;
		CHECK(c, check(c, &id));
		CHECK(c, id == c->ip_id);
		id = (uint16_t)(c->ip_id - 3);
		CHECK(c, check(c, &id));
		CHECK(c, !roce_gid_is_v4(&c->src) || id == c->ip_id);
		CHECK(c, check(c, NULL));
	}
}

/*
 * A changed bit shows: in IPv6 always, in IPv4 except for the one case in 2^16
 * in which another identification explains it.
 */
static void changes_show(void **state)
{
	unsigned long tried = 0, explained = 0;
	uint64_t rng = rnd_seed();
	struct captured *c;
	uint16_t id;
	size_t at;
	int i;

	(void)state;
	FOR_EACH(c)
	{
		for (i = 0; i < 16; i++) {
			uint8_t bit = (uint8_t)(1u << rnd(&rng) % 8);

			at = rnd(&rng) % c->len;
			if (at == 4)
				continue;
			c->data[at] ^= bit;
			id = c->ip_id;
			tried++;
			if (check(c, &id)) {
				CHECK(c, roce_gid_is_v4(&c->src));
				CHECK(c, id != c->ip_id);
				explained++;
			}
			c->data[at] ^= bit;
		}
		/* Congestion marks are the network's to set. */
		c->data[4] ^= 0xc0;
		id = c->ip_id;
		CHECK(c, check(c, &id));
		c->data[4] ^= 0xc0;
	}
	assert_true(explained <= 8 + tried / 4096);
}

static void cut_short(void **state)
{
	const struct captured *c;
	struct roce_hdr h;
	uint8_t *p;
	size_t len;
	int hdr_len;

	(void)state;
	FOR_EACH(c)
	{
		hdr_len = roce_decode(&h, c->data, c->len - ROCE_ICRC_LEN);
		for (len = 0; len < (size_t)hdr_len; len++) {
			p = malloc(len ? len : 1);
			assert_non_null(p);
			memcpy(p, c->data, len);
			CHECK(c, roce_decode(&h, p, len) < 0);
			free(p);
		}
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(round_trip),
		cmocka_unit_test(icrc_agrees),
		cmocka_unit_test(changes_show),
		cmocka_unit_test(cut_short),
	};
	int failed;

	(void)argc;
	if (!captures_load_all(&captures, argv + 1))
		return 1;
	if (!captures.n) {
		fprintf(stderr, "usage: %s PCAP-FILE|DIRECTORY...\n", argv[0]);
		return 1;
	}
	print_message("%zu packets in %zu files\n", captures.n, captures.files);
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	captures_free(&captures);
	return failed;
}

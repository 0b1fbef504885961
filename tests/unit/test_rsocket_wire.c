/*
 * test_rsocket_wire.c - what rsockets say, byte by byte, and what they refuse
 *
 * The formats are internal to librdmacm, so the file is compiled in here.
 */
#include "unit.h"

#include "rsockets/wire.c" /* NOLINT: on purpose */

#include <arpa/inet.h>

static const struct rsw_conn conn = {
	.credits = 0x1234,
	.port = 0x5678,
	.iomaps = 7,
	.target = { 0x1122334455667788, 0xa1a2a3a4, 2 },
	.buffer = { 0x99aabbccddeeff00, 0xb1b2b3b4, 65536 },
};

static void conn_bytes(void **state)
{
	/* clang-format off */
	static const uint8_t want[RSW_CONN_LEN] = {
		1, 2, 0x12, 0x34, 0x56, 0x78, 0, 7,
		0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88,
		0xa1, 0xa2, 0xa3, 0xa4, 0, 0, 0, 2,
		0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff, 0x00,
		0xb1, 0xb2, 0xb3, 0xb4, 0, 1, 0, 0,
	};
	/* clang-format on */
	uint8_t p[RSW_CONN_LEN];
	struct rsw_conn c;

	(void)state;
	rsw_conn_encode(p, &conn);
	if (!big_endian())
		assert_memory_equal(p, want, sizeof(want));
	assert_int_equal(rsw_conn_decode(p, sizeof(p), &c), 0);
	assert_false(c.swap);
	assert_true(c.has_iomaps);
	assert_int_equal(c.credits, conn.credits);
	assert_int_equal(c.port, conn.port);
	assert_int_equal(c.iomaps, conn.iomaps);
	assert_memory_equal(&c.target, &conn.target, sizeof(c.target));
	assert_memory_equal(&c.buffer, &conn.buffer, sizeof(c.buffer));

	p[1] ^= 1;
	assert_int_equal(rsw_conn_decode(p, sizeof(p), &c), 0);
	assert_true(c.swap);
	/* A peer of the first version says nothing of mappings. */
	p[1] = 0;
	assert_int_equal(rsw_conn_decode(p, sizeof(p), &c), 0);
	assert_int_equal(c.iomaps, 0);
}

static void conn_refused(void **state)
{
	uint8_t p[RSW_CONN_LEN + 16];
	struct rsw_conn c;
	size_t len;

	(void)state;
	memset(p, 0, sizeof(p));
	rsw_conn_encode(p, &conn);
	for (len = 0; len < RSW_CONN_LEN; len++)
		assert_int_equal(rsw_conn_decode(p, len, &c), -EPROTO);
	assert_int_equal(rsw_conn_decode(NULL, 100, &c), -EPROTO);
	assert_int_equal(rsw_conn_decode(p, sizeof(p), &c), 0);
	p[0] = 2;
	assert_int_equal(rsw_conn_decode(p, sizeof(p), &c), -EPROTONOSUPPORT);
	p[0] = 1;
	memset(p + 20, 0, 4);
	assert_int_equal(rsw_conn_decode(p, sizeof(p), &c), -EPROTO);
	rsw_conn_encode(p, &conn);
	memset(p + 36, 0, 4);
	assert_int_equal(rsw_conn_decode(p, sizeof(p), &c), -EPROTO);
}

static void messages(void **state)
{
	(void)state;
	assert_int_equal(rsw_msg(RSW_DATA, 65536), 0x00010000);
	assert_int_equal(rsw_msg(RSW_SGL, 0xffff), 0x8000ffff);
	assert_int_equal(rsw_msg(RSW_IOMAP, 3), 0xc0000003);
	assert_int_equal(rsw_msg(RSW_CTRL, RSW_SHUTDOWN), 0xe0000002);
	assert_int_equal(rsw_msg_op(0xe0000002), RSW_CTRL);
	assert_int_equal(rsw_msg_value(0xffffffff), 0x1fffffff);
}

static void iomaps(void **state)
{
	static const uint32_t pairs[][2] = {
		{ 0, 0 },
		{ 1, 1 },
		{ 128, 128 },
		{ 129, 128 },
		{ 255, 128 },
		{ 256, 256 },
		{ 511, 256 },
		{ 1000, 768 },
		{ 32767, 32512 },
		{ 40000, 32512 },
		{ UINT32_MAX, 32512 },
	};
	size_t i;

	(void)state;
	for (i = 0; i < ARRAY_SIZE(pairs); i++) {
		assert_int_equal(rsw_iomaps_round(pairs[i][0]), pairs[i][1]);
		assert_int_equal(rsw_iomaps_round(pairs[i][1]), pairs[i][1]);
	}
}

static union rsw_addr address(int family)
{
	union rsw_addr a;

	memset(&a, 0, sizeof(a));
	a.sa.sa_family = (sa_family_t)family;
	if (family == AF_INET) {
		a.sin.sin_port = htons(0x1234);
		inet_pton(family, "10.1.2.3", &a.sin.sin_addr);
	} else {
		a.sin6.sin6_port = htons(0x1234);
		inet_pton(family, "fd00::1:2", &a.sin6.sin6_addr);
	}
	return a;
}

static void datagrams(void **state)
{
	static const uint8_t want4[] = { 4, 8, 0x12, 0x34, 10, 1, 2, 3 };
	static const uint8_t want6[] = { 6,    24, 0x12, 0x34, 0, 0, 0, 0,
					 0xfd, 0,  0,    0,    0, 0, 0, 0,
					 0,    0,  0,    0,    0, 1, 0, 2 };
	union rsw_addr a4 = address(AF_INET), a6 = address(AF_INET6), a;
	uint8_t p[RSW_DGRAM_IP6];
	size_t len;

	(void)state;
	assert_int_equal(rsw_dgram_encode(p, &a4), sizeof(want4));
	assert_memory_equal(p, want4, sizeof(want4));
	assert_int_equal(rsw_dgram_decode(p, sizeof(p), &a), RSW_DGRAM_IP4);
	assert_memory_equal(&a, &a4, sizeof(a));
	for (len = 0; len < RSW_DGRAM_IP4; len++)
		assert_int_equal(rsw_dgram_decode(p, len, &a), -EPROTO);
	p[1] = 24;
	assert_int_equal(rsw_dgram_decode(p, sizeof(p), &a), -EPROTO);

	assert_int_equal(rsw_dgram_encode(p, &a6), sizeof(want6));
	assert_memory_equal(p, want6, sizeof(want6));
	assert_int_equal(rsw_dgram_decode(p, sizeof(p), &a), RSW_DGRAM_IP6);
	assert_memory_equal(&a, &a6, sizeof(a));
	for (len = 0; len < RSW_DGRAM_IP6; len++)
		assert_int_equal(rsw_dgram_decode(p, len, &a), -EPROTO);
}

static void udp(void **state)
{
	static const uint8_t want[] = { 0x55, 0x55, 0x55, 0x55, 4,  0, 16, 0,
					0,    0xab, 0xcd, 0xef, 10, 1, 2,  3 };
	union rsw_addr a4 = address(AF_INET), a6 = address(AF_INET6);
	struct rsw_udp u = { .data = true, .qpn = 0xabcdef }, got;
	uint8_t p[RSW_UDP_IP6];
	size_t i;

	(void)state;
	assert_int_equal(rsw_udp_encode(p, &u, &a4), sizeof(want));
	assert_memory_equal(p, want, sizeof(want));
	assert_int_equal(rsw_udp_decode(p, 16, AF_INET, &got), 16);
	assert_true(got.data);
	assert_int_equal(got.qpn, u.qpn);
	assert_int_equal(rsw_udp_decode(p, 15, AF_INET, &got), -EPROTO);
	assert_int_equal(rsw_udp_decode(p, 28, AF_INET6, &got), -EPROTO);
	/* Every byte of the header's first seven matters. */
	for (i = 0; i < 7; i++) {
		p[i] ^= 2;
		assert_int_equal(rsw_udp_decode(p, 16, AF_INET, &got), -EPROTO);
		p[i] ^= 2;
	}
	u.data = false;
	assert_int_equal(rsw_udp_encode(p, &u, &a6), RSW_UDP_IP6);
	assert_int_equal(p[5], 7);
	assert_int_equal(rsw_udp_decode(p, sizeof(p), AF_INET6, &got), 28);
	assert_false(got.data);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(conn_bytes), cmocka_unit_test(conn_refused),
		cmocka_unit_test(messages),   cmocka_unit_test(iomaps),
		cmocka_unit_test(datagrams),  cmocka_unit_test(udp),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

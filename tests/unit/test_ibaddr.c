/*
 * test_ibaddr.c - LIDs, GUIDs and groups of InfiniBand, from addresses and back
 */
#include "unit.h"

#include "net/ibaddr.h"

#define IP(a, b, c, d)                                                         \
	((uint32_t)(a) << 24 | (uint32_t)(b) << 16 | (uint32_t)(c) << 8 | (d))

static const struct {
	uint32_t addr;
	unsigned prefix;
	uint16_t lid; /* 0: none */
	uint16_t sm;
} ports[] = {
	{ IP(127, 0, 0, 1), 8, 1, 0xbfff },
	{ IP(127, 0, 0, 9), 8, 9, 0xbfff },
	{ IP(10, 0, 0, 2), 24, 2, 255 },
	{ IP(10, 0, 0, 254), 24, 254, 255 },
	{ IP(10, 1, 2, 3), 16, 0x203, 0xbfff },
	{ IP(10, 1, 0xbf, 0xff), 16, 0xbfff, 0xbfff },
	{ IP(10, 1, 0xc0, 0), 16, 0, 0xbfff }, /* one of multicast */
	{ IP(10, 1, 2, 3), 8, 0, 0xbfff },
	{ IP(10, 0, 1, 2), 8, 0x102, 0xbfff },
	{ IP(192, 0, 2, 6), 29, 6, 7 },
	{ IP(192, 0, 2, 5), 30, 1, 3 },
	{ IP(192, 0, 2, 4), 31, 0, 0xbfff }, /* the host's part is 0 */
	{ IP(192, 0, 2, 5), 31, 1, 0xbfff },
	{ IP(192, 0, 2, 5), 32, 0, 0xbfff },
	{ IP(192, 0, 2, 5), 0, 0, 0xbfff },
};

static void lids(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(ports) / sizeof(ports[0]); i++) {
		assert_int_equal(ib_lid(ports[i].addr, ports[i].prefix),
				 ports[i].lid);
		assert_int_equal(ib_sm_lid(ports[i].prefix), ports[i].sm);
	}
}

/* All hosts of a subnet make the same address of a LID. */
static void lids_lead_to_addresses(void **state)
{
	(void)state;
	for (unsigned prefix = 8; prefix <= 30; prefix++)
		for (uint32_t lid = 1; lid < 0x10000; lid++) {
			const uint32_t own = IP(10, 77, 88, 99);
			const uint32_t addr =
				ib_lid_addr(own, prefix, (uint16_t)lid);
			const uint32_t most = UINT32_MAX >> prefix;

			if (lid > 0xbfff || lid >= most) {
				assert_int_equal(addr, 0);
				continue;
			}
			assert_int_equal(addr >> (32 - prefix),
					 own >> (32 - prefix));
			assert_int_equal(ib_lid(addr, prefix), lid);
			assert_int_equal(
				ib_lid_addr(addr, prefix, (uint16_t)lid), addr);
		}
	assert_int_equal(ib_lid_addr(IP(10, 0, 0, 1), 24, 0), 0);
	assert_int_equal(ib_lid_addr(IP(10, 0, 0, 4), 31, 1), IP(10, 0, 0, 5));
	assert_int_equal(ib_lid_addr(IP(10, 0, 0, 4), 32, 1), 0);
}

static void gids(void **state)
{
	const uint32_t addr = IP(10, 0, 0, 2);
	union ibv_gid gid = ib_gid(addr), v4 = ib_v4_gid(addr), same;

	(void)state;
	assert_int_equal(ib_guid(addr), 0x025348ca0a000002);
	assert_int_equal(get_be64(gid.raw), 0xfe80000000000000);
	assert_int_equal(get_be64(gid.raw + 8), 0x025348ca0a000002);
	assert_int_equal(ib_gid_addr(&gid), addr);
	assert_int_equal(ib_v4(&v4), addr);
	assert_int_equal(ib_v4(&gid), 0);
	assert_int_equal(ib_gid_addr(&v4), 0);
	same = ib_gid_ip(&gid);
	assert_true(gid_equal(&same, &v4));
	same = ib_gid_ip(&v4);
	assert_true(gid_equal(&same, &v4));
	gid.raw[1] = 0xc0; /* another subnet prefix */
	assert_int_equal(ib_gid_addr(&gid), 0);
}

static void groups(void **state)
{
	const uint32_t addr = IP(224, 1, 2, 3);
	union ibv_gid cm = ib_mgid(addr, false), ipoib = ib_mgid(addr, true);
	union ibv_gid v4 = ib_v4_gid(addr), other = cm, unicast = ib_gid(addr);
	uint32_t made;

	(void)state;
	assert_int_equal(ib_mgid_addr(&cm), addr);
	assert_int_equal(ib_mgid_addr(&ipoib), addr);
	assert_int_equal(ib_mgid_addr(&v4), addr);
	assert_false(gid_equal(&cm, &ipoib));
	assert_int_equal(ib_mgid_addr(&unicast), 0);
	v4 = ib_v4_gid(IP(10, 0, 0, 1));
	assert_int_equal(ib_mgid_addr(&v4), 0);
	/* One of somebody else's making. */
	other.raw[2] = 0xa0;
	made = ib_mgid_addr(&other);
	assert_int_equal(made >> 24, 239);
	other.raw[15] ^= 1;
	assert_int_not_equal(ib_mgid_addr(&other), made);
	for (uint32_t i = 0; i < 0x20000; i++)
		assert_true(ib_lid_is_multicast(ib_mlid(addr + i)));
}

static void says_why(void **state)
{
	struct netdev_gid port = { .ifindex = 1,
				   .ifname = "eth0",
				   .prefix = 24,
				   .gid = ib_v4_gid(IP(10, 0, 0, 2)) };
	struct ib_why why;

	(void)state;
	assert_string_equal(ib_port_why(&port, &why), "");
	port.prefix = 8;
	assert_string_equal(ib_port_why(&port, &why), "");
	port.gid = ib_v4_gid(IP(10, 1, 0, 2));
	assert_non_null(strstr(ib_port_why(&port, &why),
			       "10.1.0.2/8 (eth0) leaves is 65538"));
	assert_non_null(strstr(why.text, "--addr"));
	assert_non_null(strstr(ib_port_why(NULL, &why), "IPv4"));
}

/* The first of IPv4, wherever there are holes. */
static void port_of_a_table(void **state)
{
	static struct netdev_table t = { .count = 3 };

	(void)state;
	assert_null(ib_port(&t));
	t.gid[0] = (struct netdev_gid){ .ifindex = 1,
					.gid = ib_gid(IP(1, 2, 3, 4)) };
	t.gid[2] = (struct netdev_gid){ .ifindex = 2,
					.gid = ib_v4_gid(IP(1, 2, 3, 4)) };
	assert_ptr_equal(ib_port(&t), &t.gid[2]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lids),
		cmocka_unit_test(lids_lead_to_addresses),
		cmocka_unit_test(gids),
		cmocka_unit_test(groups),
		cmocka_unit_test(says_why),
		cmocka_unit_test(port_of_a_table),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

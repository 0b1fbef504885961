/*
 * test_infiniband_cm.c - rdma_cm over a device of InfiniBand: what identifiers
 * and events say, addresses of AF_IB, and the port space of IPoIB
 */
#include "pair.h"

#include "hostns.h"

#include <arpa/inet.h>
#include <endian.h>
#include <infiniband/ib.h>
#include <netdb.h>
#include <rdma/rdma_cma.h>

#define GUID 0x025348ca7f000001

static struct rdma_event_channel *channel;

static int open_channel(void **state)
{
	(void)state;
	channel = rdma_create_event_channel();
	return channel ? 0 : -1;
}

static int close_channel(void **state)
{
	(void)state;
	rdma_destroy_event_channel(channel);
	return 0;
}

static struct rdma_cm_event *wait_event(enum rdma_cm_event_type type)
{
	struct rdma_cm_event *ev;

	assert_true(readable(channel->fd, 10000));
	assert_int_equal(rdma_get_cm_event(channel, &ev), 0);
	assert_string_equal(rdma_event_str(ev->event), rdma_event_str(type));
	return ev;
}

static void expect(enum rdma_cm_event_type type)
{
	assert_int_equal(rdma_ack_cm_event(wait_event(type)), 0);
}

static struct rdma_cm_id *id_of(enum rdma_port_space ps)
{
	struct rdma_cm_id *id;

	assert_int_equal(rdma_create_id(channel, &id, NULL, ps), 0);
	return id;
}

static struct sockaddr_in ipv4(const char *text, uint16_t port)
{
	struct sockaddr_in sin = { .sin_family = AF_INET,
				   .sin_port = htons(port) };

	assert_int_equal(inet_pton(AF_INET, text, &sin.sin_addr), 1);
	return sin;
}

static struct sockaddr_ib sib_of(uint64_t guid, enum rdma_port_space ps,
				 uint16_t port)
{
	struct sockaddr_ib sib = {
		.sib_family = AF_IB,
		.sib_sid = htobe64((uint64_t)ps << 16 | port),
		.sib_sid_mask = htobe64(UINT64_MAX),
	};

	if (guid) {
		sib.sib_addr.sib_addr64[0] = htobe64(0xfe80000000000000);
		sib.sib_addr.sib_addr64[1] = htobe64(guid);
	}
	return sib;
}

static void expect_gid(const union ibv_gid *gid)
{
	assert_int_equal(be64toh(gid->global.subnet_prefix),
			 0xfe80000000000000);
	assert_int_equal(be64toh(gid->global.interface_id), GUID);
}

static void expect_path(const struct rdma_cm_id *id)
{
	const struct rdma_ib_addr *addr = &id->route.addr.addr.ibaddr;
	const struct ibv_sa_path_rec *rec = id->route.path_rec;

	expect_gid(&addr->sgid);
	expect_gid(&addr->dgid);
	assert_int_equal(be16toh(addr->pkey), 0xffff);
	assert_int_equal(id->route.num_paths, 1);
	expect_gid(&rec->sgid);
	expect_gid(&rec->dgid);
	assert_int_equal(be16toh(rec->slid), 1);
	assert_int_equal(be16toh(rec->dlid), 1);
	assert_int_equal(rec->mtu, IBV_MTU_4096);
}

/* A connection from one identifier to another, with these addresses. */
static void connect_ids(enum rdma_port_space ps, void *own, void *to)
{
	struct rdma_cm_id *listener = id_of(ps), *id = id_of(ps), *peer;
	const bool ud = ps == RDMA_PS_UDP || ps == RDMA_PS_IPOIB;
	const int family = ((struct sockaddr *)to)->sa_family;
	struct rdma_conn_param param = { .private_data = "hello",
					 .private_data_len = 6,
					 .qp_num = 7 };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR };
	struct rdma_cm_event *ev;
	int mask;

	assert_int_equal(rdma_bind_addr(listener, own), 0);
	assert_int_equal(rdma_listen(listener, 1), 0);
	assert_int_equal(rdma_resolve_addr(id, NULL, to, 1000), 0);
	expect(RDMA_CM_EVENT_ADDR_RESOLVED);
	assert_int_equal(rdma_get_local_addr(id)->sa_family, family);
	assert_int_equal(rdma_get_peer_addr(id)->sa_family, family);
	assert_int_equal(rdma_resolve_route(id, 1000), 0);
	expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
	expect_path(id);
	assert_string_equal(ibv_get_device_name(id->verbs->device), "softib0");
	assert_int_equal(rdma_connect(id, &param), 0);
	ev = wait_event(RDMA_CM_EVENT_CONNECT_REQUEST);
	peer = ev->id;
	assert_ptr_equal(ev->listen_id, listener);
	if (!ud)
		assert_string_equal(ev->param.conn.private_data, "hello");
	assert_int_equal(rdma_ack_cm_event(ev), 0);
	expect_path(peer);
	assert_int_equal(rdma_get_local_addr(peer)->sa_family,
			 ((struct sockaddr *)own)->sa_family);
	if (!ud) {
		assert_int_equal(rdma_init_qp_attr(peer, &attr, &mask), 0);
		assert_int_equal(attr.ah_attr.is_global, 0);
		assert_int_equal(attr.ah_attr.dlid, 1);
	}
	param.qp_num = 8;
	assert_int_equal(rdma_accept(peer, &param), 0);
	ev = wait_event(ud ? RDMA_CM_EVENT_ESTABLISHED :
			     RDMA_CM_EVENT_CONNECT_RESPONSE);
	if (ud) {
		assert_int_equal(ev->param.ud.ah_attr.is_global, 0);
		assert_int_equal(ev->param.ud.ah_attr.dlid, 1);
		assert_int_equal(ev->param.ud.qp_num, 8);
		assert_int_equal(ev->param.ud.qkey,
				 ps == RDMA_PS_IPOIB ? 0x0b1b : RDMA_UDP_QKEY);
	}
	assert_int_equal(rdma_ack_cm_event(ev), 0);
	if (!ud) {
		assert_int_equal(rdma_establish(id), 0);
		expect(RDMA_CM_EVENT_ESTABLISHED);
	}
	rdma_destroy_id(id);
	if (!ud)
		expect(RDMA_CM_EVENT_DISCONNECTED);
	rdma_destroy_id(peer);
	rdma_destroy_id(listener);
}

static void by_ip(void **state)
{
	struct sockaddr_in own = ipv4("127.0.0.1", 7471),
			   any = ipv4("0.0.0.0", 7472), to = own;

	(void)state;
	connect_ids(RDMA_PS_TCP, &own, &to);
	connect_ids(RDMA_PS_UDP, &own, &to);
	connect_ids(RDMA_PS_IPOIB, &own, &to);
	connect_ids(RDMA_PS_IB, &own, &to);
	to.sin_port = any.sin_port;
	connect_ids(RDMA_PS_TCP, &any, &to);
}

static void by_gid(void **state)
{
	static const enum rdma_port_space spaces[] = { RDMA_PS_TCP, RDMA_PS_UDP,
						       RDMA_PS_IB };

	(void)state;
	for (size_t i = 0; i < sizeof(spaces) / sizeof(spaces[0]); i++) {
		struct sockaddr_ib own = sib_of(GUID, spaces[i], 7473),
				   any = sib_of(0, spaces[i], 7473);
		struct sockaddr_in ip4 = ipv4("127.0.0.1", 7473);

		connect_ids(spaces[i], &own, &own);
		connect_ids(spaces[i], &any, &own);
		/* Either end may have the other's family. */
		connect_ids(spaces[i], &own, &ip4);
		connect_ids(spaces[i], &ip4, &own);
	}
}

static void wrong_gids(void **state)
{
	struct sockaddr_ib nobody = sib_of(0x1234567800000001, RDMA_PS_TCP, 1),
			   other = sib_of(GUID + 1, RDMA_PS_TCP, 7474),
			   ps = sib_of(GUID, RDMA_PS_UDP, 7474);
	struct rdma_cm_id *id = id_of(RDMA_PS_TCP);

	(void)state;
	assert_int_equal(rdma_bind_addr(id, (struct sockaddr *)&nobody), -1);
	assert_int_equal(errno, EADDRNOTAVAIL);
	assert_int_equal(rdma_bind_addr(id, (struct sockaddr *)&other), -1);
	assert_int_equal(rdma_bind_addr(id, (struct sockaddr *)&ps), -1);
	assert_int_equal(errno, EPROTONOSUPPORT);
	ps = sib_of(GUID, RDMA_PS_TCP, 0);
	assert_int_equal(rdma_bind_addr(id, (struct sockaddr *)&ps), 0);
	assert_int_not_equal(ntohs(rdma_get_src_port(id)), 0);
	rdma_destroy_id(id);
}

static void names(void **state)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_FAMILY,
				       .ai_family = AF_IB,
				       .ai_port_space = RDMA_PS_TCP };
	static const char *const nodes[] = { "fe80::253:48ca:7f00:1",
					     "127.0.0.1" };
	const struct sockaddr_ib want = sib_of(GUID, RDMA_PS_TCP, 7475);
	struct rdma_addrinfo *res;

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		const struct sockaddr_ib *got;

		assert_int_equal(
			rdma_getaddrinfo(nodes[i], "7475", &hints, &res), 0);
		assert_int_equal(res->ai_family, AF_IB);
		assert_int_equal(res->ai_qp_type, IBV_QPT_RC);
		assert_int_equal(res->ai_dst_len, sizeof(want));
		got = (const void *)res->ai_dst_addr;
		assert_memory_equal(&got->sib_addr, &want.sib_addr, 16);
		assert_int_equal(got->sib_sid, want.sib_sid);
		connect_ids(RDMA_PS_TCP, res->ai_dst_addr, res->ai_dst_addr);
		rdma_freeaddrinfo(res);
	}
	assert_int_not_equal(rdma_getaddrinfo("127.0.0.1", "no", &hints, &res),
			     0);
	hints.ai_flags |= RAI_PASSIVE;
	assert_int_equal(rdma_getaddrinfo(NULL, "7475", &hints, &res), 0);
	assert_int_equal(res->ai_src_len, sizeof(want));
	rdma_freeaddrinfo(res);
}

static void join_group(enum rdma_port_space ps, uint16_t signature)
{
	struct sockaddr_in own = ipv4("127.0.0.1", 0),
			   group = ipv4("224.1.2.3", 0);
	struct rdma_cm_id *id = id_of(ps);
	const struct ibv_ah_attr *av;
	struct rdma_cm_event *ev;

	assert_int_equal(rdma_bind_addr(id, (struct sockaddr *)&own), 0);
	/* A loopback address alone has no device before it is needed. */
	assert_int_equal(
		rdma_join_multicast(id, (struct sockaddr *)&group, NULL), 0);
	ev = wait_event(RDMA_CM_EVENT_MULTICAST_JOIN);
	av = &ev->param.ud.ah_attr;
	assert_int_equal(av->is_global, 1);
	assert_in_range(av->dlid, 0xc000, 0xfffe);
	assert_int_equal(av->grh.dgid.raw[0], 0xff);
	assert_int_equal(av->grh.dgid.raw[2] << 8 | av->grh.dgid.raw[3],
			 signature);
	assert_int_equal(av->grh.dgid.raw[15], 3);
	assert_int_equal(ev->param.ud.qkey,
			 ps == RDMA_PS_IPOIB ? 0x0b1b : RDMA_UDP_QKEY);
	assert_int_equal(rdma_ack_cm_event(ev), 0);
	assert_int_equal(rdma_leave_multicast(id, (struct sockaddr *)&group),
			 0);
	rdma_destroy_id(id);
}

static void groups(void **state)
{
	(void)state;
	join_group(RDMA_PS_UDP, 0x4001);
	join_group(RDMA_PS_IPOIB, 0x401b);
}

#define CM_TEST(fn)                                                            \
	cmocka_unit_test_setup_teardown(fn, open_channel, close_channel)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CM_TEST(by_ip), CM_TEST(by_gid), CM_TEST(wrong_gids),
		CM_TEST(names), CM_TEST(groups),
	};

	if (!own_netns())
		return 77;
	setenv("SOFTHCA_INFINIBAND", "1", 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}

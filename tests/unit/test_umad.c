/*
 * test_umad.c - libibumad: devices and ports, agents, what is sent and fetched,
 * time-outs, and messages between agents, also those of several packets
 *
 * All agents are of this process, in a network namespace with loopback alone: one
 * port, LID 1, in a fabric of its switch and itself.
 */
#include "hostns.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>

#include <infiniband/umad.h>
#include <infiniband/umad_str.h>
#include <infiniband/umad_types.h>

#include <endian.h>

#define GUID 0x025348ca7f000001
#define LID 1
#define NOBODY 77 /* a LID */
#define OUI 0x00aabb
#define BUFFER (1 << 20)

static int fd;

static int open_port(void **state)
{
	(void)state;
	if (umad_init())
		return -1;
	fd = umad_open_port(NULL, 0);
	return fd < 0;
}

static int close_port(void **state)
{
	(void)state;
	return umad_close_port(fd);
}

/* Messages */

static struct ib_user_mad *buffer(void)
{
	struct ib_user_mad *m = umad_alloc(1, umad_size() + BUFFER);

	assert_non_null(m);
	return m;
}

static struct umad_rmpp_packet *rmpp_of(struct ib_user_mad *m)
{
	return umad_get_mad(m);
}

static struct umad_hdr *hdr_of(struct ib_user_mad *m)
{
	return umad_get_mad(m);
}

static struct ib_user_mad *request(uint8_t class, uint8_t method, uint16_t attr,
				   int dlid, int qpn)
{
	struct ib_user_mad *m = buffer();
	struct umad_vendor_packet *v = umad_get_mad(m);

	*hdr_of(m) = (struct umad_hdr){
		.base_version = UMAD_BASE_VERSION,
		.mgmt_class = class,
		.class_version = 1,
		.method = method,
		.tid = htobe64(0x1122334455667788),
		.attr_id = htobe16(attr),
	};
	if (class >= UMAD_CLASS_VENDOR_RANGE2_START) {
		v->oui[1] = OUI >> 8;
		v->oui[2] = OUI & 0xff;
	}
	umad_set_addr(m, dlid, qpn, 0, (int)(qpn ? UMAD_QKEY : 0));
	return m;
}

static int client_of(uint8_t class)
{
	int id = umad_register(fd, class, 1, 0, NULL);

	assert_true(id >= 0);
	return id;
}

static int agent_with(uint8_t rmpp, uint64_t methods)
{
	long mask[16 / sizeof(long)] = { (long)methods };
	uint8_t oui[3] = { 0, OUI >> 8, OUI & 0xff };

	return umad_register_oui(fd, 0x30, rmpp, oui, mask);
}

/* Fetches one that is for the agent. */
static int fetch(struct ib_user_mad *m, int agent)
{
	int len = BUFFER;

	assert_int_equal(umad_poll(fd, 10000), 0);
	assert_int_equal(umad_recv(fd, m, &len, 10000), agent);
	return len;
}

static void nothing_comes(void)
{
	struct ib_user_mad *m = buffer();
	int len = BUFFER;

	assert_int_equal(umad_poll(fd, 50), -ETIMEDOUT);
	assert_int_equal(umad_recv(fd, m, &len, 0), -EWOULDBLOCK);
	assert_int_equal(errno, EWOULDBLOCK);
	umad_free(m);
}

/* Tests */

static void devices(void **state)
{
	char names[UMAD_MAX_DEVICES][UMAD_CA_NAME_LEN];
	struct umad_device_node *list;
	__be64 guids[2] = { 1, 1 };
	umad_port_t port;
	umad_ca_t ca;

	(void)state;
	assert_int_equal(umad_get_cas_names(names, UMAD_MAX_DEVICES), 1);
	assert_string_equal(names[0], "softib0");
	list = umad_get_ca_device_list();
	assert_non_null(list);
	assert_string_equal(list->ca_name, "softib0");
	assert_null(list->next);
	assert_int_equal(umad_sort_ca_device_list(&list, 1), 0);
	umad_free_ca_device_list(list);
	assert_int_equal(umad_get_ca(NULL, &ca), 0);
	assert_string_equal(ca.ca_name, "softib0");
	assert_int_equal(ca.node_type, 1);
	assert_int_equal(ca.numports, 1);
	assert_null(ca.ports[0]);
	assert_int_equal(be64toh(ca.node_guid), GUID);
	assert_int_equal(ca.ports[1]->base_lid, LID);
	assert_int_equal(umad_release_ca(&ca), 0);
	assert_int_equal(umad_get_port("softib0", 1, &port), 0);
	assert_int_equal(port.state, 4);
	assert_int_equal(port.rate, 100);
	assert_int_equal(be64toh(port.port_guid), GUID);
	assert_int_equal(be64toh(port.gid_prefix), 0xfe80000000000000);
	assert_int_equal(port.pkeys_size, 1);
	assert_int_equal(port.pkeys[0], 0xffff);
	assert_string_equal(port.link_layer, "InfiniBand");
	assert_int_equal(umad_release_port(&port), 0);
	assert_int_equal(umad_get_ca_portguids("softib0", guids, 2), 2);
	assert_int_equal(guids[0], 0);
	assert_int_equal(be64toh(guids[1]), GUID);
	assert_int_equal(umad_get_ca_portguids("softib0", guids, 1), -ENOMEM);
	assert_true(umad_get_ca("mthca0", &ca) < 0);
	assert_true(umad_get_port("softib0", 2, &port) < 0);
	assert_true(umad_open_port("softib0", 2) < 0);
	assert_int_equal(umad_open_port("mthca0", 1), -ENODEV);
	assert_int_equal(umad_get_fd(fd), fd);
}

static void the_fabric_answers(void **state)
{
	const int id = client_of(UMAD_CLASS_SUBN_LID_ROUTED);
	struct ib_user_mad *m = request(UMAD_CLASS_SUBN_LID_ROUTED,
					UMAD_METHOD_GET, 0x11, LID, 0);
	struct pollfd pfd = { .fd = umad_get_fd(fd), .events = POLLIN };
	const uint8_t *data;

	(void)state;
	assert_int_equal(poll(&pfd, 1, 0), 0);
	assert_int_equal(umad_send(fd, id, m, 256, 1000, 3), 0);
	assert_int_equal(poll(&pfd, 1, 10000), 1);
	assert_int_equal(fetch(m, id), 256);
	assert_int_equal(umad_status(m), 0);
	assert_int_equal(m->length, umad_size() + 256);
	assert_int_equal(hdr_of(m)->method, UMAD_METHOD_GET_RESP);
	assert_int_equal(hdr_of(m)->status, 0);
	/* The first half of the ID is the agent's. */
	assert_int_equal((uint32_t)be64toh(hdr_of(m)->tid), 0x55667788);
	assert_int_equal(ntohs(umad_get_mad_addr(m)->lid), LID);
	data = (const uint8_t *)umad_get_mad(m) + 64;
	assert_int_equal(data[2], 1); /* NodeType: CA */
	nothing_comes();
	assert_int_equal(poll(&pfd, 1, 0), 0);
	assert_int_equal(umad_unregister(fd, id), 0);
	umad_free(m);
}

static uint64_t ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* After all tries; of the request there is the header. */
static void nobody_answers(void **state)
{
	const int id = client_of(UMAD_CLASS_SUBN_LID_ROUTED);
	struct ib_user_mad *m = request(UMAD_CLASS_SUBN_LID_ROUTED,
					UMAD_METHOD_GET, 0x11, NOBODY, 0);
	struct pollfd pfd = { .fd = umad_get_fd(fd), .events = POLLIN };
	const uint64_t before = ms();

	(void)state;
	assert_int_equal(umad_send(fd, id, m, 256, 50, 2), 0);
	nothing_comes();
	assert_int_equal(poll(&pfd, 1, 10000), 1);
	assert_true(ms() - before >= 149);
	assert_int_equal(fetch(m, id), 24);
	assert_int_equal(umad_status(m), ETIMEDOUT);
	assert_int_equal(hdr_of(m)->method, UMAD_METHOD_GET);
	assert_int_equal((uint32_t)be64toh(hdr_of(m)->tid), 0x55667788);
	/* Nobody waits for an answer to this one. */
	assert_int_equal(umad_send(fd, id, m, 256, 0, 0), 0);
	nothing_comes();
	/* And of an agent that is gone nothing comes. */
	assert_int_equal(umad_send(fd, id, m, 256, 20, 0), 0);
	assert_int_equal(umad_unregister(fd, id), 0);
	nothing_comes();
	umad_free(m);
}

static void wrong_calls(void **state)
{
	struct ib_user_mad *m = request(UMAD_CLASS_SUBN_LID_ROUTED,
					UMAD_METHOD_GET, 0x11, LID, 0);
	struct umad_reg_attr attr = { .mgmt_class = 0x30,
				      .mgmt_class_version = 1 };
	uint8_t oui[3] = { 0, 1, 2 };
	int len = BUFFER, id;
	uint32_t agent;

	(void)state;
	assert_true(umad_send(fd, 5, m, 256, 0, 0) < 0);
	assert_true(umad_send(fd, -1, m, 256, 0, 0) < 0);
	assert_true(umad_send(fd, UMAD_CA_MAX_AGENTS, m, 256, 0, 0) < 0);
	assert_true(umad_send(-1, 0, m, 256, 0, 0) < 0);
	assert_int_equal(umad_recv(-1, m, &len, 0), -EINVAL);
	assert_int_equal(umad_recv(fd, NULL, &len, 0), -EINVAL);
	assert_int_equal(umad_poll(1000, 0), -EINVAL);
	assert_int_equal(umad_close_port(1000), -EINVAL);
	assert_int_equal(umad_unregister(fd, 3), -1);
	assert_int_equal(umad_register(1000, 1, 1, 0, NULL), -EINVAL);
	assert_int_equal(umad_register_oui(fd, 3, 0, oui, NULL), -EINVAL);
	/* RMPP: another version, a class that has none. */
	assert_int_equal(umad_register(fd, 3, 2, 2, NULL), -EPERM);
	assert_int_equal(umad_register(fd, 1, 1, 1, NULL), -EPERM);
	assert_int_equal(umad_register2(fd, &attr, &agent), EINVAL);
	attr.oui = OUI;
	attr.flags = 0x10;
	assert_int_equal(umad_register2(fd, &attr, &agent), EINVAL);
	assert_int_equal(attr.flags, UMAD_USER_RMPP);
	assert_int_equal(umad_register2(fd, &attr, &agent), 0);
	assert_int_equal(umad_unregister(fd, (int)agent), 0);
	id = client_of(UMAD_CLASS_SUBN_LID_ROUTED);
	assert_true(umad_send(fd, id, m, 23, 0, 0) < 0);
	assert_true(umad_send(fd, id, m, 257, 0, 0) < 0);
	hdr_of(m)->base_version = 9;
	assert_true(umad_send(fd, id, m, 256, 0, 0) < 0);
	assert_int_equal(umad_unregister(fd, id), 0);
	umad_free(m);
}

static void a_buffer_too_small(void **state)
{
	const int id = client_of(UMAD_CLASS_SUBN_LID_ROUTED);
	struct ib_user_mad *m = request(UMAD_CLASS_SUBN_LID_ROUTED,
					UMAD_METHOD_GET, 0x11, LID, 0);
	int len = 100;

	(void)state;
	assert_int_equal(umad_send(fd, id, m, 256, 1000, 0), 0);
	assert_int_equal(umad_recv(fd, m, &len, 1000), -EINVAL);
	assert_int_equal(len, 256);
	assert_int_equal(fetch(m, id), 256);
	assert_int_equal(umad_unregister(fd, id), 0);
	umad_free(m);
}

/* One class, and the methods of it that others have not. */
static void one_server_a_method(void **state)
{
	const int get = agent_with(0, 1 << UMAD_METHOD_GET);
	int set;

	(void)state;
	assert_true(get >= 0);
	assert_int_equal(agent_with(0, 1 << UMAD_METHOD_GET), -EPERM);
	set = agent_with(0, 1 << UMAD_METHOD_SET);
	assert_true(set >= 0);
	assert_int_equal(umad_unregister(fd, get), 0);
	assert_int_equal(umad_unregister(fd, set), 0);
}

static void agents_talk(void **state)
{
	const int server = agent_with(0, 1 << UMAD_METHOD_GET);
	const int client = agent_with(0, 0);
	struct ib_user_mad *m = request(0x30, UMAD_METHOD_GET, 0x1234, LID, 1);

	(void)state;
	assert_true(server >= 0 && client >= 0);
	assert_int_equal(umad_send(fd, client, m, 256, 5000, 0), 0);
	memset(umad_get_mad(m), 0, 256);
	assert_int_equal(fetch(m, server), 256);
	assert_int_equal(hdr_of(m)->attr_id, htobe16(0x1234));
	assert_int_equal(ntohs(umad_get_mad_addr(m)->lid), LID);
	assert_int_equal(ntohl(umad_get_mad_addr(m)->qpn), 1);
	assert_int_equal(umad_get_mad_addr(m)->grh_present, 0);
	hdr_of(m)->method = UMAD_METHOD_GET_RESP;
	assert_int_equal(umad_send(fd, server, m, 256, 0, 0), 0);
	memset(umad_get_mad(m), 0, 256);
	assert_int_equal(fetch(m, client), 256);
	assert_int_equal(umad_status(m), 0);
	assert_int_equal((uint32_t)be64toh(hdr_of(m)->tid), 0x55667788);
	assert_int_equal(hdr_of(m)->method, UMAD_METHOD_GET_RESP);
	/* Its answer a second time is nobody's. */
	assert_int_equal(umad_send(fd, server, m, 256, 0, 0), 0);
	nothing_comes();
	/* A method that the server has not: whoever sent it is told. */
	umad_free(m);
	m = request(0x30, UMAD_METHOD_SET, 0x1234, LID, 1);
	assert_int_equal(umad_send(fd, client, m, 256, 5000, 0), 0);
	assert_int_equal(fetch(m, client), 256);
	assert_int_equal(hdr_of(m)->method, UMAD_METHOD_GET_RESP);
	assert_int_equal(be16toh(hdr_of(m)->status),
			 UMAD_STATUS_ATTR_NOT_SUPPORTED);
	assert_int_equal(umad_unregister(fd, client), 0);
	assert_int_equal(umad_unregister(fd, server), 0);
	umad_free(m);
}

/* A request that is lost is sent again, which its server sees. */
static void requests_are_repeated(void **state)
{
	const int server = agent_with(0, 1 << UMAD_METHOD_GET);
	const int client = agent_with(0, 0);
	struct ib_user_mad *m = request(0x30, UMAD_METHOD_GET, 1, LID, 1);

	(void)state;
	assert_true(server >= 0 && client >= 0);
	assert_int_equal(umad_send(fd, client, m, 256, 100, 2), 0);
	for (int i = 0; i < 3; i++)
		assert_int_equal(fetch(m, server), 256);
	assert_int_equal(fetch(m, client), 24);
	assert_int_equal(umad_status(m), ETIMEDOUT);
	assert_int_equal(umad_unregister(fd, client), 0);
	assert_int_equal(umad_unregister(fd, server), 0);
	umad_free(m);
}

static uint8_t byte_at(size_t i)
{
	return (uint8_t)(i * 7 + (i >> 8) * 13);
}

static void fill(struct ib_user_mad *m, size_t len)
{
	uint8_t *p = umad_get_mad(m);

	for (size_t i = 40; i < len; i++)
		p[i] = byte_at(i);
}

static void check(struct ib_user_mad *m, size_t len)
{
	const uint8_t *p = umad_get_mad(m);

	for (size_t i = 40; i < len; i++)
		if (p[i] != byte_at(i))
			fail_msg("byte %zu is wrong", i);
}

/* A request and its answer, both of several packets. */
static void long_messages(void **state)
{
	static const int lens[] = { 256, 257, 40 + 216 * 2, 5000, 300000 };
	const int server = agent_with(1, 1 << UMAD_METHOD_GET);
	const int client = agent_with(1, 0);
	struct ib_user_mad *m;
	int len, small = 256;

	(void)state;
	assert_true(server >= 0 && client >= 0);
	for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
		len = lens[i];
		m = request(0x30, UMAD_METHOD_GET, 7, LID, 1);
		/* The receiver takes the same ID for the same message. */
		hdr_of(m)->tid = htobe64(i + 1);
		rmpp_of(m)->rmpp_hdr.rmpp_rtime_flags = UMAD_RMPP_FLAG_ACTIVE;
		fill(m, (size_t)len);
		assert_int_equal(umad_send(fd, client, m, len, 20000, 0), 0);
		memset(umad_get_mad(m), 0, (size_t)len);
		if (len > 256) {
			assert_int_equal(umad_recv(fd, m, &small, 10000),
					 -ENOSPC);
			assert_int_equal(small, len);
			small = 256;
		}
		assert_int_equal(fetch(m, server), len);
		check(m, (size_t)len);
		hdr_of(m)->method = UMAD_METHOD_GET_RESP;
		assert_int_equal(umad_send(fd, server, m, len, 0, 0), 0);
		memset(umad_get_mad(m), 0, (size_t)len);
		assert_int_equal(fetch(m, client), len);
		check(m, (size_t)len);
		assert_int_equal(umad_status(m), 0);
		umad_free(m);
	}
	nothing_comes();
	assert_int_equal(umad_unregister(fd, client), 0);
	assert_int_equal(umad_unregister(fd, server), 0);
}

/* More than a port keeps is lost, and the port goes on. */
static void a_flood_is_bounded(void **state)
{
	const int server = agent_with(0, 1 << UMAD_METHOD_SEND);
	const int client = agent_with(0, 0);
	struct ib_user_mad *m = request(0x30, UMAD_METHOD_SEND, 7, LID, 1);
	int len, got = 0;

	(void)state;
	for (int i = 0; i < 6000; i++)
		umad_send(fd, client, m, 256, 0, 0);
	while (umad_poll(fd, 200) == 0) {
		len = BUFFER;
		assert_int_equal(umad_recv(fd, m, &len, 0), server);
		got++;
	}
	assert_in_range(got, 1, 6000);
	assert_int_equal(umad_unregister(fd, client), 0);
	assert_int_equal(umad_unregister(fd, server), 0);
	umad_free(m);
}

/* Ports of a process have agents of their own. */
static void ports_are_many(void **state)
{
	const int other = umad_open_port("softib0", 1);
	struct ib_user_mad *m = request(UMAD_CLASS_SUBN_LID_ROUTED,
					UMAD_METHOD_GET, 0x11, LID, 0);
	int id, len = BUFFER;

	(void)state;
	assert_true(other >= 0 && other != fd);
	id = umad_register(other, UMAD_CLASS_SUBN_LID_ROUTED, 1, 0, NULL);
	assert_true(id >= 0);
	assert_int_equal(umad_send(other, id, m, 256, 1000, 0), 0);
	nothing_comes();
	assert_int_equal(umad_recv(other, m, &len, 1000), id);
	assert_int_equal(umad_close_port(other), 0);
	assert_int_equal(umad_recv(other, m, &len, 0), -EINVAL);
	umad_free(m);
}

static void names(void **state)
{
	(void)state;
	assert_string_equal(umad_class_str(UMAD_CLASS_SUBN_ADM), "SubnAdm");
	assert_string_equal(umad_class_str(0x77), "<unknown>");
	assert_string_equal(umad_method_str(3, 0x92), "GetTableResp");
	assert_string_equal(umad_method_str(1, 0x92), "<unknown");
	assert_string_equal(umad_attribute_str(1, htobe16(0x11)), "NodeInfo");
	assert_string_equal(umad_attribute_str(3, htobe16(0x35)), "PathRecord");
	assert_string_equal(umad_common_mad_status_str(htobe16(0x1c)),
			    "Invalid attribute/modifier field");
	assert_string_equal(umad_sa_mad_status_str(htobe16(0x300)),
			    "No Records");
}

#define UMAD_TEST(fn) cmocka_unit_test_setup_teardown(fn, open_port, close_port)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(devices),        cmocka_unit_test(names),
		UMAD_TEST(the_fabric_answers),    UMAD_TEST(nobody_answers),
		UMAD_TEST(wrong_calls),           UMAD_TEST(a_buffer_too_small),
		UMAD_TEST(one_server_a_method),   UMAD_TEST(agents_talk),
		UMAD_TEST(requests_are_repeated), UMAD_TEST(long_messages),
		UMAD_TEST(a_flood_is_bounded),    UMAD_TEST(ports_are_many),
	};

	if (!own_netns())
		return 77;
	setenv("SOFTHCA_INFINIBAND", "1", 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * test_fabric.c - a virtual switch and hosts: their agents answer management
 * datagrams that are made and read here by the byte offsets of the
 * specification's tables, not by the code's
 */
#include "unit.h"

#include "base/bytes.h"
#include "fabric/fabric.h"

#define SWITCH_GUID 0x025348ca0a5b00ffu
#define GUID(n) (0x025348ca0a5b0000u | (n))
#define SM_LID 255
#define DIRECTED 0x81
#define BY_LID 0x01
#define GET 1
#define SET 2
#define NODE_DESC 0x10
#define NODE_INFO 0x11
#define SWITCH_INFO 0x12
#define GUID_INFO 0x14
#define PORT_INFO 0x15
#define PKEY_TABLE 0x16
#define LFT 0x19
#define SM_INFO 0x20
#define BAD_VERSION 0x04
#define BAD_ATTRIBUTE 0x0c
#define BAD_VALUE 0x1c

/* A fabric, and the request and the answer at hand. */
struct net {
	struct fabric *f;
	uint64_t at; /* the port where requests enter */
	uint8_t mad[256];
	uint8_t *answer;
};

static void host(struct net *n, unsigned lid)
{
	struct fabric_host h = {
		.node_guid = GUID(lid),
		.port_guid = GUID(lid),
		.switch_guid = SWITCH_GUID,
		.lid = (uint16_t)lid,
		.sm_lid = SM_LID,
		.vendor = 0x5348ca,
		.device = 7,
	};
	char why[256] = "";

	snprintf(h.desc, sizeof(h.desc), "host%u softib0", lid);
	if (fabric_add_host(n->f, &h, why, sizeof(why)))
		fail_msg("%s", why);
}

static struct net *net_new(unsigned hosts)
{
	struct net *n = calloc(1, sizeof(*n));

	n->f = fabric_new();
	for (unsigned i = 1; i <= hosts; i++)
		host(n, i);
	n->at = GUID(1);
	return n;
}

static void net_free(struct net *n)
{
	fabric_free(n->f);
	free(n->answer);
	free(n);
}

static void smp(struct net *n, unsigned class, unsigned method, unsigned attr,
		uint32_t mod)
{
	memset(n->mad, 0, 256);
	n->mad[0] = 1;
	n->mad[1] = (uint8_t) class;
	n->mad[2] = 1;
	n->mad[3] = (uint8_t)method;
	put_be64(n->mad + 8, 0x1122334455667788u);
	put_be16(n->mad + 16, attr);
	put_be32(n->mad + 20, mod);
	put_be16(n->mad + 32, 0xffff);
	put_be16(n->mad + 34, 0xffff);
}

static ssize_t ask(struct net *n, uint16_t dlid)
{
	ssize_t len;

	free(n->answer);
	len = fabric_request(n->f, NULL, n->at, dlid, 0, n->mad, 256,
			     (void **)&n->answer, NULL);
	if (len > 0) {
		assert_int_equal(n->answer[3] & 0x80, 0x80);
		assert_memory_equal(n->answer + 8, n->mad + 8, 8);
		assert_memory_equal(n->answer + 16, n->mad + 16, 8);
	} else {
		assert_null(n->answer);
	}
	return len;
}

/* The data of the answer, which has this status. */
static const uint8_t *by_lid(struct net *n, unsigned dlid, unsigned attr,
			     uint32_t mod, unsigned status)
{
	smp(n, BY_LID, GET, attr, mod);
	assert_int_equal(ask(n, (uint16_t)dlid), 256);
	assert_int_equal(get_be16(n->answer + 4), status);
	return n->answer + 64;
}

static ssize_t directed(struct net *n, unsigned attr, const char *path)
{
	smp(n, DIRECTED, GET, attr, 0);
	for (const char *c = path; *c; c += strcspn(c, ","), c += *c == ',')
		n->mad[129 + n->mad[7]++] = (uint8_t)strtoul(c, NULL, 10);
	return ask(n, 0xffff);
}

/* ---- by directed route --------------------------------------------------- */

static void node_info_of_the_port(void **state)
{
	struct net *n = net_new(2);
	const uint8_t *d;

	(void)state;
	assert_int_equal(directed(n, NODE_INFO, ""), 256);
	assert_int_equal(get_be16(n->answer + 4), 0x8000); /* only D */
	assert_int_equal(n->answer[6], 0);
	d = n->answer + 64;
	assert_int_equal(d[0], 1);
	assert_int_equal(d[1], 1);
	assert_int_equal(d[2], 1); /* a CA */
	assert_int_equal(d[3], 1);
	assert_int_equal(get_be64(d + 4), GUID(1));
	assert_int_equal(get_be64(d + 12), GUID(1));
	assert_int_equal(get_be64(d + 20), GUID(1));
	assert_int_equal(get_be16(d + 28), 64);
	assert_int_equal(get_be16(d + 30), 7);
	assert_int_equal(d[36], 1);
	assert_int_equal(get_be24(d + 37), 0x5348ca);
	net_free(n);
}

static void a_route_leads_through_the_switch(void **state)
{
	struct net *n = net_new(3);
	const uint8_t *d;

	(void)state;
	assert_int_equal(directed(n, NODE_INFO, "1"), 256);
	d = n->answer + 64;
	assert_int_equal(d[2], 2); /* a switch */
	assert_int_equal(get_be64(d + 12), SWITCH_GUID);
	assert_int_equal(d[36], 1); /* it arrived at port 1 */
	assert_int_equal(n->answer[193], 1);

	assert_int_equal(directed(n, NODE_DESC, "1,3"), 256);
	assert_string_equal((char *)n->answer + 64, "host3 softib0");
	assert_int_equal(n->answer[193], 1);
	assert_int_equal(n->answer[194], 1);
	/* And back to where it came from. */
	assert_int_equal(directed(n, NODE_DESC, "1,1"), 256);
	assert_string_equal((char *)n->answer + 64, "host1 softib0");
	net_free(n);
}

static void wrong_routes_lead_nowhere(void **state)
{
	static const char *const wrong[] = { "0",     "2",     "255",   "1,0",
					     "1,4",   "1,200", "1,255", "1,2,1",
					     "1,2,0", "1,1,2" };
	struct net *n = net_new(3);

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(wrong); i++)
		if (directed(n, NODE_INFO, wrong[i]) != FABRIC_NOBODY)
			fail_msg("%s leads somewhere", wrong[i]);
	/* A count beyond the path, a pointer that has begun, an answer. */
	for (unsigned i = 64; i < 256; i++) {
		smp(n, DIRECTED, GET, NODE_INFO, 0);
		n->mad[7] = (uint8_t)i;
		memset(n->mad + 129, 1, 63);
		assert_int_equal(ask(n, 0xffff), FABRIC_NOBODY);
	}
	smp(n, DIRECTED, GET, NODE_INFO, 0);
	n->mad[6] = 1;
	assert_int_equal(ask(n, 0xffff), FABRIC_NOBODY);
	smp(n, DIRECTED, GET, NODE_INFO, 0);
	put_be16(n->mad + 4, 0x8000);
	assert_int_equal(ask(n, 0xffff), FABRIC_NOBODY);
	net_free(n);
}

/* DrSLID, DrDLID: by LID to the beginning of the route, and from its end. */
static void parts_by_lid(void **state)
{
	struct net *n = net_new(3);

	(void)state;
	smp(n, DIRECTED, GET, NODE_DESC, 0);
	put_be16(n->mad + 32, 1);
	n->mad[7] = 1;
	n->mad[129] = 3;
	assert_int_equal(ask(n, SM_LID), 256);
	assert_string_equal((char *)n->answer + 64, "host3 softib0");

	smp(n, DIRECTED, GET, NODE_DESC, 0);
	put_be16(n->mad + 34, 2);
	n->mad[7] = 1;
	n->mad[129] = 1;
	assert_int_equal(ask(n, 0xffff), 256);
	assert_string_equal((char *)n->answer + 64, "host2 softib0");

	put_be16(n->mad + 34, 9);
	assert_int_equal(ask(n, 0xffff), FABRIC_NOBODY);
	net_free(n);
}

/* ---- by LID -------------------------------------------------------------- */

static void port_info_by_lid(void **state)
{
	struct net *n = net_new(2);
	const uint8_t *d = by_lid(n, 2, PORT_INFO, 0, 0);

	(void)state;
	assert_int_equal(get_be64(d), 0); /* M_Key */
	assert_int_equal(get_be64(d + 8), 0xfe80000000000000u);
	assert_int_equal(get_be16(d + 16), 2);
	assert_int_equal(get_be16(d + 18), SM_LID);
	assert_int_equal(d[28], 1);
	assert_int_equal(d[31], 2); /* 4X */
	assert_int_equal(d[32] & 0xf, 4); /* Active */
	assert_int_equal(d[33] >> 4, 5); /* LinkUp */
	assert_int_equal(d[35] >> 4, 4); /* 10 Gb/s, and */
	assert_int_equal(d[62] >> 4, 2); /* EDR */
	assert_int_equal(d[36] >> 4, 5); /* 4096 */
	assert_int_equal(get_be64(by_lid(n, 2, GUID_INFO, 0, 0)), GUID(2));
	d = by_lid(n, 2, PKEY_TABLE, 0, 0);
	assert_int_equal(get_be16(d), 0xffff);
	assert_int_equal(get_be16(d + 2), 0);
	by_lid(n, 2, PORT_INFO, 2, BAD_VALUE);
	by_lid(n, 2, SWITCH_INFO, 0, BAD_ATTRIBUTE);
	by_lid(n, 2, SM_INFO, 0, BAD_ATTRIBUTE);
	by_lid(n, 2, 0xff40, 0, BAD_ATTRIBUTE);
	smp(n, BY_LID, GET, PORT_INFO, 0);
	assert_int_equal(ask(n, 3), FABRIC_NOBODY);
	assert_int_equal(ask(n, 0), FABRIC_NOBODY);
	assert_int_equal(ask(n, 0xffff), FABRIC_NOBODY);
	n->mad[2] = 2;
	assert_int_equal(ask(n, 2), 256);
	assert_int_equal(get_be16(n->answer + 4), BAD_VERSION);
	net_free(n);
}

static void the_switch_by_lid(void **state)
{
	struct net *n = net_new(40); /* more than it has ports at first */
	const uint8_t *d = by_lid(n, SM_LID, SWITCH_INFO, 0, 0);

	(void)state;
	assert_int_equal(get_be16(d), 0xc000);
	assert_int_equal(get_be16(d + 6), SM_LID); /* linear table's top */
	d = by_lid(n, SM_LID, NODE_INFO, 0, 0);
	assert_int_equal(d[3], 40);
	d = by_lid(n, SM_LID, SM_INFO, 0, 0);
	assert_int_equal(get_be64(d), SWITCH_GUID);
	assert_int_equal(d[20], 15 << 4 | 3); /* priority, master */
	d = by_lid(n, SM_LID, PORT_INFO, 0, 0);
	assert_int_equal(get_be16(d + 16), SM_LID);
	assert_true(get_be32(d + 20) & 2); /* IsSM */
	d = by_lid(n, SM_LID, PORT_INFO, 40, 0);
	assert_int_equal(d[32] & 0xf, 4);
	d = by_lid(n, SM_LID, LFT, 0, 0);
	for (unsigned i = 0; i < 64; i++)
		assert_int_equal(d[i], i && i <= 40 ? i : 0xff);
	d = by_lid(n, SM_LID, LFT, 3, 0);
	assert_int_equal(d[63], 0); /* its own */
	by_lid(n, SM_LID, LFT, 768, BAD_VALUE);
	by_lid(n, SM_LID, PORT_INFO, 41, BAD_VALUE);
	net_free(n);
}

/* ---- hosts --------------------------------------------------------------- */

static void a_set_of_a_host_is_refused(void **state)
{
	struct net *n = net_new(2);

	(void)state;
	by_lid(n, 2, PORT_INFO, 0, 0);
	memcpy(n->mad + 64, n->answer + 64, 64);
	n->mad[3] = SET;
	n->mad[64 + 32] &= 0xf0; /* no change of state */
	n->mad[64 + 33] &= 0x0f;
	assert_int_equal(ask(n, 2), 256);
	assert_int_equal(get_be16(n->answer + 4), 0);
	assert_int_equal(n->answer[3], 0x81);
	put_be16(n->mad + 64 + 16, 7);
	assert_int_equal(ask(n, 2), 256);
	assert_int_equal(get_be16(n->answer + 4), BAD_VALUE);
	assert_int_equal(get_be16(by_lid(n, 2, PORT_INFO, 0, 0) + 16), 2);
	net_free(n);
}

static void what_a_key_protects(void **state)
{
	struct net *n = net_new(2);
	const uint64_t key = 0x0102030405060708u;

	(void)state;
	for (unsigned protect = 0; protect < 4; protect++) {
		by_lid(n, 2, PORT_INFO, 0, 0);
		memcpy(n->mad + 64, n->answer + 64, 64);
		n->mad[3] = SET;
		n->mad[96] &= 0xf0;
		n->mad[97] &= 0x0f;
		put_be64(n->mad + 64, key);
		n->mad[98] = (uint8_t)(protect << 6);
		assert_int_equal(ask(n, 2), 256);
		/* Without the key: a Set is not answered, a Get perhaps. */
		assert_int_equal(ask(n, 2), FABRIC_NOBODY);
		n->mad[3] = GET;
		assert_int_equal(ask(n, 2), protect < 2 ? 256 : 0);
		if (protect < 2)
			assert_int_equal(get_be64(n->answer + 64),
					 protect ? 0 : key);
		/* With it both, and the key can be taken away. */
		put_be64(n->mad + 24, key);
		assert_int_equal(ask(n, 2), 256);
		assert_int_equal(get_be16(n->answer + 64 + 44),
				 protect < 2 ? 1 : 2);
		n->mad[3] = SET;
		put_be64(n->mad + 64, 0);
		n->mad[98] = 0;
		put_be16(n->mad + 64 + 44, 0);
		assert_int_equal(ask(n, 2), 256);
	}
	net_free(n);
}

static void a_host_goes_and_comes(void **state)
{
	struct fabric_port p;
	struct net *n = net_new(2);

	(void)state;
	assert_int_equal(fabric_port_guid(n->f, GUID(2), &p), 0);
	assert_int_equal(p.lid, 2);
	assert_int_equal(p.sm_lid, SM_LID);
	assert_int_equal(p.state, 4);
	fabric_drop_host(n->f, GUID(2));
	smp(n, BY_LID, GET, NODE_INFO, 0);
	assert_int_equal(ask(n, 2), FABRIC_NOBODY);
	assert_int_equal(directed(n, NODE_INFO, "1,2"), FABRIC_NOBODY);
	host(n, 2);
	by_lid(n, 2, NODE_INFO, 0, 0);
	assert_int_equal(fabric_port_guid(n->f, GUID(9), &p), -1);
	net_free(n);
}

static void hosts_that_cannot_be(void **state)
{
	struct net *n = net_new(2);
	struct fabric_host h = { .node_guid = GUID(3),
				 .port_guid = GUID(3),
				 .switch_guid = SWITCH_GUID,
				 .lid = 2,
				 .sm_lid = SM_LID,
				 .desc = "third" };
	char why[256] = "";

	(void)state;
	assert_int_equal(fabric_add_host(n->f, &h, why, sizeof(why)), -1);
	assert_string_equal(
		why, "LID 2 of host third is also that of host2 softib0");
	h.lid = 0xc000;
	assert_int_equal(fabric_add_host(n->f, &h, why, sizeof(why)), -1);
	assert_non_null(strstr(why, "no unicast LID"));
	h.lid = 3;
	assert_int_equal(fabric_add_host(n->f, &h, why, sizeof(why)), 0);
	for (unsigned i = 4; i <= 254; i++)
		host(n, i);
	h.node_guid = h.port_guid = GUID(1000);
	h.lid = 1000;
	assert_int_equal(fabric_add_host(n->f, &h, why, sizeof(why)), -1);
	assert_string_equal(why, "the virtual switch has no port left");
	net_free(n);
}

/* A trap is repressed by the subnet manager, and by nobody else. */
static void traps(void **state)
{
	struct net *n = net_new(2);
	void *answer;

	(void)state;
	smp(n, BY_LID, 0x05, 0x02, 0);
	assert_int_equal(fabric_request(n->f, NULL, n->at, SM_LID, 0, n->mad,
					256, &answer, NULL),
			 256);
	assert_int_equal(((uint8_t *)answer)[3], 0x07);
	assert_memory_equal((uint8_t *)answer + 4, n->mad + 4, 252);
	free(answer);
	assert_int_equal(fabric_request(n->f, NULL, n->at, 2, 0, n->mad, 256,
					&answer, NULL),
			 FABRIC_ELSEWHERE);
	net_free(n);
}

/* ---- performance ---------------------------------------------------------- */

static struct fabric_counters counted = {
	.xmit_data = 0x123456789a,
	.rcv_data = 77,
	.xmit_pkts = 1000,
	.rcv_pkts = 70000,
	.unicast_xmit = 990,
	.multicast_rcv = 5,
	.xmit_discards = 0x10001,
	.xmit_wait = 12,
};
static struct fabric_counters taken_off;
static bool keeps;

static int host_counters(void *arg, uint64_t guid, struct fabric_counters *c)
{
	(void)arg;
	if (guid != GUID(1))
		return -1;
	*c = counted;
	return 0;
}

static int host_reset(void *arg, uint64_t guid,
		      const struct fabric_counters *less)
{
	(void)arg;
	assert_int_equal(guid, GUID(1));
	taken_off = *less;
	return keeps ? 0 : -1;
}

/* PortCounters or PortCountersExtended of a port; the answer's data. */
static const uint8_t *perf(struct net *n, unsigned method, unsigned attr,
			   unsigned dlid, unsigned port, unsigned select,
			   ssize_t want)
{
	const struct fabric_env env = { .counters = host_counters,
					.reset = host_reset };

	memset(n->mad, 0, 256);
	n->mad[0] = n->mad[2] = 1;
	n->mad[1] = 0x04;
	n->mad[3] = (uint8_t)method;
	put_be16(n->mad + 16, attr);
	n->mad[65] = (uint8_t)port;
	put_be16(n->mad + 66, select);
	n->mad[64 + 18] = (uint8_t)(select >> 16);
	free(n->answer);
	assert_int_equal(fabric_request(n->f, &env, n->at, (uint16_t)dlid, 1,
					n->mad, 256, (void **)&n->answer, NULL),
			 want);
	return want == 256 ? n->answer + 64 : NULL;
}

static void counters_of_a_port(void **state)
{
	struct net *n = net_new(2);
	const uint8_t *d = perf(n, GET, 0x12, 1, 1, 0, 256);

	(void)state;
	assert_int_equal(n->answer[3], 0x81);
	assert_int_equal(get_be16(n->answer + 4), 0);
	assert_int_equal(d[1], 1);
	assert_int_equal(get_be32(d + 24), 0xffffffff); /* does not fit */
	assert_int_equal(get_be32(d + 28), 77);
	assert_int_equal(get_be32(d + 32), 1000);
	assert_int_equal(get_be32(d + 36), 70000);
	assert_int_equal(get_be16(d + 14), 0xffff);
	assert_int_equal(get_be32(d + 40), 12);
	d = perf(n, GET, 0x1d, 1, 1, 0, 256);
	assert_int_equal(get_be64(d + 8), 0x123456789a);
	assert_int_equal(get_be64(d + 40), 990);
	assert_int_equal(get_be64(d + 64), 5);
	/* All ports; the switch's end of the link, seen from there. */
	d = perf(n, GET, 0x1d, SM_LID, 0xff, 0, 256);
	assert_int_equal(get_be64(d + 8), 77);
	d = perf(n, GET, 0x1d, SM_LID, 1, 0, 256);
	assert_int_equal(get_be64(d + 16), 0x123456789a);
	assert_int_equal(get_be64(d + 56), 5);
	d = perf(n, GET, 0x1d, SM_LID, 0, 0, 256);
	assert_int_equal(get_be64(d + 16), 0);
	d = perf(n, GET, 0x01, 1, 0, 0, 256);
	assert_int_equal(d[1], 1);
	assert_int_equal(get_be16(d + 2) & 0x300, 0x300);
	/* Another host's are asked there. */
	perf(n, GET, 0x12, 2, 1, 0, FABRIC_ELSEWHERE);
	perf(n, GET, 0x12, 1, 2, 0, 256);
	assert_int_equal(get_be16(n->answer + 4), BAD_VALUE);
	perf(n, GET, 0x12, 1, 0, 0, 256);
	assert_int_equal(get_be16(n->answer + 4), BAD_VALUE);
	perf(n, GET, 0x10, 1, 1, 0, 256); /* samples */
	assert_int_equal(get_be16(n->answer + 4), BAD_ATTRIBUTE);
	net_free(n);
}

static void a_reset_is_remembered(void **state)
{
	struct net *n = net_new(2);
	const uint8_t *d;

	(void)state;
	keeps = false;
	d = perf(n, SET, 0x12, 1, 1, 0x4000 | 0x10000, 256);
	assert_int_equal(get_be32(d + 32), 0);
	assert_int_equal(get_be32(d + 36), 70000);
	counted.xmit_pkts += 3;
	d = perf(n, GET, 0x12, 1, 1, 0, 256);
	assert_int_equal(get_be32(d + 32), 3);
	assert_int_equal(get_be32(d + 40), 0);
	d = perf(n, GET, 0x1d, 1, 1, 0, 256);
	assert_int_equal(get_be64(d + 24), 3);
	assert_int_equal(get_be64(d + 32), 70000);
	/* By who has the counters. */
	keeps = true;
	perf(n, SET, 0x1d, 1, 1, 0x8, 256);
	assert_int_equal(taken_off.rcv_pkts, 70000);
	assert_int_equal(taken_off.xmit_pkts, 0);
	d = perf(n, GET, 0x1d, 1, 1, 0, 256);
	assert_int_equal(get_be64(d + 32), 70000);
	counted.xmit_pkts -= 3;
	net_free(n);
}

/* Other classes are for programs, where there are any. */
static void datagrams_for_programs(void **state)
{
	struct fabric_port at = { 0 };
	struct net *n = net_new(2);
	void *answer;

	(void)state;
	smp(n, 0x32, GET, 0, 0);
	for (unsigned lid = 1; lid <= 2; lid++) {
		assert_int_equal(fabric_request(n->f, NULL, n->at,
						(uint16_t)lid, 1, n->mad, 256,
						&answer, &at),
				 FABRIC_ELSEWHERE);
		assert_int_equal(at.port_guid, GUID(lid));
	}
	assert_int_equal(fabric_request(n->f, NULL, n->at, SM_LID, 1, n->mad,
					256, &answer, &at),
			 FABRIC_NOBODY);
	assert_int_equal(fabric_request(n->f, NULL, n->at, 2, 0, n->mad, 256,
					&answer, &at),
			 FABRIC_NOBODY);
	assert_int_equal(fabric_request(n->f, NULL, n->at, 2, 1, n->mad, 255,
					&answer, &at),
			 FABRIC_NOBODY);
	/* Answers, too. */
	smp(n, 0x32, GET | 0x80, 0, 0);
	assert_int_equal(fabric_request(n->f, NULL, n->at, 2, 1, n->mad, 256,
					&answer, &at),
			 FABRIC_ELSEWHERE);
	net_free(n);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(node_info_of_the_port),
		cmocka_unit_test(a_route_leads_through_the_switch),
		cmocka_unit_test(wrong_routes_lead_nowhere),
		cmocka_unit_test(parts_by_lid),
		cmocka_unit_test(port_info_by_lid),
		cmocka_unit_test(the_switch_by_lid),
		cmocka_unit_test(a_set_of_a_host_is_refused),
		cmocka_unit_test(what_a_key_protects),
		cmocka_unit_test(a_host_goes_and_comes),
		cmocka_unit_test(hosts_that_cannot_be),
		cmocka_unit_test(traps),
		cmocka_unit_test(counters_of_a_port),
		cmocka_unit_test(a_reset_is_remembered),
		cmocka_unit_test(datagrams_for_programs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

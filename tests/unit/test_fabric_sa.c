/*
 * test_fabric_sa.c - subnet administration: records by component masks, paths,
 * members of groups, services; requests and answers by the offsets of the
 * specification's chapter 15
 */
#include "unit.h"

#include "base/bytes.h"
#include "fabric/fabric.h"

#define GET 0x01
#define SET 0x02
#define GET_TABLE 0x12
#define DELETE 0x15
#define NO_RESOURCES 0x0100
#define INVALID 0x0200
#define NO_RECORDS 0x0300
#define TOO_MANY 0x0400
#define INVALID_GID 0x0500
#define INSUFFICIENT 0x0600
#define PREFIX 0xfe80000000000000u
#define BIT(n) (UINT64_C(1) << (n))

/* Two switches, two CAs on each; the link between them is slow. */
static const char text[] =
	"switchguid=0x10\nSwitch 4 \"one\" # \"one\" enhanced port 0 lid 1\n"
	"[1] \"a\"[1]\n[2] \"b\"[1]\n[3] \"two\"[3] # 1xSDR\n"
	"switchguid=0x20\nSwitch 4 \"two\" # \"two\" enhanced port 0 lid 2\n"
	"[1] \"c\"[1]\n[2] \"d\"[1]\n"
	"caguid=0xa0\nCa 1 \"a\"\n[1] \"one\"[1] # lid 11 \"one\" 4xEDR\n"
	"caguid=0xb0\nCa 1 \"b\"\n[1] \"one\"[2] # lid 12 \"one\" 4xEDR\n"
	"caguid=0xc0\nCa 1 \"c\"\n[1] \"two\"[1] # lid 13 \"two\" 4xHDR\n"
	"caguid=0xd0\nCa 1 \"d\"\n[1] \"two\"[2] # lid 14 \"two\" 4xHDR\n";

struct sa {
	struct fabric *f;
	uint8_t mad[256];
	uint8_t *answer;
	ssize_t len;
	unsigned status;
};

static struct sa *sa_new(const char *net)
{
	struct sa *s = calloc(1, sizeof(*s));
	char why[256] = "";

	s->f = fabric_new();
	if (fabric_read(s->f, "net", net, strlen(net), why, sizeof(why)))
		fail_msg("%s", why);
	return s;
}

static void sa_free(struct sa *s)
{
	fabric_free(s->f);
	free(s->answer);
	free(s);
}

/* A request that asks for nothing yet; its record. */
static uint8_t *request(struct sa *s, unsigned method, unsigned attr,
			uint64_t mask)
{
	memset(s->mad, 0, sizeof(s->mad));
	s->mad[0] = 1;
	s->mad[1] = 0x03;
	s->mad[2] = 2;
	s->mad[3] = (uint8_t)method;
	put_be64(s->mad + 8, 0x42);
	put_be16(s->mad + 16, attr);
	put_be64(s->mad + 48, mask);
	return s->mad + 56;
}

static void gid(uint8_t *p, uint64_t guid)
{
	put_be64(p, PREFIX);
	put_be64(p + 8, guid);
}

/* From CA a, or another; returns how many records, of this size. */
static unsigned ask_from(struct sa *s, uint64_t guid)
{
	unsigned stride;

	free(s->answer);
	s->len = fabric_request(s->f, NULL, guid, 1, 1, s->mad, 256,
				(void **)&s->answer, NULL);
	assert_true(s->len >= 56);
	assert_int_equal(get_be64(s->answer + 8), 0x42);
	s->status = get_be16(s->answer + 4);
	stride = 8u * get_be16(s->answer + 44);
	if (s->mad[3] != GET_TABLE || s->status) {
		assert_int_equal(s->len, 256);
		return s->status ? 0 : 1;
	}
	assert_int_equal(s->answer[3], 0x92);
	assert_int_equal(s->answer[24], 1); /* RMPP: version, */
	assert_int_equal(s->answer[25], 1); /* DATA, */
	assert_int_equal(s->answer[26] & 7, 7); /* the first and the last */
	assert_int_equal(get_be32(s->answer + 28), 1);
	assert_int_equal(get_be32(s->answer + 32), s->len - 36);
	if (!stride)
		assert_int_equal(s->len, 56);
	return stride ? (unsigned)(s->len - 56) / stride : 0;
}

static unsigned ask(struct sa *s)
{
	return ask_from(s, 0xa1);
}

static const uint8_t *record(const struct sa *s, unsigned i)
{
	return s->answer + 56 + 8u * get_be16(s->answer + 44) * i;
}

/* ---- what the fabric is -------------------------------------------------- */

static void records_of_nodes(void **state)
{
	struct sa *s = sa_new(text);
	uint8_t *r;

	(void)state;
	request(s, GET_TABLE, 0x11, 0);
	assert_int_equal(ask(s), 6);
	assert_int_equal(get_be16(s->answer + 44), 14); /* 108 bytes */
	assert_int_equal(get_be16(record(s, 2)), 11);
	assert_int_equal(record(s, 2)[4 + 2], 1);
	assert_int_equal(get_be64(record(s, 2) + 4 + 20), 0xa1);
	assert_string_equal((const char *)record(s, 2) + 44, "a");

	r = request(s, GET_TABLE, 0x11, BIT(4)); /* node type */
	r[4 + 2] = 2;
	assert_int_equal(ask(s), 2);
	assert_string_equal((const char *)record(s, 1) + 44, "two");

	r = request(s, GET, 0x11, BIT(7)); /* node GUID */
	put_be64(r + 4 + 12, 0xc0);
	assert_int_equal(ask(s), 1);
	assert_int_equal(s->answer[3], 0x81);
	assert_int_equal(get_be16(record(s, 0)), 13);
	put_be64(r + 4 + 12, 0xc1);
	assert_int_equal(ask(s), 0);
	assert_int_equal(s->status, NO_RECORDS);

	r = request(s, GET, 0x11, BIT(14)); /* description */
	memcpy(r + 44, "d", 2);
	assert_int_equal(ask(s), 1);
	assert_int_equal(get_be16(record(s, 0)), 14);
	request(s, GET, 0x11, 0);
	assert_int_equal(ask(s), 0);
	assert_int_equal(s->status, TOO_MANY);
	r = request(s, GET_TABLE, 0x11, BIT(0));
	put_be16(r, 77);
	assert_int_equal(ask(s), 0);
	assert_int_equal(s->status, 0); /* an empty table */
	sa_free(s);
}

static void records_of_ports(void **state)
{
	struct sa *s = sa_new(text);
	uint8_t *r;

	(void)state;
	request(s, GET_TABLE, 0x12, 0);
	assert_int_equal(ask(s), 2 * 5 + 4);
	r = request(s, GET, 0x12, BIT(0) | BIT(1)); /* LID, port */
	put_be16(r, 1);
	r[2] = 3;
	assert_int_equal(ask(s), 1);
	assert_int_equal(record(s, 0)[4 + 31], 1); /* 1X */
	r = request(s, GET_TABLE, 0x12, BIT(54)); /* extended speed active */
	r[4 + 62] = 4 << 4;
	assert_int_equal(ask(s), 4); /* HDR */
	r = request(s, GET_TABLE, 0x12, BIT(15)); /* state */
	r[4 + 32] = 1;
	assert_int_equal(ask(s), 2); /* the fourth ports are down */
	/* All bits that are asked for, rather than the same number. */
	r = request(s, GET_TABLE, 0x12, BIT(7));
	put_be32(s->mad + 20, 1u << 31);
	put_be32(r + 4 + 20, 0x40);
	assert_int_equal(ask(s), 6);
	put_be32(r + 4 + 20, 0x42);
	assert_int_equal(ask(s), 0);

	request(s, GET_TABLE, 0x14, 0);
	assert_int_equal(ask(s), 2);
	assert_int_equal(get_be16(record(s, 0) + 4), 0xc000);
	r = request(s, GET, 0x15, BIT(0) | BIT(1)); /* forwarding */
	put_be16(r, 2);
	assert_int_equal(ask(s), 1);
	assert_int_equal(record(s, 0)[8 + 11], 3);
	assert_int_equal(record(s, 0)[8 + 13], 1);
	request(s, GET, 0x18, 0); /* SMInfo */
	assert_int_equal(ask(s), 1);
	assert_int_equal(get_be64(record(s, 0) + 4), 0x10);
	request(s, GET_TABLE, 0x20, 0); /* links, at both ends */
	assert_int_equal(ask(s), 10);
	r = request(s, GET, 0x20, BIT(0) | BIT(3));
	put_be16(r, 1);
	put_be16(r + 4, 2);
	assert_int_equal(ask(s), 1);
	assert_int_equal(record(s, 0)[2], 3);
	assert_int_equal(record(s, 0)[3], 3);
	request(s, GET_TABLE, 0x30, 0);
	assert_int_equal(ask(s), 6);
	r = request(s, GET, 0x33, BIT(0) | BIT(1));
	put_be16(r, 11);
	assert_int_equal(ask(s), 1);
	assert_int_equal(get_be16(record(s, 0) + 8), 0xffff);
	sa_free(s);
}

static void what_is_not_there(void **state)
{
	struct sa *s = sa_new(text);
	void *nothing;

	(void)state;
	request(s, GET, 0x01, 0); /* ClassPortInfo */
	assert_int_equal(ask(s), 1);
	assert_int_equal(s->answer[56 + 1], 2);
	request(s, GET, 0xf3, 0);
	ask(s);
	assert_int_equal(s->status, 0x0c);
	request(s, SET, 0x11, 0);
	ask(s);
	assert_int_equal(s->status, 0x0c);
	request(s, GET, 0x11, 0);
	s->mad[2] = 1;
	ask(s);
	assert_int_equal(s->status, 0x04);
	/* Elsewhere there is no subnet administration. */
	request(s, GET, 0x01, 0);
	assert_int_equal(fabric_request(s->f, NULL, 0xa1, 2, 1, s->mad, 256,
					&nothing, NULL),
			 FABRIC_NOBODY);
	sa_free(s);
}

/* ---- paths --------------------------------------------------------------- */

static uint8_t *path(struct sa *s, unsigned method, uint64_t from, uint64_t to,
		     uint64_t more)
{
	uint8_t *r = request(s, method, 0x35,
			     more | (to ? BIT(2) : 0) | (from ? BIT(3) : 0));

	gid(r + 8, to);
	gid(r + 24, from);
	return r;
}

static void paths(void **state)
{
	struct sa *s = sa_new(text);
	const uint8_t *d;
	uint8_t *r;

	(void)state;
	path(s, GET, 0xa1, 0xb1, 0);
	assert_int_equal(ask(s), 1);
	d = record(s, 0);
	assert_int_equal(get_be64(d + 8), PREFIX);
	assert_int_equal(get_be64(d + 16), 0xb1);
	assert_int_equal(get_be64(d + 32), 0xa1);
	assert_int_equal(get_be16(d + 40), 12);
	assert_int_equal(get_be16(d + 42), 11);
	assert_int_equal(d[49] & 0x80, 0x80); /* reversible */
	assert_int_equal(get_be16(d + 50), 0xffff);
	assert_int_equal(d[54], 2 << 6 | 4); /* exactly 2048 bytes, */
	assert_int_equal(d[55], 2 << 6 | 16); /* 100 Gb/s */
	path(s, GET, 0xa1, 0xc1, 0);
	assert_int_equal(ask(s), 1);
	assert_int_equal(record(s, 0)[55], 2 << 6 | 2); /* 2.5 */
	path(s, GET, 0xa1, 0xa1, 0);
	assert_int_equal(ask(s), 1);
	path(s, GET, 0xa1, 0xe1, 0);
	assert_int_equal(ask(s), 0);
	assert_int_equal(s->status, NO_RECORDS);
	/* From one to all, and all. */
	path(s, GET_TABLE, 0xa1, 0, 0);
	assert_int_equal(ask(s), 6);
	path(s, GET_TABLE, 0, 0, 0);
	assert_int_equal(ask(s), 36);
	/* By LID. */
	r = path(s, GET, 0, 0, BIT(4) | BIT(5));
	put_be16(r + 40, 14);
	put_be16(r + 42, 12);
	assert_int_equal(ask(s), 1);
	assert_int_equal(get_be64(record(s, 0) + 16), 0xd1);
	put_be16(r + 40, 49151);
	assert_int_equal(ask(s), 0);
	put_be16(r + 40, 65535);
	assert_int_equal(ask(s), 0);
	/* With what it is to be like: a P_Key, a service level. */
	r = path(s, GET, 0xa1, 0xb1, BIT(13) | BIT(15) | BIT(10) | BIT(12));
	put_be16(r + 50, 0x7fff);
	r[53] = 3;
	r[48] = 0x20;
	r[49] = 0x81;
	assert_int_equal(ask(s), 1);
	assert_int_equal(record(s, 0)[53], 3);
	assert_int_equal(record(s, 0)[48], 0x20);
	assert_int_equal(record(s, 0)[49], 0x80);
	put_be16(r + 50, 0x1234);
	assert_int_equal(ask(s), 0);
	sa_free(s);
}

static void selectors_of_paths(void **state)
{
	static const struct {
		uint8_t byte, selector, want, is; /* 0: no path */
	} cases[] = {
		/* MTU: the path has 2048 (4) */
		{ 54, 2, 4, 4 },
		{ 54, 2, 3, 3 },
		{ 54, 2, 5, 0 },
		{ 54, 0, 3, 4 },
		{ 54, 0, 4, 0 },
		{ 54, 1, 4, 3 },
		{ 54, 1, 5, 4 },
		{ 54, 1, 1, 0 },
		{ 54, 3, 1, 4 },
		/* Rate: 100 Gb/s (16) */
		{ 55, 2, 16, 16 },
		{ 55, 2, 3, 3 },
		{ 55, 2, 17, 0 },
		{ 55, 0, 7, 16 },
		{ 55, 0, 16, 0 },
		{ 55, 1, 5, 2 },
		{ 55, 1, 17, 16 },
		{ 55, 1, 2, 0 },
		{ 55, 2, 1, 0 },
		/* Life time: 18 */
		{ 56, 2, 18, 18 },
		{ 56, 2, 17, 0 },
		{ 56, 0, 17, 18 },
		{ 56, 0, 18, 0 },
		{ 56, 1, 19, 18 },
		{ 56, 1, 18, 0 },
		{ 56, 3, 1, 18 },
	};
	struct sa *s = sa_new(text);

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		const unsigned bit = 16 + 2 * (cases[i].byte - 54u);
		uint8_t *r = path(s, GET, 0xa1, 0xb1, BIT(bit) | BIT(bit + 1));

		r[cases[i].byte] =
			(uint8_t)(cases[i].selector << 6 | cases[i].want);
		if (ask(s) != (cases[i].is != 0) ||
		    (cases[i].is &&
		     (record(s, 0)[cases[i].byte] & 0x3f) != cases[i].is))
			fail_msg("case %zu: status 0x%x, %u", i, s->status,
				 record(s, 0)[cases[i].byte] & 0x3f);
	}
	sa_free(s);
}

/* What does not fit is no answer, and costs little. */
static void too_many_paths(void **state)
{
	char *net = malloc(100000), *p = net;
	struct sa *s;

	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		p += sprintf(p, "Switch 200 \"s%u\"\n", i);
		if (i)
			p += sprintf(p, "[200] \"s%u\"[199]\n", i - 1);
		for (unsigned k = 1; k <= 150; k++)
			p += sprintf(p, "[%u] \"h%u.%u\"[1]\n", k, i, k);
	}
	for (unsigned i = 0; i < 600; i++)
		p += sprintf(p, "Ca 1 \"h%u.%u\"\n", i / 150, i % 150 + 1);
	s = sa_new(net);
	free(net);
	request(s, GET_TABLE, 0x11, 0);
	assert_int_equal(ask_from(s, 0x100001), 604);
	path(s, GET_TABLE, 0, 0, 0);
	assert_int_equal(ask_from(s, 0x100001), 0);
	assert_int_equal(s->status, NO_RESOURCES);
	path(s, GET_TABLE, 0x100001, 0, 0);
	assert_int_equal(ask_from(s, 0x100001), 604);
	sa_free(s);
}

/* ---- groups and services ------------------------------------------------- */

#define CREATES (BIT(2) | BIT(6) | BIT(7) | BIT(12) | BIT(13))
#define JOINS (BIT(0) | BIT(1) | BIT(16))

static uint8_t *group(struct sa *s, unsigned method, unsigned n, uint64_t guid,
		      uint64_t mask)
{
	uint8_t *r = request(s, method, 0x38, mask);

	r[0] = 0xff;
	r[1] = 0x12;
	r[15] = (uint8_t)n;
	gid(r + 16, guid);
	put_be32(r + 32, 0x1234);
	put_be16(r + 40, 0xffff);
	r[48] = 1; /* full member */
	return r;
}

static void groups(void **state)
{
	struct sa *s = sa_new(text);
	uint8_t *r;

	(void)state;
	/* IPoIB's is there. */
	request(s, GET_TABLE, 0x38, 0);
	assert_int_equal(ask(s), 1);
	assert_int_equal(get_be16(record(s, 0) + 36), 0xc000);
	assert_int_equal(get_be32(record(s, 0)), 0xff12401b);
	/* Nobody can join what is not there without saying what it is. */
	group(s, SET, 5, 0xa1, JOINS);
	ask(s);
	assert_int_equal(s->status, INSUFFICIENT);
	group(s, SET, 5, 0xa1, JOINS | CREATES);
	assert_int_equal(ask(s), 1);
	assert_int_equal(s->answer[3], 0x81);
	assert_int_equal(get_be16(record(s, 0) + 36), 0xc001);
	assert_int_equal(record(s, 0)[48], 0x21);
	r = group(s, SET, 5, 0xb1, JOINS | BIT(2));
	put_be32(r + 32, 0x9999); /* another Q_Key */
	ask_from(s, 0xb1);
	assert_int_equal(s->status, INVALID);
	group(s, SET, 5, 0xb1, JOINS);
	assert_int_equal(ask_from(s, 0xb1), 1);
	assert_int_equal(get_be32(record(s, 0) + 32), 0x1234);
	/* Only for itself. */
	group(s, SET, 5, 0xc1, JOINS);
	ask_from(s, 0xb1);
	assert_int_equal(s->status, INVALID);
	request(s, GET_TABLE, 0x38, 0);
	assert_int_equal(ask(s), 2);
	put_be64(s->mad + 36, 1); /* with an SM_Key: members */
	assert_int_equal(ask(s), 2);
	assert_int_equal(get_be64(record(s, 1) + 24), 0xb1);
	/* The group ends with its last member. */
	group(s, DELETE, 5, 0xa1, JOINS);
	assert_int_equal(ask(s), 1);
	assert_int_equal(s->answer[3], 0x95);
	ask(s);
	assert_int_equal(s->status, INVALID);
	group(s, DELETE, 5, 0xb1, JOINS);
	assert_int_equal(ask_from(s, 0xb1), 1);
	request(s, GET_TABLE, 0x38, 0);
	assert_int_equal(ask(s), 1);
	sa_free(s);
}

static void groups_without_end(void **state)
{
	struct sa *s = sa_new(text);
	unsigned n = 0;
	uint8_t *r;

	(void)state;
	do {
		r = group(s, SET, 0, 0xa1, JOINS | CREATES);
		put_be16(r + 12, ++n);
		ask(s);
	} while (!s->status && n < 5000);
	assert_int_equal(s->status, NO_RESOURCES);
	assert_int_equal(n, 1024);
	sa_free(s);
}

static void services(void **state)
{
	const uint64_t key = BIT(0) | BIT(1) | BIT(2);
	struct sa *s = sa_new(text);
	uint8_t *r;

	(void)state;
	r = request(s, SET, 0x31, key | BIT(6));
	put_be64(r, 0x1000000000001);
	gid(r + 8, 0xa1);
	put_be16(r + 24, 0xffff);
	strcpy((char *)r + 48, "a service");
	assert_int_equal(ask(s), 1);
	assert_int_equal(get_be32(record(s, 0) + 28), 0xffffffff);
	assert_int_equal(ask(s), 1); /* the same again */
	ask_from(s, 0xb1); /* of somebody else */
	assert_int_equal(s->status, INVALID_GID);
	r = request(s, GET_TABLE, 0x31, BIT(6));
	strcpy((char *)r + 48, "a service");
	assert_int_equal(ask_from(s, 0xb1), 1);
	assert_int_equal(get_be16(s->answer + 44), 22);
	assert_int_equal(get_be64(record(s, 0)), 0x1000000000001);
	strcpy((char *)r + 48, "another");
	assert_int_equal(ask_from(s, 0xb1), 0);
	r = request(s, DELETE, 0x31, key);
	put_be64(r, 0x1000000000001);
	gid(r + 8, 0xa1);
	put_be16(r + 24, 0xffff);
	assert_int_equal(ask(s), 1);
	assert_int_equal(s->answer[3], 0x95);
	ask(s);
	assert_int_equal(s->status, NO_RECORDS);
	request(s, SET, 0x31, BIT(0));
	ask(s);
	assert_int_equal(s->status, INSUFFICIENT);
	sa_free(s);
}

/* Nobody would send Reports: subscribing is refused, and is said to be impossible. */
static void nobody_is_subscribed(void **state)
{
	struct sa *s = sa_new(text);

	(void)state;
	request(s, GET, 0x01, 0);
	ask(s);
	assert_int_equal(get_be16(s->answer + 56 + 2) & 1, 0); /* traps */
	for (unsigned i = 0; i < 2; i++) {
		request(s, i ? GET_TABLE : SET, i ? 0xf3 : 0x03, 0);
		ask(s);
		assert_int_equal(s->status, 0x0c);
		assert_int_equal(s->answer[3], i ? 0x92 : 0x81);
	}
	sa_free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(records_of_nodes),
		cmocka_unit_test(records_of_ports),
		cmocka_unit_test(what_is_not_there),
		cmocka_unit_test(paths),
		cmocka_unit_test(selectors_of_paths),
		cmocka_unit_test(too_many_paths),
		cmocka_unit_test(groups),
		cmocka_unit_test(groups_without_end),
		cmocka_unit_test(services),
		cmocka_unit_test(nobody_is_subscribed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * test_fabric_set.c - what a subnet manager may set of switches and CAs of a text:
 * states of links, LIDs, tables; tables that lead in circles; and what other fabrics
 * of the text are told
 */
#include "unit.h"

#include "base/bytes.h"
#include "fabric/fabric.h"

#define GET 1
#define SET 2
#define SWITCH_INFO 0x12
#define PORT_INFO 0x15
#define PKEY_TABLE 0x16
#define SL_TO_VL 0x17
#define VL_ARBITRATION 0x18
#define LFT 0x19
#define MFT 0x1b
#define SM_INFO 0x20
#define MLNX_PORT_INFO 0xff90
#define BAD_ATTRIBUTE 0x0c
#define BAD_VALUE 0x1c
#define CA 0xa1 /* where requests enter */

/* Three switches in a ring, and two CAs. */
static const char text[] =
	"switchguid=1\nSwitch 4 \"1\" # lid 1\n[1] \"2\"[2]\n[3] \"a\"[1]\n"
	"switchguid=2\nSwitch 4 \"2\" # lid 2\n[1] \"3\"[2]\n[3] \"b\"[1]\n"
	"switchguid=3\nSwitch 4 \"3\" # lid 3\n[1] \"1\"[2]\n"
	"caguid=0xa0\nCa 1 \"a\"\n[1] \"1\"[3] # lid 10\n"
	"caguid=0xb0\nCa 1 \"b\"\n[1] \"2\"[3] # lid 11\n";

static struct fabric *make(void)
{
	struct fabric *f = fabric_new();
	char why[256] = "";

	if (fabric_read(f, "net", text, strlen(text), why, sizeof(why)))
		fail_msg("%s", why);
	return f;
}

/* What is told of Sets, when smp() is called. */
static const struct fabric_env *env;

/* By LID; data is 64 bytes, and the answer's afterwards. Its status, or -1. */
static int smp(struct fabric *f, unsigned lid, unsigned method, unsigned attr,
	       uint32_t mod, uint8_t *data)
{
	uint8_t mad[256] = { 1, 1, 1, (uint8_t)method };
	uint8_t *answer;
	int status;

	put_be16(mad + 16, attr);
	put_be32(mad + 20, mod);
	memcpy(mad + 64, data, 64);
	if (fabric_request(f, env, CA, (uint16_t)lid, 0, mad, 256,
			   (void **)&answer, NULL) != 256)
		return -1;
	memcpy(data, answer + 64, 64);
	status = get_be16(answer + 4);
	free(answer);
	return status;
}

static int set_state(struct fabric *f, unsigned lid, unsigned port,
		     unsigned state)
{
	uint8_t d[64] = { 0 };

	if (smp(f, lid, GET, PORT_INFO, port, d))
		return -1;
	d[32] = (uint8_t)((d[32] & 0xf0) | state);
	d[33] &= 0x0f; /* no change */
	return smp(f, lid, SET, PORT_INFO, port, d);
}

static unsigned state_of(struct fabric *f, unsigned lid, unsigned port)
{
	uint8_t d[64] = { 0 };

	assert_int_equal(smp(f, lid, GET, PORT_INFO, port, d), 0);
	return d[32] & 0xf;
}

static void links_come_up_in_order(void **state)
{
	struct fabric *f = make();

	(void)state;
	/* Down: both ends begin anew. LIDs do not lead there meanwhile. */
	assert_int_equal(set_state(f, 1, 1, 1), 0);
	assert_int_equal(state_of(f, 1, 1), 2);
	assert_int_equal(state_of(f, 1, 3), 4);
	assert_int_equal(set_state(f, 2, 2, 0), -1);
	assert_int_equal(set_state(f, 1, 1, 4), BAD_VALUE); /* not by two */
	assert_int_equal(set_state(f, 1, 1, 3), 0);
	assert_int_equal(set_state(f, 1, 1, 4), 0);
	assert_int_equal(state_of(f, 1, 1), 4);
	assert_int_equal(set_state(f, 1, 1, 2), BAD_VALUE);
	assert_int_equal(set_state(f, 1, 1, 5), BAD_VALUE);
	/* No cable, no state; nor has port 0 one to set. */
	assert_int_equal(set_state(f, 1, 4, 1), 0);
	assert_int_equal(set_state(f, 1, 4, 3), BAD_VALUE);
	assert_int_equal(set_state(f, 1, 0, 1), BAD_VALUE);
	assert_int_equal(set_state(f, 1, 0, 4), 0);
	fabric_free(f);
}

static int set_phys(struct fabric *f, unsigned lid, unsigned port,
		    unsigned phys)
{
	uint8_t d[64] = { 0 };

	if (smp(f, lid, GET, PORT_INFO, port, d))
		return -1;
	d[32] &= 0xf0; /* no change, as ibportstate(8) has it */
	d[33] = (uint8_t)((d[33] & 0x0f) | phys << 4);
	return smp(f, lid, SET, PORT_INFO, port, d);
}

static unsigned phys_of(struct fabric *f, unsigned lid, unsigned port)
{
	uint8_t d[64] = { 0 };

	assert_int_equal(smp(f, lid, GET, PORT_INFO, port, d), 0);
	return d[33] >> 4;
}

/* The link between switches 2 and 3: down as long as one end is disabled. */
static void ports_are_disabled_and_enabled(void **state)
{
	struct fabric *f = make();

	(void)state;
	assert_int_equal(set_phys(f, 2, 1, 3), 0);
	assert_int_equal(state_of(f, 2, 1), 1);
	assert_int_equal(phys_of(f, 2, 1), 3);
	assert_int_equal(state_of(f, 3, 2), 1);
	assert_int_equal(phys_of(f, 3, 2), 2);
	/* Neither the other end, nor Down without a physical state, enables it. */
	assert_int_equal(set_phys(f, 3, 2, 2), 0);
	assert_int_equal(set_state(f, 3, 2, 1), 0);
	assert_int_equal(set_state(f, 2, 1, 1), 0);
	assert_int_equal(phys_of(f, 2, 1), 3);
	assert_int_equal(phys_of(f, 3, 2), 2);
	assert_int_equal(set_phys(f, 3, 2, 3), 0);
	assert_int_equal(set_phys(f, 2, 1, 2), 0);
	assert_int_equal(phys_of(f, 2, 1), 2);
	assert_int_equal(phys_of(f, 3, 2), 3);
	assert_int_equal(set_phys(f, 3, 2, 2), 0);
	assert_int_equal(state_of(f, 3, 2), 2);
	assert_int_equal(phys_of(f, 3, 2), 5);
	assert_int_equal(phys_of(f, 2, 1), 5);
	assert_int_equal(set_phys(f, 2, 1, 5), 0); /* as it is */
	assert_int_equal(set_phys(f, 2, 1, 6), BAD_VALUE);
	assert_int_equal(set_phys(f, 2, 4, 3), 0); /* no cable */
	assert_int_equal(phys_of(f, 2, 4), 3);
	assert_int_equal(set_phys(f, 2, 0, 3), 0); /* and one that has none */
	assert_int_equal(phys_of(f, 2, 0), 5);
	fabric_free(f);
}

static void lids_are_given(void **state)
{
	struct fabric *f = make();
	uint8_t d[64] = { 0 };

	(void)state;
	assert_int_equal(smp(f, 11, GET, PORT_INFO, 0, d), 0);
	d[32] &= 0xf0;
	d[33] &= 0x0f;
	put_be16(d + 16, 10); /* the other CA's */
	assert_int_equal(smp(f, 11, SET, PORT_INFO, 0, d), BAD_VALUE);
	put_be16(d + 16, 20);
	put_be16(d + 18, 3); /* the subnet manager's */
	d[34] |= 1; /* LMC */
	assert_int_equal(smp(f, 11, SET, PORT_INFO, 0, d), 0);
	assert_int_equal(smp(f, 11, GET, PORT_INFO, 0, d), -1);
	assert_int_equal(smp(f, 21, GET, PORT_INFO, 0, d), 0);
	assert_int_equal(get_be16(d + 16), 20);
	assert_int_equal(get_be16(d + 18), 3);
	/* A neighbour's MTU and virtual lanes beyond what the port can do. */
	d[32] &= 0xf0;
	d[33] &= 0x0f;
	d[36] = 5 << 4;
	assert_int_equal(smp(f, 20, SET, PORT_INFO, 0, d), BAD_VALUE);
	d[36] = 0;
	d[43] = 5 << 4;
	assert_int_equal(smp(f, 20, SET, PORT_INFO, 0, d), BAD_VALUE);
	d[43] = 1 << 4;
	assert_int_equal(smp(f, 20, SET, PORT_INFO, 0, d), 0);
	assert_int_equal(d[43] >> 4, 1);
	assert_int_equal(d[36] >> 4, 4); /* 0 left it as it was */
	fabric_free(f);
}

static void circles_end(void **state)
{
	struct fabric *f = make();
	uint8_t d[64] = { 0 };

	(void)state;
	/* LID 11 from each switch to the next. */
	for (unsigned lid = 1; lid <= 3; lid++) {
		assert_int_equal(smp(f, lid, GET, LFT, 0, d), 0);
		d[11] = 1;
		assert_int_equal(smp(f, lid, SET, LFT, 0, d), 0);
		assert_int_equal(d[11], 1);
	}
	assert_int_equal(smp(f, 11, GET, SWITCH_INFO, 0, d), -1);
	/* Back to where it leads, to ports that are not there. */
	for (unsigned port = 0; port < 256; port++) {
		assert_int_equal(smp(f, 2, GET, LFT, 0, d), 0);
		d[11] = (uint8_t)port;
		assert_int_equal(smp(f, 2, SET, LFT, 0, d), 0);
		assert_int_equal(smp(f, 11, GET, PORT_INFO, 0, d),
				 port == 3 ? 0 : -1);
	}
	assert_int_equal(smp(f, 2, GET, LFT, 768, d), BAD_VALUE);
	assert_int_equal(smp(f, 2, SET, LFT, 0xffffffff, d), BAD_VALUE);
	fabric_free(f);
}

/* Each table: a Get, a Set, what then is there, and nothing beyond. */
static void tables_are_kept(void **state)
{
	static const struct {
		unsigned attr;
		uint32_t mod, other, beyond;
		unsigned len;
		uint8_t first[2];
	} tables[] = {
		{ PKEY_TABLE, 1 << 16, 2 << 16, 2, 64, { 0xff, 0xff } },
		{ PKEY_TABLE, 1 << 16 | 1, 0, 5 << 16, 64, { 0, 0 } },
		{ SL_TO_VL, 3 << 8 | 1, 1 << 8 | 3, 5, 8, { 0x01, 0x23 } },
		{ SL_TO_VL, 4 << 8, 0, 5 << 8, 8, { 0x01, 0x23 } },
		{ VL_ARBITRATION,
		  1 << 16 | 1,
		  3 << 16 | 1,
		  2 << 16,
		  16,
		  { 0, 0 } },
		{ VL_ARBITRATION,
		  3 << 16 | 4,
		  3 << 16 | 3,
		  3 << 16 | 5,
		  16,
		  { 0, 4 } },
		{ MFT, 31, 30, 32, 64, { 0, 0 } },
		{ MFT, 15u << 28 | 1, 14u << 28 | 1, 0x1ff, 64, { 0, 0 } },
	};
	struct fabric *f = make();

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(tables); i++) {
		uint8_t d[64] = { 0 }, before[64] = { 0 };

		assert_int_equal(
			smp(f, 2, GET, tables[i].attr, tables[i].other, before),
			0);
		assert_int_equal(
			smp(f, 2, GET, tables[i].attr, tables[i].mod, d), 0);
		assert_memory_equal(d, tables[i].first, 2);
		memset(d, 0x5a, 64);
		assert_int_equal(
			smp(f, 2, SET, tables[i].attr, tables[i].mod, d), 0);
		memset(d, 0, 64);
		assert_int_equal(
			smp(f, 2, GET, tables[i].attr, tables[i].mod, d), 0);
		for (unsigned k = 0; k < 64; k++)
			assert_int_equal(d[k], k < tables[i].len ? 0x5a : 0);
		assert_int_equal(
			smp(f, 2, GET, tables[i].attr, tables[i].other, d), 0);
		assert_memory_equal(d, before, 64);
		assert_int_equal(
			smp(f, 2, SET, tables[i].attr, tables[i].beyond, d),
			BAD_VALUE);
	}
	fabric_free(f);
}

static void a_switch_is_set(void **state)
{
	struct fabric *f = make();
	uint8_t d[64] = { 0 };

	(void)state;
	assert_int_equal(smp(f, 3, GET, SWITCH_INFO, 0, d), 0);
	assert_int_equal(get_be16(d + 6), 11); /* top */
	put_be16(d, 1); /* capacities are not for setting */
	put_be16(d + 6, 40);
	d[11] = 9 << 3;
	assert_int_equal(smp(f, 3, SET, SWITCH_INFO, 0, d), 0);
	assert_int_equal(get_be16(d), 0xc000);
	assert_int_equal(get_be16(d + 6), 40);
	assert_int_equal(d[11] >> 3, 9);
	fabric_free(f);
}

/* A vendor's attribute, of that one's devices: nothing to enable. */
static void mellanox_has_no_fdr10(void **state)
{
	static const char more[] = "vendid=0x2c9\nswitchguid=9\nSwitch 2 \"9\" "
				   "# lid 9\n[1] \"1\"[4]\n";
	char all[sizeof(text) + sizeof(more)], why[256] = "";
	struct fabric *f = fabric_new();
	uint8_t d[64] = { [11] = 1 };

	(void)state;
	snprintf(all, sizeof(all), "%s%s", text, more);
	if (fabric_read(f, "net", all, strlen(all), why, sizeof(why)))
		fail_msg("%s", why);
	assert_int_equal(smp(f, 9, SET, MLNX_PORT_INFO, 1, d), BAD_VALUE);
	assert_int_equal(smp(f, 9, GET, MLNX_PORT_INFO, 1, d), 0);
	for (unsigned i = 0; i < 64; i++)
		assert_int_equal(d[i], 0);
	assert_int_equal(smp(f, 9, SET, MLNX_PORT_INFO, 2, d), 0);
	assert_int_equal(smp(f, 9, GET, MLNX_PORT_INFO, 3, d), BAD_VALUE);
	assert_int_equal(smp(f, 1, GET, MLNX_PORT_INFO, 1, d), BAD_ATTRIBUTE);
	fabric_free(f);
}

/* All of a Set, or nothing: also where its LID could be had. */
static void a_set_that_is_refused_changes_nothing(void **state)
{
	struct fabric *f = make();
	uint8_t d[64] = { 0 };

	(void)state;
	assert_int_equal(smp(f, 11, GET, PORT_INFO, 0, d), 0);
	put_be16(d + 16, 20);
	d[32] = (uint8_t)((d[32] & 0xf0) | 2); /* nobody sets Initialize */
	assert_int_equal(smp(f, 11, SET, PORT_INFO, 0, d), BAD_VALUE);
	assert_int_equal(smp(f, 20, GET, PORT_INFO, 0, d), -1);
	assert_int_equal(smp(f, 11, GET, PORT_INFO, 0, d), 0);
	fabric_free(f);
}

/* Where it says it is, subnet administration is asked, and all ports know. */
static void the_subnet_manager_is_where_it_says(void **state)
{
	struct fabric *f = make();
	uint8_t d[64] = { 0 };

	(void)state;
	assert_int_equal(smp(f, 1, GET, SM_INFO, 0, d), 0);
	assert_int_equal(smp(f, 10, GET, SM_INFO, 0, d), BAD_ATTRIBUTE);
	assert_int_equal(smp(f, 10, GET, PORT_INFO, 0, d), 0);
	assert_int_equal(get_be16(d + 18), 1);
	d[32] &= 0xf0;
	d[33] &= 0x0f;
	put_be16(d + 16, 30); /* with a LID of its own choice */
	put_be16(d + 18, 30);
	assert_int_equal(smp(f, 10, SET, PORT_INFO, 0, d), 0);
	assert_int_equal(smp(f, 30, GET, SM_INFO, 0, d), 0);
	assert_int_equal(get_be64(d), CA);
	assert_int_equal(d[20] & 0xf, 3); /* master, which takes nothing over */
	for (uint32_t mod = 0; mod < 7; mod++)
		assert_int_equal(smp(f, 30, SET, SM_INFO, mod, d), BAD_VALUE);
	assert_int_equal(smp(f, 1, GET, SM_INFO, 0, d), BAD_ATTRIBUTE);
	assert_int_equal(smp(f, 11, GET, PORT_INFO, 0, d), 0);
	assert_int_equal(get_be16(d + 18), 30);
	/* Nobody has it: it is kept, and the subnet manager stays. */
	d[32] &= 0xf0;
	d[33] &= 0x0f;
	put_be16(d + 18, 99);
	assert_int_equal(smp(f, 11, SET, PORT_INFO, 0, d), 0);
	assert_int_equal(get_be16(d + 18), 99);
	assert_int_equal(smp(f, 30, GET, SM_INFO, 0, d), 0);
	fabric_free(f);
}

static struct {
	struct fabric_set set[16];
	unsigned n;
} told;

static void tell(void *arg, const struct fabric_set *s)
{
	assert_ptr_equal(arg, &told);
	assert_true(told.n < ARRAY_SIZE(told.set));
	told.set[told.n++] = *s;
}

/* Of links, LIDs and tables; what changes nothing, or is refused, is no news. */
static void another_fabric_makes_the_same_changes(void **state)
{
	static const struct fabric_env tells = { .set = tell, .arg = &told };
	struct fabric *f = make(), *other = make();
	struct fabric_set odd;
	uint8_t d[64] = { 0 }, e[64] = { 0 };

	(void)state;
	told.n = 0;
	env = &tells;
	assert_int_equal(smp(f, 3, GET, LFT, 0, d), 0);
	assert_int_equal(smp(f, 3, SET, LFT, 0, d), 0);
	assert_int_equal(set_state(f, 2, 1, 2), BAD_VALUE);
	assert_int_equal(told.n, 0);
	d[11] = 4;
	assert_int_equal(smp(f, 3, SET, LFT, 0, d), 0);
	assert_int_equal(told.n, 1);
	assert_int_equal(smp(f, 11, GET, PORT_INFO, 0, d), 0);
	d[32] &= 0xf0;
	d[33] &= 0x0f;
	put_be16(d + 16, 40);
	assert_int_equal(smp(f, 11, SET, PORT_INFO, 0, d), 0);
	assert_int_equal(told.n, 2);
	for (unsigned s = 1; s <= 4; s++)
		if (s != 2)
			assert_int_equal(set_state(f, 2, 1, s), 0);
	assert_int_equal(told.n, 5);
	env = NULL;

	for (unsigned i = 0; i < told.n; i++)
		fabric_apply(other, &told.set[i]);
	assert_int_equal(state_of(other, 2, 1), 4);
	assert_int_equal(state_of(other, 3, 2), 2); /* its other end */
	assert_int_equal(smp(other, 11, GET, PORT_INFO, 0, d), -1);
	assert_int_equal(smp(f, 40, GET, PORT_INFO, 0, d), 0);
	assert_int_equal(smp(other, 40, GET, PORT_INFO, 0, e), 0);
	assert_memory_equal(d, e, 64);
	assert_int_equal(smp(other, 3, GET, LFT, 0, e), 0);
	assert_int_equal(e[11], 4);

	/* What makes no sense, since somebody else may have written it. */
	odd = told.set[1];
	odd.node_guid = 0x77;
	fabric_apply(other, &odd);
	odd = told.set[1];
	odd.port = 9;
	fabric_apply(other, &odd);
	for (unsigned attr = 0; attr < 0x40; attr++) {
		odd = told.set[0];
		odd.attr = (uint16_t)attr;
		odd.mod = UINT32_MAX;
		fabric_apply(other, &odd);
	}
	assert_int_equal(smp(other, 40, GET, PORT_INFO, 0, e), 0);
	assert_memory_equal(d, e, 64);
	fabric_free(f);
	fabric_free(other);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(links_come_up_in_order),
		cmocka_unit_test(ports_are_disabled_and_enabled),
		cmocka_unit_test(lids_are_given),
		cmocka_unit_test(circles_end),
		cmocka_unit_test(tables_are_kept),
		cmocka_unit_test(a_switch_is_set),
		cmocka_unit_test(mellanox_has_no_fdr10),
		cmocka_unit_test(a_set_that_is_refused_changes_nothing),
		cmocka_unit_test(the_subnet_manager_is_where_it_says),
		cmocka_unit_test(another_fabric_makes_the_same_changes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

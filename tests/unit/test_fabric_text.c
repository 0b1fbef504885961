/*
 * test_fabric_text.c - fabrics as ibnetdiscover prints them: what becomes of
 * them, and what is said of texts that are wrong
 */
#include "unit.h"

#include "base/bytes.h"
#include "fabric/fabric.h"

static const char two_switches[] =
	"#\n# Topology file: generated on Sat Nov 28 13:33:12 2026\n#\n"
	"vendid=0x2c9\ndevid=0xcb20\nsysimgguid=0x2c90300000003\n"
	"switchguid=0x2c90300000000(2c90300000000)\n"
	"Switch\t36 \"S-0002c90300000000\"\t\t# \"leaf, one\" enhanced port 0 "
	"lid 2 lmc 0\n"
	"[1]\t\"H-0002c90300001000\"[1](2c90300001001) \t\t# \"node1 HCA-1\" "
	"lid 3 4xEDR\n"
	"[36]\t\"S-0002c90300000100\"[35]\t\t# \"leaf, two\" lid 9 4xHDR\n"
	"\n"
	"vendid=0x2c9\ndevid=0xcb20\nsysimgguid=0x2c90300000103\n"
	"switchguid=0x2c90300000100(2c90300000100)\n"
	"Switch\t36 \"S-0002c90300000100\"\t\t# \"leaf, two\" base port 0 lid "
	"9 lmc 0\n"
	"[35]\t\"S-0002c90300000000\"[36]\t\t# \"leaf, one\" lid 2 4xHDR\n"
	"[2][ext 17]\t\"H-0002c90300001004\"[2](2c90300001006) \t\t# \"node2 "
	"HCA-1\" lid 12 1xFDR\n"
	"\n"
	"vendid=0x2c9\ndevid=0x1011\nsysimgguid=0x2c90300001000\n"
	"caguid=0x2c90300001000\n"
	"Ca\t1 \"H-0002c90300001000\"\t\t# \"node1 HCA-1\"\n"
	"[1](2c90300001001) \t\"S-0002c90300000000\"[1]\t\t# lid 3 lmc 0 "
	"\"leaf, one\" lid 2 4xEDR\n"
	"\n"
	"caguid=0x2c90300001004\n"
	"Ca\t2 \"H-0002c90300001004\"\t\t# \"node2 HCA-1\"\n"
	"[2](2c90300001006) \t\"S-0002c90300000100\"[2]\t\t# lid 12 lmc 1 "
	"\"leaf, two\" lid 9 1xFDR\n";

static struct fabric *read_text(const char *text)
{
	struct fabric *f = fabric_new();
	char why[512] = "";

	if (fabric_read(f, "net", text, strlen(text), why, sizeof(why)))
		fail_msg("%s", why);
	return f;
}

/* Get of an attribute by LID; the answer's data, or NULL. */
static const uint8_t *get(struct fabric *f, uint64_t at, unsigned lid,
			  unsigned attr, uint32_t mod)
{
	static uint8_t data[64];
	uint8_t mad[256] = { 1, 1, 1, 1 };
	void *answer;
	ssize_t len;

	put_be16(mad + 16, attr);
	put_be32(mad + 20, mod);
	len = fabric_request(f, NULL, at, (uint16_t)lid, 0, mad, 256, &answer,
			     NULL);
	if (len != 256)
		return NULL;
	assert_int_equal(get_be16((uint8_t *)answer + 4), 0);
	memcpy(data, (uint8_t *)answer + 64, 64);
	free(answer);
	return data;
}

static void what_it_says(void **state)
{
	struct fabric *f = read_text(two_switches);
	struct fabric_port p;
	const uint8_t *d;

	(void)state;
	assert_int_equal(fabric_port_named(f, "node2 HCA-1", 0, &p), 0);
	assert_int_equal(p.num, 2);
	assert_int_equal(p.lid, 12);
	assert_int_equal(p.lmc, 1);
	assert_int_equal(p.sm_lid, 2); /* the first switch */
	assert_int_equal(p.node_guid, 0x2c90300001004);
	assert_int_equal(p.port_guid, 0x2c90300001006);
	assert_int_equal(p.width, 1);
	assert_int_equal(p.speed, 4);
	assert_int_equal(p.speed_ext, 1);
	assert_int_equal(p.state, 4);
	assert_int_equal(fabric_port_named(f, "H-0002c90300001000", 1, &p), 0);
	assert_int_equal(p.lid, 3);
	assert_int_equal(fabric_port_named(f, "H-0002c90300001000", 2, &p), -1);
	assert_int_equal(fabric_port_named(f, "node", 0, &p), -1);

	d = get(f, 0x2c90300001001, 9, 0x11, 0);
	assert_int_equal(d[2], 2);
	assert_int_equal(d[3], 36);
	assert_int_equal(get_be64(d + 4), 0x2c90300000103);
	assert_int_equal(get_be16(d + 30), 0xcb20);
	assert_int_equal(get_be24(d + 37), 0x2c9);
	assert_string_equal((const char *)get(f, 0x2c90300001001, 13, 0x10, 0),
			    "node2 HCA-1");
	assert_int_equal(get(f, p.port_guid, 2, 0x12, 0)[16] & 8, 8);
	assert_int_equal(get(f, p.port_guid, 9, 0x12, 0)[16] & 8, 0);
	d = get(f, p.port_guid, 9, 0x15, 35);
	assert_int_equal(d[31], 2);
	assert_int_equal(d[62] >> 4, 4); /* HDR */
	d = get(f, p.port_guid, 9, 0x15, 34);
	assert_int_equal(d[32] & 15, 1); /* no cable */
	/* The tables lead along the links. */
	d = get(f, p.port_guid, 2, 0x19, 0);
	assert_int_equal(d[2], 0);
	assert_int_equal(d[3], 1);
	assert_int_equal(d[9], 36);
	assert_int_equal(d[12], 36);
	assert_int_equal(d[13], 36);
	assert_int_equal(d[14], 0xff);
	d = get(f, p.port_guid, 9, 0x19, 0);
	assert_int_equal(d[3], 35);
	assert_int_equal(d[13], 2);
	fabric_free(f);
}

/* A file of ibsim says neither GUIDs nor LIDs; links at one end only. */
static void what_it_leaves_out(void **state)
{
	struct fabric *f = read_text("Switch 8 \"Switch1\"\n"
				     "[1]\t\"Hca1\"[1]\n"
				     "[4]\t\"Hca2\"[2]\n"
				     "\n"
				     "Hca\t2 \"Hca1\"\n"
				     "[1]\t\"Switch1\"[1]\n"
				     "Hca 2 \"Hca2\"");
	struct fabric_port p;

	(void)state;
	assert_int_equal(fabric_port_named(f, NULL, 0, &p), 0);
	assert_int_equal(p.type, FABRIC_SWITCH);
	assert_int_equal(p.node_guid, 0x200000);
	assert_int_equal(p.lid, 1);
	assert_int_equal(fabric_port_named(f, "Hca1", 0, &p), 0);
	assert_int_equal(p.port_guid, 0x100001);
	assert_int_equal(p.lid, 2);
	assert_string_equal(p.desc, "Hca1");
	assert_int_equal(fabric_port_named(f, "Hca2", 0, &p), 0);
	assert_int_equal(p.num, 2);
	assert_int_equal(p.port_guid, 0x100005);
	assert_int_equal(p.lid, 3);
	assert_non_null(get(f, 0x100001, 3, 0x11, 0));
	fabric_free(f);
}

/* ---- with hosts ---------------------------------------------------------- */

static void add(struct fabric *f, uint64_t guid, unsigned lid, const char *says)
{
	struct fabric_host h = { .node_guid = guid,
				 .port_guid = guid,
				 .switch_guid = 0x99,
				 .sm_lid = 255,
				 .lid = (uint16_t)lid,
				 .desc = "here" };
	char why[256] = "";

	assert_int_equal(fabric_add_host(f, &h, why, sizeof(why)),
			 says ? -1 : 0);
	if (says && !strstr(why, says))
		fail_msg("\"%s\", not \"%s\"", why, says);
}

/* The virtual switch is linked with the text. */
static void hosts_beside_it(void **state)
{
	struct fabric *f = read_text(two_switches);
	struct fabric_port p;

	(void)state;
	add(f, 0x50, 50, NULL);
	add(f, 0x51, 50, "LID 50 of host here is also that of here");
	assert_string_equal((const char *)get(f, 0x50, 12, 0x10, 0),
			    "node2 HCA-1");
	assert_string_equal((const char *)get(f, 0x2c90300001006, 50, 0x10, 0),
			    "here");
	assert_non_null(get(f, 0x2c90300001006, 255, 0x20, 0));
	/* Its LID is what it is; a node of the text gets another. */
	add(f, 0x52, 3, NULL);
	assert_int_equal(fabric_port_named(f, "node1 HCA-1", 0, &p), 0);
	assert_int_equal(p.lid, 1);
	assert_int_equal(p.sm_lid, 255);
	assert_string_equal((const char *)get(f, 0x50, 3, 0x10, 0), "here");
	assert_string_equal((const char *)get(f, 0x52, 1, 0x10, 0),
			    "node1 HCA-1");
	fabric_free(f);
}

/* A host that the text has is where that says, with a LID of its own. */
static void a_host_in_it(void **state)
{
	struct fabric *f = read_text(
		"switchguid=0x99(99)\n"
		"Switch 4 \"S-99\" # \"softhca virtual switch\" lid 255\n"
		"[2] \"S-77\"[1]\n"
		"switchguid=0x77(77)\n"
		"Switch 4 \"S-77\" # \"far\" lid 7\n"
		"[3] \"H-50\"[1](50) # \"was here\" lid 3 4xSDR\n"
		"caguid=0x50\n"
		"Ca 1 \"H-50\" # \"was here\"\n"
		"[1](50) \"S-77\"[3] # lid 3 lmc 0 \"far\" lid 7 4xSDR\n");

	(void)state;
	add(f, 0x50, 4, NULL);
	add(f, 0x51, 5, NULL);
	assert_null(get(f, 0x51, 3, 0x10, 0));
	assert_string_equal((const char *)get(f, 0x51, 4, 0x10, 0), "here");
	assert_int_equal(get(f, 0x51, 7, 0x19, 0)[4], 3);
	assert_int_equal(get(f, 0x51, 7, 0x19, 0)[5], 1);
	assert_int_equal(get(f, 0x51, 255, 0x19, 0)[5], 1);
	fabric_free(f);
}

/* ---- wrong --------------------------------------------------------------- */

static void wrong_texts(void **state)
{
#define SWITCH "Switch 4 \"A\" # \"a\" lid 1\n"
	static const struct {
		const char *text, *says;
	} wrong[] = {
		{ "", "net: no node is in it" },
		{ "# nothing\n\n", "net: no node is in it" },
		{ "Swich 4 \"A\"\n", "net:1: Swich: unknown; a line begins" },
		{ "\n\nguid=7\n", "net:3: guid: unknown; vendid" },
		{ "vendid=0x1000000\n", "net:1: vendid=0x1000000: too large" },
		{ "devid=65536\n", "net:1: devid=65536: too large" },
		{ "caguid=xyz\n", "net:1: caguid=xyz: not a number" },
		{ "caguid=0x12345678901234567\n", "not a number" },
		{ "caguid=\n", "not a number" },
		{ "switchguid=0x1(g)\n", "parentheses" },
		{ "switchguid=0x1(1\n", "parentheses" },
		{ "Switch 0 \"A\"\n", "0 ports: a node has 1 to 254" },
		{ "Switch 255 \"A\"\n", "\"255\": a number of ports" },
		{ "Switch \"A\"\n", "\"\": a number of ports" },
		{ "Switch 4 A\n", "net:1: the ID of the node, in quotes" },
		{ "Switch 4 \"A\n", "the ID of the node, in quotes" },
		{ "Switch 4 \"\"\n", "the ID of the node, in quotes" },
		{ "Switch 4 \"A\" x\n", "\"x\": a comment (#) or nothing" },
		{ "Switch 4 \"A\" # \"a\n", "a quote that does not end" },
		{ "Switch 4 \"A\" # \"a\" lid 49152\n",
		  "lid 49152: a number up to 49151" },
		{ "Switch 4 \"A\" # \"a\" lid\n", "lid : a number" },
		{ "Switch 4 \"A\" # \"a\" lid 1 lmc 8\n", "lmc 8: a number" },
		{ "Switch 4 \"A\" # \"a\" lid 49151 lmc 1\n",
		  "LID 49151 with LMC 1 goes beyond" },
		{ SWITCH SWITCH, "net:2: another node is called \"A\"" },
		{ SWITCH "Ca 1 \"B\"\n[1] \"A\"[1] # lid 1\n",
		  "net:3: LID 1 is also that of \"a\" (A)" },
		{ "switchguid=5\nSwitch 4 \"A\"\nswitchguid=5\nSwitch 4 "
		  "\"B\"\n",
		  "net:4: GUID 0x5: another node has it" },
		{ SWITCH "Ca 1 \"B\"\n[1](77) \"A\"[1]\n"
			 "Ca 1 \"C\"\n[1](77) \"A\"[2]\n",
		  "net:5: [1]: another port has its GUID" },
		{ "[1] \"A\"[1]\n", "net:1: a port before the first node" },
		{ SWITCH "[5] \"B\"[1]\n", "net:2: [5]: \"A\" has 4 ports" },
		{ SWITCH "[0] \"B\"[1]\n", "[0]: ports are 1 to 254" },
		{ SWITCH "[300] \"B\"[1]\n", "[300]: ports are 1 to 254" },
		{ SWITCH "[1 \"B\"[1]\n", "net:2: " },
		{ SWITCH "[1] B[1]\n", "the ID of the other end, in quotes" },
		{ SWITCH "[1] \"B\"\n", "a port, as [1], belongs here" },
		{ SWITCH "[1] \"B\"[1](zz)\n", "parentheses" },
		{ SWITCH "[1] \"B\"[1] 4xEDR\n", "a comment (#)" },
		{ SWITCH "[1] \"B\"[1]\n", "net:2: no node is called \"B\"" },
		{ SWITCH "[1] \"A\"[9]\n", "net:2: [9]: \"A\" has 4 ports" },
		{ SWITCH "[1] \"A\"[1]\n", "a link from a port to itself" },
		{ SWITCH "[1] \"A\"[2]\n[3] \"A\"[2]\n",
		  "net:3: port 2 of \"A\" is already linked to port 1 of "
		  "\"A\"" },
		{ SWITCH "[1] \"A\"[2]\n[2] \"A\"[3]\n",
		  "net:3: port 2 of \"A\" is already linked to port 1 of "
		  "\"A\"" },
		{ SWITCH "[1] \"A\"[2] # 3xEDR\n", "3xEDR: no width" },
		{ SWITCH "[1] \"A\"[2] # 4xFAST\n", "4xFAST: no width" },
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
		struct fabric *f = fabric_new();
		char why[512] = "";

		if (!fabric_read(f, "net", wrong[i].text, strlen(wrong[i].text),
				 why, sizeof(why)))
			fail_msg("accepted: %s", wrong[i].text);
		if (!strstr(why, wrong[i].says))
			fail_msg("\"%s\", not \"%s\"", why, wrong[i].says);
		fabric_free(f);
	}
}

/* A message that does not fit is cut, and bytes that are no text are refused. */
static void hostile_texts(void **state)
{
	struct fabric *f = fabric_new();
	char why[16], text[2000];

	(void)state;
	memset(text, 'x', sizeof(text));
	assert_int_equal(fabric_read(f, "a long name of a file", text,
				     sizeof(text), why, sizeof(why)),
			 -1);
	assert_string_equal(why, "a long name of ");
	fabric_free(f);
	f = fabric_new();
	assert_int_equal(fabric_read(f, "n", "Switch 4 \"A\" # \0 lid 1", 22,
				     why, sizeof(why)),
			 -1);
	assert_string_equal(why, "n:1: a zero byt");
	fabric_free(f);
}

/* What a text costs is bounded, however little it takes to say. */
static void endless_text(void **state)
{
	struct fabric *f = fabric_new();
	char why[200], *text = malloc(200000), *p = text;

	(void)state;
	for (unsigned i = 0; i < 5000; i++)
		p += sprintf(p, "Ca 254 \"%u\"\n", i);
	assert_int_equal(
		fabric_read(f, "n", text, (size_t)(p - text), why, sizeof(why)),
		-1);
	assert_string_equal(why,
			    "n:4113: a fabric has at most 49152 nodes, 4096 "
			    "switches and 1048576 ports");
	fabric_free(f);
	f = fabric_new();
	p = text;
	for (unsigned i = 0; i < 5000; i++)
		p += sprintf(p, "Switch 1 \"%u\"\n", i);
	assert_int_equal(
		fabric_read(f, "n", text, (size_t)(p - text), why, sizeof(why)),
		-1);
	assert_non_null(strstr(why, "n:4097: a fabric has at most"));
	fabric_free(f);
	free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_it_says),
		cmocka_unit_test(what_it_leaves_out),
		cmocka_unit_test(hosts_beside_it),
		cmocka_unit_test(a_host_in_it),
		cmocka_unit_test(wrong_texts),
		cmocka_unit_test(hostile_texts),
		cmocka_unit_test(endless_text),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

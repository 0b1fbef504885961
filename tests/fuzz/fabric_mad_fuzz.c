/*
 * fabric_mad_fuzz.c - management datagrams of any bytes to a fabric of a text and
 * of hosts: an answer is one to its request, the fabric stays one, and a request
 * costs no more than the fabric is large; another fabric of the text that is told of
 * Sets is like it, and what it is told of any bytes does it no harm
 */
#include "fuzz.h"

#include "input.h"

#include "base/bytes.h"
#include "fabric/fabric.h"

/* A ring of three switches: routes and tables can lead in circles. */
static const char text[] =
	"Switch 5 \"s1\" # \"s1\" lid 1\n[1] \"s2\"[2]\n[3] \"c1\"[1]\n"
	"Switch 5 \"s2\" # \"s2\" lid 2\n[1] \"s3\"[2]\n[3] \"c2\"[1]\n"
	"Switch 5 \"s3\" # \"s3\" lid 3\n[1] \"s1\"[2]\n[3] \"c2\"[2]\n"
	"Ca 1 \"c1\"\n[1] \"s1\"[3] # lid 4 lmc 1\n"
	"Ca 2 \"c2\"\n[1] \"s2\"[3] # lid 6\n[2] \"s3\"[3] # lid 7\n";

static struct fabric *make(void)
{
	struct fabric *f = fabric_new();
	struct fabric_host h = { .switch_guid = 0x999, .sm_lid = 255 };
	char why[100];

	FUZZ_CHECK(f && !fabric_read(f, "n", text, sizeof(text) - 1, why,
				     sizeof(why)));
	for (unsigned i = 0; i < 2; i++) {
		h.node_guid = h.port_guid = 0x500 + i;
		h.lid = (uint16_t)(20 + i);
		FUZZ_CHECK(!fabric_add_host(f, &h, why, sizeof(why)));
	}
	return f;
}

static int counters(void *arg, uint64_t guid, struct fabric_counters *c)
{
	(void)arg;
	c->xmit_data = guid;
	return guid != 0x500;
}

static void tell(void *arg, const struct fabric_set *s)
{
	fabric_apply(arg, s);
}

static void same_port(struct fabric *f, struct fabric *other, uint64_t guid)
{
	struct fabric_port a, b;

	FUZZ_CHECK(!fabric_port_guid(f, guid, &a) &&
		   !fabric_port_guid(other, guid, &b));
	FUZZ_CHECK(a.lid == b.lid && a.lmc == b.lmc && a.state == b.state &&
		   a.phys_state == b.phys_state);
}

static void odd_set(struct input *in, struct fabric *other)
{
	struct fabric_set set = { .node_guid = word(in),
				  .attr = byte(in),
				  .mod = (uint32_t)word(in),
				  .port = byte(in) };

	if (byte(in) & 1)
		set.node_guid = 0x200000 + byte(in) % 3u;
	write_some(in, set.data, sizeof(set.data));
	fabric_apply(other, &set);
}

/* A header that mostly leads to an agent, and then what the input has. */
static void request(struct input *in, uint8_t *mad)
{
	static const struct {
		uint8_t class, version;
		uint16_t attr;
	} known[] = {
		{ 0x81, 1, 0x11 }, { 0x81, 1, 0x15 }, { 1, 1, 0x12 },
		{ 1, 1, 0x19 },    { 1, 1, 0x1b },    { 1, 1, 0x16 },
		{ 1, 1, 0x17 },    { 1, 1, 0x18 },    { 4, 1, 0x12 },
		{ 4, 1, 0x1d },    { 3, 2, 0x35 },    { 3, 2, 0x38 },
		{ 3, 2, 0x31 },    { 3, 2, 0x12 },    { 3, 2, 0x15 },
		{ 0x32, 1, 0 },
	};
	static const uint8_t methods[] = { 1, 2, 0x12, 0x15 };
	const unsigned k = byte(in) % 16, m = byte(in);

	mad[0] = 1;
	mad[1] = known[k].class;
	mad[2] = known[k].version;
	mad[3] = m & 0x80 ? (uint8_t)m : methods[m % 4];
	put_be16(mad + 16, known[k].attr);
	put_be16(mad + 22, byte(in));
	mad[20] = byte(in) & 0x80;
	if (mad[1] == 0x81) {
		mad[7] = byte(in) % 66;
		memset(mad + 32, byte(in) & 1 ? 0xff : 0, 4);
		mad[33] |= byte(in) % 8;
		mad[35] |= byte(in) % 8;
		for (unsigned i = 1; i < 64 && i <= mad[7]; i++)
			mad[128 + i] = byte(in) % 4;
		write_some(in, mad + 64, 16);
	} else if (mad[1] == 3) {
		put_be64(mad + 48, word(in));
		write_some(in, mad + 56, byte(in) % 200u);
	} else {
		write_some(in, mad + 64, byte(in) % 128);
	}
}

static void check(const uint8_t *mad, const uint8_t *answer, ssize_t len)
{
	FUZZ_CHECK(len >= 56 && len <= (ssize_t)FABRIC_ANSWER_MAX + 56);
	FUZZ_CHECK(answer[0] == mad[0] && answer[1] == mad[1]);
	FUZZ_CHECK(answer[3] & 0x80 || (mad[3] == 5 && answer[3] == 7));
	FUZZ_CHECK(!memcmp(answer + 8, mad + 8, 10));
	FUZZ_CHECK(mad[1] == 3 || len == 256);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const uint64_t ports[] = { 0x500, 0x501, 0x100001, 0x200000 };
	struct fabric *f = make(), *other = make();
	const struct fabric_env env = { .counters = counters,
					.set = tell,
					.arg = other };
	struct input in = { data, size };
	struct fabric_port at;

	for (unsigned i = 0; i < 64 && in.left; i++) {
		const uint64_t port = ports[byte(&in) % 4];
		const uint8_t lid = byte(&in), how = byte(&in);
		uint8_t mad[256] = { 0 };
		void *answer = NULL;
		ssize_t len;

		if (how & 1)
			write_some(&in, mad, sizeof(mad));
		else
			request(&in, mad);
		len = fabric_request(f, &env, port,
				     mad[1] == 0x81 ? 0xffff :
				     mad[1] == 3    ? 255 :
						      lid,
				     mad[1] != 0x81 && mad[1] != 1, mad, 256,
				     &answer, &at);
		if (len > 0)
			check(mad, answer, len);
		else
			FUZZ_CHECK(!answer && (len == FABRIC_NOBODY ||
					       len == FABRIC_ELSEWHERE));
		free(answer);
	}
	FUZZ_CHECK(!fabric_port_guid(f, 0x500, &at) && at.lid == 20);
	same_port(f, other, 0x100001);
	same_port(f, other, 0x200000);
	odd_set(&in, other);
	FUZZ_CHECK(!fabric_port_guid(other, 0x500, &at) && at.lid == 20);
	fabric_free(f);
	fabric_free(other);
	return 0;
}

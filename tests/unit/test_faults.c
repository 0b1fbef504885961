/*
 * test_faults.c - scripts of faults: their grammar, what they select, and that
 * a log of what has happened replays it
 */
#include "unit.h"

#include "base/gid.h"
#include "faults/faults.h"
#include "wire/roce.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MS 1000000ull

static struct faults *parse(const char *text)
{
	char why[1024] = "";
	unsigned line;
	struct faults *f =
		faults_parse(text, strlen(text), &line, why, sizeof(why));

	if (!f)
		fail_msg("line %u of \"%s\": %s", line, text, why);
	return f;
}

/* ---- grammar ----------------------------------------------------------- */

static void wrong_lines(void **state)
{
	static const struct {
		const char *text;
		unsigned line;
		const char *says;
	} wrong[] = {
		{ "", 0, "contains no fault" },
		{ "\n# nothing\n", 0, "contains no fault" },
		{ "drop ack\nlose ack", 2, "lose: no such fault" },
		{ "drop acks", 1, "acks: no kind of packet" },
		{ "drop ack,", 1, "no kind of packet" },
		{ "drop ack nth", 1, "numbers from 1" },
		{ "drop ack nth=0", 1, "numbers from 1" },
		{ "drop ack nth=5-3", 1, "numbers from 1" },
		{ "drop ack nth=3,", 1, "numbers from 1" },
		{ "drop ack nth=99999999999999999999999", 1, "numbers from 1" },
		{ "drop ack nth=3 nth=4", 1, "nth is there twice" },
		{ "drop ack nth=3 every=4", 1, "only one of" },
		{ "drop ack p=1.5", 1, "share from 0 to 1" },
		{ "drop ack p=", 1, "share from 0 to 1" },
		{ "drop ack first=-1", 1, "number from 1" },
		{ "drop ack qp=0x1000000", 1, "queue pair" },
		{ "drop ack peer=host", 1, "not an IP address" },
		{ "drop ack dir=up", 1, "out, in or both" },
		{ "drop ack for 5", 1, "a time belongs here" },
		{ "drop ack for 0ms", 1, "a time belongs here" },
		{ "drop ack after 5 ms", 1, "a time" },
		{ "drop ack after 18446744073709551615s", 1, "a time" },
		{ "drop ack quickly", 1, "quickly: not a word" },
		{ "delay ack", 1, "delay needs how long" },
		{ "delay 2ms dir=in", 1, "dir does not go with delay" },
		{ "reorder send by=0", 1, "number from 1" },
		{ "corrupt icrc=maybe", 1, "right or wrong" },
		{ "drop ack icrc=right", 1, "icrc does not go with drop" },
		{ "rnr send", 1, "send: not a word" },
		{ "rnr after 1MB", 1, "a time" },
		{ "kill", 1, "kill needs" },
		{ "kill qp=x", 1, "not a word" },
		{ "partition", 1, "not an IP address" },
		{ "partition 192.0.2.7 peer=::1", 1, "peer is there twice" },
		{ "fail reg_mr nth=2", 1, "needs an error" },
		{ "fail ibv_reg_mr ENOMEM", 1, "for ibv_reg_mr: reg_mr" },
		{ "fail reg_mr ENOSUCH", 1, "needs an error" },
		{ "fail reg_mr ENOMEM qp=5", 1, "qp does not go with fail" },
		{ "raise qp_fatal", 1, "kill qp" },
		{ "raise hand", 1, "no event" },
		{ "raise port_err nth=3", 1, "nth does not go with raise" },
		{ "seed x", 1, "a number belongs here" },
		{ "seed 1 2", 1, "nothing belongs behind" },
		{ "seed 1\nseed 1", 2, "a seed already" },
		{ "drop \x01", 1, "not text" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		char why[256] = "";
		unsigned line;
		struct faults *f =
			faults_parse(wrong[i].text, strlen(wrong[i].text),
				     &line, why, sizeof(why));

		if (f || line != wrong[i].line || !strstr(why, wrong[i].says))
			fail_msg("\"%s\": line %u: %s", wrong[i].text, line,
				 f ? "accepted" : why);
	}
}

static void good_lines(void **state)
{
	/* A rule, and how it is written. */
	static const char *const good[][2] = {
		{ "drop", "drop any" },
		{ "drop ack nth=3 qp=any", "drop ack" },
		{ "delay read_response 2ms", "delay read_response 2ms" },
		{ "delay 1s peer=::1", "delay any 1s peer=::1" },
		{ "duplicate write p=0.01", "duplicate write" },
		{ "corrupt nak,rnr_nak icrc=right",
		  "corrupt nak,rnr_nak icrc=right" },
		{ "reorder any by 3 every 10 # some", "reorder any by=3" },
		{ "rnr for 50ms", "rnr" },
		{ "kill qp after 10MB", "kill qp" },
		{ "kill qp=0x11 dir=in", "kill qp 0x000011 dir=in" },
		{ "partition 192.0.2.7 for 1s",
		  "drop any peer=192.0.2.7 dir=both" },
		{ "fail reg_mr nth=2 ENOMEM", "fail reg_mr ENOMEM" },
		{ "fail post_send EAGAIN first=2", "fail post_send EAGAIN" },
		{ "raise port_err after 1us", "raise port_err after 1us" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		struct faults *f = parse(good[i][0]), *again;
		char text[512];

		fault_text(&f->rule[0], text, sizeof(text));
		assert_string_equal(text, good[i][1]);
		again = parse(text);
		assert_memory_equal(&f->rule[0].what, &again->rule[0].what,
				    sizeof(f->rule[0].what));
		faults_free(again);
		faults_free(f);
	}
}

static void many_lines(void **state)
{
	char *text = malloc(1 << 20), why[256];
	unsigned line;
	struct faults *f;

	(void)state;
	/* What differs in nth alone is one rule, in any order. */
	f = parse("drop ack nth=9\ndrop ack nth=2\ndrop ack nth=3,4-5\n"
		  "drop nak nth=1");
	assert_int_equal(f->nrules, 2);
	assert_int_equal(f->rule[0].nnth, 2);
	assert_int_equal(f->rule[0].nth[0].from, 2);
	assert_int_equal(f->rule[0].nth[0].to, 5);
	assert_int_equal(f->rule[0].nth[1].from, 9);
	faults_free(f);
	for (unsigned i = 0, n = 0; i <= FAULTS_MAX_RULES; i++)
		n += (unsigned)sprintf(text + n, "drop qp=%u\n", i + 1);
	assert_null(faults_parse(text, strlen(text), &line, why, sizeof(why)));
	assert_int_equal(line, FAULTS_MAX_RULES + 1);
	for (size_t i = 0; i < 1 << 20; i++)
		text[i] = (char)(i * 2654435761u >> 13);
	assert_null(faults_parse(text, 1 << 20, &line, why, sizeof(why)));
	assert_int_equal(line, 1);
	memset(text, 'x', 1 << 20);
	assert_null(faults_parse(text, 1 << 20, &line, why, sizeof(why)));
	assert_non_null(strstr(why, "longer than"));
	free(text);
}

/* ---- selection --------------------------------------------------------- */

static struct fault_packet packet(uint8_t opcode, size_t bytes)
{
	static const union ibv_gid peer = {
		.raw = { [10] = 0xff, 0xff, 192, 0, 2, 7 }
	};
	static const union ibv_gid local = {
		.raw = { [10] = 0xff, 0xff, 192, 0, 2, 1 }
	};

	return (struct fault_packet){ .opcode = opcode,
				      .qpn = 0x11,
				      .dest_qpn = 0x22,
				      .peer = &peer,
				      .local = &local,
				      .bytes = bytes,
				      .dir = FAULT_OUT };
}

/* softhca3 has the address of packets. */
static bool names_device(const char *dev, const union ibv_gid *addr)
{
	return !strcmp(dev, "softhca3") && addr->raw[15] == 1;
}

static bool acts(struct faults *f, struct fault_packet p, uint64_t now)
{
	uint64_t n;

	return faults_packet(f, &p, now, &n);
}

/* Which of the packets a ms apart a script acts on: "..x". */
static void check(const char *text, struct fault_packet p, const char *want)
{
	struct faults *f = parse(text);
	char got[64] = "";

	f->names_device = names_device;
	for (size_t i = 0; want[i]; i++)
		got[i] = acts(f, p, (i + 1) * MS) ? 'x' : '.';
	if (strcmp(got, want))
		fail_msg("%s: %s instead of %s", text, got, want);
	faults_free(f);
}

static void classes(void **state)
{
	static const struct {
		const char *name;
		uint8_t opcode, syndrome;
	} of[] = {
		{ "send", ROCE_RC | ROCE_SEND_ONLY, 0 },
		{ "write", ROCE_UC | ROCE_WRITE_LAST_IMM, 0 },
		{ "read_request", ROCE_RC | ROCE_READ_REQUEST, 0 },
		{ "read_response", ROCE_RC | ROCE_READ_RESP_MIDDLE, 0 },
		{ "atomic", ROCE_RC | ROCE_FETCH_ADD, 0 },
		{ "atomic", ROCE_RC | ROCE_ATOMIC_ACK, 0 },
		{ "ack", ROCE_RC | ROCE_ACK, 0x1f },
		{ "nak", ROCE_RC | ROCE_ACK, ROCE_AETH_NAK },
		{ "rnr_nak", ROCE_XRC | ROCE_ACK, ROCE_AETH_RNR | 12 },
		{ "cnp", ROCE_CNP, 0 },
	};
	static const char *const all[] = {
		"send", "write", "read_request", "read_response", "atomic",
		"ack",  "nak",   "rnr_nak",      "cnp",           "mad"
	};
	struct fault_packet p;
	char text[64];

	(void)state;
	for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++) {
		p = packet(of[i].opcode, 0);
		p.syndrome = of[i].syndrome;
		for (size_t k = 0; k < sizeof(all) / sizeof(all[0]); k++) {
			sprintf(text, "drop %s", all[k]);
			check(text, p, strcmp(all[k], of[i].name) ? "." : "x");
		}
		check("drop any", p, "x");
	}
	check("drop read", packet(ROCE_RC | ROCE_READ_REQUEST, 0), "x");
	p = packet(ROCE_UD | ROCE_SEND_ONLY, 256);
	p.dest_qpn = 1;
	check("drop mad", p, "x");
	check("drop send", p, ".");
}

static void selection(void **state)
{
	struct fault_packet p = packet(ROCE_RC | ROCE_SEND_ONLY, 1000), in = p;

	(void)state;
	in.dir = FAULT_IN;
	check("drop nth=3", p, "..x...");
	check("drop nth=2,4-5", p, ".x.xx.");
	check("drop every=2", p, ".x.x.x");
	check("drop first 2", p, "xx....");
	check("drop p=0", p, "......");
	check("drop p=100%", p, "xxxxxx");
	check("drop qp=0x11", p, "x");
	check("drop qp=0x22", p, ".");
	check("drop peer=192.0.2.7", p, "x");
	check("drop peer=192.0.2.8", p, ".");
	check("drop dev=softhca3", p, "x");
	check("drop dev=softhca2", p, ".");
	check("drop dev=softhca3 dir=both", in, "x");
	check("drop", in, ".");
	check("drop dir=in", in, "x");
	check("partition 192.0.2.7", in, "x");
	check("partition 192.0.2.7 for 3ms", p, "xxx...");
	check("drop after 2ms", p, "..xxxx");
	check("drop after 2ms for 1ms", p, "..x...");
	check("drop after 3KB", p, "..xxxx");
	check("drop after 3KB first=2", p, "..xx..");
	check("kill qp after 3KB", p, "..x...");
	/* All count; the first that acts does. */
	check("drop nth=2\nduplicate nth=2,3", p, ".xx.");
}

static void calls_and_receives(void **state)
{
	struct faults *f = parse("fail reg_mr nth=2 ENOMEM\nrnr nth=2 qp=5");
	const struct fault_packet five = { .qpn = 5 }, six = { .qpn = 6 };
	struct fault_rule *r;
	uint64_t n;

	(void)state;
	assert_null(faults_verb(f, FAULT_REG_MR, 1, &n));
	assert_null(faults_verb(f, FAULT_ALLOC_PD, 1, &n));
	r = faults_verb(f, FAULT_REG_MR, 1, &n);
	assert_non_null(r);
	assert_int_equal(r->what.err, ENOMEM);
	assert_int_equal(n, 2);
	assert_null(faults_verb(f, FAULT_REG_MR, 1, &n));
	assert_null(faults_recv(f, &five, 1, &n));
	assert_null(faults_recv(f, &six, 1, &n));
	assert_non_null(faults_recv(f, &five, 1, &n));
	faults_free(f);
}

/* What had no room on the link is counted once, with the same fate. */
static void taken_back(void **state)
{
	static const char *const texts[] = {
		"seed 3\ndrop p=0.5",
		"drop nth=3,5-6",
		"drop every=3",
		"drop after 4KB first=2",
		"drop after 3ms for 2ms first=1",
	};
	struct fault_packet p = packet(ROCE_RC | ROCE_SEND_ONLY, 1000);

	(void)state;
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		struct faults *a = parse(texts[i]), *b = parse(texts[i]);

		for (uint64_t t = 1; t < 40; t++) {
			const bool want = acts(a, p, t * MS);

			assert_int_equal(acts(b, p, t * MS), want);
			faults_unpacket(b, &p);
			assert_int_equal(acts(b, p, t * MS), want);
		}
		faults_free(a);
		faults_free(b);
	}
}

/* ---- record and replay ------------------------------------------------- */

#define PACKETS 3000u

/* What happens to packets of all kinds: a letter each, times apart by step. */
static char *run(struct faults *f, const char *log, uint64_t step)
{
	static const uint8_t ops[] = { ROCE_SEND_ONLY, ROCE_ACK,
				       ROCE_WRITE_ONLY, ROCE_READ_REQUEST,
				       ROCE_READ_RESP_ONLY };
	char *out = calloc(1, PACKETS + 1);
	struct faults_log l;
	uint64_t n;

	assert_int_equal(faults_log_open(&l, log, f), 0);
	for (unsigned i = 0; i < PACKETS; i++) {
		struct fault_packet p = packet(ops[i * 7u / 3 % 5], i % 1000);
		struct fault_rule *r;

		p.qpn = 0x11 + i % 3;
		r = faults_packet(f, &p, (i + 1) * step, &n);
		out[i] = (char)(r ? 'A' + (char)r->what.action : '.');
		if (r)
			assert_int_equal(faults_log_add(&l, r, n), 0);
	}
	faults_log_close(&l);
	return out;
}

static size_t read_file(const char *name, char *to, size_t size)
{
	FILE *file = fopen(name, "r");
	size_t n;

	assert_non_null(file);
	n = fread(to, 1, size - 1, file);
	to[n] = '\0';
	fclose(file);
	return n;
}

/* The log of a run as a script does the same, whatever the clock says, and
 * writes the same log. */
static void replays(void **state)
{
	static const char *const text =
		"seed 11\n"
		"drop ack p=0.1\nduplicate write every=7 qp=0x12\n"
		"delay read_response 2ms after 100ms for 300ms\n"
		"corrupt send p=0.02\nreorder any by=2 p=1%\n"
		"partition 192.0.2.7 after 700ms for 50ms\n"
		"kill qp after 500KB\n";
	static char first[1 << 20], second[sizeof(first)];
	char dir[] = "/tmp/softhca-faults-XXXXXX", a[64], b[64], why[256];
	struct faults *f = parse(text);
	char *was, *is;

	(void)state;
	assert_non_null(mkdtemp(dir));
	sprintf(a, "%s/a", dir);
	sprintf(b, "%s/b-%%p", dir);
	was = run(f, a, MS / 2);
	faults_free(f);
	for (const char *c = "ABCDEG"; *c; c++)
		assert_non_null(strchr(was, *c)); /* each has acted */
	f = faults_load(a, why, sizeof(why));
	if (!f)
		fail_msg("%s", why);
	is = run(f, b, 77);
	faults_free(f);
	assert_string_equal(is, was);
	sprintf(b, "%s/b-%d", dir, (int)getpid());
	read_file(a, first, sizeof(first));
	read_file(b, second, sizeof(second));
	assert_string_equal(second, first);
	/* One that acts on all in a row is one line. */
	assert_non_null(strstr(first, "drop any peer=192.0.2.7 dir=both nth="));
	free(was);
	free(is);
	unlink(a);
	unlink(b);
	rmdir(dir);
}

static void files(void **state)
{
	char name[] = "/tmp/softhca-faults-XXXXXX", why[256], want[64];
	const int fd = mkstemp(name);

	(void)state;
	assert_null(faults_load("/no/such/file", why, sizeof(why)));
	assert_string_equal(why, "/no/such/file: No such file or directory");
	assert_null(faults_load("/tmp", why, sizeof(why)));
	assert_non_null(strstr(why, "directory"));
	assert_true(fd >= 0);
	assert_int_equal(write(fd, "drop ack\n\nfoo\n", 14), 14);
	close(fd);
	assert_null(faults_load(name, why, sizeof(why)));
	sprintf(want, "%s:3: foo: no such fault", name);
	assert_memory_equal(why, want, strlen(want));
	unlink(name);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(wrong_lines),
		cmocka_unit_test(good_lines),
		cmocka_unit_test(many_lines),
		cmocka_unit_test(classes),
		cmocka_unit_test(selection),
		cmocka_unit_test(calls_and_receives),
		cmocka_unit_test(taken_back),
		cmocka_unit_test(replays),
		cmocka_unit_test(files),
	};

	return cmocka_run_group_tests_name("faults", tests, NULL, NULL);
}

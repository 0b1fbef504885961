/*
 * faults_fuzz.c - any bytes as a script of faults: what is accepted counts any
 * packet, and each rule, written as text, is the same rule again
 */
#include "fuzz.h"

#include "faults/faults.h"

#include <string.h>

static void round_trip(const struct fault_rule *r)
{
	struct faults *f;
	char text[512], why[256];
	unsigned line;
	const int n = fault_text(r, text, sizeof(text) - 64);

	FUZZ_CHECK(n > 0 && (size_t)n < sizeof(text) - 64);
	f = faults_parse(text, (size_t)n, &line, why, sizeof(why));
	FUZZ_CHECK(f && f->nrules == 1);
	FUZZ_CHECK(!memcmp(&f->rule[0].what, &r->what, sizeof(r->what)));
	faults_free(f);
}

static void count(struct faults *f, const uint8_t *data, size_t size)
{
	const union ibv_gid gid = { .raw = { [15] = 1 } };
	uint64_t n;

	for (size_t i = 0; i + 4 <= size && i < 400; i += 4) {
		const struct fault_packet p = {
			.opcode = data[i],
			.syndrome = data[i + 1],
			.qpn = data[i + 2],
			.dest_qpn = data[i + 3] & 3,
			.peer = data[i + 3] & 4 ? &gid : NULL,
			.bytes = data[i + 3] * 16u,
			.dir = data[i + 3] & 8 ? FAULT_IN : FAULT_OUT,
		};
		struct fault_rule *r =
			faults_packet(f, &p, (i + 1) * 1000000, &n);

		FUZZ_CHECK(!r || (n && n <= r->n && r->k <= r->n));
		if (data[i + 3] & 16)
			faults_unpacket(f, &p);
	}
}

/* A line that mostly is one: of each place in it, a word of those that fit. */
static size_t line(const uint8_t *data, size_t size, size_t *at, char *out,
		   size_t room)
{
	static const char *const word[][16] = {
		{ "drop", "delay", "duplicate", "corrupt", "reorder", "rnr",
		  "kill qp", "partition ::1", "fail reg_mr ENOMEM",
		  "raise port_err", "drop", "delay", "duplicate", "corrupt",
		  "reorder", "seed 7" },
		{ "", "", "any", "send", "ack,nak", "read_response", "mad",
		  "read", "write,cnp", "atomic", "0x11", "1ms", "any 2us",
		  "send 1s", "x", "" },
		{ "", "", "", "qp=3", "peer 192.0.2.7", "dir=in", "dir=both",
		  "by=2", "icrc=right", "qp any", "", "", "", "", "", "" },
		{ "", "nth=3", "nth=1-5", "nth=2,7-9",
		  "nth=1-18446744073709551615", "every=2", "first=3", "p=0.5",
		  "p=1%", "", "", "nth=0", "p=2", "nth=4,2", "every",
		  "first=1" },
		{ "", "", "", "", "after 2ms", "after 1KB", "after 1s",
		  "for 5ms", "after 1ms for 3ms", "after 2KiB for 1ms", "", "",
		  "for", "# x", "", "" },
	};
	size_t n = 0, len;

	for (size_t i = 0; i < 5 && *at < size; i++) {
		const char *w = word[i][data[(*at)++] % 16];

		len = strlen(w);
		if (n + len + 2 > room)
			break;
		memcpy(out + n, w, len);
		n += len;
		out[n++] = ' ';
	}
	out[n++] = '\n';
	return n;
}

static size_t lines(const uint8_t *data, size_t size, char *out, size_t room)
{
	const size_t want = size ? 1 + data[0] % 4u : 0;
	size_t at = 1, n = 0;

	for (size_t i = 0; i < want && n + 2 < room; i++)
		n += line(data, size, &at, out + n, room - n);
	return n;
}

static void script(const char *text, size_t len, const uint8_t *data,
		   size_t size)
{
	char why[256] = "";
	unsigned line;
	struct faults *f = faults_parse(text, len, &line, why, sizeof(why));

	FUZZ_CHECK(f || *why);
	for (size_t i = 0; f && i < f->nrules; i++)
		round_trip(&f->rule[i]);
	if (f)
		count(f, data, size);
	faults_free(f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static char text[1 << 10];

	script((const char *)data, size, data, size);
	script(text, lines(data, size, text, sizeof(text)), data, size);
	return 0;
}

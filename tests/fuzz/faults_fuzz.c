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

/* Mostly words that belong there, one for each byte. */
static size_t words(const uint8_t *data, size_t size, char *out, size_t room)
{
	static const char *const word[] = {
		"drop", "delay", "duplicate", "corrupt", "reorder", "rnr",
		"kill", "qp", "partition", "fail", "raise", "seed", "\n", "\n",
		"any", "send", "ack,nak", "read_response", "mad", "peer",
		"::1", "192.0.2.7", "dir", "in", "both", "nth", "3", "2,7-9",
		"1-5", "every", "p", "0.5", "1%", "first", "after", "for",
		"1ms", "10KB", "by", "icrc", "right", "reg_mr", "ENOMEM",
		"post_send", "EAGAIN", "port_err", "0x11", "=", "#",
	};
	size_t n = 0, len;

	for (size_t i = 0; i < size; i++) {
		const char *w = word[data[i] % (sizeof(word) / sizeof(*word))];

		len = strlen(w);
		if (n + len + 1 > room)
			break;
		memcpy(out + n, w, len);
		n += len;
		out[n++] = ' ';
	}
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
	static char text[1 << 16];

	script((const char *)data, size, data, size);
	script(text, words(data, size, text, sizeof(text)), data, size);
	return 0;
}

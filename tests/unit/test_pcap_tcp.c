/*
 * test_pcap_tcp.c - what two ends have said by TCP, as segments in a recording:
 * numbers that go on, checksums that are right, a segment for each message
 */
#include "unit.h"

#include "pcapng.h"

#include "os/guard.h"
#include "trace/tcp.h"
#include "wire/mpa.h"

#include <limits.h>
#include <sys/mman.h>
#include <unistd.h>

enum { FIN = 1, SYN = 2, RST = 4, PSH = 8, ACK = 16 };
enum { IN, OUT };

static char path[] = "/tmp/softhca-test-tcp-XXXXXX";
static struct pcap *pcap;
static struct file file;

static const struct pcap_tcp_end v4[2] = {
	{ { .raw = { [10] = 0xff, 0xff, 10, 1, 2, 4 } }, 7174 },
	{ { .raw = { [10] = 0xff, 0xff, 10, 1, 2, 3 } }, 40000 },
};
static const struct pcap_tcp_end v6[2] = {
	{ { .raw = { 0xfd, 7, [15] = 1 } }, 7174 },
	{ { .raw = { 0xfd, 7, [15] = 2 } }, 40000 },
};

static int setup(void **state)
{
	int fd;

	(void)state;
	strcpy(path + sizeof(path) - 7, "XXXXXX");
	fd = mkstemp(path);
	assert_true(fd >= 0);
	close(fd);
	assert_int_equal(pcap_open(&pcap, path), 0);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	free(file.data);
	file.data = NULL;
	return unlink(path);
}

/* ---- what is in the file ----------------------------------------------- */

/* The next number of each direction. */
static uint32_t next_seq[2];

static void read_back(void)
{
	pcap_close(pcap);
	file = file_read(path);
	skip_head(&file);
	memset(next_seq, 0, sizeof(next_seq));
}

/* The next segment; its bytes, and how many. */
static const uint8_t *segment(const struct pcap_tcp_end *end, int way,
			      unsigned flags, size_t *len)
{
	const bool is_v6 = end == v6;
	const size_t ip_len = is_v6 ? 40 : 20;
	uint8_t pseudo[40] = { 0 };
	const uint8_t *p, *tcp;
	uint32_t direction;
	uint64_t when;
	size_t n;

	p = next_packet(&file, &n, &when, &direction);
	assert_non_null(p);
	assert_int_equal(direction, way == OUT ? 2 : 1);
	assert_true(n >= ip_len + 20);
	if (is_v6) {
		assert_int_equal(get_be32(p),
				 0x60000000 | (way == OUT ? 0xa << 20 : 0));
		assert_int_equal(get_be16(p + 4), n - ip_len);
		assert_int_equal(p[6], 6);
		memcpy(pseudo, p + 8, 32);
		assert_memory_equal(p + 8, end[way].addr.raw, 16);
		assert_memory_equal(p + 24, end[!way].addr.raw, 16);
	} else {
		assert_int_equal(p[0], 0x45);
		assert_int_equal(p[1], way == OUT ? 0xa : 0);
		assert_int_equal(get_be16(p + 2), n);
		assert_int_equal(p[9], 6);
		assert_int_equal(sum(0, p, ip_len), 0xffff);
		memcpy(pseudo, p + 12, 8);
		assert_memory_equal(p + 12, end[way].addr.raw + 12, 4);
		assert_memory_equal(p + 16, end[!way].addr.raw + 12, 4);
	}
	put_be32(pseudo + 32, (uint32_t)(n - ip_len));
	pseudo[39] = 6;
	tcp = p + ip_len;
	assert_int_equal(sum(sum(0, pseudo, sizeof(pseudo)), tcp, n - ip_len),
			 0xffff);
	assert_int_equal(get_be16(tcp), end[way].port);
	assert_int_equal(get_be16(tcp + 2), end[!way].port);
	assert_int_equal(get_be32(tcp + 4), next_seq[way]);
	assert_int_equal(get_be32(tcp + 8), flags & ACK ? next_seq[!way] : 0);
	assert_int_equal(tcp[12], 0x50);
	assert_int_equal(tcp[13], flags);
	*len = n - ip_len - 20;
	next_seq[way] += (uint32_t)*len + (flags & (SYN | FIN) ? 1 : 0);
	return tcp + 20;
}

static void expect(const struct pcap_tcp_end *end, int way, unsigned flags,
		   const void *bytes, size_t len)
{
	size_t n;
	const uint8_t *p = segment(end, way, flags, &n);

	assert_int_equal(n, len);
	if (len)
		assert_memory_equal(p, bytes, len);
}

static void expect_handshake(const struct pcap_tcp_end *end, int initiator)
{
	expect(end, initiator, SYN, NULL, 0);
	expect(end, !initiator, SYN | ACK, NULL, 0);
	expect(end, initiator, ACK, NULL, 0);
}

static void expect_end(void)
{
	size_t n;
	uint32_t flags;
	uint64_t when;

	assert_null(next_packet(&file, &n, &when, &flags));
}

/* ---- streams ----------------------------------------------------------- */

#define MESSAGES 200

/* Messages of one direction, and where in the bytes each ends. */
struct stream {
	uint8_t *bytes;
	size_t len, fed;
	size_t end[MESSAGES];
	size_t n, seen;
};

static void add_frame(struct stream *s, bool reply, bool markers, size_t priv)
{
	const struct mpa_frame f = { .reply = reply,
				     .markers = markers,
				     .revision = 1,
				     .private_len = (uint16_t)priv };

	s->len += mpa_frame_encode(&f, s->bytes + s->len);
	memset(s->bytes + s->len, 'p', priv);
	s->len += priv;
	s->end[s->n++] = s->len;
}

/* As a sender puts it on its way, byte by byte; fpdus: where they began. */
static void add_byte(struct stream *s, size_t fpdus, bool markers, uint8_t b)
{
	if (markers && (s->len - fpdus) % MPA_MARKER_STEP == 0) {
		memcpy(s->bytes + s->len, "mark", MPA_MARKER_LEN);
		s->len += MPA_MARKER_LEN;
	}
	s->bytes[s->len++] = b;
}

static void add_fpdu(struct stream *s, size_t fpdus, bool markers,
		     uint32_t ulpdu, uint64_t *rng)
{
	const uint32_t len = mpa_fpdu_len(ulpdu);

	for (uint32_t i = 0; i < len; i++)
		add_byte(s, fpdus, markers,
			 i == 0 ? (uint8_t)(ulpdu >> 8) :
			 i == 1 ? (uint8_t)ulpdu :
				  (uint8_t)rnd(rng));
	s->end[s->n++] = s->len;
}

/* Some more bytes of a direction, in pieces that end anywhere. */
static void feed(struct pcap_tcp *t, struct stream *s, int way, size_t max,
		 uint64_t *rng)
{
	size_t len = s->len - s->fed, done = 0;
	struct iovec iov[4];
	size_t n = 0;

	if (len > max)
		len = max;
	for (; n < 3; n++) {
		const size_t piece =
			rnd(rng) % 3 ? rnd(rng) % (len - done + 1) : 0;

		iov[n] = (struct iovec){ s->bytes + s->fed + done, piece };
		done += piece;
	}
	/* The socket takes less than it is offered. */
	iov[n] = (struct iovec){ s->bytes + s->fed + done,
				 s->len - s->fed - done };
	pcap_tcp_data(t, way == OUT, iov, len);
	s->fed += len;
}

/* The segments of those messages that are complete, in each direction. */
static void expect_messages(const struct pcap_tcp_end *end, struct stream *s,
			    int way, size_t max)
{
	while (s->seen < s->n && s->end[s->seen] <= s->fed) {
		size_t at = s->seen ? s->end[s->seen - 1] : 0;

		for (; at < s->end[s->seen]; at += max)
			expect(end, way, PSH | ACK, s->bytes + at,
			       s->end[s->seen] - at < max ?
				       s->end[s->seen] - at :
				       max);
		s->seen++;
	}
}

#define STEPS 4096

static void conversation(const struct pcap_tcp_end *end, int initiator,
			 bool in_markers, bool out_markers, uint32_t longest)
{
	uint64_t rng = rnd_seed();
	struct stream s[2] = { 0 };
	const bool markers[2] = { in_markers, out_markers };
	struct pcap_tcp *t;
	size_t step, steps = 0;
	/* When how much was fed: it is read back in that order. */
	static struct {
		int way;
		size_t fed;
	} log[STEPS];

	for (int way = 0; way < 2; way++) {
		size_t fpdus;

		s[way].bytes = malloc(MESSAGES * (longest + 4096));
		assert_non_null(s[way].bytes);
		/* Who asks for markers gets them. */
		add_frame(&s[way], way != initiator, markers[!way],
			  rnd(&rng) % 513);
		fpdus = s[way].len;
		while (s[way].n < MESSAGES)
			add_fpdu(&s[way], fpdus, markers[way],
				 s[way].n % 8 ? (uint32_t)(rnd(&rng) % 100) :
						longest,
				 &rng);
	}
	t = pcap_tcp_begin(pcap, &end[OUT], &end[IN], 0xa, initiator == OUT);
	assert_non_null(t);
	pcap_tcp_connected(t);
	/* The frames: one after the other, and no FPDU between them. */
	for (int i = 0; i < 2; i++) {
		const int way = i ? !initiator : initiator;

		while (s[way].fed < s[way].end[0]) {
			feed(t, &s[way], way,
			     rnd(&rng) % (s[way].end[0] - s[way].fed + 1),
			     &rng);
			log[steps].way = way;
			log[steps++].fed = s[way].fed;
			assert_true(steps < STEPS / 2);
		}
	}
	while (s[IN].fed < s[IN].len || s[OUT].fed < s[OUT].len) {
		const int way = rnd(&rng) % 2;

		/* Larger steps, so that there is an end of them. */
		feed(t, &s[way], way,
		     (size_t)(rnd(&rng) %
			      (steps < STEPS / 2 ? longest + 200 : 1u << 20)),
		     &rng);
		log[steps].way = way;
		log[steps++].fed = s[way].fed;
		assert_true(steps < STEPS);
	}
	pcap_tcp_fin(t, true);
	pcap_tcp_fin(t, false);
	pcap_tcp_fin(t, true);
	pcap_tcp_free(t);

	read_back();
	expect_handshake(end, initiator);
	for (step = 0; step < steps; step++) {
		s[log[step].way].fed = log[step].fed;
		expect_messages(end, &s[log[step].way], log[step].way,
				65535 - 60);
	}
	assert_int_equal(s[IN].seen, MESSAGES);
	assert_int_equal(s[OUT].seen, MESSAGES);
	expect(end, OUT, FIN | ACK, NULL, 0);
	expect(end, IN, FIN | ACK, NULL, 0);
	expect_end();
	free(s[IN].bytes);
	free(s[OUT].bytes);
}

static void initiator(void **state)
{
	(void)state;
	conversation(v4, OUT, false, false, 1400);
}

static void responder(void **state)
{
	(void)state;
	conversation(v6, IN, false, false, 1400);
}

static void marked(void **state)
{
	(void)state;
	conversation(v4, OUT, false, true, 1400);
}

static void marked_both(void **state)
{
	(void)state;
	conversation(v6, IN, true, true, 3000);
}

/* An FPDU for which no IP packet has room. */
static void longest(void **state)
{
	(void)state;
	conversation(v4, OUT, false, false, MPA_ULPDU_MAX);
}

static void longest_marked(void **state)
{
	(void)state;
	conversation(v6, OUT, true, false, MPA_ULPDU_MAX);
}

/* ---- other ends -------------------------------------------------------- */

static struct pcap_tcp *begun(bool initiator)
{
	struct pcap_tcp *t =
		pcap_tcp_begin(pcap, &v4[OUT], &v4[IN], 0xa, initiator);

	assert_non_null(t);
	return t;
}

static void say_it(struct pcap_tcp *t, int way, const char *text)
{
	const struct iovec iov = { (void *)(uintptr_t)text, strlen(text) };

	pcap_tcp_data(t, way == OUT, &iov, iov.iov_len);
}

/* Nobody listens; and nobody answers. */
static void refused(void **state)
{
	struct pcap_tcp *t = begun(true);

	(void)state;
	pcap_tcp_reset(t, false);
	pcap_tcp_fin(t, true);
	pcap_tcp_free(t);
	t = begun(true);
	pcap_tcp_reset(t, true);
	pcap_tcp_fin(t, true);
	pcap_tcp_free(t);

	read_back();
	expect(v4, OUT, SYN, NULL, 0);
	expect(v4, IN, RST | ACK, NULL, 0);
	memset(next_seq, 0, sizeof(next_seq));
	expect(v4, OUT, SYN, NULL, 0);
	expect_end();
}

/* Whatever it is, all of it is there, and no later than when it came. */
static void something_else(void **state)
{
	struct pcap_tcp *t = begun(true);

	(void)state;
	pcap_tcp_connected(t);
	say_it(t, IN, "220 mail.example.net ESMTP\r\n");
	say_it(t, OUT, "MPA ID Req Fr"); /* as if */
	say_it(t, IN, "421 ");
	say_it(t, OUT, "iday");
	pcap_tcp_free(t);

	read_back();
	expect_handshake(v4, OUT);
	expect(v4, IN, PSH | ACK, "220 mail.example.net ESMTP\r\n", 28);
	expect(v4, IN, PSH | ACK, "421 ", 4);
	expect(v4, OUT, PSH | ACK, "MPA ID Req Friday", 17);
	expect_end();
}

/* What was begun is there, in both directions, and nothing that comes later. */
static void reset(void **state)
{
	struct pcap_tcp *t = begun(false);

	(void)state;
	pcap_tcp_connected(t);
	say_it(t, IN, "MPA ID");
	say_it(t, OUT, "MPA");
	pcap_tcp_reset(t, true);
	say_it(t, OUT, " ID");
	pcap_tcp_reset(t, false);
	pcap_tcp_fin(t, false);
	pcap_tcp_free(t);

	read_back();
	expect_handshake(v4, IN);
	expect(v4, OUT, PSH | ACK, "MPA", 3);
	expect(v4, IN, PSH | ACK, "MPA ID", 6);
	expect(v4, OUT, RST | ACK, NULL, 0);
	expect_end();
}

/* A process that ends without more. */
static void unfinished(void **state)
{
	struct pcap_tcp *t = begun(true);

	(void)state;
	pcap_tcp_connected(t);
	say_it(t, OUT, "MPA ID");
	pcap_tcp_fin(t, false);
	pcap_tcp_free(t);

	read_back();
	expect_handshake(v4, OUT);
	expect(v4, IN, FIN | ACK, NULL, 0);
	expect(v4, OUT, PSH | ACK, "MPA ID", 6);
	expect_end();
}

/* The program has unmapped what it has just sent. */
static void memory_gone(void **state)
{
	struct pcap_tcp *t = begun(true);
	struct iovec iov[2] = { { (void *)(uintptr_t) "x", 1 }, { NULL, 100 } };
	uint8_t want[101] = "x";

	(void)state;
	guard_install(); /* before cmocka's handlers */
	iov[1].iov_base =
		mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(iov[1].iov_base != MAP_FAILED);
	munmap(iov[1].iov_base, 4096);
	pcap_tcp_connected(t);
	pcap_tcp_data(t, true, iov, 101);
	pcap_tcp_free(t);

	read_back();
	expect_handshake(v4, OUT);
	expect(v4, OUT, PSH | ACK, want, sizeof(want));
	expect_end();
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(initiator),   TEST(responder),      TEST(marked),
		TEST(marked_both), TEST(longest),        TEST(longest_marked),
		TEST(refused),     TEST(something_else), TEST(reset),
		TEST(unfinished),  TEST(memory_gone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

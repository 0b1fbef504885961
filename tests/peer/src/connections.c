/*
 * connections.c - scenarios of whole connections: PSNs that wrap, QPs that
 * begin again, much at once, many QPs, the path; and traffic for as long as
 * somebody else disturbs
 */
#include "scenario.h"

/* PSNs wrap, or change sign, after each packet of a message in turn. */
static void psn_wrap(enum ibv_qp_type type)
{
	static const uint64_t from[] = { 0xffffff, 0xfffffe, 0xfffffd, 0xfffffc,
					 0x7fffff, 0x7ffffe, 0x7ffffd, 0 };
	const uint64_t len = 3 * opt_mtu + 2;

	for (size_t i = 0; i < sizeof(from) / sizeof(*from); i++)
		for (int op = 0; op < 3; op++) {
			conf.psn[A] = from[i];
			conf.psn[B] = from[i] ^ 0x800001;
			if (i || op)
				pair_again(type);
			else
				pair(type);
			if (op == 0)
				one_message(IBV_WR_SEND, len, 0, 0);
			else if (op == 1)
				one_message(IBV_WR_RDMA_WRITE_WITH_IMM, len, 0,
					    0);
			else if (type == IBV_QPT_RC)
				one_message(IBV_WR_RDMA_READ, len, 0, 0);
			one_message(IBV_WR_SEND, len, 0, 0);
		}
}

void rc_psn_wrap(void)
{
	psn_wrap(IBV_QPT_RC);
}

void uc_psn_wrap(void)
{
	psn_wrap(IBV_QPT_UC);
}

/* QPs that have failed, or were reset, begin again with other PSNs. */
static void reconnect(enum ibv_qp_type type)
{
	struct done d;

	pair(type);
	one_message(IBV_WR_SEND, 100, 0, 0);
	receive(B, AT_B, 0, 0);
	receive(B, AT_B, 0, 0);
	for (enum who w = A; w <= B; w++)
		at(w, "to %lx %x", qpi[w], (unsigned)IBV_QPS_ERR);
	expect(B, IBV_WC_WR_FLUSH_ERR, "a receive of a QP in ERR");
	expect(B, IBV_WC_WR_FLUSH_ERR, "a receive of a QP in ERR");
	conf.psn[A] = 0x123456;
	conf.psn[B] = 0xfedcba;
	pair_again(type);
	one_message(IBV_WR_SEND, 65539, 0, 0);
	/* What waits when a QP is reset is forgotten without a completion. */
	if (type == IBV_QPT_RC)
		post(.op = IBV_WR_SEND, .len = 64);
	receive(A, AT_A, 0, 0);
	conf.psn[A] = 0x800001;
	conf.psn[B] = 0;
	usleep(20000);
	pair_again(type);
	if (poll_wc(A, &d, 100) || poll_wc(B, &d, 0))
		fail("a completion of a QP that was reset: \"%s\"",
		     ibv_wc_status_str(d.status));
	one_message(IBV_WR_SEND, 65539, 0, 0);
	if (type == IBV_QPT_RC)
		one_message(IBV_WR_RDMA_READ, 65539, 0, 0);
	/* The receive of before the reset had no room for it. */
	receive(A, AT_A, 64, 0);
	post_on(B, qpi[B], (struct work){ .op = IBV_WR_SEND, .len = 64 });
	expect_sent(B, IBV_WR_SEND);
	expect_received(A, IBV_WR_SEND, 64, 0);
}

void rc_reset(void)
{
	reconnect(IBV_QPT_RC);
}

void uc_reset(void)
{
	reconnect(IBV_QPT_UC);
}

/*
 * An end that is softhca asks the other, which is not, whether it would wait, and
 * asks it in vain; nothing of that disturbs it.
 */
void rc_away(void)
{
	struct reply r;

	pair(IBV_QPT_RC);
	one_message(IBV_WR_SEND, 5000, 0, 0);
	for (enum who w = A; w <= B; w++) {
		if (side[w].rxe)
			continue;
		r = at(w, "peers");
		expect_word("connections", r.v[0] > 0, 1);
		expect_word("peers that would wait", r.v[1],
			    side[!w].rxe ? 0 : r.v[0]);
		at(w, "away");
	}
	one_message(IBV_WR_SEND, 5000, 0, 0);
	one_message(IBV_WR_RDMA_WRITE, 50000, 0, 0);
	one_message(IBV_WR_RDMA_READ, 50000, 0, 0);
}

/* All kinds of requests outstanding at once, from both ends. */
static void mixed(unsigned rounds)
{
	const uint64_t len = 2 * opt_mtu + 77, n = 6;
	const uint64_t at_w = AT_B, at_s = AT_B + 0x100000,
		       at_r = AT_B + 0x200000, word = AT_B + 0x300000;

	for (unsigned round = 0; round < rounds; round++) {
		unsigned sent[2] = { 0 }, got[2] = { 0 };

		seed++;
		for (enum who w = A; w <= B; w++) {
			/* what this end sends, at 0x500000; where its data go
			 */
			at(w, "fill %x %lx %lx", 0x500000, n * len, seed);
			at(w, "guard %lx %lx", at_w, n * len);
			at(w, "guard %lx %lx", at_s, n * len);
			at(w, "guard %lx %lx", at_r, n * len);
			at(w, "put %lx 0", word);
			for (uint64_t i = 0; i < n; i++)
				receive(w, at_s + i * len, len, 0);
		}
		for (uint64_t i = 0; i < n; i++)
			for (enum who w = A; w <= B; w++) {
				uint64_t there = side[!w].va, part = i * len;

				post_on(w, qpi[w],
					(struct work){ .op = IBV_WR_RDMA_WRITE,
						       .len = len,
						       .off = 0x500000 + part,
						       .raddr = there + at_w +
								part });
				post_on(w, qpi[w],
					(struct work){ .op = IBV_WR_RDMA_READ,
						       .len = len,
						       .off = at_r + part,
						       .raddr = there +
								0x500000 +
								part });
				post_on(w, qpi[w],
					(struct work){ .op = IBV_WR_SEND,
						       .len = len,
						       .off = 0x500000 +
							      part });
				post_on(w, qpi[w],
					(struct work){
						.op = IBV_WR_ATOMIC_FETCH_AND_ADD,
						.len = 8,
						.off = word + 64,
						.raddr = there + word,
						.cmp_add = 1 });
			}
		for (enum who w = A; w <= B; w++)
			while (sent[w] < 4 * n || got[w] < n) {
				struct done d = expect(w, IBV_WC_SUCCESS,
						       "one of many");

				if (d.opcode & IBV_WC_RECV)
					got[w]++;
				else
					sent[w]++;
			}
		for (enum who w = A; w <= B; w++) {
			expect_data(w, at_w, n * len, true);
			expect_data(w, at_s, n * len, true);
			expect_data(w, at_r, n * len, true);
			expect_word("sum", at(w, "get %lx", word).v[0], n);
		}
	}
}

void rc_mixed(void)
{
	pair(IBV_QPT_RC);
	mixed(3);
}

static volatile sig_atomic_t enough;

static void on_sigterm(int sig)
{
	(void)sig;
	enough = 1;
}

/* Mixed traffic until SIGTERM or for a given time, while something disturbs. */
void rc_stream(void)
{
	uint64_t until, rounds = 0;

	signal(SIGTERM, on_sigterm);
	conf.retry = 7;
	pair(IBV_QPT_RC);
	until = now_ms() + opt_seconds * 1000;
	do {
		mixed(1);
		rounds++;
	} while (!enough && now_ms() < until);
	remark("%" PRIu64 " rounds", rounds);
}

/* Idle QPs for as long, for hostile packets to be tried on. */
void victims(void)
{
	signal(SIGTERM, on_sigterm);
	for (int i = 0; i < 16; i++) {
		pair(i < 10 ? IBV_QPT_RC : i < 13 ? IBV_QPT_UC : IBV_QPT_UD);
		for (int k = 0; k < 16; k++)
			for (enum who w = A; w <= B; w++)
				receive(w, AT_B, 2048, 0);
		for (enum who w = A; w <= B; w++)
			printf("victim %c 0x%x:0x%" PRIx64 ":0x%x:0x%" PRIx64
			       "\n",
			       w == A ? 'A' : 'B', qpn[w], conf.psn[!w],
			       side[w].rkey, side[w].va + AT_B);
	}
	printf("ready\n");
	fflush(stdout);
	for (unsigned i = 0; i < opt_seconds && !enough; i++)
		sleep(1);
	/* Both ends still do their work. */
	for (enum who w = A; w <= B; w++) {
		struct done d;

		while (poll_wc(w, &d, 0))
			;
	}
	pair(IBV_QPT_RC);
	one_message(IBV_WR_SEND, 5000, 0, 0);
}

void rc_many_qps(void)
{
	uint64_t a[8], len = 2 * opt_mtu + 9;

	for (unsigned i = 0; i < 8; i++) {
		pair(IBV_QPT_RC);
		a[i] = qpi[A];
	}
	seed++;
	at(A, "fill %x %lx %lx", AT_A, 64 * len, seed);
	at(B, "guard %x %lx", AT_B, 64 * len);
	for (uint64_t i = 0; i < 64; i++)
		post_on(A, a[i % 8],
			(struct work){ .op = IBV_WR_RDMA_WRITE,
				       .len = len,
				       .off = AT_A + i * len,
				       .raddr = side[B].va + AT_B + i * len });
	for (int i = 0; i < 64; i++)
		expect_sent(A, IBV_WR_RDMA_WRITE);
	/* Writes of iWARP complete when they are sent. */
	for (int i = 0; opt_iwarp && i < 300 &&
			at(B, "check %x %lx %lx 0", AT_B, 64 * len, seed).v[0];
	     i++)
		usleep(10000);
	expect_data(B, AT_B, 64 * len, true);
}

/* Traffic class, hop limit and flow label; the capture is the judge. */
void rc_path(void)
{
	conf.tclass = 0x68;
	conf.hops = 33;
	conf.flow = 0x54321;
	pair(IBV_QPT_RC);
	one_message(IBV_WR_SEND, 100, 0, 0);
	one_message(IBV_WR_RDMA_READ, 100, 0, 0);
}

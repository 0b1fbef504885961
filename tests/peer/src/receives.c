/*
 * receives.c - scenarios of the receiving side: solicited events, shared
 * receive queues, a receiver that is not ready
 */
#include "scenario.h"

uint64_t make_ah(enum who w)
{
	return at(w, "ah %lx %lx %lx %lx %lx", side[!w].gid_hi, side[!w].gid_lo,
		  conf.tclass, conf.hops, conf.flow)
		.v[0];
}

/* Only a message sent as solicited wakes who asked for solicited only. */
static void solicited(enum ibv_qp_type type, enum ibv_wr_opcode op)
{
	uint64_t ah = 0, grh = type == IBV_QPT_UD ? 40 : 0;

	pair(type);
	if (type == IBV_QPT_UD)
		ah = make_ah(A);
	receive(B, AT_B, 64 + grh, 0);
	receive(B, AT_B, 64 + grh, 0);
	at(B, "arm 1");
	post(.op = op, .len = 64, .ah = ah, .raddr = side[B].va + 0x500000);
	expect_sent(A, op);
	if (at(B, "event 12c").v[0])
		fail("responder: event for a message that was not solicited");
	post(.op = op, .len = 64, .ah = ah, .raddr = side[B].va + 0x500000,
	     .flags = IBV_SEND_SOLICITED);
	expect_sent(A, op);
	if (!at(B, "event 1388").v[0])
		fail("responder: no event for a solicited message");
	expect_received(B, op, 64 + grh, 0);
	expect_received(B, op, 64 + grh, 0);
}

void rc_solicited(void)
{
	solicited(IBV_QPT_RC, IBV_WR_SEND);
}

void rc_solicited_imm(void)
{
	solicited(IBV_QPT_RC, IBV_WR_RDMA_WRITE_WITH_IMM);
}

void uc_solicited(void)
{
	solicited(IBV_QPT_UC, IBV_WR_SEND);
}

void ud_solicited(void)
{
	solicited(IBV_QPT_UD, IBV_WR_SEND);
}

/* Two connections into one shared receive queue. */
void rc_srq(void)
{
	uint64_t a[2];
	uint32_t b[2];

	at(B, "srq 40");
	conf.srq = true;
	for (int i = 0; i < 2; i++) {
		pair(IBV_QPT_RC);
		a[i] = qpi[A];
		b[i] = qpn[B];
	}
	for (uint64_t i = 0; i < 16; i++) {
		uint64_t len = i * (opt_mtu - 3) / 2;

		seed++;
		at(A, "fill %x %lx %lx", AT_A, len, seed);
		at(B, "guard %x %lx", AT_B, len);
		receive(B, AT_B, len, 0);
		post_on(A, a[i & 1],
			(struct work){ .op = i & 2 ? IBV_WR_SEND_WITH_IMM :
						     IBV_WR_SEND,
				       .len = len,
				       .imm = i });
		expect_sent(A, IBV_WR_SEND);
		struct done d = wait_wc(B, "the receive");

		judge_received(B, &d,
			       i & 2 ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND, len,
			       i);
		if (d.qpn != b[i & 1])
			fail("responder: completion names the wrong QP");
		expect_data(B, AT_B, len, true);
	}
}

void rc_srq_write_imm(void)
{
	at(B, "srq 40");
	conf.srq = true;
	rc_op(IBV_WR_RDMA_WRITE_WITH_IMM);
}

/* An event once, when fewer receives are left than was asked for. */
void rc_srq_limit(void)
{
	struct reply r;

	at(B, "srq 40");
	conf.srq = true;
	pair(IBV_QPT_RC);
	for (int i = 0; i < 8; i++)
		receive(B, AT_B, 64, 0);
	at(B, "limit 4");
	for (int left = 7; left >= 0; left--) {
		post(.op = IBV_WR_SEND, .len = 64);
		expect_sent(A, IBV_WR_SEND);
		expect_received(B, IBV_WR_SEND, 64, 0);
		r = at(B, "async %x", left == 3 ? 5000 : 50);
		if (r.v[0] != (left == 3))
			fail("responder: %s, %d receives left, limit 4",
			     r.v[0] ? "an event" : "no event", left);
		if (r.v[0] && r.v[1] != IBV_EVENT_SRQ_LIMIT_REACHED)
			fail("responder: event %" PRIu64 ", not the SRQ limit",
			     r.v[1]);
	}
}

/* Nothing to receive into at first: RNR NAK, a pause, and the message. */
static void rnr(void)
{
	static const enum ibv_wr_opcode ops[] = { IBV_WR_SEND,
						  IBV_WR_SEND_WITH_IMM,
						  IBV_WR_RDMA_WRITE_WITH_IMM };

	for (int i = 0; i < 6; i++) {
		enum ibv_wr_opcode op = ops[i % 3];
		uint64_t len = i < 3 ? 64 : 5 * opt_mtu;

		seed++;
		at(A, "fill %x %lx %lx", AT_A, len, seed);
		at(B, "guard %x %lx", AT_B, len);
		post(.op = op, .len = len, .imm = seed);
		usleep(60000);
		receive(B, AT_B, len, 0);
		expect_sent(A, op);
		expect_received(B, op, len, seed);
		expect_data(B, AT_B, len, true);
	}
}

void rc_rnr(void)
{
	conf.rnr_timer = 16; /* 2.56 ms */
	pair(IBV_QPT_RC);
	rnr();
}

void rc_rnr_srq(void)
{
	at(B, "srq 40");
	conf.srq = true;
	rc_rnr();
}

/* 7 retries are without end (9.7.5.2.8): many more pauses than that. */
void rc_rnr_endless(void)
{
	static const enum ibv_wr_opcode ops[] = { IBV_WR_SEND,
						  IBV_WR_RDMA_WRITE_WITH_IMM };

	conf.rnr_timer = 12; /* 0.64 ms */
	if (side[A].rxe) {
		remark("rxe as requester keeps counting timeouts and gives up "
		       "after 0.5 s, so its timeout is longer here; "
		       "softhca's is 67 ms");
		conf.timeout = 18; /* 1.07 s */
	}
	pair(IBV_QPT_RC);
	for (int i = 0; i < 2; i++) {
		struct done d;

		seed++;
		at(A, "fill %x 64 %lx", AT_A, seed);
		at(B, "guard %x 64", AT_B);
		post(.op = ops[i], .len = 100, .imm = seed);
		if (poll_wc(A, &d, 1000))
			fail("requester: \"%s\" while there is no receive",
			     ibv_wc_status_str(d.status));
		receive(B, AT_B, 100, 0);
		expect_sent(A, ops[i]);
		expect_received(B, ops[i], 100, seed);
		expect_data(B, AT_B, 100, true);
	}
}

/* The receives of 64 sends come bit by bit: RNR in the middle, in order. */
void rc_rnr_middle(void)
{
	static const int part[] = { 20, 1, 30, 13 };
	const uint64_t len = opt_mtu + 5;
	uint64_t to = 0;

	pair(IBV_QPT_RC);
	seed++;
	at(A, "fill %x %lx %lx", AT_A, 64 * len, seed);
	at(B, "guard %x %lx", AT_B, 64 * len);
	for (size_t p = 0; p < 4; p++) {
		for (int i = 0; i < part[p]; i++)
			receive(B, AT_B + to++ * len, len, 0);
		for (uint64_t i = 0; p == 0 && i < 64; i++)
			post(.op = IBV_WR_SEND_WITH_IMM, .len = len,
			     .off = AT_A + i * len, .imm = i);
		usleep(30000);
	}
	for (uint64_t i = 0; i < 64; i++) {
		expect_sent(A, IBV_WR_SEND_WITH_IMM);
		expect_received(B, IBV_WR_SEND_WITH_IMM, len, i);
	}
	expect_data(B, AT_B, 64 * len, true);
}

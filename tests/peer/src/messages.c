/*
 * messages.c - scenarios of RC requests: sends, writes, reads, atomics
 */
#include "scenario.h"

void rc_op(enum ibv_wr_opcode op)
{
	uint64_t s[8];
	size_t n = sizes(s, 1 << 20);

	pair(IBV_QPT_RC);
	for (size_t i = 0; i < n; i++)
		one_message(op, s[i], 0, 0);
}

void rc_send(void)
{
	rc_op(IBV_WR_SEND);
}

void rc_send_imm(void)
{
	rc_op(IBV_WR_SEND_WITH_IMM);
}

void rc_write(void)
{
	rc_op(IBV_WR_RDMA_WRITE);
}

void rc_write_imm(void)
{
	rc_op(IBV_WR_RDMA_WRITE_WITH_IMM);
}

void rc_read(void)
{
	rc_op(IBV_WR_RDMA_READ);
}

/* Sends, writes and reads of all sizes from one on, each longer by more. */
static void in_pieces(size_t from, uint64_t more, uint64_t pieces)
{
	static const enum ibv_wr_opcode ops[] = { IBV_WR_SEND,
						  IBV_WR_RDMA_WRITE,
						  IBV_WR_RDMA_READ };
	uint64_t s[8];
	size_t n = sizes(s, 100000);

	pair(IBV_QPT_RC);
	for (size_t o = 0; o < 3; o++)
		for (size_t i = from; i < n; i++)
			one_message(ops[o], s[i] + more, pieces, 0);
}

/* Work requests of three pieces, both gathered and scattered. */
void rc_sge(void)
{
	in_pieces(1, 3, 3);
}

/* Work requests and receives with empty pieces among others. */
void rc_zero_sge(void)
{
	in_pieces(0, 0, ZERO_PIECES);
}

/* Without data neither key nor address is looked at (C9-88). */
void rc_zero(void)
{
	static const enum ibv_wr_opcode ops[] = { IBV_WR_RDMA_WRITE,
						  IBV_WR_RDMA_READ,
						  IBV_WR_RDMA_WRITE_WITH_IMM };

	pair(IBV_QPT_RC);
	for (size_t i = 0; i < 3; i++) {
		uint64_t rkey = side[B].rkey ^ 0x5500;

		if (side[B].rxe && ops[i] == IBV_WR_RDMA_READ) {
			remark("rxe as responder checks the rkey when such a "
			       "read is repeated, and goes to ERR: it gets a "
			       "valid one here");
			rkey = 0;
		}
		if (takes_recv(ops[i]))
			receive(B, AT_B, 0, 0);
		post(.op = ops[i], .rkey = rkey, .raddr = 1, .imm = i);
		expect_sent(A, ops[i]);
		if (takes_recv(ops[i]))
			expect_received(B, ops[i], 0, i);
	}
	one_message(IBV_WR_RDMA_WRITE, 100, 0, 0);
}

/* What a read or an atomic brings is sent on: not before it has arrived. */
static bool fence(enum ibv_wr_opcode first, uint64_t len)
{
	const uint64_t brought = AT_A + 0x200000, again = AT_A + 0x310000,
		       sent = 0x500000, written = 0x680000;

	seed++;
	at(B, "fill %x %lx %lx", AT_B, len, seed);
	at(A, "guard %lx %lx", brought, len);
	at(A, "guard %lx %lx", again, len);
	at(B, "guard %lx %lx", sent, len);
	at(B, "guard %lx %lx", written, len);
	receive(B, sent, len, 0);
	post(.op = first, .len = len, .off = brought, .cmp_add = 1);
	post(.op = IBV_WR_SEND, .len = len, .off = brought,
	     .flags = IBV_SEND_FENCE);
	post(.op = first, .len = len, .off = again, .cmp_add = 1);
	post(.op = IBV_WR_RDMA_WRITE, .len = len, .off = again,
	     .raddr = side[B].va + written, .flags = IBV_SEND_FENCE);
	for (int i = 0; i < 4; i++) {
		struct done d;

		if (!opt_lossy || !side[A].rxe)
			d = expect(A, IBV_WC_SUCCESS, "one of four requests");
		else if (!poll_wc(A, &d, 3000)) {
			remark("rxe as requester never sends a fenced request "
			       "when those before it were repeated");
			return false;
		}
		if (d.status != IBV_WC_SUCCESS ||
		    d.opcode != wc_of(i == 1 ? IBV_WR_SEND :
				      i == 3 ? IBV_WR_RDMA_WRITE :
					       first))
			fail("requester: request %d of four: \"%s\", opcode %d",
			     i, ibv_wc_status_str(d.status), (int)d.opcode);
	}
	expect_received(B, IBV_WR_SEND, len, 0);
	expect_data(B, sent, len, true);
	if (first == IBV_WR_RDMA_READ)
		expect_data(B, written, len, true);
	else /* of the second atomic */
		expect_word("what was written", at(B, "get %lx", written).v[0],
			    at(B, "get %lx", sent).v[0] + 1);
	return true;
}

void rc_fence(void)
{
	uint64_t s[8];
	size_t n = sizes(s, 1 << 20);

	pair(IBV_QPT_RC);
	for (size_t i = 1; i < n; i++)
		if (!fence(IBV_WR_RDMA_READ, s[i]))
			return;
	for (int i = 0; i < 8; i++)
		if (!fence(IBV_WR_ATOMIC_FETCH_AND_ADD, 8))
			return;
}

void rc_inline(void)
{
	static const uint64_t len[] = { 0, 1, 33, 64 };

	pair(IBV_QPT_RC);
	for (size_t i = 0; i < 4; i++) {
		one_message(IBV_WR_SEND, len[i], 0, IBV_SEND_INLINE);
		one_message(IBV_WR_RDMA_WRITE, len[i], 0, IBV_SEND_INLINE);
	}
}

/* Most requests unsignaled: acknowledgements are coalesced, all arrive. */
void rc_unsignaled(void)
{
	pair(IBV_QPT_RC);
	for (int round = 0; round < 4; round++) {
		for (int i = 0; i < 32; i++)
			receive(B, AT_B, 4096, 0);
		for (uint64_t i = 0; i < 32; i++)
			post(.op = IBV_WR_SEND_WITH_IMM, .len = 100 + i,
			     .imm = i, .quiet = i != 31);
		expect_sent(A, IBV_WR_SEND);
		for (uint64_t i = 0; i < 32; i++)
			expect_received(B, IBV_WR_SEND_WITH_IMM, 100 + i, i);
	}
}

static uint64_t atomic(enum ibv_wr_opcode op, uint64_t cmp_add, uint64_t swap)
{
	post(.op = op, .len = 8, .cmp_add = cmp_add, .swap = swap);
	expect_sent(A, op);
	return at(A, "get %x", AT_A).v[0];
}

void rc_cas(void)
{
	const uint64_t x = 0x1122334455667788, y = 0x99aabbccddeeff00;

	pair(IBV_QPT_RC);
	at(B, "put %x %lx", AT_B, x);
	for (int i = 0; i < 8; i++) {
		expect_word("old value",
			    atomic(IBV_WR_ATOMIC_CMP_AND_SWP, x, y), x);
		expect_word("after a match", at(B, "get %x", AT_B).v[0], y);
		expect_word("old value",
			    atomic(IBV_WR_ATOMIC_CMP_AND_SWP, x, 5), y);
		expect_word("after a mismatch", at(B, "get %x", AT_B).v[0], y);
		expect_word("old value",
			    atomic(IBV_WR_ATOMIC_CMP_AND_SWP, y, x), y);
	}
}

void rc_faa(void)
{
	uint64_t sum = UINT64_MAX - 2; /* wraps */

	pair(IBV_QPT_RC);
	at(B, "put %x %lx", AT_B, sum);
	for (uint64_t i = 1; i <= 16; i++) {
		expect_word("old value",
			    atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, i, 0), sum);
		sum += i;
		expect_word("sum", at(B, "get %x", AT_B).v[0], sum);
	}
}

/* Outstanding atomics: executed once each, in order. */
void rc_faa_burst(void)
{
	pair(IBV_QPT_RC);
	at(B, "put %x 0", AT_B);
	for (uint64_t i = 0; i < 64; i++)
		post(.op = IBV_WR_ATOMIC_FETCH_AND_ADD, .len = 8,
		     .off = AT_A + 8 * i, .cmp_add = 3);
	for (uint64_t i = 0; i < 64; i++)
		expect_sent(A, IBV_WR_ATOMIC_FETCH_AND_ADD);
	for (uint64_t i = 0; i < 64; i++)
		expect_word("old value", at(A, "get %lx", AT_A + 8 * i).v[0],
			    3 * i);
	expect_word("sum", at(B, "get %x", AT_B).v[0], 3 * 64);
}

/* Outstanding with writes and reads around them; all in order. */
void rc_atomic_write(void)
{
	const uint64_t x = 0x0123456789abcdef;

	if (!(side[A].caps & side[B].caps & CAP_ATOMIC_WRITE))
		skip("%s has no atomic write",
		     side[A].caps & CAP_ATOMIC_WRITE ? "server" : "client");
	pair(IBV_QPT_RC);
	at(B, "guard %x 80", AT_B);
	for (uint64_t i = 0; i < 16; i++) {
		at(A, "put %lx %lx", AT_A + 16 * i, ~x - i);
		/* goes first, and is overwritten; then what is there */
		post(.op = IBV_WR_RDMA_WRITE, .len = 8, .off = AT_A + 16 * i,
		     .raddr = side[B].va + AT_B + 8 * i);
		if (at(A, "write %lx %x %lx %lx", qpi[A], side[B].rkey,
		       side[B].va + AT_B + 8 * i, x + i)
			    .v[0])
			fail("requester: an atomic write is not taken");
		post(.op = IBV_WR_RDMA_READ, .len = 8, .off = AT_A + 16 * i + 8,
		     .raddr = side[B].va + AT_B + 8 * i);
	}
	for (int i = 0; i < 16; i++) {
		expect_sent(A, IBV_WR_RDMA_WRITE);
		expect_sent(A, IBV_WR_ATOMIC_WRITE);
		expect_sent(A, IBV_WR_RDMA_READ);
	}
	for (uint64_t i = 0; i < 16; i++) {
		expect_word("what was written",
			    at(B, "get %lx", AT_B + 8 * i).v[0], x + i);
		expect_word("what was read",
			    at(A, "get %lx", AT_A + 16 * i + 8).v[0], x + i);
	}
	expect_word("after what was written", at(B, "get %x", AT_B + 0x80).v[0],
		    0xeeeeeeeeeeeeeeee);
}

/* More reads posted than may be outstanding. */
static void reads(uint64_t outstanding)
{
	const uint64_t len = 3 * opt_mtu + 5;

	conf.rd_atomic = conf.dest_rd_atomic = outstanding;
	pair(IBV_QPT_RC);
	seed++;
	at(B, "fill %x %lx %lx", AT_B, 32 * len, seed);
	at(A, "guard %x %lx", AT_A, 32 * len);
	for (uint64_t i = 0; i < 32; i++)
		post(.op = IBV_WR_RDMA_READ, .len = len, .off = AT_A + i * len,
		     .raddr = side[B].va + AT_B + i * len);
	for (int i = 0; i < 32; i++)
		expect_sent(A, IBV_WR_RDMA_READ);
	expect_data(A, AT_A, 32 * len, true);
}

void rc_reads_1(void)
{
	reads(1);
}

void rc_reads_16(void)
{
	reads(16);
}

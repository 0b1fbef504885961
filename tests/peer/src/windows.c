/*
 * windows.c - scenarios of memory windows, and of invalidation
 */
#include "scenario.h"

/* A window of type 2: write and read through it, then invalidate it. */
void rc_send_inv(void)
{
	uint64_t s[8];
	size_t n = sizes(s, 65539);
	uint64_t mw, rkey = 0;

	if (!(side[B].caps &
	      (IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B)))
		skip("server has no memory windows of type 2");
	pair(IBV_QPT_RC);
	mw = at(B, "mw %x", (unsigned)IBV_MW_TYPE_2).v[0];
	for (size_t i = 0; i < n; i++) {
		rkey = at(B, "bind %lx %lx 0 %x %x %x", qpi[B], mw, AT_B,
			  1 << 20,
			  (unsigned)(IBV_ACCESS_REMOTE_WRITE |
				     IBV_ACCESS_REMOTE_READ))
			       .v[0];
		seed++;
		at(A, "fill %x %lx %lx", AT_A, s[i], seed);
		at(B, "guard %x %lx", AT_B, s[i]);
		post(.op = IBV_WR_RDMA_WRITE, .len = s[i], .rkey = rkey);
		expect_sent(A, IBV_WR_RDMA_WRITE);
		expect_data(B, AT_B, s[i], true);
		receive(B, 0x500000, s[i], 0);
		post(.op = IBV_WR_SEND_WITH_INV, .len = s[i], .imm = rkey);
		expect_sent(A, IBV_WR_SEND_WITH_INV);
		expect_received(B, IBV_WR_SEND_WITH_INV, s[i], rkey);
		expect_data(B, 0x500000, s[i], false);
	}
	post(.op = IBV_WR_RDMA_WRITE, .len = 8, .rkey = rkey);
	expect(A, IBV_WC_REM_ACCESS_ERR,
	       "a write through a window that is gone");
	expect_flush();
}

void need_windows(enum ibv_mw_type type)
{
	uint64_t can = type == IBV_MW_TYPE_1 ?
			       IBV_DEVICE_MEM_WINDOW :
			       IBV_DEVICE_MEM_WINDOW_TYPE_2A |
				       IBV_DEVICE_MEM_WINDOW_TYPE_2B;

	if (!(side[B].caps & can))
		skip("server has no memory windows of type %d", (int)type);
}

/* Binds a window of B to part of its buffer, for all kinds of access. */
uint64_t bind_window(uint64_t mw, uint64_t off, uint64_t len)
{
	return at(B, "bind %lx %lx 0 %lx %lx %x", qpi[B], mw, off, len,
		  (unsigned)(IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
			     IBV_ACCESS_REMOTE_ATOMIC))
		.v[0];
}

/* 5000 bytes through a window. */
static void write_through(uint64_t rkey)
{
	seed++;
	at(A, "fill %x 1388 %lx", AT_A, seed);
	at(B, "guard %x 1388", AT_B);
	post(.op = IBV_WR_RDMA_WRITE, .len = 5000, .rkey = rkey);
	expect_sent(A, IBV_WR_RDMA_WRITE);
	expect_data(B, AT_B, 5000, true);
}

/* A write that may not go through a window. */
static void write_refused(uint64_t rkey, const char *of)
{
	seed++;
	at(B, "fill %x 2000 %lx", AT_B, seed);
	post(.op = IBV_WR_RDMA_WRITE, .len = 5000, .rkey = rkey);
	expect(A, IBV_WC_REM_ACCESS_ERR, of);
	expect_data(B, AT_B, 0x2000, false);
	expect_flush();
	expect_fallen();
}

/* The owner itself invalidates a window, binds it again, and so on. */
void rc_local_inv(void)
{
	uint64_t mw, rkey = 0;

	need_windows(IBV_MW_TYPE_2);
	pair(IBV_QPT_RC);
	mw = at(B, "mw %x", (unsigned)IBV_MW_TYPE_2).v[0];
	for (int i = 0; i < 3; i++) {
		rkey = bind_window(mw, AT_B, 0x10000);
		write_through(rkey);
		post_on(B, qpi[B],
			(struct work){ .op = IBV_WR_LOCAL_INV, .imm = rkey });
		expect_sent(B, IBV_WR_LOCAL_INV);
	}
	write_refused(rkey, "a write through a window that is gone");
	/* the region itself is not */
	pair(IBV_QPT_RC);
	one_message(IBV_WR_RDMA_WRITE, 5000, 0, 0);
}

/* A window of type 2 is for the peer of the QP that has bound it. */
void err_mw_qp(void)
{
	uint64_t rkey, first[2];

	need_windows(IBV_MW_TYPE_2);
	pair(IBV_QPT_RC);
	first[A] = qpi[A];
	first[B] = qpi[B];
	rkey = bind_window(at(B, "mw %x", (unsigned)IBV_MW_TYPE_2).v[0], AT_B,
			   0x10000);
	write_through(rkey);
	pair(IBV_QPT_RC);
	write_refused(rkey, "a write through a window of another QP");
	qpi[A] = first[A];
	qpi[B] = first[B];
	write_through(rkey);
}

void rc_mw1(void)
{
	uint64_t mw, rkey;

	if (!(side[B].caps & IBV_DEVICE_MEM_WINDOW))
		skip("server has no memory windows of type 1");
	pair(IBV_QPT_RC);
	mw = at(B, "mw %x", (unsigned)IBV_MW_TYPE_1).v[0];
	rkey = at(B, "bind %lx %lx 0 %x %x %x", qpi[B], mw, AT_B, 0x10000,
		  (unsigned)IBV_ACCESS_REMOTE_WRITE)
		       .v[0];
	write_through(rkey);
	/* not granted */
	post(.op = IBV_WR_RDMA_READ, .len = 64, .rkey = rkey);
	expect(A, IBV_WC_REM_ACCESS_ERR, "a read through a write-only window");
	expect_flush();
}

/*
 * errors.c - scenarios of RC requests that are refused, or cannot be sent
 */
#include "scenario.h"

static const struct {
	enum ibv_wr_opcode op;
	uint64_t len;
} one_sided[] = {
	{ IBV_WR_RDMA_WRITE, 64 },          { IBV_WR_RDMA_READ, 64 },
	{ IBV_WR_ATOMIC_CMP_AND_SWP, 8 },   { IBV_WR_ATOMIC_FETCH_AND_ADD, 8 },
	{ IBV_WR_RDMA_WRITE_WITH_IMM, 64 }, { IBV_WR_RDMA_WRITE, 5000 },
	{ IBV_WR_RDMA_READ, 5000 },
};

#define ONE_SIDED (sizeof(one_sided) / sizeof(*one_sided))

/* A request that the responder's memory refuses; nothing may change there. */
static void refused(size_t i, uint64_t rkey, uint64_t raddr)
{
	seed++;
	at(B, "fill %x 2000 %lx", AT_B, seed);
	if (one_sided[i].op == IBV_WR_RDMA_WRITE_WITH_IMM)
		receive(B, 0x500000, 0, 0);
	post(.op = one_sided[i].op, .len = one_sided[i].len, .rkey = rkey,
	     .raddr = raddr, .cmp_add = 1, .swap = 2);
	expect(A, IBV_WC_REM_ACCESS_ERR, "a request the memory refuses");
	expect_data(B, AT_B, 0x2000, false);
	expect_flush();
	expect_fallen();
	/* the receive that it would have completed (11.6.2) */
	if (one_sided[i].op == IBV_WR_RDMA_WRITE_WITH_IMM)
		expect_receive_ends(IBV_WC_LOC_ACCESS_ERR,
				    IBV_WC_REM_ACCESS_ERR);
}

void err_rkey(void)
{
	for (size_t i = 0; i < ONE_SIDED; i++) {
		pair(IBV_QPT_RC);
		refused(i, side[B].rkey ^ 0x5500, 0);
	}
}

/* A key whose tag is an old one. */
void err_rkey_tag(void)
{
	for (size_t i = 0; i < ONE_SIDED; i++) {
		pair(IBV_QPT_RC);
		refused(i, side[B].rkey ^ 0x01, 0);
	}
}

/* Beyond the end, before the beginning, and where the address wraps. */
void err_bounds(void)
{
	struct reply mr = at(
		B, "mr %x %x 1000",
		(unsigned)(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			   IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC),
		AT_B);

	for (size_t i = 0; i < ONE_SIDED; i++) {
		uint64_t len = one_sided[i].len, va = side[B].va + AT_B;

		pair(IBV_QPT_RC);
		refused(i, mr.v[2], (va + 0x1000 - len + 8) & ~7ull);
		pair(IBV_QPT_RC);
		refused(i, mr.v[2], va - 8);
		pair(IBV_QPT_RC);
		refused(i, mr.v[2], ~7ull);
	}
}

/* rxe looks at the bounds of the region, not at those of the window. */
static bool heeds_no_bounds(uint64_t rkey, uint64_t raddr)
{
	struct done d;

	post(.op = IBV_WR_RDMA_WRITE, .len = 8, .rkey = rkey, .raddr = raddr);
	d = wait_wc(A, "a write outside the window");
	if (d.status == IBV_WC_SUCCESS)
		remark("rxe as responder lets a request go beyond the window, "
		       "up to the region's end; softhca refuses it with \"%s\"",
		       ibv_wc_status_str(IBV_WC_REM_ACCESS_ERR));
	else
		pair(IBV_QPT_RC);
	return d.status == IBV_WC_SUCCESS;
}

/* Inside the region, outside the window. */
void err_mw_bounds(void)
{
	const uint64_t va = side[B].va + AT_B + 0x800;

	need_windows(IBV_MW_TYPE_2);
	need_windows(IBV_MW_TYPE_1);
	for (int type = IBV_MW_TYPE_1; type <= IBV_MW_TYPE_2; type++)
		for (size_t i = 0; i < ONE_SIDED; i++)
			for (int after = 0; after < 2; after++) {
				uint64_t len = one_sided[i].len, rkey;

				pair(IBV_QPT_RC);
				rkey = bind_window(at(B, "mw %x", type).v[0],
						   AT_B + 0x800, 0x1400);
				post(.op = IBV_WR_RDMA_WRITE, .len = 8,
				     .rkey = rkey, .raddr = va);
				expect_sent(A, IBV_WR_RDMA_WRITE);
				post(.op = IBV_WR_RDMA_WRITE, .len = 8,
				     .rkey = rkey, .raddr = va + 0x1400 - 8);
				expect_sent(A, IBV_WR_RDMA_WRITE);
				if (side[B].rxe &&
				    heeds_no_bounds(rkey, va - 8))
					return;
				refused(i, rkey,
					after ? (va + 0x1400 - len + 8) &
							~7ull :
						va - 8);
			}
}

/* The region allows everything but that. */
void err_access(void)
{
	const unsigned r = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
		       w = IBV_ACCESS_REMOTE_WRITE,
		       rw = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;

	for (size_t i = 0; i < ONE_SIDED; i++) {
		enum ibv_wr_opcode op = one_sided[i].op;
		struct reply mr = at(B, "mr %x %x 10000",
				     (op == IBV_WR_RDMA_READ ? w :
				      one_sided[i].len == 8  ? rw :
							       r) |
					     (unsigned)IBV_ACCESS_LOCAL_WRITE,
				     AT_B);

		pair(IBV_QPT_RC);
		refused(i, mr.v[2], 0);
	}
}

/* The region is not for peers at all; its lkey is no rkey. */
void err_local_mr(void)
{
	struct reply mr =
		at(B, "mr %x %x 10000", (unsigned)IBV_ACCESS_LOCAL_WRITE, AT_B);

	for (size_t i = 0; i < ONE_SIDED; i++) {
		pair(IBV_QPT_RC);
		refused(i, mr.v[1], 0);
	}
}

/* The QP does not allow it: invalid request (9.7.4.1.5, table 58). */
void err_qp_access(void)
{
	conf.access = IBV_ACCESS_LOCAL_WRITE;
	for (size_t i = 0; i < ONE_SIDED; i++) {
		seed++;
		at(B, "fill %x 2000 %lx", AT_B, seed);
		pair(IBV_QPT_RC);
		if (one_sided[i].op == IBV_WR_RDMA_WRITE_WITH_IMM)
			receive(B, 0x500000, 0, 0);
		post(.op = one_sided[i].op, .len = one_sided[i].len);
		expect(A, IBV_WC_REM_INV_REQ_ERR, "a request the QP refuses");
		expect_data(B, AT_B, 0x2000, false);
		expect_flush();
		expect_fallen();
		/* refused before it took the receive */
		if (one_sided[i].op == IBV_WR_RDMA_WRITE_WITH_IMM)
			expect_receive_ends(IBV_WC_WR_FLUSH_ERR,
					    IBV_WC_WR_FLUSH_ERR);
	}
}

/* A message longer than the receive: NAK invalid request (9.7.4.1.7). */
void err_short_recv(void)
{
	const uint64_t recv[] = { 16, 16, opt_mtu, 3 * opt_mtu, 0 };
	const uint64_t sent[] = { 17, 4 * opt_mtu, opt_mtu + 1, 3 * opt_mtu + 4,
				  64 };

	for (size_t i = 0; i < 5; i++) {
		pair(IBV_QPT_RC);
		at(B, "guard %x %x", AT_B, 0x10000);
		receive(B, AT_B, recv[i], 0);
		post(.op = IBV_WR_SEND, .len = sent[i]);
		quirk(A, IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_OP_ERR,
		      "a send that is too long");
		quirk(B, IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_QP_OP_ERR,
		      "a receive that is too short");
		expect_fallen();
		expect_word("after the receive buffer",
			    at(B, "get %lx", AT_B + recv[i]).v[0],
			    0xeeeeeeeeeeeeeeee);
		expect_flush();
	}
}

/*
 * A request is refused while reads and atomics before it are on their way: they
 * were accepted, are answered, and only then comes the NAK (9.5).
 */
void err_behind_read(void)
{
	const uint64_t len = 65536 + 3;

	for (int i = 0; i < 6; i++) {
		pair(IBV_QPT_RC);
		seed++;
		at(B, "fill %x %lx %lx", AT_B, len, seed);
		at(A, "guard %x %lx", AT_A, len);
		at(A, "guard %x 8", 0x500000);
		if (i % 3 == 0)
			receive(B, 0x500000, 16, 0);
		post(.op = IBV_WR_RDMA_READ, .len = len);
		post(.op = IBV_WR_ATOMIC_FETCH_AND_ADD, .len = 8,
		     .off = 0x500000, .raddr = side[B].va + 0x600000);
		if (i % 3 == 0) /* too long */
			post(.op = IBV_WR_SEND, .len = 64);
		else if (i % 3 == 1)
			post(.op = IBV_WR_RDMA_WRITE, .len = 64,
			     .rkey = side[B].rkey ^ 0x5500);
		else
			post(.op = IBV_WR_RDMA_READ, .len = 64,
			     .off = AT_A + 0x80000,
			     .rkey = side[B].rkey ^ 0x5500);
		expect_sent(A, IBV_WR_RDMA_READ);
		expect_data(A, AT_A, len, true);
		expect_sent(A, IBV_WR_ATOMIC_FETCH_AND_ADD);
		expect_word("old value", at(A, "get %x", 0x500000).v[0],
			    at(B, "get %x", 0x600000).v[0]);
		if (i % 3 == 0) {
			quirk(A, IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_OP_ERR,
			      "a send that is too long");
			quirk(B, IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_QP_OP_ERR,
			      "a receive that is too short");
		} else {
			expect(A, IBV_WC_REM_ACCESS_ERR,
			       "a request the memory refuses");
		}
		expect_flush();
		expect_fallen();
	}
}

/* The responder's receive names memory it may not use. */
void err_recv_lkey(void)
{
	pair(IBV_QPT_RC);
	at(B, "recv %lx %x 1000 1 7 %x", qpi[B], AT_B, side[B].rkey ^ 0x7700);
	post(.op = IBV_WR_SEND, .len = 64);
	expect(A, IBV_WC_REM_OP_ERR, "a send into a bad receive");
	quirk(B, IBV_WC_LOC_PROT_ERR, IBV_WC_LOC_QP_OP_ERR, "a bad receive");
	expect_fallen();
	expect_flush();
}

/* The requester's own memory is wrong; the responder must not suffer. */
void err_lkey(void)
{
	pair(IBV_QPT_RC);
	receive(B, AT_B, 4096, 0);
	post(.op = IBV_WR_SEND, .len = 64, .lkey = side[A].rkey ^ 0x7700);
	quirk_of(A, A, IBV_WC_LOC_PROT_ERR,
		 side[A].newer ? IBV_WC_WR_FLUSH_ERR : IBV_WC_LOC_QP_OP_ERR,
		 "a send from memory not its own");
	expect_flush();
}

/* Answers of a read land in memory that may not be written. */
void err_read_lkey(void)
{
	struct reply mr = at(A, "mr 0 %x 1000", AT_A);

	pair(IBV_QPT_RC);
	post(.op = IBV_WR_RDMA_READ, .len = 64, .lkey = (uint32_t)mr.v[1]);
	expect(A, IBV_WC_LOC_PROT_ERR, "a read into read-only memory");
	expect_flush();
}

void err_misaligned(void)
{
	static const enum ibv_wr_opcode ops[] = { IBV_WR_ATOMIC_CMP_AND_SWP,
						  IBV_WR_ATOMIC_FETCH_AND_ADD };

	for (int i = 0; i < 2; i++) {
		int err;

		pair(IBV_QPT_RC);
		err = try_post_on(
			A, qpi[A],
			(struct work){ .op = ops[i],
				       .len = 8,
				       .raddr = side[B].va + AT_B + 4 });
		if (err == EINVAL) {
			if (!side[A].rxe)
				fail("requester: post: %s", strerror(err));
			remark("ibv_post_send() returns EINVAL on rxe, so it "
			       "is "
			       "never sent");
			continue;
		}
		if (err)
			fail("requester: post: %s", strerror(err));
		expect(A, IBV_WC_REM_INV_REQ_ERR, "a misaligned atomic");
		expect_flush();
	}
}

/* An atomic write that the responder refuses; nothing may change there. */
void err_atomic_write(void)
{
	const struct {
		uint64_t at, rkey, access;
		enum ibv_wc_status status;
	} t[] = {
		{ AT_B, 0x5500, conf.access, IBV_WC_REM_ACCESS_ERR },
		{ BUF_LEN, 0, conf.access, IBV_WC_REM_ACCESS_ERR },
		{ AT_B + 4, 0, conf.access, IBV_WC_REM_INV_REQ_ERR },
		{ AT_B, 0, IBV_ACCESS_LOCAL_WRITE, IBV_WC_REM_INV_REQ_ERR },
	};

	if (!(side[A].caps & side[B].caps & CAP_ATOMIC_WRITE))
		skip("%s has no atomic write",
		     side[A].caps & CAP_ATOMIC_WRITE ? "server" : "client");
	seed++;
	at(B, "fill %x 1000 %lx", AT_B, seed);
	for (size_t i = 0; i < sizeof(t) / sizeof(*t); i++) {
		conf.access = t[i].access;
		pair(IBV_QPT_RC);
		if (at(A, "write %lx %lx %lx 0", qpi[A],
		       side[B].rkey ^ t[i].rkey, side[B].va + t[i].at)
			    .v[0]) {
			if (t[i].at % 8 == 0)
				fail("requester: an atomic write is not taken");
			remark("one that is not aligned is refused when it is "
			       "posted");
			continue;
		}
		expect(A, t[i].status, "an atomic write that is refused");
		expect_data(B, AT_B, 0x1000, false);
		expect_flush();
	}
}

/* Invalidates a key that is no window of this QP. */
void err_inv(void)
{
	struct done d;

	pair(IBV_QPT_RC);
	receive(B, AT_B, 4096, 0);
	post(.op = IBV_WR_SEND_WITH_INV, .len = 64,
	     .imm = side[B].rkey ^ 0x5500);
	d = wait_wc(A, "a send that invalidates nothing");
	if (d.status != IBV_WC_SUCCESS)
		fail("requester: a send that invalidates nothing completes as "
		     "\"%s\"",
		     ibv_wc_status_str(d.status));
	expect_receive_ends(IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_INV_REQ_ERR);
	expect_fallen();
	/* The region itself must survive. */
	pair(IBV_QPT_RC);
	one_message(IBV_WR_RDMA_WRITE, 64, 0, 0);
}

void err_rnr(void)
{
	static const enum ibv_wr_opcode ops[] = { IBV_WR_SEND,
						  IBV_WR_RDMA_WRITE_WITH_IMM };

	conf.rnr_retry = 2;
	for (int i = 0; i < 2; i++) {
		pair(IBV_QPT_RC);
		post(.op = ops[i], .len = 64);
		expect(A, IBV_WC_RNR_RETRY_EXC_ERR, "a send nobody receives");
		expect_flush();
	}
}

/* Nobody has that QP number. */
void err_unknown_qp(void)
{
	conf.timeout = 12; /* 17 ms */
	conf.retry = 2;
	make(IBV_QPT_RC);
	join(A, qpi[A], qpn[B] ^ 0x000800, conf.psn[A], conf.psn[B]);
	post(.op = IBV_WR_SEND, .len = 64);
	expect(A, IBV_WC_RETRY_EXC_ERR, "a send to a QP that is not there");
	expect_flush();
}

/* The QP exists, but is in ERR. */
void err_peer_error(void)
{
	conf.timeout = 12;
	conf.retry = 2;
	pair(IBV_QPT_RC);
	one_message(IBV_WR_SEND, 64, 0, 0);
	at(B, "to %lx %x", qpi[B], (unsigned)IBV_QPS_ERR);
	post(.op = IBV_WR_RDMA_WRITE, .len = 64);
	expect(A, IBV_WC_RETRY_EXC_ERR, "a write to a QP in ERR");
	expect_flush();
}

/* The QP is there, but belongs to somebody else's connection. */
void err_wrong_peer(void)
{
	union ibv_gid other;
	uint64_t b;

	if (!opt_other)
		skip("needs another address (-o)");
	if (gid_of(opt_other, &other))
		fail("bad address %s", opt_other);
	conf.timeout = 12;
	conf.retry = 2;
	make(IBV_QPT_RC);
	b = qpi[B];
	/* B expects packets from an address that is not A's */
	at(B, "rtr %lx %x %lx %x 4 c %lx %lx 0 40 0", b, qpn[A], conf.psn[A],
	   (unsigned)mtu_code(opt_mtu), be64toh(other.global.subnet_prefix),
	   be64toh(other.global.interface_id));
	join(A, qpi[A], qpn[B], conf.psn[A], conf.psn[B]);
	post(.op = IBV_WR_RDMA_WRITE, .len = 64);
	expect(A, IBV_WC_RETRY_EXC_ERR, "a write to a QP with another peer");
	expect_flush();
}

/*
 * More reads outstanding than the responder has resources for. It may refuse
 * one as an invalid request (9.7.4.1.7), if it is then still busy with others;
 * what it answers must be right.
 */
void err_rd_atomic(void)
{
	const uint64_t len = 3 * opt_mtu + 5;
	bool ended = false;
	unsigned good = 0;

	conf.rd_atomic = 16;
	conf.dest_rd_atomic = 1;
	pair(IBV_QPT_RC);
	seed++;
	at(B, "fill %x %lx %lx", AT_B, len, seed);
	at(A, "guard %x %lx", AT_A, 32 * len);
	for (uint64_t i = 0; i < 32; i++)
		if (try_post_on(A, qpi[A],
				(struct work){ .op = IBV_WR_RDMA_READ,
					       .len = len,
					       .off = AT_A + i * len }))
			fail("requester: ibv_post_send");
	for (int i = 0; i < 32; i++) {
		struct done d = wait_wc(A, "a read");

		if (d.status == IBV_WC_SUCCESS && !ended)
			good++;
		else if (d.status == IBV_WC_REM_INV_REQ_ERR && !ended)
			ended = true;
		else if (d.status != IBV_WC_WR_FLUSH_ERR || !ended)
			fail("requester: read %d completes as \"%s\"", i,
			     ibv_wc_status_str(d.status));
	}
	for (unsigned i = 0; i < good; i++)
		expect_data(A, AT_A + i * len, len, false);
	if (ended) {
		expect_flush();
		expect_fallen();
	}
	remark(ended ? "%s as responder refuses it as an invalid request" :
		       "%s as responder answers all of them",
	       side[B].rxe ? "rxe" : "softhca");
}

/* B hears of it when its QP, without a receive to tell it, has failed. */
static void expect_event(enum ibv_event_type type)
{
	struct reply r = at(B, "async %x", side[B].rxe ? 200 : 5000);

	if (r.v[0] && r.v[1] == type && r.v[2] == qpn[B])
		return;
	if (r.v[0])
		fail("responder: event \"%s\" of QP 0x%" PRIx64
		     ", not \"%s\" of 0x%x",
		     ibv_event_type_str((enum ibv_event_type)r.v[1]), r.v[2],
		     ibv_event_type_str(type), qpn[B]);
	if (!side[B].rxe)
		fail("responder: no event \"%s\"", ibv_event_type_str(type));
	remark("rxe as responder has no event \"%s\", softhca has",
	       ibv_event_type_str(type));
}

void err_events(void)
{
	struct reply r;

	/* The first message may come before its receiver is in RTS. */
	make(IBV_QPT_RC);
	to_rtr(B, qpi[B], qpn[A], conf.psn[A]);
	join(A, qpi[A], qpn[B], conf.psn[A], conf.psn[B]);
	one_message(IBV_WR_SEND, 5000, 0, 0);
	expect_event(IBV_EVENT_COMM_EST);
	to_rts(B, qpi[B], conf.psn[B]);
	one_message(IBV_WR_SEND, 5000, 0, 0);
	r = at(B, "async 64");
	if (r.v[0])
		fail("responder: event \"%s\" of a connection in order",
		     ibv_event_type_str((enum ibv_event_type)r.v[1]));

	post(.op = IBV_WR_RDMA_WRITE, .len = 64, .rkey = side[B].rkey ^ 0x5500);
	expect(A, IBV_WC_REM_ACCESS_ERR, "a write with an unknown rkey");
	expect_event(IBV_EVENT_QP_ACCESS_ERR);

	conf.access = IBV_ACCESS_LOCAL_WRITE;
	pair(IBV_QPT_RC);
	post(.op = IBV_WR_RDMA_WRITE, .len = 64);
	expect(A, IBV_WC_REM_INV_REQ_ERR, "a request the QP refuses");
	expect_event(IBV_EVENT_QP_REQ_ERR);

	at(B, "srq 40");
	conf.srq = true;
	pair(IBV_QPT_RC);
	one_message(IBV_WR_SEND, 64, 0, 0);
	at(B, "to %lx %x", qpi[B], (unsigned)IBV_QPS_ERR);
	expect_event(IBV_EVENT_QP_LAST_WQE_REACHED);
}

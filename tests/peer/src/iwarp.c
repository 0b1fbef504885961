/*
 * iwarp.c - scenarios of iWARP: what ends a connection, and only that one
 *
 * A request that is refused ends its connection by a Terminate message. On the
 * wire it has a layer, a type and a code, which the result names for who looks
 * at captured packets: "[B 1.1.00]" is sent by the responder. Expected are the
 * RFCs' (5040 4.8, 5041 7); where the kernel's siw is known to say something
 * else, that.
 */
#include "scenario.h"

#define AT_RECV 0x600000u

/* Another connection of the same processes: it has to go on. */
static struct {
	uint64_t qpi[2];
	uint32_t qpn[2];
	bool is;
} beside;

static char wire[400];

static void keep_beside(void)
{
	if (beside.is)
		return;
	pair(IBV_QPT_RC);
	memcpy(beside.qpi, qpi, sizeof(qpi));
	memcpy(beside.qpn, qpn, sizeof(qpn));
	beside.is = true;
}

static void try_beside(void)
{
	const enum ibv_wr_opcode ops[] = { IBV_WR_SEND, IBV_WR_RDMA_WRITE,
					   IBV_WR_RDMA_READ };

	memcpy(qpi, beside.qpi, sizeof(qpi));
	memcpy(qpn, beside.qpn, sizeof(qpn));
	for (int i = 0; i < 3; i++)
		one_message(ops[i], 100, 0, 0);
}

/* A connection, and a receive at its ends that is flushed. */
static void begin(bool receive_at_b)
{
	keep_beside();
	pair(IBV_QPT_RC);
	receive(A, AT_RECV, 64, 0);
	if (receive_at_b)
		receive(B, AT_RECV, 64, 0);
}

static void terminate(enum who w, unsigned layer, unsigned type, unsigned code)
{
	size_t n = strlen(wire);

	snprintf(wire + n, sizeof(wire) - n, "%s%c %u.%u.%02x", n ? ", " : "",
		 "AB"[w], layer, type, code);
}

/* An asynchronous event of softhca's QP: this, or none. */
static void expect_async(enum who w, int type)
{
	struct reply r;

	if (side[w].siw)
		return;
	do /* others are of the device */
		r = at(w, "async %x", type < 0 ? 0 : 5000);
	while (r.v[0] && !r.v[2]);
	if (type < 0 && !r.v[0])
		return;
	if (!r.v[0] || (int)r.v[1] != type || r.v[2] != qpn[w])
		fail("%s: event \"%s\" of QP 0x%" PRIx64 ", not \"%s\"",
		     w == A ? "client" : "server",
		     r.v[0] ? ibv_event_type_str((enum ibv_event_type)r.v[1]) :
			      "none",
		     r.v[0] ? r.v[2] : 0,
		     type < 0 ? "none" :
				ibv_event_type_str((enum ibv_event_type)type));
}

/*
 * Both ends hear that their connection has ended, and nothing else has. (siw
 * does not say in which state its QP is, and completes nothing that is posted
 * later.)
 */
static void ended(void)
{
	for (enum who w = A; w <= B; w++) {
		expect_cm(w, RDMA_CM_EVENT_DISCONNECTED);
		if (side[w].siw)
			continue;
		if (at(w, "state %lx", qpi[w]).v[0] != IBV_QPS_ERR)
			fail("%s: QP not in ERR after the end",
			     w == A ? "client" : "server");
		post_on(w, qpi[w],
			(struct work){ .op = IBV_WR_SEND, .len = 8 });
		expect(w, IBV_WC_WR_FLUSH_ERR, "a request after the end");
	}
	try_beside();
}

/* A send or a write has left, whatever becomes of it. */
static void expect_left(void)
{
	struct done d = wait_wc(A, "the request");

	/* siw may be told in the middle of it. */
	if (d.status != IBV_WC_SUCCESS &&
	    !(side[A].siw && d.status == IBV_WC_LOC_QP_OP_ERR))
		fail("requester: it completes as \"%s\"",
		     ibv_wc_status_str(d.status));
}

struct refusal {
	uint8_t layer, type, code;
};

/* A write or read that the responder's memory refuses. */
static void refused(enum ibv_wr_opcode op, uint64_t len, uint32_t rkey,
		    uint64_t raddr, struct refusal why)
{
	const bool read = op == IBV_WR_RDMA_READ;

	begin(true);
	seed++;
	at(B, "fill %x 8000 %lx", AT_B, seed);
	at(A, "guard %x %lx", AT_A, len);
	post(.op = op, .len = len, .rkey = rkey, .raddr = raddr);
	if (!read)
		expect_left();
	else
		/* siw as requester does not look at the Terminate. */
		expect(A,
		       side[A].siw ? IBV_WC_WR_FLUSH_ERR :
				     IBV_WC_REM_ACCESS_ERR,
		       "a read that is refused");
	expect(A, IBV_WC_WR_FLUSH_ERR, "a receive of the requester");
	/* siw forgets its own after a read that it refuses. */
	if (!read || !side[B].siw)
		expect(B, IBV_WC_WR_FLUSH_ERR, "a receive of the responder");
	expect_data(B, AT_B, 0x8000, false);
	if (read)
		expect_word("where the read would arrive",
			    at(A, "get %x", AT_A).v[0], 0xeeeeeeeeeeeeeeee);
	expect_async(B, IBV_EVENT_QP_ACCESS_ERR);
	expect_async(A, read ? -1 : IBV_EVENT_QP_FATAL);
	terminate(B, why.layer, why.type, why.code);
	ended();
}

static void refused_both(uint32_t rkey, uint64_t raddr, struct refusal write,
			 struct refusal read)
{
	const uint64_t len[] = { 64, 20000 };

	for (int i = 0; i < 2; i++) {
		refused(IBV_WR_RDMA_WRITE, len[i], rkey, raddr, write);
		refused(IBV_WR_RDMA_READ, len[i], rkey, raddr, read);
	}
}

/* The result begins with what was on the wire. */
static void finish(void)
{
	char text[sizeof(note)];

	snprintf(text, sizeof(text), "[%s]%s%.100s", wire, note[0] ? " " : "",
		 note);
	strcpy(note, text);
}

void iw_rkey(void)
{
	const struct refusal write = { 1, 1, 0 }, read = { 0, 1, 0 };

	refused_both(side[B].rkey ^ 0x5500, 0, write, read);
	refused_both(side[B].rkey ^ 0x01, 0, write, read);
	finish();
}

void iw_bounds(void)
{
	const unsigned access = IBV_ACCESS_LOCAL_WRITE |
				IBV_ACCESS_REMOTE_WRITE |
				IBV_ACCESS_REMOTE_READ;
	const uint32_t rkey =
		(uint32_t)at(B, "mr %x %x 1000", access, AT_B).v[2];
	const uint64_t va = side[B].va + AT_B;
	const struct refusal write = { 1, 1, 1 }, read = { 0, 1, 1 };

	refused_both(rkey, va + 0x1000 - 32, write, read);
	refused_both(rkey, va - 8, write, read);
	/* Where the address wraps siw has an error of its own, or resets. */
	if (side[B].siw) {
		refused(IBV_WR_RDMA_WRITE, 64, rkey, ~7ull,
			(struct refusal){ 1, 0, 0 });
	} else {
		refused_both(rkey, ~7ull, (struct refusal){ 1, 1, 3 },
			     (struct refusal){ 0, 1, 4 });
	}
	finish();
}

/* The region does not allow that, or nothing at all to a peer. */
void iw_access(void)
{
	const unsigned local = IBV_ACCESS_LOCAL_WRITE;
	const struct refusal code = { 0, 1, 2 }, stag = { 1, 1, 0 };
	uint32_t r = (uint32_t)at(B, "mr %x %x 8000",
				  local | (unsigned)IBV_ACCESS_REMOTE_READ,
				  AT_B)
			     .v[2],
		 w = (uint32_t)at(B, "mr %x %x 8000",
				  local | (unsigned)IBV_ACCESS_REMOTE_WRITE,
				  AT_B)
			     .v[2],
		 none = (uint32_t)at(B, "mr %x %x 8000", local, AT_B).v[1];
	const uint64_t va = side[B].va + AT_B;

	refused(IBV_WR_RDMA_WRITE, 64, r, va, side[B].siw ? stag : code);
	refused(IBV_WR_RDMA_WRITE, 20000, r, va, side[B].siw ? stag : code);
	refused(IBV_WR_RDMA_WRITE, 64, none, va, side[B].siw ? stag : code);
	if (!side[B].siw) {
		refused(IBV_WR_RDMA_READ, 64, w, va, code);
		refused(IBV_WR_RDMA_READ, 20000, w, va, code);
		refused(IBV_WR_RDMA_READ, 64, none, va, code);
	} else {
		begin(true);
		at(B, "fill %x 40 %lx", AT_B, ++seed);
		post(.op = IBV_WR_RDMA_READ, .len = 64, .rkey = w, .raddr = va);
		expect_sent(A, IBV_WR_RDMA_READ);
		expect_data(A, AT_A, 64, false);
		remark("siw as responder answers a read of a region without "
		       "IBV_ACCESS_REMOTE_READ; softhca refuses it");
	}
	finish();
}

void iw_short_recv(void)
{
	const uint64_t sent[] = { 65, 20000 };

	for (int i = 0; i < 2; i++) {
		begin(false);
		at(B, "guard %x %x", AT_B, 64);
		receive(B, AT_B, 64, 0);
		receive(B, AT_RECV, 64, 0);
		post(.op = IBV_WR_SEND, .len = sent[i]);
		expect_left();
		expect(A, IBV_WC_WR_FLUSH_ERR, "a receive of the requester");
		expect(B, IBV_WC_LOC_LEN_ERR, "a receive that is too short");
		expect(B, IBV_WC_WR_FLUSH_ERR, "a receive behind that");
		expect_word("after the receive buffer",
			    at(B, "get %x", AT_B + 64).v[0],
			    0xeeeeeeeeeeeeeeee);
		expect_async(B, -1);
		expect_async(A, IBV_EVENT_QP_FATAL);
		/* siw: there is no receive. */
		terminate(B, 1, 2, side[B].siw ? 2 : 5);
		ended();
	}
	finish();
}

void iw_no_recv(void)
{
	const uint64_t sent[] = { 0, 64, 20000 };

	for (int i = 0; i < 3; i++) {
		begin(false);
		post(.op = IBV_WR_SEND, .len = sent[i]);
		expect_left();
		expect(A, IBV_WC_WR_FLUSH_ERR, "a receive of the requester");
		expect_async(B, IBV_EVENT_QP_FATAL);
		expect_async(A, IBV_EVENT_QP_FATAL);
		terminate(B, 1, 2, 2);
		ended();
	}
	finish();
}

void iw_recv_lkey(void)
{
	begin(false);
	at(B, "recv %lx %x 1000 1 7 %x", qpi[B], AT_B, side[B].rkey ^ 0x7700);
	post(.op = IBV_WR_SEND, .len = 64);
	expect_left();
	expect(A, IBV_WC_WR_FLUSH_ERR, "a receive of the requester");
	expect(B, side[B].siw ? IBV_WC_GENERAL_ERR : IBV_WC_LOC_PROT_ERR,
	       "a bad receive");
	expect_async(B, -1);
	expect_async(A, IBV_EVENT_QP_FATAL);
	terminate(B, 1, 0, 0);
	ended();
	finish();
}

/* The requester's own memory is wrong: it ends the connection. */
void iw_lkey(void)
{
	begin(true);
	post(.op = IBV_WR_SEND, .len = 64, .lkey = side[A].rkey ^ 0x7700);
	expect(A, side[A].siw ? IBV_WC_LOC_QP_OP_ERR : IBV_WC_LOC_PROT_ERR,
	       "a send from memory not its own");
	/* siw forgets its receive. */
	if (!side[A].siw)
		expect(A, IBV_WC_WR_FLUSH_ERR, "a receive of the requester");
	expect(B, IBV_WC_WR_FLUSH_ERR, "a receive of the responder");
	expect_async(A, -1);
	expect_async(B, IBV_EVENT_QP_FATAL);
	terminate(A, 0, 0, side[A].siw ? 0xff : 0);
	ended();
	finish();
}

void iw_inv(void)
{
	begin(true);
	post(.op = IBV_WR_SEND_WITH_INV, .len = 64,
	     .imm = side[B].rkey ^ 0x5500);
	expect_left();
	expect(B, IBV_WC_REM_INV_REQ_ERR, "a receive that invalidates nothing");
	if (side[B].siw) {
		remark("siw as responder goes on; softhca ends the connection");
		receive(B, AT_RECV, 64, 0);
		post(.op = IBV_WR_SEND, .len = 64);
		expect_sent(A, IBV_WR_SEND);
		expect_received(B, IBV_WR_SEND, 64, 0);
		return;
	}
	expect(A, IBV_WC_WR_FLUSH_ERR, "a receive of the requester");
	expect_async(B, -1);
	expect_async(A, IBV_EVENT_QP_FATAL);
	terminate(B, 0, 1, 9);
	ended();
	finish();
}

/* Sends, writes and reads of both ends at once, several of each. */
void iw_mixed(void)
{
	const uint64_t len = 30000, n = 4, at_w = AT_B, at_s = AT_B + 0x100000,
		       at_r = AT_B + 0x200000;

	pair(IBV_QPT_RC);
	for (int round = 0; round < 4; round++) {
		seed++;
		for (enum who w = A; w <= B; w++) {
			at(w, "fill %x %lx %lx", 0x500000, n * len, seed);
			at(w, "guard %lx %lx", at_w, n * len);
			at(w, "guard %lx %lx", at_s, n * len);
			at(w, "guard %lx %lx", at_r, n * len);
			for (uint64_t i = 0; i < n; i++)
				receive(w, at_s + i * len, len, 0);
		}
		for (uint64_t i = 0; i < n; i++)
			for (enum who w = A; w <= B; w++) {
				const uint64_t part = 0x500000 + i * len;
				struct work k = { .len = len, .off = part };

				k.op = IBV_WR_RDMA_WRITE;
				k.raddr = side[!w].va + at_w + i * len;
				post_on(w, qpi[w], k);
				k.op = IBV_WR_RDMA_READ;
				k.off = at_r + i * len;
				k.raddr = side[!w].va + part;
				post_on(w, qpi[w], k);
				k.op = IBV_WR_SEND;
				k.off = part;
				post_on(w, qpi[w], k);
			}
		for (enum who w = A; w <= B; w++)
			for (uint64_t i = 0; i < 4 * n; i++)
				expect(w, IBV_WC_SUCCESS, "one of all");
		for (enum who w = A; w <= B; w++) {
			expect_data(w, at_w, n * len, true);
			expect_data(w, at_s, n * len, true);
			expect_data(w, at_r, n * len, true);
		}
	}
}

/* Gathered and scattered; a read has one place that it goes to. */
void iw_sge(void)
{
	uint64_t s[8];
	size_t n = sizes(s, 100000);

	pair(IBV_QPT_RC);
	for (size_t i = 1; i < n; i++) {
		one_message(IBV_WR_SEND, s[i] + 3, 3, 0);
		one_message(IBV_WR_RDMA_WRITE, s[i] + 3, 3, 0);
		one_message(IBV_WR_SEND, s[i], ZERO_PIECES, 0);
	}
	if (side[A].siw)
		remark("siw as requester sends one piece: gathering makes "
		       "Linux 6.1 crash");
}

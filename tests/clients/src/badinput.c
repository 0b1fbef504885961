/*
 * badinput.c - what goes wrong must go wrong as the manual pages say
 *
 *   badinput --list
 *   badinput --local                       cases that need no other end
 *   badinput [-g GID] [-p PORT]            one end
 *   badinput [-g GID] [-p PORT] HOST       the end that does wrong
 *   -E                                     do not look for events
 *
 * Local cases are calls with bad arguments and the errno they must give. Wire
 * cases connect a fresh pair of queue pairs, do something wrong, and compare
 * the completion status (and where it matters the asynchronous event) on both
 * ends. One line per case and end: "ok NAME" or "not ok NAME: got, expected".
 */
#include "badcalls.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define NOTHING (-1) /* no completion */
#define ANY (-2) /* whatever it is, but not success */
#define BUF 4096u
#define RW                                                                     \
	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |                    \
	 IBV_ACCESS_REMOTE_READ)
#define ALL (RW | IBV_ACCESS_REMOTE_ATOMIC)

struct dev dev;
static int failures;
static bool no_events; /* -E: for devices that raise none */

static void report(const char *name, bool ok, const char *got, const char *want)
{
	if (ok)
		printf("ok %s\n", name);
	else
		printf("not ok %s: got %s, expected %s\n", name, got, want);
	fflush(stdout);
	failures += !ok;
}

static void run_table(const struct local_case *table, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const int *want = table[i].want;
		int got = table[i].fn();

		report(table[i].name,
		       got == want[0] || (want[1] && got == want[1]),
		       got ? strerrorname_np(got) ?: "?" : "success",
		       want[0] ? strerrorname_np(want[0]) : "success");
	}
}

static void run_local(void)
{
	run_table(badargs, nbadargs);
	run_table(badcalls, nbadcalls);
}

/* ----------------------------------------------------------- wire cases */

/* What the server prepares, beside a QP and a 4 KiB MR with all rights. */
enum {
	NO_RECV = 1, /* no receive is posted */
	BAD_RECV = 2, /* the receive has a wrong lkey */
	SHORT_RECV = 4, /* the receive holds 64 bytes (UD: and the GRH) */
	DEREG = 8, /* the MR is gone */
	OTHER_PD = 16, /* the MR belongs to another PD */
	NO_CONNECT = 32, /* the QP stays in INIT */
	DESTROYED = 64, /* the QP is gone */
	NO_QP_RIGHTS = 128,
	FEW_CQES = 256, /* the receive CQ holds fewer than 24 */
	RO_MR = 512, /* client: its MR lacks local write */
	STAYS = 1024, /* the connection survives: a good send must work */
	LKEY = 2048, /* the server gives its lkey for the rkey */
	SWAPPED = 4096, /* client: the rkey's bytes in the other order */
	RKEY = 8192, /* client: its rkey for the lkey */
};

struct wire_case {
	const char *name;
	enum ibv_qp_type type;
	enum ibv_wr_opcode opcode;
	unsigned how;
	unsigned mr_access;
	uint32_t len;
	int64_t off; /* from the start of the server's MR */
	uint32_t bad_rkey; /* xor */
	uint32_t bad_lkey;
	uint32_t bad_qpn, bad_psn, bad_qkey; /* xor */
	int client, server; /* status */
	int event; /* EVENT() on the server, 0: do not care */
	int count; /* of work requests, 0: 1 */
};

#define RC .type = IBV_QPT_RC
#define UC .type = IBV_QPT_UC
#define UD .type = IBV_QPT_UD
#define OP(x) .opcode = IBV_WR_##x
#define EVENT(x) ((int)IBV_EVENT_##x + 1) /* IBV_EVENT_CQ_ERR is 0 */
#define FADD OP(ATOMIC_FETCH_AND_ADD)
#define REFUSED                                                                \
	.client = IBV_WC_REM_ACCESS_ERR, .server = IBV_WC_WR_FLUSH_ERR,        \
	.event = EVENT(QP_ACCESS_ERR)
#define REFUSED_RECV                                                           \
	.client = IBV_WC_REM_ACCESS_ERR, .server = IBV_WC_LOC_ACCESS_ERR,      \
	.event = EVENT(QP_ACCESS_ERR)
#define INVALID .client = IBV_WC_REM_INV_REQ_ERR, .server = IBV_WC_WR_FLUSH_ERR
#define LOCAL(s) .client = IBV_WC_##s, .server = NOTHING
#define SILENT .client = IBV_WC_SUCCESS, .server = NOTHING
#define NO_ANSWER .client = IBV_WC_RETRY_EXC_ERR, .server = NOTHING

static const struct wire_case wire_cases[] = {
	{ "write, wrong rkey", RC, OP(RDMA_WRITE), .bad_rkey = 0x100, REFUSED },
	{ "read, wrong rkey", RC, OP(RDMA_READ), .bad_rkey = 0x100, REFUSED },
	{ "atomic, wrong rkey", RC, FADD, .len = 8, .bad_rkey = 1, REFUSED },
	{ "write, rkey 0", RC, OP(RDMA_WRITE), .bad_rkey = ~0u, REFUSED },
	{ "write, lkey for the rkey", RC, OP(RDMA_WRITE), .how = LKEY,
	  REFUSED },
	{ "write, rkey in the other byte order", RC, OP(RDMA_WRITE),
	  .how = SWAPPED, REFUSED },
	{ "write of nothing, wrong rkey", RC, OP(RDMA_WRITE), .len = ~0u,
	  .bad_rkey = 1, .client = 0, .server = NOTHING, .how = STAYS },
	{ "write past the end", RC, OP(RDMA_WRITE), .len = 64, .off = BUF - 63,
	  REFUSED },
	{ "write with immediate, wrong rkey", RC, OP(RDMA_WRITE_WITH_IMM),
	  .bad_rkey = 0x100, REFUSED_RECV },
	{ "write with immediate past the end", RC, OP(RDMA_WRITE_WITH_IMM),
	  .len = 64, .off = BUF - 63, REFUSED_RECV },
	{ "write before the start", RC, OP(RDMA_WRITE), .off = -1, REFUSED },
	{ "write at the top of the address space", RC, OP(RDMA_WRITE),
	  .off = INT64_MIN, REFUSED },
	{ "long write past the end", RC, OP(RDMA_WRITE), .len = BUF, .off = 64,
	  REFUSED },
	{ "read past the end", RC, OP(RDMA_READ), .off = BUF - 1, REFUSED },
	{ "atomic past the end", RC, FADD, .len = 8, .off = BUF, REFUSED },
	{ "write, MR without remote write", RC, OP(RDMA_WRITE),
	  .mr_access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ,
	  REFUSED },
	{ "read, MR without remote read", RC, OP(RDMA_READ),
	  .mr_access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
	  REFUSED },
	{ "atomic, MR without remote atomic", RC, FADD, .len = 8,
	  .mr_access = RW, REFUSED },
	{ "write, destroyed MR", RC, OP(RDMA_WRITE), .how = DEREG, REFUSED },
	{ "read, destroyed MR", RC, OP(RDMA_READ), .how = DEREG, REFUSED },
	{ "write, MR of another PD", RC, OP(RDMA_WRITE), .how = OTHER_PD,
	  REFUSED },
	{ "write, QP without remote write", RC, OP(RDMA_WRITE),
	  .how = NO_QP_RIGHTS, INVALID },
	{ "read, QP without remote read", RC, OP(RDMA_READ),
	  .how = NO_QP_RIGHTS, INVALID },
	{ "atomic, QP without remote atomic", RC, FADD, .len = 8,
	  .how = NO_QP_RIGHTS, INVALID },
	{ "atomic at an odd address", RC, FADD, .len = 8, .off = 4, INVALID },
	{ "atomic of 16 bytes", RC, FADD, .len = 16, LOCAL(LOC_LEN_ERR) },
	{ "atomic of 4 bytes", RC, FADD, .len = 4, LOCAL(LOC_LEN_ERR) },
	{ "send longer than the receive", RC, OP(SEND), .len = 65,
	  .how = SHORT_RECV, .client = IBV_WC_REM_INV_REQ_ERR,
	  .server = IBV_WC_LOC_LEN_ERR },
	{ "long send, short receive", RC, OP(SEND), .len = BUF,
	  .how = SHORT_RECV, .client = IBV_WC_REM_INV_REQ_ERR,
	  .server = IBV_WC_LOC_LEN_ERR },
	{ "send into a receive with a wrong lkey", RC, OP(SEND),
	  .how = BAD_RECV, .client = IBV_WC_REM_OP_ERR,
	  .server = IBV_WC_LOC_PROT_ERR },
	{ "send without a receive", RC, OP(SEND), .how = NO_RECV,
	  .client = IBV_WC_RNR_RETRY_EXC_ERR, .server = NOTHING },
	{ "write with immediate without a receive", RC, OP(RDMA_WRITE_WITH_IMM),
	  .how = NO_RECV, .client = IBV_WC_RNR_RETRY_EXC_ERR,
	  .server = NOTHING },
	{ "unknown QPN", RC, OP(SEND), .bad_qpn = 0x5a5000, NO_ANSWER },
	{ "wrong PSN", RC, OP(SEND), .bad_psn = 0x1000, NO_ANSWER },
	{ "the other QP is in INIT", RC, OP(SEND), .how = NO_CONNECT,
	  NO_ANSWER },
	{ "the other QP is destroyed", RC, OP(SEND), .how = DESTROYED | NO_RECV,
	  NO_ANSWER },
	{ "send, wrong lkey", RC, OP(SEND), .bad_lkey = 0x100,
	  LOCAL(LOC_PROT_ERR) },
	{ "send, rkey for the lkey", RC, OP(SEND), .how = RKEY,
	  LOCAL(LOC_PROT_ERR) },
	{ "write, wrong lkey", RC, OP(RDMA_WRITE), .bad_lkey = 1,
	  LOCAL(LOC_PROT_ERR) },
	{ "read, wrong lkey", RC, OP(RDMA_READ), .bad_lkey = 1,
	  LOCAL(LOC_PROT_ERR) },
	{ "read into an MR without local write", RC, OP(RDMA_READ),
	  .how = RO_MR, LOCAL(LOC_PROT_ERR) },
	{ "send past the end of the local MR", RC, OP(SEND), .len = BUF + 1,
	  LOCAL(LOC_PROT_ERR) },
	{ "more messages than the CQ holds", RC, OP(SEND), .how = FEW_CQES,
	  .count = 24, .client = ANY, .server = ANY, .event = EVENT(CQ_ERR) },
	{ "UC write, wrong rkey", UC, OP(RDMA_WRITE), .bad_rkey = 1, SILENT,
	  .how = STAYS },
	{ "UC write past the end", UC, OP(RDMA_WRITE), .off = BUF - 1, SILENT,
	  .how = STAYS },
	{ "UC send, unknown QPN", UC, OP(SEND), .bad_qpn = 0x5a5000, SILENT },
	{ "UC send without a receive", UC, OP(SEND), .how = NO_RECV, SILENT },
	{ "UC send, wrong lkey", UC, OP(SEND), .bad_lkey = 1,
	  LOCAL(LOC_PROT_ERR) },
	{ "UC read", UC, OP(RDMA_READ), LOCAL(LOC_QP_OP_ERR) },
	{ "UC atomic", UC, FADD, .len = 8, LOCAL(LOC_QP_OP_ERR) },
	{ "UC atomic write", UC, OP(ATOMIC_WRITE), .len = 8,
	  LOCAL(LOC_QP_OP_ERR) },
	{ "UD write", UD, OP(RDMA_WRITE), LOCAL(LOC_QP_OP_ERR) },
	{ "UD read", UD, OP(RDMA_READ), LOCAL(LOC_QP_OP_ERR) },
	{ "UD atomic", UD, FADD, .len = 8, LOCAL(LOC_QP_OP_ERR) },
	{ "UD send with invalidate", UD, OP(SEND_WITH_INV),
	  LOCAL(LOC_QP_OP_ERR) },
	{ "UD send, wrong Q_Key", UD, OP(SEND), .bad_qkey = 1, SILENT,
	  .how = STAYS },
	{ "UD send, unknown QPN", UD, OP(SEND), .bad_qpn = 0x5a5000, SILENT },
	{ "UD send without a receive", UD, OP(SEND), .how = NO_RECV, SILENT },
	{ "UD send, wrong lkey", UD, OP(SEND), .bad_lkey = 1,
	  LOCAL(LOC_PROT_ERR) },
	{ "UD send longer than the receive", UD, OP(SEND), .len = 200,
	  .how = SHORT_RECV | STAYS, SILENT },
};
#define NWIRE (sizeof(wire_cases) / sizeof(wire_cases[0]))

static const char *status_name(int s)
{
	return s == NOTHING ? "nothing" :
	       s == ANY     ? "an error" :
			      ibv_wc_status_str((enum ibv_wc_status)s);
}

static bool as_expected(int got, int want)
{
	return want == ANY ? got != IBV_WC_SUCCESS : got == want;
}

/* One completion, or NOTHING after wait_ms. */
static int await(struct ibv_cq *cq, int wait_ms, struct ibv_wc *wc)
{
	uint64_t end = now_ns() + (uint64_t)wait_ms * 1000000u;

	do {
		int n = ibv_poll_cq(cq, 1, wc);

		if (n < 0)
			return ANY;
		if (n)
			return (int)wc->status;
		usleep(100);
	} while (now_ns() < end);
	return NOTHING;
}

/* As EVENT(); 0: none. */
static int await_event(int wait_ms)
{
	struct pollfd p = { .fd = dev.ctx->async_fd, .events = POLLIN };
	struct ibv_async_event e;
	int type;

	if (poll(&p, 1, wait_ms) != 1 || ibv_get_async_event(dev.ctx, &e))
		return 0;
	type = (int)e.event_type + 1;
	ibv_ack_async_event(&e);
	return type;
}

static void post_one(struct ibv_qp *qp, const struct wire_case *c,
		     const struct remote *far, struct ibv_ah *ah,
		     const struct ibv_mr *mr, char *buf, bool good)
{
	uint32_t len = c->len == ~0u ? 0 : c->len ? c->len : 64;
	struct ibv_sge sge = { .addr = (uintptr_t)buf,
			       .length = good ? 8 : len,
			       .lkey = mr->lkey ^ (good ? 0 : c->bad_lkey) };
	struct ibv_send_wr wr = { .opcode = good ? IBV_WR_SEND : c->opcode,
				  .sg_list = &sge,
				  .num_sge = sge.length ? 1 : 0,
				  .wr_id = 77,
				  .send_flags = IBV_SEND_SIGNALED },
			   *bad;
	int rc;

	if (!good && c->how & RKEY)
		sge.lkey = mr->rkey;
	if (c->type == IBV_QPT_UD) {
		wr.wr.ud.ah = ah;
		wr.wr.ud.remote_qpn = far->qpn ^ c->bad_qpn;
		wr.wr.ud.remote_qkey = 0x1234 ^ (good ? 0 : c->bad_qkey);
	} else if (c->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD && !good) {
		wr.wr.atomic.remote_addr = far->addr + (uint64_t)c->off;
		wr.wr.atomic.rkey = far->rkey ^ c->bad_rkey;
		wr.wr.atomic.compare_add = 1;
	} else if (!good) {
		wr.wr.rdma.remote_addr = far->addr + (uint64_t)c->off;
		wr.wr.rdma.rkey =
			c->bad_rkey == ~0u ? 0 : far->rkey ^ c->bad_rkey;
	}
	rc = ibv_post_send(qp, &wr, &bad);
	if (rc)
		die(EXIT_SETUP, "%s: post_send: %s", c->name, strerror(rc));
}

static void run_wire(const struct wire_case *c, int ctrl, bool client)
{
	bool ud = c->type == IBV_QPT_UD;
	struct conn_opts o = { .mtu = IBV_MTU_1024,
			       .timeout = 12, /* 17 ms */
			       .retry_cnt = 1,
			       .rnr_retry = 1,
			       .rd_atomic = 1,
			       .access = c->type == IBV_QPT_UC ? RW : ALL,
			       .qkey = 0x1234 };
	int count = c->count ? c->count : 1;
	struct ibv_pd *pd2 = ibv_alloc_pd(dev.ctx);
	struct ibv_cq *scq = ibv_create_cq(dev.ctx, 32, NULL, NULL, 0);
	struct ibv_cq *rcq = ibv_create_cq(
		dev.ctx, !client && c->how & FEW_CQES ? 1 : 32, NULL, NULL, 0);
	char *buf = aligned_alloc(4096, 3 * BUF);
	struct ibv_mr *mr, *rmr, *whole;
	struct ibv_qp_init_attr ia = { .send_cq = scq,
				       .recv_cq = rcq,
				       .qp_type = c->type,
				       .cap = { 32, 32, 1, 1, 0 } };
	struct remote mine = { .gid = dev.gid, .psn = 0x10, .mtu = o.mtu };
	struct wire_case one_key;
	struct remote far;
	struct ibv_ah *ah = NULL;
	struct ibv_wc wc = { 0 };
	struct ibv_qp *qp;
	char name[128];
	int got, ev = 0;
	volatile unsigned access;

	if (!pd2 || !scq || !rcq || !buf)
		die(EXIT_SETUP, "%s: set-up", c->name);
	if (!client && c->how & NO_QP_RIGHTS)
		o.access = 0;
	memset(buf, 0, 3 * BUF);
	/* The middle page is what the peer, or the bad work request, is given;
	 * `whole` serves the receives. */
	access = client       ? c->how & RO_MR ? 0 : IBV_ACCESS_LOCAL_WRITE :
		 c->mr_access ? c->mr_access :
				ALL;
	mr = ibv_reg_mr(dev.pd, buf + BUF, BUF, access);
	rmr = c->how & OTHER_PD ? ibv_reg_mr(pd2, buf + BUF, BUF, access) :
				  NULL;
	whole = ibv_reg_mr(dev.pd, buf, 3 * BUF, IBV_ACCESS_LOCAL_WRITE);
	qp = ibv_create_qp(dev.pd, &ia);
	if (!mr || !whole || !qp)
		die(EXIT_SETUP, "%s: set-up", c->name);
	mine.qpn = qp->qp_num;
	mine.addr = (uintptr_t)buf + BUF;
	if (c->how & (LKEY | RKEY) && mr->lkey == mr->rkey) {
		one_key = *c; /* no mistake without --check */
		one_key.client = IBV_WC_SUCCESS;
		one_key.server = c->how & RKEY ? IBV_WC_SUCCESS : NOTHING;
		one_key.event = 0;
		c = &one_key;
	}
	mine.rkey = c->how & LKEY ? mr->lkey : (rmr ? rmr : mr)->rkey;
	remote_put(ctrl, &mine);
	remote_get(ctrl, &far);
	if (c->how & SWAPPED)
		far.rkey = __builtin_bswap32(far.rkey);
	qp_to_init(qp, &o);
	if (client) {
		struct remote there = far;

		there.qpn ^= c->bad_qpn;
		qp_connect(&dev, qp, mine.psn ^ c->bad_psn, &there, &o);
		if (ud)
			ah = ah_create(&dev, &far);
	} else {
		int n = c->how & NO_RECV ? 0 : count + !!(c->how & STAYS);

		for (int i = 0; i < n; i++) {
			struct ibv_sge sge = {
				.addr = (uintptr_t)buf,
				.length = c->how & SHORT_RECV ? ud ? 104 : 64 :
								2 * BUF,
				.lkey = whole->lkey ^
					(c->how & BAD_RECV ? 0x100 : 0),
			};
			struct ibv_recv_wr wr = { .sg_list = &sge,
						  .num_sge = 1 },
					   *bad;

			if (ibv_post_recv(qp, &wr, &bad))
				die(EXIT_SETUP, "%s: post_recv", c->name);
		}
		if (!(c->how & NO_CONNECT))
			qp_connect(&dev, qp, mine.psn, &far, &o);
		if (c->how & DEREG && ibv_dereg_mr(mr))
			die(EXIT_SETUP, "%s: dereg_mr", c->name);
		if (c->how & DEREG)
			mr = NULL;
		if (c->how & DESTROYED && ibv_destroy_qp(qp))
			die(EXIT_SETUP, "%s: destroy_qp", c->name);
		if (c->how & DESTROYED)
			qp = NULL;
	}
	ctrl_put(ctrl, "go");
	if (!ctrl_get(ctrl, 10000))
		die(EXIT_SETUP, "%s: the other end is gone", c->name);

	snprintf(name, sizeof(name), "wire: %s", c->name);
	if (client) {
		for (int i = 0; i < count; i++)
			post_one(qp, c, &far, ah, mr, buf + BUF, false);
		if (c->how & FEW_CQES) { /* the server's event is the point */
			report(name, true, "", "");
			await(scq, 100, &wc);
		} else {
			got = await(scq, 3000, &wc);
			report(name,
			       as_expected(got, c->client) &&
				       (got < 0 || wc.wr_id == 77),
			       status_name(got), status_name(c->client));
		}
		/* After an error the queue is flushed, in order. */
		if (c->client > 0 && c->type == IBV_QPT_RC) {
			struct ibv_qp_attr a;

			post_one(qp, c, &far, ah, mr, buf + BUF, true);
			got = await(scq, 1000, &wc);
			if (got != IBV_WC_WR_FLUSH_ERR ||
			    ibv_query_qp(qp, &a, IBV_QP_STATE, &ia) ||
			    a.qp_state != IBV_QPS_ERR)
				report(name, false, status_name(got),
				       "then a flush, in ERR");
		}
		if (c->how & STAYS) {
			post_one(qp, c, &far, ah, mr, buf + BUF, true);
			got = await(scq, 1000, &wc);
			if (got)
				report(name, false, status_name(got),
				       "then a good send");
		}
		ctrl_put(ctrl, "done");
		ctrl_get(ctrl, 10000);
	} else {
		ctrl_get(ctrl, 10000);
		if (c->event && !no_events)
			ev = await_event(1000);
		else
			while (await_event(0))
				;
		got = c->how & FEW_CQES ? ANY : await(rcq, 50, &wc);
		if (c->how & STAYS) { /* the good send alone arrived */
			if (got == IBV_WC_SUCCESS &&
			    wc.byte_len == 8u + (ud ? 40 : 0))
				got = await(rcq, 20, &wc);
			else
				got = got == NOTHING ? ANY : got;
		}
		if (c->event && !no_events && ev != c->event)
			report(name, false,
			       ev ? ibv_event_type_str(
					    (enum ibv_event_type)(ev - 1)) :
				    "no event",
			       ibv_event_type_str(
				       (enum ibv_event_type)(c->event - 1)));
		else
			report(name, as_expected(got, c->server) || got == ANY,
			       status_name(got), status_name(c->server));
		ctrl_put(ctrl, "next");
	}
	if (ah)
		ibv_destroy_ah(ah);
	if (qp && ibv_destroy_qp(qp))
		die(EXIT_SETUP, "%s: destroy_qp", c->name);
	if ((mr && ibv_dereg_mr(mr)) || (rmr && ibv_dereg_mr(rmr)) ||
	    ibv_dereg_mr(whole) || ibv_destroy_cq(scq) || ibv_destroy_cq(rcq) ||
	    ibv_dealloc_pd(pd2))
		die(EXIT_SETUP, "%s: tear-down", c->name);
	while (await_event(0))
		;
	free(buf);
}

int main(int argc, char **argv)
{
	static const struct option longs[] = { { "list", 0, NULL, 'l' },
					       { "local", 0, NULL, 'L' },
					       { 0 } };
	int c, port = 18600, gid = 0, ctrl;

	while ((c = getopt_long(argc, argv, "Eg:p:", longs, NULL)) != -1) {
		if (c == 'l') {
			for (size_t i = 0; i < nbadargs; i++)
				puts(badargs[i].name);
			for (size_t i = 0; i < nbadcalls; i++)
				puts(badcalls[i].name);
			for (size_t i = 0; i < NWIRE; i++)
				printf("wire: %s\n", wire_cases[i].name);
			return 0;
		} else if (c == 'L') {
			dev_open(&dev, NULL, gid);
			run_local();
			return failures ? EXIT_DATA : 0;
		} else if (c == 'g') {
			gid = atoi(optarg);
		} else if (c == 'E') {
			no_events = true;
		} else if (c == 'p') {
			port = atoi(optarg);
		} else {
			die(EXIT_SETUP, "usage: badinput [-g GID] [-p PORT] "
					"[--local | --list | HOST]");
		}
	}
	dev_open(&dev, NULL, gid);
	fcntl(dev.ctx->async_fd, F_SETFL, O_NONBLOCK);
	ctrl = ctrl_open(argv[optind], port, 20);
	for (size_t i = 0; i < NWIRE; i++)
		run_wire(&wire_cases[i], ctrl, argv[optind] != NULL);
	return failures ? EXIT_DATA : 0;
}

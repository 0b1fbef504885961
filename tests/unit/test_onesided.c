/*
 * test_onesided.c - writes, reads and atomics between two processes: what they
 * do, and how each mistake ends at either side
 *
 * Run over each of the ways between processes of one host (SOFTHCA_SAME_HOST),
 * of which one needs no packets for them: programs cannot tell.
 */
#include "two_ends.h"

#include <sys/uio.h>

#define ATOMIC (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC)

/* ---- mistakes ---------------------------------------------------------- */

static struct ibv_pd *second_pd;
static struct ibv_mr *extra;
static struct ibv_mw *window;
static void *hole;

enum extra_kind {
	NONE,
	MR,
	OTHER_PD,
	UNMAPPED,
	ODP,
	ODP_HOLE,
	ZERO_BASED,
	DEAD,
	BOUND,
	BOUND_ELSEWHERE,
	UNBOUND
};

/* At the target: another key, of its buffer's second half. */
static int64_t add_extra(int64_t kind, int64_t access)
{
	uint8_t *at = me.buf + BUF / 2;
	struct ibv_pd *of = pd;

	if (kind == OTHER_PD)
		of = second_pd = ibv_alloc_pd(ctx);
	if (kind == UNMAPPED || kind == ODP_HOLE)
		at = hole = mmap(NULL, BUF / 2, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (kind == ODP || kind == ODP_HOLE)
		access |= IBV_ACCESS_ON_DEMAND;
	if (kind == ZERO_BASED)
		access |= IBV_ACCESS_ZERO_BASED;
	extra = ibv_reg_mr(of, at, BUF / 2, (unsigned)access);
	if (!extra)
		return -1;
	shared->rkey = extra->rkey;
	shared->addr = kind == ZERO_BASED ? 0 : (uintptr_t)at;
	if (kind == UNMAPPED || kind == ODP_HOLE)
		munmap(hole, BUF / 2);
	if (kind == DEAD) {
		ibv_dereg_mr(extra);
		extra = NULL;
	}
	return 0;
}

static int64_t bind(int64_t to_other_qp, int64_t access)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.send_cq = me.cq,
		.recv_cq = me.cq,
		.cap = { .max_send_wr = 4,
			 .max_recv_wr = 4,
			 .max_send_sge = 1,
			 .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = me.qp;
	struct ibv_send_wr wr = {
		.opcode = IBV_WR_BIND_MW,
		.send_flags = IBV_SEND_SIGNALED,
	}, *bad;
	int err;

	window = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	if (!window)
		return -1;
	if (to_other_qp) {
		qp = ibv_create_qp(pd, &init);
		if (!qp || to_init(qp, ALL_ACCESS & ~1u))
			return -2;
		connect_to(qp, qp->qp_num);
	}
	wr.bind_mw.mw = window;
	wr.bind_mw.rkey = ibv_inc_rkey(window->rkey);
	wr.bind_mw.bind_info = (struct ibv_mw_bind_info){
		.mr = extra,
		.addr = (uintptr_t)me.buf + BUF / 2,
		.length = BUF / 2,
		.mw_access_flags = (unsigned)access,
	};
	shared->rkey = wr.bind_mw.rkey;
	if (ibv_post_send(qp, &wr, &bad))
		return -3;
	err = (int)wait_wc(me.cq).status;
	/* The window stays bound to a QP that lives. */
	return to_other_qp ? (int64_t)(uintptr_t)qp : -err;
}

static int64_t drop_extra(int64_t qp, int64_t b)
{
	(void)b;
	if (window)
		assert_int_equal(ibv_dealloc_mw(window), 0);
	if (extra)
		assert_int_equal(ibv_dereg_mr(extra), 0);
	if (second_pd)
		assert_int_equal(ibv_dealloc_pd(second_pd), 0);
	if (qp)
		ibv_destroy_qp((struct ibv_qp *)(uintptr_t)qp);
	window = NULL;
	extra = NULL;
	second_pd = NULL;
	return 0;
}

/* The next asynchronous event, or -1: none within ms. */
static int64_t next_event(int64_t ms, int64_t b)
{
	struct ibv_async_event ev;
	int type;

	(void)b;
	if (!readable(ctx->async_fd, (int)ms) || ibv_get_async_event(ctx, &ev))
		return -1;
	type = (int)ev.event_type;
	ibv_ack_async_event(&ev);
	return type;
}

static int64_t qp_state(int64_t a, int64_t b)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	(void)a;
	(void)b;
	assert_int_equal(ibv_query_qp(me.qp, &attr, IBV_QP_STATE, &init), 0);
	return attr.qp_state;
}

#define ALL ALL_ACCESS
#define OK IBV_WC_SUCCESS
#define ACCESS IBV_WC_REM_ACCESS_ERR
#define INVALID IBV_WC_REM_INV_REQ_ERR
#define PROT IBV_WC_LOC_PROT_ERR
#define EV_ACCESS IBV_EVENT_QP_ACCESS_ERR
#define EV_REQ IBV_EVENT_QP_REQ_ERR
#define WRITE IBV_WR_RDMA_WRITE
#define READ IBV_WR_RDMA_READ
#define ADD IBV_WR_ATOMIC_FETCH_AND_ADD
#define SWAP IBV_WR_ATOMIC_CMP_AND_SWP
#define AWRITE IBV_WR_ATOMIC_WRITE

static const struct mistake {
	const char *name;
	enum ibv_wr_opcode op;
	enum extra_kind kind; /* what the rkey is of, */
	unsigned access; /* with these flags */
	int64_t qp_access;
	uint32_t rkey_xor;
	int64_t off; /* of the remote address */
	uint32_t len;
	uint32_t lkey_xor;
	unsigned local; /* access of the local region; 0: all */
	enum ibv_wc_status status;
	int event; /* at the target; 0: none */
} mistakes[] = {
	{ "write", WRITE, MR, ALL, ALL, 0, 0, 100, 0, 0, OK, 0 },
	{ "read", READ, MR, ALL, ALL, 0, 0, 100, 0, 0, OK, 0 },
	{ "add", ADD, MR, ALL, ALL, 0, 0, 8, 0, 0, OK, 0 },
	{ "swap", SWAP, MR, ALL, ALL, 0, 0, 8, 0, 0, OK, 0 },
	{ "atomic write", AWRITE, MR, ALL, ALL, 0, 0, 8, 0, 0, OK, 0 },
	{ "write, rkey", WRITE, MR, ALL, ALL, 1, 0, 100, 0, 0, ACCESS,
	  EV_ACCESS },
	{ "read, rkey", READ, MR, ALL, ALL, 0x100, 0, 100, 0, 0, ACCESS,
	  EV_ACCESS },
	{ "add, rkey", ADD, MR, ALL, ALL, 0x80000000, 0, 8, 0, 0, ACCESS,
	  EV_ACCESS },
	{ "write, dead rkey", WRITE, DEAD, ALL, ALL, 0, 0, 8, 0, 0, ACCESS,
	  EV_ACCESS },
	{ "write, end", WRITE, MR, ALL, ALL, 0, BUF / 2 - 99, 100, 0, 0, ACCESS,
	  EV_ACCESS },
	{ "read, begin", READ, MR, ALL, ALL, 0, -1, 100, 0, 0, ACCESS,
	  EV_ACCESS },
	{ "write, last byte", WRITE, MR, ALL, ALL, 0, BUF / 2 - 1, 1, 0, 0, OK,
	  0 },
	{ "add, end", ADD, MR, ALL, ALL, 0, BUF / 2, 8, 0, 0, ACCESS,
	  EV_ACCESS },
	{ "add, odd", ADD, MR, ALL, ALL, 0, 4, 8, 0, 0, INVALID, EV_REQ },
	{ "atomic write, odd", AWRITE, MR, ALL, ALL, 0, 12, 8, 0, 0, INVALID,
	  EV_REQ },
	{ "write, region is read only", WRITE, MR, IBV_ACCESS_REMOTE_READ, ALL,
	  0, 0, 8, 0, 0, ACCESS, EV_ACCESS },
	{ "read, region is write only", READ, MR,
	  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, ALL, 0, 0, 8, 0, 0,
	  ACCESS, EV_ACCESS },
	{ "add, region is not atomic", ADD, MR, ALL & ~IBV_ACCESS_REMOTE_ATOMIC,
	  ALL, 0, 0, 8, 0, 0, ACCESS, EV_ACCESS },
	{ "atomic write, region is not written", AWRITE, MR, ATOMIC, ALL, 0, 0,
	  8, 0, 0, ACCESS, EV_ACCESS },
	{ "write, QP does not", WRITE, MR, ALL, IBV_ACCESS_REMOTE_READ, 0, 0, 8,
	  0, 0, INVALID, EV_REQ },
	{ "read, QP does not", READ, MR, ALL, IBV_ACCESS_REMOTE_WRITE, 0, 0, 8,
	  0, 0, INVALID, EV_REQ },
	{ "swap, QP does not", SWAP, MR, ALL, IBV_ACCESS_REMOTE_WRITE, 0, 0, 8,
	  0, 0, INVALID, EV_REQ },
	{ "write of nothing, QP does not", WRITE, MR, ALL,
	  IBV_ACCESS_REMOTE_READ, 0, 0, 0, 0, 0, INVALID, EV_REQ },
	{ "write of nothing, rkey", WRITE, MR, ALL, ALL, 0x1234, -5, 0, 0, 0,
	  OK, 0 },
	{ "read of nothing, rkey", READ, MR, ALL, ALL, 0x1234, -5, 0, 0, 0, OK,
	  0 },
	{ "write, other PD", WRITE, OTHER_PD, ALL, ALL, 0, 0, 8, 0, 0, ACCESS,
	  EV_ACCESS },
	{ "write, memory gone", WRITE, UNMAPPED, ALL, ALL, 0, 0, 8, 0, 0,
	  ACCESS, EV_ACCESS },
	{ "add, memory gone", ADD, UNMAPPED, ALL, ALL, 0, 0, 8, 0, 0, ACCESS,
	  EV_ACCESS },
	{ "write on demand", WRITE, ODP, ALL, ALL, 0, 0, 9000, 0, 0, OK, 0 },
	{ "read on demand", READ, ODP, ALL, ALL, 0, 0, 9000, 0, 0, OK, 0 },
	{ "write on demand, no memory", WRITE, ODP_HOLE, ALL, ALL, 0, 0, 8, 0,
	  0, ACCESS, EV_ACCESS },
	{ "write, zero based", WRITE, ZERO_BASED, ALL, ALL, 0, 64, 8, 0, 0, OK,
	  0 },
	{ "write, zero based, end", WRITE, ZERO_BASED, ALL, ALL, 0, BUF / 2, 1,
	  0, 0, ACCESS, EV_ACCESS },
	{ "write, window", WRITE, BOUND, ALL | IBV_ACCESS_MW_BIND, ALL, 0, 0, 8,
	  0, 0, OK, 0 },
	{ "write, window of another QP", WRITE, BOUND_ELSEWHERE,
	  ALL | IBV_ACCESS_MW_BIND, ALL, 0, 0, 8, 0, 0, ACCESS, EV_ACCESS },
	{ "write, window, end", WRITE, BOUND, ALL | IBV_ACCESS_MW_BIND, ALL, 0,
	  BUF / 2 - 1, 2, 0, 0, ACCESS, EV_ACCESS },
	{ "add, window does not", ADD, BOUND, ALL | IBV_ACCESS_MW_BIND, ALL, 0,
	  0, 8, 0, 0, ACCESS, EV_ACCESS },
	{ "write, lkey", WRITE, MR, ALL, ALL, 0, 0, 8, 0x200, 0, PROT, 0 },
	{ "read, lkey", READ, MR, ALL, ALL, 0, 0, 8, 0x200, 0, PROT, 0 },
	{ "read, local region is read only", READ, MR, ALL, ALL, 0, 0, 8, 0,
	  IBV_ACCESS_REMOTE_READ, PROT, 0 },
	{ "add, local region is read only", ADD, MR, ALL, ALL, 0, 0, 8, 0,
	  IBV_ACCESS_REMOTE_READ, PROT, 0 },
	{ "write, local region is read only", WRITE, MR, ALL, ALL, 0, 0, 8, 0,
	  IBV_ACCESS_REMOTE_READ, OK, 0 },
};

static int64_t prepare(const struct mistake *m)
{
	const bool windows = m->kind == BOUND || m->kind == BOUND_ELSEWHERE;
	int64_t qp = 0;

	assert_int_equal(there(add_extra, windows ? MR : m->kind, m->access),
			 0);
	if (windows)
		qp = there(bind, m->kind == BOUND_ELSEWHERE,
			   IBV_ACCESS_REMOTE_WRITE);
	assert_true(qp >= 0);
	return qp;
}

static void post_mistake(const struct mistake *m, const struct ibv_mr *mr)
{
	const bool atomic = m->op == ADD || m->op == SWAP;
	uint64_t addr = shared->addr + (uint64_t)m->off;
	struct ibv_sge sge = { (uintptr_t)mr->addr, m->len,
			       mr->lkey ^ m->lkey_xor };
	struct ibv_send_wr wr = {
		.wr_id = 9, .opcode = m->op, .sg_list = &sge, .num_sge = 1,
		.send_flags = IBV_SEND_SIGNALED,
	}, *bad;

	if (atomic) {
		wr.wr.atomic.remote_addr = addr;
		wr.wr.atomic.rkey = shared->rkey ^ m->rkey_xor;
	} else {
		wr.wr.rdma.remote_addr = addr;
		wr.wr.rdma.rkey = shared->rkey ^ m->rkey_xor;
	}
	assert_int_equal(ibv_post_send(me.qp, &wr, &bad), 0);
}

static int64_t post_one_recv(int64_t at, int64_t len)
{
	post_recv(&me, 7, (size_t)at, (uint32_t)len);
	return 0;
}

static int64_t poll_one(int64_t a, int64_t b)
{
	(void)a;
	(void)b;
	return wait_wc(me.cq).status;
}

static void connect_with(int64_t their_access)
{
	uint32_t theirs = (uint32_t)there(tell_buffer, 0, 0);

	shared->qpn = me.qp->qp_num;
	assert_int_equal(there(bring_up, their_access, IBV_QPS_RTS), 0);
	shared->qpn = theirs;
	assert_int_equal(bring_up(ALL_ACCESS & ~1u, IBV_QPS_RTS), 0);
}

static void expect_status(const struct mistake *m, uint64_t id,
			  enum ibv_wc_status status)
{
	struct ibv_wc wc = wait_wc(me.cq);

	if (wc.status != status || wc.wr_id != id)
		fail_msg("%s: request %llu: %s where %s was due", m->name,
			 (unsigned long long)wc.wr_id,
			 ibv_wc_status_str(wc.status),
			 ibv_wc_status_str(status));
}

/*
 * behind: after a message that is on its way, so that it is never carried out
 * without a packet.
 */
static void make(const struct mistake *m, bool behind)
{
	struct ibv_send_wr send = { .wr_id = 8, .opcode = IBV_WR_SEND };
	struct ibv_mr *mr = me.mr;
	int64_t qp;

	connect_with(m->qp_access & ~1);
	qp = prepare(m);
	if (m->local)
		mr = ibv_reg_mr(pd, me.buf, BUF, m->local);
	assert_non_null(mr);
	if (behind) {
		assert_int_equal(there(post_one_recv, 0, 1), 0);
		assert_int_equal(try_send(&me, &send, 0, 1), 0);
	}
	post_mistake(m, mr);
	if (behind)
		expect_status(m, 8, OK);
	expect_status(m, 9, m->status);
	if (m->event)
		assert_int_equal(there(next_event, 5000, 0), m->event);
	else
		assert_int_equal(there(next_event, 0, 0), -1);
	assert_int_equal(qp_state(0, 0), m->status ? IBV_QPS_ERR : IBV_QPS_RTS);
	assert_int_equal(there(qp_state, 0, 0),
			 m->event ? IBV_QPS_ERR : IBV_QPS_RTS);
	assert_int_equal(next_event(0, 0), -1);
	if (m->local)
		assert_int_equal(ibv_dereg_mr(mr), 0);
	there(drop_extra, qp, 0);
}

/* The first test: cmocka takes over SIGSEGV before each, and os/guard.h does
 * so once. */
static void each_mistake_has_its_status(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(mistakes) / sizeof(*mistakes); i++) {
		make(&mistakes[i], false);
		make(&mistakes[i], true);
	}
}

static int64_t break_it(int64_t a, int64_t b)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

	(void)a;
	(void)b;
	return ibv_modify_qp(me.qp, &attr, IBV_QP_STATE);
}

/* A peer that is not there (any more): by retries, whatever is asked for. */
static void wrong_states(void **state)
{
	static const enum ibv_qp_state states[] = {
		IBV_QPS_RESET,
		IBV_QPS_INIT,
		IBV_QPS_ERR,
	};

	(void)state;
	for (size_t i = 0; i < 3; i++) {
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS };
		uint32_t theirs = (uint32_t)there(tell_buffer, 0, 0);

		connect_with(ALL_ACCESS & ~1);
		/* Used before, or not. */
		if (i != 1)
			assert_int_equal(do_op(WRITE, 0, 8), OK);
		shared->qpn = me.qp->qp_num;
		if (states[i] == IBV_QPS_ERR)
			there(break_it, 0, 0);
		else
			there(bring_up, ALL_ACCESS & ~1, states[i]);
		shared->qpn = theirs;
		assert_int_equal(bring_up(ALL_ACCESS & ~1u, IBV_QPS_RTR), 0);
		attr.retry_cnt = 1;
		attr.timeout = 1;
		attr.sq_psn = 0xfffffe;
		attr.max_rd_atomic = 1;
		assert_int_equal(
			ibv_modify_qp(me.qp, &attr, rts_mask(IBV_QPT_RC)), 0);
		assert_int_equal(do_op(i == 0 ? WRITE :
				       i == 1 ? READ :
						ADD,
				       0, 8),
				 IBV_WC_RETRY_EXC_ERR);
	}
}

/* ---- what is right ------------------------------------------------------- */

static int64_t fill_buffer(int64_t seed, int64_t b)
{
	(void)b;
	fill(me.buf, BUF, (unsigned)seed);
	return 0;
}

/* Whether [from, to) is as in fill(), shifted by b. */
static int64_t sum_of(int64_t from, int64_t to)
{
	uint64_t sum = 0;

	for (int64_t i = from; i < to; i++)
		sum = sum * 31 + me.buf[i];
	return (int64_t)(sum >> 1);
}

static void copies_of_all_sizes(void **state)
{
	static const uint32_t sizes[] = { 1,    2,    7,    8,    9,  15,
					  16,   17,   63,   64,   65, 511,
					  4095, 4096, 4097, 20000 };

	(void)state;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		uint32_t n = sizes[i], at = 3 * (uint32_t)i;

		there(fill_buffer, 100 + (int64_t)i, 0);
		memset(me.buf, 0, BUF);
		assert_int_equal(do_op(READ, at, n), OK);
		assert_int_equal(sum_of(at, at + n), there(sum_of, at, at + n));
		for (uint32_t k = 0; k < BUF; k++)
			if (k < at || k >= at + n)
				assert_int_equal(me.buf[k], 0);
		fill(me.buf, BUF, (unsigned)i);
		assert_int_equal(do_op(WRITE, at, n), OK);
		assert_int_equal(sum_of(at, at + n), there(sum_of, at, at + n));
		/* Nothing beside it. */
		fill(me.buf, BUF, 100 + (unsigned)i);
		assert_int_equal(sum_of(0, at), there(sum_of, 0, at));
		assert_int_equal(sum_of(at + n, BUF),
				 there(sum_of, at + n, BUF));
	}
}

/* Four pieces here, one of them of nothing, to and from one place there. */
static void copies_of_pieces(void **state)
{
	static const struct {
		uint32_t at, len;
	} piece[4] = { { 40000, 5 }, { 100, 6001 }, { 7, 0 }, { 30000, 3 } };
	struct ibv_send_wr wr = {
		.wr_id = 1, .num_sge = 4, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma.remote_addr = shared->addr + 11,
		.wr.rdma.rkey = shared->rkey,
	}, *bad;
	struct ibv_sge sge[4];
	struct ibv_wc wc;

	(void)state;
	for (int i = 0; i < 4; i++)
		sge[i] = sge_of(&me, piece[i].at, piece[i].len);
	wr.sg_list = sge;
	fill(me.buf, BUF, 3);
	wr.opcode = WRITE;
	assert_int_equal(ibv_post_send(me.qp, &wr, &bad), 0);
	wc = wait_wc(me.cq);
	expect_wc(&wc, 1, OK);
	memset(me.buf, 0, BUF);
	wr.opcode = READ;
	assert_int_equal(ibv_post_send(me.qp, &wr, &bad), 0);
	wc = wait_wc(me.cq);
	expect_wc(&wc, 1, OK);
	for (int i = 0; i < 4; i++)
		for (uint32_t k = piece[i].at; k < piece[i].at + piece[i].len;
		     k++)
			assert_int_equal(me.buf[k],
					 (uint8_t)(3 + k * 7 + (k >> 8)));
	for (uint32_t k = 6200; k < 29000; k++)
		assert_int_equal(me.buf[k], 0);
}

static void inline_data(void **state)
{
	struct ibv_sge sge[2];
	uint8_t bytes[20] = "inline, of any place";
	struct ibv_send_wr wr = {
		.wr_id = 1, .num_sge = 2, .sg_list = sge, .opcode = WRITE,
		.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE,
		.wr.rdma.remote_addr = shared->addr,
		.wr.rdma.rkey = shared->rkey,
	}, *bad;
	struct ibv_wc wc;

	(void)state;
	sge[0] = (struct ibv_sge){ (uintptr_t)bytes, 13, 0 };
	sge[1] = (struct ibv_sge){ (uintptr_t)bytes + 13, 7, 0 };
	assert_int_equal(ibv_post_send(me.qp, &wr, &bad), 0);
	memset(bytes, 0, sizeof(bytes));
	wc = wait_wc(me.cq);
	expect_wc(&wc, 1, OK);
	assert_int_equal(do_op(READ, 0, 20), OK);
	assert_memory_equal(me.buf, "inline, of any place", 20);
}

/* A message behind a write finds the data in place; lists, some of whose
 * requests are not signalled, complete in order. */
static void in_order(void **state)
{
	struct ibv_send_wr wr[6] = { 0 }, *bad;
	struct ibv_sge sge = sge_of(&me, 0, 4000);
	struct ibv_wc wc;
	int64_t sent;

	(void)state;
	for (int round = 0; round < 100; round++) {
		assert_int_equal(there(post_one_recv, BUF - 8, 8), 0);
		fill(me.buf, 4000, (unsigned)round);
		sent = sum_of(0, 4000);
		for (int i = 0; i < 6; i++) {
			wr[i] = (struct ibv_send_wr){
				.wr_id = (uint64_t)i,
				.sg_list = &sge,
				.num_sge = 1,
				.opcode = WRITE,
				.next = i < 5 ? &wr[i + 1] : NULL,
				.wr.rdma.remote_addr =
					shared->addr + 4000u * (uint32_t)i,
				.wr.rdma.rkey = shared->rkey,
			};
			if (i % 2)
				wr[i].send_flags = IBV_SEND_SIGNALED;
		}
		wr[3].opcode = IBV_WR_SEND;
		wr[3].num_sge = 0;
		wr[4].opcode = READ;
		wr[4].wr.rdma.remote_addr = shared->addr;
		wr[5].send_flags |= IBV_SEND_FENCE;
		assert_int_equal(ibv_post_send(me.qp, &wr[round % 3], &bad), 0);
		assert_int_equal(there(poll_one, 0, 0), OK);
		for (int i = round % 3; i < 6; i++)
			if (i % 2) {
				wc = wait_wc(me.cq);
				expect_wc(&wc, (uint64_t)i, OK);
			}
		assert_int_equal(ibv_poll_cq(me.cq, 1, &wc), 0);
		assert_int_equal(there(sum_of, 8000, 12000), sent);
		assert_int_equal(there(sum_of, 20000, 24000), sum_of(0, 4000));
	}
}

/* More than the send queue has room for, none of them signalled. */
static void unsignalled(void **state)
{
	struct ibv_sge sge = sge_of(&me, 0, 8);
	struct ibv_send_wr wr = {
		.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = WRITE,
		.wr.rdma.remote_addr = shared->addr,
		.wr.rdma.rkey = shared->rkey,
	}, *bad;
	struct ibv_wc wc;
	int err = 0;

	(void)state;
	for (uint64_t i = 0; i < DEPTH && !err; i++) {
		memcpy(me.buf, &i, 8);
		err = ibv_post_send(me.qp, &wr, &bad);
	}
	assert_int_equal(err, 0);
	/* Behind all of them. */
	memset(me.buf, 0, 8);
	wr.send_flags = IBV_SEND_SIGNALED;
	while ((err = ibv_post_send(me.qp, &wr, &bad)) == ENOMEM)
		assert_int_equal(ibv_poll_cq(me.cq, 1, &wc), 0);
	assert_int_equal(err, 0);
	wc = wait_wc(me.cq);
	expect_wc(&wc, 1, OK);
	me.buf[0] = 1;
	assert_int_equal(do_op(READ, 0, 8), OK);
	assert_int_equal(*(uint64_t *)(void *)me.buf, 0);
}

/* Built call by call: all or nothing. */
static void all_or_nothing(void **state)
{
	struct ibv_qp_init_attr_ex init = {
		.qp_type = IBV_QPT_RC,
		.send_cq = me.cq,
		.recv_cq = me.cq,
		.cap = { .max_send_wr = 8,
			 .max_recv_wr = 1,
			 .max_send_sge = 1,
			 .max_recv_sge = 1 },
		.comp_mask =
			IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags =
			IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ,
	};
	struct ibv_qp *plain = me.qp;
	struct ibv_qp_ex *ex;
	struct ibv_wc wc;

	(void)state;
	me.qp = ibv_create_qp_ex(ctx, &init);
	assert_non_null(me.qp);
	ex = ibv_qp_to_qp_ex(me.qp);
	connect_with(ALL_ACCESS & ~1);
	there(fill_buffer, 1, 0);
	memset(me.buf, 9, BUF);
	for (int fail = 1; fail >= 0; fail--) {
		ibv_wr_start(ex);
		ex->wr_id = 1;
		ex->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_rdma_write(ex, shared->rkey, shared->addr);
		ibv_wr_set_sge(ex, me.mr->lkey, (uintptr_t)me.buf, 100);
		ex->wr_id = 2;
		ex->wr_flags = fail ? 1u << 20 : IBV_SEND_SIGNALED;
		ibv_wr_rdma_read(ex, shared->rkey, shared->addr + 50);
		ibv_wr_set_sge(ex, me.mr->lkey, (uintptr_t)me.buf + 1000, 100);
		if (!fail) {
			assert_int_equal(ibv_wr_complete(ex), 0);
			break;
		}
		assert_int_not_equal(ibv_wr_complete(ex), 0);
		assert_int_equal(ibv_poll_cq(me.cq, 1, &wc), 0);
		assert_int_not_equal(there(sum_of, 0, 100), sum_of(0, 100));
	}
	wc = wait_wc(me.cq);
	expect_wc(&wc, 1, OK);
	wc = wait_wc(me.cq);
	expect_wc(&wc, 2, OK);
	assert_int_equal(there(sum_of, 0, 100), sum_of(0, 100));
	assert_int_equal(there(sum_of, 50, 150), sum_of(1000, 1100));
	ibv_destroy_qp(me.qp);
	me.qp = plain;
}

/* ---- in numbers and one by one ------------------------------------------- */

static void post_quiet(uint32_t i, bool signaled)
{
	struct ibv_sge sge = sge_of(&me, 8 * (size_t)i, 8);
	struct ibv_send_wr wr = {
		.wr_id = 4, .opcode = WRITE, .sg_list = &sge, .num_sge = 1,
		.send_flags = signaled ? IBV_SEND_SIGNALED : 0,
		.wr.rdma = { shared->addr + 8 * i, shared->rkey },
	}, *bad;

	assert_int_equal(ibv_post_send(me.qp, &wr, &bad), 0);
}

/* Whether the other end can be copied to while it is stopped. */
static bool needs_no_peer(void)
{
	const char *way = getenv("SOFTHCA_SAME_HOST");
	uint64_t mine;
	struct iovec to = { &mine, 8 }, from = { &shared, 8 };

	return way && !strcmp(way, "auto") &&
	       process_vm_readv(other, &to, 1, &from, 1, 0) == 8;
}

/*
 * After some that were posted in numbers, those that are posted one by one
 * complete even while the peer is stopped: whether the program waits for each,
 * looks after each, or does something else for a while.
 */
static void one_by_one(void **state)
{
	const bool stop = needs_no_peer();
	const struct timespec pause = { .tv_nsec = 100000 };
	struct ibv_wc wc;
	int status;

	(void)state;
	for (unsigned round = 0; round < 5; round++) {
		fill(me.buf, BUF, round);
		for (uint32_t i = 0; i < DEPTH; i++)
			post_quiet(i, i == DEPTH - 1);
		wc = wait_wc(me.cq);
		expect_wc(&wc, 4, OK);
		assert_int_equal(there(sum_of, 0, 8 * DEPTH),
				 sum_of(0, 8 * DEPTH));
		if (stop) {
			kill(other, SIGSTOP);
			assert_int_equal(waitpid(other, &status, WUNTRACED),
					 other);
		}
		for (uint32_t i = 0; i < 10; i++)
			assert_int_equal(do_op(i % 2 ? READ : WRITE, 8, 8), OK);
		for (uint32_t i = 0; i < 10; i++) {
			post_quiet(i, false);
			assert_int_equal(ibv_poll_cq(me.cq, 1, &wc), 0);
		}
		assert_int_equal(do_op(READ, 8, 8), OK);
		for (uint32_t i = 0; i < 10; i++) {
			post_quiet(i, false);
			nanosleep(&pause, NULL);
		}
		assert_int_equal(do_op(READ, 8, 8), OK);
		if (stop)
			kill(other, SIGCONT);
		assert_int_equal(there(sum_of, 0, 80), sum_of(0, 80));
	}
}

/* ---- atomics of many ----------------------------------------------------- */

#define ADDS 3000

static void post_add(struct ibv_qp *qp, uint64_t addr, uint32_t rkey)
{
	struct ibv_sge sge = sge_of(&me, 8, 8);
	struct ibv_send_wr wr = {
		.wr_id = 5, .opcode = ADD, .sg_list = &sge, .num_sge = 1,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.atomic = { .remote_addr = addr, .rkey = rkey,
			       .compare_add = 1 },
	}, *bad;

	assert_int_equal(ibv_post_send(qp, &wr, &bad), 0);
}

/* In the target: to its own word, by a queue pair to itself. */
static int64_t add_to_own(int64_t n, int64_t b)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.send_cq = me.cq,
		.recv_cq = me.cq,
		.cap = { .max_send_wr = 4,
			 .max_recv_wr = 4,
			 .max_send_sge = 1,
			 .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	(void)b;
	connect_to(qp, qp->qp_num);
	for (int64_t i = 0; i < n; i++) {
		post_add(qp, (uintptr_t)me.buf, me.mr->rkey);
		if (wait_wc(me.cq).status)
			return -1;
	}
	ibv_destroy_qp(qp);
	return 0;
}

/* By packets and without, from two processes: none is lost. */
static void atomics_exclude_each_other(void **state)
{
	struct ibv_mr *null = ibv_alloc_null_mr(pd);
	struct ibv_sge sge = { 0, 8, null->lkey };
	struct ibv_send_wr read = {
		.wr_id = 6, .opcode = READ, .sg_list = &sge, .num_sge = 1,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { shared->addr + 64, shared->rkey },
	}, *bad;
	struct ibv_wc wc;

	(void)state;
	me.buf[0] = 0;
	memset(me.buf, 0, 64);
	assert_int_equal(do_op(WRITE, 0, 8), OK);
	call_begin(add_to_own, ADDS, 0);
	for (int i = 0; i < ADDS; i++) {
		/* What cannot be copied to goes by packets, and so does what
		 * is behind it. */
		if (i % 3 == 0)
			assert_int_equal(ibv_post_send(me.qp, &read, &bad), 0);
		post_add(me.qp, shared->addr, shared->rkey);
		if (i % 3 == 0) {
			wc = wait_wc(me.cq);
			expect_wc(&wc, 6, OK);
		}
		wc = wait_wc(me.cq);
		expect_wc(&wc, 5, OK);
	}
	assert_int_equal(call_end(), 0);
	assert_int_equal(do_op(READ, 0, 8), OK);
	assert_int_equal(*(uint64_t *)(void *)me.buf, 2 * ADDS);
	assert_int_equal(ibv_dereg_mr(null), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		ENDS(each_mistake_has_its_status),
		ENDS(wrong_states),
		ENDS(copies_of_all_sizes),
		ENDS(copies_of_pieces),
		ENDS(inline_data),
		ENDS(in_order),
		ENDS(unsignalled),
		ENDS(all_or_nothing),
		ENDS(one_by_one),
		ENDS(atomics_exclude_each_other),
	};

	cmocka_set_test_filter(getenv("TEST"));
	return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * test_taken_back.c - memory that a process takes back while another one is
 * writing there, and processes that are stopped or killed in the middle of it
 *
 * What was deregistered, invalidated or whose queue pair is gone belongs to the
 * program again: not one byte of it changes when the call has returned. Run
 * over each of the ways between processes of one host.
 */
#include "two_ends.h"

#define WRITE IBV_WR_RDMA_WRITE
#define OK IBV_WC_SUCCESS

static bool may_copy(void)
{
	const char *way = getenv("SOFTHCA_SAME_HOST");

	return !way || !strcmp(way, "auto");
}

/* ---- the one that writes ----------------------------------------------- */

/* On and on, len bytes to the other end, until that fails; the status. count
 * counts them. */
static int64_t write_on(int64_t len, int64_t b)
{
	struct ibv_send_wr wr = {
		.opcode = WRITE,
		.wr.rdma = { shared->addr, shared->rkey },
	};
	struct ibv_wc wc;

	(void)b;
	memset(me.buf, 0x55, BUF);
	do {
		if (try_send(&me, &wr, 0, (uint32_t)len))
			return -1;
		wc = wait_wc(me.cq);
		atomic_fetch_add(&shared->count, 1);
	} while (!wc.status && !atomic_load(&shared->go));
	return wc.status;
}

static void wait_count(uint64_t more)
{
	uint64_t end = now_ns() + 20 * SECOND;
	uint64_t from = atomic_load(&shared->count);

	while (atomic_load(&shared->count) < from + more) {
		assert_true(now_ns() < end);
		sched_yield();
	}
}

/* Nobody writes any more. */
static void must_stay(const uint8_t *p, size_t len)
{
	volatile uint8_t *v = (volatile uint8_t *)(uintptr_t)p;

	for (size_t i = 0; i < len; i++)
		v[i] = 0xaa;
	for (int round = 0; round < 3; round++) {
		for (size_t i = 0; i < len; i++)
			assert_int_equal(v[i], 0xaa);
		sched_yield();
	}
}

/* ---- ways to take it back ---------------------------------------------- */

static struct ibv_mw *mw;
static uint8_t *second;

static void deregister(void)
{
	assert_int_equal(ibv_dereg_mr(me.mr), 0);
}

static void change_translation(void)
{
	assert_int_equal(ibv_rereg_mr(me.mr, IBV_REREG_MR_CHANGE_TRANSLATION,
				      NULL, second, BUF, 0),
			 0);
}

static void change_access(void)
{
	assert_int_equal(ibv_rereg_mr(me.mr, IBV_REREG_MR_CHANGE_ACCESS, NULL,
				      NULL, 0, IBV_ACCESS_LOCAL_WRITE),
			 0);
}

static void to_reset(void)
{
	reset(me.qp);
}

static void to_error(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

	assert_int_equal(ibv_modify_qp(me.qp, &attr, IBV_QP_STATE), 0);
}

static void destroy(void)
{
	assert_int_equal(ibv_destroy_qp(me.qp), 0);
	me.qp = NULL;
}

static void window_request(struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	wr->send_flags = IBV_SEND_SIGNALED;
	assert_int_equal(ibv_post_send(me.qp, wr, &bad), 0);
	assert_int_equal(wait_wc(me.cq).status, OK);
}

static void bind_window(enum ibv_mw_type type, uint64_t length)
{
	struct ibv_mw_bind_info info = {
		.mr = me.mr,
		.addr = (uintptr_t)me.buf,
		.length = length,
		.mw_access_flags = IBV_ACCESS_REMOTE_WRITE,
	};
	struct ibv_send_wr wr = { .opcode = IBV_WR_BIND_MW };
	struct ibv_mw_bind old = {
		.send_flags = IBV_SEND_SIGNALED,
		.bind_info = info,
	};

	if (type == IBV_MW_TYPE_1) {
		assert_int_equal(ibv_bind_mw(me.qp, mw, &old), 0);
		assert_int_equal(wait_wc(me.cq).status, OK);
		return;
	}
	wr.bind_mw.mw = mw;
	wr.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
	wr.bind_mw.bind_info = info;
	window_request(&wr);
}

static void invalidate(void)
{
	struct ibv_send_wr wr = {
		.opcode = IBV_WR_LOCAL_INV,
		.invalidate_rkey = mw->rkey,
	};

	window_request(&wr);
}

static void unbind(void)
{
	bind_window(IBV_MW_TYPE_1, 0);
}

static void dealloc_window(void)
{
	assert_int_equal(ibv_dealloc_mw(mw), 0);
	mw = NULL;
}

static const struct taking {
	const char *name;
	void (*take)(void);
	int window; /* 1, 2: by a memory window of that type */
} takings[] = {
	{ "ibv_dereg_mr", deregister, 0 },
	{ "ibv_rereg_mr, translation", change_translation, 0 },
	{ "ibv_rereg_mr, access", change_access, 0 },
	{ "RESET", to_reset, 0 },
	{ "ERR", to_error, 0 },
	{ "ibv_destroy_qp", destroy, 0 },
	{ "LOCAL_INV", invalidate, 2 },
	{ "unbind", unbind, 1 },
	{ "ibv_dealloc_mw", dealloc_window, 1 },
	{ "ibv_dealloc_mw, type 2", dealloc_window, 2 },
};

static void new_region(void)
{
	me.mr = ibv_reg_mr(pd, me.buf, BUF, ALL_ACCESS | IBV_ACCESS_MW_BIND);
	assert_non_null(me.mr);
}

static void new_qp(void)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.send_cq = me.cq,
		.recv_cq = me.cq,
		.cap = { .max_send_wr = DEPTH,
			 .max_recv_wr = DEPTH,
			 .max_send_sge = 4,
			 .max_recv_sge = 4 },
	};

	me.qp = ibv_create_qp(pd, &init);
	assert_non_null(me.qp);
}

/* This end is the target; the other one knows its buffer, or the window. */
static void begin_writing(int window, int64_t len)
{
	enum ibv_mw_type type = window == 1 ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2;

	atomic_store(&shared->go, 0);
	connect_ends();
	if (window) {
		mw = ibv_alloc_mw(pd, type);
		assert_non_null(mw);
		bind_window(type, BUF);
	}
	tell_buffer(0, 0);
	if (window)
		shared->rkey = mw->rkey;
	call_begin(write_on, len, 0);
}

static void take_back_once(const struct taking *t, int64_t len, unsigned delay)
{
	begin_writing(t->window, len);
	wait_count(3);
	for (unsigned i = 0; i < delay; i++)
		__asm__ volatile("" ::: "memory");
	t->take();
	must_stay(me.buf, (size_t)len);
	if (call_end() == OK)
		fail_msg("%s: a write succeeded afterwards", t->name);
	must_stay(me.buf, (size_t)len);
	if (mw)
		dealloc_window();
	if (t->take != deregister)
		assert_int_equal(ibv_dereg_mr(me.mr), 0);
	new_region();
	if (!me.qp)
		new_qp();
}

static void taken_back(void **state)
{
	const int rounds = may_copy() ? 20 : 2;
	uint64_t rng = now_ns() | 1;

	(void)state;
	there(set_retries, 1, 0);
	assert_int_equal(ibv_dereg_mr(me.mr), 0);
	new_region();
	second = mmap(NULL, BUF, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (size_t i = 0; i < sizeof(takings) / sizeof(*takings); i++)
		for (int round = 0; round < rounds; round++) {
			rng = rng * 6364136223846793005u + 1442695040888963407u;
			take_back_once(&takings[i], round % 2 ? BUF : 64,
				       (unsigned)(rng >> 48));
		}
	munmap(second, BUF);
}

/* ---- stopped and killed ------------------------------------------------ */

static void stop_other(void)
{
	assert_int_equal(kill(other, SIGSTOP), 0);
	assert_int_equal(waitpid(other, NULL, WUNTRACED), other);
}

static void let_other_go_on(void)
{
	kill(other, SIGCONT);
}

static uint64_t word(size_t at)
{
	return *(uint64_t *)(void *)(me.buf + at);
}

/* Nothing of the other end runs: not even a packet would be answered. */
static void stopped_target_serves(void **state)
{
	(void)state;
	if (!may_copy())
		skip();
	fill(me.buf, BUF, 3);
	assert_int_equal(do_op(WRITE, 0, 8), OK);
	stop_other();
	assert_int_equal(do_op(WRITE, 0, BUF), OK);
	memset(me.buf, 0, BUF);
	assert_int_equal(do_op(IBV_WR_RDMA_READ, 0, BUF), OK);
	for (uint32_t i = 0; i < BUF; i++)
		assert_int_equal(me.buf[i], (uint8_t)(3 + i * 7 + (i >> 8)));
	memset(me.buf, 0, 8);
	assert_int_equal(do_op(IBV_WR_ATOMIC_WRITE, 0, 8), OK);
	for (uint64_t i = 0; i < 3; i++) {
		assert_int_equal(do_op(IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 8), OK);
		assert_int_equal(word(0), i);
	}
	/* 3 is not 1: no swap. */
	assert_int_equal(do_op(IBV_WR_ATOMIC_CMP_AND_SWP, 0, 8), OK);
	assert_int_equal(do_op(IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 8), OK);
	assert_int_equal(word(0), 3);
	let_other_go_on();
}

/* Whoever is in the middle of something with it gets an answer. */
static void killed_target(void **state)
{
	static const enum ibv_wr_opcode ops[] = {
		WRITE,
		IBV_WR_RDMA_READ,
		IBV_WR_ATOMIC_FETCH_AND_ADD,
	};

	(void)state;
	for (size_t i = 0; i < 3; i++) {
		uint32_t len = i == 2 ? 8 : BUF, status;
		uint64_t end = now_ns() + 20 * SECOND;

		retries = 1;
		if (i) {
			other_begin();
			connect_ends();
		} else {
			connect_ends();
		}
		assert_int_equal(do_op(ops[i], 0, len), OK);
		kill(other, SIGKILL);
		do {
			status = do_op(ops[i], 0, len);
			assert_true(now_ns() < end);
		} while (status == OK);
		assert_int_equal(status, IBV_WC_RETRY_EXC_ERR);
		other_kill();
	}
}

/* Wherever the one that writes is when it dies, nobody waits for it. */
static void killed_initiator(void **state)
{
	uint64_t rng = now_ns() | 1;

	(void)state;
	for (int round = 0; round < 10; round++) {
		begin_writing(0, round % 2 ? BUF : 64);
		wait_count(3);
		rng = rng * 6364136223846793005u + 1442695040888963407u;
		for (unsigned i = 0; i < (unsigned)(rng >> 48); i++)
			__asm__ volatile("" ::: "memory");
		kill(other, SIGKILL);
		assert_int_equal(ibv_dereg_mr(me.mr), 0);
		must_stay(me.buf, BUF);
		new_region();
		other_kill();
		other_begin();
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		ENDS(taken_back),
		ENDS(stopped_target_serves),
		ENDS(killed_target),
		ENDS(killed_initiator),
	};

	cmocka_set_test_filter(getenv("TEST"));
	return cmocka_run_group_tests(tests, NULL, NULL);
}

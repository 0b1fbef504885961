/*
 * two_ends.h - for tests of the verbs between two processes: the test is one
 * end, a child of it the other, which does as it is told
 *
 * The child is forked from the test, so it has the same functions: there(fn, a,
 * b) calls fn(a, b) in it. Both have one queue pair at a time, and what they
 * tell each other lies in shared memory.
 */
#ifndef SOFTHCA_TESTS_UNIT_TWO_ENDS_H
#define SOFTHCA_TESTS_UNIT_TWO_ENDS_H

#include "reach.h"

#include <sched.h>
#include <stdatomic.h>

static struct {
	_Atomic uint32_t go, done, status;
	_Atomic uint64_t count;
	uint32_t qpn, rkey; /* of the other end, */
	uint64_t addr; /* and its buffer */
} * shared;

static struct end me; /* in either process */
static uint8_t retries = 7;
static pid_t other;
static int to_other, from_other;

struct call {
	int64_t (*fn)(int64_t a, int64_t b);
	int64_t a, b;
};

static inline void call_begin(int64_t (*fn)(int64_t, int64_t), int64_t a,
			      int64_t b)
{
	struct call c = { fn, a, b };

	assert_int_equal(write(to_other, &c, sizeof(c)), sizeof(c));
}

static inline int64_t call_end(void)
{
	int64_t result;

	assert_true(readable(from_other, 30000));
	assert_int_equal(read(from_other, &result, sizeof(result)),
			 sizeof(result));
	return result;
}

static inline int64_t there(int64_t (*fn)(int64_t, int64_t), int64_t a,
			    int64_t b)
{
	call_begin(fn, a, b);
	return call_end();
}

static inline void serve(int in, int out)
{
	struct call c;
	int64_t result;

	while (read(in, &c, sizeof(c)) == sizeof(c)) {
		result = c.fn(c.a, c.b);
		if (write(out, &result, sizeof(result)) != sizeof(result))
			break;
	}
	_exit(0);
}

/* What either end does */

static inline int64_t open_end(int64_t a, int64_t b)
{
	(void)a;
	(void)b;
	setup(NULL);
	end_init(&me, IBV_QPT_RC, NULL);
	return me.qp->qp_num;
}

static inline int64_t close_end(int64_t a, int64_t b)
{
	(void)a;
	(void)b;
	end_fini(&me);
	teardown(NULL);
	return 0;
}

/* To state b, from wherever it is, with these access flags. */
static inline int64_t bring_up(int64_t access, int64_t to)
{
	struct ibv_qp_attr attr = rtr_attr(shared->qpn);
	struct ibv_async_event ev;
	struct ibv_wc wc;

	reset(me.qp);
	while (ibv_poll_cq(me.cq, 1, &wc) > 0)
		;
	while (readable(ctx->async_fd, 0) && !ibv_get_async_event(ctx, &ev))
		ibv_ack_async_event(&ev);
	if (to >= IBV_QPS_INIT && to_init(me.qp, (unsigned)access))
		return -1;
	if (to >= IBV_QPS_RTR &&
	    ibv_modify_qp(me.qp, &attr, rtr_mask(IBV_QPT_RC)))
		return -1;
	return to >= IBV_QPS_RTS ? to_rts(me.qp, retries) : 0;
}

/* The other end as far as this one has to know it. */
static inline int64_t tell_buffer(int64_t a, int64_t b)
{
	(void)a;
	(void)b;
	shared->rkey = me.mr->rkey;
	shared->addr = (uintptr_t)me.buf;
	return me.qp->qp_num;
}

static inline int64_t set_retries(int64_t n, int64_t b)
{
	(void)b;
	retries = (uint8_t)n;
	return 0;
}

/* Both in RTS; shared is what this end knows of the other. */
static inline void connect_ends(void)
{
	uint32_t theirs = (uint32_t)there(tell_buffer, 0, 0);

	shared->qpn = me.qp->qp_num;
	assert_int_equal(there(bring_up, ALL_ACCESS & ~1u, IBV_QPS_RTS), 0);
	shared->qpn = theirs;
	assert_int_equal(bring_up(ALL_ACCESS & ~1u, IBV_QPS_RTS), 0);
}

/* Processes */

static inline void other_begin(void)
{
	int to[2], from[2];

	assert_int_equal(pipe2(to, O_CLOEXEC), 0);
	assert_int_equal(pipe2(from, O_CLOEXEC), 0);
	other = fork_child();
	assert_true(other >= 0);
	if (!other) {
		close(to[1]);
		close(from[0]);
		serve(to[0], from[1]);
	}
	close(to[0]);
	close(from[1]);
	to_other = to[1];
	from_other = from[0];
	there(open_end, 0, 0);
}

static inline void other_kill(void)
{
	if (other > 0) {
		kill(other, SIGKILL);
		waitpid(other, NULL, 0);
		close(to_other);
		close(from_other);
	}
	other = 0;
}

static inline int ends_begin(void **state)
{
	(void)state;
	shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(shared != MAP_FAILED);
	other_begin();
	open_end(0, 0);
	connect_ends();
	return 0;
}

static inline int ends_finish(void **state)
{
	(void)state;
	if (other > 0) {
		there(close_end, 0, 0);
	}
	close_end(0, 0);
	other_kill();
	munmap(shared, 4096);
	return 0;
}

/* Posts over [buf + at, +len) to the same place of the other end. */
static inline uint32_t do_op(enum ibv_wr_opcode op, size_t at, uint32_t len)
{
	struct ibv_send_wr wr = {
		.wr_id = 5,
		.opcode = op,
	};
	struct ibv_wc wc;

	if (op == IBV_WR_ATOMIC_FETCH_AND_ADD ||
	    op == IBV_WR_ATOMIC_CMP_AND_SWP) {
		wr.wr.atomic.remote_addr = shared->addr + at;
		wr.wr.atomic.rkey = shared->rkey;
		wr.wr.atomic.compare_add = 1;
		wr.wr.atomic.swap = 2;
	} else {
		wr.wr.rdma.remote_addr = shared->addr + at;
		wr.wr.rdma.rkey = shared->rkey;
	}
	assert_int_equal(try_send(&me, &wr, at, len), 0);
	wc = wait_wc(me.cq);
	assert_int_equal(wc.wr_id, 5);
	return wc.status;
}

#define ENDS(fn) cmocka_unit_test_setup_teardown(fn, ends_begin, ends_finish)

#endif

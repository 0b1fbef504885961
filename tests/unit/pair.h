/*
 * pair.h - for tests of the verbs: a device, two ends in one process, waiting
 *
 * Included by one source file of a program that is linked with libibverbs.so.1
 * as any program is. The ends talk over whatever address has GID index 0.
 */
#ifndef SOFTHCA_TESTS_UNIT_PAIR_H
#define SOFTHCA_TESTS_UNIT_PAIR_H

#include "../lib/qp_masks.h"
#include "child.h"

#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define BUF 65536
#define DEPTH 64
#define SECOND 1000000000ull
#define ALL_ACCESS                                                             \
	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |                    \
	 IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static union ibv_gid gid0;

/* One end: its own buffer, region and completion queue. */
struct end {
	struct ibv_comp_channel *ch;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	uint8_t *buf;
};

static inline uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * SECOND + (uint64_t)ts.tv_nsec;
}

static inline bool readable(int fd, int ms)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, ms) == 1;
}

/* Ends the test if that takes for ever. */
static inline void *join(pthread_t thread)
{
	struct timespec until;
	void *ret;

#ifdef __SANITIZE_THREAD__
	/* TSan does not see that the other one does the same. */
	(void)until;
	assert_int_equal(pthread_join(thread, &ret), 0);
#else
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 20;
	assert_int_equal(pthread_timedjoin_np(thread, &ret, &until), 0);
#endif
	return ret;
}

static inline struct ibv_context *open_first(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *c;

	assert_non_null(list);
	assert_non_null(list[0]);
	c = ibv_open_device(list[0]);
	ibv_free_device_list(list);
	return c;
}

static inline int setup(void **state)
{
	(void)state;
	ctx = open_first();
	assert_non_null(ctx);
	assert_int_equal(ibv_query_gid(ctx, 1, 0, &gid0), 0);
	pd = ibv_alloc_pd(ctx);
	assert_non_null(pd);
	return 0;
}

static inline int teardown(void **state)
{
	(void)state;
	/* Nothing a test made may be left: that would be EBUSY. */
	assert_int_equal(ibv_dealloc_pd(pd), 0);
	assert_int_equal(ibv_close_device(ctx), 0);
	return 0;
}

static inline void end_init(struct end *e, enum ibv_qp_type type,
			    struct ibv_srq *srq)
{
	struct ibv_qp_init_attr init = {
		.qp_type = type,
		.srq = srq,
		.cap = { .max_send_wr = DEPTH,
			 .max_recv_wr = DEPTH,
			 .max_send_sge = 4,
			 .max_recv_sge = 4,
			 .max_inline_data = 64 },
	};

	e->ch = ibv_create_comp_channel(ctx);
	assert_non_null(e->ch);
	e->cq = ibv_create_cq(ctx, 2 * DEPTH, e, e->ch, 0);
	assert_non_null(e->cq);
	init.send_cq = init.recv_cq = e->cq;
	e->qp = ibv_create_qp(pd, &init);
	assert_non_null(e->qp);
	assert_true(init.cap.max_send_wr >= DEPTH);
	assert_true(init.cap.max_inline_data >= 64);
	e->buf = mmap(NULL, BUF, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(e->buf != MAP_FAILED);
	e->mr = ibv_reg_mr(pd, e->buf, BUF, ALL_ACCESS);
	assert_non_null(e->mr);
}

static inline void end_fini(struct end *e)
{
	if (e->qp)
		assert_int_equal(ibv_destroy_qp(e->qp), 0);
	assert_int_equal(ibv_dereg_mr(e->mr), 0);
	munmap(e->buf, BUF);
	assert_int_equal(ibv_destroy_cq(e->cq), 0);
	assert_int_equal(ibv_destroy_comp_channel(e->ch), 0);
}

static inline int to_init(struct ibv_qp *qp, unsigned access)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = access,
		.qkey = 0x11111111,
	};

	return ibv_modify_qp(qp, &attr, init_mask(qp->qp_type));
}

static inline struct ibv_qp_attr rtr_attr(uint32_t dest)
{
	return (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = dest,
		.rq_psn = 0xfffffe, /* so that it wraps */
		.max_dest_rd_atomic = 16,
		.min_rnr_timer = 1,
		.ah_attr = { .is_global = 1,
			     .port_num = 1,
			     .grh = { .dgid = gid0, .hop_limit = 64 } },
	};
}

static inline int to_rts(struct ibv_qp *qp, uint8_t retry)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTS,
		.sq_psn = 0xfffffe,
		.max_rd_atomic = 16,
		.retry_cnt = retry,
		.rnr_retry = retry,
		.timeout = 12,
	};

	return ibv_modify_qp(qp, &attr, rts_mask(qp->qp_type));
}

static inline void connect_to(struct ibv_qp *qp, uint32_t dest)
{
	struct ibv_qp_attr attr = rtr_attr(dest);

	assert_int_equal(to_init(qp, ALL_ACCESS & ~1u), 0);
	assert_int_equal(ibv_modify_qp(qp, &attr, rtr_mask(qp->qp_type)), 0);
	assert_int_equal(qp->state, IBV_QPS_RTR);
	assert_int_equal(to_rts(qp, 7), 0);
	assert_int_equal(qp->state, IBV_QPS_RTS);
}

static inline void pair_init(struct end *a, struct end *b,
			     enum ibv_qp_type type)
{
	end_init(a, type, NULL);
	end_init(b, type, NULL);
	connect_to(a->qp, b->qp->qp_num);
	connect_to(b->qp, a->qp->qp_num);
}

/* The next completion, within seconds; fails the test if none comes. */
static inline struct ibv_wc wait_wc(struct ibv_cq *cq)
{
	uint64_t end = now_ns() + 10 * SECOND;
	struct ibv_wc wc = { 0 };
	int n;

	do {
		n = ibv_poll_cq(cq, 1, &wc);
		assert_true(n >= 0);
		assert_true(now_ns() < end);
	} while (!n);
	return wc;
}

static inline struct ibv_sge sge_of(const struct end *e, size_t at,
				    uint32_t len)
{
	return (struct ibv_sge){ (uintptr_t)e->buf + at, len, e->mr->lkey };
}

static inline void post_recv(struct end *e, uint64_t id, size_t at,
			     uint32_t len)
{
	struct ibv_sge sge = sge_of(e, at, len);
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 };
	struct ibv_recv_wr *bad;

	assert_int_equal(ibv_post_recv(e->qp, &wr, &bad), 0);
}

static inline int try_send(struct end *e, struct ibv_send_wr *wr, size_t at,
			   uint32_t len)
{
	struct ibv_sge sge = sge_of(e, at, len);
	struct ibv_send_wr *bad;

	wr->sg_list = &sge;
	wr->num_sge = 1;
	wr->send_flags |= IBV_SEND_SIGNALED;
	return ibv_post_send(e->qp, wr, &bad);
}

static inline void expect_wc(const struct ibv_wc *wc, uint64_t id,
			     enum ibv_wc_status status)
{
	assert_string_equal(ibv_wc_status_str(wc->status),
			    ibv_wc_status_str(status));
	assert_int_equal(wc->wr_id, id);
}

static inline void fill(uint8_t *p, size_t len, unsigned seed)
{
	size_t i;

	for (i = 0; i < len; i++)
		p[i] = (uint8_t)(seed + i * 7 + (i >> 8));
}

/* An end that may send. */
static inline void ud_init(struct end *e)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR };

	end_init(e, IBV_QPT_UD, NULL);
	assert_int_equal(to_init(e->qp, 0), 0);
	assert_int_equal(ibv_modify_qp(e->qp, &attr, IBV_QP_STATE), 0);
	attr.qp_state = IBV_QPS_RTS;
	assert_int_equal(
		ibv_modify_qp(e->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
}

/* Sends what a's buffer begins with by an address handle, and destroys that. */
static inline void ud_send(struct end *a, struct ibv_ah *ah, uint32_t qpn,
			   uint32_t len)
{
	struct ibv_send_wr wr = { .wr_id = 1,
				  .opcode = IBV_WR_SEND,
				  .wr.ud = { .ah = ah,
					     .remote_qpn = qpn,
					     .remote_qkey = 0x11111111 } };

	assert_non_null(ah);
	assert_int_equal(try_send(a, &wr, 0, len), 0);
	assert_int_equal(wait_wc(a->cq).status, 0);
	assert_int_equal(ibv_destroy_ah(ah), 0);
}

/* A test with a device of its own. */
#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

static inline struct ibv_ah *ah_to(int sgid_index, const union ibv_gid *dgid)
{
	struct ibv_ah_attr attr = { .is_global = 1,
				    .port_num = 1,
				    .grh = { .dgid = *dgid,
					     .sgid_index = (uint8_t)sgid_index,
					     .hop_limit = 1 } };

	return ibv_create_ah(pd, &attr);
}

#endif

/*
 * test_xrc.c - extended reliable connections as a program sees them
 */
#include "pair.h"

#include <signal.h>
#include <softhca/migrate.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>

/* One end: both halves, an SRQ in the domain, a region. */
struct xend {
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct ibv_qp *send, *recv;
	struct ibv_mr *mr;
	uint8_t *buf;
	uint32_t srqn;
};

static struct ibv_xrcd *open_domain(int fd, int oflags)
{
	struct ibv_xrcd_init_attr attr = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
		.fd = fd,
		.oflags = oflags,
	};

	return ibv_open_xrcd(ctx, &attr);
}

static void domain_close(struct ibv_xrcd *xrcd, int fd, const char *path)
{
	assert_int_equal(ibv_close_xrcd(xrcd), 0);
	close(fd);
	unlink(path);
}

static struct ibv_srq *make_srq(struct ibv_xrcd *xrcd, struct ibv_cq *cq,
				struct ibv_pd *p)
{
	struct ibv_srq_init_attr_ex attr = {
		.attr = { .max_wr = DEPTH, .max_sge = 2 },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
			     IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
		.srq_type = IBV_SRQT_XRC,
		.pd = p,
		.xrcd = xrcd,
		.cq = cq,
	};

	return ibv_create_srq_ex(ctx, &attr);
}

static struct ibv_qp *make_recv(struct ibv_xrcd *xrcd)
{
	struct ibv_qp_init_attr_ex attr = {
		.qp_type = IBV_QPT_XRC_RECV,
		.comp_mask = IBV_QP_INIT_ATTR_XRCD,
		.xrcd = xrcd,
	};

	return ibv_create_qp_ex(ctx, &attr);
}

static struct ibv_qp *make_send(struct ibv_cq *cq, uint64_t ops)
{
	struct ibv_qp_init_attr_ex attr = {
		.qp_type = IBV_QPT_XRC_SEND,
		.send_cq = cq,
		.cap = { .max_send_wr = DEPTH,
			 .max_send_sge = 2,
			 .max_inline_data = 64 },
		.comp_mask = IBV_QP_INIT_ATTR_PD |
			     (ops ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0),
		.pd = pd,
		.send_ops_flags = ops,
	};

	return ibv_create_qp_ex(ctx, &attr);
}

/* Other processes get their time when there are many. */
static uint8_t ack_timeout = 12;
static uint32_t first_psn = 0xfffffe;

/* As perftest does it: with the attributes of RC for both halves. */
static void connect_half(struct ibv_qp *qp, uint32_t dest)
{
	struct ibv_qp_attr rtr = rtr_attr(dest), rts = {
		.qp_state = IBV_QPS_RTS,
		.sq_psn = first_psn,
		.max_rd_atomic = 16,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.timeout = ack_timeout,
	};

	rtr.rq_psn = first_psn;
	assert_int_equal(to_init(qp, ALL_ACCESS), 0);
	assert_int_equal(ibv_modify_qp(qp, &rtr, rtr_mask(IBV_QPT_RC)), 0);
	assert_int_equal(
		ibv_modify_qp(qp, &rts,
			      IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT |
				      IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				      IBV_QP_MAX_QP_RD_ATOMIC),
		0);
}

static void xend_init(struct xend *e, struct ibv_xrcd *xrcd)
{
	e->cq = ibv_create_cq(ctx, 2 * DEPTH, NULL, NULL, 0);
	assert_non_null(e->cq);
	e->srq = make_srq(xrcd, e->cq, pd);
	assert_non_null(e->srq);
	assert_int_equal(ibv_get_srq_num(e->srq, &e->srqn), 0);
	e->send = make_send(e->cq, 0);
	assert_non_null(e->send);
	e->recv = make_recv(xrcd);
	assert_non_null(e->recv);
	e->buf = mmap(NULL, BUF, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(e->buf != MAP_FAILED);
	e->mr = ibv_reg_mr(pd, e->buf, BUF, ALL_ACCESS);
	assert_non_null(e->mr);
}

static void xend_fini(struct xend *e)
{
	assert_int_equal(ibv_destroy_qp(e->send), 0);
	if (e->recv)
		assert_int_equal(ibv_destroy_qp(e->recv), 0);
	if (e->srq)
		assert_int_equal(ibv_destroy_srq(e->srq), 0);
	assert_int_equal(ibv_dereg_mr(e->mr), 0);
	assert_int_equal(ibv_destroy_cq(e->cq), 0);
	munmap(e->buf, BUF);
}

static void xpair(struct xend *a, struct xend *b, struct ibv_xrcd *xrcd)
{
	xend_init(a, xrcd);
	xend_init(b, xrcd);
	connect_half(a->send, b->recv->qp_num);
	connect_half(b->recv, a->send->qp_num);
	connect_half(b->send, a->recv->qp_num);
	connect_half(a->recv, b->send->qp_num);
}

static void srq_recv(struct ibv_srq *srq, struct xend *e, uint64_t id,
		     uint32_t len)
{
	struct ibv_sge sge = { (uintptr_t)e->buf, len, e->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 };
	struct ibv_recv_wr *bad;

	assert_int_equal(ibv_post_srq_recv(srq, &wr, &bad), 0);
}

static int xsend(struct xend *e, struct ibv_send_wr *wr, uint32_t srqn,
		 uint32_t len)
{
	struct ibv_sge sge = { (uintptr_t)e->buf, len, e->mr->lkey };
	struct ibv_send_wr *bad;

	wr->qp_type.xrc.remote_srqn = srqn;
	wr->sg_list = &sge;
	wr->num_sge = 1;
	wr->send_flags |= IBV_SEND_SIGNALED;
	return ibv_post_send(e->send, wr, &bad);
}

static void domains(void **state)
{
	char path[] = "/tmp/softhca-xrc-XXXXXX";
	int fd = mkstemp(path), fd2 = open(path, O_RDONLY);
	struct ibv_xrcd_init_attr attr = { .fd = fd };
	struct ibv_xrcd *a, *b, *c;

	(void)state;
	assert_true(fd >= 0 && fd2 >= 0);
	assert_null(ibv_open_xrcd(ctx, &attr));
	assert_int_equal(errno, EINVAL);
	attr.comp_mask = 1 << 5;
	assert_null(ibv_open_xrcd(ctx, &attr));
	assert_int_equal(errno, EOPNOTSUPP);
	assert_null(open_domain(fd, O_CREAT | O_TRUNC));
	assert_int_equal(errno, EINVAL);
	assert_null(open_domain(12345, O_CREAT));
	assert_int_equal(errno, EBADF);
	assert_null(open_domain(fd, 0)); /* not there yet */
	assert_int_equal(errno, EAGAIN);
	a = open_domain(fd, O_CREAT | O_EXCL);
	assert_non_null(a);
	assert_null(open_domain(fd2, O_CREAT | O_EXCL));
	assert_int_equal(errno, EINVAL);
	b = open_domain(fd2, 0);
	assert_non_null(b);
	/* The program's descriptors may go, and its locks are its own. */
	close(fd2);
	assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
	c = open_domain(fd, O_CREAT);
	assert_non_null(c);
	assert_int_equal(ibv_close_xrcd(a), 0);
	assert_int_equal(ibv_close_xrcd(b), 0);
	assert_null(open_domain(fd, O_CREAT | O_EXCL));
	assert_int_equal(ibv_close_xrcd(c), 0);
	/* With the last handle the domain went. */
	assert_null(open_domain(fd, 0));
	a = open_domain(fd, O_CREAT | O_EXCL);
	assert_non_null(a);
	assert_int_equal(ibv_close_xrcd(a), 0);
	/* Of no inode: each is one of its own. */
	a = open_domain(-1, O_CREAT);
	b = open_domain(-1, O_CREAT | O_EXCL);
	assert_non_null(a);
	assert_non_null(b);
	assert_int_equal(ibv_close_xrcd(a), 0);
	assert_int_equal(ibv_close_xrcd(b), 0);
	close(fd);
	unlink(path);
}

/* Another process has the domain: O_EXCL and opening without O_CREAT. */
static void domain_elsewhere(void **state)
{
	char path[] = "/tmp/softhca-xrc-XXXXXX";
	int fd = mkstemp(path), go[2], ready[2], status;
	struct ibv_xrcd *a;
	pid_t pid;
	char c;

	(void)state;
#ifdef __SANITIZE_THREAD__
	skip(); /* it forbids threads in a child of threads */
#endif
	assert_true(fd >= 0);
	assert_int_equal(pipe(go), 0);
	assert_int_equal(pipe(ready), 0);
	pid = fork_child();
	assert_true(pid >= 0);
	if (!pid) {
		int mine = open(path, O_RDONLY);

		alarm(20);
		ctx = open_first();
		if (!ctx || !open_domain(mine, O_CREAT | O_EXCL))
			_exit(1);
		if (write(ready[1], "x", 1) != 1 || read(go[0], &c, 1) != 1)
			_exit(2);
		_exit(0); /* without closing: the kernel lets go */
	}
	assert_int_equal(read(ready[0], &c, 1), 1);
	assert_null(open_domain(fd, O_CREAT | O_EXCL));
	assert_int_equal(errno, EINVAL);
	a = open_domain(fd, 0);
	assert_non_null(a);
	assert_int_equal(ibv_close_xrcd(a), 0);
	assert_int_equal(write(go[1], "x", 1), 1);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_null(open_domain(fd, 0));
	a = open_domain(fd, O_CREAT | O_EXCL);
	assert_non_null(a);
	assert_int_equal(ibv_close_xrcd(a), 0);
	for (c = 0; c < 2; c++) {
		close(go[(int)c]);
		close(ready[(int)c]);
	}
	close(fd);
	unlink(path);
}

static void creation(void **state)
{
	struct ibv_xrcd *xrcd = open_domain(-1, O_CREAT);
	struct ibv_cq *cq = ibv_create_cq(ctx, 8, NULL, NULL, 0);
	struct ibv_srq_init_attr basic = { .attr = { .max_wr = 8,
						     .max_sge = 1 } };
	struct ibv_recv_wr rwr = { 0 }, *rbad;
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND }, *bad;
	struct ibv_qp *recv, *send;
	struct ibv_srq *srq, *other;
	uint32_t num, num2;
	size_t i;

	(void)state;
	for (i = 0; i < 3; i++) {
		struct ibv_srq_init_attr_ex attr = {
			.attr = { .max_wr = 4, .max_sge = 1 },
			.comp_mask = IBV_SRQ_INIT_ATTR_TYPE |
				     IBV_SRQ_INIT_ATTR_PD |
				     (i != 0 ? IBV_SRQ_INIT_ATTR_XRCD : 0) |
				     (i != 1 ? IBV_SRQ_INIT_ATTR_CQ : 0),
			.srq_type = i == 2 ? IBV_SRQT_TM : IBV_SRQT_XRC,
			.pd = pd,
			.xrcd = xrcd,
			.cq = cq,
		};

		errno = 0;
		assert_null(ibv_create_srq_ex(ctx, &attr));
		assert_int_equal(errno, i == 2 ? EOPNOTSUPP : EINVAL);
	}
	srq = make_srq(xrcd, cq, pd);
	other = make_srq(xrcd, cq, pd);
	assert_int_equal(ibv_get_srq_num(srq, &num), 0);
	assert_int_equal(ibv_get_srq_num(other, &num2), 0);
	assert_true(num && num <= 0xffffff && num != num2);
	assert_int_equal(ibv_destroy_srq(other), 0);
	other = ibv_create_srq(pd, &basic);
	assert_int_equal(ibv_get_srq_num(other, &num2), EINVAL);
	assert_int_equal(ibv_destroy_srq(other), 0);

	recv = make_recv(xrcd);
	assert_null(make_recv(NULL));
	assert_int_equal(errno, EINVAL);
	assert_null(make_send(NULL, 0));
	send = make_send(cq, IBV_QP_EX_WITH_SEND);
	assert_non_null(send);
	assert_null(make_send(cq, IBV_QP_EX_WITH_TSO));
	assert_int_equal(errno, EOPNOTSUPP);
	/* Neither half has the other's queue. */
	assert_int_equal(ibv_post_recv(send, &rwr, &rbad), EINVAL);
	assert_int_equal(ibv_post_recv(recv, &rwr, &rbad), EINVAL);
	assert_int_equal(ibv_post_send(recv, &wr, &bad), EINVAL);

	assert_int_equal(ibv_close_xrcd(xrcd), EBUSY);
	assert_int_equal(ibv_destroy_cq(cq), EBUSY);
	assert_int_equal(ibv_destroy_qp(recv), 0);
	assert_int_equal(ibv_close_xrcd(xrcd), EBUSY);
	assert_int_equal(ibv_destroy_srq(srq), 0);
	assert_int_equal(ibv_close_xrcd(xrcd), 0);
	assert_int_equal(ibv_destroy_qp(send), 0);
	assert_int_equal(ibv_destroy_cq(cq), 0);
}

static void messages(void **state)
{
	struct ibv_xrcd *xrcd = open_domain(-1, O_CREAT);
	struct ibv_send_wr wr = { .wr_id = 1,
				  .opcode = IBV_WR_SEND_WITH_IMM,
				  .imm_data = htobe32(99) };
	struct ibv_cq *cq2 = ibv_create_cq(ctx, 8, NULL, NULL, 0);
	struct ibv_pd *pd2 = ibv_alloc_pd(ctx);
	struct ibv_srq *second;
	struct xend a, b;
	struct ibv_wc wc;
	uint32_t num;

	(void)state;
	xpair(&a, &b, xrcd);
	second = make_srq(xrcd, cq2, pd2);
	assert_int_equal(ibv_get_srq_num(second, &num), 0);

	/* The number in the packet says whose receive it is. */
	srq_recv(b.srq, &b, 10, 8192);
	fill(a.buf, 5000, 1);
	assert_int_equal(xsend(&a, &wr, b.srqn, 5000), 0);
	wc = wait_wc(b.cq);
	expect_wc(&wc, 10, IBV_WC_SUCCESS);
	assert_int_equal(wc.byte_len, 5000);
	assert_int_equal(wc.qp_num, b.recv->qp_num);
	assert_int_equal(wc.src_qp, a.send->qp_num);
	assert_int_equal(be32toh(wc.imm_data), 99);
	assert_memory_equal(a.buf, b.buf, 5000);
	wc = wait_wc(a.cq);
	expect_wc(&wc, 1, IBV_WC_SUCCESS);

	/* Its keys are those of the SRQ's domain: b's region is of another. */
	srq_recv(second, &b, 11, 64);
	assert_int_equal(xsend(&a, &wr, num, 64), 0);
	assert_int_equal(wait_wc(cq2).status, IBV_WC_LOC_PROT_ERR);
	assert_int_equal(wait_wc(a.cq).status, IBV_WC_REM_OP_ERR);
	assert_int_equal(ibv_destroy_srq(second), 0);
	assert_int_equal(ibv_destroy_cq(cq2), 0);
	xend_fini(&a);
	xend_fini(&b);

	/* Nobody has that number. */
	xpair(&a, &b, xrcd);
	assert_int_equal(xsend(&a, &wr, b.srqn ^ 0x800000, 64), 0);
	assert_int_equal(wait_wc(a.cq).status, IBV_WC_REM_INV_REQ_ERR);
	xend_fini(&a);
	xend_fini(&b);
	assert_int_equal(ibv_dealloc_pd(pd2), 0);
	assert_int_equal(ibv_close_xrcd(xrcd), 0);
}

static void one_sided(void **state)
{
	struct ibv_xrcd *xrcd = open_domain(-1, O_CREAT);
	struct ibv_pd *pd2 = ibv_alloc_pd(ctx);
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE };
	struct ibv_srq *foreign;
	struct xend a, b;
	uint32_t num;

	(void)state;
	xpair(&a, &b, xrcd);
	foreign = make_srq(xrcd, b.cq, pd2);
	assert_int_equal(ibv_get_srq_num(foreign, &num), 0);
	fill(a.buf, BUF, 4);
	wr.wr.rdma.rkey = b.mr->rkey;
	wr.wr.rdma.remote_addr = (uintptr_t)b.buf;
	assert_int_equal(xsend(&a, &wr, b.srqn, BUF), 0);
	assert_int_equal(wait_wc(a.cq).status, 0);
	assert_memory_equal(a.buf, b.buf, BUF);
	wr.opcode = IBV_WR_RDMA_READ;
	wr.wr.rdma.remote_addr += 256;
	assert_int_equal(xsend(&a, &wr, b.srqn, BUF - 256), 0);
	assert_int_equal(wait_wc(a.cq).status, 0);
	assert_memory_equal(a.buf, b.buf + 256, BUF - 256);
	wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
	wr.wr.atomic.rkey = b.mr->rkey;
	wr.wr.atomic.remote_addr = (uintptr_t)b.buf;
	wr.wr.atomic.compare_add = 5;
	memset(b.buf, 0, 8);
	assert_int_equal(xsend(&a, &wr, b.srqn, 8), 0);
	assert_int_equal(wait_wc(a.cq).status, 0);
	assert_int_equal(*(uint64_t *)(void *)b.buf, 5);
	/* The domain that counts is that of the SRQ that the request names. */
	assert_int_equal(xsend(&a, &wr, num, 8), 0);
	assert_int_equal(wait_wc(a.cq).status, IBV_WC_REM_ACCESS_ERR);
	assert_int_equal(ibv_destroy_srq(foreign), 0);
	xend_fini(&a);
	xend_fini(&b);
	assert_int_equal(ibv_dealloc_pd(pd2), 0);
	assert_int_equal(ibv_close_xrcd(xrcd), 0);
}

/* The builders, with their setter for the number. */
static void builders(void **state)
{
	struct ibv_xrcd *xrcd = open_domain(-1, O_CREAT);
	struct ibv_qp_ex *ex;
	struct xend a, b;
	struct ibv_qp *qp;

	(void)state;
	xpair(&a, &b, xrcd);
	qp = make_send(a.cq, IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE |
				     IBV_QP_EX_WITH_ATOMIC_WRITE);
	assert_non_null(qp);
	ex = ibv_qp_to_qp_ex(qp);
	assert_int_equal(ibv_destroy_qp(b.recv), 0);
	b.recv = make_recv(xrcd);
	connect_half(qp, b.recv->qp_num);
	connect_half(b.recv, qp->qp_num);
	srq_recv(b.srq, &b, 1, 64);
	ibv_wr_start(ex);
	ex->wr_id = 41;
	ex->wr_flags = 0;
	ibv_wr_rdma_write(ex, b.mr->rkey, (uintptr_t)b.buf + 256);
	ibv_wr_set_xrc_srqn(ex, b.srqn);
	ibv_wr_set_inline_data(ex, (void *)(uintptr_t) "hello", 6);
	ibv_wr_atomic_write(ex, b.mr->rkey, (uintptr_t)b.buf + 512, "12345678");
	ibv_wr_set_xrc_srqn(ex, b.srqn);
	ex->wr_id = 42;
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(ex);
	ibv_wr_set_xrc_srqn(ex, b.srqn);
	ibv_wr_set_sge(ex, a.mr->lkey, (uintptr_t)a.buf, 16);
	assert_int_equal(ibv_wr_complete(ex), 0);
	assert_int_equal(wait_wc(b.cq).status, 0);
	assert_int_equal(wait_wc(a.cq).wr_id, 42);
	assert_string_equal((char *)b.buf + 256, "hello");
	assert_memory_equal(b.buf + 512, "12345678", 8);
	assert_int_equal(ibv_destroy_qp(qp), 0);
	xend_fini(&a);
	xend_fini(&b);
	assert_int_equal(ibv_close_xrcd(xrcd), 0);
}

static void shared_qp(void **state)
{
	struct ibv_xrcd *xrcd = open_domain(-1, O_CREAT);
	struct ibv_xrcd *strange = open_domain(-1, O_CREAT);
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND };
	struct ibv_qp_open_attr attr = {
		.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD |
			     IBV_QP_OPEN_ATTR_TYPE | IBV_QP_OPEN_ATTR_CONTEXT,
		.xrcd = xrcd,
		.qp_context = &attr,
		.qp_type = IBV_QPT_XRC_RECV,
	};
	struct ibv_qp_attr err = { .qp_state = IBV_QPS_ERR }, got;
	struct ibv_qp_init_attr init;
	struct ibv_async_event ev;
	struct ibv_qp *h1, *h2;
	struct xend a, b;
	int i, seen = 0;

	(void)state;
	xpair(&a, &b, xrcd);
	attr.qp_num = b.recv->qp_num;
	h1 = ibv_open_qp(ctx, &attr);
	h2 = ibv_open_qp(ctx, &attr);
	assert_non_null(h1);
	assert_non_null(h2);
	assert_int_equal(h1->qp_num, attr.qp_num);
	assert_int_equal(h1->state, IBV_QPS_RTS);
	assert_ptr_equal(h1->qp_context, &attr);
	/* What cannot be opened. */
	attr.qp_num ^= 1;
	assert_null(ibv_open_qp(ctx, &attr));
	assert_int_equal(errno, EINVAL);
	attr.qp_num = a.send->qp_num;
	assert_null(ibv_open_qp(ctx, &attr));
	attr.qp_num = b.recv->qp_num;
	attr.xrcd = strange;
	assert_null(ibv_open_qp(ctx, &attr));
	attr.xrcd = xrcd;
	attr.qp_type = IBV_QPT_XRC_SEND;
	assert_null(ibv_open_qp(ctx, &attr));
	attr.qp_type = IBV_QPT_XRC_RECV;
	attr.comp_mask &= ~(uint32_t)IBV_QP_OPEN_ATTR_NUM;
	assert_null(ibv_open_qp(ctx, &attr));

	/* The first handle goes; the QP stays, and both others have it. */
	assert_int_equal(ibv_destroy_qp(b.recv), 0);
	b.recv = NULL;
	srq_recv(b.srq, &b, 1, 64);
	assert_int_equal(xsend(&a, &wr, b.srqn, 64), 0);
	assert_int_equal(wait_wc(b.cq).status, 0);
	assert_int_equal(wait_wc(a.cq).status, 0);
	assert_int_equal(ibv_query_qp(h2, &got, IBV_QP_STATE, &init), 0);
	assert_int_equal(got.qp_state, IBV_QPS_RTS);
	assert_int_equal(init.qp_type, IBV_QPT_XRC_RECV);
	assert_int_equal(ibv_modify_qp(h1, &err, IBV_QP_STATE), 0);
	assert_int_equal(ibv_query_qp(h2, &got, IBV_QP_STATE, &init), 0);
	assert_int_equal(got.qp_state, IBV_QPS_ERR);
	for (i = 0; i < 2; i++) {
		assert_true(readable(ctx->async_fd, 1000));
		assert_int_equal(ibv_get_async_event(ctx, &ev), 0);
		if (ev.event_type == IBV_EVENT_COMM_EST) {
			i--;
			ibv_ack_async_event(&ev);
			continue;
		}
		assert_int_equal(ev.event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
		seen |= ev.element.qp == h1 ? 1 : ev.element.qp == h2 ? 2 : 0;
		ibv_ack_async_event(&ev);
	}
	assert_int_equal(seen, 3);
	assert_int_equal(ibv_destroy_qp(h1), 0);
	assert_int_equal(ibv_close_xrcd(xrcd), EBUSY);
	assert_int_equal(ibv_destroy_qp(h2), 0);
	attr.comp_mask |= IBV_QP_OPEN_ATTR_NUM;
	assert_null(ibv_open_qp(ctx, &attr));
	xend_fini(&a);
	xend_fini(&b);
	assert_int_equal(ibv_close_xrcd(xrcd), 0);
	assert_int_equal(ibv_close_xrcd(strange), 0);
}

/* An SRQ may go at any time, in the middle of a message as well. */
static void srq_goes(void **state)
{
	struct ibv_xrcd *xrcd = open_domain(-1, O_CREAT);
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND };
	struct xend a, b;
	int i;

	(void)state;
	for (i = 0; i < 20; i++) {
		enum ibv_wc_status status;

		xpair(&a, &b, xrcd);
		srq_recv(b.srq, &b, 1, BUF);
		assert_int_equal(xsend(&a, &wr, b.srqn, BUF), 0);
		assert_int_equal(xsend(&a, &wr, b.srqn, BUF), 0);
		if (i % 2)
			usleep((unsigned)i * 10); /* now sooner, now later */
		assert_int_equal(ibv_destroy_srq(b.srq), 0);
		b.srq = NULL;
		status = wait_wc(a.cq).status;
		if (status == IBV_WC_SUCCESS)
			status = wait_wc(a.cq).status;
		assert_true(status == IBV_WC_REM_INV_REQ_ERR ||
			    status == IBV_WC_REM_OP_ERR);
		xend_fini(&a);
		xend_fini(&b);
	}
	assert_int_equal(ibv_close_xrcd(xrcd), 0);
}

/* ---- a domain and its SRQs in two processes ------------------------------ */

#define SHARED_LEN 6000 /* several packets */
#define SHARED_RECVS 32

struct hello { /* what the other process says of itself */
	uint32_t srqn, rkey;
	uint32_t srqn2; /* of an SRQ in the domain of path.2, if there is one */
	uint64_t addr;
};

struct heard { /* ... and of each message */
	uint32_t status, byte_len, qp_num, imm;
	uint8_t first, last;
};

/* Others of this host wait. A message may be halfway for long where its sender, or
 * who receives it, gets no CPU. */
static int suspend_for(unsigned us)
{
	int seat, err;

	while ((err = softhca_suspend_seated(&seat)) == EBUSY)
		usleep(1000);
	usleep(us);
	return err ? err : softhca_resume();
}

/*
 * The other process: an SRQ in the domain of path and a region, no QP. Reports
 * what it receives. It does what a byte from the parent says: 'r' posts
 * receives, 'q' ends the reports, 's' suspends it for a moment, another destroys
 * the SRQ.
 */
static void other_process(const char *path, int in, int out)
{
	struct ibv_xrcd *xrcd;
	struct hello hello = { 0 };
	struct ibv_recv_wr *bad;
	struct ibv_srq *srq;
	char path2[64];
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	uint8_t *mem;
	char c;
	int fd;

	alarm(50);
	ctx = open_first();
	pd = ibv_alloc_pd(ctx);
	xrcd = open_domain(open(path, O_RDONLY), 0);
	cq = ibv_create_cq(ctx, 2 * SHARED_RECVS, NULL, NULL, 0);
	mem = calloc(SHARED_RECVS + 1, BUF);
	if (!pd || !xrcd || !cq || !mem)
		_exit(1);
	srq = make_srq(xrcd, cq, pd);
	mr = ibv_reg_mr(pd, mem, (SHARED_RECVS + 1) * BUF, ALL_ACCESS);
	if (!srq || !mr)
		_exit(2);
	snprintf(path2, sizeof(path2), "%s.2", path);
	fd = open(path2, O_RDONLY);
	if (fd >= 0 &&
	    ibv_get_srq_num(make_srq(open_domain(fd, 0), cq, pd), &hello.srqn2))
		_exit(2);
	hello.rkey = mr->rkey;
	hello.addr = (uintptr_t)mem;
	if (ibv_get_srq_num(srq, &hello.srqn) ||
	    write(out, &hello, sizeof(hello)) != sizeof(hello))
		_exit(3);
	for (;;) {
		struct ibv_wc wc;
		struct ibv_sge sge;
		struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 };
		struct heard h = { 0 };

		if (readable(in, 0)) {
			if (read(in, &c, 1) != 1)
				_exit(0);
			for (uint64_t i = 1; c == 'r' && i <= SHARED_RECVS;
			     i++) {
				sge = (struct ibv_sge){
					(uintptr_t)mem + i * BUF, BUF, mr->lkey
				};
				wr.wr_id = i;
				if (ibv_post_srq_recv(srq, &wr, &bad))
					_exit(4);
			}
			if (c == 'q')
				out = open("/dev/null", O_WRONLY);
			if (c == 's' && suspend_for(3000))
				_exit(7);
			if (c == 'q' || c == 'r' || c == 's')
				continue;
			if (ibv_destroy_srq(srq) || ibv_close_xrcd(xrcd) ||
			    write(out, &c, 1) != 1)
				_exit(5);
			pause();
		}
		if (ibv_poll_cq(cq, 1, &wc) != 1)
			continue;
		sge = (struct ibv_sge){ (uintptr_t)mem + wc.wr_id * BUF, BUF,
					mr->lkey };
		wr.wr_id = wc.wr_id;
		h.status = wc.status;
		h.byte_len = wc.byte_len;
		h.qp_num = wc.qp_num;
		h.imm = wc.wc_flags & IBV_WC_WITH_IMM ? be32toh(wc.imm_data) :
							0;
		h.first = mem[wc.wr_id * BUF];
		h.last = mem[wc.wr_id * BUF +
			     (wc.byte_len ? wc.byte_len - 1 : 0)];
		if (ibv_post_srq_recv(srq, &wr, &bad) ||
		    write(out, &h, sizeof(h)) != sizeof(h))
			_exit(6);
	}
}

struct other {
	pid_t pid;
	int in, out; /* of this process */
	struct hello hello;
};

static void other_start(struct other *o, const char *path)
{
	int to[2], from[2];

	assert_int_equal(pipe(to), 0);
	assert_int_equal(pipe(from), 0);
	o->pid = fork_child();
	assert_true(o->pid >= 0);
	if (!o->pid) {
		char in[12], out[12];

		close(to[1]);
		close(from[0]);
		snprintf(in, sizeof(in), "%d", to[0]);
		snprintf(out, sizeof(out), "%d", from[1]);
		/* A program of its own, as sanitizers want it. */
		execl("/proc/self/exe", "other", path, in, out, NULL);
		_exit(9);
	}
	close(to[0]);
	close(from[1]);
	o->out = to[1];
	o->in = from[0];
	assert_int_equal(read(o->in, &o->hello, sizeof(o->hello)),
			 sizeof(o->hello));
}

static void other_end(struct other *o)
{
	kill(o->pid, SIGKILL);
	waitpid(o->pid, NULL, 0);
	close(o->in);
	close(o->out);
}

static void heard_of(const struct other *o, const struct xend *e, uint8_t what,
		     uint32_t len, uint32_t imm, bool data)
{
	struct heard h;

	assert_true(readable(o->in, 20000));
	assert_int_equal(read(o->in, &h, sizeof(h)), sizeof(h));
	assert_int_equal(h.status, IBV_WC_SUCCESS);
	assert_int_equal(h.byte_len, len);
	assert_int_equal(h.imm, imm);
	assert_int_equal(h.qp_num, e->recv->qp_num);
	if (data) {
		assert_int_equal(h.first, what);
		assert_int_equal(h.last, what);
	}
}

/* A QP says so once, and then no more: on a bad link that may be lost. */
static void refused(struct xend *e, enum ibv_wc_status why)
{
	enum ibv_wc_status status = wait_wc(e->cq).status;

	if (!getenv("SOFTHCA_LOSS") || status != IBV_WC_RETRY_EXC_ERR)
		assert_int_equal(status, why);
}

/* Messages for SRQs here and there through one QP, mixed. */
static void shared_messages(struct xend *a, struct xend *b, struct other *o)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND_WITH_IMM };
	uint32_t i, n, round, len;

	for (round = 0; round < 8; round++) {
		for (i = 0; i < 16; i++) {
			bool there = round % 2 ? i % 2 : i / 4 % 2;

			len = i % 3 ? SHARED_LEN - i : i;
			if (!there)
				srq_recv(b->srq, b, i, BUF);
			memset(a->buf + i * 4096, (int)(round * 16 + i), 4096);
			wr.wr_id = i;
			wr.imm_data = htobe32(round * 16 + i + 1);
			wr.send_flags = 0;
			struct ibv_sge sge[2] = {
				{ (uintptr_t)a->buf + i * 4096,
				  len > 4096 ? 4096 : len, a->mr->lkey },
				{ (uintptr_t)a->buf + i * 4096,
				  len > 4096 ? len - 4096 : 0, a->mr->lkey },
			};
			struct ibv_send_wr *bad;

			wr.qp_type.xrc.remote_srqn =
				there ? o->hello.srqn : b->srqn;
			wr.sg_list = sge;
			wr.num_sge = 2;
			wr.send_flags = IBV_SEND_SIGNALED;
			assert_int_equal(ibv_post_send(a->send, &wr, &bad), 0);
		}
		for (i = n = 0; i < 16; i++) {
			bool there = round % 2 ? i % 2 : i / 4 % 2;
			struct ibv_wc wc;

			/* The first message for there finds no receive yet. */
			if (!round && i == 4)
				assert_int_equal(write(o->out, "r", 1), 1);
			wc = wait_wc(a->cq);
			expect_wc(&wc, i, IBV_WC_SUCCESS);
			len = i % 3 ? SHARED_LEN - i : i;
			if (there) {
				heard_of(o, b, (uint8_t)(round * 16 + i), len,
					 round * 16 + i + 1, len);
				continue;
			}
			wc = wait_wc(b->cq);
			expect_wc(&wc, i, IBV_WC_SUCCESS);
			assert_int_equal(wc.byte_len, len);
			assert_int_equal(be32toh(wc.imm_data),
					 round * 16 + i + 1);
			n++;
		}
		assert_int_equal(n, 8);
	}
}

/* The other's memory is written, read, counted in. */
static void shared_memory(struct xend *a, struct xend *b, struct other *o)
{
	struct ibv_send_wr wr = { 0 };
	uint64_t sum = 0;
	uint32_t i;

	for (i = 0; i < 12; i++) {
		wr.send_flags = 0;
		wr.opcode = IBV_WR_RDMA_WRITE;
		wr.wr.rdma.rkey = o->hello.rkey;
		wr.wr.rdma.remote_addr = o->hello.addr + 64;
		fill(a->buf, SHARED_LEN, i);
		assert_int_equal(xsend(a, &wr, o->hello.srqn, SHARED_LEN), 0);
		assert_int_equal(wait_wc(a->cq).status, 0);
		memset(a->buf + SHARED_LEN, 0, SHARED_LEN);
		wr.opcode = IBV_WR_RDMA_READ;
		struct ibv_sge sge = { (uintptr_t)a->buf + SHARED_LEN,
				       SHARED_LEN, a->mr->lkey };
		struct ibv_send_wr *bad;

		wr.sg_list = &sge;
		wr.num_sge = 1;
		/* Three reads in a row, and behind them something for here. */
		assert_int_equal(ibv_post_send(a->send, &wr, &bad), 0);
		assert_int_equal(ibv_post_send(a->send, &wr, &bad), 0);
		assert_int_equal(ibv_post_send(a->send, &wr, &bad), 0);
		srq_recv(b->srq, b, i, BUF);
		wr.opcode = IBV_WR_SEND;
		assert_int_equal(xsend(a, &wr, b->srqn, 100), 0);
		assert_int_equal(wait_wc(a->cq).status, 0);
		assert_int_equal(wait_wc(a->cq).status, 0);
		assert_int_equal(wait_wc(a->cq).status, 0);
		assert_int_equal(wait_wc(a->cq).status, 0);
		assert_int_equal(wait_wc(b->cq).status, 0);
		assert_memory_equal(a->buf, a->buf + SHARED_LEN, SHARED_LEN);
		wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
		wr.wr.atomic.rkey = o->hello.rkey;
		wr.wr.atomic.remote_addr = o->hello.addr;
		wr.wr.atomic.compare_add = i + 1;
		assert_int_equal(xsend(a, &wr, o->hello.srqn, 8), 0);
		assert_int_equal(wait_wc(a->cq).status, 0);
		assert_int_equal(*(uint64_t *)(void *)a->buf, sum);
		sum += i + 1;
		wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
		wr.imm_data = htobe32(i + 1);
		wr.wr.rdma.rkey = o->hello.rkey;
		wr.wr.rdma.remote_addr = o->hello.addr + 64;
		assert_int_equal(xsend(a, &wr, o->hello.srqn, SHARED_LEN), 0);
		assert_int_equal(wait_wc(a->cq).status, 0);
		heard_of(o, b, 0, SHARED_LEN, i + 1, false);
	}
}

/* How often this process asked who has a lock: whether another is alive. */
static _Atomic unsigned asked;

/* Of this program and of the libraries. */
int fcntl(int fd, int cmd, ...)
{
	va_list ap;
	void *arg;

	va_start(ap, cmd);
	arg = va_arg(ap, void *);
	va_end(ap);
	if (cmd == F_GETLK)
		asked++;
	return (int)syscall(SYS_fcntl, fd, cmd, arg);
}

/* While a lease lasts, packets do not ask each whether its process lives. */
static void shared_long(struct xend *a, struct other *o)
{
	struct ibv_send_wr wr = {
		.opcode = IBV_WR_RDMA_WRITE,
		.wr.rdma = { .rkey = o->hello.rkey,
			     .remote_addr = o->hello.addr },
	};
	const unsigned messages = 64; /* of 64 packets */
	uint64_t start = now_ns();
	unsigned before = asked, i;

	for (i = 0; i < DEPTH / 2; i++)
		assert_int_equal(xsend(a, &wr, o->hello.srqn, BUF), 0);
	for (i = 0; i < messages; i++) {
		assert_int_equal(wait_wc(a->cq).status, 0);
		if (i + DEPTH / 2 < messages)
			assert_int_equal(xsend(a, &wr, o->hello.srqn, BUF), 0);
	}
	assert_true(asked > before);
	/* Once for each lease, and once in a few milliseconds. */
	assert_in_range(asked - before, 1,
			2 * messages + (now_ns() - start) / 1000000);
}

/* In SQD a QP receives on, wherever its responder is when it gets there. */
static void shared_sqd(struct xend *a, struct xend *b, struct other *o)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_SQD };
	struct ibv_send_wr wr = {
		.opcode = IBV_WR_RDMA_WRITE,
		.wr.rdma = { .rkey = o->hello.rkey,
			     .remote_addr = o->hello.addr },
	};
	int i;

	for (i = 0; i < 8; i++) {
		assert_int_equal(xsend(a, &wr, o->hello.srqn, SHARED_LEN), 0);
		assert_int_equal(wait_wc(a->cq).status, 0);
		if (i / 2 % 2)
			usleep(2000); /* it goes home */
		attr.qp_state = i % 2 ? IBV_QPS_SQD : IBV_QPS_RTS;
		assert_int_equal(ibv_modify_qp(b->recv, &attr, IBV_QP_STATE),
				 0);
	}
}

static void sharing(void **state)
{
	char path[] = "/tmp/softhca-xrc-XXXXXX";
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND };
	int fd = mkstemp(path);
	struct ibv_async_event ev;
	struct ibv_xrcd *xrcd;
	struct xend a, b;
	struct other o;
	char c = 'x';
	bool told;

	(void)state;
	ack_timeout = getenv("SOFTHCA_LOSS") ? 14 : 17; /* half a second */
	assert_true(fd >= 0);
	xrcd = open_domain(fd, O_CREAT | O_EXCL);
	assert_non_null(xrcd);
	other_start(&o, path);
	xpair(&a, &b, xrcd);
	assert_int_not_equal(o.hello.srqn, b.srqn);
	shared_messages(&a, &b, &o);
	shared_memory(&a, &b, &o);
	shared_sqd(&a, &b, &o);
	if (!getenv("SOFTHCA_LOSS"))
		shared_long(&a, &o);

	/* A key that is not its. */
	wr.opcode = IBV_WR_RDMA_WRITE;
	wr.wr.rdma.rkey = o.hello.rkey ^ 0x100;
	wr.wr.rdma.remote_addr = o.hello.addr;
	assert_int_equal(xsend(&a, &wr, o.hello.srqn, 64), 0);
	refused(&a, IBV_WC_REM_ACCESS_ERR);
	/* The QP's own process hears of it. */
	do {
		assert_true(readable(ctx->async_fd, 5000));
		assert_int_equal(ibv_get_async_event(ctx, &ev), 0);
		told = ev.event_type == IBV_EVENT_QP_ACCESS_ERR &&
		       ev.element.qp == b.recv;
		ibv_ack_async_event(&ev);
	} while (!told);
	xend_fini(&a);
	xend_fini(&b);

	/* Its SRQ is gone. */
	xpair(&a, &b, xrcd);
	wr.opcode = IBV_WR_SEND;
	assert_int_equal(xsend(&a, &wr, o.hello.srqn, SHARED_LEN), 0);
	assert_int_equal(wait_wc(a.cq).status, 0);
	heard_of(&o, &b, 0, SHARED_LEN, 0, false);
	assert_int_equal(write(o.out, &c, 1), 1);
	assert_true(readable(o.in, 5000));
	assert_int_equal(read(o.in, &c, 1), 1);
	assert_int_equal(xsend(&a, &wr, o.hello.srqn, SHARED_LEN), 0);
	refused(&a, IBV_WC_REM_INV_REQ_ERR);
	xend_fini(&a);
	xend_fini(&b);
	other_end(&o);

	/* It was killed: the QP is as it was, but nobody has that number. */
	other_start(&o, path);
	xpair(&a, &b, xrcd);
	shared_messages(&a, &b, &o);
	other_end(&o);
	srq_recv(b.srq, &b, 1, BUF);
	assert_int_equal(xsend(&a, &wr, b.srqn, SHARED_LEN), 0);
	assert_int_equal(wait_wc(a.cq).status, 0);
	assert_int_equal(wait_wc(b.cq).status, 0);
	assert_int_equal(xsend(&a, &wr, o.hello.srqn, SHARED_LEN), 0);
	refused(&a, IBV_WC_REM_INV_REQ_ERR);
	xend_fini(&a);
	xend_fini(&b);

	/* The SRQ of another domain. */
	other_start(&o, path);
	domain_close(xrcd, fd, path);
	fd = open(path, O_RDWR | O_CREAT, 0600);
	assert_true(fd >= 0);
	xrcd = open_domain(fd, O_CREAT | O_EXCL);
	assert_non_null(xrcd);
	xpair(&a, &b, xrcd);
	assert_int_equal(xsend(&a, &wr, o.hello.srqn, SHARED_LEN), 0);
	refused(&a, IBV_WC_REM_INV_REQ_ERR);
	xend_fini(&a);
	xend_fini(&b);
	other_end(&o);
	domain_close(xrcd, fd, path);
}

/* A number that a QP of another domain had. */
static void sharing_number(void **state)
{
	char path[] = "/tmp/softhca-xrc-XXXXXX", path2[sizeof(path) + 2];
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE };
	struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };
	struct ibv_xrcd *xrcd, *xrcd2;
	int fd = mkstemp(path), fd2, i;
	struct xend a, b;
	struct other o;
	uint32_t num;

	(void)state;
	ack_timeout = 17;
	snprintf(path2, sizeof(path2), "%s.2", path);
	fd2 = open(path2, O_RDWR | O_CREAT | O_EXCL, 0600);
	assert_true(fd >= 0 && fd2 >= 0);
	xrcd = open_domain(fd, O_CREAT);
	xrcd2 = open_domain(fd2, O_CREAT);
	assert_true(xrcd && xrcd2);
	other_start(&o, path);
	xpair(&a, &b, xrcd);
	wr.wr.rdma.rkey = o.hello.rkey;
	wr.wr.rdma.remote_addr = o.hello.addr;
	assert_int_equal(xsend(&a, &wr, o.hello.srqn, SHARED_LEN), 0);
	assert_int_equal(wait_wc(a.cq).status, 0);
	num = b.recv->qp_num;
	assert_int_equal(ibv_destroy_qp(b.recv), 0);
	/* Numbers come again when a chunk of them is through. */
	for (i = 0; i < 65536; i++) {
		b.recv = make_recv(xrcd2);
		assert_non_null(b.recv);
		if (b.recv->qp_num == num)
			break;
		assert_int_equal(ibv_destroy_qp(b.recv), 0);
	}
	assert_int_equal(b.recv->qp_num, num);
	assert_int_equal(ibv_modify_qp(a.send, &reset, IBV_QP_STATE), 0);
	/* What is left of the earlier connection is not of this one. */
	first_psn = 0x800000;
	connect_half(a.send, num);
	connect_half(b.recv, a.send->qp_num);
	first_psn = 0xfffffe;
	assert_int_equal(xsend(&a, &wr, o.hello.srqn2, SHARED_LEN), 0);
	assert_int_equal(wait_wc(a.cq).status, 0);
	/* The SRQ of the first domain is not in the second. */
	assert_int_equal(xsend(&a, &wr, o.hello.srqn, SHARED_LEN), 0);
	refused(&a, IBV_WC_REM_INV_REQ_ERR);
	xend_fini(&a);
	xend_fini(&b);
	other_end(&o);

	/* A domain is of a device as well as of an inode. */
	assert_int_equal(setenv("SOFTHCA_DEVICES", "lo", 1), 0);
	other_start(&o, path);
	unsetenv("SOFTHCA_DEVICES");
	xpair(&a, &b, xrcd);
	assert_int_equal(xsend(&a, &wr, o.hello.srqn, SHARED_LEN), 0);
	refused(&a, IBV_WC_REM_INV_REQ_ERR);
	xend_fini(&a);
	xend_fini(&b);
	other_end(&o);
	assert_int_equal(ibv_close_xrcd(xrcd), 0);
	assert_int_equal(ibv_close_xrcd(xrcd2), 0);
	close(fd);
	close(fd2);
	unlink(path);
	unlink(path2);
}

/* It goes while messages come: each ends, and the QP's process lives on. */
static void sharing_ends(void **state)
{
	char path[] = "/tmp/softhca-xrc-XXXXXX";
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND };
	int fd = mkstemp(path), i, n;
	struct ibv_xrcd *xrcd;
	struct xend a, b;
	struct other o;

	(void)state;
	ack_timeout = 15;
	assert_true(fd >= 0);
	xrcd = open_domain(fd, O_CREAT);
	assert_non_null(xrcd);
	for (i = 0; i < 6; i++) {
		enum ibv_wc_status first = IBV_WC_SUCCESS;

		other_start(&o, path);
		xpair(&a, &b, xrcd);
		assert_int_equal(write(o.out, "rq", 2), 2);
		for (n = 0; n < DEPTH; n++)
			assert_int_equal(
				xsend(&a, &wr, o.hello.srqn, SHARED_LEN), 0);
		/* Some have come. */
		for (n = 0; n < 1 + 4 * i; n++)
			assert_int_equal(wait_wc(a.cq).status, 0);
		if (i % 2)
			kill(o.pid, SIGKILL);
		else
			assert_int_equal(write(o.out, "x", 1), 1);
		for (; n < DEPTH; n++) {
			struct ibv_wc wc = wait_wc(a.cq);

			if (wc.status == IBV_WC_SUCCESS)
				assert_int_equal(first, IBV_WC_SUCCESS);
			else if (first == IBV_WC_SUCCESS)
				first = wc.status;
			else
				assert_int_equal(wc.status,
						 IBV_WC_WR_FLUSH_ERR);
		}
		assert_true(first == IBV_WC_SUCCESS ||
			    first == IBV_WC_REM_INV_REQ_ERR ||
			    first == IBV_WC_REM_OP_ERR ||
			    (i % 2 && first == IBV_WC_RETRY_EXC_ERR));
		xend_fini(&a);
		xend_fini(&b);
		other_end(&o);
	}
	domain_close(xrcd, fd, path);
}

/* Suspending */

static bool is_locked(int fd)
{
	char inode[32], line[256];
	bool is = false;
	struct stat st;
	FILE *f = fopen("/proc/locks", "r");

	assert_non_null(f);
	assert_int_equal(fstat(fd, &st), 0);
	snprintf(inode, sizeof(inode), ":%ju ", (uintmax_t)st.st_ino);
	while (fgets(line, sizeof(line), f))
		is |= strstr(line, "OFDLCK") && strstr(line, inode);
	fclose(f);
	return is;
}

/* A domain has no lock meanwhile, and what is posted waits. */
static void suspended(void **state)
{
	char path[] = "/tmp/softhca-xrc-XXXXXX";
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND };
	int fd = mkstemp(path);
	struct ibv_xrcd *xrcd;
	struct xend a, b;

	(void)state;
	assert_true(fd >= 0);
	xrcd = open_domain(fd, O_CREAT | O_EXCL);
	assert_non_null(xrcd);
	xpair(&a, &b, xrcd);
	for (int i = 0; i < 3; i++) {
		srq_recv(b.srq, &b, 1, BUF);
		srq_recv(b.srq, &b, 2, BUF);
		assert_int_equal(xsend(&a, &wr, b.srqn, BUF), 0);
		assert_true(is_locked(fd));
		assert_int_equal(softhca_suspend(), 0);
		assert_false(is_locked(fd));
		assert_int_equal(xsend(&a, &wr, b.srqn, BUF), 0);
		assert_int_equal(softhca_resume(), 0);
		assert_true(is_locked(fd));
		for (uint64_t id = 1; id <= 2; id++) {
			struct ibv_wc wc = wait_wc(b.cq);

			expect_wc(&wc, id, IBV_WC_SUCCESS);
			assert_int_equal(wait_wc(a.cq).status, 0);
		}
	}
	xend_fini(&a);
	xend_fini(&b);
	domain_close(xrcd, fd, path);
}

static _Atomic bool enough;

static void *suspend_both(void *arg)
{
	const struct other *o = arg;
	unsigned bad = 0;

	for (unsigned i = 0; !atomic_load(&enough); i++) {
		usleep(i * 977 % 5000);
		if (i % 2)
			bad += suspend_for(i * 389 % 3000) != 0;
		else
			bad += write(o->out, "s", 1) != 1;
	}
	return (void *)(uintptr_t)bad;
}

/* QPs are lent while this process, and the one that they are lent to, are suspended
 * at any moment. */
static void sharing_suspended(void **state)
{
	char path[] = "/tmp/softhca-xrc-XXXXXX";
	int fd = mkstemp(path);
	struct ibv_xrcd *xrcd;
	struct xend a, b;
	struct other o;
	pthread_t thread;

	(void)state;
	ack_timeout = 14;
	assert_true(fd >= 0);
	xrcd = open_domain(fd, O_CREAT);
	assert_non_null(xrcd);
	other_start(&o, path);
	xpair(&a, &b, xrcd);
	atomic_store(&enough, false);
	assert_int_equal(pthread_create(&thread, NULL, suspend_both, &o), 0);
	shared_messages(&a, &b, &o);
	shared_memory(&a, &b, &o);
	atomic_store(&enough, true);
	assert_null(join(thread));
	xend_fini(&a);
	xend_fini(&b);
	other_end(&o);
	domain_close(xrcd, fd, path);
}

/* What cannot be called back is said. */
static void lent_halfway(void **state)
{
	char path[] = "/tmp/softhca-xrc-XXXXXX";
	const size_t len = 1 << 20;
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE }, *bad;
	struct ibv_sge sge = { .length = (uint32_t)len };
	int fd = mkstemp(path);
	struct ibv_xrcd *xrcd;
	struct xend a, b;
	struct ibv_mr *mr;
	struct other o;
	uint8_t *mem;

	(void)state;
	ack_timeout = 14;
	assert_true(fd >= 0);
	xrcd = open_domain(fd, O_CREAT);
	assert_non_null(xrcd);
	other_start(&o, path);
	xpair(&a, &b, xrcd);
	mem = mmap(NULL, len, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(mem != MAP_FAILED);
	mr = ibv_reg_mr(pd, mem, len, ALL_ACCESS);
	assert_non_null(mr);
	assert_int_equal(munmap(mem + len / 2, len / 2), 0);
	wr.wr.rdma.rkey = o.hello.rkey;
	wr.wr.rdma.remote_addr = o.hello.addr;
	wr.qp_type.xrc.remote_srqn = o.hello.srqn;
	wr.send_flags = IBV_SEND_SIGNALED;
	wr.sg_list = &sge;
	wr.num_sge = 1;
	sge.addr = (uintptr_t)mem;
	sge.lkey = mr->lkey;
	assert_int_equal(ibv_post_send(a.send, &wr, &bad), 0);
	assert_int_equal(wait_wc(a.cq).status, IBV_WC_LOC_PROT_ERR);
	assert_int_equal(softhca_suspend(), EBUSY);
	assert_non_null(strstr(softhca_migrate_why(), "is lent to another"));
	assert_int_equal(ibv_destroy_qp(b.recv), 0);
	b.recv = NULL;
	assert_int_equal(softhca_suspend(), 0);
	assert_int_equal(softhca_resume(), 0);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	munmap(mem, len / 2);
	xend_fini(&a);
	xend_fini(&b);
	other_end(&o);
	domain_close(xrcd, fd, path);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		TEST(domains),           TEST(domain_elsewhere),
		TEST(creation),          TEST(messages),
		TEST(one_sided),         TEST(builders),
		TEST(shared_qp),         TEST(srq_goes),
		TEST(sharing),           TEST(sharing_ends),
		TEST(sharing_number),    TEST(suspended),
		TEST(sharing_suspended), TEST(lent_halfway),
	};

	if (argc == 4)
		other_process(argv[1], atoi(argv[2]), atoi(argv[3]));
	alarm(60);
	cmocka_set_test_filter(getenv("XRC_TEST"));
	return cmocka_run_group_tests(tests, NULL, NULL);
}

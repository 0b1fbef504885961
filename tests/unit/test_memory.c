/*
 * test_memory.c - memory as remote peers may reach it: windows, re-registering,
 * paging on demand, null regions, device memory, domains, imports
 */
#include "pair.h"

#include <linux/dma-buf.h>
#include <linux/udmabuf.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#define PAGE 4096

static uint32_t try_write(struct end *e, uint32_t rkey, uint64_t addr,
			  uint32_t len)
{
	struct ibv_send_wr wr = {
		.wr_id = 77,
		.opcode = IBV_WR_RDMA_WRITE,
		.wr.rdma = { .remote_addr = addr, .rkey = rkey },
	};
	struct ibv_wc wc;

	assert_int_equal(try_send(e, &wr, 0, len), 0);
	wc = wait_wc(e->cq);
	assert_int_equal(wc.wr_id, 77);
	return wc.status;
}

static uint32_t try_read(struct end *e, uint32_t rkey, uint64_t addr,
			 uint32_t len)
{
	struct ibv_send_wr wr = {
		.wr_id = 78,
		.opcode = IBV_WR_RDMA_READ,
		.wr.rdma = { .remote_addr = addr, .rkey = rkey },
	};

	assert_int_equal(try_send(e, &wr, 0, len), 0);
	return wait_wc(e->cq).status;
}

static void reset(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };

	assert_int_equal(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
}

/* After an error, which ends the QPs of both sides. */
static void reconnect(struct end *a, struct end *b)
{
	struct ibv_wc wc;

	reset(a->qp);
	reset(b->qp);
	while (ibv_poll_cq(a->cq, 1, &wc) > 0 || ibv_poll_cq(b->cq, 1, &wc) > 0)
		;
	connect_to(a->qp, b->qp->qp_num);
	connect_to(b->qp, a->qp->qp_num);
}

/* Windows */

static struct ibv_mr *bindable(struct end *e, unsigned access)
{
	struct ibv_mr *mr =
		ibv_reg_mr(pd, e->buf, BUF, access | IBV_ACCESS_MW_BIND);

	assert_non_null(mr);
	return mr;
}

static uint32_t bind1(struct end *e, struct ibv_mw *mw, struct ibv_mr *mr,
		      uint64_t addr, uint64_t len, unsigned access)
{
	struct ibv_mw_bind bind = {
		.wr_id = 5,
		.send_flags = IBV_SEND_SIGNALED,
		.bind_info = { mr, addr, len, access },
	};
	struct ibv_wc wc;
	int err = ibv_bind_mw(e->qp, mw, &bind);

	if (err)
		return 1000 + (uint32_t)err;
	wc = wait_wc(e->cq);
	assert_int_equal(wc.wr_id, 5);
	if (!wc.status)
		assert_int_equal(wc.opcode, IBV_WC_BIND_MW);
	return wc.status;
}

static uint32_t bind2(struct end *e, struct ibv_mw *mw, uint32_t rkey,
		      struct ibv_mr *mr, uint64_t addr, uint64_t len,
		      unsigned access)
{
	struct ibv_send_wr wr = {
		.wr_id = 6,
		.opcode = IBV_WR_BIND_MW,
		.send_flags = IBV_SEND_SIGNALED,
		.bind_mw = { mw, rkey, { mr, addr, len, access } },
	}, *bad;
	int err = ibv_post_send(e->qp, &wr, &bad);

	if (err)
		return 1000 + (uint32_t)err;
	return wait_wc(e->cq).status;
}

static uint32_t invalidate(struct end *e, uint32_t rkey)
{
	struct ibv_send_wr wr = {
		.wr_id = 7,
		.opcode = IBV_WR_LOCAL_INV,
		.send_flags = IBV_SEND_SIGNALED,
		.invalidate_rkey = rkey,
	}, *bad;

	assert_int_equal(ibv_post_send(e->qp, &wr, &bad), 0);
	return wait_wc(e->cq).status;
}

static void window_type1(void **state)
{
	const unsigned write = IBV_ACCESS_REMOTE_WRITE;
	uint32_t old;
	struct ibv_mr *mr;
	struct ibv_mw *mw;
	struct end a, b;

	(void)state;
	pair_init(&a, &b, IBV_QPT_RC);
	mr = bindable(&b, IBV_ACCESS_LOCAL_WRITE);
	mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	assert_non_null(mw);
	assert_int_equal(mw->type, IBV_MW_TYPE_1);
	assert_int_equal(ibv_dealloc_pd(pd), EBUSY);
	/* Not bound it leads nowhere. */
	assert_int_equal(try_write(&a, mw->rkey, (uintptr_t)b.buf, 8),
			 IBV_WC_REM_ACCESS_ERR);
	reconnect(&a, &b);

	old = mw->rkey;
	assert_int_equal(bind1(&b, mw, mr, (uintptr_t)b.buf + 64, 128, write),
			 0);
	assert_int_not_equal(mw->rkey, old);
	fill(a.buf, 128, 3);
	assert_int_equal(try_write(&a, mw->rkey, (uintptr_t)b.buf + 64, 128), 0);
	assert_memory_equal(a.buf, b.buf + 64, 128);
	/* Bounds, both ends; what it does not allow; the region's own key. */
	assert_int_equal(try_write(&a, mw->rkey, (uintptr_t)b.buf + 63, 8),
			 IBV_WC_REM_ACCESS_ERR);
	reconnect(&a, &b);
	assert_int_equal(try_write(&a, mw->rkey, (uintptr_t)b.buf + 65, 128),
			 IBV_WC_REM_ACCESS_ERR);
	reconnect(&a, &b);
	assert_int_equal(try_read(&a, mw->rkey, (uintptr_t)b.buf + 64, 8),
			 IBV_WC_REM_ACCESS_ERR);
	reconnect(&a, &b);
	assert_int_equal(try_write(&a, mr->rkey, (uintptr_t)b.buf + 64, 8),
			 IBV_WC_REM_ACCESS_ERR);
	reconnect(&a, &b);

	/* A region stays while a window is bound to it. */
	assert_int_equal(ibv_dereg_mr(mr), EBUSY);
	assert_int_not_equal(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL,
					  NULL, 0, IBV_ACCESS_LOCAL_WRITE),
			     0);
	/* Bound again: the old key is dead, the new one is elsewhere. */
	old = mw->rkey;
	assert_int_equal(bind1(&b, mw, mr, (uintptr_t)b.buf + 1024, 8,
			       write | IBV_ACCESS_ZERO_BASED),
			 0);
	assert_int_equal(try_write(&a, mw->rkey, 0, 8), 0);
	assert_memory_equal(a.buf, b.buf + 1024, 8);
	assert_int_equal(try_write(&a, old, (uintptr_t)b.buf + 64, 8),
			 IBV_WC_REM_ACCESS_ERR);
	reconnect(&a, &b);
	/* Bound to nothing. */
	old = mw->rkey;
	assert_int_equal(bind1(&b, mw, mr, (uintptr_t)b.buf, 0, 0), 0);
	assert_int_equal(try_write(&a, old, 0, 8), IBV_WC_REM_ACCESS_ERR);
	reconnect(&a, &b);
	assert_int_equal(try_write(&a, mw->rkey, 0, 8), IBV_WC_REM_ACCESS_ERR);
	reconnect(&a, &b);
	assert_int_equal(bind1(&b, mw, mr, (uintptr_t)b.buf, 8, write), 0);
	assert_int_equal(ibv_dealloc_mw(mw), 0);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	end_fini(&a);
	end_fini(&b);
}

/* What 10.6.7.2 forbids ends the QP with a bind error. */
static void window_refusals(void **state)
{
	const unsigned write = IBV_ACCESS_REMOTE_WRITE;
	struct ibv_mr *plain, *mr, *readonly, *zero, *foreign;
	struct ibv_mw *mw, *other;
	struct ibv_pd *pd2;
	struct end a, b;
	size_t i;

	(void)state;
	pair_init(&a, &b, IBV_QPT_RC);
	pd2 = ibv_alloc_pd(ctx);
	mr = bindable(&b, IBV_ACCESS_LOCAL_WRITE);
	readonly = bindable(&b, 0);
	zero = bindable(&b, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED);
	plain = ibv_reg_mr(pd, b.buf, BUF, IBV_ACCESS_LOCAL_WRITE);
	foreign = ibv_reg_mr(pd2, b.buf, BUF,
			     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	other = ibv_alloc_mw(pd2, IBV_MW_TYPE_1);
	const struct {
		struct ibv_mr *mr;
		uint64_t addr, len;
		unsigned access;
	} wrong[] = {
		{ plain, (uintptr_t)b.buf, 8, write }, /* without MW_BIND */
		{ readonly, (uintptr_t)b.buf, 8, write },
		{ readonly, (uintptr_t)b.buf, 8, IBV_ACCESS_REMOTE_ATOMIC },
		{ zero, 0, 8, write },
		{ foreign, (uintptr_t)b.buf, 8, write },
		{ mr, (uintptr_t)b.buf - 1, 8, write },
		{ mr, (uintptr_t)b.buf + BUF - 7, 8, write },
		{ mr, (uintptr_t)b.buf, BUF + 1, write },
		{ mr, (uintptr_t)b.buf, UINT64_MAX, write },
		{ mr, (uintptr_t)b.buf, 8, IBV_ACCESS_MW_BIND },
		{ mr, (uintptr_t)b.buf, 0, 0 }, /* type 2 is invalidated */
	};

	for (i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		assert_int_equal(bind2(&b, mw, ibv_inc_rkey(mw->rkey),
				       wrong[i].mr, wrong[i].addr, wrong[i].len,
				       wrong[i].access),
				 IBV_WC_MW_BIND_ERR);
		reconnect(&a, &b);
	}
	/* Reading what may be read locally is fine. */
	assert_int_equal(bind2(&b, mw, mw->rkey, readonly, (uintptr_t)b.buf, 8,
			       IBV_ACCESS_REMOTE_READ),
			 0);
	/* Still bound. */
	assert_int_equal(bind2(&b, mw, ibv_inc_rkey(mw->rkey), mr,
			       (uintptr_t)b.buf, 8, write),
			 IBV_WC_MW_BIND_ERR);
	reconnect(&a, &b);

	/* And at once, what cannot be a window at all. */
	assert_int_equal(bind2(&b, NULL, 0, mr, (uintptr_t)b.buf, 8, write),
			 1000 + EINVAL);
	assert_int_equal(bind2(&b, mw, mw->rkey, NULL, 0, 8, write),
			 1000 + EINVAL);
	assert_int_equal(bind1(&b, mw, mr, (uintptr_t)b.buf, 8, write),
			 1000 + EINVAL); /* type 2 */
	assert_int_equal(bind1(&b, other, mr, (uintptr_t)b.buf, 8, write),
			 1000 + EPERM);
	/* A QP of another domain is found in the queue. */
	assert_int_equal(bind1(&b, other, foreign, (uintptr_t)b.buf, 8, write),
			 IBV_WC_MW_BIND_ERR);
	reconnect(&a, &b);
	errno = 0;
	assert_null(ibv_alloc_mw(pd, (enum ibv_mw_type)3));
	assert_int_equal(errno, EINVAL);

	assert_int_equal(ibv_dealloc_mw(mw), 0);
	assert_int_equal(ibv_dealloc_mw(other), 0);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	assert_int_equal(ibv_dereg_mr(readonly), 0);
	assert_int_equal(ibv_dereg_mr(zero), 0);
	assert_int_equal(ibv_dereg_mr(plain), 0);
	assert_int_equal(ibv_dereg_mr(foreign), 0);
	assert_int_equal(ibv_dealloc_pd(pd2), 0);
	end_fini(&a);
	end_fini(&b);
}

static void window_type2(void **state)
{
	const unsigned all = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	struct ibv_send_wr inv = { .wr_id = 1, .opcode = IBV_WR_SEND_WITH_INV };
	struct end a, b, c, d;
	struct ibv_mr *mr;
	struct ibv_mw *mw;
	struct ibv_wc wc;
	uint32_t key;

	(void)state;
	pair_init(&a, &b, IBV_QPT_RC);
	pair_init(&c, &d, IBV_QPT_RC);
	mr = bindable(&b, IBV_ACCESS_LOCAL_WRITE);
	mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	key = ibv_inc_rkey(mw->rkey);
	assert_int_equal(
		bind2(&b, mw, key, mr, (uintptr_t)b.buf, PAGE, all), 0);
	fill(a.buf, 64, 9);
	assert_int_equal(try_write(&a, key, (uintptr_t)b.buf + 8, 64), 0);
	assert_memory_equal(a.buf, b.buf + 8, 64);
	assert_int_equal(try_read(&a, key, (uintptr_t)b.buf + 8, 64), 0);
	/* It is for one QP, although the others have the same domain. */
	assert_int_equal(try_write(&c, key, (uintptr_t)b.buf, 8),
			 IBV_WC_REM_ACCESS_ERR);
	reconnect(&c, &d);
	assert_int_equal(invalidate(&d, key), IBV_WC_MW_BIND_ERR);
	reconnect(&c, &d);

	/* Invalidated by its owner. */
	assert_int_equal(invalidate(&b, key), 0);
	assert_int_equal(try_write(&a, key, (uintptr_t)b.buf, 8),
			 IBV_WC_REM_ACCESS_ERR);
	reconnect(&a, &b);
	assert_int_equal(invalidate(&b, key), IBV_WC_MW_BIND_ERR);
	reconnect(&a, &b);

	/* By the peer, who names it. */
	key = ibv_inc_rkey(key);
	assert_int_equal(bind2(&b, mw, key, mr, (uintptr_t)b.buf, 16, all), 0);
	assert_int_equal(ibv_dereg_mr(mr), EBUSY);
	post_recv(&b, 2, 0, 64);
	inv.invalidate_rkey = key;
	assert_int_equal(try_send(&a, &inv, 0, 16), 0);
	wc = wait_wc(b.cq);
	expect_wc(&wc, 2, IBV_WC_SUCCESS);
	assert_true(wc.wc_flags & IBV_WC_WITH_INV);
	assert_int_equal(wc.invalidated_rkey, key);
	wc = wait_wc(a.cq);
	expect_wc(&wc, 1, IBV_WC_SUCCESS);
	assert_int_equal(try_write(&a, key, (uintptr_t)b.buf, 8),
			 IBV_WC_REM_ACCESS_ERR);
	reconnect(&a, &b);
	/* Not twice, and no region. */
	post_recv(&b, 3, 0, 64);
	assert_int_equal(try_send(&a, &inv, 0, 16), 0);
	assert_int_equal(wait_wc(a.cq).status, IBV_WC_REM_ACCESS_ERR);
	reconnect(&a, &b);
	inv.invalidate_rkey = b.mr->rkey;
	post_recv(&b, 3, 0, 64);
	assert_int_equal(try_send(&a, &inv, 0, 16), 0);
	assert_int_equal(wait_wc(a.cq).status, IBV_WC_REM_ACCESS_ERR);
	reconnect(&a, &b);
	assert_int_equal(try_write(&a, b.mr->rkey, (uintptr_t)b.buf, 8), 0);

	/* A QP takes its windows along. */
	key = ibv_inc_rkey(key);
	assert_int_equal(bind2(&d, mw, key, mr, (uintptr_t)b.buf, 16, all), 0);
	assert_int_equal(try_write(&c, key, (uintptr_t)b.buf, 8), 0);
	assert_int_equal(ibv_destroy_qp(d.qp), 0);
	d.qp = NULL;
	assert_int_equal(ibv_dereg_mr(mr), 0);
	assert_int_equal(ibv_dealloc_mw(mw), 0);
	end_fini(&a);
	end_fini(&b);
	end_fini(&c);
	end_fini(&d);
}

/* The program's key is a tag; the window's index is its own. */
static void window_key_is_free(void **state)
{
	static const uint32_t keys[] = { 0, 1024, 0x12345678, 0xffffffff };
	const unsigned all = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	struct ibv_mr *mr;
	struct ibv_mw *mw;
	struct end a, b;
	uint32_t index;
	size_t i;

	(void)state;
	pair_init(&a, &b, IBV_QPT_RC);
	mr = bindable(&b, IBV_ACCESS_LOCAL_WRITE);
	mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	index = mw->rkey >> 8;
	for (i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
		assert_int_equal(bind2(&b, mw, keys[i], mr, (uintptr_t)b.buf,
				       PAGE, all),
				 0);
		assert_int_equal(mw->rkey, index << 8 | (keys[i] & 0xff));
		fill(a.buf, 64, (unsigned)i);
		assert_int_equal(
			try_write(&a, mw->rkey, (uintptr_t)b.buf + 8, 64), 0);
		assert_memory_equal(a.buf, b.buf + 8, 64);
		assert_int_equal(invalidate(&b, mw->rkey), 0);
		/* As a program leaves it that thinks it has chosen the key. */
		mw->rkey = keys[i];
	}
	assert_int_equal(ibv_dealloc_mw(mw), 0);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	end_fini(&a);
	end_fini(&b);
}

/* As reconnect(), but what is not answered is waited for without end. */
static void reconnect_patient(struct end *a, struct end *b)
{
	struct ibv_qp_attr attr = rtr_attr(b->qp->qp_num);

	reconnect(a, b);
	reset(a->qp);
	assert_int_equal(to_init(a->qp, 0), 0);
	assert_int_equal(ibv_modify_qp(a->qp, &attr, rtr_mask(IBV_QPT_RC)), 0);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS,
				     .sq_psn = 0xfffffe,
				     .max_rd_atomic = 1 };
	assert_int_equal(ibv_modify_qp(a->qp, &attr,
				       IBV_QP_STATE | IBV_QP_SQ_PSN |
					       IBV_QP_MAX_QP_RD_ATOMIC |
					       IBV_QP_RETRY_CNT |
					       IBV_QP_RNR_RETRY |
					       IBV_QP_TIMEOUT),
			 0);
}

/*
 * A QP in ERR answers nobody. What others ask for by the key of a window that
 * was bound with it, or by a key that is gone, is refused, and nobody waits.
 */
static void window_of_failed_qp(void **state)
{
	const unsigned all = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	struct ibv_qp_attr err = { .qp_state = IBV_QPS_ERR };
	struct ibv_mw *one, *two;
	struct end a, b, c, d;
	uint32_t key1, key2;
	struct ibv_mr *mr;
	uint64_t at;

	(void)state;
	pair_init(&a, &b, IBV_QPT_RC);
	pair_init(&c, &d, IBV_QPT_RC);
	at = (uintptr_t)b.buf;
	mr = bindable(&b, IBV_ACCESS_LOCAL_WRITE);
	one = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	two = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	assert_int_equal(bind1(&b, one, mr, at, 64, all), 0);
	assert_int_equal(bind2(&b, two, 1, mr, at, 64, all), 0);
	key1 = one->rkey;
	key2 = two->rkey;
	assert_int_equal(ibv_modify_qp(b.qp, &err, IBV_QP_STATE), 0);

	reconnect_patient(&c, &d);
	/* Type 1 is its domain's, whatever becomes of the QP that bound it. */
	assert_int_equal(try_read(&c, key1, at, 8), 0);
	assert_int_equal(try_read(&c, key2, at, 8), IBV_WC_REM_ACCESS_ERR);
	reconnect_patient(&c, &d);
	assert_int_equal(ibv_dealloc_mw(two), 0);
	assert_int_equal(try_read(&c, key2, at, 8), IBV_WC_REM_ACCESS_ERR);
	reconnect_patient(&c, &d);
	assert_int_equal(ibv_dealloc_mw(one), 0);
	assert_int_equal(try_read(&c, key1, at, 8), IBV_WC_REM_ACCESS_ERR);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	end_fini(&a);
	end_fini(&b);
	end_fini(&c);
	end_fini(&d);
}

/* Binding and sending the key in one go, as protocols do. */
static void window_in_order(void **state)
{
	struct end a, b;
	struct ibv_mr *mr;
	struct ibv_mw *mw;
	int i;

	(void)state;
	pair_init(&a, &b, IBV_QPT_RC);
	mr = bindable(&b, IBV_ACCESS_LOCAL_WRITE);
	mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	for (i = 0; i < 50; i++) {
		uint32_t key = (mw->rkey & ~0xffu) |
			       ((mw->rkey + (uint32_t)i) & 0xff);
		struct ibv_sge sge = sge_of(&b, 0, 4);
		struct ibv_send_wr send = {
			.opcode = IBV_WR_SEND,
			.sg_list = &sge,
			.num_sge = 1,
			.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE,
		};
		struct ibv_send_wr bind = {
			.next = &send,
			.opcode = IBV_WR_BIND_MW,
			.bind_mw = { mw,
				     key,
				     { mr, (uintptr_t)b.buf + PAGE, 64,
				       IBV_ACCESS_REMOTE_WRITE } },
		};
		struct ibv_send_wr *bad;

		uint32_t got;

		memcpy(b.buf, &key, 4);
		post_recv(&a, 1, 0, 64);
		assert_int_equal(ibv_post_send(b.qp, &bind, &bad), 0);
		assert_int_equal(wait_wc(a.cq).status, 0);
		memcpy(&got, a.buf, 4);
		assert_int_equal(got, key);
		assert_int_equal(wait_wc(b.cq).status, 0);
		assert_int_equal(
			try_write(&a, got, (uintptr_t)b.buf + PAGE, 64), 0);
		assert_int_equal(invalidate(&b, key), 0);
	}
	assert_int_equal(ibv_dealloc_mw(mw), 0);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	end_fini(&a);
	end_fini(&b);
}

/* Regions */

static void reregister(void **state)
{
	struct ibv_mr *mr, *null;
	uint8_t *p = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint32_t lkey, rkey;
	struct ibv_pd *pd2;
	struct end a, b;

	(void)state;
	assert_true(p != MAP_FAILED);
	pair_init(&a, &b, IBV_QPT_RC);
	pd2 = ibv_alloc_pd(ctx);
	mr = ibv_reg_mr(pd, p, PAGE, ALL_ACCESS);
	assert_non_null(mr);
	lkey = mr->lkey;
	rkey = mr->rkey;

	/* Input errors leave it as it was. */
	errno = 0;
	assert_int_equal(ibv_rereg_mr(mr, 8, NULL, NULL, 0, 0),
			 IBV_REREG_MR_ERR_INPUT);
	assert_int_equal(errno, EINVAL);
	assert_int_equal(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL,
				      NULL, PAGE, 0),
			 IBV_REREG_MR_ERR_INPUT);
	assert_int_equal(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL,
				      p, 0, 0),
			 IBV_REREG_MR_ERR_INPUT);
	assert_int_equal(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, pd2, NULL, 0,
				      IBV_ACCESS_LOCAL_WRITE),
			 IBV_REREG_MR_ERR_INPUT);
	null = ibv_alloc_null_mr(pd);
	assert_int_equal(ibv_rereg_mr(null, IBV_REREG_MR_CHANGE_PD, pd2, NULL,
				      0, 0),
			 IBV_REREG_MR_ERR_INPUT);
	assert_int_equal(ibv_dereg_mr(null), 0);
	/* These the device finds. */
	assert_int_equal(ibv_rereg_mr(mr, 0, NULL, NULL, 0, 0),
			 IBV_REREG_MR_ERR_CMD);
	assert_int_equal(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, NULL, NULL, 0,
				      0),
			 IBV_REREG_MR_ERR_CMD);
	assert_int_equal(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL,
				      NULL, 0, IBV_ACCESS_REMOTE_WRITE),
			 IBV_REREG_MR_ERR_CMD);
	assert_int_equal(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL,
				      (void *)PAGE, PAGE, 0),
			 IBV_REREG_MR_ERR_CMD);

	assert_int_equal(try_write(&a, rkey, (uintptr_t)p, 8), 0);
	assert_int_equal(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL,
				      NULL, 0, IBV_ACCESS_REMOTE_READ),
			 0);
	assert_int_equal(try_read(&a, rkey, (uintptr_t)p, 8), 0);
	assert_int_equal(try_write(&a, rkey, (uintptr_t)p, 8),
			 IBV_WC_REM_ACCESS_ERR);
	reconnect(&a, &b);
	assert_int_equal(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL,
				      p + PAGE, 2 * PAGE, 0),
			 0);
	assert_ptr_equal(mr->addr, p + PAGE);
	assert_int_equal(mr->length, 2 * PAGE);
	assert_int_equal(try_read(&a, rkey, (uintptr_t)p + 3 * PAGE - 8, 8), 0);
	assert_int_equal(try_read(&a, rkey, (uintptr_t)p, 8),
			 IBV_WC_REM_ACCESS_ERR);
	reconnect(&a, &b);
	assert_int_equal(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, pd2, NULL, 0,
				      0),
			 0);
	assert_ptr_equal(mr->pd, pd2);
	assert_int_equal(ibv_dealloc_pd(pd2), EBUSY);
	assert_int_equal(try_read(&a, rkey, (uintptr_t)p + PAGE, 8),
			 IBV_WC_REM_ACCESS_ERR);
	reconnect(&a, &b);
	assert_int_equal(ibv_rereg_mr(mr, 7, pd, p, 4 * PAGE, ALL_ACCESS), 0);
	assert_int_equal(mr->lkey, lkey);
	assert_int_equal(mr->rkey, rkey);
	assert_int_equal(try_write(&a, rkey, (uintptr_t)p, 4 * PAGE), 0);
	assert_int_equal(ibv_dealloc_pd(pd2), 0);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	munmap(p, 4 * PAGE);
	end_fini(&a);
	end_fini(&b);
}

static void zero_based(void **state)
{
	struct ibv_mr *mr;
	struct end a, b;

	(void)state;
	pair_init(&a, &b, IBV_QPT_RC);
	mr = ibv_reg_mr(pd, b.buf + 256, 1024,
			ALL_ACCESS | IBV_ACCESS_ZERO_BASED);
	assert_non_null(mr);
	fill(a.buf, 64, 1);
	assert_int_equal(try_write(&a, mr->rkey, 16, 64), 0);
	assert_memory_equal(b.buf + 272, a.buf, 64);
	assert_int_equal(try_write(&a, mr->rkey, 1000, 64),
			 IBV_WC_REM_ACCESS_ERR);
	reconnect(&a, &b);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	/* An address of the program's choice, with the same place in a page. */
	mr = ibv_reg_mr_iova(pd, b.buf + 256, 1024, 0x7000000000100, ALL_ACCESS);
	assert_non_null(mr);
	assert_int_equal(try_write(&a, mr->rkey, 0x7000000000110, 64), 0);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	assert_null(ibv_reg_mr_iova(pd, b.buf + 256, 1024, 0x7000000000101,
				    ALL_ACCESS));
	assert_int_equal(errno, EINVAL);
	assert_null(ibv_reg_mr_iova(pd, b.buf, 8192, UINT64_MAX - 4095,
				    ALL_ACCESS));
	assert_int_equal(errno, EINVAL);
	end_fini(&a);
	end_fini(&b);
}

static void null_region(void **state)
{
	struct ibv_sge sge[3], recv[2];
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED,
				  .sg_list = sge,
				  .num_sge = 3 };
	struct ibv_recv_wr rwr = { .sg_list = recv, .num_sge = 2 };
	struct ibv_send_wr *bad;
	struct ibv_recv_wr *rbad;
	struct end a, b;
	struct ibv_mr *mr;
	uint8_t want[24] = { 0 };

	(void)state;
	pair_init(&a, &b, IBV_QPT_RC);
	mr = ibv_alloc_null_mr(pd);
	assert_non_null(mr);
	fill(a.buf, 16, 5);
	/* Zeros in the middle of what is sent; the first half goes nowhere. */
	sge[0] = sge_of(&a, 0, 8);
	sge[1] = (struct ibv_sge){ 12345, 5000, mr->lkey };
	sge[2] = sge_of(&a, 8, 8);
	recv[0] = (struct ibv_sge){ 0, 5000, mr->lkey };
	recv[1] = sge_of(&b, 0, 64);
	memset(b.buf, 0xee, 64);
	assert_int_equal(ibv_post_recv(b.qp, &rwr, &rbad), 0);
	assert_int_equal(ibv_post_send(a.qp, &wr, &bad), 0);
	assert_int_equal(wait_wc(b.cq).byte_len, 5016);
	assert_int_equal(wait_wc(a.cq).status, 0);
	memcpy(want + 8, a.buf + 8, 8);
	assert_memory_equal(b.buf, want, 16);
	/* For the peer it is not there. */
	assert_int_equal(mr->rkey, 0);
	assert_int_equal(try_read(&a, mr->lkey, 0, 8), IBV_WC_REM_ACCESS_ERR);
	reconnect(&a, &b);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	end_fini(&a);
	end_fini(&b);
}

/* Paging on demand */

static void on_demand(void **state)
{
	const int odp = ALL_ACCESS | IBV_ACCESS_ON_DEMAND;
	uint8_t *p = mmap(NULL, 16 * PAGE, PROT_NONE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_send_wr wr = { .wr_id = 9, .opcode = IBV_WR_SEND };
	struct ibv_sge sge;
	struct ibv_send_wr *bad;
	struct ibv_mr *mr;
	struct end a, b;

	(void)state;
	assert_true(p != MAP_FAILED);
	pair_init(&a, &b, IBV_QPT_RC);
	mr = ibv_reg_mr(pd, p, 16 * PAGE, odp);
	assert_non_null(mr);
	/* No page: no access, and no crash. */
	assert_int_equal(try_write(&a, mr->rkey, (uintptr_t)p, PAGE),
			 IBV_WC_REM_ACCESS_ERR);
	reconnect(&a, &b);
	assert_int_equal(try_read(&a, mr->rkey, (uintptr_t)p, PAGE),
			 IBV_WC_REM_ACCESS_ERR);
	reconnect(&a, &b);
	/* It comes, is written, goes, comes back read-only. */
	assert_int_equal(mprotect(p, 4 * PAGE, PROT_READ | PROT_WRITE), 0);
	fill(a.buf, 2 * PAGE, 8);
	assert_int_equal(try_write(&a, mr->rkey, (uintptr_t)p + 16, 2 * PAGE),
			 0);
	assert_memory_equal(p + 16, a.buf, 2 * PAGE);
	assert_int_equal(try_write(&a, mr->rkey, (uintptr_t)p + 3 * PAGE,
				   2 * PAGE),
			 IBV_WC_REM_ACCESS_ERR);
	reconnect(&a, &b);
	assert_int_equal(madvise(p, 4 * PAGE, MADV_DONTNEED), 0);
	assert_int_equal(try_read(&a, mr->rkey, (uintptr_t)p, PAGE), 0);
	assert_int_equal(a.buf[20], 0);
	assert_int_equal(mprotect(p, PAGE, PROT_READ), 0);
	assert_int_equal(try_write(&a, mr->rkey, (uintptr_t)p, 8),
			 IBV_WC_REM_ACCESS_ERR);
	reconnect(&a, &b);
	assert_int_equal(try_read(&a, mr->rkey, (uintptr_t)p, 8), 0);
	/* Atomics, and local use. */
	wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
	wr.wr.atomic.rkey = mr->rkey;
	wr.wr.atomic.remote_addr = (uintptr_t)p + PAGE;
	wr.wr.atomic.compare_add = 3;
	assert_int_equal(try_send(&a, &wr, 0, 8), 0);
	assert_int_equal(wait_wc(a.cq).status, 0);
	assert_int_equal(*(uint64_t *)(void *)(p + PAGE), 3);
	wr.wr.atomic.remote_addr = (uintptr_t)p;
	assert_int_equal(try_send(&a, &wr, 0, 8), 0);
	assert_int_equal(wait_wc(a.cq).status, IBV_WC_REM_ACCESS_ERR);
	reconnect(&a, &b);
	sge = (struct ibv_sge){ (uintptr_t)p + 8 * PAGE, 64, mr->lkey };
	wr = (struct ibv_send_wr){ .wr_id = 9,
				   .opcode = IBV_WR_SEND,
				   .sg_list = &sge,
				   .num_sge = 1,
				   .send_flags = IBV_SEND_SIGNALED };
	assert_int_equal(ibv_post_send(a.qp, &wr, &bad), 0);
	assert_int_equal(wait_wc(a.cq).status, IBV_WC_LOC_PROT_ERR);
	reconnect(&a, &b);
	assert_int_equal(ibv_dereg_mr(mr), 0);

	/* All memory there is. */
	mr = ibv_reg_mr(pd, NULL, SIZE_MAX, odp);
	assert_non_null(mr);
	assert_int_equal(try_write(&a, mr->rkey, (uintptr_t)p + PAGE, 64), 0);
	assert_memory_equal(p + PAGE, a.buf, 64);
	assert_int_equal(try_write(&a, mr->rkey, 8, 8), IBV_WC_REM_ACCESS_ERR);
	reconnect(&a, &b);
	assert_int_equal(try_write(&a, mr->rkey, UINT64_MAX - 64, 32),
			 IBV_WC_REM_ACCESS_ERR);
	reconnect(&a, &b);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	/* Without paging all of it would have to be there. */
	assert_null(ibv_reg_mr(pd, NULL, SIZE_MAX, ALL_ACCESS));
	assert_null(ibv_reg_mr(pd, p, SIZE_MAX, odp));
	assert_null(ibv_reg_mr(pd, p, PAGE, odp | IBV_ACCESS_HUGETLB));
	munmap(p, 16 * PAGE);
	end_fini(&a);
	end_fini(&b);
}

/*
 * Memory that the program takes away under a region. Hardware has pinned it; it
 * costs the request that needs it, and no more, whoever stores or loads.
 */
enum how { UNMAPPED, TRUNCATED, PROTECTED, HOWS };

static uint8_t *lost;

static struct ibv_mr *lose_region(enum how how)
{
	int fd = how == TRUNCATED ? memfd_create("lost", MFD_CLOEXEC) : -1;
	struct ibv_mr *mr;

	if (fd >= 0)
		assert_int_equal(ftruncate(fd, 4 * PAGE), 0);
	/* Far from where the kernel would put something else in its place. */
	lost = mmap((void *)0x200000000000, 4 * PAGE, PROT_READ | PROT_WRITE,
		    fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, fd, 0);
	assert_true(lost != MAP_FAILED);
	mr = ibv_reg_mr(pd, lost, 4 * PAGE, ALL_ACCESS);
	assert_non_null(mr);
	if (how == UNMAPPED)
		assert_int_equal(munmap(lost, 4 * PAGE), 0);
	else if (how == TRUNCATED)
		assert_int_equal(ftruncate(fd, 0), 0);
	else
		assert_int_equal(mprotect(lost, 4 * PAGE, PROT_NONE), 0);
	if (fd >= 0)
		close(fd);
	return mr;
}

static void find_region(struct ibv_mr *mr, enum how how)
{
	assert_int_equal(ibv_dereg_mr(mr), 0);
	if (how != UNMAPPED)
		assert_int_equal(munmap(lost, 4 * PAGE), 0);
}

static uint32_t post_with(struct end *e, struct ibv_send_wr *wr,
			  const struct ibv_mr *mr, uint32_t len)
{
	struct ibv_sge sge = { (uintptr_t)lost + 8, len, mr->lkey };
	struct ibv_send_wr *bad;

	wr->sg_list = &sge;
	wr->num_sge = 1;
	wr->send_flags = IBV_SEND_SIGNALED;
	assert_int_equal(ibv_post_send(e->qp, wr, &bad), 0);
	return wait_wc(e->cq).status;
}

static void receive_with(struct end *e, const struct ibv_mr *mr)
{
	struct ibv_sge sge = { (uintptr_t)lost + 8, 2 * PAGE, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = 4, .sg_list = &sge, .num_sge = 1 };
	struct ibv_recv_wr *bad;

	assert_int_equal(ibv_post_recv(e->qp, &wr, &bad), 0);
}

static void lose_memory(enum how how, uint32_t len)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND };
	struct ibv_mr *mr = lose_region(how);
	const uint64_t at = (uintptr_t)lost + 8;
	struct end a, b, c;
	struct ibv_wc wc;

	pair_init(&a, &b, IBV_QPT_RC);
	/* The peer's. */
	assert_int_equal(try_write(&a, mr->rkey, at, len),
			 IBV_WC_REM_ACCESS_ERR);
	reconnect(&a, &b);
	assert_int_equal(try_read(&a, mr->rkey, at, len),
			 IBV_WC_REM_ACCESS_ERR);
	reconnect(&a, &b);
	wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
	wr.wr.atomic.remote_addr = at;
	wr.wr.atomic.rkey = mr->rkey;
	assert_int_equal(try_send(&a, &wr, 0, 8), 0);
	assert_int_equal(wait_wc(a.cq).status, IBV_WC_REM_ACCESS_ERR);
	reconnect(&a, &b);
	receive_with(&b, mr);
	wr.opcode = IBV_WR_SEND;
	assert_int_equal(try_send(&a, &wr, 0, len), 0);
	assert_int_equal(wait_wc(a.cq).status, IBV_WC_REM_OP_ERR);
	wc = wait_wc(b.cq);
	expect_wc(&wc, 4, IBV_WC_LOC_PROT_ERR);
	reconnect(&a, &b);

	/* Our own. */
	assert_int_equal(post_with(&a, &wr, mr, len), IBV_WC_LOC_PROT_ERR);
	reconnect(&a, &b);
	wr.opcode = IBV_WR_RDMA_READ;
	wr.wr.rdma.remote_addr = (uintptr_t)b.buf;
	wr.wr.rdma.rkey = b.mr->rkey;
	assert_int_equal(post_with(&a, &wr, mr, len), IBV_WC_LOC_PROT_ERR);
	reconnect(&a, &b);
	wr.opcode = IBV_WR_ATOMIC_WRITE;
	assert_int_equal(post_with(&a, &wr, mr, 8), IBV_WC_LOC_PROT_ERR);
	reconnect(&a, &b);

	/* What is there goes on. */
	assert_int_equal(try_write(&a, b.mr->rkey, (uintptr_t)b.buf, len), 0);

	end_init(&c, IBV_QPT_UD, NULL);
	connect_to(c.qp, 0);
	wr = (struct ibv_send_wr){ .opcode = IBV_WR_SEND };
	wr.wr.ud.ah = ibv_create_ah(pd, &(struct ibv_ah_attr){
		.is_global = 1,
		.port_num = 1,
		.grh = { .dgid = gid0, .hop_limit = 64 } });
	wr.wr.ud.remote_qpn = c.qp->qp_num;
	wr.wr.ud.remote_qkey = 0x11111111;
	receive_with(&c, mr);
	assert_int_equal(try_send(&c, &wr, 0, 64), 0);
	assert_int_equal(wait_wc(c.cq).status, IBV_WC_SUCCESS);
	wc = wait_wc(c.cq);
	expect_wc(&wc, 4, IBV_WC_LOC_PROT_ERR);
	reset(c.qp);
	connect_to(c.qp, 0);
	assert_int_equal(post_with(&c, &wr, mr, 64), IBV_WC_LOC_PROT_ERR);
	assert_int_equal(ibv_destroy_ah(wr.wr.ud.ah), 0);
	end_fini(&a);
	end_fini(&b);
	end_fini(&c);
	find_region(mr, how);
}

static void lose_all(void)
{
	enum how how;

	for (how = 0; how < HOWS; how++) {
		lose_memory(how, 8);
		lose_memory(how, 2 * PAGE);
	}
}

/* Nobody polls: the progress thread stores. */
static void lose_alone(void)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE };
	struct ibv_cq *cq;
	struct end a, b;
	enum how how;
	void *context;

	pair_init(&a, &b, IBV_QPT_RC);
	for (how = 0; how < HOWS; how++) {
		struct ibv_mr *mr = lose_region(how);

		wr.wr.rdma.remote_addr = (uintptr_t)lost;
		wr.wr.rdma.rkey = mr->rkey;
		assert_int_equal(ibv_req_notify_cq(a.cq, 0), 0);
		assert_int_equal(try_send(&a, &wr, 0, 64), 0);
		assert_true(readable(a.ch->fd, 10000));
		assert_int_equal(ibv_get_cq_event(a.ch, &cq, &context), 0);
		ibv_ack_cq_events(cq, 1);
		assert_int_equal(wait_wc(a.cq).status, IBV_WC_REM_ACCESS_ERR);
		reconnect(&a, &b);
		find_region(mr, how);
	}
	end_fini(&a);
	end_fini(&b);
}

/* Threads of many a program block all signals. */
static void *lose_blocked_run(void *arg)
{
	sigset_t all;

	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, NULL);
	lose_memory(UNMAPPED, 64);
	lose_memory(TRUNCATED, 2 * PAGE);
	return arg;
}

static void lose_blocked(void)
{
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, lose_blocked_run, NULL),
			 0);
	pthread_join(thread, NULL);
}

static volatile sig_atomic_t handled;

static void handler(int sig, siginfo_t *info, void *context)
{
	(void)sig;
	(void)context;
	handled++;
	if (info->si_code == SEGV_ACCERR)
		mprotect(lost, 4 * PAGE, PROT_READ | PROT_WRITE);
	else
		_exit(9);
}

/* What the program does with faults stays as it was. */
static void own_handler(void)
{
	struct sigaction sa = { .sa_sigaction = handler,
				.sa_flags = SA_SIGINFO };
	struct ibv_mr *mr;
	struct end a, b;

	sigaction(SIGSEGV, &sa, NULL);
	pair_init(&a, &b, IBV_QPT_RC);
	mr = lose_region(PROTECTED);
	/* It may be how the program learns of writes: it is asked. */
	assert_int_equal(try_write(&a, mr->rkey, (uintptr_t)lost, 64), 0);
	assert_int_equal(handled, 1);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	mr = lose_region(UNMAPPED);
	assert_int_equal(try_write(&a, mr->rkey, (uintptr_t)lost, 64),
			 IBV_WC_REM_ACCESS_ERR);
	assert_int_equal(handled, 1);
	/* Faults of its own are its own. */
	*(volatile uint8_t *)lost = 1;
}

static void own_fault(void)
{
	lose_region(UNMAPPED);
	*(volatile uint8_t *)lost = 1;
}

static void sent(void)
{
	lose_region(TRUNCATED);
	raise(SIGBUS);
}

static void ignored(void)
{
	signal(SIGSEGV, SIG_IGN);
	lose_region(UNMAPPED);
	raise(SIGSEGV);
	_exit(8);
}

/*
 * Each in a process of its own, since cmocka has a handler for faults: how it
 * is to end, as wait(2) says it.
 */
static const struct lost_case {
	const char *name;
	void (*run)(void);
	int status;
} lost_cases[] = {
	{ "all", lose_all, 0 },
	{ "alone", lose_alone, 0 },
	{ "blocked", lose_blocked, 0 },
	{ "own handler", own_handler, 9 << 8 },
	{ "own fault", own_fault, SIGSEGV },
	{ "sent", sent, SIGBUS },
	{ "ignored", ignored, 8 << 8 },
};

#define LOST_CASES (sizeof(lost_cases) / sizeof(lost_cases[0]))

static int lost_run(const char *name)
{
	size_t i;

	for (i = 0; i < LOST_CASES && strcmp(name, lost_cases[i].name); i++)
		;
	if (i == LOST_CASES)
		return 127;
	setup(NULL);
	lost_cases[i].run();
	teardown(NULL);
	return 0;
}

static void lose_memory_with(const char *wire)
{
	const struct rlimit no_core = { 0 };
	int status;
	pid_t pid;
	size_t i;

	for (i = 0; i < LOST_CASES; i++) {
		pid = fork();
		assert_true(pid >= 0);
		if (!pid) {
			setrlimit(RLIMIT_CORE, &no_core);
			setenv("SOFTHCA_WIRE", wire, 1);
			/* No handlers but ours. */
			setenv("ASAN_OPTIONS",
			       "handle_segv=0:handle_sigbus=0", 1);
			execl("/proc/self/exe", "test_memory",
			      lost_cases[i].name, NULL);
			_exit(127);
		}
		assert_int_equal(waitpid(pid, &status, 0), pid);
		if ((status & ~0x80) != lost_cases[i].status)
			fail_msg("%s: %#x", lost_cases[i].name,
				 (unsigned)status);
	}
}

static void memory_lost(void **state)
{
	(void)state;
#ifdef __SANITIZE_THREAD__
	skip(); /* it delivers signals in its own way */
#endif
	lose_memory_with("0");
}

/* Between hosts a packet is put together before it is sent. */
static void memory_lost_on_the_wire(void **state)
{
	(void)state;
#ifdef __SANITIZE_THREAD__
	skip();
#endif
	lose_memory_with("1");
}

static void advice(void **state)
{
	const int odp = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND;
	const enum ib_uverbs_advise_mr_advice fetch =
		IBV_ADVISE_MR_ADVICE_PREFETCH;
	const enum ib_uverbs_advise_mr_advice write =
		IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE;
	const uint32_t flush = IBV_ADVISE_MR_FLAG_FLUSH;
	uint8_t *p = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr, *readonly, *plain;
	struct ibv_pd *pd2 = ibv_alloc_pd(ctx);
	unsigned char in[4];
	struct ibv_sge sge;

	(void)state;
	assert_true(p != MAP_FAILED);
	mr = ibv_reg_mr(pd, p, 4 * PAGE, odp);
	readonly = ibv_reg_mr(pd, p, 4 * PAGE, IBV_ACCESS_ON_DEMAND);
	plain = ibv_reg_mr(pd, p, PAGE, IBV_ACCESS_LOCAL_WRITE);
	sge = (struct ibv_sge){ (uintptr_t)p, 3 * PAGE, mr->lkey };
	assert_int_equal(madvise(p, 4 * PAGE, MADV_DONTNEED), 0);
	assert_int_equal(ibv_advise_mr(pd, write, flush, &sge, 1), 0);
	assert_int_equal(mincore(p, 4 * PAGE, in), 0);
	assert_true(in[0] & in[1] & in[2] & 1);
	assert_false(in[3] & 1);
	assert_int_equal(ibv_advise_mr(pd, fetch, 0, &sge, 1), 0);
	assert_int_equal(ibv_advise_mr(pd,
				       IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
				       flush, &sge, 1),
			 0);
	assert_int_equal(ibv_advise_mr(pd, 99, 0, &sge, 1), ENOTSUP);
	assert_int_equal(ibv_advise_mr(pd, fetch, 2, &sge, 1), EINVAL);
	assert_int_equal(ibv_advise_mr(pd, fetch, 0, &sge, 0), EINVAL);
	assert_int_equal(ibv_advise_mr(pd2, fetch, 0, &sge, 1), EPERM);
	sge.length = 5 * PAGE;
	assert_int_equal(ibv_advise_mr(pd, fetch, 0, &sge, 1), EFAULT);
	sge = (struct ibv_sge){ (uintptr_t)p, PAGE, readonly->lkey };
	assert_int_equal(ibv_advise_mr(pd, fetch, flush, &sge, 1), 0);
	assert_int_equal(ibv_advise_mr(pd, write, flush, &sge, 1), EPERM);
	sge.lkey = plain->lkey;
	assert_int_equal(ibv_advise_mr(pd, fetch, flush, &sge, 1), EINVAL);
	sge.lkey ^= 1;
	assert_int_equal(ibv_advise_mr(pd, fetch, flush, &sge, 1), ENOENT);
	/* A page that is not there: who waits hears of it. */
	munmap(p + 3 * PAGE, PAGE);
	sge = (struct ibv_sge){ (uintptr_t)p, 4 * PAGE, mr->lkey };
	assert_int_equal(ibv_advise_mr(pd, fetch, flush, &sge, 1), EFAULT);
	assert_int_equal(ibv_advise_mr(pd, fetch, 0, &sge, 1), 0);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	assert_int_equal(ibv_dereg_mr(readonly), 0);
	assert_int_equal(ibv_dereg_mr(plain), 0);
	assert_int_equal(ibv_dealloc_pd(pd2), 0);
	munmap(p, 3 * PAGE);
}

/* Device memory */

static void device_memory(void **state)
{
	const unsigned zero = IBV_ACCESS_ZERO_BASED;
	struct ibv_alloc_dm_attr attr = { .length = 100 };
	struct ibv_device_attr_ex dev;
	struct ibv_dm *dm, *big;
	uint8_t in[64], out[64];
	struct ibv_mr *mr;
	struct end a, b;

	(void)state;
	pair_init(&a, &b, IBV_QPT_RC);
	assert_int_equal(ibv_query_device_ex(ctx, NULL, &dev), 0);
	assert_true(dev.max_dm_size >= 65536);
	dm = ibv_alloc_dm(ctx, &attr);
	assert_non_null(dm);
	/* All of it can be had, but not more, nor what is not free. */
	attr.length = dev.max_dm_size + 1;
	assert_null(ibv_alloc_dm(ctx, &attr));
	attr.length = dev.max_dm_size;
	assert_null(ibv_alloc_dm(ctx, &attr));
	assert_int_equal(errno, ENOMEM);
	attr.length = dev.max_dm_size - 65536;
	attr.log_align_req = 16;
	big = ibv_alloc_dm(ctx, &attr);
	assert_non_null(big);
	attr.comp_mask = 1;
	assert_null(ibv_alloc_dm(ctx, &attr));
	assert_int_equal(errno, EINVAL);
	attr = (struct ibv_alloc_dm_attr){ 0 };
	assert_null(ibv_alloc_dm(ctx, &attr));

	fill(in, 64, 2);
	assert_int_equal(ibv_memcpy_to_dm(dm, 36, in, 64), 0);
	assert_int_equal(ibv_memcpy_from_dm(out, dm, 36, 64), 0);
	assert_memory_equal(in, out, 64);
	assert_int_equal(ibv_memcpy_to_dm(dm, 2, in, 64), EINVAL);
	assert_int_equal(ibv_memcpy_to_dm(dm, 0, in, 3), EINVAL);
	assert_int_equal(ibv_memcpy_to_dm(dm, 40, in, 64), EINVAL);
	assert_int_equal(ibv_memcpy_from_dm(out, dm, UINT64_MAX - 3, 8),
			 EINVAL);

	assert_null(ibv_reg_dm_mr(pd, dm, 0, 64, IBV_ACCESS_LOCAL_WRITE));
	assert_int_equal(errno, EINVAL);
	assert_null(ibv_reg_dm_mr(pd, dm, 0, 104, zero));
	assert_null(ibv_reg_dm_mr(pd, dm, 101, 0, zero));
	assert_null(ibv_reg_dm_mr(pd, dm, 4, SIZE_MAX - 2, zero));
	assert_null(ibv_reg_dm_mr(pd, dm, 0, 64, zero | IBV_ACCESS_REMOTE_WRITE));
	mr = ibv_reg_dm_mr(pd, dm, 20, 64, zero | ALL_ACCESS);
	assert_non_null(mr);
	assert_int_equal(ibv_free_dm(dm), EBUSY);
	memcpy(a.buf, in, 32);
	assert_int_equal(try_write(&a, mr->rkey, 0, 32), 0);
	assert_int_equal(ibv_memcpy_from_dm(out, dm, 20, 32), 0);
	assert_memory_equal(in, out, 32);
	assert_int_equal(try_read(&a, mr->rkey, 0, 64), 0);
	assert_int_equal(try_write(&a, mr->rkey, 33, 32),
			 IBV_WC_REM_ACCESS_ERR);
	reconnect(&a, &b);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	assert_int_equal(ibv_free_dm(dm), 0);
	assert_int_equal(ibv_free_dm(big), 0);
	/* Everything is free again. */
	attr.length = dev.max_dm_size;
	dm = ibv_alloc_dm(ctx, &attr);
	assert_non_null(dm);
	assert_int_equal(ibv_free_dm(dm), 0);
	end_fini(&a);
	end_fini(&b);
}

/* Pieces of any size, allocated and freed in any order, never overlap. */
static void device_memory_pieces(void **state)
{
	struct ibv_dm *dm[40] = { 0 };
	uint32_t mark[40] = { 0 }, got;
	unsigned seed = 1, i, round;

	(void)state;
	for (round = 0; round < 2000; round++) {
		i = (unsigned)rand_r(&seed) % 40;
		if (dm[i]) {
			assert_int_equal(ibv_memcpy_from_dm(&got, dm[i], 4, 4),
					 0);
			assert_int_equal(got, mark[i]);
			assert_int_equal(ibv_free_dm(dm[i]), 0);
			dm[i] = NULL;
		} else {
			struct ibv_alloc_dm_attr attr = {
				.length = 8 + (unsigned)rand_r(&seed) % 300000,
				.log_align_req = (unsigned)rand_r(&seed) % 18,
			};
			size_t last = (attr.length - 4) & ~3ul;

			dm[i] = ibv_alloc_dm(ctx, &attr);
			assert_non_null(dm[i]);
			mark[i] = round;
			ibv_memcpy_to_dm(dm[i], 4, &round, 4);
			ibv_memcpy_to_dm(dm[i], last, &round, 4);
		}
	}
	for (i = 0; i < 40; i++)
		if (dm[i])
			assert_int_equal(ibv_free_dm(dm[i]), 0);
}

/* Imports */

static void imports(void **state)
{
	struct ibv_alloc_dm_attr attr = { .length = 4096 };
	struct ibv_context *other, *stranger;
	uint32_t word = 0x12345678, got = 0;
	struct ibv_dm *dm, *dm2;
	struct ibv_mr *mr, *mr2;
	struct ibv_pd *pd2;
	int fd;

	(void)state;
	dm = ibv_alloc_dm(ctx, &attr);
	mr = ibv_reg_dm_mr(pd, dm, 0, 4096, IBV_ACCESS_ZERO_BASED | ALL_ACCESS);
	other = ibv_import_device(dup(ctx->cmd_fd));
	assert_non_null(other);
	assert_ptr_equal(other->device, ctx->device);

	pd2 = ibv_import_pd(other, pd->handle);
	assert_non_null(pd2);
	mr2 = ibv_import_mr(pd2, mr->handle);
	assert_non_null(mr2);
	assert_int_equal(mr2->lkey, mr->lkey);
	assert_null(mr2->addr);
	dm2 = ibv_import_dm(other, dm->handle);
	assert_non_null(dm2);
	assert_int_equal(ibv_memcpy_to_dm(dm, 8, &word, 4), 0);
	assert_int_equal(ibv_memcpy_from_dm(&got, dm2, 8, 4), 0);
	assert_int_equal(got, word);

	assert_null(ibv_import_pd(other, pd->handle + 1000));
	assert_int_equal(errno, ENOENT);
	assert_null(ibv_import_mr(pd2, mr->handle + 1000));
	assert_int_equal(errno, ENOENT);
	assert_null(ibv_import_mr(pd2, UINT32_MAX));
	assert_null(ibv_import_dm(other, 9999999));
	assert_null(ibv_import_dm(other, dm->handle + 1));
	/* A context of its own shares nothing. */
	stranger = open_first();
	assert_null(ibv_import_pd(stranger, pd->handle));
	assert_null(ibv_import_dm(stranger, dm->handle));
	assert_int_equal(ibv_close_device(stranger), 0);
	fd = open("/dev/null", O_RDONLY);
	assert_null(ibv_import_device(fd));
	assert_int_equal(errno, EINVAL);
	close(fd);
	assert_null(ibv_import_device(-1));
	assert_int_equal(errno, EBADF);

	ibv_unimport_dm(dm2);
	ibv_unimport_mr(mr2);
	ibv_unimport_pd(pd2);
	assert_int_equal(ibv_close_device(other), 0);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	assert_int_equal(ibv_free_dm(dm), 0);
}

/* Another process has the device memory, and nothing else. */
static void import_elsewhere(void **state)
{
	struct ibv_alloc_dm_attr attr = { .length = 4096 };
	uint32_t handle, pdh = pd->handle, word = 7;
	struct ibv_dm *dm;
	int fd, status;
	pid_t pid;

	(void)state;
#ifdef __SANITIZE_THREAD__
	skip(); /* it forbids threads in a child of threads */
#endif
	dm = ibv_alloc_dm(ctx, &attr);
	handle = dm->handle;
	fd = dup(ctx->cmd_fd);
	assert_int_equal(ibv_memcpy_to_dm(dm, 0, &word, 4), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		struct ibv_context *c = ibv_import_device(fd);
		struct ibv_dm *mine = c ? ibv_import_dm(c, handle) : NULL;
		uint32_t v = 0;

		alarm(20);
		if (!mine || ibv_memcpy_from_dm(&v, mine, 0, 4) || v != 7)
			_exit(1);
		v = 8;
		if (ibv_memcpy_to_dm(mine, 0, &v, 4))
			_exit(2);
		errno = 0;
		if (ibv_import_pd(c, pdh) || errno != EOPNOTSUPP)
			_exit(3);
		ibv_unimport_dm(mine);
		_exit(ibv_close_device(c) ? 4 : 0);
	}
	close(fd);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	assert_int_equal(ibv_memcpy_from_dm(&word, dm, 0, 4), 0);
	assert_int_equal(word, 8);
	assert_int_equal(ibv_free_dm(dm), 0);
}

/* Domains */

struct arena {
	struct ibv_pd *pd;
	int allocs, frees, mode;
};

enum { OWN, DEFAULT, REFUSE };

static void *arena_alloc(struct ibv_pd *p, void *context, size_t size,
			 size_t alignment, uint64_t type)
{
	struct arena *a = context;
	void *mem = NULL;

	assert_ptr_equal(p, a->pd);
	assert_true(type);
	if (a->mode == REFUSE)
		return NULL;
	if (a->mode == DEFAULT)
		return IBV_ALLOCATOR_USE_DEFAULT;
	assert_int_equal(posix_memalign(&mem, alignment, size), 0);
	memset(mem, 0x5a, size); /* nothing is taken for zero */
	a->allocs++;
	return mem;
}

static void arena_free(struct ibv_pd *p, void *context, void *mem, uint64_t type)
{
	struct arena *a = context;

	assert_ptr_equal(p, a->pd);
	assert_true(type);
	a->frees++;
	free(mem);
}

static void parent_domain(void **state)
{
	struct ibv_td_init_attr tda = { 0 };
	struct arena arena = { .mode = OWN };
	struct ibv_parent_domain_init_attr attr = { .pd = pd };
	struct ibv_cq_init_attr_ex cqa = { .cqe = 16 };
	struct ibv_srq_init_attr srqa = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_srq_attr more = { .max_wr = 64 };
	struct ibv_pd *plain = pd, *parent;
	struct ibv_cq_ex *cq;
	struct ibv_srq *srq;
	struct ibv_td *td;
	struct end a, b;
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND };

	(void)state;
	td = ibv_alloc_td(ctx, &tda);
	assert_non_null(td);
	tda.comp_mask = 1;
	assert_null(ibv_alloc_td(ctx, &tda));
	attr.td = td;
	attr.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS;
	assert_null(ibv_alloc_parent_domain(ctx, &attr)); /* which? */
	attr.comp_mask = 1 << 7;
	assert_null(ibv_alloc_parent_domain(ctx, &attr));
	attr.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS |
			 IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
	attr.alloc = arena_alloc;
	attr.free = arena_free;
	attr.pd_context = &arena;
	attr.pd = NULL;
	assert_null(ibv_alloc_parent_domain(ctx, &attr));
	assert_int_equal(errno, EINVAL);
	attr.pd = pd;
	parent = arena.pd = ibv_alloc_parent_domain(ctx, &attr);
	assert_non_null(parent);
	assert_int_equal(ibv_dealloc_pd(pd), EBUSY);
	assert_int_equal(ibv_dealloc_td(td), EBUSY);

	/* It stands for the domain that it extends. */
	pd = parent;
	end_init(&a, IBV_QPT_RC, NULL);
	assert_int_equal(arena.allocs, 2);
	pd = plain;
	end_init(&b, IBV_QPT_RC, NULL);
	assert_int_equal(arena.allocs, 2);
	connect_to(a.qp, b.qp->qp_num);
	connect_to(b.qp, a.qp->qp_num);
	post_recv(&b, 1, 0, 64);
	assert_int_equal(try_send(&a, &wr, 0, 64), 0);
	assert_int_equal(wait_wc(b.cq).status, 0);
	assert_int_equal(ibv_dealloc_pd(parent), EBUSY);
	end_fini(&a);
	assert_int_equal(arena.frees, 2);

	cqa.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD;
	cqa.parent_domain = plain;
	assert_null(ibv_create_cq_ex(ctx, &cqa));
	assert_int_equal(errno, EINVAL);
	cqa.parent_domain = parent;
	cq = ibv_create_cq_ex(ctx, &cqa);
	assert_non_null(cq);
	assert_int_equal(arena.allocs, 3);
	assert_int_equal(ibv_resize_cq(ibv_cq_ex_to_cq(cq), 100), 0);
	assert_int_equal(arena.allocs, 4);
	assert_int_equal(arena.frees, 3);
	assert_int_equal(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
	assert_int_equal(arena.frees, 4);
	srq = ibv_create_srq(parent, &srqa);
	assert_non_null(srq);
	assert_int_equal(ibv_modify_srq(srq, &more, IBV_SRQ_MAX_WR), 0);
	assert_int_equal(arena.allocs, 6);
	assert_int_equal(ibv_destroy_srq(srq), 0);
	assert_int_equal(arena.frees, 6);

	arena.mode = DEFAULT;
	srq = ibv_create_srq(parent, &srqa);
	assert_non_null(srq);
	arena.mode = OWN; /* who gave it gets it back */
	assert_int_equal(ibv_destroy_srq(srq), 0);
	assert_int_equal(arena.frees, 6);
	arena.mode = REFUSE;
	assert_null(ibv_create_srq(parent, &srqa));
	assert_int_equal(errno, ENOMEM);
	assert_null(ibv_create_cq_ex(ctx, &cqa));
	assert_int_equal(errno, ENOMEM);

	end_fini(&b);
	assert_int_equal(ibv_dealloc_pd(parent), 0);
	assert_int_equal(ibv_dealloc_td(td), 0);
}

/* dma-bufs: what is none is refused; the rest needs /dev/udmabuf. */
static void dmabuf(void **state)
{
	int fd = memfd_create("x", 0);

	(void)state;
	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, PAGE), 0);
	errno = 0;
	assert_null(ibv_reg_dmabuf_mr(pd, 0, PAGE, 0, fd, 1));
	assert_int_equal(errno, EINVAL);
	assert_null(ibv_reg_dmabuf_mr(pd, 0, PAGE, 0, -1, 1));
	assert_int_equal(errno, EBADF);
	assert_null(ibv_reg_dmabuf_mr(pd, 1, PAGE, 0, fd, 1));
	assert_int_equal(errno, EINVAL);
	assert_null(ibv_reg_dmabuf_mr(pd, 0, 0, 0, fd, 1));
	assert_null(ibv_reg_dmabuf_mr(pd, 0, PAGE, 0, fd, ALL_ACCESS & ~1));
	close(fd);
}

/* While played is set, memory files answer as dma-bufs do, and each access by
 * the CPU that begins is counted until it ends. */
static bool played;
static int accesses;

/* Of this program and of the libraries. */
int ioctl(int fd, unsigned long request, ...)
{
	struct dma_buf_sync *sync;
	va_list ap;

	va_start(ap, request);
	sync = va_arg(ap, void *);
	va_end(ap);
	if (!played || request != DMA_BUF_IOCTL_SYNC)
		return (int)syscall(SYS_ioctl, fd, request, sync);
	accesses += sync->flags & DMA_BUF_SYNC_END ? -1 : 1;
	return 0;
}

/* Descriptors that a program which this one executes would inherit. */
static int inherited(void)
{
	int fd, flags, n = 0;

	for (fd = 0; fd < 1024; fd++) {
		flags = fcntl(fd, F_GETFD);
		n += flags >= 0 && !(flags & FD_CLOEXEC);
	}
	return n;
}

/* A dma-buf of four pages, mapped at mem. */
static void dmabuf_region(int fd, uint8_t *mem)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE };
	struct ibv_mr *mr;
	struct end a, b;
	int before;

	assert_null(ibv_reg_dmabuf_mr(pd, PAGE, 4 * PAGE, 0, fd, ALL_ACCESS));
	before = inherited();
	accesses = 0;
	mr = ibv_reg_dmabuf_mr(pd, PAGE, 2 * PAGE, 0x10000, fd, ALL_ACCESS);
	assert_non_null(mr);
	assert_int_equal(inherited(), before);
	close(fd); /* the region keeps it */
	pair_init(&a, &b, IBV_QPT_RC);
	fill(a.buf, 2 * PAGE, 5);
	wr.wr.rdma.remote_addr = 0x10000;
	wr.wr.rdma.rkey = mr->rkey;
	assert_int_equal(try_send(&a, &wr, 0, 2 * PAGE), 0);
	assert_int_equal(wait_wc(a.cq).status, IBV_WC_SUCCESS);
	assert_memory_equal(mem + PAGE, a.buf, 2 * PAGE);
	assert_int_equal(mem[0] | mem[3 * PAGE], 0);
	wr.wr.rdma.remote_addr++;
	assert_int_equal(try_send(&a, &wr, 0, 2 * PAGE), 0);
	assert_int_equal(wait_wc(a.cq).status, IBV_WC_REM_ACCESS_ERR);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	end_fini(&a);
	end_fini(&b);
}

/* Where the kernel makes none, at least what we do with one. */
static void dmabuf_played(void **state)
{
	int fd = memfd_create("x", MFD_CLOEXEC);
	uint8_t *mem;

	(void)state;
	assert_int_equal(ftruncate(fd, 4 * PAGE), 0);
	mem = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_true(mem != MAP_FAILED);
	played = true;
	dmabuf_region(fd, mem);
	played = false;
	assert_int_equal(accesses, -1); /* the end that finds out what it is */
	munmap(mem, 4 * PAGE);
}

/* A dma-buf of the program's own memory, where the kernel makes them. */
static void udmabuf(void **state)
{
	int dev = open("/dev/udmabuf", O_RDWR | O_CLOEXEC);
	struct udmabuf_create create = { .size = 4 * PAGE };
	uint8_t *mem;
	int fd;

	(void)state;
	if (dev < 0) {
		print_message("no /dev/udmabuf here: dma-bufs not tested\n");
		skip();
	}
	create.memfd = (uint32_t)memfd_create("x", MFD_ALLOW_SEALING);
	assert_int_equal(ftruncate((int)create.memfd, 4 * PAGE), 0);
	assert_int_equal(fcntl((int)create.memfd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	mem = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED,
		   (int)create.memfd, 0);
	assert_true(mem != MAP_FAILED);
	fd = ioctl(dev, UDMABUF_CREATE, &create);
	assert_true(fd >= 0);
	dmabuf_region(fd, mem);
	munmap(mem, 4 * PAGE);
	close((int)create.memfd);
	close(dev);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		TEST(window_type1),
		TEST(window_refusals),
		TEST(window_type2),
		TEST(window_key_is_free),
		TEST(window_of_failed_qp),
		TEST(window_in_order),
		TEST(reregister),
		TEST(zero_based),
		TEST(null_region),
		TEST(on_demand),
		cmocka_unit_test(memory_lost),
		cmocka_unit_test(memory_lost_on_the_wire),
		TEST(advice),
		TEST(device_memory),
		TEST(device_memory_pieces),
		TEST(imports),
		TEST(import_elsewhere),
		TEST(parent_domain),
		TEST(dmabuf),
		TEST(dmabuf_played),
		TEST(udmabuf),
	};

	alarm(60);
	if (argc == 2)
		return lost_run(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}

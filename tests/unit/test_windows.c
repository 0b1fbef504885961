/*
 * test_windows.c - memory windows of both types
 */
#include "reach.h"

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
	assert_int_equal(try_write(&a, mw->rkey, (uintptr_t)b.buf + 64, 128),
			 0);
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
	assert_int_equal(bind2(&b, mw, key, mr, (uintptr_t)b.buf, PAGE, all),
			 0);
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
	assert_int_equal(wait_wc(a.cq).status, IBV_WC_SUCCESS);
	assert_int_equal(wait_wc(b.cq).status, IBV_WC_REM_INV_REQ_ERR);
	reconnect(&a, &b);
	inv.invalidate_rkey = b.mr->rkey;
	post_recv(&b, 3, 0, 64);
	assert_int_equal(try_send(&a, &inv, 0, 16), 0);
	assert_int_equal(wait_wc(a.cq).status, IBV_WC_SUCCESS);
	assert_int_equal(wait_wc(b.cq).status, IBV_WC_REM_INV_REQ_ERR);
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
		assert_int_equal(
			bind2(&b, mw, keys[i], mr, (uintptr_t)b.buf, PAGE, all),
			0);
		assert_int_equal(mw->rkey, index << 8 | (keys[i] & 0xff));
		fill(a.buf, 64, (unsigned)i);
		assert_int_equal(
			try_write(&a, mw->rkey, (uintptr_t)b.buf + 8, 64), 0);
		assert_memory_equal(a.buf, b.buf + 8, 64);
		assert_int_equal(invalidate(&b, mw->rkey), 0);
		/* As a program leaves it that thinks it has chosen the key. */
		mw->rkey = keys[i];
		/* Keys lead to the window, and not the handle. */
		if (i == 1) {
			mw->rkey = index << 8;
			mw->handle ^= 1;
			assert_int_equal(bind2(&b, mw, 7, mr, (uintptr_t)b.buf,
					       PAGE, all),
					 0);
			assert_int_equal(mw->rkey, index << 8 | 7);
			assert_int_equal(invalidate(&b, mw->rkey), 0);
			mw->handle ^= 1;
		}
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
		uint32_t key =
			(mw->rkey & ~0xffu) | ((mw->rkey + (uint32_t)i) & 0xff);
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(window_type1),        TEST(window_refusals),
		TEST(window_type2),        TEST(window_key_is_free),
		TEST(window_of_failed_qp), TEST(window_in_order),
	};

	alarm(60);
	return cmocka_run_group_tests(tests, NULL, NULL);
}

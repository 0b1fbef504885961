/*
 * test_refused.c - calls that are refused: their errors, and errno
 *
 * An object that a program has destroyed, copied or overwritten is refused as well.
 */
#include "pair.h"

/* What asks a kernel leaves the error in errno, too. */
#define SETS_ERRNO(call, err)                                                  \
	do {                                                                   \
		errno = 0;                                                     \
		assert_int_equal((call), (err));                               \
		assert_int_equal(errno, (err));                                \
	} while (0)

static void errno_is_set(void **state)
{
	struct ibv_srq_init_attr srq_init = { .attr = { .max_wr = 4,
							.max_sge = 1 } };
	struct ibv_modify_cq_attr moderate = { .attr_mask = 1u << 31 };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS };
	struct ibv_ece ece = { .comp_mask = 1 };
	struct ibv_srq_attr limit = { .srq_limit = 1000 };
	struct ibv_port_attr port;
	struct ibv_gid_entry gid;
	struct ibv_srq *srq;
	struct ibv_mr *mr;
	struct ibv_mw *mw;
	struct end a, b;
	uint32_t num;

	(void)state;
	pair_init(&a, &b, IBV_QPT_RC);
	srq = ibv_create_srq(pd, &srq_init);
	mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	mr = ibv_reg_mr(pd, a.buf, BUF,
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	assert_true(srq && mw && mr);
	SETS_ERRNO(ibv_dealloc_pd(pd), EBUSY);
	SETS_ERRNO(ibv_destroy_cq(a.cq), EBUSY);
	SETS_ERRNO(ibv_destroy_comp_channel(a.ch), EBUSY);
	SETS_ERRNO(ibv_resize_cq(a.cq, 0), EINVAL);
	SETS_ERRNO(ibv_modify_cq(a.cq, &moderate), EINVAL);
	SETS_ERRNO(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT), EINVAL);
	SETS_ERRNO(ibv_get_srq_num(srq, &num), EINVAL);
	SETS_ERRNO(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE | IBV_QP_PORT),
		   EINVAL);
	SETS_ERRNO(ibv_attach_mcast(a.qp, &gid0, 0), EINVAL);
	SETS_ERRNO(ibv_detach_mcast(a.qp, &gid0, 0), EINVAL);
	SETS_ERRNO(ibv_set_ece(a.qp, &ece), EINVAL);
	SETS_ERRNO(ibv_query_port(ctx, 2, &port), EINVAL);
	SETS_ERRNO(ibv_query_gid_ex(ctx, 2, 0, &gid, 0), EINVAL);
	SETS_ERRNO(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, NULL, 0),
		   EINVAL);

	struct ibv_mw_bind bind = {
		.bind_info = { mr, (uintptr_t)a.buf, 8,
			       IBV_ACCESS_REMOTE_READ },
	};

	assert_int_equal(ibv_bind_mw(a.qp, mw, &bind), 0);
	bind.send_flags = IBV_SEND_SIGNALED;
	assert_int_equal(ibv_bind_mw(a.qp, mw, &bind), 0);
	assert_int_equal(wait_wc(a.cq).status, IBV_WC_SUCCESS);
	SETS_ERRNO(ibv_dereg_mr(mr), EBUSY);
	assert_int_equal(ibv_dealloc_mw(mw), 0);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	assert_int_equal(ibv_destroy_srq(srq), 0);
	end_fini(&a);
	end_fini(&b);
}

/*
 * What a program garbled, copied or destroyed is refused by every call that is
 * off the data path, before anything of it is believed. What the header inlines
 * reads the context itself, so it is called only where that is whole.
 */
static void refused(int r)
{
	assert_true(r == ENOENT || r == EINVAL);
	assert_int_equal(errno, r);
	errno = 0;
}

#define NONE(call) (errno = 0, assert_null(call), refused(errno))
#define REFUSES(call) (errno = 0, refused(call))

static struct end whole;

static void with_pd(void *object, bool inlined)
{
	struct ibv_srq_init_attr srq = { .attr = { 4, 1, 0 } };
	struct ibv_qp_init_attr qp = { .qp_type = IBV_QPT_RC,
				       .send_cq = whole.cq,
				       .recv_cq = whole.cq,
				       .cap = { 1, 1, 1, 1, 0 } };
	struct ibv_ah_attr ah = rtr_attr(1).ah_attr;
	struct ibv_grh grh = { 0 };
	struct ibv_wc wc = { 0 };
	struct ibv_pd *p = object;

	NONE(ibv_reg_mr(p, whole.buf, 8, ALL_ACCESS));
	NONE(ibv_reg_dmabuf_mr(p, 0, 8, 0, 0, 0));
	NONE(ibv_import_mr(p, 0));
	NONE(ibv_create_srq(p, &srq));
	NONE(ibv_create_qp(p, &qp));
	NONE(ibv_create_ah(p, &ah));
	NONE(ibv_create_ah_from_wc(p, &wc, &grh, 1));
	assert_int_equal(
		ibv_rereg_mr(whole.mr, IBV_REREG_MR_CHANGE_PD, p, NULL, 0, 0),
		IBV_REREG_MR_ERR_CMD);
	ibv_unimport_pd(p);
	if (inlined) {
		struct ibv_parent_domain_init_attr attr = { .pd = p };

		NONE(ibv_alloc_mw(p, IBV_MW_TYPE_1));
		NONE(ibv_alloc_null_mr(p));
		NONE(ibv_alloc_parent_domain(ctx, &attr));
		REFUSES(ibv_advise_mr(p, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, NULL,
				      0));
	}
	REFUSES(ibv_dealloc_pd(p));
}

static void with_mr(void *object, bool inlined)
{
	struct ibv_mr *mr = object;

	(void)inlined;
	assert_int_equal(
		ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0),
		IBV_REREG_MR_ERR_CMD);
	ibv_unimport_mr(mr);
	REFUSES(ibv_dereg_mr(mr));
}

static void with_mw(void *object, bool inlined)
{
	struct ibv_mw_bind bind = { 0 };
	struct ibv_mw *mw = object;

	if (!inlined)
		return;
	REFUSES(ibv_bind_mw(whole.qp, mw, &bind));
	REFUSES(ibv_dealloc_mw(mw));
}

static void with_cq(void *object, bool inlined)
{
	struct ibv_modify_cq_attr moderate = { IBV_CQ_ATTR_MODERATE, { 1, 1 } };
	struct ibv_qp_init_attr qp = { .qp_type = IBV_QPT_RC,
				       .send_cq = object,
				       .recv_cq = whole.cq,
				       .cap = { 1, 1, 1, 1, 0 } };
	struct ibv_cq *cq = object;

	NONE(ibv_create_qp(pd, &qp));
	qp.send_cq = whole.cq;
	qp.recv_cq = cq;
	NONE(ibv_create_qp(pd, &qp));
	REFUSES(ibv_resize_cq(cq, 10));
	if (inlined)
		REFUSES(ibv_modify_cq(cq, &moderate));
	REFUSES(ibv_destroy_cq(cq));
}

static void with_srq(void *object, bool inlined)
{
	struct ibv_qp_init_attr qp = { .qp_type = IBV_QPT_RC,
				       .send_cq = whole.cq,
				       .recv_cq = whole.cq,
				       .srq = object,
				       .cap = { 1, 1, 1, 1, 0 } };
	struct ibv_srq *srq = object;
	struct ibv_srq_attr attr = { 0 };
	uint32_t num;

	NONE(ibv_create_qp(pd, &qp));
	REFUSES(ibv_query_srq(srq, &attr));
	REFUSES(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT));
	if (inlined)
		REFUSES(ibv_get_srq_num(srq, &num));
	REFUSES(ibv_destroy_srq(srq));
}

static void with_qp(void *object, bool inlined)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct ibv_qp_init_attr init;
	struct ibv_mw_bind bind = { 0 };
	struct ibv_mw mw = { .context = ctx, .type = IBV_MW_TYPE_1 };
	struct ibv_ece ece = { 0 };
	struct ibv_qp *qp = object;

	REFUSES(ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	REFUSES(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init));
	REFUSES(ibv_query_ece(qp, &ece));
	REFUSES(ibv_set_ece(qp, &ece));
	REFUSES(ibv_attach_mcast(qp, &gid0, 0));
	REFUSES(ibv_detach_mcast(qp, &gid0, 0));
	NONE(ibv_qp_to_qp_ex(qp));
	if (inlined)
		REFUSES(ibv_bind_mw(qp, &mw, &bind));
	REFUSES(ibv_destroy_qp(qp));
}

static void with_ah(void *object, bool inlined)
{
	(void)inlined;
	REFUSES(ibv_destroy_ah(object));
}

static void *make_pd(void)
{
	return ibv_alloc_pd(ctx);
}

static int drop_pd(void *object)
{
	return ibv_dealloc_pd(object);
}

static void *make_mr(void)
{
	return ibv_reg_mr(pd, whole.buf, 8, ALL_ACCESS);
}

static int drop_mr(void *object)
{
	return ibv_dereg_mr(object);
}

static void *make_mw(void)
{
	return ibv_alloc_mw(pd, IBV_MW_TYPE_1);
}

static int drop_mw(void *object)
{
	return ibv_dealloc_mw(object);
}

static void *make_cq(void)
{
	return ibv_create_cq(ctx, 1, NULL, NULL, 0);
}

static int drop_cq(void *object)
{
	return ibv_destroy_cq(object);
}

static void *make_srq(void)
{
	struct ibv_srq_init_attr init = { .attr = { 4, 1, 0 } };

	return ibv_create_srq(pd, &init);
}

static int drop_srq(void *object)
{
	return ibv_destroy_srq(object);
}

static void *make_qp(void)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC,
					 .send_cq = whole.cq,
					 .recv_cq = whole.cq,
					 .cap = { 1, 1, 1, 1, 0 } };

	return ibv_create_qp(pd, &init);
}

static int drop_qp(void *object)
{
	return ibv_destroy_qp(object);
}

static void *make_ah(void)
{
	struct ibv_ah_attr attr = rtr_attr(1).ah_attr;

	return ibv_create_ah(pd, &attr);
}

static int drop_ah(void *object)
{
	return ibv_destroy_ah(object);
}

static void garbled_objects(void **state)
{
#define KIND(name)                                                             \
	make_##name, drop_##name, with_##name, sizeof(struct ibv_##name),      \
		offsetof(struct ibv_##name, handle)
	static const struct {
		void *(*make)(void);
		int (*drop)(void *object);
		void (*with)(void *object, bool inlined);
		size_t size, handle;
	} kinds[] = { { KIND(pd) },  { KIND(mr) }, { KIND(mw) }, { KIND(cq) },
		      { KIND(srq) }, { KIND(qp) }, { KIND(ah) } };
	static uint64_t junk[4096], copy[512];
	void *contexts[] = { NULL, junk, (void *)~0ull };
	size_t i, k;

	(void)state;
	memset(junk, 0xa5, sizeof(junk));
	end_init(&whole, IBV_QPT_RC, NULL);
	for (k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
		void *object = kinds[k].make();
		uint32_t *handle;

		assert_non_null(object);
		handle = (void *)((uint8_t *)object + kinds[k].handle);
		*handle ^= 0x10000;
		kinds[k].with(object, true);
		*handle ^= 0x10000;
		for (i = 0; i < 3; i++) {
			*(void **)object = contexts[i];
			kinds[k].with(object, false);
		}
		*(void **)object = ctx;
		assert_true(kinds[k].size <= sizeof(copy));
		memcpy(copy, object, kinds[k].size);
		kinds[k].with(copy, true);
		/* None of another kind, either. */
		kinds[(k + 1) % 7].with(object, false);
		if (kinds[k].with != with_srq) /* there it means none */
			kinds[k].with(NULL, false);
		assert_int_equal(kinds[k].drop(object), 0);
		kinds[k].with(object, false);
	}
	end_fini(&whole);
}

/* A kernel looks the handle up in the other device's context. */
static void pd_of_another_device(void **state)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *other = ibv_open_device(list[0]);
	struct ibv_pd *its = ibv_alloc_pd(ctx);
	static char buf[64];

	(void)state;
	assert_non_null(other);
	assert_non_null(its);
	its->context = other;
	errno = 0;
	assert_null(ibv_reg_mr(its, buf, sizeof(buf), 0));
	assert_int_equal(errno, ENOENT);
	assert_int_equal(ibv_dealloc_pd(its), ENOENT);
	its->context = ctx;
	assert_int_equal(ibv_dealloc_pd(its), 0);
	assert_int_equal(ibv_close_device(other), 0);
	ibv_free_device_list(list);
}

static void cq_rules(void **state)
{
	struct ibv_comp_channel *ch = ibv_create_comp_channel(ctx);
	struct ibv_cq *cq, *ev_cq;
	struct ibv_device_attr attr;
	void *ev_ctx;

	(void)state;
	assert_int_equal(ibv_query_device(ctx, &attr), 0);
	assert_null(ibv_create_cq(ctx, 0, NULL, NULL, 0));
	assert_int_equal(errno, EINVAL);
	assert_null(ibv_create_cq(ctx, -1, NULL, NULL, 0));
	assert_null(ibv_create_cq(ctx, attr.max_cqe + 1, NULL, NULL, 0));
	assert_null(ibv_create_cq(ctx, 1, NULL, NULL, ctx->num_comp_vectors));
	cq = ibv_create_cq(ctx, 100, &attr, ch, 0);
	assert_non_null(cq);
	assert_true(cq->cqe >= 100);
	assert_ptr_equal(cq->cq_context, &attr);
	assert_int_equal(ibv_destroy_comp_channel(ch), EBUSY);
	assert_int_equal(ibv_resize_cq(cq, 1000), 0);
	assert_true(cq->cqe >= 1000);
	assert_int_equal(ibv_resize_cq(cq, 0), EINVAL);

	assert_int_equal(fcntl(ch->fd, F_SETFL, O_NONBLOCK), 0);
	assert_int_equal(ibv_get_cq_event(ch, &ev_cq, &ev_ctx), -1);
	assert_int_equal(errno, EAGAIN);
	ibv_ack_cq_events(cq, 0);
	assert_int_equal(ibv_destroy_cq(cq), 0);
	assert_int_equal(ibv_destroy_comp_channel(ch), 0);
}

static void ah_rules(void **state)
{
	struct ibv_port_attr port;
	struct ibv_ah_attr local = { .port_num = 1, .dlid = 1 };
	union ibv_gid gid, v6 = { .raw = { 0xfd, [15] = 1 } }, zero = { 0 };
	int i;

	(void)state;
	errno = 0;
	assert_null(ibv_create_ah(pd, &local)); /* no GRH */
	assert_int_equal(errno, EINVAL);
	assert_int_equal(ibv_query_port(ctx, 1, &port), 0);
	assert_null(ah_to(port.gid_tbl_len, &gid0));
	for (i = 0; i < port.gid_tbl_len; i++) {
		ibv_query_gid(ctx, 1, i, &gid);
		if (!memcmp(&gid, &zero, sizeof(gid)))
			assert_null(ah_to(i, &gid0));
	}
	/* An IPv4 source cannot reach an IPv6 destination. */
	if (gid0.raw[10] == 0xff)
		assert_null(ah_to(0, &v6));
}

static void modify_rules(void **state)
{
	const int mask = rtr_mask(IBV_QPT_RC);
	struct ibv_qp_attr attr, good;
	struct ibv_port_attr port;
	struct end a;

	(void)state;
	assert_int_equal(ibv_query_port(ctx, 1, &port), 0);
	end_init(&a, IBV_QPT_RC, NULL);
	good = rtr_attr(1234);
	assert_int_equal(ibv_modify_qp(a.qp, &good, mask), EINVAL); /* RESET */
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = 2 };
	assert_int_equal(ibv_modify_qp(a.qp, &attr,
				       IBV_QP_STATE | IBV_QP_PORT |
					       IBV_QP_PKEY_INDEX |
					       IBV_QP_ACCESS_FLAGS),
			 EINVAL);
	attr.port_num = 1;
	attr.pkey_index = 1;
	assert_int_equal(ibv_modify_qp(a.qp, &attr,
				       IBV_QP_STATE | IBV_QP_PORT |
					       IBV_QP_PKEY_INDEX |
					       IBV_QP_ACCESS_FLAGS),
			 EINVAL);
	assert_int_equal(to_init(a.qp, 0), 0);

	attr = good;
	attr.ah_attr.is_global = 0;
	assert_int_equal(ibv_modify_qp(a.qp, &attr, mask), EINVAL);
	attr = good;
	attr.ah_attr.grh.sgid_index = (uint8_t)(port.gid_tbl_len - 1);
	assert_int_equal(ibv_modify_qp(a.qp, &attr, mask), EINVAL);
	attr.ah_attr.grh.sgid_index = 255;
	assert_int_equal(ibv_modify_qp(a.qp, &attr, mask), EINVAL);
	attr = good;
	attr.path_mtu = 0;
	assert_int_equal(ibv_modify_qp(a.qp, &attr, mask), EINVAL);
	attr = good;
	assert_int_equal(ibv_modify_qp(a.qp, &attr, mask & ~IBV_QP_AV), EINVAL);
	assert_int_equal(a.qp->state, IBV_QPS_INIT);

	/* 4096 is fine on this host, whatever the interface's MTU. */
	attr = good;
	attr.path_mtu = IBV_MTU_4096;
	assert_int_equal(ibv_modify_qp(a.qp, &attr, mask), 0);
	if (port.active_mtu < IBV_MTU_4096) {
		union ibv_gid far = gid0;

		far.raw[15] ^= 0x55;
		attr.qp_state = IBV_QPS_RESET;
		assert_int_equal(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE), 0);
		assert_int_equal(to_init(a.qp, 0), 0);
		attr = good;
		attr.ah_attr.grh.dgid = far;
		attr.path_mtu = IBV_MTU_4096;
		assert_int_equal(ibv_modify_qp(a.qp, &attr, mask), EINVAL);
		attr.path_mtu = port.active_mtu;
		assert_int_equal(ibv_modify_qp(a.qp, &attr, mask), 0);
	}
	end_fini(&a);
}

static void create_rules(void **state)
{
	struct ibv_device_attr dev;
	struct ibv_qp_init_attr init, good;
	struct ibv_cq *cq;

	(void)state;
	assert_int_equal(ibv_query_device(ctx, &dev), 0);
	cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	good = (struct ibv_qp_init_attr){ .qp_type = IBV_QPT_RC,
					  .send_cq = cq,
					  .recv_cq = cq,
					  .cap = { 1, 1, 1, 1, 0 } };
#define REFUSED(field, value)                                                  \
	do {                                                                   \
		init = good;                                                   \
		init.field = value;                                            \
		assert_null(ibv_create_qp(pd, &init));                         \
	} while (0)
	REFUSED(cap.max_send_wr, (uint32_t)dev.max_qp_wr + 1);
	REFUSED(cap.max_recv_wr, (uint32_t)dev.max_qp_wr + 1);
	REFUSED(cap.max_send_sge, (uint32_t)dev.max_sge + 1);
	REFUSED(cap.max_recv_sge, (uint32_t)dev.max_sge + 1);
	REFUSED(cap.max_inline_data, 1u << 20);
	REFUSED(send_cq, NULL);
	REFUSED(recv_cq, NULL);
	REFUSED(qp_type, IBV_QPT_RAW_PACKET);
	REFUSED(qp_type, (enum ibv_qp_type)77);
	assert_int_equal(ibv_destroy_cq(cq), 0);
}

/* What is posted in a list before a bad one stands. */
static void bad_wr(void **state)
{
	struct ibv_send_wr wr[3] = { 0 }, *bad = NULL;
	struct ibv_recv_wr many = { .num_sge = 33 }, *rbad = NULL;
	struct ibv_sge sge;
	struct ibv_wc wc;
	struct end a, b;
	int i;

	(void)state;
	pair_init(&a, &b, IBV_QPT_RC);
	sge = sge_of(&a, 0, 8);
	for (i = 0; i < 3; i++) {
		wr[i].wr_id = (uint64_t)i;
		wr[i].opcode = IBV_WR_SEND;
		wr[i].send_flags = IBV_SEND_SIGNALED;
		wr[i].sg_list = &sge;
		wr[i].num_sge = i == 1 ? 5 : 1; /* of 4 */
		wr[i].next = i < 2 ? &wr[i + 1] : NULL;
	}
	post_recv(&b, 0, 0, 64);
	assert_int_not_equal(ibv_post_send(a.qp, wr, &bad), 0);
	assert_ptr_equal(bad, &wr[1]);
	wc = wait_wc(a.cq);
	expect_wc(&wc, 0, IBV_WC_SUCCESS);
	assert_int_equal(ibv_poll_cq(a.cq, 1, &wc), 0);
	assert_int_not_equal(ibv_post_recv(b.qp, &many, &rbad), 0);
	assert_ptr_equal(rbad, &many);
	end_fini(&a);
	end_fini(&b);
}

/* What is not there says so, and does not crash. */
static void unsupported(void **state)
{
	struct ibv_counters_init_attr counters = { 0 };
	struct ibv_wq_init_attr wq = { 0 };

	(void)state;
	errno = 0;
	assert_null(ibv_create_counters(ctx, &counters));
	assert_int_equal(errno, EOPNOTSUPP);
	errno = 0;
	assert_null(ibv_create_wq(ctx, &wq));
	assert_int_equal(errno, EOPNOTSUPP);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(errno_is_set),
		TEST(garbled_objects),
		TEST(pd_of_another_device),
		TEST(cq_rules),
		TEST(ah_rules),
		TEST(modify_rules),
		TEST(create_rules),
		TEST(bad_wr),
		TEST(unsupported),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * test_objects.c - the verbs as a program sees them, both ends in one process
 *
 * Linked with libibverbs.so.1 as any program is. Two queue pairs of one device
 * talk to each other over whatever address has GID index 0.
 */
#include "objects/objects.h"
#include "pair.h"

#include <signal.h>
#include <sys/stat.h>

/* Devices */

static void device_attributes(void **state)
{
	struct ibv_device_attr_ex ex;
	struct ibv_device_attr attr;
	struct ibv_port_attr port;
	struct {
		uint8_t bytes[4];
		uint8_t guard;
	} small = { .guard = 0xa5 };

	(void)state;
	assert_int_equal(ibv_query_device(ctx, &attr), 0);
	assert_int_equal(attr.phys_port_cnt, 1);
	assert_true(attr.max_sge >= 1 && attr.max_qp_wr >= 1024);
	assert_int_equal(attr.node_guid, ibv_get_device_guid(ctx->device));
	assert_int_equal(ibv_query_device_ex(ctx, NULL, &ex), 0);
	assert_memory_equal(&ex.orig_attr, &attr, sizeof(attr));
	assert_string_equal(ibv_get_device_name(ctx->device), "softhca0");

	assert_int_equal(ibv_query_port(ctx, 1, &port), 0);
	assert_int_equal(port.state, IBV_PORT_ACTIVE);
	assert_int_equal(port.link_layer, IBV_LINK_LAYER_ETHERNET);
	assert_int_equal(ibv_query_port(ctx, 0, &port), EINVAL);
	assert_int_equal(ibv_query_port(ctx, 2, &port), EINVAL);
	/* A program with an older, shorter struct. */
	assert_int_equal(verbs_get_ctx(ctx)->query_port(
				 ctx, 1, (struct ibv_port_attr *)&small,
				 sizeof(small.bytes)),
			 0);
	assert_int_equal(small.guard, 0xa5);
	assert_true(ctx->num_comp_vectors >= 1);
	assert_true(fcntl(ctx->async_fd, F_GETFL) >= 0);
	assert_true(fcntl(ctx->cmd_fd, F_GETFL) >= 0);
}

static void gid_table(void **state)
{
	struct ibv_gid_entry entries[64], one;
	struct ibv_port_attr port;
	union ibv_gid gid, zero = { 0 };
	int i, full = 0;
	ssize_t n;
	__be16 pkey;

	(void)state;
	assert_int_equal(ibv_query_port(ctx, 1, &port), 0);
	for (i = 0; i < port.gid_tbl_len; i++) {
		assert_int_equal(ibv_query_gid(ctx, 1, i, &gid), 0);
		if (!memcmp(&gid, &zero, sizeof(gid))) {
			assert_int_equal(
				ibv_query_gid_ex(ctx, 1, (uint32_t)i, &one, 0),
				ENODATA);
			continue;
		}
		assert_int_equal(ibv_query_gid_ex(ctx, 1, (uint32_t)i, &one, 0),
				 0);
		assert_memory_equal(&one.gid, &gid, sizeof(gid));
		assert_int_equal(one.gid_type, IBV_GID_TYPE_ROCE_V2);
		assert_true(one.ndev_ifindex);
		full++;
	}
	assert_true(full >= 1);
	n = ibv_query_gid_table(ctx, entries, 64, 0);
	assert_int_equal(n, full);
	assert_int_equal(ibv_query_gid_table(ctx, entries, 0, 0), -EINVAL);

	assert_int_equal(ibv_query_gid(ctx, 1, port.gid_tbl_len, &gid), -1);
	assert_int_equal(ibv_query_gid(ctx, 2, 0, &gid), -1);
	assert_int_equal(ibv_query_gid_ex(ctx, 1, 4096, &one, 0), EINVAL);
	assert_int_equal(ibv_query_pkey(ctx, 1, 0, &pkey), 0);
	assert_int_equal(pkey, 0xffff);
	assert_int_equal(ibv_query_pkey(ctx, 1, 1, &pkey), -1);
	assert_int_equal(ibv_get_pkey_index(ctx, 1, pkey), 0);
}

/* Memory */

static void regions(void **state)
{
	uint8_t *p = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *a, *b;

	(void)state;
	assert_true(p != MAP_FAILED);
	a = ibv_reg_mr(pd, p, 4096, ALL_ACCESS);
	b = ibv_reg_mr(pd, p, 4096, 0);
	assert_non_null(a);
	assert_non_null(b);
	assert_int_not_equal(a->lkey, b->lkey);
	assert_int_not_equal(a->rkey, b->rkey);
	assert_int_equal(ibv_dealloc_pd(pd), EBUSY);

	/* Remote write access takes local write access. */
	errno = 0;
	assert_null(ibv_reg_mr(pd, p, 4096, IBV_ACCESS_REMOTE_WRITE));
	assert_int_equal(errno, EINVAL);
	assert_null(ibv_reg_mr(pd, p, 4096, IBV_ACCESS_REMOTE_ATOMIC));
	/* Hints are taken and ignored. */
	assert_int_equal(ibv_dereg_mr(ibv_reg_mr(
				 pd, p, 4096, 1 | IBV_ACCESS_RELAXED_ORDERING)),
			 0);

	/* Memory that is not there, or not writable. */
	munmap(p + 2 * 4096, 4096);
	assert_null(ibv_reg_mr(pd, p, 3 * 4096, 0));
	assert_int_equal(errno, EFAULT);
	mprotect(p + 4096, 4096, PROT_READ);
	assert_null(ibv_reg_mr(pd, p, 2 * 4096, 1));
	assert_int_equal(errno, EFAULT);
	assert_int_equal(ibv_dereg_mr(ibv_reg_mr(pd, p, 2 * 4096, 0)), 0);

	assert_int_equal(ibv_rereg_mr(a, IBV_REREG_MR_CHANGE_TRANSLATION, NULL,
				      p + 4096, 4096, 0),
			 IBV_REREG_MR_ERR_CMD); /* read-only */
	assert_int_equal(
		ibv_rereg_mr(a, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0),
		0);
	assert_int_equal(ibv_rereg_mr(a, 64, NULL, NULL, 0, 0),
			 IBV_REREG_MR_ERR_INPUT);
	assert_int_equal(ibv_dereg_mr(a), 0);
	assert_int_equal(ibv_dereg_mr(b), 0);
	munmap(p, 2 * 4096);
}

/* A region of no bytes is one, and lets no byte be reached. */
static void empty_region(void **state)
{
	static const unsigned access[] = {
		0, ALL_ACCESS, ALL_ACCESS | IBV_ACCESS_ZERO_BASED,
		ALL_ACCESS | IBV_ACCESS_ON_DEMAND,
	};
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE };
	struct ibv_mr *mr;
	struct end a, b;
	size_t i;

	(void)state;
	pair_init(&a, &b, IBV_QPT_RC);
	for (i = 0; i < sizeof(access) / sizeof(access[0]); i++) {
		mr = ibv_reg_mr(pd, b.buf, 0, access[i]);
		assert_non_null(mr);
		assert_int_equal(mr->length, 0);
		assert_int_equal(ibv_dereg_mr(mr), 0);
	}
	mr = ibv_reg_mr(pd, NULL, 0, ALL_ACCESS);
	assert_non_null(mr);
	assert_int_equal(ibv_dereg_mr(mr), 0);

	mr = ibv_reg_mr(pd, b.buf + 1, 0, ALL_ACCESS);
	assert_non_null(mr);
	wr.wr.rdma.remote_addr = (uintptr_t)mr->addr;
	wr.wr.rdma.rkey = mr->rkey;
	assert_int_equal(try_send(&a, &wr, 0, 0), 0);
	assert_int_equal(wait_wc(a.cq).status, IBV_WC_SUCCESS);
	assert_int_equal(try_send(&a, &wr, 0, 1), 0);
	assert_int_equal(wait_wc(a.cq).status, IBV_WC_REM_ACCESS_ERR);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	end_fini(&a);
	end_fini(&b);
}

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
	assert_int_equal(ibv_rereg_mr(whole.mr, IBV_REREG_MR_CHANGE_PD, p, NULL,
				      0, 0),
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
	assert_int_equal(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL,
				      NULL, 0, 0),
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
#define KIND(name) make_##name, drop_##name, with_##name,                      \
		   sizeof(struct ibv_##name), offsetof(struct ibv_##name, handle)
	static const struct {
		void *(*make)(void);
		int (*drop)(void *object);
		void (*with)(void *object, bool inlined);
		size_t size, handle;
	} kinds[] = { { KIND(pd) }, { KIND(mr) }, { KIND(mw) }, { KIND(cq) },
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

static uint8_t *guarded;
static volatile sig_atomic_t faults;
static pthread_t faulted;

static void unprotect(int sig)
{
	(void)sig;
	faults++;
	faulted = pthread_self();
	mprotect(guarded, BUF, PROT_READ | PROT_WRITE);
}

/*
 * A program that protects its memory to learn of writes learns of a packet's,
 * whatever thread stores it.
 */
static void mr_write_tracking(void **state)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED };
	struct sigaction sa = { .sa_handler = unprotect }, old;
	struct ibv_cq *cq;
	struct end a, b;
	void *context;

	(void)state;
	pair_init(&a, &b, IBV_QPT_RC);
	guarded = b.buf;
	faults = 0;
	assert_int_equal(sigaction(SIGSEGV, &sa, &old), 0);
	assert_int_equal(mprotect(b.buf, BUF, PROT_READ), 0);
	assert_int_equal(ibv_req_notify_cq(a.cq, 0), 0);
	wr.wr.rdma.remote_addr = (uintptr_t)b.buf;
	wr.wr.rdma.rkey = b.mr->rkey;
	memset(a.buf, 0x5a, 64);
	assert_int_equal(try_send(&a, &wr, 0, 64), 0);
	assert_int_equal(ibv_get_cq_event(a.ch, &cq, &context), 0);
	ibv_ack_cq_events(cq, 1);
	assert_int_equal(sigaction(SIGSEGV, &old, NULL), 0);
	wait_wc(a.cq);
	assert_int_equal(faults, 1);
	assert_false(pthread_equal(faulted, pthread_self()));
	assert_memory_equal(a.buf, b.buf, 64);
	end_fini(&a);
	end_fini(&b);
}

/* Completion queues */

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

/* Each way of arming, and what does and does not set it off. */
static void cq_events(void **state)
{
	struct ibv_send_wr plain = { .opcode = IBV_WR_SEND };
	struct ibv_send_wr solicited = { .opcode = IBV_WR_SEND,
					 .send_flags = IBV_SEND_SOLICITED };
	struct ibv_cq *cq;
	struct end a, b;
	void *context;
	int i;

	(void)state;
	pair_init(&a, &b, IBV_QPT_RC);
	for (i = 0; i < 8; i++)
		post_recv(&b, (uint64_t)i, 0, 64);

	/* Not armed: no event. */
	assert_int_equal(try_send(&a, &plain, 0, 8), 0);
	wait_wc(b.cq);
	wait_wc(a.cq);
	assert_false(readable(b.ch->fd, 0));

	/* Armed: the thread delivers it while nobody polls. One shot. */
	assert_int_equal(ibv_req_notify_cq(b.cq, 0), 0);
	assert_int_equal(try_send(&a, &plain, 0, 8), 0);
	assert_true(readable(b.ch->fd, 5000));
	assert_int_equal(ibv_get_cq_event(b.ch, &cq, &context), 0);
	assert_ptr_equal(cq, b.cq);
	assert_ptr_equal(context, &b);
	wait_wc(b.cq);
	wait_wc(a.cq);
	assert_int_equal(try_send(&a, &plain, 0, 8), 0);
	wait_wc(b.cq);
	wait_wc(a.cq);
	assert_false(readable(b.ch->fd, 0));

	/* Solicited only. */
	assert_int_equal(ibv_req_notify_cq(b.cq, 1), 0);
	assert_int_equal(try_send(&a, &plain, 0, 8), 0);
	wait_wc(b.cq);
	wait_wc(a.cq);
	assert_false(readable(b.ch->fd, 0));
	assert_int_equal(try_send(&a, &solicited, 0, 8), 0);
	assert_true(readable(b.ch->fd, 5000));
	wait_wc(a.cq);

	/* Destroying takes the event along that was not fetched; the one that
	 * was has to be acknowledged. */
	ibv_ack_cq_events(b.cq, 1);
	assert_int_equal(ibv_destroy_cq(b.cq), EBUSY);
	assert_int_equal(ibv_destroy_qp(b.qp), 0);
	b.qp = NULL;
	assert_int_equal(ibv_destroy_cq(b.cq), 0);
	assert_false(readable(b.ch->fd, 0));
	b.cq = ibv_create_cq(ctx, 1, NULL, b.ch, 0);
	end_fini(&a);
	end_fini(&b);
}

static _Atomic bool acked;

static void *ack_later(void *arg)
{
	struct timespec ts = { 0, 50000000 };

	nanosleep(&ts, NULL); /* destroying it has begun, mostly */
	acked = true;
	ibv_ack_cq_events(arg, 1);
	return NULL;
}

static void cq_destroy_waits(void **state)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND };
	struct end a, b;
	struct ibv_cq *cq;
	pthread_t thread;
	void *context;

	(void)state;
	pair_init(&a, &b, IBV_QPT_RC);
	post_recv(&b, 1, 0, 64);
	ibv_req_notify_cq(b.cq, 0);
	assert_int_equal(try_send(&a, &wr, 0, 8), 0);
	assert_int_equal(ibv_get_cq_event(b.ch, &cq, &context), 0);
	ibv_destroy_qp(b.qp);
	b.qp = NULL;
	acked = false;
	assert_int_equal(pthread_create(&thread, NULL, ack_later, b.cq), 0);
	assert_int_equal(ibv_destroy_cq(b.cq), 0);
	assert_true(acked);
	pthread_join(thread, NULL);
	b.cq = ibv_create_cq(ctx, 1, NULL, b.ch, 0);
	end_fini(&a);
	end_fini(&b);
}

static void cq_overrun(void **state)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND };
	struct ibv_async_event ev;
	struct ibv_wc wc[8];
	struct end a, b;
	int i;

	(void)state;
	pair_init(&a, &b, IBV_QPT_RC);
	/* A queue with room for one completion for two receives. */
	assert_int_equal(ibv_destroy_qp(b.qp), 0);
	assert_int_equal(ibv_destroy_cq(b.cq), 0);
	b.cq = ibv_create_cq(ctx, 1, NULL, b.ch, 0);
	assert_int_equal(b.cq->cqe, 1);
	b.qp = ibv_create_qp(
		pd, &(struct ibv_qp_init_attr){ .qp_type = IBV_QPT_RC,
						.send_cq = b.cq,
						.recv_cq = b.cq,
						.cap = { 4, 4, 1, 1, 0 } });
	assert_non_null(b.qp);
	assert_int_equal(ibv_modify_qp(a.qp,
				       &(struct ibv_qp_attr){
					       .qp_state = IBV_QPS_RESET },
				       IBV_QP_STATE),
			 0);
	connect_to(a.qp, b.qp->qp_num);
	connect_to(b.qp, a.qp->qp_num);
	post_recv(&b, 1, 0, 64);
	post_recv(&b, 2, 0, 64);
	for (i = 0; i < 2; i++)
		assert_int_equal(try_send(&a, &wr, 0, 8), 0);
	assert_true(readable(ctx->async_fd, 5000));
	assert_int_equal(ibv_get_async_event(ctx, &ev), 0);
	assert_int_equal(ev.event_type, IBV_EVENT_CQ_ERR);
	assert_ptr_equal(ev.element.cq, b.cq);
	ibv_ack_async_event(&ev);
	assert_int_equal(ibv_poll_cq(b.cq, 8, wc), 1);
	expect_wc(&wc[0], 1, IBV_WC_SUCCESS);
	end_fini(&b);
	end_fini(&a);
}

/* Data */

static void rc_data(void **state)
{
	struct ibv_send_wr wr = { .wr_id = 1, .opcode = IBV_WR_SEND_WITH_IMM };
	struct ibv_wc wc;
	struct end a, b;
	uint64_t *word;

	(void)state;
	pair_init(&a, &b, IBV_QPT_RC);
	fill(a.buf, BUF / 2, 1);

	post_recv(&b, 7, 0, 40000);
	wr.imm_data = htobe32(0x12345678);
	assert_int_equal(try_send(&a, &wr, 0, 30000), 0);
	wc = wait_wc(b.cq);
	expect_wc(&wc, 7, IBV_WC_SUCCESS);
	assert_int_equal(wc.opcode, IBV_WC_RECV);
	assert_int_equal(wc.byte_len, 30000);
	assert_int_equal(wc.qp_num, b.qp->qp_num);
	assert_true(wc.wc_flags & IBV_WC_WITH_IMM);
	assert_int_equal(wc.imm_data, htobe32(0x12345678));
	assert_memory_equal(a.buf, b.buf, 30000);
	wc = wait_wc(a.cq);
	expect_wc(&wc, 1, IBV_WC_SUCCESS);
	assert_int_equal(wc.opcode, IBV_WC_SEND);

	/* Inline: the buffer is ours again at once. */
	post_recv(&b, 8, 0, 64);
	memset(a.buf, 'x', 32);
	wr = (struct ibv_send_wr){ .wr_id = 2,
				   .opcode = IBV_WR_SEND,
				   .send_flags = IBV_SEND_INLINE };
	assert_int_equal(try_send(&a, &wr, 0, 32), 0);
	memset(a.buf, 'y', 32);
	wc = wait_wc(b.cq);
	expect_wc(&wc, 8, IBV_WC_SUCCESS);
	assert_int_equal(b.buf[0], 'x');
	wait_wc(a.cq);

	fill(a.buf, BUF / 2, 2);
	wr = (struct ibv_send_wr){ .wr_id = 3, .opcode = IBV_WR_RDMA_WRITE };
	wr.wr.rdma.remote_addr = (uintptr_t)b.buf + 1000;
	wr.wr.rdma.rkey = b.mr->rkey;
	assert_int_equal(try_send(&a, &wr, 5, 20001), 0);
	wc = wait_wc(a.cq);
	expect_wc(&wc, 3, IBV_WC_SUCCESS);
	assert_int_equal(wc.opcode, IBV_WC_RDMA_WRITE);
	assert_memory_equal(a.buf + 5, b.buf + 1000, 20001);

	wr.wr_id = 4;
	wr.opcode = IBV_WR_RDMA_READ;
	assert_int_equal(try_send(&a, &wr, BUF / 2, 20001), 0);
	wc = wait_wc(a.cq);
	expect_wc(&wc, 4, IBV_WC_SUCCESS);
	assert_memory_equal(a.buf + BUF / 2, b.buf + 1000, 20001);

	word = (uint64_t *)(void *)b.buf;
	*word = 40;
	wr = (struct ibv_send_wr){ .wr_id = 5,
				   .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD };
	wr.wr.atomic.remote_addr = (uintptr_t)word;
	wr.wr.atomic.rkey = b.mr->rkey;
	wr.wr.atomic.compare_add = 2;
	assert_int_equal(try_send(&a, &wr, 0, 8), 0);
	wc = wait_wc(a.cq);
	expect_wc(&wc, 5, IBV_WC_SUCCESS);
	assert_int_equal(*(uint64_t *)(void *)a.buf, 40);
	assert_int_equal(*word, 42);
	wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
	wr.wr.atomic.compare_add = 42;
	wr.wr.atomic.swap = 7;
	assert_int_equal(try_send(&a, &wr, 0, 8), 0);
	wait_wc(a.cq);
	assert_int_equal(*word, 7);

	end_fini(&a);
	end_fini(&b);
}

/* A target that only looks at its memory is served by our thread. */
static void write_without_polling(void **state)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE };
	struct end a, b;
	uint64_t end;
	int i;

	(void)state;
	pair_init(&a, &b, IBV_QPT_RC);
	wr.wr.rdma.remote_addr = (uintptr_t)b.buf;
	wr.wr.rdma.rkey = b.mr->rkey;
	for (i = 1; i < 200; i++) {
		a.buf[i] = (uint8_t)i;
		assert_int_equal(try_send(&a, &wr, (size_t)i, 1), 0);
		end = now_ns() + 10 * SECOND;
		while (*(volatile uint8_t *)b.buf != (uint8_t)i)
			assert_true(now_ns() < end);
		if (i % 16 == 0 || i == 199) {
			struct ibv_wc wc[16];
			int n = 0;

			/* Poll for long enough to take the socket over. */
			end = now_ns() + 1000000;
			while (now_ns() < end)
				n += ibv_poll_cq(a.cq, 16 - n, wc);
		}
	}
	end_fini(&a);
	end_fini(&b);
}

static void uc_data(void **state)
{
	struct ibv_send_wr wr = { .wr_id = 3,
				  .opcode = IBV_WR_RDMA_WRITE_WITH_IMM };
	struct ibv_wc wc;
	struct end a, b;

	(void)state;
	pair_init(&a, &b, IBV_QPT_UC);
	fill(a.buf, BUF, 5);
	post_recv(&b, 9, 0, 0);
	wr.imm_data = 77;
	wr.wr.rdma.remote_addr = (uintptr_t)b.buf;
	wr.wr.rdma.rkey = b.mr->rkey;
	assert_int_equal(try_send(&a, &wr, 0, 10000), 0);
	wc = wait_wc(b.cq);
	expect_wc(&wc, 9, IBV_WC_SUCCESS);
	assert_int_equal(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
	assert_int_equal(wc.byte_len, 10000);
	assert_memory_equal(a.buf, b.buf, 10000);
	wr = (struct ibv_send_wr){ .opcode = IBV_WR_RDMA_READ };
	assert_int_equal(try_send(&a, &wr, 0, 8), 0);
	wc = wait_wc(a.cq);
	expect_wc(&wc, 3, IBV_WC_SUCCESS);
	assert_int_equal(wait_wc(a.cq).status, IBV_WC_LOC_QP_OP_ERR);
	end_fini(&a);
	end_fini(&b);
}

static struct ibv_ah *ah_to(int sgid_index, const union ibv_gid *dgid)
{
	struct ibv_ah_attr attr = { .is_global = 1,
				    .port_num = 1,
				    .grh = { .dgid = *dgid,
					     .sgid_index = (uint8_t)sgid_index,
					     .hop_limit = 1 } };

	return ibv_create_ah(pd, &attr);
}

/* Over each of our addresses, and back by what the receiver learnt. */
static void ud_data(void **state)
{
	struct ibv_port_attr port;
	union ibv_gid gid, zero = { 0 };
	struct end a, b;
	int i;

	(void)state;
	assert_int_equal(ibv_query_port(ctx, 1, &port), 0);
	end_init(&a, IBV_QPT_UD, NULL);
	end_init(&b, IBV_QPT_UD, NULL);
	connect_to(a.qp, 0);
	connect_to(b.qp, 0);
	for (i = 0; i < port.gid_tbl_len; i++) {
		struct ibv_send_wr wr = { .wr_id = 1, .opcode = IBV_WR_SEND };
		struct ibv_ah *ah, *back;
		struct ibv_wc wc;

		assert_int_equal(ibv_query_gid(ctx, 1, i, &gid), 0);
		if (!memcmp(&gid, &zero, sizeof(gid)))
			continue;
		ah = ah_to(i, &gid);
		assert_non_null(ah);
		fill(a.buf, 500, (unsigned)i);
		post_recv(&b, 2, 0, 600);
		wr.wr.ud.ah = ah;
		wr.wr.ud.remote_qpn = b.qp->qp_num;
		wr.wr.ud.remote_qkey = 0x11111111;
		assert_int_equal(try_send(&a, &wr, 0, 500), 0);
		wc = wait_wc(a.cq);
		expect_wc(&wc, 1, IBV_WC_SUCCESS);
		wc = wait_wc(b.cq);
		expect_wc(&wc, 2, IBV_WC_SUCCESS);
		assert_int_equal(wc.byte_len, 540);
		assert_true(wc.wc_flags & IBV_WC_GRH);
		assert_int_equal(wc.src_qp, a.qp->qp_num);
		assert_memory_equal(a.buf, b.buf + 40, 500);

		back = ibv_create_ah_from_wc(pd, &wc, (struct ibv_grh *)b.buf,
					     1);
		assert_non_null(back);
		post_recv(&a, 3, 1000, 200);
		wr.wr.ud.ah = back;
		wr.wr.ud.remote_qpn = wc.src_qp;
		assert_int_equal(try_send(&b, &wr, 40, 100), 0);
		wait_wc(b.cq);
		wc = wait_wc(a.cq);
		expect_wc(&wc, 3, IBV_WC_SUCCESS);
		assert_memory_equal(a.buf + 1040, a.buf, 100);
		assert_int_equal(ibv_dealloc_pd(pd), EBUSY);
		assert_int_equal(ibv_destroy_ah(back), 0);
		assert_int_equal(ibv_destroy_ah(ah), 0);
	}
	end_fini(&a);
	end_fini(&b);
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

static void multicast(void **state)
{
	union ibv_gid group = { .raw = { [10] = 0xff, 0xff, 239, 7, 7, 7 } };
	struct ibv_send_wr wr = { .wr_id = 1, .opcode = IBV_WR_SEND };
	struct end a, b, c;
	struct ibv_ah *ah;
	struct ibv_wc wc;

	(void)state;
	if (gid0.raw[10] != 0xff) {
		skip();
		return;
	}
	end_init(&a, IBV_QPT_UD, NULL);
	end_init(&b, IBV_QPT_UD, NULL);
	end_init(&c, IBV_QPT_UD, NULL);
	connect_to(a.qp, 0);
	connect_to(b.qp, 0);
	connect_to(c.qp, 0);
	assert_int_equal(ibv_attach_mcast(b.qp, &gid0, 0), EINVAL);
	assert_int_equal(ibv_attach_mcast(b.qp, &group, 0), 0);
	assert_int_equal(ibv_attach_mcast(b.qp, &group, 0), 0); /* again */
	assert_int_equal(ibv_attach_mcast(c.qp, &group, 0), 0);
	ah = ah_to(0, &group);
	assert_non_null(ah);
	fill(a.buf, 100, 3);
	post_recv(&b, 2, 0, 200);
	post_recv(&b, 3, 200, 200);
	post_recv(&c, 4, 0, 200);
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = 0xffffff;
	wr.wr.ud.remote_qkey = 0x11111111;
	assert_int_equal(try_send(&a, &wr, 0, 100), 0);
	wait_wc(a.cq);
	wc = wait_wc(b.cq);
	expect_wc(&wc, 2, IBV_WC_SUCCESS);
	assert_memory_equal(b.buf + 40, a.buf, 100);
	wc = wait_wc(c.cq);
	expect_wc(&wc, 4, IBV_WC_SUCCESS);
	assert_int_equal(ibv_poll_cq(b.cq, 1, &wc), 0); /* one copy */

	assert_int_equal(ibv_destroy_qp(b.qp), EBUSY);
	assert_int_equal(ibv_detach_mcast(b.qp, &group, 0), 0);
	assert_int_equal(ibv_detach_mcast(b.qp, &group, 0), EINVAL);
	assert_int_equal(try_send(&a, &wr, 0, 100), 0);
	wait_wc(a.cq);
	assert_int_equal(ibv_detach_mcast(c.qp, &group, 0), 0);
	ibv_destroy_ah(ah);
	end_fini(&a);
	end_fini(&b);
	end_fini(&c);
}

/* What goes wrong */

static void remote_access_error(void **state)
{
	struct ibv_send_wr wr = { .wr_id = 1, .opcode = IBV_WR_RDMA_WRITE };
	struct ibv_send_wr next = { .wr_id = 2, .opcode = IBV_WR_SEND };
	struct ibv_qp_init_attr init;
	struct ibv_async_event ev;
	struct ibv_qp_attr attr;
	struct ibv_wc wc;
	struct end a, b;

	(void)state;
	pair_init(&a, &b, IBV_QPT_RC);
	post_recv(&b, 9, 0, 64);
	wr.wr.rdma.remote_addr = (uintptr_t)b.buf;
	wr.wr.rdma.rkey = b.mr->rkey ^ 1;
	assert_int_equal(try_send(&a, &wr, 0, 8), 0);
	wc = wait_wc(a.cq);
	expect_wc(&wc, 1, IBV_WC_REM_ACCESS_ERR);
	/* Posting to a QP in error is allowed, and flushed. */
	assert_int_equal(try_send(&a, &next, 0, 8), 0);
	wc = wait_wc(a.cq);
	expect_wc(&wc, 2, IBV_WC_WR_FLUSH_ERR);
	assert_int_equal(ibv_query_qp(a.qp, &attr, IBV_QP_STATE, &init), 0);
	assert_int_equal(attr.qp_state, IBV_QPS_ERR);
	assert_int_equal(a.qp->state, IBV_QPS_ERR);
	assert_ptr_equal(init.send_cq, a.cq);
	assert_true(init.cap.max_send_wr >= DEPTH);

	assert_true(readable(ctx->async_fd, 5000));
	assert_int_equal(ibv_get_async_event(ctx, &ev), 0);
	assert_int_equal(ev.event_type, IBV_EVENT_QP_ACCESS_ERR);
	assert_ptr_equal(ev.element.qp, b.qp);
	wc = wait_wc(b.cq);
	expect_wc(&wc, 9, IBV_WC_WR_FLUSH_ERR);
	ibv_ack_async_event(&ev);
	end_fini(&a);
	end_fini(&b);
}

/* A key that was, the moment its region is gone. */
static void stale_key(void **state)
{
	struct ibv_send_wr wr = { .wr_id = 1, .opcode = IBV_WR_RDMA_READ };
	struct ibv_wc wc;
	struct end a, b;
	struct ibv_mr *mr;

	(void)state;
	pair_init(&a, &b, IBV_QPT_RC);
	mr = ibv_reg_mr(pd, b.buf, 4096, ALL_ACCESS);
	wr.wr.rdma.remote_addr = (uintptr_t)b.buf;
	wr.wr.rdma.rkey = mr->rkey;
	assert_int_equal(ibv_dereg_mr(mr), 0);
	assert_int_equal(try_send(&a, &wr, 0, 8), 0);
	wc = wait_wc(a.cq);
	expect_wc(&wc, 1, IBV_WC_REM_ACCESS_ERR);
	end_fini(&b); /* with an event that nobody fetches */
	end_fini(&a);
	assert_false(readable(ctx->async_fd, 0));
}

static void no_peer(void **state)
{
	struct ibv_send_wr wr = { .wr_id = 1, .opcode = IBV_WR_SEND };
	struct ibv_qp_attr attr;
	struct ibv_wc wc;
	struct end a;

	(void)state;
	end_init(&a, IBV_QPT_RC, NULL);
	attr = rtr_attr(a.qp->qp_num + 1);
	assert_int_equal(to_init(a.qp, 0), 0);
	assert_int_equal(ibv_modify_qp(a.qp, &attr, rtr_mask(IBV_QPT_RC)), 0);
	assert_int_equal(to_rts(a.qp, 1), 0);
	assert_int_equal(try_send(&a, &wr, 0, 8), 0);
	wc = wait_wc(a.cq);
	expect_wc(&wc, 1, IBV_WC_RETRY_EXC_ERR);
	end_fini(&a);
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

/* Numbers are unique, and come back late. */
static void many_qps(void **state)
{
	enum { N = 5000 };
	static struct ibv_qp *qp[N];
	static uint8_t seen[1 << 21];
	struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC,
					 .send_cq = cq,
					 .recv_cq = cq,
					 .cap = { 1, 1, 1, 1, 0 } };
	uint32_t last = 0;
	int i;

	(void)state;
	for (i = 0; i < N; i++) {
		qp[i] = ibv_create_qp(pd, &init);
		assert_non_null(qp[i]);
		assert_true(qp[i]->qp_num > 1 && qp[i]->qp_num < 0xffffff);
		assert_false(seen[qp[i]->qp_num / 8] >> qp[i]->qp_num % 8 & 1);
		seen[qp[i]->qp_num / 8] |= (uint8_t)(1 << qp[i]->qp_num % 8);
	}
	for (i = 0; i < N; i++)
		assert_int_equal(ibv_destroy_qp(qp[i]), 0);
	for (i = 0; i < 1000; i++) {
		qp[0] = ibv_create_qp(pd, &init);
		assert_non_null(qp[0]);
		assert_int_not_equal(qp[0]->qp_num, last);
		last = qp[0]->qp_num;
		assert_int_equal(ibv_destroy_qp(qp[0]), 0);
	}
	assert_int_equal(ibv_destroy_cq(cq), 0);
}

static int count_fds(void)
{
	char name[32];
	int n = 0;

	/* Opening none: TSan does not see when the library closes one. */
	for (int fd = 0; fd < 1 << 16; fd++) {
		snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
		n += !access(name, F_OK);
	}
	return n;
}

/*
 * What is left of connections that are gone keeps their socket, for some
 * seconds; so do more of them than are remembered.
 */
static void gone_connections_let_go(void **state)
{
	uint64_t end = now_ns() + 30 * SECOND;
	struct end a, b;
	int i, fds = 0;

	(void)state;
	end_init(&a, IBV_QPT_RC, NULL);
	end_init(&b, IBV_QPT_RC, NULL);
	for (i = 0; i < 300; i++) {
		struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE };
		struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC,
						 .cap = { 1, 1, 1, 1, 0 } };
		struct ibv_wc wc;

		if (i) {
			init.send_cq = init.recv_cq = a.cq;
			a.qp = ibv_create_qp(pd, &init);
			init.send_cq = init.recv_cq = b.cq;
			b.qp = ibv_create_qp(pd, &init);
			assert_true(a.qp && b.qp);
		}
		connect_to(a.qp, b.qp->qp_num);
		connect_to(b.qp, a.qp->qp_num);
		wr.wr.rdma.remote_addr = (uintptr_t)b.buf;
		wr.wr.rdma.rkey = b.mr->rkey;
		assert_int_equal(try_send(&a, &wr, 0, 8), 0);
		wc = wait_wc(a.cq);
		expect_wc(&wc, 0, IBV_WC_SUCCESS);
		if (!i)
			fds = count_fds();
		assert_int_equal(ibv_destroy_qp(a.qp), 0);
		assert_int_equal(ibv_destroy_qp(b.qp), 0);
	}
	for (; count_fds() >= fds; usleep(10000))
		assert_true(now_ns() < end);
	a.qp = b.qp = NULL;
	end_fini(&a);
	end_fini(&b);
}

/* Shared receive queues */

static void srq(void **state)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 16,
						    .max_sge = 1 } };
	struct ibv_send_wr wr = { .wr_id = 1, .opcode = IBV_WR_SEND };
	struct ibv_srq_attr attr = { .srq_limit = 3 };
	struct ibv_recv_wr rwr = { 0 }, *bad;
	struct ibv_async_event ev;
	struct ibv_sge sge;
	struct ibv_srq *q;
	struct ibv_wc wc;
	struct end a, b;
	int i;

	(void)state;
	init.attr.max_wr = 0;
	assert_null(ibv_create_srq(pd, &init));
	init.attr.max_wr = 1u << 30;
	assert_null(ibv_create_srq(pd, &init));
	init.attr.max_wr = 16;
	q = ibv_create_srq(pd, &init);
	assert_non_null(q);
	end_init(&a, IBV_QPT_RC, NULL);
	end_init(&b, IBV_QPT_RC, q);
	connect_to(a.qp, b.qp->qp_num);
	connect_to(b.qp, a.qp->qp_num);
	sge = sge_of(&b, 0, 100);
	rwr.sg_list = &sge;
	rwr.num_sge = 1;
	for (i = 0; i < 4; i++) {
		rwr.wr_id = 100 + (uint64_t)i;
		assert_int_equal(ibv_post_srq_recv(q, &rwr, &bad), 0);
	}
	/* A QP with an SRQ has no receive queue of its own. */
	assert_int_not_equal(ibv_post_recv(b.qp, &rwr, &bad), 0);
	assert_int_equal(ibv_modify_srq(q, &attr, IBV_SRQ_LIMIT), 0);
	assert_int_equal(try_send(&a, &wr, 0, 8), 0);
	wc = wait_wc(b.cq);
	expect_wc(&wc, 100, IBV_WC_SUCCESS);
	wait_wc(a.cq);
	assert_false(readable(ctx->async_fd, 0)); /* 3 left: not below */
	assert_int_equal(try_send(&a, &wr, 0, 8), 0);
	wait_wc(b.cq);
	wait_wc(a.cq);
	assert_true(readable(ctx->async_fd, 5000));
	assert_int_equal(ibv_get_async_event(ctx, &ev), 0);
	assert_int_equal(ev.event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
	assert_ptr_equal(ev.element.srq, q);
	ibv_ack_async_event(&ev);
	assert_int_equal(ibv_query_srq(q, &attr), 0);
	assert_int_equal(attr.srq_limit, 0);
	assert_int_equal(try_send(&a, &wr, 0, 8), 0);
	wait_wc(b.cq);
	wait_wc(a.cq);
	assert_false(readable(ctx->async_fd, 0)); /* once per arming */

	attr.max_wr = 64;
	assert_int_equal(ibv_modify_srq(q, &attr, IBV_SRQ_MAX_WR), 0);
	assert_int_equal(ibv_query_srq(q, &attr), 0);
	assert_true(attr.max_wr >= 64);
	attr.max_wr = 1u << 30;
	assert_int_equal(ibv_modify_srq(q, &attr, IBV_SRQ_MAX_WR), EINVAL);
	attr.srq_limit = 1u << 30;
	assert_int_equal(ibv_modify_srq(q, &attr, IBV_SRQ_LIMIT), EINVAL);

	assert_int_equal(ibv_destroy_srq(q), EBUSY);
	end_fini(&a);
	end_fini(&b);
	assert_int_equal(ibv_destroy_srq(q), 0);
}

/* Extended interfaces */

static void extended(void **state)
{
	struct ibv_cq_init_attr_ex cq_attr = {
		.cqe = 64,
		.wc_flags = IBV_WC_STANDARD_FLAGS |
			    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP,
	};
	struct ibv_qp_init_attr_ex init = {
		.qp_type = IBV_QPT_RC,
		.comp_mask =
			IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.cap = { 16, 16, 4, 4, 64 },
		.send_ops_flags = IBV_QP_EX_WITH_SEND |
				  IBV_QP_EX_WITH_SEND_WITH_IMM |
				  IBV_QP_EX_WITH_RDMA_WRITE,
	};
	struct ibv_values_ex values = { .comp_mask =
						IBV_VALUES_MASK_RAW_CLOCK };
	struct ibv_poll_cq_attr poll_attr = { 0 };
	struct ibv_qp_ex *ex;
	struct ibv_cq_ex *cq;
	struct end a, b;
	struct ibv_wc wc;
	uint64_t end, ts;
	char text[] = "inline";
	int i;

	(void)state;
	end_init(&a, IBV_QPT_RC, NULL);
	end_init(&b, IBV_QPT_RC, NULL);
	assert_null(ibv_qp_to_qp_ex(a.qp));
	assert_int_equal(ibv_destroy_qp(a.qp), 0);
	cq_attr.wc_flags |= IBV_WC_EX_WITH_CVLAN;
	assert_null(ibv_create_cq_ex(ctx, &cq_attr));
	assert_int_equal(errno, EOPNOTSUPP);
	cq_attr.wc_flags &= ~(uint64_t)IBV_WC_EX_WITH_CVLAN;
	cq = ibv_create_cq_ex(ctx, &cq_attr);
	assert_non_null(cq);
	init.send_cq = init.recv_cq = ibv_cq_ex_to_cq(cq);
	init.send_ops_flags |= IBV_QP_EX_WITH_TSO;
	assert_null(ibv_create_qp_ex(ctx, &init));
	assert_int_equal(errno, EOPNOTSUPP);
	init.send_ops_flags &= ~(uint64_t)IBV_QP_EX_WITH_TSO;
	a.qp = ibv_create_qp_ex(ctx, &init);
	assert_non_null(a.qp);
	ex = ibv_qp_to_qp_ex(a.qp);
	assert_non_null(ex);
	connect_to(a.qp, b.qp->qp_num);
	connect_to(b.qp, a.qp->qp_num);
	assert_int_equal(ibv_start_poll(cq, &poll_attr), ENOENT);

	for (i = 0; i < 3; i++)
		post_recv(&b, (uint64_t)i, 64 * (size_t)i, 64);
	ibv_wr_start(ex);
	ex->wr_id = 1;
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(ex);
	ibv_wr_set_inline_data(ex, text, sizeof(text));
	memset(text, 0, sizeof(text));
	ex->wr_id = 2;
	ibv_wr_rdma_write(ex, b.mr->rkey, (uintptr_t)b.buf + 4096);
	ibv_wr_set_sge(ex, a.mr->lkey, (uintptr_t)a.buf, 3000);
	ex->wr_id = 3;
	ibv_wr_send_imm(ex, htobe32(99));
	ibv_wr_set_sge(ex, a.mr->lkey, (uintptr_t)a.buf, 10);
	fill(a.buf, 3000, 9);
	assert_int_equal(ibv_wr_complete(ex), 0);
	wc = wait_wc(b.cq);
	assert_int_equal(wc.byte_len, 7);
	assert_string_equal((char *)b.buf, "inline");
	wc = wait_wc(b.cq);
	assert_int_equal(wc.imm_data, htobe32(99));

	/* Iterate, posting from within. */
	end = now_ns() + 5 * SECOND;
	ts = 0;
	for (i = 1; i <= 4;) {
		if (ibv_start_poll(cq, &poll_attr)) {
			assert_true(now_ns() < end);
			continue;
		}
		do {
			assert_int_equal(cq->status, IBV_WC_SUCCESS);
			assert_int_equal(cq->wr_id, i);
			assert_int_equal(ibv_wc_read_opcode(cq),
					 i == 2 ? IBV_WC_RDMA_WRITE
						: IBV_WC_SEND);
			assert_int_equal(ibv_wc_read_qp_num(cq), a.qp->qp_num);
			assert_true(ibv_wc_read_completion_ts(cq) >= ts);
			ts = ibv_wc_read_completion_ts(cq);
			if (i == 3) {
				ibv_wr_start(ex);
				ex->wr_id = 4;
				ibv_wr_send(ex);
				ibv_wr_set_sge(ex, a.mr->lkey, (uintptr_t)a.buf,
					       10);
				assert_int_equal(ibv_wr_complete(ex), 0);
			}
			i++;
		} while (!ibv_next_poll(cq));
		ibv_end_poll(cq);
	}
	assert_memory_equal(a.buf, b.buf + 4096, 3000);
	assert_int_equal(ibv_query_rt_values_ex(ctx, &values), 0);
	assert_true((uint64_t)values.raw_clock.tv_nsec >= ts);

	/* Given up, nothing is posted; an error while building, neither. */
	ibv_wr_start(ex);
	ibv_wr_send(ex);
	ibv_wr_set_sge(ex, a.mr->lkey, (uintptr_t)a.buf, 10);
	ibv_wr_abort(ex);
	ibv_wr_start(ex);
	ibv_wr_set_sge(ex, a.mr->lkey, (uintptr_t)a.buf, 10);
	assert_int_equal(ibv_wr_complete(ex), EINVAL);
	assert_int_equal(ibv_start_poll(cq, &poll_attr), ENOENT);

	assert_int_equal(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), EBUSY);
	assert_int_equal(ibv_destroy_qp(a.qp), 0);
	a.qp = NULL;
	assert_int_equal(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
	end_fini(&a);
	end_fini(&b);
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

/* Nothing of a QP that is gone stays in a CQ that is not. */
static void cq_cleaned(void **state)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND };
	struct ibv_wc wc;
	struct end a, b;

	(void)state;
	pair_init(&a, &b, IBV_QPT_RC);
	post_recv(&b, 0, 0, 64);
	assert_int_equal(try_send(&a, &wr, 0, 8), 0);
	wait_wc(b.cq);
	post_recv(&b, 0, 0, 64);
	assert_int_equal(
		ibv_modify_qp(b.qp,
			      &(struct ibv_qp_attr){ .qp_state = IBV_QPS_ERR },
			      IBV_QP_STATE),
		0);
	assert_int_equal(ibv_destroy_qp(b.qp), 0);
	b.qp = NULL;
	assert_int_equal(ibv_poll_cq(b.cq, 1, &wc), 0);
	end_fini(&a);
	end_fini(&b);
}

/* Threads */

struct worker {
	struct end a, b;
	pthread_t thread;
	unsigned rounds;
};

static void *work(void *arg)
{
	struct worker *w = arg;
	uint64_t end = now_ns() + 20 * SECOND;
	unsigned i;

	for (i = 0; i < 300; i++) {
		struct ibv_send_wr wr = { .wr_id = i, .opcode = IBV_WR_SEND };
		struct ibv_sge sge = sge_of(&w->a, 0, 3000);
		struct ibv_send_wr *bad;
		struct ibv_recv_wr rwr = { .wr_id = i, .num_sge = 1 }, *rbad;
		struct ibv_sge rsge = sge_of(&w->b, 0, 4000);
		struct ibv_wc wc;
		int got = 0;

		rwr.sg_list = &rsge;
		wr.sg_list = &sge;
		wr.num_sge = 1;
		wr.send_flags = IBV_SEND_SIGNALED;
		fill(w->a.buf, 3000, i);
		if (ibv_post_recv(w->b.qp, &rwr, &rbad) ||
		    ibv_post_send(w->a.qp, &wr, &bad))
			return NULL;
		while (got < 2) {
			struct ibv_cq *cq = got ? w->a.cq : w->b.cq;
			int n = ibv_poll_cq(cq, 1, &wc);

			if (n < 0 || (n && wc.status) || now_ns() > end)
				return NULL;
			got += n;
		}
		if (memcmp(w->a.buf, w->b.buf, 3000))
			return NULL;
		w->rounds++;
	}
	return NULL;
}

static void threads(void **state)
{
	struct worker w[4] = { 0 };
	int i;

	(void)state;
	for (i = 0; i < 4; i++)
		pair_init(&w[i].a, &w[i].b, IBV_QPT_RC);
	for (i = 0; i < 4; i++)
		assert_int_equal(
			pthread_create(&w[i].thread, NULL, work, &w[i]), 0);
	for (i = 0; i < 4; i++)
		pthread_join(w[i].thread, NULL);
	for (i = 0; i < 4; i++) {
		assert_int_equal(w[i].rounds, 300);
		end_fini(&w[i].a);
		end_fini(&w[i].b);
	}
}

/*
 * Queue pairs and regions go while peers send to them and others poll: nothing
 * may be touched afterwards, and nobody else may notice.
 */
static void *fire(void *arg)
{
	struct worker *w = arg;
	uint64_t end = now_ns() + 20 * SECOND;

	for (unsigned i = 0; i < 60 && now_ns() < end; i++) {
		struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE };
		struct ibv_wc wc[4];
		int k, n;

		pair_init(&w->a, &w->b, IBV_QPT_RC);
		wr.wr.rdma.remote_addr = (uintptr_t)w->b.buf;
		wr.wr.rdma.rkey = w->b.mr->rkey;
		for (k = 0; k < 8; k++)
			if (try_send(&w->a, &wr, 0, 20000))
				return NULL;
		for (k = 0; k < (int)(i % 8); k++) {
			n = ibv_poll_cq(w->a.cq, 4, wc);
			if (n < 0 || (n && wc[0].status))
				return NULL;
		}
		/* Some go with packets to them in flight, some regions too. */
		if (i & 1)
			end_fini(&w->b);
		end_fini(&w->a);
		if (!(i & 1))
			end_fini(&w->b);
		w->rounds++;
	}
	return NULL;
}

static void destroyed_under_fire(void **state)
{
	struct worker w[3] = { 0 };
	int i;

	(void)state;
	for (i = 0; i < 3; i++)
		assert_int_equal(
			pthread_create(&w[i].thread, NULL, fire, &w[i]), 0);
	for (i = 0; i < 3; i++)
		pthread_join(w[i].thread, NULL);
	for (i = 0; i < 3; i++)
		assert_int_equal(w[i].rounds, 60);
}

/*
 * In a child the parent's objects are dead and stay untouched; the child can
 * have its own.
 */
static void forked(void **state)
{
	struct ibv_cq_init_attr_ex ex_attr = { .cqe = 8 };
	struct ibv_send_wr wr = { .wr_id = 1, .opcode = IBV_WR_SEND };
	struct ibv_poll_cq_attr poll_attr = { 0 };
	struct ibv_cq_ex *ex;
	struct ibv_wc wc;
	struct end a, b;
	int status;
	pid_t pid;

	(void)state;
#ifdef __SANITIZE_THREAD__
	skip(); /* it forbids threads in a child of threads */
#endif
	pair_init(&a, &b, IBV_QPT_RC);
	ex = ibv_create_cq_ex(ctx, &ex_attr);
	assert_non_null(ex);
	/* A completion lies there, and is the parent's. */
	post_recv(&b, 4, 0, 64);
	assert_int_equal(ibv_req_notify_cq(a.cq, 0), 0);
	assert_int_equal(try_send(&a, &wr, 0, 8), 0);
	assert_true(readable(a.ch->fd, 10000));
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		struct ibv_context *parents = ctx;
		struct ibv_async_event ev;
		struct ibv_cq *cq;
		void *arg;

		/* Each says so, and none waits for what never comes. */
		alarm(20);
		if (!ibv_get_cq_event(a.ch, &cq, &arg) || errno != EIO ||
		    !ibv_get_async_event(ctx, &ev) || errno != EIO ||
		    ibv_req_notify_cq(a.cq, 0) != EIO ||
		    ibv_resize_cq(a.cq, 10) != EIO ||
		    ibv_destroy_cq(a.cq) != EIO ||
		    ibv_reg_mr(pd, a.buf, 8, 0) || errno != EIO ||
		    ibv_dealloc_pd(pd) != EIO)
			_exit(5);
		if (ibv_poll_cq(a.cq, 1, &wc) >= 0 ||
		    ibv_start_poll(ex, &poll_attr) != EIO ||
		    !try_send(&a, &wr, 0, 8) || !ibv_destroy_qp(a.qp) ||
		    !ibv_dereg_mr(a.mr) || ibv_alloc_pd(ctx) ||
		    !ibv_close_device(ctx))
			_exit(1);
		ctx = open_first();
		if (!ctx || ctx == parents)
			_exit(2);
		pd = ibv_alloc_pd(ctx);
		pair_init(&a, &b, IBV_QPT_RC);
		post_recv(&b, 5, 0, 64);
		if (try_send(&a, &wr, 0, 8))
			_exit(3);
		wc = wait_wc(b.cq);
		if (wc.status || wc.wr_id != 5)
			_exit(4);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	wc = wait_wc(a.cq);
	expect_wc(&wc, 1, IBV_WC_SUCCESS);
	wc = wait_wc(b.cq);
	expect_wc(&wc, 4, IBV_WC_SUCCESS);
	post_recv(&b, 5, 0, 64);
	assert_int_equal(try_send(&a, &wr, 0, 8), 0);
	wc = wait_wc(b.cq);
	expect_wc(&wc, 5, IBV_WC_SUCCESS);
	assert_int_equal(ibv_destroy_cq(ibv_cq_ex_to_cq(ex)), 0);
	end_fini(&a);
	end_fini(&b);
}

/* As many QPs in a group, and groups, as the device announces; no more. */
static void multicast_limits(void **state)
{
	union ibv_gid group = { .raw = { [10] = 0xff, 0xff, 239, 7, 7, 8 } };
	struct ibv_device_attr attr;
	struct ibv_qp *qp[256];
	struct ibv_cq *cq = ibv_create_cq(ctx, 8, NULL, NULL, 0);
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_UD,
					 .send_cq = cq,
					 .recv_cq = cq,
					 .cap = { 1, 1, 1, 1, 0 } };
	int i, max, groups;

	(void)state;
	if (gid0.raw[10] != 0xff) {
		skip();
		return;
	}
	assert_int_equal(ibv_query_device(ctx, &attr), 0);
	max = attr.max_mcast_qp_attach;
	groups = attr.max_mcast_grp;
	assert_in_range(max, 1, 255);
	assert_int_equal(attr.max_total_mcast_qp_attach, max * groups);
	for (i = 0; i <= max; i++) {
		qp[i] = ibv_create_qp(pd, &init);
		assert_non_null(qp[i]);
		assert_int_equal(to_init(qp[i], 0), 0);
		assert_int_equal(ibv_attach_mcast(qp[i], &group, 0),
				 i < max ? 0 : ENOMEM);
	}
	/* Another may when one goes. */
	assert_int_equal(ibv_detach_mcast(qp[0], &group, 0), 0);
	assert_int_equal(ibv_detach_mcast(qp[0], &group, 0), EINVAL);
	assert_int_equal(ibv_attach_mcast(qp[max], &group, 0), 0);
	assert_int_equal(ibv_destroy_qp(qp[max]), EBUSY);
	for (i = 1; i <= max; i++)
		assert_int_equal(ibv_detach_mcast(qp[i], &group, 0), 0);
	for (i = 0; i <= groups; i++) {
		group.raw[14] = (uint8_t)(i / 256);
		group.raw[15] = (uint8_t)i;
		assert_int_equal(ibv_attach_mcast(qp[0], &group, 0),
				 i < groups ? 0 : ENOMEM);
	}
	for (i = 0; i < groups; i++) {
		group.raw[14] = (uint8_t)(i / 256);
		group.raw[15] = (uint8_t)i;
		assert_int_equal(ibv_detach_mcast(qp[0], &group, 0), 0);
	}
	for (i = 0; i <= max; i++)
		assert_int_equal(ibv_destroy_qp(qp[i]), 0);
	assert_int_equal(ibv_destroy_cq(cq), 0);
}

/* Rates (IBTA 9.11.1), there and back; words for every code, and for none. */
static void texts(void **state)
{
	static const struct {
		enum ibv_rate rate;
		int mult, mbps;
	} rates[] = {
		{ IBV_RATE_2_5_GBPS, 1, 2500 },
		{ IBV_RATE_5_GBPS, 2, 5000 },
		{ IBV_RATE_10_GBPS, 4, 10000 },
		{ IBV_RATE_20_GBPS, 8, 20000 },
		{ IBV_RATE_30_GBPS, 12, 30000 },
		{ IBV_RATE_40_GBPS, 16, 40000 },
		{ IBV_RATE_60_GBPS, 24, 60000 },
		{ IBV_RATE_80_GBPS, 32, 80000 },
		{ IBV_RATE_120_GBPS, 48, 120000 },
		{ IBV_RATE_100_GBPS, 40, 103125 },
		{ IBV_RATE_200_GBPS, 80, 206250 },
		{ IBV_RATE_25_GBPS, 10, 25781 },
	};
	size_t i;
	int k;

	(void)state;
	for (i = 0; i < sizeof(rates) / sizeof(rates[0]); i++) {
		assert_int_equal(ibv_rate_to_mbps(rates[i].rate),
				 rates[i].mbps);
		assert_int_equal(mbps_to_ibv_rate(rates[i].mbps),
				 rates[i].rate);
		k = ibv_rate_to_mult(rates[i].rate);
		/* The header of old has no multiple for the newer ones. */
		if (k != -1 || rates[i].mbps % 2500 == 0) {
			assert_int_equal(k, rates[i].mult);
			assert_int_equal(mult_to_ibv_rate(k), rates[i].rate);
		}
	}
	for (k = 0; k <= IBV_EVENT_WQ_FATAL; k++)
		assert_string_not_equal(ibv_event_type_str(k), "unknown");
	assert_string_equal(ibv_event_type_str(99), "unknown");
	for (k = 0; k <= IBV_WC_TM_RNDV_INCOMPLETE; k++)
		assert_string_not_equal(ibv_wc_status_str(k), "unknown");
	assert_string_equal(ibv_wc_status_str(99), "unknown");
	for (k = 0; k <= IBV_PORT_ACTIVE_DEFER; k++)
		assert_non_null(ibv_port_state_str(k));
	assert_non_null(ibv_port_state_str(99));
	assert_non_null(ibv_node_type_str(99));
	/* Nothing is kept from a child, so nothing is needed for one. */
	assert_int_equal(ibv_fork_init(), 0);
	assert_int_equal(ibv_is_fork_initialized(), IBV_FORK_UNNEEDED);
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

/* Until the receive side has something for a QP whose lock it found taken. */
static void wait_backlog(struct ibv_qp *locked, struct ibv_cq *other)
{
	uint64_t end = now_ns() + 10 * SECOND;
	struct ibv_wc wc;

	while (!atomic_load(&to_qp(locked)->sched.backlog)) {
		assert_true(now_ns() < end);
		ibv_poll_cq(other, 1, &wc);
	}
}

/*
 * A thread that has unlocked a QP, but not yet seen what was left behind for
 * it, is overtaken by one that ends the QP: an ACK that came before counts.
 */
static void ack_left_behind_counts(void **state)
{
	struct ibv_qp_attr err = { .qp_state = IBV_QPS_ERR };
	struct ibv_send_wr wr = { .wr_id = 1, .opcode = IBV_WR_SEND };
	struct end a, b;
	struct ibv_wc wc;

	(void)state;
	pair_init(&a, &b, IBV_QPT_RC);
	post_recv(&b, 2, 0, 64);
	shca_qp_lock(to_qp(b.qp));
	assert_int_equal(try_send(&a, &wr, 0, 64), 0);
	pthread_mutex_lock(&to_qp(a.qp)->sched.lock);
	shca_qp_unlock(to_qp(b.qp));
	wait_backlog(a.qp, b.cq);
	pthread_mutex_unlock(&to_qp(a.qp)->sched.lock);
	assert_int_equal(ibv_modify_qp(a.qp, &err, IBV_QP_STATE), 0);
	wc = wait_wc(a.cq);
	expect_wc(&wc, 1, IBV_WC_SUCCESS);
	end_fini(&a);
	end_fini(&b);
}

/* And so does a request: it is acknowledged, though its QP goes. */
static void request_left_behind_is_acknowledged(void **state)
{
	struct ibv_send_wr wr = { .wr_id = 1, .opcode = IBV_WR_SEND };
	struct end a, b;
	struct ibv_wc wc;

	(void)state;
	pair_init(&a, &b, IBV_QPT_RC);
	post_recv(&b, 2, 0, 64);
	pthread_mutex_lock(&to_qp(b.qp)->sched.lock);
	assert_int_equal(try_send(&a, &wr, 0, 64), 0);
	wait_backlog(b.qp, a.cq);
	pthread_mutex_unlock(&to_qp(b.qp)->sched.lock);
	assert_int_equal(ibv_destroy_qp(b.qp), 0);
	b.qp = NULL;
	wc = wait_wc(a.cq);
	expect_wc(&wc, 1, IBV_WC_SUCCESS);
	end_fini(&a);
	end_fini(&b);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

/* A device is opened, something is sent, and the device is closed. */
static void send_once(void)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND };
	struct end a, b;

	setup(NULL);
	pair_init(&a, &b, IBV_QPT_RC);
	post_recv(&b, 1, 0, 1000);
	assert_int_equal(try_send(&a, &wr, 0, 1000), 0);
	wait_wc(b.cq);
	end_fini(&a);
	end_fini(&b);
	teardown(NULL);
}

static off_t recorded(const char *directory, pid_t pid)
{
	char name[128];
	struct stat st;

	snprintf(name, sizeof(name), "%s/%d", directory, (int)pid);
	return stat(name, &st) ? -1 : st.st_size;
}

/* In a process of its own, whose packets are recorded in the directory. */
static int record(const char *directory)
{
	off_t once, child;
	int status;
	pid_t pid;

	send_once();
	once = recorded(directory, getpid());
	pid = fork();
	if (!pid) {
		send_once();
		_exit(0);
	}
	if (waitpid(pid, &status, 0) != pid || status)
		return 1;
	child = recorded(directory, pid);
	if (once < 1000 || child < 1000 ||
	    recorded(directory, getpid()) != once)
		return 2;
	send_once();
	return recorded(directory, getpid()) < once + 1000 ? 3 : 0;
}

/* A second open of the device goes on with the recording of the first. */
static void recording_goes_on(void **state)
{
	char directory[] = "/tmp/softhca-test-objects-XXXXXX", path[64];
	int status;
	pid_t pid;

	(void)state;
#ifdef __SANITIZE_THREAD__
	skip(); /* it forbids threads in a child of threads */
#endif
	assert_non_null(mkdtemp(directory));
	snprintf(path, sizeof(path), "%s/%%p", directory);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		setenv("SOFTHCA_PCAP", path, 1);
		execl("/proc/self/exe", "test_objects", directory, NULL);
		_exit(127);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	snprintf(path, sizeof(path), "rm -r %s", directory);
	assert_int_equal(system(path), 0);
	assert_int_equal(status, 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		TEST(ack_left_behind_counts),
		TEST(request_left_behind_is_acknowledged),
		TEST(device_attributes),
		TEST(gid_table),
		TEST(regions),
		TEST(empty_region),
		TEST(errno_is_set),
		TEST(garbled_objects),
		TEST(mr_write_tracking),
		TEST(cq_rules),
		TEST(cq_events),
		TEST(cq_destroy_waits),
		TEST(cq_overrun),
		TEST(rc_data),
		TEST(write_without_polling),
		TEST(uc_data),
		TEST(ud_data),
		TEST(ah_rules),
		TEST(multicast),
		TEST(remote_access_error),
		TEST(stale_key),
		TEST(no_peer),
		TEST(modify_rules),
		TEST(create_rules),
		TEST(many_qps),
		TEST(gone_connections_let_go),
		TEST(srq),
		TEST(extended),
		TEST(bad_wr),
		TEST(cq_cleaned),
		TEST(threads),
		TEST(destroyed_under_fire),
		TEST(forked),
		cmocka_unit_test(recording_goes_on),
		TEST(multicast_limits),
		TEST(texts),
		TEST(unsupported),
	};

	if (argc == 2)
		return record(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}

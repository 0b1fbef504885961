/*
 * test_extended.c - the extended verbs: completion queues that iterate, are
 * moderated, overrun and resized; builders; atomic writes; attributes
 */
#include "pair.h"

static struct ibv_cq_ex *new_cq_ex(uint32_t cqe, uint64_t wc_flags,
				   uint32_t flags)
{
	struct ibv_cq_init_attr_ex attr = {
		.cqe = cqe,
		.wc_flags = wc_flags,
		.comp_mask = flags ? IBV_CQ_INIT_ATTR_MASK_FLAGS : 0,
		.flags = flags,
	};
	struct ibv_cq_ex *cq = ibv_create_cq_ex(ctx, &attr);

	assert_non_null(cq);
	return cq;
}

/* A QP in place of the end's own, with this CQ and these operations. */
static void replace_qp(struct end *e, struct ibv_cq *cq, uint64_t ops)
{
	struct ibv_qp_init_attr_ex init = {
		.qp_type = IBV_QPT_RC,
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { 8, 8, 2, 2, 32 },
		.comp_mask = IBV_QP_INIT_ATTR_PD |
			     (ops ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0),
		.pd = pd,
		.send_ops_flags = ops,
	};

	assert_int_equal(ibv_destroy_qp(e->qp), 0);
	e->qp = ibv_create_qp_ex(ctx, &init);
	assert_non_null(e->qp);
}

static void send_some(struct end *a, struct end *b, int n, uint32_t len)
{
	int i;

	for (i = 0; i < n; i++) {
		struct ibv_send_wr wr = { .wr_id = (uint64_t)i,
					  .opcode = IBV_WR_SEND };
		struct ibv_wc wc;

		post_recv(b, (uint64_t)i, 0, 4096);
		assert_int_equal(try_send(a, &wr, 0, len), 0);
		wc = wait_wc(a->cq);
		expect_wc(&wc, (uint64_t)i, IBV_WC_SUCCESS);
	}
}

static struct ibv_wc start(struct ibv_cq_ex *cq)
{
	struct ibv_poll_cq_attr attr = { 0 };
	uint64_t end = now_ns() + 5 * SECOND;

	while (ibv_start_poll(cq, &attr))
		assert_true(now_ns() < end);
	return (struct ibv_wc){ .wr_id = cq->wr_id, .status = cq->status };
}

/* Every field that a CQ can give. */
static void fields(void **state)
{
	const uint64_t want = IBV_WC_STANDARD_FLAGS |
			      IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
			      IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
	struct ibv_send_wr wr = { .wr_id = 3,
				  .opcode = IBV_WR_SEND_WITH_IMM,
				  .imm_data = htobe32(77) };
	struct ibv_values_ex values = { .comp_mask =
						IBV_VALUES_MASK_RAW_CLOCK };
	struct ibv_cq_ex *cq =
		new_cq_ex(16, want, IBV_CREATE_CQ_ATTR_SINGLE_THREADED);
	struct timespec ts;
	struct end a, b;
	struct ibv_wc wc;
	uint64_t wall;

	(void)state;
	end_init(&a, IBV_QPT_RC, NULL);
	end_init(&b, IBV_QPT_RC, NULL);
	replace_qp(&b, ibv_cq_ex_to_cq(cq), 0);
	connect_to(a.qp, b.qp->qp_num);
	connect_to(b.qp, a.qp->qp_num);
	post_recv(&b, 9, 0, 64);
	assert_int_equal(try_send(&a, &wr, 0, 33), 0);
	wc = start(cq);
	expect_wc(&wc, 9, IBV_WC_SUCCESS);
	assert_int_equal(ibv_wc_read_opcode(cq), IBV_WC_RECV);
	assert_int_equal(ibv_wc_read_vendor_err(cq), 0);
	assert_int_equal(ibv_wc_read_byte_len(cq), 33);
	assert_int_equal(ibv_wc_read_imm_data(cq), htobe32(77));
	assert_int_equal(ibv_wc_read_qp_num(cq), b.qp->qp_num);
	assert_int_equal(ibv_wc_read_src_qp(cq), a.qp->qp_num);
	assert_true(ibv_wc_read_wc_flags(cq) & IBV_WC_WITH_IMM);
	assert_int_equal(ibv_wc_read_slid(cq), 0);
	assert_int_equal(ibv_wc_read_sl(cq), 0);
	assert_int_equal(ibv_wc_read_dlid_path_bits(cq), 0);
	clock_gettime(CLOCK_REALTIME, &ts);
	wall = (uint64_t)ts.tv_sec * SECOND + (uint64_t)ts.tv_nsec;
	assert_true(ibv_wc_read_completion_wallclock_ns(cq) <= wall);
	assert_true(ibv_wc_read_completion_wallclock_ns(cq) + SECOND > wall);
	/* It is the completion's, whenever it is asked for. */
	wall = ibv_wc_read_completion_wallclock_ns(cq);
	for (int i = 0; i < 1000; i++)
		assert_int_equal(ibv_wc_read_completion_wallclock_ns(cq), wall);
	assert_int_equal(ibv_query_rt_values_ex(ctx, &values), 0);
	assert_true((uint64_t)values.raw_clock.tv_nsec >=
		    ibv_wc_read_completion_ts(cq));
	assert_int_equal(ibv_next_poll(cq), ENOENT);
	ibv_end_poll(cq);
	assert_int_equal(ibv_destroy_qp(b.qp), 0);
	b.qp = NULL;
	assert_int_equal(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
	end_fini(&a);
	end_fini(&b);
}

static bool event(struct end *e, int ms)
{
	struct ibv_cq *cq;
	void *context;

	if (!readable(e->ch->fd, ms))
		return false;
	assert_int_equal(ibv_get_cq_event(e->ch, &cq, &context), 0);
	assert_ptr_equal(cq, e->cq);
	assert_ptr_equal(context, e);
	ibv_ack_cq_events(cq, 1);
	return true;
}

static void moderation(void **state)
{
	struct ibv_modify_cq_attr attr = {
		.attr_mask = IBV_CQ_ATTR_MODERATE,
		.moderate = { .cq_count = 4, .cq_period = 50000 },
	};
	struct ibv_device_attr_ex dev;
	struct end a, b;
	uint64_t from;

	(void)state;
	pair_init(&a, &b, IBV_QPT_RC);
	assert_int_equal(ibv_query_device_ex(ctx, NULL, &dev), 0);
	assert_true(dev.cq_mod_caps.max_cq_count >= 4);
	assert_true(dev.cq_mod_caps.max_cq_period >= 50000);
	assert_int_equal(ibv_modify_cq(b.cq, &attr), 0);
	/* The fourth completion brings the event... */
	assert_int_equal(ibv_req_notify_cq(b.cq, 0), 0);
	from = now_ns();
	send_some(&a, &b, 3, 8);
	if (now_ns() - from < 40000000)
		assert_false(event(&b, 2));
	send_some(&a, &b, 1, 8);
	assert_true(event(&b, 1000));
	/* ...once... */
	send_some(&a, &b, 4, 8);
	assert_false(event(&b, 80));
	/* ...or the time, since the first. */
	assert_int_equal(ibv_req_notify_cq(b.cq, 0), 0);
	from = now_ns();
	send_some(&a, &b, 1, 8);
	assert_true(event(&b, 1000));
	assert_true(now_ns() - from >= 45000000);
	assert_false(event(&b, 80));
	/* Taken back while one is due, it is due at once. */
	attr.moderate.cq_period = 65535;
	attr.moderate.cq_count = 1000;
	assert_int_equal(ibv_modify_cq(b.cq, &attr), 0);
	assert_int_equal(ibv_req_notify_cq(b.cq, 0), 0);
	send_some(&a, &b, 1, 8);
	attr.moderate.cq_count = attr.moderate.cq_period = 0;
	assert_int_equal(ibv_modify_cq(b.cq, &attr), 0);
	assert_true(event(&b, 0));
	assert_int_equal(ibv_req_notify_cq(b.cq, 0), 0);
	send_some(&a, &b, 1, 8);
	assert_true(event(&b, 1000));
	attr.attr_mask = 0;
	assert_int_equal(ibv_modify_cq(b.cq, &attr), 0);
	end_fini(&a);
	end_fini(&b);
}

/* What does not fit is lost, and that is all. */
static void overrun_ignored(void **state)
{
	struct ibv_cq_ex *cq = new_cq_ex(2, IBV_WC_STANDARD_FLAGS,
					 IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN);
	struct ibv_cq *plain = ibv_cq_ex_to_cq(cq);
	const int room = plain->cqe;
	struct ibv_wc wc[64];
	struct end a, b;

	(void)state;
	assert_in_range(room, 2, 64);
	end_init(&a, IBV_QPT_RC, NULL);
	end_init(&b, IBV_QPT_RC, NULL);
	replace_qp(&b, plain, 0);
	connect_to(a.qp, b.qp->qp_num);
	connect_to(b.qp, a.qp->qp_num);
	send_some(&a, &b, room + 3, 8);
	assert_int_equal(ibv_poll_cq(plain, 64, wc), room);
	for (int i = 0; i < room; i++)
		assert_int_equal(wc[i].wr_id, i);
	send_some(&a, &b, 1, 8);
	assert_int_equal(ibv_poll_cq(plain, 64, wc), 1);
	assert_int_equal(wc[0].wr_id, 0);
	while (readable(ctx->async_fd, 0)) {
		struct ibv_async_event ev;

		assert_int_equal(ibv_get_async_event(ctx, &ev), 0);
		assert_int_not_equal(ev.event_type, IBV_EVENT_CQ_ERR);
		ibv_ack_async_event(&ev);
	}
	assert_int_equal(ibv_destroy_qp(b.qp), 0);
	b.qp = NULL;
	assert_int_equal(ibv_destroy_cq(plain), 0);
	end_fini(&a);
	end_fini(&b);
}

/* Resized all the time while completions come and go, none is lost. */

static struct end *receiver;
static _Atomic int received;

static void *receive(void *arg)
{
	const int total = *(int *)arg;
	struct ibv_wc wc[4];
	int n, i;

	while (received < total) {
		n = ibv_poll_cq(receiver->cq, 4, wc);
		for (i = 0; i < n; i++) {
			if (wc[i].status || wc[i].wr_id != (uint64_t)received)
				return "out of order";
			post_recv(receiver, wc[i].wr_id + DEPTH, 0, 8);
			received++;
		}
		if (n < 0)
			return "poll";
	}
	return NULL;
}

static void resize_in_flight(void **state)
{
	static const int sizes[] = { 64, 1000, 70, 256, 65, 5000 };
	int total = 3000, sent = 0, done = 0, round = 0, i;
	uint64_t end = now_ns() + 30 * SECOND;
	struct ibv_wc wc[8];
	struct end a, b;
	pthread_t thread;
	void *what;

	(void)state;
	pair_init(&a, &b, IBV_QPT_RC);
	receiver = &b;
	received = 0;
	for (i = 0; i < DEPTH; i++)
		post_recv(&b, (uint64_t)i, 0, 8);
	assert_int_equal(pthread_create(&thread, NULL, receive, &total), 0);
	while (done < total) {
		int n = ibv_poll_cq(a.cq, 8, wc);

		assert_true(n >= 0 && now_ns() < end);
		for (i = 0; i < n; i++)
			assert_int_equal(wc[i].status, 0);
		done += n;
		while (sent < total && sent - done < 16) {
			struct ibv_send_wr wr = { .opcode = IBV_WR_SEND };

			assert_int_equal(try_send(&a, &wr, 0, 8), 0);
			sent++;
		}
		assert_int_equal(ibv_resize_cq(b.cq, sizes[round++ % 6]), 0);
		assert_int_equal(ibv_resize_cq(a.cq, sizes[round % 6]), 0);
	}
	assert_int_equal(pthread_join(thread, &what), 0);
	assert_null(what);
	end_fini(&a);
	end_fini(&b);
}

/* After an error nothing of what was built is posted, and the QP is as new. */
static void all_or_nothing(void **state)
{
	struct end a, b;
	struct ibv_qp_ex *ex;
	struct ibv_wc wc;
	int i;

	(void)state;
	end_init(&a, IBV_QPT_RC, NULL);
	end_init(&b, IBV_QPT_RC, NULL);
	replace_qp(&a, a.cq, IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_READ);
	connect_to(a.qp, b.qp->qp_num);
	connect_to(b.qp, a.qp->qp_num);
	ex = ibv_qp_to_qp_ex(a.qp);
	ex->wr_flags = IBV_SEND_SIGNALED;
	post_recv(&b, 5, 0, 64);
	for (i = 0; i < 3; i++) {
		ibv_wr_start(ex);
		ex->wr_id = 1;
		ibv_wr_send(ex);
		ibv_wr_set_sge(ex, a.mr->lkey, (uintptr_t)a.buf, 2000);
		ibv_wr_send(ex);
		if (i == 0) /* inline data of a read */
			ibv_wr_rdma_read(ex, b.mr->rkey, (uintptr_t)b.buf);
		ibv_wr_set_inline_data(ex, a.buf, i == 1 ? 33 : 8);
		if (i == 2) {
			ibv_wr_abort(ex);
			continue;
		}
		assert_int_equal(ibv_wr_complete(ex), EINVAL);
	}
	ibv_wr_start(ex); /* more than there is room for */
	for (i = 0; i < 9; i++) {
		ibv_wr_send(ex);
		ibv_wr_set_sge(ex, a.mr->lkey, (uintptr_t)a.buf, 8);
	}
	assert_int_equal(ibv_wr_complete(ex), ENOMEM);
	assert_int_equal(ibv_poll_cq(a.cq, 1, &wc), 0);

	ibv_wr_start(ex);
	ex->wr_id = 2;
	ibv_wr_send(ex);
	ibv_wr_set_sge(ex, a.mr->lkey, (uintptr_t)a.buf, 16);
	assert_int_equal(ibv_wr_complete(ex), 0);
	wc = wait_wc(b.cq);
	expect_wc(&wc, 5, IBV_WC_SUCCESS);
	assert_int_equal(wc.byte_len, 16);
	wc = wait_wc(a.cq);
	expect_wc(&wc, 2, IBV_WC_SUCCESS);
	end_fini(&a);
	end_fini(&b);
}

static void atomic_write(void **state)
{
	struct ibv_send_wr wr = { .wr_id = 1, .opcode = IBV_WR_ATOMIC_WRITE };
	uint64_t *word;
	struct ibv_wc wc;
	struct end a, b;

	(void)state;
	pair_init(&a, &b, IBV_QPT_RC);
	word = (uint64_t *)(void *)b.buf;
	wr.wr.rdma.rkey = b.mr->rkey;
	wr.wr.rdma.remote_addr = (uintptr_t)(word + 1);
	fill(a.buf, 64, 6);
	/* The value may be anywhere, it is the target that is aligned. */
	assert_int_equal(try_send(&a, &wr, 3, 8), 0);
	wc = wait_wc(a.cq);
	expect_wc(&wc, 1, IBV_WC_SUCCESS);
	assert_int_equal(wc.opcode, IBV_WC_ATOMIC_WRITE);
	assert_memory_equal(word + 1, a.buf + 3, 8);
	assert_int_equal(word[0] | word[2], 0);
	wr.send_flags |= IBV_SEND_INLINE;
	wr.wr.rdma.remote_addr = (uintptr_t)word;
	assert_int_equal(try_send(&a, &wr, 20, 8), 0);
	wc = wait_wc(a.cq);
	expect_wc(&wc, 1, IBV_WC_SUCCESS);
	assert_memory_equal(word, a.buf + 20, 8);
	assert_int_equal(try_send(&a, &wr, 0, 16), EINVAL); /* inline */
	wr.wr.rdma.rkey ^= 1;
	assert_int_equal(try_send(&a, &wr, 0, 8), 0);
	assert_int_equal(wait_wc(a.cq).status, IBV_WC_REM_ACCESS_ERR);
	end_fini(&a);
	end_fini(&b);
}

/* No byte beyond what a program built with other headers has room for. */
static void attribute_sizes(void **state)
{
	struct ibv_device_attr_ex whole;
	uint8_t bytes[sizeof(whole) + 64];
	const size_t sizes[] = { sizeof(struct ibv_device_attr),
				 offsetof(struct ibv_device_attr_ex, rss_caps),
				 sizeof(whole), sizeof(whole) + 32 };
	size_t i, k;

	(void)state;
	assert_int_equal(ibv_query_device_ex(ctx, NULL, &whole), 0);
	for (i = 0; i < 4; i++) {
		memset(bytes, 0xa5, sizeof(bytes));
		assert_int_equal(
			verbs_get_ctx(ctx)->query_device_ex(
				ctx, NULL,
				(struct ibv_device_attr_ex *)(void *)bytes,
				sizes[i]),
			0);
		k = sizes[i] < sizeof(whole) ? sizes[i] : sizeof(whole);
		assert_memory_equal(bytes, &whole, k);
		for (k = sizes[i]; k < sizeof(bytes); k++)
			assert_int_equal(bytes[k], 0xa5);
	}
	assert_int_equal(verbs_get_ctx(ctx)->query_device_ex(
				 ctx, NULL,
				 (struct ibv_device_attr_ex *)(void *)bytes, 8),
			 EINVAL);
	/* Announced, and therefore tested elsewhere. */
	assert_true(whole.odp_caps.general_caps & IBV_ODP_SUPPORT_IMPLICIT);
	assert_true(whole.orig_attr.device_cap_flags & IBV_DEVICE_XRC);
	assert_true(whole.orig_attr.max_mw > 0);
	/* Not announced. */
	assert_int_equal(whole.tso_caps.max_tso, 0);
	assert_int_equal(whole.rss_caps.supported_qpts, 0);
	assert_int_equal(whole.tm_caps.max_num_tags, 0);
	assert_int_equal(whole.packet_pacing_caps.supported_qpts, 0);
	assert_int_equal(whole.pci_atomic_caps.fetch_add, 0);
	assert_int_equal(whole.raw_packet_caps, 0);
}

static void enhancements(void **state)
{
	struct ibv_ece ece = { 1, 2, 3 };
	struct end a;

	(void)state;
	end_init(&a, IBV_QPT_RC, NULL);
	assert_int_equal(ibv_query_ece(a.qp, &ece), 0);
	assert_int_equal(ece.vendor_id | ece.options | ece.comp_mask, 0);
	assert_int_equal(ibv_set_ece(a.qp, &ece), 0);
	ece.vendor_id = 0x15b3;
	assert_int_equal(ibv_set_ece(a.qp, &ece), EOPNOTSUPP);
	assert_int_equal(ibv_query_qp_data_in_order(a.qp, IBV_WR_RDMA_WRITE, 0),
			 0);
	end_fini(&a);
}

static void ethernet(void **state)
{
	struct ibv_ah_attr attr = { .is_global = 1,
				    .port_num = 1,
				    .grh = { .dgid = gid0 } };
	uint8_t mac[6] = { 0xa5 };
	uint16_t vid = 1;

	(void)state;
	/* Ourselves, and a group. */
	assert_int_equal(ibv_resolve_eth_l2_from_gid(ctx, &attr, mac, &vid), 0);
	assert_int_equal(vid, 0xffff);
	assert_int_equal(mac[0] & 1, 0);
	if (gid0.raw[10] == 0xff && gid0.raw[11] == 0xff) {
		static const uint8_t group[6] = { 1, 0, 0x5e, 0x01, 2, 3 };

		memcpy(attr.grh.dgid.raw + 12, "\xe0\x81\x02\x03", 4);
		assert_int_equal(
			ibv_resolve_eth_l2_from_gid(ctx, &attr, mac, NULL), 0);
		assert_memory_equal(mac, group, 6);
	}
}

/* ---- asynchronous events, each with its object -------------------------- */

static void expect_event(enum ibv_event_type type, const void *object)
{
	struct ibv_async_event ev;

	assert_true(readable(ctx->async_fd, 5000));
	assert_int_equal(ibv_get_async_event(ctx, &ev), 0);
	assert_string_equal(ibv_event_type_str(ev.event_type),
			    ibv_event_type_str(type));
	/* The union's pointers are in one place. */
	assert_ptr_equal(ev.element.qp, object);
	ibv_ack_async_event(&ev);
}

static void no_event(void)
{
	assert_false(readable(ctx->async_fd, 20));
}

static void events(void **state)
{
	struct ibv_srq_init_attr sia = { .attr = { .max_wr = 8,
						   .max_sge = 1 } };
	struct ibv_srq_attr limit = { .srq_limit = 2 };
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND };
	struct ibv_qp_attr attr, rtr;
	struct ibv_recv_wr rwr = { .num_sge = 1 }, *bad;
	struct ibv_sge sge;
	struct ibv_srq *srq = ibv_create_srq(pd, &sia);
	struct end a, b;
	int i;

	(void)state;
	/* COMM_EST: a packet came while the QP was in RTR. Once. */
	end_init(&a, IBV_QPT_RC, NULL);
	end_init(&b, IBV_QPT_RC, NULL);
	connect_to(a.qp, b.qp->qp_num);
	assert_int_equal(to_init(b.qp, ALL_ACCESS), 0);
	rtr = rtr_attr(a.qp->qp_num);
	assert_int_equal(ibv_modify_qp(b.qp, &rtr, rtr_mask(IBV_QPT_RC)), 0);
	no_event();
	send_some(&a, &b, 2, 64);
	expect_event(IBV_EVENT_COMM_EST, b.qp);
	no_event();

	/* SQ_DRAINED: only if it was asked for. */
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_SQD };
	assert_int_equal(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE), 0);
	no_event();
	attr.qp_state = IBV_QPS_RTS;
	assert_int_equal(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE), 0);
	attr.qp_state = IBV_QPS_SQD;
	attr.en_sqd_async_notify = 1;
	assert_int_equal(
		ibv_modify_qp(a.qp, &attr,
			      IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY),
		0);
	expect_event(IBV_EVENT_SQ_DRAINED, a.qp);
	attr.qp_state = IBV_QPS_RTS;
	assert_int_equal(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE), 0);

	/* QP_REQ_ERR: a request that the QP does not take at all. */
	assert_int_equal(to_rts(b.qp, 7), 0);
	attr.qp_access_flags = 0;
	assert_int_equal(ibv_modify_qp(b.qp, &attr, IBV_QP_ACCESS_FLAGS), 0);
	wr.opcode = IBV_WR_RDMA_WRITE;
	wr.wr.rdma.rkey = b.mr->rkey;
	wr.wr.rdma.remote_addr = (uintptr_t)b.buf;
	assert_int_equal(try_send(&a, &wr, 0, 8), 0);
	assert_int_equal(wait_wc(a.cq).status, IBV_WC_REM_INV_REQ_ERR);
	expect_event(IBV_EVENT_QP_REQ_ERR, b.qp);
	no_event();
	end_fini(&a);
	end_fini(&b);

	/* QP_ACCESS_ERR: one that is not allowed. */
	pair_init(&a, &b, IBV_QPT_RC);
	wr.opcode = IBV_WR_RDMA_WRITE;
	wr.wr.rdma.rkey = b.mr->rkey;
	wr.wr.rdma.remote_addr = (uintptr_t)b.buf + BUF;
	assert_int_equal(try_send(&a, &wr, 0, 8), 0);
	assert_int_equal(wait_wc(a.cq).status, IBV_WC_REM_ACCESS_ERR);
	expect_event(IBV_EVENT_QP_ACCESS_ERR, b.qp);
	no_event();
	end_fini(&a);
	end_fini(&b);

	/* CQ_ERR of the queue, and QP_FATAL of the QP that lost by it. */
	pair_init(&a, &b, IBV_QPT_RC);
	assert_int_equal(ibv_destroy_cq(b.cq), EBUSY);
	assert_int_equal(ibv_resize_cq(b.cq, 1), 0);
	wr.opcode = IBV_WR_SEND;
	for (i = 0; i < b.cq->cqe + 1; i++) {
		post_recv(&b, (uint64_t)i, 0, 64);
		assert_int_equal(try_send(&a, &wr, 0, 8), 0);
	}
	expect_event(IBV_EVENT_CQ_ERR, b.cq);
	expect_event(IBV_EVENT_QP_FATAL, b.qp);
	no_event();
	end_fini(&a);
	end_fini(&b);

	/* SRQ_LIMIT_REACHED: once per arming; QP_LAST_WQE_REACHED in ERR. */
	assert_non_null(srq);
	end_init(&a, IBV_QPT_RC, NULL);
	end_init(&b, IBV_QPT_RC, srq);
	connect_to(a.qp, b.qp->qp_num);
	connect_to(b.qp, a.qp->qp_num);
	sge = sge_of(&b, 0, 64);
	rwr.sg_list = &sge;
	for (i = 0; i < 4; i++)
		assert_int_equal(ibv_post_srq_recv(srq, &rwr, &bad), 0);
	assert_int_equal(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT), 0);
	for (i = 0; i < 4; i++) {
		assert_int_equal(try_send(&a, &wr, 0, 8), 0);
		assert_int_equal(wait_wc(a.cq).status, 0);
		if (i < 2)
			no_event();
		if (i == 2)
			expect_event(IBV_EVENT_SRQ_LIMIT_REACHED, srq);
	}
	assert_int_equal(ibv_query_srq(srq, &limit), 0);
	assert_int_equal(limit.srq_limit, 0);
	no_event();
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_ERR };
	assert_int_equal(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE), 0);
	no_event(); /* it has a queue of its own */
	assert_int_equal(ibv_modify_qp(b.qp, &attr, IBV_QP_STATE), 0);
	expect_event(IBV_EVENT_QP_LAST_WQE_REACHED, b.qp);
	no_event();
	end_fini(&a);
	end_fini(&b);
	assert_int_equal(ibv_destroy_srq(srq), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(fields),          TEST(moderation),
		TEST(overrun_ignored), TEST(resize_in_flight),
		TEST(all_or_nothing),  TEST(atomic_write),
		TEST(attribute_sizes), TEST(enhancements),
		TEST(ethernet),        TEST(events),
	};

	alarm(60);
	return cmocka_run_group_tests(tests, NULL, NULL);
}

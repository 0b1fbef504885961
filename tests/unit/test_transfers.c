/*
 * test_transfers.c - messages between two QPs of one process, of every service
 */
#include "pair.h"

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

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(rc_data),   TEST(write_without_polling),
		TEST(uc_data),   TEST(ud_data),
		TEST(multicast), TEST(remote_access_error),
		TEST(stale_key), TEST(no_peer),
		TEST(srq),       TEST(multicast_limits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

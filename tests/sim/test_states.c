/*
 * test_states.c - the order of work requests, and the states of a QP
 */
#include "scripted.h"

#include "roce/roce_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A fence waits for the read before it (10.8.3.3). */
static void fence_waits_for_reads(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	struct script sc = { 0 };

	(void)state;
	script(&p, &sc);
	recv_into(p.b, 0, 10);
	post_to(p.a, IBV_WR_RDMA_READ, 0, 5000);
	post(p.a, IBV_WR_SEND, 0, 1, 0, 0, IBV_SEND_FENCE);
	assert_int_equal(sc.seen[ROCE_SEND_ONLY], 0);
	settle(&p);
	assert_int_equal(sc.seen[ROCE_SEND_ONLY], 1);
	sim_free(p.sim);
}

/* 9.7.3.3: no more reads and atomics are out than the responder has room for,
 * as the connection's two ends have agreed (max_rd_atomic). */
static void outstanding_reads_bounded(void **state)
{
	struct sim_conn_opts co = sim_conn_default;
	struct script sc = { 0 };
	struct pair p;

	(void)state;
	co.rd_atomic = 2;
	p = pair_opts(IBV_QPT_RC, &co);
	script(&p, &sc);
	for (uint32_t i = 0; i < 5; i++)
		post_to(p.a, IBV_WR_RDMA_READ, i * 100, 100);
	assert_int_equal(sc.seen[ROCE_READ_REQUEST], 2);
	settle(&p);
	assert_int_equal(sc.seen[ROCE_READ_REQUEST], 5);
	sim_free(p.sim);
}

static void comm_est_once(void **state)
{
	struct sim_qp_opts qo = { .type = IBV_QPT_RC,
				  .cap = { 8, 8, 1, 1, 0 } };
	struct pair p = { .sim = sim_new(2) };
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTR };

	(void)state;
	p.a = sim_qp_new(p.sim, 0, &qo);
	p.b = sim_qp_new(p.sim, 1, &qo);
	sim_connect(p.a, p.b, &sim_conn_default);
	/* b again, but only to RTR. */
	assert_int_equal(set_state(p.b, IBV_QPS_RESET), 0);
	a.qp_state = IBV_QPS_INIT;
	a.port_num = 1;
	assert_int_equal(roce_qp_modify(p.b->qp, &a,
					IBV_QP_STATE | IBV_QP_PKEY_INDEX |
						IBV_QP_PORT |
						IBV_QP_ACCESS_FLAGS,
					NULL),
			 0);
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR,
				  .path_mtu = IBV_MTU_1024,
				  .dest_qp_num = roce_qp_num(p.a->qp),
				  .rq_psn = sim_conn_default.psn_a,
				  .max_dest_rd_atomic = 1 };
	struct roce_path path = sim_path(p.b->node, p.a->node);
	assert_int_equal(
		roce_qp_modify(p.b->qp, &a,
			       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
				       IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				       IBV_QP_MAX_DEST_RD_ATOMIC |
				       IBV_QP_MIN_RNR_TIMER,
			       &path),
		0);
	recv_into(p.b, 0, 10);
	recv_into(p.b, 0, 10);
	post_to(p.a, IBV_WR_SEND, 0, 1);
	post_to(p.a, IBV_WR_SEND, 0, 1);
	settle(&p);
	assert_int_equal(p.b->events, 1 << IBV_EVENT_COMM_EST);
	sim_free(p.sim);
}

static void drained(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_SQD,
				 .en_sqd_async_notify = 1 };
	struct ibv_qp_init_attr init;

	(void)state;
	p.sim->direct = 0;
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, 5000);
	assert_int_equal(
		roce_qp_modify(p.a->qp, &a,
			       IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY, NULL),
		0);
	roce_qp_query(p.a->qp, &a, &init);
	assert_int_equal(a.sq_draining, 1);
	/* Posted in SQD: waits. */
	post_to(p.a, IBV_WR_RDMA_WRITE, 5000, 10);
	settle(&p);
	expect(p.a->send, IBV_WC_SUCCESS);
	assert_null(sim_poll(p.a->send));
	assert_int_equal(p.a->events, 1 << IBV_EVENT_SQ_DRAINED);
	roce_qp_query(p.a->qp, &a, &init);
	assert_int_equal(a.sq_draining, 0);
	assert_int_equal(set_state(p.a, IBV_QPS_RTS), 0);
	sim_pull(p.a);
	settle(&p);
	expect(p.a->send, IBV_WC_SUCCESS);
	sim_free(p.sim);
}

/* What the peer has no receive for has not been drained. */
static void not_drained_while_rnr(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_SQD,
				 .en_sqd_async_notify = 1 };
	struct ibv_qp_init_attr init;

	(void)state;
	post_to(p.a, IBV_WR_SEND, 0, 10);
	assert_int_equal(
		roce_qp_modify(p.a->qp, &a,
			       IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY, NULL),
		0);
	sim_run(p.sim, 100000); /* the RNR NAK has come */
	assert_int_equal(p.a->events, 0);
	roce_qp_query(p.a->qp, &a, &init);
	assert_int_equal(a.sq_draining, 1);
	recv_into(p.b, 100, 10);
	settle(&p);
	expect(p.a->send, IBV_WC_SUCCESS);
	assert_int_equal(p.a->events, 1 << IBV_EVENT_SQ_DRAINED);
	sim_free(p.sim);
}

static void flush_in_order(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	const struct ibv_wc *wc;

	(void)state;
	p.sim->link.loss = 1;
	p.sim->direct = 0;
	for (uint32_t i = 0; i < 5; i++) {
		post_to(p.a, IBV_WR_RDMA_WRITE, i, 1);
		recv_into(p.a, i, 1);
	}
	assert_int_equal(set_state(p.a, IBV_QPS_ERR), 0);
	/* Work requests posted to a QP in error are flushed as well. */
	post_to(p.a, IBV_WR_RDMA_WRITE, 5, 1);
	recv_into(p.a, 5, 1);
	for (uint32_t i = 0; i < 6; i++) {
		wc = sim_poll(p.a->send);
		assert_true(wc && wc->status == IBV_WC_WR_FLUSH_ERR &&
			    wc->wr_id == i);
		wc = sim_poll(p.a->recv);
		assert_true(wc && wc->status == IBV_WC_WR_FLUSH_ERR &&
			    wc->wr_id == i);
	}
	sim_free(p.sim);
}

static void sqe_and_back(void **state)
{
	struct pair p = pair_new(IBV_QPT_UD);
	struct ibv_sge sge = { (uintptr_t)p.a->node->mem, 10, 1 };
	struct ibv_send_wr wr = { .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_SEND };

	(void)state;
	assert_int_equal(sim_post_send(p.a, &wr), 0);
	expect(p.a->send, IBV_WC_LOC_PROT_ERR);
	assert_int_equal(roce_qp_state(p.a->qp), IBV_QPS_SQE);
	assert_int_equal(set_state(p.a, IBV_QPS_RTS), 0);
	recv_into(p.b, 0, 100);
	post(p.a, IBV_WR_SEND, 0, 10, 0, 0x11, 0);
	settle(&p);
	expect(p.a->send, IBV_WC_SUCCESS);
	expect(p.b->recv, IBV_WC_SUCCESS);
	sim_free(p.sim);
}

/* UC: what follows carries the bytes of its own work request. */
static void sqe_and_back_uc(void **state)
{
	struct ibv_send_wr wr = { .num_sge = 1, .opcode = IBV_WR_SEND };

	(void)state;
	for (int k = 0; k < 4; k++) {
		struct pair p = pair_new(IBV_QPT_UC);
		/* in its first packet, or behind some that are on their way */
		struct ibv_sge sge[2] = {
			{ (uintptr_t)p.a->node->mem, 3000, p.a->node->lkey },
			{ (uintptr_t)p.a->node->mem, 3000, 1 },
		};

		wr.sg_list = k & 1 ? sge : sge + 1;
		wr.num_sge = k & 1 ? 2 : 1;
		recv_into(p.b, 1000, 100);
		recv_into(p.b, 1000, 100);
		assert_int_equal(sim_post_send(p.a, &wr), 0);
		sim_run(p.sim, SIM_SEC);
		expect(p.a->send, IBV_WC_LOC_PROT_ERR);
		assert_int_equal(roce_qp_state(p.a->qp), IBV_QPS_SQE);
		assert_int_equal(set_state(p.a, IBV_QPS_RTS), 0);
		memset(p.a->node->mem, 'x', 10);
		post(p.a, IBV_WR_SEND, 0, 10, 0, 0,
		     k & 2 ? IBV_SEND_INLINE : 0);
		settle(&p);
		expect(p.a->send, IBV_WC_SUCCESS);
		assert_int_equal(roce_qp_state(p.a->qp), IBV_QPS_RTS);
		if (!(k & 1)) {
			expect(p.b->recv, IBV_WC_SUCCESS);
			assert_memory_equal(p.b->node->mem + 1000, "xxxxxxxxxx",
					    10);
		}
		sim_free(p.sim);
	}
}

static void transitions_need_their_attributes(void **state)
{
	static const int rc_init = IBV_QP_STATE | IBV_QP_PKEY_INDEX |
				   IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
	struct sim_qp_opts qo = { .type = IBV_QPT_RC,
				  .cap = { 8, 8, 1, 1, 0 } };
	struct sim *sim = sim_new(3);
	struct sim_qp *q = sim_qp_new(sim, 0, &qo);
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1 };

	(void)state;
	for (int bit = 1; bit <= IBV_QP_ACCESS_FLAGS; bit <<= 1)
		if (rc_init & bit)
			assert_int_equal(
				roce_qp_modify(q->qp, &a, rc_init & ~bit, NULL),
				-EINVAL);
	assert_int_equal(roce_qp_modify(q->qp, &a, rc_init | IBV_QP_QKEY, NULL),
			 -EINVAL);
	a.port_num = 2;
	assert_int_equal(roce_qp_modify(q->qp, &a, rc_init, NULL), -EINVAL);
	a.port_num = 1;
	a.pkey_index = 1;
	assert_int_equal(roce_qp_modify(q->qp, &a, rc_init, NULL), -EINVAL);
	a.pkey_index = 0;
	assert_int_equal(roce_qp_state(q->qp), IBV_QPS_RESET);
	assert_int_equal(roce_qp_modify(q->qp, &a, rc_init, NULL), 0);
	assert_int_equal(set_state(q, IBV_QPS_RTS), -EINVAL);
	assert_int_equal(set_state(q, IBV_QPS_SQD), -EINVAL);
	assert_int_equal(set_state(q, (enum ibv_qp_state)99), -EINVAL);
	assert_int_equal(set_state(q, IBV_QPS_ERR), 0);
	assert_int_equal(set_state(q, IBV_QPS_INIT), -EINVAL);
	assert_int_equal(set_state(q, IBV_QPS_RESET), 0);
	sim_free(sim);
}

static void posting_limits(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	struct ibv_sge sge[3] = { { 0, 0, 0 } };
	struct ibv_send_wr wr = { .sg_list = sge,
				  .num_sge = 3,
				  .opcode = IBV_WR_SEND };
	struct ibv_recv_wr rr = { .sg_list = sge, .num_sge = 3 };

	(void)state;
	p.sim->link.loss = 1;
	assert_int_equal(sim_post_send(p.a, &wr), -EINVAL);
	assert_int_equal(sim_post_recv(p.a, &rr), -EINVAL);
	wr.num_sge = 1;
	wr.opcode = (enum ibv_wr_opcode)77;
	assert_int_equal(sim_post_send(p.a, &wr), -EINVAL);
	wr.opcode = IBV_WR_SEND;
	wr.send_flags = IBV_SEND_INLINE;
	sge[0] = (struct ibv_sge){ (uintptr_t)p.a->node->mem, 65, 0 };
	assert_int_equal(sim_post_send(p.a, &wr), -EINVAL);
	sge[0].length = 64; /* inline data needs no lkey */
	for (int i = 0; i < 32; i++)
		assert_int_equal(sim_post_send(p.a, &wr), 0);
	assert_int_equal(sim_post_send(p.a, &wr), -ENOMEM);
	for (uint32_t i = 0; i < 32; i++)
		assert_int_equal(recv_into(p.a, i, 1), 0);
	assert_int_equal(recv_into(p.a, 0, 1), -ENOMEM);
	sim_free(p.sim);
}

/* In SQD nothing is begun, so that nothing fails either (10.3.1.5). */
static void nothing_fails_in_sqd(void **state)
{
	static const struct {
		enum ibv_qp_type type;
		enum ibv_wr_opcode op;
		uint32_t len;
		enum ibv_wc_status status;
	} k[] = {
		{ IBV_QPT_RC, IBV_WR_ATOMIC_FETCH_AND_ADD, 16,
		  IBV_WC_LOC_LEN_ERR },
		{ IBV_QPT_UC, IBV_WR_RDMA_READ, 16, IBV_WC_LOC_QP_OP_ERR },
		{ IBV_QPT_UD, IBV_WR_RDMA_READ, 16, IBV_WC_LOC_QP_OP_ERR },
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(k); i++) {
		struct pair p = pair_new(k[i].type);
		struct ibv_qp_attr a = { .qp_state = IBV_QPS_SQD,
					 .en_sqd_async_notify = 1 };

		recv_into(p.b, 4096, 4096);
		post(p.a, IBV_WR_SEND, 0, 3000, 0, 0x11, 0);
		assert_int_equal(
			roce_qp_modify(p.a->qp, &a,
				       IBV_QP_STATE |
					       IBV_QP_EN_SQD_ASYNC_NOTIFY,
				       NULL),
			0);
		post_to(p.a, k[i].op, 0, k[i].len);
		settle(&p);
		expect(p.a->send, IBV_WC_SUCCESS);
		assert_null(sim_poll(p.a->send));
		assert_int_equal(roce_qp_state(p.a->qp), IBV_QPS_SQD);
		assert_int_equal(p.a->events, 1 << IBV_EVENT_SQ_DRAINED);
		assert_false(roce_tx_ready(p.a->qp));
		assert_int_equal(set_state(p.a, IBV_QPS_RTS), 0);
		sim_pull(p.a);
		expect(p.a->send, k[i].status);
		sim_free(p.sim);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fence_waits_for_reads),
		cmocka_unit_test(outstanding_reads_bounded),
		cmocka_unit_test(comm_est_once),
		cmocka_unit_test(drained),
		cmocka_unit_test(not_drained_while_rnr),
		cmocka_unit_test(flush_in_order),
		cmocka_unit_test(sqe_and_back),
		cmocka_unit_test(sqe_and_back_uc),
		cmocka_unit_test(transitions_need_their_attributes),
		cmocka_unit_test(posting_limits),
		cmocka_unit_test(nothing_fails_in_sqd),
	};

	cmocka_set_test_filter(getenv("SIM_TEST"));
	return cmocka_run_group_tests_name("sim_states", tests, NULL, NULL);
}

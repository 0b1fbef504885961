/*
 * test_receives.c - where receives are taken from, and services that lose: UC, UD
 */
#include "scripted.h"

#include "roce/roce_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void wrong_qkey_is_dropped(void **state)
{
	struct pair p = pair_new(IBV_QPT_UD);

	(void)state;
	recv_into(p.b, 0, 100);
	post(p.a, IBV_WR_SEND, 0, 10, 0, 0x12, 0);
	settle(&p);
	expect(p.a->send, IBV_WC_SUCCESS);
	assert_null(sim_poll(p.b->recv));
	sim_free(p.sim);
}

static void srq_serves_many(void **state)
{
	struct sim_qp_opts qo = {
		.type = IBV_QPT_RC,
		.cap = { 8, 0, 1, 0, 0 },
		.srq = true,
		.sig_all = true,
	};
	struct sim *sim = sim_new(4);
	struct sim_qp *a[3], *b[3];

	(void)state;
	for (int i = 0; i < 3; i++) {
		a[i] = sim_qp_new(sim, 0, &qo);
		b[i] = sim_qp_new(sim, 1, &qo);
		sim_connect(a[i], b[i], &sim_conn_default);
	}
	for (uint32_t i = 0; i < 3; i++) {
		struct ibv_sge sge = { (uintptr_t)sim->node[1].mem + i * 4096u,
				       4096, sim->node[1].lkey };
		struct ibv_recv_wr wr = { .wr_id = i,
					  .sg_list = &sge,
					  .num_sge = 1 };

		assert_int_equal(qp_rq_post(&sim->node[1].srq, &wr), 0);
	}
	for (int i = 2; i >= 0; i--)
		post_to(a[i], IBV_WR_SEND, 0, 4000);
	sim_run(sim, SIM_SEC);
	for (int i = 0; i < 3; i++) {
		expect(a[i]->send, IBV_WC_SUCCESS);
		expect(b[i]->recv, IBV_WC_SUCCESS);
	}
	/* An SRQ is not flushed: the QP says that it takes no more from it. */
	assert_int_equal(set_state(b[0], IBV_QPS_ERR), 0);
	assert_int_equal(b[0]->events, 1 << IBV_EVENT_QP_LAST_WQE_REACHED);
	sim_free(sim);
}

/* An XRC message names the SRQ that takes it (annex A14). */
static void xrc_reaches_the_srq(void **state)
{
	struct sim_qp_opts so = {
		.type = IBV_QPT_XRC_SEND,
		.cap = { 8, 0, 1, 0, 0 },
		.sig_all = true,
	};
	struct sim_qp_opts ro = { .type = IBV_QPT_XRC_RECV };
	struct sim *sim = sim_new(5);
	struct sim_qp *a = sim_qp_new(sim, 0, &so);
	struct sim_qp *b = sim_qp_new(sim, 1, &ro);
	struct ibv_sge sge = { (uintptr_t)sim->node[0].mem, 5000,
			       sim->node[0].lkey };
	struct ibv_sge rsge = { (uintptr_t)sim->node[1].mem, 5000,
				sim->node[1].lkey };
	struct ibv_recv_wr rr = { .wr_id = 9, .sg_list = &rsge, .num_sge = 1 };
	struct ibv_send_wr wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.qp_type.xrc.remote_srqn = SIM_XRC_SRQN,
	};
	const struct ibv_wc *wc;

	(void)state;
	sim->link.loss = 0.1;
	sim_connect(a, b, &sim_conn_default);
	memset(sim->node[0].mem, 0x42, 5000);
	assert_int_equal(qp_rq_post(&sim->node[1].srq, &rr), 0);
	assert_int_equal(sim_post_send(a, &wr), 0);
	wr.opcode = IBV_WR_RDMA_READ;
	wr.wr.rdma.remote_addr = (uintptr_t)sim->node[1].mem;
	wr.wr.rdma.rkey = sim->node[1].rkey;
	sge.addr += 8192;
	assert_int_equal(sim_post_send(a, &wr), 0);
	sim_run(sim, SIM_SEC);
	expect(a->send, IBV_WC_SUCCESS);
	expect(a->send, IBV_WC_SUCCESS);
	wc = sim_poll(b->recv);
	assert_true(wc && wc->wr_id == 9 && wc->byte_len == 5000);
	assert_memory_equal(sim->node[0].mem, sim->node[1].mem, 5000);
	assert_memory_equal(sim->node[0].mem + 8192, sim->node[1].mem, 5000);
	/* The responding half cannot send, the other cannot receive. */
	assert_int_equal(sim_post_send(b, &wr), -EINVAL);
	wr.opcode = IBV_WR_SEND;
	wr.qp_type.xrc.remote_srqn = 78;
	assert_int_equal(sim_post_send(a, &wr), 0);
	sim_run(sim, SIM_SEC);
	expect(a->send, IBV_WC_REM_INV_REQ_ERR);
	sim_free(sim);
}

static void uc_gets(struct pair *p, uint8_t opcode, uint32_t psn, uint32_t off,
		    char c, size_t len)
{
	uint8_t data[1024];
	struct roce_rx rx = {
		.h = { .opcode = ROCE_UC | opcode,
		       .pkey = 0xffff,
		       .psn = psn,
		       .dest_qpn = roce_qp_num(p->b->qp),
		       .va = remote(p->a, off),
		       .rkey = p->b->node->rkey,
		       .dma_len = opcode == ROCE_WRITE_ONLY ? (uint32_t)len :
							      2048 },
		.payload = data,
		.len = len,
		.sgid = p->a->node->gid,
		.dgid = p->b->node->gid,
	};

	memset(data, c, len);
	roce_rx(p->b->qp, &rx, p->sim->now);
}

/*
 * 9.8.2.2: a message begins with whatever PSN, also one that is behind the one
 * due; only within a message PSNs are in sequence. A stray packet costs no
 * more than the message that it falls into.
 */
static void uc_begins_anywhere(void **state)
{
	static const int32_t stray[] = { 1500, -1500, 8000000, -8000000, 1 };
	static const uint8_t ops[] = { ROCE_WRITE_ONLY, ROCE_WRITE_MIDDLE,
				       ROCE_WRITE_LAST };
	uint32_t psn = sim_conn_default.psn_a;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(stray) * ARRAY_SIZE(ops); i++) {
		struct pair p = pair_new(IBV_QPT_UC);

		uc_gets(&p, ops[i % 3],
			psn_add(psn, (uint32_t)stray[i / 3] & PSN_MASK), 65536,
			'?', ops[i % 3] == ROCE_WRITE_ONLY ? 8 : 1024);
		memset(p.a->node->mem, 'x', 16000);
		for (uint32_t k = 0; k < 2000; k++) {
			post_to(p.a, IBV_WR_RDMA_WRITE, 8 * k, 8);
			settle(&p);
		}
		assert_memory_equal(p.b->node->mem, p.a->node->mem, 16000);
		sim_free(p.sim);
	}
}

static void uc_out_of_sequence(void **state)
{
	struct pair p = pair_new(IBV_QPT_UC);
	const uint8_t *m = p.b->node->mem;
	uint32_t psn = sim_conn_default.psn_a;

	(void)state;
	/* A message without its first packet, or its second, is not one. */
	uc_gets(&p, ROCE_WRITE_LAST, psn_add(psn, 1), 0, 'a', 1024);
	uc_gets(&p, ROCE_WRITE_LAST, psn_add(psn, 2), 0, 'b', 1024);
	assert_int_equal(m[0], 0);
	uc_gets(&p, ROCE_WRITE_FIRST, psn_add(psn, 10), 0, 'c', 1024);
	uc_gets(&p, ROCE_WRITE_LAST, psn_add(psn, 12), 0, 'd', 1024);
	uc_gets(&p, ROCE_WRITE_LAST, psn_add(psn, 11), 0, 'e', 1024);
	assert_int_equal(m[0], 'c');
	assert_int_equal(m[1024], 0);
	/* It begins again, with the same PSN or another. */
	uc_gets(&p, ROCE_WRITE_FIRST, psn_add(psn, 10), 0, 'f', 1024);
	uc_gets(&p, ROCE_WRITE_FIRST, psn_add(psn, 10), 0, 'g', 1024);
	uc_gets(&p, ROCE_WRITE_LAST, psn_add(psn, 11), 0, 'h', 1024);
	assert_int_equal(m[0], 'g');
	assert_int_equal(m[1024], 'h');
	uc_gets(&p, ROCE_WRITE_ONLY, psn_add(psn, 2), 2048, 'i', 8);
	assert_int_equal(m[2048], 'i');
	assert_int_equal(roce_qp_state(p.b->qp), IBV_QPS_RTS);
	sim_free(p.sim);
}

/* Nothing more fits into b's CQ. */
static int complete_full(struct qp *qp, void *cq, const struct ibv_wc *wc,
			 bool solicited)
{
	(void)qp;
	(void)cq;
	(void)wc;
	(void)solicited;
	return -ENOSPC;
}

/*
 * A message that the receiving program will never hear of is not acknowledged;
 * those before it are. Its QP answers no more (class G, as rxe).
 */
static void full_cq_acknowledges_nothing(void **state)
{
	static const enum ibv_wr_opcode ops[] = { IBV_WR_SEND,
						  IBV_WR_RDMA_WRITE_WITH_IMM };

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(ops); i++) {
		struct pair p = pair_new(IBV_QPT_RC);
		struct seen *w = watch(&p);
		struct roce_hdr h = { .opcode = ROCE_SEND_ONLY,
				      .ack_req = true,
				      .psn = sim_conn_default.psn_a };

		for (uint32_t k = 0; k < 4; k++)
			recv_into(p.b, 0, 100);
		/* Both are here before anything is answered. */
		p.sim->link.drop = drop_all;
		post_to(p.a, IBV_WR_SEND, 0, 0);
		post_to(p.a, ops[i], 0, 0);
		p.sim->link.drop = NULL;
		w->n = 0;
		b_gets(&p, h);
		expect(p.b->recv, IBV_WC_SUCCESS);
		p.b->node->env.base.complete = complete_full;
		h.opcode = ops[i] == IBV_WR_SEND ? ROCE_SEND_ONLY :
						   ROCE_WRITE_ONLY_IMM;
		h.psn = psn_add(h.psn, 1);
		b_gets(&p, h);
		sim_pull(p.b);
		assert_int_equal(w->n, 1);
		assert_int_equal(w->pkt[0].h.opcode, ROCE_ACK);
		assert_int_equal(w->pkt[0].h.syndrome, 0x1f);
		assert_int_equal(w->pkt[0].h.psn, sim_conn_default.psn_a);
		assert_int_equal(w->pkt[0].h.msn, 1);
		assert_int_equal(roce_qp_state(p.b->qp), IBV_QPS_ERR);
		assert_int_equal(p.b->events, 1 << IBV_EVENT_QP_FATAL);
		settle(&p);
		expect(p.a->send, IBV_WC_SUCCESS);
		expect(p.a->send, IBV_WC_RETRY_EXC_ERR);
		sim_free(p.sim);
	}
}

/* Class D (9.9.3): a datagram that does not fit is not there. */
static void ud_too_long_is_dropped(void **state)
{
	(void)state;
	for (int srq = 0; srq < 2; srq++) {
		struct sim_qp_opts qo = {
			.type = IBV_QPT_UD,
			.sig_all = true,
			.srq = srq,
			.cap = { 8, srq ? 0 : 8, 1, srq ? 0 : 1, 0 },
		};
		struct pair p = { .sim = sim_new(1) };
		struct ibv_sge sge;
		struct ibv_recv_wr rr = { .wr_id = 7,
					  .sg_list = &sge,
					  .num_sge = 1 };
		const struct ibv_wc *wc;

		p.a = sim_qp_new(p.sim, 0, &qo);
		p.b = sim_qp_new(p.sim, 1, &qo);
		p.a->peer = p.b;
		sim_ud_up(p.a, 0x11);
		sim_ud_up(p.b, 0x11);
		memset(drops, 0, sizeof(drops));
		p.b->node->env.dropped = count_drops;
		sge = (struct ibv_sge){ (uintptr_t)p.b->node->mem, 100,
					p.b->node->lkey };
		assert_int_equal(srq ? qp_rq_post(&p.b->node->srq, &rr) :
				       sim_post_recv(p.b, &rr),
				 0);
		for (uint32_t i = 0; i < 3; i++)
			post(p.a, IBV_WR_SEND, 0, 61 + 300 * i, 0, 0x11, 0);
		settle(&p);
		assert_null(sim_poll(p.b->recv));
		assert_int_equal(roce_qp_state(p.b->qp), IBV_QPS_RTS);
		assert_int_equal(p.b->events, 0);
		assert_int_equal(drops[ROCE_DROP_QKEY], 3);
		if (srq)
			assert_int_equal(qp_rq_count(&p.b->node->srq), 1);
		post(p.a, IBV_WR_SEND, 0, 60, 0, 0x11, 0);
		settle(&p);
		wc = sim_poll(p.b->recv);
		assert_true(wc && wc->status == IBV_WC_SUCCESS &&
			    wc->wr_id == 7 && wc->byte_len == 100);
		assert_null(sim_poll(p.b->recv));
		/* Without a receive it is that which is missing. */
		post(p.a, IBV_WR_SEND, 0, 1, 0, 0x11, 0);
		settle(&p);
		assert_int_equal(drops[ROCE_DROP_NO_RECV], 1);
		sim_free(p.sim);
	}
}

/* C10-93.1.1: a datagram over the MTU completes and is not sent. */
static void ud_over_the_mtu_is_not_sent(void **state)
{
	struct pair p = pair_new(IBV_QPT_UD);
	struct seen *w = watch(&p);

	(void)state;
	recv_into(p.b, 8192, 8192);
	for (uint32_t len = 4095; len <= 4098; len++) {
		w->n = 0;
		post(p.a, IBV_WR_SEND, 0, len, 0, 0x11, 0);
		settle(&p);
		expect(p.a->send, IBV_WC_SUCCESS);
		assert_int_equal(w->n, len <= 4096);
		recv_into(p.b, 8192, 8192);
	}
	assert_int_equal(roce_qp_state(p.a->qp), IBV_QPS_RTS);
	sim_free(p.sim);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(wrong_qkey_is_dropped),
		cmocka_unit_test(srq_serves_many),
		cmocka_unit_test(xrc_reaches_the_srq),
		cmocka_unit_test(uc_begins_anywhere),
		cmocka_unit_test(uc_out_of_sequence),
		cmocka_unit_test(full_cq_acknowledges_nothing),
		cmocka_unit_test(ud_too_long_is_dropped),
		cmocka_unit_test(ud_over_the_mtu_is_not_sent),
	};

	cmocka_set_test_filter(getenv("SIM_TEST"));
	return cmocka_run_group_tests_name("sim_receives", tests, NULL, NULL);
}

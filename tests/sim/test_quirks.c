/*
 * test_quirks.c - the habits of other implementations
 *
 * docs/INTEROP.md has the table; tests/unit/test_quirks.py compares it with these
 * tests.
 */
#include "scripted.h"

#include "roce/roce_internal.h"

#include <stdlib.h>
#include <string.h>

/*
 * rxe as requester heeds one NAK of a gap, and the next only when an ACK has
 * come in between: one goes before a NAK that would be the second in a row.
 * The ACK is never behind the NAK, which would be older than it then.
 */
static void quirk_rxe_wants_acks_between_naks(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	struct seen *w = watch(&p);
	const struct roce_hdr *last = NULL;
	unsigned naks = 0;

	(void)state;
	/* No ACK is asked for, and after each NAK all is sent again. */
	for (uint32_t i = 0; i < 16; i++) {
		struct roce_hdr h = {
			.opcode = ROCE_WRITE_ONLY,
			.psn = psn_add(sim_conn_default.psn_a, i),
		};

		if (i % 4 == 3 && i < 12) {
			h.psn = psn_add(h.psn, 1);
			b_gets(&p, h);
			sim_pull(p.b);
			h.psn = psn_add(h.psn, PSN_MASK);
		}
		b_gets(&p, h);
		sim_pull(p.b);
	}
	for (size_t i = 0; i < w->n; i++) {
		const struct roce_hdr *h = &w->pkt[i].h;

		if (w->pkt[i].from != 1)
			continue;
		naks += is_nak_psn(h);
		if (last && is_nak_psn(h)) {
			assert_false(is_nak_psn(last));
			assert_int_equal(last->syndrome & ROCE_AETH_KIND,
					 ROCE_AETH_ACK);
			assert_int_equal(h->psn, psn_add(last->psn, 1));
		}
		last = h;
	}
	assert_int_equal(naks, 3);
	sim_free(p.sim);
}

/*
 * rxe that is not ready to receive the first packet of a burst says so, and
 * then NAKs the second as one out of sequence. The wait goes on all the same.
 */
static void quirk_rxe_nak_behind_rnr(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	struct seen *w = watch(&p);
	uint32_t psn = sim_conn_default.psn_a;

	(void)state;
	p.sim->link.loss = 1; /* b is played from here */
	post_to(p.a, IBV_WR_SEND, 0, 3000);
	assert_int_equal(w->n, 3);
	answer(&p, psn, ROCE_AETH_RNR | 12, 0); /* 0.64 ms */
	answer(&p, psn, ROCE_AETH_NAK | ROCE_NAK_PSN, 0);
	sim_run(p.sim, 500000);
	assert_int_equal(w->n, 3);
	sim_run(p.sim, 200000);
	assert_int_equal(w->n, 6);
	answer(&p, psn_add(psn, 2), 0x1f, 1);
	expect(p.a->send, IBV_WC_SUCCESS);
	sim_free(p.sim);
}

/*
 * The same with a wait that is longer than the ACK timeout and all retries: it
 * counts as an RNR retry and nothing else.
 */
static void quirk_rxe_nak_behind_long_rnr(void **state)
{
	struct sim_conn_opts co = sim_conn_default;
	uint32_t psn = co.psn_a;
	struct seen *w;
	struct pair p;

	(void)state;
	co.timeout = 12; /* 33.6 ms at most */
	co.retry_cnt = 1;
	p = pair_opts(IBV_QPT_RC, &co);
	w = watch(&p);
	p.sim->link.loss = 1; /* b is played from here */
	post_to(p.a, IBV_WR_SEND, 0, 3000);
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(w->n, 3 + 3 * i);
		answer(&p, psn, ROCE_AETH_RNR | 31, 0); /* 491.52 ms */
		answer(&p, psn, ROCE_AETH_NAK | ROCE_NAK_PSN, 0);
		sim_run(p.sim, 491 * 1000000);
		assert_null(sim_poll(p.a->send));
		assert_int_equal(w->n, 3 + 3 * i);
		sim_run(p.sim, 1000000);
	}
	answer(&p, psn_add(psn, 2), 0x1f, 1);
	expect(p.a->send, IBV_WC_SUCCESS);
	sim_free(p.sim);
}

/* rxe acknowledges each duplicate it gets by itself, with the latest PSN. */
static void quirk_rxe_acks_each_duplicate(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	uint32_t psn = sim_conn_default.psn_a;

	(void)state;
	p.sim->link.loss = 1;
	for (uint32_t i = 0; i < 20; i++) {
		post_to(p.a, IBV_WR_SEND, 0, 100);
		for (uint32_t k = 0; k < 5; k++)
			answer(&p, psn_add(psn, i), 0x1f, i + 1);
		expect(p.a->send, IBV_WC_SUCCESS);
		assert_null(sim_poll(p.a->send));
	}
	assert_int_equal(roce_qp_stats(p.a->qp)->retransmits, 0);
	assert_int_equal(roce_qp_state(p.a->qp), IBV_QPS_RTS);
	sim_free(p.sim);
}

/*
 * rxe sends MigReq 0, and leaves in the compare field of a FetchAdd what was in
 * the buffer before.
 */
static void quirk_rxe_fields(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	struct roce_hdr h = {
		.opcode = ROCE_FETCH_ADD,
		.psn = sim_conn_default.psn_a,
		.mig_req = false,
		.va = (uintptr_t)p.b->node->mem,
		.rkey = p.b->node->rkey,
		.swap_add = 5,
		.compare = 0x5a5a5a5a5a5a5a5a,
	};

	(void)state;
	b_gets(&p, h);
	assert_int_equal(*(uint64_t *)p.b->node->mem, 5);
	h.mig_req = true;
	h.psn = psn_add(h.psn, 1);
	b_gets(&p, h);
	assert_int_equal(*(uint64_t *)p.b->node->mem, 10);
	sim_free(p.sim);
}

/*
 * rxe gives up its QP when an ACK with the PSN of a read or atomic overtakes
 * the response: ours name a PSN before it, though the read was accepted.
 */
static void quirk_rxe_no_ack_of_reads(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	struct seen *w = watch(&p);
	uint32_t read = psn_add(sim_conn_default.psn_a, 1);

	(void)state;
	recv_into(p.b, 0, 100);
	post_to(p.a, IBV_WR_SEND, 0, 100);
	settle(&p);
	post_to(p.a, IBV_WR_RDMA_READ, 4096, 3000);
	settle(&p);
	w->n = 0;
	/* A duplicate of the send makes b acknowledge again. */
	b_gets(&p, (struct roce_hdr){ .opcode = ROCE_SEND_ONLY,
				      .ack_req = true,
				      .psn = sim_conn_default.psn_a });
	sim_pull(p.b);
	assert_int_equal(w->n, 1);
	assert_int_equal(w->pkt[0].h.opcode, ROCE_ACK);
	assert_true(psn_diff(w->pkt[0].h.psn, read) < 0);
	sim_free(p.sim);
}

/*
 * rxe's requester starts its retransmission timer anew with whatever answer
 * comes in. What nobody can have sent, or sent again, is not answered, or a
 * stream of forged packets would put its retries off for as long as it lasts.
 */
static void quirk_rxe_timer_is_put_off(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	struct seen *w = watch(&p);
	uint32_t psn = sim_conn_default.psn_a;
	struct roce_rx rx = {
		.h = { .opcode = ROCE_WRITE_ONLY,
		       .pkey = 0xffff,
		       .ack_req = true,
		       .dest_qpn = roce_qp_num(p.b->qp),
		       .va = (uintptr_t)p.b->node->mem,
		       .rkey = p.b->node->rkey },
		.sgid = p.a->node->gid,
		.dgid = p.b->node->gid,
	};
	static const struct {
		int32_t behind; /* the first PSN */
		uint8_t opcode;
		uint32_t length;
		size_t answers;
	} step[] = {
		{ 0, ROCE_WRITE_ONLY, 0, 1 }, /* just done */
		{ 1000, ROCE_WRITE_ONLY, 0, 1 },
		{ -65536, ROCE_WRITE_ONLY, 0, 0 },
		{ -1000000, ROCE_SEND_ONLY, 0, 0 },
		{ -999999, ROCE_SEND_ONLY, 0, 1 }, /* goes on */
		{ -999997, ROCE_SEND_ONLY, 0, 0 },
		{ -5000000, ROCE_WRITE_ONLY, 0, 0 },
		/* Only what has been read: three packets from PSN 1 on. */
		{ -100000, ROCE_READ_REQUEST, 3000, 0 },
		{ -1, ROCE_READ_REQUEST, 3000, 0 },
		{ 1, ROCE_READ_REQUEST, 3000, 3 },
		{ 2, ROCE_READ_REQUEST, 1900, 2 },
		{ 3, ROCE_READ_REQUEST, 1900, 0 },
		{ 4, ROCE_READ_REQUEST, 100, 0 },
		{ -100000, ROCE_FETCH_ADD, 0, 0 },
		/* Ahead: no NAK, which there is only one of, but for a row. */
		{ 1000000, ROCE_WRITE_ONLY, 0, 0 },
		{ 1000002, ROCE_WRITE_ONLY, 0, 0 },
		{ 1000003, ROCE_WRITE_ONLY, 0, 1 },
		{ 1000004, ROCE_WRITE_ONLY, 0, 0 }, /* the same gap */
		{ 1010, ROCE_WRITE_ONLY, 0, 2 }, /* has gone back: once */
		{ 1011, ROCE_WRITE_ONLY, 0, 0 },
	};

	(void)state;
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, 8);
	post_to(p.a, IBV_WR_RDMA_READ, 0, 3000);
	settle(&p);
	for (int i = 0; i < 40; i++) {
		post_to(p.a, IBV_WR_RDMA_WRITE, 0, 25 * 1024);
		settle(&p);
	}
	for (size_t i = 0; i < ARRAY_SIZE(step); i++) {
		w->n = 0;
		rx.h.opcode = step[i].opcode;
		rx.h.psn = psn_add(psn, (uint32_t)step[i].behind & PSN_MASK);
		rx.h.dma_len = step[i].length;
		roce_rx(p.b->qp, &rx, p.sim->now);
		sim_pull(p.b);
		if (w->n != step[i].answers)
			fail_msg("step %zu: %zu answers", i, w->n);
	}
	assert_int_equal(roce_qp_state(p.b->qp), IBV_QPS_RTS);
	sim_free(p.sim);
}

/* rxe answers a send that is too long with NAK 0x63 where 0x61 is due. */
static void quirk_rxe_long_send(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	struct roce_hdr h = {
		.opcode = ROCE_ACK,
		.pkey = 0xffff,
		.dest_qpn = roce_qp_num(p.a->qp),
		.psn = sim_conn_default.psn_a,
		.syndrome = 0x63,
	};
	uint8_t buf[ROCE_HDR_MAX];

	(void)state;
	p.sim->link.loss = 1;
	post_to(p.a, IBV_WR_SEND, 0, 100);
	p.sim->link.loss = 0;
	sim_inject(p.sim, 0, buf, roce_encode(&h, buf));
	sim_run(p.sim, 1000000);
	expect(p.a->send, IBV_WC_REM_OP_ERR);
	sim_free(p.sim);
}

/*
 * rxe acknowledges a send whose invalidation it refuses, without counting it in
 * the MSN, and fails its receive afterwards: for its requester it is done, and
 * what follows finds nobody.
 */
static void quirk_rxe_acks_bad_invalidate(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	struct ibv_sge sge = { (uintptr_t)p.a->node->mem, 100,
			       p.a->node->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND_WITH_INV,
		.invalidate_rkey = 0xbadbad,
	};
	struct seen *w = watch(&p);
	uint32_t psn = sim_conn_default.psn_a;

	(void)state;
	p.sim->link.loss = 1; /* b is played from here */
	assert_int_equal(sim_post_send(p.a, &wr), 0);
	assert_int_equal(w->n, 1);
	assert_int_equal(w->pkt[0].h.opcode, ROCE_SEND_ONLY_INV);
	assert_int_equal(w->pkt[0].h.inv_rkey, 0xbadbad);
	answer(&p, psn, 0x1f, 0);
	expect(p.a->send, IBV_WC_SUCCESS);
	assert_int_equal(roce_qp_state(p.a->qp), IBV_QPS_RTS);
	post_to(p.a, IBV_WR_SEND, 0, 100);
	settle(&p);
	expect(p.a->send, IBV_WC_RETRY_EXC_ERR);
	sim_free(p.sim);

	/* So does ours, as mlx5: the send has arrived (class J). */
	p = pair_new(IBV_QPT_RC);
	sge.addr = (uintptr_t)p.a->node->mem;
	sge.lkey = p.a->node->lkey;
	recv_into(p.b, 0, 100);
	assert_int_equal(sim_post_send(p.a, &wr), 0);
	settle(&p);
	expect(p.a->send, IBV_WC_SUCCESS);
	expect(p.b->recv, IBV_WC_REM_INV_REQ_ERR);
	assert_int_equal(roce_qp_state(p.b->qp), IBV_QPS_ERR);
	assert_int_equal(p.b->events, 1 << IBV_EVENT_QP_ACCESS_ERR);
	sim_free(p.sim);
}

/*
 * A UC send that is longer than the receive ends rxe's receive with an error,
 * and its QP. Ours drops the message (9.8.2.2), whichever of its packets is too
 * much, and keeps the receive for the next; as a sender it hears of nothing.
 */
static void quirk_rxe_uc_long_send(void **state)
{
	static const uint32_t room[] = { 0, 1, 1023, 1024, 2999 };

	(void)state;
	for (size_t i = 0; i < 5; i++) {
		struct pair p = pair_new(IBV_QPT_UC);
		const struct ibv_wc *wc;

		recv_into(p.b, 4096, room[i]);
		post_to(p.a, IBV_WR_SEND, 0, 3000);
		settle(&p);
		expect(p.a->send, IBV_WC_SUCCESS);
		assert_null(sim_poll(p.b->recv));
		assert_int_equal(roce_qp_state(p.b->qp), IBV_QPS_RTS);
		assert_int_equal(p.b->events, 0);
		memset(p.a->node->mem, 7, 1024);
		post_to(p.a, IBV_WR_SEND, 0, room[i]);
		settle(&p);
		expect(p.a->send, IBV_WC_SUCCESS);
		wc = sim_poll(p.b->recv);
		assert_true(wc && wc->status == IBV_WC_SUCCESS &&
			    wc->wr_id == 4096 && wc->byte_len == room[i]);
		assert_memory_equal(p.b->node->mem + 4096, p.a->node->mem,
				    room[i]);
		assert_null(sim_poll(p.b->recv));
		sim_free(p.sim);
	}
}

/* rxe's receive completions of RC have the GRH flag; only UD's ought to. */
static void quirk_rxe_grh_flag(void **state)
{
	static const enum ibv_qp_type types[] = { IBV_QPT_RC, IBV_QPT_UC,
						  IBV_QPT_UD };

	(void)state;
	for (size_t i = 0; i < 3; i++) {
		struct pair p = pair_new(types[i]);
		const struct ibv_wc *wc;

		recv_into(p.b, 0, 200);
		post(p.a, IBV_WR_SEND, 0, 100, 0, 0x11, 0);
		settle(&p);
		wc = sim_poll(p.b->recv);
		assert_true(wc && wc->status == IBV_WC_SUCCESS);
		assert_int_equal(wc->wc_flags & IBV_WC_GRH,
				 types[i] == IBV_QPT_UD ? IBV_WC_GRH : 0);
		sim_free(p.sim);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(quirk_rxe_wants_acks_between_naks),
		cmocka_unit_test(quirk_rxe_nak_behind_rnr),
		cmocka_unit_test(quirk_rxe_nak_behind_long_rnr),
		cmocka_unit_test(quirk_rxe_acks_each_duplicate),
		cmocka_unit_test(quirk_rxe_fields),
		cmocka_unit_test(quirk_rxe_no_ack_of_reads),
		cmocka_unit_test(quirk_rxe_timer_is_put_off),
		cmocka_unit_test(quirk_rxe_long_send),
		cmocka_unit_test(quirk_rxe_acks_bad_invalidate),
		cmocka_unit_test(quirk_rxe_uc_long_send),
		cmocka_unit_test(quirk_rxe_grh_flag),
	};

	cmocka_set_test_filter(getenv("SIM_TEST"));
	return cmocka_run_group_tests_name("sim_quirks", tests, NULL, NULL);
}

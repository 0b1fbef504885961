/*
 * test_duplicates.c - what was executed may be asked for again
 */
#include "scripted.h"

#include "roce/roce_internal.h"

#include <stdlib.h>
#include <string.h>

/*
 * 9.7.7.1: the MSN says how many messages are done, also in what answers a
 * repetition: an atomic that is asked for again, behind others, is answered with
 * what was found then and the MSN of now, as a read is. Seen of rxe as well.
 */
static void repeated_atomic_has_the_msn_of_now(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	struct seen *w = watch(&p);

	(void)state;
	*(uint64_t *)p.b->node->mem = 40;
	post_to(p.a, IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 8);
	post_to(p.a, IBV_WR_RDMA_WRITE, 64, 100);
	post_to(p.a, IBV_WR_RDMA_WRITE, 64, 100);
	settle(&p);
	w->n = 0;
	b_gets(&p, (struct roce_hdr){ .opcode = ROCE_FETCH_ADD,
				      .ack_req = true,
				      .psn = sim_conn_default.psn_a,
				      .va = remote(p.a, 0),
				      .rkey = p.b->node->rkey,
				      .swap_add = 1 });
	sim_pull(p.b);
	assert_int_equal(w->n, 1);
	assert_int_equal(w->pkt[0].h.opcode, ROCE_ATOMIC_ACK);
	assert_int_equal(w->pkt[0].h.psn, sim_conn_default.psn_a);
	assert_int_equal(w->pkt[0].h.atomic_orig, 40);
	assert_int_equal(w->pkt[0].h.msn, 3);
	assert_int_equal(*(uint64_t *)p.b->node->mem, 41);
	sim_free(p.sim);
}

/* A request as the peer could have sent it, but for its PSN: far from here. */
static void forge(struct pair *p, struct sim_rng *rng)
{
	static const uint8_t ops[] = {
		ROCE_SEND_FIRST, ROCE_SEND_ONLY,  ROCE_WRITE_FIRST,
		ROCE_WRITE_LAST, ROCE_WRITE_ONLY, ROCE_READ_REQUEST,
		ROCE_CMP_SWAP,   ROCE_FETCH_ADD,
	};
	uint8_t data[1024] = { 0 };
	struct roce_rx rx = {
		.h = { .opcode = ops[sim_below(rng, ARRAY_SIZE(ops))],
		       .pkey = 0xffff,
		       .ack_req = sim_below(rng, 2),
		       .psn = psn_add(sim_conn_default.psn_a,
				      (1 << 17) + sim_below(rng, 0xfc0000)),
		       .dest_qpn = roce_qp_num(p->b->qp),
		       .va = remote(p->a, 1 << 20),
		       .rkey = p->b->node->rkey,
		       .dma_len = sim_below(rng, 4096),
		       .swap_add = 1 },
		.payload = data,
		.len = sim_below(rng, sizeof(data) + 1),
		.sgid = p->a->node->gid,
		.dgid = p->b->node->gid,
	};

	roce_rx(p->b->qp, &rx, p->sim->now);
	sim_pull(p->b);
}

/*
 * Traffic with and without such packets, from the same seed: what the responder
 * sends is the same, packet by packet, also when some of it gets lost.
 */
static void out_of_window_packets_change_nothing(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 20; seed++) {
		uint64_t sent[2], end[2];

		for (int forged = 0; forged < 2; forged++) {
			struct pair p = pair_new(IBV_QPT_RC);
			struct sim_rng rng = { seed }, other = { ~seed };

			p.sim->rng.state = seed;
			p.sim->link.loss = seed % 2 ? 0 : 0.02;
			for (uint32_t i = 0; i < 60; i++) {
				uint32_t len = sim_below(&rng, 20000);

				recv_into(p.b, 0, 20000);
				post_to(p.a, IBV_WR_RDMA_WRITE, 0, len);
				post_to(p.a, IBV_WR_SEND, 0, len);
				post_to(p.a, IBV_WR_RDMA_READ, 0, len);
				post_to(p.a, IBV_WR_ATOMIC_FETCH_AND_ADD, 32768,
					8);
				for (int k = 0; forged && k < 20; k++)
					forge(&p, &other);
				settle(&p);
				for (int k = 0; k < 4; k++)
					expect(p.a->send, IBV_WC_SUCCESS);
				expect(p.b->recv, IBV_WC_SUCCESS);
				for (int k = 0; forged && k < 20; k++)
					forge(&p, &other);
			}
			assert_int_equal(*(uint64_t *)(p.b->node->mem + 32768),
					 60);
			sent[forged] = roce_qp_stats(p.b->qp)->tx_pkts;
			end[forged] = p.sim->packets;
			sim_free(p.sim);
		}
		assert_int_equal(sent[0], sent[1]);
		assert_int_equal(end[0], end[1]);
	}
}

static void resize(struct sim_qp *q, uint8_t max_dest_rd_atomic)
{
	struct ibv_qp_attr a = { .max_dest_rd_atomic = max_dest_rd_atomic };

	assert_int_equal(set_state(q, IBV_QPS_SQD), 0);
	assert_int_equal(
		roce_qp_modify(q->qp, &a, IBV_QP_MAX_DEST_RD_ATOMIC, NULL), 0);
	assert_int_equal(set_state(q, IBV_QPS_RTS), 0);
}

/*
 * Responder resources are changed between a request and its repetition: what
 * was executed is answered all the same, with more room or with less.
 */
static void resize_keeps_what_was_executed(void **state)
{
	static const struct {
		enum ibv_wr_opcode op;
		uint8_t response;
		uint32_t len;
	} k[] = {
		{ IBV_WR_RDMA_READ, ROCE_READ_RESP_LAST, 3000 },
		{ IBV_WR_ATOMIC_FETCH_AND_ADD, ROCE_ATOMIC_ACK, 8 },
	};
	static const uint8_t room[] = { 1, 3, 4, 5, 16, 128 };

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(k) * ARRAY_SIZE(room); i++) {
		struct pair p = pair_new(IBV_QPT_RC);
		struct script sc = { .opcode = k[i % 2].response, .count = 1 };

		packets_of_mtu(&p);
		/* The rings are in mid-turn when they are copied. */
		for (uint32_t n = 0; n < 3; n++) {
			post_to(p.a, k[i % 2].op, 8192, 8);
			settle(&p);
			expect(p.a->send, IBV_WC_SUCCESS);
		}
		memset(p.b->node->mem, 0, 3000);
		script(&p, &sc);
		post_to(p.a, k[i % 2].op, 0, k[i % 2].len);
		sim_run(p.sim, 100000);
		assert_null(sim_poll(p.a->send));
		resize(p.b, room[i / 2]);
		settle(&p);
		expect(p.a->send, IBV_WC_SUCCESS);
		if (k[i % 2].len == 8)
			assert_int_equal(*(uint64_t *)p.b->node->mem, 1);
		/* And there is as much room as was asked for. */
		for (uint32_t n = 0; n < 3; n++)
			post_to(p.a, k[i % 2].op, 64, 8);
		settle(&p);
		assert_int_equal(roce_qp_state(p.b->qp), IBV_QPS_RTS);
		sim_free(p.sim);
	}
}

static int no_memory(const void *p, size_t len, bool write)
{
	(void)p;
	(void)len;
	(void)write;
	return -EFAULT;
}

/*
 * A read is asked for again, and its memory is gone: the requester learns that.
 * It may have invalidated the key itself once it had the answer: a repetition
 * of that is not answered.
 */
static void repeated_read_of_what_is_gone(void **state)
{
	(void)state;
	for (int key = 0; key < 2; key++) {
		struct pair p = pair_new(IBV_QPT_RC);
		struct script sc = { .opcode = ROCE_READ_RESP_LAST,
				     .count = 1 };

		packets_of_mtu(&p);
		script(&p, &sc);
		post_to(p.a, IBV_WR_RDMA_READ, 0, 3000);
		sim_run(p.sim, 100000);
		assert_null(sim_poll(p.a->send));
		if (key)
			keys_kill(&p.b->node->keys, (uint32_t)p.b->node->slot);
		p.b->node->env.base.odp_touch = no_memory;
		roce_tx_doubt(p.b->qp); /* the link has found it missing */
		settle(&p);
		expect(p.a->send,
		       key ? IBV_WC_RETRY_EXC_ERR : IBV_WC_REM_ACCESS_ERR);
		/* It may have been a late copy of an answered request. */
		assert_int_equal(roce_qp_state(p.b->qp), IBV_QPS_RTS);
		sim_free(p.sim);
	}
}

/* What has been accepted and waits for the link is not forgotten either. */
static void resize_keeps_what_is_due(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	struct seen *w = watch(&p);
	struct roce_hdr h = { .opcode = ROCE_READ_REQUEST, .dma_len = 8 };

	(void)state;
	h.va = (uintptr_t)p.b->node->mem;
	h.rkey = p.b->node->rkey;
	for (uint32_t i = 0; i < 12; i++) {
		if (i == 4)
			resize(p.b, 12);
		h.psn = psn_add(sim_conn_default.psn_a, i);
		b_gets(&p, h);
	}
	resize(p.b, 2);
	sim_pull(p.b);
	assert_int_equal(w->n, 12);
	for (uint32_t i = 0; i < 12; i++) {
		assert_int_equal(w->pkt[i].h.opcode, ROCE_READ_RESP_ONLY);
		assert_int_equal(w->pkt[i].h.psn,
				 psn_add(sim_conn_default.psn_a, i));
	}
	for (uint32_t i = 12; i < 15; i++) {
		h.psn = psn_add(sim_conn_default.psn_a, i);
		b_gets(&p, h);
	}
	assert_int_equal(roce_qp_state(p.b->qp), IBV_QPS_ERR);
	sim_free(p.sim);
}

/* The responses due are counted without end. */
static void responses_are_due_for_ever(void **state)
{
	struct sim_conn_opts co = sim_conn_default;
	struct roce_hdr h = { .opcode = ROCE_READ_REQUEST, .dma_len = 8 };

	(void)state;
	for (uint32_t n = 1; n <= 9; n++) {
		struct seen *w;
		struct pair p;

		co.dest_rd_atomic = (uint8_t)n;
		p = pair_opts(IBV_QPT_RC, &co);
		w = watch(&p);
		p.b->qp->rsp.resp_head = p.b->qp->rsp.resp_tail = -(n / 2);
		h.va = (uintptr_t)p.b->node->mem;
		h.rkey = p.b->node->rkey;
		for (uint32_t i = 0; i < n; i++) {
			h.psn = psn_add(co.psn_a, i);
			b_gets(&p, h);
		}
		sim_pull(p.b);
		assert_int_equal(w->n, n);
		for (uint32_t i = 0; i < n; i++)
			assert_int_equal(w->pkt[i].h.psn, psn_add(co.psn_a, i));
		sim_free(p.sim);
	}
}

/* Takes b so many packets on: reads whose responses nobody waits for. */
static void b_goes_on(struct pair *p, uint32_t psn, uint32_t npkts)
{
	struct roce_responder *r = &p->b->qp->rsp;

	/* As long as a region that only has to be there. */
	static struct key_entry e = { .access = IBV_ACCESS_REMOTE_READ,
				      .pd = 1,
				      .kind = KEY_MR,
				      .iova = 1 << 20,
				      .length = 1ull << 31 };
	int slot = keys_add(&p->b->node->keys, &e);

	assert_true(slot >= 0);
	while (npkts) {
		uint32_t n = min_u32(npkts, 1 << 23);

		b_gets(p, (struct roce_hdr){
				  .opcode = ROCE_READ_REQUEST,
				  .psn = psn,
				  .va = e.iova,
				  .rkey = p->b->node->keys.entry[slot].rkey,
				  .dma_len = n * 256 });
		r->resp_head = r->resp_tail;
		psn = psn_add(psn, n);
		npkts -= n;
	}
	assert_int_equal(r->epsn, psn);
}

/* 2^24 packets later a PSN is another request's. */
static void old_results_are_not_replayed(void **state)
{
	struct sim_conn_opts co = sim_conn_default;
	struct roce_hdr add = { .opcode = ROCE_FETCH_ADD,
				.ack_req = true,
				.swap_add = 1 };

	(void)state;
	co.mtu = IBV_MTU_256;
	for (uint32_t more = 0; more < 2; more++) {
		struct pair p = pair_opts(IBV_QPT_RC, &co);
		struct seen *w = watch(&p);

		add.psn = co.psn_a;
		add.va = remote(p.a, 0);
		add.rkey = p.b->node->rkey;
		b_gets(&p, add);
		sim_pull(p.b);
		assert_int_equal(w->n, 1);
		assert_int_equal(w->pkt[0].h.atomic_orig, 0);
		b_goes_on(&p, psn_add(co.psn_a, 1), PSN_MASK + more);
		w->n = 0;
		if (more) {
			/* Now it is a part of a read: no atomic was there. */
			b_gets(&p, add);
			sim_pull(p.b);
			assert_int_equal(w->n, 0);
		} else {
			b_gets(&p, add);
			b_gets(&p, add);
			sim_pull(p.b);
			assert_int_equal(w->n, 2);
			assert_int_equal(w->pkt[0].h.atomic_orig, 1);
			assert_int_equal(w->pkt[1].h.atomic_orig, 1);
		}
		assert_int_equal(*(uint64_t *)p.b->node->mem, 2 - more);
		sim_free(p.sim);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(repeated_atomic_has_the_msn_of_now),
		cmocka_unit_test(out_of_window_packets_change_nothing),
		cmocka_unit_test(resize_keeps_what_was_executed),
		cmocka_unit_test(repeated_read_of_what_is_gone),
		cmocka_unit_test(resize_keeps_what_is_due),
		cmocka_unit_test(responses_are_due_for_ever),
		cmocka_unit_test(old_results_are_not_replayed),
	};

	cmocka_set_test_filter(getenv("SIM_TEST"));
	return cmocka_run_group_tests_name("sim_duplicates", tests, NULL, NULL);
}

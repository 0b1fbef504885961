/*
 * test_timewait.c - what is left of a QP that its program has destroyed
 */
#include "scripted.h"

#include "roce/roce_internal.h"

#include <stdlib.h>
#include <string.h>

/* Nor does it matter when the QP that owed the last ACK is gone by then. */
static void lost_last_ack_is_given_again(void **state)
{
	const enum ibv_qp_type types[][2] = {
		{ IBV_QPT_RC, IBV_QPT_RC },
		{ IBV_QPT_XRC_SEND, IBV_QPT_XRC_RECV },
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(types); i++) {
		struct sim_qp_opts qo = { .cap = { .max_send_wr = 4,
						   .max_send_sge = 1 },
					  .sig_all = true };
		struct pair p = { .sim = sim_new(1) };
		/* More than one for each of several probes. */
		struct script sc = { .opcode = ROCE_ACK, .count = 9 };

		qo.type = types[i][0];
		p.a = sim_qp_new(p.sim, 0, &qo);
		qo.type = types[i][1];
		p.b = sim_qp_new(p.sim, 1, &qo);
		sim_connect(p.a, p.b, &sim_conn_default);
		if (qo.type == IBV_QPT_XRC_RECV)
			sc.opcode |= ROCE_XRC;
		script(&p, &sc);
		memset(p.a->node->mem, 3, 40000);
		post_to(p.a, IBV_WR_RDMA_WRITE, 0, 40000);
		sim_run(p.sim, SIM_SEC / 1000);
		assert_memory_equal(p.a->node->mem, p.b->node->mem, 40000);
		assert_true(sc.count < 9);
		sim_qp_leave(p.b);
		settle(&p);
		expect(p.a->send, IBV_WC_SUCCESS);
		assert_int_equal(roce_qp_state(p.a->qp), IBV_QPS_RTS);
		assert_int_equal(sc.count, 0);
		assert_int_equal(sc.naks, 0);
		sim_free(p.sim);
	}
}

/* One request into what is left of p->b: whether an ACK comes of it. */
static bool acked_after(struct pair *p, const struct roce_rx *rx, uint32_t psn)
{
	struct roce_timewait w = p->b->timewait;
	struct roce_batch b;
	struct roce_hdr h;

	if (!roce_timewait_rx(&w, rx, &b, p->sim->now)) {
		assert_int_equal(b.n, 0);
		return false;
	}
	assert_int_equal(b.n, 1);
	assert_int_equal(b.data.n + b.data.nkeys + b.pkt[0].payload, 0);
	h = b.pkt[0].h;
	assert_int_equal(h.opcode, ROCE_ACK);
	assert_int_equal(h.dest_qpn, roce_qp_num(p->a->qp));
	assert_int_equal(h.pkey, 0xffff);
	assert_int_equal(h.psn, psn);
	assert_int_equal(h.syndrome, ROCE_AETH_ACK | ROCE_CREDITS_INVALID);
	assert_int_equal(h.msn, 3);
	assert_memory_equal(&b.pkt[0].path->dgid, &p->a->node->gid, 16);
	/* The same again at once, once. */
	assert_true(roce_timewait_rx(&w, rx, &b, p->sim->now + 1));
	assert_int_equal(b.n, 0);
	assert_true(roce_timewait_rx(&w, rx, &b, p->sim->now + SIM_SEC / 100));
	assert_int_equal(b.n, 1);
	return true;
}

/* What is left of a QP says its last ACK, to its peer, and nothing else. */
static void gone_qp_repeats_one_ack(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	const uint32_t first = sim_conn_default.psn_a;
	struct roce_rx rx = {
		.h = { .opcode = ROCE_WRITE_ONLY,
		       .pkey = 0xffff,
		       .dest_qpn = roce_qp_num(p.b->qp),
		       .ack_req = true,
		       .va = remote(p.a, 0),
		       .rkey = p.b->node->rkey,
		       .dma_len = 4 },
		.payload = (const uint8_t *)"ABCD",
		.len = 4,
		.sgid = p.a->node->gid,
		.dgid = p.b->node->gid,
	};
	struct roce_rx odd;

	(void)state;
	recv_into(p.b, 0, 3000);
	post_to(p.a, IBV_WR_SEND, 0, 3000); /* PSNs 0, 1, 2 */
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, 8); /* 3 */
	post_to(p.a, IBV_WR_RDMA_READ, 64, 100); /* 4 */
	settle(&p);
	sim_qp_leave(p.b);
	assert_true(p.b->left);
	assert_false(p.b->timewait.lossy);

	/* Each packet before the read is accepted by an ACK of the last. */
	for (uint32_t i = 0; i < 4; i++) {
		rx.h.psn = psn_add(first, i);
		assert_true(acked_after(&p, &rx, psn_add(first, 3)));
	}
	/* Nothing was executed. */
	assert_int_equal(p.b->node->mem[0], 0);
	assert_int_equal(p.b->recv->n, 1);

	odd = rx;
	odd.h.psn = psn_add(first, 4); /* what the read had */
	assert_false(acked_after(&p, &odd, 0));
	odd.h.psn = psn_add(first, 5); /* new */
	assert_false(acked_after(&p, &odd, 0));
	odd.h.psn = psn_add(first, 1 << 20); /* far, on either side */
	assert_false(acked_after(&p, &odd, 0));
	odd.h.psn = psn_add(first, PSN_MASK - (1 << 20));
	assert_false(acked_after(&p, &odd, 0));
	odd = rx;
	odd.h.opcode = ROCE_READ_REQUEST;
	assert_false(acked_after(&p, &odd, 0));
	odd.h.opcode = ROCE_FETCH_ADD;
	assert_false(acked_after(&p, &odd, 0));
	odd.h.opcode = ROCE_ATOMIC_WRITE;
	assert_false(acked_after(&p, &odd, 0));
	odd.h.opcode = ROCE_ACK; /* or two of them would never end */
	assert_false(acked_after(&p, &odd, 0));
	odd.h.opcode = ROCE_READ_RESP_ONLY;
	assert_false(acked_after(&p, &odd, 0));
	odd.h.opcode = ROCE_CNP;
	assert_false(acked_after(&p, &odd, 0));
	odd.h.opcode = ROCE_UC | ROCE_WRITE_ONLY;
	assert_false(acked_after(&p, &odd, 0));
	odd = rx;
	odd.sgid.raw[15] ^= 1;
	assert_false(acked_after(&p, &odd, 0));
	odd = rx;
	odd.dgid.raw[15] ^= 1;
	assert_false(acked_after(&p, &odd, 0));
	odd = rx;
	odd.h.dest_qpn++;
	assert_false(acked_after(&p, &odd, 0));
	odd = rx;
	odd.h.pkey = 0x8001;
	assert_false(acked_after(&p, &odd, 0));
	odd = rx;
	odd.h.tver = 1;
	assert_false(acked_after(&p, &odd, 0));
	sim_free(p.sim);
}

/* Of a QP whose peer has nothing to ask for, nothing is left. */
static void gone_qp_owes_nothing(void **state)
{
	const enum ibv_qp_type types[] = { IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD };

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(types); i++) {
		struct pair p = pair_new(types[i]);

		if (types[i] == IBV_QPT_UC) {
			recv_into(p.b, 0, 100);
			post_to(p.a, IBV_WR_SEND, 0, 100);
			settle(&p);
		}
		sim_qp_leave(p.b); /* connected, and nothing arrived */
		assert_false(p.b->left);
		sim_free(p.sim);
	}
	for (int to = 0; to < 2; to++) {
		struct pair p = pair_new(IBV_QPT_RC);

		post_to(p.a, IBV_WR_RDMA_WRITE, 0, 100);
		settle(&p);
		/* In either state it had stopped answering before. */
		set_state(p.b, to ? IBV_QPS_ERR : IBV_QPS_RESET);
		sim_qp_leave(p.b);
		assert_false(p.b->left);
		sim_free(p.sim);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lost_last_ack_is_given_again),
		cmocka_unit_test(gone_qp_repeats_one_ack),
		cmocka_unit_test(gone_qp_owes_nothing),
	};

	cmocka_set_test_filter(getenv("SIM_TEST"));
	return cmocka_run_group_tests_name("sim_timewait", tests, NULL, NULL);
}

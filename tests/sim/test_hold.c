/*
 * test_hold.c - acknowledgements that leave behind the program's answer
 *
 * One that is held leaves with what is posted, or when it is released; nobody is
 * kept waiting who has sent more; and what the link does not take is not lost.
 */
#include "scripted.h"

#include "roce/roce_internal.h"

#include <stdlib.h>

#define HOLD_NS 100000u
#define PATIENCE 64 /* messages, after which it is known what a program does */

/* b's ACKs may wait. */
static struct pair pair_holding(void)
{
	struct pair p = pair_new(IBV_QPT_RC);

	packets_of_mtu(&p);
	p.sim->hold = 1;
	p.sim->hold_ns = HOLD_NS;
	return p;
}

static void receive(struct sim_qp *q)
{
	assert_int_equal(recv_into(q, 4096, 64), 0);
}

/* Runs until q has received. */
static void wait_for(struct pair *p, struct sim_qp *q)
{
	for (int i = 0; i < 100000; i++) {
		const struct ibv_wc *wc = sim_poll(q->recv);

		if (wc) {
			assert_int_equal(wc->status, IBV_WC_SUCCESS);
			return;
		}
		sim_run(p->sim, 10);
	}
	fail_msg("nothing was received");
}

static size_t acks_of(const struct seen *seen, int from)
{
	size_t n = 0;

	for (size_t i = 0; i < seen->n; i++)
		n += seen->pkt[i].from == from &&
		     seen->pkt[i].h.opcode == ROCE_ACK;
	return n;
}

/* b answers each message at once: the ACK is right behind the answer. */
static void ack_is_behind_the_answer(void **state)
{
	struct pair p = pair_holding();
	struct seen *seen = watch(&p);

	(void)state;
	receive(p.b);
	receive(p.a);
	post_to(p.a, IBV_WR_SEND, 0, 8);
	wait_for(&p, p.b);
	assert_true(roce_ack_held(p.b->qp));
	assert_int_equal(acks_of(seen, 1), 0);
	post_to(p.b, IBV_WR_SEND, 0, 8);
	assert_false(roce_ack_held(p.b->qp));
	assert_int_equal(seen->n, 3);
	assert_int_equal(seen->pkt[1].h.opcode, ROCE_SEND_ONLY);
	assert_int_equal(seen->pkt[2].h.opcode, ROCE_ACK);
	assert_int_equal(seen->pkt[2].h.psn, seen->pkt[0].h.psn);
	settle(&p);
	expect(p.a->send, IBV_WC_SUCCESS);
	expect(p.b->send, IBV_WC_SUCCESS);
	assert_int_equal(acks_of(seen, 1), 1);
	assert_int_equal(roce_qp_stats(p.a->qp)->retransmits, 0);
	sim_free(p.sim);
}

/* The same where the answer has several packets. */
static void ack_is_behind_all_of_the_answer(void **state)
{
	struct pair p = pair_holding();
	struct seen *seen = watch(&p);
	size_t last;

	(void)state;
	receive(p.b);
	post_to(p.a, IBV_WR_SEND, 0, 8);
	wait_for(&p, p.b);
	post_to(p.b, IBV_WR_RDMA_WRITE, 0, 8192);
	last = seen->n - 1;
	assert_true(last > 2);
	assert_int_equal(seen->pkt[1].h.opcode, ROCE_WRITE_FIRST);
	assert_int_equal(seen->pkt[last - 1].h.opcode, ROCE_WRITE_LAST);
	assert_int_equal(seen->pkt[last].h.opcode, ROCE_ACK);
	settle(&p);
	expect(p.a->send, IBV_WC_SUCCESS);
	expect(p.b->send, IBV_WC_SUCCESS);
	assert_int_equal(acks_of(seen, 1), 1);
	sim_free(p.sim);
}

/* The answer is long: the ACK is before it. */
static void ack_does_not_wait_for_much(void **state)
{
	struct pair p = pair_holding();
	struct seen *seen = watch(&p);

	(void)state;
	receive(p.b);
	post_to(p.a, IBV_WR_SEND, 0, 8);
	wait_for(&p, p.b);
	post_to(p.b, IBV_WR_RDMA_WRITE, 0, 65536);
	assert_int_equal(seen->pkt[1].h.opcode, ROCE_ACK);
	settle(&p);
	expect(p.b->send, IBV_WC_SUCCESS);
	assert_int_equal(acks_of(seen, 1), 1);
	sim_free(p.sim);
}

/* Who answers nothing acknowledges all the same, and before long at once. */
static void who_does_not_answer_stops_waiting(void **state)
{
	struct pair p = pair_holding();
	unsigned held = 0, late = 0;

	(void)state;
	for (unsigned i = 0; i < 2 * PATIENCE; i++) {
		receive(p.b);
		post_to(p.a, IBV_WR_SEND, 0, 8);
		wait_for(&p, p.b);
		held += roce_ack_held(p.b->qp);
		if (i >= PATIENCE)
			late += roce_ack_held(p.b->qp);
		settle(&p);
		expect(p.a->send, IBV_WC_SUCCESS);
	}
	assert_true(held);
	assert_in_range(late, 0, 1);
	assert_int_equal(roce_qp_stats(p.b->qp)->nak_tx, 0);
	sim_free(p.sim);
}

/* One who goes on sending has no use for answers. */
static void next_message_ends_the_wait(void **state)
{
	struct pair p = pair_holding();
	struct seen *seen = watch(&p);

	(void)state;
	receive(p.b);
	receive(p.b);
	post_to(p.a, IBV_WR_SEND, 0, 8);
	wait_for(&p, p.b);
	assert_true(roce_ack_held(p.b->qp));
	post_to(p.a, IBV_WR_SEND, 0, 8);
	wait_for(&p, p.b);
	assert_false(roce_ack_held(p.b->qp));
	assert_int_equal(acks_of(seen, 1), 1);
	settle(&p);
	sim_free(p.sim);
}

/* The answer and the ACK behind it are lost, or the ACK alone. */
static void lost_answer_and_ack(void **state)
{
	(void)state;
	for (int lost = 1; lost <= 2; lost++) {
		struct pair p = pair_holding();
		struct script sc = { .opcode = ROCE_ACK, .count = 1 };

		receive(p.b);
		receive(p.a);
		post_to(p.a, IBV_WR_SEND, 0, 8);
		wait_for(&p, p.b);
		if (lost == 1)
			script(&p, &sc);
		else
			p.sim->link.drop = drop_all;
		post_to(p.b, IBV_WR_SEND, 0, 8);
		if (lost == 2)
			p.sim->link.drop = NULL;
		settle(&p);
		expect(p.a->recv, IBV_WC_SUCCESS);
		expect(p.a->send, IBV_WC_SUCCESS);
		expect(p.b->send, IBV_WC_SUCCESS);
		assert_null(sim_poll(p.b->recv));
		sim_free(p.sim);
	}
}

/* The link takes the answer, and no more: the ACK leaves later. */
static void link_takes_only_the_answer(void **state)
{
	struct pair p = pair_holding();
	struct ibv_sge sge = { (uintptr_t)p.b->node->mem, 8, p.b->node->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED };
	struct roce_batch b = { .max_payload = 0 };

	(void)state;
	for (size_t taken = 0; taken <= 1; taken++) {
		receive(p.b);
		post_to(p.a, IBV_WR_SEND, 0, 8);
		wait_for(&p, p.b);
		assert_int_equal(roce_post_send(p.b->qp, &wr, NULL), 0);
		roce_tx(p.b->qp, &b, p.sim->now);
		assert_int_equal(b.n, 2);
		assert_int_equal(b.pkt[1].h.opcode, ROCE_ACK);
		roce_tx_done(p.b->qp, &b, taken, p.sim->now);
		receive(p.a);
		assert_true(roce_tx_ready(p.b->qp));
		assert_true(p.b->qp->rsp.ack_pending);
		/* What was taken here is lost. */
		settle(&p);
		expect(p.a->send, IBV_WC_SUCCESS);
		expect(p.b->send, IBV_WC_SUCCESS);
		expect(p.a->recv, IBV_WC_SUCCESS);
	}
	sim_free(p.sim);
}

static uint32_t uc_length;
static unsigned uc_sent_n, uc_written_n;

static void uc_sent(struct qp *qp, uint32_t length)
{
	(void)qp;
	uc_length = length;
	uc_sent_n++;
}

static void uc_written(struct qp *qp)
{
	(void)qp;
	uc_written_n++;
}

/* UC has no ACK that waits: it is known when a write leaves, and when one has
 * come to its end. */
static void uc_write_has_no_ack(void **state)
{
	struct pair p = pair_new(IBV_QPT_UC);

	(void)state;
	p.sim->node[0].env.uc_sent = uc_sent;
	p.sim->node[1].env.uc_written = uc_written;
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, 3000);
	expect(p.a->send, IBV_WC_SUCCESS);
	assert_int_equal(uc_sent_n, 1);
	assert_int_equal(uc_length, 3000);
	assert_int_equal(uc_written_n, 0);
	settle(&p);
	assert_int_equal(uc_written_n, 1);

	/* A receiver's program has a completion, of others. */
	receive(p.b);
	receive(p.b);
	post_to(p.a, IBV_WR_SEND, 0, 8);
	post_to(p.a, IBV_WR_RDMA_WRITE_WITH_IMM, 0, 8);
	settle(&p);
	assert_int_equal(uc_sent_n, 1);
	assert_int_equal(uc_written_n, 1);

	/* One that is not carried out is none. */
	post(p.a, IBV_WR_RDMA_WRITE, 0, 8, 0, 1, 0);
	settle(&p);
	assert_int_equal(uc_sent_n, 2);
	assert_int_equal(uc_written_n, 1);
	sim_free(p.sim);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ack_is_behind_the_answer),
		cmocka_unit_test(ack_is_behind_all_of_the_answer),
		cmocka_unit_test(ack_does_not_wait_for_much),
		cmocka_unit_test(who_does_not_answer_stops_waiting),
		cmocka_unit_test(next_message_ends_the_wait),
		cmocka_unit_test(lost_answer_and_ack),
		cmocka_unit_test(link_takes_only_the_answer),
		cmocka_unit_test(uc_write_has_no_ack),
	};

	cmocka_set_test_filter(getenv("SIM_TEST"));
	return cmocka_run_group_tests_name("sim_hold", tests, NULL, NULL);
}

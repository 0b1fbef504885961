/*
 * test_suspend.c - a process is suspended, and goes on, at each packet of each
 * operation
 *
 * Each operation runs once undisturbed, which says how many things happen; then
 * as often as that, with one end, or both, suspended behind another of them. A
 * connection that is reliable must not show it: each request is carried out once
 * and completes once, in order. What is not may lose a message, but shows no part
 * of one, nor one twice.
 */
#include "scripted.h"

#include <stdlib.h>
#include <string.h>

#define MSEC 1000000ull
/* The peer's retries take 7 times 67 ms, and it makes progress in between. */
#define LONGEST (200 * MSEC)
#define WORD (1u << 20) /* of atomics, in the memory of b */

static const struct op {
	enum ibv_wr_opcode opcode;
	uint32_t len;
	unsigned receives;
} ops[] = {
	{ IBV_WR_SEND, 0, 1 },
	{ IBV_WR_SEND, 7000, 1 },
	{ IBV_WR_SEND_WITH_IMM, 100, 1 },
	{ IBV_WR_RDMA_WRITE, 5000, 0 },
	{ IBV_WR_RDMA_WRITE, 30000, 0 },
	{ IBV_WR_RDMA_WRITE_WITH_IMM, 3000, 1 },
	{ IBV_WR_RDMA_READ, 9000, 0 },
	{ IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 0 },
	{ IBV_WR_ATOMIC_CMP_AND_SWP, 8, 0 },
};

#define NOPS (sizeof(ops) / sizeof(ops[0]))
#define EACH 3 /* so many of an operation at once */

/* When they are suspended, by what has happened, and for how long; 0: not. */
struct plan {
	unsigned at[2];
	uint64_t ns[2];
};

static uint32_t place(unsigned i)
{
	return i * 32768;
}

static void fill_all(struct pair *p, const struct op *op)
{
	const bool reads = op->opcode == IBV_WR_RDMA_READ;
	struct sim_node *from = reads ? p->b->node : p->a->node;

	for (unsigned i = 0; i < EACH; i++)
		sim_pattern(from->mem + place(i), op->len, i + 1);
	memset(p->b->node->mem + WORD, 0, 8);
}

static int post_it(struct pair *p, const struct op *op, unsigned i)
{
	if (op->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
		return post(p->a, op->opcode, place(i), 8, remote(p->a, WORD),
			    p->b->node->rkey, 0);
	if (op->opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
		struct ibv_sge sge = { (uintptr_t)p->a->node->mem + place(i), 8,
				       p->a->node->lkey };
		struct ibv_send_wr wr = {
			.wr_id = place(i),
			.sg_list = &sge,
			.num_sge = 1,
			.opcode = op->opcode,
			.wr.atomic = { .remote_addr = remote(p->a, WORD),
				       .rkey = p->b->node->rkey,
				       .compare_add = i,
				       .swap = i + 1 },
		};

		return sim_post_send(p->a, &wr);
	}
	return post_to(p->a, op->opcode, place(i), op->len);
}

/* Returns how many things have happened. */
static unsigned run_all(struct pair *p, const struct plan *plan)
{
	unsigned n = 0;

	do {
		for (int i = 0; i < 2; i++)
			if (plan->ns[i] && plan->at[i] == n)
				sim_suspend(p->sim, i, plan->ns[i]);
		n++;
	} while (sim_step(p->sim));
	return n - 1;
}

static bool is_there(struct pair *p, const struct op *op, unsigned i)
{
	static uint8_t want[32768];

	sim_pattern(want, op->len, i + 1);
	if (op->opcode == IBV_WR_RDMA_READ)
		return !memcmp(p->a->node->mem + place(i), want, op->len);
	if (op->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ||
	    op->opcode == IBV_WR_ATOMIC_CMP_AND_SWP)
		return *(uint64_t *)(void *)(p->a->node->mem + place(i)) == i;
	return !memcmp(p->b->node->mem + place(i), want, op->len);
}

static void check_reliable(struct pair *p, const struct op *op)
{
	for (unsigned i = 0; i < EACH; i++) {
		const struct ibv_wc *wc = sim_poll(p->a->send);

		assert_non_null(wc);
		assert_int_equal(wc->status, IBV_WC_SUCCESS);
		assert_int_equal(wc->wr_id, place(i));
		assert_true(is_there(p, op, i));
		if (!op->receives)
			continue;
		wc = sim_poll(p->b->recv);
		assert_non_null(wc);
		assert_int_equal(wc->status, IBV_WC_SUCCESS);
		assert_int_equal(wc->wr_id, place(i));
		assert_int_equal(wc->byte_len, op->len);
	}
	assert_null(sim_poll(p->a->send));
	assert_null(sim_poll(p->b->recv));
	if (op->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ||
	    op->opcode == IBV_WR_ATOMIC_CMP_AND_SWP)
		assert_int_equal(*(uint64_t *)(void *)(p->b->node->mem + WORD),
				 EACH);
	assert_int_equal(p->a->events | p->b->events, 0);
}

/* A receive is used in its turn, by whichever message arrives; all arrive whose
 * sender alone was away. */
static void check_unreliable(struct pair *p, const struct op *op,
			     bool receiver_away)
{
	static uint8_t want[32768];
	const struct ibv_wc *wc;
	unsigned next = 0, n = 0;

	for (unsigned i = 0; i < EACH; i++)
		expect(p->a->send, IBV_WC_SUCCESS);
	assert_null(sim_poll(p->a->send));
	while ((wc = sim_poll(p->b->recv))) {
		assert_int_equal(wc->status, IBV_WC_SUCCESS);
		assert_int_equal(wc->wr_id, place(n++));
		assert_int_equal(wc->byte_len, op->len);
		if (op->opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
			continue;
		do {
			assert_true(next < EACH);
			sim_pattern(want, op->len, ++next);
		} while (memcmp(p->b->node->mem + wc->wr_id, want, op->len));
	}
	if (!receiver_away)
		assert_int_equal(n, op->receives * EACH);
	assert_int_equal(p->a->events | p->b->events, 0);
}

static unsigned one(enum ibv_qp_type type, const struct op *op,
		    const struct plan *plan, double loss)
{
	struct pair p = pair_new(type);
	unsigned n;

	p.sim->link.loss = loss;
	fill_all(&p, op);
	for (unsigned i = 0; i < EACH && op->receives; i++)
		assert_int_equal(recv_into(p.b, place(i), op->len), 0);
	for (unsigned i = 0; i < EACH; i++)
		assert_int_equal(post_it(&p, op, i), 0);
	n = run_all(&p, plan);
	if (type == IBV_QPT_RC)
		check_reliable(&p, op);
	else
		check_unreliable(&p, op, plan->ns[1]);
	sim_free(p.sim);
	return n;
}

/* who: bits. */
static void at_each(enum ibv_qp_type type, unsigned who, double loss)
{
	struct sim_rng r = { .state = 1 };

	for (size_t k = 0; k < NOPS; k++) {
		const struct op *op = &ops[k];
		unsigned n;

		if (type == IBV_QPT_UC &&
		    (op->opcode == IBV_WR_RDMA_READ ||
		     op->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ||
		     op->opcode == IBV_WR_ATOMIC_CMP_AND_SWP))
			continue;
		n = one(type, op, &(struct plan){ 0 }, loss);
		for (unsigned at = 0; at <= n; at++) {
			struct plan plan = { 0 };

			for (int i = 0; i < 2; i++) {
				if (!(who >> i & 1))
					continue;
				plan.at[i] = at;
				if (who == 3 && i)
					plan.at[i] += sim_below(&r, 4);
				/* Some are back before anybody has noticed. */
				plan.ns[i] = 1 + sim_below(&r, LONGEST);
				if (sim_chance(&r, 0.3))
					plan.ns[i] %= 10000;
			}
			one(type, op, &plan, loss);
		}
	}
}

static void requester(void **state)
{
	(void)state;
	at_each(IBV_QPT_RC, 1, 0);
}

static void responder(void **state)
{
	(void)state;
	at_each(IBV_QPT_RC, 2, 0);
}

static void both(void **state)
{
	(void)state;
	at_each(IBV_QPT_RC, 3, 0);
}

static void with_losses(void **state)
{
	(void)state;
	for (unsigned who = 1; who <= 3; who++)
		at_each(IBV_QPT_RC, who, 0.05);
}

static void unreliable(void **state)
{
	(void)state;
	for (unsigned who = 1; who <= 3; who++)
		at_each(IBV_QPT_UC, who, 0);
}

/* However long the requester is away, no retry of its is used up: it has none. */
static void for_long(void **state)
{
	struct sim_conn_opts co = sim_conn_default;
	struct pair p;

	(void)state;
	co.retry_cnt = co.rnr_retry = 0;
	p = pair_opts(IBV_QPT_RC, &co);
	assert_int_equal(recv_into(p.b, 0, 64), 0);
	sim_suspend(p.sim, 0, 1000 * SIM_SEC);
	assert_int_equal(post_to(p.a, IBV_WR_SEND, 0, 64), 0);
	sim_run(p.sim, 999 * SIM_SEC);
	assert_null(sim_poll(p.a->send));
	assert_null(sim_poll(p.b->recv));
	settle(&p);
	expect(p.a->send, IBV_WC_SUCCESS);
	expect(p.b->recv, IBV_WC_SUCCESS);
	assert_int_equal(roce_qp_stats(p.a->qp)->timeouts, 0);
	sim_free(p.sim);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(requester),  cmocka_unit_test(responder),
		cmocka_unit_test(both),       cmocka_unit_test(with_losses),
		cmocka_unit_test(unreliable), cmocka_unit_test(for_long),
	};

	cmocka_set_test_filter(getenv("SIM_TEST"));
	return cmocka_run_group_tests_name("suspend", tests, NULL, NULL);
}

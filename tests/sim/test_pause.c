/*
 * test_pause.c - one end is suspended at each packet of a few operations, and the
 * other is told in time, late, for too short a time, or not at all; and both at once
 *
 * Suspended: no packet leaves, none comes, and no clock runs, as if it had been told
 * to wait itself.
 */
#include "scripted.h"

#include "roce/roce_internal.h"

#include <stdlib.h>
#include <string.h>

#define MS (SIM_SEC / 1000)
#define OPS 5
#define SIZE 5000

enum told { IN_TIME, LATE, SHORT, LOST, BOTH };

struct scene {
	bool away[2]; /* node 0, 1 */
	int packets; /* until one is suspended; then 0 */
	bool now;
};

static bool gone(struct sim *s, const struct roce_hdr *h, int from)
{
	struct scene *sc = s->user;

	(void)h;
	if (sc->packets && !--sc->packets)
		sc->now = true;
	/* The last one left it just in time. */
	return sc->away[0] || sc->away[1] || (from == 1 && sc->now);
}

static void post_all(struct pair *p)
{
	for (uint32_t i = 0; i < SIZE; i++) {
		p->a->node->mem[i] = (uint8_t)(i * 7 + 1);
		p->a->node->mem[100000 + i] = (uint8_t)(i * 5 + 3);
		p->b->node->mem[200000 + i] = (uint8_t)(i * 11 + 2);
		p->b->node->mem[300000 + i] = (uint8_t)(i * 13 + 4);
	}
	memset(p->b->node->mem + 400000, 0, 8);
	recv_into(p->b, 100000, SIZE);
	recv_into(p->a, 300000, SIZE);
	post_to(p->a, IBV_WR_RDMA_WRITE, 0, SIZE);
	post_to(p->a, IBV_WR_SEND, 100000, SIZE);
	post_to(p->a, IBV_WR_RDMA_READ, 200000, SIZE);
	post_to(p->a, IBV_WR_ATOMIC_FETCH_AND_ADD, 400000, 8);
	post_to(p->a, IBV_WR_RDMA_WRITE, 0, 1);
	post_to(p->b, IBV_WR_SEND, 300000, SIZE);
}

static void all_is_right(struct pair *p)
{
	uint64_t added;

	for (unsigned i = 0; i < OPS; i++)
		expect(p->a->send, IBV_WC_SUCCESS);
	expect(p->b->send, IBV_WC_SUCCESS);
	expect(p->b->recv, IBV_WC_SUCCESS);
	expect(p->a->recv, IBV_WC_SUCCESS);
	assert_null(sim_poll(p->a->send));
	assert_null(sim_poll(p->b->send));
	for (uint32_t i = 0; i < SIZE; i++) {
		assert_int_equal(p->b->node->mem[i], (uint8_t)(i * 7 + 1));
		assert_int_equal(p->b->node->mem[100000 + i],
				 (uint8_t)(i * 5 + 3));
		assert_int_equal(p->a->node->mem[200000 + i],
				 (uint8_t)(i * 11 + 2));
		assert_int_equal(p->a->node->mem[300000 + i],
				 (uint8_t)(i * 13 + 4));
	}
	memcpy(&added, p->b->node->mem + 400000, 8);
	assert_int_equal(added, 1);
}

/* Which end is suspended, and how often a packet is sent before: false: there are
 * not so many. */
static bool suspended_at(int n, int which, enum told told, bool loss)
{
	struct sim_conn_opts co = sim_conn_default;
	const uint64_t away =
		told == SHORT || told == LOST ? 200 * MS : 30 * SIM_SEC;
	struct scene sc = { .packets = n };
	struct sim_qp *leaves, *stays;
	struct roce_path path;
	uint64_t begin;
	struct pair p;

	/* As long as 0.54 or 1.07 s of silence, losses included. */
	co.retry_cnt = told == SHORT || told == LOST ? 7 : 3;
	p = pair_opts(IBV_QPT_RC, &co);
	leaves = which ? p.b : p.a;
	stays = which ? p.a : p.b;
	p.sim->user = &sc;
	p.sim->link.drop = gone;
	p.sim->link.loss = loss ? 0.05 : 0;
	post_all(&p);
	for (int i = 0; !sc.now && i < 100000; i++)
		sim_run(p.sim, 1000);
	if (!sc.now) {
		all_is_right(&p);
		sim_free(p.sim);
		return false;
	}
	begin = p.sim->now;
	if (told != LOST && told != LATE)
		roce_qp_pause(stays->qp,
			      begin + (told == SHORT ? 50 * MS : 60 * SIM_SEC),
			      begin);
	sim_pull(stays);
	sc.away[which] = true;
	sc.away[!which] = told == BOTH;
	sc.now = false;
	roce_qp_pause(leaves->qp, begin + 100 * SIM_SEC, begin);
	if (told == LATE) {
		sim_run(p.sim, 300 * MS);
		roce_qp_pause(stays->qp, p.sim->now + 60 * SIM_SEC, p.sim->now);
	}
	sim_run(p.sim, away);
	p.sim->now = begin + away;
	/* It is back, with the same address or, as far as the other can see, at
	 * another one. */
	sc.away[0] = sc.away[1] = false;
	path = *roce_qp_path(stays->qp);
	roce_qp_follow(stays->qp, &path, roce_qp_dest(stays->qp));
	roce_qp_go_on(leaves->qp, p.sim->now);
	sim_pull(leaves);
	roce_qp_go_on(stays->qp, p.sim->now);
	sim_pull(stays);
	assert_false(roce_qp_paused(stays->qp));
	settle(&p);
	/* Nothing waits for a timeout where nothing else is lost. */
	if (!loss && told != LOST && told != SHORT)
		assert_true(p.sim->now < begin + away + 500 * MS);
	all_is_right(&p);
	sim_free(p.sim);
	return true;
}

static void at_each_packet(enum told told)
{
	int n = 0;

	for (int which = 0; which < 2; which++)
		for (int loss = 0; loss < 2; loss++)
			for (n = 1; suspended_at(n, which, told, loss); n++)
				assert_true(n < 1000);
	assert_true(n > 10);
}

static void told_in_time(void **state)
{
	(void)state;
	at_each_packet(IN_TIME);
}

static void told_late(void **state)
{
	(void)state;
	at_each_packet(LATE);
}

static void told_too_short_a_time(void **state)
{
	(void)state;
	at_each_packet(SHORT);
}

static void not_told(void **state)
{
	(void)state;
	at_each_packet(LOST);
}

static void both_at_once(void **state)
{
	(void)state;
	at_each_packet(BOTH);
}

/* The pause is over, and the peer is not back: then it is as ever. */
static void patience_ends(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	uint64_t begin;

	(void)state;
	p.sim->link.drop = drop_all;
	begin = p.sim->now;
	roce_qp_pause(p.a->qp, begin + 5 * SIM_SEC, begin);
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, 100);
	sim_run(p.sim, 5 * SIM_SEC);
	assert_null(sim_poll(p.a->send));
	sim_run(p.sim, 900 * MS);
	assert_null(sim_poll(p.a->send));
	settle(&p);
	expect(p.a->send, IBV_WC_RETRY_EXC_ERR);
	assert_true(p.sim->now < begin + 7 * SIM_SEC);
	sim_free(p.sim);
}

/* What is posted meanwhile leaves in order; what comes is received and answered. */
static void one_way_still_works(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);

	(void)state;
	roce_qp_pause(p.a->qp, p.sim->now + 10 * SIM_SEC, p.sim->now);
	memset(p.b->node->mem, 5, 100);
	memset(p.a->node->mem + 200, 6, 100);
	post_to(p.b, IBV_WR_RDMA_WRITE, 0, 100);
	post_to(p.a, IBV_WR_RDMA_WRITE, 200, 100);
	sim_run(p.sim, SIM_SEC);
	expect(p.b->send, IBV_WC_SUCCESS);
	assert_int_equal(p.a->node->mem[99], 5);
	assert_null(sim_poll(p.a->send));
	roce_qp_go_on(p.a->qp, p.sim->now);
	sim_pull(p.a);
	settle(&p);
	expect(p.a->send, IBV_WC_SUCCESS);
	assert_int_equal(p.b->node->mem[299], 6);
	sim_free(p.sim);
}

/* An end in error, or not up, is not paused, and destroys nothing. */
static void only_what_is_up(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	struct roce_places at;

	(void)state;
	assert_true(roce_qp_places(p.a->qp, &at));
	assert_int_equal(at.una, at.end_psn);
	set_state(p.a, IBV_QPS_ERR);
	assert_false(roce_qp_places(p.a->qp, &at));
	roce_qp_pause(p.a->qp, p.sim->now + SIM_SEC, p.sim->now);
	assert_false(roce_qp_paused(p.a->qp));
	roce_qp_pause(p.b->qp, p.sim->now + SIM_SEC, p.sim->now);
	set_state(p.b, IBV_QPS_ERR);
	assert_false(roce_qp_paused(p.b->qp));
	sim_free(p.sim);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(told_in_time),
		cmocka_unit_test(told_late),
		cmocka_unit_test(told_too_short_a_time),
		cmocka_unit_test(not_told),
		cmocka_unit_test(both_at_once),
		cmocka_unit_test(patience_ends),
		cmocka_unit_test(one_way_still_works),
		cmocka_unit_test(only_what_is_up),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * test_reorder.c - what comes before its turn, and is not the peer's
 *
 * A stranger can send packets with the peer's address, and guesses the rest: the
 * PSN, and the UDP source port. What the responder keeps behind a gap is not to
 * make that easier, nor to outlive its use (src/roce/reorder.c).
 */
#include "scripted.h"

#include "roce/roce_internal.h"

#include <string.h>

#define FORGED 200000 /* where nothing of the peer's is */

static const struct roce_hdr forged_send = { .opcode = ROCE_SEND_ONLY };

static void forge(struct pair *p, struct roce_hdr h, uint32_t ahead,
		  uint16_t sport)
{
	struct roce_rx rx = {
		.h = h,
		.payload = (const uint8_t *)"FORGED..",
		.len = 8,
		.sgid = p->a->node->gid,
		.dgid = p->b->node->gid,
		.sport = sport,
	};

	if (roce_opcode(h.opcode)->flags & ROCE_F_READ)
		rx.len = 0;
	rx.h.pkey = 0xffff;
	rx.h.mig_req = true;
	rx.h.dest_qpn = roce_qp_num(p->b->qp);
	rx.h.psn = psn_add(p->b->qp->rsp.epsn, ahead);
	roce_rx(p->b->qp, &rx, p->sim->now);
	sim_pull(p->b);
}

/* b has a receive for more than a has sent. */
static struct pair waiting_pair(void)
{
	struct pair p = pair_new(IBV_QPT_RC);

	assert_int_equal(recv_into(p.b, 0, 8), 0);
	return p;
}

/* Message i of a has 8 bytes. */
static void message(struct pair *p, uint32_t i)
{
	memset(p->a->node->mem + 8 * i, (int)('a' + i % 26), 8);
	assert_int_equal(recv_into(p->b, 8 * (i + 1), 8), 0);
	assert_int_equal(post_to(p->a, IBV_WR_SEND, 8 * i, 8), 0);
}

/* Messages [from, to) of a, which must be all that b gets. */
static void messages(struct pair *p, uint32_t from, uint32_t to)
{
	for (uint32_t i = from; i < to; i++) {
		message(p, i);
		settle(p);
		expect(p->a->send, IBV_WC_SUCCESS);
		expect(p->b->recv, IBV_WC_SUCCESS);
		assert_memory_equal(p->b->node->mem + 8 * i,
				    p->a->node->mem + 8 * i, 8);
	}
}

/* A sweep over all PSNs hits what is near, if at all: no more than that. */
static void sweep_finds_nothing(void **state)
{
	struct pair p = waiting_pair();

	(void)state;
	messages(&p, 0, 2);
	for (uint32_t ahead = 33; ahead < 4096; ahead++)
		forge(&p, forged_send, ahead, SIM_SPORT);
	messages(&p, 2, 200);
	assert_null(sim_poll(p.b->recv));
	assert_int_equal(p.b->events & 1 << IBV_EVENT_QP_ACCESS_ERR, 0);
	sim_free(p.sim);
}

static void other_port_is_not_the_peer(void **state)
{
	struct pair p = waiting_pair();
	const struct roce_hdr read = { .opcode = ROCE_READ_REQUEST,
				       .dma_len = 8,
				       .rkey = 12345 };

	(void)state;
	messages(&p, 0, 2);
	for (uint32_t ahead = 1; ahead < 64; ahead++) {
		forge(&p, forged_send, ahead, SIM_SPORT + 1);
		forge(&p, read, ahead, 0);
	}
	messages(&p, 2, 100);
	sim_free(p.sim);
}

/* What the QP's numbers had before it: nobody has been heard yet. */
static void nothing_before_the_first_request(void **state)
{
	struct pair p = waiting_pair();

	(void)state;
	for (uint32_t ahead = 1; ahead < 64; ahead++)
		forge(&p, forged_send, ahead, SIM_SPORT);
	messages(&p, 0, 100);
	sim_free(p.sim);
}

/* Nor does the QP remember a port from an earlier generation. */
static void next_life_begins_anew(void **state)
{
	struct pair p = waiting_pair();

	(void)state;
	messages(&p, 0, 2);
	assert_int_equal(set_state(p.a, IBV_QPS_RESET), 0);
	assert_int_equal(set_state(p.b, IBV_QPS_RESET), 0);
	sim_connect(p.a, p.b, &sim_conn_default);
	recv_into(p.b, 0, 8);
	for (uint32_t ahead = 1; ahead < 64; ahead++)
		forge(&p, forged_send, ahead, SIM_SPORT);
	messages(&p, 0, 100);
	sim_free(p.sim);
}

static bool drop_second(struct sim *s, const struct roce_hdr *h, int from)
{
	(void)s;
	return !from && h->psn == psn_add(sim_conn_default.psn_a, 1) &&
	       !h->solicited && !((struct seen *)s->user)->tries[0]++;
}

/* Of two that claim one PSN neither is believed, whichever came first. */
static void neither_of_two_that_differ(void **state)
{
	struct pair p = waiting_pair();
	struct seen *w = watch(&p);

	(void)state;
	messages(&p, 0, 1);
	p.sim->link.drop = drop_second;
	forge(&p, forged_send, 2, SIM_SPORT);
	for (uint32_t i = 1; i < 8; i++)
		message(&p, i);
	settle(&p);
	assert_int_equal(w->tries[0], 2);
	for (uint32_t i = 1; i < 8; i++) {
		expect(p.a->send, IBV_WC_SUCCESS);
		expect(p.b->recv, IBV_WC_SUCCESS);
	}
	assert_memory_equal(p.b->node->mem, p.a->node->mem, 64);
	sim_free(p.sim);
}

/*
 * One who knows all has forged data; the peer, that goes on as before, still
 * hears that what it has sent has arrived, by an ACK that names it.
 */
static void peer_is_acknowledged_within_its_end(void **state)
{
	struct pair p = waiting_pair();

	(void)state;
	messages(&p, 0, 2);
	for (uint32_t ahead = 1; ahead < 20; ahead++) {
		recv_into(p.b, FORGED, 64);
		forge(&p, forged_send, ahead, SIM_SPORT);
	}
	for (uint32_t i = 2; i < 12; i++) {
		memset(p.a->node->mem + 8 * i, 'x', 8);
		post_to(p.a, IBV_WR_SEND, 8 * i, 8);
		settle(&p);
		expect(p.a->send, IBV_WC_SUCCESS);
	}
	assert_int_equal(p.a->events, 0);
	sim_free(p.sim);
}

/* What was never executed is not acknowledged, however often it comes: a peer that
 * began with another PSN than it should have. */
static void never_more_than_was_executed(void **state)
{
	struct pair p = waiting_pair();
	struct seen *w = watch(&p);

	(void)state;
	messages(&p, 0, 2);
	w->n = 0;
	for (int i = 0; i < 8; i++)
		forge(&p, forged_send, PSN_MASK - 2, SIM_SPORT);
	for (size_t i = 0; i < w->n; i++)
		assert_int_equal(w->pkt[i].h.psn,
				 psn_add(sim_conn_default.psn_a, 1));
	sim_free(p.sim);
}

/* Memory of requests that were passed over is free for other QPs. */
static void what_is_passed_over_goes(void **state)
{
	struct sim_qp_opts qo = { .type = IBV_QPT_RC,
				  .sig_all = true,
				  .cap = { .max_send_wr = 4,
					   .max_recv_wr = 4,
					   .max_send_sge = 1,
					   .max_recv_sge = 1 } };
	struct pair p = { .sim = sim_new(1) };
	struct sim_qp *b[SIM_QPS];

	(void)state;
	p.sim->direct = 0;
	for (size_t i = 0; i < SIM_QPS; i++) {
		p.a = sim_qp_new(p.sim, 0, &qo);
		b[i] = p.b = sim_qp_new(p.sim, 1, &qo);
		sim_connect(p.a, p.b, &sim_conn_default);
		post_to(p.a, IBV_WR_RDMA_WRITE, 0, 8);
		settle(&p);
		forge(&p, forged_send, 2, SIM_SPORT);
		assert_non_null(p.b->qp->rsp.reorder);
		/* Four PSNs of its own. */
		post_to(p.a, IBV_WR_RDMA_READ, 0, 4096);
		settle(&p);
	}
	for (size_t i = 0; i < SIM_QPS; i++)
		assert_true(!b[i]->qp->rsp.reorder == (i >= 8));
	sim_free(p.sim);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sweep_finds_nothing),
		cmocka_unit_test(other_port_is_not_the_peer),
		cmocka_unit_test(nothing_before_the_first_request),
		cmocka_unit_test(next_life_begins_anew),
		cmocka_unit_test(neither_of_two_that_differ),
		cmocka_unit_test(peer_is_acknowledged_within_its_end),
		cmocka_unit_test(never_more_than_was_executed),
		cmocka_unit_test(what_is_passed_over_goes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

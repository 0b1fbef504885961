/*
 * test_probe.c - what a requester sends again, and what it does not
 *
 * A peer that has everything is asked with one packet; a gap that opens again
 * is told again; and nothing that was sent a moment ago is sent once more.
 */
#include "scripted.h"

#include "roce/roce_internal.h"

#include <stdlib.h>

#define PKTS 20u
#define LENGTH (PKTS * 1024u)

/* Loses the packets of a requester from one PSN to another, so many times. */
struct lossy {
	uint32_t first, last;
	unsigned times; /* that each is lost */
	unsigned lost[PKTS];
	unsigned acks; /* and so many acknowledgements */
	unsigned requests, naks; /* seen */
};

static bool lose(struct sim *s, const struct roce_hdr *h, int from)
{
	struct lossy *l = s->user;
	int32_t i = psn_diff(h->psn, l->first);

	if (from == 1) {
		l->naks += is_nak_psn(h);
		if (h->opcode != ROCE_ACK || !l->acks || is_nak_psn(h))
			return false;
		l->acks--;
		return true;
	}
	l->requests++;
	return psn_diff(h->psn, l->last) <= 0 && i >= 0 && i < (int)PKTS &&
	       l->lost[i]++ < l->times;
}

/* The round trip is known: a message has been there and back. */
static struct pair pair_known(struct lossy *l)
{
	struct pair p = pair_new(IBV_QPT_RC);

	p.sim->user = l;
	p.sim->link.drop = lose;
	l->first = 1;
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, 8);
	settle(&p);
	expect(p.a->send, IBV_WC_SUCCESS);
	l->requests = 0;
	/* From now on PSN 1 is the second packet of what is posted next. */
	l->first = psn_add(sim_conn_default.psn_a, 1);
	l->last = psn_add(l->first, PSN_MASK);
	return p;
}

static void finish(struct pair *p)
{
	settle(p);
	expect(p->a->send, IBV_WC_SUCCESS);
	assert_null(sim_poll(p->a->send));
	sim_free(p->sim);
}

/* A lost ACK costs one packet, not the message. */
static void lost_ack_costs_a_packet(void **state)
{
	struct lossy l = { 0 };
	struct pair p = pair_known(&l);

	(void)state;
	l.acks = 2; /* one within the message, one at its end */
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, LENGTH);
	finish(&p);
	assert_int_equal(l.acks, 0);
	assert_int_equal(l.requests, PKTS + 1);
}

/* What was lost at the end is sent again, and nothing before it. */
static void lost_end_is_sent_again(void **state)
{
	struct lossy l = { 0 };
	struct pair p = pair_known(&l);

	(void)state;
	l.times = 1;
	l.last = psn_add(l.first, PKTS - 1);
	l.first = psn_add(l.first, PKTS - 3);
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, LENGTH);
	finish(&p);
	/* From the last ACK on, which PSN 16 asked for, is not known to be
	 * there: that one packet says that three more are lost. */
	assert_in_range(l.requests, PKTS + 3, PKTS + 4);
	assert_int_equal(l.naks, 0);
}

/* Requests posted after the probe left are no loss if it does not tell of
 * them. */
static void probe_knows_nothing_of_later(void **state)
{
	struct lossy l = { 0 };
	struct pair p = pair_known(&l);

	(void)state;
	l.times = 1;
	l.last = l.first;
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, 8);
	while (!roce_qp_stats(p.a->qp)->retransmits)
		sim_run(p.sim, 100);
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, LENGTH);
	settle(&p);
	expect(p.a->send, IBV_WC_SUCCESS);
	finish(&p);
	assert_int_equal(l.requests, 2 + PKTS);
}

/* What is sent again and lost again does not wait for the ACK timeout. */
static void gap_opens_again(void **state)
{
	struct lossy l = { 0 };
	struct pair p = pair_known(&l);
	uint64_t begin = p.sim->now;

	(void)state;
	l.times = 3;
	l.last = l.first = psn_add(l.first, 4);
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, LENGTH);
	while (!sim_poll(p.a->send))
		sim_run(p.sim, 100);
	assert_true(p.sim->now - begin < 1000000);
	assert_int_equal(roce_qp_stats(p.a->qp)->retransmits, 3);
	assert_int_equal(l.requests, PKTS + 3);
	sim_free(p.sim);
}

/* A peer that keeps what is behind a gap gets nothing else again. */
static void gap_costs_what_was_lost(void **state)
{
	struct lossy l = { 0 };
	struct pair p = pair_known(&l);

	(void)state;
	l.times = 1;
	l.last = l.first = psn_add(l.first, 4);
	sim_pattern(p.a->node->mem, LENGTH, 1);
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, LENGTH);
	settle(&p);
	assert_memory_equal(p.a->node->mem, p.b->node->mem, LENGTH);
	assert_int_equal(roce_qp_stats(p.b->qp)->gaps, PKTS - 5);
	assert_int_equal(roce_qp_stats(p.b->qp)->dropped, 0);
	finish(&p);
	assert_int_equal(l.requests, PKTS + 1);
	assert_int_equal(l.naks, 1);
}

/* Of two gaps the second is known by the answer to what closes the first, and
 * what is sent again ends where the peer has the rest. */
static void gaps_are_closed_in_turn(void **state)
{
	struct lossy l = { 0 };
	struct pair p = pair_known(&l);

	(void)state;
	l.times = 1;
	l.first = psn_add(l.first, 2);
	l.last = psn_add(l.first, 2);
	l.lost[1] = 1;
	sim_pattern(p.a->node->mem, LENGTH, 1);
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, LENGTH);
	settle(&p);
	assert_memory_equal(p.a->node->mem, p.b->node->mem, LENGTH);
	finish(&p);
	assert_in_range(l.requests, PKTS + 2, 2 * PKTS - 2);
}

/* One that does not gets all of it, and after three times at once. */
static void gap_of_a_peer_that_drops(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	struct seen *w = watch(&p);
	uint32_t psn = sim_conn_default.psn_a;

	(void)state;
	p.sim->link.drop = drop_all;
	for (unsigned i = 0; i < 5; i++) {
		post_to(p.a, IBV_WR_RDMA_WRITE, 0, LENGTH);
		sim_run(p.sim, 1000);
		assert_int_equal(w->n, PKTS);
		w->n = 0;
		answer(&p, psn_add(psn, 4), ROCE_AETH_NAK | ROCE_NAK_PSN, i);
		sim_run(p.sim, 1000);
		if (i < 3) {
			assert_int_equal(w->n, 1);
			assert_int_equal(w->pkt[0].h.psn, psn_add(psn, 4));
			assert_true(w->pkt[0].h.ack_req);
			w->n = 0;
			answer(&p, psn_add(psn, 4), 0x1f, i);
			sim_run(p.sim, 1000);
			assert_int_equal(w->n, PKTS - 5);
			assert_int_equal(w->pkt[0].h.psn, psn_add(psn, 5));
		} else {
			assert_int_equal(w->n, PKTS - 4);
			assert_int_equal(w->pkt[0].h.psn, psn_add(psn, 4));
		}
		w->n = 0;
		psn = psn_add(psn, PKTS);
		answer(&p, psn_add(psn, PSN_MASK), 0x1f, i + 1);
		expect(p.a->send, IBV_WC_SUCCESS);
		w->n = 0;
	}
	sim_free(p.sim);
}

/* A NAK that comes twice has what was lost sent once. */
static void repeated_nak_is_one(void **state)
{
	struct lossy l = { 0 };
	struct pair p = pair_known(&l);

	(void)state;
	l.times = 1;
	l.last = l.first = psn_add(l.first, 4);
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, LENGTH);
	while (!roce_qp_stats(p.a->qp)->nak_rx)
		sim_run(p.sim, 100);
	answer(&p, l.first, ROCE_AETH_NAK | ROCE_NAK_PSN, 1);
	finish(&p);
	assert_int_equal(l.requests, PKTS + 1);
}

/* A silent peer gets one packet at a time, and all of it once it speaks. */
static void silence_is_probed(void **state)
{
	struct lossy l = { 0 };
	struct pair p = pair_known(&l);

	(void)state;
	l.times = 4;
	l.last = psn_add(l.first, PKTS - 1);
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, LENGTH);
	sim_run(p.sim, 1);
	assert_int_equal(l.requests, PKTS);
	while (l.lost[0] < 4) {
		assert_int_equal(l.requests, PKTS - 1 + l.lost[0]);
		sim_run(p.sim, 1000);
	}
	l.times = 0;
	finish(&p);
	/* Four times the first packet in vain, then everything. */
	assert_int_equal(l.requests, PKTS + 4 + PKTS - 1);
}

/* A probe that the link did not take has not been answered by what follows. */
static void probe_waits_for_room(void **state)
{
	struct lossy l = { 0 };
	struct pair p = pair_known(&l);
	const uint32_t una = p.a->qp->req.una;
	struct roce_batch b = { .max_payload = 0 };

	(void)state;
	p.sim->link.drop = drop_all;
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, 8);
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, LENGTH);
	p.sim->now = roce_deadline(p.a->qp);
	roce_expire(p.a->qp, p.sim->now);
	roce_tx(p.a->qp, &b, p.sim->now);
	assert_int_equal(b.n, 1);
	assert_int_equal(b.pkt[0].h.psn, una);
	roce_tx_done(p.a->qp, &b, 0, p.sim->now);
	roce_tx_wait(p.a->qp, UINT64_MAX);
	/* The first ACK, late. */
	p.sim->link.drop = NULL;
	answer(&p, una, ROCE_AETH_ACK | ROCE_CREDITS_INVALID, 1);
	assert_int_equal(roce_qp_stats(p.a->qp)->retransmits, 1);
	assert_int_equal(p.a->qp->req.rec.mode, FRESH);
	sim_free(p.sim);
}

/* A response is no answer to the probe of a request before it. */
static void response_answers_no_probe(void **state)
{
	struct lossy l = { 0 };
	struct pair p = pair_known(&l);
	uint8_t buf[ROCE_HDR_MAX + 8] = { 0 };
	struct roce_hdr h = {
		.opcode = ROCE_READ_RESP_ONLY,
		.pkey = 0xffff,
		.dest_qpn = roce_qp_num(p.a->qp),
		.syndrome = ROCE_AETH_ACK | ROCE_CREDITS_INVALID,
		.msn = 2,
	};
	int len;

	(void)state;
	h.psn = psn_add(p.a->qp->req.una, 1);
	p.sim->link.drop = drop_all;
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, 8);
	post_to(p.a, IBV_WR_RDMA_READ, 0, 8);
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, LENGTH);
	while (!(p.a->qp->req.rec.probe & PROBE_OUT))
		sim_run(p.sim, 1000);
	len = roce_encode(&h, buf);
	p.sim->link.drop = NULL;
	sim_inject(p.sim, 0, buf, (size_t)len + 8);
	while (!sim_poll(p.a->send))
		sim_run(p.sim, 100);
	expect(p.a->send, IBV_WC_SUCCESS); /* the read */
	assert_int_equal(roce_qp_stats(p.a->qp)->retransmits, 1);
	assert_int_equal(p.a->qp->req.rec.mode, FRESH);
	sim_free(p.sim);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lost_ack_costs_a_packet),
		cmocka_unit_test(lost_end_is_sent_again),
		cmocka_unit_test(probe_knows_nothing_of_later),
		cmocka_unit_test(gap_opens_again),
		cmocka_unit_test(gap_costs_what_was_lost),
		cmocka_unit_test(gaps_are_closed_in_turn),
		cmocka_unit_test(gap_of_a_peer_that_drops),
		cmocka_unit_test(repeated_nak_is_one),
		cmocka_unit_test(silence_is_probed),
		cmocka_unit_test(probe_waits_for_room),
		cmocka_unit_test(response_answers_no_probe),
	};

	cmocka_set_test_filter(getenv("SIM_TEST"));
	return cmocka_run_group_tests_name("sim_probe", tests, NULL, NULL);
}

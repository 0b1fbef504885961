/*
 * test_congestion.c - windows, pace and congestion notifications
 */
#include "scripted.h"

#include "roce/roce_internal.h"

#include <stdlib.h>

static bool hold_acks(struct sim *s, const struct roce_hdr *h, int from)
{
	struct script *sc = s->user;

	(void)from;
	return h->opcode == ROCE_ACK && sc->count;
}

/* A peer that was only slow costs no bandwidth afterwards. */
static void late_acks_are_no_congestion(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	struct script sc = { .count = 1 };
	uint64_t slow, fast;

	(void)state;
	script(&p, &sc);
	p.sim->link.drop = hold_acks;
	for (uint64_t i = 1; i <= 6; i++) {
		sc.count = 1;
		post_to(p.a, IBV_WR_RDMA_WRITE, 0, 200000);
		sim_run(p.sim, SIM_SEC / 100); /* time for a probe or two */
		assert_true(roce_qp_stats(p.a->qp)->retransmits >= i);
		sc.count = 0;
		settle(&p);
		expect(p.a->send, IBV_WC_SUCCESS);
	}
	slow = p.sim->now;
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, 1000000);
	while (!sim_poll(p.a->send))
		sim_run(p.sim, 1000);
	slow = p.sim->now - slow;
	sim_free(p.sim);

	p = pair_new(IBV_QPT_RC);
	fast = p.sim->now;
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, 1000000);
	while (!sim_poll(p.a->send))
		sim_run(p.sim, 1000);
	fast = p.sim->now - fast;
	sim_free(p.sim);
	assert_true(slow <= fast); /* the clock is the simulation's */
}

/*
 * A17.9.3: a packet marked "congestion experienced" is answered by a CNP to
 * the sender's QP: PSN 0, BECN. One is enough for a while.
 */
static void congestion_is_told(void **state)
{
	static const enum ibv_qp_type types[] = { IBV_QPT_RC, IBV_QPT_UC };

	(void)state;
	for (int t = 0; t < 2; t++) {
		struct pair p = pair_new(types[t]);
		struct seen *w = watch(&p);
		uint8_t service = types[t] == IBV_QPT_RC ? ROCE_RC : ROCE_UC;
		struct roce_rx rx = {
			.h = { .opcode = service | ROCE_WRITE_ONLY,
			       .pkey = 0xffff,
			       .dest_qpn = roce_qp_num(p.b->qp) },
			.sgid = p.a->node->gid,
			.dgid = p.b->node->gid,
			.ecn_ce = true,
		};
		unsigned cnps = 0, n = 100;

		for (uint32_t i = 0; i < n; i++) {
			rx.h.psn = psn_add(sim_conn_default.psn_a, i);
			roce_rx(p.b->qp, &rx, p.sim->now);
			sim_pull(p.b);
			p.sim->now += 5000; /* in all, half a millisecond */
		}
		for (size_t i = 0; i < w->n; i++) {
			if (w->pkt[i].h.opcode != ROCE_CNP)
				continue;
			cnps++;
			assert_int_equal(w->pkt[i].from, 1);
			assert_int_equal(w->pkt[i].h.dest_qpn,
					 roce_qp_num(p.a->qp));
			assert_int_equal(w->pkt[i].h.psn, 0);
			assert_true(w->pkt[i].h.becn);
			assert_int_equal(w->pkt[i].len, 0);
		}
		assert_int_equal(cnps, 10);
		sim_free(p.sim);
	}
}

/* And whoever gets one slows down, once, and does no harm to its QP. */
static void congestion_is_heeded(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	struct seen *w = watch(&p);
	struct roce_rx rx = {
		.h = { .opcode = ROCE_CNP,
		       .pkey = 0xffff,
		       .becn = true,
		       .dest_qpn = roce_qp_num(p.a->qp) },
		.sgid = p.b->node->gid,
		.dgid = p.a->node->gid,
	};
	size_t before, after;

	(void)state;
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, 1000000);
	before = w->n; /* what is sent before anything comes back */
	settle(&p);
	sim_free(p.sim);

	p = pair_new(IBV_QPT_RC);
	w = watch(&p);
	rx.h.dest_qpn = roce_qp_num(p.a->qp);
	rx.sgid = p.b->node->gid;
	rx.dgid = p.a->node->gid;
	rx.sgid.raw[15] ^= 0x40; /* not from the peer */
	roce_rx(p.a->qp, &rx, p.sim->now);
	rx.sgid = p.b->node->gid;
	assert_int_equal(roce_qp_stats(p.a->qp)->dropped, 1);
	roce_rx(p.a->qp, &rx, p.sim->now);
	roce_rx(p.a->qp, &rx, p.sim->now);
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, 1000000);
	after = w->n;
	assert_in_range(after, before / 2 - 1, before / 2 + 1);
	settle(&p);
	expect(p.a->send, IBV_WC_SUCCESS);
	sim_free(p.sim);
}

/* Where more waits, what leaves are as many packets as a link sends at once; of
 * the widest window the rest stays free. */
static void whole_runs_leave(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	struct roce_cc *cc = &p.a->qp->req.cc;
	const uint32_t run =
		ROCE_RUN_BYTES / (1024 + ROCE_BTH_LEN + ROCE_ICRC_LEN);
	struct ibv_sge sge = { (uintptr_t)p.a->node->mem, 1000000,
			       p.a->node->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_SEND };
	struct roce_batch b = { .max_payload = 0 };
	uint32_t sent = 0;

	(void)state;
	cc->cwnd = cc->cwnd_max;
	for (int i = 0; i < 2; i++)
		assert_int_equal(roce_post_send(p.a->qp, &wr, NULL), 0);
	do {
		roce_tx(p.a->qp, &b, p.sim->now);
		assert_int_equal(b.n % run, 0);
		sent += (uint32_t)b.n;
		roce_tx_done(p.a->qp, &b, b.n, p.sim->now);
	} while (sent + run <= cc->cwnd / CWND_UNIT);
	assert_in_range(sent, cc->cwnd / CWND_UNIT - run + 1,
			cc->cwnd / CWND_UNIT);
	roce_tx(p.a->qp, &b, p.sim->now);
	assert_int_equal(b.n, 0);
	sim_free(p.sim);
}

/* Small requests behind several that are out wait for the next ACK, together;
 * nothing else waits. */
static void small_requests_gather(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	uint32_t i;

	(void)state;
	for (i = 0; i < 4; i++) {
		assert_int_equal(post_to(p.a, IBV_WR_RDMA_WRITE, 8 * i, 8), 0);
		assert_false(roce_tx_ready(p.a->qp));
	}
	for (; i < 8; i++) {
		assert_int_equal(post_to(p.a, IBV_WR_RDMA_WRITE, 8 * i, 8), 0);
		assert_true(roce_tx_coalesce(p.a->qp));
		assert_true(roce_tx_ready(p.a->qp));
	}
	settle(&p); /* no more is posted: the ACKs move it */
	for (i = 0; i < 8; i++)
		expect(p.a->send, IBV_WC_SUCCESS);
	/* A long one takes along what waits. */
	for (i = 0; i < 5; i++)
		assert_int_equal(post_to(p.a, IBV_WR_RDMA_WRITE, 8 * i, 8), 0);
	assert_true(roce_tx_ready(p.a->qp));
	assert_int_equal(post_to(p.a, IBV_WR_RDMA_WRITE, 64, 8000), 0);
	assert_false(roce_tx_ready(p.a->qp));
	/* So do many. */
	for (i = 0; roce_tx_ready(p.a->qp) == (i > 0); i++)
		assert_int_equal(post_to(p.a, IBV_WR_RDMA_WRITE, 8 * i, 8), 0);
	assert_in_range(i, 8, 24);
	settle(&p);
	sim_free(p.sim);

	/* Nothing would move them. */
	p = pair_new(IBV_QPT_UC);
	for (i = 0; i < 8; i++) {
		assert_int_equal(post_to(p.a, IBV_WR_RDMA_WRITE, 8 * i, 8), 0);
		assert_false(roce_tx_coalesce(p.a->qp));
	}
	settle(&p);
	sim_free(p.sim);
}

static void cnp_from(struct pair *p, uint16_t sport)
{
	struct roce_rx rx = {
		.h = { .opcode = ROCE_CNP,
		       .pkey = 0xffff,
		       .becn = true,
		       .dest_qpn = roce_qp_num(p->a->qp) },
		.sgid = p->b->node->gid,
		.dgid = p->a->node->gid,
		.sport = sport,
	};

	roce_rx(p->a->qp, &rx, p->sim->now);
}

static void cnp_to_a(struct pair *p)
{
	cnp_from(p, SIM_SPORT);
}

/* Strangers slow nobody down, and the peer not more often than it should. */
static void congestion_counts_once(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	const struct roce_cc *cc = &p.a->qp->req.cc;
	uint32_t cwnd;

	(void)state;
	p.sim->direct = 0;
	p.sim->way[0] = p.sim->way[1] = SIM_UDP;
	p.a->qp->path.lossless = p.b->qp->path.lossless = false;
	for (uint32_t i = 0; i < 16; i++)
		post_to(p.a, IBV_WR_RDMA_WRITE, 0, 4096);
	settle(&p);
	cwnd = cc->cwnd;
	cnp_from(&p, SIM_SPORT + 1);
	assert_int_equal(cc->cwnd, cwnd);
	cnp_from(&p, SIM_SPORT);
	assert_true(cc->cwnd < cwnd);
	cwnd = cc->cwnd;
	p.a->qp->req.cc.recovering = false;
	p.sim->now += 10000;
	cnp_from(&p, SIM_SPORT);
	assert_int_equal(cc->cwnd, cwnd);
	p.sim->now += 50000;
	cnp_from(&p, SIM_SPORT);
	assert_true(cc->cwnd < cwnd);
	assert_int_equal(roce_qp_stats(p.a->qp)->cnp_rx, 4);
	sim_free(p.sim);
}

/* Nor does it stop one of UC, whoever reports that before anything is sent. */
static void congestion_stops_nothing(void **state)
{
	struct pair p = pair_new(IBV_QPT_UC);

	(void)state;
	cnp_to_a(&p);
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, 64);
	expect(p.a->send, IBV_WC_SUCCESS);
	sim_free(p.sim);
}

/* A lost response is asked for again at once, congestion or not. */
static void congestion_is_no_recovery(void **state)
{
	(void)state;
	for (int when = 0; when < 3; when++) {
		struct pair p = pair_new(IBV_QPT_RC);
		struct script sc = { .opcode = ROCE_READ_RESP_ONLY,
				     .count = 1 };

		script(&p, &sc);
		if (when == 1)
			cnp_to_a(&p);
		post_to(p.a, IBV_WR_RDMA_READ, 0, 100);
		post_to(p.a, IBV_WR_RDMA_READ, 100, 100);
		if (when == 2)
			cnp_to_a(&p);
		sim_run(p.sim, 100000); /* far less than a probe takes */
		expect(p.a->send, IBV_WC_SUCCESS);
		expect(p.a->send, IBV_WC_SUCCESS);
		sim_free(p.sim);
	}
}

/* The answer is older than the request for who reads the clock too early. */
static void round_trips_are_positive(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	uint64_t early = p.sim->now - 10000;

	(void)state;
	p.sim->link.drop = drop_all;
	for (uint32_t i = 0; i < 2; i++) {
		post_to(p.a, IBV_WR_RDMA_WRITE, 0, 8);
		/* The first look at what may be lost is soon. */
		assert_true(roce_deadline(p.a->qp) <= p.sim->now + 5000000);
		p.sim->now = i ? p.sim->now : early;
		answer(&p, psn_add(sim_conn_default.psn_a, i), 0x1f, i + 1);
		p.sim->now = early + 20000;
		expect(p.a->send, IBV_WC_SUCCESS);
	}
	sim_free(p.sim);
}

/* Nor does a clock that was read too early give another burst. */
static void pace_is_kept_over_clocks(void **state)
{
	struct pair p = pair_new(IBV_QPT_UC);
	struct seen *w = watch(&p);
	size_t burst;

	(void)state;
	for (uint32_t i = 0; i < 8; i++)
		post_to(p.a, IBV_WR_RDMA_WRITE, 0, 64000);
	burst = w->n;
	assert_in_range(burst, 1, 8 * 63 - 1);
	for (uint32_t i = 0; i < 4; i++) {
		p.sim->now -= 1000;
		sim_pull(p.a);
	}
	p.sim->now += 4000;
	sim_pull(p.a);
	assert_int_equal(w->n, burst);
	settle(&p);
	assert_int_equal(w->n, 8 * 63);
	sim_free(p.sim);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(late_acks_are_no_congestion),
		cmocka_unit_test(congestion_is_told),
		cmocka_unit_test(congestion_is_heeded),
		cmocka_unit_test(whole_runs_leave),
		cmocka_unit_test(small_requests_gather),
		cmocka_unit_test(congestion_counts_once),
		cmocka_unit_test(congestion_stops_nothing),
		cmocka_unit_test(congestion_is_no_recovery),
		cmocka_unit_test(round_trips_are_positive),
		cmocka_unit_test(pace_is_kept_over_clocks),
	};

	cmocka_set_test_filter(getenv("SIM_TEST"));
	return cmocka_run_group_tests_name("sim_congestion", tests, NULL, NULL);
}

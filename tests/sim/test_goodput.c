/*
 * test_goodput.c - what arrives over paths that lose, reorder and overflow
 *
 * Flows of 64 KiB writes from one node to the other, through one bottleneck
 * with a queue, in the simulation's time: figures that a test can ask for, the
 * same each time. GOODPUT=1 in the environment prints those of all paths.
 */
#include "scripted.h"

#include <stdio.h>
#include <stdlib.h>

#define MSG 65536u
#define DEPTH 16u /* writes that each flow has posted */
#define FLOWS_MAX 16u
#define MANY 1200 /* messages that the path can take in a run */
#define MANY_RTTS 300

struct net {
	const char *name;
	uint64_t rate; /* bytes per second */
	uint64_t delay_ns; /* one way */
	uint64_t queue; /* bytes */
	uint64_t turn; /* that each process runs at a time; 0: all do */
};

static const struct net host = { "24 Gb/s, 20 us", 3000000000, 10000, 4 << 20,
				 0 };
static const struct net lan = { "10 Gb/s, 100 us", 1250000000, 50000, 1 << 20,
				0 };
static const struct net slow = { "1 Gb/s, 1 ms", 125000000, 500000, 256 << 10,
				 0 };
static const struct net shallow = { "1 Gb/s, 200 us, 64 KiB of queue",
				    125000000, 100000, 64 << 10, 0 };

/* The processes of each end share a processor. */
static const struct net turns_200 = { "24 Gb/s, 20 us, in turns of 200 us",
				      3000000000, 10000, 16 << 20, 200000 };
static const struct net turns_50 = { "24 Gb/s, 20 us, in turns of 50 us",
				     3000000000, 10000, 16 << 20, 50000 };

struct trouble {
	double loss, reorder;
	bool marks;
};

struct goodput {
	double share; /* of the bottleneck's rate that was payload */
	double jain;
	uint64_t overflows, packets;
};

/* The same over and over, as long as it lasts. */
struct flow {
	struct sim_qp *q;
	uint64_t done;
};

static void flow_begin(struct flow *f, struct sim *s, uint32_t i)
{
	const struct sim_qp_opts o = {
		.type = IBV_QPT_RC,
		.cap = { .max_send_wr = DEPTH,
			 .max_send_sge = 1,
			 .max_recv_wr = 1,
			 .max_recv_sge = 1 },
		.sig_all = true,
	};
	struct sim_conn_opts co = sim_conn_default;

	co.mtu = IBV_MTU_4096;
	co.psn_a = (co.psn_a + 1000003 * i) & 0xffffff;
	f->q = sim_qp_new(s, 0, &o);
	f->done = 0;
	sim_connect(f->q, sim_qp_new(s, 1, &o), &co);
	for (uint32_t k = 0; k < DEPTH; k++)
		assert_int_equal(post_to(f->q, IBV_WR_RDMA_WRITE, 0, MSG), 0);
}

static void flow_go_on(struct flow *f, bool counts)
{
	const struct ibv_wc *wc;

	while ((wc = sim_poll(f->q->send))) {
		assert_int_equal(wc->status, IBV_WC_SUCCESS);
		f->done += counts;
		assert_int_equal(post_to(f->q, IBV_WR_RDMA_WRITE, 0, MSG), 0);
	}
	f->q->send->n = f->q->send->read = 0;
}

static struct goodput run(const struct net *net, uint32_t flows,
			  struct trouble t)
{
	uint64_t ns = MANY * (uint64_t)MSG * SIM_SEC / net->rate;
	struct goodput g = { .packets = 0 };
	struct sim *s = sim_new(7);
	double sum = 0, squares = 0;
	struct flow f[FLOWS_MAX];
	uint64_t begin, end;

	if (ns < MANY_RTTS * 2 * net->delay_ns)
		ns = MANY_RTTS * 2 * net->delay_ns;
	if (ns < 60 * net->turn * flows)
		ns = 60 * net->turn * flows;
	if (net->turn)
		ns -= ns % (3 * net->turn * flows);
	s->link.rate = net->rate;
	s->link.delay_ns = net->delay_ns;
	s->link.jitter_ns = net->delay_ns;
	s->link.queue = net->queue;
	s->turns.ns = net->turn;
	s->turns.n = flows;
	s->link.mark = t.marks ? net->queue / 4 : 0;
	s->link.loss = t.loss;
	s->link.reorder = t.reorder;
	for (uint32_t i = 0; i < flows; i++)
		flow_begin(&f[i], s, i);
	/* The first third is for finding the rate. */
	begin = s->now + ns / 3;
	end = s->now + ns;
	while (s->now < end) {
		sim_run(s, 20000);
		for (uint32_t i = 0; i < flows; i++)
			if (sim_turn(f[i].q, s->now) == s->now)
				flow_go_on(&f[i], s->now >= begin);
	}
	for (uint32_t i = 0; i < flows; i++) {
		sum += (double)f[i].done;
		squares += (double)f[i].done * (double)f[i].done;
	}
	g.share =
		sum * MSG * SIM_SEC / (double)(end - begin) / (double)net->rate;
	g.jain = sum * sum / (flows * squares);
	g.overflows = s->overflows;
	g.packets = s->packets;
	sim_free(s);
	return g;
}

static void at_least(double is, double least)
{
	if (is < least)
		fail_msg("%.3f, and not %.2f", is, least);
}

/* One packet lost by chance must not close the window. */
static void loss_costs_what_it_must(void **state)
{
	static const struct {
		double loss, share;
	} step[] = { { 0.001, 0.9 }, { 0.01, 0.6 }, { 0.05, 0.2 } };
	double free = run(&host, 1, (struct trouble){ .loss = 0 }).share;

	(void)state;
	at_least(free, 0.95);
	for (size_t i = 0; i < sizeof(step) / sizeof(step[0]); i++)
		at_least(run(&host, 1, (struct trouble){ .loss = step[i].loss })
					 .share /
				 free,
			 step[i].share);
}

/* While a gap is closed what is behind it is kept, and more goes on. */
static void a_gap_does_not_stop_the_flow(void **state)
{
	(void)state;
	at_least(run(&lan, 1, (struct trouble){ .loss = 0.01 }).share, 0.72);
	at_least(run(&slow, 1, (struct trouble){ .loss = 0.01 }).share, 0.5);
	at_least(run(&lan, 4, (struct trouble){ .loss = 0.05 }).share, 0.72);
}

/* A packet that others overtake is taken for lost, but not for congestion. */
static void detours_cost_what_they_must(void **state)
{
	(void)state;
	at_least(run(&host, 1, (struct trouble){ .reorder = 0.01 }).share, 0.5);
	at_least(run(&lan, 1, (struct trouble){ .reorder = 0.01 }).share, 0.5);
}

/* Each gets its part, and together they use what there is. */
static void flows_share_a_bottleneck(void **state)
{
	static const struct net *const nets[] = { &lan, &slow, &shallow };

	(void)state;
	for (size_t i = 0; i < sizeof(nets) / sizeof(nets[0]); i++) {
		struct goodput g =
			run(nets[i], 16, (struct trouble){ .loss = 0 });

		at_least(g.jain, 0.9);
		at_least(g.share, 0.7);
		at_least(run(nets[i], 1, (struct trouble){ .loss = 0 }).share,
			 0.8);
	}
}

/* Congestion notifications keep the queue from overflowing. */
static void marks_prevent_losses(void **state)
{
	struct goodput with = run(&lan, 4, (struct trouble){ .marks = true });
	struct goodput without = run(&lan, 4, (struct trouble){ .loss = 0 });

	(void)state;
	at_least(with.share, 0.95);
	at_least(with.jain, 0.9);
	assert_true(without.overflows > 100);
	assert_true(with.overflows < without.overflows / 4);
}

static bool out(struct sim *s, const struct roce_hdr *h, int from)
{
	const uint64_t *until = s->user;

	(void)h;
	return from == 0 && s->now < *until;
}

/* After a while in which nothing arrives it is soon as it was. */
static void outage_is_forgotten(void **state)
{
	struct sim *s = sim_new(7);
	uint64_t until, end;
	struct flow f;

	(void)state;
	s->link.rate = host.rate;
	s->link.delay_ns = host.delay_ns;
	s->link.queue = host.queue;
	flow_begin(&f, s, 0);
	for (end = s->now + 5000000; s->now < end; sim_run(s, 20000))
		flow_go_on(&f, false);
	until = s->now + 1500000;
	s->user = &until;
	s->link.drop = out;
	/* The next probe is as late as the outage was long, in the middle of
	 * the millisecond that counts. */
	for (end = until + 1000000; s->now < end; sim_run(s, 20000))
		flow_go_on(&f, false);
	for (end = s->now + 1000000; s->now < end; sim_run(s, 20000))
		flow_go_on(&f, true);
	at_least((double)f.done * MSG * 1000 / (double)host.rate, 0.4);
	sim_free(s);
}

/* Who is held back after a loss and then has no processor catches up. */
static void waiting_for_a_processor_costs_nothing_else(void **state)
{
	struct goodput g =
		run(&turns_200, 16, (struct trouble){ .loss = 0.001 });

	(void)state;
	at_least(g.share, 0.9);
	at_least(g.jain, 0.8);
	g = run(&turns_50, 16, (struct trouble){ .loss = 0.01 });
	at_least(g.share, 0.9);
	at_least(g.jain, 0.9);
}

static void print_all(void)
{
	static const struct net *const nets[] = { &host,      &lan,
						  &slow,      &shallow,
						  &turns_200, &turns_50 };
	static const struct trouble trouble[] = {
		{ .loss = 0 },    { .loss = 0.001 },   { .loss = 0.01 },
		{ .loss = 0.05 }, { .reorder = 0.01 }, { .marks = true },
	};

	printf("share of the path (Jain's index), at loss 0, 0.1, 1, 5 %%, "
	       "detours of 1 %%, marks\n");
	for (size_t n = 0; n < sizeof(nets) / sizeof(nets[0]); n++)
		for (uint32_t flows = 1; flows <= 16; flows *= 4) {
			printf("%-34s %2u:", nets[n]->name, flows);
			for (size_t i = 0;
			     i < sizeof(trouble) / sizeof(trouble[0]); i++) {
				struct goodput g =
					run(nets[n], flows, trouble[i]);

				printf("  %.2f (%.2f)", g.share, g.jain);
			}
			printf("\n");
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(loss_costs_what_it_must),
		cmocka_unit_test(a_gap_does_not_stop_the_flow),
		cmocka_unit_test(detours_cost_what_they_must),
		cmocka_unit_test(flows_share_a_bottleneck),
		cmocka_unit_test(marks_prevent_losses),
		cmocka_unit_test(outage_is_forgotten),
		cmocka_unit_test(waiting_for_a_processor_costs_nothing_else),
	};

	if (getenv("GOODPUT")) {
		print_all();
		return 0;
	}
	cmocka_set_test_filter(getenv("SIM_TEST"));
	return cmocka_run_group_tests_name("sim_goodput", tests, NULL, NULL);
}

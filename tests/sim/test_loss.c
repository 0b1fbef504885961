/*
 * test_loss.c - lost packets and late ones: repeating, and giving up
 */
#include "scripted.h"

#include "roce/roce_internal.h"

#include <stdlib.h>
#include <string.h>

/* A lost reply must not add twice. */
static void fetch_add_runs_once(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	struct script sc = { .opcode = ROCE_ATOMIC_ACK, .count = 2 };

	(void)state;
	script(&p, &sc);
	post_to(p.a, IBV_WR_ATOMIC_FETCH_AND_ADD, 4096, 8);
	settle(&p);
	expect(p.a->send, IBV_WC_SUCCESS);
	assert_int_equal(*(uint64_t *)(p.b->node->mem + 4096), 1);
	assert_int_equal(*(uint64_t *)(p.a->node->mem + 4096), 0);
	assert_true(sc.seen[ROCE_FETCH_ADD] >= 3);
	sim_free(p.sim);
}

/* One gap, one NAK: the packets behind it stay unanswered (9.7.5.2.4). */
static void one_nak_per_gap(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	struct script sc = { .opcode = ROCE_WRITE_FIRST, .count = 1 };

	(void)state;
	packets_of_mtu(&p);
	script(&p, &sc);
	memset(p.a->node->mem, 7, 60000);
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, 60000);
	settle(&p);
	expect(p.a->send, IBV_WC_SUCCESS);
	assert_memory_equal(p.a->node->mem, p.b->node->mem, 60000);
	assert_int_equal(sc.naks, 1);
	sim_free(p.sim);
}

static void lost_ack_is_given_again(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	struct script sc = { .opcode = ROCE_ACK, .count = 1 };

	(void)state;
	script(&p, &sc);
	recv_into(p.b, 0, 100);
	post_to(p.a, IBV_WR_SEND, 0, 100);
	settle(&p);
	expect(p.a->send, IBV_WC_SUCCESS);
	expect(p.b->recv, IBV_WC_SUCCESS);
	assert_null(sim_poll(p.b->recv));
	sim_free(p.sim);
}

/* Losing one response of a read costs the rest of the read, not all of it. */
static void read_resumes_in_the_middle(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	struct script sc = { .opcode = ROCE_READ_RESP_LAST, .count = 1 };

	(void)state;
	packets_of_mtu(&p);
	script(&p, &sc);
	memset(p.b->node->mem, 9, 30000);
	post_to(p.a, IBV_WR_RDMA_READ, 0, 30000);
	settle(&p);
	expect(p.a->send, IBV_WC_SUCCESS);
	assert_memory_equal(p.a->node->mem, p.b->node->mem, 30000);
	assert_int_equal(sc.seen[ROCE_READ_RESP_ONLY], 1);
	sim_free(p.sim);
}

/* A read longer than a chunk is several read requests. */
static void long_read_in_chunks(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	struct script sc = { 0 };

	(void)state;
	packets_of_mtu(&p);
	script(&p, &sc);
	for (int i = 0; i < 1000000; i++)
		p.b->node->mem[i] = (uint8_t)(i * 31 >> 3);
	post_to(p.a, IBV_WR_RDMA_READ, 0, 1000000);
	settle(&p);
	expect(p.a->send, IBV_WC_SUCCESS);
	assert_memory_equal(p.a->node->mem, p.b->node->mem, 1000000);
	assert_int_equal(sc.seen[ROCE_READ_REQUEST], 16);
	sim_free(p.sim);
}

static void dead_peer_exceeds_retries(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	uint64_t start;

	(void)state;
	p.sim->link.loss = 1;
	start = p.sim->now;
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, 100);
	post_to(p.a, IBV_WR_SEND, 100, 100);
	recv_into(p.a, 0, 100);
	while (!p.a->send->n && p.sim->now - start < 100 * SIM_SEC)
		sim_run(p.sim, SIM_SEC / 1000);
	/* Not before retry_cnt + 1 timeouts, not after four times that. */
	assert_true(p.sim->now - start >= 8 * 67108864ull);
	assert_true(p.sim->now - start <= 4 * 8 * 67108864ull);
	expect(p.a->send, IBV_WC_RETRY_EXC_ERR);
	expect(p.a->send, IBV_WC_WR_FLUSH_ERR);
	expect(p.a->recv, IBV_WC_WR_FLUSH_ERR);
	assert_int_equal(roce_qp_state(p.a->qp), IBV_QPS_ERR);
	sim_free(p.sim);
}

/* A probe is for a packet that was lost; a peer that is slow is not helped. */
static void silent_peer_is_asked_ever_more_rarely(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);

	(void)state;
	p.sim->link.loss = 1;
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, 100);
	/* 4, 8, ... ms, and whenever a timeout counts. */
	sim_run(p.sim, 4 * 134217728ull - 1);
	assert_in_range(p.sim->packets, 6, 12);
	assert_null(sim_poll(p.a->send));
	sim_free(p.sim);
}

/* Nor by being asked for all that was out again each time. */
static void silent_peer_is_asked_for_one_read(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);

	(void)state;
	packets_of_mtu(&p);
	p.a->qp->path.lossless = p.b->qp->path.lossless = false;
	for (uint32_t i = 0; i < 8; i++)
		post_to(p.a, IBV_WR_RDMA_READ, i * 8192, 8192);
	settle(&p);
	for (int i = 0; i < 8; i++)
		expect(p.a->send, IBV_WC_SUCCESS);
	p.sim->packets = 0;
	p.sim->link.loss = 1;
	for (uint32_t i = 0; i < 8; i++)
		post_to(p.a, IBV_WR_RDMA_READ, i * 8192, 8192);
	/* Each twice, and then the first alone. */
	sim_run(p.sim, 4 * 134217728ull - 1);
	assert_in_range(p.sim->packets, 20, 32);
	assert_null(sim_poll(p.a->send));
	/* The window is as it was once it answers. */
	p.sim->link.loss = 0;
	sim_run(p.sim, SIM_SEC);
	for (int i = 0; i < 8; i++)
		expect(p.a->send, IBV_WC_SUCCESS);
	sim_free(p.sim);
}

static enum { READ_ALL, READ_NOTHING, READ_SLOWLY } peer_reads;

/* READ_SLOWLY: there is always more, but what it was when asked is read. */
static bool peer_unread(struct qp *qp, uint64_t mark[2])
{
	(void)qp;
	if (peer_reads == READ_NOTHING ||
	    (peer_reads == READ_SLOWLY && !mark[0])) {
		mark[0] = 1;
		return true;
	}
	mark[0] = 0;
	return false;
}

/* A process that gets no processor time is not a dead one. */
static void peer_that_has_yet_to_read_is_waited_for(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);

	(void)state;
	p.a->node->env.unread = peer_unread;
	peer_reads = READ_NOTHING;
	p.sim->link.loss = 1;
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, 100);
	sim_run(p.sim, 60 * SIM_SEC);
	assert_null(sim_poll(p.a->send));
	assert_int_equal(p.sim->packets, 1);
	/* It has read, and not got it: now that is a loss. */
	peer_reads = READ_ALL;
	p.sim->link.loss = 0;
	settle(&p);
	expect(p.a->send, IBV_WC_SUCCESS);
	assert_int_equal(roce_qp_stats(p.a->qp)->timeouts, 0);
	/* And what goes on being lost counts in full. */
	p.sim->link.loss = 1;
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, 100);
	sim_run(p.sim, 8 * 134217728ull - SIM_SEC / 10);
	assert_null(sim_poll(p.a->send));
	settle(&p);
	expect(p.a->send, IBV_WC_RETRY_EXC_ERR);
	sim_free(p.sim);
}

/* A process that others keep busy answers for us no more than an idle one. */
static void busy_peer_exceeds_retries(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);

	(void)state;
	p.a->node->env.unread = peer_unread;
	peer_reads = READ_SLOWLY;
	p.sim->link.loss = 1;
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, 100);
	sim_run(p.sim, 4 * 8 * 134217728ull);
	expect(p.a->send, IBV_WC_RETRY_EXC_ERR);
	assert_int_equal(roce_qp_stats(p.a->qp)->timeouts, 8);
	sim_free(p.sim);
}

/* Whoever looks at the clock late has not waited for the peer so long. */
static void late_timer_is_one_timeout(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);

	(void)state;
	p.sim->link.loss = 1;
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, 100);
	p.sim->now += 5 * SIM_SEC;
	sim_run(p.sim, SIM_SEC / 2);
	assert_int_equal(roce_qp_stats(p.a->qp)->timeouts, 4);
	p.sim->link.loss = 0;
	settle(&p);
	expect(p.a->send, IBV_WC_SUCCESS);
	sim_free(p.sim);
}

/* timeout 0 never gives up (9.7.6.1.3), but what was lost is sent again. */
static void timeout_zero_is_for_ever(void **state)
{
	struct sim_conn_opts co = sim_conn_default;
	struct pair p;

	(void)state;
	co.timeout = 0;
	p = pair_opts(IBV_QPT_RC, &co);
	p.sim->link.loss = 1;
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, 100);
	sim_run(p.sim, 60 * SIM_SEC);
	assert_null(sim_poll(p.a->send));
	/* That is said after 1, 2, 4, 8, 16 and 32 s. */
	assert_int_equal(p.a->explained, 6);
	assert_non_null(strstr(p.a->words, "waits indefinitely (timeout=0)"));
	p.sim->link.loss = 0;
	sim_run(p.sim, SIM_SEC);
	expect(p.a->send, IBV_WC_SUCCESS);
	assert_int_equal(p.a->explained, 6);
	sim_free(p.sim);
}

static void rnr_waits_for_a_receive(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);

	(void)state;
	post_to(p.a, IBV_WR_SEND, 0, 3000);
	sim_run(p.sim, SIM_SEC / 10);
	assert_null(sim_poll(p.a->send));
	recv_into(p.b, 0, 3000);
	settle(&p);
	expect(p.a->send, IBV_WC_SUCCESS);
	expect(p.b->recv, IBV_WC_SUCCESS);
	sim_free(p.sim);
}

static void rnr_retry_exceeded(void **state)
{
	struct sim_conn_opts co = sim_conn_default;
	struct pair p;

	(void)state;
	co.rnr_retry = 2;
	p = pair_opts(IBV_QPT_RC, &co);
	post_to(p.a, IBV_WR_SEND, 0, 100);
	post_to(p.a, IBV_WR_SEND, 100, 100);
	settle(&p);
	expect(p.a->send, IBV_WC_RNR_RETRY_EXC_ERR);
	expect(p.a->send, IBV_WC_WR_FLUSH_ERR);
	assert_int_equal(roce_qp_stats(p.b->qp)->rnr_tx, 3);
	/* The responder is as it was. */
	assert_int_equal(roce_qp_state(p.b->qp), IBV_QPS_RTS);
	sim_free(p.sim);
}

/* Both ends say so, now and then, as long as it lasts. */
static void rnr_is_explained(void **state)
{
	struct sim_conn_opts co = sim_conn_default;
	struct roce_waits w;
	struct pair p;

	(void)state;
	co.rnr_retry = 7;
	p = pair_opts(IBV_QPT_RC, &co);
	roce_qp_waits(p.a->qp, &w);
	assert_true(!w.unacked && !w.rnr_since_ns);
	post_to(p.a, IBV_WR_SEND, 0, 10);
	sim_run(p.sim, 11 * SIM_SEC / 2);
	roce_qp_waits(p.a->qp, &w);
	assert_int_equal(w.unacked, 1);
	assert_true(w.rnr_since_ns && w.rnr_naks > 20);
	assert_true(roce_qp_stats(p.b->qp)->rnr_tx > 20);
	assert_in_range(p.b->explained, 3, 6);
	assert_non_null(strstr(p.b->words, "no receive is posted"));
	assert_in_range(p.a->explained, 2, 5);
	assert_non_null(strstr(p.a->words, "rnr_retry=7 waits indefinitely"));
	recv_into(p.b, 0, 100);
	sim_run(p.sim, SIM_SEC);
	expect(p.a->send, IBV_WC_SUCCESS);
	assert_in_range(p.a->explained, 2, 5);
	roce_qp_waits(p.a->qp, &w);
	assert_true(!w.unacked && !w.rnr_since_ns);
	sim_free(p.sim);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fetch_add_runs_once),
		cmocka_unit_test(one_nak_per_gap),
		cmocka_unit_test(lost_ack_is_given_again),
		cmocka_unit_test(read_resumes_in_the_middle),
		cmocka_unit_test(long_read_in_chunks),
		cmocka_unit_test(dead_peer_exceeds_retries),
		cmocka_unit_test(silent_peer_is_asked_ever_more_rarely),
		cmocka_unit_test(silent_peer_is_asked_for_one_read),
		cmocka_unit_test(peer_that_has_yet_to_read_is_waited_for),
		cmocka_unit_test(busy_peer_exceeds_retries),
		cmocka_unit_test(late_timer_is_one_timeout),
		cmocka_unit_test(timeout_zero_is_for_ever),
		cmocka_unit_test(rnr_waits_for_a_receive),
		cmocka_unit_test(rnr_retry_exceeded),
		cmocka_unit_test(rnr_is_explained),
	};

	cmocka_set_test_filter(getenv("SIM_TEST"));
	return cmocka_run_group_tests_name("sim_loss", tests, NULL, NULL);
}

/*
 * test_scripted.c - one behaviour of the protocol at a time
 *
 * Each test names what the specification says, drops or forges the packets
 * that bring it about, and looks at completions, events and memory.
 *
 * What hardware expects of packets, and the tests that state it; "peer" is
 * tests/peer/packets.py, which looks for it in captures as well:
 *
 *   source port per QP or flow label  A17.4.5.2  flow_label_picks_the_port,
 *                                                test_udp: headers_of_ip
 *   DSCP and ECN from traffic class   A17.4.5    test_udp: headers_of_ip; peer
 *   TTL from hop limit                A17.4.5    test_udp: headers_of_ip; peer
 *   Don't Fragment                    A17.4.5.1  test_udp: headers_of_ip; peer
 *   no UDP checksum, IPv4 and IPv6    A17.4.5.2  test_udp: no_udp_checksum
 *   P_Key 0xffff                      10.9       pkey_is_the_default_one,
 *                                                strangers_are_ignored; peer
 *   MigReq 1                          17.2.8     mig_req_is_one,
 *                                                quirk_rxe_fields; peer
 *   transport version 0               9.2.4      transport_version_is_zero,
 *                                                strangers_are_ignored; peer
 *   FECN and BECN 0                   A17.9.3    no_congestion_bits,
 *                                                congestion_is_told
 *   reserved bits 0 on sending        9.2        test_roce: reserved_bits; peer
 *   and ignored on receipt            9.2        test_roce: reserved_bits,
 *                                                test_udp: no_udp_checksum
 *   pad count                         9.2.3      pads_fill_the_last_word,
 *                                                test_roce: every_length; peer
 *   solicited event bit               9.2.2      solicited_is_for_the_last
 *   AckReq                            9.7.7.1.1  ack_is_asked_for
 *   AETH credits                      9.7.7.2    credits_say_that_there_are_none
 *   MSN                               9.7.7.1    msn_counts_messages
 *   responder resources are told      12.7.29,   cm_scripted:
 *                                     12.7.30      responder_resources_are_told
 *   kept to, as requester             9.7.3.3    outstanding_reads_bounded
 *   and demanded, as responder        9.7.4.1.7  too_many_reads_are_refused
 *   congestion notification           A17.9.3    congestion_is_told,
 *                                                congestion_is_heeded
 */
#include "sim.h"

#include "base/bytes.h"
#include "roce/internal.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct pair {
	struct sim *sim;
	struct sim_qp *a, *b;
};

static struct pair pair_opts(enum ibv_qp_type type,
			     const struct sim_conn_opts *co)
{
	struct sim_qp_opts qo = {
		.type = type,
		.cap = { .max_send_wr = 32, .max_recv_wr = 32,
			 .max_send_sge = 2, .max_recv_sge = 2,
			 .max_inline_data = 64 },
		.sig_all = true,
	};
	struct pair p = { .sim = sim_new(1) };

	p.a = sim_qp_new(p.sim, 0, &qo);
	p.b = sim_qp_new(p.sim, 1, &qo);
	if (type == IBV_QPT_UD) {
		p.a->peer = p.b;
		p.b->peer = p.a;
		sim_ud_up(p.a, 0x11);
		sim_ud_up(p.b, 0x11);
	} else {
		sim_connect(p.a, p.b, co);
	}
	return p;
}

static struct pair pair_new(enum ibv_qp_type type)
{
	return pair_opts(type, &sim_conn_default);
}

/* A work request over [mem + off, +len) of the poster's memory. */
static int post(struct sim_qp *q, enum ibv_wr_opcode op, uint32_t off,
		uint32_t len, uint64_t raddr, uint32_t rkey, unsigned flags)
{
	struct ibv_sge sge = { (uintptr_t)q->node->mem + off, len,
			       q->node->lkey };
	struct ibv_send_wr wr = {
		.wr_id = off, .sg_list = &sge, .num_sge = 1,
		.opcode = op, .send_flags = flags,
	};

	if (op == IBV_WR_ATOMIC_FETCH_AND_ADD ||
	    op == IBV_WR_ATOMIC_CMP_AND_SWP) {
		wr.wr.atomic.remote_addr = raddr;
		wr.wr.atomic.rkey = rkey;
		wr.wr.atomic.compare_add = 1;
	} else if (roce_qp_type(q->qp) == IBV_QPT_UD) {
		wr.wr.ud.remote_qpn = roce_qp_num(q->peer->qp);
		wr.wr.ud.remote_qkey = rkey;
	} else {
		wr.wr.rdma.remote_addr = raddr;
		wr.wr.rdma.rkey = rkey;
	}
	if (roce_qp_type(q->qp) == IBV_QPT_XRC_SEND)
		wr.qp_type.xrc.remote_srqn = SIM_XRC_SRQN;
	return sim_post_send(q, &wr);
}

static uint64_t remote(struct sim_qp *q, uint32_t off)
{
	return (uintptr_t)q->peer->node->mem + off;
}

static int post_to(struct sim_qp *q, enum ibv_wr_opcode op, uint32_t off,
		   uint32_t len)
{
	return post(q, op, off, len, remote(q, off), q->peer->node->rkey, 0);
}

static int recv_into(struct sim_qp *q, uint32_t off, uint32_t len)
{
	struct ibv_sge sge = { (uintptr_t)q->node->mem + off, len,
			       q->node->lkey };
	struct ibv_recv_wr wr = { .wr_id = off, .sg_list = &sge, .num_sge = 1 };

	return sim_post_recv(q, &wr);
}

static void expect(struct sim_wcs *w, enum ibv_wc_status status)
{
	const struct ibv_wc *wc = sim_poll(w);

	assert_non_null(wc);
	if (wc->status != status)
		fail_msg("status %d where %d was due", wc->status, status);
}

static void settle(struct pair *p)
{
	sim_run(p->sim, 100 * SIM_SEC);
}

static int set_state(struct sim_qp *q, enum ibv_qp_state s)
{
	struct ibv_qp_attr a = { .qp_state = s };

	return roce_qp_modify(q->qp, &a, IBV_QP_STATE, NULL);
}

/* ---- scripted drops ---------------------------------------------------- */

struct script {
	uint8_t opcode; /* drop packets of this operation */
	int count;      /* so many */
	int seen[256];  /* packets handed to the link, by opcode */
	int naks;
};

static bool drop_scripted(struct sim *s, const struct roce_hdr *h, int from)
{
	struct script *sc = s->user;

	(void)from;
	if (h->opcode == sc->opcode && sc->count > 0) {
		sc->count--;
		return true;
	}
	return false;
}

static void tap_count(struct sim *s, const struct roce_hdr *h, size_t payload,
		      int from)
{
	struct script *sc = s->user;

	(void)payload;
	(void)from;
	sc->seen[h->opcode]++;
	if (h->opcode == ROCE_ACK &&
	    (h->syndrome & ROCE_AETH_KIND) == ROCE_AETH_NAK)
		sc->naks++;
}

static void script(struct pair *p, struct script *sc)
{
	p->sim->user = sc;
	p->sim->link.drop = drop_scripted;
	p->sim->link.tap = tap_count;
}

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
static bool acked_after(struct pair *p, const struct roce_rx *rx,
			uint32_t psn)
{
	struct roce_timewait w = p->b->timewait;
	struct roce_batch b;
	struct roce_hdr h;

	if (!roce_timewait_rx(&w, rx, &b, p->sim->now)) {
		assert_int_equal(b.n, 0);
		return false;
	}
	assert_int_equal(b.n, 1);
	assert_int_equal(b.niov + b.nheld + b.pkt[0].payload, 0);
	assert_true(roce_decode(&h, b.pkt[0].hdr, b.pkt[0].hdr_len) > 0);
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
		.h = { .opcode = ROCE_WRITE_ONLY, .pkey = 0xffff,
		       .dest_qpn = roce_qp_num(p.b->qp), .ack_req = true,
		       .va = remote(p.a, 0), .rkey = p.b->node->rkey,
		       .dma_len = 4 },
		.payload = (const uint8_t *)"ABCD", .len = 4,
		.sgid = p.a->node->gid, .dgid = p.b->node->gid,
	};
	struct roce_rx odd;

	(void)state;
	recv_into(p.b, 0, 3000);
	post_to(p.a, IBV_WR_SEND, 0, 3000);	 /* PSNs 0, 1, 2 */
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, 8);	 /* 3 */
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
	const enum ibv_qp_type types[] = { IBV_QPT_RC, IBV_QPT_UC,
					   IBV_QPT_UD };

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

/* Losing one response of a read costs the rest of the read, not all of it. */
static void read_resumes_in_the_middle(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	struct script sc = { .opcode = ROCE_READ_RESP_LAST, .count = 1 };

	(void)state;
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

static enum { READ_ALL, READ_NOTHING, READ_SLOWLY } peer_reads;

/* READ_SLOWLY: there is always more, but what it was when asked is read. */
static bool peer_unread(struct roce_qp *qp, uint64_t mark[2])
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
	p.sim->link.loss = 0;
	sim_run(p.sim, SIM_SEC);
	expect(p.a->send, IBV_WC_SUCCESS);
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

/* ---- refused requests -------------------------------------------------- */

static void refused(enum ibv_wr_opcode op, uint64_t raddr_off, uint32_t len,
		    uint32_t rkey_xor, enum ibv_wc_status status, int event)
{
	struct pair p = pair_new(IBV_QPT_RC);

	recv_into(p.b, 0, 1000);
	post(p.a, op, 64, len, remote(p.a, 0) + raddr_off,
	     p.b->node->rkey ^ rkey_xor, 0);
	post_to(p.a, IBV_WR_SEND, 0, 1);
	settle(&p);
	expect(p.a->send, status);
	expect(p.a->send, IBV_WC_WR_FLUSH_ERR);
	assert_int_equal(roce_qp_state(p.a->qp), IBV_QPS_ERR);
	assert_int_equal(roce_qp_state(p.b->qp), IBV_QPS_ERR);
	assert_int_equal(p.b->events, 1 << event);
	expect(p.b->recv, IBV_WC_WR_FLUSH_ERR);
	sim_free(p.sim);
}

static void wrong_rkey(void **state)
{
	(void)state;
	refused(IBV_WR_RDMA_WRITE, 0, 100, 1, IBV_WC_REM_ACCESS_ERR,
		IBV_EVENT_QP_ACCESS_ERR);
	refused(IBV_WR_RDMA_READ, 0, 100, 0x100, IBV_WC_REM_ACCESS_ERR,
		IBV_EVENT_QP_ACCESS_ERR);
	refused(IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 8, 0x80000000,
		IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
}

static void out_of_bounds(void **state)
{
	(void)state;
	refused(IBV_WR_RDMA_WRITE, SIM_MEM - 99, 100, 0, IBV_WC_REM_ACCESS_ERR,
		IBV_EVENT_QP_ACCESS_ERR);
	refused(IBV_WR_RDMA_READ, (uint64_t)-1, 100, 0, IBV_WC_REM_ACCESS_ERR,
		IBV_EVENT_QP_ACCESS_ERR);
	refused(IBV_WR_RDMA_WRITE, SIM_MEM, 1, 0, IBV_WC_REM_ACCESS_ERR,
		IBV_EVENT_QP_ACCESS_ERR);
}

static void zero_length_is_not_checked(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);

	(void)state;
	post(p.a, IBV_WR_RDMA_WRITE, 0, 0, 12345, 678, 0);
	post(p.a, IBV_WR_RDMA_READ, 0, 0, 12345, 678, 0);
	settle(&p);
	expect(p.a->send, IBV_WC_SUCCESS);
	expect(p.a->send, IBV_WC_SUCCESS);
	sim_free(p.sim);
}

static void operation_not_enabled(void **state)
{
	struct sim_conn_opts co = sim_conn_default;
	struct pair p;

	(void)state;
	co.access = IBV_ACCESS_REMOTE_READ;
	p = pair_opts(IBV_QPT_RC, &co);
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, 10);
	settle(&p);
	expect(p.a->send, IBV_WC_REM_INV_REQ_ERR);
	assert_int_equal(p.b->events, 1 << IBV_EVENT_QP_REQ_ERR);
	sim_free(p.sim);
}

static void message_too_long(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);

	(void)state;
	recv_into(p.b, 0, 2000);
	post_to(p.a, IBV_WR_SEND, 0, 2001);
	settle(&p);
	expect(p.a->send, IBV_WC_REM_INV_REQ_ERR);
	expect(p.b->recv, IBV_WC_LOC_LEN_ERR);
	sim_free(p.sim);
}

static void local_protection(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	struct ibv_sge sge = { (uintptr_t)p.a->node->mem, 10,
			       p.a->node->lkey ^ 2 };
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND
	};

	(void)state;
	recv_into(p.b, 0, 100);
	recv_into(p.b, 100, 100);
	post_to(p.a, IBV_WR_SEND, 0, 100);
	assert_int_equal(sim_post_send(p.a, &wr), 0);
	post_to(p.a, IBV_WR_SEND, 0, 100);
	settle(&p);
	/* In order: what was before it is done first. */
	expect(p.a->send, IBV_WC_SUCCESS);
	expect(p.a->send, IBV_WC_LOC_PROT_ERR);
	expect(p.a->send, IBV_WC_WR_FLUSH_ERR);
	expect(p.b->recv, IBV_WC_SUCCESS);
	assert_null(sim_poll(p.b->recv));
	sim_free(p.sim);
}

static void bad_receive_buffer(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	struct ibv_sge sge = { (uintptr_t)p.b->node->mem, 100,
			       p.b->node->lkey ^ 2 };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 };

	(void)state;
	assert_int_equal(sim_post_recv(p.b, &wr), 0);
	post_to(p.a, IBV_WR_SEND, 0, 100);
	settle(&p);
	expect(p.a->send, IBV_WC_REM_OP_ERR);
	expect(p.b->recv, IBV_WC_LOC_PROT_ERR);
	sim_free(p.sim);
}

/* A region that goes away in mid-message stops the message. */
static void region_removed(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);

	(void)state;
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, 1000000);
	sim_run(p.sim, 1);
	keys_kill(&p.b->node->keys, (uint32_t)p.b->node->slot);
	settle(&p);
	expect(p.a->send, IBV_WC_REM_ACCESS_ERR);
	sim_free(p.sim);
}

/* ---- order, states ----------------------------------------------------- */

/* A fence waits for the read before it (10.8.3.3). */
static void fence_waits_for_reads(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	struct script sc = { 0 };

	(void)state;
	script(&p, &sc);
	recv_into(p.b, 0, 10);
	post_to(p.a, IBV_WR_RDMA_READ, 0, 5000);
	post(p.a, IBV_WR_SEND, 0, 1, 0, 0, IBV_SEND_FENCE);
	assert_int_equal(sc.seen[ROCE_SEND_ONLY], 0);
	settle(&p);
	assert_int_equal(sc.seen[ROCE_SEND_ONLY], 1);
	sim_free(p.sim);
}

/* 9.7.3.3: no more reads and atomics are out than the responder has room for,
 * as the connection's two ends have agreed (max_rd_atomic). */
static void outstanding_reads_bounded(void **state)
{
	struct sim_conn_opts co = sim_conn_default;
	struct script sc = { 0 };
	struct pair p;

	(void)state;
	co.rd_atomic = 2;
	p = pair_opts(IBV_QPT_RC, &co);
	script(&p, &sc);
	for (uint32_t i = 0; i < 5; i++)
		post_to(p.a, IBV_WR_RDMA_READ, i * 100, 100);
	assert_int_equal(sc.seen[ROCE_READ_REQUEST], 2);
	settle(&p);
	assert_int_equal(sc.seen[ROCE_READ_REQUEST], 5);
	sim_free(p.sim);
}

static void comm_est_once(void **state)
{
	struct sim_qp_opts qo = {
		.type = IBV_QPT_RC, .cap = { 8, 8, 1, 1, 0 }
	};
	struct pair p = { .sim = sim_new(2) };
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTR };

	(void)state;
	p.a = sim_qp_new(p.sim, 0, &qo);
	p.b = sim_qp_new(p.sim, 1, &qo);
	sim_connect(p.a, p.b, &sim_conn_default);
	/* b again, but only to RTR. */
	assert_int_equal(set_state(p.b, IBV_QPS_RESET), 0);
	a.qp_state = IBV_QPS_INIT;
	a.port_num = 1;
	assert_int_equal(roce_qp_modify(p.b->qp, &a,
					IBV_QP_STATE | IBV_QP_PKEY_INDEX |
						IBV_QP_PORT |
						IBV_QP_ACCESS_FLAGS,
					NULL), 0);
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR,
				  .path_mtu = IBV_MTU_1024,
				  .dest_qp_num = roce_qp_num(p.a->qp),
				  .rq_psn = sim_conn_default.psn_a,
				  .max_dest_rd_atomic = 1 };
	struct roce_path path = sim_path(p.b->node, p.a->node);
	assert_int_equal(roce_qp_modify(p.b->qp, &a,
					IBV_QP_STATE | IBV_QP_AV |
						IBV_QP_PATH_MTU |
						IBV_QP_DEST_QPN |
						IBV_QP_RQ_PSN |
						IBV_QP_MAX_DEST_RD_ATOMIC |
						IBV_QP_MIN_RNR_TIMER,
					&path), 0);
	recv_into(p.b, 0, 10);
	recv_into(p.b, 0, 10);
	post_to(p.a, IBV_WR_SEND, 0, 1);
	post_to(p.a, IBV_WR_SEND, 0, 1);
	settle(&p);
	assert_int_equal(p.b->events, 1 << IBV_EVENT_COMM_EST);
	sim_free(p.sim);
}

static void drained(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_SQD,
				 .en_sqd_async_notify = 1 };
	struct ibv_qp_init_attr init;

	(void)state;
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, 5000);
	assert_int_equal(roce_qp_modify(p.a->qp, &a,
					IBV_QP_STATE |
						IBV_QP_EN_SQD_ASYNC_NOTIFY,
					NULL), 0);
	roce_qp_query(p.a->qp, &a, &init);
	assert_int_equal(a.sq_draining, 1);
	/* Posted in SQD: waits. */
	post_to(p.a, IBV_WR_RDMA_WRITE, 5000, 10);
	settle(&p);
	expect(p.a->send, IBV_WC_SUCCESS);
	assert_null(sim_poll(p.a->send));
	assert_int_equal(p.a->events, 1 << IBV_EVENT_SQ_DRAINED);
	roce_qp_query(p.a->qp, &a, &init);
	assert_int_equal(a.sq_draining, 0);
	assert_int_equal(set_state(p.a, IBV_QPS_RTS), 0);
	sim_pull(p.a);
	settle(&p);
	expect(p.a->send, IBV_WC_SUCCESS);
	sim_free(p.sim);
}

/* What the peer has no receive for has not been drained. */
static void not_drained_while_rnr(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_SQD,
				 .en_sqd_async_notify = 1 };
	struct ibv_qp_init_attr init;

	(void)state;
	post_to(p.a, IBV_WR_SEND, 0, 10);
	assert_int_equal(
		roce_qp_modify(p.a->qp, &a,
			       IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY, NULL),
		0);
	sim_run(p.sim, 100000); /* the RNR NAK has come */
	assert_int_equal(p.a->events, 0);
	roce_qp_query(p.a->qp, &a, &init);
	assert_int_equal(a.sq_draining, 1);
	recv_into(p.b, 100, 10);
	settle(&p);
	expect(p.a->send, IBV_WC_SUCCESS);
	assert_int_equal(p.a->events, 1 << IBV_EVENT_SQ_DRAINED);
	sim_free(p.sim);
}

static void flush_in_order(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	const struct ibv_wc *wc;

	(void)state;
	p.sim->link.loss = 1;
	for (uint32_t i = 0; i < 5; i++) {
		post_to(p.a, IBV_WR_RDMA_WRITE, i, 1);
		recv_into(p.a, i, 1);
	}
	assert_int_equal(set_state(p.a, IBV_QPS_ERR), 0);
	/* Work requests posted to a QP in error are flushed as well. */
	post_to(p.a, IBV_WR_RDMA_WRITE, 5, 1);
	recv_into(p.a, 5, 1);
	for (uint32_t i = 0; i < 6; i++) {
		wc = sim_poll(p.a->send);
		assert_true(wc && wc->status == IBV_WC_WR_FLUSH_ERR &&
			    wc->wr_id == i);
		wc = sim_poll(p.a->recv);
		assert_true(wc && wc->status == IBV_WC_WR_FLUSH_ERR &&
			    wc->wr_id == i);
	}
	sim_free(p.sim);
}

static void sqe_and_back(void **state)
{
	struct pair p = pair_new(IBV_QPT_UD);
	struct ibv_sge sge = { (uintptr_t)p.a->node->mem, 10, 1 };
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND
	};

	(void)state;
	assert_int_equal(sim_post_send(p.a, &wr), 0);
	expect(p.a->send, IBV_WC_LOC_PROT_ERR);
	assert_int_equal(roce_qp_state(p.a->qp), IBV_QPS_SQE);
	assert_int_equal(set_state(p.a, IBV_QPS_RTS), 0);
	recv_into(p.b, 0, 100);
	post(p.a, IBV_WR_SEND, 0, 10, 0, 0x11, 0);
	settle(&p);
	expect(p.a->send, IBV_WC_SUCCESS);
	expect(p.b->recv, IBV_WC_SUCCESS);
	sim_free(p.sim);
}

/* UC: what follows carries the bytes of its own work request. */
static void sqe_and_back_uc(void **state)
{
	struct ibv_send_wr wr = { .num_sge = 1, .opcode = IBV_WR_SEND };

	(void)state;
	for (int k = 0; k < 4; k++) {
		struct pair p = pair_new(IBV_QPT_UC);
		/* in its first packet, or behind some that are on their way */
		struct ibv_sge sge[2] = {
			{ (uintptr_t)p.a->node->mem, 3000, p.a->node->lkey },
			{ (uintptr_t)p.a->node->mem, 3000, 1 },
		};

		wr.sg_list = k & 1 ? sge : sge + 1;
		wr.num_sge = k & 1 ? 2 : 1;
		recv_into(p.b, 1000, 100);
		recv_into(p.b, 1000, 100);
		assert_int_equal(sim_post_send(p.a, &wr), 0);
		sim_run(p.sim, SIM_SEC);
		expect(p.a->send, IBV_WC_LOC_PROT_ERR);
		assert_int_equal(roce_qp_state(p.a->qp), IBV_QPS_SQE);
		assert_int_equal(set_state(p.a, IBV_QPS_RTS), 0);
		memset(p.a->node->mem, 'x', 10);
		post(p.a, IBV_WR_SEND, 0, 10, 0, 0,
		     k & 2 ? IBV_SEND_INLINE : 0);
		settle(&p);
		expect(p.a->send, IBV_WC_SUCCESS);
		assert_int_equal(roce_qp_state(p.a->qp), IBV_QPS_RTS);
		if (!(k & 1)) {
			expect(p.b->recv, IBV_WC_SUCCESS);
			assert_memory_equal(p.b->node->mem + 1000, "xxxxxxxxxx",
					    10);
		}
		sim_free(p.sim);
	}
}

static void wrong_qkey_is_dropped(void **state)
{
	struct pair p = pair_new(IBV_QPT_UD);

	(void)state;
	recv_into(p.b, 0, 100);
	post(p.a, IBV_WR_SEND, 0, 10, 0, 0x12, 0);
	settle(&p);
	expect(p.a->send, IBV_WC_SUCCESS);
	assert_null(sim_poll(p.b->recv));
	sim_free(p.sim);
}

static void transitions_need_their_attributes(void **state)
{
	static const int rc_init = IBV_QP_STATE | IBV_QP_PKEY_INDEX |
				   IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
	struct sim_qp_opts qo = {
		.type = IBV_QPT_RC, .cap = { 8, 8, 1, 1, 0 }
	};
	struct sim *sim = sim_new(3);
	struct sim_qp *q = sim_qp_new(sim, 0, &qo);
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1 };

	(void)state;
	for (int bit = 1; bit <= IBV_QP_ACCESS_FLAGS; bit <<= 1)
		if (rc_init & bit)
			assert_int_equal(roce_qp_modify(q->qp, &a,
							rc_init & ~bit, NULL),
					 -EINVAL);
	assert_int_equal(roce_qp_modify(q->qp, &a, rc_init | IBV_QP_QKEY, NULL), -EINVAL);
	a.port_num = 2;
	assert_int_equal(roce_qp_modify(q->qp, &a, rc_init, NULL),
			 -EINVAL);
	a.port_num = 1;
	a.pkey_index = 1;
	assert_int_equal(roce_qp_modify(q->qp, &a, rc_init, NULL),
			 -EINVAL);
	a.pkey_index = 0;
	assert_int_equal(roce_qp_state(q->qp), IBV_QPS_RESET);
	assert_int_equal(roce_qp_modify(q->qp, &a, rc_init, NULL), 0);
	assert_int_equal(set_state(q, IBV_QPS_RTS), -EINVAL);
	assert_int_equal(set_state(q, IBV_QPS_SQD), -EINVAL);
	assert_int_equal(set_state(q, (enum ibv_qp_state)99), -EINVAL);
	assert_int_equal(set_state(q, IBV_QPS_ERR), 0);
	assert_int_equal(set_state(q, IBV_QPS_INIT), -EINVAL);
	assert_int_equal(set_state(q, IBV_QPS_RESET), 0);
	sim_free(sim);
}

static void posting_limits(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	struct ibv_sge sge[3] = { { 0, 0, 0 } };
	struct ibv_send_wr wr = {
		.sg_list = sge, .num_sge = 3, .opcode = IBV_WR_SEND
	};
	struct ibv_recv_wr rr = { .sg_list = sge, .num_sge = 3 };

	(void)state;
	p.sim->link.loss = 1;
	assert_int_equal(sim_post_send(p.a, &wr), -EINVAL);
	assert_int_equal(sim_post_recv(p.a, &rr), -EINVAL);
	wr.num_sge = 1;
	wr.opcode = (enum ibv_wr_opcode)77;
	assert_int_equal(sim_post_send(p.a, &wr), -EINVAL);
	wr.opcode = IBV_WR_SEND;
	wr.send_flags = IBV_SEND_INLINE;
	sge[0] = (struct ibv_sge){ (uintptr_t)p.a->node->mem, 65, 0 };
	assert_int_equal(sim_post_send(p.a, &wr), -EINVAL);
	sge[0].length = 64; /* inline data needs no lkey */
	for (int i = 0; i < 32; i++)
		assert_int_equal(sim_post_send(p.a, &wr), 0);
	assert_int_equal(sim_post_send(p.a, &wr), -ENOMEM);
	for (uint32_t i = 0; i < 32; i++)
		assert_int_equal(recv_into(p.a, i, 1), 0);
	assert_int_equal(recv_into(p.a, 0, 1), -ENOMEM);
	sim_free(p.sim);
}

static void srq_serves_many(void **state)
{
	struct sim_qp_opts qo = {
		.type = IBV_QPT_RC, .cap = { 8, 0, 1, 0, 0 }, .srq = true,
		.sig_all = true,
	};
	struct sim *sim = sim_new(4);
	struct sim_qp *a[3], *b[3];

	(void)state;
	for (int i = 0; i < 3; i++) {
		a[i] = sim_qp_new(sim, 0, &qo);
		b[i] = sim_qp_new(sim, 1, &qo);
		sim_connect(a[i], b[i], &sim_conn_default);
	}
	for (uint32_t i = 0; i < 3; i++) {
		struct ibv_sge sge = { (uintptr_t)sim->node[1].mem + i * 4096u,
				       4096, sim->node[1].lkey };
		struct ibv_recv_wr wr = {
			.wr_id = i, .sg_list = &sge, .num_sge = 1
		};

		assert_int_equal(qp_rq_post(&sim->node[1].srq, &wr), 0);
	}
	for (int i = 2; i >= 0; i--)
		post_to(a[i], IBV_WR_SEND, 0, 4000);
	sim_run(sim, SIM_SEC);
	for (int i = 0; i < 3; i++) {
		expect(a[i]->send, IBV_WC_SUCCESS);
		expect(b[i]->recv, IBV_WC_SUCCESS);
	}
	/* An SRQ is not flushed: the QP says that it takes no more from it. */
	assert_int_equal(set_state(b[0], IBV_QPS_ERR), 0);
	assert_int_equal(b[0]->events, 1 << IBV_EVENT_QP_LAST_WQE_REACHED);
	sim_free(sim);
}

/* An XRC message names the SRQ that takes it (annex A14). */
static void xrc_reaches_the_srq(void **state)
{
	struct sim_qp_opts so = {
		.type = IBV_QPT_XRC_SEND, .cap = { 8, 0, 1, 0, 0 },
		.sig_all = true,
	};
	struct sim_qp_opts ro = { .type = IBV_QPT_XRC_RECV };
	struct sim *sim = sim_new(5);
	struct sim_qp *a = sim_qp_new(sim, 0, &so);
	struct sim_qp *b = sim_qp_new(sim, 1, &ro);
	struct ibv_sge sge = { (uintptr_t)sim->node[0].mem, 5000,
			       sim->node[0].lkey };
	struct ibv_sge rsge = { (uintptr_t)sim->node[1].mem, 5000,
				sim->node[1].lkey };
	struct ibv_recv_wr rr = { .wr_id = 9, .sg_list = &rsge, .num_sge = 1 };
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
		.qp_type.xrc.remote_srqn = SIM_XRC_SRQN,
	};
	const struct ibv_wc *wc;

	(void)state;
	sim->link.loss = 0.1;
	sim_connect(a, b, &sim_conn_default);
	memset(sim->node[0].mem, 0x42, 5000);
	assert_int_equal(qp_rq_post(&sim->node[1].srq, &rr), 0);
	assert_int_equal(sim_post_send(a, &wr), 0);
	wr.opcode = IBV_WR_RDMA_READ;
	wr.wr.rdma.remote_addr = (uintptr_t)sim->node[1].mem;
	wr.wr.rdma.rkey = sim->node[1].rkey;
	sge.addr += 8192;
	assert_int_equal(sim_post_send(a, &wr), 0);
	sim_run(sim, SIM_SEC);
	expect(a->send, IBV_WC_SUCCESS);
	expect(a->send, IBV_WC_SUCCESS);
	wc = sim_poll(b->recv);
	assert_true(wc && wc->wr_id == 9 && wc->byte_len == 5000);
	assert_memory_equal(sim->node[0].mem, sim->node[1].mem, 5000);
	assert_memory_equal(sim->node[0].mem + 8192, sim->node[1].mem, 5000);
	/* The responding half cannot send, the other cannot receive. */
	assert_int_equal(sim_post_send(b, &wr), -EINVAL);
	wr.opcode = IBV_WR_SEND;
	wr.qp_type.xrc.remote_srqn = 78;
	assert_int_equal(sim_post_send(a, &wr), 0);
	sim_run(sim, SIM_SEC);
	expect(a->send, IBV_WC_REM_INV_REQ_ERR);
	sim_free(sim);
}

static void atomic_write_is_checked(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);

	(void)state;
	*(uint64_t *)p.a->node->mem = 0x1122334455667788;
	post_to(p.a, IBV_WR_ATOMIC_WRITE, 0, 8);
	settle(&p);
	expect(p.a->send, IBV_WC_SUCCESS);
	assert_int_equal(*(uint64_t *)p.b->node->mem, 0x1122334455667788);
	post(p.a, IBV_WR_ATOMIC_WRITE, 0, 8, remote(p.a, 0),
	     p.b->node->rkey ^ 1, 0);
	settle(&p);
	expect(p.a->send, IBV_WC_REM_ACCESS_ERR);
	sim_free(p.sim);
}

/* Packets from elsewhere, or with a wrong P_Key or version, do nothing. */
static void strangers_are_ignored(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	struct roce_hdr h = {
		.opcode = ROCE_WRITE_ONLY, .pkey = 0xffff, .ack_req = true,
		.dest_qpn = roce_qp_num(p.b->qp),
		.psn = sim_conn_default.psn_a,
		.va = remote(p.a, 0), .rkey = p.b->node->rkey, .dma_len = 4,
	};
	struct roce_rx rx = { .h = h, .payload = (const uint8_t *)"ABCD",
			      .len = 4, .sgid = p.a->node->gid,
			      .dgid = p.b->node->gid };

	(void)state;
	rx.sgid.raw[15] = 77;
	roce_rx(p.b->qp, &rx, p.sim->now);
	rx.sgid = p.a->node->gid;
	rx.h.pkey = 0x8001;
	roce_rx(p.b->qp, &rx, p.sim->now);
	rx.h.pkey = 0xffff;
	rx.h.tver = 1;
	roce_rx(p.b->qp, &rx, p.sim->now);
	rx.h.tver = 0;
	rx.h.opcode = ROCE_UC | ROCE_WRITE_ONLY;
	roce_rx(p.b->qp, &rx, p.sim->now);
	assert_int_equal(p.b->node->mem[0], 0);
	rx.h.opcode = ROCE_WRITE_ONLY;
	roce_rx(p.b->qp, &rx, p.sim->now);
	assert_int_equal(p.b->node->mem[0], 'A');
	sim_free(p.sim);
}

/* ---- what hardware expects --------------------------------------------- */

/* What was seen on the link, packet by packet. */
struct seen {
	size_t n;
	struct {
		struct roce_hdr h;
		size_t len;
		int from;
	} pkt[4096];
	/* The request with gap[i] is lost when it is sent for time i + 1. */
	uint32_t gap[4];
	unsigned tries[4];
	size_t gaps;
};

static void tap_seen(struct sim *s, const struct roce_hdr *h, size_t payload,
		     int from)
{
	struct seen *w = s->user;

	assert_true(w->n < 4096);
	w->pkt[w->n].h = *h;
	w->pkt[w->n].len = payload;
	w->pkt[w->n++].from = from;
}

static bool drop_gaps(struct sim *s, const struct roce_hdr *h, int from)
{
	struct seen *w = s->user;

	for (size_t i = 0; i < w->gaps && from == 0; i++)
		if (h->psn == w->gap[i] && w->tries[i]++ == i)
			return true;
	return false;
}

static struct seen *watch(struct pair *p)
{
	static struct seen w;

	memset(&w, 0, sizeof(w));
	p->sim->user = &w;
	p->sim->link.tap = tap_seen;
	p->sim->link.drop = drop_gaps;
	return &w;
}

static bool is_nak_psn(const struct roce_hdr *h)
{
	return h->opcode == ROCE_ACK &&
	       h->syndrome == (ROCE_AETH_NAK | ROCE_NAK_PSN);
}

typedef void packet_check(const struct roce_hdr *h, size_t payload);

/* Requests and answers of every kind and length, of every service, but CNPs. */
static void every_packet(packet_check *check)
{
	static const enum ibv_qp_type types[] = { IBV_QPT_RC, IBV_QPT_UC,
						  IBV_QPT_UD };

	for (size_t t = 0; t < 3; t++) {
		struct pair p = pair_new(types[t]);
		struct seen *w = watch(&p);
		uint32_t kinds = 0;

		for (uint32_t len = 0; len < 9; len++) {
			recv_into(p.b, 0, 4096);
			post(p.a, IBV_WR_SEND, 0, len * 127, 0, 0x11, 0);
			if (types[t] == IBV_QPT_UD)
				continue;
			post_to(p.a, IBV_WR_RDMA_WRITE, 8192, len * 1023);
			if (types[t] == IBV_QPT_RC)
				post_to(p.a, IBV_WR_RDMA_READ, 8192,
					len * 1023);
			settle(&p);
		}
		if (types[t] == IBV_QPT_RC) {
			post_to(p.a, IBV_WR_ATOMIC_FETCH_AND_ADD, 64, 8);
			post_to(p.a, IBV_WR_SEND, 0, 8); /* RNR */
			sim_run(p.sim, SIM_SEC / 100);
			recv_into(p.b, 0, 4096);
			post(p.a, IBV_WR_RDMA_READ, 0, 8, 0, 1, 0); /* NAK */
		}
		settle(&p);
		for (size_t i = 0; i < w->n; i++) {
			kinds |= 1u << (w->pkt[i].h.opcode & 0x1f);
			check(&w->pkt[i].h, w->pkt[i].len);
		}
		assert_int_equal(__builtin_popcount(kinds),
				 types[t] == IBV_QPT_RC ? 13 :
				 types[t] == IBV_QPT_UC ? 5 : 1);
		sim_free(p.sim);
	}
}

static void check_pkey(const struct roce_hdr *h, size_t payload)
{
	(void)payload;
	assert_int_equal(h->pkey, 0xffff);
}

/* 10.9, A17: the only P_Key there is, with full membership. */
static void pkey_is_the_default_one(void **state)
{
	(void)state;
	every_packet(check_pkey);
}

static void check_mig_req(const struct roce_hdr *h, size_t payload)
{
	(void)payload;
	assert_true(h->mig_req);
}

/* 17.2.8: without an alternate path a QP is in state Migrated, and says so. */
static void mig_req_is_one(void **state)
{
	(void)state;
	every_packet(check_mig_req);
}

static void check_tver(const struct roce_hdr *h, size_t payload)
{
	(void)payload;
	assert_int_equal(h->tver, 0);
}

/* 9.2.4: version 0 is sent; that others are dropped: strangers_are_ignored. */
static void transport_version_is_zero(void **state)
{
	(void)state;
	every_packet(check_tver);
}

static void check_congestion(const struct roce_hdr *h, size_t payload)
{
	(void)payload;
	assert_false(h->fecn);
	assert_false(h->becn);
}

/* A17.9.3: congestion is marked in IP, and told by a CNP: no other has BECN. */
static void no_congestion_bits(void **state)
{
	(void)state;
	every_packet(check_congestion);
}

static void check_pad(const struct roce_hdr *h, size_t payload)
{
	uint32_t f = roce_opcode(h->opcode)->flags;

	assert_in_range(h->pad, 0, 3);
	assert_int_equal((payload + h->pad) % 4, 0);
	/* Only the last packet of a message is not full. */
	if (!(f & ROCE_F_LAST) || !payload)
		assert_int_equal(h->pad, 0);
}

/* 9.2.3: the bytes to the next multiple of four, counted. */
static void pads_fill_the_last_word(void **state)
{
	(void)state;
	every_packet(check_pad);
}

/* 9.2.2, 9.5.8: in the last packet of a message whose program asked for it. */
static void solicited_is_for_the_last(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	struct seen *w = watch(&p);
	unsigned solicited = 0;

	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		recv_into(p.b, 0, 4096);
		post(p.a, IBV_WR_SEND, 0, i & 1 ? 3000 : 100, 0, 0,
		     i & 2 ? IBV_SEND_SOLICITED : 0);
	}
	settle(&p);
	for (size_t i = 0; i < w->n; i++) {
		if (!w->pkt[i].h.solicited)
			continue;
		solicited++;
		assert_true(w->pkt[i].h.opcode == ROCE_SEND_ONLY ||
			    w->pkt[i].h.opcode == ROCE_SEND_LAST);
	}
	assert_int_equal(solicited, 2);
	for (unsigned i = 0; i < 4; i++) {
		assert_non_null(sim_poll(p.b->recv));
		assert_int_equal(p.b->recv->solicited[i], i >= 2);
	}
	sim_free(p.sim);
}

/*
 * 9.7.7.1.1: the last packet of each message asks, reads and atomics do, and
 * within a message every sixteenth; UC, where nobody would answer, never.
 */
static void ack_is_asked_for(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	struct seen *w = watch(&p);
	unsigned since = 0;

	(void)state;
	recv_into(p.b, 0, 100);
	post_to(p.a, IBV_WR_SEND, 0, 100);
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, 100000);
	post_to(p.a, IBV_WR_RDMA_READ, 0, 5000);
	post_to(p.a, IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 8);
	settle(&p);
	for (size_t i = 0; i < w->n; i++) {
		const struct roce_hdr *h = &w->pkt[i].h;
		uint32_t f = roce_opcode(h->opcode)->flags;

		if (!(f & ROCE_F_REQUEST)) {
			assert_false(h->ack_req);
			continue;
		}
		since = h->ack_req ? 0 : since + 1;
		assert_true(since < 16);
		if (f & (ROCE_F_LAST | ROCE_F_READ | ROCE_F_ATOMIC))
			assert_true(h->ack_req);
	}
	sim_free(p.sim);

	p = pair_new(IBV_QPT_UC);
	w = watch(&p);
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, 100000);
	settle(&p);
	assert_int_equal(w->n, 98);
	for (size_t i = 0; i < w->n; i++)
		assert_false(w->pkt[i].h.ack_req);
	sim_free(p.sim);
}

/* 9.7.7.2: code 31 says that the responder does not count credits. */
static void credits_say_that_there_are_none(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	struct seen *w = watch(&p);
	unsigned answers = 0;

	(void)state;
	recv_into(p.b, 0, 100);
	post_to(p.a, IBV_WR_SEND, 0, 100);
	post_to(p.a, IBV_WR_RDMA_READ, 0, 5000);
	post_to(p.a, IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 8);
	settle(&p);
	for (size_t i = 0; i < w->n; i++)
		if (roce_opcode(w->pkt[i].h.opcode)->flags & ROCE_F_AETH) {
			answers++;
			assert_int_equal(w->pkt[i].h.syndrome, 0x1f);
		}
	assert_int_equal(answers, 4); /* first and last of the read */
	sim_free(p.sim);
}

/*
 * 9.7.7.1: the number of messages done, of whatever kind; a packet in the
 * middle of one does not count, nor does a repetition.
 */
static void msn_counts_messages(void **state)
{
	static const enum ibv_wr_opcode ops[] = {
		IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,
		IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_RDMA_WRITE,
	};
	struct pair p = pair_new(IBV_QPT_RC);
	struct seen *w = watch(&p);

	(void)state;
	recv_into(p.b, 0, 3000);
	for (uint32_t i = 0; i < 5; i++) {
		w->n = 0;
		w->gap[0] = psn_add(sim_conn_default.psn_a, i * 3);
		w->gaps = i == 1; /* the write's first packet comes twice */
		post_to(p.a, ops[i], 4096,
			ops[i] == IBV_WR_ATOMIC_FETCH_AND_ADD ? 8 : 3000);
		settle(&p);
		expect(p.a->send, IBV_WC_SUCCESS);
		assert_true(w->n > 0);
		for (size_t k = 0; k < w->n; k++) {
			const struct roce_hdr *h = &w->pkt[k].h;

			if (!(roce_opcode(h->opcode)->flags & ROCE_F_AETH))
				continue;
			assert_int_equal(h->msn,
					 is_nak_psn(h) ? i : i + 1);
		}
	}
	sim_free(p.sim);
}

/* A packet without payload, as a could have sent it. */
static void b_gets(struct pair *p, struct roce_hdr h)
{
	struct roce_rx rx = { .h = h, .sgid = p->a->node->gid,
			      .dgid = p->b->node->gid };

	rx.h.pkey = 0xffff;
	rx.h.dest_qpn = roce_qp_num(p->b->qp);
	roce_rx(p->b->qp, &rx, p->sim->now);
}

/* A requester that has not negotiated so many: invalid request (9.7.4.1.7). */
static void too_many_reads_are_refused(void **state)
{
	struct sim_conn_opts co = sim_conn_default;
	struct pair p;
	struct roce_hdr h = { .opcode = ROCE_READ_REQUEST, .dma_len = 4096 };
	struct seen *w;

	(void)state;
	co.dest_rd_atomic = 2;
	p = pair_opts(IBV_QPT_RC, &co);
	h.va = (uintptr_t)p.b->node->mem;
	h.rkey = p.b->node->rkey;
	w = watch(&p);
	for (uint32_t i = 0; i < 3; i++) {
		h.psn = psn_add(co.psn_a, 4 * i);
		b_gets(&p, h);
	}
	sim_pull(p.b);
	/* Two reads are answered, the third is refused, behind them. */
	assert_int_equal(w->n, 2 * 4 + 1);
	assert_int_equal(w->pkt[8].h.opcode, ROCE_ACK);
	assert_int_equal(w->pkt[8].h.syndrome, 0x61);
	assert_int_equal(w->pkt[8].h.psn, h.psn);
	assert_int_equal(w->pkt[8].h.msn, 2);
	assert_int_equal(roce_qp_state(p.b->qp), IBV_QPS_ERR);
	assert_int_equal(p.b->events, 1 << IBV_EVENT_QP_REQ_ERR);
	assert_int_equal(roce_qp_stats(p.b->qp)->nak_tx, 1);
	sim_free(p.sim);
}

static bool drop_all(struct sim *s, const struct roce_hdr *h, int from)
{
	(void)s;
	(void)h;
	(void)from;
	return true;
}

/*
 * The refused request does not take along those before it (9.5): a read
 * that was accepted is answered, and then comes the NAK. Both requests are with
 * the responder before it sends anything.
 */
static void read_then_refused(bool gone)
{
	struct pair p = pair_new(IBV_QPT_RC);
	uint32_t psn = sim_conn_default.psn_a;
	struct roce_rx rx = { .sgid = p.a->node->gid, .dgid = p.b->node->gid };
	static uint8_t data[64];

	for (uint32_t i = 0; i < 9000; i++)
		p.b->node->mem[i] = (uint8_t)(i * 7 + 1);
	memset(p.a->node->mem, 0, 9000);
	p.sim->link.drop = drop_all;
	assert_int_equal(post_to(p.a, IBV_WR_RDMA_READ, 0, 9000), 0);
	assert_int_equal(post(p.a, IBV_WR_RDMA_WRITE, 9000, 64,
			      remote(p.a, 9000), p.b->node->rkey ^ 0x5500, 0),
			 0);
	sim_run(p.sim, 1000000);
	p.sim->link.drop = NULL;
	rx.h = (struct roce_hdr){
		.opcode = ROCE_READ_REQUEST, .pkey = 0xffff,
		.dest_qpn = roce_qp_num(p.b->qp), .psn = psn,
		.va = remote(p.a, 0), .rkey = p.b->node->rkey, .dma_len = 9000,
	};
	roce_rx(p.b->qp, &rx, p.sim->now);
	rx.h.opcode = ROCE_WRITE_ONLY;
	rx.h.psn = psn_add(psn, 9);
	rx.h.va = remote(p.a, 9000);
	rx.h.rkey ^= 0x5500;
	rx.h.dma_len = 64;
	rx.h.ack_req = true;
	rx.payload = data;
	rx.len = sizeof(data);
	roce_rx(p.b->qp, &rx, p.sim->now);
	assert_int_equal(roce_qp_state(p.b->qp), IBV_QPS_ERR);
	if (gone)
		keys_kill(&p.b->node->keys,
			  (uint32_t)p.b->node->slot);
	sim_pull(p.b);
	assert_false(roce_tx_ready(p.b->qp));
	settle(&p);
	assert_int_equal(p.b->events, 1 << IBV_EVENT_QP_ACCESS_ERR);
	if (gone) {
		/* the NAK is for the read, then */
		expect(p.a->send, IBV_WC_REM_ACCESS_ERR);
		expect(p.a->send, IBV_WC_WR_FLUSH_ERR);
	} else {
		expect(p.a->send, IBV_WC_SUCCESS);
		assert_memory_equal(p.a->node->mem, p.b->node->mem, 9000);
		expect(p.a->send, IBV_WC_REM_ACCESS_ERR);
	}
	sim_free(p.sim);
}

static void accepted_reads_are_answered_before_a_nak(void **state)
{
	(void)state;
	read_then_refused(false);
	read_then_refused(true);
}

/*
 * 9.4.5, A19: the address of an atomic, or of an atomic write, is a multiple of
 * 8. Others: NAK invalid request (9.7.5.2.6), nothing is executed, the QP is in
 * ERR and says why (9.9.3).
 */
static void misaligned_atomics_are_refused(void **state)
{
	static const uint8_t ops[] = { ROCE_FETCH_ADD, ROCE_CMP_SWAP,
				       ROCE_ATOMIC_WRITE };

	(void)state;
	for (size_t i = 0; i < 3 * 7; i++) {
		struct pair p = pair_new(IBV_QPT_RC);
		struct seen *w = watch(&p);
		struct roce_hdr h = {
			.opcode = ops[i / 7], .pkey = 0xffff, .ack_req = true,
			.dest_qpn = roce_qp_num(p.b->qp),
			.psn = sim_conn_default.psn_a,
			.va = remote(p.a, 64) | (i % 7 + 1),
			.rkey = p.b->node->rkey, .swap_add = 5,
			.dma_len = ops[i / 7] == ROCE_ATOMIC_WRITE ? 8 : 0,
		};
		uint8_t buf[ROCE_HDR_MAX + 8], before[128];
		size_t len = roce_encode(&h, buf);

		if (h.dma_len)
			len += 8; /* its payload: whatever is there */
		memset(p.b->node->mem, 0, 128); /* a compare with 0 would swap */
		memcpy(before, p.b->node->mem, sizeof(before));
		memset(buf + roce_encode(&h, buf), 0xa5, 8);
		sim_inject(p.sim, 1, buf, len);
		settle(&p);
		assert_int_equal(w->n, 1);
		assert_int_equal(w->pkt[0].h.opcode, ROCE_ACK);
		assert_int_equal(w->pkt[0].h.syndrome, 0x61);
		assert_int_equal(w->pkt[0].h.psn, h.psn);
		assert_int_equal(w->pkt[0].h.msn, 0);
		assert_memory_equal(p.b->node->mem, before, sizeof(before));
		assert_int_equal(roce_qp_state(p.b->qp), IBV_QPS_ERR);
		assert_int_equal(p.b->events, 1 << IBV_EVENT_QP_REQ_ERR);
		sim_free(p.sim);
	}
}

/*
 * A17.4.5.2: the UDP source port is the same for all packets of a flow, and
 * different for different flows; the flow label says which, where it is given.
 * There and back they leave by one socket; see udp.h.
 */
static void flow_label_picks_the_port(void **state)
{
	struct sim_qp_opts qo = {
		.type = IBV_QPT_UC, .cap = { 8, 8, 1, 1, 0 }
	};
	struct sim *sim = sim_new(1);
	static struct roce_batch b;
	uint32_t hash[2] = { 0 };
	unsigned used = 0;

	(void)state;
	for (uint32_t flow = 0; flow < 10; flow++) {
		struct sim_qp *q = sim_qp_new(sim, 0, &qo);
		struct roce_path path = sim_path(&sim->node[0], &sim->node[1]);
		struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT,
					 .port_num = 1,
					 .path_mtu = IBV_MTU_1024 };
		struct ibv_sge sge = { (uintptr_t)sim->node[0].mem, 3000,
				       sim->node[0].lkey };
		struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1,
					  .opcode = IBV_WR_SEND };

		path.flow_label = flow < 2 ? 0 : 0x12340 + flow;
		assert_int_equal(roce_qp_modify(q->qp, &a,
						IBV_QP_STATE |
							IBV_QP_PKEY_INDEX |
							IBV_QP_PORT |
							IBV_QP_ACCESS_FLAGS,
						NULL), 0);
		a.qp_state = IBV_QPS_RTR;
		assert_int_equal(roce_qp_modify(q->qp, &a,
						IBV_QP_STATE | IBV_QP_AV |
							IBV_QP_PATH_MTU |
							IBV_QP_DEST_QPN |
							IBV_QP_RQ_PSN,
						&path), 0);
		a.qp_state = IBV_QPS_RTS;
		assert_int_equal(roce_qp_modify(q->qp, &a,
						IBV_QP_STATE | IBV_QP_SQ_PSN,
						NULL), 0);
		assert_int_equal(roce_post_send(q->qp, &wr, NULL), 0);
		roce_tx(q->qp, &b, sim->now);
		assert_int_equal(b.n, 3);
		assert_int_equal(b.pkt[0].hash, b.pkt[1].hash);
		assert_int_equal(b.pkt[0].hash, b.pkt[2].hash);
		if (flow < 2) /* the QP's own (here: 0) */
			hash[flow] = b.pkt[0].hash;
		else
			used |= 1u << b.pkt[0].hash % 4;
		roce_tx_done(q->qp, &b, 3, sim->now);
	}
	assert_int_equal(hash[0], hash[1]);
	/* Eight labels next to each other use more than two of four ports. */
	assert_true(__builtin_popcount(used) > 2);
	sim_free(sim);
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
			.sgid = p.a->node->gid, .dgid = p.b->node->gid,
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
		.h = { .opcode = ROCE_CNP, .pkey = 0xffff, .becn = true,
		       .dest_qpn = roce_qp_num(p.a->qp) },
		.sgid = p.b->node->gid, .dgid = p.a->node->gid,
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

/* Why packets do nothing is counted by reason. */
static uint64_t drops[ROCE_DROPS];

static void count_drops(struct roce_qp *qp, enum roce_drop why)
{
	(void)qp;
	assert_in_range(why, 0, ROCE_DROPS - 1);
	drops[why]++;
}

static void drops_are_counted(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	struct roce_hdr h = {
		.opcode = ROCE_WRITE_ONLY, .pkey = 0xffff,
		.dest_qpn = roce_qp_num(p.b->qp),
		.psn = sim_conn_default.psn_a,
	};
	struct roce_rx good = { .h = h, .sgid = p.a->node->gid,
				.dgid = p.b->node->gid }, rx = good;

	(void)state;
	memset(drops, 0, sizeof(drops));
	p.b->node->env.dropped = count_drops;
	rx.dgid.raw[15] ^= 4;
	roce_rx(p.b->qp, &rx, 0);
	rx = good;
	rx.h.pkey = 0x8001;
	roce_rx(p.b->qp, &rx, 0);
	rx = good;
	rx.h.opcode |= ROCE_UC;
	roce_rx(p.b->qp, &rx, 0);
	rx.h.opcode = 0x1f; /* nobody's */
	roce_rx(p.b->qp, &rx, 0);
	rx = good;
	rx.h.psn = psn_add(rx.h.psn, 5);
	roce_rx(p.b->qp, &rx, 0);
	roce_rx(p.b->qp, &rx, 0);
	roce_rx(p.b->qp, &good, 0); /* this one is taken */
	roce_rx(p.b->qp, &good, 0);
	rx.h.psn = psn_add(good.h.psn, 1);
	rx.h.opcode = ROCE_SEND_ONLY;
	roce_rx(p.b->qp, &rx, 0);
	rx.h.opcode = ROCE_SEND_MIDDLE;
	roce_rx(p.b->qp, &rx, 0);
	assert_int_equal(roce_qp_state(p.b->qp), IBV_QPS_ERR);
	roce_rx(p.b->qp, &good, 0);
	assert_int_equal(drops[ROCE_DROP_ADDRESS], 1);
	assert_int_equal(drops[ROCE_DROP_HEADER], 1);
	assert_int_equal(drops[ROCE_DROP_OPCODE], 2);
	assert_int_equal(drops[ROCE_DROP_GAP], 2);
	assert_int_equal(drops[ROCE_DROP_DUPLICATE], 1);
	assert_int_equal(drops[ROCE_DROP_NO_RECV], 1);
	assert_int_equal(drops[ROCE_DROP_REFUSED], 1);
	assert_int_equal(drops[ROCE_DROP_STATE], 1);
	assert_int_equal(roce_qp_stats(p.b->qp)->dropped, 10);
	sim_free(p.sim);
}

/* ---- quirks of peers --------------------------------------------------- */

/*
 * rxe as requester heeds one NAK of a gap, and the next only when an ACK has
 * come in between: one goes before a NAK that would be the second in a row.
 * The ACK is never behind the NAK, which would be older than it then.
 */
static void quirk_rxe_wants_acks_between_naks(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	struct seen *w = watch(&p);
	const struct roce_hdr *last = NULL;
	unsigned naks = 0;

	(void)state;
	/* All in the first sixteen packets, where no ACK is asked for. */
	w->gaps = 3;
	for (uint32_t i = 0; i < 3; i++)
		w->gap[i] = psn_add(sim_conn_default.psn_a, 3 + 4 * i);
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, 15 * 1024);
	settle(&p);
	expect(p.a->send, IBV_WC_SUCCESS);
	for (size_t i = 0; i < w->n; i++) {
		const struct roce_hdr *h = &w->pkt[i].h;

		if (w->pkt[i].from != 1)
			continue;
		naks += is_nak_psn(h);
		if (last && is_nak_psn(h)) {
			assert_false(is_nak_psn(last));
			assert_int_equal(last->syndrome & ROCE_AETH_KIND,
					 ROCE_AETH_ACK);
			assert_int_equal(h->psn, psn_add(last->psn, 1));
		}
		last = h;
	}
	assert_int_equal(naks, 3);
	sim_free(p.sim);
}

static void answer(struct pair *p, uint32_t psn, uint8_t syndrome, uint32_t msn)
{
	struct roce_rx rx = {
		.h = { .opcode = ROCE_ACK, .pkey = 0xffff, .psn = psn,
		       .dest_qpn = roce_qp_num(p->a->qp),
		       .syndrome = syndrome, .msn = msn },
		.sgid = p->b->node->gid, .dgid = p->a->node->gid,
	};

	roce_rx(p->a->qp, &rx, p->sim->now);
	sim_pull(p->a);
}

/*
 * rxe that is not ready to receive the first packet of a burst says so, and
 * then NAKs the second as one out of sequence. The wait goes on all the same.
 */
static void quirk_rxe_nak_behind_rnr(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	struct seen *w = watch(&p);
	uint32_t psn = sim_conn_default.psn_a;

	(void)state;
	p.sim->link.loss = 1; /* b is played from here */
	post_to(p.a, IBV_WR_SEND, 0, 3000);
	assert_int_equal(w->n, 3);
	answer(&p, psn, ROCE_AETH_RNR | 12, 0); /* 0.64 ms */
	answer(&p, psn, ROCE_AETH_NAK | ROCE_NAK_PSN, 0);
	sim_run(p.sim, 500000);
	assert_int_equal(w->n, 3);
	sim_run(p.sim, 200000);
	assert_int_equal(w->n, 6);
	answer(&p, psn_add(psn, 2), 0x1f, 1);
	expect(p.a->send, IBV_WC_SUCCESS);
	sim_free(p.sim);
}

/*
 * The same with a wait that is longer than the ACK timeout and all retries: it
 * counts as an RNR retry and nothing else.
 */
static void quirk_rxe_nak_behind_long_rnr(void **state)
{
	struct sim_conn_opts co = sim_conn_default;
	uint32_t psn = co.psn_a;
	struct seen *w;
	struct pair p;

	(void)state;
	co.timeout = 12; /* 33.6 ms at most */
	co.retry_cnt = 1;
	p = pair_opts(IBV_QPT_RC, &co);
	w = watch(&p);
	p.sim->link.loss = 1; /* b is played from here */
	post_to(p.a, IBV_WR_SEND, 0, 3000);
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(w->n, 3 + 3 * i);
		answer(&p, psn, ROCE_AETH_RNR | 31, 0); /* 491.52 ms */
		answer(&p, psn, ROCE_AETH_NAK | ROCE_NAK_PSN, 0);
		sim_run(p.sim, 491 * 1000000);
		assert_null(sim_poll(p.a->send));
		assert_int_equal(w->n, 3 + 3 * i);
		sim_run(p.sim, 1000000);
	}
	answer(&p, psn_add(psn, 2), 0x1f, 1);
	expect(p.a->send, IBV_WC_SUCCESS);
	sim_free(p.sim);
}

/* rxe acknowledges each duplicate it gets by itself, with the latest PSN. */
static void quirk_rxe_acks_each_duplicate(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	uint32_t psn = sim_conn_default.psn_a;

	(void)state;
	p.sim->link.loss = 1;
	for (uint32_t i = 0; i < 20; i++) {
		post_to(p.a, IBV_WR_SEND, 0, 100);
		for (uint32_t k = 0; k < 5; k++)
			answer(&p, psn_add(psn, i), 0x1f, i + 1);
		expect(p.a->send, IBV_WC_SUCCESS);
		assert_null(sim_poll(p.a->send));
	}
	assert_int_equal(roce_qp_stats(p.a->qp)->retransmits, 0);
	assert_int_equal(roce_qp_state(p.a->qp), IBV_QPS_RTS);
	sim_free(p.sim);
}

/*
 * rxe sends MigReq 0, and leaves in the compare field of a FetchAdd what was in
 * the buffer before.
 */
static void quirk_rxe_fields(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	struct roce_hdr h = {
		.opcode = ROCE_FETCH_ADD, .psn = sim_conn_default.psn_a,
		.mig_req = false, .va = (uintptr_t)p.b->node->mem,
		.rkey = p.b->node->rkey, .swap_add = 5,
		.compare = 0x5a5a5a5a5a5a5a5a,
	};

	(void)state;
	b_gets(&p, h);
	assert_int_equal(*(uint64_t *)p.b->node->mem, 5);
	h.mig_req = true;
	h.psn = psn_add(h.psn, 1);
	b_gets(&p, h);
	assert_int_equal(*(uint64_t *)p.b->node->mem, 10);
	sim_free(p.sim);
}

/*
 * rxe gives up its QP when an ACK with the PSN of a read or atomic overtakes
 * the response: ours name a PSN before it, though the read was accepted.
 */
static void quirk_rxe_no_ack_of_reads(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	struct seen *w = watch(&p);
	uint32_t read = psn_add(sim_conn_default.psn_a, 1);

	(void)state;
	recv_into(p.b, 0, 100);
	post_to(p.a, IBV_WR_SEND, 0, 100);
	settle(&p);
	post_to(p.a, IBV_WR_RDMA_READ, 4096, 3000);
	settle(&p);
	w->n = 0;
	/* A duplicate of the send makes b acknowledge again. */
	b_gets(&p, (struct roce_hdr){ .opcode = ROCE_SEND_ONLY,
				      .ack_req = true,
				      .psn = sim_conn_default.psn_a });
	sim_pull(p.b);
	assert_int_equal(w->n, 1);
	assert_int_equal(w->pkt[0].h.opcode, ROCE_ACK);
	assert_true(psn_diff(w->pkt[0].h.psn, read) < 0);
	sim_free(p.sim);
}

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
		assert_true(roce_tx_patient(p.a->qp));
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
		assert_false(roce_tx_patient(p.a->qp));
	}
	settle(&p);
	sim_free(p.sim);
}

/*
 * rxe's requester starts its retransmission timer anew with whatever answer
 * comes in. What nobody can have sent, or sent again, is not answered, or a
 * stream of forged packets would put its retries off for as long as it lasts.
 */
static void quirk_rxe_timer_is_put_off(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	struct seen *w = watch(&p);
	uint32_t psn = sim_conn_default.psn_a;
	struct roce_rx rx = {
		.h = { .opcode = ROCE_WRITE_ONLY, .pkey = 0xffff,
		       .ack_req = true, .dest_qpn = roce_qp_num(p.b->qp),
		       .va = (uintptr_t)p.b->node->mem,
		       .rkey = p.b->node->rkey },
		.sgid = p.a->node->gid, .dgid = p.b->node->gid,
	};
	static const struct {
		int32_t behind; /* the first PSN */
		uint8_t opcode;
		uint32_t length;
		size_t answers;
	} step[] = {
		{ 0, ROCE_WRITE_ONLY, 0, 1 }, /* just done */
		{ 1000, ROCE_WRITE_ONLY, 0, 1 },
		{ -65536, ROCE_WRITE_ONLY, 0, 0 },
		{ -1000000, ROCE_SEND_ONLY, 0, 0 },
		{ -999999, ROCE_SEND_ONLY, 0, 1 }, /* goes on */
		{ -999997, ROCE_SEND_ONLY, 0, 0 },
		{ -5000000, ROCE_WRITE_ONLY, 0, 0 },
		/* Only what has been read: three packets from PSN 1 on. */
		{ -100000, ROCE_READ_REQUEST, 3000, 0 },
		{ -1, ROCE_READ_REQUEST, 3000, 0 },
		{ 1, ROCE_READ_REQUEST, 3000, 3 },
		{ 2, ROCE_READ_REQUEST, 1900, 2 },
		{ 3, ROCE_READ_REQUEST, 1900, 0 },
		{ 4, ROCE_READ_REQUEST, 100, 0 },
		{ -100000, ROCE_FETCH_ADD, 0, 0 },
		/* Ahead: no NAK, which there is only one of, but for a row. */
		{ 1000000, ROCE_WRITE_ONLY, 0, 0 },
		{ 1000002, ROCE_WRITE_ONLY, 0, 0 },
		{ 1000003, ROCE_WRITE_ONLY, 0, 1 },
		{ 1010, ROCE_WRITE_ONLY, 0, 0 }, /* the same gap */
	};

	(void)state;
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, 8);
	post_to(p.a, IBV_WR_RDMA_READ, 0, 3000);
	settle(&p);
	for (int i = 0; i < 40; i++) {
		post_to(p.a, IBV_WR_RDMA_WRITE, 0, 25 * 1024);
		settle(&p);
	}
	for (size_t i = 0; i < ARRAY_SIZE(step); i++) {
		w->n = 0;
		rx.h.opcode = step[i].opcode;
		rx.h.psn = psn_add(psn, (uint32_t)step[i].behind & PSN_MASK);
		rx.h.dma_len = step[i].length;
		roce_rx(p.b->qp, &rx, p.sim->now);
		sim_pull(p.b);
		if (w->n != step[i].answers)
			fail_msg("step %zu: %zu answers", i, w->n);
	}
	assert_int_equal(roce_qp_state(p.b->qp), IBV_QPS_RTS);
	sim_free(p.sim);
}

/* A request as the peer could have sent it, but for its PSN: far from here. */
static void forge(struct pair *p, struct sim_rng *rng)
{
	static const uint8_t ops[] = {
		ROCE_SEND_FIRST, ROCE_SEND_ONLY, ROCE_WRITE_FIRST,
		ROCE_WRITE_LAST, ROCE_WRITE_ONLY, ROCE_READ_REQUEST,
		ROCE_CMP_SWAP,	 ROCE_FETCH_ADD,
	};
	uint8_t data[1024] = { 0 };
	struct roce_rx rx = {
		.h = { .opcode = ops[sim_below(rng, ARRAY_SIZE(ops))],
		       .pkey = 0xffff, .ack_req = sim_below(rng, 2),
		       .psn = psn_add(sim_conn_default.psn_a,
				      (1 << 17) + sim_below(rng, 0xfc0000)),
		       .dest_qpn = roce_qp_num(p->b->qp),
		       .va = remote(p->a, 1 << 20), .rkey = p->b->node->rkey,
		       .dma_len = sim_below(rng, 4096), .swap_add = 1 },
		.payload = data, .len = sim_below(rng, sizeof(data) + 1),
		.sgid = p->a->node->gid, .dgid = p->b->node->gid,
	};

	roce_rx(p->b->qp, &rx, p->sim->now);
	sim_pull(p->b);
}

/*
 * Traffic with and without such packets, from the same seed: what the responder
 * sends is the same, packet by packet, also when some of it gets lost.
 */
static void far_packets_change_nothing(void **state)
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

/* rxe answers a send that is too long with NAK 0x63 where 0x61 is due. */
static void quirk_rxe_long_send(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	struct roce_hdr h = {
		.opcode = ROCE_ACK, .pkey = 0xffff,
		.dest_qpn = roce_qp_num(p.a->qp),
		.psn = sim_conn_default.psn_a, .syndrome = 0x63,
	};
	uint8_t buf[ROCE_HDR_MAX];

	(void)state;
	p.sim->link.loss = 1;
	post_to(p.a, IBV_WR_SEND, 0, 100);
	p.sim->link.loss = 0;
	sim_inject(p.sim, 0, buf, roce_encode(&h, buf));
	sim_run(p.sim, 1000000);
	expect(p.a->send, IBV_WC_REM_OP_ERR);
	sim_free(p.sim);
}

/*
 * rxe acknowledges a send whose invalidation it refuses, without counting it in
 * the MSN, and fails its receive afterwards: for its requester it is done, and
 * what follows finds nobody.
 */
static void quirk_rxe_acks_bad_invalidate(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	struct ibv_sge sge = { (uintptr_t)p.a->node->mem, 100,
			       p.a->node->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_INV,
		.invalidate_rkey = 0xbadbad,
	};
	struct seen *w = watch(&p);
	uint32_t psn = sim_conn_default.psn_a;

	(void)state;
	p.sim->link.loss = 1; /* b is played from here */
	assert_int_equal(sim_post_send(p.a, &wr), 0);
	assert_int_equal(w->n, 1);
	assert_int_equal(w->pkt[0].h.opcode, ROCE_SEND_ONLY_INV);
	assert_int_equal(w->pkt[0].h.inv_rkey, 0xbadbad);
	answer(&p, psn, 0x1f, 0);
	expect(p.a->send, IBV_WC_SUCCESS);
	assert_int_equal(roce_qp_state(p.a->qp), IBV_QPS_RTS);
	post_to(p.a, IBV_WR_SEND, 0, 100);
	settle(&p);
	expect(p.a->send, IBV_WC_RETRY_EXC_ERR);
	sim_free(p.sim);

	/* What a receiver does to whom it is sent: refuse it (9.9.6.3). */
	p = pair_new(IBV_QPT_RC);
	sge.addr = (uintptr_t)p.a->node->mem;
	sge.lkey = p.a->node->lkey;
	recv_into(p.b, 0, 100);
	assert_int_equal(sim_post_send(p.a, &wr), 0);
	settle(&p);
	expect(p.a->send, IBV_WC_REM_ACCESS_ERR);
	sim_free(p.sim);
}

/*
 * A UC send that is longer than the receive ends rxe's receive with an error,
 * and its QP. Ours drops the message (9.8.2.2), whichever of its packets is too
 * much, and keeps the receive for the next; as a sender it hears of nothing.
 */
static void quirk_rxe_uc_long_send(void **state)
{
	static const uint32_t room[] = { 0, 1, 1023, 1024, 2999 };

	(void)state;
	for (size_t i = 0; i < 5; i++) {
		struct pair p = pair_new(IBV_QPT_UC);
		const struct ibv_wc *wc;

		recv_into(p.b, 4096, room[i]);
		post_to(p.a, IBV_WR_SEND, 0, 3000);
		settle(&p);
		expect(p.a->send, IBV_WC_SUCCESS);
		assert_null(sim_poll(p.b->recv));
		assert_int_equal(roce_qp_state(p.b->qp), IBV_QPS_RTS);
		assert_int_equal(p.b->events, 0);
		memset(p.a->node->mem, 7, 1024);
		post_to(p.a, IBV_WR_SEND, 0, room[i]);
		settle(&p);
		expect(p.a->send, IBV_WC_SUCCESS);
		wc = sim_poll(p.b->recv);
		assert_true(wc && wc->status == IBV_WC_SUCCESS &&
			    wc->wr_id == 4096 && wc->byte_len == room[i]);
		assert_memory_equal(p.b->node->mem + 4096, p.a->node->mem,
				    room[i]);
		assert_null(sim_poll(p.b->recv));
		sim_free(p.sim);
	}
}

/* rxe's receive completions of RC have the GRH flag; only UD's ought to. */
static void quirk_rxe_grh_flag(void **state)
{
	static const enum ibv_qp_type types[] = { IBV_QPT_RC, IBV_QPT_UC,
						  IBV_QPT_UD };

	(void)state;
	for (size_t i = 0; i < 3; i++) {
		struct pair p = pair_new(types[i]);
		const struct ibv_wc *wc;

		recv_into(p.b, 0, 200);
		post(p.a, IBV_WR_SEND, 0, 100, 0, 0x11, 0);
		settle(&p);
		wc = sim_poll(p.b->recv);
		assert_true(wc && wc->status == IBV_WC_SUCCESS);
		assert_int_equal(wc->wc_flags & IBV_WC_GRH,
				 types[i] == IBV_QPT_UD ? IBV_WC_GRH : 0);
		sim_free(p.sim);
	}
}

/* ---- what may be asked for again --------------------------------------- */

static void resize(struct sim_qp *q, uint8_t max_dest_rd_atomic)
{
	struct ibv_qp_attr a = { .max_dest_rd_atomic = max_dest_rd_atomic };

	assert_int_equal(set_state(q, IBV_QPS_SQD), 0);
	assert_int_equal(roce_qp_modify(q->qp, &a, IBV_QP_MAX_DEST_RD_ATOMIC,
					NULL), 0);
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
			assert_int_equal(w->pkt[i].h.psn,
					 psn_add(co.psn_a, i));
		sim_free(p.sim);
	}
}

/* Takes b so many packets on: reads whose responses nobody waits for. */
static void b_goes_on(struct pair *p, uint32_t psn, uint32_t npkts)
{
	struct roce_responder *r = &p->b->qp->rsp;

	/* As long as a region that only has to be there. */
	static struct key_entry e = { .access = IBV_ACCESS_REMOTE_READ,
				      .pd = 1, .kind = KEY_MR,
				      .iova = 1 << 20, .length = 1ull << 31 };
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
	struct roce_hdr add = { .opcode = ROCE_FETCH_ADD, .ack_req = true,
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

/* ---- congestion, clocks ------------------------------------------------- */

static void cnp_to_a(struct pair *p)
{
	struct roce_rx rx = {
		.h = { .opcode = ROCE_CNP, .pkey = 0xffff, .becn = true,
		       .dest_qpn = roce_qp_num(p->a->qp) },
		.sgid = p->b->node->gid, .dgid = p->a->node->gid,
	};

	roce_rx(p->a->qp, &rx, p->sim->now);
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

/* ---- UC: out of sequence ------------------------------------------------- */

static void uc_gets(struct pair *p, uint8_t opcode, uint32_t psn, uint32_t off,
		    char c, size_t len)
{
	uint8_t data[1024];
	struct roce_rx rx = {
		.h = { .opcode = ROCE_UC | opcode, .pkey = 0xffff, .psn = psn,
		       .dest_qpn = roce_qp_num(p->b->qp),
		       .va = remote(p->a, off), .rkey = p->b->node->rkey,
		       .dma_len = opcode == ROCE_WRITE_ONLY ?
					  (uint32_t)len : 2048 },
		.payload = data, .len = len,
		.sgid = p->a->node->gid, .dgid = p->b->node->gid,
	};

	memset(data, c, len);
	roce_rx(p->b->qp, &rx, p->sim->now);
}

/*
 * 9.8.2.2: a message begins with whatever PSN, also one that is behind the one
 * due; only within a message PSNs are in sequence. A stray packet costs no
 * more than the message that it falls into.
 */
static void uc_begins_anywhere(void **state)
{
	static const int32_t stray[] = { 1500, -1500, 8000000, -8000000, 1 };
	static const uint8_t ops[] = { ROCE_WRITE_ONLY, ROCE_WRITE_MIDDLE,
				       ROCE_WRITE_LAST };
	uint32_t psn = sim_conn_default.psn_a;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(stray) * ARRAY_SIZE(ops); i++) {
		struct pair p = pair_new(IBV_QPT_UC);

		uc_gets(&p, ops[i % 3],
			psn_add(psn, (uint32_t)stray[i / 3] & PSN_MASK), 65536,
			'?', ops[i % 3] == ROCE_WRITE_ONLY ? 8 : 1024);
		memset(p.a->node->mem, 'x', 16000);
		for (uint32_t k = 0; k < 2000; k++) {
			post_to(p.a, IBV_WR_RDMA_WRITE, 8 * k, 8);
			settle(&p);
		}
		assert_memory_equal(p.b->node->mem, p.a->node->mem, 16000);
		sim_free(p.sim);
	}
}

static void uc_out_of_sequence(void **state)
{
	struct pair p = pair_new(IBV_QPT_UC);
	const uint8_t *m = p.b->node->mem;
	uint32_t psn = sim_conn_default.psn_a;

	(void)state;
	/* A message without its first packet, or its second, is not one. */
	uc_gets(&p, ROCE_WRITE_LAST, psn_add(psn, 1), 0, 'a', 1024);
	uc_gets(&p, ROCE_WRITE_LAST, psn_add(psn, 2), 0, 'b', 1024);
	assert_int_equal(m[0], 0);
	uc_gets(&p, ROCE_WRITE_FIRST, psn_add(psn, 10), 0, 'c', 1024);
	uc_gets(&p, ROCE_WRITE_LAST, psn_add(psn, 12), 0, 'd', 1024);
	uc_gets(&p, ROCE_WRITE_LAST, psn_add(psn, 11), 0, 'e', 1024);
	assert_int_equal(m[0], 'c');
	assert_int_equal(m[1024], 0);
	/* It begins again, with the same PSN or another. */
	uc_gets(&p, ROCE_WRITE_FIRST, psn_add(psn, 10), 0, 'f', 1024);
	uc_gets(&p, ROCE_WRITE_FIRST, psn_add(psn, 10), 0, 'g', 1024);
	uc_gets(&p, ROCE_WRITE_LAST, psn_add(psn, 11), 0, 'h', 1024);
	assert_int_equal(m[0], 'g');
	assert_int_equal(m[1024], 'h');
	uc_gets(&p, ROCE_WRITE_ONLY, psn_add(psn, 2), 2048, 'i', 8);
	assert_int_equal(m[2048], 'i');
	assert_int_equal(roce_qp_state(p.b->qp), IBV_QPS_RTS);
	sim_free(p.sim);
}

/* ---- receives ----------------------------------------------------------- */

/* Nothing more fits into b's CQ. */
static int complete_full(struct roce_qp *qp, void *cq, const struct ibv_wc *wc,
			 bool solicited)
{
	(void)qp;
	(void)cq;
	(void)wc;
	(void)solicited;
	return -ENOSPC;
}

/*
 * A message that the receiving program will never hear of is not acknowledged;
 * those before it are. Its QP answers no more (class G, as rxe).
 */
static void full_cq_acknowledges_nothing(void **state)
{
	static const enum ibv_wr_opcode ops[] = { IBV_WR_SEND,
						  IBV_WR_RDMA_WRITE_WITH_IMM };

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(ops); i++) {
		struct pair p = pair_new(IBV_QPT_RC);
		struct seen *w = watch(&p);
		struct roce_hdr h = { .opcode = ROCE_SEND_ONLY, .ack_req = true,
				      .psn = sim_conn_default.psn_a };

		for (uint32_t k = 0; k < 4; k++)
			recv_into(p.b, 0, 100);
		/* Both are here before anything is answered. */
		p.sim->link.drop = drop_all;
		post_to(p.a, IBV_WR_SEND, 0, 0);
		post_to(p.a, ops[i], 0, 0);
		p.sim->link.drop = NULL;
		w->n = 0;
		b_gets(&p, h);
		expect(p.b->recv, IBV_WC_SUCCESS);
		p.b->node->env.complete = complete_full;
		h.opcode = ops[i] == IBV_WR_SEND ? ROCE_SEND_ONLY :
						   ROCE_WRITE_ONLY_IMM;
		h.psn = psn_add(h.psn, 1);
		b_gets(&p, h);
		sim_pull(p.b);
		assert_int_equal(w->n, 1);
		assert_int_equal(w->pkt[0].h.opcode, ROCE_ACK);
		assert_int_equal(w->pkt[0].h.syndrome, 0x1f);
		assert_int_equal(w->pkt[0].h.psn, sim_conn_default.psn_a);
		assert_int_equal(w->pkt[0].h.msn, 1);
		assert_int_equal(roce_qp_state(p.b->qp), IBV_QPS_ERR);
		assert_int_equal(p.b->events, 1 << IBV_EVENT_QP_FATAL);
		settle(&p);
		expect(p.a->send, IBV_WC_SUCCESS);
		expect(p.a->send, IBV_WC_RETRY_EXC_ERR);
		sim_free(p.sim);
	}
}

/* Class D (9.9.3): a datagram that does not fit is not there. */
static void ud_too_long_is_dropped(void **state)
{
	(void)state;
	for (int srq = 0; srq < 2; srq++) {
		struct sim_qp_opts qo = {
			.type = IBV_QPT_UD, .sig_all = true, .srq = srq,
			.cap = { 8, srq ? 0 : 8, 1, srq ? 0 : 1, 0 },
		};
		struct pair p = { .sim = sim_new(1) };
		struct ibv_sge sge;
		struct ibv_recv_wr rr = { .wr_id = 7, .sg_list = &sge,
					  .num_sge = 1 };
		const struct ibv_wc *wc;

		p.a = sim_qp_new(p.sim, 0, &qo);
		p.b = sim_qp_new(p.sim, 1, &qo);
		p.a->peer = p.b;
		sim_ud_up(p.a, 0x11);
		sim_ud_up(p.b, 0x11);
		memset(drops, 0, sizeof(drops));
		p.b->node->env.dropped = count_drops;
		sge = (struct ibv_sge){ (uintptr_t)p.b->node->mem, 100,
					p.b->node->lkey };
		assert_int_equal(srq ? qp_rq_post(&p.b->node->srq, &rr) :
				       sim_post_recv(p.b, &rr), 0);
		for (uint32_t i = 0; i < 3; i++)
			post(p.a, IBV_WR_SEND, 0, 61 + 300 * i, 0, 0x11, 0);
		settle(&p);
		assert_null(sim_poll(p.b->recv));
		assert_int_equal(roce_qp_state(p.b->qp), IBV_QPS_RTS);
		assert_int_equal(p.b->events, 0);
		assert_int_equal(drops[ROCE_DROP_QKEY], 3);
		if (srq)
			assert_int_equal(qp_rq_count(&p.b->node->srq), 1);
		post(p.a, IBV_WR_SEND, 0, 60, 0, 0x11, 0);
		settle(&p);
		wc = sim_poll(p.b->recv);
		assert_true(wc && wc->status == IBV_WC_SUCCESS &&
			    wc->wr_id == 7 && wc->byte_len == 100);
		assert_null(sim_poll(p.b->recv));
		/* Without a receive it is that which is missing. */
		post(p.a, IBV_WR_SEND, 0, 1, 0, 0x11, 0);
		settle(&p);
		assert_int_equal(drops[ROCE_DROP_NO_RECV], 1);
		sim_free(p.sim);
	}
}

/*
 * 11.6.2: a WRITE with immediate data that the responder refuses ends the
 * receive which it would have completed with a local access error.
 */
static void refused_write_ends_its_receive(void **state)
{
	(void)state;
	for (int k = 0; k < 5; k++) {
		const uint32_t len = k < 3 ? 100 : 3000;
		struct pair p = pair_new(IBV_QPT_RC);
		struct script sc = { .opcode = ROCE_WRITE_LAST_IMM,
				     .count = k == 3 };

		script(&p, &sc);
		if (k < 4) {
			recv_into(p.b, 7, 100);
			recv_into(p.b, 8, 100);
		}
		post(p.a, IBV_WR_RDMA_WRITE_WITH_IMM, 0, len,
		     remote(p.a, k == 1 ? SIM_MEM - 99 : 0),
		     p.b->node->rkey ^ (k == 0 || k == 4), 0);
		if (k == 2)
			keys_kill(&p.b->node->keys,
				  (uint32_t)p.b->node->slot);
		if (k == 3) {
			/* Gone when the last packet comes again. */
			sim_run(p.sim, 100000);
			keys_kill(&p.b->node->keys,
				  (uint32_t)p.b->node->slot);
		}
		settle(&p);
		expect(p.a->send, IBV_WC_REM_ACCESS_ERR);
		if (k < 4) {
			const struct ibv_wc *wc = sim_poll(p.b->recv);

			assert_true(wc &&
				    wc->status == IBV_WC_LOC_ACCESS_ERR &&
				    wc->wr_id == 7);
			expect(p.b->recv, IBV_WC_WR_FLUSH_ERR);
		}
		assert_null(sim_poll(p.b->recv));
		assert_int_equal(p.b->events, 1 << IBV_EVENT_QP_ACCESS_ERR);
		sim_free(p.sim);
	}
}

/* ---- posted all the same ------------------------------------------------ */

/* Whoever executes them refuses them: the responder a bad address (9.4.5). */
static void misaligned_atomics_are_posted(void **state)
{
	static const enum ibv_wr_opcode ops[] = {
		IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_CMP_AND_SWP,
		IBV_WR_ATOMIC_WRITE,
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(ops); i++) {
		struct pair p = pair_new(IBV_QPT_RC);

		assert_int_equal(post(p.a, ops[i], 0, 8, remote(p.a, 12),
				      p.b->node->rkey, 0), 0);
		post_to(p.a, IBV_WR_RDMA_WRITE, 64, 8);
		settle(&p);
		expect(p.a->send, IBV_WC_REM_INV_REQ_ERR);
		expect(p.a->send, IBV_WC_WR_FLUSH_ERR);
		assert_int_equal(p.b->events, 1 << IBV_EVENT_QP_REQ_ERR);
		sim_free(p.sim);
	}
}

/* The requester a local buffer of other than eight bytes, in its turn. */
static void atomics_are_of_eight_bytes(void **state)
{
	static const enum ibv_wr_opcode ops[] = {
		IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_CMP_AND_SWP,
		IBV_WR_ATOMIC_WRITE,
	};
	static const uint32_t len[] = { 0, 4, 7, 9, 16, 4096 };

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(ops) * ARRAY_SIZE(len); i++) {
		struct pair p = pair_new(IBV_QPT_RC);
		struct seen *w = watch(&p);

		post_to(p.a, IBV_WR_RDMA_WRITE, 64, 8);
		assert_int_equal(post_to(p.a, ops[i % 3], 0, len[i / 3]), 0);
		post_to(p.a, IBV_WR_RDMA_WRITE, 64, 8);
		settle(&p);
		expect(p.a->send, IBV_WC_SUCCESS);
		expect(p.a->send, IBV_WC_LOC_LEN_ERR);
		expect(p.a->send, IBV_WC_WR_FLUSH_ERR);
		assert_int_equal(w->n, 2); /* a write and its ACK */
		assert_int_equal(roce_qp_state(p.b->qp), IBV_QPS_RTS);
		sim_free(p.sim);
	}
}

/* An operation that the service does not have is an error of the QP. */
static void operations_of_other_services(void **state)
{
	static const struct {
		enum ibv_qp_type type;
		enum ibv_wr_opcode op;
	} k[] = {
		{ IBV_QPT_UD, IBV_WR_RDMA_WRITE },
		{ IBV_QPT_UD, IBV_WR_RDMA_WRITE_WITH_IMM },
		{ IBV_QPT_UD, IBV_WR_RDMA_READ },
		{ IBV_QPT_UD, IBV_WR_ATOMIC_CMP_AND_SWP },
		{ IBV_QPT_UD, IBV_WR_ATOMIC_FETCH_AND_ADD },
		{ IBV_QPT_UD, IBV_WR_ATOMIC_WRITE },
		{ IBV_QPT_UD, IBV_WR_SEND_WITH_INV },
		{ IBV_QPT_UC, IBV_WR_RDMA_READ },
		{ IBV_QPT_UC, IBV_WR_ATOMIC_CMP_AND_SWP },
		{ IBV_QPT_UC, IBV_WR_ATOMIC_FETCH_AND_ADD },
		{ IBV_QPT_UC, IBV_WR_ATOMIC_WRITE },
		{ IBV_QPT_UC, IBV_WR_SEND_WITH_INV },
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(k); i++) {
		struct pair p = pair_new(k[i].type);
		struct seen *w = watch(&p);
		/* For UD what it says is no address handle: not looked at. */
		struct ibv_sge sge = { (uintptr_t)p.a->node->mem, 8,
				       p.a->node->lkey };
		struct ibv_send_wr wr = { .wr_id = 5, .opcode = k[i].op,
					  .sg_list = &sge, .num_sge = 1,
					  .wr.rdma = { 0, 1 } };

		recv_into(p.b, 4096, 200);
		post(p.a, IBV_WR_SEND, 0, 10, 0, 0x11, 0);
		assert_int_equal(roce_post_send(p.a->qp, &wr, NULL), 0);
		sim_pull(p.a);
		settle(&p);
		expect(p.a->send, IBV_WC_SUCCESS);
		expect(p.a->send, IBV_WC_LOC_QP_OP_ERR);
		assert_int_equal(w->n, 1);
		expect(p.b->recv, IBV_WC_SUCCESS);
		assert_int_equal(roce_qp_state(p.a->qp), IBV_QPS_SQE);
		assert_int_equal(set_state(p.a, IBV_QPS_RTS), 0);
		recv_into(p.b, 4096, 200);
		post(p.a, IBV_WR_SEND, 0, 10, 0, 0x11, 0);
		settle(&p);
		expect(p.a->send, IBV_WC_SUCCESS);
		expect(p.b->recv, IBV_WC_SUCCESS);
		sim_free(p.sim);
	}
}

/* In SQD nothing is begun, so that nothing fails either (10.3.1.5). */
static void nothing_fails_in_sqd(void **state)
{
	static const struct {
		enum ibv_qp_type type;
		enum ibv_wr_opcode op;
		uint32_t len;
		enum ibv_wc_status status;
	} k[] = {
		{ IBV_QPT_RC, IBV_WR_ATOMIC_FETCH_AND_ADD, 16,
		  IBV_WC_LOC_LEN_ERR },
		{ IBV_QPT_UC, IBV_WR_RDMA_READ, 16, IBV_WC_LOC_QP_OP_ERR },
		{ IBV_QPT_UD, IBV_WR_RDMA_READ, 16, IBV_WC_LOC_QP_OP_ERR },
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(k); i++) {
		struct pair p = pair_new(k[i].type);
		struct ibv_qp_attr a = { .qp_state = IBV_QPS_SQD,
					 .en_sqd_async_notify = 1 };

		recv_into(p.b, 4096, 4096);
		post(p.a, IBV_WR_SEND, 0, 3000, 0, 0x11, 0);
		assert_int_equal(
			roce_qp_modify(p.a->qp, &a,
				       IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY,
				       NULL), 0);
		post_to(p.a, k[i].op, 0, k[i].len);
		settle(&p);
		expect(p.a->send, IBV_WC_SUCCESS);
		assert_null(sim_poll(p.a->send));
		assert_int_equal(roce_qp_state(p.a->qp), IBV_QPS_SQD);
		assert_int_equal(p.a->events, 1 << IBV_EVENT_SQ_DRAINED);
		assert_false(roce_tx_ready(p.a->qp));
		assert_int_equal(set_state(p.a, IBV_QPS_RTS), 0);
		sim_pull(p.a);
		expect(p.a->send, k[i].status);
		sim_free(p.sim);
	}
}

/* C10-93.1.1: a datagram over the MTU completes and is not sent. */
static void ud_over_the_mtu_is_not_sent(void **state)
{
	struct pair p = pair_new(IBV_QPT_UD);
	struct seen *w = watch(&p);

	(void)state;
	recv_into(p.b, 8192, 8192);
	for (uint32_t len = 4095; len <= 4098; len++) {
		w->n = 0;
		post(p.a, IBV_WR_SEND, 0, len, 0, 0x11, 0);
		settle(&p);
		expect(p.a->send, IBV_WC_SUCCESS);
		assert_int_equal(w->n, len <= 4096);
		recv_into(p.b, 8192, 8192);
	}
	assert_int_equal(roce_qp_state(p.a->qp), IBV_QPS_RTS);
	sim_free(p.sim);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fetch_add_runs_once),
		cmocka_unit_test(one_nak_per_gap),
		cmocka_unit_test(lost_ack_is_given_again),
		cmocka_unit_test(lost_last_ack_is_given_again),
		cmocka_unit_test(gone_qp_repeats_one_ack),
		cmocka_unit_test(gone_qp_owes_nothing),
		cmocka_unit_test(read_resumes_in_the_middle),
		cmocka_unit_test(long_read_in_chunks),
		cmocka_unit_test(late_acks_are_no_congestion),
		cmocka_unit_test(dead_peer_exceeds_retries),
		cmocka_unit_test(peer_that_has_yet_to_read_is_waited_for),
		cmocka_unit_test(busy_peer_exceeds_retries),
		cmocka_unit_test(late_timer_is_one_timeout),
		cmocka_unit_test(timeout_zero_is_for_ever),
		cmocka_unit_test(rnr_waits_for_a_receive),
		cmocka_unit_test(rnr_retry_exceeded),
		cmocka_unit_test(wrong_rkey),
		cmocka_unit_test(out_of_bounds),
		cmocka_unit_test(zero_length_is_not_checked),
		cmocka_unit_test(operation_not_enabled),
		cmocka_unit_test(message_too_long),
		cmocka_unit_test(local_protection),
		cmocka_unit_test(bad_receive_buffer),
		cmocka_unit_test(region_removed),
		cmocka_unit_test(fence_waits_for_reads),
		cmocka_unit_test(outstanding_reads_bounded),
		cmocka_unit_test(comm_est_once),
		cmocka_unit_test(drained),
		cmocka_unit_test(not_drained_while_rnr),
		cmocka_unit_test(flush_in_order),
		cmocka_unit_test(sqe_and_back),
		cmocka_unit_test(sqe_and_back_uc),
		cmocka_unit_test(wrong_qkey_is_dropped),
		cmocka_unit_test(transitions_need_their_attributes),
		cmocka_unit_test(posting_limits),
		cmocka_unit_test(srq_serves_many),
		cmocka_unit_test(xrc_reaches_the_srq),
		cmocka_unit_test(atomic_write_is_checked),
		cmocka_unit_test(strangers_are_ignored),
		cmocka_unit_test(pkey_is_the_default_one),
		cmocka_unit_test(mig_req_is_one),
		cmocka_unit_test(transport_version_is_zero),
		cmocka_unit_test(no_congestion_bits),
		cmocka_unit_test(pads_fill_the_last_word),
		cmocka_unit_test(solicited_is_for_the_last),
		cmocka_unit_test(ack_is_asked_for),
		cmocka_unit_test(credits_say_that_there_are_none),
		cmocka_unit_test(msn_counts_messages),
		cmocka_unit_test(too_many_reads_are_refused),
		cmocka_unit_test(accepted_reads_are_answered_before_a_nak),

		cmocka_unit_test(misaligned_atomics_are_refused),
		cmocka_unit_test(flow_label_picks_the_port),
		cmocka_unit_test(congestion_is_told),
		cmocka_unit_test(congestion_is_heeded),
		cmocka_unit_test(drops_are_counted),
		cmocka_unit_test(quirk_rxe_wants_acks_between_naks),
		cmocka_unit_test(small_requests_gather),
		cmocka_unit_test(quirk_rxe_nak_behind_rnr),
		cmocka_unit_test(quirk_rxe_nak_behind_long_rnr),
		cmocka_unit_test(quirk_rxe_acks_each_duplicate),
		cmocka_unit_test(quirk_rxe_fields),
		cmocka_unit_test(quirk_rxe_no_ack_of_reads),
		cmocka_unit_test(repeated_atomic_has_the_msn_of_now),
		cmocka_unit_test(quirk_rxe_timer_is_put_off),
		cmocka_unit_test(far_packets_change_nothing),
		cmocka_unit_test(quirk_rxe_long_send),
		cmocka_unit_test(quirk_rxe_acks_bad_invalidate),
		cmocka_unit_test(quirk_rxe_uc_long_send),
		cmocka_unit_test(quirk_rxe_grh_flag),
		cmocka_unit_test(resize_keeps_what_was_executed),
		cmocka_unit_test(resize_keeps_what_is_due),
		cmocka_unit_test(responses_are_due_for_ever),
		cmocka_unit_test(old_results_are_not_replayed),
		cmocka_unit_test(congestion_is_no_recovery),
		cmocka_unit_test(round_trips_are_positive),
		cmocka_unit_test(pace_is_kept_over_clocks),
		cmocka_unit_test(uc_begins_anywhere),
		cmocka_unit_test(uc_out_of_sequence),
		cmocka_unit_test(full_cq_acknowledges_nothing),
		cmocka_unit_test(ud_too_long_is_dropped),
		cmocka_unit_test(refused_write_ends_its_receive),
		cmocka_unit_test(misaligned_atomics_are_posted),
		cmocka_unit_test(atomics_are_of_eight_bytes),
		cmocka_unit_test(operations_of_other_services),
		cmocka_unit_test(nothing_fails_in_sqd),
		cmocka_unit_test(ud_over_the_mtu_is_not_sent),
	};

	cmocka_set_test_filter(getenv("SIM_TEST"));
	return cmocka_run_group_tests_name("sim_scripted", tests, NULL, NULL);
}

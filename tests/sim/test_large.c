/*
 * test_large.c - packets of many MTUs within the host
 *
 * They send within the host whatever SIM_WAY says.
 */
#include "scripted.h"

#include "roce/roce_internal.h"

#include "base/bytes.h"

#include <stdlib.h>
#include <string.h>

static size_t count(const struct seen *w, uint8_t opcode, int from)
{
	size_t n = 0;

	for (size_t i = 0; i < w->n; i++)
		n += w->pkt[i].h.opcode == opcode && w->pkt[i].from == from;
	return n;
}

/* ---- what a large packet is -------------------------------------------- */

/* As many PSNs as over the wire, in as few packets as the link can. */
static void psns_are_those_of_the_wire(void **state)
{
	static const struct {
		uint32_t len, pkts, psns;
	} k[] = {
		{ 0, 1, 1 },         { 1, 1, 1 },
		{ 1024, 1, 1 },      { 1025, 1, 2 },
		{ 64 << 10, 1, 64 }, { (64 << 10) + 1, 2, 65 },
		{ 200000, 4, 196 },
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(k); i++) {
		struct pair p = host_pair();
		struct seen *w = watch(&p);
		uint32_t psn = sim_conn_default.psn_a, last;

		sim_pattern(p.a->node->mem, k[i].len, 1);
		post_to(p.a, IBV_WR_RDMA_WRITE, 0, k[i].len);
		post_to(p.a, IBV_WR_RDMA_WRITE, 0, 0);
		settle(&p);
		expect(p.a->send, IBV_WC_SUCCESS);
		expect(p.a->send, IBV_WC_SUCCESS);
		assert_memory_equal(p.a->node->mem, p.b->node->mem, k[i].len);
		for (uint32_t n = 0; n < k[i].pkts; n++) {
			uint32_t f = roce_opcode(w->pkt[n].h.opcode)->flags;

			assert_int_equal(w->pkt[n].h.psn, psn);
			assert_int_equal(!(f & ROCE_F_FIRST), n > 0);
			assert_int_equal(!(f & ROCE_F_LAST), n < k[i].pkts - 1);
			psn = psn_add(psn,
				      w->pkt[n].len ?
					      (uint32_t)(w->pkt[n].len + 1023) /
						      1024 :
					      1);
		}
		last = psn_add(sim_conn_default.psn_a, k[i].psns);
		assert_int_equal(psn, last);
		assert_int_equal(w->pkt[k[i].pkts].h.psn, last);
		sim_free(p.sim);
	}
}

/* A response too, and a read request asks for more of it at once. */
static void reads_are_large(void **state)
{
	const uint32_t len = (2 << 20) - 4097;
	struct pair p = host_pair();
	struct seen *w = watch(&p);

	(void)state;
	sim_pattern(p.b->node->mem, len, 2);
	post_to(p.a, IBV_WR_RDMA_READ, 0, len);
	settle(&p);
	expect(p.a->send, IBV_WC_SUCCESS);
	assert_memory_equal(p.a->node->mem, p.b->node->mem, len);
	assert_int_equal(count(w, ROCE_READ_REQUEST, 0), 2);
	assert_int_equal(w->n, 2 + 32);
	assert_int_equal(p.sim->reads, 32);
	sim_free(p.sim);
}

/* In MTUs and in large packets, from whatever place a repetition begins. */
static void ways_change_in_mid_message(void **state)
{
	static const enum ibv_wr_opcode ops[] = {
		IBV_WR_RDMA_WRITE,
		IBV_WR_RDMA_WRITE_WITH_IMM,
		IBV_WR_SEND,
		IBV_WR_RDMA_READ,
	};
	struct sim_conn_opts co = sim_conn_default;

	(void)state;
	for (unsigned seed = 0; seed < 120; seed++) {
		const enum ibv_wr_opcode op = ops[seed % 4];
		const uint32_t len = 1 + (1500000u >> seed % 7) - seed;
		struct sim_qp *from;
		struct pair p;

		co.mtu = IBV_MTU_256 + seed % 5;
		p = host_opts(&co, SIM_MIXED, seed % 3 ? SIM_MIXED : SIM_UDP);
		p.sim->ways.state = p.sim->rng.state = seed;
		p.sim->max_payload = 8192u << seed % 8;
		p.sim->max_copy = seed % 2 * 16384;
		p.sim->link.loss = seed % 5 ? 0.02 : 0;
		p.sim->link.busy = seed % 3 * 0.3;
		p.sim->unreadable = seed % 4 * 0.05;
		from = op == IBV_WR_RDMA_READ ? p.b : p.a;
		sim_pattern(from->node->mem, len, seed);
		recv_into(p.b, 0, len);
		post_to(p.a, op, 0, len);
		settle(&p);
		expect(p.a->send, IBV_WC_SUCCESS);
		assert_memory_equal(p.a->node->mem, p.b->node->mem, len);
		if (op == IBV_WR_SEND || op == IBV_WR_RDMA_WRITE_WITH_IMM)
			expect(p.b->recv, IBV_WC_SUCCESS);
		assert_null(sim_poll(p.b->recv));
		assert_null(sim_poll(p.a->send));
		sim_free(p.sim);
	}
}

static bool lose_acks(struct sim *s, const struct roce_hdr *h, int from)
{
	(void)s;
	return from == 1 && h->opcode == ROCE_ACK &&
	       (h->syndrome & ROCE_AETH_KIND) == ROCE_AETH_ACK;
}

static bool lose_last(struct sim *s, const struct roce_hdr *h, int from)
{
	(void)s;
	return (from == 0 && roce_opcode(h->opcode)->flags & ROCE_F_LAST) ||
	       lose_acks(s, h, from);
}

/*
 * Of a message that comes again in one packet the responder has a part: it says
 * so, and gets the rest. Nothing of it counts twice.
 */
static void known_part_is_not_taken_again(void **state)
{
	const uint32_t len = 20 * 1024;
	struct pair p = host_pair();
	struct seen *w;

	(void)state;
	sim_pattern(p.a->node->mem, len, 3);
	recv_into(p.b, 0, len);
	p.sim->way[0] = SIM_UDP;
	p.sim->link.drop = lose_last;
	post_to(p.a, IBV_WR_SEND, 0, len);
	sim_run(p.sim, 1000000);
	assert_int_equal(roce_qp_stats(p.b->qp)->rx_pkts, 19);

	w = watch(&p);
	p.sim->way[0] = SIM_HOST;
	p.sim->max_copy = 64 << 10;
	settle(&p);
	expect(p.a->send, IBV_WC_SUCCESS);
	expect(p.b->recv, IBV_WC_SUCCESS);
	assert_null(sim_poll(p.b->recv));
	assert_memory_equal(p.a->node->mem, p.b->node->mem, len);
	/* All of it at once; ACK and NAK; and what is missing. */
	assert_int_equal(w->pkt[0].h.opcode, ROCE_SEND_ONLY);
	assert_int_equal(w->pkt[0].len, len);
	assert_int_equal(w->pkt[1].h.opcode, ROCE_ACK);
	assert_int_equal(w->pkt[1].h.psn, psn_add(sim_conn_default.psn_a, 18));
	assert_true(is_nak_psn(&w->pkt[2].h));
	assert_int_equal(w->pkt[3].h.opcode, ROCE_SEND_LAST);
	assert_int_equal(w->pkt[3].h.psn, psn_add(sim_conn_default.psn_a, 19));
	assert_int_equal(w->pkt[3].len, 1024);
	sim_free(p.sim);
}

/* ---- what is wrong ----------------------------------------------------- */

static void b_gets_large(struct pair *p, struct roce_hdr h, size_t len,
			 bool large, bool source)
{
	static struct note note;
	const struct noting s = { { noting_read, sizeof(s) },
				  some_data,
				  &note };
	struct roce_rx rx = {
		.h = h,
		.len = len,
		.host = true,
		.large = large,
		.path_hash = roce_path_hash(&p->a->node->gid, &p->b->node->gid),
		.payload = source ? NULL : some_data,
		.source = source ? &s.base : NULL,
	};

	note.err = 0;
	rx.h.pkey = 0xffff;
	rx.h.dest_qpn = roce_qp_num(p->b->qp);
	rx.h.va = (uintptr_t)p->b->node->mem;
	rx.h.rkey = p->b->node->rkey;
	rx.h.dma_len = (uint32_t)(h.dma_len ? h.dma_len : len);
	roce_rx(p->b->qp, &rx, p->sim->now);
	sim_pull(p->b);
}

/* All but the last packet are whole MTUs, and only large ones are many. */
static void lengths_are_checked(void **state)
{
	static const struct {
		uint8_t opcode;
		uint32_t len;
		bool large, good;
	} k[] = {
		{ ROCE_WRITE_FIRST, 1024, false, true },
		{ ROCE_WRITE_FIRST, 2048, false, false },
		{ ROCE_WRITE_FIRST, 2048, true, true },
		{ ROCE_WRITE_FIRST, 0, true, false },
		{ ROCE_WRITE_FIRST, 2047, true, false },
		{ ROCE_WRITE_FIRST, 1000, true, false },
		{ ROCE_WRITE_ONLY, 200001, true, true },
		{ ROCE_WRITE_ONLY, 0, true, true },
		{ ROCE_WRITE_ONLY, 1025, false, false },
		{ ROCE_WRITE_ONLY, 0x80000001, true, false },
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(k) * 2; i++) {
		const size_t n = i / 2;
		struct pair p = host_pair();
		struct roce_hdr h = { .opcode = k[n].opcode,
				      .psn = sim_conn_default.psn_a,
				      .dma_len = k[n].len };
		struct ibv_qp_init_attr init;
		struct ibv_qp_attr attr;

		if (k[n].opcode == ROCE_WRITE_FIRST)
			h.dma_len = k[n].len + 1;
		b_gets_large(&p, h, k[n].len, k[n].large, i % 2);
		assert_int_equal(roce_qp_state(p.b->qp),
				 k[n].good ? IBV_QPS_RTS : IBV_QPS_ERR);
		roce_qp_query(p.b->qp, &attr, &init);
		if (k[n].good)
			assert_int_equal(
				attr.rq_psn,
				psn_add(h.psn,
					k[n].len ? (k[n].len + 1023) / 1024 :
						   1));
		sim_free(p.sim);
	}
}

/* A LAST without anything would be one packet more than on the wire. */
static void last_has_something(void **state)
{
	struct pair p = host_pair();
	struct roce_hdr h = { .opcode = ROCE_WRITE_FIRST,
			      .dma_len = 2048,
			      .psn = sim_conn_default.psn_a };

	(void)state;
	b_gets_large(&p, h, 2048, true, true);
	h.opcode = ROCE_WRITE_LAST;
	h.psn = psn_add(h.psn, 2);
	b_gets_large(&p, h, 0, true, false);
	assert_int_equal(roce_qp_state(p.b->qp), IBV_QPS_ERR);
	sim_free(p.sim);
}

/* Only what is scattered may be elsewhere, and only from the right peer. */
static void strange_packets_are_dropped(void **state)
{
	struct pair p = host_pair(), u = pair_new(IBV_QPT_UD);
	struct roce_hdr h = { .opcode = ROCE_ATOMIC_WRITE,
			      .psn = sim_conn_default.psn_a };
	struct roce_rx rx = {
		.h = { .opcode = ROCE_WRITE_ONLY,
		       .pkey = 0xffff,
		       .dest_qpn = roce_qp_num(p.b->qp),
		       .psn = sim_conn_default.psn_a },
		.host = true,
		/* the wrong way round */
		.path_hash = roce_path_hash(&p.b->node->gid, &p.a->node->gid),
		.sgid = p.a->node->gid,
		.dgid = p.b->node->gid,
	};

	(void)state;
	memset(drops, 0, sizeof(drops));
	p.b->node->env.dropped = u.b->node->env.dropped = count_drops;
	b_gets_large(&p, h, 8, true, true);
	assert_int_equal(drops[ROCE_DROP_HEADER], 1);
	roce_rx(p.b->qp, &rx, p.sim->now);
	assert_int_equal(drops[ROCE_DROP_ADDRESS], 1);
	assert_int_equal(roce_qp_stats(p.b->qp)->rx_pkts, 0);

	h.opcode = ROCE_UD | ROCE_SEND_ONLY;
	h.qkey = 0x11;
	recv_into(u.b, 0, 100);
	b_gets_large(&u, h, 8, true, true);
	assert_int_equal(drops[ROCE_DROP_HEADER], 2);
	assert_null(sim_poll(u.b->recv));
	sim_free(p.sim);
	sim_free(u.sim);
}

/* A response may end where its request does, at whole MTUs before, no more. */
static void responses_are_checked(void **state)
{
	static const struct {
		uint32_t len;
		bool good, all;
	} k[] = {
		{ 5000, true, true },   { 4096, true, false },
		{ 2048, true, false },  { 1024, true, false },
		{ 5001, false, false }, { 4999, false, false },
		{ 6144, false, false }, { 0, false, false },
		{ 1000, false, false }, { 0x80000000, false, false },
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(k) * 2; i++) {
		const size_t n = i / 2;
		static struct note note;
		const struct noting s = { { noting_read, sizeof(s) },
					  some_data,
					  &note };
		struct pair p = host_pair();
		struct roce_rx rx = {
			.h = { .opcode = ROCE_READ_RESP_FIRST,
			       .pkey = 0xffff,
			       .psn = sim_conn_default.psn_a,
			       .dest_qpn = roce_qp_num(p.a->qp) },
			.len = k[n].len,
			.host = true,
			.large = true,
			.path_hash = roce_path_hash(&p.b->node->gid,
						    &p.a->node->gid),
			.payload = i % 2 ? some_data : NULL,
			.source = i % 2 ? NULL : &s.base,
		};

		p.sim->link.drop = drop_all;
		note.err = 0;
		post_to(p.a, IBV_WR_RDMA_READ, 0, 5000);
		roce_rx(p.a->qp, &rx, p.sim->now);
		if (!k[n].good)
			expect(p.a->send, IBV_WC_BAD_RESP_ERR);
		else if (k[n].all)
			expect(p.a->send, IBV_WC_SUCCESS);
		assert_null(sim_poll(p.a->send));
		if (k[n].good)
			assert_memory_equal(p.a->node->mem, some_data,
					    k[n].len);
		assert_int_equal(p.a->node->mem[5000], 0);
		sim_free(p.sim);
	}
}

/* ---- acknowledgements without a packet --------------------------------- */

/* A write of 5000 bytes, from a to b. */
static struct roce_rx write_to(const struct pair *p)
{
	return (struct roce_rx){
		.h = { .opcode = ROCE_WRITE_ONLY,
		       .pkey = 0xffff,
		       .dest_qpn = roce_qp_num(p->b->qp),
		       .ack_req = true,
		       .psn = sim_conn_default.psn_a,
		       .dma_len = 5000,
		       .va = (uintptr_t)p->b->node->mem,
		       .rkey = p->b->node->rkey },
		.payload = some_data,
		.len = 5000,
		.host = true,
		.large = true,
		.path_hash = roce_path_hash(&p->a->node->gid, &p->b->node->gid),
	};
}

/* Whether b takes it, and that needs no ACK packet. */
static bool is_acked(const struct pair *p, struct roce_rx *rx)
{
	bool acked = false;

	rx->acked = &acked;
	roce_rx(p->b->qp, rx, p->sim->now);
	return acked;
}

/* Only an ACK, only of that packet. */
static void ack_that_is_taken(void **state)
{
	struct pair p = host_pair();
	struct roce_rx rx = write_to(&p), read = rx;

	(void)state;
	p.b->qp->rsp.hold.skip = 100; /* its program does not answer */
	assert_true(is_acked(&p, &rx));
	assert_false(roce_tx_ready(p.b->qp));

	/* Of a repetition: what is acknowledged is not that. */
	rx.h.psn = psn_add(rx.h.psn, 5);
	assert_true(is_acked(&p, &rx));
	rx.h.psn = sim_conn_default.psn_a;
	assert_false(is_acked(&p, &rx));
	sim_pull(p.b);

	/* Behind a response it waits for that. */
	read.h.opcode = ROCE_READ_REQUEST;
	read.h.psn = psn_add(rx.h.psn, 10);
	read.len = 0;
	roce_rx(p.b->qp, &read, p.sim->now);
	rx.h.psn = psn_add(rx.h.psn, 15);
	assert_false(is_acked(&p, &rx));
	sim_pull(p.b);

	/* Nobody asked. */
	rx.h.psn = psn_add(rx.h.psn, 5);
	rx.h.ack_req = false;
	assert_false(is_acked(&p, &rx));

	/* A gap: the NAK goes as a packet. */
	rx.h.ack_req = true;
	rx.h.psn = psn_add(rx.h.psn, 50);
	assert_false(is_acked(&p, &rx));
	assert_true(roce_tx_ready(p.b->qp));
	sim_free(p.sim);
}

/* A write may be answered by another, which the ACK goes with. */
static void ack_of_a_write_waits(void **state)
{
	struct pair p = host_pair();
	struct roce_rx rx = write_to(&p);

	(void)state;
	assert_false(is_acked(&p, &rx));
	assert_true(roce_ack_hold(p.b->qp));
	assert_false(roce_tx_ready(p.b->qp));
	/* One more before there was an answer, and then it is seldom tried. */
	for (int i = 1; i < 10; i++) {
		rx.h.psn = psn_add(rx.h.psn, 5);
		if (is_acked(&p, &rx))
			break;
		roce_ack_hold(p.b->qp);
		sim_pull(p.b);
		assert_in_range(i, 1, 8);
	}
	/* Sends are told of by completions. */
	rx.h.psn = psn_add(rx.h.psn, 5);
	rx.h.opcode = ROCE_SEND_ONLY;
	p.b->qp->rsp.hold.skip = 0;
	assert_int_equal(recv_into(p.b, 0, 8192), 0);
	assert_true(is_acked(&p, &rx));
	sim_free(p.sim);
}

/* What is owed to the peer is not said to who sends in its name. */
static void ack_of_what_is_dropped(void **state)
{
	struct pair p = host_pair();
	struct roce_rx rx = write_to(&p);

	(void)state;
	roce_rx(p.b->qp, &rx, p.sim->now);
	rx.path_hash++;
	assert_false(is_acked(&p, &rx));
	assert_true(roce_tx_ready(p.b->qp));
	sim_free(p.sim);
}

/* What arrives so counts as an ACK does; of anything else, nothing. */
static void ack_that_arrives(void **state)
{
	const uint32_t psn = sim_conn_default.psn_a;
	struct pair p = host_pair();

	(void)state;
	p.sim->link.drop = drop_all;
	for (int i = 0; i < 3; i++)
		post_to(p.a, IBV_WR_RDMA_WRITE, 0, 5000);
	roce_acked(p.a->qp, psn_add(psn, 15), false, p.sim->now);
	roce_acked(p.a->qp, psn_add(psn, PSN_MASK), false, p.sim->now);
	roce_acked(p.a->qp, psn_add(psn, 1 << 23), false, p.sim->now);
	assert_null(sim_poll(p.a->send));
	roce_acked(p.a->qp, psn_add(psn, 9), false, p.sim->now);
	expect(p.a->send, IBV_WC_SUCCESS);
	expect(p.a->send, IBV_WC_SUCCESS);
	assert_null(sim_poll(p.a->send));
	roce_acked(p.a->qp, psn_add(psn, 9), false, p.sim->now);
	roce_acked(p.a->qp, psn_add(psn, 14), false, p.sim->now);
	expect(p.a->send, IBV_WC_SUCCESS);
	assert_int_equal(roce_deadline(p.a->qp), UINT64_MAX);
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, 50);
	set_state(p.a, IBV_QPS_ERR);
	expect(p.a->send, IBV_WC_WR_FLUSH_ERR);
	roce_acked(p.a->qp, psn_add(psn, 15), false, p.sim->now);
	assert_null(sim_poll(p.a->send));
	sim_free(p.sim);
}

/* What is out is watched again when somebody tells the time. */
static void time_is_told_later(void **state)
{
	const uint32_t psn = sim_conn_default.psn_a;
	struct pair p = host_pair();
	uint64_t now = p.sim->now + 3600 * 1000000000ull;

	(void)state;
	p.sim->link.drop = drop_all;
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, 50);
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, 50);
	assert_false(roce_tx_unarmed(p.a->qp));
	roce_acked(p.a->qp, psn, false, 0);
	expect(p.a->send, IBV_WC_SUCCESS);
	assert_true(roce_tx_unarmed(p.a->qp));
	assert_int_equal(roce_deadline(p.a->qp), UINT64_MAX);
	roce_expire(p.a->qp, now);
	assert_false(roce_tx_unarmed(p.a->qp));
	assert_in_range(roce_deadline(p.a->qp), now + 1, now + 5000000);
	assert_int_equal(roce_qp_stats(p.a->qp)->retransmits, 0);
	roce_acked(p.a->qp, psn_add(psn, 1), false, 0);
	expect(p.a->send, IBV_WC_SUCCESS);
	assert_false(roce_tx_unarmed(p.a->qp));
	assert_int_equal(roce_deadline(p.a->qp), UINT64_MAX);
	sim_free(p.sim);
}

/* Requests that a link takes one by one are those that a batch has. */
static void small_requests(void **state)
{
	const uint32_t psn = sim_conn_default.psn_a;
	struct pair p = host_pair();
	struct ibv_sge sge = { (uintptr_t)p.a->node->mem, 20, p.a->node->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED,
				  .wr.rdma = { 4711, 815 } };
	struct roce_small s;
	struct roce_batch b;

	(void)state;
	assert_int_equal(roce_post_send(p.a->qp, &wr, NULL), 0);
	wr.opcode = IBV_WR_SEND;
	wr.send_flags |= IBV_SEND_SOLICITED;
	assert_int_equal(roce_post_send(p.a->qp, &wr, NULL), 0);
	sge.length = 5000; /* it is two packets */
	assert_int_equal(roce_post_send(p.a->qp, &wr, NULL), 0);
	assert_true(roce_small_begin(p.a->qp, &s, false));
	for (int i = 0; i < 2; i++) {
		assert_int_equal(s.opcode,
				 i ? ROCE_SEND_ONLY : ROCE_WRITE_ONLY);
		assert_int_equal(s.psn, psn_add(psn, (uint32_t)i));
		assert_int_equal(s.len, 20);
		assert_int_equal(s.va, i ? 0 : 4711);
		assert_int_equal(s.rkey, i ? 0 : 815);
		assert_int_equal(s.solicited, i);
		assert_false(s.last);
		assert_ptr_equal(s.data, p.a->node->mem);
		assert_int_equal(s.next(&s), !i);
	}
	roce_small_end(&s, 2, 0);
	assert_true(roce_tx_unarmed(p.a->qp));
	b.max_payload = b.max_copy = 0;
	roce_tx(p.a->qp, &b, p.sim->now);
	assert_true(b.n > 1 && b.pkt[0].h.psn == psn_add(psn, 2));
	roce_tx_done(p.a->qp, &b, 0, p.sim->now);
	/* The link is busy. */
	assert_false(roce_small_begin(p.a->qp, &s, false));
	roce_acked(p.a->qp, psn_add(psn, 1), false, 0);
	expect(p.a->send, IBV_WC_SUCCESS);
	expect(p.a->send, IBV_WC_SUCCESS);
	assert_null(sim_poll(p.a->send));
	sim_free(p.sim);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(psns_are_those_of_the_wire),
		cmocka_unit_test(reads_are_large),
		cmocka_unit_test(ways_change_in_mid_message),
		cmocka_unit_test(known_part_is_not_taken_again),
		cmocka_unit_test(lengths_are_checked),
		cmocka_unit_test(last_has_something),
		cmocka_unit_test(strange_packets_are_dropped),
		cmocka_unit_test(responses_are_checked),
		cmocka_unit_test(ack_that_is_taken),
		cmocka_unit_test(ack_of_a_write_waits),
		cmocka_unit_test(ack_of_what_is_dropped),
		cmocka_unit_test(ack_that_arrives),
		cmocka_unit_test(time_is_told_later),
		cmocka_unit_test(small_requests),
	};

	cmocka_set_test_filter(getenv("SIM_TEST"));
	return cmocka_run_group_tests_name("sim_large", tests, NULL, NULL);
}

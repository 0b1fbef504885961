/*
 * test_headers.c - the fields of packets that hardware looks at
 *
 * What hardware expects of packets, and the tests that state it; "peer" is
 * tests/peer/packets.py, which looks for it in captures as well:
 *
 *   source port per QP or flow label  A17.4.5.2  flow_label_picks_the_port,
 *                                                test_udp_wire: headers_of_ip
 *   DSCP and ECN from traffic class   A17.4.5    test_udp_wire: headers_of_ip; peer
 *   TTL from hop limit                A17.4.5    test_udp_wire: headers_of_ip; peer
 *   Don't Fragment                    A17.4.5.1  test_udp_wire: headers_of_ip; peer
 *   no UDP checksum, IPv4 and IPv6    A17.4.5.2  test_udp_wire: no_udp_checksum
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
 *                                                test_udp_wire: no_udp_checksum
 *   pad count                         9.2.3      pads_fill_the_last_word,
 *                                                test_roce: every_length; peer
 *   solicited event bit               9.2.2      solicited_is_for_the_last
 *   AckReq                            9.7.7.1.1  ack_is_asked_for,
 *                                                ack_is_asked_for_seldom
 *   AETH credits                      9.7.7.2    credits_say_that_there_are_none
 *   MSN                               9.7.7.1    msn_counts_messages
 *   responder resources are told      12.7.29,   cm_connect:
 *                                     12.7.30      responder_resources_are_told
 *   kept to, as requester             9.7.3.3    outstanding_reads_bounded
 *   and demanded, as responder        9.7.4.1.7  too_many_reads_are_refused
 *   congestion notification           A17.9.3    congestion_is_told,
 *                                                congestion_is_heeded
 */
#include "scripted.h"

#include "roce/roce_internal.h"

#include <stdlib.h>

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
				 types[t] == IBV_QPT_UC ? 5 :
							  1);
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

/* Asks in 2048 packets of a long message and short ones that wait for it, and how
 * many packets there are between two. */
static unsigned asks(struct pair *p, struct seen *w, unsigned *between)
{
	unsigned n = 0, since = 0;
	bool last = false;

	w->n = 0;
	*between = 0;
	post_to(p->a, IBV_WR_RDMA_WRITE, 0, 1 << 20);
	for (int i = 0; i < 16; i++)
		post_to(p->a, IBV_WR_RDMA_WRITE, 0, 65536);
	settle(p);
	for (int i = 0; i < 17; i++)
		expect(p->a->send, IBV_WC_SUCCESS);
	for (size_t i = 0; i < w->n; i++) {
		const struct roce_hdr *h = &w->pkt[i].h;

		if (!(roce_opcode(h->opcode)->flags & ROCE_F_REQUEST))
			continue;
		last = h->ack_req;
		n += last;
		since = last ? 0 : since + 1;
		*between = max_u32(*between, since);
	}
	assert_true(last);
	return n;
}

/*
 * Where the window is as wide as it may be and nothing was lost, four times in
 * what it holds, and at the end of what is posted; after a loss as ever.
 */
static void ack_is_asked_for_seldom(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	struct seen *w = watch(&p);
	unsigned between;

	(void)state;
	if (p.a->qp->path.lossless) { /* there is no such window there */
		sim_free(p.sim);
		return;
	}
	asks(&p, w, &between);
	asks(&p, w, &between);
	assert_in_range(asks(&p, w, &between), 8, 12);
	assert_true(between < 256);
	/* The first packet of the next ones. */
	w->gap[0] = psn_add(sim_conn_default.psn_a, 3 * 2048);
	w->gaps = 1;
	asks(&p, w, &between);
	assert_true(asks(&p, w, &between) >= 128);
	assert_true(between < 16);
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
		IBV_WR_SEND,       IBV_WR_RDMA_WRITE,
		IBV_WR_RDMA_READ,  IBV_WR_ATOMIC_FETCH_AND_ADD,
		IBV_WR_RDMA_WRITE,
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
			assert_int_equal(h->msn, is_nak_psn(h) ? i : i + 1);
		}
	}
	sim_free(p.sim);
}

/*
 * A17.4.5.2: the UDP source port is the same for all packets of a flow, and
 * different for different flows; the flow label says which, where it is given.
 * There and back they leave by one socket; see udp.h.
 */
static void flow_label_picks_the_port(void **state)
{
	struct sim_qp_opts qo = { .type = IBV_QPT_UC,
				  .cap = { 8, 8, 1, 1, 0 } };
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
		struct ibv_send_wr wr = { .sg_list = &sge,
					  .num_sge = 1,
					  .opcode = IBV_WR_SEND };

		path.flow_label = flow < 2 ? 0 : 0x12340 + flow;
		assert_int_equal(roce_qp_modify(q->qp, &a,
						IBV_QP_STATE |
							IBV_QP_PKEY_INDEX |
							IBV_QP_PORT |
							IBV_QP_ACCESS_FLAGS,
						NULL),
				 0);
		a.qp_state = IBV_QPS_RTR;
		assert_int_equal(roce_qp_modify(q->qp, &a,
						IBV_QP_STATE | IBV_QP_AV |
							IBV_QP_PATH_MTU |
							IBV_QP_DEST_QPN |
							IBV_QP_RQ_PSN,
						&path),
				 0);
		a.qp_state = IBV_QPS_RTS;
		assert_int_equal(roce_qp_modify(q->qp, &a,
						IBV_QP_STATE | IBV_QP_SQ_PSN,
						NULL),
				 0);
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pkey_is_the_default_one),
		cmocka_unit_test(mig_req_is_one),
		cmocka_unit_test(transport_version_is_zero),
		cmocka_unit_test(no_congestion_bits),
		cmocka_unit_test(pads_fill_the_last_word),
		cmocka_unit_test(solicited_is_for_the_last),
		cmocka_unit_test(ack_is_asked_for),
		cmocka_unit_test(ack_is_asked_for_seldom),
		cmocka_unit_test(credits_say_that_there_are_none),
		cmocka_unit_test(msn_counts_messages),
		cmocka_unit_test(flow_label_picks_the_port),
	};

	cmocka_set_test_filter(getenv("SIM_TEST"));
	return cmocka_run_group_tests_name("sim_headers", tests, NULL, NULL);
}

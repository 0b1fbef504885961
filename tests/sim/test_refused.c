/*
 * test_refused.c - requests that the requester or the responder refuses
 *
 * Packets that do nothing, and the counters that report them, are here as well.
 */
#include "scripted.h"

#include "roce/roce_internal.h"

#include <stdlib.h>
#include <string.h>

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
	struct ibv_send_wr wr = { .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_SEND };

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
	p.sim->direct = 0;
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, 1000000);
	sim_run(p.sim, 1);
	keys_kill(&p.b->node->keys, (uint32_t)p.b->node->slot);
	settle(&p);
	expect(p.a->send, IBV_WC_REM_ACCESS_ERR);
	sim_free(p.sim);
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
		.opcode = ROCE_WRITE_ONLY,
		.pkey = 0xffff,
		.ack_req = true,
		.dest_qpn = roce_qp_num(p.b->qp),
		.psn = sim_conn_default.psn_a,
		.va = remote(p.a, 0),
		.rkey = p.b->node->rkey,
		.dma_len = 4,
	};
	struct roce_rx rx = { .h = h,
			      .payload = (const uint8_t *)"ABCD",
			      .len = 4,
			      .sgid = p.a->node->gid,
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
	packets_of_mtu(&p);
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
	p.sim->direct = 0;
	p.sim->link.drop = drop_all;
	assert_int_equal(post_to(p.a, IBV_WR_RDMA_READ, 0, 9000), 0);
	assert_int_equal(post(p.a, IBV_WR_RDMA_WRITE, 9000, 64,
			      remote(p.a, 9000), p.b->node->rkey ^ 0x5500, 0),
			 0);
	sim_run(p.sim, 1000000);
	p.sim->link.drop = NULL;
	rx.h = (struct roce_hdr){
		.opcode = ROCE_READ_REQUEST,
		.pkey = 0xffff,
		.dest_qpn = roce_qp_num(p.b->qp),
		.psn = psn,
		.va = remote(p.a, 0),
		.rkey = p.b->node->rkey,
		.dma_len = 9000,
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
		keys_kill(&p.b->node->keys, (uint32_t)p.b->node->slot);
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
			.opcode = ops[i / 7],
			.pkey = 0xffff,
			.ack_req = true,
			.dest_qpn = roce_qp_num(p.b->qp),
			.psn = sim_conn_default.psn_a,
			.va = remote(p.a, 64) | (i % 7 + 1),
			.rkey = p.b->node->rkey,
			.swap_add = 5,
			.dma_len = ops[i / 7] == ROCE_ATOMIC_WRITE ? 8 : 0,
		};
		uint8_t buf[ROCE_HDR_MAX + 8], before[128];
		size_t len = roce_encode(&h, buf);

		if (h.dma_len)
			len += 8; /* its payload: whatever is there */
		memset(p.b->node->mem, 0,
		       128); /* a compare with 0 would swap */
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

static void drops_are_counted(void **state)
{
	struct pair p = pair_new(IBV_QPT_RC);
	struct roce_hdr h = {
		.opcode = ROCE_WRITE_ONLY,
		.pkey = 0xffff,
		.dest_qpn = roce_qp_num(p.b->qp),
		.psn = sim_conn_default.psn_a,
	};
	struct roce_rx good = { .h = h,
				.sgid = p.a->node->gid,
				.dgid = p.b->node->gid },
		       rx = good;

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
	assert_int_equal(drops[ROCE_DROP_ENDED], 1);
	assert_int_equal(roce_qp_stats(p.b->qp)->dropped, 10);
	assert_int_equal(roce_qp_stats(p.b->qp)->gaps, 2);
	assert_int_equal(roce_qp_stats(p.b->qp)->no_recv, 1);
	assert_int_equal(roce_qp_stats(p.b->qp)->duplicates, 1);
	sim_free(p.sim);
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

		packets_of_mtu(&p);
		script(&p, &sc);
		if (k < 4) {
			recv_into(p.b, 7, 100);
			recv_into(p.b, 8, 100);
		}
		post(p.a, IBV_WR_RDMA_WRITE_WITH_IMM, 0, len,
		     remote(p.a, k == 1 ? SIM_MEM - 99 : 0),
		     p.b->node->rkey ^ (k == 0 || k == 4), 0);
		if (k == 2)
			keys_kill(&p.b->node->keys, (uint32_t)p.b->node->slot);
		if (k == 3) {
			/* Gone when the last packet comes again. */
			sim_run(p.sim, 100000);
			keys_kill(&p.b->node->keys, (uint32_t)p.b->node->slot);
		}
		settle(&p);
		expect(p.a->send, IBV_WC_REM_ACCESS_ERR);
		if (k < 4) {
			const struct ibv_wc *wc = sim_poll(p.b->recv);

			assert_true(wc && wc->status == IBV_WC_LOC_ACCESS_ERR &&
				    wc->wr_id == 7);
			expect(p.b->recv, IBV_WC_WR_FLUSH_ERR);
		}
		assert_null(sim_poll(p.b->recv));
		assert_int_equal(p.b->events, 1 << IBV_EVENT_QP_ACCESS_ERR);
		sim_free(p.sim);
	}
}

/* Whoever executes them refuses them: the responder a bad address (9.4.5). */
static void misaligned_atomics_are_posted(void **state)
{
	static const enum ibv_wr_opcode ops[] = {
		IBV_WR_ATOMIC_FETCH_AND_ADD,
		IBV_WR_ATOMIC_CMP_AND_SWP,
		IBV_WR_ATOMIC_WRITE,
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(ops); i++) {
		struct pair p = pair_new(IBV_QPT_RC);

		assert_int_equal(post(p.a, ops[i], 0, 8, remote(p.a, 12),
				      p.b->node->rkey, 0),
				 0);
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
		IBV_WR_ATOMIC_FETCH_AND_ADD,
		IBV_WR_ATOMIC_CMP_AND_SWP,
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
		struct ibv_send_wr wr = { .wr_id = 5,
					  .opcode = k[i].op,
					  .sg_list = &sge,
					  .num_sge = 1,
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(wrong_rkey),
		cmocka_unit_test(out_of_bounds),
		cmocka_unit_test(zero_length_is_not_checked),
		cmocka_unit_test(operation_not_enabled),
		cmocka_unit_test(message_too_long),
		cmocka_unit_test(local_protection),
		cmocka_unit_test(bad_receive_buffer),
		cmocka_unit_test(region_removed),
		cmocka_unit_test(atomic_write_is_checked),
		cmocka_unit_test(strangers_are_ignored),
		cmocka_unit_test(too_many_reads_are_refused),
		cmocka_unit_test(accepted_reads_are_answered_before_a_nak),
		cmocka_unit_test(misaligned_atomics_are_refused),
		cmocka_unit_test(drops_are_counted),
		cmocka_unit_test(refused_write_ends_its_receive),
		cmocka_unit_test(misaligned_atomics_are_posted),
		cmocka_unit_test(atomics_are_of_eight_bytes),
		cmocka_unit_test(operations_of_other_services),
	};

	cmocka_set_test_filter(getenv("SIM_TEST"));
	return cmocka_run_group_tests_name("sim_refused", tests, NULL, NULL);
}

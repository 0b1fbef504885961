/*
 * test_scripted.c - one behaviour of the protocol at a time
 *
 * Each test names what the specification says, drops or forges the packets
 * that bring it about, and looks at completions, events and memory.
 */
#include "sim.h"

#include "base/bytes.h"

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

	return roce_qp_modify(q->qp, &a, IBV_QP_STATE, NULL, NULL,
			      q->node->sim->now);
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
					NULL, NULL, 0), 0);
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
					&path, NULL, 0), 0);
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
					NULL, NULL, 0), 0);
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
							rc_init & ~bit, NULL,
							NULL, 0),
					 -EINVAL);
	assert_int_equal(roce_qp_modify(q->qp, &a, rc_init | IBV_QP_QKEY, NULL,
					NULL, 0), -EINVAL);
	a.port_num = 2;
	assert_int_equal(roce_qp_modify(q->qp, &a, rc_init, NULL, NULL, 0),
			 -EINVAL);
	a.port_num = 1;
	a.pkey_index = 1;
	assert_int_equal(roce_qp_modify(q->qp, &a, rc_init, NULL, NULL, 0),
			 -EINVAL);
	a.pkey_index = 0;
	assert_int_equal(roce_qp_state(q->qp), IBV_QPS_RESET);
	assert_int_equal(roce_qp_modify(q->qp, &a, rc_init, NULL, NULL, 0), 0);
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

		assert_int_equal(roce_rq_post(&sim->node[1].srq, &wr), 0);
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
	assert_int_equal(roce_rq_post(&sim->node[1].srq, &rr), 0);
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
	assert_int_equal(post_to(p.a, IBV_WR_ATOMIC_WRITE, 4, 8), -EINVAL);
	assert_int_equal(post_to(p.a, IBV_WR_ATOMIC_WRITE, 0, 16), -EINVAL);
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fetch_add_runs_once),
		cmocka_unit_test(one_nak_per_gap),
		cmocka_unit_test(lost_ack_is_given_again),
		cmocka_unit_test(read_resumes_in_the_middle),
		cmocka_unit_test(long_read_in_chunks),
		cmocka_unit_test(late_acks_are_no_congestion),
		cmocka_unit_test(dead_peer_exceeds_retries),
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
		cmocka_unit_test(flush_in_order),
		cmocka_unit_test(sqe_and_back),
		cmocka_unit_test(wrong_qkey_is_dropped),
		cmocka_unit_test(transitions_need_their_attributes),
		cmocka_unit_test(posting_limits),
		cmocka_unit_test(srq_serves_many),
		cmocka_unit_test(xrc_reaches_the_srq),
		cmocka_unit_test(atomic_write_is_checked),
		cmocka_unit_test(strangers_are_ignored),
		cmocka_unit_test(quirk_rxe_long_send),
	};

	cmocka_set_test_filter(getenv("SIM_TEST"));
	return cmocka_run_group_tests_name("sim_scripted", tests, NULL, NULL);
}

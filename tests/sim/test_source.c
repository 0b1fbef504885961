/*
 * test_source.c - payload that is read from the sender's memory, and what a
 * queue pair shows to those who read it
 *
 * They send within the host whatever SIM_WAY says.
 */
#include "scripted.h"

#include "base/bytes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- payload that cannot be read --------------------------------------- */

/* It comes again with its payload, at once: no timer had to run out. */
static void unreadable_payload_is_sent(void **state)
{
	static const enum ibv_wr_opcode ops[] = {
		IBV_WR_SEND,
		IBV_WR_RDMA_WRITE,
		IBV_WR_RDMA_READ,
	};

	(void)state;
	for (unsigned i = 0; i < ARRAY_SIZE(ops); i++) {
		struct pair p = host_pair();
		struct seen *w = watch(&p);
		uint64_t start = p.sim->now;

		p.sim->unreadable = 1;
		p.sim->read_error = -EAGAIN;
		sim_pattern(p.a->node->mem, 100000, 4);
		if (ops[i] == IBV_WR_RDMA_READ)
			sim_pattern(p.b->node->mem, 100000, 4);
		recv_into(p.b, 1 << 20, 100000);
		post_to(p.a, ops[i], 0, 100000);
		while (!p.a->send->n && p.sim->now < start + SIM_SEC)
			sim_run(p.sim, 10000);
		assert_true(p.sim->now - start < 4000000);
		expect(p.a->send, IBV_WC_SUCCESS);
		if (ops[i] == IBV_WR_SEND)
			expect(p.b->recv, IBV_WC_SUCCESS);
		assert_memory_equal(p.a->node->mem,
				    p.b->node->mem +
					    (ops[i] == IBV_WR_SEND) * (1 << 20),
				    100000);
		assert_int_equal(p.sim->reads, 1);
		/* One or two large ones, and then as on the wire. */
		assert_in_range(w->n, 98 + 3, 98 + 3 + 20);
		assert_int_equal(roce_qp_stats(p.a->qp)->timeouts, 0);
		sim_free(p.sim);
	}
}

/* Also when the answer before was that there is no receive. */
static void unreadable_behind_rnr(void **state)
{
	struct pair p = host_pair();
	uint64_t start = p.sim->now;

	(void)state;
	p.sim->unreadable = 1;
	p.sim->read_error = -EAGAIN;
	sim_pattern(p.a->node->mem, 100000, 4);
	post_to(p.a, IBV_WR_SEND, 0, 100000);
	sim_run(p.sim, 10000);
	assert_int_equal(roce_qp_stats(p.a->qp)->rnr_rx, 1);
	recv_into(p.b, 0, 100000);
	while (!p.a->send->n && p.sim->now < start + SIM_SEC)
		sim_run(p.sim, 10000);
	assert_true(p.sim->now - start < 4000000);
	expect(p.a->send, IBV_WC_SUCCESS);
	expect(p.b->recv, IBV_WC_SUCCESS);
	assert_memory_equal(p.a->node->mem, p.b->node->mem, 100000);
	assert_in_range(p.sim->reads, 1, 2);
	sim_free(p.sim);
}

/*
 * The owner of the payload has taken it back, or only its memory. That a
 * response's memory has gone ends the read, since nobody else will say so; all
 * else is lost, and comes again with its payload from a QP that still has it.
 */
static void payload_taken_back(void **state)
{
	static const enum ibv_wr_opcode ops[] = {
		IBV_WR_SEND,
		IBV_WR_RDMA_WRITE,
		IBV_WR_RDMA_READ,
	};

	(void)state;
	for (unsigned i = 0; i < 2 * ARRAY_SIZE(ops); i++) {
		const enum ibv_wr_opcode op = ops[i / 2];
		const int error = i % 2 ? -EACCES : -ESTALE;
		const bool refused = op == IBV_WR_RDMA_READ && i % 2;
		struct pair p = host_pair();

		p.sim->direct = 0;
		p.sim->unreadable = 1;
		p.sim->read_error = error;
		sim_pattern(p.a->node->mem, 100000, 4);
		recv_into(p.b, 1 << 20, 100000);
		recv_into(p.b, 1 << 21, 100000);
		post_to(p.a, op, 0, 100000);
		post_to(p.a, IBV_WR_SEND, 0, 8);
		settle(&p);
		expect(p.a->send,
		       refused ? IBV_WC_REM_ACCESS_ERR : IBV_WC_SUCCESS);
		expect(p.a->send,
		       refused ? IBV_WC_WR_FLUSH_ERR : IBV_WC_SUCCESS);
		assert_int_equal(roce_qp_state(p.a->qp),
				 refused ? IBV_QPS_ERR : IBV_QPS_RTS);
		assert_int_equal(p.a->events | p.b->events, 0);
		assert_true(p.sim->reads > 0);
		sim_free(p.sim);
	}
}

/* ---- payload that has become void -------------------------------------- */

static struct pair *at_hand; /* for in_read() */
static void (*then)(struct pair *p);
static size_t then_at;

static void read_hook(struct sim *s, size_t i)
{
	(void)s;
	if (i == then_at && then) {
		void (*fn)(struct pair * p) = then;

		then = NULL;
		fn(at_hand);
	}
}

static void a_to_err(struct pair *p)
{
	assert_int_equal(set_state(p->a, IBV_QPS_ERR), 0);
	memset(p->a->node->mem, 0x66, 100000);
}

static void b_to_err(struct pair *p)
{
	assert_int_equal(set_state(p->b, IBV_QPS_ERR), 0);
	memset(p->b->node->mem, 0x66, 100000);
}

static void a_to_reset(struct pair *p)
{
	assert_int_equal(set_state(p->a, IBV_QPS_RESET), 0);
	memset(p->a->node->mem, 0x66, 100000);
}

static void a_destroyed(struct pair *p)
{
	sim_qp_leave(p->a);
	memset(p->a->node->mem, 0x66, 100000);
}

static void a_key_killed(struct pair *p)
{
	keys_kill(&p->a->node->keys, (uint32_t)p->a->node->slot);
	memset(p->a->node->mem, 0x66, 100000);
}

/*
 * Between its packet's leaving and its arrival, or while it is being read, what
 * was sent becomes void. Nothing is received, whatever has been copied by then;
 * and before, nothing is copied.
 */
static void void_payload_is_not_received(void **state)
{
	static void (*const ends[])(struct pair * p) = {
		a_to_err,
		a_to_reset,
		a_destroyed,
		a_key_killed,
	};

	(void)state;
	for (unsigned i = 0; i < 3 * 2 * ARRAY_SIZE(ends); i++) {
		void (*end)(struct pair * p) = ends[i % ARRAY_SIZE(ends)];
		const bool write = i / ARRAY_SIZE(ends) % 2;
		const unsigned when = i / ARRAY_SIZE(ends) / 2;
		struct pair p = host_pair();
		uint8_t *to = p.b->node->mem + (1 << 20);

		at_hand = &p;
		p.sim->in_read = read_hook;
		then = when ? end : NULL;
		then_at = when - 1;
		sim_pattern(p.a->node->mem, 50000, 5);
		recv_into(p.b, 1 << 20, 50000);
		post(p.a, write ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_SEND, 0,
		     50000, remote(p.a, 1 << 20), p.b->node->rkey, 0);
		if (!when)
			end(&p);
		settle(&p);
		assert_null(then);
		assert_null(sim_poll(p.b->recv));
		for (uint32_t k = 0; k < 50000 && !when; k++)
			assert_int_equal(to[k], 0);
		/* The sender alone has failed, with its own error. */
		if (end == a_key_killed) {
			expect(p.a->send, IBV_WC_LOC_PROT_ERR);
			assert_int_equal(roce_qp_state(p.a->qp), IBV_QPS_ERR);
		} else if (end == a_to_err) {
			expect(p.a->send, IBV_WC_WR_FLUSH_ERR);
		}
		assert_null(sim_poll(p.a->send));
		assert_int_equal(roce_qp_state(p.b->qp), IBV_QPS_RTS);
		assert_int_equal(p.b->events & ~(1u << IBV_EVENT_COMM_EST), 0);
		set_state(p.b, IBV_QPS_ERR);
		expect(p.b->recv, IBV_WC_WR_FLUSH_ERR);
		assert_null(sim_poll(p.b->recv));
		sim_free(p.sim);
	}
}

/* The same for a response: the read does not complete with it. */
static void void_response_is_not_received(void **state)
{
	(void)state;
	for (int when = 0; when < 3; when++) {
		struct pair p = host_pair();

		at_hand = &p;
		p.sim->in_read = read_hook;
		sim_pattern(p.b->node->mem, 50000, 6);
		then = b_to_err;
		then_at = (size_t)(when - 1);
		post_to(p.a, IBV_WR_RDMA_READ, 0, 50000);
		if (!when) {
			sim_run(p.sim, 3000); /* the response is under way */
			assert_int_equal(p.sim->packets, 2);
			b_to_err(&p);
			then = NULL;
		}
		settle(&p);
		assert_null(then);
		expect(p.a->send, IBV_WC_RETRY_EXC_ERR);
		for (uint32_t k = 0; k < 50000 && !when; k++)
			assert_int_equal(p.a->node->mem[k], 0);
		sim_free(p.sim);
	}
}

/* The receiver's QP ends while it reads, or had ended: no trace of it. */
static void reader_that_ends(void **state)
{
	struct pair p = host_pair();

	(void)state;
	sim_pattern(p.a->node->mem, 50000, 7);
	recv_into(p.b, 1 << 20, 50000);
	post_to(p.a, IBV_WR_SEND, 0, 50000);
	set_state(p.b, IBV_QPS_ERR);
	settle(&p);
	expect(p.b->recv, IBV_WC_WR_FLUSH_ERR);
	expect(p.a->send, IBV_WC_RETRY_EXC_ERR);
	assert_int_equal(p.sim->reads, 0);
	assert_int_equal(p.b->node->mem[1 << 20], 0);
	sim_free(p.sim);
}

/* ---- how it is read ---------------------------------------------------- */

static void b_reads(struct pair *p, struct roce_hdr h, size_t len,
		    struct note *note)
{
	struct noting *s = malloc(sizeof(*s));
	struct roce_rx rx = {
		.h = h,
		.len = len,
		.host = true,
		.large = true,
		.path_hash = roce_path_hash(&p->a->node->gid, &p->b->node->gid),
		.source = &s->base,
	};

	*s = (struct noting){ { noting_read, sizeof(*s) }, some_data, note };
	memset(note, 0, offsetof(struct note, err));
	sim_pattern(some_data, sizeof(some_data), 8);
	rx.h.pkey = 0xffff;
	rx.h.dest_qpn = roce_qp_num(p->b->qp);
	roce_rx(p->b->qp, &rx, p->sim->now);
	free(s);
	sim_pull(p->b);
}

static uint32_t null_key(struct sim_node *n)
{
	const struct key_entry e = {
		.access = IBV_ACCESS_LOCAL_WRITE,
		.pd = 1,
		.kind = KEY_NULL,
		.length = UINT64_MAX,
	};
	int slot = keys_add(&n->keys, &e);

	assert_true(slot >= 0);
	return atomic_load(&n->keys.entry[slot].lkey);
}

/*
 * One call for all SGEs, and the last bytes by themselves, behind the others: a
 * program that spins on them finds the rest.
 */
static void read_in_one_call(void **state)
{
	struct sim_qp_opts qo = { .type = IBV_QPT_RC,
				  .cap = { 8, 8, 4, 4, 0 },
				  .sig_all = true };
	struct sim *sim = sim_new(1);
	struct pair p = { sim, sim_qp_new(sim, 0, &qo),
			  sim_qp_new(sim, 1, &qo) };
	uint8_t *m = p.b->node->mem;
	uint32_t lkey = p.b->node->lkey, null = null_key(p.b->node);
	struct ibv_sge sge[4] = { { (uintptr_t)m, 1000, lkey },
				  { (uintptr_t)m + 5000, 3, lkey },
				  { 0, 0, 0 },
				  { (uintptr_t)m + 9000, 3000, lkey } };
	struct ibv_recv_wr wr = { .sg_list = sge, .num_sge = 4 };
	struct roce_hdr h = { .opcode = ROCE_SEND_ONLY,
			      .psn = sim_conn_default.psn_a };
	struct note note = { 0 };

	(void)state;
	sim_connect(p.a, p.b, &sim_conn_default);
	assert_int_equal(sim_post_recv(p.b, &wr), 0);
	b_reads(&p, h, 3500, &note);
	expect(p.b->recv, IBV_WC_SUCCESS);
	assert_int_equal(note.calls, 1);
	assert_int_equal(note.n, 4);
	assert_ptr_equal(note.to[2].iov_base, m + 9000);
	assert_int_equal(note.to[2].iov_len, 3500 - 1003 - 8);
	assert_int_equal(note.to[3].iov_len, 8);
	assert_memory_equal(m, some_data, 1000);
	assert_memory_equal(m + 5000, some_data + 1000, 3);
	assert_memory_equal(m + 9000, some_data + 1003, 3500 - 1003);

	/* Where nothing is kept, nothing is read. */
	sge[1] = (struct ibv_sge){ 4096, 2000, null };
	memset(m, 0, 20000);
	assert_int_equal(sim_post_recv(p.b, &wr), 0);
	h.psn = psn_add(h.psn, 4);
	b_reads(&p, h, 4000, &note);
	expect(p.b->recv, IBV_WC_SUCCESS);
	assert_int_equal(note.calls, 2);
	assert_int_equal(note.offset[0], 0);
	assert_int_equal(note.offset[1], 3000);
	assert_memory_equal(m, some_data, 1000);
	assert_memory_equal(m + 9000, some_data + 3000, 1000);

	/* All keys are looked at before. */
	sge[1] = (struct ibv_sge){ (uintptr_t)m + 5000, 2000, lkey };
	sge[3].lkey ^= 1;
	memset(m, 0, 20000);
	assert_int_equal(sim_post_recv(p.b, &wr), 0);
	h.psn = psn_add(h.psn, 4);
	b_reads(&p, h, 4000, &note);
	expect(p.b->recv, IBV_WC_LOC_PROT_ERR);
	assert_int_equal(m[0], 0);
	assert_int_equal(roce_qp_state(p.b->qp), IBV_QPS_ERR);
	sim_free(sim);
}

/* Memory of the receiver that is gone fails its receive, as by any link. */
static void own_memory_that_is_gone(void **state)
{
	for (int write = 0; write < 2; write++) {
		struct pair p = host_pair();
		struct note note = { .err = -EFAULT };
		struct roce_hdr h = {
			.opcode = write ? ROCE_WRITE_ONLY : ROCE_SEND_ONLY,
			.psn = sim_conn_default.psn_a,
			.va = (uintptr_t)p.b->node->mem,
			.rkey = p.b->node->rkey,
			.dma_len = 5000,
		};
		struct seen *w = watch(&p);

		(void)state;
		recv_into(p.b, 0, 10000);
		b_reads(&p, h, 5000, &note);
		expect(p.b->recv,
		       write ? IBV_WC_WR_FLUSH_ERR : IBV_WC_LOC_PROT_ERR);
		assert_int_equal(roce_qp_state(p.b->qp), IBV_QPS_ERR);
		assert_int_equal(w->pkt[w->n - 1].h.syndrome,
				 ROCE_AETH_NAK |
					 (write ? ROCE_NAK_REMOTE_ACCESS :
						  ROCE_NAK_REMOTE_OPERATIONAL));
		sim_free(p.sim);
	}
}

/* ---- null regions ------------------------------------------------------ */

/* Zeros are no memory that another process could read: they are sent. */
static void zeros_of_a_null_region(void **state)
{
	struct pair p = host_pair();
	struct ibv_sge sge[2] = {
		{ (uintptr_t)p.a->node->mem, 10000, p.a->node->lkey },
		{ 0x1000, 60000, null_key(p.a->node) },
	};
	struct ibv_send_wr wr = {
		.opcode = IBV_WR_RDMA_WRITE,
		.sg_list = sge,
		.num_sge = 2,
		.wr.rdma = { remote(p.a, 0), p.b->node->rkey },
	};

	(void)state;
	sim_pattern(p.a->node->mem, 10000, 9);
	memset(p.b->node->mem, 0x55, 100000);
	assert_int_equal(sim_post_send(p.a, &wr), 0);
	settle(&p);
	expect(p.a->send, IBV_WC_SUCCESS);
	assert_memory_equal(p.a->node->mem, p.b->node->mem, 10000);
	for (uint32_t i = 10000; i < 70000; i++)
		assert_int_equal(p.b->node->mem[i], 0);
	assert_int_equal(p.b->node->mem[70000], 0x55);
	sim_free(p.sim);
}

/* ---- what others see of a QP ------------------------------------------- */

/* Whether the generation has changed since. */
static bool new_generation(const struct sim_qp *q)
{
	static uint32_t generation;
	uint32_t before = generation;

	generation = qp_public_get(&q->pub->generation);
	assert_int_not_equal(generation, 0);
	return generation != before;
}

static void public_part_is_true(void **state)
{
	struct pair p = host_pair();
	const struct qp_public *b = p.b->pub;

	(void)state;
	new_generation(p.b);
	assert_int_equal(qp_public_get(&b->state), IBV_QPS_RTS);
	assert_int_equal(qp_public_get(&b->qpn), roce_qp_num(p.b->qp));
	assert_int_equal(qp_public_get(&b->type), IBV_QPT_RC);
	assert_int_equal(qp_public_get(&b->pd), 1);
	assert_int_equal(qp_public_get(&b->dest_qpn), roce_qp_num(p.a->qp));
	assert_int_equal(qp_public_get(&b->mtu), 1024);
	assert_int_equal(qp_public_get(&b->rq_psn), sim_conn_default.psn_a);
	assert_int_equal(qp_public_get(&b->access), sim_conn_default.access);
	assert_int_equal(qp_public_get(&b->dest_rd_atomic),
			 sim_conn_default.dest_rd_atomic);
	assert_true(qp_public_get(&b->established));
	assert_int_equal(qp_public_get(&b->path_hash),
			 roce_path_hash(&p.a->node->gid, &p.b->node->gid));
	assert_int_not_equal(qp_public_get(&b->path_hash),
			     qp_public_get(&p.a->pub->path_hash));

	post_to(p.b, IBV_WR_RDMA_WRITE, 0, 100);
	settle(&p);
	set_state(p.b, IBV_QPS_SQD);
	set_state(p.b, IBV_QPS_RTS);
	assert_false(new_generation(p.b));
	set_state(p.b, IBV_QPS_ERR);
	assert_int_equal(qp_public_get(&b->state), IBV_QPS_ERR);
	assert_true(new_generation(p.b));
	set_state(p.b, IBV_QPS_RESET);
	assert_int_equal(qp_public_get(&b->state), IBV_QPS_RESET);
	assert_true(new_generation(p.b));
	assert_false(qp_public_get(&b->established));
	sim_qp_leave(p.b);
	assert_true(new_generation(p.b));
	sim_free(p.sim);
}

/* Before a program is told of a failure, what was sent is void. */
static uint32_t generation_at_completion;

static int note_generation(struct qp *qp, void *cq, const struct ibv_wc *wc,
			   bool solicited)
{
	(void)cq;
	(void)wc;
	(void)solicited;
	generation_at_completion = qp_public_get(&qp->pub->generation);
	return 0;
}

static void void_before_it_is_told(void **state)
{
	struct pair p = host_pair();
	uint32_t generation = qp_public_get(&p.a->pub->generation);

	(void)state;
	p.a->node->env.base.complete = note_generation;
	post(p.a, IBV_WR_RDMA_WRITE, 0, 5000, 0, 77, 0);
	settle(&p);
	assert_int_equal(roce_qp_state(p.a->qp), IBV_QPS_ERR);
	assert_int_not_equal(generation_at_completion, 0);
	assert_int_not_equal(generation_at_completion, generation);
	sim_free(p.sim);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(unreadable_payload_is_sent),
		cmocka_unit_test(unreadable_behind_rnr),
		cmocka_unit_test(payload_taken_back),
		cmocka_unit_test(void_payload_is_not_received),
		cmocka_unit_test(void_response_is_not_received),
		cmocka_unit_test(reader_that_ends),
		cmocka_unit_test(read_in_one_call),
		cmocka_unit_test(own_memory_that_is_gone),
		cmocka_unit_test(zeros_of_a_null_region),
		cmocka_unit_test(public_part_is_true),
		cmocka_unit_test(void_before_it_is_told),
	};

	cmocka_set_test_filter(getenv("SIM_TEST"));
	return cmocka_run_group_tests_name("sim_source", tests, NULL, NULL);
}

/*
 * test_direct.c - requests that need no packets: when they are carried out by
 * their initiator, when they are not, and that nobody can tell the difference
 * by anything but the packets
 */
#include "scripted.h"

#include "sim_host.h"

#include "roce/roce_internal.h"

#include <stdlib.h>
#include <string.h>

static struct pair direct_pair(void)
{
	struct pair p = pair_new(IBV_QPT_RC);

	p.sim->direct = 1;
	memset(p.a->node->mem, 0, 65536);
	for (uint32_t i = 0; i < 65536; i++)
		p.b->node->mem[i] = (uint8_t)(i * 13 + 5);
	return p;
}

static uint64_t direct(const struct sim_qp *q)
{
	return roce_qp_stats(q->qp)->direct;
}

static uint64_t *word(struct sim_qp *q, uint32_t off)
{
	return (uint64_t *)(void *)(q->node->mem + off);
}

static bool not_read;

static bool still_unread(struct qp *qp, uint64_t mark[2])
{
	(void)qp;
	assert_int_equal(mark[0], 0); /* all that has been sent is meant */
	return not_read;
}

/* UC hears of nothing that arrives: what is sent must have been read before. */
static void uc_writes(void **state)
{
	struct pair p = pair_new(IBV_QPT_UC);

	(void)state;
	p.sim->direct = 1;
	p.sim->node[0].env.unread = still_unread;
	memset(p.a->node->mem, 0xee, 3000);
	memset(p.b->node->mem, 0, 3000);
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, 3000);
	assert_memory_equal(p.b->node->mem, p.a->node->mem, 3000);
	assert_int_equal(direct(p.a), 1);

	/* A message that is on its way is not overtaken, */
	recv_into(p.b, 8192, 8);
	post_to(p.a, IBV_WR_SEND, 0, 8);
	not_read = true;
	post_to(p.a, IBV_WR_RDMA_WRITE, 4096, 8);
	assert_int_equal(direct(p.a), 1);
	settle(&p);
	/* and one that has been read is not. */
	not_read = false;
	post_to(p.a, IBV_WR_RDMA_WRITE, 4096, 8);
	assert_int_equal(direct(p.a), 2);
	for (int i = 0; i < 4; i++)
		expect(p.a->send, IBV_WC_SUCCESS);
	expect(p.b->recv, IBV_WC_SUCCESS);
	/* The PSNs go on where they were. */
	recv_into(p.b, 8192, 8);
	post_to(p.a, IBV_WR_SEND, 0, 8);
	settle(&p);
	expect(p.b->recv, IBV_WC_SUCCESS);
	sim_free(p.sim);
}

static void all_kinds(void **state)
{
	struct pair p = direct_pair();
	struct ibv_sge sge = { (uintptr_t)p.a->node->mem, 8, p.a->node->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.send_flags = IBV_SEND_SIGNALED,
	};

	(void)state;
	post_to(p.a, IBV_WR_RDMA_READ, 0, 5000);
	assert_memory_equal(p.a->node->mem, p.b->node->mem, 5000);
	memset(p.a->node->mem, 0xee, 3000);
	post_to(p.a, IBV_WR_RDMA_WRITE, 100, 2000);
	assert_memory_equal(p.b->node->mem + 100, p.a->node->mem + 100, 2000);
	assert_int_not_equal(p.b->node->mem[99], 0xee);
	assert_int_not_equal(p.b->node->mem[2100], 0xee);
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, 0);
	post_to(p.a, IBV_WR_RDMA_READ, 0, 0);

	*word(p.b, 64) = 10;
	wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
	wr.wr.atomic.remote_addr = remote(p.a, 64);
	wr.wr.atomic.rkey = p.b->node->rkey;
	wr.wr.atomic.compare_add = 5;
	assert_int_equal(sim_post_send(p.a, &wr), 0);
	assert_int_equal(*word(p.b, 64), 15);
	assert_int_equal(*word(p.a, 0), 10);
	wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
	wr.wr.atomic.compare_add = 14;
	wr.wr.atomic.swap = 99;
	assert_int_equal(sim_post_send(p.a, &wr), 0);
	assert_int_equal(*word(p.b, 64), 15);
	assert_int_equal(*word(p.a, 0), 15);
	wr.wr.atomic.compare_add = 15;
	assert_int_equal(sim_post_send(p.a, &wr), 0);
	assert_int_equal(*word(p.b, 64), 99);
	*word(p.a, 0) = 0x1234567890;
	post_to(p.a, IBV_WR_ATOMIC_WRITE, 0, 8);
	assert_int_equal(*word(p.b, 0), 0x1234567890);

	for (int i = 0; i < 8; i++)
		expect(p.a->send, IBV_WC_SUCCESS);
	assert_null(sim_poll(p.a->send));
	assert_int_equal(direct(p.a), 8);
	assert_int_equal(p.sim->packets, 0);
	assert_int_equal(p.b->events, 0);
	sim_free(p.sim);
}

/* What is on its way comes first; a WQE posted behind it goes as a packet. */
static void in_turn(void **state)
{
	struct pair p = direct_pair();

	(void)state;
	recv_into(p.b, 0, 100);
	post_to(p.a, IBV_WR_SEND, 0, 100);
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, 8);
	assert_null(sim_poll(p.a->send));
	assert_int_equal(direct(p.a), 0);
	settle(&p);
	expect(p.a->send, IBV_WC_SUCCESS);
	expect(p.a->send, IBV_WC_SUCCESS);
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, 8);
	assert_int_equal(direct(p.a), 1);
	expect(p.a->send, IBV_WC_SUCCESS);
	/* And packets go on where they were. */
	recv_into(p.b, 0, 100);
	post_to(p.a, IBV_WR_SEND, 0, 100);
	settle(&p);
	expect(p.a->send, IBV_WC_SUCCESS);
	assert_int_equal(roce_qp_stats(p.a->qp)->retransmits, 0);
	sim_free(p.sim);
}

/* Posted together: those before the first that needs packets. */
static void in_lists(void **state)
{
	struct pair p = direct_pair();
	struct ibv_sge sge = { (uintptr_t)p.a->node->mem, 3000,
			       p.a->node->lkey };
	static const enum ibv_wr_opcode ops[] = {
		IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,  IBV_WR_SEND,
		IBV_WR_RDMA_READ,  IBV_WR_RDMA_WRITE,
	};

	(void)state;
	recv_into(p.b, 0, 3000);
	for (size_t i = 0; i < ARRAY_SIZE(ops); i++) {
		struct ibv_send_wr wr = {
			.wr_id = i,
			.sg_list = &sge,
			.num_sge = 1,
			.opcode = ops[i],
			.send_flags = IBV_SEND_SIGNALED,
			.wr.rdma.remote_addr = remote(p.a, 0),
			.wr.rdma.rkey = p.b->node->rkey,
		};

		assert_int_equal(roce_post_send(p.a->qp, &wr, NULL), 0);
	}
	sim_direct(p.a);
	sim_pull(p.a);
	assert_int_equal(direct(p.a), 2);
	assert_int_equal(p.a->send->n, 2);
	settle(&p);
	for (size_t i = 0; i < ARRAY_SIZE(ops); i++) {
		const struct ibv_wc *wc = sim_poll(p.a->send);

		assert_non_null(wc);
		assert_int_equal(wc->status, IBV_WC_SUCCESS);
		assert_int_equal(wc->wr_id, i);
	}
	assert_int_equal(roce_qp_stats(p.a->qp)->retransmits, 0);
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, 8);
	assert_int_equal(direct(p.a), 3);
	sim_free(p.sim);
}

/* Behind others of its kind a request waits, rather than follow them for ever. */
static void begins_under_load(void **state)
{
	struct pair p = direct_pair();

	(void)state;
	p.sim->direct = 0;
	post_to(p.a, IBV_WR_RDMA_READ, 0, 100);
	p.sim->direct = 1;
	for (uint32_t i = 1; i < 10; i++)
		post_to(p.a, i % 2 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ,
			i * 100, 100);
	assert_int_equal(direct(p.a), 0);
	settle(&p);
	assert_int_equal(direct(p.a), 9);
	for (uint32_t i = 0; i < 10; i++)
		expect(p.a->send, IBV_WC_SUCCESS);
	sim_free(p.sim);
}

/* Small ones in numbers are sent, with a long one between them in its turn. */
static void in_numbers(void **state)
{
	struct pair p = direct_pair();

	(void)state;
	p.sim->many = 1;
	for (uint32_t i = 0; i < 9; i++) {
		*word(p.a, i * 64) = i + 1;
		post_to(p.a, IBV_WR_RDMA_WRITE, i * 64, 8);
	}
	post_to(p.a, IBV_WR_RDMA_WRITE, 8192, 5000);
	post_to(p.a, IBV_WR_RDMA_READ, 30000, 1000);
	assert_int_equal(direct(p.a), 0);
	settle(&p);
	assert_int_equal(direct(p.a), 1);
	for (uint32_t i = 0; i < 9; i++)
		assert_int_equal(*word(p.b, i * 64), i + 1);
	assert_memory_equal(p.b->node->mem + 8192, p.a->node->mem + 8192, 5000);
	assert_memory_equal(p.b->node->mem + 30000, p.a->node->mem + 30000,
			    1000);
	for (uint32_t i = 0; i < 11; i++)
		expect(p.a->send, IBV_WC_SUCCESS);
	p.sim->many = 0;
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, 8);
	assert_int_equal(direct(p.a), 2);
	expect(p.a->send, IBV_WC_SUCCESS);
	sim_free(p.sim);
}

/* A link that takes a part of a message, which is acknowledged: nothing is on
 * its way then, but the rest of the message has to follow. */
static void not_in_the_middle_of_a_message(void **state)
{
	struct pair p = direct_pair();
	uint64_t in_middle = 0;

	(void)state;
	p.sim->way[0] = SIM_REF; /* packets of an MTU */
	for (int i = 0; i < 300; i++) {
		const struct roce_requester *r = &p.a->qp->req;

		p.sim->direct = 0;
		p.sim->link.busy = 1;
		post_to(p.a, IBV_WR_RDMA_WRITE, 0, 20000);
		for (int k = 0; k < 10000 && r->una != r->end_psn; k++)
			sim_run(p.sim, 1000);
		in_middle += r->una == r->end_psn &&
			     p.a->qp->base.sq.head != p.a->qp->base.sq.tail;
		p.sim->link.busy = 0;
		p.sim->direct = 1;
		post_to(p.a, IBV_WR_RDMA_WRITE, 0, 8);
		settle(&p);
		expect(p.a->send, IBV_WC_SUCCESS);
		expect(p.a->send, IBV_WC_SUCCESS);
		recv_into(p.b, 0, 3000);
		post_to(p.a, IBV_WR_SEND, 0, 3000);
		settle(&p);
		expect(p.a->send, IBV_WC_SUCCESS);
		expect(p.b->recv, IBV_WC_SUCCESS);
	}
	assert_true(in_middle > 0);
	sim_free(p.sim);
}

/* Whatever of the other end does not fit: packets, and what they lead to. */
static void not_when_in_doubt(void **state)
{
	struct sim_conn_opts co = sim_conn_default;
	struct pair p;
	struct qp_public *pub;

	(void)state;
	for (int i = 0; i < 8; i++) {
		_Atomic uint32_t *field;
		uint32_t was;

		p = direct_pair();
		pub = p.b->pub;
		field = i == 0 ? &pub->state :
			i == 1 ? &pub->qpn :
			i == 2 ? &pub->dest_qpn :
			i == 3 ? &pub->rq_psn :
			i == 4 ? &pub->mtu :
			i == 5 ? &pub->path_hash :
			i == 6 ? &pub->type :
				 &pub->established;
		was = qp_public_get(field);
		qp_public_set(field, i == 0 ? IBV_QPS_INIT : was ^ 1);
		post_to(p.a, IBV_WR_RDMA_WRITE, 0, 8);
		assert_int_equal(direct(p.a), 0);
		qp_public_set(field, was);
		settle(&p);
		expect(p.a->send, IBV_WC_SUCCESS);
		post_to(p.a, IBV_WR_RDMA_WRITE, 0, 8);
		assert_int_equal(direct(p.a), 1);
		/* Another QP with the same number, and the same of all. */
		qp_public_set(&pub->generation,
			      qp_public_get(&pub->generation) + 1);
		post_to(p.a, IBV_WR_RDMA_WRITE, 0, 8);
		assert_int_equal(direct(p.a), 1);
		sim_free(p.sim);
	}
	co.dest_rd_atomic = 0;
	p = pair_opts(IBV_QPT_RC, &co);
	p.sim->direct = 1;
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, 8);
	assert_int_equal(direct(p.a), 1);
	post_to(p.a, IBV_WR_RDMA_READ, 0, 8);
	assert_int_equal(direct(p.a), 1);
	settle(&p);
	expect(p.a->send, IBV_WC_SUCCESS);
	expect(p.a->send, IBV_WC_REM_INV_REQ_ERR);
	sim_free(p.sim);
}

/* The first packet that comes to a QP in RTR raises an event there. */
static void established_by_a_packet(void **state)
{
	struct pair p = direct_pair();
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr unused;
	struct roce_path path = sim_path(p.b->node, p.a->node);
	const int rtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
			IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;

	(void)state;
	roce_qp_query(p.b->qp, &a, &unused);
	assert_int_equal(set_state(p.b, IBV_QPS_RESET), 0);
	a.qp_state = IBV_QPS_INIT;
	a.port_num = 1;
	assert_int_equal(roce_qp_modify(p.b->qp, &a,
					IBV_QP_STATE | IBV_QP_PKEY_INDEX |
						IBV_QP_PORT |
						IBV_QP_ACCESS_FLAGS,
					NULL),
			 0);
	a.qp_state = IBV_QPS_RTR;
	a.rq_psn = sim_conn_default.psn_a;
	assert_int_equal(roce_qp_modify(p.b->qp, &a, rtr, &path), 0);
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, 8);
	assert_int_equal(direct(p.a), 0);
	settle(&p);
	expect(p.a->send, IBV_WC_SUCCESS);
	assert_int_equal(p.b->events, 1 << IBV_EVENT_COMM_EST);
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, 8);
	assert_int_equal(direct(p.a), 1);
	sim_free(p.sim);
}

/* A CQ without room, local memory that may not be written: as with packets. */
static int cq_full(struct qp *qp, void *cq, const struct ibv_wc *wc, bool sol)
{
	(void)qp;
	(void)cq;
	(void)wc;
	(void)sol;
	return -ENOSPC;
}

static void local_trouble(void **state)
{
	struct pair p = direct_pair();

	(void)state;
	p.a->node->env.base.complete = cq_full;
	post_to(p.a, IBV_WR_RDMA_WRITE, 0, 8);
	assert_int_equal(roce_qp_state(p.a->qp), IBV_QPS_ERR);
	assert_int_equal(p.a->events, 1 << IBV_EVENT_QP_FATAL);
	sim_free(p.sim);

	p = direct_pair();
	*word(p.b, 0) = 5;
	p.a->node->keys.entry[p.a->node->slot].access = IBV_ACCESS_REMOTE_READ;
	post_to(p.a, IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 8);
	assert_int_equal(direct(p.a), 0);
	settle(&p);
	expect(p.a->send, IBV_WC_LOC_PROT_ERR);
	sim_free(p.sim);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(all_kinds),
		cmocka_unit_test(uc_writes),
		cmocka_unit_test(in_turn),
		cmocka_unit_test(in_lists),
		cmocka_unit_test(begins_under_load),
		cmocka_unit_test(in_numbers),
		cmocka_unit_test(not_in_the_middle_of_a_message),
		cmocka_unit_test(not_when_in_doubt),
		cmocka_unit_test(established_by_a_packet),
		cmocka_unit_test(local_trouble),
	};

	cmocka_set_test_filter(getenv("SIM_TEST"));
	return cmocka_run_group_tests_name("sim_direct", tests, NULL, NULL);
}

/*
 * reach.h - for tests of memory: what a peer can reach by a key
 */
#ifndef SOFTHCA_TESTS_UNIT_REACH_H
#define SOFTHCA_TESTS_UNIT_REACH_H

#include "pair.h"

#include <unistd.h>

#define PAGE ((uint32_t)sysconf(_SC_PAGESIZE))

static inline uint32_t try_write(struct end *e, uint32_t rkey, uint64_t addr,
				 uint32_t len)
{
	struct ibv_send_wr wr = {
		.wr_id = 77,
		.opcode = IBV_WR_RDMA_WRITE,
		.wr.rdma = { .remote_addr = addr, .rkey = rkey },
	};
	struct ibv_wc wc;

	assert_int_equal(try_send(e, &wr, 0, len), 0);
	wc = wait_wc(e->cq);
	assert_int_equal(wc.wr_id, 77);
	return wc.status;
}

static inline uint32_t try_read(struct end *e, uint32_t rkey, uint64_t addr,
				uint32_t len)
{
	struct ibv_send_wr wr = {
		.wr_id = 78,
		.opcode = IBV_WR_RDMA_READ,
		.wr.rdma = { .remote_addr = addr, .rkey = rkey },
	};

	assert_int_equal(try_send(e, &wr, 0, len), 0);
	return wait_wc(e->cq).status;
}

static inline void reset(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };

	assert_int_equal(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
}

/* After an error, which ends the QPs of both sides. */
static inline void reconnect(struct end *a, struct end *b)
{
	struct ibv_wc wc;

	reset(a->qp);
	reset(b->qp);
	while (ibv_poll_cq(a->cq, 1, &wc) > 0 || ibv_poll_cq(b->cq, 1, &wc) > 0)
		;
	connect_to(a->qp, b->qp->qp_num);
	connect_to(b->qp, a->qp->qp_num);
}

#endif

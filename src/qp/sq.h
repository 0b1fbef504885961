/*
 * sq.h - a send queue: a ring of send WQEs
 *
 * A slot is a WQE of the transport, which begins with a struct qp_wqe, and
 * behind it the SGEs or the inline data. head, nxt and tail run freely and are
 * masked on use: [head, nxt) is on its way, [nxt, tail) waits to be sent.
 */
#ifndef SOFTHCA_QP_SQ_H
#define SOFTHCA_QP_SQ_H

#include "env.h"
#include "opcode.h"

/* What every transport keeps of a send work request: what few have comes first,
 * so that the rest is beside what the transport adds, and the SGEs. */
struct qp_wqe {
	union {
		struct { /* atomics */
			uint64_t compare_add;
			uint64_t swap;
		};
		struct qp_bind bind;
	};
	uint64_t wr_id;
	uint64_t remote_addr;
	uint32_t rkey;
	__be32 imm; /* or the rkey to invalidate, host order */
	uint32_t length;
	uint32_t num_sge;
	uint16_t flags; /* enum ibv_send_flags */
	uint8_t opcode; /* enum ibv_wr_opcode */
	uint8_t status; /* enum ibv_wc_status found before its turn came */
	bool local; /* no packets: LOCAL_INV, BIND_MW */
	bool executed; /* local operation done */
};

/* A cache line, with the hints of struct qp. */
struct qp_sq {
	uint32_t depth; /* power of two */
	uint32_t max_wr;
	uint32_t max_sge;
	uint32_t max_inline;
	uint32_t head; /* oldest WQE not completed */
	uint32_t nxt; /* next WQE to transmit (or go on transmitting) */
	uint32_t tail; /* next free slot */
	uint32_t data; /* where in a slot the SGEs or inline data begin */
	size_t stride;
	uint8_t *ring;
};

static inline struct qp_wqe *qp_sq_slot(const struct qp_sq *sq, uint32_t i)
{
	return (struct qp_wqe *)(void *)(sq->ring +
					 (size_t)(i & (sq->depth - 1)) *
						 sq->stride);
}

static inline uint8_t *qp_wqe_data(const struct qp_sq *sq, struct qp_wqe *w)
{
	return (uint8_t *)w + sq->data;
}

static inline struct ibv_sge *qp_wqe_sge(const struct qp_sq *sq,
					 struct qp_wqe *w)
{
	return (struct ibv_sge *)(void *)qp_wqe_data(sq, w);
}

/* What the region at the other end is to allow: of writes, reads and atomics. */
static inline uint32_t qp_wqe_access(const struct qp_wqe *w)
{
	switch (w->opcode) {
	case IBV_WR_RDMA_READ:
		return IBV_ACCESS_REMOTE_READ;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		return IBV_ACCESS_REMOTE_ATOMIC;
	default:
		return IBV_ACCESS_REMOTE_WRITE;
	}
}

/* Requests that use responder resources and are answered with data. */
static inline bool qp_wqe_has_response(const struct qp_wqe *w)
{
	return QP_OPCODES_ANSWERED & 1u << w->opcode;
}

/* Atomic writes: what is sent is in swap. */
static inline bool qp_wqe_has_value(const struct qp_wqe *w)
{
	return QP_OPCODES_VALUE & 1u << w->opcode;
}

#endif

/*
 * public.h - what a queue pair shows to other processes of the host
 *
 * It lies in memory that they may read at any time, so each field is atomic,
 * and whoever uses several reads generation before and after. The QP itself
 * never reads it.
 */
#ifndef SOFTHCA_QP_PUBLIC_H
#define SOFTHCA_QP_PUBLIC_H

#include <stdatomic.h>
#include <stdint.h>

struct qp_public {
	/*
	 * Changes when what was posted, or may still be under way, becomes
	 * void: the QP goes to RESET or ERR, or is destroyed. Never 0 while
	 * there is a QP.
	 */
	_Atomic uint32_t generation;
	_Atomic uint32_t state; /* enum ibv_qp_state; written after the rest */
	_Atomic uint32_t qpn; /* on the wire */
	_Atomic uint32_t type; /* enum ibv_qp_type */
	_Atomic uint32_t pd;
	_Atomic uint32_t access; /* qp_access_flags */
	/* Of the connection, from RTR on. */
	_Atomic uint32_t dest_qpn;
	_Atomic uint32_t mtu; /* bytes */
	_Atomic uint32_t rq_psn; /* the first that it expected */
	_Atomic uint32_t path_hash; /* roce_path_hash() of what it receives */
	_Atomic uint32_t dest_rd_atomic; /* max_dest_rd_atomic */
	_Atomic uint32_t established; /* its peer has been heard, or RTS */
	/* When the program last posted to it, or allowed it to go on, in ns of
	 * CLOCK_MONOTONIC; 0: not said. */
	_Atomic uint64_t posted_ns;
	_Atomic uint32_t
		named; /* its number for its program, and in its keys */
	uint32_t unused;
};

_Static_assert(sizeof(struct qp_public) == 64, "one cache line");

static inline void qp_public_set(_Atomic uint32_t *field, uint32_t value)
{
	atomic_store_explicit(field, value, memory_order_relaxed);
}

static inline uint32_t qp_public_get(const _Atomic uint32_t *field)
{
	return atomic_load_explicit(field, memory_order_relaxed);
}

#endif

/*
 * env.h - the world as the protocol core sees it
 *
 * The core owns queues of work requests and the protocol's state. It reaches
 * memory through keys, and everything else through the functions below, which
 * its user supplies: src/objects for programs, tests/sim for simulations.
 * They are called with the QP's lock held, may take the lock of a CQ or of an
 * SRQ, and must not call back into the QP.
 */
#ifndef SOFTHCA_ROCE_ENV_H
#define SOFTHCA_ROCE_ENV_H

#include "keys.h"

#include <infiniband/verbs.h>

struct roce_qp;
struct roce_recv;

struct roce_env {
	struct keys *keys;

	/*
	 * Appends *wc to a completion queue (the send_cq or recv_cq given to
	 * roce_qp_init); solicited counts for events armed with solicited_only.
	 * Returns 0, or -ENOSPC when the queue is full: its user raises
	 * IBV_EVENT_CQ_ERR then, and the core moves the QP to ERR.
	 */
	int (*complete)(struct roce_qp *qp, void *cq, const struct ibv_wc *wc,
			bool solicited);

	/* Takes the oldest WQE of a shared receive queue; false: empty. */
	bool (*srq_take)(struct roce_qp *qp, void *srq, struct roce_recv *out);

	/*
	 * XRC: takes a WQE of the SRQ with this number, and says where it
	 * completes (out->cq). -ENOENT: no such SRQ in the QP's domain;
	 * -EAGAIN: empty. NULL: no XRC here.
	 */
	int (*xrc_srq_take)(struct roce_qp *qp, uint32_t srqn,
			    struct roce_recv *out);

	/*
	 * Remote or local invalidation of a memory window's or region's rkey,
	 * and binding of a type 2 window. 0 or -errno: -EACCES when the key is
	 * not one that this QP may invalidate or bind. NULL: not supported.
	 */
	int (*invalidate)(struct roce_qp *qp, uint32_t rkey);
	int (*bind_mw)(struct roce_qp *qp, struct ibv_mw *mw, uint32_t rkey,
		       const struct ibv_mw_bind_info *bind);

	/* An affiliated asynchronous event of this QP. */
	void (*event)(struct roce_qp *qp, enum ibv_event_type type);

	/*
	 * Says in words what is wrong, just before the completion or event
	 * that tells the program in a code. NULL: nobody listens.
	 */
	void (*explain)(struct roce_qp *qp, const char *fmt, ...)
		__attribute__((format(printf, 2, 3)));
};

#endif

/*
 * env.h - the world as a queue pair of any transport sees it
 *
 * A QP's core owns queues of work requests and the protocol's state. It reaches
 * memory through keys, and everything else through the functions below, which
 * its user supplies: src/process for programs, tests/sim for simulations.
 * They are called with the QP's lock held, may take the lock of a CQ or of an
 * SRQ, and must not call back into the QP. What one transport alone asks for is
 * in a struct of its own that begins with this one (roce/env.h).
 */
#ifndef SOFTHCA_QP_ENV_H
#define SOFTHCA_QP_ENV_H

#include "keys.h"
#include "refused.h"

#include "hooks/check.h"

#include <infiniband/verbs.h>

struct qp;
struct qp_direct_env;
struct qp_recv;
struct qp_wqe;

/* A bind: keys rather than pointers, which a program may have freed since. */
struct qp_bind {
	uint32_t rkey; /* the window's from now on; its index says which */
	uint32_t lkey; /* of the region */
	uint32_t access; /* enum ibv_access_flags */
	uint64_t addr;
	uint64_t length; /* 0: unbind */
};

/* A part of a message, or all. */
struct qp_change {
	enum { QP_CHANGE_WRITE, QP_CHANGE_ADD, QP_CHANGE_SWAP } kind;
	void *p;
	size_t len;
	const void *data; /* of a write; NULL: it is still with its sender */
	bool first, last;
};

struct qp_env {
	struct keys *keys;

	/*
	 * Appends *wc to a completion queue (the send_cq or recv_cq given to
	 * qp_init); solicited counts for events armed with solicited_only.
	 * Returns 0, or -ENOSPC when the queue is full: the environment
	 * raises IBV_EVENT_CQ_ERR then, and the core moves the QP to ERR.
	 */
	int (*complete)(struct qp *qp, void *cq, const struct ibv_wc *wc,
			bool solicited);

	/* Takes the oldest WQE of a shared receive queue: qp_rq_take(). */
	int (*srq_take)(struct qp *qp, void *srq, uint64_t room,
			struct qp_recv *out);

	/*
	 * Remote or local invalidation of a type 2 memory window's rkey, and
	 * binding of a window. 0 or -errno: -EACCES when the key is not one
	 * that this QP may invalidate or bind. NULL: not supported. They may
	 * wait for others' references to a key.
	 */
	int (*invalidate)(struct qp *qp, uint32_t rkey);
	int (*bind_mw)(struct qp *qp, const struct qp_bind *bind);

	/*
	 * Runs fn(arg), which reads or writes memory of a program in
	 * [p, p + len). -EFAULT: some of it is not there (any more). NULL: it
	 * always is.
	 */
	int (*guarded)(void (*fn)(void *), void *arg, const void *p,
		       size_t len);
	/* store_tail_last() (base/store_tail.h) likewise; p, dst or src, is a
	 * program's. */
	int (*copy)(void *dst, const void *src, size_t len, const void *p);

	/*
	 * Memory of regions with IBV_ACCESS_ON_DEMAND need not be there: makes
	 * [p, p + len) present, to be read or to be written, or copies to it
	 * without a fault. 0, or -EFAULT: no such memory, or not writable.
	 */
	int (*odp_touch)(const void *p, size_t len, bool write);
	int (*odp_store)(void *dst, const void *src, size_t len);

	/*
	 * Atomic operations in memory of ours that others carry out at the same
	 * time (direct.h) exclude each other. -EBUSY: not now. NULL: there are
	 * no others.
	 */
	int (*atomic_lock)(struct qp *qp, const void *p);
	void (*atomic_unlock)(struct qp *qp, const void *p);

	/* One-sided operations are carried out in the peer's memory, where that
	 * is possible. NULL: never. */
	const struct qp_direct_env *direct;

	/* An affiliated asynchronous event of this QP. */
	void (*event)(struct qp *qp, enum ibv_event_type type);

	/* A message is about to come into a receive's memory. NULL: nobody
	 * asks. */
	void (*landing)(struct qp *qp, const struct qp_recv *recv);

	/* A part, or the first, of what a read or an atomic has asked for is
	 * about to come to its memory. NULL: nobody asks. */
	void (*arriving)(struct qp *qp, struct qp_wqe *w, bool first);

	/*
	 * The peer's write or atomic is about to change memory, and has, or has
	 * not been able to. The second is always called after the first. NULL,
	 * both: nobody asks.
	 */
	void (*changing)(struct qp *qp, const struct qp_change *c);
	void (*changed)(struct qp *qp, bool done);

	/* What was posted, and what the peer was doing, is void. NULL: nobody
	 * asks. */
	void (*voided)(struct qp *qp);

	/* The peer's request, or an SGE, names what a program must have
	 * mistaken. NULL: nobody asks. */
	void (*refused)(struct qp *qp, enum check_key what,
			const struct key_ask *ask);

	/*
	 * Reports in words what is wrong, just before the completion or event
	 * that reports it as a code. NULL: no reports are wanted.
	 */
	void (*explain)(struct qp *qp, const char *fmt, ...)
		__attribute__((format(printf, 2, 3)));
};

#endif

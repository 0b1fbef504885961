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

#include "qp/keys.h"

#include <infiniband/verbs.h>

struct roce_qp;
struct qp_recv;

/* Why a packet for a QP did nothing there. */
enum roce_drop {
	ROCE_DROP_OPCODE,    /* not one of the QP's service, or not expected */
	ROCE_DROP_HEADER,    /* transport version or P_Key */
	ROCE_DROP_STATE,     /* the QP does not receive (yet, or any more) */
	ROCE_DROP_ADDRESS,   /* the sender is not the QP's peer */
	ROCE_DROP_DUPLICATE, /* done before; a request was answered again */
	ROCE_DROP_GAP,	     /* something before it is missing */
	ROCE_DROP_REFUSED,   /* RC: a NAK says why; UC: its message is lost */
	ROCE_DROP_QKEY,	     /* UD: wrong Q_Key, or longer than the MTU or
			      * the receive */
	ROCE_DROP_NO_RECV,   /* no receive was posted; RC: RNR NAK */
	ROCE_DROPS
};

/* A bind: keys rather than pointers, which a program may have freed since. */
struct qp_bind {
	uint32_t rkey;	 /* the window's from now on; its index says which */
	uint32_t lkey;	 /* of the region */
	uint32_t access; /* enum ibv_access_flags */
	uint64_t addr;
	uint64_t length; /* 0: unbind */
};

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

	/* Takes the oldest WQE of a shared receive queue: qp_rq_take(). */
	int (*srq_take)(struct roce_qp *qp, void *srq, uint64_t room,
			struct qp_recv *out);

	/*
	 * XRC: takes a WQE of the SRQ with this number, and says where it
	 * completes (out->cq). -ENOENT: no such SRQ in the QP's domain;
	 * -EAGAIN: empty. NULL: no XRC here.
	 */
	int (*xrc_srq_take)(struct roce_qp *qp, uint32_t srqn,
			    struct qp_recv *out);

	/*
	 * XRC: whose keys a request names that is for the SRQ with this number
	 * (annex A14.5.3: the PD of the SRQ, the QP has none). -ENOENT as above.
	 */
	int (*xrc_pd)(struct roce_qp *qp, uint32_t srqn, uint32_t *pd);

	/*
	 * Remote or local invalidation of a type 2 memory window's rkey, and
	 * binding of a window. 0 or -errno: -EACCES when the key is not one
	 * that this QP may invalidate or bind. NULL: not supported. They may
	 * wait for others' references to a key.
	 */
	int (*invalidate)(struct roce_qp *qp, uint32_t rkey);
	int (*bind_mw)(struct roce_qp *qp, const struct qp_bind *bind);

	/*
	 * Runs fn(arg), which reads or writes memory of a program in
	 * [p, p + len). -EFAULT: some of it is not there (any more). NULL: it
	 * always is.
	 */
	int (*guarded)(void (*fn)(void *), void *arg, const void *p,
		       size_t len);

	/*
	 * Memory of regions with IBV_ACCESS_ON_DEMAND need not be there: makes
	 * [p, p + len) present, to be read or to be written, or copies to it
	 * without a fault. 0, or -EFAULT: no such memory, or not writable.
	 */
	int (*odp_touch)(const void *p, size_t len, bool write);
	int (*odp_store)(void *dst, const void *src, size_t len);

	/*
	 * Whether the peer may have said nothing because its process, alive
	 * and on this host, has not read yet what had been sent to it when this
	 * was first asked, or we what it answered. mark begins as zeros, and is
	 * so again when the answer is no. NULL: that cannot be known.
	 */
	bool (*unread)(struct roce_qp *qp, uint64_t mark[2]);

	/* An affiliated asynchronous event of this QP. */
	void (*event)(struct roce_qp *qp, enum ibv_event_type type);

	/* Counts a packet that did nothing. NULL: nobody counts. */
	void (*dropped)(struct roce_qp *qp, enum roce_drop why);

	/*
	 * Says in words what is wrong, just before the completion or event
	 * that tells the program in a code. NULL: nobody listens.
	 */
	void (*explain)(struct roce_qp *qp, const char *fmt, ...)
		__attribute__((format(printf, 2, 3)));
};

#endif

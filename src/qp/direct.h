/*
 * direct.h - one-sided operations that their initiator carries out by itself
 *
 * A write, a read or an atomic operation needs nothing of the other end but
 * its memory and the right to it. Where that is a process of this host which
 * shows its queue pairs and keys (public.h, keys.h), the initiator looks there
 * for what the responder would check, and copies. The other end does not
 * notice, and need not even run.
 *
 * Only success is decided here. Whatever is in doubt, missing or forbidden goes
 * to the peer as a request, so errors are found and reported in one place.
 *
 * What the other process shows may be anything: it is read once, then checked;
 * and what it leads to is that process's own memory.
 */
#ifndef SOFTHCA_QP_DIRECT_H
#define SOFTHCA_QP_DIRECT_H

#include "qp.h"

/* More than this is copied by packets, between which others get their turn. */
#define QP_DIRECT_MAX (16u << 20)

/*
 * The other end, as the environment has found it. The environment's own struct
 * begins with it.
 */
struct qp_remote {
	const struct qp_public *pub;
	struct keys_view keys;
	uint32_t generation; /* of the QP there; 0: not known yet */
	uint32_t hint; /* where the last key was */
};

/* How to get there. Errors: anything but 0 or what is said leads to the
 * ordinary way. */
struct qp_direct_env {
	/*
	 * Announces a copy, with a full fence: until leave() the other
	 * process removes no key and no QP that the caller may have seen
	 * alive. A number for leave(), or -errno.
	 */
	int (*enter)(struct qp_remote *remote);
	void (*leave)(struct qp_remote *remote, int guard);
	/* Whether key entries up to this one may be looked at:
	 * remote->keys.ready is above it then. */
	bool (*ready)(struct qp_remote *remote, uint32_t slot);
	/* Copies between memory here and there, pieces in their order. */
	int (*read)(struct qp_remote *remote, const struct iovec *to, size_t n,
		    const struct iovec *from, size_t m);
	int (*write)(struct qp_remote *remote, const struct iovec *from,
		     size_t n, const struct iovec *to, size_t m);
	/* Keeps others from atomic operations at this address there. */
	int (*lock)(struct qp_remote *remote, uint64_t addr);
	void (*unlock)(struct qp_remote *remote, uint64_t addr);
};

/* What a QP knows of its peer, to be compared with what that shows. */
struct qp_direct_peer {
	uint32_t qpn; /* theirs */
	uint32_t psn; /* of our first request */
	uint32_t mtu; /* bytes */
	uint32_t path_hash; /* roce_path_hash() of what we send */
};

/* Whether the request is of a kind and size to be carried out so. */
static inline bool qp_direct_kind(const struct qp *qp, const struct qp_wqe *w)
{
	return (w->opcode == IBV_WR_RDMA_WRITE || qp_wqe_has_response(w)) &&
	       w->status == IBV_WC_SUCCESS && w->length <= QP_DIRECT_MAX &&
	       (qp->type == IBV_QPT_RC || qp->type == IBV_QPT_UC);
}

/*
 * Carries out one such request, behind which nothing of this QP is on its way.
 * 0: it is done. -EINPROGRESS: it is done there, but the result could not be
 * stored here, since the memory is gone (which has been explained). Otherwise
 * nothing is decided, and the request is to be sent.
 */
int qp_direct(struct qp *qp, struct qp_wqe *w, struct qp_remote *remote,
	      const struct qp_direct_peer *peer);

#endif

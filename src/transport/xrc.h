/*
 * xrc.h - what only QPs of XRC domains need
 *
 * Only QPs of type XRC_RECV have a struct shca_xrc, so that the data path
 * checks one pointer. There are three kinds: the QP that ibv_create_qp() makes;
 * its other handles, which ibv_open_qp() makes and which have no core; and
 * remote responders (xrc/remote_rsp.c), which stand in for a QP of another
 * process and which no program sees.
 */
#ifndef SOFTHCA_TRANSPORT_XRC_H
#define SOFTHCA_TRANSPORT_XRC_H

#include "qp.h"

struct shca_domain;
struct shca_remote_rsp;
struct shca_parked;

/* Where the responder of a QP is; under the QP's lock. See xrc/lease.c. */
struct shca_lease {
	uint16_t lent; /* 1 + slot of the process that has it; 0: it is here */
	uint16_t dead; /* the same of one that has died with it, or 0; */
	uint32_t dead_epsn; /* due then, by what it had said */
	uint32_t number; /* of the lease */
	uint64_t qp_id; /* of the connection */
	uint64_t alive_ns; /* when that process was seen alive */
	bool recalled; /* by the request with recall_psn */
	uint32_t recall_psn;
	uint64_t recall_ns;
	struct shca_parked *parked; /* what came behind it */
	uint32_t not_there; /* an SRQ that its process does not have */
};

struct shca_xrc {
	struct shca_domain *domain; /* NULL of another handle */
	struct ibv_xrcd *xrcd; /* of a handle; NULL of a remote responder */
	struct shca_qp *next; /* in the domain's list, or real's of handles */
	struct shca_qp *real; /* the QP, if this is another handle of it */

	/* Of the QP itself, under its lock. */
	struct shca_qp *handles; /* other ones */
	unsigned opens; /* handles, with the first */
	bool abandoned; /* the first one is gone; a remote responder has none */
	struct shca_lease lease;

	struct shca_remote_rsp
		*remote_rsp; /* under the QP's lock; NULL of others */
};

/* The QP behind a handle. */
static inline struct shca_qp *shca_xrc_real(struct shca_qp *qp)
{
	return qp->xrc && qp->xrc->real ? qp->xrc->real : qp;
}

/* Another handle has no core: no state, no work queues. */
static inline bool shca_xrc_is_handle(const struct shca_qp *qp)
{
	return qp->xrc && qp->xrc->real;
}

static inline bool shca_xrc_is_remote_rsp(const struct shca_qp *qp)
{
	return qp->xrc && qp->xrc->remote_rsp;
}

/* The responder is in another process; lock held. */
static inline bool shca_xrc_is_lent(const struct shca_qp *qp)
{
	return qp->xrc && qp->xrc->lease.lent;
}

#endif

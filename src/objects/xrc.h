/*
 * xrc.h - XRC domains, and what only their QPs need
 *
 * Only QPs of type XRC_RECV have a struct shca_xrc, so that the data path
 * checks one pointer. There are three kinds: the QP that ibv_create_qp() makes;
 * its other handles, which ibv_open_qp() makes and which have no core; and
 * guests (guest.c), which stand in for a QP of another process and which no
 * program sees.
 */
#ifndef SOFTHCA_OBJECTS_XRC_H
#define SOFTHCA_OBJECTS_XRC_H

#include "objects.h"

struct shca_domain;
struct shca_guest;
struct shca_parked;

/* Where the responder of a QP is; under the QP's lock. See loan.c. */
struct shca_loan {
	uint16_t lent; /* 1 + slot of the process that has it; 0: it is here */
	uint16_t dead; /* the same of one that has died with it, or 0; */
	uint32_t dead_epsn; /* due then, by what it had said */
	uint32_t number; /* of the loan */
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
	struct ibv_xrcd *xrcd; /* of a handle; NULL of a guest */
	struct shca_qp *next; /* in the domain's list, or real's of handles */
	struct shca_qp *real; /* the QP, if this is another handle of it */

	/* Of the QP itself, under its lock. */
	struct shca_qp *handles; /* other ones */
	unsigned opens; /* handles, with the first */
	bool abandoned; /* the first one is gone; a guest has none */
	struct shca_loan loan;

	struct shca_guest *guest; /* under the QP's lock; NULL of others */
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

static inline bool shca_xrc_is_guest(const struct shca_qp *qp)
{
	return qp->xrc && qp->xrc->guest;
}

/* The responder is in another process; lock held. */
static inline bool shca_xrc_is_lent(const struct shca_qp *qp)
{
	return qp->xrc && qp->xrc->loan.lent;
}

int shca_xrcd_open(struct ibv_context *ctx,
		   const struct ibv_xrcd_init_attr *attr,
		   struct ibv_xrcd **xrcd);
int shca_xrcd_close(struct ibv_xrcd *xrcd);
/* Gives an SRQ a number in the domain, or -errno; takes it back, after which no
 * QP takes or holds receives of it. */
int shca_xrc_srq_add(struct shca_srq *srq, struct ibv_xrcd *xrcd);
void shca_xrc_srq_remove(struct shca_srq *srq);
/*
 * A new XRC_RECV QP, which has its struct shca_xrc, enters the domain. A handle
 * goes: true if it was the last, and the caller has to destroy the QP. The QP
 * is destroyed.
 */
void shca_xrc_qp_add(struct shca_qp *qp, struct ibv_xrcd *xrcd);
bool shca_xrc_qp_close(struct shca_qp *qp);
void shca_xrc_qp_gone(struct shca_qp *real);
int shca_xrc_qp_open(struct ibv_context *ctx,
		     const struct ibv_qp_open_attr *attr, struct ibv_qp **qp);
/* An event of the QP, for all its handles, or its guest; its lock is held. */
void shca_xrc_event(struct shca_qp *real, struct ibv_async_event *ev);
int shca_xrc_env_take(struct qp *core, uint32_t num,
		      struct qp_recv *out);
int shca_xrc_env_pd(struct qp *core, uint32_t num, uint32_t *pd);

/*
 * What tells a domain from others in all processes: its inode, and the netdev
 * that its device is named for (false: it is of no inode, so of this process);
 * whether an SRQ is in it; the one with that key (xrc_lock held).
 */
#define SHCA_DOMAIN_KEY (16 + IFNAMSIZ)
bool shca_domain_key(const struct shca_domain *d, uint8_t key[SHCA_DOMAIN_KEY]);
bool shca_domain_has(struct shca_domain *d, uint32_t srqn);
struct shca_domain *shca_domain_find(struct engine *e,
				     const uint8_t key[SHCA_DOMAIN_KEY]);

#endif

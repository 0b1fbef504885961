/*
 * lease.h - XRC_RECV QPs whose messages are for SRQs of other processes
 *
 * See lease.c. The QP's lock is held unless a comment says otherwise.
 */
#ifndef SOFTHCA_XRC_LEASE_H
#define SOFTHCA_XRC_LEASE_H

#include "verbs/verbs.h"

/* lease.c */

/* These are shca_xrc_ops. */
bool shca_lease_rx(struct shca_qp *qp, const struct roce_rx *pkt, uint64_t now);
void shca_lease_forget(struct shca_qp *qp);
/* engine_ops.word: what is said about a QP from home to remote responder, and
 * back. */
bool shca_lease_ctrl(struct engine *e, const struct roce_rx *pkt,
		     struct engine_qp **qp, struct roce_rx *inner,
		     uint64_t now);

/*
 * The process is about to be suspended (src/migrate), and is back; no lock.
 * What is lent comes back, from remote responders and to homes, and stays: 0,
 * -ENOMEM, or -EBUSY: a message has begun that does not end; *qpn is the QP, of
 * *ours or of another process.
 */
int shca_leases_away(struct engine *e, uint32_t *qpn, bool *ours);
void shca_leases_back(struct engine *e);

/* remote_rsp.c */

/* For the process. */
int shca_remote_rsps_init(struct engine *e);
void shca_remote_rsps_fini(struct engine *e);
/* Now and then while engine->unsettled is not 0; no lock. */
void shca_remote_rsp_settle(struct engine *e, uint64_t now);

#endif

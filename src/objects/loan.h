/*
 * loan.h - XRC_RECV QPs whose messages are for SRQs of other processes
 *
 * See loan.c. The QP's lock is held unless a comment says otherwise.
 */
#ifndef SOFTHCA_OBJECTS_LOAN_H
#define SOFTHCA_OBJECTS_LOAN_H

#include "shared.h"
#include "xrc.h"

/* loan.c */

/* A packet for an XRC_RECV QP or a guest. True: it was sent elsewhere, or
 * kept. */
bool shca_loan_rx(struct shca_qp *qp, const struct roce_rx *pkt, uint64_t now);
/* A QP of any type begins a new connection, or ends. */
void shca_loan_forget(struct shca_qp *qp);
/* engine_ops.word: what is said about a QP from home to guest, and back. */
bool shca_loan_word(struct engine *e, const struct roce_rx *pkt,
		    struct engine_qp **qp, struct roce_rx *inner, uint64_t now);

/* guest.c */

/* To be called before a guest sends. */
void shca_guest_note(struct shca_qp *qp);
/* A guest's event. */
void shca_guest_event(struct shca_qp *qp, enum ibv_event_type event);
/* Now and then while engine->unsettled is not 0; no lock. */
void shca_guest_settle(struct engine *e, uint64_t now);

/* An SRQ goes, or a domain; no lock. */
void shca_guest_srq_gone(struct engine *e, struct shca_domain *d, uint32_t num);
void shca_guest_domain_gone(struct engine *e, struct shca_domain *d);

#endif

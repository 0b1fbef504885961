/*
 * loan.h - XRC_RECV QPs whose messages are for SRQs of other processes
 *
 * See loan.c. What is called here is called with the QP's lock held unless it
 * says otherwise.
 */
#ifndef SOFTHCA_OBJECTS_LOAN_H
#define SOFTHCA_OBJECTS_LOAN_H

#include "process.h"
#include "xrc.h"

/* loan.c */

/* A packet for an XRC_RECV QP, or a guest. True: it has gone elsewhere. */
bool shca_loan_rx(struct shca_qp *qp, const struct roce_rx *pkt, uint64_t now);
/* The QP begins afresh, or ends; no matter what type it is of. */
void shca_loan_forget(struct shca_qp *qp);
/* engine_ops.word: what is said about a QP from home to guest, and back. */
bool shca_loan_word(struct engine *e, const struct roce_rx *pkt,
		    struct engine_qp **qp, struct roce_rx *inner, uint64_t now);

/* guest.c */

/* A guest is about to send. */
void shca_guest_note(struct shca_qp *qp);
/* A guest's event. */
void shca_guest_event(struct shca_qp *qp, enum ibv_event_type event);
/* Now and then while engine->unsettled is not 0; no lock. */
void shca_guest_settle(struct engine *e, uint64_t now);

/* An SRQ goes, or a domain; no lock. */
void shca_guest_srq_gone(struct engine *e, struct shca_domain *d, uint32_t num);
void shca_guest_domain_gone(struct engine *e, struct shca_domain *d);

#endif

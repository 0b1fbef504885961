/*
 * env.h - what RoCE needs of its environment beyond qp/env.h
 */
#ifndef SOFTHCA_ROCE_ENV_H
#define SOFTHCA_ROCE_ENV_H

#include "qp/env.h"
#include "qp/refused.h"

/* Why a packet for a QP did nothing there. */
enum roce_drop {
	ROCE_DROP_OPCODE, /* not one of the QP's service, or not expected */
	ROCE_DROP_HEADER, /* transport version or P_Key */
	ROCE_DROP_STATE, /* the QP does not receive yet, */
	ROCE_DROP_ENDED, /* or any more: it is in the error state */
	ROCE_DROP_ADDRESS, /* the sender is not the QP's peer */
	ROCE_DROP_DUPLICATE, /* done before; a request was answered again */
	ROCE_DROP_GAP, /* something before it is missing */
	ROCE_DROP_REFUSED, /* RC: a NAK says why; UC: its message is lost */
	ROCE_DROP_QKEY, /* UD: wrong Q_Key, or longer than the MTU or
			      * the receive */
	ROCE_DROP_NO_RECV, /* no receive was posted; RC: RNR NAK */
	ROCE_DROPS
};

/* What a packet has otherwise than the QP it came to. */
enum roce_differs { ROCE_DIFFERS_QKEY, ROCE_DIFFERS_PKEY };

struct pool; /* base/pool.h */

struct roce_env {
	struct qp_env base;

	/*
	 * XRC: takes a WQE of the SRQ with this number, and says where it
	 * completes (out->cq). -ENOENT: no such SRQ in the QP's domain;
	 * -EAGAIN: empty. NULL: no XRC here.
	 */
	int (*xrc_srq_take)(struct qp *qp, uint32_t srqn, struct qp_recv *out);

	/*
	 * XRC: whose keys a request names that is for the SRQ with this number
	 * (annex A14.5.3: the PD of the SRQ, the QP has none). -ENOENT as above.
	 */
	int (*xrc_pd)(struct qp *qp, uint32_t srqn, uint32_t *pd);

	/* Memory for packets that come before their turn (reorder.c). NULL:
	 * none is kept. */
	struct pool *reorder;

	/*
	 * Whether the peer may have said nothing because we have not read yet
	 * what there was when this was first asked, or its process, alive and
	 * on this host, what had been sent to it. mark begins as zeros, and is
	 * so again when the answer is no. NULL: that cannot be known.
	 */
	bool (*unread)(struct qp *qp, uint64_t mark[2]);

	/*
	 * A UC write of so many bytes has been sent, and completes now; one has
	 * been executed to its end. Of neither another completion tells, so a
	 * program may look for it in its memory. NULL: nobody wants to know.
	 */
	void (*uc_sent)(struct qp *qp, uint32_t length);
	void (*uc_written)(struct qp *qp);

	/*
	 * For explanations, half a sentence each that lives as long as *text:
	 * why the peer says nothing, as far as that can be known; and why it
	 * has refused what was asked (NULL: of no key), NULL: that cannot be
	 * known. NULL: nothing can.
	 */
	const char *(*silent)(struct qp *qp, struct key_why *text);
	const char *(*refusal)(struct qp *qp, const struct key_ask *ask,
			       struct key_why *text);

	/* Whether the receive queue is to look empty, on purpose. NULL: no. */
	bool (*withhold)(const struct qp *qp);

	/*
	 * A request fails without an answer, and none of this connection has
	 * ever had one. expects: what the peer has said of PSNs nevertheless,
	 * half a sentence, or NULL. NULL: nobody asks.
	 */
	void (*unanswered)(struct qp *qp, const char *expects);

	/* A packet was dropped since it has another key, of the QP src_qpn; ours
	 * is here. NULL: nobody asks. */
	void (*differs)(struct qp *qp, enum roce_differs what, uint32_t there,
			uint32_t here, uint32_t src_qpn);

	/* Counts a packet that did nothing. NULL: not counted. */
	void (*dropped)(struct qp *qp, enum roce_drop why);
};

#endif

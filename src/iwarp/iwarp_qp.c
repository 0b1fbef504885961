/*
 * iwarp_qp.c - a queue pair's life: creation, states, and how its stream ends
 *
 * Whatever ends a connection comes through iwarp_end(), which flushes both
 * queues in order. The stream goes on for a moment: an FPDU that the socket has
 * begun to take has to be completed, or the peer would see a stream cut in the
 * middle, and the Terminate message comes behind it. After that its program may
 * do with its memory what it wants, so what is left of that FPDU is copied first
 * (frame_freeze()).
 */
#include "iwarp_internal.h"

#include "base/why.h"
#include "qp/names.h"

#include <stdlib.h>

_Static_assert(offsetof(struct iwarp_qp, base) == 0 &&
		       offsetof(struct iwarp_env, base) == 0 &&
		       offsetof(struct iwarp_wqe, base) == 0,
	       "each begins with what every transport has of it");

int iwarp_qp_create(struct iwarp_qp **out, struct qp_init *init)
{
	struct iwarp_qp *qp;
	int err;

	if (init->type != IBV_QPT_RC)
		return why(-EOPNOTSUPP,
			   "iWARP has QPs of type RC only, not of type %s",
			   qp_type_str(init->type));
	qp = aligned_zalloc(sizeof(*qp));
	if (!qp)
		return -ENOMEM;
	err = qp_init(&qp->base, init, sizeof(struct iwarp_wqe));
	if (err) {
		free(qp);
		return err;
	}
	*out = qp;
	return 0;
}

/* What a connection had allocated. */
static void stream_fini(struct iwarp_qp *qp)
{
	free(qp->tx.ring);
	free(qp->tx.flat);
	free(qp->tx.owed);
	memset(&qp->tx, 0, sizeof(qp->tx));
	memset(&qp->rx, 0, sizeof(qp->rx));
	memset(&qp->agreed, 0, sizeof(qp->agreed));
	qp->started = qp->up = qp->lost = qp->has_term = false;
}

void iwarp_qp_destroy(struct iwarp_qp *qp)
{
	stream_fini(qp);
	qp_fini(&qp->base);
	free(qp);
}

/* ---- the ends ---------------------------------------------------------- */

/* As qp_flush_sq(), but those that have failed by themselves say so. */
static void flush_sq(struct iwarp_qp *qp)
{
	struct qp_sq *sq = &qp->base.sq;

	while (sq->head != sq->tail) {
		const struct iwarp_wqe *w = iwarp_wqe(qp_sq_slot(sq, sq->head));
		const bool begun = sq->head != sq->nxt;

		qp_sq_complete(&qp->base, begun && w->fate ?
						  w->fate :
						  IBV_WC_WR_FLUSH_ERR);
	}
	sq->nxt = sq->head;
}

static void to_err(struct iwarp_qp *qp)
{
	if (qp->base.state == IBV_QPS_ERR)
		return;
	qp_set_state(&qp->base, IBV_QPS_ERR);
	flush_sq(qp);
	qp_flush_rq(&qp->base);
}

void iwarp_end(struct iwarp_qp *qp, const struct rdmap_terminate *term)
{
	struct iwarp_tx *t = &qp->tx;

	if (!qp->up) {
		to_err(qp);
		return;
	}
	qp->up = false;
	t->stop = STOP_NOT;
	t->message = MSG_NONE;
	t->owed_head = t->owed_tail;
	t->rtr = IWARP_RTR_NONE;
	if (!frame_freeze(qp))
		qp->lost = true;
	if (term) {
		qp->term = *term;
		qp->has_term = qp->term_sent = true;
		if (!qp->lost)
			tx_terminate(qp, term);
	}
	to_err(qp);
	if (iwarp_env(qp)->ended)
		iwarp_env(qp)->ended(&qp->base);
}

void iwarp_end_error(struct iwarp_qp *qp, enum rdmap_error e)
{
	const struct rdmap_terminate t = { .error = (uint16_t)e };

	iwarp_end(qp, &t);
	qp->base.env->event(&qp->base, IBV_EVENT_QP_FATAL);
}

void iwarp_end_lost(struct iwarp_qp *qp)
{
	iwarp_end(qp, NULL);
	qp->tx.head = qp->tx.tail;
	qp->lost = true;
}

void iwarp_rx_eof(struct iwarp_qp *qp)
{
	if (!qp->up)
		return;
	if (qp->rx.in != RX_HEAD || qp->rx.have || qp->rx.tagged)
		explain(qp, "the peer has closed the connection in the middle "
			    "of a message");
	iwarp_end(qp, NULL);
}

void iwarp_lost(struct iwarp_qp *qp, const char *how)
{
	if (!qp->started || qp->lost)
		return;
	if (qp->up)
		explain(qp, "the TCP connection is lost: %s", how);
	iwarp_end_lost(qp);
}

void iwarp_fail_setup(struct iwarp_qp *qp, enum iwarp_setup_error e)
{
	struct rdmap_terminate t = { .error = MPA_E_FRAME };

	if (e == IWARP_SETUP_IRD)
		t.error = MPA_E_IRD;
	else if (e == IWARP_SETUP_RTR)
		t.error = MPA_E_RTR;
	explain(qp, "%s", iwarp_setup_error_str(e));
	iwarp_end(qp, &t);
}

enum iwarp_shut iwarp_shut(const struct iwarp_qp *qp)
{
	if (!qp->started || qp->up)
		return IWARP_OPEN;
	if (qp->lost)
		return IWARP_RESET;
	return tx_empty(qp) ? IWARP_FIN : IWARP_DRAIN;
}

/* ---- states ------------------------------------------------------------ */

int iwarp_qp_start(struct iwarp_qp *qp, const struct iwarp_agreed *agreed,
		   uint32_t fpdu_max)
{
	const enum ibv_qp_state state = qp->base.state;
	struct iwarp_tx *t = &qp->tx;

	if (qp->started || (state != IBV_QPS_INIT && state != IBV_QPS_RTR))
		return why(-EINVAL,
			   "QP 0x%06x is in state %s; a connection needs INIT "
			   "or RTR",
			   qp->base.qpn, qp_state_str(state));
	t->owed_size = round_up_pow2(max_u32(agreed->ird, 1));
	t->owed = calloc(t->owed_size, sizeof(*t->owed));
	t->ring = calloc(RING, sizeof(*t->ring));
	if (agreed->tx_markers)
		t->flat = malloc(IWARP_FPDU_MAX);
	if (!t->owed || !t->ring || (agreed->tx_markers && !t->flat)) {
		stream_fini(qp);
		return -ENOMEM;
	}
	qp->agreed = *agreed;
	qp->started = qp->up = true;
	iwarp_set_fpdu_max(qp, fpdu_max);
	for (int q = 0; q < RDMAP_QUEUES; q++)
		t->msn[q] = qp->rx.msn[q] = 1;
	if (agreed->initiator)
		t->rtr = (uint8_t)agreed->rtr;
	else
		t->hold = true;
	rx_start(qp);
	qp->rx.fpdus_before = qp->stats.rx_pkts;
	qp->base.attr.max_rd_atomic = (uint8_t)min_u32(agreed->ord, 255);
	qp->base.attr.max_dest_rd_atomic = (uint8_t)min_u32(agreed->ird, 255);
	qp_public_set(&qp->base.pub->established, true);
	qp_set_state(&qp->base, IBV_QPS_RTS);
	return 0;
}

void iwarp_set_fpdu_max(struct iwarp_qp *qp, uint32_t fpdu_max)
{
	fpdu_max = min_u32(max_u32(fpdu_max, IWARP_FPDU_MIN), IWARP_FPDU_MAX);
	/* With its markers an FPDU has to fit into a segment, too. */
	if (qp->agreed.tx_markers)
		fpdu_max -= MPA_MARKER_LEN * (fpdu_max / MPA_MARKER_STEP + 1);
	qp->tx.fpdu_max = fpdu_max & ~3u;
}

/* Before a connection and after one. */
static bool is_idle(enum ibv_qp_state s)
{
	return s == IBV_QPS_RESET || s == IBV_QPS_INIT || s == IBV_QPS_RTR;
}

static int transition_refused(const struct iwarp_qp *qp, enum ibv_qp_state to,
			      const char *reason)
{
	return why(-EINVAL, "QP 0x%06x (iWARP), %s to %s: %s", qp->base.qpn,
		   qp_state_str(qp->base.state), qp_state_str(to), reason);
}

static int check_move(const struct iwarp_qp *qp, enum ibv_qp_state to)
{
	const enum ibv_qp_state from = qp->base.state;

	if (to == from || to == IBV_QPS_ERR || to == IBV_QPS_RESET)
		return 0;
	if (is_idle(to) || to == IBV_QPS_RTS) {
		if (is_idle(from) && to == IBV_QPS_RTS)
			return transition_refused(
				qp, to,
				"RTS is reached only by connecting: "
				"rdma_connect() or rdma_accept()");
		return is_idle(from) && is_idle(to) ?
			       0 :
			       transition_refused(qp, to,
						  "no such transition; a QP is "
						  "used again after RESET");
	}
	/* SQD, SQE: its end. */
	return from == IBV_QPS_RTS ?
		       0 :
		       transition_refused(qp, to, "it has no connection");
}

/* Attributes that the kernel's RNICs know, if only to ignore them. */
#define STANDARD_BITS ((IBV_QP_DEST_QPN << 1) - 1)

int iwarp_qp_modify(struct iwarp_qp *qp, const struct ibv_qp_attr *attr,
		    int mask)
{
	enum ibv_qp_state to =
		mask & IBV_QP_STATE ? attr->qp_state : qp->base.state;
	int err;

	if (mask & ~STANDARD_BITS)
		return why(-EOPNOTSUPP,
			   "attr_mask 0x%x has attributes that iWARP does not "
			   "have",
			   (unsigned)mask);
	if ((unsigned)to > IBV_QPS_ERR)
		return why(
			-EINVAL,
			"QP 0x%06x: attr.qp_state is %u, no enum ibv_qp_state",
			qp->base.qpn, (unsigned)to);
	err = check_move(qp, to);
	if (err)
		return err;
	qp_modify_apply(&qp->base, attr,
			mask & (IBV_QP_ACCESS_FLAGS | IBV_QP_PORT));
	if (!(mask & IBV_QP_STATE) || to == qp->base.state)
		return 0;
	switch (to) {
	case IBV_QPS_RESET:
		stream_fini(qp);
		qp_reset(&qp->base);
		qp_public_set(&qp->base.pub->established, false);
		break;
	case IBV_QPS_SQE: {
		const struct rdmap_terminate t = {
			.error = RDMAP_E_CATASTROPHIC
		};

		iwarp_end(qp, &t);
		break;
	}
	case IBV_QPS_SQD:
	case IBV_QPS_ERR:
		iwarp_end(qp, NULL);
		break;
	default:
		qp_set_state(&qp->base, to);
		break;
	}
	return 0;
}

void iwarp_qp_query(const struct iwarp_qp *qp, struct ibv_qp_attr *attr,
		    struct ibv_qp_init_attr *init)
{
	qp_query(&qp->base, attr, init);
}

/* ---- posting ----------------------------------------------------------- */

/* What RNICs do not have is refused at once, as siw does. */
static int check_request(const struct ibv_send_wr *wr)
{
	switch (wr->opcode) {
	case IBV_WR_RDMA_READ:
		if (wr->num_sge > 1)
			return why(-EINVAL,
				   "work request 0x%llx: a read has %d SGEs; "
				   "over iWARP it has one at most (max_sge_rd)",
				   (unsigned long long)wr->wr_id, wr->num_sge);
		return 0;
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_SEND:
	case IBV_WR_SEND_WITH_INV:
	case IBV_WR_LOCAL_INV:
	case IBV_WR_BIND_MW:
		return 0;
	case IBV_WR_RDMA_WRITE_WITH_IMM:
	case IBV_WR_SEND_WITH_IMM:
		return why(-EINVAL,
			   "work request 0x%llx: iWARP has no immediate data: "
			   "use IBV_WR_SEND or IBV_WR_RDMA_WRITE",
			   (unsigned long long)wr->wr_id);
	default:
		return why(-EINVAL,
			   "work request 0x%llx: iWARP does not have opcode %u",
			   (unsigned long long)wr->wr_id, (unsigned)wr->opcode);
	}
}

int iwarp_post_send(struct iwarp_qp *qp, const struct ibv_send_wr *wr)
{
	struct iwarp_wqe *iw;
	struct qp_wqe *w;
	int err = check_request(wr);

	if (!err)
		err = qp_post_send(&qp->base, wr, &w);
	if (err)
		return err;
	iw = iwarp_wqe(w);
	iw->done = false;
	iw->fate = 0;
	iw->msn = 0;
	qp_post_done(&qp->base);
	return 0;
}

void iwarp_sq_undo(struct iwarp_qp *qp, uint32_t tail)
{
	/* Flushed ones are gone. */
	if (qp->base.state == IBV_QPS_RTS)
		qp->base.sq.tail = tail;
}

/* ---- looks ------------------------------------------------------------- */

const struct rdmap_terminate *iwarp_terminated(const struct iwarp_qp *qp,
					       bool *sent)
{
	*sent = qp->term_sent;
	return qp->has_term ? &qp->term : NULL;
}

const struct iwarp_qp_stats *iwarp_qp_stats(const struct iwarp_qp *qp)
{
	return &qp->stats;
}

const struct iwarp_agreed *iwarp_agreed(const struct iwarp_qp *qp)
{
	return &qp->agreed;
}

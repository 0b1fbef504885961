/*
 * tx.c - from work requests, and reads that the peer waits for, to FPDUs
 *
 * An FPDU is made when there is room for it, and from then on it has its place
 * in the stream. Messages are not mixed: one is cut to its end before the next
 * begins, since there are peers that take nothing else (siw). Where a request and
 * a response wait, they take turns.
 *
 * A request that cannot be carried out fails when all before it has left, and
 * takes the connection with it, as a Terminate of the local end says.
 */
#include "iwarp_internal.h"

static bool is_read(const struct qp_wqe *w)
{
	return w->opcode == IBV_WR_RDMA_READ;
}

/* ---- what is next ------------------------------------------------------ */

/* Whether the next WQE of the send queue may begin, if there is one. */
static bool may_begin(const struct iwarp_qp *qp)
{
	const struct qp_sq *sq = &qp->base.sq;
	const struct iwarp_tx *t = &qp->tx;
	const struct qp_wqe *w;

	if (sq->nxt == sq->tail || t->hold)
		return false;
	w = qp_sq_slot(sq, sq->nxt);
	if (w->flags & IBV_SEND_FENCE && t->reads)
		return false;
	/* What was posted before it may need the key that it takes away. */
	if (w->local)
		return tx_empty(qp);
	return !is_read(w) || t->reads < qp->agreed.ord;
}

enum next { NEXT_NOTHING, NEXT_RTR, NEXT_RESPONSE, NEXT_WQE };

static enum next next_frame(const struct iwarp_qp *qp)
{
	const struct iwarp_tx *t = &qp->tx;

	if (!qp->up || t->stop)
		return NEXT_NOTHING;
	if (t->message != MSG_NONE)
		return t->message == MSG_WQE ? NEXT_WQE : NEXT_RESPONSE;
	if (t->rtr)
		return NEXT_RTR;
	if (t->owed_head == t->owed_tail)
		return may_begin(qp) ? NEXT_WQE : NEXT_NOTHING;
	return t->turn && may_begin(qp) ? NEXT_WQE : NEXT_RESPONSE;
}

bool iwarp_tx_waits(const struct iwarp_qp *qp)
{
	return qp->up && qp->tx.hold && qp->agreed.rtr == IWARP_RTR_NONE;
}

void iwarp_tx_begin(struct iwarp_qp *qp)
{
	if (iwarp_tx_waits(qp))
		qp->tx.hold = false;
}

bool iwarp_tx_asks(const struct iwarp_qp *qp)
{
	/* What siw says of itself: IWARP_FPDU_MAX is welcome. */
	return qp->up && qp->agreed.initiator && qp->agreed.tx_large &&
	       qp->agreed.rtr == IWARP_RTR_WRITE &&
	       qp->stats.rx_pkts == qp->rx.fpdus_before;
}

void iwarp_tx_ask_again(struct iwarp_qp *qp)
{
	if (iwarp_tx_asks(qp))
		qp->tx.rtr = IWARP_RTR_WRITE;
}

bool iwarp_tx_ready(const struct iwarp_qp *qp)
{
	return qp->started && !qp->lost &&
	       (!tx_empty(qp) || next_frame(qp) != NEXT_NOTHING);
}

/* ---- completions ------------------------------------------------------- */

static void refuse_peer(struct iwarp_qp *qp)
{
	const struct rdmap_terminate term = qp->tx.refusal;

	qp->stats.access_tx++;
	iwarp_end(qp, &term);
	qp->base.env->event(&qp->base, IBV_EVENT_QP_ACCESS_ERR);
}

/* What was waited for before the connection ends has happened. */
static void settle_end(struct iwarp_qp *qp)
{
	static const struct rdmap_terminate local = {
		.error = RDMAP_E_CATASTROPHIC
	};
	struct qp_sq *sq = &qp->base.sq;
	struct iwarp_tx *t = &qp->tx;

	if (!qp->up || !t->stop || !tx_empty(qp))
		return;
	if (t->stop == STOP_PEER) {
		refuse_peer(qp);
	} else if (sq->head == sq->nxt) {
		iwarp_wqe(qp_sq_slot(sq, sq->nxt++))->fate = t->stop_status;
		iwarp_end(qp, &local);
	}
}

void tx_retire(struct iwarp_qp *qp)
{
	struct qp_sq *sq = &qp->base.sq;

	while (qp->up && sq->head != sq->nxt) {
		const struct iwarp_wqe *w = iwarp_wqe(qp_sq_slot(sq, sq->head));

		if (!w->done)
			break;
		/* A full CQ ends the QP (class G); the event has been raised. */
		if (!qp_sq_done(&qp->base, &w->base))
			iwarp_end(qp, &(struct rdmap_terminate){
					      .error = RDMAP_E_CATASTROPHIC });
	}
	settle_end(qp);
}

static void stop_wqe(struct iwarp_qp *qp, enum ibv_wc_status status)
{
	qp->tx.stop = STOP_WQE;
	qp->tx.stop_status = (uint8_t)status;
	qp->tx.message = MSG_NONE;
	tx_retire(qp);
}

struct iwarp_wqe *tx_read_first(struct iwarp_qp *qp)
{
	const struct qp_sq *sq = &qp->base.sq;
	uint32_t *i = &qp->rx.read_wqe;

	/* It may have been left behind by what has completed. */
	if ((int32_t)(sq->head - *i) > 0)
		*i = sq->head;
	for (; *i != sq->nxt; ++*i) {
		struct iwarp_wqe *w = iwarp_wqe(qp_sq_slot(sq, *i));

		if (is_read(&w->base) && !w->done)
			return w;
	}
	return NULL;
}

void tx_read_done(struct iwarp_qp *qp, struct iwarp_wqe *w)
{
	qp->tx.reads--;
	if (!w)
		return; /* it was of no program */
	w->done = true;
	tx_retire(qp);
}

/* ---- requests ---------------------------------------------------------- */

/* Whether the data of a WQE are where it says; explains it if not. */
static bool check_sges(struct iwarp_qp *qp, struct qp_wqe *w, uint32_t access)
{
	const struct ibv_sge *sge = qp_wqe_sge(&qp->base.sq, w);

	if (w->flags & IBV_SEND_INLINE)
		return true;
	for (uint32_t i = 0; i < w->num_sge; i++) {
		struct key_entry *e;
		bool ok;
		void *p;

		if (!sge[i].length)
			continue;
		e = keys_get_local(qp->base.env->keys, sge[i].lkey,
				   &qp->base.lkey_hint);
		ok = e && key_covers(e, qp->base.pd, sge[i].addr, sge[i].length,
				     access, &p);
		if (e)
			keys_put(e);
		if (ok)
			continue;
		qp_explain_sge(&qp->base, "work request", w->wr_id, i, &sge[i],
			       qp->base.pd, access);
		return false;
	}
	return true;
}

static struct fpdu *make_read_request(struct iwarp_qp *qp,
				      const struct rdmap_read *read)
{
	struct iwarp_tx *t = &qp->tx;
	const struct ddp_hdr h = {
		.last = true,
		.version = DDP_VERSION,
		.ulp = rdmap_control(RDMAP_READ_REQUEST),
		.qn = RDMAP_Q_READ,
		.msn = t->msn[RDMAP_Q_READ]++,
	};
	uint8_t own[RDMAP_READ_LEN];

	rdmap_read_encode(read, own);
	t->reads++;
	return frame_new(qp, &h, own, sizeof(own), 0);
}

struct rdmap_read tx_read_request(struct iwarp_qp *qp, struct iwarp_wqe *w)
{
	const struct ibv_sge *sge = qp_wqe_sge(&qp->base.sq, &w->base);

	return (struct rdmap_read){
		.sink_stag = w->base.num_sge ? sge->lkey : 0,
		.sink_to = w->base.num_sge ? sge->addr : 0,
		.size = w->base.length,
		.src_stag = w->base.rkey,
		.src_to = w->base.remote_addr,
	};
}

static struct fpdu *make_read(struct iwarp_qp *qp, struct iwarp_wqe *w)
{
	const struct rdmap_read read = tx_read_request(qp, w);
	struct fpdu *f;

	if (!check_sges(qp, &w->base, IBV_ACCESS_LOCAL_WRITE)) {
		stop_wqe(qp, IBV_WC_LOC_PROT_ERR);
		return NULL;
	}
	w->msn = qp->tx.msn[RDMAP_Q_READ];
	f = make_read_request(qp, &read);
	f->from = FROM_WQE;
	f->wqe = qp->base.sq.nxt++;
	return f;
}

static enum rdmap_opcode opcode_of(const struct qp_wqe *w)
{
	const bool solicited = w->flags & IBV_SEND_SOLICITED;

	switch (w->opcode) {
	case IBV_WR_RDMA_WRITE:
		return RDMAP_WRITE;
	case IBV_WR_SEND_WITH_INV:
		return solicited ? RDMAP_SEND_SE_INV : RDMAP_SEND_INV;
	default:
		return solicited ? RDMAP_SEND_SE : RDMAP_SEND;
	}
}

/* The next FPDU of a send or write. */
static struct fpdu *make_data(struct iwarp_qp *qp, struct qp_wqe *w)
{
	const enum rdmap_opcode opcode = opcode_of(w);
	struct iwarp_tx *t = &qp->tx;
	struct ddp_hdr h = {
		.tagged = opcode == RDMAP_WRITE,
		.version = DDP_VERSION,
		.ulp = rdmap_control(opcode),
	};
	uint32_t room, len;
	struct fpdu *f;

	if (t->message == MSG_NONE)
		t->offset = 0;
	if (h.tagged) {
		room = frame_room(qp, DDP_TAGGED_LEN);
		h.stag = w->rkey;
		h.to = w->remote_addr + t->offset;
	} else {
		room = frame_room(qp, DDP_UNTAGGED_LEN);
		h.qn = RDMAP_Q_SEND;
		h.msn = t->msn[RDMAP_Q_SEND];
		h.mo = t->offset;
		if (w->opcode == IBV_WR_SEND_WITH_INV)
			h.ulp_data = w->rkey;
	}
	/* Of several parts all have to be there before the first one leaves. */
	if (!t->offset && w->length > room && !check_sges(qp, w, 0)) {
		stop_wqe(qp, IBV_WC_LOC_PROT_ERR);
		return NULL;
	}
	len = min_u32(w->length - t->offset, room);
	h.last = t->offset + len == w->length;
	f = frame_new(qp, &h, NULL, 0, len);
	f->from = FROM_WQE;
	f->wqe = qp->base.sq.nxt;
	f->offset = t->offset;
	f->last = h.last;
	t->offset += len;
	t->message = h.last ? MSG_NONE : MSG_WQE;
	if (!h.last)
		return f;
	qp->base.sq.nxt++;
	if (!h.tagged)
		t->msn[RDMAP_Q_SEND]++;
	return f;
}

/* Local operations need no FPDU, so this goes on to the next WQE. */
static struct fpdu *make_request(struct iwarp_qp *qp)
{
	struct qp_sq *sq = &qp->base.sq;
	struct qp_wqe *w = qp_sq_slot(sq, sq->nxt);

	qp->tx.turn = false;
	if (qp->tx.message == MSG_WQE)
		return make_data(qp, w);
	if (w->local && w->status == IBV_WC_SUCCESS)
		qp_run_local(&qp->base, w);
	if (w->status != IBV_WC_SUCCESS) {
		stop_wqe(qp, w->status);
		return NULL;
	}
	if (is_read(w))
		return make_read(qp, iwarp_wqe(w));
	if (!w->local)
		return make_data(qp, w);
	iwarp_wqe(w)->done = true;
	sq->nxt++;
	tx_retire(qp);
	return NULL;
}

/* The message with which the responder may begin, too. */
static struct fpdu *make_rtr(struct iwarp_qp *qp)
{
	/* Of no bytes, so no key is looked at; but 0 may be special there. */
	static const struct rdmap_read read = { .sink_stag = 1, .src_stag = 1 };
	static const struct ddp_hdr write = {
		.tagged = true,
		.last = true,
		.version = DDP_VERSION,
		.ulp = RDMAP_VERSION << 6 | RDMAP_WRITE,
		.stag = 1,
	};
	const bool reads = qp->tx.rtr == IWARP_RTR_READ;

	qp->tx.rtr = IWARP_RTR_NONE;
	if (!reads)
		return frame_new(qp, &write, NULL, 0, 0);
	qp->rx.rtr = true;
	return make_read_request(qp, &read);
}

/* ---- responses --------------------------------------------------------- */

bool tx_may_owe(const struct iwarp_qp *qp)
{
	return qp->tx.owed_tail - qp->tx.owed_head < max_u32(qp->agreed.ird, 1);
}

void tx_owe(struct iwarp_qp *qp, const struct rdmap_read *r, uint32_t msn)
{
	struct iwarp_tx *t = &qp->tx;

	t->owed[t->owed_tail++ & (t->owed_size - 1)] = (struct owed){ *r, msn };
}

/* The peer may not read that, or not any more. */
static void stop_peer(struct iwarp_qp *qp, const struct owed *o, int error)
{
	struct iwarp_tx *t = &qp->tx;

	qp_explain_remote(&qp->base, "read", qp->base.pd, o->read.src_stag,
			  o->read.src_to, o->read.size, IBV_ACCESS_REMOTE_READ);
	t->refusal = (struct rdmap_terminate){
		.error = (uint16_t)error,
		.has_ddp = true,
		.has_read = true,
		.segment_len = DDP_UNTAGGED_LEN + RDMAP_READ_LEN,
		.ddp = {
			.last = true,
			.version = DDP_VERSION,
			.ulp = rdmap_control(RDMAP_READ_REQUEST),
			.qn = RDMAP_Q_READ,
			.msn = o->msn,
		},
		.read = o->read,
	};
	t->stop = STOP_PEER;
	t->message = MSG_NONE;
	settle_end(qp);
}

static int check_read(struct iwarp_qp *qp, const struct rdmap_read *r)
{
	struct key_entry *e;
	void *p;
	int error;

	if (!(qp->base.access & IBV_ACCESS_REMOTE_READ))
		return RDMAP_E_ACCESS;
	if (!r->size)
		return 0;
	error = segment_remote(qp, r->src_stag, r->src_to, r->size,
			       IBV_ACCESS_REMOTE_READ, &e, &p);
	if (!error)
		keys_put(e);
	return error;
}

static struct fpdu *make_response(struct iwarp_qp *qp)
{
	struct iwarp_tx *t = &qp->tx;
	const struct owed *o = &t->owed[t->owed_head & (t->owed_size - 1)];
	const struct rdmap_read *r = &o->read;
	struct ddp_hdr h = {
		.tagged = true,
		.version = DDP_VERSION,
		.ulp = rdmap_control(RDMAP_READ_RESPONSE),
		.stag = r->sink_stag,
	};
	struct fpdu *f;
	uint32_t len;

	t->turn = true;
	if (t->message == MSG_NONE) {
		int error = check_read(qp, r);

		if (error) {
			stop_peer(qp, o, error);
			return NULL;
		}
		t->offset = 0;
	}
	len = min_u32(r->size - t->offset, frame_room(qp, DDP_TAGGED_LEN));
	h.last = t->offset + len == r->size;
	h.to = r->sink_to + t->offset;
	f = frame_new(qp, &h, NULL, 0, len);
	f->from = FROM_KEY;
	f->stag = r->src_stag;
	f->va = r->src_to + t->offset;
	/* Whose it is, should that memory go: kept until the slot is needed. */
	f->wqe = t->owed_head;
	t->offset += len;
	t->message = h.last ? MSG_NONE : MSG_RESPONSE;
	if (h.last)
		t->owed_head++;
	return f;
}

void tx_terminate(struct iwarp_qp *qp, const struct rdmap_terminate *term)
{
	const struct ddp_hdr h = {
		.last = true,
		.version = DDP_VERSION,
		.ulp = rdmap_control(RDMAP_TERMINATE),
		.qn = RDMAP_Q_TERMINATE,
		.msn = qp->tx.msn[RDMAP_Q_TERMINATE]++,
	};
	uint8_t own[RDMAP_TERMINATE_MAX];
	size_t n = rdmap_terminate_encode(term, own);

	frame_new(qp, &h, own, (uint32_t)n, 0);
}

/* ---- batches ----------------------------------------------------------- */

static bool ring_full(const struct iwarp_qp *qp)
{
	return qp->tx.tail - qp->tx.head >= (qp->agreed.tx_markers ? 1 : RING);
}

/* One more FPDU, if there is something to make one of. */
static void make_fpdu(struct iwarp_qp *qp)
{
	for (;;) {
		const uint32_t tail = qp->tx.tail;

		switch (next_frame(qp)) {
		case NEXT_NOTHING:
			return;
		case NEXT_RTR:
			make_rtr(qp);
			return;
		case NEXT_RESPONSE:
			make_response(qp);
			break;
		case NEXT_WQE:
			make_request(qp);
			break;
		}
		if (qp->tx.tail != tail)
			return;
	}
}

/* The memory of FPDU i is not there, or not allowed any more. What is before it
 * leaves, what is behind it does not. */
static void fpdu_broken(struct iwarp_qp *qp, uint32_t i)
{
	struct qp_sq *sq = &qp->base.sq;
	struct iwarp_tx *t = &qp->tx;
	const struct fpdu f = *fpdu_at(qp, i);
	const bool cut = i == t->head && t->sent;

	if (f.from == FROM_WQE)
		check_sges(qp, qp_sq_slot(sq, f.wqe), 0); /* explains it */
	if (cut) {
		if (f.from == FROM_WQE) {
			iwarp_wqe(qp_sq_slot(sq, f.wqe))->fate =
				IBV_WC_LOC_PROT_ERR;
			sq->nxt += sq->nxt == f.wqe;
		}
		iwarp_end_lost(qp);
		return;
	}
	t->tail = i;
	if (f.from == FROM_WQE) {
		sq->nxt = f.wqe;
		stop_wqe(qp, IBV_WC_LOC_PROT_ERR);
	} else {
		const struct owed *o = &t->owed[f.wqe & (t->owed_size - 1)];
		struct key_entry *e;
		void *p;
		int error = segment_remote(qp, f.stag, f.va, f.len,
					   IBV_ACCESS_REMOTE_READ, &e, &p);

		if (!error)
			keys_put(e); /* then it is unmapped */
		stop_peer(qp, o, error ? error : RDMAP_E_PROTECTION);
	}
}

void iwarp_tx(struct iwarp_qp *qp, struct iwarp_batch *b, size_t max_bytes)
{
	struct iwarp_tx *t = &qp->tx;
	uint32_t i = t->head;

	b->bytes = b->data.n = b->data.nkeys = 0;
	if (!qp->started || qp->lost)
		return;
	for (;;) {
		int err;

		if (i == t->tail) {
			if (b->bytes >= max_bytes || ring_full(qp))
				break;
			make_fpdu(qp);
			if (i == t->tail)
				break;
		}
		err = frame_append(qp, b, fpdu_at(qp, i),
				   i == t->head ? t->sent : 0);
		if (!err) {
			i++;
			continue;
		}
		if (err == -EAGAIN)
			break;
		fpdu_broken(qp, i);
		if (qp->lost)
			break;
	}
	qp->base.doubt = false;
}

bool iwarp_tx_doubt(struct iwarp_qp *qp)
{
	const bool already = qp->base.doubt;

	qp->base.doubt = true;
	return !already;
}

static void report_fpdu(struct iwarp_qp *qp, const struct fpdu *f)
{
	struct iwarp_fpdu t = {
		.outbound = true,
		.last = f->end,
		/* What is behind the end of the QP has been flushed. */
		.has_wr = qp->up && f->from == FROM_WQE,
		.opcode = f->opcode,
		.number = qp->tx.fpdus,
		.len = f->payload,
	};

	if (t.has_wr)
		t.wr_id = qp_sq_slot(&qp->base.sq, f->wqe)->wr_id;
	iwarp_env(qp)->fpdu(&qp->base, &t);
}

void iwarp_tx_done(struct iwarp_qp *qp, struct iwarp_batch *b, size_t sent)
{
	struct iwarp_tx *t = &qp->tx;

	qp_pieces_put(&b->data);
	if (sent < b->bytes)
		qp->stats.tx_stalls++;
	while (sent && !tx_empty(qp)) {
		const struct fpdu *f = fpdu_at(qp, t->head);
		const uint32_t left = frame_len(f) - t->sent;

		if (sent < left) {
			t->sent += (uint32_t)sent;
			break;
		}
		sent -= left;
		t->sent = 0;
		t->head++;
		qp->stats.tx_pkts++;
		if (iwarp_env(qp)->fpdu)
			report_fpdu(qp, f);
		t->fpdus++;
		if (f->last)
			iwarp_wqe(qp_sq_slot(&qp->base.sq, f->wqe))->done =
				true;
	}
	tx_retire(qp);
}

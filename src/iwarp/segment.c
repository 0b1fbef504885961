/*
 * segment.c - what a DDP segment is for, and where its payload goes
 *
 * A segment is checked when its header is there, and its memory again for each
 * piece of payload, since a region may be deregistered in the middle. What it
 * leads to happens when its CRC is known to be right. What is wrong has a layer,
 * a type and a code, with which the connection ends (RFC 5040 4.8, RFC 5041 7).
 */
#include "iwarp_internal.h"

#include "base/store_tail.h"

/* ---- what is wrong ----------------------------------------------------- */

void segment_name(const struct iwarp_qp *qp, struct rdmap_terminate *t)
{
	t->has_ddp = true;
	t->segment_len = (uint16_t)qp->rx.ulpdu;
	t->ddp = qp->rx.h;
}

/* Errors that say nothing of a message, or where its header means nothing. */
static bool is_nameless(int e)
{
	return e == RDMAP_E_CATASTROPHIC || e == DDP_E_CATASTROPHIC ||
	       e == RDMAP_E_THIS_STREAM || e == DDP_E_TAGGED_VERSION ||
	       e == DDP_E_UNTAGGED_VERSION;
}

static void end_with(struct iwarp_qp *qp, int e)
{
	struct rdmap_terminate t = { .error = (uint16_t)e };

	if (!is_nameless(e))
		segment_name(qp, &t);
	iwarp_end(qp, &t);
}

/* The peer has broken a rule. */
static bool segment_fail(struct iwarp_qp *qp, int e)
{
	const char *name = rdmap_opcode_name(rdmap_opcode(qp->rx.h.ulp));

	explain(qp, "the peer sent %s that is wrong: %s",
		name ? name : "a message", rdmap_error_str((unsigned)e));
	end_with(qp, e);
	qp->base.env->event(&qp->base, IBV_EVENT_QP_FATAL);
	return false;
}

/* The peer may not do that. */
static bool fail_access(struct iwarp_qp *qp, int e)
{
	qp->stats.access_tx++;
	end_with(qp, e);
	qp->base.env->event(&qp->base, IBV_EVENT_QP_ACCESS_ERR);
	return false;
}

/* The receive at hand ends with an error of its own, and the connection. */
static bool fail_recv(struct iwarp_qp *qp, enum ibv_wc_status status, int e)
{
	struct ibv_wc wc = { .status = status, .opcode = IBV_WC_RECV };

	qp->base.recv_valid = false;
	qp_recv_complete(&qp->base, &qp->base.recv, &wc, false);
	end_with(qp, e);
	return false;
}

/* ---- remote keys ------------------------------------------------------- */

int segment_remote(struct iwarp_qp *qp, uint32_t stag, uint64_t va,
		   uint64_t len, uint32_t access, struct key_entry **e,
		   void **p)
{
	struct key_entry *k =
		keys_get_remote(qp->base.env->keys, stag, &qp->base.rkey_hint);
	int error;

	if (!k)
		return RDMAP_E_STAG;
	if (len && va > UINT64_MAX - (len - 1))
		error = RDMAP_E_WRAP;
	else if (k->pd != qp->base.pd ||
		 (k->kind == KEY_MW2 && k->qpn != qp->base.qpn))
		error = RDMAP_E_STREAM;
	else if ((k->access & access) != access)
		error = RDMAP_E_ACCESS;
	else if (!key_covers(k, qp->base.pd, va, len, access, p))
		error = RDMAP_E_BOUNDS;
	else
		error = 0;
	if (error)
		keys_put(k);
	else
		*e = k;
	return error;
}

/* Of tagged segments DDP finds all of that, but for the access. */
static int tagged_error(int e)
{
	switch (e) {
	case RDMAP_E_STAG:
		return DDP_E_STAG;
	case RDMAP_E_BOUNDS:
		return DDP_E_BOUNDS;
	case RDMAP_E_STREAM:
		return DDP_E_STREAM;
	case RDMAP_E_WRAP:
		return DDP_E_WRAP;
	default:
		return e;
	}
}

/* ---- sends ------------------------------------------------------------- */

static bool begin_send(struct iwarp_qp *qp)
{
	struct iwarp_rx *r = &qp->rx;
	const uint32_t offset = r->offset[RDMAP_Q_SEND];
	struct qp *base = &qp->base;

	if (base->recv_valid && r->send_opcode != r->opcode)
		return segment_fail(qp, RDMAP_E_OPCODE);
	if (r->h.mo != offset)
		return segment_fail(qp, DDP_E_OFFSET);
	if (!base->recv_valid) {
		if (qp_recv_take(base, 0, &base->recv)) {
			qp->stats.no_recv++;
			explain(qp, "a message arrived, but no receive was "
				    "posted, which ends an iWARP connection; "
				    "post receives before the peer sends");
			end_with(qp, DDP_E_NO_BUFFER);
			base->env->event(base, IBV_EVENT_QP_FATAL);
			return false;
		}
		qp_landing(base, &base->recv);
		base->recv_valid = true;
		r->send_opcode = r->opcode;
	}
	if (r->left <= base->recv.length &&
	    offset <= base->recv.length - r->left)
		return true;
	explain(qp,
		"a message of %llu bytes or more arrived for receive 0x%llx, "
		"which has room for %llu: post larger receive buffers",
		(unsigned long long)offset + r->left,
		(unsigned long long)base->recv.wr_id,
		(unsigned long long)base->recv.length);
	return fail_recv(qp, IBV_WC_LOC_LEN_ERR, DDP_E_TOO_LONG);
}

static bool place_send(struct iwarp_qp *qp, const uint8_t *p, uint32_t n)
{
	struct iwarp_rx *r = &qp->rx;
	struct qp *base = &qp->base;
	uint32_t bad;
	int err;

	err = qp_scatter(base, base->recv.pd, base->recv.sge,
			 base->recv.num_sge, r->offset[RDMAP_Q_SEND], p, n,
			 &bad);
	if (!err) {
		r->offset[RDMAP_Q_SEND] += n;
		return true;
	}
	if (err == -EFAULT)
		qp_explain_sge(base, "receive", base->recv.wr_id, bad,
			       &base->recv.sge[bad], base->recv.pd,
			       IBV_ACCESS_LOCAL_WRITE);
	return fail_recv(qp, IBV_WC_LOC_PROT_ERR, DDP_E_CATASTROPHIC);
}

static bool end_send(struct iwarp_qp *qp)
{
	struct iwarp_rx *r = &qp->rx;
	struct qp *base = &qp->base;
	struct ibv_wc wc = {
		.status = IBV_WC_SUCCESS,
		.opcode = IBV_WC_RECV,
		.byte_len = r->offset[RDMAP_Q_SEND],
	};

	if (!r->h.last)
		return true;
	r->offset[RDMAP_Q_SEND] = 0;
	r->msn[RDMAP_Q_SEND]++;
	if (r->opcode == RDMAP_SEND_INV || r->opcode == RDMAP_SEND_SE_INV) {
		if (!base->env->invalidate ||
		    base->env->invalidate(base, r->h.ulp_data)) {
			explain(qp,
				"send with invalidate of rkey 0x%08x refused: "
				"not a window of type 2 that is bound to this "
				"QP",
				r->h.ulp_data);
			return fail_recv(qp, IBV_WC_REM_INV_REQ_ERR,
					 RDMAP_E_INVALIDATE);
		}
		wc.wc_flags = IBV_WC_WITH_INV;
		wc.invalidated_rkey = r->h.ulp_data;
	}
	base->recv_valid = false;
	if (qp_recv_complete(base, &base->recv, &wc,
			     r->opcode == RDMAP_SEND_SE ||
				     r->opcode == RDMAP_SEND_SE_INV))
		return true;
	/* A full CQ ends the QP (class G); the event has been raised. */
	end_with(qp, RDMAP_E_CATASTROPHIC);
	return false;
}

/* ---- tagged ------------------------------------------------------------ */

static bool begin_write(struct iwarp_qp *qp)
{
	struct iwarp_rx *r = &qp->rx;
	struct key_entry *e;
	void *p;
	int error;

	r->to = r->h.to;
	if (!r->left)
		return true; /* then nothing is looked at */
	if (!(qp->base.access & IBV_ACCESS_REMOTE_WRITE)) {
		explain(qp,
			"a write with rkey 0x%08x refused: the QP's "
			"qp_access_flags lack IBV_ACCESS_REMOTE_WRITE: set "
			"that with IBV_QP_ACCESS_FLAGS",
			r->h.stag);
		return fail_access(qp, RDMAP_E_ACCESS);
	}
	error = segment_remote(qp, r->h.stag, r->h.to, r->left,
			       IBV_ACCESS_REMOTE_WRITE, &e, &p);
	if (!error) {
		keys_put(e);
		return true;
	}
	qp_explain_remote(&qp->base, "write", qp->base.pd, r->h.stag, r->h.to,
			  r->left, IBV_ACCESS_REMOTE_WRITE);
	return fail_access(qp, tagged_error(error));
}

static int store_write(struct iwarp_qp *qp, struct key_entry *e, void *to,
		       const uint8_t *p, uint32_t n)
{
	const struct iwarp_rx *r = &qp->rx;
	const struct qp_change c = { .kind = QP_CHANGE_WRITE,
				     .p = to,
				     .len = n,
				     .data = p,
				     .first = r->first && r->to == r->h.to,
				     .last = r->h.last && n == r->left };
	int err;

	if (!qp_is_noted(&qp->base) || e->kind == KEY_NULL)
		return qp_store(&qp->base, e, to, p, n);
	qp->base.env->changing(&qp->base, &c);
	err = qp_store(&qp->base, e, to, p, n);
	qp->base.env->changed(&qp->base, !err);
	return err;
}

static bool place_write(struct iwarp_qp *qp, const uint8_t *p, uint32_t n)
{
	struct iwarp_rx *r = &qp->rx;
	struct key_entry *e;
	void *to;
	int error = segment_remote(qp, r->h.stag, r->to, n,
				   IBV_ACCESS_REMOTE_WRITE, &e, &to);

	if (error)
		return fail_access(qp, tagged_error(error));
	error = store_write(qp, e, to, p, n);
	keys_put(e);
	if (error)
		return fail_access(qp, DDP_E_CATASTROPHIC);
	r->to += n;
	return true;
}

/* A read's response belongs to the oldest that has none yet. */
static bool begin_response(struct iwarp_qp *qp)
{
	struct iwarp_rx *r = &qp->rx;
	const struct iwarp_wqe *w;
	const struct ibv_sge *sge;
	uint32_t stag = 0;
	uint64_t to = 0;

	if (r->rtr)
		return !r->left && r->h.last ? true :
					       segment_fail(qp, DDP_E_BOUNDS);
	w = tx_read_first(qp);
	if (!w)
		return segment_fail(qp, RDMAP_E_OPCODE);
	sge = qp_wqe_sge(&qp->base.sq, (struct qp_wqe *)(uintptr_t)&w->base);
	if (w->base.num_sge) {
		stag = sge->lkey;
		to = sge->addr;
	}
	if (r->h.stag != stag)
		return segment_fail(qp, DDP_E_STAG);
	if (r->h.to != to + r->read_offset ||
	    r->left > w->base.length - r->read_offset ||
	    r->h.last != (r->read_offset + r->left == w->base.length))
		return segment_fail(qp, DDP_E_BOUNDS);
	return true;
}

static bool place_response(struct iwarp_qp *qp, const uint8_t *p, uint32_t n)
{
	struct iwarp_wqe *w = tx_read_first(qp);
	const struct ibv_sge *sge = qp_wqe_sge(&qp->base.sq, &w->base);
	uint32_t bad;
	int err;

	qp_arriving(&qp->base, &w->base, !qp->rx.read_offset);
	err = qp_scatter(&qp->base, qp->base.pd, sge, w->base.num_sge,
			 qp->rx.read_offset, p, n, &bad);
	if (!err) {
		qp->rx.read_offset += n;
		return true;
	}
	if (err == -EFAULT)
		qp_explain_sge(&qp->base, "read", w->base.wr_id, 0, sge,
			       qp->base.pd, IBV_ACCESS_LOCAL_WRITE);
	w->fate = IBV_WC_LOC_PROT_ERR;
	end_with(qp, DDP_E_CATASTROPHIC);
	return false;
}

static bool end_response(struct iwarp_qp *qp)
{
	struct iwarp_rx *r = &qp->rx;

	if (!r->h.last)
		return true;
	r->read_offset = 0;
	tx_read_done(qp, r->rtr ? NULL : tx_read_first(qp));
	r->rtr = false;
	return qp->up;
}

/* ---- what RDMAP has of its own ----------------------------------------- */

static bool begin_read(struct iwarp_qp *qp)
{
	struct iwarp_rx *r = &qp->rx;

	r->own_have = 0;
	if (r->h.mo)
		return segment_fail(qp, DDP_E_OFFSET);
	if (!r->h.last || r->left != RDMAP_READ_LEN)
		return segment_fail(qp, RDMAP_E_THIS_STREAM);
	if (tx_may_owe(qp))
		return true;
	explain(qp, "more reads under way than the %u that were agreed on",
		qp->agreed.ird);
	return segment_fail(qp, DDP_E_NO_BUFFER);
}

static bool end_read(struct iwarp_qp *qp)
{
	struct iwarp_rx *r = &qp->rx;
	struct rdmap_read read;

	rdmap_read_decode(&read, r->own);
	tx_owe(qp, &read, r->h.msn);
	r->msn[RDMAP_Q_READ]++;
	return true;
}

static bool same_read(const struct rdmap_read *a, const struct rdmap_read *b)
{
	return a->sink_stag == b->sink_stag && a->sink_to == b->sink_to &&
	       a->size == b->size && a->src_stag == b->src_stag &&
	       a->src_to == b->src_to;
}

/*
 * The read of ours that a Terminate names, or NULL. siw has its size where the
 * MSN should be, so of those that ask for the same the oldest is meant, which
 * is the next that a responder comes to, if none has that MSN.
 */
static struct iwarp_wqe *named_read(struct iwarp_qp *qp,
				    const struct rdmap_terminate *t)
{
	const struct qp_sq *sq = &qp->base.sq;
	struct iwarp_wqe *found = NULL;

	if (!t->has_ddp || rdmap_opcode(t->ddp.ulp) != RDMAP_READ_REQUEST)
		return NULL;
	for (uint32_t i = sq->head; i != sq->nxt; i++) {
		struct iwarp_wqe *w = iwarp_wqe(qp_sq_slot(sq, i));
		struct rdmap_read read;

		if (w->base.opcode != IBV_WR_RDMA_READ || w->done)
			continue;
		read = tx_read_request(qp, w);
		if (t->has_read && !same_read(&read, &t->read))
			continue;
		if (w->msn == t->ddp.msn)
			return w;
		if (t->has_read && !found)
			found = w;
	}
	return found;
}

/* What was wrong with a message of ours: a read's request is named. */
static bool blame_read(struct iwarp_qp *qp, const struct rdmap_terminate *t)
{
	struct iwarp_wqe *w = named_read(qp, t);

	if (!w)
		return false;
	w->fate = t->error >> 8 == RDMAP_E_STAG >> 8 ? IBV_WC_REM_ACCESS_ERR :
						       IBV_WC_REM_OP_ERR;
	return true;
}

/* The last message of the stream. There is no answer to it. */
static bool end_terminate(struct iwarp_qp *qp)
{
	struct rdmap_terminate t;
	bool blamed;

	if (rdmap_terminate_decode(&t, qp->rx.own, qp->rx.own_have))
		t = (struct rdmap_terminate){ .error = RDMAP_E_UNSPECIFIED };
	qp->term = t;
	qp->has_term = true;
	qp->term_sent = false;
	if (t.error >> 8 == RDMAP_E_STAG >> 8 ||
	    t.error >> 8 == DDP_E_STAG >> 8)
		qp->stats.access_rx++;
	if (t.has_read)
		explain(qp,
			"the peer has refused a read of %u bytes at 0x%llx "
			"with rkey 0x%08x, and ended the connection: %s",
			t.read.size, (unsigned long long)t.read.src_to,
			t.read.src_stag, rdmap_error_str(t.error));
	else if (t.has_ddp && t.ddp.tagged)
		explain(qp,
			"the peer has refused a write at 0x%llx with rkey "
			"0x%08x, and ended the connection: %s",
			(unsigned long long)t.ddp.to, t.ddp.stag,
			rdmap_error_str(t.error));
	else
		explain(qp,
			"the peer has ended the connection by a Terminate "
			"message, layer %u, type %u, code 0x%02x: %s",
			t.error >> 12, t.error >> 8 & 0xf, t.error & 0xff,
			rdmap_error_str(t.error));
	blamed = blame_read(qp, &t);
	iwarp_end(qp, NULL);
	if (!blamed)
		qp->base.env->event(&qp->base, IBV_EVENT_QP_FATAL);
	return false;
}

static bool place_own(struct iwarp_qp *qp, const uint8_t *p, uint32_t n)
{
	struct iwarp_rx *r = &qp->rx;

	/* A Terminate may be longer than what is of interest in it. */
	n = min_u32(n, (uint32_t)sizeof(r->own) - r->own_have);
	memcpy(r->own + r->own_have, p, n);
	r->own_have += n;
	return true;
}

/* ---- any --------------------------------------------------------------- */

static uint32_t queue_of(unsigned opcode)
{
	if (opcode == RDMAP_READ_REQUEST)
		return RDMAP_Q_READ;
	return opcode == RDMAP_TERMINATE ? RDMAP_Q_TERMINATE : RDMAP_Q_SEND;
}

static bool begin_tagged(struct iwarp_qp *qp)
{
	struct iwarp_rx *r = &qp->rx;

	if (!rdmap_is_tagged(r->opcode))
		return segment_fail(qp, RDMAP_E_OPCODE);
	/* Messages of one kind are not mixed. */
	if (r->tagged && r->tagged_opcode != r->opcode)
		return segment_fail(qp, RDMAP_E_OPCODE);
	r->first = !r->tagged;
	r->tagged = !r->h.last;
	r->tagged_opcode = r->opcode;
	return r->opcode == RDMAP_WRITE ? begin_write(qp) : begin_response(qp);
}

static bool begin_untagged(struct iwarp_qp *qp)
{
	struct iwarp_rx *r = &qp->rx;

	if (r->h.qn >= RDMAP_QUEUES)
		return segment_fail(qp, DDP_E_QUEUE);
	if (rdmap_is_tagged(r->opcode) || r->h.qn != queue_of(r->opcode))
		return segment_fail(qp, RDMAP_E_OPCODE);
	if (r->h.msn != r->msn[r->h.qn])
		return segment_fail(qp, DDP_E_MSN);
	if (r->opcode == RDMAP_READ_REQUEST)
		return begin_read(qp);
	if (rdmap_is_send(r->opcode))
		return begin_send(qp);
	r->own_have = 0;
	return true;
}

bool segment_begin(struct iwarp_qp *qp)
{
	struct iwarp_rx *r = &qp->rx;

	ddp_decode(&r->h, r->head + MPA_LEN_LEN, r->need - MPA_LEN_LEN);
	r->opcode = (uint8_t)rdmap_opcode(r->h.ulp);
	if (r->h.version != DDP_VERSION)
		return segment_fail(qp, r->h.tagged ? DDP_E_TAGGED_VERSION :
						      DDP_E_UNTAGGED_VERSION);
	if (rdmap_version(r->h.ulp) != RDMAP_VERSION)
		return segment_fail(qp, RDMAP_E_VERSION);
	if (r->opcode >= RDMAP_OPCODES)
		return segment_fail(qp, RDMAP_E_OPCODE);
	return r->h.tagged ? begin_tagged(qp) : begin_untagged(qp);
}

bool segment_place(struct iwarp_qp *qp, const uint8_t *p, uint32_t n)
{
	switch (qp->rx.opcode) {
	case RDMAP_WRITE:
		return place_write(qp, p, n);
	case RDMAP_READ_RESPONSE:
		return place_response(qp, p, n);
	case RDMAP_READ_REQUEST:
	case RDMAP_TERMINATE:
		return place_own(qp, p, n);
	default:
		return place_send(qp, p, n);
	}
}

bool segment_end(struct iwarp_qp *qp)
{
	struct iwarp_tx *t = &qp->tx;

	if (t->hold) {
		t->hold = false;
		if (qp->agreed.rtr && iwarp_env(qp)->established)
			iwarp_env(qp)->established(&qp->base);
	}
	switch (qp->rx.opcode) {
	case RDMAP_WRITE:
		return true;
	case RDMAP_READ_RESPONSE:
		return end_response(qp);
	case RDMAP_READ_REQUEST:
		return end_read(qp);
	case RDMAP_TERMINATE:
		return end_terminate(qp);
	default:
		return end_send(qp);
	}
}

/* ---- payload that the socket places ------------------------------------ */

/* [va, va + len) of a key is one piece more; false: it is not to be. */
static bool add_piece(struct iwarp_qp *qp, struct iovec *iov, size_t max,
		      struct key_entry *e, uint64_t va, uint32_t len,
		      uint32_t access)
{
	struct placing *pl = &qp->rx.placing;
	void *p;

	if (!e)
		return false;
	if (pl->n == max || pl->nkeys == QP_MAX_SGE || e->kind == KEY_NULL ||
	    e->access & IBV_ACCESS_ON_DEMAND ||
	    !key_covers(e, qp->base.pd, va, len, access, &p)) {
		keys_put(e);
		return false;
	}
	pl->key[pl->nkeys++] = e;
	pl->bytes += len;
	iov[pl->n++] = (struct iovec){ p, len };
	return true;
}

static void pieces_of_sges(struct iwarp_qp *qp, struct iovec *iov, size_t max,
			   const struct ibv_sge *sge, uint32_t num_sge,
			   uint32_t offset)
{
	uint32_t left = qp->rx.left;

	for (uint32_t i = 0; i < num_sge && left; i++) {
		uint32_t n;

		if (offset >= sge[i].length) {
			offset -= sge[i].length;
			continue;
		}
		n = min_u32(sge[i].length - offset, left);
		if (!add_piece(qp, iov, max,
			       keys_get_local(qp->base.env->keys, sge[i].lkey,
					      &qp->base.lkey_hint),
			       sge[i].addr + offset, n, IBV_ACCESS_LOCAL_WRITE))
			return;
		left -= n;
		offset = 0;
	}
}

/* A program that spins on the last byte finds all others (base/store_tail.h):
 * the kernel promises no order within a piece. Where that is not enough, the
 * last bytes go the ordinary way. */
static void divide_last(struct iwarp_qp *qp, struct iovec *iov, size_t max)
{
	struct placing *pl = &qp->rx.placing;
	struct iovec *last = &iov[pl->n - 1];
	const size_t tail = store_tail(last->iov_len);

	if (!STORE_IN_ORDER && pl->bytes == qp->rx.left) {
		last->iov_len -= tail;
		pl->bytes -= tail;
		pl->n -= !last->iov_len;
		return;
	}
	if (pl->n == max || pl->bytes < qp->rx.left || tail == last->iov_len)
		return;
	last->iov_len -= tail;
	iov[pl->n++] =
		(struct iovec){ (uint8_t *)last->iov_base + last->iov_len,
				tail };
}

void segment_pieces(struct iwarp_qp *qp, struct iovec *iov, size_t max)
{
	struct iwarp_rx *r = &qp->rx;
	struct qp *base = &qp->base;
	struct iwarp_wqe *w;
	struct key_entry *e;
	void *p;

	r->placing.n = r->placing.nkeys = r->placing.bytes = 0;
	switch (r->opcode) {
	case RDMAP_WRITE:
		if (!segment_remote(qp, r->h.stag, r->to, r->left,
				    IBV_ACCESS_REMOTE_WRITE, &e, &p))
			add_piece(qp, iov, max, e, r->to, r->left,
				  IBV_ACCESS_REMOTE_WRITE);
		break;
	case RDMAP_READ_RESPONSE:
		w = tx_read_first(qp);
		pieces_of_sges(qp, iov, max, qp_wqe_sge(&base->sq, &w->base),
			       w->base.num_sge, r->read_offset);
		break;
	case RDMAP_READ_REQUEST:
	case RDMAP_TERMINATE:
		break;
	default:
		/* An SRQ's receive names keys of the SRQ's PD. */
		if (base->recv.pd == base->pd)
			pieces_of_sges(qp, iov, max, base->recv.sge,
				       base->recv.num_sge,
				       r->offset[RDMAP_Q_SEND]);
		break;
	}
	if (r->placing.n)
		divide_last(qp, iov, max);
}

void segment_placed(struct iwarp_qp *qp, uint32_t n)
{
	struct iwarp_rx *r = &qp->rx;

	if (r->opcode == RDMAP_WRITE)
		r->to += n;
	else if (r->opcode == RDMAP_READ_RESPONSE)
		r->read_offset += n;
	else
		r->offset[RDMAP_Q_SEND] += n;
}

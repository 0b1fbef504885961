/*
 * execute.c - carries out a request that has passed the checks
 *
 * Memory is looked at again for each packet: a region may be deregistered in
 * mid-message.
 */
#include "responder.h"

/* What a failed copy means: else_v, unless it is the sender's memory that
 * failed. */
static enum verdict not_read(int err, enum verdict else_v)
{
	if (err == -ESTALE || err == -EACCES)
		return DROP;
	return err == -EAGAIN ? V_AGAIN : else_v;
}

__attribute__((noinline, cold)) static enum verdict
too_long(struct roce_qp *qp, const struct roce_rx *pkt, uint32_t f)
{
	explain(qp,
		"a message of more than %u bytes arrived for receive 0x%llx, "
		"which has room for %llu: post larger receive buffers",
		qp->rsp.offset + (uint32_t)pkt->len - (f & ROCE_F_LAST ? 1 : 0),
		(unsigned long long)qp->base.recv.wr_id,
		(unsigned long long)qp->base.recv.length);
	return V_LENGTH;
}

/* The message could not be stored, because of the receive's SGE bad perhaps. */
__attribute__((noinline, cold)) static enum verdict
not_stored(struct roce_qp *qp, int err, uint32_t bad)
{
	if (err == -EFAULT)
		qp_explain_sge(&qp->base, "receive", qp->base.recv.wr_id, bad,
			       &qp->base.recv.sge[bad], qp->base.recv.pd,
			       IBV_ACCESS_LOCAL_WRITE);
	return not_read(err, V_OPERATIONAL);
}

RSP_INLINE enum verdict exec_send(struct roce_qp *qp, const struct roce_rx *pkt,
				  uint32_t f)
{
	struct roce_responder *r = &qp->rsp;
	uint32_t bad = 0;
	int err;

	if (f & ROCE_F_FIRST)
		r->offset = 0;
	if (pkt->len > qp->base.recv.length ||
	    r->offset > qp->base.recv.length - pkt->len)
		return too_long(qp, pkt, f);
	if (pkt->source)
		err = qp_scatter_from(&qp->base, qp->base.recv.pd,
				      qp->base.recv.sge, qp->base.recv.num_sge,
				      r->offset, pkt->source, pkt->len, &bad);
	else
		err = qp_scatter(&qp->base, qp->base.recv.pd, qp->base.recv.sge,
				 qp->base.recv.num_sge, r->offset, pkt->payload,
				 pkt->len, &bad);
	if (err)
		return not_stored(qp, err, bad);
	r->offset += (uint32_t)pkt->len;
	return PASS;
}

static inline int store_write(struct roce_qp *qp, const struct key_entry *e,
			      void *p, const struct roce_rx *pkt)
{
	return pkt->source ?
		       qp_store_from(&qp->base, e, p, pkt->source, pkt->len) :
		       qp_store(&qp->base, e, p, pkt->payload, pkt->len);
}

/* The same where somebody asks what comes where. */
__attribute__((noinline, cold)) static int
store_noted(struct roce_qp *qp, const struct key_entry *e, void *p,
	    const struct roce_rx *pkt, uint32_t f)
{
	const struct qp_change c = {
		.kind = QP_CHANGE_WRITE,
		.p = p,
		.len = pkt->len,
		.data = pkt->source ? NULL : pkt->payload,
		.first = f & ROCE_F_FIRST,
		.last = f & ROCE_F_LAST,
	};
	int err;

	if (e->kind == KEY_NULL)
		return store_write(qp, e, p, pkt);
	qp->base.env->changing(&qp->base, &c);
	err = store_write(qp, e, p, pkt);
	qp->base.env->changed(&qp->base, !err);
	return err;
}

static enum verdict exec_write(struct roce_qp *qp, const struct roce_rx *pkt,
			       uint32_t f)
{
	struct roce_responder *r = &qp->rsp;
	struct key_entry *e;
	void *p;

	if (f & ROCE_F_FIRST) {
		qp->stats.rx_writes++;
		r->va = pkt->h.va;
		r->rkey = pkt->h.rkey;
		r->pd = r->req_pd;
		r->left = pkt->h.dma_len;
		r->offset = 0;
	}
	/* The length announced must be the length that comes (9.7.4.1.6). */
	if (pkt->len > r->left || (f & ROCE_F_LAST && pkt->len != r->left))
		return V_INVALID;
	if (pkt->len) {
		int err;

		e = qp_remote(&qp->base, r->pd, r->rkey, r->va, pkt->len,
			      IBV_ACCESS_REMOTE_WRITE, &p);
		if (!e) {
			qp_explain_remote(&qp->base, "write", r->pd, r->rkey,
					  r->va, pkt->len,
					  IBV_ACCESS_REMOTE_WRITE);
			return V_ACCESS;
		}
		err = qp_is_noted(&qp->base) ? store_noted(qp, e, p, pkt, f) :
					       store_write(qp, e, p, pkt);
		keys_put(e);
		if (err)
			return not_read(err, V_ACCESS);
	}
	r->va += pkt->len;
	r->left -= (uint32_t)pkt->len;
	r->offset += (uint32_t)pkt->len;
	return PASS;
}

struct atomic {
	uint8_t op; /* without the service */
	uint64_t *p;
	uint64_t compare, operand;
	uint64_t orig;
};

static void atomic_run(void *arg)
{
	struct atomic *a = arg;

	if (a->op == ROCE_ATOMIC_WRITE) {
		a->orig = a->operand;
		__atomic_store_n(a->p, a->operand, __ATOMIC_SEQ_CST);
	} else if (a->op == ROCE_CMP_SWAP) {
		/* Only here: rxe leaves garbage in a FetchAdd's field. */
		a->orig = a->compare;
		__atomic_compare_exchange_n(a->p, &a->orig, a->operand, false,
					    __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
	} else {
		a->orig =
			__atomic_fetch_add(a->p, a->operand, __ATOMIC_SEQ_CST);
	}
}

/* At a time when no other process of the host does the same there. */
static int atomic_alone(struct roce_qp *qp, const struct key_entry *e,
			struct atomic *a)
{
	const struct qp_env *env = qp->base.env;
	int err = qp_touch(&qp->base, e, a->p, 8, true);

	if (err)
		return err;
	if (env->atomic_lock && env->atomic_lock(&qp->base, a->p)) {
		explain(qp,
			"an atomic at 0x%llx has to wait: another process of "
			"this host is in the middle of one, and stopped",
			(unsigned long long)(uintptr_t)a->p);
		return -EBUSY;
	}
	err = qp_access(&qp->base, atomic_run, a, a->p, 8);
	if (env->atomic_lock)
		env->atomic_unlock(&qp->base, a->p);
	return err;
}

__attribute__((noinline, cold)) static int
atomic_noted(struct roce_qp *qp, const struct key_entry *e, struct atomic *a)
{
	const bool write = a->op == ROCE_ATOMIC_WRITE;
	const struct qp_change c = {
		.kind = write                  ? QP_CHANGE_WRITE :
			a->op == ROCE_CMP_SWAP ? QP_CHANGE_SWAP :
						 QP_CHANGE_ADD,
		.p = a->p,
		.len = 8,
		.data = write ? &a->operand : NULL,
		.first = true,
		.last = true,
	};
	int err;

	qp->base.env->changing(&qp->base, &c);
	err = atomic_alone(qp, e, a);
	qp->base.env->changed(&qp->base, !err);
	return err;
}

static enum verdict exec_atomic(struct roce_qp *qp, const struct roce_rx *pkt)
{
	struct roce_responder *r = &qp->rsp;
	const struct roce_hdr *h = &pkt->h;
	bool write = (h->opcode & 0x1f) == ROCE_ATOMIC_WRITE;
	enum resp_kind kind = write ? RESP_ATOMIC_WRITE : RESP_ATOMIC;
	struct atomic a = { .op = h->opcode & 0x1f,
			    .compare = h->compare,
			    .operand = h->swap_add };
	struct key_entry *e;
	void *p;
	int err;

	e = qp_remote(
		&qp->base, r->req_pd, h->rkey, h->va, 8,
		write ? IBV_ACCESS_REMOTE_WRITE : IBV_ACCESS_REMOTE_ATOMIC, &p);
	if (!e)
		return V_ACCESS;
	if ((uintptr_t)p & 7) {
		keys_put(e);
		return V_INVALID;
	}
	a.p = p;
	if (write)
		memcpy(&a.operand, pkt->payload, 8);
	err = qp_is_noted(&qp->base) ? atomic_noted(qp, e, &a) :
				       atomic_alone(qp, e, &a);
	keys_put(e);
	if (err)
		return err == -EBUSY ? V_RNR : V_ACCESS;
	r->atomics[r->atomics_next] = (struct roce_atomic_done){
		.kind = kind,
		.stream_pos = r->stream_pos,
		.orig = a.orig,
	};
	r->atomics_next = (r->atomics_next + 1) % r->atomics_size;
	rsp_owe_atomic(qp, kind, h->psn, psn_add(r->msn, 1), a.orig, false);
	qp->stats.rx_atomics++;
	return PASS;
}

/*
 * The message has ended: complete the receive it used, if it used one. Where
 * the CQ has no room the QP ends (class G): what it was to acknowledge before
 * is acknowledged, this message is not.
 */
RSP_INLINE enum verdict deliver(struct roce_qp *qp, const struct roce_rx *pkt,
				uint32_t f)
{
	struct roce_responder *r = &qp->rsp;
	bool owed = r->ack_pending;
	/* No IBV_WC_GRH, which rxe sets: only UD has a GRH (11.4.2.1). */
	struct ibv_wc wc = {
		.status = IBV_WC_SUCCESS,
		.opcode = f & ROCE_F_WRITE ? IBV_WC_RECV_RDMA_WITH_IMM :
					     IBV_WC_RECV,
		.byte_len = r->offset,
	};

	if (f & ROCE_F_WRITE && !(f & ROCE_F_IMM))
		return PASS;
	if (f & ROCE_F_IMM) {
		wc.wc_flags |= IBV_WC_WITH_IMM;
		wc.imm_data = pkt->h.imm;
	} else if (f & ROCE_F_IETH) {
		wc.wc_flags |= IBV_WC_WITH_INV;
		wc.invalidated_rkey = pkt->h.inv_rkey;
	}
	qp->base.recv_valid = false;
	if (roce_recv_complete(qp, &qp->base.recv, &wc, pkt->h.solicited))
		return PASS;
	r->ack_pending = owed;
	return V_CQ_FULL;
}

static void remember_read(struct roce_responder *r, uint32_t npkts)
{
	r->reads[r->reads_next] =
		(struct roce_read_done){ r->stream_pos, npkts };
	r->reads_next = (r->reads_next + 1) % r->reads_size;
	if (r->reads_unknown)
		r->reads_unknown--;
}

RSP_INLINE enum verdict execute(struct roce_qp *qp, const struct roce_rx *pkt,
				const uint32_t f)
{
	struct roce_responder *r = &qp->rsp;
	enum verdict v = PASS;
	uint32_t span = span_of(pkt->len, qp->mtu);

	if (f & ROCE_F_READ) {
		span = pkts_of(pkt->h.dma_len, qp->mtu);
		r->msn = psn_add(r->msn, 1);
		rsp_owe_read(qp, &pkt->h, false);
		qp->stats.rx_reads++;
		remember_read(r, span);
	} else if (f & ROCE_F_ATOMIC) {
		v = exec_atomic(qp, pkt);
		if (v == PASS)
			r->msn = psn_add(r->msn, 1);
	} else {
		v = f & ROCE_F_SEND ? exec_send(qp, pkt, f) :
				      exec_write(qp, pkt, f);
		if (v == PASS && f & ROCE_F_IETH &&
		    (!qp->base.env->invalidate ||
		     qp->base.env->invalidate(&qp->base, pkt->h.inv_rkey))) {
			explain(qp,
				"send with invalidate of rkey 0x%08x refused: "
				"not a window of type 2 that is bound to this "
				"QP",
				pkt->h.inv_rkey);
			v = V_INVALIDATE;
		}
		if (v == PASS && f & ROCE_F_LAST)
			v = deliver(qp, pkt, f);
	}
	if (v != PASS)
		return v;
	r->epsn = psn_add(r->epsn, span);
	r->stream_pos += span;
	r->nak_seq_sent = r->rnr_sent = false;
	if (r->nak_syndrome == (ROCE_AETH_NAK | ROCE_NAK_PSN))
		r->nak_pending = false; /* the gap is closed before it left */
	/*
	 * Reads and atomics are acknowledged by their own responses. An ACK
	 * with the PSN of one asks its requester to do it again (9.7.5.1.1),
	 * and should it overtake the response, rxe gives up the QP.
	 */
	r->ack_back = f & (ROCE_F_READ | ROCE_F_ATOMIC) ?
			      (r->ack_back + span) & PSN_MASK :
			      0;
	if (f & (ROCE_F_READ | ROCE_F_ATOMIC))
		return PASS;
	if (f & ROCE_F_LAST) {
		r->in = IN_NOTHING;
		r->msn = psn_add(r->msn, 1);
	} else {
		r->in = f & ROCE_F_SEND ? IN_SEND : IN_WRITE;
	}
	return PASS;
}

enum verdict rsp_execute(struct roce_qp *qp, const struct roce_rx *pkt,
			 uint32_t f)
{
	return execute(qp, pkt, f);
}

enum verdict rsp_execute_send(struct roce_qp *qp, const struct roce_rx *pkt)
{
	return execute(qp, pkt, RSP_SEND_ONLY);
}

/*
 * requester.c - from the send queue to request packets (RC and UC)
 *
 * PSNs are given to work requests when they are posted, so a PSN says which
 * WQE and which byte it carries: sending again is setting nxt_psn back, and
 * nothing about a packet has to be remembered. A read takes as many PSNs as
 * its response has packets, and is asked for in chunks of whole packets, each
 * a read request of its own: so the data in flight is bounded by the window as
 * that of a write is, whatever the program asks for at once.
 *
 * RC keeps at most cwnd packets between una and nxt_psn, see congestion.c: what
 * overflows on the path is a socket buffer, and nothing else holds the sender
 * back.
 *
 * What is sent again, and when, is decided in recovery.c.
 *
 * A link within the host may take packets that are longer than the MTU. Such a
 * packet stands for as many PSNs as it has MTUs, so that a message has the same
 * PSNs whichever way its parts go, and may be sent again by another. Its
 * payload may be read where the program has it when the packet is received:
 * what is sent again, because that failed perhaps, has it copied.
 */
#include "roce_internal.h"

/* Read requests are for at most this much, and always whole packets. */
#define READ_CHUNK 65536u
#define READ_CHUNK_LARGE (1u << 20)

/* An ACK may wait until so much has been sent. */
#define SHORT_BYTES 32768u
/* PSNs that may be out where large packets can be. */
#define LARGE_WINDOW (1u << 18)

/* Ask for an acknowledgement at least this often within a message; or so often in
 * the widest window. */
#define ACK_EVERY 16u
#define ACKS_A_WINDOW 4u
#define UNLOST_NS (1000 * MSEC) /* a path that loses nothing for so long */

void req_init(struct roce_qp *qp)
{
	struct roce_requester *r = &qp->req;

	memset(r, 0, sizeof(*r));
	r->post_psn = r->una = r->nxt_psn = r->end_psn = qp->base.attr.sq_psn;
	cc_init(qp);
	r->read_chunk = READ_CHUNK / (qp->mtu ? qp->mtu : 1024);
}

int roce_post_send(struct roce_qp *qp, const struct ibv_send_wr *wr,
		   const struct roce_path *ud)
{
	struct qp_wqe *w;
	uint32_t psn = qp->req.post_psn, npkts = 0;
	int err = qp_post_send(&qp->base, wr, &w);

	if (err)
		return err;
	if (qp->base.type == IBV_QPT_UD && w->status == IBV_WC_SUCCESS) {
		err = ud_post(qp, w, wr, ud);
		if (err)
			return err;
	}
	if (!qp_post_done(&qp->base))
		return 0;
	if (!w->local)
		npkts = pkts_of(w->length, qp->mtu);
	roce_wqe(w)->simple = npkts == 1 && qp->service == ROCE_RC &&
			      !qp_wqe_has_response(w) &&
			      !(w->flags & IBV_SEND_FENCE) &&
			      w->status == IBV_WC_SUCCESS;
	roce_wqe(w)->first_psn = psn;
	roce_wqe(w)->last_psn = psn_add(psn, npkts - 1);
	roce_wqe(w)->remote_srqn = qp->base.type == IBV_QPT_XRC_SEND ?
					   wr->qp_type.xrc.remote_srqn :
					   0;
	qp->req.post_psn = psn_add(psn, npkts);
	return 0;
}

struct roce_sq_mark roce_sq_mark(const struct roce_qp *qp)
{
	return (struct roce_sq_mark){ qp->base.sq.tail, qp->req.post_psn };
}

void roce_sq_undo(struct roce_qp *qp, struct roce_sq_mark mark)
{
	if (qp->base.state == IBV_QPS_ERR || qp->base.state == IBV_QPS_SQE)
		return;
	qp->base.sq.tail = mark.tail;
	qp->req.post_psn = mark.psn;
}

void req_rewind(struct roce_qp *qp, uint32_t psn)
{
	struct roce_requester *r = &qp->req;
	uint32_t i;

	if (psn_diff(psn, r->nxt_psn) >= 0)
		return;
	for (i = qp->base.sq.head; i != qp->base.sq.tail; i++) {
		struct qp_wqe *w = qp_sq_slot(&qp->base.sq, i);

		if (!w->local && psn_diff(psn, roce_wqe(w)->last_psn) <= 0)
			break;
	}
	qp->base.sq.nxt = i;
	r->nxt_psn = psn;
	/* Everything from here on is asked for again. */
	if (psn_diff(psn, r->una) <= 0)
		r->rd_out = 0;
}

void req_may_be_drained(struct roce_qp *qp)
{
	/* Drained: nothing that was begun is still on its way, or has to be
	 * sent again. */
	if (qp->base.sq.head != qp->base.sq.nxt ||
	    (qp_is_reliable(&qp->base) && qp->req.una != qp->req.end_psn) ||
	    (qp->base.sq.nxt != qp->base.sq.tail &&
	     qp->req.nxt_psn !=
		     roce_wqe(qp_sq_slot(&qp->base.sq, qp->base.sq.nxt))
			     ->first_psn))
		return;
	qp_drained(&qp->base);
}

void req_arm(struct roce_qp *qp, uint64_t now_ns)
{
	qp->req.progress_ns = now_ns;
	comp_arm(qp, now_ns);
}

/* A read, atomic or fence further ahead than this WQE is not finished. */
static bool responses_outstanding(const struct roce_qp *qp)
{
	for (uint32_t i = qp->base.sq.head; i != qp->base.sq.nxt; i++)
		if (qp_wqe_has_response(qp_sq_slot(&qp->base.sq, i)))
			return true;
	return false;
}

/*
 * Whether there is room for more after the next `ahead` packets. Behind a gap
 * that is being closed most have arrived and are kept, so as many again may be
 * out.
 */
static inline bool window_room(const struct roce_qp *qp, uint32_t ahead)
{
	const struct roce_requester *r = &qp->req;
	uint32_t out = (uint32_t)psn_diff(r->nxt_psn, r->una) + ahead;

	return out < (r->large ? LARGE_WINDOW :
				 (r->cc.cwnd << (r->rec.mode == SELECTIVE)) /
					 CWND_UNIT);
}

static bool window_open(const struct roce_qp *qp, uint32_t ahead)
{
	return !qp_is_reliable(&qp->base) || window_room(qp, ahead);
}

/* Whether the WQE at nxt may go on (or begin) now. */
static bool may_send(const struct roce_qp *qp, const struct qp_wqe *w)
{
	bool begun = !w->local && qp->req.nxt_psn != roce_wqe(w)->first_psn;
	bool again = psn_diff(qp->req.end_psn, qp->req.nxt_psn) > 0;

	if (w->status != IBV_WC_SUCCESS)
		return false; /* fails when it is the oldest */
	/* SQD: what was begun is finished, nothing new is begun. */
	if (qp->base.state != IBV_QPS_RTS &&
	    (qp->base.state != IBV_QPS_SQD || (!begun && !again)))
		return false;
	if (!begun && !again && w->flags & IBV_SEND_FENCE &&
	    responses_outstanding(qp))
		return false;
	if (w->local)
		return true;
	if (!begun && !again && roce_direct_waits(qp, w))
		return false;
	if (qp_wqe_has_response(w) &&
	    qp->req.rd_out >= qp->base.attr.max_rd_atomic)
		return false;
	return window_open(qp, 0);
}

/*
 * Whether w, next to be sent, is what most requests are: new, of one packet,
 * and kept by nothing but the window. False is always allowed.
 */
static bool is_simple(const struct roce_qp *qp, const struct qp_wqe *w)
{
	return roce_wqe(w)->simple && qp->base.state == IBV_QPS_RTS &&
	       qp->req.nxt_psn == qp->req.end_psn &&
	       !(w->opcode == IBV_WR_RDMA_WRITE && roce_direct_waits(qp, w));
}

bool req_is_one(const struct roce_qp *qp)
{
	const struct qp_sq *sq = &qp->base.sq;
	const struct qp_wqe *w;

	if (sq->tail - sq->nxt != 1) /* there may be no ring */
		return false;
	w = qp_sq_slot(sq, sq->nxt);
	if (qp->req.rnr_until_ns || probe_is_due(&qp->req) || !w->length)
		return false;
	if (is_simple(qp, w))
		return window_open(qp, 0);
	return w->length <= SHORT_BYTES && !w->local &&
	       !qp_wqe_has_response(w) && qp->req.nxt_psn == qp->req.end_psn &&
	       qp->req.nxt_psn == roce_wqe(w)->first_psn && may_send(qp, w);
}

bool req_ready(const struct roce_qp *qp)
{
	if (probe_is_due(&qp->req))
		return true;
	if (qp->base.sq.nxt == qp->base.sq.tail || qp->req.rnr_until_ns)
		return false;
	if (qp->base.type == IBV_QPT_UD)
		return qp->base.state == IBV_QPS_RTS;
	if (qp_sq_slot(&qp->base.sq, qp->base.sq.nxt)->status != IBV_WC_SUCCESS)
		return qp->base.sq.head == qp->base.sq.nxt &&
		       may_fail(qp, qp_sq_slot(&qp->base.sq, qp->base.sq.nxt));
	return may_send(qp, qp_sq_slot(&qp->base.sq, qp->base.sq.nxt));
}

/*
 * Fails a WQE that cannot be sent. It completes when those before it have, and
 * until then nothing behind it is sent.
 */
static void fail_later(struct roce_qp *qp, struct qp_wqe *w)
{
	w->status = IBV_WC_LOC_PROT_ERR;
	roce_wqe(w)->simple = false;
	comp_head(qp);
}

static void run_local(struct roce_qp *qp, struct qp_wqe *w)
{
	qp_run_local(&qp->base, w);
	if (w->status == IBV_WC_SUCCESS)
		qp->base.sq.nxt++;
	comp_head(qp);
}

/*
 * Whether the packet at nxt_psn takes its payload with it. What is not
 * acknowledged has left when the link has taken it, so that the program may use
 * its memory again.
 */
static inline bool must_copy(struct roce_qp *qp)
{
	return recovery_copies(&qp->req) || qp->service != ROCE_RC;
}

#define ALWAYS(op)                                                             \
	{                                                                      \
		op, op, op, op                                                 \
	}

/* By place in the message: middle, first, last, and both. */
static const uint8_t request_ops[][4] = {
	[IBV_WR_RDMA_WRITE] = { ROCE_WRITE_MIDDLE, ROCE_WRITE_FIRST,
				ROCE_WRITE_LAST, ROCE_WRITE_ONLY },
	[IBV_WR_RDMA_WRITE_WITH_IMM] = { ROCE_WRITE_MIDDLE, ROCE_WRITE_FIRST,
					 ROCE_WRITE_LAST_IMM,
					 ROCE_WRITE_ONLY_IMM },
	[IBV_WR_SEND] = { ROCE_SEND_MIDDLE, ROCE_SEND_FIRST, ROCE_SEND_LAST,
			  ROCE_SEND_ONLY },
	[IBV_WR_SEND_WITH_IMM] = { ROCE_SEND_MIDDLE, ROCE_SEND_FIRST,
				   ROCE_SEND_LAST_IMM, ROCE_SEND_ONLY_IMM },
	[IBV_WR_SEND_WITH_INV] = { ROCE_SEND_MIDDLE, ROCE_SEND_FIRST,
				   ROCE_SEND_LAST_INV, ROCE_SEND_ONLY_INV },
	[IBV_WR_RDMA_READ] = ALWAYS(ROCE_READ_REQUEST),
	[IBV_WR_ATOMIC_CMP_AND_SWP] = ALWAYS(ROCE_CMP_SWAP),
	[IBV_WR_ATOMIC_FETCH_AND_ADD] = ALWAYS(ROCE_FETCH_ADD),
	[IBV_WR_ATOMIC_WRITE] = ALWAYS(ROCE_ATOMIC_WRITE),
};

/* PSNs that the packet at nxt_psn stands for; of a read request, those of its
 * responses. */
static uint32_t request_span(struct roce_qp *qp, const struct roce_batch *b,
			     const struct qp_wqe *w)
{
	uint32_t left =
		(uint32_t)psn_diff(roce_wqe(w)->last_psn, qp->req.nxt_psn) + 1;
	uint32_t chunk = qp->req.read_chunk, at;

	if (left == 1)
		return 1;
	at = (uint32_t)psn_diff(qp->req.nxt_psn, roce_wqe(w)->first_psn);
	/* Chunks end at the same places when a part is asked for again. */
	if (wqe_is_read(w))
		return min_u32(left, chunk - at % chunk);
	return min_u32(left, batch_span(qp, b, must_copy(qp)));
}

static inline void note_sent(struct roce_qp *qp, bool again, bool ack_req,
			     uint64_t now_ns)
{
	struct roce_requester *r = &qp->req;

	if (!qp_is_reliable(&qp->base))
		return;
	r->unarmed |= !r->timer_ns;
	if (ack_req)
		cc_sample_begin(qp, again, now_ns);
}

/* A read or atomic: what its response answers. */
static void fill_asking(struct roce_hdr *h, const struct qp_wqe *w,
			uint32_t offset, uint32_t len)
{
	const bool swaps = w->opcode == IBV_WR_ATOMIC_CMP_AND_SWP;

	h->va = w->remote_addr + offset;
	h->rkey = w->rkey;
	h->dma_len = len;
	h->ack_req = true;
	if (swaps || w->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		h->compare = swaps ? w->compare_add : 0;
		h->swap_add = swaps ? w->swap : w->compare_add;
	}
}

/* A send or write. */
static inline void fill_sending(struct roce_hdr *h, const struct qp_wqe *w,
				bool last)
{
	h->va = w->remote_addr;
	h->rkey = w->rkey;
	h->dma_len = w->length;
	h->imm = w->imm;
	h->inv_rkey = w->opcode == IBV_WR_SEND_WITH_INV ? w->rkey : 0;
	h->solicited = last && w->flags & IBV_SEND_SOLICITED;
}

/*
 * Whether what is posted behind the message at nxt leaves right behind it, as far
 * as can be seen, and asks for both.
 */
static inline bool goes_on(const struct roce_qp *qp)
{
	const struct qp_sq *sq = &qp->base.sq;
	const struct qp_wqe *w = qp_sq_slot(sq, sq->nxt + 1);

	return sq->nxt + 1 != sq->tail && qp->base.state == IBV_QPS_RTS &&
	       w->status == IBV_WC_SUCCESS && !w->local &&
	       !qp_wqe_has_response(w) && !(w->flags & IBV_SEND_FENCE);
}

/*
 * Whether the window is as wide as it may be, and nothing has been lost lately: it
 * need not be moved packet by packet then. An acknowledgement costs both ends as
 * much as some of them do. Where flows compete each learns from them what it has.
 */
static inline bool asks_seldom(const struct roce_qp *qp, uint64_t now_ns)
{
	const struct roce_cc *c = &qp->req.cc;

	return c->cwnd == c->cwnd_max && !qp->path.lossless &&
	       (!c->cut_ns || now_ns > c->cut_ns + UNLOST_NS);
}

/* Who closes the window must ask, or it stays closed. */
static inline bool must_ask(struct roce_qp *qp, bool last, uint32_t span,
			    uint64_t now_ns)
{
	struct roce_requester *r = &qp->req;
	uint32_t every = ACK_EVERY;
	bool seldom;

	if (!qp_is_reliable(&qp->base))
		return false;
	seldom = asks_seldom(qp, now_ns);
	if (seldom)
		every = r->cc.cwnd / (ACKS_A_WINDOW * CWND_UNIT);
	if ((!last || (seldom && goes_on(qp))) && ++r->noack < every &&
	    window_open(qp, span))
		return false;
	r->noack = 0;
	return true;
}

/* A packet of a request. */
struct part {
	uint32_t offset, len; /* of its payload in the message */
	uint32_t span; /* PSNs */
	bool first, last; /* of the message */
	bool response; /* qp_wqe_has_response() */
	bool again; /* was sent before */
	bool copy; /* must_copy() */
};

/*
 * Builds the packet at nxt_psn. 0, -EAGAIN: there is no room, -E2BIG: nor for
 * so much payload, or w cannot be sent.
 */
__attribute__((always_inline)) static inline int
build_packet(struct roce_qp *qp, struct roce_batch *b, struct qp_wqe *w,
	     const struct part part, uint64_t now_ns)
{
	struct roce_requester *r = &qp->req;
	struct roce_pkt *p;
	int err = 0;

	if (!batch_room(b, w->num_sge ? w->num_sge : 1) ||
	    !pace_open(qp, &qp->path))
		return -EAGAIN;
	p = batch_open(b);
	p->copy = part.copy;
	p->h.opcode =
		(uint8_t)(qp->service |
			  request_ops[w->opcode][part.first | part.last << 1]);
	p->h.dest_qpn = qp->dest_qpn;
	p->h.psn = r->nxt_psn;
	p->h.xrc_srqn = roce_wqe(w)->remote_srqn;
	if (part.response) {
		fill_asking(&p->h, w, part.offset, part.len);
		if (w->opcode == IBV_WR_ATOMIC_WRITE)
			batch_bytes(b, p, &w->swap, 8);
		r->rd_out++;
	} else {
		fill_sending(&p->h, w, part.last);
		if (w->flags & IBV_SEND_INLINE && part.len)
			batch_bytes(b, p,
				    qp_wqe_data(&qp->base.sq, w) + part.offset,
				    part.len);
		else
			err = batch_gather(qp, b, p, w, part.offset, part.len);
		if (err) {
			b->data.n = p->iov;
			return err;
		}
		p->h.ack_req = must_ask(qp, part.last, part.span, now_ns);
	}
	batch_push(b, p, &qp->path, qp->seed);
	p->last_psn = psn_add(r->nxt_psn, part.span - 1);
	pace_charge(qp, &qp->path, part.len);
	r->nxt_psn = psn_add(r->nxt_psn, part.span);
	note_sent(qp, part.again, p->h.ack_req, now_ns);
	if (!part.again)
		r->end_psn = r->nxt_psn;
	if (part.last)
		qp->base.sq.nxt++;
	return 0;
}

static inline void small_put_key(struct roce_small *s)
{
	if (s->key)
		keys_put(s->key);
}

/* Where the payload is; NULL: that takes more than a look at one key. */
static inline const void *small_data(struct roce_qp *qp, struct roce_small *s,
				     struct qp_wqe *w)
{
	const struct ibv_sge *sge = qp_wqe_sge(&qp->base.sq, w);
	struct key_entry *e = s->key;
	void *p;

	if (w->flags & IBV_SEND_INLINE || !w->length)
		return sge;
	if (w->num_sge != 1)
		return NULL;
	/* Those in a row mostly are in one region. */
	if (!e ||
	    atomic_load_explicit(&e->lkey, memory_order_relaxed) != sge->lkey) {
		small_put_key(s);
		e = s->key = keys_get_local(qp->base.env->keys, sge->lkey,
					    &qp->base.lkey_hint);
	}
	if (!e || e->kind == KEY_NULL || e->access & IBV_ACCESS_ON_DEMAND ||
	    !key_covers(e, qp->base.pd, sge->addr, w->length, 0, &p))
		return NULL;
	return p;
}

static inline bool small_look(struct roce_qp *qp, struct roce_small *s)
{
	const struct qp_sq *sq = &qp->base.sq;
	struct qp_wqe *w = qp_sq_slot(sq, sq->nxt);

	if (sq->nxt == sq->tail || !roce_wqe(w)->simple ||
	    !window_room(qp, 0) ||
	    (w->opcode == IBV_WR_RDMA_WRITE && roce_direct_waits(qp, w)))
		return false;
	s->data = small_data(qp, s, w);
	s->opcode = (uint8_t)(ROCE_RC | request_ops[w->opcode][3]);
	s->solicited = w->flags & IBV_SEND_SOLICITED;
	s->last = sq->nxt + 1 == sq->tail;
	s->psn = qp->req.nxt_psn;
	s->len = w->length;
	s->rkey = w->rkey;
	s->imm = w->opcode == IBV_WR_SEND_WITH_INV ? w->rkey : (uint32_t)w->imm;
	s->va = w->remote_addr;
	return s->data;
}

static inline void small_sent(struct roce_qp *qp)
{
	struct roce_requester *r = &qp->req;

	qp->stats.tx_pkts++;
	qp->stats.tx_bytes += qp_sq_slot(&qp->base.sq, qp->base.sq.nxt)->length;
	qp->base.sq.nxt++;
	r->noack = 0;
	r->nxt_psn = r->end_psn = psn_add(r->nxt_psn, 1);
	r->unarmed |= !r->timer_ns;
}

static bool small_next(struct roce_small *s)
{
	small_sent(s->qp);
	s->sent++;
	return small_look(s->qp, s);
}

/* Whether what may be sent is one request that may get lost, and perhaps an
 * ACK, which is no longer. */
static inline bool small_is_alone(const struct roce_qp *qp,
				  const struct roce_small *s)
{
	const struct roce_requester *r = &qp->req;
	const struct qp_sq *sq = &qp->base.sq;

	if (sq->tail - sq->nxt != 1 || r->rec.mode != FRESH ||
	    probe_is_due(r) || r->large || qp->paced)
		return false;
	return s->ack ? !qp->rsp.ack_first && qp_sq_slot(sq, sq->nxt)->length :
			!rsp_ready(qp);
}

bool roce_small_begin(struct roce_qp *qp, struct roce_small *s, bool timed)
{
	const struct roce_requester *r = &qp->req;

	if (qp->base.state != IBV_QPS_RTS || r->nxt_psn != r->end_psn ||
	    r->rnr_until_ns || qp->busy || qp->base.doubt)
		return false;
	s->timed = timed;
	s->ack = timed && rsp_owes_ack(qp);
	if (timed ? !small_is_alone(qp, s) : rsp_ready(qp) || qp->rsp.ack_held)
		return false;
	s->next = small_next;
	s->qp = qp;
	s->key = NULL;
	s->sent = 0;
	if (small_look(qp, s))
		return true;
	small_put_key(s);
	return false;
}

uint32_t roce_small_hash(const struct roce_small *s)
{
	return flow_hash(&s->qp->path, s->qp->seed);
}

bool roce_small_is_lone(const struct roce_small *s)
{
	return s->qp->req.una == s->psn;
}

size_t roce_small_put(const struct roce_small *s, uint8_t *out)
{
	const uint32_t flags = roce_opcode(s->opcode)->flags;
	uint8_t *p = out + ROCE_BTH_LEN;

	roce_put_bth(out, s->opcode, s->solicited, -s->len & 3, s->qp->dest_qpn,
		     true, s->psn);
	if (flags & ROCE_F_RETH) {
		put_be64(p, s->va);
		put_be32(p + 8, s->rkey);
		put_be32(p + 12, s->len);
		p += 16;
	}
	if (flags & ROCE_F_IMM) {
		memcpy(p, &s->imm, 4);
		p += 4;
	} else if (flags & ROCE_F_IETH) {
		put_be32(p, s->imm);
		p += 4;
	}
	return (size_t)(p - out);
}

void roce_small_put_ack(const struct roce_small *s, uint8_t *out)
{
	const struct roce_qp *qp = s->qp;

	roce_put_bth(out, ROCE_RC | ROCE_ACK, false, 0, qp->dest_qpn, false,
		     rsp_ack_psn(qp));
	put_be32(out + ROCE_BTH_LEN,
		 (uint32_t)(ROCE_AETH_ACK | ROCE_CREDITS_INVALID) << 24 |
			 qp->rsp.msn);
}

void roce_small_end(struct roce_small *s, unsigned taken, uint64_t now_ns)
{
	struct roce_qp *qp = s->qp;

	if (taken > s->sent) {
		small_sent(qp);
		if (s->ack) {
			rsp_ack_sent(qp);
			qp->stats.tx_pkts++;
		}
		if (s->timed) {
			cc_sample_begin(qp, false, now_ns);
			if (qp->req.unarmed)
				req_arm(qp, now_ns);
		}
	}
	small_put_key(s);
}

void roce_wqe_psns(const struct qp_wqe *w, uint32_t *first, uint32_t *last)
{
	*first = roce_wqe(w)->first_psn;
	*last = roce_wqe(w)->last_psn;
}

uint8_t roce_wqe_opcode(const struct roce_qp *qp, const struct qp_wqe *w)
{
	return (uint8_t)(qp->service | request_ops[w->opcode][3]);
}

bool roce_tx_again(const struct roce_qp *qp, const struct roce_pkt *p)
{
	return !(roce_opcode(p->h.opcode)->flags & ROCE_F_RESPONSE) &&
	       p->h.opcode != ROCE_CNP && qp_is_reliable(&qp->base) &&
	       psn_diff(qp->req.tx_end_psn, p->h.psn) > 0;
}

/* One packet of w, of so many PSNs; false: no room, or w failed. */
static bool build_any(struct roce_qp *qp, struct roce_batch *b,
		      struct qp_wqe *w, uint32_t span, uint64_t now_ns)
{
	const struct roce_requester *r = &qp->req;
	uint32_t at = (uint32_t)psn_diff(r->nxt_psn, roce_wqe(w)->first_psn);
	uint32_t end_psn = psn_add(r->nxt_psn, span);
	struct part part = {
		.offset = at * qp->mtu,
		.span = span,
		.first = !at,
		.last = psn_diff(end_psn, roce_wqe(w)->last_psn) > 0,
		.response = qp_wqe_has_response(w),
		.again = psn_diff(r->end_psn, end_psn) >= 0,
		.copy = must_copy(qp),
	};
	int err;

	part.len = min_u32(w->length - part.offset, span * qp->mtu);
	err = build_packet(qp, b, w, part, now_ns);
	if (err == -E2BIG)
		return build_any(qp, b, w, 1, now_ns);
	if (err && err != -EAGAIN)
		fail_later(qp, w);
	return !err;
}

/* Likewise where is_simple() holds: the same in fewer instructions. */
static bool build_simple(struct roce_qp *qp, struct roce_batch *b,
			 struct qp_wqe *w, uint64_t now_ns)
{
	const struct part part = {
		.len = w->length,
		.span = 1,
		.first = true,
		.last = true,
		.copy = must_copy(qp),
	};
	int err = build_packet(qp, b, w, part, now_ns);

	if (err && err != -EAGAIN)
		fail_later(qp, w);
	return !err;
}

/* The link takes large packets, or does not any more. */
static void req_large(struct roce_qp *qp, bool large)
{
	struct roce_requester *r = &qp->req;

	r->large = large;
	/* Where responses that are due end must be known until they come. */
	if (large == r->read_large || r->una != r->end_psn ||
	    r->una != r->nxt_psn)
		return;
	r->read_large = large;
	r->read_chunk = (large ? READ_CHUNK_LARGE : READ_CHUNK) /
			(qp->mtu ? qp->mtu : 1024);
}

/*
 * The oldest unacknowledged packet again: a peer that has it already answers
 * with all that it has (recovery.c).
 */
static void send_probe(struct roce_qp *qp, struct roce_batch *b,
		       uint64_t now_ns)
{
	struct roce_requester *r = &qp->req;
	const uint32_t nxt_psn = r->nxt_psn, nxt = qp->base.sq.nxt,
		       rd_out = r->rd_out;
	struct qp_wqe *w;

	req_rewind(qp, r->una);
	w = qp_sq_slot(&qp->base.sq, qp->base.sq.nxt);
	recovery_copy_una(r);
	if (build_any(qp, b, w, request_span(qp, b, w), now_ns)) {
		recovery_probe_sent(r, b->pkt[0].last_psn, nxt_psn);
		b->probe = true;
		b->pkt[0].h.ack_req = true;
		r->cc.doubtful = true;
		qp->stats.retransmits++;
	}
	if (qp->base.state == IBV_QPS_ERR)
		return;
	/* Going on where it was, which may be within that packet. */
	if (psn_diff(nxt_psn, r->nxt_psn) >= 0) {
		r->nxt_psn = nxt_psn;
		qp->base.sq.nxt = nxt;
	}
	r->rd_out = rd_out;
}

/*
 * How many packets leave now, at most. A packet alone takes the two ends as much
 * as four in a run, and neither a batch nor what acknowledgements open has as many
 * as runs have. So where more waits to be sent, what leaves are whole runs. At the
 * end of the window that may be nothing, as so much is out that an acknowledgement
 * is due; but only of the widest one, which can spare a run.
 */
static uint32_t tx_quota(const struct roce_qp *qp)
{
	const struct roce_requester *r = &qp->req;
	const uint32_t pkt = qp->mtu + ROCE_BTH_LEN + ROCE_ICRC_LEN;
	const uint32_t run = min_u32(ROCE_RUN_BYTES / pkt, ROCE_BATCH);
	const uint32_t out = (uint32_t)psn_diff(r->nxt_psn, r->una);
	const uint32_t cwnd = r->cc.cwnd / CWND_UNIT;
	const uint32_t n = min_u32(cwnd > out ? cwnd - out : 0, ROCE_BATCH);

	if (!qp_is_reliable(&qp->base) || r->large || r->rec.mode != FRESH ||
	    (uint32_t)psn_diff(r->post_psn, r->nxt_psn) <= n ||
	    (n < ROCE_BATCH && r->cc.cwnd != r->cc.cwnd_max))
		return ROCE_BATCH;
	return n - n % run;
}

void req_tx(struct roce_qp *qp, struct roce_batch *b, uint64_t now_ns)
{
	struct qp_sq *sq = &qp->base.sq;
	uint32_t quota;

	req_large(qp, batch_large(qp, b));
	if (probe_is_due(&qp->req)) {
		send_probe(qp, b, now_ns);
		return;
	}
	quota = tx_quota(qp);
	while (sq->nxt != sq->tail && !qp->req.rnr_until_ns && b->n < quota) {
		struct qp_wqe *w = qp_sq_slot(sq, sq->nxt);

		if (is_simple(qp, w)) {
			if (!window_open(qp, 0) ||
			    !build_simple(qp, b, w, now_ns))
				return;
			continue;
		}
		if (w->status != IBV_WC_SUCCESS)
			comp_head(qp); /* found wrong when it was posted */
		if (!may_send(qp, w))
			return;
		/* What it waits for may wait for keys that the batch holds. */
		if (w->local && b->data.nkeys)
			return;
		if (w->local)
			run_local(qp, w);
		else if (!build_any(qp, b, w, request_span(qp, b, w), now_ns))
			return;
		if (qp->base.state == IBV_QPS_ERR)
			return;
	}
}

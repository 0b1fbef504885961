/*
 * responder.c - executes the requests that arrive on one RC or UC queue pair
 *
 * epsn is the PSN of the next request not yet executed. At epsn: new, execute
 * once. Before it: a duplicate whose effects already happened. SEND and WRITE
 * are acknowledged again, READ is read again, an atomic is answered from its
 * saved result, because running it twice would show. After it: something was
 * lost. NAK once, then stay silent until epsn arrives, so a gap followed by a
 * hundred packets costs one retry rather than a hundred. UC has no one to tell:
 * it gives up the message it was in, and a message may begin with any PSN.
 *
 * What is owed to the peer is kept, not sent: responses with data in a ring, in
 * order, and behind them one ACK or NAK. rsp_tx() makes packets of it when the
 * link has room; an ACK stands for everything before it, so those of a burst
 * that was received in one go are one packet.
 */
#include "internal.h"

#include <stdlib.h>

#define CNP_GAP_NS (50 * USEC)

/* How many reads are remembered at least. */
#define READS_MIN 64u

/* Verdicts on a request. */
enum verdict {
	PASS,
	DROP,
	DUPLICATE,
	V_NAK_PSN,
	V_RNR,
	V_INVALID,     /* NAK 0x61 */
	V_ACCESS,      /* NAK 0x62 */
	V_OPERATIONAL, /* NAK 0x63 */
	V_LENGTH,      /* message longer than the receive buffer: NAK 0x61 */
	V_CQ_FULL,     /* nobody will hear of the message: no answer */
};

/* A longer copy of a ring of n entries, oldest first; NULL: no memory. */
static void *ring_grown(const void *ring, uint32_t n, uint32_t oldest,
			uint32_t to, size_t size)
{
	uint8_t *grown = calloc(to, size);

	for (uint32_t i = 0; grown && i < n; i++)
		memcpy(grown + i * size,
		       (const uint8_t *)ring + (oldest + i) % n * size, size);
	return grown;
}

/*
 * The rings never shrink: what has been executed may be asked for again also
 * when fewer may be outstanding from now on.
 */
int rsp_resize(struct roce_qp *qp, uint32_t max_dest_rd_atomic)
{
	struct roce_responder *r = &qp->rsp;
	uint32_t n = max_dest_rd_atomic;
	/* Reads that are asked for again may wait beside the new ones. */
	uint32_t nresp = round_up_pow2(2 * n);
	uint32_t nreads = max_u32(2 * n, READS_MIN);
	struct roce_response *resp;
	struct roce_atomic_done *atomics;
	struct roce_read_done *reads;

	if (n <= r->atomics_size)
		return 0;
	resp = ring_grown(r->resp, r->resp_size, r->resp_head, nresp,
			  sizeof(*resp));
	atomics = ring_grown(r->atomics, r->atomics_size, r->atomics_next, n,
			     sizeof(*atomics));
	reads = ring_grown(r->reads, r->reads_size, r->reads_next, nreads,
			   sizeof(*reads));
	if (!resp || !atomics || !reads) {
		free(resp);
		free(atomics);
		free(reads);
		return -ENOMEM;
	}
	free(r->resp);
	free(r->atomics);
	free(r->reads);
	r->resp = resp;
	r->resp_tail -= r->resp_head;
	r->resp_head = 0;
	r->resp_size = nresp;
	r->atomics = atomics;
	r->atomics_next = r->atomics_size;
	r->atomics_size = n;
	r->reads = reads;
	r->reads_next = r->reads_size % nreads;
	r->reads_size = nreads;
	return 0;
}

void rsp_fini(struct roce_qp *qp)
{
	struct roce_responder *r = &qp->rsp;

	free(r->resp);
	free(r->atomics);
	free(r->reads);
	memset(r, 0, sizeof(*r));
}

/* ---- what is owed ------------------------------------------------------ */

static uint32_t resp_count(const struct roce_responder *r)
{
	return r->resp_tail - r->resp_head;
}

static struct roce_response *resp_at(const struct roce_responder *r,
				     uint32_t i)
{
	return &r->resp[i & (r->resp_size - 1)];
}

/* Forgets the answers that wait only because they were asked for again. */
static void drop_repeats(struct roce_responder *r)
{
	uint32_t to = r->resp_head;

	for (uint32_t i = r->resp_head; i != r->resp_tail; i++)
		if (!resp_at(r, i)->again)
			*resp_at(r, to++) = *resp_at(r, i);
	r->resp_tail = to;
}

static void owe_ack(struct roce_qp *qp)
{
	qp->rsp.ack_pending = true;
}

static void owe_nak(struct roce_qp *qp, uint8_t syndrome)
{
	qp->rsp.nak_pending = true;
	qp->rsp.nak_syndrome = syndrome;
	qp->rsp.nak_psn = qp->rsp.epsn;
	qp->stats.nak_tx++;
}

bool rsp_refusing(const struct roce_qp *qp)
{
	const struct roce_responder *r = &qp->rsp;

	return r->nak_pending &&
	       (r->nak_syndrome & ROCE_AETH_KIND) == ROCE_AETH_NAK &&
	       r->nak_syndrome != (ROCE_AETH_NAK | ROCE_NAK_PSN);
}

bool rsp_ready(const struct roce_qp *qp)
{
	const struct roce_responder *r = &qp->rsp;

	return r->ack_pending || r->nak_pending || r->cnp_pending ||
	       r->resp_head != r->resp_tail;
}

static uint8_t read_resp_op(uint32_t i, uint32_t npkts)
{
	if (npkts == 1)
		return ROCE_READ_RESP_ONLY;
	return i == 0	      ? ROCE_READ_RESP_FIRST :
	       i == npkts - 1 ? ROCE_READ_RESP_LAST :
				ROCE_READ_RESP_MIDDLE;
}

static void fail_access(struct roce_qp *qp);

/* The next packet of response i; false: no room in the batch, or no data. */
static bool resp_build(struct roce_qp *qp, struct roce_batch *b, uint32_t i)
{
	struct roce_response *e = resp_at(&qp->rsp, i);
	struct roce_hdr h = {
		.dest_qpn = qp->dest_qpn,
		.psn = psn_add(e->psn, e->next),
		.syndrome = ROCE_AETH_ACK | ROCE_CREDITS_INVALID,
		.msn = e->msn,
	};
	uint32_t offset = e->next * qp->mtu;
	struct roce_pkt *p;

	if (!batch_room(b, 1))
		return false;
	p = batch_open(b);
	if (e->kind == RESP_ATOMIC) {
		h.opcode = (uint8_t)(qp->service | ROCE_ATOMIC_ACK);
		h.atomic_orig = e->orig;
	} else if (e->kind == RESP_ATOMIC_WRITE) {
		h.opcode = (uint8_t)(qp->service | ROCE_READ_RESP_ONLY);
	} else {
		h.opcode = (uint8_t)(qp->service |
				     read_resp_op(e->next, e->npkts));
		if (batch_remote(qp, b, p, e->pd, e->rkey, e->va + offset,
				 min_u32(e->length - offset, qp->mtu))) {
			/*
			 * Deregistered since it was accepted; by the requester
			 * itself, perhaps, who has had the first answer and has
			 * invalidated the key: a repetition ends here.
			 */
			if (e->again) {
				e->npkts = e->next;
				return true;
			}
			e->npkts = e->next;
			qp->rsp.resp_tail = i + 1; /* nor what is behind it */
			fail_access(qp);
			qp->rsp.nak_psn = h.psn;
			return false;
		}
	}
	batch_push(b, p, &h, &qp->path, qp->seed);
	qp->rsp.nak_last = false; /* accepts what is before it, as an ACK */
	e->next++;
	return true;
}

uint32_t rsp_ack_psn(const struct roce_qp *qp)
{
	return psn_add(qp->rsp.epsn, PSN_MASK - qp->rsp.ack_back);
}

static void ack_build(struct roce_qp *qp, struct roce_batch *b)
{
	struct roce_responder *r = &qp->rsp;
	struct roce_hdr h =
		ack_hdr(qp->service, qp->dest_qpn, rsp_ack_psn(qp), r->msn);

	if (r->ack_pending) {
		r->ack_pending = false;
	} else {
		h.psn = r->nak_psn;
		h.syndrome = r->nak_syndrome;
		r->nak_pending = false;
	}
	r->nak_last = h.syndrome == (ROCE_AETH_NAK | ROCE_NAK_PSN);
	batch_push(b, batch_open(b), &h, &qp->path, qp->seed);
}

/*
 * At most one notification per CNP_GAP_NS: the sender that gets one slows down
 * for much longer than that. UD has no connection that could be slowed.
 */
void rsp_congestion(struct roce_qp *qp, uint64_t now_ns)
{
	struct roce_responder *r = &qp->rsp;

	if (r->cnp_ns && now_ns < r->cnp_ns + CNP_GAP_NS)
		return;
	r->cnp_ns = now_ns;
	r->cnp_pending = true;
}

/* Annex A17.9.3: PSN 0 and BECN, nothing else. */
static void cnp_build(struct roce_qp *qp, struct roce_batch *b)
{
	struct roce_hdr h = {
		.opcode = ROCE_CNP,
		.becn = true,
		.dest_qpn = qp->dest_qpn,
	};

	batch_push(b, batch_open(b), &h, &qp->path, qp->seed);
	qp->rsp.cnp_pending = false;
}

/* Responses that have been sent to their end are not due any more. */
static void resp_forget(struct roce_responder *r)
{
	while (r->resp_head != r->resp_tail &&
	       resp_at(r, r->resp_head)->next == resp_at(r, r->resp_head)->npkts)
		r->resp_head++;
}

void rsp_tx(struct roce_qp *qp, struct roce_batch *b)
{
	struct roce_responder *r = &qp->rsp;

	if (r->cnp_pending && batch_room(b, 0))
		cnp_build(qp, b);
	for (uint32_t i = r->resp_head; i != r->resp_tail; i++) {
		struct roce_response *e = resp_at(r, i);

		while (e->next < e->npkts)
			if (!resp_build(qp, b, i))
				goto out;
	}
	/* Behind the data: an ACK accepts the reads before it as well. */
out:
	if (r->resp_head == r->resp_tail ||
	    resp_at(r, r->resp_tail - 1)->next ==
		    resp_at(r, r->resp_tail - 1)->npkts)
		while ((r->ack_pending || r->nak_pending) && batch_room(b, 0))
			ack_build(qp, b);
	if (!b->n)
		resp_forget(r);
}

/* Gives back what the link did not take, forgets what it took. */
void rsp_tx_done(struct roce_qp *qp, const struct roce_batch *b, size_t sent)
{
	struct roce_responder *r = &qp->rsp;

	for (size_t i = b->n; i-- > sent;) {
		const struct roce_pkt *p = &b->pkt[i];

		if (p->opcode == ROCE_CNP)
			continue; /* the next mark brings another */
		if ((p->opcode & 0x1f) == ROCE_ACK) {
			if ((p->syndrome & ROCE_AETH_KIND) == ROCE_AETH_ACK) {
				r->ack_pending = qp->base.state != IBV_QPS_ERR;
			} else if (!r->nak_pending) {
				r->nak_pending = true;
				r->nak_syndrome = p->syndrome;
				r->nak_psn = p->psn;
			}
			continue;
		}
		/* The same PSN may be due twice: the later is taken back. */
		for (uint32_t k = r->resp_tail; k-- != r->resp_head;) {
			struct roce_response *e = resp_at(r, k);
			int32_t at = psn_diff(p->psn, e->psn);

			if (at >= 0 && (uint32_t)at < e->next) {
				e->next = (uint32_t)at;
				break;
			}
		}
	}
	resp_forget(r);
}

/* ---- failing ----------------------------------------------------------- */

static void fail_access(struct roce_qp *qp)
{
	owe_nak(qp, ROCE_AETH_NAK | ROCE_NAK_REMOTE_ACCESS);
	if (qp->base.state != IBV_QPS_ERR)
		roce_fail(qp, IBV_EVENT_QP_ACCESS_ERR);
}

/* A receive WQE for the message, unless it has one: 0, -EAGAIN or -ENOENT. */
static int take_recv(struct roce_qp *qp, uint32_t srqn)
{
	struct roce_responder *r = &qp->rsp;
	int err;

	if (qp->base.recv_valid)
		return 0;
	if (qp->base.type == IBV_QPT_XRC_RECV)
		err = roce_env(qp)->xrc_srq_take(&qp->base, srqn,
						 &qp->base.recv);
	else
		err = qp_recv_take(&qp->base, 0, &qp->base.recv);
	if (err)
		return err;
	qp->base.recv_valid = true;
	r->recv_srqn = srqn;
	return 0;
}

/* The receive in progress ends with an error of its own. */
static void fail_recv(struct roce_qp *qp, enum ibv_wc_status status)
{
	struct ibv_wc wc = { .status = status, .opcode = IBV_WC_RECV };

	if (!qp->base.recv_valid)
		return;
	qp->base.recv_valid = false;
	roce_recv_complete(qp, &qp->base.recv, &wc, false);
}

static void drop_refused(struct roce_qp *qp, enum verdict v)
{
	if (v == DROP || v == V_NAK_PSN)
		roce_drop(qp, ROCE_DROP_GAP);
	else if (v == V_RNR)
		roce_drop(qp, ROCE_DROP_NO_RECV);
	else
		roce_drop(qp, ROCE_DROP_REFUSED);
}

static void refuse_rc(struct roce_qp *qp, const struct roce_rx *pkt,
		      enum verdict v)
{
	uint32_t f = roce_opcode(pkt->h.opcode)->flags;
	struct roce_responder *r = &qp->rsp;

	drop_refused(qp, v);
	switch (v) {
	case PASS:
	case DROP:
	case DUPLICATE:
		return;
	case V_NAK_PSN:
		if (r->nak_seq_sent || r->rnr_sent)
			return;
		r->nak_seq_sent = true;
		/*
		 * A NAK accepts what is before it, but rxe as requester takes
		 * no second one before it has seen an ACK: it would wait for
		 * its timer, gap after gap, until it is out of retries.
		 */
		if (r->nak_last)
			owe_ack(qp);
		owe_nak(qp, ROCE_AETH_NAK | ROCE_NAK_PSN);
		return;
	case V_RNR:
		r->rnr_sent = true;
		qp->stats.rnr_tx++;
		owe_nak(qp,
			(uint8_t)(ROCE_AETH_RNR | qp->base.attr.min_rnr_timer));
		return;
	case V_LENGTH:
		owe_nak(qp, ROCE_AETH_NAK | ROCE_NAK_INVALID_REQUEST);
		fail_recv(qp, IBV_WC_LOC_LEN_ERR);
		roce_to_err(qp);
		return;
	case V_OPERATIONAL:
		owe_nak(qp, ROCE_AETH_NAK | ROCE_NAK_REMOTE_OPERATIONAL);
		fail_recv(qp, IBV_WC_LOC_PROT_ERR);
		roce_to_err(qp);
		return;
	case V_INVALID:
		owe_nak(qp, ROCE_AETH_NAK | ROCE_NAK_INVALID_REQUEST);
		fail_recv(qp, IBV_WC_REM_INV_REQ_ERR);
		roce_fail(qp, IBV_EVENT_QP_REQ_ERR);
		return;
	case V_ACCESS:
		/* The receive that the write would have completed (11.6.2). */
		if (f & ROCE_F_WRITE && f & ROCE_F_IMM &&
		    !take_recv(qp, pkt->h.xrc_srqn))
			fail_recv(qp, IBV_WC_LOC_ACCESS_ERR);
		fail_recv(qp, IBV_WC_REM_ACCESS_ERR);
		fail_access(qp);
		return;
	case V_CQ_FULL:
		return;
	}
}

/*
 * UC drops a message it cannot take, and says nothing. A receive that it had
 * begun to fill waits for the next message (9.8.2.2; rxe fails it, and the QP).
 */
static void refuse_uc(struct roce_qp *qp, enum verdict v)
{
	if (v == PASS)
		return;
	drop_refused(qp, v);
	qp->rsp.in = IN_NOTHING;
}

/* ---- checks ------------------------------------------------------------ */

/*
 * Whether a packet that is not the one due can come from a requester that goes
 * on, or goes back to what it has outstanding. One that is very far from there,
 * alone, cannot: another is going to follow, or the same again. The second of
 * a row is believed.
 *
 * Only what can be is answered, since rxe starts its retransmission timer anew
 * with whatever answer comes in: answers to forged packets would put it off for
 * as long as they come, while a packet is missing, or the one NAK of its gap,
 * which a forged packet might have used up.
 */
static bool sent(struct roce_responder *r, uint32_t psn)
{
	int32_t d = psn_diff(psn, r->epsn);
	bool row = psn == r->far_psn || psn_add(psn, 1) == r->far_psn;

	if (d >= -FAR_PSNS && d <= FAR_PSNS)
		return true;
	r->far_psn = psn_add(psn, 1);
	return row;
}

static enum verdict check_psn(struct roce_qp *qp, const struct roce_rx *pkt)
{
	struct roce_responder *r = &qp->rsp;
	int32_t d = psn_diff(pkt->h.psn, r->epsn);
	uint32_t flags = roce_opcode(pkt->h.opcode)->flags;

	if (qp->base.type == IBV_QPT_UC) {
		/*
		 * 9.8.2.2: out of sequence ends the message in progress, and
		 * only the beginning of another is taken: from whatever PSN,
		 * or one that came astray would cost all up to its own.
		 */
		r->epsn = pkt->h.psn;
		if (!d || flags & ROCE_F_FIRST)
			return PASS;
		r->in = IN_NOTHING;
		return DROP;
	}
	if (d > 0)
		return sent(r, pkt->h.psn) ? V_NAK_PSN : DROP;
	return d == 0 ? PASS : DUPLICATE;
}

/* Opcode sequence (9.7.4.1.2 and table 36), lengths of packets (9.7.4.1.6). */
static enum verdict check_order(const struct roce_qp *qp,
				const struct roce_rx *pkt)
{
	const struct roce_responder *r = &qp->rsp;
	uint32_t f = roce_opcode(pkt->h.opcode)->flags;
	enum resp_in kind = f & ROCE_F_SEND  ? IN_SEND :
			    f & ROCE_F_WRITE ? IN_WRITE :
					       IN_NOTHING;

	if (f & (ROCE_F_READ | ROCE_F_ATOMIC))
		return r->in == IN_NOTHING ? PASS : V_INVALID;
	if (f & ROCE_F_FIRST) {
		if (r->in != IN_NOTHING) {
			if (qp_is_reliable(&qp->base))
				return V_INVALID;
		}
	} else if (r->in != kind) {
		return V_INVALID;
	}
	if (f & ROCE_F_LAST) {
		if (pkt->len > qp->mtu)
			return V_INVALID;
		/* A LAST that carries nothing would make the message end one
		 * packet earlier; zero bytes only in an ONLY. */
		if (!(f & ROCE_F_FIRST) && pkt->len == 0)
			return V_INVALID;
	} else if (pkt->len != qp->mtu) {
		return V_INVALID;
	}
	return PASS;
}

/* A receive WQE for a SEND, or a WRITE with immediate data. */
static enum verdict need_recv(struct roce_qp *qp, uint32_t srqn)
{
	int err = take_recv(qp, srqn);

	if (err == -ENOENT) {
		explain(qp, "a message for XRC SRQ %u, which is not (or no longer) in this QP's domain", srqn);
		return V_INVALID;
	}
	if (err) {
		explain(qp, "a message arrived, but no receive was posted; post receives before the peer sends");
		return V_RNR;
	}
	return PASS;
}

void roce_srq_gone(struct roce_qp *qp, uint32_t srqn)
{
	struct roce_responder *r = &qp->rsp;

	if (qp->base.type != IBV_QPT_XRC_RECV || !qp->base.recv_valid ||
	    r->recv_srqn != srqn)
		return;
	qp->base.recv_valid = false;
	owe_nak(qp, ROCE_AETH_NAK | ROCE_NAK_REMOTE_OPERATIONAL);
	roce_fail(qp, IBV_EVENT_QP_FATAL);
}

static enum verdict check_resources(struct roce_qp *qp,
				    const struct roce_rx *pkt)
{
	uint32_t f = roce_opcode(pkt->h.opcode)->flags;
	struct roce_responder *r = &qp->rsp;

	if (f & ROCE_F_SEND && f & ROCE_F_FIRST)
		return need_recv(qp, pkt->h.xrc_srqn);
	if (f & ROCE_F_WRITE && f & ROCE_F_IMM)
		return need_recv(qp, pkt->h.xrc_srqn);
	if (f & (ROCE_F_READ | ROCE_F_ATOMIC)) {
		/* The requester has gone on: it does not need repetitions. */
		if (resp_count(r) >= qp->base.attr.max_dest_rd_atomic)
			drop_repeats(r);
		if (resp_count(r) >= qp->base.attr.max_dest_rd_atomic) {
			explain(qp,
				"more reads and atomics outstanding than max_dest_rd_atomic=%u: lower the peer's max_rd_atomic",
				qp->base.attr.max_dest_rd_atomic);
			return V_INVALID;
		}
	}
	return PASS;
}

static void explain_access(struct roce_qp *qp, const char *what,
			   const struct roce_hdr *h, uint32_t flag,
			   const char *flag_name)
{
	const char *why = "the rkey is unknown, of another PD, or does not cover the range with this permission";

	if (!(qp->base.attr.qp_access_flags & flag))
		why = "the QP's qp_access_flags do not allow it";
	explain(qp, "%s of %u bytes at 0x%llx with rkey 0x%08x refused: %s (needs %s)",
		what, h->dma_len, (unsigned long long)h->va, h->rkey, why,
		flag_name);
}

/* Whose keys a request names that begins now. */
static int find_pd(struct roce_qp *qp, uint32_t srqn)
{
	qp->rsp.req_pd = qp->base.pd;
	if (qp->base.type != IBV_QPT_XRC_RECV || !roce_env(qp)->xrc_pd)
		return 0;
	return roce_env(qp)->xrc_pd(&qp->base, srqn, &qp->rsp.req_pd);
}

/* Whether the whole range that a RETH names may be accessed. */
static enum verdict check_access(struct roce_qp *qp, const struct roce_rx *pkt)
{
	uint32_t f = roce_opcode(pkt->h.opcode)->flags;
	const struct roce_hdr *h = &pkt->h;
	uint32_t flag, len = h->dma_len;
	struct key_entry *e;
	const char *what, *name;
	void *p;

	if (f & ROCE_F_RETH && f & ROCE_F_WRITE) {
		flag = IBV_ACCESS_REMOTE_WRITE;
		what = "write";
		name = "IBV_ACCESS_REMOTE_WRITE";
	} else if (f & ROCE_F_READ) {
		flag = IBV_ACCESS_REMOTE_READ;
		what = "read";
		name = "IBV_ACCESS_REMOTE_READ";
	} else if (f & ROCE_F_ATOMIC) {
		bool write = f & ROCE_F_RETH;

		flag = write ? IBV_ACCESS_REMOTE_WRITE :
			       IBV_ACCESS_REMOTE_ATOMIC;
		what = write ? "atomic write" : "atomic";
		name = write ? "IBV_ACCESS_REMOTE_WRITE" :
			       "IBV_ACCESS_REMOTE_ATOMIC";
		if (write && (len != 8 || pkt->len != 8))
			return V_INVALID;
		len = 8;
		if (h->va & 7) {
			explain(qp, "atomic at 0x%llx refused: the address is not a multiple of 8",
				(unsigned long long)h->va);
			return V_INVALID;
		}
	} else {
		return PASS;
	}
	if (f & ROCE_F_RETH && len > QP_MAX_MSG)
		return V_INVALID;
	if (!(qp->base.attr.qp_access_flags & flag)) {
		explain_access(qp, what, h, flag, name);
		return V_INVALID; /* not a request this QP supports */
	}
	if (!len)
		return PASS; /* 9.7.4.1.5: zero length is not checked */
	if (find_pd(qp, h->xrc_srqn)) {
		explain(qp, "%s for XRC SRQ %u, which is not (or no longer) in this QP's domain",
			what, h->xrc_srqn);
		return V_INVALID;
	}
	e = qp_remote(&qp->base, qp->rsp.req_pd, h->rkey, h->va, len, flag, &p);
	if (!e) {
		explain_access(qp, what, h, flag, name);
		return V_ACCESS;
	}
	keys_put(e);
	return PASS;
}

/* ---- execution --------------------------------------------------------- */

static enum verdict exec_send(struct roce_qp *qp, const struct roce_rx *pkt)
{
	struct roce_responder *r = &qp->rsp;
	uint32_t f = roce_opcode(pkt->h.opcode)->flags;
	uint32_t bad = 0;
	int err;

	if (f & ROCE_F_FIRST)
		r->offset = 0;
	if (pkt->len > qp->base.recv.length ||
	    r->offset > qp->base.recv.length - pkt->len) {
		explain(qp,
			"a message of more than %u bytes arrived for receive 0x%llx, which has room for %llu: post larger receive buffers",
			r->offset + (uint32_t)pkt->len -
				(f & ROCE_F_LAST ? 1 : 0),
			(unsigned long long)qp->base.recv.wr_id,
			(unsigned long long)qp->base.recv.length);
		return V_LENGTH;
	}
	err = qp_scatter(&qp->base, qp->base.recv.pd, qp->base.recv.sge,
			 qp->base.recv.num_sge, r->offset, pkt->payload,
			 pkt->len, &bad);
	if (err == -EFAULT)
		explain(qp,
			"SGE %u of receive 0x%llx: lkey 0x%08x does not allow local writes to [0x%llx, +%u)",
			bad, (unsigned long long)qp->base.recv.wr_id,
			qp->base.recv.sge[bad].lkey,
			(unsigned long long)qp->base.recv.sge[bad].addr,
			qp->base.recv.sge[bad].length);
	if (err)
		return V_OPERATIONAL;
	r->offset += (uint32_t)pkt->len;
	return PASS;
}

static enum verdict exec_write(struct roce_qp *qp, const struct roce_rx *pkt)
{
	struct roce_responder *r = &qp->rsp;
	uint32_t f = roce_opcode(pkt->h.opcode)->flags;
	struct key_entry *e;
	void *p;

	if (f & ROCE_F_FIRST) {
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
		if (!e)
			return V_ACCESS;
		err = qp_store(&qp->base, e, p, pkt->payload, pkt->len);
		keys_put(e);
		if (err)
			return V_ACCESS;
	}
	r->va += pkt->len;
	r->left -= (uint32_t)pkt->len;
	r->offset += (uint32_t)pkt->len;
	return PASS;
}

static struct roce_response *resp_push(struct roce_responder *r)
{
	return resp_at(r, r->resp_tail++);
}

static void owe_read(struct roce_qp *qp, const struct roce_hdr *h, bool again)
{
	*resp_push(&qp->rsp) = (struct roce_response){
		.kind = RESP_READ,
		.again = again,
		.psn = h->psn,
		.npkts = pkts_of(h->dma_len, qp->mtu),
		.msn = qp->rsp.msn,
		.rkey = h->rkey,
		.pd = qp->rsp.req_pd,
		.va = h->va,
		.length = h->dma_len,
	};
}

static void owe_atomic(struct roce_qp *qp, enum resp_kind kind, uint32_t psn,
		       uint32_t msn, uint64_t orig, bool again)
{
	*resp_push(&qp->rsp) = (struct roce_response){
		.kind = kind,
		.again = again,
		.psn = psn,
		.npkts = 1,
		.msn = msn,
		.orig = orig,
	};
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
		/* Only here: rxe leaves rubbish in a FetchAdd's field. */
		a->orig = a->compare;
		__atomic_compare_exchange_n(a->p, &a->orig, a->operand, false,
					    __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
	} else {
		a->orig = __atomic_fetch_add(a->p, a->operand,
					     __ATOMIC_SEQ_CST);
	}
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
	err = qp_touch(&qp->base, e, p, 8, true);
	if (!err)
		err = qp_access(&qp->base, atomic_run, &a, p, 8);
	keys_put(e);
	if (err)
		return V_ACCESS;
	r->atomics[r->atomics_next] = (struct roce_atomic_done){
		.kind = kind,
		.place = r->place,
		.orig = a.orig,
	};
	r->atomics_next = (r->atomics_next + 1) % r->atomics_size;
	owe_atomic(qp, kind, h->psn, psn_add(r->msn, 1), a.orig, false);
	return PASS;
}

/*
 * The message has ended: complete the receive it used, if it used one. Where
 * the CQ has no room the QP ends (class G): what it was to acknowledge before
 * is acknowledged, this message is not.
 */
static enum verdict deliver(struct roce_qp *qp, const struct roce_rx *pkt)
{
	struct roce_responder *r = &qp->rsp;
	bool owed = r->ack_pending;
	uint32_t f = roce_opcode(pkt->h.opcode)->flags;
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
	r->reads[r->reads_next] = (struct roce_read_done){ r->place, npkts };
	r->reads_next = (r->reads_next + 1) % r->reads_size;
	if (r->reads_unknown)
		r->reads_unknown--;
}

static enum verdict execute(struct roce_qp *qp, const struct roce_rx *pkt)
{
	struct roce_responder *r = &qp->rsp;
	uint32_t f = roce_opcode(pkt->h.opcode)->flags;
	enum verdict v = PASS;
	uint32_t span = 1;

	if (f & ROCE_F_READ) {
		span = pkts_of(pkt->h.dma_len, qp->mtu);
		r->msn = psn_add(r->msn, 1);
		owe_read(qp, &pkt->h, false);
		remember_read(r, span);
	} else if (f & ROCE_F_ATOMIC) {
		v = exec_atomic(qp, pkt);
		if (v == PASS)
			r->msn = psn_add(r->msn, 1);
	} else {
		v = f & ROCE_F_SEND ? exec_send(qp, pkt) : exec_write(qp, pkt);
		if (v == PASS && f & ROCE_F_IETH &&
		    (!qp->base.env->invalidate ||
		     qp->base.env->invalidate(&qp->base, pkt->h.inv_rkey))) {
			explain(qp, "send with invalidate of rkey 0x%08x refused: not a window of type 2 that is bound to this QP",
				pkt->h.inv_rkey);
			v = V_ACCESS;
		}
		if (v == PASS && f & ROCE_F_LAST)
			v = deliver(qp, pkt);
	}
	if (v != PASS)
		return v;
	r->epsn = psn_add(r->epsn, span);
	r->place += span;
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

/* ---- duplicates -------------------------------------------------------- */

/* A read that still waits to be sent will answer its repetition, too. */
static bool read_pending(const struct roce_qp *qp, uint32_t psn)
{
	const struct roce_responder *r = &qp->rsp;

	for (uint32_t i = r->resp_head; i != r->resp_tail; i++) {
		const struct roce_response *e = resp_at(r, i);
		int32_t at = psn_diff(psn, e->psn);

		if (e->kind == RESP_READ && at >= 0 &&
		    (uint32_t)at < e->npkts && (uint32_t)at >= e->next)
			return true;
	}
	return false;
}

/* Where in the stream of requests a PSN is that lies before epsn. */
static uint64_t place_of(const struct roce_responder *r, uint32_t psn)
{
	return r->place - (uint32_t)psn_diff(r->epsn, psn);
}

/* Part of a read that has been executed: a requester has no more of them, and
 * of atomics, outstanding than we have resources for. */
static bool read_before(const struct roce_responder *r, uint32_t psn,
			uint32_t npkts)
{
	for (uint32_t i = 0; i < r->reads_size; i++) {
		const struct roce_read_done *d = &r->reads[i];
		uint64_t at = place_of(r, psn) - d->place;

		if (at < d->npkts && npkts <= d->npkts - at)
			return true;
	}
	return r->reads_unknown > 0;
}

static void duplicate(struct roce_qp *qp, const struct roce_rx *pkt)
{
	struct roce_responder *r = &qp->rsp;
	uint32_t f = roce_opcode(pkt->h.opcode)->flags;

	qp->stats.duplicates++;
	roce_drop(qp, ROCE_DROP_DUPLICATE);
	if (f & ROCE_F_READ) {
		uint32_t npkts = pkts_of(pkt->h.dma_len, qp->mtu);
		uint32_t end = psn_add(pkt->h.psn, npkts);

		/* Only what has been read before, and only if it still may. */
		if (psn_diff(end, r->epsn) > 0 ||
		    !read_before(r, pkt->h.psn, npkts) ||
		    read_pending(qp, pkt->h.psn) ||
		    resp_count(r) >= r->resp_size ||
		    check_access(qp, pkt) != PASS)
			return;
		owe_read(qp, &pkt->h, true);
	} else if (f & ROCE_F_ATOMIC) {
		for (uint32_t i = 0; i < r->atomics_size; i++) {
			struct roce_atomic_done *a = &r->atomics[i];

			if (a->place && a->place == place_of(r, pkt->h.psn) &&
			    resp_count(r) < r->resp_size) {
				owe_atomic(qp, a->kind, pkt->h.psn, r->msn,
					   a->orig, true);
				return;
			}
		}
	} else if (sent(r, pkt->h.psn)) {
		owe_ack(qp);
	}
}

void rsp_rx(struct roce_qp *qp, const struct roce_rx *pkt)
{
	enum verdict v = check_psn(qp, pkt);

	if (v == DUPLICATE) {
		duplicate(qp, pkt);
		return;
	}
	if (v == PASS)
		v = check_order(qp, pkt);
	if (v == PASS)
		v = check_access(qp, pkt);
	if (v == PASS)
		v = check_resources(qp, pkt);
	if (v == PASS)
		v = execute(qp, pkt);
	if (qp->base.type == IBV_QPT_UC) {
		refuse_uc(qp, v);
		qp->rsp.epsn = psn_add(pkt->h.psn, 1);
		return;
	}
	if (v != PASS) {
		refuse_rc(qp, pkt, v);
		return;
	}
	if (pkt->h.ack_req &&
	    !(roce_opcode(pkt->h.opcode)->flags &
	      (ROCE_F_READ | ROCE_F_ATOMIC)))
		owe_ack(qp);
}

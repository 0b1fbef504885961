/*
 * response.c - what the responder owes to the peer
 *
 * It is kept, not sent: responses with data in a ring, in order, and behind
 * them one ACK or NAK. rsp_tx() makes packets of it when the link has room; an
 * ACK stands for everything before it, so those of a burst that was received in
 * one go are one packet.
 */
#include "responder.h"

#include <stdlib.h>

/* After so many acknowledgements in a row that have waited in vain some do not
 * wait: now and then one is in vain where most are not. */
#define HOLD_VAIN 2
#define HOLD_SKIP_MIN 2
#define HOLD_SKIP_MAX 1024

/* How many reads are remembered at least. */
#define READS_MIN 64u

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

	reorder_free(qp);
	free(r->resp);
	free(r->atomics);
	free(r->reads);
	memset(r, 0, sizeof(*r));
}

static struct roce_response *resp_at(const struct roce_responder *r, uint32_t i)
{
	return &r->resp[i & (r->resp_size - 1)];
}

/* Forgets the answers that wait only because they were asked for again. */
void rsp_drop_repeats(struct roce_responder *r)
{
	uint32_t to = r->resp_head;

	for (uint32_t i = r->resp_head; i != r->resp_tail; i++)
		if (!resp_at(r, i)->again)
			*resp_at(r, to++) = *resp_at(r, i);
	r->resp_tail = to;
}

void rsp_owe_nak(struct roce_qp *qp, uint8_t syndrome)
{
	qp->rsp.nak_pending = true;
	qp->rsp.nak_syndrome = syndrome;
	qp->rsp.nak_psn = qp->rsp.epsn;
	qp->stats.nak_tx++;
	qp->stats.access_tx +=
		syndrome == (ROCE_AETH_NAK | ROCE_NAK_REMOTE_ACCESS);
}

void rsp_owe_ack_of(struct roce_qp *qp, uint32_t psn)
{
	if (qp->rsp.nak_pending)
		return;
	qp->rsp.nak_pending = true;
	qp->rsp.nak_syndrome = ROCE_AETH_ACK | ROCE_CREDITS_INVALID;
	qp->rsp.nak_psn = psn;
}

static struct roce_response *resp_push(struct roce_responder *r)
{
	return resp_at(r, r->resp_tail++);
}

void rsp_owe_read(struct roce_qp *qp, const struct roce_hdr *h, bool again)
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

void rsp_owe_atomic(struct roce_qp *qp, enum resp_kind kind, uint32_t psn,
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

/* A read that still waits to be sent will answer its repetition, too. */
bool rsp_read_pending(const struct roce_qp *qp, uint32_t psn)
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

bool rsp_refusing(const struct roce_qp *qp)
{
	const struct roce_responder *r = &qp->rsp;

	return r->nak_pending &&
	       (r->nak_syndrome & ROCE_AETH_KIND) == ROCE_AETH_NAK &&
	       r->nak_syndrome != (ROCE_AETH_NAK | ROCE_NAK_PSN);
}

/* By place in the response: middle, first, last, and both. */
static const uint8_t read_resp_ops[] = {
	ROCE_READ_RESP_MIDDLE,
	ROCE_READ_RESP_FIRST,
	ROCE_READ_RESP_LAST,
	ROCE_READ_RESP_ONLY,
};

/* PSNs that the next packet of a response stands for. What is asked for again
 * may be so because it could not be read where it is. */
static uint32_t resp_span(const struct roce_qp *qp, const struct roce_batch *b,
			  const struct roce_response *e)
{
	uint32_t left = e->npkts - e->next;

	return left == 1 ? 1 : min_u32(left, batch_span(qp, b, e->again));
}

/* The next packet of response i, of so many PSNs; false: no room in the batch,
 * or no data. */
static bool resp_build(struct roce_qp *qp, struct roce_batch *b, uint32_t i,
		       uint32_t span)
{
	struct roce_response *e = resp_at(&qp->rsp, i);
	uint32_t psn = psn_add(e->psn, e->next);
	uint32_t offset = e->next * qp->mtu;
	struct roce_pkt *p;
	int err;

	if (!batch_room(b, 1))
		return false;
	p = batch_open(b);
	ack_fill(&p->h, qp->service, qp->dest_qpn, psn, e->msn);
	p->copy = e->again || qp->service != ROCE_RC;
	if (e->kind == RESP_ATOMIC) {
		p->h.opcode = (uint8_t)(qp->service | ROCE_ATOMIC_ACK);
		p->h.atomic_orig = e->orig;
	} else if (e->kind == RESP_ATOMIC_WRITE) {
		p->h.opcode = (uint8_t)(qp->service | ROCE_READ_RESP_ONLY);
	} else {
		bool first = e->next == 0, last = e->next + span == e->npkts;

		p->h.opcode = (uint8_t)(qp->service |
					read_resp_ops[first | last << 1]);
		err = batch_remote(qp, b, p, e->pd, e->rkey, e->va + offset,
				   min_u32(e->length - offset, span * qp->mtu));
		if (err == -E2BIG)
			return resp_build(qp, b, i, 1);
		if (err && e->again) {
			/*
			 * The requester may have had the first answer, and have
			 * invalidated the key itself: a repetition ends here.
			 * Where the key stands and its memory is gone, it has
			 * to know; who has the answer ignores an old NAK.
			 */
			if (err != -EFAULT && !rsp_refusing(qp)) {
				rsp_owe_nak(qp, ROCE_AETH_NAK |
							ROCE_NAK_REMOTE_ACCESS);
				qp->rsp.nak_psn = psn;
			}
			e->npkts = e->next;
			return true;
		}
		if (err) { /* deregistered since it was accepted */
			e->npkts = e->next;
			qp->rsp.resp_tail = i + 1; /* nor what is behind it */
			rsp_fail_access(qp);
			qp->rsp.nak_psn = psn;
			return false;
		}
	}
	batch_push(b, p, &qp->path, qp->seed);
	p->last_psn = psn_add(psn, span - 1);
	qp->rsp.nak_last = false; /* accepts what is before it, as an ACK */
	e->next += span;
	return true;
}

/* Who has sent more before there was an answer does not wait any longer. */
bool rsp_hold(struct roce_qp *qp)
{
	struct roce_responder *r = &qp->rsp;

	if (r->ack_held && r->held_psn == r->epsn)
		return true; /* what has come is no request */
	if (r->ack_held)
		rsp_hold_done(qp, false);
	else if (!backoff_skips(&r->hold))
		r->ack_held = !r->ack_first && qp->base.type == IBV_QPT_RC &&
			      qp->base.state == IBV_QPS_RTS;
	r->held_psn = r->epsn;
	return r->ack_held;
}

void rsp_hold_done(struct roce_qp *qp, bool found)
{
	static const struct backoff_rule rule = { .free = HOLD_VAIN,
						  .first = HOLD_SKIP_MIN,
						  .most = HOLD_SKIP_MAX };
	struct roce_responder *r = &qp->rsp;

	r->ack_held = false;
	if (found)
		backoff_succeed(&r->hold);
	else
		backoff_fail(&r->hold, &rule);
}

uint32_t rsp_ack_psn(const struct roce_qp *qp)
{
	return psn_add(qp->rsp.epsn, PSN_MASK - qp->rsp.ack_back);
}

void rsp_ack_sent(struct roce_qp *qp)
{
	struct roce_responder *r = &qp->rsp;

	if (r->ack_held)
		rsp_hold_done(qp, true);
	r->ack_pending = r->nak_last = false;
}

static void ack_build(struct roce_qp *qp, struct roce_batch *b)
{
	struct roce_responder *r = &qp->rsp;
	struct roce_pkt *p = batch_open(b);
	struct roce_hdr *h = &p->h;

	ack_fill(h, qp->service, qp->dest_qpn, rsp_ack_psn(qp), r->msn);
	if (r->ack_pending) {
		r->ack_pending = r->ack_held = false;
	} else {
		h->psn = r->nak_psn;
		h->syndrome = r->nak_syndrome;
		r->nak_pending = false;
	}
	r->nak_last = h->syndrome == (ROCE_AETH_NAK | ROCE_NAK_PSN);
	batch_push(b, p, &qp->path, qp->seed);
}

/*
 * At most one notification per CNP_GAP_NS: the sender that gets one slows down
 * for much longer than that. UD has no connection that could be slowed.
 */
void rsp_congestion(struct roce_qp *qp, uint64_t now_ns)
{
	struct roce_responder *r = &qp->rsp;

	qp->stats.marked++;
	if (r->cnp_ns && now_ns < r->cnp_ns + CNP_GAP_NS)
		return;
	r->cnp_ns = now_ns;
	r->cnp_pending = true;
}

/* Annex A17.9.3: PSN 0 and BECN, nothing else. */
static void cnp_build(struct roce_qp *qp, struct roce_batch *b)
{
	struct roce_pkt *p = batch_open(b);

	p->h.opcode = ROCE_CNP;
	p->h.becn = true;
	p->h.dest_qpn = qp->dest_qpn;
	batch_push(b, p, &qp->path, qp->seed);
	qp->rsp.cnp_pending = false;
	qp->stats.cnp_tx++;
}

/* Responses that have been sent to their end are not due any more. */
static void resp_forget(struct roce_responder *r)
{
	while (r->resp_head != r->resp_tail &&
	       resp_at(r, r->resp_head)->next ==
		       resp_at(r, r->resp_head)->npkts)
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
			if (!resp_build(qp, b, i, resp_span(qp, b, e)))
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
		const struct roce_hdr *h = &b->pkt[i].h;

		if (h->opcode == ROCE_CNP)
			continue; /* the next mark brings another */
		if ((h->opcode & 0x1f) == ROCE_ACK) {
			if ((h->syndrome & ROCE_AETH_KIND) == ROCE_AETH_ACK) {
				r->ack_pending = qp->base.state != IBV_QPS_ERR;
			} else if (!r->nak_pending) {
				r->nak_pending = true;
				r->nak_syndrome = h->syndrome;
				r->nak_psn = h->psn;
			}
			continue;
		}
		/* The same PSN may be due twice: the later is taken back. */
		for (uint32_t k = r->resp_tail; k-- != r->resp_head;) {
			struct roce_response *e = resp_at(r, k);
			int32_t at = psn_diff(h->psn, e->psn);

			if (at >= 0 && (uint32_t)at < e->next) {
				e->next = (uint32_t)at;
				break;
			}
		}
	}
	resp_forget(r);
}

/*
 * reorder.c - the responder's reorder buffer: requests from behind a gap
 *
 * A responder may drop what arrives behind a gap, and RoCE's do. A request that
 * is kept instead is executed as soon as the gap is closed, and the peer sends
 * only the lost packet again: its acknowledgement covers what was kept
 * (recovery.c). A peer that sends everything again sees no difference: those
 * are duplicates.
 *
 * What is kept is executed later, so an attacker who can only send packets must
 * not gain much by it (SECURITY.md has the odds): a request is kept if it is
 * near what is in order, or near what is kept, and comes from the port that the
 * requests in order come from, which is unknown before the first one since the
 * QP's reset. If two requests have one PSN and differ, neither is trusted.
 *
 * Memory is allocated when there is a gap. Dropping is always allowed: there
 * are limits, per QP, and for all of them, which the environment sets.
 */
#include "responder.h"

#include "base/pool.h"

/* More than a requester of ours has out (CWND_MAX_BYTES). */
#define KEPT_BYTES (2u << 20)
/* So long a gap is: more than a burst that a queue loses, on most paths. */
#define GAP_PSNS 32

struct reorder {
	uint32_t slots; /* a power of two */
	uint32_t stride, kept;
	size_t bytes; /* of all of this */
	/* Places in the stream of requests: PSNs come round. */
	uint64_t begin; /* nothing that is kept is before it, */
	uint64_t end; /* or from here on */
	_Alignas(64) uint8_t slot[];
};

struct kept {
	struct roce_rx pkt;
	bool here;
	_Alignas(8) uint8_t payload[];
};

static uint32_t slots_for(uint32_t mtu)
{
	return round_up_pow2(KEPT_BYTES / mtu);
}

static struct kept *slot_of(struct reorder *e, uint64_t stream_pos)
{
	return (void *)(e->slot +
			(size_t)(stream_pos & (e->slots - 1)) * e->stride);
}

static struct reorder *reorder_new(struct roce_qp *qp)
{
	const uint32_t slots = slots_for(qp->mtu);
	const uint32_t stride = (uint32_t)sizeof(struct kept) + qp->mtu;
	const size_t bytes = sizeof(struct reorder) + (size_t)slots * stride;
	struct pool *pool = roce_env(qp)->reorder;
	struct reorder *e = pool ? pool_get(pool, bytes) : NULL;

	if (!e)
		return NULL;
	e->slots = slots;
	e->stride = stride;
	e->bytes = bytes;
	return e;
}

void reorder_free(struct roce_qp *qp)
{
	struct reorder *e = qp->rsp.reorder;

	if (!e)
		return;
	qp->rsp.reorder = NULL;
	pool_put(roce_env(qp)->reorder, e, e->bytes);
}

/* Lets go of what the PSN that is due has passed. */
static void pass_over(struct reorder *e, uint64_t stream_pos)
{
	for (; e->kept && e->begin < stream_pos; e->begin++) {
		struct kept *k = slot_of(e, e->begin);

		e->kept -= k->here;
		k->here = false;
	}
	e->begin = stream_pos;
	if (!e->kept)
		e->end = stream_pos;
}

/* Whether both are the same request; AckReq may be new where it is repeated. */
static bool same_request(const struct kept *k, const struct roce_rx *pkt)
{
	const struct roce_hdr *a = &k->pkt.h, *b = &pkt->h;

	return a->opcode == b->opcode && a->solicited == b->solicited &&
	       a->va == b->va && a->rkey == b->rkey &&
	       a->dma_len == b->dma_len && a->imm == b->imm &&
	       a->inv_rkey == b->inv_rkey && a->swap_add == b->swap_add &&
	       a->compare == b->compare && k->pkt.len == pkt->len &&
	       (!pkt->len || !memcmp(k->payload, pkt->payload, pkt->len));
}

/* PSNs that it is for. */
static uint32_t psn_span(const struct roce_qp *qp, const struct roce_rx *pkt)
{
	return roce_opcode(pkt->h.opcode)->flags & ROCE_F_READ ?
		       pkts_of(pkt->h.dma_len, qp->mtu) :
		       1;
}

bool reorder_keep(struct roce_qp *qp, const struct roce_rx *pkt)
{
	struct roce_responder *r = &qp->rsp;
	const uint32_t ahead = (uint32_t)psn_diff(pkt->h.psn, r->epsn);
	const uint64_t stream_pos = r->stream_pos + ahead;
	struct reorder *e = r->reorder;
	struct kept *k;

	/*
	 * rxe, which never sets MigReq, is answered as it is used to (and sends
	 * all again). Messages of XRC are for several processes, and who gets one
	 * is decided before it is here. Where a link takes longer packets nothing
	 * is lost.
	 */
	if (!pkt->h.mig_req || qp->base.type != IBV_QPT_RC || pkt->host ||
	    pkt->large || pkt->source || pkt->len > qp->mtu ||
	    ahead >= slots_for(qp->mtu))
		return false;
	if (!r->sport || pkt->sport != r->sport)
		return false;
	if (e)
		pass_over(e, r->stream_pos);
	if (stream_pos >= (e ? e->end : r->stream_pos) + GAP_PSNS)
		return false;
	if (!e) {
		r->reorder = e = reorder_new(qp);
		if (!e)
			return false;
		e->begin = e->end = r->stream_pos;
	}
	k = slot_of(e, stream_pos);
	if (k->here) {
		k->here = same_request(k, pkt);
		e->kept -= !k->here;
		return k->here;
	}
	e->kept++;
	if (e->end < stream_pos + psn_span(qp, pkt))
		e->end = stream_pos + psn_span(qp, pkt);
	k->here = true;
	k->pkt = *pkt;
	k->pkt.payload = k->payload;
	k->pkt.grh = NULL;
	k->pkt.acked = NULL;
	if (pkt->len)
		memcpy(k->payload, pkt->payload, pkt->len);
	return true;
}

bool reorder_take(struct roce_qp *qp, struct roce_rx *pkt)
{
	struct reorder *e = qp->rsp.reorder;
	struct kept *k = slot_of(e, qp->rsp.stream_pos);

	pass_over(e, qp->rsp.stream_pos);
	if (!e->kept || !k->here)
		return false;
	k->here = false;
	e->kept--;
	*pkt = k->pkt;
	return true;
}

void reorder_idle(struct roce_qp *qp)
{
	if (!qp->rsp.reorder->kept && pool_scarce(roce_env(qp)->reorder))
		reorder_free(qp);
}

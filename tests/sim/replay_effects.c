/*
 * replay_effects.c - what a captured message must do to memory and receives
 */
#include "replay.h"

/* The receive that a message of n packets ends in. */
void check_receive(const struct pkt *p, size_t n, size_t grh)
{
	const struct pkt *last = &p[n - 1];
	const struct ibv_wc *wc = &P->recv_wc;
	bool write = last->flags & ROCE_F_WRITE;
	bool imm = last->flags & ROCE_F_IMM;
	size_t at = grh;

	if (wc->status != IBV_WC_SUCCESS ||
	    wc->opcode != (write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV))
		differ(last, 0, "receive: status or opcode");
	if (!(wc->wc_flags & IBV_WC_WITH_IMM) != !imm ||
	    (imm && wc->imm_data != last->h.imm))
		differ(last, 0, "receive: immediate data");
	if (!(wc->wc_flags & IBV_WC_WITH_INV) != !(last->flags & ROCE_F_IETH))
		differ(last, 0, "receive: invalidation");
	if (P->recv_solicited != last->h.solicited)
		differ(last, 0, "receive: solicited event");
	if (grh &&
	    (wc->src_qp != last->h.src_qpn || !(wc->wc_flags & IBV_WC_GRH)))
		differ(last, 0, "receive: sender");
	for (size_t i = 0; i < n; i++) {
		if (!write && memcmp(P->rq_mem + at, p[i].payload, p[i].len))
			differ(&p[i], i, "receive: data");
		at += p[i].len;
	}
	if (wc->byte_len != at)
		differ(last, 0, "receive: length");
}

void check_written(const struct pkt *p, size_t n)
{
	const struct region *g = region_of(p->h.rkey);
	uint64_t va = p->h.va;

	for (size_t i = 0; i < n; va += p[i++].len)
		if (p[i].len &&
		    memcmp(g->mem + (va - g->start), p[i].payload, p[i].len))
			differ(&p[i], i, "written data");
}

bool needs_recv(const struct pkt *last)
{
	return last->flags & ROCE_F_SEND || last->flags & ROCE_F_IMM;
}

/* The packets of the message that ends with packet last; 0: not all there. */
static size_t message_of(const struct stream *r, size_t last, struct pkt *msg)
{
	size_t n = 1;

	msg[0] = r->pkt[last];
	for (size_t i = last; !(msg[0].flags & ROCE_F_FIRST);) {
		if (!i--)
			return 0;
		if (r->pkt[i].h.psn != psn_add(msg[0].h.psn, PSN_MASK))
			continue;
		memmove(&msg[1], &msg[0], n++ * sizeof(*msg));
		msg[0] = r->pkt[i];
		i = last; /* it may have come out of order */
	}
	return n;
}

/* What an atomic that was executed just now left in memory. */
static void check_atomic(const struct pkt *p)
{
	const struct region *g = region_of(p->h.rkey);
	const struct sent *k = P->out.n ? &P->out.pkt[P->out.n - 1] : NULL;
	uint64_t is, want;

	if (!g || !k || k->h.psn != p->h.psn || k->h.opcode == ROCE_ACK)
		return;
	want = k->h.atomic_orig;
	if (p->h.opcode == ROCE_ATOMIC_WRITE)
		memcpy(&want, p->payload, 8);
	else if (p->h.opcode == ROCE_FETCH_ADD)
		want += p->h.swap_add;
	else if (want == p->h.compare)
		want = p->h.swap_add;
	memcpy(&is, g->mem + (p->h.va - g->start), 8);
	if (is != want)
		differ(p, P->out.n - 1, "what an atomic left");
}

/* What a message that has ended did to memory, and to the receive queue. */
void check_effect(const struct stream *r, size_t i, size_t nrecv)
{
	const struct pkt *p = &r->pkt[i];
	struct pkt *msg;
	size_t n;

	if (roce_qp_state(P->qp) == IBV_QPS_ERR)
		return;
	if (p->flags & ROCE_F_ATOMIC && !asked_before(r, i))
		check_atomic(p);
	if (!(p->flags & ROCE_F_LAST) ||
	    !(p->flags & (ROCE_F_SEND | ROCE_F_WRITE)))
		return;
	msg = calloc(r->n, sizeof(*msg));
	n = message_of(r, i, msg);
	if (n && needs_recv(p) && P->nrecv != nrecv)
		check_receive(msg, n, 0);
	/* Executed now, not before: acknowledged by this packet's answer. */
	if (n && p->flags & ROCE_F_WRITE && msg[0].h.dma_len &&
	    region_of(msg[0].h.rkey) && P->out.n &&
	    P->out.pkt[P->out.n - 1].h.psn == p->h.psn &&
	    !(P->out.pkt[P->out.n - 1].h.syndrome & ROCE_AETH_KIND))
		check_written(msg, n);
	free(msg);
}

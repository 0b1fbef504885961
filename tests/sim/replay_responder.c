/*
 * replay_responder.c - captured RC requests into our responder
 *
 * The requests are fed in the order of the capture. Our answers must be the
 * captured ones; what each request says must be in memory, or in the receive.
 */
#include "replay.h"

/* What the QP allows: all but what was always an invalid request. */
static unsigned access_of(const struct stream *r, const struct stream *s)
{
	unsigned yes = 0, no = 0;

	for (size_t i = 0; s && i < r->n; i++) {
		const struct pkt *p = &r->pkt[i];
		unsigned flag =
			p->flags & ROCE_F_ATOMICETH ? IBV_ACCESS_REMOTE_ATOMIC :
			p->flags & ROCE_F_READ      ? IBV_ACCESS_REMOTE_READ :
			p->flags & ROCE_F_RETH      ? IBV_ACCESS_REMOTE_WRITE :
						      0;
		bool refused = false;

		for (size_t k = 0; k < s->n; k++)
			if (s->pkt[k].h.psn == p->h.psn)
				refused |= is_nak(&s->pkt[k],
						  ROCE_NAK_INVALID_REQUEST);
		*(refused ? &no : &yes) |= flag;
	}
	return ACCESS_ALL & ~(no & ~yes);
}

/*
 * Requests at the end that ask for an answer and never get one: the captured
 * responder was not there, or no more, or the capture ended before.
 */
size_t cut_unheard(struct stream *r, const struct stream *s)
{
	size_t heard = 0, n = r->n;

	for (size_t i = 0; i < r->n; i++)
		if (s && s->n && s->pkt[s->n - 1].at > r->pkt[i].at)
			heard = i + 1;
	for (size_t i = heard; i < r->n; i++)
		if (r->pkt[i].h.ack_req)
			r->n = heard;
	if (n != r->n)
		print_message("%s: the last %zu requests to QP 0x%x are not "
			      "answered\n",
			      current, n - r->n, r->qpn);
	return n - r->n;
}

/*
 * What a read or atomic is going to find: what the first answers behind it say,
 * since the program may change it afterwards.
 */
void prefill(const struct pkt *p, const struct stream *s, uint32_t mtu)
{
	struct region *g = region_of(p->h.rkey);

	if (!g || !s)
		return;
	for (size_t i = s->n; i-- > 0 && s->pkt[i].at > p->at;) {
		const struct pkt *a = &s->pkt[i];
		int32_t k = psn_diff(a->h.psn, p->h.psn);

		if (p->flags & ROCE_F_READ && a->flags & ROCE_F_READ &&
		    k >= 0 && (uint32_t)k < span_of(p, mtu)) {
			uint64_t at = p->h.va - g->start + (uint32_t)k * mtu;

			if (at + a->len > g->end - g->start)
				differ(a, i, "length of what was read");
			memcpy(g->mem + at, a->payload, a->len);
		}
		if (p->flags & ROCE_F_ATOMIC && k == 0 &&
		    a->flags & ROCE_F_ATOMICACKETH)
			memcpy(g->mem + (p->h.va - g->start), &a->h.atomic_orig,
			       8);
	}
}

/*
 * How long the receive was that the message that begins with packet i was too
 * long for: too short for the packet that was refused, long enough for those
 * before it. 0: not refused.
 */
static uint32_t short_receive(const struct stream *r, size_t i,
			      const struct stream *s)
{
	uint32_t len = 0, psn = r->pkt[i].h.psn;

	for (; s && i < r->n; i++) {
		const struct pkt *p = &r->pkt[i];

		if (p->h.psn != psn)
			continue;
		len += (uint32_t)p->len;
		for (size_t k = 0; k < s->n; k++)
			if (s->pkt[k].h.psn == psn &&
			    (is_nak(&s->pkt[k], ROCE_NAK_REMOTE_OPERATIONAL) ||
			     is_nak(&s->pkt[k], ROCE_NAK_INVALID_REQUEST)))
				return len - 1;
		if (p->flags & ROCE_F_LAST)
			break;
		psn = psn_add(psn, 1);
	}
	return 0;
}

/* The receive that the captured responder had for a message; false: it had
 * none. */
static bool provide_receive(const struct stream *r, size_t at,
			    const struct stream *s, uint32_t *posted)
{
	const struct pkt *p = &r->pkt[at];
	bool needs = (p->flags & ROCE_F_SEND && p->flags & ROCE_F_FIRST) ||
		     (p->flags & ROCE_F_WRITE && p->flags & ROCE_F_IMM);
	const struct pkt *next = NULL;
	struct ibv_sge sge = { (uintptr_t)P->rq_mem, RQ_BYTES, P->pd_lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 };
	uint32_t len;

	if (!needs)
		return true;
	for (size_t i = 0; s && i < s->n && !next; i++)
		if (s->pkt[i].at > p->at &&
		    psn_diff(s->pkt[i].h.psn, p->h.psn) >= 0)
			next = &s->pkt[i];
	if (next && next->h.psn == p->h.psn) {
		if ((next->h.syndrome & ROCE_AETH_KIND) == ROCE_AETH_RNR)
			return false;
	}
	if (*posted > P->nrecv)
		return true;
	if (p->flags & ROCE_F_SEND && (len = short_receive(r, at, s)))
		sge.length = len;
	assert_int_equal(qp_post_recv(roce_qp_base(P->qp), &wr), 0);
	++*posted;
	return true;
}

static void leave_out(size_t i)
{
	free(P->out.pkt[i].data);
	memmove(&P->out.pkt[i], &P->out.pkt[i + 1],
		(--P->out.n - i) * sizeof(P->out.pkt[0]));
}

/*
 * Before the second of two NAKs in a row we say once more what has arrived, for
 * the sake of rxe's requester; its responder does not. Such ACKs are left out.
 */
static void spare_acks(const struct stream *s, size_t n)
{
	for (size_t i = 0; i + 1 < P->out.n && i < n; i++) {
		const struct roce_hdr *h = &P->out.pkt[i].h;
		const struct roce_hdr *next = &P->out.pkt[i + 1].h;

		if (h->opcode != ROCE_ACK || next->opcode != ROCE_ACK ||
		    (h->syndrome & ROCE_AETH_KIND) != ROCE_AETH_ACK ||
		    next->syndrome != (ROCE_AETH_NAK | ROCE_NAK_PSN) ||
		    next->psn != psn_add(h->psn, 1) ||
		    s->pkt[i].h.psn != next->psn ||
		    !is_nak(&s->pkt[i], ROCE_NAK_PSN))
			continue;
		leave_out(i);
	}
}

/*
 * rxe acknowledges repetitions with the latest PSN even if that is of a read or
 * an atomic, which asks its requester to do it again (9.7.5.1.1); ours names one
 * before it, see quirk_rxe_no_ack_of_reads. Without a repetition before it, such
 * an ACK is wrong.
 */
static bool acks_read(const struct stream *r, const struct pkt *w,
		      const struct roce_hdr *h)
{
	bool repeated = false, of_read = false;

	if (w->h.opcode != ROCE_ACK || h->opcode != ROCE_ACK ||
	    w->h.syndrome & ROCE_AETH_KIND || psn_diff(h->psn, w->h.psn) >= 0)
		return false;
	for (size_t i = 0; i < r->n && r->pkt[i].at < w->at; i++) {
		const struct pkt *p = &r->pkt[i];
		int32_t d = psn_diff(w->h.psn, p->h.psn);

		repeated |= asked_before(r, i);
		of_read |= p->flags & (ROCE_F_READ | ROCE_F_ATOMIC) && d >= 0 &&
			   d < (int32_t)span_of(p, P->mtu);
	}
	return repeated && of_read;
}

/* A captured ACK may stand for several requests (9.7.5.1.2), of which ours
 * acknowledges each, since they are fed one by one. */
static void joined_acks(const struct stream *r, const struct stream *s,
			size_t n)
{
	for (size_t i = 0; i < P->out.n && i < n;) {
		const struct roce_hdr *h = &P->out.pkt[i].h;

		if (P->out.n > n && h->opcode == ROCE_ACK &&
		    (h->syndrome & ROCE_AETH_KIND) == ROCE_AETH_ACK &&
		    s->pkt[i].flags & ROCE_F_AETH &&
		    psn_diff(s->pkt[i].h.psn, h->psn) > 0 &&
		    !acks_read(r, &s->pkt[i], h))
			leave_out(i);
		else
			i++;
	}
}

/* rxe's NAK of the packets behind one that it was not ready to receive. */
static bool nak_behind_rnr(const struct stream *s, size_t i)
{
	const struct pkt *w = &s->pkt[i];

	return i && is_nak(w, ROCE_NAK_PSN) &&
	       (w[-1].h.syndrome & ROCE_AETH_KIND) == ROCE_AETH_RNR &&
	       w[-1].h.opcode == ROCE_ACK && w[-1].h.psn == w->h.psn;
}

static bool invalidates(const struct stream *r, uint32_t psn)
{
	for (size_t i = 0; i < r->n; i++)
		if (r->pkt[i].h.psn == psn && r->pkt[i].flags & ROCE_F_IETH)
			return true;
	return false;
}

static bool refuses_send(const struct stream *r, uint32_t psn)
{
	for (size_t i = 0; i < r->n; i++)
		if (r->pkt[i].h.psn == psn && r->pkt[i].flags & ROCE_F_SEND)
			return true;
	return false;
}

/* Answer i of ours, but for the opcode. */
void check_answer(const struct stream *r, const struct pkt *w, size_t i,
		  uint32_t msn)
{
	const struct roce_hdr *h = &P->out.pkt[i].h;

	if (h->psn != w->h.psn && !acks_read(r, w, h))
		differ(w, i, "PSN");
	if (h->dest_qpn != w->h.dest_qpn || h->pkey != w->h.pkey ||
	    h->pad != w->h.pad || h->tver != w->h.tver ||
	    h->solicited != w->h.solicited || h->ack_req != w->h.ack_req)
		differ(w, i, "BTH");
	if (w->flags & P->out.pkt[i].flags & ROCE_F_AETH) {
		uint8_t ours = h->syndrome, theirs = w->h.syndrome;

		if ((theirs & ROCE_AETH_KIND) == ROCE_AETH_ACK) {
			ours &= ROCE_AETH_KIND;
			theirs &= ROCE_AETH_KIND;
		}
		/* rxe's NAK for a message that is too long is 0x63,
		 * 9.7.5.2.6 wants 0x61. */
		if (theirs == 0x63 && ours == 0x61 && refuses_send(r, w->h.psn))
			ours = 0x63;
		if (ours != theirs)
			differ(w, i, "syndrome");
		/* rxe acknowledges a send whose invalidation it then
		 * refuses, and does not count it. */
		if (h->msn != msn &&
		    !(invalidates(r, w->h.psn) && h->msn == psn_add(msn, 1)))
			differ(w, i, "MSN");
	}
	if (h->atomic_orig != w->h.atomic_orig)
		differ(w, i, "atomic result");
	if (P->out.pkt[i].len != w->len ||
	    memcmp(P->out.pkt[i].data, w->payload, w->len))
		differ(w, i, "payload");
	tally.compared++;
}

/* A read that goes on in the middle of another begins anew (9.7.5.2.4), and the
 * response with FIRST or ONLY; rxe goes on with MIDDLE or LAST. */
static bool resumes_read(const struct stream *r, const struct pkt *w,
			 const struct sent *k)
{
	if (!(w->flags & k->flags & ROCE_F_READ) || w->flags & ROCE_F_FIRST ||
	    !(k->flags & ROCE_F_FIRST) || (w->flags ^ k->flags) & ROCE_F_LAST)
		return false;
	for (size_t i = 0; i < r->n && r->pkt[i].at < w->at; i++)
		if (r->pkt[i].flags & ROCE_F_READ &&
		    r->pkt[i].h.psn == w->h.psn)
			return true;
	return false;
}

static void check_answers(const struct stream *r, struct stream *s)
{
	size_t n = 0;

	for (size_t i = s ? s->n : 0; i-- > 0;)
		if (nak_behind_rnr(s, i)) {
			memmove(&s->pkt[i], &s->pkt[i + 1],
				(--s->n - i) * sizeof(s->pkt[0]));
			tally.cut[CUT_BEHIND_RNR]++;
		}
	if (s)
		n = s->n;
	spare_acks(s, n);
	joined_acks(r, s, n);
	if (P->out.n != n)
		fail_msg("%s: %zu answers to QP 0x%x, from packet %u on, where "
			 "%zu were captured",
			 current, P->out.n, r->qpn, r->pkt[0].c->number, n);
	for (size_t i = 0; i < n; i++) {
		if (P->out.pkt[i].h.opcode != s->pkt[i].h.opcode &&
		    !resumes_read(r, &s->pkt[i], &P->out.pkt[i]))
			differ(&s->pkt[i], i, "opcode");
		check_answer(r, &s->pkt[i], i, s->pkt[i].h.msn);
	}
}

/* A request with the keys that it has here. */
struct roce_hdr with_our_keys(const struct pkt *p, const struct stream *s)
{
	struct roce_hdr h = p->h;
	const struct region *g = region_of(h.rkey);

	/* A region that exists but refuses: not so much. */
	if (p->flags & (ROCE_F_RETH | ROCE_F_ATOMICETH))
		h.rkey = g && !refused_access(s, h.psn) ? g->our_rkey :
							  0xdeadbeef;
	if (p->flags & ROCE_F_IETH) {
		g = region_of(h.inv_rkey);
		h.inv_rkey = g ? g->our_rkey : 0xdeadbeef;
	}
	return h;
}

/*
 * A read or an atomic that is asked for again and not answered: a responder has
 * to remember as many as it has resources for (9.7.4.1.8), and how many those
 * are the capture does not say.
 */
static bool forgotten(const struct stream *r, size_t at, const struct stream *s)
{
	const struct pkt *p = &r->pkt[at];
	size_t until = SIZE_MAX;

	if (!(p->flags & (ROCE_F_READ | ROCE_F_ATOMIC)))
		return false;
	while (++at < r->n && until == SIZE_MAX)
		if (r->pkt[at].h.psn == p->h.psn)
			until = r->pkt[at].at;
	for (size_t i = 0; s && i < s->n; i++)
		if (s->pkt[i].at > p->at && s->pkt[i].at < until &&
		    s->pkt[i].h.psn == p->h.psn)
			return false;
	return true;
}

void play_responder(const struct stream *r, struct stream *s)
{
	uint32_t mtu = mtu_of(r, s), posted = 0;
	uint32_t peer = s ? s->qpn : 1;
	uint32_t first = r->pkt[0].h.psn, due;

	/* Requests may have been lost on the way to where it was captured. */
	for (size_t i = 0; s && i < s->n; i++)
		if (is_nak(&s->pkt[i], ROCE_NAK_PSN)) {
			if (psn_diff(s->pkt[i].h.psn, first) < 0)
				first = s->pkt[i].h.psn;
			break;
		}
	struct player_opts o = {
		.type = IBV_QPT_RC,
		.qpn = r->qpn,
		.peer_qpn = peer,
		.mtu = mtu,
		.rq_psn = first,
		.access = access_of(r, s),
		.us = &r->dst,
		.them = &r->src,
	};

	/* The timer that a captured RNR NAK shows is the responder's own. */
	for (size_t i = 0; s && i < s->n; i++)
		if (s->pkt[i].flags & ROCE_F_AETH &&
		    (s->pkt[i].h.syndrome & ROCE_AETH_KIND) == ROCE_AETH_RNR)
			o.rnr_timer = s->pkt[i].h.syndrome & 31;
	if (seen_elsewhere(r, s, mtu)) {
		for (size_t i = 0; i < r->n; i++)
			if (psn_diff(r->pkt[i].h.psn, o.rq_psn) < 0)
				o.rq_psn = r->pkt[i].h.psn;
		player_new(&o);
		make_regions(r, s);
		play_by_psn(r, s, mtu);
		player_free();
		return;
	}
	due = o.rq_psn;
	player_new(&o);
	make_regions(r, s);
	for (size_t i = 0; i < r->n; i++) {
		const struct pkt *p = &r->pkt[i];
		struct roce_hdr h = with_our_keys(p, s);
		size_t before;

		if (p->flags & (ROCE_F_READ | ROCE_F_ATOMIC))
			prefill(p, s, mtu);
		if (psn_diff(h.psn, due) < 0 && forgotten(r, i, s)) {
			print_message("%s, packet %u: repeated, but forgotten "
				      "by the responder\n",
				      current, p->c->number);
			continue;
		}
		if (h.psn == due && provide_receive(r, i, s, &posted))
			due = psn_add(due, span_of(p, mtu));
		before = P->nrecv;
		feed(p, h);
		check_effect(r, i, before);
	}
	check_answers(r, s);
	player_free();
}

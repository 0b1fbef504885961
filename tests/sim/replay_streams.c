/*
 * replay_streams.c - the packets of a capture, sorted into conversations
 *
 * A stream is one direction of a connection, or the datagrams of a QP. PSNs and
 * time show which stream of answers belongs to which stream of requests.
 */
#include "replay.h"

static struct stream *stream_of(struct streams *all, const struct stream *key)
{
	struct stream *s = all->s;

	for (size_t i = 0; i < all->n; i++)
		if (s[i].qpn == key->qpn && s[i].requests == key->requests &&
		    s[i].src_qpn == key->src_qpn && s[i].qkey == key->qkey &&
		    !memcmp(&s[i].src, &key->src, 16) &&
		    !memcmp(&s[i].dst, &key->dst, 16))
			return &s[i];
	MORE(all->s, all->n, all->cap);
	s = &all->s[all->n++];
	*s = *key;
	return s;
}

/* The packets of a service; returns how many of them are requests. */
size_t split(const struct captures *caps, struct streams *s,
	     enum roce_service service, enum side side)
{
	size_t requests = 0;

	for (size_t i = 0; i < caps->n; i++) {
		const struct captured *c = &caps->pkt[i];
		struct pkt p = { .c = c, .at = i };
		struct stream key = { 0 }, *t;
		int hl = roce_decode(&p.h, c->data, c->len - ROCE_ICRC_LEN);

		assert_true(hl > 0);
		if ((p.h.opcode & 0xe0) != service)
			continue;
		p.flags = roce_opcode(p.h.opcode)->flags;
		p.payload = c->data + hl;
		p.len = c->len - ROCE_ICRC_LEN - (size_t)hl - p.h.pad;
		key.requests = p.flags & ROCE_F_REQUEST;
		requests += key.requests;
		if (side != UD_RECEIVER) {
			key.src = c->src;
			key.src_qpn = p.h.src_qpn;
		}
		if (side != UD_SENDER) {
			key.dst = c->dst;
			key.qpn = p.h.dest_qpn;
			key.qkey = p.h.qkey;
		}
		t = stream_of(s, &key);
		MORE(t->pkt, t->n, t->cap);
		t->pkt[t->n++] = p;
	}
	return requests;
}

uint32_t span_of(const struct pkt *p, uint32_t mtu)
{
	return p->flags & ROCE_F_READ && p->h.dma_len ?
		       (p->h.dma_len - 1) / mtu + 1 :
		       1;
}

/* Where a stream last had a request with the PSN of an answer: place + 1. */
static size_t last_asked(const struct stream *r, const struct pkt *a)
{
	size_t lo = 0, hi = r->n;

	while (lo < hi) {
		size_t mid = (lo + hi) / 2;

		if (r->pkt[mid].at < a->at)
			lo = mid + 1;
		else
			hi = mid;
	}
	while (lo--)
		if (r->pkt[lo].h.psn == a->h.psn)
			return r->pkt[lo].at + 1;
	return 0;
}

/*
 * The responses that answer a stream of requests: PSNs tell, and time, since
 * connections may count alike: answers come soon. Those that another stream has
 * taken are left out.
 */
struct stream *answers(struct stream *s, size_t n, const struct stream *r,
		       const bool *taken)
{
	const double never = 1e6;
	struct stream *best = NULL;
	double least = never;

	for (size_t i = 0; i < n; i++) {
		size_t asked = 0;
		double cost = 0;

		if (taken[i] || s[i].requests ||
		    memcmp(&s[i].src, &r->dst, 16) ||
		    memcmp(&s[i].dst, &r->src, 16))
			continue;
		for (size_t k = 0; k < s[i].n; k++) {
			const struct pkt *a = &s[i].pkt[k];
			size_t at;

			if (a->flags & ROCE_F_READ &&
			    !(a->flags & ROCE_F_FIRST))
				continue;
			at = last_asked(r, a);
			cost += at ? (double)(a->at - (at - 1)) : never;
			asked++;
		}
		if (asked && cost / (double)asked < least) {
			least = cost / (double)asked;
			best = &s[i];
		}
	}
	return best;
}

/*
 * An answer to what was never asked: the capture has a hole. What comes before
 * it is all that can be compared.
 */
void cut_at_hole(struct stream *r, struct stream *s, uint32_t mtu,
		 size_t *requests, size_t *replies)
{
	size_t i = 0, hole = SIZE_MAX, rn = r->n, sn = s->n;
	uint32_t end = r->pkt[0].h.psn;

	for (size_t k = 0; k < s->n && hole == SIZE_MAX; k++) {
		for (; i < r->n && r->pkt[i].at < s->pkt[k].at; i++) {
			uint32_t e = psn_add(r->pkt[i].h.psn,
					     span_of(&r->pkt[i], mtu));

			if (psn_diff(e, end) > 0)
				end = e;
		}
		if (psn_diff(s->pkt[k].h.psn, end) >= 0)
			hole = s->pkt[k].at;
	}
	/* Requests without answers before the hole may have had their answer
	 * in it. */
	while (r->n && r->pkt[r->n - 1].at > hole)
		r->n--;
	while (s->n && s->pkt[s->n - 1].at >= hole)
		s->n--;
	*requests = rn - r->n;
	*replies = sn - s->n;
}

uint32_t mtu_of(const struct stream *a, const struct stream *b)
{
	const struct stream *both[2] = { a, b };
	size_t full = 0, any = 0;
	uint32_t mtu = 256;

	for (int k = 0; k < 2; k++)
		for (size_t i = 0; both[k] && i < both[k]->n; i++) {
			const struct pkt *p = &both[k]->pkt[i];

			if (p->flags & ROCE_F_PAYLOAD &&
			    !(p->flags & ROCE_F_LAST))
				full = p->len > full ? p->len : full;
			any = p->len > any ? p->len : any;
		}
	if (full)
		return (uint32_t)full;
	while (mtu < any)
		mtu *= 2;
	return mtu < 1024 ? 1024 : mtu;
}

bool is_nak(const struct pkt *p, uint8_t code)
{
	return p->h.opcode == ROCE_ACK &&
	       p->h.syndrome == (ROCE_AETH_NAK | code);
}

bool is_rnr(const struct pkt *p)
{
	return p->h.opcode == ROCE_ACK &&
	       (p->h.syndrome & ROCE_AETH_KIND) == ROCE_AETH_RNR;
}

bool is_fatal(const struct pkt *p)
{
	return p->flags & ROCE_F_AETH && !is_nak(p, ROCE_NAK_PSN) &&
	       (p->h.syndrome & ROCE_AETH_KIND) == ROCE_AETH_NAK;
}

int by_psn(const void *a, const void *b)
{
	const struct pkt *p = a, *q = b;
	int32_t d = psn_diff(p->h.psn, q->h.psn);

	return d ? d : p->at < q->at ? -1 : 1;
}

bool asked_before(const struct stream *r, size_t i)
{
	for (size_t k = 0; k < i; k++)
		if (r->pkt[k].h.psn == r->pkt[i].h.psn)
			return true;
	return false;
}

bool refused_access(const struct stream *s, uint32_t psn)
{
	for (size_t i = 0; s && i < s->n; i++)
		if (s->pkt[i].h.psn == psn &&
		    is_nak(&s->pkt[i], ROCE_NAK_REMOTE_ACCESS))
			return true;
	return false;
}

/*
 * replay_by_psn.c - answers of a responder whose input the capture does not show
 *
 * Captured beyond a place where packets get lost or overtake each other, the
 * order of arrival is unknown. Each answer is compared with ours to its PSN.
 */
#include "replay.h"

/*
 * Captured on the other side of where packets get lost or overtake each other:
 * the captured responder has not got these requests in this order, or not all
 * of its answers were seen. The packets show it: it asks for what it has been
 * sent, in order; something is sent again that had an answer due, which nobody
 * has seen; or an answer overtook another.
 */
bool seen_elsewhere(const struct stream *r, const struct stream *s,
		    uint32_t mtu)
{
	uint32_t base = r->pkt[0].h.psn, due, top;
	struct {
		uint32_t asked;
		bool answered;
	} * at;
	uint32_t next = base, n = 1;
	bool found = false, silent = false, rnr = false;
	size_t i = 0, asking = 0, answers = 0;

	for (size_t k = 0; k < r->n; k++) {
		int32_t end = psn_diff(r->pkt[k].h.psn, base) +
			      (int32_t)span_of(&r->pkt[k], mtu);

		if (end > (int32_t)n)
			n = (uint32_t)end;
	}
	at = calloc(n, sizeof(*at));
	due = top = psn_add(base, PSN_MASK);
	for (size_t k = 0; s && k <= s->n && !found; k++) {
		const struct pkt *a = k < s->n ? &s->pkt[k] : NULL;
		int32_t d;

		for (; i < r->n && (!a || r->pkt[i].at < a->at); i++) {
			const struct pkt *p = &r->pkt[i];
			uint32_t psn = p->h.psn, span = span_of(p, mtu);
			bool data = p->flags & (ROCE_F_READ | ROCE_F_ATOMIC);

			d = psn_diff(psn, base);
			if (d < 0)
				continue;
			if (psn == next) {
				next = psn_add(psn, span);
				if (p->h.ack_req)
					due = psn_add(next, PSN_MASK);
			} else if (psn_diff(psn, next) < 0 && at[d].asked) {
				found |= data && !at[d].answered;
				silent |= !data && psn_diff(psn, due) <= 0 &&
					  psn_diff(top, psn) < 0;
			}
			for (uint32_t m = 0; m < span; m++)
				at[(uint32_t)d + m].asked++;
		}
		d = a ? psn_diff(a->h.psn, base) : -1;
		if (d < 0 || d >= (int32_t)n)
			continue;
		if (is_nak(a, ROCE_NAK_PSN)) {
			found |= psn_diff(a->h.psn, next) < 0;
		} else if (is_rnr(a)) {
			next = a->h.psn;
			rnr = true;
		} else {
			at[d].answered = true;
			found |=
				psn_diff(a->h.psn, top) < 0 && at[d].asked == 1;
			if (psn_diff(a->h.psn, top) > 0)
				top = a->h.psn;
		}
	}
	free(at);
	/* Unless it was only slow: a requester that has heard that nobody is
	 * ready tries soon again, and each try has had its answer in the end. */
	for (size_t k = 0; k < r->n; k++)
		asking += r->pkt[k].h.ack_req;
	for (size_t k = 0; s && k < s->n; k++)
		answers += !is_nak(&s->pkt[k], ROCE_NAK_PSN) &&
			   (!(s->pkt[k].flags & ROCE_F_READ) ||
			    s->pkt[k].flags & ROCE_F_LAST);
	return found || (silent && (!rnr || answers < asking));
}

static bool read_again(const struct pkt *w, const struct sent *k, bool *done)
{
	bool again = *done;

	*done = true;
	return again && w->flags & ROCE_F_READ && w->len == k->len;
}

/*
 * What the captured responder got is not known, but what it executed is: each
 * request once, in the order of their PSNs. Ours gets that, and is asked for an
 * answer to each packet; every captured answer must be the one of ours to that
 * PSN. Repetitions may come with a later MSN.
 */
void play_by_psn(const struct stream *r, const struct stream *s, uint32_t mtu)
{
	struct stream once = { .pkt = calloc(r->n, sizeof(*once.pkt)) };
	uint32_t base, next, latest = 0;
	size_t posted = 0, *ours, *begun, *asked, n = 0;
	bool *done;

	memcpy(once.pkt, r->pkt, r->n * sizeof(*once.pkt));
	qsort(once.pkt, r->n, sizeof(*once.pkt), by_psn);
	base = next = once.pkt[0].h.psn;
	for (size_t i = 0; i < r->n; i++)
		if (once.pkt[i].h.psn == next) {
			once.pkt[n++] = once.pkt[i];
			next = psn_add(next, span_of(&once.pkt[i], mtu));
		}
	once.n = n;
	n = (uint32_t)psn_diff(next, base);
	ours = calloc(n, sizeof(*ours)); /* answer + 1 to each PSN */
	begun = calloc(n, sizeof(*begun)); /* requests that begin there */
	asked = calloc(n, sizeof(*asked)); /* requests for it */
	done = calloc(n, sizeof(*done)); /* has been compared */
	for (size_t i = 0; i < r->n; i++) {
		size_t d = (uint32_t)psn_diff(r->pkt[i].h.psn, base);

		for (size_t m = 0; m < span_of(&r->pkt[i], mtu); m++)
			if (d + m < n)
				asked[d + m]++;
		if (d < n)
			begun[d]++;
	}
	for (size_t i = 0; i < once.n; i++) {
		const struct pkt *p = &once.pkt[i];
		struct roce_hdr h = with_our_keys(p, s);
		size_t before;

		h.ack_req = true;
		if (p->flags & (ROCE_F_READ | ROCE_F_ATOMIC))
			prefill(p, s, mtu);
		if ((p->flags & ROCE_F_SEND && p->flags & ROCE_F_FIRST) ||
		    (p->flags & ROCE_F_WRITE && p->flags & ROCE_F_IMM))
			post_one_recv(&posted);
		before = P->nrecv;
		feed(p, h);
		check_effect(&once, i, before);
	}
	for (size_t i = 0; i < P->out.n; i++) {
		const struct sent *k = &P->out.pkt[i];
		int32_t d = psn_diff(k->h.psn, base);

		if (d < 0 || d >= (int32_t)n || ours[d])
			fail_msg("%s: an answer to PSN 0x%x", current,
				 k->h.psn);
		ours[d] = i + 1;
		if (k->flags & ROCE_F_AETH)
			latest = k->h.msn;
	}
	for (size_t i = 0; i < s->n; i++) {
		const struct pkt *w = &s->pkt[i];
		int32_t d = psn_diff(w->h.psn, base);
		const struct sent *k;
		uint32_t msn;

		/* Up to there all is done, and nothing more. */
		if (is_nak(w, ROCE_NAK_PSN) || is_rnr(w)) {
			if (d > 0 && d <= (int32_t)n && ours[d - 1] &&
			    P->out.pkt[ours[d - 1] - 1].flags & ROCE_F_AETH &&
			    P->out.pkt[ours[d - 1] - 1].h.msn != w->h.msn)
				differ(w, ours[d - 1] - 1, "MSN of a NAK");
			tally.compared++;
			continue;
		}
		if (d >= (int32_t)n) {
			tally.cut[CUT_TORN]++;
			continue;
		}
		if (d < 0 || !ours[d])
			differ(w, 0, "missing: everything");
		k = &P->out.pkt[ours[d] - 1];
		/* An ACK of repetitions has the latest PSN, whatever that was. */
		if (w->h.opcode == ROCE_ACK && k->h.opcode != ROCE_ACK &&
		    !(w->h.syndrome & ROCE_AETH_KIND)) {
			if (k->flags & ROCE_F_AETH && k->h.msn != w->h.msn)
				differ(w, ours[d] - 1, "MSN of a repeated ACK");
			tally.compared++;
			continue;
		}
		/* What is asked for again from its middle on begins there. */
		if ((w->flags ^ k->flags) & (ROCE_F_LAST | ROCE_F_READ) ||
		    (w->flags & ROCE_F_FIRST) !=
			    (k->flags & ROCE_F_FIRST ? ROCE_F_FIRST :
			     begun[d]                ? w->flags & ROCE_F_FIRST :
						       0))
			differ(w, ours[d] - 1, "opcode");
		/* Read again, perhaps after the program has changed it. */
		if (read_again(w, k, &done[d]))
			memcpy(k->data, w->payload, k->len);
		msn = w->h.msn;
		if (asked[d] > 1 && psn_diff(msn, k->h.msn) > 0 &&
		    psn_diff(msn, latest) <= 0)
			msn = k->h.msn;
		check_answer(r, w, ours[d] - 1, msn);
	}
	tally.by_psn++;
	free(once.pkt);
	free(ours);
	free(begun);
	free(asked);
	free(done);
}

/*
 * replay_unreliable.c - UC and UD: a captured sender's half, and a receiver's
 */
#include "replay.h"

/*
 * Byte for byte, but for MigReq, which rxe clears, and AckReq, which it sets
 * and which an unreliable receiver ignores.
 */
static void check_bytes(const struct pkt *w, size_t i)
{
	const struct sent *k = &P->out.pkt[i];
	uint8_t ours[ROCE_HDR_MAX], theirs[ROCE_HDR_MAX];
	size_t hl = (size_t)(w->payload - w->c->data);

	if (k->hdr_len != hl)
		differ(w, i, "header length");
	memcpy(ours, k->hdr, hl);
	memcpy(theirs, w->c->data, hl);
	ours[1] &= 0xbf;
	theirs[1] &= 0xbf;
	ours[8] &= 0x7f;
	theirs[8] &= 0x7f;
	for (size_t b = 0; b < hl; b++)
		if (ours[b] != theirs[b])
			fail_msg("%s, packet %u: header byte %zu is %02x, not "
				 "%02x",
				 current, w->c->number, b, ours[b], theirs[b]);
	if (k->len != w->len || memcmp(k->data, w->payload, w->len))
		differ(w, i, "payload");
	tally.compared++;
}

void play_sender(struct stream *r, enum ibv_qp_type type)
{
	struct player_opts o = {
		.type = type,
		.mtu = mtu_of(r, NULL),
		.peer_qpn = r->qpn,
		.qpn = r->src_qpn ? r->src_qpn : 2,
		.us = &r->src,
		.them = &r->dst,
		.access = ACCESS_ALL,
	};
	struct region all = { .end = 8 };
	uint32_t next = 0;
	size_t n = 0;
	uint8_t *buf;

	/* A Q_Key with the top bit set is the sending QP's own (10.2.5). */
	for (size_t i = 0; i < r->n; i++)
		if (r->pkt[i].h.qkey >> 31)
			o.qkey = r->pkt[i].h.qkey;

	/* In the order sent, each once. */
	if (type == IBV_QPT_UC)
		qsort(r->pkt, r->n, sizeof(r->pkt[0]), by_psn);
	for (size_t i = 0; i < r->n; i++) {
		all.end += r->pkt[i].len;
		if (n && r->pkt[i].h.psn == r->pkt[n - 1].h.psn)
			tally.cut[CUT_LATE]++;
		else
			r->pkt[n++] = r->pkt[i];
	}
	r->n = n;
	buf = all.mem = calloc(1, all.end);
	for (size_t i = 0, end; i < r->n; i = end) {
		const struct pkt *p = &r->pkt[i];
		size_t used = 0, nwc;

		for (end = i + 1;
		     end < r->n && !(r->pkt[end - 1].flags & ROCE_F_LAST) &&
		     r->pkt[end].h.psn == psn_add(r->pkt[end - 1].h.psn, 1);)
			end++;
		if (!(p->flags & ROCE_F_FIRST) ||
		    !(r->pkt[end - 1].flags & ROCE_F_LAST)) {
			tally.cut[i ? CUT_TORN : CUT_BEGUN] += end - i;
			continue;
		}
		if (!P || p->h.psn != next) {
			if (P)
				player_free();
			o.sq_psn = p->h.psn;
			player_new(&o);
			add_key(&all, (uintptr_t)buf);
			tally.conversations++;
		}
		forget_sent();
		nwc = P->nwc;
		assert_true(post_message(r, i, buf, &used, all.lkey, false));
		if (P->out.n != end - i)
			differ(p, P->out.n, "number of packets");
		for (size_t k = 0; k < P->out.n; k++)
			check_bytes(&r->pkt[i + k], k);
		if (P->nwc != nwc + 1 || P->wc[nwc].status != IBV_WC_SUCCESS)
			differ(p, 0, "completion");
		next = psn_add(r->pkt[end - 1].h.psn, 1);
	}
	if (P)
		player_free();
	free(buf);
}

/*
 * A message whose packets arrive one behind the other is executed; what comes
 * late does not count. Of other messages nothing may be seen but the bytes that
 * a write has written.
 */
void play_uc_receiver(struct stream *r)
{
	struct player_opts o = {
		.type = IBV_QPT_UC,
		.qpn = r->qpn,
		.peer_qpn = 1,
		.mtu = mtu_of(r, NULL),
		.rq_psn = r->pkt[0].h.psn,
		.access = ACCESS_ALL,
		.us = &r->dst,
		.them = &r->src,
	};
	struct pkt *msg = calloc(r->n, sizeof(*msg)); /* so far */
	uint32_t next = o.rq_psn;
	size_t posted = 0, n = 0;
	bool begun = false;

	player_new(&o);
	make_regions(r, NULL);
	tally.conversations++;
	for (size_t i = 0; i < r->n; i++) {
		const struct pkt *p = &r->pkt[i];
		struct roce_hdr h = p->h;
		const struct region *g = region_of(h.rkey);
		int32_t d = psn_diff(h.psn, next);
		size_t before = P->nrecv;

		if (p->flags & ROCE_F_RETH)
			h.rkey = g ? g->our_rkey : 0xdeadbeef;
		post_one_recv(&posted);
		feed(p, h);
		if (d >= 0) {
			next = psn_add(h.psn, 1);
			if (d || p->flags & ROCE_F_FIRST) {
				tally.cut[CUT_TORN] += n;
				n = 0;
			}
			if (n || p->flags & ROCE_F_FIRST)
				msg[n++] = *p;
			else
				tally.cut[begun ? CUT_TORN : CUT_BEGUN]++;
			begun |= n > 0;
		} else {
			tally.cut[CUT_LATE]++;
		}
		if (d < 0 || !n || !(p->flags & ROCE_F_LAST)) {
			if (P->nrecv != before)
				differ(p, n, "a receive that was not due");
			continue;
		}
		if (P->nrecv != before + needs_recv(p))
			differ(p, n, "number of receives");
		if (needs_recv(p))
			check_receive(msg, n, 0);
		if (p->flags & ROCE_F_WRITE)
			check_written(msg, n);
		tally.compared += n;
		n = 0;
	}
	tally.cut[CUT_TORN] += n;
	if (P->out.n)
		fail_msg("%s: %zu answers, to UC", current, P->out.n);
	player_free();
	free(msg);
}

void play_ud_receiver(struct stream *r)
{
	struct player_opts o = {
		.type = IBV_QPT_UD,
		.qpn = r->qpn,
		.qkey = r->qkey,
		.mtu = ROCE_MTU_MAX,
	};
	size_t posted = 0;

	player_new(&o);
	tally.conversations++;
	for (size_t i = 0; i < r->n; i++) {
		post_one_recv(&posted);
		feed(&r->pkt[i], r->pkt[i].h);
		if (P->nrecv != i + 1)
			differ(&r->pkt[i], i, "number of receives");
		check_receive(&r->pkt[i], 1, 40);
		tally.compared++;
	}
	if (P->out.n)
		fail_msg("%s: %zu answers, to UD", current, P->out.n);
	player_free();
}

/*
 * replay_requester.c - work requests, guessed from RC requests, to our requester
 *
 * It must send the captured requests while it is fed the captured answers.
 */
#include "replay.h"

static enum ibv_wr_opcode wr_opcode(const struct stream *r, size_t i)
{
	const struct pkt *last = &r->pkt[i];

	while (!(last->flags & ROCE_F_LAST) && ++i < r->n)
		if (r->pkt[i].h.psn == psn_add(last->h.psn, 1))
			last = &r->pkt[i];
	switch (last->h.opcode) {
	case ROCE_READ_REQUEST:
		return IBV_WR_RDMA_READ;
	case ROCE_CMP_SWAP:
		return IBV_WR_ATOMIC_CMP_AND_SWP;
	case ROCE_FETCH_ADD:
		return IBV_WR_ATOMIC_FETCH_AND_ADD;
	case ROCE_ATOMIC_WRITE:
		return IBV_WR_ATOMIC_WRITE;
	default:
		break;
	}
	if (last->flags & ROCE_F_IETH)
		return IBV_WR_SEND_WITH_INV;
	if (last->flags & ROCE_F_WRITE)
		return last->flags & ROCE_F_IMM ? IBV_WR_RDMA_WRITE_WITH_IMM :
						  IBV_WR_RDMA_WRITE;
	return last->flags & ROCE_F_IMM ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND;
}

/*
 * Posts the message that begins with packet i, whose bytes are collected from
 * its packets into buf, where *used bytes are taken. Returns false when the
 * capture does not hold all of it; refused: because a NAK ended it, then what is
 * missing is made up.
 */
bool post_message(const struct stream *r, size_t i, uint8_t *buf, size_t *used,
		  uint32_t lkey, bool refused)
{
	int err;
	const struct pkt *p = &r->pkt[i], *last = p;
	struct ibv_sge sge = { (uintptr_t)(buf += *used), 0, lkey };
	struct ibv_send_wr wr = {
		.wr_id = p->h.psn,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = wr_opcode(r, i),
	};
	uint32_t psn = p->h.psn;

	if (p->flags & ROCE_F_READ) {
		sge.length = p->h.dma_len;
	} else if (p->flags & ROCE_F_ATOMICETH) {
		sge.length = 8;
	} else {
		for (;; i++) {
			if (i == r->n && !refused)
				return false;
			if (i == r->n) {
				sge.length = p->flags & ROCE_F_RETH ?
						     p->h.dma_len :
						     sge.length + 1;
				break;
			}
			last = &r->pkt[i];
			if (last->h.psn != psn)
				continue; /* sent again */
			memcpy(buf + sge.length, last->payload, last->len);
			sge.length += (uint32_t)last->len;
			psn = psn_add(psn, 1);
			if (last->flags & ROCE_F_LAST)
				break;
		}
	}
	if (last->h.solicited)
		wr.send_flags = IBV_SEND_SOLICITED;
	if (last->flags & ROCE_F_IMM)
		wr.imm_data = last->h.imm;
	if (last->flags & ROCE_F_IETH)
		wr.invalidate_rkey = last->h.inv_rkey;
	if (p->flags & ROCE_F_ATOMICETH) {
		wr.wr.atomic.remote_addr = p->h.va;
		wr.wr.atomic.rkey = p->h.rkey;
		wr.wr.atomic.swap = p->h.swap_add;
		wr.wr.atomic.compare_add =
			wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP ? p->h.compare :
								 p->h.swap_add;
	} else {
		wr.wr.rdma.remote_addr = p->h.va;
		wr.wr.rdma.rkey = p->h.rkey;
	}
	if (roce_qp_type(P->qp) == IBV_QPT_UD) {
		struct roce_path path = path_of(&p->c->src, &p->c->dst);

		wr.wr.ud.remote_qpn = p->h.dest_qpn;
		wr.wr.ud.remote_qkey = p->h.qkey;
		err = roce_post_send(P->qp, &wr, &path);
	} else {
		err = roce_post_send(P->qp, &wr, NULL);
	}
	*used += (sge.length + 7) & ~7u;
	pull();
	if (err)
		differ(p, 0, "what may be posted");
	return true;
}

static void check_request(const struct pkt *w, size_t i, bool again)
{
	const struct roce_hdr *h = &P->out.pkt[i].h;
	/* rxe of Linux 6.12 repeats an atomic write with address 0. */
	bool lost_va = again && w->h.opcode == ROCE_ATOMIC_WRITE && !w->h.va;

	if (h->opcode != w->h.opcode)
		differ(w, i, "opcode");
	if (h->dest_qpn != w->h.dest_qpn || h->pkey != w->h.pkey ||
	    h->pad != w->h.pad || h->solicited != w->h.solicited ||
	    h->tver != w->h.tver)
		differ(w, i, "BTH");
	if (w->flags & ROCE_F_LAST && h->ack_req != w->h.ack_req)
		differ(w, i, "AckReq");
	if ((h->va != w->h.va && !lost_va) || h->rkey != w->h.rkey ||
	    h->imm != w->h.imm ||
	    (w->flags & ROCE_F_READ ? h->dma_len > w->h.dma_len :
				      h->dma_len != w->h.dma_len) ||
	    h->inv_rkey != w->h.inv_rkey || h->swap_add != w->h.swap_add ||
	    (h->opcode == ROCE_CMP_SWAP && h->compare != w->h.compare))
		differ(w, i, "extended header");
	if (P->out.pkt[i].len != w->len ||
	    memcmp(P->out.pkt[i].data, w->payload, w->len))
		differ(w, i, "payload");
}

/* Each request of the capture was sent by us as well, the first of its PSN. */
static void check_requests(const struct stream *r, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		size_t k = 0;

		while (k < P->out.n && P->out.pkt[k].h.psn != r->pkt[i].h.psn)
			k++;
		/* What goes on in the middle of a read begins elsewhere. */
		if (k == P->out.n && r->pkt[i].flags & ROCE_F_READ) {
			tally.cut[CUT_RESUMED]++;
			continue;
		}
		if (k == P->out.n)
			differ(&r->pkt[i], k, "missing: everything");
		check_request(&r->pkt[i], k, asked_before(r, i));
		tally.compared++;
	}
}

/*
 * Captured beyond where packets get lost or overtake each other: the order of
 * the requests is not the one in which they were sent. A PSN shows up, for the
 * first time, behind a higher one.
 */
static bool sent_otherwise(const struct stream *r, uint32_t mtu)
{
	uint32_t end = r->pkt[0].h.psn;
	bool found = false;

	for (size_t i = 0; i < r->n && !found; i++) {
		const struct pkt *p = &r->pkt[i];
		int32_t d = psn_diff(p->h.psn, end);

		/* What is skipped, and not for lack of packets at all. */
		for (size_t k = i + 1; d > 0 && k < r->n && !found; k++)
			found = psn_diff(r->pkt[k].h.psn, end) >= 0 &&
				psn_diff(r->pkt[k].h.psn, p->h.psn) < 0;
		if (!i)
			for (size_t k = 1; k < r->n && !found; k++)
				found = psn_diff(r->pkt[k].h.psn, end) < 0;
		if (d >= 0)
			end = psn_add(p->h.psn, span_of(p, mtu));
	}
	return found;
}

void play_requester(const struct stream *captured, struct stream *s)
{
	struct stream sorted = *captured;
	const struct stream *r = captured;
	uint32_t mtu = mtu_of(r, s), next;
	struct region all = { .end = 8 };
	size_t used = 0, si = 0, n = r->n;
	bool fatal = false, otherwise = sent_otherwise(r, mtu);
	uint8_t *buf;

	/* Then all is posted at once, and the answers come afterwards. */
	if (otherwise) {
		sorted.pkt = calloc(r->n, sizeof(*sorted.pkt));
		memcpy(sorted.pkt, r->pkt, r->n * sizeof(*sorted.pkt));
		qsort(sorted.pkt, r->n, sizeof(*sorted.pkt), by_psn);
		r = &sorted;
		tally.by_psn++;
	}
	next = r->pkt[0].h.psn;

	for (size_t i = 0; i < r->n; i++)
		all.end += 16 + (r->pkt[i].flags & ROCE_F_RETH ?
					 r->pkt[i].h.dma_len :
					 r->pkt[i].len);
	for (size_t i = 0; i < s->n; i++)
		fatal |= s->pkt[i].at > r->pkt[r->n - 1].at &&
			 is_fatal(&s->pkt[i]);
	buf = all.mem = calloc(1, all.end);
	struct player_opts o = {
		.type = IBV_QPT_RC,
		.qpn = s->qpn,
		.peer_qpn = r->qpn,
		.mtu = mtu,
		.sq_psn = next,
		.access = ACCESS_ALL,
		.us = &r->src,
		.them = &r->dst,
	};

	player_new(&o);
	add_key(&all, (uintptr_t)buf);
	for (size_t i = 0; i < r->n; i++) {
		const struct pkt *p = &r->pkt[i];

		for (; si < s->n && s->pkt[si].at < p->at && !otherwise; si++) {
			feed(&s->pkt[si], s->pkt[si].h);
			P->now += 1000000000; /* past any RNR timer */
			roce_expire(P->qp, P->now);
			pull();
		}
		if (p->h.psn != next)
			continue;
		if (!(p->flags & ROCE_F_FIRST) &&
		    !(p->flags & (ROCE_F_READ | ROCE_F_ATOMIC))) {
			next = psn_add(next, 1);
			continue;
		}
		if (!post_message(r, i, buf, &used, all.lkey, fatal)) {
			/* A hole in the capture, and packets of the message
			 * may have been seen before its first. */
			for (n = 0; psn_diff(r->pkt[n].h.psn, p->h.psn) < 0;)
				n++;
			tally.cut[CUT_TORN] += r->n - n;
			break;
		}
		next = psn_add(next, span_of(p, mtu));
	}
	for (; si < s->n; si++) {
		const struct pkt *a = &s->pkt[si];

		feed(a, a->h);
		P->now += 1000000000;
		roce_expire(P->qp, P->now);
		pull();
	}
	check_requests(r, n);
	if (otherwise)
		free(sorted.pkt);
	/* Everything posted has ended, well unless the capture says not. */
	for (size_t i = 0; i < P->nwc; i++)
		if (P->wc[i].status != IBV_WC_SUCCESS && !fatal)
			fail_msg("%s: work request %zu ended with %d", current,
				 i, P->wc[i].status);
	if (fatal && (!P->nwc || P->wc[P->nwc - 1].status == IBV_WC_SUCCESS))
		fail_msg("%s: a fatal NAK ended nothing", current);
	free(buf);
	player_free();
}

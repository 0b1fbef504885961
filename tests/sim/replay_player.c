/*
 * replay_player.c - our end of a captured conversation: a QP, and its memory
 *
 * There is one player at a time, P. What its QP sends is kept for the checks;
 * time moves on with each packet that it is fed.
 */
#include "replay.h"

#include "base/pool.h"

struct player *P;

static int env_complete(struct qp *qp, void *cq, const struct ibv_wc *wc,
			bool solicited)
{
	(void)qp;
	if (cq) {
		MORE(P->wc, P->nwc, P->wc_cap);
		P->wc[P->nwc++] = *wc;
	} else {
		P->nrecv++;
		P->recv_wc = *wc;
		P->recv_solicited = solicited;
	}
	return 0;
}

static void env_event(struct qp *qp, enum ibv_event_type type)
{
	(void)qp;
	(void)type;
}

static struct pool reorder = POOL_INIT;

static int env_invalidate(struct qp *qp, uint32_t rkey)
{
	(void)qp;
	for (size_t i = 0; i < P->nregions; i++)
		if (P->region[i].our_rkey == rkey) {
			keys_kill(&P->keys, (uint32_t)P->region[i].slot);
			return 0;
		}
	return -EACCES;
}

void add_key(struct region *g, uint64_t iova)
{
	struct key_entry e = {
		.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			  IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
		.pd = 1,
		.kind = KEY_MR,
		.iova = iova,
		.length = g->end - g->start,
		.addr = (uintptr_t)g->mem,
	};

	g->slot = keys_add(&P->keys, &e);
	assert_true(g->slot >= 0);
	g->lkey = atomic_load(&P->keys.entry[g->slot].lkey);
	g->our_rkey = atomic_load(&P->keys.entry[g->slot].rkey);
}

struct roce_path path_of(const union ibv_gid *us, const union ibv_gid *them)
{
	/* local: nothing is paced */
	return (struct roce_path){ .sgid = *us, .dgid = *them, .local = true };
}

void player_new(const struct player_opts *o)
{
	struct qp_init init = {
		.qpn = o->qpn,
		.pd = 1,
		.type = o->type,
		.send_cq = &P,
		.recv_cq = NULL,
		.sq_sig_all = true,
		.cap = { MAX_WRS, MAX_WRS, 1, 1, 0 },
	};
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = o->access,
		.qkey = o->qkey,
		.dest_qp_num = o->peer_qpn,
		.rq_psn = o->rq_psn,
		.sq_psn = o->sq_psn,
		.timeout = 0,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.min_rnr_timer = o->rnr_timer,
		.max_rd_atomic = 64,
		.max_dest_rd_atomic = 64,
	};
	struct roce_path path = { 0 };
	bool rc = o->type == IBV_QPT_RC, ud = o->type == IBV_QPT_UD;
	struct key_entry *mem;

	P = calloc(1, sizeof(*P));
	mem = calloc(4 * MAX_REGIONS, sizeof(*mem));
	keys_init(&P->keys, mem, 4 * MAX_REGIONS, (uint64_t[]){ 7, 7 });
	P->env = (struct roce_env){
		.base.keys = &P->keys,
		.base.complete = env_complete,
		.base.event = env_event,
		.base.invalidate = env_invalidate,
		.reorder = &reorder,
	};
	P->now = 1000000000;
	P->mtu = o->mtu;
	P->rq_mem = calloc(1, RQ_BYTES);
	struct region rq = { .mem = P->rq_mem, .end = RQ_BYTES };
	add_key(&rq, (uintptr_t)P->rq_mem);
	P->pd_lkey = rq.lkey;
	init.env = &P->env.base;
	assert_int_equal(roce_qp_create(&P->qp, &init), 0);
	for (a.path_mtu = IBV_MTU_256; 128u << a.path_mtu < o->mtu;
	     a.path_mtu++)
		;
	if (!ud)
		path = path_of(o->us, o->them);
	assert_int_equal(
		roce_qp_modify(P->qp, &a,
			       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
				       (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS),
			       NULL),
		0);
	a.qp_state = IBV_QPS_RTR;
	assert_int_equal(
		roce_qp_modify(
			P->qp, &a,
			ud ? IBV_QP_STATE :
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
					IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					(rc ? IBV_QP_MAX_DEST_RD_ATOMIC |
							 IBV_QP_MIN_RNR_TIMER :
					      0),
			ud ? NULL : &path),
		0);
	a.qp_state = IBV_QPS_RTS;
	assert_int_equal(
		roce_qp_modify(
			P->qp, &a,
			IBV_QP_STATE | IBV_QP_SQ_PSN |
				(rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
						 IBV_QP_RNR_RETRY |
						 IBV_QP_MAX_QP_RD_ATOMIC :
				      0),
			NULL),
		0);
}

void forget_sent(void)
{
	for (size_t i = 0; i < P->out.n; i++)
		free(P->out.pkt[i].data);
	P->out.n = 0;
}

void player_free(void)
{
	roce_qp_destroy(P->qp);
	for (size_t i = 0; i < P->nregions; i++)
		free(P->region[i].mem);
	forget_sent();
	free(P->out.pkt);
	free(P->wc);
	free(P->rq_mem);
	free(P->keys.entry);
	free(P);
	P = NULL;
}

void pull(void)
{
	struct roce_batch b;
	size_t n;

	b.max_payload = b.max_copy = 0;

	do {
		roce_tx(P->qp, &b, P->now);
		n = b.n;
		for (size_t i = 0; i < n; i++) {
			struct roce_pkt *p = &b.pkt[i];
			struct sent *k;

			MORE(P->out.pkt, P->out.n, P->out.cap);
			k = &P->out.pkt[P->out.n++];
			*k = (struct sent){ .data = malloc(ROCE_MTU_MAX) };
			/* With the payload's length in place. */
			uint8_t buf[ROCE_HDR_MAX + ROCE_MTU_MAX + 4] = { 0 };
			k->hdr_len = roce_encode(&p->h, buf);
			assert_true(roce_decode(&k->h, buf,
						k->hdr_len + p->payload +
							p->h.pad) > 0);
			k->flags = roce_opcode(buf[0])->flags;
			memcpy(k->hdr, buf, k->hdr_len);
			for (uint32_t v = 0; v < p->niov; v++) {
				struct iovec *io = &b.data.iov[p->iov + v];

				memcpy(k->data + k->len, io->iov_base,
				       io->iov_len);
				k->len += io->iov_len;
			}
		}
		roce_tx_done(P->qp, &b, n, P->now);
	} while (n);
}

void feed(const struct pkt *p, struct roce_hdr h)
{
	struct roce_rx rx = { .h = h,
			      .payload = p->payload,
			      .len = p->len,
			      .sgid = p->c->src,
			      .dgid = p->c->dst };

	roce_rx(P->qp, &rx, P->now);
	P->now += 10000;
	pull();
}

void differ(const struct pkt *want, size_t i, const char *what)
{
	fail_msg("%s, packet %u (answer %zu): %s differs", current,
		 want->c->number, i, what);
}

struct region *region_of(uint32_t rkey)
{
	for (size_t i = 0; i < P->nregions; i++)
		if (P->region[i].rkey == rkey)
			return &P->region[i];
	return NULL;
}

static struct region *region_new(uint32_t rkey, uint64_t start, uint64_t end)
{
	struct region *g = &P->region[P->nregions++];

	assert_true(P->nregions <= MAX_REGIONS);
	*g = (struct region){ .rkey = rkey, .start = start, .end = end };
	return g;
}

/* Memory is what was accessed with success. */
void make_regions(const struct stream *r, const struct stream *s)
{
	for (size_t i = 0; i < r->n; i++) {
		const struct pkt *p = &r->pkt[i];
		uint64_t len = p->flags & ROCE_F_ATOMICETH ? 8 : p->h.dma_len;
		struct region *g;

		if (refused_access(s, p->h.psn))
			continue;
		if (p->flags & ROCE_F_IETH && !region_of(p->h.inv_rkey))
			region_new(p->h.inv_rkey, 0, 8);
		if (!(p->flags & (ROCE_F_RETH | ROCE_F_ATOMICETH)) || !len)
			continue;
		g = region_of(p->h.rkey);
		if (!g || (!g->start && g->end == 8)) {
			if (!g)
				g = region_new(p->h.rkey, 0, 0);
			g->start = p->h.va;
			g->end = p->h.va + len;
		}
		if (p->h.va < g->start)
			g->start = p->h.va;
		if (p->h.va + len > g->end)
			g->end = p->h.va + len;
	}
	for (size_t i = 0; i < P->nregions; i++) {
		struct region *g = &P->region[i];

		/* Atomics need the alignment that they had. */
		g->start &= ~7ull;
		g->mem = aligned_alloc(8, (g->end - g->start + 15) / 8 * 8);
		memset(g->mem, 0, g->end - g->start);
		add_key(g, g->start);
	}
}

void post_one_recv(size_t *posted)
{
	struct ibv_sge sge = { (uintptr_t)P->rq_mem, RQ_BYTES, P->pd_lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 };

	if (*posted > P->nrecv)
		return; /* still there: what it was for came to nothing */
	assert_int_equal(qp_post_recv(roce_qp_base(P->qp), &wr), 0);
	++*posted;
}

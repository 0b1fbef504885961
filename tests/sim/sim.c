/*
 * sim.c - the simulated network: an event heap, a link that misbehaves by
 * chance, and the functions that the protocol core's environment asks for
 */
#include "sim_host.h"

#include "wire/icrc.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct sim_event {
	uint64_t at, id;
	int to;
	size_t len; /* BTH to ICRC inclusive */
	bool marked; /* congestion experienced */
	uint8_t *bytes;
	struct sim_host_pkt *host; /* instead of bytes */
};

uint64_t sim_rand(struct sim_rng *r)
{
	uint64_t z = (r->state += 0x9e3779b97f4a7c15ull);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

uint32_t sim_below(struct sim_rng *r, uint32_t n)
{
	return (uint32_t)(((sim_rand(r) >> 32) * n) >> 32);
}

bool sim_chance(struct sim_rng *r, double p)
{
	return p > 0 && (double)(sim_rand(r) >> 11) / 9007199254740992.0 < p;
}

/* ---- the environment --------------------------------------------------- */

static int env_complete(struct qp *qp, void *cq, const struct ibv_wc *wc,
			bool solicited)
{
	struct sim_wcs *w = cq;

	(void)qp;
	assert(w->n < SIM_WCS);
	w->wc[w->n] = *wc;
	w->solicited[w->n++] = solicited;
	return 0;
}

static int env_srq_take(struct qp *qp, void *srq, uint64_t room,
			struct qp_recv *out)
{
	(void)qp;
	return qp_rq_take(srq, room, out);
}

static int env_xrc_take(struct qp *qp, uint32_t srqn, struct qp_recv *out)
{
	struct sim_qp *q = qp->owner;

	if (srqn != SIM_XRC_SRQN)
		return -ENOENT;
	if (qp_rq_take(&q->node->srq, 0, out))
		return -EAGAIN;
	out->cq = q->recv;
	return 0;
}

static int env_xrc_pd(struct qp *qp, uint32_t srqn, uint32_t *pd)
{
	(void)qp;
	*pd = 1;
	return srqn == SIM_XRC_SRQN ? 0 : -ENOENT;
}

/* Windows, in short: one region, of everybody's, and no counting. */
static int env_bind(struct qp *qp, const struct qp_bind *b)
{
	struct sim_qp *q = qp->owner;
	uint32_t slot = keys_slot(&q->node->keys, b->rkey);
	const struct key_entry e = {
		.access = b->access,
		.pd = 1,
		.qpn = qp->qpn,
		.kind = KEY_MW2,
		.iova = b->addr,
		.addr = b->addr,
		.length = b->length,
	};

	if (slot >= q->node->keys.used ||
	    q->node->keys.entry[slot].kind != KEY_MW2 ||
	    sim_mw_bound(q->node, q->node->keys.entry[slot].rkey) ||
	    b->lkey != q->node->lkey)
		return -EACCES;
	keys_revive(&q->node->keys, slot, &e, 0, b->rkey);
	return 0;
}

static int env_invalidate(struct qp *qp, uint32_t rkey)
{
	struct sim_qp *q = qp->owner;
	uint32_t slot = keys_slot(&q->node->keys, rkey);

	if (!sim_mw_bound(q->node, rkey) ||
	    q->node->keys.entry[slot].qpn != qp->qpn)
		return -EACCES;
	keys_kill(&q->node->keys, slot);
	return 0;
}

uint32_t sim_mw_new(struct sim_node *n)
{
	const struct key_entry e = { .kind = KEY_MW2, .pd = 1 };
	int slot = keys_add(&n->keys, &e);

	assert(slot >= 0);
	keys_kill(&n->keys, (uint32_t)slot);
	return n->keys.entry[slot].rkey;
}

bool sim_mw_bound(struct sim_node *n, uint32_t rkey)
{
	uint32_t hint = 0;
	struct key_entry *e = keys_get_remote(&n->keys, rkey, &hint);
	bool bound = e && e->kind == KEY_MW2;

	if (e)
		keys_put(e);
	return bound;
}

static void env_event(struct qp *qp, enum ibv_event_type type)
{
	struct sim_qp *q = qp->owner;

	q->events |= 1u << type;
}

static void env_explain(struct qp *qp, const char *fmt, ...)
{
	struct sim_qp *q = qp->owner;
	va_list ap;

	q->explained++;
	va_start(ap, fmt);
	vsnprintf(q->words, sizeof(q->words), fmt, ap);
	va_end(ap);
	if (q->node->sim->verbose)
		fprintf(stderr, "QP %#x: %s\n", qp->qpn, q->words);
}

/* ---- nodes ------------------------------------------------------------- */

uint64_t sim_now(const struct sim_node *n)
{
	return (n->away ? n->away_ns : n->sim->now) - n->behind_ns;
}

static void node_init(struct sim *s, int i)
{
	struct sim_node *n = &s->node[i];
	struct key_entry e = {
		.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			  IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
		.pd = 1,
		.kind = KEY_MR,
		.length = SIM_MEM,
	};
	struct key_entry *mem = calloc(1024, sizeof(*mem));
	char addr[32];

	n->sim = s;
	snprintf(addr, sizeof(addr), "::ffff:10.0.0.%d", i + 1);
	inet_pton(AF_INET6, addr, n->gid.raw);
	n->mem = calloc(1, SIM_MEM); /* most of it is never touched */
	keys_init(&n->keys, mem, 1024, (uint64_t[]){ s->seed, (uint64_t)i });
	n->shown_keys = aligned_alloc(64, 1024 * sizeof(*n->shown_keys));
	memset(n->shown_keys, 0, 1024 * sizeof(*n->shown_keys));
	keys_show(&n->keys, &n->shown, n->shown_keys);
	keys_show_room(&n->keys, 1024);
	e.addr = e.iova = (uintptr_t)n->mem;
	n->slot = keys_add(&n->keys, &e);
	assert(n->slot >= 0);
	n->lkey = atomic_load(&mem[n->slot].lkey);
	n->rkey = atomic_load(&mem[n->slot].rkey);
	n->reorder = (struct pool)POOL_INIT;
	n->env = (struct roce_env){
		.base.keys = &n->keys,
		.base.complete = env_complete,
		.base.srq_take = env_srq_take,
		.xrc_srq_take = env_xrc_take,
		.xrc_pd = env_xrc_pd,
		.reorder = &n->reorder,
		.base.bind_mw = env_bind,
		.base.invalidate = env_invalidate,
		.base.direct = &sim_direct_env,
		.base.event = env_event,
		.base.explain = env_explain,
	};
	n->next_qpn = 0x1000u * (uint32_t)(i + 1);
	qp_rq_init(&n->srq, 1024, 4, 1, NULL);
}

struct sim *sim_new(uint64_t seed)
{
	struct sim *s = calloc(1, sizeof(*s));

	s->seed = seed;
	s->rng.state = seed;
	s->now = SIM_SEC;
	s->link.delay_ns = 2000;
	s->link.jitter_ns = 20000;
	s->verbose = getenv("SIM_VERBOSE") != NULL;
	sim_ways_init(s);
	node_init(s, 0);
	node_init(s, 1);
	return s;
}

void sim_free(struct sim *s)
{
	for (size_t i = 0; i < s->nheap; i++) {
		free(s->heap[i].bytes);
		sim_host_free(s->heap[i].host);
	}
	free(s->heap);
	for (int i = 0; i < 2; i++) {
		struct sim_node *n = &s->node[i];

		for (size_t k = 0; k < n->nqp; k++) {
			if (n->qp[k].qp)
				roce_qp_destroy(n->qp[k].qp);
			free(n->qp[k].send);
			free(n->qp[k].recv);
		}
		qp_rq_fini(&n->srq);
		free(n->keys.entry);
		free(n->shown_keys);
		free(n->mem);
	}
	free(s);
}

struct sim_qp *sim_qp_slot(struct sim *s, int node)
{
	struct sim_node *n = &s->node[node];
	struct sim_qp *q = &n->qp[n->nqp++];

	assert(n->nqp <= SIM_QPS);
	q->node = n;
	q->pub = &n->pub[q - n->qp];
	q->send = calloc(1, sizeof(*q->send));
	q->recv = calloc(1, sizeof(*q->recv));
	return q;
}

struct qp_init sim_qp_init(struct sim_qp *q, const struct sim_qp_opts *o)
{
	return (struct qp_init){
		.env = &q->node->env.base,
		.owner = q,
		.qpn = q->node->next_qpn++,
		.pd = 1,
		.type = o->type,
		.send_cq = q->send,
		.recv_cq = q->recv,
		.cap = o->cap,
		.sq_sig_all = o->sig_all,
		.srq = o->srq ? &q->node->srq : NULL,
		.pub = q->pub,
	};
}

struct sim_qp *sim_qp_new(struct sim *s, int node, const struct sim_qp_opts *o)
{
	struct sim_qp *q = sim_qp_slot(s, node);
	struct qp_init init = sim_qp_init(q, o);
	int err = roce_qp_create(&q->qp, &init);

	assert(!err);
	(void)err;
	return q;
}

struct roce_path sim_path(struct sim_node *from, struct sim_node *to)
{
	const bool local =
		from->sim->way[0] != SIM_UDP || from->sim->way[1] != SIM_UDP;

	return (struct roce_path){
		.sgid = from->gid,
		.dgid = to->gid,
		.hop_limit = 64,
		.local = local,
		.lossless = local,
	};
}

const struct sim_conn_opts sim_conn_default = {
	.mtu = IBV_MTU_1024,
	.timeout = 14,
	.retry_cnt = 7,
	.rnr_retry = 7,
	.min_rnr_timer = 6,
	.rd_atomic = 4,
	.dest_rd_atomic = 4,
	.psn_a = 0xfffff0, /* wraps soon */
	.psn_b = 0x123456,
	.access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
		  IBV_ACCESS_REMOTE_ATOMIC,
};

static void must(int err, const char *what)
{
	if (err) {
		fprintf(stderr, "%s: %s\n", what, strerror(-err));
		abort();
	}
}

static void conn_one(struct sim_qp *q, struct sim_qp *peer,
		     const struct sim_conn_opts *o, uint32_t sq_psn,
		     uint32_t rq_psn)
{
	enum ibv_qp_type type = roce_qp_type(q->qp);
	bool requests = type == IBV_QPT_RC || type == IBV_QPT_XRC_SEND;
	bool responds = type == IBV_QPT_RC || type == IBV_QPT_XRC_RECV;
	struct roce_path path = sim_path(q->node, peer->node);
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = o->access,
		.path_mtu = o->mtu,
		.dest_qp_num = roce_qp_num(peer->qp),
		.rq_psn = rq_psn,
		.sq_psn = sq_psn,
		.timeout = o->timeout,
		.retry_cnt = o->retry_cnt,
		.rnr_retry = o->rnr_retry,
		.min_rnr_timer = o->min_rnr_timer,
		.max_rd_atomic = o->rd_atomic,
		.max_dest_rd_atomic = o->dest_rd_atomic,
	};

	q->peer = peer;
	must(roce_qp_modify(q->qp, &a,
			    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
				    IBV_QP_ACCESS_FLAGS,
			    NULL),
	     "INIT");
	a.qp_state = IBV_QPS_RTR;
	must(roce_qp_modify(q->qp, &a,
			    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
				    IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				    (responds ? IBV_QP_MAX_DEST_RD_ATOMIC |
							IBV_QP_MIN_RNR_TIMER :
						0),
			    &path),
	     "RTR");
	a.qp_state = IBV_QPS_RTS;
	must(roce_qp_modify(
		     q->qp, &a,
		     IBV_QP_STATE | IBV_QP_SQ_PSN |
			     (type == IBV_QPT_XRC_RECV ? IBV_QP_TIMEOUT : 0) |
			     (requests ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
						 IBV_QP_RNR_RETRY |
						 IBV_QP_MAX_QP_RD_ATOMIC :
					 0),
		     NULL),
	     "RTS");
}

void sim_connect(struct sim_qp *a, struct sim_qp *b,
		 const struct sim_conn_opts *o)
{
	conn_one(a, b, o, o->psn_a, o->psn_b);
	conn_one(b, a, o, o->psn_b, o->psn_a);
}

void sim_qp_move(struct sim_qp *q)
{
	struct roce_path path = *roce_qp_path(q->qp);
	struct qp_init init = {
		.env = &q->node->env.base,
		.owner = q,
		.qpn = roce_qp_num(q->qp),
		.type = IBV_QPT_XRC_RECV,
		.send_cq = q->send,
		.recv_cq = q->recv,
	};
	struct ibv_qp_init_attr unused;
	struct roce_rsp_state state;
	struct ibv_qp_attr a;
	struct roce_qp *next;

	roce_rsp_get(q->qp, &state);
	if (!state.idle)
		return;
	roce_qp_query(q->qp, &a, &unused);
	a.port_num = 1;
	a.dest_qp_num = roce_qp_dest(q->qp);
	must(roce_qp_create(&next, &init), "create");
	a.qp_state = IBV_QPS_INIT;
	must(roce_qp_modify(next, &a,
			    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
				    IBV_QP_ACCESS_FLAGS,
			    NULL),
	     "INIT");
	a.qp_state = IBV_QPS_RTR;
	a.rq_psn = 0; /* the state has the right one */
	must(roce_qp_modify(next, &a,
			    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
				    IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				    IBV_QP_MAX_DEST_RD_ATOMIC |
				    IBV_QP_MIN_RNR_TIMER,
			    &path),
	     "RTR");
	roce_rsp_set(next, &state);
	roce_qp_destroy(q->qp);
	q->qp = next;
}

void sim_qp_leave(struct sim_qp *q)
{
	q->left = roce_timewait_init(&q->timewait, q->qp);
	roce_qp_destroy(q->qp);
	q->qp = NULL;
}

void sim_ud_up(struct sim_qp *q, uint32_t qkey)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT,
				 .port_num = 1,
				 .qkey = qkey };

	must(roce_qp_modify(q->qp, &a,
			    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
				    IBV_QP_QKEY,
			    NULL),
	     "INIT");
	a.qp_state = IBV_QPS_RTR;
	must(roce_qp_modify(q->qp, &a, IBV_QP_STATE, NULL), "RTR");
	a.qp_state = IBV_QPS_RTS;
	a.sq_psn = 0xffffff;
	must(roce_qp_modify(q->qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN, NULL),
	     "RTS");
}

/* ---- the link ---------------------------------------------------------- */

static bool before(const struct sim_event *a, const struct sim_event *b)
{
	return a->at != b->at ? a->at < b->at : a->id < b->id;
}

static void heap_push(struct sim *s, struct sim_event e)
{
	size_t i;

	if (s->nheap == s->heap_cap) {
		s->heap_cap = s->heap_cap ? s->heap_cap * 2 : 256;
		s->heap = realloc(s->heap, s->heap_cap * sizeof(*s->heap));
	}
	for (i = s->nheap++; i && before(&e, &s->heap[(i - 1) / 2]);
	     i = (i - 1) / 2)
		s->heap[i] = s->heap[(i - 1) / 2];
	s->heap[i] = e;
}

static struct sim_event heap_pop(struct sim *s)
{
	struct sim_event top = s->heap[0], last = s->heap[--s->nheap];
	size_t i = 0, c;

	while ((c = 2 * i + 1) < s->nheap) {
		if (c + 1 < s->nheap && before(&s->heap[c + 1], &s->heap[c]))
			c++;
		if (!before(&s->heap[c], &last))
			break;
		s->heap[i] = s->heap[c];
		i = c;
	}
	s->heap[i] = last;
	return top;
}

/*
 * When a packet has passed the slowest place of its way; 0: never, what waits
 * there leaves it no room.
 */
static uint64_t wait_in_queue(struct sim *s, int to, size_t len, bool *marked)
{
	const uint64_t rate = s->link.rate;
	uint64_t *free_ns = &s->free_ns[to], waiting;

	if (!rate)
		return s->now;
	if (*free_ns < s->now)
		*free_ns = s->now;
	waiting = (*free_ns - s->now) * rate / SIM_SEC;
	if (waiting + len > s->link.queue) {
		s->overflows++;
		return 0;
	}
	*marked = s->link.mark && waiting > s->link.mark;
	s->marked += *marked;
	*free_ns += len * SIM_SEC / rate;
	return *free_ns;
}

/* Of a packet of len bytes; at is 0 if it is lost on the way. */
static struct sim_event event_to(struct sim *s, int to, size_t len)
{
	struct sim_event e = { .id = s->next_id++, .to = to };

	e.at = wait_in_queue(s, to, len, &e.marked);
	if (!e.at)
		return e;
	e.at += s->link.delay_ns;

	if (sim_chance(&s->rng, s->link.reorder))
		e.at += sim_below(&s->rng, (uint32_t)s->link.jitter_ns);
	return e;
}

static void put_on_link(struct sim *s, int to, const uint8_t *bytes, size_t len)
{
	struct sim_event e = event_to(s, to, len);

	if (!e.at)
		return;
	e.len = len;
	e.bytes = malloc(len);
	memcpy(e.bytes, bytes, len);
	if (sim_chance(&s->rng, s->link.corrupt))
		e.bytes[sim_below(&s->rng, (uint32_t)len)] ^=
			(uint8_t)(1 + sim_below(&s->rng, 255));
	heap_push(s, e);
}

static void put_on_host(struct sim *s, int to, struct sim_host_pkt *p)
{
	struct sim_event e = event_to(s, to, 0);

	/* Nothing arrives changed; what is broken is not taken. */
	if (sim_chance(&s->rng, s->link.corrupt)) {
		sim_host_free(p);
		return;
	}
	e.host = p;
	heap_push(s, e);
}

static void seal(struct sim *s, int to, uint8_t *bytes, size_t len)
{
	struct sim_node *d = &s->node[to], *f = &s->node[!to];
	uint32_t crc = icrc_begin(&f->gid, &d->gid, SIM_SPORT, ROCE_UDP_PORT,
				  len + ROCE_ICRC_LEN, 0);

	crc = icrc_bth(crc, bytes, len);
	icrc_put(bytes + len, crc);
}

void sim_inject(struct sim *s, int to, const uint8_t *bytes, size_t len)
{
	uint8_t buf[ROCE_HDR_MAX + ROCE_MTU_MAX + 16];

	assert(len + ROCE_ICRC_LEN <= sizeof(buf));
	memcpy(buf, bytes, len);
	seal(s, to, buf, len);
	put_on_link(s, to, buf, len + ROCE_ICRC_LEN);
}

/* Whether the link loses it. */
static bool seen_and_lost(struct sim *s, int from, const struct roce_hdr *h,
			  size_t payload)
{
	bool lost;

	s->packets++;
	if (s->link.tap)
		s->link.tap(s, h, payload, from);
	lost = (s->link.drop && s->link.drop(s, h, from)) ||
	       sim_chance(&s->rng, s->link.loss);
	s->dropped += lost;
	return lost;
}

static void send_host(struct sim *s, int from, struct sim_host_pkt *p)
{
	if (sim_chance(&s->rng, s->link.dup))
		put_on_host(s, !from, sim_host_dup(p));
	put_on_host(s, !from, p);
}

/* q may be NULL where there is no payload. */
static void send_packet(struct sim *s, int from, enum sim_way way,
			const struct sim_qp *q, const struct roce_batch *b,
			const struct roce_pkt *p)
{
	uint8_t buf[ROCE_HDR_MAX + ROCE_MTU_MAX + 16];
	size_t hdr_len = roce_encode(&p->h, buf), len = hdr_len;
	struct roce_hdr h;
	int hl;

	if (way != SIM_UDP) {
		if (!seen_and_lost(s, from, &p->h, p->payload))
			send_host(s, from, sim_host_new(s, way, q, b, p));
		return;
	}
	for (uint32_t i = 0; i < p->niov; i++) {
		memcpy(buf + len, b->data.iov[p->iov + i].iov_base,
		       b->data.iov[p->iov + i].iov_len);
		len += b->data.iov[p->iov + i].iov_len;
	}
	assert(len == hdr_len + p->payload);
	memset(buf + len, 0, p->h.pad);
	len += p->h.pad;
	hl = roce_decode(&h, buf, len);
	assert((size_t)hl == hdr_len);
	(void)hl;
	if (seen_and_lost(s, from, &h, p->payload))
		return;
	seal(s, !from, buf, len);
	put_on_link(s, !from, buf, len + ROCE_ICRC_LEN);
	if (sim_chance(&s->rng, s->link.dup))
		put_on_link(s, !from, buf, len + ROCE_ICRC_LEN);
}

static bool sim_is_busy(struct sim *s)
{
	return sim_chance(&s->rng, s->link.busy);
}

/* What a UDP link takes so is what it would have got in a batch. */
static void expect_same(struct roce_qp *qp, const struct roce_batch *small,
			uint64_t now)
{
	struct roce_batch b = { .max_payload = 0 };
	bool same;

	roce_tx(qp, &b, now);
	same = b.n == small->n;
	for (size_t i = 0; i < b.n && same; i++) {
		const struct roce_pkt *p = &b.pkt[i], *q = &small->pkt[i];
		uint8_t as[2][ROCE_HDR_MAX] = { { 0 } };

		roce_encode(&p->h, as[0]);
		roce_encode(&q->h, as[1]);
		same = !memcmp(as[0], as[1], sizeof(as[0])) &&
		       p->hash == q->hash && p->payload == q->payload &&
		       p->last_psn == q->last_psn;
	}
	if (!same) {
		fprintf(stderr, "a small request is not what roce_tx() "
				"makes of it\n");
		abort();
	}
	roce_tx_done(qp, &b, b.n, now);
}

/*
 * One small request, and an ACK behind it, the short way. The link has no room
 * for it perhaps, or it is as if it had had none, to compare: then it is for
 * roce_tx().
 */
static bool pull_small(struct sim_qp *q, int from, uint64_t now)
{
	struct sim *s = q->node->sim;
	uint8_t bytes[2][ROCE_HDR_MAX + ROCE_MTU_MAX + 4];
	struct roce_small m;
	struct roce_batch b;
	bool taken, compared;
	size_t len[2];

	if (!sim_below(&s->ways, 2) || !roce_small_begin(q->qp, &m, true))
		return false;
	b.n = m.ack ? 2 : 1;
	len[0] = roce_small_put(&m, bytes[0]) + m.len + (-m.len & 3);
	len[1] = ROCE_ACK_LEN - ROCE_ICRC_LEN;
	if (m.ack)
		roce_small_put_ack(&m, bytes[1]);
	b.data.n = 0;
	qp_piece_add(&b.data, (void *)(uintptr_t)m.data, m.len, true);
	for (size_t i = 0; i < b.n; i++) {
		b.pkt[i] = (struct roce_pkt){ .path = roce_qp_path(q->qp),
					      .hash = roce_small_hash(&m),
					      .payload = i ? 0 : m.len,
					      .niov = i ? 0 : 1 };
		if (roce_decode(&b.pkt[i].h, bytes[i], len[i]) < 0)
			abort();
		b.pkt[i].last_psn = b.pkt[i].h.psn;
	}
	taken = !sim_is_busy(s) && !q->node->away;
	compared = taken && sim_below(&s->ways, 2);
	roce_small_end(&m, taken && !compared, now);
	if (compared)
		expect_same(q->qp, &b, now);
	for (size_t i = 0; i < b.n && taken; i++)
		send_packet(s, from, SIM_UDP, q, &b, &b.pkt[i]);
	return taken;
}

void sim_pull(struct sim_qp *q)
{
	struct sim *s = q->node->sim;
	int from = q->node == &s->node[1];
	const uint64_t now = sim_now(q->node);
	struct roce_batch b;
	enum sim_way way;
	size_t sent, n;
	bool timed;

	sim_direct(q);
	do {
		sent = n = 1;
		way = sim_way_next(s, from, &b);
		if (way == SIM_UDP && pull_small(q, from, now))
			continue;
		roce_tx(q->qp, &b, roce_tx_timed(q->qp) ? now : 0);
		sent = n = b.n;
		if (sim_is_busy(s))
			sent = sim_below(&s->rng, (uint32_t)n + 1);
		if (q->node->away)
			sent = 0;
		for (size_t i = 0; i < sent; i++)
			send_packet(s, from, way, q, &b, &b.pkt[i]);
		timed = sent < n || roce_tx_timed(q->qp) ||
			roce_tx_unarmed(q->qp);
		roce_tx_done(q->qp, &b, sent, timed ? now : 0);
	} while (n && sent == n);
}

/* Decodes what came by UDP, if it is whole. */
static bool udp_rx(struct sim *s, struct sim_event *e, struct roce_rx *rx)
{
	struct sim_node *n = &s->node[e->to], *f = &s->node[!e->to];
	uint16_t id = 0;
	int hl;

	if (!icrc_check(&f->gid, &n->gid, SIM_SPORT, ROCE_UDP_PORT, e->bytes,
			e->len, &id))
		return false;
	if (id != 0) /* our own ends send 0: a corruption that passed */
		return false;
	hl = roce_decode(&rx->h, e->bytes, e->len - ROCE_ICRC_LEN);
	if (hl < 0)
		return false;
	rx->sport = SIM_SPORT;
	rx->payload = e->bytes + hl;
	rx->len = e->len - ROCE_ICRC_LEN - (size_t)hl - rx->h.pad;
	return true;
}

/* The acknowledgement of what a QP has received, as that of a link. */
static void say_acked(struct sim *s, int from, struct sim_qp *q,
		      const struct roce_rx *rx)
{
	const bool xrc = roce_qp_type(q->qp) == IBV_QPT_XRC_RECV;
	struct roce_hdr ack = {
		.opcode = xrc ? ROCE_XRC | ROCE_ACK : ROCE_ACK,
		.dest_qpn = roce_qp_dest(q->qp),
		.psn = sim_host_last_psn(q, rx),
		.syndrome = ROCE_AETH_ACK | ROCE_CREDITS_INVALID,
	};

	if (!seen_and_lost(s, from, &ack, 0))
		send_host(s, from, sim_host_ack_note(&ack));
}

/* What the QP owes may wait for what is posted, for a while. */
static void may_hold(struct sim_qp *q)
{
	struct sim *s = q->node->sim;

	if (s->hold <= 0 || !sim_chance(&s->rng, s->hold))
		return;
	q->release_ns = 0;
	if (roce_ack_hold(q->qp))
		q->release_ns = sim_now(q->node) + 1 +
				sim_below(&s->rng, (uint32_t)s->hold_ns);
}

static void deliver(struct sim *s, struct sim_event *e)
{
	struct sim_node *n = &s->node[e->to], *f = &s->node[!e->to];
	static const uint8_t grh[40] = { 0 };
	const uint64_t now = sim_now(n);
	struct roce_batch b;
	struct roce_rx rx = {
		.sgid = f->gid,
		.dgid = n->gid,
		.grh = grh,
	};
	bool acked = false;

	if (e->host)
		sim_host_rx(s, e->host, &rx, &acked);
	else if (!udp_rx(s, e, &rx))
		return;
	rx.ecn_ce = e->marked;
	for (size_t i = 0; i < n->nqp; i++) {
		if (!n->qp[i].qp) {
			if (n->qp[i].left &&
			    roce_timewait_rx(&n->qp[i].timewait, &rx, &b,
					     now) &&
			    b.n && !n->away)
				send_packet(s, e->to,
					    sim_way_next(s, e->to, &b), NULL,
					    &b, &b.pkt[0]);
			continue;
		}
		if (roce_qp_num(n->qp[i].qp) != rx.h.dest_qpn)
			continue;
		if (e->host && sim_host_is_ack_note(e->host))
			roce_acked(n->qp[i].qp, rx.h.psn, false, now);
		else
			roce_rx(n->qp[i].qp, &rx, now);
		may_hold(&n->qp[i]);
		/* Where it lies there is nothing any more a moment later. */
		if (acked && !n->away)
			say_acked(s, e->to, &n->qp[i], &rx);
		sim_pull(&n->qp[i]);
	}
}

/* The two ends of a connection have theirs at different times. */
uint64_t sim_turn(const struct sim_qp *q, uint64_t at)
{
	const struct sim *s = q->node->sim;
	const uint64_t ns = s->turns.ns, round = ns * s->turns.n;
	const uint64_t k =
		(uint64_t)(q - q->node->qp) * (q->node == &s->node[0] ? 1 : 3);
	uint64_t begin;

	if (!ns)
		return at;
	begin = at / round * round + k % s->turns.n * ns;
	if (at < begin + ns)
		return at > begin ? at : begin;
	return begin + round;
}

/* When the process that it is for takes it out of its socket's buffer. */
static uint64_t taken_at(struct sim *s, const struct sim_event *e)
{
	struct sim_node *n = &s->node[e->to];
	struct roce_hdr h;

	if (!s->turns.ns || roce_decode(&h, e->bytes, e->len) < 0)
		return s->now;
	for (size_t i = 0; i < n->nqp; i++)
		if (n->qp[i].qp && roce_qp_num(n->qp[i].qp) == h.dest_qpn)
			return sim_turn(&n->qp[i], s->now);
	return s->now;
}

/* Suspending */

void sim_suspend(struct sim *s, int node, uint64_t ns)
{
	struct sim_node *n = &s->node[node];
	struct sim_event *waiting = malloc((s->nheap + 1) * sizeof(*waiting));
	size_t nwaiting = 0, all = s->nheap;

	assert(!n->away);
	n->away = true;
	n->away_ns = s->now;
	n->back_ns = s->now + ns;
	for (size_t i = 0; i < all; i++) {
		struct sim_event e = heap_pop(s);

		if (e.to != node || !e.host) {
			waiting[nwaiting++] = e;
			continue;
		}
		deliver(s, &e);
		sim_host_free(e.host);
	}
	while (nwaiting > 0)
		heap_push(s, waiting[--nwaiting]);
	free(waiting);
}

static void resume(struct sim_node *n)
{
	n->behind_ns += n->sim->now - n->away_ns;
	n->away = false;
	for (size_t i = 0; i < n->nqp; i++)
		if (n->qp[i].qp)
			sim_pull(&n->qp[i]);
}

/* The node that goes on first, if one is suspended. */
static struct sim_node *next_back(struct sim *s, uint64_t *at)
{
	struct sim_node *best = NULL;

	*at = UINT64_MAX;
	for (int i = 0; i < 2; i++)
		if (s->node[i].away && s->node[i].back_ns < *at) {
			best = &s->node[i];
			*at = best->back_ns;
		}
	return best;
}

/* The QP whose deadline is the earliest, by the network's clock. */
static struct sim_qp *next_timer(struct sim *s, uint64_t *at)
{
	struct sim_qp *best = NULL;

	*at = UINT64_MAX;
	for (int i = 0; i < 2; i++)
		for (size_t k = 0; !s->node[i].away && k < s->node[i].nqp;
		     k++) {
			struct sim_qp *q = &s->node[i].qp[k];
			uint64_t t = q->qp ? roce_deadline(q->qp) : UINT64_MAX;

			if (q->qp && q->release_ns && q->release_ns < t)
				t = q->release_ns;
			if (t != UINT64_MAX) {
				t += s->node[i].behind_ns;
				t = sim_turn(q, t > s->now ? t : s->now);
			}
			if (t < *at) {
				*at = t;
				best = q;
			}
		}
	return best;
}

static void take_packet(struct sim *s)
{
	struct sim_event e = heap_pop(s);

	e.at = taken_at(s, &e);
	if (e.at > s->now) {
		heap_push(s, e);
		return;
	}
	if (!s->node[e.to].away)
		deliver(s, &e);
	free(e.bytes);
	sim_host_free(e.host);
}

static void run_timer(struct sim_qp *q)
{
	const uint64_t now = sim_now(q->node);

	if (q->release_ns && now >= q->release_ns) {
		q->release_ns = 0;
		roce_ack_release(q->qp);
	}
	roce_expire(q->qp, now);
	sim_pull(q);
}

/* What happens next, unless that is after end; then, or if nothing does, false. */
static bool step(struct sim *s, uint64_t end)
{
	uint64_t timer_at, back_at;
	struct sim_qp *q = next_timer(s, &timer_at);
	struct sim_node *n = next_back(s, &back_at);
	uint64_t pkt_at = s->nheap ? s->heap[0].at : UINT64_MAX;
	uint64_t at = timer_at < pkt_at ? timer_at : pkt_at;

	if (back_at < at)
		at = back_at;
	if (at == UINT64_MAX)
		return false;
	if (at > end) {
		s->now = end;
		return false;
	}
	if (at > s->now)
		s->now = at;
	if (back_at == at)
		resume(n);
	else if (pkt_at <= timer_at)
		take_packet(s);
	else
		run_timer(q);
	return true;
}

void sim_run(struct sim *s, uint64_t ns)
{
	const uint64_t end = s->now + ns;

	while (step(s, end))
		;
}

bool sim_step(struct sim *s)
{
	return step(s, UINT64_MAX - 1);
}

int sim_post_send(struct sim_qp *q, const struct ibv_send_wr *wr)
{
	struct roce_path path;
	bool ud = roce_qp_type(q->qp) == IBV_QPT_UD;
	int err;

	if (ud)
		path = sim_path(q->node, q->peer->node);
	err = roce_post_send(q->qp, wr, ud ? &path : NULL);
	if (!err)
		sim_direct(q);
	if (!err && !roce_tx_coalesce(q->qp))
		sim_pull(q);
	return err;
}

int sim_post_recv(struct sim_qp *q, const struct ibv_recv_wr *wr)
{
	return qp_post_recv(roce_qp_base(q->qp), wr);
}

const struct ibv_wc *sim_poll(struct sim_wcs *w)
{
	return w->read < w->n ? &w->wc[w->read++] : NULL;
}

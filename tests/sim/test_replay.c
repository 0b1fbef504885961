/*
 * test_replay.c - both halves of captured conversations, played by our core
 *
 * Each RC connection in a capture is played twice. Once its requests go into
 * our responder, which must answer with the packets that the captured one
 * answered with: same opcodes, PSNs, MSNs, syndromes and data, and must store
 * and complete what the requests say. Once its work
 * requests, guessed from its requests, are posted to our requester, which must
 * send the packets that the captured one sent, while it is fed the captured
 * responses. UC and UD have a sending and a receiving half as well: the work
 * requests that a sender's packets imply make our QP send the same bytes, and a
 * receiver's packets make ours complete and store what they say, and answer
 * nothing. Nothing here knows a file; other captures of the kind do as well.
 *
 * What cannot be played is cut, for one of the reasons in CUTS, which are found
 * in the packets; each half of each capture is a test, which counts what it
 * compared and what it cut, prints the latter, and fails when the two do not add
 * up to the packets of the capture or when a capture with requests of a service
 * has nothing that was compared.
 *
 * A replay to a responder needs what that got and sent: captured on its side of
 * the place where packets get lost or overtake each other. Packets that were not
 * show it, see seen_elsewhere() and sent_otherwise(); then the order is not
 * compared, but each packet with ours of the same PSN.
 *
 * Left out of the comparison: the credit count, MigReq (rxe clears it, the
 * specification and ConnectX set it), AckReq before a message's end, how many
 * requests a long read is cut into, and what is in the compare field of a
 * FetchAdd, which means nothing and which rxe does not write to. A sequence NAK
 * that rxe sends behind an RNR NAK for the rest of the burst is not asked for
 * (9.7.5.2.8: the requester knows), nor one ACK for each request where the
 * captured responder sent one for several. Of UC and UD nothing but MigReq and AckReq,
 * which rxe sets at the end of every message and which says nothing there (9.2).
 */
#include "capture.h"

#include "base/bytes.h"
#include "roce/qp.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MAX_WRS 8192
#define MAX_REGIONS 256
#define RQ_BYTES (8u << 20)
#define ACCESS_ALL                                                             \
	(IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |                    \
	 IBV_ACCESS_REMOTE_ATOMIC)

/* Room for one more at the end of an array of n. */
#define MORE(array, n, cap)                                                    \
	do {                                                                   \
		if ((n) == (cap)) {                                            \
			(cap) = (cap) ? 2 * (cap) : 64;                        \
			(array) = realloc(array, (cap) * sizeof(*(array)));    \
			assert_non_null(array);                                \
		}                                                              \
	} while (0)

static const char *current;

/* Why packets are not compared. X(name, words) */
#define CUTS(X)                                                                \
	X(HOLE, "behind an answer to a request that the capture lacks")        \
	X(BEGUN, "the capture begins in the middle of a message")              \
	X(TORN, "of a message that the capture lacks packets of")              \
	X(LATE, "come again, or late: done before")                            \
	X(RESUMED, "a read asked for again from its middle on")                \
	X(BEHIND_RNR, "a sequence NAK behind an RNR NAK")                      \
	X(FOREIGN, "answers to requests that the capture lacks")

enum cut {
#define X(name, words) CUT_##name,
	CUTS(X)
#undef X
		NCUTS
};

/* Of one capture, or of all. */
struct tally {
	size_t conversations, compared, cut[NCUTS];
	size_t unheard; /* requests that nobody answers */
	size_t by_psn;	/* conversations, see by_psn_only() */
};
static struct tally tally;

struct pkt {
	const struct captured *c;
	struct roce_hdr h;
	uint32_t flags;
	const uint8_t *payload;
	size_t len;
	size_t at; /* place in the file */
};

/* Packets of one direction of a connection. */
struct stream {
	union ibv_gid src, dst;
	uint32_t qpn; /* they are sent to */
	uint32_t src_qpn, qkey; /* UD */
	bool requests;
	size_t n, cap;
	struct pkt *pkt;
};

struct streams {
	size_t n, cap;
	struct stream *s;
};

struct region {
	uint32_t rkey;		/* in the capture */
	uint64_t start, end;
	uint8_t *mem;
	int slot;
	uint32_t lkey, our_rkey;
};

struct outcome {
	size_t n, cap;
	struct sent {
		struct roce_hdr h;
		uint32_t flags;
		size_t hdr_len, len;
		uint8_t hdr[ROCE_HDR_MAX];
		uint8_t *data;
	} *pkt;
};

struct player {
	struct roce_env env;
	struct keys keys;
	struct roce_qp *qp;
	struct region region[MAX_REGIONS];
	size_t nregions;
	size_t nwc, wc_cap, nrecv;
	struct ibv_wc recv_wc; /* of the latest receive, */
	bool recv_solicited;
	struct ibv_wc *wc;
	uint32_t pd_lkey;
	uint8_t *rq_mem;
	uint64_t now;
	uint32_t mtu;
	struct outcome out;
};

/* ---- streams ----------------------------------------------------------- */

/* Whose packets a stream holds. */
enum side {
	CONNECTION, /* one direction of a connection */
	UD_SENDER,  /* a QP's datagrams, whoever gets them */
	UD_RECEIVER /* those to a QP, whoever sends them */
};

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
static size_t split(const struct captures *caps, struct streams *s,
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

static uint32_t span_of(const struct pkt *p, uint32_t mtu)
{
	return p->flags & ROCE_F_READ && p->h.dma_len ?
		       (p->h.dma_len - 1) / mtu + 1 : 1;
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
static struct stream *answers(struct stream *s, size_t n,
			      const struct stream *r, const bool *taken)
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
static void cut_at_hole(struct stream *r, struct stream *s, uint32_t mtu,
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

static uint32_t mtu_of(const struct stream *a, const struct stream *b)
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

static bool is_nak(const struct pkt *p, uint8_t code)
{
	return p->h.opcode == ROCE_ACK &&
	       p->h.syndrome == (ROCE_AETH_NAK | code);
}

static bool is_rnr(const struct pkt *p)
{
	return p->h.opcode == ROCE_ACK &&
	       (p->h.syndrome & ROCE_AETH_KIND) == ROCE_AETH_RNR;
}

static bool is_fatal(const struct pkt *p)
{
	return p->flags & ROCE_F_AETH && !is_nak(p, ROCE_NAK_PSN) &&
	       (p->h.syndrome & ROCE_AETH_KIND) == ROCE_AETH_NAK;
}

static int by_psn(const void *a, const void *b)
{
	const struct pkt *p = a, *q = b;
	int32_t d = psn_diff(p->h.psn, q->h.psn);

	return d ? d : p->at < q->at ? -1 : 1;
}

/* ---- our end ----------------------------------------------------------- */

static struct player *P;

static int env_complete(struct roce_qp *qp, void *cq, const struct ibv_wc *wc,
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

static void env_event(struct roce_qp *qp, enum ibv_event_type type)
{
	(void)qp;
	(void)type;
}

static int env_invalidate(struct roce_qp *qp, uint32_t rkey)
{
	(void)qp;
	for (size_t i = 0; i < P->nregions; i++)
		if (P->region[i].our_rkey == rkey) {
			keys_kill(&P->keys, (uint32_t)P->region[i].slot);
			return 0;
		}
	return -EACCES;
}

static void add_key(struct region *g, uint64_t iova)
{
	struct key_entry e = {
		.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			  IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
		.pd = 1, .kind = KEY_MR, .iova = iova,
		.length = g->end - g->start, .addr = (uintptr_t)g->mem,
	};

	g->slot = keys_add(&P->keys, &e);
	assert_true(g->slot >= 0);
	g->lkey = atomic_load(&P->keys.entry[g->slot].lkey);
	g->our_rkey = atomic_load(&P->keys.entry[g->slot].rkey);
}

/* A QP of ours in RTS. */
struct player_opts {
	enum ibv_qp_type type;
	uint32_t qpn, peer_qpn, mtu, sq_psn, rq_psn, qkey;
	unsigned access;
	uint8_t rnr_timer;
	const union ibv_gid *us, *them;
};

static struct roce_path path_of(const union ibv_gid *us,
				const union ibv_gid *them)
{
	/* local: nothing is paced */
	return (struct roce_path){ .sgid = *us, .dgid = *them, .local = true };
}

static void player_new(const struct player_opts *o)
{
	struct roce_qp_init init = {
		.qpn = o->qpn, .pd = 1, .type = o->type,
		.send_cq = &P, .recv_cq = NULL, .sq_sig_all = true,
		.cap = { MAX_WRS, MAX_WRS, 1, 1, 0 },
	};
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = o->access, .qkey = o->qkey,
		.dest_qp_num = o->peer_qpn,
		.rq_psn = o->rq_psn, .sq_psn = o->sq_psn,
		.timeout = 0, .retry_cnt = 7, .rnr_retry = 7,
		.min_rnr_timer = o->rnr_timer,
		.max_rd_atomic = 64, .max_dest_rd_atomic = 64,
	};
	struct roce_path path = { 0 };
	bool rc = o->type == IBV_QPT_RC, ud = o->type == IBV_QPT_UD;
	struct key_entry *mem;

	P = calloc(1, sizeof(*P));
	mem = calloc(4 * MAX_REGIONS, sizeof(*mem));
	keys_init(&P->keys, mem, 4 * MAX_REGIONS, (uint64_t[]){ 7, 7 });
	P->env = (struct roce_env){
		.keys = &P->keys, .complete = env_complete,
		.event = env_event, .invalidate = env_invalidate,
	};
	P->now = 1000000000;
	P->mtu = o->mtu;
	P->rq_mem = calloc(1, RQ_BYTES);
	struct region rq = { .mem = P->rq_mem, .end = RQ_BYTES };
	add_key(&rq, (uintptr_t)P->rq_mem);
	P->pd_lkey = rq.lkey;
	init.env = &P->env;
	assert_int_equal(roce_qp_create(&P->qp, &init), 0);
	for (a.path_mtu = IBV_MTU_256; 128u << a.path_mtu < o->mtu;
	     a.path_mtu++)
		;
	if (!ud)
		path = path_of(o->us, o->them);
	assert_int_equal(roce_qp_modify(P->qp, &a,
					IBV_QP_STATE | IBV_QP_PKEY_INDEX |
						IBV_QP_PORT |
						(ud ? IBV_QP_QKEY :
						      IBV_QP_ACCESS_FLAGS),
					NULL), 0);
	a.qp_state = IBV_QPS_RTR;
	assert_int_equal(roce_qp_modify(P->qp, &a,
					ud ? IBV_QP_STATE :
					IBV_QP_STATE | IBV_QP_AV |
						IBV_QP_PATH_MTU |
						IBV_QP_DEST_QPN |
						IBV_QP_RQ_PSN |
						(rc ? IBV_QP_MAX_DEST_RD_ATOMIC |
						       IBV_QP_MIN_RNR_TIMER : 0),
					ud ? NULL : &path), 0);
	a.qp_state = IBV_QPS_RTS;
	assert_int_equal(roce_qp_modify(P->qp, &a,
					IBV_QP_STATE | IBV_QP_SQ_PSN |
						(rc ? IBV_QP_TIMEOUT |
						       IBV_QP_RETRY_CNT |
						       IBV_QP_RNR_RETRY |
						       IBV_QP_MAX_QP_RD_ATOMIC :
						      0),
					NULL), 0);
}

static void forget_sent(void)
{
	for (size_t i = 0; i < P->out.n; i++)
		free(P->out.pkt[i].data);
	P->out.n = 0;
}

static void player_free(void)
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

static void pull(void)
{
	struct roce_batch b;
	size_t n;

	do {
		roce_tx(P->qp, &b, P->now);
		n = b.n;
		for (size_t i = 0; i < n; i++) {
			struct roce_pkt *p = &b.pkt[i];
			struct sent *k;

			MORE(P->out.pkt, P->out.n, P->out.cap);
			k = &P->out.pkt[P->out.n++];
			*k = (struct sent){ .data = malloc(ROCE_MTU_MAX) };
			assert_true(roce_decode(&k->h, p->hdr,
						(size_t)p->hdr_len +
							p->payload + p->pad) >
				    0 || p->payload || p->pad);
			/* Decode again with the payload's length in place. */
			uint8_t buf[ROCE_HDR_MAX + ROCE_MTU_MAX + 4] = { 0 };
			memcpy(buf, p->hdr, p->hdr_len);
			assert_true(roce_decode(&k->h, buf,
						(size_t)p->hdr_len +
							p->payload + p->pad) >
				    0);
			k->flags = roce_opcode(p->hdr[0])->flags;
			k->hdr_len = p->hdr_len;
			memcpy(k->hdr, p->hdr, p->hdr_len);
			for (uint32_t v = 0; v < p->niov; v++) {
				struct iovec *io = &b.iov[p->iov + v];

				memcpy(k->data + k->len, io->iov_base,
				       io->iov_len);
				k->len += io->iov_len;
			}
		}
		roce_tx_done(P->qp, &b, n, P->now);
	} while (n);
}

static void feed(const struct pkt *p, struct roce_hdr h)
{
	struct roce_rx rx = { .h = h, .payload = p->payload, .len = p->len,
			      .sgid = p->c->src, .dgid = p->c->dst };

	roce_rx(P->qp, &rx, P->now);
	P->now += 10000;
	pull();
}

static void differ(const struct pkt *want, size_t i, const char *what)
{
	fail_msg("%s, packet %u (answer %zu): %s differs", current,
		 want->c->number, i, what);
}

/* ---- requests into our responder --------------------------------------- */

static struct region *region_of(uint32_t rkey)
{
	for (size_t i = 0; i < P->nregions; i++)
		if (P->region[i].rkey == rkey)
			return &P->region[i];
	return NULL;
}

static bool refused_access(const struct stream *s, uint32_t psn)
{
	for (size_t i = 0; s && i < s->n; i++)
		if (s->pkt[i].h.psn == psn &&
		    is_nak(&s->pkt[i], ROCE_NAK_REMOTE_ACCESS))
			return true;
	return false;
}

static struct region *region_new(uint32_t rkey, uint64_t start, uint64_t end)
{
	struct region *g = &P->region[P->nregions++];

	assert_true(P->nregions <= MAX_REGIONS);
	*g = (struct region){ .rkey = rkey, .start = start, .end = end };
	return g;
}

/* Memory is what was accessed with success. */
static void make_regions(const struct stream *r, const struct stream *s)
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

/* What the QP allows: all but what was always an invalid request. */
static unsigned access_of(const struct stream *r, const struct stream *s)
{
	unsigned yes = 0, no = 0;

	for (size_t i = 0; s && i < r->n; i++) {
		const struct pkt *p = &r->pkt[i];
		unsigned flag = p->flags & ROCE_F_ATOMICETH ?
					IBV_ACCESS_REMOTE_ATOMIC :
				p->flags & ROCE_F_READ ?
					IBV_ACCESS_REMOTE_READ :
				p->flags & ROCE_F_RETH ?
					IBV_ACCESS_REMOTE_WRITE : 0;
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
static size_t cut_unheard(struct stream *r, const struct stream *s)
{
	size_t heard = 0, n = r->n;

	for (size_t i = 0; i < r->n; i++)
		if (s && s->n && s->pkt[s->n - 1].at > r->pkt[i].at)
			heard = i + 1;
	for (size_t i = heard; i < r->n; i++)
		if (r->pkt[i].h.ack_req)
			r->n = heard;
	if (n != r->n)
		print_message("%s: the last %zu requests to QP 0x%x are not answered\n",
			      current, n - r->n, r->qpn);
	return n - r->n;
}

/*
 * What a read or atomic is going to find: what the first answers behind it say,
 * since the program may change it afterwards.
 */
static void prefill(const struct pkt *p, const struct stream *s, uint32_t mtu)
{
	struct region *g = region_of(p->h.rkey);

	if (!g || !s)
		return;
	for (size_t i = s->n; i-- > 0 && s->pkt[i].at > p->at;) {
		const struct pkt *a = &s->pkt[i];
		int32_t k = psn_diff(a->h.psn, p->h.psn);

		if (p->flags & ROCE_F_READ && a->flags & ROCE_F_READ &&
		    k >= 0 && (uint32_t)k < span_of(p, mtu))
			memcpy(g->mem + (p->h.va - g->start) +
				       (uint32_t)k * mtu,
			       a->payload, a->len);
		else if (p->flags & ROCE_F_ATOMIC && k == 0 &&
			 a->flags & ROCE_F_ATOMICACKETH)
			memcpy(g->mem + (p->h.va - g->start),
			       &a->h.atomic_orig, 8);
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
	assert_int_equal(roce_post_recv(P->qp, &wr), 0);
	++*posted;
	return true;
}

static void post_one_recv(size_t *posted)
{
	struct ibv_sge sge = { (uintptr_t)P->rq_mem, RQ_BYTES, P->pd_lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 };

	if (*posted > P->nrecv)
		return; /* still there: what it was for came to nothing */
	assert_int_equal(roce_post_recv(P->qp, &wr), 0);
	++*posted;
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
 * before it, see quirk_rxe_no_ack_of_reads.
 */
static bool acks_read(const struct stream *r, const struct pkt *w,
		      const struct roce_hdr *h)
{
	if (w->h.opcode != ROCE_ACK || h->opcode != ROCE_ACK ||
	    w->h.syndrome & ROCE_AETH_KIND || psn_diff(h->psn, w->h.psn) >= 0)
		return false;
	for (size_t i = 0; i < r->n && r->pkt[i].at < w->at; i++) {
		const struct pkt *p = &r->pkt[i];
		int32_t d = psn_diff(w->h.psn, p->h.psn);

		if (p->flags & (ROCE_F_READ | ROCE_F_ATOMIC) && d >= 0 &&
		    d < (int32_t)span_of(p, P->mtu))
			return true;
	}
	return false;
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

/* Answer i of ours, but for the opcode. */
static void check_answer(const struct stream *r, const struct pkt *w, size_t i,
			 uint32_t msn)
{
	const struct roce_hdr *h = &P->out.pkt[i].h;

	if (h->psn != w->h.psn && !acks_read(r, w, h))
		differ(w, i, "PSN");
	if (h->dest_qpn != w->h.dest_qpn || h->pkey != w->h.pkey ||
	    h->pad != w->h.pad)
		differ(w, i, "BTH");
	if (w->flags & P->out.pkt[i].flags & ROCE_F_AETH) {
		uint8_t ours = h->syndrome, theirs = w->h.syndrome;

		if ((theirs & ROCE_AETH_KIND) == ROCE_AETH_ACK) {
			ours &= ROCE_AETH_KIND;
			theirs &= ROCE_AETH_KIND;
		}
		/* rxe's NAK for a message that is too long is 0x63,
		 * 9.7.5.2.6 wants 0x61. */
		if (theirs == 0x63 && ours == 0x61)
			ours = 0x63;
		if (ours != theirs)
			differ(w, i, "syndrome");
		/* rxe acknowledges a send whose invalidation it then
		 * refuses, and does not count it. */
		if (h->msn != msn && !invalidates(r, w->h.psn))
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
	    !(k->flags & ROCE_F_FIRST) ||
	    (w->flags ^ k->flags) & ROCE_F_LAST)
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
		fail_msg("%s: %zu answers to QP 0x%x, from packet %u on, where %zu were captured",
			 current, P->out.n, r->qpn, r->pkt[0].c->number, n);
	for (size_t i = 0; i < n; i++) {
		if (P->out.pkt[i].h.opcode != s->pkt[i].h.opcode &&
		    !resumes_read(r, &s->pkt[i], &P->out.pkt[i]))
			differ(&s->pkt[i], i, "opcode");
		check_answer(r, &s->pkt[i], i, s->pkt[i].h.msn);
	}
}

/* The receive that a message of n packets ends in. */
static void check_receive(const struct pkt *p, size_t n, size_t grh)
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
	if (grh && (wc->src_qp != last->h.src_qpn ||
		    !(wc->wc_flags & IBV_WC_GRH)))
		differ(last, 0, "receive: sender");
	for (size_t i = 0; i < n; i++) {
		if (!write && memcmp(P->rq_mem + at, p[i].payload, p[i].len))
			differ(&p[i], i, "receive: data");
		at += p[i].len;
	}
	if (wc->byte_len != at)
		differ(last, 0, "receive: length");
}

static void check_written(const struct pkt *p, size_t n)
{
	const struct region *g = region_of(p->h.rkey);
	uint64_t va = p->h.va;

	for (size_t i = 0; i < n; va += p[i++].len)
		if (p[i].len &&
		    memcmp(g->mem + (va - g->start), p[i].payload, p[i].len))
			differ(&p[i], i, "written data");
}

static bool needs_recv(const struct pkt *last)
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

static bool asked_before(const struct stream *r, size_t i)
{
	for (size_t k = 0; k < i; k++)
		if (r->pkt[k].h.psn == r->pkt[i].h.psn)
			return true;
	return false;
}

/* What a message that has ended did to memory, and to the receive queue. */
static void check_effect(const struct stream *r, size_t i, size_t nrecv)
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

/*
 * Captured on the other side of where packets get lost or overtake each other:
 * the captured responder has not got these requests in this order, or not all
 * of its answers were seen. The packets show it: it asks for what it has been
 * sent, in order; something is sent again that had an answer due, which nobody
 * has seen; or an answer overtook another.
 */
static bool seen_elsewhere(const struct stream *r, const struct stream *s,
			   uint32_t mtu)
{
	uint32_t base = r->pkt[0].h.psn, due, top;
	struct {
		uint32_t asked;
		bool answered;
	} *at;
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
			found |= psn_diff(a->h.psn, top) < 0 &&
				 at[d].asked == 1;
			if (psn_diff(a->h.psn, top) > 0)
				top = a->h.psn;
		}
	}
	free(at);
	/* Unless it was only slow: a requester that was told that nobody is
	 * ready tries soon again, and each try has had its answer in the end. */
	for (size_t k = 0; k < r->n; k++)
		asking += r->pkt[k].h.ack_req;
	for (size_t k = 0; s && k < s->n; k++)
		answers += !is_nak(&s->pkt[k], ROCE_NAK_PSN) &&
			   (!(s->pkt[k].flags & ROCE_F_READ) ||
			    s->pkt[k].flags & ROCE_F_LAST);
	return found || (silent && (!rnr || answers < asking));
}

/* A request with the keys that it has here. */
static struct roce_hdr with_our_keys(const struct pkt *p,
				     const struct stream *s)
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
static void play_by_psn(const struct stream *r, const struct stream *s,
			uint32_t mtu)
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
	ours = calloc(n, sizeof(*ours));   /* answer + 1 to each PSN */
	begun = calloc(n, sizeof(*begun)); /* requests that begin there */
	asked = calloc(n, sizeof(*asked)); /* requests for it */
	done = calloc(n, sizeof(*done));   /* has been compared */
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
		    (w->flags & ROCE_F_FIRST) != (k->flags & ROCE_F_FIRST ?
		     ROCE_F_FIRST : begun[d] ? w->flags & ROCE_F_FIRST : 0))
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

static void play_responder(const struct stream *r, struct stream *s)
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
		.type = IBV_QPT_RC, .qpn = r->qpn, .peer_qpn = peer, .mtu = mtu,
		.rq_psn = first, .access = access_of(r, s),
		.us = &r->dst, .them = &r->src,
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
			print_message("%s, packet %u: repeated, but forgotten by the responder\n",
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

/* ---- work requests to our requester ------------------------------------ */

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
static bool post_message(const struct stream *r, size_t i, uint8_t *buf,
			 size_t *used, uint32_t lkey, bool refused)
{
	int err;
	const struct pkt *p = &r->pkt[i], *last = p;
	struct ibv_sge sge = { (uintptr_t)(buf += *used), 0, lkey };
	struct ibv_send_wr wr = {
		.wr_id = p->h.psn, .sg_list = &sge, .num_sge = 1,
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
		wr.wr.atomic.compare_add = wr.opcode ==
				IBV_WR_ATOMIC_CMP_AND_SWP ?
			p->h.compare : p->h.swap_add;
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
	if ((h->va != w->h.va && !lost_va) || h->rkey != w->h.rkey || h->imm != w->h.imm ||
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

static void play_requester(const struct stream *captured, struct stream *s)
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
				 r->pkt[i].h.dma_len : r->pkt[i].len);
	for (size_t i = 0; i < s->n; i++)
		fatal |= s->pkt[i].at > r->pkt[r->n - 1].at &&
			 is_fatal(&s->pkt[i]);
	buf = all.mem = calloc(1, all.end);
	struct player_opts o = {
		.type = IBV_QPT_RC, .qpn = s->qpn, .peer_qpn = r->qpn,
		.mtu = mtu, .sq_psn = next, .access = ACCESS_ALL,
		.us = &r->src, .them = &r->dst,
	};

	player_new(&o);
	add_key(&all, (uintptr_t)buf);
	for (size_t i = 0; i < r->n; i++) {
		const struct pkt *p = &r->pkt[i];

		for (; si < s->n && s->pkt[si].at < p->at && !otherwise;
		     si++) {
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
	if (fatal &&
	    (!P->nwc || P->wc[P->nwc - 1].status == IBV_WC_SUCCESS))
		fail_msg("%s: a fatal NAK ended nothing", current);
	free(buf);
	player_free();
}

/* ---- UC and UD: who sends ---------------------------------------------- */

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
			fail_msg("%s, packet %u: header byte %zu is %02x, not %02x",
				 current, w->c->number, b, ours[b], theirs[b]);
	if (k->len != w->len || memcmp(k->data, w->payload, w->len))
		differ(w, i, "payload");
	tally.compared++;
}

static void play_sender(struct stream *r, enum ibv_qp_type type)
{
	struct player_opts o = {
		.type = type, .mtu = mtu_of(r, NULL), .peer_qpn = r->qpn,
		.qpn = r->src_qpn ? r->src_qpn : 2,
		.us = &r->src, .them = &r->dst, .access = ACCESS_ALL,
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

		for (end = i + 1; end < r->n &&
				  !(r->pkt[end - 1].flags & ROCE_F_LAST) &&
				  r->pkt[end].h.psn ==
					  psn_add(r->pkt[end - 1].h.psn, 1);)
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
		if (P->nwc != nwc + 1 ||
		    P->wc[nwc].status != IBV_WC_SUCCESS)
			differ(p, 0, "completion");
		next = psn_add(r->pkt[end - 1].h.psn, 1);
	}
	if (P)
		player_free();
	free(buf);
}

/* ---- UC and UD: who receives ------------------------------------------- */

/*
 * A message whose packets arrive one behind the other is executed; what comes
 * late does not count. Of other messages nothing may be seen but the bytes that
 * a write has written.
 */
static void play_uc_receiver(struct stream *r)
{
	struct player_opts o = {
		.type = IBV_QPT_UC, .qpn = r->qpn, .peer_qpn = 1,
		.mtu = mtu_of(r, NULL), .rq_psn = r->pkt[0].h.psn,
		.access = ACCESS_ALL, .us = &r->dst, .them = &r->src,
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

static void play_ud_receiver(struct stream *r)
{
	struct player_opts o = {
		.type = IBV_QPT_UD, .qpn = r->qpn, .qkey = r->qkey,
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

/* ---- all captures ------------------------------------------------------ */

/* One half of the conversations of a service; what is counted are requests,
 * or (RC's responder) answers. */
struct half {
	const char *name;
	enum roce_service service;
	enum side side;
	void (*play)(struct streams *all, bool answering);
	bool answering;
	struct tally total;
};

static void play_rc(struct streams *all, bool answering)
{
	bool *taken = calloc(all->n + 1, sizeof(*taken));

	for (size_t i = 0; i < all->n; i++) {
		struct stream *a, *s = all->s, none = { .qpn = 1 };
		size_t requests = 0, replies = 0, unheard;

		if (!s[i].requests)
			continue;
		a = answers(s, all->n, &s[i], taken);
		if (a) {
			taken[a - s] = true;
			cut_at_hole(&s[i], a, mtu_of(&s[i], a), &requests,
				    &replies);
		}
		unheard = answering ? cut_unheard(&s[i], a) : 0;
		tally.cut[CUT_HOLE] += answering ? replies : requests;
		tally.unheard += unheard;
		if (!s[i].n)
			continue;
		if (answering)
			play_responder(&s[i], a);
		else
			play_requester(&s[i], a ? a : &none);
		tally.conversations++;
	}
	for (size_t i = 0; i < all->n && answering; i++)
		if (!all->s[i].requests && !taken[i])
			tally.cut[CUT_FOREIGN] += all->s[i].n;
	free(taken);
}

static void play_uc(struct streams *all, bool answering)
{
	for (size_t i = 0; i < all->n; i++)
		if (answering)
			play_uc_receiver(&all->s[i]);
		else
			play_sender(&all->s[i], IBV_QPT_UC);
}

static void play_ud(struct streams *all, bool answering)
{
	for (size_t i = 0; i < all->n; i++)
		if (answering)
			play_ud_receiver(&all->s[i]);
		else
			play_sender(&all->s[i], IBV_QPT_UD);
}

/* Adds up, and says what was cut. */
static void account(struct half *half, size_t requests, size_t packets)
{
	struct tally *total = &half->total;
	static const char *const words[] = {
#define X(name, w) w,
		CUTS(X)
#undef X
	};
	size_t cut = 0;

	for (int i = 0; i < NCUTS; i++) {
		if (tally.cut[i])
			print_message("%s: cut %zu of %zu %s: %s\n", current,
				      tally.cut[i], packets, half->name,
				      words[i]);
		cut += tally.cut[i];
		total->cut[i] += tally.cut[i];
	}
	total->compared += tally.compared;
	total->conversations += tally.conversations;
	if (tally.by_psn)
		print_message("%s: %s of %zu of %zu conversations compared by PSN: captured beyond where packets got lost or overtaken\n",
			      current, half->name, tally.by_psn,
			      tally.conversations);
	total->by_psn += tally.by_psn;
	if (tally.compared + cut != packets)
		fail_msg("%s: %zu %s, of which %zu were compared and %zu cut",
			 current, packets, half->name, tally.compared, cut);
	/* Without a request that anybody answers there is no answer either. */
	if (requests > tally.unheard && !tally.conversations)
		fail_msg("%s: no conversation in %zu requests", current,
			 requests);
	if (packets && !tally.compared)
		fail_msg("%s: %zu %s, and none compared", current, packets,
			 half->name);
}

static void print_total(const struct half *half)
{
	size_t cut = 0;

	for (int i = 0; i < NCUTS; i++)
		cut += half->total.cut[i];
	print_message("%zu conversations, %zu %s compared, %zu cut\n",
		      half->total.conversations, half->total.compared,
		      half->name, cut);
}

static char *names(const char *file, const char *half)
{
	char *s;

	return asprintf(&s, "%s: %s", file, half) < 0 ? NULL : s;
}

/* A capture, and what is played of it. */
struct job {
	const char *path;
	size_t half, packets, requests;
};

static struct half halves[] = {
	{ "answers of RC responders", ROCE_RC, CONNECTION, play_rc, true, { 0 } },
	{ "requests of RC requesters", ROCE_RC, CONNECTION, play_rc, false, { 0 } },
	{ "packets of UC senders", ROCE_UC, CONNECTION, play_uc, false, { 0 } },
	{ "packets to UC receivers", ROCE_UC, CONNECTION, play_uc, true, { 0 } },
	{ "datagrams of UD senders", ROCE_UD, UD_SENDER, play_ud, false, { 0 } },
	{ "datagrams to UD receivers", ROCE_UD, UD_RECEIVER, play_ud, true, { 0 } },
};

static void read_job(struct job *job, struct captures *caps,
		     struct streams *all)
{
	const struct half *half = &halves[job->half];

	assert_int_equal(captures_load(caps, job->path), 0);
	job->requests = split(caps, all, half->service, half->side);
	job->packets = 0;
	for (size_t i = 0; i < all->n; i++)
		if (half->service != ROCE_RC ||
		    all->s[i].requests != half->answering)
			job->packets += all->s[i].n;
}

static void close_job(struct captures *caps, struct streams *all)
{
	for (size_t i = 0; i < all->n; i++)
		free(all->s[i].pkt);
	free(all->s);
	captures_free(caps);
}

static void replay(void **state)
{
	struct job *job = *state;
	struct half *half = &halves[job->half];
	struct captures caps = { 0 };
	struct streams all = { 0 };

	P = NULL;
	current = strrchr(job->path, '/') + 1;
	tally = (struct tally){ 0 };
	read_job(job, &caps, &all);
	half->play(&all, half->answering);
	account(half, job->requests, job->packets);
	close_job(&caps, &all);
}

static bool has_any(struct job *job)
{
	struct captures caps = { 0 };
	struct streams all = { 0 };

	read_job(job, &caps, &all);
	close_job(&caps, &all);
	return job->packets || job->requests;
}

/* Each half of each capture that has any is a test of its own. */
int main(int argc, char **argv)
{
	const char *dir = argc > 1 ? argv[1] : "tests/data/pcap";
	const char *only = getenv("REPLAY");
	struct CMUnitTest *tests = NULL;
	size_t ntests = 0, cap = 0;
	char **paths = captures_list(dir, only);
	int failed;

	if (!paths) {
		perror(dir);
		return 1;
	}
	for (size_t half = 0; half < ARRAY_SIZE(halves); half++)
		for (char **path = paths; *path; path++) {
			struct job *job = calloc(1, sizeof(*job));

			job->half = half;
			job->path = *path;
			if (!has_any(job)) {
				free(job);
				continue;
			}
			MORE(tests, ntests, cap);
			tests[ntests++] = (struct CMUnitTest){
				.name = names(strrchr(*path, '/') + 1,
					      halves[half].name),
				.test_func = replay, .initial_state = job,
			};
		}
	if (!ntests) {
		fprintf(stderr, "%s: nothing to replay\n", dir);
		return 1;
	}
	failed = _cmocka_run_group_tests("replay", tests, ntests, NULL, NULL);
	for (size_t i = 0; i < ntests; i++) {
		free((char *)(uintptr_t)tests[i].name);
		free(tests[i].initial_state);
	}
	free(tests);
	captures_list_free(paths);
	for (size_t i = 0; i < ARRAY_SIZE(halves); i++)
		print_total(&halves[i]);
	return failed;
}

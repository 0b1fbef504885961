/*
 * join.c - QPs, clocks, packets and work requests from events (join.h)
 *
 * A QP completes its work requests in order, so a completion is that of the
 * oldest one that asked for it and has its wr_id; whatever was posted before is
 * complete as well. Packets of a QP that are not lost mostly arrive in the order in
 * which they left: so of those with the same PSN, one that arrives is the first
 * that left behind what arrived before.
 *
 * FPDUs of iWARP have numbers instead, the same at both ends. Those that carry
 * requests come in the order of the work requests, which they name.
 */
#include "join.h"

#include "wire/rdmap.h"
#include "wire/roce.h"

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdlib.h>
#include <string.h>

/* Lists that a file can make long are not followed further. */
#define STEPS 4096u

/* Numbers by keys that are not 0. */
struct map {
	uint64_t *key;
	uint32_t *value;
	size_t size, used; /* size: a power of two, or 0 */
};

static size_t map_bucket(const struct map *m, uint64_t key)
{
	uint64_t h = key * 0x9e3779b97f4a7c15u;
	size_t i = (size_t)(h ^ h >> 29) & (m->size - 1);

	while (m->key[i] && m->key[i] != key)
		i = (i + 1) & (m->size - 1);
	return i;
}

static uint32_t map_get(const struct map *m, uint64_t key)
{
	size_t i;

	if (!m->size)
		return TRACE_NOTHING;
	i = map_bucket(m, key);
	return m->key[i] ? m->value[i] : TRACE_NOTHING;
}

static int map_set(struct map *m, uint64_t key, uint32_t value)
{
	size_t i;

	if (2 * m->used >= m->size) {
		struct map more = { .size = m->size ? 2 * m->size : 1024 };

		more.key = calloc(more.size, sizeof(*more.key));
		more.value = calloc(more.size, sizeof(*more.value));
		if (!more.key || !more.value) {
			free(more.key);
			free(more.value);
			return -ENOMEM;
		}
		for (i = 0; i < m->size; i++)
			if (m->key[i]) {
				const size_t to = map_bucket(&more, m->key[i]);

				more.key[to] = m->key[i];
				more.value[to] = m->value[i];
			}
		more.used = m->used;
		free(m->key);
		free(m->value);
		*m = more;
	}
	i = map_bucket(m, key);
	m->used += !m->key[i];
	m->key[i] = key;
	m->value[i] = value;
	return 0;
}

static void map_free(struct map *m)
{
	free(m->key);
	free(m->value);
}

static uint32_t num_of(const struct trace_rec *r)
{
	return r->what >> 8;
}

static uint32_t psn_of(const struct trace_rec *r)
{
	return r->psn_op >> 8;
}

static bool is_packet(const struct trace_rec *r)
{
	return trace_type(r) == TRACE_PKT_OUT || trace_type(r) == TRACE_PKT_IN;
}

static bool has_qp(const struct trace_rec *r)
{
	switch (trace_type(r)) {
	case TRACE_CQ_RAISED:
	case TRACE_CQ_GOT:
	case TRACE_MR_NEW:
	case TRACE_MR_GONE:
	case TRACE_SLEEP:
	case TRACE_WAKE:
	case TRACE_ASYNC:
	case TRACE_AWAY:
	case TRACE_BACK:
		return false;
	case TRACE_POST_RECV:
		return num_of(r) != 0; /* else assign_srqs() finds it */
	}
	return true;
}

/* ---- QPs --------------------------------------------------------------- */

static int add_qp(struct trace_set *t, size_t *room, uint32_t proc,
		  uint32_t num)
{
	if (t->nqps == *room) {
		const size_t more = *room ? 2 * *room : 64;
		void *p = realloc(t->qp, more * sizeof(*t->qp));

		if (!p)
			return -ENOMEM;
		t->qp = p;
		*room = more;
	}
	t->qp[t->nqps++] = (struct trace_qp){
		.proc = proc,
		.num = num,
		.peer = TRACE_NOTHING,
	};
	return 0;
}

static void learn_qp(struct trace_qp *qp, const struct trace_rec *r)
{
	switch (trace_type(r)) {
	case TRACE_QP_NEW:
		qp->type = r->x;
		break;
	case TRACE_QP_STATE:
		if (r->key & TRACE_HAS_PORTS)
			qp->ports = (uint32_t)r->key;
		else if (r->key)
			qp->dest = (uint32_t)r->key & 0xffffff;
		qp->mtu = r->len ? r->len : qp->mtu;
		break;
	case TRACE_QP_SGID:
		memcpy(qp->sgid, &r->key, 16);
		break;
	case TRACE_QP_DGID:
		memcpy(qp->dgid, &r->key, 16);
		break;
	}
}

/* Events are in the order of their own clocks. */
static int find_qps(struct trace_set *t)
{
	struct map now = { .size = 0 };
	size_t room = 0;
	int err = 0;

	for (uint32_t i = 0; i < t->nevents && !err; i++) {
		struct trace_event *ev = &t->event[i];
		const uint64_t key =
			((uint64_t)ev->proc + 1) << 24 | num_of(&ev->rec);
		uint32_t qp;

		if (!has_qp(&ev->rec))
			continue;
		qp = map_get(&now, key);
		if (qp == TRACE_NOTHING ||
		    trace_type(&ev->rec) == TRACE_QP_NEW) {
			qp = t->nqps;
			err = add_qp(t, &room, ev->proc, num_of(&ev->rec)) ?:
				      map_set(&now, key, qp);
			if (err)
				break;
		}
		ev->qp = qp;
		learn_qp(&t->qp[qp], &ev->rec);
	}
	map_free(&now);
	return err;
}

/* Receives that were posted to SRQs and have not been taken: lists of events by
 * what completes them, oldest first. */
struct srqs {
	struct map first, last;
	uint32_t *next; /* by event */
};

static uint64_t recv_key(const struct trace_event *ev)
{
	return (ev->rec.key ^ ((uint64_t)ev->proc + 1) << 40) | 1ull << 63;
}

static int srq_posted(struct srqs *s, const struct trace_event *ev, uint32_t i)
{
	const uint64_t key = recv_key(ev);
	const uint32_t last = map_get(&s->last, key);

	s->next[i] = TRACE_NOTHING;
	if (last != TRACE_NOTHING)
		s->next[last] = i;
	else if (map_set(&s->first, key, i))
		return -ENOMEM;
	return map_set(&s->last, key, i);
}

static int srq_taken(struct srqs *s, struct trace_set *t,
		     const struct trace_event *ev)
{
	const uint64_t key = recv_key(ev);
	const uint32_t i = map_get(&s->first, key);

	if (i == TRACE_NOTHING)
		return 0;
	t->event[i].qp = ev->qp;
	return map_set(&s->first, key, s->next[i]) ?:
		       s->next[i] != TRACE_NOTHING ?
		       0 :
		       map_set(&s->last, key, TRACE_NOTHING);
}

/*
 * Which QP a receive of an SRQ is for is known when it completes: by a QP that
 * has had none posted to itself. One that is not taken is for none.
 */
static int assign_srqs(struct trace_set *t)
{
	bool *own = calloc(t->nqps + 1u, sizeof(*own));
	struct srqs s = { .next = malloc((t->nevents + 1u) *
					 sizeof(uint32_t)) };
	int err = own && s.next ? 0 : -ENOMEM;

	for (uint32_t i = 0; i < t->nevents && !err; i++)
		if (trace_type(&t->event[i].rec) == TRACE_POST_RECV &&
		    t->event[i].qp != TRACE_NOTHING)
			own[t->event[i].qp] = true;
	for (uint32_t i = 0; i < t->nevents && !err; i++) {
		const struct trace_event *ev = &t->event[i];

		if (trace_type(&ev->rec) == TRACE_POST_RECV &&
		    ev->qp == TRACE_NOTHING)
			err = srq_posted(&s, ev, i);
		else if (trace_type(&ev->rec) == TRACE_COMPLETE &&
			 ev->rec.psn_op & IBV_WC_RECV && !own[ev->qp])
			err = srq_taken(&s, t, ev);
	}
	free(own);
	free(s.next);
	map_free(&s.first);
	map_free(&s.last);
	return err;
}

/* What a QP is called by its peer, and calls its peer. */
static uint64_t own_name(const struct trace_qp *qp)
{
	return qp->ports ? 2ull << 32 | qp->ports : 1ull << 32 | qp->num;
}

static uint64_t peer_name(const struct trace_qp *qp)
{
	return qp->ports ? 2ull << 32 | (qp->ports << 16 | qp->ports >> 16) :
			   1ull << 32 | qp->dest;
}

static bool are_peers(const struct trace_qp *a, const struct trace_qp *b)
{
	return a != b && peer_name(a) == own_name(b) &&
	       peer_name(b) == own_name(a) && !memcmp(a->sgid, b->dgid, 16) &&
	       !memcmp(a->dgid, b->sgid, 16);
}

static int find_peers(struct trace_set *t)
{
	uint32_t *next = malloc((t->nqps + 1u) * sizeof(*next));
	struct map last = { .size = 0 };
	int err = next ? 0 : -ENOMEM;

	for (uint32_t i = 0; i < t->nqps && !err; i++) {
		next[i] = map_get(&last, own_name(&t->qp[i]));
		err = map_set(&last, own_name(&t->qp[i]), i);
	}
	for (uint32_t i = 0; i < t->nqps && !err; i++) {
		struct trace_qp *a = &t->qp[i];
		uint32_t k = map_get(&last, peer_name(a)), steps = 0;

		for (; (a->dest || a->ports) && a->peer == TRACE_NOTHING &&
		       k != TRACE_NOTHING && steps < STEPS;
		     k = next[k], steps++)
			if (t->qp[k].peer == TRACE_NOTHING &&
			    are_peers(a, &t->qp[k])) {
				a->peer = k;
				t->qp[k].peer = i;
			}
	}
	free(next);
	map_free(&last);
	return err;
}

/* ---- clocks ------------------------------------------------------------ */

/* The least time from one clock to another, by both; INT64_MAX: none is known. */
static void note_delay(struct trace_set *t, int64_t *least, uint32_t out,
		       uint32_t in)
{
	const struct trace_event *from = &t->event[out], *to = &t->event[in];
	const size_t at = (size_t)t->proc[from->proc].clock * t->nclocks +
			  t->proc[to->proc].clock;
	const int64_t ns = (int64_t)(to->rec.ns - from->rec.ns);

	if (ns < least[at])
		least[at] = ns;
}

static uint64_t packet_key(uint32_t qp, const struct trace_rec *r)
{
	return ((uint64_t)qp + 1) << 32 | r->psn_op;
}

#define FIRST_UNKNOWN (TRACE_NOTHING - 1)

/*
 * Packets between two clocks. One that left more than once counts from the first
 * time, if that is known: whichever it was that arrived took no longer.
 */
static int find_delays(struct trace_set *t, int64_t *least)
{
	struct map outs = { .size = 0 };
	uint64_t key;
	uint32_t at;
	int err = 0;

	for (int pass = 0; pass < 2 && !err; pass++) {
		for (uint32_t i = 0; i < t->nevents && !err; i++) {
			const struct trace_event *ev = &t->event[i];
			const bool out = trace_type(&ev->rec) == TRACE_PKT_OUT;
			uint32_t peer;

			if (!is_packet(&ev->rec) || out == pass ||
			    ev->rec.x & TRACE_VERDICT)
				continue;
			peer = t->qp[ev->qp].peer;
			if (peer == TRACE_NOTHING ||
			    t->proc[t->qp[peer].proc].clock ==
				    t->proc[ev->proc].clock)
				continue;
			key = packet_key(out ? ev->qp : peer, &ev->rec);
			at = map_get(&outs, key);
			if (out && at == TRACE_NOTHING)
				err = map_set(&outs, key,
					      ev->rec.x & TRACE_AGAIN ?
						      FIRST_UNKNOWN :
						      i);
			else if (!out && at < FIRST_UNKNOWN)
				note_delay(t, least, at, i);
		}
	}
	map_free(&outs);
	return err;
}

/* The clock that is next to one that is set, by the least error. */
static bool set_nearest(struct trace_set *t, const int64_t *least, bool *set)
{
	const uint32_t n = t->nclocks;
	uint32_t best = n;
	uint64_t error = UINT64_MAX;
	int64_t offset = 0;

	for (uint32_t a = 0; a < n; a++) {
		for (uint32_t b = 0; b < n && set[a]; b++) {
			const int64_t ab = least[(size_t)a * n + b],
				      ba = least[(size_t)b * n + a];
			int64_t sum, e;

			if (set[b] || ab == INT64_MAX || ba == INT64_MAX)
				continue;
			sum = ab / 2 + ba / 2;
			/* Less than nothing: one of them runs faster. */
			e = (sum < 0 ? -sum : sum) + (int64_t)t->clock[a].own +
			    (int64_t)t->clock[b].own;
			if ((uint64_t)e + t->clock[a].error >= error)
				continue;
			error = (uint64_t)e + t->clock[a].error;
			best = b;
			offset = t->clock[a].offset - (ab / 2 - ba / 2);
		}
	}
	if (best == n)
		return false;
	t->clock[best].offset = offset;
	t->clock[best].error = error;
	t->clock[best].known = set[best] = true;
	return true;
}

static int set_clocks(struct trace_set *t)
{
	const size_t n = (size_t)t->nclocks * t->nclocks;
	const int64_t first = t->clock[0].offset;
	int64_t *least = malloc(n * sizeof(*least));
	bool *set = calloc(t->nclocks, sizeof(*set));
	int err = least && set ? 0 : -ENOMEM;

	for (size_t i = 0; i < n && !err; i++)
		least[i] = INT64_MAX;
	if (!err && t->nclocks > 1)
		err = find_delays(t, least);
	if (!err) {
		for (uint32_t i = 0; i < t->nclocks; i++)
			t->clock[i].offset =
				(int64_t)((uint64_t)t->clock[i].offset -
					  (uint64_t)first);
		t->clock[0].known = set[0] = true;
		while (set_nearest(t, least, set))
			;
	}
	for (uint32_t i = 0; i < t->nevents && !err; i++) {
		struct trace_event *ev = &t->event[i];

		ev->rec.ns +=
			(uint64_t)t->clock[t->proc[ev->proc].clock].offset;
	}
	free(least);
	free(set);
	return err;
}

static int by_time(const void *a, const void *b)
{
	const struct trace_event *x = a, *y = b;

	if (x->rec.ns != y->rec.ns)
		return x->rec.ns < y->rec.ns ? -1 : 1;
	return x->wr < y->wr ? -1 : x->wr > y->wr;
}

/* What has one time, as parts of one event have, stays in its order. */
static void sort_events(struct trace_set *t)
{
	for (uint32_t i = 0; i < t->nevents; i++)
		t->event[i].wr = i;
	if (t->nevents)
		qsort(t->event, t->nevents, sizeof(*t->event), by_time);
	for (uint32_t i = 0; i < t->nevents; i++)
		t->event[i].wr = TRACE_NOTHING;
}

/* ---- packets and work requests ----------------------------------------- */

/* A queue of a QP, as far as it has been seen: indices of work requests. */
struct queue {
	uint32_t *wr;
	uint32_t n, room;
	uint32_t acked, done, polled; /* those before are */
	uint32_t sent; /* the one whose packet was seen last; of iWARP the one
			* that is next */
	uint32_t own; /* reads of iWARP that are of no work request */
};

struct state {
	struct trace_set *t;
	struct queue *send, *recv; /* by QP */
	uint8_t *reason; /* by QP: why it would send again */
	struct map outs; /* the last packet that left, by packet_key(): event */
	uint32_t *
		before; /* by event: the one that left before, of the same key */
	uint32_t *came; /* by QP: 1 + its last packet that has arrived */
	struct map in; /* by thread: the last packet that came in */
	struct map ud; /* UD QPs by number */
	struct map mads; /* the last message that left, by mad_key(): event */
	size_t wr_room;
};

static int queue_add(struct queue *q, uint32_t wr)
{
	if (q->n == q->room) {
		const uint32_t more = q->room ? 2 * q->room : 16;
		void *p = realloc(q->wr, more * sizeof(*q->wr));

		if (!p)
			return -ENOMEM;
		q->wr = p;
		q->room = more;
	}
	q->wr[q->n++] = wr;
	return 0;
}

static int wr_posted(struct state *s, struct trace_event *ev, bool recv)
{
	const struct trace_rec *r = &ev->rec;
	struct trace_set *t = s->t;

	if (t->nwrs == s->wr_room) {
		const size_t more = s->wr_room ? 2 * s->wr_room : 1024;
		void *p = realloc(t->wr, more * sizeof(*t->wr));

		if (!p)
			return -ENOMEM;
		t->wr = p;
		s->wr_room = more;
	}
	ev->wr = t->nwrs;
	t->wr[t->nwrs] = (struct trace_wr){
		.wr_id = r->key,
		.qp = ev->qp,
		.len = r->len,
		.first_psn = psn_of(r),
		.last_psn = r->x >> 8,
		.opcode = (uint8_t)r->psn_op,
		.flags = (uint8_t)r->x,
		.recv = recv,
		.posted = r->ns,
	};
	return queue_add(recv ? &s->recv[ev->qp] : &s->send[ev->qp], t->nwrs++);
}

static bool has_psn(const struct trace_wr *w, uint32_t psn)
{
	return !(w->flags & TRACE_LOCAL) && !w->direct &&
	       psn_diff(psn, w->first_psn) >= 0 &&
	       psn_diff(psn, w->last_psn) <= 0;
}

/* The work request with a PSN, which is not long ago; or NULL. */
static struct trace_wr *wr_of(struct state *s, uint32_t qp, uint32_t psn)
{
	struct queue *q = &s->send[qp];
	struct trace_wr *wr = s->t->wr;
	uint32_t i = q->sent, steps = 0;

	for (; i < q->n && i < q->sent + 2; i++)
		if (has_psn(&wr[q->wr[i]], psn))
			goto found;
	for (i = q->n; i-- > 0 && steps++ < STEPS;)
		if (has_psn(&wr[q->wr[i]], psn))
			goto found;
	return NULL;
found:
	q->sent = i;
	return &wr[q->wr[i]];
}

static bool is_request(const struct trace_rec *r)
{
	return roce_opcode((uint8_t)r->psn_op)->flags & ROCE_F_REQUEST;
}

static void add_packet(struct state *s, struct trace_event *ev,
		       struct trace_wr *w)
{
	ev->wr = (uint32_t)(w - s->t->wr);
	w->packets++;
	w->first = w->first ? w->first : ev->rec.ns;
	if (!w->acked)
		w->last = ev->rec.ns;
}

static void fpdu_left(struct state *s, struct trace_event *ev, uint32_t opcode)
{
	struct queue *q = &s->send[ev->qp];

	if (!(ev->rec.x & TRACE_OF_WR)) {
		q->own += opcode == RDMAP_READ_REQUEST;
		return;
	}
	for (uint32_t i = q->sent, n = 0; i < q->n && n < STEPS; i++, n++) {
		struct trace_wr *w = &s->t->wr[q->wr[i]];

		if (w->flags & TRACE_LOCAL || w->wr_id != ev->rec.key)
			continue;
		add_packet(s, ev, w);
		q->sent = i + !!(ev->rec.x & TRACE_END);
		return;
	}
}

/* The last data of a read: of the oldest that has none. */
static void fpdu_arrived(struct state *s, struct trace_event *ev,
			 uint32_t opcode)
{
	struct queue *q = &s->send[ev->qp];
	const bool end = ev->rec.x & TRACE_END;

	if (opcode != RDMAP_READ_RESPONSE)
		return;
	if (q->own) {
		q->own -= end;
		return;
	}
	for (uint32_t i = q->acked, n = 0; i < q->sent && n < STEPS; i++, n++) {
		struct trace_wr *w = &s->t->wr[q->wr[i]];

		if (w->opcode != IBV_WR_RDMA_READ || !w->packets)
			continue;
		ev->wr = q->wr[i];
		if (end) {
			w->acked = ev->rec.ns;
			q->acked = i + 1;
		}
		return;
	}
}

static int packet_left(struct state *s, uint32_t i)
{
	struct trace_event *ev = &s->t->event[i];
	struct trace_wr *w;
	uint32_t opcode;

	if (trace_is_fpdu(&ev->rec, &opcode)) {
		fpdu_left(s, ev, opcode);
	} else if (is_request(&ev->rec)) {
		w = wr_of(s, ev->qp, psn_of(&ev->rec));
		if (w) {
			add_packet(s, ev, w);
			w->again += (ev->rec.x & TRACE_AGAIN) != 0;
		}
		if (ev->rec.x & TRACE_AGAIN)
			ev->reason = s->reason[ev->qp];
	}
	s->before[i] = map_get(&s->outs, packet_key(ev->qp, &ev->rec));
	return map_set(&s->outs, packet_key(ev->qp, &ev->rec), i);
}

/* What has arrived as a packet of a QP, or TRACE_NOTHING. */
static uint32_t which_left(const struct state *s, uint32_t from,
			   const struct trace_rec *r)
{
	uint32_t i = map_get(&s->outs, packet_key(from, r)), steps = 0;
	uint32_t behind = TRACE_NOTHING, any = TRACE_NOTHING;

	for (; i != TRACE_NOTHING && steps < 64; i = s->before[i], steps++) {
		if (s->t->event[i].other != TRACE_NOTHING)
			continue;
		if (i >= s->came[from])
			behind = i;
		else if (any == TRACE_NOTHING)
			any = i;
	}
	return behind != TRACE_NOTHING ? behind : any;
}

/* All up to a PSN is acknowledged. */
static void psn_acknowledged(struct state *s, uint32_t qp, uint32_t psn,
			     uint64_t ns)
{
	struct queue *q = &s->send[qp];
	struct trace_wr *w;

	for (; q->acked < q->n; q->acked++) {
		w = &s->t->wr[q->wr[q->acked]];
		if (w->flags & TRACE_LOCAL || w->direct || w->acked)
			continue;
		if (!w->packets || psn_diff(psn, w->last_psn) < 0)
			break;
		w->acked = ns;
	}
}

static void packet_answered(struct state *s, struct trace_event *ev)
{
	const uint8_t op = (uint8_t)ev->rec.psn_op;
	const uint32_t psn = psn_of(&ev->rec), flags = roce_opcode(op)->flags;
	const uint8_t kind = (uint8_t)(ev->rec.key >> 24) & ROCE_AETH_KIND;
	struct trace_wr *w = wr_of(s, ev->qp, psn);

	if (w)
		ev->wr = (uint32_t)(w - s->t->wr);
	if (!(flags & ROCE_F_AETH) || kind == ROCE_AETH_ACK ||
	    ev->rec.x & TRACE_VERDICT) {
		/* A large packet stands for more PSNs than the first. */
		const uint32_t mtu = s->t->qp[ev->qp].mtu;
		const uint32_t more =
			mtu && ev->rec.len > mtu ? (ev->rec.len - 1) / mtu : 0;

		psn_acknowledged(s, ev->qp, psn_add(psn, more), ev->rec.ns);
		return;
	}
	psn_acknowledged(s, ev->qp, psn_add(psn, PSN_MASK), ev->rec.ns);
	if (kind == ROCE_AETH_RNR) {
		s->reason[ev->qp] = TRACE_R_RNR;
		if (w)
			w->rnrs++;
	} else {
		s->reason[ev->qp] = TRACE_R_NAK;
		if (w)
			w->naks++;
	}
}

/* The QP that a packet has come from. */
static uint32_t sender_qp(const struct state *s, const struct trace_event *ev)
{
	const struct trace_qp *qp = &s->t->qp[ev->qp];

	if (qp->peer != TRACE_NOTHING || qp->ports)
		return qp->peer;
	return map_get(&s->ud, 1ull << 32 | (ev->rec.key & 0xffffff));
}

static int packet_arrived(struct state *s, uint32_t i)
{
	struct trace_event *ev = &s->t->event[i];
	const uint32_t from = sender_qp(s, ev);
	uint32_t out, opcode;
	int err;

	err = map_set(&s->in, 1ull << 63 | (uint64_t)ev->proc << 32 | ev->tid,
		      i);
	if (err)
		return err;
	if (from != TRACE_NOTHING && !(ev->rec.x & TRACE_VERDICT)) {
		out = which_left(s, from, &ev->rec);
		if (out != TRACE_NOTHING) {
			if (out >= s->came[from])
				s->came[from] = out + 1;
			ev->other = out;
			ev->wr = s->t->event[out].wr;
			s->t->event[out].other = i;
		}
	}
	if (trace_is_fpdu(&ev->rec, &opcode))
		fpdu_arrived(s, ev, opcode);
	else if (roce_opcode((uint8_t)ev->rec.psn_op)->flags & ROCE_F_RESPONSE)
		packet_answered(s, ev);
	return 0;
}

static void packet_dropped(struct state *s, const struct trace_event *ev)
{
	const uint32_t in = map_get(
		&s->in, 1ull << 63 | (uint64_t)ev->proc << 32 | ev->tid);

	/* What is for no QP has no event of its own. */
	if (in != TRACE_NOTHING && s->t->event[in].qp == ev->qp)
		s->t->event[in].dropped = (uint8_t)(1 + (ev->rec.x & 0x7f));
}

/* It needed no packet, and no PSN, which those behind it have instead. */
static void carried_out(struct state *s, struct trace_event *ev)
{
	struct queue *q = &s->send[ev->qp];
	uint32_t i = q->n, span, steps = 0;
	struct trace_wr *w;

	while (i > q->acked && steps++ < STEPS &&
	       !s->t->wr[q->wr[i - 1]].direct)
		i--;
	for (; i < q->n; i++) {
		w = &s->t->wr[q->wr[i]];
		if (!w->packets && !(w->flags & TRACE_LOCAL) &&
		    w->wr_id == ev->rec.key)
			break;
	}
	if (i == q->n)
		return;
	w = &s->t->wr[q->wr[i]];
	w->direct = true;
	ev->wr = q->wr[i];
	span = (uint32_t)psn_diff(w->last_psn, w->first_psn) + 1;
	for (i++, steps = 0; i < q->n && steps < STEPS; i++, steps++) {
		w = &s->t->wr[q->wr[i]];
		w->first_psn = (w->first_psn - span) & PSN_MASK;
		w->last_psn = (w->last_psn - span) & PSN_MASK;
	}
}

static struct queue *queue_of(struct state *s, const struct trace_event *ev)
{
	return ev->rec.psn_op & IBV_WC_RECV ? &s->recv[ev->qp] :
					      &s->send[ev->qp];
}

/* The first from q->wr[i] on that a completion is of; q->n: there is none. */
static uint32_t first_completed(struct state *s, const struct queue *q,
				uint32_t i, const struct trace_event *ev)
{
	for (uint32_t steps = 0; i < q->n && steps < STEPS; i++, steps++) {
		const struct trace_wr *w = &s->t->wr[q->wr[i]];

		if (w->wr_id == ev->rec.key &&
		    (w->recv || w->flags & TRACE_SIGNALED || ev->rec.x))
			return i;
	}
	return q->n;
}

/* When one was over of whose end nobody is told, by ns at the latest. */
static uint64_t quietly_over(const struct trace_set *t,
			     const struct trace_wr *w, uint64_t ns)
{
	const uint32_t type = t->qp[w->qp].type;

	if (w->acked)
		return w->acked;
	/* Nobody acknowledges it. */
	return w->last && (type == IBV_QPT_UD || type == IBV_QPT_UC ||
			   t->qp[w->qp].ports) ?
		       w->last :
		       ns;
}

static void wr_completed(struct state *s, struct trace_event *ev)
{
	struct queue *q = queue_of(s, ev);
	const uint32_t i = first_completed(s, q, q->done, ev);
	struct trace_wr *w;

	if (i == q->n)
		return;
	for (; q->done < i; q->done++) {
		w = &s->t->wr[q->wr[q->done]];
		w->completed = quietly_over(s->t, w, ev->rec.ns);
	}
	w = &s->t->wr[q->wr[q->done++]];
	w->completed = ev->rec.ns;
	w->status = (uint8_t)ev->rec.x;
	ev->wr = q->wr[i];
	if (!w->recv && q->acked < q->done)
		q->acked = q->done;
}

/*
 * After all have completed: a poll has the time of its thread's last event, and
 * another thread may have completed later what it took.
 */
static void cq_polled(struct state *s, struct trace_event *ev)
{
	struct queue *q = queue_of(s, ev);
	const uint32_t i = first_completed(s, q, q->polled, ev);
	struct trace_wr *w;

	if (i >= q->done)
		return;
	w = &s->t->wr[q->wr[i]];
	w->polled = w->completed > ev->rec.ns ? w->completed : ev->rec.ns;
	ev->wr = q->wr[i];
	q->polled = i + 1;
}

static uint64_t mad_key(const struct trace_event *ev)
{
	return (ev->rec.key ^ (uint64_t)ev->rec.x << 48) | 1ull << 63;
}

/* A message of the connection manager: where it left, of those that have not
 * arrived. */
static void message_arrived(struct state *s, uint32_t i)
{
	struct trace_event *ev = &s->t->event[i], *out;
	const uint32_t from = map_get(&s->mads, mad_key(ev));

	if (from == TRACE_NOTHING)
		return;
	out = &s->t->event[from];
	if (out->other != TRACE_NOTHING || out->rec.key != ev->rec.key ||
	    out->rec.x != ev->rec.x)
		return;
	out->other = i;
	ev->other = from;
}

static int walk_events(struct state *s)
{
	struct trace_set *t = s->t;
	int err = 0;

	for (uint32_t i = 0; i < t->nevents && !err; i++) {
		struct trace_event *ev = &t->event[i];

		switch (trace_type(&ev->rec)) {
		case TRACE_QP_NEW:
			if (ev->rec.x == IBV_QPT_UD)
				err = map_set(&s->ud,
					      1ull << 32 | num_of(&ev->rec),
					      ev->qp);
			break;
		case TRACE_POST_SEND:
			err = wr_posted(s, ev, false);
			break;
		case TRACE_POST_RECV:
			if (ev->qp != TRACE_NOTHING)
				err = wr_posted(s, ev, true);
			break;
		case TRACE_CM_OUT:
			err = map_set(&s->mads, mad_key(ev), i);
			break;
		case TRACE_CM_IN:
			message_arrived(s, i);
			break;
		case TRACE_PKT_OUT:
			err = packet_left(s, i);
			break;
		case TRACE_PKT_IN:
			err = packet_arrived(s, i);
			break;
		case TRACE_DROP:
			packet_dropped(s, ev);
			break;
		case TRACE_DIRECT:
			carried_out(s, ev);
			break;
		case TRACE_TIMER:
			s->reason[ev->qp] = ev->rec.x == TRACE_T_TIMEOUT ?
						    TRACE_R_TIMEOUT :
						    TRACE_R_PROBE;
			break;
		case TRACE_COMPLETE:
			wr_completed(s, ev);
			break;
		}
	}
	for (uint32_t i = 0; i < t->nevents && !err; i++)
		if (trace_type(&t->event[i].rec) == TRACE_POLLED)
			cq_polled(s, &t->event[i]);
	return err;
}

static int follow_requests(struct trace_set *t)
{
	const size_t n = t->nqps ? t->nqps : 1;
	struct state s = {
		.t = t,
		.send = calloc(n, sizeof(struct queue)),
		.recv = calloc(n, sizeof(struct queue)),
		.reason = calloc(n, 1),
		.before = malloc((t->nevents + 1u) * sizeof(uint32_t)),
		.came = calloc(n, sizeof(uint32_t)),
	};
	int err = s.send && s.recv && s.reason && s.before && s.came ?
			  walk_events(&s) :
			  -ENOMEM;

	for (uint32_t i = 0; i < t->nqps; i++) {
		if (s.send)
			free(s.send[i].wr);
		if (s.recv)
			free(s.recv[i].wr);
	}
	free(s.send);
	free(s.recv);
	free(s.reason);
	free(s.before);
	free(s.came);
	map_free(&s.outs);
	map_free(&s.in);
	map_free(&s.ud);
	map_free(&s.mads);
	return err;
}

int trace_join(struct trace_set *t)
{
	int err;

	sort_events(t);
	err = find_qps(t) ?: find_peers(t) ?: set_clocks(t);
	if (err)
		return err;
	if (t->nclocks > 1)
		sort_events(t);
	return assign_srqs(t) ?: follow_requests(t);
}

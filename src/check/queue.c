/*
 * queue.c - what is posted to queue pairs and not yet polled
 *
 * A shadow of each send queue has an entry for every work request whose
 * completion the program has not seen: one that is polled ends its own request
 * and, as a queue completes in order, all before it. So the queue is here as
 * full as hardware's, which gives no slot back before that; the device itself
 * gives it back when the peer has answered.
 *
 * A request that only reads memory is hashed when it is posted and again just
 * before the program hears that it is done: of its completion, or of anything
 * else by which it may know, a message received or data it has asked for, on
 * any QP. What is hashed then is not looked at again; and nothing is where a
 * peer has written to memory of this process meanwhile, since the program may
 * have seen that; nor where a message came into the same memory.
 *
 * The lock of a QP is held from before a request is posted until it has been,
 * so entries are in the order of the queue; that of a CQ while completions are
 * taken and looked at, so they are looked at in order. After an error of the QP
 * nothing is known of what it did before its next RESET.
 */
#include "check_internal.h"

#include "base/bytes.h"
#include "base/hash64.h"
#include "os/config.h"

#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define BUCKETS 1024u
#define SENDERS 64u /* QPs of a CQ; with more it is not looked at */
#define IDLE_NS 2000000000ull /* of polls that find nothing */
#define ENTRIES_MAX 65536u /* of a queue; with more nothing is known of it */

struct sent {
	uint64_t wr_id;
	uint64_t hash;
	uint64_t writes, received; /* by then, from peers */
	uint32_t stack; /* where it was posted */
	bool signalled;
	bool hashed;
	bool sink; /* memory that is written, by a read or an atomic */
	bool more; /* than these SGEs */
	uint8_t nsge;
	struct ibv_sge sge[CHECK_SGES];
};

struct queue {
	struct queue *next;
	uint32_t qpn;
	struct ibv_qp *ib; /* until it is void and goes */
	struct check_cq *cq;
	_Atomic unsigned refs;
	pthread_mutex_t lock; /* of what follows */
	uint32_t max_wr, max_sge;
	uint32_t made; /* where it was created, */
	_Atomic uint32_t connected; /* and connected */
	bool met; /* its peer has answered since; both ends */
	struct check_end own,
		there; /* when it was posted to, generation 0: unknown */
	bool sig_all;
	bool signaled; /* a request has been, ever */
	bool lost; /* nothing is known of what is posted */
	bool said; /* that it overflows */
	uint32_t head, tail; /* free-running */
	uint32_t checked; /* what comes from here on is to be hashed again */
	uint32_t size; /* power of two, or 0 */
	struct sent *ring;

	bool dirty; /* in the list of those with something to be hashed again */
	struct queue *dirty_next;
};

/* Of the table and the list; innermost but for a CQ's and reports'. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct queue *queues[BUCKETS], *dirty;
static _Atomic uint64_t writes;
/* Posts, polls that find something, and those of another CQ than the last. */
static _Atomic uint64_t activity;
static struct check_cq *_Atomic polled_last;

/* Where the last messages were received. */
#define LANDINGS 256u
static struct {
	pthread_mutex_t lock; /* innermost */
	uint64_t n;
	struct landing {
		uint64_t addr, length;
		bool part; /* what follows is told as well */
	} last[LANDINGS];
} landings = { .lock = PTHREAD_MUTEX_INITIALIZER };

void check_queues_forked(void)
{
	/* What was there is the parent's, and leaks. */
	pthread_mutex_init(&lock, NULL);
	pthread_mutex_init(&landings.lock, NULL);
	memset(queues, 0, sizeof(queues));
	dirty = NULL;
}

void check_written(void)
{
	atomic_fetch_add(&writes, 1);
}

uint64_t check_writes(void)
{
	return atomic_load(&writes);
}

static void note_landing(const struct ibv_sge *sge, uint32_t n, bool part)
{
	pthread_mutex_lock(&landings.lock);
	for (uint32_t i = 0; i < n; i++)
		landings.last[landings.n++ % LANDINGS] =
			(struct landing){ sge[i].addr, sge[i].length, part };
	pthread_mutex_unlock(&landings.lock);
}

void check_received(const struct ibv_sge *sge, uint32_t n)
{
	note_landing(sge, n, false);
}

void check_came(const struct ibv_sge *sge, uint32_t n)
{
	note_landing(sge, n, true);
}

uint64_t check_landings(void)
{
	uint64_t n;

	pthread_mutex_lock(&landings.lock);
	n = landings.n;
	pthread_mutex_unlock(&landings.lock);
	return n;
}

static bool sge_overlaps(const struct ibv_sge *s, uint64_t addr,
			 uint64_t length)
{
	return s->addr < addr + length && addr < s->addr + s->length;
}

/* One that began before may go on behind, unless it is told in parts. */
bool check_landed(uint64_t addr, uint64_t length, uint64_t since)
{
	const struct ibv_sge s = { addr, (uint32_t)length, 0 };
	uint64_t from;
	bool hit;

	pthread_mutex_lock(&landings.lock);
	hit = landings.n - since > LANDINGS;
	from = landings.n - min_u64(landings.n, LANDINGS);
	for (uint64_t i = from; i < landings.n && !hit; i++) {
		const struct landing *l = &landings.last[i % LANDINGS];

		hit = (i >= since || !l->part) &&
		      sge_overlaps(&s, l->addr, l->length);
	}
	pthread_mutex_unlock(&landings.lock);
	return hit;
}

/* Whether a message may have come into the memory of a request. */
static bool is_landed_on(const struct sent *s)
{
	for (unsigned k = 0; k < s->nsge; k++)
		if (check_landed(s->sge[k].addr, s->sge[k].length, s->received))
			return true;
	return false;
}

/* ---- tables ------------------------------------------------------------ */

static struct queue **queue_bucket(uint32_t qpn)
{
	struct queue **p = &queues[hash64(qpn) % BUCKETS];

	while (*p && (*p)->qpn != qpn)
		p = &(*p)->next;
	return p;
}

static struct queue *queue_get(uint32_t qpn)
{
	struct queue *q;

	pthread_mutex_lock(&lock);
	q = *queue_bucket(qpn);
	if (q)
		atomic_fetch_add(&q->refs, 1);
	pthread_mutex_unlock(&lock);
	return q;
}

static void queue_put(struct queue *q)
{
	if (!q || atomic_fetch_sub(&q->refs, 1) != 1)
		return;
	check_cq_put(q->cq);
	free(q->ring);
	free(q);
}

void check_qp_created(struct ibv_qp *ib, const struct ibv_qp_cap *cap,
		      bool sig_all)
{
	struct queue *q = ib->send_cq ? calloc(1, sizeof(*q)) : NULL;
	struct queue **bucket = &queues[hash64(ib->qp_num) % BUCKETS];

	if (!q)
		return;
	q->ib = ib;
	q->qpn = ib->qp_num;
	q->cq = check_cq_get(ib->send_cq);
	q->max_wr = cap->max_send_wr;
	q->max_sge = cap->max_send_sge;
	q->sig_all = sig_all;
	q->made = check_here();
	atomic_store(&q->refs, 1);
	pthread_mutex_init(&q->lock, NULL);
	pthread_mutex_lock(&lock);
	q->next = *bucket;
	*bucket = q;
	pthread_mutex_unlock(&lock);
}

/* ---- memory ------------------------------------------------------------ */

static bool is_sink(const struct ibv_send_wr *wr)
{
	return wr->num_sge > 0 && (wr->opcode == IBV_WR_RDMA_READ ||
				   wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
				   wr->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD);
}

/* Whether it is for memory that is read, and nothing more. */
static bool is_source(const struct ibv_send_wr *wr)
{
	if (wr->send_flags & IBV_SEND_INLINE || wr->num_sge <= 0)
		return false;
	switch (wr->opcode) {
	case IBV_WR_SEND:
	case IBV_WR_SEND_WITH_IMM:
	case IBV_WR_SEND_WITH_INV:
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		return true;
	default:
		return false;
	}
}

static struct sent *queue_entry(const struct queue *q, uint32_t i)
{
	return &q->ring[i & (q->size - 1)];
}

/* Whether what the queue itself reads goes there: a request behind it that has a
 * fence sends that. */
static bool is_read_into(const struct queue *q, const struct sent *s)
{
	bool hit = false;

	for (uint32_t i = q->head; i != q->tail && !hit; i++) {
		const struct sent *r = queue_entry(q, i);

		if (!r->sink)
			continue;
		hit = r->more;
		for (unsigned k = 0; k < r->nsge; k++)
			for (unsigned j = 0; j < s->nsge; j++)
				hit |= sge_overlaps(&s->sge[j], r->sge[k].addr,
						    r->sge[k].length);
	}
	return hit;
}

/* The queue's lock is held. */
static void compare_sent(struct queue *q, const struct sent *s)
{
	struct check_side sides[] = {
		{ "the work request was posted", s->stack },
		{ "the program was about to see its completion", 0 },
	};
	uint64_t hash;

	if (!s->hashed || s->writes != atomic_load(&writes) ||
	    !check_hash(q->ib, s->sge, s->nsge, &hash) || hash == s->hash ||
	    is_landed_on(s) || is_read_into(q, s))
		return;
	sides[1].stack = check_here();
	check_report(CHECK_WRITTEN, q->qpn, sides, 2,
		     "QP 0x%06x: memory of work request 0x%llx [0x%llx, +%u), "
		     "lkey 0x%08x, has changed between ibv_post_send() and its "
		     "completion: the peer may get either content, or both "
		     "when a packet is sent again",
		     q->qpn, (unsigned long long)s->wr_id,
		     (unsigned long long)s->sge[0].addr, s->sge[0].length,
		     s->sge[0].lkey);
}

/* One of those with something to be hashed again; or NULL. */
static struct queue *dirty_take(void)
{
	struct queue *q;

	pthread_mutex_lock(&lock);
	q = dirty;
	if (q) {
		dirty = q->dirty_next;
		q->dirty = false;
	}
	pthread_mutex_unlock(&lock);
	return q;
}

/* The program is about to hear of something. */
static void compare_all(void)
{
	struct queue *q;

	while ((q = dirty_take())) {
		pthread_mutex_lock(&q->lock);
		for (; q->checked != q->tail; q->checked++)
			compare_sent(q, queue_entry(q, q->checked));
		pthread_mutex_unlock(&q->lock);
		queue_put(q);
	}
}

static void dirty_add(struct queue *q)
{
	pthread_mutex_lock(&lock);
	if (!q->dirty) {
		q->dirty = true;
		q->dirty_next = dirty;
		dirty = q;
		atomic_fetch_add(&q->refs, 1);
	}
	pthread_mutex_unlock(&lock);
}

/* ---- the other end ---------------------------------------------------- */

static bool is_same_generation(const struct check_end *a,
			       const struct check_end *b)
{
	return a->generation && a->generation == b->generation;
}

/*
 * What both ends are to have alike shows when they have talked to each other:
 * before, one of them may not have it yet. A request has completed: from when it
 * was posted on, both ends have been the same.
 */
static void compare_ends(struct queue *q)
{
	const struct check_side side = { "the QP was connected",
					 atomic_load(&q->connected) };
	struct check_end own, there;

	if (q->met || q->ib->qp_type != IBV_QPT_RC)
		return;
	if (!check_env.ends(q->ib, &own, &there) ||
	    !is_same_generation(&q->own, &own) ||
	    !is_same_generation(&q->there, &there))
		return;
	q->met = true;
	if (there.dest_qpn != q->qpn) {
		check_report(
			CHECK_PEER, q->qpn, &side, 1,
			"QP 0x%06x: it is connected to QP 0x%06x, and that to "
			"QP 0x%06x, which gets the answers between hosts",
			q->qpn, own.dest_qpn, there.dest_qpn);
		return;
	}
	if (own.mtu != there.mtu)
		check_report(CHECK_MTU, q->qpn, &side, 1,
			     "QP 0x%06x: its path_mtu is %u, and %u at the QP "
			     "it is connected to: a message that is longer "
			     "than the smaller one is refused by hardware",
			     q->qpn, own.mtu, there.mtu);
	if (own.psn != there.psn)
		check_report(CHECK_PSN, q->qpn, &side, 1,
			     "QP 0x%06x: its sq_psn is 0x%06x, and rq_psn is "
			     "0x%06x at QP 0x%06x, which it is connected to: "
			     "its first requests complete there as duplicates, "
			     "and are not executed",
			     q->qpn, own.psn, there.psn, own.dest_qpn);
}

/* It is posted to. */
static void find_other_end(struct queue *q)
{
	if (!q->met && q->ib->qp_type == IBV_QPT_RC && !q->there.generation &&
	    !check_env.ends(q->ib, &q->own, &q->there))
		q->there.generation = 0;
}

uint32_t check_connected(uint32_t qpn)
{
	struct queue *q = queue_get(qpn);
	uint32_t at = q ? atomic_load(&q->connected) : 0;

	if (q && !at)
		at = q->made;

	queue_put(q);
	return at;
}

void check_disagrees(enum check_pair what, uint32_t qpn, const char *text)
{
	static const enum check_rule rules[] = {
		[CHECK_PAIR_PSN] = CHECK_PSN,
		[CHECK_PAIR_QP] = CHECK_PEER,
		[CHECK_PAIR_QKEY] = CHECK_QKEY,
		[CHECK_PAIR_PKEY] = CHECK_PKEY,
	};
	const struct check_side side = { "the QP was connected, or made ready",
					 check_connected(qpn) };

	/* Else it is about to be destroyed. */
	if (side.stack)
		check_report(rules[what], qpn, &side, 1, "QP 0x%06x: %s", qpn,
			     text);
}

void check_address(enum check_address what, const char *text)
{
	static const enum check_rule rules[] = {
		[CHECK_ADDRESS_GRH] = CHECK_GRH,
		[CHECK_ADDRESS_HOPS] = CHECK_HOPS,
		[CHECK_ADDRESS_MTU] = CHECK_MTU_LARGE,
	};
	const struct check_side side = { "it was given", check_here() };

	check_report(rules[what], 0, &side, 1, "%s", text);
}

/* ---- posting ----------------------------------------------------------- */

static bool queue_grow(struct queue *q)
{
	const uint32_t size = q->size ? 2 * q->size : 16;
	struct sent *ring;

	if (size > ENTRIES_MAX)
		return false;
	ring = malloc(size * sizeof(*ring));
	if (!ring)
		return false;
	for (uint32_t i = q->head; i != q->tail; i++)
		ring[i & (size - 1)] = *queue_entry(q, i);
	free(q->ring);
	q->ring = ring;
	q->size = size;
	return true;
}

/* The entry goes. */
static void queue_forget(struct queue *q, uint32_t i)
{
	const struct sent *s = queue_entry(q, i);

	if (s->signalled && q->cq)
		atomic_fetch_sub(&q->cq->out, 1);
}

static void forget_all(struct queue *q)
{
	while (q->head != q->tail)
		queue_forget(q, q->head++);
	q->checked = q->tail;
}

static void queue_push(struct queue *q, const struct ibv_send_wr *wr,
		       uint32_t here)
{
	struct sent *s;

	if (q->lost)
		return;
	if (q->tail - q->head == q->size && !queue_grow(q)) {
		forget_all(q);
		q->lost = true;
		return;
	}
	s = queue_entry(q, q->tail++);
	*s = (struct sent){
		.wr_id = wr->wr_id,
		.stack = here,
		.signalled = q->sig_all || wr->send_flags & IBV_SEND_SIGNALED,
		.writes = atomic_load(&writes),
		.received = check_landings(),
	};
	q->signaled |= s->signalled;
	if (s->signalled && q->cq)
		atomic_fetch_add(&q->cq->out, 1);
	s->sink = is_sink(wr);
	/* What has more SGEs than it may have is refused unread. */
	if ((!s->sink && !is_source(wr)) || (uint32_t)wr->num_sge > q->max_sge)
		return;
	s->more = (uint32_t)wr->num_sge > CHECK_SGES;
	s->nsge = (uint8_t)min_u32((uint32_t)wr->num_sge, CHECK_SGES);
	memcpy(s->sge, wr->sg_list, s->nsge * sizeof(s->sge[0]));
	if (s->sink) {
		check_sink_posted(q->ib, wr, here);
		return;
	}
	s->hashed = check_hash(q->ib, s->sge, s->nsge, &s->hash);
	if (s->hashed)
		dirty_add(q);
}

/* What comes behind a request that was refused has not been posted. */
static void queue_undo(struct queue *q, uint32_t from,
		       const struct ibv_send_wr *wr,
		       const struct ibv_send_wr *bad)
{
	if (q->lost)
		return;
	for (; wr && wr != bad; wr = wr->next)
		from++;
	if (q->tail != from)
		check_sinks_end(q->qpn);
	while (q->tail != from)
		queue_forget(q, --q->tail);
	if ((int32_t)(q->checked - q->tail) > 0)
		q->checked = q->tail;
}

static void sq_overrun(struct queue *q, uint32_t here)
{
	const struct check_side sides[] = {
		{ "the last one was posted", here },
		{ "the oldest one was posted", queue_entry(q, q->head)->stack },
		{ "the QP was created", q->made },
	};
	bool signalled = false;

	for (uint32_t i = 0; i < q->max_wr && !signalled; i++)
		signalled = queue_entry(q, q->head + i)->signalled;
	check_report(
		signalled ? CHECK_SQ_OVERRUN : CHECK_SQ_STUCK, q->qpn, sides, 3,
		signalled ? "QP 0x%06x: %u work requests are posted without a "
			    "polled completion, and cap.max_send_wr is %u: "
			    "hardware frees a slot when the completion is "
			    "polled, and ibv_post_send() fails there" :
			    "QP 0x%06x: %u work requests are posted, "
			    "cap.max_send_wr is %u, and none of them is "
			    "signalled: on hardware the queue stays full",
		q->qpn, q->tail - q->head, q->max_wr);
}

static void cq_overrun(struct queue *q, uint32_t here)
{
	const struct check_side sides[] = {
		{ "the last one was posted", here },
		{ "the CQ was created", q->cq->made },
	};

	check_report(CHECK_CQ_OVERRUN, q->qpn, sides, 2,
		     "QP 0x%06x: %d signalled work requests are posted to the "
		     "queue pairs of its send CQ and not polled, but the CQ "
		     "has %d entries: if they complete before it is polled, "
		     "completions are lost",
		     q->qpn, atomic_load(&q->cq->out),
		     atomic_load(&q->cq->cqe));
}

static void queue_check(struct queue *q, uint32_t here)
{
	if (q->lost)
		return;
	if (!q->said && q->max_wr && q->tail - q->head > q->max_wr) {
		q->said = true;
		sq_overrun(q, here);
	}
	/* No completion will ever end these. */
	while (q->said && q->tail - q->head > q->max_wr &&
	       !queue_entry(q, q->head)->signalled) {
		if (q->checked == q->head)
			compare_sent(q, queue_entry(q, q->checked++));
		q->head++;
	}
	if (q->cq && atomic_load(&q->cq->out) > atomic_load(&q->cq->cqe) &&
	    !atomic_exchange(&q->cq->said, true))
		cq_overrun(q, here);
}

int check_post_send(struct ibv_qp *ib, struct ibv_send_wr *wr,
		    struct ibv_send_wr **bad,
		    int (*post)(struct ibv_qp *qp, struct ibv_send_wr *wr,
				struct ibv_send_wr **bad))
{
	struct queue *q = queue_get(ib->qp_num);
	const uint32_t here = check_here();
	uint32_t from;
	int err;

	if (!q)
		return post(ib, wr, bad);
	atomic_fetch_add(&activity, 1);
	pthread_mutex_lock(&q->lock);
	from = q->tail;
	find_other_end(q);
	check_env.posting(ib);
	/* Unless the list has no end, which is for post() to find. */
	for (const struct ibv_send_wr *w = wr; w && !q->lost; w = w->next)
		queue_push(q, w, here);
	err = post(ib, wr, bad);
	if (err)
		queue_undo(q, from, wr, *bad);
	queue_check(q, here);
	pthread_mutex_unlock(&q->lock);
	queue_put(q);
	return err;
}

/* ---- completions ------------------------------------------------------- */

static bool is_receive(const struct ibv_wc *wc)
{
	return wc->opcode & IBV_WC_RECV;
}

/* Whether it may show what has become of other requests, as well. */
static bool shows_more(const struct ibv_wc *wc)
{
	return is_receive(wc) || wc->opcode == IBV_WC_RDMA_READ ||
	       wc->opcode == IBV_WC_COMP_SWAP || wc->opcode == IBV_WC_FETCH_ADD;
}

static void queue_completed(struct queue *q, const struct ibv_wc *wc)
{
	bool signalled = false;
	struct sent *s = NULL;

	if (q->lost)
		return;
	while (wc->status == IBV_WC_SUCCESS && !signalled &&
	       q->head != q->tail) {
		s = queue_entry(q, q->head);
		signalled = s->signalled;
		if (q->checked == q->head)
			compare_sent(q, queue_entry(q, q->checked++));
		queue_forget(q, q->head++);
	}
	if (signalled && s->wr_id == wc->wr_id) {
		compare_ends(q);
		return;
	}
	forget_all(q);
	check_sinks_end(q->qpn);
	q->lost = true;
}

static void queue_polled(struct check_cq *c, const struct ibv_wc *wc)
{
	struct queue *q = is_receive(wc) ? NULL : queue_get(wc->qp_num);

	if (q && q->cq == c) {
		pthread_mutex_lock(&q->lock);
		queue_completed(q, wc);
		pthread_mutex_unlock(&q->lock);
	}
	queue_put(q);
}

/* Those that complete to a CQ, with references; UINT_MAX: there are more, or
 * messages may complete to it. */
static unsigned senders_of(const struct check_cq *c, struct queue *out[SENDERS])
{
	unsigned n = 0;
	bool more = false;

	pthread_mutex_lock(&lock);
	for (unsigned b = 0; b < BUCKETS; b++)
		for (struct queue *q = queues[b]; q && !more; q = q->next) {
			more = q->ib->recv_cq == c->ib &&
			       (q->ib->srq || check_env.receives(q->ib));
			if (more || q->cq != c)
				continue;
			more = n == SENDERS;
			if (more)
				continue;
			atomic_fetch_add(&q->refs, 1);
			out[n++] = q;
		}
	pthread_mutex_unlock(&lock);
	if (!more)
		return n;
	while (n)
		queue_put(out[--n]);
	return UINT_MAX;
}

/* The program does nothing but poll a CQ, whose lock is held. Where none of its
 * queues has ever had a signalled request, it waits for what does not come. */
static void polls_in_vain(struct check_cq *c)
{
	struct check_side sides[] = {
		{ "the last one was posted", 0 },
		{ "the program polls", check_here() },
		{ "the QP was created", 0 },
	};
	struct queue *q[SENDERS];
	const unsigned n = senders_of(c, q);
	uint32_t posted = 0, qpn = 0, here;
	bool signaled = n == UINT_MAX;

	for (unsigned i = 0; i < n && n != UINT_MAX; i++) {
		pthread_mutex_lock(&q[i]->lock);
		signaled |= q[i]->signaled || q[i]->lost;
		here = q[i]->tail - q[i]->head;
		if (here && !posted) {
			qpn = q[i]->qpn;
			sides[0].stack =
				queue_entry(q[i], q[i]->tail - 1)->stack;
			sides[2].stack = q[i]->made;
			posted = here;
		}
		pthread_mutex_unlock(&q[i]->lock);
		queue_put(q[i]);
	}
	if (signaled || !posted)
		return;
	c->idle_said = true;
	check_report(CHECK_UNSIGNALED, qpn, sides, 3,
		     "QP 0x%06x: its send CQ is polled, and has no completion: "
		     "%u work request%s posted, none with IBV_SEND_SIGNALED, "
		     "and sq_sig_all is 0",
		     qpn, posted, posted == 1 ? " is" : "s are");
}

/* A poll that found nothing. */
static void note_idle(struct check_cq *c)
{
	uint64_t now, mark;

	if (atomic_exchange(&polled_last, c) != c)
		atomic_fetch_add(&activity, 1);
	if (c->idle_said)
		return;
	now = clock_coarse_ns();
	mark = atomic_load(&activity);
	if (c->idle_mark != mark) {
		c->idle_mark = mark;
		c->idle_since = now;
	} else if (now - c->idle_since > IDLE_NS) {
		c->idle_since = now;
		polls_in_vain(c);
	}
}

int check_poll(struct ibv_cq *ib, int n, struct ibv_wc *wc,
	       int (*poll)(struct ibv_cq *cq, int n, struct ibv_wc *wc))
{
	struct check_cq *c = check_cq_get(ib);
	bool more = false;
	int got;

	if (!c)
		return poll(ib, n, wc);
	pthread_mutex_lock(&c->lock);
	got = poll(ib, n, wc);
	if (!got)
		note_idle(c);
	else
		atomic_fetch_add(&activity, 1);
	for (int i = 0; i < got; i++)
		more |= shows_more(&wc[i]);
	if (more)
		compare_all();
	for (int i = 0; i < got; i++)
		queue_polled(c, &wc[i]);
	pthread_mutex_unlock(&c->lock);
	check_cq_put(c);
	return got;
}

void check_polled(struct ibv_cq *ib, const struct ibv_wc *wc)
{
	struct check_cq *c = check_cq_get(ib);

	if (shows_more(wc))
		compare_all();
	if (c)
		queue_polled(c, wc);
	check_cq_put(c);
}

/* ---- the end ----------------------------------------------------------- */

void check_qp_void(struct ibv_qp *ib, bool known)
{
	struct queue *q = queue_get(ib->qp_num);

	if (!q)
		return;
	pthread_mutex_lock(&q->lock);
	forget_all(q);
	check_sinks_end(q->qpn);
	q->lost = !known;
	q->said = q->met = false;
	q->there.generation = 0;
	pthread_mutex_unlock(&q->lock);
	queue_put(q);
}

void check_qp_connected(struct ibv_qp *ib)
{
	struct queue *q = queue_get(ib->qp_num);

	if (!q)
		return;
	pthread_mutex_lock(&q->lock);
	atomic_store(&q->connected, check_here());
	q->met = false;
	q->there.generation = 0;
	pthread_mutex_unlock(&q->lock);
	queue_put(q);
}

void check_qp_gone(struct ibv_qp *ib)
{
	struct queue **p, *q;

	check_qp_void(ib, false);
	check_writes_end(ib->qp_num);
	pthread_mutex_lock(&lock);
	p = queue_bucket(ib->qp_num);
	q = *p;
	if (q)
		*p = q->next;
	pthread_mutex_unlock(&lock);
	queue_put(q);
}

/*
 * races.c - peers that change the same memory of this process, or a peer and
 * the program, without an order between them
 *
 * The last changes are remembered, each with when it was made: just before its
 * last bytes were stored, so no process can have known of it earlier. One that
 * comes later from another queue pair and was posted before that does not
 * depend on it; nor does the earlier depend on the later, which had not been
 * carried out. So nothing orders the two, and if the later has other content
 * the outcome depends on timing. When a request was posted its process shows
 * (qp/public.h), as the last time that it posted anything; of others, which
 * show nothing, it is taken for posted when its first packet comes.
 *
 * A request that was posted may wait for what the program here has to do before
 * it can be carried out: post a receive for a message before it, or connect the
 * queue pair. Therefore it counts as posted no earlier than that.
 *
 * A message of several packets is a change that goes on. Its first bytes are
 * summed as they are stored, and again when its last packet comes: if nobody
 * else has changed them whose changes pass here, the processor has.
 */
#include "check_internal.h"

#include "base/bytes.h"
#include "base/hash64.h"
#include "os/config.h"
#include "os/guard.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ACCESSES 1024u /* that are remembered; a power of two */
#define BUCKETS 256u

struct access {
	uint32_t qpn; /* of this end */
	enum check_change_kind kind;
	bool open; /* more of it is to come */
	uint64_t lo, hi; /* what has been stored */
	uint64_t at; /* when, at the earliest, the last of it */
	struct check_peer peer;
};

/* A queue pair whose peer changes memory, or may have to wait. */
struct writer {
	struct writer *next;
	uint32_t qpn;
	uint64_t allowed; /* from when on nothing of it waited */
	struct check_peer peer; /* posted: of no meaning */
	bool known;
	/* The message, or the last one. */
	uint64_t access; /* its number */
	uint64_t begun; /* when its first packet came */
	uint64_t sum, landed;
	uint32_t summed; /* bytes; */
	bool sums; /* they are all from the first on */
};

/* Innermost but for a segment's and reports'; held while memory is changed. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct writer *writers[BUCKETS];
static struct access accesses[ACCESSES];
static uint64_t naccesses;

void check_races_forked(void)
{
	pthread_mutex_init(&lock, NULL);
	memset(writers, 0, sizeof(writers));
	naccesses = 0;
}

static struct writer **writer_bucket(uint32_t qpn)
{
	struct writer **p = &writers[hash64(qpn) % BUCKETS];

	while (*p && (*p)->qpn != qpn)
		p = &(*p)->next;
	return p;
}

/* NULL: no memory. */
static struct writer *writer_get(uint32_t qpn)
{
	struct writer **p = writer_bucket(qpn);

	if (!*p)
		*p = calloc(1, sizeof(**p));
	if (*p)
		(*p)->qpn = qpn;
	return *p;
}

static struct access *access_at(uint64_t i)
{
	return &accesses[i % ACCESSES];
}

/* The writer's message, unless it has been forgotten or has ended. */
static struct access *open_access(const struct writer *w)
{
	struct access *a = access_at(w->access);

	return naccesses - w->access <= ACCESSES && a->qpn == w->qpn &&
			       a->open ?
		       a :
		       NULL;
}

void check_allowed(uint32_t qpn)
{
	struct writer *w;

	pthread_mutex_lock(&lock);
	w = writer_get(qpn);
	if (w)
		w->allowed = clock_ns();
	pthread_mutex_unlock(&lock);
}

void check_writes_end(uint32_t qpn)
{
	struct writer **p, *w;

	pthread_mutex_lock(&lock);
	p = writer_bucket(qpn);
	w = *p;
	if (w) {
		struct access *a = open_access(w);

		if (a)
			a->open = false;
		*p = w->next;
		free(w);
	}
	pthread_mutex_unlock(&lock);
}

/* ---- two peers --------------------------------------------------------- */

struct differ {
	const void *data;
	size_t len;
	const void *p;
	bool differs;
};

static void compare_change(void *arg)
{
	struct differ *d = arg;

	d->differs = memcmp(d->p, d->data, d->len) != 0;
}

/* Whether a change makes a difference in [lo, hi), which is part of it. */
static bool change_differs(const struct check_change *c, uint64_t lo,
			   uint64_t hi)
{
	struct differ d = {
		.len = hi - lo,
		.p = (const void *)(uintptr_t)lo,
	};

	if (c->kind == CHECK_ADD)
		return true;
	if (!c->data)
		return false;
	d.data = (const uint8_t *)c->data + (lo - c->addr);
	return !guard_run(compare_change, &d, d.p, d.len) && d.differs;
}

/* A swap that fails changes nothing, and programs let a lock go by a write. */
static bool kinds_conflict(enum check_change_kind a, enum check_change_kind b)
{
	return a != CHECK_SWAP && b != CHECK_SWAP &&
	       (a == CHECK_WRITE || b == CHECK_WRITE);
}

static const char *name_of(enum check_change_kind kind)
{
	return kind == CHECK_WRITE ? "a write" : "an atomic";
}

/* As far as it is known: nothing of iWARP's, which has no number here. */
struct peer_text {
	char text[64];
};

static const char *peer_str(const struct check_peer *peer, struct peer_text *t)
{
	int n = 0;

	if (peer->qpn)
		n = snprintf(t->text, sizeof(t->text), ", QP 0x%06x",
			     peer->qpn);
	if (peer->pid)
		snprintf(t->text + n, sizeof(t->text) - (size_t)n,
			 " of process %d", peer->pid);
	else if (!n)
		t->text[0] = '\0';
	return t->text;
}

static void report_race(const struct writer *w, enum check_change_kind kind,
			const struct access *a, uint64_t lo, uint64_t hi)
{
	const struct check_side sides[] = {
		{ "the QP of the later one was connected",
		  check_connected(w->qpn) },
		{ "the QP of the earlier one was connected",
		  check_connected(a->qpn) },
	};
	struct peer_text later, earlier;

	check_report(CHECK_RACE, w->qpn, sides, 2,
		     "QP 0x%06x: %s by its peer%s, changed [0x%llx, +%llu) "
		     "after %s by the peer of QP 0x%06x%s, but had been posted "
		     "before that was done: nothing orders them, and the "
		     "result depends on timing",
		     w->qpn, name_of(kind), peer_str(&w->peer, &later),
		     (unsigned long long)lo, (unsigned long long)(hi - lo),
		     name_of(a->kind), a->qpn, peer_str(&a->peer, &earlier));
}

/* When it was posted, at the latest. */
static uint64_t posted_ns(struct writer *w, struct ibv_qp *ib, uint64_t now)
{
	struct check_peer peer = { 0 };

	check_env.peer(ib, &peer);
	return max_u64(w->allowed, peer.posted && peer.posted <= now ?
					   peer.posted :
					   w->begun);
}

static void find_race(struct writer *w, struct ibv_qp *ib,
		      const struct check_change *c, uint64_t now)
{
	const uint64_t n = min_u64(naccesses, ACCESSES);
	uint64_t since = 0;

	for (uint64_t i = naccesses; i != naccesses - n; i--) {
		const struct access *a = access_at(i - 1);
		const uint64_t lo = max_u64(a->lo, c->addr);
		const uint64_t hi = min_u64(a->hi, c->addr + c->len);

		if (lo >= hi || a->qpn == w->qpn ||
		    !kinds_conflict(a->kind, c->kind))
			continue;
		if (!since)
			since = posted_ns(w, ib, now);
		if ((a->open || a->at > since) && change_differs(c, lo, hi)) {
			report_race(w, c->kind, a, lo, hi);
			return;
		}
	}
}

/* ---- a peer and the processor ------------------------------------------ */

struct sum {
	const uint8_t *p;
	uint32_t from, len; /* of the message; multiples of 8 */
	uint64_t sum;
};

static void add_up(void *arg)
{
	struct sum *s = arg;
	uint64_t word;

	for (uint32_t i = 0; i < s->len; i += 8) {
		memcpy(&word, s->p + i, 8);
		s->sum += hash64(word + (s->from + i) * HASH64_STEP);
	}
}

/* What is about to be stored, behind what has been. */
static void sum_up(struct writer *w, const struct check_change *c)
{
	struct sum s = {
		.p = c->data,
		.from = w->summed,
		.len = (uint32_t)min_u64(c->len, CHECK_BYTES - w->summed),
	};

	w->sums &= c->data && !(c->len & 7);
	if (!w->sums)
		return;
	add_up(&s);
	w->sum += s.sum;
	w->summed += s.len;
}

/* Whether it may have been somebody else who changed it. */
static bool others_changed(const struct writer *w, const struct access *own)
{
	if (naccesses - w->access > ACCESSES ||
	    check_landed(own->lo, own->hi - own->lo, w->landed))
		return true;
	for (uint64_t i = 0; i < min_u64(naccesses, ACCESSES); i++) {
		const struct access *a = &accesses[i];

		if (a != own && a->lo < own->hi && own->lo < a->hi &&
		    (a->open || a->at >= w->begun))
			return true;
	}
	return false;
}

/* The message's last packet is here, and the others are in place. */
static void find_touched(const struct writer *w, const struct access *a)
{
	struct sum s = { .p = (const void *)(uintptr_t)a->lo,
			 .len = w->summed };
	const struct check_side side = { "the QP was connected",
					 check_connected(w->qpn) };
	struct peer_text peer;

	if (!w->sums || !w->summed || guard_run(add_up, &s, s.p, s.len) ||
	    s.sum == w->sum || others_changed(w, a))
		return;
	check_report(
		CHECK_RACE_CPU, w->qpn, &side, 1,
		"QP 0x%06x: a write by its peer%s, is being stored from "
		"[0x%llx, +%llu) on, and the processor has changed some of "
		"that meanwhile: which content remains depends on timing",
		w->qpn, peer_str(&w->peer, &peer), (unsigned long long)a->lo,
		(unsigned long long)(a->hi - a->lo));
}

/* ---- changes ----------------------------------------------------------- */

static struct access *access_begin(struct writer *w,
				   const struct check_change *c, uint64_t now)
{
	struct access *a = open_access(w);

	if (a)
		a->open = false; /* UC: it was given up */
	w->access = naccesses++;
	w->begun = now;
	w->sum = w->summed = 0;
	w->sums = c->first;
	w->landed = check_landings();
	a = access_at(w->access);
	*a = (struct access){
		.qpn = w->qpn,
		.kind = c->kind,
		.lo = c->addr,
		.hi = c->addr,
		.peer = w->peer,
	};
	return a;
}

static struct {
	struct access *access;
	struct access next; /* what it is once it is done */
} change; /* that is being made */

void check_changing(struct ibv_qp *ib, const struct check_change *c)
{
	const uint64_t now = clock_ns();
	struct access *a;
	struct writer *w;

	pthread_mutex_lock(&lock);
	change.access = NULL;
	w = writer_get(ib->qp_num);
	if (!w)
		return;
	if (!w->known)
		check_env.peer(ib, &w->peer);
	w->known = true;
	a = c->first ? NULL : open_access(w);
	if (!a || a->hi != c->addr)
		a = access_begin(w, c, now);
	find_race(w, ib, c, now);
	if (c->last)
		find_touched(w, a);
	else
		sum_up(w, c);
	change.access = a;
	change.next = *a;
	change.next.hi = c->addr + c->len;
	change.next.at = now;
	/* Who does not acknowledge may give a message up without a word. */
	change.next.open = !c->last && ib->qp_type != IBV_QPT_UC;
}

void check_changed(bool done)
{
	if (done && change.access)
		*change.access = change.next;
	pthread_mutex_unlock(&lock);
}

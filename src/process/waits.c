/*
 * waits.c - what this process waits for, in sentences (waits.h)
 */
#include "waits.h"

#include "base/bytes.h"
#include "base/sys.h"
#include "connect/gsi.h"
#include "os/threads.h"
#include "verbs/verbs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHANNELS 256 /* that are told from other descriptors */
#define THREADS 64 /* that are looked at */

/* The CQs of a completion channel. */
struct channel {
	int fd;
	uint32_t cqs, armed;
	uint32_t full; /* armed when they had completions, so no event comes */
	uint32_t unpolled; /* completions of those that are not armed */
};

struct looker {
	struct engine *e;
	struct lines *out;
	uint64_t now;
	char process[32]; /* its name */
	size_t nchannels;
	struct channel channel[CHANNELS];
	unsigned locked;
};

/* Channels */

static struct channel *channel_of(struct looker *l, int fd, bool make)
{
	size_t i = 0;

	while (i < l->nchannels && l->channel[i].fd != fd)
		i++;
	if (i == l->nchannels) {
		if (!make || i == CHANNELS)
			return NULL;
		l->channel[l->nchannels++] = (struct channel){ .fd = fd };
	}
	return &l->channel[i];
}

/* The lock of the live objects is held. */
static void add_cq(void *object, void *arg)
{
	const struct shca_cq *cq = to_cq(object);
	const uint32_t n =
		atomic_load_explicit(&cq->tail, memory_order_relaxed) -
		atomic_load_explicit(&cq->head, memory_order_relaxed);
	const bool armed =
		atomic_load_explicit(&cq->armed, memory_order_relaxed) !=
		SHCA_UNARMED;
	struct channel *ch;

	if (!cq->ex.channel)
		return;
	ch = channel_of(arg, cq->ex.channel->fd, true);
	if (!ch)
		return;
	ch->cqs++;
	ch->armed += armed;
	if (armed)
		ch->full += n > 0;
	else
		ch->unpolled += n;
}

static void channel_says(const struct channel *ch, char *text, size_t size)
{
	char rest[160] = "";

	if (!ch->armed)
		snprintf(rest, sizeof(rest),
			 ": none is armed, so no event comes: call "
			 "ibv_req_notify_cq() first%s",
			 ch->unpolled ? ", and poll: there are completions" :
					"");
	else if (ch->full)
		snprintf(rest, sizeof(rest),
			 ": %u of them had completions when armed, which raise "
			 "no event: after ibv_req_notify_cq() poll once more",
			 ch->full);
	snprintf(text, size,
		 "an event of a CQ (ibv_get_cq_event, descriptor %d), %u of %u "
		 "CQ%s there armed%s",
		 ch->fd, ch->armed, ch->cqs, ch->cqs > 1 ? "s" : "", rest);
}

/* Descriptors */

static bool is_async(struct looker *l, int fd)
{
	struct shca_process *p = to_process(l->e);
	bool is = false;

	pthread_mutex_lock(&p->contexts.lock);
	for (struct shca_context *ctx = p->contexts.first; ctx && !is;
	     ctx = ctx->next)
		is = ctx->v.context.async_fd == fd;
	pthread_mutex_unlock(&p->contexts.lock);
	return is;
}

/* Of a link: the thread is in a call of ours, and receives meanwhile. */
static bool is_link(const struct looker *l, int fd)
{
	for (unsigned i = 0; i < l->e->nlinks; i++)
		if (l->e->link[i]->ops->fd(l->e->link[i]) == fd)
			return true;
	return false;
}

/* For thread_says(): what comes by a descriptor. */
static bool fd_text(void *arg, int fd, char *text, size_t size)
{
	struct looker *l = arg;
	const struct channel *ch = channel_of(l, fd, false);

	if (is_link(l, fd))
		return false;
	if (ch)
		channel_says(ch, text, size);
	else if (gsi_is_channel(l->e, fd))
		snprintf(text, size,
			 "an event of rdma_cm (rdma_get_cm_event, descriptor "
			 "%d)",
			 fd);
	else if (is_async(l, fd))
		snprintf(text, size,
			 "an asynchronous event (ibv_get_async_event, "
			 "descriptor %d)",
			 fd);
	else
		thread_fd_text(0, fd, text, size);
	return true;
}

/* Threads */

static bool is_ours(const struct thread_does *t)
{
	return !strcmp(t->name, "softhca") || !strcmp(t->name, "softhca-check");
}

/* How CPU clocks have their thread's number: clock_gettime(2). */
static bool polls(const struct looker *l, const struct thread_does *t)
{
	const clockid_t id = atomic_load(&l->e->poller_clock);

	return id && (pid_t) ~(id >> 3) == t->tid;
}

static void say_thread(struct looker *l, const struct thread_does *t,
		       const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
static void say_thread(struct looker *l, const struct thread_does *t,
		       const char *fmt, ...)
{
	const bool named = strcmp(t->name, l->process) != 0;
	char text[900];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	lines_add(l->out, "thread %d%s%s%s %s", (int)t->tid, named ? " (" : "",
		  named ? t->name : "", named ? ")" : "", text);
}

static void look_at_thread(void *arg, const struct thread_does *t)
{
	struct looker *l = arg;
	struct shca_ack_wait ack;
	char text[800] = "";

	if (is_ours(t))
		return;
	if (shca_ack_wait_of(t->tid, &ack)) {
		say_thread(l, t,
			   "is in %s, for %.1f s: it waits until %u event%s "
			   "fetched before %s acknowledged, by %s",
			   ack.call, (double)(l->now - ack.since_ns) / 1e9,
			   ack.missing, ack.missing > 1 ? "s" : "",
			   ack.missing > 1 ? "are" : "is", ack.ack);
		return;
	}
	/* A program that polls sleeps in a call of ours for moments (spin.h). */
	if (t->call == THREAD_LOCKS)
		l->locked++;
	else if (thread_says(t, fd_text, l, text, sizeof(text)))
		say_thread(l, t, "%s", text);
	else
		say_thread(l, t, "%s",
			   polls(l, t) ? "polls, and its CQ is empty "
					 "(ibv_poll_cq)" :
			   t->call == THREAD_RUNS ? "runs" :
						    "sleeps");
}

void shca_waits(struct engine *e, struct lines *out, uint64_t now)
{
	struct looker *l = calloc(1, sizeof(*l));
	unsigned more;

	if (!l)
		return;
	l->e = e;
	l->out = out;
	l->now = now;
	stat_process_name(getpid(), l->process);
	shca_live_each(e, SHCA_CQ, add_cq, l);
	more = threads_each(0, THREADS, look_at_thread, l);
	if (more)
		lines_add(out, "there are %u more threads", more);
	if (l->locked)
		lines_add(out,
			  "%u thread%s wait%s for another thread (futex: "
			  "pthread_mutex_lock, pthread_cond_wait, "
			  "pthread_join)",
			  l->locked, l->locked > 1 ? "s" : "",
			  l->locked > 1 ? "" : "s");
	gsi_waits(e, out, now);
	free(l);
}

/* Receives */

/* How many SRQs have receives, and how many. */
struct srqs {
	uint32_t n, posted;
};

static void add_srq(void *object, void *arg)
{
	struct shca_srq *srq = to_srq(object);
	struct srqs *s = arg;
	const uint32_t n = qp_rq_count(&srq->rq);

	s->n += n > 0;
	s->posted += n;
}

static bool lacks(const struct stat_qp *q, const struct waits_receives *r)
{
	return q->n[STAT_NO_RECEIVE] && !r->posted &&
	       (q->state == IBV_QPS_RTR || q->state == IBV_QPS_RTS);
}

/* Another QP with receives for which nothing has come; NULL: none. */
static const struct stat_qp *other_qp(const struct stat_qp *q,
				      const struct stat_qp *qp,
				      const struct waits_receives *r,
				      uint32_t n, uint32_t *posted)
{
	for (uint32_t i = 0; i < n; i++) {
		if (&qp[i] == q || qp[i].type != q->type || r[i].srq ||
		    !r[i].posted || qp[i].n[STAT_RX_PACKETS])
			continue;
		*posted = r[i].posted;
		return &qp[i];
	}
	return NULL;
}

__attribute__((format(printf, 2, 3))) static void add(struct stat_qp *q,
						      const char *fmt, ...)
{
	const size_t len = strlen(q->waits);
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(q->waits + len, sizeof(q->waits) - len, fmt, ap);
	va_end(ap);
}

void shca_waits_receives(struct engine *e, struct stat_qp *qp,
			 const struct waits_receives *r, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		const struct stat_qp *other;
		struct srqs srqs = { 0 };
		uint32_t posted;

		if (!lacks(&qp[i], &r[i]))
			continue;
		if (r[i].srq)
			add(&qp[i],
			    "; its SRQ has no receive posted, and messages "
			    "have found none %llu times",
			    (unsigned long long)qp[i].n[STAT_NO_RECEIVE]);
		other = other_qp(&qp[i], qp, r, n, &posted);
		if (!r[i].srq)
			shca_live_each(e, SHCA_SRQ, add_srq, &srqs);
		if (other)
			add(&qp[i],
			    "; QP 0x%06x has %u posted, and nothing has come "
			    "there: are they on the wrong QP?",
			    other->qpn, posted);
		else if (srqs.posted)
			add(&qp[i],
			    "; %u are posted to an SRQ, with which this QP was "
			    "not created",
			    srqs.posted);
	}
}

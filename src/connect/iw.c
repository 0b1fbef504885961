/*
 * iw.c - connections of iWARP (iw.h)
 *
 * One file, though a long one: a connection passes through all of its phases
 * here, under one lock, and listeners and initiators share its queue of turns,
 * its timers and its end.
 */
#include "iw.h"

#include "gsi.h"

#include "base/bytes.h"
#include "base/fd_high.h"
#include "base/gid.h"
#include "base/hash64.h"
#include "base/say.h"
#include "base/sys.h"
#include "base/why.h"
#include "link/sock.h"
#include "rnic/qp_iwarp.h"
#include "rnic/record_iwarp.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>

#define ACCEPTS 16 /* in one look at a listener */
#define AGAIN_NS 10000000u /* for a listener or request that has to wait */
/*
 * Where nobody listens yet: so often it is tried again. Programs (qperf) tell their
 * peer the port of an identifier that is bound, and listen then.
 */
#define REFUSED_TRIES 10
#define REFUSED_NS 20000000u
/*
 * Connections without a request, of all listeners: at most so many, and at most
 * that part of the descriptors that the process may have, since the program
 * needs some, too. While there is room one source may have all of it. Where
 * there is none, those that have been silent for long make it, of the source
 * that has the most: who connects in earnest sends a request at once. A source
 * with more than half of the room need not have been silent for long, so that a
 * flood from there does not fill the listener's queue either. A part of the
 * room is made at a time.
 */
#define HALF_OPEN_MAX 4096u
#define HALF_OPEN_PART 4u
#define SILENT_NS 1000000000u
#define SILENT_MANY_NS 100000000u
#define ROOM_PART 8u

enum phase {
	IW_CONNECTING, /* TCP's SYN is out */
	IW_REPLY, /* our request is out */
	IW_REQUEST, /* the peer's request is to come */
	IW_WAITING, /* it has, and the user has no room for it */
	IW_ASKED, /* it is the user's to answer */
	IW_QP, /* the QP's: what follows is under its lock */
	IW_LINGER, /* our FIN or rejection is out, and there is no QP */
	IW_CLOSED,
};

/* What a user has not heard yet. */
enum { NEWS_ESTABLISHED = 1, NEWS_ENDED = 2, NEWS_CLOSED = 4, NEWS_QUEUED = 8 };

/* Connections that have their turns. */
struct queue {
	struct shca_iw *first, *last;
};

struct shca_iw {
	struct shca_conn conn; /* first */
	struct engine *e;
	struct shca_iw *next, **link; /* those of the process */
	_Atomic unsigned refs; /* the list, the user, qp->conn, news */
	_Atomic int phase; /* enum phase */
	_Atomic uint64_t due;
	void *user; /* of the connection, or of the listener */
	bool owned; /* by the user: shca_iw_close() is to come */
	bool opening; /* IW_QP: the peer's first message is to come */
	struct shca_iw_listener *listener; /* in IW_REQUEST and IW_WAITING */
	uint16_t *source; /* in IW_REQUEST: the silent of its source */
	struct shca_qp *qp; /* with a reference, as long as this exists */
	struct sockaddr_storage local;
	uint8_t tos, refused; /* so often */
	bool waits; /* IW_CONNECTING: no SYN has been sent, it is others' turn */
	struct iwarp_setup setup;
	/* Where it has its turn, in IW_CONNECTING and IW_WAITING. */
	struct queue *queue;
	struct shca_iw *ahead, *behind;
	uint64_t since; /* it connects, or is IW_WAITING */
	uint16_t out_len; /* our frame, until TCP has connected */
	uint8_t out[MPA_FRAME_MAX];

	struct shca_iw *news_next;
	_Atomic unsigned news;
};

/* Places in which the sources of connections are counted. */
#define SOURCES 1024

/* Under the connection manager's lock. */
struct iwcm {
	struct engine *e;
	struct shca_iw *iws, **iws_end; /* oldest first; the end unless empty */
	/* Those of them to which TCP is to connect, in the order of the calls. */
	struct queue connecting;
	struct shca_iw_listener *listeners;
	unsigned half_open; /* of iws have yet to bring a request */
	/* Of these, those that have said nothing, by where they come from. */
	uint16_t sources[SOURCES];
	struct shca_iw *_Atomic news; /* that the user has not heard of */
	struct engine_alarm news_alarm, alarm;
	int (*event)(const struct shca_iw_event *ev);
};

struct shca_iw_listener {
	struct stream stream; /* first */
	struct engine *e;
	struct queue waiting; /* IW_WAITING: the first asks for all */
	struct shca_iw_listener *next, **link;
	void *user;
	uint64_t paused_until; /* 0: it accepts */
	bool gone;
};

static struct shca_iw *to_iw(struct stream *s)
{
	return container_of(s, struct shca_iw, conn.stream);
}

static struct shca_iw_listener *to_listener(struct stream *s)
{
	return container_of(s, struct shca_iw_listener, stream);
}

static struct iwcm *to_iwcm(struct engine *e)
{
	return to_process(e)->iwcm;
}

static void due_by(struct engine *e, uint64_t due)
{
	engine_alarm_by(e, &to_iwcm(e)->alarm, due);
}

static void iw_until(struct shca_iw *iw, uint64_t due)
{
	atomic_store(&iw->due, due);
	if (due != UINT64_MAX)
		due_by(iw->e, due);
}

/* ---- lifetime ---------------------------------------------------------- */

static void iw_get(struct shca_iw *iw)
{
	atomic_fetch_add(&iw->refs, 1);
}

static void iw_put(struct shca_iw *iw)
{
	if (atomic_fetch_sub(&iw->refs, 1) == 1)
		stream_give(&iw->conn.stream);
}

static void iw_free(struct stream *s)
{
	struct shca_iw *iw = to_iw(s);

	if (iw->qp)
		engine_qp_put(&iw->qp->sched);
	free(iw);
}

/* It is not silent any more. */
static void iw_heard(struct shca_iw *iw)
{
	if (iw->source)
		--*iw->source;
	iw->source = NULL;
}

static void iw_unlist(struct shca_iw *iw)
{
	struct iwcm *m = to_iwcm(iw->e);

	if (!iw->link)
		return;
	*iw->link = iw->next;
	if (iw->next)
		iw->next->link = iw->link;
	else
		m->iws_end = iw->link;
	iw->link = NULL;
	iw_heard(iw);
	if (iw->listener)
		m->half_open--;
	iw->listener = NULL;
	iw_put(iw);
}

/* ---- turns ------------------------------------------------------------- */

static void turns_add(struct queue *q, struct shca_iw *iw)
{
	iw->queue = q;
	iw->ahead = q->last;
	iw->behind = NULL;
	*(q->last ? &q->last->behind : &q->first) = iw;
	q->last = iw;
}

static bool same_peer(const struct shca_iw *a, const struct shca_iw *b)
{
	/* What follows is the program's, and may be anything. */
	const size_t len = a->conn.peer.ss_family == AF_INET ?
				   offsetof(struct sockaddr_in, sin_zero) :
				   sizeof(struct sockaddr_in6);

	return !memcmp(&a->conn.peer, &b->conn.peer, len);
}

/* The nearest one ahead of it, or behind it, that connects to the same address. */
static struct shca_iw *peer_ahead(const struct shca_iw *iw)
{
	struct shca_iw *a = iw->ahead;

	while (a && !same_peer(a, iw))
		a = a->ahead;
	return a;
}

static struct shca_iw *peer_behind(const struct shca_iw *iw)
{
	struct shca_iw *b = iw->behind;

	while (b && !same_peer(b, iw))
		b = b->behind;
	return b;
}

/* It no longer holds up others. Whose turn is it now? NULL: nobody's. */
static struct shca_iw *turns_leave(struct shca_iw *iw)
{
	struct queue *q = iw->queue;
	struct shca_iw *next = NULL;

	if (!q)
		return NULL;
	/* One that waits itself leaves no turn behind. */
	if (iw->setup.initiator && !iw->waits)
		next = peer_behind(iw);
	*(iw->ahead ? &iw->ahead->behind : &q->first) = iw->behind;
	*(iw->behind ? &iw->behind->ahead : &q->last) = iw->ahead;
	iw->queue = NULL;
	if (!iw->setup.initiator)
		return q->first;
	return next && next->waits ? next : NULL;
}

/* The same, where that one may not be called from here: the alarm does. */
static void pass_on(struct shca_iw *iw)
{
	struct shca_iw *next = turns_leave(iw);

	if (next)
		iw_until(next, 1);
}

static int iw_ready(struct stream *s, uint32_t events, uint8_t *buffer);

static const struct shca_conn_ops conn_ops;
static const struct stream_ops ops = { .ready = iw_ready, .free = iw_free };

static struct shca_iw *iw_new(struct engine *e, enum phase phase,
			      bool initiator)
{
	struct iwcm *m = to_iwcm(e);
	struct shca_iw *iw = calloc(1, sizeof(*iw));

	if (!iw)
		return NULL;
	iw->e = e;
	iw->conn.stream.ops = &ops;
	iw->conn.ops = &conn_ops;
	iw->conn.stream.streams = e->streams;
	iw->conn.stream.fd = -1;
	atomic_store(&iw->refs, 1);
	atomic_store(&iw->phase, phase);
	atomic_store(&iw->due, UINT64_MAX);
	iwarp_setup_init(&iw->setup, initiator);
	iw->link = m->iws ? m->iws_end : &m->iws;
	*iw->link = iw;
	m->iws_end = &iw->next;
	return iw;
}

/* The end of one that no QP has. */
static void iw_end(struct shca_iw *iw, bool reset)
{
	stream_close(&iw->conn.stream, reset);
	atomic_store(&iw->phase, IW_CLOSED);
	atomic_store(&iw->due, UINT64_MAX);
	pass_on(iw);
	iw_unlist(iw);
}

/* ---- what the user hears ----------------------------------------------- */

static int user_tell(struct shca_iw *iw, enum shca_iw_event_type type,
		     int status)
{
	struct iwcm *m = to_iwcm(iw->e);
	struct shca_iw_event ev = {
		.type = type,
		.iw = iw,
		.user = iw->user,
		.status = status,
		.local = &iw->local,
		.peer = &iw->conn.peer,
	};

	if (!iw->user || !m->event)
		return -ENOENT;
	ev.data = iwarp_setup_private(&iw->setup, &ev.len);
	iwarp_setup_asked(&iw->setup, QP_MAX_RD_ATOMIC, &ev.ird, &ev.ord);
	return m->event(&ev);
}

/* A QP's lock may be held: the alarm tells the user. */
static void news_add(struct shca_iw *iw, unsigned what)
{
	struct iwcm *m = to_iwcm(iw->e);

	if (atomic_fetch_or(&iw->news, what | NEWS_QUEUED) & NEWS_QUEUED)
		return;
	iw_get(iw);
	iw->news_next = atomic_load(&m->news);
	while (!atomic_compare_exchange_weak(&m->news, &iw->news_next, iw))
		;
	engine_alarm_by(iw->e, &m->news_alarm, 1);
}

static void conn_established(struct shca_conn *c)
{
	struct shca_iw *iw = to_iw(&c->stream);

	iw->opening = false;
	iw_until(iw, UINT64_MAX);
	news_add(iw, NEWS_ESTABLISHED);
}

static void conn_ended(struct shca_conn *c)
{
	struct shca_iw *iw = to_iw(&c->stream);

	iw->opening = false;
	news_add(iw, NEWS_ENDED);
}

static void conn_until(struct shca_conn *c, uint64_t due)
{
	iw_until(to_iw(&c->stream), due);
}

static void conn_leave(struct shca_conn *c, bool linger)
{
	struct shca_iw *iw = to_iw(&c->stream);

	if (linger) {
		stream_want(&c->stream, EPOLLIN);
		atomic_store(&iw->phase, IW_LINGER);
		iw_until(iw, clock_ns() + SHCA_IW_END_NS);
	} else {
		stream_close(&c->stream, false);
		atomic_store(&iw->phase, IW_CLOSED);
		atomic_store(&iw->due, UINT64_MAX);
		news_add(iw, NEWS_CLOSED);
	}
	iw_put(iw);
}

static const struct shca_conn_ops conn_ops = {
	.established = conn_established,
	.ended = conn_ended,
	.until = conn_until,
	.leave = conn_leave,
};

static void news_tell(struct iwcm *m)
{
	struct shca_iw *iw = atomic_exchange(&m->news, NULL), *next;

	for (; iw; iw = next) {
		unsigned what;

		next = iw->news_next;
		what = atomic_exchange(&iw->news, 0);
		if (what & NEWS_ESTABLISHED)
			user_tell(iw, SHCA_IW_ESTABLISHED, 0);
		if (what & NEWS_ENDED)
			user_tell(iw, SHCA_IW_ENDED, 0);
		if (what & NEWS_CLOSED)
			iw_unlist(iw);
		iw_put(iw);
	}
}

static void iw_failed(struct shca_iw *iw, int status)
{
	struct engine *e = iw->e;

	if (e->cfg->explain && iw->setup.error &&
	    iw->setup.error != IWARP_SETUP_REJECTED)
		say("iWARP: %s", iwarp_setup_error_str(iw->setup.error));
	iw_get(iw);
	iw_end(iw, true);
	if (iw->owned)
		user_tell(iw, SHCA_IW_FAILED, status);
	iw_put(iw);
}

/* ---- what is recorded -------------------------------------------------- */

static void record_ends(const struct shca_iw *iw, struct shca_record_end *ours,
			struct shca_record_end *peers)
{
	ours->port = sock_gid(&iw->local, &ours->addr);
	peers->port = sock_gid(&iw->conn.peer, &peers->addr);
}

static void record_connected(const struct shca_iw *iw)
{
	struct shca_record_end ours, peers;

	record_ends(iw, &ours, &peers);
	shca_record_connected(shca_qpn(iw->qp), &ours, &peers);
}

static void record_frame(const struct shca_iw *iw, enum trace_type type,
			 enum trace_mpa frame)
{
	struct shca_record_end ours, peers;

	record_ends(iw, &ours, &peers);
	shca_record_frame(type, frame, &ours, &peers, iw->setup.initiator);
}

/* ---- setting up -------------------------------------------------------- */

static uint32_t fpdu_max(const struct shca_iw *iw, const struct iwarp_agreed *a)
{
	const uint32_t mss = stream_segment(&iw->conn.stream);

	if (a->tx_large)
		return IWARP_FPDU_MAX;
	return mss < IWARP_FPDU_MIN ? IWARP_FPDU_MIN :
	       mss > IWARP_FPDU_MAX ? IWARP_FPDU_MAX :
				      mss;
}

/*
 * Both frames are known: the QP's from now on. 0: it works; 1: not until the
 * peer's first message has come; -EPROTO: the QP is there to tell the peer what is
 * wrong with its frame. Any other error: there is no QP to have it.
 */
static int iw_hand_over(struct shca_iw *iw)
{
	struct shca_qp *qp = iw->qp;
	struct iwarp_agreed a;
	int err = 0;

	if (iwarp_setup_agreed(&iw->setup, &a) &&
	    iw->setup.error != IWARP_SETUP_IRD &&
	    iw->setup.error != IWARP_SETUP_RTR)
		return -ECONNABORTED;
	shca_qp_lock(qp);
	if (qp->sched.dead || qp->conn) {
		err = -EINVAL;
	} else {
		iw_get(iw); /* qp->conn */
		atomic_store(&iw->due, UINT64_MAX);
		stream_want(&iw->conn.stream, EPOLLIN);
		atomic_store(&iw->phase, IW_QP);
		if (tracing())
			record_connected(iw);
		if (!a.initiator && a.rtr != IWARP_RTR_NONE) {
			iw->opening = true;
			iw_until(iw, clock_ns() + SHCA_IW_REPLY_NS);
		}
		err = shca_iwarp_start(qp, &iw->conn, &a, fpdu_max(iw, &a),
				       iw->setup.error);
		if (err) {
			iw->opening = false;
			atomic_store(&iw->phase,
				     iw->setup.initiator ? IW_REPLY : IW_ASKED);
			iw_put(iw);
		}
	}
	shca_qp_unlock(qp);
	if (err)
		return err;
	if (iw->setup.error)
		return -EPROTO;
	return !a.initiator && a.rtr != IWARP_RTR_NONE;
}

static int send_frame(struct shca_iw *iw, const uint8_t *p, size_t len)
{
	struct iovec iov = { (void *)(uintptr_t)p, len };
	ssize_t n = stream_send(&iw->conn.stream, &iov, 1);

	/* Nothing was sent before, so there is room. */
	if (n < 0)
		return (int)n;
	return (size_t)n == len ? 0 : -EIO;
}

static void connect_again(struct shca_iw *iw);

/* Nobody listens there. Counted for those as well that wait for it, so that they
 * need not find that out one after the other. */
static void iw_refused(struct shca_iw *iw)
{
	iw->refused++;
	for (struct shca_iw *b = iw->queue ? peer_behind(iw) : NULL; b;
	     b = peer_behind(b))
		if (b->waits && b->refused < REFUSED_TRIES)
			b->refused++;
}

static void iw_connected(struct shca_iw *iw)
{
	int err = stream_connected(&iw->conn.stream);
	struct shca_iw *next;

	if (err == -ECONNREFUSED)
		iw_refused(iw);
	if (err == -ECONNREFUSED && iw->refused < REFUSED_TRIES) {
		stream_close(&iw->conn.stream, true);
		iw_until(iw, clock_ns() + REFUSED_NS);
		return;
	}
	if (!err && tracing())
		record_frame(iw, TRACE_CM_OUT, TRACE_MPA_REQUEST);
	if (!err)
		err = send_frame(iw, iw->out, iw->out_len);
	if (err) {
		iw_failed(iw, err);
		return;
	}
	atomic_store(&iw->phase, IW_REPLY);
	stream_want(&iw->conn.stream, EPOLLIN);
	iw_until(iw, clock_ns() + SHCA_IW_REPLY_NS);
	next = turns_leave(iw);
	if (next)
		connect_again(next);
}

/* Bytes of the peer's frame, and no more. As iwarp_setup_rx(). */
static int read_frame(struct shca_iw *iw)
{
	uint8_t buf[MPA_FRAME_MAX];
	struct iovec iov = { .iov_base = buf };
	int err = -EAGAIN;
	ssize_t n;

	while (err == -EAGAIN &&
	       (iov.iov_len = iwarp_setup_want(&iw->setup)) > 0) {
		if (iov.iov_len > sizeof(buf))
			return -EPROTO;
		n = stream_recv(&iw->conn.stream, &iov, 1);
		if (n <= 0)
			return n ? (int)n : -ECONNRESET;
		err = iwarp_setup_rx(&iw->setup, buf, (size_t)n);
	}
	return err;
}

/* The initiator has its answer. */
static void iw_replied(struct shca_iw *iw)
{
	int err = read_frame(iw);

	if (err == -EAGAIN)
		return;
	if (tracing() && (!err || iw->setup.error == IWARP_SETUP_REJECTED))
		record_frame(iw, TRACE_CM_IN,
			     err ? TRACE_MPA_REJECT : TRACE_MPA_REPLY);
	if (!err)
		err = iw_hand_over(iw);
	if (!err)
		user_tell(iw, SHCA_IW_ESTABLISHED, 0);
	else if (err == -EPROTO && atomic_load(&iw->phase) == IW_QP)
		user_tell(iw, SHCA_IW_FAILED, err);
	else
		iw_failed(iw, err);
}

/* The user has no room: who came first is to be the first to have it. */
static void wait_for_room(struct shca_iw *iw, uint64_t now)
{
	struct queue *q = &iw->listener->waiting;

	if (!iw->queue) {
		iw->since = now;
		turns_add(q, iw);
	}
	stream_want(&iw->conn.stream, 0);
	atomic_store(&iw->phase, IW_WAITING);
	iw_until(iw, iw == q->first ? now + AGAIN_NS : UINT64_MAX);
}

/* The user is asked, as soon as it has room. */
static void user_ask(struct shca_iw *iw, uint64_t now)
{
	int err;

	stream_want(&iw->conn.stream, 0);
	atomic_store(&iw->phase, IW_ASKED);
	atomic_store(&iw->due, UINT64_MAX);
	iw->owned = true;
	iw_get(iw); /* the user's */
	err = user_tell(iw, SHCA_IW_REQUEST, 0);
	if (!err) {
		to_iwcm(iw->e)->half_open--;
		pass_on(iw);
		iw->listener = NULL;
		return;
	}
	iw->owned = false;
	iw_put(iw);
	if (err != -EAGAIN || (iw->queue && now > iw->since + SHCA_IW_REPLY_NS))
		iw_end(iw, true);
	else
		wait_for_room(iw, now);
}

static void iw_requested(struct shca_iw *iw)
{
	uint8_t out[MPA_FRAME_MAX];
	int err = read_frame(iw), len;

	if (err == -EAGAIN)
		return;
	if (!err) {
		iw_heard(iw);
		if (tracing())
			record_frame(iw, TRACE_CM_IN, TRACE_MPA_REQUEST);
		if (iw->listener->waiting.first)
			wait_for_room(iw, clock_ns());
		else
			user_ask(iw, clock_ns());
		return;
	}
	if (err == -EPROTO && (iw->setup.error == IWARP_SETUP_REVISION ||
			       iw->setup.error == IWARP_SETUP_LENGTH)) {
		len = iwarp_setup_reject(&iw->setup, NULL, 0, out);
		if (len > 0)
			send_frame(iw, out, (size_t)len);
		iw_failed(iw, err);
		return;
	}
	iw_failed(iw, err);
}

/* What comes after our FIN or rejection. */
static void iw_drop_input(struct shca_iw *iw, uint8_t *buffer)
{
	struct iovec iov = { buffer, STREAM_BUFFER };
	ssize_t n = stream_recv(&iw->conn.stream, &iov, 1);

	if (!n || (n < 0 && n != -EAGAIN))
		iw_end(iw, n < 0);
}

static void setup_ready(struct shca_iw *iw, uint32_t events, uint8_t *buffer)
{
	switch ((enum phase)atomic_load(&iw->phase)) {
	case IW_CONNECTING:
		iw_connected(iw);
		break;
	case IW_REPLY:
		iw_replied(iw);
		break;
	case IW_REQUEST:
		iw_requested(iw);
		break;
	case IW_WAITING:
		iw_end(iw, true);
		break;
	case IW_ASKED:
		/* The user finds out when it answers. */
		if (events & (EPOLLHUP | EPOLLERR))
			stream_close(&iw->conn.stream, true);
		break;
	case IW_LINGER:
		iw_drop_input(iw, buffer);
		break;
	case IW_QP:
	case IW_CLOSED:
		break;
	}
}

static int iw_ready(struct stream *s, uint32_t events, uint8_t *buffer)
{
	struct shca_iw *iw = to_iw(s);
	struct shca_qp *qp;
	int n = 0;

	if (atomic_load(&iw->phase) == IW_QP) {
		qp = iw->qp;
		if (!shca_qp_trylock(qp))
			return -EBUSY;
		if (!qp->sched.dead && qp->conn == &iw->conn)
			n = shca_iwarp_stream(qp, events, buffer);
		shca_qp_unlock(qp);
		return n;
	}
	if (!events)
		return 0;
	shca_cm_lock(iw->e);
	if (s->fd >= 0)
		setup_ready(iw, events, buffer);
	shca_cm_unlock(iw->e);
	return 1;
}

/* ---- the initiator ----------------------------------------------------- */

static struct iwarp_offer offer_of(const struct engine *e,
				   const struct shca_iw_ask *ask)
{
	return (struct iwarp_offer){
		.crc = e->cfg->mpa_crc,
		.large = true,
		.enhanced = true,
		/* So the responder's program may be the first to send. */
		.peer_to_peer = true,
		.ird = ask->ird,
		.ord = ask->ord,
	};
}

static socklen_t addr_len(const struct sockaddr_storage *a)
{
	return a->ss_family == AF_INET ? sizeof(struct sockaddr_in) :
					 sizeof(struct sockaddr_in6);
}

static void sockaddr_set_port(struct sockaddr_storage *a, uint16_t port)
{
	if (a->ss_family == AF_INET)
		((struct sockaddr_in *)a)->sin_port = port;
	else
		((struct sockaddr_in6 *)a)->sin6_port = port;
}

static void set_tos(int fd, int family, uint8_t tos)
{
	const int value = tos;

	if (!tos)
		return;
	if (family == AF_INET)
		setsockopt(fd, IPPROTO_IP, IP_TOS, &value, sizeof(value));
	else
		setsockopt(fd, IPPROTO_IPV6, IPV6_TCLASS, &value,
			   sizeof(value));
}

/* A socket that connects, from this port if it can be had. */
static int connect_from(struct sockaddr_storage *from,
			const struct sockaddr_storage *to, uint8_t tos)
{
	const int one = 1;
	int fd = stream_socket(to->ss_family), err = 0;

	if (fd < 0)
		return fd;
	set_tos(fd, to->ss_family, tos);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (syscall(SYS_bind, fd, from, addr_len(from)) ||
	    (syscall(SYS_connect, fd, to, addr_len(to)) &&
	     errno != EINPROGRESS))
		err = -errno;
	if (!err)
		return fd;
	sys_close(fd);
	return err;
}

/* Opens the stream, of which iw->local is the address from now on. */
static int connect_begin(struct shca_iw *iw)
{
	struct sockaddr_storage local = iw->local;
	socklen_t len = sizeof(local);
	int fd, err;

	iw->waits = false;
	streams_hold(iw->e->streams);
	fd = connect_from(&local, &iw->conn.peer, iw->tos);
	if (fd == -EADDRINUSE || fd == -EADDRNOTAVAIL) {
		/* An ordinary program has the port. */
		sockaddr_set_port(&local, 0);
		fd = connect_from(&local, &iw->conn.peer, iw->tos);
	}
	err = fd < 0 ? fd : 0;
	if (!err && !syscall(SYS_getsockname, fd, &local, &len))
		iw->local = local;
	if (!err)
		err = stream_open(iw->e->streams, &iw->conn.stream, fd,
				  EPOLLOUT);
	if (err && fd >= 0)
		sys_close(fd);
	streams_release(iw->e->streams);
	if (err)
		return err;
	stream_begin(&iw->conn.stream, &iw->local, &iw->conn.peer, iw->tos,
		     true);
	iw_until(iw, clock_ns() + SHCA_IW_CONNECT_NS);
	return 0;
}

static void connect_again(struct shca_iw *iw)
{
	int err = connect_begin(iw);

	if (err)
		iw_failed(iw, err);
}

/*
 * A program may go by the order in which its peer has the requests, so the
 * connections to one address are made one after the other: a SYN follows the
 * request of the one before. Side by side one that is refused would be overtaken
 * by those that find the listener there a moment later, and the network may swap
 * packets of two connections. One that does not connect holds up nobody for long.
 */
static int connect_in_turn(struct shca_iw *iw)
{
	struct shca_iw *ahead;

	iw->since = clock_ns();
	turns_add(&to_iwcm(iw->e)->connecting, iw);
	ahead = peer_ahead(iw);
	if (!ahead || ahead->since + SHCA_IW_TURN_NS <= iw->since)
		return connect_begin(iw);
	iw->waits = true;
	iw_until(iw, ahead->since + SHCA_IW_TURN_NS);
	return 0;
}

int shca_iw_connect(struct engine *e, struct shca_iw **out,
		    struct sockaddr_storage *from,
		    const struct sockaddr_storage *to, uint8_t tos,
		    const struct shca_iw_ask *ask)
{
	const struct iwarp_offer want = offer_of(e, ask);
	struct shca_iw *iw;
	int err;

	iw = iw_new(e, IW_CONNECTING, true);
	if (!iw)
		return -ENOMEM;
	err = iwarp_setup_request(&iw->setup, &want, ask->data, ask->len,
				  iw->out);
	if (err < 0) {
		err = why(err,
			  "%zu bytes of private data: iWARP's request has room "
			  "for %d",
			  ask->len, MPA_PRIVATE_MAX - MPA_ENHANCED_LEN);
		goto err_iw;
	}
	iw->out_len = (uint16_t)err;
	iw->local = *from;
	iw->conn.peer = *to;
	iw->tos = tos;
	iw->refused = ask->once ? REFUSED_TRIES - 1 : 0;
	err = ask->once ? connect_begin(iw) : connect_in_turn(iw);
	if (err)
		goto err_iw;
	*from = iw->local;
	iw->user = ask->user;
	iw->owned = true;
	iw->qp = ask->qp;
	shca_qp_get(iw->qp);
	iw_get(iw);
	*out = iw;
	return 0;

err_iw:
	iw_end(iw, false);
	return err;
}

/* ---- the responder ----------------------------------------------------- */

/* Where connections of this peer's source are counted: its IPv4 address, or the
 * first 64 bits of IPv6's, all of which a host can have. Nobody outside can
 * tell which sources share a place. */
static uint16_t *source_count_of(struct iwcm *m,
				 const struct sockaddr_storage *peer)
{
	union ibv_gid gid;
	uint64_t key;

	sock_gid(peer, &gid);
	key = roce_gid_is_v4(&gid) ? get_be32(gid.raw + 12) : get_be64(gid.raw);
	return &m->sources[hash64(key ^ hash64(to_process(m->e)->id)) %
			   SOURCES];
}

static struct shca_iw *iw_accepted(struct shca_iw_listener *l, int fd)
{
	struct iwcm *m = to_iwcm(l->e);
	struct shca_iw *iw = iw_new(l->e, IW_REQUEST, false);
	socklen_t len = sizeof(iw->local);

	if (!iw)
		return NULL;
	stream_tune(fd);
	if (syscall(SYS_getsockname, fd, &iw->local, &len) ||
	    (len = sizeof(iw->conn.peer),
	     syscall(SYS_getpeername, fd, &iw->conn.peer, &len)) ||
	    stream_open(l->e->streams, &iw->conn.stream, fd, EPOLLIN)) {
		iw_end(iw, false);
		return NULL;
	}
	stream_begin(&iw->conn.stream, &iw->local, &iw->conn.peer, 0, false);
	iw->user = l->user;
	iw->listener = l;
	m->half_open++;
	iw->source = source_count_of(m, &iw->conn.peer);
	++*iw->source;
	iw_until(iw, clock_ns() + SHCA_IW_REQUEST_NS);
	return iw;
}

static unsigned half_open_max(void)
{
	struct rlimit l;

	if (getrlimit(RLIMIT_NOFILE, &l) || l.rlim_cur == RLIM_INFINITY)
		return HALF_OPEN_MAX;
	return max_u32(1, (uint32_t)min_u64(l.rlim_cur / HALF_OPEN_PART,
					    HALF_OPEN_MAX));
}

static int listener_ready(struct stream *s, uint32_t events, uint8_t *buffer)
{
	struct shca_iw_listener *l = to_listener(s);
	struct iwcm *m = to_iwcm(l->e);
	const unsigned max = half_open_max();
	bool pause = m->half_open >= max;
	int fd, n = 0;

	(void)buffer;
	if (!events)
		return 0;
	shca_cm_lock(l->e);
	while (!l->gone && n < ACCEPTS && m->half_open < max) {
		streams_hold(l->e->streams);
		fd = sys_accept(s->fd, SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (fd < 0) {
			streams_release(l->e->streams);
			/* There are no descriptors: it stays readable. */
			pause = errno != EAGAIN && errno != EINTR &&
				errno != ECONNABORTED;
			break;
		}
		fd = fd_high(fd);
		if (!iw_accepted(l, fd))
			sys_close(fd);
		streams_release(l->e->streams);
		n++;
	}
	if (!l->gone && pause) {
		stream_want(s, 0);
		l->paused_until = clock_ns() + AGAIN_NS;
		due_by(l->e, l->paused_until);
	}
	shca_cm_unlock(l->e);
	return n;
}

static void listener_free(struct stream *s)
{
	free(to_listener(s));
}

static const struct stream_ops listener_ops = { .ready = listener_ready,
						.free = listener_free };

static int listen_at(const struct sockaddr_storage *at, bool v6only,
		     int backlog)
{
	const int one = 1, only = v6only;
	int fd = stream_socket(at->ss_family), err;

	if (fd < 0)
		return fd;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (at->ss_family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof(only));
	if (!syscall(SYS_bind, fd, at, addr_len(at)) &&
	    !syscall(SYS_listen, fd, backlog))
		return fd;
	err = -errno;
	sys_close(fd);
	return err;
}

int shca_iw_listen(struct engine *e, struct shca_iw_listener **out,
		   const struct sockaddr_storage *at, bool v6only, int backlog,
		   void *user)
{
	struct iwcm *m = to_iwcm(e);
	struct shca_iw_listener *l = calloc(1, sizeof(*l));
	int fd, err;

	if (!l)
		return -ENOMEM;
	l->stream.ops = &listener_ops;
	l->e = e;
	l->user = user;
	streams_hold(e->streams);
	fd = listen_at(at, v6only, backlog);
	err = fd < 0 ? fd : stream_open(e->streams, &l->stream, fd, EPOLLIN);
	if (err && fd >= 0)
		sys_close(fd);
	streams_release(e->streams);
	if (err) {
		free(l);
		return err;
	}
	l->next = m->listeners;
	l->link = &m->listeners;
	if (l->next)
		l->next->link = &l->next;
	m->listeners = l;
	*out = l;
	return 0;
}

void shca_iw_unlisten(struct shca_iw_listener *l)
{
	struct shca_iw *iw, *next;

	/* Nobody is left to ask. */
	for (iw = to_iwcm(l->e)->iws; iw; iw = next) {
		next = iw->next;
		if (iw->listener == l)
			iw_end(iw, true);
	}
	l->gone = true;
	*l->link = l->next;
	if (l->next)
		l->next->link = l->link;
	stream_close(&l->stream, false);
	stream_give(&l->stream);
}

int shca_iw_accept(struct shca_iw *iw, const struct shca_iw_ask *ask)
{
	const struct iwarp_offer want = offer_of(iw->e, ask);
	uint8_t out[MPA_FRAME_MAX];
	int len, err;

	if (atomic_load(&iw->phase) != IW_ASKED)
		return -EINVAL;
	if (iw->conn.stream.fd < 0)
		return why(-ECONNRESET, "the peer has given up meanwhile");
	len = iwarp_setup_reply(&iw->setup, &want, ask->data, ask->len, out);
	if (len < 0)
		return why(len,
			   "%zu bytes of private data: iWARP's reply has room "
			   "for %d",
			   ask->len,
			   MPA_PRIVATE_MAX - (iw->setup.peer.enhanced ?
						      MPA_ENHANCED_LEN :
						      0));
	iw->user = ask->user;
	iw->qp = ask->qp;
	shca_qp_get(iw->qp);
	/* The QP may send something at once, behind the reply. */
	if (tracing())
		record_frame(iw, TRACE_CM_OUT, TRACE_MPA_REPLY);
	err = send_frame(iw, out, (size_t)len);
	if (!err)
		err = iw_hand_over(iw);
	if (err < 0) {
		iw_end(iw, true);
		return err;
	}
	if (!err)
		user_tell(iw, SHCA_IW_ESTABLISHED, 0);
	return 0;
}

int shca_iw_reject(struct shca_iw *iw, const void *data, size_t len)
{
	uint8_t out[MPA_FRAME_MAX];
	int n;

	if (atomic_load(&iw->phase) != IW_ASKED)
		return -EINVAL;
	n = iwarp_setup_reject(&iw->setup, data, len, out);
	if (n < 0)
		return why(n,
			   "%zu bytes of private data: iWARP's reply has room "
			   "for %d",
			   len,
			   MPA_PRIVATE_MAX - (iw->setup.peer.enhanced ?
						      MPA_ENHANCED_LEN :
						      0));
	if (tracing())
		record_frame(iw, TRACE_CM_OUT, TRACE_MPA_REJECT);
	/* siw may not look at a frame that has our FIN behind it, so the peer
	 * is to be the first to close. */
	if (iw->conn.stream.fd >= 0 && !send_frame(iw, out, (size_t)n)) {
		stream_want(&iw->conn.stream, EPOLLIN);
		atomic_store(&iw->phase, IW_LINGER);
		iw_until(iw, clock_ns() + SHCA_IW_REJECT_NS);
	} else {
		iw_end(iw, false);
	}
	return 0;
}

/* ---- the user ---------------------------------------------------------- */

void shca_iw_set_user(struct shca_iw *iw, void *user)
{
	iw->user = user;
}

bool shca_iw_says(const struct shca_iw *iw, char *text, size_t size)
{
	switch ((enum phase)atomic_load(&iw->phase)) {
	case IW_CONNECTING:
		if (iw->refused)
			snprintf(text, size,
				 "TCP was refused %u times of %d: nobody "
				 "listens there",
				 iw->refused, REFUSED_TRIES);
		else
			snprintf(text, size, "%s",
				 iw->waits ? "others that connect there come "
					     "first" :
					     "TCP has no answer: no such host, "
					     "or a firewall");
		return true;
	case IW_REPLY:
		snprintf(text, size,
			 "TCP is connected, and the program there has neither "
			 "accepted nor rejected the request");
		return true;
	case IW_ASKED:
		snprintf(text, size, "the program is to answer");
		return true;
	case IW_REQUEST:
	case IW_WAITING:
	case IW_QP:
	case IW_LINGER:
	case IW_CLOSED:
		break;
	}
	return false;
}

static void end_by(struct shca_iw *iw, enum ibv_qp_state to)
{
	struct shca_qp *qp = iw->qp;

	if (atomic_load(&iw->phase) == IW_QP) {
		shca_qp_lock(qp);
		if (!qp->sched.dead && qp->conn == &iw->conn)
			shca_iwarp_end(qp, to);
		shca_qp_unlock(qp);
	} else if (atomic_load(&iw->phase) < IW_QP) {
		iw_end(iw, true);
	}
}

void shca_iw_disconnect(struct shca_iw *iw)
{
	end_by(iw, IBV_QPS_SQD);
}

void shca_iw_close(struct shca_iw *iw)
{
	iw->user = NULL;
	iw->owned = false;
	end_by(iw, IBV_QPS_ERR);
	iw_put(iw);
}

int shca_iw_begin(struct engine *e, int (*event)(const struct shca_iw_event *))
{
	to_iwcm(e)->event = event;
	return 0;
}

/* ---- time -------------------------------------------------------------- */

/* It has taken too long. */
static void iw_late(struct shca_iw *iw, uint64_t now)
{
	static const char silent[] =
		"the first message that the peer has announced has not come";
	struct shca_qp *qp = iw->qp;

	atomic_store(&iw->due, UINT64_MAX);
	switch ((enum phase)atomic_load(&iw->phase)) {
	case IW_CONNECTING:
		if (iw->conn.stream.fd < 0)
			connect_again(iw);
		else
			iw_failed(iw, -ETIMEDOUT);
		break;
	case IW_REPLY:
		iw_failed(iw, -ETIMEDOUT);
		break;
	case IW_WAITING:
		user_ask(iw, now);
		break;
	case IW_REQUEST:
		if (iw->e->cfg->explain)
			say("iWARP: a connection has brought no MPA request "
			    "within %d s and is closed",
			    (int)(SHCA_IW_REQUEST_NS / 1000000000));
		iw_end(iw, true);
		break;
	case IW_LINGER:
		iw_end(iw, qp);
		break;
	case IW_QP:
		shca_qp_lock(qp);
		if (!qp->sched.dead && qp->conn == &iw->conn)
			shca_iwarp_late(qp, iw->opening ?
						    silent :
						    sys_strerror(ETIMEDOUT));
		shca_qp_unlock(qp);
		break;
	case IW_ASKED:
	case IW_CLOSED:
		break;
	}
}

static void listeners_resume(struct iwcm *m, uint64_t now)
{
	for (struct shca_iw_listener *l = m->listeners; l; l = l->next) {
		if (!l->paused_until)
			continue;
		if (l->paused_until > now) {
			due_by(m->e, l->paused_until);
			continue;
		}
		l->paused_until = 0;
		stream_want(&l->stream, EPOLLIN);
	}
}

static void iw_tell(struct engine *e, uint64_t now)
{
	struct iwcm *m = to_iwcm(e);

	(void)now;
	shca_cm_lock(e);
	atomic_store(&m->news_alarm.due, UINT64_MAX);
	news_tell(m);
	shca_cm_unlock(e);
}

/* The largest number such that there is room if no source has more. */
static unsigned fair_share(const struct iwcm *m, unsigned room)
{
	unsigned low = 0, high = room;

	while (low < high) {
		const unsigned n = high - (high - low) / 2;
		unsigned sum = 0;

		for (unsigned i = 0; i < SOURCES; i++)
			sum += min_u32(m->sources[i], n);
		if (sum <= room)
			low = n;
		else
			high = n - 1;
	}
	return low;
}

/* A request may have come while nobody could look. */
static bool is_silent(const struct shca_iw *iw)
{
	int n = 0;

	return syscall(SYS_ioctl, iw->conn.stream.fd, FIONREAD, &n) || !n;
}

/* Too many have said nothing, and keep others out. */
static void make_room_for_requests(struct iwcm *m, uint64_t now)
{
	const unsigned max = half_open_max();
	const unsigned want = max - max / ROOM_PART - 1;
	unsigned silent = 0, others, share;
	struct shca_iw *iw, *next;

	if (m->half_open < max)
		return;
	for (unsigned i = 0; i < SOURCES; i++)
		silent += m->sources[i];
	others = m->half_open - silent;
	share = fair_share(m, want > others ? want - others : 0);
	for (iw = m->iws; iw && m->half_open > want; iw = next) {
		uint64_t since, least;

		next = iw->next;
		if (!iw->source || *iw->source <= share)
			continue;
		since = atomic_load(&iw->due) - SHCA_IW_REQUEST_NS;
		least = *iw->source > max / 2 ? SILENT_MANY_NS : SILENT_NS;
		if (now > since + least && is_silent(iw))
			iw_end(iw, true);
	}
}

/* All are walked, but only when one is due: hardly any connection ever is. */
static void iw_expire(struct engine *e, uint64_t now)
{
	struct iwcm *m = to_iwcm(e);
	struct shca_iw *iw, *next;

	shca_cm_lock(e);
	/* What comes from now on sets it again. */
	atomic_store(&m->alarm.due, UINT64_MAX);
	for (iw = m->iws; iw; iw = next) {
		uint64_t due = atomic_load(&iw->due);

		next = iw->next;
		if (due <= now)
			iw_late(iw, now);
		else if (due != UINT64_MAX)
			due_by(e, due);
	}
	make_room_for_requests(m, now);
	listeners_resume(m, now);
	shca_cm_unlock(e);
}

int shca_iw_init(struct engine *e)
{
	struct iwcm *m = calloc(1, sizeof(*m));

	if (!m)
		return -ENOMEM;
	m->e = e;
	engine_alarm_add(e, &m->news_alarm, iw_tell);
	engine_alarm_add(e, &m->alarm, iw_expire);
	to_process(e)->iwcm = m;
	return 0;
}

void shca_iw_fini(struct engine *e)
{
	struct iwcm *m = to_iwcm(e);

	if (!m)
		return;
	m->event = NULL;
	news_tell(m);
	while (m->listeners)
		shca_iw_unlisten(m->listeners);
	while (m->iws)
		iw_end(m->iws, false);
	free(m);
	to_process(e)->iwcm = NULL;
}

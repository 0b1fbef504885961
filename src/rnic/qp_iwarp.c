/*
 * qp_iwarp.c - queue pairs that speak iWARP: their operations, over TCP
 *
 * The protocol core (iwarp/iwarp.h) makes bytes and the socket takes what it has
 * room for; qp_iwarp_flush() is the loop between them. What has no room waits until the
 * socket is writable. The connection was set up by iw.c, which also takes care
 * of the socket when the QP has gone.
 */
#include "qp_iwarp.h"
#include "record_iwarp.h"

#include "base/gid.h"
#include "base/sys.h"
#include "engine/idle_link.h"
#include "link/sock.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FLUSH_BYTES (256u << 10) /* for the socket, at a time */
#define RX_ROUNDS 16
#define RX_PIECES 16
/*
 * Behind payload that the socket places nothing is read but the FPDU's tail and
 * the next header, perhaps with a short FPDU before that, as the last of a message
 * is: so the next payload can be placed, too. That takes a system call for each
 * FPDU, and pays for large ones; small ones are read many at once, and copied.
 */
#define RX_LARGE 16384u
#define RX_AHEAD 256u
/* How long an initiator may take to read our reply, where it does not say that
 * it has (iwarp_tx_waits()): BEGINS times as long without anything that its TCP
 * has not acknowledged. The reply may have to be sent again; siw resets a stream
 * whose next bytes come with it. */
#define BEGINS 2
#define BEGIN_NS 25000000u
/* When an initiator's first message leaves again (iwarp_tx_asks()): so often,
 * four times as long after each. */
#define ASKS 4
#define ASK_NS 20000000ull

static struct link *streams_of(const struct shca_qp *qp)
{
	return streams_link(qp->sched.engine->streams);
}

/* ---- operations -------------------------------------------------------- */

static int qp_iwarp_create(struct qp **out, struct qp_init *init)
{
	struct iwarp_qp *qp;
	int err = iwarp_qp_create(&qp, init);

	if (!err)
		*out = iwarp_qp_base(qp);
	return err;
}

/* The QP and its connection part. */
static void leave_conn(struct shca_qp *qp, bool linger)
{
	struct shca_conn *conn = qp->conn;

	idle_link_use(streams_of(qp), false);
	qp->stream = (struct shca_qp_stream){ 0 };
	qp->conn = NULL;
	conn->ops->leave(conn, linger);
}

/* The peer is to end it, too. */
static void end_soon(struct shca_qp *qp)
{
	qp->conn->ops->until(qp->conn, clock_ns() + SHCA_IW_END_NS);
}

/* Sends FIN, once. */
static void send_fin(struct shca_qp *qp)
{
	if (qp->stream.fin)
		return;
	qp->stream.fin = true;
	stream_finish(&qp->conn->stream);
	end_soon(qp);
}

static void qp_iwarp_destroy(struct qp *core)
{
	struct shca_qp *qp = core->owner;

	if (qp->conn) {
		qp->conn->ops->ended(qp->conn);
		/* What the socket has taken arrives all the same. */
		if (iwarp_shut(iwarp_qp(core)) != IWARP_RESET)
			send_fin(qp);
		leave_conn(qp, qp->stream.fin && !qp->stream.eof);
	}
	iwarp_qp_destroy(iwarp_qp(core));
}

static int qp_iwarp_modify(struct qp *core, const struct ibv_qp_attr *attr,
			   int mask, const struct roce_path *path)
{
	struct shca_qp *qp = core->owner;
	int err = iwarp_qp_modify(iwarp_qp(core), attr, mask);

	(void)path;
	/* It forgets its stream, too. */
	if (!err && qp->conn && core->state == IBV_QPS_RESET) {
		qp->conn->ops->ended(qp->conn);
		leave_conn(qp, false);
	}
	return err;
}

static void qp_iwarp_query(const struct qp *core, struct ibv_qp_attr *attr,
			   struct ibv_qp_init_attr *init)
{
	iwarp_qp_query(iwarp_qp_const(core), attr, init);
}

/* What the socket is to wait for. */
static void want_events(struct shca_qp *qp)
{
	uint32_t events = 0;

	if (!qp->stream.eof)
		events |= EPOLLIN;
	if (qp->stream.full)
		events |= EPOLLOUT;
	stream_want(&qp->conn->stream, events);
}

/* Whether the connection goes on, by what its core says. */
static void end_if_shut(struct shca_qp *qp)
{
	switch (iwarp_shut(iwarp_qp(qp->core))) {
	case IWARP_OPEN:
		break;
	case IWARP_DRAIN:
		if (!qp->stream.draining)
			end_soon(qp);
		qp->stream.draining = true;
		break;
	case IWARP_FIN:
		send_fin(qp);
		if (qp->stream.eof)
			leave_conn(qp, false);
		break;
	case IWARP_RESET:
		leave_conn(qp, false);
		break;
	}
}

/* Sends one batch. False: there is no room for more, or no stream. */
static bool qp_iwarp_send_batch(struct shca_qp *qp)
{
	struct iwarp_qp *q = iwarp_qp(qp->core);
	struct iwarp_batch b; /* not cleared: it is large */
	ssize_t n = 0;
	size_t sent;

	iwarp_tx(q, &b, FLUSH_BYTES);
	if (tracing())
		qp->stream.sent_ns = trace_now();
	if (b.bytes)
		n = stream_send(&qp->conn->stream, b.data.iov, b.data.n);
	sent = n > 0 ? (size_t)n : 0;
	if (n == -EFAULT && iwarp_tx_doubt(q))
		n = 0;
	else if (n >= 0 || n == -EAGAIN)
		qp->stream.full = sent < b.bytes;
	iwarp_tx_done(q, &b, sent);
	if (n < 0 && n != -EAGAIN && n != -EINTR) {
		iwarp_lost(q, sys_strerror((int)-n));
		return false;
	}
	return !qp->stream.full;
}

static void qp_iwarp_flush(struct qp *core, uint64_t now, bool all)
{
	struct iwarp_qp *q = iwarp_qp(core);
	struct shca_qp *qp = core->owner;
	int round;

	(void)now;
	if (!qp->conn)
		return;
	for (round = 0; !qp->stream.full && iwarp_tx_ready(q); round++)
		if (!shca_qp_goes_on(qp, round, all) ||
		    !qp_iwarp_send_batch(qp))
			break;
	end_if_shut(qp);
	if (qp->conn)
		want_events(qp);
}

static int qp_iwarp_post_send(struct qp *core, struct ibv_send_wr *wr,
			      struct ibv_send_wr **bad, bool whole)
{
	const struct shca_qp *qp = core->owner;
	struct iwarp_qp *q = iwarp_qp(core);
	const uint32_t tail = core->sq.tail;
	int err = 0;

	for (; wr; wr = wr->next) {
		err = iwarp_post_send(q, wr);
		if (err) {
			*bad = wr;
			break;
		}
		shca_qp_note_posted(qp, &core->sq);
	}
	if (err && whole)
		iwarp_sq_undo(q, tail);
	if (tracing())
		shca_record_posts(core, tail);
	qp_iwarp_flush(core, 0, false);
	return err;
}

static void begin_by(struct shca_qp *qp, uint64_t when)
{
	qp->stream.begin_ns = when;
	engine_timer_set_lax(qp->sched.engine, &qp->sched, when);
}

/* Whether it is too early to begin: the peer may not have read our reply. */
static bool begin_is_early(struct shca_qp *qp)
{
	if (!iwarp_tx_waits(iwarp_qp(qp->core)))
		return false;
	if (!stream_is_acknowledged(&qp->conn->stream)) {
		qp->stream.begins = 0;
		return true;
	}
	return ++qp->stream.begins < BEGINS;
}

/* TCP has the timers, but for one. */
static void qp_iwarp_expire(struct qp *core, uint64_t now)
{
	struct iwarp_qp *q = iwarp_qp(core);
	struct shca_qp *qp = core->owner;

	if (!qp->stream.begin_ns)
		return;
	if (now < qp->stream.begin_ns) {
		begin_by(qp, qp->stream.begin_ns);
		return;
	}
	if (begin_is_early(qp)) {
		begin_by(qp, now + BEGIN_NS);
		return;
	}
	qp->stream.begin_ns = 0;
	iwarp_tx_begin(q);
	if (!qp->stream.asks || !iwarp_tx_asks(q))
		return;
	iwarp_tx_ask_again(q);
	qp->stream.asks--;
	begin_by(qp, now + (ASK_NS << (2 * (ASKS - qp->stream.asks))));
}

static void qp_iwarp_stat(const struct qp *core, struct stat_qp *q)
{
	const struct iwarp_qp_stats *s = iwarp_qp_stats(iwarp_qp_const(core));
	const struct shca_qp *qp = core->owner;
	union ibv_gid peer;

#define ADD(id, field, ...) q->n[STAT_##id] += s->field;
	QP_COUNTS(ADD, QP_NO_COUNT)
#undef ADD
	if (!qp->conn)
		return;
	sock_gid(&qp->conn->peer, &peer);
	memcpy(q->dgid, peer.raw, sizeof(peer.raw));
}

static void qp_iwarp_waits(struct qp *core, uint64_t now, char *text,
			   size_t size)
{
	const struct shca_qp *qp = core->owner;
	const uint32_t posted = core->sq.tail - core->sq.head;

	(void)now;
	if (core->state == IBV_QPS_ERR || core->state == IBV_QPS_SQE)
		snprintf(text, size,
			 "is in the error state: the first completion with an "
			 "error, or --explain, shows why");
	else if (!qp->conn)
		snprintf(text, size, "is not connected");
	else if (qp->stream.full)
		snprintf(text, size,
			 "waits for the peer to take what it was sent (TCP): "
			 "%u work requests are posted",
			 posted);
	else if (posted)
		snprintf(text, size,
			 "waits for the peer's answer: %u work requests are "
			 "posted",
			 posted);
	else
		text[0] = '\0';
	shca_idle_says(core, text, size);
}

static const struct qp_ops ops = {
	.create = qp_iwarp_create,
	.destroy = qp_iwarp_destroy,
	.modify = qp_iwarp_modify,
	.query = qp_iwarp_query,
	.post_send = qp_iwarp_post_send,
	.flush = qp_iwarp_flush,
	.expire = qp_iwarp_expire,
	.stat = qp_iwarp_stat,
	.waits = qp_iwarp_waits,
};

/* ---- the stream -------------------------------------------------------- */

/* Reads what there is, once: bytes, 0: none now, or no more. *more: it has
 * filled all the room that there was. */
static size_t stream_read(struct shca_qp *qp, uint8_t *buffer, bool *more)
{
	struct iwarp_qp *q = iwarp_qp(qp->core);
	struct stream *s = &qp->conn->stream;
	struct iovec iov[RX_PIECES + 1];
	size_t pieces = 0, direct = 0, room;
	bool large = qp->stream.large;
	ssize_t n;

	if (!stream_recorded(s))
		pieces = iwarp_rx_direct(q, iov, RX_PIECES);
	if (pieces)
		large = iwarp_rx_payload(q) >= RX_LARGE;
	room = large ? RX_AHEAD : STREAM_BUFFER;
	/* What follows may be another. */
	qp->stream.large = large && pieces;
	for (size_t i = 0; i < pieces; i++)
		direct += iov[i].iov_len;
	iov[pieces] = (struct iovec){ buffer, room };
	n = stream_recv(s, iov, pieces + 1);
	if (n == -EFAULT && pieces) {
		/* The program's memory is gone: its core finds that out. */
		iwarp_rx_placed(q, 0);
		pieces = direct = 0;
		iov[0] = (struct iovec){ buffer, room };
		n = stream_recv(s, iov, 1);
	}
	*more = n > 0 && (size_t)n == direct + room;
	if (pieces) {
		const size_t got = n > 0 ? (size_t)n : 0;

		iwarp_rx_placed(q, got < direct ? got : direct);
	}
	if (n > 0 && (size_t)n > direct)
		iwarp_rx(q, buffer, (size_t)n - direct);
	if (!n) {
		qp->stream.eof = true;
		iwarp_rx_eof(q);
	} else if (n < 0 && n != -EAGAIN && n != -EINTR) {
		qp->stream.eof = true;
		iwarp_lost(q, sys_strerror((int)-n));
	}
	return n > 0 ? (size_t)n : 0;
}

int shca_iwarp_stream(struct shca_qp *qp, uint32_t events, uint8_t *buffer)
{
	int reads = 0;
	bool more;

	if (events & EPOLLOUT)
		qp->stream.full = false;
	if (!qp->stream.eof &&
	    (!events || events & (EPOLLIN | EPOLLHUP | EPOLLERR))) {
		do {
			reads += stream_read(qp, buffer, &more) > 0;
		} while (more && reads < RX_ROUNDS &&
			 !engine_qp_wanted(&qp->sched));
		if (!events && !reads && !qp->stream.eof)
			return 0;
	} else if (qp->stream.eof && events & (EPOLLHUP | EPOLLERR)) {
		/* Both ends have ended, or the peer is gone. */
		iwarp_lost(iwarp_qp(qp->core), sys_strerror(ECONNRESET));
		leave_conn(qp, false);
		return 1;
	}
	qp_iwarp_flush(qp->core, 0, false);
	return reads ? reads : 1;
}

void shca_iwarp_late(struct shca_qp *qp, const char *how)
{
	iwarp_lost(iwarp_qp(qp->core), how);
	leave_conn(qp, false);
}

void shca_iwarp_end(struct shca_qp *qp, enum ibv_qp_state to)
{
	const struct ibv_qp_attr attr = { .qp_state = to };

	/* One that has ended by itself is in ERR already. */
	if (qp->core->state == IBV_QPS_RTS)
		iwarp_qp_modify(iwarp_qp(qp->core), &attr, IBV_QP_STATE);
	qp->ex.qp_base.state = qp->core->state;
	qp_iwarp_flush(qp->core, 0, true);
}

int shca_iwarp_start(struct shca_qp *qp, struct shca_conn *conn,
		     const struct iwarp_agreed *a, uint32_t fpdu_max,
		     enum iwarp_setup_error wrong)
{
	struct iwarp_qp *q = iwarp_qp(qp->core);
	int err = iwarp_qp_start(q, a, fpdu_max);

	if (err)
		return err;
	qp->conn = conn;
	qp->stream = (struct shca_qp_stream){ 0 };
	qp->ex.qp_base.state = IBV_QPS_RTS;
	idle_link_use(streams_of(qp), true);
	if (wrong)
		iwarp_fail_setup(q, wrong);
	else if (qp->sched.engine->cfg->explain)
		qp_explain(qp->core,
			   "connected by TCP: CRC %s, markers %s, segments of "
			   "%u bytes",
			   a->crc ? "on" : "off",
			   a->tx_markers || a->rx_markers ? "on" : "off",
			   fpdu_max);
	if (iwarp_tx_waits(q)) {
		begin_by(qp, clock_ns() + BEGIN_NS);
	} else if (iwarp_tx_asks(q)) {
		qp->stream.asks = ASKS;
		begin_by(qp, clock_ns() + ASK_NS);
	}
	qp_iwarp_flush(qp->core, 0, true);
	return 0;
}

/* ---- the core's environment -------------------------------------------- */

static void env_established(struct qp *core)
{
	struct shca_qp *qp = core->owner;

	if (qp->conn)
		qp->conn->ops->established(qp->conn);
}

static void env_ended(struct qp *core)
{
	struct shca_qp *qp = core->owner;

	if (tracing())
		shca_record_ended(core->qpn);
	if (qp->conn)
		qp->conn->ops->ended(qp->conn);
}

static void env_fpdu(struct qp *core, const struct iwarp_fpdu *f)
{
	const struct shca_qp *qp = core->owner;

	if (tracing()) /* not in the child of a fork */
		shca_record_fpdu(core, f, qp->stream.sent_ns);
}

/* In words: "192.0.2.7 port 4711". */
static void peer_text(const struct shca_conn *conn, char *text, size_t size)
{
	struct gid_text t;
	union ibv_gid peer;
	const uint16_t port = sock_gid(&conn->peer, &peer);

	snprintf(text, size, "%s port %u", gid_str(&peer, &t), port);
}

__attribute__((format(printf, 2, 3))) static void
env_explain(struct qp *core, const char *fmt, ...)
{
	struct shca_qp *qp = core->owner;
	char peer[80] = "";
	va_list ap;

	if (qp->conn)
		peer_text(qp->conn, peer, sizeof(peer));
	va_start(ap, fmt);
	engine_explain_of(core, peer, fmt, ap);
	va_end(ap);
}

int shca_iwarp_init(struct engine *e)
{
	struct shca_process *p = to_process(e);

	p->iw_env = malloc(sizeof(*p->iw_env));
	if (!p->iw_env)
		return -ENOMEM;
	*p->iw_env = (struct iwarp_env){
		.base = p->env.base,
		.established = env_established,
		.ended = env_ended,
		.fpdu = tracing() ? env_fpdu : NULL,
	};
	/* No other process of this host knows of its QPs. */
	p->iw_env->base.direct = NULL;
	if (p->iw_env->base.explain)
		p->iw_env->base.explain = env_explain;
	return 0;
}

void shca_iwarp_fini(struct engine *e)
{
	free(to_process(e)->iw_env);
}

/* ---- the engine -------------------------------------------------------- */

/* A packet of RoCE that has the number of a QP of iWARP. */
static void iwarp_sched_rx(struct engine_qp *qp, const struct roce_rx *pkt,
			   uint64_t now)
{
	(void)pkt;
	(void)now;
	atomic_fetch_add_explicit(&qp->engine->no_qp, 1, memory_order_relaxed);
}

static void iwarp_sched_flush(struct engine_qp *qp, uint64_t now)
{
	shca_qp_flush(sched_qp(qp), now);
}

static void iwarp_sched_run(struct engine_qp *qp, uint64_t now)
{
	shca_qp_expire(sched_qp(qp), now);
	shca_qp_flush(sched_qp(qp), now);
}

static bool iwarp_sched_hold(struct engine_qp *qp)
{
	(void)qp;
	return false;
}

static void iwarp_sched_free(struct engine_qp *qp)
{
	free(sched_qp(qp));
}

static const struct engine_qp_ops sched = {
	.rx = iwarp_sched_rx,
	.flush = iwarp_sched_flush,
	.run = iwarp_sched_run,
	.hold = iwarp_sched_hold,
	.release = iwarp_sched_run,
	.free = iwarp_sched_free,
};

/* ---- devices ----------------------------------------------------------- */

#define SEND_OPS                                                               \
	(IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND |                     \
	 IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_LOCAL_INV |                 \
	 IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_SEND_WITH_INV)

static const struct qp_env *qp_iwarp_env(struct engine *e)
{
	return &to_process(e)->iw_env->base;
}

/*
 * RFC 5040's operations. A Read Request names one place for the data
 * (section 4.4), hence one SGE.
 */
const struct shca_transport shca_iwarp = {
	.name = "iWARP",
	.prefix = "softiw",
	.node_type = IBV_NODE_RNIC,
	.type = IBV_TRANSPORT_IWARP,
	.qp_types = SHCA_TYPE(RC),
	.qp_type_names = "RC",
	.send_ops = SEND_OPS,
	.env = qp_iwarp_env,
	.ops = &ops,
	.sched = &sched,
	.sched_recorded = &sched,
	.gid_type = IBV_GID_TYPE_IB,
	.cap_flags = SHCA_CAPS,
	.atomic = IBV_ATOMIC_NONE,
	.max_sge_rd = 1,
	.odp_rc = SHCA_ODP_RC,
	.port_caps = IBV_PORT_CM_SUP,
};

/*
 * qp_roce.c - queue pairs that speak RoCE: their operations, over UDP
 *
 * The protocol core (roce/qp.h) makes batches of packets and the link takes
 * what it has room for; qp_roce_flush() is the loop between them.
 */
#include "record.h"
#include "shared.h"
#include "xrc.h"

#include "base/gid.h"
#include "base/sys.h"

#include <errno.h>
#include <string.h>

/* A QP that waits for room looks by itself after this long. */
#define STARVED_NS 1000000u

static int qp_roce_create(struct qp **out, struct qp_init *init)
{
	struct roce_qp *qp;
	int err = roce_qp_create(&qp, init);

	if (!err)
		*out = roce_qp_base(qp);
	return err;
}

static void qp_roce_destroy(struct qp *core)
{
	roce_qp_destroy(roce_qp(core));
}

static int qp_roce_modify(struct qp *core, const struct ibv_qp_attr *attr,
			  int mask, const struct roce_path *path)
{
	struct shca_qp *qp = core->owner;
	int err = roce_qp_modify(roce_qp(core), attr, mask, path);

	if (!err && path) {
		link_way_changed(&qp->sched.way);
		qp->sport = 0;
	}
	return err;
}

static void qp_roce_query(const struct qp *core, struct ibv_qp_attr *attr,
			  struct ibv_qp_init_attr *init)
{
	roce_qp_query(roce_qp_const(core), attr, init);
}

/* A script kills it (hooks/faults.h): as if it had failed by itself. */
void shca_qp_kill(struct shca_qp *qp)
{
	const unsigned line = atomic_exchange(&qp->sched.kill_line, 0);

	if (qp->core->state < IBV_QPS_RTR || qp->core->state == IBV_QPS_ERR)
		return;
	if (to_process(qp->sched.engine)->env.base.explain)
		engine_explain(qp->core,
			       "killed on purpose, by line %u of the faults",
			       line);
	roce_rsp_failed(roce_qp(qp->core), IBV_EVENT_QP_FATAL);
}

/* engine_send_small(), where it is not recorded. */
static inline unsigned send_small(struct shca_qp *qp, bool posted,
				  uint64_t *now)
{
	if (tracing())
		return shca_record_small(qp, posted, now);
	return engine_send_small(&qp->sched, roce_qp(qp->core), now);
}

static inline size_t qp_roce_send_batch(struct shca_qp *qp,
					const struct roce_batch *b, int *err)
{
	if (tracing())
		return shca_record_send(qp, b, err);
	return engine_send(qp->sched.engine, &qp->sched, b, err);
}

/* Something is out, and no timer is going to look for it. */
static inline bool is_unwatched(const struct shca_qp *qp)
{
	return roce_tx_unarmed(roce_qp_const(qp->core)) &&
	       !engine_timer_will_do(&qp->sched);
}

/* Its next deadline becomes the engine's. */
static void follow_deadline(struct shca_qp *qp, uint64_t now)
{
	struct roce_qp *r = roce_qp(qp->core);
	uint64_t due;

	/* Where the clock is read so late the peer need not wait for that. */
	if (is_unwatched(qp)) {
		now = now ? now : clock_ns();
		roce_expire(r, now);
	}
	due = roce_deadline(r);
	if (due == UINT64_MAX)
		return;
	/* A deadline that has passed waits for the next progress. */
	due = due > now ? due : now + 1;
	if (roce_deadline_is_lax(r))
		engine_timer_set_lax(qp->sched.engine, &qp->sched, due);
	else
		engine_timer_set(qp->sched.engine, &qp->sched, due);
}

__attribute__((noinline)) static void qp_roce_flush_on(struct qp *core,
						       uint64_t now, bool all)
{
	struct shca_qp *qp = core->owner;
	struct roce_qp *r = roce_qp(core);
	struct roce_batch b; /* not cleared: it is large */
	size_t n, sent;
	int round, err;
	bool wait;

	if (shca_xrc_is_remote_rsp(qp))
		to_process(qp->sched.engine)->xrc.ops->note(qp);
	shca_remote_run(qp, &now);
	/* Until there is room, making packets is in vain. */
	wait = roce_tx_busy(r) && !all && engine_starved(&qp->sched);
	for (round = 0; !wait && roce_tx_waiting(r); round++) {
		if ((round || !now) && roce_tx_timed(r))
			now = clock_ns();
		if (!shca_qp_goes_on(qp, round, all))
			return;
		if (core->sq.nxt != core->sq.tail &&
		    send_small(qp, false, &now))
			continue;
		engine_limits(&qp->sched, core, &b);
		roce_tx(r, &b, now);
		n = b.n;
		err = 0;
		sent = n ? qp_roce_send_batch(qp, &b, &err) : 0;
		if (err == EFAULT && sent < n && !roce_tx_doubt(r))
			sent++;
		if (!now && sent < n)
			now = clock_ns();
		roce_tx_done(r, &b, sent, now);
		shca_qp_doom(qp);
		if (err && err != EFAULT &&
		    to_process(qp->sched.engine)->env.base.explain)
			engine_explain(core, "cannot send a packet: %s",
				       sys_strerror(err));
		if (sent < n && engine_starved(&qp->sched))
			roce_tx_wait(r, now + STARVED_NS);
		if (!n || sent < n)
			break;
	}
	follow_deadline(qp, now);
}

/* There is something to do: to send, or only to look for what is lost. */
__attribute__((noinline)) static void qp_roce_flush_any(struct qp *core,
							uint64_t now, bool all)
{
	struct shca_qp *qp = core->owner;

	if (core->sq.nxt != core->sq.tail || roce_tx_waiting(roce_qp(core)) ||
	    shca_xrc_is_remote_rsp(qp))
		qp_roce_flush_on(core, now, all);
	else
		follow_deadline(qp, now);
	engine_ack_waits(&qp->sched, roce_ack_held(roce_qp(core)));
}

static void qp_roce_flush(struct qp *core, uint64_t now, bool all)
{
	struct shca_qp *qp = core->owner;

	if (all)
		roce_ack_release(roce_qp(core));
	/* After most packets there is not. */
	if (!roce_is_idle(roce_qp(core)) || shca_xrc_is_remote_rsp(qp) ||
	    is_unwatched(qp) || qp->sched.ack_waits)
		qp_roce_flush_any(core, now, all);
}

/* What has just been posted: mostly a small message, and that is all. */
static inline void send_posted(struct qp *core)
{
	const struct qp_sq *sq = &core->sq;
	struct shca_qp *qp = core->owner;
	uint64_t now = 0;

	if (sq->nxt != sq->tail &&
	    !qp_direct_kind(core, qp_sq_slot(sq, sq->nxt))) {
		qp->remote.tail = sq->tail;
		send_small(qp, true, &now);
	}
	qp_roce_flush(core, now, false);
}

static int qp_roce_post_send(struct qp *core, struct ibv_send_wr *wr,
			     struct ibv_send_wr **bad, bool whole)
{
	const bool ud = core->type == IBV_QPT_UD;
	const struct shca_qp *qp = core->owner;
	struct roce_qp *r = roce_qp(core);
	struct roce_sq_mark mark = roce_sq_mark(r);
	int err = 0;

	for (; wr; wr = wr->next) {
		const struct roce_path *path = NULL;

		/* What else is posted has no AH there, and fails later. */
		if (ud && wr->wr.ud.ah &&
		    (wr->opcode == IBV_WR_SEND ||
		     wr->opcode == IBV_WR_SEND_WITH_IMM))
			path = &to_ah(wr->wr.ud.ah)->path;
		err = roce_post_send(r, wr, path);
		if (err) {
			*bad = wr;
			break;
		}
		shca_qp_note_posted(qp, &core->sq);
	}
	if (err && whole)
		roce_sq_undo(r, mark);
	if (tracing())
		shca_record_posts(core, mark.tail);
	if (!roce_tx_coalesce(r))
		send_posted(core);
	return err;
}

static void qp_roce_expire(struct qp *core, uint64_t now)
{
	if (tracing())
		shca_record_expire(core->owner, now);
	else
		roce_expire(roce_qp(core), now);
}

static void qp_roce_stat(const struct qp *core, struct stat_qp *q)
{
	const struct roce_qp *r = roce_qp_const(core);
	const struct roce_path *path = roce_qp_path(r);
	const struct roce_qp_stats *s = roce_qp_stats(r);

#define ADD(id, field, ...) q->n[STAT_##id] += s->field;
	QP_COUNTS(ADD, QP_NO_COUNT)
#undef ADD
	if (path && core->type != IBV_QPT_UD && core->state >= IBV_QPS_RTR) {
		q->dest_qpn = roce_qp_dest(r);
		memcpy(q->dgid, path->dgid.raw, sizeof(q->dgid));
	}
}

static void qp_roce_waits(struct qp *core, uint64_t now, char *text,
			  size_t size)
{
	shca_qp_waits(core->owner, now, text, size);
}

const struct qp_ops shca_roce_ops = {
	.create = qp_roce_create,
	.destroy = qp_roce_destroy,
	.modify = qp_roce_modify,
	.query = qp_roce_query,
	.post_send = qp_roce_post_send,
	.flush = qp_roce_flush,
	.expire = qp_roce_expire,
	.stat = qp_roce_stat,
	.waits = qp_roce_waits,
};

/* What RoCE alone has */

/*
 * Anybody on this host may send packets with its addresses, so where the peer is
 * a process of the registry they have to come from that one's ports.
 */
__attribute__((noinline)) static bool is_peers_port(struct shca_qp *qp,
						    uint16_t sport)
{
	const struct registry *r = qp->sched.engine->registry;
	const struct roce_path *path = roce_qp_path(roce_qp(qp->core));
	const uint32_t dest = roce_qp_dest(roce_qp(qp->core));
	int slot = -ENOENT;

	/* XRC's requester is answered by any process that shares the domain. */
	if (r && path->local && qp->core->type != IBV_QPT_UD &&
	    qp->core->type != IBV_QPT_XRC_SEND)
		slot = registry_route(
			r, dest, &path->dgid,
			gid_is_link_local(&path->dgid) ? path->sgid_scope : 0);
	if (slot < 0)
		return true;
	if (!registry_sends_from(r, (unsigned)slot, sport)) {
		engine_dropped(qp->sched.engine, ROCE_DROP_ADDRESS);
		if (!qp->forged &&
		    to_process(qp->sched.engine)->env.base.explain)
			engine_explain(qp->core,
				       "packets from UDP port %u of this host "
				       "are dropped: its peer's process does "
				       "not send from there",
				       sport);
		qp->forged = true;
		return false;
	}
	qp->sport = sport;
	return true;
}

void shca_qp_rx(struct shca_qp *qp, const struct roce_rx *pkt, uint64_t now)
{
	struct roce_qp *r = roce_qp(qp->core);

	if (pkt->sport != qp->sport && pkt->sport &&
	    !is_peers_port(qp, pkt->sport))
		return;

	if (pkt->ack_note) {
		const bool done = roce_acked(r, pkt->h.psn, pkt->early, now);

		if (pkt->acked)
			*pkt->acked = done;
		return;
	}
	if (qp->xrc && to_process(qp->sched.engine)->xrc.ops->rx(qp, pkt, now))
		return;
	roce_rx(r, pkt, now);
}

bool shca_qp_ack_hold(struct shca_qp *qp)
{
	/* What XRC owes may be for another process to say. */
	return qp->ops == &shca_roce_ops && !qp->xrc &&
	       roce_ack_hold(roce_qp(qp->core));
}

void shca_qp_ack_release(struct shca_qp *qp)
{
	roce_ack_release(roce_qp(qp->core));
}

bool shca_qp_leaves(const struct shca_qp *qp, struct roce_timewait *w)
{
	return qp->ops == &shca_roce_ops && !shca_xrc_is_lent(qp) &&
	       roce_timewait_init(w, roce_qp(qp->core));
}

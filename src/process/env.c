/*
 * env.c - what the protocol cores ask of this process (qp/env.h, roce/env.h)
 */
#include "parts.h"

#include "base/pool.h"
#include "check/check.h"
#include "faults/inject.h"
#include "os/guard.h"
#include "registry/registry.h"
#include "transport/record.h"
#include "verbs/infiniband.h"
#include "verbs/verbs.h"

#include <stdarg.h>
#include <stdio.h>

static int env_complete(struct qp *core, void *cq, const struct ibv_wc *wc,
			bool solicited)
{
	(void)core;
	return shca_cq_add(cq, wc, solicited);
}

/* Of a request that fails: where the program has posted it. */
__attribute__((noinline, cold)) static void
say_callsites(struct qp *core, const struct ibv_wc *wc)
{
	const struct shca_qp *qp = core->owner;
	const struct qp_sq *sq = &core->sq;
	const struct qp_wqe *w = qp_sq_slot(sq, sq->head - 1);

	if (!qp->posted || wc->opcode & IBV_WC_RECV || w->wr_id != wc->wr_id)
		return;
	check_say_places(
		(const struct check_side[]){
			{ "it was posted",
			  qp->posted[(sq->head - 1) & (sq->depth - 1)] },
			{ "the queue pair was created", qp->made },
		},
		2);
}

/* The same where somebody wants to hear of it. */
static int env_complete_noted(struct qp *core, void *cq,
			      const struct ibv_wc *wc, bool solicited)
{
	if (wc->status != IBV_WC_SUCCESS && wc->status != IBV_WC_WR_FLUSH_ERR)
		say_callsites(core, wc);
	if (tracing()) /* not in the child of a fork */
		shca_record_complete(core->qpn, wc);
	return shca_cq_add(cq, wc, solicited);
}

static int env_srq_take(struct qp *core, void *srq, uint64_t room,
			struct qp_recv *out)
{
	(void)core;
	return shca_srq_take(srq, room, out);
}

/* Of all QPs of the process. */
static struct pool reorder = POOL_INIT;

static bool env_unread(struct qp *core, uint64_t mark[2])
{
	struct shca_qp *qp = core->owner;

	return engine_unread(qp->sched.engine, &qp->sched,
			     roce_qp_dest(roce_qp(core)),
			     roce_qp_path(roce_qp(core)), mark);
}

static void env_event(struct qp *core, enum ibv_event_type type)
{
	struct shca_qp *qp = core->owner;
	struct ibv_async_event ev = { .event_type = type,
				      .element.qp = &qp->ex.qp_base };

	if (qp->xrc)
		shca_xrc_event(qp, &ev);
	else
		shca_async_raise(to_ctx(qp->ex.qp_base.context), &ev);
}

static void env_landing(struct qp *core, const struct qp_recv *recv)
{
	check_received(recv->sge, recv->num_sge);
	check_allowed(core->qpn);
}

static void env_arriving(struct qp *core, struct qp_wqe *w, bool first)
{
	struct shca_qp *qp = core->owner;

	check_arriving(&qp->ex.qp_base, w->wr_id, qp_wqe_sge(&core->sq, w),
		       w->num_sge, first);
}

static void env_changing(struct qp *core, const struct qp_change *c)
{
	static const enum check_change_kind kinds[] = {
		[QP_CHANGE_WRITE] = CHECK_WRITE,
		[QP_CHANGE_ADD] = CHECK_ADD,
		[QP_CHANGE_SWAP] = CHECK_SWAP,
	};
	const struct check_change change = {
		.kind = kinds[c->kind],
		.addr = (uintptr_t)c->p,
		.len = c->len,
		.data = c->data,
		.first = c->first,
		.last = c->last,
	};
	struct shca_qp *qp = core->owner;

	check_written();
	check_changing(&qp->ex.qp_base, &change);
}

static void env_changed(struct qp *core, bool done)
{
	(void)core;
	check_changed(done);
}

static void env_voided(struct qp *core)
{
	check_writes_end(core->qpn);
}

/* Its peer, if that is of this host, may be told by a NAK alone. */
static void env_explain(struct qp *core, const char *fmt, ...)
{
	const struct shca_qp *qp = core->owner;
	const struct roce_path *path = roce_qp_path(roce_qp(core));
	struct registry *registry = qp->sched.engine->registry;
	char line[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	engine_explain(core, "%s", line);
	if (registry && path && roce_path_in_host(path) &&
	    core->type != IBV_QPT_UD)
		registry_note(registry, core->wire_qpn,
			      roce_qp_dest(roce_qp(core)), line);
}

static void env_refused(struct qp *core, enum check_key what,
			const struct key_ask *ask)
{
	check_key_refused(core->qpn, what, ask->key, ask->va, ask->remote);
}

static void env_differs(struct qp *core, enum roce_differs what, uint32_t there,
			uint32_t here, uint32_t src_qpn)
{
	const bool qkey = what == ROCE_DIFFERS_QKEY;
	char text[200];

	snprintf(text, sizeof(text),
		 qkey ? "its Q_Key is 0x%08x, and a datagram of QP 0x%06x had "
			"0x%08x: it was dropped" :
			"its P_Key is 0x%04x, and a packet of QP 0x%06x had "
			"0x%04x: it was dropped",
		 here, src_qpn, there);
	check_disagrees(qkey ? CHECK_PAIR_QKEY : CHECK_PAIR_PKEY, core->qpn,
			text);
}

static void env_dropped(struct qp *core, enum roce_drop why)
{
	struct shca_qp *qp = core->owner;

	if (tracing())
		trace_put(TRACE_DROP, core->qpn, why, 0, 0, 0, 0);
	engine_dropped(qp->sched.engine, why);
}

int shca_env_init(struct engine *e)
{
	struct shca_process *p = to_process(e);
	const struct config *cfg = config_get();

	p->env = (struct roce_env){
		.base.keys = &p->memory.keys,
		.base.complete = cfg->explain == EXPLAIN_FULL || trace_on ?
					 env_complete_noted :
					 env_complete,
		.base.srq_take = env_srq_take,
		.xrc_srq_take = shca_xrc_env_take,
		.xrc_pd = shca_xrc_env_pd,
		.base.invalidate = shca_mw_env_invalidate,
		.base.bind_mw = shca_mw_env_bind,
		.base.guarded = guard_run,
		.base.copy = guard_copy,
		.base.odp_touch = shca_odp_touch,
		.base.odp_store = shca_odp_store,
		.reorder = &reorder,
		.unread = env_unread,
		.uc_sent = shca_env_uc_sent,
		.uc_written = shca_env_uc_written,
		.silent = shca_env_silent,
		.refusal = shca_env_refusal,
		.unanswered = check_on() ? shca_env_unanswered : NULL,
		.differs = check_on() ? env_differs : NULL,
		.base.event = env_event,
		.dropped = env_dropped,
		.withhold = faults_any(FAULT_RNR) ? faults_withhold : NULL,
		.base.landing = check_on() ? env_landing : NULL,
		.base.arriving = check_on() ? env_arriving : NULL,
		.base.changing = check_on() ? env_changing : NULL,
		.base.changed = check_on() ? env_changed : NULL,
		.base.voided = check_on() ? env_voided : NULL,
		.base.refused = check_on() ? env_refused : NULL,
		.base.explain = cfg->explain ? env_explain : NULL,
	};
	if (p->segment) {
		p->env.base.atomic_lock = shca_env_atomic_lock;
		p->env.base.atomic_unlock = shca_env_atomic_unlock;
	}
	/* What is to be lost or recorded has to be a packet. */
	if (p->segment && cfg->loss <= 0 && !cfg->pcap)
		p->env.base.direct = &shca_direct;
	p->ib_env = p->env;
	p->ib_env.base.complete = shca_infiniband_complete;
	return 0;
}

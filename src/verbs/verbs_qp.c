/*
 * verbs_qp.c - queue pairs
 *
 * A QP of a transport (qp/ops.h), with what that leaves to others: a lock
 * (engine/qp.h), and the objects it stands on.
 */
#include "verbs.h"

#include "base/why.h"
#include "link/exported_keys.h"
#include "qp/names.h"
#include "transport/record.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Creation */

static int qp_init_check(const struct shca_transport *t,
			 const struct ibv_qp_init_attr_ex *attr)
{
	const uint32_t known = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_XRCD |
			       IBV_QP_INIT_ATTR_SEND_OPS_FLAGS |
			       IBV_QP_INIT_ATTR_CREATE_FLAGS;

	if (attr->comp_mask & ~known)
		return why(-EOPNOTSUPP,
			   "comp_mask requests 0x%x, which this device does "
			   "not have",
			   attr->comp_mask & ~known);
	if ((attr->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS) &&
	    attr->create_flags)
		return why(-EOPNOTSUPP,
			   "create_flags 0x%x: this device has none",
			   attr->create_flags);
	if ((unsigned)attr->qp_type > 31 ||
	    !(t->qp_types & 1u << attr->qp_type))
		return why(-EOPNOTSUPP, "qp_type %d: this device has %s",
			   (int)attr->qp_type, t->qp_type_names);
	switch ((int)attr->qp_type) {
	case IBV_QPT_RC:
	case IBV_QPT_UD:
		break;
	case IBV_QPT_UC:
	case IBV_QPT_XRC_SEND:
		if (attr->srq)
			return why(-EINVAL,
				   "a QP of type %s takes no SRQ: use RC or "
				   "UD, or leave srq NULL",
				   qp_type_str(attr->qp_type));
		break;
	case IBV_QPT_XRC_RECV:
		/* It has no work queues, only a domain. */
		if (!(attr->comp_mask & IBV_QP_INIT_ATTR_XRCD) || !attr->xrcd ||
		    attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS ||
		    attr->srq)
			return why(-EINVAL,
				   "an XRC_RECV QP needs xrcd and "
				   "IBV_QP_INIT_ATTR_XRCD, and neither an SRQ "
				   "nor send operations");
		return 0;
	default:
		break;
	}
	if (!(attr->comp_mask & IBV_QP_INIT_ATTR_PD) || !attr->pd)
		return why(-EINVAL, "no PD is given");
	if (!attr->send_cq)
		return why(-EINVAL, "send_cq is NULL: every QP needs one, "
				    "create a CQ first");
	if (!attr->recv_cq && attr->qp_type != IBV_QPT_XRC_SEND)
		return why(-EINVAL, "recv_cq is NULL: every QP needs one, and "
				    "may use the one for sending");
	return 0;
}

/* Checks that the objects a new QP needs exist; others are not read. */
static int parts_check(const struct ibv_qp_init_attr_ex *attr)
{
	int err;

	if (attr->qp_type == IBV_QPT_XRC_RECV)
		return 0;
	err = shca_check(attr->pd, SHCA_PD);
	if (!err)
		err = shca_check(attr->send_cq, SHCA_CQ);
	if (!err && attr->qp_type != IBV_QPT_XRC_SEND)
		err = shca_check(attr->recv_cq, SHCA_CQ);
	if (!err && attr->srq)
		err = shca_check(attr->srq, SHCA_SRQ);
	return err;
}

/* The objects that a QP uses; each may be missing. */
static void parts_hold(struct ibv_qp *ib)
{
	if (ib->pd)
		shca_pd_get(ib->pd);
	if (ib->send_cq)
		atomic_fetch_add(&to_cq(ib->send_cq)->users, 1);
	if (ib->recv_cq)
		atomic_fetch_add(&to_cq(ib->recv_cq)->users, 1);
	if (ib->srq)
		atomic_fetch_add(&to_srq(ib->srq)->users, 1);
}

static void parts_release(struct ibv_qp *ib)
{
	if (ib->send_cq)
		atomic_fetch_sub(&to_cq(ib->send_cq)->users, 1);
	if (ib->recv_cq)
		atomic_fetch_sub(&to_cq(ib->recv_cq)->users, 1);
	if (ib->srq)
		atomic_fetch_sub(&to_srq(ib->srq)->users, 1);
	if (ib->pd)
		shca_pd_put(ib->pd);
}

static void cqs_clean(struct ibv_qp *ib)
{
	if (ib->send_cq)
		shca_cq_clean(to_cq(ib->send_cq), ib->qp_num);
	if (ib->recv_cq)
		shca_cq_clean(to_cq(ib->recv_cq), ib->qp_num);
}

/* Where other processes of this host see it, or NULL. */
static struct qp_public *public_entry(struct engine *e, uint32_t qpn)
{
	struct shca_process *proc = to_process(e);
	struct qp_public *pub = NULL;

	if (!proc->segment)
		return NULL;
	pthread_mutex_lock(&proc->memory.lock);
	pub = exported_qp_place(proc->segment, engine_qpn_wire(e, qpn),
				engine_qpn_nth(e, qpn));
	pthread_mutex_unlock(&proc->memory.lock);
	return pub;
}

/* A queue pair without a number, in whose transport nothing is yet. */
static int qp_new(struct ibv_context *ibctx,
		  const struct ibv_qp_init_attr_ex *attr, struct shca_qp **out)
{
	const struct shca_transport *t = to_ctx(ibctx)->dev->transport;
	const bool remote = attr->qp_type == IBV_QPT_XRC_RECV;
	struct shca_qp *qp = aligned_zalloc(sizeof(*qp));
	struct ibv_qp *ib;
	int err = 0;

	if (!qp)
		return -ENOMEM;
	shca_qp_init(qp, to_ctx(ibctx)->engine, t);
	qp->ops = t->ops;
	pthread_mutex_init(&qp->modify_lock, NULL);
	ib = &qp->ex.qp_base;
	ib->context = ibctx;
	ib->qp_context = attr->qp_context;
	if (!remote) {
		ib->pd = attr->pd;
		ib->send_cq = attr->send_cq;
		ib->srq = attr->srq;
	}
	if (!remote && attr->qp_type != IBV_QPT_XRC_SEND)
		ib->recv_cq = attr->recv_cq;
	ib->state = IBV_QPS_RESET;
	ib->qp_type = attr->qp_type;
	pthread_mutex_init(&ib->mutex, NULL);
	pthread_cond_init(&ib->cond, NULL);

	if (remote) {
		qp->xrc = calloc(1, sizeof(*qp->xrc));
		if (!qp->xrc)
			err = -ENOMEM;
	}
	if (!err && attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)
		err = shca_wr_setup(qp, attr->send_ops_flags);
	if (err)
		shca_qp_put(qp);
	else
		*out = qp;
	return err;
}

/* Its queues and its transport's state; attr->cap becomes what it really has. */
static int core_create(struct shca_qp *qp, struct ibv_qp_init_attr_ex *attr)
{
	const struct ibv_qp *ib = &qp->ex.qp_base;
	const struct shca_transport *t = to_ctx(ib->context)->dev->transport;
	struct engine *e = qp->sched.engine;
	struct qp_init init = {
		.env = t->env(e),
		.owner = qp,
		.qpn = ib->qp_num,
		.pd = ib->pd ? to_pd(ib->pd)->num : 0,
		.type = attr->qp_type,
		.send_cq = ib->send_cq ? to_cq(ib->send_cq) : NULL,
		.recv_cq = ib->recv_cq ? to_cq(ib->recv_cq) : NULL,
		.srq = ib->srq ? to_srq(ib->srq) : NULL,
		.mem = shca_pd_mem(ib->pd),
		.cap = attr->cap,
		.sq_sig_all = attr->sq_sig_all,
		.seed = ib->qp_num * 0x9e3779b1u,
		.pub = t->shows_qps ? public_entry(e, ib->qp_num) : NULL,
	};
	int err;

	shca_qp_lock(qp);
	err = qp->ops->create(&qp->core, &init);
	if (!err) {
		qp->sched.dead = false;
		qp_renumber(qp->core, qp->sched.num);
	}
	shca_qp_unlock(qp);
	if (!err)
		attr->cap = init.cap;
	return err;
}

int shca_qp_create(struct ibv_context *ibctx, struct ibv_qp_init_attr_ex *attr,
		   struct ibv_qp **out)
{
	struct engine *e = to_ctx(ibctx)->engine;
	struct shca_qp *qp;
	struct ibv_qp *ib;
	int err;

	if (engine_dead(e))
		return -EIO;
	err = engine_fault(FAULT_CREATE_QP) ?:
		      qp_init_check(to_ctx(ibctx)->dev->transport, attr);
	if (!err)
		err = parts_check(attr);
	if (!err)
		err = shca_count(e, SHCA_QP);
	if (err)
		return err;
	err = qp_new(ibctx, attr, &qp);
	if (err)
		goto err_count;
	ib = &qp->ex.qp_base;
	err = engine_qpn_alloc(e, &qp->sched, &ib->qp_num);
	if (err)
		goto err_put;
	err = core_create(qp, attr);
	if (err)
		goto err_qpn;

	if (e->cfg->explain == EXPLAIN_FULL) {
		qp->made = check_callsite();
		/* Without memory nothing is said of places. */
		qp->posted = calloc(qp->core->sq.depth ? qp->core->sq.depth : 1,
				    sizeof(*qp->posted));
	}
	if (check_on())
		check_ops->qp_created(ib, &attr->cap, attr->sq_sig_all);
	parts_hold(ib);
	if (attr->qp_type == IBV_QPT_XRC_RECV)
		shca_xrc_qp_add(qp, attr->xrcd);
	shca_live_add(&qp->live, ib, SHCA_QP);
	if (tracing())
		trace_keep(TRACE_QP_NEW, ib->qp_num, ib->qp_type, 0, 0, 0);
	*out = ib;
	return 0;

err_qpn:
	engine_qpn_free(e, &qp->sched);
err_put:
	shca_qp_put(qp);
err_count:
	shca_uncount(e, SHCA_QP);
	return err;
}

/* It receives nowhere from now on. */
static void address_release(struct shca_qp *qp)
{
	if (qp->bound_all)
		shca_device_unbind(to_ctx(qp->ex.qp_base.context)->dev,
				   qp->sched.engine);
	qp->bound_all = false;
	shca_unbind(qp);
}

/* Transitions */

/* Which hardware refuses as it does between hosts, and is not what the device
 * says of its first interface. */
static void check_local_mtu(struct shca_device *dev, enum ibv_mtu mtu,
			    const struct netdev_gid *via)
{
	struct ibv_port_attr port;
	char text[200];

	if (mtu <= netdev_ib_mtu(via->mtu) || shca_query_port(dev, 1, &port) ||
	    mtu <= port.active_mtu)
		return;
	snprintf(text, sizeof(text),
		 "path_mtu %u does not fit %s, whose MTU is %u, and is beyond "
		 "port_attr.active_mtu: it works between processes of one host",
		 128u << mtu, via->ifname, via->mtu);
	check_ops->address(CHECK_ADDRESS_MTU, text);
}

static int mtu_check(struct shca_device *dev, const struct ibv_qp_attr *attr,
		     const struct roce_path *path, const struct netdev_gid *via)
{
	if (attr->path_mtu < IBV_MTU_256 || attr->path_mtu > IBV_MTU_4096)
		return why(-EINVAL,
			   "attr.path_mtu is %u: it is an enum ibv_mtu, "
			   "IBV_MTU_256 (1) to IBV_MTU_4096 (5), not bytes",
			   (unsigned)attr->path_mtu);
	/* An interface's MTU does not limit packets within this host. */
	if (check_on() && path && path->local)
		check_local_mtu(dev, attr->path_mtu, via);
	if (!path || path->local)
		return 0;
	if (attr->path_mtu <= netdev_ib_mtu(via->mtu))
		return 0;
	return why(-EINVAL,
		   "attr.path_mtu %u does not fit %s, whose MTU is %u: use "
		   "port_attr.active_mtu (at most %u here), or raise the "
		   "interface's MTU",
		   128u << attr->path_mtu, via->ifname, via->mtu,
		   128u << netdev_ib_mtu(via->mtu));
}

/*
 * Programs modify both halves of XRC with the attributes of RC. Those that a
 * half has no use for are ignored, as the kernel's uverbs does.
 */
static int useful_mask(enum ibv_qp_type type, int mask)
{
	if (type == IBV_QPT_XRC_SEND)
		mask &= ~(IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	if (type == IBV_QPT_XRC_RECV)
		mask &= ~(IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT |
			  IBV_QP_RNR_RETRY);
	return mask;
}

/* Whoever may ask for its counters can from now on. */
static void leaves_reset(struct shca_qp *qp)
{
	struct engine *e = qp->sched.engine;

	to_process(e)->ops->begin(e);
}

/* Where a QP has no path, since the connection manager has the connection. */
static int modify_plain(struct shca_qp *qp, const struct ibv_qp_attr *attr,
			int mask)
{
	struct ibv_qp *ib = &qp->ex.qp_base;
	const bool reset =
		(mask & IBV_QP_STATE) && attr->qp_state == IBV_QPS_RESET;
	int err = 0;

	pthread_mutex_lock(&qp->modify_lock);
	if (qp->sched.dead) /* meanwhile */
		err = -EINVAL;
	if (!err && !reset)
		err = engine_start(qp->sched.engine);
	if (!err) {
		leaves_reset(qp);
		shca_qp_lock(qp);
		err = qp->ops->modify(qp->core, attr, mask, NULL);
		if (!err)
			shca_qp_flush(qp, clock_ns());
		shca_qp_unlock(qp);
	}
	if (!err && mask & IBV_QP_STATE)
		ib->state = attr->qp_state;
	if (!err && reset)
		cqs_clean(ib);
	if (!err && check_on() && (reset || ib->state == IBV_QPS_ERR))
		check_ops->qp_void(ib, reset);
	pthread_mutex_unlock(&qp->modify_lock);
	return err;
}

/*
 * A call of ibv_modify_qp(3): what is wrong whatever the state is checked, what
 * may fail is prepared, the core, which knows the states and which attributes
 * they need (qp/state.c), applies all or nothing, and what it has taken is
 * published. The first error is the one that is returned, so this order stays.
 */
struct modify {
	struct ibv_qp *ib; /* what the program has of the QP (XRC) */
	struct shca_qp *qp;
	const struct ibv_qp_attr *attr;
	int mask;
	struct roce_path path; /* mask has IBV_QP_AV */
	struct netdev_gid via;
	bool rebind, ud_bind; /* it is to receive elsewhere, or at all */
};

static bool moves_to(const struct modify *m, enum ibv_qp_state state)
{
	return m->mask & IBV_QP_STATE && m->attr->qp_state == state;
}

static int modify_check(struct modify *m)
{
	struct shca_device *dev = to_ctx(m->ib->context)->dev;
	const struct ibv_qp_attr *attr = m->attr;
	struct roce_path alt;
	struct netdev_gid alt_via;
	int err = 0;

	if (m->mask & IBV_QP_PKEY_INDEX && attr->pkey_index)
		return why(-EINVAL,
			   "QP 0x%06x: attr.pkey_index is %u: the port has one "
			   "P_Key, index 0",
			   m->ib->qp_num, attr->pkey_index);
	if (m->mask & IBV_QP_AV)
		err = shca_path(dev, &attr->ah_attr, &m->path, &m->via);
	if (!err && m->mask & IBV_QP_ALT_PATH)
		err = shca_path(dev, &attr->alt_ah_attr, &alt, &alt_via);
	if (!err && m->mask & IBV_QP_PATH_MTU)
		err = mtu_check(dev, attr,
				m->mask & IBV_QP_AV ? &m->path : NULL, &m->via);
	/* Its responder may be another process's, which answers by UDP. */
	if (!err && m->mask & IBV_QP_AV && m->path.v1 &&
	    (m->ib->qp_type == IBV_QPT_XRC_SEND ||
	     m->ib->qp_type == IBV_QPT_XRC_RECV))
		err = why(-EOPNOTSUPP, "XRC by RoCE v1 is not supported: "
				       "choose a sgid_index of RoCE v2");
	return err ? why_about(err, "QP 0x%06x", m->ib->qp_num) : 0;
}

/* Undoes modify_bind(). */
static void modify_unbind(struct modify *m)
{
	if (m->ud_bind)
		shca_device_unbind(to_ctx(m->ib->context)->dev,
				   m->qp->sched.engine);
	if (m->rebind)
		shca_bind_undo(m->qp, &m->path, &m->via);
}

/* Where it receives from now on; the old place, if there is one, stays. */
static int modify_bind(struct modify *m)
{
	struct shca_qp *qp = m->qp;
	int err;

	if (m->ib->qp_type == IBV_QPT_UD) {
		if (qp->bound_all || moves_to(m, IBV_QPS_RESET))
			return 0;
		err = shca_device_bind(to_ctx(m->ib->context)->dev,
				       qp->sched.engine);
		m->ud_bind = !err;
		return err;
	}
	return m->mask & IBV_QP_AV ?
		       shca_bind(qp, &m->path, &m->via, &m->rebind) :
		       0;
}

/* XRC's responder may be another process's (src/xrc): that goes by UDP. */
static void find_net(struct modify *m)
{
	const struct shca_qp *qp = m->qp;

	if (m->ib->qp_type != IBV_QPT_RC && m->ib->qp_type != IBV_QPT_UC)
		return;
	shca_path_prove(qp->sched.engine, &m->path,
			m->mask & IBV_QP_DEST_QPN ?
				m->attr->dest_qp_num :
				roce_qp_dest(roce_qp(qp->core)));
}

static int modify_prepare(struct modify *m)
{
	struct engine *e = m->qp->sched.engine;
	int err;

	if (m->qp->sched.dead) /* meanwhile */
		return -EINVAL;
	if (!moves_to(m, IBV_QPS_RESET)) {
		err = engine_start(e);
		if (err)
			return err;
		leaves_reset(m->qp);
	}
	err = modify_bind(m);
	/* The peer may be asking as well: it finds us there. */
	if (!err && m->mask & IBV_QP_AV)
		find_net(m);
	return err;
}

/* What depends on the connection that the QP had, or has now. */
static void connection_changed(const struct modify *m)
{
	const struct ibv_qp_attr *attr = m->attr;
	struct shca_qp *qp = m->qp;

	/* It is another one from now on, and a responder that is away belongs
	 * to the old one. In SQD the QP goes on receiving. */
	if (m->mask & IBV_QP_STATE && attr->qp_state != IBV_QPS_RTS &&
	    attr->qp_state != IBV_QPS_SQD)
		to_process(qp->sched.engine)->xrc.ops->forget(qp);
	if (m->mask & (IBV_QP_STATE | IBV_QP_AV) &&
	    attr->qp_state != IBV_QPS_RTS)
		shca_remote_forget(qp);
	if (moves_to(m, IBV_QPS_RTR) && qp->sched.engine->cfg->explain)
		shca_connected_explain(qp);
}

static int modify_apply(struct modify *m)
{
	struct shca_qp *qp = m->qp;
	const uint64_t now = clock_ns();
	int err;

	shca_qp_lock(qp);
	/* Received requests are acknowledged whatever happens to the QP. */
	if (moves_to(m, IBV_QPS_RESET) || moves_to(m, IBV_QPS_ERR))
		qp->ops->flush(qp->core, now, true);
	if (check_on() && m->mask & IBV_QP_STATE)
		shca_check_posting(qp);
	err = qp->ops->modify(qp->core, m->attr, m->mask,
			      m->mask & IBV_QP_AV ? &m->path : NULL);
	if (!err && tracing())
		shca_record_modify(qp, m->attr, m->mask, &m->path);
	if (!err) {
		shca_qp_flush(qp, now);
		connection_changed(m);
	}
	if (check_on() && m->mask & IBV_QP_STATE)
		check_ops->allowed(m->ib->qp_num);
	shca_qp_unlock(qp);
	if (err)
		modify_unbind(m);
	else if (m->mask & (IBV_QP_STATE | IBV_QP_ACCESS_FLAGS))
		shca_visits_wait(qp->sched.engine);
	return err;
}

static void modify_publish(struct modify *m)
{
	const bool reset = moves_to(m, IBV_QPS_RESET);
	struct ibv_qp *ib = m->ib;
	struct shca_qp *qp = m->qp;

	if (m->mask & IBV_QP_STATE)
		ib->state = qp->ex.qp_base.state = m->attr->qp_state;
	if (check_on() && moves_to(m, IBV_QPS_RTR))
		check_ops->qp_connected(ib);
	if (check_on() && (reset || ib->state == IBV_QPS_ERR))
		check_ops->qp_void(ib, reset);
	if (m->mask & IBV_QP_AV)
		qp->av = m->attr->ah_attr;
	if (m->mask & IBV_QP_ALT_PATH)
		qp->alt_av = m->attr->alt_ah_attr;
	if (m->ud_bind)
		qp->bound_all = true;
	if (m->rebind)
		shca_bind_done(qp, &m->path, &m->via);
	if (reset) {
		address_release(qp);
		/* Its completions go with it, as on hardware. */
		cqs_clean(ib);
	}
}

int shca_qp_modify(struct ibv_qp *ib, const struct ibv_qp_attr *attr, int mask)
{
	int err = engine_fault(FAULT_MODIFY_QP) ?: shca_check(ib, SHCA_QP);
	struct modify m;

	if (err)
		return err;
	m = (struct modify){ .ib = ib,
			     .qp = shca_xrc_real(to_qp(ib)),
			     .attr = attr,
			     .mask = useful_mask(ib->qp_type, mask) };
	if (m.mask & IBV_QP_PORT && attr->port_num != 1)
		return why(-EINVAL,
			   "QP 0x%06x: attr.port_num is %u: the device has one "
			   "port, 1",
			   ib->qp_num, attr->port_num);
	if (!to_ctx(ib->context)->dev->transport->has_ah)
		return modify_plain(m.qp, attr, m.mask);
	err = modify_check(&m);
	if (err)
		return err;
	pthread_mutex_lock(&m.qp->modify_lock);
	err = modify_prepare(&m);
	if (!err)
		err = modify_apply(&m);
	if (!err)
		modify_publish(&m);
	pthread_mutex_unlock(&m.qp->modify_lock);
	return err;
}

int shca_qp_query(struct ibv_qp *ib, struct ibv_qp_attr *attr, int mask,
		  struct ibv_qp_init_attr *init)
{
	int err = shca_check(ib, SHCA_QP);
	struct shca_qp *qp;

	(void)mask; /* a hint: all of it is cheap */
	if (err)
		return err;
	qp = shca_xrc_real(to_qp(ib));
	pthread_mutex_lock(&qp->modify_lock);
	shca_qp_lock(qp);
	qp->ops->query(qp->core, attr, init);
	shca_qp_unlock(qp);
	attr->ah_attr = qp->av;
	attr->alt_ah_attr = qp->alt_av;
	ib->state = attr->qp_state;
	pthread_mutex_unlock(&qp->modify_lock);
	init->qp_context = ib->qp_context;
	init->send_cq = ib->send_cq;
	init->recv_cq = ib->recv_cq;
	init->srq = ib->srq;
	init->qp_type = ib->qp_type;
	return 0;
}

bool shca_qp_unpolled(struct ibv_qp *ib)
{
	struct shca_qp *qp = shca_xrc_real(to_qp(ib));

	if (ib->state != IBV_QPS_RTS)
		return false;
	shca_qp_lock(qp); /* after which everything received has completed */
	shca_qp_unlock(qp);
	return (ib->send_cq && shca_cq_holds(to_cq(ib->send_cq), ib->qp_num)) ||
	       (ib->recv_cq && shca_cq_holds(to_cq(ib->recv_cq), ib->qp_num));
}

void shca_qp_counts(struct stat_qp *q, struct qp *core)
{
	const struct shca_qp *qp = core->owner;

#define ADD(id, field, ...) q->n[STAT_##id] += core->field;
	QP_COUNTS(QP_NO_COUNT, ADD)
#undef ADD
	qp->ops->stat(core, q);
}

/* It is about to go: its device keeps its counters. */
static void counts_keep(struct shca_qp *qp)
{
	struct ibv_context *ctx = qp->ex.qp_base.context;
	struct stat_qp q = { 0 };

	if (!ctx)
		return;
	shca_qp_counts(&q, qp->core);
	for (size_t i = 0; i < STAT_COUNTERS; i++)
		atomic_fetch_add(&to_ctx(ctx)->dev->ended[i], q.n[i]);
}

/* Takes a QP away from the receive side and the timers. */
static void qp_kill(struct shca_qp *qp)
{
	struct engine *e = qp->sched.engine;
	struct roce_timewait w;
	bool left;

	engine_qpn_free(e, &qp->sched);
	if (tracing())
		trace_keep(TRACE_QP_GONE, shca_qpn(qp), 0, 0, 0, 0);
	/* A thread that modifies it is done, or finds it dead. */
	pthread_mutex_lock(&qp->modify_lock);
	shca_qp_lock(qp);
	/* The peer waits for the ACKs that are due. */
	qp->ops->flush(qp->core, clock_ns(), true);
	left = shca_qp_leaves(qp, &w);
	qp->sched.dead = true;
	to_process(qp->sched.engine)->xrc.ops->forget(qp);
	counts_keep(qp);
	qp->ops->destroy(qp->core);
	qp->core = NULL;
	shca_remote_forget(qp);
	shca_qp_unlock(qp);
	shca_visits_wait(e);
	engine_timer_drop(e, &qp->sched);
	if (left)
		shca_timewait_add(qp, &w);
	address_release(qp);
	pthread_mutex_unlock(&qp->modify_lock);
	shca_mw_qp_gone(qp);
	cqs_clean(&qp->ex.qp_base);
}

static void qp_free(struct shca_qp *qp)
{
	parts_release(&qp->ex.qp_base);
	if (qp->xrc)
		shca_xrc_qp_gone(qp);
	shca_uncount(qp->sched.engine, SHCA_QP);
	shca_wr_free(qp);
	free(qp->posted);
	qp->posted = NULL;
	shca_qp_put(qp);
}

/* One handle of an XRC_RECV QP; the QP stays while there are others. */
static int xrc_destroy(struct shca_qp *qp)
{
	struct shca_context *ctx = to_ctx(qp->ex.qp_base.context);
	struct shca_qp *real = shca_xrc_real(qp);
	bool last;

	shca_qp_get(real); /* others may close the last handle meanwhile */
	last = shca_xrc_qp_close(qp);
	shca_async_drop(ctx, &qp->ex.qp_base, SHCA_QP);
	if (qp != real) {
		shca_qp_put(qp);
		shca_qp_put(real);
	}
	if (last) {
		qp_kill(real);
		qp_free(real);
	}
	shca_qp_put(real);
	return 0;
}

int shca_qp_destroy(struct ibv_qp *ib)
{
	int err = shca_check(ib, SHCA_QP);
	struct shca_qp *qp = to_qp(ib);
	struct shca_context *ctx;
	struct engine *e;
	bool attached;

	if (err)
		return err;
	ctx = to_ctx(ib->context);
	e = qp->sched.engine;
	pthread_mutex_lock(&to_process(e)->mcast.lock);
	attached = qp->mcast;
	qp->closing = !attached;
	pthread_mutex_unlock(&to_process(e)->mcast.lock);
	if (attached)
		return why(-EBUSY,
			   "QP 0x%06x is still attached to %u multicast "
			   "groups: ibv_detach_mcast() first",
			   ib->qp_num, qp->mcast);
	if (atomic_load(&qp->cm_owner))
		to_process(e)->ops->qp_gone(e, qp);
	shca_live_remove(&qp->live);
	if (check_on())
		check_ops->qp_gone(ib);
	if (ib->qp_type == IBV_QPT_XRC_RECV)
		return xrc_destroy(qp);
	qp_kill(qp);
	shca_async_drop(ctx, ib, SHCA_QP);
	qp_free(qp);
	return 0;
}

/* Work requests */

/* The queues do not know whose they are. */
__attribute__((noinline, cold)) static int about(const struct shca_qp *qp,
						 int err)
{
	return why_about(err, "QP 0x%06x", shca_qpn(qp));
}

__attribute__((noinline, cold)) static int is_handle(const struct shca_qp *qp)
{
	return why(-EINVAL,
		   "QP 0x%06x is an XRC_RECV QP, which has no work queues: "
		   "receives are posted to SRQs",
		   shca_qpn(qp));
}

/* Its callers are the entries that programs call for each message. */
__attribute__((always_inline)) static inline int
post_send(struct ibv_qp *ib, struct ibv_send_wr *wr, struct ibv_send_wr **bad,
	  bool whole)
{
	struct shca_qp *qp = to_qp(ib);
	int err;

	err = engine_dead(qp->sched.engine) ? -EIO :
					      engine_fault(FAULT_POST_SEND);
	if (err) {
		*bad = wr;
		return err;
	}
	if (shca_xrc_is_handle(qp)) {
		*bad = wr;
		return is_handle(qp);
	}
	shca_qp_lock(qp);
	err = qp->ops->post_send(qp->core, wr, bad, whole);
	shca_qp_unlock(qp);
	return err ? about(qp, err) : 0;
}

int shca_qp_post_send(struct ibv_qp *ib, struct ibv_send_wr *wr,
		      struct ibv_send_wr **bad)
{
	return post_send(ib, wr, bad, false);
}

int shca_qp_post_all(struct ibv_qp *ib, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	return post_send(ib, wr, &bad, true);
}

static int post_recv(struct qp *core, struct ibv_recv_wr *wr,
		     struct ibv_recv_wr **bad)
{
	int err;

	for (; wr; wr = wr->next) {
		err = qp_post_recv(core, wr);
		if (err) {
			*bad = wr;
			return err;
		}
		if (tracing())
			shca_record_recv(core->qpn, wr);
	}
	return 0;
}

int shca_qp_post_recv(struct ibv_qp *ib, struct ibv_recv_wr *wr,
		      struct ibv_recv_wr **bad)
{
	struct shca_qp *qp = to_qp(ib);
	int err;

	err = engine_dead(qp->sched.engine) ? -EIO :
					      engine_fault(FAULT_POST_RECV);
	if (err) {
		*bad = wr;
		return err;
	}
	if (shca_xrc_is_handle(qp)) {
		*bad = wr;
		return is_handle(qp);
	}
	shca_qp_lock(qp);
	err = post_recv(qp->core, wr, bad);
	shca_qp_unlock(qp);
	return err ? about(qp, err) : 0;
}

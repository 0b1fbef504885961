/*
 * remote_rsp.c - remote responders: QPs of other processes that receive for
 * SRQs of this one
 *
 * The other side of lease.c. A remote responder is a QP that no program sees.
 * It is made when the first control message about a QP comes, with a core of
 * the attributes in the control message, and has the responder while that is
 * lent. It stays between leases, since a read or an atomic that was executed
 * here may come again.
 *
 * A remote responder is found by QPN. The id that a home gives to a connection,
 * and the domain, distinguish it from one left over from an earlier QP of that
 * number. Only the receive side makes remote responders.
 *
 * Locks: the process's xrc.lock > remote_rsps_lock > a remote responder's QP.
 */
#include "control.h"

#include "base/sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REMOTE_RSPS_MAX 4096
#define REMOTE_RSP_IDLE_NS 60000000000u
/* A responder idle for so long goes home, in case this process dies. */
#define SETTLE_NS 200000u

/* For a QP of another process; in a hash table by its number. */
struct shca_remote_rsp {
	struct shca_remote_rsp *next;
	struct shca_qp *qp;
	uint32_t qpn;
	/* Under the QP's lock. */
	uint64_t qp_id;
	uint32_t lease;
	uint16_t home;
	_Atomic bool held; /* the responder is here; read anywhere */
	bool told; /* the home has the state */
	bool unknown; /* its first request was for no SRQ of this process */
	bool recalled; /* it goes home behind the message at hand */
	int event; /* that it failed with, or -1 */
	_Atomic uint64_t used_ns;
	uint8_t attr[C_LEN - C_ATTR];
};

#define BUCKETS 64

/* Those of this process. Those that have the responder are the engine's
 * unsettled. */
struct shca_remote_rsps {
	pthread_mutex_t lock;
	struct shca_remote_rsp *bucket[BUCKETS];
	_Atomic unsigned n;
};

/* The responder goes home */

static void hold(struct shca_remote_rsp *g, bool held)
{
	_Atomic unsigned *n = &g->qp->sched.engine->unsettled;

	if (held && !g->held)
		atomic_fetch_add(n, 1);
	else if (!held && g->held)
		atomic_fetch_sub(n, 1);
	g->held = held;
}

/* keeps: reports the state, and keeps the responder. */
static void give_back(struct shca_qp *qp, const struct roce_rx *pkt, bool keeps)
{
	struct shca_remote_rsp *g = qp->xrc->remote_rsp;
	bool failed = qp->core->state == IBV_QPS_ERR;
	struct engine *e = qp->sched.engine;
	struct roce_rsp_state s;
	uint8_t w[C_LEN];

	roce_rsp_get(roce_qp(qp->core), &s);
	shca_ctrl_begin(w, RETURN, e, g->qpn, g->lease, g->qp_id, &s);
	if (keeps)
		w[C_FLAGS] |= F_KEEPS;
	if (failed)
		w[C_FLAGS] |= F_FAILED;
	if (g->unknown)
		w[C_FLAGS] |= F_UNKNOWN;
	put_be32(w + C_SRQN, pkt ? pkt->h.xrc_srqn : 0);
	put_be32(w + C_EVENT, (uint32_t)g->event);
	if (shca_ctrl_send(e, g->home, w, roce_qp_path(roce_qp(qp->core)),
			   pkt) == -EAGAIN)
		return;
	g->told = true;
	if (!keeps)
		hold(g, false);
}

/* Between two messages with nothing to send; or failed, and the peer knows. */
static bool settled(struct shca_qp *qp)
{
	struct roce_rsp_state s;

	roce_rsp_get(roce_qp(qp->core), &s);
	return s.idle || (qp->core->state == IBV_QPS_ERR &&
			  !roce_tx_ready(roce_qp(qp->core)));
}

/* Ends a lease at any point; lock held. */
static void finish(struct shca_qp *qp)
{
	if (qp->sched.dead || !qp->xrc->remote_rsp->held)
		return;
	/* The peer waits for an answer, and the link may be busy. */
	for (int i = 0; i < 100 && roce_tx_ready(roce_qp(qp->core)); i++) {
		if (i)
			sys_sleep(500000);
		shca_qp_flush(qp, clock_ns());
	}
	/* A message that has begun cannot be finished. */
	if (!settled(qp))
		roce_rsp_failed(roce_qp(qp->core), IBV_EVENT_QP_FATAL);
	give_back(qp, NULL, false);
}

/*
 * The home gets the state before the peer gets an answer, so that it goes on
 * from where the peer is if this process dies.
 */
static void remote_rsp_note(struct shca_qp *qp)
{
	struct roce_rsp_state s;

	if (!qp->xrc->remote_rsp->held || qp->xrc->remote_rsp->told ||
	    !roce_tx_ready(roce_qp(qp->core)))
		return;
	roce_rsp_get(roce_qp(qp->core), &s);
	if (s.between && qp->core->state != IBV_QPS_ERR)
		give_back(qp, NULL, true);
}

/* Idle remote responders give the responder back. */
void shca_remote_rsp_settle(struct engine *e, uint64_t now)
{
	struct shca_remote_rsps *all = to_process(e)->xrc.remote_rsps;
	struct shca_qp *held[32];
	size_t n = 0;

	pthread_mutex_lock(&all->lock);
	for (size_t i = 0; i < BUCKETS; i++)
		for (struct shca_remote_rsp *g = all->bucket[i]; g; g = g->next)
			if (g->held && n < ARRAY_SIZE(held)) {
				shca_qp_get(g->qp);
				held[n++] = g->qp;
			}
	pthread_mutex_unlock(&all->lock);
	while (n) {
		struct shca_qp *qp = held[--n];

		if (shca_qp_trylock(qp)) {
			if (!qp->sched.dead && qp->xrc->remote_rsp->held) {
				uint64_t due = qp->xrc->remote_rsp->used_ns +
					       SETTLE_NS;

				shca_qp_flush(qp, now);
				if (!settled(qp))
					due = now + SETTLE_NS;
				else if (now >= due ||
					 qp->xrc->remote_rsp->recalled ||
					 qp->core->state == IBV_QPS_ERR)
					give_back(qp, NULL, false);
				else if (!qp->xrc->remote_rsp->told)
					give_back(qp, NULL, true);
				if (qp->xrc->remote_rsp->held)
					engine_timer_set(
						e, &qp->sched,
						due > now ? due :
							    now + SETTLE_NS);
			}
			shca_qp_unlock(qp);
		}
		shca_qp_put(qp);
	}
}

static void remote_rsp_event(struct shca_qp *qp, enum ibv_event_type event)
{
	if (event == IBV_EVENT_QP_REQ_ERR || event == IBV_EVENT_QP_ACCESS_ERR ||
	    event == IBV_EVENT_QP_FATAL)
		qp->xrc->remote_rsp->event = (int)event;
}

/* A packet comes */

bool shca_remote_rsp_rx(struct shca_qp *qp, const struct roce_rx *pkt,
			uint64_t now)
{
	struct shca_remote_rsp *g = qp->xrc->remote_rsp;
	struct engine *e = qp->sched.engine;
	struct roce_rsp_state s;
	int32_t rel;

	roce_rsp_get(roce_qp(qp->core), &s);
	rel = psn_diff(pkt->h.psn, s.epsn);
	g->used_ns = now;
	g->told = false;
	if (rel < 0 && shca_has_answer(pkt))
		return false;
	if (!g->held) {
		give_back(qp, pkt, false); /* it may have been lost */
		return true;
	}
	if (rel || !s.between ||
	    (!g->recalled && shca_domain_has(qp->xrc->domain, pkt->h.xrc_srqn)))
		return false;
	shca_qp_flush(qp, now);
	if (!settled(qp))
		return true;
	g->unknown =
		!g->recalled && registry_owner(e->registry, pkt->h.xrc_srqn) ==
					(int)registry_slot(e->registry);
	give_back(qp, pkt, false);
	return true;
}

/* Beginning and end */

/* Frees a remote responder that is out of the table. */
static void remote_rsp_kill(struct engine *e, struct shca_remote_rsp *g)
{
	struct shca_qp *qp = g->qp;

	shca_qp_lock(qp);
	finish(qp);
	qp->sched.dead = true;
	if (qp->core)
		roce_qp_destroy(roce_qp(qp->core));
	qp->core = NULL;
	hold(g, false);
	qp->xrc->remote_rsp = NULL;
	shca_qp_unlock(qp);
	engine_timer_drop(e, &qp->sched);
	shca_qp_put(qp);
	free(g);
}

/* Of a QP that no longer exists: no home waits for its responder. */
static void remote_rsp_drop(struct engine *e, struct shca_remote_rsp *g)
{
	shca_qp_lock(g->qp);
	hold(g, false);
	shca_qp_unlock(g->qp);
	remote_rsp_kill(e, g);
}

/* Removes those that which() selects; the caller kills them. */
static struct shca_remote_rsp *remote_rsps_take(
	struct engine *e,
	bool (*which)(const struct shca_remote_rsp *g, const void *arg),
	const void *arg)
{
	struct shca_remote_rsps *all = to_process(e)->xrc.remote_rsps;
	struct shca_remote_rsp **p, *g, *list = NULL;

	pthread_mutex_lock(&all->lock);
	for (size_t i = 0; i < BUCKETS; i++) {
		p = &all->bucket[i];
		while ((g = *p)) {
			if (!which(g, arg)) {
				p = &g->next;
				continue;
			}
			*p = g->next;
			all->n--;
			g->next = list;
			list = g;
		}
	}
	pthread_mutex_unlock(&all->lock);
	return list;
}

static void remote_rsps_kill(struct engine *e, struct shca_remote_rsp *list)
{
	struct shca_remote_rsp *next;

	for (; list; list = next) {
		next = list->next;
		remote_rsp_kill(e, list);
	}
}

static bool is_of_domain(const struct shca_remote_rsp *g, const void *domain)
{
	return g->qp->xrc->domain == domain;
}

/* Calls fn for each of a domain's, with the QP's lock held. */
static void remote_rsps_of(struct engine *e, const struct shca_domain *d,
			   void (*fn)(struct shca_qp *qp, const void *arg),
			   const void *arg)
{
	struct shca_remote_rsps *all = to_process(e)->xrc.remote_rsps;

	pthread_mutex_lock(&all->lock);
	for (size_t i = 0; i < BUCKETS; i++) {
		for (struct shca_remote_rsp *g = all->bucket[i]; g;
		     g = g->next) {
			if (!is_of_domain(g, d))
				continue;
			shca_qp_lock(g->qp);
			fn(g->qp, arg);
			shca_qp_unlock(g->qp);
		}
	}
	pthread_mutex_unlock(&all->lock);
}

static void remote_rsp_finish(struct shca_qp *qp, const void *arg)
{
	(void)arg;
	finish(qp);
}

static void remote_rsp_domain_gone(struct engine *e, struct shca_domain *d)
{
	struct shca_remote_rsp *list;

	/* Done while they can still be found: otherwise a home would get an
	 * older state back, with the answer that there is no such domain. */
	remote_rsps_of(e, d, remote_rsp_finish, NULL);
	list = remote_rsps_take(e, is_of_domain, d);
	/* Then nobody can find or have them, nor one that the receive side has
	 * removed. */
	engine_quiesce(e);
	remote_rsps_kill(e, list);
}

static void remote_rsp_without_srq(struct shca_qp *qp, const void *num)
{
	if (qp->sched.dead)
		return;
	roce_srq_gone(roce_qp(qp->core), *(const uint32_t *)num);
	shca_qp_flush(qp, clock_ns());
}

static void remote_rsp_srq_gone(struct engine *e, struct shca_domain *d,
				uint32_t num)
{
	remote_rsps_of(e, d, remote_rsp_without_srq, &num);
}

static bool is_unused(const struct shca_remote_rsp *g, const void *now)
{
	return !g->held &&
	       *(const uint64_t *)now > g->used_ns + REMOTE_RSP_IDLE_NS;
}

static struct shca_remote_rsp **remote_rsp_slot(struct engine *e, uint32_t qpn)
{
	struct shca_remote_rsp **p =
		&to_process(e)->xrc.remote_rsps->bucket[qpn % BUCKETS];

	while (*p && (*p)->qpn != qpn)
		p = &(*p)->next;
	return p;
}

/*
 * The remote responder for the QP that a control message is about, found or
 * made, with a reference on its QP; NULL if there is no such domain. A remote
 * responder of that number in another domain is left over from an earlier QP.
 */
static struct shca_qp *remote_rsp_get(struct engine *e, const uint8_t *w,
				      uint64_t now)
{
	struct shca_process *proc = to_process(e);
	struct shca_remote_rsps *all = to_process(e)->xrc.remote_rsps;
	uint32_t qpn = get_be32(w + C_QPN) & 0xffffff;
	uint8_t key[SHCA_DOMAIN_KEY];
	struct shca_remote_rsp **slot, *g;
	struct shca_domain *d;
	struct shca_xrc *xrc;
	struct shca_qp *qp;

	pthread_mutex_lock(&all->lock);
	slot = remote_rsp_slot(e, qpn);
	g = *slot;
	if (g && shca_domain_key(g->qp->xrc->domain, key) &&
	    !memcmp(key, w + C_DOMAIN, sizeof(key))) {
		qp = g->qp;
		shca_qp_get(qp);
		pthread_mutex_unlock(&all->lock);
		return qp;
	}
	if (g) {
		*slot = g->next;
		all->n--;
	}
	pthread_mutex_unlock(&all->lock);
	if (g)
		remote_rsp_drop(e, g);
	if (all->n >= REMOTE_RSPS_MAX)
		remote_rsps_kill(e, remote_rsps_take(e, is_unused, &now));
	g = calloc(1, sizeof(*g));
	qp = aligned_zalloc(sizeof(*qp));
	xrc = calloc(1, sizeof(*xrc));
	/* xrc.lock keeps the domain until the remote responder is in the table;
	 * from then on the domain takes it along when it goes. */
	pthread_mutex_lock(&proc->xrc.lock);
	d = shca_domain_find(e, w + C_DOMAIN);
	if (!g || !qp || !xrc || !d || all->n >= REMOTE_RSPS_MAX) {
		pthread_mutex_unlock(&proc->xrc.lock);
		free(g);
		free(qp);
		free(xrc);
		return NULL;
	}
	shca_qp_init(qp, e, &shca_roce);
	shca_qp_get(qp); /* for the caller */
	qp->ops = &shca_roce_ops;
	qp->sched.num = qpn;
	qp->sched.foreign = true;
	pthread_mutex_init(&qp->modify_lock, NULL);
	qp->ex.qp_base.qp_num = qpn;
	qp->ex.qp_base.qp_type = IBV_QPT_XRC_RECV;
	xrc->domain = d;
	xrc->remote_rsp = g;
	xrc->abandoned = true; /* no handle, so no events */
	qp->xrc = xrc;
	g->qp = qp;
	g->qpn = qpn;
	g->used_ns = now;
	pthread_mutex_lock(&all->lock);
	/* Only the receive side makes remote responders, so there is still
	 * none. */
	g->next = all->bucket[qpn % BUCKETS];
	all->bucket[qpn % BUCKETS] = g;
	all->n++;
	pthread_mutex_unlock(&all->lock);
	pthread_mutex_unlock(&proc->xrc.lock);
	return qp;
}

/* The responder comes, or a request that it has executed here before */

static int core_create(struct shca_qp *qp, const uint8_t *w)
{
	struct qp_init init = {
		.env = &to_process(qp->sched.engine)->env.base,
		.owner = qp,
		.qpn = get_be32(w + C_QPN) & 0xffffff,
		.type = IBV_QPT_XRC_RECV,
		.seed = get_be32(w + C_QPN) * 0x9e3779b1u,
	};
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = get_be32(w + C_ACCESS),
		.path_mtu = w[C_MTU],
		.dest_qp_num = get_be32(w + C_DEST_QPN) & 0xffffff,
		.rq_psn = get_be32(w + C_EPSN) & 0xffffff,
		.max_dest_rd_atomic = w[C_RD_ATOMIC],
		.min_rnr_timer = w[C_RNR_TIMER],
	};
	struct roce_path path = {
		.sgid_scope = get_be32(w + C_SCOPE),
		.flow_label = get_be32(w + C_FLOW),
		.sport = (uint16_t)get_be16(w + C_SPORT),
		.tclass = w[C_TCLASS],
		.hop_limit = w[C_HOPS],
		.local = w[C_LOCAL] & 1,
		.lossless = w[C_LOCAL] & 2,
	};
	struct roce_qp *core;
	int err;

	memcpy(path.sgid.raw, w + C_SGID, 16);
	memcpy(path.dgid.raw, w + C_DGID, 16);
	if (roce_gid_is_v4(&path.sgid) != roce_gid_is_v4(&path.dgid) ||
	    attr.path_mtu < IBV_MTU_256 || attr.path_mtu > IBV_MTU_4096)
		return -EINVAL;
	err = roce_qp_create(&core, &init);
	if (err)
		return err;
	err = roce_qp_modify(core, &attr,
			     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
				     IBV_QP_ACCESS_FLAGS,
			     NULL);
	attr.qp_state = IBV_QPS_RTR;
	if (!err)
		err = roce_qp_modify(core, &attr,
				     IBV_QP_STATE | IBV_QP_AV |
					     IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
					     IBV_QP_RQ_PSN |
					     IBV_QP_MAX_DEST_RD_ATOMIC |
					     IBV_QP_MIN_RNR_TIMER,
				     &path);
	if (err) {
		roce_qp_destroy(core);
		return err;
	}
	if (qp->core)
		roce_qp_destroy(roce_qp(qp->core));
	qp->core = roce_qp_base(core);
	return 0;
}

/* LEND or AGAIN; lock held. False: the packet is to be dropped. */
static bool remote_rsp_prepare(struct shca_qp *qp, const uint8_t *w)
{
	struct shca_remote_rsp *g = qp->xrc->remote_rsp;
	uint32_t lease = get_be32(w + C_LEASE);
	struct roce_rsp_state s = shca_ctrl_state(w);
	/* Then the peer sends it again; but what has begun goes on. */
	const bool leaves =
		atomic_load(&to_process(qp->sched.engine)->xrc.leaves);
	bool other, fresh;

	if (!g)
		return false; /* it is being killed */
	other = !qp->core || g->qp_id != get_be64(w + C_QP_ID) ||
		memcmp(g->attr, w + C_ATTR, sizeof(g->attr));
	fresh = !qp->core || g->qp_id != get_be64(w + C_QP_ID) ||
		(int32_t)(lease - g->lease) > 0;
	if (w[C_KIND] == AGAIN) {
		/* Before the first lease nothing was executed here. */
		if (leaves || other || g->held ||
		    qp->core->state == IBV_QPS_ERR)
			return false;
		roce_rsp_set(roce_qp(qp->core), &s);
		return true;
	}
	if (!fresh)
		return lease == g->lease;
	if (leaves)
		return false;
	if ((other || qp->core->state == IBV_QPS_ERR) && core_create(qp, w))
		return false;
	qp->sched.dead = false;
	memcpy(g->attr, w + C_ATTR, sizeof(g->attr));
	g->qp_id = get_be64(w + C_QP_ID);
	g->home = (uint16_t)get_be16(w + C_SLOT);
	g->lease = lease;
	g->event = -1;
	g->unknown = g->recalled = false;
	hold(g, true);
	roce_rsp_set(roce_qp(qp->core), &s);
	return true;
}

/* There is no such domain in this process. */
static void refuse(struct engine *e, const uint8_t *w,
		   const struct roce_rx *inner)
{
	uint8_t r[C_LEN];

	if (w[C_KIND] != LEND)
		return;
	memcpy(r, w, C_LEN);
	r[C_KIND] = RETURN;
	r[C_FLAGS] |= F_UNKNOWN;
	put_be16(r + C_SLOT, registry_slot(e->registry));
	put_be32(r + C_SRQN, inner->h.xrc_srqn);
	shca_ctrl_send(e, get_be16(w + C_SLOT), r, NULL, inner);
}

struct shca_qp *shca_remote_rsp_ctrl(struct engine *e, const uint8_t *w,
				     const struct roce_rx *inner, uint64_t now)
{
	struct shca_qp *qp = remote_rsp_get(e, w, now);
	bool good;

	if (!qp) {
		refuse(e, w, inner);
		return NULL;
	}
	shca_qp_lock(qp);
	good = remote_rsp_prepare(qp, w);
	shca_qp_unlock(qp);
	/* No reference is needed: remote_rsp_domain_gone() waits for the
	 * receive side. */
	shca_qp_put(qp);
	return good ? qp : NULL;
}

/* Lock held. */
static void guest_recall(struct shca_qp *qp)
{
	struct shca_remote_rsp *g = qp->xrc->remote_rsp;

	if (qp->sched.dead || !g->held)
		return;
	g->recalled = true;
	shca_qp_flush(qp, clock_ns());
	if (settled(qp))
		give_back(qp, NULL, false);
}

void shca_remote_rsp_recall(struct engine *e, const uint8_t *w)
{
	struct shca_remote_rsps *all = to_process(e)->xrc.remote_rsps;
	const uint32_t qpn = get_be32(w + C_QPN) & 0xffffff;
	struct shca_remote_rsp *g;

	pthread_mutex_lock(&all->lock);
	g = *remote_rsp_slot(e, qpn);
	if (g) {
		shca_qp_lock(g->qp);
		if (g->qp_id == get_be64(w + C_QP_ID) &&
		    g->lease == get_be32(w + C_LEASE))
			guest_recall(g->qp);
		shca_qp_unlock(g->qp);
	}
	pthread_mutex_unlock(&all->lock);
}

uint32_t shca_remote_rsps_recall(struct engine *e)
{
	struct shca_remote_rsps *all = to_process(e)->xrc.remote_rsps;
	uint32_t left = 0;

	pthread_mutex_lock(&all->lock);
	for (size_t i = 0; i < BUCKETS; i++)
		for (struct shca_remote_rsp *g = all->bucket[i]; g;
		     g = g->next) {
			shca_qp_lock(g->qp);
			guest_recall(g->qp);
			if (g->held)
				left = g->qpn;
			shca_qp_unlock(g->qp);
		}
	pthread_mutex_unlock(&all->lock);
	return left;
}

static const struct shca_xrc_ops xrc_ops = {
	.rx = shca_lease_rx,
	.note = remote_rsp_note,
	.event = remote_rsp_event,
	.forget = shca_lease_forget,
	.srq_gone = remote_rsp_srq_gone,
	.domain_gone = remote_rsp_domain_gone,
};

int shca_remote_rsps_init(struct engine *e)
{
	struct shca_remote_rsps *all = calloc(1, sizeof(*all));

	if (!all)
		return -ENOMEM;
	pthread_mutex_init(&all->lock, NULL);
	to_process(e)->xrc.remote_rsps = all;
	to_process(e)->xrc.ops = &xrc_ops;
	return 0;
}

void shca_remote_rsps_fini(struct engine *e)
{
	free(to_process(e)->xrc.remote_rsps);
	to_process(e)->xrc.remote_rsps = NULL;
}

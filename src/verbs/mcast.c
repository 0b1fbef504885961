/*
 * mcast.c - multicast groups, and the QPs attached to them
 *
 * A group is joined on every interface of its device that has an address of
 * the group's kind, from its first QP until its last. Each QP in it receives a
 * copy of each packet.
 */
#include "verbs.h"

#include "base/gid.h"
#include "base/sys.h"
#include "base/why.h"
#include "qp/names.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct mcast_group {
	struct mcast_group *next;
	struct shca_device *dev;
	union ibv_gid gid; /* its address */
	union ibv_gid mgid; /* and its name, which is that of RoCE */
	size_t n;
	struct shca_qp *qp[SHCA_MAX_MCAST_QP];
	/* Interfaces joined, to be left again. */
	uint32_t joined[NETDEV_MAX_GIDS];
	size_t njoined;
};

/* Joins on every interface of the device that has an address of the kind. */
static int group_join(struct engine *e, struct mcast_group *g)
{
	int err = -EADDRNOTAVAIL;
	uint32_t i, k;

	for (i = 0; i < NETDEV_MAX_GIDS; i++) {
		struct netdev_gid via, own;
		int r;

		/* A port of InfiniBand is one of them. */
		if (!shca_device_entry(g->dev, i, &via) ||
		    !shca_device_addr(g->dev, &via.gid, &own) ||
		    !gid_equal(&own.gid, &via.gid) ||
		    roce_gid_is_v4(&via.gid) != roce_gid_is_v4(&g->gid))
			continue;
		for (k = 0; k < g->njoined; k++)
			if (g->joined[k] == via.ifindex)
				break;
		if (k < g->njoined)
			continue;
		r = engine_bind(e, &g->gid, via.ifindex);
		if (!r)
			g->joined[g->njoined++] = via.ifindex;
		else
			err = r;
	}
	return g->njoined ? 0 : err;
}

static void group_leave(struct engine *e, struct mcast_group *g)
{
	size_t k;

	for (k = 0; k < g->njoined; k++)
		udp_unbind(e->udp, &g->gid, g->joined[k]);
	free(g);
}

static struct mcast_group **group_find(struct engine *e,
				       const struct shca_device *dev,
				       const union ibv_gid *mgid,
				       size_t *ngroups)
{
	struct mcast_group **p;

	*ngroups = 0;
	for (p = &to_process(e)->mcast.groups; *p; p = &(*p)->next, ++*ngroups)
		if ((*p)->dev == dev && gid_equal(&(*p)->mgid, mgid))
			break;
	return p;
}

static int group_address(const struct shca_qp *qp, const union ibv_gid *mgid,
			 uint16_t mlid, union ibv_gid *addr)
{
	const struct shca_device *dev = to_ctx(qp->ex.qp_base.context)->dev;
	struct gid_text at;

	*addr = *mgid;
	if (dev->naming->group)
		return dev->naming->group(mgid, mlid, addr);
	if (roce_gid_is_multicast(mgid))
		return 0;
	return why(-EINVAL,
		   "QP 0x%06x: %s is not a multicast address (224.0.0.0/4 as "
		   "::ffff:224.x.x.x, or ff00::/8)",
		   shca_qpn(qp), gid_str(mgid, &at));
}

int shca_mcast_attach(struct ibv_qp *ib, const union ibv_gid *gid,
		      uint16_t mlid)
{
	int err = shca_check(ib, SHCA_QP);
	struct shca_qp *qp = to_qp(ib);
	struct mcast_group **p, *g;
	struct shca_device *dev;
	struct engine *e;
	union ibv_gid addr;
	struct gid_text at;
	size_t i, ngroups;

	if (err)
		return err;
	dev = to_ctx(ib->context)->dev;
	e = qp->sched.engine;
	if (!dev->transport->has_mcast)
		return why(-EOPNOTSUPP, "%s has no multicast",
			   dev->transport->name);
	if (ib->qp_type != IBV_QPT_UD)
		return why(-EINVAL,
			   "QP 0x%06x is of type %s: multicast is for UD QPs",
			   ib->qp_num, qp_type_str(ib->qp_type));
	err = group_address(qp, gid, mlid, &addr);
	if (err)
		return err;
	pthread_mutex_lock(&to_process(e)->mcast.attach_lock);
	p = group_find(e, dev, gid, &ngroups);
	g = *p;
	if (!g) {
		if (ngroups >= SHCA_MAX_MCAST_GRP)
			err = why(-ENOMEM,
				  "this process is in %d multicast groups, as "
				  "many as it can be",
				  SHCA_MAX_MCAST_GRP);
		else if (!(g = calloc(1, sizeof(*g))))
			err = -ENOMEM;
		if (err)
			goto out;
		g->dev = dev;
		g->gid = addr;
		g->mgid = *gid;
		err = group_join(e, g);
		if (err) {
			why(err,
			    "QP 0x%06x: cannot join %s on any interface of the "
			    "device: %s",
			    ib->qp_num, gid_str(gid, &at), sys_strerror(-err));
			group_leave(e, g);
			goto out;
		}
	}
	/* A QP attached twice gets one copy, ibv_attach_mcast(3). */
	for (i = 0; i < g->n; i++)
		if (g->qp[i] == qp)
			goto out;
	if (g->n == SHCA_MAX_MCAST_QP) {
		err = why(-ENOMEM,
			  "%d QPs of this process are attached to %s, as many "
			  "as can be",
			  SHCA_MAX_MCAST_QP, gid_str(gid, &at));
		goto out;
	}
	pthread_mutex_lock(&to_process(e)->mcast.lock);
	if (qp->closing) {
		err = -EINVAL;
	} else {
		g->qp[g->n++] = qp;
		qp->mcast++;
		*p = g;
	}
	pthread_mutex_unlock(&to_process(e)->mcast.lock);
	if (err && !g->n)
		group_leave(e, g);
out:
	pthread_mutex_unlock(&to_process(e)->mcast.attach_lock);
	return err;
}

int shca_mcast_detach(struct ibv_qp *ib, const union ibv_gid *gid)
{
	int err = shca_check(ib, SHCA_QP);
	struct shca_qp *qp = to_qp(ib);
	struct mcast_group **p, *g;
	struct gid_text at;
	struct engine *e;
	size_t i, ngroups;

	if (err)
		return err;
	e = qp->sched.engine;
	pthread_mutex_lock(&to_process(e)->mcast.attach_lock);
	p = group_find(e, to_ctx(ib->context)->dev, gid, &ngroups);
	g = *p;
	for (i = 0; g && i < g->n; i++)
		if (g->qp[i] == qp)
			break;
	if (!g || i == g->n) {
		pthread_mutex_unlock(&to_process(e)->mcast.attach_lock);
		return why(-EINVAL, "QP 0x%06x is not attached to %s",
			   ib->qp_num, gid_str(gid, &at));
	}
	pthread_mutex_lock(&to_process(e)->mcast.lock);
	g->qp[i] = g->qp[--g->n];
	qp->mcast--;
	if (!g->n)
		*p = g->next;
	pthread_mutex_unlock(&to_process(e)->mcast.lock);
	if (!g->n)
		group_leave(e, g);
	pthread_mutex_unlock(&to_process(e)->mcast.attach_lock);
	return 0;
}

/* One of InfiniBand sees the group's MGID in the GRH. */
static void group_rx(const struct mcast_group *g, struct shca_qp *qp,
		     const struct roce_rx *pkt, uint64_t now)
{
	if (shca_qp_trylock(qp)) {
		if (!qp->sched.dead && g->dev->naming->group)
			qp->sched.ops->rx(&qp->sched, pkt, now);
		else if (!qp->sched.dead)
			roce_rx(roce_qp(qp->core), pkt, now);
		shca_qp_unlock(qp);
	} else if (engine_qp_defer(&qp->sched, pkt)) {
		shca_qp_unlock(qp);
	}
}

bool shca_mcast_rx(struct engine *e, const struct roce_rx *pkt, uint64_t now)
{
	struct shca_process *proc = to_process(e);
	struct mcast_group *g;
	struct roce_rx named;
	bool joined = false;
	size_t i;

	pthread_mutex_lock(&proc->mcast.lock);
	for (g = proc->mcast.groups; g; g = g->next) {
		if (memcmp(&g->gid, &pkt->dgid, sizeof(g->gid)))
			continue;
		joined = true;
		if (g->dev->naming->group) {
			named = *pkt;
			named.dgid = g->mgid;
		}
		for (i = 0; i < g->n; i++)
			group_rx(g, g->qp[i],
				 g->dev->naming->group ? &named : pkt, now);
	}
	pthread_mutex_unlock(&proc->mcast.lock);
	return joined;
}

int shca_mcast_init(struct engine *e)
{
	pthread_mutex_init(&to_process(e)->mcast.attach_lock, NULL);
	pthread_mutex_init(&to_process(e)->mcast.lock, NULL);
	return 0;
}

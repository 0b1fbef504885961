/*
 * bind.c - the address at which a connected QP receives
 *
 * UDP port 4791 of the address that its path sends from, and of RoCE v1 that
 * address's frames as well: the registry knows by the port which processes receive
 * there. A QP that gets another path is bound at both until it has taken that.
 */
#include "qp.h"

#include "base/gid.h"
#include "base/sys.h"
#include "base/why.h"

#include <errno.h>
#include <string.h>

static int address_taken(const struct shca_qp *qp, const union ibv_gid *sgid)
{
	const char *who = udp_why(qp->sched.engine->udp);
	struct gid_text at;

	return who && *who ?
		       why(-EADDRINUSE, "QP 0x%06x: %s", shca_qpn(qp), who) :
		       why(-EADDRINUSE,
			   "QP 0x%06x: UDP port 4791 of %s is taken: softhca "
			   "doctor shows the owner",
			   shca_qpn(qp), gid_str(sgid, &at));
}

/* Where another user has the port, acknowledgements of other hosts go there:
 * failing at once is better than failing by retries. */
static int acks_check(const struct shca_qp *qp, const struct roce_path *path)
{
	enum ibv_qp_type type = qp->ex.qp_base.qp_type;

	if (type == IBV_QPT_UC ||
	    !udp_taken(qp->sched.engine->udp, &path->sgid, path->sgid_scope) ||
	    netdev_is_local_on(&path->dgid, path->sgid_scope))
		return 0;
	return address_taken(qp, &path->sgid);
}

static int cannot_bind(const struct shca_qp *qp, const struct netdev_gid *via,
		       int err)
{
	struct gid_text at;

	return err == -EADDRINUSE ? address_taken(qp, &via->gid) :
				    why(err,
					"QP 0x%06x: cannot receive on UDP port "
					"4791 of %s (%s): %s",
					shca_qpn(qp), gid_str(&via->gid, &at),
					via->ifname, sys_strerror(-err));
}

static struct shca_bound place(const struct roce_path *path,
			       const struct netdev_gid *via)
{
	return (struct shca_bound){ .is = true,
				    .v1 = path->v1,
				    .gid = via->gid,
				    .ifindex = via->ifindex };
}

void shca_bound_end(struct engine *e, const struct shca_bound *b)
{
	if (!b->is)
		return;
	udp_unbind(e->udp, &b->gid, b->ifindex);
	if (b->v1)
		engine_unbind_v1(e, &b->gid, b->ifindex);
}

static int bind_at(struct shca_qp *qp, const struct roce_path *path,
		   const struct netdev_gid *via)
{
	struct engine *e = qp->sched.engine;
	int err = engine_bind(e, &via->gid, via->ifindex);

	if (err)
		return cannot_bind(qp, via, err);
	if (path->v1)
		err = engine_bind_v1(e, &via->gid, via->ifindex);
	if (!err)
		return 0;
	udp_unbind(e->udp, &via->gid, via->ifindex);
	return why(err, "QP 0x%06x: cannot receive RoCE v1 on %s: %s",
		   shca_qpn(qp), via->ifname, sys_strerror(-err));
}

int shca_bind(struct shca_qp *qp, const struct roce_path *path,
	      const struct netdev_gid *via, bool *more)
{
	const struct shca_bound *b = &qp->bound;
	int err;

	*more = !b->is || b->v1 != path->v1 || b->ifindex != via->ifindex ||
		memcmp(&b->gid, &via->gid, sizeof(via->gid));
	if (*more) {
		err = bind_at(qp, path, via);
		if (err) {
			*more = false;
			return err;
		}
	}
	err = path->v1 ? 0 : acks_check(qp, path);
	if (err && *more) {
		*more = false;
		shca_bind_undo(qp, path, via);
	}
	return err;
}

void shca_bind_undo(struct shca_qp *qp, const struct roce_path *path,
		    const struct netdev_gid *via)
{
	const struct shca_bound b = place(path, via);

	shca_bound_end(qp->sched.engine, &b);
}

void shca_bind_done(struct shca_qp *qp, const struct roce_path *path,
		    const struct netdev_gid *via)
{
	shca_unbind(qp);
	qp->bound = place(path, via);
}

void shca_unbind(struct shca_qp *qp)
{
	shca_bound_end(qp->sched.engine, &qp->bound);
	qp->bound.is = false;
}

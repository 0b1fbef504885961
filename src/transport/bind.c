/*
 * bind.c - the address at which a connected QP receives
 *
 * UDP port 4791 of the address that its path sends from. A QP that gets another
 * path is bound at both until it has taken that.
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

int shca_bind(struct shca_qp *qp, const struct roce_path *path,
	      const struct netdev_gid *via, bool *more)
{
	const struct shca_bound *b = &qp->bound;
	int err;

	*more = !b->is || b->ifindex != via->ifindex ||
		memcmp(&b->gid, &via->gid, sizeof(via->gid));
	if (*more) {
		err = engine_bind(qp->sched.engine, &via->gid, via->ifindex);
		if (err) {
			*more = false;
			return cannot_bind(qp, via, err);
		}
	}
	err = acks_check(qp, path);
	if (err && *more) {
		*more = false;
		shca_bind_undo(qp, via);
	}
	return err;
}

void shca_bind_undo(struct shca_qp *qp, const struct netdev_gid *via)
{
	udp_unbind(qp->sched.engine->udp, &via->gid, via->ifindex);
}

void shca_bind_done(struct shca_qp *qp, const struct netdev_gid *via)
{
	shca_unbind(qp);
	qp->bound = (struct shca_bound){ .is = true,
					 .gid = via->gid,
					 .ifindex = via->ifindex };
}

void shca_unbind(struct shca_qp *qp)
{
	struct shca_bound *b = &qp->bound;

	if (b->is)
		udp_unbind(qp->sched.engine->udp, &b->gid, b->ifindex);
	b->is = false;
}

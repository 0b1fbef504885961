/*
 * mcast.c - multicast groups of identifiers
 *
 * In RoCEv2 a group is an IP multicast address, so no service is queried:
 * joining is complete at once. The packets of a group arrive once a QP is
 * attached to it, which joins the group on the interface (IGMP, MLD) as well.
 * That happens when the program fetches the event, or, if the QP is not one of
 * rdma_create_qp(), when it calls ibv_attach_mcast().
 */
#include "cma.h"

#include "base/gid.h"
#include "net/ibaddr.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define CMA_MLID 0xc000 /* for programs to pass on, where there are no LIDs */

void cma_ah_attr(struct cma_id *id, const struct roce_path *path,
		 struct ibv_ah_attr *attr)
{
	shca_av(to_ctx(id->dev->verbs)->dev, path, attr);
}

static int addr_to_mgid(const struct sockaddr *addr, union ibv_gid *mgid)
{
	struct cma_text at;

	if (!addr || !cma_addr_len(addr))
		return why(-EINVAL, "no address, or not AF_INET or AF_INET6");
	if (addr->sa_family == AF_IB)
		*mgid = cma_sib_raw(addr);
	else
		cma_addr_gid(addr, mgid);
	return roce_gid_is_multicast(mgid) ?
		       0 :
		       why(-EINVAL, "%s is not a multicast address",
			   cma_addr_str(addr, &at));
}

/* The MGID of an address, and the address of an MGID. */
static int ib_group(const struct cma_id *id, union ibv_gid *mgid,
		    union ibv_gid *addr)
{
	const uint32_t v4 = ib_mgid_addr(mgid);

	if (!v4)
		return why(-EINVAL, "the group has no MGID");
	*addr = ib_v4_gid(v4);
	if (gid_is_v4(mgid))
		*mgid = ib_mgid(v4, id->id.ps == RDMA_PS_IPOIB);
	return 0;
}

static int join_group(struct cma_id *id, const struct sockaddr *addr,
		      uint32_t flags, void *context)
{
	struct roce_path path;
	struct cma_event *ev;
	struct cma_mc *mc;
	int err;

	if (engine_dead(cma_engine()))
		return -EIO;
	err = cma_late_dev(id);
	if (err)
		return err;
	if (id->id.qp_type != IBV_QPT_UD)
		return why(
			-EINVAL,
			"multicast is for identifiers of RDMA_PS_UDP (UD QPs)");
	if (!id->dev ||
	    (id->state != CMA_ADDR_BOUND && id->state != CMA_ADDR_RESOLVED))
		return cma_wrong_state(
			id, "rdma_bind_addr() to an address of an interface, "
			    "or rdma_resolve_addr(), first");
	mc = calloc(1, sizeof(*mc));
	if (!mc)
		return -ENOMEM;
	path = id->path;
	err = addr_to_mgid(addr, &mc->mgid);
	path.dgid = mc->mgid;
	if (!err && cma_is_infiniband(id->dev))
		err = ib_group(id, &mc->mgid, &path.dgid);
	else if (!err &&
		 roce_gid_is_v4(&mc->mgid) != roce_gid_is_v4(&path.sgid))
		err = why(-EINVAL, "the group and the address that is bound "
				   "are of two families, IPv4 and IPv6");
	if (err)
		goto err_free;
	mc->context = context;
	mc->send_only = flags == RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER;
	memcpy(&mc->addr, addr, cma_addr_len(addr));
	ev = cma_event_new(id, RDMA_CM_EVENT_MULTICAST_JOIN, 0);
	if (!ev) {
		err = -ENOMEM;
		goto err_free;
	}
	path.hop_limit = 1;
	if (id->tos_set)
		path.tclass = id->tos;
	cma_ah_attr(id, &path, &ev->ev.param.ud.ah_attr);
	if (cma_is_infiniband(id->dev))
		ev->ev.param.ud.ah_attr.grh.dgid = mc->mgid;
	if (!ev->ev.param.ud.ah_attr.dlid)
		ev->ev.param.ud.ah_attr.dlid = CMA_MLID;
	mc->mgid = ev->ev.param.ud.ah_attr.grh.dgid;
	mc->mlid = ev->ev.param.ud.ah_attr.dlid;
	ev->ev.param.ud.qp_num = ROCE_MULTICAST_QPN;
	ev->ev.param.ud.qkey = cma_qkey(id);
	ev->ev.param.ud.private_data = context;
	ev->mc = mc;
	cma_lock();
	mc->next = id->mc;
	id->mc = mc;
	cma_event_post(ev);
	cma_unlock();
	return 0;

err_free:
	free(mc);
	return err;
}

int rdma_join_multicast_ex(struct rdma_cm_id *ib,
			   struct rdma_cm_join_mc_attr_ex *attr, void *context)
{
	struct cma_id *id = to_id(ib);
	int err;

	if (attr->comp_mask >= RDMA_CM_JOIN_MC_ATTR_RESERVED)
		return cma_ret(why(-ENOTSUP, "comp_mask 0x%x has unknown bits",
				   attr->comp_mask));
	if (!(attr->comp_mask & RDMA_CM_JOIN_MC_ATTR_ADDRESS) ||
	    !(attr->comp_mask & RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS) ||
	    attr->join_flags >= RDMA_MC_JOIN_FLAG_RESERVED)
		return cma_ret(why(-EINVAL, "addr and join_flags are needed, "
					    "with both bits in comp_mask"));
	err = join_group(id, attr->addr, attr->join_flags, context);
	return err ? cma_ret(err) : cma_complete(id);
}

int rdma_join_multicast(struct rdma_cm_id *ib, struct sockaddr *addr,
			void *context)
{
	struct cma_id *id = to_id(ib);
	int err = join_group(id, addr, RDMA_MC_JOIN_FLAG_FULLMEMBER, context);

	return err ? cma_ret(err) : cma_complete(id);
}

void cma_mc_joined(struct cma_id *id, struct cma_event *ev)
{
	struct cma_mc *mc = ev->mc;
	struct ibv_qp *qp;
	int err;

	if (mc->send_only)
		return;
	qp = cma_qp_get(id);
	if (!qp)
		return;
	err = ibv_attach_mcast(qp, &mc->mgid, mc->mlid);
	cma_qp_put(qp);
	if (err) {
		ev->ev.event = RDMA_CM_EVENT_MULTICAST_ERROR;
		ev->ev.status = -err;
	} else {
		mc->attached = true;
	}
}

/* mc is out of the list; its event, if it was fetched, may not be acked. */
static void leave_group(struct cma_id *id, struct cma_mc *mc)
{
	struct ibv_qp *qp = mc->attached ? cma_qp_get(id) : NULL;

	if (qp) {
		ibv_detach_mcast(qp, &mc->mgid, mc->mlid);
		cma_qp_put(qp);
	}
	cma_wait_acked(&mc->completed, &mc->reported, "rdma_leave_multicast()");
	free(mc);
}

int rdma_leave_multicast(struct rdma_cm_id *ib, struct sockaddr *addr)
{
	struct cma_id *id = to_id(ib);
	struct cma_mc **p, *mc;
	socklen_t len;

	if (engine_dead(cma_engine()))
		return cma_ret(-EIO);
	len = addr ? cma_addr_len(addr) : 0;
	if (!len)
		return cma_ret(
			why(-EINVAL, "no address, or not AF_INET or AF_INET6"));
	cma_lock();
	for (p = &id->mc; *p; p = &(*p)->next)
		if (!memcmp(&(*p)->addr, addr, len))
			break;
	mc = *p;
	if (mc) {
		*p = mc->next;
		cma_mc_events_drop(id, mc);
	}
	cma_unlock();
	if (!mc)
		return cma_ret(why(-EADDRNOTAVAIL,
				   "the identifier has not joined that group"));
	/* the event of a synchronous identifier is kept until the next call */
	if (id->sync && ib->event &&
	    container_of(ib->event, struct cma_event, ev)->mc == mc) {
		rdma_ack_cm_event(ib->event);
		ib->event = NULL;
	}
	leave_group(id, mc);
	return 0;
}

void cma_mc_leave_all(struct cma_id *id)
{
	while (id->mc)
		rdma_leave_multicast(&id->id, (struct sockaddr *)&id->mc->addr);
}

/*
 * infiniband.c - ports that have a LID
 *
 * A port is an IPv4 address of an interface: the first of the device's table.
 * Its LID and its GID stand for that address (net/ibaddr.h). An address vector
 * is translated where a path is made of it, so what is below knows addresses
 * alone: a queue pair is one of RoCE, and between hosts its packets are RoCEv2's.
 * What a datagram tells of its sender is translated back where it comes in.
 *
 * Whether there was a GRH is said by the TTL: a packet without one does not leave
 * its subnet, and has 1; one with a GRH has the GRH's hop limit and one more.
 */
#include "infiniband.h"

#include "verbs.h"

#include "base/bytes.h"
#include "base/gid.h"
#include "base/say.h"
#include "base/why.h"
#include "net/ibaddr.h"
#include "os/config.h"
#include "transport/record.h"
#include "wire/grh.h"

#include <errno.h>
#include <string.h>

/*
 * Where packets are sent that no port would take. Sockets refuse it, so they are
 * lost and no one is troubled with them: like those for a LID that the switches
 * of a fabric do not know.
 */
#define NOWHERE 0xffffffffu

#define TTL_NO_GRH 1

/* The port */

/* In one word, since datagrams come in while others hold the device's lock. */
struct port {
	uint32_t addr;
	uint8_t prefix;
	uint16_t lid; /* 0: it has none, and is down */
};

static struct port port_of(const struct shca_device *dev)
{
	const uint64_t w =
		atomic_load_explicit(&dev->ib_port, memory_order_relaxed);
	struct port p = { .addr = (uint32_t)(w >> 8), .prefix = (uint8_t)w };

	p.lid = ib_lid(p.addr, p.prefix);
	return p;
}

static void lid_changed(struct shca_device *dev)
{
	const struct netdev_gid *g = ib_port(&dev->gids);

	atomic_store_explicit(&dev->ib_port,
			      g ? (uint64_t)ib_v4(&g->gid) << 8 | g->prefix : 0,
			      memory_order_relaxed);
}

static uint64_t lid_guid(const struct shca_device *dev)
{
	const struct port p = port_of(dev);

	return p.addr ? ib_guid(p.addr) : 0;
}

static union ibv_gid lid_gid_of(const union ibv_gid *addr)
{
	const uint32_t v4 = ib_v4(addr);

	return roce_gid_is_multicast(addr) ? ib_mgid(v4, false) : ib_gid(v4);
}

static bool lid_gid(const struct shca_device *dev, struct netdev_gid *gid)
{
	const struct netdev_gid *g = ib_port(&dev->gids);

	if (!g)
		return false;
	*gid = *g;
	gid->gid = ib_gid(ib_v4(&g->gid));
	return true;
}

/* A loopback address stands for the port as well. */
static const struct netdev_gid *lid_addr(const struct shca_device *dev,
					 const union ibv_gid *addr)
{
	const struct netdev_gid *g = ib_port(&dev->gids);

	return g && (gid_equal(&g->gid, addr) || gid_is_v4_loopback(addr)) ?
		       g :
		       NULL;
}

static void lid_port(struct shca_device *dev, struct ibv_port_attr *attr)
{
	const struct port p = port_of(dev);

	attr->link_layer = IBV_LINK_LAYER_INFINIBAND;
	attr->lid = p.lid;
	attr->sm_lid = p.lid ? ib_sm_lid(p.prefix) : 0;
	attr->subnet_timeout = 18;
	if (p.lid)
		return;
	attr->state = IBV_PORT_DOWN;
	attr->phys_state = 3; /* Disabled */
}

/* Address vectors */

static bool same_subnet(const struct port *p, uint32_t addr)
{
	return ib_same_subnet(p->addr, p->prefix, addr);
}

/* The address that packets go to, or NOWHERE and why. */
static uint32_t leads_to(const struct port *p, const struct ibv_ah_attr *attr,
			 const char **reason)
{
	const union ibv_gid *dgid = &attr->grh.dgid;
	const bool group = ib_lid_is_multicast(attr->dlid);
	uint32_t addr;

	if (!attr->is_global) {
		*reason =
			group ? "multicast needs a GRH with the group's MGID" :
				"no host of the subnet has this LID";
		return group                                       ? NOWHERE :
		       ib_lid_addr(p->addr, p->prefix, attr->dlid) ?:
								     NOWHERE;
	}
	if (group != (dgid->raw[0] == 0xff)) {
		*reason = "a multicast LID goes with an MGID, and no other";
		return NOWHERE;
	}
	if (group)
		return ib_mgid_addr(dgid) ?: NOWHERE;
	*reason = "grh.dgid is no port's GID (fe80::253:48ca:...)";
	addr = ib_gid_addr(dgid);
	if (!addr)
		return NOWHERE;
	*reason = "it is not the LID of the port in grh.dgid";
	if (same_subnet(p, addr) && ib_lid(addr, p->prefix) != attr->dlid)
		return NOWHERE;
	return addr;
}

static void say_nowhere(const struct shca_device *dev,
			const struct ibv_ah_attr *attr, const char *reason)
{
	if (config_get()->explain)
		say("%s: packets for dlid %u (0x%x) reach nobody: %s",
		    dev->dev.name, attr->dlid, attr->dlid, reason);
}

static int no_lid(const struct shca_device *dev, const struct netdev_gid *port)
{
	struct ib_why reason;

	return why(-EINVAL, "%s has %s", dev->dev.name,
		   ib_port_why(port, &reason));
}

static int lid_path(struct shca_device *dev, const struct ibv_ah_attr *attr,
		    struct roce_path *path, struct netdev_gid *via)
{
	const struct port p = port_of(dev);
	const char *reason = NULL;
	int err = shca_path_port(attr);
	uint32_t to;

	if (err)
		return err;
	if (attr->is_global && attr->grh.sgid_index)
		return why(
			-EINVAL,
			"grh.sgid_index is %u: the port has one GID, index 0",
			attr->grh.sgid_index);
	pthread_mutex_lock(&dev->lock);
	*via = ib_port(&dev->gids) ? *ib_port(&dev->gids) :
				     (struct netdev_gid){ 0 };
	pthread_mutex_unlock(&dev->lock);
	if (!via->ifindex || !p.lid)
		return no_lid(dev, via->ifindex ? via : NULL);
	to = leads_to(&p, attr, &reason);
	if (to == NOWHERE)
		say_nowhere(dev, attr, reason);
	memset(path, 0, sizeof(*path));
	path->sgid = via->gid;
	path->dgid = ib_v4_gid(to);
	path->sgid_scope = via->ifindex;
	path->hop_limit = TTL_NO_GRH;
	if (attr->is_global) {
		path->flow_label = attr->grh.flow_label & 0xfffff;
		path->tclass = attr->grh.traffic_class;
		path->hop_limit =
			(uint8_t)min_u32(attr->grh.hop_limit + 1u, 255);
		/* 0 is that of the links. */
		if (path->hop_limit == TTL_NO_GRH)
			path->hop_limit++;
	}
	shca_path_place(path);
	return 0;
}

static void lid_av(struct shca_device *dev, const struct roce_path *path,
		   struct ibv_ah_attr *attr)
{
	const uint32_t to = ib_v4(&path->dgid);
	const struct port p = port_of(dev);

	*attr = (struct ibv_ah_attr){ .port_num = 1 };
	if (roce_gid_is_multicast(&path->dgid)) {
		attr->is_global = 1;
		attr->dlid = ib_mlid(to);
		attr->grh.dgid = lid_gid_of(&path->dgid);
		attr->grh.traffic_class = path->tclass;
		return;
	}
	attr->dlid = same_subnet(&p, to) ? ib_lid(to, p.prefix) : 0;
	if (attr->dlid)
		return;
	/* Of another subnet: by a router. */
	attr->is_global = 1;
	attr->dlid = ib_sm_lid(p.prefix);
	attr->grh.dgid = lid_gid_of(&path->dgid);
	attr->grh.hop_limit = path->hop_limit;
	attr->grh.traffic_class = path->tclass;
	attr->grh.flow_label = path->flow_label;
}

static int lid_av_from_wc(struct shca_device *dev, const struct ibv_wc *wc,
			  const struct ibv_grh *grh, struct ibv_ah_attr *attr)
{
	const uint32_t first = wc->wc_flags & IBV_WC_GRH ?
				       be32toh(grh->version_tclass_flow) :
				       0;

	if (!(wc->wc_flags & IBV_WC_GRH))
		return 0;
	/* A packet to a group does not name our GID. */
	if (ib_gid_addr(&grh->dgid) != port_of(dev).addr)
		return -EINVAL;
	attr->is_global = 1;
	attr->grh.dgid = grh->sgid;
	attr->grh.flow_label = first & 0xfffff;
	attr->grh.traffic_class = (uint8_t)(first >> 20);
	attr->grh.hop_limit = 0xff;
	return 0;
}

/* As the kernel checks it, ib_attach_mcast(). */
static int lid_group(const union ibv_gid *mgid, uint16_t mlid,
		     union ibv_gid *addr)
{
	const uint32_t v4 = ib_mgid_addr(mgid);
	struct gid_text at;

	if (!v4)
		return why(-EINVAL, "%s is no multicast GID (ff00::/8)",
			   gid_str(mgid, &at));
	if (!ib_lid_is_multicast(mlid))
		return why(-EINVAL,
			   "%s: LID 0x%x is not one of multicast, 0xc000 to "
			   "0xfffe",
			   gid_str(mgid, &at), mlid);
	*addr = ib_v4_gid(v4);
	return 0;
}

const struct shca_naming shca_naming_lid = {
	.one_gid = true,
	.guid = lid_guid,
	.changed = lid_changed,
	.gid = lid_gid,
	.port = lid_port,
	.addr = lid_addr,
	.path = lid_path,
	.av = lid_av,
	.gid_of = lid_gid_of,
	.av_from_wc = lid_av_from_wc,
	.group = lid_group,
};

static void say_same_lid(const struct shca_device *a,
			 const struct shca_device *b)
{
	const struct port p = port_of(a), q = port_of(b);
	const union ibv_gid at[] = { ib_v4_gid(p.addr), ib_v4_gid(q.addr) };
	struct gid_text text[2];

	if (p.lid && p.lid == q.lid && p.addr != q.addr)
		say("%s (%s/%u) and %s (%s/%u) have the same LID, %u: they are "
		    "ports of two subnets, and a peer is reached by the one of "
		    "its own; for another LID choose an address (--addr)",
		    a->dev.name, gid_str(&at[0], &text[0]), p.prefix,
		    b->dev.name, gid_str(&at[1], &text[1]), q.prefix, p.lid);
}

void shca_infiniband_say(struct shca_device *const *devices, int n)
{
	struct ib_why reason;

	for (int i = 0; i < n; i++) {
		const struct shca_device *dev = devices[i];

		if (dev->naming != &shca_naming_lid)
			continue;
		if (*ib_port_why(ib_port(&dev->gids), &reason))
			say("%s has %s", dev->dev.name, reason.text);
		for (int j = 0; j < i; j++)
			if (devices[j]->naming == &shca_naming_lid)
				say_same_lid(devices[j], dev);
	}
}

/* Datagrams that come in */

/* Of the IPv4 header that the link has made, in bytes 20 to 39. */
static void grh_build(uint8_t out[GRH_LEN], const struct port *p,
		      const struct roce_rx *pkt)
{
	const uint8_t *ip = pkt->grh + 20;
	/* Of a group it is the MGID (mcast.c). */
	const union ibv_gid dgid =
		gid_is_v4(&pkt->dgid) ? ib_gid(p->addr) : pkt->dgid;

	grh_put(out, &(struct grh){ .sgid = ib_gid(ib_v4(&pkt->sgid)),
				    .dgid = dgid,
				    .tclass = ip[1],
				    .hop_limit = (uint8_t)(ip[8] - 1),
				    .pay_len = (uint16_t)(get_be16(ip + 2) -
							  (20u + 8)) });
}

static bool has_grh(const struct roce_rx *pkt)
{
	return pkt->grh && gid_is_v4(&pkt->sgid) &&
	       (!gid_is_v4(&pkt->dgid) || pkt->grh[28] > TTL_NO_GRH);
}

static void datagram_rx(struct shca_qp *qp, const struct roce_rx *pkt,
			uint64_t now)
{
	const struct ibv_context *ctx = qp->ex.qp_base.context;
	const struct port p = port_of(to_device(ctx->device));
	struct roce_rx as = *pkt;
	uint8_t grh[GRH_LEN];
	uint16_t slid = ib_lid(ib_v4(&pkt->sgid), p.prefix);

	if (!same_subnet(&p, ib_v4(&pkt->sgid)) || !slid)
		slid = ib_sm_lid(p.prefix); /* by a router */
	qp->ib.slid = slid;
	qp->ib.grh = has_grh(pkt);
	as.grh = NULL;
	if (qp->ib.grh) {
		grh_build(grh, &p, pkt);
		as.grh = grh;
	}
	if (tracing()) /* not in the child of a fork */
		shca_record_rx(qp, &as, now);
	else
		shca_qp_rx(qp, &as, now);
}

static void rx(struct engine_qp *sched, const struct roce_rx *pkt, uint64_t now)
{
	struct shca_qp *qp = sched_qp(sched);

	if (qp->ex.qp_base.qp_type == IBV_QPT_UD)
		datagram_rx(qp, pkt, now);
	else if (tracing())
		shca_record_rx(qp, pkt, now);
	else
		shca_qp_rx(qp, pkt, now);
}

int shca_infiniband_complete(struct qp *core, void *cq, const struct ibv_wc *wc,
			     bool solicited)
{
	const struct shca_qp *qp = core->owner;
	struct shca_process *proc = to_process(qp->sched.engine);
	struct ibv_wc as;

	if (core->type == IBV_QPT_UD && wc->opcode & IBV_WC_RECV &&
	    wc->status == IBV_WC_SUCCESS) {
		as = *wc;
		as.slid = qp->ib.slid;
		as.sl = 0; /* RoCE says there which IP it was */
		if (!qp->ib.grh)
			as.wc_flags &= ~(unsigned)IBV_WC_GRH;
		wc = &as;
	}
	return proc->env.base.complete(core, cq, wc, solicited);
}

static const struct qp_env *env(struct engine *e)
{
	return &to_process(e)->ib_env.base;
}

/* RoCE's, but for what is above. */
static struct engine_qp_ops sched;

const struct shca_transport *shca_infiniband(void)
{
	static struct shca_transport t;

	sched = shca_roce_sched;
	sched.rx = rx;
	t = shca_roce;
	t.name = "InfiniBand";
	t.prefix = "softib";
	t.env = env;
	t.sched = t.sched_recorded = &sched;
	t.gid_type = IBV_GID_TYPE_IB;
	/* As the subnet management agent says it (src/fabric). */
	t.port_caps = IBV_PORT_SL_MAP_SUP | IBV_PORT_SYS_IMAGE_GUID_SUP |
		      IBV_PORT_EXTENDED_SPEEDS_SUP | IBV_PORT_CM_SUP |
		      IBV_PORT_CLIENT_REG_SUP;
	return &t;
}

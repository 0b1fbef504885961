/*
 * ah.c - address vectors and handles
 */
#include "verbs.h"

#include "base/checksum.h"
#include "base/gid.h"
#include "base/why.h"
#include "net/neigh.h"
#include "os/config.h"
#include "wire/grh.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int families_differ(unsigned index, const union ibv_gid *sgid,
			   const union ibv_gid *dgid)
{
	struct gid_text ours, theirs;

	return why(-EINVAL,
		   "grh.sgid_index %u is %s, grh.dgid is %s: one is IPv4, the "
		   "other IPv6; take an index of the peer's kind",
		   index, gid_str(sgid, &ours), gid_str(dgid, &theirs));
}

#define NO_GRH "ah_attr.is_global is 0, but RoCE has no LIDs and needs a GRH"

static int has_ah(const struct shca_device *dev)
{
	if (dev->transport->has_ah)
		return 0;
	return why(
		-EOPNOTSUPP,
		"%s has no address handles: connections are made by rdma_cm(7)",
		dev->transport->name);
}

void shca_path_place(struct roce_path *path)
{
	path->local = netdev_is_local_on(&path->dgid, path->sgid_scope);
	path->lossless =
		path->local && !config_get()->wire && config_get()->loss <= 0;
	path->net = 0;
}

void shca_path_prove(struct engine *e, struct roce_path *path, uint32_t qpn)
{
	int slot;

	if (!to_process(e)->segment)
		return;
	path->net = udp_prove(e->udp, path, qpn);
	if (!path->net || !qpn)
		return;
	slot = registry_route_in(e->registry, path->net, qpn, &path->dgid);
	path->lossless = slot >= 0 && config_get()->loss <= 0 &&
			 *registry_segment(e->registry, (unsigned)slot);
}

int shca_path(struct shca_device *dev, const struct ibv_ah_attr *attr,
	      struct roce_path *path, struct netdev_gid *via)
{
	return has_ah(dev) ?: dev->naming->path(dev, attr, path, via);
}

int shca_path_port(const struct ibv_ah_attr *attr)
{
	if (attr->port_num == 1)
		return 0;
	return why(-EINVAL,
		   "ah_attr.port_num is %u: the device has one port, 1",
		   attr->port_num);
}

/* A frame goes to a host of the interface's network, whose MAC is asked for now,
 * as hardware's drivers do. */
static int v1_path(const struct ibv_ah_attr *attr, struct roce_path *path,
		   const struct netdev_gid *via)
{
	struct gid_text to;
	int err;

	path->v1 = true;
	path->lossless = false;
	gid_str(&path->dgid, &to);
	if (roce_gid_is_multicast(&path->dgid))
		return why(-EOPNOTSUPP,
			   "grh.dgid is the group %s, and grh.sgid_index %u is "
			   "RoCE v1, which has no multicast here: take the "
			   "index of the same address for RoCE v2",
			   to.text, attr->grh.sgid_index);
	if (path->local)
		return 0;
	if (via->loopback || !neigh_on_link(&path->dgid, via->ifindex))
		return why(-ENETUNREACH,
			   "grh.dgid %s is not of the network of %s, and "
			   "grh.sgid_index %u is RoCE v1, which no router "
			   "forwards: take the index of the same address for "
			   "RoCE v2",
			   to.text, via->ifname, attr->grh.sgid_index);
	err = neigh_resolve(&path->dgid, via->ifindex, path->dmac);
	if (!err)
		return 0;
	return why(err, "no host on %s says that it has grh.dgid %s: %s",
		   via->ifname, to.text, sys_strerror(-err));
}

static int ip_path(struct shca_device *dev, const struct ibv_ah_attr *attr,
		   struct roce_path *path, struct netdev_gid *via)
{
	const unsigned index = attr->grh.sgid_index;
	const union ibv_gid *dgid = &attr->grh.dgid;
	int err;

	/* RoCE has no LIDs: every address is a GRH's (annex A16.5.1). */
	if (!attr->is_global) {
		if (check_on())
			check_ops->address(CHECK_ADDRESS_GRH, NO_GRH);
		return why(-EINVAL, NO_GRH
			   ": set is_global = 1, grh.dgid (the peer's GID), "
			   "grh.sgid_index (ours) and grh.hop_limit");
	}
	err = shca_path_port(attr);
	if (err)
		return err;
	err = shca_gid(dev, 1, index, via);
	if (err)
		return why(-EINVAL,
			   err == -ENODATA ?
				   "grh.sgid_index %u is an empty entry of the "
				   "GID table: choose one with an address "
				   "(softhca devices, ibv_query_gid)" :
				   "grh.sgid_index %u is beyond the GID table: "
				   "choose an entry with an address (softhca "
				   "devices, ibv_query_gid)",
			   index);
	if (!dgid->global.subnet_prefix && !dgid->global.interface_id)
		return why(-EINVAL,
			   "grh.dgid is all zeros: copy the peer's GID there, "
			   "as its ibv_query_gid() returns it");
	if (roce_gid_is_v4(&via->gid) != roce_gid_is_v4(dgid))
		return families_differ(index, &via->gid, dgid);
	memset(path, 0, sizeof(*path));
	path->sgid = via->gid;
	path->dgid = attr->grh.dgid;
	path->sgid_scope = via->ifindex;
	path->flow_label = attr->grh.flow_label & 0xfffff;
	path->tclass = attr->grh.traffic_class;
	shca_path_place(path);
	if (check_on() && !attr->grh.hop_limit && !path->local &&
	    !roce_gid_is_multicast(dgid))
		check_ops->address(CHECK_ADDRESS_HOPS,
				   "ah_attr.grh.hop_limit is 0 and grh.dgid is "
				   "of another host: hardware sends packets "
				   "that the first router, or the host there, "
				   "may drop");
	/* A packet without hops left arrives nowhere. */
	path->hop_limit = attr->grh.hop_limit ? attr->grh.hop_limit : 64;
	return shca_gid_type(dev, index) == IBV_GID_TYPE_ROCE_V1 ?
		       v1_path(attr, path, via) :
		       0;
}

static void ip_av(struct shca_device *dev, const struct roce_path *path,
		  struct ibv_ah_attr *attr)
{
	int index = shca_gid_index(dev, &path->sgid);

	if (path->v1)
		index = shca_gid_v1(dev, index);
	*attr = (struct ibv_ah_attr){
		.grh = {
			.dgid = path->dgid,
			.flow_label = path->flow_label,
			.sgid_index = (uint8_t)(index < 0 ? 255 : index),
			.hop_limit = path->hop_limit,
			.traffic_class = path->tclass,
		},
		.is_global = 1,
		.port_num = 1,
	};
}

int shca_ah_create(struct ibv_pd *pd, struct ibv_ah_attr *attr,
		   struct ibv_ah **out)
{
	int err = engine_fault(FAULT_CREATE_AH) ?: shca_check(pd, SHCA_PD);
	struct shca_context *ctx;
	struct netdev_gid via;
	struct roce_path path;
	struct shca_ah *ah;

	if (err)
		return err;
	ctx = to_ctx(pd->context);
	err = shca_path(ctx->dev, attr, &path, &via);
	if (!err && path.v1 && !ctx->engine->rocev1)
		err = why(-EPERM, "grh.sgid_index is RoCE v1, and this process "
				  "may no longer use it (CAP_NET_RAW)");
	if (!err)
		err = shca_count(ctx->engine, SHCA_AH);
	if (err)
		return err;
	ah = calloc(1, sizeof(*ah));
	if (!ah) {
		shca_uncount(ctx->engine, SHCA_AH);
		return -ENOMEM;
	}
	ah->ah.context = pd->context;
	ah->ah.pd = pd;
	ah->path = path;
	shca_path_prove(ctx->engine, &ah->path, 0);
	shca_pd_get(pd);
	shca_live_add(&ah->live, &ah->ah, SHCA_AH);
	*out = &ah->ah;
	return 0;
}

int shca_resolve_l2(struct ibv_context *ibctx, const struct ibv_ah_attr *attr,
		    uint8_t mac[6], uint16_t *vid)
{
	struct netdev_gid via;
	struct roce_path path;
	int err = shca_path(to_ctx(ibctx)->dev, attr, &path, &via);

	if (!err)
		err = neigh_resolve(&path.dgid, via.ifindex, mac);
	if (!err && vid)
		*vid = neigh_vlan(via.ifindex);
	return err;
}

int shca_ah_destroy(struct ibv_ah *ibah)
{
	int err = shca_check(ibah, SHCA_AH);

	if (err)
		return err;
	shca_live_remove(&to_ah(ibah)->live);
	shca_uncount(to_ctx(ibah->context)->engine, SHCA_AH);
	shca_pd_put(ibah->pd);
	free(to_ah(ibah));
	return 0;
}

/* The checksum over a whole IPv4 header is zero (RFC 791). */
static bool ipv4_valid(const uint8_t *ip)
{
	return ip[0] == 0x45 && !inet_fold(inet_sum(0, ip, 20));
}

/*
 * The 40 bytes of a UD receiver's GRH hold an IPv6 header, or 20 undefined
 * bytes and an IPv4 header (annex A17.4.5.2); of RoCE v1, a GRH.
 */
static int ip_av_from_wc(struct shca_device *dev, const struct ibv_wc *wc,
			 const struct ibv_grh *grh, struct ibv_ah_attr *attr)
{
	const uint8_t *bytes = (const uint8_t *)grh;
	const bool v1 = bytes[0] >> 4 == 6 && bytes[6] == GRH_NEXT_BTH;
	union ibv_gid ours;
	int index;

	if (!(wc->wc_flags & IBV_WC_GRH))
		return 0;
	attr->is_global = 1;
	attr->grh.hop_limit = 0xff;
	if (!v1 && ipv4_valid(bytes + 20)) {
		attr->grh.traffic_class = bytes[21];
		attr->grh.dgid = gid_of_v4(bytes + 32);
		ours = gid_of_v4(bytes + 36);
	} else if (bytes[0] >> 4 == 6) {
		uint32_t first = be32toh(grh->version_tclass_flow);

		attr->grh.traffic_class = (uint8_t)(first >> 20);
		attr->grh.flow_label = first & 0xfffff;
		attr->grh.dgid = grh->sgid;
		ours = grh->dgid;
	} else {
		return -EPROTONOSUPPORT;
	}
	/* A packet to a group does not name an address of ours. */
	if (roce_gid_is_multicast(&ours))
		return -EINVAL;
	index = shca_gid_index(dev, &ours);
	if (v1)
		index = dev->rocev1 ? shca_gid_v1(dev, index) : -ENOENT;
	if (index < 0)
		return index;
	attr->grh.sgid_index = (uint8_t)index;
	return 0;
}

const struct shca_naming shca_naming_ip = { .path = ip_path,
					    .av = ip_av,
					    .av_from_wc = ip_av_from_wc };

int shca_ah_init_from_wc(struct ibv_context *ctx, uint8_t port,
			 const struct ibv_wc *wc, const struct ibv_grh *grh,
			 struct ibv_ah_attr *attr)
{
	struct shca_device *dev = to_ctx(ctx)->dev;
	int err = has_ah(dev);

	if (err)
		return err;
	*attr = (struct ibv_ah_attr){ .dlid = wc->slid,
				      .sl = wc->sl,
				      .src_path_bits = wc->dlid_path_bits,
				      .port_num = port };
	return dev->naming->av_from_wc(dev, wc, grh, attr);
}

void shca_av(struct shca_device *dev, const struct roce_path *path,
	     struct ibv_ah_attr *attr)
{
	dev->naming->av(dev, path, attr);
}

/*
 * addr.c - addresses of identifiers: binding and resolving
 *
 * In RoCEv2 an IP address is a GID. To resolve one is to ask the kernel which
 * of our addresses it would use towards it, and to find the device that has
 * that address. Where the kernel knows the neighbour, too, the events of
 * resolving are there before the calls return; else see await.c.
 */
#include "cma.h"

#include "base/bytes.h"
#include "base/gid.h"
#include "base/sys.h"
#include "net/route_cache.h"

#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Socket addresses and GIDs */

socklen_t cma_addr_len(const struct sockaddr *addr)
{
	switch (addr->sa_family) {
	case AF_INET:
		return sizeof(struct sockaddr_in);
	case AF_INET6:
		return sizeof(struct sockaddr_in6);
	case AF_IB:
		return sizeof(struct sockaddr_ib);
	default:
		return 0;
	}
}

uint16_t cma_port(const struct sockaddr *addr)
{
	switch (addr->sa_family) {
	case AF_INET:
		return ntohs(((const struct sockaddr_in *)(const void *)addr)
				     ->sin_port);
	case AF_INET6:
		return ntohs(((const struct sockaddr_in6 *)(const void *)addr)
				     ->sin6_port);
	case AF_IB:
		return cma_sib_port(addr);
	default:
		return 0;
	}
}

void cma_set_port(struct sockaddr_storage *addr, uint16_t port)
{
	if (addr->ss_family == AF_INET)
		((struct sockaddr_in *)addr)->sin_port = htons(port);
	else if (addr->ss_family == AF_IB)
		cma_sib_set_port(addr, port);
	else
		((struct sockaddr_in6 *)addr)->sin6_port = htons(port);
}

static uint32_t scope_id(const struct sockaddr *addr)
{
	if (addr->sa_family != AF_INET6)
		return 0;
	return ((const struct sockaddr_in6 *)(const void *)addr)->sin6_scope_id;
}

void cma_addr_gid(const struct sockaddr *addr, union ibv_gid *gid)
{
	if (addr->sa_family == AF_INET) {
		const struct sockaddr_in *sin = (const void *)addr;

		*gid = gid_of_v4(&sin->sin_addr);
	} else if (addr->sa_family == AF_IB) {
		*gid = cma_sib_gid(addr);
	} else {
		const struct sockaddr_in6 *sin6 = (const void *)addr;

		memcpy(gid->raw, &sin6->sin6_addr, 16);
	}
}

void cma_gid_addr(const union ibv_gid *gid, uint32_t scope, uint16_t port,
		  struct sockaddr_storage *addr)
{
	memset(addr, 0, sizeof(*addr));
	if (roce_gid_is_v4(gid)) {
		struct sockaddr_in *sin = (struct sockaddr_in *)addr;

		sin->sin_family = AF_INET;
		memcpy(&sin->sin_addr, gid->raw + 12, 4);
	} else {
		struct sockaddr_in6 *sin6 = (struct sockaddr_in6 *)addr;

		sin6->sin6_family = AF_INET6;
		memcpy(&sin6->sin6_addr, gid->raw, 16);
		if (IN6_IS_ADDR_LINKLOCAL(&sin6->sin6_addr))
			sin6->sin6_scope_id = scope;
	}
	cma_set_port(addr, port);
}

bool cma_addr_any(const struct sockaddr *addr)
{
	union ibv_gid gid;

	cma_addr_gid(addr, &gid);
	if (roce_gid_is_v4(&gid))
		return !get_be32(gid.raw + 12);
	return !gid.global.subnet_prefix && !gid.global.interface_id;
}

/* Copies addr; a mapped IPv4 address becomes AF_INET. dst: it is a destination. */
static int normalise_addr(const struct cma_id *id, const struct sockaddr *addr,
			  bool dst, struct sockaddr_storage *out)
{
	const struct sockaddr_in6 *sin6 = (const void *)addr;
	socklen_t len;

	if (!addr)
		return why(-EINVAL, "the address is NULL");
	len = cma_addr_len(addr);
	if (!len)
		return why(-EAFNOSUPPORT,
			   "the address has family %d, not AF_INET or AF_INET6",
			   addr->sa_family);
	memset(out, 0, sizeof(*out));
	memcpy(out, addr, len);
	if (addr->sa_family == AF_IB)
		return cma_sib_check(id->id.ps, out, dst);
	if (addr->sa_family == AF_INET6 &&
	    IN6_IS_ADDR_V4MAPPED(&sin6->sin6_addr)) {
		struct sockaddr_in *sin = (struct sockaddr_in *)out;

		memset(out, 0, sizeof(*out));
		sin->sin_family = AF_INET;
		sin->sin_port = sin6->sin6_port;
		memcpy(&sin->sin_addr, sin6->sin6_addr.s6_addr + 12, 4);
	}
	/* a link-local address needs its link */
	if (out->ss_family == AF_INET6 &&
	    IN6_IS_ADDR_LINKLOCAL(&((struct sockaddr_in6 *)out)->sin6_addr) &&
	    !((struct sockaddr_in6 *)out)->sin6_scope_id)
		return why(-EINVAL, "a link-local address needs its interface: "
				    "set sin6_scope_id (fe80::1%%eth0)");
	return 0;
}

/* Binding */

void cma_set_dev(struct cma_id *id, struct cma_dev *dev,
		 const struct netdev_gid *via)
{
	id->dev = dev;
	id->via = *via;
	id->id.verbs = dev->verbs;
	id->id.pd = dev->pd;
	id->id.port_num = CMA_PORT_NUM;
	id->path.sgid = via->gid;
	id->path.sgid_scope = via->ifindex;
	id->id.route.addr.addr.ibaddr.sgid =
		shca_gid_of(cma_device(dev), &via->gid);
	id->id.route.addr.addr.ibaddr.pkey = htons(ROCE_PKEY_DEFAULT);
}

static int find_dev(const struct cma_id *id, const struct sockaddr *addr,
		    struct cma_dev **dev, struct netdev_gid *via)
{
	struct gid_text at;
	union ibv_gid gid;

	cma_addr_gid(addr, &gid);
	*dev = addr->sa_family == AF_IB ?
		       cma_infiniband(&gid, via) :
		       cma_dev_of(&gid, cma_may_iwarp(id), via);
	if (!*dev && netdev_is_local(&gid))
		return why(-ENODEV,
			   "%s is an address of this host, but of none of the "
			   "devices that it can use (softhca devices; "
			   "--devices leaves interfaces out, and iWARP has "
			   "RDMA_PS_TCP alone)",
			   gid_str(&gid, &at));
	if (!*dev)
		return why(-EADDRNOTAVAIL,
			   "%s is not an address of this host (ip addr lists "
			   "them)",
			   gid_str(&gid, &at));
	if (scope_id(addr) && scope_id(addr) != via->ifindex)
		return why(-EADDRNOTAVAIL,
			   "%s is an address of %s, not of the interface in "
			   "sin6_scope_id",
			   gid_str(&gid, &at), via->ifname);
	return 0;
}

static int bind_dev(struct cma_id *id, const struct sockaddr *addr)
{
	struct netdev_gid via;
	struct cma_dev *dev;
	int err = find_dev(id, addr, &dev, &via);

	if (err)
		return err;
	cma_lock(); /* cma_netdevs_changed() looks at it */
	cma_set_dev(id, dev, &via);
	cma_unlock();
	return 0;
}

static bool is_loopback(const struct sockaddr *addr)
{
	union ibv_gid gid;

	cma_addr_gid(addr, &gid);
	return gid_is_loopback(&gid);
}

void cma_own_gid(struct cma_id *id, union ibv_gid *gid)
{
	struct netdev_gid via;

	cma_addr_gid(cma_src(id), gid);
	if (gid_is_loopback(gid) && cma_dev_find(gid, cma_may_iwarp(id), &via))
		*gid = via.gid;
}

/* Whether this host has an address that others can reach. */
static bool host_is_reachable(void)
{
	int n;
	struct cma_dev *dev = cma_devices(&n);

	for (int i = 0; i < n; i++)
		if (shca_device_reachable(to_ctx(dev[i].verbs)->dev))
			return true;
	return false;
}

/*
 * In the kernel an identifier that is bound to a loopback address has no
 * device. libfabric relies on it: it binds one to localhost, any port, and if
 * that has no device, it gives its peers an address of an interface instead of
 * localhost. Here localhost works. An identifier that asks for a port there has
 * the device at once, as have all where there is no other address (a container
 * without a network). Others get it with the next step that needs it, where
 * there is one: devices of other interfaces alone (--devices) have none for it.
 */
static int bind_addr_dev(struct cma_id *id, const struct sockaddr *addr)
{
	if (cma_addr_any(addr))
		return 0;
	if (is_loopback(addr) && !cma_port(addr) && host_is_reachable())
		return 0;
	return bind_dev(id, addr);
}

static int bind_to(struct cma_id *id, const struct sockaddr *addr,
		   bool any_process)
{
	struct sockaddr_storage ss;
	int err;

	if (id->state != CMA_IDLE)
		return cma_wrong_state(id, "it can be bound once only");
	err = normalise_addr(id, addr, false, &ss);
	if (err)
		return err;
	err = bind_addr_dev(id, (struct sockaddr *)&ss);
	if (err)
		return err;
	id->id.route.addr.src_storage = ss;
	err = cma_port_get(id, cma_port((struct sockaddr *)&ss), any_process);
	if (err) {
		cma_lock();
		id->dev = NULL;
		cma_unlock();
		id->id.verbs = NULL;
		id->id.pd = NULL;
		id->id.port_num = 0;
		memset(&id->id.route.addr, 0, sizeof(id->id.route.addr));
		return err;
	}
	id->state = CMA_ADDR_BOUND;
	return 0;
}

int cma_bind(struct cma_id *id, const struct sockaddr *addr)
{
	return bind_to(id, addr, true);
}

int cma_late_dev(struct cma_id *id)
{
	struct sockaddr *addr = cma_src(id);

	if (id->dev || id->state != CMA_ADDR_BOUND || cma_addr_any(addr))
		return 0;
	return bind_dev(id, addr);
}

int rdma_bind_addr(struct rdma_cm_id *ib, struct sockaddr *addr)
{
	if (engine_dead(cma_engine()))
		return cma_ret(-EIO);
	return cma_ret(cma_bind(to_id(ib), addr));
}

/* Resolving */

/* What an address of AF_IB stands for. */
static struct sockaddr_storage as_ip(const struct sockaddr_storage *addr)
{
	struct sockaddr_storage ip = *addr;
	union ibv_gid gid;

	if (addr->ss_family != AF_IB)
		return ip;
	cma_addr_gid((const struct sockaddr *)addr, &gid);
	cma_gid_addr(&gid, 0, cma_port((const struct sockaddr *)addr), &ip);
	return ip;
}

/* From where to where, of IPv4 or IPv6; ports are 0. */
struct route_ends {
	struct sockaddr_in6 own, to;
};
static_assert(sizeof(struct route_ends) <= ROUTE_KEY_MAX, "fits as a key");
static_assert(sizeof(struct sockaddr_in6) <= ROUTE_ANSWER_MAX, "as an answer");

/* System calls are made directly: in a program whose sockets are rsockets, the
 * functions of the C library are intercepted. */
static int ask_source(const void *key, void *answer)
{
	struct sockaddr_storage own = { 0 }, to = { 0 }, src = { 0 };
	const struct route_ends *ends = key;
	socklen_t len = sizeof(src);
	int err = 0;
	long fd;

	memcpy(&own, &ends->own, sizeof(ends->own));
	memcpy(&to, &ends->to, sizeof(ends->to));
	fd = syscall(SYS_socket, to.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	cma_set_port(&to, ROCE_UDP_PORT);
	if (!cma_addr_any((struct sockaddr *)&own) &&
	    syscall(SYS_bind, fd, &own, cma_addr_len((struct sockaddr *)&own)))
		err = -errno;
	else if (syscall(SYS_connect, fd, &to,
			 cma_addr_len((struct sockaddr *)&to)) ||
		 syscall(SYS_getsockname, fd, &src, &len))
		err = -errno;
	syscall(SYS_close, fd);
	memcpy(answer, &src, sizeof(struct sockaddr_in6));
	return err;
}

/* The address that the kernel would use towards dst; from: bound to, if not any. */
static int route_lookup(const struct sockaddr_storage *from,
			const struct sockaddr_storage *dst,
			struct sockaddr_storage *src)
{
	struct sockaddr_storage own = *from, to = *dst;
	struct route_ends ends;

	cma_set_port(&own, 0);
	cma_set_port(&to, 0);
	memcpy(&ends.own, &own, sizeof(ends.own));
	memcpy(&ends.to, &to, sizeof(ends.to));
	memset(src, 0, sizeof(*src));
	return route_cached(&ends, sizeof(ends), src, sizeof(ends.own),
			    ask_source);
}

static enum ibv_mtu path_mtu(const struct cma_id *id)
{
	/* an interface's MTU is no limit within this host */
	if (netdev_is_local(&id->path.dgid))
		return IBV_MTU_4096;
	return netdev_ib_mtu(id->via.mtu);
}

/* LIDs, where there are any, and no GRH within their subnet. */
static void record_lids(struct cma_id *id, struct ibv_sa_path_rec *rec)
{
	struct shca_device *dev = cma_device(id->dev);
	struct ibv_port_attr port;
	struct ibv_ah_attr av;

	shca_av(dev, &id->path, &av);
	if (shca_query_port(dev, CMA_PORT_NUM, &port) || !av.dlid)
		return;
	rec->dlid = htons(av.dlid);
	rec->slid = htons(port.lid);
	rec->rate = IBV_RATE_100_GBPS;
	rec->flow_label = htonl(av.grh.flow_label);
	rec->hop_limit = av.grh.hop_limit;
}

void cma_set_path(struct cma_id *id, const union ibv_gid *dgid)
{
	const struct shca_device *dev = cma_device(id->dev);
	struct ibv_sa_path_rec *rec = &id->path_rec;

	id->path.dgid = *dgid;
	if (!id->path.hop_limit)
		id->path.hop_limit =
			roce_gid_is_multicast(dgid) ? 1 : CMA_HOP_LIMIT;
	if (id->tos_set)
		id->path.tclass = id->tos;
	if (!id->path.flow_label)
		id->path.flow_label = cma_random() & 0xfffff;
	id->id.route.addr.addr.ibaddr.dgid = shca_gid_of(dev, dgid);
	*rec = (struct ibv_sa_path_rec){
		.dgid = shca_gid_of(dev, dgid),
		.sgid = shca_gid_of(dev, &id->path.sgid),
		.flow_label = htonl(id->path.flow_label),
		.hop_limit = id->path.hop_limit,
		.traffic_class = id->path.tclass,
		.reversible = 1,
		.numb_path = 1,
		.pkey = htons(ROCE_PKEY_DEFAULT),
		.mtu_selector = 2, /* exactly */
		.mtu = (uint8_t)path_mtu(id),
		.rate_selector = 2,
		.packet_life_time_selector = 2,
		.packet_life_time = CMA_PACKET_LIFE,
	};
	if (dev->transport->has_ah)
		record_lids(id, rec);
}

int cma_bind_path(struct cma_id *id)
{
	int err = shca_cm_bind_path(cma_engine(), &id->path);
	const char *who = err ? udp_why(cma_engine()->udp) : NULL;
	struct gid_text at;

	if (!err)
		return 0;
	if (err == -EADDRINUSE && who && *who)
		return why(err, "%s", who);
	return why(err, "cannot receive on UDP port 4791 of %s: %s",
		   gid_str(&id->path.sgid, &at), sys_strerror(-err));
}

/* The kernel leaves to all of 127/8 by 127.0.0.1. Rails have others of it: there a
 * peer is reached from its own address, as one of an interface is. */
static void leave_by_peer(struct cma_id *id, const struct sockaddr *dst,
			  struct sockaddr_storage *src)
{
	struct netdev_gid via;
	struct cma_dev *dev;

	if (!is_loopback(dst) || cma_addr_any(dst) ||
	    !find_dev(id, (struct sockaddr *)src, &dev, &via) ||
	    find_dev(id, dst, &dev, &via))
		return;
	memcpy(src, dst, cma_addr_len(dst));
	cma_set_port(src, 0);
}

/* Finds the way to dst. 0 or -errno. */
static int resolve_route(struct cma_id *id, struct sockaddr_storage *dst)
{
	const struct sockaddr_storage from =
		as_ip(&id->id.route.addr.src_storage);
	const struct sockaddr_storage to = as_ip(dst);
	struct sockaddr_storage src;
	struct netdev_gid via;
	struct cma_dev *dev;
	struct cma_text at;
	union ibv_gid gid;
	int err;

	err = route_lookup(&from, &to, &src);
	if (err)
		return why(err, "no way to %s: %s (ip route get)",
			   cma_addr_str((struct sockaddr *)dst, &at),
			   sys_strerror(-err));
	if (dst->ss_family == AF_IB)
		cma_sib_make(id->id.ps, &src);
	/* the unspecified address means this host */
	if (cma_addr_any((struct sockaddr *)dst)) {
		uint16_t port = cma_port((struct sockaddr *)dst);

		*dst = src;
		cma_set_port(dst, port);
	}
	if (!id->dev) {
		leave_by_peer(id, (struct sockaddr *)dst, &src);
		err = bind_dev(id, (struct sockaddr *)&src);
		if (err)
			return why(err == -EADDRNOTAVAIL ? -ENODEV : err,
				   "the way to the peer leaves by %s, which is "
				   "of no device (softhca devices)",
				   cma_addr_str((struct sockaddr *)&src, &at));
		cma_set_port(&src, id->port);
		id->id.route.addr.src_storage = src;
	}
	/* all of 127/8 is local, but only GIDs of the table receive */
	if (is_loopback((struct sockaddr *)dst)) {
		err = find_dev(id, (struct sockaddr *)dst, &dev, &via);
		if (err)
			return why(-ENODEV,
				   "%s is not a GID of this host: of "
				   "127.0.0.0/8 use 127.0.0.1",
				   cma_addr_str((struct sockaddr *)dst, &at));
	}
	id->id.route.addr.dst_storage = *dst;
	cma_addr_gid((struct sockaddr *)dst, &gid);
	/* of InfiniBand it is that of the port */
	cma_set_path(id, is_loopback((struct sockaddr *)dst) ? &via.gid : &gid);
	if (roce_gid_is_multicast(&gid))
		return 0;
	return id->dev->ops->resolved(id);
}

static int post_simple(struct cma_id *id, enum rdma_cm_event_type type,
		       int status)
{
	struct cma_event *ev = cma_event_new(id, type, status);

	if (!ev)
		return -ENOMEM;
	cma_lock();
	cma_event_post(ev);
	cma_unlock();
	return 0;
}

static int resolve_addr(struct cma_id *id, const struct sockaddr *src,
			const struct sockaddr *dst, int timeout_ms)
{
	struct sockaddr_storage to, any = { 0 };
	int err;

	err = normalise_addr(id, dst, true, &to);
	if (err)
		return err;
	if (id->state == CMA_IDLE) {
		any.ss_family = to.ss_family;
		err = bind_to(id, src ? src : (struct sockaddr *)&any,
			      src && cma_addr_len(src) && cma_port(src));
		if (err)
			return err;
	}
	if (id->state != CMA_ADDR_BOUND)
		return cma_wrong_state(
			id,
			"an address is resolved once, by a new or a bound one");
	if (cma_src(id)->sa_family != to.ss_family)
		return why(-EINVAL, "source and destination are of two "
				    "families, IPv4 and IPv6");
	err = resolve_route(id, &to);
	if (!err)
		err = cma_await(id, timeout_ms);
	if (err > 0)
		return 0;
	if (!err)
		id->state = CMA_ADDR_RESOLVED;
	else /* by an event; the call succeeds */
		WHY_REPORT("RDMA_CM_EVENT_ADDR_ERROR", err);
	return post_simple(id,
			   err ? RDMA_CM_EVENT_ADDR_ERROR :
				 RDMA_CM_EVENT_ADDR_RESOLVED,
			   err);
}

int rdma_resolve_addr(struct rdma_cm_id *ib, struct sockaddr *src_addr_,
		      struct sockaddr *dst_addr, int timeout_ms)
{
	struct cma_id *id = to_id(ib);
	int err;

	if (engine_dead(cma_engine()))
		return cma_ret(-EIO);
	err = resolve_addr(id, src_addr_, dst_addr, timeout_ms);
	return err ? cma_ret(err) : cma_complete(id);
}

int rdma_resolve_route(struct rdma_cm_id *ib, int timeout_ms)
{
	struct cma_id *id = to_id(ib);
	int err;

	(void)timeout_ms; /* a route takes no time */
	if (engine_dead(cma_engine()))
		return cma_ret(-EIO);
	if (id->state != CMA_ADDR_RESOLVED)
		return cma_ret(cma_wrong_state(
			id, "rdma_resolve_addr() first, and its event "
			    "RDMA_CM_EVENT_ADDR_RESOLVED"));
	ib->route.path_rec = &id->path_rec;
	ib->route.num_paths = 1;
	id->state = CMA_ROUTE_RESOLVED;
	err = post_simple(id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
	return err ? cma_ret(err) : cma_complete(id);
}

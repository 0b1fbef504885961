/*
 * netscan.c - asks the kernel for links, addresses and routes by rtnetlink
 *
 * The kernel marks a dump that was overtaken by a change (NLM_F_DUMP_INTR); it
 * is then taken again.
 */
#include "netscan.h"

#include "base/gid.h"
#include "base/sys.h"

#include <errno.h>
#include <linux/rtnetlink.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define DUMP_BYTES 32768
#define DUMP_TRIES 5

int netscan_socket(uint32_t groups, int flags)
{
	struct sockaddr_nl sa = { .nl_family = AF_NETLINK,
				  .nl_groups = groups };
	struct timeval tv = { .tv_sec = 1 };
	int fd, err;

	fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | flags, NETLINK_ROUTE);
	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
	if (bind(fd, (struct sockaddr *)&sa, sizeof(sa))) {
		err = -errno;
		sys_close(fd);
		return err;
	}
	return fd;
}

/*
 * Asks for all objects of a kind and calls fn for each. Returns 0 or -errno;
 * -EINTR: they changed meanwhile.
 */
static int netlink_dump(int fd, uint16_t type,
			void (*fn)(struct netscan *s,
				   const struct nlmsghdr *nh),
			struct netscan *s)
{
	static _Atomic uint32_t seq;
	struct {
		struct nlmsghdr nh;
		struct rtgenmsg gen;
	} req = {
		.nh = { .nlmsg_len = NLMSG_LENGTH(sizeof(req.gen)),
			.nlmsg_type = type,
			.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP,
			.nlmsg_seq = atomic_fetch_add(&seq, 1) + 1 },
		.gen = { .rtgen_family = AF_UNSPEC },
	};
	bool done = false, intr = false;
	char *buf;
	int err = 0;

	buf = malloc(DUMP_BYTES);
	if (!buf)
		return -ENOMEM;
	if (sys_sendto(fd, &req, sizeof(req), 0, NULL, 0) < 0)
		err = -errno;
	while (!done && !err) {
		const struct nlmsghdr *nh = (struct nlmsghdr *)buf;
		struct sockaddr_nl from = { 0 };
		socklen_t fromlen = sizeof(from);
		ssize_t n;
		size_t len;

		n = sys_recvfrom(fd, buf, DUMP_BYTES, MSG_TRUNC,
				 (struct sockaddr *)&from, &fromlen);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0 || n > DUMP_BYTES) {
			err = n < 0 ? -errno : -EPROTO;
			break;
		}
		if (from.nl_pid) /* not the kernel */
			continue;
		for (len = (size_t)n; NLMSG_OK(nh, len);
		     nh = NLMSG_NEXT(nh, len)) {
			if (nh->nlmsg_seq != req.nh.nlmsg_seq)
				continue;
			if (nh->nlmsg_flags & NLM_F_DUMP_INTR)
				intr = true;
			if (nh->nlmsg_type == NLMSG_DONE) {
				done = true;
				break;
			}
			if (nh->nlmsg_type == NLMSG_ERROR) {
				const struct nlmsgerr *e = NLMSG_DATA(nh);

				err = nh->nlmsg_len < NLMSG_LENGTH(
							      sizeof(*e)) ||
						      !e->error ?
					      -EPROTO :
					      e->error;
				break;
			}
			fn(s, nh);
		}
	}
	free(buf);
	return err ? err : intr ? -EINTR : 0;
}

static uint32_t attr_u32(const struct rtattr *rta)
{
	uint32_t v = 0;

	if (RTA_PAYLOAD(rta) >= sizeof(v))
		memcpy(&v, RTA_DATA(rta), sizeof(v));
	return v;
}

static void add_link(struct netscan *s, const struct nlmsghdr *nh)
{
	const struct ifinfomsg *ifi = NLMSG_DATA(nh);
	struct rtattr *rta = IFLA_RTA(ifi);
	struct link_info *l;
	size_t len;

	if (nh->nlmsg_type != RTM_NEWLINK ||
	    nh->nlmsg_len < NLMSG_LENGTH(sizeof(*ifi)) ||
	    s->nlinks == SCAN_LINKS)
		return;
	len = IFLA_PAYLOAD(nh);
	l = &s->link[s->nlinks++];
	*l = (struct link_info){ .ifindex = (uint32_t)ifi->ifi_index,
				 .flags = ifi->ifi_flags };
	for (; RTA_OK(rta, len); rta = RTA_NEXT(rta, len)) {
		size_t n = RTA_PAYLOAD(rta);

		switch (rta->rta_type) {
		case IFLA_IFNAME:
			if (n > sizeof(l->name) - 1)
				n = sizeof(l->name) - 1;
			memcpy(l->name, RTA_DATA(rta), n);
			break;
		case IFLA_MTU:
			l->mtu = attr_u32(rta);
			break;
		case IFLA_ADDRESS:
			if (n == sizeof(l->mac))
				memcpy(l->mac, RTA_DATA(rta), n);
			break;
		}
	}
}

static const struct link_info *find_link(const struct netscan *s,
					 uint32_t ifindex)
{
	for (size_t i = 0; i < s->nlinks; i++)
		if (s->link[i].ifindex == ifindex)
			return &s->link[i];
	return NULL;
}

static void add_addr(struct netscan *s, const struct nlmsghdr *nh)
{
	const struct ifaddrmsg *ifa = NLMSG_DATA(nh);
	const struct link_info *link;
	const void *local = NULL, *address = NULL;
	struct rtattr *rta = IFA_RTA(ifa);
	struct addr_info *a;
	uint32_t flags;
	size_t len, addrlen;

	if (nh->nlmsg_type != RTM_NEWADDR ||
	    nh->nlmsg_len < NLMSG_LENGTH(sizeof(*ifa)) ||
	    (ifa->ifa_family != AF_INET && ifa->ifa_family != AF_INET6) ||
	    s->naddrs == SCAN_ADDRS)
		return;
	addrlen = ifa->ifa_family == AF_INET ? 4 : 16;
	flags = ifa->ifa_flags;
	len = IFA_PAYLOAD(nh);
	for (; RTA_OK(rta, len); rta = RTA_NEXT(rta, len)) {
		size_t n = RTA_PAYLOAD(rta);

		/* On point-to-point links the address is the peer's. */
		if (rta->rta_type == IFA_LOCAL && n == addrlen)
			local = RTA_DATA(rta);
		else if (rta->rta_type == IFA_ADDRESS && n == addrlen)
			address = RTA_DATA(rta);
		else if (rta->rta_type == IFA_FLAGS)
			flags = attr_u32(rta);
	}
	if (!local)
		local = address;
	link = find_link(s, ifa->ifa_index);
	if (!local || !link || !(link->flags & IFF_UP) ||
	    flags & (IFA_F_TENTATIVE | IFA_F_DADFAILED))
		return;
	a = &s->addr[s->naddrs];
	*a = (struct addr_info){ .link = link,
				 .prefix = ifa->ifa_prefixlen,
				 .seq = s->naddrs };
	if (addrlen == 4) {
		a->gid = gid_of_v4(local);
	} else {
		memcpy(a->gid.raw, local, 16);
		a->group = gid_is_link_local(&a->gid) ? 2 : 1;
	}
	s->naddrs++;
}

/* Keeps the interface of the best default route; IPv4 before IPv6. */
static void add_route(struct netscan *s, const struct nlmsghdr *nh)
{
	const struct rtmsg *rtm = NLMSG_DATA(nh);
	struct rtattr *rta = RTM_RTA(rtm);
	uint32_t oif = 0, table;
	uint64_t metric = 0;
	size_t len;

	if (nh->nlmsg_type != RTM_NEWROUTE ||
	    nh->nlmsg_len < NLMSG_LENGTH(sizeof(*rtm)) || rtm->rtm_dst_len ||
	    rtm->rtm_type != RTN_UNICAST ||
	    (rtm->rtm_family != AF_INET && rtm->rtm_family != AF_INET6))
		return;
	table = rtm->rtm_table;
	len = RTM_PAYLOAD(nh);
	for (; RTA_OK(rta, len); rta = RTA_NEXT(rta, len)) {
		if (rta->rta_type == RTA_OIF)
			oif = attr_u32(rta);
		else if (rta->rta_type == RTA_PRIORITY)
			metric = attr_u32(rta);
		else if (rta->rta_type == RTA_TABLE)
			table = attr_u32(rta);
		else if (rta->rta_type == RTA_MULTIPATH && !oif &&
			 RTA_PAYLOAD(rta) >= sizeof(struct rtnexthop)) {
			const struct rtnexthop *nhop = RTA_DATA(rta);

			oif = (uint32_t)nhop->rtnh_ifindex;
		}
	}
	if (table != RT_TABLE_MAIN || !oif)
		return;
	if (rtm->rtm_family == AF_INET6)
		metric |= 1ull << 32;
	if (!s->default_if || metric < s->default_metric) {
		s->default_if = oif;
		s->default_metric = metric;
	}
}

void netscan_free(struct netscan *s)
{
	free(s->link);
	free(s->addr);
}

static int scan_once(struct netscan *s, bool routes)
{
	int fd, err;

	s->nlinks = 0;
	s->naddrs = 0;
	s->default_if = 0;
	fd = netscan_socket(0, 0);
	if (fd < 0)
		return netscan_plain(s, routes) ? fd : 0;
	err = netlink_dump(fd, RTM_GETLINK, add_link, s);
	if (!err)
		err = netlink_dump(fd, RTM_GETADDR, add_addr, s);
	/* Without routes (in some sandboxes) the order suffers, no more. */
	if (!err && routes &&
	    netlink_dump(fd, RTM_GETROUTE, add_route, s) == -EINTR)
		err = -EINTR;
	sys_close(fd);
	return err;
}

int netscan(struct netscan *s, bool routes)
{
	int err = -ENOMEM;

	*s = (struct netscan){
		.link = calloc(SCAN_LINKS, sizeof(*s->link)),
		.addr = calloc(SCAN_ADDRS, sizeof(*s->addr)),
	};
	if (s->link && s->addr) {
		for (int i = 0; i < DUMP_TRIES; i++) {
			err = scan_once(s, routes);
			if (err != -EINTR)
				break;
		}
		/* Five times overtaken: what was seen is good enough. */
		if (err == -EINTR)
			err = 0;
	}
	if (err)
		netscan_free(s);
	return err;
}

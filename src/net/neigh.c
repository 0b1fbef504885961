/*
 * neigh.c - asks the kernel's routes and neighbour table by rtnetlink
 *
 * An address of this host has its own interface's MAC, a group has a MAC that
 * is derived from it; others are looked up. A datagram to the discard port makes
 * the kernel resolve what it has not resolved.
 */
#include "neigh.h"

#include "netdev.h"
#include "route_cache.h"

#include "base/sys.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_vlan.h>
#include <linux/neighbour.h>
#include <linux/rtnetlink.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#define REPLY_BYTES 32768
#define WAIT_ROUNDS 300
#define ROUND_NS 10000000
#define DISCARD_PORT 9
/* Entries in these states have an address that is or was right. */
#define USABLE                                                                 \
	(NUD_REACHABLE | NUD_STALE | NUD_DELAY | NUD_PROBE | NUD_PERMANENT |   \
	 NUD_NOARP)

static struct neigh_hop hop_of(const union ibv_gid *gid, uint32_t ifindex)
{
	static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };
	struct neigh_hop hop = { AF_INET6, ifindex, .len = 16 };

	if (!memcmp(gid->raw, mapped, sizeof(mapped))) {
		hop.family = AF_INET;
		hop.len = 4;
	}
	memcpy(hop.bytes, gid->raw + 16 - hop.len, hop.len);
	return hop;
}

static bool is_group(const struct neigh_hop *hop)
{
	return hop->family == AF_INET ? (hop->bytes[0] & 0xf0) == 0xe0 :
					hop->bytes[0] == 0xff;
}

static void group_mac(const struct neigh_hop *ip, uint8_t mac[6])
{
	static const uint8_t v4[3] = { 0x01, 0x00, 0x5e };

	if (ip->family == AF_INET) { /* RFC 1112, 6.4 */
		memcpy(mac, v4, 3);
		memcpy(mac + 3, ip->bytes + 1, 3);
		mac[3] &= 0x7f;
	} else { /* RFC 2464, 7 */
		mac[0] = mac[1] = 0x33;
		memcpy(mac + 2, ip->bytes + 12, 4);
	}
}

struct request {
	struct nlmsghdr nh;
	union {
		struct rtmsg route;
		struct ndmsg neigh;
	};
	uint8_t attrs[64];
};

static void add_attr(struct request *req, uint16_t type, const void *data,
		     size_t len)
{
	struct rtattr *a =
		(void *)((uint8_t *)req + NLMSG_ALIGN(req->nh.nlmsg_len));

	a->rta_type = type;
	a->rta_len = (uint16_t)RTA_LENGTH(len);
	memcpy(RTA_DATA(a), data, len);
	req->nh.nlmsg_len =
		(uint32_t)(NLMSG_ALIGN(req->nh.nlmsg_len) + RTA_SPACE(len));
}

/*
 * Sends a request and calls fn for each message of the answer until it returns
 * true. 1: it did; 0: no message was it; -errno.
 */
static int netlink_ask(struct request *req,
		       bool (*fn)(const struct nlmsghdr *, void *), void *arg)
{
	const bool many = (req->nh.nlmsg_flags & NLM_F_DUMP) == NLM_F_DUMP;
	struct timeval tv = { .tv_sec = 1 };
	int fd, err = 0, found = 0;
	bool done = false;
	char *buf;

	buf = malloc(REPLY_BYTES);
	fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
	if (fd < 0 || !buf) {
		err = fd < 0 ? -errno : -ENOMEM;
		goto out;
	}
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
	if (sys_sendto(fd, req, req->nh.nlmsg_len, 0, NULL, 0) < 0)
		err = -errno;
	while (!err && !done) {
		const struct nlmsghdr *nh = (struct nlmsghdr *)(void *)buf;
		ssize_t n = sys_recvfrom(fd, buf, REPLY_BYTES, 0, NULL, NULL);
		size_t len = (size_t)n;

		if (n < 0) {
			err = errno == EINTR ? 0 : -errno;
			continue;
		}
		for (; !done && NLMSG_OK(nh, len); nh = NLMSG_NEXT(nh, len)) {
			if (nh->nlmsg_type == NLMSG_ERROR) {
				const struct nlmsgerr *e = NLMSG_DATA(nh);

				err = e->error;
				done = true;
			} else if (nh->nlmsg_type == NLMSG_DONE) {
				done = true;
			} else if (!found && fn(nh, arg)) {
				found = 1;
			}
			done |= !many;
		}
	}
out:
	if (fd >= 0)
		sys_close(fd);
	free(buf);
	return err ? err : found;
}

/* Attribute of a message with a header of hdr bytes, if it has len bytes. */
static const void *netlink_attr(const struct nlmsghdr *nh, size_t hdr,
				uint16_t type, size_t len)
{
	const struct rtattr *a =
		(void *)((char *)NLMSG_DATA(nh) + NLMSG_ALIGN(hdr));
	unsigned left;

	if (nh->nlmsg_len < NLMSG_SPACE(hdr))
		return NULL;
	left = (unsigned)(nh->nlmsg_len - NLMSG_SPACE(hdr));
	for (; RTA_OK(a, left); a = RTA_NEXT(a, left))
		if (a->rta_type == type && RTA_PAYLOAD(a) >= len)
			return RTA_DATA(a);
	return NULL;
}

/* The router, if there is one, takes the place of the destination. */
static bool on_route(const struct nlmsghdr *nh, void *arg)
{
	struct neigh_hop *hop = arg;
	const void *gw;

	if (nh->nlmsg_type != RTM_NEWROUTE)
		return false;
	gw = netlink_attr(nh, sizeof(struct rtmsg), RTA_GATEWAY, hop->len);
	if (gw)
		memcpy(hop->bytes, gw, hop->len);
	return true;
}

static int ask_next_hop(const void *key, void *answer)
{
	struct neigh_hop *hop = answer;
	struct request req = {
		.nh = { .nlmsg_len = NLMSG_LENGTH(sizeof(req.route)),
			.nlmsg_type = RTM_GETROUTE,
			.nlmsg_flags = NLM_F_REQUEST },
	};
	int err;

	memcpy(hop, key, sizeof(*hop));
	req.route.rtm_family = (uint8_t)hop->family;
	req.route.rtm_dst_len = (uint8_t)(hop->len * 8);
	add_attr(&req, RTA_DST, hop->bytes, hop->len);
	add_attr(&req, RTA_OIF, &hop->ifindex, sizeof(hop->ifindex));
	err = netlink_ask(&req, on_route, hop);
	return err < 0 ? -EHOSTUNREACH : 0;
}

static int next_hop(struct neigh_hop *hop)
{
	const struct neigh_hop to = *hop;

	return route_cached(&to, sizeof(to), hop, sizeof(*hop), ask_next_hop);
}

struct look {
	const struct neigh_hop *hop;
	uint8_t *mac;
};

static bool on_neigh(const struct nlmsghdr *nh, void *arg)
{
	const struct ndmsg *nd = NLMSG_DATA(nh);
	struct look *l = arg;
	const void *dst, *lladdr;

	if (nh->nlmsg_type != RTM_NEWNEIGH ||
	    nh->nlmsg_len < NLMSG_LENGTH(sizeof(*nd)) ||
	    nd->ndm_family != l->hop->family ||
	    (uint32_t)nd->ndm_ifindex != l->hop->ifindex ||
	    !(nd->ndm_state & USABLE))
		return false;
	dst = netlink_attr(nh, sizeof(*nd), NDA_DST, l->hop->len);
	lladdr = netlink_attr(nh, sizeof(*nd), NDA_LLADDR, 6);
	if (!dst || !lladdr || memcmp(dst, l->hop->bytes, l->hop->len))
		return false;
	memcpy(l->mac, lladdr, 6);
	return true;
}

static int lookup_mac(const struct neigh_hop *hop, uint8_t mac[6])
{
	struct look l = { hop, mac };
	struct request req = {
		.nh = { .nlmsg_len = NLMSG_LENGTH(sizeof(req.neigh)),
			.nlmsg_type = RTM_GETNEIGH,
			.nlmsg_flags = NLM_F_REQUEST },
		.neigh = { .ndm_family = (uint8_t)hop->family,
			   .ndm_ifindex = (int)hop->ifindex },
	};
	int err;

	add_attr(&req, NDA_DST, hop->bytes, hop->len);
	err = netlink_ask(&req, on_neigh, &l);
	if (err >= 0 || err == -ENOENT)
		return err > 0;
	/* Linux before 5.0 only lists them all. */
	req.nh.nlmsg_len = NLMSG_LENGTH(sizeof(req.neigh));
	req.nh.nlmsg_flags |= NLM_F_DUMP;
	req.neigh.ndm_ifindex = 0;
	return netlink_ask(&req, on_neigh, &l);
}

void neigh_ask(const struct neigh_hop *hop)
{
	struct sockaddr_in6 to6 = { .sin6_family = AF_INET6,
				    .sin6_port = htons(DISCARD_PORT),
				    .sin6_scope_id = hop->ifindex };
	struct sockaddr_in to4 = { .sin_family = AF_INET,
				   .sin_port = htons(DISCARD_PORT) };
	const bool v4 = hop->family == AF_INET;
	int fd = socket(hop->family, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return;
	memcpy(&to4.sin_addr, hop->bytes, 4);
	memcpy(&to6.sin6_addr, hop->bytes, 16);
	/* It need not arrive, nor leave. */
	if (sys_sendto(fd, "", 1, MSG_DONTWAIT,
		       v4 ? (struct sockaddr *)&to4 : (struct sockaddr *)&to6,
		       v4 ? sizeof(to4) : sizeof(to6)) < 0)
		errno = 0;
	sys_close(fd);
}

/* ioctl() of an interface: 0 or -errno. */
static int ask_netdev(uint32_t ifindex, unsigned long what, struct ifreq *ifr)
{
	int fd, err = 0;

	memset(ifr, 0, sizeof(*ifr));
	if (!if_indextoname(ifindex, ifr->ifr_name))
		return -ENODEV;
	fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	if (ioctl(fd, what, ifr))
		err = -errno;
	sys_close(fd);
	return err;
}

int neigh_own(uint32_t ifindex, uint8_t mac[6])
{
	struct ifreq ifr;
	int err = ask_netdev(ifindex, SIOCGIFHWADDR, &ifr);

	if (!err)
		memcpy(mac, ifr.ifr_hwaddr.sa_data, 6);
	return err;
}

bool neigh_on_link(const union ibv_gid *dgid, uint32_t ifindex)
{
	struct neigh_hop hop = hop_of(dgid, ifindex);
	const struct neigh_hop to = hop;

	return is_group(&to) || netdev_ifindex(dgid) ||
	       (!next_hop(&hop) && !memcmp(hop.bytes, to.bytes, hop.len));
}

int neigh_resolve(const union ibv_gid *dgid, uint32_t ifindex, uint8_t mac[6])
{
	struct neigh_hop hop = hop_of(dgid, ifindex);
	uint32_t own = netdev_ifindex(dgid);
	int round, err;

	if (is_group(&hop)) {
		group_mac(&hop, mac);
		return 0;
	}
	if (own)
		return neigh_own(own, mac);
	err = next_hop(&hop);
	for (round = 0; !err && round < WAIT_ROUNDS; round++) {
		err = lookup_mac(&hop, mac);
		if (err)
			break;
		if (round % 100 == 0)
			neigh_ask(&hop);
		sys_sleep(ROUND_NS);
	}
	return err > 0 ? 0 : err < 0 ? err : -EHOSTUNREACH;
}

bool neigh_known(const struct neigh_hop *hop)
{
	uint8_t mac[6];

	return lookup_mac(hop, mac) != 0;
}

/* A neighbour that is known, as most are, costs no question to its interface. */
bool neigh_missing(const union ibv_gid *dgid, uint32_t ifindex,
		   struct neigh_hop *hop)
{
	struct ifreq ifr;

	*hop = hop_of(dgid, ifindex);
	return !is_group(hop) && !netdev_ifindex(dgid) && !next_hop(hop) &&
	       !neigh_known(hop) && !ask_netdev(ifindex, SIOCGIFHWADDR, &ifr) &&
	       ifr.ifr_hwaddr.sa_family == ARPHRD_ETHER &&
	       !ask_netdev(ifindex, SIOCGIFFLAGS, &ifr) &&
	       !(ifr.ifr_flags & IFF_NOARP);
}

uint16_t neigh_vlan(uint32_t ifindex)
{
	struct vlan_ioctl_args args = { .cmd = GET_VLAN_VID_CMD };
	char name[IF_NAMESIZE];
	uint16_t vid = NEIGH_NO_VLAN;
	int fd;

	if (!if_indextoname(ifindex, name))
		return vid;
	fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return vid;
	memcpy(args.device1, name, sizeof(name));
	if (!ioctl(fd, SIOCGIFVLAN, &args))
		vid = (uint16_t)(args.u.VID & 0xfff);
	sys_close(fd);
	return vid;
}

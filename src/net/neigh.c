/*
 * neigh.c - asks the kernel's routes and neighbour table by rtnetlink
 *
 * An address of this host has its own interface's MAC, a group has a MAC that
 * is derived from it; others are looked up. A datagram to the discard port makes
 * the kernel resolve what it has not resolved.
 */
#include "neigh.h"

#include "netdev.h"

#include "base/sys.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_vlan.h>
#include <linux/neighbour.h>
#include <linux/rtnetlink.h>
#include <linux/sockios.h>
#include <net/if.h>
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

/* An IP address in network order. */
struct ip {
	int family;
	size_t len;
	uint8_t bytes[16];
};

static struct ip ip_of(const union ibv_gid *gid)
{
	static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };
	struct ip ip = { .family = AF_INET6, .len = 16 };

	if (!memcmp(gid->raw, mapped, sizeof(mapped)))
		ip = (struct ip){ .family = AF_INET, .len = 4 };
	memcpy(ip.bytes, gid->raw + 16 - ip.len, ip.len);
	return ip;
}

static void group_mac(const struct ip *ip, uint8_t mac[6])
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
static int ask(struct request *req, bool (*fn)(const struct nlmsghdr *, void *),
	       void *arg)
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
static const void *attr(const struct nlmsghdr *nh, size_t hdr, uint16_t type,
			size_t len)
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
	struct ip *ip = arg;
	const void *gw;

	if (nh->nlmsg_type != RTM_NEWROUTE)
		return false;
	gw = attr(nh, sizeof(struct rtmsg), RTA_GATEWAY, ip->len);
	if (gw)
		memcpy(ip->bytes, gw, ip->len);
	return true;
}

static int next_hop(struct ip *ip, uint32_t ifindex)
{
	struct request req = {
		.nh = { .nlmsg_len = NLMSG_LENGTH(sizeof(req.route)),
			.nlmsg_type = RTM_GETROUTE,
			.nlmsg_flags = NLM_F_REQUEST },
		.route = { .rtm_family = (uint8_t)ip->family,
			   .rtm_dst_len = (uint8_t)(ip->len * 8) },
	};
	int err;

	add_attr(&req, RTA_DST, ip->bytes, ip->len);
	add_attr(&req, RTA_OIF, &ifindex, sizeof(ifindex));
	err = ask(&req, on_route, ip);
	return err < 0 ? -EHOSTUNREACH : 0;
}

struct look {
	const struct ip *ip;
	uint32_t ifindex;
	uint8_t *mac;
};

static bool on_neigh(const struct nlmsghdr *nh, void *arg)
{
	const struct ndmsg *nd = NLMSG_DATA(nh);
	struct look *l = arg;
	const void *dst, *lladdr;

	if (nh->nlmsg_type != RTM_NEWNEIGH ||
	    nh->nlmsg_len < NLMSG_LENGTH(sizeof(*nd)) ||
	    nd->ndm_family != l->ip->family ||
	    (uint32_t)nd->ndm_ifindex != l->ifindex ||
	    !(nd->ndm_state & USABLE))
		return false;
	dst = attr(nh, sizeof(*nd), NDA_DST, l->ip->len);
	lladdr = attr(nh, sizeof(*nd), NDA_LLADDR, 6);
	if (!dst || !lladdr || memcmp(dst, l->ip->bytes, l->ip->len))
		return false;
	memcpy(l->mac, lladdr, 6);
	return true;
}

static int lookup(const struct ip *ip, uint32_t ifindex, uint8_t mac[6])
{
	struct look l = { ip, ifindex, mac };
	struct request req = {
		.nh = { .nlmsg_len = NLMSG_LENGTH(sizeof(req.neigh)),
			.nlmsg_type = RTM_GETNEIGH,
			.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP },
		.neigh = { .ndm_family = (uint8_t)ip->family },
	};

	return ask(&req, on_neigh, &l);
}

static void provoke(const struct ip *ip, uint32_t ifindex)
{
	struct sockaddr_in6 to6 = { .sin6_family = AF_INET6,
				    .sin6_port = htons(DISCARD_PORT),
				    .sin6_scope_id = ifindex };
	struct sockaddr_in to4 = { .sin_family = AF_INET,
				   .sin_port = htons(DISCARD_PORT) };
	const bool v4 = ip->family == AF_INET;
	int fd = socket(ip->family, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return;
	memcpy(&to4.sin_addr, ip->bytes, 4);
	memcpy(&to6.sin6_addr, ip->bytes, 16);
	/* It need not arrive, nor leave. */
	if (sys_sendto(fd, "", 1, MSG_DONTWAIT,
		       v4 ? (struct sockaddr *)&to4 : (struct sockaddr *)&to6,
		       v4 ? sizeof(to4) : sizeof(to6)) < 0)
		errno = 0;
	sys_close(fd);
}

static int own_mac(uint32_t ifindex, uint8_t mac[6])
{
	struct ifreq ifr = { 0 };
	int fd, err = 0;

	if (!if_indextoname(ifindex, ifr.ifr_name))
		return -ENODEV;
	fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	if (ioctl(fd, SIOCGIFHWADDR, &ifr))
		err = -errno;
	else
		memcpy(mac, ifr.ifr_hwaddr.sa_data, 6);
	sys_close(fd);
	return err;
}

int neigh_resolve(const union ibv_gid *dgid, uint32_t ifindex, uint8_t mac[6])
{
	struct ip ip = ip_of(dgid);
	uint32_t own = netdev_ifindex(dgid);
	int round, err;

	if (ip.family == AF_INET ? (ip.bytes[0] & 0xf0) == 0xe0
				 : ip.bytes[0] == 0xff) {
		group_mac(&ip, mac);
		return 0;
	}
	if (own)
		return own_mac(own, mac);
	err = next_hop(&ip, ifindex);
	for (round = 0; !err && round < WAIT_ROUNDS; round++) {
		err = lookup(&ip, ifindex, mac);
		if (err)
			break;
		if (round % 100 == 0)
			provoke(&ip, ifindex);
		sys_sleep(ROUND_NS);
	}
	return err > 0 ? 0 : err < 0 ? err : -EHOSTUNREACH;
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

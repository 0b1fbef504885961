/*
 * announce.c - see announce.h
 */
#include "announce.h"

#include "base/gid.h"
#include "base/sys.h"

#include <errno.h>
#include <linux/if_arp.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <netinet/icmp6.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

static int send_to(int fd, const void *p, size_t len, const void *to,
		   socklen_t to_len)
{
	ssize_t n = sys_sendto(fd, p, len, MSG_DONTWAIT, to, to_len);
	const int err = n == (ssize_t)len ? 0 : n < 0 ? -errno : -EIO;

	sys_close(fd);
	return err;
}

static int by_arp(const struct netdev_gid *g)
{
	struct {
		struct arphdr h;
		uint8_t sha[6], sip[4], tha[6], tip[4];
	} __attribute__((packed)) arp = {
		.h = { .ar_hrd = htons(ARPHRD_ETHER),
		       .ar_pro = htons(ETH_P_IP),
		       .ar_hln = 6,
		       .ar_pln = 4,
		       .ar_op = htons(ARPOP_REQUEST) },
	};
	struct sockaddr_ll to = { .sll_family = AF_PACKET,
				  .sll_protocol = htons(ETH_P_ARP),
				  .sll_ifindex = (int)g->ifindex,
				  .sll_halen = 6 };
	int fd = socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -errno;
	memcpy(arp.sha, g->mac, 6);
	memcpy(arp.sip, g->gid.raw + 12, 4);
	memcpy(arp.tip, g->gid.raw + 12, 4);
	memset(to.sll_addr, 0xff, 6);
	return send_to(fd, &arp, sizeof(arp), &to, sizeof(to));
}

static int by_advertisement(const struct netdev_gid *g)
{
	struct {
		struct nd_neighbor_advert h;
		struct nd_opt_hdr opt;
		uint8_t mac[6];
	} na = {
		.h.nd_na_type = ND_NEIGHBOR_ADVERT,
		.h.nd_na_flags_reserved = ND_NA_FLAG_OVERRIDE,
		.opt = { ND_OPT_TARGET_LINKADDR, 1 },
	};
	struct sockaddr_in6 from = { .sin6_family = AF_INET6,
				     .sin6_scope_id = g->ifindex };
	struct sockaddr_in6 to = { .sin6_family = AF_INET6,
				   .sin6_scope_id = g->ifindex };
	const int hops = 255, ifindex = (int)g->ifindex;
	int fd = socket(AF_INET6, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_ICMPV6);

	if (fd < 0)
		return -errno;
	memcpy(&na.h.nd_na_target, g->gid.raw, 16);
	memcpy(na.mac, g->mac, 6);
	memcpy(&from.sin6_addr, g->gid.raw, 16);
	to.sin6_addr.s6_addr[0] = 0xff; /* ff02::1: all nodes */
	to.sin6_addr.s6_addr[1] = 2;
	to.sin6_addr.s6_addr[15] = 1;
	if (setsockopt(fd, IPPROTO_IPV6, IPV6_MULTICAST_HOPS, &hops,
		       sizeof(hops)) ||
	    setsockopt(fd, IPPROTO_IPV6, IPV6_MULTICAST_IF, &ifindex,
		       sizeof(ifindex)) ||
	    bind(fd, (struct sockaddr *)&from, sizeof(from))) {
		const int err = -errno;

		sys_close(fd);
		return err;
	}
	return send_to(fd, &na, sizeof(na), &to, sizeof(to));
}

int netdev_announce(const struct netdev_gid *gid)
{
	static const uint8_t none[6];

	/* No Ethernet: there is nobody to be told. */
	if (gid->loopback || !memcmp(gid->mac, none, sizeof(none)))
		return 0;
	return gid_is_v4(&gid->gid) ? by_arp(gid) : by_advertisement(gid);
}

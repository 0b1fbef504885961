/*
 * netdev.c - the GID table, made of this host's addresses
 */
#include "netdev.h"
#include "netscan.h"

#include "base/bytes.h"
#include "base/fd_high.h"
#include "base/gid.h"
#include "base/sys.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/rtnetlink.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#define V4_LOOPBACK_PREFIX 8
#define LOOK_S 2 /* so often, where nobody says that something has changed */

static bool name_listed(const char *ifnames, const char *name)
{
	size_t len = strlen(name);

	for (const char *p = ifnames; p; p = strchr(p, ',')) {
		p += *p == ',';
		if (!strncmp(p, name, len) && (!p[len] || p[len] == ','))
			return true;
	}
	return false;
}

/* Whether each of ifnames is an interface. */
static int check_names(const struct netscan *s, const char *ifnames)
{
	for (const char *p = ifnames, *end; *p; p = end + (*end == ',')) {
		bool found = false;

		end = strchrnul(p, ',');
		for (size_t i = 0; i < s->nlinks; i++)
			found |=
				strlen(s->link[i].name) == (size_t)(end - p) &&
				!strncmp(s->link[i].name, p, (size_t)(end - p));
		if (!found)
			return -ENODEV;
	}
	return 0;
}

static int compare_addrs(const void *va, const void *vb)
{
	const struct addr_info *a = va, *b = vb;

	if (a->rank != b->rank)
		return a->rank < b->rank ? -1 : 1;
	if (a->link->ifindex != b->link->ifindex)
		return a->link->ifindex < b->link->ifindex ? -1 : 1;
	if (a->group != b->group)
		return a->group < b->group ? -1 : 1;
	return a->seq < b->seq ? -1 : a->seq > b->seq;
}

static void fill_gid(struct netdev_gid *g, const struct addr_info *a)
{
	const struct link_info *l = a->link;

	*g = (struct netdev_gid){
		.gid = a->gid,
		.prefix = a->prefix,
		.ifindex = l->ifindex,
		.mtu = l->mtu,
		.loopback = l->flags & IFF_LOOPBACK,
	};
	memcpy(g->ifname, l->name, sizeof(g->ifname));
	memcpy(g->mac, l->mac, sizeof(g->mac));
}

/* "10.0.0.1", "fd00::1", "fe80::1%eth0", "fe80::1%2" */
static int parse_addr(const char *text, union ibv_gid *gid, uint32_t *ifindex)
{
	char buf[INET6_ADDRSTRLEN + 1 + IF_NAMESIZE], *scope, *end;
	uint8_t v4[4];

	*ifindex = 0;
	if (strlen(text) >= sizeof(buf))
		return -EINVAL;
	strcpy(buf, text);
	scope = strchr(buf, '%');
	if (scope) {
		*scope++ = 0;
		*ifindex = if_nametoindex(scope);
		if (!*ifindex) {
			*ifindex = (uint32_t)strtoul(scope, &end, 10);
			if (!*ifindex || *end)
				return -EINVAL;
		}
	}
	if (inet_pton(AF_INET, buf, v4) == 1)
		*gid = gid_of_v4(v4);
	else if (inet_pton(AF_INET6, buf, gid->raw) != 1)
		return -EINVAL;
	return 0;
}

static int put_first(struct netdev_table *t, const char *text)
{
	struct netdev_gid g;
	union ibv_gid gid;
	uint32_t ifindex;
	size_t i;

	if (parse_addr(text, &gid, &ifindex))
		return -EADDRNOTAVAIL;
	for (i = 0; i < t->count; i++)
		if (!memcmp(&t->gid[i].gid, &gid, sizeof(gid)) &&
		    (!ifindex || ifindex == t->gid[i].ifindex))
			break;
	if (i < t->count) {
		g = t->gid[i];
	} else {
		if (!gid_is_v4_loopback(&gid))
			return -EADDRNOTAVAIL;
		for (i = 0; i < t->count && !t->gid[i].loopback; i++)
			;
		if (i == t->count)
			return -EADDRNOTAVAIL;
		g = t->gid[i];
		g.gid = gid;
		g.prefix = V4_LOOPBACK_PREFIX;
		i = t->count < NETDEV_MAX_GIDS ? t->count++ : t->count - 1;
	}
	memmove(&t->gid[1], &t->gid[0], i * sizeof(t->gid[0]));
	t->gid[0] = g;
	return 0;
}

int netdev_scan(struct netdev_table *t, const char *ifnames, const char *first)
{
	size_t loop = 0, skip = 0;
	struct netscan s;
	int err;

	t->count = 0;
	err = netscan(&s, true);
	if (err)
		return err;
	if (ifnames && *ifnames) {
		size_t n = 0;

		err = check_names(&s, ifnames);
		for (size_t i = 0; i < s.naddrs; i++)
			if (name_listed(ifnames, s.addr[i].link->name))
				s.addr[n++] = s.addr[i];
		s.naddrs = n;
	}
	for (size_t i = 0; i < s.naddrs; i++) {
		struct addr_info *a = &s.addr[i];
		bool lo = a->link->flags & IFF_LOOPBACK;

		loop += lo;
		a->rank = lo ? 2 : a->link->ifindex == s.default_if ? 0 : 1;
	}
	qsort(s.addr, s.naddrs, sizeof(s.addr[0]), compare_addrs);
	/* Too many: loopback, which comes last, still has its place. */
	if (s.naddrs > NETDEV_MAX_GIDS)
		skip = s.naddrs - NETDEV_MAX_GIDS;
	for (size_t i = 0; i < s.naddrs && t->count < NETDEV_MAX_GIDS; i++) {
		size_t last = s.naddrs - loop; /* first of loopback */

		if (i < last && i + skip >= last)
			continue;
		fill_gid(&t->gid[t->count++], &s.addr[i]);
	}
	netscan_free(&s);
	if (!err && first && *first)
		err = put_first(t, first);
	return err;
}

int netdev_watch_fd(void)
{
	const struct itimerspec each = { .it_value.tv_sec = LOOK_S,
					 .it_interval.tv_sec = LOOK_S };
	int fd = netscan_socket(RTMGRP_LINK | RTMGRP_IPV4_IFADDR |
					RTMGRP_IPV6_IFADDR,
				SOCK_NONBLOCK);

	/* Where there is no rtnetlink, whoever wants to know looks. */
	if (fd < 0) {
		fd = timerfd_create(CLOCK_MONOTONIC,
				    TFD_CLOEXEC | TFD_NONBLOCK);
		if (fd < 0)
			return -errno;
		timerfd_settime(fd, 0, &each, NULL);
	}
	return fd_high(fd);
}

bool netdev_changed(int fd)
{
	bool changed = false;
	char buf[64];

	/* An overflow (ENOBUFS) is a change too. */
	while (sys_read(fd, buf, sizeof(buf)) >= 0 || errno == ENOBUFS ||
	       errno == EINTR)
		changed = true;
	return changed;
}

enum ibv_mtu netdev_ib_mtu(uint32_t mtu)
{
	/*
	 * IPv6, UDP, BTH, XRCETH, AtomicETH, ICRC: what the kernel's drivers
	 * take off too, so that both ends of a link arrive at the same number.
	 */
	uint32_t room = mtu - min_u32(mtu, 40 + 8 + 12 + 4 + 28 + 4);

	return room >= 4096 ? IBV_MTU_4096 :
	       room >= 2048 ? IBV_MTU_2048 :
	       room >= 1024 ? IBV_MTU_1024 :
	       room >= 512  ? IBV_MTU_512 :
			      IBV_MTU_256;
}

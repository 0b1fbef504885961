/*
 * netplain.c - links, addresses and the default route without rtnetlink
 *
 * Sandboxes leave out AF_NETLINK (systemd's RestrictAddressFamilies=, seccomp).
 * Then ioctl(2) and /proc/net say what is needed, but for the addresses' exact
 * order: IPv4 addresses by SIOCGIFCONF (netdevice(7)), IPv6 ones in if_inet6.
 */
#include "netscan.h"

#include "base/bytes.h"
#include "base/gid.h"
#include "base/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/if_addr.h>
#include <linux/route.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define LINE 512

/* The interface of that name, which is added if it is new; NULL: there is none.
 */
static struct link_info *link_of(struct netscan *s, int fd, const char *name)
{
	struct link_info *l = &s->link[s->nlinks];
	struct ifreq req = { .ifr_ifindex = 0 };
	/* An alias (eth0:1) is an address of its interface. */
	const size_t len = strcspn(name, ":");

	if (!len || len >= sizeof(l->name))
		return NULL;
	for (size_t i = 0; i < s->nlinks; i++)
		if (!strncmp(s->link[i].name, name, len) &&
		    !s->link[i].name[len])
			return &s->link[i];
	memcpy(req.ifr_name, name, len);
	if (s->nlinks == SCAN_LINKS || ioctl(fd, SIOCGIFINDEX, &req))
		return NULL;
	*l = (struct link_info){ .ifindex = (uint32_t)req.ifr_ifindex };
	memcpy(l->name, name, len);
	if (ioctl(fd, SIOCGIFFLAGS, &req))
		return NULL;
	l->flags = (uint16_t)req.ifr_flags;
	if (ioctl(fd, SIOCGIFMTU, &req))
		return NULL;
	l->mtu = (uint32_t)req.ifr_mtu;
	if (!ioctl(fd, SIOCGIFHWADDR, &req))
		memcpy(l->mac, req.ifr_hwaddr.sa_data, sizeof(l->mac));
	s->nlinks++;
	return l;
}

static struct addr_info *add_addr(struct netscan *s, const struct link_info *l)
{
	struct addr_info *a = &s->addr[s->naddrs];

	if (!l || !(l->flags & IFF_UP) || s->naddrs == SCAN_ADDRS)
		return NULL;
	*a = (struct addr_info){ .link = l, .seq = s->naddrs };
	s->naddrs++;
	return a;
}

/* Calls fn for each line of a file; one that cannot be read has none. */
static void each_line(const char *path, struct netscan *s, int fd,
		      void (*fn)(struct netscan *s, int fd, char *line))
{
	char line[LINE];
	FILE *f = fopen(path, "rce");

	while (f && fgets(line, sizeof(line), f))
		fn(s, fd, line);
	if (f)
		fclose(f);
}

/* "  eth0: 1234 ..." of /proc/net/dev; its two lines of titles have no colon.
 */
static void dev_line(struct netscan *s, int fd, char *line)
{
	char *name = line + strspn(line, " "), *end = strchr(name, ':');

	if (end) {
		*end = '\0';
		link_of(s, fd, name);
	}
}

/* Address, ifindex, prefix length, scope, flags, name of /proc/net/if_inet6. */
static void inet6_line(struct netscan *s, int fd, char *line)
{
	char text[33], name[LINE];
	struct addr_info *a;
	unsigned int flags, prefix;

	if (sscanf(line, "%32[0-9a-f] %*x %x %*x %x %511s", text, &prefix,
		   &flags, name) != 4 ||
	    strlen(text) != 32 || flags & (IFA_F_TENTATIVE | IFA_F_DADFAILED))
		return;
	a = add_addr(s, link_of(s, fd, name));
	for (size_t i = 0; a && i < 16; i++) {
		const char byte[3] = { text[2 * i], text[2 * i + 1], '\0' };

		a->gid.raw[i] = (uint8_t)strtoul(byte, NULL, 16);
	}
	if (!a)
		return;
	a->group = gid_is_link_local(&a->gid) ? 2 : 1;
	a->prefix = (uint8_t)prefix;
}

/* Interface, destination, gateway, flags, two counts, metric, mask. */
static void route_line(struct netscan *s, int fd, char *line)
{
	unsigned int to, flags, metric, mask;
	struct link_info *l;
	char name[LINE];

	if (sscanf(line, "%511s %x %*x %x %*d %*d %u %x", name, &to, &flags,
		   &metric, &mask) != 5 ||
	    to || mask || !(flags & RTF_UP) || flags & RTF_REJECT)
		return;
	l = link_of(s, fd, name);
	if (l && (!s->default_if || metric < s->default_metric)) {
		s->default_if = l->ifindex;
		s->default_metric = metric;
	}
}

static int add_ipv4(struct netscan *s, int fd)
{
	struct ifreq *req = calloc(SCAN_ADDRS, sizeof(*req));
	struct ifconf conf = { .ifc_len = (int)(SCAN_ADDRS * sizeof(*req)),
			       .ifc_req = req };
	int err = !req ? -ENOMEM : ioctl(fd, SIOCGIFCONF, &conf) ? -errno : 0;

	for (size_t i = 0; !err && i < (size_t)conf.ifc_len / sizeof(*req);
	     i++) {
		struct addr_info *a =
			add_addr(s, link_of(s, fd, req[i].ifr_name));

		if (!a)
			continue;
		a->gid =
			gid_of_v4((const uint8_t *)&req[i].ifr_addr.sa_data[2]);
		/* The label is the address's own, as in eth0:1. */
		a->prefix = 32;
		if (!ioctl(fd, SIOCGIFNETMASK, &req[i]))
			a->prefix = (uint8_t)__builtin_popcount(
				get_be32((const uint8_t *)&req[i]
						 .ifr_netmask.sa_data[2]));
	}
	free(req);
	return err;
}

int netscan_plain(struct netscan *s, bool routes)
{
	const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	int err;

	if (fd < 0)
		return -errno;
	s->nlinks = s->naddrs = 0;
	s->default_if = 0;
	each_line("/proc/net/dev", s, fd, dev_line);
	err = add_ipv4(s, fd);
	each_line("/proc/net/if_inet6", s, fd, inet6_line);
	if (routes)
		each_line("/proc/net/route", s, fd, route_line);
	sys_close(fd);
	return err;
}

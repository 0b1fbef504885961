/*
 * netdev.c - addresses of this host, asked of the kernel by rtnetlink
 *
 * A scan dumps links, addresses and routes and sorts what it finds. The kernel
 * marks a dump that was overtaken by a change (NLM_F_DUMP_INTR); it is then
 * taken again.
 *
 * netdev_is_local() is asked for every batch of packets, so it looks into a
 * small hash table that readers may use at any time: a sequence number is odd
 * while its one writer is at work, and readers who saw it odd or changing look
 * again. A netlink socket, read at most once a second, shows cheaply whether
 * anything has changed at all.
 */
#include "netdev.h"

#include "base/aside.h"
#include "base/bytes.h"
#include "base/gid.h"
#include "base/sys.h"
#include "config.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/rtnetlink.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define DUMP_BYTES 32768
#define DUMP_TRIES 5
#define SCAN_LINKS 1024
#define SCAN_ADDRS 1024

struct link_info {
	uint32_t ifindex;
	uint32_t mtu;
	uint32_t flags; /* IFF_* */
	char name[IF_NAMESIZE];
	uint8_t mac[6];
};

struct addr_info {
	union ibv_gid gid;
	const struct link_info *link;
	int rank; /* of the interface: 0 has the default route */
	int group; /* within the interface */
	size_t seq;
};

struct scan {
	struct link_info *link;
	struct addr_info *addr;
	size_t nlinks, naddrs;
	uint32_t default_if; /* of the best default route */
	uint64_t default_metric;
};

static int netlink_open(uint32_t groups, int flags)
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
static int dump(int fd, uint16_t type,
		void (*fn)(struct scan *s, const struct nlmsghdr *nh),
		struct scan *s)
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
						      !e->error
					      ? -EPROTO
					      : e->error;
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

static void add_link(struct scan *s, const struct nlmsghdr *nh)
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

static const struct link_info *find_link(const struct scan *s, uint32_t ifindex)
{
	for (size_t i = 0; i < s->nlinks; i++)
		if (s->link[i].ifindex == ifindex)
			return &s->link[i];
	return NULL;
}

static void add_addr(struct scan *s, const struct nlmsghdr *nh)
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
	*a = (struct addr_info){ .link = link, .seq = s->naddrs };
	if (addrlen == 4) {
		a->gid = gid_of_v4(local);
	} else {
		memcpy(a->gid.raw, local, 16);
		a->group = gid_is_link_local(&a->gid) ? 2 : 1;
	}
	s->naddrs++;
}

/* Keeps the interface of the best default route; IPv4 before IPv6. */
static void add_route(struct scan *s, const struct nlmsghdr *nh)
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

static void scan_free(struct scan *s)
{
	free(s->link);
	free(s->addr);
}

static int scan_once(struct scan *s, bool routes)
{
	int fd, err;

	s->nlinks = 0;
	s->naddrs = 0;
	s->default_if = 0;
	fd = netlink_open(0, 0);
	if (fd < 0)
		return fd;
	err = dump(fd, RTM_GETLINK, add_link, s);
	if (!err)
		err = dump(fd, RTM_GETADDR, add_addr, s);
	/* Without routes (in some sandboxes) the order suffers, no more. */
	if (!err && routes && dump(fd, RTM_GETROUTE, add_route, s) == -EINTR)
		err = -EINTR;
	sys_close(fd);
	return err;
}

static int scan(struct scan *s, bool routes)
{
	int err = -ENOMEM;

	*s = (struct scan){
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
		scan_free(s);
	return err;
}

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
static int check_names(const struct scan *s, const char *ifnames)
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

static void fill(struct netdev_gid *g, const union ibv_gid *gid,
		 const struct link_info *l)
{
	*g = (struct netdev_gid){
		.gid = *gid,
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

static bool is_v4_loopback(const union ibv_gid *gid)
{
	static const uint8_t mapped[13] = { [10] = 0xff, 0xff, 127 };

	return !memcmp(gid->raw, mapped, sizeof(mapped));
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
		if (!is_v4_loopback(&gid))
			return -EADDRNOTAVAIL;
		for (i = 0; i < t->count && !t->gid[i].loopback; i++)
			;
		if (i == t->count)
			return -EADDRNOTAVAIL;
		g = t->gid[i];
		g.gid = gid;
		i = t->count < NETDEV_MAX_GIDS ? t->count++ : t->count - 1;
	}
	memmove(&t->gid[1], &t->gid[0], i * sizeof(t->gid[0]));
	t->gid[0] = g;
	return 0;
}

int netdev_scan(struct netdev_table *t, const char *ifnames, const char *first)
{
	size_t loop = 0, skip = 0;
	struct scan s;
	int err;

	t->count = 0;
	err = scan(&s, true);
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
		fill(&t->gid[t->count++], &s.addr[i].gid, s.addr[i].link);
	}
	scan_free(&s);
	if (!err && first && *first)
		err = put_first(t, first);
	return err;
}

int netdev_watch_fd(void)
{
	return fd_aside(netlink_open(RTMGRP_LINK | RTMGRP_IPV4_IFADDR |
				    RTMGRP_IPV6_IFADDR,
			    SOCK_NONBLOCK));
}

bool netdev_changed(int fd)
{
	bool changed = false;
	char buf[64];

	/* An overflow (ENOBUFS) is a change too. */
	while (sys_recvfrom(fd, buf, sizeof(buf), MSG_DONTWAIT, NULL, NULL) >=
		       0 ||
	       errno == ENOBUFS || errno == EINTR)
		changed = true;
	return changed;
}

/*
 * The table of netdev_ifindex(): open addressing. A place is an address in two
 * words and its interface; interface 0: the place is empty.
 */
#define LOCAL_SIZE 2048 /* twice SCAN_ADDRS */

static struct {
	_Atomic uint32_t seq; /* odd: being written; 0: never written */
	_Atomic uint64_t checked_ns;
	_Atomic uint64_t word[LOCAL_SIZE][3];
	pthread_mutex_t writer;
	int watch; /* -1: none */
	pid_t owner; /* of watch: a child of fork() makes its own */
} local = { .writer = PTHREAD_MUTEX_INITIALIZER, .watch = -1 };

static size_t local_hash(uint64_t hi, uint64_t lo)
{
	uint64_t h = (hi ^ (lo << 1 | lo >> 63)) * 0x9e3779b97f4a7c15u;

	return h >> 53;
}

static void local_store(const struct scan *s)
{
	uint32_t seq = atomic_load_explicit(&local.seq, memory_order_relaxed);

	atomic_store_explicit(&local.seq, seq + 1, memory_order_relaxed);
	for (size_t i = 0; i < LOCAL_SIZE; i++)
		for (int j = 0; j < 3; j++)
			atomic_store_explicit(&local.word[i][j], 0,
					      memory_order_release);
	for (size_t i = 0; i < s->naddrs; i++) {
		uint64_t hi = get_be64(s->addr[i].gid.raw);
		uint64_t lo = get_be64(s->addr[i].gid.raw + 8);
		size_t h = local_hash(hi, lo);

		while (atomic_load_explicit(&local.word[h][2],
					    memory_order_relaxed))
			h = (h + 1) % LOCAL_SIZE;
		atomic_store_explicit(&local.word[h][0], hi,
				      memory_order_release);
		atomic_store_explicit(&local.word[h][1], lo,
				      memory_order_release);
		atomic_store_explicit(&local.word[h][2],
				      s->addr[i].link->ifindex,
				      memory_order_release);
	}
	atomic_store_explicit(&local.seq, seq + 2, memory_order_release);
}

/* In the child of a fork(): the thread that was writing does not exist here,
 * and what it has written is incomplete. */
static void local_forked(void)
{
	if (!pthread_mutex_trylock(&local.writer)) {
		pthread_mutex_unlock(&local.writer);
		return;
	}
	pthread_mutex_init(&local.writer, NULL);
	atomic_store(&local.seq, 0);
	atomic_store(&local.checked_ns, 0);
}

static void local_register(void)
{
	pthread_atfork(NULL, NULL, local_forked);
}

/* At most once a second, by one thread; the others use the table as it is. */
static void local_refresh(uint64_t now)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	bool stale = true;
	struct scan s;

	pthread_once(&once, local_register);
	if (!atomic_load_explicit(&local.seq, memory_order_acquire))
		pthread_mutex_lock(&local.writer);
	else if (pthread_mutex_trylock(&local.writer))
		return;
	if (local.watch >= 0 && local.owner != getpid()) {
		sys_close(local.watch);
		local.watch = -1;
	}
	if (local.watch >= 0)
		stale = netdev_changed(local.watch);
	else {
		local.watch = netdev_watch_fd();
		local.owner = getpid();
	}
	if (stale && !scan(&s, false)) {
		local_store(&s);
		scan_free(&s);
	}
	atomic_store_explicit(&local.checked_ns, now, memory_order_release);
	pthread_mutex_unlock(&local.writer);
}

/* ifindex: of this interface; 0: of any. */
static uint32_t local_find(uint64_t hi, uint64_t lo, uint32_t ifindex)
{
	uint32_t seq, found;

	do {
		size_t h = local_hash(hi, lo);

		seq = atomic_load_explicit(&local.seq, memory_order_acquire);
		found = 0;
		for (size_t n = 0; n < LOCAL_SIZE; n++) {
			uint64_t w[3];

			for (int i = 0; i < 3; i++)
				w[i] = atomic_load_explicit(
					&local.word[h][i],
					memory_order_acquire);
			if (w[2] && w[0] == hi && w[1] == lo &&
			    (!ifindex || w[2] == ifindex))
				found = (uint32_t)w[2];
			if (!w[2] || found)
				break;
			h = (h + 1) % LOCAL_SIZE;
		}
	} while (seq & 1 ||
		 seq != atomic_load_explicit(&local.seq, memory_order_relaxed));
	return found;
}

static uint32_t local_lookup(const union ibv_gid *gid, uint32_t ifindex)
{
	uint64_t hi = get_be64(gid->raw), lo = get_be64(gid->raw + 8);
	uint64_t now = clock_coarse_ns();
	uint32_t found;

	if (now - atomic_load_explicit(&local.checked_ns,
				       memory_order_acquire) >=
	    1000000000u)
		local_refresh(now);
	found = local_find(hi, lo, ifindex);
	/* All of 127/8 is local, though only 127.0.0.1 is listed. */
	if (!found && is_v4_loopback(gid))
		found = local_find(0, 0xffff7f000001, 0);
	return found;
}

uint32_t netdev_ifindex(const union ibv_gid *gid)
{
	return local_lookup(gid, 0);
}

bool netdev_is_local_on(const union ibv_gid *gid, uint32_t ifindex)
{
	if (gid_is_link_local(gid))
		return local_lookup(gid, ifindex);
	return netdev_is_local(gid);
}

bool netdev_is_local(const union ibv_gid *gid)
{
	static const union ibv_gid v6_loopback = { .raw = { [15] = 1 } };

	return is_v4_loopback(gid) ||
	       !memcmp(gid, &v6_loopback, sizeof(*gid)) || netdev_ifindex(gid);
}

enum ibv_mtu netdev_ib_mtu(uint32_t mtu)
{
	/*
	 * IPv6, UDP, BTH, XRCETH, AtomicETH, ICRC: what the kernel's drivers
	 * take off too, so that both ends of a link arrive at the same number.
	 */
	uint32_t room = mtu - min_u32(mtu, 40 + 8 + 12 + 4 + 28 + 4);

	return room >= 4096   ? IBV_MTU_4096
	       : room >= 2048 ? IBV_MTU_2048
	       : room >= 1024 ? IBV_MTU_1024
	       : room >= 512  ? IBV_MTU_512
			      : IBV_MTU_256;
}

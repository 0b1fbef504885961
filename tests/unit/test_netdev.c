/*
 * test_netdev.c - interfaces made for the occasion, and the GIDs made of them
 */
#include "gid.h"

#include "hostns.h"
#include "testclock.h"

#include "base/bytes.h"
#include "net/neigh.h"
#include "net/netdev.h"
#include "net/route_cache.h"
#include "os/config.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>

#define FORGOTTEN_NS 1100000000u /* netdev looks again after a second */
#define SETTLED_NS                                                             \
	110000000u /* and keeps what it finds this long after a change */

static bool have_veth;

static bool is(const struct netdev_gid *g, const char *addr, const char *ifname)
{
	union ibv_gid gid = gid_of(addr);

	return !memcmp(&g->gid, &gid, 16) && !strcmp(g->ifname, ifname) &&
	       g->ifindex == if_nametoindex(ifname);
}

static bool local(const char *addr)
{
	union ibv_gid gid = gid_of(addr);

	return netdev_is_local(&gid);
}

/* Link-local addresses come when they like; these do not matter here. */
static size_t without_link_local(struct netdev_table *t)
{
	size_t n = 0;

	for (size_t i = 0; i < t->count; i++)
		if (t->gid[i].gid.raw[0] != 0xfe)
			t->gid[n++] = t->gid[i];
	return t->count = n;
}

static int setup(void **state)
{
	(void)state;
	if (!have_veth)
		return 0;
	if (!ip("link add va type veth peer name vb") ||
	    !ip("link set va up mtu 9000") || !ip("link set vb up mtu 1280") ||
	    !ip("addr add 10.1.0.1/24 dev va") ||
	    !ip("addr add 10.1.0.2/24 dev va") ||
	    !ip("addr add fd01::1/64 dev va nodad") ||
	    !ip("addr add 10.2.0.1/24 dev vb"))
		return -1;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	if (have_veth)
		ip("link del va");
	return 0;
}

static void loopback_alone(void **state)
{
	struct netdev_table t;

	(void)state;
	assert_int_equal(netdev_scan(&t, "lo", NULL), 0);
	assert_int_equal(t.count, 2);
	assert_true(is(&t.gid[0], "127.0.0.1", "lo"));
	assert_true(is(&t.gid[1], "::1", "lo"));
	assert_true(t.gid[0].loopback);
	assert_int_equal(t.gid[0].mtu, 65536);

	assert_int_equal(netdev_scan(&t, "lo", "::1"), 0);
	assert_true(is(&t.gid[0], "::1", "lo"));
	assert_true(is(&t.gid[1], "127.0.0.1", "lo"));
	assert_int_equal(t.count, 2);
	/* The rest of 127/8 is as local. */
	assert_int_equal(netdev_scan(&t, "lo", "127.4.5.6"), 0);
	assert_int_equal(t.count, 3);
	assert_true(is(&t.gid[0], "127.4.5.6", "lo"));
	assert_true(is(&t.gid[1], "127.0.0.1", "lo"));
}

static void order(void **state)
{
	struct netdev_table t;

	(void)state;
	if (!have_veth)
		skip();
	assert_int_equal(netdev_scan(&t, NULL, NULL), 0);
	assert_int_equal(without_link_local(&t), 6);
	/* vb was made first: a peer gets its index before. */
	if (if_nametoindex("vb") < if_nametoindex("va")) {
		assert_true(is(&t.gid[0], "10.2.0.1", "vb"));
		assert_true(is(&t.gid[1], "10.1.0.1", "va"));
	} else {
		assert_true(is(&t.gid[0], "10.1.0.1", "va"));
		assert_true(is(&t.gid[3], "10.2.0.1", "vb"));
	}
	assert_true(is(&t.gid[4], "127.0.0.1", "lo"));
	assert_true(is(&t.gid[5], "::1", "lo"));

	/* The default route decides. */
	for (int i = 0; i < 2; i++) {
		ip("route del default");
		assert_true(i ? ip("route add default via 10.1.0.9") :
				ip("route add default via 10.2.0.9"));
		assert_int_equal(netdev_scan(&t, "", NULL), 0);
		assert_int_equal(without_link_local(&t), 6);
		assert_true(is(&t.gid[i ? 0 : 1], "10.1.0.1", "va"));
		assert_true(is(&t.gid[i ? 1 : 2], "10.1.0.2", "va"));
		assert_true(is(&t.gid[i ? 2 : 3], "fd01::1", "va"));
		assert_true(is(&t.gid[i ? 3 : 0], "10.2.0.1", "vb"));
	}
	/* The better of two. */
	assert_true(ip("route add default via 10.2.0.9 metric 100"));
	assert_int_equal(netdev_scan(&t, NULL, NULL), 0);
	assert_true(is(&t.gid[0], "10.1.0.1", "va"));
	assert_int_equal(t.gid[0].mtu, 9000);
	assert_false(t.gid[0].loopback);
	assert_int_not_equal(t.gid[0].mac[0] | t.gid[0].mac[5], 0);
}

static void names_and_first(void **state)
{
	struct netdev_table t;

	(void)state;
	assert_int_equal(netdev_scan(&t, "nope", NULL), -ENODEV);
	assert_int_equal(netdev_scan(&t, "l", NULL), -ENODEV);
	assert_int_equal(netdev_scan(&t, "lo,nope", NULL), -ENODEV);
	assert_int_equal(netdev_scan(&t, "lo", "10.99.99.99"), -EADDRNOTAVAIL);
	assert_int_equal(t.count, 2);
	assert_int_equal(netdev_scan(&t, "lo", "rubbish"), -EADDRNOTAVAIL);
	assert_int_equal(netdev_scan(&t, "lo", "fe80::1%nope"), -EADDRNOTAVAIL);
	if (!have_veth)
		skip();
	assert_int_equal(netdev_scan(&t, "vb", NULL), 0);
	assert_int_equal(without_link_local(&t), 1);
	assert_true(is(&t.gid[0], "10.2.0.1", "vb"));
	assert_int_equal(netdev_scan(&t, "vb,lo", NULL), 0);
	assert_int_equal(without_link_local(&t), 3);
	assert_int_equal(netdev_scan(&t, "vb", "127.0.0.2"), -EADDRNOTAVAIL);
	assert_int_equal(netdev_scan(&t, NULL, "10.1.0.2"), 0);
	assert_true(is(&t.gid[0], "10.1.0.2", "va"));
	assert_int_equal(without_link_local(&t), 6);
	/* One address on two interfaces: the scope says which. */
	assert_true(ip("addr add fe80::9/64 dev va nodad"));
	assert_true(ip("addr add fe80::9/64 dev vb nodad"));
	assert_int_equal(netdev_scan(&t, NULL, "fe80::9%vb"), 0);
	assert_true(is(&t.gid[0], "fe80::9", "vb"));
	assert_int_equal(netdev_scan(&t, NULL, "fe80::9%va"), 0);
	assert_true(is(&t.gid[0], "fe80::9", "va"));
}

static void what_is_not_ready_is_left_out(void **state)
{
	struct netdev_table t;
	bool seen = false;

	(void)state;
	if (!have_veth)
		skip();
	/* Duplicate address detection takes a second. */
	assert_true(ip("addr add fd01::77/64 dev va"));
	assert_int_equal(netdev_scan(&t, "va", NULL), 0);
	for (size_t i = 0; i < t.count; i++)
		assert_false(is(&t.gid[i], "fd01::77", "va"));
	for (int i = 0; i < 500 && !seen; i++) {
		usleep(10000);
		assert_int_equal(netdev_scan(&t, "va", NULL), 0);
		for (size_t k = 0; k < t.count; k++)
			seen |= is(&t.gid[k], "fd01::77", "va");
	}
	assert_true(seen);
	assert_true(ip("link set vb down"));
	assert_int_equal(netdev_scan(&t, NULL, NULL), 0);
	for (size_t i = 0; i < t.count; i++)
		assert_string_not_equal(t.gid[i].ifname, "vb");
}

static void too_many_addresses(void **state)
{
	struct netdev_table t;

	(void)state;
	if (!have_veth)
		skip();
	assert_true(ip("-V; for i in $(seq 90); do "
		       "echo addr add 10.1.1.$i/24 dev va; "
		       "done | ip -batch -"));
	assert_int_equal(netdev_scan(&t, NULL, NULL), 0);
	assert_int_equal(t.count, NETDEV_MAX_GIDS);
	assert_true(is(&t.gid[t.count - 2], "127.0.0.1", "lo"));
	assert_true(is(&t.gid[t.count - 1], "::1", "lo"));
	assert_int_equal(netdev_scan(&t, NULL, "127.0.0.9"), 0);
	assert_int_equal(t.count, NETDEV_MAX_GIDS);
	assert_true(is(&t.gid[0], "127.0.0.9", "lo"));
	/* Those without a GID are local all the same. */
	assert_true(local("10.1.1.90"));
}

/* IPv6 addresses of an interface are there once it has a carrier. */
static bool becomes_local(const union ibv_gid *gid, uint32_t ifindex)
{
	bool is = false;

	for (int i = 0; i < 5000 && !is; i++) {
		if (i)
			usleep(1000);
		clock_forward(FORGOTTEN_NS);
		is = ifindex ? netdev_is_local_on(gid, ifindex) :
			       netdev_is_local(gid);
	}
	return is;
}

static void is_local(void **state)
{
	union ibv_gid gid = gid_of("127.200.1.1");

	(void)state;
	assert_true(local("127.0.0.1"));
	assert_true(local("127.77.0.3"));
	assert_true(local("::1"));
	assert_false(local("128.0.0.1"));
	assert_false(local("0.0.0.0"));
	assert_false(local("::"));
	assert_false(local("224.0.0.1"));
	assert_int_equal(netdev_ifindex(&gid), if_nametoindex("lo"));
	if (!have_veth)
		skip();
	clock_forward(FORGOTTEN_NS); /* what an earlier test saw */
	assert_true(local("10.1.0.1"));
	gid = gid_of("fd01::1");
	assert_true(becomes_local(&gid, 0));
	assert_false(local("10.1.0.3"));
	gid = gid_of("10.2.0.1");
	assert_int_equal(netdev_ifindex(&gid), if_nametoindex("vb"));
	assert_true(ip("addr add 10.1.0.3/24 dev va"));
	assert_true(ip("addr del 10.1.0.2/24 dev va"));
	clock_forward(FORGOTTEN_NS);
	assert_true(local("10.1.0.3"));
	assert_false(local("10.1.0.2"));
}

/* The same link-local address may be ours on one link, a peer's on another. */
static void link_local_is_of_its_link(void **state)
{
	union ibv_gid gid = gid_of("fe80::77"), other = gid_of("10.1.0.1");
	uint32_t va = if_nametoindex("va"), vb = if_nametoindex("vb");

	(void)state;
	if (!have_veth)
		skip();
	assert_true(ip("addr add fe80::77/64 dev va nodad"));
	assert_true(becomes_local(&gid, va));
	assert_false(netdev_is_local_on(&gid, vb));
	assert_true(netdev_is_local_on(&other, vb));
	assert_true(netdev_is_local(&gid));
	assert_true(ip("addr add fe80::77/64 dev vb nodad"));
	assert_true(becomes_local(&gid, vb));
	assert_true(netdev_is_local_on(&gid, va));
}

static _Atomic bool stop;

static void *hammer(void *arg)
{
	uintptr_t wrong = 0;

	(void)arg;
	while (!stop)
		for (int i = 0; i < 1000; i++)
			wrong += !local("10.1.0.1") || local("10.1.9.9");
	return (void *)wrong;
}

static void is_local_from_many_threads(void **state)
{
	pthread_t t[3];
	bool seen = true;
	char addr[16];
	void *wrong;

	(void)state;
	if (!have_veth)
		skip();
	clock_forward(FORGOTTEN_NS);
	assert_true(local("10.1.0.1"));
	for (size_t i = 0; i < ARRAY_SIZE(t); i++)
		pthread_create(&t[i], NULL, hammer, NULL);
	for (int i = 0; i < 5 && seen; i++) {
		assert_true(ip("addr add 10.1.3.%d/24 dev va", i + 1));
		snprintf(addr, sizeof(addr), "10.1.3.%d", i + 1);
		clock_forward(FORGOTTEN_NS);
		/* Another thread may be at it; this one does not wait. */
		seen = false;
		for (int n = 0; n < 5000 && !seen; n++) {
			seen = local(addr);
			if (!seen)
				usleep(1000);
		}
	}
	stop = true;
	for (size_t i = 0; i < ARRAY_SIZE(t); i++) {
		pthread_join(t[i], &wrong);
		assert_null(wrong);
	}
	assert_true(seen);
}

/* The socket of a scan comes through here; a thread may be held. */
static _Thread_local bool is_held;
static _Atomic bool holds, let_go;

int setsockopt(int fd, int level, int name, const void *value, socklen_t len)
{
	if (is_held) {
		atomic_store(&holds, true);
		while (!atomic_load(&let_go))
			usleep(1000);
	}
	return (int)syscall(SYS_setsockopt, fd, level, name, value, len);
}

static void *scan_held(void *arg)
{
	is_held = true;
	local("192.0.2.1");
	return arg;
}

/* A child of a process in which a thread was at it, for the first time. */
static void fork_during_a_scan(void **state)
{
	pid_t first, pid;
	pthread_t thread;
	int status;

	(void)state;
#ifdef __SANITIZE_THREAD__
	skip(); /* it forbids threads in a child of threads */
#endif
	first = fork_child();
	if (first) {
		assert_int_equal(waitpid(first, &status, 0), first);
		assert_int_equal(status, 0);
		return;
	}
	alarm(20); /* of the child as well: what waits, waits for ever */
	if (pthread_create(&thread, NULL, scan_held, NULL))
		_exit(1);
	while (!atomic_load(&holds))
		usleep(1000);
	pid = fork_child();
	if (!pid) {
		union ibv_gid lo = gid_of("::1");

		alarm(10);
		_exit(netdev_ifindex(&lo) ? 0 : 2);
	}
	if (waitpid(pid, &status, 0) != pid || status)
		_exit(3);
	atomic_store(&let_go, true);
	pthread_join(thread, NULL);
	_exit(0);
}

static void changes_are_announced(void **state)
{
	struct pollfd pfd = { .events = POLLIN };

	(void)state;
	if (!have_veth)
		skip();
	pfd.fd = netdev_watch_fd();
	assert_true(pfd.fd >= 0);
	assert_false(netdev_changed(pfd.fd));
	assert_true(ip("addr add 10.1.0.44/24 dev va"));
	assert_int_equal(poll(&pfd, 1, 2000), 1);
	assert_true(netdev_changed(pfd.fd));
	assert_false(netdev_changed(pfd.fd));
	assert_int_equal(poll(&pfd, 1, 0), 0);
	assert_true(ip("link set vb down"));
	assert_int_equal(poll(&pfd, 1, 2000), 1);
	assert_true(netdev_changed(pfd.fd));
	close(pfd.fd);
}

/* As in a sandbox. */
static bool no_netlink;

int socket(int domain, int type, int protocol)
{
	if (domain == AF_NETLINK && no_netlink) {
		errno = EAFNOSUPPORT;
		return -1;
	}
	return (int)syscall(SYS_socket, domain, type, protocol);
}

static void same_without_netlink(void **state)
{
	struct netdev_table with, t;

	(void)state;
	if (!have_veth)
		skip();
	assert_true(ip("route add default via 10.2.0.9 dev vb"));
	assert_int_equal(netdev_scan(&with, NULL, NULL), 0);
	no_netlink = true;
	assert_int_equal(netdev_scan(&t, NULL, NULL), 0);
	no_netlink = false;
	without_link_local(&with);
	without_link_local(&t);
	assert_true(is(&t.gid[0], "10.2.0.1", "vb"));
	assert_int_equal(t.count, with.count);
	for (size_t i = 0; i < t.count; i++) {
		assert_memory_equal(&t.gid[i].gid, &with.gid[i].gid, 16);
		assert_string_equal(t.gid[i].ifname, with.gid[i].ifname);
		assert_int_equal(t.gid[i].ifindex, with.gid[i].ifindex);
		assert_int_equal(t.gid[i].mtu, with.gid[i].mtu);
		assert_int_equal(t.gid[i].loopback, with.gid[i].loopback);
		assert_memory_equal(t.gid[i].mac, with.gid[i].mac, 6);
	}
}

/* Nobody says so: it is looked for. */
static void changes_without_netlink(void **state)
{
	struct pollfd pfd = { .events = POLLIN };

	(void)state;
	no_netlink = true;
	pfd.fd = netdev_watch_fd();
	no_netlink = false;
	assert_true(pfd.fd >= 0);
	assert_false(netdev_changed(pfd.fd));
	assert_int_equal(poll(&pfd, 1, 10000), 1);
	assert_true(netdev_changed(pfd.fd));
	assert_false(netdev_changed(pfd.fd));
	close(pfd.fd);
}

static int asked;

static int ask(const void *key, void *answer)
{
	int n;

	memcpy(&n, key, sizeof(n));
	memcpy(answer, &n, sizeof(n));
	asked++;
	return n;
}

/* How often the kernel is asked for what n stands for. */
static int asks(int n)
{
	int answer = -1;

	asked = 0;
	assert_int_equal(
		route_cached(&n, sizeof(n), &answer, sizeof(answer), ask), n);
	assert_int_equal(answer, n);
	return asked;
}

/* Of what 0 stands for; others are errors. */
static int asks_again(void)
{
	return asks(0);
}

static void wait_until_settled(void)
{
	asks_again();
	clock_forward(SETTLED_NS);
	asks_again();
	assert_int_equal(asks_again(), 0);
}

/* What the kernel says of routes holds until something changes, and no longer. */
static void routes_are_remembered(void **state)
{
	static const struct {
		const char *args;
		bool may_lack; /* the kernel */
	} changes[] = {
		{ "addr add 10.9.0.1/32 dev lo", false },
		{ "route add 10.8.0.0/16 dev lo", false },
		{ "route change 10.8.0.0/16 dev lo src 10.9.0.1", false },
		{ "route del 10.8.0.0/16", false },
		{ "addr del 10.9.0.1/32 dev lo", false },
		{ "link set lo mtu 60000", false },
		{ "-6 addr add fd07::7/128 dev lo", false },
		{ "-6 route add fd08::/64 dev lo", false },
		{ "-6 route del fd08::/64 dev lo", false },
		{ "-6 addr del fd07::7/128 dev lo", false },
		{ "rule add from 10.7.0.0/16 table 77", true },
		{ "rule del from 10.7.0.0/16 table 77", true },
		{ "-6 rule add from fd09::/64 table 77", true },
		{ "-6 rule del from fd09::/64 table 77", true },
		{ "nexthop add id 77 blackhole", true },
		{ "nexthop del id 77", true },
		{ "link set lo mtu 65536", false },
	};

	(void)state;
	wait_until_settled();
	for (size_t i = 0; i < ARRAY_SIZE(changes); i++) {
		if (!ip("%s", changes[i].args)) {
			assert_true(changes[i].may_lack);
			continue;
		}
		if (!asks_again())
			fail_msg("not noticed: ip %s", changes[i].args);
		/* The kernel may still be at it. */
		assert_int_equal(asks_again(), 1);
		clock_forward(SETTLED_NS);
		assert_int_equal(asks_again(), 1);
		assert_int_equal(asks_again(), 0);
	}
	clock_forward(FORGOTTEN_NS);
	assert_int_equal(asks_again(), 1);
	assert_int_equal(asks_again(), 0);
}

static void errors_are_not_remembered(void **state)
{
	(void)state;
	wait_until_settled();
	assert_int_equal(asks(-EHOSTUNREACH), 1);
	assert_int_equal(asks(-EHOSTUNREACH), 1);
	assert_int_equal(asks_again(), 0);
}

/* Has a socket of its own, and leaves the parent's alone. */
static int child_asks(void *arg)
{
	const bool changed = asks_again();

	(void)arg;
	return changed && !asks_again() ? 0 : 1;
}

static int child_without_netlink(void *arg)
{
	(void)arg;
	no_netlink = true;
	return asks_again() && asks_again() ? 0 : 1;
}

static void a_child_asks_itself(void **state)
{
	(void)state;
	wait_until_settled();
	assert_true(ip("addr add 10.9.0.1/32 dev lo"));
	assert_int_equal(in_child(child_asks, NULL), 0);
	assert_int_equal(asks_again(), 1);
	assert_true(ip("addr del 10.9.0.1/32 dev lo"));
	assert_int_equal(in_child(child_without_netlink, NULL), 0);
}

static void suspended_it_remembers_nothing(void **state)
{
	(void)state;
	wait_until_settled();
	netdev_local_away();
	assert_int_equal(asks_again(), 1);
	assert_int_equal(asks_again(), 1);
	netdev_local_back();
	assert_int_equal(asks_again(), 1);
	assert_int_equal(asks_again(), 0);
}

/* The next hop is one of those answers. */
static void a_new_route_is_noticed(void **state)
{
	const union ibv_gid gid = gid_of("10.1.0.9");
	uint32_t va;

	(void)state;
	if (!have_veth)
		skip();
	va = if_nametoindex("va");
	for (int i = 0; i < 3; i++) {
		assert_true(neigh_on_link(&gid, va));
		assert_true(ip("route add 10.1.0.9 via 10.1.0.8 dev va"));
		assert_false(neigh_on_link(&gid, va));
		clock_forward(SETTLED_NS);
		assert_false(neigh_on_link(&gid, va));
		assert_true(ip("route del 10.1.0.9"));
	}
}

/* One neighbour is looked for, among others. */
static void a_neighbour_is_found(void **state)
{
	const uint8_t want[6] = { 2, 0, 0, 0, 0, 9 };
	const union ibv_gid gid = gid_of("10.1.0.9"), other = gid_of("fd01::9");
	struct neigh_hop hop;
	uint8_t mac[6];
	uint32_t va;

	(void)state;
	if (!have_veth)
		skip();
	va = if_nametoindex("va");
	assert_true(ip("neigh add 10.1.0.8 lladdr 02:00:00:00:00:08 dev va"));
	assert_true(neigh_missing(&gid, va, &hop));
	assert_false(neigh_known(&hop));
	assert_true(ip("neigh add 10.1.0.9 lladdr 02:00:00:00:00:09 dev va"));
	assert_true(neigh_known(&hop));
	assert_false(neigh_missing(&gid, va, &hop));
	assert_int_equal(neigh_resolve(&gid, va, mac), 0);
	assert_memory_equal(mac, want, sizeof(mac));
	/* Known, but not its address. */
	assert_true(ip("neigh replace 10.1.0.9 dev va nud failed"));
	assert_false(neigh_known(&hop));
	assert_true(neigh_missing(&other, va, &hop));
	assert_true(ip("neigh add fd01::9 lladdr 02:00:00:00:00:09 dev va"));
	assert_true(neigh_known(&hop));
}

static void mtu(void **state)
{
	(void)state;
	assert_int_equal(netdev_ib_mtu(65536), IBV_MTU_4096);
	assert_int_equal(netdev_ib_mtu(9000), IBV_MTU_4096);
	assert_int_equal(netdev_ib_mtu(4096 + 96), IBV_MTU_4096);
	assert_int_equal(netdev_ib_mtu(4096 + 95), IBV_MTU_2048);
	assert_int_equal(netdev_ib_mtu(1500), IBV_MTU_1024);
	assert_int_equal(netdev_ib_mtu(1280), IBV_MTU_1024);
	assert_int_equal(netdev_ib_mtu(1024 + 95), IBV_MTU_512);
	assert_int_equal(netdev_ib_mtu(576), IBV_MTU_256);
	assert_int_equal(netdev_ib_mtu(0), IBV_MTU_256);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fork_during_a_scan), /* the first to scan */
		cmocka_unit_test(routes_are_remembered),
		cmocka_unit_test(errors_are_not_remembered),
		cmocka_unit_test(a_child_asks_itself),
		cmocka_unit_test(suspended_it_remembers_nothing),
		TEST(a_new_route_is_noticed),
		TEST(a_neighbour_is_found),
		TEST(loopback_alone),
		TEST(order),
		TEST(names_and_first),
		TEST(what_is_not_ready_is_left_out),
		TEST(too_many_addresses),
		TEST(is_local),
		TEST(link_local_is_of_its_link),
		TEST(is_local_from_many_threads),
		TEST(changes_are_announced),
		TEST(same_without_netlink),
		cmocka_unit_test(changes_without_netlink),
		cmocka_unit_test(mtu),
	};

	if (!own_netns()) {
		print_message("no network namespace to be had: skipped\n");
		return 77;
	}
	have_veth =
		ip("link add va type veth peer name vb") && ip("link del va");
	return cmocka_run_group_tests(tests, NULL, NULL);
}

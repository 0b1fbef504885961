/*
 * test_udp_hosts.c - the way to another host, and to one that is not there
 */
#include "udp_node.h"

#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <unistd.h>

static struct {
	unsigned count;
	union ibv_gid dst;
	uint8_t quote[300];
	size_t len;
} news;

static void on_unreachable(void *arg, const union ibv_gid *dst,
			   const uint8_t *packet, size_t len)
{
	(void)arg;
	news.count++;
	news.dst = *dst;
	news.len = len;
	memcpy(news.quote, packet, len < 300 ? len : 300);
}

static void get_mac(const char *ifname, uint8_t mac[6])
{
	struct ifreq ifr = { 0 };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	strcpy(ifr.ifr_name, ifname);
	if (!ioctl(fd, SIOCGIFHWADDR, &ifr))
		memcpy(mac, ifr.ifr_hwaddr.sa_data, 6);
	close(fd);
}

/* Another host: a process in a namespace at the other end of a cable. */
static pid_t remote(struct shared *s, struct shared *cmd)
{
	struct udp_config cfg = { .wire = false };
	union ibv_gid gid4 = gid_of("10.98.0.2"), gid6 = gid_of("fd98::2");
	union ibv_gid link = gid_of("fe80::98:2");
	pid_t pid = fork_child();
	struct node n;

	if (pid)
		return pid;
	strcpy(dir, "/tmp/softhca-test-udp-XXXXXX");
	if (!mkdtemp(dir) || unshare(CLONE_NEWNET) || !loopback_up())
		_exit(1);
	s->ready = 1;
	if (!wait_for(&cmd->go, 1))
		_exit(2);
	if (!ip("addr add 10.98.0.2/24 dev sh1") ||
	    !ip("addr add fd98::2/64 dev sh1 nodad") ||
	    !ip("addr add fe80::98:2/64 dev sh1 nodad") ||
	    !ip("link set sh1 up mtu 1500"))
		_exit(3);
	if (registry_join(&n.r, dir, NULL) || udp_create(&n.u, &cfg, n.r))
		_exit(4);
	for (int i = 0; udp_bind(n.u, &gid4, 0) || udp_bind(n.u, &gid6, 0) ||
			udp_bind(n.u, &link, if_nametoindex("sh1"));
	     i++)
		if (i == 100 || usleep(10000))
			_exit(5);
	s->qpn = (uint32_t)registry_lease(n.r);
	s->slot = registry_port(n.r, registry_slot(n.r));
	get_mac("sh1", s->mac);
	s->ready = 2;
	while (!s->stop) {
		struct pollfd pfd = { .fd = udp_fd(n.u), .events = POLLIN };

		poll(&pfd, 1, 20);
		while (udp_poll(n.u, 64, count_rx, s) > 0)
			;
		s->overflow = udp_stats(n.u)->rx_malformed;
		s->steered = udp_stats(n.u)->rx_bad_icrc;
		if (cmd->go == 2) { /* a packet as the private port likes it */
			uint8_t p[100] = { RC_MIDDLE };
			struct sockaddr_in6 to = {
				.sin6_family = AF_INET6,
				.sin6_port = htons((uint16_t)s->slot),
				.sin6_addr = IN6ADDR_LOOPBACK_INIT
			};
			struct sockaddr_in6 from = to;
			int fd = socket(AF_INET6, SOCK_DGRAM, 0), on = 1;

			from.sin6_addr = in6addr_any;
			setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on,
				   sizeof(on));
			if (bind(fd, (struct sockaddr *)&from, sizeof(from)))
				_exit(6);
			put_be24(p + 5, s->qpn);
			sendto(fd, p, sizeof(p), 0, (struct sockaddr *)&to,
			       sizeof(to));
			close(fd);
			cmd->go = 3;
		}
	}
	udp_destroy(n.u);
	registry_leave(n.r);
	{
		char rm[128];

		snprintf(rm, sizeof(rm), "rm -r %s", dir);
		_exit(system(rm) ? 6 : 0);
	}
}

/* A UDP packet over IPv6 out of sh0, from whatever address. */
static void spoof(const uint8_t mac[6], const char *src, const char *dst,
		  uint16_t port, const void *data, size_t len)
{
	union ibv_gid s = gid_of(src), d = gid_of(dst);
	uint8_t p[256] = { 0x60 };
	struct sockaddr_ll to = { .sll_family = AF_PACKET,
				  .sll_protocol = htons(ETH_P_IPV6),
				  .sll_ifindex = (int)if_nametoindex("sh0"),
				  .sll_halen = 6 };
	uint32_t sum;
	int fd;

	put_be16(p + 4, (uint32_t)(8 + len));
	p[6] = IPPROTO_UDP;
	p[7] = 64;
	memcpy(p + 8, &s, 16);
	memcpy(p + 24, &d, 16);
	put_be16(p + 40, 7777);
	put_be16(p + 42, port);
	put_be16(p + 44, (uint32_t)(8 + len));
	memcpy(p + 48, data, len);
	/* The sum over a pseudo header, which ip_checksum() complements. */
	sum = (uint16_t)~ip_checksum(p + 8, 40 + len + (len & 1));
	sum += IPPROTO_UDP + 8 + (uint32_t)len;
	sum = (sum & 0xffff) + (sum >> 16);
	put_be16(p + 46, ~((sum & 0xffff) + (sum >> 16)));
	fd = socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC, htons(ETH_P_IPV6));
	assert_true(fd >= 0);
	memcpy(to.sll_addr, mac, 6);
	assert_int_equal(
		sendto(fd, p, 48 + len, 0, (struct sockaddr *)&to, sizeof(to)),
		48 + len);
	close(fd);
}

/* Sends packets until one arrives. */
static bool probed(struct node *x, const struct roce_path *path,
		   struct shared *s)
{
	uint32_t before = s->probes;
	static struct roce_batch b;
	int err;

	for (int i = 0; i < 10000 && s->probes == before; i++) {
		b.n = b.data.n = 0;
		batch_add(&b, path, s->qpn + PROBE, RC_MIDDLE, 0, 64);
		udp_send(x->u, &b, &err);
		usleep(1000);
	}
	return s->probes != before;
}

static void another_host(void **state)
{
	struct roce_path path = path_of("10.98.0.1", "10.98.0.2");
	struct roce_path path6 = path_of("fd98::1", "fd98::2");
	struct roce_path pathl = path_of("fe80::98:1", "fe80::98:2");
	struct shared *s = shared_new(), *cmd = shared_new();
	static struct roce_batch b;
	uint8_t garbage[100] = { RC_MIDDLE };
	struct node x, y;
	pid_t pid;
	int err, fd;

	(void)state;
	pid = remote(s, cmd);
	assert_true(wait_for(&s->ready, 1));
	if (!ip("link add sh0 type veth peer name sh1") ||
	    !ip("link set sh1 netns %d", (int)pid)) {
		end_killed(pid);
		skip();
	}
	assert_true(ip("addr add 10.98.0.1/24 dev sh0"));
	assert_true(ip("addr add fd98::1/64 dev sh0 nodad"));
	assert_true(ip("addr add fe80::98:1/64 dev sh0 nodad"));
	assert_true(ip("link set sh0 up mtu 1500"));
	cmd->go = 1;
	assert_true(wait_for(&s->ready, 2));

	node_start(&x, &direct);
	/* Carrier and neighbours take what time they take. */
	assert_true(probed(&x, &path, s));
	assert_true(probed(&x, &path6, s));
	node_send(&x, NULL, &path, s->qpn, RC_MIDDLE, 1024, 500);
	assert_true(wait_for(&s->count, 500));
	node_send(&x, NULL, &path6, s->qpn, RC_MIDDLE, 1024, 500);
	assert_true(wait_for(&s->count, 1000));
	assert_int_equal(s->wrong, 0);
	assert_int_equal(s->steered, 0); /* bad ICRCs */
	assert_int_equal(s->overflow, 0); /* malformed */

	/* Larger than the cable takes: lost, the others are not. */
	for (int i = 0; i < 2; i++) {
		b.n = b.data.n = 0;
		for (uint32_t k = 0; k < 10; k++)
			batch_add(&b, i ? &path6 : &path, s->qpn, RC_MIDDLE, k,
				  k < 4 ? 2048 : 1024);
		assert_int_equal(udp_send(x.u, &b, &err), 10);
		assert_int_equal(err, EMSGSIZE);
		assert_true(wait_for(&s->count, 1006u + 6u * (unsigned)i));
	}
	assert_true(probed(&x, &path, s)); /* whatever came before is here */
	assert_true(probed(&x, &path6, s));
	assert_int_equal(s->count, 1012);

	/*
	 * The private port is for its own host, whatever QPN is guessed, and
	 * whatever source address is written on the packet.
	 */
	put_be24(garbage + 5, s->qpn);
	fd = plain_socket("10.98.0.1", 0);
	for (int i = 0; i < 5; i++)
		plain_send(fd, "10.98.0.2", (uint16_t)s->slot, garbage,
			   sizeof(garbage));
	close(fd);
	for (int i = 0; i < 2; i++)
		spoof(s->mac, i ? "fd98::2" : "fd98::1", "fd98::2",
		      (uint16_t)s->slot, garbage, sizeof(garbage));
	assert_true(probed(&x, &path, s));
	assert_true(probed(&x, &path6, s));
	assert_int_equal(s->count, 1012);
	assert_int_equal(s->overflow, 0);
	/* A neighbour of its own may say the same. */
	cmd->go = 2;
	assert_true(wait_for(&s->count, 1013));

	/* Link-local addresses have a meaning on one interface only. */
	pathl.sgid_scope = if_nametoindex("sh0");
	node_send(&x, NULL, &pathl, s->qpn, RC_MIDDLE, 1024, 100);
	assert_true(wait_for(&s->count, 1113));
	assert_int_equal(s->wrong, 0);
	node_start(&y, &direct);
	assert_int_equal(udp_bind(y.u, &pathl.sgid, pathl.sgid_scope), 0);
	assert_string_equal(udp_why(y.u), "");
	pathl.dgid = pathl.sgid;
	node_send(&x, &y, &pathl, y.qpn, RC_MIDDLE, 1024, 100);
	node_expect(&y, 100);
	assert_int_equal(registry_backlog(y.r), 0);
	node_stop(&y);
	s->stop = 1;
	end(pid);
	node_stop(&x);
	ip("link del sh0");
}

/*
 * Nobody has the port there: that is known, with what was sent. It concerns QP1
 * alone, and no packet that is sent next, to somebody who is there.
 */
static void unreachable_host(const char *a, const char *b, const char *nobody)
{
	struct roce_path path = path_of(a, b), nowhere = path_of(a, nobody);
	uint64_t end = clock_ns() + 5000000000u;
	struct node x, y;

	memset(&news, 0, sizeof(news));
	node_start(&x, &wire);
	node_start(&y, &wire);
	udp_on_unreachable(x.u, on_unreachable, NULL);
	node_bind(&x, a);
	node_bind(&y, b);
	node_send(&x, NULL, &nowhere, 5, UD_ONLY, 256, 20);
	node_poll(&x);
	assert_int_equal(news.count, 0);
	for (unsigned i = 1; i <= 20; i++) {
		node_send(&x, NULL, &nowhere, 1, UD_ONLY, 256, 1);
		node_send(&x, NULL, &path, 1, UD_ONLY, 256, 1);
		y.next_psn = 0;
		node_expect(&y, i);
	}
	while (news.count < 20 && clock_ns() < end)
		node_poll(&x);
	assert_int_equal(news.count, 20);
	assert_memory_equal(&news.dst, &nowhere.dgid, 16);
	assert_true(news.len >= 20 + 256);
	assert_int_equal(news.quote[0], UD_ONLY);
	assert_int_equal(news.quote[7], 1);
	for (size_t i = 0; i < 256; i++)
		assert_int_equal(news.quote[20 + i], pattern(0, i));
	assert_false(node_readable(&x));
	node_stop(&x);
	node_stop(&y);
}

static void unreachable_v4(void **state)
{
	(void)state;
	unreachable_host("127.0.0.1", "127.0.0.2", "127.0.0.3");
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(unreachable_v4),
		cmocka_unit_test(another_host),
	};

	return RUN_NODE_TESTS(tests, argc, argv);
}

/*
 * test_udp.c - the UDP link between processes of one host and of two, with
 * everything that can go wrong between them
 *
 * Runs in a network namespace of its own, so that port 4791 is free. Addresses
 * are of 127/8, all of which belong to lo.
 */
#include "unit.h"

#include "hostns.h"

#include "base/bytes.h"
#include "host/config.h"
#include "host/netdev.h"
#include "host/registry.h"
#include "link/udp.h"
#include "trace/pcap.h"
#include "wire/icrc.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/in6.h>
#include <netinet/udp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define RC_MIDDLE (ROCE_RC | ROCE_SEND_MIDDLE)
#define UD_ONLY (ROCE_UD | ROCE_SEND_ONLY)
#define CHUNK_OF(qpn) ((qpn) & ~(uint32_t)(REGISTRY_CHUNK - 1))

static char dir[64];

/* A process as far as the link is concerned. */
struct node {
	struct registry *r;
	struct udp *u;
	uint32_t qpn;
	/* received */
	unsigned count, wrong;
	uint32_t next_psn;
	bool any_order;
	struct roce_rx last;
	uint8_t last_grh[40];
	uint8_t data[ROCE_MTU_MAX];
	unsigned rx_ud;
	int forward_to; /* slot, or -1 */
};

static uint8_t pattern(uint32_t psn, size_t i)
{
	return (uint8_t)(psn * 7 + i + (i >> 8));
}

static void rx(void *arg, const struct roce_rx *pkt)
{
	struct node *n = arg;

	if (n->forward_to >= 0) {
		if (udp_forward(n->u, (unsigned)n->forward_to))
			n->wrong++;
		return;
	}
	n->count++;
	n->last = *pkt;
	n->last.payload = NULL;
	if (pkt->grh)
		memcpy(n->last_grh, pkt->grh, 40);
	if (CHUNK_OF(pkt->h.dest_qpn) != n->qpn &&
	    pkt->h.dest_qpn != ROCE_MULTICAST_QPN && pkt->h.dest_qpn != 1)
		n->wrong++;
	if (!n->any_order && pkt->h.psn != n->next_psn)
		n->wrong++;
	n->next_psn = psn_add(pkt->h.psn, 1);
	for (size_t i = 0; i < pkt->len; i++)
		if (pkt->payload[i] != pattern(pkt->h.psn, i))
			n->wrong++;
	memcpy(n->data, pkt->payload, pkt->len);
}

static void node_start(struct node *n, const struct udp_config *cfg)
{
	const char *why = "";
	int q;

	memset(n, 0, sizeof(*n));
	n->forward_to = -1;
	if (registry_join(&n->r, dir, &why)) {
		print_message("%s\n", why);
		fail();
	}
	assert_int_equal(udp_create(&n->u, cfg, n->r), 0);
	q = registry_lease(n->r);
	assert_true(q > 0);
	n->qpn = (uint32_t)q;
}

static void node_stop(struct node *n)
{
	udp_destroy(n->u);
	registry_leave(n->r);
}

static union ibv_gid gid_of(const char *text)
{
	union ibv_gid gid = { .raw = { [10] = 0xff, [11] = 0xff } };

	if (strchr(text, ':'))
		assert_int_equal(inet_pton(AF_INET6, text, gid.raw), 1);
	else
		assert_int_equal(inet_pton(AF_INET, text, gid.raw + 12), 1);
	return gid;
}

static void node_bind(struct node *n, const char *addr)
{
	union ibv_gid gid = gid_of(addr);

	assert_int_equal(udp_bind(n->u, &gid, 0), 0);
	assert_string_equal(udp_why(n->u), "");
}

static struct roce_path path_of(const char *src, const char *dst)
{
	return (struct roce_path){ .sgid = gid_of(src),
				   .dgid = gid_of(dst),
				   .hop_limit = 64 };
}

static void batch_add(struct roce_batch *b, const struct roce_path *path,
		      uint32_t qpn, uint8_t opcode, uint32_t psn,
		      size_t payload)
{
	static uint8_t data[ROCE_BATCH][ROCE_MTU_MAX];
	struct roce_pkt *p = &b->pkt[b->n];
	struct roce_hdr h = {
		.opcode = opcode,
		.pad = (uint8_t)(-payload & 3),
		.pkey = ROCE_PKEY_DEFAULT,
		.dest_qpn = qpn,
		.psn = psn & PSN_MASK,
		.src_qpn = 0x1234,
		.qkey = 0x11111111,
	};

	for (size_t i = 0; i < payload; i++)
		data[b->n][i] = pattern(psn & PSN_MASK, i);
	*p = (struct roce_pkt){
		.path = path,
		.hash = qpn,
		.iov = (uint32_t)b->data.n,
		.payload = (uint16_t)payload,
	};
	roce_pkt_headers(p, &h);
	if (payload > 10) { /* in two pieces */
		b->data.iov[b->data.n++] = (struct iovec){ data[b->n], 10 };
		b->data.iov[b->data.n++] =
			(struct iovec){ data[b->n] + 10, payload - 10 };
		p->niov = 2;
	} else if (payload) {
		b->data.iov[b->data.n++] = (struct iovec){ data[b->n], payload };
		p->niov = 1;
	}
	b->n++;
}

static bool readable(const struct node *n)
{
	struct pollfd pfd = { .fd = udp_fd(n->u), .events = POLLIN };

	return poll(&pfd, 1, 0) == 1;
}

static void node_poll(struct node *n)
{
	for (int i = 0; i < 1000; i++)
		if (udp_poll(n->u, 64, rx, n) <= 0 && !readable(n))
			break;
}

/* Until count packets have come, or a second has passed without one. */
static void node_expect(struct node *n, unsigned count)
{
	uint64_t end = clock_ns() + 1000000000u;

	while (n->count < count && clock_ns() < end) {
		struct pollfd pfd = { .fd = udp_fd(n->u), .events = POLLIN };

		if (udp_poll(n->u, 64, rx, n) > 0)
			end = clock_ns() + 1000000000u;
		else
			poll(&pfd, 1, 20);
	}
	assert_int_equal(n->count, count);
	assert_int_equal(n->wrong, 0);
}

/* Sends count packets of one size; the receiver, if given, is polled. */
static void node_send(struct node *from, struct node *to,
		      const struct roce_path *path, uint32_t qpn,
		      uint8_t opcode, size_t payload, unsigned count)
{
	static struct roce_batch b;
	uint64_t end = clock_ns() + 5000000000u;
	unsigned done = 0;
	size_t n;
	int err;

	while (done < count && clock_ns() < end) {
		b.n = b.data.n = 0;
		while (b.n < ROCE_BATCH && done + b.n < count)
			batch_add(&b, path, qpn, opcode, (uint32_t)(done + b.n),
				  payload);
		n = udp_send(from->u, &b, &err);
		assert_int_equal(err, 0);
		done += (unsigned)n;
		if (to)
			node_poll(to);
		else if (n < b.n)
			usleep(100);
	}
	assert_int_equal(done, count);
}

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

static const struct udp_config direct, wire = { .wire = true };

/* Every size, both ways, both families: all arrive, in order and unharmed. */
static void round_trip(const struct udp_config *cfg, const char *a,
		       const char *b)
{
	static const size_t sizes[] = {
		0, 1, 2, 3, 4, 63, 256, 1024, 4093, 4096
	};
	struct roce_path path = path_of(a, b);
	struct node x, y;
	unsigned total = 0;

	node_start(&x, cfg);
	node_start(&y, cfg);
	node_bind(&x, a);
	node_bind(&y, b);
	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		y.next_psn = 0;
		node_send(&x, &y, &path, y.qpn + 5, RC_MIDDLE, sizes[i], 150);
		total += 150;
		node_expect(&y, total);
		assert_int_equal(y.last.len, sizes[i]);
		assert_int_equal(y.last.h.dest_qpn, y.qpn + 5);
		assert_memory_equal(&y.last.sgid, &path.sgid, 16);
		assert_memory_equal(&y.last.dgid, &path.dgid, 16);
		assert_null(y.last.grh);
	}
	assert_int_equal(udp_stats(x.u)->tx_pkts, total);
	assert_int_equal(udp_stats(y.u)->rx_pkts, total);
	assert_int_equal(udp_stats(y.u)->rx_bytes, udp_stats(x.u)->tx_bytes);
	assert_int_equal(udp_stats(y.u)->rx_bad_icrc, 0);
	assert_int_equal(udp_stats(y.u)->rx_malformed, 0);
	assert_int_equal(udp_stats(y.u)->rx_overflow, 0);
	assert_int_equal(registry_backlog(y.r), 0);
	node_stop(&x);
	node_stop(&y);
}

static void private_port_v4(void **state)
{
	(void)state;
	round_trip(&direct, "127.0.0.1", "127.0.0.2");
}

static void private_port_v6(void **state)
{
	(void)state;
	round_trip(&direct, "::1", "::1");
}

static void wire_v4(void **state)
{
	(void)state;
	round_trip(&wire, "127.0.0.1", "127.0.0.2");
}

static void wire_v6(void **state)
{
	(void)state;
	round_trip(&wire, "::1", "::1");
}

/* One process alone, without a registry, talks to itself over port 4791. */
static void alone(void **state)
{
	struct roce_path path = path_of("127.0.0.1", "127.0.0.1");
	union ibv_gid gid = gid_of("127.0.0.1");
	struct node n = { .forward_to = -1, .qpn = CHUNK_OF(0x777000) };
	struct udp *second;

	(void)state;
	assert_int_equal(udp_create(&n.u, &direct, NULL), 0);
	node_bind(&n, "127.0.0.1");
	node_send(&n, &n, &path, 0x777abc, RC_MIDDLE, 1000, 300);
	node_expect(&n, 300);
	assert_int_equal(udp_create(&second, &direct, NULL), 0);
	assert_int_equal(udp_bind(second, &gid, 0), -EADDRINUSE);
	assert_non_null(strstr(udp_why(second), "4791 of 127.0.0.1"));
	assert_non_null(strstr(udp_why(second), "test_udp"));
	udp_destroy(second);
	udp_destroy(n.u);
}

/*
 * What is on the wire, seen by a plain socket: every packet a datagram of its
 * own, ICRC good for identification k in the k-th of a run and 0 when alone.
 */
static void wire_format_of_a_run(void **state)
{
	struct roce_path path = path_of("127.0.0.1", "127.0.0.9");
	struct sockaddr_in sin = { .sin_family = AF_INET,
				   .sin_port = htons(ROCE_UDP_PORT),
				   .sin_addr.s_addr = htonl(0x7f000009) };
	static struct roce_batch b;
	struct sockaddr_in from;
	socklen_t fromlen = sizeof(from);
	uint8_t buf[8192];
	struct node n;
	int fd, err;

	(void)state;
	node_start(&n, &direct);
	fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&sin, sizeof(sin)), 0);
	b.n = b.data.n = 0;
	for (uint32_t i = 0; i < 30; i++) /* 3 runs: 14, a short one ends it */
		batch_add(&b, &path, 0x123456, RC_MIDDLE, i,
			  i == 13  ? 700
			  : i < 20 ? 1024
				   : 2048);
	assert_int_equal(udp_send(n.u, &b, &err), 30);
	assert_int_equal(err, 0);
	for (uint32_t i = 0; i < 30; i++) {
		uint16_t id = 0, want = (uint16_t)(i < 14   ? i
						   : i < 20 ? i - 14
							    : i - 20);
		struct roce_hdr h;
		ssize_t len = recvfrom(fd, buf, sizeof(buf), 0,
				       (struct sockaddr *)&from, &fromlen);

		assert_int_equal(len, 12 +
					      (i == 13  ? 700
					       : i < 20 ? 1024
							: 2048) +
					      4);
		assert_true(icrc_check(&path.sgid, &path.dgid,
				       ntohs(from.sin_port), ROCE_UDP_PORT, buf,
				       (size_t)len, &id));
		assert_int_equal(id, want);
		assert_int_equal(roce_decode(&h, buf, (size_t)len - 4), 12);
		assert_int_equal(h.psn, i);
		assert_in_range(ntohs(from.sin_port), 0xc000, 0xffff);
	}
	assert_int_equal(recv(fd, buf, sizeof(buf), 0), -1);
	/* To nobody we know it is the wire, flow control or not. */
	assert_int_equal(registry_backlog(n.r), 0);
	close(fd);
	node_stop(&n);
}

static uint16_t ip_checksum(const uint8_t *p, size_t len)
{
	uint32_t sum = 0;

	for (size_t i = 0; i < len; i += 2)
		sum += get_be16(p + i);
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t)~sum;
}

/* The next packet that leaves by this AF_PACKET socket's interface. */
static size_t next_frame(int fd, uint8_t *p, size_t size)
{
	struct pollfd pfd = { .fd = fd, .events = POLLIN };
	struct sockaddr_ll from;
	socklen_t len;
	ssize_t n;

	do {
		len = sizeof(from);
		assert_int_equal(poll(&pfd, 1, 2000), 1);
		n = recvfrom(fd, p, size, 0, (struct sockaddr *)&from, &len);
		assert_true(n > 0);
	} while (from.sll_pkttype != PACKET_OUTGOING ||
		 (p[0] >> 4 == 4 ? p[9] : p[6]) != IPPROTO_UDP);
	return (size_t)n;
}

/*
 * Annex A17.4.5: the path's traffic class (DSCP and ECN) and hop limit are in
 * the IP header, and its flow label if that has room for one; Don't Fragment is
 * set, the identification is the one that the ICRC counts on. The UDP source
 * port is the flow's, and in the range for it.
 */
static void headers_of_ip(void **state)
{
	struct roce_path path[2] = { path_of("127.0.0.1", "127.0.0.9"),
				     path_of("::1", "::1") };
	uint16_t port[2][4], id = 0;
	static struct roce_batch b;
	uint8_t p[2048], *udp;
	struct node n;
	int fd, err;

	(void)state;
	fd = socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC, htons(ETH_P_ALL));
	assert_true(fd >= 0);
	node_start(&n, &direct);
	for (int v6 = 0; v6 < 2; v6++)
		for (uint32_t i = 0; i < 8; i++) {
			path[v6].tclass = (uint8_t)(i & 1 ? 0xb9 : 0);
			path[v6].hop_limit = (uint8_t)(i & 2 ? 17 : 64);
			path[v6].flow_label = i & 4 ? 0xf4321 - i : 0;
			b.n = b.data.n = 0;
			batch_add(&b, &path[v6], 0x123456, RC_MIDDLE, i, 256);
			b.pkt[0].hash = i % 4;
			assert_int_equal(udp_send(n.u, &b, &err), 1);
			next_frame(fd, p, sizeof(p));
			if (v6) {
				assert_int_equal(get_be32(p) >> 20,
						 0x600 | path[1].tclass);
				if (path[1].flow_label)
					assert_int_equal(get_be32(p) & 0xfffff,
							 path[1].flow_label);
				assert_int_equal(p[7], path[1].hop_limit);
				udp = p + 40;
			} else {
				assert_int_equal(p[0], 0x45);
				assert_int_equal(p[1], path[0].tclass);
				assert_int_equal(get_be16(p + 4), 0);
				assert_int_equal(get_be16(p + 6), 0x4000);
				assert_int_equal(p[8], path[0].hop_limit);
				udp = p + 20;
			}
			assert_true(icrc_check(&path[v6].sgid, &path[v6].dgid,
					       get_be16(udp), ROCE_UDP_PORT,
					       udp + 8, get_be16(udp + 4) - 8u,
					       &id));
			assert_int_equal(get_be16(udp + 2), ROCE_UDP_PORT);
			assert_in_range(get_be16(udp), 0xc000, 0xffff);
			if (i < 4)
				port[v6][i] = get_be16(udp);
			assert_int_equal(get_be16(udp), port[v6][i % 4]);
			for (uint32_t k = 0; k < i && i < 4; k++)
				assert_int_not_equal(port[v6][k], port[v6][i]);
		}
	close(fd);
	node_stop(&n);
}

/*
 * Once somebody has a flow label for himself, the kernel refuses those of who
 * has none: the packet goes without. (Last: leases outlive their sockets.)
 */
static void leased_flow_labels(void **state)
{
	struct in6_flowlabel_req lease = { .flr_label = htonl(0x22222),
					   .flr_action = IPV6_FL_A_GET,
					   .flr_share = IPV6_FL_S_EXCL,
					   .flr_flags = IPV6_FL_F_CREATE,
					   .flr_dst = IN6ADDR_LOOPBACK_INIT };
	struct roce_path path = path_of("::1", "::1");
	int other = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0), fd, err;
	static struct roce_batch b;
	uint8_t p[2048];
	struct node n;

	(void)state;
	fd = socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC, htons(ETH_P_ALL));
	assert_true(fd >= 0 && other >= 0);
	assert_int_equal(setsockopt(other, IPPROTO_IPV6, IPV6_FLOWLABEL_MGR,
				    &lease, sizeof(lease)),
			 0);
	node_start(&n, &direct);
	path.flow_label = 0x54321;
	for (uint32_t i = 0; i < 2; i++) {
		b.n = b.data.n = 0;
		for (uint32_t k = 0; k < 3; k++)
			batch_add(&b, &path, 0x123456, RC_MIDDLE, i, 256);
		assert_int_equal(udp_send(n.u, &b, &err), 3);
		assert_int_equal(err, 0);
		next_frame(fd, p, sizeof(p));
		assert_int_not_equal(get_be32(p) & 0xfffff, 0x54321);
	}
	node_stop(&n);
	close(other);
	close(fd);
}

/*
 * A packet as another implementation sends it: headers of its own making, no
 * UDP checksum. reserved: what is in the reserved bits of the BTH.
 */
static void raw_send(const char *from, const char *to, uint16_t sport,
		     uint16_t ip_id, const struct roce_hdr *h, uint8_t reserved)
{
	union ibv_gid src = gid_of(from), dst = gid_of(to);
	bool v6 = strchr(to, ':') != NULL;
	struct sockaddr_storage addr;
	uint8_t p[40 + 8 + ROCE_HDR_MAX + 64 + 4] = { 0 };
	uint8_t *udp = p + (v6 ? 40 : 20), *bth = udp + 8;
	uint32_t hl = (uint32_t)roce_encode(h, bth);
	const uint32_t len = hl + 64 + 4; /* from BTH to ICRC */
	socklen_t addrlen;
	int fd;

	if (v6) {
		p[0] = 0x60;
		put_be16(p + 4, 8 + len);
		p[6] = IPPROTO_UDP;
		p[7] = 64;
		memcpy(p + 8, src.raw, 16);
		memcpy(p + 24, dst.raw, 16);
	} else {
		p[0] = 0x45;
		put_be16(p + 2, 20 + 8 + len);
		put_be16(p + 4, ip_id);
		p[6] = 0x40;
		p[8] = 64;
		p[9] = IPPROTO_UDP;
		memcpy(p + 12, src.raw + 12, 4);
		memcpy(p + 16, dst.raw + 12, 4);
	}
	put_be16(udp, sport);
	put_be16(udp + 2, ROCE_UDP_PORT);
	put_be16(udp + 4, 8 + len);
	bth[4] |= reserved & 0x3f;
	bth[8] |= reserved & 0x7f;
	for (size_t i = 0; i < 64; i++)
		bth[hl + i] = pattern(h->psn, i);
	icrc_put(bth + len - 4,
		 icrc_bth(icrc_begin(&src, &dst, sport, ROCE_UDP_PORT, len,
				     v6 ? 0 : ip_id),
			  bth, len - 4));
	fd = socket(v6 ? AF_INET6 : AF_INET, SOCK_RAW | SOCK_CLOEXEC,
		    IPPROTO_RAW);
	assert_true(fd >= 0);
	memset(&addr, 0, sizeof(addr));
	if (v6) {
		struct sockaddr_in6 *sin6 = (void *)&addr;

		sin6->sin6_family = AF_INET6;
		memcpy(&sin6->sin6_addr, dst.raw, 16);
		addrlen = sizeof(*sin6);
	} else {
		struct sockaddr_in *sin = (void *)&addr;

		sin->sin_family = AF_INET;
		memcpy(&sin->sin_addr, dst.raw + 12, 4);
		addrlen = sizeof(*sin);
	}
	assert_int_equal(sendto(fd, p, (size_t)(bth - p) + len, 0,
				(struct sockaddr *)&addr, addrlen),
			 (bth - p) + (ssize_t)len);
	close(fd);
}

/*
 * Annex A17.4.5.2: no UDP checksum is needed, over IPv6 either, where Linux
 * wants one; rxe sends none, the ICRC covers more. 9.2: reserved bits of the
 * BTH, whatever they are, mean nothing.
 */
static void no_udp_checksum(void **state)
{
	static const char *const addr[2][2] = { { "127.0.0.7", "127.0.0.1" },
						{ "::1", "::1" } };
	struct node n;

	(void)state;
	node_start(&n, &direct);
	node_bind(&n, "127.0.0.1");
	node_bind(&n, "::1");
	for (int v6 = 0; v6 < 2; v6++) {
		struct roce_hdr h = { .opcode = RC_MIDDLE,
				      .pkey = ROCE_PKEY_DEFAULT,
				      .dest_qpn = n.qpn,
				      .psn = n.next_psn };

		raw_send(addr[v6][0], addr[v6][1], 7777, 0x1234, &h, 0xff);
		node_expect(&n, (unsigned)v6 + 1);
	}
	assert_int_equal(udp_stats(n.u)->rx_bad_icrc, 0);
	assert_int_equal(udp_stats(n.u)->rx_malformed, 0);
	node_stop(&n);
}

/*
 * rxe counts the IPv4 identification of its packets on, over all its QPs, while
 * UDP sockets neither show it nor leave it out of the ICRC: it is found, from a
 * good guess or, after a gap or with a restart, without one, and a UD receiver
 * sees it in the header that precedes its data (RFC 6864 allows any value).
 */
static void quirk_rxe_counts_identification(void **state)
{
	uint16_t id = 0xffe0; /* wraps, and a sender that leaves it 0 is no end */
	struct node n;

	(void)state;
	node_start(&n, &direct);
	node_bind(&n, "127.0.0.1");
	n.any_order = true;
	for (uint32_t i = 0; i < 100; i++) {
		bool ud = i % 5 == 4;
		struct roce_hdr h = { .opcode = ud ? UD_ONLY : RC_MIDDLE,
				      .pkey = ROCE_PKEY_DEFAULT,
				      .dest_qpn = n.qpn,
				      .src_qpn = 0x1234,
				      .psn = i };

		raw_send("127.0.0.7", "127.0.0.1", (uint16_t)(0xc000 + i % 3),
			 id, &h, 0);
		node_expect(&n, i + 1);
		assert_int_equal(n.last.h.psn, i);
		if (ud)
			assert_int_equal(get_be16(n.last_grh + 24), id);
		id = (uint16_t)(id + (i % 10 ? 1 : i == 50 ? 0x7abc : 17));
	}
	assert_int_equal(udp_stats(n.u)->rx_bad_icrc, 0);
	node_stop(&n);
}

static void ud_has_a_grh(const struct udp_config *cfg)
{
	struct roce_path path = path_of("127.0.0.1", "127.0.0.2");
	static const uint8_t zero[20];
	struct node x, y;
	uint8_t *g;

	node_start(&x, cfg);
	node_start(&y, cfg);
	node_bind(&y, "127.0.0.2");
	path.tclass = 0xb8 | 3;
	path.hop_limit = 17;
	y.next_psn = 0;
	node_send(&x, &y, &path, y.qpn, UD_ONLY, 101, 3);
	node_expect(&y, 3);
	assert_non_null(y.last.grh);
	assert_int_equal(y.last.tclass, 0xbb);
	assert_true(y.last.ecn_ce);
	assert_int_equal(y.last.h.src_qpn, 0x1234);
	g = y.last_grh;
	assert_memory_equal(g, zero, 20);
	assert_int_equal(g[20], 0x45);
	assert_int_equal(g[21], 0xbb);
	assert_int_equal(get_be16(g + 22), 20 + 8 + 12 + 8 + 101 + 3 + 4);
	assert_int_equal(g[28], 17);
	assert_int_equal(g[29], IPPROTO_UDP);
	assert_memory_equal(g + 32, path.sgid.raw + 12, 4);
	assert_memory_equal(g + 36, path.dgid.raw + 12, 4);
	assert_int_equal(ip_checksum(g + 20, 20), 0);

	node_bind(&y, "::1");
	path = path_of("::1", "::1");
	path.tclass = 0x28;
	path.hop_limit = 3;
	y.next_psn = 0;
	y.count = 0;
	node_send(&x, &y, &path, y.qpn, UD_ONLY, 64, 1);
	node_expect(&y, 1);
	assert_int_equal(get_be32(g), 0x62800000);
	assert_int_equal(get_be16(g + 4), 8 + 12 + 8 + 64 + 4);
	assert_int_equal(g[6], IPPROTO_UDP);
	assert_int_equal(g[7], 3);
	assert_memory_equal(g + 8, &path.sgid, 16);
	assert_memory_equal(g + 24, &path.dgid, 16);
	assert_false(y.last.ecn_ce);
	node_stop(&x);
	node_stop(&y);
}

static void grh(void **state)
{
	(void)state;
	ud_has_a_grh(&direct);
	ud_has_a_grh(&wire);
}

/* A datagram of 64 packets is handed over as slowly as the caller wants. */
static void budget_is_kept(void **state)
{
	struct roce_path path = path_of("127.0.0.1", "127.0.0.1");
	struct node n;

	(void)state;
	node_start(&n, &direct);
	node_bind(&n, "127.0.0.1");
	assert_false(readable(&n));
	node_send(&n, NULL, &path, n.qpn, RC_MIDDLE, 256, 128);
	for (unsigned before = 0; before < 128; before = n.count) {
		assert_true(readable(&n));
		assert_in_range(udp_poll(n.u, 5, rx, &n), 1, 5);
		assert_in_range(n.count, before + 1, before + 5);
	}
	assert_int_equal(n.count, 128);
	assert_int_equal(n.wrong, 0);
	assert_int_equal(udp_poll(n.u, 5, rx, &n), 0);
	assert_false(readable(&n));
	node_stop(&n);
}

static unsigned lossy(double loss, uint64_t seed, uint8_t *pattern_out)
{
	struct udp_config cfg = { .loss = loss, .seed = seed };
	struct roce_path path = path_of("127.0.0.1", "127.0.0.1");
	struct node n;
	unsigned count;

	node_start(&n, &cfg);
	node_bind(&n, "127.0.0.1");
	n.any_order = true;
	node_send(&n, &n, &path, n.qpn, RC_MIDDLE, 100, 1000);
	node_poll(&n);
	count = n.count;
	assert_int_equal(n.wrong, 0);
	assert_int_equal(udp_stats(n.u)->tx_dropped, 1000 - count);
	assert_int_equal(udp_stats(n.u)->tx_pkts, count);
	*pattern_out = (uint8_t)n.next_psn;
	node_stop(&n);
	return count;
}

static void loss_is_what_was_asked_for(void **state)
{
	uint8_t last[3];

	(void)state;
	assert_int_equal(lossy(1, 1, last), 0);
	assert_int_equal(lossy(0, 1, last), 1000);
	assert_in_range(lossy(0.5, 1, &last[0]), 400, 600);
	assert_int_equal(lossy(0.01, 7, &last[0]), lossy(0.01, 7, &last[1]));
	assert_int_equal(last[0], last[1]);
	assert_in_range(lossy(0.01, 8, &last[0]), 970, 999);
}

/* reuse: SO_REUSEPORT, SO_REUSEADDR or 0 */
static int socket_with(const char *addr, uint16_t port, int reuse)
{
	union ibv_gid gid = gid_of(addr);
	struct sockaddr_in sin = { .sin_family = AF_INET,
				   .sin_port = htons(port) };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), on = 1;

	memcpy(&sin.sin_addr, gid.raw + 12, 4);
	if (reuse)
		setsockopt(fd, SOL_SOCKET, reuse, &on, sizeof(on));
	if (bind(fd, (struct sockaddr *)&sin, sizeof(sin))) {
		close(fd);
		return -errno;
	}
	return fd;
}

static int plain_socket(const char *addr, uint16_t port)
{
	return socket_with(addr, port, 0);
}

static void plain_send(int fd, const char *addr, uint16_t port,
		       const void *data, size_t len)
{
	union ibv_gid gid = gid_of(addr);
	struct sockaddr_in sin = { .sin_family = AF_INET,
				   .sin_port = htons(port) };

	memcpy(&sin.sin_addr, gid.raw + 12, 4);
	assert_int_equal(
		sendto(fd, data, len, 0, (struct sockaddr *)&sin, sizeof(sin)),
		len);
}

/* Whatever bytes arrive on either port: counted, dropped, nothing else. */
static void arbitrary_bytes(void **state)
{
	uint64_t seed = rnd_seed(), bad;
	uint8_t buf[3000];
	struct node n;
	uint16_t own;
	int fd;

	(void)state;
	node_start(&n, &direct);
	node_bind(&n, "127.0.0.1");
	n.any_order = true;
	/* As a process of this user may: the private port hears no other. */
	own = registry_port(n.r, registry_slot(n.r));
	fd = socket_with("127.0.0.7", own, SO_REUSEPORT);
	for (int i = 0; i < 4000; i++) {
		size_t len = i < 100 ? (size_t)i : rnd(&seed) % sizeof(buf);
		uint16_t port = i & 1 ? ROCE_UDP_PORT : own;

		rnd_fill(&seed, buf, len);
		if (len == 1)
			buf[0] = 0; /* 0xff would be a poke, and not count */
		if (i % 4 == 0 && len > 2) { /* like a hand-over */
			buf[0] = 0xff;
			buf[1] = 2;
		}
		plain_send(fd, "127.0.0.1", port, buf, len);
		if (i % 16 == 0)
			node_poll(&n);
	}
	node_poll(&n);
	bad = udp_stats(n.u)->rx_malformed + udp_stats(n.u)->rx_bad_icrc;
	assert_int_equal(bad + n.count, 4000);
	/* Port 4791 lets nothing pass that has no ICRC. */
	assert_true(udp_stats(n.u)->rx_bad_icrc > 50);
	close(fd);
	n.wrong = 0;
	n.count = 0;
	n.next_psn = 0;
	n.any_order = false;
	{
		struct roce_path path = path_of("127.0.0.1", "127.0.0.1");

		node_send(&n, &n, &path, n.qpn, RC_MIDDLE, 100, 10);
	}
	node_expect(&n, 10);
	node_stop(&n);
}

/* One flipped bit on the wire is one packet lost. */
static void a_flipped_bit_is_noticed(void **state)
{
	struct roce_path path = path_of("127.0.0.7", "127.0.0.1");
	struct roce_hdr h = { .opcode = RC_MIDDLE, .pkey = 0xffff };
	uint8_t pkt[100] = { 0 };
	struct node n;
	int fd;

	(void)state;
	node_start(&n, &direct);
	node_bind(&n, "127.0.0.1");
	fd = plain_socket("127.0.0.7", 5555);
	roce_encode(&h, pkt);
	for (size_t i = 0; i < 84; i++)
		pkt[12 + i] = pattern(0, i);
	icrc_put(pkt + 96, icrc_bth(icrc_begin(&path.sgid, &path.dgid, 5555,
					       ROCE_UDP_PORT, 100, 0),
				    pkt, 96));
	plain_send(fd, "127.0.0.1", ROCE_UDP_PORT, pkt, 100);
	n.any_order = true;
	node_poll(&n);
	assert_int_equal(n.count, 1);
	for (int bit = 0; bit < 800; bit++) {
		if (bit / 8 == 4) /* FECN, BECN and reserved bits may change */
			continue;
		pkt[bit / 8] ^= (uint8_t)(1 << bit % 8);
		plain_send(fd, "127.0.0.1", ROCE_UDP_PORT, pkt, 100);
		pkt[bit / 8] ^= (uint8_t)(1 << bit % 8);
		node_poll(&n);
	}
	/* A single bit never looks like another identification. */
	assert_int_equal(n.count, 1);
	close(fd);
	node_stop(&n);
}

/* Packets of one batch to several places; each takes its way. */
static void mixed_batch(void **state)
{
	struct roce_path to_b = path_of("127.0.0.1", "127.0.0.2");
	struct roce_path to_c = path_of("127.0.0.1", "127.0.0.3");
	static struct roce_batch batch;
	struct node a, b, c;
	int err;

	(void)state;
	node_start(&a, &direct);
	node_start(&b, &direct);
	node_start(&c, &wire);
	node_bind(&b, "127.0.0.2");
	node_bind(&c, "127.0.0.3");
	batch.n = batch.data.n = 0;
	for (uint32_t i = 0; i < 60; i++)
		batch_add(&batch, i % 3 ? &to_b : &to_c, i % 3 ? b.qpn : c.qpn,
			  RC_MIDDLE, i / 3 * 2 + i % 3, i % 5 ? 512 : 99);
	b.any_order = c.any_order = true;
	assert_int_equal(udp_send(a.u, &batch, &err), 60);
	assert_int_equal(err, 0);
	node_expect(&b, 40);
	node_expect(&c, 20);
	node_stop(&a);
	node_stop(&b);
	node_stop(&c);
}

/*
 * A small receive buffer and a receiver that is slow: senders are held back,
 * and nothing is lost, on the private port and on the wire.
 */
static void no_overrun(const struct udp_config *cfg, size_t payload)
{
	struct udp_config small = *cfg;
	struct roce_path path = path_of("127.0.0.1", "127.0.0.2");
	static struct roce_batch b;
	struct node x, y;
	unsigned sent = 0, refused = 0;
	size_t n;
	int err;

	small.rcvbuf = 65536;
	node_start(&x, cfg);
	node_start(&y, &small);
	node_bind(&y, "127.0.0.2");
	while (sent < 3000) {
		b.n = b.data.n = 0;
		while (b.n < ROCE_BATCH)
			batch_add(&b, &path, y.qpn, RC_MIDDLE,
				  (uint32_t)(sent + b.n), payload);
		n = udp_send(x.u, &b, &err);
		assert_int_equal(err, 0);
		sent += (unsigned)n;
		if (n < b.n) {
			refused++;
			/* An ACK does not wait behind the data. */
			b.n = b.data.n = 0;
			batch_add(&b, &path, y.qpn, ROCE_ACK, sent++, 0);
			assert_int_equal(udp_send(x.u, &b, &err), 1);
			udp_poll(y.u, 7, rx, &y);
		}
	}
	assert_true(refused > 10);
	node_expect(&y, sent);
	assert_int_equal(udp_stats(y.u)->rx_overflow, 0);
	assert_int_equal(udp_stats(x.u)->tx_busy, refused);
	assert_int_equal(registry_backlog(y.r), 0);
	node_stop(&x);
	node_stop(&y);
}

static void slow_receivers_are_not_overrun(void **state)
{
	(void)state;
	no_overrun(&direct, 64);
	no_overrun(&direct, 4096);
	no_overrun(&wire, 64);
	no_overrun(&wire, 4096);
}

/* What several processes share with their parent. */
struct shared {
	_Atomic uint32_t ready, count, wrong, stop, go;
	_Atomic uint64_t steered, overflow;
	_Atomic uint32_t qpn, slot;
	uint8_t mac[6];
};

static struct shared *shared_new(void)
{
	struct shared *s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE,
				MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(s, MAP_FAILED);
	return s;
}

static bool wait_for(_Atomic uint32_t *p, uint32_t value)
{
	for (int i = 0; i < 5000 && atomic_load(p) < value; i++)
		usleep(1000);
	return atomic_load(p) >= value;
}

static void count_rx(void *arg, const struct roce_rx *pkt)
{
	struct shared *s = arg;

	if (CHUNK_OF(pkt->h.dest_qpn) != s->qpn &&
	    pkt->h.dest_qpn != ROCE_MULTICAST_QPN)
		atomic_fetch_add(&s->wrong, 1);
	atomic_fetch_add(&s->count, 1);
}

/* A process that receives at addr until it is told to stop, or killed. */
static pid_t receiver(struct shared *s, const struct udp_config *cfg,
		      const char *addr)
{
	union ibv_gid gid = gid_of(addr);
	pid_t pid = fork();
	struct node n;

	if (pid)
		return pid;
	die_with_parent();
	if (registry_join(&n.r, dir, NULL) || udp_create(&n.u, cfg, n.r) ||
	    udp_bind(n.u, &gid, 0))
		_exit(1);
	s->qpn = (uint32_t)registry_lease(n.r);
	s->slot = registry_slot(n.r);
	s->ready = 1;
	while (!s->stop) {
		struct pollfd pfd = { .fd = udp_fd(n.u), .events = POLLIN };

		poll(&pfd, 1, 50);
		while (udp_poll(n.u, 64, count_rx, s) > 0)
			;
		s->steered = udp_stats(n.u)->rx_steered;
		s->overflow = udp_stats(n.u)->rx_overflow;
	}
	udp_destroy(n.u);
	registry_leave(n.r);
	_exit(0);
}

static void end(pid_t pid)
{
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status) && !WEXITSTATUS(status));
}

static void end_killed(pid_t pid)
{
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}

/* A sender that died between counting and sending leaves no one waiting. */
static void a_wrong_backlog_heals(void **state)
{
	struct udp_config small = { .rcvbuf = 65536 };
	struct roce_path path = path_of("127.0.0.1", "127.0.0.2");
	static struct roce_batch b;
	struct node x, y;
	uint64_t end;
	int err;

	(void)state;
	node_start(&x, &direct);
	node_start(&y, &small);
	node_bind(&y, "127.0.0.2");
	/* Polling receiver: at once. */
	assert_true(registry_charge(x.r, registry_slot(y.r), 1 << 30));
	for (int i = 0; i < 4; i++) {
		node_poll(&y);
		usleep(2000);
	}
	assert_int_equal(registry_backlog(y.r), 0);
	registry_uncharge(x.r, registry_slot(y.r), 1 << 30);
	for (int i = 0; i < 4; i++) {
		node_poll(&y);
		usleep(2000);
	}
	assert_int_equal(registry_backlog(y.r), 0);
	/* Sleeping receiver: it is woken before anything is sent. */
	assert_true(registry_charge(x.r, registry_slot(y.r), 1 << 30));
	b.n = b.data.n = 0;
	batch_add(&b, &path, y.qpn, RC_MIDDLE, 0, 64);
	end = clock_ns() + 5000000000u;
	while (!readable(&y) && clock_ns() < end)
		udp_send(x.u, &b, &err);
	assert_int_equal(udp_stats(x.u)->tx_pkts, 0);
	while (!y.count && clock_ns() < end) {
		if (udp_send(x.u, &b, &err))
			break;
		if (readable(&y))
			udp_poll(y.u, 64, rx, &y);
	}
	node_expect(&y, 1);
	assert_int_equal(udp_stats(y.u)->rx_malformed, 0);
	node_stop(&x);
	node_stop(&y);
}

static void killed_receiver_blocks_nobody(void **state)
{
	struct udp_config small = { .rcvbuf = 65536 };
	struct roce_path path = path_of("127.0.0.1", "127.0.0.2");
	static struct roce_batch b;
	struct shared *s = shared_new();
	uint64_t start;
	struct node x;
	pid_t pid;
	size_t n = 64;
	int err;

	(void)state;
	node_start(&x, &direct);
	pid = receiver(s, &small, "127.0.0.2");
	assert_true(wait_for(&s->ready, 1));
	kill(pid, SIGSTOP);
	for (int i = 0; i < 100 && n == 64; i++) {
		b.n = b.data.n = 0;
		while (b.n < ROCE_BATCH)
			batch_add(&b, &path, s->qpn, RC_MIDDLE, (uint32_t)b.n,
				  1024);
		n = udp_send(x.u, &b, &err);
	}
	assert_true(n < 64); /* stopped, and its buffer is full */
	end_killed(pid);
	start = clock_ns();
	for (int i = 0; i < 50; i++) {
		while (udp_send(x.u, &b, &err) < 64)
			assert_true(clock_ns() - start < 1000000000u);
	}
	node_stop(&x);
}

/* The port of a killed process may be anybody's by the next packet. */
static void port_of_the_killed_is_left_alone(void **state)
{
	struct roce_path path = path_of("127.0.0.1", "127.0.0.2");
	struct shared *s = shared_new();
	struct node x;
	uint16_t port;
	char byte;
	pid_t pid;
	int fd;

	(void)state;
	node_start(&x, &direct);
	pid = receiver(s, &direct, "127.0.0.2");
	assert_true(wait_for(&s->ready, 1));
	port = registry_port(x.r, s->slot);
	assert_true(port);
	end_killed(pid);
	fd = plain_socket("127.0.0.2", port);
	assert_true(fd >= 0);
	node_send(&x, NULL, &path, s->qpn, RC_MIDDLE, 100, 5);
	assert_int_equal(recv(fd, &byte, 1, MSG_DONTWAIT), -1);
	close(fd);
	munmap(s, sizeof(*s));
	node_stop(&x);
}

/* What another user of this machine may try. */
struct stranger {
	_Atomic uint32_t go, done;
	_Atomic uint32_t port, qpn; /* of the receiver */
	_Atomic uint32_t bound; /* how often the port was to be had */
	_Atomic uint32_t heard; /* datagrams that it got */
	_Atomic uint32_t sent;
};

static void inject(struct stranger *s)
{
	const char *const from[] = { "127.0.0.1", "127.0.0.2", "0.0.0.0" };
	/* A packet of the peer's address, a hand-over, a poke. */
	uint8_t p[3][100] = { { RC_MIDDLE }, { 0xff, 2 }, { 0xff } };
	static const size_t len[] = { 100, 100, 1 };
	struct sockaddr_in6 to = { .sin6_family = AF_INET6,
				   .sin6_port = htons((uint16_t)s->port),
				   .sin6_addr = IN6ADDR_LOOPBACK_INIT };
	int fd;

	put_be24(p[0] + 5, s->qpn);
	p[1][40] = RC_MIDDLE;
	put_be24(p[1] + 45, s->qpn);
	for (size_t i = 0; i < 3 * ARRAY_SIZE(from); i++) {
		fd = plain_socket(from[i / 3], 0);
		plain_send(fd, "127.0.0.2", (uint16_t)s->port, p[i % 3],
			   len[i % 3]);
		close(fd);
		s->sent++;
	}
	fd = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (sendto(fd, p[0], 100, 0, (struct sockaddr *)&to, sizeof(to)) == 100)
		s->sent++;
	close(fd);
}

static void stranger(struct stranger *s)
{
	static const int reuse[] = { 0, SO_REUSEPORT, SO_REUSEADDR };
	const char *const at[] = { "0.0.0.0", "127.0.0.1", "127.0.0.2" };
	char buf[2000];
	int fd, wire_fd;

	die_with_parent();
	while (!s->go)
		usleep(1000);
	inject(s);
	s->done = 1;
	while (s->go < 2)
		usleep(1000);
	for (size_t i = 0; i < ARRAY_SIZE(reuse) * ARRAY_SIZE(at); i++) {
		fd = socket_with(at[i / 3], (uint16_t)s->port, reuse[i % 3]);
		s->bound += fd >= 0;
		close(fd);
	}
	fd = plain_socket("0.0.0.0", (uint16_t)s->port);
	wire_fd = plain_socket("127.0.0.2", ROCE_UDP_PORT);
	s->done = 2;
	while (s->go < 3)
		usleep(1000);
	for (int i = 0; i < 2; i++) {
		int from = i ? wire_fd : fd;

		while (from >= 0 &&
		       recv(from, buf, sizeof(buf), MSG_DONTWAIT) > 0)
			s->heard++;
	}
	_exit(0);
}

/*
 * before: x has sent to the receiver while that lived. Then nobody else can
 * have its port; otherwise x notices.
 */
static void strangers_at_the_port(bool before)
{
	struct roce_path path = path_of("127.0.0.1", "127.0.0.2");
	struct shared *s = shared_new();
	struct stranger *o = mmap(NULL, sizeof(*o), PROT_READ | PROT_WRITE,
				  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	uint8_t packet[20] = { RC_MIDDLE };
	pid_t pid, other;
	struct node x;

	node_start(&x, &direct);
	pid = receiver(s, &direct, "127.0.0.2");
	assert_true(wait_for(&s->ready, 1));
	other = fork();
	if (!other) {
		if (setresgid(54321, 54321, 54321) ||
		    setresuid(54321, 54321, 54321)) {
			o->done = 77;
			_exit(0);
		}
		stranger(o);
	}
	o->port = registry_port(x.r, s->slot);
	o->qpn = s->qpn;
	o->go = 1;
	assert_true(wait_for(&o->done, 1));
	if (o->done == 77) {
		print_message("no second user to be had: skipped\n");
		end(other);
		end_killed(pid);
		node_stop(&x);
		skip();
	}
	assert_in_range(o->sent, 9, 10);
	if (before) {
		node_send(&x, NULL, &path, s->qpn, RC_MIDDLE, 100, 5);
		assert_true(wait_for(&s->count, 5));
		assert_int_equal(s->wrong, 0);
	}
	end_killed(pid);
	assert_int_equal(s->count, before ? 5 : 0);
	o->go = 2;
	assert_true(wait_for(&o->done, 2));
	/* With nobody who holds it the port is to be had. */
	if (before)
		assert_int_equal(o->bound, 0);
	else
		assert_true(o->bound > 0);
	node_send(&x, NULL, &path, s->qpn, RC_MIDDLE, 100, 5);
	udp_handover(x.u, s->slot, &path.sgid, &path.dgid, 0, packet,
		     sizeof(packet));
	o->go = 3;
	end(other);
	assert_int_equal(o->heard, 0);
	munmap(s, sizeof(*s));
	munmap(o, sizeof(*o));
	node_stop(&x);
}

static void other_users_neither_send_nor_hear(void **state)
{
	(void)state;
	if (geteuid()) {
		print_message("not root, no second user: skipped\n");
		skip();
	}
	strangers_at_the_port(true);
	strangers_at_the_port(false);
}

static unsigned open_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	unsigned n = 0;

	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* Who has yet to read; what came later, was lost or is for a dead one is no
 * reason to wait. */
static void unread_is_known(void **state)
{
	struct udp_config lossy_cfg = { .loss = 1 };
	struct roce_path path = path_of("127.0.0.1", "127.0.0.2");
	struct roce_path back = path_of("127.0.0.2", "127.0.0.1");
	struct shared *s = shared_new();
	uint64_t mark[2] = { 0 };
	struct node x, y, z;
	pid_t pid;

	(void)state;
	path.local = true;
	node_start(&x, &direct);
	node_start(&y, &direct);
	node_bind(&x, "127.0.0.1");
	node_bind(&y, "127.0.0.2");
	x.any_order = y.any_order = true;
	assert_false(udp_unread(x.u, &path, y.qpn, mark));
	node_send(&x, NULL, &path, y.qpn, RC_MIDDLE, 100, 5);
	assert_true(udp_unread(x.u, &path, y.qpn, mark));
	assert_true(udp_unread(x.u, &path, y.qpn, mark));
	node_expect(&y, 5);
	node_send(&x, NULL, &path, y.qpn, RC_MIDDLE, 100, 5);
	assert_false(udp_unread(x.u, &path, y.qpn, mark));
	assert_true(udp_unread(x.u, &path, y.qpn, mark));
	node_expect(&y, 10);
	assert_false(udp_unread(x.u, &path, y.qpn, mark));
	/* The answer waits for ourselves. */
	node_send(&y, NULL, &back, x.qpn, RC_MIDDLE, 100, 1);
	assert_true(udp_unread(x.u, &path, y.qpn, mark));
	node_expect(&x, 1);
	assert_false(udp_unread(x.u, &path, y.qpn, mark));
	/* A mark of another process that had the slot. */
	mark[0] = 1u << 30;
	node_send(&x, NULL, &path, y.qpn, RC_MIDDLE, 100, 1);
	assert_false(udp_unread(x.u, &path, y.qpn, mark));
	node_expect(&y, 11);

	node_start(&z, &lossy_cfg);
	node_send(&z, NULL, &path, y.qpn, RC_MIDDLE, 100, 5);
	assert_false(udp_unread(z.u, &path, y.qpn, mark));
	node_stop(&z);
	node_start(&z, &wire);
	node_send(&z, NULL, &path, y.qpn, RC_MIDDLE, 100, 5);
	assert_false(udp_unread(z.u, &path, y.qpn, mark));
	node_stop(&z);
	node_stop(&y);

	pid = receiver(s, &direct, "127.0.0.2");
	assert_true(wait_for(&s->ready, 1));
	kill(pid, SIGSTOP);
	assert_int_equal(waitpid(pid, NULL, WUNTRACED), pid);
	node_send(&x, NULL, &path, s->qpn, RC_MIDDLE, 100, 5);
	assert_true(udp_unread(x.u, &path, s->qpn, mark));
	end_killed(pid);
	assert_false(udp_unread(x.u, &path, s->qpn, mark));
	munmap(s, sizeof(*s));
	node_stop(&x);
}

/* Port 4791 does where no more sockets can be had, if the peer is there. */
static void out_of_descriptors(void **state)
{
	struct roce_path path = path_of("127.0.0.1", "127.0.0.2");
	union ibv_gid gid = gid_of("127.0.0.2");
	struct rlimit old, none;
	struct node x, y;
	char buf[2000];
	int fd, lowest;

	(void)state;
	for (int i = 0; i < 2; i++) {
		node_start(&x, &direct);
		node_start(&y, &direct);
		fd = -1;
		if (i) {
			fd = plain_socket("127.0.0.2", ROCE_UDP_PORT);
			assert_true(fd >= 0);
			assert_int_equal(udp_bind(y.u, &gid, 0), 0);
		} else {
			node_bind(&y, "127.0.0.2");
		}
		lowest = dup(0);
		close(lowest);
		getrlimit(RLIMIT_NOFILE, &old);
		none = old;
		none.rlim_cur = (rlim_t)lowest;
		setrlimit(RLIMIT_NOFILE, &none);
		node_send(&x, &y, &path, y.qpn, RC_MIDDLE, 100, 5);
		setrlimit(RLIMIT_NOFILE, &old);
		node_expect(&y, i ? 0 : 5);
		if (fd >= 0) {
			assert_int_equal(recv(fd, buf, sizeof(buf),
					      MSG_DONTWAIT),
					 -1);
			close(fd);
		}
		node_stop(&x);
		node_stop(&y);
	}
}

/* A server of many short-lived processes keeps a socket per slot, no more. */
static void sockets_of_the_gone_are_closed(void **state)
{
	struct roce_path path = path_of("127.0.0.1", "127.0.0.2");
	unsigned before = 0;
	struct node x, y;

	(void)state;
	node_start(&x, &direct);
	for (int i = 0; i < 20; i++) {
		node_start(&y, &direct);
		node_bind(&y, "127.0.0.2");
		node_send(&x, &y, &path, y.qpn, RC_MIDDLE, 100, 5);
		node_expect(&y, 5);
		node_stop(&y);
		if (i == 1)
			before = open_fds();
	}
	assert_int_equal(open_fds(), before);
	node_stop(&x);
}

static void steering_of_processes(const struct udp_config *cfg)
{
	struct roce_path path = path_of("127.0.0.1", "127.0.0.2");
	enum { N = 8, ROUNDS = 5 };
	struct shared *s[N];
	uint64_t seed = rnd_seed();
	uint32_t sent[N] = { 0 };
	uint64_t steered = 0;
	struct node x;
	pid_t pid[N];

	node_start(&x, cfg);
	for (int i = 0; i < N; i++) {
		s[i] = shared_new();
		pid[i] = receiver(s[i], cfg, "127.0.0.2");
	}
	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < N; i++)
			assert_true(wait_for(&s[i]->ready, 1));
		for (int k = 0; k < 5; k++) {
			for (int i = 0; i < N; i++) {
				node_send(&x, NULL, &path, s[i]->qpn + 1,
					  RC_MIDDLE, 512, 40);
				sent[i] += 40;
			}
			/* Time for those who were found wrong to be corrected. */
			usleep(20000);
		}
		for (int i = 0; i < N; i++) {
			assert_true(wait_for(&s[i]->count, sent[i]));
			assert_int_equal(s[i]->count, sent[i]);
			assert_int_equal(s[i]->wrong, 0);
			assert_int_equal(s[i]->overflow, 0);
			steered += s[i]->steered;
		}
		/* Some die together, others come; some leave properly. */
		for (int i = 0; i < N && round < ROUNDS - 1; i++) {
			if (rnd(&seed) % 2)
				continue;
			if (rnd(&seed) % 3) {
				kill(pid[i], SIGKILL);
				waitpid(pid[i], NULL, 0);
			} else {
				s[i]->stop = 1;
				end(pid[i]);
			}
			memset(s[i], 0, sizeof(*s[i]));
			sent[i] = 0;
			if (rnd(&seed) % 2) { /* two deaths in a row */
				pid[i] = receiver(s[i], cfg, "127.0.0.2");
				continue;
			}
			pid[i] = receiver(s[i], cfg, "127.0.0.2");
			assert_true(wait_for(&s[i]->ready, 1));
		}
	}
	for (int i = 0; i < N; i++) {
		s[i]->stop = 1;
		end(pid[i]);
	}
	print_message("handed over: %llu\n", (unsigned long long)steered);
	/* Far most packets find their way by themselves. */
	if (cfg->wire)
		assert_true(steered < N * ROUNDS * 200 / 2);
	else
		assert_int_equal(steered, 0);
	node_stop(&x);
}

static void steering(void **state)
{
	(void)state;
	steering_of_processes(&wire);
	steering_of_processes(&direct);
}

/*
 * Deaths in an order that nobody saw: the list is then a guess, and packets
 * that go astray put it right.
 */
static void steering_is_repaired(void **state)
{
	struct roce_path path = path_of("127.0.0.1", "127.0.0.2");
	enum { N = 6 };
	struct shared *s[N];
	uint64_t steered[2] = { 0 };
	struct node x;
	pid_t pid[N];

	(void)state;
	node_start(&x, &wire);
	for (int i = 0; i < N; i++) {
		s[i] = shared_new();
		pid[i] = receiver(s[i], &wire, "127.0.0.2");
		assert_true(wait_for(&s[i]->ready, 1));
	}
	/* The list is swept in order of slots; this is the other order. */
	end_killed(pid[2]); /* kernel: 0 1 5 3 4 */
	end_killed(pid[1]); /* kernel: 0 4 5 3; swept: 0 5 4 3 or so */
	for (int round = 0; round < 2; round++) {
		for (int k = 0; k < 20; k++) {
			for (int i = 0; i < N; i++)
				if (i != 1 && i != 2)
					node_send(&x, NULL, &path, s[i]->qpn,
						  RC_MIDDLE, 64, 10);
			usleep(20000);
		}
		for (int i = 0; i < N; i++) {
			uint32_t want = 200u * (unsigned)(round + 1);

			if (i == 1 || i == 2)
				continue;
			assert_true(wait_for(&s[i]->count, want));
			assert_int_equal(s[i]->count, want);
			steered[round] += s[i]->steered;
		}
	}
	print_message("handed over: %llu, then %llu\n",
		      (unsigned long long)steered[0],
		      (unsigned long long)(steered[1] - steered[0]));
	assert_true(steered[0] > 0); /* else nothing has been tested */
	assert_int_equal(steered[1], steered[0]); /* all is well since */
	for (int i = 0; i < N; i++) {
		if (i == 1 || i == 2)
			continue;
		s[i]->stop = 1;
		end(pid[i]);
	}
	node_stop(&x);
}

static void many_sockets(void **state)
{
	enum { N = 64 };
	static struct node n[N];
	struct roce_path path = path_of("127.0.0.1", "127.0.0.2");
	struct udp_config small = { .wire = true, .rcvbuf = 65536 };

	(void)state;
	for (int i = 0; i < N; i++) {
		node_start(&n[i], &small);
		node_bind(&n[i], "127.0.0.2");
		/* Ranges that are no range: every other chunk. */
		assert_true(registry_lease(n[i / 2].r) > 0);
		assert_true(registry_lease(n[i / 3].r) > 0);
	}
	for (int i = 0; i < N; i++) {
		node_send(&n[(i + 1) % N], &n[i], &path, n[i].qpn, RC_MIDDLE,
			  100, 20);
		node_expect(&n[i], 20);
		assert_int_equal(udp_stats(n[i].u)->rx_steered, 0);
	}
	for (int i = 0; i < N; i += 2)
		node_stop(&n[i]);
	for (int i = 1; i < N; i += 2) {
		n[i].next_psn = 0;
		node_send(&n[i], &n[i], &path, n[i].qpn, RC_MIDDLE, 100, 20);
		node_expect(&n[i], 40);
		assert_int_equal(udp_stats(n[i].u)->rx_steered, 0);
		node_stop(&n[i]);
	}
}

/* The port is someone else's: said so, and this host still works. */
static void foreign_owner_of_the_port(void **state)
{
	struct roce_path path = path_of("127.0.0.1", "127.0.0.4");
	union ibv_gid gid = gid_of("127.0.0.4");
	struct node x, y;
	int fd, binds = 1;
	char name[64];

	(void)state;
	fd = plain_socket("127.0.0.4", ROCE_UDP_PORT);
	assert_true(fd >= 0);
	node_start(&x, &direct);
	node_start(&y, &direct);
	assert_int_equal(udp_bind(y.u, &gid, 0), 0);
	snprintf(name, sizeof(name), "process %d (", (int)getpid());
	assert_non_null(strstr(udp_why(y.u), name));
	assert_non_null(strstr(udp_why(y.u), "127.0.0.4"));
	node_send(&x, &y, &path, y.qpn, RC_MIDDLE, 100, 100);
	node_expect(&y, 100);
	/* When the other has gone, a bind a second later takes the port. */
	close(fd);
	do {
		usleep(50000);
		assert_int_equal(udp_bind(y.u, &gid, 0), 0);
	} while (++binds < 200 && *udp_why(y.u));
	assert_string_equal(udp_why(y.u), "");
	while (binds--) {
		fd = plain_socket("127.0.0.4", ROCE_UDP_PORT);
		assert_int_equal(fd, -EADDRINUSE);
		udp_unbind(y.u, &gid, 0);
	}
	fd = plain_socket("127.0.0.4", ROCE_UDP_PORT);
	assert_true(fd >= 0);
	close(fd);
	/* Wildcards, in both families, are in the way as well. */
	fd = plain_socket("0.0.0.0", ROCE_UDP_PORT);
	assert_true(fd >= 0);
	assert_int_equal(udp_bind(y.u, &gid, 0), 0);
	assert_non_null(strstr(udp_why(y.u), name));
	close(fd);
	udp_unbind(y.u, &gid, 0);
	/* So are sockets of the kernel, such as rxe's; here it is VXLAN's. */
	if (ip("link add sx0 type vxlan id 5 dstport 4791") &&
	    ip("link set sx0 up")) {
		assert_int_equal(udp_bind(y.u, &gid, 0), 0);
		assert_non_null(strstr(udp_why(y.u), "the kernel"));
		udp_unbind(y.u, &gid, 0);
	}
	ip("link del sx0");
	node_stop(&x);
	node_stop(&y);
}

/* Takes the registry's lock when go is odd, lets it go when it is even. */
static pid_t lock_holder(struct shared *s)
{
	struct registry *r;
	pid_t pid = fork();

	if (pid)
		return pid;
	die_with_parent();
	if (registry_join(&r, dir, NULL))
		_exit(1);
	for (uint32_t n = 1; !s->stop; n++) {
		while (s->go < n && !s->stop)
			usleep(1000);
		if (s->stop)
			break;
		if (!(n & 1))
			registry_unlock(r);
		else if (registry_lock(r))
			_exit(2);
		s->ready = n;
	}
	registry_leave(r);
	_exit(0);
}

/*
 * Every QP binds its address. Where the port is taken, all but the first do
 * without the lock that all processes of the host share.
 */
static void a_taken_port_is_remembered(void **state)
{
	union ibv_gid gid = gid_of("127.0.0.7");
	struct shared *s = shared_new();
	int fd, status, err = -ETIMEDOUT;
	struct node y;
	pid_t pid;

	(void)state;
	fd = plain_socket("127.0.0.7", ROCE_UDP_PORT);
	assert_true(fd >= 0);
	node_start(&y, &direct);
	pid = lock_holder(s);
	/* It is remembered for a second, and the machine may be busy. */
	for (uint32_t i = 1; i < 6 && err; i += 2) {
		assert_int_equal(udp_bind(y.u, &gid, 0), 0);
		s->go = i;
		assert_true(wait_for(&s->ready, i));
		err = udp_bind(y.u, &gid, 0);
		s->go = i + 1;
		assert_true(wait_for(&s->ready, i + 1));
	}
	assert_int_equal(err, 0);
	assert_non_null(strstr(udp_why(y.u), "test_udp"));
	s->stop = 1;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	close(fd);
	munmap(s, sizeof(*s));
	node_stop(&y);
}

static void addresses_of_others_cannot_be_bound(void **state)
{
	union ibv_gid gid = gid_of("192.0.2.77");
	struct node n;

	(void)state;
	node_start(&n, &direct);
	assert_int_equal(udp_bind(n.u, &gid, 0), -EADDRNOTAVAIL);
	assert_string_not_equal(udp_why(n.u), "");
	node_stop(&n);
}

/* Processes that do not know of each other's leases must not share a port. */
static void other_registries_are_kept_out(void **state)
{
	union ibv_gid gid = gid_of("127.0.0.5");
	char mine[64], other[64] = "/tmp/softhca-test-udp-XXXXXX";
	struct node x, y;

	(void)state;
	node_start(&x, &direct);
	node_bind(&x, "127.0.0.5");
	assert_non_null(mkdtemp(other));
	strcpy(mine, dir);
	strcpy(dir, other);
	node_start(&y, &direct);
	strcpy(dir, mine);
	assert_int_equal(udp_bind(y.u, &gid, 0), 0);
	assert_non_null(strstr(udp_why(y.u), "test_udp"));
	node_stop(&y);
	node_stop(&x);
	{
		char cmd[128];

		snprintf(cmd, sizeof(cmd), "rm -r %s", other);
		assert_int_equal(system(cmd), 0);
	}
}

static int as_other_user(void *arg)
{
	union ibv_gid gid = gid_of("127.0.0.6");
	char other[64] = "/tmp/softhca-test-udp-XXXXXX";
	struct roce_path path = path_of("127.0.0.6", "127.0.0.6");
	const char *why = "";
	struct node n;

	(void)arg;
	if (setresgid(54321, 54321, 54321) || setresuid(54321, 54321, 54321))
		return 77;
	/* The other's file is out of reach, and its place too. */
	if (!registry_join(&n.r, dir, &why) || !*why)
		return 1;
	if (!mkdtemp(other))
		return 2;
	strcpy(dir, other);
	node_start(&n, &direct);
	if (udp_bind(n.u, &gid, 0))
		return 3;
	if (!strstr(udp_why(n.u), "user 0"))
		return 4;
	/* Among themselves the user's processes can still talk. */
	node_send(&n, &n, &path, n.qpn, RC_MIDDLE, 100, 10);
	node_expect(&n, 10);
	node_stop(&n);
	{
		char cmd[128];

		snprintf(cmd, sizeof(cmd), "rm -r %s", other);
		return system(cmd) ? 5 : 0;
	}
}

static void another_user(void **state)
{
	struct node x;
	int status;

	(void)state;
	if (geteuid())
		skip();
	node_start(&x, &direct);
	node_bind(&x, "127.0.0.6");
	status = in_child(as_other_user, NULL);
	node_stop(&x);
	if (status == 77) /* one user is all this namespace has */
		skip();
	assert_int_equal(status, 0);
}

static void multicast(void **state)
{
	static const struct {
		const char *group, *src, *ifname;
	} cases[] = {
		{ "239.9.8.7", "127.0.0.1", "lo" },
		{ "224.0.0.99", "10.99.0.1", "sh0" },
		{ "ff12::4791", "fd99::1", "sh0" },
		{ "ff12::4791", "::1", "lo" },
	};
	struct node x, y;
	bool veth;

	(void)state;
	veth = ip("link add sh0 type veth peer name sh1") &&
	       ip("link set sh0 up") && ip("link set sh1 up") &&
	       ip("addr add 10.99.0.1/24 dev sh0") &&
	       ip("addr add fd99::1/64 dev sh0 nodad");
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct roce_path path = path_of(cases[i].src, cases[i].group);
		union ibv_gid group = path.dgid;
		unsigned ifindex = if_nametoindex(cases[i].ifname);

		if (!ifindex && !veth)
			continue;
		node_start(&x, &direct);
		node_start(&y, &direct);
		assert_int_equal(udp_bind(x.u, &group, ifindex), 0);
		assert_int_equal(udp_bind(y.u, &group, ifindex), 0);
		node_send(&x, NULL, &path, ROCE_MULTICAST_QPN, UD_ONLY, 200, 5);
		node_expect(&x, 5);
		node_expect(&y, 5);
		assert_memory_equal(&y.last.dgid, &group, 16);
		assert_memory_equal(&y.last.sgid, &path.sgid, 16);
		assert_non_null(y.last.grh);
		udp_unbind(y.u, &group, ifindex);
		node_send(&x, NULL, &path, ROCE_MULTICAST_QPN, UD_ONLY, 200, 5);
		x.next_psn = 0;
		node_expect(&x, 10);
		node_poll(&y);
		assert_int_equal(y.count, 5);
		node_stop(&x);
		node_stop(&y);
	}
	if (veth)
		ip("link del sh0");
}

/* However many groups one process is in, another's address finds a place. */
static void many_groups(void **state)
{
	union ibv_gid group = gid_of("239.8.0.0"), gid = gid_of("127.0.0.8");
	unsigned lo = if_nametoindex("lo");
	struct node x, y;
	int err = 0, n;

	(void)state;
	node_start(&x, &direct);
	node_start(&y, &direct);
	for (n = 0; n < REGISTRY_ADDRS + 1; n++) {
		put_be16(group.raw + 14, (uint32_t)n);
		assert_int_equal(udp_bind(x.u, &group, lo), 0);
	}
	assert_int_equal(udp_bind(y.u, &gid, 0), 0);
	assert_string_equal(udp_why(y.u), "");
	/* What is relayed needs places; who finds none is told. */
	group = gid_of("ff12::1:0");
	for (n = 0; n < REGISTRY_ADDRS && !err; n++) {
		put_be16(group.raw + 14, (uint32_t)n);
		err = udp_bind(x.u, &group, lo);
	}
	assert_int_equal(err, -ENOSPC);
	assert_int_equal(n, REGISTRY_GROUPS + 1);
	gid = gid_of("127.0.0.9");
	assert_int_equal(udp_bind(y.u, &gid, 0), 0);
	node_stop(&x);
	node_stop(&y);
}

/* Memory that is gone is said at its packet; those before it have left. */
static void bad_memory_ends_a_batch(void **state)
{
	struct roce_path path = path_of("127.0.0.1", "127.0.0.2");
	static struct roce_batch b;
	struct node x, y;
	int err;

	(void)state;
	node_start(&x, &direct);
	node_start(&y, &direct);
	node_bind(&y, "127.0.0.2");
	b.n = b.data.n = 0;
	for (uint32_t i = 0; i < 9; i++)
		batch_add(&b, &path, y.qpn, RC_MIDDLE, i, 100);
	b.data.iov[b.pkt[4].iov].iov_base =
		mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_int_equal(udp_send(x.u, &b, &err), 4);
	assert_int_equal(err, EFAULT);
	y.any_order = true;
	node_expect(&y, 4);
	munmap(b.data.iov[b.pkt[4].iov].iov_base, 4096);
	assert_int_equal(udp_stats(x.u)->tx_pkts, 4);
	assert_int_equal(registry_backlog(y.r), 0);
	node_stop(&x);
	node_stop(&y);
}

static void unreachable_places_are_lost_and_said(void **state)
{
	struct roce_path path = path_of("127.0.0.1", "203.0.113.5");
	static struct roce_batch b;
	struct node x;
	int err;

	(void)state;
	node_start(&x, &direct);
	b.n = b.data.n = 0;
	for (uint32_t i = 0; i < 3; i++)
		batch_add(&b, &path, 5, RC_MIDDLE, i, 100);
	assert_int_equal(udp_send(x.u, &b, &err), 3);
	assert_int_equal(err, ENETUNREACH);
	path = path_of("10.1.2.3", "127.0.0.1"); /* not our address */
	assert_int_equal(udp_send(x.u, &b, &err), 3);
	assert_true(err > 0);
	assert_int_equal(udp_stats(x.u)->tx_pkts, 0);
	node_stop(&x);
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
	pid_t pid = fork();
	struct node n;

	if (pid)
		return pid;
	die_with_parent();
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
	usleep(100000);

	node_start(&x, &direct);
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
	usleep(50000);
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
	usleep(100000);
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

/* A message for QP1 that belongs to someone else on this host. */
static void forwarding(void **state)
{
	struct roce_path path = path_of("127.0.0.1", "127.0.0.2");
	struct node x, y, z;

	(void)state;
	node_start(&x, &direct);
	node_start(&y, &direct);
	node_start(&z, &direct);
	node_bind(&y, "127.0.0.2");
	y.forward_to = (int)registry_slot(z.r);
	path.tclass = 0x20;
	path.hop_limit = 9;
	node_send(&x, &y, &path, 1, UD_ONLY, 256, 20);
	node_poll(&y);
	assert_int_equal(y.wrong, 0);
	node_expect(&z, 20);
	assert_memory_equal(&z.last.sgid, &path.sgid, 16);
	assert_memory_equal(&z.last.dgid, &path.dgid, 16);
	assert_int_equal(z.last.tclass, 0x20);
	assert_int_equal(z.last_grh[28], 9);
	assert_int_equal(z.last_grh[21], 0x20);
	assert_int_equal(registry_backlog(z.r), 0);
	/* One that was kept for a while. */
	{
		uint8_t p[12 + 8 + 100];
		struct roce_hdr h = { .opcode = UD_ONLY, .dest_qpn = 1 };

		roce_encode(&h, p);
		for (size_t i = 0; i < 100; i++)
			p[20 + i] = pattern(0, i);
		z.next_psn = 0;
		assert_int_equal(udp_handover(y.u, registry_slot(z.r),
					      &path.sgid, &path.dgid, 0x40, p,
					      sizeof(p)),
				 0);
		assert_int_equal(udp_handover(y.u, 1000, &path.sgid, &path.dgid,
					      0, p, sizeof(p)),
				 -ENOENT);
		assert_int_equal(udp_handover(y.u, registry_slot(z.r),
					      &path.sgid, &path.dgid, 0, p,
					      65536),
				 -EMSGSIZE);
	}
	node_expect(&z, 21);
	assert_int_equal(z.last.len, 100);
	assert_int_equal(z.last.tclass, 0x40);
	assert_memory_equal(&z.last.sgid, &path.sgid, 16);
	node_stop(&x);
	node_stop(&y);
	node_stop(&z);
}

struct thread_arg {
	struct node *n;
	_Atomic bool stop;
	struct roce_path path;
	_Atomic unsigned sent;
};

static void *poll_thread(void *arg)
{
	struct thread_arg *t = arg;

	while (!t->stop) {
		struct pollfd pfd = { .fd = udp_fd(t->n->u), .events = POLLIN };

		poll(&pfd, 1, 5);
		udp_poll(t->n->u, 16, rx, t->n);
	}
	return NULL;
}

static void *send_thread(void *arg)
{
	struct thread_arg *t = arg;
	struct roce_batch *b = calloc(1, sizeof(*b));
	struct roce_hdr h = { .opcode = RC_MIDDLE, .dest_qpn = t->n->qpn };
	int err;

	for (int i = 0; i < 300; i++) {
		uint64_t end = clock_ns() + 1000000000u;
		size_t n = 0;

		b->n = (size_t)(1 + i % 8);
		for (size_t k = 0; k < b->n; k++) {
			b->pkt[k].path = &t->path;
			b->pkt[k].hash = (uint32_t)(uintptr_t)t >> 4;
			roce_pkt_headers(&b->pkt[k], &h);
		}
		while (!n && clock_ns() < end)
			n = udp_send(t->n->u, b, &err);
		t->sent += (unsigned)n;
	}
	free(b);
	return NULL;
}

static void threads(void **state)
{
	struct thread_arg poller = { 0 }, sender[3] = { 0 };
	pthread_t tp[2], ts[3];
	union ibv_gid other = gid_of("127.0.0.3");
	struct node n;
	unsigned sent = 0;

	(void)state;
	node_start(&n, &direct);
	node_bind(&n, "127.0.0.2");
	n.any_order = true;
	poller.n = &n;
	for (int i = 0; i < 2; i++)
		pthread_create(&tp[i], NULL, poll_thread, &poller);
	for (int i = 0; i < 3; i++) {
		sender[i].n = &n;
		sender[i].path = path_of("127.0.0.1", "127.0.0.2");
		pthread_create(&ts[i], NULL, send_thread, &sender[i]);
	}
	for (int i = 0; i < 100; i++) {
		assert_int_equal(udp_bind(n.u, &other, 0), 0);
		udp_unbind(n.u, &other, 0);
		udp_poll_wait(n.u);
		assert_true(registry_lease(n.r) > 0);
	}
	for (int i = 0; i < 3; i++) {
		pthread_join(ts[i], NULL);
		sent += sender[i].sent;
	}
	usleep(50000);
	poller.stop = true;
	for (int i = 0; i < 2; i++)
		pthread_join(tp[i], NULL);
	node_poll(&n);
	assert_int_equal(n.count, sent);
	assert_int_equal(n.wrong, 0);
	node_stop(&n);
}

static void busy_rx(void *arg, const struct roce_rx *pkt)
{
	struct node *n = arg;

	/* Another poll while one is on: not now. Binding is no problem. */
	if (udp_poll(n->u, 1, busy_rx, n) != -EBUSY ||
	    udp_bind(n->u, &pkt->dgid, 0))
		n->wrong++;
	udp_unbind(n->u, &pkt->dgid, 0);
	n->count++;
}

static void polling_is_for_one_at_a_time(void **state)
{
	struct roce_path path = path_of("127.0.0.1", "127.0.0.2");
	struct node n;

	(void)state;
	node_start(&n, &direct);
	node_bind(&n, "127.0.0.2");
	node_send(&n, NULL, &path, n.qpn, RC_MIDDLE, 64, 3);
	assert_int_equal(udp_poll(n.u, 10, busy_rx, &n), 3);
	assert_int_equal(n.count, 3);
	assert_int_equal(n.wrong, 0);
	node_stop(&n);
}

static int forked(void *arg)
{
	struct node *parents = arg, n;
	struct roce_path path = path_of("127.0.0.2", "127.0.0.2");

	udp_abandon(parents->u);
	registry_abandon(parents->r);
	node_start(&n, &wire);
	node_bind(&n, "127.0.0.2");
	node_send(&n, &n, &path, n.qpn, RC_MIDDLE, 64, 30);
	node_expect(&n, 30);
	node_stop(&n);
	return 0;
}

static void fork_leaves_the_parent_alone(void **state)
{
	struct roce_path path = path_of("127.0.0.2", "127.0.0.2");
	struct node n;

	(void)state;
	node_start(&n, &wire);
	node_bind(&n, "127.0.0.2");
	assert_int_equal(in_child(forked, &n), 0);
	node_send(&n, &n, &path, n.qpn, RC_MIDDLE, 64, 30);
	node_expect(&n, 30);
	assert_int_equal(udp_stats(n.u)->rx_steered, 0);
	node_stop(&n);
}

/* What was sent and what was accepted, and nothing that was dropped. */
static void recording(void **state)
{
	struct udp_config cfg = { .loss = 0.5, .seed = 3 };
	struct roce_path path = path_of("127.0.0.1", "127.0.0.2");
	uint8_t *data = malloc(1 << 20);
	unsigned epb = 0, good = 0;
	char name[128];
	struct node x;
	size_t len;
	FILE *f;

	(void)state;
	snprintf(name, sizeof(name), "%s/test.pcapng", dir);
	assert_int_equal(pcap_open(&cfg.pcap, name), 0);
	node_start(&x, &cfg);
	node_bind(&x, "127.0.0.2");
	x.any_order = true;
	node_send(&x, &x, &path, x.qpn, RC_MIDDLE, 100, 50);
	node_poll(&x);
	assert_in_range(x.count, 10, 40);
	pcap_close(cfg.pcap);
	f = fopen(name, "re");
	assert_non_null(f);
	len = fread(data, 1, 1 << 20, f);
	fclose(f);
	for (size_t o = 0; o + 12 <= len;) {
		uint32_t type, total;

		memcpy(&type, data + o, 4);
		memcpy(&total, data + o + 4, 4);
		assert_in_range(total, 12, len - o);
		if (type == 6) {
			const uint8_t *ip = data + o + 28, *udp = ip + 20;
			uint16_t id = get_be16(ip + 4);

			epb++;
			good += icrc_check(&path.sgid, &path.dgid,
					   get_be16(udp), get_be16(udp + 2),
					   udp + 8, get_be16(udp + 4) - 8u,
					   &id) &&
				id == get_be16(ip + 4);
		}
		o += total;
	}
	assert_int_equal(epb, 2 * x.count);
	assert_int_equal(good, epb);
	assert_int_equal(unlink(name), 0);
	free(data);
	node_stop(&x);
}

static int group_setup(void **state)
{
	(void)state;
	strcpy(dir, "/tmp/softhca-test-udp-XXXXXX");
	return mkdtemp(dir) ? 0 : -1;
}

static int group_teardown(void **state)
{
	char cmd[128];

	(void)state;
	snprintf(cmd, sizeof(cmd), "rm -r %s", dir);
	return system(cmd);
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
	assert_false(readable(&x));
	node_stop(&x);
	node_stop(&y);
}

/*
 * Somebody else has the port. What is for our own processes reaches them, and
 * nothing else is sent there that could only be answered to him.
 */
static void a_stranger_gets_nothing(void **state)
{
	struct roce_path same = path_of("127.0.0.7", "127.0.0.7");
	struct roce_path other = path_of("127.0.0.1", "127.0.0.7");
	union ibv_gid gid = gid_of("127.0.0.7");
	struct node x, y, z;
	char buf[200];
	int fd;

	(void)state;
	fd = plain_socket("127.0.0.7", ROCE_UDP_PORT);
	assert_true(fd >= 0);
	node_start(&x, &direct);
	node_start(&y, &direct);
	assert_false(udp_taken(x.u, &gid, 0));
	assert_int_equal(udp_bind(x.u, &gid, 0), 0);
	assert_int_equal(udp_bind(y.u, &gid, 0), 0);
	assert_true(udp_taken(x.u, &gid, 0) && udp_astray(x.u, &same));
	assert_non_null(strstr(udp_why(x.u), "which does not share "));
	assert_non_null(strstr(udp_why(x.u), registry_path(x.r)));
	node_send(&x, &y, &same, y.qpn, RC_MIDDLE, 100, 5);
	node_expect(&y, 5);
	node_send(&x, NULL, &same, y.qpn + 10 * REGISTRY_CHUNK, RC_MIDDLE, 100,
		  5);
	node_send(&x, NULL, &same, 1, UD_ONLY, 100, 1);
	assert_int_equal(recv(fd, buf, sizeof(buf), MSG_DONTWAIT), -1);
	/* from an address of ours it is as from another host */
	node_bind(&x, "127.0.0.1");
	assert_false(udp_astray(x.u, &other));
	node_send(&x, NULL, &other, y.qpn + 10 * REGISTRY_CHUNK, RC_MIDDLE, 100,
		  1);
	assert_true(recv(fd, buf, sizeof(buf), 0) > 100);

	/* where all packets go by the port there is no way at all */
	node_start(&z, &wire);
	assert_int_equal(udp_bind(z.u, &gid, 0), -EADDRINUSE);
	assert_false(udp_taken(z.u, &gid, 0));
	close(fd);
	assert_int_equal(udp_bind(z.u, &gid, 0), 0);
	node_stop(&x);
	node_stop(&y);
	node_stop(&z);
}

static void unreachable_v4(void **state)
{
	(void)state;
	unreachable_host("127.0.0.1", "127.0.0.2", "127.0.0.3");
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(private_port_v4),
		cmocka_unit_test(private_port_v6),
		cmocka_unit_test(wire_v4),
		cmocka_unit_test(wire_v6),
		cmocka_unit_test(alone),
		cmocka_unit_test(wire_format_of_a_run),
		cmocka_unit_test(headers_of_ip),
		cmocka_unit_test(no_udp_checksum),
		cmocka_unit_test(quirk_rxe_counts_identification),
		cmocka_unit_test(grh),
		cmocka_unit_test(budget_is_kept),
		cmocka_unit_test(loss_is_what_was_asked_for),
		cmocka_unit_test(arbitrary_bytes),
		cmocka_unit_test(a_flipped_bit_is_noticed),
		cmocka_unit_test(mixed_batch),
		cmocka_unit_test(slow_receivers_are_not_overrun),
		cmocka_unit_test(a_wrong_backlog_heals),
		cmocka_unit_test(killed_receiver_blocks_nobody),
		cmocka_unit_test(port_of_the_killed_is_left_alone),
		cmocka_unit_test(other_users_neither_send_nor_hear),
		cmocka_unit_test(unread_is_known),
		cmocka_unit_test(out_of_descriptors),
		cmocka_unit_test(sockets_of_the_gone_are_closed),
		cmocka_unit_test(steering),
		cmocka_unit_test(steering_is_repaired),
		cmocka_unit_test(many_sockets),
		cmocka_unit_test(foreign_owner_of_the_port),
		cmocka_unit_test(a_taken_port_is_remembered),
		cmocka_unit_test(unreachable_v4),
		cmocka_unit_test(a_stranger_gets_nothing),
		cmocka_unit_test(addresses_of_others_cannot_be_bound),
		cmocka_unit_test(other_registries_are_kept_out),
		cmocka_unit_test(another_user),
		cmocka_unit_test(multicast),
		cmocka_unit_test(many_groups),
		cmocka_unit_test(bad_memory_ends_a_batch),
		cmocka_unit_test(unreachable_places_are_lost_and_said),
		cmocka_unit_test(another_host),
		cmocka_unit_test(forwarding),
		cmocka_unit_test(threads),
		cmocka_unit_test(polling_is_for_one_at_a_time),
		cmocka_unit_test(fork_leaves_the_parent_alone),
		cmocka_unit_test(recording),
		cmocka_unit_test(leased_flow_labels),
	};

	if (argc > 1) /* a pattern such as "steer*" */
		cmocka_set_test_filter(argv[1]);
	if (!own_netns()) {
		print_message("no network namespace to be had: skipped\n");
		return 77;
	}
	return cmocka_run_group_tests(tests, group_setup, group_teardown);
}

/*
 * test_udp_wire.c - what is on the wire and in captures, byte for byte; and
 * bytes that nobody should send
 */
#include "udp_node.h"

#include "trace/pcap.h"
#include "wire/icrc.h"

#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/in6.h>
#include <netinet/in.h>
#include <poll.h>
#include <unistd.h>

#ifndef IPV6_FLOWLABEL_MGR /* hidden, as IPV6_FLOWINFO is in udp_tx.c */
#define IPV6_FLOWLABEL_MGR 32
#endif

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
			  i == 13 ? 700 :
			  i < 20  ? 1024 :
				    2048);
	assert_int_equal(udp_send(n.u, &b, &err), 30);
	assert_int_equal(err, 0);
	for (uint32_t i = 0; i < 30; i++) {
		uint16_t id = 0, want = (uint16_t)(i < 14 ? i :
						   i < 20 ? i - 14 :
							    i - 20);
		struct roce_hdr h;
		ssize_t len = recvfrom(fd, buf, sizeof(buf), 0,
				       (struct sockaddr *)&from, &fromlen);

		assert_int_equal(len, 12 +
					      (i == 13 ? 700 :
					       i < 20  ? 1024 :
							 2048) +
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

static void expect_packet(int fd, const struct roce_path *path, uint32_t psn,
			  ssize_t bytes, uint16_t id)
{
	struct sockaddr_in from;
	socklen_t fromlen = sizeof(from);
	uint16_t found = id;
	struct roce_hdr h;
	uint8_t buf[8192];
	ssize_t len = recvfrom(fd, buf, sizeof(buf), 0,
			       (struct sockaddr *)&from, &fromlen);

	assert_int_equal(len, bytes);
	assert_int_equal(ntohl(from.sin_addr.s_addr) & 0xff,
			 path->sgid.raw[15]);
	assert_true(icrc_check(&path->sgid, &path->dgid, ntohs(from.sin_port),
			       ROCE_UDP_PORT, buf, (size_t)len, &found));
	assert_int_equal(found, id);
	assert_true(roce_decode(&h, buf, (size_t)len - 4) > 0);
	assert_int_equal(h.psn, psn);
}

/* Who keeps a route sends the same, alone and with an ACK behind it, short and
 * long, also when the next packet goes elsewhere. */
static void a_route_is_kept(void **state)
{
	const struct roce_path paths[] = {
		path_of("127.0.0.1", "127.0.0.9"),
		path_of("127.0.0.2", "127.0.0.9"),
	};
	int fd = plain_socket("127.0.0.9", ROCE_UDP_PORT), err = 0;
	struct udp_route route = { .known = false };
	static struct roce_batch b;
	struct node n;

	(void)state;
	assert_true(fd >= 0);
	node_start(&n, &direct);
	for (uint32_t psn = 0; psn < 32; psn += 2) {
		const struct roce_path *path = &paths[psn / 8 % 2];
		const size_t payload = psn % 8 == 6 ? 1000 : 8 + psn;
		const bool ack = psn % 4;

		b.n = b.data.n = 0;
		batch_add(&b, path, 0x123456, RC_MIDDLE, psn, payload);
		if (ack)
			batch_add(&b, path, 0x123456, ROCE_RC | ROCE_ACK,
				  psn + 1, 0);
		b.ack = ack;
		assert_int_equal(udp_send_part(n.u, &route, &b, 0, b.n, &err),
				 b.n);
		assert_int_equal(err, 0);
		expect_packet(fd, path, psn,
			      12 + (ssize_t)((payload + 3) / 4 * 4) + 4, 0);
		if (ack)
			expect_packet(fd, path, psn + 1, 20, 1);
	}
	b.ack = false;
	close(fd);
	node_stop(&n);
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
	uint16_t id =
		0xffe0; /* wraps, and a sender that leaves it 0 is no end */
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

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(wire_format_of_a_run),
		cmocka_unit_test(a_route_is_kept),
		cmocka_unit_test(headers_of_ip),
		cmocka_unit_test(no_udp_checksum),
		cmocka_unit_test(quirk_rxe_counts_identification),
		cmocka_unit_test(grh),
		cmocka_unit_test(arbitrary_bytes),
		cmocka_unit_test(a_flipped_bit_is_noticed),
		cmocka_unit_test(recording),
		cmocka_unit_test(leased_flow_labels),
	};

	return RUN_NODE_TESTS(tests, argc, argv);
}

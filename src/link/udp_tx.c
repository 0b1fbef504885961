/*
 * udp_tx.c - from packets to datagrams
 *
 * Packets of a batch that follow each other to one destination and are of one
 * size (the last may be shorter) leave in one system call: UDP_SEGMENT lets the
 * kernel cut the run into datagrams as late as possible, on this host never.
 *
 * To the private port of a process of this host the payload goes straight from
 * where the program has it into the kernel, once, and there is no ICRC: four
 * zero bytes stand in its place. To port 4791 packets are put together in a
 * buffer first: the ICRC has to be that of the bytes which are sent, and a
 * program may well be writing to its memory meanwhile (a counter that others
 * read). The kernel then copies from the cache.
 *
 * The ICRC covers the IPv4 identification. The kernel gives 0 to datagrams
 * that may not be fragmented and come from an unconnected socket, and k to the
 * k-th segment of a run.
 *
 * Linux has no route for IPv6 multicast on the loopback interface. Such packets
 * are handed over, as udp_rx.c does with those that went astray, to each
 * member.
 */
#include "packet.h"
#include "sock.h"
#include "udp_internal.h"

#include "base/bytes.h"
#include "base/sys.h"
#include "hooks/pcap.h"
#include "net/netdev.h"
#include "os/config.h"
#include "wire/icrc.h"

#include <assert.h>
#include <errno.h>
#include <netinet/udp.h>
#include <string.h>

/* Of linux/in6.h, which the C library's headers hide before Linux 6.2. */
#ifndef IPV6_FLOWINFO
#define IPV6_FLOWINFO 11
#endif

#define DEFAULT_HOPS 64
#define SMALL_RUN 4608 /* bytes that fit the stack: one packet of any size */
#define MAX_IOV (QP_PIECES + 2 * ROCE_BATCH)

static const union ibv_gid loopback[2] = {
	/* [v4] */
	{ .raw = { [15] = 1 } },
	{ .raw = { [10] = 0xff, 0xff, 127, 0, 0, 1 } },
};

/* Where the packets of a run go. */
struct route {
	struct udp_route *at;
	uint32_t qpn; /* slot was looked up for, */
	uint16_t to_slot; /* or given by */
	int slot; /* a process of this host, or negative */
	unsigned peer; /* the slot that private is of, if peer_held */
	bool found; /* all of this */
	bool peer_held;
	bool gone; /* that process is nowhere to be reached */
	struct tx_sock *private; /* from and to that process's private port */
};

/* Packets of a batch that leave in one system call. */
struct run {
	const struct roce_batch *b;
	size_t end; /* packets of the batch from here on are not for UDP */
	uint8_t index[ROCE_BATCH];
	size_t n;
	size_t size; /* of each packet, BTH to ICRC, */
	size_t last; /* and of the last, which may be shorter */
	struct tx_sock *sock;
};

static void *put_control(struct udp_route *r, int level, int type, size_t len)
{
	struct cmsghdr *c = (struct cmsghdr *)(r->control + r->control_len);

	assert(r->control_len + CMSG_SPACE(len) <= sizeof(r->control));
	memset(c, 0, CMSG_SPACE(len));
	c->cmsg_level = level;
	c->cmsg_type = type;
	c->cmsg_len = CMSG_LEN(len);
	r->control_len += (uint32_t)CMSG_SPACE(len);
	return CMSG_DATA(c);
}

static void put_control_int(struct udp_route *r, int level, int type, int value)
{
	memcpy(put_control(r, level, type, sizeof(value)), &value,
	       sizeof(value));
}

bool tx_relayed(const union ibv_gid *group, uint32_t scope)
{
	return !roce_gid_is_v4(group) && scope == netdev_ifindex(&loopback[0]);
}

static void set_path(const struct udp *u, struct udp_route *r,
		     const struct roce_path *path)
{
	int hops = path->hop_limit;

	r->path = *path;
	r->icrc = (struct icrc_flow){ 0 };
	r->v4 = roce_gid_is_v4(&path->dgid);
	r->scope = udp_scope(&path->dgid, path->sgid_scope);
	r->relay = false;
	r->known = true;
	if (roce_gid_is_multicast(&path->dgid)) {
		r->known = false; /* an interface may get another number */
		if (!r->scope)
			r->scope = netdev_ifindex(&path->sgid);
		if (!hops)
			hops = 1;
		r->relay = u->registry && tx_relayed(&path->dgid, r->scope);
	}
	r->tolen = sock_addr(&r->to, &path->dgid, r->scope, ROCE_UDP_PORT);
	r->control_len = 0;
	if (r->v4) {
		struct in_pktinfo *pi =
			put_control(r, IPPROTO_IP, IP_PKTINFO, sizeof(*pi));

		pi->ipi_ifindex = (int)r->scope;
		memcpy(&pi->ipi_spec_dst, path->sgid.raw + 12, 4);
	} else {
		struct in6_pktinfo *pi =
			put_control(r, IPPROTO_IPV6, IPV6_PKTINFO, sizeof(*pi));

		pi->ipi6_ifindex = r->scope;
		memcpy(&pi->ipi6_addr, path->sgid.raw, 16);
	}
	/* The kernel refuses 0 hops; a program that sets none means any. */
	if (hops && hops != DEFAULT_HOPS)
		put_control_int(r, r->v4 ? IPPROTO_IP : IPPROTO_IPV6,
				r->v4 ? IP_TTL : IPV6_HOPLIMIT, hops);
	if (path->tclass)
		put_control_int(r, r->v4 ? IPPROTO_IP : IPPROTO_IPV6,
				r->v4 ? IP_TOS : IPV6_TCLASS, path->tclass);
	r->plain_len = r->control_len;
	if (!r->v4 && path->flow_label)
		put_control_int(r, IPPROTO_IPV6, IPV6_FLOWINFO,
				(int)htonl(path->flow_label));
}

static void release_peer(struct udp *u, struct route *r)
{
	if (r->peer_held)
		udp_peer_put(u, r->peer);
	r->peer_held = false;
	r->private = NULL;
}

/* Finds the process of this host that a packet for qpn belongs to, if any. */
static void set_destination(struct udp *u, struct route *r, uint32_t qpn,
			    uint16_t to_slot)
{
	const struct roce_path *path = &r->at->path;
	const union ibv_gid *dgid = &path->dgid;
	const uint32_t scope = udp_scope(dgid, path->sgid_scope);

	release_peer(u, r);
	r->found = true;
	r->qpn = qpn;
	r->to_slot = to_slot;
	r->slot = -1;
	if (to_slot && to_slot <= REGISTRY_SLOTS && u->registry)
		r->slot = to_slot - 1;
	else if (u->registry && !roce_gid_is_multicast(dgid))
		r->slot = registry_route(u->registry, qpn, dgid, scope);
	if (r->slot >= 0 && !u->cfg.wire) {
		r->peer = (unsigned)r->slot;
		r->peer_held = true;
		r->private = udp_peer_get(u, r->peer, r->at->v4);
	}
	/* Port 4791 there may be somebody else's, whom it does not concern. */
	r->gone =
		r->peer_held && !r->private &&
		!registry_addr_has(u->registry, (unsigned)r->slot, dgid, scope);
	if (r->slot < 0 && udp_astray(u, path))
		r->gone = true;
	/* The QPN does not show the receiver whose count that would be. */
	if (to_slot && !r->private)
		r->slot = -1;
	sock_set_port(&r->at->to,
		      r->private ? r->private->port : ROCE_UDP_PORT);
}

static bool same_path(const struct roce_path *a, const struct roce_path *b)
{
	return a == b ||
	       (gid_equal(&a->dgid, &b->dgid) &&
		gid_equal(&a->sgid, &b->sgid) &&
		a->sgid_scope == b->sgid_scope && a->tclass == b->tclass &&
		a->flow_label == b->flow_label && a->hop_limit == b->hop_limit);
}

/* Makes *r the route of p. */
static void route_find(struct udp *u, struct route *r, const struct roce_pkt *p)
{
	struct udp_route *at = r->at;

	if (!at->known || !same_path(&at->path, p->path)) {
		set_path(u, at, p->path);
		r->found = false;
	}
	if (!r->found || r->qpn != p->h.dest_qpn || r->to_slot != p->to_slot)
		set_destination(u, r, p->h.dest_qpn, p->to_slot);
}

static struct tx_sock *shared_sock(struct udp *u, const struct route *r,
				   const struct roce_pkt *p)
{
	return &u->tx[r->at->v4][r->qpn == 1 ? TX_QP1 : p->hash % TX_POOL];
}

/*
 * Gathers packets from first on; *next is the first that was not looked at.
 * Those that are dropped were looked at. An ACK behind requests leaves with the
 * last one, so that it does not arrive alone.
 */
static void run_gather(struct udp *u, struct run *run, struct route *r,
		       size_t first, size_t *next, size_t *lost)
{
	const struct roce_batch *b = run->b;
	const struct roce_pkt *head = NULL;
	size_t i;

	run->n = 0;
	*lost = 0;
	for (i = first; i < run->end; i++) {
		const struct roce_pkt *p = &b->pkt[i];
		size_t size = packet_size(p);

		if (!head) {
			route_find(u, r, p);
			run->sock =
				r->private ? r->private : shared_sock(u, r, p);
			run->size = size;
		} else if (p->hash != head->hash || size > run->size ||
			   (size < run->size && b->ack && i + 2 == b->n) ||
			   p->h.dest_qpn != r->qpn ||
			   p->to_slot != r->to_slot ||
			   !same_path(p->path, &r->at->path) ||
			   run->n * run->size + size > UDP_MAX_BYTES ||
			   run->sock->no_gso || r->at->relay) {
			break;
		}
		if (r->gone || loss_draw(&u->loss)) {
			++*lost;
			continue;
		}
		head = p;
		run->index[run->n++] = (uint8_t)i;
		run->last = size;
		if (size < run->size) { /* only the last may be shorter */
			i++;
			break;
		}
	}
	*next = i;
}

/* Bytes of packets [first, first + n) of the run, n > 0. */
static size_t run_bytes(const struct run *run, size_t first, size_t n)
{
	return first + n < run->n ? n * run->size :
				    (n - 1) * run->size + run->last;
}

/* hdr: where the headers go, ROCE_HDR_MAX bytes */
static size_t packet_iov(const struct roce_batch *b, const struct roce_pkt *p,
			 uint8_t *hdr, struct iovec *iov)
{
	static const uint8_t zero[3 + ROCE_ICRC_LEN];
	size_t n = 0;

	assert(p->h.pad <= 3 && p->iov + p->niov <= QP_PIECES);
	iov[n++] = (struct iovec){ hdr, roce_encode(&p->h, hdr) };
	for (size_t i = 0; i < p->niov; i++)
		iov[n++] = b->data.iov[p->iov + i];
	iov[n++] = (struct iovec){ (void *)zero, p->h.pad + ROCE_ICRC_LEN };
	return n;
}

/* Ends a packet that has been put together at out with its ICRC. */
static void finish(struct udp_route *r, const struct tx_sock *sock,
		   uint16_t ip_id, uint8_t *out, size_t size, bool damaged)
{
	packet_put_icrc(icrc_begin_flow(&r->icrc, &r->path.sgid, &r->path.dgid,
					sock->port, ROCE_UDP_PORT, size, ip_id),
			out, size, damaged);
}

/* control_len: of the route's control data */
static int send_with(const struct udp_route *r, const struct tx_sock *sock,
		     struct iovec *iov, size_t niov, size_t segment,
		     size_t control_len)
{
	_Alignas(struct cmsghdr) uint8_t
		control[sizeof(r->control) + CMSG_SPACE(sizeof(uint16_t))];
	struct msghdr m = {
		.msg_name = (void *)&r->to,
		.msg_namelen = r->tolen,
		.msg_iov = iov,
		.msg_iovlen = niov,
		.msg_control = control,
		.msg_controllen = control_len,
	};

	memcpy(control, r->control, control_len);
	if (segment) {
		struct cmsghdr *c = (struct cmsghdr *)(control + control_len);
		uint16_t s = (uint16_t)segment;

		memset(c, 0, CMSG_SPACE(sizeof(s)));
		c->cmsg_level = SOL_UDP;
		c->cmsg_type = UDP_SEGMENT;
		c->cmsg_len = CMSG_LEN(sizeof(s));
		memcpy(CMSG_DATA(c), &s, sizeof(s));
		m.msg_controllen += CMSG_SPACE(sizeof(s));
	}
	while (sys_sendmsg(sock->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
		if (errno != EINTR)
			return errno;
	return 0;
}

/* Returns 0 or a positive errno. segment 0: one datagram. */
static int send_iov(const struct route *r, struct tx_sock *sock,
		    struct iovec *iov, size_t niov, size_t segment)
{
	const struct udp_route *at = r->at;
	bool label = at->plain_len != at->control_len && !r->private &&
		     !sock->no_label;
	int err = send_with(at, sock, iov, niov, segment,
			    label ? at->control_len : at->plain_len);

	/* An earlier message's error (udp_err.c): nothing was sent. */
	if (err && r->qpn == 1 && !r->private)
		err = send_with(at, sock, iov, niov, segment,
				label ? at->control_len : at->plain_len);
	/* Where somebody leases flow labels (ipv6_flowlabel(7)) others may not
	 * use them, and before Linux 5.3 nobody without a lease. */
	if (err == EINVAL && label) {
		err = send_with(at, sock, iov, niov, segment, at->plain_len);
		if (!err)
			sock->no_label = true;
	}
	return err;
}

/* One datagram to the private port of a slot. Returns 0 or -errno. */
static int send_private(struct udp *u, unsigned slot, const struct iovec *iov,
			int niov)
{
	bool v4 = u->tx[1][0].fd >= 0;
	union sock_name to;
	struct msghdr m = {
		.msg_name = &to,
		.msg_iov = (struct iovec *)iov,
		.msg_iovlen = (size_t)niov,
	};
	struct tx_sock *t = udp_peer_get(u, slot, v4);
	int err = -ENOENT;

	if (t) {
		m.msg_namelen = sock_addr(&to, &loopback[v4], 0, t->port);
		err = sys_sendmsg(t->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ?
			      -errno :
			      0;
	}
	udp_peer_put(u, slot);
	return err;
}

int tx_hand_over(struct udp *u, unsigned slot, const struct packet *k)
{
	uint8_t h[HANDOVER_LEN] = { HANDOVER_TYPE, HANDOVER_VERSION };
	struct iovec iov[2] = { { h, sizeof(h) }, { (void *)k->p, k->len } };

	put_be16(h + 2, k->sport);
	h[4] = k->tclass;
	h[5] = k->hop_limit;
	memcpy(h + 8, k->src.raw, 16);
	memcpy(h + 24, k->dst.raw, 16);
	return send_private(u, slot, iov, 2);
}

void tx_poke(struct udp *u, unsigned slot)
{
	uint8_t type = HANDOVER_TYPE;
	struct iovec iov = { &type, sizeof(type) };

	send_private(u, slot, &iov, 1);
}

void tx_probe(struct udp *u, const struct roce_path *path, const void *packet,
	      size_t len)
{
	struct udp_route at;
	struct route r = { .at = &at };
	uint8_t buf[128];
	struct iovec iov = { buf, len + ROCE_ICRC_LEN };
	struct tx_sock *sock;
	uint32_t crc;

	assert(iov.iov_len <= sizeof(buf));
	set_path(u, &at, path);
	sock = &u->tx[at.v4][0];
	if (sock->fd < 0)
		return;
	memcpy(buf, packet, len);
	crc = icrc_begin(&path->sgid, &path->dgid, sock->port, ROCE_UDP_PORT,
			 iov.iov_len, 0);
	icrc_put(buf + len, icrc_bth(crc, buf, len));
	send_iov(&r, sock, &iov, 1, 0);
}

static void record_udp_tx(struct udp *u, const struct udp_route *r,
			  const struct tx_sock *sock, uint16_t ip_id,
			  uint8_t *p, size_t len)
{
	struct iovec v = { p, len };
	int hops = r->path.hop_limit;

	pcap_write(
		u->cfg.pcap,
		&(struct pcap_pkt){
			.src = &r->path.sgid,
			.dst = &r->path.dgid,
			.sport = sock->port,
			.dport = ROCE_UDP_PORT,
			.ip_id = r->v4 ? ip_id : 0,
			.tclass = r->path.tclass,
			.hop_limit = (uint8_t)(hops ? hops : DEFAULT_HOPS),
			.flow_label = sock->no_label ? 0 : r->path.flow_label,
			.outbound = true,
			.iov = &v,
			.niov = 1,
		});
}

/* A complete packet to every process of this host that is in the group. */
static int group_relay(struct udp *u, const struct udp_route *r,
		       const struct tx_sock *sock, const uint8_t *p, size_t len)
{
	uint16_t slot[REGISTRY_SLOTS];
	size_t n =
		registry_receivers(u->registry, &r->path.dgid, r->scope, slot);

	for (size_t i = 0; i < n; i++)
		tx_hand_over(u, slot[i],
			     &(struct packet){
				     .p = p,
				     .len = len,
				     .src = r->path.sgid,
				     .dst = r->path.dgid,
				     .sport = sock->port,
				     .tclass = r->path.tclass,
				     .hop_limit = r->path.hop_limit,
			     });
	return 0;
}

/* Packets [first, first + n) of the run, n > 1 as segments. */
static int send_packets(struct udp *u, const struct route *r,
			const struct run *run, size_t first, size_t n,
			uint8_t *buf)
{
	uint8_t hdr[ROCE_BATCH][ROCE_HDR_MAX];
	const size_t bytes = run_bytes(run, first, n);
	struct iovec iov[MAX_IOV];
	size_t niov = 0, at = 0;
	int err;

	for (size_t k = 0; k < n; k++) {
		const struct roce_pkt *p = &run->b->pkt[run->index[first + k]];

		if (!buf) {
			niov += packet_iov(run->b, p, hdr[k], iov + niov);
			continue;
		}
		err = packet_put(run->b, p, buf + at);
		if (err)
			return err;
		finish(r->at, run->sock, (uint16_t)k, buf + at, packet_size(p),
		       p->damaged);
		at += run->size;
	}
	if (buf)
		iov[niov++] = (struct iovec){ buf, bytes };
	if (r->at->relay)
		err = group_relay(u, r->at, run->sock, buf, bytes);
	else
		err = send_iov(r, run->sock, iov, niov, n > 1 ? run->size : 0);
	if (err || !u->cfg.pcap)
		return err;
	for (at = 0; at < bytes; at += run->size)
		record_udp_tx(u, r->at, run->sock, (uint16_t)(at / run->size),
			      buf + at,
			      at + run->size < bytes ? run->size : bytes - at);
	return 0;
}

/* Errors that the kernel may report for a run and not for its packets. */
static bool is_gso_error(int err)
{
	return err == EIO || err == EINVAL || err == EMSGSIZE || err == EFAULT;
}

/* What of a run really left. */
struct sent {
	size_t datagrams, pkts, bytes;
};

/* Sends the run; returns how many of its packets were taken. */
static size_t send_run(struct udp *u, const struct route *r,
		       const struct run *run, struct sent *sent, int *err)
{
	uint8_t small[SMALL_RUN], *buf = NULL;
	size_t done = 0, n = run->n;
	int e, gso_error = 0;

	*sent = (struct sent){ 0 };
	if (!r->private || u->cfg.pcap) {
		buf = run_bytes(run, 0, n) <= sizeof(small) ?
			      small :
			      spare_take(&u->spare);
		if (!buf)
			return 0;
	}
	while (done < run->n) {
		e = send_packets(u, r, run, done, n, buf);
		if (e && n > 1 && is_gso_error(e)) {
			gso_error = e;
			n = 1;
			continue;
		}
		if (e && packet_is_busy(e))
			break;
		if (e)
			*err = e;
		if (e == EFAULT)
			break;
		if (!e) {
			sent->bytes += run_bytes(run, done, n);
			sent->pkts += n;
			sent->datagrams++;
		}
		done += n;
	}
	/* Each of them could be sent: it is GSO that the kernel refuses. */
	if (gso_error && sent->pkts == run->n)
		((struct tx_sock *)run->sock)->no_gso = true;
	if (buf && buf != small)
		spare_put(&u->spare, buf);
	return done;
}

/*
 * ACKs do not wait for room behind data. There are no more of them than
 * requests, whose senders do wait; and a QP that is about to be destroyed cannot
 * send its ACK later, so that its peer would see the connection fail.
 */
static bool is_ack(const struct roce_hdr *h)
{
	return (h->opcode & 0x1f) == ROCE_ACK;
}

#define SHORT_RUN 512 /* bytes */

/* A packet, and an ACK behind it perhaps, as they leave. */
struct short_run {
	/* Where 8 bytes behind the headers lie within a cache line. */
	_Alignas(64) uint8_t buf[SHORT_RUN];
	size_t size, ack; /* of each, ICRC included; 0: there is none */
};

/* Behind what set_path() has put there, for runs without a flow label. */
static size_t put_segment(struct udp_route *at, size_t bytes)
{
	struct cmsghdr *c = (struct cmsghdr *)(at->control + at->control_len);
	const uint16_t segment = (uint16_t)bytes;

	c->cmsg_level = SOL_UDP;
	c->cmsg_type = UDP_SEGMENT;
	c->cmsg_len = CMSG_LEN(sizeof(segment));
	memcpy(CMSG_DATA(c), &segment, sizeof(segment));
	return at->control_len + CMSG_SPACE(sizeof(segment));
}

/* Whether a short packet goes where the last one went, and nobody is to see it. */
static bool is_short_way(const struct udp *u, const struct udp_route *at,
			 const struct roce_path *path, uint32_t qpn)
{
	return at->known && same_path(&at->path, path) && qpn != 1 &&
	       at->control_len == at->plain_len && !u->cfg.pcap &&
	       u->cfg.loss <= 0;
}

/*
 * The same for what most small messages are, in fewer instructions: a short
 * packet, or one and the ACK behind it, to where the last one went, at port 4791,
 * which are put together but for their ICRCs. lone: the QP has nothing else on its
 * way, so it fills no socket, and on the wire it is not counted: a count is a cache
 * line that both processes write, one after the other. False: nothing was sent, and
 * it is for send_by(), which finds out why if it cannot be sent at all.
 */
static bool send_short(struct udp *u, struct udp_route *at, uint32_t hash,
		       uint32_t qpn, struct short_run *run, bool lone)
{
	struct tx_sock *sock = &u->tx[at->v4][hash % TX_POOL];
	const size_t size = run->size, bytes = size + run->ack;
	const int64_t cost = (int64_t)bytes + DATAGRAM_COST;
	struct iovec iov = { run->buf, bytes };
	struct msghdr m = {
		.msg_name = &at->to,
		.msg_namelen = at->tolen,
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = at->control,
		.msg_controllen = at->control_len,
	};
	int slot = -1;

	if (run->ack) {
		if (run->ack > size || sock->no_gso)
			return false;
		m.msg_controllen = put_segment(at, size);
	}
	if (u->registry && !(lone && u->cfg.wire))
		slot = registry_route(u->registry, qpn, &at->path.dgid,
				      at->scope);
	if (slot < 0 ?
		    atomic_load_explicit(&u->any_taken, memory_order_relaxed) &&
			    udp_astray(u, &at->path) :
		    !u->cfg.wire)
		return false;
	if (slot >= 0 && (run->buf[0] & 0x1f) == ROCE_ACK)
		registry_uncharge(u->registry, (unsigned)slot, -cost);
	else if (slot >= 0 && !room_admit(u, (unsigned)slot, cost))
		return false;
	finish(at, sock, 0, run->buf, size, false);
	if (run->ack)
		finish(at, sock, 1, run->buf + size, run->ack, false);
	sock_set_port(&at->to, ROCE_UDP_PORT);
	if (sys_sendmsg(sock->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
		if (slot >= 0)
			registry_uncharge(u->registry, (unsigned)slot, cost);
		return false;
	}
	STAT_ADD(u, tx_pkts, run->ack ? 2 : 1);
	STAT_ADD(u, tx_bytes, bytes);
	return true;
}

static bool send_short_batch(struct udp *u, struct udp_route *at,
			     const struct roce_batch *b, size_t from, size_t to)
{
	const struct roce_pkt *p = &b->pkt[from], *ack = p + 1;
	const bool two = to - from == 2;
	struct short_run run;

	if (to - from > 2 || p->to_slot || p->damaged ||
	    (two && (!b->ack || ack->damaged || ack->hash != p->hash ||
		     ack->path != p->path)) ||
	    !is_short_way(u, at, p->path, p->h.dest_qpn))
		return false;
	run.size = packet_size(p);
	run.ack = two ? packet_size(ack) : 0;
	return run.size + run.ack <= sizeof(run.buf) &&
	       !packet_put(b, p, run.buf) &&
	       (!two || !packet_put(b, ack, run.buf + run.size)) &&
	       send_short(u, at, p->hash, p->h.dest_qpn, &run, false);
}

unsigned udp_send_small(struct udp *u, struct udp_route *at,
			const struct roce_small *s)
{
	const uint32_t qpn = roce_qp_dest(s->qp);
	struct short_run run;
	uint8_t *p = run.buf;

	if (!s->timed || s->len > SHORT_RUN - 2 * ROCE_HDR_MAX ||
	    !is_short_way(u, at, roce_qp_path(s->qp), qpn))
		return 0;
	p += roce_small_put(s, p);
	if (s->len && guard_copy(p, s->data, s->len, s->data))
		return 0;
	p += s->len;
	memset(p, 0, 4);
	p += -s->len & 3;
	run.size = (size_t)(p - run.buf) + ROCE_ICRC_LEN;
	run.ack = s->ack ? ROCE_ACK_LEN : 0;
	if (s->ack)
		roce_small_put_ack(s, p + ROCE_ICRC_LEN);
	return send_short(u, at, roce_small_hash(s), qpn, &run,
			  roce_small_is_lone(s));
}

static size_t send_by(struct udp *u, struct route *r,
		      const struct roce_batch *b, size_t from, size_t to,
		      int *err)
{
	struct run run; /* not cleared: it is large */
	size_t i = from, next, lost, taken, pkts = 0, bytes = 0, dropped = 0;
	struct sent sent;
	int64_t cost;

	run.b = b;
	run.end = to;
	while (i < to) {
		run_gather(u, &run, r, i, &next, &lost);
		if (!run.n) {
			dropped += lost;
			i = next;
			continue;
		}
		if (run.sock->fd < 0) { /* no sockets of that family here */
			*err = EAFNOSUPPORT;
			i = next;
			continue;
		}
		cost = (int64_t)run_bytes(&run, 0, run.n) + DATAGRAM_COST;
		if (r->slot >= 0 && is_ack(&b->pkt[run.index[0]].h))
			registry_uncharge(u->registry, (unsigned)r->slot,
					  -cost);
		else if (r->slot >= 0 &&
			 !room_admit(u, (unsigned)r->slot, cost))
			break;
		taken = send_run(u, r, &run, &sent, err);
		cost -= (int64_t)(sent.bytes + sent.datagrams * DATAGRAM_COST);
		if (cost && r->slot >= 0)
			registry_uncharge(u->registry, (unsigned)r->slot, cost);
		pkts += sent.pkts;
		bytes += sent.bytes;
		if (taken < run.n) {
			if (taken)
				i = run.index[taken - 1] + 1u;
			break;
		}
		dropped += lost;
		i = next;
	}
	release_peer(u, r);
	if (pkts) {
		STAT_ADD(u, tx_pkts, pkts);
		STAT_ADD(u, tx_bytes, bytes);
	}
	if (dropped)
		STAT_ADD(u, tx_dropped, dropped);
	if (i < to)
		STAT_ADD(u, tx_busy, 1);
	return i;
}

/* For who keeps no route. */
__attribute__((noinline)) static size_t send_once(struct udp *u,
						  const struct roce_batch *b,
						  size_t from, size_t to,
						  int *err)
{
	struct udp_route at;

	at.known = false;
	return send_by(u, &(struct route){ .at = &at }, b, from, to, err);
}

size_t udp_send_part(struct udp *u, struct udp_route *at,
		     const struct roce_batch *b, size_t from, size_t to,
		     int *err)
{
	if (!at)
		return send_once(u, b, from, to, err);
	if (send_short_batch(u, at, b, from, to))
		return to;
	return send_by(u, &(struct route){ .at = at }, b, from, to, err);
}

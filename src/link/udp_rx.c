/*
 * udp_rx.c - from datagrams to packets
 *
 * With UDP_GRO a datagram may hold many packets of one flow, all of one size
 * but the last. Datagrams are taken a few at a time into large buffers and
 * split as the caller has room; what is left stays for the next call, and an
 * eventfd keeps the link's descriptor readable meanwhile.
 *
 * Where packets come from decides what is trusted. To the private port only
 * this user's processes on this host can send (udp_private.c), their own
 * packets and those that they hand over. Neither is checked for its ICRC, which
 * the former do not have and the latter have already passed. All others carry
 * one.
 *
 * Everything in here belongs to whoever holds rx_lock.
 */
#include "grh.h"
#include "sock.h"
#include "udp_internal.h"

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/gid.h"
#include "base/sys.h"
#include "hooks/pcap.h"
#include "net/netdev.h"
#include "os/config.h"
#include "wire/icrc.h"

#include <errno.h>
#include <netinet/udp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

#define RX_DATAGRAMS 8
#define RX_BYTES 65536 /* no datagram is longer */
#define RX_CONTROL 256
#define RX_EVENTS 16
#define HINTS 64
#define FLOWS 16
/* Reads of the same socket before all are asked for: more, where that finds no
 * other one. */
#define HOT_TRIES_MIN 4
#define HOT_TRIES_MAX 32
#define ASKED_MOST 64
#define MAX_READS 16 /* in one poll, if nothing good is in them */

/* What all packets of one datagram have in common. */
struct datagram {
	struct rx_sock *sock;
	uint8_t *data;
	size_t len, off; /* off: first byte not handed over */
	size_t segment; /* bytes per packet */
	union ibv_gid src, dst;
	uint16_t sport;
	uint8_t tclass;
	uint8_t hop_limit;
	uint16_t next_id; /* guess of the IPv4 identification */
	uint8_t hint; /* place of the flow's guess */
	uint32_t qpn; /* of the last packet that owner was looked up for; */
	int owner; /* the slot, or negative */
};

struct rx {
	uint8_t *buf;
	struct mmsghdr msg[RX_DATAGRAMS];
	struct iovec iov[RX_DATAGRAMS];
	struct sockaddr_storage from[RX_DATAGRAMS];
	_Alignas(struct cmsghdr) uint8_t control[RX_DATAGRAMS][RX_CONTROL];
	struct rx_sock *sock; /* all messages came from */
	int count, next;
	struct datagram d; /* the one being split, if d.off < d.len */
	union ibv_gid asked; /* whose host was asked for, */
	bool asked_local;
	unsigned asked_left; /* and how often that still holds */
	struct icrc_memo icrc[FLOWS]; /* by hint */
	struct packet cur; /* on its way to rx_fn */
	uint8_t grh[40];

	struct epoll_event event[RX_EVENTS]; /* sockets to read */
	int nevents, next_event;
	struct rx_sock *hot; /* try this one before asking epoll */
	unsigned tries; /* of hot since others were asked for; each datagram
			 * counts */
	unsigned tries_max; /* HOT_TRIES_MIN to HOT_TRIES_MAX */
	unsigned burst; /* datagrams to ask for at a time */
	unsigned idle; /* polls that found nothing since the last one */
	bool pending; /* pending_fd is readable */
	_Atomic uint64_t taken,
		held; /* udp_room.c: cost of what has been, and what is not yet split */
	bool empty; /* all sockets were found empty */

	uint64_t pkts, bytes; /* of this call */
	uint16_t next_id[HINTS];
};

int rx_create(struct udp *u)
{
	struct rx *rx = calloc(1, sizeof(*rx));

	if (!rx)
		return -ENOMEM;
	/* Untouched pages cost nothing; with small packets most stay so. */
	rx->buf = mmap(NULL, RX_DATAGRAMS * RX_BYTES, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (rx->buf == MAP_FAILED) {
		free(rx);
		return -ENOMEM;
	}
	for (size_t i = 0; i < RX_DATAGRAMS; i++) {
		rx->iov[i].iov_base = rx->buf + i * RX_BYTES;
		rx->iov[i].iov_len = RX_BYTES;
		rx->msg[i].msg_hdr = (struct msghdr){
			.msg_name = &rx->from[i],
			.msg_iov = &rx->iov[i],
			.msg_iovlen = 1,
			.msg_control = rx->control[i],
		};
	}
	rx->burst = 1;
	rx->tries_max = HOT_TRIES_MIN;
	u->rx = rx;
	return 0;
}

void rx_destroy(struct udp *u)
{
	if (!u->rx)
		return;
	munmap(u->rx->buf, RX_DATAGRAMS * RX_BYTES);
	free(u->rx);
}

static int control_int(const struct cmsghdr *c)
{
	uint8_t byte = 0;
	int n = 0;

	/* IP_TOS is a byte, all else an int. */
	if (c->cmsg_len >= CMSG_LEN(sizeof(n))) {
		memcpy(&n, CMSG_DATA(c), sizeof(n));
		return n;
	}
	if (c->cmsg_len >= CMSG_LEN(1))
		memcpy(&byte, CMSG_DATA(c), 1);
	return byte;
}

/* A kind of ancillary data, as one number. */
#define CONTROL(level, type) ((unsigned)(level) << 16 | (unsigned)(type))

/* Returns false if the destination cannot be known. */
static bool read_control(struct udp *u, struct datagram *d, struct msghdr *m)
{
	/* Others than the private sockets are bound to it. */
	bool have_dst = d->sock->kind != RX_PRIVATE;
	uint32_t drops;
	int n;

	if (have_dst)
		d->dst = d->sock->gid;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
		const size_t len = c->cmsg_len;
		const void *data = CMSG_DATA(c);

		switch (CONTROL(c->cmsg_level, c->cmsg_type)) {
		case CONTROL(IPPROTO_IP, IP_TTL):
		case CONTROL(IPPROTO_IPV6, IPV6_HOPLIMIT):
			d->hop_limit = (uint8_t)control_int(c);
			break;
		case CONTROL(IPPROTO_IP, IP_TOS):
		case CONTROL(IPPROTO_IPV6, IPV6_TCLASS):
			d->tclass = (uint8_t)control_int(c);
			break;
		case CONTROL(SOL_UDP, UDP_GRO):
			n = control_int(c);
			if (n > 0)
				d->segment = (size_t)n;
			break;
		case CONTROL(SOL_SOCKET, SO_RXQ_OVFL):
			drops = (uint32_t)control_int(c);
			STAT_ADD(u, rx_overflow, drops - d->sock->overflow);
			d->sock->overflow = drops;
			break;
		case CONTROL(IPPROTO_IP, IP_PKTINFO):
			if (len < CMSG_LEN(sizeof(struct in_pktinfo)))
				break;
			d->dst = gid_of_v4(
				&((const struct in_pktinfo *)data)->ipi_addr);
			have_dst = true;
			break;
		case CONTROL(IPPROTO_IPV6, IPV6_PKTINFO):
			if (len < CMSG_LEN(sizeof(struct in6_pktinfo)))
				break;
			memcpy(d->dst.raw,
			       &((const struct in6_pktinfo *)data)->ipi6_addr,
			       16);
			have_dst = true;
			break;
		}
	}
	return have_dst;
}

/* Whether it comes from this host: for who counts, and may be wrong for a
 * moment. One after the other mostly comes from the same. */
static bool is_local(struct udp *u, struct rx *rx, const struct datagram *d)
{
	if (d->sock->filtered)
		return true;
	if (!u->registry)
		return false;
	if (!rx->asked_left || !gid_equal(&rx->asked, &d->src)) {
		rx->asked = d->src;
		rx->asked_local = netdev_is_local(&d->src);
		rx->asked_left = ASKED_MOST;
	}
	rx->asked_left--;
	return rx->asked_local;
}

/* The process that a packet at address:4791 is for; negative: nobody of ours. */
static int owner_of(struct udp *u, struct datagram *d, uint32_t qpn)
{
	if (d->qpn != qpn) {
		d->qpn = qpn;
		d->owner = registry_owner(u->registry, qpn);
		/* We do receive there. */
		if (d->owner != (int)u->slot)
			d->owner =
				registry_route(u->registry, qpn, &d->sock->gid,
					       d->sock->scope);
	}
	return d->owner;
}

/* Takes off what a sender of this host has counted (udp_room.c). */
static void datagram_uncharge(struct udp *u, struct rx *rx, struct datagram *d)
{
	int slot = (int)u->slot;

	if (!u->registry || d->sock->kind == RX_MULTICAST)
		return;
	if (d->sock->kind == RX_UNICAST)
		slot = owner_of(u, d, roce_dest_qpn(d->data, d->len));
	else if (d->len && d->data[0] == HANDOVER_TYPE)
		return;
	/* Mostly, what comes from other hosts finds nothing counted. */
	if (slot == (int)u->slot && !registry_backlog(u->registry))
		return;
	if (slot >= 0 && is_local(u, rx, d))
		registry_take(u->registry, (unsigned)slot,
			      (uint32_t)d->len + DATAGRAM_COST);
}

/* Starts on message i. Returns false if there is nothing good in it. */
static bool datagram_begin(struct udp *u, struct rx *rx, int i)
{
	struct msghdr *m = &rx->msg[i].msg_hdr;
	struct datagram *d = &rx->d;

	*d = (struct datagram){
		.sock = rx->sock,
		.data = rx->iov[i].iov_base,
		.len = rx->msg[i].msg_len,
		.qpn = UINT32_MAX,
	};
	atomic_store_explicit(&rx->taken, rx_taken(u) + d->len + DATAGRAM_COST,
			      memory_order_relaxed);
	d->segment = d->len;
	d->sport = sock_gid(&rx->from[i], &d->src);
	if (!read_control(u, d, m) || !d->len || m->msg_flags & MSG_TRUNC) {
		STAT_ADD(u, rx_malformed, 1);
		d->len = 0;
		return false;
	}
	d->hint = (uint8_t)((d->src.raw[15] * 31u + d->src.raw[14] + d->sport) %
			    HINTS);
	d->next_id = rx->next_id[d->hint];
	if (d->sock->kind == RX_PRIVATE &&
	    ((!d->sock->filtered && !netdev_is_local(&d->src)) ||
	     d->sport != u->private_port)) {
		STAT_ADD(u, rx_malformed, 1);
		d->len = 0;
		return false;
	}
	datagram_uncharge(u, rx, d);
	return true;
}

static void build_grh(struct rx *rx, uint16_t id)
{
	const struct packet *k = &rx->cur;

	link_grh_build(rx->grh, &(struct link_grh){ .src = &k->src,
						    .dst = &k->dst,
						    .tclass = k->tclass,
						    .hop_limit = k->hop_limit,
						    .ip_id = id,
						    .len = k->len });
}

static void record_rx(struct udp *u, const struct packet *k, uint16_t id,
		      bool has_icrc)
{
	uint8_t icrc[ROCE_ICRC_LEN];
	size_t len = k->len - ROCE_ICRC_LEN;
	struct iovec iov[2] = { { (void *)k->p, len },
				{ (void *)(k->p + len), ROCE_ICRC_LEN } };
	uint32_t crc;

	if (!has_icrc) {
		crc = icrc_begin(&k->src, &k->dst, k->sport, ROCE_UDP_PORT,
				 k->len, 0);
		icrc_put(icrc, icrc_bth(crc, k->p, len));
		iov[1].iov_base = icrc;
	}
	pcap_write(u->cfg.pcap, &(struct pcap_pkt){
					.src = &k->src,
					.dst = &k->dst,
					.sport = k->sport,
					.dport = ROCE_UDP_PORT,
					.ip_id = id,
					.tclass = k->tclass,
					.hop_limit = k->hop_limit,
					.iov = iov,
					.niov = 2,
				});
}

/* Whether a packet behind a hand-over header is one; takes the header off. */
static bool take_handover(struct packet *k)
{
	const uint8_t *p = k->p;

	if (k->len < HANDOVER_LEN || p[1] != HANDOVER_VERSION)
		return false;
	k->sport = get_be16(p + 2);
	k->tclass = p[4];
	k->hop_limit = p[5];
	memcpy(k->src.raw, p + 8, 16);
	memcpy(k->dst.raw, p + 24, 16);
	k->p += HANDOVER_LEN;
	k->len -= HANDOVER_LEN;
	return true;
}

int udp_forward(struct udp *u, unsigned slot)
{
	if (!u->registry)
		return -ENOENT;
	return tx_hand_over(u, slot, &u->rx->cur);
}

int udp_handover(struct udp *u, unsigned slot, const union ibv_gid *src,
		 const union ibv_gid *dst, uint8_t tclass, const void *packet,
		 size_t len)
{
	uint8_t buf[UDP_HANDOVER_MAX + ROCE_ICRC_LEN];
	struct packet k = {
		.p = buf,
		.len = len + ROCE_ICRC_LEN,
		.src = *src,
		.dst = *dst,
		.sport = ROCE_UDP_PORT,
		.tclass = tclass,
		.hop_limit = 64,
	};

	if (!u->registry)
		return -ENOENT;
	if (k.len > sizeof(buf))
		return -EMSGSIZE;
	memcpy(buf, packet, len);
	icrc_put(buf + len, icrc_bth(icrc_begin(src, dst, k.sport,
						ROCE_UDP_PORT, k.len, 0),
				     buf, len));
	return tx_hand_over(u, slot, &k);
}

/*
 * The process that a packet at address:4791 is for, if that is another one:
 * steering was wrong.
 */
static int other_owner(struct udp *u, struct datagram *d, uint32_t qpn)
{
	int slot;

	if (!u->registry || d->sock->kind != RX_UNICAST)
		return -1;
	slot = owner_of(u, d, qpn);
	return slot == (int)u->slot ? -1 : slot;
}

/* One packet of the datagram. Returns how many rx calls were made: 0 or 1. */
static unsigned packet_deliver(struct udp *u, struct rx *rx, uint8_t *p,
			       size_t len, link_rx_fn *fn, void *arg)
{
	struct datagram *d = &rx->d;
	bool private = d->sock->kind == RX_PRIVATE, handed = false;
	struct packet *k = &rx->cur;
	struct roce_rx pkt;
	uint16_t id = 0;
	int hdr, slot;

	*k = (struct packet){
		.p = p,
		.len = len,
		.src = d->src,
		.dst = d->dst,
		.sport = d->sport,
		.tclass = d->tclass,
		.hop_limit = d->hop_limit,
	};
	if (private && p[0] == HANDOVER_TYPE) {
		if (len == 1)
			return 0;
		handed = take_handover(k);
		if (!handed)
			goto malformed;
	}
	if (k->len < ROCE_BTH_LEN + ROCE_ICRC_LEN)
		goto malformed;
	hdr = roce_decode(&pkt.h, k->p, k->len - ROCE_ICRC_LEN);
	if (hdr < 0) {
		if (d->sock->kind == RX_UNICAST && probe_take(u, k))
			return 0;
		goto malformed;
	}
	if (!private) {
		id = d->next_id;
		if (!icrc_check_own(&rx->icrc[d->hint % FLOWS], &k->src,
				    &k->dst, k->sport, ROCE_UDP_PORT, p, len,
				    &id)) {
			STAT_ADD(u, rx_bad_icrc, 1);
			return 0;
		}
		d->next_id = (uint16_t)(id + 1);
		slot = other_owner(u, d, pkt.h.dest_qpn);
		if (slot >= 0) {
			STAT_ADD(u, rx_steered, 1);
			udp_forward(u, (unsigned)slot);
			udp_misdelivered(u, d->sock, pkt.h.dest_qpn);
			return 0;
		}
	}
	/* Messages between processes are not packets. */
	if (u->cfg.pcap && pkt.h.dest_qpn)
		record_rx(u, k, id, !private || handed);
	pkt.handed = handed;
	pkt.host = pkt.large = pkt.ack_note = pkt.early = false;
	pkt.source = NULL;
	pkt.acked = NULL;
	pkt.payload = k->p + hdr;
	pkt.len = k->len - (size_t)hdr - ROCE_ICRC_LEN - pkt.h.pad;
	pkt.sgid = k->src;
	pkt.dgid = k->dst;
	/* What comes to the private port by itself is of a process of ours. */
	pkt.sport = private && !handed ? 0 : k->sport;
	pkt.tclass = k->tclass;
	pkt.v1 = false;
	pkt.ecn_ce = (k->tclass & 3) == 3;
	pkt.grh = NULL;
	if (pkt.h.opcode >> 5 == ROCE_UD >> 5) {
		build_grh(rx, id);
		pkt.grh = rx->grh;
	}
	rx->pkts++;
	rx->bytes += k->len;
	fn(arg, &pkt);
	return 1;

malformed:
	STAT_ADD(u, rx_malformed, 1);
	return 0;
}

/*
 * Whether a datagram is a request and an acknowledgement that has waited for it
 * (engine/delayed_ack.c), so that the peer's program has answered what the
 * acknowledgement is about. Ours is to hear of the end of what it has sent
 * before it hears the answer, as with hardware, so they change places.
 */
static bool is_answer(const struct datagram *d)
{
	return d->len == d->segment + ROCE_ACK_LEN &&
	       d->data[d->segment] == (ROCE_RC | ROCE_ACK) &&
	       (roce_opcode(d->data[0])->flags & ROCE_F_REQUEST);
}

/* Hands over the second packet of the datagram, which is the last. */
static unsigned deliver_second(struct udp *u, struct rx *rx, link_rx_fn *fn,
			       void *arg)
{
	struct datagram *d = &rx->d;
	const uint16_t id = d->next_id;
	unsigned n;

	d->next_id = (uint16_t)(id + 1);
	n = packet_deliver(u, rx, d->data + d->segment, ROCE_ACK_LEN, fn, arg);
	d->next_id = id;
	d->len = d->segment;
	return n;
}

/* Hands over packets of the messages read, up to budget. */
static unsigned datagrams_split(struct udp *u, struct rx *rx, unsigned budget,
				link_rx_fn *fn, void *arg)
{
	struct datagram *d = &rx->d;
	unsigned n = 0;

	while (n < budget) {
		uint16_t first;
		size_t len;

		if (d->off >= d->len) {
			if (rx->next == rx->count)
				break;
			datagram_begin(u, rx, rx->next++);
			continue;
		}
		first = d->off ? 0 : 1;
		if (first && is_answer(d))
			n += deliver_second(u, rx, fn, arg);
		len = d->len - d->off;
		if (len > d->segment)
			len = d->segment;
		n += packet_deliver(u, rx, d->data + d->off, len, fn, arg);
		d->off += len;
		/*
		 * A sender that leaves the identification at 0 does so for
		 * every datagram, and segments count from there; others, such
		 * as rxe, go on counting.
		 */
		if (first && d->next_id == 1)
			rx->next_id[d->hint] = 0;
		else if (first || rx->next_id[d->hint])
			rx->next_id[d->hint] = d->next_id;
	}
	return n;
}

/* As recvmmsg(2), which takes longer for one. */
static int read_one(struct rx *rx, int fd)
{
	const ssize_t len = sys_recvmsg(fd, &rx->msg[0].msg_hdr, MSG_DONTWAIT);

	if (len < 0)
		return 0;
	rx->msg[0].msg_len = (unsigned)len;
	return 1;
}

static int read_sock(struct rx *rx, struct rx_sock *s)
{
	unsigned want = rx->burst;
	int n;

	for (size_t i = 0; i < want; i++) {
		rx->msg[i].msg_hdr.msg_namelen = sizeof(rx->from[i]);
		rx->msg[i].msg_hdr.msg_controllen = sizeof(rx->control[i]);
	}
	n = want == 1 ? read_one(rx, s->fd) :
			sys_recvmmsg(s->fd, rx->msg, want);
	if (n <= 0)
		return 0;
	rx->sock = s;
	rx->count = n;
	rx->next = 0;
	rx->d.len = rx->d.off = 0;
	rx->hot = s;
	/* Who had something at once is likely to have more. */
	if ((unsigned)n < want)
		rx->burst = (unsigned)n;
	else if (!rx->idle)
		rx->burst = min_u32(2 * want, RX_DATAGRAMS);
	return n;
}

/* Asks which sockets have something. */
static int sockets_ask(struct udp *u, struct rx *rx)
{
	int n = sys_epoll_wait(u->epfd, rx->event, RX_EVENTS);

	if (n > 1 || (n == 1 && rx->event[0].data.ptr != rx->hot))
		rx->tries_max = HOT_TRIES_MIN;
	else
		rx->tries_max = min_u32(2 * rx->tries_max, HOT_TRIES_MAX);
	rx->tries = 0;
	rx->next_event = 0;
	rx->nevents = n > 0 ? n : 0;
	return n;
}

/*
 * Reads from the next socket that has something. The one that had something
 * last is mostly the one that has, so it is tried, and epoll is asked now and
 * then only, as it takes another system call: a caller that polls finds what
 * else has come a little later. Who has slept and found the link's descriptor
 * readable asks at once if it is not that socket.
 */
static int datagrams_read(struct udp *u, struct rx *rx)
{
	bool asked = false;

	rx->empty = false;
	if (rx->hot && ++rx->tries < rx->tries_max) {
		if (read_sock(rx, rx->hot)) {
			rx->tries += (unsigned)rx->count - 1;
			udp_called(u, false);
			return rx->count;
		}
		if (!atomic_load_explicit(&u->called, memory_order_relaxed))
			return 0;
	}
	for (;;) {
		while (rx->next_event < rx->nevents) {
			struct rx_sock *s =
				rx->event[rx->next_event++].data.ptr;

			if (s && s->kind == RX_ERRORS)
				err_read(u, s->fd);
			else if (s && read_sock(rx, s))
				return rx->count;
		}
		if (asked)
			return 0;
		asked = true;
		udp_called(u, false);
		if (sockets_ask(u, rx) <= 0) {
			rx->empty = true;
			return 0;
		}
	}
}

void rx_reap(struct udp *u)
{
	struct rx *rx = u->rx;
	struct rx_sock *s, *next;

	if (!atomic_load_explicit(&u->graveyard, memory_order_relaxed))
		return;
	s = atomic_exchange(&u->graveyard, NULL);
	for (; s; s = next) {
		next = s->next;
		if (rx && rx->sock == s) {
			rx->count = rx->next = 0;
			rx->d.len = rx->d.off = 0;
		}
		if (s->fd >= 0)
			sys_close(s->fd);
		free(s);
	}
	if (rx) {
		rx->hot = NULL;
		rx->nevents = rx->next_event = 0;
	}
}

uint64_t rx_taken(const struct udp *u)
{
	return atomic_load_explicit(&u->rx->taken, memory_order_relaxed);
}

uint64_t rx_held(const struct udp *u)
{
	return atomic_load_explicit(&u->rx->held, memory_order_relaxed);
}

/* Of the messages that have been read. */
static void set_held(struct rx *rx, bool left)
{
	uint64_t held = left;

	if (!left && !rx->pending)
		return;
	for (int i = rx->next; i < rx->count; i++)
		held += rx->msg[i].msg_len + DATAGRAM_COST;
	atomic_store_explicit(&rx->held, held, memory_order_relaxed);
}

void rx_forget(struct udp *u)
{
	struct rx *rx = u->rx;

	rx_reap(u);
	rx->count = rx->next = 0;
	rx->d.len = rx->d.off = 0;
	rx->hot = NULL;
	rx->nevents = rx->next_event = 0;
	rx->pending = false;
	atomic_store(&rx->held, 0);
}

static void set_pending(struct udp *u, struct rx *rx, bool pending)
{
	uint64_t n = 1;
	ssize_t done;

	if (pending == rx->pending)
		return;
	rx->pending = pending;
	done = pending ? sys_write(u->pending_fd, &n, sizeof(n)) :
			 sys_read(u->pending_fd, &n, sizeof(n));
	(void)done; /* if it is full, or empty, it is as it should be */
}

int udp_poll(struct udp *u, unsigned budget, link_rx_fn *fn, void *arg)
{
	struct rx *rx = u->rx;
	unsigned n = 0;
	bool left;

	if (!lock_try(&u->rx_lock))
		return -EBUSY;
	rx_reap(u);
	for (int reads = 0;; reads++) {
		n += datagrams_split(u, rx, budget - n, fn, arg);
		left = rx->next < rx->count || rx->d.off < rx->d.len;
		/* The caller handles what has come before more is read. */
		if (n || reads == MAX_READS)
			break;
		if (!datagrams_read(u, rx)) {
			if (u->registry && rx->empty)
				room_correct(u);
			break;
		}
		rx->idle = 0;
	}
	set_held(rx, left);
	set_pending(u, rx, left);
	if (!n && ++rx->idle == 1)
		rx->burst = 1;
	if (rx->pkts) {
		STAT_ADD(u, rx_pkts, rx->pkts);
		STAT_ADD(u, rx_bytes, rx->bytes);
		rx->pkts = rx->bytes = 0;
	}
	lock_drop(&u->rx_lock);
	return (int)n;
}

void udp_poll_wait(struct udp *u)
{
	lock_take(&u->rx_lock);
	lock_drop(&u->rx_lock);
}

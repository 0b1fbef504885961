/*
 * dgram.c - datagrams over UD queue pairs
 *
 * A datagram rsocket is a UDP socket of the kernel, whose address is the
 * rsocket's, and one UD queue pair per local address it sends from. Where the
 * peer's queue pair is, is learnt by sending: a datagram for an unknown peer
 * travels over UDP, behind a header with our QP number; the peer answers with a
 * header that has its own, and from then on datagrams go from QP to QP. Two
 * kinds travel over UDP even so: those that exceed the path's MTU, and one a
 * second, so that a peer that has been started anew is found.
 *
 * Everything is under lock; there is no thread. Who waits, or sends to a peer
 * not known yet, looks at the UDP socket.
 */
#include "base/aside.h"
#include "base/bytes.h"
#include "base/gid.h"
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define GRH_LEN 40
#define MAX_MTU 4096
#define UD_HEADERS 72 /* IPv6, UDP, BTH, DETH and ICRC */
#define NBUCKETS 256 /* of the table of peers */
#define MAX_DESTS 4096
#define REFRESH_NS 1000000000ull
#define UDP_BATCH 32
#define CLOSE_WAIT_NS 1000000000ull
#define WR_SEND (1ull << 32)

struct rsock_dest {
	struct rsock_dest *next;
	union rsw_addr addr;
	struct rsock_dgram_qp *qp; /* what we send from */
	struct ibv_ah *ah; /* NULL: qpn is not known */
	uint32_t qpn;
	uint64_t refresh_ns; /* the next datagram after this goes over UDP */
	uint64_t used_ns;
};

struct rsock_dgram_qp {
	struct rsock_dgram_qp *next;
	union rsw_addr src;
	struct rdma_cm_id *id;
	struct ibv_comp_channel *cc;
	struct ibv_cq *cq;
	struct ibv_mr *smr, *rmr;
	uint8_t *rbuf; /* rq_size slots, then room for what nobody reads */
	uint32_t mtu;
	uint32_t inline_size;
	int sgid_index;
	bool armed;
};

/* A datagram in its slot, header first. qp is NULL for those from UDP. */
struct rsock_packet {
	struct rsock_dgram_qp *qp;
	uint32_t slot, len;
};

static socklen_t addr_len(const union rsw_addr *addr)
{
	return addr->sa.sa_family == AF_INET ? sizeof(addr->sin)
					     : sizeof(addr->sin6);
}

static bool same_addr(const union rsw_addr *a, const union rsw_addr *b)
{
	if (a->sa.sa_family != b->sa.sa_family)
		return false;
	if (a->sa.sa_family == AF_INET)
		return a->sin.sin_port == b->sin.sin_port &&
		       a->sin.sin_addr.s_addr == b->sin.sin_addr.s_addr;
	return a->sin6.sin6_port == b->sin6.sin6_port &&
	       IN6_ARE_ADDR_EQUAL(&a->sin6.sin6_addr, &b->sin6.sin6_addr);
}

/* As the UDP socket of rs has it. */
static union rsw_addr outside(const struct rsock *rs,
			      const union rsw_addr *addr)
{
	union rsw_addr copy = *addr;

	if (rs->family == AF_INET6)
		rsock_map_ip4(&copy);
	return copy;
}

static unsigned hash(const union rsw_addr *addr)
{
	uint32_t h = addr->sin.sin_port, word;
	int i;

	if (addr->sa.sa_family == AF_INET) {
		h ^= addr->sin.sin_addr.s_addr;
	} else {
		for (i = 0; i < 4; i++) {
			memcpy(&word, &addr->sin6.sin6_addr.s6_addr[4 * i], 4);
			h = h * 31 + word;
		}
	}
	return (h * 2654435761u) >> 24;
}

_Static_assert(NBUCKETS == 256, "hash() gives 8 bits");

int rsock_dgram_init(struct rsock *rs)
{
	struct rsock_dgram *d = &rs->d;
	struct epoll_event ev = { .events = EPOLLIN };

	d->epfd = -1;
	d->udp = socket(rs->family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (d->udp < 0)
		return rsock_errno();
	if (rs->aside)
		d->udp = fd_aside(d->udp);
	d->epfd = fd_aside(epoll_create1(EPOLL_CLOEXEC));
	if (d->epfd < 0 || epoll_ctl(d->epfd, EPOLL_CTL_ADD, d->udp, &ev))
		return rsock_errno();
	return 0;
}

/* Buffers, when they are needed first: options are settled then. */
static int make_ready(struct rsock *rs)
{
	struct rsock_dgram *d = &rs->d;
	uint32_t i;

	if (d->ready)
		return 0;
	rs->sq_size =
		max_u32(1, min_u32(rs->sq_size, rs->sbuf_size / RSW_DGRAM_MAX));
	rs->rq_size =
		max_u32(1, min_u32(rs->rq_size, rs->rbuf_size / RSW_DGRAM_MAX));
	d->dests = calloc(NBUCKETS, sizeof(struct rsock_dest *));
	d->sbuf = calloc(rs->sq_size, RSW_DGRAM_MAX);
	d->sfree = calloc(rs->sq_size, sizeof(*d->sfree));
	d->ubuf = calloc(rs->rq_size, RSW_DGRAM_MAX);
	d->ufree = calloc(rs->rq_size, sizeof(*d->ufree));
	d->packets = calloc(rs->rq_size, sizeof(*d->packets));
	if (!d->dests || !d->sbuf || !d->sfree || !d->ubuf || !d->ufree ||
	    !d->packets)
		return -ENOMEM; /* what there is goes with the rsocket */
	for (i = 0; i < rs->sq_size; i++)
		d->sfree[d->nsfree++] = (uint16_t)i;
	for (i = 0; i < rs->rq_size; i++)
		d->ufree[d->nufree++] = (uint16_t)i;
	d->ready = true;
	return 0;
}

static void free_qp(struct rsock *rs, struct rsock_dgram_qp *qp)
{
	if (qp->cc)
		epoll_ctl(rs->d.epfd, EPOLL_CTL_DEL, qp->cc->fd, NULL);
	if (qp->id && qp->id->qp)
		rdma_destroy_qp(qp->id);
	if (qp->smr)
		ibv_dereg_mr(qp->smr);
	if (qp->rmr)
		ibv_dereg_mr(qp->rmr);
	if (qp->cq)
		ibv_destroy_cq(qp->cq);
	if (qp->cc)
		ibv_destroy_comp_channel(qp->cc);
	if (qp->id)
		rdma_destroy_id(qp->id);
	free(qp->rbuf);
	free(qp);
}

static void free_dest(struct rsock_dest *dest)
{
	if (dest->ah)
		ibv_destroy_ah(dest->ah);
	free(dest);
}

void rsock_dgram_fini(struct rsock *rs)
{
	struct rsock_dgram *d = &rs->d;
	struct rsock_dgram_qp *qp;
	struct rsock_dest *dest;
	int i;

	for (i = 0; d->dests && i < NBUCKETS; i++)
		while ((dest = d->dests[i])) {
			d->dests[i] = dest->next;
			free_dest(dest);
		}
	while ((qp = d->qps)) {
		d->qps = qp->next;
		free_qp(rs, qp);
	}
	if (d->epfd >= 0)
		close(d->epfd);
	if (d->udp >= 0)
		close(d->udp);
	free(d->dests);
	free(d->sbuf);
	free(d->sfree);
	free(d->ubuf);
	free(d->ufree);
	free(d->packets);
}

static int post_recv(struct rsock *rs, struct rsock_dgram_qp *qp, uint32_t slot)
{
	/*
	 * Nobody reads the GRHs, nor what is behind the longest datagram: they
	 * share one place. A packet that did not fit would be the end of the
	 * queue pair.
	 */
	struct ibv_sge sge[3] = {
		{ .addr = (uintptr_t)(qp->rbuf + rs->rq_size * RSW_DGRAM_MAX),
		  .length = GRH_LEN,
		  .lkey = qp->rmr->lkey },
		{ .addr = (uintptr_t)(qp->rbuf + slot * RSW_DGRAM_MAX),
		  .length = RSW_DGRAM_MAX,
		  .lkey = qp->rmr->lkey },
		{ .addr = (uintptr_t)(qp->rbuf + rs->rq_size * RSW_DGRAM_MAX),
		  .length = MAX_MTU - RSW_DGRAM_MAX,
		  .lkey = qp->rmr->lkey },
	};
	struct ibv_recv_wr wr = { .wr_id = slot, .sg_list = sge, .num_sge = 3 },
			   *bad;

	return -ibv_post_recv(qp->id->qp, &wr, &bad);
}

static union ibv_gid gid_of(const union rsw_addr *addr)
{
	union ibv_gid gid;

	if (addr->sa.sa_family == AF_INET)
		return gid_of_v4(&addr->sin.sin_addr);
	memcpy(gid.raw, &addr->sin6.sin6_addr, 16);
	return gid;
}

/* Where the path starts: the GID that is the local address. */
static int find_gid(struct rsock_dgram_qp *qp, const struct ibv_port_attr *port)
{
	union ibv_gid want = gid_of(&qp->src), gid;
	int i;

	for (i = 0; i < port->gid_tbl_len; i++)
		if (!ibv_query_gid(qp->id->verbs, qp->id->port_num, i, &gid) &&
		    !memcmp(&gid, &want, sizeof(gid))) {
			qp->sgid_index = i;
			return 0;
		}
	return -EADDRNOTAVAIL;
}

/* The port's MTU is that of one of its interfaces, not always of ours. */
static uint32_t netdev_mtu(const struct rsock *rs,
			   const struct rsock_dgram_qp *qp)
{
	struct ibv_gid_entry gid;
	struct ifreq ifr = { 0 };
	uint32_t mtu = MAX_MTU;

	if (!ibv_query_gid_ex(qp->id->verbs, qp->id->port_num,
			      (uint32_t)qp->sgid_index, &gid, 0) &&
	    if_indextoname(gid.ndev_ifindex, ifr.ifr_name) &&
	    !ioctl(rs->d.udp, SIOCGIFMTU, &ifr) && ifr.ifr_mtu > UD_HEADERS)
		mtu = (uint32_t)ifr.ifr_mtu - UD_HEADERS;
	return mtu;
}

static int bind_id(struct rsock_dgram_qp *qp)
{
	union rsw_addr src = qp->src;

	if (!rdma_bind_addr(qp->id, &src.sa))
		return 0;
	if (errno != EADDRINUSE)
		return rsock_errno();
	/* The protocol does not use the port in RDMA's port space. */
	src.sin.sin_port = 0;
	if (rdma_bind_addr(qp->id, &src.sa))
		return rsock_errno();
	/* A loopback address gets its device only on the way to somebody. */
	if (!qp->id->verbs && rdma_resolve_addr(qp->id, NULL, &src.sa, 1000))
		return rsock_errno();
	return 0;
}

static int fill_qp(struct rsock *rs, struct rsock_dgram_qp *qp)
{
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_UD,
		.sq_sig_all = 1,
		.cap = { .max_send_wr = rs->sq_size,
			 .max_recv_wr = rs->rq_size,
			 .max_send_sge = 1,
			 .max_recv_sge = 3,
			 .max_inline_data = rs->inline_size },
	};
	size_t len =
		(size_t)rs->rq_size * RSW_DGRAM_MAX + MAX_MTU - RSW_DGRAM_MAX;
	struct epoll_event ev = { .events = EPOLLIN };
	struct ibv_port_attr port;
	uint32_t i;
	int err, flags;

	if (rdma_create_id(NULL, &qp->id, qp, RDMA_PS_UDP))
		return rsock_errno();
	err = bind_id(qp);
	if (err)
		return err;
	if (!qp->id->verbs ||
	    ibv_query_port(qp->id->verbs, qp->id->port_num, &port))
		return -ENODEV;
	err = find_gid(qp, &port);
	qp->mtu = min_u32(128u << port.active_mtu, netdev_mtu(rs, qp));
	if (err)
		return err;
	qp->cc = ibv_create_comp_channel(qp->id->verbs);
	if (!qp->cc)
		return rsock_errno();
	flags = fcntl(qp->cc->fd, F_GETFL);
	if (flags < 0 || fcntl(qp->cc->fd, F_SETFL, flags | O_NONBLOCK))
		return rsock_errno();
	qp->cq = ibv_create_cq(qp->id->verbs, (int)(rs->sq_size + rs->rq_size),
			       NULL, qp->cc, 0);
	if (!qp->cq)
		return rsock_errno();
	attr.send_cq = attr.recv_cq = qp->cq;
	if (rdma_create_qp(qp->id, NULL, &attr))
		return rsock_errno();
	qp->inline_size = attr.cap.max_inline_data;
	qp->rbuf = calloc(1, len);
	if (!qp->rbuf)
		return -ENOMEM;
	qp->rmr = ibv_reg_mr(qp->id->pd, qp->rbuf, len, IBV_ACCESS_LOCAL_WRITE);
	if (!qp->rmr)
		return rsock_errno();
	qp->smr = ibv_reg_mr(qp->id->pd, rs->d.sbuf,
			     (size_t)rs->sq_size * RSW_DGRAM_MAX,
			     IBV_ACCESS_LOCAL_WRITE);
	if (!qp->smr)
		return rsock_errno();
	for (i = 0; i < rs->rq_size && !err; i++)
		err = post_recv(rs, qp, i);
	if (!err && epoll_ctl(rs->d.epfd, EPOLL_CTL_ADD, qp->cc->fd, &ev))
		err = rsock_errno();
	return err;
}

static int get_qp(struct rsock *rs, const union rsw_addr *src,
		  struct rsock_dgram_qp **out)
{
	struct rsock_dgram_qp *qp;
	int err;

	for (qp = rs->d.qps; qp; qp = qp->next)
		if (same_addr(&qp->src, src)) {
			*out = qp;
			return 0;
		}
	qp = calloc(1, sizeof(*qp));
	if (!qp)
		return -ENOMEM;
	qp->src = *src;
	err = fill_qp(rs, qp);
	if (err) {
		free_qp(rs, qp);
		return err;
	}
	qp->next = rs->d.qps;
	rs->d.qps = qp;
	*out = qp;
	return 0;
}

static bool unspecified(const union rsw_addr *addr)
{
	if (addr->sa.sa_family == AF_INET)
		return addr->sin.sin_addr.s_addr == htonl(INADDR_ANY);
	return IN6_IS_ADDR_UNSPECIFIED(&addr->sin6.sin6_addr);
}

/* The address that datagrams to dst leave from, with the port of rs. */
static int source_of(struct rsock *rs, const union rsw_addr *dst,
		     union rsw_addr *src)
{
	socklen_t len = sizeof(*src);
	union rsw_addr any;
	in_port_t port;
	int sock, err = 0;

	if (getsockname(rs->d.udp, &src->sa, &len))
		return rsock_errno();
	if (!src->sin.sin_port) {
		memset(&any, 0, sizeof(any));
		any.sa.sa_family = (sa_family_t)rs->family;
		len = sizeof(*src);
		if (bind(rs->d.udp, &any.sa, addr_len(&any)) ||
		    getsockname(rs->d.udp, &src->sa, &len))
			return rsock_errno();
	}
	rsock_unmap_ip4(src);
	if (!unspecified(src))
		return 0;
	port = src->sin.sin_port;
	sock = socket(dst->sa.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (sock < 0)
		return rsock_errno();
	memset(src, 0, sizeof(*src));
	len = sizeof(*src);
	if (connect(sock, &dst->sa, addr_len(dst)) ||
	    getsockname(sock, &src->sa, &len))
		err = rsock_errno();
	close(sock);
	src->sin.sin_port = port; /* where sin6_port is, too */
	return err;
}

_Static_assert(offsetof(struct sockaddr_in, sin_port) ==
		       offsetof(struct sockaddr_in6, sin6_port),
	       "one port for both families");

static struct rsock_dest *find_dest(struct rsock *rs,
				    const union rsw_addr *addr)
{
	struct rsock_dest *dest;

	for (dest = rs->d.dests[hash(addr)]; dest; dest = dest->next)
		if (same_addr(&dest->addr, addr))
			return dest;
	return NULL;
}

/* Anybody can make us remember an address: forget the one least in use. */
static void make_room(struct rsock *rs)
{
	struct rsock_dgram *d = &rs->d;
	struct rsock_dest **link, **oldest = NULL, *dest;
	unsigned n = 0, i;

	for (i = 0; i < NBUCKETS; i++)
		for (link = &d->dests[i]; *link; link = &(*link)->next) {
			n++;
			if (*link != d->connected &&
			    (!oldest || (*link)->used_ns < (*oldest)->used_ns))
				oldest = link;
		}
	if (n < MAX_DESTS)
		return;
	dest = *oldest;
	*oldest = dest->next;
	free_dest(dest);
}

static int get_dest(struct rsock *rs, const union rsw_addr *addr,
		    struct rsock_dest **out)
{
	struct rsock_dest *dest;
	struct rsock_dgram_qp *qp;
	union rsw_addr src;
	unsigned bucket;
	int err;

	*out = find_dest(rs, addr);
	if (*out)
		return 0;
	err = source_of(rs, addr, &src);
	if (!err)
		err = get_qp(rs, &src, &qp);
	if (err)
		return err;
	make_room(rs);
	dest = calloc(1, sizeof(*dest));
	if (!dest)
		return -ENOMEM;
	dest->addr = *addr;
	dest->qp = qp;
	dest->used_ns = rsock_now_ns();
	bucket = hash(addr);
	dest->next = rs->d.dests[bucket];
	rs->d.dests[bucket] = dest;
	*out = dest;
	return 0;
}

/* The peer's QP is known: for RoCE v2 its GID is its IP address. */
static void learn(struct rsock_dest *dest, uint32_t qpn)
{
	struct ibv_ah_attr attr = {
		.grh = { .dgid = gid_of(&dest->addr),
			 .sgid_index = (uint8_t)dest->qp->sgid_index,
			 .hop_limit = 64 },
		.is_global = 1,
		.port_num = dest->qp->id->port_num,
	};

	dest->refresh_ns = rsock_now_ns() + REFRESH_NS;
	dest->qpn = qpn;
	if (!dest->ah)
		dest->ah = ibv_create_ah(dest->qp->id->pd, &attr);
}

static ssize_t send_udp(struct rsock *rs, struct rsock_dest *dest, bool data,
			const struct iovec *iov, int iovcnt)
{
	struct rsw_udp udp = { .data = data, .qpn = dest->qp->id->qp->qp_num };
	uint8_t hdr[RSW_UDP_IP6];
	struct iovec all[16] = { { hdr, rsw_udp_encode(hdr, &udp,
						       &dest->qp->src) } };
	union rsw_addr to = outside(rs, &dest->addr);
	struct msghdr msg = { .msg_name = &to,
			      .msg_namelen = addr_len(&to),
			      .msg_iov = all,
			      .msg_iovlen = (size_t)iovcnt + 1 };
	ssize_t n;

	if ((size_t)iovcnt + 1 > ARRAY_SIZE(all))
		return -EMSGSIZE;
	if (iovcnt)
		memcpy(all + 1, iov, (size_t)iovcnt * sizeof(*iov));
	n = sendmsg(rs->d.udp, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
	return n < 0 ? rsock_errno() : n - (ssize_t)all[0].iov_len;
}

/* For a program that is connected only its peer's datagrams are there. */
static bool wanted(struct rsock *rs, const union rsw_addr *src)
{
	return !rs->d.connected || same_addr(&rs->d.connected->addr, src);
}

static bool push(struct rsock *rs, struct rsock_dgram_qp *qp, uint32_t slot,
		 uint32_t len)
{
	struct rsock_dgram *d = &rs->d;

	if (d->count == rs->rq_size)
		return false;
	d->packets[(d->head + d->count++) % rs->rq_size] =
		(struct rsock_packet){ qp, slot, len };
	return true;
}

static void take_udp(struct rsock *rs, const uint8_t *p, size_t len,
		     const union rsw_addr *from)
{
	struct rsock_dgram *d = &rs->d;
	struct rsock_dest *dest;
	struct rsw_udp udp;
	uint8_t *slot;
	size_t hdr;
	int used;

	used = rsw_udp_decode(p, len, from->sa.sa_family, &udp);
	if (used < 0 || get_dest(rs, from, &dest))
		return;
	learn(dest, udp.qpn);
	if (!udp.data)
		return;
	send_udp(rs, dest, false, NULL, 0);
	if (!d->nufree || !wanted(rs, from))
		return;
	slot = d->ubuf + d->ufree[d->nufree - 1] * RSW_DGRAM_MAX;
	hdr = rsw_dgram_encode(slot, from);
	len -= (size_t)used;
	memcpy(slot + hdr, p + used, len);
	if (push(rs, NULL, d->ufree[d->nufree - 1], (uint32_t)(hdr + len)))
		d->nufree--;
}

static void drain_udp(struct rsock *rs)
{
	uint8_t buf[RSW_DGRAM_MAX + 1];
	union rsw_addr from;
	socklen_t from_len;
	ssize_t n;
	int i;

	for (i = 0; i < UDP_BATCH; i++) {
		from_len = sizeof(from);
		n = recvfrom(rs->d.udp, buf, sizeof(buf), MSG_DONTWAIT,
			     &from.sa, &from_len);
		if (n < 0 && errno != ECONNREFUSED)
			return;
		rsock_unmap_ip4(&from);
		if (n > 0 && n <= RSW_DGRAM_MAX)
			take_udp(rs, buf, (size_t)n, &from);
	}
}

_Static_assert(RSW_UDP_IP4 >= RSW_DGRAM_IP4 && RSW_UDP_IP6 >= RSW_DGRAM_IP6,
	       "what came over UDP fits into a slot");

static void on_recv(struct rsock *rs, struct rsock_dgram_qp *qp,
		    const struct ibv_wc *wc)
{
	uint32_t slot = (uint32_t)wc->wr_id, len = wc->byte_len - GRH_LEN;
	union rsw_addr src;

	if (wc->status != IBV_WC_SUCCESS)
		return;
	if (wc->byte_len < GRH_LEN || len > RSW_DGRAM_MAX ||
	    rsw_dgram_decode(qp->rbuf + slot * RSW_DGRAM_MAX, len, &src) < 0 ||
	    !wanted(rs, &src) || !push(rs, qp, slot, len))
		post_recv(rs, qp, slot);
}

void rsock_dgram_progress(struct rsock *rs)
{
	struct rsock_dgram *d = &rs->d;
	struct rsock_dgram_qp *qp;
	struct ibv_wc wc[16];
	int i, n;

	if (!d->ready)
		return;
	for (qp = d->qps; qp; qp = qp->next) {
		n = ibv_poll_cq(qp->cq, ARRAY_SIZE(wc), wc);
		for (i = 0; i < n; i++) {
			if (wc[i].wr_id & WR_SEND)
				d->sfree[d->nsfree++] = (uint16_t)wc[i].wr_id;
			else
				on_recv(rs, qp, &wc[i]);
		}
	}
	if (!d->count)
		drain_udp(rs);
}

void rsock_dgram_arm(struct rsock *rs)
{
	struct rsock_dgram_qp *qp;

	for (qp = rs->d.qps; qp; qp = qp->next)
		if (!qp->armed)
			qp->armed = !ibv_req_notify_cq(qp->cq, 0);
}

void rsock_dgram_drain(struct rsock *rs)
{
	struct rsock_dgram_qp *qp;
	struct ibv_cq *cq;
	void *context;

	for (qp = rs->d.qps; qp; qp = qp->next)
		while (!ibv_get_cq_event(qp->cc, &cq, &context)) {
			ibv_ack_cq_events(cq, 1);
			qp->armed = false;
		}
	drain_udp(rs);
}

static bool can_recv(struct rsock *rs)
{
	return rs->d.count || rs->closing;
}

bool rsock_dgram_can_send(struct rsock *rs)
{
	return !rs->d.ready || rs->d.nsfree || rs->closing;
}

int rsock_dgram_bind(struct rsock *rs, const union rsw_addr *addr)
{
	union rsw_addr at = outside(rs, addr);
	int err;

	pthread_mutex_lock(&rs->lock);
	err = make_ready(rs);
	if (!err && bind(rs->d.udp, &at.sa, addr_len(&at)))
		err = rsock_errno();
	pthread_mutex_unlock(&rs->lock);
	return err;
}

int rsock_dgram_connect(struct rsock *rs, const union rsw_addr *addr)
{
	union rsw_addr to = outside(rs, addr);
	struct rsock_dest *dest = NULL;
	int err;

	pthread_mutex_lock(&rs->lock);
	err = make_ready(rs);
	/* The queue pair is of the address that connect() chooses, or chose. */
	if (!err && addr->sa.sa_family != AF_UNSPEC)
		err = get_dest(rs, addr, &dest);
	if (!err &&
	    connect(rs->d.udp, &to.sa, dest ? addr_len(&to) : sizeof(to.sa)))
		err = rsock_errno();
	if (!err)
		rs->d.connected = dest;
	pthread_mutex_unlock(&rs->lock);
	return err;
}

static void release(struct rsock *rs, const struct rsock_packet *p)
{
	struct rsock_dgram *d = &rs->d;

	if (p->qp)
		post_recv(rs, p->qp, p->slot);
	else
		d->ufree[d->nufree++] = (uint16_t)p->slot;
}

static size_t scatter(const struct iovec *iov, int iovcnt, const uint8_t *p,
		      size_t len)
{
	size_t done = 0, part;
	int i;

	for (i = 0; i < iovcnt && done < len; i++) {
		part = min_u64(iov[i].iov_len, len - done);
		if (part)
			memcpy(iov[i].iov_base, p + done, part);
		done += part;
	}
	return done;
}

ssize_t rsock_dgram_recv(struct rsock *rs, const struct iovec *iov, int iovcnt,
			 int *flags, union rsw_addr *from)
{
	struct rsock_dgram *d = &rs->d;
	uint64_t until = rs->rcvtimeo_ns ? rsock_now_ns() + rs->rcvtimeo_ns : 0;
	struct rsock_packet *p;
	const uint8_t *data;
	size_t len, done;
	ssize_t n;
	int hdr;

	pthread_mutex_lock(&rs->lock);
	n = make_ready(rs);
	if (!n && !d->count)
		n = rsock_wait(rs, can_recv, rsock_nonblock(rs, *flags), until);
	if (!n && rs->closing)
		n = -EBADF;
	if (n)
		goto out;
	p = &d->packets[d->head];
	data = (p->qp ? p->qp->rbuf : d->ubuf) + p->slot * RSW_DGRAM_MAX;
	hdr = rsw_dgram_decode(data, p->len, from); /* checked when it came */
	*from = outside(rs, from);
	len = p->len - (uint32_t)hdr;
	done = scatter(iov, iovcnt, data + hdr, len);
	n = (ssize_t)(*flags & MSG_TRUNC ? len : done);
	if (!(*flags & MSG_PEEK)) {
		release(rs, p);
		d->head = (d->head + 1) % rs->rq_size;
		d->count--;
	}
	*flags = done < len ? MSG_TRUNC : 0;
out:
	pthread_mutex_unlock(&rs->lock);
	return n;
}

/* Under lock, with a free slot. */
static int send_ud(struct rsock *rs, struct rsock_dest *dest,
		   const struct iovec *iov, int iovcnt, size_t len)
{
	struct rsock_dgram *d = &rs->d;
	uint16_t slot = d->sfree[--d->nsfree];
	uint8_t *p = d->sbuf + slot * RSW_DGRAM_MAX;
	size_t hdr = rsw_dgram_encode(p, &dest->qp->src), done = hdr;
	struct ibv_sge sge = { .addr = (uintptr_t)p,
			       .length = (uint32_t)(hdr + len),
			       .lkey = dest->qp->smr->lkey };
	struct ibv_send_wr wr = { .wr_id = WR_SEND | slot,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_SEND },
			   *bad;
	int i, err;

	for (i = 0; i < iovcnt; i++) {
		if (iov[i].iov_len)
			memcpy(p + done, iov[i].iov_base, iov[i].iov_len);
		done += iov[i].iov_len;
	}
	if (sge.length <= dest->qp->inline_size)
		wr.send_flags = IBV_SEND_INLINE;
	wr.wr.ud.ah = dest->ah;
	wr.wr.ud.remote_qpn = dest->qpn;
	wr.wr.ud.remote_qkey = RDMA_UDP_QKEY;
	err = ibv_post_send(dest->qp->id->qp, &wr, &bad);
	if (err)
		d->sfree[d->nsfree++] = slot;
	return -err;
}

static size_t total(const struct iovec *iov, int iovcnt)
{
	size_t len = 0;
	int i;

	for (i = 0; i < iovcnt; i++) {
		if (iov[i].iov_len > RSW_DGRAM_MAX)
			return RSW_DGRAM_MAX + 1;
		len += iov[i].iov_len;
		if (len > RSW_DGRAM_MAX)
			return len;
	}
	return len;
}

/* Under lock. Looking at the UDP socket may make the table forget a peer. */
static int choose_dest(struct rsock *rs, const union rsw_addr *to,
		       struct rsock_dest **out)
{
	if (to)
		return get_dest(rs, to, out);
	*out = rs->d.connected;
	return *out ? 0 : -EDESTADDRREQ;
}

static bool unsure(const struct rsock_dest *dest)
{
	return !dest->ah || dest->used_ns >= dest->refresh_ns;
}

ssize_t rsock_dgram_send(struct rsock *rs, const struct iovec *iov, int iovcnt,
			 int flags, const union rsw_addr *to)
{
	struct rsock_dgram *d = &rs->d;
	uint64_t until = rs->sndtimeo_ns ? rsock_now_ns() + rs->sndtimeo_ns : 0;
	size_t len = total(iov, iovcnt);
	struct rsock_dest *dest;
	ssize_t n;

	if (flags & MSG_OOB)
		return -EOPNOTSUPP;
	if (len + (rs->family == AF_INET ? RSW_UDP_IP4 : RSW_UDP_IP6) >
	    RSW_DGRAM_MAX)
		return -EMSGSIZE;
	pthread_mutex_lock(&rs->lock);
	n = make_ready(rs);
	if (!n && !d->nsfree)
		n = rsock_wait(rs, rsock_dgram_can_send,
			       rsock_nonblock(rs, flags), until);
	if (!n && rs->closing)
		n = -EBADF;
	if (!n)
		n = choose_dest(rs, to, &dest);
	if (n)
		goto out;
	dest->used_ns = rsock_now_ns();
	if (unsure(dest)) {
		drain_udp(rs);
		n = choose_dest(rs, to, &dest);
		if (n)
			goto out;
	}
	if (unsure(dest) || len + RSW_DGRAM_IP6 > dest->qp->mtu) {
		dest->refresh_ns = rsock_now_ns() + REFRESH_NS;
		n = send_udp(rs, dest, true, iov, iovcnt);
	} else {
		n = send_ud(rs, dest, iov, iovcnt, len);
		if (!n)
			n = (ssize_t)len;
	}
out:
	pthread_mutex_unlock(&rs->lock);
	return n;
}

static bool all_sent(struct rsock *rs)
{
	return rs->d.nsfree == rs->sq_size;
}

void rsock_dgram_close(struct rsock *rs)
{
	pthread_mutex_lock(&rs->lock);
	if (rs->d.ready)
		rsock_wait(rs, all_sent, false, rsock_now_ns() + CLOSE_WAIT_NS);
	pthread_mutex_unlock(&rs->lock);
}

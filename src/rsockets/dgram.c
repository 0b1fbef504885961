/*
 * dgram.c - datagrams over UD queue pairs
 *
 * A datagram rsocket is a UDP socket of the kernel, whose address is the
 * rsocket's, and one UD queue pair per local address it sends from. A peer's
 * queue pair is learnt by sending: a datagram for an unknown peer travels over
 * UDP, behind a header with our QP number; the peer answers with a header that
 * has its own, and from then on datagrams go from QP to QP. Two kinds travel
 * over UDP even so: those that exceed the path's MTU, and one a second, so that
 * a peer that has been restarted is found.
 *
 * Everything is under lock; there is no thread. A call that waits, or sends to
 * a peer that is not known yet, reads the UDP socket.
 */
#include "dgram.h"
#include "base/bytes.h"
#include "base/fd_high.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define UDP_BATCH 32
#define CLOSE_WAIT_NS 1000000000ull
#define WR_SEND (1ull << 32)

/* addr as the UDP socket of rs needs it. */
static union rsw_addr udp_sockaddr(const struct rsock *rs,
				   const union rsw_addr *addr)
{
	union rsw_addr copy = *addr;

	if (rs->family == AF_INET6)
		rsock_map_ip4(&copy);
	return copy;
}

int rsock_dgram_init(struct rsock *rs)
{
	struct rsock_dgram *d = &rs->d;
	struct epoll_event ev = { .events = EPOLLIN };

	d->epfd = -1;
	d->udp = socket(rs->family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (d->udp < 0)
		return rsock_errno();
	if (rs->aside)
		d->udp = fd_high(d->udp);
	d->epfd = fd_high(epoll_create1(EPOLL_CLOEXEC));
	if (d->epfd < 0 || epoll_ctl(d->epfd, EPOLL_CTL_ADD, d->udp, &ev))
		return rsock_errno();
	return 0;
}

/* Allocates buffers at first use, when options are final. */
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
	d->sbuf = calloc(rs->sq_size, RSW_DGRAM_MAX);
	d->sfree = calloc(rs->sq_size, sizeof(*d->sfree));
	d->ubuf = calloc(rs->rq_size, RSW_DGRAM_MAX);
	d->ufree = calloc(rs->rq_size, sizeof(*d->ufree));
	d->packets = calloc(rs->rq_size, sizeof(*d->packets));
	if (rsock_dests_init(rs) || !d->sbuf || !d->sfree || !d->ubuf ||
	    !d->ufree || !d->packets)
		return -ENOMEM; /* the rest is freed with the rsocket */
	for (i = 0; i < rs->sq_size; i++)
		d->sfree[d->nsfree++] = (uint16_t)i;
	for (i = 0; i < rs->rq_size; i++)
		d->ufree[d->nufree++] = (uint16_t)i;
	d->ready = true;
	return 0;
}

void rsock_dgram_fini(struct rsock *rs)
{
	struct rsock_dgram *d = &rs->d;
	struct rsock_dgram_qp *qp;

	rsock_dests_fini(rs);
	while ((qp = d->qps)) {
		d->qps = qp->next;
		rsock_dgram_qp_free(rs, qp);
	}
	if (d->epfd >= 0)
		close(d->epfd);
	if (d->udp >= 0)
		close(d->udp);
	free(d->sbuf);
	free(d->sfree);
	free(d->ubuf);
	free(d->ufree);
	free(d->packets);
}

static ssize_t send_udp(struct rsock *rs, struct rsock_dest *dest, bool data,
			const struct iovec *iov, int iovcnt)
{
	struct rsw_udp udp = { .data = data, .qpn = dest->qp->id->qp->qp_num };
	uint8_t hdr[RSW_UDP_IP6];
	struct iovec all[16] = { { hdr, rsw_udp_encode(hdr, &udp,
						       &dest->qp->src) } };
	union rsw_addr to = udp_sockaddr(rs, &dest->addr);
	struct msghdr msg = { .msg_name = &to,
			      .msg_namelen = rsock_addr_len(&to),
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

/* A connected rsocket receives from its peer alone. */
static bool sender_is_wanted(struct rsock *rs, const union rsw_addr *src)
{
	return !rs->d.connected || rsock_same_addr(&rs->d.connected->addr, src);
}

static bool push_packet(struct rsock *rs, struct rsock_dgram_qp *qp,
			uint32_t slot, uint32_t len)
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
	if (used < 0 || rsock_dest_get(rs, from, &dest))
		return;
	rsock_dest_learn(dest, udp.qpn);
	if (!udp.data)
		return;
	send_udp(rs, dest, false, NULL, 0);
	if (!d->nufree || !sender_is_wanted(rs, from))
		return;
	slot = d->ubuf + d->ufree[d->nufree - 1] * RSW_DGRAM_MAX;
	hdr = rsw_dgram_encode(slot, from);
	len -= (size_t)used;
	memcpy(slot + hdr, p + used, len);
	if (push_packet(rs, NULL, d->ufree[d->nufree - 1],
			(uint32_t)(hdr + len)))
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
	    !sender_is_wanted(rs, &src) || !push_packet(rs, qp, slot, len))
		rsock_dgram_post_recv(rs, qp, slot);
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
	union rsw_addr at = udp_sockaddr(rs, addr);
	int err;

	pthread_mutex_lock(&rs->lock);
	err = make_ready(rs);
	if (!err && bind(rs->d.udp, &at.sa, rsock_addr_len(&at)))
		err = rsock_errno();
	pthread_mutex_unlock(&rs->lock);
	return err;
}

int rsock_dgram_connect(struct rsock *rs, const union rsw_addr *addr)
{
	union rsw_addr to = udp_sockaddr(rs, addr);
	struct rsock_dest *dest = NULL;
	int err;

	pthread_mutex_lock(&rs->lock);
	err = make_ready(rs);
	/* The queue pair has the local address that connect() chooses. */
	if (!err && addr->sa.sa_family != AF_UNSPEC)
		err = rsock_dest_get(rs, addr, &dest);
	if (!err && connect(rs->d.udp, &to.sa,
			    dest ? rsock_addr_len(&to) : sizeof(to.sa)))
		err = rsock_errno();
	if (!err)
		rs->d.connected = dest;
	pthread_mutex_unlock(&rs->lock);
	return err;
}

static void release_packet(struct rsock *rs, const struct rsock_packet *p)
{
	struct rsock_dgram *d = &rs->d;

	if (p->qp)
		rsock_dgram_post_recv(rs, p->qp, p->slot);
	else
		d->ufree[d->nufree++] = (uint16_t)p->slot;
}

static size_t scatter_iov(const struct iovec *iov, int iovcnt, const uint8_t *p,
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
	uint64_t until = rsock_deadline(rs->rcvtimeo_ns);
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
	hdr = rsw_dgram_decode(data, p->len, from); /* checked on arrival */
	*from = udp_sockaddr(rs, from);
	len = p->len - (uint32_t)hdr;
	done = scatter_iov(iov, iovcnt, data + hdr, len);
	n = (ssize_t)(*flags & MSG_TRUNC ? len : done);
	if (!(*flags & MSG_PEEK)) {
		release_packet(rs, p);
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

static size_t iov_total(const struct iovec *iov, int iovcnt)
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

/*
 * Under lock. Reading the UDP socket may displace a peer, so it is looked up
 * again.
 */
static int choose_dest(struct rsock *rs, const union rsw_addr *to,
		       struct rsock_dest **out)
{
	if (to)
		return rsock_dest_get(rs, to, out);
	*out = rs->d.connected;
	return *out ? 0 : -EDESTADDRREQ;
}

static bool dest_is_unsure(const struct rsock_dest *dest)
{
	return !dest->ah || dest->used_ns >= dest->refresh_ns;
}

ssize_t rsock_dgram_send(struct rsock *rs, const struct iovec *iov, int iovcnt,
			 int flags, const union rsw_addr *to)
{
	struct rsock_dgram *d = &rs->d;
	uint64_t until = rsock_deadline(rs->sndtimeo_ns);
	size_t len = iov_total(iov, iovcnt);
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
	if (dest_is_unsure(dest)) {
		drain_udp(rs);
		n = choose_dest(rs, to, &dest);
		if (n)
			goto out;
	}
	if (dest_is_unsure(dest) || len + RSW_DGRAM_IP6 > dest->qp->mtu) {
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

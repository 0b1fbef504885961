/*
 * stream.c - TCP sockets as a link
 */
#include "stream.h"

#include "sock.h"

#include "base/bytes.h"
#include "base/fd_high.h"
#include "base/sys.h"
#include "hooks/pcap.h"

#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/param.h>

#define EVENTS 32 /* of one look */
/* A stream whose owner is called without a look at all of them: how many polls
 * in vain make out a thread that spins, and how often it looks even then. */
#define SPINS 4
#define LOOK 8
#define NAP_NS 20000 /* where all that is to be done waits for others */

/* A peer that does not answer is given up after IDLE + COUNT * INTERVAL
 * seconds, or after TIMEOUT_MS where something was sent. */
#define IDLE_S 15
#define INTERVAL_S 5
#define COUNT 3
#define TIMEOUT_MS 30000
/* How long streams_settle() waits, and between two looks. */
#define SETTLE_NS 5000000000u
#define SETTLE_LOOK_NS 500000u

struct streams {
	struct link link;
	struct pcap *pcap;
	int epfd;
	pthread_mutex_t rx_lock; /* the receive side */
	pthread_mutex_t forks; /* streams_hold() */
	pthread_mutex_t lock; /* of the list; innermost */
	struct stream *open;
	struct stream *_Atomic dead;
	/* Under rx_lock: */
	uint8_t *buffer;
	struct stream
		*last; /* that was alone in the last look that found any, */
	bool again; /* and in the one before */
	unsigned vain; /* polls since something was found */
	unsigned since; /* polls without a look */
};

static struct streams *to_streams(struct link *l)
{
	return (struct streams *)(void *)((char *)l -
					  offsetof(struct streams, link));
}

/* No thread is about to call them: rx_lock is held, or there are no others. */
static void streams_reap(struct streams *s)
{
	struct stream *d, *next;

	if (!atomic_load_explicit(&s->dead, memory_order_relaxed))
		return;
	for (d = atomic_exchange(&s->dead, NULL); d; d = next) {
		next = d->dead;
		if (s->last == d)
			s->last = NULL;
		d->ops->free(d);
	}
}

/* ---- as a link --------------------------------------------------------- */

/* Has the one stream that is in use read, without asking whether it is readable.
 * False: all of them are to be looked at. */
static bool poll_last(struct streams *s, int *done)
{
	struct stream *st = s->last;

	if (!st || !s->again || s->since >= LOOK ||
	    atomic_load_explicit(&st->events, memory_order_relaxed) != EPOLLIN)
		return false;
	*done = st->ops->ready(st, 0, s->buffer);
	if (*done < 0 || (!*done && s->vain < SPINS))
		return false;
	s->since++;
	return true;
}

/* Which of them have something to do? */
static int poll_streams(struct streams *s, int max)
{
	struct epoll_event ev[EVENTS];
	int n, i, r, done = 0, busy = 0;

	s->since = 0;
	n = sys_epoll_wait(s->epfd, ev, MIN(EVENTS, max));
	for (i = 0; i < n; i++) {
		struct stream *st = ev[i].data.ptr;

		r = st->ops->ready(st, ev[i].events, s->buffer);
		if (r > 0)
			done += r;
		else if (r < 0)
			busy++;
	}
	if (n > 0) {
		s->again = n == 1 && s->last == ev[0].data.ptr;
		s->last = n == 1 ? ev[0].data.ptr : NULL;
	}
	/* It is readable until its holder, who may wait for this CPU, has read
	 * it. */
	if (busy && busy == n)
		sys_sleep(NAP_NS);
	return done;
}

static int streams_poll(struct link *l, unsigned budget, link_rx_fn *fn,
			void *arg)
{
	struct streams *s = to_streams(l);
	int done;

	(void)fn;
	(void)arg;
	if (pthread_mutex_trylock(&s->rx_lock))
		return -EBUSY;
	streams_reap(s);
	if (!poll_last(s, &done))
		done = poll_streams(s, (int)budget);
	s->vain = done ? 0 : s->vain + 1;
	pthread_mutex_unlock(&s->rx_lock);
	return MIN(done, (int)budget);
}

static void streams_wait(struct link *l)
{
	struct streams *s = to_streams(l);

	pthread_mutex_lock(&s->rx_lock);
	pthread_mutex_unlock(&s->rx_lock);
}

static int streams_fd(struct link *l)
{
	return to_streams(l)->epfd;
}

static void streams_destroy(struct link *l)
{
	struct streams *s = to_streams(l);

	while (s->open) {
		struct stream *st = s->open;

		stream_close(st, false);
	}
	streams_reap(s);
	sys_close(s->epfd);
	free(s->buffer);
	free(s);
}

/* With streams_hold(): the parent's sockets are closed. */
static void streams_abandon(struct link *l)
{
	struct streams *s = to_streams(l);

	for (struct stream *st = s->open; st; st = st->next)
		sys_close(st->fd);
	sys_close(s->epfd);
}

static const struct link_ops ops = {
	.poll = streams_poll,
	.wait = streams_wait,
	.fd = streams_fd,
	.destroy = streams_destroy,
	.abandon = streams_abandon,
};

struct link *streams_link(struct streams *s)
{
	return &s->link;
}

int streams_create(struct streams **out, struct pcap *pcap)
{
	struct streams *s = calloc(1, sizeof(*s));
	int err;

	if (!s)
		return -ENOMEM;
	s->link.ops = &ops;
	s->pcap = pcap;
	pthread_mutex_init(&s->rx_lock, NULL);
	pthread_mutex_init(&s->forks, NULL);
	pthread_mutex_init(&s->lock, NULL);
	s->buffer = malloc(STREAM_BUFFER);
	s->epfd = s->buffer ? fd_high(epoll_create1(EPOLL_CLOEXEC)) : -1;
	if (s->epfd < 0) {
		err = s->buffer ? -errno : -ENOMEM;
		free(s->buffer);
		free(s);
		return err;
	}
	*out = s;
	return 0;
}

void streams_hold(struct streams *s)
{
	if (s)
		pthread_mutex_lock(&s->forks);
}

void streams_release(struct streams *s)
{
	if (s)
		pthread_mutex_unlock(&s->forks);
}

/* ---- streams ----------------------------------------------------------- */

int stream_open(struct streams *streams, struct stream *s, int fd,
		uint32_t events)
{
	struct epoll_event ev = { .events = events, .data.ptr = s };
	int err;

	s->streams = streams;
	s->fd = fd;
	atomic_store_explicit(&s->events, events, memory_order_relaxed);
	pthread_mutex_lock(&streams->lock);
	s->next = streams->open;
	s->link = &streams->open;
	if (s->next)
		s->next->link = &s->next;
	streams->open = s;
	pthread_mutex_unlock(&streams->lock);
	if (!epoll_ctl(streams->epfd, EPOLL_CTL_ADD, fd, &ev))
		return 0;
	err = -errno;
	pthread_mutex_lock(&streams->lock);
	*s->link = s->next;
	if (s->next)
		s->next->link = s->link;
	pthread_mutex_unlock(&streams->lock);
	s->fd = -1;
	return err;
}

void stream_want(struct stream *s, uint32_t events)
{
	struct epoll_event ev = { .events = events, .data.ptr = s };

	if (s->fd < 0 ||
	    atomic_load_explicit(&s->events, memory_order_relaxed) == events)
		return;
	atomic_store_explicit(&s->events, events, memory_order_relaxed);
	/* Of one that is watched already it fails only without memory. */
	epoll_ctl(s->streams->epfd, EPOLL_CTL_MOD, s->fd, &ev);
}

/* What the kernel is about to send, or what it has got meanwhile. */
static void record_close(struct stream *s, bool reset)
{
	struct tcp_info info = { 0 };
	socklen_t len = sizeof(info), err_len;
	int unread = 0, err = 0;

	getsockopt(s->fd, IPPROTO_TCP, TCP_INFO, &info, &len);
	err_len = sizeof(err);
	getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &err, &err_len);
	if (info.tcpi_state == TCP_CLOSE) {
		if (err == ECONNRESET)
			pcap_tcp_reset(s->record, false);
	} else if (reset || (!ioctl(s->fd, FIONREAD, &unread) && unread)) {
		pcap_tcp_reset(s->record, true);
	} else {
		pcap_tcp_fin(s->record, true);
	}
	pcap_tcp_free(s->record);
	s->record = NULL;
}

void stream_close(struct stream *s, bool reset)
{
	const struct linger now = { .l_onoff = 1 };
	const int fd = s->fd;

	if (fd < 0)
		return;
	if (stream_recorded(s))
		record_close(s, reset);
	streams_hold(s->streams);
	pthread_mutex_lock(&s->streams->lock);
	*s->link = s->next;
	if (s->next)
		s->next->link = s->link;
	s->fd = -1;
	atomic_store_explicit(&s->events, 0, memory_order_relaxed);
	pthread_mutex_unlock(&s->streams->lock);
	if (reset)
		setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
	/* Closing it is not enough if a child has a copy. */
	epoll_ctl(s->streams->epfd, EPOLL_CTL_DEL, fd, NULL);
	sys_close(fd);
	streams_release(s->streams);
}

void stream_finish(const struct stream *s)
{
	if (s->fd < 0)
		return;
	if (stream_recorded(s))
		pcap_tcp_fin(s->record, true);
	syscall(SYS_shutdown, s->fd, SHUT_WR);
}

void stream_give(struct stream *s)
{
	struct streams *all = s->streams;

	s->dead = atomic_load(&all->dead);
	while (!atomic_compare_exchange_weak(&all->dead, &s->dead, s))
		;
}

/* ---- connecting -------------------------------------------------------- */

void stream_begin(struct stream *s, const struct sockaddr_storage *local,
		  const struct sockaddr_storage *peer, uint8_t tos,
		  bool initiator)
{
	struct pcap_tcp_end ours, peers;

	if (!s->streams->pcap)
		return;
	ours.port = sock_gid(local, &ours.addr);
	peers.port = sock_gid(peer, &peers.addr);
	s->record =
		pcap_tcp_begin(s->streams->pcap, &ours, &peers, tos, initiator);
	if (s->record && !initiator)
		pcap_tcp_connected(s->record);
}

int stream_connected(const struct stream *s)
{
	int err = 0;
	socklen_t len = sizeof(err);

	if (getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &err, &len))
		err = errno;
	if (stream_recorded(s)) {
		if (!err)
			pcap_tcp_connected(s->record);
		else if (err == ECONNREFUSED)
			pcap_tcp_reset(s->record, false);
	}
	return -err;
}

/* ---- sockets ----------------------------------------------------------- */

void stream_tune(int fd)
{
	const int one = 1, idle = IDLE_S, interval = INTERVAL_S, count = COUNT;
	const unsigned timeout = TIMEOUT_MS;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
	setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout,
		   sizeof(timeout));
}

int stream_socket(int family)
{
	/* In a program whose sockets are rsockets socket() is another. */
	int fd = (int)syscall(SYS_socket, family,
			      SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC,
			      IPPROTO_TCP);

	if (fd < 0)
		return -errno;
	fd = fd_high(fd);
	stream_tune(fd);
	return fd;
}

uint32_t stream_segment(const struct stream *s)
{
	int mss = 0;
	socklen_t len = sizeof(mss);

	if (getsockopt(s->fd, IPPROTO_TCP, TCP_MAXSEG, &mss, &len) || mss < 0)
		return 0;
	return (uint32_t)mss;
}

bool stream_is_acknowledged(const struct stream *s)
{
	int left = 0;

	return ioctl(s->fd, SIOCOUTQ, &left) || !left;
}

static bool streams_acknowledged(struct streams *s)
{
	bool all = true;

	pthread_mutex_lock(&s->lock);
	for (const struct stream *i = s->open; i && all; i = i->next)
		all = stream_is_acknowledged(i);
	pthread_mutex_unlock(&s->lock);
	return all;
}

void streams_settle(struct streams *s)
{
	const uint64_t until = sys_now_ns() + SETTLE_NS;

	if (!s)
		return;
	while (!streams_acknowledged(s) && sys_now_ns() < until)
		sys_sleep(SETTLE_LOOK_NS);
}

/* What a call has come to: bytes or -errno, in a recording, too. */
static ssize_t came_to(const struct stream *s, bool outbound,
		       const struct iovec *iov, ssize_t r)
{
	if (r < 0)
		r = -errno;
	if (!stream_recorded(s))
		return r;
	if (r > 0)
		pcap_tcp_data(s->record, outbound, iov, (size_t)r);
	else if (!r && !outbound)
		pcap_tcp_fin(s->record, false);
	else if (r == -ECONNRESET)
		pcap_tcp_reset(s->record, false);
	return r;
}

/* One piece takes the kernel fewer instructions than a struct msghdr of one. */
ssize_t stream_send(const struct stream *s, struct iovec *iov, size_t n)
{
	const int flags = MSG_DONTWAIT | MSG_NOSIGNAL;
	const struct msghdr m = { .msg_iov = iov, .msg_iovlen = n };

	return came_to(s, true, iov,
		       n == 1 ? sys_sendto(s->fd, iov->iov_base, iov->iov_len,
					   flags, NULL, 0) :
				sys_sendmsg(s->fd, &m, flags));
}

ssize_t stream_recv(const struct stream *s, struct iovec *iov, size_t n)
{
	struct msghdr m = { .msg_iov = iov, .msg_iovlen = n };

	return came_to(s, false, iov,
		       n == 1 ? sys_recvfrom(s->fd, iov->iov_base, iov->iov_len,
					     MSG_DONTWAIT, NULL, NULL) :
				sys_recvmsg(s->fd, &m, MSG_DONTWAIT));
}

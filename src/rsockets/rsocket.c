/*
 * rsocket.c - the public functions of <rdma/rsocket.h>, and the table behind
 *
 * An rsocket is named by a descriptor of its own: a stream by that of its event
 * channel, a datagram rsocket by its UDP socket. The table from descriptors to
 * rsockets is read without locks: a reader takes a reference and looks again
 * whether the rsocket is still in its place. That needs memory of rsockets that
 * stays what it is when one is gone, so it is kept for the next.
 *
 * The rsockets of a parent are nothing to the child of a fork(): they fail with
 * EIO, and closing them closes the child's descriptors only.
 */
#include "internal.h"
#include "rsockets/wake.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHUNK 1024
#define NCHUNKS 1024

struct chunk {
	_Atomic(struct rsock *) slot[CHUNK];
};

static _Atomic(struct chunk *) table[NCHUNKS];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* of the next two */
static struct rsock *free_list;
static _Atomic unsigned generation;

int rsock_errno(void)
{
	return errno ? -errno : -EIO;
}

static void before_fork(void)
{
	pthread_mutex_lock(&mutex);
}

static void after_fork_parent(void)
{
	pthread_mutex_unlock(&mutex);
}

static void after_fork_child(void)
{
	pthread_mutex_init(&mutex, NULL);
	free_list = NULL;
	generation++;
	rsock_alive_forked();
	rsock_linger_forked();
	rsock_poll_forked();
	rsock_restart_forked();
}

static void init_once(void)
{
	pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

int rsock_thread(void *(*run)(void *), void *arg)
{
	pthread_attr_t attr;
	sigset_t all, old;
	pthread_t thread;
	int err;

	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	/* Signals are the program's. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	err = pthread_create(&thread, &attr, run, arg);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	return -err;
}

static void lock_init(struct rsock *rs)
{
	pthread_mutex_init(&rs->slock, NULL);
	pthread_mutex_init(&rs->rlock, NULL);
	pthread_mutex_init(&rs->lock, NULL);
}

/* What is used before the first and after the last reference. */
static void reset(struct rsock *rs)
{
	size_t first = offsetof(struct rsock, type);

	memset((char *)rs + first, 0, sizeof(*rs) - first);
	lock_init(rs);
}

struct rsock *rsock_alloc(const struct rsock *parent, int type, int family)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	const struct rsock_config *conf = rsock_config();
	struct rsock *rs;

	pthread_once(&once, init_once);
	pthread_mutex_lock(&mutex);
	rs = free_list;
	if (rs)
		free_list = rs->next_free;
	pthread_mutex_unlock(&mutex);
	if (!rs)
		rs = calloc(1, sizeof(*rs));
	if (!rs)
		return NULL;
	reset(rs);
	rs->generation = generation;
	rs->fd = -1;
	rs->type = type;
	rs->family = family;
	rs->keepidle = 7200;
	if (type == SOCK_DGRAM)
		rs->d.udp = rs->d.epfd = -1;
	if (parent) {
		rs->sbuf_size = parent->sbuf_size;
		rs->rbuf_size = parent->rbuf_size;
		rs->sq_size = parent->sq_size;
		rs->rq_size = parent->rq_size;
		rs->inline_size = parent->inline_size;
		rs->iomaps = parent->iomaps;
		rs->linger = parent->linger;
		rs->nodelay = parent->nodelay;
		rs->oobinline = parent->oobinline;
		rs->keepidle = parent->keepidle;
		rs->aside = parent->aside;
		rs->rcvtimeo_ns = parent->rcvtimeo_ns;
		rs->sndtimeo_ns = parent->sndtimeo_ns;
	} else {
		rs->sbuf_size = conf->wmem;
		rs->rbuf_size = conf->mem;
		rs->sq_size = conf->sqsize;
		rs->rq_size = conf->rqsize;
		rs->inline_size = conf->inline_size;
		rs->iomaps = conf->iomaps;
	}
	atomic_store(&rs->ref, 1);
	return rs;
}

void rsock_destroy(struct rsock *rs)
{
	struct rsock_watch *w;

	if (rs->type == SOCK_DGRAM)
		rsock_dgram_fini(rs);
	else
		rsock_stream_fini(rs);
	/* Those that sleep hold references; what is left are RSOCK_WATCHes. */
	while ((w = rs->watchers)) {
		rsock_watch_del(w);
		free(w);
	}
	pthread_mutex_destroy(&rs->slock);
	pthread_mutex_destroy(&rs->rlock);
	pthread_mutex_destroy(&rs->lock);
	atomic_store(&rs->ref, 0);
	pthread_mutex_lock(&mutex);
	rs->next_free = free_list;
	free_list = rs;
	pthread_mutex_unlock(&mutex);
}

void rsock_put(struct rsock *rs)
{
	if (rs->generation == generation && atomic_fetch_sub(&rs->ref, 1) == 1)
		rsock_destroy(rs);
}

static _Atomic(struct rsock *) *find_slot(int fd, bool make)
{
	struct chunk *c, *none = NULL;

	if (fd < 0 || fd >= CHUNK * NCHUNKS)
		return NULL;
	c = atomic_load(&table[fd / CHUNK]);
	if (!c && make) {
		c = calloc(1, sizeof(*c));
		if (!c)
			return NULL;
		if (!atomic_compare_exchange_strong(&table[fd / CHUNK], &none,
						    c)) {
			free(c);
			c = none;
		}
	}
	return c ? &c->slot[fd % CHUNK] : NULL;
}

int rsock_publish(struct rsock *rs, int fd)
{
	_Atomic(struct rsock *) *slot = find_slot(fd, true);

	if (!slot)
		return fd < CHUNK * NCHUNKS ? -ENOMEM : -EMFILE;
	rs->fd = fd;
	atomic_store(slot, rs);
	return fd;
}

struct rsock *rsock_get(int fd)
{
	_Atomic(struct rsock *) *slot = find_slot(fd, false);
	struct rsock *rs;
	unsigned ref;

	for (;;) {
		rs = slot ? atomic_load(slot) : NULL;
		if (!rs || rs->generation != generation) {
			errno = rs ? EIO : EBADF;
			return NULL;
		}
		ref = atomic_load(&rs->ref);
		while (ref &&
		       !atomic_compare_exchange_weak(&rs->ref, &ref, ref + 1))
			;
		if (!ref)
			continue;
		if (atomic_load(slot) == rs)
			return rs;
		rsock_put(rs);
	}
}

/* Gives back what rsock_get() got, and converts 0 or more, or -errno. */
static ssize_t done(struct rsock *rs, ssize_t ret)
{
	rsock_put(rs);
	if (ret >= 0)
		return ret;
	errno = (int)-ret;
	return -1;
}

bool rsock_nonblock(const struct rsock *rs, int flags)
{
	return rs->flags & O_NONBLOCK || flags & MSG_DONTWAIT;
}

static socklen_t addr_size(const union rsw_addr *addr)
{
	return addr->sa.sa_family == AF_INET ? sizeof(addr->sin)
					     : sizeof(addr->sin6);
}

void rsock_copy_addr(struct sockaddr *dst, socklen_t *dst_len,
		     const union rsw_addr *addr)
{
	socklen_t len = addr_size(addr);

	if (!dst || !dst_len)
		return;
	memcpy(dst, addr, *dst_len < len ? *dst_len : len);
	*dst_len = len;
}

void rsock_map_ip4(union rsw_addr *addr)
{
	struct sockaddr_in sin = addr->sin;

	if (addr->sa.sa_family != AF_INET)
		return;
	memset(addr, 0, sizeof(*addr));
	addr->sin6.sin6_family = AF_INET6;
	addr->sin6.sin6_port = sin.sin_port;
	memset(&addr->sin6.sin6_addr.s6_addr[10], 0xff, 2);
	memcpy(&addr->sin6.sin6_addr.s6_addr[12], &sin.sin_addr, 4);
}

void rsock_unmap_ip4(union rsw_addr *addr)
{
	struct sockaddr_in sin = { .sin_family = AF_INET,
				   .sin_port = addr->sin6.sin6_port };

	if (addr->sa.sa_family != AF_INET6 ||
	    !IN6_IS_ADDR_V4MAPPED(&addr->sin6.sin6_addr))
		return;
	memcpy(&sin.sin_addr, &addr->sin6.sin6_addr.s6_addr[12], 4);
	memset(addr, 0, sizeof(*addr));
	addr->sin = sin;
}

int rsock_addr(const struct rsock *rs, const struct sockaddr *sa, socklen_t len,
	       union rsw_addr *addr)
{
	if (!sa)
		return -EFAULT;
	if (len < sizeof(sa->sa_family) || len > sizeof(*addr))
		return -EINVAL;
	memset(addr, 0, sizeof(*addr));
	memcpy(addr, sa, len);
	if (sa->sa_family == AF_UNSPEC && rs->type == SOCK_DGRAM)
		return 0;
	if (sa->sa_family != rs->family)
		return -EAFNOSUPPORT;
	if (rs->family != AF_IB && len < addr_size(addr))
		return -EINVAL;
	rsock_unmap_ip4(addr);
	return 0;
}

int rsocket(int domain, int type, int protocol)
{
	bool aside = type & RSOCK_ASIDE;
	struct rsock *rs;
	int err;

	type &= ~RSOCK_ASIDE;
	if ((domain != AF_INET && domain != AF_INET6 && domain != AF_IB) ||
	    (type != SOCK_STREAM && type != SOCK_DGRAM) ||
	    (type == SOCK_STREAM && protocol && protocol != IPPROTO_TCP) ||
	    (type == SOCK_DGRAM && protocol && protocol != IPPROTO_UDP)) {
		errno = ENOTSUP;
		return -1;
	}
	rs = rsock_alloc(NULL, type, domain);
	if (!rs) {
		errno = ENOMEM;
		return -1;
	}
	rs->aside = aside;
	err = type == SOCK_DGRAM ? rsock_dgram_init(rs)
				 : rsock_stream_init(rs, NULL);
	if (!err)
		err = rsock_publish(rs, type == SOCK_DGRAM ? rs->d.udp
							   : rs->s.channel->fd);
	if (err >= 0)
		return err;
	rsock_destroy(rs);
	errno = -err;
	return -1;
}

int rbind(int socket, const struct sockaddr *addr, socklen_t addrlen)
{
	struct rsock *rs = rsock_get(socket);
	union rsw_addr a;
	int err;

	if (!rs)
		return -1;
	err = rsock_addr(rs, addr, addrlen, &a);
	if (!err)
		err = rs->type == SOCK_DGRAM ? rsock_dgram_bind(rs, &a)
					     : rsock_stream_bind(rs, &a);
	return (int)done(rs, err);
}

int rlisten(int socket, int backlog)
{
	struct rsock *rs = rsock_get(socket);

	if (!rs)
		return -1;
	return (int)done(rs, rs->type == SOCK_DGRAM
				     ? -EOPNOTSUPP
				     : rsock_stream_listen(rs, backlog));
}

int raccept(int socket, struct sockaddr *addr, socklen_t *addrlen)
{
	struct rsock *rs = rsock_get(socket), *new;
	union rsw_addr peer;
	int ret;

	if (!rs)
		return -1;
	ret = rs->type == SOCK_DGRAM ? -EOPNOTSUPP
				     : rsock_stream_accept(rs, &new);
	if (ret < 0)
		return (int)done(rs, ret);
	rsock_stream_name(new, true, &peer);
	ret = rsock_publish(new, new->s.channel->fd);
	if (ret < 0) {
		rsock_destroy(new);
		return (int)done(rs, ret);
	}
	rsock_copy_addr(addr, addrlen, &peer);
	if (rs->keepalive)
		rsock_alive_set(new, true);
	return (int)done(rs, ret);
}

int rconnect(int socket, const struct sockaddr *addr, socklen_t addrlen)
{
	struct rsock *rs = rsock_get(socket);
	union rsw_addr a;
	int err;

	if (!rs)
		return -1;
	err = rsock_addr(rs, addr, addrlen, &a);
	if (!err)
		err = rs->type == SOCK_DGRAM ? rsock_dgram_connect(rs, &a)
					     : rsock_stream_connect(rs, &a);
	return (int)done(rs, err);
}

int rshutdown(int socket, int how)
{
	struct rsock *rs = rsock_get(socket);
	int err;

	if (!rs)
		return -1;
	if (rs->type == SOCK_DGRAM)
		err = shutdown(rs->d.udp, how) ? rsock_errno() : 0;
	else
		err = rsock_stream_shutdown(rs, how);
	return (int)done(rs, err);
}

int rsock_close_fds(const struct rsock *rs)
{
	if (rs->type == SOCK_STREAM && rs->s.cc)
		close(rs->s.cc->fd);
	if (rs->type == SOCK_DGRAM)
		close(rs->d.epfd);
	return close(rs->fd);
}

int rclose(int socket)
{
	_Atomic(struct rsock *) *slot = find_slot(socket, false);
	struct rsock *rs = slot ? atomic_load(slot) : NULL, *me;

	/* The parent's rsocket goes on without us: only our descriptors go. */
	if (rs && rs->generation != generation) {
		atomic_store(slot, NULL);
		return rsock_close_fds(rs);
	}
	rs = me = rsock_get(socket);
	if (!rs)
		return -1;
	/* Of several that close at once, one does. */
	if (!atomic_compare_exchange_strong(slot, &me, NULL))
		return (int)done(rs, -EBADF);
	rsock_alive_set(rs, false);
	if (rs->type == SOCK_DGRAM)
		rsock_dgram_close(rs);
	pthread_mutex_lock(&rs->lock);
	rs->closing = true;
	rsock_wake(rs, -1);
	pthread_mutex_unlock(&rs->lock);
	/* The table's reference; the last one destroys. */
	if (rs->type == SOCK_DGRAM)
		rsock_put(rs);
	else
		rsock_stream_close(rs);
	return (int)done(rs, 0);
}

static ssize_t recv_any(struct rsock *rs, const struct iovec *iov, int iovcnt,
			int *flags, union rsw_addr *from)
{
	ssize_t n;

	if (rs->type == SOCK_DGRAM)
		return rsock_dgram_recv(rs, iov, iovcnt, flags, from);
	n = rsock_stream_recv(rs, iov, iovcnt, *flags);
	*flags = 0;
	return n;
}

ssize_t rrecvfrom(int socket, void *buf, size_t len, int flags,
		  struct sockaddr *src_addr, socklen_t *addrlen)
{
	struct rsock *rs = rsock_get(socket);
	struct iovec iov = { buf, len };
	union rsw_addr from;
	ssize_t n;

	if (!rs)
		return -1;
	n = recv_any(rs, &iov, 1, &flags, &from);
	if (n >= 0 && src_addr &&
	    (rs->type == SOCK_DGRAM || !rsock_stream_name(rs, true, &from)))
		rsock_copy_addr(src_addr, addrlen, &from);
	return done(rs, n);
}

ssize_t rrecv(int socket, void *buf, size_t len, int flags)
{
	return rrecvfrom(socket, buf, len, flags, NULL, NULL);
}

ssize_t rrecvmsg(int socket, struct msghdr *msg, int flags)
{
	struct rsock *rs = rsock_get(socket);
	union rsw_addr from;
	ssize_t n;

	if (!rs)
		return -1;
	if (msg->msg_iovlen > IOV_MAX)
		return done(rs, -EMSGSIZE);
	n = recv_any(rs, msg->msg_iov, (int)msg->msg_iovlen, &flags, &from);
	if (n < 0)
		return done(rs, n);
	if (msg->msg_name && rs->type == SOCK_DGRAM)
		rsock_copy_addr(msg->msg_name, &msg->msg_namelen, &from);
	else
		msg->msg_namelen = 0;
	msg->msg_controllen = 0; /* there is never anything */
	msg->msg_flags = flags;
	return done(rs, n);
}

ssize_t rread(int socket, void *buf, size_t count)
{
	return rrecv(socket, buf, count, 0);
}

ssize_t rreadv(int socket, const struct iovec *iov, int iovcnt)
{
	struct rsock *rs = rsock_get(socket);
	union rsw_addr from;
	int flags = 0;

	if (!rs)
		return -1;
	if (iovcnt < 0 || iovcnt > IOV_MAX)
		return done(rs, -EINVAL);
	return done(rs, recv_any(rs, iov, iovcnt, &flags, &from));
}

static ssize_t send_any(struct rsock *rs, const struct iovec *iov, int iovcnt,
			int flags, const struct sockaddr *to, socklen_t to_len)
{
	union rsw_addr addr;
	int err;

	if (rs->type == SOCK_STREAM)
		return to ? -EISCONN
			  : rsock_stream_send(rs, iov, iovcnt, flags);
	if (!to)
		return rsock_dgram_send(rs, iov, iovcnt, flags, NULL);
	err = rsock_addr(rs, to, to_len, &addr);
	if (!err && addr.sa.sa_family == AF_UNSPEC)
		err = -EAFNOSUPPORT;
	return err ? err : rsock_dgram_send(rs, iov, iovcnt, flags, &addr);
}

ssize_t rsendto(int socket, const void *buf, size_t len, int flags,
		const struct sockaddr *dest_addr, socklen_t addrlen)
{
	struct rsock *rs = rsock_get(socket);
	struct iovec iov = { (void *)(uintptr_t)buf, len };

	if (!rs)
		return -1;
	return done(rs, send_any(rs, &iov, 1, flags, dest_addr, addrlen));
}

ssize_t rsend(int socket, const void *buf, size_t len, int flags)
{
	return rsendto(socket, buf, len, flags, NULL, 0);
}

ssize_t rsendmsg(int socket, const struct msghdr *msg, int flags)
{
	struct rsock *rs = rsock_get(socket);

	if (!rs)
		return -1;
	if (msg->msg_iovlen > IOV_MAX)
		return done(rs, -EMSGSIZE);
	if (msg->msg_control && msg->msg_controllen)
		return done(rs, -ENOTSUP);
	return done(rs, send_any(rs, msg->msg_iov, (int)msg->msg_iovlen, flags,
				 msg->msg_name, msg->msg_namelen));
}

ssize_t rwrite(int socket, const void *buf, size_t count)
{
	return rsend(socket, buf, count, 0);
}

ssize_t rwritev(int socket, const struct iovec *iov, int iovcnt)
{
	struct rsock *rs = rsock_get(socket);

	if (!rs)
		return -1;
	if (iovcnt < 0 || iovcnt > IOV_MAX)
		return done(rs, -EINVAL);
	return done(rs, send_any(rs, iov, iovcnt, 0, NULL, 0));
}

int rpoll(struct pollfd *fds, nfds_t nfds, int timeout)
{
	int err = errno, n = rsock_poll(fds, nfds, timeout);

	/* Some programs print errno because of what revents says. */
	errno = n < 0 ? -n : err;
	return n < 0 ? -1 : n;
}

static bool in_set(int fd, const fd_set *set)
{
	return set && FD_ISSET(fd, set);
}

static int report(int fd, bool ready, fd_set *set)
{
	if (!set || !FD_ISSET(fd, set))
		return 0;
	if (!ready)
		FD_CLR(fd, set);
	return ready;
}

int rselect(int nfds, fd_set *readfds, fd_set *writefds, fd_set *exceptfds,
	    struct timeval *timeout)
{
	/* What select(2) takes each of these for, and nothing else. */
	const short in = POLLIN | POLLRDHUP | POLLHUP | POLLERR;
	const short out = POLLOUT | POLLERR;
	struct pollfd fds[FD_SETSIZE];
	int ms = -1, fd, n = 0, i, ret;
	int64_t t;

	if (nfds < 0 || nfds > FD_SETSIZE) {
		errno = EINVAL;
		return -1;
	}
	if (timeout) {
		if (timeout->tv_sec < 0 || timeout->tv_usec < 0) {
			errno = EINVAL;
			return -1;
		}
		t = timeout->tv_sec > INT_MAX / 1000
			    ? INT_MAX
			    : timeout->tv_sec * 1000 +
				      (timeout->tv_usec + 999) / 1000;
		ms = t > INT_MAX ? INT_MAX : (int)t;
	}
	for (fd = 0; fd < nfds; fd++) {
		fds[n] = (struct pollfd){ .fd = fd };
		if (in_set(fd, readfds))
			fds[n].events |= POLLIN | POLLRDHUP;
		if (in_set(fd, writefds))
			fds[n].events |= POLLOUT;
		if (in_set(fd, exceptfds))
			fds[n].events |= POLLPRI;
		n += !!fds[n].events;
	}
	ret = rpoll(fds, (nfds_t)n, ms);
	if (ret < 0)
		return -1;
	ret = 0;
	for (i = 0; i < n; i++) {
		if (fds[i].revents & POLLNVAL) {
			errno = EBADF;
			return -1;
		}
		ret += report(fds[i].fd, fds[i].revents & in, readfds);
		ret += report(fds[i].fd, fds[i].revents & out, writefds);
		ret += report(fds[i].fd, fds[i].revents & POLLPRI, exceptfds);
	}
	return ret;
}

static int name(int socket, bool peer, struct sockaddr *addr,
		socklen_t *addrlen)
{
	struct rsock *rs = rsock_get(socket);
	union rsw_addr a;
	int err;

	if (!rs)
		return -1;
	if (rs->type == SOCK_STREAM) {
		err = rsock_stream_name(rs, peer, &a);
		if (!err)
			rsock_copy_addr(addr, addrlen, &a);
	} else if (peer) {
		err = getpeername(rs->d.udp, addr, addrlen) ? rsock_errno() : 0;
	} else {
		err = getsockname(rs->d.udp, addr, addrlen) ? rsock_errno() : 0;
	}
	return (int)done(rs, err);
}

int rgetpeername(int socket, struct sockaddr *addr, socklen_t *addrlen)
{
	return name(socket, true, addr, addrlen);
}

int rgetsockname(int socket, struct sockaddr *addr, socklen_t *addrlen)
{
	return name(socket, false, addr, addrlen);
}

int rsetsockopt(int socket, int level, int optname, const void *optval,
		socklen_t optlen)
{
	struct rsock *rs;

	/* The thread's: the rsocket may have gone since it was set. */
	if (level == SOL_RDMA && optname == RSOCK_RESTART &&
	    optlen >= sizeof(int)) {
		rsock_restarts = *(const int *)optval;
		return 0;
	}
	rs = rsock_get(socket);
	if (!rs)
		return -1;
	return (int)done(rs,
			 rsock_setsockopt(rs, level, optname, optval, optlen));
}

int rgetsockopt(int socket, int level, int optname, void *optval,
		socklen_t *optlen)
{
	struct rsock *rs = rsock_get(socket);

	if (!rs)
		return -1;
	return (int)done(rs,
			 rsock_getsockopt(rs, level, optname, optval, optlen));
}

/* The descriptors behind never block: only the rsocket remembers. */
int rfcntl(int socket, int cmd, ...)
{
	struct rsock *rs = rsock_get(socket);
	va_list args;
	int arg, ret;

	if (!rs)
		return -1;
	va_start(args, cmd);
	arg = cmd == F_SETFL || cmd == F_SETFD ? va_arg(args, int) : 0;
	va_end(args);
	switch (cmd) {
	case F_GETFL:
		ret = O_RDWR | rs->flags;
		break;
	case F_SETFL:
		rs->flags = arg & ~O_ACCMODE;
		ret = 0;
		break;
	case F_GETFD:
	case F_SETFD:
		ret = fcntl(rs->fd, cmd, arg);
		if (ret < 0)
			ret = rsock_errno();
		break;
	default:
		ret = -ENOTSUP;
	}
	return (int)done(rs, ret);
}

static struct rsock *get_stream(int socket)
{
	struct rsock *rs = rsock_get(socket);

	if (!rs || rs->type == SOCK_STREAM)
		return rs;
	done(rs, -EOPNOTSUPP);
	return NULL;
}

off_t riomap(int socket, void *buf, size_t len, int prot, int flags,
	     off_t offset)
{
	struct rsock *rs = get_stream(socket);

	(void)flags; /* none are defined */
	return rs ? (off_t)done(rs, rsock_iomap(rs, buf, len, prot, offset))
		  : -1;
}

int riounmap(int socket, void *buf, size_t len)
{
	struct rsock *rs = get_stream(socket);

	return rs ? (int)done(rs, rsock_iounmap(rs, buf, len)) : -1;
}

size_t riowrite(int socket, const void *buf, size_t count, off_t offset,
		int flags)
{
	struct rsock *rs = get_stream(socket);

	if (!rs)
		return (size_t)-1;
	return (size_t)done(rs, rsock_iowrite(rs, buf, count, offset, flags));
}

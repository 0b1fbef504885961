/*
 * rsocket.c - the public functions of <rdma/rsocket.h>
 *
 * Each finds the rsocket behind a descriptor, calls what its type does, and
 * turns -errno into -1 and errno.
 */
#include "rsock_internal.h"
#include "rsockets/wake.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <unistd.h>

/* Drops the reference of rsock_get(), and converts 0 or more, or -errno. */
static ssize_t call_done(struct rsock *rs, ssize_t ret)
{
	rsock_put(rs);
	if (ret >= 0)
		return ret;
	errno = (int)-ret;
	return -1;
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
	err = type == SOCK_DGRAM ? rsock_dgram_init(rs) :
				   rsock_stream_init(rs, NULL);
	if (!err)
		err = rsock_publish(rs, type == SOCK_DGRAM ? rs->d.udp :
							     rs->s.channel->fd);
	if (err >= 0)
		return err;
	rsock_destroy(rs);
	errno = -err;
	return -1;
}

/* What a call with an address does, by the type of the rsocket. */
static int with_addr(int socket, const struct sockaddr *addr, socklen_t len,
		     int (*dgram)(struct rsock *rs, const union rsw_addr *addr),
		     int (*stream)(struct rsock *rs,
				   const union rsw_addr *addr))
{
	struct rsock *rs = rsock_get(socket);
	union rsw_addr a;
	int err;

	if (!rs)
		return -1;
	err = rsock_addr(rs, addr, len, &a);
	if (!err)
		err = rs->type == SOCK_DGRAM ? dgram(rs, &a) : stream(rs, &a);
	return (int)call_done(rs, err);
}

int rbind(int socket, const struct sockaddr *addr, socklen_t addrlen)
{
	return with_addr(socket, addr, addrlen, rsock_dgram_bind,
			 rsock_stream_bind);
}

int rlisten(int socket, int backlog)
{
	struct rsock *rs = rsock_get(socket);

	if (!rs)
		return -1;
	return (int)call_done(rs, rs->type == SOCK_DGRAM ?
					  -EOPNOTSUPP :
					  rsock_stream_listen(rs, backlog));
}

int raccept(int socket, struct sockaddr *addr, socklen_t *addrlen)
{
	struct rsock *rs = rsock_get(socket), *new;
	union rsw_addr peer;
	int ret;

	if (!rs)
		return -1;
	ret = rs->type == SOCK_DGRAM ? -EOPNOTSUPP :
				       rsock_stream_accept(rs, &new);
	if (ret < 0)
		return (int)call_done(rs, ret);
	rsock_stream_name(new, true, &peer);
	ret = rsock_publish(new, new->s.channel->fd);
	if (ret < 0) {
		rsock_destroy(new);
		return (int)call_done(rs, ret);
	}
	rsock_copy_addr(addr, addrlen, &peer);
	if (rs->keepalive)
		rsock_alive_set(new, true);
	return (int)call_done(rs, ret);
}

int rconnect(int socket, const struct sockaddr *addr, socklen_t addrlen)
{
	return with_addr(socket, addr, addrlen, rsock_dgram_connect,
			 rsock_stream_connect);
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
	return (int)call_done(rs, err);
}

int rclose(int socket)
{
	struct rsock *rs = rsock_take_parents(socket);

	/* The parent's rsocket goes on without us: only our descriptors go. */
	if (rs)
		return rsock_close_fds(rs);
	rs = rsock_get(socket);
	if (!rs)
		return -1;
	/* Of several threads that close it at once, one succeeds. */
	if (!rsock_unpublish(rs))
		return (int)call_done(rs, -EBADF);
	rsock_alive_set(rs, false);
	if (rs->type == SOCK_DGRAM)
		rsock_dgram_close(rs);
	pthread_mutex_lock(&rs->lock);
	rs->closing = true;
	rsock_wake(rs, -1);
	pthread_mutex_unlock(&rs->lock);
	/* The table's reference. The last reference destroys the rsocket. */
	if (rs->type == SOCK_DGRAM)
		rsock_put(rs);
	else
		rsock_stream_close(rs);
	return (int)call_done(rs, 0);
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
	return call_done(rs, n);
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
		return call_done(rs, -EMSGSIZE);
	n = recv_any(rs, msg->msg_iov, (int)msg->msg_iovlen, &flags, &from);
	if (n < 0)
		return call_done(rs, n);
	if (msg->msg_name && rs->type == SOCK_DGRAM)
		rsock_copy_addr(msg->msg_name, &msg->msg_namelen, &from);
	else
		msg->msg_namelen = 0;
	msg->msg_controllen = 0; /* never supported */
	msg->msg_flags = flags;
	return call_done(rs, n);
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
		return call_done(rs, -EINVAL);
	return call_done(rs, recv_any(rs, iov, iovcnt, &flags, &from));
}

static ssize_t send_any(struct rsock *rs, const struct iovec *iov, int iovcnt,
			int flags, const struct sockaddr *to, socklen_t to_len)
{
	union rsw_addr addr;
	int err;

	if (rs->type == SOCK_STREAM)
		return to ? -EISCONN :
			    rsock_stream_send(rs, iov, iovcnt, flags);
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
	return call_done(rs, send_any(rs, &iov, 1, flags, dest_addr, addrlen));
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
		return call_done(rs, -EMSGSIZE);
	if (msg->msg_control && msg->msg_controllen)
		return call_done(rs, -ENOTSUP);
	return call_done(rs, send_any(rs, msg->msg_iov, (int)msg->msg_iovlen,
				      flags, msg->msg_name, msg->msg_namelen));
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
		return call_done(rs, -EINVAL);
	return call_done(rs, send_any(rs, iov, iovcnt, 0, NULL, 0));
}

int rpoll(struct pollfd *fds, nfds_t nfds, int timeout)
{
	int err = errno, n = rsock_poll(fds, nfds, timeout);

	/* errno stays as it is: some programs print it because of revents. */
	errno = n < 0 ? -n : err;
	return n < 0 ? -1 : n;
}

static bool in_set(int fd, const fd_set *set)
{
	return set && FD_ISSET(fd, set);
}

static int report_fd(int fd, bool ready, fd_set *set)
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
	/* What select(2) counts as readable and writable, and nothing else. */
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
		t = timeout->tv_sec > INT_MAX / 1000 ?
			    INT_MAX :
			    timeout->tv_sec * 1000 +
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
		ret += report_fd(fds[i].fd, fds[i].revents & in, readfds);
		ret += report_fd(fds[i].fd, fds[i].revents & out, writefds);
		ret += report_fd(fds[i].fd, fds[i].revents & POLLPRI,
				 exceptfds);
	}
	return ret;
}

static int get_name(int socket, bool peer, struct sockaddr *addr,
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
	return (int)call_done(rs, err);
}

int rgetpeername(int socket, struct sockaddr *addr, socklen_t *addrlen)
{
	return get_name(socket, true, addr, addrlen);
}

int rgetsockname(int socket, struct sockaddr *addr, socklen_t *addrlen)
{
	return get_name(socket, false, addr, addrlen);
}

int rsetsockopt(int socket, int level, int optname, const void *optval,
		socklen_t optlen)
{
	struct rsock *rs;

	/* It belongs to the thread: the rsocket may be closed already. */
	if (level == SOL_RDMA && optname == RSOCK_RESTART &&
	    optlen >= sizeof(int)) {
		rsock_restarts = *(const int *)optval;
		return 0;
	}
	rs = rsock_get(socket);
	if (!rs)
		return -1;
	return (int)call_done(
		rs, rsock_setsockopt(rs, level, optname, optval, optlen));
}

int rgetsockopt(int socket, int level, int optname, void *optval,
		socklen_t *optlen)
{
	struct rsock *rs = rsock_get(socket);

	if (!rs)
		return -1;
	return (int)call_done(
		rs, rsock_getsockopt(rs, level, optname, optval, optlen));
}

/* The descriptors behind an rsocket never block: the flag is kept here. */
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
	return (int)call_done(rs, ret);
}

static struct rsock *get_stream(int socket)
{
	struct rsock *rs = rsock_get(socket);

	if (!rs || rs->type == SOCK_STREAM)
		return rs;
	call_done(rs, -EOPNOTSUPP);
	return NULL;
}

off_t riomap(int socket, void *buf, size_t len, int prot, int flags,
	     off_t offset)
{
	struct rsock *rs = get_stream(socket);

	(void)flags; /* none are defined */
	return rs ? (off_t)call_done(rs,
				     rsock_iomap(rs, buf, len, prot, offset)) :
		    -1;
}

int riounmap(int socket, void *buf, size_t len)
{
	struct rsock *rs = get_stream(socket);

	return rs ? (int)call_done(rs, rsock_iounmap(rs, buf, len)) : -1;
}

size_t riowrite(int socket, const void *buf, size_t count, off_t offset,
		int flags)
{
	struct rsock *rs = get_stream(socket);

	if (!rs)
		return (size_t)-1;
	return (size_t)call_done(rs,
				 rsock_iowrite(rs, buf, count, offset, flags));
}

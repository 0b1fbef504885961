/*
 * calls.c - the calls that make, connect, describe and close sockets
 *
 * Each goes to the rsocket if there is one, else to libc.
 */
#include "base/bytes.h"
#include "rsockets/wake.h"
#include "rspreload/rspreload.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <rdma/rsocket.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef CLOSE_RANGE_CLOEXEC
#define CLOSE_RANGE_CLOEXEC 4u
#endif

int rsp_socket(int family, int type, int protocol) RSP_EXPORT(socket);
int rsp_socket(int family, int type, int protocol)
{
	const struct rsp_real *real = rsp_real();
	bool stream = (type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC)) == SOCK_STREAM;
	int fd = real->socket(family, type, protocol), rfd = -1;
	struct rsp_fd *f;

	rsp_forget(fd);
	if (fd < 0 || !rsp_intercept(family, type, protocol))
		return fd;
	rfd = rsp_rsocket(family, stream ? SOCK_STREAM : SOCK_DGRAM);
	if (rfd < 0)
		return fd;
	if (type & SOCK_NONBLOCK)
		rfcntl(rfd, F_SETFL, O_NONBLOCK);
	f = rsp_new(family, stream ? SOCK_STREAM : SOCK_DGRAM, rfd);
	if (!f || rsp_set(fd, f) != fd)
		rclose(rfd);
	return fd;
}

static void fall_back(struct rsp_fd *f, int fd)
{
	pthread_mutex_lock(&f->lock);
	if (f->rfd >= 0)
		rsp_fall_back(f, fd);
	pthread_mutex_unlock(&f->lock);
}

int rsp_bind(int fd, const struct sockaddr *addr, socklen_t len)
	RSP_EXPORT(bind);
int rsp_bind(int fd, const struct sockaddr *addr, socklen_t len)
{
	const struct rsp_real *real = rsp_real();
	struct rsp_fd *f = rsp_find(fd);
	struct sockaddr_storage name;
	socklen_t name_len = sizeof(name);
	int ret;

	if (!f || f->rfd < 0)
		return real->bind(fd, addr, len);
	if (f->type == SOCK_DGRAM) {
		rsp_enter();
		ret = rbind(f->rfd, addr, len);
		rsp_leave();
		return ret;
	}
	/* Shadow and rsocket have the same port, whether chosen or given. */
	ret = real->bind(fd, addr, len);
	if (ret || real->getsockname(fd, (struct sockaddr *)&name, &name_len))
		return ret;
	rsp_enter();
	ret = rbind(f->rfd, (struct sockaddr *)&name, name_len);
	rsp_leave();
	if (ret)
		fall_back(f, fd);
	return 0;
}

int rsp_listen(int fd, int backlog) RSP_EXPORT(listen);
int rsp_listen(int fd, int backlog)
{
	const struct rsp_real *real = rsp_real();
	struct rsp_fd *f = rsp_find(fd);
	struct sockaddr_storage name = { 0 };
	socklen_t len = sizeof(name);
	int ret, err;

	if (!f || f->state != RSP_RSOCK || f->type != SOCK_STREAM)
		return real->listen(fd, backlog);
	/* The rsocket first, so that no client turns to TCP for want of it. It
	 * needs the port that listen() chooses where there is none. */
	if (!real->getsockname(fd, (struct sockaddr *)&name, &len) &&
	    !((struct sockaddr_in *)(void *)&name)->sin_port &&
	    !rsp_bind(fd, (struct sockaddr *)&name, len)) {
		len = sizeof(name);
		real->getsockname(fd, (struct sockaddr *)&name, &len);
	}
	if (f->rfd >= 0) {
		rsp_enter();
		ret = rlisten(f->rfd, backlog);
		rsp_leave();
		if (ret) {
			rsp_say_way("what connects to",
				    (struct sockaddr *)&name, -1, errno);
			fall_back(f, fd);
		} else {
			f->state = RSP_LISTENING;
		}
	}
	ret = real->listen(fd, backlog);
	err = errno;
	if (ret)
		fall_back(f, fd);
	errno = err;
	return ret;
}

/*
 * accept(2), by RDMA alone. The program's descriptor is made first: without
 * one, the peer waits.
 */
/* The peer of an rsocket, or of a socket of the kernel. */
static void say_accepted(int rfd, int fd)
{
	struct sockaddr_storage peer;
	socklen_t len = sizeof(peer);

	if (rfd >= 0 ? !rgetpeername(rfd, (struct sockaddr *)&peer, &len) :
		       !rsp_real()->getpeername(fd, (struct sockaddr *)&peer,
						&len))
		rsp_say_way("the connection from", (struct sockaddr *)&peer,
			    rfd, rfd >= 0 ? 0 : -1);
}

static int accept_rsocket(struct rsp_fd *listener, struct sockaddr *addr,
			  socklen_t *len, int flags)
{
	const struct rsp_real *real = rsp_real();
	int fd = real->socket(listener->family, SOCK_STREAM | flags, 0);
	struct rsp_fd *f;
	int rfd, err;

	if (fd < 0)
		return -1;
	rsp_forget(fd);
	rsp_enter();
	/* Another thread may be faster. */
	rfcntl(listener->rfd, F_SETFL, O_NONBLOCK);
	rfd = raccept(listener->rfd, addr, len);
	rsp_leave();
	err = errno;
	if (rfd < 0)
		goto err_close;
	f = rsp_new(listener->family, SOCK_STREAM, rfd);
	if (f && rsp_set(fd, f) == fd) {
		f->linked = true;
		say_accepted(rfd, -1);
		if (flags & SOCK_NONBLOCK)
			rfcntl(rfd, F_SETFL, O_NONBLOCK);
		return fd;
	}
	rsp_enter();
	rclose(rfd);
	rsp_leave();
	err = ENOMEM;
err_close:
	real->close(fd);
	errno = err;
	return -1;
}

/* When a call of f times out, by the program's option; 0: never. */
static uint64_t time_limit(const struct rsp_fd *f, int option)
{
	struct timeval tv = { 0 };
	socklen_t len = sizeof(tv);

	if (rgetsockopt(f->rfd, SOL_SOCKET, option, &tv, &len) ||
	    (!tv.tv_sec && !tv.tv_usec))
		return 0;
	return rsp_now_ns() + (uint64_t)tv.tv_sec * 1000000000u +
	       (uint64_t)tv.tv_usec * 1000u;
}

/*
 * Waits in a call of f that blocks: signals whose handlers have SA_RESTART do
 * not end it, unless the program has set a limit. Returns as poll().
 */
static int wait_in_call(struct rsp_fd *f, int fd, short events, uint64_t until,
			bool limited)
{
	struct pollfd p = { .fd = fd, .events = events };
	int on = !limited, off = 0, ret;

	rsetsockopt(f->rfd, SOL_RDMA, RSOCK_RESTART, &on, sizeof(on));
	ret = rsp_poll(&p, 1, until);
	rsetsockopt(f->rfd, SOL_RDMA, RSOCK_RESTART, &off, sizeof(off));
	return ret;
}

/* Accepts from the rsocket or from its shadow. */
static int accept_either(struct rsp_fd *f, int fd, struct sockaddr *addr,
			 socklen_t *len, int flags)
{
	const struct rsp_real *real = rsp_real();
	bool nonblock = real->fcntl64(fd, F_GETFL) & O_NONBLOCK;
	uint64_t until = nonblock ? 1 : time_limit(f, SO_RCVTIMEO);
	struct pollfd shadow;
	int ret;

	for (;;) {
		if (wait_in_call(f, fd, POLLIN, until, until) < 0)
			return -1;
		/*
		 * The shadow first: a peer that has turned to TCP may have left
		 * a request at the rsocket that it has not taken back yet.
		 */
		shadow = (struct pollfd){ .fd = fd, .events = POLLIN };
		if (real->poll(&shadow, 1, 0) > 0) {
			/* Blocks only if the connection has gone meanwhile. */
			ret = real->accept4(fd, addr, len, flags);
			rsp_forget(ret);
			if (ret >= 0)
				say_accepted(-1, ret);
			if (ret >= 0 || errno != EAGAIN)
				return ret;
		}
		if (f->rfd >= 0) {
			ret = accept_rsocket(f, addr, len, flags);
			if (ret >= 0 || errno != EAGAIN)
				return ret;
		}
		if (until && rsp_now_ns() >= until) {
			errno = EAGAIN;
			return -1;
		}
	}
}

int rsp_accept4(int fd, struct sockaddr *addr, socklen_t *len, int flags)
	RSP_EXPORT(accept4);
int rsp_accept4(int fd, struct sockaddr *addr, socklen_t *len, int flags)
{
	const struct rsp_real *real = rsp_real();
	struct rsp_fd *f = rsp_find(fd);
	int ret;

	if (f && f->state == RSP_LISTENING)
		return accept_either(f, fd, addr, len, flags);
	if (f)
		rsp_claim(f);
	ret = real->accept4(fd, addr, len, flags);
	rsp_forget(ret);
	return ret;
}

int rsp_accept(int fd, struct sockaddr *addr, socklen_t *len)
	RSP_EXPORT(accept);
int rsp_accept(int fd, struct sockaddr *addr, socklen_t *len)
{
	return rsp_accept4(fd, addr, len, 0);
}

/*
 * rconnect(), which does not block. iWARP's connection leaves from the port that
 * the program has bound, as TCP lets two sockets do that are not the same to their
 * peer.
 */
static int begin_rconnect(struct rsp_fd *f, int fd)
{
	const struct rsp_real *real = rsp_real();
	const int on = 1;
	int was = 1, ret;
	socklen_t len = sizeof(was);

	real->getsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &was, &len);
	if (!was)
		real->setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	rsp_enter();
	rfcntl(f->rfd, F_SETFL, O_NONBLOCK);
	ret = rconnect(f->rfd, (struct sockaddr *)&f->dst, f->dst_len);
	rsp_leave();
	if (!was)
		real->setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &was,
				 sizeof(was));
	return ret;
}

/* Connects by RDMA, or after a time limit by TCP. Returns as connect(2). */
static int connect_stream(struct rsp_fd *f, int fd)
{
	const struct rsp_real *real = rsp_real();
	const struct sockaddr *dst = (struct sockaddr *)&f->dst;
	bool nonblock = real->fcntl64(fd, F_GETFL) & O_NONBLOCK;
	uint64_t until, limit;
	int ret;

	if (rsp_goes_by_tcp(f)) {
		rsp_say_way("the connection to", dst, -1, ETIMEDOUT);
		fall_back(f, fd);
		return real->connect(fd, dst, f->dst_len);
	}
	ret = begin_rconnect(f, fd);
	rsp_set_deadline(f);
	if (!ret) {
		f->state = RSP_RSOCK;
		rsp_say_way("the connection to", dst, f->rfd, 0);
	} else if (errno == EINPROGRESS) {
		f->state = RSP_CONNECTING;
		if (nonblock) {
			errno = EINPROGRESS;
			return -1;
		}
		until = max_u64(f->deadline_ns, f->most_ns) + 1000000000u;
		limit = time_limit(f, SO_SNDTIMEO);
		if (limit && limit < until)
			until = limit;
		if (wait_in_call(f, fd, POLLOUT, until, limit) < 0)
			return -1;
		if (rsp_settle(f, fd) == RSP_CONNECTING) {
			errno = EINPROGRESS;
			return -1;
		}
	} else if (errno == EISCONN) {
		return -1;
	} else {
		rsp_say_way("the connection to", dst, -1, errno);
		fall_back(f, fd);
		return real->connect(fd, dst, f->dst_len);
	}
	if (f->state == RSP_RSOCK) {
		rfcntl(f->rfd, F_SETFL, nonblock ? O_NONBLOCK : 0);
		return 0;
	}
	/* It fell back: this returns the result of the attempt by TCP. */
	ret = real->connect(fd, dst, f->dst_len);
	if (ret && errno == EISCONN)
		ret = 0;
	return ret;
}

int rsp_connect(int fd, const struct sockaddr *addr, socklen_t len)
	RSP_EXPORT(connect);
int rsp_connect(int fd, const struct sockaddr *addr, socklen_t len)
{
	const struct rsp_real *real = rsp_real();
	struct rsp_fd *f = rsp_find(fd);
	enum rsp_use was;
	int ret;

	if (!f || len > sizeof(f->dst) || len < sizeof(addr->sa_family))
		return real->connect(fd, addr, len);
	if (f->state == RSP_RELAYED) {
		errno = EISCONN;
		return -1;
	}
	if (f->rfd < 0)
		return real->connect(fd, addr, len);
	if (f->type == SOCK_DGRAM) {
		rsp_enter();
		ret = rconnect(f->rfd, addr, len);
		rsp_leave();
		return ret;
	}
	if (addr->sa_family == AF_UNSPEC) {
		fall_back(f, fd);
		return real->connect(fd, addr, len);
	}
	switch (rsp_settle(f, fd)) {
	case RSP_CONNECTING:
		errno = EALREADY;
		return -1;
	case RSP_PLAIN:
		return real->connect(fd, addr, len);
	case RSP_LISTENING:
		errno = EISCONN;
		return -1;
	case RSP_RSOCK:
	case RSP_RELAYED:
	case RSP_HEIR:
		break;
	}
	if (f->dst_len) {
		errno = EISCONN;
		return -1;
	}
	/* There is an address, but no connection to share yet. */
	was = atomic_exchange(&f->used, RSP_USED);
	memcpy(&f->dst, addr, len);
	f->dst_len = len;
	ret = connect_stream(f, fd);
	f->used = was;
	return ret;
}

int rsp_shutdown(int fd, int how) RSP_EXPORT(shutdown);
int rsp_shutdown(int fd, int how)
{
	struct rsp_fd *f = rsp_find(fd);
	int ret;

	if (f && f->state == RSP_RSOCK)
		rsp_use(f);
	if (!f || f->state != RSP_RSOCK)
		return rsp_real()->shutdown(fd, how);
	rsp_enter();
	ret = rshutdown(f->rfd, how);
	rsp_leave();
	return ret;
}

int rsp_close(int fd) RSP_EXPORT(close);
int rsp_close(int fd)
{
	rsp_forget(fd);
	return rsp_real()->close(fd);
}

int rsp_close_range(unsigned first, unsigned last, int flags)
	RSP_EXPORT(close_range);
int rsp_close_range(unsigned first, unsigned last, int flags)
{
	const struct rsp_real *real = rsp_real();

	if (!real->close_range) {
		errno = ENOSYS;
		return -1;
	}
	if (first <= last && !((unsigned)flags & CLOSE_RANGE_CLOEXEC))
		rsp_clear_range(first, last);
	return real->close_range(first, last, flags);
}

void rsp_closefrom(int first) RSP_EXPORT(closefrom);
void rsp_closefrom(int first)
{
	const struct rsp_real *real = rsp_real();

	rsp_clear_range(first > 0 ? (unsigned)first : 0, UINT_MAX);
	if (real->closefrom)
		real->closefrom(first);
}

/* Data that stdio has buffered goes to the shadow, like all of stdio's. */
int rsp_fclose(FILE *f) RSP_EXPORT(fclose);
int rsp_fclose(FILE *f)
{
	int fd = fileno(f);

	rsp_forget(fd);
	return rsp_real()->fclose(f);
}

/* new is a copy of old, made by the kernel. */
static int fd_duplicated(int old, int new)
{
	struct rsp_fd *f = rsp_find(old);

	if (new != old)
		rsp_forget(new);
	if (new >= 0 && f)
		rsp_set(new, f);
	return new;
}

int rsp_dup(int fd) RSP_EXPORT(dup);
int rsp_dup(int fd)
{
	return fd_duplicated(fd, rsp_real()->dup(fd));
}

int rsp_dup2(int old, int new) RSP_EXPORT(dup2);
int rsp_dup2(int old, int new)
{
	int ret;

	if (old == new || rsp_real()->fcntl64(old, F_GETFD) < 0)
		return rsp_real()->dup2(old, new);
	rsp_forget(new);
	ret = rsp_real()->dup2(old, new);
	return fd_duplicated(old, ret);
}

int rsp_dup3(int old, int new, int flags) RSP_EXPORT(dup3);
int rsp_dup3(int old, int new, int flags)
{
	int ret;

	if (old == new || rsp_real()->fcntl64(old, F_GETFD) < 0)
		return rsp_real()->dup3(old, new, flags);
	rsp_forget(new);
	ret = rsp_real()->dup3(old, new, flags);
	return fd_duplicated(old, ret);
}

/*
 * libuv closes so, since that is no cancellation point; others copy so. What
 * moves data by syscall(2) is the shadow's. The library's own calls, too, come
 * here, whose descriptors are in no table.
 */
static int do_fcntl(int fd, int cmd, void *arg);
long rsp_syscall(long nr, ...) RSP_EXPORT(syscall);
long rsp_syscall(long nr, ...)
{
	const struct rsp_real *real = rsp_real();
	long a, b, c, d, e, f, ret;
	va_list args;

	va_start(args, nr);
	a = va_arg(args, long);
	b = va_arg(args, long);
	c = va_arg(args, long);
	d = va_arg(args, long);
	e = va_arg(args, long);
	f = va_arg(args, long);
	va_end(args);
	if (rsp_inside())
		return real->syscall(nr, a, b, c, d, e, f);
	switch (nr) {
	case SYS_close:
		rsp_forget((int)a);
		break;
#ifdef SYS_close_range
	case SYS_close_range:
		if ((unsigned)a <= (unsigned)b &&
		    !((unsigned)c & CLOSE_RANGE_CLOEXEC))
			rsp_clear_range((unsigned)a, (unsigned)b);
		break;
#endif
	case SYS_dup:
		ret = real->syscall(nr, a);
		return fd_duplicated((int)a, (int)ret);
#ifdef SYS_dup2
	case SYS_dup2:
		return rsp_dup2((int)a, (int)b);
#endif
	case SYS_dup3:
		return rsp_dup3((int)a, (int)b, (int)c);
	case SYS_fcntl:
		return do_fcntl((int)a, (int)b, (void *)c);
	default:
		break;
	}
	return real->syscall(nr, a, b, c, d, e, f);
}

int rsp_fcntl(int fd, int cmd, ...) RSP_EXPORT(fcntl);
int rsp_fcntl64(int fd, int cmd, ...) RSP_EXPORT(fcntl64);

static int do_fcntl(int fd, int cmd, void *arg)
{
	struct rsp_fd *f = rsp_find(fd);
	int ret = rsp_real()->fcntl64(fd, cmd, arg);

	if (ret < 0 || !f)
		return ret;
	if (cmd == F_DUPFD || cmd == F_DUPFD_CLOEXEC)
		return fd_duplicated(fd, ret);
	/* An rsocket that is connecting stays non-blocking. */
	if (cmd == F_SETFL && f->rfd >= 0 && f->state != RSP_CONNECTING)
		rfcntl(f->rfd, F_SETFL, (int)(intptr_t)arg & ~O_ACCMODE);
	return ret;
}

int rsp_fcntl(int fd, int cmd, ...)
{
	va_list args;
	void *arg;

	va_start(args, cmd);
	arg = va_arg(args, void *);
	va_end(args);
	return do_fcntl(fd, cmd, arg);
}

int rsp_fcntl64(int fd, int cmd, ...)
{
	va_list args;
	void *arg;

	va_start(args, cmd);
	arg = va_arg(args, void *);
	va_end(args);
	return do_fcntl(fd, cmd, arg);
}

/* How many bytes can be read, up to 1 MiB. */
static int readable_bytes(int rfd)
{
	size_t len = 1 << 20;
	void *buf = malloc(len);
	ssize_t n = buf ? rrecv(rfd, buf, len, MSG_PEEK | MSG_DONTWAIT) : 0;

	free(buf);
	return n > 0 ? (int)n : 0;
}

int rsp_ioctl(int fd, unsigned long request, ...) RSP_EXPORT(ioctl);
int rsp_ioctl(int fd, unsigned long request, ...)
{
	struct rsp_fd *f = rsp_find(fd);
	va_list args;
	void *arg;
	int ret;

	va_start(args, request);
	arg = va_arg(args, void *);
	va_end(args);
	if (f && request == FIONREAD && (f = rsp_data(fd))) {
		*(int *)arg = readable_bytes(f->rfd);
		return 0;
	}
	ret = rsp_real()->ioctl(fd, request, arg);
	if (!ret && f && request == FIONBIO && f->rfd >= 0 &&
	    f->state != RSP_CONNECTING)
		rfcntl(f->rfd, F_SETFL, *(int *)arg ? O_NONBLOCK : 0);
	return ret;
}

/*
 * An address that the kernel has given for fd, which is its own unless fd is a
 * relayed connection's. room is that of the program's buffer.
 */
static void relayed_name(int fd, bool peer, struct sockaddr *addr,
			 socklen_t room, socklen_t *len)
{
	struct rsp_names names;
	const struct sockaddr_storage *name = peer ? &names.peer : &names.local;
	socklen_t is;

	if (room < sizeof(addr->sa_family) || addr->sa_family != AF_UNIX ||
	    !rsp_named(fd, &names))
		return;
	is = name->ss_family == AF_INET ? sizeof(struct sockaddr_in) :
					  sizeof(struct sockaddr_in6);
	memcpy(addr, name, room < is ? room : is);
	*len = is;
}

int rsp_getsockname(int fd, struct sockaddr *addr, socklen_t *len)
	RSP_EXPORT(getsockname);
int rsp_getsockname(int fd, struct sockaddr *addr, socklen_t *len)
{
	struct rsp_fd *f = rsp_find(fd);
	const socklen_t room = len ? *len : 0;
	int ret;

	/* A listener and its shadow have the same name. */
	if (f && f->rfd >= 0 && f->state != RSP_LISTENING)
		return rgetsockname(f->rfd, addr, len);
	ret = rsp_real()->getsockname(fd, addr, len);
	if (!ret)
		relayed_name(fd, false, addr, room, len);
	return ret;
}

int rsp_getpeername(int fd, struct sockaddr *addr, socklen_t *len)
	RSP_EXPORT(getpeername);
int rsp_getpeername(int fd, struct sockaddr *addr, socklen_t *len)
{
	struct rsp_fd *f = rsp_find(fd);
	const socklen_t room = len ? *len : 0;
	int ret;

	if (f && f->state == RSP_CONNECTING)
		rsp_settle(f, fd);
	if (f && f->rfd >= 0)
		return rgetpeername(f->rfd, addr, len);
	ret = rsp_real()->getpeername(fd, addr, len);
	if (!ret)
		relayed_name(fd, true, addr, room, len);
	return ret;
}

/*
 * After a call has failed: whether it was for an option of TCP or IP and fd is
 * a relayed connection, where these have no effect.
 */
static bool means_nothing(int fd, int level)
{
	struct rsp_names names;

	return level != SOL_SOCKET &&
	       (errno == EOPNOTSUPP || errno == ENOPROTOOPT) &&
	       rsp_named(fd, &names);
}

static int get_nothing(int level, int name, void *val, socklen_t *len)
{
	memset(val, 0, *len);
	*len = *len < sizeof(int) ? *len : (socklen_t)sizeof(int);
	/* A list, which is empty. Login servers refuse source routes. */
	if (level == IPPROTO_IP && name == IP_OPTIONS)
		*len = 0;
	return 0;
}

/* What a relayed connection answers otherwise than one of TCP. */
static void as_tcp(int fd, int name, void *val, socklen_t *len)
{
	/* A socketpair has those of the process that made it. */
	const struct ucred nobody = { .uid = (uid_t)-1, .gid = (gid_t)-1 };
	struct rsp_names names;
	int number;

	if ((name != SO_DOMAIN && name != SO_PROTOCOL && name != SO_PEERCRED) ||
	    !rsp_named(fd, &names))
		return;
	number = name == SO_DOMAIN ? names.local.ss_family : IPPROTO_TCP;
	/* len is what the kernel has written of the same size. */
	memcpy(val, name == SO_PEERCRED ? (const void *)&nobody : &number,
	       *len);
}

int rsp_getsockopt(int fd, int level, int name, void *val, socklen_t *len)
	RSP_EXPORT(getsockopt);
int rsp_getsockopt(int fd, int level, int name, void *val, socklen_t *len)
{
	struct rsp_fd *f = rsp_find(fd);
	int ret;

	if (f && level == SOL_SOCKET && name == SO_ERROR)
		f = rsp_settle(f, fd) == RSP_RSOCK ? f : NULL;
	/* Options that an rsocket does not know are its shadow's. */
	if (f && f->rfd >= 0 && f->state != RSP_LISTENING &&
	    !rgetsockopt(f->rfd, level, name, val, len))
		return 0;
	ret = rsp_real()->getsockopt(fd, level, name, val, len);
	if (!ret && level == SOL_SOCKET)
		as_tcp(fd, name, val, len);
	if (ret && means_nothing(fd, level))
		return get_nothing(level, name, val, len);
	return ret;
}

int rsp_setsockopt(int fd, int level, int name, const void *val, socklen_t len)
	RSP_EXPORT(setsockopt);
int rsp_setsockopt(int fd, int level, int name, const void *val, socklen_t len)
{
	struct rsp_fd *f = rsp_find(fd);
	int ret;

	if (f && f->rfd >= 0) {
		ret = rsetsockopt(f->rfd, level, name, val, len);
		if (level == SOL_RDMA)
			return ret;
	}
	ret = rsp_real()->setsockopt(fd, level, name, val, len);
	return ret && means_nothing(fd, level) ? 0 : ret;
}

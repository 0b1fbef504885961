/*
 * fork.c - connections of programs that fork
 *
 * A connection of RDMA belongs to the process that made it. With
 * RDMAV_FORK_SAFE=1, on both sides, a connection is made over TCP first, and
 * becomes one of RDMA when its server first reads or writes: it has forked by
 * then. The server listens with RDMA on its port, writes four zero bytes to
 * the TCP connection, and accepts; the client, before it first reads or writes,
 * waits for them and connects. As with rdma-core, whose protocol this is, a
 * server that waits for data with poll() first is not helped.
 *
 * Servers of one port take turns, by a lock on a file: each must get its own
 * client.
 */
#include "rspreload/rspreload.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <rdma/rsocket.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define TURN_MS 10000
#define GREETING 4

bool rsp_fork_mode(void)
{
	const char *value = getenv("RDMAV_FORK_SAFE");

	return value && atoi(value);
}

/* Held until it is closed, or the process ends. */
static int take_turn(in_port_t port)
{
	char path[64];
	struct stat st;
	int fd, ms;

	snprintf(path, sizeof(path), "/tmp/rspreload-%u-%u", (unsigned)getuid(),
		 (unsigned)ntohs(port));
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return -1;
	/* Another user's file is no lock of ours. */
	if (fstat(fd, &st) || st.st_uid != getuid() || !S_ISREG(st.st_mode)) {
		rsp_real()->close(fd);
		return -1;
	}
	for (ms = 0; flock(fd, LOCK_EX | LOCK_NB); ms++) {
		if (errno != EWOULDBLOCK || ms == TURN_MS) {
			rsp_real()->close(fd);
			return -1;
		}
		usleep(1000);
	}
	return fd;
}

static void become(struct rsp_fd *f, int fd, int rfd)
{
	rsp_copy_options(rfd, fd);
	f->rfd = rfd;
	f->linked = true;
	f->state = RSP_RSOCK;
	rsp_real()->shutdown(fd, SHUT_RDWR);
}

/* Under rsp_enter(): an rsocket that listens at that port, or -1. */
static int listen_at(struct sockaddr_storage *name)
{
	struct sockaddr_in *sin = (void *)name;
	struct sockaddr_in6 *sin6 = (void *)name;
	int rfd, on = 1;

	rfd = rsp_rsocket(name->ss_family, SOCK_STREAM);
	if (rfd < 0)
		return -1;
	if (name->ss_family == AF_INET) {
		sin->sin_addr.s_addr = htonl(INADDR_ANY);
	} else {
		sin6->sin6_addr = in6addr_any;
		sin6->sin6_scope_id = 0;
		sin6->sin6_flowinfo = 0;
	}
	rsetsockopt(rfd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (!rbind(rfd, (struct sockaddr *)name, sizeof(*sin6)) &&
	    !rlisten(rfd, 1))
		return rfd;
	rclose(rfd);
	return -1;
}

static int serve(int fd)
{
	const struct rsp_real *real = rsp_real();
	static const char greeting[GREETING];
	struct sockaddr_storage name = { 0 };
	struct timeval tv = { .tv_sec = TURN_MS / 1000 };
	socklen_t len = sizeof(name);
	int lfd, turn, rfd = -1;

	if (real->getsockname(fd, (struct sockaddr *)&name, &len))
		return -1;
	turn = take_turn(((struct sockaddr_in *)(void *)&name)->sin_port);
	if (turn < 0)
		return -1;
	lfd = listen_at(&name);
	if (lfd >= 0) {
		rsetsockopt(lfd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
		if (real->send(fd, greeting, GREETING, MSG_NOSIGNAL) ==
		    GREETING)
			rfd = raccept(lfd, NULL, NULL);
		rclose(lfd);
	}
	real->close(turn);
	return rfd;
}

/* Waits for the greeting, which a server that stays with TCP does not send. */
static int call(int fd)
{
	const struct rsp_real *real = rsp_real();
	char greeting[GREETING], none[GREETING] = { 0 };
	struct pollfd p = { .fd = fd, .events = POLLIN };
	struct sockaddr_storage peer;
	socklen_t len = sizeof(peer);
	int rfd;

	/* A connection that is still being made: until it is. */
	if (real->getpeername(fd, (struct sockaddr *)&peer, &len)) {
		p.events = POLLOUT;
		real->poll(&p, 1, TURN_MS);
		len = sizeof(peer);
		if (real->getpeername(fd, (struct sockaddr *)&peer, &len))
			return -1;
		p.events = POLLIN;
	}
	if (real->poll(&p, 1, TURN_MS) <= 0 ||
	    real->recv(fd, greeting, GREETING, MSG_PEEK | MSG_DONTWAIT) !=
		    GREETING ||
	    memcmp(greeting, none, GREETING))
		return -1;
	/* If RDMA fails now, both sides go on with TCP behind the greeting. */
	real->recv(fd, greeting, GREETING, MSG_DONTWAIT);
	rfd = rsp_rsocket(peer.ss_family, SOCK_STREAM);
	if (rfd < 0 || !rconnect(rfd, (struct sockaddr *)&peer, len))
		return rfd;
	rclose(rfd);
	return -1;
}

void rsp_fork_connect(struct rsp_fd *f, int fd)
{
	int rfd, err = errno;

	pthread_mutex_lock(&f->lock);
	if (f->state == RSP_FORK_ACTIVE || f->state == RSP_FORK_PASSIVE) {
		rsp_enter();
		rfd = f->state == RSP_FORK_ACTIVE ? call(fd) : serve(fd);
		rsp_leave();
		if (rfd >= 0)
			become(f, fd, rfd);
		else
			f->state = RSP_PLAIN;
	}
	pthread_mutex_unlock(&f->lock);
	errno = err;
}

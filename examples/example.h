/*
 * example.h - what the examples need besides RDMA: an error ends the program,
 * and two ends tell each other by TCP what RDMA does not tell them
 */
#pragma once

#include <errno.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#ifndef PORT
#define PORT "18600"
#endif

static inline void __attribute__((noreturn)) die(const char *what, int err)
{
	fprintf(stderr, "%s: %s\n", what, strerror(err));
	exit(1);
}

/* Of verbs that return 0 or an errno, and calls that return -1 and set errno. */
static inline void check(int ret, const char *what)
{
	if (ret)
		die(what, ret > 0 ? ret : errno);
}

/* Of calls that return NULL and set errno. */
static inline void *made(void *p, const char *what)
{
	if (!p)
		die(what, errno);
	return p;
}

/* The first device there is. */
static inline struct ibv_context *open_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *ctx;

	if (!list || !list[0])
		die("no RDMA device (softhca run -- PROGRAM?)", ENODEV);
	ctx = made(ibv_open_device(list[0]), "ibv_open_device");
	ibv_free_device_list(list);
	return ctx;
}

static int other_end = -1; /* the TCP connection */

/* Without a host the server, which waits for its client; else that client. */
static inline int meet(const char *host)
{
	struct addrinfo *at, hints = { .ai_flags = host ? 0 : AI_PASSIVE,
				       .ai_family = AF_INET,
				       .ai_socktype = SOCK_STREAM };
	int err = getaddrinfo(host, PORT, &hints, &at), fd, one = 1;

	if (err) {
		fprintf(stderr, "%s: %s\n", host, gai_strerror(err));
		exit(1);
	}
	fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		die("socket", errno);
	if (host) {
		check(connect(fd, at->ai_addr, at->ai_addrlen), "connect");
	} else {
		int listener = fd;

		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
		check(bind(fd, at->ai_addr, at->ai_addrlen), "bind");
		check(listen(fd, 1), "listen");
		fd = accept(listener, NULL, NULL);
		if (fd < 0)
			die("accept", errno);
		close(listener);
	}
	freeaddrinfo(at);
	return other_end = fd;
}

/* Sends ours and receives theirs. Both ends have the same byte order here. */
static inline void exchange(int fd, const void *ours, void *theirs, size_t len)
{
	if (send(fd, ours, len, MSG_NOSIGNAL) != (ssize_t)len ||
	    recv(fd, theirs, len, MSG_WAITALL) != (ssize_t)len)
		die("the other end has gone", ECONNRESET);
}

/* Both ends have come this far. */
static inline void barrier(int fd)
{
	char ours = 'b', theirs;

	exchange(fd, &ours, &theirs, 1);
}

/* Polls until one completion is there, which has to be a success. None comes if
 * the other program has ended, which only TCP shows; what it sent before that
 * may still be on its way for a moment. */
static inline struct ibv_wc completion(struct ibv_cq *cq)
{
	time_t gone = 0;
	struct ibv_wc wc;
	char c;
	int n;

	while (!(n = ibv_poll_cq(cq, 1, &wc))) {
		if (!gone && other_end >= 0) {
			ssize_t got =
				recv(other_end, &c, 1, MSG_PEEK | MSG_DONTWAIT);

			if (!got || (got < 0 && errno == ECONNRESET))
				gone = time(NULL);
		}
		if (gone && time(NULL) > gone + 1)
			die("the other end has gone", ECONNRESET);
	}
	if (n < 0)
		die("ibv_poll_cq", EIO);
	if (wc.status != IBV_WC_SUCCESS) {
		fprintf(stderr, "work request %llu: %s\n",
			(unsigned long long)wc.wr_id,
			ibv_wc_status_str(wc.status));
		/* The other end may get to know why, before we end. */
		shutdown(other_end, SHUT_WR);
		recv(other_end, &c, 1, MSG_WAITALL);
		exit(1);
	}
	return wc;
}

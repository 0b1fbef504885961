/*
 * reference.c - what the machine does without RDMA, for comparison
 *
 *   reference udp_lat SIZE SECONDS PORT [ADDRESS]   ping-pong, both ends spin
 *   reference udp_wait SIZE SECONDS PORT [ADDRESS]  the same, both ends sleep
 *   reference tcp_lat SIZE SECONDS PORT [ADDRESS]   ping-pong, both ends spin
 *   reference udp_bw SEGMENT SECONDS PORT [ADDRESS] one-way stream, GSO and GRO
 *   reference udp_bw_wait ...                       the same on one processor
 *   reference memcpy SIZE SECONDS
 *
 * Prints microseconds one way (median) and the number of round trips, or bytes
 * per second. Without ADDRESS a test is the server, which prints nothing for a
 * ping-pong, the bytes received per second for udp_bw, and exits one second after
 * the last datagram, or at the end of the TCP connection.
 */
#include "measure.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#ifndef UDP_GRO
#define UDP_GRO 104
#endif
#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif

#define MAX_BATCH 65000u

static int socket_to(int type, const char *host, int port)
{
	struct addrinfo hints = { .ai_socktype = type,
				  .ai_family = host ? AF_UNSPEC : AF_INET6,
				  .ai_flags = host ? 0 : AI_PASSIVE };
	struct addrinfo *ai;
	char service[16];
	int fd;

	snprintf(service, sizeof(service), "%d", port);
	if (getaddrinfo(host, service, &hints, &ai))
		fail("getaddrinfo");
	fd = socket(ai->ai_family, type | SOCK_CLOEXEC, 0);
	if (fd < 0)
		fail("socket");
	if (host ? connect(fd, ai->ai_addr, ai->ai_addrlen) :
		   bind(fd, ai->ai_addr, ai->ai_addrlen))
		fail(host ? "connect" : "bind");
	freeaddrinfo(ai);
	return fd;
}

static int udp_socket(const char *host, int port)
{
	int fd = socket_to(SOCK_DGRAM, host, port), size = 4 << 20;

	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
	setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
	return fd;
}

/* A connection, of which the server waits for one. */
static int tcp_socket(const char *host, int port)
{
	int fd = socket_to(SOCK_STREAM, host, port), on = 1;

	if (!host) {
		int listener = fd;

		if (listen(listener, 1))
			fail("listen");
		fd = accept(listener, NULL, NULL);
		close(listener);
		if (fd < 0)
			fail("accept");
	}
	if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)))
		fail("TCP_NODELAY");
	return fd;
}

/* Receives wait, this long. */
static void wait_at_most(int fd, double seconds)
{
	struct timeval t = { .tv_sec = (time_t)seconds,
			     .tv_usec =
				     (suseconds_t)(seconds * 1e6) % 1000000 };

	if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t)))
		fail("SO_RCVTIMEO");
}

/* The clock is read when there is nothing else to do: it may take a system
 * call. */
static void lat_server(int fd, int flags)
{
	static char buf[65536];
	struct sockaddr_storage from;
	double t = now(), last = t + 10;
	bool busy = false;

	wait_at_most(fd, 0.5);
	while (t < last + 1) {
		socklen_t len = sizeof(from);
		ssize_t n = recvfrom(fd, buf, sizeof(buf), flags,
				     (struct sockaddr *)&from, &len);

		if (n >= 0) {
			sendto(fd, buf, (size_t)n, 0, (struct sockaddr *)&from,
			       len);
			busy = true;
			continue;
		}
		t = now();
		if (busy)
			last = t;
		busy = false;
	}
}

enum { MAX_TRIPS = 1000000 };
static float trips[MAX_TRIPS];

static void print_trips(size_t n)
{
	if (!n)
		exit(1);
	qsort(trips, n, sizeof(trips[0]), compare);
	printf("%.3f %zu\n", (double)trips[n / 2], n);
}

static void lat_client(int fd, int flags, size_t size, double seconds)
{
	static char buf[65536];
	double end, sent, t;
	size_t n = 0;

	/* Until the server answers. */
	for (int i = 0; i < 1000; i++) {
		struct pollfd p = { .fd = fd, .events = POLLIN };

		if (send(fd, buf, size, 0) > 0 && poll(&p, 1, 10) == 1 &&
		    recv(fd, buf, sizeof(buf), MSG_DONTWAIT) > 0)
			break;
	}
	while (recv(fd, buf, sizeof(buf), MSG_DONTWAIT) > 0)
		;
	wait_at_most(fd, 0.1);
	sent = now();
	end = sent + seconds;
	while (sent < end && n < MAX_TRIPS) {
		bool out = send(fd, buf, size, 0) >= 0;

		while (out && recv(fd, buf, sizeof(buf), flags) < 0 &&
		       now() < sent + 0.1)
			;
		t = now();
		if (out)
			trips[n++] = (float)((t - sent) / 2 * 1e6);
		sent = t;
	}
	print_trips(n);
}

/* All bytes of a message; false: the peer has ended. */
static bool tcp_take(int fd, char *buf, size_t size)
{
	while (size) {
		ssize_t n = recv(fd, buf, size, MSG_DONTWAIT);

		if (n > 0) {
			buf += n;
			size -= (size_t)n;
		} else if (!n || errno != EAGAIN) {
			return false;
		}
	}
	return true;
}

static void tcp_lat_server(int fd, size_t size)
{
	static char buf[65536];

	while (tcp_take(fd, buf, size))
		if (send(fd, buf, size, MSG_NOSIGNAL) != (ssize_t)size)
			fail("send");
}

static void tcp_lat_client(int fd, size_t size, double seconds)
{
	static char buf[65536];
	double sent = now(), end = sent + seconds, t;
	size_t n = 0;

	while (sent < end && n < MAX_TRIPS) {
		if (send(fd, buf, size, 0) != (ssize_t)size ||
		    !tcp_take(fd, buf, size))
			fail("the server");
		t = now();
		trips[n++] = (float)((t - sent) / 2 * 1e6);
		sent = t;
	}
	print_trips(n);
}

static void bw_server(int fd, int timeout_ms)
{
	static char buf[65536];
	double first = 0, last = now() + 10, bytes = 0;
	int on = 1;

	setsockopt(fd, IPPROTO_UDP, UDP_GRO, &on, sizeof(on));
	for (;;) {
		struct pollfd p = { .fd = fd, .events = POLLIN };
		ssize_t n = recv(fd, buf, sizeof(buf), MSG_DONTWAIT);

		if (n < 0) {
			if (now() > last + 0.5)
				break;
			poll(&p, 1, timeout_ms);
			continue;
		}
		last = now();
		if (first <= 0)
			first = last;
		bytes += (double)n;
	}
	printf("%.0f\n", last > first ? bytes / (last - first) : 0);
}

static void bw_client(int fd, bool yields, uint32_t segment, double seconds)
{
	static char buf[65536];
	uint32_t batch = MAX_BATCH / segment;
	double end = now() + seconds;
	char control[CMSG_SPACE(sizeof(uint16_t))] = { 0 };
	struct iovec iov = { buf, 0 };
	struct msghdr msg = { .msg_iov = &iov,
			      .msg_iovlen = 1,
			      .msg_control = control,
			      .msg_controllen = sizeof(control) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
	uint16_t gso = (uint16_t)segment;

	iov.iov_len = (size_t)segment * (batch > 64 ? 64 : batch);
	c->cmsg_level = IPPROTO_UDP;
	c->cmsg_type = UDP_SEGMENT;
	c->cmsg_len = CMSG_LEN(sizeof(gso));
	memcpy(CMSG_DATA(c), &gso, sizeof(gso));
	while (now() < end) {
		if (sendmsg(fd, &msg, 0) < 0 && errno != EAGAIN &&
		    errno != ENOBUFS && errno != ECONNREFUSED)
			fail("sendmsg");
		if (yields)
			sched_yield();
	}
}

static void copy(size_t size, double seconds)
{
	size_t area = size < 1u << 20 ? 1u << 20 : size;
	char *from = aligned_alloc(4096, area), *to = aligned_alloc(4096, area);
	double start = now(), t = start, bytes = 0;

	if (!from || !to)
		fail("memory");
	memset(from, 1, area);
	memset(to, 1, area);
	while (t - start < seconds) {
		/* volatile: the compiler would see that nobody reads it */
		for (int k = 0; k < 64; k++) {
			memcpy(to, from, size);
			__asm__ volatile("" ::"r"(to) : "memory");
		}
		bytes += 64.0 * (double)size;
		t = now();
	}
	printf("%.0f\n", bytes / (t - start));
	free(from);
	free(to);
}

int main(int argc, char **argv)
{
	const char *host = argc > 5 ? argv[5] : NULL;
	uint32_t size;
	double seconds;
	int fd;

	if (argc < 4) {
		fputs("see the head of reference.c\n", stderr);
		return 2;
	}
	size = (uint32_t)atol(argv[2]);
	seconds = atof(argv[3]);
	if (!strcmp(argv[1], "memcpy")) {
		copy(size, seconds);
		return 0;
	}
	if (argc < 5 || !size || size > MAX_BATCH)
		return 2;
	if (!strcmp(argv[1], "tcp_lat")) {
		fd = tcp_socket(host, atoi(argv[4]));
		host ? tcp_lat_client(fd, size, seconds) :
		       tcp_lat_server(fd, size);
		close(fd);
		return 0;
	}
	fd = udp_socket(host, atoi(argv[4]));
	if (!strncmp(argv[1], "udp_bw", 6)) {
		bool waits = !strcmp(argv[1], "udp_bw_wait");

		host ? bw_client(fd, waits, size, seconds) :
		       bw_server(fd, waits ? 100 : 0);
	} else {
		int flags = strcmp(argv[1], "udp_wait") ? MSG_DONTWAIT : 0;

		host ? lat_client(fd, flags, size, seconds) :
		       lat_server(fd, flags);
	}
	close(fd);
	return 0;
}

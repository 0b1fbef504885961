/*
 * reference.c - what the machine does without RDMA, for comparison
 *
 *   reference udp_lat SIZE SECONDS PORT [ADDRESS]   ping-pong, both ends spin
 *   reference udp_wait SIZE SECONDS PORT [ADDRESS]  the same, both ends sleep
 *   reference udp_wire SIZE SECONDS PORT ADDRESS [serve]
 *                                                   the first, by the system
 *                                                   calls of our wire
 *   reference udp_wire_ack ...                      the same, and a second datagram
 *                                                   behind each message
 *   reference udp_wire_wait ...                     the same, both ends sleep
 *   reference tcp_lat SIZE SECONDS PORT [ADDRESS]   ping-pong, both ends spin
 *   reference udp_bw SEGMENT SECONDS PORT [ADDRESS] one-way stream, GSO and GRO
 *   reference udp_bw_wait ...                       the same on one processor
 *   reference udp_bw_crc ...                        both ends copy each segment once
 *                                                   more, and compute its CRC
 *   reference memcpy SIZE SECONDS
 *
 * Prints microseconds one way (median) and the number of round trips, or bytes
 * per second. Without ADDRESS (or with serve) a test is the server, which prints nothing
 * for a ping-pong, the bytes received per second for udp_bw, and exits one second after
 * the last datagram, or at the end of the TCP connection.
 */
#include "measure.h"

#include "wire/crc.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
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
#include <sys/epoll.h>
#include <sys/eventfd.h>
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

/* An end of a ping-pong of datagrams. */
struct end {
	int fd; /* where they come in */
	int flags; /* of recvfrom(2) there */
	size_t size;
	bool answers; /* whoever has sent last */
	bool (*say)(struct end *e); /* false: it could not be sent */
	bool (*hear)(struct end *e); /* false: nothing has come */
	struct sockaddr_in6 from;
	socklen_t from_len;
	struct wire *wire;
};

static char in[65536], out[65536];

static bool udp_say(struct end *e)
{
	return sendto(e->fd, out, e->size, 0,
		      e->answers ? (struct sockaddr *)&e->from : NULL,
		      e->answers ? e->from_len : 0) >= 0;
}

static bool udp_hear(struct end *e)
{
	e->from_len = sizeof(e->from);
	return recvfrom(e->fd, in, sizeof(in), e->flags,
			e->answers ? (struct sockaddr *)&e->from : NULL,
			e->answers ? &e->from_len : NULL) >= 0;
}

/* The clock is read when there is nothing else to do: it may take a system
 * call. */
static void lat_server(struct end *e)
{
	double t = now(), last = t + 10;
	bool busy = false;

	wait_at_most(e->fd, 0.5);
	while (t < last + 1) {
		if (e->hear(e)) {
			e->say(e);
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

static void lat_client(struct end *e, double seconds)
{
	double end, sent, t;
	size_t n = 0;

	/* Until the server answers. */
	wait_at_most(e->fd, 0.01);
	for (int i = 0; i < 1000; i++) {
		end = now() + 0.01;
		e->say(e);
		while (!e->hear(e) && now() < end)
			;
		if (now() < end)
			break;
	}
	/* What else it has answered. */
	while (e->hear(e))
		;
	wait_at_most(e->fd, 0.1);
	sent = now();
	end = sent + seconds;
	while (sent < end && n < MAX_TRIPS) {
		bool gone = e->say(e);

		while (gone && !e->hear(e) && now() < sent + 0.1)
			;
		t = now();
		if (gone)
			trips[n++] = (float)((t - sent) / 2 * 1e6);
		sent = t;
	}
	print_trips(n);
}

/*
 * The system calls that a message takes on our wire, and nothing but them: the
 * same kinds of socket, with the same options, the same messages to the kernel
 * and lengths, and of the looks that find nothing as many that ask epoll. Nothing
 * is computed, nor looked at.
 */
#define WIRE_HEADERS 16 /* BTH, ICRC */
#define WIRE_ACK 20
#define WIRE_POLLS 32 /* of which one asks epoll */

struct wire {
	bool acks; /* a second segment follows the message */
	bool waits;
	int out, epfd, event;
	unsigned polls;
	struct in_addr own;
	struct sockaddr_in to;
};

static bool wire_say(struct end *e)
{
	const struct wire *w = e->wire;
	const uint16_t segment = (uint16_t)(e->size + WIRE_HEADERS);
	_Alignas(struct cmsghdr) char
		control[CMSG_SPACE(sizeof(struct in_pktinfo)) +
			CMSG_SPACE(sizeof(segment))] = { 0 };
	struct iovec iov = { out, segment + (w->acks ? WIRE_ACK : 0u) };
	struct msghdr m = { .msg_name = (void *)&w->to,
			    .msg_namelen = sizeof(w->to),
			    .msg_iov = &iov,
			    .msg_iovlen = 1,
			    .msg_control = control,
			    .msg_controllen = sizeof(control) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	const struct in_pktinfo pi = { .ipi_spec_dst = w->own };

	c->cmsg_level = IPPROTO_IP;
	c->cmsg_type = IP_PKTINFO;
	c->cmsg_len = CMSG_LEN(sizeof(pi));
	memcpy(CMSG_DATA(c), &pi, sizeof(pi));
	if (w->acks) {
		c = CMSG_NXTHDR(&m, c);
		c->cmsg_level = IPPROTO_UDP;
		c->cmsg_type = UDP_SEGMENT;
		c->cmsg_len = CMSG_LEN(sizeof(segment));
		memcpy(CMSG_DATA(c), &segment, sizeof(segment));
	} else {
		m.msg_controllen = CMSG_SPACE(sizeof(pi));
	}
	return sendmsg(w->out, &m, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
}

/* As ibv_get_cq_event(): whether the channel's descriptor blocks, and then a
 * sleep on it, the sockets and what else may bring packets. */
static void wire_wait(const struct end *e)
{
	const struct wire *w = e->wire;
	struct pollfd p[] = { { .fd = w->event, .events = POLLIN },
			      { .fd = e->fd, .events = POLLIN },
			      { .fd = w->epfd, .events = POLLIN } };
	const struct timespec most = { .tv_nsec = 100000000 };

	if (fcntl(w->event, F_GETFL) & O_NONBLOCK)
		fail("a descriptor that blocks");
	ppoll(p, 3, &most, NULL);
}

/* Each message says at which port its sender receives. */
static bool wire_hear(struct end *e)
{
	struct wire *w = e->wire;
	_Alignas(struct cmsghdr) char control[256];
	struct sockaddr_storage from;
	struct iovec iov = { in, sizeof(in) };
	struct msghdr m = { .msg_name = &from,
			    .msg_namelen = sizeof(from),
			    .msg_iov = &iov,
			    .msg_iovlen = 1,
			    .msg_control = control,
			    .msg_controllen = sizeof(control) };
	struct epoll_event ev;

	if (w->waits)
		wire_wait(e);
	else if (++w->polls % WIRE_POLLS == 0 &&
		 !epoll_wait(w->epfd, &ev, 1, 0))
		return false;
	if (recvmsg(e->fd, &m, MSG_DONTWAIT) < 0)
		return false;
	if (e->answers) {
		w->to = *(struct sockaddr_in *)(void *)&from;
		memcpy(&w->to.sin_port, in, sizeof(w->to.sin_port));
	}
	return true;
}

static void option(int fd, int level, int name, int value)
{
	setsockopt(fd, level, name, &value, sizeof(value));
}

static int wire_socket(struct in_addr own, int port)
{
	struct sockaddr_in at = { .sin_family = AF_INET,
				  .sin_addr = own,
				  .sin_port = htons((uint16_t)port) };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		fail("socket");
	option(fd, SOL_SOCKET, SO_REUSEPORT, 1);
	option(fd, SOL_SOCKET, SO_RCVBUF, 4 << 20);
	option(fd, SOL_SOCKET, SO_SNDBUF, 4 << 20);
	if (bind(fd, (struct sockaddr *)&at, sizeof(at)))
		fail("bind");
	return fd;
}

/* Which address of ours leads there; of the server it is its own. */
static struct in_addr own_address(struct sockaddr_in to)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	socklen_t len = sizeof(to);

	if (fd < 0 || connect(fd, (struct sockaddr *)&to, len) ||
	    getsockname(fd, (struct sockaddr *)&to, &len))
		fail("the way there");
	close(fd);
	return to.sin_addr;
}

static void wire_open(struct end *e, struct wire *w, const char *address,
		      int port)
{
	/* Steering: to the first socket, as of a process that is alone. */
	struct sock_filter first = BPF_STMT(BPF_RET | BPF_K, 0);
	struct sock_fprog steer = { 1, &first };
	struct epoll_event ev = { .events = EPOLLIN };
	struct sockaddr_in at;
	socklen_t len = sizeof(at);

	w->to = (struct sockaddr_in){ .sin_family = AF_INET,
				      .sin_port = htons((uint16_t)port) };
	if (inet_pton(AF_INET, address, &w->to.sin_addr) != 1)
		fail(address);
	w->own = own_address(w->to);
	w->out = wire_socket((struct in_addr){ 0 }, 0);
	option(w->out, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO);
	e->fd = wire_socket(w->own, e->answers ? port : 0);
	option(e->fd, SOL_SOCKET, SO_RXQ_OVFL, 1);
	option(e->fd, IPPROTO_UDP, UDP_GRO, 1);
	option(e->fd, IPPROTO_IP, IP_RECVTTL, 1);
	option(e->fd, IPPROTO_IP, IP_RECVTOS, 1);
	setsockopt(e->fd, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &steer,
		   sizeof(steer));
	w->epfd = epoll_create1(EPOLL_CLOEXEC);
	w->event = eventfd(0, EFD_CLOEXEC);
	if (w->event < 0 || w->epfd < 0 ||
	    epoll_ctl(w->epfd, EPOLL_CTL_ADD, e->fd, &ev))
		fail("epoll");
	if (getsockname(e->fd, (struct sockaddr *)&at, &len))
		fail("getsockname");
	memcpy(out, &at.sin_port, sizeof(at.sin_port));
	e->wire = w;
	e->say = wire_say;
	e->hear = wire_hear;
}

/* waits, acks: of the kind. */
static void lat(const char *kind, size_t size, double seconds, int port,
		const char *host, bool serve)
{
	struct end e = { .size = size,
			 .answers = serve || !host,
			 .flags = strcmp(kind, "udp_wait") ? MSG_DONTWAIT : 0,
			 .say = udp_say,
			 .hear = udp_hear };
	struct wire w = { .acks = strcmp(kind, "udp_wire") != 0,
			  .waits = !strcmp(kind, "udp_wire_wait") };

	if (!strncmp(kind, "udp_wire", 8))
		wire_open(&e, &w, host, port);
	else
		e.fd = udp_socket(host, port);
	if (e.answers)
		lat_server(&e);
	else
		lat_client(&e, seconds);
	close(e.fd);
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

/* What is done with the payload beside the kernel's copies. */
static void copy_and_sum(char *to, const char *from, size_t len,
			 uint32_t segment)
{
	for (size_t at = 0; at < len; at += segment) {
		const size_t n = len - at < segment ? len - at : segment;

		memcpy(to + at, from + at, n);
		crc32_gzip_refl(0, (uint8_t *)to + at, n);
		crc_done(n);
	}
}

static void bw_server(int fd, int timeout_ms, uint32_t summed)
{
	static char buf[65536], copy[65536];
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
		if (summed)
			copy_and_sum(copy, buf, (size_t)n, summed);
		bytes += (double)n;
	}
	printf("%.0f\n", last > first ? bytes / (last - first) : 0);
}

static void bw_client(int fd, const char *kind, uint32_t segment,
		      double seconds)
{
	static char buf[65536], from[65536];
	const bool yields = !strcmp(kind, "udp_bw_wait");
	const bool summed = !strcmp(kind, "udp_bw_crc");
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
		if (summed)
			copy_and_sum(buf, from, iov.iov_len, segment);
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
	if (strncmp(argv[1], "udp_bw", 6)) {
		lat(argv[1], size, seconds, atoi(argv[4]), host, argc > 6);
		return 0;
	}
	fd = udp_socket(host, atoi(argv[4]));
	if (host)
		bw_client(fd, argv[1], size, seconds);
	else
		bw_server(fd, strcmp(argv[1], "udp_bw_wait") ? 0 : 100,
			  strcmp(argv[1], "udp_bw_crc") ? 0 : size);
	close(fd);
	return 0;
}

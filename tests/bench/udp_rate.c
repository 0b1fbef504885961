/*
 * udp_rate.c - how fast the UDP link alone is between two processes
 *
 *	udp_rate [-w] [-1] [-s bytes] [-t seconds] [-6]
 *
 * Measures a one-way stream of packets with the given payload, as fast as they
 * are accepted; then a ping-pong of small packets, both ends polling; then the
 * same ping-pong over plain sockets, for comparison. -w: port 4791 with ICRC, as
 * between hosts, instead of the private port. -1: one process sends to itself;
 * reports CPU time of sending and receiving together, which does not depend on
 * the load of the machine.
 */
#include "base/bytes.h"
#include "link/udp.h"
#include "os/config.h"
#include "registry/registry.h"

#include <arpa/inet.h>
#include <err.h>
#include <getopt.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct end {
	struct registry *r;
	struct udp *u;
	uint32_t qpn;
};

static struct {
	_Atomic uint32_t qpn[2];
	_Atomic uint64_t pkts, bytes;
	_Atomic bool stop, pong;
	_Atomic uint16_t port;
} * shared;

static struct roce_path path;
static struct roce_batch batch;
static uint8_t data[ROCE_BATCH][ROCE_MTU_MAX];

static void start(struct end *e, bool wire, int i)
{
	struct udp_config cfg = { .wire = wire };
	const char *why = "";
	int q;

	if (registry_join(&e->r, NULL, &why))
		errx(1, "%s", why);
	if (udp_create(&e->u, &cfg, e->r))
		errx(1, "udp_create");
	if (udp_bind(e->u, &path.sgid, 0) || *udp_why(e->u))
		errx(1, "%s", udp_why(e->u));
	q = registry_lease(e->r);
	if (q < 0)
		errx(1, "no QPNs");
	e->qpn = (uint32_t)q;
	if (i >= 0)
		atomic_store(&shared->qpn[i], e->qpn);
	while (i >= 0 && !atomic_load(&shared->qpn[!i]))
		usleep(1000);
}

static void fill(uint32_t qpn, size_t n, size_t payload)
{
	batch.n = batch.data.n = 0;
	for (size_t i = 0; i < n; i++) {
		struct roce_pkt *p = &batch.pkt[batch.n++];
		struct roce_hdr h = { .opcode = ROCE_RC | ROCE_SEND_MIDDLE,
				      .dest_qpn = qpn,
				      .psn = (uint32_t)i };

		*p = (struct roce_pkt){ .h = h,
					.path = &path,
					.iov = (uint32_t)batch.data.n,
					.niov = 1,
					.payload = (uint32_t)payload };
		batch.data.iov[batch.data.n++] =
			(struct iovec){ data[i], payload };
	}
}

static uint8_t sink[1 << 20];
static size_t sunk;
static uint64_t count, bytes;

/* A receiver copies the payload to where it belongs. */
static void rx(void *arg, const struct roce_rx *pkt)
{
	(void)arg;
	count++;
	bytes += pkt->len;
	if (sunk + pkt->len > sizeof(sink))
		sunk = 0;
	memcpy(sink + sunk, pkt->payload, pkt->len);
	sunk += pkt->len;
}

static void receive(bool wire)
{
	struct end e;
	int err;

	start(&e, wire, 1);
	fill(shared->qpn[0], 1, 64);
	while (!atomic_load_explicit(&shared->stop, memory_order_relaxed)) {
		uint64_t before = count;

		if (udp_poll(e.u, 64, rx, NULL) <= 0)
			continue;
		if (atomic_load_explicit(&shared->pong, memory_order_relaxed)) {
			while (before++ < count)
				udp_send(e.u, &batch, &err);
		} else {
			atomic_store_explicit(&shared->pkts, count,
					      memory_order_relaxed);
			atomic_store_explicit(&shared->bytes, bytes,
					      memory_order_relaxed);
		}
	}
	printf("  receiver: overflow %llu, bad %llu\n",
	       (unsigned long long)udp_stats(e.u)->rx_overflow,
	       (unsigned long long)(udp_stats(e.u)->rx_bad_icrc +
				    udp_stats(e.u)->rx_malformed));
	udp_destroy(e.u);
	registry_leave(e.r);
}

static void ping_pong(struct end *e, double seconds)
{
	uint64_t begin = clock_ns(), now = begin, lost = 0, n = 0, sent;
	int err;

	while ((double)(now - begin) < seconds * 1e9) {
		uint64_t before = count;

		udp_send(e->u, &batch, &err);
		sent = clock_ns();
		while (count == before && clock_ns() - sent < 10000000)
			udp_poll(e->u, 1, rx, NULL);
		lost += count == before;
		n++;
		now = clock_ns();
	}
	printf("ping-pong: %.2f us one way, %llu lost\n",
	       (double)(now - begin) / (double)n / 2e3,
	       (unsigned long long)lost);
}

static int plain(uint16_t port)
{
	struct sockaddr_in sin = { .sin_family = AF_INET,
				   .sin_port = htons(port),
				   .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0 || bind(fd, (struct sockaddr *)&sin, sizeof(sin)))
		err(1, "socket");
	return fd;
}

static void plain_ping_pong(double seconds)
{
	struct sockaddr_in sin = { .sin_family = AF_INET };
	socklen_t len = sizeof(sin);
	uint64_t begin, now, n = 0;
	char buf[80] = "";
	int fd = plain(0), peer;
	pid_t pid = fork();

	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		peer = plain(0);
		getsockname(peer, (struct sockaddr *)&sin, &len);
		atomic_store(&shared->port, ntohs(sin.sin_port));
		for (;;) {
			ssize_t got = recvfrom(peer, buf, sizeof(buf), 0,
					       (struct sockaddr *)&sin, &len);

			if (got >= 0)
				sendto(peer, buf, (size_t)got, 0,
				       (struct sockaddr *)&sin, len);
		}
	}
	while (!atomic_load(&shared->port))
		usleep(1000);
	sin.sin_port = htons(shared->port);
	sin.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	begin = now = clock_ns();
	while ((double)(now - begin) < seconds * 1e9) {
		sendto(fd, buf, sizeof(buf), 0, (struct sockaddr *)&sin,
		       sizeof(sin));
		while (recv(fd, buf, sizeof(buf), 0) < 0)
			;
		n++;
		now = clock_ns();
	}
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	printf("plain sockets: %.2f us one way\n",
	       (double)(now - begin) / (double)n / 2e3);
}

static double cpu_seconds(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

/* n packets at a time, there and taken. */
static void alone(bool wire, size_t payload, size_t n, double seconds)
{
	double begin, took;
	struct end e;
	int error;

	start(&e, wire, -1);
	fill(e.qpn, n, payload);
	begin = cpu_seconds();
	do {
		for (int i = 0; i < 100; i++) {
			uint64_t want = count + n;

			udp_send(e.u, &batch, &error);
			while (count < want)
				udp_poll(e.u, 64, rx, NULL);
		}
		took = cpu_seconds() - begin;
	} while (took < seconds);
	printf("%zu x %zu bytes: %.3f us, %.2f GB/s of CPU time\n", n, payload,
	       took * (double)n / (double)count * 1e6,
	       (double)bytes / took / 1e9);
	udp_destroy(e.u);
	registry_leave(e.r);
	count = bytes = 0;
}

int main(int argc, char **argv)
{
	uint64_t begin, now = 0, sent = 0, refused = 0, pkts, got;
	bool wire = false, v6 = false, one = false;
	size_t payload = 4096;
	double seconds = 2, took;
	struct end e;
	pid_t pid;
	int c, error;

	while ((c = getopt(argc, argv, "w1s:t:6")) != -1) {
		if (c == 'w')
			wire = true;
		else if (c == '1')
			one = true;
		else if (c == '6')
			v6 = true;
		else if (c == 's')
			payload = min_u64(strtoull(optarg, NULL, 0),
					  ROCE_MTU_MAX) &
				  ~3ull;
		else if (c == 't')
			seconds = strtod(optarg, NULL);
		else
			return 2;
	}
	if (v6)
		inet_pton(AF_INET6, "::1", path.sgid.raw);
	else
		inet_pton(AF_INET6, "::ffff:127.0.0.1", path.sgid.raw);
	path.dgid = path.sgid;
	shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		err(1, "mmap");
	if (one) {
		alone(wire, payload, ROCE_BATCH, seconds);
		alone(wire, payload, 16, seconds);
		alone(wire, payload, 1, seconds);
		alone(wire, 64, 1, seconds);
		return 0;
	}
	pid = fork();
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		receive(wire);
		return 0;
	}
	start(&e, wire, 0);
	fill(shared->qpn[1], ROCE_BATCH, payload);
	begin = clock_ns();
	do {
		for (int i = 0; i < 100; i++) {
			size_t n = udp_send(e.u, &batch, &error);

			sent += n;
			refused += n < batch.n;
			if (error)
				errx(1, "%s", strerror(error));
		}
		now = clock_ns();
	} while ((double)(now - begin) < seconds * 1e9);
	usleep(50000);
	pkts = shared->pkts;
	got = shared->bytes;
	took = (double)(now - begin) / 1e9;
	printf("%zu bytes: %.2f GB/s, %.2f Mpkt/s; sent %llu, lost %lld, "
	       "refused %llu times\n",
	       payload, (double)got / took / 1e9, (double)pkts / took / 1e6,
	       (unsigned long long)sent, (long long)(sent - pkts),
	       (unsigned long long)refused);
	atomic_store(&shared->pong, true);
	usleep(10000);
	fill(shared->qpn[1], 1, 64);
	ping_pong(&e, seconds);
	atomic_store(&shared->stop, true);
	waitpid(pid, NULL, 0);
	udp_destroy(e.u);
	registry_leave(e.r);
	plain_ping_pong(seconds);
	return 0;
}

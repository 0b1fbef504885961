/*
 * peer.c - control channels, device and connection of the test clients
 */
#include "peer.h"

#include "qp_masks.h"

#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

void die(int code, const char *fmt, ...)
{
	va_list ap;

	fflush(stdout);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	exit(code);
}

uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t rng = 1;

/* xorshift64 */
uint32_t rnd(uint32_t below)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return (uint32_t)((rng >> 32) * below >> 32);
}

long rss_kib(void)
{
	FILE *f = fopen("/proc/self/status", "r");
	char line[256];
	long kib = -1;

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "VmRSS: %ld", &kib) == 1)
			break;
	if (f)
		fclose(f);
	return kib;
}

int ctrl_open(const char *host, int port, int wait_s)
{
	uint64_t end = now_ns() + (uint64_t)wait_s * 1000000000u;
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM,
				  .ai_flags = host ? 0 : AI_PASSIVE,
				  .ai_family = host ? AF_UNSPEC : AF_INET6 };
	struct addrinfo *ai;
	char service[16];
	int one = 1, fd, rc;

	snprintf(service, sizeof(service), "%d", port);
	rc = getaddrinfo(host, service, &hints, &ai);
	if (rc)
		die(EXIT_SETUP, "%s: %s", host, gai_strerror(rc));
	if (host) {
		for (;;) {
			fd = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC,
				    0);
			if (fd < 0)
				die(EXIT_SETUP, "socket: %m");
			if (!connect(fd, ai->ai_addr, ai->ai_addrlen))
				break;
			if (now_ns() > end)
				die(EXIT_SETUP, "connect %s:%d: %m", host,
				    port);
			close(fd);
			usleep(5000);
		}
	} else {
		int l = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
		struct pollfd p = { .fd = l, .events = POLLIN };

		if (l < 0)
			die(EXIT_SETUP, "socket: %m");
		setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
		if (bind(l, ai->ai_addr, ai->ai_addrlen) || listen(l, 1))
			die(EXIT_SETUP, "port %d: %m", port);
		if (poll(&p, 1, wait_s * 1000) != 1)
			die(EXIT_SETUP, "nobody connected in %d s", wait_s);
		fd = accept4(l, NULL, NULL, SOCK_CLOEXEC);
		if (fd < 0)
			die(EXIT_SETUP, "accept: %m");
		close(l);
	}
	freeaddrinfo(ai);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return fd;
}

void ctrl_put(int fd, const char *fmt, ...)
{
	char line[512];
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(line, sizeof(line) - 1, fmt, ap);
	va_end(ap);
	line[n++] = '\n';
	/* That the other end has gone shows when a line is awaited. */
	(void)!send(fd, line, (size_t)n, MSG_NOSIGNAL);
}

const char *ctrl_get(int fd, int wait_ms)
{
	static char buf[4096], line[512];
	static size_t have;
	uint64_t end = now_ns() + (uint64_t)wait_ms * 1000000u;

	for (;;) {
		char *nl = memchr(buf, '\n', have);
		struct pollfd p = { .fd = fd, .events = POLLIN };
		int64_t left = (int64_t)(end - now_ns()) / 1000000;
		ssize_t n;

		if (nl) {
			size_t len = (size_t)(nl - buf);

			snprintf(line, sizeof(line), "%.*s", (int)len, buf);
			have -= len + 1;
			memmove(buf, nl + 1, have);
			return line;
		}
		if (poll(&p, 1, left > 0 ? (int)left : 0) != 1) {
			errno = ETIMEDOUT;
			return NULL;
		}
		n = recv(fd, buf + have, sizeof(buf) - have, 0);
		if (n <= 0) {
			errno = ECONNRESET;
			return NULL;
		}
		have += (size_t)n;
	}
}

void word_put(int fd, const void *word, size_t size)
{
	/* Whoever does not read it has ended, which shows elsewhere. */
	(void)!send(fd, word, size, MSG_NOSIGNAL);
}

bool word_get(int fd, void *word, size_t size, uint64_t wait_ns)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	if (poll(&p, 1, (int)(wait_ns / 1000000)) != 1) {
		errno = ETIMEDOUT;
		return false;
	}
	if (recv(fd, word, size, 0) != (ssize_t)size) {
		errno = ECONNRESET;
		return false;
	}
	return true;
}

void end_start(struct end *e, int (*fn)(int fd))
{
	int fd[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fd))
		die(EXIT_SETUP, "socketpair: %m");
	fflush(stdout);
	e->pid = fork();
	if (e->pid < 0)
		die(EXIT_SETUP, "fork: %m");
	if (!e->pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(fd[0]);
		exit(fn(fd[1]));
	}
	close(fd[1]);
	e->fd = fd[0];
}

void dev_open(struct dev *d, const char *name, int gid_index)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_device **p = list;

	while (p && *p && name && strcmp(ibv_get_device_name(*p), name))
		p++;
	if (!p || !*p)
		die(EXIT_SETUP, "no RDMA device %s", name ? name : "");
	d->ctx = ibv_open_device(*p);
	if (!d->ctx)
		die(EXIT_SETUP, "ibv_open_device: %m");
	ibv_free_device_list(list);
	d->gid_index = gid_index;
	d->pd = ibv_alloc_pd(d->ctx);
	if (!d->pd)
		die(EXIT_SETUP, "ibv_alloc_pd: %m");
	if (ibv_query_device(d->ctx, &d->attr))
		die(EXIT_SETUP, "ibv_query_device");
	if (ibv_query_port(d->ctx, 1, &d->port))
		die(EXIT_SETUP, "ibv_query_port");
	if (ibv_query_gid(d->ctx, 1, gid_index, &d->gid))
		die(EXIT_SETUP, "ibv_query_gid %d", gid_index);
}

void remote_put(int fd, const struct remote *r)
{
	char gid[33];

	for (int i = 0; i < 16; i++)
		snprintf(gid + 2 * i, 3, "%02x", r->gid.raw[i]);
	ctrl_put(fd, "%x %x %x %" PRIx64 " %u %s", r->qpn, r->psn, r->rkey,
		 r->addr, r->mtu, gid);
}

void remote_get(int fd, struct remote *r)
{
	const char *line = ctrl_get(fd, 20000);
	char gid[33];

	if (!line || sscanf(line, "%x %x %x %" SCNx64 " %u %32s", &r->qpn,
			    &r->psn, &r->rkey, &r->addr, &r->mtu, gid) != 6)
		die(EXIT_SETUP, "no address from the other end");
	for (int i = 0; i < 16; i++) {
		unsigned b;

		sscanf(gid + 2 * i, "%2x", &b);
		r->gid.raw[i] = (uint8_t)b;
	}
}

struct ibv_qp *qp_create_rc(struct ibv_pd *pd, struct ibv_cq *cq,
			    uint32_t sends, uint32_t recvs, uint32_t send_sges)
{
	struct ibv_qp_init_attr a = {
		.qp_type = IBV_QPT_RC,
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = sends,
			 .max_recv_wr = recvs,
			 .max_send_sge = send_sges,
			 .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &a);

	if (!qp)
		die(EXIT_SETUP, "ibv_create_qp: %m");
	return qp;
}

void qp_to_init(struct ibv_qp *qp, const struct conn_opts *o)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT,
				 .port_num = 1,
				 .qp_access_flags = o->access,
				 .qkey = o->qkey };
	int rc = ibv_modify_qp(qp, &a, init_mask(qp->qp_type));

	if (rc)
		die(EXIT_SETUP, "modify to INIT: %s", strerror(rc));
}

static struct ibv_ah_attr ah_attr(const struct dev *d, const struct remote *r)
{
	return (struct ibv_ah_attr){
		.is_global = 1,
		.port_num = 1,
		.grh = { .dgid = r->gid,
			 .sgid_index = (uint8_t)d->gid_index,
			 .hop_limit = 64 },
	};
}

void qp_connect(struct dev *d, struct ibv_qp *qp, uint32_t psn,
		const struct remote *r, const struct conn_opts *o)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTR,
				 .path_mtu = o->mtu,
				 .dest_qp_num = r->qpn,
				 .rq_psn = r->psn,
				 .max_dest_rd_atomic = o->rd_atomic,
				 .min_rnr_timer = 12,
				 .ah_attr = ah_attr(d, r) };
	int rc = ibv_modify_qp(qp, &a, rtr_mask(qp->qp_type));

	if (rc)
		die(EXIT_SETUP, "modify to RTR: %s", strerror(rc));

	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS,
				  .sq_psn = psn,
				  .timeout = o->timeout,
				  .retry_cnt = o->retry_cnt,
				  .rnr_retry = o->rnr_retry,
				  .max_rd_atomic = o->rd_atomic };
	rc = ibv_modify_qp(qp, &a, rts_mask(qp->qp_type));
	if (rc)
		die(EXIT_SETUP, "modify to RTS: %s", strerror(rc));
}

void recv_post(struct ibv_qp *qp, const struct ibv_mr *mr, void *to,
	       uint32_t len, uint64_t wr_id)
{
	struct ibv_sge sge = { (uintptr_t)to, len, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id,
				  .sg_list = &sge,
				  .num_sge = 1 };
	struct ibv_recv_wr *bad;
	const int rc = ibv_post_recv(qp, &wr, &bad);

	if (rc)
		die(EXIT_SETUP, "ibv_post_recv: %s", strerror(rc));
}

struct ibv_ah *ah_create(struct dev *d, const struct remote *r)
{
	struct ibv_ah_attr a = ah_attr(d, r);
	struct ibv_ah *ah = ibv_create_ah(d->pd, &a);

	if (!ah)
		die(EXIT_SETUP, "ibv_create_ah: %m");
	return ah;
}

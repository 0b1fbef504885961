/*
 * conn_rate.c - how fast connections are set up and closed, by rdma_cm and TCP
 *
 *   conn_rate rdma|tcp COUNT ADDRESS
 *
 * Starts a server and a client process; run it under taskset to put both on one
 * CPU. The client requests COUNT connections at once, waits until all are
 * established, closes them, and waits until the server has closed them as well.
 * Both kinds work alike: one thread on each side that waits for events. Prints
 * connections per second: set up, and set up and closed.
 */
#include "measure.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int count;
static struct sockaddr_storage addr;
static socklen_t addr_len;

#define NEED(cond)                                                             \
	do {                                                                   \
		if (!(cond)) {                                                 \
			fprintf(stderr, "conn_rate.c:%d: %s: %s\n", __LINE__,  \
				#cond, strerror(errno));                       \
			exit(1);                                               \
		}                                                              \
	} while (0)

static void set_port(uint16_t port)
{
	if (addr.ss_family == AF_INET)
		((struct sockaddr_in *)&addr)->sin_port = port;
	else
		((struct sockaddr_in6 *)&addr)->sin6_port = port;
}

static void report(double start, double up, double end)
{
	printf("%.0f %.0f\n", count / (up - start), count / (end - start));
}

/* rdma_cm: a QP for each, all with one completion queue */

static void add_qp(struct rdma_cm_id *id, struct ibv_cq **cq)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 1,
			 .max_recv_wr = 1,
			 .max_send_sge = 1,
			 .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};

	if (!*cq)
		NEED(*cq = ibv_create_cq(id->verbs, 16, NULL, NULL, 0));
	attr.send_cq = attr.recv_cq = *cq;
	NEED(!rdma_create_qp(id, NULL, &attr));
}

static void end(struct rdma_cm_id *id)
{
	rdma_destroy_qp(id);
	NEED(!rdma_destroy_id(id));
}

static void rdma_server(int ready)
{
	struct rdma_conn_param param = { .responder_resources = 1,
					 .initiator_depth = 1 };
	struct rdma_event_channel *ch;
	struct rdma_cm_id *listener, *id;
	enum rdma_cm_event_type type;
	struct rdma_cm_event *ev;
	struct ibv_cq *cq = NULL;
	uint16_t port;

	NEED(ch = rdma_create_event_channel());
	NEED(!rdma_create_id(ch, &listener, NULL, RDMA_PS_TCP));
	NEED(!rdma_bind_addr(listener, (struct sockaddr *)&addr));
	NEED(!rdma_listen(listener, count));
	port = rdma_get_src_port(listener);
	NEED(write(ready, &port, sizeof(port)) == sizeof(port));
	for (;;) {
		NEED(!rdma_get_cm_event(ch, &ev));
		id = ev->id;
		type = ev->event;
		NEED(!rdma_ack_cm_event(ev));
		if (type == RDMA_CM_EVENT_CONNECT_REQUEST) {
			add_qp(id, &cq);
			NEED(!rdma_accept(id, &param));
		} else if (type == RDMA_CM_EVENT_DISCONNECTED) {
			NEED(!rdma_disconnect(id));
			end(id);
		}
	}
}

static void rdma_client(void)
{
	struct rdma_conn_param param = { .responder_resources = 1,
					 .initiator_depth = 1,
					 .retry_count = 7 };
	struct rdma_cm_id **id =
		calloc((size_t)count, sizeof(struct rdma_cm_id *));
	struct rdma_event_channel *ch;
	struct rdma_cm_event *ev;
	struct ibv_cq *cq = NULL;
	double start, up;
	int n = 0;

	NEED(id && (ch = rdma_create_event_channel()));
	start = now();
	for (int i = 0; i < count; i++) {
		NEED(!rdma_create_id(ch, &id[i], NULL, RDMA_PS_TCP));
		NEED(!rdma_resolve_addr(id[i], NULL, (struct sockaddr *)&addr,
					2000));
	}
	while (n < count) {
		NEED(!rdma_get_cm_event(ch, &ev));
		if (ev->event == RDMA_CM_EVENT_ADDR_RESOLVED) {
			NEED(!rdma_resolve_route(ev->id, 2000));
		} else if (ev->event == RDMA_CM_EVENT_ROUTE_RESOLVED) {
			add_qp(ev->id, &cq);
			NEED(!rdma_connect(ev->id, &param));
		} else {
			NEED(ev->event == RDMA_CM_EVENT_ESTABLISHED);
			n++;
		}
		NEED(!rdma_ack_cm_event(ev));
	}
	up = now();
	for (int i = 0; i < count; i++)
		NEED(!rdma_disconnect(id[i]));
	while (n) {
		struct rdma_cm_id *gone;

		NEED(!rdma_get_cm_event(ch, &ev));
		gone = ev->event == RDMA_CM_EVENT_DISCONNECTED ? ev->id : NULL;
		NEED(!rdma_ack_cm_event(ev));
		if (!gone)
			continue; /* TIMEWAIT_EXIT */
		end(gone);
		n--;
	}
	report(start, up, now());
}

/* TCP */

static void watch(int poll_fd, int fd, uint32_t events)
{
	struct epoll_event ev = { .events = events, .data.fd = fd };

	NEED(!epoll_ctl(poll_fd, EPOLL_CTL_ADD, fd, &ev));
}

static int wait_one(int poll_fd)
{
	struct epoll_event ev;

	NEED(epoll_wait(poll_fd, &ev, 1, -1) == 1);
	return ev.data.fd;
}

static void tcp_server(int ready)
{
	socklen_t len = sizeof(addr);
	int listener, poll_fd, fd;
	uint16_t port;
	char c;

	NEED((poll_fd = epoll_create1(0)) >= 0);
	NEED((listener = socket(addr.ss_family, SOCK_STREAM, 0)) >= 0);
	NEED(!bind(listener, (struct sockaddr *)&addr, addr_len));
	NEED(!listen(listener, count));
	NEED(!getsockname(listener, (struct sockaddr *)&addr, &len));
	port = ((struct sockaddr_in *)&addr)->sin_port; /* the same for IPv6 */
	watch(poll_fd, listener, EPOLLIN);
	NEED(write(ready, &port, sizeof(port)) == sizeof(port));
	for (;;) {
		fd = wait_one(poll_fd);
		if (fd == listener) {
			NEED((fd = accept(listener, NULL, NULL)) >= 0);
			watch(poll_fd, fd, EPOLLIN);
		} else {
			NEED(!read(fd, &c, 1));
			close(fd);
		}
	}
}

static void tcp_client(void)
{
	int poll_fd, fd, *fds = calloc((size_t)count, sizeof(int));
	double start, up;
	char c;

	NEED(fds && (poll_fd = epoll_create1(0)) >= 0);
	start = now();
	for (int i = 0; i < count; i++) {
		NEED((fd = socket(addr.ss_family, SOCK_STREAM | SOCK_NONBLOCK,
				  0)) >= 0);
		NEED(!connect(fd, (struct sockaddr *)&addr, addr_len) ||
		     errno == EINPROGRESS);
		watch(poll_fd, fd, EPOLLOUT);
	}
	for (int i = 0; i < count; i++) {
		int err;
		socklen_t len = sizeof(err);
		struct epoll_event ev = { .events = EPOLLIN };

		fds[i] = ev.data.fd = wait_one(poll_fd);
		NEED(!getsockopt(fds[i], SOL_SOCKET, SO_ERROR, &err, &len) &&
		     !err);
		NEED(!epoll_ctl(poll_fd, EPOLL_CTL_MOD, fds[i], &ev));
	}
	up = now();
	for (int i = 0; i < count; i++)
		NEED(!shutdown(fds[i], SHUT_WR));
	for (int i = 0; i < count; i++) {
		fd = wait_one(poll_fd);
		NEED(!read(fd, &c, 1));
		close(fd);
	}
	report(start, up, now());
}

int main(int argc, char **argv)
{
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST }, *ai;
	struct rlimit rl;
	int rdma, ready[2];
	uint16_t port;
	pid_t server;

	if (argc != 4 || (count = atoi(argv[2])) <= 0 ||
	    (strcmp(argv[1], "rdma") && strcmp(argv[1], "tcp")) ||
	    getaddrinfo(argv[3], NULL, &hints, &ai)) {
		fprintf(stderr, "usage: conn_rate rdma|tcp COUNT ADDRESS\n");
		return 2;
	}
	rdma = !strcmp(argv[1], "rdma");
	memcpy(&addr, ai->ai_addr, addr_len = ai->ai_addrlen);
	freeaddrinfo(ai);
	if (!getrlimit(RLIMIT_NOFILE, &rl)) {
		rl.rlim_cur = rl.rlim_max;
		setrlimit(RLIMIT_NOFILE, &rl);
	}
	alarm(60);
	NEED(!pipe(ready));
	server = fork();
	NEED(server >= 0);
	if (!server) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(ready[0]);
		rdma ? rdma_server(ready[1]) : tcp_server(ready[1]);
		return 0;
	}
	close(ready[1]);
	NEED(read(ready[0], &port, sizeof(port)) == sizeof(port));
	set_port(port);
	rdma ? rdma_client() : tcp_client();
	kill(server, SIGKILL);
	waitpid(server, NULL, 0);
	return 0;
}

/*
 * waits.c - programs that hang, each for a reason that has a sentence
 *
 *   waits NAME [ARGS]
 *
 * It says "ready" once it waits, which it does until it is killed. Queue pairs
 * are those of this process, connected to each other.
 */
#include "peer.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N 3 /* queue pairs; the first two are connected to each other */

static struct dev dev;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_qp *qp[N];
static struct ibv_srq *srq;
static struct ibv_mr *mr;
static char buf[4096];
static struct conn_opts opts = { .mtu = IBV_MTU_1024,
				 .timeout = 14,
				 .retry_cnt = 7,
				 .rnr_retry = 7,
				 .rd_atomic = 1,
				 .access = IBV_ACCESS_LOCAL_WRITE |
					   IBV_ACCESS_REMOTE_WRITE };

static void __attribute__((noreturn)) hang(void)
{
	for (;;)
		pause();
}

static void ready(void)
{
	printf("ready\n");
	fflush(stdout);
}

static struct remote at(const struct ibv_qp *q)
{
	return (struct remote){ .qpn = q->qp_num,
				.psn = q->qp_num,
				.gid = dev.gid,
				.mtu = IBV_MTU_1024 };
}

static void make(void)
{
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = 16,
						      .max_sge = 1 } };

	dev_open(&dev, NULL, 0);
	channel = ibv_create_comp_channel(dev.ctx);
	cq = ibv_create_cq(dev.ctx, 64, NULL, channel, 0);
	srq = ibv_create_srq(dev.pd, &shared);
	mr = ibv_reg_mr(dev.pd, buf, sizeof(buf), opts.access);
	if (!channel || !cq || !srq || !mr)
		die(EXIT_SETUP, "objects: %s", strerror(errno));
	for (int i = 0; i < N; i++) {
		qp[i] = qp_create_rc(dev.pd, cq, 16, 16, 1);
		qp_to_init(qp[i], &opts);
	}
}

static void connect_qps(const union ibv_gid *other)
{
	struct remote a = at(qp[0]), b = at(qp[1]);

	if (other)
		b.gid = *other;
	qp_connect(&dev, qp[0], a.psn, &b, &opts);
	qp_connect(&dev, qp[1], b.psn, &a, &opts);
}

static void post(enum ibv_wr_opcode opcode, unsigned flags)
{
	struct ibv_sge sge = { (uintptr_t)buf, 8, mr->lkey };
	struct ibv_send_wr *bad,
		wr = { .sg_list = &sge,
		       .num_sge = 1,
		       .opcode = opcode,
		       .send_flags = flags,
		       .wr.rdma = { (uintptr_t)buf + 64, mr->rkey } };

	if (ibv_post_send(qp[0], &wr, &bad))
		die(EXIT_SETUP, "post: %s", strerror(errno));
}

static void __attribute__((noreturn)) spin(void)
{
	struct ibv_wc wc;

	ready();
	for (;;)
		ibv_poll_cq(cq, 1, &wc);
}

static void __attribute__((noreturn)) get_event(void)
{
	struct ibv_cq *got;
	void *context;

	ready();
	ibv_get_cq_event(channel, &got, &context);
	hang();
}

static void unsignaled(char **args)
{
	(void)args;
	make();
	connect_qps(NULL);
	for (int i = 0; i < 3; i++)
		post(IBV_WR_RDMA_WRITE, 0);
	spin();
}

static void unarmed(char **args)
{
	(void)args;
	make();
	connect_qps(NULL);
	post(IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED);
	get_event();
}

static void armed(char **args)
{
	(void)args;
	make();
	connect_qps(NULL);
	ibv_req_notify_cq(cq, 0);
	get_event();
}

/* The same by poll(2), of the asynchronous events as well. */
static void polls(char **args)
{
	struct pollfd p[2];

	(void)args;
	make();
	connect_qps(NULL);
	p[0] = (struct pollfd){ channel->fd, POLLIN, 0 };
	p[1] = (struct pollfd){ dev.ctx->async_fd, POLLIN, 0 };
	ready();
	for (;;)
		poll(p, 2, -1);
}

static void unacked(char **args)
{
	struct ibv_cq *got;
	void *context;

	(void)args;
	make();
	connect_qps(NULL);
	ibv_req_notify_cq(cq, 0);
	post(IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED);
	ibv_get_cq_event(channel, &got, &context);
	for (int i = 0; i < N; i++)
		ibv_destroy_qp(qp[i]);
	ready();
	ibv_destroy_cq(cq);
	hang();
}

static void wrong_qp(char **args)
{
	(void)args;
	make();
	recv_post(qp[2], mr, buf, sizeof(buf), 1);
	connect_qps(NULL);
	post(IBV_WR_SEND, IBV_SEND_SIGNALED);
	spin();
}

static void wrong_srq(char **args)
{
	struct ibv_sge sge;
	struct ibv_recv_wr *bad, wr = { .sg_list = &sge, .num_sge = 1 };

	(void)args;
	make();
	sge = (struct ibv_sge){ (uintptr_t)buf, sizeof(buf), mr->lkey };
	if (ibv_post_srq_recv(srq, &wr, &bad))
		die(EXIT_SETUP, "post: %s", strerror(errno));
	connect_qps(NULL);
	post(IBV_WR_SEND, IBV_SEND_SIGNALED);
	spin();
}

/* waits other-address ADDRESS: of this host, to which the peer is not connected. */
static void other_address(char **args)
{
	union ibv_gid gid = { .raw = { [10] = 0xff, [11] = 0xff } };

	opts.timeout = 20; /* 4.3 s, as many times as retry_cnt has */
	make();
	if (inet_pton(AF_INET, args[0], gid.raw + 12) != 1)
		die(EXIT_SETUP, "%s is no address", args[0]);
	connect_qps(&gid);
	post(IBV_WR_SEND, IBV_SEND_SIGNALED);
	spin();
}

/* waits retries: of a QP that is gone. */
static void retries(char **args)
{
	(void)args;
	opts.timeout = 17; /* 0.54 s */
	make();
	connect_qps(NULL);
	ibv_destroy_qp(qp[1]);
	post(IBV_WR_SEND, IBV_SEND_SIGNALED);
	spin();
}

/* waits endless: the same, and no retry ends it. */
static void endless(char **args)
{
	(void)args;
	opts.timeout = 0;
	make();
	connect_qps(NULL);
	ibv_destroy_qp(qp[1]);
	post(IBV_WR_SEND, IBV_SEND_SIGNALED);
	spin();
}

static pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER;

static void *lock_again(void *arg)
{
	pthread_mutex_lock(&held);
	return arg;
}

/* waits locked: main() for a thread, which waits for what main() holds. */
static void locked(char **args)
{
	pthread_t thread;

	(void)args;
	make();
	connect_qps(NULL);
	pthread_mutex_lock(&held);
	if (pthread_create(&thread, NULL, lock_again, NULL))
		die(EXIT_SETUP, "no thread");
	ready();
	pthread_join(thread, NULL);
	hang();
}

/* rdma_cm */

static struct rdma_event_channel *events;
static struct rdma_cm_id *id;
static struct sockaddr_in addr = { .sin_family = AF_INET };

static struct rdma_cm_event *expect(enum rdma_cm_event_type type)
{
	struct rdma_cm_event *ev;

	if (rdma_get_cm_event(events, &ev) || ev->event != type)
		die(EXIT_SETUP, "no %s", rdma_event_str(type));
	return ev;
}

static void cm_make(char **args)
{
	addr.sin_port = htons((uint16_t)atoi(args[0]));
	inet_pton(AF_INET, "127.0.0.1", &addr.sin_addr);
	events = rdma_create_event_channel();
	if (!events || rdma_create_id(events, &id, NULL, RDMA_PS_TCP))
		die(EXIT_SETUP, "rdma_create_id: %s", strerror(errno));
}

/* waits listens PORT */
static void listens(char **args)
{
	cm_make(args);
	if (rdma_bind_addr(id, (struct sockaddr *)&addr) || rdma_listen(id, 4))
		die(EXIT_SETUP, "rdma_listen: %s", strerror(errno));
	ready();
	expect(RDMA_CM_EVENT_CONNECT_REQUEST);
	printf("asked\n");
	fflush(stdout);
	hang(); /* it neither accepts nor rejects */
}

/* waits deaf PORT: fetches no event. */
static void deaf(char **args)
{
	cm_make(args);
	if (rdma_bind_addr(id, (struct sockaddr *)&addr) || rdma_listen(id, 4))
		die(EXIT_SETUP, "rdma_listen: %s", strerror(errno));
	ready();
	hang();
}

static void resolve(char **args)
{
	cm_make(args);
	if (rdma_resolve_addr(id, NULL, (struct sockaddr *)&addr, 2000))
		die(EXIT_SETUP, "rdma_resolve_addr: %s", strerror(errno));
	rdma_ack_cm_event(expect(RDMA_CM_EVENT_ADDR_RESOLVED));
	if (rdma_resolve_route(id, 2000))
		die(EXIT_SETUP, "rdma_resolve_route: %s", strerror(errno));
	rdma_ack_cm_event(expect(RDMA_CM_EVENT_ROUTE_RESOLVED));
}

/* waits connects PORT, or unfetched: its event waits. */
static void connect_to(char **args, bool fetch)
{
	struct rdma_conn_param param = { .retry_count = 7,
					 .rnr_retry_count = 7 };
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC,
					 .cap = { 16, 16, 1, 1, 0 } };

	resolve(args);
	if (rdma_create_qp(id, NULL, &attr) || rdma_connect(id, &param))
		die(EXIT_SETUP, "rdma_connect: %s", strerror(errno));
	ready();
	if (fetch)
		expect(RDMA_CM_EVENT_ESTABLISHED);
	hang();
}

static void connects(char **args)
{
	connect_to(args, true);
}

static void unfetched(char **args)
{
	connect_to(args, false);
}

/* waits rejected PORT: at which nobody listens. */
static void rejected(char **args)
{
	resolve(args);
	if (rdma_connect(id, &(struct rdma_conn_param){ .qp_num = 17 }))
		die(EXIT_SETUP, "rdma_connect: %s", strerror(errno));
	ready();
	hang();
}

/* waits destroys: an identifier with an event that was not acknowledged. */
static void destroys(char **args)
{
	cm_make(args);
	if (rdma_resolve_addr(id, NULL, (struct sockaddr *)&addr, 2000))
		die(EXIT_SETUP, "rdma_resolve_addr: %s", strerror(errno));
	expect(RDMA_CM_EVENT_ADDR_RESOLVED);
	ready();
	rdma_destroy_id(id);
	hang();
}

static const struct {
	const char *name;
	void (*fn)(char **args);
	int nargs;
} cases[] = {
	{ "unsignaled", unsignaled, 0 },
	{ "unarmed", unarmed, 0 },
	{ "armed", armed, 0 },
	{ "polls", polls, 0 },
	{ "unacked", unacked, 0 },
	{ "wrong-qp", wrong_qp, 0 },
	{ "wrong-srq", wrong_srq, 0 },
	{ "other-address", other_address, 1 },
	{ "retries", retries, 0 },
	{ "endless", endless, 0 },
	{ "locked", locked, 0 },
	{ "listens", listens, 1 },
	{ "deaf", deaf, 1 },
	{ "connects", connects, 1 },
	{ "unfetched", unfetched, 1 },
	{ "rejected", rejected, 1 },
	{ "destroys", destroys, 1 },
};

int main(int argc, char **argv)
{
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		if (argc > 1 && !strcmp(argv[1], cases[i].name) &&
		    argc >= 2 + cases[i].nargs)
			cases[i].fn(argv + 2);
	die(EXIT_SETUP, "usage: waits NAME [ARGS]");
}

/*
 * checked.c - breaks the rules of softhca run --check, one at a time
 *
 * checked MODE: two connected queue pairs of one process do what works by luck,
 * or, in the modes whose names begin with "fine-", what looks much like it and
 * is right. It ends with status 0 whatever the checks find. Over iWARP rdma_cm
 * connects them.
 */
#include "peer.h"

#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SIZE 1024u
#define SLOTS 8u

static struct dev dev;
static struct ibv_mr *mr;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq[2]; /* of sends, of receives */
static struct ibv_qp *qp[2];
static uint8_t memory[2 * SLOTS][SIZE]; /* sent from, received in */

/* What the queue pairs have. */
static int cq_entries = 64;
static uint32_t send_wr = 4;
static int extended;
static enum ibv_mtu other_mtu = IBV_MTU_1024;
static uint32_t other_psn; /* that the second one expects */
static bool other_qpn; /* the second one is connected to another */

static void need(int good, const char *what, int err)
{
	if (good)
		return;
	printf("%s: %s\n", what, strerror(err));
	exit(3);
}

static void connect_to(struct ibv_qp *q, uint32_t peer, enum ibv_mtu mtu,
		       uint32_t rq_psn)
{
	const struct remote far = { .qpn = peer,
				    .psn = rq_psn,
				    .gid = dev.gid };
	const struct conn_opts o = { .mtu = mtu,
				     .timeout = 12,
				     .retry_cnt = 5,
				     .rnr_retry = 7,
				     .rd_atomic = 2,
				     .access = IBV_ACCESS_REMOTE_WRITE |
					       IBV_ACCESS_REMOTE_READ |
					       IBV_ACCESS_REMOTE_ATOMIC };

	qp_to_init(q, &o);
	qp_connect(&dev, q, 0, &far, &o);
}

static struct rdma_event_channel *events;
static struct rdma_cm_id *listener, *id[2]; /* over iWARP */

static struct ibv_qp *qp_create(struct rdma_cm_id *of)
{
	struct ibv_qp_init_attr_ex a = {
		.send_cq = cq[0],
		.recv_cq = cq[1],
		.cap = { .max_send_wr = send_wr,
			 .max_recv_wr = SLOTS,
			 .max_send_sge = 1,
			 .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD,
		.pd = dev.pd,
	};

	if (extended) {
		a.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
		a.send_ops_flags = IBV_QP_EX_WITH_SEND;
	}
	if (of)
		return rdma_create_qp_ex(of, &a) ? NULL : of->qp;
	return ibv_create_qp_ex(dev.ctx, &a);
}

/* ---- over iWARP -------------------------------------------------------- */

static bool is_iwarp(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	const bool is = list && list[0] &&
			list[0]->transport_type == IBV_TRANSPORT_IWARP;

	ibv_free_device_list(list);
	return is;
}

/* The next event, whose identifier is returned. */
static struct rdma_cm_id *expect(enum rdma_cm_event_type type)
{
	struct rdma_cm_event *ev;
	struct rdma_cm_id *of;

	need(!rdma_get_cm_event(events, &ev), "get_cm_event", errno);
	need(ev->event == type, rdma_event_str(ev->event), -ev->status);
	of = ev->id;
	rdma_ack_cm_event(ev);
	return of;
}

/* As dev_open(). */
static void ids_open(void)
{
	struct sockaddr_in at = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct sockaddr *a = (struct sockaddr *)&at;

	events = rdma_create_event_channel();
	need(!!events, "create_event_channel", errno);
	need(!rdma_create_id(events, &listener, NULL, RDMA_PS_TCP) &&
		     !rdma_bind_addr(listener, a) && !rdma_listen(listener, 1),
	     "listen", errno);
	at.sin_port = rdma_get_src_port(listener);
	need(!rdma_create_id(events, &id[0], NULL, RDMA_PS_TCP) &&
		     !rdma_resolve_addr(id[0], NULL, a, 5000),
	     "resolve_addr", errno);
	expect(RDMA_CM_EVENT_ADDR_RESOLVED);
	need(!rdma_resolve_route(id[0], 5000), "resolve_route", errno);
	expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
	dev.ctx = id[0]->verbs;
	dev.pd = ibv_alloc_pd(dev.ctx);
	need(!!dev.pd, "alloc_pd", errno);
}

static void ids_connect(void)
{
	struct rdma_conn_param p = { .responder_resources = 2,
				     .initiator_depth = 2 };

	qp[0] = qp_create(id[0]);
	need(!!qp[0], "create_qp", errno);
	need(!rdma_connect(id[0], &p), "connect", errno);
	id[1] = expect(RDMA_CM_EVENT_CONNECT_REQUEST);
	qp[1] = qp_create(id[1]);
	need(!!qp[1], "create_qp", errno);
	need(!rdma_accept(id[1], &p), "accept", errno);
	expect(RDMA_CM_EVENT_ESTABLISHED);
	expect(RDMA_CM_EVENT_ESTABLISHED);
}

/* What a failed write ends. */
static void ids_await_end(void)
{
	expect(RDMA_CM_EVENT_DISCONNECTED);
	expect(RDMA_CM_EVENT_DISCONNECTED);
}

static void ids_close(void)
{
	rdma_destroy_id(listener);
	for (int i = 0; i < 2; i++)
		rdma_destroy_id(id[i]);
	rdma_destroy_event_channel(events);
}

/* ---- the two ----------------------------------------------------------- */

static void begin(void)
{
	const bool iwarp = is_iwarp();

	if (iwarp)
		ids_open();
	else
		dev_open(&dev, NULL, 0);
	mr = ibv_reg_mr(dev.pd, memory, sizeof(memory),
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				IBV_ACCESS_REMOTE_READ);
	need(!!mr, "reg_mr", errno);
	channel = ibv_create_comp_channel(dev.ctx);
	need(!!channel, "create_comp_channel", errno);
	for (int i = 0; i < 2; i++) {
		struct ibv_cq_init_attr_ex a = {
			.cqe = (uint32_t)cq_entries,
			.channel = channel,
			.wc_flags = IBV_WC_STANDARD_FLAGS,
		};

		cq[i] = ibv_cq_ex_to_cq(ibv_create_cq_ex(dev.ctx, &a));
		need(!!cq[i], "create_cq", errno);
	}
	if (iwarp) {
		ids_connect();
		return;
	}
	for (int i = 0; i < 2; i++) {
		qp[i] = qp_create(NULL);
		need(!!qp[i], "create_qp", errno);
	}
	connect_to(qp[0], qp[1]->qp_num, IBV_MTU_1024, 0);
	connect_to(qp[1], qp[other_qpn]->qp_num, other_mtu, other_psn);
}

static pthread_t late; /* who does something meanwhile, or 0 */

static void end(void)
{
	for (int i = 0; i < 2; i++) {
		if (listener)
			rdma_destroy_qp(id[i]);
		else
			need(!ibv_destroy_qp(qp[i]), "destroy_qp", errno);
	}
	for (int i = 0; i < 2; i++)
		need(!ibv_destroy_cq(cq[i]), "destroy_cq", errno);
	if (late)
		pthread_join(late, NULL);
	need(!ibv_destroy_comp_channel(channel), "destroy_channel", errno);
	need(!ibv_dereg_mr(mr), "dereg_mr", errno);
	need(!ibv_dealloc_pd(dev.pd), "dealloc_pd", errno);
	if (listener)
		ids_close();
	else
		need(!ibv_close_device(dev.ctx), "close_device", errno);
}

static void post_recv(unsigned slot)
{
	struct ibv_sge sge = { (uintptr_t)memory[SLOTS + slot], SIZE,
			       mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	const int err = ibv_post_recv(qp[1], &wr, &bad);

	need(!err, "post_recv", err);
}

/* From a slot, with the slot as wr_id. */
static void post(struct ibv_qp *q, enum ibv_wr_opcode op, unsigned slot,
		 unsigned flags)
{
	struct ibv_sge sge = { (uintptr_t)memory[slot], SIZE, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = slot,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = op,
				  .send_flags = flags },
			   *bad;
	int err;

	if (op == IBV_WR_RDMA_WRITE || op == IBV_WR_RDMA_READ) {
		wr.wr.rdma.remote_addr = (uintptr_t)memory[SLOTS + slot];
		wr.wr.rdma.rkey = mr->rkey;
	}
	if (extended) {
		struct ibv_qp_ex *x = ibv_qp_to_qp_ex(q);

		ibv_wr_start(x);
		x->wr_id = slot;
		x->wr_flags = flags;
		ibv_wr_send(x);
		ibv_wr_set_sge(x, mr->lkey, (uintptr_t)memory[slot], SIZE);
		err = ibv_wr_complete(x);
	} else {
		err = ibv_post_send(q, &wr, &bad);
	}
	need(!err, "post_send", err);
}

static void send_one(unsigned slot, unsigned flags)
{
	post_recv(slot);
	post(qp[0], IBV_WR_SEND, slot, flags);
}

static struct timespec until;

static void bound_begin(void)
{
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += 60;
}

static void bound(const char *what)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	need(now.tv_sec < until.tv_sec, what, ETIMEDOUT);
}

/* One successful completion. */
static void completion(struct ibv_cq *q)
{
	struct ibv_wc wc;

	bound_begin();
	if (extended) {
		struct ibv_cq_ex *x = (struct ibv_cq_ex *)(void *)q;
		struct ibv_poll_cq_attr a = { 0 };

		while (ibv_start_poll(x, &a))
			bound("no completion");
		need(x->status == IBV_WC_SUCCESS, "completion", EIO);
		ibv_end_poll(x);
		return;
	}
	while (ibv_poll_cq(q, 1, &wc) != 1)
		bound("no completion");
	need(wc.status == IBV_WC_SUCCESS, "completion", EIO);
}

/* ---- modes ------------------------------------------------------------- */

static void buffer_in_flight(void)
{
	send_one(0, IBV_SEND_SIGNALED);
	memory[0][SIZE - 1] ^= 1;
	completion(cq[0]);
	completion(cq[1]);
}

static _Atomic int signals;

static void note_signal(int sig)
{
	(void)sig;
	signals++;
}

/* A finding, of which the program notices nothing. */
static void unnoticed(void)
{
	const int was = dup(0);

	close(was);
	for (int sig = 1; sig < 32; sig++)
		signal(sig, note_signal);
	buffer_in_flight();
	need(!signals, "a signal", signals);
	need(waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD, "a child",
	     EEXIST);
	need(dup(0) == was, "a descriptor", EEXIST);
}

/* To start a process would end this one. */
static void restrict_calls(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
			 offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 2),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
			 offsetof(struct seccomp_data, args)),
		BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_THREAD, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
	};
	const struct sock_fprog prog = { 6, filter };

	need(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) &&
		     !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog),
	     "seccomp", errno);
}

static void restricted(void)
{
	restrict_calls();
	buffer_in_flight();
}

static void buffer_in_flight_extended(void)
{
	buffer_in_flight();
}

/* Unsignalled: done when a later one is. */
static void buffer_unsignalled(void)
{
	send_one(0, 0);
	memory[0][0] ^= 1;
	send_one(1, IBV_SEND_SIGNALED);
	completion(cq[0]);
}

/* The program hears of something else first. */
static void buffer_before_a_receive(void)
{
	send_one(0, IBV_SEND_SIGNALED);
	memory[0][0] ^= 1;
	completion(cq[1]);
	completion(cq[0]);
}

static void fine_buffer_polled(void)
{
	for (int i = 0; i < 20; i++) {
		send_one(0, IBV_SEND_SIGNALED);
		completion(cq[0]);
		memory[0][0]++;
		completion(cq[1]);
	}
}

static void fine_buffer_polled_extended(void)
{
	fine_buffer_polled();
}

/* The peer has said so. */
static void fine_buffer_answered(void)
{
	for (int i = 0; i < 20; i++) {
		send_one(0, IBV_SEND_SIGNALED);
		completion(cq[1]);
		memory[0][0]++;
		completion(cq[0]);
	}
}

/* It says so in memory. */
static void fine_buffer_written(void)
{
	volatile uint8_t *flag = &memory[SLOTS + 1][SIZE - 1];

	memory[1][SIZE - 1] = 1;
	send_one(0, IBV_SEND_SIGNALED);
	post(qp[1], IBV_WR_RDMA_WRITE, 1, 0);
	bound_begin();
	while (!*flag)
		bound("no write");
	memory[0][0] ^= 1;
	completion(cq[0]);
	completion(cq[1]);
}

/* A message came into the same memory, which was not the program's. */
static void fine_buffer_received(void)
{
	struct ibv_sge sge = { (uintptr_t)memory[0], SIZE, mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	const int err = ibv_post_recv(qp[0], &wr, &bad);

	need(!err, "post_recv", err);
	memory[1][0] = 1;
	send_one(0, IBV_SEND_SIGNALED);
	post(qp[1], IBV_WR_SEND, 1, 0);
	completion(cq[1]);
	completion(cq[1]);
	completion(cq[0]);
	need(memory[0][0] == 1, "no message", EIO);
}

/* What is sent is read first: the fence is for that. */
static void fine_buffer_fenced(void)
{
	for (uint8_t i = 1; i < 20; i++) {
		memory[SLOTS][0] = i;
		post(qp[0], IBV_WR_RDMA_READ, 0, 0);
		post_recv(1);
		post(qp[0], IBV_WR_SEND, 0, IBV_SEND_SIGNALED | IBV_SEND_FENCE);
		completion(cq[0]);
		completion(cq[1]);
		need(memory[SLOTS + 1][0] == i, "another value", EIO);
	}
}

static void fine_buffer_inline(void)
{
	struct ibv_sge sge = { (uintptr_t)memory[0], 8, 0 };
	struct ibv_send_wr wr = { .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_SEND,
				  .send_flags =
					  IBV_SEND_SIGNALED | IBV_SEND_INLINE },
			   *bad;
	int err;

	post_recv(0);
	err = ibv_post_send(qp[0], &wr, &bad);
	need(!err, "post_send", err);
	memory[0][0] ^= 1;
	completion(cq[0]);
	completion(cq[1]);
}

static void result_in_flight(void)
{
	/* Mostly it is not there yet. */
	for (int i = 0; i < 200; i++) {
		post(qp[0], IBV_WR_RDMA_READ, 0, 0);
		post(qp[0], IBV_WR_RDMA_READ, 1, IBV_SEND_SIGNALED);
		memory[1][SIZE - 1]++;
		completion(cq[0]);
	}
}

/* The same memory again and again, each after the completion of the last; and
 * by two at a time. */
static void fine_result(void)
{
	for (uint8_t i = 1; i < 50; i++) {
		memory[SLOTS][0] = i;
		post(qp[0], IBV_WR_RDMA_READ, 0, IBV_SEND_SIGNALED);
		completion(cq[0]);
		need(memory[0][0] == i, "another value", EIO);
		memory[0][0] = 0xff;
		memory[SLOTS][1] = i;
		post(qp[0], IBV_WR_RDMA_READ, 0, IBV_SEND_SIGNALED);
		post(qp[0], IBV_WR_RDMA_READ, 0, IBV_SEND_SIGNALED);
		completion(cq[0]);
		completion(cq[0]);
		memory[0][1] = 0;
	}
}

static void never_drains(void)
{
	for (unsigned i = 0; i < send_wr + 1; i++) {
		send_one(i, 0);
		completion(cq[1]);
	}
}

/* As full as it may be, and more when the last one of them is done. */
static void fine_drains(void)
{
	for (unsigned i = 0; i < 4 * send_wr; i++) {
		send_one(i % SLOTS,
			 i % send_wr == send_wr - 1 ? IBV_SEND_SIGNALED : 0);
		completion(cq[1]);
		if (i % send_wr == send_wr - 1)
			completion(cq[0]);
	}
}

static void sq_overrun(void)
{
	for (unsigned i = 0; i < send_wr + 1; i++) {
		send_one(i, IBV_SEND_SIGNALED);
		completion(cq[1]);
	}
}

static void cq_overrun(void)
{
	for (unsigned i = 0; i < 3; i++) {
		send_one(i, IBV_SEND_SIGNALED);
		completion(cq[1]);
	}
}

/* Two, and two, from both queue pairs. */
static void fine_cq(void)
{
	for (unsigned i = 0; i < 10; i++) {
		post(qp[0], IBV_WR_RDMA_WRITE, 0, IBV_SEND_SIGNALED);
		post(qp[1], IBV_WR_RDMA_WRITE, 1, IBV_SEND_SIGNALED);
		completion(cq[0]);
		completion(cq[0]);
	}
}

static void get_event(struct ibv_cq *want)
{
	struct ibv_cq *q;
	void *arg;

	need(!ibv_get_cq_event(channel, &q, &arg), "get_cq_event", errno);
	need(q == want, "another CQ", EINVAL);
}

static void arm(struct ibv_cq *q, int solicited)
{
	const int err = ibv_req_notify_cq(q, solicited);

	need(!err, "req_notify_cq", err);
}

/* Sleeps for ever. */
static void lost_wakeup(void)
{
	send_one(0, IBV_SEND_SIGNALED);
	post(qp[0], IBV_WR_RDMA_READ, 1, IBV_SEND_SIGNALED);
	completion(cq[0]);
	completion(cq[0]); /* and so the message before it is there */
	arm(cq[1], 0);
	get_event(cq[1]);
}

static void *send_late(void *flags)
{
	const struct timespec pause = { .tv_sec = 1, .tv_nsec = 600000000 };

	nanosleep(&pause, NULL);
	post(qp[0], IBV_WR_SEND, 1, *(unsigned *)flags);
	return NULL;
}

/* Sleeps long, and is right to: it has looked, or wants to hear of something
 * else. */
static void fine_wakeup(void)
{
	unsigned flags[2] = { 0, IBV_SEND_SOLICITED };
	pthread_t other;

	for (int i = 0; i < 2; i++) {
		struct ibv_wc wc;

		post_recv(2);
		send_one(0, IBV_SEND_SIGNALED);
		completion(cq[0]);
		if (!i)
			completion(cq[1]);
		arm(cq[1], i);
		if (!i)
			need(!ibv_poll_cq(cq[1], 1, &wc), "more", EINVAL);
		need(!pthread_create(&other, NULL, send_late, &flags[i]),
		     "pthread_create", EAGAIN);
		get_event(cq[1]);
		pthread_join(other, NULL);
		ibv_ack_cq_events(cq[1], 1);
		completion(cq[1]);
		if (i)
			completion(cq[1]);
	}
}

/* Destroying the CQ waits for ever. */
static void unacked(void)
{
	arm(cq[1], 0);
	send_one(0, IBV_SEND_SIGNALED);
	get_event(cq[1]);
	completion(cq[0]);
	completion(cq[1]);
}

static void *ack_late(void *arg)
{
	const struct timespec pause = { .tv_nsec = 300000000 };

	(void)arg;
	nanosleep(&pause, NULL);
	ibv_ack_cq_events(cq[1], 1);
	return NULL;
}

static void fine_acked(void)
{
	unacked();
	need(!pthread_create(&late, NULL, ack_late, NULL), "pthread_create",
	     EAGAIN);
}

static void leaked(void)
{
	need(!ibv_destroy_qp(qp[1]), "destroy_qp", errno);
	need(!ibv_close_device(dev.ctx), "close_device", errno);
	exit(0);
}

static void fine_exit(void)
{
	exit(0);
}

/* A write that fails, to memory or from it by a region of its own. */
static void bad_write_to(uint64_t addr, uint32_t lkey, uint32_t rkey)
{
	struct ibv_sge sge = { (uintptr_t)memory[0], SIZE, lkey };
	struct ibv_send_wr wr = { .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED },
			   *bad;
	struct ibv_wc wc;
	int err;

	wr.wr.rdma.remote_addr = addr;
	wr.wr.rdma.rkey = rkey;
	err = ibv_post_send(qp[0], &wr, &bad);
	need(!err, "post_send", err);
	bound_begin();
	while (ibv_poll_cq(cq[0], 1, &wc) != 1)
		bound("no completion");
	/* Over TCP a write is done when it has left. */
	need(listener || wc.status != IBV_WC_SUCCESS, "it succeeded", EINVAL);
	if (listener)
		ids_await_end();
}

static void bad_write(uint32_t lkey, uint32_t rkey)
{
	bad_write_to((uintptr_t)memory[SLOTS], lkey, rkey);
}

static void keys_exchanged(void)
{
	bad_write(mr->lkey, mr->lkey);
}

static void keys_exchanged_local(void)
{
	bad_write(mr->rkey, mr->rkey);
}

static void address_cut(void)
{
	bad_write_to((uint32_t)(uintptr_t)memory[SLOTS], mr->lkey, mr->rkey);
}

static void address_signed(void)
{
	bad_write_to((uint64_t)(int64_t)(int32_t)(uintptr_t)memory[SLOTS],
		     mr->lkey, mr->rkey);
}

/* Half of it, and of another place. */
static void fine_address(void)
{
	bad_write_to((uint32_t)(uintptr_t)memory[SLOTS] - (1u << 30), mr->lkey,
		     mr->rkey);
}

static struct ibv_mr short_lived(void)
{
	struct ibv_mr *m =
		ibv_reg_mr(dev.pd, memory, sizeof(memory),
			   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	struct ibv_mr was;

	need(!!m, "reg_mr", errno);
	was = *m;
	need(!ibv_dereg_mr(m), "dereg_mr", errno);
	return was;
}

static void past_rkey(void)
{
	bad_write(mr->lkey, short_lived().rkey);
}

static void past_lkey(void)
{
	bad_write(short_lived().lkey, mr->rkey);
}

/* Just wrong. */
static void fine_keys(void)
{
	bad_write(mr->lkey, short_lived().rkey ^ 0x10000);
}

/* A region of before, with another one of after. */
static void fine_new_key(void)
{
	short_lived();
	fine_buffer_polled();
}

static void one_write(void)
{
	post(qp[0], IBV_WR_RDMA_WRITE, 0, IBV_SEND_SIGNALED);
	completion(cq[0]);
}

/* The completion of a request that fails. */
static void failure(void)
{
	struct ibv_wc wc;

	bound_begin();
	while (ibv_poll_cq(cq[0], 1, &wc) != 1)
		bound("no completion");
	need(wc.status != IBV_WC_SUCCESS, "it succeeded", EINVAL);
}

static void unanswered(void)
{
	post(qp[0], IBV_WR_RDMA_WRITE, 0, IBV_SEND_SIGNALED);
	failure();
}

/* Requests do not say whose they are: within a host it is carried out, and
 * between hosts nobody hears of that. */
static void to_another(void)
{
	struct ibv_wc wc;

	post(qp[0], IBV_WR_RDMA_WRITE, 0, IBV_SEND_SIGNALED);
	bound_begin();
	while (ibv_poll_cq(cq[0], 1, &wc) != 1)
		bound("no completion");
}

static void psn_repeats(void)
{
	memory[0][0] = 1;
	one_write();
	need(!memory[SLOTS][0], "it was carried out", EINVAL);
}

/* Two that are not connected. */
static struct ibv_qp *ud[2];

static void ud_begin(uint32_t qkey0, uint32_t qkey1)
{
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr a = {
			.send_cq = cq[0],
			.recv_cq = cq[1],
			.cap = { .max_send_wr = 4,
				 .max_recv_wr = 4,
				 .max_send_sge = 1,
				 .max_recv_sge = 1 },
			.qp_type = IBV_QPT_UD,
		};
		const struct conn_opts o = { .qkey = i ? qkey1 : qkey0 };
		const struct remote far = { .gid = dev.gid };

		ud[i] = ibv_create_qp(dev.pd, &a);
		need(!!ud[i], "create_qp", errno);
		qp_to_init(ud[i], &o);
		qp_connect(&dev, ud[i], 0, &far, &o);
	}
}

static void datagrams(uint32_t qkey, int good)
{
	const struct remote far = { .gid = dev.gid };
	struct ibv_sge to = { (uintptr_t)memory[SLOTS], SIZE, mr->lkey },
		       from = { (uintptr_t)memory[0], 64, mr->lkey };
	struct ibv_recv_wr recv = { .sg_list = &to, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr wr = { .sg_list = &from,
				  .num_sge = 1,
				  .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED },
			   *bad;
	int err;

	ud_begin(0x11111111, 0x22222222);
	err = ibv_post_recv(ud[1], &recv, &bad_recv);
	need(!err, "post_recv", err);
	wr.wr.ud.ah = ah_create(&dev, &far);
	wr.wr.ud.remote_qpn = ud[1]->qp_num;
	wr.wr.ud.remote_qkey = qkey;
	for (int i = 0; i < 3 - 2 * good; i++) {
		err = ibv_post_send(ud[0], &wr, &bad);
		need(!err, "post_send", err);
		completion(cq[0]);
	}
	if (good)
		completion(cq[1]);
	/* What is sent within a process is there when something behind it is. */
	one_write();
	need(!ibv_destroy_ah(wr.wr.ud.ah), "destroy_ah", errno);
	for (int i = 0; i < 2; i++)
		need(!ibv_destroy_qp(ud[i]), "destroy_qp", errno);
}

static void qkey_differs(void)
{
	datagrams(0x11111111, 0); /* the sender's own */
}

static void fine_qkey(void)
{
	datagrams(0x22222222, 1);
}

/* Waits for a datagram, whoever sends it. */
static void waits_for_datagram(void)
{
	struct ibv_sge to = { (uintptr_t)memory[SLOTS], SIZE, mr->lkey };
	struct ibv_recv_wr recv = { .sg_list = &to, .num_sge = 1 }, *bad;
	int err;

	ud_begin(0x11111111, 0x11111111);
	err = ibv_post_recv(ud[0], &recv, &bad);
	need(!err, "post_recv", err);
	printf("waits at QP %u\n", ud[0]->qp_num);
	completion(cq[1]);
	for (int i = 0; i < 2; i++)
		need(!ibv_destroy_qp(ud[i]), "destroy_qp", errno);
}

/* ---- races ------------------------------------------------------------- */

/* Another two, and larger memory: of the requests, and what they go to. */
#define BIG (256u << 10)
#define ROUNDS 3000

static struct ibv_qp *others[2];
static struct ibv_mr *big_mr;
static uint8_t big[2][BIG] __attribute__((aligned(8)));

static void race_begin(void)
{
	big_mr = ibv_reg_mr(dev.pd, big, sizeof(big),
			    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				    IBV_ACCESS_REMOTE_ATOMIC);
	need(!!big_mr, "reg_mr", errno);
	for (int i = 0; i < 2; i++) {
		others[i] = qp_create(NULL);
		need(!!others[i], "create_qp", errno);
	}
	connect_to(others[0], others[1]->qp_num, IBV_MTU_1024, 0);
	connect_to(others[1], others[0]->qp_num, IBV_MTU_1024, 0);
}

static void race_end(void)
{
	for (int i = 0; i < 2; i++)
		need(!ibv_destroy_qp(others[i]), "destroy_qp", errno);
	need(!ibv_dereg_mr(big_mr), "dereg_mr", errno);
}

/* From a place in big[0] to one in big[1]. */
static void put(struct ibv_qp *q, uint32_t from, uint32_t to, uint32_t len,
		enum ibv_wr_opcode op, unsigned flags)
{
	struct ibv_sge sge = { (uintptr_t)&big[0][from], len, big_mr->lkey };
	struct ibv_send_wr wr = { .wr_id = from,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = op,
				  .send_flags = flags },
			   *bad;
	int err;

	if (op == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = (uintptr_t)&big[1][to];
		wr.wr.atomic.rkey = big_mr->rkey;
		wr.wr.atomic.compare_add = 1;
	} else {
		wr.wr.rdma.remote_addr = (uintptr_t)&big[1][to];
		wr.wr.rdma.rkey = big_mr->rkey;
	}
	err = ibv_post_send(q, &wr, &bad);
	need(!err, "post_send", err);
}

#define WRITE IBV_WR_RDMA_WRITE
#define SIGNAL IBV_SEND_SIGNALED

/* Both at a time, whether they meet is a matter of time: often. */
static void race(uint32_t len, uint32_t to, enum ibv_wr_opcode op)
{
	race_begin();
	for (int i = 0; i < ROUNDS / (len > 1024 ? 10 : 1); i++) {
		put(qp[0], 0, 0, len, op, SIGNAL);
		put(others[0], BIG / 2, to, len, WRITE, SIGNAL);
		completion(cq[0]);
		completion(cq[0]);
	}
	race_end();
}

static void race_writes(void)
{
	big[0][0] = 1;
	race(8, 0, WRITE);
}

static void race_large(void)
{
	big[0][0] = 1;
	race(BIG / 2, 0, WRITE);
}

static void race_add(void)
{
	race(8, 0, IBV_WR_ATOMIC_FETCH_AND_ADD);
}

static void fine_race_content(void)
{
	race(64, 0, WRITE);
}

static void fine_race_place(void)
{
	big[0][0] = 1;
	race(64, 64, WRITE);
}

static void fine_race_adds(void)
{
	race_begin();
	for (int i = 0; i < ROUNDS; i++) {
		put(qp[0], 0, 0, 8, IBV_WR_ATOMIC_FETCH_AND_ADD, SIGNAL);
		put(others[0], 8, 0, 8, IBV_WR_ATOMIC_FETCH_AND_ADD, SIGNAL);
		completion(cq[0]);
		completion(cq[0]);
	}
	race_end();
}

/* One after the other. */
static void fine_race_polled(void)
{
	race_begin();
	for (int i = 0; i < ROUNDS; i++) {
		big[0][0] = (uint8_t)i;
		put(i & 1 ? qp[0] : others[0], 0, 0, 1024, WRITE, SIGNAL);
		completion(cq[0]);
	}
	race_end();
}

/* A message behind the first says that it is there; its completion is polled
 * later. */
static void fine_race_told(void)
{
	race_begin();
	big[0][0] = 1;
	for (int i = 0; i < ROUNDS; i++) {
		put(qp[0], 0, 0, 1024, WRITE, 0);
		send_one(1, SIGNAL);
		completion(cq[1]);
		put(others[0], 2048, 0, 1024, WRITE, SIGNAL);
		completion(cq[0]);
		completion(cq[0]);
	}
	race_end();
}

/* The first one is behind a message that the other end is not ready for. */
static void fine_race_waits(void)
{
	struct ibv_sge sge = { (uintptr_t)memory[SLOTS], SIZE, mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	int err;

	race_begin();
	big[0][0] = 1;
	for (int i = 0; i < 50; i++) {
		post(others[0], IBV_WR_SEND, 1, 0);
		put(others[0], 2048, 0, 1024, WRITE, SIGNAL);
		put(qp[0], 0, 0, 1024, WRITE, SIGNAL);
		completion(cq[0]);
		err = ibv_post_recv(others[1], &wr, &bad);
		need(!err, "post_recv", err);
		completion(cq[0]);
		completion(cq[1]);
	}
	race_end();
}

/* What two processes are to know of each other, by pipes. */
struct hello {
	uint32_t qpn, rkey;
};

static void tell(int fd, uint32_t qpn, uint32_t rkey)
{
	const struct hello h = { qpn, rkey };

	need(write(fd, &h, sizeof(h)) == sizeof(h), "write", errno);
}

static struct hello hear(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	struct hello h = { 0 };

	need(poll(&p, 1, 30000) == 1 && read(fd, &h, sizeof(h)) == sizeof(h),
	     "the other process", ETIMEDOUT);
	return h;
}

/* Writes to where its parent has the same memory. */
__attribute__((noreturn)) static void initiator(int in, int out, uint8_t what)
{
	struct ibv_qp *q;
	struct hello far;

	dev_open(&dev, NULL, 0);
	for (int i = 0; i < 2; i++) {
		cq[i] = ibv_create_cq(dev.ctx, 4, NULL, NULL, 0);
		need(!!cq[i], "create_cq", errno);
	}
	big_mr = ibv_reg_mr(dev.pd, big, sizeof(big), 0);
	q = qp_create(NULL);
	need(big_mr && q, "reg_mr or create_qp", errno);
	tell(out, q->qp_num, 0);
	far = hear(in);
	connect_to(q, far.qpn, IBV_MTU_1024, 0);
	big_mr->rkey = far.rkey;
	big[0][0] = what;
	tell(out, 0, 0);
	hear(in);
	for (int i = 0; i < ROUNDS; i++) {
		put(q, 0, 0, 8, WRITE, SIGNAL);
		completion(cq[0]);
	}
	tell(out, 0, 0);
	hear(in); /* the parent sees a process that lives */
	_exit(0);
}

static void race_processes(void)
{
	int up[2][2], down[2][2];

	for (uint8_t i = 0; i < 2; i++) {
		need(!pipe(up[i]) && !pipe(down[i]), "pipe", errno);
		if (!fork())
			initiator(down[i][0], up[i][1], i);
	}
	race_begin();
	for (int i = 0; i < 2; i++) {
		need(!ibv_destroy_qp(others[i]), "destroy_qp", errno);
		others[i] = qp_create(NULL);
		need(!!others[i], "create_qp", errno);
		connect_to(others[i], hear(up[i][0]).qpn, IBV_MTU_1024, 0);
		tell(down[i][1], others[i]->qp_num, big_mr->rkey);
	}
	for (int step = 0; step < 2; step++) {
		for (int i = 0; i < 2; i++)
			hear(up[i][0]);
		for (int i = 0; i < 2; i++)
			tell(down[i][1], 0, 0);
	}
	race_end();
}

static _Atomic int stop;

static void *scribble(void *at)
{
	volatile uint8_t *p = at;

	while (!stop)
		(*p)++;
	return NULL;
}

/* While a large write comes the processor writes to its beginning, or behind. */
static void scribbled(uint32_t at)
{
	pthread_t other;

	race_begin();
	need(!pthread_create(&other, NULL, scribble, &big[1][at]),
	     "pthread_create", EAGAIN);
	for (int i = 0; i < ROUNDS / 3; i++) {
		put(qp[0], 0, 0, BIG / 2, WRITE, SIGNAL);
		completion(cq[0]);
	}
	stop = 1;
	pthread_join(other, NULL);
	race_end();
}

static void race_processor(void)
{
	scribbled(0);
}

static void fine_race_behind(void)
{
	scribbled(BIG / 2);
}

/* Polls for some seconds, or for ever. */
static void polls(struct ibv_cq *other, int seconds)
{
	struct timespec now, end;
	struct ibv_wc wc;

	clock_gettime(CLOCK_MONOTONIC, &end);
	end.tv_sec += seconds;
	do {
		need(!ibv_poll_cq(cq[0], 1, &wc), "a completion", EEXIST);
		if (other)
			ibv_poll_cq(other, 1, &wc);
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (!seconds || now.tv_sec < end.tv_sec);
}

static void unsignaled(void)
{
	post(qp[0], IBV_WR_RDMA_WRITE, 0, 0);
	polls(NULL, 0);
}

/* It does something else as well. */
static void fine_unsignaled(void)
{
	post(qp[0], IBV_WR_RDMA_WRITE, 0, 0);
	polls(cq[1], 4);
}

/* As with one signaled request in many. */
static void fine_unsignaled_yet(void)
{
	post(qp[0], IBV_WR_RDMA_WRITE, 0, IBV_SEND_SIGNALED);
	completion(cq[0]);
	post(qp[0], IBV_WR_RDMA_WRITE, 0, 0);
	polls(NULL, 4);
}

static void make_address(const char *to, uint8_t hops)
{
	struct ibv_ah_attr a = { .port_num = 1,
				 .is_global = 1,
				 .grh.hop_limit = hops };
	struct ibv_ah *ah;

	need(inet_pton(AF_INET6, to, &a.grh.dgid) == 1, to, EINVAL);
	ah = ibv_create_ah(dev.pd, &a);
	need(!!ah, "create_ah", errno);
	ibv_destroy_ah(ah);
}

static void no_hops(void)
{
	make_address("::ffff:192.0.2.7", 0);
}

static void fine_hops(void)
{
	make_address("::ffff:192.0.2.7", 1);
	make_address("::ffff:224.0.0.7", 0);
}

static void nothing(void)
{
}

static void grh_missing(void)
{
	struct ibv_ah_attr a = { .port_num = 1, .dlid = 1 };

	need(!ibv_create_ah(dev.pd, &a) && errno == EINVAL, "create_ah", errno);
}

static const struct mode {
	const char *name;
	void (*run)(void);
	void (*first)(void); /* before the device is opened */
	int cq_entries;
	int extended;
	enum ibv_mtu mtu; /* of the second QP */
	uint32_t psn; /* its rq_psn */
	bool qpn; /* it is connected to another */
} modes[] = {
	{ .name = "buffer-in-flight", .run = buffer_in_flight },
	{ .name = "buffer-in-flight-extended",
	  .run = buffer_in_flight_extended,
	  .extended = 1 },
	{ .name = "unnoticed", .run = unnoticed },
	{ .name = "restricted", .run = restricted },
	{ .name = "restricted-first",
	  .run = buffer_in_flight,
	  .first = restrict_calls },
	{ .name = "buffer-unsignalled", .run = buffer_unsignalled },
	{ .name = "buffer-before-a-receive", .run = buffer_before_a_receive },
	{ .name = "fine-buffer-polled", .run = fine_buffer_polled },
	{ .name = "fine-buffer-polled-extended",
	  .run = fine_buffer_polled_extended,
	  .extended = 1 },
	{ .name = "fine-buffer-answered", .run = fine_buffer_answered },
	{ .name = "fine-buffer-written", .run = fine_buffer_written },
	{ .name = "fine-buffer-received", .run = fine_buffer_received },
	{ .name = "fine-buffer-fenced", .run = fine_buffer_fenced },
	{ .name = "fine-buffer-inline", .run = fine_buffer_inline },
	{ .name = "result-in-flight", .run = result_in_flight },
	{ .name = "fine-result", .run = fine_result },
	{ .name = "send-queue-never-drains", .run = never_drains },
	{ .name = "fine-send-queue", .run = fine_drains },
	{ .name = "send-queue-overrun", .run = sq_overrun },
	{ .name = "cq-overrun", .run = cq_overrun, .cq_entries = 2 },
	{ .name = "fine-cq", .run = fine_cq, .cq_entries = 2 },
	{ .name = "lost-wakeup", .run = lost_wakeup },
	{ .name = "fine-wakeup", .run = fine_wakeup },
	{ .name = "event-not-acknowledged", .run = unacked },
	{ .name = "fine-acknowledged", .run = fine_acked },
	{ .name = "object-leaked", .run = leaked },
	{ .name = "fine-exit", .run = fine_exit },
	{ .name = "key-of-the-past", .run = past_rkey },
	{ .name = "key-of-the-past-local", .run = past_lkey },
	{ .name = "fine-key-unknown", .run = fine_keys },
	{ .name = "fine-key-new", .run = fine_new_key },
	{ .name = "keys-exchanged", .run = keys_exchanged },
	{ .name = "keys-exchanged-local", .run = keys_exchanged_local },
	{ .name = "address-cut", .run = address_cut },
	{ .name = "address-signed", .run = address_signed },
	{ .name = "fine-address", .run = fine_address },
	{ .name = "completion-never-comes", .run = unsignaled },
	{ .name = "fine-unsignaled", .run = fine_unsignaled },
	{ .name = "fine-unsignaled-yet", .run = fine_unsignaled_yet },
	{ .name = "hop-limit-zero", .run = no_hops },
	{ .name = "fine-hops", .run = fine_hops },
	{ .name = "mtu-too-large", .run = nothing, .mtu = IBV_MTU_4096 },
	{ .name = "mtu-disagrees", .run = one_write, .mtu = IBV_MTU_2048 },
	{ .name = "fine-mtu", .run = one_write, .mtu = IBV_MTU_1024 },
	{ .name = "psn-disagrees", .run = unanswered, .psn = 0x123 },
	{ .name = "psn-disagrees-repeats", .run = psn_repeats, .psn = 1 },
	{ .name = "peer-disagrees", .run = to_another, .qpn = true },
	{ .name = "qkey-disagrees", .run = qkey_differs },
	{ .name = "fine-qkey", .run = fine_qkey },
	{ .name = "pkey-disagrees", .run = waits_for_datagram },
	{ .name = "race-of-peers", .run = race_writes },
	{ .name = "race-of-peers-large", .run = race_large },
	{ .name = "race-of-peers-atomic", .run = race_add },
	{ .name = "race-of-processes", .run = race_processes },
	{ .name = "race-with-processor", .run = race_processor },
	{ .name = "fine-race-content", .run = fine_race_content },
	{ .name = "fine-race-place", .run = fine_race_place },
	{ .name = "fine-race-adds", .run = fine_race_adds },
	{ .name = "fine-race-polled", .run = fine_race_polled },
	{ .name = "fine-race-told", .run = fine_race_told },
	{ .name = "fine-race-waits", .run = fine_race_waits },
	{ .name = "fine-race-behind", .run = fine_race_behind },
	{ .name = "grh-missing", .run = grh_missing },
};

int main(int argc, char **argv)
{
	const struct mode *m = modes;
	const struct mode *const past = modes + sizeof(modes) / sizeof(*m);

	setvbuf(stdout, NULL, _IOLBF, 0);
	while (m != past && (argc < 2 || strcmp(m->name, argv[1])))
		m++;
	if (m == past) {
		printf("no such mode\n");
		return 2;
	}
	if (m->cq_entries)
		cq_entries = m->cq_entries;
	extended = m->extended;
	if (m->mtu)
		other_mtu = m->mtu;
	other_psn = m->psn;
	other_qpn = m->qpn;
	if (m->first)
		m->first();
	begin();
	m->run();
	end();
	printf("done\n");
	return 0;
}

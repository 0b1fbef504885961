/*
 * cm_pairs.c - ends in several processes, which tests start and kill
 */
#include "cm_check.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void wait_server(void)
{
	const char *uid = getenv("CM_CHECK_UID"); /* to become, once begun */
	struct rdma_conn_param param = usual;
	struct rdma_cm_event *ev;
	char line[160];

	NEED(sch = rdma_create_event_channel());
	if (uid)
		NEED(!setuid((uid_t)atoi(uid)));
	NEED(!rdma_create_id(sch, &listener, NULL, RDMA_PS_TCP));
	port = (uint16_t)atoi(getenv("CM_CHECK_PORT"));
	if (rdma_bind_addr(listener, addr_of(port))) {
		printf("bind: %s\n", strerror(errno));
		exit(99);
	}
	NEED(!rdma_listen(listener, 0));
	say("listening");
	for (;;) {
		NEED(!rdma_get_cm_event(sch, &ev));
		snprintf(line, sizeof(line), "%s %d", rdma_event_str(ev->event),
			 ev->status);
		if (ev->event == RDMA_CM_EVENT_CONNECT_REQUEST &&
		    !getenv("CM_CHECK_MUTE")) {
			add_qp(ev->id);
			NEED(!rdma_accept(ev->id, &param));
		}
		if (ev->event == RDMA_CM_EVENT_DISCONNECTED)
			rdma_disconnect(ev->id);
		say(line);
		rdma_ack_cm_event(ev);
	}
}

static void wait_client(void)
{
	struct rdma_conn_param param = usual;
	struct rdma_cm_event *ev;
	struct rdma_cm_id *c;
	char line[160];

	port = (uint16_t)atoi(getenv("CM_CHECK_PORT"));
	NEED(cch = rdma_create_event_channel());
	c = resolved();
	add_qp(c);
	NEED(!rdma_connect(c, &param));
	say("connecting");
	do {
		NEED(!rdma_get_cm_event(cch, &ev));
		snprintf(line, sizeof(line), "%s %d", rdma_event_str(ev->event),
			 ev->status);
		say(line);
		if (ev->event == RDMA_CM_EVENT_ESTABLISHED &&
		    getenv("CM_CHECK_EXIT"))
			exit(0); /* without a word: that is for the library */
		if (ev->event == RDMA_CM_EVENT_DISCONNECTED ||
		    ev->event == RDMA_CM_EVENT_REJECTED ||
		    ev->event == RDMA_CM_EVENT_UNREACHABLE)
			exit(0);
		rdma_ack_cm_event(ev);
	} while (1);
}

/* A server that gives back what it gets, to any number of clients and through
 * whatever else comes along. */
#define ECHO_MAX 512
#define ECHO_BYTES 4096u

static struct echo {
	struct rdma_cm_id *id; /* NULL: free */
	uint32_t uses; /* tells completions of former users */
	char *buf;
	struct ibv_mr *mr;
} echoes[ECHO_MAX];

static struct echo *echo_of(const struct rdma_cm_id *id)
{
	for (size_t i = 0; i < ECHO_MAX; i++)
		if (echoes[i].id == id)
			return &echoes[i];
	return NULL;
}

static uint64_t echo_wr(const struct echo *e)
{
	return (uint64_t)e->uses << 32 | (uint64_t)(e - echoes);
}

static void echo_end(struct echo *e)
{
	rdma_destroy_qp(e->id);
	ibv_dereg_mr(e->mr);
	rdma_destroy_id(e->id);
	e->id = NULL;
	e->uses++;
}

static int echo_begin(struct rdma_cm_id *id, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 2,
			 .max_recv_wr = 2,
			 .max_send_sge = 1,
			 .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};
	struct rdma_conn_param param = usual;
	struct echo *e = echo_of(NULL);

	if (!e || rdma_create_qp(id, NULL, &attr))
		return -1;
	if (!e->buf)
		NEED(e->buf = malloc(ECHO_BYTES));
	NEED(e->mr = rdma_reg_msgs(id, e->buf, ECHO_BYTES));
	e->id = id;
	NEED(!rdma_post_recv(id, (void *)(uintptr_t)echo_wr(e), e->buf,
			     ECHO_BYTES, e->mr));
	/* what has been asked for may be out of reach, or out of date */
	if (rdma_accept(id, &param)) {
		rdma_destroy_qp(id);
		ibv_dereg_mr(e->mr);
		e->id = NULL;
		e->uses++;
		return -1;
	}
	return 0;
}

static void echo_completions(struct ibv_cq *cq)
{
	struct ibv_wc wc;

	while (ibv_poll_cq(cq, 1, &wc) == 1) {
		struct echo *e = &echoes[(uint32_t)wc.wr_id];
		void *wr = (void *)(uintptr_t)wc.wr_id;

		if (wc.status || !e->id || e->uses != wc.wr_id >> 32)
			continue;
		if (wc.opcode == IBV_WC_SEND)
			continue;
		/* the answer has left before the next question comes */
		rdma_post_recv(e->id, wr, e->buf, ECHO_BYTES, e->mr);
		rdma_post_send(e->id, wr, e->buf, wc.byte_len, e->mr, 0);
	}
}

static void echo_event(struct rdma_cm_event *ev, struct ibv_cq *cq)
{
	enum rdma_cm_event_type type = ev->event;
	struct rdma_cm_id *id = ev->id;
	static int strangers; /* who did not mean it */
	char line[64];

	rdma_ack_cm_event(ev);
	switch (type) {
	case RDMA_CM_EVENT_CONNECT_REQUEST:
		if (echo_begin(id, cq))
			rdma_destroy_id(id); /* that refuses it */
		break;
	case RDMA_CM_EVENT_DISCONNECTED:
		rdma_disconnect(id);
		echo_end(echo_of(id));
		break;
	case RDMA_CM_EVENT_REJECTED:
	case RDMA_CM_EVENT_UNREACHABLE:
		echo_end(echo_of(id));
		if (++strangers % 100)
			break;
		snprintf(line, sizeof(line), "%d strangers", strangers);
		say(line);
		break;
	default:
		break;
	}
}

static void echo_server(void)
{
	struct ibv_comp_channel *cc;
	struct rdma_cm_event *ev;
	struct ibv_cq *cq;
	void *context;

	alarm(300);
	NEED(sch = rdma_create_event_channel());
	NEED(!rdma_create_id(sch, &listener, NULL, RDMA_PS_TCP));
	NEED(!rdma_bind_addr(listener,
			     addr_of((uint16_t)atoi(getenv("CM_CHECK_PORT")))));
	NEED(cc = ibv_create_comp_channel(listener->verbs));
	NEED(cq = ibv_create_cq(listener->verbs, 4 * ECHO_MAX, NULL, cc, 0));
	NEED(!ibv_req_notify_cq(cq, 0));
	NEED(!rdma_listen(listener, 0));
	say("listening");
	for (;;) {
		struct pollfd p[] = { { .fd = sch->fd, .events = POLLIN },
				      { .fd = cc->fd, .events = POLLIN } };

		NEED(poll(p, 2, -1) > 0);
		if (p[1].revents) {
			NEED(!ibv_get_cq_event(cc, &cq, &context));
			ibv_ack_cq_events(cq, 1);
			NEED(!ibv_req_notify_cq(cq, 0));
			echo_completions(cq);
		}
		if (p[0].revents) {
			NEED(!rdma_get_cm_event(sch, &ev));
			echo_event(ev, cq);
		}
	}
}

static void echo_client(void)
{
	char out[ECHO_BYTES], in[ECHO_BYTES];
	struct rdma_conn_param param = usual;
	struct ibv_mr *mo, *mi;
	struct rdma_cm_id *c;
	struct ibv_wc wc;

	port = (uint16_t)atoi(getenv("CM_CHECK_PORT"));
	NEED(cch = rdma_create_event_channel());
	c = resolved();
	add_qp(c);
	NEED(mo = rdma_reg_msgs(c, out, sizeof(out)));
	NEED(mi = rdma_reg_msgs(c, in, sizeof(in)));
	NEED(!rdma_connect(c, &param));
	EXPECT(cch, ESTABLISHED, 0);
	for (int i = 0; i < many_n; i++) {
		memset(in, 0, sizeof(in));
		fill((uint8_t *)out, sizeof(out), (unsigned)(i + getpid()));
		NEED(!rdma_post_recv(c, NULL, in, sizeof(in), mi));
		NEED(!rdma_post_send(c, NULL, out, sizeof(out), mo, 0));
		NEED(rdma_get_send_comp(c, &wc) == 1 && !wc.status);
		NEED(rdma_get_recv_comp(c, &wc) == 1 && !wc.status);
		NEED(wc.byte_len == sizeof(in) && !memcmp(in, out, sizeof(in)));
		usleep(10000); /* it is to last */
	}
	CHECK(quiet(cch, 0));
	CHECK(!rdma_disconnect(c));
	EXPECT(cch, DISCONNECTED, 0);
	rdma_dereg_mr(mo);
	rdma_dereg_mr(mi);
	finish_id(c);
	rdma_destroy_event_channel(cch);
}

/*
 * What was sent before the peer disconnected comes first, although it and DREQ
 * take different ways: the receiver stands still while both arrive. It takes
 * completions before events, as programs with one loop do, or sleeps until
 * there is an event.
 */
#define BURST 60 /* leave without an acknowledgement */
#define BURSTS 200

static void burst_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = BURST,
			 .max_recv_wr = BURST,
			 .max_send_sge = 1,
			 .max_recv_sge = 1,
			 .max_inline_data = 1 },
		.qp_type = id->qp_type,
	};

	NEED(!rdma_create_qp(id, NULL, &attr));
}

/* Counts the completions of c, those that are flushed apart. */
static void burst_count(struct rdma_cm_id *c, int *got, int *flushed)
{
	struct ibv_wc wc[BURST];
	int n;

	while ((n = ibv_poll_cq(c->recv_cq, BURST, wc)) > 0)
		for (int i = 0; i < n; i++)
			*(wc[i].status ? flushed : got) += 1;
	NEED(!n);
}

static void burst_serve(bool sleeps)
{
	struct rdma_conn_param param = usual;
	int got = 0, flushed = 0;
	struct rdma_cm_event *ev;
	static char in[BURST];
	struct rdma_cm_id *c;
	struct ibv_mr *mr;

	NEED(!fcntl(sch->fd, F_SETFL, 0));
	ev = GET(sch, CONNECT_REQUEST, 0);
	c = ev->id;
	rdma_ack_cm_event(ev);
	burst_qp(c);
	NEED(mr = rdma_reg_msgs(c, in, sizeof(in)));
	for (int i = 0; i < BURST; i++)
		NEED(!rdma_post_recv(c, NULL, in + i, 1, mr));
	NEED(!rdma_accept(c, &param));
	EXPECT(sch, ESTABLISHED, 0);
	if (!sleeps)
		NEED(!fcntl(sch->fd, F_SETFL, O_NONBLOCK));
	do {
		if (!sleeps)
			burst_count(c, &got, &flushed);
	} while (rdma_get_cm_event(sch, &ev));
	NEED(ev->event == RDMA_CM_EVENT_DISCONNECTED);
	NEED(!rdma_disconnect(c));
	rdma_ack_cm_event(ev);
	burst_count(c, &got, &flushed);
	if (got != BURST)
		printf("%d messages, %d flushed\n", got, flushed);
	CHECK(got == BURST && !flushed);
	rdma_dereg_mr(mr);
	finish_id(c);
}

static void burst_server(void)
{
	char line[40];

	serve();
	snprintf(line, sizeof(line), "pid %d port %u", (int)getpid(), port);
	say(line);
	for (int i = 0; i < BURSTS; i++)
		burst_serve(i % 2);
	finish();
}

static void burst_client(void)
{
	const pid_t server = (pid_t)atoi(getenv("CM_CHECK_PID"));
	struct rdma_conn_param param = usual;
	struct rdma_cm_id *c;
	char out = 1;

	port = (uint16_t)atoi(getenv("CM_CHECK_PORT"));
	NEED(cch = rdma_create_event_channel());
	for (int i = 0; i < BURSTS; i++) {
		c = resolved();
		burst_qp(c);
		NEED(!rdma_connect(c, &param));
		EXPECT(cch, ESTABLISHED, 0);
		usleep(2000); /* the server polls, or sleeps */
		NEED(!kill(server, SIGSTOP));
		for (int n = 0; n < BURST; n++)
			NEED(!rdma_post_send(c, NULL, &out, 1, NULL,
					     IBV_SEND_INLINE));
		CHECK(!rdma_disconnect(c));
		NEED(!kill(server, SIGCONT));
		EXPECT(cch, DISCONNECTED, 0);
		finish_id(c);
	}
	rdma_destroy_event_channel(cch);
}

const struct situation cm_pairs[] = {
	{ "wait_server", wait_server },
	{ "wait_client", wait_client },
	{ "echo_server", echo_server },
	{ "echo_client", echo_client },
	{ "burst_server", burst_server },
	{ "burst_client", burst_client },
	{ NULL, NULL },
};

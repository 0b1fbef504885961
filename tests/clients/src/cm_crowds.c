/*
 * cm_crowds.c - many connections at once, and threads that change their mind
 */
#include "cm_check.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int count_fds(void)
{
	int n = 0;

	for (int fd = 0; fd < 1 << 16; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

/* Resident memory would count what the heap keeps, and is not exact. */
static long allocated(void)
{
	struct mallinfo2 m = mallinfo2();

	return (long)(m.uordblks + m.hblkhd);
}

static void many_once(struct rdma_cm_id **c, struct rdma_cm_id **s,
		      uint16_t *used)
{
	uint8_t timeout = 14; /* 67 ms, and so TIMEWAIT */
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 1,
			 .max_recv_wr = 1,
			 .max_send_sge = 1,
			 .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	struct rdma_conn_param param = usual;
	struct rdma_cm_event *ev;
	struct ibv_cq *cq;
	int accepted = 0, up = 0, down = 0;

	for (int i = 0; i < many_n; i++) {
		NEED(!rdma_create_id(cch, &c[i], NULL, RDMA_PS_TCP));
		NEED(!rdma_set_option(c[i], RDMA_OPTION_ID,
				      RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, 1));
		NEED(!rdma_resolve_addr(c[i], NULL, addr_of(port), 2000));
		EXPECT(cch, ADDR_RESOLVED, 0);
		used[i] = ntohs(rdma_get_src_port(c[i]));
		NEED(!rdma_resolve_route(c[i], 2000));
		EXPECT(cch, ROUTE_RESOLVED, 0);
	}
	NEED(cq = ibv_create_cq(c[0]->verbs, 16, NULL, NULL, 0));
	attr.send_cq = attr.recv_cq = cq;
	for (int i = 0; i < many_n; i++) {
		NEED(!rdma_create_qp(c[i], NULL, &attr));
		NEED(!rdma_connect(c[i], &param));
	}
	while (accepted < many_n) {
		struct rdma_cm_id *id;

		NEED(!rdma_get_cm_event(sch, &ev));
		if (ev->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
			id = s[accepted++] = ev->id;
			NEED(!rdma_create_qp(id, NULL, &attr));
			NEED(!rdma_accept(id, &param));
		} else {
			CHECK(ev->event == RDMA_CM_EVENT_ESTABLISHED);
			up++;
		}
		rdma_ack_cm_event(ev);
	}
	for (int i = 0; i < many_n; i++)
		EXPECT(cch, ESTABLISHED, 0);
	for (; up < many_n; up++)
		EXPECT(sch, ESTABLISHED, 0);
	for (int i = 0; i < many_n; i++)
		NEED(!rdma_disconnect(c[i]));
	for (; down < many_n; down++) {
		do {
			NEED(!rdma_get_cm_event(sch, &ev));
			CHECK(ev->event == RDMA_CM_EVENT_DISCONNECTED ||
			      ev->event == RDMA_CM_EVENT_TIMEWAIT_EXIT);
			if (ev->event == RDMA_CM_EVENT_DISCONNECTED) {
				NEED(!rdma_disconnect(ev->id));
				rdma_ack_cm_event(ev);
				break;
			}
			rdma_ack_cm_event(ev);
		} while (1);
	}
	for (int i = 0; i < many_n; i++) {
		rdma_destroy_qp(c[i]);
		rdma_destroy_qp(s[i]);
		NEED(!rdma_destroy_id(c[i]));
		NEED(!rdma_destroy_id(s[i]));
	}
	NEED(!ibv_destroy_cq(cq));
}

/* All at once, and nothing is left of them. Of a TCP connection (iWARP) both ends
 * go when each has the other's FIN, a moment later. */
static void many(void)
{
	struct rdma_cm_id **c, **s, *id;
	uint16_t *used;
	long was = 0, most;
	int fds = 0;

	c = calloc((size_t)many_n, sizeof(*c));
	s = calloc((size_t)many_n, sizeof(*s));
	used = calloc((size_t)many_n, sizeof(*used));
	serve();
	for (int round = 0; round < 4; round++) {
		many_once(c, s, used);
		/* their ports are free again when timewait has passed */
		for (int i = 0; i < many_n; i++) {
			NEED(!rdma_create_id(cch, &id, NULL, RDMA_PS_TCP));
			AWAIT(!rdma_bind_addr(id, addr_of(used[i])));
			rdma_destroy_id(id);
		}
		if (round == 0)
			fds = count_fds();
		AWAIT(count_fds() <= fds);
		if (round == 1)
			was = allocated();
	}
	/* 64 bytes per connection of the last two rounds would show. */
	most = was + 2 * 64 * many_n;
	for (int ms = 0; allocated() > most && ms < LIMIT_MS; ms++)
		usleep(1000);
	if (allocated() > most) {
		printf("%ld bytes allocated, %ld before\n", allocated(), was);
		bad++;
	}
	finish();
	free(c);
	free(s);
	free(used);
}

#define IN_ORDER 8

static void connect_numbered(struct rdma_cm_id *id, uint8_t i)
{
	struct rdma_conn_param param = usual;

	param.private_data = &i;
	param.private_data_len = 1;
	NEED(!rdma_connect(id, &param));
}

static void expect_numbered(uint8_t i)
{
	struct rdma_cm_event *ev = GET(sch, CONNECT_REQUEST, 0);
	const uint8_t *got = ev->param.conn.private_data;

	if (*got != i) {
		printf("request %d comes in the place of %d\n", *got, i);
		bad++;
	}
	NEED(!rdma_reject(ev->id, NULL, 0));
	drop_request(ev);
}

static void all_rejected(struct rdma_cm_id **c)
{
	for (int i = 0; i < IN_ORDER; i++)
		EXPECT(cch, REJECTED, -ECONNREFUSED);
	for (int i = 0; i < IN_ORDER; i++)
		finish_id(c[i]);
}

/* Who is to connect, one after the other. */
static void all_resolved(struct rdma_cm_id *c[IN_ORDER])
{
	for (int i = 0; i < IN_ORDER; i++) {
		c[i] = resolved();
		add_qp(c[i]);
	}
}

/* Some connect, the listener comes, and the others do. False: it has come so late
 * that one has given up. */
static bool order_from(int early)
{
	struct rdma_cm_id *c[IN_ORDER];
	bool in_time;

	NEED(!rdma_create_id(sch, &listener, "listener", RDMA_PS_TCP));
	NEED(!rdma_bind_addr(listener, addr_of(0)));
	port = ntohs(rdma_get_src_port(listener));
	all_resolved(c);
	for (int i = 0; i < early; i++)
		connect_numbered(c[i], (uint8_t)i);
	if (early)
		usleep(5000); /* they have been refused once */
	NEED(!rdma_listen(listener, IN_ORDER));
	in_time = quiet(cch, 0);
	for (int i = early; i < IN_ORDER; i++)
		connect_numbered(c[i], (uint8_t)i);
	for (int i = 0; in_time && i < IN_ORDER; i++)
		expect_numbered((uint8_t)i);
	if (in_time)
		all_rejected(c);
	else
		for (int i = 0; i < IN_ORDER; i++)
			finish_id(c[i]);
	NEED(!rdma_destroy_id(listener));
	return in_time;
}

/* Nobody ever listens: each of them hears that, in order. */
static void order_refused(void)
{
	struct rdma_cm_id *c[IN_ORDER], *deaf;

	NEED(!rdma_create_id(sch, &deaf, NULL, RDMA_PS_TCP));
	NEED(!rdma_bind_addr(deaf, addr_of(0)));
	port = ntohs(rdma_get_src_port(deaf));
	all_resolved(c);
	for (int i = 0; i < IN_ORDER; i++)
		connect_numbered(c[i], (uint8_t)i);
	/* who gives up while it waits holds up nobody */
	finish_id(c[1]);
	for (int i = 0; i < IN_ORDER; i++) {
		struct rdma_cm_event *ev;

		if (i == 1)
			continue;
		ev = GET(cch, REJECTED, -ECONNREFUSED);
		CHECK(ev->id == c[i]);
		rdma_ack_cm_event(ev);
		finish_id(c[i]);
	}
	NEED(!rdma_destroy_id(deaf));
}

/* Who connects one after the other is heard in that order, even if some find no
 * listener yet. */
static void order(void)
{
	NEED(cch = rdma_create_event_channel());
	NEED(sch = rdma_create_event_channel());
	for (int early = 0; early <= IN_ORDER; early++)
		for (int tries = 0; !order_from(early); tries++) {
			NEED(tries < 20);
			rdma_destroy_event_channel(cch);
			rdma_destroy_event_channel(sch);
			NEED(cch = rdma_create_event_channel());
			NEED(sch = rdma_create_event_channel());
		}
	order_refused();
	rdma_destroy_event_channel(cch);
	rdma_destroy_event_channel(sch);
}

/* So are those that find the backlog full. */
static void order_backlog(void)
{
	struct rdma_cm_id *c[IN_ORDER];

	serve_ps(RDMA_PS_TCP, 1);
	all_resolved(c);
	for (int i = 0; i < IN_ORDER / 2; i++)
		connect_numbered(c[i], (uint8_t)i);
	usleep(50000);
	for (int i = 0; i < IN_ORDER; i++) {
		/* a new one finds room before those that wait look again */
		expect_numbered((uint8_t)i);
		if (i < IN_ORDER / 2)
			connect_numbered(c[i + IN_ORDER / 2],
					 (uint8_t)(i + IN_ORDER / 2));
	}
	all_rejected(c);
	finish();
}

/* Many threads that connect, change their mind at any moment, and are treated
 * in all ways; in the end nothing is left on either side. */
#define CHURN_THREADS 4
#define CHURN_ROUNDS 150

enum churn_answer { ACCEPT, ACCEPT_HANG_UP, REJECT, DESTROY, ANSWERS };
enum churn_plan { HANG_UP, JUST_CLOSE, CLOSE_AT_ONCE, CLOSE_SOON, PLANS };

static _Atomic int churn_live, churn_stop;

static void churn_request(struct rdma_cm_id *id, enum churn_answer answer)
{
	struct rdma_conn_param param = usual;

	id->context = (void *)(uintptr_t)answer;
	if (answer == REJECT)
		rdma_reject(id, "no", 3); /* it may be over by now */
	if (answer == REJECT || answer == DESTROY) {
		rdma_destroy_id(id);
		return;
	}
	add_qp(id);
	if (rdma_accept(id, &param))
		finish_id(id);
	else
		churn_live++;
}

static void *churn_server(void *arg)
{
	struct rdma_cm_event *ev;

	(void)arg;
	while (!churn_stop || churn_live) {
		enum rdma_cm_event_type type;
		enum churn_answer answer;
		struct rdma_cm_id *id;

		if (quiet(sch, 10))
			continue;
		NEED(!rdma_get_cm_event(sch, &ev));
		id = ev->id;
		type = ev->event;
		if (type == RDMA_CM_EVENT_CONNECT_REQUEST) {
			const uint8_t *p = ev->param.conn.private_data;

			answer = (enum churn_answer) * p;
			rdma_ack_cm_event(ev);
			churn_request(id, answer);
			continue;
		}
		answer = (enum churn_answer)(uintptr_t)id->context;
		rdma_ack_cm_event(ev);
		if (type == RDMA_CM_EVENT_ESTABLISHED) {
			if (answer == ACCEPT_HANG_UP)
				NEED(!rdma_disconnect(id));
			continue;
		}
		if (type == RDMA_CM_EVENT_TIMEWAIT_EXIT)
			continue;
		if (type == RDMA_CM_EVENT_DISCONNECTED)
			rdma_disconnect(id);
		else
			CHECK(type == RDMA_CM_EVENT_REJECTED ||
			      type == RDMA_CM_EVENT_UNREACHABLE);
		finish_id(id);
		churn_live--;
	}
	return NULL;
}

static void churn_once(struct rdma_event_channel *ch, unsigned *rnd)
{
	enum churn_answer answer = (enum churn_answer)(rand_r(rnd) % ANSWERS);
	enum churn_plan plan = (enum churn_plan)(rand_r(rnd) % PLANS);
	uint8_t data = (uint8_t)answer;
	struct rdma_conn_param param = usual;
	struct rdma_cm_id *id;

	param.private_data = &data;
	param.private_data_len = 1;
	NEED(!rdma_create_id(ch, &id, NULL, RDMA_PS_TCP));
	NEED(!rdma_resolve_addr(id, NULL, addr_of(port), 2000));
	EXPECT(ch, ADDR_RESOLVED, 0);
	NEED(!rdma_resolve_route(id, 2000));
	EXPECT(ch, ROUTE_RESOLVED, 0);
	add_qp(id);
	NEED(!rdma_connect(id, &param));
	if (plan == CLOSE_SOON)
		usleep((useconds_t)(rand_r(rnd) % 1000));
	if (plan == HANG_UP || plan == JUST_CLOSE) {
		if (answer == REJECT || answer == DESTROY)
			EXPECT(ch, REJECTED, 28);
		else
			EXPECT(ch, ESTABLISHED, 0);
	}
	if (plan == HANG_UP && (answer == ACCEPT || answer == ACCEPT_HANG_UP)) {
		if (answer == ACCEPT)
			NEED(!rdma_disconnect(id));
		EXPECT(ch, DISCONNECTED, 0);
		rdma_disconnect(id);
	}
	finish_id(id);
	CHECK(quiet(ch, 0));
}

static void *churn_client(void *arg)
{
	unsigned rnd = (unsigned)(uintptr_t)arg;
	struct rdma_event_channel *ch;

	NEED(ch = rdma_create_event_channel());
	for (int i = 0; i < CHURN_ROUNDS; i++)
		churn_once(ch, &rnd);
	rdma_destroy_event_channel(ch);
	return NULL;
}

static void churn(void)
{
	pthread_t server, t[CHURN_THREADS];

	serve();
	NEED(!pthread_create(&server, NULL, churn_server, NULL));
	for (uintptr_t i = 0; i < CHURN_THREADS; i++)
		NEED(!pthread_create(&t[i], NULL, churn_client, (void *)i));
	for (int i = 0; i < CHURN_THREADS; i++)
		pthread_join(t[i], NULL);
	churn_stop = 1;
	pthread_join(server, NULL);
	/* requests of those who left before they were heard */
	finish();
}

const struct situation cm_crowds[] = {
	{ "many", many },   { "churn", churn },
	{ "order", order }, { "order_backlog", order_backlog },
	{ NULL, NULL },
};

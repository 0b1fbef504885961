/*
 * cm_events.c - event channels: order, waiting, and identifiers that go meanwhile
 */
#include "cm_check.h"

#include "../../lib/sleeps.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

static void nonblock(void)
{
	struct rdma_cm_event *ev;
	struct rdma_cm_id *id;

	serve();
	NEED(!fcntl(cch->fd, F_SETFL, fcntl(cch->fd, F_GETFL) | O_NONBLOCK));
	CHECK(fcntl(cch->fd, F_GETFD) & FD_CLOEXEC);
	FAILS(rdma_get_cm_event(cch, &ev), EAGAIN);
	NEED(!rdma_create_id(cch, &id, NULL, RDMA_PS_TCP));
	NEED(!rdma_resolve_addr(id, NULL, addr_of(port), 2000));
	EXPECT(cch, ADDR_RESOLVED, 0);
	FAILS(rdma_get_cm_event(cch, &ev), EAGAIN);
	CHECK(quiet(cch, 0));
	/* two events, two reads */
	NEED(!rdma_resolve_route(id, 2000));
	rdma_destroy_id(id);
	CHECK(quiet(cch, 0)); /* it took its event along */
	FAILS(rdma_get_cm_event(cch, &ev), EAGAIN);
	finish();
}

/*
 * What was completed before the peer hung up is polled before that is said; a
 * program that polls nothing gets to know all the same. Where the machine is
 * slow the event may come first, but hardly every time.
 */
static void settle(void)
{
	struct rdma_cm_event *ev;
	struct rdma_cm_id *c, *s;
	struct ibv_mr *cm, *sm;
	char out[100], in[100];
	struct ibv_wc wc;
	int held = 0;

	serve();
	NEED(!fcntl(cch->fd, F_SETFL, fcntl(cch->fd, F_GETFL) | O_NONBLOCK));
	for (int round = 0; round < 20; round++) {
		struct pollfd p = { .fd = cch->fd, .events = POLLIN };
		int i = 0;

		connected(&c, &s);
		NEED(cm = rdma_reg_msgs(c, out, sizeof(out)));
		NEED(sm = rdma_reg_msgs(s, in, sizeof(in)));
		NEED(!rdma_post_recv(s, NULL, in, sizeof(in), sm));
		NEED(!rdma_post_send(c, NULL, out, sizeof(out), cm, 0));
		CHECK(rdma_get_recv_comp(s, &wc) == 1);
		CHECK(!rdma_disconnect(s));
		NEED(poll(&p, 1, LIMIT_MS) == 1);
		if (rdma_get_cm_event(cch, &ev)) {
			CHECK(errno == EAGAIN);
			held++;
			if (round & 1) {
				CHECK(ibv_poll_cq(c->send_cq, 1, &wc) == 1 &&
				      wc.status == IBV_WC_SUCCESS);
				CHECK(!rdma_get_cm_event(cch, &ev));
			} else {
				while (rdma_get_cm_event(cch, &ev)) {
					NEED(errno == EAGAIN);
					NEED(poll(&p, 1, LIMIT_MS) == 1);
					NEED(i++ < LIMIT_MS);
					usleep(1000);
				}
			}
		}
		CHECK(ev->event == RDMA_CM_EVENT_DISCONNECTED);
		rdma_ack_cm_event(ev);
		CHECK(!rdma_disconnect(c));
		EXPECT(sch, DISCONNECTED, 0);
		rdma_dereg_mr(cm);
		rdma_dereg_mr(sm);
		finish_id(c);
		finish_id(s);
	}
	CHECK(held);
	finish();
}

static void migrate(void)
{
	struct rdma_event_channel *other;
	struct rdma_conn_param param = usual;
	struct rdma_cm_event *ev;
	struct rdma_cm_id *c, *s;

	serve();
	NEED(other = rdma_create_event_channel());
	/* what libfabric does: resolve in peace, then go on with a channel */
	NEED(!rdma_create_id(NULL, &c, NULL, RDMA_PS_TCP));
	NEED(!rdma_resolve_addr(c, NULL, addr_of(port), 2000));
	CHECK(c->event && c->event->event == RDMA_CM_EVENT_ADDR_RESOLVED);
	NEED(!rdma_migrate_id(c, cch));
	CHECK(!c->event && c->channel == cch);
	NEED(!rdma_resolve_route(c, 2000));
	/* an event that waits goes along */
	NEED(!rdma_migrate_id(c, other));
	CHECK(quiet(cch, 0));
	EXPECT(other, ROUTE_RESOLVED, 0);
	NEED(!rdma_connect(c, &param));
	for (int i = 0; i < 2000 && quiet(sch, 1); i++)
		;
	/* a listener with a request */
	NEED(!rdma_migrate_id(listener, cch));
	CHECK(quiet(sch, 0));
	ev = GET(cch, CONNECT_REQUEST, 0);
	CHECK(ev->listen_id == listener);
	s = ev->id;
	CHECK(s->channel == cch);
	rdma_ack_cm_event(ev);
	NEED(!rdma_migrate_id(s, sch));
	NEED(!rdma_accept(s, &param));
	EXPECT(other, CONNECT_RESPONSE, 0);
	NEED(!rdma_establish(c));
	EXPECT(sch, ESTABLISHED, 0);
	/* and back to waiting in calls */
	NEED(!rdma_migrate_id(c, NULL));
	FAILS(rdma_migrate_id(c, NULL), EINVAL);
	CHECK(!rdma_disconnect(s));
	for (int i = 0; i < 2000 && quiet(c->channel, 1); i++)
		;
	CHECK(!rdma_disconnect(c));
	CHECK(c->event && c->event->event == RDMA_CM_EVENT_DISCONNECTED);
	EXPECT(sch, DISCONNECTED, 0);
	finish_id(c);
	finish_id(s);
	finish();
	rdma_destroy_event_channel(other);
}

/* Requests that wait when their listener, or everything, goes. */
static void destroy_pending(void)
{
	struct rdma_conn_param param = usual;
	struct rdma_cm_id *c[4];

	serve();
	for (int i = 0; i < 4; i++) {
		c[i] = resolved();
		NEED(!rdma_connect(c[i], &param));
	}
	all_arrived();
	CHECK(!rdma_destroy_id(listener));
	for (int i = 0; i < 4; i++)
		EXPECT(cch, REJECTED, 28);
	for (int i = 0; i < 4; i++)
		finish_id(c[i]);
	CHECK(quiet(sch, 0));

	/* a channel with events that nobody will fetch, and identifiers left */
	NEED(!rdma_create_id(sch, &listener, NULL, RDMA_PS_TCP));
	NEED(!rdma_bind_addr(listener, addr_of(port)));
	NEED(!rdma_listen(listener, 0));
	for (int i = 0; i < 4; i++) {
		c[i] = resolved();
		NEED(!rdma_connect(c[i], &param));
	}
	all_arrived();
	rdma_destroy_event_channel(sch);
	for (int i = 0; i < 4; i++)
		EXPECT(cch, REJECTED, 28);
	for (int i = 0; i < 4; i++)
		finish_id(c[i]);
	/* whoever still listens there does so in vain */
	CHECK(!rdma_destroy_id(listener));
	rdma_destroy_event_channel(cch);
}

/* Several threads that sleep in one channel get all of its events, whether they
 * come one by one or many at once. */
static _Atomic unsigned shared_got;

static void *sharer(void *ch)
{
	struct rdma_cm_event *ev;
	bool last = false;

	while (!last && !rdma_get_cm_event(ch, &ev)) {
		last = ev->event == RDMA_CM_EVENT_ROUTE_RESOLVED;
		shared_got++;
		rdma_ack_cm_event(ev);
	}
	return NULL;
}

static void shared_channel(void)
{
	enum { THREADS = 4, IDS = 64, ROUNDS = 100 };
	struct rdma_cm_id *id[IDS];
	pthread_t t[THREADS];
	unsigned sent = 0;

	NEED(cch = rdma_create_event_channel());
	for (int i = 0; i < THREADS; i++)
		NEED(!pthread_create(&t[i], NULL, sharer, cch));
	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i <= round % IDS; i++) {
			NEED(!rdma_create_id(cch, &id[i], NULL, RDMA_PS_TCP));
			NEED(!rdma_resolve_addr(id[i], NULL, addr_of(7), 2000));
			sent++;
		}
		AWAIT(shared_got == sent);
		CHECK(quiet(cch, 0));
		/* the last ones end a thread each */
		for (int i = 0; round == ROUNDS - 1 && i < THREADS; i++)
			NEED(!rdma_resolve_route(id[i], 2000));
		for (int i = 0; round == ROUNDS - 1 && i < THREADS; i++)
			NEED(!pthread_join(t[i], NULL));
		for (int i = 0; i <= round % IDS; i++)
			NEED(!rdma_destroy_id(id[i]));
	}
	CHECK(shared_got == sent + THREADS);
	CHECK(quiet(cch, 0));
	rdma_destroy_event_channel(cch);
}

/* Identifiers destroyed with an event waiting, which a thread is about to get. */
static _Atomic bool drop_over;

static void *getter(void *ch)
{
	struct rdma_cm_event *ev;

	while (!drop_over && !rdma_get_cm_event(ch, &ev))
		rdma_ack_cm_event(ev);
	return NULL;
}

static void destroy_getting(void)
{
	struct rdma_cm_id *id;
	pthread_t t;

	NEED(cch = rdma_create_event_channel());
	NEED(!pthread_create(&t, NULL, getter, cch));
	for (int i = 0; i < 20000; i++) {
		NEED(!rdma_create_id(cch, &id, NULL, RDMA_PS_TCP));
		NEED(!rdma_resolve_addr(id, NULL, addr_of(7), 2000));
		for (int k = 0; k < i % 400; k++) /* now sooner, now later */
			sched_yield();
		NEED(!rdma_destroy_id(id));
	}
	drop_over = true;
	NEED(!rdma_create_id(cch, &id, NULL, RDMA_PS_TCP));
	NEED(!rdma_resolve_addr(id, NULL, addr_of(7), 2000));
	NEED(!pthread_join(t, NULL));
	NEED(!rdma_destroy_id(id));
	rdma_destroy_event_channel(cch);
}

/* A channel that goes while a thread sleeps there, or has just been woken:
 * that thread is never heard of again, and is no trouble. */
static _Atomic int sleeper_tid;

static void *sleeper(void *arg)
{
	struct rdma_cm_event *ev;

	sleeper_tid = gettid();
	if (!rdma_get_cm_event(arg, &ev))
		return ev;
	bad++;
	return NULL;
}

static void destroy_channel(void)
{
	for (int i = 0; i < 200; i++) {
		struct rdma_event_channel *ch;
		struct rdma_cm_id *id;
		pthread_t t;

		NEED(ch = rdma_create_event_channel());
		NEED(!rdma_create_id(ch, &id, NULL, RDMA_PS_TCP));
		NEED(!rdma_bind_addr(id, addr_of(0)));
		NEED(!pthread_create(&t, NULL, sleeper, ch));
		AWAIT(sleeper_tid && thread_sleeps(sleeper_tid));
		sleeper_tid = 0;
		if (i % 2) /* there is something to wake up for */
			NEED(!rdma_resolve_addr(id, NULL, addr_of(7), 2000));
		rdma_destroy_event_channel(ch);
		pthread_detach(t);
		/* as destroying an identifier would wait for the ack */
		if (!(i % 2))
			rdma_destroy_id(id);
	}
	usleep(50000); /* for those threads to be heard of */
}

/* Acknowledges an event when the process's first thread sleeps, or has not
 * waited. */
static _Atomic bool acked, destroyed;

static void *acker(void *arg)
{
	for (int ms = 0; !thread_sleeps(getpid()) && !destroyed; ms++) {
		NEED(ms < LIMIT_MS);
		usleep(1000);
	}
	acked = true;
	rdma_ack_cm_event(arg);
	return NULL;
}

/* Destroys an identifier while an event of it is not acknowledged. */
static void destroy_waits(struct rdma_cm_id *id, struct rdma_cm_event *ev)
{
	pthread_t t;

	acked = destroyed = false;
	NEED(!pthread_create(&t, NULL, acker, ev));
	CHECK(!rdma_destroy_id(id));
	CHECK(acked);
	destroyed = true;
	NEED(!pthread_join(t, NULL));
}

/* Destroying waits for what was fetched and not acknowledged. */
static void acks(void)
{
	struct rdma_conn_param param = usual;
	struct rdma_cm_event *ev;
	struct rdma_cm_id *c, *s;

	serve();
	NEED(!rdma_create_id(cch, &c, NULL, RDMA_PS_TCP));
	NEED(!rdma_resolve_addr(c, NULL, addr_of(port), 2000));
	ev = GET(cch, ADDR_RESOLVED, 0);
	destroy_waits(c, ev);

	/* a request is the listener's event */
	c = resolved();
	NEED(!rdma_connect(c, &param));
	ev = GET(sch, CONNECT_REQUEST, 0);
	s = ev->id;
	CHECK(!rdma_destroy_id(s)); /* it does not wait for ever */
	destroy_waits(listener, ev);
	EXPECT(cch, REJECTED, 28);
	finish_id(c);
	rdma_destroy_event_channel(cch);
	rdma_destroy_event_channel(sch);
}

/* What only the call that fetches an event can find out. */
static void errors(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct sockaddr_in group = { .sin_family = AF_INET };
	struct rdma_conn_param param = usual;
	struct ibv_device_attr limits_;
	struct rdma_cm_event *ev;
	struct rdma_cm_id *c, *s;

	serve();
	c = resolved();
	add_qp(c);
	NEED(!rdma_connect(c, &param));
	ev = GET(sch, CONNECT_REQUEST, 0);
	s = ev->id;
	rdma_ack_cm_event(ev);
	add_qp(s);
	NEED(!ibv_modify_qp(c->qp, &attr, IBV_QP_STATE));
	NEED(!rdma_accept(s, &param));
	EXPECT(cch, CONNECT_ERROR, -EINVAL);
	EXPECT(sch, REJECTED, 28);
	CHECK(s->qp->state == IBV_QPS_ERR);
	FAILS(rdma_establish(c), EINVAL);
	finish_id(c);
	finish_id(s);

	NEED(!rdma_create_id(cch, &c, NULL, RDMA_PS_UDP));
	NEED(!rdma_bind_addr(c, addr_of(0)));
	NEED(!rdma_resolve_addr(c, NULL, addr_of(port), 2000));
	EXPECT(cch, ADDR_RESOLVED, 0);
	add_qp(c);
	NEED(!ibv_query_device(c->verbs, &limits_));
	for (int i = 0; i <= limits_.max_mcast_grp; i++) {
		group.sin_addr.s_addr = htonl(0xef4d1000u + (unsigned)i);
		NEED(!rdma_join_multicast(c, (struct sockaddr *)&group, NULL));
		if (i < limits_.max_mcast_grp)
			EXPECT(cch, MULTICAST_JOIN, 0);
		else
			EXPECT(cch, MULTICAST_ERROR, -ENOMEM);
	}
	NEED(!rdma_leave_multicast(c, (struct sockaddr *)&group));
	finish_id(c);
	finish();
}

const struct situation cm_events[] = {
	{ "nonblock", nonblock },
	{ "settle", settle },
	{ "migrate", migrate },
	{ "destroy_pending", destroy_pending },
	{ "destroy_getting", destroy_getting },
	{ "destroy_channel", destroy_channel },
	{ "acks", acks },
	{ "shared_channel", shared_channel },
	{ "errors", errors },
	{ NULL, NULL },
};

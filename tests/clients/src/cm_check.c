/*
 * cm_check.c - librdmacm, one situation per run: cm_check NAME
 *
 * Most situations have both ends in this one process, over 127.0.0.1 or what
 * CM_CHECK_ADDR says. Prints what is not as it should be; the exit status is
 * the number of such things.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define LIMIT_MS 20000

static int bad;

#define CHECK(cond)                                                            \
	do {                                                                   \
		if (!(cond)) {                                                 \
			printf("line %d: not so: %s (errno %s)\n", __LINE__,   \
			       #cond, strerror(errno));                        \
			bad++;                                                 \
		}                                                              \
	} while (0)

#define FAILS(call, err)                                                       \
	do {                                                                   \
		errno = 0;                                                     \
		int r_ = (call);                                               \
		if (r_ != -1 || errno != (err)) {                              \
			printf("line %d: %s: returned %d, errno %s, not %s\n", \
			       __LINE__, #call, r_, strerror(errno),           \
			       strerror(err));                                 \
			bad++;                                                 \
		}                                                              \
	} while (0)

#define NEED(cond)                                                             \
	do {                                                                   \
		if (!(cond)) {                                                 \
			printf("line %d: cannot go on: %s (errno %s)\n",       \
			       __LINE__, #cond, strerror(errno));              \
			exit(100);                                             \
		}                                                              \
	} while (0)

static struct sockaddr_storage here; /* where both ends are; port 0 */

static struct sockaddr *addr_of(uint16_t port)
{
	static _Thread_local struct sockaddr_storage a[4];
	static _Thread_local int n;
	struct sockaddr_storage *s = &a[n++ % 4];

	*s = here;
	if (s->ss_family == AF_INET)
		((struct sockaddr_in *)s)->sin_port = htons(port);
	else
		((struct sockaddr_in6 *)s)->sin6_port = htons(port);
	return (struct sockaddr *)s;
}

static struct sockaddr *any_of(uint16_t port)
{
	struct sockaddr *s = addr_of(port);

	if (s->sa_family == AF_INET)
		((struct sockaddr_in *)s)->sin_addr.s_addr = 0;
	else
		memset(&((struct sockaddr_in6 *)s)->sin6_addr, 0, 16);
	return s;
}

/* The next event, which has to be of this type and status. */
static struct rdma_cm_event *get(struct rdma_event_channel *ch,
				 enum rdma_cm_event_type type, int status,
				 int line)
{
	struct pollfd p = { .fd = ch->fd, .events = POLLIN };
	struct rdma_cm_event *ev;

	if (poll(&p, 1, LIMIT_MS) != 1) {
		printf("line %d: no event, %s expected\n", line,
		       rdma_event_str(type));
		exit(100);
	}
	NEED(!rdma_get_cm_event(ch, &ev));
	if (ev->event != type || ev->status != status) {
		printf("line %d: event %s status %d, expected %s status %d\n",
		       line, rdma_event_str(ev->event), ev->status,
		       rdma_event_str(type), status);
		exit(100);
	}
	return ev;
}

#define GET(ch, type, status) get(ch, RDMA_CM_EVENT_##type, status, __LINE__)
#define EXPECT(ch, type, status) rdma_ack_cm_event(GET(ch, type, status))

static bool quiet(struct rdma_event_channel *ch, int ms)
{
	struct pollfd p = { .fd = ch->fd, .events = POLLIN };

	return poll(&p, 1, ms) == 0;
}

/* Both ends of a test. */
static struct rdma_event_channel *cch, *sch;
static struct rdma_cm_id *listener;
static uint16_t port;

static void serve_ps(enum rdma_port_space ps, int backlog)
{
	NEED(cch = rdma_create_event_channel());
	NEED(sch = rdma_create_event_channel());
	NEED(!rdma_create_id(sch, &listener, "listener", ps));
	NEED(!rdma_bind_addr(listener, addr_of(0)));
	port = ntohs(rdma_get_src_port(listener));
	NEED(port);
	NEED(!rdma_listen(listener, backlog));
}

static void serve(void)
{
	serve_ps(RDMA_PS_TCP, 0);
}

static struct rdma_cm_id *resolved_ps(enum rdma_port_space ps)
{
	struct rdma_cm_id *id;

	NEED(!rdma_create_id(cch, &id, "client", ps));
	NEED(!rdma_resolve_addr(id, NULL, addr_of(port), 2000));
	EXPECT(cch, ADDR_RESOLVED, 0);
	NEED(!rdma_resolve_route(id, 2000));
	EXPECT(cch, ROUTE_RESOLVED, 0);
	return id;
}

static struct rdma_cm_id *resolved(void)
{
	return resolved_ps(RDMA_PS_TCP);
}

static void add_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1,
			 .max_recv_sge = 1 },
		.qp_type = id->qp_type,
		.sq_sig_all = 1,
	};

	NEED(!rdma_create_qp(id, NULL, &attr));
}

static const struct rdma_conn_param usual = {
	.responder_resources = 2,
	.initiator_depth = 3,
	.retry_count = 7,
	.rnr_retry_count = 6,
};

/* A connection with QPs on both sides. */
static void connected(struct rdma_cm_id **c, struct rdma_cm_id **s)
{
	struct rdma_conn_param param = usual;
	struct rdma_cm_event *ev;

	*c = resolved();
	add_qp(*c);
	NEED(!rdma_connect(*c, &param));
	ev = GET(sch, CONNECT_REQUEST, 0);
	*s = ev->id;
	add_qp(*s);
	NEED(!rdma_accept(*s, &ev->param.conn));
	rdma_ack_cm_event(ev);
	EXPECT(cch, ESTABLISHED, 0);
	EXPECT(sch, ESTABLISHED, 0);
}

static void hang_up(struct rdma_cm_id *c, struct rdma_cm_id *s)
{
	CHECK(!rdma_disconnect(c));
	EXPECT(sch, DISCONNECTED, 0);
	CHECK(!rdma_disconnect(s));
	EXPECT(cch, DISCONNECTED, 0);
}

static void finish_id(struct rdma_cm_id *id)
{
	rdma_destroy_ep(id);
}

static void finish(void)
{
	CHECK(!rdma_destroy_id(listener));
	CHECK(quiet(cch, 0));
	CHECK(quiet(sch, 0));
	rdma_destroy_event_channel(cch);
	rdma_destroy_event_channel(sch);
}

static void fill(uint8_t *p, size_t n, unsigned seed)
{
	for (size_t i = 0; i < n; i++)
		p[i] = (uint8_t)(seed + i * 7);
}

static bool filled(const void *p, size_t n, unsigned seed)
{
	uint8_t want[256];

	fill(want, n, seed);
	return p && !memcmp(p, want, n);
}

/* Situations */

static void life(void)
{
	struct rdma_conn_param param = usual;
	struct ibv_qp_init_attr init;
	struct rdma_cm_event *ev;
	struct rdma_cm_id *c, *s;
	struct ibv_qp_attr attr;
	struct ibv_mr *mr;
	struct ibv_wc wc;
	char buf[64];

	serve();
	NEED(!rdma_create_id(cch, &c, buf, RDMA_PS_TCP));
	CHECK(!c->verbs && !c->pd && !c->qp && c->context == buf &&
	      c->channel == cch && c->ps == RDMA_PS_TCP &&
	      c->qp_type == IBV_QPT_RC);
	NEED(!rdma_resolve_addr(c, NULL, addr_of(port), 2000));
	ev = GET(cch, ADDR_RESOLVED, 0);
	CHECK(ev->id == c && !ev->listen_id);
	rdma_ack_cm_event(ev);
	CHECK(c->verbs && c->pd && c->port_num == 1);
	CHECK(rdma_get_src_port(c));
	CHECK(ntohs(rdma_get_dst_port(c)) == port);
	CHECK(c->route.num_paths == 0);
	NEED(!rdma_resolve_route(c, 2000));
	EXPECT(cch, ROUTE_RESOLVED, 0);
	CHECK(c->route.num_paths == 1 && c->route.path_rec);
	CHECK(c->route.path_rec->mtu == IBV_MTU_4096);
	CHECK(!memcmp(&c->route.path_rec->dgid, &c->route.addr.addr.ibaddr.dgid,
		      16));
	add_qp(c);
	CHECK(c->qp->state == IBV_QPS_INIT && c->send_cq && c->recv_cq);
	CHECK(c->send_cq->cq_context == c);
	NEED(mr = rdma_reg_msgs(c, buf, sizeof(buf)));
	CHECK(!rdma_post_recv(c, (void *)1, buf, sizeof(buf), mr));

	NEED(!rdma_connect(c, &param));
	ev = GET(sch, CONNECT_REQUEST, 0);
	s = ev->id;
	CHECK(ev->listen_id == listener && s->context == listener->context);
	CHECK(s->verbs && s->pd && s->port_num == 1 && s->channel == sch);
	CHECK(rdma_get_src_port(s) == htons(port));
	CHECK(rdma_get_dst_port(s) == rdma_get_src_port(c));
	CHECK(ev->param.conn.responder_resources == usual.initiator_depth);
	CHECK(ev->param.conn.initiator_depth == usual.responder_resources);
	CHECK(ev->param.conn.retry_count == 7);
	CHECK(ev->param.conn.rnr_retry_count == 6);
	CHECK(ev->param.conn.qp_num == c->qp->qp_num);
	CHECK(!ev->param.conn.srq);
	CHECK(ev->param.conn.private_data_len == 56);
	add_qp(s);
	param.private_data = NULL;
	param.responder_resources = 1;
	param.initiator_depth = 1;
	NEED(!rdma_accept(s, &param));
	rdma_ack_cm_event(ev);
	CHECK(s->qp->state == IBV_QPS_RTS);
	ev = GET(cch, ESTABLISHED, 0);
	CHECK(ev->id == c && ev->param.conn.qp_num == s->qp->qp_num);
	CHECK(ev->param.conn.private_data_len == 196);
	CHECK(ev->param.conn.responder_resources == 1 &&
	      ev->param.conn.initiator_depth == 1);
	rdma_ack_cm_event(ev);
	ev = GET(sch, ESTABLISHED, 0);
	CHECK(ev->id == s && ev->param.conn.private_data_len == 0);
	rdma_ack_cm_event(ev);
	CHECK(c->qp->state == IBV_QPS_RTS);
	NEED(!ibv_query_qp(c->qp, &attr, -1, &init));
	CHECK(attr.path_mtu == IBV_MTU_4096 && attr.retry_cnt == 7 &&
	      attr.rnr_retry == 6 && attr.max_rd_atomic == 1 &&
	      attr.max_dest_rd_atomic == 1 && attr.min_rnr_timer == 0);
	CHECK(attr.dest_qp_num == s->qp->qp_num);
	CHECK(attr.qp_access_flags ==
	      (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
	       IBV_ACCESS_REMOTE_ATOMIC));

	/* what was posted is flushed by disconnecting */
	CHECK(!rdma_disconnect(c));
	CHECK(c->qp->state == IBV_QPS_ERR);
	CHECK(rdma_get_recv_comp(c, &wc) == 1 &&
	      wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id == 1);
	EXPECT(sch, DISCONNECTED, 0);
	CHECK(quiet(cch, 50)); /* the other side has not answered yet */
	CHECK(!rdma_disconnect(s));
	EXPECT(cch, DISCONNECTED, 0);
	EXPECT(cch, TIMEWAIT_EXIT, 0);
	EXPECT(sch, TIMEWAIT_EXIT, 0);
	rdma_dereg_mr(mr);
	finish_id(c);
	finish_id(s);
	finish();
}

static void data(void)
{
	struct rdma_cm_id *c, *s;
	struct ibv_mr *cm, *sm;
	char out[1000], in[1000];
	struct ibv_wc wc;

	serve();
	connected(&c, &s);
	NEED(cm = rdma_reg_msgs(c, out, sizeof(out)));
	NEED(sm = rdma_reg_write(s, in, sizeof(in)));
	fill((uint8_t *)out, sizeof(out), 5);
	NEED(!rdma_post_recv(s, NULL, in, sizeof(in), sm));
	NEED(!rdma_post_send(c, NULL, out, sizeof(out), cm, 0));
	CHECK(rdma_get_send_comp(c, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(rdma_get_recv_comp(s, &wc) == 1 && wc.status == IBV_WC_SUCCESS &&
	      wc.byte_len == sizeof(in));
	CHECK(!memcmp(in, out, sizeof(in)));
	memset(in, 0, sizeof(in));
	NEED(!rdma_post_write(c, NULL, out, sizeof(out), cm, 0,
			      (uintptr_t)in, sm->rkey));
	CHECK(rdma_get_send_comp(c, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(!memcmp(in, out, sizeof(in)));
	hang_up(c, s);
	rdma_dereg_mr(cm);
	rdma_dereg_mr(sm);
	finish_id(c);
	finish_id(s);
	finish();
}

static void limits(void)
{
	uint8_t bytes[256];
	struct rdma_conn_param param = usual;
	struct rdma_cm_event *ev;
	struct rdma_cm_id *c, *s;

	serve();
	param.private_data = bytes;
	fill(bytes, sizeof(bytes), 1);
	c = resolved();
	param.private_data_len = 57;
	FAILS(rdma_connect(c, &param), EINVAL);
	param.private_data_len = 255;
	FAILS(rdma_connect(c, &param), EINVAL);
	param.private_data_len = 56;
	NEED(!rdma_connect(c, &param));
	ev = GET(sch, CONNECT_REQUEST, 0);
	CHECK(filled(ev->param.conn.private_data, 56, 1));
	s = ev->id;
	rdma_ack_cm_event(ev);
	FAILS(rdma_reject(s, bytes, 149), EINVAL);
	param.private_data_len = 197;
	FAILS(rdma_accept(s, &param), EINVAL);
	param.private_data_len = 196;
	NEED(!rdma_accept(s, &param));
	ev = GET(cch, CONNECT_RESPONSE, 0);
	CHECK(filled(ev->param.conn.private_data, 196, 1));
	rdma_ack_cm_event(ev);
	finish_id(c);
	EXPECT(sch, REJECTED, 28);
	finish_id(s);

	c = resolved();
	param.private_data_len = 1; /* the rest arrives as zeros */
	NEED(!rdma_connect(c, &param));
	ev = GET(sch, CONNECT_REQUEST, 0);
	CHECK(ev->param.conn.private_data_len == 56 &&
	      ((const uint8_t *)ev->param.conn.private_data)[0] == bytes[0] &&
	      ((const uint8_t *)ev->param.conn.private_data)[1] == 0);
	s = ev->id;
	rdma_ack_cm_event(ev);
	NEED(!rdma_reject(s, bytes, 148));
	ev = GET(cch, REJECTED, 28);
	CHECK(ev->param.conn.private_data_len == 148 &&
	      filled(ev->param.conn.private_data, 148, 1));
	rdma_ack_cm_event(ev);
	finish_id(c);
	finish_id(s);
	finish();

	serve_ps(RDMA_PS_UDP, 0);
	c = resolved_ps(RDMA_PS_UDP);
	param.private_data_len = 181;
	FAILS(rdma_connect(c, &param), EINVAL);
	param.private_data_len = 180;
	NEED(!rdma_connect(c, &param));
	ev = GET(sch, CONNECT_REQUEST, 0);
	CHECK(ev->param.ud.private_data_len == 180 &&
	      filled(ev->param.ud.private_data, 180, 1));
	s = ev->id;
	rdma_ack_cm_event(ev);
	CHECK(s->qp_type == IBV_QPT_UD);
	param.private_data_len = 137;
	FAILS(rdma_accept(s, &param), EINVAL);
	FAILS(rdma_reject(s, bytes, 137), EINVAL);
	param.private_data_len = 136;
	param.qp_num = 0x123456;
	NEED(!rdma_accept(s, &param));
	ev = GET(cch, ESTABLISHED, 0);
	CHECK(ev->param.ud.private_data_len == 136 &&
	      filled(ev->param.ud.private_data, 136, 1));
	CHECK(ev->param.ud.qp_num == 0x123456 &&
	      ev->param.ud.qkey == RDMA_UDP_QKEY);
	CHECK(ev->param.ud.ah_attr.is_global &&
	      ev->param.ud.ah_attr.port_num == 1);
	rdma_ack_cm_event(ev);
	finish_id(c);
	finish_id(s);
	c = resolved_ps(RDMA_PS_UDP);
	NEED(!rdma_connect(c, NULL));
	ev = GET(sch, CONNECT_REQUEST, 0);
	s = ev->id;
	rdma_ack_cm_event(ev);
	NEED(!rdma_reject(s, bytes, 136));
	ev = GET(cch, UNREACHABLE, 2);
	CHECK(filled(ev->param.ud.private_data, 136, 1));
	rdma_ack_cm_event(ev);
	finish_id(c);
	finish_id(s);
	finish();
}

static void nobody(void)
{
	struct sockaddr_in deaf = { .sin_family = AF_INET, .sin_port = 7 };
	struct rdma_conn_param param = usual;
	struct rdma_cm_id *c;

	serve();
	CHECK(!rdma_destroy_id(listener));
	c = resolved();
	NEED(!rdma_connect(c, &param));
	EXPECT(cch, REJECTED, 8);
	FAILS(rdma_connect(c, &param), EINVAL);
	finish_id(c);
	c = resolved_ps(RDMA_PS_UDP);
	NEED(!rdma_connect(c, &param));
	EXPECT(cch, UNREACHABLE, 1);
	finish_id(c);

	/* an address of this host that no device has */
	inet_pton(AF_INET, "127.0.0.77", &deaf.sin_addr);
	NEED(!rdma_create_id(cch, &c, NULL, RDMA_PS_TCP));
	NEED(!rdma_resolve_addr(c, NULL, (struct sockaddr *)&deaf, 2000));
	EXPECT(cch, ADDR_ERROR, -ENODEV);
	finish_id(c);

	/* each port space is its own */
	NEED(!rdma_create_id(sch, &listener, NULL, RDMA_PS_UDP));
	NEED(!rdma_bind_addr(listener, addr_of(port)));
	NEED(!rdma_listen(listener, 0));
	c = resolved();
	NEED(!rdma_connect(c, &param));
	EXPECT(cch, REJECTED, 8);
	finish_id(c);
	finish();
}

/* A host that does not answer at all: CM_CHECK_SILENT, with few retries. */
static void silent(void)
{
	struct sockaddr_in dst = { .sin_family = AF_INET,
				   .sin_port = htons(7174) };
	struct rdma_conn_param param = usual;
	struct timespec t0, t1;
	struct rdma_cm_id *c;

	NEED(getenv("CM_CHECK_SILENT"));
	inet_pton(AF_INET, getenv("CM_CHECK_SILENT"), &dst.sin_addr);
	NEED(cch = rdma_create_event_channel());
	for (int ps = 0; ps < 2; ps++) {
		NEED(!rdma_create_id(cch, &c, NULL,
				     ps ? RDMA_PS_UDP : RDMA_PS_TCP));
		NEED(!rdma_resolve_addr(c, NULL, (struct sockaddr *)&dst, 2000));
		EXPECT(cch, ADDR_RESOLVED, 0);
		NEED(!rdma_resolve_route(c, 2000));
		EXPECT(cch, ROUTE_RESOLVED, 0);
		clock_gettime(CLOCK_MONOTONIC, &t0);
		NEED(!rdma_connect(c, &param));
		EXPECT(cch, UNREACHABLE, -ETIMEDOUT);
		clock_gettime(CLOCK_MONOTONIC, &t1);
		CHECK(t1.tv_sec - t0.tv_sec >= 1);
		finish_id(c);
	}
	/* a network that is not there */
	inet_pton(AF_INET, "203.0.113.1", &dst.sin_addr);
	NEED(!rdma_create_id(cch, &c, NULL, RDMA_PS_TCP));
	NEED(!rdma_resolve_addr(c, NULL, (struct sockaddr *)&dst, 2000));
	EXPECT(cch, ADDR_ERROR, -ENETUNREACH);
	FAILS(rdma_resolve_route(c, 2000), EINVAL);
	finish_id(c);
	rdma_destroy_event_channel(cch);
}

static void states(void)
{
	struct rdma_conn_param param = usual;
	struct ibv_qp_init_attr attr = { .cap = { .max_send_wr = 1 },
					 .qp_type = IBV_QPT_RC };
	struct ibv_qp_attr qa = { .qp_state = IBV_QPS_RTR };
	struct rdma_cm_event *ev;
	struct rdma_cm_id *c, *s, *id;
	int mask;

	serve();
	FAILS(rdma_create_id(cch, &id, NULL, RDMA_PS_IPOIB), EINVAL);
	FAILS(rdma_create_id(cch, &id, NULL, (enum rdma_port_space)77), EINVAL);
	NEED(!rdma_create_id(cch, &c, NULL, RDMA_PS_TCP));
	FAILS(rdma_create_qp(c, NULL, &attr), EINVAL);
	FAILS(rdma_resolve_route(c, 2000), EINVAL);
	FAILS(rdma_connect(c, &param), EINVAL);
	FAILS(rdma_accept(c, &param), EINVAL);
	FAILS(rdma_reject(c, NULL, 0), EINVAL);
	FAILS(rdma_disconnect(c), EINVAL);
	FAILS(rdma_establish(c), EINVAL);
	FAILS(rdma_init_qp_attr(c, &qa, &mask), EINVAL);
	FAILS(rdma_notify(c, IBV_EVENT_COMM_EST), EINVAL);
	FAILS(rdma_get_cm_event(cch, NULL), EINVAL);
	FAILS(rdma_ack_cm_event(NULL), EINVAL);
	finish_id(c);

	c = resolved();
	FAILS(rdma_resolve_addr(c, NULL, addr_of(port), 2000), EINVAL);
	FAILS(rdma_bind_addr(c, addr_of(0)), EINVAL);
	FAILS(rdma_listen(c, 1), EINVAL);
	FAILS(rdma_resolve_route(c, 2000), EINVAL);
	attr.qp_type = IBV_QPT_UD; /* not that of the port space */
	FAILS(rdma_create_qp(c, NULL, &attr), EINVAL);
	add_qp(c);
	FAILS(rdma_create_qp(c, NULL, &attr), EINVAL);
	FAILS(rdma_init_qp_attr(c, &qa, &mask), EINVAL); /* no peer yet */
	param.responder_resources = 200; /* more than the device has */
	FAILS(rdma_connect(c, &param), EINVAL);
	param = usual;
	param.initiator_depth = 254;
	FAILS(rdma_connect(c, &param), EINVAL);
	param = usual;
	param.private_data_len = 5; /* none there */
	FAILS(rdma_connect(c, &param), EINVAL);
	/* what libfabric does: as much as there is, and too many retries */
	param = usual;
	param.responder_resources = param.initiator_depth = 255;
	param.retry_count = param.rnr_retry_count = 15;
	NEED(!rdma_connect(c, &param));
	FAILS(rdma_connect(c, &param), EINVAL);
	FAILS(rdma_accept(c, &param), EINVAL);
	ev = GET(sch, CONNECT_REQUEST, 0);
	CHECK(ev->param.conn.responder_resources == 128 &&
	      ev->param.conn.initiator_depth == 128 &&
	      ev->param.conn.retry_count == 7 &&
	      ev->param.conn.rnr_retry_count == 7);
	s = ev->id;
	rdma_ack_cm_event(ev);
	FAILS(rdma_connect(s, &param), EINVAL);
	FAILS(rdma_listen(s, 1), EINVAL);
	add_qp(s);
	param.responder_resources = 129;
	FAILS(rdma_accept(s, &param), EINVAL);
	NEED(!rdma_accept(s, NULL)); /* what the peer wants */
	FAILS(rdma_establish(c), EINVAL); /* with a QP that is automatic */
	EXPECT(cch, ESTABLISHED, 0);
	EXPECT(sch, ESTABLISHED, 0);
	FAILS(rdma_notify(s, IBV_EVENT_COMM_EST), EISCONN);
	FAILS(rdma_notify(s, IBV_EVENT_SQ_DRAINED), EINVAL);
	FAILS(rdma_accept(s, NULL), EINVAL);
	hang_up(c, s);
	FAILS(rdma_accept(s, NULL), EINVAL);
	finish_id(c);
	finish_id(s);
	finish();
}

static struct rdma_cm_id *bound(enum rdma_port_space ps, bool reuse,
				struct sockaddr *a, int want)
{
	struct rdma_cm_id *id;
	int one = 1;

	NEED(!rdma_create_id(sch, &id, NULL, ps));
	if (reuse)
		NEED(!rdma_set_option(id, RDMA_OPTION_ID,
				      RDMA_OPTION_ID_REUSEADDR, &one,
				      sizeof(one)));
	if (!want) {
		NEED(!rdma_bind_addr(id, a));
		return id;
	}
	FAILS(rdma_bind_addr(id, a), want);
	CHECK(!id->verbs);
	rdma_destroy_id(id);
	return NULL;
}

static void ports(void)
{
	struct sockaddr_in elsewhere = { .sin_family = AF_INET };
	struct sockaddr unknown = { .sa_family = AF_UNIX };
	struct rdma_cm_id *a, *b, *c;

	NEED(sch = rdma_create_event_channel());
	a = bound(RDMA_PS_TCP, false, any_of(0), 0);
	CHECK(!a->verbs && !a->pd);
	port = ntohs(rdma_get_src_port(a));
	CHECK(port >= 1024);
	bound(RDMA_PS_TCP, false, any_of(port), EADDRNOTAVAIL);
	bound(RDMA_PS_TCP, false, addr_of(port), EADDRNOTAVAIL);
	b = bound(RDMA_PS_UDP, false, any_of(port), 0); /* another space */
	rdma_destroy_id(b);
	rdma_destroy_id(a);

	a = bound(RDMA_PS_TCP, false, addr_of(port), 0);
	CHECK(a->verbs && a->pd && a->port_num == 1);
	bound(RDMA_PS_TCP, false, addr_of(port), EADDRINUSE);
	bound(RDMA_PS_TCP, true, addr_of(port), EADDRINUSE);
	NEED(!rdma_listen(a, 1));
	FAILS(rdma_listen(a, 1), EINVAL);
	rdma_destroy_id(a);

	/*
	 * any port of a loopback address: the device comes with the next step
	 * (libfabric tells its peers an address of an interface therefore)
	 */
	a = bound(RDMA_PS_TCP, false, addr_of(0), 0);
	CHECK(rdma_get_src_port(a));
	NEED(!rdma_listen(a, 1));
	CHECK(a->verbs && a->pd && a->port_num == 1);
	rdma_destroy_id(a);

	/* shared until one of them listens */
	a = bound(RDMA_PS_TCP, true, addr_of(port), 0);
	b = bound(RDMA_PS_TCP, true, addr_of(port), 0);
	FAILS(rdma_listen(b, 1), EADDRINUSE);
	rdma_destroy_id(a);
	NEED(!rdma_listen(b, 1));
	bound(RDMA_PS_TCP, true, addr_of(port), EADDRINUSE);
	rdma_destroy_id(b);

	/* an unbound one listens somewhere */
	NEED(!rdma_create_id(sch, &c, NULL, RDMA_PS_TCP));
	CHECK(!rdma_get_src_port(c));
	NEED(!rdma_listen(c, 1));
	CHECK(rdma_get_src_port(c));
	rdma_destroy_id(c);

	inet_pton(AF_INET, "203.0.113.77", &elsewhere.sin_addr);
	bound(RDMA_PS_TCP, false, (struct sockaddr *)&elsewhere, EADDRNOTAVAIL);
	bound(RDMA_PS_TCP, false, &unknown, EAFNOSUPPORT);
	if (geteuid())
		bound(RDMA_PS_TCP, false, any_of(80), EACCES);
	rdma_destroy_event_channel(sch);
}

static void options(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS };
	struct rdma_conn_param param = usual;
	struct rdma_cm_event *ev;
	struct rdma_cm_id *c, *s, *u;
	uint8_t tos = 0x68, timeout = 12;
	int one = 1, mask;

	serve();
	NEED(!rdma_create_id(cch, &u, NULL, RDMA_PS_UDP));
	FAILS(rdma_set_option(u, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT,
			      &timeout, 1),
	      EINVAL);
	FAILS(rdma_set_option(u, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &one,
			      sizeof(one)),
	      EINVAL);
	FAILS(rdma_set_option(u, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR,
			      &tos, 1),
	      EINVAL);
	FAILS(rdma_set_option(u, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &tos, 1),
	      EINVAL);
	FAILS(rdma_set_option(u, RDMA_OPTION_ID, 99, &tos, 1), ENOSYS);
	FAILS(rdma_set_option(u, 99, 0, &tos, 1), ENOSYS);
	FAILS(rdma_set_option(u, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &tos, 1),
	      ENOSYS);
	FAILS(rdma_set_option(listener, RDMA_OPTION_ID,
			      RDMA_OPTION_ID_REUSEADDR, &one, sizeof(one)),
	      EINVAL);
	FAILS(rdma_set_option(listener, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY,
			      &one, sizeof(one)),
	      EINVAL);
	finish_id(u);

	NEED(!rdma_create_id(cch, &c, NULL, RDMA_PS_TCP));
	NEED(!rdma_set_option(c, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, 1));
	NEED(!rdma_set_option(c, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT,
			      &timeout, 1));
	NEED(!rdma_resolve_addr(c, NULL, addr_of(port), 2000));
	EXPECT(cch, ADDR_RESOLVED, 0);
	NEED(!rdma_resolve_route(c, 2000));
	EXPECT(cch, ROUTE_RESOLVED, 0);
	CHECK(c->route.path_rec->traffic_class == tos);
	NEED(!rdma_connect(c, &param));
	ev = GET(sch, CONNECT_REQUEST, 0);
	s = ev->id;
	rdma_ack_cm_event(ev);
	CHECK(s->route.path_rec->traffic_class == tos);
	NEED(!rdma_accept(s, &param));
	EXPECT(cch, CONNECT_RESPONSE, 0);
	NEED(!rdma_init_qp_attr(c, &attr, &mask));
	CHECK(mask & IBV_QP_TIMEOUT && attr.timeout == timeout);
	NEED(!rdma_init_qp_attr(s, &attr, &mask));
	CHECK(attr.timeout == timeout); /* it is in the REQ */
	attr.qp_state = IBV_QPS_RTR;
	NEED(!rdma_init_qp_attr(s, &attr, &mask));
	CHECK(attr.ah_attr.grh.traffic_class == tos);
	finish_id(c);
	EXPECT(sch, REJECTED, 28);
	finish_id(s);
	finish();
}

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

/*
 * A program destroys its QP by the verb, and the identifier knows: what is said
 * or done afterwards does not look for it.
 */
static void own_destroy(void)
{
	struct rdma_conn_param param = usual;
	struct rdma_cm_id *c, *s;
	struct rdma_cm_event *ev;
	struct ibv_mr *cm, *sm;
	char out[100], in[100];
	struct ibv_wc wc;

	serve();
	/* an event that waits for completions to be polled */
	connected(&c, &s);
	NEED(cm = rdma_reg_msgs(c, out, sizeof(out)));
	NEED(sm = rdma_reg_msgs(s, in, sizeof(in)));
	NEED(!rdma_post_recv(s, NULL, in, sizeof(in), sm));
	NEED(!rdma_post_send(c, NULL, out, sizeof(out), cm, 0));
	CHECK(rdma_get_recv_comp(s, &wc) == 1);
	CHECK(!rdma_disconnect(s));
	NEED(poll(&(struct pollfd){ .fd = cch->fd, .events = POLLIN }, 1,
		  LIMIT_MS) == 1);
	CHECK(!ibv_destroy_qp(c->qp));
	CHECK(!c->qp);
	EXPECT(cch, DISCONNECTED, 0);
	CHECK(!rdma_disconnect(c));
	EXPECT(sch, DISCONNECTED, 0);
	rdma_dereg_mr(cm);
	rdma_dereg_mr(sm);
	finish_id(c);
	/* the identifier first, and then its QP */
	{
		struct ibv_qp *qp = s->qp;
		struct ibv_cq *scq = s->send_cq, *rcq = s->recv_cq;
		struct ibv_comp_channel *sc = s->send_cq_channel,
					*rc = s->recv_cq_channel;

		CHECK(!rdma_destroy_id(s));
		CHECK(!ibv_destroy_qp(qp));
		CHECK(!ibv_destroy_cq(scq));
		CHECK(!ibv_destroy_cq(rcq));
		CHECK(!ibv_destroy_comp_channel(sc));
		CHECK(!ibv_destroy_comp_channel(rc));
	}

	/* one that takes the QP to the error state */
	c = resolved();
	add_qp(c);
	NEED(!rdma_connect(c, &param));
	ev = GET(sch, CONNECT_REQUEST, 0);
	CHECK(!rdma_reject(ev->id, NULL, 0));
	rdma_destroy_id(({
		struct rdma_cm_id *id = ev->id;
		rdma_ack_cm_event(ev);
		id;
	}));
	CHECK(!ibv_destroy_qp(c->qp));
	EXPECT(cch, REJECTED, 28);
	finish_id(c);
	finish();
}

/* How many events wait in a channel. */
static unsigned long events(const struct rdma_event_channel *ch)
{
	unsigned long n = 0;
	char path[64], line[128];
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", ch->fd);
	NEED(f = fopen(path, "r"));
	while (fgets(line, sizeof(line), f))
		sscanf(line, "eventfd-count: %lx", &n);
	fclose(f);
	return n;
}

/* A peer that refuses after it has accepted: one event says so, the last. */
static void late_refusal(void)
{
	struct rdma_conn_param param = usual;
	struct rdma_cm_id *c, *s;
	struct rdma_cm_event *ev;
	int i = 0;

	serve();
	c = resolved();
	add_qp(c);
	NEED(!rdma_connect(c, &param));
	ev = GET(sch, CONNECT_REQUEST, 0);
	s = ev->id;
	add_qp(s);
	NEED(!rdma_accept(s, &ev->param.conn));
	rdma_ack_cm_event(ev);
	while (events(cch) < 1 && i++ < LIMIT_MS)
		usleep(1000);
	finish_id(s);
	while (events(cch) < 2 && i++ < LIMIT_MS)
		usleep(1000);
	NEED(events(cch) == 2);
	EXPECT(cch, REJECTED, 28);
	CHECK(!events(cch));
	finish_id(c);
	finish();
}

/*
 * Who binds to localhost without a port gets no device, but where there is no
 * other address (CM_CHECK_ALONE).
 */
static void localhost(void)
{
	struct rdma_cm_id *id;

	NEED(cch = rdma_create_event_channel());
	NEED(!rdma_create_id(cch, &id, NULL, RDMA_PS_UDP));
	NEED(!rdma_bind_addr(id, addr_of(0)));
	CHECK(!id->verbs == !getenv("CM_CHECK_ALONE"));
	rdma_destroy_id(id);
	rdma_destroy_event_channel(cch);
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

static void backlog(void)
{
	struct rdma_conn_param param = usual;
	struct rdma_cm_id *c[5];
	struct rdma_cm_event *ev;
	int got = 0;

	serve_ps(RDMA_PS_TCP, 2);
	for (int i = 0; i < 5; i++) {
		c[i] = resolved();
		NEED(!rdma_connect(c[i], &param));
	}
	usleep(100000);
	/* no more than two wait, and nobody was refused */
	CHECK(quiet(cch, 0));
	fcntl(sch->fd, F_SETFL, O_NONBLOCK);
	while (!rdma_get_cm_event(sch, &ev)) {
		CHECK(ev->event == RDMA_CM_EVENT_CONNECT_REQUEST);
		rdma_reject(ev->id, NULL, 0);
		rdma_destroy_id(({
			struct rdma_cm_id *id = ev->id;
			rdma_ack_cm_event(ev);
			id;
		}));
		got++;
		if (got == 2)
			break;
	}
	CHECK(got == 2);
	/* the others ask again */
	for (; got < 5; got++) {
		struct rdma_cm_id *id;

		ev = GET(sch, CONNECT_REQUEST, 0);
		id = ev->id;
		rdma_ack_cm_event(ev);
		rdma_destroy_id(id); /* refuses as well */
	}
	for (int i = 0; i < 5; i++)
		EXPECT(cch, REJECTED, 28);
	for (int i = 0; i < 5; i++)
		finish_id(c[i]);
	finish();
}

/* Synchronous, as in rdma_client and rdma_server. */
static void *sync_server(void *arg)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1,
			 .max_recv_sge = 1 },
		.sq_sig_all = 1,
	};
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE | RAI_FAMILY,
				       .ai_family = here.ss_family,
				       .ai_port_space = RDMA_PS_TCP };
	struct rdma_addrinfo *res;
	struct rdma_cm_id *l, *id;
	struct ibv_mr *mr;
	struct ibv_wc wc;
	char buf[16], service[8];

	(void)arg;
	snprintf(service, sizeof(service), "%u", port);
	NEED(!rdma_getaddrinfo(NULL, service, &hints, &res));
	NEED(!rdma_create_ep(&l, res, NULL, &attr));
	rdma_freeaddrinfo(res);
	NEED(!rdma_listen(l, 0));
	NEED(!rdma_get_request(l, &id));
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(id->qp && id->recv_cq && id->channel != l->channel);
	NEED(mr = rdma_reg_msgs(id, buf, sizeof(buf)));
	NEED(!rdma_post_recv(id, NULL, buf, sizeof(buf), mr));
	NEED(!rdma_accept(id, NULL));
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_ESTABLISHED);
	CHECK(rdma_get_recv_comp(id, &wc) == 1 && !wc.status);
	NEED(!rdma_post_send(id, NULL, buf, sizeof(buf), mr, 0));
	CHECK(rdma_get_send_comp(id, &wc) == 1 && !wc.status);
	NEED(!rdma_disconnect(id));
	rdma_dereg_mr(mr);
	rdma_destroy_ep(id);

	/* the second one is refused */
	NEED(!rdma_get_request(l, &id));
	NEED(!rdma_reject(id, NULL, 0));
	rdma_destroy_ep(id);
	rdma_destroy_ep(l);
	return NULL;
}

static void sync_(void)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1,
			 .max_recv_sge = 1, .max_inline_data = 16 },
		.sq_sig_all = 1,
	};
	const struct ibv_qp_init_attr fresh = attr; /* CQs are filled in */
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *res;
	char name[64], service[8], in[16];
	struct rdma_cm_id *id;
	struct ibv_mr *mr;
	struct ibv_wc wc;
	pthread_t t;

	serve(); /* for a port that is free */
	finish();
	snprintf(service, sizeof(service), "%u", port);
	getnameinfo((struct sockaddr *)&here, sizeof(here), name, sizeof(name),
		    NULL, 0, NI_NUMERICHOST);
	NEED(!rdma_getaddrinfo(name, service, &hints, &res));
	NEED(!rdma_create_ep(&id, res, NULL, &attr));
	CHECK(id->qp && id->qp->qp_type == IBV_QPT_RC);
	FAILS(rdma_connect(id, NULL), ECONNREFUSED);
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_REJECTED &&
	      id->event->status == 8);
	rdma_destroy_ep(id);

	pthread_create(&t, NULL, sync_server, NULL);
	usleep(200000);
	attr = fresh;
	NEED(!rdma_create_ep(&id, res, NULL, &attr));
	NEED(mr = rdma_reg_msgs(id, in, sizeof(in)));
	NEED(!rdma_post_recv(id, NULL, in, sizeof(in), mr));
	NEED(!rdma_connect(id, NULL));
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_ESTABLISHED);
	NEED(!rdma_post_send(id, NULL, "fifteen letters", 16, NULL,
			     IBV_SEND_INLINE));
	CHECK(rdma_get_send_comp(id, &wc) == 1 && !wc.status);
	CHECK(rdma_get_recv_comp(id, &wc) == 1 && !wc.status);
	CHECK(!strcmp(in, "fifteen letters"));
	NEED(!rdma_disconnect(id));
	rdma_dereg_mr(mr);
	rdma_destroy_ep(id);

	attr = fresh;
	NEED(!rdma_create_ep(&id, res, NULL, &attr));
	FAILS(rdma_connect(id, NULL), ECONNREFUSED);
	CHECK(id->event->status == 28);
	rdma_destroy_ep(id);
	pthread_join(t, NULL);
	rdma_freeaddrinfo(res);
}

/* QPs of the program's own. */
static struct ibv_qp *own_qp(struct rdma_cm_id *id, struct ibv_cq **cq)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1,
			 .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};
	struct ibv_qp_attr qa = { .qp_state = IBV_QPS_INIT };
	struct ibv_qp *qp;
	int mask;

	NEED(*cq = ibv_create_cq(id->verbs, 16, NULL, NULL, 0));
	attr.send_cq = attr.recv_cq = *cq;
	NEED(qp = ibv_create_qp(id->pd, &attr));
	NEED(!rdma_init_qp_attr(id, &qa, &mask));
	NEED(!ibv_modify_qp(qp, &qa, mask));
	return qp;
}

static void ready_qp(struct rdma_cm_id *id, struct ibv_qp *qp)
{
	enum ibv_qp_state to[] = { IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS };
	struct ibv_qp_attr qa;
	int mask;

	for (int i = 0; i < 3; i++) {
		memset(&qa, 0, sizeof(qa));
		qa.qp_state = to[i];
		NEED(!rdma_init_qp_attr(id, &qa, &mask));
		NEED(!ibv_modify_qp(qp, &qa, mask));
	}
}

static void external(void)
{
	struct rdma_conn_param param = usual;
	struct ibv_ece ece = { .vendor_id = 0x15b3, .options = 0x12345678 };
	struct ibv_ece seen = { 0 };
	struct rdma_cm_event *ev;
	struct rdma_cm_id *c, *s;
	struct ibv_qp *cq_, *sq_;
	struct ibv_cq *ccq, *scq;
	struct ibv_sge sge;
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1,
				  .opcode = IBV_WR_SEND };
	struct ibv_recv_wr rr = { .sg_list = &sge, .num_sge = 1 };
	struct ibv_send_wr *bw;
	struct ibv_recv_wr *br;
	char out[32] = "over QPs of our own", in[32] = "";
	struct ibv_mr *cm, *sm;
	struct ibv_wc wc;

	serve();
	c = resolved();
	cq_ = own_qp(c, &ccq);
	param.qp_num = cq_->qp_num;
	param.srq = 1;
	NEED(!rdma_set_local_ece(c, &ece));
	NEED(!rdma_connect(c, &param));
	ev = GET(sch, CONNECT_REQUEST, 0);
	CHECK(ev->param.conn.qp_num == cq_->qp_num && ev->param.conn.srq);
	s = ev->id;
	rdma_ack_cm_event(ev);
	NEED(!rdma_get_remote_ece(s, &seen));
	CHECK(seen.vendor_id == ece.vendor_id && seen.options == ece.options);
	sq_ = own_qp(s, &scq);
	ready_qp(s, sq_);
	param.qp_num = sq_->qp_num;
	param.srq = 0;
	ece.options++;
	NEED(!rdma_set_local_ece(s, &ece));
	NEED(!rdma_accept(s, &param));
	ev = GET(cch, CONNECT_RESPONSE, 0);
	CHECK(ev->param.conn.qp_num == sq_->qp_num && !ev->param.conn.srq);
	rdma_ack_cm_event(ev);
	NEED(!rdma_get_remote_ece(c, &seen));
	CHECK(seen.vendor_id == ece.vendor_id && seen.options == ece.options);
	CHECK(quiet(sch, 20));
	ready_qp(c, cq_);
	NEED(!rdma_establish(c));
	FAILS(rdma_establish(c), EINVAL);
	EXPECT(sch, ESTABLISHED, 0);
	CHECK(quiet(cch, 0));

	NEED(cm = ibv_reg_mr(c->pd, out, sizeof(out), 0));
	NEED(sm = ibv_reg_mr(s->pd, in, sizeof(in), IBV_ACCESS_LOCAL_WRITE));
	sge = (struct ibv_sge){ (uintptr_t)in, sizeof(in), sm->lkey };
	NEED(!ibv_post_recv(sq_, &rr, &br));
	sge = (struct ibv_sge){ (uintptr_t)out, sizeof(out), cm->lkey };
	NEED(!ibv_post_send(cq_, &wr, &bw));
	for (int i = 0; i < 2000000 && !ibv_poll_cq(scq, 1, &wc); i++)
		;
	CHECK(!strcmp(in, out));
	hang_up(c, s);
	ibv_destroy_qp(cq_);
	ibv_destroy_qp(sq_);
	ibv_destroy_cq(ccq);
	ibv_destroy_cq(scq);
	ibv_dereg_mr(cm);
	ibv_dereg_mr(sm);
	finish_id(c);
	finish_id(s);

	/* ECE refused */
	c = resolved();
	NEED(!rdma_connect(c, &param));
	ev = GET(sch, CONNECT_REQUEST, 0);
	s = ev->id;
	rdma_ack_cm_event(ev);
	NEED(!rdma_reject_ece(s, "x", 2));
	EXPECT(cch, REJECTED, 35);
	finish_id(c);
	finish_id(s);
	finish();
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
	while (quiet(sch, 100))
		;
	usleep(50000);
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
	while (quiet(sch, 100))
		;
	usleep(50000);
	rdma_destroy_event_channel(sch);
	for (int i = 0; i < 4; i++)
		EXPECT(cch, REJECTED, 28);
	for (int i = 0; i < 4; i++)
		finish_id(c[i]);
	/* whoever still listens there does so in vain */
	CHECK(!rdma_destroy_id(listener));
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

static bool asleep(int tid)
{
	char path[64], state = 0;
	FILE *f;

	if (!tid)
		return false;
	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", tid);
	f = fopen(path, "r");
	if (f && fscanf(f, "%*d (%*[^)]) %c", &state) != 1)
		state = 0;
	if (f)
		fclose(f);
	return state == 'S';
}

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
		while (!asleep(sleeper_tid))
			usleep(10);
		sleeper_tid = 0;
		if (i % 2) /* there is something to wake up for */
			NEED(!rdma_resolve_addr(id, NULL, addr_of(7), 2000));
		rdma_destroy_event_channel(ch);
		pthread_detach(t);
		/* as destroying an identifier would wait for the ack */
		if (!(i % 2))
			rdma_destroy_id(id);
	}
	usleep(50000);
}

static void *acker(void *arg)
{
	usleep(300000);
	rdma_ack_cm_event(arg);
	return NULL;
}

static uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* Destroying waits for what was fetched and not acknowledged. */
static void acks(void)
{
	struct rdma_conn_param param = usual;
	struct rdma_cm_event *ev;
	struct rdma_cm_id *c, *s;
	uint64_t start;
	pthread_t t;

	serve();
	NEED(!rdma_create_id(cch, &c, NULL, RDMA_PS_TCP));
	NEED(!rdma_resolve_addr(c, NULL, addr_of(port), 2000));
	ev = GET(cch, ADDR_RESOLVED, 0);
	start = now_ms();
	pthread_create(&t, NULL, acker, ev);
	CHECK(!rdma_destroy_id(c));
	CHECK(now_ms() - start >= 250);
	pthread_join(t, NULL);

	/* a request is the listener's event */
	c = resolved();
	NEED(!rdma_connect(c, &param));
	ev = GET(sch, CONNECT_REQUEST, 0);
	s = ev->id;
	start = now_ms();
	CHECK(!rdma_destroy_id(s));
	CHECK(now_ms() - start < 200);
	start = now_ms();
	pthread_create(&t, NULL, acker, ev);
	CHECK(!rdma_destroy_id(listener));
	CHECK(now_ms() - start >= 250);
	pthread_join(t, NULL);
	EXPECT(cch, REJECTED, 28);
	finish_id(c);
	rdma_destroy_event_channel(cch);
	rdma_destroy_event_channel(sch);
}

static int count_fds(void)
{
	int n = 0;

	for (int fd = 0; fd < 1 << 16; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

static long rss_kb(void)
{
	long pages = 0, resident = 0;
	FILE *f = fopen("/proc/self/statm", "r");

	if (!f || fscanf(f, "%ld %ld", &pages, &resident) != 2)
		resident = 0;
	if (f)
		fclose(f);
	return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

static int many_n = 1000;

static void many_once(struct rdma_cm_id **c, struct rdma_cm_id **s,
		      uint16_t *used)
{
	uint8_t timeout = 14; /* 67 ms, and so TIMEWAIT */
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1,
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

/* All at once, and nothing is left of them. */
static void many(void)
{
	struct rdma_cm_id **c, **s, *id;
	uint16_t *used;
	long rss = 0;
	int fds = 0;

	c = calloc((size_t)many_n, sizeof(*c));
	s = calloc((size_t)many_n, sizeof(*s));
	used = calloc((size_t)many_n, sizeof(*used));
	serve();
	for (int round = 0; round < 4; round++) {
		many_once(c, s, used);
		if (round == 1) {
			rss = rss_kb();
			fds = count_fds();
		}
		usleep(200000); /* timewait passes */
	}
	for (int i = 0; i < many_n; i++) {
		NEED(!rdma_create_id(cch, &id, NULL, RDMA_PS_TCP));
		CHECK(!rdma_bind_addr(id, addr_of(used[i])));
		rdma_destroy_id(id);
	}
	CHECK(count_fds() == fds);
	/* a quarter of a kB per connection would show */
	if (rss_kb() > rss + many_n / 2) {
		printf("%ld kB resident, %ld kB before\n", rss_kb(), rss);
		bad++;
	}
	finish();
	free(c);
	free(s);
	free(used);
}

/* An endpoint that goes on with a channel. */
static struct rdma_cm_id *endpoint(enum ibv_qp_type type, bool passive,
				   struct rdma_event_channel *ch)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1,
			 .max_recv_sge = 1 },
		.sq_sig_all = 1,
	};
	struct rdma_addrinfo ai = { .ai_flags = passive ? RAI_PASSIVE : 0,
				    .ai_family = here.ss_family,
				    .ai_qp_type = (int)type,
				    .ai_port_space = RDMA_PS_IB };
	struct rdma_cm_id *id;

	if (passive) {
		ai.ai_src_addr = addr_of(0);
		ai.ai_src_len = sizeof(here);
	} else {
		ai.ai_dst_addr = addr_of(port);
		ai.ai_dst_len = sizeof(here);
	}
	NEED(!rdma_create_ep(&id, &ai, NULL, passive ? NULL : &attr));
	CHECK(id->qp_type == type);
	NEED(!rdma_migrate_id(id, ch));
	return id;
}

/* The port space IB has queue pairs of all types. */
static void types(void)
{
	static const enum ibv_qp_type all[] = { IBV_QPT_RC, IBV_QPT_UC,
						IBV_QPT_UD };
	struct rdma_cm_id *c, *s;

	NEED(cch = rdma_create_event_channel());
	NEED(sch = rdma_create_event_channel());
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		size_t grh = all[i] == IBV_QPT_UD ? 40 : 0;
		struct rdma_conn_param param = usual;
		char out[32] = "of any type", in[72] = "";
		struct rdma_cm_event *ev;
		struct ibv_ah *ah = NULL;
		struct ibv_mr *cm, *sm;
		uint32_t qpn, qkey;
		struct ibv_wc wc;

		listener = endpoint(all[i], true, sch);
		NEED(!rdma_listen(listener, 0));
		port = ntohs(rdma_get_src_port(listener));
		c = endpoint(all[i], false, cch);
		NEED(!rdma_connect(c, &param));
		ev = GET(sch, CONNECT_REQUEST, 0);
		s = ev->id;
		rdma_ack_cm_event(ev);
		CHECK(s->qp_type == all[i] && s->ps == RDMA_PS_IB);
		add_qp(s);
		NEED(sm = rdma_reg_msgs(s, in, sizeof(in)));
		NEED(!rdma_post_recv(s, NULL, in, sizeof(in), sm));
		NEED(!rdma_accept(s, &param));
		ev = GET(cch, ESTABLISHED, 0);
		qpn = ev->param.ud.qp_num;
		qkey = ev->param.ud.qkey;
		if (grh)
			NEED(ah = ibv_create_ah(c->pd, &ev->param.ud.ah_attr));
		rdma_ack_cm_event(ev);
		if (!grh)
			EXPECT(sch, ESTABLISHED, 0);
		NEED(cm = rdma_reg_msgs(c, out, sizeof(out)));
		if (grh) {
			CHECK(qpn == s->qp->qp_num && qkey == RDMA_UDP_QKEY);
			NEED(!rdma_post_ud_send(c, NULL, out, sizeof(out), cm,
						0, ah, qpn));
		} else {
			NEED(!rdma_post_send(c, NULL, out, sizeof(out), cm, 0));
		}
		CHECK(rdma_get_send_comp(c, &wc) == 1 && !wc.status);
		CHECK(rdma_get_recv_comp(s, &wc) == 1 && !wc.status);
		CHECK(!strcmp(in + grh, out));
		if (grh) {
			FAILS(rdma_disconnect(c), EINVAL);
			ibv_destroy_ah(ah);
		} else {
			hang_up(c, s);
		}
		/* another type is refused */
		finish_id(c);
		c = endpoint(all[(i + 1) % 2], false, cch);
		NEED(!rdma_connect(c, &param));
		EXPECT(cch, REJECTED, 9);
		rdma_dereg_mr(cm);
		rdma_dereg_mr(sm);
		finish_id(c);
		finish_id(s);
		rdma_destroy_ep(listener);
	}
	rdma_destroy_event_channel(cch);
	rdma_destroy_event_channel(sch);
}

/* Data has come before RTU: who notices says so. */
static void notify(void)
{
	struct rdma_conn_param param = usual;
	struct rdma_cm_event *ev;
	struct rdma_cm_id *c, *s;

	serve();
	c = resolved();
	param.qp_num = 0x777;
	NEED(!rdma_connect(c, &param));
	ev = GET(sch, CONNECT_REQUEST, 0);
	s = ev->id;
	rdma_ack_cm_event(ev);
	FAILS(rdma_notify(s, IBV_EVENT_COMM_EST), EINVAL);
	param.qp_num++;
	NEED(!rdma_accept(s, &param));
	EXPECT(cch, CONNECT_RESPONSE, 0);
	CHECK(quiet(sch, 20));
	FAILS(rdma_notify(c, IBV_EVENT_COMM_EST), EINVAL);
	NEED(!rdma_notify(s, IBV_EVENT_COMM_EST));
	EXPECT(sch, ESTABLISHED, 0);
	NEED(!rdma_establish(c)); /* too late to be an event */
	CHECK(quiet(sch, 50));
	hang_up(c, s);
	finish_id(c);
	finish_id(s);
	finish();
}

/* The hardware address of our interface changes under a connection; or
 * (CM_CHECK_REMOVAL) the interface that the device is made of goes. */
static void say(const char *what);

static void interface_(void)
{
	bool removal = getenv("CM_CHECK_REMOVAL") != NULL;
	struct rdma_cm_id *c, *s, *any, *sync;
	struct rdma_cm_event *ev;
	bool told[2] = { false };

	serve();
	connected(&c, &s);
	NEED(!rdma_create_id(cch, &any, NULL, RDMA_PS_TCP));
	NEED(!rdma_bind_addr(any, any_of(0)));
	NEED(!rdma_listen(any, 0));
	NEED(!rdma_create_id(NULL, &sync, NULL, RDMA_PS_TCP));
	NEED(!rdma_bind_addr(sync, addr_of(0)));
	say("ready");
	ev = removal ? GET(cch, DEVICE_REMOVAL, 0) : GET(cch, ADDR_CHANGE, 0);
	CHECK(ev->id == c);
	rdma_ack_cm_event(ev);
	for (int i = 0; i < 2; i++) {
		ev = removal ? GET(sch, DEVICE_REMOVAL, 0)
			     : GET(sch, ADDR_CHANGE, 0);
		CHECK(ev->id == listener || ev->id == s);
		told[ev->id == s] = true;
		rdma_ack_cm_event(ev);
	}
	CHECK(told[0] && told[1]);
	/* once, and nobody else: a wildcard has no device, and who waits in
	 * calls waits for something else */
	CHECK(quiet(cch, 300) && quiet(sch, 0) && quiet(sync->channel, 0));
	if (removal) {
		struct rdma_cm_id *id;

		NEED(!rdma_create_id(cch, &id, NULL, RDMA_PS_TCP));
		/* what is known of the host is a second old at most */
		CHECK(rdma_bind_addr(id, addr_of(0)) &&
		      (errno == EADDRNOTAVAIL || errno == ENODEV));
		rdma_destroy_id(id);
	} else {
		char out[64] = "still there", in[64] = "";
		struct ibv_mr *cm, *sm;
		struct ibv_wc wc;

		NEED(cm = rdma_reg_msgs(c, out, sizeof(out)));
		NEED(sm = rdma_reg_msgs(s, in, sizeof(in)));
		NEED(!rdma_post_recv(s, NULL, in, sizeof(in), sm));
		NEED(!rdma_post_send(c, NULL, out, sizeof(out), cm, 0));
		CHECK(rdma_get_send_comp(c, &wc) == 1 && !wc.status);
		CHECK(rdma_get_recv_comp(s, &wc) == 1 && !wc.status);
		CHECK(!strcmp(in, out));
		hang_up(c, s);
		rdma_dereg_mr(cm);
		rdma_dereg_mr(sm);
	}
	finish_id(c);
	finish_id(s);
	finish_id(sync);
	finish_id(any);
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

			answer = (enum churn_answer)*p;
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

static void simultaneous(void)
{
	struct rdma_conn_param param = usual;
	struct rdma_cm_id *l2, *a, *b, *pa = NULL, *pb = NULL;
	struct rdma_cm_event *ev;
	uint16_t port1, port2;
	int up = 0;

	/* one channel for everything, one listener for each end */
	serve();
	port1 = port;
	NEED(!rdma_create_id(sch, &l2, NULL, RDMA_PS_TCP));
	NEED(!rdma_bind_addr(l2, addr_of(0)));
	NEED(!rdma_listen(l2, 0));
	port2 = ntohs(rdma_get_src_port(l2));
	a = resolved();
	port = port2;
	b = resolved();
	port = port1;
	add_qp(a);
	add_qp(b);
	NEED(!rdma_connect(a, &param));
	NEED(!rdma_connect(b, &param));
	for (int i = 0; i < 2; i++) {
		ev = GET(sch, CONNECT_REQUEST, 0);
		add_qp(ev->id);
		if (ev->listen_id == listener)
			pa = ev->id;
		else
			pb = ev->id;
		NEED(!rdma_accept(ev->id, &param));
		rdma_ack_cm_event(ev);
	}
	NEED(pa && pb);
	for (; up < 2; up++) {
		EXPECT(cch, ESTABLISHED, 0);
		EXPECT(sch, ESTABLISHED, 0);
	}
	/* both ends hang up at once */
	CHECK(!rdma_disconnect(a));
	CHECK(!rdma_disconnect(pa));
	EXPECT(cch, DISCONNECTED, 0);
	EXPECT(sch, DISCONNECTED, 0);
	hang_up(b, pb);
	finish_id(a);
	finish_id(b);
	finish_id(pa);
	finish_id(pb);
	CHECK(!rdma_destroy_id(l2));
	finish();
}

static void mcast(void)
{
	struct rdma_cm_join_mc_attr_ex ex = { 0 };
	struct sockaddr_storage group = { 0 };
	struct rdma_cm_id *a, *b, *t;
	struct rdma_cm_event *ev;
	struct ibv_mr *ma, *mb;
	struct ibv_ah *ah;
	struct ibv_wc wc;
	char out[64] = "to all", in[128];
	int ctx;

	if (here.ss_family == AF_INET) {
		group.ss_family = AF_INET;
		inet_pton(AF_INET, "239.77.1.2",
			  &((struct sockaddr_in *)&group)->sin_addr);
	} else {
		group.ss_family = AF_INET6;
		inet_pton(AF_INET6, "ff15::77:1",
			  &((struct sockaddr_in6 *)&group)->sin6_addr);
	}
	NEED(cch = rdma_create_event_channel());
	NEED(!rdma_create_id(cch, &t, NULL, RDMA_PS_TCP));
	NEED(!rdma_create_id(cch, &a, NULL, RDMA_PS_UDP));
	NEED(!rdma_create_id(cch, &b, NULL, RDMA_PS_UDP));
	FAILS(rdma_join_multicast(a, (struct sockaddr *)&group, NULL), EINVAL);
	NEED(!rdma_bind_addr(t, addr_of(0)));
	NEED(!rdma_bind_addr(a, addr_of(0)));
	NEED(!rdma_bind_addr(b, addr_of(0)));
	FAILS(rdma_join_multicast(t, (struct sockaddr *)&group, NULL), EINVAL);
	FAILS(rdma_join_multicast(a, addr_of(0), NULL), EINVAL);
	FAILS(rdma_leave_multicast(a, (struct sockaddr *)&group),
	      EADDRNOTAVAIL);
	finish_id(t);
	add_qp(a);
	add_qp(b);
	CHECK(a->qp->state == IBV_QPS_RTS);
	NEED(ma = rdma_reg_msgs(a, out, sizeof(out)));
	NEED(mb = rdma_reg_msgs(b, in, sizeof(in)));

	/* left before the event was fetched */
	NEED(!rdma_join_multicast(b, (struct sockaddr *)&group, NULL));
	NEED(!rdma_leave_multicast(b, (struct sockaddr *)&group));
	CHECK(quiet(cch, 0));

	NEED(!rdma_join_multicast(b, (struct sockaddr *)&group, &ctx));
	ev = GET(cch, MULTICAST_JOIN, 0);
	CHECK(ev->id == b && ev->param.ud.private_data == &ctx);
	CHECK(ev->param.ud.qp_num == 0xffffff &&
	      ev->param.ud.qkey == RDMA_UDP_QKEY);
	rdma_ack_cm_event(ev);
	ex.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS |
		       RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
	ex.addr = (struct sockaddr *)&group;
	ex.join_flags = RDMA_MC_JOIN_FLAG_RESERVED;
	FAILS(rdma_join_multicast_ex(a, &ex, NULL), EINVAL);
	ex.join_flags = RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER;
	NEED(!rdma_join_multicast_ex(a, &ex, NULL));
	ev = GET(cch, MULTICAST_JOIN, 0);
	NEED(ah = ibv_create_ah(a->pd, &ev->param.ud.ah_attr));
	rdma_ack_cm_event(ev);

	NEED(!rdma_post_recv(b, NULL, in, sizeof(in), mb));
	NEED(!rdma_post_ud_send(a, NULL, out, sizeof(out), ma, 0, ah, 0xffffff));
	CHECK(rdma_get_send_comp(a, &wc) == 1 && !wc.status);
	CHECK(rdma_get_recv_comp(b, &wc) == 1 && !wc.status &&
	      wc.byte_len == sizeof(out) + 40);
	CHECK(!memcmp(in + 40, out, sizeof(out)));

	NEED(!rdma_leave_multicast(b, (struct sockaddr *)&group));
	NEED(!rdma_post_recv(b, NULL, in, sizeof(in), mb));
	NEED(!rdma_post_ud_send(a, NULL, out, sizeof(out), ma, 0, ah, 0xffffff));
	CHECK(rdma_get_send_comp(a, &wc) == 1 && !wc.status);
	usleep(200000);
	CHECK(ibv_poll_cq(b->recv_cq, 1, &wc) == 0);
	ibv_destroy_ah(ah);
	rdma_dereg_mr(ma);
	rdma_dereg_mr(mb);
	finish_id(a); /* leaves what it has joined */
	finish_id(b);
	rdma_destroy_event_channel(cch);
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

static void srq(void)
{
	struct ibv_srq_init_attr sa = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct rdma_conn_param param = usual;
	struct rdma_cm_event *ev;
	struct rdma_cm_id *c, *s;
	char out[8] = "shared", in[8] = "";
	struct ibv_mr *cm, *sm;
	struct ibv_wc wc;

	serve();
	c = resolved();
	add_qp(c);
	NEED(!rdma_connect(c, &param));
	ev = GET(sch, CONNECT_REQUEST, 0);
	s = ev->id;
	rdma_ack_cm_event(ev);
	NEED(!rdma_create_srq(s, NULL, &sa));
	CHECK(s->srq && sa.attr.max_wr >= 8);
	FAILS(rdma_create_srq(s, NULL, &sa), EINVAL);
	add_qp(s);
	CHECK(s->qp->srq == s->srq);
	NEED(sm = rdma_reg_msgs(s, in, sizeof(in)));
	NEED(!rdma_post_recv(s, NULL, in, sizeof(in), sm));
	NEED(!rdma_accept(s, &param));
	ev = GET(cch, ESTABLISHED, 0);
	CHECK(ev->param.conn.srq);
	rdma_ack_cm_event(ev);
	EXPECT(sch, ESTABLISHED, 0);
	NEED(cm = rdma_reg_msgs(c, out, sizeof(out)));
	NEED(!rdma_post_send(c, NULL, out, sizeof(out), cm, 0));
	CHECK(rdma_get_recv_comp(s, &wc) == 1 && !wc.status);
	CHECK(!strcmp(in, out));
	hang_up(c, s);
	rdma_dereg_mr(cm);
	rdma_dereg_mr(sm);
	finish_id(c);
	finish_id(s);
	CHECK(!rdma_destroy_id(listener));
}

static void addrinfo(void)
{
	struct sockaddr_in src = { .sin_family = AF_INET, .sin_port = 5 };
	struct rdma_addrinfo hints = { 0 }, *res;
	struct sockaddr_in *sin;

	FAILS(rdma_getaddrinfo(NULL, NULL, NULL, &res), EINVAL);
	NEED(!rdma_getaddrinfo("127.0.0.1", "7174", NULL, &res));
	sin = (struct sockaddr_in *)res->ai_dst_addr;
	CHECK(res->ai_family == AF_INET && res->ai_qp_type == IBV_QPT_RC &&
	      res->ai_port_space == RDMA_PS_TCP && !res->ai_src_addr &&
	      res->ai_dst_len == sizeof(*sin) && ntohs(sin->sin_port) == 7174);
	rdma_freeaddrinfo(res);
	hints.ai_flags = RAI_PASSIVE;
	hints.ai_port_space = RDMA_PS_UDP;
	NEED(!rdma_getaddrinfo(NULL, "7174", &hints, &res));
	CHECK(res->ai_flags & RAI_PASSIVE && res->ai_qp_type == IBV_QPT_UD &&
	      res->ai_src_addr && !res->ai_dst_addr && !res->ai_dst_len);
	rdma_freeaddrinfo(res);
	memset(&hints, 0, sizeof(hints));
	hints.ai_flags = RAI_NUMERICHOST;
	CHECK(rdma_getaddrinfo("not.a.number", "7174", &hints, &res) ==
	      EAI_NONAME);
	hints.ai_flags = RAI_FAMILY | RAI_NUMERICHOST;
	hints.ai_family = AF_INET6;
	NEED(!rdma_getaddrinfo("::1", "7174", &hints, &res));
	CHECK(res->ai_family == AF_INET6);
	rdma_freeaddrinfo(res);
	CHECK(rdma_getaddrinfo("127.0.0.1", "7174", &hints, &res));
	hints.ai_family = 27; /* AF_IB */
	CHECK(rdma_getaddrinfo("127.0.0.1", "7174", &hints, &res) == EAI_FAMILY);
	/* only hints, as libfabric */
	memset(&hints, 0, sizeof(hints));
	hints.ai_flags = RAI_FAMILY;
	hints.ai_family = AF_INET;
	hints.ai_port_space = RDMA_PS_TCP;
	hints.ai_src_addr = hints.ai_dst_addr = (struct sockaddr *)&src;
	hints.ai_src_len = hints.ai_dst_len = sizeof(src);
	NEED(!rdma_getaddrinfo(NULL, NULL, &hints, &res));
	CHECK(res->ai_src_addr && res->ai_src_addr != hints.ai_src_addr &&
	      !memcmp(res->ai_src_addr, &src, sizeof(src)) &&
	      !memcmp(res->ai_dst_addr, &src, sizeof(src)));
	free(res->ai_src_addr); /* libfabric replaces it */
	res->ai_src_addr = NULL;
	rdma_freeaddrinfo(res);
}

static void devices(void)
{
	struct ibv_context **list;
	int n = 0;

	NEED(list = rdma_get_devices(&n));
	CHECK(n >= 1 && list[n - 1] && !list[n]);
	serve();
	CHECK(listener->verbs == list[0]); /* one context for all */
	rdma_free_devices(list);
	finish();
	CHECK(!strcmp(rdma_event_str(RDMA_CM_EVENT_TIMEWAIT_EXIT),
		      "RDMA_CM_EVENT_TIMEWAIT_EXIT"));
	CHECK(rdma_event_str((enum rdma_cm_event_type)99));
}

/* Identifiers that share a port come and go in several threads. */
static void *share_port(void *arg)
{
	int one = 1;

	for (int i = 0; i < 2000; i++) {
		struct rdma_cm_id *id;

		NEED(!rdma_create_id(arg, &id, NULL, RDMA_PS_TCP));
		NEED(!rdma_set_option(id, RDMA_OPTION_ID,
				      RDMA_OPTION_ID_REUSEADDR, &one,
				      sizeof(one)));
		CHECK(!rdma_bind_addr(id, addr_of(port)));
		rdma_destroy_id(id);
	}
	return NULL;
}

static void shared_port(void)
{
	struct rdma_cm_id *id;
	pthread_t t[3];

	NEED(cch = rdma_create_event_channel());
	/* one that is free */
	NEED(!rdma_create_id(cch, &id, NULL, RDMA_PS_TCP));
	NEED(!rdma_bind_addr(id, addr_of(0)));
	port = ntohs(rdma_get_src_port(id));
	rdma_destroy_id(id);
	for (int i = 0; i < 3; i++)
		NEED(!pthread_create(&t[i], NULL, share_port, cch));
	for (int i = 0; i < 3; i++)
		pthread_join(t[i], NULL);
	/* nobody has it any more */
	NEED(!rdma_create_id(cch, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(id, addr_of(port)));
	CHECK(!rdma_listen(id, 0));
	rdma_destroy_id(id);
	rdma_destroy_event_channel(cch);
}

/* Families of wildcards. */
static void families(void)
{
	struct sockaddr_in6 any6 = { .sin6_family = AF_INET6 };
	struct sockaddr_in any4 = { .sin_family = AF_INET };
	struct rdma_conn_param param = usual;
	struct rdma_cm_id *l4, *l6, *c;
	struct rdma_cm_event *ev;
	int one = 1;

	inet_pton(AF_INET, "127.0.0.1", &((struct sockaddr_in *)&here)->sin_addr);
	((struct sockaddr_in *)&here)->sin_family = AF_INET;
	NEED(cch = rdma_create_event_channel());
	NEED(sch = rdma_create_event_channel());
	NEED(!rdma_create_id(sch, &l6, NULL, RDMA_PS_TCP));
	NEED(!rdma_bind_addr(l6, (struct sockaddr *)&any6));
	NEED(!rdma_listen(l6, 0));
	port = ntohs(rdma_get_src_port(l6));
	/* an IPv6 wildcard hears IPv4 as well */
	c = resolved();
	NEED(!rdma_connect(c, &param));
	ev = GET(sch, CONNECT_REQUEST, 0);
	CHECK(rdma_get_peer_addr(ev->id)->sa_family == AF_INET);
	rdma_destroy_id(({
		struct rdma_cm_id *id = ev->id;
		rdma_ack_cm_event(ev);
		id;
	}));
	EXPECT(cch, REJECTED, 28);
	finish_id(c);
	rdma_destroy_id(l6);

	/* unless it is told not to; then both may have the port, as an IPv4
	 * wildcard never stands for IPv6 */
	NEED(!rdma_create_id(sch, &l6, NULL, RDMA_PS_TCP));
	NEED(!rdma_create_id(sch, &l4, NULL, RDMA_PS_TCP));
	NEED(!rdma_set_option(l6, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &one,
			      sizeof(one)));
	any6.sin6_port = any4.sin_port = htons(port);
	NEED(!rdma_bind_addr(l6, (struct sockaddr *)&any6));
	NEED(!rdma_listen(l6, 0));
	c = resolved();
	NEED(!rdma_connect(c, &param));
	EXPECT(cch, REJECTED, 8);
	finish_id(c);
	NEED(!rdma_bind_addr(l4, (struct sockaddr *)&any4));
	NEED(!rdma_listen(l4, 0));
	c = resolved();
	NEED(!rdma_connect(c, &param));
	ev = GET(sch, CONNECT_REQUEST, 0);
	CHECK(ev->listen_id == l4);
	rdma_destroy_id(({
		struct rdma_cm_id *id = ev->id;
		rdma_ack_cm_event(ev);
		id;
	}));
	EXPECT(cch, REJECTED, 28);
	finish_id(c);
	rdma_destroy_id(l4);
	rdma_destroy_id(l6);
	rdma_destroy_event_channel(cch);
	rdma_destroy_event_channel(sch);
}

/* For the tests of several processes: a server and a client that say what
 * happens, and wait to be killed. */
static void say(const char *what)
{
	printf("%s\n", what);
	fflush(stdout);
}

static void wait_server(void)
{
	struct rdma_conn_param param = usual;
	struct rdma_cm_event *ev;
	char line[160];

	NEED(sch = rdma_create_event_channel());
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
		.cap = { .max_send_wr = 2, .max_recv_wr = 2, .max_send_sge = 1,
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
	NEED(!rdma_bind_addr(listener, addr_of((uint16_t)atoi(
					       getenv("CM_CHECK_PORT")))));
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

static const struct {
	const char *name;
	void (*run)(void);
} situations[] = {
	{ "life", life },
	{ "data", data },
	{ "limits", limits },
	{ "nobody", nobody },
	{ "silent", silent },
	{ "states", states },
	{ "ports", ports },
	{ "shared_port", shared_port },
	{ "options", options },
	{ "nonblock", nonblock },
	{ "settle", settle },
	{ "own_destroy", own_destroy },
	{ "late_refusal", late_refusal },
	{ "localhost", localhost },
	{ "migrate", migrate },
	{ "backlog", backlog },
	{ "sync", sync_ },
	{ "external", external },
	{ "destroy_pending", destroy_pending },
	{ "destroy_getting", destroy_getting },
	{ "destroy_channel", destroy_channel },
	{ "acks", acks },
	{ "many", many },
	{ "churn", churn },
	{ "simultaneous", simultaneous },
	{ "types", types },
	{ "notify", notify },
	{ "interface", interface_ },
	{ "mcast", mcast },
	{ "errors", errors },
	{ "srq", srq },
	{ "addrinfo", addrinfo },
	{ "devices", devices },
	{ "families", families },
	{ "wait_server", wait_server },
	{ "wait_client", wait_client },
	{ "echo_server", echo_server },
	{ "echo_client", echo_client },
};

int main(int argc, char **argv)
{
	const char *where = getenv("CM_CHECK_ADDR");
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST }, *ai;
	struct rlimit rl;

	if (!getrlimit(RLIMIT_NOFILE, &rl)) {
		rl.rlim_cur = rl.rlim_max;
		setrlimit(RLIMIT_NOFILE, &rl);
	}
	NEED(!getaddrinfo(where ? where : "127.0.0.1", NULL, &hints, &ai));
	memcpy(&here, ai->ai_addr, ai->ai_addrlen);
	freeaddrinfo(ai);
	if (getenv("CM_CHECK_N"))
		many_n = atoi(getenv("CM_CHECK_N"));
	if (argc == 2 && !strcmp(argv[1], "list")) {
		for (size_t i = 0;
		     i < sizeof(situations) / sizeof(situations[0]); i++)
			printf("%s\n", situations[i].name);
		return 0;
	}
	for (size_t i = 0; argc == 2 && i < sizeof(situations) /
						   sizeof(situations[0]);
	     i++) {
		if (strcmp(argv[1], situations[i].name))
			continue;
		alarm(120);
		situations[i].run();
		printf("%s: %d\n", argv[1], bad);
		return bad;
	}
	fprintf(stderr, "usage: cm_check SITUATION | list\n");
	return 2;
}

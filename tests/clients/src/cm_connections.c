/*
 * cm_connections.c - connections from REQ to DREQ, and what may go wrong on the way
 */
#include "cm_check.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static bool filled(const void *p, size_t n, unsigned seed)
{
	uint8_t want[256];

	fill(want, n, seed);
	return p && !memcmp(p, want, n);
}

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
	NEED(!rdma_post_write(c, NULL, out, sizeof(out), cm, 0, (uintptr_t)in,
			      sm->rkey));
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
		NEED(!rdma_resolve_addr(c, NULL, (struct sockaddr *)&dst,
					2000));
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

/* A peer that refuses after it has accepted: one event says so, the last. */
static void late_refusal(void)
{
	struct rdma_conn_param param = usual;
	struct rdma_cm_id *c, *s;
	struct rdma_cm_event *ev;

	serve();
	c = resolved();
	add_qp(c);
	NEED(!rdma_connect(c, &param));
	ev = GET(sch, CONNECT_REQUEST, 0);
	s = ev->id;
	add_qp(s);
	NEED(!rdma_accept(s, &ev->param.conn));
	rdma_ack_cm_event(ev);
	CHECK(!quiet(cch, LIMIT_MS));
	finish_id(s);
	all_arrived();
	EXPECT(cch, REJECTED, 28);
	CHECK(quiet(cch, 0));
	finish_id(c);
	finish();
}

static long ms_since(const struct timespec *start)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (t.tv_sec - start->tv_sec) * 1000 +
	       (t.tv_nsec - start->tv_nsec) / 1000000;
}

static void backlog(void)
{
	struct rdma_conn_param param = usual;
	struct rdma_cm_id *c[5];
	struct rdma_cm_event *ev;
	struct timespec start;
	int got = 0;

	serve_ps(RDMA_PS_TCP, 2);
	for (int i = 0; i < 5; i++)
		c[i] = resolved();
	clock_gettime(CLOCK_MONOTONIC, &start);
	for (int i = 0; i < 5; i++)
		NEED(!rdma_connect(c[i], &param));
	all_arrived();
	CHECK(quiet(cch, 100)); /* nobody was refused */
	fcntl(sch->fd, F_SETFL, O_NONBLOCK);
	for (; !rdma_get_cm_event(sch, &ev); got++) {
		CHECK(ev->event == RDMA_CM_EVENT_CONNECT_REQUEST);
		/* more only if that took so long that the others ask again */
		CHECK(got < 2 || ms_since(&start) > 250);
		rdma_reject(ev->id, NULL, 0);
		drop_request(ev);
	}
	CHECK(errno == EAGAIN && got >= 2);
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

const struct situation cm_connections[] = {
	{ "life", life },
	{ "data", data },
	{ "limits", limits },
	{ "nobody", nobody },
	{ "silent", silent },
	{ "states", states },
	{ "late_refusal", late_refusal },
	{ "backlog", backlog },
	{ "simultaneous", simultaneous },
	{ "notify", notify },
	{ NULL, NULL },
};

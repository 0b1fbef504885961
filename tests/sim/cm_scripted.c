/*
 * cm_scripted.c - the connection manager, one situation per test
 */
#include "cm_net.h"

#include "base/bytes.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SID IPCM_SERVICE_ID(0x0106, 7174)
#define UD_SID IPCM_SERVICE_ID(0x0111, 7174)
#define A (&net->node[0])
#define B (&net->node[1])
#define SENT(n, msg) ((n)->sent[MAD_CM_##msg - MAD_CM_REQ])

static const struct cm_end an_end = {
	.qp_type = IBV_QPT_RC,
	.qpn = 0x1234,
	.psn = 0xabcdef,
	.responder_resources = 3,
	.initiator_depth = 4,
	.retry_count = 7,
	.rnr_retry_count = 6,
	.ack_timeout = 17,
	.mtu = IBV_MTU_1024,
	.pkey = 0xffff,
	.ece = { .vendor_id = 0x123456, .options = 0x89abcdef },
};

static struct cm_listener *listener;

static struct cm_net *setup(void)
{
	struct cm_net *net = cm_net_new(1, &(struct cm_config){ 0 });

	assert_int_equal(cm_listen(B->cm, &listener, SID, NULL,
				   CM_LISTEN_V4 | CM_LISTEN_V6, B),
			 0);
	return net;
}

static struct cm_conn *dial(struct cm_net *net, const struct cm_end *end,
			    const void *data, size_t len)
{
	struct roce_path path = cm_net_path(net, 0, 1);
	struct cm_conn *c;

	assert_int_equal(
		cm_connect(A->cm, &c, SID, &path, end, data, len, A, net->now),
		0);
	return c;
}

/* Everything is closed and forgotten in the end. */
static void finish(struct cm_net *net)
{
	assert_true(cm_net_run(net, 3600 * SEC));
	for (int i = 0; i < CM_NET_NODES; i++)
		assert_int_equal(cm_stats(net->node[i].cm).conns, 0);
	cm_net_free(net);
}

static void expect(const struct cm_net_node *n, enum cm_event_type type,
		   int status)
{
	assert_int_equal(n->ev.type, type);
	assert_int_equal(n->ev.status, status);
}

static void state(const struct cm_conn *c, enum cm_state s)
{
	assert_string_equal(cm_state_name(cm_conn_state(c)), cm_state_name(s));
}

static void establish(struct cm_net *net, struct cm_conn **a,
		      struct cm_conn **b)
{
	struct cm_end end = an_end;

	*a = dial(net, &an_end, NULL, 0);
	cm_net_run(net, SEC / 10);
	*b = B->ev.conn;
	end.qpn = 0x4321;
	assert_int_equal(cm_accept(B->cm, *b, &end, NULL, 0, net->now), 0);
	cm_net_run(net, SEC / 10);
	expect(A, CM_EV_REP, 0);
	assert_int_equal(cm_rtu(A->cm, *a, NULL, 0, net->now), 0);
	cm_net_run(net, SEC / 10);
	state(*a, CM_ESTABLISHED);
	state(*b, CM_ESTABLISHED);
}

/* What one side says arrives at the other, to the last byte. */
static void all_the_way(void **unused)
{
	struct cm_net *net = setup();
	uint8_t req[CM_REQ_DATA], rep[CM_REP_DATA], rtu[CM_RTU_DATA];
	uint8_t dreq[CM_DREQ_DATA];
	struct cm_end end = an_end;
	struct cm_conn *a, *b;

	(void)unused;
	memset(req, 1, sizeof(req));
	memset(rep, 2, sizeof(rep));
	memset(rtu, 3, sizeof(rtu));
	memset(dreq, 4, sizeof(dreq));

	a = dial(net, &an_end, req, sizeof(req));
	assert_true(cm_conn_state(a) == CM_REQ_SENT);
	cm_net_run(net, SEC / 10);
	expect(B, CM_EV_REQ, 0);
	b = B->ev.conn;
	assert_ptr_equal(B->ev.user, B);
	assert_int_equal(B->ev.service_id, SID);
	assert_int_equal(B->ev.len, CM_REQ_DATA);
	assert_memory_equal(B->ev_data, req, sizeof(req));
	assert_int_equal(B->ev.peer.qp_type, IBV_QPT_RC);
	assert_int_equal(B->ev.peer.qpn, 0x1234);
	assert_int_equal(B->ev.peer.psn, 0xabcdef);
	assert_int_equal(B->ev.peer.responder_resources, 3);
	assert_int_equal(B->ev.peer.initiator_depth, 4);
	assert_int_equal(B->ev.peer.retry_count, 7);
	assert_int_equal(B->ev.peer.rnr_retry_count, 6);
	assert_int_equal(B->ev.peer.mtu, IBV_MTU_1024);
	assert_int_equal(B->ev.peer.ece.vendor_id, 0x123456);
	assert_int_equal(B->ev.peer.ece.options, 0x89abcdef);
	assert_int_equal(B->ev.peer.ca_guid, 0xca0000);
	assert_memory_equal(&cm_conn_path(b)->sgid, &B->gid, 16);
	assert_memory_equal(&cm_conn_path(b)->dgid, &A->gid, 16);
	assert_int_equal(cm_conn_path(b)->tclass, 0x20);
	assert_int_equal(cm_conn_path(b)->flow_label, 0x12345);

	end.qpn = 0xfedcba;
	end.psn = 1;
	end.responder_resources = 9;
	end.ece.vendor_id = 0x654321;
	end.ece.options = 5;
	end.target_ack_delay = 15;
	cm_conn_set_user(b, &rep);
	assert_int_equal(cm_accept(B->cm, b, &end, rep, sizeof(rep), net->now),
			 0);
	cm_net_run(net, SEC / 10);
	expect(A, CM_EV_REP, 0);
	assert_ptr_equal(A->ev.conn, a);
	assert_ptr_equal(A->ev.user, A);
	assert_int_equal(A->ev.len, CM_REP_DATA);
	assert_memory_equal(A->ev_data, rep, sizeof(rep));
	assert_int_equal(A->ev.peer.qpn, 0xfedcba);
	assert_int_equal(A->ev.peer.psn, 1);
	assert_int_equal(A->ev.peer.responder_resources, 9);
	assert_int_equal(A->ev.peer.ece.vendor_id, 0x654321);
	assert_int_equal(A->ev.peer.ece.options, 5);
	assert_int_equal(A->ev.peer.target_ack_delay, 15);
	assert_int_equal(A->ev.peer.ca_guid, 0xca0001);

	assert_int_equal(cm_rtu(A->cm, a, rtu, sizeof(rtu), net->now), 0);
	cm_net_run(net, SEC / 10);
	expect(B, CM_EV_ESTABLISHED, 0);
	assert_ptr_equal(B->ev.user, &rep);
	assert_int_equal(B->ev.len, CM_RTU_DATA);
	assert_memory_equal(B->ev_data, rtu, sizeof(rtu));

	assert_int_equal(cm_disconnect(A->cm, a, dreq, sizeof(dreq), net->now),
			 0);
	cm_net_run(net, SEC / 10);
	expect(B, CM_EV_DREQ, 0);
	assert_memory_equal(B->ev_data, dreq, sizeof(dreq));
	state(b, CM_DREQ_RCVD);
	state(a, CM_DREQ_SENT);
	assert_int_equal(cm_disconnect(B->cm, b, NULL, 0, net->now), 0);
	cm_net_run(net, SEC / 10);
	expect(A, CM_EV_DREP, 0);
	state(a, CM_TIMEWAIT);
	state(b, CM_TIMEWAIT);
	cm_net_run(net, 10 * SEC);
	expect(A, CM_EV_TIMEWAIT_EXIT, 0);
	expect(B, CM_EV_TIMEWAIT_EXIT, 0);
	/* nothing was sent twice */
	assert_int_equal(net->packets, 5);
	cm_close(A->cm, a, net->now);
	cm_close(B->cm, b, net->now);
	finish(net);
}

static void private_data_limits(void **unused)
{
	static const uint8_t data[256];
	struct cm_net *net = setup();
	struct roce_path path = cm_net_path(net, 0, 1);
	struct cm_conn *a, *b;

	(void)unused;
	assert_int_equal(cm_connect(A->cm, &a, SID, &path, &an_end, data,
				    CM_REQ_DATA + 1, A, net->now),
			 -EINVAL);
	assert_int_equal(cm_sidr_request(A->cm, &a, SID, &path, 0xffff, data,
					 CM_SIDR_REQ_DATA + 1, A, net->now),
			 -EINVAL);
	assert_int_equal(cm_stats(A->cm).conns, 0);
	a = dial(net, &an_end, data, CM_REQ_DATA);
	cm_net_run(net, SEC / 10);
	b = B->ev.conn;
	assert_int_equal(
		cm_accept(B->cm, b, &an_end, data, CM_REP_DATA + 1, net->now),
		-EINVAL);
	assert_int_equal(cm_reject(B->cm, b, CM_REJ_CONSUMER, NULL, 0, data,
				   CM_REJ_DATA + 1, net->now),
			 -EINVAL);
	assert_int_equal(cm_reject(B->cm, b, CM_REJ_CONSUMER, data,
				   CM_REJ_ARI + 1, NULL, 0, net->now),
			 -EINVAL);
	state(b, CM_REQ_RCVD);
	assert_int_equal(
		cm_accept(B->cm, b, &an_end, data, CM_REP_DATA, net->now), 0);
	cm_net_run(net, SEC / 10);
	assert_int_equal(cm_rtu(A->cm, a, data, CM_RTU_DATA + 1, net->now),
			 -EINVAL);
	assert_int_equal(cm_rtu(A->cm, a, data, CM_RTU_DATA, net->now), 0);
	assert_int_equal(
		cm_disconnect(A->cm, a, data, CM_DREQ_DATA + 1, net->now),
		-EINVAL);
	assert_int_equal(cm_disconnect(A->cm, a, data, CM_DREQ_DATA, net->now),
			 0);
	cm_net_run(net, SEC / 10);
	assert_int_equal(
		cm_disconnect(B->cm, b, data, CM_DREP_DATA + 1, net->now),
		-EINVAL);
	assert_int_equal(cm_disconnect(B->cm, b, data, CM_DREP_DATA, net->now),
			 0);
	cm_close(A->cm, a, net->now);
	cm_close(B->cm, b, net->now);
	finish(net);
}

static void nobody_listens(void **unused)
{
	struct cm_net *net = setup();
	struct cm_conn *a;

	(void)unused;
	cm_unlisten(B->cm, listener);
	a = dial(net, &an_end, NULL, 0);
	cm_net_run(net, SEC / 10);
	expect(A, CM_EV_REJ, CM_REJ_INVALID_SERVICE_ID);
	state(a, CM_IDLE);
	assert_int_equal(B->events, 0);
	cm_close(A->cm, a, net->now);
	finish(net);
}

/* The same REQ goes out 16 times, then the user is told. */
static bool drop_all(struct cm_net *net, const struct mad *m, int from)
{
	(void)net;
	(void)m;
	(void)from;
	return true;
}

static void silent_host(void **unused)
{
	struct cm_net *net = setup();
	struct cm_conn *a = dial(net, &an_end, NULL, 0);
	uint64_t start = net->now;

	(void)unused;
	net->drop = drop_all;
	cm_net_run(net, 50 * SEC);
	assert_int_equal(A->events, 0);
	cm_net_run(net, 50 * SEC);
	expect(A, CM_EV_UNREACHABLE, -ETIMEDOUT);
	assert_int_equal(SENT(A, REQ), 16);
	assert_true(net->now - start <= 100 * SEC);
	cm_close(A->cm, a, net->now);
	finish(net);
}

/* B's host has no socket for what A sends, and says so, quoting quote bytes of
 * the message; refusals: so many times. */
static int refusals;
static size_t quote = MAD_LEN;

static bool refuse_all(struct cm_net *net, const struct mad *m, int from)
{
	uint8_t mad[MAD_LEN];

	if (from || !refusals)
		return false;
	refusals--;
	mad_encode(m, mad);
	cm_unreachable(A->cm, &B->gid, mad, quote, net->now);
	return true;
}

/* A host without RDMA is asked for a moment, in case that it is just starting;
 * the next time it is believed at once. */
static void refusing_host(void **unused)
{
	struct roce_path path;
	struct cm_net *net = setup();
	struct cm_conn *a = dial(net, &an_end, NULL, 0), *other;

	(void)unused;
	net->drop = refuse_all;
	refusals = 1000;
	cm_net_run(net, SEC / 4);
	assert_int_equal(A->events, 0);
	cm_net_run(net, 3 * SEC / 4);
	expect(A, CM_EV_UNREACHABLE, -ETIMEDOUT);
	assert_int_equal(SENT(A, REQ), 4);
	cm_close(A->cm, a, net->now);

	a = dial(net, &an_end, NULL, 0);
	cm_net_run(net, 1000);
	assert_int_equal(A->count[CM_EV_UNREACHABLE], 2);
	assert_int_equal(SENT(A, REQ), 5);
	cm_close(A->cm, a, net->now);

	path = cm_net_path(net, 0, 1);
	assert_int_equal(cm_sidr_request(A->cm, &a, UD_SID, &path, 0xffff, NULL,
					 0, A, net->now),
			 0);
	cm_net_run(net, 1000);
	expect(A, CM_EV_SIDR_REP, -ETIMEDOUT);
	assert_int_equal(SENT(A, SIDR_REQ), 1);
	cm_close(A->cm, a, net->now);

	/* or if nothing is heard, after a moment; hosts do not say it often */
	refusals = 0;
	net->drop = drop_all;
	a = dial(net, &an_end, NULL, 0);
	cm_net_run(net, SEC / 2);
	assert_int_equal(A->count[CM_EV_UNREACHABLE], 3);
	cm_close(A->cm, a, net->now);
	net->drop = refuse_all;

	/* a while later it may have started, */
	net->now += 20 * SEC;
	a = dial(net, &an_end, NULL, 0);
	refusals = 2;
	cm_net_run(net, SEC);
	assert_int_equal(B->count[CM_EV_REQ], 1);
	cm_close(A->cm, a, net->now);
	cm_close(B->cm, B->ev.conn, net->now);
	cm_net_run(net, 30 * SEC);
	net->now += 30 * SEC;

	/* and one refusal, of the few that hosts send, is about all requests */
	a = dial(net, &an_end, NULL, 0);
	refusals = 0;
	net->drop = drop_all;
	other = dial(net, &an_end, NULL, 0);
	cm_net_flush(net);
	net->drop = refuse_all;
	refusals = 1000;
	cm_net_run(net, SEC);
	assert_int_equal(A->count[CM_EV_UNREACHABLE], 5);
	cm_close(A->cm, a, net->now);
	cm_close(A->cm, other, net->now);
	finish(net);
}

/* What somebody else says about a message that he has not seen, or about one
 * that was answered, changes nothing. */
static void forged_refusal(void **unused)
{
	static const union ibv_gid elsewhere = { .raw = { 1 } };
	struct cm_net *net = setup();
	struct mad m = { .attr_id = MAD_CM_REQ };
	struct cm_conn *a, *b;
	uint8_t mad[MAD_LEN];

	(void)unused;
	/* no transaction ID is quoted */
	net->drop = refuse_all;
	refusals = 1000;
	quote = 15;
	a = dial(net, &an_end, NULL, 0);
	cm_net_run(net, 5 * SEC);
	assert_int_equal(A->events, 0);
	assert_true(SENT(A, REQ) < 6);
	quote = MAD_LEN;
	/* another one */
	m.tid = cm_conn_id(a);
	mad_encode(&m, mad);
	for (int i = 0; i < 100; i++) {
		cm_unreachable(A->cm, &B->gid, mad, MAD_LEN, net->now);
		cm_unreachable(A->cm, &elsewhere, mad, MAD_LEN, net->now);
		cm_net_run(net, SEC / 100);
	}
	assert_int_equal(A->events, 0);
	cm_close(A->cm, a, net->now);
	refusals = 0;

	establish(net, &a, &b);
	refusals = 1000;
	assert_int_equal(cm_disconnect(B->cm, b, NULL, 0, net->now), 0);
	cm_net_run(net, SEC);
	assert_int_equal(cm_disconnect(A->cm, a, NULL, 0, net->now), 0);
	cm_net_run(net, 5 * SEC);
	assert_int_equal(A->count[CM_EV_UNREACHABLE], 0);
	assert_int_equal(A->count[CM_EV_REJ], 0);
	refusals = 0;
	cm_close(A->cm, a, net->now);
	cm_close(B->cm, b, net->now);

	/* a DREQ is a request, and nobody is there to answer */
	establish(net, &a, &b);
	refusals = 1000;
	assert_int_equal(cm_disconnect(A->cm, a, NULL, 0, net->now), 0);
	cm_net_run(net, SEC);
	expect(A, CM_EV_DREP, -ETIMEDOUT);
	cm_close(A->cm, a, net->now);
	cm_close(B->cm, b, net->now);
	finish(net);
}

/* Giving up is said, and the other side then stops waiting. */
static void give_up(void **unused)
{
	struct cm_net *net = setup();
	struct cm_conn *a = dial(net, &an_end, NULL, 0), *b;

	(void)unused;
	cm_net_run(net, SEC / 10);
	b = B->ev.conn;
	cm_close(A->cm, a, net->now);
	cm_net_run(net, SEC / 10);
	expect(B, CM_EV_REJ, CM_REJ_TIMEOUT);
	state(b, CM_IDLE);
	assert_int_equal(cm_accept(B->cm, b, &an_end, NULL, 0, net->now),
			 -EINVAL);
	cm_close(B->cm, b, net->now);

	/* too late for that: the REP crosses it on the way */
	a = dial(net, &an_end, NULL, 0);
	cm_net_run(net, SEC / 10);
	b = B->ev.conn;
	net->drop = drop_all;
	cm_close(A->cm, a, net->now);
	cm_net_flush(net);
	net->drop = NULL;
	assert_int_equal(cm_accept(B->cm, b, &an_end, NULL, 0, net->now), 0);
	cm_net_run(net, SEC / 10);
	expect(B, CM_EV_REJ, CM_REJ_INVALID_COMM_ID);
	cm_close(B->cm, b, net->now);
	finish(net);
}

/* A user that takes its time makes the other one wait, not ask for ever. */
static void slow_user(void **unused)
{
	struct cm_net *net = setup();
	struct cm_conn *a = dial(net, &an_end, NULL, 0), *b;

	(void)unused;
	cm_net_run(net, 10 * SEC);
	assert_int_equal(B->count[CM_EV_REQ], 1);
	b = B->ev.conn;
	state(b, CM_MRA_REQ_SENT);
	state(a, CM_MRA_REQ_RCVD);
	assert_int_equal(SENT(A, REQ), 4);
	assert_int_equal(SENT(B, MRA), 3);
	assert_int_equal(cm_accept(B->cm, b, &an_end, NULL, 0, net->now), 0);
	cm_net_run(net, 10 * SEC);
	assert_int_equal(A->count[CM_EV_REP], 1);
	state(a, CM_MRA_REP_SENT);
	state(b, CM_MRA_REP_RCVD);
	assert_int_equal(SENT(B, REP), 4);
	assert_int_equal(SENT(A, MRA), 3);
	assert_int_equal(cm_rtu(A->cm, a, NULL, 0, net->now), 0);
	cm_net_run(net, SEC);
	expect(B, CM_EV_ESTABLISHED, 0);
	cm_close(A->cm, a, net->now);
	cm_close(B->cm, b, net->now);
	finish(net);
}

/* The n-th message of a kind is lost. */
static struct {
	uint16_t attr;
	unsigned first, count;
} lose;

static bool drop_some(struct cm_net *net, const struct mad *m, int from)
{
	(void)net;
	(void)from;
	if (m->attr_id != lose.attr)
		return false;
	if (lose.first)
		return lose.first--, false;
	if (lose.count)
		return lose.count--, true;
	return false;
}

static int auto_event(struct cm_net_node *n, const struct cm_event *ev)
{
	return ev->type == CM_EV_REQ || ev->type == CM_EV_SIDR_REQ ? n->verdict
								   : 0;
}

static void each_message_lost(void **unused)
{
	static const uint16_t attrs[] = { MAD_CM_REQ, MAD_CM_REP, MAD_CM_RTU,
					  MAD_CM_DREQ, MAD_CM_DREP };

	(void)unused;
	for (size_t i = 0; i < ARRAY_SIZE(attrs); i++) {
		struct cm_net *net = setup();
		struct cm_conn *a, *b;

		lose.attr = attrs[i];
		lose.count = 2;
		net->drop = drop_some;
		net->event = auto_event;
		a = dial(net, &an_end, NULL, 0);
		cm_net_run(net, 5 * SEC);
		assert_int_equal(B->count[CM_EV_REQ], 1);
		b = B->ev.conn;
		assert_int_equal(
			cm_accept(B->cm, b, &an_end, NULL, 0, net->now), 0);
		cm_net_run(net, 5 * SEC);
		assert_int_equal(A->count[CM_EV_REP], 1);
		assert_int_equal(cm_rtu(A->cm, a, NULL, 0, net->now), 0);
		/* the peer has sent MRA and may be patient */
		cm_net_run(net, 30 * SEC);
		assert_int_equal(B->count[CM_EV_ESTABLISHED], 1);
		assert_int_equal(cm_disconnect(A->cm, a, NULL, 0, net->now), 0);
		cm_net_run(net, 5 * SEC);
		assert_int_equal(B->count[CM_EV_DREQ], 1);
		assert_int_equal(cm_disconnect(B->cm, b, NULL, 0, net->now), 0);
		cm_net_run(net, 10 * SEC);
		assert_int_equal(A->count[CM_EV_DREP], 1);
		assert_int_equal(A->ev.status, 0);
		assert_int_equal(lose.count, 0);
		cm_close(A->cm, a, net->now);
		cm_close(B->cm, b, net->now);
		finish(net);
	}
}

/* Data arrives while the RTU is missing. */
static void rtu_implied(void **unused)
{
	struct cm_net *net = setup();
	struct cm_conn *a = dial(net, &an_end, NULL, 0), *b;

	(void)unused;
	cm_net_run(net, SEC / 10);
	b = B->ev.conn;
	assert_int_equal(cm_establish(B->cm, b, net->now), -EINVAL);
	cm_accept(B->cm, b, &an_end, NULL, 0, net->now);
	cm_net_run(net, SEC / 10);
	lose.attr = MAD_CM_RTU;
	lose.count = 1;
	net->drop = drop_some;
	cm_rtu(A->cm, a, NULL, 0, net->now);
	cm_net_run(net, SEC / 100);
	state(b, CM_REP_SENT);
	assert_int_equal(cm_establish(B->cm, b, net->now), 0);
	expect(B, CM_EV_ESTABLISHED, 0);
	assert_int_equal(cm_establish(B->cm, b, net->now), -EISCONN);
	assert_int_equal(cm_establish(A->cm, a, net->now), -EISCONN);
	cm_net_run(net, 10 * SEC);
	assert_int_equal(B->count[CM_EV_ESTABLISHED], 1);
	assert_int_equal(SENT(B, REP), 1);
	cm_close(A->cm, a, net->now);
	cm_close(B->cm, b, net->now);
	finish(net);
}

/* DREQ says as much as the RTU that was lost. */
static void dreq_implies_rtu(void **unused)
{
	struct cm_net *net = setup();
	struct cm_conn *a = dial(net, &an_end, NULL, 0), *b;

	(void)unused;
	cm_net_run(net, SEC / 10);
	b = B->ev.conn;
	cm_accept(B->cm, b, &an_end, NULL, 0, net->now);
	cm_net_run(net, SEC / 10);
	lose.attr = MAD_CM_RTU;
	lose.count = 1;
	net->drop = drop_some;
	cm_rtu(A->cm, a, NULL, 0, net->now);
	cm_disconnect(A->cm, a, NULL, 0, net->now);
	cm_net_run(net, SEC / 100);
	expect(B, CM_EV_DREQ, 0);
	cm_disconnect(B->cm, b, NULL, 0, net->now);
	cm_net_run(net, SEC / 100);
	expect(A, CM_EV_DREP, 0);
	cm_close(A->cm, a, net->now);
	cm_close(B->cm, b, net->now);
	finish(net);
}

/* Whoever works on a request for minutes is still waited for. */
static void very_slow_user(void **unused)
{
	struct cm_net *net = setup();
	struct cm_conn *a = dial(net, &an_end, NULL, 0), *b;

	(void)unused;
	cm_net_run(net, 600 * SEC);
	assert_int_equal(A->events, 0);
	b = B->ev.conn;
	assert_int_equal(cm_accept(B->cm, b, &an_end, NULL, 0, net->now), 0);
	cm_net_run(net, SEC);
	expect(A, CM_EV_REP, 0);
	cm_close(A->cm, a, net->now);
	cm_close(B->cm, b, net->now);

	/* but not for ever */
	a = dial(net, &an_end, NULL, 0);
	cm_net_run(net, 7200 * SEC);
	expect(A, CM_EV_UNREACHABLE, -ETIMEDOUT);
	cm_close(A->cm, a, net->now);
	cm_close(B->cm, B->ev.conn, net->now);
	finish(net);
}

/* Peers on this host whose process dies. */
static int place(void *arg, uint32_t remote_id, const union ibv_gid *peer)
{
	(void)arg;
	(void)remote_id;
	return peer->raw[15];
}

static bool gone(void *arg, int where, uint32_t remote_id)
{
	(void)remote_id;
	return where == *(int *)arg;
}

static void peer_dies(void **unused)
{
	struct cm_net *net =
		cm_net_new(1, &(struct cm_config){ .place = place });
	int who = 2; /* B */
	struct cm_conn *a, *b, *c;

	(void)unused;
	assert_int_equal(cm_listen(B->cm, &listener, SID, NULL, CM_LISTEN_V4,
				   B),
			 0);
	establish(net, &a, &b);
	cm_peers_check(A->cm, gone, &(int){ 3 }, net->now);
	state(a, CM_ESTABLISHED);
	net->drop = drop_all;
	cm_peers_check(A->cm, gone, &who, net->now);
	expect(A, CM_EV_DREQ, 0);
	state(a, CM_DREQ_RCVD);
	assert_int_equal(cm_disconnect(A->cm, a, NULL, 0, net->now), 0);
	cm_close(A->cm, a, net->now);

	/* the active side dies before it has said RTU */
	net->drop = NULL;
	cm_close(B->cm, b, net->now);
	cm_net_run(net, 60 * SEC);
	c = dial(net, &an_end, NULL, 0);
	cm_net_run(net, SEC / 100);
	who = 1; /* A */
	b = B->ev.conn;
	cm_peers_check(B->cm, gone, &who, net->now);
	expect(B, CM_EV_REJ, CM_REJ_TIMEOUT);
	state(b, CM_IDLE);
	cm_close(A->cm, c, net->now);
	cm_close(B->cm, b, net->now);

	/* the listener dies after it has asked for time: we ask anew */
	c = dial(net, &an_end, NULL, 0);
	cm_net_run(net, SEC);
	state(c, CM_MRA_REQ_RCVD);
	cm_destroy(B->cm);
	assert_int_equal(cm_create(&B->cm, &B->cfg), 0);
	who = 2;
	cm_peers_check(A->cm, gone, &who, net->now);
	cm_net_run(net, SEC / 10);
	expect(A, CM_EV_REJ, CM_REJ_INVALID_SERVICE_ID);
	cm_close(A->cm, c, net->now);
	finish(net);
}

static void both_disconnect(void **unused)
{
	struct cm_net *net = setup();
	struct cm_conn *a, *b;

	(void)unused;
	establish(net, &a, &b);
	assert_int_equal(cm_disconnect(A->cm, a, NULL, 0, net->now), 0);
	assert_int_equal(cm_disconnect(B->cm, b, NULL, 0, net->now), 0);
	cm_net_run(net, SEC / 100);
	expect(A, CM_EV_DREP, 0);
	expect(B, CM_EV_DREP, 0);
	state(a, CM_TIMEWAIT);
	state(b, CM_TIMEWAIT);
	assert_int_equal(cm_disconnect(A->cm, a, NULL, 0, net->now), -EINVAL);
	cm_close(A->cm, a, net->now);
	cm_close(B->cm, b, net->now);
	finish(net);
}

static void both_connect(void **unused)
{
	struct cm_net *net = setup();
	struct roce_path back = cm_net_path(net, 1, 0);
	struct cm_conn *a, *b, *pa, *pb;
	struct cm_end end = an_end;
	struct cm_listener *l;

	(void)unused;
	assert_int_equal(cm_listen(A->cm, &l, SID, NULL, CM_LISTEN_V4, A), 0);
	a = dial(net, &an_end, NULL, 0);
	assert_int_equal(cm_connect(B->cm, &b, SID, &back, &an_end, NULL, 0, B,
				    net->now),
			 0);
	cm_net_run(net, SEC / 100);
	expect(A, CM_EV_REQ, 0);
	expect(B, CM_EV_REQ, 0);
	pa = A->ev.conn;
	pb = B->ev.conn;
	end.qpn = 0x777;
	assert_int_equal(cm_accept(A->cm, pa, &end, NULL, 0, net->now), 0);
	assert_int_equal(cm_accept(B->cm, pb, &end, NULL, 0, net->now), 0);
	cm_net_run(net, SEC / 100);
	assert_int_equal(cm_rtu(A->cm, a, NULL, 0, net->now), 0);
	assert_int_equal(cm_rtu(B->cm, b, NULL, 0, net->now), 0);
	cm_net_run(net, SEC / 100);
	state(a, CM_ESTABLISHED);
	state(b, CM_ESTABLISHED);
	state(pa, CM_ESTABLISHED);
	state(pb, CM_ESTABLISHED);
	cm_close(A->cm, a, net->now);
	cm_close(A->cm, pa, net->now);
	cm_close(B->cm, b, net->now);
	cm_close(B->cm, pb, net->now);
	finish(net);
}

/* A refusal is remembered and repeated, not asked of the user again. */
static void reject(void **unused)
{
	static const char why[] = "no, thank you";
	struct cm_net *net = setup();
	struct cm_conn *a = dial(net, &an_end, NULL, 0), *b;

	(void)unused;
	cm_net_run(net, SEC / 100);
	b = B->ev.conn;
	lose.attr = MAD_CM_REJ;
	lose.count = 2;
	net->drop = drop_some;
	assert_int_equal(cm_reject(B->cm, b, CM_REJ_CONSUMER, "ari", 3, why,
				   sizeof(why), net->now),
			 0);
	cm_close(B->cm, b, net->now);
	cm_net_run(net, 5 * SEC);
	expect(A, CM_EV_REJ, CM_REJ_CONSUMER);
	assert_int_equal(A->ev.len, CM_REJ_DATA);
	assert_memory_equal(A->ev_data, why, sizeof(why));
	assert_int_equal(A->ev.ari_len, 3);
	assert_int_equal(B->events, 1);
	assert_int_equal(SENT(B, REJ), 3);
	cm_close(A->cm, a, net->now);

	/* the active side refuses a REP */
	a = dial(net, &an_end, NULL, 0);
	cm_net_run(net, SEC / 100);
	b = B->ev.conn;
	cm_accept(B->cm, b, &an_end, NULL, 0, net->now);
	cm_net_run(net, SEC / 100);
	lose.count = 1;
	assert_int_equal(cm_reject(A->cm, a, CM_REJ_VENDOR_OPTION, NULL, 0,
				   NULL, 0, net->now),
			 0);
	cm_close(A->cm, a, net->now);
	cm_net_run(net, 5 * SEC);
	expect(B, CM_EV_REJ, CM_REJ_VENDOR_OPTION);
	cm_close(B->cm, b, net->now);
	finish(net);
}

/* Whatever the reason to refuse a REQ is, the other side learns it. */
static void every_reason(void **unused)
{
	static const unsigned reasons[] = {
#define X(name, code, words) CM_REJ_##name,
		CM_REJ_REASONS(X)
#undef X
			999 /* one of a later edition */
	};
	struct cm_net *net = setup();

	(void)unused;
	for (size_t i = 0; i < ARRAY_SIZE(reasons); i++) {
		struct cm_conn *a = dial(net, &an_end, NULL, 0), *b;

		cm_net_run(net, SEC / 100);
		b = B->ev.conn;
		assert_int_equal(cm_reject(B->cm, b, reasons[i], NULL, 0, "why",
					   3, net->now),
				 0);
		cm_net_run(net, SEC / 100);
		expect(A, CM_EV_REJ, (int)reasons[i]);
		assert_memory_equal(A->ev_data, "why", 4);
		state(a, CM_IDLE);
		cm_close(A->cm, a, net->now);
		cm_close(B->cm, b, net->now);
	}
	finish(net);
}

/* A user that closes without a word leaves the talking to the CM. */
static void closing_says_so(void **unused)
{
	struct cm_net *net = setup();
	struct cm_conn *a = dial(net, &an_end, NULL, 0), *b;

	(void)unused;
	cm_net_run(net, SEC / 100);
	cm_close(B->cm, B->ev.conn, net->now);
	cm_net_run(net, SEC / 100);
	expect(A, CM_EV_REJ, CM_REJ_CONSUMER);
	cm_close(A->cm, a, net->now);

	establish(net, &a, &b);
	lose.attr = MAD_CM_DREQ;
	lose.count = 3;
	net->drop = drop_some;
	cm_close(A->cm, a, net->now);
	cm_net_run(net, 10 * SEC);
	expect(B, CM_EV_DREQ, 0);
	cm_close(B->cm, b, net->now);
	finish(net);
}

/* A peer that lost its memory reuses a QPN: the old connection goes. */
static void stale_connection(void **unused)
{
	struct cm_net *net = setup();
	struct cm_conn *a, *b, *again;

	(void)unused;
	establish(net, &a, &b);
	cm_destroy(A->cm);
	A->cfg.seed++;
	assert_int_equal(cm_create(&A->cm, &A->cfg), 0);
	again = dial(net, &an_end, NULL, 0);
	cm_net_run(net, SEC / 100);
	expect(A, CM_EV_REJ, CM_REJ_STALE_CONN);
	expect(B, CM_EV_DREP, 0); /* from one that does not know it either */
	state(b, CM_TIMEWAIT);
	cm_close(A->cm, again, net->now);
	cm_close(B->cm, b, net->now);

	/* and now it is welcome */
	again = dial(net, &an_end, NULL, 0);
	cm_net_run(net, SEC / 100);
	expect(B, CM_EV_REQ, 0);
	cm_close(A->cm, again, net->now);
	cm_close(B->cm, B->ev.conn, net->now);
	finish(net);
}

/* After a proper end, the peer may use its QP for a new connection at once. */
static void qp_used_again(void **unused)
{
	struct cm_net *net = setup();
	struct cm_conn *a, *b;

	(void)unused;
	for (int i = 0; i < 5; i++) {
		establish(net, &a, &b);
		cm_disconnect(A->cm, a, NULL, 0, net->now);
		cm_net_run(net, SEC / 1000);
		/* only one of both users says good-bye in time */
		if (i % 2)
			cm_disconnect(B->cm, b, NULL, 0, net->now);
		cm_close(A->cm, a, net->now);
		cm_close(B->cm, b, net->now);
	}
	finish(net);
}

/* A REQ from a connection that has ended here. */
static void late_duplicate(void **unused)
{
	struct cm_net *net = setup();
	struct mad req = { .attr_id = MAD_CM_REQ,
			   .class_version = MAD_CM_CLASS_VERSION,
			   .method = MAD_METHOD_SEND };
	struct cm_conn *a, *b;
	unsigned reqs;

	(void)unused;
	establish(net, &a, &b);
	cm_disconnect(A->cm, a, NULL, 0, net->now);
	cm_net_run(net, SEC / 100);
	cm_disconnect(B->cm, b, NULL, 0, net->now);
	cm_net_run(net, SEC / 100);
	state(b, CM_TIMEWAIT);
	reqs = B->count[CM_EV_REQ];
	req.req.local_comm_id = cm_conn_id(a);
	req.req.service_id = SID;
	req.req.local_qpn = 99;
	req.req.mtu = 3;
	req.req.pkey = 0xffff;
	memcpy(req.req.local_gid, &A->gid, 16);
	memcpy(req.req.remote_gid, &B->gid, 16);
	cm_net_inject(net, &A->gid, 1, &req);
	cm_net_run(net, SEC / 100);
	assert_int_equal(B->count[CM_EV_REQ], reqs);
	assert_int_equal(SENT(B, REJ), 1);
	cm_close(A->cm, a, net->now);
	cm_close(B->cm, b, net->now);
	finish(net);
}

/* Requests that are refused without asking the user, each with its reason. */
static struct mad last_sent;

static bool watch(struct cm_net *net, const struct mad *m, int from)
{
	(void)net;
	(void)from;
	last_sent = *m;
	return false;
}

static void bad_requests(void **unused)
{
	struct cm_net *net = setup();
	struct mad good = { .attr_id = MAD_CM_REQ,
			    .class_version = MAD_CM_CLASS_VERSION,
			    .method = MAD_METHOD_SEND,
			    .tid = 77 };
	struct mad m;

	(void)unused;
	net->drop = watch;
	good.req.local_comm_id = 5;
	good.req.service_id = SID;
	good.req.local_qpn = 99;
	good.req.mtu = 3;
	good.req.pkey = 0xffff;
	memcpy(good.req.local_gid, &A->gid, 16);
	memcpy(good.req.remote_gid, &B->gid, 16);

#define REFUSED(reason_)                                                       \
	do {                                                                   \
		cm_net_inject(net, &A->gid, 1, &m);                            \
		cm_net_flush(net);                                             \
		assert_int_equal(last_sent.attr_id, MAD_CM_REJ);               \
		assert_int_equal(last_sent.tid, 77);                           \
		assert_int_equal(last_sent.rej.reason, reason_);               \
		assert_int_equal(last_sent.rej.remote_comm_id, 5);             \
		assert_int_equal(last_sent.rej.msg_rejected, CM_MSG_REQ);      \
		assert_int_equal(B->events, 0);                                \
		last_sent = (struct mad){ 0 };                                 \
	} while (0)

	m = good;
	m.class_version = 3;
	REFUSED(CM_REJ_INVALID_CLASS_VERSION);
	m = good;
	m.req.service_id++;
	REFUSED(CM_REJ_INVALID_SERVICE_ID);
	m = good;
	m.req.transport = CM_TRANSPORT_RD;
	REFUSED(CM_REJ_INVALID_TRANSPORT_TYPE);
	m.req.transport = CM_TRANSPORT_EXT;
	REFUSED(CM_REJ_INVALID_TRANSPORT_TYPE);
	m = good;
	m.req.mtu = 6;
	REFUSED(CM_REJ_INVALID_MTU);
	m.req.mtu = 0;
	REFUSED(CM_REJ_INVALID_MTU);
	m = good;
	m.req.remote_gid[15] ^= 8;
	cm_net_inject(net, &A->gid, 1, &m);
	cm_net_flush(net);
	assert_int_equal(last_sent.rej.reason, CM_REJ_INVALID_GID);
	assert_int_equal(last_sent.rej.ari_len, 16);
	assert_memory_equal(last_sent.rej.ari, &B->gid, 16);
	m = good;
	m.req.local_gid[15] ^= 8; /* somebody else's address */
	REFUSED(CM_REJ_INVALID_GID);
	m = good;
	m.req.pkey = 0x1234;
	REFUSED(CM_REJ_UNSUPPORTED);
	m = good;
	B->verdict = CM_REJ_NO_RESOURCES;
	cm_net_inject(net, &A->gid, 1, &m);
	cm_net_flush(net);
	assert_int_equal(last_sent.rej.reason, CM_REJ_NO_RESOURCES);
	/* no room: silence, and the next attempt is as good as new */
	B->verdict = -EAGAIN;
	last_sent = (struct mad){ 0 };
	cm_net_inject(net, &A->gid, 1, &m);
	cm_net_flush(net);
	assert_int_equal(last_sent.attr_id, 0);
	B->verdict = 0;
	cm_net_inject(net, &A->gid, 1, &m);
	cm_net_flush(net);
	assert_int_equal(last_sent.attr_id, 0);
	expect(B, CM_EV_REQ, 0);
	cm_close(B->cm, B->ev.conn, net->now);
	finish(net);
}

/* No third party can end a connection, though it knows all its numbers. */
static void forged(void **unused)
{
	struct cm_net *net = setup();
	struct cm_conn *a, *b;
	struct mad m = { .class_version = MAD_CM_CLASS_VERSION,
			 .method = MAD_METHOD_SEND };

	(void)unused;
	establish(net, &a, &b);
	m.attr_id = MAD_CM_DREQ;
	m.dreq.local_comm_id = cm_conn_id(a);
	m.dreq.remote_comm_id = cm_conn_id(b);
	m.dreq.remote_qpn = 0x4321;
	cm_net_inject(net, &net->node[2].gid, 1, &m);
	m.dreq.local_comm_id++;
	cm_net_inject(net, &A->gid, 1, &m);
	m.dreq.local_comm_id--;
	m.dreq.remote_qpn++;
	cm_net_inject(net, &A->gid, 1, &m);
	m = (struct mad){ .class_version = MAD_CM_CLASS_VERSION,
			  .method = MAD_METHOD_SEND,
			  .attr_id = MAD_CM_REJ };
	m.rej.local_comm_id = cm_conn_id(a);
	m.rej.remote_comm_id = cm_conn_id(b);
	m.rej.reason = CM_REJ_CONSUMER;
	cm_net_inject(net, &net->node[2].gid, 1, &m);
	m.rej.local_comm_id++;
	cm_net_inject(net, &A->gid, 1, &m);
	state(b, CM_ESTABLISHED);
	m.rej.local_comm_id--;
	cm_net_inject(net, &A->gid, 1, &m); /* the peer may */
	state(b, CM_IDLE);
	cm_close(A->cm, a, net->now);
	cm_close(B->cm, b, net->now);
	finish(net);
}

static void alternate_path(void **unused)
{
	struct cm_net *net = setup();
	struct cm_conn *a, *b;
	struct mad m = { .attr_id = MAD_CM_LAP,
			 .class_version = MAD_CM_CLASS_VERSION,
			 .method = MAD_METHOD_SEND };

	(void)unused;
	establish(net, &a, &b);
	net->drop = watch;
	m.lap.local_comm_id = cm_conn_id(a);
	m.lap.remote_comm_id = cm_conn_id(b);
	cm_net_inject(net, &A->gid, 1, &m);
	cm_net_flush(net);
	assert_int_equal(last_sent.attr_id, MAD_CM_APR);
	assert_int_equal(last_sent.apr.status, CM_APR_UNSUPPORTED);
	assert_int_equal(last_sent.apr.local_comm_id, cm_conn_id(b));
	m.lap.remote_comm_id++;
	cm_net_inject(net, &A->gid, 1, &m);
	cm_net_flush(net);
	assert_int_equal(last_sent.apr.status, CM_APR_INVALID_COMM_ID);
	cm_close(A->cm, a, net->now);
	cm_close(B->cm, b, net->now);
	finish(net);
}

static void transports(void **unused)
{
	struct cm_net *net = setup();
	struct cm_end end = an_end;
	struct cm_conn *a, *b;

	(void)unused;
	end.qp_type = IBV_QPT_UC;
	a = dial(net, &end, NULL, 0);
	cm_net_run(net, SEC / 100);
	assert_int_equal(B->ev.peer.qp_type, IBV_QPT_UC);
	cm_close(B->cm, B->ev.conn, net->now);
	cm_close(A->cm, a, net->now);
	cm_net_run(net, SEC / 100);

	/* XRC: an initiator meets a target, whose number has its own field */
	end.qp_type = IBV_QPT_XRC_SEND;
	a = dial(net, &end, NULL, 0);
	cm_net_run(net, SEC / 100);
	assert_int_equal(B->ev.peer.qp_type, IBV_QPT_XRC_SEND);
	assert_int_equal(B->ev.peer.qpn, 0x1234);
	b = B->ev.conn;
	net->drop = watch;
	end.qp_type = IBV_QPT_XRC_RECV;
	end.qpn = 0x555;
	assert_int_equal(cm_accept(B->cm, b, &end, NULL, 0, net->now), 0);
	cm_net_flush(net);
	assert_int_equal(last_sent.rep.local_eecn, 0x555);
	assert_int_equal(last_sent.rep.local_qpn, 0);
	assert_int_equal(last_sent.rep.srq, 1);
	cm_net_run(net, SEC / 100);
	expect(A, CM_EV_REP, 0);
	assert_int_equal(A->ev.peer.qpn, 0x555);
	cm_close(A->cm, a, net->now);
	cm_close(B->cm, b, net->now);

	end.qp_type = IBV_QPT_UD;
	struct roce_path path = cm_net_path(net, 0, 1);
	assert_int_equal(
		cm_connect(A->cm, &a, SID, &path, &end, NULL, 0, A, net->now),
		-EINVAL);
	finish(net);
}

static void listeners(void **unused)
{
	struct cm_net *net = cm_net_new(2, &(struct cm_config){ 0 });
	struct cm_listener *any4, *any6, *one, *other;
	union ibv_gid gid6 = { .raw = { 0xfd } }, gid2 = B->gid;
	struct cm_conn *a;

	(void)unused;
	gid2.raw[15]++;
	assert_int_equal(cm_listen(B->cm, &any4, SID, NULL, CM_LISTEN_V4, "4"),
			 0);
	assert_int_equal(cm_listen(B->cm, &any6, SID, NULL,
				   CM_LISTEN_V4 | CM_LISTEN_V6, "46"),
			 -EADDRINUSE);
	assert_int_equal(cm_listen(B->cm, &any6, SID, NULL, CM_LISTEN_V6, "6"),
			 0);
	assert_int_equal(cm_listen(B->cm, &one, SID, &B->gid, 0, "one"), 0);
	assert_int_equal(cm_listen(B->cm, &other, SID, &B->gid, 0, "two"),
			 -EADDRINUSE);
	assert_int_equal(cm_listen(B->cm, &other, SID, &gid2, 0, "other"), 0);

	a = dial(net, &an_end, NULL, 0);
	cm_net_run(net, SEC / 100);
	assert_string_equal(B->ev.user, "one");
	cm_close(A->cm, a, net->now);
	cm_close(B->cm, B->ev.conn, net->now);
	cm_unlisten(B->cm, one);
	a = dial(net, &an_end, NULL, 0);
	cm_net_run(net, SEC / 100);
	assert_string_equal(B->ev.user, "4");
	cm_close(A->cm, a, net->now);
	cm_close(B->cm, B->ev.conn, net->now);
	cm_net_run(net, 60 * SEC);

	B->gid = gid6; /* reached at an address of the other family */
	a = dial(net, &an_end, NULL, 0);
	cm_net_run(net, SEC / 100);
	assert_string_equal(B->ev.user, "6");
	cm_close(A->cm, a, net->now);
	cm_close(B->cm, B->ev.conn, net->now);
	cm_unlisten(B->cm, any6);
	cm_net_run(net, 60 * SEC);
	a = dial(net, &an_end, NULL, 0);
	cm_net_run(net, SEC / 100);
	expect(A, CM_EV_REJ, CM_REJ_INVALID_SERVICE_ID);
	cm_close(A->cm, a, net->now);
	assert_int_equal(cm_stats(B->cm).listeners, 2);
	finish(net);
}

static void datagrams(void **unused)
{
	struct cm_net *net = setup();
	struct roce_path path = cm_net_path(net, 0, 1);
	uint8_t req[CM_SIDR_REQ_DATA], rep[CM_SIDR_REP_DATA];
	struct ibv_ece ece = { .vendor_id = 0xabcdef, .options = 3 };
	struct cm_listener *l;
	struct cm_conn *a, *b;

	(void)unused;
	memset(req, 7, sizeof(req));
	memset(rep, 8, sizeof(rep));

#define ASK()                                                                  \
	assert_int_equal(cm_sidr_request(A->cm, &a, UD_SID, &path, 0xffff,     \
					 req, sizeof(req), A, net->now),       \
			 0)
	ASK();
	cm_net_run(net, SEC / 100);
	expect(A, CM_EV_SIDR_REP, CM_SIDR_UNSUPPORTED);
	cm_close(A->cm, a, net->now);

	assert_int_equal(cm_listen(B->cm, &l, UD_SID, NULL, CM_LISTEN_V4, B),
			 0);
	ASK();
	lose.attr = MAD_CM_SIDR_REP;
	lose.count = 1;
	net->drop = drop_some;
	cm_net_run(net, SEC / 100);
	expect(B, CM_EV_SIDR_REQ, 0);
	assert_memory_equal(B->ev_data, req, sizeof(req));
	b = B->ev.conn;
	cm_net_run(net, 2 * SEC); /* duplicates are not new requests */
	assert_int_equal(B->count[CM_EV_SIDR_REQ], 1);
	assert_int_equal(cm_sidr_reply(B->cm, b, CM_SIDR_OK, 0x99, 0x1234567,
				       &ece, rep, sizeof(rep) + 1, net->now),
			 -EINVAL);
	assert_int_equal(cm_sidr_reply(B->cm, b, CM_SIDR_OK, 0x99, 0x1234567,
				       &ece, rep, sizeof(rep), net->now),
			 0);
	cm_close(B->cm, b, net->now);
	cm_net_run(net, 5 * SEC);
	expect(A, CM_EV_SIDR_REP, 0);
	assert_int_equal(A->ev.peer.qpn, 0x99);
	assert_int_equal(A->ev.peer.qkey, 0x1234567);
	assert_int_equal(A->ev.peer.ece.vendor_id, 0xabcdef);
	assert_int_equal(A->ev.peer.ece.options, 3);
	assert_memory_equal(A->ev_data, rep, sizeof(rep));
	assert_int_equal(B->count[CM_EV_SIDR_REQ], 1);
	cm_close(A->cm, a, net->now);

	ASK();
	cm_net_run(net, SEC / 100);
	cm_close(B->cm, B->ev.conn, net->now);
	cm_net_run(net, SEC / 100);
	expect(A, CM_EV_SIDR_REP, CM_SIDR_REJECTED);
	cm_close(A->cm, a, net->now);

	net->drop = drop_all;
	ASK();
	cm_net_run(net, 100 * SEC);
	expect(A, CM_EV_SIDR_REP, -ETIMEDOUT);
	cm_close(A->cm, a, net->now);
	finish(net);
}

/* Ids stay within the bits that are ours, and are not used twice. */
static void id_space(void **unused)
{
	struct cm_config cfg = { .id_base = 0x00123000, .id_mask = 0x7 };
	struct cm_net *net = cm_net_new(3, &cfg);
	struct roce_path path = cm_net_path(net, 0, 1);
	struct cm_conn *c[8], *more;
	unsigned seen = 0;

	(void)unused;
	for (int i = 0; i < 8; i++) {
		struct cm_end end = an_end;

		end.qpn += (uint32_t)i;
		assert_int_equal(cm_connect(A->cm, &c[i], SID, &path, &end,
					    NULL, 0, A, net->now),
				 0);
		assert_int_equal(cm_conn_id(c[i]) & ~7u, 0x00123000);
		seen |= 1u << (cm_conn_id(c[i]) & 7);
	}
	assert_int_equal(seen, 0xff);
	assert_int_equal(cm_connect(A->cm, &more, SID, &path, &an_end, NULL, 0,
				    A, net->now),
			 -ENOMEM);
	for (int i = 0; i < 8; i++)
		cm_close(A->cm, c[i], net->now);
	finish(net);
}

/* A process that ends says so to all its peers. */
static void farewell(void **unused)
{
	struct cm_net *net = setup();
	struct cm_conn *a[600];

	(void)unused;
	for (unsigned i = 0; i < ARRAY_SIZE(a); i++) {
		struct cm_end end = an_end;

		end.qpn += i;
		a[i] = dial(net, &end, NULL, 0);
		cm_net_run(net, SEC / 1000);
		if (i % 3 == 0)
			continue; /* waits for an answer */
		end.qpn += 10000;
		cm_accept(B->cm, B->ev.conn, &end, NULL, 0, net->now);
		cm_net_run(net, SEC / 1000);
		if (i % 3 == 1)
			continue;
		cm_rtu(A->cm, a[i], NULL, 0, net->now);
		cm_net_run(net, SEC / 1000);
	}
	assert_int_equal(B->count[CM_EV_ESTABLISHED], 200);
	while (cm_farewell(A->cm, net->now))
		cm_net_flush(net);
	cm_net_run(net, SEC / 1000);
	assert_int_equal(B->count[CM_EV_DREQ], 200);
	assert_int_equal(B->count[CM_EV_REJ], 400);
	while (cm_farewell(B->cm, net->now))
		cm_net_flush(net);
	assert_int_equal(cm_stats(A->cm).tx_full, 0);
	finish(net);
}

/*
 * 12.7.29, 12.7.30: each end tells what reads and atomics it answers (responder
 * resources) and issues (initiator depth); the values arrive as they are, and
 * what becomes of them is the program's: rdma_cm takes the smaller of what one
 * end issues and the other answers, tests/clients.
 */
static void responder_resources_are_told(void **state)
{
	static const uint8_t values[] = { 0, 1, 2, 16, 128, 255 };

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(values); i++)
		for (size_t k = 0; k < ARRAY_SIZE(values); k++) {
			struct cm_net *net = setup();
			struct cm_end end = an_end;
			struct cm_conn *a;

			end.responder_resources = values[i];
			end.initiator_depth = values[k];
			a = dial(net, &end, NULL, 0);
			cm_net_run(net, SEC / 10);
			expect(B, CM_EV_REQ, 0);
			assert_int_equal(B->ev.peer.responder_resources,
					 values[i]);
			assert_int_equal(B->ev.peer.initiator_depth, values[k]);
			end.responder_resources = values[k];
			end.initiator_depth = values[i];
			assert_int_equal(cm_accept(B->cm, B->ev.conn, &end,
						   NULL, 0, net->now), 0);
			cm_net_run(net, SEC / 10);
			expect(A, CM_EV_REP, 0);
			assert_int_equal(A->ev.peer.responder_resources,
					 values[k]);
			assert_int_equal(A->ev.peer.initiator_depth, values[i]);
			cm_close(A->cm, a, net->now);
			cm_close(B->cm, B->ev.conn, net->now);
			finish(net);
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(responder_resources_are_told),
		cmocka_unit_test(all_the_way),
		cmocka_unit_test(private_data_limits),
		cmocka_unit_test(nobody_listens),
		cmocka_unit_test(silent_host),
		cmocka_unit_test(refusing_host),
		cmocka_unit_test(forged_refusal),
		cmocka_unit_test(give_up),
		cmocka_unit_test(slow_user),
		cmocka_unit_test(very_slow_user),
		cmocka_unit_test(peer_dies),
		cmocka_unit_test(each_message_lost),
		cmocka_unit_test(rtu_implied),
		cmocka_unit_test(dreq_implies_rtu),
		cmocka_unit_test(both_disconnect),
		cmocka_unit_test(both_connect),
		cmocka_unit_test(reject),
		cmocka_unit_test(every_reason),
		cmocka_unit_test(closing_says_so),
		cmocka_unit_test(stale_connection),
		cmocka_unit_test(qp_used_again),
		cmocka_unit_test(late_duplicate),
		cmocka_unit_test(bad_requests),
		cmocka_unit_test(forged),
		cmocka_unit_test(alternate_path),
		cmocka_unit_test(transports),
		cmocka_unit_test(listeners),
		cmocka_unit_test(datagrams),
		cmocka_unit_test(id_space),
		cmocka_unit_test(farewell),
	};

	cmocka_set_test_filter(getenv("SIM_TEST"));
	return cmocka_run_group_tests_name("cm_scripted", tests, NULL, NULL);
}

/*
 * cm_end.c - connections end, properly or not, and old messages come, one
 * situation per test
 */
#include "cm_pair.h"

#include "base/bytes.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

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
	assert_int_equal(
		cm_listen(B->cm, &listener, SID, NULL, CM_LISTEN_V4, B), 0);
	establish(net, &a, &b);
	cm_peers_check(A->cm, gone, &(int){ 3 }, net->now);
	state(a, CM_ESTABLISHED);
	net->drop = drop_all;
	cm_peers_check(A->cm, gone, &who, net->now);
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
	cm_peers_check(B->cm, gone, &who, net->now);
	expect(B, CM_EV_REJ, CM_REJ_TIMEOUT);
	state(b, CM_IDLE);
	cm_close(A->cm, c, net->now);
	cm_close(B->cm, b, net->now);

	/* it has said RTU and DREQ, and is found dead before these are read */
	cm_net_run(net, 60 * SEC);
	c = dial(net, &an_end, NULL, 0);
	cm_net_run(net, SEC / 100);
	b = B->ev.conn;
	assert_int_equal(cm_accept(B->cm, b, &an_end, NULL, 0, net->now), 0);
	cm_net_run(net, SEC / 100);
	state(b, CM_REP_SENT);
	assert_int_equal(cm_rtu(A->cm, c, NULL, 0, net->now), 0);
	assert_int_equal(cm_disconnect(A->cm, c, NULL, 0, net->now), 0);
	cm_peers_check(B->cm, gone, &who, net->now);
	state(b, CM_REP_SENT);
	cm_net_run(net, SEC / 100);
	expect(B, CM_EV_DREQ, 0);
	state(b, CM_DREQ_RCVD);
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
	cm_peers_check(A->cm, gone, &who, net->now);
	cm_net_run(net, SEC / 10);
	expect(A, CM_EV_REJ, CM_REJ_INVALID_SERVICE_ID);
	cm_close(A->cm, c, net->now);
	finish(net);
}

/* It was suspended for a moment, in which it could not be found. */
static void peer_is_back(void **unused)
{
	struct cm_net *net =
		cm_net_new(1, &(struct cm_config){ .place = place });
	struct cm_conn *a, *b;

	(void)unused;
	assert_int_equal(
		cm_listen(B->cm, &listener, SID, NULL, CM_LISTEN_V4, B), 0);
	establish(net, &a, &b);
	for (int i = 0; i < 3; i++) {
		assert_true(cm_peers_check(A->cm, gone, &(int){ 2 }, net->now));
		state(a, CM_ESTABLISHED);
		assert_false(
			cm_peers_check(A->cm, gone, &(int){ 3 }, net->now));
	}
	assert_true(cm_peers_check(A->cm, gone, &(int){ 2 }, net->now));
	assert_false(cm_peers_check(A->cm, gone, &(int){ 2 }, net->now));
	expect(A, CM_EV_DREQ, 0);
	state(a, CM_DREQ_RCVD);
	cm_close(A->cm, a, net->now);
	cm_close(B->cm, b, net->now);
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(peer_dies),
		cmocka_unit_test(peer_is_back),
		cmocka_unit_test(both_disconnect),
		cmocka_unit_test(closing_says_so),
		cmocka_unit_test(stale_connection),
		cmocka_unit_test(qp_used_again),
		cmocka_unit_test(late_duplicate),
		cmocka_unit_test(forged),
		cmocka_unit_test(alternate_path),
		cmocka_unit_test(farewell),
	};

	cmocka_set_test_filter(getenv("SIM_TEST"));
	return cmocka_run_group_tests_name("cm_end", tests, NULL, NULL);
}

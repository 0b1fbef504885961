/*
 * cm_patience.c - lost messages, slow users and hosts where nobody is, one
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

/* The same REQ goes out 16 times, then the user is informed. */
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

/* A request in a hurry is given up at the first refusal, and another one that is
 * not goes on; a peer that takes its time is heard soon. */
static void hurried(void **unused)
{
	struct cm_net *net = setup();
	struct cm_conn *a = dial(net, &an_end, NULL, 0), *other;

	(void)unused;
	cm_hurry(A->cm, a, net->now);
	net->drop = refuse_all;
	refusals = 1000;
	cm_net_run(net, 1000);
	expect(A, CM_EV_UNREACHABLE, -ETIMEDOUT);
	assert_int_equal(SENT(A, REQ), 1);
	cm_close(A->cm, a, net->now);
	other = dial(net, &an_end, NULL, 0);
	cm_net_run(net, SEC / 4);
	assert_int_equal(A->count[CM_EV_UNREACHABLE], 1);
	cm_close(A->cm, other, net->now);
	net->now += 60 * SEC;

	net->drop = NULL;
	a = dial(net, &an_end, NULL, 0);
	cm_hurry(A->cm, a, net->now);
	assert_false(cm_heard(a));
	cm_net_run(net, SEC / 10);
	assert_int_equal(B->count[CM_EV_REQ], 1);
	assert_true(cm_heard(a));
	assert_int_equal(SENT(B, MRA), 1);
	cm_close(A->cm, a, net->now);
	cm_close(B->cm, B->ev.conn, net->now);
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

static int auto_event(struct cm_net_node *n, const struct cm_event *ev)
{
	return ev->type == CM_EV_REQ || ev->type == CM_EV_SIDR_REQ ?
		       n->verdict :
		       0;
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(silent_host),
		cmocka_unit_test(refusing_host),
		cmocka_unit_test(hurried),
		cmocka_unit_test(forged_refusal),
		cmocka_unit_test(give_up),
		cmocka_unit_test(slow_user),
		cmocka_unit_test(very_slow_user),
		cmocka_unit_test(each_message_lost),
		cmocka_unit_test(rtu_implied),
		cmocka_unit_test(dreq_implies_rtu),
	};

	cmocka_set_test_filter(getenv("SIM_TEST"));
	return cmocka_run_group_tests_name("cm_patience", tests, NULL, NULL);
}

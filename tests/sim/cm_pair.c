/*
 * cm_pair.c - see cm_pair.h
 */
#include "cm_pair.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

const struct cm_end an_end = {
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

struct cm_listener *listener;

struct cm_net *setup(void)
{
	struct cm_net *net = cm_net_new(1, &(struct cm_config){ 0 });

	assert_int_equal(cm_listen(B->cm, &listener, SID, NULL,
				   CM_LISTEN_V4 | CM_LISTEN_V6, B),
			 0);
	return net;
}

struct cm_conn *dial(struct cm_net *net, const struct cm_end *end,
		     const void *data, size_t len)
{
	struct roce_path path = cm_net_path(net, 0, 1);
	struct cm_conn *c;

	assert_int_equal(
		cm_connect(A->cm, &c, SID, &path, end, data, len, A, net->now),
		0);
	return c;
}

void finish(struct cm_net *net)
{
	assert_true(cm_net_run(net, 3600 * SEC));
	for (int i = 0; i < CM_NET_NODES; i++)
		assert_int_equal(cm_stats(net->node[i].cm).conns, 0);
	cm_net_free(net);
}

void expect(const struct cm_net_node *n, enum cm_event_type type, int status)
{
	assert_int_equal(n->ev.type, type);
	assert_int_equal(n->ev.status, status);
}

void state(const struct cm_conn *c, enum cm_state s)
{
	assert_string_equal(cm_state_name(cm_conn_state(c)), cm_state_name(s));
}

void establish(struct cm_net *net, struct cm_conn **a, struct cm_conn **b)
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

bool drop_all(struct cm_net *net, const struct mad *m, int from)
{
	(void)net;
	(void)m;
	(void)from;
	return true;
}

struct lose lose;

bool drop_some(struct cm_net *net, const struct mad *m, int from)
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

struct mad last_sent;

bool watch(struct cm_net *net, const struct mad *m, int from)
{
	(void)net;
	(void)from;
	last_sent = *m;
	return false;
}

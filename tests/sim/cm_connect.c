/*
 * cm_connect.c - connections and datagram services are made or refused, one
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

/* Requests that are refused without asking the user, each with its reason. */
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
						   NULL, 0, net->now),
					 0);
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
		cmocka_unit_test(both_connect),
		cmocka_unit_test(reject),
		cmocka_unit_test(every_reason),
		cmocka_unit_test(bad_requests),
		cmocka_unit_test(transports),
		cmocka_unit_test(listeners),
		cmocka_unit_test(datagrams),
		cmocka_unit_test(id_space),
	};

	cmocka_set_test_filter(getenv("SIM_TEST"));
	return cmocka_run_group_tests_name("cm_connect", tests, NULL, NULL);
}

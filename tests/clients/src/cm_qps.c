/*
 * cm_qps.c - QPs of identifiers: made by them, by the program, of all types; multicast
 */
#include "cm_check.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

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
	drop_request(ev);
	CHECK(!ibv_destroy_qp(c->qp));
	EXPECT(cch, REJECTED, 28);
	finish_id(c);
	finish();
}

/* Synchronous, as in rdma_client and rdma_server. */
static sem_t sync_listens;

static void *sync_server(void *arg)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 4,
			 .max_recv_wr = 4,
			 .max_send_sge = 1,
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
	sem_post(&sync_listens);
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
		.cap = { .max_send_wr = 4,
			 .max_recv_wr = 4,
			 .max_send_sge = 1,
			 .max_recv_sge = 1,
			 .max_inline_data = 16 },
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

	sem_init(&sync_listens, 0, 0);
	pthread_create(&t, NULL, sync_server, NULL);
	sem_wait(&sync_listens);
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
		.cap = { .max_send_wr = 4,
			 .max_recv_wr = 4,
			 .max_send_sge = 1,
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
	struct ibv_send_wr wr = { .sg_list = &sge,
				  .num_sge = 1,
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

/* An endpoint that goes on with a channel. */
static struct rdma_cm_id *endpoint(enum ibv_qp_type type, bool passive,
				   struct rdma_event_channel *ch)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 4,
			 .max_recv_wr = 4,
			 .max_send_sge = 1,
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
	ex.comp_mask =
		RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
	ex.addr = (struct sockaddr *)&group;
	ex.join_flags = RDMA_MC_JOIN_FLAG_RESERVED;
	FAILS(rdma_join_multicast_ex(a, &ex, NULL), EINVAL);
	ex.join_flags = RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER;
	NEED(!rdma_join_multicast_ex(a, &ex, NULL));
	ev = GET(cch, MULTICAST_JOIN, 0);
	NEED(ah = ibv_create_ah(a->pd, &ev->param.ud.ah_attr));
	rdma_ack_cm_event(ev);

	NEED(!rdma_post_recv(b, NULL, in, sizeof(in), mb));
	NEED(!rdma_post_ud_send(a, NULL, out, sizeof(out), ma, 0, ah,
				0xffffff));
	CHECK(rdma_get_send_comp(a, &wc) == 1 && !wc.status);
	CHECK(rdma_get_recv_comp(b, &wc) == 1 && !wc.status &&
	      wc.byte_len == sizeof(out) + 40);
	CHECK(!memcmp(in + 40, out, sizeof(out)));

	NEED(!rdma_leave_multicast(b, (struct sockaddr *)&group));
	NEED(!rdma_post_recv(b, NULL, in, sizeof(in), mb));
	NEED(!rdma_post_ud_send(a, NULL, out, sizeof(out), ma, 0, ah,
				0xffffff));
	CHECK(rdma_get_send_comp(a, &wc) == 1 && !wc.status);
	/* it is not for b any more, however long it takes */
	usleep(200000);
	CHECK(ibv_poll_cq(b->recv_cq, 1, &wc) == 0);
	ibv_destroy_ah(ah);
	rdma_dereg_mr(ma);
	rdma_dereg_mr(mb);
	finish_id(a); /* leaves what it has joined */
	finish_id(b);
	rdma_destroy_event_channel(cch);
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

const struct situation cm_qps[] = {
	{ "own_destroy", own_destroy },
	{ "sync", sync_ },
	{ "external", external },
	{ "types", types },
	{ "mcast", mcast },
	{ "srq", srq },
	{ NULL, NULL },
};

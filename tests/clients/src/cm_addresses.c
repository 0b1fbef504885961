/*
 * cm_addresses.c - ports, addresses, interfaces and devices that identifiers are bound to
 */
#include "cm_check.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct sockaddr *any_of(uint16_t number)
{
	struct sockaddr *s = addr_of(number);

	if (s->sa_family == AF_INET)
		((struct sockaddr_in *)s)->sin_addr.s_addr = 0;
	else
		memset(&((struct sockaddr_in6 *)s)->sin6_addr, 0, 16);
	return s;
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
	FAILS(rdma_set_option(u, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &tos,
			      1),
	      EINVAL);
	FAILS(rdma_set_option(u, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &tos,
			      1),
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

/* The hardware address of our interface changes under a connection; or
 * (CM_CHECK_REMOVAL) the interface that the device is made of goes. */
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
		ev = removal ? GET(sch, DEVICE_REMOVAL, 0) :
			       GET(sch, ADDR_CHANGE, 0);
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
	CHECK(rdma_getaddrinfo("127.0.0.1", "7174", &hints, &res) ==
	      EAI_FAMILY);
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

	inet_pton(AF_INET, "127.0.0.1",
		  &((struct sockaddr_in *)&here)->sin_addr);
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
	drop_request(ev);
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
	drop_request(ev);
	EXPECT(cch, REJECTED, 28);
	finish_id(c);
	rdma_destroy_id(l4);
	rdma_destroy_id(l6);
	rdma_destroy_event_channel(cch);
	rdma_destroy_event_channel(sch);
}

/* A host that answers neither ARP nor neighbour discovery: CM_CHECK_ADDR. */
static void absent(void)
{
	enum { MANY = 200 };
	struct rdma_cm_id *c, *many[MANY];

	NEED(cch = rdma_create_event_channel());
	NEED(!rdma_create_id(cch, &c, NULL, RDMA_PS_TCP));
	for (int i = 0; i < 2; i++) {
		NEED(!rdma_resolve_addr(c, NULL, addr_of(7174), 300));
		FAILS(rdma_resolve_addr(c, NULL, addr_of(7174), 300), EINVAL);
		FAILS(rdma_resolve_route(c, 300), EINVAL);
		EXPECT(cch, ADDR_ERROR, -ETIMEDOUT);
	}
	FAILS(rdma_resolve_route(c, 300), EINVAL);
	/* Many wait for one host, some of them longer. */
	for (int i = 0; i < MANY; i++) {
		NEED(!rdma_create_id(cch, &many[i], NULL, RDMA_PS_TCP));
		NEED(!rdma_resolve_addr(many[i], NULL, addr_of(7174),
					200 + i % 3 * 100));
	}
	for (int i = 0; i < MANY; i++)
		EXPECT(cch, ADDR_ERROR, -ETIMEDOUT);
	for (int i = 0; i < MANY; i++)
		rdma_destroy_id(many[i]);
	/* Its event does not come any more. */
	NEED(!rdma_resolve_addr(c, NULL, addr_of(7174), 300));
	rdma_destroy_id(c);
	CHECK(quiet(cch, 600));
	rdma_destroy_event_channel(cch);
	NEED(!rdma_create_id(NULL, &c, NULL, RDMA_PS_TCP));
	FAILS(rdma_resolve_addr(c, NULL, addr_of(7174), 300), ETIMEDOUT);
	rdma_destroy_id(c);
}

/* A host whose address comes while it is looked for. */
static void late(void)
{
	struct rdma_cm_id *c, *other;

	NEED(cch = rdma_create_event_channel());
	NEED(!rdma_create_id(cch, &c, NULL, RDMA_PS_TCP));
	NEED(!rdma_create_id(cch, &other, NULL, RDMA_PS_TCP));
	NEED(!rdma_resolve_addr(other, NULL, addr_of(7174), -1));
	NEED(!rdma_resolve_addr(c, NULL, addr_of(7174), LIMIT_MS));
	CHECK(quiet(cch, 50));
	say("resolving");
	EXPECT(cch, ADDR_RESOLVED, 0);
	EXPECT(cch, ADDR_RESOLVED, 0);
	NEED(!rdma_resolve_route(c, 2000));
	EXPECT(cch, ROUTE_RESOLVED, 0);
	NEED(!rdma_resolve_route(other, 2000));
	EXPECT(cch, ROUTE_RESOLVED, 0);
	rdma_destroy_id(c);
	rdma_destroy_id(other);
	rdma_destroy_event_channel(cch);
}

const struct situation cm_addresses[] = {
	{ "ports", ports },
	{ "shared_port", shared_port },
	{ "options", options },
	{ "localhost", localhost },
	{ "interface", interface_ },
	{ "addrinfo", addrinfo },
	{ "devices", devices },
	{ "families", families },
	{ "absent", absent },
	{ "late", late },
	{ NULL, NULL },
};

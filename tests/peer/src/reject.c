/*
 * reject.c - connections that one end does not want
 *
 *	reject server HOW ADDR PORT
 *	reject client HOW ADDR PORT
 *
 * HOW is what is refused:
 *   connect   the server's program refuses the request, and says why
 *   datagram  the same of a request for a datagram service
 *   reply     the client's program refuses what the server has accepted
 *   nobody    there is no server (a client only): the CM refuses
 *   nobody-datagram
 *   backlog   five connections, while the server has room for two and does
 *             not look: they wait, or are refused
 *
 * A plain rdma_cm program, run on the kernel's rxe and siw, and under softhca:
 * each end has to see the event that the other's refusal brings, with its
 * reason and the private data. The exit status reports whether it does.
 */
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONSUMER_REJECT 28 /* 12.6.7.2 */
#define INVALID_SERVICE_ID 8 /* 12.6.7.2 */
#define SIDR_REJECT 2 /* 12.11.2 */
#define SIDR_UNSUPPORTED 1 /* 12.11.2 */

#define BACKLOG 2
#define KNOCKS 5

static const char words[] = "not today";
static struct rdma_event_channel *channel;

__attribute__((noreturn, format(printf, 1, 2))) static void
fail(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	printf("\n");
	exit(1);
}

static void must(int rc, const char *what)
{
	if (rc)
		fail("%s: %m", what);
}

/* The next event within ms, or NULL. */
static struct rdma_cm_event *next(int ms)
{
	struct pollfd p = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *ev;

	if (poll(&p, 1, ms) <= 0)
		return NULL;
	must(rdma_get_cm_event(channel, &ev), "rdma_get_cm_event");
	return ev;
}

/* The next event, which must be this one, with this status. */
static struct rdma_cm_event *expect(enum rdma_cm_event_type type, int status)
{
	struct rdma_cm_event *ev = next(20000);

	if (!ev)
		fail("no %s within 20 s", rdma_event_str(type));
	if (ev->event != type)
		fail("%s, status %d, where %s was due",
		     rdma_event_str(ev->event), ev->status,
		     rdma_event_str(type));
	if (ev->status != status)
		fail("%s with status %d, not %d", rdma_event_str(type),
		     ev->status, status);
	return ev;
}

static void expect_words(const struct rdma_cm_event *ev)
{
	const struct rdma_conn_param *p = &ev->param.conn;

	if (p->private_data_len < sizeof(words) || !p->private_data ||
	    memcmp(p->private_data, words, sizeof(words)))
		fail("%s without the private data (%d bytes)",
		     rdma_event_str(ev->event), p->private_data_len);
}

static struct rdma_conn_param param(void)
{
	return (struct rdma_conn_param){
		.responder_resources = 1,
		.initiator_depth = 1,
		.retry_count = 7,
		.rnr_retry_count = 7,
		.qp_num = 0x1234, /* never used */
	};
}

static bool is_iwarp(const struct rdma_cm_id *id)
{
	return id->verbs->device->transport_type == IBV_TRANSPORT_IWARP;
}

/* It says reset where its peer has refused. */
static bool is_siw(const struct rdma_cm_id *id)
{
	return !strncmp(ibv_get_device_name(id->verbs->device), "siw", 3);
}

/* iWARP connects a QP that exists. */
static void need_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC,
					 .cap = { .max_send_wr = 1,
						  .max_recv_wr = 1,
						  .max_send_sge = 1,
						  .max_recv_sge = 1 } };

	if (is_iwarp(id))
		must(rdma_create_qp(id, NULL, &init), "rdma_create_qp");
}

/* Looks after a while, and accepts whoever is there, and who comes then. */
static void serve_late(struct rdma_cm_id *listener)
{
	struct rdma_conn_param p = param();
	struct rdma_cm_event *ev;

	must(rdma_listen(listener, BACKLOG), "rdma_listen");
	sleep(3);
	while ((ev = next(3000))) {
		struct rdma_cm_id *id = ev->id;
		const bool asks = ev->event == RDMA_CM_EVENT_CONNECT_REQUEST;

		must(rdma_ack_cm_event(ev), "rdma_ack_cm_event");
		if (!asks)
			continue;
		need_qp(id);
		must(rdma_accept(id, &p), "rdma_accept");
	}
}

/* Every attempt comes to an end; at least BACKLOG connections are made. */
static void knock(struct sockaddr *addr)
{
	int established = 0, refused = 0;
	struct rdma_cm_id *id[KNOCKS];

	for (int i = 0; i < KNOCKS; i++) {
		must(rdma_create_id(channel, &id[i], NULL, RDMA_PS_TCP),
		     "rdma_create_id");
		must(rdma_resolve_addr(id[i], NULL, addr, 5000),
		     "rdma_resolve_addr");
		rdma_ack_cm_event(expect(RDMA_CM_EVENT_ADDR_RESOLVED, 0));
		must(rdma_resolve_route(id[i], 5000), "rdma_resolve_route");
		rdma_ack_cm_event(expect(RDMA_CM_EVENT_ROUTE_RESOLVED, 0));
		need_qp(id[i]);
	}
	for (int i = 0; i < KNOCKS; i++) {
		struct rdma_conn_param p = param();

		must(rdma_connect(id[i], &p), "rdma_connect");
	}
	while (established + refused < KNOCKS) {
		struct rdma_cm_event *ev = next(20000);

		if (!ev)
			fail("%d established, %d refused, and no more events "
			     "within 20 s",
			     established, refused);
		established += ev->event == RDMA_CM_EVENT_ESTABLISHED;
		refused += ev->event == RDMA_CM_EVENT_REJECTED;
		rdma_ack_cm_event(ev);
	}
	printf("%d established, %d refused\n", established, refused);
	if (established < BACKLOG)
		fail("fewer than the backlog");
}

static void server(const char *how, struct sockaddr *addr,
		   enum rdma_port_space ps)
{
	struct rdma_conn_param p = param();
	struct rdma_cm_event *ev;
	struct rdma_cm_id *id;

	must(rdma_create_id(channel, &id, NULL, ps), "rdma_create_id");
	must(rdma_bind_addr(id, addr), "rdma_bind_addr");
	if (!strcmp(how, "backlog"))
		return serve_late(id);
	must(rdma_listen(id, 4), "rdma_listen");
	ev = expect(RDMA_CM_EVENT_CONNECT_REQUEST, 0);
	if (strcmp(how, "reply")) {
		must(rdma_reject(ev->id, words, sizeof(words)), "rdma_reject");
		if (ps == RDMA_PS_TCP && is_iwarp(ev->id))
			sleep(1); /* the connection ends with the process */
		return;
	}
	id = ev->id;
	rdma_ack_cm_event(ev);
	must(rdma_accept(id, &p), "rdma_accept");
	expect_words(expect(RDMA_CM_EVENT_REJECTED, CONSUMER_REJECT));
}

static void client(const char *how, struct sockaddr *addr,
		   enum rdma_port_space ps)
{
	struct rdma_conn_param p = param();
	struct rdma_cm_id *id;
	bool iwarp;

	if (!strcmp(how, "backlog"))
		return knock(addr);
	must(rdma_create_id(channel, &id, NULL, ps), "rdma_create_id");
	must(rdma_resolve_addr(id, NULL, addr, 5000), "rdma_resolve_addr");
	rdma_ack_cm_event(expect(RDMA_CM_EVENT_ADDR_RESOLVED, 0));
	must(rdma_resolve_route(id, 5000), "rdma_resolve_route");
	rdma_ack_cm_event(expect(RDMA_CM_EVENT_ROUTE_RESOLVED, 0));
	need_qp(id);
	iwarp = is_iwarp(id);
	/* The kernel's siw connects by TCP before rdma_connect() returns. */
	if (rdma_connect(id, &p)) {
		if (iwarp && !strcmp(how, "nobody") && errno == ECONNREFUSED)
			return;
		fail("rdma_connect: %m");
	}
	if (!strcmp(how, "connect")) {
		expect_words(expect(RDMA_CM_EVENT_REJECTED,
				    is_siw(id) ? -ECONNRESET :
				    iwarp      ? -ECONNREFUSED :
						 CONSUMER_REJECT));
	} else if (!strcmp(how, "nobody")) {
		expect(RDMA_CM_EVENT_REJECTED,
		       iwarp ? -ECONNREFUSED : INVALID_SERVICE_ID);
	} else if (!strcmp(how, "nobody-datagram")) {
		expect(RDMA_CM_EVENT_UNREACHABLE, SIDR_UNSUPPORTED);
	} else if (!strcmp(how, "datagram")) {
		expect(RDMA_CM_EVENT_UNREACHABLE, SIDR_REJECT);
	} else {
		rdma_ack_cm_event(expect(RDMA_CM_EVENT_CONNECT_RESPONSE, 0));
		must(rdma_reject(id, words, sizeof(words)), "rdma_reject");
		sleep(1); /* the message is on its way */
	}
}

int main(int argc, char **argv)
{
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST }, *ai;
	enum rdma_port_space ps;

	if (argc != 5 || getaddrinfo(argv[3], argv[4], &hints, &ai)) {
		fprintf(stderr,
			"usage: reject server|client connect|datagram|reply"
			"|nobody|nobody-datagram|backlog ADDR PORT\n");
		return 2;
	}
	alarm(30);
	ps = strstr(argv[2], "datagram") ? RDMA_PS_UDP : RDMA_PS_TCP;
	channel = rdma_create_event_channel();
	if (!channel)
		fail("rdma_create_event_channel: %m");
	if (!strcmp(argv[1], "server"))
		server(argv[2], ai->ai_addr, ps);
	else
		client(argv[2], ai->ai_addr, ps);
	return 0;
}

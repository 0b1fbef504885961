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
 *
 * A plain rdma_cm program, run on the kernel's rxe and under softhca: each end
 * has to see the event that the other's refusal brings, with its reason and
 * the private data. The exit status reports whether it does.
 */
#include <netdb.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONSUMER_REJECT 28 /* 12.6.7.2 */
#define INVALID_SERVICE_ID 8 /* 12.6.7.2 */
#define SIDR_REJECT 2 /* 12.11.2 */
#define SIDR_UNSUPPORTED 1 /* 12.11.2 */

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

/* The next event, which must be this one, with this status. */
static struct rdma_cm_event *expect(enum rdma_cm_event_type type, int status)
{
	struct rdma_cm_event *ev;

	must(rdma_get_cm_event(channel, &ev), "rdma_get_cm_event");
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

static void server(const char *how, struct sockaddr *addr,
		   enum rdma_port_space ps)
{
	struct rdma_conn_param p = param();
	struct rdma_cm_event *ev;
	struct rdma_cm_id *id;

	must(rdma_create_id(channel, &id, NULL, ps), "rdma_create_id");
	must(rdma_bind_addr(id, addr), "rdma_bind_addr");
	must(rdma_listen(id, 4), "rdma_listen");
	ev = expect(RDMA_CM_EVENT_CONNECT_REQUEST, 0);
	if (strcmp(how, "reply")) {
		must(rdma_reject(ev->id, words, sizeof(words)), "rdma_reject");
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

	must(rdma_create_id(channel, &id, NULL, ps), "rdma_create_id");
	must(rdma_resolve_addr(id, NULL, addr, 5000), "rdma_resolve_addr");
	rdma_ack_cm_event(expect(RDMA_CM_EVENT_ADDR_RESOLVED, 0));
	must(rdma_resolve_route(id, 5000), "rdma_resolve_route");
	rdma_ack_cm_event(expect(RDMA_CM_EVENT_ROUTE_RESOLVED, 0));
	must(rdma_connect(id, &p), "rdma_connect");
	if (!strcmp(how, "connect")) {
		expect_words(expect(RDMA_CM_EVENT_REJECTED, CONSUMER_REJECT));
	} else if (!strcmp(how, "nobody")) {
		expect(RDMA_CM_EVENT_REJECTED, INVALID_SERVICE_ID);
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
			"|nobody|nobody-datagram ADDR PORT\n");
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

/*
 * end_cm.c - one end: connections of iWARP, which only rdma_cm makes
 *
 * The QPs are those of end.c; identifiers are told their numbers. An event is
 * always waited for, and a connection's says which QP it is of.
 */
#include "peer.h"

#define SETUP_MS 10000

static struct rdma_event_channel *channel;
static struct rdma_cm_id *listener;

static struct addrinfo *numeric(const char *addr, uint64_t port)
{
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST }, *ai;
	char text[16];

	snprintf(text, sizeof(text), "%u", (unsigned)port);
	return getaddrinfo(addr, text, &hints, &ai) ? NULL : ai;
}

/* The device of an address, by an identifier that is bound to it. */
static struct rdma_cm_id *bound(const char *addr, uint64_t port)
{
	struct addrinfo *ai = numeric(addr, port);
	struct rdma_cm_id *id = NULL;

	if (!ai)
		return NULL;
	if (!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) &&
	    rdma_bind_addr(id, ai->ai_addr)) {
		rdma_destroy_id(id);
		id = NULL;
	}
	freeaddrinfo(ai);
	return id;
}

struct ibv_context *open_by_cm(void)
{
	struct rdma_cm_id *id;

	channel = rdma_create_event_channel();
	id = channel ? bound(opt_addr, 0) : NULL;
	return id ? id->verbs : NULL;
}

/* The next event, or NULL: none within ms. */
static struct rdma_cm_event *next(uint64_t ms)
{
	struct pollfd p = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *ev;

	if (poll(&p, 1, (int)ms) <= 0 || rdma_get_cm_event(channel, &ev))
		return NULL;
	return ev;
}

/* Of the connection that is being made; others' are in vain. */
static bool came(struct rdma_cm_id *id, enum rdma_cm_event_type type,
		 struct reply *r)
{
	struct rdma_cm_event *ev = next(SETUP_MS);
	bool ok = ev && ev->id == id && ev->event == type && !ev->status;

	if (!ev)
		refuse(r, ETIMEDOUT, rdma_event_str(type));
	else if (!ok)
		snprintf(r->err, sizeof(r->err), "%s, status %d, not %s",
			 rdma_event_str(ev->event), ev->status,
			 rdma_event_str(type));
	if (ev)
		rdma_ack_cm_event(ev);
	return ok;
}

/* listen port */
void do_listen(const uint64_t *a, struct reply *r)
{
	listener = bound(opt_addr, a[0]);
	if (!listener || rdma_listen(listener, 8))
		refuse(r, errno, "rdma_listen");
}

static struct rdma_conn_param param(const struct ibv_qp *qp, uint64_t ird,
				    uint64_t ord)
{
	return (struct rdma_conn_param){
		.qp_num = qp->qp_num,
		.responder_resources = (uint8_t)ird,
		.initiator_depth = (uint8_t)ord,
	};
}

static void *qp_index(uint64_t i)
{
	return (void *)(uintptr_t)i;
}

/* connect qp port ird ord: established when "cm" says so */
void do_connect(const uint64_t *a, struct reply *r)
{
	struct ibv_qp *qp = qp_of(a[0], r);
	struct addrinfo *ai;
	struct rdma_conn_param p;
	struct rdma_cm_id *id;
	int rc;

	if (!qp)
		return;
	p = param(qp, a[2], a[3]);
	if (rdma_create_id(channel, &id, qp_index(a[0]), RDMA_PS_TCP))
		return refuse(r, errno, "rdma_create_id");
	ai = numeric(opt_server, a[1]);
	rc = !ai || rdma_resolve_addr(id, NULL, ai->ai_addr, SETUP_MS);
	if (rc)
		return refuse(r, errno, "rdma_resolve_addr");
	freeaddrinfo(ai);
	if (!came(id, RDMA_CM_EVENT_ADDR_RESOLVED, r))
		return;
	if (rdma_resolve_route(id, SETUP_MS))
		return refuse(r, errno, "rdma_resolve_route");
	if (!came(id, RDMA_CM_EVENT_ROUTE_RESOLVED, r))
		return;
	if (rdma_connect(id, &p))
		refuse(r, errno, "rdma_connect");
}

/* accept qp ird ord: the next request */
void do_accept(const uint64_t *a, struct reply *r)
{
	struct ibv_qp *qp = qp_of(a[0], r);
	struct rdma_cm_event *ev;
	struct rdma_conn_param p;
	struct rdma_cm_id *id;

	if (!qp)
		return;
	ev = next(SETUP_MS);
	if (!ev || ev->event != RDMA_CM_EVENT_CONNECT_REQUEST)
		return refuse(r, ETIMEDOUT, "RDMA_CM_EVENT_CONNECT_REQUEST");
	id = ev->id;
	rdma_ack_cm_event(ev);
	id->context = qp_index(a[0]);
	p = param(qp, a[1], a[2]);
	if (rdma_accept(id, &p))
		return refuse(r, errno, "rdma_accept");
	came(id, RDMA_CM_EVENT_ESTABLISHED, r);
}

/* cm ms -> n [event status qp]: the next event */
void do_cm(const uint64_t *a, struct reply *r)
{
	struct rdma_cm_event *ev = next(a[0]);

	answer(r, ev != NULL);
	if (!ev)
		return;
	answer(r, ev->event);
	answer(r, (uint64_t)(int64_t)ev->status);
	answer(r, (uintptr_t)ev->id->context);
	rdma_ack_cm_event(ev);
}

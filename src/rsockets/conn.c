/*
 * conn.c - streams: from a name to a connection
 *
 * The event channel of a stream never blocks. A call on a stream that is not
 * connected handles the events that are there (rsock_stream_cm()), each of
 * which takes the connection one step further:
 *
 *	rconnect: RESOLVING > ROUTING > CONNECTING > CONNECTED
 *	raccept:  (listener: a request) > ACCEPTING > CONNECTED
 *
 * raccept() does not wait for the peer's RTU: a program that connects to itself
 * would wait for ever.
 */
#include "rsock_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define RESOLVE_TRIES 5 /* the first waits a second, each twice as long */

/* The steps of rconnect(). Each returns 0 or -errno. */

static int resolve_addr(struct rsock *rs)
{
	struct rsock_stream *s = &rs->s;

	rs->state = RSOCK_RESOLVING;
	if (rdma_resolve_addr(s->id, NULL, &s->dst.sa, 1000 << s->tries))
		return rsock_errno();
	s->tries++;
	return 0;
}

static int connect_ep(struct rsock *rs)
{
	struct rdma_conn_param param = { .flow_control = 1,
					 .retry_count = 7,
					 .rnr_retry_count = 7 };
	uint8_t data[RSW_CONN_LEN];
	int err;

	rs->state = RSOCK_CONNECTING;
	err = rsock_stream_create_ep(rs);
	if (err)
		return err;
	rsock_stream_describe(rs, data);
	param.private_data = data;
	param.private_data_len = sizeof(data);
	if (rdma_connect(rs->s.id, &param))
		return rsock_errno();
	return 0;
}

static int resolve_route(struct rsock *rs)
{
	struct rsock_stream *s = &rs->s;

	rs->state = RSOCK_ROUTING;
	if (!s->route) {
		if (rdma_resolve_route(s->id, 1000 << s->tries))
			return rsock_errno();
		s->tries++;
		return 0;
	}
	/* With a path given by RDMA_ROUTE there is nothing to resolve. */
	if (rdma_set_option(s->id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH,
			    s->route, s->route_len))
		return rsock_errno();
	free(s->route);
	s->route = NULL;
	return connect_ep(rs);
}

/* An event, copied so that it can be acknowledged before it is handled. */
struct cm_event {
	enum rdma_cm_event_type type;
	struct rdma_cm_id *id;
	int status;
	int conn_err; /* of decoding conn */
	struct rsw_conn conn;
};

static bool next_event(struct rsock *rs, struct cm_event *ev)
{
	struct rdma_cm_event *event;
	bool has_conn;

	if (!rs->s.channel || rdma_get_cm_event(rs->s.channel, &event))
		return false;
	*ev = (struct cm_event){ .type = event->event,
				 .id = event->id,
				 .status = event->status,
				 .conn_err = -EPROTO };
	has_conn = event->event == RDMA_CM_EVENT_CONNECT_REQUEST ||
		   event->event == RDMA_CM_EVENT_ESTABLISHED;
	if (has_conn)
		ev->conn_err = rsw_conn_decode(
			event->param.conn.private_data,
			event->param.conn.private_data_len, &ev->conn);
	rdma_ack_cm_event(event);
	return true;
}

/* Statuses are -errno, or for REJECTED a reason of the CM. */
static int event_errno(const struct rsock *rs, const struct cm_event *ev,
		       int otherwise)
{
	/* An accepted peer that has gone is a reset, whatever the reason. */
	if (rs->state == RSOCK_ACCEPTING)
		return ECONNRESET;
	if (ev->type == RDMA_CM_EVENT_REJECTED)
		return ECONNREFUSED;
	return ev->status < 0 ? -ev->status : otherwise;
}

/* Where ports are derived from others, two may lead to the same. */
static bool other_service(const struct rsock *rs, const struct cm_event *ev,
			  bool from_here)
{
	return ev->id->verbs->device->transport_type == IBV_TRANSPORT_IWARP &&
	       ev->conn.port != rsock_stream_port(rs, ev->id, from_here);
}

static void add_request(struct rsock *rs, const struct cm_event *ev)
{
	struct rsock_stream *s = &rs->s;
	struct rsock_request *req, **link;

	req = calloc(1, sizeof(*req));
	/*
	 * A request without private data of rsockets is from something else,
	 * and one that names another service is for that.
	 */
	if (!req || ev->conn_err || other_service(rs, ev, false)) {
		rdma_reject(ev->id, NULL, 0);
		rdma_destroy_id(ev->id);
		free(req);
		return;
	}
	req->id = ev->id;
	req->conn = ev->conn;
	for (link = &s->requests; *link; link = &(*link)->next)
		;
	*link = req;
	s->nrequests++;
}

static struct rsock_request *take_request(struct rsock *rs,
					  const struct rdma_cm_id *id)
{
	struct rsock_request *req, **link = &rs->s.requests;

	for (; (req = *link); link = &req->next) {
		if (id && req->id != id)
			continue;
		*link = req->next;
		rs->s.nrequests--;
		return req;
	}
	return NULL;
}

static void untake_request(struct rsock *rs, struct rsock_request *req)
{
	pthread_mutex_lock(&rs->lock);
	req->next = rs->s.requests;
	rs->s.requests = req;
	rs->s.nrequests++;
	pthread_mutex_unlock(&rs->lock);
}

void rsock_stream_drop_requests(struct rsock *rs)
{
	struct rsock_request *req;

	while ((req = take_request(rs, NULL))) {
		rdma_reject(req->id, NULL, 0);
		rdma_destroy_id(req->id);
		free(req);
	}
}

static void listener_event(struct rsock *rs, const struct cm_event *ev)
{
	struct rsock_request *req;

	if (ev->type == RDMA_CM_EVENT_CONNECT_REQUEST) {
		add_request(rs, ev);
	} else if (ev->type == RDMA_CM_EVENT_DEVICE_REMOVAL &&
		   ev->id == rs->s.id) {
		rsock_stream_fail(rs, ENODEV);
	} else if ((req = take_request(rs, ev->id))) {
		/* It ended before raccept() took it. */
		rdma_destroy_id(req->id);
		free(req);
	}
}

/* Data from the peer counts even if its RTU was lost. */
static void take_early(struct rsock *rs)
{
	if (rs->state == RSOCK_ACCEPTING)
		rsock_stream_progress(rs);
}

static int stream_event(struct rsock *rs, const struct cm_event *ev)
{
	struct rsock_stream *s = &rs->s;

	switch (ev->type) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		s->tries = 0;
		return resolve_route(rs);
	case RDMA_CM_EVENT_ADDR_ERROR:
		if (ev->status == -ETIMEDOUT && s->tries < RESOLVE_TRIES)
			return resolve_addr(rs);
		return -event_errno(rs, ev, EHOSTUNREACH);
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		return connect_ep(rs);
	case RDMA_CM_EVENT_ROUTE_ERROR:
		if (ev->status == -ETIMEDOUT && s->tries < RESOLVE_TRIES)
			return resolve_route(rs);
		return -event_errno(rs, ev, EHOSTUNREACH);
	case RDMA_CM_EVENT_ESTABLISHED:
		if (rs->state == RSOCK_CONNECTING) {
			if (ev->conn_err)
				return ev->conn_err;
			if (other_service(rs, ev, true))
				return -EPROTO;
			rsock_stream_start(rs, &ev->conn);
		}
		if (rs->state <= RSOCK_ACCEPTING)
			rs->state = RSOCK_CONNECTED;
		return 0;
	case RDMA_CM_EVENT_CONNECT_ERROR:
	case RDMA_CM_EVENT_UNREACHABLE:
	case RDMA_CM_EVENT_REJECTED:
		take_early(rs);
		if (rs->state >= RSOCK_CONNECTED)
			return 0;
		return -event_errno(rs, ev, ETIMEDOUT);
	case RDMA_CM_EVENT_DISCONNECTED:
		/*
		 * A peer that closes sends a message first. A peer that was
		 * killed could not, but what it sent counts.
		 */
		take_early(rs);
		if (rs->state == RSOCK_CONNECTED)
			rsock_stream_progress(rs);
		s->gone = true;
		if (rs->state <= RSOCK_ACCEPTING)
			return -ECONNRESET;
		if (rs->state == RSOCK_CONNECTED) {
			rs->state = RSOCK_DISCONNECTED;
			s->reset = s->rd_open;
			rs->why = ECONNRESET;
			s->rd_open = s->wr_open = false;
		}
		return 0;
	case RDMA_CM_EVENT_DEVICE_REMOVAL:
		return -ENODEV;
	case RDMA_CM_EVENT_CONNECT_REQUEST:
	case RDMA_CM_EVENT_CONNECT_RESPONSE:
	case RDMA_CM_EVENT_MULTICAST_JOIN:
	case RDMA_CM_EVENT_MULTICAST_ERROR:
	case RDMA_CM_EVENT_ADDR_CHANGE:
	case RDMA_CM_EVENT_TIMEWAIT_EXIT:
	default: /* newer headers have more */
		break;
	}
	return 0;
}

void rsock_stream_cm(struct rsock *rs)
{
	struct rsock_stream *s = &rs->s;
	struct cm_event ev;
	bool any = false;
	int err;

	/* Requests beyond the backlog stay with the connection manager. */
	while ((rs->state != RSOCK_LISTENING || s->nrequests < s->backlog) &&
	       next_event(rs, &ev)) {
		any = true;
		if (rs->state == RSOCK_LISTENING) {
			listener_event(rs, &ev);
			continue;
		}
		err = ev.id == s->id ? stream_event(rs, &ev) : 0;
		if (err)
			rsock_stream_fail(rs, -err);
	}
	if (any)
		rsock_wake(rs, -1);
}

int rsock_stream_bind(struct rsock *rs, const union rsw_addr *addr)
{
	union rsw_addr copy = *addr;
	int err = 0;

	pthread_mutex_lock(&rs->lock);
	if (rs->state != RSOCK_INIT)
		err = -EINVAL;
	else if (rdma_bind_addr(rs->s.id, &copy.sa))
		err = rsock_errno();
	else
		rs->state = RSOCK_BOUND;
	pthread_mutex_unlock(&rs->lock);
	return err;
}

int rsock_stream_listen(struct rsock *rs, int backlog)
{
	struct rsock_stream *s = &rs->s;
	union rsw_addr any = { .sa.sa_family = (sa_family_t)rs->family };
	int err = 0;

	pthread_mutex_lock(&rs->lock);
	if (rs->state == RSOCK_LISTENING)
		goto out;
	if (rs->state != RSOCK_INIT && rs->state != RSOCK_BOUND) {
		err = -EINVAL;
		goto out;
	}
	/* As listen(2) does: the system chooses the port. */
	if (rs->state == RSOCK_INIT && rdma_bind_addr(s->id, &any.sa)) {
		err = rsock_errno();
		goto out;
	}
	rs->state = RSOCK_BOUND;
	if (rdma_listen(s->id, backlog)) {
		err = rsock_errno();
		goto out;
	}
	rs->state = RSOCK_LISTENING;
	s->backlog = backlog > 0 ? (unsigned)backlog : 1;
out:
	pthread_mutex_unlock(&rs->lock);
	return err;
}

static bool has_request(struct rsock *rs)
{
	return rs->s.requests || rs->state != RSOCK_LISTENING || rs->closing;
}

/*
 * Makes a stream of a request. The request and its id are used up, unless no
 * descriptor is left: then it may be accepted later.
 */
static int accept_request(struct rsock *parent, struct rsock_request *req,
			  struct rsock **out)
{
	struct rdma_conn_param param = { .flow_control = 1,
					 .rnr_retry_count = 7 };
	uint8_t data[RSW_CONN_LEN];
	struct rsock *rs;
	int err = -ENOMEM;

	rs = rsock_alloc(parent, SOCK_STREAM, parent->family);
	if (!rs)
		goto err_reject;
	err = rsock_stream_init(rs, req->id);
	if (err == -EMFILE || err == -ENFILE) {
		rsock_destroy(rs);
		untake_request(parent, req);
		return err;
	}
	if (err)
		goto err_reject;
	err = rsock_stream_create_ep(rs);
	if (err)
		goto err_reject;
	rsock_stream_start(rs, &req->conn);
	rsock_stream_describe(rs, data);
	param.private_data = data;
	param.private_data_len = sizeof(data);
	rs->state = RSOCK_ACCEPTING;
	if (rdma_accept(rs->s.id, &param)) {
		err = rsock_errno();
		goto err_reject;
	}
	free(req);
	*out = rs;
	return 0;

err_reject:
	rdma_reject(req->id, NULL, 0);
	if (!rs || !rs->s.id)
		rdma_destroy_id(req->id);
	if (rs)
		rsock_destroy(rs);
	free(req);
	return err;
}

int rsock_stream_accept(struct rsock *rs, struct rsock **new)
{
	uint64_t deadline = rsock_deadline(rs->rcvtimeo_ns);
	struct rsock_request *req;
	int err;

	for (;;) {
		pthread_mutex_lock(&rs->lock);
		err = rs->state == RSOCK_LISTENING ?
			      rsock_wait(rs, has_request, rsock_nonblock(rs, 0),
					 deadline) :
			      -EINVAL;
		if (!err && rs->closing)
			err = -EBADF;
		else if (!err && rs->state != RSOCK_LISTENING)
			err = -rs->why;
		req = err ? NULL : take_request(rs, NULL);
		pthread_mutex_unlock(&rs->lock);
		if (err)
			return err;
		if (!req)
			continue;
		err = accept_request(rs, req, new);
		/* A peer's error is not the listener's: raccept() goes on. */
		if (!err || err == -ENOMEM || err == -EMFILE || err == -ENFILE)
			return err;
	}
}

static bool conn_settled(struct rsock *rs)
{
	return rs->state < RSOCK_RESOLVING || rs->state > RSOCK_ACCEPTING ||
	       rs->closing;
}

int rsock_stream_settle(struct rsock *rs, int flags, uint64_t deadline_ns)
{
	int err = 0;

	/* The common case, without the lock. */
	if (rs->state == RSOCK_CONNECTED)
		return 0;
	pthread_mutex_lock(&rs->lock);
	if (!conn_settled(rs))
		err = rsock_wait(rs, conn_settled, rsock_nonblock(rs, flags),
				 deadline_ns);
	if (!err && rs->state < RSOCK_CONNECTED)
		err = -ENOTCONN;
	pthread_mutex_unlock(&rs->lock);
	return err;
}

int rsock_stream_connect(struct rsock *rs, const union rsw_addr *addr)
{
	struct rsock_stream *s = &rs->s;
	uint64_t deadline = rsock_deadline(rs->sndtimeo_ns);
	int err = 0;

	pthread_mutex_lock(&rs->lock);
	switch (atomic_load(&rs->state)) {
	case RSOCK_INIT:
	case RSOCK_BOUND:
		s->dst = *addr;
		s->tries = 0;
		err = resolve_addr(rs);
		if (err)
			rsock_stream_fail(rs, -err);
		break;
	case RSOCK_RESOLVING:
	case RSOCK_ROUTING:
	case RSOCK_CONNECTING:
		/* A second rconnect() waits for the first; rstream does so. */
		break;
	case RSOCK_ACCEPTING:
	case RSOCK_CONNECTED:
	case RSOCK_DISCONNECTED:
		err = -EISCONN;
		break;
	case RSOCK_LISTENING:
		err = -EINVAL;
		break;
	case RSOCK_FAILED:
		err = -(rs->err ? rs->err : rs->why);
		rs->err = 0;
		break;
	}
	if (!err)
		err = rsock_wait(rs, conn_settled, rsock_nonblock(rs, 0),
				 deadline);
	if (err == -EAGAIN)
		err = -EINPROGRESS;
	if (!err && rs->closing)
		err = -EBADF;
	if (!err && rs->state == RSOCK_FAILED) {
		err = -rs->why;
		rs->err = 0;
	}
	pthread_mutex_unlock(&rs->lock);
	return err;
}

int rsock_stream_name(struct rsock *rs, bool peer, union rsw_addr *addr)
{
	const struct rdma_addr *names = &rs->s.id->route.addr;
	int err = 0;

	memset(addr, 0, sizeof(*addr));
	pthread_mutex_lock(&rs->lock);
	if (!peer)
		memcpy(addr, &names->src_storage, sizeof(names->src_storage));
	else if (rs->state == RSOCK_ACCEPTING || rs->state >= RSOCK_CONNECTED)
		memcpy(addr, &names->dst_storage, sizeof(names->dst_storage));
	else
		err = -ENOTCONN;
	pthread_mutex_unlock(&rs->lock);
	if (rs->family == AF_INET6)
		rsock_map_ip4(addr);
	if (!addr->sa.sa_family)
		addr->sa.sa_family = (sa_family_t)rs->family;
	return err;
}

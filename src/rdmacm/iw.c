/*
 * iw.c - connections of identifiers whose device speaks iWARP
 *
 * The port is TCP's, and private data travel in MPA's frames (connect/iw.h). As
 * with the kernel's iw_cm it is the connection that takes the QP to RTS: programs
 * see no RDMA_CM_EVENT_CONNECT_RESPONSE, both ends get ESTABLISHED, and the end
 * of the stream is DISCONNECTED.
 */
#include "cma.h"

#include "base/bytes.h"
#include "base/gid.h"
#include "base/sys.h"

#include <errno.h>
#include <string.h>

/* The peer may write and read, as far as its keys allow that. */
#define ACCESS                                                                 \
	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |                    \
	 IBV_ACCESS_REMOTE_READ)

static int iw_resolved(struct cma_id *id)
{
	(void)id; /* the answer comes to whoever connects */
	return 0;
}

static int iw_qp_attr(struct cma_id *id, struct ibv_qp_attr *attr, int *mask)
{
	switch (attr->qp_state) {
	case IBV_QPS_INIT:
	case IBV_QPS_RTR:
		*mask = IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PORT;
		attr->qp_access_flags = id->iw ? ACCESS : 0;
		attr->port_num = CMA_PORT_NUM;
		return 0;
	case IBV_QPS_RTS:
		*mask = IBV_QP_PORT;
		attr->port_num = CMA_PORT_NUM;
		return 0;
	default:
		return why(-EINVAL, "qp_state %u: INIT, RTR or RTS",
			   (unsigned)attr->qp_state);
	}
}

/* The identifier's QP, or the program's own, with a reference. */
static int find_qp(struct cma_id *id, const struct rdma_conn_param *param,
		   struct shca_qp **out)
{
	struct engine_qp *found = NULL;
	struct ibv_qp *qp;

	cma_qp_adopt(id);
	qp = cma_qp_get(id);
	if (!qp && param)
		found = engine_qp_look(cma_engine(), param->qp_num);
	if (found)
		qp = &sched_qp(found)->ex.qp_base;
	if (!qp)
		return why(-EINVAL, "iWARP connects a QP: rdma_create_qp() "
				    "first, or give qp_num");
	*out = to_qp(qp);
	if (qp->context->device->transport_type == IBV_TRANSPORT_IWARP)
		return 0;
	cma_qp_put(qp);
	return why(-EINVAL, "QP 0x%06x is not of the identifier's device",
		   qp->qp_num);
}

/* The QP of a connection that is to be, and what the peer may do with it. */
static int ready_qp(struct cma_id *id, const struct rdma_conn_param *param,
		    struct shca_iw_ask *ask)
{
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT,
				    .qp_access_flags = ACCESS };
	int err = find_qp(id, param, &ask->qp);

	if (err)
		return err;
	ask->data = param ? param->private_data : NULL;
	ask->len = param ? param->private_data_len : 0;
	ask->user = id;
	err = -ibv_modify_qp(&ask->qp->ex.qp_base, &init,
			     IBV_QP_STATE | IBV_QP_ACCESS_FLAGS);
	if (err)
		cma_qp_put(&ask->qp->ex.qp_base);
	return err;
}

/* What the program says of reads, or else these. */
static void set_reads(struct shca_iw_ask *ask,
		      const struct rdma_conn_param *param, uint8_t ird,
		      uint8_t ord)
{
	ask->ird = param && param->responder_resources != RDMA_MAX_RESP_RES ?
			   param->responder_resources :
			   ird;
	ask->ord = param && param->initiator_depth != RDMA_MAX_INIT_DEPTH ?
			   param->initiator_depth :
			   ord;
}

/*
 * The TCP address for an address of the port space: the same, unless the port is
 * an ordinary socket's, too (tcp_port.h). Then it is the port that both ends
 * derive: one above those that systems give away by themselves
 * (ip_local_port_range), with the last three digits of the original; or, of one
 * below 1024, which may be root's to listen at, another one below 1024.
 */
static struct sockaddr_storage tcp_addr(const struct cma_id *id,
					const struct sockaddr_storage *addr)
{
	struct sockaddr_storage at = *addr;
	uint16_t port = cma_port((const struct sockaddr *)addr);

	if (id->shares_port && port < 512)
		port = (uint16_t)(port + 512);
	else if (id->shares_port && port < 1024)
		port = (uint16_t)(port - 511);
	else if (id->shares_port)
		port = (uint16_t)(61000 + port % 4000);
	cma_set_port(&at, port);
	return at;
}

static int iw_connect(struct cma_id *id, const struct rdma_conn_param *param)
{
	/* Where there is a socket as well, whoever is late is so there, too. */
	struct shca_iw_ask ask = { .once = id->shares_port };
	struct sockaddr_storage to =
		tcp_addr(id, &id->id.route.addr.dst_storage);
	int err = ready_qp(id, param, &ask);

	if (err)
		return err;
	set_reads(&ask, param, id->dev->max_responder_resources,
		  id->dev->max_initiator_depth);
	cma_lock();
	err = shca_iw_connect(cma_engine(), &id->iw,
			      &id->id.route.addr.src_storage, &to,
			      id->tos_set ? id->tos : 0, &ask);
	if (!err)
		cma_connects(id);
	cma_unlock();
	cma_qp_put(&ask.qp->ex.qp_base);
	return err;
}

static int iw_accept(struct cma_id *id, const struct rdma_conn_param *param)
{
	struct shca_iw_ask ask = { 0 };
	int err = ready_qp(id, param, &ask);

	if (err)
		return err;
	/* What the peer asked for, unless the program says less. */
	set_reads(&ask, param, id->peer.initiator_depth,
		  id->peer.responder_resources);
	cma_lock();
	err = id->iw ? shca_iw_accept(id->iw, &ask) : -EINVAL;
	cma_unlock();
	cma_qp_put(&ask.qp->ex.qp_base);
	return err == -EINVAL ? cma_not_connected(id) : err;
}

static int iw_reject(struct cma_id *id, const void *data, uint8_t len,
		     unsigned reason)
{
	int err;

	(void)reason; /* the frame has a bit for it */
	cma_lock();
	err = id->iw ? shca_iw_reject(id->iw, data, len) : -EINVAL;
	cma_unlock();
	return err == -EINVAL ? cma_not_connected(id) : err;
}

static int iw_disconnect(struct cma_id *id)
{
	bool wait;

	cma_lock();
	/* One that has ended meanwhile is no error. */
	if (id->iw)
		shca_iw_disconnect(id->iw);
	/* Whether there is, or will be, an event to wait for. */
	wait = (id->established && id->state == CMA_CONNECT) ||
	       (id->id.channel && to_channel(id->id.channel)->head);
	cma_unlock();
	return wait;
}

/* For IB alone, so the kernel does nothing here, and succeeds. */
static int iw_notify(struct cma_id *id)
{
	return id->iw ? 0 : cma_not_connected(id);
}

static int iw_establish(struct cma_id *id)
{
	(void)id;
	return why(-EINVAL, "iWARP establishes connections itself: wait for "
			    "RDMA_CM_EVENT_ESTABLISHED");
}

const struct cma_ops cma_iwarp = {
	.resolved = iw_resolved,
	.connect = iw_connect,
	.accept = iw_accept,
	.reject = iw_reject,
	.disconnect = iw_disconnect,
	.notify = iw_notify,
	.establish = iw_establish,
	.attr = iw_qp_attr,
};

/* ---- listening --------------------------------------------------------- */

static bool iw_is_wanted(const struct cma_id *id)
{
	int n;
	const struct cma_dev *dev = cma_devices(&n);

	if (!cma_may_iwarp(id))
		return false;
	if (id->dev)
		return id->dev->ops == &cma_iwarp;
	for (int i = 0; i < n; i++)
		if (dev[i].ops == &cma_iwarp)
			return true;
	return false;
}

int cma_iw_listen(struct cma_id *id)
{
	struct sockaddr_storage on =
		tcp_addr(id, &id->id.route.addr.src_storage);
	struct cma_text at;
	int err;

	if (!iw_is_wanted(id))
		return 0;
	err = shca_iw_listen(cma_engine(), &id->iw_listener, &on,
			     !(cma_families(id) & CM_LISTEN_V4), id->backlog,
			     id);
	if (err)
		return why(
			err,
			"cannot listen on TCP %s: %s (ss -ltnp shows who does)",
			cma_addr_str((struct sockaddr *)&on, &at),
			sys_strerror(-err));
	return 0;
}

void cma_iw_detach(struct cma_id *id)
{
	if (id->iw_listener)
		shca_iw_unlisten(id->iw_listener);
	id->iw_listener = NULL;
	if (id->iw)
		shca_iw_close(id->iw);
	id->iw = NULL;
}

/* ---- what happens ------------------------------------------------------ */

/* An IPv4 address that a socket of IPv6 reports is AF_INET's. */
static void unmap_ipv4(const struct sockaddr_storage *from,
		       struct sockaddr_storage *to)
{
	const struct sockaddr_in6 *v6 = (const void *)from;
	union ibv_gid gid;

	cma_addr_gid((const struct sockaddr *)from, &gid);
	cma_gid_addr(&gid, from->ss_family == AF_INET6 ? v6->sin6_scope_id : 0,
		     cma_port((const struct sockaddr *)from), to);
}

static void put_data(struct cma_event *ev, const struct shca_iw_event *iwe)
{
	const size_t len = min_u32((uint32_t)iwe->len, sizeof(ev->data));

	/* private_data_len has eight bits. */
	memcpy(ev->data, iwe->data, min_u32((uint32_t)len, 255));
	ev->ev.param.conn.private_data = len ? ev->data : NULL;
	ev->ev.param.conn.private_data_len =
		(uint8_t)min_u32((uint32_t)len, 255);
	ev->ev.param.conn.responder_resources = (uint8_t)iwe->ord;
	ev->ev.param.conn.initiator_depth = (uint8_t)iwe->ird;
}

static struct cma_dev *iwarp_dev(const union ibv_gid *addr,
				 struct netdev_gid *via)
{
	int n;
	struct cma_dev *dev = cma_devices(&n);

	for (int i = 0; i < n; i++)
		if (dev[i].ops == &cma_iwarp &&
		    shca_device_addr(to_ctx(dev[i].verbs)->dev, addr, via))
			return &dev[i];
	return NULL;
}

static struct cma_id *request_id(struct cma_id *listener,
				 const struct shca_iw_event *iwe)
{
	struct sockaddr_storage local, peer;
	union ibv_gid ours, theirs;
	struct netdev_gid via;
	struct cma_dev *dev;
	struct cma_id *id;

	unmap_ipv4(iwe->local, &local);
	unmap_ipv4(iwe->peer, &peer);
	cma_set_port(&local, listener->port);
	cma_addr_gid((struct sockaddr *)&local, &ours);
	cma_addr_gid((struct sockaddr *)&peer, &theirs);
	dev = iwarp_dev(&ours, &via);
	if (!dev)
		return NULL;
	id = cma_id_new(listener->id.ps, IBV_QPT_RC, listener->id.context);
	if (!id)
		return NULL;
	id->passive = true;
	id->state = CMA_CONNECT;
	id->since_ns = clock_ns();
	id->tos_set = listener->tos_set;
	id->tos = listener->tos;
	id->peer.initiator_depth = (uint8_t)iwe->ord;
	id->peer.responder_resources = (uint8_t)iwe->ird;
	cma_set_dev(id, dev, &via);
	id->id.route.addr.src_storage = local;
	id->id.route.addr.dst_storage = peer;
	cma_set_path(id, &theirs);
	id->id.route.path_rec = &id->path_rec;
	id->id.route.num_paths = 1;
	return id;
}

static int on_request(struct cma_id *listener, const struct shca_iw_event *iwe)
{
	struct cma_event *ev;
	struct cma_id *id;

	if (listener->backlog <= 0 || !listener->id.channel)
		return -EAGAIN;
	id = request_id(listener, iwe);
	if (!id)
		return -EADDRNOTAVAIL;
	ev = cma_event_new(id, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
	if (!ev) {
		cma_id_detach(id, NULL);
		cma_id_free(id);
		return -EAGAIN;
	}
	id->iw = iwe->iw;
	shca_iw_set_user(iwe->iw, id);
	ev->owner = listener;
	ev->ev.listen_id = &listener->id;
	cma_id_set_channel(id, to_channel(listener->id.channel));
	put_data(ev, iwe);
	listener->backlog--;
	listener->requests++;
	cma_event_post(ev);
	return 0;
}

static void post_iw_event(struct cma_id *id, enum rdma_cm_event_type type,
			  int status, const struct shca_iw_event *iwe)
{
	struct cma_event *ev = cma_event_new(id, type, status);

	if (!ev)
		return;
	/* The initiator gets to know what the responder says. */
	if (!id->passive)
		put_data(ev, iwe);
	cma_event_post(ev);
}

/* As the kernel reports the errors of its iw_cm. */
static enum rdma_cm_event_type outcome_event(int status)
{
	switch (status) {
	case -ECONNRESET:
	case -ECONNREFUSED:
		return RDMA_CM_EVENT_REJECTED;
	case -ETIMEDOUT:
		return RDMA_CM_EVENT_UNREACHABLE;
	default:
		return RDMA_CM_EVENT_CONNECT_ERROR;
	}
}

static void explain_event(struct cma_id *id, const struct shca_iw_event *iwe)
{
	struct sockaddr_storage to =
		tcp_addr(id, &id->id.route.addr.dst_storage);
	struct cma_text at;
	const char *hint;

	if (!why_wanted())
		return;
	if (iwe->status == -ECONNREFUSED)
		hint = iwe->len ?
			       ": the program there has called rdma_reject()" :
			       ": no iWARP listener there on this port, or its "
			       "program has called rdma_reject()";
	else if (iwe->status == -ECONNRESET)
		hint = ": the listener there has closed the connection without "
		       "an answer: it may not speak iWARP";
	else if (iwe->status == -EPROTO)
		hint = ": the listener there does not speak iWARP, or does not "
		       "agree with this end";
	else
		hint = "";
	why(iwe->status, "connection to TCP %s: %s%s",
	    cma_addr_str((struct sockaddr *)&to, &at),
	    sys_strerror(-iwe->status), hint);
	why_report(rdma_event_str(outcome_event(iwe->status)), iwe->status);
}

int cma_on_iw_event(const struct shca_iw_event *iwe)
{
	struct cma_id *id = iwe->user;

	switch (iwe->type) {
	case SHCA_IW_REQUEST:
		return on_request(id, iwe);
	case SHCA_IW_ESTABLISHED:
		id->established = true;
		if (!id->passive)
			id->id.route.addr.src_storage = *iwe->local;
		post_iw_event(id, RDMA_CM_EVENT_ESTABLISHED, 0, iwe);
		break;
	case SHCA_IW_FAILED:
		explain_event(id, iwe);
		id->state = CMA_DISCONNECT;
		id->rejected = iwe->status;
		id->since_ns = clock_ns();
		post_iw_event(id, outcome_event(iwe->status), iwe->status, iwe);
		break;
	case SHCA_IW_ENDED:
		cma_disconnected(id, 0);
		break;
	}
	return 0;
}

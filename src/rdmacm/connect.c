/*
 * connect.c - connections and datagram services of identifiers
 *
 * The identifier is the user of a connection (src/cm): its events come to
 * cma_on_cm_event() with the lock held and become events of librdmacm, most of
 * them as they are. A request makes a new identifier, which the program gets to
 * know with the event; until then it waits in the channel, and a listener has
 * no more of those than its backlog: further requests are dropped in silence,
 * to be repeated by the peer.
 *
 * In front of the private data of a request are the addresses of both ends as
 * the sockets API knows them (annex A11). They have to be those of the packet.
 */
#include "cma.h"

#include "base/bytes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void ipcm_addr(uint8_t to[16], const union ibv_gid *gid)
{
	memcpy(to, gid->raw, 16);
	if (roce_gid_is_v4(gid))
		memset(to, 0, 12);
}

/* The private data of a request: addresses, then the program's. */
static int request_data(struct cma_id *id, const struct rdma_conn_param *param,
			uint8_t *data, size_t max)
{
	struct ipcm_hdr h = {
		.ipv = roce_gid_is_v4(&id->path.dgid) ? 4 : 6,
		.port = cma_port(&id->id.route.addr.src_addr),
	};

	ipcm_addr(h.src, &id->path.sgid);
	ipcm_addr(h.dst, &id->path.dgid);
	memset(data, 0, max);
	ipcm_encode(&h, data);
	if (!param || !param->private_data_len)
		return 0;
	if (!param->private_data ||
	    param->private_data_len > max - IPCM_HDR_LEN)
		return -EINVAL;
	memcpy(data + IPCM_HDR_LEN, param->private_data,
	       param->private_data_len);
	return 0;
}

/* What the program asks for, within the limits of the device. */
static int check_param(const struct cma_dev *dev,
		       const struct rdma_conn_param *param)
{
	if (!param)
		return 0;
	if (param->responder_resources != RDMA_MAX_RESP_RES &&
	    param->responder_resources > dev->max_responder_resources)
		return -EINVAL;
	if (param->initiator_depth != RDMA_MAX_INIT_DEPTH &&
	    param->initiator_depth > dev->max_initiator_depth)
		return -EINVAL;
	if (param->private_data_len && !param->private_data)
		return -EINVAL;
	return 0;
}

static uint8_t min_u8(uint8_t a, uint8_t b)
{
	return a < b ? a : b;
}

/* The numbers of our end that are the program's to say. */
static void set_local(struct cma_id *id, const struct rdma_conn_param *param)
{
	struct cm_end *end = &id->local;

	end->qp_type = id->id.qp_type;
	end->target_ack_delay = id->dev->ack_delay;
	end->pkey = ROCE_PKEY_DEFAULT;
	end->qpn = 0;
	end->srq = id->id.srq != NULL;
	cma_qp_adopt(id);
	if (id->id.qp)
		end->qpn = id->id.qp->qp_num;
	else if (param) {
		end->qpn = param->qp_num & 0xffffff;
		end->srq = param->srq != 0;
	}
	end->flow_control = param && param->flow_control;
	/* three bits each in the messages */
	end->retry_count = param ? min_u8(param->retry_count, 7) : 7;
	end->rnr_retry_count = param ? min_u8(param->rnr_retry_count, 7) : 7;
}

static uint8_t ack_timeout(const struct cma_id *id)
{
	uint8_t delay = id->dev->ack_delay, t = CMA_PACKET_LIFE + 1;

	if (id->ack_timeout_set)
		return id->ack_timeout;
	/* 12.7.34: both ways and the peer's delay, to the next power of two */
	if (delay > t)
		t = (uint8_t)(delay + 1);
	else if (delay + 1 >= t)
		t++;
	return t;
}

/* Messages for us are received at our address, and at the peer's if that is on
 * this host: somebody has to say that nobody listens there. */
static int bind_both(struct cma_id *id)
{
	uint32_t ifindex = netdev_ifindex(&id->path.dgid);
	int err = shca_cm_bind_path(cma_engine(), &id->path);

	if (!err && ifindex)
		shca_cm_bind_peer(cma_engine(), &id->path.dgid, ifindex);
	return err;
}

/* Active side */

static int connect_conn(struct cma_id *id, const struct rdma_conn_param *param)
{
	uint8_t data[CM_REQ_DATA];
	struct cm *cm;
	int err;

	err = request_data(id, param, data, sizeof(data));
	if (err)
		return err;
	set_local(id, param);
	id->local.responder_resources =
		param && param->responder_resources != RDMA_MAX_RESP_RES
			? param->responder_resources
			: id->dev->max_responder_resources;
	id->local.initiator_depth =
		param && param->initiator_depth != RDMA_MAX_INIT_DEPTH
			? param->initiator_depth
			: id->dev->max_initiator_depth;
	id->local.ack_timeout = ack_timeout(id);
	id->local.mtu = id->path_rec.mtu;
	cm = cma_lock();
	err = cm_connect(
		cm, &id->conn,
		cma_service_id(id, cma_port(&id->id.route.addr.dst_addr)),
		&id->path, &id->local, data, sizeof(data), id, clock_ns());
	if (!err)
		id->state = CMA_CONNECT;
	cma_unlock();
	return err;
}

static int connect_ud(struct cma_id *id, const struct rdma_conn_param *param)
{
	uint8_t data[CM_SIDR_REQ_DATA];
	struct cm *cm;
	int err;

	err = request_data(id, param, data, sizeof(data));
	if (err)
		return err;
	cm = cma_lock();
	err = cm_sidr_request(
		cm, &id->conn,
		cma_service_id(id, cma_port(&id->id.route.addr.dst_addr)),
		&id->path, ROCE_PKEY_DEFAULT, data, sizeof(data), id,
		clock_ns());
	if (!err)
		id->state = CMA_CONNECT;
	cma_unlock();
	return err;
}

int rdma_connect(struct rdma_cm_id *ib, struct rdma_conn_param *param)
{
	struct cma_id *id = to_id(ib);
	int err;

	if (engine_dead(cma_engine()))
		return cma_ret(-EIO);
	if (id->state != CMA_ROUTE_RESOLVED ||
	    roce_gid_is_multicast(&id->path.dgid))
		return cma_ret(-EINVAL);
	err = check_param(id->dev, param);
	if (!err)
		err = bind_both(id);
	if (err)
		return cma_ret(err);
	err = ib->qp_type == IBV_QPT_UD ? connect_ud(id, param)
					: connect_conn(id, param);
	return err ? cma_ret(err) : cma_complete(id);
}

void cma_established(struct cma_id *id, struct rdma_cm_event *ev)
{
	struct ibv_qp *qp = cma_qp_get(id);
	struct cm *cm;
	int err;

	if (!qp)
		return;
	err = cma_qp_ready(id, qp, RDMA_MAX_RESP_RES, RDMA_MAX_INIT_DEPTH);
	cma_qp_put(qp);
	cm = cma_lock();
	if (id->conn && !err)
		err = cm_rtu(cm, id->conn, NULL, 0, clock_ns());
	else if (id->conn)
		cm_reject(cm, id->conn, CM_REJ_CONSUMER, NULL, 0, NULL, 0,
			  clock_ns());
	cma_unlock();
	if (err) {
		cma_qp_error(id);
		ev->event = RDMA_CM_EVENT_CONNECT_ERROR;
		ev->status = err;
		return;
	}
	ev->event = RDMA_CM_EVENT_ESTABLISHED;
}

int rdma_establish(struct rdma_cm_id *ib)
{
	struct cma_id *id = to_id(ib);
	struct cm *cm;
	int err = -EINVAL;

	if (engine_dead(cma_engine()))
		return cma_ret(-EIO);
	/* with a QP that happens when the event is fetched */
	if (ib->qp)
		return cma_ret(-EINVAL);
	cm = cma_lock();
	if (id->conn)
		err = cm_rtu(cm, id->conn, NULL, 0, clock_ns());
	cma_unlock();
	return cma_ret(err);
}

/* Passive side */

static int listen_start(struct cma_id *id)
{
	struct sockaddr *addr = &id->id.route.addr.src_addr;
	bool any = cma_addr_any(addr);
	union ibv_gid gid;
	struct cm *cm;
	int n, err;

	if (!any) {
		err = shca_cm_bind(cma_engine(), &id->via.gid, id->via.ifindex);
	} else {
		struct cma_dev *dev = cma_devices(&n);

		err = -EADDRNOTAVAIL;
		for (int i = 0; i < n; i++) {
			int e = shca_device_bind(to_ctx(dev[i].verbs)->dev,
						 cma_engine());

			/* all of them, or those that were bound before */
			if (e) {
				while (i--)
					shca_device_unbind(
						to_ctx(dev[i].verbs)->dev,
						cma_engine());
				return e;
			}
			err = 0;
		}
	}
	if (err)
		return err;
	id->bound_all = any;
	cma_addr_gid(addr, &gid);
	cm = cma_lock();
	err = cm_listen(cm, &id->listener, cma_service_id(id, id->port),
			any ? NULL : &gid, cma_families(id), id);
	if (!err)
		id->state = CMA_LISTEN;
	cma_unlock();
	if (err)
		cma_listen_stop(id);
	return err;
}

void cma_listen_stop(struct cma_id *id)
{
	struct cma_dev *dev;
	int n;

	if (!id->bound_all)
		return;
	dev = cma_devices(&n);
	for (int i = 0; i < n; i++)
		shca_device_unbind(to_ctx(dev[i].verbs)->dev, cma_engine());
	id->bound_all = false;
}

int rdma_listen(struct rdma_cm_id *ib, int backlog)
{
	struct sockaddr_in any = { .sin_family = AF_INET };
	struct cma_id *id = to_id(ib);
	int err = 0;

	if (engine_dead(cma_engine()))
		return cma_ret(-EIO);
	if (id->state == CMA_IDLE)
		err = cma_bind(id, (struct sockaddr *)&any);
	if (!err && id->state != CMA_ADDR_BOUND)
		err = -EINVAL;
	if (!err)
		err = cma_port_listen(id);
	if (!err) {
		id->backlog = backlog > 0 && backlog < CMA_MAX_BACKLOG
				      ? backlog
				      : CMA_MAX_BACKLOG;
		err = listen_start(id);
	}
	return cma_ret(err);
}

/* The identifier of a request that has come in. */
static struct cma_id *request_id(struct cma_id *listener,
				 const struct cm_event *cme, uint16_t port)
{
	enum ibv_qp_type type = cme->peer.qp_type;
	struct netdev_gid via;
	struct cma_dev *dev = cma_dev_find(&cme->path->sgid, &via);
	struct cma_id *id;

	if (!dev)
		return NULL;
	if (cme->type == CM_EV_SIDR_REQ)
		type = IBV_QPT_UD;
	else if ((int)type == IBV_QPT_XRC_SEND)
		type = IBV_QPT_XRC_RECV;
	id = cma_id_new(listener->id.ps, type, listener->id.context);
	if (!id)
		return NULL;
	id->passive = true;
	id->state = CMA_CONNECT;
	id->conn = cme->conn;
	id->peer = cme->peer;
	id->path = *cme->path;
	id->tos_set = listener->tos_set;
	id->tos = listener->tos;
	cma_set_dev(id, dev, &via);
	cma_gid_addr(&cme->path->sgid, via.ifindex, listener->port,
		     &id->id.route.addr.src_storage);
	cma_gid_addr(&cme->path->dgid, via.ifindex, port,
		     &id->id.route.addr.dst_storage);
	cma_set_path(id, &cme->path->dgid);
	if (cme->type == CM_EV_REQ)
		id->path_rec.mtu = cme->peer.mtu;
	id->id.route.path_rec = &id->path_rec;
	id->id.route.num_paths = 1;
	cm_conn_set_user(cme->conn, id);
	return id;
}

/* 0 if the header says what the packet says, and where the peer's port is. */
static int check_header(const struct cm_event *cme, uint16_t *port)
{
	uint8_t src[16], dst[16];
	struct ipcm_hdr h;

	if (ipcm_decode(&h, cme->data))
		return -EINVAL;
	ipcm_addr(src, &cme->path->dgid);
	ipcm_addr(dst, &cme->path->sgid);
	if ((h.ipv == 4) != roce_gid_is_v4(&cme->path->dgid) ||
	    memcmp(src, h.src, 16) || memcmp(dst, h.dst, 16))
		return -EINVAL;
	*port = h.port;
	return 0;
}

static void put_data(struct cma_event *ev, const uint8_t *data, size_t len)
{
	if (!len)
		return;
	memcpy(ev->data, data, len);
	/* at the same place for both kinds */
	ev->ev.param.conn.private_data = ev->data;
	ev->ev.param.conn.private_data_len = (uint8_t)len;
}

static void put_conn(struct cma_event *ev, const struct cm_end *peer)
{
	struct rdma_conn_param *p = &ev->ev.param.conn;

	p->responder_resources = peer->initiator_depth;
	p->initiator_depth = peer->responder_resources;
	p->flow_control = peer->flow_control;
	p->retry_count = peer->retry_count;
	p->rnr_retry_count = peer->rnr_retry_count;
	p->srq = peer->srq;
	p->qp_num = peer->qpn;
}

static bool type_fits(enum ibv_qp_type listener, const struct cm_event *cme)
{
	if (cme->type == CM_EV_SIDR_REQ)
		return listener == IBV_QPT_UD;
	if ((int)cme->peer.qp_type == IBV_QPT_XRC_SEND)
		return (int)listener == IBV_QPT_XRC_RECV;
	return listener == cme->peer.qp_type;
}

static int on_request(struct cma_id *listener, const struct cm_event *cme)
{
	bool ud = cme->type == CM_EV_SIDR_REQ;
	struct cma_event *ev;
	struct cma_id *id;
	uint16_t port;

	if (!type_fits(listener->id.qp_type, cme))
		return ud ? (int)CM_SIDR_UNSUPPORTED
			  : (int)CM_REJ_INVALID_TRANSPORT_TYPE;
	if (check_header(cme, &port))
		return ud ? (int)CM_SIDR_REJECTED : (int)CM_REJ_CONSUMER;
	if (listener->backlog <= 0 || !listener->id.channel)
		return -EAGAIN;
	id = request_id(listener, cme, port);
	if (!id)
		return -EAGAIN;
	ev = cma_event_new(id, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
	if (!ev) {
		id->conn = NULL;
		cma_id_detach(id, NULL);
		cma_id_free(id);
		return -EAGAIN;
	}
	ev->owner = listener;
	ev->ev.listen_id = &listener->id;
	cma_id_set_channel(id, to_channel(listener->id.channel));
	put_data(ev, cme->data + IPCM_HDR_LEN, cme->len - IPCM_HDR_LEN);
	if (!ud)
		put_conn(ev, &cme->peer);
	listener->backlog--;
	cma_event_post(ev);
	return 0;
}

static int accept_conn(struct cma_id *id, const struct rdma_conn_param *param)
{
	uint8_t resources, depth;
	struct ibv_qp *qp;
	struct cm *cm;
	int err;

	/* what the peer asked for, as far as we have it */
	resources = min_u8(id->peer.initiator_depth,
			   id->dev->max_responder_resources);
	depth = min_u8(id->peer.responder_resources,
		       id->dev->max_initiator_depth);
	if (param && param->responder_resources != RDMA_MAX_RESP_RES)
		resources = param->responder_resources;
	if (param && param->initiator_depth != RDMA_MAX_INIT_DEPTH)
		depth = param->initiator_depth;
	if (param && param->private_data_len > CM_REP_DATA)
		return -EINVAL;
	set_local(id, param);
	if (!param)
		id->local.rnr_retry_count = id->peer.rnr_retry_count;
	id->local.responder_resources = resources;
	id->local.initiator_depth = depth;
	qp = cma_qp_get(id);
	if (qp) {
		err = cma_qp_ready(id, qp, resources, depth);
		cma_qp_put(qp);
		if (err)
			return err;
	}
	cm = cma_lock();
	err = -EINVAL;
	if (id->conn)
		err = cm_accept(cm, id->conn, &id->local,
				param ? param->private_data : NULL,
				param ? param->private_data_len : 0,
				clock_ns());
	cma_unlock();
	if (err)
		cma_qp_error(id);
	return err;
}

static int accept_ud(struct cma_id *id, const struct rdma_conn_param *param)
{
	uint32_t qpn = param ? param->qp_num : 0;
	struct cm *cm;
	int err = -EINVAL;

	if (id->id.qp)
		qpn = id->id.qp->qp_num;
	if (param && param->private_data_len > CM_SIDR_REP_DATA)
		return -EINVAL;
	cm = cma_lock();
	if (id->conn)
		err = cm_sidr_reply(
			cm, id->conn, CM_SIDR_OK, qpn, RDMA_UDP_QKEY,
			&id->local.ece, param ? param->private_data : NULL,
			param ? param->private_data_len : 0, clock_ns());
	cma_unlock();
	return err;
}

int rdma_accept(struct rdma_cm_id *ib, struct rdma_conn_param *param)
{
	struct cma_id *id = to_id(ib);
	int err;

	if (engine_dead(cma_engine()))
		return cma_ret(-EIO);
	if (!id->passive || id->state != CMA_CONNECT)
		return cma_ret(-EINVAL);
	err = check_param(id->dev, param);
	if (!err)
		err = shca_cm_bind(cma_engine(), &id->via.gid, id->via.ifindex);
	if (err)
		return cma_ret(err);
	if (ib->qp_type == IBV_QPT_UD)
		return cma_ret(accept_ud(id, param));
	err = accept_conn(id, param);
	return err ? cma_ret(err) : cma_complete(id);
}

static int reject(struct cma_id *id, const void *data, uint8_t len,
		  unsigned reason)
{
	struct cm *cm;
	int err = -EINVAL;

	if (engine_dead(cma_engine()))
		return -EIO;
	if (len && !data)
		return -EINVAL;
	cm = cma_lock();
	if (id->conn && id->id.qp_type == IBV_QPT_UD)
		err = cm_sidr_reply(cm, id->conn, CM_SIDR_REJECTED, 0, 0, NULL,
				    data, len, clock_ns());
	else if (id->conn)
		err = cm_reject(cm, id->conn, reason, NULL, 0, data, len,
				clock_ns());
	cma_unlock();
	return err;
}

int rdma_reject(struct rdma_cm_id *id, const void *private_data,
		uint8_t private_data_len)
{
	return cma_ret(reject(to_id(id), private_data, private_data_len,
			      CM_REJ_CONSUMER));
}

int rdma_reject_ece(struct rdma_cm_id *id, const void *private_data,
		    uint8_t private_data_len)
{
	return cma_ret(reject(to_id(id), private_data, private_data_len,
			      CM_REJ_VENDOR_OPTION));
}

/* Both sides */

int rdma_notify(struct rdma_cm_id *ib, enum ibv_event_type event)
{
	struct cma_id *id = to_id(ib);
	struct cm *cm;
	int err = -EINVAL;

	if (engine_dead(cma_engine()))
		return cma_ret(-EIO);
	if (event != IBV_EVENT_COMM_EST)
		return cma_ret(-EINVAL);
	cm = cma_lock();
	if (id->conn && ib->qp_type != IBV_QPT_UD)
		err = cm_establish(cm, id->conn, clock_ns());
	cma_unlock();
	return cma_ret(err);
}

int rdma_disconnect(struct rdma_cm_id *ib)
{
	struct cma_id *id = to_id(ib);
	struct cm *cm;
	bool wait;
	int err;

	if (engine_dead(cma_engine()))
		return cma_ret(-EIO);
	if (!id->conn || ib->qp_type == IBV_QPT_UD)
		return cma_ret(-EINVAL);
	err = cma_qp_error(id);
	if (err)
		return cma_ret(err);
	cm = cma_lock();
	/* a connection that has ended meanwhile is as good */
	err = cm_disconnect(cm, id->conn, NULL, 0, clock_ns());
	/* whether there is, or will be, an event for who waits for one */
	wait = !err || (ib->channel && to_channel(ib->channel)->head);
	cma_unlock();
	return wait ? cma_complete(id) : 0;
}

/* How long the end of a connection waits for a program to poll its CQs. */
#define SETTLE_NS 20000000ull

/* A connection that both ends have agreed upon is over, however. */
static void disconnected(struct cma_id *id, int status)
{
	struct cma_event *ev;

	if (id->state != CMA_CONNECT)
		return; /* said before */
	id->state = CMA_DISCONNECT;
	ev = cma_event_new(id, RDMA_CM_EVENT_DISCONNECTED, status);
	if (!ev)
		return;
	ev->settle_ns = clock_ns() + SETTLE_NS;
	cma_event_post(ev);
}

static void post(struct cma_id *id, enum rdma_cm_event_type type, int status,
		 const struct cm_event *cme)
{
	struct cma_event *ev = cma_event_new(id, type, status);

	if (!ev)
		return;
	switch (cme->type) {
	case CM_EV_REP:
		put_conn(ev, &cme->peer);
		put_data(ev, cme->data, cme->len);
		break;
	case CM_EV_REJ:
		put_data(ev, cme->data, cme->len);
		break;
	case CM_EV_SIDR_REP:
		if (!cme->status) {
			cma_ah_attr(id, &id->path, &ev->ev.param.ud.ah_attr);
			ev->ev.param.ud.qp_num = cme->peer.qpn;
			ev->ev.param.ud.qkey = cme->peer.qkey;
		}
		put_data(ev, cme->data, cme->len);
		break;
	default:
		break;
	}
	cma_event_post(ev);
}

int cma_on_cm_event(void *arg, const struct cm_event *cme)
{
	struct cma_id *id = cme->user;

	(void)arg;
	switch (cme->type) {
	case CM_EV_REQ:
	case CM_EV_SIDR_REQ:
		return on_request(id, cme);
	case CM_EV_REP:
		id->peer = cme->peer;
		post(id, RDMA_CM_EVENT_CONNECT_RESPONSE, 0, cme);
		break;
	case CM_EV_ESTABLISHED:
		post(id, RDMA_CM_EVENT_ESTABLISHED, 0, cme);
		break;
	case CM_EV_REJ:
		post(id, RDMA_CM_EVENT_REJECTED, cme->status, cme);
		break;
	case CM_EV_UNREACHABLE:
		post(id, RDMA_CM_EVENT_UNREACHABLE, cme->status, cme);
		break;
	case CM_EV_DREQ:
		disconnected(id, 0);
		break;
	case CM_EV_DREP:
		disconnected(id, cme->status);
		break;
	case CM_EV_TIMEWAIT_EXIT:
		post(id, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0, cme);
		break;
	case CM_EV_SIDR_REP:
		id->peer = cme->peer;
		post(id,
		     cme->status ? RDMA_CM_EVENT_UNREACHABLE
				 : RDMA_CM_EVENT_ESTABLISHED,
		     cme->status, cme);
		break;
	}
	return 0;
}

/* Attributes of QPs */

static int attr_init(struct cma_id *id, struct ibv_qp_attr *attr, int *mask)
{
	*mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
	attr->pkey_index = 0;
	attr->port_num = CMA_PORT_NUM;
	if (id->id.qp_type == IBV_QPT_UD) {
		attr->qkey = RDMA_UDP_QKEY;
		*mask |= IBV_QP_QKEY;
		return 0;
	}
	attr->qp_access_flags = 0;
	if (id->conn) {
		attr->qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
		if (id->local.responder_resources)
			attr->qp_access_flags |= IBV_ACCESS_REMOTE_READ |
						 IBV_ACCESS_REMOTE_ATOMIC;
	}
	*mask |= IBV_QP_ACCESS_FLAGS;
	return 0;
}

/* What both ends may have outstanding, after all that was said. */
static uint8_t final_resources(const struct cma_id *id)
{
	return min_u8(id->passive ? id->local.responder_resources
				  : id->peer.initiator_depth,
		      id->dev->max_responder_resources);
}

static uint8_t final_depth(const struct cma_id *id)
{
	return min_u8(id->passive ? id->local.initiator_depth
				  : id->peer.responder_resources,
		      id->dev->max_initiator_depth);
}

static int attr_rtr(struct cma_id *id, struct ibv_qp_attr *attr, int *mask)
{
	if (!id->conn)
		return -EINVAL;
	*mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
		IBV_QP_RQ_PSN;
	cma_ah_attr(id, &id->path, &attr->ah_attr);
	attr->path_mtu = (enum ibv_mtu)id->path_rec.mtu;
	attr->dest_qp_num = id->peer.qpn;
	/* The PSN in a REQ or REP is the one its sender expects (12.7.31). */
	attr->rq_psn = id->local.psn;
	if (id->id.qp_type == IBV_QPT_RC ||
	    (int)id->id.qp_type == IBV_QPT_XRC_RECV) {
		*mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
		attr->max_dest_rd_atomic = final_resources(id);
		attr->min_rnr_timer = 0;
	}
	return 0;
}

static int attr_rts(struct cma_id *id, struct ibv_qp_attr *attr, int *mask)
{
	if (!id->conn)
		return -EINVAL;
	*mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	attr->sq_psn = id->peer.psn;
	switch ((int)id->id.qp_type) {
	case IBV_QPT_RC:
	case IBV_QPT_XRC_SEND:
		*mask |= IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			 IBV_QP_MAX_QP_RD_ATOMIC;
		attr->retry_cnt = id->passive ? id->peer.retry_count
					      : id->local.retry_count;
		attr->rnr_retry = id->peer.rnr_retry_count;
		attr->max_rd_atomic = final_depth(id);
		/* fall through */
	case IBV_QPT_XRC_RECV:
		*mask |= IBV_QP_TIMEOUT;
		attr->timeout = id->passive && !id->ack_timeout_set
					? id->peer.ack_timeout
					: ack_timeout(id);
		break;
	default:
		break;
	}
	return 0;
}

int cma_qp_attr(struct cma_id *id, struct ibv_qp_attr *attr, int *mask)
{
	switch (attr->qp_state) {
	case IBV_QPS_INIT:
		return attr_init(id, attr, mask);
	case IBV_QPS_RTR:
		if (id->id.qp_type == IBV_QPT_UD) {
			*mask = IBV_QP_STATE;
			return 0;
		}
		return attr_rtr(id, attr, mask);
	case IBV_QPS_RTS:
		if (id->id.qp_type == IBV_QPT_UD) {
			*mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
			attr->sq_psn = 0;
			return 0;
		}
		return attr_rts(id, attr, mask);
	default:
		return -EINVAL;
	}
}

int rdma_init_qp_attr(struct rdma_cm_id *ib, struct ibv_qp_attr *attr,
		      int *mask)
{
	if (engine_dead(cma_engine()))
		return cma_ret(-EIO);
	if (!attr || !mask || !to_id(ib)->dev)
		return cma_ret(-EINVAL);
	return cma_ret(cma_qp_attr(to_id(ib), attr, mask));
}

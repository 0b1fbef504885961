/*
 * connect.c - connections and datagram services of identifiers: what programs
 * ask for
 *
 * In front of the private data of a request are the addresses of both ends as
 * the sockets API knows them (annex A11). They must be those of the packet. The
 * peer's answer arrives in cm_event.c.
 */
#include "cma.h"

#include "base/bytes.h"

#include <errno.h>
#include <string.h>

int cma_too_long(size_t len, size_t max)
{
	return why(-EINVAL,
		   "%zu bytes of private data: the message has room for %zu "
		   "(and private_data must not be NULL)",
		   len, max);
}

/* The private data of a request: addresses, then the program's. */
static int request_data(struct cma_id *id, const struct rdma_conn_param *param,
			uint8_t *data, size_t max)
{
	struct ipcm_hdr h = {
		.ipv = roce_gid_is_v4(&id->path.dgid) ? 4 : 6,
		.port = cma_port(&id->id.route.addr.src_addr),
	};

	cma_ipcm_addr(h.src, &id->path.sgid);
	cma_ipcm_addr(h.dst, &id->path.dgid);
	memset(data, 0, max);
	ipcm_encode(&h, data);
	if (!param || !param->private_data_len)
		return 0;
	if (!param->private_data ||
	    param->private_data_len > max - IPCM_HDR_LEN)
		return cma_too_long(param->private_data_len,
				    max - IPCM_HDR_LEN);
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
		return why(-EINVAL,
			   "responder_resources is %u; the device has at most "
			   "%u (max_qp_rd_atom), RDMA_MAX_RESP_RES takes those",
			   param->responder_resources,
			   dev->max_responder_resources);
	if (param->initiator_depth != RDMA_MAX_INIT_DEPTH &&
	    param->initiator_depth > dev->max_initiator_depth)
		return why(-EINVAL,
			   "initiator_depth is %u; the device has at most %u "
			   "(max_qp_init_rd_atom), RDMA_MAX_INIT_DEPTH takes "
			   "those",
			   param->initiator_depth, dev->max_initiator_depth);
	if (param->private_data_len && !param->private_data)
		return why(-EINVAL,
			   "private_data_len is %u, but private_data is NULL",
			   param->private_data_len);
	return 0;
}

/* The parameters of our end, as the program wants them. */
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
	end->qpn = engine_qpn_wire(cma_engine(), end->qpn);
	end->flow_control = param && param->flow_control;
	/* three bits each in the messages */
	end->retry_count = param ? min_u8(param->retry_count, 7) : 7;
	end->rnr_retry_count = param ? min_u8(param->rnr_retry_count, 7) : 7;
}

/*
 * Binds our address, and the peer's if that is on this host: a request that
 * finds no listener there must be refused.
 */
static int bind_both(struct cma_id *id)
{
	uint32_t ifindex = netdev_ifindex(&id->path.dgid);
	int err = cma_bind_path(id);

	if (!err && ifindex)
		shca_cm_bind_peer(cma_engine(), &id->path.dgid, ifindex);
	return err;
}

/* Active side */

void cma_connects(struct cma_id *id)
{
	id->state = CMA_CONNECT;
	id->since_ns = clock_ns();
	id->rejected = 0;
}

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
		param && param->responder_resources != RDMA_MAX_RESP_RES ?
			param->responder_resources :
			id->dev->max_responder_resources;
	id->local.initiator_depth =
		param && param->initiator_depth != RDMA_MAX_INIT_DEPTH ?
			param->initiator_depth :
			id->dev->max_initiator_depth;
	id->local.ack_timeout = cma_ack_timeout(id);
	id->local.mtu = id->path_rec.mtu;
	cm = cma_lock();
	err = cm_connect(
		cm, &id->conn,
		cma_service_id(id, cma_port(&id->id.route.addr.dst_addr)),
		&id->path, &id->local, data, sizeof(data), id, clock_ns());
	if (!err)
		cma_connects(id);
	if (!err && id->shares_port)
		cm_hurry(cm, id->conn, clock_ns());
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
		cma_connects(id);
	cma_unlock();
	return err;
}

static int roce_connect(struct cma_id *id, const struct rdma_conn_param *param)
{
	int err = bind_both(id);

	if (err)
		return err;
	return id->id.qp_type == IBV_QPT_UD ? connect_ud(id, param) :
					      connect_conn(id, param);
}

int rdma_connect(struct rdma_cm_id *ib, struct rdma_conn_param *param)
{
	struct cma_id *id = to_id(ib);
	int err;

	if (engine_dead(cma_engine()))
		return cma_ret(-EIO);
	if (id->state != CMA_ROUTE_RESOLVED)
		return cma_ret(cma_wrong_state(
			id, "rdma_resolve_addr() and rdma_resolve_route() "
			    "first, and their events"));
	if (roce_gid_is_multicast(&id->path.dgid))
		return cma_ret(why(-EINVAL, "the destination is a multicast "
					    "group: rdma_join_multicast()"));
	err = check_param(id->dev, param) ?: id->dev->ops->connect(id, param);
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

static int roce_establish(struct cma_id *id)
{
	struct cm *cm = cma_lock();
	int err = -EINVAL;

	if (id->conn)
		err = cm_rtu(cm, id->conn, NULL, 0, clock_ns());
	cma_unlock();
	return err ? cma_not_connected(id) : 0;
}

int rdma_establish(struct rdma_cm_id *ib)
{
	struct cma_id *id = to_id(ib);

	if (engine_dead(cma_engine()))
		return cma_ret(-EIO);
	/* with a QP this happens when the event is fetched */
	if (ib->qp)
		return cma_ret(why(-EINVAL,
				   "an identifier with a QP (rdma_create_qp) "
				   "is established when the event is fetched; "
				   "the call is for QPs of the program's own"));
	return cma_ret(id->dev ? id->dev->ops->establish(id) :
				 cma_not_connected(id));
}

/* Passive side */

/* Receives at all addresses of all devices, or those that were bound before. */
static int bind_all(void)
{
	int n, err = -EADDRNOTAVAIL;
	struct cma_dev *dev = cma_devices(&n);

	for (int i = 0; i < n; i++) {
		if (dev[i].ops != &cma_roce)
			continue;
		err = shca_device_bind(to_ctx(dev[i].verbs)->dev, cma_engine());
		if (!err)
			continue;
		while (i--)
			if (dev[i].ops == &cma_roce)
				shca_device_unbind(to_ctx(dev[i].verbs)->dev,
						   cma_engine());
		return err;
	}
	return err;
}

/* Whether RoCE's messages are to be listened for. */
static bool may_roce(const struct cma_id *id)
{
	int n;
	const struct cma_dev *dev = cma_devices(&n);

	if (id->dev)
		return id->dev->ops == &cma_roce;
	for (int i = 0; i < n; i++)
		if (dev[i].ops == &cma_roce)
			return true;
	return false;
}

static int listen_start(struct cma_id *id)
{
	struct sockaddr *addr = &id->id.route.addr.src_addr;
	bool any = cma_addr_any(addr), roce = may_roce(id);
	union ibv_gid gid;
	struct cm *cm;
	int err = 0;

	if (roce)
		err = any ? bind_all() :
			    shca_cm_bind(cma_engine(), &id->via.gid,
					 id->via.ifindex);
	if (err)
		return err;
	id->bound_all = any && roce;
	cma_own_gid(id, &gid);
	cm = cma_lock();
	err = cma_iw_listen(id);
	if (err && roce && id->shares_port) {
		/* That port is nobody's wish. */
		WHY_REPORT("rdma_listen", err);
		err = 0;
	}
	if (!err && roce)
		err = cm_listen(cm, &id->listener, cma_service_id(id, id->port),
				any ? NULL : &gid, cma_families(id), id);
	id->since_ns = clock_ns();
	if (!err)
		id->state = CMA_LISTEN;
	else
		cma_iw_detach(id);
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
		if (dev[i].ops == &cma_roce)
			shca_device_unbind(to_ctx(dev[i].verbs)->dev,
					   cma_engine());
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
		err = cma_wrong_state(
			id, "rdma_bind_addr() must precede rdma_listen()");
	if (!err)
		err = cma_port_listen(id);
	if (!err) {
		id->backlog = backlog > 0 && backlog < CMA_MAX_BACKLOG ?
				      backlog :
				      CMA_MAX_BACKLOG;
		err = listen_start(id);
	}
	return cma_ret(err);
}

static int accept_conn(struct cma_id *id, const struct rdma_conn_param *param)
{
	uint8_t resources, depth;
	struct ibv_qp *qp;
	struct cm *cm;
	int err;

	/* what the peer asked for, within the limits of the device */
	resources = min_u8(id->peer.initiator_depth,
			   id->dev->max_responder_resources);
	depth = min_u8(id->peer.responder_resources,
		       id->dev->max_initiator_depth);
	if (param && param->responder_resources != RDMA_MAX_RESP_RES)
		resources = param->responder_resources;
	if (param && param->initiator_depth != RDMA_MAX_INIT_DEPTH)
		depth = param->initiator_depth;
	if (param && param->private_data_len > CM_REP_DATA)
		return cma_too_long(param->private_data_len, CM_REP_DATA);
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
	if (!err)
		return 0;
	cma_qp_error(id);
	return cma_not_connected(id);
}

static int accept_ud(struct cma_id *id, const struct rdma_conn_param *param)
{
	uint32_t qpn = param ? param->qp_num : 0;
	struct cm *cm;
	int err = -EINVAL;

	if (id->id.qp)
		qpn = id->id.qp->qp_num;
	if (param && param->private_data_len > CM_SIDR_REP_DATA)
		return cma_too_long(param->private_data_len, CM_SIDR_REP_DATA);
	cm = cma_lock();
	if (id->conn)
		err = cm_sidr_reply(
			cm, id->conn, CM_SIDR_OK,
			engine_qpn_wire(cma_engine(), qpn), cma_qkey(id),
			&id->local.ece, param ? param->private_data : NULL,
			param ? param->private_data_len : 0, clock_ns());
	cma_unlock();
	return err ? cma_not_connected(id) : 0;
}

static int roce_accept(struct cma_id *id, const struct rdma_conn_param *param)
{
	int err = shca_cm_bind(cma_engine(), &id->via.gid, id->via.ifindex);

	if (err)
		return err;
	return id->id.qp_type == IBV_QPT_UD ? accept_ud(id, param) :
					      accept_conn(id, param);
}

int rdma_accept(struct rdma_cm_id *ib, struct rdma_conn_param *param)
{
	struct cma_id *id = to_id(ib);
	int err;

	if (engine_dead(cma_engine()))
		return cma_ret(-EIO);
	if (!id->passive || id->state != CMA_CONNECT)
		return cma_ret(cma_wrong_state(
			id, "rdma_accept() is for the new identifier in the "
			    "event RDMA_CM_EVENT_CONNECT_REQUEST, once"));
	err = check_param(id->dev, param) ?: id->dev->ops->accept(id, param);
	if (err || ib->qp_type == IBV_QPT_UD)
		return cma_ret(err);
	return cma_complete(id);
}

static int roce_reject(struct cma_id *id, const void *data, uint8_t len,
		       unsigned reason)
{
	struct cm *cm = cma_lock();
	int err = -EINVAL;

	if (id->conn && id->id.qp_type == IBV_QPT_UD)
		err = cm_sidr_reply(cm, id->conn, CM_SIDR_REJECTED, 0, 0, NULL,
				    data, len, clock_ns());
	else if (id->conn)
		err = cm_reject(cm, id->conn, reason, NULL, 0, data, len,
				clock_ns());
	cma_unlock();
	return err ? cma_not_connected(id) : 0;
}

static int ib_reject(struct cma_id *id, const void *data, uint8_t len,
		     unsigned reason)
{
	if (engine_dead(cma_engine()))
		return -EIO;
	if (len && !data)
		return why(-EINVAL,
			   "private_data_len is %u, but private_data is NULL",
			   len);
	return id->dev ? id->dev->ops->reject(id, data, len, reason) :
			 cma_not_connected(id);
}

int rdma_reject(struct rdma_cm_id *id, const void *private_data,
		uint8_t private_data_len)
{
	return cma_ret(ib_reject(to_id(id), private_data, private_data_len,
				 CM_REJ_CONSUMER));
}

int rdma_reject_ece(struct rdma_cm_id *id, const void *private_data,
		    uint8_t private_data_len)
{
	return cma_ret(ib_reject(to_id(id), private_data, private_data_len,
				 CM_REJ_VENDOR_OPTION));
}

/* Both sides */

static int roce_notify(struct cma_id *id)
{
	struct cm *cm = cma_lock();
	int err = -EINVAL;

	if (id->conn && id->id.qp_type != IBV_QPT_UD)
		err = cm_establish(cm, id->conn, clock_ns());
	cma_unlock();
	return err && err != -EISCONN ? cma_not_connected(id) : err;
}

int rdma_notify(struct rdma_cm_id *ib, enum ibv_event_type event)
{
	struct cma_id *id = to_id(ib);

	if (engine_dead(cma_engine()))
		return cma_ret(-EIO);
	if (event != IBV_EVENT_COMM_EST)
		return cma_ret(why(-EINVAL, "event %u: only IBV_EVENT_COMM_EST",
				   (unsigned)event));
	return cma_ret(id->dev ? id->dev->ops->notify(id) :
				 cma_not_connected(id));
}

static int roce_disconnect(struct cma_id *id)
{
	struct cm *cm;
	int err = cma_qp_error(id);

	if (err)
		return err;
	cm = cma_lock();
	/* one that has ended meanwhile is no error */
	err = cm_disconnect(cm, id->conn, NULL, 0, clock_ns());
	/* whether there is, or will be, an event to wait for */
	err = !err || (id->id.channel && to_channel(id->id.channel)->head);
	cma_unlock();
	return err;
}

int rdma_disconnect(struct rdma_cm_id *ib)
{
	struct cma_id *id = to_id(ib);
	int err;

	if (engine_dead(cma_engine()))
		return cma_ret(-EIO);
	if ((!id->conn && !id->iw) || ib->qp_type == IBV_QPT_UD)
		return cma_ret(
			cma_wrong_state(id, "there is no connection to end "
					    "(datagram services have none)"));
	err = id->dev->ops->disconnect(id);
	if (err < 0)
		return cma_ret(err);
	return err ? cma_complete(id) : 0;
}

const struct cma_ops cma_roce = {
	.resolved = cma_bind_path, /* else no answer would arrive */
	.connect = roce_connect,
	.accept = roce_accept,
	.reject = roce_reject,
	.disconnect = roce_disconnect,
	.notify = roce_notify,
	.establish = roce_establish,
	.attr = cma_roce_attr,
};

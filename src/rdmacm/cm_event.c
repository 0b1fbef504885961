/*
 * cm_event.c - events of the connection manager become events of identifiers
 *
 * The identifier is the user of a connection (src/cm): its events come to
 * cma_on_cm_event() with the lock held and become events of librdmacm, most of
 * them as they are. A request makes a new identifier, which the program gets to
 * know with the event; until then it waits in the channel. A listener has at
 * most as many of those as its backlog: further requests are dropped in
 * silence, and the peer repeats them.
 */
#include "cma.h"

#include <errno.h>
#include <string.h>

void cma_ipcm_addr(uint8_t to[16], const union ibv_gid *gid)
{
	memcpy(to, gid->raw, 16);
	if (roce_gid_is_v4(gid))
		memset(to, 0, 12);
}

/* A new identifier for a request. */
static struct cma_id *request_id(struct cma_id *listener,
				 const struct cm_event *cme, uint16_t port)
{
	enum ibv_qp_type type = cme->peer.qp_type;
	struct netdev_gid via;
	const bool ib = cma_src(listener)->sa_family == AF_IB;
	struct cma_dev *dev = ib ? cma_infiniband(&cme->path->sgid, &via) :
				   cma_dev_find(&cme->path->sgid, false, &via);
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
	id->since_ns = clock_ns();
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
	if (ib) {
		cma_sib_make(id->id.ps, &id->id.route.addr.src_storage);
		cma_sib_make(id->id.ps, &id->id.route.addr.dst_storage);
	}
	cma_set_path(id, &cme->path->dgid);
	if (cme->type == CM_EV_REQ)
		id->path_rec.mtu = cme->peer.mtu;
	id->id.route.path_rec = &id->path_rec;
	id->id.route.num_paths = 1;
	cm_conn_set_user(cme->conn, id);
	return id;
}

/* 0 if the addresses in the header are the packet's; *port is the peer's. */
static int check_header(const struct cm_event *cme, uint16_t *port)
{
	uint8_t src[16], dst[16];
	struct ipcm_hdr h;

	if (ipcm_decode(&h, cme->data))
		return -EINVAL;
	cma_ipcm_addr(src, &cme->path->dgid);
	cma_ipcm_addr(dst, &cme->path->sgid);
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
	/* param.ud has it at the same place */
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

	if (!type_fits(listener->id.qp_type, cme)) {
		cma_refused(listener, cme,
			    "it is for another type of QP than the listener");
		return ud ? (int)CM_SIDR_UNSUPPORTED :
			    (int)CM_REJ_INVALID_TRANSPORT_TYPE;
	}
	if (check_header(cme, &port)) {
		cma_refused(listener, cme,
			    "the addresses in its private data are not the "
			    "packet's (annex A11): address translation on the "
			    "way, or a peer without rdma_cm");
		return ud ? (int)CM_SIDR_REJECTED : (int)CM_REJ_CONSUMER;
	}
	if (listener->backlog <= 0 || !listener->id.channel) {
		cma_refused(listener, cme,
			    "as many as the backlog of rdma_listen() wait; the "
			    "peer will try again: call rdma_get_cm_event() "
			    "sooner, or listen with a larger backlog");
		return -EAGAIN;
	}
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
	listener->requests++;
	cma_event_post(ev);
	return 0;
}

/* How long the end of a connection waits for the program to poll its CQs. */
#define SETTLE_NS 20000000ull

/* An established connection is over, for whatever reason. */
void cma_disconnected(struct cma_id *id, int status)
{
	struct cma_event *ev;

	if (id->state != CMA_CONNECT)
		return; /* reported before */
	id->state = CMA_DISCONNECT;
	ev = cma_event_new(id, RDMA_CM_EVENT_DISCONNECTED, status);
	if (!ev)
		return;
	ev->settle_ns = clock_ns() + SETTLE_NS;
	cma_event_post(ev);
}

static void post_cm_event(struct cma_id *id, enum rdma_cm_event_type type,
			  int status, const struct cm_event *cme)
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
	cma_outcome(id, cme);
	switch (cme->type) {
	case CM_EV_REQ:
	case CM_EV_SIDR_REQ:
		return on_request(id, cme);
	case CM_EV_REP:
		id->peer = cme->peer;
		post_cm_event(id, RDMA_CM_EVENT_CONNECT_RESPONSE, 0, cme);
		break;
	case CM_EV_ESTABLISHED:
		post_cm_event(id, RDMA_CM_EVENT_ESTABLISHED, 0, cme);
		break;
	case CM_EV_REJ:
		id->rejected = cme->status;
		id->since_ns = clock_ns();
		post_cm_event(id, RDMA_CM_EVENT_REJECTED, cme->status, cme);
		break;
	case CM_EV_UNREACHABLE:
		id->rejected = cme->status;
		id->since_ns = clock_ns();
		post_cm_event(id, RDMA_CM_EVENT_UNREACHABLE, cme->status, cme);
		break;
	case CM_EV_DREQ:
		cma_disconnected(id, 0);
		break;
	case CM_EV_DREP:
		cma_disconnected(id, cme->status);
		break;
	case CM_EV_TIMEWAIT_EXIT:
		post_cm_event(id, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0, cme);
		break;
	case CM_EV_SIDR_REP:
		id->peer = cme->peer;
		post_cm_event(id,
			      cme->status ? RDMA_CM_EVENT_UNREACHABLE :
					    RDMA_CM_EVENT_ESTABLISHED,
			      cme->status, cme);
		break;
	}
	return 0;
}

/*
 * conn_rx.c - connections: what the peer says (12.9.5, 12.9.6)
 *
 * A message that comes again is answered again if it has been answered, else
 * with MRA if the user takes its time: so the side that misses the effect of a
 * lost message recovers it. A message that fits no connection of ours is
 * refused, where the specification asks for it, or dropped.
 */
#include "cm_internal.h"

#include <string.h>

/* A refusal of something that belongs to no connection of ours. */
static void refuse_message(struct cm *cm, const struct cm_in *in,
			   uint32_t remote_id, enum cm_message what,
			   unsigned reason, const void *ari, size_t ari_len)
{
	struct mad m = { .attr_id = MAD_CM_REJ, .tid = in->m->tid };
	struct roce_path path;

	m.rej.remote_comm_id = remote_id;
	m.rej.msg_rejected = (uint8_t)what;
	m.rej.reason = (uint16_t)reason;
	m.rej.ari_len = (uint8_t)ari_len;
	if (ari_len)
		memcpy(m.rej.ari, ari, ari_len);
	cm_reverse_path(&path, in, 0, 0, 0);
	cm_send(cm, &path, &m);
}

static void refuse_req(struct cm *cm, const struct cm_in *in, unsigned reason)
{
	bool gid = reason == CM_REJ_INVALID_GID; /* with the right one */

	refuse_message(cm, in, in->m->req.local_comm_id, CM_MSG_REQ, reason,
		       gid ? in->dgid : NULL, gid ? sizeof(*in->dgid) : 0);
}

/* Sent each time the peer repeats itself, and never kept. */
static void send_mra(struct cm *cm, struct cm_conn *c, enum cm_message what)
{
	struct mad m = { .attr_id = MAD_CM_MRA, .tid = c->tid };

	cm_conn_ids(&m.mra.local_comm_id, &m.mra.remote_comm_id, c);
	m.mra.msg_mraed = (uint8_t)what;
	m.mra.service_timeout = CM_MRA_TIMEOUT;
	c->mra = true;
	cm_send(cm, &c->path, &m);
}

/* The same REQ once more. */
static void duplicate_req(struct cm *cm, struct cm_conn *c,
			  const struct cm_in *in)
{
	cm->stats.duplicates++;
	switch (c->state) {
	case CM_REQ_RCVD:
	case CM_MRA_REQ_SENT:
		c->state = CM_MRA_REQ_SENT;
		send_mra(cm, c, CM_MSG_REQ);
		break;
	case CM_REP_SENT:
	case CM_MRA_REP_RCVD:
		cm_conn_resend(cm, c);
		break;
	case CM_TIMEWAIT:
		if (c->quiet) /* it ended with a REJ */
			cm_conn_resend(cm, c);
		else
			refuse_req(cm, in, CM_REJ_STALE_CONN);
		break;
	default:
		break;
	}
}

static void conn_rejected(struct cm *cm, struct cm_conn *c, unsigned reason,
			  const struct cm_rej *rej)
{
	struct cm_event ev = {
		.type = CM_EV_REJ,
		.conn = c,
		.status = (int)reason,
	};

	if (rej) {
		ev.data = rej->private_data;
		ev.len = CM_REJ_DATA;
		ev.ari = rej->ari;
		ev.ari_len =
			rej->ari_len < CM_REJ_ARI ? rej->ari_len : CM_REJ_ARI;
	}
	cm_emit(cm, &ev);
	cm_conn_end(cm, c);
}

/*
 * Whether the peer's QP belongs to a connection that is still open here. If so,
 * the peer has forgotten it, and it ends.
 */
static bool qp_is_stale(struct cm *cm, uint32_t qpn, const struct cm_in *in)
{
	struct cm_conn *c = qpn ? cm_conn_by_qpn(cm, qpn, in->sgid) : NULL;

	if (!c)
		return false;
	switch (c->state) {
	case CM_ESTABLISHED:
		cm_send_dreq(cm, c, NULL, 0, in->now_ns);
		return true;
	case CM_DREQ_SENT:
		/* as good as an answer */
		cm_timewait(cm, c, in->now_ns);
		cm_emit(cm,
			&(struct cm_event){ .type = CM_EV_DREP, .conn = c });
		return false;
	default:
		conn_rejected(cm, c, CM_REJ_STALE_CONN, NULL);
		return true;
	}
}

static unsigned check_req(const struct cm_req *req, const struct cm_in *in,
			  enum ibv_qp_type *type)
{
	switch ((enum cm_transport)req->transport) {
	case CM_TRANSPORT_RC:
		*type = IBV_QPT_RC;
		break;
	case CM_TRANSPORT_UC:
		*type = IBV_QPT_UC;
		break;
	case CM_TRANSPORT_EXT:
		if (req->ext_transport == CM_EXT_XRC) {
			*type = IBV_QPT_XRC_SEND;
			break;
		}
		return CM_REJ_INVALID_TRANSPORT_TYPE;
	case CM_TRANSPORT_RD:
		return CM_REJ_INVALID_TRANSPORT_TYPE;
	}
	/* A packet's address and GID are the same thing in RoCEv2. */
	if (memcmp(req->local_gid, in->sgid, 16) ||
	    memcmp(req->remote_gid, in->dgid, 16))
		return CM_REJ_INVALID_GID;
	if (req->mtu < IBV_MTU_256 || req->mtu > IBV_MTU_4096)
		return CM_REJ_INVALID_MTU;
	if ((req->pkey & 0x7fff) != 0x7fff)
		return CM_REJ_UNSUPPORTED;
	return 0;
}

static void rx_req(struct cm *cm, const struct cm_in *in)
{
	const struct cm_req *req = &in->m->req;
	struct cm_event ev = { .type = CM_EV_REQ };
	struct cm_listener *l;
	struct roce_path path;
	struct cm_conn *c;
	int verdict;

	c = cm_conn_by_remote(cm, req->local_comm_id, false, in->sgid);
	if (c) {
		duplicate_req(cm, c, in);
		return;
	}
	verdict = (int)check_req(req, in, &ev.peer.qp_type);
	if (verdict) {
		refuse_req(cm, in, (unsigned)verdict);
		return;
	}
	if (qp_is_stale(cm, req->local_qpn, in)) {
		refuse_req(cm, in, CM_REJ_STALE_CONN);
		return;
	}
	l = cm_listener_find(cm, req->service_id, in->dgid);
	if (!l) {
		refuse_req(cm, in, CM_REJ_INVALID_SERVICE_ID);
		return;
	}

	cm_reverse_path(&path, in, req->traffic_class, req->hop_limit,
			req->flow_label);
	c = cm_conn_new(cm, &path, NULL);
	if (!c)
		return; /* the peer will repeat it */
	c->state = CM_REQ_RCVD;
	c->service_id = req->service_id;
	cm_conn_place(cm, c, req->local_comm_id);
	c->remote_qpn = c->wire_qpn = req->local_qpn;
	c->qp_type = ev.peer.qp_type == IBV_QPT_XRC_SEND ? IBV_QPT_XRC_RECV :
							   ev.peer.qp_type;
	c->tid = in->m->tid;
	c->ack_timeout = req->ack_timeout;
	/* the peer says how long it may take to answer our REP */
	c->max_patience_ns = cm_timeout_ns(req->local_cm_timeout);
	if (c->max_patience_ns < cm->cfg.first_retry_ns)
		c->max_patience_ns = cm->cfg.first_retry_ns;
	c->max_retries = req->max_cm_retries;
	if (cm_conn_add_remote(cm, c) ||
	    (c->remote_qpn && cm_conn_add_qpn(cm, c))) {
		cm_conn_free(cm, c);
		return;
	}

	ev.conn = c;
	ev.user = l->user;
	ev.service_id = req->service_id;
	ev.path = &c->path;
	ev.data = req->private_data;
	ev.len = CM_REQ_DATA;
	ev.peer.qpn = req->local_qpn;
	ev.peer.psn = req->starting_psn;
	ev.peer.qkey = req->local_qkey;
	ev.peer.responder_resources = req->responder_resources;
	ev.peer.initiator_depth = req->initiator_depth;
	ev.peer.retry_count = req->retry_count;
	ev.peer.rnr_retry_count = req->rnr_retry_count;
	ev.peer.flow_control = req->flow_control;
	ev.peer.srq = req->srq;
	ev.peer.ece.vendor_id = req->vendor_id;
	ev.peer.ece.options = in->m->attr_mod;
	ev.peer.ca_guid = req->local_ca_guid;
	ev.peer.ack_timeout = req->ack_timeout;
	ev.peer.mtu = req->mtu;
	ev.peer.pkey = req->pkey;
	verdict = cm_emit(cm, &ev);
	if (verdict > 0)
		refuse_req(cm, in, (unsigned)verdict);
	if (verdict)
		cm_conn_free(cm, c);
}

/*
 * The connection that a message names by both IDs, if the message comes from
 * that connection's peer.
 */
static struct cm_conn *find_conn(struct cm *cm, const struct cm_in *in,
				 uint32_t local_id, uint32_t remote_id)
{
	struct cm_conn *c = cm_conn_by_id(cm, local_id, in->sgid);

	if (!c || c->sidr || c->remote_id != remote_id)
		return NULL;
	return c;
}

static void duplicate_rep(struct cm *cm, struct cm_conn *c)
{
	cm->stats.duplicates++;
	switch (c->state) {
	case CM_REP_RCVD:
	case CM_MRA_REP_SENT:
		c->state = CM_MRA_REP_SENT;
		send_mra(cm, c, CM_MSG_REP);
		break;
	case CM_ESTABLISHED:
		cm_conn_resend(cm, c); /* RTU */
		break;
	case CM_TIMEWAIT:
		if (c->quiet)
			cm_conn_resend(cm, c); /* REJ */
		break;
	default:
		break;
	}
}

static void rx_rep(struct cm *cm, const struct cm_in *in)
{
	const struct cm_rep *rep = &in->m->rep;
	struct cm_event ev = { .type = CM_EV_REP };
	struct cm_conn *c = cm_conn_by_id(cm, rep->remote_comm_id, in->sgid);
	uint32_t qpn;

	if (!c || c->sidr || !c->active || c->state == CM_IDLE) {
		refuse_message(cm, in, rep->local_comm_id, CM_MSG_REP,
			       CM_REJ_INVALID_COMM_ID, NULL, 0);
		return;
	}
	if (c->state != CM_REQ_SENT && c->state != CM_MRA_REQ_RCVD) {
		if (c->remote_id == rep->local_comm_id)
			duplicate_rep(cm, c);
		else
			cm->stats.dropped++;
		return;
	}
	qpn = c->qp_type == IBV_QPT_XRC_SEND ? rep->local_eecn : rep->local_qpn;
	cm_conn_place(cm, c, rep->local_comm_id);
	c->tid = in->m->tid;
	if (qp_is_stale(cm, qpn, in)) {
		c->state = CM_REP_RCVD;
		cm_send_rej(cm, c, CM_REJ_STALE_CONN, NULL, 0, NULL, 0);
		conn_rejected(cm, c, CM_REJ_STALE_CONN, NULL);
		return;
	}
	c->remote_qpn = c->wire_qpn = qpn;
	if (qpn && cm_conn_add_qpn(cm, c))
		return;
	c->state = CM_REP_RCVD;
	cm_conn_timer(cm, c, UINT64_MAX);

	ev.conn = c;
	ev.path = &c->path;
	ev.data = rep->private_data;
	ev.len = CM_REP_DATA;
	ev.peer.qp_type = c->qp_type;
	ev.peer.qpn = qpn;
	ev.peer.psn = rep->starting_psn;
	ev.peer.qkey = rep->local_qkey;
	ev.peer.responder_resources = rep->responder_resources;
	ev.peer.initiator_depth = rep->initiator_depth;
	ev.peer.rnr_retry_count = rep->rnr_retry_count;
	ev.peer.flow_control = rep->flow_control;
	ev.peer.srq = rep->srq;
	ev.peer.ece.vendor_id = (uint32_t)rep->vendor_id_high << 16 |
				(uint32_t)rep->vendor_id_mid << 8 |
				rep->vendor_id_low;
	ev.peer.ece.options = in->m->attr_mod;
	ev.peer.ca_guid = rep->local_ca_guid;
	ev.peer.target_ack_delay = rep->target_ack_delay;
	cm_emit(cm, &ev);
}

static void rx_rtu(struct cm *cm, const struct cm_in *in)
{
	const struct cm_rtu *rtu = &in->m->rtu;
	struct cm_conn *c =
		find_conn(cm, in, rtu->remote_comm_id, rtu->local_comm_id);

	if (c && (c->state == CM_REP_SENT || c->state == CM_MRA_REP_RCVD))
		cm_established(cm, c, rtu->private_data, CM_RTU_DATA);
	else
		cm->stats.dropped++;
}

static void rx_mra(struct cm *cm, const struct cm_in *in)
{
	const struct cm_mra *mra = &in->m->mra;
	struct cm_conn *c = cm_conn_by_id(cm, mra->remote_comm_id, in->sgid);

	if (!c || c->sidr)
		return;
	switch (c->state) {
	case CM_REQ_SENT:
	case CM_MRA_REQ_RCVD:
		if (mra->msg_mraed != CM_MSG_REQ)
			return;
		c->state = CM_MRA_REQ_RCVD;
		cm_conn_place(cm, c, mra->local_comm_id);
		break;
	case CM_REP_SENT:
	case CM_MRA_REP_RCVD:
		if (mra->msg_mraed != CM_MSG_REP ||
		    mra->local_comm_id != c->remote_id)
			return;
		c->state = CM_MRA_REP_RCVD;
		break;
	default:
		return;
	}
	/*
	 * a peer that asks for more time does not use up its retries; but not
	 * for ever
	 */
	if (c->mras < CM_MAX_MRAS) {
		c->mras++;
		c->retries = 0;
	}
	cm_conn_timer(cm, c, in->now_ns + cm_timeout_ns(mra->service_timeout));
}

static void rx_rej(struct cm *cm, const struct cm_in *in)
{
	const struct cm_rej *rej = &in->m->rej;
	struct cm_conn *c;

	/* a peer that gave up before our first answer has no ID of ours */
	if (!rej->remote_comm_id && rej->reason == CM_REJ_TIMEOUT)
		c = cm_conn_by_remote(cm, rej->local_comm_id, false, in->sgid);
	else
		c = cm_conn_by_id(cm, rej->remote_comm_id, in->sgid);
	if (!c || c->sidr)
		return;
	switch (c->state) {
	case CM_REQ_SENT:
	case CM_MRA_REQ_RCVD:
		break;
	case CM_REQ_RCVD:
	case CM_MRA_REQ_SENT:
	case CM_REP_SENT:
	case CM_MRA_REP_RCVD:
	case CM_REP_RCVD:
	case CM_MRA_REP_SENT:
	case CM_ESTABLISHED:
		/*
		 * A peer that does not know the connection refuses our message
		 * (INVALID_COMM_ID) without an ID of its own.
		 */
		if (rej->local_comm_id && rej->local_comm_id != c->remote_id)
			return;
		break;
	case CM_DREQ_SENT:
		/* it is over on both sides */
		if (rej->local_comm_id && rej->local_comm_id != c->remote_id)
			return;
		cm_timewait(cm, c, in->now_ns);
		cm_emit(cm,
			&(struct cm_event){ .type = CM_EV_DREP, .conn = c });
		return;
	default:
		return;
	}
	conn_rejected(cm, c, rej->reason, rej);
}

static void rx_dreq(struct cm *cm, const struct cm_in *in)
{
	const struct cm_dreq *dreq = &in->m->dreq;
	struct cm_conn *c =
		find_conn(cm, in, dreq->remote_comm_id, dreq->local_comm_id);
	struct cm_event ev = {
		.type = CM_EV_DREQ,
		.conn = c,
		.data = dreq->private_data,
		.len = CM_DREQ_DATA,
	};

	if (!c || c->state == CM_IDLE) {
		/*
		 * it is forgotten here: the peer may forget it too (12.9.8.3.2)
		 */
		struct mad m = { .attr_id = MAD_CM_DREP, .tid = in->m->tid };
		struct roce_path path;

		m.drep.local_comm_id = dreq->remote_comm_id;
		m.drep.remote_comm_id = dreq->local_comm_id;
		cm_reverse_path(&path, in, 0, 0, 0);
		cm_send(cm, &path, &m);
		return;
	}
	if (dreq->remote_qpn != c->local_qpn) {
		cm->stats.dropped++;
		return;
	}
	switch (c->state) {
	case CM_REP_SENT:
	case CM_MRA_REP_RCVD:
	case CM_ESTABLISHED:
		c->state = CM_DREQ_RCVD;
		c->tid = in->m->tid;
		cm_conn_forget_qpn(cm, c);
		cm_conn_timer(cm, c, UINT64_MAX);
		cm_emit(cm, &ev);
		break;
	case CM_DREQ_SENT:
		/* both at once: each answers the other */
		cm_send_drep(cm, c, in->m->tid, NULL, 0, in->now_ns);
		ev.type = CM_EV_DREP;
		cm_emit(cm, &ev);
		break;
	case CM_TIMEWAIT:
		if (!c->quiet) {
			uint64_t due = c->due;

			cm_send_drep(cm, c, in->m->tid, NULL, 0, in->now_ns);
			cm_conn_timer(cm, c, due);
		}
		break;
	default:
		cm->stats.dropped++;
		break;
	}
}

void cm_conn_gone(struct cm *cm, struct cm_conn *c, uint64_t now_ns)
{
	struct cm_event ev = { .type = CM_EV_DREQ, .conn = c };

	c->place = -1;
	if (cm_conn_pending(c)) {
		conn_rejected(cm, c, CM_REJ_TIMEOUT, NULL);
		return;
	}
	switch (c->state) {
	case CM_MRA_REQ_RCVD:
		/* another process may listen by now, or none */
		cm_conn_timer(cm, c, now_ns);
		break;
	case CM_ESTABLISHED:
		c->state = CM_DREQ_RCVD;
		cm_conn_forget_qpn(cm, c);
		cm_conn_timer(cm, c, UINT64_MAX);
		cm_emit(cm, &ev);
		break;
	case CM_DREQ_SENT:
		cm_timewait(cm, c, now_ns);
		ev.type = CM_EV_DREP;
		cm_emit(cm, &ev);
		break;
	default:
		break;
	}
}

static void rx_drep(struct cm *cm, const struct cm_in *in)
{
	const struct cm_drep *drep = &in->m->drep;
	struct cm_conn *c =
		find_conn(cm, in, drep->remote_comm_id, drep->local_comm_id);
	struct cm_event ev = {
		.type = CM_EV_DREP,
		.conn = c,
		.data = drep->private_data,
		.len = CM_DREP_DATA,
	};

	if (!c || c->state != CM_DREQ_SENT) {
		cm->stats.dropped++;
		return;
	}
	cm_timewait(cm, c, in->now_ns);
	cm_emit(cm, &ev);
}

/* Alternate paths are not supported, and the answer says so. */
static void rx_lap(struct cm *cm, const struct cm_in *in)
{
	const struct cm_lap *lap = &in->m->lap;
	struct cm_conn *c =
		find_conn(cm, in, lap->remote_comm_id, lap->local_comm_id);
	struct mad m = { .attr_id = MAD_CM_APR, .tid = in->m->tid };
	struct roce_path path;

	m.apr.local_comm_id = lap->remote_comm_id;
	m.apr.remote_comm_id = lap->local_comm_id;
	m.apr.status = c ? CM_APR_UNSUPPORTED : CM_APR_INVALID_COMM_ID;
	cm_reverse_path(&path, in, 0, 0, 0);
	cm_send(cm, &path, &m);
}

void cm_conn_rx(struct cm *cm, const struct cm_in *in)
{
	if (in->m->class_version != MAD_CM_CLASS_VERSION) {
		if (in->m->attr_id == MAD_CM_REQ)
			refuse_req(cm, in, CM_REJ_INVALID_CLASS_VERSION);
		else
			cm->stats.dropped++;
		return;
	}
	switch ((enum mad_attr)in->m->attr_id) {
	case MAD_CM_REQ:
		rx_req(cm, in);
		break;
	case MAD_CM_MRA:
		rx_mra(cm, in);
		break;
	case MAD_CM_REJ:
		rx_rej(cm, in);
		break;
	case MAD_CM_REP:
		rx_rep(cm, in);
		break;
	case MAD_CM_RTU:
		rx_rtu(cm, in);
		break;
	case MAD_CM_DREQ:
		rx_dreq(cm, in);
		break;
	case MAD_CM_DREP:
		rx_drep(cm, in);
		break;
	case MAD_CM_LAP:
		rx_lap(cm, in);
		break;
	case MAD_CM_APR:
	case MAD_CM_SIDR_REQ:
	case MAD_CM_SIDR_REP:
		cm->stats.dropped++;
		break;
	}
}

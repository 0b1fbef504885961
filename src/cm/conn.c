/*
 * conn.c - connections: what the user asks for, and timers (12.9.5, 12.9.6)
 *
 *	active             passive
 *	REQ_SENT    REQ ->
 *	                   REQ_RCVD       the user decides
 *	            <- REP REP_SENT
 *	REP_RCVD                          the user readies its QP
 *	ESTABLISHED RTU -> ESTABLISHED
 *
 * The side that waits for an answer repeats its message. conn_rx.c handles what
 * the peer says. After DREQ and DREP, or a REJ that the peer may not have got,
 * the connection stays in TIMEWAIT, where it answers what still arrives.
 *
 * An RTU is implied by whatever shows that the peer has sent one: DREQ, or
 * data on the QP (cm_establish()).
 */
#include "cm_internal.h"

#include <string.h>

void cm_conn_ids(uint32_t *local, uint32_t *remote, const struct cm_conn *c)
{
	*local = c->local_id;
	*remote = c->remote_id;
}

/* Messages */

int cm_send_rej(struct cm *cm, struct cm_conn *c, unsigned reason,
		const void *ari, size_t ari_len, const void *data, size_t len)
{
	struct mad m = { .attr_id = MAD_CM_REJ, .tid = c->tid };

	if (ari_len > CM_REJ_ARI)
		return -EINVAL;
	if (cm_copy_data(m.rej.private_data, CM_REJ_DATA, data, len))
		return -EINVAL;
	cm_conn_ids(&m.rej.local_comm_id, &m.rej.remote_comm_id, c);
	switch (c->state) {
	case CM_REQ_RCVD:
	case CM_MRA_REQ_SENT:
		m.rej.msg_rejected = CM_MSG_REQ;
		break;
	case CM_REP_RCVD:
	case CM_MRA_REP_SENT:
		m.rej.msg_rejected = CM_MSG_REP;
		break;
	default:
		m.rej.msg_rejected = CM_MSG_OTHER;
	}
	m.rej.reason = (uint16_t)reason;
	m.rej.ari_len = (uint8_t)ari_len;
	if (ari_len)
		memcpy(m.rej.ari, ari, ari_len);
	cm_conn_send(cm, c, &m);
	return 0;
}

int cm_send_dreq(struct cm *cm, struct cm_conn *c, const void *data, size_t len,
		 uint64_t now_ns)
{
	struct mad m = { .attr_id = MAD_CM_DREQ };

	if (cm_copy_data(m.dreq.private_data, CM_DREQ_DATA, data, len))
		return -EINVAL;
	c->tid = (uint64_t)cm->tid_high << 32 | c->local_id;
	m.tid = c->tid;
	cm_conn_ids(&m.dreq.local_comm_id, &m.dreq.remote_comm_id, c);
	m.dreq.remote_qpn = c->remote_qpn;
	c->state = CM_DREQ_SENT;
	cm_conn_ask(cm, c, &m, now_ns);
	return 0;
}

void cm_timewait(struct cm *cm, struct cm_conn *c, uint64_t now_ns)
{
	/*
	 * The peer may use its QP for a new connection at once: its old packets
	 * carry our old QPN, which is not reused so soon.
	 */
	cm_conn_forget_qpn(cm, c);
	c->state = CM_TIMEWAIT;
	cm_conn_timer(cm, c, now_ns + cm_timeout_ns(c->ack_timeout));
}

int cm_send_drep(struct cm *cm, struct cm_conn *c, uint64_t tid,
		 const void *data, size_t len, uint64_t now_ns)
{
	struct mad m = { .attr_id = MAD_CM_DREP, .tid = tid };

	if (cm_copy_data(m.drep.private_data, CM_DREP_DATA, data, len))
		return -EINVAL;
	cm_conn_ids(&m.drep.local_comm_id, &m.drep.remote_comm_id, c);
	cm_conn_send(cm, c, &m);
	cm_timewait(cm, c, now_ns);
	return 0;
}

/* What the user asks for */

static int transport_type(enum ibv_qp_type type, uint8_t *transport,
			  uint8_t *ext)
{
	*ext = 0;
	switch ((int)type) {
	case IBV_QPT_RC:
		*transport = CM_TRANSPORT_RC;
		return 0;
	case IBV_QPT_UC:
		*transport = CM_TRANSPORT_UC;
		return 0;
	case IBV_QPT_XRC_SEND:
		*transport = CM_TRANSPORT_EXT;
		*ext = CM_EXT_XRC;
		return 0;
	default:
		return -EINVAL;
	}
}

int cm_connect(struct cm *cm, struct cm_conn **conn, uint64_t service_id,
	       const struct roce_path *path, const struct cm_end *end,
	       const void *data, size_t len, void *user, uint64_t now_ns)
{
	struct mad m = { .attr_id = MAD_CM_REQ };
	struct cm_req *req = &m.req;
	struct cm_conn *c;

	if (transport_type(end->qp_type, &req->transport,
			   &req->ext_transport) ||
	    cm_copy_data(req->private_data, CM_REQ_DATA, data, len))
		return -EINVAL;
	c = cm_conn_new(cm, path, user);
	if (!c)
		return -ENOMEM;
	c->active = true;
	c->service_id = service_id;
	c->local_qpn = end->qpn;
	c->qp_type = end->qp_type;
	c->ack_timeout = end->ack_timeout;
	c->state = CM_REQ_SENT;

	m.tid = c->tid;
	m.attr_mod = end->ece.options;
	req->local_comm_id = c->local_id;
	req->vendor_id = end->ece.vendor_id;
	req->service_id = service_id;
	req->local_ca_guid = cm->cfg.ca_guid;
	req->local_qkey = end->qkey;
	req->local_qpn = end->qpn;
	req->responder_resources = end->responder_resources;
	req->initiator_depth = end->initiator_depth;
	req->remote_cm_timeout = cm->cfg.response_timeout;
	req->flow_control = end->flow_control;
	req->starting_psn = end->psn;
	req->local_cm_timeout = cm->cfg.response_timeout;
	req->retry_count = end->retry_count;
	req->pkey = end->pkey;
	req->mtu = end->mtu;
	req->rnr_retry_count = end->rnr_retry_count;
	req->max_cm_retries = cm->cfg.max_retries;
	req->srq = end->srq;
	req->local_lid = 0xffff; /* permissive: there are no LIDs here */
	req->remote_lid = 0xffff;
	memcpy(req->local_gid, &path->sgid, 16);
	memcpy(req->remote_gid, &path->dgid, 16);
	req->flow_label = path->flow_label;
	req->traffic_class = path->tclass;
	req->hop_limit = path->hop_limit;
	req->subnet_local = path->hop_limit <= 1;
	req->ack_timeout = end->ack_timeout;
	cm_conn_ask(cm, c, &m, now_ns);
	*conn = c;
	return 0;
}

int cm_accept(struct cm *cm, struct cm_conn *c, const struct cm_end *end,
	      const void *data, size_t len, uint64_t now_ns)
{
	struct mad m = { .attr_id = MAD_CM_REP, .tid = c->tid };
	struct cm_rep *rep = &m.rep;

	if (c->state != CM_REQ_RCVD && c->state != CM_MRA_REQ_SENT)
		return -EINVAL;
	if (cm_copy_data(rep->private_data, CM_REP_DATA, data, len))
		return -EINVAL;
	m.attr_mod = end->ece.options;
	cm_conn_ids(&rep->local_comm_id, &rep->remote_comm_id, c);
	rep->vendor_id_high = (uint8_t)(end->ece.vendor_id >> 16);
	rep->vendor_id_mid = (uint8_t)(end->ece.vendor_id >> 8);
	rep->vendor_id_low = (uint8_t)end->ece.vendor_id;
	rep->local_qkey = end->qkey;
	rep->starting_psn = end->psn;
	rep->responder_resources = end->responder_resources;
	rep->target_ack_delay = end->target_ack_delay;
	rep->failover_accepted = 1; /* not supported: no alternate path */
	rep->rnr_retry_count = end->rnr_retry_count;
	rep->local_ca_guid = cm->cfg.ca_guid;
	if (c->qp_type == IBV_QPT_XRC_RECV) {
		/* the target is an end of its own kind (annex A14) */
		rep->srq = 1;
		rep->local_eecn = end->qpn;
	} else {
		rep->initiator_depth = end->initiator_depth;
		rep->flow_control = end->flow_control;
		rep->srq = end->srq;
		rep->local_qpn = end->qpn;
	}
	c->local_qpn = end->qpn;
	c->state = CM_REP_SENT;
	cm_conn_ask(cm, c, &m, now_ns);
	return 0;
}

int cm_rtu(struct cm *cm, struct cm_conn *c, const void *data, size_t len,
	   uint64_t now_ns)
{
	struct mad m = { .attr_id = MAD_CM_RTU, .tid = c->tid };

	(void)now_ns;
	if (c->state != CM_REP_RCVD && c->state != CM_MRA_REP_SENT)
		return -EINVAL;
	if (cm_copy_data(m.rtu.private_data, CM_RTU_DATA, data, len))
		return -EINVAL;
	cm_conn_ids(&m.rtu.local_comm_id, &m.rtu.remote_comm_id, c);
	c->state = CM_ESTABLISHED;
	cm_conn_send(cm, c, &m);
	return 0;
}

int cm_reject(struct cm *cm, struct cm_conn *c, unsigned reason,
	      const void *ari, size_t ari_len, const void *data, size_t len,
	      uint64_t now_ns)
{
	int err;

	if (!cm_conn_pending(c))
		return -EINVAL;
	err = cm_send_rej(cm, c, reason, ari, ari_len, data, len);
	if (!err)
		cm_conn_linger(cm, c, now_ns);
	return err;
}

void cm_established(struct cm *cm, struct cm_conn *c, const uint8_t *data,
		    size_t len)
{
	struct cm_event ev = {
		.type = CM_EV_ESTABLISHED,
		.conn = c,
		.data = data,
		.len = len,
	};

	c->state = CM_ESTABLISHED;
	cm_conn_timer(cm, c, UINT64_MAX);
	cm_emit(cm, &ev);
}

int cm_establish(struct cm *cm, struct cm_conn *c, uint64_t now_ns)
{
	(void)now_ns;
	switch (c->state) {
	case CM_REP_SENT:
	case CM_MRA_REP_RCVD:
		cm_established(cm, c, NULL, 0);
		return 0;
	case CM_ESTABLISHED:
		return -EISCONN;
	default:
		return -EINVAL;
	}
}

int cm_disconnect(struct cm *cm, struct cm_conn *c, const void *data,
		  size_t len, uint64_t now_ns)
{
	switch (c->state) {
	case CM_ESTABLISHED:
		return cm_send_dreq(cm, c, data, len, now_ns);
	case CM_DREQ_RCVD:
		return cm_send_drep(cm, c, c->tid, data, len, now_ns);
	default:
		return -EINVAL;
	}
}

void cm_conn_close(struct cm *cm, struct cm_conn *c, uint64_t now_ns)
{
	uint8_t guid[8];

	switch (c->state) {
	case CM_REQ_SENT:
	case CM_MRA_REQ_RCVD:
		/* the peer knows us by our ID and GUID */
		put_be64(guid, cm->cfg.ca_guid);
		cm_send_rej(cm, c, CM_REJ_TIMEOUT, guid, sizeof(guid), NULL, 0);
		cm_conn_free(cm, c);
		break;
	case CM_REQ_RCVD:
	case CM_MRA_REQ_SENT:
	case CM_REP_SENT:
	case CM_MRA_REP_RCVD:
	case CM_REP_RCVD:
	case CM_MRA_REP_SENT:
		cm_send_rej(cm, c, CM_REJ_CONSUMER, NULL, 0, NULL, 0);
		cm_conn_linger(cm, c, now_ns);
		break;
	case CM_ESTABLISHED:
		cm_send_dreq(cm, c, NULL, 0, now_ns);
		break;
	case CM_DREQ_RCVD:
		cm_send_drep(cm, c, c->tid, NULL, 0, now_ns);
		break;
	case CM_DREQ_SENT:
	case CM_TIMEWAIT:
		break;
	case CM_IDLE:
	case CM_SIDR_REQ_SENT:
	case CM_SIDR_REQ_RCVD:
	case CM_NSTATES:
		cm_conn_free(cm, c);
	}
}

void cm_conn_expire(struct cm *cm, struct cm_conn *c, uint64_t now_ns)
{
	struct cm_event ev = { .conn = c };

	switch (c->state) {
	case CM_REQ_SENT:
	case CM_MRA_REQ_RCVD:
	case CM_REP_SENT:
	case CM_MRA_REP_RCVD:
	case CM_DREQ_SENT:
		if (cm_conn_again(cm, c, now_ns))
			return;
		ev.status = -ETIMEDOUT;
		ev.type = CM_EV_UNREACHABLE;
		if (c->state == CM_DREQ_SENT) {
			ev.type = CM_EV_DREP;
			cm_timewait(cm, c, now_ns);
			cm_emit(cm, &ev);
			return;
		}
		break;
	case CM_TIMEWAIT:
		ev.type = CM_EV_TIMEWAIT_EXIT;
		break;
	default:
		cm_conn_timer(cm, c, UINT64_MAX);
		return;
	}
	if (c->quiet) {
		c->quiet = false;
		cm->lingering--;
	} else {
		cm_emit(cm, &ev);
	}
	cm_conn_end(cm, c);
}

/*
 * conn.c - connections: the active and the passive side (12.9.5, 12.9.6)
 *
 *	active             passive
 *	REQ_SENT    REQ ->
 *	                   REQ_RCVD       the user decides
 *	            <- REP REP_SENT
 *	REP_RCVD                          the user readies its QP
 *	ESTABLISHED RTU -> ESTABLISHED
 *
 * Whoever waits for the other side's answer repeats its message. A message
 * that comes again is answered again if we have answered, else with MRA if the
 * user takes its time: so a lost message is made good by whoever misses its
 * effect. After DREQ and DREP, or a REJ that the peer may not have got, the
 * connection stays in TIMEWAIT, where it answers what still arrives.
 *
 * An RTU is implied by whatever shows that the peer has sent one: DREQ, or
 * data on the QP (cm_establish()).
 */
#include "internal.h"

#include <string.h>

static void ids(uint32_t *local, uint32_t *remote, const struct cm_conn *c)
{
	*local = c->local_id;
	*remote = c->remote_id;
}

/* Messages */

/* A refusal of something that belongs to no connection of ours. */
static void refuse(struct cm *cm, const struct cm_in *in, uint32_t remote_id,
		   enum cm_message what, unsigned reason, const void *ari,
		   size_t ari_len)
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

static int send_rej(struct cm *cm, struct cm_conn *c, unsigned reason,
		    const void *ari, size_t ari_len, const void *data,
		    size_t len)
{
	struct mad m = { .attr_id = MAD_CM_REJ, .tid = c->tid };

	if (ari_len > CM_REJ_ARI)
		return -EINVAL;
	if (cm_copy_data(m.rej.private_data, CM_REJ_DATA, data, len))
		return -EINVAL;
	ids(&m.rej.local_comm_id, &m.rej.remote_comm_id, c);
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

/* Sent as often as the peer repeats itself; never kept. */
static void send_mra(struct cm *cm, struct cm_conn *c, enum cm_message what)
{
	struct mad m = { .attr_id = MAD_CM_MRA, .tid = c->tid };

	ids(&m.mra.local_comm_id, &m.mra.remote_comm_id, c);
	m.mra.msg_mraed = (uint8_t)what;
	m.mra.service_timeout = CM_MRA_TIMEOUT;
	c->mra = true;
	cm_send(cm, &c->path, &m);
}

static int send_dreq(struct cm *cm, struct cm_conn *c, const void *data,
		     size_t len, uint64_t now_ns)
{
	struct mad m = { .attr_id = MAD_CM_DREQ };

	if (cm_copy_data(m.dreq.private_data, CM_DREQ_DATA, data, len))
		return -EINVAL;
	c->tid = (uint64_t)cm->tid_high << 32 | c->local_id;
	m.tid = c->tid;
	ids(&m.dreq.local_comm_id, &m.dreq.remote_comm_id, c);
	m.dreq.remote_qpn = c->remote_qpn;
	c->state = CM_DREQ_SENT;
	cm_conn_ask(cm, c, &m, now_ns);
	return 0;
}

static void timewait(struct cm *cm, struct cm_conn *c, uint64_t now_ns)
{
	/*
	 * The peer may begin a new connection on the same QP at once: its old
	 * packets carry our QPN, and that is not used again so soon.
	 */
	cm_conn_forget_qpn(cm, c);
	c->state = CM_TIMEWAIT;
	cm_conn_timer(cm, c, now_ns + cm_timeout_ns(c->ack_timeout));
}

static int send_drep(struct cm *cm, struct cm_conn *c, uint64_t tid,
		     const void *data, size_t len, uint64_t now_ns)
{
	struct mad m = { .attr_id = MAD_CM_DREP, .tid = tid };

	if (cm_copy_data(m.drep.private_data, CM_DREP_DATA, data, len))
		return -EINVAL;
	ids(&m.drep.local_comm_id, &m.drep.remote_comm_id, c);
	cm_conn_send(cm, c, &m);
	timewait(cm, c, now_ns);
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
	ids(&rep->local_comm_id, &rep->remote_comm_id, c);
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
	ids(&m.rtu.local_comm_id, &m.rtu.remote_comm_id, c);
	c->state = CM_ESTABLISHED;
	cm_conn_send(cm, c, &m);
	return 0;
}

int cm_reject(struct cm *cm, struct cm_conn *c, unsigned reason,
	      const void *ari, size_t ari_len, const void *data, size_t len,
	      uint64_t now_ns)
{
	int err;

	switch (c->state) {
	case CM_REQ_RCVD:
	case CM_MRA_REQ_SENT:
	case CM_REP_SENT:
	case CM_MRA_REP_RCVD:
	case CM_REP_RCVD:
	case CM_MRA_REP_SENT:
		break;
	default:
		return -EINVAL;
	}
	err = send_rej(cm, c, reason, ari, ari_len, data, len);
	if (!err)
		cm_conn_linger(cm, c, now_ns);
	return err;
}

static void establish(struct cm *cm, struct cm_conn *c, const uint8_t *data,
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
		establish(cm, c, NULL, 0);
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
		return send_dreq(cm, c, data, len, now_ns);
	case CM_DREQ_RCVD:
		return send_drep(cm, c, c->tid, data, len, now_ns);
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
		send_rej(cm, c, CM_REJ_TIMEOUT, guid, sizeof(guid), NULL, 0);
		cm_conn_free(cm, c);
		break;
	case CM_REQ_RCVD:
	case CM_MRA_REQ_SENT:
	case CM_REP_SENT:
	case CM_MRA_REP_RCVD:
	case CM_REP_RCVD:
	case CM_MRA_REP_SENT:
		send_rej(cm, c, CM_REJ_CONSUMER, NULL, 0, NULL, 0);
		cm_conn_linger(cm, c, now_ns);
		break;
	case CM_ESTABLISHED:
		send_dreq(cm, c, NULL, 0, now_ns);
		break;
	case CM_DREQ_RCVD:
		send_drep(cm, c, c->tid, NULL, 0, now_ns);
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
			timewait(cm, c, now_ns);
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

/* What the peer says, or would say */

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
		if (c->quiet) /* with the REJ that ended it */
			cm_conn_resend(cm, c);
		else
			refuse(cm, in, c->remote_id, CM_MSG_REQ,
			       CM_REJ_STALE_CONN, NULL, 0);
		break;
	default:
		break;
	}
}

static void rejected(struct cm *cm, struct cm_conn *c, unsigned reason,
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
 * Whether the peer's QP is part of a connection of ours that goes on. If so,
 * the peer has forgotten it, so it is brought to an end.
 */
static bool stale(struct cm *cm, uint32_t qpn, const struct cm_in *in)
{
	struct cm_conn *c = qpn ? cm_conn_by_qpn(cm, qpn, in->sgid) : NULL;

	if (!c)
		return false;
	switch (c->state) {
	case CM_ESTABLISHED:
		send_dreq(cm, c, NULL, 0, in->now_ns);
		return true;
	case CM_DREQ_SENT:
		/* that is as good as the answer */
		timewait(cm, c, in->now_ns);
		cm_emit(cm,
			&(struct cm_event){ .type = CM_EV_DREP, .conn = c });
		return false;
	default:
		rejected(cm, c, CM_REJ_STALE_CONN, NULL);
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
	if (verdict == CM_REJ_INVALID_GID) {
		refuse(cm, in, req->local_comm_id, CM_MSG_REQ,
		       CM_REJ_INVALID_GID, in->dgid, sizeof(*in->dgid));
		return;
	}
	if (verdict) {
		refuse(cm, in, req->local_comm_id, CM_MSG_REQ,
		       (unsigned)verdict, NULL, 0);
		return;
	}
	if (stale(cm, req->local_qpn, in)) {
		refuse(cm, in, req->local_comm_id, CM_MSG_REQ,
		       CM_REJ_STALE_CONN, NULL, 0);
		return;
	}
	l = cm_listener_find(cm, req->service_id, in->dgid);
	if (!l) {
		refuse(cm, in, req->local_comm_id, CM_MSG_REQ,
		       CM_REJ_INVALID_SERVICE_ID, NULL, 0);
		return;
	}

	cm_reverse_path(&path, in, req->traffic_class, req->hop_limit,
			req->flow_label);
	c = cm_conn_new(cm, &path, NULL);
	if (!c)
		return; /* it will be asked again */
	c->state = CM_REQ_RCVD;
	c->service_id = req->service_id;
	cm_conn_place(cm, c, req->local_comm_id);
	c->remote_qpn = req->local_qpn;
	c->qp_type = ev.peer.qp_type == IBV_QPT_XRC_SEND ? IBV_QPT_XRC_RECV
							 : ev.peer.qp_type;
	c->tid = in->m->tid;
	c->ack_timeout = req->ack_timeout;
	/* how long the peer may take to answer our REP, it says itself */
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
		refuse(cm, in, req->local_comm_id, CM_MSG_REQ,
		       (unsigned)verdict, NULL, 0);
	if (verdict)
		cm_conn_free(cm, c);
}

/* The connection that a message names by our ID, if it comes from the peer
 * whose connection it is and names the peer's ID as well. */
static struct cm_conn *find(struct cm *cm, const struct cm_in *in,
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
		refuse(cm, in, rep->local_comm_id, CM_MSG_REP,
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
	if (stale(cm, qpn, in)) {
		c->state = CM_REP_RCVD;
		send_rej(cm, c, CM_REJ_STALE_CONN, NULL, 0, NULL, 0);
		rejected(cm, c, CM_REJ_STALE_CONN, NULL);
		return;
	}
	c->remote_qpn = qpn;
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
		find(cm, in, rtu->remote_comm_id, rtu->local_comm_id);

	if (c && (c->state == CM_REP_SENT || c->state == CM_MRA_REP_RCVD))
		establish(cm, c, rtu->private_data, CM_RTU_DATA);
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
	/* who asks for time is there, and does not use up our patience; but
	 * not for ever */
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

	/* who gave up waiting for our first answer has not learned our ID */
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
		 * One that does not know us refuses what it cannot place
		 * (INVALID_COMM_ID) and has no ID to give.
		 */
		if (rej->local_comm_id && rej->local_comm_id != c->remote_id)
			return;
		break;
	case CM_DREQ_SENT:
		/* it is over on both sides */
		if (rej->local_comm_id && rej->local_comm_id != c->remote_id)
			return;
		timewait(cm, c, in->now_ns);
		cm_emit(cm,
			&(struct cm_event){ .type = CM_EV_DREP, .conn = c });
		return;
	default:
		return;
	}
	rejected(cm, c, rej->reason, rej);
}

static void rx_dreq(struct cm *cm, const struct cm_in *in)
{
	const struct cm_dreq *dreq = &in->m->dreq;
	struct cm_conn *c =
		find(cm, in, dreq->remote_comm_id, dreq->local_comm_id);
	struct cm_event ev = {
		.type = CM_EV_DREQ,
		.conn = c,
		.data = dreq->private_data,
		.len = CM_DREQ_DATA,
	};

	if (!c || c->state == CM_IDLE) {
		/* we have forgotten it: the peer may do so too (12.9.8.3.2) */
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
		send_drep(cm, c, in->m->tid, NULL, 0, in->now_ns);
		ev.type = CM_EV_DREP;
		cm_emit(cm, &ev);
		break;
	case CM_TIMEWAIT:
		if (!c->quiet) {
			uint64_t due = c->due;

			send_drep(cm, c, in->m->tid, NULL, 0, in->now_ns);
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
	switch (c->state) {
	case CM_MRA_REQ_RCVD:
		/* somebody else may listen by now, or nobody */
		cm_conn_timer(cm, c, now_ns);
		break;
	case CM_REQ_RCVD:
	case CM_MRA_REQ_SENT:
	case CM_REP_SENT:
	case CM_MRA_REP_RCVD:
	case CM_REP_RCVD:
	case CM_MRA_REP_SENT:
		rejected(cm, c, CM_REJ_TIMEOUT, NULL);
		break;
	case CM_ESTABLISHED:
		c->state = CM_DREQ_RCVD;
		cm_conn_forget_qpn(cm, c);
		cm_conn_timer(cm, c, UINT64_MAX);
		cm_emit(cm, &ev);
		break;
	case CM_DREQ_SENT:
		timewait(cm, c, now_ns);
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
		find(cm, in, drep->remote_comm_id, drep->local_comm_id);
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
	timewait(cm, c, in->now_ns);
	cm_emit(cm, &ev);
}

/* Alternate paths are not supported, and a peer that asks is told so. */
static void rx_lap(struct cm *cm, const struct cm_in *in)
{
	const struct cm_lap *lap = &in->m->lap;
	struct cm_conn *c =
		find(cm, in, lap->remote_comm_id, lap->local_comm_id);
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
			refuse(cm, in, in->m->req.local_comm_id, CM_MSG_REQ,
			       CM_REJ_INVALID_CLASS_VERSION, NULL, 0);
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

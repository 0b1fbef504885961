/*
 * sidr.c - service ID resolution for datagrams (12.11): one request, one reply,
 * each kept long enough to be repeated
 */
#include "cm_internal.h"

#include <string.h>

int cm_sidr_request(struct cm *cm, struct cm_conn **conn, uint64_t service_id,
		    const struct roce_path *path, uint16_t pkey,
		    const void *data, size_t len, void *user, uint64_t now_ns)
{
	struct mad m = { .attr_id = MAD_CM_SIDR_REQ };
	struct cm_conn *c;

	if (cm_copy_data(m.sidr_req.private_data, CM_SIDR_REQ_DATA, data, len))
		return -EINVAL;
	c = cm_conn_new(cm, path, user);
	if (!c)
		return -ENOMEM;
	c->sidr = true;
	c->active = true;
	c->service_id = service_id;
	c->state = CM_SIDR_REQ_SENT;
	m.tid = c->tid;
	m.sidr_req.request_id = c->local_id;
	m.sidr_req.pkey = pkey;
	m.sidr_req.service_id = service_id;
	cm_conn_ask(cm, c, &m, now_ns);
	*conn = c;
	return 0;
}

static void fill_reply(struct mad *m, enum cm_sidr_status status, uint64_t tid,
		       uint32_t request_id, uint64_t service_id)
{
	*m = (struct mad){ .attr_id = MAD_CM_SIDR_REP, .tid = tid };
	m->sidr_rep.request_id = request_id;
	m->sidr_rep.status = (uint8_t)status;
	m->sidr_rep.service_id = service_id;
}

int cm_sidr_reply(struct cm *cm, struct cm_conn *c, enum cm_sidr_status status,
		  uint32_t qpn, uint32_t qkey, const struct ibv_ece *ece,
		  const void *data, size_t len, uint64_t now_ns)
{
	struct mad m;

	if (c->state != CM_SIDR_REQ_RCVD)
		return -EINVAL;
	fill_reply(&m, status, c->tid, c->remote_id, c->service_id);
	if (cm_copy_data(m.sidr_rep.private_data, CM_SIDR_REP_DATA, data, len))
		return -EINVAL;
	if (status == CM_SIDR_OK) {
		m.sidr_rep.qpn = qpn;
		m.sidr_rep.qkey = qkey;
	}
	if (ece) {
		m.sidr_rep.vendor_id_high = (uint16_t)(ece->vendor_id >> 8);
		m.sidr_rep.vendor_id_low = (uint8_t)ece->vendor_id;
		m.attr_mod = ece->options;
	}
	cm_conn_send(cm, c, &m);
	cm_conn_linger(cm, c, now_ns);
	return 0;
}

void cm_sidr_close(struct cm *cm, struct cm_conn *c, uint64_t now_ns)
{
	switch (c->state) {
	case CM_SIDR_REQ_RCVD:
		cm_sidr_reply(cm, c, CM_SIDR_REJECTED, 0, 0, NULL, NULL, 0,
			      now_ns);
		break;
	case CM_TIMEWAIT:
		break;
	default:
		cm_conn_free(cm, c);
	}
}

void cm_sidr_expire(struct cm *cm, struct cm_conn *c, uint64_t now_ns)
{
	struct cm_event ev = {
		.type = CM_EV_SIDR_REP,
		.conn = c,
		.status = -ETIMEDOUT,
	};

	if (c->state == CM_SIDR_REQ_SENT) {
		if (cm_conn_again(cm, c, now_ns))
			return;
		cm_emit(cm, &ev);
	} else if (c->quiet) {
		c->quiet = false;
		cm->lingering--;
	}
	cm_conn_end(cm, c);
}

static void refuse_sidr(struct cm *cm, const struct cm_in *in,
			enum cm_sidr_status status)
{
	const struct cm_sidr_req *req = &in->m->sidr_req;
	struct roce_path path;
	struct mad m;

	fill_reply(&m, status, in->m->tid, req->request_id, req->service_id);
	cm_reverse_path(&path, in, 0, 0, 0);
	cm_send(cm, &path, &m);
}

static void rx_req(struct cm *cm, const struct cm_in *in)
{
	const struct cm_sidr_req *req = &in->m->sidr_req;
	struct cm_event ev = { .type = CM_EV_SIDR_REQ };
	struct cm_listener *l;
	struct roce_path path;
	struct cm_conn *c;
	int verdict;

	if (in->m->class_version != MAD_CM_CLASS_VERSION) {
		refuse_sidr(cm, in, CM_SIDR_BAD_VERSION);
		return;
	}
	c = cm_conn_by_remote(cm, req->request_id, true, in->sgid);
	if (c) {
		cm->stats.duplicates++;
		if (c->state == CM_TIMEWAIT)
			cm_conn_resend(cm, c);
		return;
	}
	l = cm_listener_find(cm, req->service_id, in->dgid);
	if (!l || (req->pkey & 0x7fff) != 0x7fff) {
		refuse_sidr(cm, in, CM_SIDR_UNSUPPORTED);
		return;
	}
	cm_reverse_path(&path, in, 0, 0, 0);
	c = cm_conn_new(cm, &path, NULL);
	if (!c)
		return;
	c->sidr = true;
	c->state = CM_SIDR_REQ_RCVD;
	c->service_id = req->service_id;
	c->remote_id = req->request_id;
	c->tid = in->m->tid;
	if (cm_conn_add_remote(cm, c)) {
		cm_conn_free(cm, c);
		return;
	}
	ev.conn = c;
	ev.user = l->user;
	ev.service_id = req->service_id;
	ev.path = &c->path;
	ev.data = req->private_data;
	ev.len = CM_SIDR_REQ_DATA;
	ev.peer.pkey = req->pkey;
	verdict = cm_emit(cm, &ev);
	if (verdict > 0)
		refuse_sidr(cm, in, (enum cm_sidr_status)verdict);
	if (verdict)
		cm_conn_free(cm, c);
}

static void rx_rep(struct cm *cm, const struct cm_in *in)
{
	const struct cm_sidr_rep *rep = &in->m->sidr_rep;
	struct cm_conn *c = cm_conn_by_id(cm, rep->request_id, in->sgid);
	struct cm_event ev = {
		.type = CM_EV_SIDR_REP,
		.conn = c,
		.status = rep->status,
		.data = rep->private_data,
		.len = CM_SIDR_REP_DATA,
		.ari = rep->info,
		.ari_len = rep->info_len < 72 ? rep->info_len : 72,
		.peer.qp_type = IBV_QPT_UD,
		.peer.qpn = rep->qpn,
		.peer.qkey = rep->qkey,
		.peer.ece.vendor_id =
			(uint32_t)rep->vendor_id_high << 8 | rep->vendor_id_low,
		.peer.ece.options = in->m->attr_mod,
	};

	if (in->m->class_version != MAD_CM_CLASS_VERSION || !c || !c->sidr ||
	    c->state != CM_SIDR_REQ_SENT) {
		cm->stats.dropped++;
		return;
	}
	ev.path = &c->path;
	cm_emit(cm, &ev);
	cm_conn_end(cm, c);
}

void cm_sidr_rx(struct cm *cm, const struct cm_in *in)
{
	if (in->m->attr_id == MAD_CM_SIDR_REQ)
		rx_req(cm, in);
	else
		rx_rep(cm, in);
}

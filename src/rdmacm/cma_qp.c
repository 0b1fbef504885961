/*
 * cma_qp.c - queue pairs and shared receive queues of identifiers
 *
 * The library takes its QPs through their states: to INIT when they are created
 * (a UD QP to RTS), and on when the connection is made. Completion queues that
 * the program does not bring are made here, with a channel each, and are what
 * the helpers of <rdma/rdma_verbs.h> wait for.
 *
 * Programs may destroy a QP by ibv_destroy_qp() and leave its identifier as it
 * is. The QP knows its identifier, and takes itself out of it first
 * (cma_qp_gone()), so that no event meets a QP that is gone.
 */
#include "cma.h"

#include "qp/names.h"

#include <errno.h>
#include <rdma/rdma_verbs.h>
#include <stdlib.h>
#include <string.h>

/* With the lock. */
static void set_qp(struct cma_id *id, struct ibv_qp *qp)
{
	struct cma_id *other = qp ? shca_cm_qp_owner(qp) : NULL;

	cma_qp_drop(id);
	if (other)
		cma_qp_drop(other);
	if (qp)
		shca_cm_qp_own(qp, id);
	id->qp = qp;
}

void cma_qp_drop(struct cma_id *id)
{
	if (id->qp)
		shca_cm_qp_own(id->qp, NULL);
	id->qp = NULL;
}

void cma_qp_gone(void *arg, void *owner, struct ibv_qp *qp)
{
	struct cma_id *id = owner;

	(void)arg;
	if (id->id.qp == qp)
		id->id.qp = NULL;
	cma_qp_drop(id);
}

void cma_qp_adopt(struct cma_id *id)
{
	cma_lock();
	if (id->id.qp != id->qp)
		set_qp(id, id->id.qp);
	cma_unlock();
}

struct ibv_qp *cma_qp_get(struct cma_id *id)
{
	struct ibv_qp *qp;

	cma_lock();
	qp = id->qp;
	if (qp)
		shca_qp_get(to_qp(qp));
	cma_unlock();
	return qp;
}

void cma_qp_put(struct ibv_qp *qp)
{
	shca_qp_put(to_qp(qp));
}

int cma_qp_error(struct cma_id *id)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct ibv_qp *qp = cma_qp_get(id);
	int err;

	if (!qp)
		return 0;
	err = -ibv_modify_qp(qp, &attr, IBV_QP_STATE);
	cma_qp_put(qp);
	return err;
}

static int to_state(struct cma_id *id, enum ibv_qp_state state,
		    struct ibv_qp_attr *attr, int *mask)
{
	memset(attr, 0, sizeof(*attr));
	attr->qp_state = state;
	return cma_qp_attr(id, attr, mask);
}

int cma_qp_ready(struct cma_id *id, struct ibv_qp *qp,
		 uint8_t responder_resources, uint8_t initiator_depth)
{
	struct ibv_qp_attr attr;
	int mask, err;

	/* to INIT once more: the access that the peer gets is known now */
	err = to_state(id, IBV_QPS_INIT, &attr, &mask);
	if (!err)
		err = -ibv_modify_qp(qp, &attr, mask);
	if (!err)
		err = to_state(id, IBV_QPS_RTR, &attr, &mask);
	if (err)
		return err;
	if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) &&
	    responder_resources != RDMA_MAX_RESP_RES)
		attr.max_dest_rd_atomic = responder_resources;
	err = -ibv_modify_qp(qp, &attr, mask);
	if (!err)
		err = to_state(id, IBV_QPS_RTS, &attr, &mask);
	if (err)
		return err;
	if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) &&
	    initiator_depth != RDMA_MAX_INIT_DEPTH)
		attr.max_rd_atomic = initiator_depth;
	return -ibv_modify_qp(qp, &attr, mask);
}

static int qp_to_init(struct cma_id *id, struct ibv_qp *qp)
{
	enum ibv_qp_state states[] = { IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS };
	size_t n = id->id.qp_type == IBV_QPT_UD ? 3 : 1;
	struct ibv_qp_attr attr;
	int mask, err = 0;

	for (size_t i = 0; i < n && !err; i++) {
		err = to_state(id, states[i], &attr, &mask);
		if (!err)
			err = -ibv_modify_qp(qp, &attr, mask);
	}
	return err;
}

/* Completion queues */

static void destroy_cq(struct ibv_comp_channel **channel, struct ibv_cq **cq)
{
	if (*cq)
		ibv_destroy_cq(*cq);
	if (*channel)
		ibv_destroy_comp_channel(*channel);
	*cq = NULL;
	*channel = NULL;
}

static int create_cq(struct rdma_cm_id *id, uint32_t size,
		     struct ibv_comp_channel **channel, struct ibv_cq **cq)
{
	*channel = ibv_create_comp_channel(id->verbs);
	if (!*channel)
		return -errno;
	/* rdma_get_send_comp() expects the identifier as the context */
	*cq = ibv_create_cq(id->verbs, (int)size, id, *channel, 0);
	return *cq ? 0 : -errno;
}

/* What create_cqs() has made, to be undone on failure. */
struct new_cqs {
	bool send, recv;
};

static void destroy_cqs(struct rdma_cm_id *id, struct new_cqs which)
{
	int err = errno;

	if (which.recv)
		destroy_cq(&id->recv_cq_channel, &id->recv_cq);
	if (which.send)
		destroy_cq(&id->send_cq_channel, &id->send_cq);
	errno = err;
}

/*
 * A size of 0 means none. A CQ that the identifier has already, perhaps by its
 * shared receive queue, stays.
 */
static int create_cqs(struct rdma_cm_id *id, uint32_t send, uint32_t recv,
		      struct new_cqs *made)
{
	int err = 0;

	*made = (struct new_cqs){ .send = send && !id->send_cq,
				  .recv = recv && !id->recv_cq };
	if (made->recv)
		err = create_cq(id, recv, &id->recv_cq_channel, &id->recv_cq);
	if (!err && made->send)
		err = create_cq(id, send, &id->send_cq_channel, &id->send_cq);
	if (err)
		destroy_cqs(id, *made);
	return err;
}

/* Queue pairs */

static int other_context(void)
{
	return why(-EINVAL,
		   "the PD is of another context than id->verbs: allocate it "
		   "from that, or pass NULL for the default");
}

static int create_qp(struct cma_id *id, struct ibv_qp_init_attr_ex *attr)
{
	struct rdma_cm_id *ib = &id->id;
	struct new_cqs made;
	struct ibv_qp *qp;
	int err;

	if (engine_dead(cma_engine()))
		return -EIO;
	err = cma_late_dev(id);
	if (err)
		return err;
	if (ib->qp)
		return why(-EINVAL, "the identifier has QP 0x%06x already",
			   ib->qp->qp_num);
	if (!ib->verbs)
		return cma_wrong_state(
			id, "it has no device yet: rdma_resolve_addr(), or "
			    "rdma_bind_addr() to an address of an interface, "
			    "first");
	if (ib->qp_type != attr->qp_type)
		return why(-EINVAL,
			   "qp_type is %s, but the identifier is for %s "
			   "(RDMA_PS_TCP: RC, RDMA_PS_UDP: UD)",
			   qp_type_str(attr->qp_type),
			   qp_type_str(ib->qp_type));
	if (!(attr->comp_mask & IBV_QP_INIT_ATTR_PD) || !attr->pd) {
		attr->comp_mask |= IBV_QP_INIT_ATTR_PD;
		attr->pd = ib->pd;
	} else if (attr->pd->context != ib->verbs) {
		return other_context();
	}
	if ((int)ib->qp_type == IBV_QPT_XRC_RECV &&
	    !(attr->comp_mask & IBV_QP_INIT_ATTR_XRCD)) {
		attr->xrcd = cma_xrcd(id->dev);
		if (!attr->xrcd)
			return -errno;
		attr->comp_mask |= IBV_QP_INIT_ATTR_XRCD;
	} else if (ib->srq && !attr->srq) {
		attr->srq = ib->srq;
	}
	err = create_cqs(ib, attr->send_cq ? 0 : attr->cap.max_send_wr,
			 attr->recv_cq ? 0 : attr->cap.max_recv_wr, &made);
	if (err)
		return err;
	if (!attr->send_cq)
		attr->send_cq = ib->send_cq;
	if (!attr->recv_cq)
		attr->recv_cq = ib->recv_cq ? ib->recv_cq : attr->send_cq;
	/* even a queue without entries needs a CQ */
	if (!attr->send_cq)
		attr->send_cq = attr->recv_cq;
	qp = ibv_create_qp_ex(ib->verbs, attr);
	if (!qp) {
		err = -errno;
		goto err_cqs;
	}
	err = qp_to_init(id, qp);
	if (err)
		goto err_qp;
	ib->pd = attr->pd;
	ib->qp = qp;
	cma_qp_adopt(id);
	return 0;

err_qp:
	ibv_destroy_qp(qp);
err_cqs:
	destroy_cqs(ib, made);
	return err;
}

int rdma_create_qp_ex(struct rdma_cm_id *id, struct ibv_qp_init_attr_ex *attr)
{
	return cma_ret(create_qp(to_id(id), attr));
}

int rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd,
		   struct ibv_qp_init_attr *attr)
{
	struct ibv_qp_init_attr_ex ex = shca_qp_init_ex(attr, pd ? pd : id->pd);
	int err = create_qp(to_id(id), &ex);

	if (err)
		return cma_ret(err);
	attr->cap = ex.cap;
	attr->send_cq = ex.send_cq;
	attr->recv_cq = ex.recv_cq;
	attr->srq = ex.srq;
	return 0;
}

void rdma_destroy_qp(struct rdma_cm_id *id)
{
	struct ibv_qp *qp = id->qp;

	if (qp)
		ibv_destroy_qp(qp); /* cma_qp_gone() */
	id->qp = NULL;
	if (!id->srq || (int)id->qp_type != IBV_QPT_XRC_RECV)
		destroy_cqs(id, (struct new_cqs){ true, true });
}

/* Shared receive queues */

int rdma_create_srq_ex(struct rdma_cm_id *id, struct ibv_srq_init_attr_ex *attr)
{
	bool xrc = (attr->comp_mask & IBV_SRQ_INIT_ATTR_TYPE) &&
		   attr->srq_type == IBV_SRQT_XRC;
	struct new_cqs made = { false, false };
	struct ibv_srq *srq;
	int err;

	if (engine_dead(cma_engine()))
		return cma_ret(-EIO);
	err = cma_late_dev(to_id(id));
	if (err)
		return cma_ret(err);
	if (id->srq)
		return cma_ret(
			why(-EINVAL, "the identifier has an SRQ already"));
	if (!id->verbs)
		return cma_ret(cma_wrong_state(
			to_id(id), "it has no device yet: rdma_resolve_addr() "
				   "or rdma_bind_addr() first"));
	if (!(attr->comp_mask & IBV_SRQ_INIT_ATTR_PD) || !attr->pd) {
		attr->comp_mask |= IBV_SRQ_INIT_ATTR_PD;
		attr->pd = id->pd;
	} else if (attr->pd->context != id->verbs) {
		return cma_ret(other_context());
	}
	if (xrc && !(attr->comp_mask & IBV_SRQ_INIT_ATTR_XRCD)) {
		attr->xrcd = cma_xrcd(to_id(id)->dev);
		if (!attr->xrcd)
			return -1;
		attr->comp_mask |= IBV_SRQ_INIT_ATTR_XRCD;
	}
	if (xrc && (!(attr->comp_mask & IBV_SRQ_INIT_ATTR_CQ) || !attr->cq)) {
		err = create_cqs(id, 0, attr->attr.max_wr, &made);
		if (err)
			return cma_ret(err);
		attr->comp_mask |= IBV_SRQ_INIT_ATTR_CQ;
		attr->cq = id->recv_cq;
	}
	srq = ibv_create_srq_ex(id->verbs, attr);
	if (!srq) {
		err = -errno;
		destroy_cqs(id, made);
		return cma_ret(err);
	}
	id->pd = attr->pd;
	id->srq = srq;
	return 0;
}

int rdma_create_srq(struct rdma_cm_id *id, struct ibv_pd *pd,
		    struct ibv_srq_init_attr *attr)
{
	struct ibv_srq_init_attr_ex ex = {
		.srq_context = attr->srq_context,
		.attr = attr->attr,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD,
		.srq_type = (int)id->qp_type == IBV_QPT_XRC_RECV ?
				    IBV_SRQT_XRC :
				    IBV_SRQT_BASIC,
		.pd = pd ? pd : id->pd,
	};
	int ret = rdma_create_srq_ex(id, &ex);

	if (!ret)
		attr->attr = ex.attr;
	return ret;
}

void rdma_destroy_srq(struct rdma_cm_id *id)
{
	if (id->srq)
		ibv_destroy_srq(id->srq);
	id->srq = NULL;
	if (!id->qp)
		destroy_cqs(id, (struct new_cqs){ true, true });
}

/* Endpoints: identifier, addresses and QP in one call */

static int passive_ep(struct cma_id *id, struct rdma_addrinfo *res,
		      struct ibv_pd *pd, struct ibv_qp_init_attr *qp)
{
	int err = cma_bind(id, res->ai_src_addr);

	if (err)
		return err;
	if (qp) {
		id->ep_qp = malloc(sizeof(*qp));
		if (!id->ep_qp)
			return -ENOMEM;
		*id->ep_qp = *qp;
		id->ep_qp->qp_type = (enum ibv_qp_type)res->ai_qp_type;
	}
	id->ep_pd = pd;
	return 0;
}

static int active_ep(struct cma_id *id, struct rdma_addrinfo *res,
		     struct ibv_pd *pd, struct ibv_qp_init_attr *qp)
{
	if (rdma_resolve_addr(&id->id, res->ai_src_addr, res->ai_dst_addr,
			      2000) ||
	    rdma_resolve_route(&id->id, 2000))
		return -errno;
	if (!qp)
		return 0;
	qp->qp_type = (enum ibv_qp_type)res->ai_qp_type;
	return rdma_create_qp(&id->id, pd, qp) ? -errno : 0;
}

int rdma_create_ep(struct rdma_cm_id **out, struct rdma_addrinfo *res,
		   struct ibv_pd *pd, struct ibv_qp_init_attr *qp_init_attr)
{
	struct rdma_cm_id *ib;
	int err;

	err = cma_create_id(NULL, &ib, NULL,
			    (enum rdma_port_space)res->ai_port_space,
			    (enum ibv_qp_type)res->ai_qp_type);
	if (err)
		return cma_ret(err);
	if (res->ai_flags & RAI_PASSIVE)
		err = passive_ep(to_id(ib), res, pd, qp_init_attr);
	else
		err = active_ep(to_id(ib), res, pd, qp_init_attr);
	if (err) {
		rdma_destroy_ep(ib);
		return cma_ret(err);
	}
	*out = ib;
	return 0;
}

void rdma_destroy_ep(struct rdma_cm_id *id)
{
	if (id->qp)
		rdma_destroy_qp(id);
	if (id->srq)
		rdma_destroy_srq(id);
	rdma_destroy_id(id);
}

int rdma_get_request(struct rdma_cm_id *listen, struct rdma_cm_id **out)
{
	struct cma_id *l = to_id(listen);
	struct rdma_cm_event *ev;
	struct rdma_cm_id *id;
	int err;

	if (!l->sync)
		return cma_ret(
			why(-EINVAL,
			    "the identifier has an event channel: requests "
			    "come there, by rdma_get_cm_event()"));
	if (listen->event) {
		rdma_ack_cm_event(listen->event);
		listen->event = NULL;
	}
	if (rdma_get_cm_event(listen->channel, &ev))
		return -1;
	if (ev->event != RDMA_CM_EVENT_CONNECT_REQUEST) {
		err = ev->status < 0 ? ev->status : -EINVAL;
		rdma_ack_cm_event(ev);
		return cma_ret(err);
	}
	id = ev->id;
	if (rdma_migrate_id(id, NULL)) {
		err = -errno;
		goto err_id;
	}
	if (l->ep_qp) {
		struct ibv_qp_init_attr attr = *l->ep_qp;

		if (rdma_create_qp(id, l->ep_pd, &attr)) {
			err = -errno;
			goto err_id;
		}
	}
	/* the next call on the new identifier acknowledges it */
	id->event = ev;
	*out = id;
	return 0;

err_id:
	rdma_ack_cm_event(ev);
	rdma_destroy_id(id);
	return cma_ret(err);
}

/*
 * roce_qp.c - a queue pair's life: creation, states, and its ends
 *
 * Whatever ends a QP comes through roce_to_err(), which flushes both queues in
 * order.
 */
#include "roce_internal.h"

#include <stdlib.h>

_Static_assert(offsetof(struct roce_qp, base) == 0 &&
		       offsetof(struct roce_env, base) == 0 &&
		       offsetof(struct roce_wqe, base) == 0,
	       "each begins with what every transport has of it");

static int find_service(struct roce_qp *qp, const struct qp_init *init)
{
	switch (init->type) {
	case IBV_QPT_RC:
		qp->service = ROCE_RC;
		return 0;
	case IBV_QPT_UC:
		qp->service = ROCE_UC;
		return 0;
	case IBV_QPT_UD:
		qp->service = ROCE_UD;
		return 0;
	case IBV_QPT_XRC_SEND:
	case IBV_QPT_XRC_RECV:
		qp->service = ROCE_XRC;
		return roce_env(qp)->xrc_srq_take ? 0 : -EOPNOTSUPP;
	default:
		return -EOPNOTSUPP;
	}
}

int roce_qp_create(struct roce_qp **out, struct qp_init *init)
{
	struct roce_qp *qp = aligned_zalloc(sizeof(*qp));
	int err;

	if (!qp)
		return -ENOMEM;
	qp->seed = init->seed;
	qp->base.env = init->env;
	err = find_service(qp, init);
	if (!err)
		err = qp_init(&qp->base, init,
			      init->type == IBV_QPT_UD ?
				      sizeof(struct roce_ud_wqe) :
				      sizeof(struct roce_wqe));
	if (err) {
		free(qp);
		return err;
	}
	*out = qp;
	return 0;
}

void roce_qp_destroy(struct roce_qp *qp)
{
	rsp_fini(qp);
	qp_fini(&qp->base);
	free(qp);
}

uint32_t roce_qp_num(const struct roce_qp *qp)
{
	return qp->base.wire_qpn;
}

enum ibv_qp_state roce_qp_state(const struct roce_qp *qp)
{
	return qp->base.state;
}

enum ibv_qp_type roce_qp_type(const struct roce_qp *qp)
{
	return qp->base.type;
}

const struct roce_path *roce_qp_path(const struct roce_qp *qp)
{
	return &qp->path;
}

void roce_qp_moved(struct roce_qp *qp, const struct roce_path *path)
{
	const bool other = qp->path.lossless != path->lossless;

	qp->path = *path;
	qp->path_hash = roce_path_back(path);
	qp_public_set(&qp->base.pub->path_hash, qp->path_hash);
	if (other)
		cc_init(qp);
}

uint32_t roce_qp_dest(const struct roce_qp *qp)
{
	return qp->dest_qpn;
}

const struct roce_qp_stats *roce_qp_stats(const struct roce_qp *qp)
{
	return &qp->stats;
}

void roce_established(struct roce_qp *qp)
{
	qp->comm_est = true;
	qp_public_set(&qp->base.pub->established, true);
	qp->base.env->event(&qp->base, IBV_EVENT_COMM_EST);
}

/* ---- ends -------------------------------------------------------------- */

/*
 * Stops the timers. What the responder owes is dropped, except a NAK that
 * reports the reason to the peer, and before it the answers to what was
 * accepted before the request that it refuses: otherwise the peer would ask for
 * those again and never see the NAK.
 */
static void go_quiet(struct roce_qp *qp)
{
	qp->req.timer_ns = 0;
	qp->req.unarmed = false;
	recovery_stop(&qp->req);
	qp->req.rnr_until_ns = 0;
	qp->req.paused = false;
	qp->pace.next_ns = 0;
	qp->busy = 0;
	if (!rsp_refusing(qp))
		qp->rsp.resp_head = qp->rsp.resp_tail;
	qp->rsp.ack_pending = qp->rsp.cnp_pending = false;
	qp->rsp.ack_held = false;
	qp->rsp.in = IN_NOTHING;
}

void roce_to_err(struct roce_qp *qp)
{
	if (qp->base.state == IBV_QPS_ERR)
		return;
	qp_set_state(&qp->base, IBV_QPS_ERR);
	reorder_free(qp);
	go_quiet(qp);
	qp_flush_sq(&qp->base);
	qp_flush_rq(&qp->base);
}

void roce_to_sqe(struct roce_qp *qp)
{
	struct roce_requester *r = &qp->req;

	qp_set_state(&qp->base, IBV_QPS_SQE);
	qp_flush_sq(&qp->base);
	/* What is posted next goes on where sending ended. */
	r->post_psn = r->una = r->end_psn = r->nxt_psn;
}

void roce_fail(struct roce_qp *qp, enum ibv_event_type event)
{
	roce_to_err(qp);
	qp->base.env->event(&qp->base, event);
}

static void reset_core(struct roce_qp *qp)
{
	qp->rsp.nak_pending = false;
	go_quiet(qp);
	qp_reset(&qp->base);
	rsp_fini(qp);
	memset(&qp->req, 0, sizeof(qp->req));
	memset(&qp->path, 0, sizeof(qp->path));
	qp->dest_qpn = 0;
	qp->mtu = 0;
	qp->comm_est = false;
	qp_public_set(&qp->base.pub->established, false);
}

/* ---- transitions ------------------------------------------------------- */

static void apply_values(struct roce_qp *qp, const struct ibv_qp_attr *a,
			 int mask, const struct roce_path *path)
{
	struct qp_public *pub = qp->base.pub;

	qp_modify_apply(&qp->base, a, mask);
	if (mask & IBV_QP_AV) {
		qp->path = *path;
		qp->path_hash = roce_path_back(path);
		qp_public_set(&pub->path_hash, qp->path_hash);
	}
	if (mask & IBV_QP_PATH_MTU) {
		qp->mtu = 128u << a->path_mtu;
		qp_public_set(&pub->mtu, qp->mtu);
	}
	if (mask & IBV_QP_DEST_QPN) {
		qp->dest_qpn = a->dest_qp_num;
		qp_public_set(&pub->dest_qpn, qp->dest_qpn);
	}
	if (mask & IBV_QP_MAX_DEST_RD_ATOMIC)
		qp_public_set(&pub->dest_rd_atomic, a->max_dest_rd_atomic);
	if (mask & IBV_QP_RQ_PSN) {
		qp->rsp.epsn = a->rq_psn & PSN_MASK;
		qp->rsp.stream_pos = 1;
		qp_public_set(&pub->rq_psn, qp->rsp.epsn);
	}
}

int roce_qp_modify(struct roce_qp *qp, const struct ibv_qp_attr *attr, int mask,
		   const struct roce_path *path)
{
	enum ibv_qp_state from = qp->base.state, to;
	int err = qp_modify_check(&qp->base, attr, mask, &to);

	if (!err && mask & IBV_QP_AV && !path)
		err = -EINVAL;
	if (err)
		return err;
	if (to == IBV_QPS_RESET) {
		reset_core(qp);
		return 0;
	}
	if (to == IBV_QPS_ERR) {
		roce_to_err(qp);
		return 0;
	}
	if (mask & IBV_QP_MAX_DEST_RD_ATOMIC) {
		err = rsp_resize(qp, attr->max_dest_rd_atomic);
		if (err)
			return err;
	}
	apply_values(qp, attr, mask, path);
	if (from == IBV_QPS_INIT && to == IBV_QPS_RTR &&
	    qp->base.type == IBV_QPT_UD)
		qp->mtu = ROCE_MTU_MAX;
	if (from == IBV_QPS_RTR && to == IBV_QPS_RTS) {
		req_init(qp);
		qp_public_set(&qp->base.pub->established, true);
	}
	qp_set_state(&qp->base, to);
	if (to == IBV_QPS_SQD && from != IBV_QPS_SQD) {
		qp->base.sq_drained = false;
		req_check_drained(qp);
	}
	return 0;
}

void roce_qp_query(const struct roce_qp *qp, struct ibv_qp_attr *attr,
		   struct ibv_qp_init_attr *init)
{
	qp_query(&qp->base, attr, init);
	if (qp->base.state < IBV_QPS_RTR || qp->base.state == IBV_QPS_ERR)
		return;
	attr->rq_psn = qp->rsp.epsn;
	if (qp->base.state >= IBV_QPS_RTS)
		attr->sq_psn = qp->req.nxt_psn;
}

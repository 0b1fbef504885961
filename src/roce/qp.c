/*
 * qp.c - a queue pair's life: creation, states, work requests, completions
 *
 * The state machine is a table of transitions with the attributes each needs
 * and allows (IBTA 11.2.5.2 and ibv_modify_qp(3)); values are checked first,
 * then everything is applied. Whatever ends a QP comes through qp_to_err(),
 * which flushes both queues in order.
 */
#include "internal.h"

#define PATIENT_OUT 4u /* requests on their way, at least */
#define PATIENT_MAX 16u
#define PATIENT_LENGTH 4096u

#include <assert.h>
#include <stdlib.h>

/* ---- creation ---------------------------------------------------------- */

static int check_cap(const struct roce_qp_init *init)
{
	const struct ibv_qp_cap *c = &init->cap;

	if (c->max_send_wr > QP_MAX_WR || c->max_send_sge > QP_MAX_SGE ||
	    c->max_inline_data > QP_MAX_INLINE)
		return -EINVAL;
	if (!init->srq &&
	    (c->max_recv_wr > QP_MAX_WR || c->max_recv_sge > QP_MAX_SGE))
		return -EINVAL;
	return 0;
}

static int sq_init(struct roce_qp *qp)
{
	struct roce_sq *sq = &qp->sq;
	size_t payload;

	sq->max_wr = qp->cap.max_send_wr;
	sq->max_sge = qp->cap.max_send_sge;
	payload = sq->max_sge * sizeof(struct ibv_sge);
	if (payload < qp->cap.max_inline_data)
		payload = qp->cap.max_inline_data;
	payload = (payload + 15) / 16 * 16;
	sq->max_inline = qp->cap.max_inline_data;
	if (qp->type == IBV_QPT_UD)
		payload += (sizeof(struct roce_path) + 7) / 8 * 8;
	sq->stride = (sizeof(struct roce_wqe) + payload + 15) / 16 * 16;
	sq->depth = round_up_pow2(sq->max_wr);
	if (!sq->max_wr)
		return 0;
	sq->ring = qp_mem_alloc(&qp->rq.mem, sq->depth * sq->stride,
				  QP_MEM_SQ);
	return sq->ring ? 0 : -ENOMEM;
}

int roce_qp_create(struct roce_qp **out, struct roce_qp_init *init)
{
	struct roce_qp *qp;
	int err = check_cap(init);

	if (err)
		return err;
	qp = calloc(1, sizeof(*qp));
	if (!qp)
		return -ENOMEM;
	qp->env = init->env;
	qp->owner = init->owner;
	qp->qpn = init->qpn;
	qp->pd = init->pd;
	qp->type = init->type;
	qp->send_cq = init->send_cq;
	qp->recv_cq = init->recv_cq;
	qp->srq = init->srq;
	qp->sq_sig_all = init->sq_sig_all;
	qp->seed = init->seed;
	qp->state = IBV_QPS_RESET;
	switch (init->type) {
	case IBV_QPT_RC:
		qp->service = ROCE_RC;
		break;
	case IBV_QPT_UC:
		qp->service = ROCE_UC;
		break;
	case IBV_QPT_UD:
		qp->service = ROCE_UD;
		break;
	case IBV_QPT_XRC_SEND:
	case IBV_QPT_XRC_RECV:
		if (!init->env->xrc_srq_take) {
			err = -EOPNOTSUPP;
			goto err_free;
		}
		qp->service = ROCE_XRC;
		break;
	default:
		err = -EOPNOTSUPP;
		goto err_free;
	}
	if (init->srq || qp->service == ROCE_XRC)
		init->cap.max_recv_wr = init->cap.max_recv_sge = 0;
	if (init->type == IBV_QPT_XRC_RECV)
		init->cap.max_send_wr = init->cap.max_send_sge =
			init->cap.max_inline_data = 0;
	/* Room for one piece of memory whatever was asked, as hardware has. */
	if (init->cap.max_send_wr && !init->cap.max_send_sge)
		init->cap.max_send_sge = 1;
	/* Where an SGE fits, as many bytes do: programs (rdma_xclient) rely on
	 * it, since it is so everywhere. */
	if (init->cap.max_send_wr)
		init->cap.max_inline_data = max_u32(
			init->cap.max_inline_data,
			init->cap.max_send_sge *
				(uint32_t)sizeof(struct ibv_sge));
	qp->cap = init->cap;
	err = qp_rq_init(&qp->rq, qp->cap.max_recv_wr, qp->cap.max_recv_sge,
			   qp->pd, &init->mem);
	if (err)
		goto err_free;
	err = sq_init(qp);
	if (err)
		goto err_free_rq;
	*out = qp;
	return 0;

err_free_rq:
	qp_rq_fini(&qp->rq);
err_free:
	free(qp);
	return err;
}

void roce_qp_destroy(struct roce_qp *qp)
{
	rsp_fini(qp);
	qp_mem_free(&qp->rq.mem, qp->sq.ring);
	qp_rq_fini(&qp->rq);
	free(qp);
}

void *roce_qp_owner(const struct roce_qp *qp)
{
	return qp->owner;
}

uint32_t roce_qp_num(const struct roce_qp *qp)
{
	return qp->qpn;
}

enum ibv_qp_state roce_qp_state(const struct roce_qp *qp)
{
	return qp->state;
}

enum ibv_qp_type roce_qp_type(const struct roce_qp *qp)
{
	return qp->type;
}

const struct roce_path *roce_qp_path(const struct roce_qp *qp)
{
	return &qp->path;
}

uint32_t roce_qp_dest(const struct roce_qp *qp)
{
	return qp->dest_qpn;
}

const struct roce_qp_stats *roce_qp_stats(const struct roce_qp *qp)
{
	return &qp->stats;
}

/* ---- completions ------------------------------------------------------- */

static enum ibv_wc_opcode send_wc_opcode(const struct roce_wqe *w)
{
	switch (w->opcode) {
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		return IBV_WC_RDMA_WRITE;
	case IBV_WR_RDMA_READ:
		return IBV_WC_RDMA_READ;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
		return IBV_WC_COMP_SWAP;
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		return IBV_WC_FETCH_ADD;
	case IBV_WR_ATOMIC_WRITE:
		return IBV_WC_ATOMIC_WRITE;
	case IBV_WR_LOCAL_INV:
		return IBV_WC_LOCAL_INV;
	case IBV_WR_BIND_MW:
		return IBV_WC_BIND_MW;
	default:
		return IBV_WC_SEND;
	}
}

bool sq_complete(struct roce_qp *qp, enum ibv_wc_status status)
{
	struct roce_wqe *w = sq_slot(&qp->sq, qp->sq.head);
	struct ibv_wc wc = {
		.wr_id = w->wr_id,
		.status = status,
		.opcode = send_wc_opcode(w),
		.byte_len = w->length,
		.qp_num = qp->qpn,
	};

	if (qp->sq.nxt == qp->sq.head)
		qp->sq.nxt++;
	qp->sq.head++;
	if (status == IBV_WC_SUCCESS && !qp->sq_sig_all &&
	    !(w->flags & IBV_SEND_SIGNALED))
		return true;
	return qp->env->complete(qp, qp->send_cq, &wc, false) == 0;
}

bool recv_complete(struct roce_qp *qp, const struct qp_recv *r,
		   struct ibv_wc *wc, bool solicited)
{
	wc->wr_id = r->wr_id;
	wc->qp_num = qp->qpn;
	if (wc->status == IBV_WC_SUCCESS && qp->type != IBV_QPT_UD)
		wc->src_qp = qp->dest_qpn;
	if (!qp->env->complete(qp, r->cq ? r->cq : qp->recv_cq, wc, solicited))
		return true;
	if (qp->state != IBV_QPS_ERR)
		qp_fail(qp, IBV_EVENT_QP_FATAL);
	return false;
}

int recv_take(struct roce_qp *qp, uint64_t room, struct qp_recv *out)
{
	return qp->srq ? qp->env->srq_take(qp, qp->srq, room, out) :
			 qp_rq_take(&qp->rq, room, out);
}

/* ---- ends -------------------------------------------------------------- */

static void flush_sq(struct roce_qp *qp)
{
	while (qp->sq.head != qp->sq.tail)
		sq_complete(qp, IBV_WC_WR_FLUSH_ERR);
	qp->sq.nxt = qp->sq.head;
}

static void flush_recv(struct roce_qp *qp, const struct qp_recv *r)
{
	struct ibv_wc wc = {
		.status = IBV_WC_WR_FLUSH_ERR,
		.opcode = IBV_WC_RECV,
	};

	recv_complete(qp, r, &wc, false);
}

static void flush_rq(struct roce_qp *qp)
{
	struct qp_recv r;

	if (qp->rsp.recv_valid) {
		qp->rsp.recv_valid = false;
		flush_recv(qp, &qp->rsp.recv);
	}
	if (qp->type == IBV_QPT_XRC_SEND)
		return;
	if (qp->srq || qp->type == IBV_QPT_XRC_RECV) {
		qp->env->event(qp, IBV_EVENT_QP_LAST_WQE_REACHED);
		return;
	}
	while (!qp_rq_take(&qp->rq, 0, &r))
		flush_recv(qp, &r);
}

/*
 * Stops the timers. What the responder owes is not sent any more, but a NAK
 * that tells the peer why is, and before it the answers to what was accepted
 * before the request that it refuses: the peer would ask for them again, and
 * never hear of the NAK.
 */
static void go_quiet(struct roce_qp *qp)
{
	qp->req.timer_ns = 0;
	qp->req.rnr_until_ns = 0;
	qp->pace.next_ns = 0;
	qp->busy = 0;
	if (!rsp_refusing(qp))
		qp->rsp.resp_head = qp->rsp.resp_tail;
	qp->rsp.ack_pending = qp->rsp.cnp_pending = false;
	qp->rsp.in = IN_NOTHING;
}

void qp_to_err(struct roce_qp *qp)
{
	if (qp->state == IBV_QPS_ERR)
		return;
	qp->state = IBV_QPS_ERR;
	go_quiet(qp);
	flush_sq(qp);
	flush_rq(qp);
}

void qp_to_sqe(struct roce_qp *qp)
{
	struct roce_requester *r = &qp->req;

	qp->state = IBV_QPS_SQE;
	flush_sq(qp);
	/* What is posted next goes on where sending ended. */
	r->post_psn = r->una = r->end_psn = r->nxt_psn;
}

void qp_fail(struct roce_qp *qp, enum ibv_event_type event)
{
	qp_to_err(qp);
	qp->env->event(qp, event);
}

static void qp_reset(struct roce_qp *qp)
{
	struct qp_recv r;

	qp->rsp.nak_pending = false;
	go_quiet(qp);
	qp->sq.head = qp->sq.nxt = qp->sq.tail = 0;
	while (!qp_rq_take(&qp->rq, 0, &r))
		;
	rsp_fini(qp);
	memset(&qp->req, 0, sizeof(qp->req));
	memset(&qp->attr, 0, sizeof(qp->attr));
	memset(&qp->path, 0, sizeof(qp->path));
	qp->dest_qpn = 0;
	qp->mtu = 0;
	qp->comm_est = false;
	qp->sq_drained = qp->sqd_notify = false;
	qp->state = IBV_QPS_RESET;
}

/* ---- transitions ------------------------------------------------------- */

struct transition {
	bool valid;
	int required[5]; /* RC UC UD XRC_SEND XRC_RECV */
	int optional[5];
};

#define CONN_INIT (IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)
#define UD_INIT (IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY)
#define UC_RTR (IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN)
#define RC_RTR (UC_RTR | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)
/* An XRC_SEND QP requests only, an XRC_RECV QP responds only. */
#define XRECV_RTS (IBV_QP_SQ_PSN | IBV_QP_TIMEOUT)
#define XSEND_SQD_OPT                                                         \
	(UC_SQD_OPT | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |  \
	 IBV_QP_MAX_QP_RD_ATOMIC)
#define XRECV_SQD_OPT                                                         \
	(UC_SQD_OPT | IBV_QP_TIMEOUT | IBV_QP_MAX_DEST_RD_ATOMIC |            \
	 IBV_QP_MIN_RNR_TIMER)
#define RTR_OPT (IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX)
#define RC_RTS                                                                \
	(IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |               \
	 IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC)
#define UC_RTS_OPT                                                            \
	(IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS |           \
	 IBV_QP_PATH_MIG_STATE)
#define RC_RTS_OPT (UC_RTS_OPT | IBV_QP_MIN_RNR_TIMER)
#define UD_RTS_OPT (IBV_QP_CUR_STATE | IBV_QP_QKEY)
#define UC_SQD_OPT                                                            \
	(IBV_QP_PORT | IBV_QP_AV | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS |    \
	 IBV_QP_PKEY_INDEX | IBV_QP_PATH_MIG_STATE)
#define RC_SQD_OPT                                                            \
	(UC_SQD_OPT | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |  \
	 IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC |                \
	 IBV_QP_MIN_RNR_TIMER)

/* Moves to RESET and ERR, which need nothing, are not listed. */
static const struct transition transitions[IBV_QPS_ERR + 1][IBV_QPS_ERR + 1] = {
	[IBV_QPS_RESET][IBV_QPS_INIT] = {
		true, { CONN_INIT, CONN_INIT, UD_INIT, CONN_INIT, CONN_INIT },
		{ 0 } },
	[IBV_QPS_INIT][IBV_QPS_INIT] = {
		true, { 0 },
		{ CONN_INIT, CONN_INIT, UD_INIT, CONN_INIT, CONN_INIT } },
	[IBV_QPS_INIT][IBV_QPS_RTR] = {
		true, { RC_RTR, UC_RTR, 0, UC_RTR, RC_RTR },
		{ RTR_OPT, RTR_OPT, IBV_QP_PKEY_INDEX | IBV_QP_QKEY, RTR_OPT,
		  RTR_OPT } },
	[IBV_QPS_RTR][IBV_QPS_RTS] = {
		true,
		{ RC_RTS, IBV_QP_SQ_PSN, IBV_QP_SQ_PSN, RC_RTS, XRECV_RTS },
		{ RC_RTS_OPT, UC_RTS_OPT, UD_RTS_OPT, UC_RTS_OPT, RC_RTS_OPT } },
	[IBV_QPS_RTS][IBV_QPS_RTS] = {
		true, { 0 },
		{ RC_RTS_OPT, UC_RTS_OPT, UD_RTS_OPT, UC_RTS_OPT, RC_RTS_OPT } },
	[IBV_QPS_RTS][IBV_QPS_SQD] = {
		true, { 0 },
		{ IBV_QP_EN_SQD_ASYNC_NOTIFY, IBV_QP_EN_SQD_ASYNC_NOTIFY,
		  IBV_QP_EN_SQD_ASYNC_NOTIFY, IBV_QP_EN_SQD_ASYNC_NOTIFY,
		  IBV_QP_EN_SQD_ASYNC_NOTIFY } },
	[IBV_QPS_SQD][IBV_QPS_SQD] = {
		true, { 0 },
		{ RC_SQD_OPT, UC_SQD_OPT, IBV_QP_PKEY_INDEX | IBV_QP_QKEY,
		  XSEND_SQD_OPT, XRECV_SQD_OPT } },
	[IBV_QPS_SQD][IBV_QPS_RTS] = {
		true, { 0 },
		{ RC_RTS_OPT, UC_RTS_OPT, UD_RTS_OPT, UC_RTS_OPT, RC_RTS_OPT } },
	[IBV_QPS_SQE][IBV_QPS_RTS] = {
		true, { 0 },
		{ 0, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS, UD_RTS_OPT, 0,
		  0 } },
};

static unsigned type_column(const struct roce_qp *qp)
{
	switch (qp->type) {
	case IBV_QPT_RC:
		return 0;
	case IBV_QPT_UC:
		return 1;
	case IBV_QPT_UD:
		return 2;
	case IBV_QPT_XRC_SEND:
		return 3;
	default:
		return 4;
	}
}

static int check_transition(const struct roce_qp *qp,
			    const struct ibv_qp_attr *attr, int mask,
			    enum ibv_qp_state to)
{
	const struct transition *t = &transitions[qp->state][to];
	unsigned col = type_column(qp);
	int attrs = mask & ~IBV_QP_STATE;

	if (to == IBV_QPS_RESET || to == IBV_QPS_ERR)
		return attrs & ~IBV_QP_CUR_STATE ? -EINVAL : 0;
	if (qp->state == IBV_QPS_SQE && is_reliable(qp))
		return -EINVAL;
	if (!t->valid || (attrs & t->required[col]) != t->required[col] ||
	    attrs & ~(t->required[col] | t->optional[col]))
		return -EINVAL;
	if (mask & IBV_QP_CUR_STATE && attr->cur_qp_state != qp->state)
		return -EINVAL;
	return 0;
}

static int check_values(const struct ibv_qp_attr *a, int mask,
			const struct roce_path *path)
{
	if (mask & IBV_QP_ALT_PATH)
		return -EOPNOTSUPP; /* no automatic path migration */
	if ((mask & IBV_QP_AV && !path) ||
	    (mask & IBV_QP_PKEY_INDEX && a->pkey_index != 0) ||
	    (mask & IBV_QP_PORT && a->port_num != 1) ||
	    (mask & IBV_QP_PATH_MTU && (a->path_mtu < IBV_MTU_256 ||
					a->path_mtu > IBV_MTU_4096)) ||
	    (mask & IBV_QP_TIMEOUT && a->timeout > 31) ||
	    (mask & IBV_QP_RETRY_CNT && a->retry_cnt > 7) ||
	    (mask & IBV_QP_RNR_RETRY && a->rnr_retry > 7) ||
	    (mask & IBV_QP_MIN_RNR_TIMER && a->min_rnr_timer > 31) ||
	    (mask & IBV_QP_DEST_QPN && a->dest_qp_num > 0xffffff) ||
	    (mask & IBV_QP_MAX_QP_RD_ATOMIC &&
	     a->max_rd_atomic > QP_MAX_RD_ATOMIC) ||
	    (mask & IBV_QP_MAX_DEST_RD_ATOMIC &&
	     a->max_dest_rd_atomic > QP_MAX_RD_ATOMIC) ||
	    (mask & IBV_QP_PATH_MIG_STATE &&
	     a->path_mig_state != IBV_MIG_MIGRATED))
		return -EINVAL;
	return 0;
}

static void apply_values(struct roce_qp *qp, const struct ibv_qp_attr *a,
			 int mask, const struct roce_path *path)
{
	struct ibv_qp_attr *q = &qp->attr;

	if (mask & IBV_QP_PKEY_INDEX)
		q->pkey_index = a->pkey_index;
	if (mask & IBV_QP_PORT)
		q->port_num = a->port_num;
	if (mask & IBV_QP_QKEY)
		q->qkey = a->qkey;
	if (mask & IBV_QP_ACCESS_FLAGS)
		q->qp_access_flags = a->qp_access_flags;
	if (mask & IBV_QP_AV) {
		q->ah_attr = a->ah_attr;
		qp->path = *path;
	}
	if (mask & IBV_QP_PATH_MTU) {
		q->path_mtu = a->path_mtu;
		qp->mtu = 128u << a->path_mtu;
	}
	if (mask & IBV_QP_DEST_QPN)
		q->dest_qp_num = qp->dest_qpn = a->dest_qp_num;
	if (mask & IBV_QP_RQ_PSN) {
		q->rq_psn = qp->rsp.epsn = a->rq_psn & PSN_MASK;
		qp->rsp.place = 1;
	}
	if (mask & IBV_QP_SQ_PSN)
		q->sq_psn = a->sq_psn & PSN_MASK;
	if (mask & IBV_QP_TIMEOUT)
		q->timeout = a->timeout;
	if (mask & IBV_QP_RETRY_CNT)
		q->retry_cnt = a->retry_cnt;
	if (mask & IBV_QP_RNR_RETRY)
		q->rnr_retry = a->rnr_retry;
	if (mask & IBV_QP_MIN_RNR_TIMER)
		q->min_rnr_timer = a->min_rnr_timer;
	if (mask & IBV_QP_MAX_QP_RD_ATOMIC)
		q->max_rd_atomic = a->max_rd_atomic;
	if (mask & IBV_QP_MAX_DEST_RD_ATOMIC)
		q->max_dest_rd_atomic = a->max_dest_rd_atomic;
	if (mask & IBV_QP_EN_SQD_ASYNC_NOTIFY)
		qp->sqd_notify = a->en_sqd_async_notify != 0;
}

void sq_check_drained(struct roce_qp *qp)
{
	if (qp->state != IBV_QPS_SQD || qp->sq_drained)
		return;
	/* Drained: nothing that was begun is still on its way, or has to be
	 * sent again. */
	if (qp->sq.head != qp->sq.nxt ||
	    (is_reliable(qp) && qp->req.una != qp->req.end_psn) ||
	    (qp->sq.nxt != qp->sq.tail &&
	     qp->req.nxt_psn != sq_slot(&qp->sq, qp->sq.nxt)->first_psn))
		return;
	qp->sq_drained = true;
	if (qp->sqd_notify)
		qp->env->event(qp, IBV_EVENT_SQ_DRAINED);
}

int roce_qp_modify(struct roce_qp *qp, const struct ibv_qp_attr *attr,
		   int mask, const struct roce_path *path)
{
	enum ibv_qp_state to =
		mask & IBV_QP_STATE ? attr->qp_state : qp->state;
	enum ibv_qp_state from = qp->state;
	int err;

	if ((unsigned)to > IBV_QPS_ERR)
		return -EINVAL;
	err = check_transition(qp, attr, mask, to);
	if (!err)
		err = check_values(attr, mask, path);
	if (err)
		return err;
	if (to == IBV_QPS_RESET) {
		qp_reset(qp);
		return 0;
	}
	if (to == IBV_QPS_ERR) {
		qp_to_err(qp);
		return 0;
	}
	if (mask & IBV_QP_MAX_DEST_RD_ATOMIC) {
		err = rsp_resize(qp, attr->max_dest_rd_atomic);
		if (err)
			return err;
	}
	apply_values(qp, attr, mask, path);
	if (from == IBV_QPS_INIT && to == IBV_QPS_RTR &&
	    qp->type == IBV_QPT_UD)
		qp->mtu = ROCE_MTU_MAX;
	if (from == IBV_QPS_RTR && to == IBV_QPS_RTS)
		req_init(qp);
	qp->state = to;
	if (to == IBV_QPS_SQD && from != IBV_QPS_SQD) {
		qp->sq_drained = false;
		sq_check_drained(qp);
	}
	return 0;
}

void roce_qp_query(const struct roce_qp *qp, struct ibv_qp_attr *attr,
		   struct ibv_qp_init_attr *init)
{
	*attr = qp->attr;
	attr->qp_state = attr->cur_qp_state = qp->state;
	attr->path_mig_state = IBV_MIG_MIGRATED;
	attr->cap = qp->cap;
	attr->sq_draining = qp->state == IBV_QPS_SQD && !qp->sq_drained;
	attr->en_sqd_async_notify = qp->sqd_notify;
	if (qp->state >= IBV_QPS_RTR && qp->state != IBV_QPS_ERR)
		attr->rq_psn = qp->rsp.epsn;
	if (qp->state >= IBV_QPS_RTS && qp->state != IBV_QPS_ERR)
		attr->sq_psn = qp->req.nxt_psn;
	init->cap = qp->cap;
	init->qp_type = qp->type;
	init->sq_sig_all = qp->sq_sig_all;
}

/* ---- work requests ----------------------------------------------------- */

enum { T_RC = 1 << 0 | 1 << 3 /* and XRC_SEND */, T_UC = 1 << 1, T_UD = 1 << 2 };

/* On which services an opcode exists (ibv_post_send(3)). */
static const uint8_t opcode_services[] = {
	[IBV_WR_RDMA_WRITE] = T_RC | T_UC,
	[IBV_WR_RDMA_WRITE_WITH_IMM] = T_RC | T_UC,
	[IBV_WR_SEND] = T_RC | T_UC | T_UD,
	[IBV_WR_SEND_WITH_IMM] = T_RC | T_UC | T_UD,
	[IBV_WR_RDMA_READ] = T_RC,
	[IBV_WR_ATOMIC_CMP_AND_SWP] = T_RC,
	[IBV_WR_ATOMIC_FETCH_AND_ADD] = T_RC,
	[IBV_WR_LOCAL_INV] = T_RC | T_UC,
	[IBV_WR_BIND_MW] = T_RC | T_UC,
	[IBV_WR_SEND_WITH_INV] = T_RC,
	[IBV_WR_ATOMIC_WRITE] = T_RC,
};

/* Whether the QP's service has the operation. */
static bool is_offered(const struct roce_qp *qp, enum ibv_wr_opcode opcode)
{
	return opcode_services[opcode] & 1u << type_column(qp);
}

/*
 * Only what cannot be put into a WQE is refused here. Whether the request can
 * be carried out is for its completion to say, as with hardware.
 */
static int check_send(const struct roce_qp *qp, const struct ibv_send_wr *wr)
{
	unsigned flags = IBV_SEND_FENCE | IBV_SEND_SIGNALED |
			 IBV_SEND_SOLICITED | IBV_SEND_INLINE;

	if (qp->type == IBV_QPT_XRC_RECV ||
	    (unsigned)wr->opcode >= ARRAY_SIZE(opcode_services) ||
	    !opcode_services[wr->opcode])
		return -EINVAL;
	if (wr->opcode == IBV_WR_LOCAL_INV &&
	    (!qp->env->invalidate || !is_offered(qp, wr->opcode)))
		return -EINVAL;
	if (wr->opcode == IBV_WR_BIND_MW &&
	    (!qp->env->bind_mw || !is_offered(qp, wr->opcode)))
		return -EINVAL;
	if (wr->send_flags & ~flags)
		return -EINVAL;
	if (wr->num_sge < 0 || (uint32_t)wr->num_sge > qp->sq.max_sge)
		return -EINVAL;
	return 0;
}

/* Data of the WR into the slot; its length, or -EINVAL. */
static int64_t take_data(const struct roce_qp *qp, struct roce_wqe *w,
			 const struct ibv_send_wr *wr)
{
	bool inl = wr->send_flags & IBV_SEND_INLINE;
	uint32_t max_inline = qp->sq.max_inline;
	uint8_t *data = wqe_data(qp, w);
	uint64_t length = 0;

	/* An atomic write's eight bytes fit where an SGE would be. */
	if (wr->opcode == IBV_WR_ATOMIC_WRITE)
		max_inline = sizeof(uint64_t);
	else if (inl && wqe_has_response(w))
		return -EINVAL;
	for (int i = 0; i < wr->num_sge; i++) {
		const struct ibv_sge *s = &wr->sg_list[i];

		if (inl) {
			if (length + s->length > max_inline)
				return -EINVAL;
			memcpy(data + length, (void *)(uintptr_t)s->addr,
			       s->length);
		}
		length += s->length;
	}
	if (length > QP_MAX_MSG)
		return -EINVAL;
	w->num_sge = inl ? 0 : (uint32_t)wr->num_sge;
	if (w->num_sge)
		memcpy(data, wr->sg_list,
		       sizeof(*wr->sg_list) * (size_t)wr->num_sge);
	return (int64_t)length;
}

/*
 * A window keeps its index; the program chooses the tag (10.6.7), and programs
 * do so with an rkey of any index, or leave one in mw->rkey.
 */
static int take_bind(const struct roce_qp *qp, struct roce_wqe *w,
		     const struct ibv_send_wr *wr)
{
	const struct ibv_mw_bind_info *info = &wr->bind_mw.bind_info;
	struct ibv_mw *mw = wr->bind_mw.mw;
	uint32_t rkey = 0;

	if (mw)
		rkey = keys_with_tag(qp->env->keys, mw->handle,
				     wr->bind_mw.rkey);
	if (!rkey || (info->length && !info->mr))
		return -EINVAL;
	/* Others of the program may look at it, or bind the same window. */
	__atomic_store_n(&mw->rkey, rkey, __ATOMIC_RELAXED);
	w->bind = (struct qp_bind){
		.rkey = rkey,
		.lkey = info->mr ? info->mr->lkey : 0,
		.access = info->mw_access_flags,
		.addr = info->addr,
		.length = info->length,
	};
	return 0;
}

/* An atomic's local buffer holds eight bytes; w fails in its turn if not. */
static bool is_eight_bytes(struct roce_qp *qp, struct roce_wqe *w)
{
	if (w->length == 8)
		return true;
	explain(qp, "work request 0x%llx: an atomic with a local buffer of %u bytes, which must be 8",
		(unsigned long long)w->wr_id, w->length);
	w->status = IBV_WC_LOC_LEN_ERR;
	return false;
}

/* What the opcode needs besides data. */
static int take_request(struct roce_qp *qp, struct roce_wqe *w,
			const struct ibv_send_wr *wr,
			const struct roce_path *ud)
{
	switch (wr->opcode) {
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		is_eight_bytes(qp, w);
		w->remote_addr = wr->wr.atomic.remote_addr;
		w->rkey = wr->wr.atomic.rkey;
		w->compare_add = wr->wr.atomic.compare_add;
		w->swap = wr->wr.atomic.swap;
		break;
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
	case IBV_WR_RDMA_READ:
		w->remote_addr = wr->wr.rdma.remote_addr;
		w->rkey = wr->wr.rdma.rkey;
		break;
	case IBV_WR_ATOMIC_WRITE:
		w->remote_addr = wr->wr.rdma.remote_addr;
		w->rkey = wr->wr.rdma.rkey;
		/* Eight bytes that travel in the packet: taken now. */
		if (!is_eight_bytes(qp, w))
			break;
		if (wr->send_flags & IBV_SEND_INLINE)
			memcpy(&w->swap, wqe_data(qp, w), 8);
		else if (wr->num_sge != 1 ||
			 mem_load8(qp, wr->sg_list, &w->swap))
			w->status = IBV_WC_LOC_PROT_ERR;
		break;
	case IBV_WR_SEND_WITH_INV:
		w->rkey = wr->invalidate_rkey;
		break;
	case IBV_WR_LOCAL_INV:
		w->local = true;
		w->rkey = wr->invalidate_rkey;
		break;
	case IBV_WR_BIND_MW:
		w->local = true;
		if (take_bind(qp, w, wr))
			return -EINVAL;
		break;
	default:
		break;
	}
	if (wqe_has_response(w) && !qp->attr.max_rd_atomic)
		return -EINVAL; /* would wait for ever */
	if (qp->type == IBV_QPT_XRC_SEND)
		w->remote_srqn = wr->qp_type.xrc.remote_srqn;
	if (qp->type == IBV_QPT_UD) {
		if (!ud)
			return -EINVAL;
		*wqe_path(w) = *ud;
		w->remote_qpn = wr->wr.ud.remote_qpn & 0xffffff;
		/* High bit: the QP's own Q_Key (IBTA 10.2.5). */
		w->remote_qkey = wr->wr.ud.remote_qkey & 0x80000000u ?
					 qp->attr.qkey :
					 wr->wr.ud.remote_qkey;
		w->drop = w->length > qp->mtu;
	}
	return 0;
}

int roce_post_send(struct roce_qp *qp, const struct ibv_send_wr *wr,
		   const struct roce_path *ud)
{
	struct roce_sq *sq = &qp->sq;
	struct roce_wqe *w;
	uint32_t npkts = 0;
	int64_t length;
	int err;

	if (qp->state < IBV_QPS_RTS)
		return -EINVAL;
	err = check_send(qp, wr);
	if (err)
		return err;
	if (sq->tail - sq->head >= sq->max_wr)
		return -ENOMEM;
	w = sq_slot(sq, sq->tail);
	memset(w, 0, sizeof(*w));
	w->wr_id = wr->wr_id;
	w->opcode = (uint8_t)wr->opcode;
	w->flags = (uint16_t)wr->send_flags;
	w->imm = wr->imm_data;
	w->status = IBV_WC_SUCCESS;
	length = take_data(qp, w, wr);
	if (length < 0)
		return (int)length;
	w->length = (uint32_t)length;
	if (is_offered(qp, wr->opcode)) {
		err = take_request(qp, w, wr, ud);
		if (err)
			return err;
	} else {
		explain(qp, "work request 0x%llx: a QP of this type has no such operation",
			(unsigned long long)w->wr_id);
		w->status = IBV_WC_LOC_QP_OP_ERR;
	}
	if (qp->state == IBV_QPS_ERR || qp->state == IBV_QPS_SQE) {
		sq->tail++;
		sq->nxt = sq->head;
		sq_complete(qp, IBV_WC_WR_FLUSH_ERR);
		return 0;
	}
	if (!w->local)
		npkts = pkts_of(w->length, qp->mtu);
	w->first_psn = qp->req.post_psn;
	w->last_psn = psn_add(w->first_psn, npkts - 1);
	qp->req.post_psn = psn_add(w->first_psn, npkts);
	sq->tail++;
	return 0;
}

struct roce_sq_mark roce_sq_mark(const struct roce_qp *qp)
{
	return (struct roce_sq_mark){ qp->sq.tail, qp->req.post_psn };
}

void roce_sq_undo(struct roce_qp *qp, struct roce_sq_mark mark)
{
	if (qp->state == IBV_QPS_ERR || qp->state == IBV_QPS_SQE)
		return;
	qp->sq.tail = mark.tail;
	qp->req.post_psn = mark.psn;
}

int roce_post_recv(struct roce_qp *qp, const struct ibv_recv_wr *wr)
{
	int err;

	if (qp->srq || qp->state == IBV_QPS_RESET ||
	    qp->type == IBV_QPT_XRC_SEND || qp->type == IBV_QPT_XRC_RECV)
		return -EINVAL;
	err = qp_rq_post(&qp->rq, wr);
	if (!err && qp->state == IBV_QPS_ERR)
		flush_rq(qp);
	return err;
}

/* ---- packets ----------------------------------------------------------- */

static bool pkey_matches(uint16_t pkey)
{
	/* Ours is the default with full membership, which matches both. */
	return (pkey & 0x7fff) == (ROCE_PKEY_DEFAULT & 0x7fff);
}

void qp_drop(struct roce_qp *qp, enum roce_drop why)
{
	/* What points to a mistake in the program or the network. */
	static const char *const mistakes[ROCE_DROPS] = {
		[ROCE_DROP_OPCODE] = "its opcode is not one of this QP's type, or not expected here",
		[ROCE_DROP_HEADER] = "its P_Key is not 0xffff, or its transport version is not 0",
		[ROCE_DROP_ADDRESS] = "it comes from, or is for, an address that is not that of the connection: has the peer several, or given another GID?",
	};

	qp->stats.dropped++;
	if (qp->env->dropped)
		qp->env->dropped(qp, why);
	if (mistakes[why] && !(qp->drops_told & 1u << why)) {
		qp->drops_told |= 1u << why;
		explain(qp, "a packet is dropped, as any that follow for this reason: %s",
			mistakes[why]);
	}
}

/* Header and opcode, of any service. */
static int rx_check_header(const struct roce_rx *pkt, uint8_t service)
{
	uint8_t op = pkt->h.opcode;

	/* MigReq is not looked at: rxe sends 0, ConnectX 1 (17.2.8). */
	if (pkt->h.tver != 0 || !pkey_matches(pkt->h.pkey))
		return 1 + ROCE_DROP_HEADER;
	if (!roce_opcode(op)->name ||
	    (op == ROCE_CNP ? service == ROCE_UD : (op & 0xe0) != service))
		return 1 + ROCE_DROP_OPCODE;
	return 0;
}

int rx_check_connected(const struct roce_rx *pkt, uint8_t service,
		       const struct roce_path *path)
{
	int drop = rx_check_header(pkt, service);

	if (!drop && (memcmp(&pkt->sgid, &path->dgid, sizeof(pkt->sgid)) ||
		      memcmp(&pkt->dgid, &path->sgid, sizeof(pkt->dgid))))
		drop = 1 + ROCE_DROP_ADDRESS;
	return drop;
}

/*
 * Checks that hold for every packet of a service (IBTA 9.6.1). Returns 0 or
 * 1 + enum roce_drop.
 */
static int rx_check(const struct roce_qp *qp, const struct roce_rx *pkt)
{
	if (qp->state < IBV_QPS_RTR || qp->state == IBV_QPS_ERR)
		return 1 + ROCE_DROP_STATE;
	if (qp->type == IBV_QPT_UD)
		return rx_check_header(pkt, qp->service);
	return rx_check_connected(pkt, qp->service, &qp->path);
}

void roce_rx(struct roce_qp *qp, const struct roce_rx *pkt, uint64_t now_ns)
{
	const struct roce_opcode *op = roce_opcode(pkt->h.opcode);
	int drop = rx_check(qp, pkt);

	if (drop) {
		qp_drop(qp, (enum roce_drop)(drop - 1));
		return;
	}
	qp->stats.rx_pkts++;
	if (qp->type == IBV_QPT_UD) {
		ud_rx(qp, pkt);
		return;
	}
	if (pkt->h.opcode == ROCE_CNP) {
		if (is_reliable(qp))
			comp_congestion(qp);
		else
			pace_slow(qp, now_ns);
		return;
	}
	if (pkt->ecn_ce && !qp->path.local)
		rsp_congestion(qp, now_ns);
	if (qp->state == IBV_QPS_RTR && !qp->comm_est) {
		qp->comm_est = true;
		qp->env->event(qp, IBV_EVENT_COMM_EST);
	}
	if (op->flags & ROCE_F_RESPONSE) {
		if (is_reliable(qp) && qp->type != IBV_QPT_XRC_RECV &&
		    qp->state >= IBV_QPS_RTS)
			comp_rx(qp, pkt, now_ns);
		else
			qp_drop(qp, ROCE_DROP_OPCODE);
	} else if (qp->type == IBV_QPT_XRC_SEND) {
		qp_drop(qp, ROCE_DROP_OPCODE);
	} else {
		qp->rsp.asked_ns = now_ns;
		rsp_rx(qp, pkt);
	}
}

bool roce_tx_ready(const struct roce_qp *qp)
{
	return rsp_ready(qp) || req_ready(qp);
}

bool roce_tx_patient(const struct roce_qp *qp)
{
	const struct roce_sq *sq = &qp->sq;
	const struct roce_wqe *w = sq_slot(sq, sq->tail - 1);

	/* Each request that is out has asked for an acknowledgement. */
	return is_reliable(qp) && sq->nxt - sq->head >= PATIENT_OUT &&
	       sq->tail - sq->nxt < PATIENT_MAX &&
	       w->length <= PATIENT_LENGTH && !w->local && !rsp_ready(qp);
}

void roce_tx(struct roce_qp *qp, struct roce_batch *b, uint64_t now_ns)
{
	b->n = b->niov = b->nheld = 0;
	/* Responses first: the peer waits for them, and a batch is either all
	 * responses or all requests, so that it is easy to take back. */
	if (rsp_ready(qp))
		rsp_tx(qp, b);
	if (b->n)
		return;
	batch_release(b);
	if (!is_reliable(qp))
		pace_refill(qp, now_ns);
	qp->req.tx_end_psn = qp->req.end_psn;
	if (qp->type == IBV_QPT_UD)
		ud_tx(qp, b);
	else
		req_tx(qp, b, now_ns);
}

/* UC and UD: what has been handed to the link has been sent. */
static void complete_sent(struct roce_qp *qp)
{
	while (qp->sq.head != qp->sq.nxt) {
		struct roce_wqe *w = sq_slot(&qp->sq, qp->sq.head);

		if (w->status != IBV_WC_SUCCESS || (w->local && !w->executed))
			break;
		if (!sq_complete(qp, IBV_WC_SUCCESS)) {
			qp_fail(qp, IBV_EVENT_QP_FATAL);
			return;
		}
	}
	comp_head(qp);
}

/* The link had no room for the requests from pkt[sent] on. */
static void take_back(struct roce_qp *qp, const struct roce_batch *b,
		      size_t sent)
{
	uint32_t psn = b->pkt[sent].psn;
	struct roce_requester *r = &qp->req;

	if (qp->sq.head == qp->sq.tail)
		return; /* flushed while the batch was made */
	for (size_t i = sent; i < b->n; i++)
		if (roce_opcode(b->pkt[i].opcode)->flags &
			    (ROCE_F_READ | ROCE_F_ATOMIC) &&
		    r->rd_out)
			r->rd_out--;
	req_rewind(qp, psn);
	/* What never left was not begun. */
	r->end_psn = psn_diff(r->tx_end_psn, psn) > 0 ? r->tx_end_psn : psn;
}

bool roce_tx_doubt(struct roce_qp *qp)
{
	bool already = qp->doubt;

	qp->doubt = true;
	return !already;
}

void roce_tx_done(struct roce_qp *qp, struct roce_batch *b, size_t sent,
		  uint64_t now_ns)
{
	size_t n = b->n;
	bool responses;

	assert(sent <= n);
	responses = n && (b->pkt[0].opcode == ROCE_CNP ||
			  roce_opcode(b->pkt[0].opcode)->flags &
				  ROCE_F_RESPONSE);
	qp->stats.tx_pkts += sent;
	if (responses) {
		rsp_tx_done(qp, b, sent);
	} else {
		if (sent < n)
			take_back(qp, b, sent);
		if (!is_reliable(qp) && qp->state != IBV_QPS_ERR)
			complete_sent(qp);
	}
	batch_release(b);
	if (n && sent == n)
		qp->doubt = false;
	qp->busy = sent < n;
	if (qp->busy)
		qp->busy_ns = now_ns + LINK_RETRY_NS;
	sq_check_drained(qp);
}

uint64_t roce_deadline(const struct roce_qp *qp)
{
	uint64_t t = UINT64_MAX;

	if (qp->busy)
		t = qp->busy_ns;
	if (qp->pace.next_ns && qp->pace.next_ns < t)
		t = qp->pace.next_ns;
	if (qp->req.timer_ns && qp->req.timer_ns < t)
		t = qp->req.timer_ns;
	if (qp->req.rnr_until_ns && qp->req.rnr_until_ns < t)
		t = qp->req.rnr_until_ns;
	return t;
}

void roce_expire(struct roce_qp *qp, uint64_t now_ns)
{
	if (qp->busy && now_ns >= qp->busy_ns)
		qp->busy = 0;
	if (now_ns >= qp->pace.next_ns)
		qp->pace.next_ns = 0;
	comp_expire(qp, now_ns);
}

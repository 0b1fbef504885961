/*
 * state.c - a queue pair's states: creation, transitions, attributes
 *
 * The state machine is a table of transitions with the attributes each needs
 * and allows (IBTA 11.2.5.2 and ibv_modify_qp(3)). A transition is checked
 * whole before anything of it is applied.
 */
#include "names.h"
#include "qp.h"

#include "base/bytes.h"
#include "base/why.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* ---- creation ---------------------------------------------------------- */

static int over(const char *what, uint32_t got, uint32_t max)
{
	return why(-EINVAL,
		   "cap.%s is %u, but the device has at most %u: ask for fewer",
		   what, got, max);
}

static int check_cap(const struct qp_init *init)
{
	const struct ibv_qp_cap *c = &init->cap;

	if (c->max_send_wr > QP_MAX_WR)
		return over("max_send_wr", c->max_send_wr, QP_MAX_WR);
	if (c->max_send_sge > QP_MAX_SGE)
		return over("max_send_sge", c->max_send_sge, QP_MAX_SGE);
	/* Said once to programs that look for the limit by trying. */
	if (c->max_inline_data > QP_MAX_INLINE)
		return why(-EINVAL,
			   "cap.max_inline_data is more than the %u of this "
			   "device: ask for less",
			   QP_MAX_INLINE);
	if (init->srq)
		return 0;
	if (c->max_recv_wr > QP_MAX_WR)
		return over("max_recv_wr", c->max_recv_wr, QP_MAX_WR);
	if (c->max_recv_sge > QP_MAX_SGE)
		return over("max_recv_sge", c->max_recv_sge, QP_MAX_SGE);
	return 0;
}

/* What is allocated, given what was asked for. */
static void raise_cap(struct qp_init *init)
{
	struct ibv_qp_cap *c = &init->cap;

	if (init->srq || init->type == IBV_QPT_XRC_SEND ||
	    init->type == IBV_QPT_XRC_RECV)
		c->max_recv_wr = c->max_recv_sge = 0;
	if (init->type == IBV_QPT_XRC_RECV)
		c->max_send_wr = c->max_send_sge = c->max_inline_data = 0;
	if (!c->max_send_wr)
		return;
	/* Room for one piece of memory whatever was asked, as hardware has. */
	if (!c->max_send_sge)
		c->max_send_sge = 1;
	/* Where an SGE fits, as many bytes do: programs (rdma_xclient) rely on
	 * it, since it is so everywhere. */
	c->max_inline_data =
		max_u32(c->max_inline_data,
			c->max_send_sge * (uint32_t)sizeof(struct ibv_sge));
}

static int sq_init(struct qp *qp, size_t wqe_size)
{
	struct qp_sq *sq = &qp->sq;
	size_t payload;

	sq->max_wr = qp->cap.max_send_wr;
	sq->max_sge = qp->cap.max_send_sge;
	payload = sq->max_sge * sizeof(struct ibv_sge);
	if (payload < qp->cap.max_inline_data)
		payload = qp->cap.max_inline_data;
	payload = (payload + 15) / 16 * 16;
	sq->max_inline = qp->cap.max_inline_data;
	sq->data = (uint32_t)(wqe_size + 7) / 8 * 8;
	sq->stride = (sq->data + payload + 15) / 16 * 16;
	sq->depth = round_up_pow2(sq->max_wr);
	if (!sq->max_wr)
		return 0;
	sq->ring = qp_mem_alloc(&qp->rq.mem, sq->depth * sq->stride, QP_MEM_SQ);
	return sq->ring ? 0 : -ENOMEM;
}

static uint8_t type_column(enum ibv_qp_type type)
{
	switch (type) {
	case IBV_QPT_RC:
		return 0;
	case IBV_QPT_UC:
		return 1;
	case IBV_QPT_UD:
		return 2;
	case IBV_QPT_XRC_SEND:
		return 3;
	default:
		return 4; /* XRC_RECV */
	}
}

int qp_init(struct qp *qp, struct qp_init *init, size_t wqe_size)
{
	int err = check_cap(init);

	if (err)
		return err;
	raise_cap(init);
	qp->env = init->env;
	qp->owner = init->owner;
	qp->qpn = qp->wire_qpn = init->qpn;
	qp->pd = init->pd;
	qp->type = init->type;
	qp->column = type_column(init->type);
	qp->send_cq = init->send_cq;
	qp->recv_cq = init->recv_cq;
	qp->srq = init->srq;
	qp->sq_sig_all = init->sq_sig_all;
	qp->cap = init->cap;
	err = qp_rq_init(&qp->rq, qp->cap.max_recv_wr, qp->cap.max_recv_sge,
			 qp->pd, &init->mem);
	if (err)
		return err;
	err = sq_init(qp, wqe_size);
	if (err) {
		qp_rq_fini(&qp->rq);
		return err;
	}
	qp->pub = init->pub ? init->pub : &qp->unseen;
	qp_public_set(&qp->pub->qpn, qp->wire_qpn);
	qp_public_set(&qp->pub->named, qp->qpn);
	qp_public_set(&qp->pub->type, (uint32_t)qp->type);
	qp_public_set(&qp->pub->pd, qp->pd);
	qp_set_state(qp, IBV_QPS_RESET);
	return 0;
}

void qp_renumber(struct qp *qp, uint32_t wire_qpn)
{
	qp->wire_qpn = wire_qpn;
	qp_public_set(&qp->pub->qpn, wire_qpn);
}

void qp_fini(struct qp *qp)
{
	qp_set_state(qp, IBV_QPS_RESET);
	qp_mem_free(&qp->rq.mem, qp->sq.ring);
	qp_rq_fini(&qp->rq);
}

/* ---- transitions ------------------------------------------------------- */

struct transition {
	bool valid;
	int required[5]; /* by struct qp's column */
	int optional[5];
};

#define CONN_INIT (IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)
#define UD_INIT (IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY)
#define UC_RTR (IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN)
#define RC_RTR (UC_RTR | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)
/* An XRC_SEND QP requests only, an XRC_RECV QP responds only. */
#define XRECV_RTS (IBV_QP_SQ_PSN | IBV_QP_TIMEOUT)
#define XSEND_SQD_OPT                                                          \
	(UC_SQD_OPT | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |   \
	 IBV_QP_MAX_QP_RD_ATOMIC)
#define XRECV_SQD_OPT                                                          \
	(UC_SQD_OPT | IBV_QP_TIMEOUT | IBV_QP_MAX_DEST_RD_ATOMIC |             \
	 IBV_QP_MIN_RNR_TIMER)
#define RTR_OPT (IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX)
#define RC_RTS                                                                 \
	(IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |                \
	 IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC)
#define UC_RTS_OPT                                                             \
	(IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS |            \
	 IBV_QP_PATH_MIG_STATE)
#define RC_RTS_OPT (UC_RTS_OPT | IBV_QP_MIN_RNR_TIMER)
#define UD_RTS_OPT (IBV_QP_CUR_STATE | IBV_QP_QKEY)
#define UC_SQD_OPT                                                             \
	(IBV_QP_PORT | IBV_QP_AV | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS |     \
	 IBV_QP_PKEY_INDEX | IBV_QP_PATH_MIG_STATE)
#define RC_SQD_OPT                                                             \
	(UC_SQD_OPT | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |   \
	 IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC |                 \
	 IBV_QP_MIN_RNR_TIMER)

/* Moves to RESET and ERR, which need nothing, are not listed. */
static const struct transition transitions[IBV_QPS_ERR + 1][IBV_QPS_ERR + 1] = {
	[IBV_QPS_RESET][IBV_QPS_INIT] = { true,
					  { CONN_INIT, CONN_INIT, UD_INIT,
					    CONN_INIT, CONN_INIT },
					  { 0 } },
	[IBV_QPS_INIT][IBV_QPS_INIT] = { true,
					 { 0 },
					 { CONN_INIT, CONN_INIT, UD_INIT,
					   CONN_INIT, CONN_INIT } },
	[IBV_QPS_INIT][IBV_QPS_RTR] = { true,
					{ RC_RTR, UC_RTR, 0, UC_RTR, RC_RTR },
					{ RTR_OPT, RTR_OPT,
					  IBV_QP_PKEY_INDEX | IBV_QP_QKEY,
					  RTR_OPT, RTR_OPT } },
	[IBV_QPS_RTR][IBV_QPS_RTS] = { true,
				       { RC_RTS, IBV_QP_SQ_PSN, IBV_QP_SQ_PSN,
					 RC_RTS, XRECV_RTS },
				       { RC_RTS_OPT, UC_RTS_OPT, UD_RTS_OPT,
					 UC_RTS_OPT, RC_RTS_OPT } },
	[IBV_QPS_RTS][IBV_QPS_RTS] = { true,
				       { 0 },
				       { RC_RTS_OPT, UC_RTS_OPT, UD_RTS_OPT,
					 UC_RTS_OPT, RC_RTS_OPT } },
	[IBV_QPS_RTS][IBV_QPS_SQD] = { true,
				       { 0 },
				       { IBV_QP_EN_SQD_ASYNC_NOTIFY,
					 IBV_QP_EN_SQD_ASYNC_NOTIFY,
					 IBV_QP_EN_SQD_ASYNC_NOTIFY,
					 IBV_QP_EN_SQD_ASYNC_NOTIFY,
					 IBV_QP_EN_SQD_ASYNC_NOTIFY } },
	[IBV_QPS_SQD][IBV_QPS_SQD] = { true,
				       { 0 },
				       { RC_SQD_OPT, UC_SQD_OPT,
					 IBV_QP_PKEY_INDEX | IBV_QP_QKEY,
					 XSEND_SQD_OPT, XRECV_SQD_OPT } },
	[IBV_QPS_SQD][IBV_QPS_RTS] = { true,
				       { 0 },
				       { RC_RTS_OPT, UC_RTS_OPT, UD_RTS_OPT,
					 UC_RTS_OPT, RC_RTS_OPT } },
	[IBV_QPS_SQE][IBV_QPS_RTS] = { true,
				       { 0 },
				       { 0,
					 IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS,
					 UD_RTS_OPT, 0, 0 } },
};

/* The transition is refused, for the reason that follows. */
#define refused(qp, to, err, fmt, ...)                                         \
	why(err, "QP 0x%06x (%s), %s to %s: " fmt, (qp)->qpn,                  \
	    qp_type_str((qp)->type), qp_state_str((qp)->state),                \
	    qp_state_str(to), __VA_ARGS__)

/* There is no such transition: where could it go from here? */
static int no_way(const struct qp *qp, enum ibv_qp_state to)
{
	char ways[64] = "";
	size_t n = 0;

	if (!why_wanted())
		return -EINVAL;
	for (unsigned i = 0; i < IBV_QPS_ERR; i++)
		if (transitions[qp->state][i].valid &&
		    (qp->state != IBV_QPS_SQE || !qp_is_reliable(qp)))
			n += (size_t)snprintf(ways + n, sizeof(ways) - n,
					      "%s, ", qp_state_str(i));
	return refused(qp, to, -EINVAL,
		       "no such transition; from %s a QP goes to %sRESET or "
		       "ERR. The usual order is RESET, INIT, RTR, RTS",
		       qp_state_str(qp->state), ways);
}

static int wrong_mask(const struct qp *qp, enum ibv_qp_state to, int attrs)
{
	const struct transition *t = &transitions[qp->state][to];
	const int required = t->required[qp->column];
	const int optional = t->optional[qp->column];
	struct qp_names bad, good;

	if (!why_wanted())
		return -EINVAL;
	if (required & ~attrs)
		return refused(qp, to, -EINVAL,
			       "missing in attr_mask: %s; set them and the "
			       "attributes. All that is needed: %s",
			       qp_mask_str(required & ~attrs, &bad),
			       qp_mask_str(required | IBV_QP_STATE, &good));
	return refused(qp, to, -EINVAL,
		       "not allowed in attr_mask here: %s; leave them out. "
		       "Allowed: %s",
		       qp_mask_str(attrs & ~(required | optional), &bad),
		       qp_mask_str(required | optional | IBV_QP_STATE, &good));
}

static int check_transition(const struct qp *qp, const struct ibv_qp_attr *attr,
			    int mask, enum ibv_qp_state to)
{
	const struct transition *t = &transitions[qp->state][to];
	unsigned col = qp->column;
	int attrs = mask & ~IBV_QP_STATE;
	struct qp_names bad;

	if (to == IBV_QPS_RESET || to == IBV_QPS_ERR) {
		attrs &= ~IBV_QP_CUR_STATE;
		return attrs ? refused(qp, to, -EINVAL,
				       "not allowed in attr_mask here: %s; "
				       "only IBV_QP_STATE is",
				       qp_mask_str(attrs, &bad)) :
			       0;
	}
	if (!t->valid || (qp->state == IBV_QPS_SQE && qp_is_reliable(qp)))
		return no_way(qp, to);
	if ((attrs & t->required[col]) != t->required[col] ||
	    attrs & ~(t->required[col] | t->optional[col]))
		return wrong_mask(qp, to, attrs);
	if (mask & IBV_QP_CUR_STATE && attr->cur_qp_state != qp->state)
		return refused(qp, to, -EINVAL,
			       "attr.cur_qp_state is %s, but the QP is in "
			       "another state",
			       qp_state_str(attr->cur_qp_state));
	return 0;
}

/*
 * Attributes that are numbers, and what they may be. The first that is wrong is
 * the one that is reported.
 */
struct attribute {
	int bit;
	const char *name;
	size_t at, size; /* in struct ibv_qp_attr */
	uint32_t min, max;
	const char *hint;
};

#define ATTR(bit, field, min, max, hint)                                       \
	{                                                                      \
		bit, #field, offsetof(struct ibv_qp_attr, field),              \
			sizeof(((struct ibv_qp_attr *)0)->field), min, max,    \
			hint                                                   \
	}
#define ANY(bit, field) ATTR(bit, field, 0, UINT32_MAX, NULL)

static const struct attribute attributes[] = {
	ATTR(IBV_QP_PKEY_INDEX, pkey_index, 0, 0, "RoCE has one P_Key"),
	ATTR(IBV_QP_PORT, port_num, 1, 1,
	     "the device has one port, counted from 1"),
	ATTR(IBV_QP_PATH_MTU, path_mtu, IBV_MTU_256, IBV_MTU_4096,
	     "an enum ibv_mtu such as IBV_MTU_1024, not bytes"),
	ATTR(IBV_QP_TIMEOUT, timeout, 0, 31,
	     "4.096 us * 2^timeout; 14 is usual"),
	ATTR(IBV_QP_RETRY_CNT, retry_cnt, 0, 7, "7 is usual"),
	ATTR(IBV_QP_RNR_RETRY, rnr_retry, 0, 7, "7 retries without limit"),
	ATTR(IBV_QP_MIN_RNR_TIMER, min_rnr_timer, 0, 31,
	     "a code of ibv_modify_qp(3); 12 is 0.64 ms"),
	ATTR(IBV_QP_DEST_QPN, dest_qp_num, 0, 0xffffff,
	     "QP numbers have 24 bits: is its byte order swapped?"),
	ATTR(IBV_QP_MAX_QP_RD_ATOMIC, max_rd_atomic, 0, QP_MAX_RD_ATOMIC,
	     "max_qp_init_rd_atom of ibv_query_device()"),
	ATTR(IBV_QP_MAX_DEST_RD_ATOMIC, max_dest_rd_atomic, 0, QP_MAX_RD_ATOMIC,
	     "max_qp_rd_atom of ibv_query_device()"),
	ATTR(IBV_QP_PATH_MIG_STATE, path_mig_state, IBV_MIG_MIGRATED,
	     IBV_MIG_MIGRATED,
	     "only IBV_MIG_MIGRATED: there are no alternate paths"),
	ANY(IBV_QP_QKEY, qkey),
	ANY(IBV_QP_ACCESS_FLAGS, qp_access_flags),
	ANY(IBV_QP_RQ_PSN, rq_psn),
	ANY(IBV_QP_SQ_PSN, sq_psn),
};

static uint32_t attribute_value(const struct ibv_qp_attr *attr,
				const struct attribute *t)
{
	const uint8_t *p = (const uint8_t *)attr + t->at;
	uint16_t v16;
	uint32_t v32;

	switch (t->size) {
	case 1:
		return *p;
	case 2:
		memcpy(&v16, p, 2);
		return v16;
	default:
		memcpy(&v32, p, 4);
		return v32;
	}
}

static int check_values(const struct qp *qp, const struct ibv_qp_attr *attr,
			int mask, enum ibv_qp_state to)
{
	if (mask & IBV_QP_ALT_PATH)
		return refused(qp, to, -EOPNOTSUPP, "%s",
			       "IBV_QP_ALT_PATH: automatic path migration is "
			       "not supported");
	for (size_t i = 0; i < ARRAY_SIZE(attributes); i++) {
		const struct attribute *t = &attributes[i];
		const uint32_t value = attribute_value(attr, t);

		if (mask & t->bit && (value < t->min || value > t->max))
			return refused(qp, to, -EINVAL,
				       "attr.%s is %u, not in %u..%u: %s",
				       t->name, value, t->min, t->max, t->hint);
	}
	return 0;
}

int qp_modify_check(const struct qp *qp, const struct ibv_qp_attr *attr,
		    int mask, enum ibv_qp_state *to)
{
	int err;

	*to = mask & IBV_QP_STATE ? attr->qp_state : qp->state;
	if ((unsigned)*to > IBV_QPS_ERR)
		return why(
			-EINVAL,
			"QP 0x%06x: attr.qp_state is %u, no enum ibv_qp_state",
			qp->qpn, (unsigned)*to);
	err = check_transition(qp, attr, mask, *to);
	return err ? err : check_values(qp, attr, mask, *to);
}

void qp_modify_apply(struct qp *qp, const struct ibv_qp_attr *attr, int mask)
{
	struct ibv_qp_attr *q = &qp->attr;

	for (size_t i = 0; i < ARRAY_SIZE(attributes); i++) {
		const struct attribute *t = &attributes[i];

		if (mask & t->bit)
			memcpy((uint8_t *)q + t->at,
			       (const uint8_t *)attr + t->at, t->size);
	}
	q->rq_psn &= PSN_MASK;
	q->sq_psn &= PSN_MASK;
	qp->access = q->qp_access_flags;
	qp->timeout = q->timeout;
	if (mask & IBV_QP_ACCESS_FLAGS)
		qp_public_set(&qp->pub->access, attr->qp_access_flags);
	if (mask & IBV_QP_AV)
		q->ah_attr = attr->ah_attr;
	if (mask & IBV_QP_EN_SQD_ASYNC_NOTIFY)
		qp->sqd_notify = attr->en_sqd_async_notify != 0;
}

void qp_query(const struct qp *qp, struct ibv_qp_attr *attr,
	      struct ibv_qp_init_attr *init)
{
	*attr = qp->attr;
	attr->qp_state = attr->cur_qp_state = qp->state;
	attr->path_mig_state = IBV_MIG_MIGRATED;
	attr->cap = qp->cap;
	attr->sq_draining = qp->state == IBV_QPS_SQD && !qp->sq_drained;
	attr->en_sqd_async_notify = qp->sqd_notify;
	init->cap = qp->cap;
	init->qp_type = qp->type;
	init->sq_sig_all = qp->sq_sig_all;
}

void qp_new_generation(struct qp *qp)
{
	uint32_t next = qp_public_get(&qp->pub->generation) + 1;

	/* Before anything that tells the program so. */
	atomic_store_explicit(&qp->pub->generation, next ? next : 1,
			      memory_order_seq_cst);
	if (qp->env->voided)
		qp->env->voided(qp);
}

void qp_set_state(struct qp *qp, enum ibv_qp_state state)
{
	qp->state = state;
	atomic_store_explicit(&qp->pub->state, (uint32_t)state,
			      memory_order_release);
	if (state == IBV_QPS_RESET || state == IBV_QPS_ERR)
		qp_new_generation(qp);
}

void qp_reset(struct qp *qp)
{
	struct qp_recv r;

	qp_set_state(qp, IBV_QPS_RESET);
	qp->sq.head = qp->sq.nxt = qp->sq.tail = 0;
	while (!qp_rq_take(&qp->rq, 0, &r))
		;
	memset(&qp->attr, 0, sizeof(qp->attr));
	qp->access = qp->timeout = 0;
	qp->recv_valid = false;
	qp->sq_drained = qp->sqd_notify = false;
}

void qp_drained(struct qp *qp)
{
	qp->sq_drained = true;
	if (qp->sqd_notify)
		qp->env->event(qp, IBV_EVENT_SQ_DRAINED);
}

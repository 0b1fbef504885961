/*
 * post.c - work requests into the queues
 *
 * Only what cannot be put into a WQE is refused here. Whether the request can
 * be carried out is for its completion to say, as with hardware: what is found
 * wrong is left in the WQE, which fails when its turn comes.
 */
#include "names.h"
#include "qp.h"

#include "base/bytes.h"
#include "base/why.h"

#include <errno.h>
#include <string.h>

/* clang-format off */
#define OPCODE(op, services, completion, takes, flags, word) \
	[IBV_WR_##op] = { services, (uint8_t)IBV_WC_##completion, QP_TAKES_##takes, flags },
const struct qp_opcode qp_opcodes[QP_OPCODE_ROWS] = { QP_OPCODES(OPCODE) };
/* clang-format on */

#define SEND_FLAGS                                                             \
	(IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED |             \
	 IBV_SEND_INLINE)

/* Data of an inline WR into the slot; its length, or -EINVAL. */
__attribute__((noinline)) static int64_t
take_inline(const struct qp *qp, struct qp_wqe *w, const struct ibv_send_wr *wr)
{
	/* Eight bytes fit where an SGE would be. */
	const uint32_t max =
		qp_wqe_has_value(w) ? sizeof(uint64_t) : qp->sq.max_inline;
	uint8_t *data = qp_wqe_data(&qp->sq, w);
	uint64_t length = 0;

	if (qp_wqe_has_response(w) && !qp_wqe_has_value(w))
		return why(-EINVAL,
			   "work request 0x%llx: IBV_SEND_INLINE is for data "
			   "that is sent; reads and atomics receive it",
			   (unsigned long long)w->wr_id);
	for (int i = 0; i < wr->num_sge; i++) {
		const struct ibv_sge *s = &wr->sg_list[i];

		if (length + s->length > max)
			return why(-EINVAL,
				   "work request 0x%llx: inline data of %llu "
				   "bytes or more; the QP has max_inline_data "
				   "%u: ask for more when it is created, or "
				   "send without IBV_SEND_INLINE",
				   (unsigned long long)w->wr_id,
				   (unsigned long long)(length + s->length),
				   max);
		memcpy(data + length, (void *)(uintptr_t)s->addr, s->length);
		length += s->length;
	}
	w->num_sge = 0;
	return (int64_t)length;
}

__attribute__((noinline, cold)) static int too_long(const struct qp_wqe *w,
						    uint64_t length)
{
	return why(-EINVAL,
		   "work request 0x%llx: its SGEs have %llu bytes together; a "
		   "message has at most %u",
		   (unsigned long long)w->wr_id, (unsigned long long)length,
		   QP_MAX_MSG);
}

/* The SGEs of any other; the length of their data, or -EINVAL. */
static int64_t take_sges(const struct qp *qp, struct qp_wqe *w,
			 const struct ibv_send_wr *wr)
{
	struct ibv_sge *sge = qp_wqe_sge(&qp->sq, w);
	uint64_t length = 0;

	for (int i = 0; i < wr->num_sge; i++) {
		sge[i] = wr->sg_list[i];
		length += sge[i].length;
	}
	w->num_sge = (uint32_t)wr->num_sge;
	return length > QP_MAX_MSG ? too_long(w, length) : (int64_t)length;
}

/* The window's slot: by its key, or, where the program has left another one in
 * mw->rkey, as if it had chosen that, by its handle. */
static uint32_t window_slot(const struct keys *k, const struct ibv_mw *mw)
{
	const uint32_t rkey = __atomic_load_n(&mw->rkey, __ATOMIC_RELAXED);
	const uint32_t slot = keys_slot(k, rkey);

	return keys_is_window(k, slot) ? slot : mw->handle;
}

/*
 * A window keeps its index; the program chooses the tag (10.6.7), and programs
 * do so with an rkey of any index, or leave one in mw->rkey.
 */
static int take_bind(const struct qp *qp, struct qp_wqe *w,
		     const struct ibv_send_wr *wr)
{
	const struct ibv_mw_bind_info *info = &wr->bind_mw.bind_info;
	struct ibv_mw *mw = wr->bind_mw.mw;
	uint32_t rkey = 0;

	if (mw)
		rkey = keys_with_tag(qp->env->keys,
				     window_slot(qp->env->keys, mw),
				     wr->bind_mw.rkey);
	if (!rkey || (info->length && !info->mr))
		return why(-EINVAL, "work request 0x%llx: bind_mw.%s",
			   (unsigned long long)w->wr_id,
			   !mw   ? "mw is NULL" :
			   !rkey ? "mw is not a memory window" :
				   "bind_info has a length but no mr");
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
static bool is_eight_bytes(struct qp *qp, struct qp_wqe *w)
{
	if (w->length == 8)
		return true;
	qp_explain(qp,
		   "work request 0x%llx: the local buffer of an atomic has %u "
		   "bytes; 8 are needed",
		   (unsigned long long)w->wr_id, w->length);
	w->status = IBV_WC_LOC_LEN_ERR;
	return false;
}

/* Eight bytes that travel in the packet. */
static void take_value(struct qp *qp, struct qp_wqe *w,
		       const struct ibv_send_wr *wr)
{
	if (!is_eight_bytes(qp, w))
		return;
	if (wr->send_flags & IBV_SEND_INLINE)
		memcpy(&w->swap, qp_wqe_data(&qp->sq, w), 8);
	else if (wr->num_sge != 1 || qp_load8(qp, wr->sg_list, &w->swap))
		w->status = IBV_WC_LOC_PROT_ERR;
}

/* What the opcode needs besides data. */
__attribute__((noinline)) static int
take_request(struct qp *qp, struct qp_wqe *w, const struct ibv_send_wr *wr)
{
	const struct qp_opcode *op = &qp_opcodes[w->opcode];

	switch ((enum qp_takes)op->takes) {
	case QP_TAKES_ATOMIC:
		is_eight_bytes(qp, w);
		w->remote_addr = wr->wr.atomic.remote_addr;
		w->rkey = wr->wr.atomic.rkey;
		w->compare_add = wr->wr.atomic.compare_add;
		w->swap = wr->wr.atomic.swap;
		break;
	case QP_TAKES_RDMA:
		w->remote_addr = wr->wr.rdma.remote_addr;
		w->rkey = wr->wr.rdma.rkey;
		break;
	case QP_TAKES_KEY:
		if (op->flags & QP_OP_LOCAL && !qp->env->invalidate)
			return -EINVAL;
		w->rkey = wr->invalidate_rkey;
		break;
	case QP_TAKES_BIND:
		if (!qp->env->bind_mw || take_bind(qp, w, wr))
			return -EINVAL;
		break;
	case QP_TAKES_NOTHING:
		break;
	}
	w->local = op->flags & QP_OP_LOCAL;
	if (qp_wqe_has_value(w))
		take_value(qp, w, wr);
	if (qp_wqe_has_response(w) && !qp->attr.max_rd_atomic) /* for ever */
		return why(-EINVAL,
			   "work request 0x%llx: a read or an atomic, but the "
			   "QP has max_rd_atomic 0: set it to 1 or more with "
			   "IBV_QP_MAX_QP_RD_ATOMIC, and max_dest_rd_atomic at "
			   "the peer",
			   (unsigned long long)w->wr_id);
	return 0;
}

/* The QP's service does not have the operation. */
__attribute__((noinline)) static int take_nothing(struct qp *qp,
						  struct qp_wqe *w)
{
	if (qp_opcodes[w->opcode].flags & QP_OP_LOCAL)
		return why(-EINVAL,
			   "work request 0x%llx: QPs of type %s have no memory "
			   "windows",
			   (unsigned long long)w->wr_id, qp_type_str(qp->type));
	qp_explain(qp,
		   "work request 0x%llx: QPs of this type do not have the "
		   "operation",
		   (unsigned long long)w->wr_id);
	w->status = IBV_WC_LOC_QP_OP_ERR;
	return 0;
}

/* The request does not get into the queue: which check was it? */
__attribute__((noinline, cold)) static int
no_entry(const struct qp *qp, const struct ibv_send_wr *wr)
{
	const unsigned long long id = wr->wr_id;
	const struct qp_sq *sq = &qp->sq;

	if (qp->type == IBV_QPT_XRC_RECV)
		return why(-EINVAL, "an XRC_RECV QP only receives");
	if (qp->state < IBV_QPS_RTS)
		return why(-EINVAL,
			   "the QP is in state %s; sending needs RTS: "
			   "ibv_modify_qp() through INIT, RTR and RTS first",
			   qp_state_str(qp->state));
	if (wr->opcode >= QP_OPCODE_ROWS || !qp_opcodes[wr->opcode].services)
		return why(-EINVAL,
			   "work request 0x%llx: opcode %u is invalid, or not "
			   "supported by this device",
			   id, (unsigned)wr->opcode);
	if (wr->send_flags & ~(unsigned)SEND_FLAGS)
		return why(-EINVAL,
			   "work request 0x%llx: send_flags 0x%x has bits that "
			   "this device does not support: 0x%x (is it "
			   "initialised?)",
			   id, wr->send_flags,
			   wr->send_flags & ~(unsigned)SEND_FLAGS);
	if ((uint32_t)wr->num_sge > sq->max_sge)
		return why(-EINVAL,
			   "work request 0x%llx: num_sge is %d; the QP was "
			   "created with cap.max_send_sge %u",
			   id, wr->num_sge, sq->max_sge);
	return -EINVAL;
}

__attribute__((noinline, cold)) static int full(const struct qp *qp)
{
	const struct qp_sq *sq = &qp->sq;
	bool signalled = qp->sq_sig_all;

	if (!sq->max_wr)
		return why(-ENOMEM, "the send queue has no room at all: create "
				    "the QP with cap.max_send_wr > 0");
	for (uint32_t i = sq->head; i != sq->tail && !signalled; i++)
		signalled = qp_sq_slot(sq, i)->flags & IBV_SEND_SIGNALED;
	if (!signalled)
		return why(-ENOMEM,
			   "the send queue is full: none of its %u work "
			   "requests is signalled, so none leaves it by a "
			   "completion: post with IBV_SEND_SIGNALED once in a "
			   "while, and poll the CQ",
			   sq->max_wr);
	return why(-ENOMEM,
		   "the send queue is full: %u work requests have not "
		   "completed: poll the send CQ before posting more, or create "
		   "the QP with a larger cap.max_send_wr",
		   sq->max_wr);
}

int qp_post_send(struct qp *qp, const struct ibv_send_wr *wr,
		 struct qp_wqe **out)
{
	const unsigned opcode = wr->opcode;
	struct qp_sq *sq = &qp->sq;
	struct qp_wqe *w;
	int64_t length;

	if (qp->state < IBV_QPS_RTS || qp->type == IBV_QPT_XRC_RECV ||
	    opcode >= QP_OPCODE_ROWS || !qp_opcodes[opcode].services ||
	    wr->send_flags & ~(unsigned)SEND_FLAGS ||
	    (uint32_t)wr->num_sge > sq->max_sge)
		return no_entry(qp, wr);
	if (sq->tail - sq->head >= sq->max_wr)
		return full(qp);
	*out = w = qp_sq_slot(sq, sq->tail);
	w->wr_id = wr->wr_id;
	w->remote_addr = 0;
	w->rkey = 0;
	w->imm = wr->imm_data;
	w->flags = (uint16_t)wr->send_flags;
	w->opcode = (uint8_t)opcode;
	w->status = IBV_WC_SUCCESS;
	w->local = false;
	w->executed = false;
	length = wr->send_flags & IBV_SEND_INLINE ? take_inline(qp, w, wr) :
						    take_sges(qp, w, wr);
	if (length < 0)
		return (int)length;
	w->length = (uint32_t)length;
	if (!(qp_opcodes[opcode].services & 1u << qp->column))
		return take_nothing(qp, w);
	return opcode == IBV_WR_SEND ? 0 : take_request(qp, w, wr);
}

void qp_post_flush(struct qp *qp)
{
	qp->sq.nxt = qp->sq.head;
	qp_sq_complete(qp, IBV_WC_WR_FLUSH_ERR);
}

__attribute__((noinline, cold)) static int no_receive(const struct qp *qp)
{
	if (qp->srq)
		return why(-EINVAL, "the QP was created with an SRQ: post "
				    "receives there, by ibv_post_srq_recv()");
	if (qp->state == IBV_QPS_RESET)
		return why(-EINVAL,
			   "the QP is in state RESET; receives may be posted "
			   "from INIT on: ibv_modify_qp() first");
	return why(-EINVAL, "QPs of type %s have no receive queue",
		   qp_type_str(qp->type));
}

int qp_post_recv(struct qp *qp, const struct ibv_recv_wr *wr)
{
	int err;

	if (qp->srq || qp->state == IBV_QPS_RESET ||
	    qp->type == IBV_QPT_XRC_SEND || qp->type == IBV_QPT_XRC_RECV)
		return no_receive(qp);
	err = qp_rq_post(&qp->rq, wr);
	if (!err && qp->state == IBV_QPS_ERR)
		qp_flush_rq(qp);
	return err;
}

void qp_run_local(struct qp *qp, struct qp_wqe *w)
{
	int err;

	if (w->executed)
		return;
	w->executed = true;
	if (w->opcode == IBV_WR_LOCAL_INV)
		err = qp->env->invalidate(qp, w->rkey);
	else
		err = qp->env->bind_mw(qp, &w->bind);
	if (!err)
		return;
	qp_explain(qp,
		   w->opcode == IBV_WR_LOCAL_INV ?
			   "local invalidate of rkey 0x%08x refused: not a "
			   "window of type 2 that is bound to this QP" :
			   "bind of memory window refused, rkey 0x%08x: check "
			   "the PD, the range, and that the region has "
			   "IBV_ACCESS_MW_BIND",
		   w->opcode == IBV_WR_LOCAL_INV ? w->rkey : w->bind.rkey);
	w->status = IBV_WC_MW_BIND_ERR;
}

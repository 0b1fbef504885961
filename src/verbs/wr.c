/*
 * wr.c - building work requests call by call: ibv_wr_start(3) and the like
 *
 * Requests are collected under a lock of their own, and wr_complete() posts
 * them all at once, so the program may call anything in between.
 */
#include "verbs.h"

#include "base/why.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct shca_wr {
	struct ibv_send_wr wr;
	struct ibv_sge sge[QP_MAX_SGE];
	uint8_t *data; /* inline data, QP_MAX_INLINE bytes, or NULL */
};

static struct shca_qp *from_ex(struct ibv_qp_ex *ex)
{
	return container_of(ex, struct shca_qp, ex);
}

/* The first error counts; why() has been told of it. */
static void wr_fail(struct shca_qp *qp, int err)
{
	if (!qp->wr_err)
		qp->wr_err = err;
}

/* The request being built: the last one begun. */
static struct shca_wr *wr_last(struct shca_qp *qp)
{
	if (qp->wr_err)
		return NULL;
	if (!qp->wr_count) {
		wr_fail(qp, -why(-EINVAL,
				 "QP 0x%06x: data or an address is set before "
				 "a request is begun: call ibv_wr_send() or "
				 "the like first",
				 shca_qpn(qp)));
		return NULL;
	}
	return &qp->wr[qp->wr_count - 1];
}

static struct ibv_send_wr *wr_begin(struct ibv_qp_ex *ex,
				    enum ibv_wr_opcode opcode)
{
	struct shca_qp *qp = from_ex(ex);
	struct shca_wr *w;

	if (qp->wr_err)
		return NULL;
	if (qp->wr_count == qp->wr_size) {
		uint32_t size = qp->wr_size ? 2 * qp->wr_size : 16;

		w = size > 2 * QP_MAX_WR ? NULL :
					   realloc(qp->wr, size * sizeof(*w));
		if (!w) {
			wr_fail(qp, -why(-ENOMEM,
					 "QP 0x%06x: too many requests between "
					 "ibv_wr_start() and "
					 "ibv_wr_complete(), or no memory",
					 shca_qpn(qp)));
			return NULL;
		}
		memset(w + qp->wr_size, 0, (size - qp->wr_size) * sizeof(*w));
		qp->wr = w;
		qp->wr_size = size;
	}
	w = &qp->wr[qp->wr_count++];
	memset(&w->wr, 0, sizeof(w->wr));
	w->wr.wr_id = ex->wr_id;
	w->wr.send_flags = ex->wr_flags & ~(unsigned)IBV_SEND_INLINE;
	w->wr.opcode = opcode;
	return &w->wr;
}

static void wr_rdma(struct ibv_qp_ex *ex, enum ibv_wr_opcode opcode,
		    uint32_t rkey, uint64_t addr, __be32 imm)
{
	struct ibv_send_wr *wr = wr_begin(ex, opcode);

	if (!wr)
		return;
	wr->wr.rdma.rkey = rkey;
	wr->wr.rdma.remote_addr = addr;
	wr->imm_data = imm;
}

static void wr_rdma_read(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr)
{
	wr_rdma(ex, IBV_WR_RDMA_READ, rkey, addr, 0);
}

static void wr_rdma_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr)
{
	wr_rdma(ex, IBV_WR_RDMA_WRITE, rkey, addr, 0);
}

static void wr_rdma_write_imm(struct ibv_qp_ex *ex, uint32_t rkey,
			      uint64_t addr, __be32 imm)
{
	wr_rdma(ex, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, addr, imm);
}

static void wr_atomic(struct ibv_qp_ex *ex, enum ibv_wr_opcode opcode,
		      uint32_t rkey, uint64_t addr, uint64_t compare_add,
		      uint64_t swap)
{
	struct ibv_send_wr *wr = wr_begin(ex, opcode);

	if (!wr)
		return;
	wr->wr.atomic.rkey = rkey;
	wr->wr.atomic.remote_addr = addr;
	wr->wr.atomic.compare_add = compare_add;
	wr->wr.atomic.swap = swap;
}

static void wr_cmp_swp(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr,
		       uint64_t compare, uint64_t swap)
{
	wr_atomic(ex, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, addr, compare, swap);
}

static void wr_fetch_add(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr,
			 uint64_t add)
{
	wr_atomic(ex, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, addr, add, 0);
}

static void wr_send(struct ibv_qp_ex *ex)
{
	wr_begin(ex, IBV_WR_SEND);
}

static void wr_send_imm(struct ibv_qp_ex *ex, __be32 imm)
{
	struct ibv_send_wr *wr = wr_begin(ex, IBV_WR_SEND_WITH_IMM);

	if (wr)
		wr->imm_data = imm;
}

static void wr_send_inv(struct ibv_qp_ex *ex, uint32_t rkey)
{
	struct ibv_send_wr *wr = wr_begin(ex, IBV_WR_SEND_WITH_INV);

	if (wr)
		wr->invalidate_rkey = rkey;
}

static void wr_local_inv(struct ibv_qp_ex *ex, uint32_t rkey)
{
	struct ibv_send_wr *wr = wr_begin(ex, IBV_WR_LOCAL_INV);

	if (wr)
		wr->invalidate_rkey = rkey;
}

static void wr_bind_mw(struct ibv_qp_ex *ex, struct ibv_mw *mw, uint32_t rkey,
		       const struct ibv_mw_bind_info *info)
{
	struct ibv_send_wr *wr = wr_begin(ex, IBV_WR_BIND_MW);

	if (!wr)
		return;
	wr->bind_mw.mw = mw;
	wr->bind_mw.rkey = rkey;
	wr->bind_mw.bind_info = *info;
}

static void wr_set_xrc_srqn(struct ibv_qp_ex *ex, uint32_t srqn)
{
	struct shca_wr *w = wr_last(from_ex(ex));

	if (w)
		w->wr.qp_type.xrc.remote_srqn = srqn;
}

static void wr_set_ud_addr(struct ibv_qp_ex *ex, struct ibv_ah *ah,
			   uint32_t qpn, uint32_t qkey)
{
	struct shca_wr *w = wr_last(from_ex(ex));

	if (!w)
		return;
	w->wr.wr.ud.ah = ah;
	w->wr.wr.ud.remote_qpn = qpn;
	w->wr.wr.ud.remote_qkey = qkey;
}

static void wr_set_sge_list(struct ibv_qp_ex *ex, size_t n,
			    const struct ibv_sge *sge)
{
	struct shca_qp *qp = from_ex(ex);
	struct shca_wr *w = wr_last(qp);

	if (!w)
		return;
	if (n > QP_MAX_SGE) {
		wr_fail(qp,
			-why(-EINVAL,
			     "QP 0x%06x: %zu SGEs; the device has at most %u",
			     shca_qpn(qp), n, QP_MAX_SGE));
		return;
	}
	memcpy(w->sge, sge, n * sizeof(*sge));
	w->wr.num_sge = (int)n;
}

static void wr_set_sge(struct ibv_qp_ex *ex, uint32_t lkey, uint64_t addr,
		       uint32_t length)
{
	struct ibv_sge sge = { addr, length, lkey };

	wr_set_sge_list(ex, 1, &sge);
}

/* The caller may reuse its buffers at once, so the bytes are copied. */
static void wr_set_inline_data_list(struct ibv_qp_ex *ex, size_t n,
				    const struct ibv_data_buf *buf)
{
	struct shca_qp *qp = from_ex(ex);
	struct shca_wr *w = wr_last(qp);
	size_t i, len = 0;

	if (!w)
		return;
	if (!w->data)
		w->data = malloc(QP_MAX_INLINE);
	if (!w->data) {
		wr_fail(qp, ENOMEM);
		return;
	}
	for (i = 0; i < n; i++) {
		if (buf[i].length > QP_MAX_INLINE - len) {
			wr_fail(qp, -why(-EINVAL,
					 "QP 0x%06x: more than the %u bytes of "
					 "inline data that the device has",
					 shca_qpn(qp), QP_MAX_INLINE));
			return;
		}
		memcpy(w->data + len, buf[i].addr, buf[i].length);
		len += buf[i].length;
	}
	w->sge[0] = (struct ibv_sge){ (uintptr_t)w->data, (uint32_t)len, 0 };
	w->wr.num_sge = 1;
	w->wr.send_flags |= IBV_SEND_INLINE;
}

static void wr_set_inline_data(struct ibv_qp_ex *ex, void *addr, size_t length)
{
	struct ibv_data_buf buf = { addr, length };

	wr_set_inline_data_list(ex, 1, &buf);
}

/* The value is read now, from any memory. */
static void wr_atomic_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr,
			    const void *value)
{
	wr_rdma(ex, IBV_WR_ATOMIC_WRITE, rkey, addr, 0);
	wr_set_inline_data(ex, (void *)(uintptr_t)value, sizeof(uint64_t));
}

static void wr_start(struct ibv_qp_ex *ex)
{
	struct shca_qp *qp = from_ex(ex);

	lock_take(&qp->wr_lock);
	qp->wr_count = 0;
	qp->wr_err = 0;
}

static int wr_complete(struct ibv_qp_ex *ex)
{
	struct shca_qp *qp = from_ex(ex);
	int err = qp->wr_err;
	uint32_t i;

	for (i = 0; i < qp->wr_count; i++) {
		qp->wr[i].wr.sg_list = qp->wr[i].sge;
		qp->wr[i].wr.next =
			i + 1 < qp->wr_count ? &qp->wr[i + 1].wr : NULL;
	}
	if (!err && qp->wr_count)
		err = -(check_on() ?
				shca_check_post_all(&ex->qp_base,
						    &qp->wr[0].wr) :
				shca_qp_post_all(&ex->qp_base, &qp->wr[0].wr));
	lock_drop(&qp->wr_lock);
	if (err)
		WHY_REPORT("ibv_wr_complete", -err);
	return err;
}

static void wr_abort(struct ibv_qp_ex *ex)
{
	lock_drop(&from_ex(ex)->wr_lock);
}

/* What each type of QP supports, ibv_wr_post(3). */
static uint64_t known_ops(enum ibv_qp_type type)
{
	const uint64_t ud = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
	const uint64_t uc = ud | IBV_QP_EX_WITH_RDMA_WRITE |
			    IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
			    IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW;
	const uint64_t rc = uc | IBV_QP_EX_WITH_SEND_WITH_INV |
			    IBV_QP_EX_WITH_RDMA_READ |
			    IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
			    IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD |
			    IBV_QP_EX_WITH_ATOMIC_WRITE;

	return type == IBV_QPT_UD ? ud : type == IBV_QPT_UC ? uc : rc;
}

int shca_wr_setup(struct shca_qp *qp, uint64_t send_ops)
{
	const struct shca_transport *t =
		to_ctx(qp->ex.qp_base.context)->dev->transport;
	enum ibv_qp_type type = qp->ex.qp_base.qp_type;
	const uint64_t known = known_ops(type) & t->send_ops;
	struct ibv_qp_ex *ex = &qp->ex;

	if (send_ops & ~known)
		return why(-EOPNOTSUPP,
			   "send_ops_flags 0x%llx: QPs of this type do not "
			   "have 0x%llx",
			   (unsigned long long)send_ops,
			   (unsigned long long)(send_ops & ~known));

	if (send_ops & IBV_QP_EX_WITH_SEND)
		ex->wr_send = wr_send;
	if (send_ops & IBV_QP_EX_WITH_SEND_WITH_IMM)
		ex->wr_send_imm = wr_send_imm;
	if (send_ops & IBV_QP_EX_WITH_RDMA_WRITE)
		ex->wr_rdma_write = wr_rdma_write;
	if (send_ops & IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM)
		ex->wr_rdma_write_imm = wr_rdma_write_imm;
	if (send_ops & IBV_QP_EX_WITH_RDMA_READ)
		ex->wr_rdma_read = wr_rdma_read;
	if (send_ops & IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP)
		ex->wr_atomic_cmp_swp = wr_cmp_swp;
	if (send_ops & IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD)
		ex->wr_atomic_fetch_add = wr_fetch_add;
	if (send_ops & IBV_QP_EX_WITH_ATOMIC_WRITE)
		ex->wr_atomic_write = wr_atomic_write;
	if (send_ops & IBV_QP_EX_WITH_SEND_WITH_INV)
		ex->wr_send_inv = wr_send_inv;
	if (send_ops & IBV_QP_EX_WITH_LOCAL_INV)
		ex->wr_local_inv = wr_local_inv;
	if (send_ops & IBV_QP_EX_WITH_BIND_MW)
		ex->wr_bind_mw = wr_bind_mw;
	if (type == IBV_QPT_UD)
		ex->wr_set_ud_addr = wr_set_ud_addr;
	if (type == IBV_QPT_XRC_SEND)
		ex->wr_set_xrc_srqn = wr_set_xrc_srqn;
	ex->wr_set_inline_data = wr_set_inline_data;
	ex->wr_set_inline_data_list = wr_set_inline_data_list;
	ex->wr_set_sge = wr_set_sge;
	ex->wr_set_sge_list = wr_set_sge_list;
	ex->wr_start = wr_start;
	ex->wr_complete = wr_complete;
	ex->wr_abort = wr_abort;
	return 0;
}

void shca_wr_free(struct shca_qp *qp)
{
	uint32_t i;

	for (i = 0; i < qp->wr_size; i++)
		free(qp->wr[i].data);
	free(qp->wr);
}

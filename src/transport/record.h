/*
 * record.h - events of queue pairs and completions, where they are recorded
 *
 * To be called where tracing() (trace/trace.h), with the QP's lock held where
 * there is one.
 */
#ifndef SOFTHCA_TRANSPORT_RECORD_H
#define SOFTHCA_TRANSPORT_RECORD_H

#include "qp.h"

#include "hooks/trace.h"

/* A field of records (hooks/trace.h). */
static inline uint32_t shca_record_psn_op(uint32_t psn, uint32_t op)
{
	return psn << 8 | (op & 0xff);
}

/* The WQEs from one of the send queue on, which have been posted just now. */
void shca_record_posts(struct qp *core, uint32_t from);
void shca_record_recv(uint32_t qpn, const struct ibv_recv_wr *wr);
/* A receive for an SRQ, whose lock is held. */
void shca_record_srq_recv(uint32_t handle, const struct ibv_recv_wr *wr);
/* engine_send_small() and engine_send(), recorded. posted: at once. */
unsigned shca_record_small(struct shca_qp *qp, bool posted, uint64_t *now);
size_t shca_record_send(struct shca_qp *qp, const struct roce_batch *b,
			int *err);
/* roce_direct() and roce_expire(), recorded. */
void shca_record_direct(struct shca_qp *qp, struct qp_remote *remote);
void shca_record_expire(struct shca_qp *qp, uint64_t now);
/* A packet comes in, and shca_qp_rx() does what it says. */
void shca_record_rx(struct shca_qp *qp, const struct roce_rx *pkt,
		    uint64_t now);
void shca_record_complete(uint32_t qpn, const struct ibv_wc *wc);
/* After trace_forget(), behind which completions may have come. */
void shca_record_polled(const struct ibv_wc *wc, int n);
/* What ibv_modify_qp() has changed; path: IBV_QP_AV. */
void shca_record_modify(const struct shca_qp *qp,
			const struct ibv_qp_attr *attr, int mask,
			const struct roce_path *path);
/* A message of the connection manager. */
void shca_record_mad(enum trace_type type, const uint8_t *mad, size_t len);

#endif

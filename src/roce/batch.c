/*
 * batch.c - packets on their way to the link
 *
 * A packet's payload stays where the program has it, and the batch keeps the
 * keys that lead there until the link is done.
 */
#include "roce_internal.h"

uint32_t batch_span(const struct roce_qp *qp, const struct roce_batch *b,
		    bool copy)
{
	uint32_t most = copy ? b->max_copy : b->max_payload;

	if (most < 2 * qp->mtu || qp->service == ROCE_XRC)
		return 1;
	return most / qp->mtu;
}

void batch_release(struct roce_batch *b)
{
	qp_pieces_put(&b->data);
	b->n = 0;
}

void batch_bytes(struct roce_batch *b, struct roce_pkt *p, void *data,
		 uint32_t len)
{
	qp_piece_add(&b->data, data, len, true);
	p->payload += len;
	p->copy = true; /* no key leads there */
}

int batch_gather_any(struct roce_qp *qp, struct roce_batch *b,
		     struct roce_pkt *p, struct qp_wqe *w, uint32_t offset,
		     uint32_t len)
{
	const struct ibv_sge *sge = qp_wqe_sge(&qp->base.sq, w);
	uint32_t bad = 0;
	int err;

	err = qp_gather(&qp->base, &b->data, sge, w->num_sge, offset, len,
			&bad);
	if (err == -EFAULT)
		qp_explain_sge(&qp->base, "work request", w->wr_id, bad,
			       &sge[bad], qp->base.pd, 0);
	p->payload = len;
	return err;
}

int batch_remote(struct roce_qp *qp, struct roce_batch *b, struct roce_pkt *p,
		 uint32_t pd, uint32_t rkey, uint64_t va, uint32_t len)
{
	p->payload = len;
	return qp_gather_remote(&qp->base, &b->data, pd, rkey, va, len);
}

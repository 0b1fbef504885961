/*
 * ud.c - datagrams: one packet per message, no connection, nothing repeated
 *
 * Each WQE carries its own path. A receive begins with 40 bytes for the GRH
 * (IBTA 11.4.1.2, annex A17.4.5), which over IPv4 hold the IP header in their
 * second half.
 */
#include "roce_internal.h"

#include "base/why.h"
#include "wire/grh.h"

int ud_post(struct roce_qp *qp, struct qp_wqe *w, const struct ibv_send_wr *wr,
	    const struct roce_path *path)
{
	struct roce_ud_wqe *u = roce_ud_wqe(w);

	if (!path)
		return why(-EINVAL,
			   "work request 0x%llx: wr.ud.ah is NULL: a datagram "
			   "needs an address handle, ibv_create_ah()",
			   (unsigned long long)w->wr_id);
	u->path = *path;
	u->remote_qpn = wr->wr.ud.remote_qpn & 0xffffff;
	/* High bit: the QP's own Q_Key (IBTA 10.2.5). */
	u->remote_qkey = wr->wr.ud.remote_qkey & 0x80000000u ?
				 qp->base.attr.qkey :
				 wr->wr.ud.remote_qkey;
	u->drop = w->length > qp->mtu;
	return 0;
}

static void ud_fill(const struct roce_qp *qp, const struct roce_ud_wqe *u,
		    struct roce_hdr *h)
{
	const struct qp_wqe *w = &u->roce.base;

	h->opcode = ROCE_UD |
		    (w->opcode == IBV_WR_SEND_WITH_IMM ? ROCE_SEND_ONLY_IMM :
							 ROCE_SEND_ONLY);
	h->dest_qpn = u->remote_qpn;
	h->psn = u->roce.first_psn;
	h->qkey = u->remote_qkey;
	h->src_qpn = qp->base.wire_qpn;
	h->imm = w->imm;
	h->solicited = (w->flags & IBV_SEND_SOLICITED) != 0;
}

void ud_tx(struct roce_qp *qp, struct roce_batch *b)
{
	struct roce_requester *r = &qp->req;

	while (qp->base.sq.nxt != qp->base.sq.tail &&
	       qp->base.state == IBV_QPS_RTS) {
		struct qp_wqe *w = qp_sq_slot(&qp->base.sq, qp->base.sq.nxt);
		const struct roce_ud_wqe *u = roce_ud_wqe(w);
		struct roce_pkt *p;
		int err = 0;

		if (w->status != IBV_WC_SUCCESS || !pace_open(qp, &u->path) ||
		    !batch_room(b, w->num_sge ? w->num_sge : 1))
			return;
		if (u->drop) {
			/* C10-93.1.1: no packet, and no error either. */
			explain(qp,
				"datagram of %u bytes not sent: the MTU is %u",
				w->length, qp->mtu);
			goto next;
		}
		p = batch_open(b);
		ud_fill(qp, u, &p->h);
		p->copy = true;
		if (w->flags & IBV_SEND_INLINE && w->length)
			batch_bytes(b, p, qp_wqe_data(&qp->base.sq, w),
				    w->length);
		else
			err = batch_gather(qp, b, p, w, 0, w->length);
		if (err) {
			w->status = IBV_WC_LOC_PROT_ERR;
			return; /* roce_tx_done() completes it in its turn */
		}
		batch_push(b, p, &u->path, qp->seed);
		pace_charge(qp, &u->path, w->length);
	next:
		r->nxt_psn = r->end_psn = psn_add(u->roce.first_psn, 1);
		qp->base.sq.nxt++;
	}
}

enum {
	WC_SL_IPV6 = 0x8 | 1, /* with a UDP header | layer 3 */
	WC_SL_IPV4 = 0x8 | 2,
};

void ud_rx(struct roce_qp *qp, const struct roce_rx *pkt)
{
	uint32_t f = roce_opcode(pkt->h.opcode)->flags;
	static const uint8_t no_grh[GRH_LEN];
	struct qp_recv recv;
	uint32_t bad = 0;
	int err;
	struct ibv_wc wc = {
		.status = IBV_WC_SUCCESS,
		.opcode = IBV_WC_RECV,
		.byte_len = GRH_LEN + (uint32_t)pkt->len,
		.src_qp = pkt->h.src_qpn,
		.wc_flags = IBV_WC_GRH,
		/*
		 * A17.4.5.1: a completion tells IPv4 from IPv6. Verbs have no
		 * field for it; ConnectX puts it here, and UCX looks for it. In
		 * RoCE v1 it is the service level.
		 */
		.sl = pkt->v1                    ? 0 :
		      roce_gid_is_v4(&pkt->dgid) ? WC_SL_IPV4 :
						   WC_SL_IPV6,
	};

	/* 9.6.1.6, 9.8.3: a wrong Q_Key or no receive, and it is dropped. */
	if (pkt->h.qkey != qp->base.attr.qkey || pkt->len > qp->mtu) {
		explain(qp,
			"datagram dropped: its Q_Key 0x%08x is not this QP's, "
			"0x%08x, or its %zu bytes exceed the MTU",
			pkt->h.qkey, qp->base.attr.qkey, pkt->len);
		if (pkt->h.qkey != qp->base.attr.qkey && roce_env(qp)->differs)
			roce_env(qp)->differs(&qp->base, ROCE_DIFFERS_QKEY,
					      pkt->h.qkey, qp->base.attr.qkey,
					      pkt->h.src_qpn);
		roce_drop(qp, ROCE_DROP_QKEY);
		return;
	}
	err = qp_recv_take(&qp->base, wc.byte_len, &recv);
	if (err == -EMSGSIZE) {
		/* Class D (9.9.3): not there, and the receive waits on. */
		explain(qp,
			"datagram dropped: its %zu bytes and the 40 of the GRH "
			"do not fit the posted receive: post larger ones",
			pkt->len);
		roce_drop(qp, ROCE_DROP_QKEY);
		return;
	}
	if (err) {
		explain(qp, "datagram dropped: no receive was posted; post "
			    "receives before the peer sends");
		roce_drop(qp, ROCE_DROP_NO_RECV);
		return;
	}
	qp_landing(&qp->base, &recv);
	err = qp_scatter(&qp->base, recv.pd, recv.sge, recv.num_sge, 0,
			 pkt->grh ? pkt->grh : no_grh, GRH_LEN, &bad);
	if (!err)
		err = qp_scatter(&qp->base, recv.pd, recv.sge, recv.num_sge,
				 GRH_LEN, pkt->payload, pkt->len, &bad);
	if (err == -EFAULT)
		qp_explain_sge(&qp->base, "receive", recv.wr_id, bad,
			       &recv.sge[bad], recv.pd, IBV_ACCESS_LOCAL_WRITE);
	if (err)
		wc.status = IBV_WC_LOC_PROT_ERR;
	if (f & ROCE_F_IMM) {
		wc.wc_flags |= IBV_WC_WITH_IMM;
		wc.imm_data = pkt->h.imm;
	}
	qp->base.rq_errors += wc.status != IBV_WC_SUCCESS;
	roce_recv_complete(qp, &recv, &wc, pkt->h.solicited);
	if (wc.status != IBV_WC_SUCCESS)
		roce_to_err(qp);
}

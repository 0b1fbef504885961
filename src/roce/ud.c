/*
 * ud.c - datagrams: one packet per message, no connection, nothing repeated
 *
 * Each WQE carries its own path. A receive begins with 40 bytes for the GRH
 * (IBTA 11.4.1.2, annex A17.4.5), which over IPv4 hold the IP header in their
 * second half.
 */
#include "internal.h"

#define GRH_LEN 40u

void ud_tx(struct roce_qp *qp, struct roce_batch *b)
{
	struct roce_requester *r = &qp->req;

	while (qp->sq.nxt != qp->sq.tail && qp->state == IBV_QPS_RTS) {
		struct roce_wqe *w = sq_slot(&qp->sq, qp->sq.nxt);
		const struct ibv_sge *sge =
			(struct ibv_sge *)(void *)wqe_data(qp, w);
		struct roce_hdr h = {
			.opcode = ROCE_UD | (w->opcode == IBV_WR_SEND_WITH_IMM ?
						     ROCE_SEND_ONLY_IMM :
						     ROCE_SEND_ONLY),
			.dest_qpn = w->remote_qpn,
			.psn = w->first_psn,
			.qkey = w->remote_qkey,
			.src_qpn = qp->qpn,
			.imm = w->imm,
			.solicited = (w->flags & IBV_SEND_SOLICITED) != 0,
		};
		struct roce_pkt *p;
		uint32_t bad = 0;
		int err = 0;

		if (w->status != IBV_WC_SUCCESS ||
		    !pace_open(qp, wqe_path(w)) ||
		    !batch_room(b, w->num_sge ? w->num_sge : 1))
			return;
		if (w->drop) {
			/* C10-93.1.1: no packet, and no error either. */
			explain(qp, "datagram of %u bytes is longer than the MTU of %u and is not sent",
				w->length, qp->mtu);
			goto next;
		}
		p = batch_open(b);
		if (w->flags & IBV_SEND_INLINE && w->length)
			batch_bytes(b, p, wqe_data(qp, w), w->length);
		else
			err = batch_gather(qp, b, p, sge, w->num_sge, 0,
					   w->length, &bad);
		if (err == -EFAULT)
			explain(qp, "SGE %u of work request 0x%llx: lkey 0x%08x does not cover [0x%llx, +%u) in this PD",
				bad, (unsigned long long)w->wr_id,
				sge[bad].lkey,
				(unsigned long long)sge[bad].addr,
				sge[bad].length);
		if (err) {
			w->status = IBV_WC_LOC_PROT_ERR;
			return; /* roce_tx_done() completes it in its turn */
		}
		batch_push(b, p, &h, wqe_path(w), qp->seed);
		pace_charge(qp, wqe_path(w), w->length);
next:
		r->nxt_psn = r->end_psn = psn_add(w->first_psn, 1);
		qp->sq.nxt++;
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
		 * field for it; ConnectX puts it here, and UCX looks for it.
		 */
		.sl = roce_gid_is_v4(&pkt->dgid) ? WC_SL_IPV4 : WC_SL_IPV6,
	};

	/* 9.6.1.6, 9.8.3: a wrong Q_Key or no receive, and it is dropped. */
	if (pkt->h.qkey != qp->attr.qkey || pkt->len > qp->mtu) {
		explain(qp, "datagram dropped: its Q_Key 0x%08x is not ours, 0x%08x, or its %zu bytes are over the MTU",
			pkt->h.qkey, qp->attr.qkey, pkt->len);
		qp_drop(qp, ROCE_DROP_QKEY);
		return;
	}
	err = recv_take(qp, wc.byte_len, &recv);
	if (err == -EMSGSIZE) {
		/* Class D (9.9.3): not there, and the receive waits on. */
		explain(qp, "datagram dropped: %zu bytes and 40 of GRH do not fit the receive that was posted: post larger ones",
			pkt->len);
		qp_drop(qp, ROCE_DROP_QKEY);
		return;
	}
	if (err) {
		explain(qp, "datagram dropped: no receive was posted");
		qp_drop(qp, ROCE_DROP_NO_RECV);
		return;
	}
	err = mem_scatter(qp, recv.pd, recv.sge, recv.num_sge, 0,
			  pkt->grh ? pkt->grh : no_grh, GRH_LEN, &bad);
	if (!err)
		err = mem_scatter(qp, recv.pd, recv.sge, recv.num_sge, GRH_LEN,
				  pkt->payload, pkt->len, &bad);
	if (err == -EFAULT)
		explain(qp, "SGE %u of receive 0x%llx: lkey 0x%08x does not allow local writes",
			bad, (unsigned long long)recv.wr_id,
			recv.sge[bad].lkey);
	if (err)
		wc.status = IBV_WC_LOC_PROT_ERR;
	if (f & ROCE_F_IMM) {
		wc.wc_flags |= IBV_WC_WITH_IMM;
		wc.imm_data = pkt->h.imm;
	}
	recv_complete(qp, &recv, &wc, pkt->h.solicited);
	if (wc.status != IBV_WC_SUCCESS)
		qp_to_err(qp);
}

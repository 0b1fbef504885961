/*
 * record_iwarp.c - events of iWARP, where they are recorded
 */
#include "record_iwarp.h"

void shca_record_fpdu(struct qp *core, const struct iwarp_fpdu *f,
		      uint64_t sent_ns)
{
	trace_put(f->outbound ? TRACE_PKT_OUT : TRACE_PKT_IN, core->qpn,
		  f->number << 8 | (f->last ? TRACE_END : 0) |
			  (f->has_wr ? TRACE_OF_WR : 0),
		  f->wr_id,
		  shca_record_psn_op(f->number, TRACE_FPDU | f->opcode), f->len,
		  f->outbound ? sent_ns : 0);
}

void shca_record_connected(uint32_t qpn, const struct shca_record_end *ours,
			   const struct shca_record_end *peers)
{
	trace_keep_bytes(TRACE_QP_SGID, qpn, &ours->addr);
	trace_keep_bytes(TRACE_QP_DGID, qpn, &peers->addr);
	trace_keep(TRACE_QP_STATE, qpn, IBV_QPS_RTS,
		   TRACE_PORTS(ours->port, peers->port), 0, 0);
}

void shca_record_ended(uint32_t qpn)
{
	trace_keep(TRACE_QP_STATE, qpn, IBV_QPS_ERR, 0, 0, 0);
}

void shca_record_frame(enum trace_type type, enum trace_mpa frame,
		       const struct shca_record_end *ours,
		       const struct shca_record_end *peers, bool initiator)
{
	const struct shca_record_end *end[2] = { ours, peers };
	uint64_t key = 0;

	/* The same at both ends: who asks comes first. */
	for (int i = 0; i < 2; i++) {
		const struct shca_record_end *e = end[i == initiator];

		key = key << 16 | e->port;
		for (size_t j = 0; j < sizeof(e->addr.raw); j++)
			key ^= (uint64_t)e->addr.raw[j] << (j % 4 * 8 + 32);
	}
	trace_keep(type, 1, frame, key, 0, 0);
}

/*
 * record_iwarp.h - events of iWARP, where they are recorded
 *
 * As transport/record.h, which records what is posted and completed.
 */
#ifndef SOFTHCA_RNIC_RECORD_IWARP_H
#define SOFTHCA_RNIC_RECORD_IWARP_H

#include "iwarp/env.h"
#include "transport/record.h"

/* An FPDU of iWARP: one that has left did so after sent_ns. */
void shca_record_fpdu(struct qp *core, const struct iwarp_fpdu *f,
		      uint64_t sent_ns);
/* Its connection: the addresses and ports of both ends. */
struct shca_record_end {
	union ibv_gid addr;
	uint16_t port;
};
void shca_record_connected(uint32_t qpn, const struct shca_record_end *ours,
			   const struct shca_record_end *peers);
void shca_record_ended(uint32_t qpn);
/* One of the frames that begin it; initiator: ours is the one that asks. */
void shca_record_frame(enum trace_type type, enum trace_mpa frame,
		       const struct shca_record_end *ours,
		       const struct shca_record_end *peers, bool initiator);

#endif

/*
 * sim_host.h - packets that travel within the host: what sim.c has of them
 */
#ifndef SOFTHCA_TESTS_SIM_HOST_H
#define SOFTHCA_TESTS_SIM_HOST_H

#include "sim.h"

struct sim_host_pkt;

/* As SIM_WAY says; see sim.h. */
void sim_ways_init(struct sim *s);
/* The way of the next batch of this node; sets what of it the core asks for. */
enum sim_way sim_way_next(struct sim *s, int from, struct roce_batch *b);

/* sim_direct.c: what q has posted and needs no packets, perhaps. */
extern const struct qp_direct_env sim_direct_env;
void sim_direct(struct sim_qp *q);

/* One packet of a batch of q; q may be NULL where there is no payload. */
struct sim_host_pkt *sim_host_new(struct sim *s, enum sim_way way,
				  const struct sim_qp *q,
				  const struct roce_batch *b,
				  const struct roce_pkt *p);
/* That everything up to psn has been accepted, without a packet. */
struct sim_host_pkt *sim_host_ack_note(const struct roce_hdr *ack);
struct sim_host_pkt *sim_host_dup(const struct sim_host_pkt *p);
void sim_host_free(struct sim_host_pkt *p);

/* Of those that a received packet stands for. */
uint32_t sim_host_last_psn(const struct sim_qp *q, const struct roce_rx *rx);
bool sim_host_is_ack_note(const struct sim_host_pkt *p);
/* What arrives; it is gone with the packet. acked may be set, see roce/qp.h. */
void sim_host_rx(struct sim *s, struct sim_host_pkt *p, struct roce_rx *rx,
		 bool *acked);

#endif

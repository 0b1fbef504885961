/*
 * dgram.h - what the files of datagram rsockets share
 *
 *	dgram.c       what programs do: bind, connect, send, receive, close
 *	dgram_qp.c    one UD queue pair per local address
 *	dgram_dest.c  the peers that are known, and their queue pairs
 *
 * Everything is under the rsocket's lock.
 */
#ifndef SOFTHCA_RSOCKETS_DGRAM_H
#define SOFTHCA_RSOCKETS_DGRAM_H

#include "rsock_internal.h"

#define GRH_LEN 40
#define REFRESH_NS 1000000000ull

struct rsock_dest {
	struct rsock_dest *next;
	union rsw_addr addr;
	struct rsock_dgram_qp *qp; /* what we send from */
	struct ibv_ah *ah; /* NULL: qpn is not known */
	uint32_t qpn;
	uint64_t refresh_ns; /* the next datagram after this goes over UDP */
	uint64_t used_ns;
};

struct rsock_dgram_qp {
	struct rsock_dgram_qp *next;
	union rsw_addr src;
	struct rdma_cm_id *id;
	struct ibv_comp_channel *cc;
	struct ibv_cq *cq;
	struct ibv_mr *smr, *rmr;
	uint8_t *rbuf; /* rq_size slots, then room for what nobody reads */
	uint32_t mtu;
	uint32_t inline_size;
	int sgid_index;
	bool armed;
};

/* A datagram in its slot, header first. qp is NULL for those from UDP. */
struct rsock_packet {
	struct rsock_dgram_qp *qp;
	uint32_t slot, len;
};

/* dgram_qp.c */

/* The queue pair of local address src, made when it is needed first. */
int rsock_dgram_qp_get(struct rsock *rs, const union rsw_addr *src,
		       struct rsock_dgram_qp **out);
void rsock_dgram_qp_free(struct rsock *rs, struct rsock_dgram_qp *qp);
int rsock_dgram_post_recv(struct rsock *rs, struct rsock_dgram_qp *qp,
			  uint32_t slot);

/* dgram_dest.c */

int rsock_dests_init(struct rsock *rs);
void rsock_dests_fini(struct rsock *rs);
/* The peer at addr. One that is new may displace the one least in use. */
int rsock_dest_get(struct rsock *rs, const union rsw_addr *addr,
		   struct rsock_dest **out);
/* The peer's queue pair is qpn: datagrams go there for a while. */
void rsock_dest_learn(struct rsock_dest *dest, uint32_t qpn);

#endif

/*
 * rocev1.h - RoCE v1: packets in frames of Ethernet (annex A16)
 *
 * One per process that is asked for it (--rocev1), beside the UDP link. Frames of
 * type 0x8915, which begin with a GRH, leave and come by one AF_PACKET socket
 * for all interfaces, which takes CAP_NET_RAW. Each process has its own, and a
 * filter in the kernel by which it gets what is for its addresses and QPs alone.
 * Frames to this host itself go by the loopback interface.
 */
#ifndef SOFTHCA_LINK_ROCEV1_H
#define SOFTHCA_LINK_ROCEV1_H

#include "link.h"

#include <linux/filter.h>

struct registry;
struct rocev1;

/* Whether the process may have such a socket: 0 or -errno. */
int rocev1_allowed(void);

/* registry may be NULL: alone on this host. Returns 0 or -errno. */
struct rocev1_config {
	double loss; /* share of packets dropped on sending, 0..1 */
	uint64_t seed; /* of the drops */
	struct pcap *pcap; /* record every packet sent and accepted, or NULL */
};
int rocev1_create(struct rocev1 **v, const struct rocev1_config *cfg,
		  struct registry *registry);
struct link *rocev1_link(struct rocev1 *v);

/* Starts receiving what is sent to an address of an interface; each call is
 * undone by one rocev1_unbind(). Returns 0 or -errno. */
int rocev1_bind(struct rocev1 *v, const union ibv_gid *gid, uint32_t ifindex);
void rocev1_unbind(struct rocev1 *v, const union ibv_gid *gid,
		   uint32_t ifindex);
/* The process has leased numbers. */
void rocev1_numbers(struct rocev1 *v);

/*
 * The filter: frames for one of n addresses, on its interface or on lo, and for a
 * QPN in one of the chunks (QPN / REGISTRY_CHUNK); with none of these for any
 * QPN. Neither QP1 nor multicast: those are of RoCE v2 alone. Returns the
 * program's length, ROCEV1_FILTER_MAX at most.
 */
#define ROCEV1_ADDRS 64u
#define ROCEV1_CHUNKS 256u /* with more, any QPN */
#define ROCEV1_FILTER_MAX (24u + 12u * ROCEV1_ADDRS + 2u * ROCEV1_CHUNKS)
struct rocev1_addr {
	union ibv_gid gid;
	uint32_t ifindex;
	unsigned refs;
};
size_t rocev1_filter(struct sock_filter prog[ROCEV1_FILTER_MAX],
		     const struct rocev1_addr *addr, size_t n, uint32_t lo,
		     const uint16_t *chunk, size_t nchunks);

/*
 * Reads a frame's payload: decodes it into *pkt, of which payload and grh stay
 * where the frame is. -EINVAL: it is no packet; -EBADMSG: its ICRC is wrong. The
 * bytes are another one's meanwhile (icrc_bth_own()).
 */
int rocev1_decode(struct roce_rx *pkt, uint8_t *frame, size_t len);

#endif

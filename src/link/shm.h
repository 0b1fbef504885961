/*
 * shm.h - packets between processes of this host, in shared memory
 *
 * Each process shows a segment (segment/segment.h), and every other one that sends
 * to it has a ring there (ring.h). A packet becomes a record of that ring: its
 * headers in host order, and its payload. A poll looks at one word in each
 * ring in use and makes no system call; who sends makes one only if the
 * receiver has said that it sleeps.
 *
 * An RC request that the receiver has executed when its poll is done with the
 * record needs no packet to acknowledge it: the record's ACK note does
 * (struct roce_rx, acked), and the sender's poll makes an acknowledgement of it.
 *
 * What goes by UDP all the same: packets of QP 0 and QP 1, multicast, XRC, and
 * those for a process that has no segment, does not let us put a ring there, or
 * whose ring has been scribbled in.
 */
#ifndef SOFTHCA_LINK_SHM_H
#define SOFTHCA_LINK_SHM_H

#include "link.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pcap;
struct segment;

struct shm_config {
	bool copy; /* payload is never read from the sender's memory */
	double loss; /* share of packets dropped on sending, 0..1 */
	uint64_t seed; /* of the drops */
	struct pcap *pcap; /* record every packet sent and received, or NULL */
};

/* A process that records packets makes its segment with SEGMENT_PLAIN. */
int shm_create(struct link **l, const struct shm_config *cfg,
	       struct segment *segment);

#endif

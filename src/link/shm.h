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
 * record needs no packet to acknowledge it: the record's verdict does
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

struct keys;
struct pcap;
struct segment;
struct segment_peer;
struct shm;
struct shm_peer;

struct shm_config {
	bool copy;	   /* payload is never read from the sender's memory */
	double loss;	   /* share of packets dropped on sending, 0..1 */
	uint64_t seed;	   /* of the drops */
	struct pcap *pcap; /* record every packet sent and received, or NULL */
};

/* A process that records packets makes its segment with SEGMENT_PLAIN. */
int shm_create(struct shm **s, const struct shm_config *cfg,
	       struct segment *segment);
/* No thread uses it any more. NULL is allowed. */
void shm_destroy(struct shm *s);
/* In the child of a fork(): touches nothing shared. */
void shm_abandon(struct shm *s);

/* As the engine uses it; lives and ends with s. */
struct link *shm_link(struct shm *s);

/*
 * The way to one destination, kept by who sends there often and under its lock;
 * all zeros at first. It holds a reference to the peer.
 */
struct shm_way {
	struct shm_peer *peer; /* NULL: by UDP */
	bool known; /* peer is right for qpn and dgid */
	uint32_t qpn; /* the destination */
	uint32_t own; /* the QP that gets acknowledgements; 0: none */
	uint32_t life; /* of that (struct qp_public); 0: others cannot see it */
	const struct keys *keys; /* that lead to its memory */
	bool copy; /* what it sends cannot be named: payload goes with it */
	uint32_t hash; /* roce_path_hash() as the receiver sees it, */
	uint32_t back; /* and of what comes back */
	union ibv_gid sgid, dgid;
	/* Of a connection: where these addresses stand. Whoever writes there
	 * calls shm_way_changed(). NULL: they may be anywhere. */
	const struct roce_path *path;
};
static inline void shm_way_changed(struct shm_way *w)
{
	w->known = false;
}
void shm_way_forget(struct shm_way *w);

/*
 * How many packets of a batch, from the given one on, go the same way, which w
 * is afterwards. Whoever asks again gets the same answer as long as the peer's
 * segment is there: packets of one flow do not overtake each other.
 */
size_t shm_route(struct shm *s, struct shm_way *w, const struct roce_batch *b,
		 size_t from);

/*
 * Sends pkt[from..to) of a batch, which w is the way of (w->peer is not NULL).
 * Returns the index of the first that was not taken: less than `to` when there
 * is no room now, and then shm_room() will be true when there is again; or with
 * *err EFAULT: the memory of that one is not there; or it is one that is longer
 * than this way takes, which shm_limits() will say. *err is left as it is where
 * nothing is wrong.
 */
size_t shm_send(struct shm *s, struct shm_way *w, const struct roce_batch *b,
		size_t from, size_t to, int *err);

/*
 * Sends the small request that m has at hand, and those that m->next brings, up
 * to a batch of them, whose way is w. Returns how many; what is left is for
 * shm_route() and shm_send().
 */
unsigned shm_send_small(struct shm *s, struct shm_way *w, struct roce_small *m);

/*
 * How long the packets of the next batch of a connected QP may be that has this
 * way (struct roce_batch, max_payload and max_copy). own, life and keys are set.
 */
void shm_limits(const struct shm_way *w, struct roce_batch *b);

/* Whether the last shm_send() on this way found no room, and there is none
 * yet. A load. */
bool shm_starved(const struct shm_way *w);
/* Whether packets of this way get lost only with their receiver. */
bool shm_is_lossless(const struct shm *s, const struct shm_way *w);
/* Whether a way has found room since this was asked last. A load, mostly. */
bool shm_room(struct shm *s);

/*
 * Whether a QP whose way this is may be silent because its process, which is
 * alive, has not yet read what was on its way to it at the first call, or has
 * left packets to threads that hold a QP and wait for a processor; or we have
 * not read what was on its way to us. mark begins as zeros, and is zeros
 * again when the answer is no.
 */
bool shm_unread(struct shm *s, struct shm_way *w, uint64_t mark[2]);
bool shm_has_mark(const uint64_t mark[2]);

/* The peer's segment; valid as long as the way has its reference. */
struct segment_peer *shm_peer_segment(const struct shm_peer *p);

struct shm_stats {
	uint64_t rx_pkts, rx_bytes;
	uint64_t rx_malformed, rx_stale /* of processes that are gone */;
	uint64_t broken; /* rings that made no sense */
};
const struct shm_stats *shm_stats(const struct shm *s);

#endif

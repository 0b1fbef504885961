/*
 * shm_internal.h - what the files of the shared memory link share
 *
 * Locks: the receive side's (rx_lock), then a QP's, then a peer's (struct
 * segment_peer, lock), which is to produce into its ring. The segment's own, for
 * its list of peers, comes before a peer's.
 */
#ifndef SOFTHCA_LINK_SHM_INTERNAL_H
#define SOFTHCA_LINK_SHM_INTERNAL_H

#include "shm.h"

#include "loss.h"
#include "ring.h"

#include "base/lock.h"
#include "registry/registry.h"
#include "segment/segment.h"

#include <stdatomic.h>

/* What lies in a ring for so long may have been scribbled on. */
#define SHM_DOUBT_NS 100000000u

/* Acknowledgements taken from a ring at a time. */
#define SHM_ACKS 32

/*
 * Behind the header of a record: what few packets have, in this order.
 */
struct shm_ext_atomic { /* AtomicETH */
	uint64_t swap_add, compare;
};

/* UD, and packets from or to a process that records them. */
struct shm_ext_addr {
	union ibv_gid sgid, dgid;
	uint32_t qkey, src_qpn; /* DETH */
	uint16_t sport; /* as it is recorded; 0: by RoCE v1 */
	uint8_t tclass;
	uint8_t hop_limit;
	uint32_t unused;
	uint64_t file; /* pcap_file(): it has been recorded there */
};

/*
 * A payload that stays where its sender has it (RING_F_REF): in front of it, in
 * place of it, the first of these, then as many of the second as that says.
 */
struct shm_ref {
	uint32_t qpn, generation; /* of the QP that has sent it */
	uint32_t n;
	uint32_t unused;
};

struct shm_piece {
	uint64_t addr;
	uint32_t len;
	uint32_t slot; /* in the sender's table of keys, */
	uint32_t key; /* and the lkey or rkey that it has there */
	uint32_t unused;
};

#define SHM_PIECES 64u
#define SHM_MAX_PAYLOAD (1u << 20) /* of a packet by reference */
/* Of any other where it may be large. To read what is shorter takes longer than
 * to copy it twice; what UCX copies itself are 8 KiB and headers, and libfabric
 * 16 KiB and headers. */
#define SHM_MAX_COPY 17408u
/* Of each where a longer message goes in pieces: one is put into the ring while
 * others are taken out, for which it has to hold several. */
#define SHM_MAX_PIECE 9216u

/* told.word[] of a ring: the generation of the producer that the consumer can
 * read the payload from. */
#define SHM_WORD_PULLS 0

/*
 * The way to a process, and what comes back on it. It begins with a reference
 * to the segment, which the receive side drops when the process is gone and
 * everything that it has acknowledged is known.
 */
struct shm_peer {
	struct link_peer base;
	struct segment_peer *seg;
	struct shm *shm;
	struct shm_peer *next; /* of shm.arrivals, then shm.peers */
	bool plain; /* one of us wants packets as on the wire, SEGMENT_PLAIN */

	struct ring_out out; /* produced into under seg->lock */
	uint64_t full_ns; /* since when there is none; under seg->lock */

	/* The receive side's: acknowledgements that wait until what the peer
	 * has sent before them is handed over. */
	struct ring_ack acks[SHM_ACKS];
	unsigned nacks;
	uint64_t doubted_ns; /* when a ring that is full was looked into */
	uint32_t taken; /* ring_taken() when the ring was last looked at, */
	uint64_t taken_ns; /* and since when it is so, or was looked into */
};

/* A ring of ours that another process produces into. Receive side only. */
struct shm_in {
	struct ring_in ring;
	unsigned slot;
	uint16_t generation; /* of records that are taken */
	struct shm_peer *back; /* that process, with a reference, or NULL */
	bool empty; /* nothing was in it when this poll looked */
	uint32_t broken_generation; /* 0: it is not; else whose it was then */
};

/* Where the payload of a packet by reference is read from. */
struct shm_source {
	struct qp_source base;
	struct shm *shm;
	uint32_t *pulls; /* SHM_WORD_PULLS of its ring */
	uint64_t id; /* of the sender's segment */
	unsigned slot;
	uint32_t qpn, generation, n;
	bool response; /* to a read */
	struct shm_piece piece[SHM_PIECES];
};

struct shm {
	struct link link;
	struct shm_config cfg;
	struct loss loss;
	struct registry *registry;
	struct segment *segment;
	const struct segment_head *head; /* of it */
	bool plain;
	_Atomic bool off; /* LINK_STOPS */

	/* Peers that the receive side has not seen yet, newest first. */
	struct shm_peer *_Atomic arrivals;

	struct lock rx_lock;
	struct shm_peer *peers;
	struct shm_in *in[REGISTRY_SLOTS]; /* by slot */
	struct shm_in *order[REGISTRY_SLOTS]; /* those there are */
	unsigned nin;
	unsigned turn; /* which of them is looked at first */
	unsigned polls;
	link_rx_fn *fn; /* of this one: whom packets are handed to */
	void *arg;
	uint64_t seen[REGISTRY_SLOTS / 64]; /* of the segment's producers */
	/* The packet at hand; blank but for what each one has, see decode(). */
	struct roce_rx pkt;
	struct shm_source source;
	uint8_t grh[40];
};

/* Of what only the receive side counts, whose lock is held. */
#define SHM_RX_STAT(s, field, n)                                               \
	__atomic_store_n(&(s)->link.stats.field, (s)->link.stats.field + (n),  \
			 __ATOMIC_RELAXED)

static inline struct shm *to_shm(struct link *l)
{
	return (struct shm *)(void *)((char *)l - offsetof(struct shm, link));
}

static inline struct shm_peer *shm_peer_of(const struct link_way *w)
{
	return (struct shm_peer *)w->peer;
}

/* The generation of a process in the records of its rings. */
static inline uint16_t shm_generation(uint32_t generation)
{
	return (uint16_t)(generation % 0xffffu + 1);
}

/* shm.c: the peer in a slot with a reference to its segment, or NULL. */
struct shm_peer *shm_peer_get(struct shm *s, unsigned slot);

static inline bool shm_is_usable(const struct shm_peer *p)
{
	return segment_peer_current(p->seg) && !ring_out_broken(&p->out);
}

/* shm_pull.c, the sender: whether the payload of a packet that goes this way
 * may be named instead of copied; how many bytes so many names take; and they
 * are written, or, false: others cannot be told what a piece is of. */
bool shm_can_ref(const struct link_way *w);
uint32_t shm_ref_size(size_t n);
bool shm_ref_put(uint8_t *to, const struct link_way *w,
		 const struct roce_batch *b, const struct roce_pkt *pkt);
/* The receiver: says whether it reads payload from in->back. rx_lock is held. */
void shm_offer_pull(struct shm_in *in);
/* A payload of len bytes that is named; -EINVAL: it cannot be one. */
int shm_source_init(struct shm_source *src, struct shm *s, struct shm_in *in,
		    const uint8_t *data, uint32_t bytes, uint32_t len,
		    bool response);

/* shm_tx.c: as link_ops. */
size_t shm_send(struct link *l, struct link_way *w, const struct roce_batch *b,
		size_t from, size_t to, int *err);
unsigned shm_send_small(struct link *l, struct link_way *w,
			struct roce_small *m);

/* shm_rx.c */
/*
 * What a ring holds has been unread for long: pokes its consumer, and looks
 * whether the ring is as it should be. rx_lock is held.
 */
void shm_doubt(struct shm *s, struct shm_peer *p);
/* Likewise of one that was full for long, where nobody holds rx_lock. */
void shm_doubt_full(struct shm *s, struct shm_peer *p, uint64_t now);
int shm_poll(struct link *l, unsigned budget, link_rx_fn *fn, void *arg);
/* Whether there is something to do; rx_lock is held. */
bool shm_rx_pending(struct shm *s);
void shm_rx_blank(struct shm *s);
void shm_rx_fini(struct shm *s);

/* shm_trace.c: records a packet with its payload, which is in one piece. */
void shm_record(struct shm *s, bool outbound, const struct roce_hdr *h,
		const struct shm_ext_addr *addr, const struct iovec *payload);

#endif

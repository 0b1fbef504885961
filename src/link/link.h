/*
 * link.h - a way for packets to come and go, as the engine sees it
 *
 * A process has few links, made when its engine is. Who receives loops over all
 * of them; who sends asks which one leads to the destination (link_route()). What
 * belongs to one kind of link alone, as addresses to bind, is in that link's
 * header.
 */
#ifndef SOFTHCA_LINK_LINK_H
#define SOFTHCA_LINK_LINK_H

#include "udp_route.h"

#include "base/aligned.h"
#include "roce/qp.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct keys;
struct link;

/* Somebody whom a link knows: the first member of what it has of that one. */
struct link_peer {
	_Atomic bool starved; /* a packet found no room */
};

/*
 * The way to one destination, kept by who sends there often and under its lock;
 * all zeros at first. It holds a reference to the peer.
 */
struct link_way {
	_Alignas(CACHE_LINE) struct link *link; /* NULL: not known yet */
	struct link_peer *peer; /* NULL: the link knows none */
	bool known; /* link is right for qpn and dgid */
	bool copy; /* what it sends cannot be named: payload goes with it */
	bool v1; /* RoCE v1 */
	uint32_t qpn; /* the destination */
	uint32_t own; /* the QP that gets acknowledgements; 0: none */
	/* Of that (struct qp_public); 0: others cannot see it. */
	uint32_t generation;
	const struct keys *keys; /* that lead to its memory */
	uint32_t hash; /* roce_path_there(), which the receiver compares, */
	uint32_t back; /* and of what comes back */
	/* Of a connection: where the addresses stand. Whoever writes there
	 * calls link_way_changed(). NULL: they may be anywhere. */
	const struct roce_path *path;
	struct udp_route route; /* the UDP link's */
	union ibv_gid sgid, dgid;
};

/* What it has sent and received; a link counts what it has. */
struct link_stats {
	uint64_t tx_pkts, tx_bytes, tx_dropped /* by loss */, tx_busy;
	uint64_t rx_pkts, rx_bytes;
	uint64_t rx_malformed, rx_bad_icrc, rx_steered /* handed over */;
	uint64_t rx_overflow; /* dropped by the kernel, SO_RXQ_OVFL */
	uint64_t broken; /* rings that made no sense */
};

/*
 * Called for each packet received that is whole: its headers decode, and what
 * protects it on its way says that it has not changed. pkt->h.dest_qpn is not
 * checked. The packet is gone when it returns.
 */
typedef void link_rx_fn(void *arg, const struct roce_rx *pkt);

/* How a process is suspended (src/migrate). */
enum link_suspend {
	LINK_STOPS, /* it sends nothing; who has a way forgets it */
	LINK_RESTS, /* it receives nothing */
	LINK_LEAVES, /* it forgets all peers, and nobody polls until */
	LINK_IS_GONE, /* this, where it returns to that */
	LINK_IS_BACK,
};

struct link_ops {
	/*
	 * Takes up to about budget packets and hands them to fn. If another
	 * thread is at it, returns -EBUSY at once. Otherwise how much of the
	 * budget that was: one for each packet, or more for a long one.
	 */
	int (*poll)(struct link *l, unsigned budget, link_rx_fn *fn, void *arg);
	/*
	 * Waits until no other thread polls, and polls nothing: on return no
	 * fn that was called before is running.
	 */
	void (*wait)(struct link *l);
	/* A descriptor that is readable when poll has something to do. */
	int (*fd)(struct link *l);
	/*
	 * Whether poll has something to do, and nobody is at it. NULL: only fd
	 * says so, and to poll is a system call.
	 */
	bool (*ready)(struct link *l);
	/*
	 * Before the thread that waits for fd sleeps: asks for fd to be readable
	 * once there is something to do. Returns false if there is something to
	 * do now. NULL: fd always is as it should be.
	 */
	bool (*sleep)(struct link *l);
	/* It is awake. called: it has found fd readable, which fd is no longer
	 * then if there is sleep. NULL: there is nothing to be done. */
	void (*wake)(struct link *l, bool called);
	/*
	 * Whether packets like p go by this link. Then it has set w->peer, if it
	 * knows whom they are for, and what it needs of w besides; w->known may
	 * be cleared: the next packet is asked for as well. NULL: none do unless
	 * no other link takes them.
	 */
	bool (*reach)(struct link *l, struct link_way *w,
		      const struct roce_pkt *p);
	/* Of a way with a peer, and not NULL there: whether that one is still
	 * there; and the way lets go of it. */
	bool (*current)(const struct link_way *w);
	void (*forget)(struct link_way *w);
	/*
	 * Sends pkt[from..to) of a batch in order, which w is the way of. Returns
	 * the index of the first that was not taken: less than `to` when there is
	 * no room now, and link_starved() is true then if the link will say when
	 * there is; or if that one is longer than this way takes, which limits
	 * will say. A packet that can never be sent counts as taken and is lost;
	 * *err then holds a positive errno for the caller to explain, and is left
	 * as it is otherwise. EFAULT: memory of the first that was not taken is
	 * not there. Safe from many threads. NULL: it carries no packets
	 * (stream.h). w may be NULL unless the link has reach,
	 * and is none where there is but one link, except for its route.
	 */
	size_t (*send)(struct link *l, struct link_way *w,
		       const struct roce_batch *b, size_t from, size_t to,
		       int *err);
	/*
	 * Sends the small request that s has at hand, and those that s->next
	 * brings, up to a batch of them; one and its ACK if it is timed, as it is
	 * where the link is not lossless. Returns how many; what is left is for
	 * send. NULL: none.
	 */
	unsigned (*send_small)(struct link *l, struct link_way *w,
			       struct roce_small *s);
	/*
	 * How long the packets of the next batch of a connected QP may be that
	 * has this way (struct roce_batch, max_payload and max_copy). own,
	 * generation and keys are set. NULL: as on a wire.
	 */
	void (*limits)(const struct link_way *w, struct roce_batch *b);
	/*
	 * Whether the QP w->qpn at w->path may seem silent because this process
	 * has not yet read what was there at the first call; or, where the peer is
	 * a process of this host, because that process, which is alive, has not
	 * read what was on its way to it. mark begins as zeros, or as another link
	 * has left it, and is zeros again when the answer is no. Not NULL where
	 * send is not.
	 */
	bool (*unread)(struct link *l, struct link_way *w, uint64_t mark[2]);
	/* The process is suspended, a step further. NULL: there is nothing to be
	 * done. */
	void (*suspend)(struct link *l, enum link_suspend step);
	/* Whether all that was sent, and has come, has been taken. NULL: yes. */
	bool (*drained)(struct link *l);
	/* No thread uses it any more. */
	void (*destroy)(struct link *l);
	/* In the child of a fork(): closes its copies, touches nothing shared.
	 * NULL: there is nothing to be closed. */
	void (*abandon)(struct link *l);
};

/* In mark[0] of unread: it is not of a process's first link. */
#define LINK_MARK (1ull << 63)

/* The first member of what a link keeps for itself. */
struct link {
	/* Another one while the process is suspended, which takes no lock. */
	const struct link_ops *_Atomic ops;
	/* The engine's: idle_link.h, and whether its thread watches fd. */
	_Atomic uint32_t idle_after, users;
	bool watched;
	bool lossless; /* packets get lost only with their receiver */
	_Atomic bool room; /* somebody who was starved is not any more */
	struct link_stats stats;
};

/* What it does now: no more than a load. All of the tables are constants. */
static inline const struct link_ops *link_now(const struct link *l)
{
	return atomic_load_explicit(&l->ops, memory_order_relaxed);
}

/*
 * How many packets of a batch, from the given one on, go the same way, which w
 * is afterwards: by the last of the links that reaches where they are for, else
 * by the first. Whoever asks again gets the same answer as long as the peer is
 * there: packets of one flow do not overtake each other.
 */
size_t link_route(struct link *const link[], unsigned n, struct link_way *w,
		  const struct roce_batch *b, size_t from);
static inline void link_way_changed(struct link_way *w)
{
	w->known = false;
}
void link_way_forget(struct link_way *w);

/* Whether the last packet on this way found no room, and there is none yet, as
 * the link will say (struct link, room). */
static inline bool link_starved(const struct link_way *w)
{
	return w->peer &&
	       atomic_load_explicit(&w->peer->starved, memory_order_relaxed);
}

static inline bool link_is_lossless(const struct link_way *w)
{
	return w->link && w->link->lossless;
}

#endif

/*
 * udp_internal.h - what the files of the UDP link share
 */
#ifndef SOFTHCA_LINK_UDP_INTERNAL_H
#define SOFTHCA_LINK_UDP_INTERNAL_H

#include "udp.h"

#include "loss.h"
#include "spare.h"

#include "base/gid.h"
#include "base/lock.h"
#include "registry/registry.h"

#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>

#define TX_POOL 4 /* sending sockets per address family, */
#define TX_QP1 TX_POOL /* and one for QP1; see udp_err.c */
#define TX_SOCKS (TX_POOL + 1)
#define UDP_WHY 640 /* characters of a reason */
#define UDP_MAX_BYTES ROCE_RUN_BYTES /* payload of one datagram or GSO run */
/* About what a datagram costs a receive buffer beyond its bytes. */
#define DATAGRAM_COST 1024
#define PORT_RETRY_NS 1000000000u /* between attempts at one that is taken */

/*
 * A packet that reached the wrong process of this host travels on to the right
 * one's private port behind this header. The first byte is no opcode.
 *
 *   0xff, version, sport (2), tclass, hop limit, 0, 0,
 *   source GID (16), destination GID (16)
 *
 * The first byte alone is a poke: it wakes the receiver and is nothing else.
 */
#define HANDOVER_TYPE 0xff
#define HANDOVER_VERSION 2
#define HANDOVER_LEN 40

enum rx_kind { RX_PRIVATE, RX_UNICAST, RX_MULTICAST, RX_ERRORS };

/* A receiving socket, or (RX_ERRORS) the errors of a sending one. Owned by
 * udp->bind_lock; rx side fields by rx_lock. */
struct rx_sock {
	struct rx_sock *next;
	union ibv_gid gid; /* bound to; private sockets: none */
	uint32_t scope; /* interface of a link-local or multicast gid */
	enum rx_kind kind;
	unsigned refs;
	int fd;
	bool v4;
	bool bound; /* false: the private port only, fd is -1 */
	bool filtered; /* private: the kernel lets only this host pass */
	uint64_t tried_ns; /* if not bound: when that was last tried, */
	char why[UDP_WHY]; /* and why it is not */
	uint32_t overflow; /* rx side: SO_RXQ_OVFL when last seen */
	uint64_t repair_ns; /* rx side: of the last attempt */
};

struct tx_sock {
	int fd;
	uint16_t port;
	_Atomic bool no_gso; /* refused once */
	_Atomic bool no_label; /* an IPv6 flow label was refused once */
};

/* One packet, with what its IP and UDP headers said. */
struct packet {
	const uint8_t *p; /* from BTH to ICRC */
	size_t len;
	union ibv_gid src, dst;
	uint16_t sport;
	uint8_t tclass;
	uint8_t hop_limit;
};

/*
 * The way to a slot: a socket that is bound to its private port as well
 * (udp_private.c). A sender counts itself in senders first; the socket to an
 * earlier process of the slot is closed when there are no senders.
 */
struct peer {
	struct claim *_Atomic claim[2]; /* [v4] */
	struct claim *_Atomic retired; /* changed with bind_lock */
	_Atomic uint32_t senders;
	/* Since when it has had no room for our packets. */
	_Atomic uint64_t since_ns; /* 0: it has room */
	_Atomic uint64_t poked_ns;
};

struct claim {
	struct tx_sock tx; /* fd -1: the port cannot be had */
	uint64_t tried_ns;
	struct claim *next; /* retired */
};

/* Where an address was found to lead a moment ago (udp_probe.c). */
struct proof {
	union ibv_gid sgid, dgid;
	uint64_t until_ns;
	uint32_t net; /* 0: nowhere on this host */
};
#define UDP_PROOFS 16

struct rx;

struct udp {
	struct link link; /* udp_link.c */
	struct udp_config cfg;
	struct registry *registry; /* or NULL */
	unsigned slot;
	int epfd;
	int pending_fd; /* eventfd: rx holds packets that are not handed over */
	int spare_fd; /* a socket to put in the place of closed ones */
	struct tx_sock tx[2][TX_SOCKS]; /* [v4] */
	struct spare spare; /* for runs, UDP_MAX_BYTES each */
	struct rx_sock errors[2]; /* of tx[v4][TX_QP1] */
	udp_unreachable_fn *unreachable;
	void *unreachable_arg;
	uint16_t private_port;
	struct loss loss;
	struct peer peer[REGISTRY_SLOTS];
	pthread_mutex_t probe_lock;
	struct proof proof[UDP_PROOFS];

	/* Taken after the registry's lock. */
	pthread_mutex_t bind_lock;
	bool away; /* the process is suspended: nothing is bound */
	struct rx_sock *socks;
	_Atomic bool any_taken; /* some are not bound, or were not once */
	struct rx_sock *_Atomic graveyard; /* unbound, rx may still look */
	char why[UDP_WHY];

	_Atomic bool
		called; /* somebody has woken for a socket, not for which */

	struct lock rx_lock;
	struct rx *rx;
	int64_t stale; /* backlog that was there since then; rx_lock */
	uint64_t stale_since_ns; /* 0: there was none */
};

#define STAT_ADD(u, field, n)                                                  \
	__atomic_fetch_add(&(u)->link.stats.field, n, __ATOMIC_RELAXED)

static inline uint32_t udp_scope(const union ibv_gid *gid, uint32_t ifindex)
{
	return gid_is_link_local(gid) || roce_gid_is_multicast(gid) ? ifindex :
								      0;
}

/* udp.c */
/* Has the link's descriptor readable when fd is. Returns 0 or -errno. */
int udp_watch(struct udp *u, int fd, void *ptr);

/* All but the receiving ones at port 4791 and the private port. */
int udp_fds_open(struct udp *u);
void udp_fds_close(struct udp *u);

/* udp_bind.c */
/* Leases or sockets have changed. Called with the registry's lock held. */
void udp_steer(void *arg);
/* A packet for qpn, another process's, came to s. */
void udp_misdelivered(struct udp *u, struct rx_sock *s, uint32_t qpn);
/* How much memory the datagrams have that lie in the socket of an address. */
uint64_t udp_queued(struct udp *u, const union ibv_gid *gid, unsigned ifindex);
/* The end of all sockets at port 4791: others find out by the registry. */
void udp_unbind_all(struct udp *u);
/* They are opened again. 0 or -errno: then some are not. */
int udp_rebind_all(struct udp *u);

/* udp_private.c */
int private_open(struct udp *u);
void private_close(struct udp *u);

/*
 * The socket to send to a slot's private port from, or NULL where there is
 * none; each call is undone by one udp_peer_put(). A port that is another
 * user's by now is never returned.
 */
struct tx_sock *udp_peer_get(struct udp *u, unsigned slot, bool v4);
void udp_peer_put(struct udp *u, unsigned slot);

/* udp_probe.c: whether a packet from the network is a question of where it
 * arrives, which is then answered. */
bool probe_take(struct udp *u, const struct packet *k);

/* udp_err.c */
void err_enable(int fd, bool v4);
void err_read(struct udp *u, int fd);

static inline void udp_called(struct udp *u, bool called)
{
	if (atomic_load_explicit(&u->called, memory_order_relaxed) != called)
		atomic_store_explicit(&u->called, called, memory_order_relaxed);
}

/* udp_rx.c */
int rx_create(struct udp *u);
void rx_destroy(struct udp *u);
/* About how much memory the datagrams had in their sockets that have been read
 * so far, good or bad, and those that are read and not yet looked at. */
uint64_t rx_taken(const struct udp *u);
uint64_t rx_held(const struct udp *u);
/* Frees the sockets in the graveyard. rx_lock is held. */
void rx_reap(struct udp *u);
/* What has been read, and not handed over, is lost. rx_lock is held. */
void rx_forget(struct udp *u);

/* udp_tx.c */
/* What is sent to a group on an interface is relayed to each member. */
bool tx_relayed(const union ibv_gid *group, uint32_t scope);
/* To a process of this host's private port. Returns 0 or -errno. */
int tx_hand_over(struct udp *u, unsigned slot, const struct packet *k);
/* Wakes the receiver of a slot. */
void tx_poke(struct udp *u, unsigned slot);

/* A packet of len bytes, beginning with a BTH, without an ICRC, to port 4791. It
 * may get lost. */
void tx_probe(struct udp *u, const struct roce_path *path, const void *packet,
	      size_t len);

/* udp_room.c */
/* Whether a slot's receiver has room for bytes more, which are counted. */
bool room_admit(struct udp *u, unsigned slot, int64_t bytes);
/*
 * All of our sockets were found empty: what has been counted throughout some
 * milliseconds of that is an error, and is taken off. rx_lock is held.
 */
void room_correct(struct udp *u);

#endif

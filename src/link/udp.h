/*
 * udp.h - RoCEv2 packets over UDP sockets
 *
 * One per process. Receiving sockets are bound lazily to the addresses in use,
 * port 4791, and shared with other processes of this user by SO_REUSEPORT and
 * a steering program over leased QPNs (registry/registry.h). A private port takes
 * what processes of this host send each other. Sending uses a small pool of
 * unconnected sockets. All sockets are non-blocking.
 */
#ifndef SOFTHCA_LINK_UDP_H
#define SOFTHCA_LINK_UDP_H

#include "link.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct udp;
struct registry;
struct pcap;

/* Set from the environment by os/config.c. */
struct udp_config {
	bool wire; /* packets to port 4791 even on this host */
	double loss; /* share of packets dropped on sending, 0..1 */
	uint64_t seed; /* of the drops */
	struct pcap *pcap; /* record every packet sent and accepted, or NULL */
	uint32_t rcvbuf; /* SO_RCVBUF; 0: as much as is useful and allowed */
};

/* registry may be NULL: alone on this host. Returns 0 or -errno. */
int udp_create(struct udp **u, const struct udp_config *cfg,
	       struct registry *registry);
void udp_destroy(struct udp *u);

/*
 * The process is suspended (src/migrate): all sockets are closed, nobody sends,
 * and who polls finds nothing; and it has the same again. If that fails it is
 * still away. udp_wake(): who sleeps on udp_fd() wakes.
 */
void udp_away(struct udp *u);
int udp_back(struct udp *u);
bool udp_wake(struct udp *u);

/* While it is away: the unicast addresses that it receives at; and one is another
 * from now on. */
struct udp_address {
	union ibv_gid gid;
	uint32_t scope; /* the interface, of a link-local one; else 0 */
	bool gone; /* the host does not have it */
};
size_t udp_addresses(struct udp *u, struct udp_address *out, size_t max);
void udp_readdress(struct udp *u, const union ibv_gid *from,
		   unsigned from_ifindex, const union ibv_gid *to,
		   unsigned to_ifindex);

/* As the engine uses it; lives and ends with u. */
struct link *udp_link(struct udp *u);

/* In the child of a fork(): closes its copies, touches nothing shared. */
void udp_abandon(struct udp *u);

/*
 * Starts receiving what is sent to a local address, or to a multicast group on
 * interface ifindex; each call is undone by one udp_unbind(). Returns 0 or
 * -errno: -EADDRINUSE when someone else has the port (udp_why() says who).
 * Where only the private port works the return is still 0 if that is enough
 * for processes of this host (not with cfg.wire), and udp_why() is non-empty.
 */
int udp_bind(struct udp *u, const union ibv_gid *gid, unsigned ifindex);
void udp_unbind(struct udp *u, const union ibv_gid *gid, unsigned ifindex);

/* Whether somebody else has the port of an address that udp_bind() was asked
 * for: what others send there does not reach us. */
bool udp_taken(const struct udp *u, const union ibv_gid *gid, unsigned ifindex);

/* Whether a packet would reach somebody who could only answer itself: both
 * ends are addresses of ours whose port is taken. Such a packet is not sent
 * unless it is for a process of our registry. */
bool udp_astray(const struct udp *u, const struct roce_path *path);

/* The reason the last udp_bind() was refused or is limited, in a sentence. */
const char *udp_why(const struct udp *u);

/* A descriptor that is readable when udp_poll() has something to do. */
int udp_fd(const struct udp *u);

/*
 * Takes up to about budget packets from the sockets and hands them to fn. If
 * another thread is at it, returns -EBUSY at once. Otherwise the number of
 * packets handed over. udp_poll_wait() instead waits for that thread first and
 * then polls nothing: on return no rx call that began before is running.
 */
int udp_poll(struct udp *u, unsigned budget, link_rx_fn *fn, void *arg);
void udp_poll_wait(struct udp *u);

/*
 * Called from udp_poll() when a packet for QP1 that was sent to port 4791 of
 * dst did not get there: nobody has the port, or there is no route. packet is
 * what the report quotes of it, from BTH on, which may be little.
 */
typedef void udp_unreachable_fn(void *arg, const union ibv_gid *dst,
				const uint8_t *packet, size_t len);
void udp_on_unreachable(struct udp *u, udp_unreachable_fn *fn, void *arg);

/*
 * Sends pkt[from..to) of a batch in order: ICRC, GSO, source port. Returns the
 * index of the first that was not taken (dropped ones by --loss count as
 * taken): less than `to` when a socket or the receiver on this host has no room
 * now. A packet that can never be sent (no route, too large) counts as taken and
 * is lost; *err then holds a positive errno for the caller to explain. EFAULT:
 * memory of the first that was not taken is not there. Safe from many threads.
 * at: the route of the caller's last packet, or zeros, which is kept up to date;
 * or NULL.
 */
size_t udp_send_part(struct udp *u, struct udp_route *at,
		     const struct roce_batch *b, size_t from, size_t to,
		     int *err);

/* As send_small in link.h: 1, or 0. */
unsigned udp_send_small(struct udp *u, struct udp_route *at,
			const struct roce_small *s);

/* udp_send_part() for a whole batch; *err begins as 0. */
static inline size_t udp_send(struct udp *u, const struct roce_batch *b,
			      int *err)
{
	*err = 0;
	return udp_send_part(u, NULL, b, 0, b->n, err);
}

/*
 * Whether a QP may seem silent because this process has not yet read what was
 * there at the first call; or, where the peer is a process of this host, because
 * that process, which is alive, has not read what was on its way to it. mark
 * begins as zeros, and is zeros again when the answer is no.
 */
bool udp_unread(struct udp *u, const struct roce_path *path, uint32_t qpn,
		uint64_t mark[2]);

/*
 * The network namespace of this host where packets with this path arrive, as the
 * registry has it, if the process that has qpn, or, for 0, one that receives at
 * path->dgid, may be in another one than ours; else 0. Sends a packet and waits
 * for the answer, 0.1 s at most.
 */
uint32_t udp_prove(struct udp *u, const struct roce_path *path, uint32_t qpn);

/*
 * Only inside an rx call, for the packet being handed over: sends it on to the
 * process that has this slot of the registry (a message for QP1 that belongs
 * to a connection or listener of that process). Returns 0 or -errno.
 */
int udp_forward(struct udp *u, unsigned slot);

/*
 * Hands a packet that was received before to another process, as udp_forward()
 * does: len bytes from BTH on, without the ICRC, UDP_HANDOVER_MAX at most. One
 * for QP 0, which RoCE does not have, is a message between processes.
 */
#define UDP_HANDOVER_MAX (2 * ROCE_HDR_MAX + ROCE_MTU_MAX + 128)
int udp_handover(struct udp *u, unsigned slot, const union ibv_gid *src,
		 const union ibv_gid *dst, uint8_t tclass, const void *packet,
		 size_t len);

const struct link_stats *udp_stats(const struct udp *u);

#endif

/*
 * neigh.h - the Ethernet address that packets to an IP address leave for
 */
#ifndef SOFTHCA_NET_NEIGH_H
#define SOFTHCA_NET_NEIGH_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NEIGH_NO_VLAN 0xffff

/*
 * The MAC of dgid, or of the router towards it, as seen from an interface. If
 * the kernel does not know it yet, it is made to ask; the answer is awaited for
 * up to three seconds. 0; -EHOSTUNREACH: no route, or no answer; another -errno.
 */
int neigh_resolve(const union ibv_gid *dgid, uint32_t ifindex, uint8_t mac[6]);

/* The MAC of an interface. 0 or -errno. */
int neigh_own(uint32_t ifindex, uint8_t mac[6]);

/* Whether packets to dgid by an interface pass no router: it is of the interface's
 * network, or of this host. */
bool neigh_on_link(const union ibv_gid *dgid, uint32_t ifindex);

/* Where packets to an address leave for: the next hop, as an IP address. */
struct neigh_hop {
	int family;
	uint32_t ifindex;
	size_t len;
	uint8_t bytes[16]; /* in network order */
};

/*
 * Whether packets to dgid by an interface need the link-layer address of *hop,
 * and it is not known: false for groups, addresses of this host, and interfaces
 * that have none or do not ask for them (loopback, tunnels, IFF_NOARP).
 */
bool neigh_missing(const union ibv_gid *dgid, uint32_t ifindex,
		   struct neigh_hop *hop);
/* Whether the kernel has it, or has had it lately; as far as that can be found
 * out. It need not be right: a host that has just gone has one, too. */
bool neigh_known(const struct neigh_hop *hop);
/* Makes the kernel ask for it: ARP, or neighbour discovery. */
void neigh_ask(const struct neigh_hop *hop);

/* The VLAN that an interface is, or NEIGH_NO_VLAN. */
uint16_t neigh_vlan(uint32_t ifindex);

#endif

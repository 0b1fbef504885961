/*
 * neigh.h - the Ethernet address that packets to an IP address leave for
 */
#ifndef SOFTHCA_NET_NEIGH_H
#define SOFTHCA_NET_NEIGH_H

#include <infiniband/verbs.h>
#include <stdint.h>

#define NEIGH_NO_VLAN 0xffff

/*
 * The MAC of dgid, or of the router towards it, as seen from an interface. If
 * the kernel does not know it yet, it is made to ask; the answer is awaited for
 * up to three seconds. 0; -EHOSTUNREACH: no route, or no answer; another -errno.
 */
int neigh_resolve(const union ibv_gid *dgid, uint32_t ifindex, uint8_t mac[6]);

/* The VLAN that an interface is, or NEIGH_NO_VLAN. */
uint16_t neigh_vlan(uint32_t ifindex);

#endif

/*
 * netdev.h - network interfaces, and the GID table made of their addresses
 *
 * Reads the interfaces that are up with rtnetlink and orders their addresses
 * into RoCEv2 GIDs: the IPv4 of the primary non-loopback interface first,
 * loopback last, so that index 0 is what programs that ask for no index want.
 */
#ifndef SOFTHCA_NET_NETDEV_H
#define SOFTHCA_NET_NETDEV_H

#include <infiniband/verbs.h>
#include <net/if.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NETDEV_MAX_GIDS 64

struct netdev_gid {
	union ibv_gid gid;
	uint32_t ifindex;
	uint32_t mtu; /* of the interface, bytes */
	char ifname[IF_NAMESIZE];
	bool loopback;
	uint8_t prefix; /* bits of an address that are the network's */
	uint8_t mac[6];
};

struct netdev_table {
	size_t count;
	struct netdev_gid gid[NETDEV_MAX_GIDS];
};

/*
 * The addresses of the interfaces named in ifnames (comma separated; NULL or
 * "": all that are up). Order: the interface of the default route, the others
 * by index, loopback; of one interface IPv4, IPv6, link-local IPv6. first, if
 * not NULL, is an address ("10.0.0.1", "fe80::1%eth0") to put at index 0; any
 * address of 127/8 will do if the loopback interface is among them. Tentative
 * IPv6 addresses are left out. Returns 0 or -errno; -ENODEV: a named interface
 * does not exist; -EADDRNOTAVAIL: first is none of the addresses (the table is
 * valid nevertheless).
 */
int netdev_scan(struct netdev_table *t, const char *ifnames, const char *first);

/*
 * Whether gid is a unicast address of this host (any interface), as of a scan
 * made at most a second ago, and the index of its interface (0: not local).
 * Cheap; safe from many threads.
 */
bool netdev_is_local(const union ibv_gid *gid);
uint32_t netdev_ifindex(const union ibv_gid *gid);
/* The interface that belongs to a link-local address of this host; 0 of others. */
uint32_t netdev_scope(const union ibv_gid *gid);
/* The same by way of an interface, whose link-local addresses alone count. */
bool netdev_is_local_on(const union ibv_gid *gid, uint32_t ifindex);

/* The process is suspended (src/migrate): what is known stays, without the
 * descriptor by which it is; and what was known is looked at again. */
void netdev_local_away(void);
void netdev_local_back(void);

/*
 * A non-blocking descriptor that turns readable when an interface or address
 * of this host may have changed, or -errno; the caller closes it.
 * netdev_changed() empties it and returns whether there was anything.
 */
int netdev_watch_fd(void);
bool netdev_changed(int fd);

/* Largest IB MTU (256..4096) whose packets fit mtu bytes of interface MTU:
 * IPv6, UDP, BTH, the longest extended headers and ICRC allowed for. */
enum ibv_mtu netdev_ib_mtu(uint32_t mtu);

#endif

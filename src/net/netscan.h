/*
 * netscan.h - the links, addresses and default route of this host, as the
 * kernel lists them
 */
#ifndef SOFTHCA_NET_NETSCAN_H
#define SOFTHCA_NET_NETSCAN_H

#include <infiniband/verbs.h>
#include <net/if.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SCAN_LINKS 1024
#define SCAN_ADDRS 1024

struct link_info {
	uint32_t ifindex;
	uint32_t mtu;
	uint32_t flags; /* IFF_* */
	char name[IF_NAMESIZE];
	uint8_t mac[6];
};

struct addr_info {
	union ibv_gid gid;
	const struct link_info *link;
	int rank; /* of the interface: 0 has the default route */
	int group; /* within the interface */
	uint8_t prefix; /* bits of it that are the network's */
	size_t seq;
};

struct netscan {
	struct link_info *link;
	struct addr_info *addr;
	size_t nlinks, naddrs;
	uint32_t default_if; /* of the best default route */
	uint64_t default_metric;
};

/*
 * Interfaces, and the addresses of those that are up, tentative IPv6 addresses
 * left out; the default route only if routes is set. Returns 0, and then
 * netscan_free() is for the caller to call, or -errno.
 */
int netscan(struct netscan *s, bool routes);
void netscan_free(struct netscan *s);

/* The same without rtnetlink, of an *s that has its arrays. */
int netscan_plain(struct netscan *s, bool routes);

/* A socket of rtnetlink, subscribed to groups; or -errno. */
int netscan_socket(uint32_t groups, int flags);

#endif

/*
 * rails.h - several devices over the addresses of this host, each with some of
 * its own
 *
 * A machine of several NICs has a device for each, with its own addresses. Rails
 * are such devices where there is one interface, or none but loopback: what a
 * user asks for (SOFTHCA_RAILS) becomes a list of addresses for each. A rail
 * keeps its addresses for as long as the process lives, also while they are gone.
 */
#ifndef SOFTHCA_NET_RAILS_H
#define SOFTHCA_NET_RAILS_H

#include "netdev.h"

#define RAILS_MAX 16
#define RAIL_ADDRS 3 /* IPv4, IPv6, link-local IPv6 */

struct rail {
	char ifname[IF_NAMESIZE]; /* where they are; "": on whichever */
	size_t n;
	struct {
		union ibv_gid gid;
		uint32_t ifindex; /* of link-local ones; else 0 */
	} addr[RAIL_ADDRS];
};

/*
 * text is a number N, or a list of addresses, one for each rail. N rails have the
 * addresses of ifnames (comma separated), in blocks: of two interfaces the first has
 * the first half. The kth rail of an interface has its kth IPv4 address, kth IPv6
 * address and kth link-local one; first, if not NULL, is moved to the front. Without
 * ifnames they have 127.0.0.2, 127.0.0.3 and so on, or addresses of 127/8 from first
 * on. Returns how many there are, or -errno with a sentence in reason.
 */
int rails_read(const char *text, const char *ifnames, const char *first,
	       struct rail rail[RAILS_MAX], char *reason, size_t size);

/* As netdev_scan(), of a rail's addresses. */
int rail_scan(const struct rail *r, struct netdev_table *t);

#endif

/*
 * announce.h - neighbours are told that an address is here now
 *
 * Hosts keep the hardware address of a neighbour for a while. When an address comes
 * to other hardware they send to the old place until they notice.
 */
#ifndef SOFTHCA_NET_ANNOUNCE_H
#define SOFTHCA_NET_ANNOUNCE_H

#include "netdev.h"

/*
 * By an ARP announcement (RFC 5227), or an unsolicited neighbour advertisement
 * (RFC 4861 7.2.6). 0 or -errno: -EPERM where the process has no CAP_NET_RAW.
 */
int netdev_announce(const struct netdev_gid *gid);

#endif

/*
 * ibaddr.h - LIDs, GUIDs and GIDs of InfiniBand ports, and the IPv4 addresses
 * that they stand for
 *
 * There is no subnet manager, and nobody is asked. The LID of a port is the part
 * of its address that its prefix leaves to hosts, as long as that is a unicast
 * LID; its GUID holds the address. So all hosts of a subnet make the same address
 * of a LID, or of a GID. IPv4 addresses are in host order here, 0: none.
 */
#ifndef SOFTHCA_NET_IBADDR_H
#define SOFTHCA_NET_IBADDR_H

#include "netdev.h"

#include "base/bytes.h"
#include "base/gid.h"

#define IB_LID_UNICAST_MAX 0xbfffu
#define IB_LID_MULTICAST_MIN 0xc000u
#define IB_LID_PERMISSIVE 0xffffu

static inline bool ib_lid_is_unicast(uint32_t lid)
{
	return lid && lid <= IB_LID_UNICAST_MAX;
}

static inline bool ib_lid_is_multicast(uint32_t lid)
{
	return lid >= IB_LID_MULTICAST_MIN && lid < IB_LID_PERMISSIVE;
}

/* That of an IPv4-mapped GID; 0 of others. */
static inline uint32_t ib_v4(const union ibv_gid *gid)
{
	return gid_is_v4(gid) ? get_be32(gid->raw + 12) : 0;
}

static inline union ibv_gid ib_v4_gid(uint32_t addr)
{
	uint8_t bytes[4];

	put_be32(bytes, addr);
	return gid_of_v4(bytes);
}

static inline bool ib_same_subnet(uint32_t a, unsigned prefix, uint32_t b)
{
	return prefix && prefix <= 32 && !((a ^ b) >> (32 - prefix));
}

/* 0: the part that the prefix leaves is no unicast LID. */
uint16_t ib_lid(uint32_t addr, unsigned prefix);
/* Of the subnet of addr; 0: no host of it has this LID. */
uint32_t ib_lid_addr(uint32_t addr, unsigned prefix, uint16_t lid);
/* The LID that no host has, of what stands for the switch and the subnet
 * manager: the broadcast address's, or the last one. */
uint16_t ib_sm_lid(unsigned prefix);

/* In host order. And that of the switch that a subnet's hosts hang on. */
uint64_t ib_guid(uint32_t addr);
uint64_t ib_switch_guid(uint32_t addr, unsigned prefix);
union ibv_gid ib_gid(uint32_t addr);
uint32_t ib_gid_addr(const union ibv_gid *gid);

/* The address that a port's GID stands for; of others it is the GID. */
static inline union ibv_gid ib_gid_ip(const union ibv_gid *gid)
{
	const uint32_t addr = ib_gid_addr(gid);

	return addr ? ib_v4_gid(addr) : *gid;
}

/*
 * A multicast group's address: of IPoIB and of rdma_cm the one that the MGID
 * holds, of others one that all hosts make of it. 0: it is no MGID. And the MGID
 * that rdma_cm makes of an address, or IPoIB.
 */
uint32_t ib_mgid_addr(const union ibv_gid *mgid);
union ibv_gid ib_mgid(uint32_t group, bool ipoib);
/* The LID that its packets have. */
uint16_t ib_mlid(uint32_t group);

/* The port of a device with these addresses: the first of IPv4, or NULL. */
const struct netdev_gid *ib_port(const struct netdev_table *t);
/* Why a port has no LID, and what to do; "": it has one. port: NULL: it has no
 * address. */
struct ib_why {
	char text[256];
};

const char *ib_port_why(const struct netdev_gid *port, struct ib_why *why);

#endif

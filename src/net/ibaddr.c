/*
 * ibaddr.c - from IPv4 addresses to LIDs, GUIDs and GIDs, and back
 */
#include "ibaddr.h"

#include <stdio.h>
#include <string.h>

/* An EUI-64, locally administered; its other half is the address. */
#define GUID_PREFIX 0x025348cau
#define SWITCH_PREFIX 0x025348cbu /* the other half: the subnet's address */
#define SUBNET_PREFIX 0xfe80000000000000u

static uint32_t host_mask(unsigned prefix)
{
	return prefix >= 32 ? 0 : UINT32_MAX >> prefix;
}

uint16_t ib_lid(uint32_t addr, unsigned prefix)
{
	const uint32_t host = addr & host_mask(prefix);

	return ib_lid_is_unicast(host) ? (uint16_t)host : 0;
}

uint32_t ib_lid_addr(uint32_t addr, unsigned prefix, uint16_t lid)
{
	const uint32_t mask = host_mask(prefix);

	/* All ones are the broadcast address, but of /31 (RFC 3021). */
	if (!ib_lid_is_unicast(lid) || lid > mask ||
	    (lid == mask && prefix < 31))
		return 0;
	return (addr & ~mask) | lid;
}

uint16_t ib_sm_lid(unsigned prefix)
{
	const uint32_t mask = host_mask(prefix);

	return prefix < 31 && ib_lid_is_unicast(mask) ?
		       (uint16_t)mask :
		       (uint16_t)IB_LID_UNICAST_MAX;
}

uint64_t ib_guid(uint32_t addr)
{
	return (uint64_t)GUID_PREFIX << 32 | addr;
}

uint64_t ib_switch_guid(uint32_t addr, unsigned prefix)
{
	return (uint64_t)SWITCH_PREFIX << 32 | (addr & ~host_mask(prefix));
}

union ibv_gid ib_gid(uint32_t addr)
{
	union ibv_gid gid;

	put_be64(gid.raw, SUBNET_PREFIX);
	put_be64(gid.raw + 8, ib_guid(addr));
	return gid;
}

uint32_t ib_gid_addr(const union ibv_gid *gid)
{
	if (get_be64(gid->raw) != SUBNET_PREFIX ||
	    get_be32(gid->raw + 8) != GUID_PREFIX)
		return 0;
	return get_be32(gid->raw + 12);
}

/*
 * ff1s:SSSS:pkey:0:0:0:0xxx:xxxx, of which the signature SSSS is IPoIB's for IPv4
 * (RFC 4391) or rdma_cm's, and x the low 28 bits of the group's address.
 */
#define SIGNATURE_IPOIB 0x401bu
#define SIGNATURE_CM 0x4001u
#define GROUP_BITS 0x0fffffffu
#define GROUP_V4 0xe0000000u
#define GROUP_OTHERS                                                           \
	0xef000000u /* 239.0.0.0/8: of an organisation (RFC 2365) */

uint32_t ib_mgid_addr(const union ibv_gid *mgid)
{
	const uint32_t signature = get_be16(mgid->raw + 2);
	uint32_t hash = 0x811c9dc5; /* FNV-1a */

	if (gid_is_v4(mgid))
		return (ib_v4(mgid) & ~GROUP_BITS) == GROUP_V4 ? ib_v4(mgid) :
								 0;
	if (mgid->raw[0] != 0xff)
		return 0;
	if (signature == SIGNATURE_IPOIB || signature == SIGNATURE_CM)
		return GROUP_V4 | (get_be32(mgid->raw + 12) & GROUP_BITS);
	for (size_t i = 0; i < sizeof(mgid->raw); i++)
		hash = (hash ^ mgid->raw[i]) * 0x01000193;
	return GROUP_OTHERS | ((hash ^ hash >> 24) & 0xffffff);
}

union ibv_gid ib_mgid(uint32_t group, bool ipoib)
{
	union ibv_gid gid = { .raw = { 0xff, 0x12 } }; /* of the subnet */

	put_be16(gid.raw + 2, ipoib ? SIGNATURE_IPOIB : SIGNATURE_CM);
	put_be16(gid.raw + 4, 0xffff); /* the P_Key */
	put_be32(gid.raw + 12, group & GROUP_BITS);
	return gid;
}

uint16_t ib_mlid(uint32_t group)
{
	const uint32_t n = IB_LID_PERMISSIVE - IB_LID_MULTICAST_MIN;

	return (uint16_t)(IB_LID_MULTICAST_MIN + (group & GROUP_BITS) % n);
}

const struct netdev_gid *ib_port(const struct netdev_table *t)
{
	for (size_t i = 0; i < t->count; i++)
		if (t->gid[i].ifindex && gid_is_v4(&t->gid[i].gid))
			return &t->gid[i];
	return NULL;
}

const char *ib_port_why(const struct netdev_gid *port, struct ib_why *why)
{
	struct gid_text at;

	*why->text = '\0';
	if (!port)
		snprintf(why->text, sizeof(why->text),
			 "no LID: it has no interface that is up with an IPv4 "
			 "address (ip link set lo up; ip addr add)");
	else if (!ib_lid(ib_v4(&port->gid), port->prefix))
		snprintf(why->text, sizeof(why->text),
			 "no LID: what the prefix of %s/%u (%s) leaves is %u, "
			 "and LIDs are 1 to %u: choose another address of this "
			 "host (--addr=ADDRESS), or another prefix",
			 gid_str(&port->gid, &at), port->prefix, port->ifname,
			 ib_v4(&port->gid) & host_mask(port->prefix),
			 IB_LID_UNICAST_MAX);
	return why->text;
}

/*
 * gid.h - what kind of address a GID is, and whether two are the same
 */
#ifndef SOFTHCA_BASE_GID_H
#define SOFTHCA_BASE_GID_H

#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <string.h>

/* The IPv4-mapped GID (annex A17.4.1) of four bytes in network order. */
static inline union ibv_gid gid_of_v4(const void *addr)
{
	union ibv_gid gid = { .raw = { [10] = 0xff, [11] = 0xff } };

	memcpy(gid.raw + 12, addr, 4);
	return gid;
}

static inline bool gid_is_v4(const union ibv_gid *gid)
{
	return gid->global.subnet_prefix == 0 && gid->raw[8] == 0 &&
	       gid->raw[9] == 0 && gid->raw[10] == 0xff && gid->raw[11] == 0xff;
}

static inline bool gid_equal(const union ibv_gid *a, const union ibv_gid *b)
{
	return a->global.subnet_prefix == b->global.subnet_prefix &&
	       a->global.interface_id == b->global.interface_id;
}

/* fe80::/10: names a host only together with an interface. */
static inline bool gid_is_link_local(const union ibv_gid *gid)
{
	return gid->raw[0] == 0xfe && (gid->raw[1] & 0xc0) == 0x80;
}

/* An IPv4-mapped address of 127/8. */
static inline bool gid_is_v4_loopback(const union ibv_gid *gid)
{
	static const uint8_t mapped[13] = { [10] = 0xff, 0xff, 127 };

	return !memcmp(gid->raw, mapped, sizeof(mapped));
}

/* The same, or IPv6's. */
static inline bool gid_is_loopback(const union ibv_gid *gid)
{
	static const uint8_t one[16] = { [15] = 1 };

	return gid_is_v4_loopback(gid) || !memcmp(gid->raw, one, sizeof(one));
}

/* As people write it: 192.0.2.7 or 2001:db8::7. */
struct gid_text {
	char text[INET6_ADDRSTRLEN];
};

static inline const char *gid_str(const union ibv_gid *gid, struct gid_text *t)
{
	const bool v4 = gid_is_v4(gid);

	return inet_ntop(v4 ? AF_INET : AF_INET6, gid->raw + (v4 ? 12 : 0),
			 t->text, sizeof(t->text));
}

#endif

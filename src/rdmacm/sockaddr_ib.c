/*
 * sockaddr_ib.c - addresses of family AF_IB: a port's GID and a service ID
 *
 * They are kept as the program gives them; what they stand for is an address and
 * a port, as of AF_INET: the GID holds the one (net/ibaddr.h), the service ID the
 * other, in the ranges that the kernel knows (annex A11). They are for devices of
 * InfiniBand.
 */
#include "cma.h"

#include "base/bytes.h"
#include "base/gid.h"
#include "net/ibaddr.h"

#include <endian.h>
#include <errno.h>
#include <string.h>

static struct sockaddr_ib *to_sib(struct sockaddr_storage *addr)
{
	return (struct sockaddr_ib *)addr;
}

static const struct sockaddr_ib *sib_of(const struct sockaddr *addr)
{
	return (const struct sockaddr_ib *)(const void *)addr;
}

bool cma_is_infiniband(const struct cma_dev *dev)
{
	return cma_device(dev)->naming == &shca_naming_lid;
}

struct cma_dev *cma_infiniband(const union ibv_gid *gid, struct netdev_gid *via)
{
	int n;
	struct cma_dev *dev = cma_devices(&n);

	for (int i = 0; i < n; i++)
		if (cma_is_infiniband(&dev[i]) &&
		    (!gid || (shca_device_addr(cma_device(&dev[i]), gid, via) &&
			      gid_equal(&via->gid, gid))))
			return &dev[i];
	return NULL;
}

union ibv_gid cma_sib_raw(const struct sockaddr *addr)
{
	union ibv_gid gid;

	memcpy(gid.raw, &sib_of(addr)->sib_addr, sizeof(gid.raw));
	return gid;
}

/* Zeros are any address; a GID that is none of a port is nobody's. */
union ibv_gid cma_sib_gid(const struct sockaddr *addr)
{
	const union ibv_gid gid = cma_sib_raw(addr);

	return ib_v4_gid(ib_gid_addr(&gid));
}

uint16_t cma_sib_port(const struct sockaddr *addr)
{
	const struct sockaddr_ib *sib = sib_of(addr);

	return (uint16_t)be64toh(sib->sib_sid & sib->sib_sid_mask);
}

void cma_sib_set_port(struct sockaddr_storage *addr, uint16_t port)
{
	struct sockaddr_ib *sib = to_sib(addr);

	sib->sib_sid =
		htobe64((be64toh(sib->sib_sid) & RDMA_IB_IP_PS_MASK) | port);
	sib->sib_sid_mask = htobe64(UINT64_MAX);
}

/* As the kernel, which knows the service IDs of its port spaces alone. */
int cma_sib_check(enum rdma_port_space ps, struct sockaddr_storage *addr,
		  bool whole)
{
	const union ibv_gid any = { 0 },
			    gid = cma_sib_raw((struct sockaddr *)addr);
	struct sockaddr_ib *sib = to_sib(addr);
	struct gid_text at;
	uint64_t mask;

	if (!cma_infiniband(NULL, NULL))
		return why(-EAFNOSUPPORT,
			   "AF_IB is for devices of InfiniBand (--infiniband)");
	if (!ib_gid_addr(&gid) && !gid_equal(&gid, &any))
		return why(-EADDRNOTAVAIL,
			   "%s is no port's GID (fe80::253:48ca:...)",
			   gid_str(&gid, &at));
	/* A destination is the whole of a service ID. */
	if (whole)
		sib->sib_sid_mask = htobe64(UINT64_MAX);
	mask = be64toh(sib->sib_sid_mask) & RDMA_IB_IP_PS_MASK;
	if ((be64toh(sib->sib_sid) & mask) != (((uint64_t)ps << 16) & mask))
		return why(-EPROTONOSUPPORT,
			   "service ID 0x%llx is not one of the identifier's "
			   "port space: 0x%llx and a port",
			   (unsigned long long)be64toh(sib->sib_sid),
			   (unsigned long long)ps << 16);
	sib->sib_sid = htobe64((uint64_t)ps << 16 |
			       cma_sib_port((const struct sockaddr *)addr));
	sib->sib_sid_mask |= htobe64(RDMA_IB_IP_PS_MASK);
	return 0;
}

void cma_sib_make(enum rdma_port_space ps, struct sockaddr_storage *addr)
{
	const uint16_t port = cma_port((struct sockaddr *)addr);
	struct sockaddr_ib *sib = to_sib(addr);
	union ibv_gid gid;

	cma_addr_gid((struct sockaddr *)addr, &gid);
	gid = ib_gid(ib_v4(&gid));
	memset(addr, 0, sizeof(*addr));
	sib->sib_family = AF_IB;
	sib->sib_pkey = htobe16(ROCE_PKEY_DEFAULT);
	memcpy(&sib->sib_addr, gid.raw, sizeof(gid.raw));
	sib->sib_sid = htobe64((uint64_t)ps << 16);
	cma_sib_set_port(addr, port);
}

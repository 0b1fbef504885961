/*
 * addrinfo.c - rdma_getaddrinfo(): names to addresses, by getaddrinfo(3)
 */
#include "cma.h"

#include "net/ibaddr.h"

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>

static int copy_addr(struct sockaddr **to, socklen_t *to_len,
		     const struct sockaddr *from, socklen_t len)
{
	*to = malloc(len);
	if (!*to)
		return -ENOMEM;
	memcpy(*to, from, len);
	*to_len = len;
	return 0;
}

static int from_addrinfo(struct rdma_addrinfo *rai,
			 const struct rdma_addrinfo *hints,
			 const struct addrinfo *ai)
{
	bool passive = hints->ai_flags & RAI_PASSIVE;
	char **name = passive ? &rai->ai_src_canonname : &rai->ai_dst_canonname;

	rai->ai_family = ai->ai_family;
	rai->ai_qp_type = hints->ai_qp_type;
	if (!rai->ai_qp_type)
		rai->ai_qp_type =
			hints->ai_port_space == RDMA_PS_UDP ||
					(!hints->ai_port_space &&
					 ai->ai_socktype == SOCK_DGRAM) ?
				IBV_QPT_UD :
				IBV_QPT_RC;
	rai->ai_port_space = hints->ai_port_space;
	if (!rai->ai_port_space)
		rai->ai_port_space = rai->ai_qp_type == IBV_QPT_UD ?
					     RDMA_PS_UDP :
					     RDMA_PS_TCP;
	if (ai->ai_canonname) {
		*name = strdup(ai->ai_canonname);
		if (!*name)
			return -ENOMEM;
	}
	if (passive) {
		rai->ai_flags = RAI_PASSIVE;
		return copy_addr(&rai->ai_src_addr, &rai->ai_src_len,
				 ai->ai_addr, ai->ai_addrlen);
	}
	return copy_addr(&rai->ai_dst_addr, &rai->ai_dst_len, ai->ai_addr,
			 ai->ai_addrlen);
}

/* A name, or NULL: any address, as a GID that getaddrinfo(3) can make. */
static int node_gid(const char *node, union ibv_gid *gid, int *eai)
{
	const struct addrinfo ask = { .ai_family = AF_INET };
	struct addrinfo *list;

	memset(gid, 0, sizeof(*gid));
	if (!node || inet_pton(AF_INET6, node, gid->raw) == 1)
		return 0;
	*eai = getaddrinfo(node, NULL, &ask, &list);
	if (*eai)
		return 0;
	cma_addr_gid(list->ai_addr, gid);
	*gid = ib_gid(ib_v4(gid));
	freeaddrinfo(list);
	return 0;
}

/* AF_IB: node is a port's GID, or a name; service a port, or a service ID. */
static int from_gid(struct rdma_addrinfo *rai,
		    const struct rdma_addrinfo *hints, const char *node,
		    const char *service, int *eai)
{
	const bool passive = hints->ai_flags & RAI_PASSIVE;
	struct sockaddr_storage addr = { .ss_family = AF_IB };
	struct sockaddr_ib *sib = (struct sockaddr_ib *)&addr;
	unsigned long port = 0;
	union ibv_gid gid;
	char *end = NULL;

	if (!cma_infiniband(NULL, NULL)) {
		*eai = EAI_FAMILY;
		return 0;
	}
	if (service)
		port = strtoul(service, &end, 0);
	if (service && (!*service || *end || port > UINT16_MAX)) {
		*eai = EAI_SERVICE;
		return 0;
	}
	node_gid(node, &gid, eai);
	if (*eai)
		return 0;
	rai->ai_family = AF_IB;
	rai->ai_port_space = hints->ai_port_space;
	rai->ai_qp_type = hints->ai_qp_type;
	if (!rai->ai_port_space)
		rai->ai_port_space = rai->ai_qp_type == IBV_QPT_UD ?
					     RDMA_PS_UDP :
					     RDMA_PS_TCP;
	if (!rai->ai_qp_type)
		rai->ai_qp_type = rai->ai_port_space == RDMA_PS_UDP ?
					  IBV_QPT_UD :
					  IBV_QPT_RC;
	sib->sib_pkey = htobe16(ROCE_PKEY_DEFAULT);
	memcpy(&sib->sib_addr, gid.raw, sizeof(gid.raw));
	sib->sib_sid = htobe64((uint64_t)rai->ai_port_space << 16);
	cma_set_port(&addr, (uint16_t)port);
	if (!passive)
		return copy_addr(&rai->ai_dst_addr, &rai->ai_dst_len,
				 (struct sockaddr *)&addr, sizeof(*sib));
	rai->ai_flags = RAI_PASSIVE;
	return copy_addr(&rai->ai_src_addr, &rai->ai_src_len,
			 (struct sockaddr *)&addr, sizeof(*sib));
}

/* Returns 0, -errno, or one of the positive or negative EAI_ codes. */
static int from_names(struct rdma_addrinfo *rai,
		      const struct rdma_addrinfo *hints, const char *node,
		      const char *service, int *eai)
{
	struct addrinfo ask = { 0 }, *list, *ai;
	int err;

	if (hints->ai_flags & RAI_PASSIVE)
		ask.ai_flags |= AI_PASSIVE;
	if (hints->ai_flags & RAI_NUMERICHOST)
		ask.ai_flags |= AI_NUMERICHOST;
	if (hints->ai_flags & RAI_FAMILY) {
		if (hints->ai_family == AF_IB)
			return from_gid(rai, hints, node, service, eai);
		if (hints->ai_family != AF_INET &&
		    hints->ai_family != AF_INET6) {
			*eai = EAI_FAMILY;
			return 0;
		}
		ask.ai_family = hints->ai_family;
	}
	if (hints->ai_qp_type == IBV_QPT_UD ||
	    hints->ai_port_space == RDMA_PS_UDP) {
		ask.ai_socktype = SOCK_DGRAM;
		ask.ai_protocol = IPPROTO_UDP;
	} else {
		ask.ai_socktype = SOCK_STREAM;
		ask.ai_protocol = IPPROTO_TCP;
	}
	*eai = getaddrinfo(node, service, &ask, &list);
	if (*eai)
		return 0;
	for (ai = list; ai; ai = ai->ai_next)
		if (ai->ai_family == AF_INET || ai->ai_family == AF_INET6)
			break;
	err = 0;
	if (ai)
		err = from_addrinfo(rai, hints, ai);
	else
		*eai = EAI_NONAME;
	freeaddrinfo(list);
	return err;
}

int rdma_getaddrinfo(const char *node, const char *service,
		     const struct rdma_addrinfo *hints,
		     struct rdma_addrinfo **res)
{
	static const struct rdma_addrinfo none;
	struct rdma_addrinfo *rai;
	int err, eai = 0;

	if (!res || (!node && !service && !hints))
		return cma_ret(-EINVAL);
	err = cma_init();
	if (err)
		return cma_ret(err);
	if (!hints)
		hints = &none;
	rai = calloc(1, sizeof(*rai));
	if (!rai)
		return cma_ret(-ENOMEM);
	if (node || service) {
		err = from_names(rai, hints, node, service, &eai);
	} else {
		rai->ai_flags = hints->ai_flags;
		rai->ai_family = hints->ai_family;
		rai->ai_qp_type = hints->ai_qp_type;
		rai->ai_port_space = hints->ai_port_space;
		if (hints->ai_dst_len)
			err = copy_addr(&rai->ai_dst_addr, &rai->ai_dst_len,
					hints->ai_dst_addr, hints->ai_dst_len);
	}
	if (!err && !eai && !rai->ai_src_len && hints->ai_src_len)
		err = copy_addr(&rai->ai_src_addr, &rai->ai_src_len,
				hints->ai_src_addr, hints->ai_src_len);
	if (err || eai) {
		rdma_freeaddrinfo(rai);
		return eai ? eai : cma_ret(err);
	}
	*res = rai;
	return 0;
}

void rdma_freeaddrinfo(struct rdma_addrinfo *res)
{
	/* piece by piece, since programs replace some */
	while (res) {
		struct rdma_addrinfo *next = res->ai_next;

		free(res->ai_src_addr);
		free(res->ai_dst_addr);
		free(res->ai_src_canonname);
		free(res->ai_dst_canonname);
		free(res->ai_route);
		free(res->ai_connect);
		free(res);
		res = next;
	}
}

/*
 * addrinfo.c - rdma_getaddrinfo(): names to addresses, by getaddrinfo(3)
 */
#include "cma.h"

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

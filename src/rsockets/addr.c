/*
 * addr.c - addresses of rsockets: compared, converted, copied to programs
 */
#include "base/gid.h"
#include "rsock_internal.h"

#include <errno.h>
#include <string.h>

socklen_t rsock_addr_len(const union rsw_addr *addr)
{
	return addr->sa.sa_family == AF_INET ? sizeof(addr->sin) :
					       sizeof(addr->sin6);
}

bool rsock_same_addr(const union rsw_addr *a, const union rsw_addr *b)
{
	if (a->sa.sa_family != b->sa.sa_family)
		return false;
	if (a->sa.sa_family == AF_INET)
		return a->sin.sin_port == b->sin.sin_port &&
		       a->sin.sin_addr.s_addr == b->sin.sin_addr.s_addr;
	return a->sin6.sin6_port == b->sin6.sin6_port &&
	       IN6_ARE_ADDR_EQUAL(&a->sin6.sin6_addr, &b->sin6.sin6_addr);
}

bool rsock_addr_any(const union rsw_addr *addr)
{
	if (addr->sa.sa_family == AF_INET)
		return addr->sin.sin_addr.s_addr == htonl(INADDR_ANY);
	return IN6_IS_ADDR_UNSPECIFIED(&addr->sin6.sin6_addr);
}

union ibv_gid rsock_gid(const union rsw_addr *addr)
{
	union ibv_gid gid;

	if (addr->sa.sa_family == AF_INET)
		return gid_of_v4(&addr->sin.sin_addr);
	memcpy(gid.raw, &addr->sin6.sin6_addr, 16);
	return gid;
}

void rsock_copy_addr(struct sockaddr *dst, socklen_t *dst_len,
		     const union rsw_addr *addr)
{
	socklen_t len = rsock_addr_len(addr);

	if (!dst || !dst_len)
		return;
	memcpy(dst, addr, *dst_len < len ? *dst_len : len);
	*dst_len = len;
}

void rsock_map_ip4(union rsw_addr *addr)
{
	struct sockaddr_in sin = addr->sin;

	if (addr->sa.sa_family != AF_INET)
		return;
	memset(addr, 0, sizeof(*addr));
	addr->sin6.sin6_family = AF_INET6;
	addr->sin6.sin6_port = sin.sin_port;
	memset(&addr->sin6.sin6_addr.s6_addr[10], 0xff, 2);
	memcpy(&addr->sin6.sin6_addr.s6_addr[12], &sin.sin_addr, 4);
}

void rsock_unmap_ip4(union rsw_addr *addr)
{
	struct sockaddr_in sin = { .sin_family = AF_INET,
				   .sin_port = addr->sin6.sin6_port };

	if (addr->sa.sa_family != AF_INET6 ||
	    !IN6_IS_ADDR_V4MAPPED(&addr->sin6.sin6_addr))
		return;
	memcpy(&sin.sin_addr, &addr->sin6.sin6_addr.s6_addr[12], 4);
	memset(addr, 0, sizeof(*addr));
	addr->sin = sin;
}

int rsock_addr(const struct rsock *rs, const struct sockaddr *sa, socklen_t len,
	       union rsw_addr *addr)
{
	if (!sa)
		return -EFAULT;
	if (len < sizeof(sa->sa_family) || len > sizeof(*addr))
		return -EINVAL;
	memset(addr, 0, sizeof(*addr));
	memcpy(addr, sa, len);
	if (sa->sa_family == AF_UNSPEC && rs->type == SOCK_DGRAM)
		return 0;
	if (sa->sa_family != rs->family)
		return -EAFNOSUPPORT;
	if (rs->family != AF_IB && len < rsock_addr_len(addr))
		return -EINVAL;
	rsock_unmap_ip4(addr);
	return 0;
}

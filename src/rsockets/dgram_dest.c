/*
 * dgram_dest.c - the peers of a datagram rsocket
 *
 * A peer is an address, the queue pair that datagrams to it leave from, and,
 * once it has answered, its own queue pair. The table has a fixed size, since
 * any sender of a datagram is put into it: a new peer displaces the one
 * least in use.
 */
#include "dgram.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NBUCKETS 256 /* of the table of peers */
#define MAX_DESTS 4096

static unsigned addr_hash(const union rsw_addr *addr)
{
	uint32_t h = addr->sin.sin_port, word;
	int i;

	if (addr->sa.sa_family == AF_INET) {
		h ^= addr->sin.sin_addr.s_addr;
	} else {
		for (i = 0; i < 4; i++) {
			memcpy(&word, &addr->sin6.sin6_addr.s6_addr[4 * i], 4);
			h = h * 31 + word;
		}
	}
	return (h * 2654435761u) >> 24;
}

_Static_assert(NBUCKETS == 256, "hash() gives 8 bits");

static void destroy_dest(struct rsock_dest *dest)
{
	if (dest->ah)
		ibv_destroy_ah(dest->ah);
	free(dest);
}

int rsock_dests_init(struct rsock *rs)
{
	rs->d.dests = calloc(NBUCKETS, sizeof(struct rsock_dest *));
	return rs->d.dests ? 0 : -ENOMEM;
}

void rsock_dests_fini(struct rsock *rs)
{
	struct rsock_dgram *d = &rs->d;
	struct rsock_dest *dest;
	int i;

	for (i = 0; d->dests && i < NBUCKETS; i++)
		while ((dest = d->dests[i])) {
			d->dests[i] = dest->next;
			destroy_dest(dest);
		}
	free(d->dests);
}

/* The address that datagrams to dst leave from, with the port of rs. */
static int source_of(struct rsock *rs, const union rsw_addr *dst,
		     union rsw_addr *src)
{
	socklen_t len = sizeof(*src);
	union rsw_addr any;
	in_port_t port;
	int sock, err = 0;

	if (getsockname(rs->d.udp, &src->sa, &len))
		return rsock_errno();
	if (!src->sin.sin_port) {
		memset(&any, 0, sizeof(any));
		any.sa.sa_family = (sa_family_t)rs->family;
		len = sizeof(*src);
		if (bind(rs->d.udp, &any.sa, rsock_addr_len(&any)) ||
		    getsockname(rs->d.udp, &src->sa, &len))
			return rsock_errno();
	}
	rsock_unmap_ip4(src);
	if (!rsock_addr_any(src))
		return 0;
	port = src->sin.sin_port;
	sock = socket(dst->sa.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (sock < 0)
		return rsock_errno();
	memset(src, 0, sizeof(*src));
	len = sizeof(*src);
	if (connect(sock, &dst->sa, rsock_addr_len(dst)) ||
	    getsockname(sock, &src->sa, &len))
		err = rsock_errno();
	close(sock);
	src->sin.sin_port = port; /* at the same place as sin6_port */
	return err;
}

_Static_assert(offsetof(struct sockaddr_in, sin_port) ==
		       offsetof(struct sockaddr_in6, sin6_port),
	       "one port for both families");

static struct rsock_dest *find_dest(struct rsock *rs,
				    const union rsw_addr *addr)
{
	struct rsock_dest *dest;

	for (dest = rs->d.dests[addr_hash(addr)]; dest; dest = dest->next)
		if (rsock_same_addr(&dest->addr, addr))
			return dest;
	return NULL;
}

/* The table is bounded: the peer least in use makes room for a new one. */
static void make_room(struct rsock *rs)
{
	struct rsock_dgram *d = &rs->d;
	struct rsock_dest **link, **oldest = NULL, *dest;
	unsigned n = 0, i;

	for (i = 0; i < NBUCKETS; i++)
		for (link = &d->dests[i]; *link; link = &(*link)->next) {
			n++;
			if (*link != d->connected &&
			    (!oldest || (*link)->used_ns < (*oldest)->used_ns))
				oldest = link;
		}
	if (n < MAX_DESTS)
		return;
	dest = *oldest;
	*oldest = dest->next;
	destroy_dest(dest);
}

int rsock_dest_get(struct rsock *rs, const union rsw_addr *addr,
		   struct rsock_dest **out)
{
	struct rsock_dest *dest;
	struct rsock_dgram_qp *qp;
	union rsw_addr src;
	unsigned bucket;
	int err;

	*out = find_dest(rs, addr);
	if (*out)
		return 0;
	err = source_of(rs, addr, &src);
	if (!err)
		err = rsock_dgram_qp_get(rs, &src, &qp);
	if (err)
		return err;
	make_room(rs);
	dest = calloc(1, sizeof(*dest));
	if (!dest)
		return -ENOMEM;
	dest->addr = *addr;
	dest->qp = qp;
	dest->used_ns = rsock_now_ns();
	bucket = addr_hash(addr);
	dest->next = rs->d.dests[bucket];
	rs->d.dests[bucket] = dest;
	*out = dest;
	return 0;
}

/* In RoCEv2 the peer's GID is its IP address. */
void rsock_dest_learn(struct rsock_dest *dest, uint32_t qpn)
{
	struct ibv_ah_attr attr = {
		.grh = { .dgid = rsock_gid(&dest->addr),
			 .sgid_index = (uint8_t)dest->qp->sgid_index,
			 .hop_limit = 64 },
		.is_global = 1,
		.port_num = dest->qp->id->port_num,
	};

	dest->refresh_ns = rsock_now_ns() + REFRESH_NS;
	dest->qpn = qpn;
	if (!dest->ah)
		dest->ah = ibv_create_ah(dest->qp->id->pd, &attr);
}

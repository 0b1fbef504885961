/*
 * rocev1.c - the RoCE v1 link from its creation to its end, and its addresses
 */
#include "rocev1_internal.h"

#include "sock.h"

#include "base/fd_high.h"
#include "base/gid.h"
#include "net/netdev.h"
#include "os/config.h"
#include "registry/registry.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <linux/sock_diag.h>
#include <stdlib.h>

#define UNREAD_MARK 1

/* No protocol: it receives nothing until it is bound. */
static int socket_open(void)
{
	int fd =
		socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	return fd < 0 ? -errno : fd_high(fd);
}

int rocev1_allowed(void)
{
	int fd = socket_open();

	sock_close(fd);
	return fd < 0 ? fd : 0;
}

static int socket_bind(int fd)
{
	const struct sockaddr_ll any = {
		.sll_family = AF_PACKET,
		.sll_protocol = htons(ROCEV1_ETHERTYPE),
	};

	return bind(fd, (const struct sockaddr *)&any, sizeof(any)) ? -errno :
								      0;
}

/* The addresses, and what is received of them */

/* Those of this process, now. With too many the list is left empty. */
static void find_chunks(struct rocev1 *v)
{
	const int slot = (int)registry_slot(v->registry);
	size_t n = 0;

	for (uint32_t c = 0; c < REGISTRY_CHUNKS; c++) {
		if (registry_owner(v->registry, c * REGISTRY_CHUNK) != slot)
			continue;
		if (n == ROCEV1_CHUNKS) {
			n = 0;
			break;
		}
		v->chunk[n++] = (uint16_t)c;
	}
	v->nchunks = n;
}

/* bind_lock is held. */
static int set_filter(struct rocev1 *v)
{
	struct sock_filter prog[ROCEV1_FILTER_MAX];
	struct sock_fprog fprog = { .filter = prog };

	if (v->registry)
		find_chunks(v);
	fprog.len = (uint16_t)rocev1_filter(prog, v->addr, v->naddrs, v->lo,
					    v->chunk, v->nchunks);
	if (!setsockopt(v->fd, SOL_SOCKET, SO_ATTACH_FILTER, &fprog,
			sizeof(fprog)))
		return 0;
	if (errno != ENOMEM)
		return -errno;
	/* The kernel counts the old one as well (net.core.optmem_max). What comes
	 * without a filter is judged by the QPs. */
	sock_set(v->fd, SOL_SOCKET, SO_DETACH_FILTER, 0);
	return setsockopt(v->fd, SOL_SOCKET, SO_ATTACH_FILTER, &fprog,
			  sizeof(fprog)) ?
		       -errno :
		       0;
}

static struct rocev1_addr *find_addr(struct rocev1 *v, const union ibv_gid *gid,
				     uint32_t ifindex)
{
	for (size_t i = 0; i < v->naddrs; i++)
		if (v->addr[i].ifindex == ifindex &&
		    gid_equal(&v->addr[i].gid, gid))
			return &v->addr[i];
	return NULL;
}

int rocev1_bind(struct rocev1 *v, const union ibv_gid *gid, uint32_t ifindex)
{
	struct rocev1_addr *a;
	int err = 0;

	pthread_mutex_lock(&v->bind_lock);
	a = find_addr(v, gid, ifindex);
	if (!a && v->naddrs == ROCEV1_ADDRS) {
		err = -ENOSPC;
	} else if (!a) {
		a = &v->addr[v->naddrs++];
		*a = (struct rocev1_addr){ .gid = *gid, .ifindex = ifindex };
		err = set_filter(v);
		if (err)
			v->naddrs--;
	}
	if (!err)
		a->refs++;
	pthread_mutex_unlock(&v->bind_lock);
	return err;
}

void rocev1_unbind(struct rocev1 *v, const union ibv_gid *gid, uint32_t ifindex)
{
	struct rocev1_addr *a;

	pthread_mutex_lock(&v->bind_lock);
	a = find_addr(v, gid, ifindex);
	if (a && !--a->refs) {
		*a = v->addr[--v->naddrs];
		/* If that fails, QPs drop what comes. */
		set_filter(v);
	}
	pthread_mutex_unlock(&v->bind_lock);
}

void rocev1_numbers(struct rocev1 *v)
{
	pthread_mutex_lock(&v->bind_lock);
	set_filter(v);
	pthread_mutex_unlock(&v->bind_lock);
}

/* One link among others (link.h) */

static void rocev1_wait(struct link *l)
{
	lock_take(&to_rocev1(l)->rx_lock);
	lock_drop(&to_rocev1(l)->rx_lock);
}

static int rocev1_fd(struct link *l)
{
	return to_rocev1(l)->fd;
}

static bool rocev1_reach(struct link *l, struct link_way *w,
			 const struct roce_pkt *p)
{
	(void)l;
	(void)w;
	return p->path->v1;
}

static bool has_unread(const struct rocev1 *v)
{
	uint32_t mem[SK_MEMINFO_VARS] = { 0 };
	socklen_t len = sizeof(mem);

	return !getsockopt(v->fd, SOL_SOCKET, SO_MEMINFO, mem, &len) &&
	       mem[SK_MEMINFO_RMEM_ALLOC];
}

/* What lies in the socket has been read once it was found empty. */
static bool rocev1_unread(struct link *l, struct link_way *w, uint64_t mark[2])
{
	struct rocev1 *v = to_rocev1(l);
	const uint64_t emptied =
		atomic_load_explicit(&v->emptied, memory_order_relaxed);

	(void)w;
	if (mark[0] != (LINK_MARK | UNREAD_MARK)) {
		mark[0] = LINK_MARK | UNREAD_MARK;
		mark[1] = emptied;
	}
	if (mark[1] == emptied && has_unread(v))
		return true;
	mark[0] = mark[1] = 0;
	return false;
}

static void rocev1_free(struct link *l)
{
	struct rocev1 *v = to_rocev1(l);

	sock_close(v->fd);
	rocev1_rx_destroy(v);
	spare_fini(&v->spare);
	pthread_mutex_destroy(&v->bind_lock);
	free(v);
}

static void rocev1_abandon(struct link *l)
{
	sock_close(to_rocev1(l)->fd);
}

static const struct link_ops ops = {
	.poll = rocev1_poll,
	.wait = rocev1_wait,
	.fd = rocev1_fd,
	.reach = rocev1_reach,
	.send = rocev1_send,
	.unread = rocev1_unread,
	.destroy = rocev1_free,
	.abandon = rocev1_abandon,
};

struct link *rocev1_link(struct rocev1 *v)
{
	return &v->link;
}

int rocev1_create(struct rocev1 **out, const struct rocev1_config *cfg,
		  struct registry *registry)
{
	static const union ibv_gid one = { .raw = { [15] = 1 } };
	static const union ibv_gid v4 = {
		.raw = { [10] = 0xff, 0xff, 127, 0, 0, 1 }
	};
	struct rocev1 *v = calloc(1, sizeof(*v));
	int err;

	if (!v)
		return -ENOMEM;
	atomic_init(&v->link.ops, &ops);
	pthread_mutex_init(&v->bind_lock, NULL);
	v->cfg = *cfg;
	v->registry = registry;
	v->spare.bytes = ROCEV1_FRAMES * ROCEV1_FRAME;
	v->lo = netdev_ifindex(&v4) ?: netdev_ifindex(&one);
	loss_init(&v->loss, cfg->loss, cfg->seed ? cfg->seed : clock_ns());
	v->fd = socket_open();
	err = v->fd < 0 ? v->fd : rocev1_rx_create(v);
	if (!err) {
		sock_set_buffers(v->fd);
		sock_set(v->fd, SOL_SOCKET, SO_RXQ_OVFL, 1);
		err = set_filter(v);
	}
	if (!err)
		err = socket_bind(v->fd);
	if (err)
		rocev1_free(&v->link);
	else
		*out = v;
	return err;
}

/*
 * netlocal.c - whether an address is one of this host's
 *
 * netdev_is_local() is asked for every batch of packets, so it looks into a
 * small hash table that readers may use at any time: a sequence number is odd
 * while its one writer is at work, and readers who saw it odd or changing look
 * again. A netlink socket, read at most once a second, shows cheaply whether
 * anything has changed at all.
 */
#include "netdev.h"
#include "netscan.h"
#include "route_cache.h"

#include "base/bytes.h"
#include "base/gid.h"
#include "base/sys.h"
#include "os/config.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

/*
 * The table of netdev_ifindex(): open addressing. A place is an address in two
 * words and its interface; interface 0: the place is empty.
 */
#define LOCAL_SIZE 2048 /* twice SCAN_ADDRS */

static struct {
	_Atomic uint32_t seq; /* odd: being written; 0: never written */
	_Atomic uint64_t checked_ns;
	_Atomic uint64_t word[LOCAL_SIZE][3];
	pthread_mutex_t writer;
	int watch; /* -1: none */
	pid_t owner; /* of watch: a child of fork() makes its own */
} local = { .writer = PTHREAD_MUTEX_INITIALIZER, .watch = -1 };

static size_t local_hash(uint64_t hi, uint64_t lo)
{
	uint64_t h = (hi ^ (lo << 1 | lo >> 63)) * 0x9e3779b97f4a7c15u;

	return h >> 53;
}

static void local_store(const struct netscan *s)
{
	uint32_t seq = atomic_load_explicit(&local.seq, memory_order_relaxed);

	atomic_store_explicit(&local.seq, seq + 1, memory_order_relaxed);
	for (size_t i = 0; i < LOCAL_SIZE; i++)
		for (int j = 0; j < 3; j++)
			atomic_store_explicit(&local.word[i][j], 0,
					      memory_order_release);
	for (size_t i = 0; i < s->naddrs; i++) {
		uint64_t hi = get_be64(s->addr[i].gid.raw);
		uint64_t lo = get_be64(s->addr[i].gid.raw + 8);
		size_t h = local_hash(hi, lo);

		while (atomic_load_explicit(&local.word[h][2],
					    memory_order_relaxed))
			h = (h + 1) % LOCAL_SIZE;
		atomic_store_explicit(&local.word[h][0], hi,
				      memory_order_release);
		atomic_store_explicit(&local.word[h][1], lo,
				      memory_order_release);
		atomic_store_explicit(&local.word[h][2],
				      s->addr[i].link->ifindex,
				      memory_order_release);
	}
	atomic_store_explicit(&local.seq, seq + 2, memory_order_release);
}

/* In the child of a fork(): the thread that was writing does not exist here,
 * and what it has written is incomplete. */
static void local_forked(void)
{
	if (!pthread_mutex_trylock(&local.writer)) {
		pthread_mutex_unlock(&local.writer);
		return;
	}
	pthread_mutex_init(&local.writer, NULL);
	atomic_store(&local.seq, 0);
	atomic_store(&local.checked_ns, 0);
}

static void local_register(void)
{
	pthread_atfork(NULL, NULL, local_forked);
}

/* At most once a second, by one thread; the others use the table as it is. */
static void local_refresh(uint64_t now)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	bool stale = true;
	struct netscan s;

	pthread_once(&once, local_register);
	if (!atomic_load_explicit(&local.seq, memory_order_acquire))
		pthread_mutex_lock(&local.writer);
	else if (pthread_mutex_trylock(&local.writer))
		return;
	if (local.watch >= 0 && local.owner != getpid()) {
		sys_close(local.watch);
		local.watch = -1;
	}
	if (local.watch >= 0)
		stale = netdev_changed(local.watch);
	else {
		local.watch = netdev_watch_fd();
		local.owner = getpid();
	}
	if (stale && !netscan(&s, false)) {
		local_store(&s);
		netscan_free(&s);
	}
	atomic_store_explicit(&local.checked_ns, now, memory_order_release);
	pthread_mutex_unlock(&local.writer);
}

void netdev_local_away(void)
{
	pthread_mutex_lock(&local.writer);
	if (local.watch >= 0)
		sys_close(local.watch);
	local.watch = -1;
	/* By a clock that stands, it is as of now until netdev_local_back(). */
	atomic_store(&local.checked_ns, clock_ns());
	pthread_mutex_unlock(&local.writer);
	route_cache_away();
}

void netdev_local_back(void)
{
	atomic_store(&local.checked_ns, 0);
	route_cache_back();
}

/* ifindex: of this interface; 0: of any. */
static uint32_t local_find(uint64_t hi, uint64_t lo, uint32_t ifindex)
{
	uint32_t seq, found;

	do {
		size_t h = local_hash(hi, lo);

		seq = atomic_load_explicit(&local.seq, memory_order_acquire);
		found = 0;
		for (size_t n = 0; n < LOCAL_SIZE; n++) {
			uint64_t w[3];

			for (int i = 0; i < 3; i++)
				w[i] = atomic_load_explicit(
					&local.word[h][i],
					memory_order_acquire);
			if (w[2] && w[0] == hi && w[1] == lo &&
			    (!ifindex || w[2] == ifindex))
				found = (uint32_t)w[2];
			if (!w[2] || found)
				break;
			h = (h + 1) % LOCAL_SIZE;
		}
	} while (seq & 1 ||
		 seq != atomic_load_explicit(&local.seq, memory_order_relaxed));
	return found;
}

static uint32_t local_lookup(const union ibv_gid *gid, uint32_t ifindex)
{
	uint64_t hi = get_be64(gid->raw), lo = get_be64(gid->raw + 8);
	uint64_t now = clock_coarse_ns();
	uint32_t found;

	if (now - atomic_load_explicit(&local.checked_ns,
				       memory_order_acquire) >=
	    1000000000u)
		local_refresh(now);
	found = local_find(hi, lo, ifindex);
	/* All of 127/8 is local, though only 127.0.0.1 is listed. */
	if (!found && gid_is_v4_loopback(gid))
		found = local_find(0, 0xffff7f000001, 0);
	return found;
}

uint32_t netdev_ifindex(const union ibv_gid *gid)
{
	return local_lookup(gid, 0);
}

uint32_t netdev_scope(const union ibv_gid *gid)
{
	return gid_is_link_local(gid) ? netdev_ifindex(gid) : 0;
}

bool netdev_is_local_on(const union ibv_gid *gid, uint32_t ifindex)
{
	if (gid_is_link_local(gid))
		return local_lookup(gid, ifindex);
	return netdev_is_local(gid);
}

bool netdev_is_local(const union ibv_gid *gid)
{
	static const union ibv_gid v6_loopback = { .raw = { [15] = 1 } };

	return gid_is_v4_loopback(gid) ||
	       !memcmp(gid, &v6_loopback, sizeof(*gid)) || netdev_ifindex(gid);
}

/*
 * route_cache.c - what the kernel has said of routes, as long as it holds
 *
 * Connections come many at a time, to few addresses, and a question about a
 * route takes four or five system calls. A netlink socket tells whether any
 * answer may be another by now, which takes one: the kernel sends there before
 * a change returns to whoever has made it.
 *
 * It sends some while it is still at it: of an address that goes before the
 * routes that leave by it have gone. So what is answered just after a change is
 * not kept. Nor is anything for longer than a second, since there may be changes
 * that nobody is told of: by a BPF program, or where something else than Linux
 * answers.
 */
#include "route_cache.h"

#include "netdev.h"
#include "netscan.h"

#include "base/fd_high.h"
#include "base/hash64.h"
#include "base/sys.h"
#include "os/config.h"

#include <linux/rtnetlink.h>
#include <pthread.h>
#include <string.h>

#define ENTRIES 64
#define KEPT_NS 1000000000u
#define SETTLED_NS 100000000u /* after a change */

struct route_entry {
	size_t key_len; /* 0: there is none */
	uint64_t asked_ns;
	uint8_t key[ROUTE_KEY_MAX], answer[ROUTE_ANSWER_MAX];
};

static struct {
	pthread_mutex_t lock; /* held while the kernel is asked */
	int watch; /* -1: none */
	bool off; /* none is to be had, or the process is suspended */
	uint64_t changed_ns;
	struct route_entry entry[ENTRIES];
} cache = { .lock = PTHREAD_MUTEX_INITIALIZER, .watch = -1 };

static uint32_t group(unsigned n)
{
	return UINT32_C(1) << (n - 1);
}

static void forget(void)
{
	for (size_t i = 0; i < ENTRIES; i++)
		cache.entry[i].key_len = 0;
}

static void watch_end(void)
{
	if (cache.watch >= 0)
		sys_close(cache.watch);
	cache.watch = -1;
	forget();
}

/* What the parent's socket gets is for the parent to read, and its lock may be
 * held by a thread that is not here. */
static void route_cache_forked(void)
{
	pthread_mutex_init(&cache.lock, NULL);
	watch_end();
	cache.off = false;
}

static void route_cache_register(void)
{
	pthread_atfork(NULL, NULL, route_cache_forked);
}

static void watch_begin(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	const uint32_t groups =
		group(RTNLGRP_LINK) | group(RTNLGRP_IPV4_IFADDR) |
		group(RTNLGRP_IPV6_IFADDR) | group(RTNLGRP_IPV4_ROUTE) |
		group(RTNLGRP_IPV6_ROUTE) | group(RTNLGRP_IPV4_RULE) |
		group(RTNLGRP_IPV6_RULE) | group(RTNLGRP_NEXTHOP);

	pthread_once(&once, route_cache_register);
	cache.watch = netscan_socket(groups, SOCK_NONBLOCK);
	cache.off = cache.watch < 0;
	if (!cache.off)
		cache.watch = fd_high(cache.watch);
	cache.changed_ns = 0;
}

/* Whether what is asked now holds until the watch says otherwise. */
static bool settled(uint64_t now)
{
	if (cache.watch < 0 && !cache.off)
		watch_begin();
	if (cache.watch >= 0 && netdev_changed(cache.watch)) {
		cache.changed_ns = now;
		forget();
	}
	return cache.watch >= 0 && now - cache.changed_ns >= SETTLED_NS;
}

int route_cached(const void *key, size_t key_len, void *answer, size_t size,
		 int (*ask)(const void *key, void *answer))
{
	const uint64_t hash = hash64_bytes(HASH64_BEGIN, key, key_len);
	struct route_entry *e = &cache.entry[hash % ENTRIES];
	uint64_t now;
	bool keep;
	int err = 0;

	pthread_mutex_lock(&cache.lock);
	now = clock_ns();
	keep = settled(now);
	if (keep && e->key_len == key_len && !memcmp(e->key, key, key_len) &&
	    now - e->asked_ns < KEPT_NS) {
		memcpy(answer, e->answer, size);
		goto out;
	}
	err = ask(key, answer);
	if (!err && keep && key_len <= ROUTE_KEY_MAX &&
	    size <= ROUTE_ANSWER_MAX) {
		e->key_len = key_len;
		e->asked_ns = now;
		memcpy(e->key, key, key_len);
		memcpy(e->answer, answer, size);
	}
out:
	pthread_mutex_unlock(&cache.lock);
	return err;
}

void route_cache_away(void)
{
	pthread_mutex_lock(&cache.lock);
	watch_end();
	cache.off = true;
	pthread_mutex_unlock(&cache.lock);
}

void route_cache_back(void)
{
	pthread_mutex_lock(&cache.lock);
	cache.off = false;
	pthread_mutex_unlock(&cache.lock);
}

/*
 * route_cache.h - what the kernel has said of routes, as long as it holds
 */
#ifndef SOFTHCA_NET_ROUTE_CACHE_H
#define SOFTHCA_NET_ROUTE_CACHE_H

#include <stddef.h>

#define ROUTE_KEY_MAX 64
#define ROUTE_ANSWER_MAX 32

/*
 * Answers a question about routes, one that is the same bytes as key. ask() does
 * so if it has not lately, or if a link, address, route or rule of this host has
 * changed since; it fills answer, or returns -errno, which is not kept. Returns 0
 * or that.
 */
int route_cached(const void *key, size_t key_len, void *answer, size_t size,
		 int (*ask)(const void *key, void *answer));

/* The process is suspended: nothing is kept, and there is no descriptor; and it
 * goes on. */
void route_cache_away(void);
void route_cache_back(void);

#endif

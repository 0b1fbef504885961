/*
 * rocev1_internal.h - what the files of the RoCE v1 link share
 */
#ifndef SOFTHCA_LINK_ROCEV1_INTERNAL_H
#define SOFTHCA_LINK_ROCEV1_INTERNAL_H

#include "rocev1.h"

#include "loss.h"
#include "spare.h"

#include "base/lock.h"
#include "wire/grh.h"

#include <pthread.h>

#define ROCEV1_FRAMES 16u /* in one system call */
/* The longest: GRH, headers, payload, pad and ICRC. */
#define ROCEV1_FRAME                                                           \
	(GRH_LEN + ROCE_HDR_MAX + ROCE_MTU_MAX + 4u + ROCE_ICRC_LEN)

struct rocev1_rx;

struct rocev1 {
	struct link link;
	struct rocev1_config cfg;
	struct registry *registry; /* or NULL */
	int fd;
	uint32_t lo; /* the loopback interface; 0: there is none */
	struct loss loss;
	struct spare spare; /* for frames that are sent */

	pthread_mutex_t bind_lock; /* of what follows */
	size_t naddrs, nchunks;
	struct rocev1_addr addr[ROCEV1_ADDRS];
	uint16_t chunk[ROCEV1_CHUNKS];

	struct lock rx_lock;
	struct rocev1_rx *rx;
	/* How often the socket was found empty, for rocev1_unread(). */
	_Atomic uint64_t emptied;
};

static inline struct rocev1 *to_rocev1(struct link *l)
{
	return (struct rocev1 *)(void *)((char *)l -
					 offsetof(struct rocev1, link));
}

#define ROCEV1_COUNT(v, field, n)                                              \
	__atomic_fetch_add(&(v)->link.stats.field, n, __ATOMIC_RELAXED)

/* rocev1_frames.c: link_ops.poll and .send, and what they need. */
int rocev1_rx_create(struct rocev1 *v);
void rocev1_rx_destroy(struct rocev1 *v);
int rocev1_poll(struct link *l, unsigned budget, link_rx_fn *fn, void *arg);
size_t rocev1_send(struct link *l, struct link_way *w,
		   const struct roce_batch *b, size_t from, size_t to,
		   int *err);

#endif

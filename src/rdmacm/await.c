/*
 * await.c - addresses whose neighbour is not known yet
 *
 * As for the kernel's CM, an address is resolved when the link-layer address of
 * the next hop is known: a host that answers neither ARP nor neighbour discovery
 * is RDMA_CM_EVENT_ADDR_ERROR, -ETIMEDOUT, after the program's timeout_ms. The
 * kernel is made to ask, and its neighbour table is looked at until then, more
 * and more seldom: mostly an answer takes less than a millisecond.
 */
#include "cma.h"

#include "base/bytes.h"
#include "base/gid.h"
#include "net/neigh.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MS_NS UINT64_C(1000000)
#define STEP_MAX_NS (50 * MS_NS)
#define ASK_NS (1000 * MS_NS) /* the kernel has given up after three */

struct cma_await {
	struct cma_await *next;
	struct cma_id *id;
	struct neigh_hop hop;
	int timeout_ms;
	uint64_t until;
};

/* Under the lock. All are looked for at once: many may wait for one host. */
static struct {
	struct cma_await *first;
	uint64_t due, step, ask_due;
} waiting;

void cma_await_init(void)
{
	waiting.first = NULL;
}

int cma_await(struct cma_id *id, int timeout_ms)
{
	const uint64_t now = clock_ns();
	struct neigh_hop hop;
	struct cma_await *w;

	if (!neigh_missing(&id->path.dgid, id->via.ifindex, &hop))
		return 0;
	w = calloc(1, sizeof(*w));
	if (!w)
		return -ENOMEM;
	neigh_ask(&hop);
	*w = (struct cma_await){
		.id = id,
		.hop = hop,
		.timeout_ms = timeout_ms,
		.until = timeout_ms < 0 ? UINT64_MAX :
					  now + (uint64_t)timeout_ms * MS_NS,
	};
	id->state = CMA_ADDR_QUERY;
	cma_lock();
	if (!waiting.first)
		waiting.ask_due = now + ASK_NS;
	w->next = waiting.first;
	waiting.first = w;
	waiting.step = MS_NS;
	waiting.due = now + MS_NS;
	id->await = w;
	cma_unlock();
	return 1;
}

void cma_await_drop(struct cma_id *id)
{
	struct cma_await **at = &waiting.first;

	if (!id->await)
		return;
	/* In a forked child it is none of them. */
	while (*at && *at != id->await)
		at = &(*at)->next;
	if (*at)
		*at = id->await->next;
	free(id->await);
	id->await = NULL;
}

uint64_t cma_await_deadline(void *arg)
{
	uint64_t due = waiting.due;

	(void)arg;
	for (const struct cma_await *w = waiting.first; w; w = w->next)
		due = min_u64(due, w->until);
	return waiting.first ? due : UINT64_MAX;
}

static void report_resolved(const struct cma_await *w)
{
	union ibv_gid hop;
	struct gid_text at[2];

	if (w->hop.family == AF_INET) {
		hop = w->id->path.dgid;
		memcpy(hop.raw + 12, w->hop.bytes, 4);
	} else {
		memcpy(hop.raw, w->hop.bytes, 16);
	}
	WHY_REPORT(
		"RDMA_CM_EVENT_ADDR_ERROR",
		why(-ETIMEDOUT,
		    "the way to %s leads to %s on %s, which has not answered "
		    "%s within %d ms: is it up, and on that link? (ip neigh)",
		    gid_str(&w->id->path.dgid, &at[0]), gid_str(&hop, &at[1]),
		    w->id->via.ifname,
		    w->hop.family == AF_INET ? "ARP" : "neighbour discovery",
		    w->timeout_ms));
}

/* Its event, once the neighbour is known or it is too late. */
static void settle_await(struct cma_await *w, bool known, uint64_t now)
{
	struct cma_event *ev;

	if (!known && now < w->until)
		return;
	ev = cma_event_new(w->id,
			   known ? RDMA_CM_EVENT_ADDR_RESOLVED :
				   RDMA_CM_EVENT_ADDR_ERROR,
			   known ? 0 : -ETIMEDOUT);
	if (!ev)
		return; /* at the next look */
	if (!known)
		report_resolved(w);
	cma_event_post(ev);
	cma_await_drop(w->id);
}

void cma_await_expire(void *arg, uint64_t now)
{
	const bool ask = waiting.ask_due <= now;
	struct neigh_hop hop = { 0 };
	struct cma_await *w, *next;
	bool known = false;

	if (!waiting.first || now < cma_await_deadline(arg))
		return;
	for (w = waiting.first; w; w = next) {
		next = w->next;
		if (memcmp(&hop, &w->hop, sizeof(hop))) {
			hop = w->hop;
			known = neigh_known(&hop);
			if (ask && !known)
				neigh_ask(&hop);
		}
		settle_await(w, known, now);
	}
	if (ask)
		waiting.ask_due = now + ASK_NS;
	waiting.step = min_u64(2 * waiting.step, STEP_MAX_NS);
	waiting.due = now + waiting.step;
}

/*
 * udp_room.c - room in the sockets of this host's receivers, and what they have
 * yet to read
 *
 * Senders of this host count the bytes that they send to a slot, and stop when
 * its socket buffers would overflow; the receiver takes off what it has read
 * (registry_charge(), registry_take()). So nothing overflows within a host, and
 * UC and UD lose nothing there.
 *
 * A count may be wrong: the kernel dropped packets, or a sender was killed
 * between counting and sending. So a sender that is refused for long pokes the
 * receiver, which finds its sockets empty and corrects the count. A sender that
 * is refused for very long sends all the same, as it would on a network: a
 * process that was stopped must not stop others.
 */
#include "udp_internal.h"

#include "os/config.h"

#include <stdlib.h>

#define POKE_NS 3000000u
#define PATIENCE_NS 500000000u
#define STALE_NS 2000000u

bool room_admit(struct udp *u, unsigned slot, int64_t bytes)
{
	struct peer *f = &u->peer[slot];
	uint64_t now, since, poked;

	if (registry_charge(u->registry, slot, (uint32_t)bytes)) {
		if (atomic_load_explicit(&f->since_ns, memory_order_relaxed))
			atomic_store_explicit(&f->since_ns, 0,
					      memory_order_relaxed);
		return true;
	}
	now = clock_ns();
	since = atomic_load_explicit(&f->since_ns, memory_order_relaxed);
	poked = atomic_load_explicit(&f->poked_ns, memory_order_relaxed);
	if (!since) {
		atomic_store_explicit(&f->since_ns, now, memory_order_relaxed);
		atomic_store_explicit(&f->poked_ns, now, memory_order_relaxed);
		return false;
	}
	if (now - poked < POKE_NS)
		return false;
	if (registry_alive(u->registry, slot) && now - since < PATIENCE_NS) {
		atomic_store_explicit(&f->poked_ns, now, memory_order_relaxed);
		tx_poke(u, slot);
		return false;
	}
	/* Should it arrive all the same, the receiver takes it off. */
	registry_uncharge(u->registry, slot, -bytes);
	return true;
}

void room_correct(struct udp *u)
{
	int64_t backlog = registry_backlog(u->registry);
	uint64_t now;

	if (!backlog) {
		u->stale_since_ns = 0;
		return;
	}
	now = clock_ns();
	if (!u->stale_since_ns || (backlog < 0) != (u->stale < 0)) {
		u->stale_since_ns = now;
		u->stale = backlog;
		return;
	}
	if (llabs(backlog) < llabs(u->stale))
		u->stale = backlog;
	if (now - u->stale_since_ns < STALE_NS)
		return;
	registry_take(u->registry, u->slot, u->stale);
	u->stale_since_ns = 0;
}

/*
 * An answer of another host may lie in a socket of ours. What comes behind it
 * does not prolong that, whoever sends it.
 */
static bool own_unread(struct udp *u, const struct roce_path *path,
		       uint64_t mark[2])
{
	const uint64_t left =
		rx_held(u) + udp_queued(u, &path->sgid, path->sgid_scope);
	const uint64_t taken = rx_taken(u);

	if (!mark[0])
		mark[0] = taken + left;
	if (left && taken < mark[0])
		return true;
	mark[0] = mark[1] = 0;
	return false;
}

bool udp_unread(struct udp *u, const struct roce_path *path, uint32_t qpn,
		uint64_t mark[2])
{
	struct registry *reg = u->registry;
	int slot;

	if (!reg || !path->local || u->cfg.wire)
		return own_unread(u, path, mark);
	slot = registry_route(reg, qpn, &path->dgid,
			      udp_scope(&path->dgid, path->sgid_scope));
	if (!mark[0] && !mark[1]) {
		if (slot >= 0)
			mark[0] = registry_sent(reg, (unsigned)slot);
		mark[1] = registry_sent(reg, u->slot);
	}
	if ((slot >= 0 && registry_unread(reg, (unsigned)slot, mark[0])) ||
	    registry_unread(reg, u->slot, mark[1]))
		return true;
	mark[0] = mark[1] = 0;
	return false;
}

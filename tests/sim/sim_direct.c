/*
 * sim_direct.c - one-sided operations in the simulated host: each node looks at
 * what the other one shows, and copies
 *
 * Some copies fail in the middle, and then the request has to go as a packet.
 * Nothing may be touched outside of a visit, nor an atomic be done without the
 * lock of its address.
 */
#include "sim_host.h"

#include "qp/direct.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

struct sim_remote {
	struct qp_remote remote;
	struct sim *sim;
	struct sim_node *node; /* at the other end */
	int visits;
	uint64_t locked;
};

static struct sim_remote *to_remote(struct qp_remote *remote)
{
	return (struct sim_remote *)(void *)remote;
}

static int enter(struct qp_remote *remote)
{
	struct sim_remote *f = to_remote(remote);

	if (sim_chance(&f->sim->ways, 0.01))
		return -EBUSY;
	assert(!f->visits);
	f->visits++;
	return 7;
}

static void leave(struct qp_remote *remote, int visit)
{
	assert(visit == 7 && to_remote(remote)->visits == 1 &&
	       !to_remote(remote)->locked);
	to_remote(remote)->visits--;
}

static bool ready(struct qp_remote *remote, uint32_t slot)
{
	remote->keys.ready = to_remote(remote)->node->keys.nshown;
	return slot < remote->keys.ready;
}

/* Byte by byte through both lists; fails after so many. */
static int copy(struct sim_remote *f, const struct iovec *to, size_t n,
		const struct iovec *from, size_t m)
{
	size_t done = 0, fail = SIZE_MAX, i = 0, k = 0, a = 0, b = 0;

	assert(f->visits == 1);
	f->sim->direct_copies++;
	if (sim_chance(&f->sim->ways, f->sim->unreadable))
		/* The kernel copies a word in one piece. */
		fail = f->locked ? 0 : sim_below(&f->sim->ways, 5000);
	for (;; done++) {
		while (i < n && a == to[i].iov_len)
			i++, a = 0;
		while (k < m && b == from[k].iov_len)
			k++, b = 0;
		if (i == n || k == m)
			break;
		if (done == fail)
			return -EFAULT;
		((uint8_t *)to[i].iov_base)[a++] =
			((const uint8_t *)from[k].iov_base)[b++];
	}
	assert(i == n && k == m);
	return 0;
}

static int copy_in(struct qp_remote *remote, const struct iovec *to, size_t n,
		   const struct iovec *from, size_t m)
{
	return copy(to_remote(remote), to, n, from, m);
}

static int copy_out(struct qp_remote *remote, const struct iovec *from,
		    size_t n, const struct iovec *to, size_t m)
{
	return copy(to_remote(remote), to, m, from, n);
}

static int lock(struct qp_remote *remote, uint64_t addr)
{
	struct sim_remote *f = to_remote(remote);

	assert(f->visits == 1 && !f->locked);
	if (sim_chance(&f->sim->ways, f->sim->unreadable))
		return -EBUSY;
	f->locked = addr;
	return 0;
}

static void unlock(struct qp_remote *remote, uint64_t addr)
{
	assert(to_remote(remote)->locked == addr);
	to_remote(remote)->locked = 0;
}

const struct qp_direct_env sim_direct_env = {
	.enter = enter,
	.leave = leave,
	.ready = ready,
	.read = copy_in,
	.write = copy_out,
	.lock = lock,
	.unlock = unlock,
};

void sim_direct(struct sim_qp *q)
{
	struct sim *s = q->node->sim;
	struct sim_remote f = {
		.sim = s,
		.node = &s->node[q->node == &s->node[0]],
	};
	uint32_t dest = roce_qp_dest(q->qp);

	/* Neither goes to the other's memory any more. */
	if (s->node[0].away || s->node[1].away)
		return;
	roce_direct_expect(q->qp, s->direct > 0, sim_chance(&s->ways, s->many));
	if (!roce_direct_ready(q->qp) || !sim_chance(&s->ways, s->direct))
		return;
	for (size_t i = 0; i < f.node->nqp; i++)
		if (qp_public_get(&f.node->pub[i].qpn) == dest)
			f.remote.pub = &f.node->pub[i];
	if (!f.remote.pub ||
	    !keys_view_init(&f.remote.keys, &f.node->shown, f.node->shown_keys))
		return;
	f.remote.generation = q->remote_generation;
	f.remote.hint = q->remote_hint;
	roce_direct(q->qp, &f.remote);
	q->remote_generation = f.remote.generation;
	q->remote_hint = f.remote.hint;
	assert(!f.visits);
}

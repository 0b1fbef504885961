/*
 * direct.c - the other end of a queue pair, where it is another process of this
 * host whose memory may be copied to: qp/direct.h, by a segment
 *
 * A QP looks for its peer when it is first posted to, and keeps what it has
 * found as long as that process lives and shows the same segment.
 */
#include "process.h"

#include "base/gid.h"
#include "link/shown.h"

/* How long nothing is looked for that was not found. */
#define AGAIN_NS 10000000u

static struct shca_far *to_far(struct qp_far *far)
{
	return container_of(far, struct shca_far, far);
}

static int enter(struct qp_far *far)
{
	return segment_visit_enter(to_far(far)->peer);
}

static void leave(struct qp_far *far, int visit)
{
	segment_visit_exit(to_far(far)->peer, visit);
}

static bool ready(struct qp_far *far, uint32_t slot)
{
	return shown_keys_ready(to_far(far)->peer, &far->keys, slot);
}

static int copy_in(struct qp_far *far, const struct iovec *to, size_t n,
		   const struct iovec *from, size_t m)
{
	struct shca_far *f = to_far(far);

	return segment_read(f->peer, to, n, from, m, f->now_ns);
}

static int copy_out(struct qp_far *far, const struct iovec *from, size_t n,
		    const struct iovec *to, size_t m)
{
	struct shca_far *f = to_far(far);

	return segment_write(f->peer, from, n, to, m, f->now_ns);
}

static int lock(struct qp_far *far, uint64_t addr)
{
	return segment_atomic_lock(to_far(far)->peer,
				   segment_atomic_lock_of(addr));
}

static void unlock(struct qp_far *far, uint64_t addr)
{
	segment_atomic_unlock(to_far(far)->peer, segment_atomic_lock_of(addr));
}

const struct qp_direct_env shca_direct = {
	.enter = enter,
	.leave = leave,
	.ready = ready,
	.read = copy_in,
	.write = copy_out,
	.lock = lock,
	.unlock = unlock,
};

/* Finding the peer */

static bool found(struct shca_far *f, struct segment_peer *peer, uint32_t qpn)
{
	f->far = (struct qp_far){ .pub = shown_qp(peer, qpn) };
	return !(peer->flags & SEGMENT_PLAIN) && segment_can_copy(peer) &&
	       f->far.pub && shown_keys_view(peer, &f->far.keys);
}

static bool find(struct shca_qp *qp)
{
	struct segment *s = to_process(qp->sched.engine)->segment;
	const struct roce_path *path = roce_qp_path(roce_qp(qp->core));
	uint32_t dest = roce_qp_dest(roce_qp(qp->core));
	struct segment_peer *peer;
	int slot;

	slot = registry_route(segment_registry(s), dest, &path->dgid,
			      gid_is_link_local(&path->dgid) ?
				      path->sgid_scope :
				      0);
	peer = slot < 0 ? NULL : segment_peer_get(s, (unsigned)slot);
	if (!peer)
		return false;
	if (found(&qp->far, peer, dest)) {
		qp->far.peer = peer;
		return true;
	}
	segment_peer_put(peer);
	return false;
}

struct qp_far *shca_far(struct shca_qp *qp, uint64_t now)
{
	struct shca_far *f = &qp->far;

	if (f->peer && (!segment_peer_alive(f->peer, now) ||
			!segment_can_copy(f->peer)))
		shca_far_forget(qp);
	if (!f->peer) {
		if (now < f->again_ns)
			return NULL;
		f->again_ns = now + AGAIN_NS;
		if (!find(qp))
			return NULL;
	}
	f->now_ns = now;
	return &f->far;
}

void shca_far_forget(struct shca_qp *qp)
{
	segment_peer_put(qp->far.peer);
	qp->far = (struct shca_far){ .peer = NULL };
}

/* Our own memory */

int shca_env_atomic_lock(struct qp *core, const void *p)
{
	const struct shca_qp *qp = core->owner;
	struct segment *s = to_process(qp->sched.engine)->segment;

	return segment_own_atomic_lock(
		s, segment_atomic_lock_of((uintptr_t)p));
}

void shca_env_atomic_unlock(struct qp *core, const void *p)
{
	const struct shca_qp *qp = core->owner;
	struct segment *s = to_process(qp->sched.engine)->segment;

	segment_own_atomic_unlock(s, segment_atomic_lock_of((uintptr_t)p));
}

void shca_visits_wait(struct engine *e)
{
	struct segment *s = to_process(e)->segment;

	if (s)
		segment_wait_visits(s);
}

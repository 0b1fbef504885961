/*
 * remote.c - the other end of a queue pair, where it is another process of this
 * host whose memory may be copied to: qp/direct.h, by a segment
 *
 * A QP looks for its peer when it is first posted to, and keeps what it has
 * found as long as that process lives and shows the same segment.
 *
 * It also knows whether the program is after the time that a request takes, or
 * after the number that it gets done (roce/roce_direct.c). A program that posts
 * one after the other, and does not look what became of them, or waits for what
 * they lead to, is after the number.
 */
#include "record.h"
#include "shared.h"

#include "base/gid.h"
#include "link/exported_keys.h"

/* How long nothing is looked for that was not found. */
#define AGAIN_NS 10000000u

/* So many requests in a row, with less than that between one that is done and
 * the next one, are many. */
#define MANY 5
#define PAUSE_NS 1000u

static struct shca_remote *to_remote(struct qp_remote *remote)
{
	return container_of(remote, struct shca_remote, remote);
}

static int remote_enter(struct qp_remote *remote)
{
	return copy_guard_enter(to_remote(remote)->peer);
}

static void remote_leave(struct qp_remote *remote, int guard)
{
	copy_guard_exit(to_remote(remote)->peer, guard);
}

static bool remote_ready(struct qp_remote *remote, uint32_t slot)
{
	return exported_keys_ready(to_remote(remote)->peer, &remote->keys,
				   slot);
}

static int remote_read(struct qp_remote *remote, const struct iovec *to,
		       size_t n, const struct iovec *from, size_t m)
{
	struct shca_remote *f = to_remote(remote);

	return segment_read(f->peer, to, n, from, m, f->now_ns);
}

static int remote_write(struct qp_remote *remote, const struct iovec *from,
			size_t n, const struct iovec *to, size_t m)
{
	struct shca_remote *f = to_remote(remote);

	return segment_write(f->peer, from, n, to, m, f->now_ns);
}

static int remote_lock(struct qp_remote *remote, uint64_t addr)
{
	return segment_atomic_lock(to_remote(remote)->peer,
				   segment_atomic_lock_of(addr));
}

static void remote_unlock(struct qp_remote *remote, uint64_t addr)
{
	segment_atomic_unlock(to_remote(remote)->peer,
			      segment_atomic_lock_of(addr));
}

const struct qp_direct_env shca_direct = {
	.enter = remote_enter,
	.leave = remote_leave,
	.ready = remote_ready,
	.read = remote_read,
	.write = remote_write,
	.lock = remote_lock,
	.unlock = remote_unlock,
};

/* Finding the peer */

static bool view_peer(struct shca_remote *f, struct segment_peer *peer,
		      uint32_t qpn)
{
	f->remote = (struct qp_remote){ .pub = exported_qp(peer, qpn) };
	return !(peer->flags & SEGMENT_PLAIN) && segment_can_copy(peer) &&
	       f->remote.pub && exported_keys_view(peer, &f->remote.keys);
}

static struct segment_peer *remote_peer(struct shca_qp *qp, uint32_t dest)
{
	struct segment *s = to_process(qp->sched.engine)->segment;
	const struct roce_path *path = roce_qp_path(roce_qp(qp->core));
	int slot;

	slot = path->net ?
		       registry_route_in(segment_registry(s), path->net, dest,
					 &path->dgid) :
		       registry_route(segment_registry(s), dest, &path->dgid,
				      gid_is_link_local(&path->dgid) ?
					      path->sgid_scope :
					      0);
	return slot < 0 ? NULL : segment_peer_get(s, (unsigned)slot);
}

static bool find_peer(struct shca_qp *qp)
{
	uint32_t dest = roce_qp_dest(roce_qp(qp->core));
	struct segment_peer *peer;

	/* Suspended, a process knows nobody. */
	if (engine_halted(qp->sched.engine))
		return false;
	peer = remote_peer(qp, dest);
	if (!peer)
		return false;
	if (view_peer(&qp->remote, peer, dest)) {
		qp->remote.peer = peer;
		return true;
	}
	segment_peer_put(peer);
	return false;
}

static struct qp_remote *get_remote(struct shca_qp *qp, uint64_t now)
{
	struct shca_remote *f = &qp->remote;

	if (f->peer &&
	    (!segment_peer_alive(f->peer, now) || !segment_can_copy(f->peer)))
		shca_remote_forget(qp);
	if (!f->peer) {
		if (now < f->again_ns)
			return NULL;
		f->again_ns = now + AGAIN_NS;
		if (!find_peer(qp))
			return NULL;
	}
	f->now_ns = now;
	return &f->remote;
}

void shca_remote_forget(struct shca_qp *qp)
{
	segment_peer_put(qp->remote.peer);
	qp->remote = (struct shca_remote){
		.tail = qp->core ? qp->core->sq.tail : 0,
	};
}

bool shca_remote_qp(struct shca_qp *qp, struct check_end *end)
{
	const struct roce_path *path = roce_qp_path(roce_qp(qp->core));
	uint32_t dest = roce_qp_dest(roce_qp(qp->core)), state = 0,
		 generation = 0;
	const struct qp_public *pub;
	struct segment_peer *peer;

	if (!to_process(qp->sched.engine)->segment || !path ||
	    !roce_path_in_host(path))
		return false;
	peer = remote_peer(qp, dest);
	pub = peer ? exported_qp(peer, dest) : NULL;
	if (pub) {
		generation = qp_public_get(&pub->generation);
		atomic_thread_fence(memory_order_acquire);
		state = qp_public_get(&pub->state);
		end->mtu = qp_public_get(&pub->mtu);
		end->psn = qp_public_get(&pub->rq_psn);
		end->dest_qpn = qp_public_get(&pub->dest_qpn);
		if (qp_public_get(&pub->qpn) != dest ||
		    (state != IBV_QPS_RTR && state != IBV_QPS_RTS))
			generation = 0;
		atomic_thread_fence(memory_order_acquire);
		if (generation != qp_public_get(&pub->generation))
			generation = 0;
	}
	segment_peer_put(peer);
	end->generation = generation;
	return generation && end->mtu >= 256 && end->mtu <= 4096;
}

/*
 * Whether the program posts in numbers: several in a row, at once, and has not
 * asked meanwhile what has become of them; and then until all are done.
 */
static bool posts_in_numbers(struct shca_qp *qp, uint64_t now)
{
	const struct shca_cq *cq = qp->core->send_cq;
	const struct poller *p = &qp->sched.engine->poller;
	const struct qp_sq *sq = &qp->core->sq;
	struct shca_remote *f = &qp->remote;
	const bool done = sq->head == f->tail;
	const uint32_t posted = sq->tail - f->tail;
	/* A look at an empty one counts here, one at another there. */
	const uint32_t looks =
		atomic_load_explicit(&p->polls, memory_order_relaxed) +
		atomic_load_explicit(&cq->head, memory_order_relaxed);

	if (looks != f->looks || (f->end_ns && now - f->end_ns > PAUSE_NS))
		f->run = 0;
	f->run = posted < MANY - f->run ? f->run + posted : MANY;
	f->tail = sq->tail;
	f->looks = looks;
	f->many = f->run == MANY || (f->many && !done);
	return f->many;
}

/* What UC sends to another network namespace may go by the wire as well, and
 * nobody knows whether all of that was read. */
static bool may_be_direct(const struct qp *core)
{
	const struct roce_path *path = roce_qp_path(roce_qp((struct qp *)core));

	return path->local || (path->net && core->type == IBV_QPT_RC);
}

void shca_remote_try(struct shca_qp *qp, uint64_t *time)
{
	struct qp *core = qp->core;
	struct roce_qp *r = roce_qp(core);
	struct shca_remote *f = &qp->remote;
	struct qp_remote *remote;
	uint64_t now;

	if (!core->env->direct || !may_be_direct(core) ||
	    core->state != IBV_QPS_RTS) {
		f->tail = core->sq.tail;
		return;
	}
	if (!*time)
		*time = clock_ns();
	now = *time;
	remote = get_remote(qp, now);
	roce_direct_expect(r, remote, posts_in_numbers(qp, now));
	f->end_ns = now;
	if (!remote || !roce_direct_ready(r))
		return;
	if (tracing())
		shca_record_direct(qp, remote);
	else
		roce_direct(r, remote);
	f->end_ns = f->run > 1 ? clock_ns() : 0;
}

/* Our own memory */

int shca_env_atomic_lock(struct qp *core, const void *p)
{
	const struct shca_qp *qp = core->owner;
	struct segment *s = to_process(qp->sched.engine)->segment;

	return segment_own_atomic_lock(s, segment_atomic_lock_of((uintptr_t)p));
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
		copy_guard_wait(s);
}

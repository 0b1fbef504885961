/*
 * direct.c - what the responder would check, and the copy
 *
 * The order of things keeps memory safe: the copy is announced before the QP
 * and the key are looked at, and the other process, which hides them before it
 * looks for copies, waits until the copy is done. Access flags, PD and bounds
 * are those of the moment, as with a packet that arrives then.
 *
 * The last bytes are stored last, each once (base/store_tail.h): as a piece of
 * their own, since the kernel promises no order within one, and where stores
 * are seen in any order by a call of their own. It is the memory here that is
 * divided, as each piece there costs the kernel a look at its pages.
 */
#include "direct.h"

#include "base/store_tail.h"

#include <errno.h>
#include <string.h>

/* ---- memory here ------------------------------------------------------- */

struct local {
	size_t n, nkeys;
	struct iovec iov[QP_MAX_SGE + 1]; /* one is divided */
	struct key_entry *key[QP_MAX_SGE];
};

static void local_put(struct local *l)
{
	while (l->nkeys)
		keys_put(l->key[--l->nkeys]);
}

static bool local_piece(struct qp *qp, struct local *l,
			const struct ibv_sge *sge, uint32_t access)
{
	struct key_entry *e = l->nkeys ? l->key[l->nkeys - 1] : NULL;
	void *p;

	if (!e ||
	    atomic_load_explicit(&e->lkey, memory_order_relaxed) != sge->lkey) {
		e = keys_get_local(qp->env->keys, sge->lkey, &qp->lkey_hint);
		if (!e)
			return false;
		l->key[l->nkeys++] = e;
	}
	if (e->kind != KEY_MR ||
	    !key_covers(e, qp->pd, sge->addr, sge->length, access, &p))
		return false;
	l->iov[l->n++] = (struct iovec){ p, sge->length };
	return true;
}

/* The request's own memory, whose keys are kept until local_put(). */
static bool local_get(struct qp *qp, struct qp_wqe *w, struct local *l)
{
	const struct ibv_sge *sge = qp_wqe_sge(&qp->sq, w);
	uint32_t access =
		w->opcode == IBV_WR_RDMA_WRITE ? 0 : IBV_ACCESS_LOCAL_WRITE;

	if (w->flags & IBV_SEND_INLINE) {
		l->iov[l->n++] =
			(struct iovec){ qp_wqe_data(&qp->sq, w), w->length };
		return true;
	}
	for (uint32_t i = 0; i < w->num_sge; i++)
		if (sge[i].length && !local_piece(qp, l, &sge[i], access)) {
			local_put(l);
			return false;
		}
	return true;
}

/* The last bytes become pieces of their own: the first of them, 0 if that is all
 * there is. */
static size_t local_divide(struct local *l, size_t length)
{
	size_t first = length - store_tail(length), i = 0;

	while (i < l->n && first >= l->iov[i].iov_len)
		first -= l->iov[i++].iov_len;
	if (!first)
		return i;
	for (size_t k = l->n++; k > i; k--)
		l->iov[k] = l->iov[k - 1];
	l->iov[i].iov_len = first;
	l->iov[i + 1].iov_base = (uint8_t *)l->iov[i + 1].iov_base + first;
	l->iov[i + 1].iov_len -= first;
	return i + 1;
}

/* ---- the other end ----------------------------------------------------- */

/* The first request that arrives in RTR raises an event there: no direct one. */
static bool peer_answers(uint32_t state, uint32_t established)
{
	return established && (state == IBV_QPS_RTR || state == IBV_QPS_RTS ||
			       state == IBV_QPS_SQD);
}

/* Whether the QP there would take a request that needs these access flags. */
static bool peer_takes(const struct qp *qp, const struct qp_wqe *w,
		       struct qp_remote *remote,
		       const struct qp_direct_peer *peer, uint32_t flag)
{
	const struct qp_public *p = remote->pub;
	uint32_t generation =
		atomic_load_explicit(&p->generation, memory_order_acquire);
	uint32_t state = atomic_load_explicit(&p->state, memory_order_acquire);

	if (!generation ||
	    (remote->generation && remote->generation != generation) ||
	    !peer_answers(state, qp_public_get(&p->established)))
		return false;
	if (qp_public_get(&p->qpn) != peer->qpn ||
	    qp_public_get(&p->type) != (uint32_t)qp->type ||
	    qp_public_get(&p->dest_qpn) != qp->wire_qpn ||
	    qp_public_get(&p->rq_psn) != peer->psn ||
	    qp_public_get(&p->mtu) != peer->mtu ||
	    qp_public_get(&p->path_hash) != peer->path_hash)
		return false;
	remote->generation = generation;
	if (qp_wqe_has_response(w) && !qp_public_get(&p->dest_rd_atomic))
		return false;
	return qp_public_get(&p->access) & flag;
}

/* The address there of what the request names, if it may be accessed so. */
static bool peer_memory(const struct qp *qp, const struct qp_wqe *w,
			struct qp_remote *remote, uint32_t flag, uint64_t *addr)
{
	const struct qp_direct_env *env = qp->env->direct;
	uint32_t slot = keys_find(&remote->keys, w->rkey, &remote->hint);
	struct key_shown e;

	if (slot >= remote->keys.ready && !env->ready(remote, slot))
		return false;
	if (!keys_peek(&remote->keys, slot, w->rkey, &e))
		return false;
	if (e.kind == KEY_MW2 ? e.qpn != qp_public_get(&remote->pub->named) :
				e.kind != KEY_MR && e.kind != KEY_MW1)
		return false;
	return key_shown_covers(&e, qp_public_get(&remote->pub->pd),
				w->remote_addr, w->length, flag, addr);
}

/* ---- operations -------------------------------------------------------- */

static int direct_copy(struct qp *qp, const struct qp_wqe *w,
		       struct qp_remote *remote, struct local *l, uint64_t addr)
{
	const struct qp_direct_env *env = qp->env->direct;
	int (*const move)(struct qp_remote *, const struct iovec *, size_t,
			  const struct iovec *, size_t) =
		w->opcode == IBV_WR_RDMA_WRITE ? env->write : env->read;
	const size_t last = local_divide(l, w->length);
	struct iovec there = { (void *)(uintptr_t)addr, w->length };
	const size_t first = w->length - store_tail(w->length);
	int err;

	if (STORE_IN_ORDER || !first)
		return move(remote, l->iov, l->n, &there, 1);
	there.iov_len = first;
	err = move(remote, l->iov, last, &there, 1);
	if (err)
		return err;
	atomic_thread_fence(memory_order_seq_cst);
	there = (struct iovec){ (uint8_t *)there.iov_base + first,
				w->length - first };
	return move(remote, l->iov + last, l->n - last, &there, 1);
}

static int direct_exchange(const struct qp_direct_env *env,
			   const struct qp_wqe *w, struct qp_remote *remote,
			   uint64_t addr, uint64_t *orig)
{
	const struct iovec there = { (void *)(uintptr_t)addr, 8 };
	const struct iovec old = { orig, 8 };
	uint64_t new = w->swap;
	const struct iovec here = { &new, 8 };
	int err;

	if (!qp_wqe_has_value(w)) {
		err = env->read(remote, &old, 1, &there, 1);
		if (err)
			return err;
	}
	if (w->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
		new = *orig + w->compare_add;
	else if (w->opcode == IBV_WR_ATOMIC_CMP_AND_SWP &&
		 *orig != w->compare_add)
		return 0;
	return env->write(remote, &here, 1, &there, 1);
}

static int direct_atomic(struct qp *qp, const struct qp_wqe *w,
			 struct qp_remote *remote, uint64_t addr,
			 uint64_t *orig)
{
	const struct qp_direct_env *env = qp->env->direct;
	int err;

	if (w->remote_addr & 7 || addr & 7)
		return -EINVAL;
	err = env->lock(remote, addr);
	if (err)
		return err;
	err = direct_exchange(env, w, remote, addr, orig);
	env->unlock(remote, addr);
	return err;
}

static int direct_run(struct qp *qp, const struct qp_wqe *w,
		      struct qp_remote *remote,
		      const struct qp_direct_peer *peer, struct local *l,
		      uint64_t *orig)
{
	const uint32_t flag = qp_wqe_access(w);
	uint64_t addr;

	if (!peer_takes(qp, w, remote, peer, flag))
		return -EACCES;
	if (!w->length)
		return 0; /* 9.7.4.1.5: zero length is not checked */
	if (!peer_memory(qp, w, remote, flag, &addr))
		return -EACCES;
	return w->opcode == IBV_WR_RDMA_WRITE || w->opcode == IBV_WR_RDMA_READ ?
		       direct_copy(qp, w, remote, l, addr) :
		       direct_atomic(qp, w, remote, addr, orig);
}

int qp_direct(struct qp *qp, struct qp_wqe *w, struct qp_remote *remote,
	      const struct qp_direct_peer *peer)
{
	const struct qp_direct_env *env = qp->env->direct;
	const bool result = w->opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
			    w->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
	struct local l;
	uint64_t orig = 0;
	uint32_t bad;
	int err, in;

	l.n = l.nkeys = 0;
	if (!qp_wqe_has_value(w) && !local_get(qp, w, &l))
		return -EFAULT;
	in = env->enter(remote);
	if (in < 0) {
		local_put(&l);
		return in;
	}
	err = direct_run(qp, w, remote, peer, &l, &orig);
	env->leave(remote, in);
	local_put(&l);
	if (!err && result &&
	    qp_scatter(qp, qp->pd, qp_wqe_sge(&qp->sq, w), w->num_sge, 0,
		       (const uint8_t *)&orig, 8, &bad))
		return -EINPROGRESS;
	return err;
}

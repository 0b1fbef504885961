/*
 * mw.c - memory windows: rkeys for parts of a region, bound and invalidated by
 * work requests (IBTA 10.6.7)
 *
 * A window is a slot of the key table; the slot is dead while the window is not
 * bound. The protocol core binds and invalidates in the order of the send
 * queue, or for a peer (env.h), and knows keys only: the index of an rkey names
 * the window, so a program may destroy any object before its work requests are
 * executed. A slot's kind says whether it is a window, KEY_DYING whether it is
 * bound; both change under memory.lock only.
 */
#include "verbs.h"

#include "base/why.h"

#include <errno.h>
#include <stdlib.h>

#define MW_ACCESS                                                              \
	((uint32_t)(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |         \
		    IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |        \
		    IBV_ACCESS_ZERO_BASED))

static bool is_window(const struct key_entry *w)
{
	return w->kind == KEY_MW1 || w->kind == KEY_MW2;
}

static bool is_bound(const struct key_entry *w)
{
	return !(atomic_load(&w->users) & KEY_DYING);
}

static void window_unbind(struct engine *e, struct key_entry *w)
{
	struct shca_process *proc = to_process(e);

	if (!is_bound(w))
		return;
	if (check_on())
		check_ops->key_ended(atomic_load(&w->rkey));
	shca_key_kill(e, (uint32_t)(w - proc->memory.keys.entry));
	proc->memory.keys.entry[w->parent].windows--;
}

int shca_mw_alloc(struct ibv_pd *pd, enum ibv_mw_type type, struct ibv_mw **out)
{
	int slot, err = engine_fault(FAULT_ALLOC_MW) ?: shca_check(pd, SHCA_PD);
	struct key_entry entry = { 0 };
	struct shca_mw *shca;
	struct engine *e;
	struct ibv_mw *mw;

	if (err)
		return err;
	e = to_ctx(pd->context)->engine;
	entry.pd = to_pd(pd)->num;
	if (type == IBV_MW_TYPE_1)
		entry.kind = KEY_MW1;
	else if (type == IBV_MW_TYPE_2)
		entry.kind = KEY_MW2;
	else
		return why(-EINVAL,
			   "type %u: IBV_MW_TYPE_1 or IBV_MW_TYPE_2 expected",
			   (unsigned)type);
	err = shca_count(e, SHCA_MW);
	if (err)
		return err;
	shca = calloc(1, sizeof(*shca));
	pthread_mutex_lock(&to_process(e)->memory.lock);
	slot = shca ? shca_key_add(e, &entry) : -ENOMEM;
	if (slot >= 0)
		shca_key_kill(e, (uint32_t)slot);
	pthread_mutex_unlock(&to_process(e)->memory.lock);
	if (slot < 0) {
		free(shca);
		shca_uncount(e, SHCA_MW);
		return slot;
	}
	mw = &shca->mw;
	mw->context = pd->context;
	mw->pd = pd;
	mw->type = type;
	mw->handle = (uint32_t)slot;
	mw->rkey = atomic_load(&to_process(e)->memory.keys.entry[slot].rkey);
	shca_pd_get(pd);
	shca_live_add(&shca->live, mw, SHCA_MW);
	*out = mw;
	return 0;
}

int shca_mw_free(struct ibv_mw *mw)
{
	int err = shca_check(mw, SHCA_MW);
	struct engine *e;

	if (err)
		return err;
	shca_live_remove(&to_mw(mw)->live);
	e = to_ctx(mw->context)->engine;
	pthread_mutex_lock(&to_process(e)->memory.lock);
	window_unbind(e, &to_process(e)->memory.keys.entry[mw->handle]);
	keys_free(&to_process(e)->memory.keys, mw->handle);
	pthread_mutex_unlock(&to_process(e)->memory.lock);
	shca_uncount(e, SHCA_MW);
	shca_pd_put(mw->pd);
	free(to_mw(mw));
	return 0;
}

int shca_mw_bind(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind)
{
	struct ibv_send_wr wr = {
		.wr_id = bind->wr_id,
		.opcode = IBV_WR_BIND_MW,
		.send_flags = bind->send_flags,
		.bind_mw = {
			.mw = mw,
			.bind_info = bind->bind_info,
		},
	}, *bad;
	const struct ibv_mr *mr = bind->bind_info.mr;
	int err = shca_check(qp, SHCA_QP);

	if (!err)
		err = shca_check(mw, SHCA_MW);
	if (!err && mr)
		err = shca_check(mr, SHCA_MR);
	if (err)
		return err;
	if (mw->type != IBV_MW_TYPE_1)
		return why(-EINVAL, "a window of type 2 is bound by "
				    "ibv_post_send() with IBV_WR_BIND_MW");
	if (bind->bind_info.mw_access_flags & ~MW_ACCESS)
		return why(-EINVAL, "mw_access_flags 0x%x has unknown bits",
			   bind->bind_info.mw_access_flags);
	/* As in the man page; the QP reports what it finds. */
	if (mr && mr->pd != mw->pd)
		return why(-EPERM,
			   "the region (lkey 0x%08x) and the window (rkey "
			   "0x%08x) are of two PDs",
			   mr->lkey, mw->rkey);
	wr.bind_mw.rkey =
		ibv_inc_rkey(__atomic_load_n(&mw->rkey, __ATOMIC_RELAXED));
	return check_on() ?
		       check_ops->post_send(qp, &wr, &bad, shca_qp_post_send) :
		       shca_qp_post_send(qp, &wr, &bad);
}

/* What may be bound to what, in the order of 10.6.7.2.2; r may be NULL. */
static bool bind_allowed(const struct shca_qp *qp, const struct key_entry *w,
			 const struct key_entry *r, const struct qp_bind *bind)
{
	const uint32_t pd = to_pd(qp->ex.qp_base.pd)->num;
	const uint32_t write =
		IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

	if (!is_window(w) || w->pd != pd || bind->access & ~MW_ACCESS)
		return false;
	if (w->kind == KEY_MW2) {
		/* A window of type 2 has to be invalidated before it is bound
		 * again; binding no bytes does not do that. */
		if (is_bound(w) || !bind->length)
			return false;
	}
	if (!bind->length)
		return true;
	if (!r || r->kind != KEY_MR || r->pd != pd ||
	    !(r->access & IBV_ACCESS_MW_BIND) ||
	    r->access & IBV_ACCESS_ZERO_BASED)
		return false;
	if (bind->access & write && !(r->access & IBV_ACCESS_LOCAL_WRITE))
		return false;
	return bind->addr >= r->iova && bind->length <= r->length &&
	       bind->addr - r->iova <= r->length - bind->length;
}

static void window_bind(struct engine *e, const struct shca_qp *qp,
			struct key_entry *w, struct key_entry *r,
			const struct qp_bind *bind)
{
	struct shca_process *proc = to_process(e);
	const uint32_t on_demand = r->access & IBV_ACCESS_ON_DEMAND;
	const struct key_entry entry = {
		.access = bind->access | on_demand,
		.pd = w->pd,
		.qpn = shca_qpn(qp),
		.kind = w->kind,
		.parent = (uint32_t)(r - proc->memory.keys.entry),
		.iova = bind->access & IBV_ACCESS_ZERO_BASED ? 0 : bind->addr,
		.length = bind->length,
		.addr = r->addr + (bind->addr - r->iova),
	};

	r->windows++;
	keys_revive(&proc->memory.keys, (uint32_t)(w - proc->memory.keys.entry),
		    &entry, 0, bind->rkey);
}

int shca_mw_env_bind(struct qp *core, const struct qp_bind *how)
{
	struct shca_qp *qp = core->owner;
	struct engine *e = qp->sched.engine;
	struct shca_process *proc = to_process(e);
	struct key_entry *w, *r = NULL;
	uint32_t slot, hint = 0;
	int err = -EACCES;

	pthread_mutex_lock(&proc->memory.lock);
	/* A key names its slot for one life of the slot. */
	slot = keys_slot(&proc->memory.keys, how->rkey);
	if (slot == UINT32_MAX)
		goto unlock;
	w = &proc->memory.keys.entry[slot];
	if (how->lkey)
		r = keys_get_local(&proc->memory.keys, how->lkey, &hint);
	if (bind_allowed(qp, w, r, how)) {
		window_unbind(e, w);
		if (how->length)
			window_bind(e, qp, w, r, how);
		if (w->kind == KEY_MW2)
			atomic_store(&qp->windows, true);
		err = 0;
	}
	if (r)
		keys_put(r);
unlock:
	pthread_mutex_unlock(&proc->memory.lock);
	return err;
}

int shca_mw_env_invalidate(struct qp *core, uint32_t rkey)
{
	struct shca_qp *qp = core->owner;
	struct engine *e = qp->sched.engine;
	struct shca_process *proc = to_process(e);
	uint32_t slot = keys_slot(&proc->memory.keys, rkey);
	struct key_entry *w;
	int err = -EACCES;

	if (slot == UINT32_MAX)
		return err;
	w = &proc->memory.keys.entry[slot];
	pthread_mutex_lock(&proc->memory.lock);
	if (w->kind == KEY_MW2 && is_bound(w) &&
	    atomic_load(&w->rkey) == rkey && w->qpn == shca_qpn(qp)) {
		window_unbind(e, w);
		err = 0;
	}
	pthread_mutex_unlock(&proc->memory.lock);
	return err;
}

/* Windows are unbound with their QP, since its number is used again. */
void shca_mw_qp_gone(struct shca_qp *qp)
{
	struct engine *e = qp->sched.engine;
	struct shca_process *proc = to_process(e);
	uint32_t i;

	if (!atomic_load(&qp->windows))
		return;
	pthread_mutex_lock(&proc->memory.lock);
	for (i = 0; i < proc->memory.keys.used; i++) {
		struct key_entry *w = &proc->memory.keys.entry[i];

		if (w->kind == KEY_MW2 && w->qpn == shca_qpn(qp))
			window_unbind(e, w);
	}
	pthread_mutex_unlock(&proc->memory.lock);
}

/*
 * check_slots.c - the checks (hooks/check.h) around what programs call
 *
 * The slots of a context, and of an extended CQ, are others where the program
 * is checked, so the data path of one that is not has nothing of this.
 */
#include "verbs.h"

#include "os/guard.h"

/* ---- what the checks ask for ------------------------------------------- */

struct reading {
	void (*fn)(void *arg, const void *p);
	void *arg;
	const void *p;
};

static void read_run(void *arg)
{
	struct reading *r = arg;

	r->fn(r->arg, r->p);
}

/* Memory on demand is left alone: looking at it would bring it in. */
static bool read_sge(struct ibv_qp *ib, const struct ibv_sge *sge, uint32_t len,
		     void (*fn)(void *arg, const void *p), void *arg)
{
	struct reading r = { fn, arg, NULL };
	struct key_entry *e;
	uint32_t hint = 0;
	bool done = false;
	void *p;

	e = keys_get_local(&to_process(to_qp(ib)->sched.engine)->memory.keys,
			   sge->lkey, &hint);
	if (!e)
		return false;
	if (e->kind == KEY_MR && !(e->access & IBV_ACCESS_ON_DEMAND) &&
	    key_covers(e, to_pd(ib->pd)->num, sge->addr, len, 0, &p)) {
		r.p = p;
		done = !guard_run(read_run, &r, p, len);
	}
	keys_put(e);
	return done;
}

static bool end_reported(struct ibv_qp *ib, struct check_end *own,
			 struct check_end *there)
{
	struct shca_qp *qp = to_qp(ib);
	bool known = false;

	shca_qp_lock(qp);
	/* Of iWARP nothing is known of the other end. */
	if (qp->core && shca_qp_is_roce(qp))
		known = shca_remote_qp(qp, there);
	if (known)
		*own = (struct check_end){
			.generation = qp_public_get(&qp->core->pub->generation),
			.mtu = 128u << qp->core->attr.path_mtu,
			.psn = qp->core->attr.sq_psn,
			.dest_qpn = roce_qp_dest(roce_qp(qp->core)),
		};
	shca_qp_unlock(qp);
	return known;
}

static void peer_of_qp(struct ibv_qp *ib, struct check_peer *out)
{
	if (shca_qp_is_roce(to_qp(ib)))
		shca_remote_report(to_qp(ib), out);
	else
		*out = (struct check_peer){ 0 };
}

static void check_posting(struct ibv_qp *ib)
{
	struct shca_qp *qp = to_qp(ib);

	shca_qp_lock(qp);
	shca_check_posting(qp);
	shca_qp_unlock(qp);
}

void shca_check_posting(struct shca_qp *qp)
{
	if (qp->core)
		atomic_store(&qp->core->pub->posted_ns, clock_ns());
}

/* Without a lock: what a program that waits has posted does not change. */
static uint32_t receives_of(struct ibv_qp *ib)
{
	const struct shca_qp *qp = to_qp(ib);

	return qp->core ? qp_rq_count(&qp->core->rq) : 0;
}

const struct check_env shca_check_env = { .read = read_sge,
					  .waits = shca_cq_waits,
					  .peer = peer_of_qp,
					  .receives = receives_of,
					  .posting = check_posting,
					  .ends = end_reported };

/* After the program's own functions: exit(3) may end here. */
__attribute__((destructor(101))) static void end(void)
{
	if (!check_on())
		return;
	if (check_ops->wants_leaks())
		shca_live_leaked(NULL, "the process exits");
	check_ops->exit();
}

/* ---- slots ------------------------------------------------------------- */

static int slot_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr,
			  struct ibv_send_wr **bad)
{
	return number(
		engine_dead(to_qp(qp)->sched.engine) ?
			shca_qp_post_send(qp, wr, bad) :
			check_ops->post_send(qp, wr, bad, shca_qp_post_send));
}

static int post_all(struct ibv_qp *qp, struct ibv_send_wr *wr,
		    struct ibv_send_wr **bad)
{
	*bad = wr;
	return shca_qp_post_all(qp, wr);
}

int shca_check_post_all(struct ibv_qp *qp, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	return engine_dead(to_qp(qp)->sched.engine) ?
		       -EIO :
		       check_ops->post_send(qp, wr, &bad, post_all);
}

static int slot_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	return engine_dead(to_cq(cq)->engine) ?
		       -EIO :
		       check_ops->poll(cq, n, wc, shca_cq_poll);
}

void shca_check_slots(struct ibv_context_ops *ops)
{
	ops->poll_cq = slot_poll_cq;
	ops->post_send = slot_post_send;
}

int shca_check_channel_get(struct ibv_comp_channel *ch, struct ibv_cq **cq,
			   void **cq_context,
			   int (*get)(struct ibv_comp_channel *ch,
				      struct ibv_cq **cq, void **cq_context))
{
	struct check_sleep sleep;
	int err;

	if (engine_dead(to_ctx(ch->context)->engine))
		return -EIO;
	check_ops->sleep_begin(&sleep, ch);
	/* Waiting is a cancellation point. */
	pthread_cleanup_push(check_ops->sleep_end, &sleep);
	err = get(ch, cq, cq_context);
	pthread_cleanup_pop(true);
	if (!err)
		check_ops->cq_event(*cq);
	return err;
}

/* ---- ibv_cq_ex ---------------------------------------------------------- */

/* The same of all CQs. */
static int (*real_start)(struct ibv_cq_ex *ex, struct ibv_poll_cq_attr *attr);
static int (*real_next)(struct ibv_cq_ex *ex);

static int check_note(struct ibv_cq_ex *ex, int err)
{
	if (!err)
		check_ops->polled((struct ibv_cq *)(void *)ex,
				  &((struct shca_cq *)ex)->cur.wc);
	return err;
}

static int start_poll(struct ibv_cq_ex *ex, struct ibv_poll_cq_attr *attr)
{
	return check_note(ex, real_start(ex, attr));
}

static int next_poll(struct ibv_cq_ex *ex)
{
	return check_note(ex, real_next(ex));
}

void shca_check_readers(struct ibv_cq_ex *cq)
{
	__atomic_store_n(&real_start, cq->start_poll, __ATOMIC_RELAXED);
	__atomic_store_n(&real_next, cq->next_poll, __ATOMIC_RELAXED);
	cq->start_poll = start_poll;
	cq->next_poll = next_poll;
}

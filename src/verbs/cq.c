/*
 * cq.c - completion queues
 *
 * A CQ is a ring of work completions in the form in which programs get them. The
 * lock between ibv_start_poll() and ibv_end_poll() excludes other pollers only:
 * the program may post between two completions, to a QP that is just then
 * completing to the same CQ.
 */
#include "verbs.h"

#include "base/bytes.h"
#include "base/fd_high.h"
#include "base/say.h"
#include "base/why.h"
#include "transport/record.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <time.h>

#define WC_KNOWN                                                               \
	(IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |         \
	 IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)

#define FLAGS_KNOWN                                                            \
	((uint32_t)(IBV_CREATE_CQ_ATTR_SINGLE_THREADED |                       \
		    IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN))

/* How close two readings of a clock are around a good one of another, and what
 * counts as a time that was set. */
#define WALL_SURE_NS 2000
#define WALL_STEP_NS 1000000

/* Completion queues */

static bool cq_empty(const struct shca_cq *cq)
{
	return atomic_load_explicit(&cq->head, memory_order_relaxed) ==
	       atomic_load_explicit(&cq->tail, memory_order_acquire);
}

static uint32_t cq_count(const struct shca_cq *cq)
{
	return atomic_load_explicit(&cq->tail, memory_order_relaxed) -
	       atomic_load_explicit(&cq->head, memory_order_relaxed);
}

/* A program that has armed the CQ may be about to wait for the event. */
static bool cq_armed(const struct shca_cq *cq)
{
	return atomic_load_explicit(&cq->armed, memory_order_relaxed) !=
	       SHCA_UNARMED;
}

static bool is_moderated(const struct shca_cq *cq)
{
	return cq->mod_count > 1 && cq->mod_usec;
}

/*
 * The event that the program has asked for is due; lock held. True: there is a
 * channel, which gets it by event_send() without the lock, since whoever waits
 * there takes that next. The CQ stays meanwhile, because it has QPs, or because
 * cqs.late_lock is held.
 */
static bool event_raise(struct shca_cq *cq)
{
	atomic_store_explicit(&cq->armed, SHCA_UNARMED, memory_order_relaxed);
	cq->mod_pending = 0;
	return cq->ex.channel;
}

static void event_send(struct shca_cq *cq)
{
	if (tracing())
		trace_put(TRACE_CQ_RAISED, 0, 0, (uintptr_t)cq, 0, 0, 0);
	shca_channel_push(to_comp_channel(cq->ex.channel), cq);
}

static void timer_start(const struct shca_cq *cq, uint16_t usec)
{
	const struct itimerspec at = { .it_value.tv_nsec = usec * 1000l };

	/* Fails for a bad descriptor only. */
	if (timerfd_settime(cq->mod_fd, 0, &at, NULL))
		return;
}

/* There is no room for a completion; drops the lock. */
static int cq_full(struct shca_cq *cq)
{
	struct ibv_async_event ev = { .event_type = IBV_EVENT_CQ_ERR,
				      .element.cq = (struct ibv_cq *)&cq->ex };
	bool overrun;

	if (cq->ignore_overrun) {
		/* The program has asked for that: it is lost. */
		lock_drop(&cq->lock);
		return 0;
	}
	overrun = !cq->overrun;
	cq->overrun = true;
	lock_drop(&cq->lock);
	if (overrun && cq->engine->cfg->explain)
		say("a CQ of %u entries overflowed, and completions are lost "
		    "from now on: poll it more often, or create it with room "
		    "for all work requests of its QPs",
		    cq->depth);
	if (overrun)
		shca_async_raise(to_ctx(cq->ex.context), &ev);
	return -ENOSPC;
}

/* A completion has come to a CQ that is armed; lock held. As event_raise(). */
static bool event_due(struct shca_cq *cq, bool solicited)
{
	int armed = atomic_load_explicit(&cq->armed, memory_order_relaxed);

	if (armed == SHCA_ARMED_SOLICITED && !solicited)
		return false;
	if (!is_moderated(cq) || ++cq->mod_pending >= cq->mod_count)
		return event_raise(cq);
	if (cq->mod_pending == 1)
		timer_start(cq, cq->mod_usec);
	return false;
}

/* A completion that is not merely one more; lock held, drops it. */
__attribute__((noinline)) static int
add_odd(struct shca_cq *cq, const struct ibv_wc *wc, bool solicited)
{
	struct shca_cqe *cqe;
	uint32_t tail;
	bool raised;

	if (cq->overrun || cq_count(cq) == cq->depth)
		return cq_full(cq);
	tail = atomic_load_explicit(&cq->tail, memory_order_relaxed);
	cqe = &cq->ring[tail & (cq->depth - 1)];
	cqe->wc = *wc;
	if (cq->want_ts)
		cqe->ts = clock_ns();
	atomic_store_explicit(&cq->tail, tail + 1, memory_order_release);
	/* Errors count as solicited (11.4.2.2). */
	raised = cq_armed(cq) &&
		 event_due(cq, solicited || wc->status != IBV_WC_SUCCESS);
	lock_drop(&cq->lock);
	if (raised)
		event_send(cq);
	return 0;
}

__attribute__((noinline)) static int
add_wait(struct shca_cq *cq, const struct ibv_wc *wc, bool solicited)
{
	lock_wait(&cq->lock);
	return add_odd(cq, wc, solicited);
}

int shca_cq_add(struct shca_cq *cq, const struct ibv_wc *wc, bool solicited)
{
	uint32_t tail;

	if (!lock_try(&cq->lock))
		return add_wait(cq, wc, solicited);
	if (cq->overrun | cq->want_ts | cq_armed(cq) ||
	    cq_count(cq) == cq->depth)
		return add_odd(cq, wc, solicited);
	tail = atomic_load_explicit(&cq->tail, memory_order_relaxed);
	cq->ring[tail & (cq->depth - 1)].wc = *wc;
	atomic_store_explicit(&cq->tail, tail + 1, memory_order_release);
	lock_drop(&cq->lock);
	return 0;
}

/* Moderation */

void shca_cq_late(struct engine *e, int fd)
{
	struct shca_process *proc = to_process(e);
	struct shca_cq *cq;
	bool raised;

	pthread_mutex_lock(&proc->cqs.late_lock);
	for (cq = proc->cqs.late; cq && cq->mod_fd != fd; cq = cq->mod_next)
		;
	if (cq) {
		lock_take(&cq->lock);
		timer_start(cq, 0); /* clears the expiration */
		raised = cq->mod_pending && event_raise(cq);
		lock_drop(&cq->lock);
		if (raised)
			event_send(cq);
	}
	pthread_mutex_unlock(&proc->cqs.late_lock);
}

static int late_add(struct shca_cq *cq)
{
	struct engine *e = cq->engine;
	struct shca_process *proc = to_process(e);
	int fd, err;

	if (cq->mod_fd >= 0)
		return 0;
	err = engine_start(e);
	if (err)
		return err;
	fd = fd_high(
		timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
	if (fd < 0)
		return -errno;
	cq->mod_fd = fd;
	cq->mod_next = proc->cqs.late;
	proc->cqs.late = cq;
	return engine_watch_fd(e, fd);
}

static void late_remove(struct shca_cq *cq)
{
	struct engine *e = cq->engine;
	struct shca_process *proc = to_process(e);
	struct shca_cq **p;

	pthread_mutex_lock(&proc->cqs.late_lock);
	if (cq->mod_fd >= 0) {
		for (p = &proc->cqs.late; *p != cq; p = &(*p)->mod_next)
			;
		*p = cq->mod_next;
		engine_unwatch_fd(e, cq->mod_fd);
		sys_close(cq->mod_fd);
	}
	pthread_mutex_unlock(&proc->cqs.late_lock);
}

int shca_cq_modify(struct ibv_cq *ibcq, const struct ibv_modify_cq_attr *attr)
{
	struct shca_cq *cq = to_cq(ibcq);
	int err = shca_check(ibcq, SHCA_CQ);
	bool raised;

	if (err)
		return err;
	if (attr->attr_mask & ~(uint32_t)IBV_CQ_ATTR_MODERATE)
		return why(-EINVAL,
			   "attr_mask 0x%x: only IBV_CQ_ATTR_MODERATE is known",
			   attr->attr_mask);
	if (!attr->attr_mask)
		return 0;
	pthread_mutex_lock(&to_process(cq->engine)->cqs.late_lock);
	if (attr->moderate.cq_count > 1 && attr->moderate.cq_period)
		err = late_add(cq);
	if (!err) {
		lock_take(&cq->lock);
		cq->mod_count = attr->moderate.cq_count;
		cq->mod_usec = attr->moderate.cq_period;
		/* An event that waits by the old rule is raised now. */
		raised = cq->mod_pending && event_raise(cq);
		lock_drop(&cq->lock);
		if (raised)
			event_send(cq);
	}
	pthread_mutex_unlock(&to_process(cq->engine)->cqs.late_lock);
	return err;
}

static inline void await_answer(struct shca_cq *cq)
{
	if (atomic_load_explicit(&cq->answer.due_ns, memory_order_relaxed))
		shca_answer_wait(cq, cq_armed(cq));
}

__attribute__((noinline)) static int cq_take(struct shca_cq *cq, int n,
					     struct ibv_wc *wc)
{
	uint32_t head, left;
	int i;

	await_answer(cq);
	lock_take(&cq->lock);
	head = atomic_load_explicit(&cq->head, memory_order_relaxed);
	left = cq_count(cq);
	for (i = 0; i < n && left; i++, left--)
		wc[i] = cq->ring[head++ & (cq->depth - 1)].wc;
	atomic_store_explicit(&cq->head, head, memory_order_relaxed);
	lock_drop(&cq->lock);
	return i;
}

/* shca_cq_poll(), recorded. */
__attribute__((noinline)) static int poll_recorded(struct shca_cq *cq, int n,
						   struct ibv_wc *wc)
{
	trace_forget();
	if (cq_empty(cq)) {
		engine_poll(cq->engine, cq_armed(cq));
		if (cq_empty(cq))
			return 0;
	}
	n = cq_take(cq, n, wc);
	shca_record_polled(wc, n);
	return n;
}

int shca_cq_poll(struct ibv_cq *ibcq, int n, struct ibv_wc *wc)
{
	struct shca_cq *cq = to_cq(ibcq);

	if (engine_dead(cq->engine))
		return -EIO;
	if (tracing())
		return poll_recorded(cq, n, wc);
	if (cq_empty(cq)) {
		engine_poll(cq->engine, cq_armed(cq));
		if (cq_empty(cq))
			return 0;
	}
	return cq_take(cq, n, wc);
}

int shca_cq_notify(struct ibv_cq *ibcq, int solicited_only)
{
	struct shca_cq *cq = to_cq(ibcq);

	if (engine_dead(cq->engine))
		return -EIO;
	lock_take(&cq->lock);
	/* Arming for solicited events does not disarm for others (11.4.2.2). */
	if (!solicited_only)
		atomic_store(&cq->armed, SHCA_ARMED);
	else if (atomic_load(&cq->armed) == SHCA_UNARMED)
		atomic_store(&cq->armed, SHCA_ARMED_SOLICITED);
	lock_drop(&cq->lock);
	if (!ibcq->channel ||
	    !shca_channel_is_waited_for(to_comp_channel(ibcq->channel)))
		engine_watch(cq->engine);
	return 0;
}

bool shca_cq_waits(struct ibv_cq *ibcq, uint32_t *head, uint32_t *count)
{
	struct shca_cq *cq = to_cq(ibcq);
	bool waits;

	lock_take(&cq->lock);
	*head = atomic_load_explicit(&cq->head, memory_order_relaxed);
	*count = cq_count(cq);
	waits = *count && !cq->mod_pending &&
		atomic_load(&cq->armed) == SHCA_ARMED;
	lock_drop(&cq->lock);
	return waits;
}

bool shca_cq_holds(struct shca_cq *cq, uint32_t qpn)
{
	uint32_t i, tail;
	bool any = false;

	lock_take(&cq->lock);
	i = atomic_load_explicit(&cq->head, memory_order_relaxed);
	tail = atomic_load_explicit(&cq->tail, memory_order_relaxed);
	for (; i != tail && !any; i++)
		any = cq->ring[i & (cq->depth - 1)].wc.qp_num == qpn;
	lock_drop(&cq->lock);
	return any;
}

void shca_cq_clean(struct shca_cq *cq, uint32_t qpn)
{
	uint32_t i, kept, tail;

	lock_take(&cq->lock);
	i = kept = atomic_load_explicit(&cq->head, memory_order_relaxed);
	tail = atomic_load_explicit(&cq->tail, memory_order_relaxed);
	for (; i != tail; i++) {
		struct shca_cqe *cqe = &cq->ring[i & (cq->depth - 1)];

		if (cqe->wc.qp_num != qpn)
			cq->ring[kept++ & (cq->depth - 1)] = *cqe;
	}
	atomic_store_explicit(&cq->tail, kept, memory_order_release);
	lock_drop(&cq->lock);
}

/* Iterating: ibv_cq_ex */

static bool cq_next(struct shca_cq *cq)
{
	uint32_t head;
	bool any;

	if (cq_empty(cq))
		return false;
	await_answer(cq);
	lock_take(&cq->lock);
	any = !cq_empty(cq);
	if (any) {
		head = atomic_load_explicit(&cq->head, memory_order_relaxed);
		cq->cur = cq->ring[head & (cq->depth - 1)];
		atomic_store_explicit(&cq->head, head + 1,
				      memory_order_relaxed);
		cq->ex.wr_id = cq->cur.wc.wr_id;
		cq->ex.status = cq->cur.wc.status;
	}
	lock_drop(&cq->lock);
	if (any && tracing()) {
		trace_forget();
		shca_record_polled(&cq->cur.wc, 1);
	}
	return any;
}

static int cq_start_poll(struct ibv_cq_ex *ex, struct ibv_poll_cq_attr *attr)
{
	struct shca_cq *cq = (struct shca_cq *)ex;

	if (engine_dead(cq->engine))
		return EIO;
	if (attr && attr->comp_mask)
		return EINVAL;
	if (!cq->single_threaded)
		lock_take(&cq->poll_lock);
	if (cq_next(cq))
		return 0;
	engine_poll(cq->engine, cq_armed(cq));
	if (cq_next(cq))
		return 0;
	if (!cq->single_threaded)
		lock_drop(&cq->poll_lock);
	return ENOENT;
}

static int cq_next_poll(struct ibv_cq_ex *ex)
{
	struct shca_cq *cq = (struct shca_cq *)ex;

	if (engine_dead(cq->engine))
		return EIO;
	return cq_next(cq) ? 0 : ENOENT;
}

static void cq_end_poll(struct ibv_cq_ex *ex)
{
	struct shca_cq *cq = (struct shca_cq *)ex;

	if (!cq->single_threaded)
		lock_drop(&cq->poll_lock);
}

#define READ(type, name, field)                                                \
	static type name(struct ibv_cq_ex *ex)                                 \
	{                                                                      \
		return (type)((struct shca_cq *)ex)->cur.field;                \
	}

READ(enum ibv_wc_opcode, read_opcode, wc.opcode)
READ(uint32_t, read_vendor_err, wc.vendor_err)
READ(uint32_t, read_byte_len, wc.byte_len)
READ(__be32, read_imm_data, wc.imm_data)
READ(uint32_t, read_qp_num, wc.qp_num)
READ(uint32_t, read_src_qp, wc.src_qp)
READ(unsigned int, read_wc_flags, wc.wc_flags)
READ(uint32_t, read_slid, wc.slid)
READ(uint8_t, read_sl, wc.sl)
READ(uint8_t, read_dlid_path_bits, wc.dlid_path_bits)
READ(uint64_t, read_completion_ts, ts)

/* CLOCK_REALTIME less our clock, as of a moment between two readings of the
 * latter, *within each other. */
static uint64_t wall_sample(uint64_t *within)
{
	uint64_t offset = 0;

	*within = UINT64_MAX;
	for (int i = 0; i < 5 && *within > WALL_SURE_NS; i++) {
		const uint64_t before = clock_ns();
		struct timespec ts;
		uint64_t gap;

		clock_gettime(CLOCK_REALTIME, &ts);
		gap = clock_ns() - before;
		if (gap >= *within)
			continue;
		*within = gap;
		offset = (uint64_t)ts.tv_sec * 1000000000 +
			 (uint64_t)ts.tv_nsec - before - gap / 2;
	}
	return offset;
}

/*
 * One offset for all, so that wall-clock times are in the order of the
 * completions. Both clocks are slewed alike: it changes when somebody sets the
 * time, which is looked for once a second.
 */
static uint64_t wall_offset(uint64_t now)
{
	static _Atomic uint64_t offset, looked;
	uint64_t was = atomic_load(&looked), is = atomic_load(&offset), new,
		 within;

	if (is && (int64_t)(now - was) < 1000000000)
		return is;
	if (is && !atomic_compare_exchange_strong(&looked, &was, now))
		return is;
	new = wall_sample(&within);
	if (is && (within > WALL_STEP_NS ||
		   new - is + WALL_STEP_NS < 2 * WALL_STEP_NS))
		return is;
	atomic_store(&looked, now);
	/* Of several that are the first, one counts. */
	if (!atomic_compare_exchange_strong(&offset, &is, new))
		return is;
	return new;
}

static uint64_t read_wallclock(struct ibv_cq_ex *ex)
{
	const uint64_t ts = ((struct shca_cq *)ex)->cur.ts;

	return ts + wall_offset(ts);
}

static void cq_readers(struct ibv_cq_ex *ex, uint64_t wc_flags)
{
	ex->start_poll = cq_start_poll;
	ex->next_poll = cq_next_poll;
	ex->end_poll = cq_end_poll;
	ex->read_opcode = read_opcode;
	ex->read_vendor_err = read_vendor_err;
	ex->read_wc_flags = read_wc_flags;
	ex->read_byte_len = read_byte_len;
	ex->read_imm_data = read_imm_data;
	ex->read_qp_num = read_qp_num;
	ex->read_src_qp = read_src_qp;
	ex->read_slid = read_slid;
	ex->read_sl = read_sl;
	ex->read_dlid_path_bits = read_dlid_path_bits;
	if (wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP)
		ex->read_completion_ts = read_completion_ts;
	if (wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)
		ex->read_completion_wallclock_ns = read_wallclock;
}

/* Beginning and end */

/*
 * Hardware rounds up, and no program has met a CQ of one entry there. Some rely
 * on that: ib_send_lat -e takes one completion per event, and when packets are
 * lost an event may stand for two.
 */
#define DEPTH_MIN 16

static uint32_t depth_for(uint32_t cqe)
{
	uint32_t depth = DEPTH_MIN;

	while (depth < cqe)
		depth *= 2;
	return depth;
}

static struct shca_cqe *ring_alloc(const struct shca_cq *cq, uint32_t depth)
{
	return qp_mem_alloc(&cq->mem, depth * sizeof(struct shca_cqe),
			    SHCA_MEM_CQ);
}

static int cq_init_check(const struct ibv_context *ibctx,
			 const struct ibv_cq_init_attr_ex *attr)
{
	const uint32_t known =
		IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
	const uint32_t flags =
		attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS ? attr->flags : 0;
	int err;

	if (attr->comp_mask & ~known || flags & ~FLAGS_KNOWN ||
	    attr->wc_flags & ~(uint64_t)WC_KNOWN)
		return why(
			-EOPNOTSUPP,
			"comp_mask 0x%x, flags 0x%x or wc_flags 0x%llx request "
			"what this device does not have: 0x%x, 0x%x, 0x%llx",
			attr->comp_mask, flags,
			(unsigned long long)attr->wc_flags,
			attr->comp_mask & ~known, flags & ~FLAGS_KNOWN,
			(unsigned long long)(attr->wc_flags &
					     ~(uint64_t)WC_KNOWN));
	/* Only a parent domain, for its allocator. */
	if (attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_PD) {
		err = attr->parent_domain ?
			      shca_check(attr->parent_domain, SHCA_PD) :
			      why(-EINVAL, "parent_domain is NULL");
		if (!err && !to_pd(attr->parent_domain)->parent)
			err = why(-EINVAL, "parent_domain is a plain PD: "
					   "ibv_alloc_parent_domain() makes "
					   "the other kind");
		if (err)
			return err;
	}
	if (!attr->cqe || attr->cqe > SHCA_MAX_CQE)
		return why(-EINVAL, "cqe is %d, not in 1..%d", (int)attr->cqe,
			   SHCA_MAX_CQE);
	if (attr->comp_vector >= (uint32_t)ibctx->num_comp_vectors)
		return why(-EINVAL,
			   "comp_vector is %d, but the device has %d "
			   "(context->num_comp_vectors), counted from 0",
			   (int)attr->comp_vector, ibctx->num_comp_vectors);
	return 0;
}

static struct shca_cq *cq_new(struct ibv_context *ibctx,
			      const struct ibv_cq_init_attr_ex *attr)
{
	const uint32_t flags =
		attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS ? attr->flags : 0;
	struct shca_cq *cq = calloc(1, sizeof(*cq));

	if (!cq)
		return NULL;
	if (attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_PD)
		cq->parent = attr->parent_domain;
	cq->mem = shca_pd_mem(cq->parent);
	cq->depth = depth_for(attr->cqe);
	cq->ring = ring_alloc(cq, cq->depth);
	if (!cq->ring) {
		free(cq);
		return NULL;
	}
	cq->mod_fd = -1;
	cq->engine = to_ctx(ibctx)->engine;
	cq->ignore_overrun = flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
	cq->single_threaded = flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
	cq->want_ts = attr->wc_flags &
		      (IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
		       IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK);
	cq->ex.context = ibctx;
	cq->ex.channel = attr->channel;
	cq->ex.cq_context = attr->cq_context;
	/* Checked, no program has more than it asked for by luck. */
	cq->ex.cqe = check_on() ? (int)attr->cqe : (int)cq->depth;
	pthread_mutex_init(&cq->ex.mutex, NULL);
	pthread_cond_init(&cq->ex.cond, NULL);
	cq_readers(&cq->ex, attr->wc_flags);
	return cq;
}

int shca_cq_create(struct ibv_context *ibctx,
		   const struct ibv_cq_init_attr_ex *attr, struct ibv_cq **out)
{
	struct shca_context *ctx = to_ctx(ibctx);
	struct shca_cq *cq;
	int err;

	if (engine_dead(ctx->engine))
		return -EIO;
	err = engine_fault(FAULT_CREATE_CQ) ?: cq_init_check(ibctx, attr);
	if (!err)
		err = shca_count(ctx->engine, SHCA_CQ);
	if (err)
		return err;
	cq = cq_new(ibctx, attr);
	if (!cq) {
		shca_uncount(ctx->engine, SHCA_CQ);
		return -ENOMEM;
	}
	if (cq->parent)
		shca_pd_get(cq->parent);
	if (attr->channel) {
		struct shca_channel *ch = to_comp_channel(attr->channel);

		pthread_mutex_lock(&ch->lock);
		ch->ch.refcnt++;
		pthread_mutex_unlock(&ch->lock);
	}
	atomic_fetch_add(&ctx->users, 1);
	if (check_on()) {
		shca_check_readers(&cq->ex);
		check_ops->cq_created((struct ibv_cq *)&cq->ex, cq->ex.cqe);
	}
	shca_live_add(&cq->live, &cq->ex, SHCA_CQ);
	*out = (struct ibv_cq *)&cq->ex;
	return 0;
}

int shca_cq_resize(struct ibv_cq *ibcq, int cqe)
{
	struct shca_cq *cq = to_cq(ibcq);
	struct shca_cqe *ring;
	int err = engine_fault(FAULT_RESIZE_CQ) ?: shca_check(ibcq, SHCA_CQ);
	uint32_t depth, i;

	if (err)
		return err;
	if (cqe < 1 || cqe > SHCA_MAX_CQE)
		return why(-EINVAL, "cqe is %d, not in 1..%d", cqe,
			   SHCA_MAX_CQE);
	depth = depth_for((uint32_t)cqe);
	ring = ring_alloc(cq, depth);
	if (!ring)
		return -ENOMEM;
	lock_take(&cq->lock);
	if (cq_count(cq) > (uint32_t)cqe) {
		err = why(-EINVAL,
			  "cqe is %d, but %u completions wait in the CQ: poll "
			  "them first",
			  cqe, cq_count(cq));
	} else {
		struct shca_cqe *old = cq->ring;

		for (i = atomic_load(&cq->head); i != atomic_load(&cq->tail);
		     i++)
			ring[i & (depth - 1)] = old[i & (cq->depth - 1)];
		cq->ring = ring;
		cq->depth = depth;
		ibcq->cqe = check_on() ? cqe : (int)depth;
		ring = old;
	}
	lock_drop(&cq->lock);
	qp_mem_free(&cq->mem, ring);
	if (!err && check_on())
		check_ops->cq_resized(ibcq, cqe);
	return err;
}

int shca_cq_destroy(struct ibv_cq *ibcq)
{
	struct shca_cq *cq = to_cq(ibcq);
	int err = shca_check(ibcq, SHCA_CQ);
	struct shca_context *ctx;
	uint32_t reported = 0;

	if (err)
		return err;
	if (atomic_load(&cq->users))
		return shca_busy(ibcq, "the CQ");
	shca_live_remove(&cq->live);
	ctx = to_ctx(ibcq->context);
	late_remove(cq);
	if (ibcq->channel)
		reported =
			shca_channel_clean(to_comp_channel(ibcq->channel), cq);
	shca_wait_acks(&ibcq->mutex, &ibcq->cond, &ibcq->comp_events_completed,
		       reported, ibcq, "ibv_destroy_cq()");
	shca_async_drop(ctx, ibcq, SHCA_CQ);
	if (check_on())
		check_ops->cq_gone(ibcq);
	if (ibcq->channel) {
		struct shca_channel *ch = to_comp_channel(ibcq->channel);

		pthread_mutex_lock(&ch->lock);
		ch->ch.refcnt--;
		pthread_mutex_unlock(&ch->lock);
	}
	shca_uncount(cq->engine, SHCA_CQ);
	atomic_fetch_sub(&ctx->users, 1);
	qp_mem_free(&cq->mem, cq->ring);
	if (cq->parent)
		shca_pd_put(cq->parent);
	free(cq);
	return 0;
}

int shca_cqs_init(struct engine *e)
{
	struct shca_process *proc = to_process(e);

	pthread_mutex_init(&proc->cqs.late_lock, NULL);
	return shca_channels_init(e);
}

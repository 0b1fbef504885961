/*
 * context.c - device contexts: their slots, and asynchronous events
 *
 * The slots are called by code that <infiniband/verbs.h> inlines into programs,
 * so errors are positive errno values here, as in src/ibverbs. The slot of an
 * operation that does not exist is NULL, except where programs do not check;
 * there it is a function that fails.
 */
#include "verbs.h"

#include "base/fd_high.h"
#include "base/sys.h"
#include "transport/record.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/param.h>
#include <unistd.h>

/* Event queues */

int shca_token_fd(void)
{
	int fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);

	return fd < 0 ? -errno : fd;
}

void shca_token_put(int fd, uint64_t n)
{
	/* Fails only beyond 2^64 events. */
	if (sys_write(fd, &n, sizeof(n)) < 0)
		return;
}

int shca_token_get(int fd)
{
	uint64_t one;

	/* A cancellation point for a thread that waits: no lock is held. */
	return read(fd, &one, sizeof(one)) < 0 ? -errno : 0;
}

void shca_token_drop(int fd)
{
	uint64_t one;

	/*
	 * Not on Linux before 5.8; there a reader that was woken for nothing
	 * finds an empty queue and reads again.
	 */
	if (sys_read_nowait(fd, &one, sizeof(one)) < 0)
		return;
}

/* Waits for acknowledgements */

static struct {
	pthread_mutex_t lock; /* innermost */
	struct shca_ack_wait *first;
} ack_waits = { .lock = PTHREAD_MUTEX_INITIALIZER };

void shca_ack_wait_begin(struct shca_ack_wait *w, const char *call,
			 const char *ack, uint32_t missing)
{
	*w = (struct shca_ack_wait){
		.call = call,
		.ack = ack,
		.missing = missing,
		.tid = (pid_t)syscall(SYS_gettid),
		.since_ns = clock_ns(),
	};
	pthread_mutex_lock(&ack_waits.lock);
	w->next = ack_waits.first;
	ack_waits.first = w;
	pthread_mutex_unlock(&ack_waits.lock);
}

void shca_ack_wait_end(void *wait)
{
	struct shca_ack_wait **p;

	pthread_mutex_lock(&ack_waits.lock);
	for (p = &ack_waits.first; *p && *p != wait; p = &(*p)->next)
		;
	if (*p)
		*p = (*p)->next;
	pthread_mutex_unlock(&ack_waits.lock);
}

bool shca_ack_wait_of(pid_t tid, struct shca_ack_wait *out)
{
	const struct shca_ack_wait *w;

	pthread_mutex_lock(&ack_waits.lock);
	for (w = ack_waits.first; w && w->tid != tid; w = w->next)
		;
	if (w)
		*out = *w;
	pthread_mutex_unlock(&ack_waits.lock);
	return w;
}

void shca_ack_waits_forked(void)
{
	pthread_mutex_init(&ack_waits.lock, NULL);
	ack_waits.first = NULL;
}

static void unlock(void *mutex)
{
	pthread_mutex_unlock(mutex);
}

/* The mutex is held. */
static bool acked_soon(pthread_mutex_t *mutex, pthread_cond_t *cond,
		       const uint32_t *completed, uint32_t reported)
{
	struct timespec late;

	clock_gettime(CLOCK_MONOTONIC, &late);
	late.tv_sec += CHECK_UNACKED_S;
	while (*completed != reported)
		if (pthread_cond_clockwait(cond, mutex, CLOCK_MONOTONIC, &late))
			break;
	return *completed == reported;
}

void shca_wait_acks(pthread_mutex_t *mutex, pthread_cond_t *cond,
		    const uint32_t *completed, uint32_t reported,
		    struct ibv_cq *cq, const char *call)
{
	const char *acked_by =
		cq ? "ibv_ack_cq_events()" : "ibv_ack_async_event()";
	struct shca_ack_wait w;

	pthread_mutex_lock(mutex);
	/* A cancellation point, as in rdma-core: it may last for ever. */
	pthread_cleanup_push(unlock, mutex);
	if (*completed != reported) {
		shca_ack_wait_begin(&w, call, acked_by, reported - *completed);
		pthread_cleanup_push(shca_ack_wait_end, &w);
		if (check_on() && !acked_soon(mutex, cond, completed, reported))
			check_ops->unacked(cq, call, acked_by,
					   reported - *completed);
		while (*completed != reported)
			pthread_cond_wait(cond, mutex);
		pthread_cleanup_pop(true);
	}
	pthread_cleanup_pop(true);
}

/* Asynchronous events */

static bool is_cq_event(enum ibv_event_type type)
{
	return type == IBV_EVENT_CQ_ERR;
}

static bool is_srq_event(enum ibv_event_type type)
{
	return type == IBV_EVENT_SRQ_ERR || type == IBV_EVENT_SRQ_LIMIT_REACHED;
}

static bool is_qp_event(enum ibv_event_type type)
{
	switch (type) {
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		return true;
	default:
		return false;
	}
}

/* Where the events reported for an event's object are counted; NULL: it has no
 * object. */
static uint32_t *reported_of(const struct ibv_async_event *ev)
{
	if (is_cq_event(ev->event_type))
		return &to_cq(ev->element.cq)->async_reported;
	if (is_srq_event(ev->event_type))
		return &to_srq(ev->element.srq)->async_reported;
	if (is_qp_event(ev->event_type))
		return &to_qp(ev->element.qp)->async_reported;
	return NULL;
}

void shca_async_raise(struct shca_context *ctx,
		      const struct ibv_async_event *ev)
{
	struct shca_async *a = calloc(1, sizeof(*a));

	if (!a)
		return;
	a->ev = *ev;
	if (tracing())
		trace_keep(TRACE_ASYNC, 0, ev->event_type, 0, 0, 0);
	pthread_mutex_lock(&ctx->async_lock);
	*ctx->async_tail = a;
	ctx->async_tail = &a->next;
	shca_token_put(ctx->v.context.async_fd, 1);
	pthread_mutex_unlock(&ctx->async_lock);
}

int shca_async_get(struct ibv_context *ibctx, struct ibv_async_event *ev)
{
	struct shca_context *ctx = to_ctx(ibctx);
	struct shca_async *a;
	int err;

	if (engine_dead(ctx->engine))
		return -EIO;
	/* Addresses come and go without QPs too; the thread watches them. */
	err = engine_start(ctx->engine);
	if (err)
		return err;
	do {
		err = shca_token_get(ibctx->async_fd);
		if (err)
			return err;
		pthread_mutex_lock(&ctx->async_lock);
		a = ctx->async_head;
		if (a) {
			uint32_t *count = reported_of(&a->ev);

			if (count)
				++*count;
			ctx->async_head = a->next;
			if (!a->next)
				ctx->async_tail = &ctx->async_head;
		}
		pthread_mutex_unlock(&ctx->async_lock);
	} while (!a);
	*ev = a->ev;
	free(a);
	return 0;
}

static void count_ack(pthread_mutex_t *mutex, pthread_cond_t *cond,
		      uint32_t *count)
{
	pthread_mutex_lock(mutex);
	++*count;
	pthread_cond_signal(cond);
	pthread_mutex_unlock(mutex);
}

void shca_async_ack(struct ibv_async_event *ev)
{
	if (is_cq_event(ev->event_type)) {
		struct ibv_cq *cq = ev->element.cq;

		count_ack(&cq->mutex, &cq->cond, &cq->async_events_completed);
	} else if (is_srq_event(ev->event_type)) {
		struct ibv_srq *srq = ev->element.srq;

		count_ack(&srq->mutex, &srq->cond, &srq->events_completed);
	} else if (is_qp_event(ev->event_type)) {
		struct ibv_qp *qp = ev->element.qp;

		count_ack(&qp->mutex, &qp->cond, &qp->events_completed);
	}
}

void shca_async_drop(struct shca_context *ctx, void *object,
		     enum shca_kind kind)
{
	struct shca_async **p, *a;
	uint32_t count = 0;

	pthread_mutex_lock(&ctx->async_lock);
	for (p = &ctx->async_head; (a = *p);) {
		/* The union's members are pointers, or a port's number. */
		if (reported_of(&a->ev) && a->ev.element.qp == object) {
			*p = a->next;
			free(a);
			shca_token_drop(ctx->v.context.async_fd);
		} else {
			p = &a->next;
		}
	}
	ctx->async_tail = p;
	if (kind == SHCA_CQ)
		count = to_cq(object)->async_reported;
	else if (kind == SHCA_SRQ)
		count = to_srq(object)->async_reported;
	else if (kind == SHCA_QP)
		count = to_qp(object)->async_reported;
	pthread_mutex_unlock(&ctx->async_lock);

	if (kind == SHCA_CQ) {
		struct ibv_cq *cq = object;

		shca_wait_acks(&cq->mutex, &cq->cond,
			       &cq->async_events_completed, count, NULL,
			       "ibv_destroy_cq()");
	} else if (kind == SHCA_SRQ) {
		struct ibv_srq *srq = object;

		shca_wait_acks(&srq->mutex, &srq->cond, &srq->events_completed,
			       count, NULL, "ibv_destroy_srq()");
	} else if (kind == SHCA_QP) {
		struct ibv_qp *qp = object;

		shca_wait_acks(&qp->mutex, &qp->cond, &qp->events_completed,
			       count, NULL, "ibv_destroy_qp()");
	}
}

/* Slots */

static void *slot_gone(void)
{
	errno = EOPNOTSUPP;
	return NULL;
}

static int slot_compat_query_port(struct ibv_context *ctx, uint8_t port,
				  struct _compat_ibv_port_attr *out)
{
	return number(shca_query_port_compat(ctx, port, out));
}

static int slot_query_port(struct ibv_context *ctx, uint8_t port,
			   struct ibv_port_attr *out, size_t size)
{
	struct ibv_port_attr attr;
	int err;

	shca_netdevs_look(ctx);
	err = shca_query_port(to_ctx(ctx)->dev, port, &attr);
	if (err)
		return number(err);
	/* The struct grows with the headers that the program saw. */
	memset(out, 0, size);
	memcpy(out, &attr, MIN(size, sizeof(attr)));
	return 0;
}

static int slot_query_device_ex(struct ibv_context *ctx,
				const struct ibv_query_device_ex_input *input,
				struct ibv_device_attr_ex *attr, size_t size)
{
	if (input && input->comp_mask)
		return number(-EINVAL);
	return number(shca_query_device_ex(ctx, attr, size));
}

static int slot_query_rt_values(struct ibv_context *ctx,
				struct ibv_values_ex *values)
{
	uint32_t asked = values->comp_mask;

	(void)ctx;
	values->comp_mask = asked & IBV_VALUES_MASK_RAW_CLOCK;
	/* In ticks of hca_core_clock, all of it in tv_nsec, as other providers
	 * return it. */
	if (values->comp_mask)
		values->raw_clock =
			(struct timespec){ .tv_nsec = (long)clock_ns() };
	return 0;
}

static struct ibv_cq_ex *slot_create_cq_ex(struct ibv_context *ctx,
					   struct ibv_cq_init_attr_ex *attr)
{
	struct ibv_cq *cq;

	return POINTER(shca_cq_create(ctx, attr, &cq), &to_cq(cq)->ex);
}

static int slot_modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *attr)
{
	return number(shca_cq_modify(cq, attr));
}

static struct ibv_qp *slot_create_qp_ex(struct ibv_context *ctx,
					struct ibv_qp_init_attr_ex *attr)
{
	struct ibv_qp *qp;

	return POINTER(shca_qp_create(ctx, attr, &qp), qp);
}

static struct ibv_srq *slot_create_srq_ex(struct ibv_context *ctx,
					  struct ibv_srq_init_attr_ex *attr)
{
	struct ibv_srq *srq;

	(void)ctx;
	return POINTER(shca_srq_create(attr, &srq), srq);
}

static int slot_get_srq_num(struct ibv_srq *ibsrq, uint32_t *num)
{
	struct shca_srq *srq = to_srq(ibsrq);
	int err = shca_check(ibsrq, SHCA_SRQ);

	if (!err && srq->type != IBV_SRQT_XRC)
		err = why(-EINVAL, "only an XRC SRQ has a number");
	if (err)
		return number(err);
	*num = srq->num;
	return 0;
}

static struct ibv_xrcd *slot_open_xrcd(struct ibv_context *ctx,
				       struct ibv_xrcd_init_attr *attr)
{
	struct ibv_xrcd *xrcd;

	return POINTER(shca_xrcd_open(ctx, attr, &xrcd), xrcd);
}

static int slot_close_xrcd(struct ibv_xrcd *xrcd)
{
	return number(shca_xrcd_close(xrcd));
}

static struct ibv_qp *slot_open_qp(struct ibv_context *ctx,
				   struct ibv_qp_open_attr *attr)
{
	struct ibv_qp *qp;

	return POINTER(shca_xrc_qp_open(ctx, attr, &qp), qp);
}

static struct ibv_mw *slot_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	struct ibv_mw *mw;

	return POINTER(shca_mw_alloc(pd, type, &mw), mw);
}

static int slot_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw,
			struct ibv_mw_bind *bind)
{
	return number(shca_mw_bind(qp, mw, bind));
}

static int slot_dealloc_mw(struct ibv_mw *mw)
{
	return number(shca_mw_free(mw));
}

static struct ibv_mr *slot_alloc_null_mr(struct ibv_pd *pd)
{
	struct ibv_mr *mr;

	return POINTER(shca_mr_null(pd, &mr), mr);
}

static int slot_advise_mr(struct ibv_pd *pd, enum ibv_advise_mr_advice advice,
			  uint32_t flags, struct ibv_sge *sge, uint32_t n)
{
	return number(shca_mr_advise(pd, advice, flags, sge, n));
}

static struct ibv_dm *slot_alloc_dm(struct ibv_context *ctx,
				    struct ibv_alloc_dm_attr *attr)
{
	struct ibv_dm *dm;

	return POINTER(shca_dm_alloc(ctx, attr, &dm), dm);
}

static int slot_free_dm(struct ibv_dm *dm)
{
	return number(shca_dm_free(dm));
}

static struct ibv_mr *slot_reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *dm,
				     uint64_t offset, size_t length,
				     unsigned int access)
{
	struct ibv_mr *mr;

	return POINTER(shca_mr_dm(pd, dm, offset, length, access, &mr), mr);
}

static struct ibv_td *slot_alloc_td(struct ibv_context *ctx,
				    struct ibv_td_init_attr *attr)
{
	struct ibv_td *td;

	return POINTER(shca_td_alloc(ctx, attr, &td), td);
}

static int slot_dealloc_td(struct ibv_td *td)
{
	return number(shca_td_free(td));
}

static struct ibv_pd *
slot_alloc_parent_domain(struct ibv_context *ctx,
			 struct ibv_parent_domain_init_attr *attr)
{
	struct ibv_pd *pd;

	return POINTER(shca_pd_parent(ctx, attr, &pd), pd);
}

static int slot_req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
	if (check_on())
		check_ops->cq_armed(cq);
	return number(engine_fault(FAULT_REQ_NOTIFY_CQ) ?:
			      shca_cq_notify(cq, solicited_only));
}

static int slot_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr,
			      struct ibv_recv_wr **bad)
{
	return number(shca_srq_post(srq, wr, bad));
}

static int slot_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr,
			  struct ibv_send_wr **bad)
{
	return number(shca_qp_post_send(qp, wr, bad));
}

static int slot_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr,
			  struct ibv_recv_wr **bad)
{
	return number(shca_qp_post_recv(qp, wr, bad));
}

static void slots_fill(struct verbs_context *v)
{
	struct ibv_context_ops *ops = &v->context.ops;
	void *(**compat)(void) = (void *(**)(void))(void *)ops;
	size_t i;

	for (i = 0; i < sizeof(*ops) / sizeof(*compat); i++)
		compat[i] = slot_gone;
	ops->_compat_query_port = slot_compat_query_port;
	ops->alloc_mw = slot_alloc_mw;
	ops->bind_mw = slot_bind_mw;
	ops->dealloc_mw = slot_dealloc_mw;
	ops->poll_cq = shca_cq_poll;
	ops->req_notify_cq = slot_req_notify_cq;
	ops->post_srq_recv = slot_post_srq_recv;
	ops->post_send = slot_post_send;
	ops->post_recv = slot_post_recv;

	v->query_port = slot_query_port;
	v->query_device_ex = slot_query_device_ex;
	v->query_rt_values = slot_query_rt_values;
	v->create_cq_ex = slot_create_cq_ex;
	v->modify_cq = slot_modify_cq;
	v->create_qp_ex = slot_create_qp_ex;
	v->create_srq_ex = slot_create_srq_ex;
	v->get_srq_num = slot_get_srq_num;
	v->open_xrcd = slot_open_xrcd;
	v->close_xrcd = slot_close_xrcd;
	v->open_qp = slot_open_qp;
	v->alloc_null_mr = slot_alloc_null_mr;
	v->advise_mr = slot_advise_mr;
	v->alloc_dm = slot_alloc_dm;
	v->free_dm = slot_free_dm;
	v->reg_dm_mr = slot_reg_dm_mr;
	v->alloc_td = slot_alloc_td;
	v->dealloc_td = slot_dealloc_td;
	v->alloc_parent_domain = slot_alloc_parent_domain;
	v->sz = sizeof(*v);
}

/* Contexts */

/* Makes a command file, or, where that is not possible, some descriptor. */
static int cmd_open(struct shca_context *ctx)
{
	struct ibv_context *ibctx = &ctx->v.context;
	int err = shca_file_create(ctx->engine, ibctx->device->name,
				   &ibctx->cmd_fd, &ctx->file);

	if (!err)
		return 0;
	ctx->file = NULL;
	ibctx->cmd_fd = fd_high(eventfd(0, EFD_CLOEXEC));
	return ibctx->cmd_fd < 0 ? -errno : 0;
}

int shca_context_create(struct shca_device *dev, struct engine *e, int cmd_fd,
			struct shca_file *file, struct ibv_context **out)
{
	struct shca_context *ctx = calloc(1, sizeof(*ctx));
	struct ibv_context *ibctx;
	int err = -ENOMEM;

	if (!ctx)
		return err;
	ibctx = &ctx->v.context;
	ctx->dev = dev;
	ctx->async_tail = &ctx->async_head;
	pthread_mutex_init(&ctx->async_lock, NULL);
	slots_fill(&ctx->v);
	ibctx->device = &dev->dev;
	ibctx->num_comp_vectors = 1;
	ibctx->abi_compat = __VERBS_ABI_IS_EXTENDED;
	pthread_mutex_init(&ibctx->mutex, NULL);
	ibctx->async_fd = shca_token_fd();
	if (ibctx->async_fd < 0) {
		err = ibctx->async_fd;
		goto err_free;
	}
	ctx->engine = e;
	if (check_on())
		shca_check_slots(&ctx->v.context.ops);
	ctx->file = file;
	ibctx->cmd_fd = cmd_fd;
	err = file ? 0 : cmd_open(ctx);
	if (err)
		goto err_async;
	shca_context_add(ctx->engine, ctx);
	*out = ibctx;
	return 0;

err_async:
	sys_close(ibctx->async_fd);
err_free:
	free(ctx);
	return err;
}

bool shca_context_unused(struct ibv_context *ctx)
{
	/*
	 * Closing does not release objects of the context, ibv_open_device(3),
	 * so what these depend on stays as well.
	 */
	if (!atomic_load(&to_ctx(ctx)->users))
		return true;
	if (check_on() && check_ops->wants_leaks())
		shca_live_leaked(ctx, "ibv_close_device()");
	return false;
}

void shca_context_destroy(struct ibv_context *ibctx)
{
	struct shca_context *ctx = to_ctx(ibctx);
	struct shca_async *a;

	shca_context_remove(ctx->engine, ctx);
	while ((a = ctx->async_head)) {
		ctx->async_head = a->next;
		free(a);
	}
	shca_file_put(ctx->file);
	sys_close(ibctx->cmd_fd);
	sys_close(ibctx->async_fd);
	free(ctx);
}

/*
 * context.c - device contexts: their slots, and asynchronous events
 *
 * The slots are called by code that <infiniband/verbs.h> inlines into programs,
 * so here, as in src/ibverbs, errors are positive errno values. A slot that is
 * NULL is how an operation says that it does not exist, except where programs
 * do not look; those lead to functions that fail.
 */
#include "engine.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/param.h>
#include <sys/uio.h>
#include <unistd.h>

/* Event queues */

int shca_token_fd(void)
{
	int fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);

	return fd < 0 ? -errno : fd;
}

void shca_token_put(int fd)
{
	const uint64_t one = 1;

	/* Fails only beyond 2^64 events. */
	if (write(fd, &one, sizeof(one)) < 0)
		return;
}

int shca_token_get(int fd)
{
	uint64_t one;

	return read(fd, &one, sizeof(one)) < 0 ? -errno : 0;
}

void shca_token_drop(int fd)
{
	uint64_t one;
	struct iovec iov = { &one, sizeof(one) };

	/*
	 * Linux before 5.8 cannot; then whoever is woken in vain sees an empty
	 * queue and reads on.
	 */
	if (preadv2(fd, &iov, 1, -1, RWF_NOWAIT) < 0)
		return;
}

void shca_wait_acks(pthread_mutex_t *mutex, pthread_cond_t *cond,
		    const uint32_t *completed, uint32_t reported)
{
	pthread_mutex_lock(mutex);
	while (*completed != reported)
		pthread_cond_wait(cond, mutex);
	pthread_mutex_unlock(mutex);
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

/* The count of events handed out of an event's object, or NULL: no object. */
static uint32_t *reported(const struct ibv_async_event *ev)
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
	pthread_mutex_lock(&ctx->async_lock);
	*ctx->async_tail = a;
	ctx->async_tail = &a->next;
	shca_token_put(ctx->v.context.async_fd);
	pthread_mutex_unlock(&ctx->async_lock);
}

int shca_async_get(struct ibv_context *ibctx, struct ibv_async_event *ev)
{
	struct shca_context *ctx = to_ctx(ibctx);
	struct shca_async *a;
	int err;

	if (engine_dead(ctx->engine))
		return -EIO;
	do {
		err = shca_token_get(ibctx->async_fd);
		if (err)
			return err;
		pthread_mutex_lock(&ctx->async_lock);
		a = ctx->async_head;
		if (a) {
			uint32_t *count = reported(&a->ev);

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

static void ack(pthread_mutex_t *mutex, pthread_cond_t *cond, uint32_t *count)
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

		ack(&cq->mutex, &cq->cond, &cq->async_events_completed);
	} else if (is_srq_event(ev->event_type)) {
		struct ibv_srq *srq = ev->element.srq;

		ack(&srq->mutex, &srq->cond, &srq->events_completed);
	} else if (is_qp_event(ev->event_type)) {
		struct ibv_qp *qp = ev->element.qp;

		ack(&qp->mutex, &qp->cond, &qp->events_completed);
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
		if (reported(&a->ev) && a->ev.element.qp == object) {
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
			       &cq->async_events_completed, count);
	} else if (kind == SHCA_SRQ) {
		struct ibv_srq *srq = object;

		shca_wait_acks(&srq->mutex, &srq->cond, &srq->events_completed,
			       count);
	} else if (kind == SHCA_QP) {
		struct ibv_qp *qp = object;

		shca_wait_acks(&qp->mutex, &qp->cond, &qp->events_completed,
			       count);
	}
}

/* Slots */

static void *slot_gone(void)
{
	errno = EOPNOTSUPP;
	return NULL;
}

/* The struct of old headers ends where port_cap_flags2 begins. */
static int slot_compat_query_port(struct ibv_context *ctx, uint8_t port,
				  struct _compat_ibv_port_attr *out)
{
	struct ibv_port_attr attr;
	int err = shca_query_port(to_ctx(ctx)->dev, port, &attr);

	if (!err)
		memcpy(out, &attr,
		       offsetof(struct ibv_port_attr, port_cap_flags2));
	return -err;
}

static int slot_query_port(struct ibv_context *ctx, uint8_t port,
			   struct ibv_port_attr *out, size_t size)
{
	struct ibv_port_attr attr;
	int err = shca_query_port(to_ctx(ctx)->dev, port, &attr);

	if (err)
		return -err;
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
		return EINVAL;
	return -shca_query_device_ex(ctx, attr, size);
}

static int slot_query_rt_values(struct ibv_context *ctx,
				struct ibv_values_ex *values)
{
	uint32_t asked = values->comp_mask;

	(void)ctx;
	values->comp_mask = asked & IBV_VALUES_MASK_RAW_CLOCK;
	/* In ticks of hca_core_clock, as others put it: all in tv_nsec. */
	if (values->comp_mask)
		values->raw_clock =
			(struct timespec){ .tv_nsec = (long)clock_ns() };
	return 0;
}

static struct ibv_cq_ex *slot_create_cq_ex(struct ibv_context *ctx,
					   struct ibv_cq_init_attr_ex *attr)
{
	struct ibv_cq *cq;
	int err = shca_cq_create(ctx, attr, &cq);

	if (err) {
		errno = -err;
		return NULL;
	}
	return &to_cq(cq)->ex;
}

static struct ibv_qp *slot_create_qp_ex(struct ibv_context *ctx,
					struct ibv_qp_init_attr_ex *attr)
{
	struct ibv_qp *qp;
	int err = shca_qp_create(ctx, attr, &qp);

	if (err) {
		errno = -err;
		return NULL;
	}
	return qp;
}

static struct ibv_srq *slot_create_srq_ex(struct ibv_context *ctx,
					  struct ibv_srq_init_attr_ex *ex)
{
	struct ibv_srq_init_attr attr = { ex->srq_context, ex->attr };
	const uint32_t known = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
	struct ibv_srq *srq;
	int err = 0;

	(void)ctx;
	if ((ex->comp_mask & ~known) ||
	    ((ex->comp_mask & IBV_SRQ_INIT_ATTR_TYPE) &&
	     ex->srq_type != IBV_SRQT_BASIC))
		err = -EOPNOTSUPP;
	else if (!(ex->comp_mask & IBV_SRQ_INIT_ATTR_PD))
		err = -EINVAL;
	if (!err)
		err = shca_srq_create(ex->pd, &attr, &srq);
	if (err) {
		errno = -err;
		return NULL;
	}
	ex->attr = attr.attr;
	return srq;
}

static int slot_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw,
			struct ibv_mw_bind *bind)
{
	(void)qp;
	(void)mw;
	(void)bind;
	return EOPNOTSUPP;
}

static int slot_dealloc_mw(struct ibv_mw *mw)
{
	(void)mw;
	return EOPNOTSUPP;
}

static int slot_close_xrcd(struct ibv_xrcd *xrcd)
{
	(void)xrcd;
	return EOPNOTSUPP;
}

static int slot_req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
	return -shca_cq_notify(cq, solicited_only);
}

static int slot_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr,
			      struct ibv_recv_wr **bad)
{
	return -shca_srq_post(srq, wr, bad);
}

static int slot_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr,
			  struct ibv_send_wr **bad)
{
	return -shca_qp_post_send(qp, wr, bad);
}

static int slot_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr,
			  struct ibv_recv_wr **bad)
{
	return -shca_qp_post_recv(qp, wr, bad);
}

static void slots_fill(struct verbs_context *v)
{
	struct ibv_context_ops *ops = &v->context.ops;
	void *(**compat)(void) = (void *(**)(void))(void *)ops;
	size_t i;

	for (i = 0; i < sizeof(*ops) / sizeof(*compat); i++)
		compat[i] = slot_gone;
	ops->_compat_query_port = slot_compat_query_port;
	ops->alloc_mw = NULL;
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
	v->create_qp_ex = slot_create_qp_ex;
	v->create_srq_ex = slot_create_srq_ex;
	v->close_xrcd = slot_close_xrcd;
	v->sz = sizeof(*v);
}

/* Contexts */

int shca_open(struct ibv_device *ibdev, struct ibv_context **out)
{
	struct shca_device *dev = to_device(ibdev);
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
	ibctx->device = ibdev;
	ibctx->num_comp_vectors = 1;
	ibctx->abi_compat = __VERBS_ABI_IS_EXTENDED;
	pthread_mutex_init(&ibctx->mutex, NULL);
	ibctx->async_fd = shca_token_fd();
	if (ibctx->async_fd < 0) {
		err = ibctx->async_fd;
		goto err_free;
	}
	/* Nothing is to be had from it, but it is a descriptor. */
	ibctx->cmd_fd = eventfd(0, EFD_CLOEXEC);
	if (ibctx->cmd_fd < 0) {
		err = -errno;
		goto err_async;
	}
	err = engine_get(&ctx->engine);
	if (err)
		goto err_cmd;
	shca_device_rescan(dev, ctx->engine);
	pthread_mutex_lock(&ctx->engine->ctx_lock);
	ctx->next = ctx->engine->contexts;
	ctx->engine->contexts = ctx;
	pthread_mutex_unlock(&ctx->engine->ctx_lock);
	*out = ibctx;
	return 0;

err_cmd:
	close(ibctx->cmd_fd);
err_async:
	close(ibctx->async_fd);
err_free:
	free(ctx);
	return err;
}

int shca_close(struct ibv_context *ibctx)
{
	struct shca_context *ctx = to_ctx(ibctx), **p;
	struct shca_async *a;

	if (engine_dead(ctx->engine))
		return -EIO;
	/*
	 * Closing does not release what was made from a context, ibv_open_
	 * device(3); so what that stands on has to stay as well.
	 */
	if (atomic_load(&ctx->users))
		return 0;
	pthread_mutex_lock(&ctx->engine->ctx_lock);
	for (p = &ctx->engine->contexts; *p != ctx; p = &(*p)->next)
		;
	*p = ctx->next;
	pthread_mutex_unlock(&ctx->engine->ctx_lock);
	engine_put(ctx->engine);
	while ((a = ctx->async_head)) {
		ctx->async_head = a->next;
		free(a);
	}
	close(ibctx->cmd_fd);
	close(ibctx->async_fd);
	free(ctx);
	return 0;
}

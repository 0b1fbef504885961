/*
 * channel.c - completion channels
 *
 * A channel is a queue of CQs that have an event, with a descriptor that counts
 * them. A thread that waits for an event receives packets itself meanwhile; the
 * event that it raises so for itself is not counted. Nor are those that it has
 * raised besides, or when it posted (over iWARP a SEND completes there), if it
 * comes for them at once, as far as is known (UNTOKENED_NS): with a SEND's
 * completion there is mostly the ACK's.
 */
#include "verbs.h"

#include "base/fd_high.h"
#include "base/retired.h"
#include "hooks/trace.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>

/* So many events in a row that were there when they were asked for: the program
 * sleeps in poll(2). */
#define CHANNEL_PROMPT 4

/*
 * After so long events that were left in a channel are counted, when somebody
 * looks at the clock. That may be late for a program that sleeps in poll(2)
 * next, so it happens to such a program less and less often.
 */
#define UNTOKENED_NS 200000
#define UNTOKENED_SKIP_MAX 1024

/* The thread that has raised them has received. Then the channel may go. */
static void late_count(struct engine_after *after)
{
	struct shca_channel *ch =
		container_of(after, struct shca_channel, after);
	uint32_t n;

	pthread_mutex_lock(&ch->lock);
	while ((n = ch->late)) {
		ch->late = 0;
		pthread_mutex_unlock(&ch->lock);
		shca_token_put(ch->ch.fd, n);
		pthread_mutex_lock(&ch->lock);
	}
	ch->awaited = false;
	pthread_mutex_unlock(&ch->lock);
}

/* Until no thread has events to count. Lock held. */
static void late_wait(struct shca_channel *ch)
{
	while (ch->awaited) {
		pthread_mutex_unlock(&ch->lock);
		sched_yield();
		pthread_mutex_lock(&ch->lock);
	}
}

int shca_channel_create(struct ibv_context *ibctx,
			struct ibv_comp_channel **out)
{
	struct shca_context *ctx = to_ctx(ibctx);
	struct shca_channel *ch;
	int err = engine_dead(ctx->engine) ?
			  -EIO :
			  engine_fault(FAULT_CREATE_COMP_CHANNEL);

	if (err)
		return err;
	ch = calloc(1, sizeof(*ch));
	if (!ch)
		return -ENOMEM;
	ch->ch.context = ibctx;
	ch->after.run = late_count;
	ch->ch.fd = shca_token_fd();
	if (ch->ch.fd < 0) {
		err = ch->ch.fd;

		free(ch);
		return err;
	}
	pthread_mutex_init(&ch->lock, NULL);
	atomic_store(&ch->prompt, CHANNEL_PROMPT); /* nobody has waited yet */
	atomic_fetch_add(&ctx->users, 1);
	*out = &ch->ch;
	return 0;
}

bool shca_channel_is_waited_for(const struct shca_channel *ch)
{
	return atomic_load_explicit(&ch->prompt, memory_order_relaxed) <
	       CHANNEL_PROMPT;
}

/* Gives the events of a channel that have no token one each. Lock held. */
static void untokened_count(struct shca_channel *ch)
{
	if (ch->untokened)
		shca_token_put(ch->ch.fd, ch->untokened);
	ch->untokened = 0;
}

/* Leaves them as they are until the alarm, if that is likely to be for long
 * enough. Lock held. */
static void untokened_leave(struct shca_channel *ch)
{
	struct engine *e = to_ctx(ch->ch.context)->engine;
	struct shca_process *proc = to_process(e);

	if (!ch->untokened)
		return;
	if (!backoff_skips(&ch->left) && !ch->reading &&
	    engine_alarm_is_free(e) && lock_try(&proc->cqs.untokened_lock)) {
		if (!proc->cqs.untokened || proc->cqs.untokened == ch) {
			proc->cqs.untokened = ch;
			engine_alarm_set(e, &proc->cqs.untokened_alarm,
					 clock_ns() + UNTOKENED_NS);
			lock_drop(&proc->cqs.untokened_lock);
			return;
		}
		lock_drop(&proc->cqs.untokened_lock);
	}
	untokened_count(ch);
}

/* They have been taken in time. Lock held. */
static void untokened_taken(struct shca_channel *ch)
{
	struct shca_process *proc = to_process(to_ctx(ch->ch.context)->engine);

	backoff_succeed(&ch->left);
	if (!lock_try(&proc->cqs.untokened_lock))
		return;
	if (proc->cqs.untokened == ch) {
		proc->cqs.untokened = NULL;
		atomic_store(&proc->cqs.untokened_alarm.due, UINT64_MAX);
	}
	lock_drop(&proc->cqs.untokened_lock);
}

static void channel_late(struct engine *e, uint64_t now)
{
	static const struct backoff_rule rule = { .first = 1,
						  .most = UNTOKENED_SKIP_MAX };
	struct shca_process *proc = to_process(e);
	struct shca_channel *ch;

	lock_take(&proc->cqs.untokened_lock);
	ch = proc->cqs.untokened;
	if (ch && atomic_load(&proc->cqs.untokened_alarm.due) <= now) {
		pthread_mutex_lock(&ch->lock);
		if (ch->untokened && !ch->waits) {
			backoff_fail(&ch->left, &rule);
			untokened_count(ch);
		}
		pthread_mutex_unlock(&ch->lock);
		proc->cqs.untokened = NULL;
	}
	if (!proc->cqs.untokened)
		atomic_store(&proc->cqs.untokened_alarm.due, UINT64_MAX);
	lock_drop(&proc->cqs.untokened_lock);
}

int shca_channel_destroy(struct ibv_comp_channel *ibch)
{
	struct shca_context *ctx = to_ctx(ibch->context);
	struct shca_channel *ch = to_comp_channel(ibch);
	struct shca_process *proc = to_process(ctx->engine);
	static struct retired channels;
	bool busy, used;

	if (engine_dead(ctx->engine))
		return -EIO;
	pthread_mutex_lock(&ch->lock);
	busy = ibch->refcnt;
	if (!busy)
		late_wait(ch);
	/* Unless it is this thread, which has jumped out of it. */
	used = (ch->waits && !pthread_equal(ch->waiter, pthread_self())) ||
	       ch->reading;
	atomic_store(&ch->closed, !busy);
	pthread_mutex_unlock(&ch->lock);
	if (busy)
		return shca_busy(ibch, "the completion channel");
	lock_take(&proc->cqs.untokened_lock);
	if (proc->cqs.untokened == ch)
		proc->cqs.untokened = NULL;
	lock_drop(&proc->cqs.untokened_lock);
	/* A thread that sleeps there sleeps on, as with a NIC. */
	if (used) {
		retired_keep(&channels, &ch->kept);
	} else {
		sys_close(ibch->fd);
		free(ch->queue);
		free(retire(&channels, ch));
	}
	atomic_fetch_sub(&ctx->users, 1);
	return 0;
}

static bool channel_grow(struct shca_channel *ch)
{
	uint32_t size = ch->size ? 2 * ch->size : 16, i;
	struct shca_cq **queue = calloc(size, sizeof(struct shca_cq *));

	if (!queue)
		return false;
	for (i = ch->head; i != ch->tail; i++)
		queue[i & (size - 1)] = ch->queue[i & (ch->size - 1)];
	free(ch->queue);
	ch->queue = queue;
	ch->size = size;
	return true;
}

void shca_channel_push(struct shca_channel *ch, struct shca_cq *cq)
{
	bool counted = false;

	pthread_mutex_lock(&ch->lock);
	if (ch->tail - ch->head < ch->size || channel_grow(ch)) {
		ch->queue[ch->tail++ & (ch->size - 1)] = cq;
		counted = !(ch->waits || shca_channel_is_waited_for(ch)) ||
			  !pthread_equal(ch->waiter, pthread_self());
		ch->untokened += !counted;
		if (!counted && !ch->waits)
			untokened_leave(ch);
	}
	if (counted && (ch->awaited || engine_after(&ch->after))) {
		ch->awaited = true;
		ch->late++;
		counted = false;
	}
	pthread_mutex_unlock(&ch->lock);
	/* Whom it wakes takes the lock. */
	if (counted)
		shca_token_put(ch->ch.fd, 1);
}

uint32_t shca_channel_clean(struct shca_channel *ch, struct shca_cq *cq)
{
	uint32_t i, kept, reported;

	pthread_mutex_lock(&ch->lock);
	for (i = kept = ch->head; i != ch->tail; i++) {
		struct shca_cq *other = ch->queue[i & (ch->size - 1)];

		if (other != cq)
			ch->queue[kept++ & (ch->size - 1)] = other;
		else if (ch->untokened)
			ch->untokened--;
		else if (ch->late)
			ch->late--;
		else
			shca_token_drop(ch->ch.fd);
	}
	ch->tail = kept;
	reported = cq->comp_reported;
	pthread_mutex_unlock(&ch->lock);
	return reported;
}

/* The oldest event, or NULL: its CQ was destroyed meanwhile. Lock held. */
static struct shca_cq *channel_pop(struct shca_channel *ch)
{
	struct shca_cq *cq;

	if (ch->head == ch->tail)
		return NULL;
	cq = ch->queue[ch->head++ & (ch->size - 1)];
	cq->comp_reported++;
	return cq;
}

static bool channel_arrived(void *arg)
{
	struct shca_channel *ch = arg;
	bool any;

	pthread_mutex_lock(&ch->lock);
	any = ch->head != ch->tail;
	pthread_mutex_unlock(&ch->lock);
	return any;
}

/* Takes an event that has no token, if there is one. Lock held. */
static struct shca_cq *untokened_take(struct shca_channel *ch)
{
	if (!ch->untokened)
		return NULL;
	ch->untokened--;
	return channel_pop(ch);
}

/* The thread that waits does so no longer. What it leaves is counted. */
static void wait_end(void *arg)
{
	struct shca_channel *ch = arg;

	pthread_mutex_lock(&ch->lock);
	ch->waits = false;
	untokened_count(ch);
	pthread_mutex_unlock(&ch->lock);
}

/* False: an event is there, in *cq or to be read, or another thread waits for
 * it. */
static bool wait_begin(struct shca_channel *ch, struct shca_cq **cq)
{
	bool free = false;

	pthread_mutex_lock(&ch->lock);
	/* It was in here, and has jumped out of a signal's handler. */
	if (ch->waits && pthread_equal(ch->waiter, pthread_self()))
		ch->waits = false;
	if (!ch->waits) {
		*cq = untokened_take(ch);
		if (*cq && !ch->untokened)
			untokened_taken(ch);
		free = ch->head == ch->tail && !*cq;
	}
	if (free) {
		ch->waits = true;
		ch->waiter = pthread_self();
	}
	pthread_mutex_unlock(&ch->lock);
	return free;
}

/*
 * Waits by making progress. On return *cq is what the event is for, or NULL: it
 * is to be read from the descriptor. Returns 0 or -errno; -EBUSY: others make
 * progress.
 */
static int channel_wait(struct shca_channel *ch, struct shca_cq **cq)
{
	struct engine *e = to_ctx(ch->ch.context)->engine;
	int err;

	*cq = NULL;
	if (!wait_begin(ch, cq)) {
		if (!*cq)
			atomic_fetch_add(&ch->prompt, 1);
		return 0;
	}
	pthread_cleanup_push(wait_end, ch);
	if (fcntl(ch->ch.fd, F_GETFL) & O_NONBLOCK) {
		err = 0;
	} else {
		err = engine_sleep(e, ch->ch.fd, channel_arrived, ch);
		atomic_store(&ch->prompt, err == -EBUSY ? CHANNEL_PROMPT : 0);
	}
	pthread_mutex_lock(&ch->lock);
	*cq = untokened_take(ch);
	if (*cq) {
		ch->waits = false;
		untokened_leave(ch);
	}
	pthread_mutex_unlock(&ch->lock);
	pthread_cleanup_pop(!*cq);
	return *cq ? 0 : err;
}

static void reads_no_more(void *arg)
{
	struct shca_channel *ch = arg;

	pthread_mutex_lock(&ch->lock);
	ch->reading--;
	pthread_mutex_unlock(&ch->lock);
}

/* As shca_token_get(). */
static int channel_read(struct shca_channel *ch)
{
	int err;

	pthread_mutex_lock(&ch->lock);
	ch->reading++;
	/* The thread that has waited may have left some just now. */
	if (!ch->waits)
		untokened_count(ch);
	pthread_mutex_unlock(&ch->lock);
	pthread_cleanup_push(reads_no_more, ch);
	err = shca_token_get(ch->ch.fd);
	pthread_cleanup_pop(true);
	return err;
}

static void waits_no_more(void *e)
{
	engine_waits(e, false);
}

/* The same while the thread or another one receives. */
static int channel_read_aside(struct shca_channel *ch)
{
	struct engine *e = to_ctx(ch->ch.context)->engine;
	int err;

	engine_waits(e, true);
	pthread_cleanup_push(waits_no_more, e);
	err = channel_read(ch);
	pthread_cleanup_pop(true);
	return err;
}

static int channel_get(struct ibv_comp_channel *ibch, struct ibv_cq **out,
		       void **cq_context)
{
	struct shca_channel *ch = to_comp_channel(ibch);
	struct shca_cq *cq;
	int err;

	if (atomic_load(&ch->closed))
		return why(-EBADF, "the completion channel has been destroyed");
	if (engine_dead(to_ctx(ibch->context)->engine))
		return -EIO;
	do {
		err = channel_wait(ch, &cq);
		if (err == -EBUSY)
			err = channel_read_aside(ch);
		else if (!err && !cq)
			err = channel_read(ch);
		if (err)
			return err;
		if (!cq) {
			pthread_mutex_lock(&ch->lock);
			cq = channel_pop(ch);
			pthread_mutex_unlock(&ch->lock);
		}
	} while (!cq);
	if (tracing())
		trace_put(TRACE_CQ_GOT, 0, 0, (uintptr_t)cq, 0, 0, 0);
	*out = (struct ibv_cq *)&cq->ex;
	*cq_context = cq->ex.cq_context;
	return 0;
}

int shca_channel_get(struct ibv_comp_channel *ibch, struct ibv_cq **out,
		     void **cq_context)
{
	return check_on() ? shca_check_channel_get(ibch, out, cq_context,
						   channel_get) :
			    channel_get(ibch, out, cq_context);
}

int shca_channels_init(struct engine *e)
{
	engine_alarm_add(e, &to_process(e)->cqs.untokened_alarm, channel_late);
	return 0;
}

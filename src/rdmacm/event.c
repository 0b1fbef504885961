/*
 * event.c - event channels
 *
 * A channel is a queue of events and an eventfd that can be read while there
 * are any, so that it blocks, polls and obeys O_NONBLOCK like any descriptor.
 * It is written to when the first event comes and read when the last one goes:
 * many at once cost no more than one. Whatever an event
 * needs verbs for is done in the program's thread, when it fetches the event:
 * if the peer has accepted, the QP is moved on and RTU sent; if it has refused,
 * the QP goes to the error state; a QP is attached to the group that was
 * joined. So a program that does not fetch its events makes no connections, as
 * with the library of rdma-core.
 */
#include "cma.h"

#include "base/bytes.h"
#include "base/retired.h"
#include "base/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

struct cma_channel *cma_channel_new(void)
{
	struct cma_channel *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	c->tail = &c->head;
	c->ch.fd = eventfd(0, EFD_CLOEXEC);
	if (c->ch.fd < 0) {
		free(c);
		return NULL;
	}
	return c;
}

struct rdma_event_channel *rdma_create_event_channel(void)
{
	struct cma_channel *c;
	int err = cma_init();

	if (err) {
		errno = -err;
		return NULL;
	}
	c = cma_channel_new();
	return c ? &c->ch : NULL;
}

static void signal_fd(struct cma_channel *c)
{
	const uint64_t one = 1;

	c->signalled = true;
	c->signals++;
	if (sys_write(c->ch.fd, &one, sizeof(one)) < 0)
		return; /* the count is at its maximum */
}

/*
 * It does not wait: a thread in rdma_get_cm_event() may have read it at the
 * same time, and needs the lock that is held here.
 */
static void unsignal_fd(struct cma_channel *c)
{
	struct pollfd p = { .fd = c->ch.fd, .events = POLLIN };
	uint64_t n;

	c->signalled = false;
	if (sys_read_nowait(c->ch.fd, &n, sizeof(n)) > 0 || errno == EAGAIN)
		return;
	/* Linux before 5.8 */
	if (sys_poll(&p, 1, 0) == 1 && sys_read(c->ch.fd, &n, sizeof(n)) < 0)
		return;
}

/* Before the lock is let go: the descriptor shows whether there are events. */
static void settle_fd(struct cma_channel *c)
{
	if (c->head && !c->signalled)
		signal_fd(c);
	else if (!c->head && c->signalled)
		unsignal_fd(c);
}

struct cma_event *cma_event_new(struct cma_id *id, enum rdma_cm_event_type type,
				int status)
{
	struct cma_event *ev = calloc(1, sizeof(*ev));

	if (!ev)
		return NULL;
	ev->ev.id = &id->id;
	ev->ev.event = type;
	ev->ev.status = status;
	ev->owner = id;
	return ev;
}

/* Drops an event; that of a request takes its new identifier along. */
static void discard_event(struct cma_event *ev, struct cm *cm)
{
	if (ev->ev.event == RDMA_CM_EVENT_CONNECT_REQUEST) {
		struct cma_id *id = to_id(ev->ev.id);

		cma_id_detach(id, cm);
		cma_id_free(id);
	}
	free(ev);
}

/* Both are the same but for a request and its new identifier. */
static void count_event(struct cma_event *ev, uint32_t n)
{
	struct cma_id *id = to_id(ev->ev.id);

	id->waiting += n;
	if (ev->owner != id)
		ev->owner->waiting += n;
}

static void append_event(struct cma_channel *c, struct cma_event *ev)
{
	count_event(ev, 1);
	ev->next = NULL;
	*c->tail = ev;
	c->tail = &ev->next;
	settle_fd(c);
}

static struct cma_event *take_event(struct cma_channel *c,
				    struct cma_event **at)
{
	struct cma_event *ev = *at;

	count_event(ev, -1u);
	*at = ev->next;
	if (c->tail == &ev->next)
		c->tail = at;
	settle_fd(c);
	return ev;
}

void cma_event_post(struct cma_event *ev)
{
	struct rdma_event_channel *ch = ev->owner->id.channel;

	if (ch)
		append_event(to_channel(ch), ev);
	else
		free(ev);
}

void cma_events_move(struct cma_id *id, struct cma_channel *from,
		     struct cma_channel *to, struct cm *cm)
{
	struct cma_event **at = &from->head, *ev, *dropped = NULL;

	for (uint32_t n = id->waiting; n && *at;) {
		if ((*at)->owner != id && (*at)->ev.id != &id->id) {
			at = &(*at)->next;
			continue;
		}
		n--;
		ev = take_event(from, at);
		if (to) {
			append_event(to, ev);
		} else {
			ev->next = dropped;
			dropped = ev;
		}
	}
	/* the identifier of a request may have events here, too */
	while ((ev = dropped)) {
		dropped = ev->next;
		if (ev->ev.event == RDMA_CM_EVENT_CONNECT_REQUEST &&
		    ev->ev.id != &id->id)
			discard_event(ev, cm);
		else
			free(ev);
	}
}

void cma_mc_events_drop(struct cma_id *id, const struct cma_mc *mc)
{
	struct cma_channel *c;
	struct cma_event **at;

	if (!id->id.channel)
		return;
	c = to_channel(id->id.channel);
	at = &c->head;
	while (*at) {
		if ((*at)->mc != mc) {
			at = &(*at)->next;
			continue;
		}
		free(take_event(c, at));
	}
}

/*
 * A thread that is in rdma_get_cm_event() while its channel is destroyed, as
 * rping's is, sleeps on, as with the library of rdma-core. One that comes later
 * finds that it is closed.
 */
void rdma_destroy_event_channel(struct rdma_event_channel *channel)
{
	static struct retired channels;
	struct cma_channel *c = to_channel(channel);
	struct cma_event *ev;
	struct cm *cm;

	if (!engine_dead(cma_engine())) {
		cm = cma_lock();
		if (atomic_load(&c->closed)) {
			cma_unlock();
			return;
		}
		while ((ev = c->head)) {
			take_event(c, &c->head);
			discard_event(ev, cm);
		}
		cma_ids_orphan(c);
		c->blocks = !(fcntl(c->ch.fd, F_GETFL) & O_NONBLOCK);
		atomic_store(&c->closed, true);
		cma_unlock();
	}
	close(c->ch.fd);
	if (atomic_load(&c->readers))
		retired_keep(&channels, &c->kept);
	else
		free(retire(&channels, c));
}

/*
 * A new identifier is on the channel from which its request was fetched: the
 * listener may have moved since the request came in.
 */
static void introduce_id(struct cma_event *ev, struct cma_channel *c,
			 struct cm *cm)
{
	struct cma_id *id = to_id(ev->ev.id);

	ev->owner->backlog++;
	if (id->id.channel == &c->ch)
		return;
	if (id->id.channel)
		cma_events_move(id, to_channel(id->id.channel), c, cm);
	cma_id_set_channel(id, c);
}

/*
 * A connection ends with one event. If it cannot be established because the
 * peer has refused it after all, that refusal, with its reason, waits in the
 * channel and replaces our event.
 */
static struct cma_event *replaced_by_refusal(struct cma_event *ev)
{
	struct cma_id *id = to_id(ev->ev.id);
	struct cma_event *rej = NULL, **at;
	struct cma_channel *c;

	cma_lock();
	if (id->id.channel) {
		c = to_channel(id->id.channel);
		for (at = &c->head; *at; at = &(*at)->next)
			if ((*at)->owner == id &&
			    (*at)->ev.event == RDMA_CM_EVENT_REJECTED)
				break;
		if (*at)
			rej = take_event(c, at);
	}
	cma_unlock();
	if (!rej)
		return ev;
	free(ev);
	return rej;
}

/*
 * Does what belongs to an event when it is fetched, and returns the event that
 * the program gets.
 */
static struct cma_event *process_event(struct cma_event *ev)
{
	struct cma_id *id = to_id(ev->ev.id);

	switch (ev->ev.event) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
	case RDMA_CM_EVENT_ADDR_ERROR:
		if (id->state == CMA_ADDR_QUERY)
			id->state = ev->ev.status ? CMA_ADDR_BOUND :
						    CMA_ADDR_RESOLVED;
		break;
	case RDMA_CM_EVENT_CONNECT_RESPONSE:
		cma_established(id, &ev->ev);
		if (ev->ev.event == RDMA_CM_EVENT_CONNECT_ERROR)
			return replaced_by_refusal(ev);
		break;
	case RDMA_CM_EVENT_REJECTED:
		cma_qp_error(id);
		break;
	case RDMA_CM_EVENT_MULTICAST_JOIN:
		cma_mc_joined(id, ev);
		break;
	default:
		break;
	}
	return ev;
}

static void reader_leaves(void *c)
{
	atomic_fetch_sub(&((struct cma_channel *)c)->readers, 1);
}

/*
 * Whether the program has yet to poll what was completed before this. Programs
 * rely on that order, since a NIC completes at once and the kernel's CM takes
 * its time for a message: libfabric's rxm, having polled an empty CQ, assumes
 * that a connection that has ended brings no more completions. Here another
 * thread may receive the last ACK and the DREQ behind it in one go.
 */
static bool precedes_completions(const struct cma_event *ev)
{
	struct ibv_qp *qp = ev->owner->qp;

	return ev->settle_ns && qp && clock_ns() < ev->settle_ns &&
	       shca_qp_unpolled(qp);
}

/*
 * The descriptor was read by a thread that had seen no events, and that many
 * signals. If there is one more, that is what was read. Of several it may be
 * any, and goes back.
 */
static void channel_woken(struct cma_channel *c, uint64_t signals)
{
	if (c->signalled && c->signals == signals + 1)
		c->signalled = false;
	else if (c->signalled)
		signal_fd(c);
}

#define CATCH_UP_NS 20000000u /* where there is no end of it */

/*
 * One that was here when the channel was destroyed sleeps on, whether it slept,
 * waited for the lock or was about to sleep; the descriptor is closed by then.
 * Unless the program does not want to sleep there.
 */
static int channel_gone(const struct cma_channel *c, bool late)
{
	if (late || !c->blocks)
		return -EBADF;
	for (;;)
		pause();
}

static int fetch_event(struct cma_channel *c, bool late, struct cma_event **out)
{
	const struct timespec ms = { .tv_nsec = 1000000 };
	bool wait, slept = false;
	struct cma_event *ev;
	uint64_t n, signals = 0;
	struct cm *cm;

	for (;;) {
		/* In the child of a fork the queue is the parent's. */
		if (engine_dead(cma_engine()))
			return -EIO;
		cm = cma_lock();
		if (slept)
			channel_woken(c, signals);
		ev = c->head;
		if (ev && ev->settle_ns && !ev->caught_up) {
			/* A DREQ goes by UDP, and overtakes what its sender
			 * has left in shared memory. */
			ev->caught_up = true;
			cma_unlock();
			engine_catch_up(cma_engine(), CATCH_UP_NS);
			slept = false;
			continue;
		}
		wait = ev && precedes_completions(ev);
		if (wait) {
			signal_fd(c); /* wakes epoll again */
			ev = NULL;
		}
		if (ev) {
			take_event(c, &c->head);
			if (ev->ev.event == RDMA_CM_EVENT_CONNECT_REQUEST)
				introduce_id(ev, c, cm);
			pthread_mutex_lock(&cma_ack_lock);
			if (ev->mc)
				ev->mc->reported++;
			else
				ev->owner->reported++;
			pthread_mutex_unlock(&cma_ack_lock);
		}
		signals = c->signals;
		cma_unlock();
		if (ev)
			break;
		if (atomic_load(&c->closed))
			return channel_gone(c, late);
		slept = !wait;
		if (slept && read(c->ch.fd, &n, sizeof(n)) != sizeof(n))
			return atomic_load(&c->closed) ? channel_gone(c, late) :
							 -errno;
		if (wait && (fcntl(c->ch.fd, F_GETFL) & O_NONBLOCK))
			return -EAGAIN;
		if (wait)
			nanosleep(&ms, NULL);
	}
	*out = ev;
	return 0;
}

/* The thread may be cancelled while it sleeps. */
static int fetch_counted(struct cma_channel *c, struct cma_event **out)
{
	bool late;
	int err;

	atomic_fetch_add(&c->readers, 1);
	late = atomic_load(&c->closed);
	pthread_cleanup_push(reader_leaves, c);
	err = fetch_event(c, late, out);
	pthread_cleanup_pop(1);
	return err;
}

int rdma_get_cm_event(struct rdma_event_channel *channel,
		      struct rdma_cm_event **event)
{
	struct cma_event *ev;
	int err;

	if (!event)
		return cma_ret(-EINVAL);
	pthread_testcancel(); /* as it always was, even if it need not sleep */
	err = fetch_counted(to_channel(channel), &ev);
	if (err)
		return cma_ret(err);
	*event = &process_event(ev)->ev;
	return 0;
}

int rdma_ack_cm_event(struct rdma_cm_event *event)
{
	struct cma_event *ev;

	if (!event)
		return cma_ret(-EINVAL);
	ev = container_of(event, struct cma_event, ev);
	pthread_mutex_lock(&cma_ack_lock);
	if (ev->mc)
		ev->mc->completed++;
	else
		ev->owner->completed++;
	pthread_cond_broadcast(&cma_acked);
	pthread_mutex_unlock(&cma_ack_lock);
	free(ev);
	return 0;
}

int cma_complete(struct cma_id *id)
{
	struct rdma_cm_event *ev;

	if (!id->sync)
		return 0;
	if (id->id.event) {
		rdma_ack_cm_event(id->id.event);
		id->id.event = NULL;
	}
	if (rdma_get_cm_event(id->id.channel, &id->id.event))
		return -1;
	ev = id->id.event;
	if (!ev->status)
		return 0;
	/* What the event is about has been reported. */
	errno = ev->event == RDMA_CM_EVENT_REJECTED ? ECONNREFUSED :
						      abs(ev->status);
	return -1;
}

const char *rdma_event_str(enum rdma_cm_event_type event)
{
	static const char *const names[] = {
		[RDMA_CM_EVENT_ADDR_RESOLVED] = "RDMA_CM_EVENT_ADDR_RESOLVED",
		[RDMA_CM_EVENT_ADDR_ERROR] = "RDMA_CM_EVENT_ADDR_ERROR",
		[RDMA_CM_EVENT_ROUTE_RESOLVED] = "RDMA_CM_EVENT_ROUTE_RESOLVED",
		[RDMA_CM_EVENT_ROUTE_ERROR] = "RDMA_CM_EVENT_ROUTE_ERROR",
		[RDMA_CM_EVENT_CONNECT_REQUEST] =
			"RDMA_CM_EVENT_CONNECT_REQUEST",
		[RDMA_CM_EVENT_CONNECT_RESPONSE] =
			"RDMA_CM_EVENT_CONNECT_RESPONSE",
		[RDMA_CM_EVENT_CONNECT_ERROR] = "RDMA_CM_EVENT_CONNECT_ERROR",
		[RDMA_CM_EVENT_UNREACHABLE] = "RDMA_CM_EVENT_UNREACHABLE",
		[RDMA_CM_EVENT_REJECTED] = "RDMA_CM_EVENT_REJECTED",
		[RDMA_CM_EVENT_ESTABLISHED] = "RDMA_CM_EVENT_ESTABLISHED",
		[RDMA_CM_EVENT_DISCONNECTED] = "RDMA_CM_EVENT_DISCONNECTED",
		[RDMA_CM_EVENT_DEVICE_REMOVAL] = "RDMA_CM_EVENT_DEVICE_REMOVAL",
		[RDMA_CM_EVENT_MULTICAST_JOIN] = "RDMA_CM_EVENT_MULTICAST_JOIN",
		[RDMA_CM_EVENT_MULTICAST_ERROR] =
			"RDMA_CM_EVENT_MULTICAST_ERROR",
		[RDMA_CM_EVENT_ADDR_CHANGE] = "RDMA_CM_EVENT_ADDR_CHANGE",
		[RDMA_CM_EVENT_TIMEWAIT_EXIT] = "RDMA_CM_EVENT_TIMEWAIT_EXIT",
	};

	if ((unsigned)event >= ARRAY_SIZE(names))
		return "UNKNOWN EVENT";
	return names[event];
}

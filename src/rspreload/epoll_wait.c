/*
 * epoll_wait.c - waiting at epoll instances that have rsockets in them
 */
#include "base/backoff.h"
#include "process/process.h"
#include "rsockets/wake.h"
#include "rspreload/epoll.h"

#include <errno.h>
#include <rdma/rsocket.h>
#include <string.h>
#include <sys/eventfd.h>

#define BATCH 128
#define HOT 4
#define LATE 3 /* more rounds when the time is over */
#define WOKEN (RSOCK_WOKEN | RSOCK_WOKEN << 1)
#define WITHOUT_POLL (EPOLLET | EPOLLONESHOT | EPOLLWAKEUP | EPOLLEXCLUSIVE)

/* What becomes of those that are not ready. */
enum how {
	PEEK, /* they are armed, unless they are hot */
	SPIN, /* the same, and they do not cool */
	ARM,
};

struct todo {
	bool settle; /* there is more to do, so do not wait */
	bool hot; /* some are hot, and neither ready nor armed */
	bool spun;
};

/* The events of a registration that are true now. Arms it if none is; or not,
 * with peek. */
static uint32_t reg_events(struct rsp_reg *reg, bool peek)
{
	struct rsock_wake w = { .watch = reg->ep->evfd };
	struct pollfd p = { .fd = reg->fd, .events = POLLIN };
	bool connecting = reg->f->state == RSP_CONNECTING;
	socklen_t len = sizeof(w);

	w.events = (short)(connecting ? POLLOUT :
					reg->events & ~WITHOUT_POLL & 0x7fff);
	w.flags = (int)reg->woken;
	if (reg->events & EPOLLET)
		w.flags |= RSOCK_ARM;
	if (peek)
		w.flags |= RSOCK_PEEK;
	reg->woken = 0;
	if (rgetsockopt(reg->f->rfd, SOL_RDMA, RSOCK_WAKE, &w, &len))
		return 0;
	if ((!w.revents || w.flags & RSOCK_ARM) && !peek) {
		rsp_reg_set_fd(reg, 0, w.fds[0]);
		rsp_reg_set_fd(reg, 1, w.fds[1]);
	}
	if (reg->f->state == RSP_LISTENING) {
		rsp_reg_set_shadow(reg, true);
		if (!w.revents && reg->events & EPOLLIN &&
		    rsp_real()->poll(&p, 1, 0) > 0)
			w.revents = POLLIN;
	}
	return (uint32_t)(unsigned short)w.revents;
}

/* Its descriptors must not wake a waiter. */
static void hush_reg(struct rsp_reg *reg)
{
	rsp_reg_set_fd(reg, 0, -1);
	rsp_reg_set_fd(reg, 1, -1);
	rsp_reg_set_shadow(reg, false);
}

static bool is_hot(const struct rsp_reg *reg)
{
	return reg->hot && !(reg->events & EPOLLET) &&
	       reg->f->state == RSP_RSOCK;
}

/* Checks those for which there is reason to; sets what the caller is to do. */
static int ask_all(struct rsp_ep *ep, struct epoll_event *out, int max,
		   enum how how, struct todo *todo)
{
	struct rsp_reg *reg = ep->check, *next;
	uint32_t revents, news;
	bool peek;
	int n = 0;

	todo->hot = false;
	ep->check = NULL;
	ep->check_tail = &ep->check;
	for (; reg; reg = next) {
		next = reg->next_check;
		reg->queued = false;
		if (!reg->f) {
			rsp_reg_free(reg);
			continue;
		}
		if (reg->off && !reg->woken)
			continue;
		if (reg->off || reg->fired) {
			hush_reg(reg);
			continue;
		}
		if (n == max) {
			rsp_reg_ask(reg);
			continue;
		}
		peek = how != ARM && is_hot(reg);
		revents = reg_events(reg, peek);
		if (reg->f->state == RSP_CONNECTING) {
			todo->settle = todo->settle || revents ||
				       rsp_now_ns() >= reg->f->deadline_ns;
			continue;
		}
		if (!revents) {
			reg->reported = 0;
			if (peek)
				rsp_reg_ask(reg);
			todo->hot = todo->hot || peek;
			reg->hot -= reg->hot && how != SPIN;
			continue;
		}
		reg->hot = HOT;
		news = revents & ~reg->reported;
		if (reg->events & EPOLLET) {
			reg->reported |= revents;
			if (!news)
				continue;
		}
		out[n++] = (struct epoll_event){ .events = revents,
						 .data = reg->data };
		if (reg->events & EPOLLONESHOT)
			reg->fired = true;
		else if (!(reg->events & EPOLLET))
			rsp_reg_ask(reg);
	}
	return n;
}

/*
 * A registration of the parent, in its child: both share a listener's shadow
 * only.
 */
static bool inherited_reg(const struct rsp_reg *reg, struct epoll_event *out,
			  int n)
{
	struct pollfd p = { .fd = reg->fd,
			    .events = (short)(reg->events & EPOLLIN) };
	struct epoll_event *ev;

	/* Several of its descriptors may have woken us. */
	for (ev = out; ev < out + n; ev++)
		if (ev->data.u64 == reg->data.u64)
			return false;
	if (!reg->shadow || rsp_real()->poll(&p, 1, 0) <= 0)
		return false;
	*ev = (struct epoll_event){ .events = (uint32_t)p.revents & 0x7fffu,
				    .data = reg->data };
	return true;
}

/* The child waits here, so it claims the listeners that its parent put in. */
static void claim_all(const struct rsp_ep *ep)
{
	struct rsp_fd *f;
	uint32_t i;

	for (i = 1; i < ep->nregs; i++) {
		f = ep->regs[i].shadow ? rsp_find(ep->regs[i].fd) : NULL;
		if (f)
			rsp_claim(f);
	}
}

/*
 * Sorts events of the kernel: registrations are checked, the program's own
 * events stay.
 */
static int sort_events(struct rsp_ep *ep, struct epoll_event *ev, int n)
{
	struct rsp_reg *reg;
	eventfd_t value;
	int i, kept = 0;
	unsigned which;
	uint32_t j;

	for (i = 0; i < n; i++) {
		if (!rsp_ep_owns(ep, &ev[i], &reg, &which)) {
			ev[kept++] = ev[i];
			continue;
		}
		if (reg != ep->regs) {
			if (reg->f) {
				reg->woken |=
					(unsigned)RSOCK_WOKEN << which & WOKEN;
				reg->reported = 0;
				rsp_reg_ask(reg);
			} else if (ep->forked && inherited_reg(reg, ev, kept)) {
				kept++;
			}
			continue;
		}
		/* Parent and child share the eventfd: the parent reads it. */
		if (!ep->forked)
			eventfd_read(ep->evfd, &value);
		for (j = 1; j < ep->nregs; j++)
			if (ep->regs[j].f) {
				ep->regs[j].reported = 0;
				rsp_reg_ask(&ep->regs[j]);
			}
	}
	return kept;
}

/*
 * Settles connections whose result is known; returns the first deadline of the
 * others.
 */
static uint64_t settle_all(struct rsp_ep *ep)
{
	struct {
		struct rsp_fd *f;
		int fd;
	} some[BATCH];
	uint64_t first = 0;
	unsigned n, i, at = 1, total = 0;
	struct rsp_reg *reg;

	/* In batches, since none may be settled under the lock. */
	do {
		n = 0;
		pthread_mutex_lock(&ep->lock);
		for (; at < ep->nregs && n < BATCH; at++) {
			reg = &ep->regs[at];
			if (!reg->f || reg->f->state != RSP_CONNECTING)
				continue;
			some[n].f = reg->f;
			some[n++].fd = reg->fd;
			rsp_reg_ask(reg);
		}
		total += n;
		if (n < BATCH)
			ep->connecting = total;
		pthread_mutex_unlock(&ep->lock);
		for (i = 0; i < n; i++)
			if (rsp_settle(some[i].f, some[i].fd) ==
				    RSP_CONNECTING &&
			    (!first || some[i].f->deadline_ns < first))
				first = some[i].f->deadline_ns;
	} while (n == BATCH);
	return first;
}

/*
 * epoll_pwait(2) of at most BATCH events; a time of 0 is never. The process
 * receives by itself while it waits, if it can.
 */
static int wait_kernel(struct rsp_ep *ep, struct epoll_event *ev, int max,
		       bool now, uint64_t until, uint64_t first,
		       const sigset_t *mask, bool spin)
{
	const struct rsp_real *real = rsp_real();
	int ms = now ? 0 : rsp_remaining(until, first), err;

	if (ms && !ep->forked) {
		if (first && (!until || first < until))
			until = first;
		err = shca_wait(ep->epfd, until ? until : UINT64_MAX, mask,
				spin);
		if (err == -EINTR) {
			errno = EINTR;
			return -1;
		}
		ms = err >= 0 ? 0 : ms;
	}
	return real->epoll_pwait(ep->epfd, ev, max, ms, mask);
}

/*
 * Checks, and if nothing is ready but some are hot, spins before it arms these
 * (base/backoff.h). From then on this thread counts as a waiter.
 */
static int check_regs(struct rsp_ep *ep, struct epoll_event *out, int max,
		      uint64_t until, struct todo *todo)
{
	static __thread struct backoff spins;
	enum how how = PEEK;
	uint64_t now, end = 0;
	int n;

	for (;;) {
		pthread_mutex_lock(&ep->lock);
		/* What is not armed does not wake the others either. */
		n = ask_all(ep, out, max, ep->waiters ? ARM : how, todo);
		if (n || !todo->hot || todo->settle)
			break;
		now = rsp_now_ns();
		if (until && now >= until)
			break;
		pthread_mutex_unlock(&ep->lock);
		if (how == PEEK) {
			how = backoff_skips(&spins) ? ARM : SPIN;
			end = now + BACKOFF_SPIN_NS;
			todo->spun = how == SPIN;
		} else if (now >= end) {
			how = ARM;
		}
	}
	if (n == max && ep->check)
		todo->settle = true; /* there is no room for all */
	ep->waiters++;
	pthread_mutex_unlock(&ep->lock);
	if (todo->spun)
		backoff_spun(&spins, n && rsp_now_ns() < end);
	return n;
}

static int wait_ep(struct rsp_ep *ep, struct epoll_event *out, int max,
		   uint64_t until, const sigset_t *mask)
{
	const struct rsp_real *real = rsp_real();
	struct epoll_event ev[BATCH];
	int n, m, got, room, most;
	unsigned late = 0;
	struct todo todo;
	uint64_t first;

	if (max <= 0) {
		errno = EINVAL;
		return -1;
	}
	for (;;) {
		first = ep->connecting ? settle_all(ep) : 0;
		if (ep->forked)
			claim_all(ep);
		todo = (struct todo){ 0 };
		/*
		 * Every other time, half of the room is left to other
		 * descriptors.
		 */
		most = ep->turn++ & 1 ? max / 2 : max;
		rsp_enter();
		n = check_regs(ep, out, most, until, &todo);
		rsp_leave();
		room = max - n < BATCH ? max - n : BATCH;
		m = room ? wait_kernel(ep, ev, room, n || todo.settle, until,
				       first, mask, !todo.spun) :
			   0;
		got = m;
		pthread_mutex_lock(&ep->lock);
		ep->waiters--;
		if (m > 0) {
			m = sort_events(ep, ev, m);
			memcpy(out + n, ev, (size_t)m * sizeof(*ev));
			n += m;
		}
		pthread_mutex_unlock(&ep->lock);
		if (n)
			return n;
		if (m < 0)
			return -1;
		if (ep->closed) {
			errno = EBADF;
			return until && rsp_now_ns() >= until ? 0 : -1;
		}
		/*
		 * Whatever has woken may be ready: it is checked before the
		 * end, which comes though the kernel has more and more of them.
		 */
		if (until && rsp_now_ns() >= until && !todo.settle &&
		    (got <= 0 || ++late > LATE))
			return 0;
		/*
		 * An event for the parent stays ready until the parent takes
		 * it.
		 */
		if (got > 0 && ep->forked && !late)
			real->poll(NULL, 0, 10);
	}
}

static int wait_put(struct rsp_ep *ep, struct epoll_event *ev, int max,
		    uint64_t until, const sigset_t *mask)
{
	int n = wait_ep(ep, ev, max, until, mask), err = errno;

	rsp_ep_put(ep);
	errno = err;
	return n;
}

int rsp_epoll_wait(int epfd, struct epoll_event *ev, int max, int timeout)
	RSP_EXPORT(epoll_wait);
int rsp_epoll_wait(int epfd, struct epoll_event *ev, int max, int timeout)
{
	struct rsp_ep *ep = rsp_ep_get(epfd);

	return ep ? wait_put(ep, ev, max, rsp_until(timeout), NULL) :
		    rsp_real()->epoll_wait(epfd, ev, max, timeout);
}

int rsp_epoll_pwait(int epfd, struct epoll_event *ev, int max, int timeout,
		    const sigset_t *mask) RSP_EXPORT(epoll_pwait);
int rsp_epoll_pwait(int epfd, struct epoll_event *ev, int max, int timeout,
		    const sigset_t *mask)
{
	struct rsp_ep *ep = rsp_ep_get(epfd);

	return ep ? wait_put(ep, ev, max, rsp_until(timeout), mask) :
		    rsp_real()->epoll_pwait(epfd, ev, max, timeout, mask);
}

int rsp_epoll_pwait2(int epfd, struct epoll_event *ev, int max,
		     const struct timespec *ts, const sigset_t *mask)
	RSP_EXPORT(epoll_pwait2);
int rsp_epoll_pwait2(int epfd, struct epoll_event *ev, int max,
		     const struct timespec *ts, const sigset_t *mask)
{
	struct rsp_ep *ep = rsp_ep_get(epfd);
	uint64_t until;

	if (!ep)
		return rsp_real()->epoll_pwait2(epfd, ev, max, ts, mask);
	if (!rsp_until_of(ts, &until)) {
		rsp_ep_put(ep);
		errno = EINVAL;
		return -1;
	}
	return wait_put(ep, ev, max, until, mask);
}

/*
 * epoll.c - epoll on sockets that may be rsockets
 *
 * A program's epoll instance stays the kernel's. For an rsocket in it, the
 * descriptors that wake an rsocket are put in instead (rsockets/wake.h),
 * with the address of its registration as their data; the program's own data
 * is never such an address, since those are in memory that only we have.
 *
 * Whether an rsocket is ready is asked when there is reason to: after it was
 * registered, when a descriptor of it woke, and again at each wait as long as
 * it is ready, since that is what level-triggered means. All others sleep.
 *
 * Locks: that of an rsp_fd (its list of registrations), then an instance's.
 */
#include "base/aside.h"
#include "rsockets/wake.h"
#include "rspreload/rspreload.h"

#include <errno.h>
#include <limits.h>
#include <rdma/rsocket.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAX_REGS 65536
#define BATCH 128
#define WITHOUT_POLL (EPOLLET | EPOLLONESHOT | EPOLLWAKEUP | EPOLLEXCLUSIVE)

struct ep;

/* One rsocket in one epoll instance. */
struct rsp_reg {
	struct rsp_reg *next; /* of the same rsp_fd, or the next free */
	struct rsp_reg *next_check;
	struct rsp_fd *f; /* NULL: removed */
	struct ep *ep;
	int fd;
	uint32_t events;
	epoll_data_t data;
	int fds[2]; /* in the kernel's instance, or -1 */
	bool shadow; /* fd itself is, too: a listener */
	bool fired; /* one-shot: nothing until it is armed again */
	bool queued; /* in the list of those to ask */
	bool woken; /* a descriptor of it has woken us */
	uint32_t reported; /* edge-triggered: and nothing has happened since */
};

struct ep {
	int epfd, evfd;
	unsigned refs; /* of the table, and of calls */
	_Atomic bool closed;
	bool forked; /* it is the parent's, too, with what is in it */
	unsigned turn;
	pthread_mutex_t lock;
	struct rsp_reg *regs; /* MAX_REGS of them, of which nregs were used */
	uint32_t nregs;
	struct rsp_reg *free;
	struct rsp_reg *check, **check_tail;
	unsigned waiters;
	unsigned connecting; /* registrations that may be RSP_CONNECTING */
};

static struct rsp_table eps;
static pthread_mutex_t eps_lock = PTHREAD_MUTEX_INITIALIZER; /* of refs */

static struct ep *find_ep(int epfd)
{
	_Atomic(void *) *slot = rsp_slot(&eps, epfd, false);

	return slot ? atomic_load_explicit(slot, memory_order_acquire) : NULL;
}

/* With a reference: close() of it may come while another thread waits. */
static struct ep *get_ep(int epfd)
{
	struct ep *ep;

	if (!find_ep(epfd))
		return NULL;
	pthread_mutex_lock(&eps_lock);
	ep = find_ep(epfd);
	if (ep)
		ep->refs++;
	pthread_mutex_unlock(&eps_lock);
	return ep;
}

static void put_ep(struct ep *ep)
{
	unsigned left;

	pthread_mutex_lock(&eps_lock);
	left = --ep->refs;
	pthread_mutex_unlock(&eps_lock);
	if (left)
		return;
	rsp_real()->close(ep->evfd);
	munmap(ep->regs, MAX_REGS * sizeof(*ep->regs));
	pthread_mutex_destroy(&ep->lock);
	free(ep);
}

bool rsp_epoll_any(unsigned fd)
{
	return rsp_slot(&eps, (int)fd, false);
}

static struct ep *make_ep(int epfd)
{
	const struct rsp_real *real = rsp_real();
	_Atomic(void *) *slot = rsp_slot(&eps, epfd, true);
	struct epoll_event ev = { .events = EPOLLIN };
	void *none = NULL;
	struct ep *ep;

	ep = slot ? calloc(1, sizeof(*ep)) : NULL;
	if (!ep) {
		errno = ENOMEM;
		return NULL;
	}
	ep->epfd = epfd;
	ep->refs = 1;
	pthread_mutex_init(&ep->lock, NULL);
	ep->check_tail = &ep->check;
	ep->evfd = -1;
	ep->regs =
		mmap(NULL, MAX_REGS * sizeof(*ep->regs), PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (ep->regs == MAP_FAILED)
		goto err_free;
	ep->evfd = fd_aside(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
	ev.data.ptr = ep->regs; /* the first is never given away */
	ep->nregs = 1;
	if (ep->evfd < 0 || real->epoll_ctl(epfd, EPOLL_CTL_ADD, ep->evfd, &ev))
		goto err_unmap;
	if (atomic_compare_exchange_strong(slot, &none, ep))
		return ep;
	/* Another thread was faster. */
	real->close(ep->evfd);
	munmap(ep->regs, MAX_REGS * sizeof(*ep->regs));
	free(ep);
	return none;

err_unmap:
	if (ep->evfd >= 0)
		real->close(ep->evfd);
	munmap(ep->regs, MAX_REGS * sizeof(*ep->regs));
err_free:
	free(ep);
	return NULL;
}

static bool is_ours(const struct ep *ep, const struct epoll_event *ev)
{
	return (uintptr_t)ev->data.u64 - (uintptr_t)ep->regs <
	       MAX_REGS * sizeof(*ep->regs);
}

/* Under the instance's lock, like all that follows until epoll_ctl(). */
static void ask(struct rsp_reg *reg)
{
	struct ep *ep = reg->ep;

	if (reg->queued)
		return;
	reg->queued = true;
	reg->next_check = NULL;
	*ep->check_tail = reg;
	ep->check_tail = &reg->next_check;
}

static struct rsp_reg *take_reg(struct ep *ep)
{
	struct rsp_reg *reg = ep->free;

	if (reg)
		ep->free = reg->next;
	else if (ep->nregs < MAX_REGS)
		reg = &ep->regs[ep->nregs++];
	return reg;
}

static void give_reg(struct rsp_reg *reg)
{
	reg->next = reg->ep->free;
	reg->ep->free = reg;
}

static void set_fd(struct rsp_reg *reg, int i, int fd)
{
	const struct rsp_real *real = rsp_real();
	struct epoll_event ev = { .events = EPOLLIN, .data.ptr = reg };
	int old = reg->fds[i];

	if (old == fd)
		return;
	if (old >= 0)
		real->epoll_ctl(reg->ep->epfd, EPOLL_CTL_DEL, old, NULL);
	reg->fds[i] = -1;
	if (fd >= 0 && !real->epoll_ctl(reg->ep->epfd, EPOLL_CTL_ADD, fd, &ev))
		reg->fds[i] = fd;
}

static void set_shadow(struct rsp_reg *reg, bool on)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.ptr = reg };

	if (on != reg->shadow)
		rsp_real()->epoll_ctl(reg->ep->epfd,
				      on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL,
				      reg->fd, &ev);
	reg->shadow = on;
}

/* What is true of a registration now; arms it if nothing is. */
static uint32_t look(struct rsp_reg *reg)
{
	struct rsock_wake w = { .watch = reg->ep->evfd };
	struct pollfd p = { .fd = reg->fd, .events = POLLIN };
	bool connecting = reg->f->state == RSP_CONNECTING;
	socklen_t len = sizeof(w);

	w.events = (short)(connecting ? POLLOUT
				      : reg->events & ~WITHOUT_POLL & 0x7fff);
	if (reg->woken)
		w.flags |= RSOCK_WOKEN;
	if (reg->events & EPOLLET)
		w.flags |= RSOCK_ARM;
	reg->woken = false;
	if (rgetsockopt(reg->f->rfd, SOL_RDMA, RSOCK_WAKE, &w, &len))
		return 0;
	if (!w.revents || w.flags & RSOCK_ARM) {
		set_fd(reg, 0, w.fds[0]);
		set_fd(reg, 1, w.fds[1]);
	}
	if (reg->f->state == RSP_LISTENING) {
		set_shadow(reg, true);
		if (!w.revents && reg->events & EPOLLIN &&
		    rsp_real()->poll(&p, 1, 0) > 0)
			w.revents = POLLIN;
	}
	return (uint32_t)(unsigned short)w.revents;
}

/* Asks those for which there is reason to; *settle if a connection is known. */
static int ask_all(struct ep *ep, struct epoll_event *out, int max,
		   bool *settle)
{
	struct rsp_reg *reg = ep->check, *next;
	uint32_t revents, news;
	int n = 0;

	ep->check = NULL;
	ep->check_tail = &ep->check;
	for (; reg; reg = next) {
		next = reg->next_check;
		reg->queued = false;
		if (!reg->f) {
			give_reg(reg);
			continue;
		}
		if (reg->fired) {
			/* Nobody is to be woken by it. */
			set_fd(reg, 0, -1);
			set_fd(reg, 1, -1);
			set_shadow(reg, false);
			continue;
		}
		if (n == max) {
			ask(reg);
			continue;
		}
		revents = look(reg);
		if (reg->f->state == RSP_CONNECTING) {
			*settle = *settle || revents ||
				  rsp_now_ns() >= reg->f->deadline_ns;
			continue;
		}
		if (!revents) {
			reg->reported = 0;
			continue;
		}
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
			ask(reg);
	}
	return n;
}

/*
 * A registration of the parent, in its child: only a listener's shadow is there
 * for both.
 */
static bool inherited(const struct rsp_reg *reg, struct epoll_event *out, int n)
{
	struct pollfd p = { .fd = reg->fd,
			    .events = (short)(reg->events & EPOLLIN) };
	struct epoll_event *ev;

	/* Each of its descriptors may have woken us. */
	for (ev = out; ev < out + n; ev++)
		if (ev->data.u64 == reg->data.u64)
			return false;
	if (!reg->shadow || rsp_real()->poll(&p, 1, 0) <= 0)
		return false;
	*ev = (struct epoll_event){ .events = (uint32_t)p.revents & 0x7fffu,
				    .data = reg->data };
	return true;
}

/* The listeners that the parent put in are the child's now. */
static void claim_all(const struct ep *ep)
{
	struct rsp_fd *f;
	uint32_t i;

	for (i = 1; i < ep->nregs; i++) {
		f = ep->regs[i].shadow ? rsp_find(ep->regs[i].fd) : NULL;
		if (f)
			rsp_claim(f);
	}
}

/* Kernel events into registrations to ask; the program's stay. */
static int sort(struct ep *ep, struct epoll_event *ev, int n)
{
	struct rsp_reg *reg;
	eventfd_t value;
	int i, kept = 0;
	uint32_t j;

	for (i = 0; i < n; i++) {
		if (!is_ours(ep, &ev[i])) {
			ev[kept++] = ev[i];
			continue;
		}
		reg = ev[i].data.ptr;
		if (reg != ep->regs) {
			if (reg->f) {
				reg->woken = true;
				reg->reported = 0;
				ask(reg);
			} else if (ep->forked && inherited(reg, ev, kept)) {
				kept++;
			}
			continue;
		}
		/* Parent and child have it both: the parent takes it. */
		if (!ep->forked)
			eventfd_read(ep->evfd, &value);
		for (j = 1; j < ep->nregs; j++)
			if (ep->regs[j].f) {
				ep->regs[j].reported = 0;
				ask(&ep->regs[j]);
			}
	}
	return kept;
}

/* Lets connections that have become known go on; when the next one must. */
static uint64_t settle_all(struct ep *ep)
{
	struct {
		struct rsp_fd *f;
		int fd;
	} some[BATCH];
	uint64_t first = 0;
	unsigned n, i, at = 1, total = 0;
	struct rsp_reg *reg;

	/* So many at a time: none is looked at under the lock. */
	do {
		n = 0;
		pthread_mutex_lock(&ep->lock);
		for (; at < ep->nregs && n < BATCH; at++) {
			reg = &ep->regs[at];
			if (!reg->f || reg->f->state != RSP_CONNECTING)
				continue;
			some[n].f = reg->f;
			some[n++].fd = reg->fd;
			ask(reg);
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

static int wait_ep(struct ep *ep, struct epoll_event *out, int max,
		   uint64_t until, const sigset_t *mask)
{
	const struct rsp_real *real = rsp_real();
	struct epoll_event ev[BATCH];
	int n, m, got, room, ms, most;
	uint64_t first;
	bool settle;

	if (max <= 0) {
		errno = EINVAL;
		return -1;
	}
	for (;;) {
		first = ep->connecting ? settle_all(ep) : 0;
		if (ep->forked)
			claim_all(ep);
		settle = false;
		rsp_enter();
		pthread_mutex_lock(&ep->lock);
		/* Every other time, all else has its half before rsockets. */
		most = ep->turn++ & 1 ? max / 2 : max;
		n = ask_all(ep, out, most, &settle);
		if (most < max && ep->check)
			settle = true;
		ep->waiters++;
		pthread_mutex_unlock(&ep->lock);
		rsp_leave();
		room = max - n < BATCH ? max - n : BATCH;
		ms = n || settle ? 0 : rsp_remaining(until, first);
		m = room ? real->epoll_pwait(ep->epfd, ev, room, ms, mask) : 0;
		got = m;
		pthread_mutex_lock(&ep->lock);
		ep->waiters--;
		if (m > 0) {
			m = sort(ep, ev, m);
			memcpy(out + n, ev, (size_t)m * sizeof(*ev));
			n += m;
		}
		pthread_mutex_unlock(&ep->lock);
		if (n)
			return n;
		if (m < 0)
			return -1;
		/* What is the parent's stays ready until it looks. */
		if (got > 0 && ep->forked)
			real->poll(NULL, 0, 10);
		if (ep->closed) {
			errno = EBADF;
			return until && rsp_now_ns() >= until ? 0 : -1;
		}
		/* What has woken may be ready: it is asked before the end. */
		if (until && rsp_now_ns() >= until && !ep->check && !settle)
			return 0;
	}
}

static int wait_put(struct ep *ep, struct epoll_event *ev, int max,
		    uint64_t until, const sigset_t *mask)
{
	int n = wait_ep(ep, ev, max, until, mask), err = errno;

	put_ep(ep);
	errno = err;
	return n;
}

int rsp_epoll_wait(int epfd, struct epoll_event *ev, int max, int timeout)
	RSP_EXPORT(epoll_wait);
int rsp_epoll_wait(int epfd, struct epoll_event *ev, int max, int timeout)
{
	struct ep *ep = get_ep(epfd);

	return ep ? wait_put(ep, ev, max, rsp_until(timeout), NULL)
		  : rsp_real()->epoll_wait(epfd, ev, max, timeout);
}

int rsp_epoll_pwait(int epfd, struct epoll_event *ev, int max, int timeout,
		    const sigset_t *mask) RSP_EXPORT(epoll_pwait);
int rsp_epoll_pwait(int epfd, struct epoll_event *ev, int max, int timeout,
		    const sigset_t *mask)
{
	struct ep *ep = get_ep(epfd);

	return ep ? wait_put(ep, ev, max, rsp_until(timeout), mask)
		  : rsp_real()->epoll_pwait(epfd, ev, max, timeout, mask);
}

int rsp_epoll_pwait2(int epfd, struct epoll_event *ev, int max,
		     const struct timespec *ts, const sigset_t *mask)
	RSP_EXPORT(epoll_pwait2);
int rsp_epoll_pwait2(int epfd, struct epoll_event *ev, int max,
		     const struct timespec *ts, const sigset_t *mask)
{
	struct ep *ep = get_ep(epfd);
	uint64_t until;

	if (!ep)
		return rsp_real()->epoll_pwait2(epfd, ev, max, ts, mask);
	if (!rsp_until_of(ts, &until)) {
		put_ep(ep);
		errno = EINVAL;
		return -1;
	}
	return wait_put(ep, ev, max, until, mask);
}

/* Another thread sleeps in the instance: it looks again. */
static void kick(struct ep *ep)
{
	if (ep->waiters)
		eventfd_write(ep->evfd, 1);
}

static struct rsp_reg *find_reg(struct rsp_fd *f, const struct ep *ep, int fd)
{
	struct rsp_reg *reg;

	for (reg = f->regs; reg; reg = reg->next)
		if (reg->ep == ep && reg->fd == fd)
			return reg;
	return NULL;
}

/* Takes it out of everything but the list of f. */
static void remove_reg(struct rsp_reg *reg)
{
	struct ep *ep = reg->ep;
	int watch = -1 - ep->evfd;

	rsetsockopt(reg->f->rfd, SOL_RDMA, RSOCK_WATCH, &watch, sizeof(watch));
	pthread_mutex_lock(&ep->lock);
	set_fd(reg, 0, -1);
	set_fd(reg, 1, -1);
	set_shadow(reg, false);
	reg->f = NULL;
	if (!reg->queued)
		give_reg(reg);
	pthread_mutex_unlock(&ep->lock);
}

static int add_reg(struct ep *ep, struct rsp_fd *f, int fd,
		   const struct epoll_event *ev)
{
	struct rsp_reg *reg;

	if (rsetsockopt(f->rfd, SOL_RDMA, RSOCK_WATCH, &ep->evfd,
			sizeof(ep->evfd)))
		return -1;
	pthread_mutex_lock(&ep->lock);
	reg = take_reg(ep);
	if (!reg) {
		pthread_mutex_unlock(&ep->lock);
		errno = ENOSPC;
		return -1;
	}
	*reg = (struct rsp_reg){ .next = f->regs,
				 .f = f,
				 .ep = ep,
				 .fd = fd,
				 .events = ev->events,
				 .data = ev->data,
				 .fds = { -1, -1 } };
	f->regs = reg;
	ep->connecting += f->state == RSP_CONNECTING;
	ask(reg);
	kick(ep);
	pthread_mutex_unlock(&ep->lock);
	return 0;
}

static void del_reg(struct rsp_fd *f, struct rsp_reg *reg)
{
	struct rsp_reg **link;

	for (link = &f->regs; *link != reg; link = &(*link)->next)
		;
	*link = reg->next;
	remove_reg(reg);
}

static int control(struct ep *ep, int op, struct rsp_fd *f, int fd,
		   const struct epoll_event *ev)
{
	struct rsp_reg *reg = find_reg(f, ep, fd);

	if (op == EPOLL_CTL_ADD && reg) {
		errno = EEXIST;
		return -1;
	}
	if (op == EPOLL_CTL_ADD)
		return add_reg(ep, f, fd, ev);
	if (!reg) {
		errno = ENOENT;
		return -1;
	}
	if (op == EPOLL_CTL_DEL) {
		del_reg(f, reg);
		return 0;
	}
	pthread_mutex_lock(&ep->lock);
	reg->events = ev->events;
	reg->data = ev->data;
	reg->reported = 0;
	reg->fired = false;
	ep->connecting += f->state == RSP_CONNECTING;
	ask(reg);
	kick(ep);
	pthread_mutex_unlock(&ep->lock);
	return 0;
}

int rsp_epoll_ctl(int epfd, int op, int fd, struct epoll_event *ev)
	RSP_EXPORT(epoll_ctl);
int rsp_epoll_ctl(int epfd, int op, int fd, struct epoll_event *ev)
{
	struct rsp_fd *f = rsp_find(fd);
	struct ep *ep;
	int ret, err;

	if (f && op != EPOLL_CTL_DEL)
		rsp_claim(f);

	if (!f || f->rfd < 0 || (op != EPOLL_CTL_DEL && !ev))
		return rsp_real()->epoll_ctl(epfd, op, fd, ev);
	if (op != EPOLL_CTL_ADD && op != EPOLL_CTL_MOD && op != EPOLL_CTL_DEL) {
		errno = EINVAL;
		return -1;
	}
	if (!find_ep(epfd) && !make_ep(epfd))
		return -1;
	ep = get_ep(epfd);
	if (!ep) {
		errno = EBADF;
		return -1;
	}
	rsp_use(f);
	rsp_enter();
	pthread_mutex_lock(&f->lock);
	if (f->rfd >= 0)
		ret = control(ep, op, f, fd, ev);
	else /* it has fallen back just now, with its registrations */
		ret = rsp_real()->epoll_ctl(epfd, op, fd, ev);
	pthread_mutex_unlock(&f->lock);
	rsp_leave();
	err = errno;
	put_ep(ep);
	errno = err;
	return ret;
}

void rsp_epoll_fell_back(struct rsp_fd *f)
{
	struct epoll_event ev;
	struct rsp_reg *reg;
	struct ep *ep;
	int fd;

	while ((reg = f->regs)) {
		ep = reg->ep;
		fd = reg->fd;
		ev = (struct epoll_event){ .events = reg->fired ? EPOLLONESHOT
								: reg->events,
					   .data = reg->data };
		del_reg(f, reg);
		rsp_real()->epoll_ctl(ep->epfd, EPOLL_CTL_ADD, fd, &ev);
	}
}

static void close_ep(struct ep *ep)
{
	struct rsp_fd *f;
	uint32_t i;

	ep->closed = true;
	for (i = 1; i < ep->nregs; i++) {
		f = ep->regs[i].f;
		if (!f)
			continue;
		pthread_mutex_lock(&f->lock);
		if (ep->regs[i].f == f)
			del_reg(f, &ep->regs[i]);
		pthread_mutex_unlock(&f->lock);
	}
	put_ep(ep);
}

void rsp_epoll_close(int fd)
{
	_Atomic(void *) *slot = rsp_slot(&eps, fd, false);
	struct rsp_fd *f = rsp_find(fd);
	struct rsp_reg *reg, *next;
	struct ep *ep = NULL;

	if (rsp_borrowed())
		return;
	if (slot && atomic_load_explicit(slot, memory_order_relaxed))
		ep = atomic_exchange(slot, NULL);
	if (ep)
		close_ep(ep);
	if (!f || !f->regs)
		return;
	pthread_mutex_lock(&f->lock);
	for (reg = f->regs; reg; reg = next) {
		next = reg->next;
		if (reg->fd == fd)
			del_reg(f, reg);
	}
	pthread_mutex_unlock(&f->lock);
}

/*
 * The instances of the parent are the child's too, but the rsockets in them are
 * not.
 */
static void fork_ep(struct ep *ep)
{
	uint32_t i;

	pthread_mutex_init(&ep->lock, NULL);
	ep->forked = true;
	ep->refs = 1;
	ep->waiters = ep->connecting = 0;
	ep->free = ep->check = NULL;
	ep->check_tail = &ep->check;
	for (i = 1; i < ep->nregs; i++)
		ep->regs[i].f = NULL;
}

void rsp_epoll_forked(void)
{
	struct rsp_chunk *c;
	struct ep *ep;
	int i, j;

	pthread_mutex_init(&eps_lock, NULL);
	for (i = 0; i < RSP_NCHUNKS; i++) {
		c = atomic_load(&eps.chunk[i]);
		for (j = 0; c && j < RSP_CHUNK; j++) {
			ep = atomic_load(&c->slot[j]);
			if (ep)
				fork_ep(ep);
		}
	}
}

/*
 * epoll.c - epoll instances of programs, and the rsockets in them
 *
 * epoll.h has the theory, epoll_wait.c the waiting.
 */
#include "rspreload/epoll.h"
#include "base/fd_high.h"
#include "base/fd_table.h"
#include "rsockets/wake.h"

#include <errno.h>
#include <rdma/rsocket.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#define SHADOW 2 /* behind those of the rsocket */

static struct fd_table eps;
static pthread_mutex_t eps_lock = PTHREAD_MUTEX_INITIALIZER; /* of refs */

/* With a reference: close() of it may come while another thread waits. */
struct rsp_ep *rsp_ep_get(int epfd)
{
	struct rsp_ep *ep;

	if (!fd_find(&eps, epfd))
		return NULL;
	pthread_mutex_lock(&eps_lock);
	ep = fd_find(&eps, epfd);
	if (ep)
		ep->refs++;
	pthread_mutex_unlock(&eps_lock);
	return ep;
}

void rsp_ep_put(struct rsp_ep *ep)
{
	unsigned left;

	pthread_mutex_lock(&eps_lock);
	left = --ep->refs;
	pthread_mutex_unlock(&eps_lock);
	if (left)
		return;
	rsp_real()->close(ep->evfd);
	munmap(ep->regs, RSP_MAX_REGS * sizeof(*ep->regs));
	pthread_mutex_destroy(&ep->lock);
	free(ep);
}

static struct rsp_ep *make_ep(int epfd)
{
	const struct rsp_real *real = rsp_real();
	_Atomic(void *) *slot = fd_slot(&eps, epfd, true);
	struct epoll_event ev = { .events = EPOLLIN };
	void *none = NULL;
	struct rsp_ep *ep;

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
	ep->regs = mmap(NULL, RSP_MAX_REGS * sizeof(*ep->regs),
			PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (ep->regs == MAP_FAILED)
		goto err_free;
	ep->evfd = fd_high(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
	ev.data.ptr = ep->regs; /* the first is never used */
	ep->nregs = 1;
	if (ep->evfd < 0 || real->epoll_ctl(epfd, EPOLL_CTL_ADD, ep->evfd, &ev))
		goto err_unmap;
	if (atomic_compare_exchange_strong(slot, &none, ep))
		return ep;
	/* Another thread was faster. */
	real->close(ep->evfd);
	munmap(ep->regs, RSP_MAX_REGS * sizeof(*ep->regs));
	free(ep);
	return none;

err_unmap:
	if (ep->evfd >= 0)
		real->close(ep->evfd);
	munmap(ep->regs, RSP_MAX_REGS * sizeof(*ep->regs));
err_free:
	free(ep);
	return NULL;
}

/* What the kernel keeps for a descriptor of a registration. */
static struct epoll_event event_of(struct rsp_reg *reg, int which)
{
	return (struct epoll_event){ .events = EPOLLIN,
				     .data.ptr = (char *)reg + which };
}

bool rsp_ep_owns(const struct rsp_ep *ep, const struct epoll_event *ev,
		 struct rsp_reg **reg, unsigned *which)
{
	uintptr_t at = (uintptr_t)ev->data.u64 - (uintptr_t)ep->regs;

	if (at >= RSP_MAX_REGS * sizeof(*ep->regs))
		return false;
	*reg = &ep->regs[at / sizeof(*ep->regs)];
	*which = (unsigned)(at % sizeof(*ep->regs));
	return true;
}

/* Under the instance's lock, like all up to rsp_reg_set_shadow(). */
void rsp_reg_ask(struct rsp_reg *reg)
{
	struct rsp_ep *ep = reg->ep;

	if (reg->queued)
		return;
	reg->queued = true;
	reg->next_check = NULL;
	*ep->check_tail = reg;
	ep->check_tail = &reg->next_check;
}

static struct rsp_reg *take_reg(struct rsp_ep *ep)
{
	struct rsp_reg *reg = ep->free;

	if (reg)
		ep->free = reg->next;
	else if (ep->nregs < RSP_MAX_REGS)
		reg = &ep->regs[ep->nregs++];
	return reg;
}

void rsp_reg_free(struct rsp_reg *reg)
{
	reg->next = reg->ep->free;
	reg->ep->free = reg;
}

void rsp_reg_set_fd(struct rsp_reg *reg, int i, int fd)
{
	const struct rsp_real *real = rsp_real();
	struct epoll_event ev = event_of(reg, i);
	int old = reg->fds[i];

	if (old == fd)
		return;
	if (old >= 0)
		real->epoll_ctl(reg->ep->epfd, EPOLL_CTL_DEL, old, NULL);
	reg->fds[i] = -1;
	if (fd >= 0 && !real->epoll_ctl(reg->ep->epfd, EPOLL_CTL_ADD, fd, &ev))
		reg->fds[i] = fd;
}

void rsp_reg_set_shadow(struct rsp_reg *reg, bool on)
{
	struct epoll_event ev = event_of(reg, SHADOW);

	if (on != reg->shadow)
		rsp_real()->epoll_ctl(reg->ep->epfd,
				      on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL,
				      reg->fd, &ev);
	reg->shadow = on;
}

/* Makes another thread that sleeps in the instance check again. */
static void kick_waiter(struct rsp_ep *ep)
{
	if (ep->waiters)
		eventfd_write(ep->evfd, 1);
}

static struct rsp_reg *find_reg(struct rsp_fd *f, const struct rsp_ep *ep,
				int fd)
{
	struct rsp_reg *reg;

	for (reg = f->regs; reg; reg = reg->next)
		if (reg->ep == ep && reg->fd == fd)
			return reg;
	return NULL;
}

/* Whether the instance hears of what other threads take from the rsocket. */
static int watch_rsocket(const struct rsp_ep *ep, const struct rsp_fd *f,
			 bool on)
{
	int v = on ? ep->evfd : -1 - ep->evfd;

	return rsetsockopt(f->rfd, SOL_RDMA, RSOCK_WATCH, &v, sizeof(v));
}

/* Removes it from everything but the list of f. */
static void remove_reg(struct rsp_reg *reg)
{
	struct rsp_ep *ep = reg->ep;

	/* Another registration of the two may have the same watch. */
	if (!reg->off)
		watch_rsocket(ep, reg->f, false);
	pthread_mutex_lock(&ep->lock);
	rsp_reg_set_fd(reg, 0, -1);
	rsp_reg_set_fd(reg, 1, -1);
	rsp_reg_set_shadow(reg, false);
	reg->f = NULL;
	if (!reg->queued)
		rsp_reg_free(reg);
	pthread_mutex_unlock(&ep->lock);
}

static int add_reg(struct rsp_ep *ep, struct rsp_fd *f, int fd,
		   const struct epoll_event *ev)
{
	struct rsp_reg *reg;

	if (watch_rsocket(ep, f, true))
		return -1;
	pthread_mutex_lock(&ep->lock);
	reg = take_reg(ep);
	if (!reg) {
		pthread_mutex_unlock(&ep->lock);
		watch_rsocket(ep, f, false);
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
	rsp_reg_ask(reg);
	kick_waiter(ep);
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

static void turn_off(struct rsp_fd *f, struct rsp_reg *reg)
{
	struct rsp_ep *ep = reg->ep;

	if (f->state != RSP_RSOCK) {
		del_reg(f, reg);
		return;
	}
	watch_rsocket(ep, f, false);
	pthread_mutex_lock(&ep->lock);
	reg->off = true;
	pthread_mutex_unlock(&ep->lock);
}

static int control_reg(struct rsp_ep *ep, int op, struct rsp_fd *f, int fd,
		       const struct epoll_event *ev)
{
	struct rsp_reg *reg = find_reg(f, ep, fd);
	bool on = reg && !reg->off;

	if (op == EPOLL_CTL_ADD && on) {
		errno = EEXIST;
		return -1;
	}
	if (op == EPOLL_CTL_ADD && !reg)
		return add_reg(ep, f, fd, ev);
	if (op != EPOLL_CTL_ADD && !on) {
		errno = ENOENT;
		return -1;
	}
	if (op == EPOLL_CTL_DEL) {
		turn_off(f, reg);
		return 0;
	}
	if (reg->off && watch_rsocket(ep, f, true))
		return -1;
	pthread_mutex_lock(&ep->lock);
	reg->events = ev->events;
	reg->data = ev->data;
	reg->reported = 0;
	reg->fired = reg->off = false;
	ep->connecting += f->state == RSP_CONNECTING;
	rsp_reg_ask(reg);
	kick_waiter(ep);
	pthread_mutex_unlock(&ep->lock);
	return 0;
}

int rsp_epoll_ctl(int epfd, int op, int fd, struct epoll_event *ev)
	RSP_EXPORT(epoll_ctl);
int rsp_epoll_ctl(int epfd, int op, int fd, struct epoll_event *ev)
{
	struct rsp_fd *f = rsp_find(fd);
	struct rsp_ep *ep;
	int ret, err;

	if (f && op != EPOLL_CTL_DEL)
		rsp_claim(f);

	if (!f || f->rfd < 0 || (op != EPOLL_CTL_DEL && !ev))
		return rsp_real()->epoll_ctl(epfd, op, fd, ev);
	if (op != EPOLL_CTL_ADD && op != EPOLL_CTL_MOD && op != EPOLL_CTL_DEL) {
		errno = EINVAL;
		return -1;
	}
	if (!fd_find(&eps, epfd) && !make_ep(epfd))
		return -1;
	ep = rsp_ep_get(epfd);
	if (!ep) {
		errno = EBADF;
		return -1;
	}
	rsp_use(f);
	rsp_enter();
	pthread_mutex_lock(&f->lock);
	if (f->rfd >= 0)
		ret = control_reg(ep, op, f, fd, ev);
	else /* it has just fallen back, with its registrations */
		ret = rsp_real()->epoll_ctl(epfd, op, fd, ev);
	pthread_mutex_unlock(&f->lock);
	rsp_leave();
	err = errno;
	rsp_ep_put(ep);
	errno = err;
	return ret;
}

void rsp_epoll_fell_back(struct rsp_fd *f)
{
	struct epoll_event ev;
	struct rsp_reg *reg;
	struct rsp_ep *ep;
	bool off;
	int fd;

	while ((reg = f->regs)) {
		ep = reg->ep;
		fd = reg->fd;
		off = reg->off;
		ev = (struct epoll_event){ .events = reg->fired ? EPOLLONESHOT :
								  reg->events,
					   .data = reg->data };
		del_reg(f, reg);
		if (!off)
			rsp_real()->epoll_ctl(ep->epfd, EPOLL_CTL_ADD, fd, &ev);
	}
}

static void close_ep(struct rsp_ep *ep)
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
	rsp_ep_put(ep);
}

void rsp_epoll_close(int fd)
{
	_Atomic(void *) *slot = fd_slot(&eps, fd, false);
	struct rsp_fd *f = rsp_find(fd);
	struct rsp_reg *reg, *next;
	struct rsp_ep *ep = NULL;

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

void rsp_epoll_close_range(unsigned first, unsigned last)
{
	unsigned fd;

	for (fd = first; fd_next(&eps, &fd) && fd <= last; fd++)
		rsp_forget((int)fd);
}

/* The child shares the parent's instances, but not the rsockets in them. */
static void fork_ep(struct rsp_ep *ep)
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
	struct rsp_ep *ep;
	unsigned fd;

	pthread_mutex_init(&eps_lock, NULL);
	for (fd = 0; (ep = fd_next(&eps, &fd)); fd++)
		fork_ep(ep);
}

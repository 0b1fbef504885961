/*
 * wait.c - poll and select on sockets that may be rsockets
 *
 * A listener is two descriptors, everything else one, so rpoll() gets a list of
 * its own. A connection that RDMA cannot make falls back to TCP here, and the
 * wait goes on.
 */
#include "rspreload/rspreload.h"

#include <errno.h>
#include <limits.h>
#include <rdma/rsocket.h>
#include <stdlib.h>
#include <string.h>

uint64_t rsp_until(int timeout_ms)
{
	if (timeout_ms < 0)
		return 0;
	return rsp_now_ns() + (uint64_t)timeout_ms * 1000000u;
}

static bool any_ours(const struct pollfd *fds, nfds_t nfds)
{
	nfds_t i;

	/* Inside rpoll(), shadows are plain sockets. */
	for (i = 0; i < nfds && !rsp_inside(); i++)
		if (rsp_find(fds[i].fd))
			return true;
	return false;
}

__thread const sigset_t *rsp_sleep_mask;

struct wait {
	struct pollfd *p; /* one per descriptor, then shadows of listeners */
	nfds_t n;
	uint64_t deadline_ns; /* the first of connections, or 0 */
};

static void translate_fds(struct wait *w, const struct pollfd *fds, nfds_t nfds)
{
	struct pollfd *p;
	struct rsp_fd *f;
	nfds_t i;
	int rfd;

	w->deadline_ns = 0;
	w->n = nfds;
	for (i = 0; i < nfds; i++) {
		p = &w->p[i];
		f = rsp_find(fds[i].fd);
		*p = fds[i];
		p->revents = 0;
		if (f && fds[i].events & POLLIN)
			rsp_claim(f);
		if (f && f->state == RSP_RSOCK)
			rsp_use(f);
		rfd = f ? f->rfd : -1;
		if (rfd < 0)
			continue;
		p->fd = rfd;
		if (f->state == RSP_LISTENING) {
			w->p[w->n++] = fds[i];
		} else if (f->state == RSP_CONNECTING) {
			/* It becomes writable when its result is known. */
			p->events |= POLLOUT;
			if (!w->deadline_ns || f->deadline_ns < w->deadline_ns)
				w->deadline_ns = f->deadline_ns;
		}
	}
}

static int collect_events(const struct wait *w, struct pollfd *fds, nfds_t nfds)
{
	const struct pollfd *shadow = &w->p[nfds];
	struct rsp_fd *f;
	short revents;
	int n = 0;
	nfds_t i;

	for (i = 0; i < nfds; i++) {
		f = rsp_find(fds[i].fd);
		fds[i].revents = 0;
		revents = w->p[i].revents;
		/* The rsocket has gone: the shadow has its place. */
		if (w->p[i].fd != fds[i].fd && revents & POLLNVAL)
			revents = 0;
		/* They are in the same order. */
		if (shadow < &w->p[w->n] && shadow->fd == fds[i].fd)
			revents |= shadow++->revents;
		if (f && f->state == RSP_CONNECTING &&
		    rsp_settle(f, fds[i].fd) != RSP_RSOCK)
			continue;
		fds[i].revents = (short)(revents & (fds[i].events | POLLERR |
						    POLLHUP | POLLNVAL));
		n += !!fds[i].revents;
	}
	return n;
}

int rsp_remaining(uint64_t until, uint64_t deadline)
{
	uint64_t now = rsp_now_ns(), ms;

	if (deadline && (!until || deadline < until))
		until = deadline;
	if (!until)
		return -1;
	ms = until > now ? (until - now + 999999) / 1000000 : 0;
	return ms > INT_MAX ? INT_MAX : (int)ms;
}

int rsp_poll(struct pollfd *fds, nfds_t nfds, uint64_t until_ns)
{
	struct pollfd few[32];
	struct wait w = { .p = few };
	int n;

	if (nfds > sizeof(few) / sizeof(few[0]) / 2)
		w.p = calloc(nfds * 2, sizeof(*w.p));
	if (!w.p) {
		errno = ENOMEM;
		return -1;
	}
	do {
		translate_fds(&w, fds, nfds);
		rsp_enter();
		n = rpoll(w.p, w.n, rsp_remaining(until_ns, w.deadline_ns));
		rsp_leave();
		if (n < 0)
			break;
		n = collect_events(&w, fds, nfds);
	} while (!n && (!until_ns || rsp_now_ns() < until_ns));
	if (w.p != few)
		free(w.p);
	return n;
}

int rsp_call_poll(struct pollfd *fds, nfds_t nfds, int timeout)
	RSP_EXPORT(poll);
int rsp_call_poll(struct pollfd *fds, nfds_t nfds, int timeout)
{
	struct timespec ts = { timeout / 1000, timeout % 1000 * 1000000L };

	if (rsp_inside() && rsp_sleep_mask && timeout)
		return rsp_real()->ppoll(fds, nfds, timeout < 0 ? NULL : &ts,
					 rsp_sleep_mask);
	if (!any_ours(fds, nfds))
		return rsp_real()->poll(fds, nfds, timeout);
	return rsp_poll(fds, nfds, rsp_until(timeout));
}

int rsp_poll_chk(struct pollfd *fds, nfds_t nfds, int timeout, size_t size)
	RSP_EXPORT(__poll_chk);
int rsp_poll_chk(struct pollfd *fds, nfds_t nfds, int timeout, size_t size)
{
	if (size / sizeof(*fds) < nfds)
		abort();
	return rsp_call_poll(fds, nfds, timeout);
}

static int poll_masked(struct pollfd *fds, nfds_t nfds, uint64_t until,
		       const sigset_t *mask)
{
	const struct timespec now = { 0 };
	int n;

	rsp_sleep_mask = mask;
	n = rsp_poll(fds, nfds, until);
	rsp_sleep_mask = NULL;
	/* A pending signal counts, even if there was no time to sleep. */
	if (!n && mask && rsp_real()->ppoll(NULL, 0, &now, mask) < 0)
		n = -1;
	return n;
}

/* *until: 0 is never. False and EINVAL if the time is not valid. */
bool rsp_until_of(const struct timespec *ts, uint64_t *until)
{
	*until = 0;
	if (!ts)
		return true;
	if (ts->tv_sec < 0 || ts->tv_nsec < 0 || ts->tv_nsec >= 1000000000) {
		errno = EINVAL;
		return false;
	}
	/* More than a century is never. */
	if (ts->tv_sec < 1ll << 32)
		*until = rsp_now_ns() + (uint64_t)ts->tv_sec * 1000000000u +
			 (uint64_t)ts->tv_nsec;
	return true;
}

int rsp_ppoll(struct pollfd *fds, nfds_t nfds, const struct timespec *ts,
	      const sigset_t *mask) RSP_EXPORT(ppoll);
int rsp_ppoll(struct pollfd *fds, nfds_t nfds, const struct timespec *ts,
	      const sigset_t *mask)
{
	uint64_t until;

	if (!any_ours(fds, nfds))
		return rsp_real()->ppoll(fds, nfds, ts, mask);
	if (!rsp_until_of(ts, &until))
		return -1;
	return poll_masked(fds, nfds, until, mask);
}

int rsp_ppoll_chk(struct pollfd *fds, nfds_t nfds, const struct timespec *ts,
		  const sigset_t *mask, size_t size) RSP_EXPORT(__ppoll_chk);
int rsp_ppoll_chk(struct pollfd *fds, nfds_t nfds, const struct timespec *ts,
		  const sigset_t *mask, size_t size)
{
	if (size / sizeof(*fds) < nfds)
		abort();
	return rsp_ppoll(fds, nfds, ts, mask);
}

static bool in_set(int fd, const fd_set *set)
{
	return set && FD_ISSET(fd, set);
}

/* The descriptors of three sets; how many, or -1 when none is ours. */
static int from_sets(int nfds, const fd_set *in, const fd_set *out,
		     const fd_set *ex, struct pollfd *fds)
{
	bool ours = false;
	int fd, n = 0;

	for (fd = 0; fd < nfds && fd < FD_SETSIZE; fd++) {
		fds[n] = (struct pollfd){ .fd = fd };
		if (in_set(fd, in))
			fds[n].events |= POLLIN;
		if (in_set(fd, out))
			fds[n].events |= POLLOUT;
		if (in_set(fd, ex))
			fds[n].events |= POLLPRI;
		if (!fds[n].events)
			continue;
		ours = ours || rsp_find(fd);
		n++;
	}
	return ours ? n : -1;
}

static int report_fd(const struct pollfd *p, short asked, short is, fd_set *set)
{
	if (!(p->events & asked))
		return 0;
	if (p->revents & is)
		return 1;
	FD_CLR(p->fd, set);
	return 0;
}

static int do_select(struct pollfd *fds, int n, fd_set *in, fd_set *out,
		     fd_set *ex, uint64_t until, const sigset_t *mask)
{
	int i, ret = poll_masked(fds, (nfds_t)n, until, mask);

	if (ret < 0)
		return ret;
	ret = 0;
	for (i = 0; i < n; i++) {
		if (fds[i].revents & POLLNVAL) {
			errno = EBADF;
			return -1;
		}
		ret += report_fd(&fds[i], POLLIN, POLLIN | POLLHUP | POLLERR,
				 in);
		ret += report_fd(&fds[i], POLLOUT, POLLOUT | POLLERR, out);
		ret += report_fd(&fds[i], POLLPRI, POLLPRI, ex);
	}
	return ret;
}

int rsp_select(int nfds, fd_set *in, fd_set *out, fd_set *ex,
	       struct timeval *tv) RSP_EXPORT(select);
int rsp_select(int nfds, fd_set *in, fd_set *out, fd_set *ex,
	       struct timeval *tv)
{
	struct pollfd fds[FD_SETSIZE];
	struct timespec ts;
	uint64_t until, now;
	int n, ret;

	n = from_sets(nfds, in, out, ex, fds);
	if (n < 0)
		return rsp_real()->select(nfds, in, out, ex, tv);
	if (tv) {
		/* Linux allows more than a second of microseconds. */
		ts.tv_sec = tv->tv_sec + tv->tv_usec / 1000000;
		ts.tv_nsec = tv->tv_usec % 1000000 * 1000;
	}
	if (!rsp_until_of(tv ? &ts : NULL, &until))
		return -1;
	ret = do_select(fds, n, in, out, ex, until, NULL);
	if (until) {
		/* As Linux does, return the time left. */
		now = rsp_now_ns();
		now = until > now ? until - now : 0;
		tv->tv_sec = (time_t)(now / 1000000000u);
		tv->tv_usec = (suseconds_t)(now % 1000000000u / 1000);
	}
	return ret;
}

int rsp_pselect(int nfds, fd_set *in, fd_set *out, fd_set *ex,
		const struct timespec *ts, const sigset_t *mask)
	RSP_EXPORT(pselect);
int rsp_pselect(int nfds, fd_set *in, fd_set *out, fd_set *ex,
		const struct timespec *ts, const sigset_t *mask)
{
	struct pollfd fds[FD_SETSIZE];
	uint64_t until;
	int n;

	n = from_sets(nfds, in, out, ex, fds);
	if (n < 0)
		return rsp_real()->pselect(nfds, in, out, ex, ts, mask);
	if (!rsp_until_of(ts, &until))
		return -1;
	return do_select(fds, n, in, out, ex, until, mask);
}

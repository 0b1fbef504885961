/*
 * poll.c - waiting for rsockets
 *
 * A thread that is about to sleep arms the rsocket, so that its descriptors
 * become readable when something happens, checks once more, and sleeps in
 * poll(2) on them and on an eventfd of its own. When it wakes it takes the
 * events off the descriptors. Other threads may sleep on those too: they are
 * watchers of the rsocket, and their eventfds are written to.
 *
 * Before it sleeps, a thread polls for polling_time: what comes within
 * microseconds is not worth a sleep.
 */
#include "base/bytes.h"
#include "base/cpu.h"
#include "base/fd_high.h"
#include "rsock_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

/* A safety net: a wakeup that is missed is made up for after this time. */
#define MAX_SLEEP_NS 5000000000ull
/* How long descriptors that poll() has no room for wait for their turn. */
#define SLICE_MS 10

__thread bool rsock_restarts;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;

static void close_eventfd(void *value)
{
	close((int)(intptr_t)value - 1);
}

static void make_key(void)
{
	pthread_key_create(&key, close_eventfd);
}

/* The calling thread's eventfd, or -1. */
static int own_eventfd(void)
{
	int fd;

	pthread_once(&once, make_key);
	fd = (int)(intptr_t)pthread_getspecific(key) - 1;
	if (fd >= 0)
		return fd;
	fd = fd_high(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
	if (fd >= 0)
		pthread_setspecific(key, (void *)(intptr_t)(fd + 1));
	return fd;
}

/* Parent and child must not share it: each would wake the other. */
void rsock_poll_forked(void)
{
	int fd;

	pthread_once(&once, make_key);
	fd = (int)(intptr_t)pthread_getspecific(key) - 1;
	if (fd >= 0)
		close(fd);
	pthread_setspecific(key, NULL);
}

void rsock_wake(struct rsock *rs, int self)
{
	struct rsock_watch *w;

	for (w = rs->watchers; w; w = w->next)
		if (w->efd != self)
			eventfd_write(w->efd, 1);
}

void rsock_watch_add(struct rsock *rs, struct rsock_watch *w, int efd)
{
	w->efd = efd;
	w->next = rs->watchers;
	w->link = &rs->watchers;
	if (w->next)
		w->next->link = &w->next;
	rs->watchers = w;
}

void rsock_watch_del(struct rsock_watch *w)
{
	*w->link = w->next;
	if (w->next)
		w->next->link = w->link;
}

int rsock_set_watch(struct rsock *rs, int efd)
{
	struct rsock_watch *w;
	int err = 0;

	pthread_mutex_lock(&rs->lock);
	if (efd >= 0) {
		w = malloc(sizeof(*w));
		if (w)
			rsock_watch_add(rs, w, efd);
		else
			err = -ENOMEM;
	} else {
		for (w = rs->watchers; w && w->efd != -1 - efd; w = w->next)
			;
		if (w)
			rsock_watch_del(w);
		else
			err = -EBADF;
		free(w);
	}
	pthread_mutex_unlock(&rs->lock);
	return err;
}

void rsock_progress(struct rsock *rs)
{
	if (rs->type == SOCK_DGRAM) {
		rsock_dgram_progress(rs);
		return;
	}
	if (rs->state >= RSOCK_LISTENING && rs->state <= RSOCK_ACCEPTING)
		rsock_stream_cm(rs);
	rsock_stream_progress(rs);
}

void rsock_arm(struct rsock *rs, int fds[2])
{
	struct rsock_stream *s = &rs->s;

	fds[0] = fds[1] = -1;
	if (rs->type == SOCK_DGRAM) {
		rsock_dgram_arm(rs);
		fds[0] = rs->d.epfd;
		return;
	}
	fds[0] = s->channel->fd;
	if (!s->cq || rs->state < RSOCK_ACCEPTING ||
	    rs->state > RSOCK_DISCONNECTED)
		return;
	if (!s->armed)
		s->armed = !ibv_req_notify_cq(s->cq, 0);
	fds[1] = s->cc->fd;
}

#define ACK_BATCH 256 /* acknowledging takes a lock */

/* An armed CQ raises one event. */
static void drain_cc(struct rsock_stream *s)
{
	struct ibv_cq *cq;
	void *context;

	if (!s->armed || ibv_get_cq_event(s->cc, &cq, &context))
		return;
	s->armed = false;
	if (++s->unacked < ACK_BATCH)
		return;
	ibv_ack_cq_events(s->cq, s->unacked);
	s->unacked = 0;
}

void rsock_drain(struct rsock *rs, bool first, bool second, int self)
{
	if (rs->type == SOCK_DGRAM) {
		rsock_dgram_drain(rs);
	} else {
		if (second && rs->s.cc)
			drain_cc(&rs->s);
		if (first)
			rsock_stream_cm(rs);
	}
	rsock_wake(rs, self);
}

static short stream_revents(struct rsock *rs)
{
	switch (atomic_load(&rs->state)) {
	case RSOCK_INIT:
	case RSOCK_BOUND:
		return POLLOUT | POLLHUP; /* as Linux has it */
	case RSOCK_LISTENING:
		return rs->s.requests ? POLLIN | POLLRDNORM : 0;
	case RSOCK_RESOLVING:
	case RSOCK_ROUTING:
	case RSOCK_CONNECTING:
	case RSOCK_ACCEPTING:
		return 0;
	case RSOCK_FAILED:
		return POLLIN | POLLRDNORM | POLLOUT | POLLWRNORM | POLLERR |
		       POLLHUP | POLLRDHUP;
	case RSOCK_DISCONNECTED:
		/*
		 * No POLLHUP while there is data: programs that see it may not
		 * read.
		 */
		return POLLIN | POLLRDNORM | POLLOUT | POLLWRNORM | POLLRDHUP |
		       (rs->s.unread ? 0 : POLLHUP);
	case RSOCK_CONNECTED:
		break;
	}
	return (short)((rs->s.unread || !rs->s.rd_open ? POLLIN | POLLRDNORM :
							 0) |
		       (rs->s.rd_open ? 0 : POLLRDHUP) |
		       (!rs->s.wr_open || rsock_stream_can_send(rs) ?
				POLLOUT | POLLWRNORM :
				0));
}

static short dgram_revents(struct rsock *rs)
{
	return (short)((rs->d.count ? POLLIN | POLLRDNORM : 0) |
		       (rsock_dgram_can_send(rs) ? POLLOUT | POLLWRNORM : 0));
}

static short revents_of(struct rsock *rs)
{
	return rs->type == SOCK_DGRAM ? dgram_revents(rs) : stream_revents(rs);
}

short rsock_revents(struct rsock *rs, short events)
{
	const short asked = events & (POLLIN | POLLOUT);
	short now;

	/* There is no need to look for what is known; an end is not. */
	if (!asked || events & POLLRDHUP || asked & ~revents_of(rs))
		rsock_progress(rs);
	if (rs->closing)
		return POLLNVAL;
	now = revents_of(rs);
	return (short)(now & (events | POLLERR | POLLHUP));
}

static int timeout_ms(uint64_t until)
{
	uint64_t now = rsock_now_ns(), ns;

	ns = until ? until > now ? until - now : 0 : MAX_SLEEP_NS;
	return (int)((min_u64(ns, MAX_SLEEP_NS) + 999999) / 1000000);
}

int rsock_poll_any(struct pollfd *fds, nfds_t n, int ms)
{
	uint64_t until = ms > 0 ? rsock_now_ns() + (uint64_t)ms * 1000000u : 0;
	int ready = poll(fds, n, ms), m, slice_ms;
	struct rlimit limit;
	nfds_t i, slice;

	if (ready >= 0 || errno != EINVAL || getrlimit(RLIMIT_NOFILE, &limit) ||
	    !limit.rlim_cur || n <= limit.rlim_cur)
		return ready;
	do {
		for (i = 0, ready = 0; i < n; i += slice) {
			slice = min_u64(limit.rlim_cur, n - i);
			slice_ms = 0;
			if (i + slice == n && !ready && ms)
				slice_ms = (int)min_u64(
					(uint64_t)timeout_ms(until), SLICE_MS);
			m = poll(fds + i, slice, slice_ms);
			if (m < 0)
				return -1;
			ready += m;
		}
	} while (!ready && ms && (!until || rsock_now_ns() < until));
	return ready;
}

/* Polls until ready, for polling_time and not beyond until. */
static bool spin_for(struct rsock *rs, bool (*ready)(struct rsock *rs),
		     uint64_t until)
{
	uint64_t end = rsock_now_ns() + rsock_config()->polling_ns;

	if (until)
		end = min_u64(end, until);
	while (rsock_now_ns() < end) {
		pthread_mutex_unlock(&rs->lock);
		cpu_relax();
		pthread_mutex_lock(&rs->lock);
		rsock_progress(rs);
		if (ready(rs))
			return true;
	}
	return false;
}

int rsock_wait(struct rsock *rs, bool (*ready)(struct rsock *rs), bool nonblock,
	       uint64_t deadline_ns)
{
	struct rsock_watch watch;
	struct pollfd p[3];
	int fds[2], efd, n, err = 0;
	eventfd_t value;

	rsock_progress(rs);
	if (ready(rs))
		return 0;
	if (nonblock)
		return -EAGAIN;
	if (spin_for(rs, ready, deadline_ns))
		return 0;
	efd = own_eventfd();
	if (efd < 0)
		return rsock_errno();
	for (;;) {
		rsock_arm(rs, fds);
		rsock_progress(rs);
		if (ready(rs))
			return 0;
		p[0] = (struct pollfd){ .fd = fds[0], .events = POLLIN };
		p[1] = (struct pollfd){ .fd = fds[1], .events = POLLIN };
		p[2] = (struct pollfd){ .fd = efd, .events = POLLIN };
		rsock_watch_add(rs, &watch, efd);
		pthread_mutex_unlock(&rs->lock);
		/* As in the kernel, a call with a timeout is not restarted. */
		n = deadline_ns ?
			    poll(p, ARRAY_SIZE(p), timeout_ms(deadline_ns)) :
			    rsock_sleep(p, ARRAY_SIZE(p), timeout_ms(0));
		if (n < 0)
			err = rsock_errno();
		pthread_mutex_lock(&rs->lock);
		rsock_watch_del(&watch);
		eventfd_read(efd, &value);
		if (n > 0 && (p[0].revents || p[1].revents))
			rsock_drain(rs, p[0].revents, p[1].revents, efd);
		rsock_progress(rs);
		if (ready(rs))
			return 0;
		if (err)
			return err;
		if (deadline_ns && rsock_now_ns() >= deadline_ns)
			return -EAGAIN;
	}
}

#define FEW 8

/* One call of rpoll(): its rsockets, and room to sleep on everything. */
struct poller {
	struct pollfd *fds;
	nfds_t nfds;
	struct rsock **rs; /* per fd; NULL: not an rsocket */
	struct rsock_watch *watch; /* per fd */
	struct pollfd *all; /* per fd 1, or 2 of an rsocket; and the eventfd */
	nfds_t rsocks;
	int efd;
	void *heap;
	/* The three arrays, for few descriptors. */
	struct {
		struct rsock *rs[FEW];
		struct rsock_watch watch[FEW];
		struct pollfd all[FEW * 2 + 1];
	} few;
};

static int poller_init(struct poller *p, struct pollfd *fds, nfds_t nfds)
{
	size_t size = sizeof(*p->rs) + sizeof(*p->watch) + 2 * sizeof(*p->all);
	nfds_t i;

	p->fds = fds;
	p->nfds = p->rsocks = 0;
	p->efd = -1;
	p->heap = NULL;
	p->rs = p->few.rs;
	p->watch = p->few.watch;
	p->all = p->few.all;
	if (nfds > FEW) {
		if (nfds > SIZE_MAX / size / 2)
			return -EINVAL;
		p->heap = malloc(nfds * size + sizeof(*p->all));
		if (!p->heap)
			return -ENOMEM;
		p->watch = p->heap;
		p->rs = (void *)(p->watch + nfds);
		p->all = (void *)(p->rs + nfds);
	}
	for (i = 0; i < nfds; i++) {
		p->rs[i] = fds[i].fd >= 0 ? rsock_get(fds[i].fd) : NULL;
		p->rsocks += !!p->rs[i];
	}
	p->nfds = nfds;
	return 0;
}

static void poller_fini(struct poller *p)
{
	nfds_t i;

	for (i = 0; i < p->nfds; i++)
		if (p->rs[i])
			rsock_put(p->rs[i]);
	free(p->heap);
}

static short check_one(struct rsock *rs, short events)
{
	short revents;

	pthread_mutex_lock(&rs->lock);
	revents = rsock_revents(rs, events);
	pthread_mutex_unlock(&rs->lock);
	return revents;
}

/* How many are ready now, rsockets and others. */
static int check_fds(struct poller *p)
{
	struct pollfd *f;
	int n = 0, m;
	nfds_t i;

	for (i = 0; i < p->nfds; i++) {
		f = &p->fds[i];
		p->all[i] = *f;
		if (p->rs[i]) {
			f->revents = check_one(p->rs[i], f->events);
			n += !!f->revents;
			p->all[i].fd = -1;
		}
	}
	if (p->rsocks == p->nfds)
		return n;
	m = rsock_poll_any(p->all, p->nfds, 0);
	if (m < 0)
		return rsock_errno();
	for (i = 0; i < p->nfds; i++)
		if (!p->rs[i])
			p->fds[i].revents = p->all[i].revents;
	return n + m;
}

/* Arms descriptor i to wake this thread: false if it is ready already. */
static bool prepare_fd(struct poller *p, nfds_t i, struct pollfd *a)
{
	struct rsock *rs = p->rs[i];
	struct pollfd *f = &p->fds[i];
	int fds[2];

	a[0] = (struct pollfd){ .fd = f->fd, .events = f->events };
	if (!rs)
		return true;
	pthread_mutex_lock(&rs->lock);
	rsock_arm(rs, fds);
	f->revents = rsock_revents(rs, f->events);
	if (!f->revents)
		rsock_watch_add(rs, &p->watch[i], p->efd);
	pthread_mutex_unlock(&rs->lock);
	a[0] = (struct pollfd){ .fd = fds[0], .events = POLLIN };
	a[1] = (struct pollfd){ .fd = fds[1], .events = POLLIN };
	return !f->revents;
}

static void fds_woken(struct poller *p, nfds_t n)
{
	struct pollfd *a = p->all;
	struct rsock *rs;
	nfds_t i;

	for (i = 0; i < n; i++, a += rs ? 2 : 1) {
		rs = p->rs[i];
		if (!rs)
			continue;
		pthread_mutex_lock(&rs->lock);
		rsock_watch_del(&p->watch[i]);
		if (a[0].revents || a[1].revents)
			rsock_drain(rs, a[0].revents, a[1].revents, p->efd);
		pthread_mutex_unlock(&rs->lock);
	}
}

/* Sleeps until something may be ready: 0, or -EINTR. */
static int sleep_once(struct poller *p, uint64_t until)
{
	struct pollfd *a = p->all;
	eventfd_t value;
	nfds_t i, n, m;
	int err = 0;

	for (i = 0; i < p->nfds && prepare_fd(p, i, a); i++)
		a += p->rs[i] ? 2 : 1;
	n = i;
	*a = (struct pollfd){ .fd = p->efd, .events = POLLIN };
	m = (nfds_t)(a - p->all) + 1;
	if (n == p->nfds &&
	    (rsock_restarts ? rsock_sleep(p->all, m, timeout_ms(until)) :
			      rsock_poll_any(p->all, m, timeout_ms(until))) < 0)
		err = rsock_errno();
	/* One is ready already: no sleep, and no events to take. */
	for (i = 0; (err || n < p->nfds) && i < m; i++)
		p->all[i].revents = 0;
	fds_woken(p, n);
	if (n == p->nfds)
		eventfd_read(p->efd, &value);
	return err;
}

int rsock_poll(struct pollfd *fds, nfds_t nfds, int timeout)
{
	uint64_t now = rsock_now_ns(), until = 0, spin_until;
	struct poller p;
	int n;

	if (timeout > 0)
		until = now + (uint64_t)timeout * 1000000u;
	n = poller_init(&p, fds, nfds);
	if (n)
		goto out;
	/* No rsocket among them: plain poll(2). */
	if (!p.rsocks) {
		n = rsock_poll_any(fds, nfds, timeout);
		if (n < 0)
			n = rsock_errno();
		goto out;
	}
	spin_until = now + rsock_config()->polling_ns;
	do {
		n = check_fds(&p);
		if (n || !timeout)
			goto out;
		now = rsock_now_ns();
	} while (now < spin_until && (!until || now < until));
	p.efd = own_eventfd();
	if (p.efd < 0) {
		n = rsock_errno();
		goto out;
	}
	do {
		n = sleep_once(&p, until);
		if (n)
			break;
		n = check_fds(&p);
	} while (!n && (!until || rsock_now_ns() < until));
out:
	poller_fini(&p);
	return n;
}

/*
 * thread.c - the thread that makes progress while no program does
 *
 * It sleeps in epoll until a link has packets, a timer is due, or a descriptor
 * of the layer above is readable. When packets have come it looks for more for
 * a while before it sleeps again (busy_poll.h). While it has stepped back
 * (poller.h) it watches no link but those that programs leave out (idle_link.h),
 * and ticks.
 */
#include "engine_internal.h"

#include "base/bytes.h"
#include "base/fd_high.h"
#include "base/say.h"
#include "base/sys.h"
#include "busy_poll.h"
#include "hooks/trace.h"
#include "idle_link.h"
#include "os/proc.h"
#include "segment/segment.h"

#include <errno.h>
#include <link.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SLICE_NS 100000 /* the least there is */
#define STACK_BYTES (512 * 1024)

/* Descriptors */

void thread_wake(struct engine *e)
{
	const uint64_t one = 1;

	/* A full eventfd (EAGAIN) wakes just as well. */
	if (sys_write(e->wake_fd, &one, sizeof(one)) < 0)
		return;
}

int engine_watch_fd(struct engine *e, int fd)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.fd = fd };

	return epoll_ctl(e->epoll_fd, EPOLL_CTL_ADD, fd, &ev) ? -errno : 0;
}

void engine_unwatch_fd(struct engine *e, int fd)
{
	/* Closing it is not enough if a child has a copy. */
	epoll_ctl(e->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
}

static int watch_link(struct engine *e, struct link *l, bool watch)
{
	struct epoll_event ev = { .events = watch ? EPOLLIN : 0,
				  .data.fd = l->ops->fd(l) };

	if (watch == l->watched)
		return 0;
	if (epoll_ctl(e->epoll_fd, EPOLL_CTL_MOD, ev.data.fd, &ev))
		return -errno;
	l->watched = watch;
	return 0;
}

int thread_watch_links(struct engine *e, bool watch)
{
	int err = 0;

	for (unsigned i = 0; !err && i < e->nlinks; i++)
		err = watch_link(e, e->link[i],
				 watch || !idle_link_is_active(e->link[i]));
	for (unsigned i = 0; err && i < e->nlinks; i++)
		watch_link(e, e->link[i], true);
	return err;
}

/*
 * A program that sleeps has asked for the links that were active then, and gets
 * what the thread takes from others, which it has to watch until then.
 */
void thread_rewatch(struct engine *e)
{
	pthread_mutex_lock(&e->thread_lock);
	for (unsigned i = 0; i < e->nlinks; i++) {
		struct link *l = e->link[i];

		if (!idle_link_is_active(l))
			watch_link(e, l, true);
		else if (poller_is_back(&e->poller) &&
			 !poller_is_asleep(&e->poller))
			watch_link(e, l, false);
	}
	pthread_mutex_unlock(&e->thread_lock);
}

bool links_sleep(struct engine *e)
{
	bool idle = true;

	for (unsigned i = 0; i < e->nlinks; i++)
		if (e->link[i]->ops->sleep)
			idle &= e->link[i]->ops->sleep(e->link[i]);
	return idle;
}

void links_wake(struct engine *e, unsigned called)
{
	for (unsigned i = 0; i < e->nlinks; i++)
		if (e->link[i]->ops->wake)
			e->link[i]->ops->wake(e->link[i], called >> i & 1);
}

void thread_announce(struct engine *e)
{
	if (!links_sleep(e))
		thread_wake(e);
}

/* The link with this descriptor: its index, or nlinks. */
static unsigned link_of_fd(const struct engine *e, int fd)
{
	unsigned i = 0;

	while (i < e->nlinks && fd != e->link[i]->ops->fd(e->link[i]))
		i++;
	return i;
}

/* Programs leave none out; or that is as idle_link.h has it. */
static void links_use(struct engine *e, bool all)
{
	for (unsigned i = 0; i < e->nlinks; i++)
		idle_link_use(e->link[i], all);
}

int thread_add_links(struct engine *e)
{
	int err = 0;

	for (unsigned i = 0; !err && i < e->nlinks; i++) {
		err = engine_watch_fd(e, e->link[i]->ops->fd(e->link[i]));
		if (err == -EEXIST)
			err = 0;
		e->link[i]->watched = true;
	}
	return err;
}

void thread_remove_links(struct engine *e)
{
	for (unsigned i = 0; i < e->nlinks; i++)
		engine_unwatch_fd(e, e->link[i]->ops->fd(e->link[i]));
}

int thread_fds_open(struct engine *e)
{
	int err;

	e->epoll_fd = fd_high(epoll_create1(EPOLL_CLOEXEC));
	e->wake_fd = fd_high(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
	if (e->epoll_fd < 0 || e->wake_fd < 0)
		return -errno;
	err = engine_watch_fd(e, e->wake_fd);
	if (!err)
		err = thread_add_links(e);
	links_use(e, true);
	return err;
}

void thread_fds_close(struct engine *e)
{
	if (e->epoll_fd >= 0)
		sys_close(e->epoll_fd);
	if (e->wake_fd >= 0)
		sys_close(e->wake_fd);
	e->epoll_fd = e->wake_fd = -1;
}

/* What it does */

static _Atomic bool no_pwait2;

/* valgrind 3.19 complains, at length, of calls that it does not know. */
__attribute__((constructor)) static void look_for_valgrind(void)
{
	const char *preloads = getenv("LD_PRELOAD");

	no_pwait2 = preloads && strstr(preloads, "/vgpreload_");
}

/* False: it was interrupted, and as this thread takes no signals, by who stops or
 * traces the process. */
static bool thread_sleep(struct engine *e, uint64_t until,
			 struct epoll_event *ev, int max, int *n)
{
	uint64_t now = clock_ns();
	uint64_t ns = until > now ? until - now : 0;
	const struct sys_time t = { (int64_t)(ns / 1000000000),
				    (int64_t)(ns % 1000000000) };
	int ms = -1;

	if (!atomic_load(&no_pwait2)) {
		*n = sys_epoll_wait_ns(e->epoll_fd, ev, max,
				       until == UINT64_MAX ? NULL : &t);
		if (*n >= 0 || errno == EINTR)
			return *n >= 0;
		/* Linux before 5.11, and some sandboxes. */
		atomic_store(&no_pwait2, true);
	}
	if (until != UINT64_MAX)
		ms = ns > 3600000000000 ? 3600000 :
					  (int)((ns + 999999) / 1000000);
	*n = epoll_wait(e->epoll_fd, ev, max, ms);
	return *n >= 0 || errno != EINTR;
}

/*
 * Asks for short slices. Where programs spin on every CPU, a thread that wakes
 * must preempt one at once. The scheduler (EEVDF, Linux 6.12) lets a thread
 * with a shorter slice do so; others wait for a tick or more.
 */
static void thread_slice(void)
{
	struct {
		uint32_t size, policy;
		uint64_t flags;
		int32_t nice;
		uint32_t priority;
		uint64_t runtime, deadline, period;
	} attr = { .size = sizeof(attr), .runtime = SLICE_NS };
	int nice;

	errno = 0;
	nice = getpriority(PRIO_PROCESS, 0);
	if (errno || sched_getscheduler(0) != SCHED_OTHER)
		return;
	attr.nice = nice;
	/* Without it some things are slower, but none are wrong. */
	if (syscall(SYS_sched_setattr, 0, &attr, 0))
		return;
}

/* Why the thread has woken. */
struct woken {
	bool link; /* packets, perhaps: programs may be about to take them */
	bool idle; /* of a link that no program looks at */
	bool stopped; /* the process, by somebody, perhaps */
};

static void link_readable(struct engine *e, struct link *l, struct woken *woken)
{
	woken->link = true;
	if (!idle_link_is_active(l)) {
		woken->idle = true;
		idle_link_activity(l);
	}
	/* It is active: who polls takes what comes next. */
	if (poller_is_back(&e->poller))
		thread_rewatch(e);
}

static void fd_readable(struct engine *e, int fd, struct woken *woken)
{
	unsigned i = link_of_fd(e, fd);
	uint64_t count;

	if (i < e->nlinks)
		link_readable(e, e->link[i], woken);
	else if (fd != e->wake_fd)
		e->ops->readable(e, fd);
	else if (sys_read(e->wake_fd, &count, sizeof(count)) < 0)
		return;
}

/*
 * First announces to sleep for good, then reads the timers: who sets one is
 * either seen here or sees that. While the thread ticks it leaves them to those
 * who poll, and looks after them when it ticks. Returns the number of events, or
 * less than 0. woken->link: one has something to do, and its descriptor does not
 * say so.
 */
static int sleep_until_due(struct engine *e, struct epoll_event *ev, int max,
			   struct woken *woken)
{
	const bool watching = !poller_is_back(&e->poller);
	unsigned called = 0;
	uint64_t until;
	int i, n;

	atomic_store(&e->asleep_until, UINT64_MAX);
	atomic_fetch_add(&e->naps, 1);
	until = poller_tick_at(&e->poller);
	if (until == UINT64_MAX)
		until = min_u64(timers_next(e), delayed_ack_next(e));
	atomic_store(&e->asleep_until, until);
	if (watching && !links_sleep(e)) {
		until = 0;
		woken->link = true;
	}
	if (tracing())
		trace_put(TRACE_SLEEP, 0, TRACE_IN_THREAD, 0, 0, 0, 0);
	woken->stopped = !thread_sleep(e, until, ev, max, &n);
	if (tracing())
		trace_put(TRACE_WAKE, 0, TRACE_IN_THREAD, 0, 0, 0, 0);
	atomic_store(&e->asleep_until, 0);
	for (i = 0; i < n; i++)
		called |= 1u << link_of_fd(e, ev[i].data.fd);
	/* A program that sleeps on the links by now is not awake. */
	pthread_mutex_lock(&e->thread_lock);
	if (!poller_is_back(&e->poller))
		links_wake(e, called);
	pthread_mutex_unlock(&e->thread_lock);
	return n;
}

/*
 * How long the program's thread that has polled last has had a CPU since *t,
 * which is set; UINT64_MAX: nobody knows, as it is another thread, or gone.
 */
static uint64_t poller_ran(struct engine *e, struct poller_time *t)
{
	const struct poller_time was = *t;
	struct timespec ts;

	t->at = clock_ns();
	t->id = atomic_load(&e->poller_clock);
	if (!t->id || clock_gettime(t->id, &ts)) {
		t->id = 0;
		return UINT64_MAX;
	}
	t->ns = (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
	return t->id == was.id ? t->ns - was.ns : UINT64_MAX;
}

/* Whether it sleeps, rather than runs or is ready to run. */
static bool is_asleep(clockid_t id)
{
	/* How CPU clocks have their thread's number: clock_gettime(2). */
	return proc_state(0, ~(id >> 3)) != 'R';
}

/* Whether it had so much of a CPU's time since *since, which is set then. */
static enum poller_cpu cpu_of_poller(struct engine *e,
				     struct poller_time *since, uint64_t least)
{
	struct poller_time t = *since;
	uint64_t ran = poller_ran(e, &t);

	if (ran < least && poller_asks(&e->poller))
		return is_asleep(t.id) ? POLLER_SLEEPS : POLLER_WAITS;
	*since = t;
	return POLLER_RAN;
}

/* The same since the last tick, and whether it had one most of the time. */
static enum poller_cpu ticks_cpu(struct engine *e)
{
	const struct poller_time was = e->looked, *is = &e->looked;
	enum poller_cpu cpu = cpu_of_poller(e, &e->looked, POLLER_RAN_NS);

	if (cpu != POLLER_RAN || !is->id || is->id != was.id ||
	    is->ns - was.ns >= (is->at - was.at) / 2 || is_asleep(is->id))
		return cpu;
	return POLLER_SHARES;
}

/*
 * Gives programs POLLER_PROBE_NS of a CPU's time to take what waits, if they
 * get it; and more, as long as they do nothing but send, which may take as
 * long. Returns whether nothing waits any more; *cpu: what they had of one.
 */
static bool give_programs_time(struct engine *e, enum poller_cpu *cpu)
{
	const uint64_t ns = POLLER_PROBE_NS;
	struct poller_time t = { 0 };
	uint64_t napped = 0, next;
	bool none;

	poller_ran(e, &t);
	do {
		next = min_u64(ns + napped, POLLER_NAP_NS / 10);
		sys_sleep(next);
		napped += next;
		none = !progress_waiting(e);
		*cpu = none ? POLLER_RAN : cpu_of_poller(e, &t, ns);
	} while ((*cpu == POLLER_WAITS && napped < POLLER_NAP_NS) ||
		 (!none && napped < POLLER_SEND_NS &&
		  poller_has_sent(&e->poller)));
	return none;
}

/* Whether packets wait that programs do not take, although they poll. */
static bool is_late(struct engine *e)
{
	struct poller *p = &e->poller;
	enum poller_cpu cpu;

	return !poller_rests(p) && progress_waiting(e) &&
	       !give_programs_time(e, &cpu) && poller_is_late(p, cpu);
}

/* While the thread has stepped back. A program may make it step forward just
 * now, which changes the same. */
static bool tick_says_forward(struct engine *e, uint64_t now)
{
	const enum poller_cpu cpu = ticks_cpu(e);
	bool forward;

	pthread_mutex_lock(&e->thread_lock);
	forward = poller_tick(&e->poller, now, cpu);
	pthread_mutex_unlock(&e->thread_lock);
	return forward || is_late(e);
}

static bool probe_begins(struct engine *e)
{
	const enum poller_cpu cpu = cpu_of_poller(e, &e->looked, POLLER_RAN_NS);
	bool begins;

	pthread_mutex_lock(&e->thread_lock);
	begins = poller_probe(&e->poller, cpu);
	pthread_mutex_unlock(&e->thread_lock);
	return begins;
}

/* Whether what the thread has woken for is left to programs (poller.h). */
static bool leave_to_programs(struct engine *e, const struct woken *woken)
{
	struct poller *p = &e->poller;
	uint64_t now = clock_ns();
	bool taken, none, over;
	enum poller_cpu cpu;

	if (poller_is_back(p)) {
		if (now < poller_tick_at(p))
			return !woken->link;
		if (!tick_says_forward(e, now))
			return !woken->idle;
		progress_step_forward(e, now);
		return false;
	}
	if (!woken->link || woken->idle || !probe_begins(e))
		return false;
	none = give_programs_time(e, &cpu);
	pthread_mutex_lock(&e->thread_lock);
	taken = poller_probed(p, none, cpu);
	over = poller_taken_over(p);
	pthread_mutex_unlock(&e->thread_lock);
	if (over)
		progress_step_back(e, clock_ns());
	return taken;
}

static uint32_t poll_count(const struct engine *e)
{
	return atomic_load_explicit(&e->poller.polls, memory_order_relaxed);
}

/* Makes progress, and some more while packets come (busy_poll.h). */
static void thread_receive(struct engine *e, struct busy_poll *s)
{
	uint64_t now = clock_ns();
	bool busy;
	int n;

	busy_poll_begin(s, now, poll_count(e));
	do {
		n = progress(e, now, &busy);
		now = clock_ns();
	} while (busy_poll(s, n, now, poll_count(e)) &&
		 (n || !(busy || poller_is_back(&e->poller))));
	/* Another thread receives: epoll would report the link over and over. */
	if (busy)
		engine_quiesce(e);
}

/* What has stopped the process may have been its end, and this another host. */
static void look_for_restore(struct engine *e, uint64_t *started)
{
	const uint64_t now = proc_started();

	if (now == *started)
		return;
	*started = now;
	if (e->ops->restored)
		e->ops->restored(e);
}

static void *thread_main(void *arg)
{
	struct engine *e = arg;
	struct busy_poll s = { 0 };
	uint64_t started = proc_started();

	pthread_setname_np(pthread_self(), "softhca");
	prctl(PR_SET_TIMERSLACK, 1000);
	thread_slice();
	/* From now on others see at once when this process ends. */
	if (e->segment)
		segment_keep(e->segment);
	while (!atomic_load(&e->stop)) {
		struct woken woken = { 0 };
		struct epoll_event ev[4];
		uint64_t now;
		int i, n;

		n = sleep_until_due(e, ev, 4, &woken);
		if (woken.stopped)
			look_for_restore(e, &started);
		for (i = 0; i < n; i++)
			fd_readable(e, ev[i].data.fd, &woken);
		if (delayed_ack_next(e) != UINT64_MAX)
			delayed_ack_expire(e, clock_ns());
		if (leave_to_programs(e, &woken)) {
			now = clock_ns();
			if (timers_due(e, now))
				timers_run(e, now);
			continue;
		}
		thread_receive(e, &s);
	}
	if (e->segment)
		segment_unkeep(e->segment);
	return NULL;
}

/* Beginning and end */

static int add_tls(struct dl_phdr_info *info, size_t size, void *arg)
{
	size_t *sum = arg;

	(void)size;
	for (size_t i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_TLS)
			*sum += info->dlpi_phdr[i].p_memsz +
				info->dlpi_phdr[i].p_align;
	return 0;
}

/* A stack begins with the static TLS of the program and its libraries. */
static size_t stack_size(void)
{
	size_t size = STACK_BYTES;

	dl_iterate_phdr(add_tls, &size);
	return size;
}

/* The errno of ibv_modify_qp() alone would not explain it. */
static void say_no_thread(int err)
{
	static atomic_flag said = ATOMIC_FLAG_INIT;

	if (!atomic_flag_test_and_set(&said))
		say("cannot start the thread that receives packets while the "
		    "program does not poll: %s; %s",
		    sys_strerror(err),
		    err == EAGAIN ? "raise the limit on threads (ulimit -u; "
				    "in a container, its pids limit)" :
				    "allow threads (seccomp), and memory for "
				    "a stack");
}

int engine_start(struct engine *e)
{
	static const int faults[] = { SIGSEGV, SIGBUS,  SIGFPE,
				      SIGILL,  SIGTRAP, SIGSYS };
	pthread_attr_t attr;
	sigset_t set, old;
	size_t i;
	int err = 0;

	if (atomic_load(&e->started))
		return 0;
	pthread_mutex_lock(&e->thread_lock);
	if (atomic_load(&e->started) || halt_starts(e))
		goto out;
	/*
	 * Signals go to the program's threads, except those of this thread's
	 * own faults: a program may catch writes to memory that it protects,
	 * and a blocked one kills the process.
	 */
	sigfillset(&set);
	for (i = 0; i < ARRAY_SIZE(faults); i++)
		sigdelset(&set, faults[i]);
	pthread_sigmask(SIG_SETMASK, &set, &old);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, stack_size());
	err = -pthread_create(&e->thread, &attr, thread_main, e);
	pthread_attr_destroy(&attr);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (err) {
		say_no_thread(-err);
		goto out;
	}
	atomic_store(&e->started, true);
	/* Until now nobody else would have taken what comes. */
	links_use(e, false);
out:
	pthread_mutex_unlock(&e->thread_lock);
	return err;
}

void thread_end(struct engine *e)
{
	int state;

	atomic_store(&e->stop, true);
	thread_wake(e);
	/* A cancellation point, and the caller holds a lock. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	pthread_join(e->thread, NULL);
	pthread_setcancelstate(state, NULL);
	links_use(e, true);
}

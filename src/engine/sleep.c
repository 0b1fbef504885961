/*
 * sleep.c - a program that waits for an event receives packets itself
 *
 * If the thread received for it, each message would wake two threads, one after
 * the other. So one program's thread at a time, in ibv_get_cq_event(), does
 * what the thread does: it sleeps until a link has packets, makes progress, and
 * looks whether that was what it waits for. Meanwhile the thread rests
 * (poller.h): it runs timers, serves descriptors, and watches only the links
 * that are idle (idle_link.h). Other threads that wait for events sleep on their
 * descriptors.
 *
 * The program is woken for nothing where others receive, such as a thread that
 * polls. Then it sleeps on its descriptor like the others, and does so for some
 * times to come.
 *
 * To a program in ibv_get_cq_event() it is a read(2) on the descriptor. A
 * signal whose handler has SA_RESTART does not end it, but it does end
 * ppoll(2); where there are handlers of both kinds, there is no way to tell
 * which one ran, so the thread receives there. A thread may be cancelled while
 * it sleeps, and a handler may jump out of here.
 *
 * A program that polls on a CPU that a computing thread wants sleeps in the
 * same way for a moment (spin.h).
 *
 * engine_wait() sleeps in poll(2), which every signal ends; a handler that runs
 * before it sleeps, while it spins or receives, does not. It may receive for a
 * while before it sleeps (base/backoff.h): neither end sleeps then, nor wakes
 * the other.
 */
#include "engine_internal.h"

#include "base/backoff.h"
#include "base/bytes.h"
#include "base/cpu.h"
#include "base/sys.h"
#include "hooks/trace.h"
#include "idle_link.h"
#include "os/handlers.h"

#include <errno.h>

#define ROUNDS 16 /* of progress until it looks at what it waits for */
#define IDLE 2 /* woken for nothing so often: others receive */
#define SHY 32 /* so often others are left to receive then */

struct sleeper {
	struct engine *e;
	bool drained; /* no packet has been left behind */
	bool polls; /* any signal ends the sleep */
	bool naps; /* it polls, which is no cancellation point */
	unsigned kinds; /* of handlers, before it slept */
	const sigset_t *mask; /* for the sleep alone; or NULL */
	uint64_t until; /* UINT64_MAX: for ever */
};

/* On every way out, also that of a thread that is cancelled. */
static void sleeper_wake(void *arg)
{
	struct sleeper *s = arg;
	struct engine *e = s->e;
	uint64_t now = clock_ns();

	switch (poller_wake(&e->poller, now, !atomic_load(&e->waiting))) {
	case POLLER_NOTHING:
		break;
	case POLLER_TICKS:
		thread_wake(e);
		break;
	case POLLER_FORWARD:
		progress_step_forward(e, now);
		break;
	}
	/* Else the thread ticks. */
	if (!poller_is_back(&e->poller))
		delayed_ack_release(e);
	if (!s->drained)
		thread_wake(e);
}

static uintptr_t thread_self(void)
{
	return (uintptr_t)pthread_self();
}

void sleep_forget(struct engine *e)
{
	struct sleeper s = { .e = e };

	if (atomic_load(&e->poller.asleep) == thread_self())
		sleeper_wake(&s);
}

static bool sleeper_begin(struct engine *e)
{
	uint32_t shy = atomic_load_explicit(&e->shy, memory_order_relaxed);

	if (!atomic_load(&e->started))
		return false;
	delayed_ack_release(e);
	sleep_forget(e);
	if (shy) {
		atomic_store_explicit(&e->shy, shy - 1, memory_order_relaxed);
		return false;
	}
	if (!poller_sleep(&e->poller, thread_self()))
		return false;
	/* Who suspends the process waits for whoever sleeps by then (halt.c). */
	if (atomic_load(&e->started))
		return true;
	sleep_forget(e);
	return false;
}

/* Returns the number of packets. */
static int sleeper_receive(struct sleeper *s)
{
	int n = 0, got, round;
	bool busy;

	/* Those who answer may be other threads. */
	if (delayed_ack_next(s->e) != UINT64_MAX)
		delayed_ack_expire(s->e, clock_ns());
	s->drained = false;
	for (round = 0; round < ROUNDS && !s->drained; round++) {
		got = progress(s->e, clock_ns(), &busy);
		n += got;
		/* What has come since then wakes somebody again. */
		s->drained = got < RX_BUDGET && !busy;
		if (busy)
			engine_quiesce(s->e);
	}
	return n;
}

/* The thread watches no active link from now on. */
static void take_over(struct engine *e, uint64_t now)
{
	pthread_mutex_lock(&e->thread_lock);
	if (!poller_is_back(&e->poller) && !thread_watch_links(e, false))
		poller_rest(&e->poller, now);
	pthread_mutex_unlock(&e->thread_lock);
}

/* Whether a signal that has ended the sleep would have ended a read(2): there
 * is a handler that does that, or was (SA_RESETHAND). */
static bool sleep_interrupted(const struct sleeper *s)
{
	return s->polls ||
	       (s->kinds | handlers_kinds(UINT64_MAX)) != HANDLERS_RESTART;
}

/* ppoll(2) until a time, with the mask; a cancellation point. */
static int poll_until(const struct sleeper *s, struct pollfd *p, unsigned n,
		      uint64_t until)
{
	uint64_t now = until == UINT64_MAX ? 0 : clock_ns();
	uint64_t ns = until > now ? until - now : 0;
	const struct sys_time t = { (int64_t)(ns / 1000000000),
				    (int64_t)(ns % 1000000000) };
	long ret;

	if (tracing())
		trace_put(TRACE_SLEEP, 0, TRACE_IN_PROGRAM, 0, 0, 0, 0);
	if (s->naps)
		ret = syscall(SYS_PPOLL, p, n, &t, NULL, 0);
	else
		ret = sys_wait(SYS_PPOLL, (long)p, (long)n,
			       until == UINT64_MAX ? 0 : (long)&t,
			       (long)s->mask, _NSIG / 8);
	if (tracing())
		trace_put(TRACE_WAKE, 0, TRACE_IN_PROGRAM, 0, 0, 0, 0);
	return ret < 0 ? -errno : (int)ret;
}

/* Of each link what to wait for: of those whose packets would wake nobody else,
 * or that the program is to take them from. */
static void own_links(struct engine *e, struct pollfd *p)
{
	unsigned i;

	pthread_mutex_lock(&e->thread_lock);
	if (poller_is_back(&e->poller))
		thread_watch_links(e, false);
	for (i = 0; i < e->nlinks; i++)
		p[i] = (struct pollfd){
			.fd = idle_link_is_active(e->link[i]) ||
					      !e->link[i]->watched ?
				      e->link[i]->ops->fd(e->link[i]) :
				      -1,
			.events = POLLIN,
		};
	pthread_mutex_unlock(&e->thread_lock);
}

/*
 * Until when: the program's timers may be earlier than those that the thread
 * knows of. Those that may be late are left to a thread that looks soon: a short
 * timeout sets the processor's timer and takes it back, which costs more than
 * all else here where the processor is a virtual one.
 */
static uint64_t sleep_until(const struct sleeper *s)
{
	const uint64_t look = atomic_load(&s->e->asleep_until);
	uint64_t due = timers_next(s->e);

	if (look && look - TIMER_LATE_NS <= due &&
	    !timers_hurry(s->e, clock_ns()))
		due = UINT64_MAX;
	return min_u64(s->until, min_u64(due, delayed_ack_next(s->e)));
}

/*
 * Sleeps until fd or a link is readable, or something is due. 1: fd is; 0: not;
 * or -errno. *woken: by a link.
 */
static int sleeper_doze(struct sleeper *s, int fd, bool *woken)
{
	struct engine *e = s->e;
	struct pollfd p[ENGINE_LINKS + 1] = { { .fd = fd, .events = POLLIN } };
	unsigned i, called = 0;
	int n = 1;

	own_links(e, p + 1);
	if (links_sleep(e))
		n = poll_until(s, p, e->nlinks + 1, sleep_until(s));
	for (i = 0; n > 0 && i < e->nlinks; i++)
		called |= (unsigned)(p[i + 1].revents != 0) << i;
	pthread_mutex_lock(&e->thread_lock);
	links_wake(e, called);
	/* It watches the links again, since others wait as well. */
	if (!poller_is_back(&e->poller))
		thread_announce(e);
	pthread_mutex_unlock(&e->thread_lock);
	*woken = n > 0;
	if (n >= 0)
		return p[0].revents != 0;
	return n != -EINTR || sleep_interrupted(s) ? n : 0;
}

static int wait_for(struct sleeper *s, int fd, bool (*arrived)(void *arg),
		    void *arg)
{
	uint64_t now = clock_ns();
	int idle = 0, err;
	bool woken;

	s->kinds = handlers_kinds(now);
	if (s->kinds == (HANDLERS_RESTART | HANDLERS_INTERRUPT))
		return -EBUSY;
	take_over(s->e, now);
	/* On the way here it may have done what other threads left to it, and
	 * that was what it waits for. */
	while (!arrived(arg)) {
		if (idle == IDLE) {
			atomic_store(&s->e->shy, SHY);
			return -EBUSY;
		}
		err = sleeper_doze(s, fd, &woken);
		if (err)
			return err < 0 ? err : 0;
		idle = sleeper_receive(s) ? 0 : idle + woken;
	}
	return 0;
}

int engine_sleep(struct engine *e, int fd, bool (*arrived)(void *arg),
		 void *arg)
{
	struct sleeper s = { .e = e, .drained = true, .until = UINT64_MAX };
	int err;

	if (!sleeper_begin(e))
		return -EBUSY;
	pthread_cleanup_push(sleeper_wake, &s);
	err = wait_for(&s, fd, arrived, arg);
	pthread_cleanup_pop(true);
	return err;
}

int engine_nap(struct engine *e, uint64_t until)
{
	struct sleeper s = { .e = e,
			     .drained = true,
			     .polls = true,
			     .naps = true,
			     .until = until };
	bool woken;
	int n = 0;

	if (!sleeper_begin(e))
		return -EBUSY;
	take_over(e, clock_ns());
	if (sleeper_doze(&s, -1, &woken) >= 0)
		n = sleeper_receive(&s);
	sleeper_wake(&s);
	return n;
}

static bool fd_is_readable(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return sys_poll(&p, 1, 0) > 0;
}

/* Receives for a while, if that is likely to help: whether fd is readable. */
static bool spin_receiving(struct sleeper *s, int fd)
{
	static _Thread_local
		__attribute__((tls_model("initial-exec"))) struct backoff state;
	uint64_t now, end;
	bool done = false;

	if (backoff_skips(&state))
		return false;
	now = clock_ns();
	end = min_u64(now + BACKOFF_SPIN_NS, s->until);
	for (; now < end && !done; now = clock_ns()) {
		if (progress_ready(s->e, now))
			done = sleeper_receive(s) && fd_is_readable(fd);
		else
			cpu_relax();
	}
	backoff_spun(&state, done && now < end);
	return done;
}

/* 1: fd is readable; 0: the time has come; -EINTR; -EBUSY: others receive. */
static int wait_until(struct sleeper *s, int fd, bool spin)
{
	int idle = 0, err;
	bool woken;

	take_over(s->e, clock_ns());
	if (spin && spin_receiving(s, fd))
		return 1;
	for (;;) {
		err = sleeper_doze(s, fd, &woken);
		if (err)
			return err;
		idle = sleeper_receive(s) ? 0 : idle + woken;
		if (fd_is_readable(fd))
			return 1;
		if (s->until != UINT64_MAX && clock_ns() >= s->until)
			return 0;
		if (idle == IDLE) {
			atomic_store(&s->e->shy, SHY);
			return -EBUSY;
		}
	}
}

static void sleep_waits_no_more(void *e)
{
	engine_waits(e, false);
}

/* Sleeps while the thread or another one receives. */
static int wait_aside(struct sleeper *s, int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	int err;

	atomic_store(&s->e->dozer, 0);
	engine_waits(s->e, true);
	pthread_cleanup_push(sleep_waits_no_more, s->e);
	err = poll_until(s, &p, 1, s->until);
	pthread_cleanup_pop(true);
	return err < 0 ? err : p.revents != 0;
}

int engine_wait(struct engine *e, int fd, uint64_t until, const sigset_t *mask,
		bool spin)
{
	struct sleeper s = { .e = e,
			     .drained = true,
			     .polls = true,
			     .mask = mask,
			     .until = until };
	int err;

	if (!sleeper_begin(e))
		return wait_aside(&s, fd);
	atomic_store(&e->dozer, thread_self());
	pthread_cleanup_push(sleeper_wake, &s);
	err = wait_until(&s, fd, spin);
	pthread_cleanup_pop(true);
	return err == -EBUSY ? wait_aside(&s, fd) : err;
}

bool sleep_is_waiter(const struct engine *e)
{
	return atomic_load_explicit(&e->dozer, memory_order_relaxed) ==
	       thread_self();
}

void engine_waits(struct engine *e, bool waits)
{
	if (!waits) {
		atomic_fetch_sub(&e->waiting, 1);
		return;
	}
	atomic_fetch_add(&e->waiting, 1);
	if (poller_tick_at(&e->poller) != UINT64_MAX)
		progress_step_forward(e, clock_ns());
}

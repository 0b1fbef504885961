/*
 * sleep.c - a program that waits for an event receives by itself
 *
 * If the thread received for it, each message would wake two threads, one after
 * the other. So one program's thread at a time, in ibv_get_cq_event(), does
 * what the thread does: it sleeps until a link has packets, makes progress, and
 * looks whether that was what it waits for. Meanwhile the thread rests
 * (presence.h): it watches no link, runs timers, and serves descriptors. Other
 * threads that wait for events sleep on their descriptors.
 *
 * The program is woken for nothing where others receive, such as a thread that
 * polls. Then it sleeps on its descriptor like the others, and does so for some
 * times to come.
 *
 * To the program it is a read(2) on the descriptor. A signal whose handler has
 * SA_RESTART does not end it, but it does end ppoll(2); where there are handlers
 * of both kinds, nobody could tell which one it was, so the thread receives
 * there. A thread may be cancelled while it sleeps, and a handler may jump out
 * of here.
 */
#include "internal.h"

#include "base/sys.h"
#include "heat.h"
#include "host/handlers.h"

#include <errno.h>

#define ROUNDS 16 /* of progress until it looks at what it waits for */
#define IDLE 2 /* woken for nothing so often: others receive */
#define SHY 32 /* so often others are left to receive then */

struct sleeper {
	struct engine *e;
	bool drained; /* no packet has been left behind */
	unsigned kinds; /* of handlers, before it slept */
};

/* On every way out, also that of a thread that is cancelled. */
static void wake(void *arg)
{
	struct sleeper *s = arg;
	struct engine *e = s->e;
	uint64_t now = clock_ns();

	switch (presence_wake(&e->presence, now, !atomic_load(&e->waiting))) {
	case PRESENCE_NOTHING:
		break;
	case PRESENCE_TICKS:
		thread_wake(e);
		break;
	case PRESENCE_FORWARD:
		progress_step_forward(e, now);
		break;
	}
	if (!s->drained)
		thread_wake(e);
}

static uintptr_t self(void)
{
	return (uintptr_t)pthread_self();
}

void sleep_forget(struct engine *e)
{
	struct sleeper s = { .e = e };

	if (atomic_load(&e->presence.asleep) == self())
		wake(&s);
}

static bool begin(struct engine *e)
{
	uint32_t shy = atomic_load_explicit(&e->shy, memory_order_relaxed);

	if (!atomic_load(&e->started))
		return false;
	sleep_forget(e);
	if (shy) {
		atomic_store_explicit(&e->shy, shy - 1, memory_order_relaxed);
		return false;
	}
	return presence_sleep(&e->presence, self());
}

/* Returns the number of packets. */
static int receive(struct sleeper *s)
{
	int n = 0, got, round;
	bool busy;

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

/*
 * The thread watches no hot link from now on. Has the program set a timer that the
 * thread does not know of, since it ticked at that time, it learns of it.
 */
static void take_over(struct engine *e, uint64_t now)
{
	pthread_mutex_lock(&e->thread_lock);
	if (!presence_is_back(&e->presence) && !thread_watch_links(e, false))
		presence_rest(&e->presence, now);
	pthread_mutex_unlock(&e->thread_lock);
	if (timers_next(e) < atomic_load(&e->asleep_until))
		thread_wake(e);
}

/* Whether a signal that has ended the sleep would have ended a read(2): there
 * is a handler that does that, or was (SA_RESETHAND). */
static bool interrupted(const struct sleeper *s)
{
	return (s->kinds | handlers_kinds(UINT64_MAX)) != HANDLERS_RESTART;
}

/* The links whose packets would wake nobody else, or that the program is to
 * take them from. */
static unsigned own_links(struct engine *e, struct pollfd *p)
{
	unsigned i, n = 0;

	pthread_mutex_lock(&e->thread_lock);
	if (presence_is_back(&e->presence))
		thread_watch_links(e, false);
	for (i = 0; i < e->nlinks; i++)
		if (heat_is_hot(e->link[i]) || !e->link[i]->watched)
			p[n++] = (struct pollfd){
				.fd = e->link[i]->ops->fd(e->link[i]),
				.events = POLLIN,
			};
	pthread_mutex_unlock(&e->thread_lock);
	return n;
}

/*
 * Sleeps until fd or a link is readable. 1: fd is; 0: a link, or none; or
 * -errno.
 */
static int doze(struct sleeper *s, int fd)
{
	struct engine *e = s->e;
	struct pollfd p[ENGINE_LINKS + 1] = { { .fd = fd, .events = POLLIN } };
	const long n = 1 + (long)own_links(e, p + 1);
	int err = 0;

	if (links_sleep(e) && sys_wait(SYS_PPOLL, (long)p, n, 0, 0, 0) < 0)
		err = -errno;
	pthread_mutex_lock(&e->thread_lock);
	links_wake(e);
	/* It watches the links again, since others wait as well. */
	if (!presence_is_back(&e->presence))
		thread_announce(e);
	pthread_mutex_unlock(&e->thread_lock);
	if (!err)
		return p[0].revents != 0;
	return err != -EINTR || interrupted(s) ? err : 0;
}

static int wait_for(struct sleeper *s, int fd, bool (*arrived)(void *arg),
		    void *arg)
{
	uint64_t now = clock_ns();
	int idle = 0, err;

	s->kinds = handlers_kinds(now);
	if (s->kinds == (HANDLERS_RESTART | HANDLERS_INTERRUPT))
		return -EBUSY;
	take_over(s->e, now);
	for (;;) {
		err = doze(s, fd);
		if (err)
			return err < 0 ? err : 0;
		idle = receive(s) ? 0 : idle + 1;
		if (arrived(arg))
			return 0;
		if (idle == IDLE) {
			atomic_store(&s->e->shy, SHY);
			return -EBUSY;
		}
	}
}

int engine_sleep(struct engine *e, int fd, bool (*arrived)(void *arg),
		 void *arg)
{
	struct sleeper s = { .e = e, .drained = true };
	int err;

	if (!begin(e))
		return -EBUSY;
	pthread_cleanup_push(wake, &s);
	err = wait_for(&s, fd, arrived, arg);
	pthread_cleanup_pop(true);
	return err;
}

void engine_waits(struct engine *e, bool waits)
{
	if (!waits) {
		atomic_fetch_sub(&e->waiting, 1);
		return;
	}
	atomic_fetch_add(&e->waiting, 1);
	if (presence_tick_at(&e->presence) != UINT64_MAX)
		progress_step_forward(e, clock_ns());
}

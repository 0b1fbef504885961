/*
 * asked.c - this process is suspended by another one (counters/suspend_ask.h)
 *
 * By a thread of its own, which blocks all signals: the engine's ends meanwhile.
 * It has three descriptors while the process is away, all of pipes, which anybody
 * can carry. When nobody has the other end of the first one, the process goes on:
 * who has asked has closed it, or has ended, or this is the process as restored. If
 * it cannot go on it says why, and tries again, as an address may come late.
 */
#include "softhca/migrate.h"

#include "base/fd_high.h"
#include "base/say.h"
#include "counters/suspend_ask.h"
#include "os/config.h"
#include "process/process.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#define AGAIN_NS 100000000u /* from one try to go on to the next, */
#define LATER_NS 1000000000u /* and after */
#define SOON 50 /* of them */
#define QUIET_NS                                                               \
	12000000000u /* who has restored it may still end it, and restore it
			       * elsewhere: files are then to be as they were */
#define HEARD_NS 3000000000u /* who wants to know what came of it looks */
#define LOOK_NS 5000000u

static struct pipes {
	int hold[2]; /* the process is away as long as [1] is open somewhere */
	int done[2]; /* it is on again */
} pipes = { { -1, -1 }, { -1, -1 } };

static _Atomic bool busy;

static void put(int *fd)
{
	if (*fd >= 0)
		sys_close(*fd);
	*fd = -1;
}

static void pipes_close(void)
{
	put(&pipes.hold[0]);
	put(&pipes.hold[1]);
	put(&pipes.done[0]);
	put(&pipes.done[1]);
}

static int pipe_open(int fd[2])
{
	if (pipe2(fd, O_CLOEXEC | O_NONBLOCK)) {
		fd[0] = fd[1] = -1;
		return errno;
	}
	fd[0] = fd_high(fd[0]);
	fd[1] = fd_high(fd[1]);
	return 0;
}

static int pipes_open(void)
{
	int err = pipe_open(pipes.hold);

	return err ? err : pipe_open(pipes.done);
}

static void explain(struct suspend_answer *a, int err, const char *why)
{
	a->err = err;
	a->done = pipes.done[0];
	snprintf(a->why, sizeof(a->why), "%s", err ? why : "");
}

/* Suspends, and says so. Whether somebody has heard that. */
static bool leave(int who)
{
	struct suspend_answer a = { 0 };
	const uint64_t begin = sys_now_ns();
	int seat = -1, err = pipes_open();
	bool away;

	if (err) {
		explain(&a, err, sys_strerror(err));
	} else {
		err = softhca_suspend_seated(&seat);
		explain(&a, err, softhca_migrate_why());
	}
	away = !err;
	a.took_ns = sys_now_ns() - begin;
	err = suspend_answer(who, &a, away ? pipes.hold[1] : -1, seat);
	sys_close(who);
	put(&pipes.hold[1]);
	put(&seat);
	/* Nobody has heard it: then nobody has the pipe's end. */
	(void)err;
	return away;
}

static void wait_held(void)
{
	struct pollfd p = { .fd = pipes.hold[0] };

	while (sys_poll(&p, 1, -1) < 0 && errno == EINTR)
		;
}

/* Until whoever wants to know has read it, if anybody does. */
static void wait_heard(void)
{
	const uint64_t begin = sys_now_ns();
	int left;

	while (!ioctl(pipes.done[0], FIONREAD, &left) && left &&
	       sys_now_ns() - begin < HEARD_NS)
		sys_sleep(LOOK_NS);
}

static void come_back(void)
{
	struct suspend_answer a = { 0 };
	const uint64_t first = sys_now_ns();
	uint64_t begin = first;
	int err, told = 0;
	bool said = false;

	for (unsigned i = 0; (err = softhca_resume()); i++) {
		if (err == EINVAL)
			break; /* the program has done it */
		explain(&a, err, softhca_migrate_why());
		if (err != told)
			suspend_done(pipes.done[1], &a);
		told = err;
		if (!said && sys_now_ns() - first > QUIET_NS) {
			say("cannot go on after being suspended: %s. Trying "
			    "again",
			    a.why);
			said = true;
		}
		sys_sleep(i < SOON ? AGAIN_NS : LATER_NS);
		begin = sys_now_ns();
	}
	if (said)
		say("this process goes on");
	explain(&a, 0, "");
	a.took_ns = sys_now_ns() - begin;
	suspend_done(pipes.done[1], &a);
	wait_heard();
}

static void *away_main(void *arg)
{
	pthread_setname_np(pthread_self(), "softhca-away");
	if (leave((int)(intptr_t)arg)) {
		wait_held();
		come_back();
	}
	pipes_close();
	atomic_store(&busy, false);
	return NULL;
}

static int start(int who)
{
	pthread_attr_t attr;
	sigset_t set, old;
	pthread_t thread;
	int err;

	sigfillset(&set);
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_sigmask(SIG_SETMASK, &set, &old);
	err = pthread_create(&thread, &attr, away_main, (void *)(intptr_t)who);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	return err;
}

/* In the engine's thread, which ends before the process is suspended. */
static void asked(int who)
{
	struct suspend_answer a = { 0 };
	int err = EALREADY;

	if (!atomic_exchange(&busy, true)) {
		err = start(who);
		if (!err)
			return;
		atomic_store(&busy, false);
	}
	explain(&a, err,
		err == EALREADY ? "another one suspends this process just now" :
				  sys_strerror(err));
	suspend_answer(who, &a, -1, -1);
	sys_close(who);
}

/* The thread is the parent's, and so are the pipes. */
static void fork_child(void)
{
	pipes_close();
	atomic_store(&busy, false);
}

__attribute__((constructor)) static void attach(void)
{
	shca_suspend_asked = asked;
	pthread_atfork(NULL, NULL, fork_child);
}

/*
 * asked.c - this process is suspended by another one (counters/suspend_ask.h), or
 * counts its peers for it
 *
 * By a thread of its own, which blocks all signals: the engine's ends meanwhile.
 * It has three descriptors while the process is away, all of pipes, which anybody
 * can carry. When nobody has the other end of the first one, the process goes on:
 * who has asked has closed it, or has ended, or this is the process as restored. If
 * it cannot go on it says why, and tries again, as an address may come late.
 */
#include "softhca/migrate.h"

#include "migrate.h"

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
/* And peers, who are told that this process goes on, say that they do. */
#define PEERS_NS 1000000000u

static struct pipes {
	int hold[2]; /* the process is away as long as [1] is open somewhere */
	int done[2]; /* it is on again */
} pipes = { { -1, -1 }, { -1, -1 } };

static _Atomic bool busy;

static struct asked {
	int who;
	struct suspend_request want;
} asked;

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
	a->real_ns = sys_real_ns();
	snprintf(a->why, sizeof(a->why), "%s", err ? why : "");
}

static void note_stop(struct suspend_answer *a)
{
	const struct migrate_stop stop = migrate_stopped();

	a->real_ns = stop.real_ns;
	a->peers.all = (uint32_t)stop.all;
	a->peers.wait = (uint32_t)stop.waits;
}

/* Suspends, and says so. Whether somebody has heard that. */
static bool leave(void)
{
	struct suspend_answer a = { 0 };
	const uint64_t begin = sys_now_ns();
	const unsigned seconds = asked.want.seconds;
	int seat = -1, err = pipes_open();
	bool away;

	if (err) {
		explain(&a, err, sys_strerror(err));
	} else {
		err = seconds ? softhca_suspend_for(seconds, &seat) :
				softhca_suspend_seated(&seat);
		explain(&a, err, softhca_migrate_why());
	}
	away = !err;
	if (away)
		note_stop(&a);
	a.took_ns = sys_now_ns() - begin;
	err = suspend_answer(asked.who, &a, away ? pipes.hold[1] : -1, seat);
	sys_close(asked.who);
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

/* For who wants to know how long they have waited. */
static void hear_peers(struct suspend_answer *a)
{
	const uint64_t begin = sys_now_ns();
	struct moving_away away[MOVING_AWAY];
	size_t n;

	if (!asked.want.seconds)
		return;
	while (!migrate_heard(away, &n) && sys_now_ns() - begin < PEERS_NS)
		sys_sleep(LOOK_NS / 5);
	for (size_t i = 0; i < n && i < SUSPEND_AWAY; i++) {
		struct suspend_away *to = &a->away[a->naway++];

		memcpy(to->at, away[i].at.raw, sizeof(to->at));
		to->qps = away[i].qps;
		to->ns = away[i].ns;
	}
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
	hear_peers(&a);
	suspend_done(pipes.done[1], &a);
	wait_heard();
}

static uint32_t in_ms(uint64_t ns)
{
	return ns / 1000000 < UINT32_MAX ? (uint32_t)(ns / 1000000) :
					   UINT32_MAX;
}

static void *count_main(void *arg)
{
	struct suspend_answer a = { 0 };
	const int who = asked.who;
	struct moving_sum sum = { 0 };
	int err = migrate_count(&sum);

	explain(&a, err, softhca_migrate_why());
	if (!err)
		a.peers = (struct suspend_peers){
			.all = (uint32_t)sum.sum.all,
			.wait = (uint32_t)sum.sum.hello,
			.host = (uint32_t)sum.host,
			.patience_ms = in_ms(sum.patience_ns),
			.far_ms = in_ms(sum.far_ns),
			.other_secret = sum.sum.other_secret,
		};
	/* Whoever hears it may ask for more at once. */
	atomic_store(&busy, false);
	suspend_answer(who, &a, -1, -1);
	sys_close(who);
	return arg;
}

static void *away_main(void *arg)
{
	(void)arg;
	pthread_setname_np(pthread_self(), "softhca-away");
	if (leave()) {
		wait_held();
		come_back();
	}
	pipes_close();
	atomic_store(&busy, false);
	return NULL;
}

static int start(int who, const struct suspend_request *want)
{
	pthread_attr_t attr;
	sigset_t set, old;
	pthread_t thread;
	int err;

	asked = (struct asked){ who, *want };
	sigfillset(&set);
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_sigmask(SIG_SETMASK, &set, &old);
	err = pthread_create(&thread, &attr,
			     want->count ? count_main : away_main, NULL);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	return err;
}

/* In the engine's thread, which ends before the process is suspended. */
static void answer(int who, const struct suspend_request *want)
{
	struct suspend_answer a = { 0 };
	int err = EALREADY;

	if (!atomic_exchange(&busy, true)) {
		err = start(who, want);
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
	shca_suspend_asked = answer;
	pthread_atfork(NULL, NULL, fork_child);
}

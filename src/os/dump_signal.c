/*
 * dump_signal.c - the handler of SIGUSR1, see dump_signal.h
 *
 * It may have interrupted anything, so it only leaves word in an eventfd; the
 * thread that answers is another one, which blocks all signals.
 */
#include "dump_signal.h"

#include "base/fd_high.h"
#include "base/sys.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static _Atomic int answers = -1;
static _Atomic pid_t owner; /* whose handler it is */
static char nothing[160];

static void on_signal(int sig)
{
	const uint64_t one = 1;
	const int fd = atomic_load(&answers), err = errno;

	if (getpid() != atomic_load(&owner)) {
		/* A forked child, to which it means what it always does. */
		signal(sig, SIG_DFL);
		raise(sig);
	} else if (fd < 0 ? sys_write(STDERR_FILENO, nothing, strlen(nothing)) :
			    sys_write(fd, &one, sizeof(one))) {
		/* Whatever came of it: there is nobody to tell. */
	}
	errno = err;
}

bool dump_signal_is_ours(const struct sigaction *sa)
{
	return sa->sa_handler == on_signal;
}

static bool is_default(const struct sigaction *sa)
{
	return sa->sa_handler == SIG_DFL || dump_signal_is_ours(sa);
}

void dump_signal_begin(void)
{
	/* On the stack that the thread has for handlers: Go insists on that. */
	const struct sigaction ours = { .sa_handler = on_signal,
					.sa_flags = SA_RESTART | SA_ONSTACK };
	struct sigaction was;

	snprintf(nothing, sizeof(nothing),
		 "softhca: process %d has no queue pair that is connected\n",
		 (int)getpid());
	atomic_store(&owner, getpid());
	if (sigaction(SIGUSR1, NULL, &was) || !is_default(&was))
		return;
	/* Another thread may just have installed one. */
	if (!sigaction(SIGUSR1, &ours, &was) && !is_default(&was))
		sigaction(SIGUSR1, &was, NULL);
}

int dump_signal_open(void)
{
	const int fd = fd_high(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));

	if (fd < 0)
		return -errno;
	atomic_store(&answers, fd);
	return fd;
}

void dump_signal_close(int fd)
{
	int is = fd;

	atomic_compare_exchange_strong(&answers, &is, -1);
	sys_close(fd);
}

/*
 * restart.h - sleeping in calls that the kernel would start again
 *
 * A blocking recv() that a signal interrupts goes on if the signal's handler
 * has SA_RESTART; poll(), in which ours sleeps, ends with EINTR either way and
 * does not say by which signal. So signals are blocked while it sleeps, and a
 * signalfd ends the sleep: which signals are pending can be asked before their
 * handlers run.
 */
#ifndef SOFTHCA_BASE_RESTART_H
#define SOFTHCA_BASE_RESTART_H

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define RESTART_MAX_FDS 15

/* One for all threads: it shows each its own signals, and is never read. */
static inline int restart_signalfd(void)
{
	static _Atomic int shared; /* and 1 */
	int fd = shared - 1, none = 0;
	sigset_t all;

	if (fd >= 0)
		return fd;
	sigfillset(&all);
	fd = signalfd(-1, &all, SFD_NONBLOCK | SFD_CLOEXEC);
	if (fd >= 0 &&
	    !atomic_compare_exchange_strong(&shared, &none, fd + 1)) {
		close(fd);
		fd = none - 1;
	}
	return fd;
}

enum restart { RESTART_NOTHING, RESTART_CALL, RESTART_EINTR };

/* What becomes of a call when mask lets in what is pending now. */
static inline enum restart restart_pending(const sigset_t *mask)
{
	enum restart r = RESTART_NOTHING;
	struct sigaction sa;
	sigset_t pending;
	int sig;

	sigpending(&pending);
	for (sig = 1; sig < NSIG; sig++) {
		if (sigismember(&pending, sig) != 1 || sigismember(mask, sig) ||
		    sigaction(sig, NULL, &sa))
			continue;
		if (sa.sa_handler != SIG_DFL && sa.sa_handler != SIG_IGN &&
		    !(sa.sa_flags & SA_RESTART))
			return RESTART_EINTR;
		r = RESTART_CALL;
	}
	return r;
}

/*
 * poll() of a few descriptors that fails with EINTR only where the kernel would
 * not have started the call again. Returns 0 when it would.
 */
static inline int restart_poll(struct pollfd *fds, nfds_t n, int timeout)
{
	struct pollfd all[RESTART_MAX_FDS + 1];
	enum restart r = RESTART_NOTHING;
	sigset_t full, old;
	int sfd, ret, err;

	sfd = n <= RESTART_MAX_FDS ? restart_signalfd() : -1;
	if (sfd < 0)
		return poll(fds, n, timeout);
	memcpy(all, fds, n * sizeof(*fds));
	all[n] = (struct pollfd){ .fd = sfd, .events = POLLIN };
	sigfillset(&full);
	pthread_sigmask(SIG_SETMASK, &full, &old);
	ret = poll(all, n + 1, timeout);
	err = errno;
	if (ret > 0 && all[n].revents)
		r = restart_pending(&old);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (ret < 0) { /* a signal of libc's own */
		errno = err;
		return err == EINTR ? 0 : ret;
	}
	if (ret == 1 && all[n].revents) {
		if (r == RESTART_EINTR) {
			errno = EINTR;
			return -1;
		}
		/* One that the program blocks would end each sleep at once. */
		if (r == RESTART_NOTHING)
			return poll(fds, n, timeout);
	}
	memcpy(fds, all, n * sizeof(*fds));
	return ret - !!all[n].revents;
}

#endif

/*
 * restart.c - sleeping in calls that the kernel would start again
 *
 * A blocking recv() that a signal interrupts goes on if the signal's handler
 * has SA_RESTART. Ours sleeps in poll(), which ends with EINTR either way and
 * does not say because of which signal. If all handlers of the process are of
 * one kind, the answer is known (os/handlers.h). If not, signals whose handlers
 * restart are blocked during the sleep, and a signalfd ends it when one comes:
 * EINTR is then due to the others.
 *
 * To read all handlers takes microseconds, so the result is trusted for a
 * millisecond. A program that has changed a handler since, and gets a signal,
 * sees EINTR.
 */
#include "base/fd_high.h"
#include "os/handlers.h"
#include "rsock_internal.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define TRUST_NS 1000000u
#define MAX_FDS 15

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct handlers {
	sigset_t restart; /* with SA_RESTART */
	bool any; /* of those */
	bool others; /* of the program's */
	uint64_t asked_ns;
} known;
static int sfd = -1; /* of known.restart: never read */

/* Under mutex. Reads all handlers; true if they are as before. */
static bool read_handlers(uint64_t now)
{
	struct handlers h = { 0 };
	bool same;

	h.others = handlers_read(&h.restart) & HANDLERS_INTERRUPT;
	h.any = !sigisemptyset(&h.restart);
	same = known.asked_ns && h.others == known.others &&
	       !memcmp(&h.restart, &known.restart, sizeof(h.restart));
	known = h;
	known.asked_ns = now;
	if (!same && h.any && h.others) {
		if (sfd < 0)
			sfd = fd_high(signalfd(-1, &h.restart,
					       SFD_NONBLOCK | SFD_CLOEXEC));
		else
			signalfd(sfd, &h.restart, 0);
	}
	return same;
}

/* Another thread may have held the mutex; a new mask would be the parent's. */
void rsock_restart_forked(void)
{
	pthread_mutex_init(&mutex, NULL);
	known.asked_ns = 0;
	if (sfd >= 0)
		close(sfd);
	sfd = -1;
}

static struct handlers get_handlers(bool *same)
{
	uint64_t now = rsock_now_ns();
	struct handlers h;

	pthread_mutex_lock(&mutex);
	*same = (!*same && now - known.asked_ns < TRUST_NS) ||
		read_handlers(now);
	h = known;
	pthread_mutex_unlock(&mutex);
	return h;
}

/* What a call returns that a signal ended; h was known before. */
static int signal_result(const struct handlers *h, bool interrupted)
{
	bool same = true; /* read them, however fresh they are */
	struct handlers now = get_handlers(&same);
	/* It may have been gone when it ran (SA_RESETHAND). */
	bool others = now.others || (interrupted && h->others);

	if (!others ||
	    (now.any && !interrupted && same &&
	     !memcmp(&now.restart, &h->restart, sizeof(now.restart))))
		return 0;
	errno = EINTR;
	return -1;
}

static bool any_pending(const sigset_t *set)
{
	sigset_t pending;
	int sig;

	sigpending(&pending);
	for (sig = 1; sig < NSIG; sig++)
		if (sigismember(&pending, sig) == 1 &&
		    sigismember(set, sig) == 1)
			return true;
	return false;
}

int rsock_sleep(struct pollfd *fds, nfds_t n, int timeout_ms)
{
	struct timespec ts = { timeout_ms / 1000,
			       timeout_ms % 1000 * 1000000L };
	struct pollfd all[MAX_FDS + 1];
	bool same = false, came;
	struct handlers h = get_handlers(&same);
	sigset_t mask;
	int sig, ret;

	/*
	 * A pending signal that the program blocks would end each sleep at
	 * once.
	 */
	if (n > MAX_FDS || !h.any || !h.others || sfd < 0 ||
	    any_pending(&h.restart)) {
		ret = poll(fds, n, timeout_ms);
		return ret < 0 && errno == EINTR ? signal_result(&h, true) :
						   ret;
	}
	memcpy(all, fds, n * sizeof(*fds));
	all[n] = (struct pollfd){ .fd = sfd, .events = POLLIN };
	pthread_sigmask(SIG_SETMASK, NULL, &mask);
	for (sig = 1; sig < NSIG; sig++)
		if (sigismember(&h.restart, sig) == 1)
			sigaddset(&mask, sig);
	ret = ppoll(all, n + 1, timeout_ms < 0 ? NULL : &ts, &mask);
	if (ret < 0)
		return errno == EINTR ? signal_result(&h, true) : ret;
	came = all[n].revents;
	memcpy(fds, all, n * sizeof(*fds));
	if (came && ret == 1)
		return signal_result(&h, false);
	return ret - came;
}

/*
 * fd_high.h - moves our descriptors out of the program's way
 *
 * Our descriptors have numbers that the program does not reach. Programs rely
 * on the numbers of theirs: the lowest that is free, and none beyond what
 * RLIMIT_NOFILE or a table of theirs has room for. Numbers from the soft limit
 * on are best, where the hard limit leaves room: they take nothing from the
 * program. The soft limit is raised for a moment to get one; a child that
 * another thread starts in that moment keeps the raised limit.
 */
#ifndef SOFTHCA_BASE_FD_HIGH_H
#define SOFTHCA_BASE_FD_HIGH_H

#include "base/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>

/* The kernel's table extends to the highest number, and fork() copies it. */
#define ASIDE_MOST 32768

/* Returns the same open file under another number, or fd if that fails. */
static inline int fd_high(int fd)
{
#ifdef __SANITIZE_THREAD__
	/* TSan knows what epoll orders by the descriptors that it saw being
	 * made, and does not see that one gets another number. */
	return fd;
#endif
	int err = errno, to = -1;
	struct rlimit was, more, seen;
	rlim_t from;

	if (fd < 0 || getrlimit(RLIMIT_NOFILE, &was))
		return fd;
	from = was.rlim_cur < ASIDE_MOST ? was.rlim_cur : ASIDE_MOST;
	if (from < was.rlim_cur) {
		to = fcntl(fd, F_DUPFD_CLOEXEC, (int)from);
	} else if (was.rlim_max > from) {
		more = was;
		more.rlim_cur = was.rlim_max;
		if (!setrlimit(RLIMIT_NOFILE, &more)) {
			to = fcntl(fd, F_DUPFD_CLOEXEC, (int)from);
			/* Keeps a change that the program made meanwhile. */
			if (!prlimit(0, RLIMIT_NOFILE, &was, &seen) &&
			    (seen.rlim_cur != more.rlim_cur ||
			     seen.rlim_max != more.rlim_max))
				setrlimit(RLIMIT_NOFILE, &seen);
		}
	}
	if (to < 0)
		to = fcntl(fd, F_DUPFD_CLOEXEC, (int)(from / 2));
	if (to >= 0)
		sys_close(fd);
	errno = err;
	return to < 0 ? fd : to;
}

#endif

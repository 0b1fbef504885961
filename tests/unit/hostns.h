/*
 * hostns.h - a host of one's own: tests that open port 4791 or look at
 * interfaces run in a network namespace, where nothing else does
 */
#ifndef SOFTHCA_TESTS_HOSTNS_H
#define SOFTHCA_TESTS_HOSTNS_H

#include "child.h"

#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static inline bool write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	bool done = fd >= 0 &&
		    write(fd, text, strlen(text)) == (ssize_t)strlen(text);

	if (fd >= 0)
		close(fd);
	return done;
}

static inline bool loopback_up(void)
{
	struct ifreq ifr = { .ifr_name = "lo" };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	bool up;

	if (fd < 0)
		return false;
	ifr.ifr_flags = IFF_UP | IFF_RUNNING;
	up = !ioctl(fd, SIOCSIFFLAGS, &ifr);
	close(fd);
	return up;
}

/* Moves the process to a new namespace in which only lo is up. */
static inline bool own_netns(void)
{
	char map[64];
	uid_t uid = geteuid();
	gid_t gid = getegid();

	if (unshare(CLONE_NEWNET)) {
		if (unshare(CLONE_NEWUSER | CLONE_NEWNET))
			return false;
		snprintf(map, sizeof(map), "0 %u 1", uid);
		if (!write_file("/proc/self/setgroups", "deny") ||
		    !write_file("/proc/self/uid_map", map))
			return false;
		snprintf(map, sizeof(map), "0 %u 1", gid);
		if (!write_file("/proc/self/gid_map", map))
			return false;
	}
	return loopback_up();
}

/* Runs a command line of ip(8); false if it fails or there is none. */
__attribute__((format(printf, 1, 2))) static inline bool ip(const char *fmt,
							    ...)
{
	char args[256], cmd[320];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(args, sizeof(args), fmt, ap);
	va_end(ap);
	snprintf(cmd, sizeof(cmd),
		 "PATH=$PATH:/sbin:/usr/sbin ip %s >/dev/null 2>&1", args);
	return !system(cmd);
}

/* Runs fn(arg) in another process and returns what it returns (0..255). */
static inline int in_child(int (*fn)(void *arg), void *arg)
{
	pid_t pid = fork_child();
	int status = 0;

	if (!pid)
		_exit(fn(arg));
	if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
		return -1;
	return WEXITSTATUS(status);
}

#endif

/*
 * suspend_ask.c - asking a process to suspend, and answering, see suspend_ask.h
 */
#include "suspend_ask.h"

#include "base/bytes.h"
#include "base/lines.h"
#include "base/sys.h"
#include "os/proc.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define MAGIC "softhca"
/* How the name of who asks begins; a number of seconds follows. */
#define NAME "softhca-suspend"
#define NAME_COUNT "softhca-peers"
#define FILES "/softhca-" /* and the files of a registry, behind their folder */
#define SUFFIX ".s" /* of a socket's */

/* Answering */

bool suspend_is_asked(int who, struct suspend_request *want)
{
	struct sockaddr_un a = { 0 };
	char name[sizeof(a.sun_path)] = "";
	socklen_t len = sizeof(a);

	*want = (struct suspend_request){ 0 };
	if (getpeername(who, (struct sockaddr *)&a, &len) ||
	    len <= sizeof(a.sun_family) + 1)
		return false;
	/* Behind the 0 of such a name. */
	memcpy(name, a.sun_path + 1, len - sizeof(a.sun_family) - 1);
	if (sscanf(name, NAME "-%u-", &want->seconds) == 1)
		return true;
	want->count = !strncmp(name, NAME_COUNT "-", sizeof(NAME_COUNT));
	return want->count;
}

static void sign(struct suspend_answer *a)
{
	memcpy(a->magic, MAGIC, sizeof(a->magic));
	a->version = SUSPEND_VERSION;
}

static bool is_sound(struct suspend_answer *a, size_t len)
{
	if (len != sizeof(*a) || memcmp(a->magic, MAGIC, sizeof(a->magic)) ||
	    a->version != SUSPEND_VERSION)
		return false;
	a->why[sizeof(a->why) - 1] = '\0';
	make_printable(a->why);
	return true;
}

int suspend_answer(int who, struct suspend_answer *a, int hold, int seat)
{
	struct iovec iov = { a, sizeof(*a) };
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(2 * sizeof(int))];
	} control = { 0 };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };
	const int fds[2] = { hold, seat };
	const size_t n = hold < 0 ? 0 : seat < 0 ? 1 : 2;
	struct cmsghdr *c;

	sign(a);
	if (n) {
		m.msg_control = control.bytes;
		m.msg_controllen = CMSG_SPACE(n * sizeof(int));
		c = CMSG_FIRSTHDR(&m);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(n * sizeof(int));
		memcpy(CMSG_DATA(c), fds, n * sizeof(int));
	}
	return sys_sendmsg(who, &m, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -errno :
								       0;
}

int suspend_done(int fd, struct suspend_answer *a)
{
	sign(a);
	return sys_write(fd, a, sizeof(*a)) == (ssize_t)sizeof(*a) ? 0 : -EIO;
}

/* Asking */

static bool is_socket(void *inode, const char *link)
{
	unsigned long its;

	return sscanf(link, "socket:[%lu]", &its) == 1 &&
	       its == *(unsigned long *)inode;
}

static bool is_of_registry(void *arg, const char *link)
{
	(void)arg;
	return strstr(link, FILES) != NULL;
}

/* Whether a line of /proc/net/unix shows the socket of a process, by its name. */
static bool socket_line(char *line, unsigned long *inode, const char **path)
{
	size_t len;
	int at = 0;

	line[strcspn(line, "\n")] = '\0';
	if (sscanf(line, "%*s %*s %*s %*s %*s %*s %lu %n", inode, &at) < 1 ||
	    !at || line[at] != '/')
		return false;
	*path = line + at;
	len = strlen(*path);
	return strstr(*path, FILES) && len > strlen(SUFFIX) &&
	       !strcmp(*path + len - strlen(SUFFIX), SUFFIX);
}

static bool find_socket(pid_t pid, char path[4096])
{
	char name[64], line[4096 + 128];
	unsigned long inode;
	bool found = false;
	const char *is;
	FILE *f;

	snprintf(name, sizeof(name), "/proc/%d/net/unix", (int)pid);
	f = fopen(name, "rce");
	while (f && !found && fgets(line, sizeof(line), f)) {
		if (!socket_line(line, &inode, &is))
			continue;
		found = proc_find_fd(pid, is_socket, &inode);
		if (found)
			snprintf(path, 4096, "%.4000s", is);
	}
	if (f)
		fclose(f);
	return found;
}

enum suspend_state suspend_state_of(pid_t pid, char path[4096])
{
	path[0] = '\0';
	if (find_socket(pid, path))
		return SUSPEND_SOCKET;
	return proc_find_fd(pid, is_of_registry, NULL) ? SUSPEND_NO_SOCKET :
							 SUSPEND_NO_DEVICE;
}

/* The folder is the process's, which may have another root. */
static int connect_to(pid_t pid, const char *path, int fd)
{
	const char *name = strrchr(path, '/') + 1;
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	char dir[4096 + 64];
	int at, err;

	snprintf(dir, sizeof(dir), "/proc/%d/root%.*s", (int)pid,
		 (int)(name - path), path);
	at = sys_open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
	if (at < 0)
		return -errno;
	err = (size_t)snprintf(a.sun_path, sizeof(a.sun_path),
			       "/proc/self/fd/%d/%s", at,
			       name) >= sizeof(a.sun_path) ?
		      -ENAMETOOLONG :
	      connect(fd, (struct sockaddr *)&a, sizeof(a)) ? -errno :
							      0;
	sys_close(at);
	return err;
}

/* What we want. */
static int take_name(int fd, const struct suspend_request *want)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int len = snprintf(a.sun_path + 1, sizeof(a.sun_path) - 1,
			   "%s-%u-%d-%d", want->count ? NAME_COUNT : NAME,
			   want->seconds, (int)getpid(), fd);

	return bind(fd, (struct sockaddr *)&a,
		    (socklen_t)(sizeof(a.sun_family) + 1 + (size_t)len)) ?
		       -errno :
		       0;
}

static bool is_of(int fd, pid_t pid)
{
	struct ucred c;
	socklen_t len = sizeof(c);

	return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &c, &len) &&
	       c.pid == pid;
}

static void take_fds(struct msghdr *m, struct suspended *s)
{
	struct cmsghdr *c = CMSG_FIRSTHDR(m);
	int fds[2] = { -1, -1 };
	size_t len;

	if (!c || c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
		return;
	len = c->cmsg_len - CMSG_LEN(0);
	memcpy(fds, CMSG_DATA(c), len < sizeof(fds) ? len : sizeof(fds));
	s->hold = fds[0];
	s->seat = fds[1];
}

static int hear(int fd, uint64_t wait_ns, struct suspended *s)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	struct iovec iov = { &s->answer, sizeof(s->answer) };
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(2 * sizeof(int))];
	} control;
	struct msghdr m = { .msg_iov = &iov,
			    .msg_iovlen = 1,
			    .msg_control = control.bytes,
			    .msg_controllen = sizeof(control.bytes) };
	ssize_t n;

	if (poll(&p, 1, (int)(wait_ns / 1000000)) < 1)
		return -ETIMEDOUT;
	n = sys_recvmsg(fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (n < 0)
		return -errno;
	take_fds(&m, s);
	if (!n)
		return -ECONNRESET;
	return !is_sound(&s->answer, (size_t)n) ? -EPROTO : -s->answer.err;
}

int suspend_ask(pid_t pid, const char *path, const struct suspend_request *want,
		uint64_t wait_ns, struct suspended *s)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), err;

	*s = (struct suspended){ .hold = -1, .seat = -1 };
	if (fd < 0)
		return -errno;
	err = take_name(fd, want);
	if (!err)
		err = connect_to(pid, path, fd);
	if (!err && !is_of(fd, pid))
		err = -ESRCH;
	if (!err)
		err = hear(fd, wait_ns, s);
	sys_close(fd);
	if (!err && s->hold < 0 && !want->count)
		err = -EPROTO;
	if (err && s->hold >= 0)
		sys_close(s->hold);
	if (err && s->seat >= 0)
		sys_close(s->seat);
	if (err)
		s->hold = s->seat = -1;
	return err;
}

int suspend_done_open(pid_t pid, int done)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)pid, done);
	fd = sys_open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
	return fd < 0 ? -errno : fd;
}

int suspend_done_wait(int fd, uint64_t wait_ns, struct suspend_answer *a)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	ssize_t n;

	if (poll(&p, 1, (int)(wait_ns / 1000000)) < 1)
		return -ETIMEDOUT;
	n = sys_read(fd, a, sizeof(*a));
	if (n < 0)
		return -errno;
	return n && is_sound(a, (size_t)n) ? 0 : -EPROTO;
}

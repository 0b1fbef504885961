/*
 * threads.c - what the threads of a process do, as /proc shows it
 *
 * A thread may go on at any time, so what its arguments point to is read through
 * /proc/PID/mem, where a page that is gone is an error and nothing worse.
 */
#include "threads.h"

#include "proc.h"

#include "base/bytes.h"
#include "base/gid.h"
#include "base/lines.h"
#include "base/sys.h"

#include <dirent.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PROC_PATH 160

struct reader {
	pid_t pid; /* 0: of this process */
	int mem; /* /proc/PID/mem, or -1 */
	struct thread_does *t;
};

/* A file of a process, or (0) of this one: "/proc/1234/mem". */
static const char *proc_path(pid_t pid, const char *name, char path[PROC_PATH])
{
	if (pid)
		snprintf(path, PROC_PATH, "/proc/%d/%s", (int)pid, name);
	else
		snprintf(path, PROC_PATH, "/proc/self/%s", name);
	return path;
}

static bool peek(const struct reader *r, unsigned long at, void *to,
		 size_t size)
{
	return r->mem >= 0 && sys_pread(r->mem, to, size, at) == (ssize_t)size;
}

static void add_fd(struct thread_does *t, int fd)
{
	if (fd < 0)
		return;
	if (t->n < THREAD_FDS)
		t->fd[t->n++] = fd;
	else
		t->more = true;
}

static void add_polled(struct reader *r, unsigned long at, unsigned long n)
{
	struct pollfd p;

	for (unsigned long i = 0; i < n && !r->t->more; i++)
		if (peek(r, at + i * sizeof(p), &p, sizeof(p)))
			add_fd(r->t, p.fd);
}

static void add_selected(struct reader *r, unsigned long at, unsigned long n)
{
	unsigned long word, bits = 8 * sizeof(word);

	for (unsigned long i = 0; i < n && i < FD_SETSIZE && !r->t->more;
	     i += bits) {
		if (!at || !peek(r, at + i / 8, &word, sizeof(word)))
			return;
		for (unsigned long b = 0; b < bits && i + b < n; b++)
			if (word >> b & 1)
				add_fd(r->t, (int)(i + b));
	}
}

/* What an epoll instance waits for: "tfd: 7 events: ...". */
static void add_watched(struct reader *r, int epoll)
{
	char path[PROC_PATH], name[32], text[4096], *p = text;
	int fd;

	snprintf(name, sizeof(name), "fdinfo/%d", epoll);
	if (!proc_text(proc_path(r->pid, name, path), text, sizeof(text)))
		return;
	while ((p = strstr(p, "tfd:")) && !r->t->more) {
		p += strlen("tfd:");
		if (sscanf(p, "%d", &fd) == 1)
			add_fd(r->t, fd);
	}
}

/* The descriptor in the first argument. */
static void of_fd(struct reader *r, enum thread_call call,
		  const unsigned long arg[6])
{
	r->t->call = call;
	add_fd(r->t, (int)arg[0]);
}

static void set_call(struct reader *r, long number, const unsigned long arg[6])
{
	struct thread_does *t = r->t;

	switch (number) {
	case SYS_read:
	case SYS_readv:
	case SYS_recvfrom:
	case SYS_recvmsg:
		of_fd(r, THREAD_READS, arg);
		break;
	case SYS_write:
	case SYS_writev:
	case SYS_sendto:
	case SYS_sendmsg:
		of_fd(r, THREAD_WRITES, arg);
		break;
	case SYS_accept:
	case SYS_accept4:
		of_fd(r, THREAD_ACCEPTS, arg);
		break;
	case SYS_connect:
		of_fd(r, THREAD_CONNECTS, arg);
		if (arg[2] <= sizeof(t->to))
			peek(r, arg[1], &t->to, arg[2]);
		break;
#ifdef SYS_poll
	case SYS_poll:
#endif
	case SYS_ppoll:
		t->call = THREAD_POLLS;
		add_polled(r, arg[0], arg[1]);
		break;
#ifdef SYS_select
	case SYS_select:
#endif
	case SYS_pselect6:
		t->call = THREAD_POLLS;
		add_selected(r, arg[1], arg[0]);
		add_selected(r, arg[2], arg[0]);
		break;
#ifdef SYS_epoll_wait
	case SYS_epoll_wait:
#endif
#ifdef SYS_epoll_pwait2
	case SYS_epoll_pwait2:
#endif
	case SYS_epoll_pwait:
		t->call = THREAD_POLLS;
		add_watched(r, (int)arg[0]);
		break;
	case SYS_futex:
		t->call = THREAD_LOCKS;
		break;
	case SYS_nanosleep:
	case SYS_clock_nanosleep:
		t->call = THREAD_SLEEPS;
		break;
#ifdef SYS_pause
	case SYS_pause:
#endif
	case SYS_rt_sigsuspend:
	case SYS_rt_sigtimedwait:
		t->call = THREAD_SIGNAL;
		break;
	case SYS_wait4:
	case SYS_waitid:
		t->call = THREAD_CHILD;
		break;
	default:
		t->call = THREAD_OTHER;
		break;
	}
}

static void look_at(struct reader *r, const char *tid)
{
	struct thread_does *t = r->t;
	unsigned long arg[6];
	char path[PROC_PATH], name[48], text[256];
	long number;

	*t = (struct thread_does){ .tid = (pid_t)atol(tid),
				   .call = THREAD_OTHER };
	t->state = proc_state(r->pid, t->tid);
	snprintf(name, sizeof(name), "task/%.16s/comm", tid);
	proc_text(proc_path(r->pid, name, path), t->name, sizeof(t->name));
	t->name[strcspn(t->name, "\n")] = '\0';
	make_printable(t->name);
	snprintf(name, sizeof(name), "task/%.16s/syscall", tid);
	if (!proc_text(proc_path(r->pid, name, path), text, sizeof(text)))
		return;
	if (!strncmp(text, "running", 7))
		t->call = THREAD_RUNS;
	else if (sscanf(text, "%ld 0x%lx 0x%lx 0x%lx 0x%lx 0x%lx 0x%lx",
			&number, &arg[0], &arg[1], &arg[2], &arg[3], &arg[4],
			&arg[5]) == 7 &&
		 number >= 0)
		set_call(r, number, arg);
}

unsigned threads_each(pid_t pid, unsigned most,
		      void (*fn)(void *arg, const struct thread_does *t),
		      void *arg)
{
	const pid_t own = (pid_t)syscall(SYS_gettid);
	char path[PROC_PATH];
	DIR *tasks = opendir(proc_path(pid, "task", path));
	struct thread_does does;
	struct reader r = { .pid = pid, .t = &does };
	unsigned n = 0;
	struct dirent *d;

	if (!tasks)
		return 0;
	r.mem = sys_open(proc_path(pid, "mem", path), O_RDONLY | O_CLOEXEC, 0);
	while ((d = readdir(tasks))) {
		if (d->d_name[0] < '1' || d->d_name[0] > '9' ||
		    atol(d->d_name) == own || n++ >= most)
			continue;
		look_at(&r, d->d_name);
		fn(arg, &does);
	}
	if (r.mem >= 0)
		sys_close(r.mem);
	closedir(tasks);
	return n > most ? n - most : 0;
}

/* Descriptors */

/* An address and port as /proc/net/tcp has them: 32-bit words in the processor's
 * byte order. */
static bool address_text(const char *hex, char *text, size_t size)
{
	union ibv_gid gid = { .raw = { [10] = 0xff, [11] = 0xff } };
	struct gid_text at;
	unsigned w[4], port;

	if (sscanf(hex, "%8x%8x%8x%8x:%x", &w[0], &w[1], &w[2], &w[3], &port) ==
	    5)
		memcpy(gid.raw, w, 16);
	else if (sscanf(hex, "%8x:%x", &w[0], &port) == 2)
		memcpy(gid.raw + 12, w, 4);
	else
		return false;
	snprintf(text, size, "%s port %u", gid_str(&gid, &at), port);
	return true;
}

/* Of the TCP socket with an inode: what comes by it. */
static bool tcp_text(pid_t pid, unsigned long inode, char *text, size_t size)
{
	static const char *const tables[] = { "net/tcp", "net/tcp6" };
	char path[PROC_PATH], line[512], own[64], peer[64], at[80];
	unsigned long its;
	unsigned state;

	for (size_t i = 0; i < ARRAY_SIZE(tables); i++) {
		FILE *f = fopen(proc_path(pid, tables[i], path), "rce");
		bool found = false;

		while (f && !found && fgets(line, sizeof(line), f))
			found = sscanf(line,
				       " %*u: %63s %63s %x %*s %*s %*s %*u "
				       "%*u %lu",
				       own, peer, &state, &its) == 4 &&
				its == inode;
		if (f)
			fclose(f);
		if (!found)
			continue;
		if (state == TCP_LISTEN && address_text(own, at, sizeof(at)))
			snprintf(text, size, "a connection to %s", at);
		else if (address_text(peer, at, sizeof(at)))
			snprintf(text, size, "data from %s", at);
		else
			return false;
		return true;
	}
	return false;
}

void thread_fd_text(pid_t pid, int fd, char *text, size_t size)
{
	char path[PROC_PATH], name[100], what[128];
	unsigned long inode;
	ssize_t n;

	snprintf(name, sizeof(name), "fd/%d", fd);
	n = readlink(proc_path(pid, name, path), name, sizeof(name) - 1);
	name[n > 0 ? n : 0] = '\0';
	if (sscanf(name, "socket:[%lu]", &inode) == 1 &&
	    tcp_text(pid, inode, what, sizeof(what)))
		snprintf(text, size, "%s (descriptor %d)%s", what, fd,
			 strstr(what, "connection") ? ": nobody has come" : "");
	else
		snprintf(text, size, "descriptor %d%s%s%s", fd,
			 n > 0 ? " (" : "", name, n > 0 ? ")" : "");
}

/* All that a thread waits for; false: nothing that is to be said. */
static bool fds_text(const struct thread_does *t,
		     bool (*fd_text)(void *arg, int fd, char *text,
				     size_t size),
		     void *arg, char *text, size_t size)
{
	char one[400];
	size_t len = 0;

	for (unsigned i = 0; i < t->n && len < size; i++)
		if (fd_text(arg, t->fd[i], one, sizeof(one)))
			len += (size_t)snprintf(text + len, size - len, "%s%s",
						len ? "; or " : "waits for ",
						one);
	if (len && t->more && len < size)
		snprintf(text + len, size - len, "; or others");
	return len;
}

/* Of a socket that connects. */
static void to_text(const struct thread_does *t, char *text, size_t size)
{
	const struct sockaddr_in *in = (const void *)&t->to;
	const struct sockaddr_in6 *in6 = (const void *)&t->to;
	char at[INET6_ADDRSTRLEN] = "a socket";
	uint16_t port = in->sin_port; /* where it is in both */

	if (t->to.ss_family == AF_INET)
		inet_ntop(AF_INET, &in->sin_addr, at, sizeof(at));
	else if (t->to.ss_family == AF_INET6)
		inet_ntop(AF_INET6, &in6->sin6_addr, at, sizeof(at));
	else
		port = 0;
	snprintf(text, size,
		 "connects to %s port %u (connect, descriptor %d): no answer",
		 at, ntohs(port), t->n ? t->fd[0] : -1);
}

bool thread_says(const struct thread_does *t,
		 bool (*fd_text)(void *arg, int fd, char *text, size_t size),
		 void *arg, char *text, size_t size)
{
	const char *fixed = NULL;

	switch (t->call) {
	case THREAD_RUNS:
		return false;
	case THREAD_POLLS:
	case THREAD_READS:
	case THREAD_ACCEPTS:
		return fds_text(t, fd_text, arg, text, size);
	case THREAD_CONNECTS:
		to_text(t, text, size);
		return true;
	case THREAD_WRITES:
		fixed = "writes to a descriptor that takes no more";
		break;
	case THREAD_SLEEPS:
		fixed = "sleeps for a time (nanosleep)";
		break;
	case THREAD_SIGNAL:
		fixed = "waits for a signal (pause, sigwait)";
		break;
	case THREAD_CHILD:
		fixed = "waits for a child process to end (wait)";
		break;
	case THREAD_LOCKS:
		fixed = "waits for another thread (futex: pthread_mutex_lock, "
			"pthread_cond_wait, pthread_join)";
		break;
	case THREAD_OTHER:
		fixed = t->state == 'R' ? "runs" :
			t->state == 'D' ? "is in the kernel, and cannot be "
					  "interrupted" :
					  "sleeps in a system call";
		break;
	}
	snprintf(text, size, "%s", fixed);
	return true;
}

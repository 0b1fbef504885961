/*
 * lines.c - source lines of addresses, from a process that is started for them
 *
 * What reads debug information, softhca-lines beside this library, is a program
 * of its own, so nothing of it is in the program that is looked at. It is
 * started when there is something to report, and not waited for longer than
 * CHECK_LINES_S; without an answer the report has addresses.
 *
 * The program is not to notice. It gets no signal, and no child that its own
 * wait(2) returns: one without an exit signal starts the other and exits.
 * The reader has an empty environment, none of the program's descriptors, and
 * ends by itself. It is not started where the program has since changed its root
 * directory, where another reader and another loader may lie, or has restricted
 * its system calls, of which one that is refused may end it.
 */
#include "check_internal.h"

#include "base/fd_high.h"
#include "base/lines.h"
#include "base/say.h"
#include "os/proc.h"

#include <dlfcn.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define STACK (64u << 10) /* of a child, until it is another program */

static struct {
	char path[PATH_MAX]; /* "": none */
	struct stat reader, root; /* when the program began */
	unsigned filters; /* of system calls, then */
} lines;

/* Filters of system calls that this process has; before Linux 5.9: whether. */
static unsigned count_filters(void)
{
	const char *at;
	char text[4096];

	if (!proc_text("/proc/thread-self/status", text, sizeof(text)))
		return UINT_MAX;
	at = strstr(text, "\nSeccomp_filters:");
	if (!at)
		at = strstr(text, "\nSeccomp:");
	return at ? (unsigned)strtoul(strchr(at, ':') + 1, NULL, 10) : 0;
}

static bool is_same(const struct stat *a, const struct stat *b)
{
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* Before main(), which may restrict the process. */
__attribute__((constructor)) static void remember(void)
{
	static const char name[] = "softhca-lines";
	char *slash;
	Dl_info own;

	if ((!getenv("SOFTHCA_CHECK") && !getenv("SOFTHCA_EXPLAIN")) ||
	    getauxval(AT_SECURE) ||
	    !dladdr((const void *)(uintptr_t)&remember, &own) ||
	    own.dli_fname[0] != '/' ||
	    strlen(own.dli_fname) + sizeof(name) > sizeof(lines.path))
		return;
	strcpy(lines.path, own.dli_fname);
	slash = strrchr(lines.path, '/');
	strcpy(slash + 1, name);
	lines.filters = count_filters();
	if (stat(lines.path, &lines.reader) || stat("/", &lines.root) ||
	    lines.filters == UINT_MAX)
		lines.path[0] = '\0';
}

static bool is_as_it_was(void)
{
	struct stat reader, root;

	return lines.path[0] && !stat("/", &root) &&
	       is_same(&root, &lines.root) && !stat(lines.path, &reader) &&
	       is_same(&reader, &lines.reader) &&
	       count_filters() == lines.filters;
}

/* ---- the children ------------------------------------------------------ */

/* They share this process's memory, and it stands still meanwhile. */
struct start {
	int in, out; /* ends of the reader's */
	char *stack; /* its end */
	char *argv[3];
};

/* The reader: a child of a child. Signals stay blocked until it is another
 * program, which lets them in. */
static int run_reader(void *arg)
{
	static char *const env[] = { NULL };
	const struct start *s = arg;

	dup2(s->in, STDIN_FILENO);
	dup2(s->out, STDOUT_FILENO);
	/* The loader complains of a library that is missing. */
	dup2(s->out, STDERR_FILENO);
#ifdef SYS_close_range
	syscall(SYS_close_range, 3, ~0u, 0);
#endif
	execve(lines.path, s->argv, env);
	_exit(127);
}

static int run_between(void *arg)
{
	struct start *s = arg;

	clone(run_reader, s->stack - STACK, CLONE_VM | CLONE_VFORK | SIGCHLD,
	      s);
	_exit(0);
}

static bool start_reader(int in, int out)
{
	/* So it is not the reader that ends first. */
	char limit[] = { '1' + CHECK_LINES_S, '\0' };
	struct start s = { .in = in,
			   .out = out,
			   .argv = { lines.path, limit, NULL } };
	char *stack = mmap(NULL, 2 * (size_t)STACK, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
	sigset_t all, old;
	pid_t pid;

	if (stack == MAP_FAILED)
		return false;
	s.stack = stack + 2 * (size_t)STACK;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	/* Without an exit signal: only who asks for such children finds it. */
	pid = clone(run_between, s.stack, CLONE_VM | CLONE_VFORK, &s);
	if (pid > 0)
		syscall(SYS_wait4, pid, NULL, __WCLONE, NULL);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	munmap(stack, 2 * (size_t)STACK);
	return pid > 0;
}

/* ---- asking ------------------------------------------------------------ */

static bool make_pipe(int fd[2])
{
	if (pipe2(fd, O_CLOEXEC))
		return false;
	/* Those of a program that has closed its first three are not to be
	 * taken for these. */
	fd[0] = fd_high(fd[0]);
	fd[1] = fd_high(fd[1]);
	return true;
}

/* Until the other end has been closed; false: that takes longer than CHECK_LINES_S, or
 * there is no end of it. */
static bool read_all(int fd, char *out, size_t room)
{
	const uint64_t until = sys_now_ns() + CHECK_LINES_S * 1000000000ull;
	struct pollfd p = { .fd = fd, .events = POLLIN };
	size_t len = 0;
	uint64_t now;
	ssize_t n = 1;

	while (n && len + 1 < room && (now = sys_now_ns()) < until) {
		if (sys_poll(&p, 1, (int)((until - now) / 1000000) + 1) <= 0)
			continue;
		n = sys_read(fd, out + len, room - 1 - len);
		if (n > 0)
			len += (size_t)n;
		else if (n < 0 && errno != EINTR)
			break;
	}
	out[len] = '\0';
	return !n;
}

/* What has gone wrong, or NULL. */
static const char *is_broken(char *answer, bool ended)
{
	const size_t len = strlen(answer);

	if (!ended)
		return "to read debug information takes too long";
	if (len >= 2 && !strcmp(answer + len - 2, ".\n"))
		return NULL;
	if (!len || (answer[0] >= '0' && answer[0] <= '9'))
		return "softhca-lines gives no answer";
	answer[strcspn(answer, "\n")] = '\0';
	make_printable(answer);
	return answer;
}

bool check_lines(const char *asked, char *answer, size_t room)
{
	const size_t len = strlen(asked);
	bool started = false, ended;
	int to[2], from[2];
	const char *why;

	if (!is_as_it_was() || !make_pipe(to))
		return false;
	if (!make_pipe(from)) {
		sys_close(to[0]);
		sys_close(to[1]);
		return false;
	}
	/* A pipe may be small. */
	fcntl(to[1], F_SETFL, O_NONBLOCK);
	if (sys_write(to[1], asked, len) == (ssize_t)len)
		started = start_reader(to[0], from[1]);
	sys_close(to[0]);
	sys_close(to[1]);
	sys_close(from[1]);
	ended = started && read_all(from[0], answer, room);
	sys_close(from[0]);
	why = started ? is_broken(answer, ended) :
			"no process can be started for them";
	if (why) {
		say("without file and line: %.300s", why);
		lines.path[0] = '\0'; /* nor will it the next time */
	}
	return !why;
}

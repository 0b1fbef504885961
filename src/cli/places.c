/*
 * places.c - where in a running program its threads stand
 *
 * softhca-lines, beside the libraries, reads stacks and debug information: a file
 * of either that is damaged ends that process and not this one. Its answer is
 * lines of "TID<tab>FUNCTION<tab>SOURCE:LINE" and one of "." at the end.
 */
#include "cli/places.h"

#include "base/lines.h"
#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define SECONDS "3" /* that it may take */
#define ANSWER 65536

/* The child: without an environment, which may name servers of debug information. */
static void __attribute__((noreturn)) run(const char *path, pid_t pid, int out)
{
	static char *const none[] = { NULL };
	char number[16];
	char *const argv[] = { (char *)path, SECONDS, number, NULL };
	const int null = open("/dev/null", O_RDWR);

	snprintf(number, sizeof(number), "%d", (int)pid);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (null >= 0 && dup2(null, STDIN_FILENO) >= 0 &&
	    dup2(null, STDERR_FILENO) >= 0 && dup2(out, STDOUT_FILENO) >= 0)
		execve(path, argv, none);
	_exit(127);
}

static size_t read_all(int fd, char *text, size_t size)
{
	size_t len = 0;
	ssize_t n;

	while (len < size - 1) {
		n = read(fd, text + len, size - 1 - len);
		if (n > 0)
			len += (size_t)n;
		else if (!n || errno != EINTR)
			break;
	}
	text[len] = '\0';
	return len;
}

void places_read(struct places *p, pid_t pid)
{
	char libdir[PATH_MAX], path[PATH_MAX + 32];
	size_t len = 0;
	pid_t child;
	int fd[2];

	*p = (struct places){ .text = NULL };
	if (pid <= 0 || libdir_find(libdir))
		return;
	snprintf(path, sizeof(path), "%s/softhca-lines", libdir);
	if (access(path, X_OK) || pipe2(fd, O_CLOEXEC))
		return;
	fflush(NULL);
	child = fork();
	if (!child)
		run(path, pid, fd[1]);
	close(fd[1]);
	p->text = child > 0 ? malloc(ANSWER) : NULL;
	if (p->text)
		len = read_all(fd[0], p->text, ANSWER);
	close(fd[0]);
	if (child > 0)
		waitpid(child, NULL, 0);
	/* One that was too slow has not said all. */
	if (len < 2 || strcmp(p->text + len - 2, ".\n") != 0)
		places_free(p);
}

void places_free(struct places *p)
{
	free(p->text);
	p->text = NULL;
}

/* What a program calls, and headers have as functions that are inlined. */
static bool is_of_verbs(const char *source)
{
	return strstr(source, "/infiniband/verbs.h:") ||
	       strstr(source, "/rdma/rdma_verbs.h:");
}

struct frame {
	pid_t tid;
	char function[128], source[1024];
};

/* A line's fields, printable; false: it is the last one, or makes no sense. */
static bool next_frame(char **at, struct frame *f)
{
	char *line = *at, *end = strchr(line, '\n');
	int tid;

	f->function[0] = '\0';
	if (!end || (sscanf(line, "%d\t%127[^\t\n]\t%1023[^\n]", &tid,
			    f->function, f->source) != 3 &&
		     sscanf(line, "%d\t\t%1023[^\n]", &tid, f->source) != 2))
		return false;
	f->tid = (pid_t)tid;
	make_printable(f->function);
	make_printable(f->source);
	*at = end + 1;
	return true;
}

static bool is_shown(const struct places *p, pid_t tid)
{
	for (unsigned i = 0; i < p->n; i++)
		if (p->shown[i] == tid)
			return true;
	return false;
}

/* Else it is "FILE+0xOFFSET". */
static bool has_line(const struct frame *f)
{
	return !strstr(f->source, "+0x");
}

static bool any_line(const struct places *p, pid_t tid)
{
	char *at = p->text;
	struct frame f;

	while (at && next_frame(&at, &f))
		if (f.tid == tid && has_line(&f))
			return true;
	return false;
}

void places_print(struct places *p, pid_t tid, unsigned most,
		  const char *indent)
{
	/* One alone is to be the program's, below which libraries may be. */
	const bool lines = most == 1 && any_line(p, tid);
	char *at = p->text;
	unsigned n = 0;
	struct frame f;

	while (at && next_frame(&at, &f)) {
		if (f.tid != tid || n == most || (lines && !has_line(&f)) ||
		    (!n && is_of_verbs(f.source)))
			continue;
		printf("%s  #%u %s%s%s%s\n", indent, n++, f.source,
		       f.function[0] ? " (" : "", f.function,
		       f.function[0] ? ")" : "");
	}
	if (p->n < PLACES_THREADS)
		p->shown[p->n++] = tid;
}

void places_print_rest(struct places *p, unsigned most, const char *indent)
{
	char *at = p->text;
	struct frame f;

	while (at && next_frame(&at, &f)) {
		if (is_shown(p, f.tid) || p->n == PLACES_THREADS)
			continue;
		printf("%sthread %d is at\n", indent, (int)f.tid);
		places_print(p, f.tid, most, indent);
	}
}

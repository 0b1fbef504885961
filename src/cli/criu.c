/*
 * criu.c - finds CRIU, tries it, and runs it with a limit
 */
#include "cli/criu.h"
#include "base/lines.h"
#include "base/sys.h"
#include "cli/cli.h"
#include "cli/program.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define TRY_SECONDS 20
#define NAP_NS 500000
#define ARGS 64

__attribute__((format(printf, 3, 4))) static int
fail(struct criu_why *why, int err, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why->text, sizeof(why->text), fmt, ap);
	va_end(ap);
	return err;
}

/* Running */

/* Waits, but no longer than that: its status, or -ETIMEDOUT, and then it and what it
 * has started are gone. */
static int wait_for(pid_t pid, unsigned seconds, int *status)
{
	const uint64_t end = sys_now_ns() + seconds * 1000000000ull;
	pid_t is;

	while (!(is = waitpid(pid, status, WNOHANG)) && sys_now_ns() < end)
		sys_sleep(NAP_NS);
	if (is)
		return is < 0 ? -errno : 0;
	kill(-pid, SIGKILL);
	kill(pid, SIGKILL);
	waitpid(pid, status, 0);
	return -ETIMEDOUT;
}

/* In the child. out: for what it prints; -1: nowhere. */
_Noreturn static void execute(const struct criu *c, char *const argv[],
			      int netns, int out)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	setpgid(0, 0);
	if (netns >= 0 && setns(netns, CLONE_NEWNET))
		_exit(127);
	dup2(null, STDIN_FILENO);
	dup2(out < 0 ? null : out, STDOUT_FILENO);
	dup2(out < 0 ? null : out, STDERR_FILENO);
	if (c->no_breakpoints)
		setenv("CRIU_FAULT", "130", 1);
	execv(c->path, argv);
	_exit(127);
}

/* The last error in a log of CRIU, without its place in the source. */
static void log_error(const char *path, char *text, size_t size)
{
	char line[1024], *at;
	FILE *f = fopen(path, "re");

	text[0] = '\0';
	while (f && fgets(line, sizeof(line), f)) {
		line[strcspn(line, "\n")] = '\0';
		at = strstr(line, "Error (");
		if (!at)
			continue;
		at = strchr(at, ')');
		/* The last ones only say that it has failed. */
		if (at && (!text[0] || (!strstr(at, "FAILED") &&
					!strstr(at, "failed with -"))))
			snprintf(text, size, "%s", at + strspn(at, "): "));
	}
	if (f)
		fclose(f);
	make_printable(text); /* what it names may be damaged */
}

int criu_call(const struct criu *c, const char *verb, const char *dir,
	      char *const args[], int netns, struct criu_why *why)
{
	const unsigned seconds = c->seconds ? c->seconds : CRIU_SECONDS;
	char log[32], path[PATH_MAX + 32], said[512];
	char *argv[ARGS] = {
		"criu", (char *)verb, "-D", (char *)dir, "-o", log
	};
	size_t n = 6;
	int status = 0, err;
	pid_t pid;

	*why = (struct criu_why){ .text = "" };
	snprintf(log, sizeof(log), "%s.log", verb);
	while (*args && n < ARGS - 1)
		argv[n++] = *args++;
	pid = fork();
	if (!pid)
		execute(c, argv, netns, -1);
	if (pid < 0)
		return fail(why, -errno, "%s", strerror(errno));
	err = wait_for(pid, seconds, &status);
	if (err == -ETIMEDOUT)
		return fail(why, err,
			    "criu %s has not ended within %u s, and was killed",
			    verb, seconds);
	if (!err && WIFEXITED(status) && !WEXITSTATUS(status))
		return 0;
	snprintf(path, sizeof(path), "%s/%s", dir, log);
	log_error(path, said, sizeof(said));
	return fail(why, err ? err : -EIO, "criu %s fails: %s (%s)", verb,
		    said[0] ? said : "it says nothing", path);
}

/* Finding */

static int version_of(struct criu *c)
{
	char *const argv[] = { "criu", "--version", NULL };
	char text[256] = "", *at;
	int fd[2], status, err;
	ssize_t n;
	pid_t pid;

	if (pipe2(fd, O_CLOEXEC))
		return -errno;
	pid = fork();
	if (!pid)
		execute(c, argv, -1, fd[1]);
	close(fd[1]);
	err = pid < 0 ? -errno : wait_for(pid, TRY_SECONDS, &status);
	n = read(fd[0], text, sizeof(text) - 1);
	close(fd[0]);
	text[n > 0 ? n : 0] = '\0';
	at = strstr(text, "Version: ");
	if (err || !at)
		return err ? err : -ENOEXEC;
	snprintf(c->version, sizeof(c->version), "%.*s",
		 (int)strcspn(at + 9, " \n"), at + 9);
	return 0;
}

static bool find(struct criu *c, const char *name)
{
	/* Those of root are not in everybody's PATH. */
	static const char *const more[] = { "/usr/sbin/criu",
					    "/usr/local/sbin/criu" };

	if (!program_find(c->path, name ? name : "criu"))
		return true;
	for (size_t i = 0; !name && i < sizeof(more) / sizeof(more[0]); i++)
		if (!access(more[i], X_OK)) {
			snprintf(c->path, sizeof(c->path), "%s", more[i]);
			return true;
		}
	return false;
}

int criu_find(struct criu *c, const char *name, struct criu_why *why)
{
	int err;

	*why = (struct criu_why){ .text = "" };
	if (!name)
		name = getenv("SOFTHCA_CRIU");
	if (!find(c, name && *name ? name : NULL)) {
		snprintf(
			why->fix, sizeof(why->fix),
			"install it (Debian 13: apt-get install criu), or give "
			"its path: --criu or SOFTHCA_CRIU; on Linux 6 and "
			"newer that is version 4.1 at least");
		return fail(why, -ENOENT, "CRIU is not there%s%s",
			    name && *name ? ": " : "",
			    name && *name ? name : "");
	}
	err = version_of(c);
	if (err) {
		snprintf(why->fix, sizeof(why->fix),
			 "install it again, or give the path of another one: "
			 "--criu or SOFTHCA_CRIU");
		return fail(why, err, "%s does not say its version", c->path);
	}
	return 0;
}

/* Trying */

/* A process that does nothing and has nothing. */
static pid_t begin_idle(void)
{
	pid_t pid = fork();
	int null;

	if (pid)
		return pid;
	setsid();
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	null = open("/dev/null", O_RDWR);
	for (int fd = 0; fd < 3; fd++)
		dup2(null, fd);
	closefrom(3);
	for (;;)
		pause();
}

static int try_once(struct criu *c, const char *dir, struct criu_why *why)
{
	const unsigned seconds = c->seconds;
	const uint64_t begin = sys_now_ns();
	pid_t pid = begin_idle();
	char id[16];
	char *const dump[] = { "-t", id, NULL };
	char *const restore[] = { "-d", NULL };
	int err;

	if (pid < 0)
		return fail(why, -errno, "%s", strerror(errno));
	snprintf(id, sizeof(id), "%d", (int)pid);
	c->seconds = TRY_SECONDS;
	err = criu_call(c, "dump", dir, dump, -1, why);
	if (err)
		kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	if (!err) {
		err = criu_call(c, "restore", dir, restore, -1, why);
		/* It is our child by now, as we take in those whose parents end. */
		if (!err)
			kill(pid, SIGKILL);
		if (!err)
			waitpid(pid, NULL, 0);
	}
	c->seconds = seconds;
	c->tried_ns = sys_now_ns() - begin;
	return err;
}

int criu_try(struct criu *c, struct criu_why *why)
{
	char dir[] = "/tmp/softhca-criu.XXXXXX";
	int err, was = 0;

	if (!mkdtemp(dir))
		return fail(why, -errno, "/tmp: %s", strerror(errno));
	prctl(PR_GET_CHILD_SUBREAPER, &was);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	err = try_once(c, dir, why);
	/* 4.1 waits for ever for a breakpoint of the processor's where there are
	 * none. */
	if (err == -ETIMEDOUT) {
		c->no_breakpoints = true;
		err = try_once(c, dir, why);
	}
	prctl(PR_SET_CHILD_SUBREAPER, was);
	cli_remove_all(dir);
	if (err)
		snprintf(why->fix, sizeof(why->fix), "%s",
			 geteuid() ? "run this as root: CRIU needs that" :
				     "look what criu check says; a newer "
				     "version may do it: --criu or "
				     "SOFTHCA_CRIU");
	return err;
}

/*
 * suspend.c - softhca suspend: a program is away while a command runs
 *
 * For what saves processes by itself, such as a container engine.
 */
#include "cli/cli.h"
#include "cli/move.h"
#include "cli/program.h"
#include "os/proc.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define RESUME_NS 20000000000u

struct suspend_args {
	pid_t pid;
	char **command;
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct suspend_args *a = state->input;
	char **word = state->argv + state->next;
	error_t err;

	(void)arg;
	if (key != ARGP_KEY_ARGS)
		return ARGP_ERR_UNKNOWN;
	err = move_parse_pid(state, *word++, &a->pid);
	if (err)
		return err;
	if (*word && !strcmp(*word, "--"))
		word++;
	a->command = word;
	return 0;
}

/* Its exit status, as a shell says it. ^C is for it, and not for us. */
static int run(char **command)
{
	struct sigaction ignore = { .sa_handler = SIG_IGN }, interrupt, quit;
	char path[PATH_MAX];
	int status = 0, err;
	pid_t pid;

	err = program_find(path, command[0]);
	if (err) {
		cli_say("%s: %s", command[0], strerror(-err));
		return err == -ENOENT ? EXIT_NOT_FOUND : EXIT_CANNOT_RUN;
	}
	sigaction(SIGINT, &ignore, &interrupt);
	sigaction(SIGQUIT, &ignore, &quit);
	pid = fork();
	if (!pid) {
		sigaction(SIGINT, &interrupt, NULL);
		sigaction(SIGQUIT, &quit, NULL);
		execv(path, command);
		cli_say("%s: %s", path, strerror(errno));
		_exit(EXIT_CANNOT_RUN);
	}
	if (pid < 0) {
		cli_say("%s", strerror(errno));
		return EXIT_RUN_FAILED;
	}
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static bool has_ended(pid_t pid)
{
	return kill(pid, 0) || proc_state(pid, pid) == 'Z';
}

int cmd_suspend(int argc, char **argv)
{
	static const struct argp argp = {
		.parser = parse,
		.args_doc = "PID -- COMMAND [ARG...]",
		.doc = "Runs COMMAND, which is to save the program and its "
		       "children, while they are suspended, as softhca "
		       "checkpoint does. Then they have ended, or go on. For "
		       "container engines and others that call CRIU "
		       "themselves: what they restore goes on by itself.\v"
		       "The exit status is COMMAND's, or 125 if the program "
		       "does not suspend, or does not go on; then COMMAND has "
		       "not been run, or has.\n\n"
		       "Examples:\n"
		       "  pid=$(podman inspect -f '{{.State.Pid}}' NAME)\n"
		       "  softhca suspend $pid -- podman container checkpoint "
		       "NAME",
	};
	struct suspend_args a = { 0 };
	struct tree *t = calloc(1, sizeof(*t));
	struct tree_back back;
	int status = EXIT_RUN_FAILED;

	if (!t)
		return status;
	cli_parse(&argp, argc, argv, EXIT_RUN_FAILED, NULL, &a);
	if (!a.pid || !a.command || !a.command[0]) {
		cli_say("suspend needs a process ID and a command: softhca "
			"suspend PID -- COMMAND");
		goto out;
	}
	if (tree_read(t, a.pid) || tree_suspend(t)) {
		cli_say("%s", t->why);
		goto out;
	}
	status = run(a.command);
	if (!has_ended(a.pid) && tree_resume(t, RESUME_NS, &back)) {
		cli_say("%s", t->why);
		status = EXIT_RUN_FAILED;
	}
	tree_let_go(t);
out:
	free(t);
	return status;
}

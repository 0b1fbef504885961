/*
 * suspend.c - softhca suspend: a program is away while a command runs
 *
 * For what saves processes by itself, such as a container engine. Peers are asked to
 * wait as for the other commands that suspend (peers.c).
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
	struct move_args move; /* --wait, --force */
	char **command;
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct suspend_args *a = state->input;
	char **word = state->argv + state->next;
	error_t err;

	(void)arg;
	if (key == ARGP_KEY_INIT) {
		state->child_inputs[0] = &a->move;
		return 0;
	}
	if (key != ARGP_KEY_ARGS)
		return ARGP_ERR_UNKNOWN;
	err = move_parse_pid(state, *word++, &a->move.pid);
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

/* The program is away, for as long as peers wait at most: nobody knows what COMMAND
 * is. It may end the program, and its seat is gone then. 0 or -errno with why. */
static int leave(struct move *m, const struct move_args *a)
{
	int err = tree_read(&m->tree, a->pid);

	if (!err) {
		err = peers_ask_while(m, a->wait ? a->wait : PEERS_WAIT_SECONDS,
				      false);
		if (err)
			return err;
		err = tree_suspend(&m->tree);
	}
	if (err)
		snprintf(m->why, sizeof(m->why), "%s", m->tree.why);
	m->fix[0] = '\0';
	return err;
}

int cmd_suspend(int argc, char **argv)
{
	static const struct argp_child children[] = {
		{ &move_save_argp, 0, NULL, 0 },
		{ 0 },
	};
	static const struct argp argp = {
		.parser = parse,
		.args_doc = "PID -- COMMAND [ARG...]",
		.children = children,
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
	struct move *m = calloc(1, sizeof(*m));
	struct suspend_args a = { .move = { .m = m } };
	int status = EXIT_RUN_FAILED;

	if (!m)
		return status;
	cli_parse(&argp, argc, argv, EXIT_RUN_FAILED, NULL, &a);
	if (!a.move.pid || !a.command || !a.command[0]) {
		cli_say("suspend needs a process ID and a command: softhca "
			"suspend PID -- COMMAND");
		goto out;
	}
	if (leave(m, &a.move)) {
		move_say(m);
		goto out;
	}
	status = run(a.command);
	if (!has_ended(a.move.pid) &&
	    tree_resume(&m->tree, RESUME_NS, &m->back)) {
		cli_say("%s", m->tree.why);
		status = EXIT_RUN_FAILED;
	}
	tree_let_go(&m->tree);
out:
	free(m);
	return status;
}

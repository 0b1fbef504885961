/*
 * run.c - softhca run, which executes the program, and softhca env
 */
#include "cli/cli.h"
#include "cli/job.h"
#include "cli/program.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct run {
	char **command;
};

static error_t parse_run(int key, char *arg, struct argp_state *state)
{
	struct run *run = state->input;

	(void)arg;
	switch (key) {
	case ARGP_KEY_ARGS:
		run->command = state->argv + state->next;
		return 0;
	}
	return ARGP_ERR_UNKNOWN;
}

static const struct argp_child with_job_options[] = {
	{ &job_argp, 0, NULL, 0 },
	{ 0 },
};

int cmd_run(int argc, char **argv)
{
	static const struct argp argp = {
		.parser = parse_run,
		.args_doc = "-- COMMAND [ARG...]",
		.doc = "Run a program that sees the softhca device.\v"
		       "The program replaces softhca: the exit status is the "
		       "program's, or 125 if softhca failed, 126 if COMMAND "
		       "cannot be executed, 127 if it does not exist. Options "
		       "become SOFTHCA_* variables, which children of the "
		       "program inherit.\n\n"
		       "Examples:\n"
		       "  softhca run -- ib_send_bw 127.0.0.1\n"
		       "  softhca run --addr 10.0.0.1 -- rping -s\n"
		       "  softhca run --sockets -- iperf3 -c 10.0.0.2\n"
		       "  softhca run --loss 2 --seed 7 -- ./my-test\n"
		       "  softhca run -- mpirun -x LD_LIBRARY_PATH -x "
		       "LD_PRELOAD ...",
		.children = with_job_options,
	};
	char path[PATH_MAX], why[PATH_MAX + 128], fix[PATH_MAX + 128];
	struct run run = { NULL };
	int err;

	cli_parse(&argp, argc, argv, EXIT_RUN_FAILED,
		  "Options of the program go after its name: "
		  "softhca run [OPTION...] -- COMMAND [ARG...]",
		  &run);
	if (!run.command || !run.command[0]) {
		cli_say("run: no command. For example: "
			"softhca run -- ib_write_bw 127.0.0.1");
		return EXIT_RUN_FAILED;
	}
	err = program_find(path, run.command[0]);
	if (err == -ENOENT) {
		cli_say("%s: command not found", run.command[0]);
		return EXIT_NOT_FOUND;
	}
	if (err) {
		cli_say("%s: not an executable file, or no permission to run "
			"it",
			path);
		return EXIT_CANNOT_RUN;
	}
	if (program_obstacle(path, why, sizeof(why), fix, sizeof(fix)))
		cli_say("warning: %s, so it will not see softhca. %s", why,
			fix);
	if (job_environment())
		return EXIT_RUN_FAILED;
	execvp(path, run.command);
	err = errno;
	if (err == ENOENT)
		cli_say("%s: its interpreter does not exist; see its first "
			"line (#!), or readelf -l",
			path);
	else
		cli_say("%s: %s", path, strerror(err));
	return EXIT_CANNOT_RUN;
}

/* Adds single quotes unless no shell would interpret any of its characters. */
static void print_quoted(const char *s)
{
	static const char plain[] = "abcdefghijklmnopqrstuvwxyz"
				    "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
				    "0123456789_-+./:,%@=";

	if (*s && s[strspn(s, plain)] == '\0') {
		fputs(s, stdout);
		return;
	}
	putchar('\'');
	for (; *s; s++) {
		if (*s == '\'')
			fputs("'\\''", stdout);
		else
			putchar(*s);
	}
	putchar('\'');
}

int cmd_env(int argc, char **argv)
{
	static const struct argp argp = {
		.parser = parse_run,
		.doc = "Print the environment of softhca run as export "
		       "commands "
		       "for a POSIX shell.\v"
		       "Examples:\n"
		       "  eval \"$(softhca env)\"\n"
		       "  softhca env --wire > softhca.sh",
		.children = with_job_options,
	};
	struct run run = { NULL };
	const char *value;
	size_t i;

	cli_parse(&argp, argc, argv, EXIT_USAGE, NULL, &run);
	if (run.command && run.command[0]) {
		cli_say("env takes no command; to run one: softhca run -- %s",
			run.command[0]);
		return EXIT_USAGE;
	}
	if (job_environment())
		return 1;
	for (i = 0; job_variables[i]; i++) {
		value = getenv(job_variables[i]);
		if (!value)
			continue;
		printf("export %s=", job_variables[i]);
		print_quoted(value);
		putchar('\n');
	}
	if (fflush(stdout)) {
		cli_say("cannot write: %s", strerror(errno));
		return 1;
	}
	return 0;
}

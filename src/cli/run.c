/*
 * run.c - softhca run, which executes the program
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

/* The ASan of gcc, and of clang with -shared-libasan, wants to be the first
 * library, which the one that is preloaded is; it does as well behind that. */
static void let_asan_start(const char *path)
{
	static const char option[] = "verify_asan_link_order";
	const char *was = getenv("ASAN_OPTIONS");
	char *options = NULL;

	if (was && strstr(was, option))
		return;
	cli_say("%s has AddressSanitizer, which wants to be the first library: "
		"ASAN_OPTIONS gets %s=0",
		path, option);
	if (asprintf(&options, "%s%sverify_asan_link_order=0", was ? was : "",
		     was && *was ? ":" : "") < 0)
		return;
	setenv("ASAN_OPTIONS", options, 1);
	free(options);
}

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
	if (job_environment(NULL))
		return EXIT_RUN_FAILED;
	if (program_uses(path, "libasan.so.") ||
	    program_uses(path, "libclang_rt.asan"))
		let_asan_start(path);
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

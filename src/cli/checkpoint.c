/*
 * checkpoint.c - softhca checkpoint and softhca restore
 */
#include "cli/cli.h"
#include "cli/move.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPT_RUN = 0x200 };

struct args {
	struct move_args move;
	bool run; /* --leave-running */
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct args *a = state->input;

	(void)arg;
	switch (key) {
	case OPT_RUN:
		a->run = true;
		return 0;
	case ARGP_KEY_INIT:
		for (int i = 0; i < 3; i++)
			state->child_inputs[i] = &a->move;
		return 0;
	}
	return ARGP_ERR_UNKNOWN;
}

int cmd_checkpoint(int argc, char **argv)
{
	static const struct argp_option options[] = {
		{ "leave-running", OPT_RUN, NULL, 0,
		  "The program goes on here, too", 0 },
		{ 0 },
	};
	static const struct argp_child children[] = {
		{ &move_argp, 0, NULL, 0 },
		{ &move_save_argp, 0, NULL, 0 },
		{ &move_dump_argp, 0, NULL, 0 },
		{ 0 },
	};
	static const struct argp argp = {
		.options = options,
		.parser = parse,
		.args_doc = "PID DIR [-- CRIU-OPTION...]",
		.children = children,
		.doc = "Saves a running program, with its children and its "
		       "RDMA "
		       "connections, in the new directory DIR, and ends it: "
		       "softhca restore DIR goes on with it. Needs CRIU and "
		       "mostly root.\v"
		       "If anything fails the program goes on as if nothing "
		       "had "
		       "been. Peers on this host do not notice while it is "
		       "being "
		       "saved; all peers give up when their retries run "
		       "out, or with --wait after so many seconds.\n\n"
		       "Examples:\n"
		       "  softhca checkpoint 4711 /tmp/image\n"
		       "  softhca checkpoint --leave-running 4711 /tmp/image\n"
		       "  softhca checkpoint 4711 /tmp/image -- --ext-unix-sk",
	};
	struct move *m = calloc(1, sizeof(*m));
	const char *dir = NULL;
	struct args a = { .move = { .m = m, .dir = &dir } };
	int err;

	if (!m)
		return EXIT_FAILURE;
	cli_parse(&argp, argc, argv, EXIT_USAGE, NULL, &a);
	if (!a.move.pid || !dir) {
		cli_say("checkpoint needs a process ID and a directory: "
			"softhca "
			"checkpoint PID DIR");
		free(m);
		return EXIT_USAGE;
	}
	err = move_prepare(m, a.move.pid, dir);
	if (!err)
		err = move_pre_dump(m, dir);
	if (!err && a.move.wait)
		err = peers_ask_while(m, a.move.wait, a.run);
	if (!err)
		err = move_save(m, dir, a.run ? MOVE_RUN : MOVE_END);
	if (err)
		move_say(m);
	else
		move_print(m);
	tree_let_go(&m->tree);
	free(m);
	return err ? EXIT_FAILURE : EXIT_SUCCESS;
}

static error_t parse_restore(int key, char *arg, struct argp_state *state)
{
	(void)arg;
	if (key != ARGP_KEY_INIT)
		return ARGP_ERR_UNKNOWN;
	state->child_inputs[0] = state->input;
	return 0;
}

int cmd_restore(int argc, char **argv)
{
	static const struct argp_child children[] = {
		{ &move_argp, 0, NULL, 0 },
		{ 0 },
	};
	static const struct argp argp = {
		.parser = parse_restore,
		.args_doc = "DIR",
		.children = children,
		.doc = "Goes on with the program that softhca checkpoint has "
		       "saved in DIR, on this host or another. The host has to "
		       "have the addresses that the program uses, the same "
		       "files at the same paths, softhca's libraries among "
		       "them, and no process with its process ID.\v"
		       "If anything fails, nothing of the program runs, and "
		       "the "
		       "image stays.",
	};
	struct move *m = calloc(1, sizeof(*m));
	const char *dir = NULL;
	struct move_args a = { .m = m, .dir = &dir, .no_pid = true };
	int err;

	if (!m)
		return EXIT_FAILURE;
	cli_parse(&argp, argc, argv, EXIT_USAGE, NULL, &a);
	if (!dir) {
		cli_say("restore needs a directory: softhca restore DIR");
		free(m);
		return EXIT_USAGE;
	}
	err = move_restore(m, dir, -1);
	if (err)
		move_say(m);
	else
		move_print(m);
	free(m);
	return err ? EXIT_FAILURE : EXIT_SUCCESS;
}

/*
 * main.c - the softhca tool: chooses the command
 */
#include "cli/cli.h"

#include <ctype.h>
#include <errno.h>
#include <ftw.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usage[] =
	"Usage: softhca COMMAND [OPTION...]\n"
	"A software RDMA device in user space: runs RDMA programs on machines\n"
	"without an RDMA NIC.\n"
	"\n"
	"Commands:\n"
	"  run       run a program that sees the softhca device\n"
	"  env       print the environment of run: for a shell, a container, "
	"CI\n"
	"  cdi       print a specification for containers (CDI)\n"
	"  devices   list the devices, their ports and GIDs\n"
	"  doctor    report what works here, what does not, and how to fix "
	"it\n"
	"  explain   print what an error means, and what to do about it\n"
	"  ps        show what running programs wait for: why does it hang?\n"
	"  stat      show what running programs send, receive and lose\n"
	"  trace     show what run --trace has recorded: where the time went\n"
	"  checkpoint\n"
	"            save a running program with its connections, by CRIU\n"
	"  restore   go on with it, here or on another host\n"
	"  migrate   both: move it to another host, or network namespace\n"
	"  suspend   run a command that saves it, such as podman's, meanwhile\n"
	"\n"
	"  --help, --version\n"
	"\n"
	"Examples:\n"
	"  softhca run -- ib_write_bw &\n"
	"  softhca run -- ib_write_bw 127.0.0.1\n"
	"  softhca run --loss 1 --pcap trace-%p.pcapng -- rping -c -a "
	"10.0.0.2\n"
	"  eval \"$(softhca env)\"; ibv_devinfo\n"
	"\n"
	"Details: \"softhca COMMAND --help\" and softhca(1).\n";

static const struct {
	const char *name;
	int (*fn)(int argc, char **argv);
} commands[] = {
	{ "run", cmd_run },         { "env", cmd_env },
	{ "cdi", cmd_cdi },         { "devices", cmd_devices },
	{ "doctor", cmd_doctor },   { "explain", cmd_explain },
	{ "ps", cmd_ps },           { "stat", cmd_stat },
	{ "trace", cmd_trace },     { "checkpoint", cmd_checkpoint },
	{ "restore", cmd_restore }, { "migrate", cmd_migrate },
	{ "suspend", cmd_suspend }, { "_probe", cmd_probe },
};

static const char *kept; /* by remove_one(): NULL: nothing */

static int remove_one(const char *path, const struct stat *st, int type,
		      struct FTW *ftw)
{
	const size_t len = strlen(path), end = kept ? strlen(kept) : 0;

	(void)st;
	(void)type;
	(void)ftw;
	if (kept && len > end && !strcmp(path + len - end, kept))
		return 0;
	/* A folder stays where something in it does. */
	return remove(path) && errno != ENOTEMPTY && errno != EEXIST;
}

void cli_remove_all(const char *dir)
{
	nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

void cli_remove_but(const char *dir, const char *suffix)
{
	kept = suffix;
	cli_remove_all(dir);
	kept = NULL;
}

const char *cli_time(uint64_t ns, struct cli_time *t)
{
	if (ns < 1000000000)
		snprintf(t->text, sizeof(t->text), "%.1f ms", (double)ns / 1e6);
	else
		snprintf(t->text, sizeof(t->text), "%.2f s", (double)ns / 1e9);
	return t->text;
}

void cli_say(const char *fmt, ...)
{
	va_list ap;

	fputs("softhca: ", stderr);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
}

static bool same_letter(char a, char b)
{
	return toupper((unsigned char)a) == toupper((unsigned char)b);
}

unsigned cli_edit_distance(const char *a, const char *b)
{
	unsigned row[CLI_NAME_MAX + 1], above[CLI_NAME_MAX + 1] = { 0 }, two;
	size_t n = strlen(b);

	for (size_t j = 0; j <= n; j++)
		row[j] = (unsigned)j;
	for (size_t i = 0; a[i]; i++) {
		unsigned diagonal = row[0], left = 0;

		row[0] = (unsigned)i + 1;
		for (size_t j = 0; j < n; j++) {
			unsigned best = diagonal + !same_letter(a[i], b[j]);

			/* Of the row before the last, one further left. */
			two = left;
			left = above[j];
			if (i && j && same_letter(a[i], b[j - 1]) &&
			    same_letter(a[i - 1], b[j]) && two + 1 < best)
				best = two + 1;
			above[j] = diagonal;
			diagonal = row[j + 1];
			if (row[j] + 1 < best)
				best = row[j] + 1;
			if (diagonal + 1 < best)
				best = diagonal + 1;
			row[j + 1] = best;
		}
	}
	return row[n];
}

bool cli_nearer(const char *name, const char *known, unsigned *least)
{
	const unsigned d = cli_edit_distance(name, known);

	if (d >= *least || d > 1 + strlen(name) / 6)
		return false;
	*least = d;
	return true;
}

static int print_version(void)
{
	printf("softhca %s\n"
	       "libibverbs.so.1: %s\n"
	       "librdmacm.so.1: %s\n"
	       "libibumad.so.3: %s\n"
	       "exports of rdma-core %s\n",
	       SOFTHCA_VERSION, SOFTHCA_IBVERBS, SOFTHCA_RDMACM, SOFTHCA_IBUMAD,
	       SOFTHCA_RDMA_CORE);
	return 0;
}

enum { OPT_HELP = '?', OPT_USAGE = 0x1000, OPT_VERSION };

static const struct argp_option common_options[] = {
	{ "help", OPT_HELP, NULL, 0, "Give this help list", -1 },
	{ NULL, 'h', NULL, OPTION_ALIAS, NULL, -1 },
	{ "usage", OPT_USAGE, NULL, 0, "Give a short usage message", -1 },
	{ "version", OPT_VERSION, NULL, 0, "Print program version", -1 },
	{ 0 },
};

static error_t parse_common(int key, char *arg, struct argp_state *state)
{
	(void)arg;
	switch (key) {
	case OPT_HELP:
	case 'h':
		/* The text's column: behind --same-host=auto|copy|udp. */
		setenv("ARGP_HELP_FMT", "opt-doc-col=33", 0);
		argp_state_help(state, stdout,
				ARGP_HELP_SHORT_USAGE | ARGP_HELP_LONG |
					ARGP_HELP_DOC);
		exit(0);
	case OPT_USAGE:
		argp_state_help(state, stdout, ARGP_HELP_USAGE);
		exit(0);
	case OPT_VERSION:
		exit(print_version());
	}
	return ARGP_ERR_UNKNOWN;
}

void cli_parse(const struct argp *argp, int argc, char **argv, int usage_status,
	       const char *hint, void *input)
{
	static const struct argp common = {
		.options = common_options,
		.parser = parse_common,
	};
	const struct argp_child children[] = {
		{ argp, 0, NULL, 0 },
		{ &common, 0, NULL, -1 },
		{ 0 },
	};
	const struct argp all = { .options = NULL, .children = children };
	char name[64];
	int err;

	/* argp names itself after argv[0]: "softhca run". */
	snprintf(name, sizeof(name), "softhca %s", argv[0]);
	argv[0] = name;
	/* argp's own --help and exit() would bypass hint and usage_status. */
	argp_err_exit_status = usage_status;
	err = argp_parse(&all, argc, argv,
			 ARGP_IN_ORDER | ARGP_NO_HELP | ARGP_NO_EXIT, NULL,
			 input);
	if (!err)
		return;
	if (hint)
		fprintf(stderr, "%s\n", hint);
	exit(usage_status);
}

/* What there is instead, from the table, which ends with what is not for people. */
static void unknown_command(const char *name)
{
	const size_t n = sizeof(commands) / sizeof(commands[0]) - 1;
	const char *near = NULL;
	unsigned least = CLI_NEAR;
	char all[256];
	size_t at = 0;

	for (size_t i = 0; i < n; i++) {
		if (cli_nearer(name, commands[i].name, &least))
			near = commands[i].name;
		at += (size_t)snprintf(all + at, sizeof(all) - at, "%s%s",
				       !i         ? "" :
				       i + 1 == n ? " and " :
						    ", ",
				       commands[i].name);
	}
	if (near)
		cli_say("unknown command %s; did you mean softhca %s?", name,
			near);
	else
		cli_say("unknown command %s; the commands are %s. To run a "
			"program: "
			"softhca run -- %s",
			name, all, name);
}

int main(int argc, char **argv)
{
	size_t i;

	if (argc < 2) {
		fputs(usage, stderr);
		return EXIT_USAGE;
	}
	if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") ||
	    !strcmp(argv[1], "help")) {
		fputs(usage, stdout);
		return 0;
	}
	if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-V"))
		return print_version();
	for (i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
		if (!strcmp(argv[1], commands[i].name))
			return commands[i].fn(argc - 1, argv + 1);
	if (argv[1][0] == '-')
		cli_say("unknown option %s; see softhca --help", argv[1]);
	else if (!strcmp(argv[1], "exec"))
		cli_say("unknown command exec; did you mean softhca run?");
	else
		unknown_command(argv[1]);
	return EXIT_USAGE;
}

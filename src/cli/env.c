/*
 * env.c - softhca env: prints the environment of run, in the form that others
 * read it
 *
 * For this machine as it is (sh, json), for later steps on this machine
 * (github), and for containers (docker, k8s), which have files, variables and
 * addresses of their own: those get our entries alone, and no SOFTHCA_SYSFS,
 * which the libraries make for each process when it needs it.
 */
#include "base/json.h"
#include "cli/cli.h"
#include "cli/job.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static void print_sh(size_t i, const char *name, const char *value)
{
	(void)i;
	printf("export %s=", name);
	print_quoted(value);
	putchar('\n');
}

/* What is appended to $GITHUB_ENV, and an --env-file of docker and podman. */
static void print_line(size_t i, const char *name, const char *value)
{
	(void)i;
	printf("%s=%s\n", name, value);
}

static void print_json(size_t i, const char *name, const char *value)
{
	fputs(i ? ",\n  " : "{\n  ", stdout);
	json_put_string(stdout, name);
	fputs(": ", stdout);
	json_put_string(stdout, value);
}

/* YAML takes JSON's strings. Kubernetes replaces $(NAME), but $$ is $. */
static void print_k8s(size_t i, const char *name, const char *value)
{
	char *escaped = malloc(2 * strlen(value) + 1), *to = escaped;

	(void)i;
	if (!escaped)
		return;
	for (; *value; value++) {
		if (value[0] == '$' && (value[1] == '(' || value[1] == '$'))
			*to++ = '$';
		*to++ = *value;
	}
	*to = '\0';
	printf("- name: %s\n  value: ", name);
	json_put_string(stdout, escaped);
	putchar('\n');
	free(escaped);
}

struct format {
	const char *name;
	void (*print)(size_t i, const char *name, const char *value);
	const char *end;
	bool lines; /* a value cannot have several */
	bool elsewhere; /* in a container */
	bool later; /* when devices may have changed */
};

static const struct format formats[] = {
	{ .name = "sh", .print = print_sh, .end = "" },
	{ .name = "github",
	  .print = print_line,
	  .end = "",
	  .lines = true,
	  .later = true },
	{ .name = "docker",
	  .print = print_line,
	  .end = "",
	  .lines = true,
	  .elsewhere = true,
	  .later = true },
	{ .name = "json", .print = print_json, .end = "\n}\n" },
	{ .name = "k8s",
	  .print = print_k8s,
	  .end = "",
	  .elsewhere = true,
	  .later = true },
};

struct env {
	const struct format *format;
	char **command;
};

enum { OPT_FORMAT = 0x3000 };

static const struct argp_option options[] = {
	{ "format", OPT_FORMAT, "FORMAT", 0,
	  "sh (the default), github (lines for $GITHUB_ENV), docker (a file of "
	  "variables for docker and podman), json, or k8s (a list for a "
	  "container's env)",
	  0 },
	{ 0 },
};

static error_t parse_env(int key, char *arg, struct argp_state *state)
{
	struct env *env = state->input;
	size_t i;

	switch (key) {
	case OPT_FORMAT:
		for (i = 0; i < sizeof(formats) / sizeof(formats[0]); i++)
			if (!strcmp(arg, formats[i].name)) {
				env->format = &formats[i];
				return 0;
			}
		cli_say("--format %s: not one of sh, github, docker, json and "
			"k8s",
			arg);
		exit(argp_err_exit_status);
	case ARGP_KEY_ARGS:
		env->command = state->argv + state->next;
		return 0;
	}
	return ARGP_ERR_UNKNOWN;
}

/* Nothing is printed unless every value can be. */
static int print_env(const struct format *format)
{
	const char *value;
	size_t i, n;

	for (i = 0; job_variables[i]; i++) {
		value = getenv(job_variables[i]);
		if (!value || !format->lines || !strpbrk(value, "\r\n"))
			continue;
		cli_say("%s has a line break, which --format=%s cannot hold",
			job_variables[i], format->name);
		return 1;
	}
	for (i = n = 0; job_variables[i]; i++) {
		value = getenv(job_variables[i]);
		if (value)
			format->print(n++, job_variables[i], value);
	}
	fputs(format->end, stdout);
	if (fflush(stdout) || ferror(stdout)) {
		cli_say("cannot write: %s", strerror(errno));
		return 1;
	}
	return 0;
}

int cmd_env(int argc, char **argv)
{
	static const struct argp_child with_job_options[] = {
		{ &job_argp, 0, NULL, 0 },
		{ &job_libdir_argp, 0, NULL, 0 },
		{ 0 },
	};
	static const struct argp argp = {
		.options = options,
		.parser = parse_env,
		.doc = "Print the environment of softhca run, which is all "
		       "that programs need.\v"
		       "Examples:\n"
		       "  eval \"$(softhca env)\"\n"
		       "  softhca env --wire > softhca.sh\n"
		       "  softhca env --format=github >> \"$GITHUB_ENV\"\n"
		       "  softhca env --format=k8s "
		       "--libdir=/softhca/lib/softhca",
		.children = with_job_options,
	};
	struct env env = { .format = &formats[0] };

	cli_parse(&argp, argc, argv, EXIT_USAGE, NULL, &env);
	if (env.command && env.command[0]) {
		cli_say("env takes no command; to run one: softhca run -- %s",
			env.command[0]);
		return EXIT_USAGE;
	}
	if (env.format->elsewhere) {
		unsetenv("LD_LIBRARY_PATH");
		unsetenv("LD_PRELOAD");
	}
	if (job_environment(&(struct job_place){ .libdir = job_libdir,
						 .no_tree = env.format->later ||
							    job_libdir }))
		return 1;
	return print_env(env.format);
}

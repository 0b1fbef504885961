/*
 * errors.c - softhca explain: what an error means, and what to do about it
 *
 * The text is docs/ERRORS.md, which is compiled in. A section begins with
 * "### NAME (NUMBER)" and ends where the next heading begins.
 */
#include "base/bytes.h"
#include "cli/cli.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define NAME_MAX_LEN 64
#define MAX_NEAR 5

extern const char errors_md[]; /* docs/ERRORS.md */

struct section {
	char name[NAME_MAX_LEN];
	long number;
	const char *text; /* behind the heading */
	size_t len;
};

static const char *next_line(const char *p)
{
	p = strchr(p, '\n');
	return p ? p + 1 : NULL;
}

/* The section at or behind p, or NULL; *p moves behind it. */
static bool next_section(const char **p, struct section *s)
{
	const char *at = *p;

	while (at && strncmp(at, "### ", 4))
		at = next_line(at);
	if (!at || sscanf(at, "### %63s (%ld)", s->name, &s->number) != 2)
		return false;
	s->text = next_line(at);
	for (at = s->text; at && *at != '#';)
		at = next_line(at);
	s->len = at ? (size_t)(at - s->text) : strlen(s->text);
	while (s->len && s->text[s->len - 1] == '\n')
		s->len--;
	*p = at;
	return true;
}

/* What programs and people leave out of a name. */
static const char *bare_name(const char *name)
{
	static const char *const prefixes[] = { "IBV_WC_", "IBV_EVENT_",
						"RDMA_CM_EVENT_" };

	for (size_t i = 0; i < ARRAY_SIZE(prefixes); i++)
		if (!strncasecmp(name, prefixes[i], strlen(prefixes[i])))
			return name + strlen(prefixes[i]);
	return name;
}

static bool is_it(const struct section *s, const char *asked)
{
	char *end;
	long n = strtol(asked, &end, 0);

	if (end != asked && !*end)
		return labs(n) == s->number;
	/* A full name is itself; otherwise all kinds that have it. */
	return !strcasecmp(asked, s->name) ||
	       (bare_name(asked) == asked &&
		!strcasecmp(asked, bare_name(s->name)));
}

/* As a terminal shows it: without the marks of code. */
static void print_section(const struct section *s, bool first)
{
	printf("%s%s (%ld)\n", first ? "" : "\n", s->name, s->number);
	for (size_t i = 0; i < s->len; i++)
		if (s->text[i] != '`')
			putchar(s->text[i]);
	putchar('\n');
}

/* How many letters differ, at least (Levenshtein), without case. */
static unsigned edit_distance(const char *a, const char *b)
{
	unsigned row[NAME_MAX_LEN + 1];
	size_t n = strlen(b);

	for (size_t j = 0; j <= n; j++)
		row[j] = (unsigned)j;
	for (size_t i = 0; a[i]; i++) {
		unsigned diagonal = row[0];

		row[0] = (unsigned)i + 1;
		for (size_t j = 0; j < n; j++) {
			unsigned best =
				diagonal + (toupper((unsigned char)a[i]) !=
					    toupper((unsigned char)b[j]));

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

static void say_near(const char *asked)
{
	char near[MAX_NEAR * (NAME_MAX_LEN + 2)] = "";
	const char *p = errors_md, *name = bare_name(asked);
	struct section s;
	unsigned n = 0;

	while (n < MAX_NEAR && *name && next_section(&p, &s)) {
		if (!strcasestr(s.name, name) &&
		    (strlen(name) >= NAME_MAX_LEN ||
		     edit_distance(name, bare_name(s.name)) >
			     1 + strlen(name) / 4))
			continue;
		snprintf(near + strlen(near), sizeof(near) - strlen(near),
			 "%s%s", n++ ? ", " : "", s.name);
	}
	if (*asked && !asked[strspn(asked, "0123456789")])
		cli_say("unknown error %s; nor is that a running softhca "
			"program of this user (one that has connected a queue "
			"pair)",
			asked);
	else if (n)
		cli_say("unknown error %s; did you mean %s?", asked, near);
	else
		cli_say("unknown error %s; softhca explain --list has all that "
			"are known",
			asked);
}

static bool explain_name(const char *asked, bool first)
{
	const char *p = errors_md;
	struct section s;
	bool found = false;

	while (next_section(&p, &s)) {
		if (!is_it(&s, asked))
			continue;
		print_section(&s, first && !found);
		found = true;
	}
	return found;
}

/* A number may be that of a process as well. */
static bool explain_process(const char *asked)
{
	char *end;
	long pid = strtol(asked, &end, 10);

	return *asked && !*end && pid > 0 && pid <= INT_MAX &&
	       stat_explain((pid_t)pid);
}

static void list_names(void)
{
	const char *p = errors_md;
	struct section s;

	while (next_section(&p, &s))
		printf("%s\n", s.name);
}

struct asked {
	bool list;
	int shown, failed;
};

static error_t parse_errors(int key, char *arg, struct argp_state *state)
{
	struct asked *a = state->input;
	bool known;

	switch (key) {
	case 'l':
		a->list = true;
		return 0;
	case ARGP_KEY_ARG:
		/* A number may be both. */
		known = explain_name(arg, !a->shown);
		if (explain_process(arg) || known) {
			a->shown++;
		} else {
			a->failed++;
			say_near(arg);
		}
		return 0;
	case ARGP_KEY_NO_ARGS:
		if (a->list)
			return 0;
		argp_error(state, "an error's name or number is needed, such "
				  "as RETRY_EXC_ERR");
		return EINVAL;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

int cmd_explain(int argc, char **argv)
{
	static const struct argp_option options[] = {
		{ "list", 'l', NULL, 0, "List the names that are known", 0 },
		{ 0 },
	};
	static const struct argp argp = {
		.options = options,
		.parser = parse_errors,
		.args_doc = "NAME...|PID...",
		.doc = "Print what an error means, what causes it here and on "
		       "hardware, and what to do: the status of a completion, "
		       "an asynchronous event, an event of rdma_cm or an "
		       "errno, by name or number.\v"
		       "Of a running program, by its process ID: what each "
		       "queue pair waits for.\n\n"
		       "A number may be of several kinds: all are printed. "
		       "\"softhca run --explain\" says which cause it was.\n\n"
		       "Examples:\n"
		       "  softhca explain RETRY_EXC_ERR\n"
		       "  softhca explain IBV_WC_REM_ACCESS_ERR\n"
		       "  softhca explain 12",
	};
	struct asked a = { 0 };

	cli_parse(&argp, argc, argv, EXIT_USAGE, NULL, &a);
	if (a.list)
		list_names();
	if (fflush(stdout))
		return 1;
	return a.failed ? 1 : 0;
}

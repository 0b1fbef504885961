/*
 * errors.c - softhca explain: what an error means, and what to do about it
 *
 * The text is docs/ERRORS.md, which is compiled in. A section begins with
 * "### NAME (NUMBER)" and ends where the next heading begins. Its first line may
 * be what ibv_wc_status_str(3) or ibv_event_type_str(3) make of it.
 */
#include "base/bytes.h"
#include "cli/cli.h"
#include "cli/ps.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define NAME_MAX_LEN CLI_NAME_MAX
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

/* What programs print for it; false: nothing else than its name. */
static bool printed_as(const struct section *s, char text[NAME_MAX_LEN])
{
	static const char begins[] = "Printed as: ";
	const char *errno_text = strerrordesc_np((int)s->number);

	if (!strncmp(s->text, begins, sizeof(begins) - 1))
		snprintf(text, NAME_MAX_LEN, "%.*s",
			 (int)strcspn(s->text + sizeof(begins) - 1, "\n"),
			 s->text + sizeof(begins) - 1);
	else if (s->name[0] == 'E' && errno_text)
		snprintf(text, NAME_MAX_LEN, "%s", errno_text);
	else
		return false;
	return true;
}

static bool is_it(const struct section *s, const char *asked)
{
	char text[NAME_MAX_LEN], *end;
	long n = strtol(asked, &end, 0);

	if (printed_as(s, text) && !strcasecmp(asked, text))
		return true;
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

static void say_near(const char *asked)
{
	char near[MAX_NEAR * (NAME_MAX_LEN + 2)] = "";
	const char *p = errors_md, *name = bare_name(asked);
	struct section s;
	unsigned n = 0;

	while (n < MAX_NEAR && *name && next_section(&p, &s)) {
		if (!strcasestr(s.name, name) &&
		    (strlen(name) >= NAME_MAX_LEN ||
		     cli_edit_distance(name, bare_name(s.name)) >
			     1 + strlen(name) / 4))
			continue;
		snprintf(near + strlen(near), sizeof(near) - strlen(near),
			 "%s%s", n++ ? ", " : "", s.name);
	}
	if (ps_is_pid(asked)) {
		if (!ps_say_stranger(asked))
			cli_say("unknown error %s; nor is that a running "
				"softhca program of this user (softhca ps)",
				asked);
	} else if (n) {
		cli_say("unknown error %s; did you mean %s?", asked, near);
	} else {
		cli_say("unknown error %s; softhca explain --list has all that "
			"are known",
			asked);
	}
}

static bool is_name_char(char c)
{
	return isalnum((unsigned char)c) || c == '_';
}

/* Whether a message has it: its full name, or what is printed for it. */
static bool is_in(const struct section *s, const char *message)
{
	const size_t len = strlen(s->name);
	char text[NAME_MAX_LEN];

	for (const char *p = message; (p = strstr(p, s->name)); p += len)
		if ((p == message || !is_name_char(p[-1])) &&
		    !is_name_char(p[len]))
			return true;
	return printed_as(s, text) && strcasestr(message, text);
}

/* Prints the sections that match. */
static bool explain_by(bool (*match)(const struct section *s, const char *what),
		       const char *what, bool first)
{
	const char *p = errors_md;
	struct section s;
	bool found = false;

	while (next_section(&p, &s)) {
		if (!match(&s, what))
			continue;
		print_section(&s, first && !found);
		found = true;
	}
	return found;
}

static bool is_known(const char *asked)
{
	const char *p = errors_md;
	struct section s;

	while (next_section(&p, &s))
		if (is_it(&s, asked))
			return true;
	return !asked[strspn(asked, "0123456789")];
}

/* A number may be that of a process as well. */
static bool explain_process(const char *asked)
{
	char *end;
	long pid = strtol(asked, &end, 10);

	return *asked && !*end && pid > 0 && pid <= INT_MAX &&
	       ps_explain((pid_t)pid);
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
	char **args;
	unsigned n;
};

static error_t parse_errors(int key, char *arg, struct argp_state *state)
{
	struct asked *a = state->input;

	(void)arg;
	switch (key) {
	case 'l':
		a->list = true;
		return 0;
	case ARGP_KEY_ARGS:
		a->args = state->argv + state->next;
		a->n = (unsigned)(state->argc - state->next);
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

/* What a program has printed, in one argument or several. False: no error that
 * is known is in it, or each argument is one. */
static bool explain_message(const struct asked *a)
{
	char message[1024] = "";
	bool known = true;

	for (unsigned i = 0; i < a->n; i++) {
		const size_t len = strlen(message);

		known = known && is_known(a->args[i]);
		snprintf(message + len, sizeof(message) - len, "%s%s",
			 i ? " " : "", a->args[i]);
	}
	return !known && explain_by(is_in, message, true);
}

/* How many are not known. */
static unsigned explain_each(const struct asked *a)
{
	unsigned failed = 0, shown = 0;

	for (unsigned i = 0; i < a->n; i++) {
		/* A number may be both. */
		const bool known = explain_by(is_it, a->args[i], !shown);

		if (explain_process(a->args[i]) || known) {
			shown++;
		} else {
			failed++;
			say_near(a->args[i]);
		}
	}
	return failed;
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
		.args_doc = "NAME...|MESSAGE|PID...",
		.doc = "Print what an error means, what causes it here and on "
		       "hardware, and what to do: the status of a completion, "
		       "an asynchronous event, an event of rdma_cm or an "
		       "errno, by name, by number or as a program has printed "
		       "it.\v"
		       "Of a running program, by its process ID: what its "
		       "threads, connections and queue pairs wait for.\n\n"
		       "A number may be of several kinds: all are printed. "
		       "\"softhca run --explain\" says which cause it was.\n\n"
		       "Examples:\n"
		       "  softhca explain RETRY_EXC_ERR\n"
		       "  softhca explain transport retry counter exceeded\n"
		       "  softhca explain 12",
	};
	struct asked a = { 0 };
	unsigned failed = 0;

	cli_parse(&argp, argc, argv, EXIT_USAGE, NULL, &a);
	if (a.list)
		list_names();
	if (a.n && !explain_message(&a))
		failed = explain_each(&a);
	if (fflush(stdout))
		return 1;
	return failed ? 1 : 0;
}

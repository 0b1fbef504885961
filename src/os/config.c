/*
 * config.c - reads the SOFTHCA_* environment
 *
 * Strings are copied, since a program may change its environment later.
 * Numbers are parsed by hand where the C library would depend on the locale.
 */
#include "config.h"

#include "pci.h"
#include "report.h"

#include "base/say.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static struct config config;
static pthread_once_t once = PTHREAD_ONCE_INIT;

#define ONE(...) +1
#define VARIABLES (1 SOFTHCA_OPTIONS(ONE, ONE))

/* Variables whose values are ignored, and the end. */
static const char *ignored[VARIABLES + 1];
static size_t nignored;

static void ignore(const char *name)
{
	if (nignored < VARIABLES)
		ignored[nignored++] = name;
}

static void say_ignored(const char *name, const char *value, const char *want)
{
	say("%s=%s ignored: %s expected", name, value, want);
	ignore(name);
}

/* A program with more rights than its caller ignores its environment. */
static const char *get_variable(const char *name)
{
	const char *v = secure_getenv(name);

	return v && *v ? v : NULL;
}

static const char *read_string(const char *name)
{
	const char *v = get_variable(name);

	return v ? strdup(v) : NULL;
}

#define NAME_MAX_PATTERN 40 /* with two digits; ibdev_path has room for it */

bool config_names_valid(const char *pattern)
{
	static const char plain[] = "abcdefghijklmnopqrstuvwxyz"
				    "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
				    "0123456789_-.";
	const char *d = strstr(pattern, "%d");

	return d && strlen(pattern) <= NAME_MAX_PATTERN && pattern[0] != '.' &&
	       strspn(pattern, plain) == (size_t)(d - pattern) &&
	       strspn(d + 2, plain) == strlen(d + 2);
}

void config_name(const char *pattern, unsigned n, char *out, size_t size)
{
	const int before = (int)strcspn(pattern, "%");

	snprintf(out, size, "%.*s%u%s", before, pattern, n,
		 pattern + before + 2);
}

static const char *read_names(const char *name)
{
	const char *v = get_variable(name);

	if (!v || config_names_valid(v))
		return read_string(name);
	say_ignored(name, v, "a name with one %d, such as mlx5_%d,");
	return NULL;
}

/* A list, unless something is wrong with it. */
static const char *read_list(const char *name,
			     const char *(*wrong)(const char *text))
{
	const char *v = get_variable(name), *why = v ? wrong(v) : NULL;

	if (!why)
		return read_string(name);
	say("%s=%s ignored: %s", name, v, why);
	ignore(name);
	return NULL;
}

static const char *read_pci(const char *name)
{
	return read_list(name, pci_list_wrong);
}

static const char *read_numa(const char *name)
{
	return read_list(name, numa_list_wrong);
}

struct word {
	const char *word;
	int value;
};

/* Of words, which end with NULL, the first one is the default. */
static int read_word(const char *name, const struct word *words,
		     const char *want)
{
	const char *v = get_variable(name);

	if (!v)
		return words[0].value;
	for (size_t i = 0; words[i].word; i++)
		if (!strcasecmp(v, words[i].word))
			return words[i].value;
	say_ignored(name, v, want);
	return words[0].value;
}

static bool read_bool(const char *name)
{
	static const struct word words[] = {
		{ "0", false },   { "no", false }, { "false", false },
		{ "off", false }, { "1", true },   { "yes", true },
		{ "true", true }, { "on", true },  { 0 },
	};

	return read_word(name, words, "0 or 1");
}

static enum explain read_explain(const char *name)
{
	const char *v = get_variable(name);

	if (v && !strcmp(v, "full"))
		return EXPLAIN_FULL;
	return read_bool(name) ? EXPLAIN_ON : EXPLAIN_OFF;
}

static enum same_host read_same_host(const char *name)
{
	static const struct word words[] = {
		{ "auto", SAME_HOST_AUTO },
		{ "copy", SAME_HOST_COPY },
		{ "udp", SAME_HOST_UDP },
		{ 0 },
	};

	return (enum same_host)read_word(name, words, "auto, copy or udp");
}

static enum iwarp read_iwarp(const char *name)
{
	static const struct word words[] = {
		{ "0", IWARP_NONE },      { "1", IWARP_ONLY },
		{ "only", IWARP_ONLY },   { "both", IWARP_BOTH },
		{ "first", IWARP_FIRST }, { 0 },
	};

	return (enum iwarp)read_word(name, words, "only (or 1), both or first");
}

static enum infiniband read_infiniband(const char *name)
{
	static const struct word words[] = {
		{ "0", INFINIBAND_NONE },
		{ "1", INFINIBAND_ONLY },
		{ "only", INFINIBAND_ONLY },
		{ "both", INFINIBAND_BOTH },
		{ 0 },
	};

	return (enum infiniband)read_word(name, words, "only (or 1), or both");
}

static uint64_t read_uint(const char *name, uint64_t max)
{
	const char *v = get_variable(name);
	unsigned long long n;
	char *end;

	if (!v)
		return 0;
	errno = 0;
	n = strtoull(v, &end, v[0] == '0' && (v[1] | 32) == 'x' ? 16 : 10);
	if (*v < '0' || *v > '9' || *end || errno || n > max) {
		say("%s=%s ignored: a number from 0 to %llu expected", name, v,
		    (unsigned long long)max);
		ignore(name);
		return 0;
	}
	return n;
}

static uint64_t read_u64(const char *name)
{
	return read_uint(name, UINT64_MAX);
}

static uint32_t read_u32(const char *name)
{
	return (uint32_t)read_uint(name, UINT32_MAX);
}

static uint8_t read_retries(const char *name)
{
	return (uint8_t)read_uint(name, 15);
}

/* "12.5" or "12.5%", whatever the locale's decimal point is. */
static double read_percent(const char *name)
{
	const char *v = get_variable(name), *p = v;
	double n = 0, scale = 1;
	bool digits = false;

	if (!v)
		return 0;
	for (; *p >= '0' && *p <= '9'; p++, digits = true)
		n = n * 10 + (*p - '0');
	if (*p == '.') {
		for (p++; *p >= '0' && *p <= '9'; p++, digits = true) {
			scale /= 10;
			n += (*p - '0') * scale;
		}
	}
	if (*p == '%')
		p++;
	if (!digits || *p || n > 100) {
		say_ignored(name, v, "a percentage from 0 to 100");
		return 0;
	}
	return n / 100;
}

static void load_config(void)
{
#define READ(field, type, reads, variable, ...)                                \
	config.field = read_##reads(variable);
	SOFTHCA_OPTIONS(READ, READ)
#undef READ
	/* What a script selects are packets as they are on the wire. */
	if (config.faults)
		config.wire = true;
	if (get_variable("SOFTHCA_CHECK_JSON"))
		say_ignored("SOFTHCA_CHECK_JSON",
			    get_variable("SOFTHCA_CHECK_JSON"),
			    "SOFTHCA_CHECK=json=FILE");
	/* A call that fails is a finding, too. */
	if (config.explain || (config.check && strcmp(config.check, "0") != 0))
		why_begin();
}

const char *const *config_ignored(void)
{
	config_get();
	return ignored;
}

const struct config *config_get(void)
{
	pthread_once(&once, load_config);
	return &config;
}

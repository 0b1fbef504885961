/*
 * config.c - reads the SOFTHCA_* environment
 *
 * Strings are copied, since a program may change its environment later.
 * Numbers are parsed by hand where the C library would depend on the locale.
 */
#include "config.h"

#include "why.h"

#include "base/say.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static struct config config;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void complain(const char *name, const char *value, const char *want)
{
	say("%s=%s ignored: %s expected", name, value, want);
}

/* A program with more rights than its caller ignores its environment. */
static const char *get(const char *name)
{
	const char *v = secure_getenv(name);

	return v && *v ? v : NULL;
}

static const char *get_string(const char *name)
{
	const char *v = get(name);

	return v ? strdup(v) : NULL;
}

static bool get_bool(const char *name)
{
	static const char *const yes[] = { "1", "yes", "true", "on" };
	static const char *const no[] = { "0", "no", "false", "off" };
	const char *v = get(name);

	if (!v)
		return false;
	for (size_t i = 0; i < sizeof(yes) / sizeof(yes[0]); i++) {
		if (!strcasecmp(v, yes[i]))
			return true;
		if (!strcasecmp(v, no[i]))
			return false;
	}
	complain(name, v, "0 or 1");
	return false;
}

static bool is_full(const char *name)
{
	const char *v = get(name);

	return v && !strcmp(v, "full");
}

static uint64_t get_number(const char *name, uint64_t max)
{
	const char *v = get(name);
	unsigned long long n;
	char *end;

	if (!v)
		return 0;
	errno = 0;
	n = strtoull(v, &end, v[0] == '0' && (v[1] | 32) == 'x' ? 16 : 10);
	if (*v < '0' || *v > '9' || *end || errno || n > max) {
		say("%s=%s ignored: a number from 0 to %llu expected", name, v,
		    (unsigned long long)max);
		return 0;
	}
	return n;
}

static enum same_host get_same_host(const char *name)
{
	static const char *const ways[] = {
		[SAME_HOST_AUTO] = "auto",
		[SAME_HOST_COPY] = "copy",
		[SAME_HOST_UDP] = "udp",
	};
	const char *v = get(name);

	if (!v)
		return SAME_HOST_AUTO;
	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
		if (!strcasecmp(v, ways[i]))
			return (enum same_host)i;
	complain(name, v, "auto, copy or udp");
	return SAME_HOST_AUTO;
}

static enum iwarp get_iwarp(const char *name)
{
	static const struct {
		const char *name;
		enum iwarp value;
	} modes[] = {
		{ "0", IWARP_NONE },	{ "1", IWARP_ONLY },
		{ "only", IWARP_ONLY }, { "both", IWARP_BOTH },
		{ "first", IWARP_FIRST },
	};
	const char *v = get(name);

	if (!v)
		return IWARP_NONE;
	for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++)
		if (!strcasecmp(v, modes[i].name))
			return modes[i].value;
	complain(name, v, "only (or 1), both or first");
	return IWARP_NONE;
}

/* "12.5" or "12.5%", whatever the locale's decimal point is. */
static double get_percent(const char *name)
{
	const char *v = get(name), *p = v;
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
		complain(name, v, "a percentage from 0 to 100");
		return 0;
	}
	return n / 100;
}

static void load(void)
{
	config = (struct config){
		/* What a script selects are packets as they are on the wire. */
		.wire = get_bool("SOFTHCA_WIRE") || get("SOFTHCA_FAULTS"),
		.same_host = get_same_host("SOFTHCA_SAME_HOST"),
		.iwarp = get_iwarp("SOFTHCA_IWARP"),
		.mpa_crc = get_bool("SOFTHCA_MPA_CRC"),
		.addr = get_string("SOFTHCA_ADDR"),
		.devices = get_string("SOFTHCA_DEVICES"),
		.loss = get_percent("SOFTHCA_LOSS"),
		.seed = get_number("SOFTHCA_SEED", UINT64_MAX),
		.faults = get_string("SOFTHCA_FAULTS"),
		.faults_log = get_string("SOFTHCA_FAULTS_LOG"),
		.check = get_string("SOFTHCA_CHECK"),
		.check_json = get_string("SOFTHCA_CHECK_JSON"),
		.pcap = get_string("SOFTHCA_PCAP"),
		.trace = get_string("SOFTHCA_TRACE"),
		.explain_full = is_full("SOFTHCA_EXPLAIN"),
		.explain = is_full("SOFTHCA_EXPLAIN") ||
			   get_bool("SOFTHCA_EXPLAIN"),
		.part_id = (uint32_t)get_number("SOFTHCA_PART_ID", UINT32_MAX),
		.vendor_id =
			(uint32_t)get_number("SOFTHCA_VENDOR_ID", UINT32_MAX),
		.rundir = get_string("SOFTHCA_RUNDIR"),
		.tree = get_string("SOFTHCA_SYSFS"),
		.cm_retries = (uint8_t)get_number("SOFTHCA_CM_RETRIES", 15),
	};
	if (config.explain)
		why_begin();
}

const struct config *config_get(void)
{
	pthread_once(&once, load);
	return &config;
}

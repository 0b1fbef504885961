/*
 * begin.c - whether the program is checked, and from when on
 */
#include "internal.h"
#include "options.h"

#include "base/say.h"
#include "os/config.h"

#include <pthread.h>

_Atomic bool check_is_on;
struct check_env check_env;

static struct check_options options;

bool check_wants_leaks(void)
{
	return check_on() && options.leaks;
}

static void begin(void)
{
	const struct config *cfg = config_get();
	const char *why;

	if (!cfg->check)
		return;
	why = check_options(cfg->check, &options);
	if (why)
		say("SOFTHCA_CHECK=%s ignored: %s", cfg->check, why);
	if (why || !options.on)
		return;
	check_places();
	check_reports_begin(options.json[0] ? options.json : NULL,
			    options.exit);
	atomic_store(&check_is_on, true);
}

void check_begin(const struct check_env *env)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	check_env = *env; /* the same each time */
	pthread_once(&once, begin);
}

void check_forked(void)
{
	check_reports_forked();
	check_queues_forked();
	check_cqs_forked();
	check_events_forked();
	check_keys_forked();
	check_races_forked();
	check_sinks_forked();
}

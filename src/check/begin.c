/*
 * begin.c - whether the program is checked, and from when on
 */
#include "internal.h"
#include "options.h"

#include "base/say.h"
#include "host/config.h"

#include <pthread.h>

_Atomic bool check_is_on;
struct check_env check_env;

static void begin(void)
{
	const struct config *cfg = config_get();
	struct check_options o;
	const char *why;

	if (!cfg->check)
		return;
	why = check_options(cfg->check, &o);
	if (why)
		say("SOFTHCA_CHECK=%s ignored: %s", cfg->check, why);
	if (why || !o.on)
		return;
	check_stacks_begin();
	check_reports_begin(cfg->check_json, o.exit);
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
}

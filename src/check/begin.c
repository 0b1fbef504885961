/*
 * begin.c - whether the program is checked, and from when on
 */
#include "check_internal.h"
#include "options.h"

#include "base/say.h"
#include "os/config.h"

#include <pthread.h>

struct check_env check_env;

static struct check_options options;

bool check_wants_leaks(void)
{
	return options.leaks;
}

static const struct check_ops ops = {
	.here = check_here,
	.wants_leaks = check_wants_leaks,
	.leaked = check_leaked,
	.exit = check_exit,
	.disagrees = check_disagrees,
	.address = check_address,
	.qp_created = check_qp_created,
	.qp_connected = check_qp_connected,
	.qp_void = check_qp_void,
	.qp_gone = check_qp_gone,
	.allowed = check_allowed,
	.post_send = check_post_send,
	.cq_created = check_cq_created,
	.cq_resized = check_cq_resized,
	.cq_gone = check_cq_gone,
	.cq_armed = check_cq_armed,
	.cq_event = check_cq_event,
	.poll = check_poll,
	.polled = check_polled,
	.key_ended = check_key_ended,
	.sleep_begin = check_sleep_begin,
	.sleep_end = check_sleep_end,
	.unacked = check_unacked,
};

static void begin_checks(void)
{
	const struct config *cfg = config_get();
	const char *why;

	check_ops = &ops;
	if (!cfg->check)
		return;
	why = check_options(cfg->check, &options);
	if (why)
		say("SOFTHCA_CHECK=%s ignored: %s", cfg->check, why);
	if (why || !options.on)
		return;
	check_callsites();
	check_reports_begin(options.json[0] ? options.json : NULL,
			    options.exit);
	atomic_store(&check_is_on, true);
}

void check_begin(const struct check_env *env)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	check_env = *env; /* the same each time */
	pthread_once(&once, begin_checks);
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

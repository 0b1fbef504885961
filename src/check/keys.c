/*
 * keys.c - keys of memory that lead nowhere any more
 *
 * The last that ended are remembered, each with when and where. A request that
 * names one of them came too late: had it been a moment earlier, it would have
 * worked.
 */
#include "check_internal.h"

#include "base/hash64.h"
#include "os/config.h"

#include <pthread.h>

#define KEYS 4096u /* a power of two */

static struct {
	pthread_mutex_t lock; /* innermost but for reports' */
	struct ended {
		uint32_t key;
		uint32_t stack;
		uint64_t at;
	} last[KEYS];
} ended = { .lock = PTHREAD_MUTEX_INITIALIZER };

void check_keys_forked(void)
{
	pthread_mutex_init(&ended.lock, NULL);
}

static struct ended *ended_slot(uint32_t key)
{
	return &ended.last[hash64(key) & (KEYS - 1)];
}

void check_key_ended(uint32_t key)
{
	const uint32_t here = check_here();

	if (!key)
		return;
	pthread_mutex_lock(&ended.lock);
	*ended_slot(key) = (struct ended){ key, here, clock_ns() };
	pthread_mutex_unlock(&ended.lock);
}

static void past_key(uint32_t qpn, uint32_t key, bool remote)
{
	struct check_side side = { .what = "the region or window ended" };
	struct ended e;

	pthread_mutex_lock(&ended.lock);
	e = *ended_slot(key);
	pthread_mutex_unlock(&ended.lock);
	if (!key || e.key != key)
		return;
	side.stack = e.stack;
	check_report(CHECK_PAST_KEY, qpn, &side, 1,
		     "QP 0x%06x: %s 0x%08x, which was valid until %.1f ms ago",
		     qpn,
		     remote ? "its peer names rkey" :
			      "a work request is carried out that names lkey",
		     key, (double)(clock_ns() - e.at) / 1e6);
}

void check_key_refused(uint32_t qpn, enum check_key what, uint32_t key,
		       uint64_t va, bool remote)
{
	const struct check_side side = { "the QP was connected, or made ready",
					 check_connected(qpn) };

	switch (what) {
	case CHECK_KEY_PAST:
		past_key(qpn, key, remote);
		break;
	case CHECK_KEY_OTHER:
		check_report(CHECK_KEY_KIND, qpn, &side, 1,
			     remote ? "QP 0x%06x: its peer names rkey 0x%08x, "
				      "which is the lkey of a region here: "
				      "they are the same number by luck" :
				      "QP 0x%06x: a work request names lkey "
				      "0x%08x, which is the rkey of a region: "
				      "they are the same number by luck",
			     qpn, key);
		break;
	case CHECK_KEY_CUT:
		check_report(CHECK_ADDRESS_HALF, qpn, &side, 1,
			     "QP 0x%06x: %s address 0x%llx, of which the upper "
			     "32 bits are missing: with them it is in its "
			     "region",
			     qpn,
			     remote ? "its peer names" : "a work request names",
			     (unsigned long long)va);
		break;
	}
}

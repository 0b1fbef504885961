/*
 * migrate.h - what the two calls of softhca/migrate.h do not say
 */
#ifndef SOFTHCA_MIGRATE_MIGRATE_H
#define SOFTHCA_MIGRATE_MIGRATE_H

#include "connect/moving.h"

/* Of the last suspend: CLOCK_REALTIME when this process stopped, and how many queue
 * pairs were connected then, and have a peer that has said that it waits. */
struct migrate_stop {
	uint64_t real_ns;
	size_t all, waits;
};
struct migrate_stop migrate_stopped(void);

/* As softhca_migrate_peers(), with all of it. */
int migrate_count(struct moving_sum *sum);

/* Of the last resume: as moving_heard(). */
bool migrate_heard(struct moving_away away[MOVING_AWAY], size_t *n);

#endif

/*
 * parts.h - the parts of a process that stand above its objects
 */
#ifndef SOFTHCA_PROCESS_PARTS_H
#define SOFTHCA_PROCESS_PARTS_H

#include <stdbool.h>

struct engine;

/* env.c: what the protocol cores ask for. */
int shca_env_init(struct engine *e);

/* stat.c: who asks for the counters of this process is answered. */
int shca_stat_init(struct engine *e);
/* No longer; the name goes. */
void shca_stat_fini(struct engine *e);
/* In the child of a fork: the name is the parent's. */
void shca_stat_forked(struct engine *e);
/* The process ends. */
void shca_stat_exit(struct engine *e);

/* From now on others may ask for the counters, and SIGUSR1 what QPs wait for. */
void shca_stat_begin(struct engine *e);
/* No longer, as the process is suspended (src/migrate). Whether they might. */
bool shca_stat_away(struct engine *e);
/* A descriptor of the thread's is readable. False: it is none of those. */
bool shca_stat_readable(struct engine *e, int fd);
/* Adds what has been counted to the sums of all processes
 * (counters/counter_file.h), without waiting for a lock; true: that was more
 * than nothing. */
bool shca_sums_add(struct engine *e);

#endif

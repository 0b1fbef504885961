/*
 * sums.h - what all processes of this user have counted, also those that have
 * ended, and the files that show it
 *
 * Below the kernel's /sys/class/infiniband each port has counters and hw_counters;
 * softhca run shows programs the same (src/verbs/sysfs.c, src/shim). Their values are
 * sums over processes of one network namespace, so they are in a file beside the
 * tree, to which each process adds what it has counted since it last did so: when
 * it is asked (stat.h), from time to time while it sends or receives, and at its
 * end. They never go back; what a process that is killed had counted in its last
 * seconds is missing.
 */
#ifndef SOFTHCA_COUNTERS_SUMS_H
#define SOFTHCA_COUNTERS_SUMS_H

#include "stat.h"

/* How the file's name begins. Who has it open for adding has a shared flock(2). */
#define SUMS_NAME "counters-"
#define SUMS_LIFESPAN_MS 10 /* how old a value may be that is shown */
#define SUMS_DEVICES 64 /* softhca0 to softhca63; others are not counted */

struct sums;

/* tree: what SOFTHCA_SYSFS names. NULL: there can be none. */
struct sums *sums_open(const char *tree);
void sums_close(struct sums *s);
/* Adds how much now is more than what was added before; added is set to now. True:
 * that was something. */
bool sums_add(struct sums *s, unsigned device, uint64_t added[STAT_COUNTERS],
	      const uint64_t now[STAT_COUNTERS]);

/*
 * A file, by its path from sys/class/infiniband on: "softhca0/ports/1/counters/
 * port_xmit_data". There is one only for what is counted.
 */
struct sums_file {
	const char *name;
	bool hw; /* in hw_counters */
	uint8_t shift; /* of the value, to the right: it counts words */
	uint8_t count;
	uint8_t of[2]; /* sum of these: enum stat_counter */
};
extern const struct sums_file sums_file[];
extern const unsigned sums_files;
/* Its file and its device; NULL: it is none of them. */
const struct sums_file *sums_find(const char *path, unsigned *device);
/*
 * What it holds now, after asking the processes that run, which takes 0.2 s at
 * most; those that do not answer have not added their last. dir: where registries
 * are, as in registry_join(). Nothing counted yet is 0.
 */
uint64_t sums_value(const struct sums_file *f, unsigned device,
		    const char *tree, const char *dir);

#endif

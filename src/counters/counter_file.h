/*
 * counter_file.h - what all processes of this user have counted, also those
 * that have ended, and the files that show it
 *
 * Below the kernel's /sys/class/infiniband each port has counters and hw_counters;
 * softhca run shows programs the same (src/verbs/sysfs.c, src/shim). Their values are
 * sums over processes of one network namespace, so they are in a file beside the
 * tree, to which each process adds what it has counted since it last did so: when
 * it is asked (stat.h), from time to time while it sends or receives, and at its
 * end. They go back where a program resets them (perfquery -R); what a process that is killed had counted in its last
 * seconds is missing.
 */
#ifndef SOFTHCA_COUNTERS_COUNTER_FILE_H
#define SOFTHCA_COUNTERS_COUNTER_FILE_H

#include "stat.h"

/* How the file's name begins. Who has it open for adding has a shared flock(2). */
#define COUNTER_FILE_NAME "counters-"
/* What --sockets knows of other hosts, beside it: rspreload/silent.c. */
#define SILENT_FILE_NAME "silent-"
#define COUNTER_FILE_AGE_MS 10 /* how old a value may be that is shown */
#define COUNTER_FILE_KIND 16 /* devices of one kind, softhca0 to softhca15 */
#define COUNTER_FILE_DEVICES (3 * COUNTER_FILE_KIND)

struct counter_file;

/* The number of a device here, by its name (softhca0, softib0, softiw0); -1: it has
 * none, and is not counted. */
int counter_file_device(const char *name);

/* tree: what SOFTHCA_SYSFS names. NULL: there can be none. */
struct counter_file *counter_file_open(const char *tree);
void counter_file_close(struct counter_file *s);
/* Adds how much now is more than what was added before; added is set to now. True:
 * that was something. */
bool counter_file_add(struct counter_file *s, unsigned device,
		      uint64_t added[STAT_COUNTERS],
		      const uint64_t now[STAT_COUNTERS]);

/*
 * A file, by its path from sys/class/infiniband on: "softhca0/ports/1/counters/
 * port_xmit_data". There is one only for what is counted.
 */
struct counter_name {
	const char *name;
	bool hw; /* in hw_counters */
	uint8_t shift; /* of the value, to the right: it counts words */
	uint8_t count;
	uint8_t of[2]; /* sum of these: enum stat_counter */
};
extern const struct counter_name counter_names[];
extern const unsigned counter_names_n;
/* Its file and its device; NULL: it is none of them. */
const struct counter_name *counter_name_find(const char *path,
					     unsigned *device);
/*
 * What it holds now, after asking the processes that run, which takes 0.2 s at
 * most; those that do not answer have not added their last. dir: where registries
 * are, as in registry_join(). Nothing counted yet is 0.
 */
uint64_t counter_name_value(const struct counter_name *f, unsigned device,
			    const char *tree, const char *dir);

/*
 * What a port has sent and received, as its performance management agent says it:
 * data in words of four bytes. Since it was last reset: counter_port_reset() adds
 * to what is taken off from then on, of the files above as well. 0 or -errno.
 */
enum counter_port {
	COUNTER_XMIT_DATA,
	COUNTER_RCV_DATA,
	COUNTER_XMIT_PKTS,
	COUNTER_RCV_PKTS,
	COUNTER_PORT_N
};
void counter_port_get(unsigned device, const char *tree, const char *dir,
		      uint64_t n[COUNTER_PORT_N]);
int counter_port_reset(unsigned device, const char *tree,
		       const uint64_t more[COUNTER_PORT_N]);

#endif

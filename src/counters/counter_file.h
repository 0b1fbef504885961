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
/* What has been set of a fabric's file: ibumad/fabric_state.c. */
#define FABRIC_FILE_NAME "fabric-"
#define COUNTER_FILE_AGE_MS 10 /* how old a value may be that is shown */
#define COUNTER_FILE_DEVICES                                                   \
	64 /* rows; what a device's is, its file in COUNTER_ROWS says */

/* Where in a tree, by the name of the device. */
#define COUNTER_ROWS "rows"

struct counter_file;

/* tree: what SOFTHCA_SYSFS names. NULL: there can be none. */
struct counter_file *counter_file_open(const char *tree);
void counter_file_close(struct counter_file *s);
/* Adds how much now is more than what was added before; added is set to now. True:
 * that was something. */
bool counter_file_add(struct counter_file *s, unsigned row,
		      uint64_t added[STAT_COUNTERS],
		      const uint64_t now[STAT_COUNTERS]);

/*
 * A file below sys/class/infiniband, or where that leads: "softhca0/ports/1/
 * counters/port_xmit_data". There is a value only for what is counted.
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
/* What a path of a tree is, from its root on, and the row of its device; NULL: it
 * is none of them. */
const struct counter_name *counter_name_find(const char *tree, const char *path,
					     unsigned *row);
/*
 * What it holds now, after asking the processes that run, which takes 0.2 s at
 * most; those that do not answer have not added their last. dir: where registries
 * are, as in registry_join(). Nothing counted yet is 0.
 */
uint64_t counter_name_value(const struct counter_name *f, unsigned row,
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
void counter_port_get(unsigned row, const char *tree, const char *dir,
		      uint64_t n[COUNTER_PORT_N]);
int counter_port_reset(unsigned row, const char *tree,
		       const uint64_t more[COUNTER_PORT_N]);

#endif

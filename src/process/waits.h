/*
 * waits.h - what this process waits for, in sentences
 *
 * The same for "softhca ps", "softhca explain PID" and SIGUSR1: what each thread
 * does, and what the objects that programs hold have to say. Nothing is noted
 * while the program runs, but for threads that wait for acknowledgements: all is
 * looked up when somebody asks.
 */
#ifndef SOFTHCA_PROCESS_WAITS_H
#define SOFTHCA_PROCESS_WAITS_H

#include "base/lines.h"
#include "counters/stat.h"

#include <stdint.h>

struct engine;

/* Threads and connections, a line each; no lock is held. */
void shca_waits(struct engine *e, struct lines *out, uint64_t now);

/* Of a queue pair whose messages may find no receive. */
struct waits_receives {
	bool srq;
	uint32_t posted; /* its own, or those of its SRQ */
};
/*
 * Adds to the sentences of QPs that lack receives where the program has posted
 * some instead. r has what is known of each.
 */
void shca_waits_receives(struct engine *e, struct stat_qp *qp,
			 const struct waits_receives *r, uint32_t n);

#endif

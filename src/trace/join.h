/*
 * join.h - what belongs together among events that have been read (read.h)
 */
#ifndef SOFTHCA_TRACE_JOIN_H
#define SOFTHCA_TRACE_JOIN_H

#include "read.h"

/*
 * Finds the QPs and their peers, sets the clocks by their packets, puts the
 * events in the order of time, and finds for each packet where it left or
 * arrived, and the work request that it belongs to. 0 or -ENOMEM.
 */
int trace_join(struct trace_set *t);

#endif

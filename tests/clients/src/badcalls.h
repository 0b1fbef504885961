/*
 * badcalls.h - the local cases of badinput for the extended verbs
 */
#ifndef TEST_CLIENTS_BADCALLS_H
#define TEST_CLIENTS_BADCALLS_H

#include "peer.h"

/* A case: returns the errno it got, 0 for success. */
typedef int case_fn(void);

struct local_case {
	case_fn *fn;
	const char *name;
	int want[2]; /* either will do where implementations differ */
};

extern const struct local_case badcalls[];
extern const size_t nbadcalls;
/* What the cases work on. */
void badcalls_use(struct dev *d);

#endif

/*
 * badcalls.h - the local cases of badinput: calls, and the errno they give
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

/* A row of the tables below. */
#define C(fn, text, ...)                                                       \
	{                                                                      \
		fn, "local: " text,                                            \
		{                                                              \
			__VA_ARGS__                                            \
		}                                                              \
	}

/* Of the basic verbs, badargs.c; of the extended ones, badcalls.c. */
extern const struct local_case badargs[], badcalls[];
extern const size_t nbadargs, nbadcalls;

extern struct dev dev; /* what they work on */

#endif

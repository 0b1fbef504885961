/*
 * places.h - where in a running program its threads stand
 */
#ifndef SOFTHCA_CLI_PLACES_H
#define SOFTHCA_CLI_PLACES_H

#include <sys/types.h>

#define PLACES_THREADS 64 /* that are looked at */

struct places {
	char *text; /* softhca-lines has said it; NULL: nothing */
	pid_t shown[PLACES_THREADS];
	unsigned n;
};

/* Looks at a process; what cannot be known is not said. */
void places_read(struct places *p, pid_t pid);
void places_free(struct places *p);
/* Below a line about a thread: "#0 FILE:LINE (FUNCTION)", most at most, the innermost
 * first. */
void places_print(struct places *p, pid_t tid, unsigned most,
		  const char *indent);
/* The same of threads of which that has not printed anything, each below a line. */
void places_print_rest(struct places *p, unsigned most, const char *indent);

#endif

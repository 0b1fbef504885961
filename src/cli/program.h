/*
 * program.h - whether a program can be run under softhca
 */
#ifndef SOFTHCA_CLI_PROGRAM_H
#define SOFTHCA_CLI_PROGRAM_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

extern const char *const program_sonames[]; /* the two ABI libraries */

/* Finds name as execvp() would. Returns 0, -ENOENT or -EACCES. */
int program_find(char path[PATH_MAX], const char *name);

/* Whether the loader gives the program a library whose name begins so. */
bool program_uses(const char *path, const char *lib);

/*
 * Returns 1 if something keeps the loader from giving the program at path our
 * libraries, with the reason in why and the remedy in fix; else 0.
 */
int program_obstacle(const char *path, char *why, size_t why_size, char *fix,
		     size_t fix_size);

#endif

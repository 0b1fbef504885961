/*
 * job.h - the options of run and env, and the environment they become
 *
 * Options set SOFTHCA_* variables (os/config.h), which every process of a
 * job inherits. They are checked here, where a mistake can be reported to the
 * user who made it.
 */
#ifndef SOFTHCA_CLI_JOB_H
#define SOFTHCA_CLI_JOB_H

#include <argp.h>
#include <limits.h>
#include <stdbool.h>

/* An argp child: sets SOFTHCA_* in this process's environment. On a bad value
 * it prints why and ends the process with argp_err_exit_status. */
extern const struct argp job_argp;

/* An argp child: --libdir=DIR, for another place than this one. */
extern const struct argp job_libdir_argp;
extern const char *job_libdir; /* NULL: it was not given */

/* Where and when the environment is used, if not here and now. */
struct job_place {
	const char *libdir; /* of the libraries there; NULL: as here */
	bool no_tree; /* SOFTHCA_SYSFS is left out: they make it themselves */
};

/*
 * Completes the environment: LD_LIBRARY_PATH, LD_PRELOAD, SOFTHCA_SYSFS. The
 * user's entries stay, ours are added once. Without a device, or a directory
 * for the tree of files, reports that on stderr and leaves SOFTHCA_SYSFS out.
 * place may be NULL. Returns 0 or -errno, having reported why.
 */
int job_environment(const struct job_place *place);

/* The variables that options and job_environment() set; ends with NULL. */
extern const char *const job_variables[];

#endif

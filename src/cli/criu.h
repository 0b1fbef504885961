/*
 * criu.h - running CRIU, which saves and restores processes
 *
 * Every call is bounded in time, as some versions hang on some machines; one that
 * is killed halfway would leave its process in pieces, so CRIU first shows what it
 * can on a process that nobody needs.
 */
#ifndef SOFTHCA_CLI_CRIU_H
#define SOFTHCA_CLI_CRIU_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct criu {
	char path[PATH_MAX];
	char version[32];
	bool no_breakpoints; /* it is told that there are none (CRIU_FAULT=130) */
	unsigned seconds; /* for one call; 0: the default */
	uint64_t tried_ns; /* it took to save and to restore a process, last */
};

/* What keeps CRIU from being used, and what to do about it. */
struct criu_why {
	char text[1024];
	char fix[256];
};

#define CRIU_SECONDS 120

/* Finds it: name is a path, or NULL: "criu" in PATH and where root's are. 0 or
 * -errno with why. */
int criu_find(struct criu *c, const char *name, struct criu_why *why);

/* Saves a process of its own, ends it, restores and ends it. 0 or -errno with why.
 * Sets c->no_breakpoints if that is what it takes. */
int criu_try(struct criu *c, struct criu_why *why);

/*
 * "criu VERB -D dir ARGS", in the network namespace that the descriptor netns leads
 * to (-1: this one). Its log is dir/VERB.log. 0, or -errno with what the log says:
 * -ETIMEDOUT: it was killed.
 */
int criu_call(const struct criu *c, const char *verb, const char *dir,
	      char *const args[], int netns, struct criu_why *why);

#endif

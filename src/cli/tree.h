/*
 * tree.h - a process and all that come from it, suspended as one
 */
#ifndef SOFTHCA_CLI_TREE_H
#define SOFTHCA_CLI_TREE_H

#include "cli/image.h"
#include "counters/suspend_ask.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct tree {
	size_t n; /* the first is the parent of all */
	struct member {
		pid_t pid;
		bool away; /* suspended, by us */
		struct suspended s;
	} member[IMAGE_PROCESSES];
	size_t naway;
	char why[1024]; /* what has gone wrong */
};

/* 0 or -errno with why: the members, none of them suspended. */
int tree_read(struct tree *t, pid_t root);

/* Suspends all that have a device, and those that have begun meanwhile. 0, or -errno
 * with why, and then all go on. */
int tree_suspend(struct tree *t);

/* All go on. 0 or -errno with why; *took_ns: what the slowest took. */
int tree_resume(struct tree *t, uint64_t wait_ns, uint64_t *took_ns);
/* The same for processes that have been restored, which do so by themselves. */
int tree_await(const struct image *im, uint64_t wait_ns, uint64_t *took_ns,
	       char why[1024]);

/* Lets go of what keeps them suspended, and of their seats: they have been saved. */
void tree_let_go(struct tree *t);

/* Whether CRIU has to be told of connections by TCP, of a session that goes on
 * without them, and of file locks. */
bool tree_has_tcp(const struct tree *t);
bool tree_has_outer_session(const struct tree *t);
bool tree_has_locks(const struct tree *t);

#endif

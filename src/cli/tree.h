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
	unsigned
		seconds; /* that their peers are asked to wait; 0: they are not */
	uint64_t since_ns; /* CLOCK_REALTIME when the first one stopped */
	struct suspend_peers peers; /* that have said that they wait */
	char why[1024]; /* what has gone wrong */
};

/* Processes are on again. */
struct tree_back {
	uint64_t took_ns; /* the slowest */
	uint64_t real_ns; /* CLOCK_REALTIME when the last one was */
	size_t ended; /* have ended by now */
	size_t naway; /* peers, by address */
	struct suspend_away away[SUSPEND_AWAY];
};

/* 0 or -errno with why: the members, none of them suspended. */
int tree_read(struct tree *t, pid_t root);

/* What the peers of all together would do. 0 or -errno with why. */
int tree_count_peers(struct tree *t, struct suspend_peers *sum);
/* Suspends all that have a device, and those that have begun meanwhile. 0, or -errno
 * with why, and then all go on. */
int tree_suspend(struct tree *t);

/* All go on. 0 or -errno with why. */
int tree_resume(struct tree *t, uint64_t wait_ns, struct tree_back *back);
/* The same for processes that have been restored, which do so by themselves. One
 * that has exited by now has gone on. */
int tree_await(const struct image *im, uint64_t wait_ns, struct tree_back *back,
	       char why[1024]);

/* Lets go of what keeps them suspended, and of their seats: they have been saved. */
void tree_let_go(struct tree *t);

/* Whether CRIU has to be told of connections by TCP, of a session that goes on
 * without them, and of file locks. */
bool tree_has_tcp(const struct tree *t);
bool tree_has_outer_session(const struct tree *t);
bool tree_has_locks(const struct tree *t);

#endif

/*
 * child.h - processes that a test starts, which end when it does
 *
 * A test that fails or is killed leaves no processes behind.
 */
#ifndef SOFTHCA_TESTS_UNIT_CHILD_H
#define SOFTHCA_TESTS_UNIT_CHILD_H

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

/* Lasts through exec(), but not through a change of credentials. */
static inline void die_with_parent(void)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
}

static inline pid_t fork_child(void)
{
	pid_t pid = fork();

	if (!pid)
		die_with_parent();
	return pid;
}

#endif

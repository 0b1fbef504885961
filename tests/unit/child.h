/*
 * child.h - processes that a test starts, which end when it does
 *
 * A test that fails or is killed leaves no processes behind. An assertion that fails
 * in one of them ends it: else cmocka would go on there with the next test.
 */
#ifndef SOFTHCA_TESTS_UNIT_CHILD_H
#define SOFTHCA_TESTS_UNIT_CHILD_H

#include <signal.h>
#include <stdlib.h>
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

	if (!pid) {
		die_with_parent();
		setenv("CMOCKA_TEST_ABORT", "1", 1);
	}
	return pid;
}

#endif

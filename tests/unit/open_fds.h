/*
 * open_fds.h - how many descriptors a test has open, to see whether one is lost
 */
#ifndef SOFTHCA_TESTS_OPEN_FDS_H
#define SOFTHCA_TESTS_OPEN_FDS_H

#include "unit.h"

#include <dirent.h>

/* The one by which it looks included. */
static inline unsigned open_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	unsigned n = 0;

	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

#endif

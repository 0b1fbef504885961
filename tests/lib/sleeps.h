/*
 * sleeps.h - whether a thread of this process sleeps
 */
#ifndef SOFTHCA_TESTS_LIB_SLEEPS_H
#define SOFTHCA_TESTS_LIB_SLEEPS_H

#include <stdbool.h>
#include <stdio.h>

static inline bool thread_sleeps(int tid)
{
	char path[64], state = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", tid);
	f = fopen(path, "r");
	if (f && fscanf(f, "%*d (%*[^)]) %c", &state) != 1)
		state = 0;
	if (f)
		fclose(f);
	return state == 'S';
}

#endif

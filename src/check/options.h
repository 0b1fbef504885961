/*
 * options.h - what SOFTHCA_CHECK says
 */
#ifndef SOFTHCA_CHECK_OPTIONS_H
#define SOFTHCA_CHECK_OPTIONS_H

#include <limits.h>
#include <stdbool.h>

struct check_options {
	bool on;
	bool leaks; /* what is left behind is a finding, too */
	int exit; /* status of a process with findings; 0: its own */
	char json[PATH_MAX]; /* file that takes the findings; "": none */
};

/* "1", "0", or a list "exit=N,json=FILE,leaks", which is 1 as well. NULL, or what
 * is wrong with it: half a sentence. */
const char *check_options(const char *text, struct check_options *out);

#endif

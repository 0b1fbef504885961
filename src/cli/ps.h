/*
 * ps.h - what running programs wait for
 */
#ifndef SOFTHCA_CLI_PS_H
#define SOFTHCA_CLI_PS_H

#include "counters/stat.h"

/* Prints what a process, its threads and each of its queue pairs wait for;
 * false: it is none of this user's with softhca's libraries. */
bool ps_explain(pid_t pid);

/* Whether it is a number, which a process may have. */
bool ps_is_pid(const char *asked);
/* On stderr, of a process that runs, and is none of these; false: none runs. */
bool ps_say_stranger(const char *pid);

/* stat.c: on stderr, why there is nothing of a process, or not all. */
void stat_say_silent(const struct stat_reply *r);

#endif

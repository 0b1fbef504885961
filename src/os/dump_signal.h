/*
 * dump_signal.h - SIGUSR1 asks what a process waits for
 *
 * Only with --explain, and only where the program has nothing of its own to do on
 * that signal: a handler of the program's, or one who ignores it, is left alone,
 * and one that it installs later replaces ours.
 */
#ifndef SOFTHCA_OS_DUMP_SIGNAL_H
#define SOFTHCA_OS_DUMP_SIGNAL_H

#include <signal.h>
#include <stdbool.h>

/*
 * Takes the signal's default away from it, for the rest of the process. While
 * nobody answers a fixed sentence does.
 */
void dump_signal_begin(void);

/*
 * A descriptor that is readable whenever the signal has come, and does not block;
 * or -errno. Whoever watches it reads it, and answers.
 */
int dump_signal_open(void);
/* Nobody answers any more; fd is closed. */
void dump_signal_close(int fd);

/* Whether that is our handler. */
bool dump_signal_is_ours(const struct sigaction *sa);

#endif

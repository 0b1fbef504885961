/*
 * softhca_lines.h - what the files of softhca-lines share
 */
#ifndef SOFTHCA_CLI_SOFTHCA_LINES_H
#define SOFTHCA_CLI_SOFTHCA_LINES_H

#include <elfutils/libdwfl.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

/* "ID<tab>FUNCTION<tab>SOURCE:LINE" for each function that an address is in; false:
 * there is no debug information of it. */
bool lines_put(FILE *to, unsigned id, Dwfl_Module *mod, uint64_t pc);

/* softhca_stacks.c: where the threads of a process stand. */
void stacks_put(pid_t pid);

#endif

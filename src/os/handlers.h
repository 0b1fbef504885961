/*
 * handlers.h - whether signals end system calls of this process
 *
 * A read(2) that a signal interrupts goes on if the signal's handler has
 * SA_RESTART, else it fails with EINTR. poll(2) always fails, and does not say
 * because of which signal; but if all handlers of the process are of one kind,
 * that is known.
 */
#ifndef SOFTHCA_OS_HANDLERS_H
#define SOFTHCA_OS_HANDLERS_H

#include <signal.h>
#include <stdint.h>

/* Kinds of handlers that there are. */
#define HANDLERS_RESTART 1u
#define HANDLERS_INTERRUPT 2u

/*
 * Which kinds the program has installed, as of some milliseconds before now_ns,
 * since reading them takes many system calls: of 2 ms, or up to 100 where these
 * are slow. UINT64_MAX: as of now.
 */
unsigned handlers_kinds(uint64_t now_ns);

/* The same as of now, and the signals whose handlers have SA_RESTART: the
 * library's own among them, for --explain. */
unsigned handlers_read(sigset_t *restart);

#endif

/*
 * process.h - contexts, and what a process has from the first to the last of them
 */
#ifndef SOFTHCA_PROCESS_PROCESS_H
#define SOFTHCA_PROCESS_PROCESS_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

struct engine;
struct ibv_context;
struct ibv_device;

int shca_open(struct ibv_device *dev, struct ibv_context **ctx);
/* A context with another's command file, see verbs/dm.c; takes over cmd_fd. */
int shca_import(int cmd_fd, struct ibv_context **ctx);
int shca_close(struct ibv_context *ctx);

/* The process stays, also if all contexts are closed; NULL: there is none. */
struct engine *shca_process_hold(void);
void shca_process_drop(struct engine *e);

/* Who asks this process to suspend (counters/suspend_ask.h): takes over the
 * connection, in the thread. NULL: nobody can. src/migrate sets it. */
struct suspend_request;
extern void (*shca_suspend_asked)(int who, const struct suspend_request *want);

/*
 * Waits until fd is readable, and receives meanwhile, so that one thread wakes
 * for a message: 1, 0 at until_ns (of CLOCK_MONOTONIC; UINT64_MAX: never),
 * -EINTR, or -ENODEV: no device is open. mask, or NULL, holds while it sleeps.
 * spin: it may spin before that (base/backoff.h). The caller's devices stay open
 * meanwhile. A cancellation point.
 */
int shca_wait(int fd, uint64_t until_ns, const sigset_t *mask, bool spin);

#endif

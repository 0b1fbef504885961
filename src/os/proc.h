/*
 * proc.h - what /proc shows of other processes
 */
#ifndef SOFTHCA_OS_PROC_H
#define SOFTHCA_OS_PROC_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct proc_holder {
	unsigned uid;
	bool named; /* else it is another user's, or the kernel */
	char process[64]; /* "process 1234 (name)", or "a process" */
};

/*
 * Who keeps others from binding a UDP port at gid: who is bound to the same
 * address, or to the wildcard. Returns false if nobody is in this network
 * namespace. Reads the descriptors of all processes, so call it without locks.
 */
bool proc_udp_holder(const union ibv_gid *gid, uint16_t port,
		     struct proc_holder *out);

/*
 * The beginning of a file of /proc, as text; false: it cannot be read, or is empty.
 * No cancellation point, nor does it allocate.
 */
bool proc_text(const char *path, char *text, size_t size);

/*
 * What a thread does, as in proc_pid_stat(5): 'R' it runs or is ready to, 'S' it
 * sleeps, 'T' it is stopped...; 0 if /proc does not show it. pid 0 is the caller's
 * process. No cancellation point, nor does it allocate.
 */
char proc_state(pid_t pid, pid_t tid);

/*
 * When this process has begun, in the kernel's clock ticks; 0: /proc does not show
 * it. One that has been saved and restored has begun anew. No cancellation point.
 */
uint64_t proc_started(void);

/*
 * Calls is() with what each descriptor of a process leads to ("socket:[1234]", a
 * path) until it returns true. Whether it has; false where they cannot be read.
 */
bool proc_find_fd(pid_t pid, bool (*is)(void *arg, const char *link),
		  void *arg);

/* Whether a process is known to have another effective user than this one. */
bool proc_of_another_user(pid_t pid);

#endif

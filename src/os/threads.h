/*
 * threads.h - what the threads of a process do, as /proc shows it
 *
 * It costs a thread nothing: a system call that it sleeps in, and what it waits
 * for there, is read when somebody asks (proc_pid_syscall(5)).
 */
#ifndef SOFTHCA_OS_THREADS_H
#define SOFTHCA_OS_THREADS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/types.h>

#define THREAD_FDS 16

enum thread_call {
	THREAD_RUNS, /* in no system call, or one that does not sleep */
	THREAD_READS, /* fd[0]: read(2), recv(2) and the like */
	THREAD_WRITES,
	THREAD_ACCEPTS,
	THREAD_CONNECTS, /* to */
	THREAD_POLLS, /* all of fd: poll(2), select(2), epoll_wait(2) */
	THREAD_LOCKS, /* for another thread: futex(2) */
	THREAD_SLEEPS, /* for a time */
	THREAD_SIGNAL, /* until a signal comes */
	THREAD_CHILD, /* until a child process ends */
	THREAD_OTHER, /* another system call, or /proc does not say */
};

struct thread_does {
	pid_t tid;
	char name[32]; /* printable */
	char state; /* proc_pid_stat(5): 'R', 'S', 'T'...; 0: not known */
	enum thread_call call;
	unsigned n;
	int fd[THREAD_FDS];
	bool more; /* descriptors that found no room there */
	struct sockaddr_storage to;
};

/* The threads of a process, or (0) of this one but the caller's; most at most, as
 * each takes a few system calls. How many were left out. */
unsigned threads_each(pid_t pid, unsigned most,
		      void (*fn)(void *arg, const struct thread_does *t),
		      void *arg);

/* What comes by a descriptor of a process (0: this one): "data from 192.0.2.7 port
 * 7 (descriptor 5)". */
void thread_fd_text(pid_t pid, int fd, char *text, size_t size);
/*
 * What a thread does, as the rest of a sentence: "waits for ...". fd_text says what
 * comes by a descriptor; false: nothing that is to be said. False: there is nothing
 * to say, as it runs, or waits for nothing but such descriptors.
 */
bool thread_says(const struct thread_does *t,
		 bool (*fd_text)(void *arg, int fd, char *text, size_t size),
		 void *arg, char *text, size_t size);

#endif

/*
 * thread.h - threads of ours in the program's process
 *
 * They are detached, and get no signals: those are the program's.
 */
#ifndef SOFTHCA_BASE_THREAD_H
#define SOFTHCA_BASE_THREAD_H

#include <pthread.h>
#include <signal.h>

/* 0 or -errno. */
static inline int thread_start(void *(*run)(void *), void *arg)
{
	pthread_attr_t attr;
	sigset_t all, old;
	pthread_t thread;
	int err;

	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	err = pthread_create(&thread, &attr, run, arg);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	return -err;
}

#endif

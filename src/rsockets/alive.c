/*
 * alive.c - the thread behind SO_KEEPALIVE
 *
 * A connection that carries nothing does not notice that its peer is gone.
 * With SO_KEEPALIVE an RDMA write of nothing is sent every TCP_KEEPIDLE
 * seconds; without an acknowledgement the queue pair fails, as for data. One
 * thread serves all streams and ends with the last.
 */
#include "base/thread.h"
#include "rsock_internal.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed; /* on CLOCK_MONOTONIC */
static struct rsock *list;
static struct rsock *busy; /* served by the thread without the mutex */
static bool running, cond_ready;

static void schedule_probe(struct rsock *rs)
{
	rs->alive_due_ns =
		rsock_now_ns() + (uint64_t)rs->keepidle * 1000000000u;
}

static struct rsock *earliest_rsock(void)
{
	struct rsock *rs, *first = list;

	for (rs = list; rs; rs = rs->alive_next)
		if (rs->alive_due_ns < first->alive_due_ns)
			first = rs;
	return first;
}

static void *alive_thread(void *arg)
{
	struct timespec ts;
	struct rsock *rs;

	pthread_mutex_lock(&mutex);
	while ((rs = earliest_rsock())) {
		if (rs->alive_due_ns > rsock_now_ns()) {
			ts.tv_sec = (time_t)(rs->alive_due_ns / 1000000000u);
			ts.tv_nsec = (long)(rs->alive_due_ns % 1000000000u);
			pthread_cond_timedwait(&changed, &mutex, &ts);
			continue;
		}
		schedule_probe(rs);
		busy = rs;
		pthread_mutex_unlock(&mutex);
		rsock_stream_keepalive(rs);
		pthread_mutex_lock(&mutex);
		busy = NULL;
		pthread_cond_broadcast(&changed);
	}
	running = false;
	pthread_mutex_unlock(&mutex);
	return arg;
}

static int start_alive_thread(void)
{
	pthread_condattr_t cond;
	int err;

	if (!cond_ready) {
		pthread_condattr_init(&cond);
		pthread_condattr_setclock(&cond, CLOCK_MONOTONIC);
		pthread_cond_init(&changed, &cond);
		pthread_condattr_destroy(&cond);
		cond_ready = true;
	}
	err = thread_start(alive_thread, NULL);
	running = !err;
	return err;
}

int rsock_alive_set(struct rsock *rs, bool on)
{
	struct rsock **link;
	int err = 0;

	pthread_mutex_lock(&mutex);
	if (on == rs->keepalive)
		goto out;
	if (on) {
		schedule_probe(rs);
		rs->alive_next = list;
		list = rs;
		if (!running)
			err = start_alive_thread();
		if (err) {
			list = rs->alive_next;
			goto out;
		}
	} else {
		for (link = &list; *link; link = &(*link)->alive_next)
			if (*link == rs) {
				*link = rs->alive_next;
				break;
			}
		while (busy == rs)
			pthread_cond_wait(&changed, &mutex);
	}
	rs->keepalive = on;
	pthread_cond_broadcast(&changed);
out:
	pthread_mutex_unlock(&mutex);
	return err;
}

void rsock_alive_touch(struct rsock *rs)
{
	pthread_mutex_lock(&mutex);
	if (rs->keepalive) {
		schedule_probe(rs);
		pthread_cond_broadcast(&changed);
	}
	pthread_mutex_unlock(&mutex);
}

/* A child of fork() has neither the thread nor the parent's streams. */
void rsock_alive_forked(void)
{
	pthread_mutex_init(&mutex, NULL);
	list = busy = NULL;
	running = cond_ready = false;
}

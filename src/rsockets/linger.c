/*
 * linger.c - the thread that ends closed streams
 *
 * What was written before rclose() must arrive. That takes as long as the peer
 * takes to receive it, or, if the peer is gone, until the queue pair gives up.
 * rclose() does not wait for it, as close() of a socket does not: one thread
 * holds all closed streams that are not over, each with the table's reference
 * and a time limit. A process that exits waits for them.
 */
#include "base/fd_high.h"
#include "base/thread.h"
#include "rsock_internal.h"

#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define IDLE_MS 1000 /* how long the thread waits for more */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t none = PTHREAD_COND_INITIALIZER; /* total is 0 */
static struct rsock *list;
static unsigned total; /* of the list, and of those that are being ended */
static int efd = -1; /* the list has grown */
static bool running;

/* What the thread sleeps on: efd, then two for each stream. */
struct sleep {
	struct pollfd *p;
	struct rsock **rs;
	size_t n, room;
};

/* Armed, unless it is over. */
static bool linger_is_over(struct rsock *rs, int fds[2])
{
	bool yes;

	pthread_mutex_lock(&rs->lock);
	rsock_arm(rs, fds);
	yes = rsock_stream_over(rs) || rsock_now_ns() >= rs->linger_ns;
	pthread_mutex_unlock(&rs->lock);
	return yes;
}

static bool sleep_grow(struct sleep *s, size_t room)
{
	struct pollfd *p = realloc(s->p, (room * 2 + 1) * sizeof(*p));
	struct rsock **rs;

	if (p)
		s->p = p;
	rs = p ? realloc(s->rs, room * sizeof(struct rsock *)) : NULL;
	if (rs) {
		s->rs = rs;
		s->room = room;
	}
	return rs;
}

/*
 * Under mutex. Takes out those that are over, and lists what to wait for in the
 * rest.
 */
static struct rsock *collect_lingering(struct sleep *s, uint64_t *until)
{
	struct rsock *rs, **link = &list, *ended = NULL;
	int fds[2];

	s->n = 0;
	*until = 0;
	while ((rs = *link)) {
		if (linger_is_over(rs, fds)) {
			*link = rs->linger_next;
			rs->linger_next = ended;
			ended = rs;
			continue;
		}
		link = &rs->linger_next;
		if (!*until || rs->linger_ns < *until)
			*until = rs->linger_ns;
		if (s->n == s->room && !sleep_grow(s, s->room * 2 + 8)) {
			/* It cannot wake the thread: check it again soon. */
			*until = rsock_now_ns() + 10000000;
			continue;
		}
		s->rs[s->n++] = rs;
		s->p[s->n * 2 - 1] =
			(struct pollfd){ .fd = fds[0], .events = POLLIN };
		s->p[s->n * 2] =
			(struct pollfd){ .fd = fds[1], .events = POLLIN };
	}
	return ended;
}

static void end_all(struct rsock *ended)
{
	struct rsock *next;
	unsigned n = 0;

	for (; ended; ended = next, n++) {
		next = ended->linger_next;
		rsock_put(ended);
	}
	pthread_mutex_lock(&mutex);
	total -= n;
	if (!total)
		pthread_cond_broadcast(&none);
	pthread_mutex_unlock(&mutex);
}

/* False when nothing came for a while. */
static bool sleep_on(struct sleep *s, uint64_t until)
{
	uint64_t now = rsock_now_ns();
	eventfd_t value;
	struct pollfd *p;
	int ms = IDLE_MS, n;
	size_t i;

	if (until)
		ms = until > now ? (int)((until - now + 999999) / 1000000) : 0;
	s->p[0] = (struct pollfd){ .fd = efd, .events = POLLIN };
	n = rsock_poll_any(s->p, s->n * 2 + 1, ms);
	if (n <= 0)
		return until;
	eventfd_read(efd, &value);
	for (i = 0; i < s->n; i++) {
		p = &s->p[i * 2 + 1];
		if (!p[0].revents && !p[1].revents)
			continue;
		pthread_mutex_lock(&s->rs[i]->lock);
		rsock_drain(s->rs[i], p[0].revents, p[1].revents, -1);
		pthread_mutex_unlock(&s->rs[i]->lock);
	}
	return true;
}

static void *linger_thread(void *arg)
{
	struct sleep *s = arg;
	struct rsock *ended;
	uint64_t until;
	bool more = true;

	pthread_mutex_lock(&mutex);
	while (more || list) {
		ended = collect_lingering(s, &until);
		pthread_mutex_unlock(&mutex);
		if (ended)
			end_all(ended);
		more = sleep_on(s, until);
		pthread_mutex_lock(&mutex);
	}
	running = false;
	pthread_mutex_unlock(&mutex);
	free(s->p);
	free(s->rs);
	free(s);
	return NULL;
}

/* Under mutex. */
static bool start_linger_thread(void)
{
	struct sleep *s = calloc(1, sizeof(*s));

	if (efd < 0)
		efd = fd_high(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
	running = s && efd >= 0 && sleep_grow(s, 8) &&
		  !thread_start(linger_thread, s);
	if (running || !s)
		return running;
	free(s->p);
	free(s->rs);
	free(s);
	return false;
}

bool rsock_linger(struct rsock *rs, uint64_t until_ns)
{
	bool ok;

	pthread_mutex_lock(&mutex);
	ok = running || start_linger_thread();
	if (ok) {
		rs->linger_ns = until_ns;
		rs->linger_next = list;
		list = rs;
		total++;
		eventfd_write(efd, 1);
	}
	pthread_mutex_unlock(&mutex);
	return ok;
}

/*
 * The streams are the parent's. The child closes the descriptors that it
 * inherited, and waits for none of them.
 */
void rsock_linger_forked(void)
{
	struct rsock *rs;

	for (rs = list; rs; rs = rs->linger_next)
		rsock_close_fds(rs);
	if (efd >= 0)
		close(efd);
	pthread_mutex_init(&mutex, NULL);
	pthread_cond_init(&none, NULL);
	list = NULL;
	total = 0;
	efd = -1;
	running = false;
}

__attribute__((destructor)) static void finish_lingering(void)
{
	pthread_mutex_lock(&mutex);
	while (total)
		pthread_cond_wait(&none, &mutex);
	pthread_mutex_unlock(&mutex);
}

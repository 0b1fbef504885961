/*
 * taker.h - another process of the registry, which takes the numbers of whoever is
 * suspended: it has all that are free but a few
 */
#ifndef SOFTHCA_TESTS_TAKER_H
#define SOFTHCA_TESTS_TAKER_H

#include "child.h"
#include "unit.h"

#include "registry/registry.h"

#include <sys/socket.h>
#include <sys/wait.h>

#define TAKER_SPARE 16u

struct taker {
	pid_t pid;
	int fd;
};

/* All that are free. */
static inline unsigned taker_lease(struct registry *r, uint32_t *first,
				   unsigned n)
{
	int got;

	while ((got = registry_lease(r)) > 0)
		first[n++] = (uint32_t)got;
	return n;
}

/* Takes them when a byte comes from in, and says with one to out that it has. */
static inline void taker_runs(int in, int out)
{
	static uint32_t first[REGISTRY_CHUNKS];
	const char *dir = getenv("SOFTHCA_RUNDIR");
	struct registry *r;
	unsigned n;
	char c = 0;

	if (registry_join(&r, dir, NULL))
		_exit(1);
	n = taker_lease(r, first, 0);
	do {
		/* The oldest ones become free. */
		for (unsigned i = 0; i < TAKER_SPARE; i++)
			registry_release(r, first[i]);
		n -= TAKER_SPARE;
		memmove(first, first + TAKER_SPARE, n * sizeof(*first));
		if (write(out, &c, 1) != 1 || read(in, &c, 1) != 1)
			break;
		n = taker_lease(r, first, n);
	} while (true);
	registry_leave(r);
	_exit(0);
}

static inline void taker_begin(struct taker *t)
{
	int both[2];
	char c;

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, both), 0);
	fflush(NULL);
	t->pid = fork_child();
	close(both[!t->pid]);
	t->fd = both[!!t->pid];
	if (!t->pid)
		taker_runs(t->fd, t->fd);
	assert_int_equal(read(t->fd, &c, 1), 1);
}

/* What has become free since then; others are free after that. */
static inline void taker_takes(const struct taker *t)
{
	char c = 0;

	assert_int_equal(write(t->fd, &c, 1), 1);
	assert_int_equal(read(t->fd, &c, 1), 1);
}

static inline void taker_end(struct taker *t)
{
	int status;

	close(t->fd);
	assert_int_equal(waitpid(t->pid, &status, 0), t->pid);
	assert_int_equal(status, 0);
}

#endif

/*
 * segment_node.h - another process with a segment, for the tests of segments
 */
#ifndef SOFTHCA_TESTS_SEGMENT_NODE_H
#define SOFTHCA_TESTS_SEGMENT_NODE_H

#include "registry_dir.h"

#include "os/config.h"
#include "segment/segment.h"

#include <errno.h>

/* Our own end, and that of the process that makes one. */
struct end {
	struct registry *r;
	struct segment *s;
};

static inline struct end end_make(uint32_t flags)
{
	struct end e = { .r = join() };
	int err = e.r ? segment_create(&e.s, e.r, flags) : -EINVAL;

	if (err)
		print_message("segment_create: %s (%s)\n", strerror(-err),
			      segment_why());
	return e;
}

static inline void end_drop(struct end *e)
{
	segment_destroy(e->s);
	registry_leave(e->r);
}

/*
 * A process that does what it is told by a letter, and answers with it. What
 * the letters mean is the test's: act() in that process. peer is our segment.
 */
struct node {
	pid_t pid;
	unsigned slot;
	int to, from;
};

struct node_self {
	struct end e;
	struct segment_peer *peer;
};

typedef void node_act(struct node_self *self, char what);

/* In the new process. */
static inline void node_main(int in, int out, unsigned whom, uint32_t flags,
			     node_act *act)
{
	struct node_self self = { .e = end_make(flags) };
	unsigned slot;
	char c;

	if (!self.e.s)
		_exit(1);
	self.peer = segment_peer_get(self.e.s, whom);
	slot = registry_slot(self.e.r);
	if (write(out, &slot, sizeof(slot)) != sizeof(slot))
		_exit(1);
	while (read(in, &c, 1) == 1) {
		if (c == 'q') {
			segment_peer_put(self.peer);
			end_drop(&self.e);
			_exit(0);
		}
		act(&self, c);
		if (write(out, &c, 1) != 1)
			_exit(1);
	}
	_exit(1);
}

/* whom: the slot of the peer that it attaches to, or REGISTRY_SLOTS. */
static inline struct node node_start(unsigned whom, uint32_t flags,
				     node_act *act)
{
	struct node n = { 0 };
	int to[2], from[2];

	assert_int_equal(pipe(to), 0);
	assert_int_equal(pipe(from), 0);
	n.pid = fork_child();
	assert_true(n.pid >= 0);
	if (!n.pid)
		node_main(to[0], from[1], whom, flags, act);
	close(to[0]);
	close(from[1]);
	n.to = to[1];
	n.from = from[0];
	assert_int_equal(read(n.from, &n.slot, sizeof(n.slot)), sizeof(n.slot));
	return n;
}

/* Begins something, and waits until it is done. */
static inline void node_tell(const struct node *n, char c)
{
	assert_int_equal(write(n->to, &c, 1), 1);
}

static inline void node_wait(const struct node *n, char c)
{
	char answer = 0;

	assert_int_equal(read(n->from, &answer, 1), 1);
	assert_int_equal(answer, c);
}

static inline void node_do(const struct node *n, char c)
{
	node_tell(n, c);
	node_wait(n, c);
}

static inline void node_gone(const struct node *n)
{
	close(n->to);
	close(n->from);
	assert_int_equal(waitpid(n->pid, NULL, 0), n->pid);
}

static inline void node_quit(const struct node *n)
{
	node_tell(n, 'q');
	node_gone(n);
}

static inline void node_kill(const struct node *n)
{
	kill(n->pid, SIGKILL);
	node_gone(n);
}

/* Stopped, for certain. */
static inline void node_stop(const struct node *n)
{
	int status;

	kill(n->pid, SIGSTOP);
	assert_int_equal(waitpid(n->pid, &status, WUNTRACED), n->pid);
	assert_true(WIFSTOPPED(status));
}

/* How many files there are in the directory, but for the registry's own. */
static inline unsigned segment_files(void)
{
	struct dirent *de;
	unsigned n = 0;
	DIR *d = opendir(dir);

	assert_non_null(d);
	while ((de = readdir(d)))
		n += !strncmp(de->d_name, "softhca-", 8) &&
		     strchr(de->d_name, '.');
	closedir(d);
	return n;
}

#endif

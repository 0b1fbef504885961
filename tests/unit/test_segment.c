/*
 * test_segment.c - the shared memory that processes show to each other: what
 * is made and taken away, who finds it, and what is left by those who die
 */
#include "registry_dir.h"

#include "base/sys.h"
#include "host/config.h"
#include "host/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

/* How many files there are in the directory, but for the registry's own. */
static unsigned segment_files(void)
{
	struct dirent *de;
	unsigned n = 0;
	DIR *d = opendir(dir);

	assert_non_null(d);
	while ((de = readdir(d)))
		n += strncmp(de->d_name, "softhca-", 8) == 0 &&
		     strchr(de->d_name, '.') != NULL;
	closedir(d);
	return n;
}

static struct segment *make(struct registry *r, uint32_t flags)
{
	struct segment *s = NULL;
	int err = segment_create(&s, r, flags);

	if (err)
		print_message("segment_create: %s (%s)\n", strerror(-err),
			      segment_why());
	return s;
}

static void own_segment_is_found_and_goes(void **state)
{
	struct registry *r = join();
	struct segment *s = make(r, SEGMENT_PLAIN);
	struct segment_peer *p;

	(void)state;
	assert_non_null(s);
	assert_int_equal(segment_files(), 2);
	p = segment_peer_get(s, registry_slot(r));
	assert_non_null(p);
	assert_true(p->self);
	assert_int_equal(p->flags, SEGMENT_PLAIN);
	assert_ptr_equal(p->head, segment_head(s));
	assert_ptr_equal(p->ring, segment_ring(s, registry_slot(r)));
	assert_true(segment_peer_current(p));
	segment_peer_put(p);
	assert_null(segment_peer_get(s, registry_slot(r) + 1));
	assert_null(segment_peer_get(s, REGISTRY_SLOTS));
	segment_destroy(s);
	assert_int_equal(segment_files(), 0);
	registry_leave(r);
}

/*
 * A process with a segment, which does as it is told by bytes in a pipe, and
 * answers each with one.
 */
struct neighbour {
	pid_t pid;
	unsigned slot;
	int to, from;
};

struct told {
	unsigned slot;
	uint64_t *mem; /* MEM_WORDS of its memory */
};

#define MEM_WORDS 4096
static uint64_t mem[MEM_WORDS];

static void neighbour_main(int in, int out, uint32_t flags)
{
	struct registry *r = join();
	struct segment *s = r ? make(r, flags) : NULL;
	struct told told = { .mem = mem };
	char c;

	if (!s)
		_exit(1);
	told.slot = registry_slot(r);
	if (write(out, &told, sizeof(told)) != sizeof(told))
		_exit(1);
	while (read(in, &c, 1) == 1) {
		switch (c) {
		case 'q':
			segment_destroy(s);
			registry_leave(r);
			_exit(0);
		case 'g':
			if (segment_grow(s, SEGMENT_KEYS, 100000))
				_exit(1);
			memset(segment_table(s, SEGMENT_KEYS), 'k', 100000);
			break;
		}
		if (write(out, &c, 1) != 1)
			_exit(1);
	}
	_exit(1);
}

static struct neighbour neighbour(uint32_t flags)
{
	struct neighbour n;
	struct told told;
	int to[2], from[2];

	assert_int_equal(pipe(to), 0);
	assert_int_equal(pipe(from), 0);
	n.pid = fork_child();
	assert_true(n.pid >= 0);
	if (!n.pid)
		neighbour_main(to[0], from[1], flags);
	close(to[0]);
	close(from[1]);
	n.to = to[1];
	n.from = from[0];
	assert_int_equal(read(n.from, &told, sizeof(told)), sizeof(told));
	assert_ptr_equal(told.mem, mem); /* it was forked */
	n.slot = told.slot;
	return n;
}

static void tell(const struct neighbour *n, char c)
{
	char answer;

	assert_int_equal(write(n->to, &c, 1), 1);
	assert_int_equal(read(n->from, &answer, 1), 1);
	assert_int_equal(answer, c);
}

static void neighbour_gone(const struct neighbour *n)
{
	close(n->to);
	close(n->from);
	assert_int_equal(waitpid(n->pid, NULL, 0), n->pid);
}

static void neighbour_quit(const struct neighbour *n)
{
	assert_int_equal(write(n->to, "q", 1), 1);
	neighbour_gone(n);
}

static void neighbour_kill(const struct neighbour *n)
{
	kill(n->pid, SIGKILL);
	neighbour_gone(n);
}

static void killed_owner_leaves_nothing(void **state)
{
	struct registry *r = join(), *next;
	struct segment *s = make(r, 0);
	struct neighbour n = neighbour(0);
	struct segment_peer *p = segment_peer_get(s, n.slot);
	uint64_t now = clock_ns();

	(void)state;
	assert_non_null(p);
	assert_false(p->self);
	assert_true(segment_peer_alive(p, now));
	assert_int_equal(segment_files(), 4);
	neighbour_kill(&n);
	assert_false(segment_peer_alive(p, now + 100000000));
	/* Who comes next cleans up. */
	next = join();
	assert_non_null(next);
	assert_int_equal(segment_files(), 2);
	assert_false(segment_peer_current(p));
	assert_null(segment_peer_get(s, n.slot));
	segment_peer_put(p);
	registry_leave(next);
	segment_destroy(s);
	registry_leave(r);
}

static void peer_that_leaves_is_not_current(void **state)
{
	struct registry *r = join();
	struct segment *s = make(r, 0);
	struct neighbour n = neighbour(0);
	struct segment_peer *p = segment_peer_get(s, n.slot), *q;

	(void)state;
	assert_non_null(p);
	neighbour_quit(&n);
	assert_false(segment_peer_current(p));
	assert_false(segment_peer_alive(p, clock_ns()));
	assert_int_equal(segment_files(), 2);
	/* The slot's next process is another peer. */
	n = neighbour(0);
	assert_int_equal(n.slot, p->slot);
	q = segment_peer_get(s, n.slot);
	assert_non_null(q);
	assert_ptr_not_equal(q, p);
	assert_true(q->life != p->life);
	memset(p->ring, 1, SEGMENT_RING_SIZE); /* still mapped */
	segment_peer_put(p);
	segment_peer_put(q);
	neighbour_quit(&n);
	segment_destroy(s);
	registry_leave(r);
}

static void table_is_read_as_far_as_it_is_there(void **state)
{
	struct registry *r = join();
	struct segment *s = make(r, 0);
	struct neighbour n = neighbour(0);
	struct segment_peer *p = segment_peer_get(s, n.slot);
	const char *keys;

	(void)state;
	assert_non_null(p);
	assert_null(segment_peer_table(p, SEGMENT_KEYS, 1));
	tell(&n, 'g');
	keys = segment_peer_table(p, SEGMENT_KEYS, 100000);
	assert_non_null(keys);
	assert_int_equal(keys[0], 'k');
	assert_int_equal(keys[99999], 'k');
	assert_int_equal(keys[100000], 0);
	assert_non_null(segment_peer_table(p, SEGMENT_KEYS, 2 * SEGMENT_GROW));
	assert_null(segment_peer_table(p, SEGMENT_KEYS, 2 * SEGMENT_GROW + 1));
	/* Whatever somebody has scribbled there. */
	p->head->table_size[SEGMENT_KEYS] = UINT64_MAX;
	assert_null(segment_peer_table(p, SEGMENT_KEYS, 1u << 30));
	p->head->table_size[SEGMENT_KEYS] = 2000000;
	keys = segment_peer_table(p, SEGMENT_KEYS, 2000000);
	assert_non_null(keys);
	assert_int_equal(keys[1999999], 0);
	neighbour_kill(&n);
	segment_peer_put(p);
	segment_destroy(s);
	registry_leave(r);
}

static void memory_is_copied(void **state)
{
	struct registry *r = join();
	struct segment *s = make(r, 0);
	struct neighbour n = neighbour(0), shy = neighbour(SEGMENT_NO_COPY);
	struct segment_peer *p = segment_peer_get(s, n.slot);
	uint64_t now = clock_ns(), got[3000];
	struct iovec local[3000], remote[2] = {
		{ mem, sizeof(got) / 2 },
		{ mem + 1500, sizeof(got) / 2 },
	};

	(void)state;
	assert_non_null(p);
	if (!segment_can_copy(p)) {
		print_message("the kernel does not let processes copy\n");
		goto out;
	}
	for (unsigned i = 0; i < 3000; i++) {
		got[i] = i;
		local[i] = (struct iovec){ &got[i], sizeof(got[i]) };
	}
	/* More pieces than the kernel takes at once. */
	assert_int_equal(segment_write(p, local, 3000, remote, 2, now), 0);
	assert_int_equal(mem[2999], 0); /* ours is another */
	memset(got, 0, sizeof(got));
	assert_int_equal(segment_read(p, local, 3000, remote, 2, now), 0);
	for (unsigned i = 0; i < 3000; i++)
		assert_int_equal(got[i], i);
	remote[1].iov_base = (void *)8;
	assert_int_equal(segment_read(p, local, 3000, remote, 2, now), -EFAULT);
	assert_int_equal(segment_write(p, local, 3000, remote, 2, now),
			 -EFAULT);
	assert_true(segment_can_copy(p));
	segment_peer_put(p);
	p = segment_peer_get(s, shy.slot);
	assert_non_null(p);
	assert_false(segment_can_copy(p));
	assert_int_equal(segment_read(p, local, 1, remote, 1, now), -EPERM);
	segment_peer_put(p);
	p = segment_peer_get(s, n.slot);
	neighbour_kill(&n);
	/* Just now it was alive; what the kernel says counts. */
	remote[1] = remote[0];
	assert_int_equal(segment_read(p, local, 3000, remote, 2, now), -ESRCH);
	assert_null(segment_peer_get(s, n.slot));
	n = neighbour(0);
out:
	segment_peer_put(p);
	neighbour_kill(&n);
	neighbour_kill(&shy);
	segment_destroy(s);
	registry_leave(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CLEAN(killed_owner_leaves_nothing),
		CLEAN(peer_that_leaves_is_not_current),
		CLEAN(table_is_read_as_far_as_it_is_there),
		CLEAN(memory_is_copied),
		CLEAN(own_segment_is_found_and_goes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

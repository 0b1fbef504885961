/*
 * test_segment.c - the shared memory that processes show to each other: what
 * is made and taken away, who finds it, what is left by those who die, and
 * what happens when there is no room
 */
#include "segment_node.h"

#include "testclock.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

static void own_segment_is_found_and_goes(void **state)
{
	struct end e = end_make(SEGMENT_PLAIN);
	unsigned slot = registry_slot(e.r);
	struct segment_peer *p;

	(void)state;
	assert_non_null(e.s);
	assert_int_equal(segment_files(), 2);
	p = segment_peer_get(e.s, slot);
	assert_non_null(p);
	assert_true(p->self);
	assert_int_equal(p->flags, SEGMENT_PLAIN);
	assert_ptr_equal(p->head, segment_head(e.s));
	assert_ptr_equal(p->ring, segment_ring(e.s, slot));
	assert_true(segment_peer_current(p));
	assert_true(segment_producers(segment_head(e.s), slot / 64) >>
			    (slot % 64) &
		    1);
	segment_peer_put(p);
	assert_null(segment_peer_get(e.s, slot + 1));
	assert_null(segment_peer_get(e.s, REGISTRY_SLOTS));
	segment_destroy(e.s);
	assert_int_equal(segment_files(), 0);
	registry_leave(e.r);
}

/* What the other process of a test does when told. */
static void act(struct node_self *self, char what)
{
	switch (what) {
	case 'g':
		if (segment_grow(self->e.s, SEGMENT_KEYS, 100000))
			_exit(1);
		memset(segment_table(self->e.s, SEGMENT_KEYS), 'k', 100000);
		break;
	case 'k': /* by the main thread */
		segment_keep(self->e.s);
		break;
	case 'x':
		execlp("sleep", "sleep", "60", NULL);
		_exit(1);
	case 'r': /* into the other's ring */
		memcpy(self->peer->ring, "hello", 6);
		break;
	}
}

static void ring_leads_from_one_to_the_other(void **state)
{
	struct end e = end_make(0);
	struct node n = node_start(registry_slot(e.r), 0, act);

	(void)state;
	assert_true(segment_producers(segment_head(e.s), n.slot / 64) >>
			    (n.slot % 64) &
		    1);
	node_do(&n, 'r');
	assert_string_equal(segment_ring(e.s, n.slot), "hello");
	node_quit(&n);
	end_drop(&e);
}

static void killed_owner_leaves_nothing(void **state)
{
	struct end e = end_make(0);
	struct node n = node_start(REGISTRY_SLOTS, 0, act);
	struct segment_peer *p = segment_peer_get(e.s, n.slot);
	struct registry *next;
	uint64_t now = clock_ns();

	(void)state;
	assert_non_null(p);
	assert_false(p->self);
	assert_true(segment_peer_alive(p, now));
	assert_int_equal(segment_files(), 4);
	node_kill(&n);
	assert_false(segment_peer_alive(p, now + 100000000));
	assert_null(segment_peer_get(e.s, n.slot));
	/* Who comes next cleans up. */
	next = join();
	assert_non_null(next);
	assert_int_equal(segment_files(), 2);
	assert_false(segment_peer_current(p));
	segment_peer_put(p);
	registry_leave(next);
	end_drop(&e);
}

static int make_and_die(void *arg)
{
	(void)arg;
	return !end_make(0).s;
}

/* Also if it is the last one, and only leaves; or there is no registry. */
static void last_to_leave_takes_along_what_the_dead_left(void **state)
{
	struct end e = end_make(0);
	char path[512];

	(void)state;
	assert_int_equal(in_child(make_and_die, NULL), 0);
	assert_int_equal(segment_files(), 4);
	end_drop(&e);
	assert_int_equal(segment_files(), 0);
	assert_int_equal(in_child(make_and_die, NULL), 0);
	assert_int_equal(segment_files(), 2);
	snprintf(path, sizeof(path), "%s", file_path());
	path[strcspn(path, ".")] = '\0';
	unlink(path);
	registry_leave(join());
	assert_int_equal(segment_files(), 0);
}

static void segments_of_other_namespaces_go_with_their_registry(void **state)
{
	static const char *const names[] = { "77.5", "77.5.w", "78.1",
					     "78",   "79.x",   "79x.1" };
	struct end e = end_make(0);
	char path[512], base[512];
	int fd;

	(void)state;
	snprintf(base, sizeof(base), "%s", registry_path(e.r));
	end_drop(&e);
	*(strrchr(base, '-') + 1) = '\0';
	/* 78 is in use. */
	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		struct flock fl = { .l_type = F_WRLCK, .l_len = 1 };

		snprintf(path, sizeof(path), "%s%s", base, names[i]);
		fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
		assert_true(fd >= 0);
		if (!strcmp(names[i], "78"))
			assert_int_equal(fcntl(fd, F_SETLK, &fl), 0);
		else
			close(fd);
	}
	/* Another process, as one's own locks do not count. */
	assert_int_equal(in_child(make_and_die, NULL), 0);
	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		snprintf(path, sizeof(path), "%s%s", base, names[i]);
		assert_int_equal(unlink(path), i < 2 ? -1 : 0);
	}
	registry_leave(join());
}

static unsigned detached;

static void count_detached(struct segment_peer *p)
{
	assert_ptr_equal(p->link, &detached);
	detached++;
}

static void peer_that_leaves_is_not_current(void **state)
{
	struct end e = end_make(0);
	struct node n = node_start(REGISTRY_SLOTS, 0, act);
	struct segment_peer *p = segment_peer_get(e.s, n.slot), *q;

	(void)state;
	assert_non_null(p);
	node_quit(&n);
	assert_false(segment_peer_current(p));
	assert_false(segment_peer_alive(p, clock_ns()));
	assert_int_equal(segment_files(), 2);
	/* The slot's next process is another peer. */
	n = node_start(REGISTRY_SLOTS, 0, act);
	assert_int_equal(n.slot, p->slot);
	q = segment_peer_get(e.s, n.slot);
	assert_non_null(q);
	assert_ptr_not_equal(q, p);
	assert_true(q->generation != p->generation);
	memset(p->ring, 1, SEGMENT_RING_SIZE); /* still mapped */
	segment_peer_put(p);
	segment_peer_put(q);
	node_quit(&n);
	end_drop(&e);
}

static void peer_stays_until_it_is_gone_and_let_go(void **state)
{
	struct end e = end_make(0);
	struct node n = node_start(REGISTRY_SLOTS, 0, act);
	struct segment_peer *p;

	(void)state;
	detached = 0;
	segment_on_detach(e.s, count_detached);
	p = segment_peer_get(e.s, n.slot);
	assert_non_null(p);
	p->link = &detached;
	segment_peer_hold(p);
	segment_peer_put(p);
	segment_peer_put(p);
	segment_tidy(e.s);
	assert_int_equal(detached, 0);
	assert_ptr_equal(segment_peer_get(e.s, n.slot), p);
	node_quit(&n);
	segment_tidy(e.s);
	assert_int_equal(detached, 0);
	segment_peer_put(p);
	assert_int_equal(detached, 1);
	end_drop(&e);
	assert_int_equal(detached, 1);
}

static void table_is_read_as_far_as_it_is_there(void **state)
{
	struct end e = end_make(0);
	struct node n = node_start(REGISTRY_SLOTS, 0, act);
	struct segment_peer *p = segment_peer_get(e.s, n.slot);
	const char *keys;

	(void)state;
	assert_non_null(p);
	assert_null(segment_peer_table(p, SEGMENT_KEYS, 1));
	node_do(&n, 'g');
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
	node_kill(&n);
	segment_peer_put(p);
	end_drop(&e);
}

static void own_table_grows_where_it_is(void **state)
{
	struct end e = end_make(0);
	struct segment_peer *p = segment_peer_get(e.s, registry_slot(e.r));
	char *t = segment_table(e.s, SEGMENT_QPS);

	(void)state;
	assert_int_equal(segment_grow(e.s, SEGMENT_QPS, 1), 0);
	assert_int_equal(segment_table_size(e.s, SEGMENT_QPS), SEGMENT_GROW);
	t[SEGMENT_GROW - 1] = 1;
	assert_int_equal(segment_grow(e.s, SEGMENT_QPS, SEGMENT_QPS_SIZE), 0);
	assert_int_equal(t[SEGMENT_GROW - 1], 1);
	t[SEGMENT_QPS_SIZE - 1] = 1;
	assert_int_equal(segment_grow(e.s, SEGMENT_QPS, SEGMENT_QPS_SIZE + 1),
			 -ENOSPC);
	assert_ptr_equal(segment_peer_table(p, SEGMENT_QPS, SEGMENT_QPS_SIZE),
			 t);
	segment_peer_put(p);
	end_drop(&e);
}

/* No time passes: the kernel has said so in the segment. */
static void end_of_the_keeper_is_seen_at_once(void **state)
{
	struct end e = end_make(0);
	uint64_t now = clock_ns();

	(void)state;
	detached = 0;
	segment_on_detach(e.s, count_detached);
	for (int executes = 0; executes < 2; executes++) {
		struct node n = node_start(REGISTRY_SLOTS, 0, act);
		struct segment_peer *p = segment_peer_get(e.s, n.slot);

		assert_non_null(p);
		p->link = &detached;
		node_do(&n, 'k');
		assert_true(p->head->keeper != 0);
		assert_true(segment_peer_alive(p, now));
		if (executes) {
			char c;

			/* Its pipes are inherited; a lock's end is seen. */
			node_tell(&n, 'x');
			while (segment_peer_alive(p, now))
				sched_yield();
			kill(n.pid, SIGKILL);
			assert_int_equal(read(n.from, &c, 1), 0);
			node_gone(&n);
		} else {
			node_kill(&n);
		}
		assert_false(segment_peer_alive(p, now));
		assert_null(segment_peer_get(e.s, n.slot));
		segment_peer_put(p);
		assert_int_equal(detached, executes + 1);
	}
	end_drop(&e);
}

static void keeper_that_stops_keeping_is_alive(void **state)
{
	struct end e = end_make(0);
	struct segment_peer *p = segment_peer_get(e.s, registry_slot(e.r));

	(void)state;
	segment_keep(e.s);
	assert_true(segment_peer_alive(p, clock_ns()));
	segment_unkeep(e.s);
	assert_int_equal(p->head->keeper, 0);
	assert_true(segment_peer_alive(p, clock_ns() + 1000000000));
	segment_peer_put(p);
	end_drop(&e);
}

/* Somebody else writes where the kernel would. */
static void end_is_seen_where_the_keeper_is_overwritten(void **state)
{
	struct end e = end_make(0);
	struct node n = node_start(REGISTRY_SLOTS, 0, act);
	struct segment_peer *p = segment_peer_get(e.s, n.slot);

	(void)state;
	node_do(&n, 'k');
	assert_true(segment_peer_alive(p, clock_ns()));
	p->head->keeper ^= SEGMENT_KEEPER_DIED | 0xffff;
	assert_false(segment_peer_gone(p));
	clock_forward(2000000000);
	assert_true(segment_peer_alive(p, clock_ns()));
	node_kill(&n);
	clock_forward(2000000000);
	assert_false(segment_peer_alive(p, clock_ns()));
	segment_peer_put(p);
	end_drop(&e);
}

static void keeper_is_said_again(void **state)
{
	struct end e = end_make(0);
	struct segment_peer *p = segment_peer_get(e.s, registry_slot(e.r));
	uint32_t keeper;

	(void)state;
	segment_keep(e.s);
	keeper = p->head->keeper;
	assert_int_not_equal(keeper, 0);
	p->head->keeper = SEGMENT_KEEPER_DIED;
	assert_true(segment_peer_gone(p));
	segment_say_again(e.s);
	assert_int_equal(p->head->keeper, keeper);
	assert_false(segment_peer_gone(p));
	/* Its list is what it was, whatever is written there. */
	p->head->keeper = 0;
	segment_unkeep(e.s);
	segment_say_again(e.s);
	assert_int_equal(p->head->keeper, 0);
	segment_peer_put(p);
	end_drop(&e);
}

/* Whatever the child of a fork does to the parent's segment. */
static void child_of_a_fork_abandons(void **state)
{
	struct end e = end_make(0);
	struct segment_peer *p = segment_peer_get(e.s, registry_slot(e.r));
	struct node n = node_start(REGISTRY_SLOTS, 0, act);
	struct segment_peer *q = segment_peer_get(e.s, n.slot);
	pid_t pid;
	int status;

	(void)state;
	assert_int_equal(segment_grow(e.s, SEGMENT_KEYS, 10), 0);
	pid = fork_child();
	if (!pid) {
		segment_abandon(e.s);
		registry_abandon(e.r);
		memset(p->ring, 1, SEGMENT_RING_SIZE);
		memset(segment_table(e.s, SEGMENT_KEYS), 1, 10);
		p->head->asleep = 1;
		if (segment_peer_current(q) || segment_peer_alive(q, 0))
			_exit(1);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_true(segment_peer_current(p));
	assert_int_equal(*(char *)p->ring, 0);
	assert_int_equal(*(char *)segment_table(e.s, SEGMENT_KEYS), 0);
	assert_int_equal(p->head->asleep, 0);
	assert_int_equal(segment_files(), 4);
	segment_peer_put(p);
	segment_peer_put(q);
	node_quit(&n);
	end_drop(&e);
}

/* No room. Each in a process of its own, with the directory on a small tmpfs. */

/* One file takes all the room but so much. */
static void fill(size_t leave)
{
	static char buf[4096];
	char path[512];
	struct stat st;
	int fd;

	snprintf(path, sizeof(path), "%s/filler", dir);
	fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	while (write(fd, buf, sizeof(buf)) == sizeof(buf))
		;
	if (fstat(fd, &st) || st.st_size < (off_t)leave ||
	    ftruncate(fd, st.st_size - (off_t)leave))
		_exit(9);
	close(fd);
}

#define NEED(cond)                                                             \
	do {                                                                   \
		if (!(cond)) {                                                 \
			print_message("line %d: %s\n", __LINE__, #cond);       \
			_exit(1);                                              \
		}                                                              \
	} while (0)

static void in_full_tmpfs(void)
{
	struct registry *r = join(), *other;
	struct segment *s = NULL, *o;
	struct segment_peer *p;

	NEED(r);
	fill(32 << 10);
	NEED(segment_create(&s, r, 0) == -ENOSPC);
	NEED(!s && strstr(segment_why(), "No space"));
	NEED(segment_files() == 0);
	/* Room for the segment, but not for what comes later. */
	fill(96 << 10);
	NEED(!segment_create(&s, r, 0));
	NEED(segment_grow(s, SEGMENT_KEYS, 1) == -ENOSPC);
	NEED(!segment_peer_get(s, registry_slot(r)));
	/* Somebody says that a ring is there. */
	((struct segment_head *)(uintptr_t)segment_head(s))->producers[3] = 1;
	NEED(!segment_ring(s, 192));
	/* With room for one more ring only; a table that is said to be there
	 * is not touched either. */
	fill(256 << 10);
	other = join();
	NEED(other && !segment_create(&o, other, 0));
	p = segment_peer_get(o, registry_slot(r));
	NEED(p);
	p->head->table_size[SEGMENT_KEYS] = 64 << 20;
	NEED(!segment_peer_table(p, SEGMENT_KEYS, 10 << 20));
	segment_peer_put(p);
	segment_destroy(o);
	segment_destroy(s);
	registry_leave(other);
	registry_leave(r);
	_exit(0);
}

static int run_in_full_tmpfs(void *arg)
{
	(void)arg;
	if (unshare(CLONE_NEWNS) && unshare(CLONE_NEWUSER | CLONE_NEWNS))
		return 77;
	if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    mount("tmpfs", dir, "tmpfs", 0, "size=2m,mode=700"))
		return 77;
	in_full_tmpfs();
	return 1;
}

static void full_file_system_is_an_error(void **state)
{
	int rc = in_child(run_in_full_tmpfs, NULL);

	(void)state;
	if (rc == 77) {
		print_message("no tmpfs can be mounted here\n");
		skip();
	}
	assert_int_equal(rc, 0);
}

static int limit_files(void *arg)
{
	const struct rlimit most = { 1 << 20, 1 << 20 };
	struct registry *r = join();
	struct segment *s;

	(void)arg;
	NEED(r && !setrlimit(RLIMIT_FSIZE, &most));
	NEED(segment_create(&s, r, 0) == -EFBIG);
	NEED(strstr(segment_why(), "ulimit -f"));
	NEED(segment_files() == 0);
	registry_leave(r);
	return 0;
}

static int limit_memory(void *arg)
{
	const struct rlimit most = { 2 * SEGMENT_SIZE, 2 * SEGMENT_SIZE };
	struct registry *r = join();
	struct segment *s;

	(void)arg;
	NEED(r && !setrlimit(RLIMIT_AS, &most));
	NEED(segment_create(&s, r, 0) == -ENOMEM);
	NEED(strstr(segment_why(), "ulimit -v"));
	NEED(segment_files() == 0);
	registry_leave(r);
	return 0;
}

static void limits_of_the_process_are_errors(void **state)
{
	(void)state;
	assert_int_equal(in_child(limit_files, NULL), 0);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
	assert_int_equal(in_child(limit_memory, NULL), 0);
#else
	(void)limit_memory; /* the sanitizer's shadow is larger */
#endif
}

/* Yama's restriction. The kernel need not have it: what asks for an exception
 * from it goes by here (--wrap). */

static unsigned agreed;

int __real_prctl(int option, ...);
int __wrap_prctl(int option, ...);

int __wrap_prctl(int option, ...)
{
	unsigned long arg[4];
	va_list ap;

	va_start(ap, option);
	for (int i = 0; i < 4; i++)
		arg[i] = va_arg(ap, unsigned long);
	va_end(ap);
	if (option != PR_SET_PTRACER)
		return __real_prctl(option, arg[0], arg[1], arg[2], arg[3]);
	agreed += arg[0] == PR_SET_PTRACER_ANY;
	return 0;
}

static int run_with_yama(void *scope)
{
	struct registry *r;
	struct segment *s;
	int fd;

	if (unshare(CLONE_NEWNS) && unshare(CLONE_NEWUSER | CLONE_NEWNS))
		return 77;
	if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    mount("tmpfs", "/proc/sys/kernel", "tmpfs", 0, "mode=755"))
		return 77;
	NEED(!mkdir("/proc/sys/kernel/yama", 0755));
	fd = open("/proc/sys/kernel/yama/ptrace_scope",
		  O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
	NEED(write(fd, scope, 2) == 2);
	close(fd);
	r = join();
	NEED(r && !segment_create(&s, r, SEGMENT_NO_COPY));
	NEED(agreed == 0);
	segment_destroy(s);
	NEED(!segment_create(&s, r, 0));
	NEED(agreed == (*(char *)scope == '1'));
	segment_destroy(s);
	registry_leave(r);
	return 0;
}

/* Where all others of the user are refused, and it shows its memory. */
static void yama_is_asked_for_an_exception_if_need_be(void **state)
{
	char scope[][3] = { "0\n", "1\n", "2\n" };

	(void)state;
	for (size_t i = 0; i < sizeof(scope) / sizeof(*scope); i++) {
		int rc = in_child(run_with_yama, scope[i]);

		if (rc == 77) {
			print_message("no tmpfs can be mounted here\n");
			skip();
		}
		assert_int_equal(rc, 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CLEAN(own_segment_is_found_and_goes),
		CLEAN(ring_leads_from_one_to_the_other),
		CLEAN(killed_owner_leaves_nothing),
		CLEAN(last_to_leave_takes_along_what_the_dead_left),
		CLEAN(segments_of_other_namespaces_go_with_their_registry),
		CLEAN(peer_that_leaves_is_not_current),
		CLEAN(peer_stays_until_it_is_gone_and_let_go),
		CLEAN(table_is_read_as_far_as_it_is_there),
		CLEAN(own_table_grows_where_it_is),
		CLEAN(end_of_the_keeper_is_seen_at_once),
		CLEAN(keeper_that_stops_keeping_is_alive),
		CLEAN(end_is_seen_where_the_keeper_is_overwritten),
		CLEAN(keeper_is_said_again),
		CLEAN(child_of_a_fork_abandons),
		CLEAN(full_file_system_is_an_error),
		CLEAN(limits_of_the_process_are_errors),
		CLEAN(yama_is_asked_for_an_exception_if_need_be),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

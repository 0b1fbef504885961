/*
 * test_neighbours.c - what processes do to each other by way of their
 * segments: copy, visit, lock, wake; also while they are stopped and killed
 */
#include "segment_node.h"
#include "testclock.h"

#include "base/sys.h"

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

/* Shared by all processes of a test, beside any segment. */
static struct {
	_Atomic uint32_t go, done;
	uint64_t count; /* plain */
} * shared;

/* At the same address in each process, as they are forked. */
#define WORDS 4096
static uint64_t mem[WORDS];

static int shared_setup(void **state)
{
	shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	memset(mem, 0, sizeof(mem));
	return shared == MAP_FAILED ? -1 : setup(state);
}

static int shared_teardown(void **state)
{
	munmap(shared, 4096);
	return teardown_empty(state);
}

/* In the other process */

static void count_under_lock(struct segment_peer *p, struct segment *own)
{
	for (int i = 0; i < 20000; i++) {
		while (own ? segment_own_atomic_lock(own, 3) :
			     segment_atomic_lock(p, 3))
			;
		shared->count++;
		if (own)
			segment_own_atomic_unlock(own, 3);
		else
			segment_atomic_unlock(p, 3);
	}
}

static void visit_on_and_on(struct segment_peer *p)
{
	while (!atomic_load(&shared->go)) {
		int v = copy_guard_enter(p);

		atomic_fetch_add(&shared->done, 1);
		copy_guard_exit(p, v);
	}
}

/* Leaves some time after it was told to. */
static void visit_long(struct segment_peer *p)
{
	int v = copy_guard_enter(p);

	atomic_store(&shared->done, 1);
	while (!atomic_load(&shared->go))
		sched_yield();
	for (int i = 0; i < 1000; i++)
		sched_yield();
	atomic_store(&shared->done, 2);
	copy_guard_exit(p, v);
}

static void act(struct node_self *self, char what)
{
	struct segment_peer *p = self->peer;
	static int visit;

	switch (what) {
	case 'C':
	case 'c':
		if (segment_can_copy(p) != (what == 'C'))
			_exit(1);
		break;
	case 'm':
		for (unsigned i = 0; i < WORDS; i++)
			mem[i] = i * 3;
		break;
	case 'P': /* the wrong address, or the wrong process */
		((struct segment_head *)(uintptr_t)segment_head(self->e.s))
			->probe_value++;
		break;
	case 'e':
		visit = copy_guard_enter(p);
		break;
	case 'x':
		copy_guard_exit(p, visit);
		break;
	case 'o':
		visit_on_and_on(p);
		break;
	case 'v':
		visit_long(p);
		break;
	case 'l':
		if (segment_atomic_lock(p, 3))
			_exit(1);
		break;
	case 'u':
		segment_atomic_unlock(p, 3);
		break;
	case 'n':
		count_under_lock(p, NULL);
		break;
	case 'w':
		segment_wake(p);
		break;
	case 'p':
		segment_poke(p);
		break;
	case 'a': /* as who polls does */
		while (!segment_poked(segment_head(self->e.s)))
			sched_yield();
		segment_say_again(self->e.s);
		break;
	case 's':
		segment_sleeps(self->e.s);
		break;
	}
}

/* Copying */

static void memory_is_copied(void **state)
{
	struct end e = end_make(0);
	struct node n = node_start(registry_slot(e.r), 0, act);
	struct segment_peer *p = segment_peer_get(e.s, n.slot);
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
	node_do(&n, 'C');
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
	assert_int_equal(segment_read(p, local, 1, &remote[1], 1, now),
			 -EFAULT);
	assert_true(segment_can_copy(p));
	/* Just now it was alive; what the kernel says counts. */
	node_kill(&n);
	assert_int_equal(segment_read(p, local, 1, remote, 1, now), -ESRCH);
	assert_null(segment_peer_get(e.s, n.slot));
	n = node_start(registry_slot(e.r), 0, act);
out:
	segment_peer_put(p);
	node_quit(&n);
	end_drop(&e);
}

static void stopped_process_is_copied_from(void **state)
{
	struct end e = end_make(0);
	struct node n = node_start(registry_slot(e.r), 0, act);
	struct segment_peer *p = segment_peer_get(e.s, n.slot);
	uint64_t got = 0;
	const struct iovec local = { &got, sizeof(got) };
	const struct iovec remote = { &mem[7], sizeof(got) };

	(void)state;
	node_do(&n, 'm');
	node_stop(&n);
	if (segment_can_copy(p)) {
		assert_int_equal(segment_read(p, &local, 1, &remote, 1,
					      clock_ns() + 10000000000u),
				 0);
		assert_int_equal(got, 21);
	}
	segment_peer_put(p);
	node_kill(&n);
	end_drop(&e);
}

static void own_memory_is_copied(void **state)
{
	struct end e = end_make(0);
	struct segment_peer *p = segment_peer_get(e.s, registry_slot(e.r));
	uint64_t a = 5, b = 6;
	const struct iovec local = { &a, 8 }, remote = { &b, 8 };

	(void)state;
	if (segment_can_copy(p)) {
		assert_int_equal(
			segment_write(p, &local, 1, &remote, 1, clock_ns()), 0);
		assert_int_equal(b, 5);
	}
	segment_peer_put(p);
	end_drop(&e);
}

static void who_does_not_want_to_is_not_copied_from(void **state)
{
	struct end e = end_make(0), shy;
	struct node n = node_start(registry_slot(e.r), SEGMENT_NO_COPY, act);
	struct segment_peer *p = segment_peer_get(e.s, n.slot);
	uint64_t got;
	const struct iovec local = { &got, sizeof(got) };
	const struct iovec remote = { mem, sizeof(got) };

	(void)state;
	assert_false(segment_can_copy(p));
	assert_int_equal(segment_read(p, &local, 1, &remote, 1, clock_ns()),
			 -EPERM);
	node_do(&n, 'c'); /* and does not copy itself */
	segment_peer_put(p);
	node_quit(&n);
	/* The same from the other side. */
	shy = end_make(SEGMENT_NO_COPY);
	p = segment_peer_get(shy.s, registry_slot(e.r));
	assert_false(segment_can_copy(p));
	segment_peer_put(p);
	end_drop(&shy);
	end_drop(&e);
}

static void wrong_process_is_not_copied_from(void **state)
{
	struct end e = end_make(0);
	struct node n = node_start(registry_slot(e.r), 0, act);
	struct segment_peer *p;
	uint64_t got;
	const struct iovec local = { &got, sizeof(got) };
	const struct iovec remote = { mem, sizeof(got) };

	(void)state;
	node_do(&n, 'P');
	p = segment_peer_get(e.s, n.slot);
	assert_false(segment_can_copy(p));
	assert_int_equal(segment_read(p, &local, 1, &remote, 1, clock_ns()),
			 -EPERM);
	segment_peer_put(p);
	node_quit(&n);
	end_drop(&e);
}

/* The other end is process 1 of its namespace, where we have no number. */
static int across_pid_namespaces(void *arg)
{
	struct end e = end_make(0);
	struct segment_peer *p;
	struct node n;
	uint64_t got = 0;
	const struct iovec local = { &got, sizeof(got) };
	const struct iovec remote = { &mem[5], sizeof(got) };

	(void)arg;
	if (unshare(CLONE_NEWPID)) {
		end_drop(&e);
		return 77;
	}
	n = node_start(registry_slot(e.r), 0, act);
	node_do(&n, 'c');
	node_do(&n, 'm');
	p = segment_peer_get(e.s, n.slot);
	if (!p || !segment_peer_alive(p, clock_ns() + 1000000000))
		return 1;
	/* It has a number for us, and that is taken. */
	if (segment_can_copy(p) &&
	    (segment_read(p, &local, 1, &remote, 1, clock_ns()) || got != 15))
		return 2;
	segment_peer_put(p);
	node_quit(&n);
	end_drop(&e);
	return 0;
}

static void other_pid_namespaces_are_told_apart(void **state)
{
	int rc = in_child(across_pid_namespaces, NULL);

	(void)state;
	if (rc == 77)
		skip();
	assert_int_equal(rc, 0);
}

/* Visits */

static void visits_are_waited_for(void **state)
{
	struct end e = end_make(0);
	struct node n = node_start(registry_slot(e.r), 0, act);

	(void)state;
	copy_guard_wait(e.s); /* nobody was ever inside */
	node_tell(&n, 'v');
	while (!atomic_load(&shared->done))
		sched_yield();
	atomic_store(&shared->go, 1);
	copy_guard_wait(e.s);
	assert_int_equal(atomic_load(&shared->done), 2);
	node_wait(&n, 'v');
	copy_guard_wait(e.s);
	node_quit(&n);
	end_drop(&e);
}

/* Only those are waited for that were inside. */
static void visitors_who_come_again_delay_nobody(void **state)
{
	struct end e = end_make(0);
	struct node n = node_start(registry_slot(e.r), 0, act);
	uint32_t before;

	(void)state;
	node_tell(&n, 'o');
	while (!(before = atomic_load(&shared->done)))
		sched_yield();
	for (int i = 0; i < 100; i++)
		copy_guard_wait(e.s);
	while (atomic_load(&shared->done) == before)
		sched_yield();
	atomic_store(&shared->go, 1);
	node_wait(&n, 'o');
	node_quit(&n);
	end_drop(&e);
}

static void so_many_threads_visit_at_a_time(void **state)
{
	struct end e = end_make(0);
	struct segment_peer *p = segment_peer_get(e.s, registry_slot(e.r));
	int v[COPY_GUARD_WORDS];

	(void)state;
	for (int i = 0; i < COPY_GUARD_WORDS; i++) {
		v[i] = copy_guard_enter(p);
		assert_true(v[i] >= 0);
	}
	assert_int_equal(copy_guard_enter(p), -EBUSY);
	copy_guard_exit(p, v[3]);
	assert_int_equal(copy_guard_enter(p), v[3]);
	for (int i = 0; i < COPY_GUARD_WORDS; i++)
		copy_guard_exit(p, v[i]);
	copy_guard_wait(e.s);
	segment_peer_put(p);
	end_drop(&e);
}

static void killed_visitor_is_not_waited_for(void **state)
{
	struct end e = end_make(0);
	struct node n = node_start(registry_slot(e.r), 0, act), next;

	(void)state;
	node_do(&n, 'e');
	node_kill(&n);
	copy_guard_wait(e.s);
	/* Nor if somebody else has its slot, who then visits. */
	next = node_start(registry_slot(e.r), 0, act);
	assert_int_equal(next.slot, n.slot);
	copy_guard_wait(e.s);
	node_do(&next, 'e');
	node_do(&next, 'x');
	copy_guard_wait(e.s);
	node_quit(&next);
	end_drop(&e);
}

/* Somebody else says that one is inside who has left, or never was. */
static void visitor_is_asked_whether_it_is_inside(void **state)
{
	struct end e = end_make(0);
	struct node n = node_start(registry_slot(e.r), 0, act);
	struct copy_guard *visit =
		(void *)((uint8_t *)(uintptr_t)segment_head(e.s) +
			 SEGMENT_GUARDS_OFFSET);
	const uint64_t generation = (uint64_t)registry_generation(e.r, n.slot)
				    << 32;

	(void)state;
	node_do(&n, 'e');
	atomic_store(&visit[n.slot].word[5], generation | 77);
	node_tell(&n, 'a');
	/* And who is inside stays so. */
	while (atomic_load(&visit[n.slot].word[5]) & 1) {
		struct segment_peer *p = segment_peer_get(e.s, n.slot);

		segment_poke(p);
		segment_peer_put(p);
		sched_yield();
	}
	assert_true(atomic_load(&visit[n.slot].word[0]) & 1);
	node_wait(&n, 'a');
	node_do(&n, 'x');
	atomic_store(&visit[n.slot].word[0], generation | 77);
	atomic_store(&visit[n.slot].word[5], generation | 77);
	node_tell(&n, 'a');
	copy_guard_wait(e.s);
	node_wait(&n, 'a');
	node_quit(&n);
	end_drop(&e);
}

static void *wait_visits(void *arg)
{
	copy_guard_wait(arg);
	atomic_store(&shared->done, 1);
	return NULL;
}

static void stopped_visitor_is_waited_for_and_named(void **state)
{
	struct end e = end_make(0);
	struct node n = node_start(registry_slot(e.r), 0, act);
	char said[1000] = "", pid[16];
	int err = dup(2), to[2];
	pthread_t t;

	(void)state;
	assert_int_equal(pipe(to), 0);
	node_do(&n, 'e');
	node_stop(&n);
	dup2(to[1], 2);
	clock_by_readings(1000000);
	assert_int_equal(pthread_create(&t, NULL, wait_visits, e.s), 0);
	assert_true(read(to[0], said, sizeof(said) - 1) > 0);
	dup2(err, 2);
	clock_by_time();
	snprintf(pid, sizeof(pid), "-CONT %d", n.pid);
	assert_non_null(strstr(said, pid));
	assert_int_equal(atomic_load(&shared->done), 0);
	kill(n.pid, SIGCONT);
	node_do(&n, 'x');
	pthread_join(t, NULL);
	node_quit(&n);
	close(err);
	close(to[0]);
	close(to[1]);
	end_drop(&e);
}

/* Atomic operations */

static void one_at_a_time_executes_atomics(void **state)
{
	struct end e = end_make(0);
	struct node a = node_start(registry_slot(e.r), 0, act);
	struct node b = node_start(registry_slot(e.r), 0, act);

	(void)state;
	node_tell(&a, 'n');
	node_tell(&b, 'n');
	count_under_lock(NULL, e.s);
	node_wait(&a, 'n');
	node_wait(&b, 'n');
	assert_int_equal(shared->count, 60000);
	node_quit(&a);
	node_quit(&b);
	end_drop(&e);
}

static void lock_of_the_dead_is_taken_over(void **state)
{
	struct end e = end_make(0);
	struct node n = node_start(registry_slot(e.r), 0, act), next;
	struct segment_head *h =
		(struct segment_head *)(uintptr_t)segment_head(e.s);

	(void)state;
	node_do(&n, 'l');
	node_kill(&n);
	assert_int_equal(segment_own_atomic_lock(e.s, 3), 0);
	segment_own_atomic_unlock(e.s, 3);
	/* Also when its slot is another's. */
	n = node_start(registry_slot(e.r), 0, act);
	node_do(&n, 'l');
	node_kill(&n);
	next = node_start(registry_slot(e.r), 0, act);
	assert_int_equal(next.slot, n.slot);
	node_do(&next, 'l');
	node_do(&next, 'u');
	assert_int_equal(segment_own_atomic_lock(e.s, 3), 0);
	segment_own_atomic_unlock(e.s, 3);
	/* And what somebody has scribbled there. */
	atomic_store(&h->atomics[3].word, UINT64_MAX);
	assert_int_equal(segment_own_atomic_lock(e.s, 3), 0);
	segment_own_atomic_unlock(e.s, 3);
	node_quit(&next);
	end_drop(&e);
}

static void lock_of_the_stopped_is_not_waited_for(void **state)
{
	struct end e = end_make(0);
	struct node n = node_start(registry_slot(e.r), 0, act);

	(void)state;
	node_do(&n, 'l');
	node_stop(&n);
	assert_int_equal(segment_own_atomic_lock(e.s, 3), -EBUSY);
	assert_int_equal(segment_own_atomic_lock(e.s, 4), 0);
	segment_own_atomic_unlock(e.s, 4);
	kill(n.pid, SIGCONT);
	node_do(&n, 'u');
	assert_int_equal(segment_own_atomic_lock(e.s, 3), 0);
	segment_own_atomic_unlock(e.s, 3);
	node_quit(&n);
	end_drop(&e);
}

/* Sleeping and waking */

static bool readable(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return sys_poll(&p, 1, 0) == 1;
}

static void sleeping_thread_is_woken_once(void **state)
{
	struct end e = end_make(0);
	struct node n = node_start(registry_slot(e.r), 0, act);
	int fd = segment_wake_fd(e.s);

	(void)state;
	node_do(&n, 'w');
	assert_false(readable(fd));
	segment_sleeps(e.s);
	node_do(&n, 'w');
	assert_true(readable(fd));
	node_do(&n, 'w');
	/* Only who has found it readable takes that back. */
	segment_wakes(e.s, false);
	assert_true(readable(fd));
	segment_wakes(e.s, true);
	assert_false(readable(fd));
	node_do(&n, 'w');
	assert_false(readable(fd));
	node_quit(&n);
	end_drop(&e);
}

/* Whatever it says of itself, and it need not be asleep. */
static void poked_process_says_it_all_again(void **state)
{
	struct end e = end_make(0);
	struct node n = node_start(registry_slot(e.r), 0, act);
	int fd = segment_wake_fd(e.s);

	(void)state;
	assert_false(segment_poked(segment_head(e.s)));
	node_do(&n, 'p');
	assert_true(segment_poked(segment_head(e.s)));
	assert_true(readable(fd));
	segment_wakes(e.s, true);
	assert_false(readable(fd));
	assert_true(segment_poked(segment_head(e.s)));
	segment_say_again(e.s);
	assert_false(segment_poked(segment_head(e.s)));
	segment_poke_own(e.s);
	assert_true(readable(fd));
	node_quit(&n);
	end_drop(&e);
}

/* A FIFO without a reader is a SIGPIPE, and one that is full would block. */
static void waking_the_dead_harms_nobody(void **state)
{
	struct end e = end_make(0);
	struct node n = node_start(registry_slot(e.r), 0, act);
	struct segment_peer *p = segment_peer_get(e.s, n.slot);

	(void)state;
	node_do(&n, 's');
	segment_wake(p);
	node_kill(&n);
	for (int i = 0; i < 100000; i++) {
		atomic_store(&p->head->asleep, 1);
		segment_wake(p);
	}
	atomic_store(&p->head->asleep, 5);
	segment_wake(p);
	segment_peer_put(p);
	/* And one whose name is gone. */
	n = node_start(registry_slot(e.r), 0, act);
	p = segment_peer_get(e.s, n.slot);
	node_quit(&n);
	atomic_store(&p->head->asleep, 1);
	segment_wake(p);
	segment_peer_put(p);
	end_drop(&e);
}

#define CASE(fn)                                                               \
	cmocka_unit_test_setup_teardown(fn, shared_setup, shared_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(memory_is_copied),
		CASE(stopped_process_is_copied_from),
		CASE(own_memory_is_copied),
		CASE(who_does_not_want_to_is_not_copied_from),
		CASE(wrong_process_is_not_copied_from),
		CASE(other_pid_namespaces_are_told_apart),
		CASE(visits_are_waited_for),
		CASE(visitors_who_come_again_delay_nobody),
		CASE(so_many_threads_visit_at_a_time),
		CASE(killed_visitor_is_not_waited_for),
		CASE(visitor_is_asked_whether_it_is_inside),
		CASE(stopped_visitor_is_waited_for_and_named),
		CASE(one_at_a_time_executes_atomics),
		CASE(lock_of_the_dead_is_taken_over),
		CASE(lock_of_the_stopped_is_not_waited_for),
		CASE(sleeping_thread_is_woken_once),
		CASE(poked_process_says_it_all_again),
		CASE(waking_the_dead_harms_nobody),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

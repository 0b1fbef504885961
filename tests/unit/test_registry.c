/*
 * test_registry.c - processes that join, lease, receive, listen and die
 */
#include "gid.h"
#include "open_fds.h"
#include "registry_dir.h"
#include "testclock.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#define STACK (96 << 10) /* bytes; enough under ASan as well */

static void leases_are_exclusive_and_found(void **state)
{
	struct registry *a = join(), *b = join();
	int qa, qb;

	(void)state;
	assert_non_null(a);
	assert_non_null(b);
	assert_int_not_equal(registry_slot(a), registry_slot(b));
	qa = registry_lease(a);
	qb = registry_lease(b);
	assert_true(qa > 1 && qb > 1 && qa != qb);
	assert_int_equal(qa % REGISTRY_CHUNK, 0);
	assert_int_equal(registry_owner(b, (uint32_t)qa + 4095),
			 registry_slot(a));
	assert_int_equal(registry_owner(a, (uint32_t)qb), registry_slot(b));
	assert_int_equal(registry_owner(a, 1), -ENOENT);
	assert_int_equal(registry_owner(a, 0xffffff), -ENOENT);
	registry_release(b, (uint32_t)qa); /* not b's */
	assert_int_equal(registry_owner(b, (uint32_t)qa), registry_slot(a));
	registry_release(a, (uint32_t)qa);
	assert_int_equal(registry_owner(b, (uint32_t)qa), -ENOENT);
	/* A number just given back is not given out at once. */
	assert_int_not_equal(registry_lease(b), qa);
	registry_leave(a);
	assert_int_equal(registry_owner(b, (uint32_t)qb), registry_slot(b));
	registry_leave(b);
}

/* Who knows one process's numbers is not to know the next one's. */
static void leases_are_not_in_a_row(void **state)
{
	struct registry *r = join();
	int before = registry_lease(r), in_a_row = 0;

	(void)state;
	for (int i = 0; i < 64; i++) {
		int q = registry_lease(r);

		in_a_row += q == before + REGISTRY_CHUNK;
		before = q;
	}
	assert_true(in_a_row < 4);
	registry_leave(r);
}

static void ports_that_a_slot_sends_from(void **state)
{
	static const uint16_t ports[] = { 50000, 50001 };
	struct registry *a = join(), *b = join();
	const unsigned slot = registry_slot(a);

	(void)state;
	assert_true(registry_sends_from(b, slot, 1)); /* it has said none */
	registry_sports(a, ports, 2);
	assert_true(registry_sends_from(b, slot, 50001));
	assert_false(registry_sends_from(b, slot, 50002));
	assert_true(registry_sends_from(b, registry_slot(b), 50002));
	registry_leave(a);
	a = join();
	assert_true(registry_sends_from(b, registry_slot(a), 50002));
	registry_leave(a);
	registry_leave(b);
}

static void leases_run_out(void **state)
{
	struct registry *r = join();
	uint8_t seen[REGISTRY_CHUNKS] = { 0 };

	(void)state;
	for (int i = 0; i < REGISTRY_CHUNKS - 2; i++) {
		int q = registry_lease(r);

		assert_true(q >= REGISTRY_CHUNK &&
			    q < (REGISTRY_CHUNKS - 1) * REGISTRY_CHUNK);
		assert_false(seen[q / REGISTRY_CHUNK]++);
	}
	assert_int_equal(registry_lease(r), -ENOSPC);
	registry_release(r, 7 * REGISTRY_CHUNK);
	assert_int_equal(registry_lease(r), 7 * REGISTRY_CHUNK);
	registry_leave(r);
}

static void slots_run_out(void **state)
{
	static struct registry *r[REGISTRY_SLOTS], *more;
	const char *why = NULL;

	(void)state;
	for (int i = 0; i < REGISTRY_SLOTS; i++) {
		r[i] = join();
		assert_non_null(r[i]);
		assert_int_equal(registry_slot(r[i]), i);
	}
	assert_int_equal(registry_join(&more, dir, &why), -ENOSPC);
	assert_non_null(strstr(why, "1024"));
	registry_leave(r[500]);
	r[500] = join();
	assert_non_null(r[500]);
	for (int i = 0; i < REGISTRY_SLOTS; i++)
		registry_leave(r[i]);
}

static void killed_process_leaves_nothing(void **state)
{
	struct registry *r = join();
	union ibv_gid gid = v4(0x7f000005);
	struct child c;

	(void)state;
	c = child_start(false);
	assert_true(registry_alive(r, c.slot));
	assert_int_equal(registry_owner(r, c.qpn), c.slot);
	assert_int_equal(registry_route(r, c.qpn, &gid, 0), c.slot);
	assert_int_equal(registry_port(r, c.slot), 4711);
	assert_int_equal(registry_listener(r, 77, &gid), c.slot);
	assert_int_equal(registry_listen(r, 77, &gid, ALL), -EADDRINUSE);

	child_kill(&c);
	assert_false(registry_alive(r, c.slot));
	assert_int_equal(registry_listen(r, 77, &gid, ALL), 0);
	assert_int_equal(registry_listener(r, 77, &gid), registry_slot(r));
	assert_int_equal(registry_listener(r, 77, &any), -ENOENT);
	assert_int_equal(registry_owner(r, c.qpn), -ENOENT);
	assert_int_equal(registry_owner(r, c.qpn + REGISTRY_CHUNK), -ENOENT);
	assert_int_equal(registry_route(r, c.qpn, &gid, 0), -ENOENT);
	assert_int_equal(registry_port(r, c.slot), 0);
	assert_int_equal(registry_lock(r), 0);
	assert_int_equal(registry_addr_count(r, &gid, 0), 0);
	registry_unlock(r);
	registry_leave(r);
}

/* Of many processes each that begins looks at some, so all are looked at in
 * turn. */
static void one_of_many_leaves_nothing_for_long(void **state)
{
	enum { MANY = 200, SOME = 64 };
	struct registry *r[MANY];
	struct child c;
	unsigned joins;

	(void)state;
	for (size_t i = 0; i < MANY; i++) {
		if (i == MANY / 2)
			c = child_start(false);
		assert_non_null(r[i] = join());
	}
	assert_int_equal(registry_owner(r[0], c.qpn), c.slot);
	child_kill(&c);
	for (joins = 0; registry_owner(r[0], c.qpn) >= 0; joins++)
		registry_leave(join());
	assert_in_range(joins, 1, MANY / SOME + 1);
	for (size_t i = 0; i < MANY; i++)
		registry_leave(r[i]);
}

static int see_alive(void *arg)
{
	struct registry *r = join();

	return r ? registry_alive(r, *(unsigned *)arg) : 100;
}

/* The kernel drops all record locks of a process with the first descriptor. */
static void joining_twice_and_leaving_once_keeps_the_other(void **state)
{
	struct registry *a = join(), *b = join();
	unsigned slot = registry_slot(a);

	(void)state;
	assert_int_equal(in_child(see_alive, &slot), 1);
	registry_leave(b);
	assert_int_equal(in_child(see_alive, &slot), 1);
	assert_non_null(b = join());
	registry_leave(a);
	slot = registry_slot(b);
	assert_int_equal(in_child(see_alive, &slot), 1);
	registry_leave(b);
}

static int see_holder(void *arg)
{
	struct registry *r = join();
	pid_t pid;

	if (!r || !registry_holder(r, *(unsigned *)arg, &pid))
		return 0;
	return pid == getppid() ? 1 : pid ? 2 : 3;
}

/* Others take whom it names for the owner of memory that the slot shows. */
static void who_holds_a_seat_hides_nobody(void **state)
{
	struct registry *r = join();
	unsigned slot = registry_slot(r);
	const char *why;
	struct registry_other other = { .n = 0 };
	int seat, held;

	(void)state;
	assert_true(registry_lease(r) > 0);
	assert_int_equal(registry_away(r, &seat), 0);
	assert_int_equal(in_child(see_holder, &slot), 3);
	held = dup(seat); /* as who has asked for it has one, for a while */
	assert_int_equal(registry_back(r, dir, &other, &why), 0);
	assert_int_equal(registry_slot(r), slot);
	assert_int_equal(in_child(see_holder, &slot), 1);
	close(held);
	registry_leave(r);
}

/* The lock of a slot's seat (registry_file.c), which nobody else can have then. */
static void hold_seat(unsigned slot, int told)
{
	struct flock fl = { .l_type = F_WRLCK,
			    .l_whence = SEEK_SET,
			    .l_start = (4 << 20) + 1 + REGISTRY_SLOTS +
				       (off_t)slot,
			    .l_len = 1 };
	int fd = open(file_path(), O_RDWR);

	if (fd < 0 || fcntl(fd, F_SETLK, &fl) || write(told, "", 1) != 1)
		_exit(1);
	for (;;)
		pause();
}

/* Neither a descriptor nor, by one that is closed, our locks. */
static void seat_that_cannot_be_had_costs_nothing(void **state)
{
	struct registry *r = join();
	unsigned slot = registry_slot(r), before = open_fds(), failed = 0;
	struct registry_other other = { .n = 0 };
	struct child c = { 0 };
	int told[2], seat = -1;
	const char *why;
	char byte;

	(void)state;
	assert_int_equal(pipe(told), 0);
	c.pid = fork_child();
	if (!c.pid)
		hold_seat(slot, told[1]);
	close(told[1]);
	assert_int_equal(read(told[0], &byte, 1), 1);
	close(told[0]);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(registry_away(r, &seat), -EAGAIN);
		assert_int_equal(in_child(see_holder, &slot), 1);
		if (!i)
			failed = open_fds();
		assert_int_equal(open_fds(), failed);
	}
	child_kill(&c);
	assert_int_equal(registry_away(r, &seat), 0);
	assert_int_equal(registry_back(r, dir, &other, &why), 0);
	assert_int_equal(open_fds(), before);
	registry_leave(r);
}

struct fork_arg {
	struct registry *r;
	bool abandon_first;
};

static int child_joins_anew(void *arg)
{
	struct fork_arg *f = arg;
	unsigned parents = registry_slot(f->r);
	struct registry *r;

	if (f->abandon_first)
		registry_abandon(f->r);
	r = join();
	if (!r)
		return 1;
	if (!f->abandon_first)
		registry_abandon(f->r);
	if (registry_slot(r) == parents || !registry_alive(r, parents))
		return 2;
	if (registry_lease(r) < 0)
		return 3;
	/* As others see us: our lock must have survived the abandoning. */
	parents = registry_slot(r);
	if (in_child(see_alive, &parents) != 1)
		return 4;
	registry_leave(r);
	return 0;
}

static void fork_shares_nothing(void **state)
{
	struct registry *r = join();
	unsigned slot = registry_slot(r);
	int q = registry_lease(r);

	(void)state;
	for (int i = 0; i < 2; i++) {
		struct fork_arg arg = { r, i };

		assert_int_equal(in_child(child_joins_anew, &arg), 0);
		assert_int_equal(in_child(see_alive, &slot), 1);
		assert_int_equal(registry_owner(r, (uint32_t)q), slot);
	}
	registry_leave(r);
}

static void sockets_are_numbered_as_the_kernel_does(void **state)
{
	struct registry *r[4];
	struct registry_range range[16];
	union ibv_gid gid = v4(0x7f000001), other = v4(0x7f000002);
	uint32_t q[4];
	size_t n;

	(void)state;
	for (int i = 0; i < 4; i++) {
		r[i] = join();
		q[i] = (uint32_t)registry_lease(r[i]);
		assert_int_equal(registry_lock(r[i]), 0);
		assert_int_equal(registry_addr_join(r[i], &gid, 0, true), 0);
		registry_unlock(r[i]);
	}
	assert_int_equal(registry_route(r[0], q[3], &gid, 0),
			 registry_slot(r[3]));
	assert_int_equal(registry_route(r[0], q[3], &gid, 1), -ENOENT);
	assert_int_equal(registry_route(r[0], q[3], &other, 0), -ENOENT);
	registry_lock(r[0]);
	n = registry_steering(r[0], &gid, 0, range, 16);
	for (int i = 0; i < 4; i++) {
		size_t k = n;

		while (range[--k].chunk > q[i] / REGISTRY_CHUNK)
			;
		assert_int_equal(range[k].index, i);
	}
	/* Close of 1: the last, 3, takes its place. */
	registry_addr_leave(r[1], &gid, 0);
	n = registry_steering(r[0], &gid, 0, range, 16);
	for (int i = 0; i < 4; i++) {
		const int want[] = { 0, -1, 2, 1 };
		size_t k = n;

		while (range[--k].chunk > q[i] / REGISTRY_CHUNK)
			;
		if (i != 1)
			assert_int_equal(range[k].index, want[i]);
	}
	registry_unlock(r[0]);
	/* A packet for 3 came to 2: they change places, not at once though. */
	for (int i = 0; i < 2; i++) {
		size_t k;

		registry_lock(r[2]);
		registry_addr_found(r[2], &gid, 0, q[3]);
		n = registry_steering(r[2], &gid, 0, range, 16);
		for (k = n; range[--k].chunk > q[3] / REGISTRY_CHUNK;)
			;
		assert_int_equal(range[k].index, i ? 2 : 1);
		registry_unlock(r[2]);
		clock_forward(20000000);
	}
	for (int i = 0; i < 4; i++)
		registry_leave(r[i]);
}

static void receiver_only_on_the_private_port_is_no_socket(void **state)
{
	struct registry *r = join();
	union ibv_gid gid = v4(0x7f000001);
	uint32_t q = (uint32_t)registry_lease(r);

	(void)state;
	registry_lock(r);
	assert_int_equal(registry_addr_join(r, &gid, 0, false), 0);
	assert_int_equal(registry_addr_count(r, &gid, 0), 0);
	registry_unlock(r);
	assert_int_equal(registry_route(r, q, &gid, 0), registry_slot(r));
	registry_lock(r);
	assert_int_equal(registry_addr_join(r, &gid, 0, true), 0);
	assert_int_equal(registry_addr_count(r, &gid, 0), 1);
	assert_int_equal(registry_addr_join(r, &gid, 0, true), 0);
	assert_int_equal(registry_addr_count(r, &gid, 0), 1);
	registry_addr_leave(r, &gid, 0);
	registry_unlock(r);
	assert_int_equal(registry_route(r, q, &gid, 0), -ENOENT);
	registry_leave(r);
}

static void addresses_run_out(void **state)
{
	uint16_t slots[REGISTRY_SLOTS];
	struct registry *r = join();
	union ibv_gid gid;

	(void)state;
	registry_lock(r);
	for (uint32_t i = 0; i < REGISTRY_ADDRS; i++) {
		gid = v4(0x0a000001 + i);
		assert_int_equal(registry_addr_join(r, &gid, 0, true), 0);
	}
	/* Each is found, wherever in the table it had to go. */
	for (uint32_t i = 0; i < REGISTRY_ADDRS; i++) {
		gid = v4(0x0a000001 + i);
		assert_int_equal(registry_receivers(r, &gid, 0, slots), 1);
	}
	gid = v4(0x0b000001);
	assert_int_equal(registry_receivers(r, &gid, 0, slots), 0);
	assert_int_equal(registry_addr_join(r, &gid, 0, true), -ENOSPC);
	gid = v4(0x0a000001);
	registry_addr_leave(r, &gid, 0);
	gid = v4(0x0b000001);
	assert_int_equal(registry_addr_join(r, &gid, 0, true), 0);
	registry_unlock(r);
	registry_leave(r);
}

/* Groups leave room for addresses. */
static void groups_run_out_first(void **state)
{
	union ibv_gid group = { .raw = { 0xff, 0x12 } }, gid = v4(0x0a000001);
	struct registry *r = join();

	(void)state;
	registry_lock(r);
	for (uint8_t i = 0; i < REGISTRY_GROUPS; i++) {
		group.raw[15] = i;
		assert_int_equal(registry_addr_join(r, &group, 1, false), 0);
	}
	assert_int_equal(registry_addr_join(r, &group, 1, false), 0);
	group.raw[15] = REGISTRY_GROUPS;
	assert_int_equal(registry_addr_join(r, &group, 1, false), -ENOSPC);
	assert_int_equal(registry_addr_join(r, &gid, 0, true), 0);
	group.raw[15] = 0;
	registry_addr_leave(r, &group, 1);
	assert_int_equal(registry_addr_join(r, &group, 1, false), 0);
	registry_unlock(r);
	registry_leave(r);
}

static void backlog_is_bounded_but_a_first_datagram_passes(void **state)
{
	struct registry *a = join(), *b = join();
	unsigned to = registry_slot(b);

	(void)state;
	registry_publish(b, 1, 10000);
	assert_true(registry_charge(a, to, 60000));
	assert_false(registry_charge(a, to, 1));
	assert_int_equal(registry_backlog(b), 60000);
	registry_uncharge(b, to, 60000);
	assert_true(registry_charge(a, to, 6000));
	assert_true(registry_charge(a, to, 4000));
	assert_false(registry_charge(a, to, 1));
	registry_leave(a);
	registry_leave(b);
}

/* Somebody has scribbled on it. */
static void a_backlog_that_cannot_be_admits_no_more(void **state)
{
	struct registry *a = join(), *b = join();
	unsigned to = registry_slot(b);

	(void)state;
	registry_publish(b, 1, 10000);
	registry_uncharge(b, to, -INT64_MAX);
	assert_int_equal(registry_backlog(b), INT64_MAX);
	assert_false(registry_charge(a, to, 1));
	assert_false(registry_charge(a, to, UINT32_MAX));
	registry_uncharge(b, to, INT64_MAX);
	registry_uncharge(b, to, INT64_MIN);
	/* Whoever computes with it may change its sign. */
	assert_true(registry_backlog(b) == -INT64_MAX);
	registry_leave(a);
	registry_leave(b);
}

static void one_listener_per_service(void **state)
{
	struct registry *a = join(), *b = join();
	union ibv_gid x = v4(0x7f000001), y = v4(0x7f000002);

	(void)state;
	assert_int_equal(registry_listen(a, 9, &x, ALL), 0);
	assert_int_equal(registry_listen(b, 9, &x, ALL), -EADDRINUSE);
	assert_int_equal(registry_listen(b, 9, &any, ALL), -EADDRINUSE);
	assert_int_equal(registry_listen(b, 9, &y, ALL), 0);
	assert_int_equal(registry_listen(b, 10, &any, ALL), 0);
	assert_int_equal(registry_listener(a, 9, &y), registry_slot(b));
	assert_int_equal(registry_listener(a, 9, &x), registry_slot(a));
	assert_int_equal(registry_listener(a, 10, &x), registry_slot(b));
	registry_unlisten(a, 10, &any, ALL); /* not a's */
	assert_int_equal(registry_listener(a, 10, &x), registry_slot(b));
	registry_unlisten(b, 10, &any, ALL);
	assert_int_equal(registry_listener(a, 10, &x), -ENOENT);
	registry_leave(b);
	assert_int_equal(registry_listen(a, 9, &y, ALL), 0);
	registry_leave(a);
}

/* An IPv6 wildcard that stands for IPv6 alone leaves IPv4 to others. */
static void listeners_of_families(void **state)
{
	struct registry *a = join(), *b = join(), *c = join();
	union ibv_gid x = v4(0x7f000001), y = { .raw = { [15] = 1 } };

	(void)state;
	assert_int_equal(registry_listen(a, 9, &any, REGISTRY_IPV6), 0);
	assert_int_equal(registry_listener(a, 9, &x), -ENOENT);
	assert_int_equal(registry_listen(b, 9, &any, REGISTRY_IPV4), 0);
	assert_int_equal(registry_listener(c, 9, &x), registry_slot(b));
	assert_int_equal(registry_listener(c, 9, &y), registry_slot(a));
	assert_int_equal(registry_listen(c, 9, &any, ALL), -EADDRINUSE);
	assert_int_equal(registry_listen(c, 9, &x, REGISTRY_IPV4), -EADDRINUSE);
	assert_int_equal(registry_listen(c, 9, &y, REGISTRY_IPV6), -EADDRINUSE);
	/* not that of the other, which is at all addresses as well */
	registry_unlisten(b, 9, &any, REGISTRY_IPV4);
	assert_int_equal(registry_listener(c, 9, &x), -ENOENT);
	assert_int_equal(registry_listener(c, 9, &y), registry_slot(a));
	assert_int_equal(registry_listen(c, 9, &x, REGISTRY_IPV4), 0);
	registry_leave(c);
	registry_leave(b);
	registry_leave(a);
}

/* Many processes at once, of which some are killed at any moment. */
static void crowd(void **state)
{
	uint64_t seed = rnd_seed();
	pid_t pid[6];
	int status;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(pid); i++) {
		pid[i] = fork_child();
		if (pid[i])
			continue;
		for (int n = 0; n < 150 || i % 2; n++) {
			struct registry *r = join();
			int q = r ? registry_lease(r) : -1;

			if (q < 0)
				_exit(1);
			sched_yield();
			if (registry_owner(r, (uint32_t)q) !=
			    (int)registry_slot(r))
				_exit(2);
			if (n % 3)
				registry_release(r, (uint32_t)q);
			registry_leave(r);
		}
		_exit(0);
	}
	for (size_t i = 1; i < ARRAY_SIZE(pid); i += 2) {
		usleep((useconds_t)(rnd(&seed) % 100000));
		kill(pid[i], SIGKILL);
	}
	for (size_t i = 0; i < ARRAY_SIZE(pid); i++) {
		assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
		if (i % 2)
			continue;
		assert_true(WIFEXITED(status));
		assert_int_equal(WEXITSTATUS(status), 0);
	}
	leases_run_out(state); /* nothing was left behind */
}

static void *lease_often(void *arg)
{
	struct registry *r = arg;

	for (int i = 0; i < 200; i++) {
		int q = registry_lease(r);

		if (q < 0 ||
		    registry_owner(r, (uint32_t)q) != (int)registry_slot(r))
			return r;
		registry_release(r, (uint32_t)q);
	}
	return NULL;
}

static void threads(void **state)
{
	struct registry *r = join();
	pthread_t t[4];
	void *failed;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(t); i++)
		pthread_create(&t[i], NULL, lease_often, r);
	for (size_t i = 0; i < ARRAY_SIZE(t); i++) {
		pthread_join(t[i], &failed);
		assert_null(failed);
	}
	registry_leave(r);
}

static void *join_and_leave(void *arg)
{
	int *err = arg;
	struct registry *r;

	*err = registry_join(&r, dir, NULL);
	if (!*err)
		registry_leave(r);
	return NULL;
}

/* Programs open devices in threads whose stacks are as small as they go. */
static void small_stack(void **state)
{
	pthread_attr_t attr;
	pthread_t t;
	size_t least =
		(size_t)sysconf(_SC_THREAD_STACK_MIN); /* 128 KiB on arm64 */
	int err = 1;

	(void)state;
	pthread_attr_init(&attr);
	assert_int_equal(
		pthread_attr_setstacksize(&attr, least > STACK ? least : STACK),
		0);
	assert_int_equal(pthread_create(&t, &attr, join_and_leave, &err), 0);
	pthread_join(t, NULL);
	pthread_attr_destroy(&attr);
	assert_int_equal(err, 0);
}

/* What one end says of a request, the other finds. */
static void notes(void **state)
{
	struct registry *a = join(), *b = join();
	char text[REGISTRY_NOTE];

	(void)state;
	assert_false(registry_noted(b, 0x11, 0x22, text));
	registry_note(a, 0x11, 0x22, "no region has this rkey");
	registry_note(a, 0x12, 0x22, "of another queue pair");
	assert_true(registry_noted(b, 0x11, 0x22, text));
	assert_string_equal(text, "no region has this rkey");
	assert_false(registry_noted(b, 0x22, 0x11, text));
	/* The last; and nothing that a terminal would obey. */
	registry_note(a, 0x11, 0x22, "a\x1b[2J\nb");
	assert_true(registry_noted(b, 0x11, 0x22, text));
	assert_string_equal(text, "a?[2J?b");
	/* Longer than there is room, and forgotten behind many others. */
	for (unsigned i = 0; i < REGISTRY_NOTES; i++) {
		char longer[2 * REGISTRY_NOTE];

		memset(longer, 'x', sizeof(longer) - 1);
		longer[sizeof(longer) - 1] = '\0';
		registry_note(a, 0x100 + i, 0x22, longer);
	}
	assert_false(registry_noted(b, 0x11, 0x22, text));
	assert_true(registry_noted(b, 0x100, 0x22, text));
	assert_int_equal(strlen(text), REGISTRY_NOTE - 1);
	assert_int_equal(text[0], 'x');
	registry_leave(a);
	registry_leave(b);
}

static struct netdev_table table_of(const char *const *addr, size_t n)
{
	struct netdev_table t = { .count = n };

	for (size_t i = 0; i < n; i++) {
		t.gid[i].gid = gid_of(addr[i]);
		t.gid[i].ifindex = 3;
	}
	return t;
}

/* A GID has one index, whoever asks, as long as it stays. */
static void order_of_gids(void **state)
{
	static const char *const before[] = { "10.0.0.1", "10.0.0.2",
					      "127.0.0.1" };
	static const char *const after[] = { "10.0.0.1", "10.0.0.9", "10.0.0.8",
					     "127.0.0.1" };
	const struct netdev_table was = table_of(before, 3),
				  is = table_of(after, 4);
	struct registry *a = join(), *b;
	uint8_t at[NETDEV_MAX_GIDS];

	(void)state;
	assert_int_equal(registry_gids(a, 1, &was, at), 0);
	assert_memory_equal(at, "\0\1\2", 3);
	assert_int_equal(registry_gids(a, 1, &is, at), 0);
	assert_memory_equal(at, "\0\1\3\2", 4);
	/* Another process; and one that was told to see something else. */
	b = join();
	assert_int_equal(registry_gids(b, 1, &is, at), 0);
	assert_memory_equal(at, "\0\1\3\2", 4);
	assert_int_equal(registry_gids(b, 2, &is, at), 0);
	assert_memory_equal(at, "\0\1\2\3", 4);
	/* The last of them has gone: the next one orders them anew. */
	registry_leave(b);
	registry_leave(a);
	a = join();
	assert_int_equal(registry_gids(a, 1, &is, at), 0);
	assert_memory_equal(at, "\0\1\2\3", 4);
	for (uint64_t key = 2; key <= REGISTRY_GID_TABLES; key++)
		assert_int_equal(registry_gids(a, key, &is, at), 0);
	assert_int_equal(registry_gids(a, 99, &is, at), -ENOSPC);
	registry_leave(a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CLEAN(leases_are_exclusive_and_found),
		CLEAN(leases_are_not_in_a_row),
		CLEAN(ports_that_a_slot_sends_from),
		CLEAN(leases_run_out),
		CLEAN(slots_run_out),
		CLEAN(killed_process_leaves_nothing),
		CLEAN(one_of_many_leaves_nothing_for_long),
		CLEAN(joining_twice_and_leaving_once_keeps_the_other),
		CLEAN(who_holds_a_seat_hides_nobody),
		CLEAN(seat_that_cannot_be_had_costs_nothing),
		CLEAN(fork_shares_nothing),
		CLEAN(sockets_are_numbered_as_the_kernel_does),
		CLEAN(receiver_only_on_the_private_port_is_no_socket),
		CLEAN(addresses_run_out),
		CLEAN(groups_run_out_first),
		CLEAN(backlog_is_bounded_but_a_first_datagram_passes),
		CLEAN(a_backlog_that_cannot_be_admits_no_more),
		CLEAN(one_listener_per_service),
		CLEAN(listeners_of_families),
		CLEAN(crowd),
		CLEAN(threads),
		CLEAN(small_stack),
		CLEAN(notes),
		CLEAN(order_of_gids),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * test_registry_net.c - several network namespaces in one registry, and
 * directories that several hosts share
 */
#include "registry_dir.h"

#include "registry/registry_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/vfs.h>

#define SERVICE 77

static long fs_type; /* 0: as it is */

int statfs(const char *path, struct statfs *s)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int err = fd < 0 ? -1 : fstatfs(fd, s);

	if (fd >= 0)
		close(fd);
	if (fs_type)
		s->f_type = (__typeof__(s->f_type))fs_type;
	return err;
}

/* A process of another namespace, which receives at 10.0.0.1 and listens. */
struct other {
	pid_t pid;
	int ask; /* what is written there, it finds on the network */
	uint32_t slot, qpn;
	bool none; /* no namespace can be made */
};

static union ibv_gid address(void)
{
	return v4(0x0a000001);
}

static void run_other(int told, int ask)
{
	const union ibv_gid gid = address();
	struct other o = { .none = !own_netns() };
	struct registry_ask a;
	struct registry *r = NULL;

	if (!o.none) {
		r = join();
		if (!r || registry_lock(r))
			_exit(1);
		registry_addr_join(r, &gid, 0, true);
		registry_unlock(r);
		o.slot = registry_slot(r);
		o.qpn = (uint32_t)registry_lease(r);
		registry_publish(r, 4711, 1000);
		registry_listen(r, SERVICE, &any, ALL);
	}
	if (write(told, &o, sizeof(o)) != sizeof(o) || o.none)
		_exit(1);
	while (read(ask, &a, sizeof(a)) == sizeof(a)) {
		registry_asked(r, &a);
		if (write(told, "", 1) != 1)
			break;
	}
	for (;;)
		pause();
}

static int told[2];

static struct other other_start(void)
{
	struct other o = { 0 };
	int ask[2];
	pid_t pid;

	assert_int_equal(pipe(told), 0);
	assert_int_equal(pipe(ask), 0);
	pid = fork_child();
	if (!pid) {
		close(ask[1]);
		run_other(told[1], ask[0]);
	}
	close(ask[0]);
	assert_int_equal(read(told[0], &o, sizeof(o)), sizeof(o));
	o.pid = pid;
	o.ask = ask[1];
	return o;
}

static void other_end(const struct other *o)
{
	kill(o->pid, SIGKILL);
	waitpid(o->pid, NULL, 0);
	close(o->ask);
	close(told[0]);
	close(told[1]);
}

/* Puts a question on the network. */
static void arrives(const struct other *o, const struct registry_ask *ask)
{
	char byte;

	assert_int_equal(write(o->ask, ask, sizeof(*ask)), sizeof(*ask));
	assert_int_equal(read(told[0], &byte, 1), 1);
}

/* What concerns addresses is of one namespace. */
static void addresses_are_of_one_namespace(void **state)
{
	const union ibv_gid gid = address();
	struct other o = other_start();
	struct registry *r = NULL;
	uint16_t slots[REGISTRY_SLOTS];
	int qpn;

	(void)state;
	if (o.none)
		skip();
	r = join();
	assert_non_null(r);
	assert_true(registry_is_shared(r));
	assert_int_equal(registry_nets(r), 2);
	assert_int_equal(registry_owner(r, o.qpn), -ENOENT);
	assert_int_equal(registry_route(r, o.qpn, &gid, 0), -ENOENT);
	assert_int_equal(registry_receivers(r, &gid, 0, slots), 0);
	assert_int_equal(registry_listener(r, SERVICE, &gid), -ENOENT);
	assert_int_equal(registry_listen(r, SERVICE, &any, ALL), 0);
	assert_int_equal(registry_listener(r, SERVICE, &gid), registry_slot(r));
	assert_int_equal(registry_lock(r), 0);
	assert_int_equal(registry_addr_count(r, &gid, 0), 0);
	assert_int_equal(registry_addr_join(r, &gid, 0, true), 0);
	assert_int_equal(registry_addr_count(r, &gid, 0), 1);
	registry_unlock(r);
	qpn = registry_lease(r);
	assert_true(qpn > 0 && (uint32_t)qpn != o.qpn);
	assert_int_equal(registry_route(r, (uint32_t)qpn, &gid, 0),
			 registry_slot(r));
	assert_int_equal(registry_receivers(r, &gid, 0, slots), 1);
	assert_true(registry_alive(r, o.slot));
	registry_leave(r);
	other_end(&o);
}

static void only_what_may_be_elsewhere_is_asked_for(void **state)
{
	const union ibv_gid gid = address(), no = v4(0x0a000002);
	struct other o = other_start();
	struct registry *r = NULL;
	int qpn;

	(void)state;
	if (o.none)
		skip();
	r = join();
	assert_non_null(r);
	qpn = registry_lease(r);
	assert_true(registry_is_elsewhere(r, o.qpn, &gid));
	assert_true(registry_is_elsewhere(r, o.qpn, &no));
	assert_true(registry_is_elsewhere(r, 0, &gid));
	assert_false(registry_is_elsewhere(r, 0, &no));
	assert_false(registry_is_elsewhere(r, (uint32_t)qpn, &gid));
	assert_false(registry_is_elsewhere(r, 0xabc000, &gid) &&
		     o.qpn != 0xabc000);
	registry_leave(r);
	other_end(&o);
}

static void answer_proves_the_namespace(void **state)
{
	const union ibv_gid gid = address(), no = v4(0x0a000002);
	struct registry_ask ask, old;
	struct other o = other_start();
	struct registry *r = NULL;
	uint32_t net;

	(void)state;
	if (o.none)
		skip();
	r = join();
	assert_non_null(r);
	assert_true(registry_ask(r, &old));
	assert_true(registry_ask(r, &ask));
	assert_int_equal(registry_answer(r, &ask), 0);
	arrives(&o, &old);
	assert_int_equal(registry_answer(r, &ask), 0);
	old = ask;
	old.nonce ^= 1;
	arrives(&o, &old);
	old = ask;
	old.slot = 0xffffffff;
	arrives(&o, &old);
	assert_int_equal(registry_answer(r, &ask), 0);
	arrives(&o, &ask);
	net = registry_answer(r, &ask);
	assert_int_not_equal(net, 0);
	registry_ask_end(r);
	assert_int_equal(registry_route_in(r, net, o.qpn, &gid), o.slot);
	assert_int_equal(registry_route_in(r, net, o.qpn, &no), -ENOENT);
	assert_int_equal(registry_route_in(r, net + 1, o.qpn, &gid), -ENOENT);
	other_end(&o);

	/* The next one with the address is in another namespace. */
	o = other_start();
	assert_int_equal(registry_route_in(r, net, o.qpn, &gid), -ENOENT);
	assert_true(registry_ask(r, &ask));
	arrives(&o, &ask);
	assert_int_not_equal(registry_answer(r, &ask), 0);
	assert_int_not_equal(registry_answer(r, &ask), net);
	registry_leave(r);
	other_end(&o);
}

/* After that nobody who hears of it late can answer. */
static void question_that_has_ended_is_not_answered(void **state)
{
	struct registry_ask ask;
	struct registry *r = join();

	(void)state;
	assert_non_null(r);
	assert_true(registry_ask(r, &ask));
	registry_ask_end(r);
	registry_asked(r, &ask);
	assert_int_equal(registry_answer(r, &ask), 0);
	registry_leave(r);
}

static void refused(int wanted, const char *words)
{
	struct registry *r = NULL;
	const char *why = "";

	assert_int_equal(registry_join(&r, dir, &why), wanted);
	assert_non_null(strstr(why, words));
	assert_non_null(strstr(why, "SOFTHCA_RUNDIR"));
}

static void file_systems_of_several_hosts_are_refused(void **state)
{
	static const long types[] = { 0x6969, 0xfe534d42, 0x65735546,
				      0x01021997 };
	struct registry *r = NULL;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(types); i++) {
		fs_type = types[i];
		refused(-EREMOTE, "several hosts");
		assert_string_equal(file_path(), "");
	}
	fs_type = 0;
	r = join();
	assert_non_null(r);
	registry_leave(r);
}

/* As if the file had been made by another host, or before this one's start. */
static void change_boot_id(void)
{
	int fd = open(file_path(), O_RDWR | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, "another", 8, offsetof(struct head, boot)),
			 8);
	close(fd);
}

static int join_and_die(void *arg)
{
	(void)arg;
	return !join();
}

static void file_of_another_host_is_refused(void **state)
{
	struct child c = child_start(false);
	struct registry *r = NULL;

	(void)state;
	change_boot_id();
	refused(-EREMOTE, "another host");
	child_kill(&c);
	/* Nobody is there any more. */
	r = join();
	assert_non_null(r);
	registry_leave(r);
}

static void file_of_an_earlier_start_is_replaced(void **state)
{
	struct registry *r = NULL;

	(void)state;
	assert_int_equal(in_child(join_and_die, NULL), 0);
	change_boot_id();
	r = join();
	assert_non_null(r);
	registry_leave(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(addresses_are_of_one_namespace),
		TEST(only_what_may_be_elsewhere_is_asked_for),
		TEST(answer_proves_the_namespace),
		CLEAN(question_that_has_ended_is_not_answered),
		CLEAN(file_systems_of_several_hosts_are_refused),
		CLEAN(file_of_another_host_is_refused),
		CLEAN(file_of_an_earlier_start_is_replaced),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

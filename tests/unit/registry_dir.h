/*
 * registry_dir.h - a directory for a registry's file, and processes that have
 * joined it, for the registry's tests
 */
#ifndef SOFTHCA_TESTS_REGISTRY_DIR_H
#define SOFTHCA_TESTS_REGISTRY_DIR_H

#include "unit.h"

#include "hostns.h"

#include "base/bytes.h"
#include "registry/registry.h"

#include <dirent.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define ALL (REGISTRY_IPV4 | REGISTRY_IPV6)

static char dir[64];
static const union ibv_gid any;

static inline char *file_path(void)
{
	static char path[512];
	struct dirent *de;
	DIR *d = opendir(dir);

	path[0] = 0;
	assert_non_null(d);
	while ((de = readdir(d)))
		if (!strncmp(de->d_name, "softhca-", 8))
			snprintf(path, sizeof(path), "%s/%s", dir, de->d_name);
	closedir(d);
	return path;
}

static inline int setup(void **state)
{
	(void)state;
	strcpy(dir, "/tmp/softhca-test-registry-XXXXXX");
	return mkdtemp(dir) ? 0 : -1;
}

static inline int teardown(void **state)
{
	(void)state;
	if (*file_path())
		remove(file_path());
	return rmdir(dir);
}

/* For those who leave nothing behind. */
static inline int teardown_empty(void **state)
{
	(void)state;
	return rmdir(dir);
}

static inline struct registry *join(void)
{
	struct registry *r = NULL;
	const char *why = NULL;
	int err = registry_join(&r, dir, &why);

	if (err)
		print_message("registry_join: %s (%s)\n", strerror(-err), why);
	return r;
}

static inline union ibv_gid v4(uint32_t addr)
{
	union ibv_gid gid = { .raw = { [10] = 0xff, [11] = 0xff } };

	put_be32(gid.raw + 12, addr);
	return gid;
}

/* A process that does something and then waits to be killed. */
struct child {
	pid_t pid;
	uint32_t slot, qpn;
};

static inline struct child child_start(bool with_lock)
{
	struct child c = { 0 };
	union ibv_gid gid = v4(0x7f000005);
	int fd[2];

	assert_int_equal(pipe(fd), 0);
	c.pid = fork_child();
	assert_true(c.pid >= 0);
	if (!c.pid) {
		struct registry *r;

		r = join();

		if (!r)
			_exit(1);
		c.slot = registry_slot(r);
		c.qpn = (uint32_t)registry_lease(r);
		registry_lease(r);
		registry_publish(r, 4711, 1000);
		registry_listen(r, 77, &any, ALL);
		if (registry_lock(r))
			_exit(1);
		registry_addr_join(r, &gid, 0, true);
		if (!with_lock)
			registry_unlock(r);
		if (write(fd[1], &c, sizeof(c)) != sizeof(c))
			_exit(1);
		for (;;)
			pause();
	}
	close(fd[1]);
	{
		struct child told;

		assert_int_equal(read(fd[0], &told, sizeof(told)),
				 sizeof(told));
		c.slot = told.slot;
		c.qpn = told.qpn;
	}
	close(fd[0]);
	return c;
}

static inline void child_kill(const struct child *c)
{
	kill(c->pid, SIGKILL);
	waitpid(c->pid, NULL, 0);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
/* The last one to leave takes the file along. */
#define CLEAN(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown_empty)

#endif

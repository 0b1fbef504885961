/*
 * test_registry_file.c - the registry's file: its lock, and files that are not
 * what they should be
 */
#include "registry_dir.h"
#include "testclock.h"

#include "os/owner.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

static void killed_holder_of_the_lock_lets_go(void **state)
{
	struct child c = child_start(true);
	struct registry *r;

	(void)state;
	child_kill(&c);
	/* A wait would be over after five readings of the clock, in vain. */
	clock_by_readings(1000000000u);
	r = join();
	clock_by_time();
	assert_non_null(r);
	registry_leave(r);
}

static void stopped_holder_of_the_lock_is_not_waited_for_forever(void **state)
{
	struct child c = child_start(true);
	struct registry *r = NULL;
	const char *why = "";
	uint64_t start;

	(void)state;
	kill(c.pid, SIGSTOP);
	clock_by_readings(100000000);
	start = clock_ns();
	assert_int_equal(registry_join(&r, dir, &why), -ETIMEDOUT);
	assert_in_range(clock_ns() - start, 4500000000u, 9000000000u);
	clock_by_time();
	assert_non_null(strstr(why, "lock"));
	child_kill(&c);
}

/* Has the lock for longer than one that sleeps is waited for, and runs. */
static void hold_and_spin(int told)
{
	struct registry *r = join();
	struct timespec t, begin;

	if (!r || registry_lock(r) || write(told, "", 1) != 1)
		_exit(1);
	clock_gettime(CLOCK_MONOTONIC, &begin);
	do {
		clock_gettime(CLOCK_MONOTONIC, &t);
	} while ((t.tv_sec - begin.tv_sec) * 1000 +
			 (t.tv_nsec - begin.tv_nsec) / 1000000 <
		 1000);
	registry_unlock(r);
	for (;;)
		pause();
}

static void holder_that_waits_for_a_cpu_is_waited_for(void **state)
{
	struct child c = { 0 };
	struct registry *r;
	int told[2];
	char byte;

	(void)state;
	assert_int_equal(pipe(told), 0);
	c.pid = fork_child();
	if (!c.pid)
		hold_and_spin(told[1]);
	close(told[1]);
	assert_int_equal(read(told[0], &byte, 1), 1);
	close(told[0]);
	/* Five seconds are over after a quarter of one. */
	clock_by_readings(40000000);
	r = join();
	clock_by_time();
	child_kill(&c);
	assert_non_null(r);
	registry_leave(r);
}

static int join_and_die(void *arg)
{
	(void)arg;
	return !join();
}

/* A file that nobody uses: its last user did not leave but die. */
static const char *leave_file(void)
{
	assert_int_equal(in_child(join_and_die, NULL), 0);
	return file_path();
}

static int use_it_all(struct registry *r)
{
	struct registry_range range[64];
	union ibv_gid gid = v4(0x7f000009);
	int q = registry_lease(r);
	size_t n;

	if (q < 0 && q != -ENOSPC)
		return 1;
	for (uint32_t c = 0; c < REGISTRY_CHUNKS; c += 5) {
		int slot = registry_route(r, c * REGISTRY_CHUNK, &gid, 0);

		if (slot >= REGISTRY_SLOTS ||
		    registry_owner(r, c * REGISTRY_CHUNK) >= REGISTRY_SLOTS)
			return 2;
		if (slot >= 0)
			registry_charge(r, (unsigned)slot, 10);
	}
	if (registry_lock(r))
		return 3;
	if (!registry_addr_join(r, &gid, 0, true)) {
		registry_addr_found(r, &gid, 0, 12345678);
		n = registry_addr_count(r, &gid, 0);
		if (!n || n > REGISTRY_SLOTS)
			return 4;
		n = registry_steering(r, &gid, 0, range, 64);
		if (!n || n > 64 || range[0].chunk)
			return 5;
		registry_addr_leave(r, &gid, 0);
	}
	registry_unlock(r);
	registry_listener(r, 5, &gid);
	if (!registry_listen(r, 5, &gid, ALL))
		registry_unlisten(r, 5, &gid, ALL);
	for (unsigned slot = 0; slot < 2000; slot++)
		registry_port(r, slot);
	if (q > 0)
		registry_release(r, (uint32_t)q);
	return 0;
}

/* What a crash, or another program of this user, may have left behind. */
static void garbage_in_the_file_is_survived(void **state)
{
	uint64_t seed = rnd_seed();
	struct registry *r;
	struct stat st;

	(void)state;
	for (int i = 0; i < 16; i++) {
		size_t keep = i % 4 == 0 ? 0 : i % 4 == 1 ? 12 : 32;
		uint8_t *m;
		int fd;

		fd = open(leave_file(), O_RDWR | O_CLOEXEC);
		assert_true(fd >= 0);
		assert_int_equal(fstat(fd, &st), 0);
		m = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE,
			 MAP_SHARED, fd, 0);
		assert_ptr_not_equal(m, MAP_FAILED);
		if (i % 8 == 7)
			memset(m + keep, 0xff, (size_t)st.st_size - keep);
		else
			rnd_fill(&seed, m + keep, (size_t)st.st_size - keep);
		/* Small numbers pass more checks than random ones. */
		if (i % 8 == 3)
			for (size_t k = keep; k < (size_t)st.st_size; k++)
				m[k] = m[k] > 40 ? 0 : m[k] & 3;
		munmap(m, (size_t)st.st_size);
		if (i % 8 == 5)
			assert_int_equal(
				ftruncate(fd, (off_t)(rnd(&seed) %
						      (uint64_t)st.st_size)),
				0);
		close(fd);
		r = join();
		assert_non_null(r);
		assert_int_equal(use_it_all(r), 0);
		registry_leave(r);
	}
}

static int refused(const char *want)
{
	struct registry *r = NULL;
	const char *why = "";
	int err = registry_join(&r, dir, &why);

	assert_null(r);
	if (want)
		assert_non_null(strstr(why, want));
	return err;
}

static void files_of_others_are_refused(void **state)
{
	char path[512], other[600];
	struct registry *r;

	(void)state;
	strcpy(path, leave_file());
	assert_int_equal(chmod(path, 0644), 0);
	assert_int_equal(refused("SOFTHCA_RUNDIR"), -EACCES);
	assert_int_equal(chmod(path, 0600), 0);

	snprintf(other, sizeof(other), "%s.other", path);
	assert_int_equal(rename(path, other), 0);
	assert_int_equal(symlink(other, path), 0);
	assert_int_equal(refused(path), -ELOOP);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(link(other, path), 0);
	assert_int_equal(refused("private"), -EACCES);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(mkfifo(path, 0600), 0);
	assert_int_equal(refused("private"), -EACCES);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(mkdir(path, 0700), 0);
	assert_int_equal(refused(path), -EISDIR);
	assert_int_equal(rmdir(path), 0);
	if (!geteuid()) {
		assert_int_equal(rename(other, path), 0);
		assert_int_equal(chown(path, 12345, 12345), 0);
		assert_int_equal(refused("SOFTHCA_RUNDIR"), -EACCES);
		assert_int_equal(unlink(path), 0);
	} else {
		assert_int_equal(unlink(other), 0);
	}
	r = join();
	assert_non_null(r);
	registry_leave(r);
}

static char *in_dir(const char *fmt, unsigned n)
{
	static char path[512];
	size_t len = (size_t)snprintf(path, sizeof(path), "%s/", dir);

	snprintf(path + len, sizeof(path) - len, fmt, n);
	return path;
}

static int touch(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	return fd;
}

/*
 * Network namespaces come and go, and their processes may be killed: their
 * files go when another one is made. Not those in use, nor anything else.
 */
static void files_of_the_dead_are_removed(void **state)
{
	static const char *const others[] = { "softhca-%u-1x", "softhca-%u-",
					      "softhca-%u1-1",
					      "softhca-sysfs-%u",
					      "other-%u-1" };
	unsigned uid = owner_uid();
	struct registry *r;
	int p[2], q[2];
	pid_t pid;
	char c;

	(void)state;
	close(touch(in_dir("softhca-%u-1", uid)));
	assert_int_equal(symlink("/etc/passwd", in_dir("softhca-%u-2", uid)),
			 0);
	assert_int_equal(mkdir(in_dir("softhca-%u-3", uid), 0700), 0);
	for (size_t i = 0; i < ARRAY_SIZE(others); i++)
		close(touch(in_dir(others[i], uid)));
	assert_int_equal(pipe(p), 0);
	assert_int_equal(pipe(q), 0);
	pid = fork_child();
	if (!pid) {
		struct flock fl = { .l_type = F_WRLCK,
				    .l_whence = SEEK_SET,
				    .l_start = (1 << 20) + 17,
				    .l_len = 1 };

		close(q[1]);
		if (fcntl(touch(in_dir("softhca-%u-4", uid)), F_SETLK, &fl) ||
		    write(p[1], "x", 1) != 1)
			_exit(1);
		_exit(read(q[0], &c, 1) != 0); /* until we let go */
	}
	assert_int_equal(read(p[0], &c, 1), 1);

	r = join();
	assert_non_null(r);
	assert_int_not_equal(access(in_dir("softhca-%u-1", uid), F_OK), 0);
	assert_int_equal(access(in_dir("softhca-%u-4", uid), F_OK), 0);
	registry_leave(r);
	for (size_t i = 0; i < ARRAY_SIZE(others); i++)
		assert_int_equal(unlink(in_dir(others[i], uid)), 0);
	assert_int_equal(unlink(in_dir("softhca-%u-2", uid)), 0);
	assert_int_equal(rmdir(in_dir("softhca-%u-3", uid)), 0);

	for (int i = 0; i < 2; i++) {
		close(p[i]);
		close(q[i]);
	}
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	r = join();
	assert_int_not_equal(access(in_dir("softhca-%u-4", uid), F_OK), 0);
	registry_leave(r);
}

static void no_directory_is_an_error_in_words(void **state)
{
	struct registry *r = NULL;
	const char *why = NULL;

	(void)state;
	assert_int_equal(registry_join(&r, "/nonexistent", &why), -ENOENT);
	assert_non_null(strstr(why, "/nonexistent"));
}

static int join_with_small_files(void *arg)
{
	const struct rlimit most = { 4096, 4096 };
	struct registry *r = NULL;
	const char *why = "";

	(void)arg;
	return setrlimit(RLIMIT_FSIZE, &most) ||
	       registry_join(&r, dir, &why) != -EFBIG ||
	       !strstr(why, "ulimit -f");
}

/* No signal ends the process, and whoever comes next gets a file. */
static void limit_of_files_is_an_error_in_words(void **state)
{
	struct registry *r;

	(void)state;
	assert_int_equal(in_child(join_with_small_files, NULL), 0);
	r = join();
	assert_non_null(r);
	registry_leave(r);
}

/* Programs of a session and those of a cron job meet in the same directories. */
static void directories(void **state)
{
	const char *dirs[REGISTRY_DIRS];
	char run[64];

	(void)state;
	unsetenv("SOFTHCA_RUNDIR");
	unsetenv("XDG_RUNTIME_DIR");
	snprintf(run, sizeof(run), "/run/user/%u", (unsigned)geteuid());
	assert_int_equal(registry_dirs(NULL, dirs), 3);
	assert_string_equal(dirs[0], "/dev/shm");
	assert_string_equal(dirs[1], run);
	assert_string_equal(dirs[2], "/tmp");
	setenv("XDG_RUNTIME_DIR", "/run/own", 1);
	assert_int_equal(registry_dirs(NULL, dirs), 3);
	assert_string_equal(dirs[1], "/run/own");
	unsetenv("XDG_RUNTIME_DIR");
	setenv("SOFTHCA_RUNDIR", "/run/all", 1);
	assert_int_equal(registry_dirs(NULL, dirs), 1);
	assert_string_equal(dirs[0], "/run/all");
	assert_int_equal(registry_dirs("/here", dirs), 1);
	assert_string_equal(dirs[0], "/here");
	unsetenv("SOFTHCA_RUNDIR");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(stopped_holder_of_the_lock_is_not_waited_for_forever),
		CLEAN(holder_that_waits_for_a_cpu_is_waited_for),
		CLEAN(killed_holder_of_the_lock_lets_go),
		TEST(garbage_in_the_file_is_survived),
		TEST(files_of_others_are_refused),
		CLEAN(files_of_the_dead_are_removed),
		CLEAN(no_directory_is_an_error_in_words),
		CLEAN(limit_of_files_is_an_error_in_words),
		cmocka_unit_test(directories),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

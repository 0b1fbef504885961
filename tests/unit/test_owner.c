/*
 * test_owner.c - whose a file is, in user namespaces that number users anew
 */
#include "unit.h"

#include "hostns.h"

#include "os/owner.h"

#include <fcntl.h>
#include <sys/stat.h>

#define SOMEBODY 12345
#define CANNOT 77

static int become(const char *map)
{
	if (!geteuid() && (setgid(SOMEBODY) || setuid(SOMEBODY)))
		return CANNOT;
	/* setuid() made /proc/self root's. */
	prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
	if (unshare(CLONE_NEWUSER))
		return CANNOT;
	return map && !write_file("/proc/self/uid_map", map) ? CANNOT : 0;
}

/* The number outside, whatever it is inside. */
static int numbers(void *arg)
{
	unsigned uid = geteuid() ? geteuid() : SOMEBODY;
	char map[32];
	int err;

	(void)arg;
	snprintf(map, sizeof(map), "7 %u 1", uid);
	err = become(map);
	if (err)
		return err;
	if (geteuid() != 7 || owner_uid() != uid)
		return 1;
	return owner_unknown(7) || !owner_unknown(0) || !owner_unknown(6) ||
	       !owner_unknown(8) || !owner_unknown(65534);
}

/* The numbers of all users, this one too, are the same: 65534. */
static int strangers(void *arg)
{
	const int *fds = arg;
	struct stat st;
	int fd, err = become(NULL);

	if (err)
		return err;
	if (fstat(fds[0], &st) || st.st_uid != geteuid())
		return CANNOT;
	if (owner_private(fds[0], &st))
		return 1;
	fd = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (fd < 0 || fstat(fd, &st))
		return CANNOT;
	if (!owner_private(fd, &st))
		return 2;
	if (fchmod(fd, 0640) || fstat(fd, &st))
		return CANNOT;
	return owner_private(fd, &st) ? 3 : 0;
}

static void check(int status)
{
	if (status == CANNOT) {
		print_message("SKIPPED: no user namespaces here\n");
		skip();
	}
	assert_int_equal(status, 0);
}

static void name_is_the_number_outside(void **state)
{
	(void)state;
	assert_int_equal(owner_uid(), geteuid());
	assert_false(owner_unknown(geteuid()));
	check(in_child(numbers, NULL));
}

static void number_alone_proves_nothing(void **state)
{
	int fd = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

	(void)state;
	if (geteuid()) {
		print_message("SKIPPED: needs files of two users\n");
		skip();
	}
	assert_true(fd >= 0);
	check(in_child(strangers, &fd));
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(name_is_the_number_outside),
		cmocka_unit_test(number_alone_proves_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

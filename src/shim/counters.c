/*
 * counters.c - opens counters of the port, see counters.h
 *
 * Who opens one gets a file in memory with the value of that moment, so whatever
 * reads it, reads it: read(2), stdio, a mapping. Tools also keep it open, and read
 * it again from its beginning: then it has the value of that moment, as the
 * kernel's files do. Only stdio's buffers know nothing of that.
 *
 * A relative path may be a counter's, too, in a directory of the tree. To find out
 * costs a system call, so it is done for names of counters only.
 */
#include "counters.h"

#include "base/sys.h"
#include "counters/counter_file.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define COUNTERS 64 /* open at a time; of others the value stays */

static bool is_name(const char *name)
{
	for (unsigned i = 0; i < counter_names_n; i++)
		if (!strcmp(name, counter_names[i].name))
			return true;
	return false;
}

/* The path of a file in a directory that is open; false: too long, or unknown. */
static bool absolute(int dir, const char *name, char *path, size_t size)
{
	char link[64] = "/proc/self/cwd";
	long len;

	if (dir != AT_FDCWD)
		snprintf(link, sizeof(link), "/proc/self/fd/%d", dir);
	len = syscall(SYS_readlinkat, AT_FDCWD, link, path, size);
	if (len <= 0 || (size_t)len + strlen(name) + 2 > size)
		return false;
	snprintf(path + len, size - (size_t)len, "/%s", name);
	return true;
}

/* Those that are open; what is closed is noticed when its number is another's. */
static struct counter {
	int fd;
	ino_t ino;
	const struct counter_name *file; /* NULL: free */
	unsigned row;
} counters[COUNTERS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
_Atomic bool counters_any;

static bool is_open(const struct counter *c)
{
	struct stat st;

	return c->file && !fstat(c->fd, &st) && st.st_ino == c->ino &&
	       S_ISREG(st.st_mode);
}

static void remember(int fd, const struct counter_name *f, unsigned row)
{
	struct stat st;

	/* It may have been somebody's when this process forked. */
	if (fstat(fd, &st) || pthread_mutex_trylock(&lock))
		return;
	for (unsigned i = 0; i < COUNTERS; i++) {
		if (counters[i].fd != fd && is_open(&counters[i]))
			continue;
		counters[i] = (struct counter){ fd, st.st_ino, f, row };
		atomic_store(&counters_any, true);
		break;
	}
	pthread_mutex_unlock(&lock);
}

/* Opens once more what is open as fd. */
static int open_again(int fd, int flags)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return sys_open(path, flags, 0);
}

static bool write_value(int fd, uint64_t value)
{
	char text[32];
	const int len = snprintf(text, sizeof(text), "%llu\n",
				 (unsigned long long)value);

	/* It never gets shorter. */
	return sys_pwrite(fd, text, (size_t)len, 0) == len;
}

static uint64_t value_of(const struct counter_name *f, unsigned row)
{
	const char *tree = shim_root();

	return tree ? counter_name_value(f, row, tree,
					 secure_getenv("SOFTHCA_RUNDIR")) :
		      0;
}

/* For reading, as the kernel's is. */
static int file_of(const struct counter_name *f, unsigned row, int flags)
{
	int err, fd = -1, made = memfd_create("counter", MFD_CLOEXEC);

	if (made >= 0 && write_value(made, value_of(f, row)))
		fd = open_again(made, O_RDONLY | (flags & O_CLOEXEC));
	err = errno;
	if (made >= 0)
		sys_close(made);
	if (fd >= 0)
		remember(fd, f, row);
	errno = err;
	return fd;
}

void counters_read(int fd, bool from_start)
{
	const int err = errno;
	struct counter c = { 0 };
	int to;

	if (pthread_mutex_trylock(&lock))
		return;
	for (unsigned i = 0; i < COUNTERS; i++)
		if (counters[i].fd == fd && is_open(&counters[i]))
			c = counters[i];
	pthread_mutex_unlock(&lock);
	if (c.file && (from_start || !lseek(fd, 0, SEEK_CUR))) {
		to = open_again(fd, O_WRONLY | O_CLOEXEC);
		if (to >= 0) {
			write_value(to, value_of(c.file, c.row));
			sys_close(to);
		}
	}
	errno = err;
}

/* The type, or the interface, of an entry of the GID table that is empty: the
 * kernel cannot say it. In a tree its file is empty. */
static bool is_no_attr(const char *path)
{
	const char *attrs = strstr(path, "/gid_attrs/");
	struct stat st;

	return attrs &&
	       (!strncmp(attrs + 11, "types/", 6) ||
		!strncmp(attrs + 11, "ndevs/", 6)) &&
	       !stat(path, &st) && S_ISREG(st.st_mode) && !st.st_size;
}

bool counters_open(int dir, const char *path, int flags, int *fd)
{
	const char *tree, *name;
	const struct counter_name *f;
	const int err = errno;
	char full[512];
	unsigned row;

	if (!path)
		return false;
	name = strrchr(path, '/');
	name = name ? name + 1 : path;
	if (name[0] >= '0' && name[0] <= '9' && is_no_attr(path)) {
		errno = EINVAL;
		*fd = -1;
		return true;
	}
	errno = err;
	if (!is_name(name))
		return false;
	tree = shim_root();
	if (tree && path[0] != '/')
		path = absolute(dir, path, full, sizeof(full)) ? full : NULL;
	errno = err;
	if (!tree || !path || strncmp(path, tree, strlen(tree)))
		return false;
	f = counter_name_find(tree, path + strlen(tree), &row);
	if (!f)
		return false;
	if ((flags & O_ACCMODE) == O_RDONLY) {
		*fd = file_of(f, row, flags);
	} else {
		errno = EACCES;
		*fd = -1;
	}
	return true;
}

/*
 * path.h - files whose names the user has given: one for each process of a job,
 * and none that another user owns
 */
#ifndef SOFTHCA_BASE_PATH_H
#define SOFTHCA_BASE_PATH_H

#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* Replaces %p by the process ID. Returns an allocated string, or NULL. */
static inline char *path_expand(const char *path)
{
	const char *from;
	char *out = NULL;
	size_t size;
	FILE *f;

	f = open_memstream(&out, &size);
	if (!f)
		return NULL;
	for (from = path; *from; from++) {
		if (from[0] == '%' && from[1] == 'p') {
			fprintf(f, "%d", (int)getpid());
			from++;
		} else {
			fputc(*from, f);
		}
	}
	if (fclose(f) != 0) {
		free(out);
		return NULL;
	}
	return out;
}

static inline int path_is_ours(uid_t uid)
{
	return uid == geteuid() || !uid;
}

/*
 * Opens a file to write to, which is made if there is none, with mode 0600.
 * flags may have O_TRUNC. In a directory like /tmp somebody else may have made a
 * link of that name, so that we write into a third file, or a file, so that he
 * can read what we write: that is EPERM, unless root's. /dev/stderr is a link of
 * root's; terminals and the like may be anybody's. Returns the descriptor, or
 * -1 with errno.
 */
static inline int path_open_output(const char *path, int flags)
{
	const int create = O_CREAT | O_CLOEXEC | (flags & ~O_TRUNC);
	int fd = sys_open(path, create | O_NOFOLLOW, 0600), err;
	struct stat st;

	if (fd < 0 && errno == ELOOP) {
		if (lstat(path, &st))
			return -1;
		if (!path_is_ours(st.st_uid)) {
			errno = EPERM;
			return -1;
		}
		fd = sys_open(path, create, 0600);
	}
	if (fd < 0)
		return -1;
	if (fstat(fd, &st))
		goto err_close;
	errno = EPERM;
	if (!S_ISCHR(st.st_mode) && !path_is_ours(st.st_uid))
		goto err_close;
	if (S_ISREG(st.st_mode) && flags & O_TRUNC && ftruncate(fd, 0))
		goto err_close;
	return fd;

err_close:
	err = errno;
	sys_close(fd);
	errno = err;
	return -1;
}

#endif

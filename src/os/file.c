/*
 * file.c - files that a user names, see file.h
 */
#include "file.h"

#include "base/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEP 65536u

/* Larger by a step, or by as much as it has. */
static char *grow(char *text, size_t *size, size_t most)
{
	size_t more = *size ? 2 * *size : STEP;
	char *p;

	if (more > most)
		more = most;
	p = realloc(text, more);
	if (p)
		*size = more;
	else
		free(text);
	return p;
}

char *file_read_all(const char *path, size_t max, size_t *len)
{
	const int fd = sys_open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
	size_t size = 0;
	char *text = fd >= 0 ? grow(NULL, &size, max + 1) : NULL;
	ssize_t got = 1;
	int err;

	*len = 0;
	while (text && *len <= max &&
	       (got = sys_read(fd, text + *len, size - *len)) > 0) {
		*len += (size_t)got;
		if (*len == size && *len <= max)
			text = grow(text, &size, max + 1);
	}
	err = errno;
	if (got < 0) {
		free(text);
		text = NULL;
	}
	if (fd >= 0)
		sys_close(fd);
	errno = err;
	return text;
}

const char *file_and_word(const char *value, char path[PATH_MAX])
{
	const char *at = strrchr(value, '@');

	if (at && strchr(at, '/'))
		at = NULL;
	snprintf(path, PATH_MAX, "%.*s",
		 at ? (int)(at - value) : (int)strlen(value), value);
	return at ? at + 1 : NULL;
}

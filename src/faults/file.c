/*
 * file.c - scripts from files, and what has happened into files
 *
 * The last line of a log is written again, in place, as long as rules like its
 * own act on one after the other; it only grows. So a log of a second without
 * any packet is one line, and it is right at any moment.
 */
#include "faults.h"

#include "base/path.h"
#include "base/sys.h"
#include "os/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOG_MAX (8u << 20)

struct faults *faults_load(const char *path, char *why, size_t size)
{
	struct faults *f;
	unsigned line;
	char *text;
	size_t len;
	int n;

	text = file_read_all(path, FAULTS_MAX_BYTES, &len);
	if (!text) {
		snprintf(why, size, "%s: %s", path, sys_strerror(errno));
		return NULL;
	}
	n = snprintf(why, size, "%s: ", path);
	if (n < 0 || (size_t)n >= size)
		n = 0;
	f = faults_parse(text, len, &line, why + n, size - (size_t)n);
	if (!f && line) {
		char rest[512];

		snprintf(rest, sizeof(rest), "%s", why + n);
		snprintf(why, size, "%s:%u: %s", path, line, rest);
	}
	free(text);
	return f;
}

/* ---- the log ----------------------------------------------------------- */

static int put(struct faults_log *l, const char *text, size_t len, uint64_t at)
{
	ssize_t n;

	while (len) {
		n = sys_pwrite(l->fd, text, len, at);
		if (n <= 0 && errno != EINTR)
			return n ? -errno : -EIO;
		if (n > 0) {
			text += n;
			at += (uint64_t)n;
			len -= (size_t)n;
		}
	}
	return 0;
}

int faults_log_open(struct faults_log *l, const char *path,
		    const struct faults *f)
{
	char *name = path_expand(path), head[160];
	int n, err;

	*l = (struct faults_log){ .fd = -1 };
	if (!name)
		return -ENOMEM;
	l->fd = path_open_output(name, O_WRONLY | O_TRUNC | O_NONBLOCK);
	err = l->fd < 0 ? -errno : 0;
	free(name);
	if (err)
		return err;
	n = snprintf(
		head, sizeof(head),
		"# What softhca run --faults has done. As a script it does "
		"so again.\nseed %llu\n",
		(unsigned long long)f->seed);
	err = put(l, head, (size_t)n, 0);
	l->end = (uint64_t)n;
	return err;
}

int faults_log_add(struct faults_log *l, const struct fault_rule *r, uint64_t n)
{
	/* Rules that select the same count the same. */
	const bool more = l->rule && n && n == l->last.to + 1 &&
			  !memcmp(&l->rule->what, &r->what, sizeof(r->what));
	char text[512];
	size_t len;

	if (l->fd < 0)
		return 0;
	if (!more) {
		l->end += l->len;
		l->last.from = n;
	}
	l->rule = r;
	l->last.to = n;
	/* A rule's text is short: it has few words, each with a limit. */
	len = (size_t)fault_text(r, text, sizeof(text) - 64);
	if (n)
		len += (size_t)sprintf(text + len, " nth=%llu",
				       (unsigned long long)l->last.from);
	if (more)
		len += (size_t)sprintf(text + len, "-%llu",
				       (unsigned long long)n);
	text[len++] = '\n';
	l->len = len;
	if (l->end + len > LOG_MAX)
		return -EFBIG;
	return put(l, text, len, l->end);
}

void faults_log_close(struct faults_log *l)
{
	if (l->fd >= 0)
		sys_close(l->fd);
	l->fd = -1;
}

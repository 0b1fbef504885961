/*
 * sysfs_dir.c - small trees of files that nothing changes, in a directory of
 * this user's own
 *
 * The name of a tree is a hash of its contents: processes with the same
 * contents share one, nothing in it ever changes, and a program keeps the tree
 * that it started with.
 *
 * Trees live in a directory that belongs to this user alone, inside one that
 * may belong to everybody. It is trusted only if it is a directory of ours that
 * others cannot enter, and everything below is reached through its descriptor.
 */
#include "sysfs_dir.h"
#include "base/hash64.h"
#include "base/sys.h"
#include "counter_file.h"
#include "os/owner.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define TREE_NAME_LEN 16 /* hexadecimal digits */
/* When there are more than this many, those last used over an hour ago go. */
#define TREE_KEEP 16
#define TREE_KEEP_SECONDS 3600
/* And then counters that nobody has added to for so long. */
#define COUNTERS_KEEP_SECONDS (24 * 3600)

/* Contents that have been written, and where: a file with the same is another name of
 * that one, since each takes a page where memory is the disk. */
#define TEXTS 512

struct text {
	uint64_t hash; /* 0: free */
	char *path, *text;
};

/* Takes one file (or link) of a tree: path is relative to its root. */
struct sysfs_dir {
	int (*file)(struct sysfs_dir *t, const char *path, const char *text);
	int (*link)(struct sysfs_dir *t, const char *path, const char *target);
	uint64_t hash;
	struct text *texts; /* TEXTS */
	size_t ntexts;
	int dir;
	int err; /* the first one; nothing is taken after it */
};

void sysfs_dir_file(struct sysfs_dir *t, const char *dir, const char *name,
		    const char *fmt, ...)
{
	char path[512], text[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text) - 1, fmt, ap);
	va_end(ap);
	if (*text)
		strcat(text, "\n");
	snprintf(path, sizeof(path), "%s/%s", dir, name);
	if (!t->err)
		t->err = t->file(t, path, text);
}

void sysfs_dir_link(struct sysfs_dir *t, const char *dir, const char *name,
		    const char *target)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	if (!t->err)
		t->err = t->link(t, path, target);
}

/* Of a text, its end included. */
static uint64_t hash_more(uint64_t hash, const char *text)
{
	return hash64_bytes(hash, text, strlen(text) + 1);
}

static int hash_entry(struct sysfs_dir *t, const char *path, const char *text)
{
	t->hash = hash_more(hash_more(t->hash, path), text);
	return 0;
}

static int make_parents(int dir, const char *path)
{
	char part[512];
	const char *p;

	for (p = strchr(path, '/'); p; p = strchr(p + 1, '/')) {
		snprintf(part, sizeof(part), "%.*s", (int)(p - path), path);
		if (mkdirat(dir, part, 0700) && errno != EEXIST)
			return -errno;
	}
	return 0;
}

/* Where its text is, or is to be; NULL: there is no room to note it. */
static struct text *text_slot(struct sysfs_dir *t, const char *text)
{
	const uint64_t hash = hash_more(HASH64_BEGIN, text) | 1;

	for (size_t i = hash % TEXTS;; i = (i + 1) % TEXTS) {
		struct text *s = &t->texts[i];

		if (!s->hash && t->ntexts >= TEXTS / 2)
			return NULL;
		if (!s->hash || (s->hash == hash && !strcmp(s->text, text))) {
			s->hash = hash;
			return s;
		}
	}
}

static void text_note(struct sysfs_dir *t, struct text *s, const char *path,
		      const char *text)
{
	s->path = strdup(path);
	s->text = strdup(text);
	if (s->path && s->text) {
		t->ntexts++;
		return;
	}
	free(s->path);
	free(s->text);
	*s = (struct text){ 0 };
}

static void texts_free(struct sysfs_dir *t)
{
	for (size_t i = 0; t->texts && i < TEXTS; i++) {
		free(t->texts[i].path);
		free(t->texts[i].text);
	}
	free(t->texts);
	t->texts = NULL;
}

static int write_file(struct sysfs_dir *t, const char *path, const char *text)
{
	size_t len = strlen(text);
	ssize_t written;
	int fd, err = 0;

	fd = sys_openat(t->dir, path,
			O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
			0600);
	if (fd < 0)
		return -errno;
	written = sys_write(fd, text, len);
	if (written != (ssize_t)len)
		err = written < 0 ? -errno : -EIO;
	sys_close(fd);
	return err;
}

static int write_entry(struct sysfs_dir *t, const char *path, const char *text)
{
	int err = make_parents(t->dir, path);
	struct text *same;

	if (err)
		return err;
	same = t->texts ? text_slot(t, text) : NULL;
	/* Not on every file system, and not any number. */
	if (same && same->path && !linkat(t->dir, same->path, t->dir, path, 0))
		return 0;
	err = write_file(t, path, text);
	if (same && !same->path)
		text_note(t, same, path, text);
	return err;
}

static int write_link(struct sysfs_dir *t, const char *path, const char *target)
{
	int err = make_parents(t->dir, path);

	if (!err && symlinkat(target, t->dir, path))
		err = -errno;
	return err;
}

/* Removes the tree called name in dir; a link is removed, not followed. */
static void remove_tree(int dir, const char *name, int depth)
{
	struct dirent *e;
	DIR *d;
	int fd;

	if (!unlinkat(dir, name, 0) || depth > 16)
		return;
	fd = sys_openat(dir, name,
			O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
	if (fd < 0)
		return;
	d = fdopendir(fd);
	if (!d) {
		sys_close(fd);
		return;
	}
	while ((e = readdir(d)))
		if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
			remove_tree(fd, e->d_name, depth + 1);
	closedir(d);
	unlinkat(dir, name, AT_REMOVEDIR);
}

/* Neither now nor for long. */
static bool tree_is_unused(int home, const char *name)
{
	const int fd = sys_openat(
		home, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0);
	struct stat st;
	bool is;

	if (fd < 0)
		return false;
	is = !fstat(fd, &st) && S_ISREG(st.st_mode) &&
	     st.st_mtime < time(NULL) - COUNTERS_KEEP_SECONDS &&
	     !flock(fd, LOCK_EX | LOCK_NB);
	sys_close(fd);
	return is;
}

/* Files that lie beside the trees. */
static bool is_counters_name(const char *name)
{
	static const char *const begin[] = { COUNTER_FILE_NAME,
					     SILENT_FILE_NAME,
					     FABRIC_FILE_NAME };

	for (size_t i = 0; i < sizeof(begin) / sizeof(begin[0]); i++)
		if (!strncmp(name, begin[i], strlen(begin[i])))
			return true;
	return false;
}

/* Of a network namespace; those of one that is gone have nobody to use them. */
static void remove_old_counters(int home)
{
	struct dirent *e;
	DIR *d;
	int fd;

	fd = sys_openat(home, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
	d = fd < 0 ? NULL : fdopendir(fd);
	while (d && (e = readdir(d)))
		if (is_counters_name(e->d_name) &&
		    tree_is_unused(home, e->d_name))
			unlinkat(home, e->d_name, 0);
	if (d)
		closedir(d);
	else if (fd >= 0)
		sys_close(fd);
}

static bool is_tree_name(const char *name)
{
	return strspn(name, "0123456789abcdef") == TREE_NAME_LEN &&
	       name[TREE_NAME_LEN] == '\0';
}

/* Calls fn, if any, for trees and half-made ones; returns their number. */
static size_t for_each_tree(int home, void (*fn)(int home, const char *name))
{
	struct dirent *e;
	size_t n = 0;
	DIR *d;
	int fd;

	fd = sys_openat(home, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
	d = fd < 0 ? NULL : fdopendir(fd);
	if (!d) {
		if (fd >= 0)
			sys_close(fd);
		return 0;
	}
	while ((e = readdir(d))) {
		if (!is_tree_name(e->d_name) && strncmp(e->d_name, "new.", 4))
			continue;
		n++;
		if (fn)
			fn(home, e->d_name);
	}
	closedir(d);
	return n;
}

size_t sysfs_dir_count(int home)
{
	return for_each_tree(home, NULL);
}

static void remove_old(int home, const char *name)
{
	struct stat st;

	if (fstatat(home, name, &st, AT_SYMLINK_NOFOLLOW) ||
	    st.st_mtime > time(NULL) - TREE_KEEP_SECONDS)
		return;
	remove_tree(home, name, 0);
}

/*
 * Opens home, the directory of this user's trees in base. A user who may
 * rename entries of base could replace it, so base must be ours, root's, or
 * sticky.
 */
static int open_home(const char *base, const char *home)
{
	struct stat st;
	int dir, fd, err;

	dir = sys_open(base, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
	if (dir < 0)
		return -errno;
	if (fstat(dir, &st)) {
		err = -errno;
		goto out;
	}
	err = -EPERM;
	/* In a user namespace root and all others outside have one ID. */
	if (st.st_uid != geteuid() && st.st_uid != 0 &&
	    !(owner_unknown(st.st_uid) && (st.st_mode & S_ISVTX)))
		goto out;
	if ((st.st_mode & 022) && !(st.st_mode & S_ISVTX))
		goto out;
	if (mkdirat(dir, home, 0700) && errno != EEXIST) {
		err = -errno;
		goto out;
	}
	fd = sys_openat(dir, home,
			O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
	if (fd < 0) {
		err = -errno;
		goto out;
	}
	err = fd;
	if (fstat(fd, &st))
		err = -errno;
	else if (!owner_private(fd, &st))
		err = -EPERM;
	else if (faccessat(fd, ".", W_OK | X_OK, AT_EACCESS))
		err = -errno;
	if (err < 0)
		sys_close(fd);
out:
	sys_close(dir);
	return err;
}

int sysfs_dir_home(char home[PATH_MAX], char *why, size_t why_size)
{
	const char *const bases[] = { secure_getenv("SOFTHCA_RUNDIR"),
				      secure_getenv("XDG_RUNTIME_DIR"),
				      "/dev/shm", "/tmp" };
	char name[64], real[PATH_MAX];
	size_t i, used = 0;
	int fd = -ENOENT;

	snprintf(name, sizeof(name), "softhca-sysfs-%u", owner_uid());
	why[0] = '\0';
	for (i = 0; i < sizeof(bases) / sizeof(bases[0]); i++) {
		if (!bases[i] || bases[i][0] != '/' ||
		    strlen(bases[i]) > PATH_MAX / 2)
			continue;
		snprintf(home, PATH_MAX, "%s/%s", bases[i], name);
		fd = open_home(bases[i], name);
		if (fd >= 0) {
			/* As realpath(3) will name what is in it (shim.c). */
			if (realpath(home, real))
				memcpy(home, real, strlen(real) + 1);
			return fd;
		}
		if (used < why_size)
			used += (size_t)snprintf(
				why + used, why_size - used, "%s%s: %s",
				used ? "; " : "", home,
				fd == -EPERM ? "not private to this user" :
					       sys_strerror(-fd));
	}
	return fd;
}

/* A name that nobody else uses, also in a directory that several PID namespaces
 * share. */
static void half_made(char name[64])
{
	unsigned long long number = 0;

	if (!sys_random(&number, sizeof(number)))
		number = (unsigned long long)getpid();
	snprintf(name, 64, "new.%016llx", number);
}

int sysfs_dir_make(sysfs_dir_describe *describe, const void *arg,
		   char path[PATH_MAX], char *reason, size_t reason_size)
{
	struct sysfs_dir sum = { .file = hash_entry,
				 .link = hash_entry,
				 .hash = HASH64_BEGIN };
	struct sysfs_dir disk = { .file = write_entry, .link = write_link };
	char home[PATH_MAX], name[TREE_NAME_LEN + 1], half[64], none[512];
	int fd, err;

	fd = sysfs_dir_home(home, none, sizeof(none));
	if (fd < 0) {
		snprintf(reason, reason_size, "no place to write to: %s", none);
		return fd;
	}
	describe(&sum, arg);
	snprintf(name, sizeof(name), "%016llx", (unsigned long long)sum.hash);
	err = sum.err;
	if (!err && snprintf(path, PATH_MAX, "%s/%s", home, name) >= PATH_MAX)
		err = -ENAMETOOLONG;
	/* Marks it as used, if it exists. */
	if (err || !utimensat(fd, name, NULL, AT_SYMLINK_NOFOLLOW))
		goto out;

	if (for_each_tree(fd, NULL) > TREE_KEEP) {
		for_each_tree(fd, remove_old);
		remove_old_counters(fd);
	}
	half_made(half);
	if (mkdirat(fd, half, 0700)) {
		err = -errno;
		goto out;
	}
	disk.dir = sys_openat(
		fd, half, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
	if (disk.dir < 0) {
		err = -errno;
	} else {
		disk.texts = calloc(TEXTS, sizeof(*disk.texts));
		describe(&disk, arg);
		texts_free(&disk);
		sys_close(disk.dir);
		err = disk.err;
	}
	/* Another process may have made the same one meanwhile. */
	if (!err && renameat(fd, half, fd, name) && errno != ENOTEMPTY &&
	    errno != EEXIST)
		err = -errno;
	remove_tree(fd, half, 0);
out:
	sys_close(fd);
	if (err)
		snprintf(reason, reason_size, "cannot write %s/%s: %s", home,
			 name, sys_strerror(-err));
	return err;
}

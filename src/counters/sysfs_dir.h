/*
 * sysfs_dir.h - small trees of files that nothing changes, in a directory of
 * this user's own
 */
#ifndef SOFTHCA_COUNTERS_SYSFS_DIR_H
#define SOFTHCA_COUNTERS_SYSFS_DIR_H

#include <limits.h>
#include <stddef.h>
#include <sys/types.h>

struct sysfs_dir;

/*
 * Says what is in a tree, by the two functions below. Called twice, and must say
 * the same both times.
 */
typedef void sysfs_dir_describe(struct sysfs_dir *t, const void *arg);

/* A file dir/name with this text and a newline, of up to 510 bytes, or, if there
 * is no text, empty; dir is
 * relative to the root of the tree, and made if need be. */
void sysfs_dir_file(struct sysfs_dir *t, const char *dir, const char *name,
		    const char *fmt, ...) __attribute__((format(printf, 4, 5)));
void sysfs_dir_link(struct sysfs_dir *t, const char *dir, const char *name,
		    const char *target);

/*
 * Writes the tree, unless it is there, and its path into path. Returns 0, or
 * -errno with a sentence in reason.
 */
int sysfs_dir_make(sysfs_dir_describe *describe, const void *arg,
		   char path[PATH_MAX], char *reason, size_t reason_size);

/*
 * The directory that holds this user's trees, made if need be, and a
 * descriptor for it; or -errno, with the reason.
 */
int sysfs_dir_home(char home[PATH_MAX], char *reason, size_t reason_size);

/* How many trees lie in it. */
size_t sysfs_dir_count(int home_fd);

#endif

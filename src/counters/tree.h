/*
 * tree.h - small trees of files that nothing changes, in a directory of this
 * user's own
 */
#ifndef SOFTHCA_COUNTERS_TREE_H
#define SOFTHCA_COUNTERS_TREE_H

#include <limits.h>
#include <stddef.h>
#include <sys/types.h>

struct tree;

/*
 * Says what is in a tree, by the two functions below. Called twice, and must say
 * the same both times.
 */
typedef void tree_describe(struct tree *t, const void *arg);

/* A file dir/name with this text and a newline, of up to 510 bytes; dir is
 * relative to the root of the tree, and made if need be. */
void tree_file(struct tree *t, const char *dir, const char *name,
	       const char *fmt, ...) __attribute__((format(printf, 4, 5)));
void tree_link(struct tree *t, const char *dir, const char *name,
	       const char *target);

/*
 * Writes the tree, unless it is there, and its path into path. Returns 0, or
 * -errno with a sentence in reason.
 */
int tree_make(tree_describe *describe, const void *arg, char path[PATH_MAX],
	      char *reason, size_t reason_size);

/*
 * The directory that holds this user's trees, made if need be, and a
 * descriptor for it; or -errno, with the reason.
 */
int tree_home(char home[PATH_MAX], char *reason, size_t reason_size);

/* How many trees lie in it. */
size_t tree_count(int home_fd);

#endif

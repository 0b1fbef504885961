/*
 * tree.h - the files that libsofthca-shim.so shows a program
 */
#ifndef SOFTHCA_CLI_TREE_H
#define SOFTHCA_CLI_TREE_H

#include <limits.h>
#include <stddef.h>
#include <sys/types.h>

struct hca_list;

/*
 * Writes the tree for these devices below a directory of this user's own, and
 * into path its root: what SOFTHCA_SYSFS should be. path/lib is a link to
 * libdir. Returns 0 or -errno, having reported why on stderr.
 */
int tree_make(const struct hca_list *l, const char *libdir,
	      char path[PATH_MAX]);

/*
 * The directory that holds this user's trees, made if need be, and a
 * descriptor for it; or -errno, with the reason in why.
 */
int tree_home(char home[PATH_MAX], char *why, size_t why_size);

/* How many trees lie in it. */
size_t tree_count(int home_fd);

#endif

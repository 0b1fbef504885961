/*
 * owner.h - whose a file in a shared directory is
 *
 * In a user namespace of one's own everybody is user 0, as is the real one: a
 * file's name has to have the number outside. And owners that the namespace does
 * not know are all shown as one number (65534).
 */
#ifndef SOFTHCA_OS_OWNER_H
#define SOFTHCA_OS_OWNER_H

#include <stdbool.h>
#include <sys/stat.h>

/*
 * This user's number for names: the one that the parent of this user namespace
 * knows, so that it is the same inside and outside. Unique on the host but in
 * a namespace within a namespace.
 */
unsigned owner_uid(void);

/* Whether the number a file shows may stand for any user outside. */
bool owner_unknown(uid_t uid);

/* Whether fd is this user's file (or directory) and nobody else may enter or
 * change it; st is what fstat(2) says of it. Not by the number alone. */
bool owner_private(int fd, const struct stat *st);

#endif

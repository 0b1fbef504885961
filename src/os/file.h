/*
 * file.h - files that a user names
 */
#ifndef SOFTHCA_OS_FILE_H
#define SOFTHCA_OS_FILE_H

#include <limits.h>
#include <stddef.h>

/* All of a file, however long it says it is, up to max + 1 bytes, by which the
 * caller sees that it is longer; *len of them, in memory of malloc(3). NULL with
 * errno. */
char *file_read_all(const char *path, size_t max, size_t *len);

/*
 * "FILE@WORD": the file's part; returns the word, NULL: there is none. A file's
 * name may have an @ where a slash follows.
 */
const char *file_and_word(const char *value, char path[PATH_MAX]);

#endif

/*
 * path.h - names of files that each process of a job gets of its own
 */
#ifndef SOFTHCA_BASE_PATH_H
#define SOFTHCA_BASE_PATH_H

#include <stdio.h>
#include <stdlib.h>
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

#endif

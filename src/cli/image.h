/*
 * image.h - what softhca writes beside the files of CRIU, and the builds in it
 *
 * A process is restored with the libraries that it had: their code and data are in
 * its memory. So the image has the path and a sum of each of ours.
 */
#ifndef SOFTHCA_CLI_IMAGE_H
#define SOFTHCA_CLI_IMAGE_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define IMAGE_NAME "softhca"
#define IMAGE_PROCESSES 256
#define IMAGE_LIBRARIES 8
#define IMAGE_OPTIONS 8

struct image {
	size_t n; /* processes, the first being the parent of all */
	struct image_process {
		pid_t pid;
		int done; /* its descriptor (counters/suspend_ask.h); -1: it
			   * was not suspended, as it has no device */
	} process[IMAGE_PROCESSES];
	size_t nlibraries;
	struct image_library {
		char path[PATH_MAX];
		uint64_t sum;
	} library[IMAGE_LIBRARIES];
	size_t noptions;
	char option[IMAGE_OPTIONS][32]; /* of criu restore */
	char criu[32]; /* the version that has saved it */
	uint64_t since_ns; /* CLOCK_REALTIME when it was suspended */
};

/* Adds the libraries of ours that a process has. 0 or -errno: *path is one that is
 * not the file any more that the process has. */
int image_add_libraries(struct image *im, pid_t pid, char path[PATH_MAX]);
/* The first that is not here as it was there; NULL: all are. */
const struct image_library *image_other_library(const struct image *im);

/* In dir; 0 or -errno, -EPROTO: it is none of this version. */
int image_write(const struct image *im, const char *dir);
int image_read(struct image *im, const char *dir);

#endif

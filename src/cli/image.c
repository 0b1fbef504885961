/*
 * image.c - the file "softhca" of an image: text, a line for each fact
 */
#include "cli/image.h"
#include "base/hash64.h"
#include "base/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEAD "softhca image 1 of " SOFTHCA_VERSION

/* Libraries */

/* Of a file's bytes; 0: it cannot be read. */
static uint64_t sum_of(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	uint64_t sum = 0, word;
	const char *map;
	struct stat st;
	size_t size, i;

	if (fd < 0)
		return 0;
	if (fstat(fd, &st) || st.st_size <= 0) {
		close(fd);
		return 0;
	}
	size = (size_t)st.st_size;
	map = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
	close(fd);
	if (map == MAP_FAILED)
		return 0;
	sum = hash64(size);
	for (i = 0; i < size; i += sizeof(word)) {
		word = 0;
		memcpy(&word, map + i,
		       size - i < sizeof(word) ? size - i : sizeof(word));
		sum = hash64(sum + HASH64_STEP + word);
	}
	munmap((void *)(uintptr_t)map, size);
	return sum ? sum : 1;
}

static bool is_ours(const char *path)
{
	static const char *const names[] = {
		"libsofthca.so.0", "libsofthca-",    "libibverbs.so.1",
		"librdmacm.so.1",  "libibumad.so.3", "librspreload.so"
	};
	const char *name = strrchr(path, '/');

	for (size_t i = 0; name && i < sizeof(names) / sizeof(names[0]); i++)
		if (!strncmp(name + 1, names[i], strlen(names[i])))
			return true;
	return false;
}

static bool has_library(const struct image *im, const char *path)
{
	for (size_t i = 0; i < im->nlibraries; i++)
		if (!strcmp(im->library[i].path, path))
			return true;
	return false;
}

int image_add_libraries(struct image *im, pid_t pid, char path[PATH_MAX])
{
	static const char deleted[] = " (deleted)";
	char name[64], line[PATH_MAX + 128], file[PATH_MAX + 64], *at;
	struct image_library *l;
	int err = 0;
	FILE *f;

	snprintf(name, sizeof(name), "/proc/%d/maps", (int)pid);
	f = fopen(name, "re");
	if (!f)
		return -errno;
	while (!err && fgets(line, sizeof(line), f)) {
		line[strcspn(line, "\n")] = '\0';
		at = strchr(line, '/');
		if (!at || !is_ours(at))
			continue;
		snprintf(path, PATH_MAX, "%.4000s", at);
		if (strlen(at) > strlen(deleted) &&
		    !strcmp(at + strlen(at) - strlen(deleted), deleted)) {
			path[strlen(path) - strlen(deleted)] = '\0';
			err = -ESTALE;
			break;
		}
		if (has_library(im, at))
			continue;
		if (im->nlibraries == IMAGE_LIBRARIES) {
			err = -E2BIG;
			break;
		}
		l = &im->library[im->nlibraries++];
		snprintf(l->path, sizeof(l->path), "%.4000s", at);
		snprintf(file, sizeof(file), "/proc/%d/root%.4000s", (int)pid,
			 at);
		l->sum = sum_of(file);
		if (!l->sum)
			err = -ENOENT;
	}
	fclose(f);
	return err;
}

const struct image_library *image_other_library(const struct image *im)
{
	for (size_t i = 0; i < im->nlibraries; i++)
		if (sum_of(im->library[i].path) != im->library[i].sum)
			return &im->library[i];
	return NULL;
}

/* The file */

static int path_of(char path[PATH_MAX], const char *dir)
{
	return snprintf(path, PATH_MAX, "%s/" IMAGE_NAME, dir) >= PATH_MAX ?
		       -ENAMETOOLONG :
		       0;
}

int image_write(const struct image *im, const char *dir)
{
	char path[PATH_MAX];
	int fd, err = path_of(path, dir);
	FILE *f;

	if (err)
		return err;
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	f = fd < 0 ? NULL : fdopen(fd, "w");
	if (!f)
		return -errno;
	fprintf(f, HEAD "\n");
	fprintf(f, "criu %s\nsince %llu\n", im->criu,
		(unsigned long long)im->since_ns);
	for (size_t i = 0; i < im->n; i++)
		fprintf(f, "process %d %d\n", (int)im->process[i].pid,
			im->process[i].done);
	for (size_t i = 0; i < im->nlibraries; i++)
		fprintf(f, "library %016llx %s\n",
			(unsigned long long)im->library[i].sum,
			im->library[i].path);
	for (size_t i = 0; i < im->noptions; i++)
		fprintf(f, "option %s\n", im->option[i]);
	fprintf(f, "end\n");
	if (ferror(f))
		err = -EIO;
	if (fclose(f) && !err)
		err = -errno;
	return err;
}

/* False: it is not understood. */
static bool parse(struct image *im, const char *line)
{
	unsigned long long n;
	int pid, done, at = 0;

	if (sscanf(line, "criu %31s", im->criu) == 1)
		return true;
	if (sscanf(line, "since %llu", &n) == 1) {
		im->since_ns = n;
		return true;
	}
	if (sscanf(line, "process %d %d", &pid, &done) == 2) {
		if (im->n == IMAGE_PROCESSES || pid <= 1)
			return false;
		im->process[im->n].pid = pid;
		im->process[im->n++].done = done;
		return true;
	}
	if (sscanf(line, "library %llx %n", &n, &at) == 1 && at) {
		if (im->nlibraries == IMAGE_LIBRARIES || line[at] != '/')
			return false;
		im->library[im->nlibraries].sum = n;
		snprintf(im->library[im->nlibraries++].path, PATH_MAX, "%s",
			 line + at);
		return true;
	}
	if (im->noptions == IMAGE_OPTIONS ||
	    sscanf(line, "option %31s", im->option[im->noptions]) != 1 ||
	    strncmp(im->option[im->noptions], "--", 2))
		return false;
	im->noptions++;
	return true;
}

int image_read(struct image *im, const char *dir)
{
	char path[PATH_MAX], line[PATH_MAX + 64];
	int err = path_of(path, dir);
	bool head = false, end = false;
	FILE *f;

	memset(im, 0, sizeof(*im));
	if (err)
		return err;
	f = fopen(path, "re");
	if (!f)
		return -errno;
	while (!err && !end && fgets(line, sizeof(line), f)) {
		line[strcspn(line, "\n")] = '\0';
		if (!head)
			err = strcmp(line, HEAD) ? -EPROTO : 0;
		else if (!strcmp(line, "end"))
			end = true;
		else if (!parse(im, line))
			err = -EPROTO;
		head = true;
	}
	if (!err && (!end || !im->n))
		err = -EPROTO;
	fclose(f);
	return err;
}

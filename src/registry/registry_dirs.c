/*
 * registry_dirs.c - where registries are
 *
 * Separate from the rest for code that needs nothing else of them: the shim is
 * loaded into every program, and loads no more than it must.
 */
#include "registry.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/*
 * Where nobody else can put anything: programs of one user agree on it though
 * some are started without the variable, since it is mostly the same folder.
 */
static const char *runtime_dir(void)
{
	static _Thread_local char path[sizeof("/run/user/") + 10];
	const char *dir = secure_getenv("XDG_RUNTIME_DIR");

	if (dir && *dir)
		return dir;
	snprintf(path, sizeof(path), "/run/user/%u", (unsigned)geteuid());
	return path;
}

/* The directory that is named, or NULL. */
static const char *named_dir(const char *dir)
{
	if (!dir)
		dir = secure_getenv("SOFTHCA_RUNDIR");
	return dir && *dir ? dir : NULL;
}

uint64_t registry_netns(void)
{
	struct stat st;

	return stat("/proc/self/ns/net", &st) ? 0 : st.st_ino;
}

bool registry_is_named(const char *dir)
{
	return named_dir(dir) != NULL;
}

unsigned long long registry_number(const char *dir)
{
	return named_dir(dir) ? 0 : registry_netns();
}

size_t registry_dirs(const char *dir, const char *dirs[REGISTRY_DIRS])
{
	const char *const usual[REGISTRY_DIRS] = { "/dev/shm", runtime_dir(),
						   "/tmp" };
	size_t n = 0;

	dir = named_dir(dir);
	if (dir) {
		dirs[0] = dir;
		return 1;
	}
	for (size_t i = 0; i < REGISTRY_DIRS; i++)
		dirs[n++] = usual[i];
	return n;
}

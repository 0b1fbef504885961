/*
 * registry_dirs.c - where registries are
 *
 * For those, too, who have nothing else to do with them: the shim is loaded into
 * every program, and loads no more than it must.
 */
#include "registry.h"

#include <stdlib.h>

size_t registry_dirs(const char *dir, const char *dirs[REGISTRY_DIRS])
{
	const char *const usual[REGISTRY_DIRS] = {
		"/dev/shm", secure_getenv("XDG_RUNTIME_DIR"), "/tmp"
	};
	size_t n = 0;

	if (!dir)
		dir = secure_getenv("SOFTHCA_RUNDIR");
	if (dir && *dir)
		dirs[n++] = dir;
	if (n)
		return n;
	for (size_t i = 0; i < REGISTRY_DIRS; i++)
		if (usual[i] && *usual[i])
			dirs[n++] = usual[i];
	return n;
}

/*
 * libdir.c - finds the directory of our libraries, and loads them
 */
#include "cli/cli.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int libdir_find(char libdir[PATH_MAX])
{
	/* The installation first: in a prefix like /usr, ../lib has the
	 * distribution's libraries. No other package ships a shim. */
	static const char *const places[] = { "../lib/softhca", "../lib" };
	char exe[PATH_MAX], path[PATH_MAX + 64], *slash;
	ssize_t len;
	size_t i;

	libdir[0] = '\0';
	len = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
	if (len < 0)
		return -errno;
	exe[len] = '\0';
	slash = strrchr(exe, '/');
	if (!slash)
		return -ENOENT;
	*slash = '\0';
	for (i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		snprintf(path, sizeof(path), "%s/%s/libsofthca-shim.so", exe,
			 places[i]);
		if (access(path, R_OK))
			continue;
		*strrchr(path, '/') = '\0';
		if (realpath(path, libdir))
			return 0;
	}
	libdir[0] = '\0';
	return -ENOENT;
}

int libdir_load(const char *libdir, const char *soname,
		const struct libdir_symbol *symbols, size_t count, char *why,
		size_t why_size)
{
	char path[PATH_MAX + 64];
	void *lib, *sym;
	size_t i;

	snprintf(path, sizeof(path), "%s/%s", libdir, soname);
	lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!lib) {
		snprintf(why, why_size, "%s", dlerror());
		return -ELIBACC;
	}
	for (i = 0; i < count; i++) {
		sym = dlsym(lib, symbols[i].name);
		if (!sym) {
			snprintf(why, why_size, "%s has no %s", path,
				 symbols[i].name);
			return -ELIBBAD;
		}
		memcpy(symbols[i].slot, &sym, sizeof(sym));
	}
	/* Each other they find by this node, so the loader refuses a mixture. */
	if (!strcmp(soname, "libsofthca.so.0") &&
	    !dlvsym(lib, "shca_sysfs_make", SOFTHCA_NODE)) {
		snprintf(why, why_size, "%s is not of version %s, which this "
			 "softhca is", path, SOFTHCA_VERSION);
		return -ELIBBAD;
	}
	return 0;
}

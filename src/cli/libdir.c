/*
 * libdir.c - finds the directory of our libraries, and loads them
 */
#include "cli/cli.h"
#include "cli/elf.h"

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
		return errno == ENOENT ? -ESRCH : -errno;
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

/*
 * Whether what soname leads to are whole files: the loader dies of one whose end
 * is missing.
 */
static int check_files(const char *libdir, const char *soname,
		       struct libdir_why *why)
{
	static const char *const none[] = { NULL };
	const char *const names[] = { "libsofthca.so.0", "libibverbs.so.1",
				      soname };
	char path[PATH_MAX + 64];
	struct elf e;
	size_t i;
	int err;

	for (i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		snprintf(path, sizeof(path), "%s/%s", libdir, names[i]);
		err = elf_open(&e, path, none);
		if (err) {
			snprintf(why->text, sizeof(why->text), "%s: %s", path,
				 err == -ENOEXEC ?
					 "damaged: not a complete library" :
					 strerror(-err));
			return err;
		}
		elf_close(&e);
	}
	return 0;
}

/*
 * Looks for the library of the system that libsofthca.so.0 needs and does not
 * get. The loader names it, but not for whom it is, or where to get it.
 */
static void check_needed(const char *libdir, struct libdir_why *why)
{
	static const char *const none[] = { NULL };
	char path[PATH_MAX + 64];
	const char *version;
	struct elf e;
	size_t i;

	snprintf(path, sizeof(path), "%s/libsofthca.so.0", libdir);
	if (elf_open(&e, path, none))
		return;
	for (i = 0; i < e.lib_count; i++) {
		version = strstr(e.lib[i], ".so.");
		/* Without a version it is one that the tarball brings along. */
		if (!version || dlopen(e.lib[i], RTLD_LAZY | RTLD_LOCAL))
			continue;
		snprintf(why->text, sizeof(why->text), "%s needs %s", path,
			 dlerror());
		snprintf(why->fix, sizeof(why->fix),
			 "install it, on Debian: apt-get install %.*s%s",
			 (int)(version - e.lib[i]), e.lib[i],
			 version + strlen(".so."));
		break;
	}
	elf_close(&e);
}

int libdir_load(const char *libdir, const char *soname,
		const struct libdir_symbol *symbols, size_t count,
		struct libdir_why *why)
{
	char path[PATH_MAX + 64];
	void *lib, *sym;
	size_t i;

	snprintf(why->fix, sizeof(why->fix),
		 "install softhca again, all of one version");
	if (check_files(libdir, soname, why))
		return -ELIBACC;
	snprintf(path, sizeof(path), "%s/%s", libdir, soname);
	lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!lib) {
		snprintf(why->text, sizeof(why->text), "%s", dlerror());
		check_needed(libdir, why);
		return -ELIBACC;
	}
	for (i = 0; i < count; i++) {
		sym = dlsym(lib, symbols[i].name);
		if (!sym) {
			snprintf(why->text, sizeof(why->text), "%s has no %s",
				 path, symbols[i].name);
			return -ELIBBAD;
		}
		memcpy(symbols[i].slot, &sym, sizeof(sym));
	}
	/* Each other they find by this node, so the loader refuses a mixture. */
	if (!strcmp(soname, "libsofthca.so.0") &&
	    !dlvsym(lib, "shca_sysfs_make", SOFTHCA_NODE)) {
		snprintf(why->text, sizeof(why->text),
			 "%s is not of version %s, which this softhca is", path,
			 SOFTHCA_VERSION);
		return -ELIBBAD;
	}
	return 0;
}

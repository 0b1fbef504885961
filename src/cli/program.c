/*
 * program.c - whether a program can be run under softhca
 */
#include "cli/program.h"
#include "cli/elf.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

const char *const program_sonames[] = { "libibverbs.so.1", "librdmacm.so.1",
					"libibumad.so.3", NULL };

/* Returns 0, -EACCES if it exists but is not a program, or -ENOENT. */
static int check_executable(const char *path)
{
	struct stat st;

	if (stat(path, &st))
		return errno == EACCES ? -EACCES : -ENOENT;
	if (!S_ISREG(st.st_mode) || access(path, X_OK))
		return -EACCES;
	return 0;
}

int program_find(char path[PATH_MAX], const char *name)
{
	const char *p = getenv("PATH");
	int err = -ENOENT, r;
	size_t len;

	if (strlen(name) >= PATH_MAX)
		return -ENOENT;
	if (strchr(name, '/')) {
		strcpy(path, name);
		return check_executable(path);
	}
	if (!p)
		p = "/bin:/usr/bin";
	for (; *name; p += len + 1) {
		len = strcspn(p, ":");
		if (snprintf(path, PATH_MAX, "%.*s%s%s", (int)len, p,
			     len ? "/" : "", name) < PATH_MAX) {
			r = check_executable(path);
			if (!r)
				return 0;
			if (r == -EACCES)
				err = r; /* unless there is a better one */
		}
		if (!p[len])
			break;
	}
	return err;
}

/* With more rights, AT_SECURE is set and the loader ignores LD_*. */
static const char *more_rights(const char *path)
{
	struct stat st;

	if (geteuid() == 0)
		return NULL;
	if (stat(path, &st))
		return NULL;
	if ((st.st_mode & S_ISUID) && st.st_uid != geteuid())
		return "is set-user-ID";
	if ((st.st_mode & S_ISGID) && (st.st_mode & S_IXGRP) &&
	    st.st_gid != getegid())
		return "is set-group-ID";
	if (getxattr(path, "security.capability", NULL, 0) > 0)
		return "has file capabilities";
	return NULL;
}

bool program_uses(const char *path, const char *lib)
{
	bool uses = false;
	struct elf e;

	if (elf_open(&e, path, program_sonames))
		return false;
	for (size_t i = 0; i < e.lib_count && !uses; i++)
		uses = !strncmp(e.lib[i], lib, strlen(lib));
	elf_close(&e);
	return uses;
}

int program_obstacle(const char *path, char *why, size_t why_size, char *fix,
		     size_t fix_size)
{
	const char *base = strrchr(path, '/');
	const char *rights = more_rights(path);
	struct elf e;
	bool interp, go;

	base = base ? base + 1 : path;
	if (rights) {
		snprintf(why, why_size,
			 "%s %s: the loader ignores LD_LIBRARY_PATH and "
			 "LD_PRELOAD for it",
			 path, rights);
		if (!strcmp(base, "sudo") || !strcmp(base, "doas") ||
		    !strcmp(base, "su"))
			snprintf(fix, fix_size,
				 "put it first: %s softhca run -- ...", base);
		else
			snprintf(fix, fix_size,
				 "run a copy, which has no more rights than "
				 "you: cp %s . && softhca run -- ./%s",
				 path, base);
		return 1;
	}
	switch (elf_kind(path)) {
	case ELF_NONE:
		return 0; /* a script */
	case ELF_HERE:
		break;
	case ELF_32BIT:
		snprintf(why, why_size,
			 "%s is a 32-bit program, into which 64-bit libraries "
			 "cannot be loaded",
			 path);
		snprintf(fix, fix_size, "build it for 64 bits");
		return 1;
	case ELF_ELSEWHERE:
		snprintf(why, why_size, "%s is for another processor", path);
		snprintf(fix, fix_size, "build it for this one");
		return 1;
	case ELF_MUSL:
		snprintf(why, why_size,
			 "%s is a program for musl, and the libraries need "
			 "glibc",
			 path);
		snprintf(fix, fix_size,
			 "build it for glibc, as Debian and most distributions "
			 "but Alpine do");
		return 1;
	}
	if (elf_open(&e, path, program_sonames))
		return 0;
	interp = e.interp;
	go = e.go;
	elf_close(&e);
	if (interp)
		return 0;
	if (go) {
		snprintf(why, why_size,
			 "%s is a Go program, statically linked: no loader "
			 "runs, and its own system calls find the system's "
			 "/sys/class/infiniband",
			 path);
		snprintf(fix, fix_size,
			 "call libibverbs with cgo (CGO_ENABLED=1), linked "
			 "dynamically; the files lie below $SOFTHCA_SYSFS");
		return 1;
	}
	snprintf(why, why_size,
		 "%s is statically linked: no loader runs, so it keeps the "
		 "libibverbs it was built with",
		 path);
	snprintf(fix, fix_size, "link it dynamically");
	return 1;
}

/*
 * doctor_programs.c - whether programs and plugins can use our libraries
 */
#include "cli/cli.h"
#include "cli/doctor.h"
#include "cli/elf.h"
#include "cli/program.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Whether our libraries load at all; if not, it is the finding. */
static bool libraries_usable(const struct doctor *d, struct finding *f)
{
	struct libdir_why why;
	size_t i;

	for (i = 0; program_sonames[i]; i++) {
		if (!libdir_load(d->libdir, program_sonames[i], NULL, 0, &why))
			continue;
		f->status = FAIL;
		TEXT(f, "%s", why.text);
		FIX(f, "%s", why.fix);
		return false;
	}
	return true;
}

/* Whether our library exports symbol (or any, if NULL) in node version. */
static bool is_exported(const struct doctor *d, const struct elf_need *n)
{
	/* Something public of each node; a symbol of the file is better. */
	char path[PATH_MAX + 64];
	void *lib;

	snprintf(path, sizeof(path), "%s/%s", d->libdir, n->lib);
	lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	return lib && n->symbol && dlvsym(lib, n->symbol, n->version);
}

/*
 * Compares what one file needs of libibverbs and librdmacm with what ours
 * have. Returns how many symbols it needs; -1: not an ELF file.
 */
static long check_file(const struct doctor *d, const char *path,
		       struct finding *f)
{
	unsigned int missing = 0;
	long wanted = 0;
	struct elf e;
	size_t i;

	if (elf_open(&e, path, program_sonames))
		return -1;
	for (i = 0; i < e.need_count; i++) {
		if (!e.need[i].symbol)
			continue;
		wanted++;
		if (is_exported(d, &e.need[i]))
			continue;
		if (!missing++)
			TEXT(f, "%s%s needs %s@%s", f->text[0] ? "; " : "",
			     path, e.need[i].symbol, e.need[i].version);
	}
	if (missing) {
		f->status = WARN;
		if (missing > 1)
			TEXT(f, " and %u more", missing - 1);
		TEXT(f, ", which softhca's library lacks");
	}
	elf_close(&e);
	return wanted;
}

void check_providers(struct doctor *d, struct finding *f)
{
	static const char *const names[] = { "libmlx5.so", "libmlx4.so",
					     "libefa.so",  "libhns.so",
					     "libmana.so", "libionic.so",
					     "libuct_ib",  "libuct_rdmacm" };
	static const char *const subdirs[] = { "", "/ucx" };
	char dir[PATH_MAX + 64], path[PATH_MAX + 400], base[PATH_MAX];
	struct finding broken = { .status = OK };
	unsigned int files = 0;
	struct dirent *e;
	Dl_info info;
	size_t i, k;
	DIR *list;

	/* The distribution's directory is where its C library lies. */
	if (!d->libdir[0] || !dladdr((void *)(uintptr_t)&qsort, &info) ||
	    !realpath(info.dli_fname, base)) {
		f->status = WARN;
		TEXT(f, "not checked: the system's library directory is not "
			"known");
		return;
	}
	if (!libraries_usable(d, f))
		return;
	*strrchr(base, '/') = '\0';
	for (k = 0; k < sizeof(subdirs) / sizeof(subdirs[0]); k++) {
		snprintf(dir, sizeof(dir), "%s%s", base, subdirs[k]);
		list = opendir(dir);
		while (list && (e = readdir(list))) {
			for (i = 0; i < sizeof(names) / sizeof(names[0]); i++)
				if (!strncmp(e->d_name, names[i],
					     strlen(names[i])))
					break;
			if (i == sizeof(names) / sizeof(names[0]) ||
			    e->d_type != DT_REG)
				continue;
			snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
			if (check_file(d, path, &broken) > 0)
				files++;
		}
		if (list)
			closedir(list);
	}
	if (broken.status == OK) {
		TEXT(f,
		     "%u system libraries that use libibverbs find all their "
		     "symbols in ours",
		     files);
		return;
	}
	*f = broken;
	TEXT(f, ": programs that load it do not start");
	FIX(f, "install a newer softhca, or an rdma-core release that this "
	       "one knows");
}

/* Administrators give perftest file capabilities for raw queue pairs. */
void check_rights(struct doctor *d, struct finding *f)
{
	static const char *const names[] = {
		"ib_write_bw",     "ib_write_lat", "ib_read_bw", "ib_read_lat",
		"ib_send_bw",      "ib_send_lat",  "rping",      "ucmatose",
		"ibv_rc_pingpong", "ibv_devinfo",  "ucx_info",   "ucx_perftest",
		"fi_info",         "fi_pingpong",  "qperf",      "fio",
	};
	char path[PATH_MAX], why[PATH_MAX + 128], fix[PATH_MAX + 128];
	unsigned int found = 0;
	size_t i;

	(void)d;
	for (i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (program_find(path, names[i]))
			continue;
		found++;
		if (!program_obstacle(path, why, sizeof(why), fix, sizeof(fix)))
			continue;
		if (f->status == OK)
			FIX(f, "%.400s", fix);
		f->status = WARN;
		TEXT(f, "%s%s", f->text[0] ? "; " : "", why);
	}
	if (f->status != OK)
		return;
	if (found)
		TEXT(f,
		     "the loader gives all %u RDMA tools in PATH our "
		     "libraries",
		     found);
	else
		TEXT(f, "no RDMA tools in PATH (Debian: perftest, "
			"ibverbs-utils, rdmacm-utils)");
}

/* Whether what is started here without softhca run sees softhca all the same. */
static bool environment_is_ours(const struct doctor *d)
{
	const char *p = getenv("LD_LIBRARY_PATH");
	char dir[PATH_MAX], real[PATH_MAX], ours[PATH_MAX];
	size_t len;

	if (!p || !realpath(d->libdir, ours))
		return false;
	for (; *p; p += len + (p[len] != '\0')) {
		len = strcspn(p, ":;");
		snprintf(dir, sizeof(dir), "%.*s", (int)len, p);
		if (len < sizeof(dir) && realpath(dir, real) &&
		    !strcmp(real, ours))
			return true;
	}
	return false;
}

static void say_environment(const struct doctor *d, struct finding *f,
			    const char *name)
{
	if (environment_is_ours(d))
		TEXT(f, "; started from here it sees softhca");
	else
		TEXT(f,
		     "; started from here, by itself, it does not see "
		     "softhca: softhca run -- %s",
		     name);
}

void check_program(struct doctor *d, struct finding *f, const char *name)
{
	char path[PATH_MAX], why[PATH_MAX + 128], fix[PATH_MAX + 128];
	struct elf e;
	long wanted;
	size_t i;
	int err;

	err = program_find(path, name);
	if (err) {
		f->status = FAIL;
		TEXT(f, "%s: %s", name,
		     err == -ENOENT ? "not found" : "not executable");
		return;
	}
	if (program_obstacle(path, why, sizeof(why), fix, sizeof(fix))) {
		f->status = FAIL;
		TEXT(f, "%s", why);
		FIX(f, "%.500s", fix);
		return;
	}
	if (!libraries_usable(d, f))
		return;
	wanted = check_file(d, path, f);
	if (f->status != OK) {
		f->status = FAIL;
		return;
	}
	if (wanted < 0) {
		TEXT(f,
		     "%s is not an ELF program for this machine; the "
		     "programs that it runs see softhca unless it changes "
		     "their environment",
		     path);
		say_environment(d, f, name);
		return;
	}
	if (elf_open(&e, path, program_sonames))
		return;
	for (i = 0; i < e.lib_count; i++)
		if (!strcmp(e.lib[i], program_sonames[0]) ||
		    !strcmp(e.lib[i], program_sonames[1]))
			break;
	if (i < e.lib_count)
		TEXT(f, "%s is linked with %s and finds all %ld symbols", path,
		     e.lib[i], wanted);
	else
		TEXT(f,
		     "%s is not linked with libibverbs itself; its libraries "
		     "or plugins may be",
		     path);
	say_environment(d, f, name);
	if (e.go) {
		f->status = WARN;
		TEXT(f, "; it is a Go program, whose own system calls find the "
			"system's /sys/class/infiniband, not softhca's");
		FIX(f, "let it ask libibverbs (cgo), or read the files below "
		       "$SOFTHCA_SYSFS");
	}
	if (e.rpath)
		TEXT(f, "; its DT_RPATH (%s) is overridden by the preload",
		     e.rpath);
	elf_close(&e);
}

/*
 * cdi.c - softhca cdi: a specification of the Container Device Interface
 *
 * What podman, containerd, CRI-O and docker read from /etc/cdi: the files and
 * variables that a container gets that asks for the device softhca.io/hca=0. The
 * libraries are mounted one by one, with those that they need and a slim image
 * lacks, into a folder that need not exist in the image. github.com/cncf-tags/
 * container-device-interface has the format.
 */
#include "base/json.h"
#include "cli/cli.h"
#include "cli/elf.h"
#include "cli/job.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What every image has that has a C library. */
static bool of_libc(const char *soname)
{
	static const char *const names[] = { "libc.so.",  "libm.so.",
					     "libdl.so.", "libpthread.so.",
					     "librt.so.", "ld-" };
	size_t i;

	for (i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (!strncmp(soname, names[i], strlen(names[i])))
			return true;
	return false;
}

static void add_bind(struct json *j, const char *from, const char *to,
		     const char *how)
{
	static const char *const always[] = { "nosuid", "nodev", "bind" };

	json_begin(j, NULL, '{');
	json_string(j, "hostPath", from);
	json_string(j, "containerPath", to);
	json_begin(j, "options", '[');
	json_string(j, NULL, how);
	for (size_t i = 0; i < sizeof(always) / sizeof(always[0]); i++)
		json_string(j, NULL, always[i]);
	json_end(j, ']');
	json_end(j, '}');
}

static void add_mount(struct json *j, const char *from, const char *dir,
		      const char *name)
{
	char to[PATH_MAX + 256];

	snprintf(to, sizeof(to), "%s/%s", dir, name);
	add_bind(j, from, to, "ro");
}

/* Where containers find each other: the same for all, and the host. */
static void add_rundir(struct json *j)
{
	const char *dir = getenv("SOFTHCA_RUNDIR");

	if (dir && *dir)
		add_bind(j, dir, dir, "rw");
}

/* The libraries beside libsofthca that it needs. */
static int add_needed(struct json *j, const char *libdir, const char *dir)
{
	static const char *const none[] = { NULL };
	char path[PATH_MAX + 64], file[PATH_MAX];
	struct link_map *map;
	struct elf e;
	size_t i;
	int err;

	snprintf(path, sizeof(path), "%s/libsofthca.so.0", libdir);
	if (!dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
		cli_say("%s", dlerror());
		return -ELIBACC;
	}
	err = elf_open(&e, path, none);
	if (err) {
		cli_say("%s: %s", path, strerror(-err));
		return err;
	}
	for (i = 0; i < e.lib_count && !err; i++) {
		void *lib;

		if (of_libc(e.lib[i]))
			continue;
		/* It is there already, from wherever the loader has it. */
		lib = dlopen(e.lib[i], RTLD_NOW | RTLD_NOLOAD);
		if (lib && !dlinfo(lib, RTLD_DI_LINKMAP, &map) &&
		    realpath(map->l_name, file)) {
			add_mount(j, file, dir, e.lib[i]);
		} else {
			cli_say("%s needs %s, and it is not known where that "
				"lies",
				path, e.lib[i]);
			err = -ELIBACC;
		}
	}
	elf_close(&e);
	return err;
}

static void add_environment(struct json *j)
{
	for (size_t i = 0; job_variables[i]; i++) {
		const char *value = getenv(job_variables[i]);
		char *line;

		if (!value ||
		    asprintf(&line, "%s=%s", job_variables[i], value) < 0)
			continue;
		json_string(j, NULL, line);
		free(line);
	}
}

static int add_ours(struct json *j, const char *libdir, const char *dir)
{
	static const char *const names[] = {
		"libibverbs.so.1", "libibverbs.so",      "librdmacm.so.1",
		"librdmacm.so",    "libibumad.so.3",     "libibumad.so",
		"libsofthca.so.0", "libsofthca-shim.so", "librspreload.so.1",
	};
	char path[PATH_MAX + 64], file[PATH_MAX];

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		snprintf(path, sizeof(path), "%s/%s", libdir, names[i]);
		if (!realpath(path, file)) {
			cli_say("%s: %s. Install softhca again", path,
				strerror(errno));
			return -ENOENT;
		}
		add_mount(j, file, dir, names[i]);
	}
	return 0;
}

static int put_spec(struct json *j, const char *libdir, const char *dir)
{
	int err;

	json_begin(j, NULL, '{');
	json_string(j, "cdiVersion", "0.3.0");
	json_string(j, "kind", "softhca.io/hca");
	json_begin(j, "devices", '[');
	json_begin(j, NULL, '{');
	json_string(j, "name", "0");
	json_begin(j, "containerEdits", '{');
	json_begin(j, "env", '[');
	add_environment(j);
	json_end(j, ']');
	json_begin(j, "mounts", '[');
	err = add_ours(j, libdir, dir);
	if (!err)
		err = add_needed(j, libdir, dir);
	add_rundir(j);
	json_end(j, ']');
	json_end(j, '}');
	json_end(j, '}');
	json_end(j, ']');
	json_end(j, '}');
	return err;
}

/* Nothing is printed unless all is known. */
static int print_spec(const char *libdir, const char *dir)
{
	char *text = NULL;
	size_t size;
	struct json j = { open_memstream(&text, &size), .lines = true };
	int err;

	if (!j.f) {
		cli_say("%s", strerror(errno));
		return 1;
	}
	err = put_spec(&j, libdir, dir);
	if (!fclose(j.f) && !err &&
	    (fputs(text, stdout) < 0 || fflush(stdout))) {
		cli_say("cannot write: %s", strerror(errno));
		err = -EIO;
	}
	free(text);
	return err ? 1 : 0;
}

int cmd_cdi(int argc, char **argv)
{
	static const struct argp_child with_job_options[] = {
		{ &job_argp, 0, NULL, 0 },
		{ &job_libdir_argp, 0, NULL, 0 },
		{ 0 },
	};
	static const struct argp argp = {
		.doc = "Print a specification of the Container Device "
		       "Interface, by which containers get the libraries and "
		       "the environment of softhca run.\v"
		       "Examples:\n"
		       "  softhca cdi > /etc/cdi/softhca.json\n"
		       "  podman run --device softhca.io/hca=0 IMAGE "
		       "ib_write_bw",
		.children = with_job_options,
	};
	const char *dir = "/usr/lib/softhca";
	char libdir[PATH_MAX];

	cli_parse(&argp, argc, argv, EXIT_USAGE, NULL, NULL);
	if (job_libdir)
		dir = job_libdir;
	unsetenv("LD_LIBRARY_PATH");
	unsetenv("LD_PRELOAD");
	/* Which says what is wrong with them. */
	if (job_environment(
		    &(struct job_place){ .libdir = dir, .no_tree = true }) ||
	    libdir_find(libdir))
		return 1;
	return print_spec(libdir, dir);
}

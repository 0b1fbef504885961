/*
 * cdi.c - softhca cdi: a specification of the Container Device Interface
 *
 * What podman, containerd, CRI-O and docker read from /etc/cdi: the files and
 * variables that a container gets that asks for the device softhca.io/hca=0. The
 * libraries are mounted one by one, with those that they need and a slim image
 * lacks, into a folder that need not exist in the image. github.com/cncf-tags/
 * container-device-interface has the format.
 */
#include "cli/cli.h"
#include "cli/elf.h"
#include "cli/job.h"

#include <dlfcn.h>
#include <errno.h>
#include <json-c/json.h>
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

static struct json_object *string_list(const char *const *s)
{
	struct json_object *list = json_object_new_array();

	for (; *s; s++)
		json_object_array_add(list, json_object_new_string(*s));
	return list;
}

static void add_mount(struct json_object *mounts, const char *from,
		      const char *dir, const char *name)
{
	static const char *const how[] = { "ro", "nosuid", "nodev", "bind",
					   NULL };
	struct json_object *m = json_object_new_object();
	char to[PATH_MAX + 256];

	snprintf(to, sizeof(to), "%s/%s", dir, name);
	json_object_object_add(m, "hostPath", json_object_new_string(from));
	json_object_object_add(m, "containerPath", json_object_new_string(to));
	json_object_object_add(m, "options", string_list(how));
	json_object_array_add(mounts, m);
}

/* The libraries beside libsofthca that it needs. */
static int add_needed(struct json_object *mounts, const char *libdir,
		      const char *dir)
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
			add_mount(mounts, file, dir, e.lib[i]);
		} else {
			cli_say("%s needs %s, and it is not known where that "
				"lies", path, e.lib[i]);
			err = -ELIBACC;
		}
	}
	elf_close(&e);
	return err;
}

static struct json_object *edits(const char *libdir, const char *dir)
{
	static const char *const names[] = {
		"libibverbs.so.1", "libibverbs.so",	  "librdmacm.so.1",
		"librdmacm.so",	   "libsofthca.so.0",	  "libsofthca-shim.so",
		"librspreload.so.1",
	};
	struct json_object *edits = json_object_new_object();
	struct json_object *mounts = json_object_new_array();
	struct json_object *env = json_object_new_array();
	char path[PATH_MAX + 64], file[PATH_MAX];
	size_t i;

	json_object_object_add(edits, "env", env);
	json_object_object_add(edits, "mounts", mounts);
	for (i = 0; job_variables[i]; i++) {
		const char *value = getenv(job_variables[i]);
		char *line;

		if (!value || asprintf(&line, "%s=%s", job_variables[i],
				       value) < 0)
			continue;
		json_object_array_add(env, json_object_new_string(line));
		free(line);
	}
	for (i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		snprintf(path, sizeof(path), "%s/%s", libdir, names[i]);
		if (!realpath(path, file)) {
			cli_say("%s: %s. Install softhca again", path,
				strerror(errno));
			json_object_put(edits);
			return NULL;
		}
		add_mount(mounts, file, dir, names[i]);
	}
	if (add_needed(mounts, libdir, dir)) {
		json_object_put(edits);
		return NULL;
	}
	return edits;
}

static int print_spec(const char *libdir, const char *dir)
{
	struct json_object *spec = json_object_new_object();
	struct json_object *devices = json_object_new_array();
	struct json_object *dev = json_object_new_object();
	struct json_object *e = edits(libdir, dir);
	int ret = 1;

	json_object_object_add(spec, "cdiVersion",
			       json_object_new_string("0.3.0"));
	json_object_object_add(spec, "kind",
			       json_object_new_string("softhca.io/hca"));
	json_object_object_add(spec, "devices", devices);
	json_object_object_add(dev, "name", json_object_new_string("0"));
	json_object_object_add(dev, "containerEdits", e);
	json_object_array_add(devices, dev);
	if (e) {
		puts(json_object_to_json_string_ext(
			spec, JSON_C_TO_STRING_PRETTY |
				      JSON_C_TO_STRING_NOSLASHESCAPE));
		ret = 0;
	}
	json_object_put(spec);
	if (!ret && (fflush(stdout) || ferror(stdout))) {
		cli_say("cannot write: %s", strerror(errno));
		ret = 1;
	}
	return ret;
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
		       "  podman run --device softhca.io/hca=0 IMAGE ib_write_bw",
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
	if (job_environment(&(struct job_place){ .libdir = dir,
						 .no_tree = true }) ||
	    libdir_find(libdir))
		return 1;
	return print_spec(libdir, dir);
}

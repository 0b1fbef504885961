/*
 * doctor_libs.c - checks of our libraries, and of what a program gets
 *
 * What a program under softhca run gets is reported by a child in that
 * environment (cmd_probe).
 */
#include "cli/cli.h"
#include "cli/doctor.h"
#include "cli/job.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

void check_libraries(struct doctor *d, struct finding *f)
{
	static const char *const names[] = {
		"libibverbs.so.1", "libibverbs.so",      "librdmacm.so.1",
		"librdmacm.so",    "libibumad.so.3",     "libibumad.so",
		"libsofthca.so.0", "libsofthca-shim.so",
	};
	struct libdir_why why;
	size_t i;

	if (!d->libdir[0]) {
		f->status = FAIL;
		TEXT(f, "not found: neither ../lib/softhca nor ../lib beside "
			"this program has libsofthca-shim.so");
		FIX(f, "install softhca again");
		return;
	}
	for (i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (!libdir_load(d->libdir, names[i], NULL, 0, &why))
			continue;
		f->status = FAIL;
		/* What one of them lacks the others lack, too. */
		if (strstr(f->text, why.text))
			continue;
		TEXT(f, "%s%s", f->text[0] ? "; " : "", why.text);
		if (!strstr(f->fix, why.fix))
			FIX(f, "%s%s", f->fix[0] ? "; " : "", why.fix);
	}
	if (f->status == OK)
		TEXT(f, "%s", d->libdir);
}

/*
 * Keeps the output of this program's _probe command in the environment of run,
 * one "name value" per line; "" if it failed.
 */
void run_probe(struct doctor *d)
{
	const size_t size = sizeof(d->probe);
	char *out = d->probe;
	struct pollfd pfd;
	size_t len = 0;
	int p[2];
	ssize_t got;
	pid_t pid;
	int err;

	out[0] = '\0';
	if (!d->libdir[0] || pipe(p))
		return;
	fflush(NULL);
	pid = fork();
	err = errno;
	if (!pid) {
		close(p[0]);
		if (dup2(p[1], STDOUT_FILENO) < 0)
			_exit(1);
		close(p[1]);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (!job_environment(NULL))
			execl("/proc/self/exe", "softhca", "_probe",
			      (char *)NULL);
		_exit(1);
	}
	close(p[1]);
	pfd = (struct pollfd){ .fd = p[0], .events = POLLIN };
	while (pid > 0 && len < size - 1 && poll(&pfd, 1, 15000) > 0) {
		got = read(p[0], out + len, size - 1 - len);
		if (got <= 0)
			break;
		len += (size_t)got;
	}
	out[len] = '\0';
	close(p[0]);
	if (pid < 0)
		d->probe_err = err;
	if (pid > 0) {
		kill(pid, SIGKILL); /* it is done, or it hangs */
		waitpid(pid, NULL, 0);
	}
}

/* The value of a name in the output of _probe. */
static bool probe_value(const char *out, const char *name, char *buf,
			size_t size)
{
	size_t len = strlen(name), n;

	for (; *out; out += strcspn(out, "\n"), out += *out == '\n') {
		if (strncmp(out, name, len) || out[len] != ' ')
			continue;
		n = strcspn(out + len + 1, "\n");
		if (n >= size)
			n = size - 1;
		memcpy(buf, out + len + 1, n);
		buf[n] = '\0';
		return true;
	}
	return false;
}

static const char *const probed[] = { "libibverbs.so.1", "libibverbs.so",
				      "librdmacm.so.1",  "librdmacm.so",
				      "libibumad.so.3",  "libibumad.so" };

static void print_mapped(const char *name)
{
	void *lib = dlopen(name, RTLD_NOW);
	char path[PATH_MAX];
	struct link_map *map;

	if (!lib)
		printf("%s %s\n", name, dlerror());
	else if (!dlinfo(lib, RTLD_DI_LINKMAP, &map) &&
		 realpath(map->l_name, path))
		printf("%s %s\n", name, path);
}

/* The type of the first GID of the first device that has one. */
static void print_gid_type(DIR *devices)
{
	char path[300], line[256];
	struct dirent *d;

	while ((d = readdir(devices))) {
		snprintf(
			path, sizeof(path),
			"/sys/class/infiniband/%.63s/ports/1/gid_attrs/types/0",
			d->d_name);
		if (d->d_name[0] == '.' ||
		    doctor_read_line(path, line, sizeof(line)))
			continue;
		printf("gid_type %s\n", line);
		return;
	}
}

int cmd_probe(int argc, char **argv)
{
	struct stat st;
	size_t i;
	DIR *dir;

	(void)argc;
	(void)argv;
	for (i = 0; i < sizeof(probed) / sizeof(probed[0]); i++)
		print_mapped(probed[i]);
	/* What UCX checks before it uses a device. */
	if (stat("/dev/infiniband/uverbs0", &st))
		printf("uverbs %s\n", strerror(errno));
	else if (!S_ISCHR(st.st_mode))
		printf("uverbs not a character device\n");
	else if (access("/dev/infiniband/uverbs0", R_OK | W_OK))
		printf("uverbs %s\n", strerror(errno));
	else
		printf("uverbs ok\n");
	dir = opendir("/sys/class/infiniband");
	printf("sysfs %s\n", dir ? "ok" : strerror(errno));
	if (dir) {
		print_gid_type(dir);
		closedir(dir);
	}
	return fflush(stdout) ? 1 : 0;
}

/* Without a child, what programs see is not known. */
static bool not_probed(const struct doctor *d, struct finding *f)
{
	if (!d->probe_err)
		return false;
	f->status = WARN;
	TEXT(f, "not checked, since no process can be started: %s",
	     strerror(d->probe_err));
	return true;
}

void check_loader(struct doctor *d, struct finding *f)
{
	char want[PATH_MAX], got[PATH_MAX], path[PATH_MAX + 64];
	size_t i;

	if (not_probed(d, f))
		return;
	for (i = 0; i < sizeof(probed) / sizeof(probed[0]); i++) {
		snprintf(path, sizeof(path), "%s/%s", d->libdir, probed[i]);
		if (!realpath(path, want))
			strcpy(want, "?");
		if (!probe_value(d->probe, probed[i], got, sizeof(got)))
			strcpy(got, "nothing");
		if (!strcmp(got, want))
			continue;
		f->status = FAIL;
		TEXT(f, "%s a program that opens %s gets %s",
		     f->text[0] ? ";" : "under softhca run", probed[i], got);
	}
	if (f->status == FAIL)
		FIX(f, "find what resets LD_LIBRARY_PATH or LD_PRELOAD, such "
		       "as a wrapper script");
	else
		TEXT(f, "programs under softhca run get our libibverbs, "
			"librdmacm and libibumad");
}

void check_shim(struct doctor *d, struct finding *f)
{
	char uverbs[256] = "no answer", sysfs[256] = "no answer", type[64];

	if (not_probed(d, f))
		return;
	probe_value(d->probe, "uverbs", uverbs, sizeof(uverbs));
	probe_value(d->probe, "sysfs", sysfs, sizeof(sysfs));
	if (strcmp(uverbs, "ok") || strcmp(sysfs, "ok")) {
		f->status = WARN;
		TEXT(f,
		     "UCX will not use the device: /dev/infiniband/uverbs0: "
		     "%s; /sys/class/infiniband: %s",
		     uverbs, sysfs);
		FIX(f, "softhca run reports on stderr why it cannot write "
		       "these files");
	} else if (!doctor_has(d, IBV_NODE_CA)) {
		TEXT(f, "programs find the device; UCX needs one of RoCE "
			"(--iwarp=both)");
	} else if (!probe_value(d->probe, "gid_type", type, sizeof(type))) {
		f->status = WARN;
		TEXT(f, "UCX will not use the device: it has no GID");
		FIX(f, "see device");
	} else {
		TEXT(f, "programs see /dev/infiniband/uverbs0 (UCX needs it) "
			"and /sys/class/infiniband");
	}
}

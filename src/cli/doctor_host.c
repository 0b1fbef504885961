/*
 * doctor_host.c - checks of what processes of this host share, and their limits
 */
#include "cli/criu.h"
#include "cli/doctor.h"
#include "counters/sysfs_dir.h"
#include "registry/registry.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

void check_tree(struct doctor *d, struct finding *f)
{
	char home[PATH_MAX], why[512];
	int fd;

	(void)d;
	fd = sysfs_dir_home(home, why, sizeof(why));
	if (fd < 0) {
		f->status = WARN;
		TEXT(f, "no directory for the files that the shim shows: %s",
		     why);
		FIX(f, "export XDG_RUNTIME_DIR=DIR, a directory that you own, "
		       "with mode 0700");
		return;
	}
	TEXT(f,
	     "%s can hold what programs see of /sys (%zu sets; those that were "
	     "not used for an hour go by themselves)",
	     home, sysfs_dir_count(fd));
	close(fd);
}

void check_registry(struct doctor *d, struct finding *f)
{
	const char *why = NULL;
	struct registry *r;
	char ns[64], path[PATH_MAX];
	size_t nets;
	ssize_t len;
	int err;

	(void)d;
	err = registry_join(&r, NULL, &why);
	if (err) {
		f->status = WARN;
		TEXT(f,
		     "processes of this host cannot find each other, so only "
		     "one at a time can use RDMA: %s",
		     why ? why : strerror(-err));
		FIX(f, "export SOFTHCA_RUNDIR=DIR, a writable directory on "
		       "this machine");
		return;
	}
	nets = registry_is_shared(r) ? registry_nets(r) : 0;
	snprintf(path, sizeof(path), "%s", registry_path(r));
	registry_leave(r);
	if (nets) {
		TEXT(f,
		     "processes of user %u can find each other by %s, also "
		     "those of other network namespaces of this host that "
		     "share its directory (%zu with processes now): where an "
		     "address is proved to lead to one, packets go by shared "
		     "memory",
		     (unsigned int)geteuid(), path, nets);
		return;
	}
	len = readlink("/proc/self/ns/net", ns, sizeof(ns) - 1);
	ns[len > 0 ? len : 0] = '\0';
	TEXT(f,
	     "processes of user %u in network namespace %s can find each "
	     "other",
	     (unsigned int)geteuid(), ns);
}

void check_shm(struct doctor *d, struct finding *f)
{
	struct statvfs s;
	double free_mib;

	(void)d;
	if (statvfs("/dev/shm", &s)) {
		f->status = WARN;
		TEXT(f, "/dev/shm: %s", strerror(errno));
		FIX(f, "sudo mount -t tmpfs -o mode=1777 tmpfs /dev/shm");
		return;
	}
	free_mib = (double)s.f_bavail * (double)s.f_frsize / 1048576;
	if (free_mib < 4 || access("/dev/shm", W_OK | X_OK)) {
		f->status = WARN;
		FIX(f, "make /dev/shm writable, or free space in it; in a "
		       "container: --shm-size 64m");
	}
	TEXT(f, "/dev/shm has %.0f MiB free%s", free_mib,
	     access("/dev/shm", W_OK | X_OK) ? " and is not writable" : "");
}

void check_memlock(struct doctor *d, struct finding *f)
{
	struct rlimit r;

	(void)d;
	if (getrlimit(RLIMIT_MEMLOCK, &r) || r.rlim_cur == RLIM_INFINITY)
		TEXT(f, "unlimited, which is not needed: nothing is locked");
	else
		TEXT(f, "%llu KiB, which is enough: nothing is locked",
		     (unsigned long long)r.rlim_cur / 1024);
}

static void *empty_thread(void *arg)
{
	return arg;
}

/* The engine of each process has one thread. */
void check_threads(struct doctor *d, struct finding *f)
{
	struct rlimit r;
	pthread_t t;
	int err;

	(void)d;
	err = pthread_create(&t, NULL, empty_thread, NULL);
	if (!err) {
		pthread_join(t, NULL);
		TEXT(f, "a process can start its engine's thread");
		return;
	}
	f->status = FAIL;
	TEXT(f, "no thread can be started: %s", strerror(err));
	if (err != EAGAIN) {
		FIX(f, "in a container: use a seccomp profile that allows "
		       "clone(2) and clone3(2)");
		return;
	}
	if (!getrlimit(RLIMIT_NPROC, &r) && r.rlim_cur != RLIM_INFINITY)
		TEXT(f,
		     "; this user's limit is %llu processes and threads "
		     "(ulimit -u)",
		     (unsigned long long)r.rlim_cur);
	FIX(f, "raise ulimit -u (limits.conf(5)); in a container, raise "
	       "--pids-limit");
}

/* Of use to few, so to lack it is nothing wrong. */
void check_criu(struct doctor *d, struct finding *f)
{
	struct criu_why why;
	struct criu c = { .path = "" };
	int err;

	(void)d;
	err = criu_find(&c, NULL, &why);
	if (err == -ENOENT) {
		TEXT(f,
		     "%s, so running programs cannot be saved and moved "
		     "(softhca checkpoint)",
		     why.text);
		FIX(f, "optional: %s", why.fix);
		return;
	}
	if (!err && geteuid()) {
		TEXT(f,
		     "%s is version %s; whether it works was not tried, as "
		     "that takes root",
		     c.path, c.version);
		return;
	}
	if (!err)
		err = criu_try(&c, &why);
	if (err) {
		f->status = WARN;
		TEXT(f, "running programs cannot be saved and moved: %s",
		     why.text);
		FIX(f, "%s", why.fix);
		return;
	}
	TEXT(f, "%s %s saves and restores a process%s", c.path, c.version,
	     c.no_breakpoints ? ", with CRIU_FAULT=130" : "");
}

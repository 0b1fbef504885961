/*
 * doctor_host.c - what processes of this host share, and their limits
 */
#include "cli/doctor.h"
#include "cli/tree.h"
#include "host/config.h"
#include "host/registry.h"

#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

void check_tree(struct doctor *d, struct finding *f)
{
	char home[PATH_MAX], why[512];
	int fd;

	(void)d;
	fd = tree_home(home, why, sizeof(why));
	if (fd < 0) {
		f->status = WARN;
		TEXT(f, "no place for the files that the shim shows: %s", why);
		FIX(f, "export XDG_RUNTIME_DIR=DIR, a directory of yours with "
		       "mode 0700");
		return;
	}
	TEXT(f, "%s, %zu sets of files", home, tree_count(fd));
	FIX(f, "only if you want to tidy up: rm -r %s", home);
	close(fd);
}

/* State files of this user, one for each network namespace ever used. */
static unsigned int count_states(const char *dir)
{
	struct dirent *e;
	unsigned int n = 0;
	char prefix[64];
	DIR *list;

	snprintf(prefix, sizeof(prefix), "softhca-%u-",
		 (unsigned int)geteuid());
	list = opendir(dir);
	while (list && (e = readdir(list)))
		n += !strncmp(e->d_name, prefix, strlen(prefix));
	if (list)
		closedir(list);
	return n;
}

void check_registry(struct doctor *d, struct finding *f)
{
	const char *dir = config_get()->rundir;
	unsigned int states;
	const char *why = NULL;
	struct registry *r;
	char ns[64];
	ssize_t len;
	int err;

	(void)d;
	err = registry_join(&r, NULL, &why);
	if (err) {
		f->status = WARN;
		TEXT(f,
		     "processes of this host cannot find each other, only one "
		     "at a time can use RDMA: %s",
		     why ? why : strerror(-err));
		FIX(f, "export SOFTHCA_RUNDIR=DIR, a writable directory on "
		       "this machine");
		return;
	}
	registry_leave(r);
	len = readlink("/proc/self/ns/net", ns, sizeof(ns) - 1);
	ns[len > 0 ? len : 0] = '\0';
	TEXT(f,
	     "processes of user %u in network namespace %s can find each "
	     "other",
	     (unsigned int)geteuid(), ns);
	states = count_states(dir ? dir : "/dev/shm");
	if (states > 16) {
		TEXT(f, "; %u state files, mostly of namespaces that are gone",
		     states);
		FIX(f,
		    "while none of your programs uses RDMA: rm "
		    "%s/softhca-%u-*",
		    dir ? dir : "/dev/shm", (unsigned int)geteuid());
	}
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
		FIX(f, "remove what you do not need in /dev/shm, or in a "
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
		TEXT(f, "no limit; none would matter");
	else
		TEXT(f, "%llu KiB, which does not matter: nothing is locked",
		     (unsigned long long)r.rlim_cur / 1024);
}

/*
 * A child that reads this process, which is no descendant of it: what two
 * unrelated processes of one user have to be able to do.
 */
void check_cma(struct doctor *d, struct finding *f)
{
	static volatile uint64_t secret = 0x736f667468636121;
	uint64_t copy = 0;
	char yama[16] = "";
	int status = 0;
	pid_t pid;

	(void)d;
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
	pid = fork();
	if (!pid) {
		struct iovec to = { &copy, sizeof(copy) };
		struct iovec from = { (void *)(uintptr_t)&secret,
				      sizeof(copy) };

		if (process_vm_readv(getppid(), &to, 1, &from, 1, 0) !=
		    sizeof(copy))
			_exit(errno & 0xff);
		_exit(copy == secret ? 0 : EIO);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
		status = EIO << 8;
	prctl(PR_SET_PTRACER, 0, 0, 0, 0);
	if (!WEXITSTATUS(status)) {
		TEXT(f, "a process may copy from another one of yours "
			"(process_vm_readv)");
		return;
	}
	f->status = WARN;
	TEXT(f,
	     "a process may not copy from another one of yours: %s; transfers "
	     "within this host take the way through UDP",
	     strerror(WEXITSTATUS(status)));
	doctor_read_line("/proc/sys/kernel/yama/ptrace_scope", yama,
			 sizeof(yama));
	if (yama[0] > '1')
		FIX(f, "sudo sysctl kernel.yama.ptrace_scope=1");
	else
		FIX(f, "in a container: --cap-add SYS_PTRACE, or a seccomp "
		       "profile that allows process_vm_readv");
}

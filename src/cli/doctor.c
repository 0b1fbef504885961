/*
 * doctor.c - what works here, what does not, and how to fix it
 *
 * Each check tries the thing itself and prints one line: OK; WARN for what
 * costs speed or keeps some programs out; FAIL for what keeps every program
 * out. What a program would see is asked of a child that runs in the
 * environment of softhca run (cmd_probe).
 */
#include "cli/cli.h"
#include "cli/elf.h"
#include "cli/hca.h"
#include "cli/job.h"
#include "cli/program.h"
#include "cli/tree.h"
#include "host/config.h"
#include "host/registry.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <json-c/json.h>
#include <link.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ROCE_PORT 4791

enum status { OK, WARN, FAIL };

static const char *const status_names[] = { "OK", "WARN", "FAIL" };

/* What a check found. */
struct finding {
	enum status status;
	char text[1024];
	char fix[512];
};

struct doctor {
	bool json;
	char **programs;
	char libdir[PATH_MAX]; /* "": not found */
	struct hca_list hcas;
	struct json_object *list;
	enum status worst;
};

/* Appends to a text, as far as it fits. */
static void add(char *buf, size_t size, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

static void add(char *buf, size_t size, const char *fmt, ...)
{
	size_t used = strlen(buf);
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(buf + used, size - used, fmt, ap);
	va_end(ap);
}

#define TEXT(f, ...) add((f)->text, sizeof((f)->text), __VA_ARGS__)
#define FIX(f, ...) add((f)->fix, sizeof((f)->fix), __VA_ARGS__)

/* Names from files and processes reach terminals and JSON only as ASCII. */
static void make_printable(char *s)
{
	for (; *s; s++)
		if (*s < ' ' || *s > '~')
			*s = '?';
}

static void report(struct doctor *d, const char *name, struct finding *f)
{
	struct json_object *o;

	make_printable(f->text);
	make_printable(f->fix);
	if (f->status > d->worst)
		d->worst = f->status;
	if (!d->json) {
		printf("%-5s %-12s %s\n", status_names[f->status], name,
		       f->text);
		if (f->fix[0])
			printf("      %-12s -> %s\n", "", f->fix);
		fflush(stdout);
		return;
	}
	o = json_object_new_object();
	json_object_object_add(o, "check", json_object_new_string(name));
	json_object_object_add(o, "status",
			       json_object_new_string(status_names[f->status]));
	json_object_object_add(o, "text", json_object_new_string(f->text));
	if (f->fix[0])
		json_object_object_add(o, "fix",
				       json_object_new_string(f->fix));
	json_object_array_add(d->list, o);
}

/* The first line of a small file, or -errno. */
static int read_line(const char *path, char *buf, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t len;

	buf[0] = '\0';
	if (fd < 0)
		return -errno;
	len = read(fd, buf, size - 1);
	close(fd);
	if (len < 0)
		return -EIO;
	buf[len] = '\0';
	buf[strcspn(buf, "\n")] = '\0';
	return 0;
}

static void check_libraries(struct doctor *d, struct finding *f)
{
	static const char *const names[] = {
		"libibverbs.so.1", "libibverbs.so",   "librdmacm.so.1",
		"librdmacm.so",    "libsofthca.so.0", "libsofthca-shim.so",
	};
	char path[PATH_MAX + 64];
	void *lib;
	size_t i;

	if (!d->libdir[0]) {
		f->status = FAIL;
		TEXT(f, "neither ../lib/softhca nor ../lib beside this program "
			"has them");
		FIX(f, "install softhca again");
		return;
	}
	for (i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		snprintf(path, sizeof(path), "%s/%s", d->libdir, names[i]);
		lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
		if (lib)
			continue;
		f->status = FAIL;
		TEXT(f, "%s%s", f->text[0] ? "; " : "", dlerror());
	}
	if (f->status == FAIL)
		FIX(f, "install softhca again");
	else
		TEXT(f, "%s", d->libdir);
}

static void check_device(struct doctor *d, struct finding *f)
{
	char text[INET6_ADDRSTRLEN] = "no GID";
	const struct hca *h;
	size_t i;

	if (!d->libdir[0] || hca_list_read(&d->hcas, d->libdir)) {
		f->status = FAIL;
		TEXT(f, "%s", d->hcas.why[0] ? d->hcas.why : "no libraries");
		if (getenv("SOFTHCA_DEVICES") || getenv("SOFTHCA_ADDR"))
			FIX(f, "unset SOFTHCA_DEVICES SOFTHCA_ADDR, or correct "
			       "them");
		return;
	}
	for (i = 0; i < d->hcas.count; i++) {
		h = &d->hcas.hca[i];
		if (h->gid_count) {
			struct in6_addr in6;

			memcpy(&in6, h->gid[0].entry.gid.raw, sizeof(in6));
			if (IN6_IS_ADDR_V4MAPPED(&in6))
				inet_ntop(AF_INET, in6.s6_addr + 12, text,
					  sizeof(text));
			else
				inet_ntop(AF_INET6, &in6, text, sizeof(text));
		} else {
			f->status = WARN;
		}
		TEXT(f, "%s%s with %zu GIDs, the first %s", i ? "; " : "",
		     h->name, h->gid_count, text);
	}
	if (d->hcas.why[0]) {
		f->status = WARN;
		TEXT(f, "; %s", d->hcas.why);
	}
}

/*
 * The output of this program's _probe command in the environment of run, one
 * "name value" per line; "" if it failed.
 */
static void run_probe(char *out, size_t size)
{
	struct pollfd pfd;
	size_t len = 0;
	int p[2];
	ssize_t got;
	pid_t pid;

	out[0] = '\0';
	if (pipe(p))
		return;
	fflush(NULL);
	pid = fork();
	if (!pid) {
		close(p[0]);
		if (dup2(p[1], STDOUT_FILENO) < 0)
			_exit(1);
		close(p[1]);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (!job_environment())
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
				      "librdmacm.so.1", "librdmacm.so" };

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

int cmd_probe(int argc, char **argv)
{
	char line[256];
	struct stat st;
	size_t i;
	DIR *dir;

	(void)argc;
	(void)argv;
	for (i = 0; i < sizeof(probed) / sizeof(probed[0]); i++)
		print_mapped(probed[i]);
	/* What UCX asks before it takes a device. */
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
	if (dir)
		closedir(dir);
	if (!read_line("/sys/class/infiniband/softhca0/ports/1/gid_attrs/"
		       "types/0",
		       line, sizeof(line)))
		printf("gid_type %s\n", line);
	return fflush(stdout) ? 1 : 0;
}

static void check_loader(struct doctor *d, struct finding *f, const char *out)
{
	char want[PATH_MAX], got[PATH_MAX], path[PATH_MAX + 64];
	size_t i;

	for (i = 0; i < sizeof(probed) / sizeof(probed[0]); i++) {
		snprintf(path, sizeof(path), "%s/%s", d->libdir, probed[i]);
		if (!realpath(path, want))
			strcpy(want, "?");
		if (!probe_value(out, probed[i], got, sizeof(got)))
			strcpy(got, "nothing");
		if (!strcmp(got, want))
			continue;
		f->status = FAIL;
		TEXT(f, "%s a program that opens %s gets %s",
		     f->text[0] ? ";" : "under softhca run", probed[i], got);
	}
	if (f->status == FAIL)
		FIX(f, "see whether something between resets LD_LIBRARY_PATH "
		       "or LD_PRELOAD");
	else
		TEXT(f, "programs under softhca run get our libibverbs and "
			"librdmacm");
}

static void check_shim(struct doctor *d, struct finding *f, const char *out)
{
	char uverbs[256] = "no answer", sysfs[256] = "no answer", type[64];

	(void)d;
	probe_value(out, "uverbs", uverbs, sizeof(uverbs));
	probe_value(out, "sysfs", sysfs, sizeof(sysfs));
	if (!strcmp(uverbs, "ok") && !strcmp(sysfs, "ok") &&
	    probe_value(out, "gid_type", type, sizeof(type))) {
		TEXT(f, "programs see /dev/infiniband/uverbs0 (UCX wants it) "
			"and /sys/class/infiniband");
		return;
	}
	f->status = WARN;
	TEXT(f,
	     "UCX will not take the device: /dev/infiniband/uverbs0: %s; "
	     "/sys/class/infiniband: %s",
	     uverbs, sysfs);
	FIX(f, "softhca run says on stderr why it has no files to show");
}

static void check_tree(struct doctor *d, struct finding *f)
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

static void check_registry(struct doctor *d, struct finding *f)
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

static void check_shm(struct doctor *d, struct finding *f)
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

static void check_memlock(struct doctor *d, struct finding *f)
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
static void check_cma(struct doctor *d, struct finding *f)
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
	read_line("/proc/sys/kernel/yama/ptrace_scope", yama, sizeof(yama));
	if (yama[0] > '1')
		FIX(f, "sudo sysctl kernel.yama.ptrace_scope=1");
	else
		FIX(f, "in a container: --cap-add SYS_PTRACE, or a seccomp "
		       "profile that allows process_vm_readv");
}

static void process_of_inode(unsigned long inode, char *out, size_t size)
{
	char want[64], path[300], link[64], comm[64];
	struct dirent *p, *e;
	DIR *proc, *fds;
	ssize_t len;

	snprintf(want, sizeof(want), "socket:[%lu]", inode);
	out[0] = '\0';
	proc = opendir("/proc");
	while (proc && !out[0] && (p = readdir(proc))) {
		if (!isdigit((unsigned char)p->d_name[0]))
			continue;
		snprintf(path, sizeof(path), "/proc/%.16s/fd", p->d_name);
		fds = opendir(path);
		while (fds && (e = readdir(fds))) {
			snprintf(path, sizeof(path), "/proc/%.16s/fd/%.16s",
				 p->d_name, e->d_name);
			len = readlink(path, link, sizeof(link) - 1);
			if (len < 0)
				continue;
			link[len] = '\0';
			if (strcmp(link, want))
				continue;
			snprintf(path, sizeof(path), "/proc/%.16s/comm",
				 p->d_name);
			read_line(path, comm, sizeof(comm));
			snprintf(out, size, "process %.16s, %s", p->d_name,
				 comm);
			break;
		}
		if (fds)
			closedir(fds);
	}
	if (proc)
		closedir(proc);
}

/* Names the owners of the sockets on port 4791 in /proc/net/udp or udp6 that
 * are not this user's; returns how many sockets are. */
static unsigned int port_owners(const char *table, char *others, size_t size)
{
	FILE *file = fopen(table, "re");
	unsigned int port, uid, mine = 0;
	unsigned long inode;
	char line[512], who[128], name[64];
	struct passwd *pw;

	while (file && fgets(line, sizeof(line), file)) {
		if (sscanf(line,
			   " %*u: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %*x "
			   "%*x:%*x %*x:%*x %*x %u %*u %lu",
			   &port, &uid, &inode) != 3 ||
		    port != ROCE_PORT)
			continue;
		if (uid == geteuid()) {
			mine++;
			continue;
		}
		process_of_inode(inode, who, sizeof(who));
		pw = getpwuid(uid);
		snprintf(name, sizeof(name), "%s", pw ? pw->pw_name : "?");
		if (!strstr(others, name))
			add(others, size, "%suser %s (%u)%s%s",
			    others[0] ? "; " : "", name, uid,
			    who[0] ? ", " : "", who);
	}
	if (file)
		fclose(file);
	return mine;
}

/* Whether a socket that shares the port can be bound at a GID's address. */
static int try_bind(const struct hca_gid *g)
{
	struct sockaddr_in in = { .sin_family = AF_INET,
				  .sin_port = htons(ROCE_PORT) };
	struct sockaddr_in6 in6 = { .sin6_family = AF_INET6,
				    .sin6_port = htons(ROCE_PORT) };
	const struct sockaddr *sa = (const void *)&in6;
	socklen_t len = sizeof(in6);
	int fd, one = 1, err = 0;

	memcpy(&in6.sin6_addr, g->entry.gid.raw, 16);
	if (IN6_IS_ADDR_V4MAPPED(&in6.sin6_addr)) {
		memcpy(&in.sin_addr, g->entry.gid.raw + 12, 4);
		sa = (const void *)&in;
		len = sizeof(in);
	} else if (IN6_IS_ADDR_LINKLOCAL(&in6.sin6_addr)) {
		in6.sin6_scope_id = g->entry.ndev_ifindex;
	}
	fd = socket(sa->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof(one));
	if (sa->sa_family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one));
	if (bind(fd, sa, len))
		err = -errno;
	close(fd);
	return err;
}

static void check_port(struct doctor *d, struct finding *f)
{
	char others[512] = "", text[INET6_ADDRSTRLEN];
	unsigned int mine;
	size_t i, j;
	int err;

	mine = port_owners("/proc/net/udp", others, sizeof(others));
	mine += port_owners("/proc/net/udp6", others, sizeof(others));
	for (i = 0; i < d->hcas.count; i++) {
		for (j = 0; j < d->hcas.hca[i].gid_count; j++) {
			const struct hca_gid *g = &d->hcas.hca[i].gid[j];

			err = try_bind(g);
			if (!err)
				continue;
			inet_ntop(AF_INET6, g->entry.gid.raw, text,
				  sizeof(text));
			TEXT(f, "%s%s: %s", f->text[0] ? "; " : "", text,
			     err == -EADDRINUSE ? "taken" : strerror(-err));
			f->status = WARN;
		}
	}
	if (f->status == WARN) {
		TEXT(f, "; used by %s. Traffic within this host still works",
		     others[0] ? others
			       : "something that does not share the port");
		if (!access("/sys/module/rdma_rxe", F_OK))
			FIX(f, "if it is the kernel's rxe: rdma link show, "
			       "then sudo rdma link delete NAME");
		else
			FIX(f, "end that process, or work in a network "
			       "namespace of your own");
		return;
	}
	if (mine)
		TEXT(f, "shared by %u sockets of yours", mine);
	else
		TEXT(f, "free");
	if (others[0])
		TEXT(f, "; at other addresses used by %s", others);
}

static void check_udp(struct doctor *d, struct finding *f)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	int gso = 1024, gro = 1, gso_err = 0, gro_err = 0;

	(void)d;
	if (fd < 0) {
		f->status = FAIL;
		TEXT(f, "no UDP sockets: %s", strerror(errno));
		return;
	}
	if (setsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &gso, sizeof(gso)))
		gso_err = errno;
	if (setsockopt(fd, IPPROTO_UDP, UDP_GRO, &gro, sizeof(gro)))
		gro_err = errno;
	close(fd);
	if (gso_err || gro_err) {
		f->status = WARN;
		TEXT(f,
		     "this kernel cannot take or give many packets at a time "
		     "(UDP_SEGMENT: %s, UDP_GRO: %s), so large transfers are "
		     "several times slower",
		     strerror(gso_err), strerror(gro_err));
		FIX(f, "Linux 5.0 or later has both");
		return;
	}
	TEXT(f, "UDP_SEGMENT and UDP_GRO work");
}

static void check_buffers(struct doctor *d, struct finding *f)
{
	static const struct {
		const char *name, *path;
	} limits[] = {
		{ "net.core.rmem_max", "/proc/sys/net/core/rmem_max" },
		{ "net.core.wmem_max", "/proc/sys/net/core/wmem_max" },
	};
	char line[32];
	size_t i;

	(void)d;
	for (i = 0; i < 2; i++) {
		if (read_line(limits[i].path, line, sizeof(line))) {
			TEXT(f, "%s%s is not shown here", i ? ", " : "",
			     limits[i].name);
			continue;
		}
		TEXT(f, "%s%s %s", i ? ", " : "", limits[i].name, line);
		if (strtoull(line, NULL, 10) < 4 << 20)
			FIX(f, "%s%s=8388608",
			    f->fix[0] ? " "
				      : "for fast networks: sudo sysctl -w ",
			    limits[i].name);
	}
}

/* Whether our library exports symbol (or any, if NULL) in node version. */
static bool exported(const struct doctor *d, const struct elf_need *n)
{
	/* Something public of each node; a symbol of the file is better. */
	char path[PATH_MAX + 64];
	void *lib;

	snprintf(path, sizeof(path), "%s/%s", d->libdir, n->lib);
	lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	return lib && n->symbol && dlvsym(lib, n->symbol, n->version);
}

/*
 * Compares what one file wants of libibverbs and librdmacm with what ours
 * have. Returns how many symbols it wants; -1: not such a file.
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
		if (exported(d, &e.need[i]))
			continue;
		if (!missing++)
			TEXT(f, "%s%s wants %s@%s", f->text[0] ? "; " : "",
			     path, e.need[i].symbol, e.need[i].version);
	}
	if (missing) {
		f->status = WARN;
		if (missing > 1)
			TEXT(f, " and %u more", missing - 1);
		TEXT(f, ", which we do not have");
	}
	elf_close(&e);
	return wanted;
}

static void check_providers(struct doctor *d, struct finding *f)
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
		TEXT(f, "cannot tell where the system's libraries are");
		return;
	}
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
		     "%u system libraries that use libibverbs find all they "
		     "want in ours",
		     files);
		return;
	}
	*f = broken;
	TEXT(f, ": programs that load it do not start");
	FIX(f, "a newer softhca, or the distribution's rdma-core of a release "
	       "we know");
}

/* perftest and its like get capabilities where raw queue pairs are wanted. */
static void check_rights(struct doctor *d, struct finding *f)
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
		TEXT(f, "the loader hears us for all %u RDMA tools in PATH",
		     found);
	else
		TEXT(f, "no RDMA tools in PATH (Debian: perftest, "
			"ibverbs-utils, rdmacm-utils)");
}

static void check_program(struct doctor *d, struct finding *f, const char *name)
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
	wanted = check_file(d, path, f);
	if (f->status != OK) {
		f->status = FAIL;
		return;
	}
	if (wanted < 0) {
		TEXT(f,
		     "%s is no ELF program of this machine; what it runs "
		     "will see softhca",
		     path);
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
		     "%s does not link libibverbs itself; a library or "
		     "plugin of it may",
		     path);
	if (e.rpath)
		TEXT(f, "; its DT_RPATH (%s) is overruled by the preload",
		     e.rpath);
	elf_close(&e);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct doctor *d = state->input;

	(void)arg;
	switch (key) {
	case 'j':
		d->json = true;
		return 0;
	case ARGP_KEY_ARGS:
		d->programs = state->argv + state->next;
		return 0;
	}
	return ARGP_ERR_UNKNOWN;
}

static void check_alone(struct doctor *d, const char *name,
			void (*check)(struct doctor *d, struct finding *f))
{
	struct finding f = { .status = OK };

	check(d, &f);
	report(d, name, &f);
}

static void check_probed(struct doctor *d, const char *name, const char *out,
			 void (*check)(struct doctor *d, struct finding *f,
				       const char *out))
{
	struct finding f = { .status = OK };

	check(d, &f, out);
	report(d, name, &f);
}

static void check_all(struct doctor *d)
{
	char out[8192];

	check_alone(d, "libraries", check_libraries);
	check_alone(d, "device", check_device);
	if (d->libdir[0])
		run_probe(out, sizeof(out));
	else
		out[0] = '\0';
	check_probed(d, "loader", out, check_loader);
	check_probed(d, "shim", out, check_shim);
	check_alone(d, "providers", check_providers);
	check_alone(d, "rights", check_rights);
	check_alone(d, "registry", check_registry);
	check_alone(d, "files", check_tree);
	check_alone(d, "shm", check_shm);
	check_alone(d, "cma", check_cma);
	check_alone(d, "memlock", check_memlock);
	check_alone(d, "port", check_port);
	check_alone(d, "udp", check_udp);
	check_alone(d, "buffers", check_buffers);
}

int cmd_doctor(int argc, char **argv)
{
	static const struct argp_option options[] = {
		{ "json", 'j', NULL, 0, "Print JSON", 0 },
		{ 0 },
	};
	static const struct argp argp = {
		.options = options,
		.parser = parse,
		.args_doc = "[PROGRAM...]",
		.doc = "Find out what works here, what does not, and how "
		       "to fix it. With PROGRAMs, look at those instead.\v"
		       "The exit status is 1 if a line says FAIL, else 0. WARN "
		       "is something slower, or out of reach for some "
		       "programs.\n\n"
		       "Examples:\n"
		       "  softhca doctor\n"
		       "  softhca doctor /usr/bin/ib_write_bw ./my-program\n"
		       "  softhca doctor --json | jq '.checks[] | "
		       "select(.status != \"OK\")'",
	};
	struct doctor d = { .worst = OK };
	struct json_object *all;
	size_t i;

	cli_parse(&argp, argc, argv, EXIT_USAGE, NULL, &d);
	d.list = json_object_new_array();
	libdir_find(d.libdir);
	if (d.programs && d.programs[0]) {
		for (i = 0; d.programs[i]; i++) {
			struct finding f = { .status = OK };

			check_program(&d, &f, d.programs[i]);
			report(&d, "program", &f);
		}
	} else {
		check_all(&d);
	}
	if (d.json) {
		all = json_object_new_object();
		json_object_object_add(all, "version",
				       json_object_new_string(SOFTHCA_VERSION));
		json_object_object_add(
			all, "status",
			json_object_new_string(status_names[d.worst]));
		json_object_object_add(all, "checks", json_object_get(d.list));
		puts(json_object_to_json_string_ext(
			all, JSON_C_TO_STRING_PRETTY |
				     JSON_C_TO_STRING_NOSLASHESCAPE));
		json_object_put(all);
	}
	json_object_put(d.list);
	hca_list_free(&d.hcas);
	return fflush(stdout) || d.worst == FAIL ? 1 : 0;
}

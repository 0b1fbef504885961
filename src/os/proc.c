/*
 * proc.c - what /proc shows of other processes
 *
 * /proc/net/udp shows the user and the inode of each socket, but not its
 * process. A process is found by its descriptors, one of which leads to that
 * inode; those of other users' processes cannot be read.
 */
#include "proc.h"

#include "base/bytes.h"
#include "base/sys.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool proc_find_fd(pid_t pid, bool (*is)(void *arg, const char *link), void *arg)
{
	char path[64], link[4096];
	struct dirent *e;
	bool found = false;
	DIR *fds;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	fds = opendir(path);
	while (fds && !found && (e = readdir(fds))) {
		ssize_t n = readlinkat(dirfd(fds), e->d_name, link,
				       sizeof(link) - 1);

		link[n > 0 ? n : 0] = '\0';
		found = is(arg, link);
	}
	if (fds)
		closedir(fds);
	return found;
}

static bool is_file(void *arg, const char *link)
{
	return !strcmp(link, arg);
}

static void process_text(const char *pid, char *out, size_t len)
{
	char path[64], comm[32] = "";
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%.16s/comm", pid);
	f = fopen(path, "rce");
	if (f) {
		if (fgets(comm, sizeof(comm), f))
			comm[strcspn(comm, "\n")] = '\0';
		fclose(f);
	}
	snprintf(out, len, "process %.16s (%s)", pid, comm);
}

static bool find_process(unsigned long inode, char *out, size_t len)
{
	char file[64];
	struct dirent *e;
	bool found = false;
	DIR *proc = opendir("/proc");

	snprintf(file, sizeof(file), "socket:[%lu]", inode);
	while (proc && !found && (e = readdir(proc))) {
		if (e->d_name[0] < '1' || e->d_name[0] > '9')
			continue;
		found = proc_find_fd((pid_t)atol(e->d_name), is_file, file);
		if (found)
			process_text(e->d_name, out, len);
	}
	if (proc)
		closedir(proc);
	return found;
}

/*
 * Whether a line of /proc/net/udp or udp6 is a socket at this port, and at an
 * address that excludes gid: the same, or the wildcard. The kernel prints
 * addresses as 32-bit words in its own byte order.
 */
static bool line_conflicts(const char *line, const union ibv_gid *gid,
			   uint16_t port, unsigned *uid, unsigned long *inode)
{
	static const uint8_t zero[16];
	uint8_t raw[16] = { [10] = 0xff, [11] = 0xff };
	unsigned its_port, w[4] = { 0 };
	char addr[40];
	int n;

	if (sscanf(line,
		   " %*u: %39[0-9A-Fa-f]:%x %*s %*s %*s %*s %*s %u %*s "
		   "%lu",
		   addr, &its_port, uid, inode) != 4 ||
	    its_port != port)
		return false;
	n = sscanf(addr, "%8x%8x%8x%8x", &w[0], &w[1], &w[2], &w[3]);
	if (n == 1)
		memcpy(raw + 12, w, 4);
	else
		memcpy(raw, w, 16);
	if (n == 4 && !memcmp(raw, zero, 16))
		return true; /* [::] takes IPv4 too, unless told otherwise */
	if (n == 1 && !memcmp(raw + 12, zero, 4))
		return !memcmp(raw, gid->raw, 12); /* any IPv4 address */
	return !memcmp(raw, gid->raw, 16);
}

bool proc_udp_holder(const union ibv_gid *gid, uint16_t port,
		     struct proc_holder *out)
{
	static const char *const tables[] = { "/proc/net/udp",
					      "/proc/net/udp6" };
	unsigned long inode;
	char line[512];

	for (size_t i = 0; i < ARRAY_SIZE(tables); i++) {
		FILE *f = fopen(tables[i], "rce");
		bool found = false;

		if (!f)
			continue;
		while (!found && fgets(line, sizeof(line), f))
			found = line_conflicts(line, gid, port, &out->uid,
					       &inode);
		fclose(f);
		if (!found)
			continue;
		out->named =
			find_process(inode, out->process, sizeof(out->process));
		if (!out->named)
			snprintf(out->process, sizeof(out->process),
				 "a process");
		return true;
	}
	return false;
}

bool proc_text(const char *path, char *text, size_t size)
{
	const int fd = sys_open(path, O_RDONLY | O_CLOEXEC, 0);
	ssize_t n = -1;

	if (fd >= 0) {
		n = sys_read(fd, text, size - 1);
		sys_close(fd);
	}
	text[n > 0 ? n : 0] = '\0';
	return n > 0;
}

char proc_state(pid_t pid, pid_t tid)
{
	char path[64], text[128], of[16] = "self", *state;

	if (pid)
		snprintf(of, sizeof(of), "%d", (int)pid);
	snprintf(path, sizeof(path), "/proc/%s/task/%d/stat", of, (int)tid);
	proc_text(path, text, sizeof(text));
	/* Its name may have anything in it. */
	state = strrchr(text, ')');
	return state && state[1] == ' ' ? state[2] : 0;
}

uint64_t proc_started(void)
{
	unsigned long long ticks = 0;
	char text[512], *rest;

	proc_text("/proc/self/stat", text, sizeof(text));
	/* Field 22; the third one follows the name. */
	rest = strrchr(text, ')');
	if (!rest || sscanf(rest + 1,
			    " %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
			    "%*s %*s %*s %*s %*s %*s %*s %llu",
			    &ticks) != 1)
		return 0;
	return ticks;
}

bool proc_of_another_user(pid_t pid)
{
	char path[32], line[128];
	unsigned real, effective;
	bool known = false;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	f = fopen(path, "rce");
	while (f && !known && fgets(line, sizeof(line), f))
		known = sscanf(line, "Uid: %u %u", &real, &effective) == 2;
	if (f)
		fclose(f);
	return known && effective != geteuid();
}

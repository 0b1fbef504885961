/*
 * tree.c - the files that libsofthca-shim.so shows a program
 *
 * What the kernel would show of our devices below /sys/class/infiniband,
 * /sys/class/infiniband_verbs and /dev/infiniband, as plain files and links.
 * The name of a tree is a hash of its contents: runs with the same devices and
 * addresses share one, nothing in it ever changes, and a program keeps what it
 * started with.
 *
 * Trees live in a directory that belongs to this user alone, inside one that
 * may belong to everybody. It is trusted only if it is a directory of ours that
 * others cannot enter, and everything below is reached through its descriptor.
 */
#include "cli/tree.h"
#include "cli/cli.h"
#include "cli/hca.h"
#include "host/owner.h"
#include "host/sums.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define TREE_NAME_LEN 16 /* hexadecimal digits */
/* When there are more than this many, those last used over an hour ago go. */
#define TREE_KEEP 16
#define TREE_KEEP_SECONDS 3600
/* And then counters that nobody has added to for so long. */
#define COUNTERS_KEEP_SECONDS (24 * 3600)

/* Takes one file (or link) of a tree: path is relative to its root. */
struct sink {
	int (*file)(struct sink *s, const char *path, const char *text);
	int (*link)(struct sink *s, const char *path, const char *target);
	uint64_t hash;
	int dir;
	int err; /* the first one; nothing is taken after it */
};

static void put_file(struct sink *s, const char *dir, const char *name,
		     const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

static void put_file(struct sink *s, const char *dir, const char *name,
		     const char *fmt, ...)
{
	char path[512], text[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text) - 1, fmt, ap);
	va_end(ap);
	strcat(text, "\n");
	snprintf(path, sizeof(path), "%s/%s", dir, name);
	if (!s->err)
		s->err = s->file(s, path, text);
}

static void put_link(struct sink *s, const char *dir, const char *name,
		     const char *target)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	if (!s->err)
		s->err = s->link(s, path, target);
}

/* Gigabits per second of one lane, by ibv_port_attr.active_speed. */
static double lane_rate(uint8_t speed)
{
	switch (speed) {
	case 1:
		return 2.5;
	case 2:
		return 5;
	case 4:
	case 8:
		return 10;
	case 16:
		return 14;
	case 32:
		return 25;
	case 64:
		return 50;
	case 128:
		return 100;
	}
	return 2.5;
}

static unsigned int lanes(uint8_t width)
{
	switch (width) {
	case 2:
		return 4;
	case 4:
		return 8;
	case 8:
		return 12;
	case 16:
		return 2;
	}
	return 1;
}

/* Their values are the shim's: nothing in a tree ever changes. */
static void describe_counters(struct sink *s, const char *dir)
{
	char sub[512];

	for (unsigned i = 0; i < sums_files; i++) {
		snprintf(sub, sizeof(sub), "%s/%s", dir,
			 sums_file[i].hw ? "hw_counters" : "counters");
		put_file(s, sub, sums_file[i].name, "N/A");
	}
	snprintf(sub, sizeof(sub), "%s/hw_counters", dir);
	put_file(s, sub, "lifespan", "%d", SUMS_LIFESPAN_MS);
}

static bool is_rnic(const struct hca *h)
{
	return h->node_type == IBV_NODE_RNIC;
}

static void describe_port(struct sink *s, const struct hca *h, const char *dir)
{
	/* As the kernel words enum ib_port_state and the physical one. */
	static const char *const states[] = {
		"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"
	};
	const struct ibv_port_attr *p = &h->port;
	const union ibv_gid *g;
	char name[16], sub[512];
	size_t i;

	put_file(s, dir, "state", "%d: %s", (int)p->state,
		 (size_t)p->state < sizeof(states) / sizeof(states[0])
			 ? states[p->state]
			 : "<unknown>");
	put_file(s, dir, "phys_state", "%s",
		 p->state == IBV_PORT_ACTIVE ? "5: LinkUp" : "3: Disabled");
	put_file(s, dir, "link_layer", "Ethernet");
	put_file(s, dir, "rate", "%g Gb/sec (%uX)",
		 lane_rate(p->active_speed) * lanes(p->active_width),
		 lanes(p->active_width));
	put_file(s, dir, "lid", "0x%x", p->lid);
	put_file(s, dir, "lid_mask_count", "%d", p->lmc);
	put_file(s, dir, "sm_lid", "0x%x", p->sm_lid);
	put_file(s, dir, "sm_sl", "%d", p->sm_sl);
	put_file(s, dir, "cap_mask", "0x%08x", p->port_cap_flags);
	describe_counters(s, dir);
	snprintf(sub, sizeof(sub), "%s/pkeys", dir);
	put_file(s, sub, "0", "0xffff");
	for (i = 0; i < h->gid_count; i++) {
		snprintf(name, sizeof(name), "%u", h->gid[i].entry.gid_index);
		g = &h->gid[i].entry.gid;
		snprintf(sub, sizeof(sub), "%s/gids", dir);
		put_file(s, sub, name,
			 "%02x%02x:%02x%02x:%02x%02x:%02x%02x:"
			 "%02x%02x:%02x%02x:%02x%02x:%02x%02x",
			 g->raw[0], g->raw[1], g->raw[2], g->raw[3], g->raw[4],
			 g->raw[5], g->raw[6], g->raw[7], g->raw[8], g->raw[9],
			 g->raw[10], g->raw[11], g->raw[12], g->raw[13],
			 g->raw[14], g->raw[15]);
		snprintf(sub, sizeof(sub), "%s/gid_attrs/types", dir);
		/* The name for all others. */
		put_file(s, sub, name,
			 is_rnic(h) ? "IB/RoCE v1" : "RoCE v2");
		snprintf(sub, sizeof(sub), "%s/gid_attrs/ndevs", dir);
		put_file(s, sub, name, "%s", h->gid[i].ifname);
	}
}

static void describe_hca(struct sink *s, const struct hca *h)
{
	char dir[256], sub[300], target[64];
	uint64_t guid = h->node_guid;
	size_t i, j;

	snprintf(dir, sizeof(dir), "sys/class/infiniband/%s", h->name);
	put_file(s, dir, "node_type",
		 is_rnic(h) ? "4: RNIC" : "1: CA");
	put_file(s, dir, "node_desc", "softhca");
	put_file(s, dir, "node_guid", "%04x:%04x:%04x:%04x",
		 (unsigned int)(guid >> 48),
		 (unsigned int)(guid >> 32 & 0xffff),
		 (unsigned int)(guid >> 16 & 0xffff),
		 (unsigned int)(guid & 0xffff));
	put_file(s, dir, "sys_image_guid", "%04x:%04x:%04x:%04x",
		 (unsigned int)(guid >> 48),
		 (unsigned int)(guid >> 32 & 0xffff),
		 (unsigned int)(guid >> 16 & 0xffff),
		 (unsigned int)(guid & 0xffff));
	put_file(s, dir, "fw_ver", "%.64s", h->attr.fw_ver);
	put_file(s, dir, "board_id", "softhca");
	/*
	 * Neither "vendor" nor "device", the PCI identity: with a wrong one,
	 * UCX uses code for hardware. The interfaces link to the real ones.
	 */
	snprintf(sub, sizeof(sub), "%s/device/net", dir);
	for (i = 0; i < h->gid_count; i++) {
		for (j = 0; j < i; j++)
			if (!strcmp(h->gid[j].ifname, h->gid[i].ifname))
				break;
		if (j < i || !h->gid[i].ifname[0])
			continue;
		snprintf(target, sizeof(target), "/sys/class/net/%s",
			 h->gid[i].ifname);
		put_link(s, sub, h->gid[i].ifname, target);
	}
	snprintf(sub, sizeof(sub), "%s/ports/1", dir);
	describe_port(s, h, sub);

	snprintf(dir, sizeof(dir), "sys/class/infiniband_verbs/%s",
		 h->dev_name);
	put_file(s, dir, "ibdev", "%s", h->name);
	put_file(s, dir, "abi_version", "1");
	snprintf(sub, sizeof(sub), "../../infiniband/%s/device", h->name);
	put_link(s, dir, "device", sub);
	put_link(s, "dev/infiniband", h->dev_name, "/dev/null");
}

static void describe(struct sink *s, const struct hca_list *l,
		     const char *libdir)
{
	size_t i;

	put_file(s, "sys/class/infiniband_verbs", "abi_version", "6");
	put_link(s, "dev/infiniband", "rdma_cm", "/dev/null");
	for (i = 0; i < l->count; i++)
		describe_hca(s, &l->hca[i]);
	put_link(s, ".", "lib", libdir);
}

/* FNV-1a */
static int hash_entry(struct sink *s, const char *path, const char *text)
{
	const char *const parts[] = { path, text };
	const char *p;
	size_t i;

	for (i = 0; i < 2; i++) {
		p = parts[i];
		do {
			s->hash ^= (unsigned char)*p;
			s->hash *= 0x100000001b3;
		} while (*p++);
	}
	return 0;
}

static int make_parents(int dir, const char *path)
{
	char part[512];
	const char *p;

	for (p = strchr(path, '/'); p; p = strchr(p + 1, '/')) {
		snprintf(part, sizeof(part), "%.*s", (int)(p - path), path);
		if (mkdirat(dir, part, 0700) && errno != EEXIST)
			return -errno;
	}
	return 0;
}

static int write_file(struct sink *s, const char *path, const char *text)
{
	size_t len = strlen(text);
	ssize_t written;
	int fd, err;

	err = make_parents(s->dir, path);
	if (err)
		return err;
	fd = openat(s->dir, path,
		    O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	written = write(fd, text, len);
	if (written != (ssize_t)len)
		err = written < 0 ? -errno : -EIO;
	close(fd);
	return err;
}

static int write_link(struct sink *s, const char *path, const char *target)
{
	int err = make_parents(s->dir, path);

	if (!err && symlinkat(target, s->dir, path))
		err = -errno;
	return err;
}

/* Removes the tree called name in dir; a link is removed, not followed. */
static void remove_tree(int dir, const char *name, int depth)
{
	struct dirent *e;
	DIR *d;
	int fd;

	if (!unlinkat(dir, name, 0) || depth > 16)
		return;
	fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return;
	d = fdopendir(fd);
	if (!d) {
		close(fd);
		return;
	}
	while ((e = readdir(d)))
		if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
			remove_tree(fd, e->d_name, depth + 1);
	closedir(d);
	unlinkat(dir, name, AT_REMOVEDIR);
}

/* Neither now nor for long. */
static bool unused(int home, const char *name)
{
	const int fd = openat(home, name,
			      O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	struct stat st;
	bool is;

	if (fd < 0)
		return false;
	is = !fstat(fd, &st) && S_ISREG(st.st_mode) &&
	     st.st_mtime < time(NULL) - COUNTERS_KEEP_SECONDS &&
	     !flock(fd, LOCK_EX | LOCK_NB);
	close(fd);
	return is;
}

/* Of a network namespace; those of one that is gone have nobody to use them. */
static void remove_old_counters(int home)
{
	struct dirent *e;
	DIR *d;
	int fd;

	fd = openat(home, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	d = fd < 0 ? NULL : fdopendir(fd);
	while (d && (e = readdir(d)))
		if (!strncmp(e->d_name, SUMS_NAME, strlen(SUMS_NAME)) &&
		    unused(home, e->d_name))
			unlinkat(home, e->d_name, 0);
	if (d)
		closedir(d);
	else if (fd >= 0)
		close(fd);
}

static bool is_tree_name(const char *name)
{
	return strspn(name, "0123456789abcdef") == TREE_NAME_LEN &&
	       name[TREE_NAME_LEN] == '\0';
}

/* Calls fn, if any, for trees and half-made ones; returns their number. */
static size_t for_each_tree(int home, void (*fn)(int home, const char *name))
{
	struct dirent *e;
	size_t n = 0;
	DIR *d;
	int fd;

	fd = openat(home, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	d = fd < 0 ? NULL : fdopendir(fd);
	if (!d) {
		if (fd >= 0)
			close(fd);
		return 0;
	}
	while ((e = readdir(d))) {
		if (!is_tree_name(e->d_name) && strncmp(e->d_name, "new.", 4))
			continue;
		n++;
		if (fn)
			fn(home, e->d_name);
	}
	closedir(d);
	return n;
}

size_t tree_count(int home)
{
	return for_each_tree(home, NULL);
}

static void remove_old(int home, const char *name)
{
	struct stat st;

	if (fstatat(home, name, &st, AT_SYMLINK_NOFOLLOW) ||
	    st.st_mtime > time(NULL) - TREE_KEEP_SECONDS)
		return;
	remove_tree(home, name, 0);
}

/*
 * Opens home, the directory of this user's trees in base. A user who may
 * rename entries of base could replace it, so base must be ours, root's, or
 * sticky.
 */
static int open_home(const char *base, const char *home)
{
	struct stat st;
	int dir, fd, err;

	dir = open(base, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		return -errno;
	if (fstat(dir, &st)) {
		err = -errno;
		goto out;
	}
	err = -EPERM;
	/* In a user namespace root and all others outside have one ID. */
	if (st.st_uid != geteuid() && st.st_uid != 0 &&
	    !(owner_unknown(st.st_uid) && (st.st_mode & S_ISVTX)))
		goto out;
	if ((st.st_mode & 022) && !(st.st_mode & S_ISVTX))
		goto out;
	if (mkdirat(dir, home, 0700) && errno != EEXIST) {
		err = -errno;
		goto out;
	}
	fd = openat(dir, home, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0) {
		err = -errno;
		goto out;
	}
	err = fd;
	if (fstat(fd, &st))
		err = -errno;
	else if (!owner_private(fd, &st))
		err = -EPERM;
	else if (faccessat(fd, ".", W_OK | X_OK, AT_EACCESS))
		err = -errno;
	if (err < 0)
		close(fd);
out:
	close(dir);
	return err;
}

int tree_home(char home[PATH_MAX], char *why, size_t why_size)
{
	const char *const bases[] = { getenv("SOFTHCA_RUNDIR"),
				      getenv("XDG_RUNTIME_DIR"), "/dev/shm",
				      "/tmp" };
	char name[64];
	size_t i, used = 0;
	int fd = -ENOENT;

	snprintf(name, sizeof(name), "softhca-sysfs-%u", owner_uid());
	why[0] = '\0';
	for (i = 0; i < sizeof(bases) / sizeof(bases[0]); i++) {
		if (!bases[i] || bases[i][0] != '/' ||
		    strlen(bases[i]) > PATH_MAX / 2)
			continue;
		snprintf(home, PATH_MAX, "%s/%s", bases[i], name);
		fd = open_home(bases[i], name);
		if (fd >= 0)
			return fd;
		if (used < why_size)
			used += (size_t)snprintf(
				why + used, why_size - used, "%s%s: %s",
				used ? "; " : "", home,
				fd == -EPERM ? "not private to this user"
					     : strerror(-fd));
	}
	return fd;
}

int tree_make(const struct hca_list *l, const char *libdir, char path[PATH_MAX])
{
	struct sink sum = { .file = hash_entry,
			    .link = hash_entry,
			    .hash = 0xcbf29ce484222325 };
	struct sink disk = { .file = write_file, .link = write_link };
	char home[PATH_MAX], name[TREE_NAME_LEN + 1], half[64], why[512];
	int fd, err = 0;

	fd = tree_home(home, why, sizeof(why));
	if (fd < 0) {
		cli_say("programs will not see /sys/class/infiniband: no place "
			"to write to: %s. For the remedy: softhca doctor",
			why);
		return fd;
	}
	describe(&sum, l, libdir);
	snprintf(name, sizeof(name), "%016llx", (unsigned long long)sum.hash);
	if (snprintf(path, PATH_MAX, "%s/%s", home, name) >= PATH_MAX) {
		close(fd);
		return -ENAMETOOLONG;
	}
	/* Marks it as used, if it exists. */
	if (!utimensat(fd, name, NULL, AT_SYMLINK_NOFOLLOW)) {
		close(fd);
		return 0;
	}

	if (for_each_tree(fd, NULL) > TREE_KEEP) {
		for_each_tree(fd, remove_old);
		remove_old_counters(fd);
	}
	snprintf(half, sizeof(half), "new.%d", (int)getpid());
	remove_tree(fd, half, 0);
	if (mkdirat(fd, half, 0700)) {
		err = -errno;
		goto out;
	}
	disk.dir = openat(fd, half,
			  O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (disk.dir < 0) {
		err = -errno;
		goto out;
	}
	describe(&disk, l, libdir);
	close(disk.dir);
	err = disk.err;
	/* Another process may have made the same one meanwhile. */
	if (!err && renameat(fd, half, fd, name) && errno != ENOTEMPTY &&
	    errno != EEXIST)
		err = -errno;
out:
	remove_tree(fd, half, 0);
	close(fd);
	if (err)
		cli_say("cannot write %s: %s", path, strerror(-err));
	return err;
}

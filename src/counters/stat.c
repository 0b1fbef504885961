/*
 * stat.c - asking processes for their counters, and answering
 *
 * The socket's name is the registry's with ".SLOT.s" behind it. What has been
 * left by a process that is gone refuses connections; the next owner of the slot
 * removes it.
 */
#include "stat.h"

#include "base/bytes.h"
#include "base/fd_high.h"
#include "base/gid.h"
#include "base/lines.h"
#include "base/sys.h"
#include "os/owner.h"
#include "registry/registry.h"
#include "suspend_ask.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define SUFFIX ".s" /* of REGISTRY_STAT */
#define WAIT_NS 1000000000ull
#define SUMS_WAIT_NS 200000000ull
#define ANSWERS 16 /* in one go */
#define SIZE_MAX_SANE (64u << 20)

#define NAME(id, field, name, file, help) { name, help },
const struct stat_name stat_names[STAT_COUNTERS] = { QP_COUNTS(NAME, NAME) };

#define OTHER_NAME(id, name, help) { name, help },
const struct stat_name stat_other_names[STAT_OTHERS] = { STAT_OTHER_COUNTS(
	OTHER_NAME) };

/*
 * Where a socket is. A name that is too long for one is reached by its directory,
 * which is open while this lasts.
 */
struct address {
	struct sockaddr_un a;
	int dir; /* -1: none */
};

static int address_open(struct address *p, const char *path)
{
	const char *name = strrchr(path, '/') + 1;
	char dir[4096];

	*p = (struct address){ .a.sun_family = AF_UNIX, .dir = -1 };
	if (strlen(path) < sizeof(p->a.sun_path)) {
		memcpy(p->a.sun_path, path, strlen(path) + 1);
		return 0;
	}
	if (snprintf(dir, sizeof(dir), "%.*s", (int)(name - path), path) >=
	    (int)sizeof(dir))
		return -ENAMETOOLONG;
	p->dir = sys_open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
	if (p->dir < 0)
		return -errno;
	snprintf(p->a.sun_path, sizeof(p->a.sun_path), "/proc/self/fd/%d/%.64s",
		 p->dir, name);
	return 0;
}

static void address_close(struct address *p)
{
	if (p->dir >= 0)
		sys_close(p->dir);
}

/* That of a slot's process. */
static int address_of(struct address *p, const char *path, unsigned slot)
{
	char name[4096];

	if (snprintf(name, sizeof(name), "%s" REGISTRY_STAT, path, slot) >=
	    (int)sizeof(name))
		return -ENAMETOOLONG;
	return address_open(p, name);
}

int stat_listen(const char *path, unsigned slot)
{
	struct address p;
	int fd, err = address_of(&p, path, slot);

	if (err)
		return err;
	fd = fd_high(socket(AF_UNIX,
			    SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
	if (fd < 0) {
		fd = -errno;
		goto out;
	}
	unlink(p.a.sun_path);
	/* A client that connects in between may be another user's: its
	 * credentials are checked. */
	if (bind(fd, (struct sockaddr *)&p.a, sizeof(p.a)) ||
	    chmod(p.a.sun_path, 0600) || listen(fd, ANSWERS)) {
		err = -errno;
		sys_close(fd);
		fd = err;
	}
out:
	address_close(&p);
	return fd;
}

void stat_unlink(const char *path, unsigned slot)
{
	struct address p;

	if (address_of(&p, path, slot))
		return;
	unlink(p.a.sun_path);
	address_close(&p);
}

/* Whether the other end of a socket is of this user, or root. */
static bool is_ours(int fd, pid_t *pid)
{
	struct ucred c;
	socklen_t len = sizeof(c);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &c, &len))
		return false;
	*pid = c.pid;
	return c.uid == geteuid() || !c.uid;
}

static void send_file(int fd, int file)
{
	char byte = 0;
	struct iovec iov = { &byte, 1 };
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	struct msghdr m = { .msg_iov = &iov,
			    .msg_iovlen = 1,
			    .msg_control = control.bytes,
			    .msg_controllen = sizeof(control.bytes) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &file, sizeof(file));
	if (sys_sendmsg(fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
		return; /* who asked has gone */
}

/*
 * Who wants less has a name, any name: that is known at once, where a byte might
 * come late.
 */
static int want_less(int fd)
{
	const struct sockaddr_un any = { .sun_family = AF_UNIX };

	return bind(fd, (const struct sockaddr *)&any, sizeof(any.sun_family));
}

static enum stat_want wanted(int fd)
{
	struct sockaddr_un who;
	socklen_t len = sizeof(who);

	return getpeername(fd, (struct sockaddr *)&who, &len) ||
			       len <= sizeof(who.sun_family) ?
		       STAT_WANT_ALL :
		       STAT_WANT_COUNTERS;
}

void stat_answer(int fd, int (*copy)(void *arg, enum stat_want want), void *arg,
		 void (*suspend)(int who, const struct suspend_request *want))
{
	for (int i = 0; i < ANSWERS; i++) {
		int who = sys_accept(fd, SOCK_CLOEXEC | SOCK_NONBLOCK);
		struct suspend_request want;
		int file;
		pid_t pid;

		if (who < 0)
			return;
		if (!is_ours(who, &pid)) {
			sys_close(who);
			continue;
		}
		if (suspend && suspend_is_asked(who, &want)) {
			suspend(who, &want);
			continue;
		}
		file = copy(arg, wanted(who));
		if (file >= 0) {
			send_file(who, file);
			sys_close(file);
		}
		sys_close(who);
	}
}

static int file_write(int fd, const void *p, size_t size)
{
	const char *at = p;

	while (size) {
		long n = sys_write(fd, at, size);

		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		at += n;
		size -= (size_t)n;
	}
	return 0;
}

int stat_file(const struct stat_head *head, const struct stat_device *devices,
	      const struct stat_qp *qps, const char *text)
{
	int err, fd = memfd_create("softhca-stat",
				   MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0)
		return -errno;
	err = file_write(fd, head, sizeof(*head));
	if (!err)
		err = file_write(fd, devices,
				 head->ndevices * sizeof(*devices));
	if (!err)
		err = file_write(fd, qps, head->nqps * sizeof(*qps));
	if (!err)
		err = file_write(fd, text, head->text);
	if (!err &&
	    fcntl(fd, F_ADD_SEALS,
		  F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL))
		err = -errno;
	if (err)
		sys_close(fd);
	return err ? err : fd;
}

/* Asking */

static int receive_file(int fd)
{
	char byte;
	struct iovec iov = { &byte, 1 };
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
	struct msghdr m = { .msg_iov = &iov,
			    .msg_iovlen = 1,
			    .msg_control = control.bytes,
			    .msg_controllen = sizeof(control.bytes) };
	struct cmsghdr *c;
	int file;

	if (sys_recvmsg(fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) < 0)
		return -errno;
	c = CMSG_FIRSTHDR(&m);
	if (!c || c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS ||
	    c->cmsg_len != CMSG_LEN(sizeof(int)))
		return -EPROTO;
	memcpy(&file, CMSG_DATA(c), sizeof(file));
	return file;
}

/* A string that may go to a terminal. */
static bool is_printable(const char *s, size_t size)
{
	for (size_t i = 0; i < size; i++)
		if (!s[i])
			return true;
		else if ((unsigned char)s[i] < ' ' || (unsigned char)s[i] > '~')
			return false;
	return false;
}

/* The same of lines. */
static bool printable_lines(const char *s, size_t size)
{
	for (size_t i = 0; i + 1 < size; i++)
		if (s[i] != '\n' &&
		    ((unsigned char)s[i] < ' ' || (unsigned char)s[i] > '~'))
			return false;
	return size && !s[size - 1];
}

/* Whether it is what it has to be. Sealed, it stays so. */
static bool is_sound(struct stat_reply *r)
{
	const struct stat_head *h = r->map;
	size_t want = sizeof(*h);

	if (r->size < want || memcmp(h->magic, STAT_MAGIC, sizeof(h->magic)) ||
	    h->version != STAT_VERSION || h->counters != STAT_COUNTERS ||
	    h->others != STAT_OTHERS)
		return false;
	want += (uint64_t)h->ndevices * sizeof(*r->device);
	want += (uint64_t)h->nqps * sizeof(*r->qp);
	want += h->text;
	if (r->size != want)
		return false;
	r->head = h;
	r->device = (const void *)(h + 1);
	r->qp = (const void *)(r->device + h->ndevices);
	r->text = (const void *)(r->qp + h->nqps);
	for (uint32_t i = 0; i < h->ndevices; i++)
		if (!is_printable(r->device[i].name,
				  sizeof(r->device[i].name)) ||
		    !is_printable(r->device[i].own_name,
				  sizeof(r->device[i].own_name)))
			return false;
	for (uint32_t i = 0; i < h->nqps; i++)
		if (r->qp[i].device >= h->ndevices ||
		    !is_printable(r->qp[i].waits, sizeof(r->qp[i].waits)))
			return false;
	return printable_lines(r->text, h->text);
}

static int map_file(struct stat_reply *r, int file)
{
	const int seals = F_SEAL_SHRINK | F_SEAL_WRITE;
	struct stat st;

	if ((fcntl(file, F_GET_SEALS) & seals) != seals || fstat(file, &st) ||
	    st.st_size <= 0 || st.st_size > SIZE_MAX_SANE)
		return -EPROTO;
	r->size = (size_t)st.st_size;
	r->map = mmap(NULL, r->size, PROT_READ, MAP_PRIVATE, file, 0);
	if (r->map == MAP_FAILED) {
		r->map = NULL;
		return -errno;
	}
	return is_sound(r) ? 0 : -EPROTO;
}

static void ask_one(int fd, struct stat_reply *r, uint64_t until)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	uint64_t now = sys_now_ns();
	int file;

	if (poll(&p, 1, until > now ? (int)((until - now) / 1000000) : 0) < 1) {
		r->err = -ETIMEDOUT;
		return;
	}
	file = receive_file(fd);
	r->err = file < 0 ? file : map_file(r, file);
	if (file >= 0)
		sys_close(file);
}

void stat_process_name(pid_t pid, char name[32])
{
	char path[64];
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/comm", (int)pid);
	f = pid ? fopen(path, "rce") : NULL;
	if (!f || !fgets(name, 32, f))
		name[0] = 0;
	name[strcspn(name, "\n")] = 0;
	make_printable(name);
	if (f)
		fclose(f);
}

void stat_head_text(pid_t pid, const char *comm, uint32_t nqps,
		    char text[STAT_TEXT])
{
	if (nqps)
		snprintf(text, STAT_TEXT, "process %d (%s): %u queue pair%s",
			 (int)pid, comm, nqps, plural(nqps));
	else
		snprintf(text, STAT_TEXT, "process %d (%s): no queue pair",
			 (int)pid, comm);
}

void stat_qp_text(const struct stat_qp *q, const char *type, const char *state,
		  char text[STAT_TEXT])
{
	char peer[100] = "";
	struct gid_text gid;

	gid_str((const union ibv_gid *)(const void *)q->dgid, &gid);
	if (q->dest_qpn)
		snprintf(peer, sizeof(peer), ", peer %s QP 0x%06x", gid.text,
			 q->dest_qpn);
	snprintf(text, STAT_TEXT, "QP 0x%06x (%s, %s%s): %s", q->qpn, type,
		 state, peer, q->waits);
}

struct asked {
	enum stat_want want;
	char prefix[64]; /* of the names of those that are asked */
	struct stat_reply *reply;
	size_t n;
	int *fd;
};

/* A connection, so that all answer while the first is waited for. */
static int connect_one(struct asked *all, const char *path)
{
	struct stat_reply r = { 0 }, *reply;
	struct address p;
	int *fds, fd, err;

	if (address_open(&p, path))
		return 0;
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	err = fd < 0 || (all->want == STAT_WANT_COUNTERS && want_less(fd)) ||
	      (connect(fd, (struct sockaddr *)&p.a, sizeof(p.a)) &&
	       errno != EAGAIN);
	address_close(&p);
	if (fd < 0)
		return 0;
	if (err || !is_ours(fd, &r.pid)) {
		sys_close(fd);
		return 0; /* its process is gone, or it is somebody else's */
	}
	stat_process_name(r.pid, r.comm);
	reply = realloc(all->reply, (all->n + 1) * sizeof(*reply));
	if (reply)
		all->reply = reply;
	fds = realloc(all->fd, (all->n + 1) * sizeof(*fds));
	if (fds)
		all->fd = fds;
	if (!reply || !fds) {
		sys_close(fd);
		return -ENOMEM;
	}
	reply[all->n] = r;
	fds[all->n++] = fd;
	return 0;
}

static int connect_all(struct asked *all, const char *dir)
{
	char path[4096];
	struct dirent *d;
	int err = 0;
	DIR *f = opendir(dir);

	if (!f)
		return 0;
	while (!err && (d = readdir(f))) {
		const size_t len = strlen(d->d_name);

		if (strncmp(d->d_name, all->prefix, strlen(all->prefix)) ||
		    len < sizeof(SUFFIX) ||
		    strcmp(d->d_name + len - strlen(SUFFIX), SUFFIX))
			continue;
		snprintf(path, sizeof(path), "%s/%s", dir, d->d_name);
		err = connect_one(all, path);
	}
	closedir(f);
	return err;
}

static int ask_dirs(struct asked *all, const char *dir, uint64_t wait_ns)
{
	const char *dirs[REGISTRY_DIRS];
	const size_t ndirs = registry_dirs(dir, dirs);
	const uint64_t until = sys_now_ns() + wait_ns;
	int err = 0;

	for (size_t i = 0; i < ndirs && !err; i++)
		err = connect_all(all, dirs[i]);
	for (size_t i = 0; i < all->n; i++) {
		if (!err)
			ask_one(all->fd[i], &all->reply[i], until);
		sys_close(all->fd[i]);
	}
	free(all->fd);
	if (err)
		stat_free(all->reply, all->n);
	return err;
}

int stat_ask(const char *dir, enum stat_want want, struct stat_reply **replies,
	     size_t *n)
{
	struct asked all = { .want = want };
	int err;

	snprintf(all.prefix, sizeof(all.prefix), REGISTRY_NAME, owner_uid());
	err = ask_dirs(&all, dir, WAIT_NS);
	if (err)
		return err;
	*replies = all.reply;
	*n = all.n;
	return 0;
}

void stat_ask_sums(const char *dir)
{
	struct asked all = { .want = STAT_WANT_COUNTERS };

	snprintf(all.prefix, sizeof(all.prefix), REGISTRY_NAME "%llu.",
		 owner_uid(), registry_number(dir));
	if (!ask_dirs(&all, dir, SUMS_WAIT_NS))
		stat_free(all.reply, all.n);
}

void stat_free(struct stat_reply *replies, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (replies[i].map)
			munmap(replies[i].map, replies[i].size);
	free(replies);
}

/*
 * registry_file.c - the registry's file: who may open it, its locks, its end
 *
 * Whether a process is alive is the kernel's word: a POSIX record lock on a
 * byte beyond the end of the file, one per slot. Such locks are not inherited
 * by fork(), and all those of a process on a file are lost when it closes any
 * descriptor of that file, so a process opens it once, however many times it
 * joins (struct regfile).
 *
 * Locks: registry_mutex keeps out the threads of this process, the record lock
 * on LOCK_BYTE other processes.
 */
#include "registry_internal.h"

#include "base/fd_high.h"
#include "base/sys.h"
#include "os/config.h"
#include "os/owner.h"
#include "os/proc.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define MAGIC 0x73486341726f4345u
#define VERSION 5
#define LOCK_BYTE (4 << 20) /* the slots' bytes follow, then their seats' */
#define LOCK_WAIT_NS 5000000000u /* for one holder that sleeps, */
#define LOCK_MOST_NS 60000000000u /* and for all of a crowd */
#define OPEN_WAIT_NS 5000000000u /* while others come and go */

pthread_mutex_t registry_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct regfile *files;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void take_mutex(void)
{
	pthread_mutex_lock(&registry_mutex);
}

static void release_mutex(void)
{
	pthread_mutex_unlock(&registry_mutex);
}

static void init_once(void)
{
	pthread_atfork(take_mutex, release_mutex, release_mutex);
}

void regfile_init(void)
{
	pthread_once(&once, init_once);
}

static int record_lock(int fd, short type, off_t byte)
{
	struct flock fl = { .l_type = type,
			    .l_whence = SEEK_SET,
			    .l_start = byte,
			    .l_len = 1 };

	if (!fcntl(fd, F_SETLK, &fl))
		return 0;
	return errno == EACCES ? -EAGAIN : -errno;
}

static off_t slot_byte(unsigned slot)
{
	return LOCK_BYTE + 1 + (off_t)slot;
}

/* A byte of its own: of two locks on one the kernel names either holder. */
static off_t seat_byte(unsigned slot)
{
	return slot_byte(slot) + REGISTRY_SLOTS;
}

/* Whether another process has the lock; *pid: which, or 0 if that cannot be
 * named here. One's own locks are no obstacle and hence not reported. */
static bool record_locked(int fd, off_t byte, pid_t *pid)
{
	struct flock fl = { .l_type = F_WRLCK,
			    .l_whence = SEEK_SET,
			    .l_start = byte,
			    .l_len = 1 };
	bool locked = !fcntl(fd, F_GETLK, &fl) && fl.l_type != F_UNLCK;

	*pid = locked ? fl.l_pid : 0;
	return locked;
}

/* It lets go when it is done, or a CPU is free for it. */
static bool is_ready_to_run(pid_t pid)
{
	return pid > 0 && proc_state(pid, pid) == 'R';
}

/*
 * One holder is waited for only so long, as it may be stopped. Where the lock
 * goes from hand to hand, or a holder waits for a CPU, nothing is wrong, but a
 * crowd of processes that spin can take a minute to start on few processors.
 */
static int record_lock_wait(int fd)
{
	const uint64_t begin = clock_ns();
	uint64_t end = begin + LOCK_WAIT_NS, nap = 20000, now;
	pid_t holder = 0, is;
	int err;

	while ((err = record_lock(fd, F_WRLCK, LOCK_BYTE)) == -EAGAIN) {
		now = clock_ns();
		record_locked(fd, LOCK_BYTE, &is);
		if (is != holder || (now >= end && is_ready_to_run(is))) {
			holder = is;
			end = min_u64(now + LOCK_WAIT_NS, begin + LOCK_MOST_NS);
		}
		if (now >= end)
			return -ETIMEDOUT;
		sys_sleep(nap);
		if (nap < 2000000)
			nap *= 2;
	}
	return err;
}

int regfile_lock(struct regfile *f)
{
	return record_lock_wait(f->fd);
}

bool regfile_slot_holder(const struct regfile *f, unsigned slot, pid_t *pid)
{
	if (f->mine[slot / 64] >> (slot % 64) & 1) {
		*pid = f->pid;
		return true;
	}
	if (record_locked(f->fd, slot_byte(slot), pid)) {
		if (*pid < 0)
			*pid = 0;
		return true;
	}
	if (!record_locked(f->fd, seat_byte(slot), pid))
		return false;
	*pid = 0; /* whoever has it, it is not the slot's process */
	return true;
}

bool regfile_slot_alive(const struct regfile *f, unsigned slot)
{
	pid_t pid;

	return regfile_slot_holder(f, slot, &pid);
}

int regfile_slot_take(struct regfile *f, unsigned slot)
{
	int err = -EBUSY;
	pid_t pid;

	if (!(f->mine[slot / 64] >> (slot % 64) & 1) &&
	    !record_locked(f->fd, seat_byte(slot), &pid))
		err = record_lock(f->fd, F_WRLCK, slot_byte(slot));
	if (!err)
		f->mine[slot / 64] |= 1ull << (slot % 64);
	return err;
}

void regfile_slot_drop(struct regfile *f, unsigned slot)
{
	record_lock(f->fd, F_UNLCK, slot_byte(slot));
	f->mine[slot / 64] &= ~(1ull << (slot % 64));
}

/* A lock of an open file description: it lasts as long as that. */
static int seat_lock(int fd, short type, unsigned slot)
{
	struct flock fl = { .l_type = type,
			    .l_whence = SEEK_SET,
			    .l_start = seat_byte(slot),
			    .l_len = 1 };

	return fcntl(fd, F_OFD_SETLK, &fl) ? -errno : 0;
}

/* Whether it still is what we opened: the program may have closed it, and opened
 * another. */
static bool is_of(const struct regfile *f, int fd)
{
	struct stat st;

	return fd >= 0 && !fstat(fd, &st) && st.st_dev == f->dev &&
	       st.st_ino == f->ino;
}

/* To close a descriptor of the file would let go of all our locks: one that was
 * not needed stays for the next time. */
int regfile_seat(struct regfile *f, unsigned slot)
{
	int fd = is_of(f, f->spare) ? f->spare : -1, err;

	if (fd < 0)
		fd = sys_open(f->path, O_RDWR | O_NOFOLLOW | O_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	/* One of an earlier time may not be given back yet. */
	err = seat_lock(fd, F_RDLCK, slot);
	f->spare = err ? fd : -1;
	return err ? err : fd;
}

void regfile_seat_close(const struct regfile *f, int seat)
{
	if (is_of(f, seat))
		sys_close(seat);
}

/* With the file itself. */
static void spare_close(struct regfile *f)
{
	regfile_seat_close(f, f->spare);
	f->spare = -1;
}

int regfile_seat_take(struct regfile *f, unsigned slot, int seat)
{
	int err;

	/* At no time does nobody have it. */
	err = seat_lock(f->fd, F_RDLCK, slot);
	if (err)
		return err;
	if (is_of(f, seat)) {
		sys_close(seat); /* and with it go our other locks */
		err = regfile_lock(f);
	}
	if (!err)
		err = record_lock(f->fd, F_WRLCK, slot_byte(slot));
	seat_lock(f->fd, F_UNLCK, slot);
	if (!err)
		f->mine[slot / 64] |= 1ull << (slot % 64);
	return err;
}

int registry_lock(struct registry *r)
{
	int err;

	pthread_mutex_lock(&registry_mutex);
	registry_await(r);
	err = regfile_lock(r->file);
	if (err)
		pthread_mutex_unlock(&registry_mutex);
	return err;
}

int registry_trylock(struct registry *r)
{
	int err;

	if (pthread_mutex_trylock(&registry_mutex))
		return -EAGAIN;
	/* Also where it is away: there is no file then. */
	err = record_lock(r->file->fd, F_WRLCK, LOCK_BYTE);
	if (err)
		pthread_mutex_unlock(&registry_mutex);
	return err;
}

void regfile_unlock(struct regfile *f)
{
	if (f->changed) {
		f->changed = false;
		for (struct registry *r = f->users; r; r = r->next)
			if (r->fn)
				r->fn(r->arg);
	}
	record_lock(f->fd, F_UNLCK, LOCK_BYTE);
}

void registry_unlock(struct registry *r)
{
	regfile_unlock(r->file);
	pthread_mutex_unlock(&registry_mutex);
}

void registry_on_change(struct registry *r, void (*fn)(void *arg), void *arg)
{
	pthread_mutex_lock(&registry_mutex);
	r->fn = fn;
	r->arg = arg;
	pthread_mutex_unlock(&registry_mutex);
}

const char *registry_path(const struct registry *r)
{
	return r->file->path;
}

/* Opening the file */

static _Thread_local char why_text[512];

const char *regfile_why(void)
{
	return why_text;
}

int regfile_fail(int err, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why_text, sizeof(why_text), fmt, ap);
	va_end(ap);
	return err;
}

static int lock_failed(int err, int fd, const char *path)
{
	pid_t pid = 0;

	if (err == -ETIMEDOUT)
		record_locked(fd, LOCK_BYTE, &pid);
	if (pid <= 0) /* or of another PID namespace */
		return regfile_fail(err, "cannot lock %s: %s", path,
				    sys_strerror(-err));
	return regfile_fail(err,
			    "cannot lock %s: process %d holds it and does not "
			    "let go; end it, or if it is stopped, let it go on "
			    "(kill -CONT %d)",
			    path, pid, pid);
}

/* Of this host since it was started: zero where that cannot be read. */
static void boot_id(uint64_t id[2])
{
	char text[40];
	int fd = sys_open("/proc/sys/kernel/random/boot_id",
			  O_RDONLY | O_CLOEXEC, 0);

	id[0] = id[1] = 0;
	if (fd < 0)
		return;
	if (sys_read(fd, text, sizeof(text)) >= 36)
		for (size_t i = 0; i < 36; i++)
			id[i / 18] = id[i / 18] * 31 + (uint8_t)text[i];
	sys_close(fd);
}

/* An empty file of ours, locked. */
static int init_file(int fd)
{
	struct head head = { .version = VERSION,
			     .size = sizeof(struct shared) };
	uint64_t magic = MAGIC;
	uint32_t random[2];
	int err;

	static_assert(sizeof(struct shared) < LOCK_BYTE,
		      "locks beyond the end");
	err = sys_file_limit(sizeof(struct shared));
	if (err)
		return err;
	/* A full tmpfs shows here and not as a SIGBUS later. */
	err = posix_fallocate(fd, 0, sizeof(struct shared));
	if (err)
		goto err_truncate;
	if (!sys_random(random, sizeof(random))) {
		err = EIO;
		goto err_truncate;
	}
	/* Stale packets of an earlier boot should not meet their old QPN. */
	head.cursor = random[0] % REGISTRY_CHUNKS;
	head.nets = random[1];
	boot_id(head.boot);
	if (sys_write(fd, &head, sizeof(head)) != sizeof(head) ||
	    lseek(fd, 0, SEEK_SET) ||
	    sys_write(fd, &magic, sizeof(magic)) != sizeof(magic)) {
		err = EIO;
		goto err_truncate;
	}
	return 0;

err_truncate:
	if (ftruncate(fd, 0))
		err = errno;
	return -err;
}

static bool file_valid(int fd, const struct stat *st, struct head *head)
{
	return st->st_size == sizeof(struct shared) &&
	       sys_pread(fd, head, sizeof(*head), 0) == sizeof(*head) &&
	       head->magic == MAGIC && head->version == VERSION &&
	       head->size == sizeof(struct shared);
}

/* File systems that hosts share: what one of them writes in memory, others see
 * late or never. linux/magic.h has not all of them. */
static bool is_of_several_hosts(const char *dir)
{
	static const uint32_t magic[] = {
		0x6969, /* NFS */
		0x517b, /* SMB */
		0xfe534d42, /* SMB 2 */
		0xff534d42, /* CIFS */
		0x00c36400, /* Ceph */
		0x0bd00bd0, /* Lustre */
		0x47504653, /* GPFS */
		0x5346414f, /* AFS */
		0x6b414653, /* AFS of the kernel */
		0x73757245, /* Coda */
		0x01161970, /* GFS2 */
		0x7461636f, /* OCFS2 */
		0x19830326, /* BeeGFS */
		0xaad7aaea, /* PanFS */
		0x65735546, /* FUSE: sshfs, virtiofs, GlusterFS */
		0x01021997, /* 9P: a folder of the host of a virtual machine */
	};
	struct statfs s;

	if (statfs(dir, &s))
		return false;
	for (size_t i = 0; i < ARRAY_SIZE(magic); i++)
		if ((uint32_t)s.f_type == magic[i])
			return true;
	return false;
}

static bool is_this_boots(const struct head *head)
{
	uint64_t id[2];

	boot_id(id);
	return head->boot[0] == id[0] && head->boot[1] == id[1];
}

/* Whether a file has another host's processes; one that nobody has a lock on is
 * of an earlier start of this one. */
static bool is_another_hosts(int fd, const struct head *head)
{
	struct flock any = { .l_type = F_WRLCK,
			     .l_whence = SEEK_SET,
			     .l_start = LOCK_BYTE + 1 };

	return !is_this_boots(head) && !fcntl(fd, F_GETLK, &any) &&
	       any.l_type != F_UNLCK;
}

static struct regfile *find_file(const char *path)
{
	struct stat st;

	if (lstat(path, &st))
		return NULL;
	for (struct regfile *f = files; f; f = f->next)
		if (f->dev == st.st_dev && f->ino == st.st_ino)
			return f;
	return NULL;
}

/* Removes a registry of ours that nobody uses: no process has a lock on it. */
static void remove_stray(const char *path)
{
	struct flock any = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	struct stat st;
	int fd;

	if (find_file(path))
		return; /* to close it would drop our locks */
	fd = sys_open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0);
	if (fd < 0)
		return;
	/* Whoever has opened it and waits for the lock finds that it is gone.
	 * One's own lock is not reported. */
	if (!fstat(fd, &st) && S_ISREG(st.st_mode) && owner_private(fd, &st) &&
	    !record_lock(fd, F_WRLCK, LOCK_BYTE) && !fcntl(fd, F_GETLK, &any) &&
	    any.l_type == F_UNLCK)
		unlink(path);
	sys_close(fd);
}

/*
 * Whether a file's name is a registry's of this user; *end: where that ends.
 * What follows may be a segment's number. prefix: the length of what the names
 * of all have in common.
 */
static bool registry_name(const char *name, const char *own, size_t prefix,
			  const char **end)
{
	if (strncmp(name, own, prefix))
		return false;
	*end = name + prefix + strspn(name + prefix, "0123456789");
	return *end > name + prefix;
}

/* Whether what follows a registry's name makes it a segment's. */
static bool segment_suffix(const char *s)
{
	return s[0] == '.' && s[1] >= '0' && s[1] <= '9';
}

/* The file of a segment at dir/name: does its registry exist? */
static bool has_registry(const char *dir, const char *name, const char *end)
{
	char path[4096 + 256];
	struct stat st;

	snprintf(path, sizeof(path), "%s%.*s", dir, (int)(end - name), name);
	return !lstat(path, &st);
}

/*
 * Processes that are killed leave the files of their network namespace. Where
 * the namespace is gone nobody else comes to use or remove them. The registry
 * at own is new and stays; no segments belong to it yet.
 */
static void remove_strays(const char *own)
{
	const char *base = strrchr(own, '/') + 1, *end;
	size_t prefix = (size_t)(strrchr(own, '-') + 1 - base);
	char dir[4096], path[4096 + 256];
	struct dirent *e;
	DIR *d;

	snprintf(dir, sizeof(dir), "%.*s", (int)(base - own), own);
	for (int segments = 0; segments < 2; segments++) {
		d = opendir(dir);
		while (d && (e = readdir(d))) {
			const char *name = e->d_name;
			bool ours;

			if (!registry_name(name, base, prefix, &end) ||
			    !(segments ? segment_suffix(end) : !*end))
				continue;
			ours = !strncmp(name, base, (size_t)(end - name)) &&
			       !base[end - name];
			snprintf(path, sizeof(path), "%s%.255s", dir, name);
			if (!segments && !ours)
				remove_stray(path);
			if (segments && (ours || !has_registry(dir, name, end)))
				unlink(path);
		}
		if (d)
			closedir(d);
	}
}

/*
 * Opens, locks and if need be makes the file at path. -EAGAIN: it was replaced
 * meanwhile. A file that is not as it should be is never changed, since it may
 * not be what it seems (a hard link): it is unlinked, and another one made.
 */
static int open_locked(const char *path, bool shared, struct stat *st)
{
	struct head head;
	struct stat now;
	int fd, err;

	fd = sys_open(path,
		      O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK,
		      0600);
	if (fd < 0)
		return regfile_fail(-errno, "cannot open %s: %s", path,
				    sys_strerror(errno));
	fd = fd_high(fd);
	if (fstat(fd, st)) {
		err = regfile_fail(-errno, "cannot examine %s: %s", path,
				   sys_strerror(errno));
		goto err_close;
	}
	if (!S_ISREG(st->st_mode) || st->st_nlink > 1 ||
	    !owner_private(fd, st)) {
		err = regfile_fail(
			-EACCES,
			"%s is not a private file of this user; remove it "
			"or set SOFTHCA_RUNDIR to a directory of your own",
			path);
		goto err_close;
	}
	err = record_lock_wait(fd);
	if (err) {
		lock_failed(err, fd, path);
		goto err_close;
	}
	err = -EAGAIN;
	if (fstat(fd, st) || lstat(path, &now) || now.st_ino != st->st_ino ||
	    now.st_dev != st->st_dev)
		goto err_close;
	if (!st->st_size) {
		err = init_file(fd);
		if (err) {
			regfile_fail(err, "cannot write %s: %s%s", path,
				     sys_strerror(-err),
				     err == -EFBIG ? " (ulimit -f)" : "");
			goto err_close;
		}
		remove_strays(path);
	} else if (shared && file_valid(fd, st, &head) &&
		   is_another_hosts(fd, &head)) {
		err = regfile_fail(-EREMOTE,
				   "%s is in use by another host, which shares "
				   "this directory: set SOFTHCA_RUNDIR to a "
				   "directory that each host has for itself",
				   path);
		goto err_close;
	} else if (!file_valid(fd, st, &head) ||
		   (shared && !is_this_boots(&head))) {
		if (unlink(path))
			err = regfile_fail(-errno, "cannot replace %s: %s",
					   path, sys_strerror(errno));
		goto err_close;
	}
	return fd;

err_close:
	sys_close(fd); /* and with it the lock */
	return err;
}

/* To close them later would drop locks that we take from now on. */
void regfile_drop_parents(void)
{
	struct regfile **p = &files, *f;
	pid_t pid = getpid();

	while ((f = *p)) {
		if (f->pid == pid) {
			p = &f->next;
			continue;
		}
		*p = f->next;
		spare_close(f);
		sys_close(f->fd);
		f->fd = -1;
	}
}

/* On success the file is locked. at: one of the directories for dir. */
static int get_file(const char *dir, const char *at, struct regfile **out)
{
	const unsigned long long number = registry_number(dir);
	const bool shared = registry_is_named(dir);
	char path[4096];
	struct stat st;
	struct regfile *f;
	int fd = -EAGAIN, err;
	uint64_t end;

	if (snprintf(path, sizeof(path), "%s/" REGISTRY_NAME "%llu", at,
		     owner_uid(), number) >= (int)sizeof(path))
		return regfile_fail(-ENAMETOOLONG, "%s: name too long", at);
	f = find_file(path);
	if (f) {
		err = regfile_lock(f);
		if (err)
			return lock_failed(err, f->fd, path);
		*out = f;
		return 0;
	}
	if (shared && is_of_several_hosts(at))
		return regfile_fail(
			-EREMOTE,
			"%s is on a file system that several hosts may share, "
			"such as NFS: set SOFTHCA_RUNDIR to a directory of "
			"this host, best in a tmpfs",
			at);
	end = clock_ns() + OPEN_WAIT_NS;
	while (fd == -EAGAIN && clock_ns() < end)
		fd = open_locked(path, shared, &st);
	if (fd < 0)
		return fd == -EAGAIN ? regfile_fail(-EAGAIN,
						    "%s keeps changing", path) :
				       fd;
	f = calloc(1, sizeof(*f));
	if (!f) {
		err = regfile_fail(-ENOMEM, "out of memory");
		goto err_close;
	}
	f->path = strdup(path);
	if (!f->path) {
		err = regfile_fail(-ENOMEM, "out of memory");
		goto err_free;
	}
	f->m = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE,
		    MAP_SHARED, fd, 0);
	if (f->m == MAP_FAILED) {
		err = regfile_fail(-errno, "cannot map %s: %s", path,
				   sys_strerror(errno));
		goto err_free;
	}
	f->fd = fd;
	f->spare = -1;
	f->shared = shared;
	f->pid = getpid();
	f->dev = st.st_dev;
	f->ino = st.st_ino;
	f->next = files;
	files = f;
	*out = f;
	return 0;

err_free:
	free(f->path);
	free(f);
err_close:
	sys_close(fd);
	return err;
}

static void take_off(struct regfile *f)
{
	struct regfile **p = &files;

	while (*p && *p != f)
		p = &(*p)->next;
	if (*p)
		*p = f->next;
}

void regfile_put(struct regfile *f)
{
	take_off(f);
	spare_close(f);
	if (f->fd >= 0)
		sys_close(f->fd);
	munmap(f->m, sizeof(struct shared));
	free(f->path_before);
	free(f->path);
	free(f);
}

void *regfile_blank(void)
{
	void *m = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return m == MAP_FAILED ? NULL : m;
}

void regfile_blank_free(void *blank)
{
	if (blank)
		munmap(blank, sizeof(struct shared));
}

/* Readers take no lock, so what lies at f->m is replaced at once. */
static void put_there(struct regfile *f, void *m)
{
	(void)mremap(m, sizeof(struct shared), sizeof(struct shared),
		     MREMAP_MAYMOVE | MREMAP_FIXED, f->m);
}

void regfile_close(struct regfile *f, void *blank)
{
	put_there(f, blank);
	take_off(f);
	spare_close(f);
	sys_close(f->fd);
	f->fd = -1;
	f->changed = false;
}

int regfile_reopen(struct regfile *f, const char *dir)
{
	struct regfile *n;
	int err = regfile_open(dir, &n);

	if (err)
		return err;
	/* Somebody else of this process has opened it meanwhile. */
	if (n->users) {
		regfile_unlock(n);
		return regfile_fail(
			-EBUSY, "%s: opened by another part of this process",
			n->path);
	}
	take_off(n);
	put_there(f, n->m);
	/* Another thread may read it just now: it stays until the next time. */
	free(f->path_before);
	f->path_before = f->path;
	f->path = n->path;
	f->fd = n->fd;
	f->shared = n->shared;
	f->pid = n->pid;
	f->dev = n->dev;
	f->ino = n->ino;
	f->next = files;
	files = f;
	free(n);
	return 0;
}

/* Whether the file still has its name: else another registry has it. */
static bool has_name(const struct regfile *f)
{
	struct stat st;

	return !lstat(f->path, &st) && st.st_dev == f->dev &&
	       st.st_ino == f->ino;
}

void regfile_unlink(const struct regfile *f)
{
	if (has_name(f))
		unlink(f->path);
}

void regfile_unlink_segment(const struct regfile *f, unsigned slot)
{
	char path[4096 + 32];

	if (!has_name(f))
		return;
	snprintf(path, sizeof(path), "%s" REGISTRY_SEGMENT, f->path, slot);
	unlink(path);
	snprintf(path, sizeof(path), "%s" REGISTRY_SEGMENT_FIFO, f->path, slot);
	unlink(path);
	snprintf(path, sizeof(path), "%s" REGISTRY_STAT, f->path, slot);
	unlink(path);
}

int regfile_open(const char *dir, struct regfile **f)
{
	const char *dirs[REGISTRY_DIRS];
	const size_t n = registry_dirs(dir, dirs);
	int err = -ENOENT;

	for (size_t i = 0; i < n; i++) {
		err = get_file(dir, dirs[i], f);
		/* Elsewhere, the other processes would not find us. */
		if (!err || err == -ETIMEDOUT)
			return err;
	}
	return err;
}

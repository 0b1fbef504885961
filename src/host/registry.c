/*
 * registry.c - shared memory that lets processes of one host find each other
 *
 * The file is only ever written by processes of its user, but it outlives
 * them: they may be killed at any point, or be of another version. So nothing
 * in it is believed without a bound check, every change is made of steps after
 * each of which the file makes sense, and what a dead process left is removed
 * by the next one that holds the lock (sweep). Whether a process is alive is
 * the kernel's word: a POSIX record lock on a byte beyond the end of the file,
 * one per slot. Such locks are not inherited by fork(), and all those of a
 * process on a file are lost when it closes any descriptor of that file, so a
 * process opens it once, however many times it joins (struct file).
 *
 * Locks: mutex keeps out the threads of this process, the record lock on
 * LOCK_BYTE other processes. Readers take neither and see each word whole.
 */
#include "registry.h"

#include "base/aside.h"
#include "base/bytes.h"
#include "base/sys.h"
#include "config.h"
#include "owner.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC 0x73486341726f4345u
#define VERSION 2
#define LOCK_BYTE (1 << 20) /* the slots' bytes follow */
#define LOCK_WAIT_NS 5000000000u /* for one holder, */
#define LOCK_MOST_NS 60000000000u /* and for all of a crowd */
#define OPEN_WAIT_NS 5000000000u /* while others come and go */
#define SETTLE_NS 10000000u /* packets steered by an older program arrive */

struct slot {
	_Atomic uint32_t used;
	_Atomic uint32_t pid; /* for people */
	_Atomic uint32_t port;
	_Atomic uint32_t limit;
	_Atomic uint64_t addrs[REGISTRY_ADDRS / 64]; /* rows it receives at */
	uint64_t pad0[4];
	_Atomic int64_t backlog; /* with the next, a cache line of its own */
	_Atomic uint64_t taken; /* goes on when the slot has another process */
	uint64_t pad1[6];
};

/* An address and its sockets, as the kernel numbers them. */
struct addr {
	_Atomic uint64_t gid[2]; /* all zero: the row is free */
	_Atomic uint32_t scope;
	_Atomic uint32_t count;
	_Atomic uint64_t changed_ns;
	_Atomic uint16_t order[REGISTRY_SLOTS]; /* slots */
};

struct service {
	_Atomic uint32_t owner; /* slot + 1; 0: the row is free */
	_Atomic uint32_t families; /* REGISTRY_IPV4, REGISTRY_IPV6 */
	_Atomic uint64_t id;
	_Atomic uint64_t gid[2];
};

struct head {
	uint64_t magic; /* written last */
	uint32_t version;
	uint32_t size;
	_Atomic uint32_t cursor; /* where the search for a free chunk starts */
	uint32_t pad0;
	_Atomic uint64_t swept_ns; /* when dead processes were last removed */
	uint32_t pad1[8];
};

struct shared {
	struct head head;
	struct slot slot[REGISTRY_SLOTS];
	_Atomic uint16_t chunk[REGISTRY_CHUNKS]; /* slot + 1; 0: free */
	struct addr addr[REGISTRY_ADDRS];
	struct service service[REGISTRY_SERVICES];
};

/* One per file and process. */
struct file {
	struct file *next;
	struct registry *users;
	struct shared *m;
	pid_t pid;
	int fd;
	dev_t dev;
	ino_t ino;
	char *path;
	bool changed; /* tell the users when the lock is let go */
	_Atomic uint64_t mine[REGISTRY_SLOTS / 64]; /* slots of this process */
};

struct registry {
	struct registry *next;
	struct file *file;
	unsigned slot;
	void (*fn)(void *arg);
	void *arg;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct file *files;
static pthread_once_t once = PTHREAD_ONCE_INIT;

#define LOAD(p) atomic_load_explicit(p, memory_order_acquire)
#define STORE(p, v) atomic_store_explicit(p, v, memory_order_release)

static void take_mutex(void)
{
	pthread_mutex_lock(&mutex);
}

static void release_mutex(void)
{
	pthread_mutex_unlock(&mutex);
}

static void init_once(void)
{
	pthread_atfork(take_mutex, release_mutex, release_mutex);
}

/* Locks */

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

/*
 * One holder is waited for only so long, as it may be stopped. Where the lock
 * goes from hand to hand nothing is wrong, but a crowd of processes that spin
 * can take a minute to start on few processors.
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
		if (is != holder) {
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

static bool alive(const struct file *f, unsigned slot)
{
	pid_t pid;

	if (f->mine[slot / 64] >> (slot % 64) & 1)
		return true;
	return record_locked(f->fd, LOCK_BYTE + 1 + (off_t)slot, &pid);
}

int registry_lock(struct registry *r)
{
	int err;

	pthread_mutex_lock(&mutex);
	err = record_lock_wait(r->file->fd);
	if (err)
		pthread_mutex_unlock(&mutex);
	return err;
}

int registry_trylock(struct registry *r)
{
	int err;

	if (pthread_mutex_trylock(&mutex))
		return -EAGAIN;
	err = record_lock(r->file->fd, F_WRLCK, LOCK_BYTE);
	if (err)
		pthread_mutex_unlock(&mutex);
	return err;
}

static void unlock_file(struct file *f)
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
	unlock_file(r->file);
	pthread_mutex_unlock(&mutex);
}

/* Rows of addresses. All with the lock held, but for find_addr(). */

static void gid_words(const union ibv_gid *gid, uint64_t w[2])
{
	w[0] = get_be64(gid->raw);
	w[1] = get_be64(gid->raw + 8);
}

static int find_addr(const struct shared *m, const union ibv_gid *gid,
		     uint32_t scope)
{
	uint64_t w[2];

	gid_words(gid, w);
	for (int i = 0; i < REGISTRY_ADDRS; i++) {
		const struct addr *a = &m->addr[i];

		if (LOAD(&a->gid[1]) == w[1] && LOAD(&a->gid[0]) == w[0] &&
		    LOAD(&a->scope) == scope)
			return i;
	}
	return -ENOENT;
}

/* By the first half of the GID; IPv4's groups are nobody's business here. */
static bool is_group(uint64_t word)
{
	return word >> 56 == 0xff;
}

static bool receives_at(const struct slot *s, int row)
{
	return LOAD(&s->addrs[row / 64]) >> (row % 64) & 1;
}

static void set_receives(struct slot *s, int row, bool on)
{
	uint64_t bit = 1ull << (row % 64);
	uint64_t w = LOAD(&s->addrs[row / 64]);

	STORE(&s->addrs[row / 64], on ? w | bit : w & ~bit);
}

static void touch(struct file *f, struct addr *a)
{
	STORE(&a->changed_ns, clock_ns());
	f->changed = true;
}

/* As the kernel does when a socket is closed. */
static void order_remove(struct addr *a, uint32_t i)
{
	uint32_t last = LOAD(&a->count) - 1;

	STORE(&a->order[i], LOAD(&a->order[last]));
	STORE(&a->count, last);
}

/* Removes from a row what cannot be true, and frees it if nobody is left. */
static void tidy_addr(struct file *f, int row)
{
	struct shared *m = f->m;
	struct addr *a = &m->addr[row];
	uint64_t seen[REGISTRY_SLOTS / 64] = { 0 };
	uint32_t i = 0;

	if (!LOAD(&a->gid[0]) && !LOAD(&a->gid[1]))
		return;
	if (LOAD(&a->count) > REGISTRY_SLOTS)
		STORE(&a->count, 0);
	while (i < LOAD(&a->count)) {
		unsigned slot = LOAD(&a->order[i]);

		if (slot < REGISTRY_SLOTS && LOAD(&m->slot[slot].used) &&
		    receives_at(&m->slot[slot], row) &&
		    !(seen[slot / 64] >> (slot % 64) & 1)) {
			seen[slot / 64] |= 1ull << (slot % 64);
			i++;
			continue;
		}
		order_remove(a, i);
		touch(f, a);
	}
	for (unsigned slot = 0; slot < REGISTRY_SLOTS; slot++)
		if (LOAD(&m->slot[slot].used) &&
		    receives_at(&m->slot[slot], row))
			return;
	STORE(&a->gid[0], 0);
	STORE(&a->gid[1], 0);
	STORE(&a->count, 0);
}

/* What a slot owns becomes free; the slot itself last. */
static void clear_slot(struct file *f, unsigned slot)
{
	struct shared *m = f->m;
	struct slot *s = &m->slot[slot];

	for (size_t i = 0; i < REGISTRY_CHUNKS; i++) {
		if (LOAD(&m->chunk[i]) == slot + 1) {
			STORE(&m->chunk[i], 0);
			f->changed = true;
		}
	}
	for (size_t i = 0; i < REGISTRY_SERVICES; i++)
		if (LOAD(&m->service[i].owner) == slot + 1)
			STORE(&m->service[i].owner, 0);
	STORE(&s->port, 0);
	for (int row = 0; row < REGISTRY_ADDRS; row++) {
		if (receives_at(s, row)) {
			set_receives(s, row, false);
			tidy_addr(f, row);
		}
	}
	STORE(&s->used, 0);
}

/* Removes what dead processes left. */
static void sweep(struct file *f)
{
	for (unsigned slot = 0; slot < REGISTRY_SLOTS; slot++) {
		if (LOAD(&f->m->slot[slot].used) && !alive(f, slot)) {
			clear_slot(f, slot);
			STORE(&f->m->head.swept_ns, clock_ns());
		}
	}
	for (int row = 0; row < REGISTRY_ADDRS; row++)
		tidy_addr(f, row);
}

/* Opening the file */

static _Thread_local char why_text[512];

__attribute__((format(printf, 2, 3))) static int fail(int err, const char *fmt,
						      ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why_text, sizeof(why_text), fmt, ap);
	va_end(ap);
	return err;
}

/* An empty file of ours, locked. */
static int init_file(int fd)
{
	struct head head = { .version = VERSION,
			     .size = sizeof(struct shared) };
	uint64_t magic = MAGIC;
	uint32_t random;
	int err;

	static_assert(sizeof(struct shared) < LOCK_BYTE,
		      "locks beyond the end");
	/* A full tmpfs shows here and not as a SIGBUS later. */
	err = posix_fallocate(fd, 0, sizeof(struct shared));
	if (err)
		goto err_truncate;
	if (!sys_random(&random, sizeof(random))) {
		err = EIO;
		goto err_truncate;
	}
	/* Stale packets of an earlier boot should not meet their old QPN. */
	head.cursor = random % REGISTRY_CHUNKS;
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

static bool file_valid(int fd, const struct stat *st)
{
	struct head head;

	return st->st_size == sizeof(struct shared) &&
	       sys_read(fd, &head, sizeof(head)) == sizeof(head) &&
	       head.magic == MAGIC && head.version == VERSION &&
	       head.size == sizeof(struct shared);
}

static struct file *find_file(const char *path)
{
	struct stat st;

	if (lstat(path, &st))
		return NULL;
	for (struct file *f = files; f; f = f->next)
		if (f->dev == st.st_dev && f->ino == st.st_ino)
			return f;
	return NULL;
}

/* Removes a file of ours that nobody uses: no process has a lock on it. */
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
 * Processes that are killed leave the file of their network namespace. Where
 * the namespace is gone nobody else comes to use or remove it. The file at own
 * is new and stays.
 */
static void remove_strays(const char *own)
{
	size_t dir_len = (size_t)(strrchr(own, '/') - own);
	size_t prefix = (size_t)(strrchr(own, '-') + 1 - own) - dir_len - 1;
	char path[4096];
	struct dirent *e;
	DIR *d;

	snprintf(path, sizeof(path), "%.*s", (int)dir_len, own);
	d = opendir(path);
	while (d && (e = readdir(d))) {
		const char *ino = e->d_name + prefix;

		if (strncmp(e->d_name, own + dir_len + 1, prefix) || !*ino ||
		    ino[strspn(ino, "0123456789")] ||
		    !strcmp(e->d_name, own + dir_len + 1))
			continue;
		snprintf(path, sizeof(path), "%.*s/%.64s", (int)dir_len, own,
			 e->d_name);
		remove_stray(path);
	}
	if (d)
		closedir(d);
}

/*
 * Opens, locks and if need be makes the file at path. -EAGAIN: it was replaced
 * meanwhile. A file that is not as it should be is never changed, since it may
 * not be what it seems (a hard link): it is unlinked, and another one made.
 */
static int open_locked(const char *path, struct stat *st)
{
	struct stat now;
	int fd, err;

	fd = sys_open(path,
		      O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK,
		      0600);
	if (fd < 0)
		return fail(-errno, "cannot open %s: %s", path,
			    strerror(errno));
	fd = fd_aside(fd);
	if (fstat(fd, st)) {
		err = fail(-errno, "cannot examine %s", path);
		goto err_close;
	}
	if (!S_ISREG(st->st_mode) || st->st_nlink > 1 ||
	    !owner_private(fd, st)) {
		err = fail(-EACCES,
			   "%s is not a private file of this user; remove it "
			   "or set SOFTHCA_RUNDIR to a directory of your own",
			   path);
		goto err_close;
	}
	err = record_lock_wait(fd);
	if (err) {
		fail(err, "cannot lock %s: %s", path, strerror(-err));
		goto err_close;
	}
	err = -EAGAIN;
	if (fstat(fd, st) || lstat(path, &now) || now.st_ino != st->st_ino ||
	    now.st_dev != st->st_dev)
		goto err_close;
	if (!st->st_size) {
		err = init_file(fd);
		if (err) {
			fail(err, "cannot write %s: %s", path, strerror(-err));
			goto err_close;
		}
		remove_strays(path);
	} else if (!file_valid(fd, st)) {
		if (unlink(path))
			err = fail(-errno, "cannot replace %s: %s", path,
				   strerror(errno));
		goto err_close;
	}
	return fd;

err_close:
	sys_close(fd); /* and with it the lock */
	return err;
}

/*
 * After a fork: the parent's files are none of ours. To close them later would
 * drop locks that we take from now on, so it is done first.
 */
static void drop_parents_files(void)
{
	struct file **p = &files, *f;
	pid_t pid = getpid();

	while ((f = *p)) {
		if (f->pid == pid) {
			p = &f->next;
			continue;
		}
		*p = f->next;
		sys_close(f->fd);
		f->fd = -1;
	}
}

/* On success the file is locked. */
static int get_file(const char *dir, struct file **out)
{
	char path[4096];
	struct stat st;
	struct file *f;
	int fd = -EAGAIN, err;
	uint64_t end;

	if (stat("/proc/self/ns/net", &st))
		st.st_ino = 0;
	if (snprintf(path, sizeof(path), "%s/softhca-%u-%llu", dir, owner_uid(),
		     (unsigned long long)st.st_ino) >= (int)sizeof(path))
		return fail(-ENAMETOOLONG, "%s: name too long", dir);
	f = find_file(path);
	if (f) {
		err = record_lock_wait(f->fd);
		if (err)
			return fail(err, "cannot lock %s: %s", path,
				    strerror(-err));
		*out = f;
		return 0;
	}
	end = clock_ns() + OPEN_WAIT_NS;
	while (fd == -EAGAIN && clock_ns() < end)
		fd = open_locked(path, &st);
	if (fd < 0)
		return fd == -EAGAIN ? fail(-EAGAIN, "%s keeps changing", path)
				     : fd;
	f = calloc(1, sizeof(*f));
	if (!f) {
		err = fail(-ENOMEM, "out of memory");
		goto err_close;
	}
	f->path = strdup(path);
	if (!f->path) {
		err = fail(-ENOMEM, "out of memory");
		goto err_free;
	}
	f->m = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE,
		    MAP_SHARED, fd, 0);
	if (f->m == MAP_FAILED) {
		err = fail(-errno, "cannot map %s: %s", path, strerror(errno));
		goto err_free;
	}
	f->fd = fd;
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

/* Nobody uses f any more. */
static void put_file(struct file *f)
{
	struct file **p = &files;

	while (*p && *p != f)
		p = &(*p)->next;
	if (*p)
		*p = f->next;
	if (f->fd >= 0)
		sys_close(f->fd);
	munmap(f->m, sizeof(struct shared));
	free(f->path);
	free(f);
}

/* Joining and leaving */

static int take_slot(struct file *f)
{
	for (unsigned slot = 0; slot < REGISTRY_SLOTS; slot++) {
		struct slot *s = &f->m->slot[slot];

		if (LOAD(&s->used) || f->mine[slot / 64] >> (slot % 64) & 1 ||
		    record_lock(f->fd, F_WRLCK, LOCK_BYTE + 1 + (off_t)slot))
			continue;
		f->mine[slot / 64] |= 1ull << (slot % 64);
		clear_slot(f, slot);
		STORE(&s->pid, (uint32_t)getpid());
		STORE(&s->limit, 0);
		STORE(&s->backlog, 0);
		STORE(&s->used, 1);
		return (int)slot;
	}
	return -ENOSPC;
}

/* The last one to leave takes the file along. The lock is held: whoever has
 * opened it and waits will find that it was replaced. */
static void remove_unused(const struct file *f)
{
	struct stat st;

	for (unsigned slot = 0; slot < REGISTRY_SLOTS; slot++)
		if (LOAD(&f->m->slot[slot].used) && alive(f, slot))
			return;
	if (!lstat(f->path, &st) && st.st_dev == f->dev && st.st_ino == f->ino)
		unlink(f->path);
}

static void drop_slot(struct file *f, unsigned slot)
{
	clear_slot(f, slot);
	record_lock(f->fd, F_UNLCK, LOCK_BYTE + 1 + (off_t)slot);
	f->mine[slot / 64] &= ~(1ull << (slot % 64));
}

static int open_file(const char *dir, struct file **f)
{
	const char *dirs[] = { "/dev/shm", secure_getenv("XDG_RUNTIME_DIR"),
			       "/tmp" };
	int err = -ENOENT;

	if (!dir)
		dir = config_get()->rundir;
	if (dir)
		return get_file(dir, f);
	for (size_t i = 0; i < ARRAY_SIZE(dirs); i++) {
		if (!dirs[i] || !*dirs[i])
			continue;
		err = get_file(dirs[i], f);
		/* Elsewhere, the other processes would not find us. */
		if (!err || err == -ETIMEDOUT)
			return err;
	}
	return err;
}

int registry_join(struct registry **out, const char *dir, const char **why)
{
	struct registry *r;
	struct file *f = NULL;
	int err, slot;

	pthread_once(&once, init_once);
	if (why)
		*why = why_text;
	r = calloc(1, sizeof(*r));
	if (!r)
		return fail(-ENOMEM, "out of memory");
	pthread_mutex_lock(&mutex);
	drop_parents_files();
	err = open_file(dir, &f);
	if (err)
		goto err_unlock;
	sweep(f);
	slot = take_slot(f);
	if (slot < 0) {
		err = fail(slot, "more than %d processes", REGISTRY_SLOTS);
		unlock_file(f);
		if (!f->users)
			put_file(f);
		goto err_unlock;
	}
	r->file = f;
	r->slot = (unsigned)slot;
	r->next = f->users;
	f->users = r;
	unlock_file(f);
	pthread_mutex_unlock(&mutex);
	*out = r;
	return 0;

err_unlock:
	pthread_mutex_unlock(&mutex);
	free(r);
	return err;
}

static void forget(struct registry *r)
{
	struct registry **p = &r->file->users;

	while (*p != r)
		p = &(*p)->next;
	*p = r->next;
	if (!r->file->users)
		put_file(r->file);
	free(r);
}

void registry_leave(struct registry *r)
{
	struct file *f;

	if (!r)
		return;
	f = r->file;
	pthread_mutex_lock(&mutex);
	r->fn = NULL;
	/* Whoever holds the lock for so long: the next sweep finds us gone. */
	if (!record_lock_wait(f->fd)) {
		drop_slot(f, r->slot);
		remove_unused(f);
		unlock_file(f);
	} else {
		record_lock(f->fd, F_UNLCK, LOCK_BYTE + 1 + (off_t)r->slot);
		f->mine[r->slot / 64] &= ~(1ull << (r->slot % 64));
	}
	forget(r);
	pthread_mutex_unlock(&mutex);
}

void registry_abandon(struct registry *r)
{
	if (!r)
		return;
	pthread_mutex_lock(&mutex);
	drop_parents_files();
	forget(r);
	pthread_mutex_unlock(&mutex);
}

const char *registry_path(const struct registry *r)
{
	return r->file->path;
}

/* Leases */

int registry_lease(struct registry *r)
{
	struct shared *m = r->file->m;
	uint32_t chunk;
	int err;

	err = registry_lock(r);
	if (err)
		return err;
	sweep(r->file);
	/* About the one that was free the longest: no QPN is reused soon. */
	chunk = LOAD(&m->head.cursor) % REGISTRY_CHUNKS;
	err = -ENOSPC;
	for (uint32_t i = 0; i < REGISTRY_CHUNKS; i++) {
		if (chunk && chunk != REGISTRY_CHUNKS - 1 &&
		    !LOAD(&m->chunk[chunk])) {
			STORE(&m->chunk[chunk], (uint16_t)(r->slot + 1));
			STORE(&m->head.cursor, chunk + 1);
			r->file->changed = true;
			err = (int)(chunk * REGISTRY_CHUNK);
			break;
		}
		chunk = (chunk + 1) % REGISTRY_CHUNKS;
	}
	registry_unlock(r);
	return err;
}

void registry_release(struct registry *r, uint32_t first_qpn)
{
	uint32_t chunk = first_qpn / REGISTRY_CHUNK % REGISTRY_CHUNKS;

	if (registry_lock(r))
		return;
	if (LOAD(&r->file->m->chunk[chunk]) == r->slot + 1) {
		STORE(&r->file->m->chunk[chunk], 0);
		r->file->changed = true;
	}
	registry_unlock(r);
}

/* Looking up */

unsigned registry_slot(const struct registry *r)
{
	return r->slot;
}

int registry_owner(const struct registry *r, uint32_t qpn)
{
	unsigned owner = LOAD(
		&r->file->m->chunk[qpn / REGISTRY_CHUNK % REGISTRY_CHUNKS]);

	return owner && owner <= REGISTRY_SLOTS ? (int)owner - 1 : -ENOENT;
}

int registry_route(const struct registry *r, uint32_t qpn,
		   const union ibv_gid *gid, uint32_t scope)
{
	const struct shared *m = r->file->m;
	int slot = registry_owner(r, qpn), row;

	if (slot < 0)
		return slot;
	row = find_addr(m, gid, scope);
	if (row < 0 || !receives_at(&m->slot[slot], row))
		return -ENOENT;
	return slot;
}

size_t registry_receivers(const struct registry *r, const union ibv_gid *gid,
			  uint32_t scope, uint16_t *slots)
{
	const struct shared *m = r->file->m;
	int row = find_addr(m, gid, scope);
	size_t n = 0;

	for (uint16_t slot = 0; row >= 0 && slot < REGISTRY_SLOTS; slot++)
		if (LOAD(&m->slot[slot].used) &&
		    receives_at(&m->slot[slot], row))
			slots[n++] = slot;
	return n;
}

bool registry_alive(const struct registry *r, unsigned slot)
{
	return slot < REGISTRY_SLOTS && alive(r->file, slot);
}

uint16_t registry_port(const struct registry *r, unsigned slot)
{
	if (slot >= REGISTRY_SLOTS)
		return 0;
	return (uint16_t)LOAD(&r->file->m->slot[slot].port);
}

void registry_publish(struct registry *r, uint16_t port, uint32_t limit)
{
	STORE(&r->file->m->slot[r->slot].limit, limit);
	STORE(&r->file->m->slot[r->slot].port, port);
}

bool registry_charge(struct registry *r, unsigned slot, uint32_t bytes)
{
	struct slot *s = &r->file->m->slot[slot % REGISTRY_SLOTS];
	int64_t before = atomic_fetch_add(&s->backlog, bytes);

	if (before <= 0 || before + bytes <= LOAD(&s->limit))
		return true;
	atomic_fetch_sub(&s->backlog, bytes);
	return false;
}

void registry_uncharge(struct registry *r, unsigned slot, int64_t bytes)
{
	atomic_fetch_sub(&r->file->m->slot[slot % REGISTRY_SLOTS].backlog,
			 bytes);
}

void registry_take(struct registry *r, unsigned slot, int64_t bytes)
{
	struct slot *s = &r->file->m->slot[slot % REGISTRY_SLOTS];

	atomic_fetch_sub(&s->backlog, bytes);
	atomic_fetch_add(&s->taken, (uint64_t)bytes);
}

uint64_t registry_sent(const struct registry *r, unsigned slot)
{
	const struct slot *s = &r->file->m->slot[slot % REGISTRY_SLOTS];

	return LOAD(&s->taken) + (uint64_t)LOAD(&s->backlog);
}

bool registry_unread(const struct registry *r, unsigned slot, uint64_t sent)
{
	const struct slot *s = &r->file->m->slot[slot % REGISTRY_SLOTS];
	int64_t left = (int64_t)(sent - LOAD(&s->taken));

	/* More than there is: the slot was another's then, or a count wrong. */
	return left > 0 && left <= LOAD(&s->backlog) &&
	       registry_alive(r, slot);
}

int64_t registry_backlog(const struct registry *r)
{
	return LOAD(&r->file->m->slot[r->slot].backlog);
}

/* Receiving addresses */

int registry_addr_join(struct registry *r, const union ibv_gid *gid,
		       uint32_t scope, bool steered)
{
	struct shared *m = r->file->m;
	int row = find_addr(m, gid, scope);
	int free_row = -ENOSPC, groups = 0;
	struct addr *a;
	uint32_t n;

	for (int i = 0; row < 0 && i < REGISTRY_ADDRS; i++) {
		a = &m->addr[i];
		if (!LOAD(&a->gid[0]) && !LOAD(&a->gid[1]))
			free_row = i;
		groups += is_group(LOAD(&a->gid[0]));
	}
	if (row < 0 &&
	    (!is_group(get_be64(gid->raw)) || groups < REGISTRY_GROUPS))
		row = free_row;
	if (row < 0)
		return -ENOSPC;
	a = &m->addr[row];
	if (!LOAD(&a->gid[0]) && !LOAD(&a->gid[1])) {
		uint64_t w[2];

		gid_words(gid, w);
		STORE(&a->count, 0);
		STORE(&a->scope, scope);
		STORE(&a->gid[0], w[0]);
		STORE(&a->gid[1], w[1]);
	}
	set_receives(&m->slot[r->slot], row, true);
	tidy_addr(r->file, row);
	if (!steered)
		return 0;
	n = LOAD(&a->count);
	for (uint32_t i = 0; i < n; i++)
		if (LOAD(&a->order[i]) == r->slot)
			return 0;
	STORE(&a->order[n], (uint16_t)r->slot); /* n < SLOTS: no duplicates */
	STORE(&a->count, n + 1);
	touch(r->file, a);
	return 0;
}

void registry_addr_leave(struct registry *r, const union ibv_gid *gid,
			 uint32_t scope)
{
	int row = find_addr(r->file->m, gid, scope);

	if (row < 0)
		return;
	set_receives(&r->file->m->slot[r->slot], row, false);
	tidy_addr(r->file, row);
}

bool registry_addr_has(const struct registry *r, unsigned slot,
		       const union ibv_gid *gid, uint32_t scope)
{
	int row = find_addr(r->file->m, gid, scope);
	const struct addr *a;

	if (row < 0)
		return false;
	a = &r->file->m->addr[row];
	for (uint32_t i = 0; i < LOAD(&a->count) && i < REGISTRY_SLOTS; i++)
		if (LOAD(&a->order[i]) == slot)
			return alive(r->file, slot);
	return false;
}

bool registry_swept(const struct registry *r, uint64_t within_ns)
{
	return clock_ns() - LOAD(&r->file->m->head.swept_ns) < within_ns;
}

size_t registry_addr_count(struct registry *r, const union ibv_gid *gid,
			   uint32_t scope)
{
	int row;

	sweep(r->file);
	row = find_addr(r->file->m, gid, scope);
	return row < 0 ? 0 : LOAD(&r->file->m->addr[row].count);
}

void registry_addr_found(struct registry *r, const union ibv_gid *gid,
			 uint32_t scope, uint32_t qpn)
{
	struct shared *m = r->file->m;
	int owner = registry_owner(r, qpn), row;
	uint32_t n, there, here;
	struct addr *a;

	sweep(r->file);
	row = find_addr(m, gid, scope);
	if (row < 0 || owner < 0 || r->file->changed)
		return;
	a = &m->addr[row];
	if (clock_ns() - LOAD(&a->changed_ns) < SETTLE_NS)
		return;
	n = LOAD(&a->count);
	for (there = 0; there < n; there++)
		if (LOAD(&a->order[there]) == (unsigned)owner)
			break;
	for (here = 0; here < n; here++)
		if (LOAD(&a->order[here]) == r->slot)
			break;
	if (there == n || here == n)
		return;
	STORE(&a->order[there], (uint16_t)r->slot);
	STORE(&a->order[here], (uint16_t)owner);
	touch(r->file, a);
}

size_t registry_steering(struct registry *r, const union ibv_gid *gid,
			 uint32_t scope, struct registry_range *out, size_t max)
{
	const struct shared *m = r->file->m;
	int row = find_addr(m, gid, scope);
	uint16_t place[REGISTRY_SLOTS] = { 0 }; /* index + 1 */
	const struct addr *a;
	uint32_t count;
	size_t n = 0;

	if (row < 0 || max < 2)
		return 0;
	a = &m->addr[row];
	count = LOAD(&a->count);
	if (!count || count > REGISTRY_SLOTS)
		return 0;
	for (uint32_t i = 0; i < count; i++)
		place[LOAD(&a->order[i]) % REGISTRY_SLOTS] = (uint16_t)(i + 1);
	/* QPs 0 and 1 in chunk 0, multicast in the last: the first socket. */
	out[n++] = (struct registry_range){ 0 };
	for (uint16_t chunk = 1; chunk < REGISTRY_CHUNKS - 1; chunk++) {
		unsigned owner = LOAD(&m->chunk[chunk]);
		unsigned at =
			owner && owner <= REGISTRY_SLOTS ? place[owner - 1] : 0;

		if (!at || at - 1 == out[n - 1].index)
			continue;
		if (n == max - 1)
			break;
		out[n++] = (struct registry_range){ chunk, (uint16_t)(at - 1) };
	}
	if (out[n - 1].index)
		out[n++] = (struct registry_range){ REGISTRY_CHUNKS - 1, 0 };
	return n;
}

void registry_on_change(struct registry *r, void (*fn)(void *arg), void *arg)
{
	pthread_mutex_lock(&mutex);
	r->fn = fn;
	r->arg = arg;
	pthread_mutex_unlock(&mutex);
}

/* Services */

static bool gid_is_any(const uint64_t w[2])
{
	return !w[0] && !w[1];
}

/* Whether a listener at w, for these families, leaves no room for another. */
static bool service_conflicts(const struct service *s, const uint64_t w[2],
			      unsigned families)
{
	const uint64_t g[2] = { LOAD(&s->gid[0]), LOAD(&s->gid[1]) };

	if (!(LOAD(&s->families) & families))
		return false;
	return gid_is_any(g) || gid_is_any(w) || (g[0] == w[0] && g[1] == w[1]);
}

int registry_listen(struct registry *r, uint64_t service_id,
		    const union ibv_gid *gid, unsigned families)
{
	struct service *free_row = NULL;
	uint64_t w[2];
	int err;

	gid_words(gid, w);
	err = registry_lock(r);
	if (err)
		return err;
	sweep(r->file);
	for (size_t i = 0; i < REGISTRY_SERVICES; i++) {
		struct service *s = &r->file->m->service[i];

		if (!LOAD(&s->owner)) {
			free_row = s;
		} else if (LOAD(&s->id) == service_id &&
			   service_conflicts(s, w, families)) {
			err = -EADDRINUSE;
			goto unlock;
		}
	}
	if (!free_row) {
		err = -ENOSPC;
		goto unlock;
	}
	STORE(&free_row->id, service_id);
	STORE(&free_row->gid[0], w[0]);
	STORE(&free_row->gid[1], w[1]);
	STORE(&free_row->families, families);
	STORE(&free_row->owner, r->slot + 1);
unlock:
	registry_unlock(r);
	return err;
}

/* One at w that stands for one of the families. */
static struct service *find_service(const struct shared *m, uint64_t service_id,
				    const uint64_t w[2], unsigned families)
{
	for (size_t i = 0; i < REGISTRY_SERVICES; i++) {
		const struct service *s = &m->service[i];

		if (LOAD(&s->owner) && LOAD(&s->id) == service_id &&
		    LOAD(&s->families) & families && LOAD(&s->gid[0]) == w[0] &&
		    LOAD(&s->gid[1]) == w[1])
			return (struct service *)s;
	}
	return NULL;
}

void registry_unlisten(struct registry *r, uint64_t service_id,
		       const union ibv_gid *gid, unsigned families)
{
	struct service *s;
	uint64_t w[2];

	gid_words(gid, w);
	if (registry_lock(r))
		return;
	s = find_service(r->file->m, service_id, w, families);
	if (s && LOAD(&s->owner) == r->slot + 1)
		STORE(&s->owner, 0);
	registry_unlock(r);
}

int registry_listener(const struct registry *r, uint64_t service_id,
		      const union ibv_gid *gid)
{
	static const uint64_t any[2];
	const struct service *s;
	unsigned owner, family;
	uint64_t w[2];

	gid_words(gid, w);
	family = !w[0] && w[1] >> 32 == 0xffff ? REGISTRY_IPV4 : REGISTRY_IPV6;
	s = find_service(r->file->m, service_id, w, family);
	if (!s)
		s = find_service(r->file->m, service_id, any, family);
	owner = s ? LOAD(&s->owner) : 0;
	return owner && owner <= REGISTRY_SLOTS ? (int)owner - 1 : -ENOENT;
}

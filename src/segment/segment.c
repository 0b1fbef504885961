/*
 * segment.c - the segment of this process: creation, growth, end
 *
 * The file is sparse. What is always needed is allocated when it is made, a
 * ring by its producer, the tables as they grow.
 */
#include "segment_internal.h"

#include "base/bytes.h"
#include "base/fd_high.h"
#include "base/sys.h"
#include "os/config.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>

static_assert(sizeof(struct segment_head) <= SEGMENT_GUARDS_OFFSET,
	      "the head fits");
static_assert(sizeof(struct copy_guard) * REGISTRY_SLOTS == SEGMENT_GUARDS_SIZE,
	      "a line for each");
static_assert(SEGMENT_GUARDS_OFFSET + SEGMENT_GUARDS_SIZE <=
		      SEGMENT_RINGS_OFFSET,
	      "the guards fit");
static_assert(SEGMENT_KEYS_OFFSET % SEGMENT_ALIGN == 0 &&
		      SEGMENT_QPS_OFFSET % SEGMENT_ALIGN == 0 &&
		      SEGMENT_SIZE % SEGMENT_ALIGN == 0,
	      "offsets that every kernel maps");

/* Not of a thread: a library that is dlopen()ed has little room for those. */
static char why_text[SEGMENT_PATH_MAX + 128];

const char *segment_why(void)
{
	return why_text;
}

__attribute__((format(printf, 2, 3))) static int
segment_error(int err, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why_text, sizeof(why_text), fmt, ap);
	va_end(ap);
	return err;
}

void segment_path(const struct segment *s, unsigned slot, bool fifo,
		  char path[SEGMENT_PATH_MAX])
{
	const char *base = registry_path(s->registry);

	if (fifo)
		snprintf(path, SEGMENT_PATH_MAX, "%s" REGISTRY_SEGMENT_FIFO,
			 base, slot);
	else
		snprintf(path, SEGMENT_PATH_MAX, "%s" REGISTRY_SEGMENT, base,
			 slot);
}

int segment_allocate(int fd, size_t offset, size_t len)
{
	int err;

	/* Another signal at every attempt would be a strange program. */
	for (int tries = 0; tries < 100; tries++) {
		err = posix_fallocate(fd, (off_t)offset, (off_t)len);
		if (err != EINTR)
			break;
	}
	return -err;
}

/* Creation */

/*
 * What is mapped counts in full against a limit of the address space, though
 * little of it is ever touched: this segment, and of each peer its tables. The
 * program must have the most of what it may have.
 */
static bool address_space_is_short(void)
{
	struct rlimit most;

	return !getrlimit(RLIMIT_AS, &most) &&
	       most.rlim_cur < 4ull * SEGMENT_SIZE;
}

/* A file in the way is of a process that is dead, or has lost its registry. */
static int make_file(struct segment *s, uint8_t **map)
{
	char path[SEGMENT_PATH_MAX];
	int err;

	segment_path(s, s->slot, false, path);
	unlink(path);
	s->fd = fd_high(sys_open(
		path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
		0600));
	if (s->fd < 0)
		return segment_error(-errno, "cannot create %s: %s", path,
				     sys_strerror(errno));
	/* Whatever the umask. */
	if (fchmod(s->fd, 0600) || ftruncate(s->fd, SEGMENT_SIZE))
		return segment_error(-errno, "cannot extend %s: %s", path,
				     sys_strerror(errno));
	err = segment_allocate(s->fd, 0,
			       SEGMENT_GUARDS_OFFSET + SEGMENT_GUARDS_SIZE);
	if (err)
		return segment_error(err, "cannot allocate memory in %s: %s",
				     path, sys_strerror(-err));
	*map = mmap(NULL, SEGMENT_SIZE, PROT_READ | PROT_WRITE,
		    MAP_SHARED | MAP_NORESERVE, s->fd, 0);
	if (*map == MAP_FAILED) {
		*map = NULL;
		return segment_error(-errno, "cannot map %s: %s", path,
				     sys_strerror(errno));
	}
	return 0;
}

/*
 * We have its writing end as well, and so have those who write, so it never
 * looks closed to any side, and nobody gets a SIGPIPE.
 */
static int make_fifo(struct segment *s)
{
	char path[SEGMENT_PATH_MAX];

	segment_path(s, s->slot, true, path);
	unlink(path);
	if (!mknod(path, S_IFIFO | 0600, 0))
		s->fifo = fd_high(sys_open(
			path, O_RDWR | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC, 0));
	if (s->fifo < 0)
		return segment_error(-errno, "cannot create %s: %s", path,
				     sys_strerror(errno));
	return 0;
}

static int fill_head(struct segment *s, struct segment_head *h, uint32_t flags)
{
	uint64_t random[2];

	do {
		if (!sys_random(random, sizeof(random)))
			return segment_error(-EIO, "no random numbers");
	} while (!random[0] || !random[1]);
	s->probe = random[1];
	h->version = SEGMENT_VERSION;
	h->slot = s->slot;
	h->id = random[0];
	h->probe_addr = (uintptr_t)&s->probe;
	h->probe_value = s->probe;
	h->generation = s->generation;
	h->pid = (uint32_t)getpid();
	h->flags = flags;
	h->size = SEGMENT_SIZE;
	atomic_store(&h->magic, SEGMENT_MAGIC);
	return 0;
}

/* Removes a name if it is still that of what fd is. */
static void remove_name(const struct segment *s, int fd, bool fifo)
{
	char path[SEGMENT_PATH_MAX];
	struct stat is, named;

	if (fd < 0)
		return;
	segment_path(s, s->slot, fifo, path);
	if (!fstat(fd, &is) && !lstat(path, &named) &&
	    is.st_ino == named.st_ino && is.st_dev == named.st_dev)
		unlink(path);
}

void segment_unlink(struct segment *s)
{
	remove_name(s, s->fd, false);
	remove_name(s, s->fifo, true);
}

static void close_fds(struct segment *s)
{
	if (s->fd >= 0)
		sys_close(s->fd);
	if (s->fifo >= 0)
		sys_close(s->fifo);
	s->fd = s->fifo = -1;
}

static void segment_free(struct segment *s)
{
	segment_unlink(s);
	close_fds(s);
	if (s->map)
		munmap(s->map, SEGMENT_SIZE);
	pthread_mutex_destroy(&s->lock);
	free(s);
}

/*
 * Ubuntu's default: without this only our ancestors could copy. Still it takes
 * a process of the same user, which without Yama would not be asked for more.
 */
static void allow_copies(void)
{
	char scope = 0;
	int fd = sys_open("/proc/sys/kernel/yama/ptrace_scope",
			  O_RDONLY | O_CLOEXEC, 0);

	if (fd < 0)
		return;
	if (sys_read(fd, &scope, 1) == 1 && scope == '1')
		prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
	sys_close(fd);
}

int segment_create(struct segment **out, struct registry *r, uint32_t flags)
{
	struct segment *s;
	int err;

	err = sys_file_limit(SEGMENT_SIZE);
	if (err)
		return segment_error(
			err,
			"the shared memory of a process is a sparse file "
			"of %u MiB, and its files may not have so many "
			"(ulimit -f)",
			SEGMENT_SIZE >> 20);
	if (address_space_is_short())
		return segment_error(
			-ENOMEM,
			"the shared memory of a process takes %u MiB of "
			"addresses, and more for each peer, and this one "
			"may have few (ulimit -v)",
			SEGMENT_SIZE >> 20);
	s = calloc(1, sizeof(*s));
	if (!s)
		return segment_error(-ENOMEM, "out of memory");
	s->registry = r;
	s->slot = registry_slot(r);
	s->generation = registry_generation(r, s->slot);
	s->fd = s->fifo = -1;
	pthread_mutex_init(&s->lock, NULL);
	err = make_file(s, &s->map);
	s->head = (struct segment_head *)(void *)s->map;
	if (!err)
		err = make_fifo(s);
	if (!err)
		err = fill_head(s, s->head, flags);
	if (err) {
		segment_free(s);
		return err;
	}
	if (!(flags & SEGMENT_NO_COPY))
		allow_copies();
	registry_show(r, s->head->id);
	*out = s;
	return 0;
}

/* The end */

void segment_destroy(struct segment *s)
{
	if (!s)
		return;
	registry_show(s->registry, 0);
	segment_detach_all(s);
	segment_free(s);
}

void segment_abandon(struct segment *s)
{
	if (!s)
		return;
	close_fds(s);
	segment_forget_peers(s);
	/* The pages of the parent are still there if this fails. */
	(void)mmap(s->map, SEGMENT_SIZE, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
		   0);
}

/* Suspended */

/* What lies at s->map is replaced at once: objects point there. */
static void map_replace(struct segment *s, uint8_t *map)
{
	(void)mremap(map, SEGMENT_SIZE, SEGMENT_SIZE,
		     MREMAP_MAYMOVE | MREMAP_FIXED, s->map);
}

static void copy_tables(const struct segment *s, uint8_t *to)
{
	for (int t = 0; t < SEGMENT_TABLES; t++) {
		const size_t at = table_offset((enum segment_table)t);

		memcpy(to + at, s->map + at, s->table_ok[t]);
	}
}

/* Who looks there, and has not come in before, finds nothing to copy. */
static void clear_tables(const struct segment *s, uint8_t *old)
{
	for (int t = 0; t < SEGMENT_TABLES; t++)
		memset(old + table_offset((enum segment_table)t), 0,
		       s->table_ok[t]);
}

/* What it takes, before anything is given up: blank memory, and what is mapped
 * once more. */
int segment_prepare(struct segment *s)
{
	void *blank = mmap(NULL, SEGMENT_SIZE, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	void *old;

	if (blank == MAP_FAILED)
		return segment_error(-ENOMEM, "out of memory");
	old = mmap(NULL, SEGMENT_SIZE, PROT_READ | PROT_WRITE,
		   MAP_SHARED | MAP_NORESERVE, s->fd, 0);
	if (old == MAP_FAILED) {
		munmap(blank, SEGMENT_SIZE);
		return segment_error(-ENOMEM, "out of memory");
	}
	s->blank = blank;
	s->old = old;
	return 0;
}

void segment_away(struct segment *s)
{
	struct segment_head *h = (struct segment_head *)(void *)s->blank;

	registry_show(s->registry, 0);
	segment_detach_all(s);
	copy_tables(s, s->blank);
	h->flags = s->head->flags;
	h->generation = s->generation;
	map_replace(s, s->blank);
	clear_tables(s, s->old);
	copy_guard_wait_at(s, s->old);
	segment_detach_all(s); /* it may have asked some */
	munmap(s->old, SEGMENT_SIZE);
	s->blank = s->old = NULL;
	segment_unlink(s);
	close_fds(s);
	memset(s->rings_ok, 0, sizeof(s->rings_ok));
	memset(s->refused, 0, sizeof(s->refused));
}

/* The file with all that is shown, at *map. */
static int make_again(struct segment *s, uint8_t **map)
{
	int err = make_file(s, map);

	if (!err)
		err = make_fifo(s);
	for (int t = 0; t < SEGMENT_TABLES && !err; t++)
		if (s->table_ok[t])
			err = segment_allocate(
				s->fd, table_offset((enum segment_table)t),
				s->table_ok[t]);
	return err;
}

int segment_back(struct segment *s)
{
	const uint32_t flags = s->head->flags;
	struct segment_head *h;
	uint8_t *map = NULL;
	int err;

	s->slot = registry_slot(s->registry);
	s->generation = registry_generation(s->registry, s->slot);
	err = sys_file_limit(SEGMENT_SIZE);
	err = err ? segment_error(
			    err,
			    "files may not have the %u MiB that shared memory "
			    "takes (ulimit -f)",
			    SEGMENT_SIZE >> 20) :
		    make_again(s, &map);
	h = (struct segment_head *)(void *)map;
	if (!err) {
		copy_tables(s, map);
		for (int t = 0; t < SEGMENT_TABLES; t++)
			atomic_store(&h->table_size[t], s->table_ok[t]);
		atomic_store(&h->behind, s->behind);
		err = fill_head(s, h, flags);
	}
	if (err) {
		if (map)
			munmap(map, SEGMENT_SIZE);
		segment_unlink(s);
		close_fds(s);
		return err;
	}
	map_replace(s, map);
	if (!(flags & SEGMENT_NO_COPY))
		allow_copies();
	registry_show(s->registry, s->head->id);
	return 0;
}

/* What it consists of */

const struct segment_head *segment_head(const struct segment *s)
{
	return s->head;
}

struct registry *segment_registry(const struct segment *s)
{
	return s->registry;
}

void *segment_table(const struct segment *s, enum segment_table t)
{
	return s->map + table_offset(t);
}

size_t segment_table_size(const struct segment *s, enum segment_table t)
{
	return s->table_ok[t];
}

int segment_grow(struct segment *s, enum segment_table t, size_t size)
{
	size_t old = s->table_ok[t];
	int err;

	if (size <= old)
		return 0;
	if (size > table_room(t))
		return -ENOSPC;
	size = (size + SEGMENT_GROW - 1) / SEGMENT_GROW * SEGMENT_GROW;
	/* While it is away it is memory, and segment_back() allocates. */
	err = s->fd < 0 ? 0 :
			  segment_allocate(s->fd, table_offset(t) + old,
					   size - old);
	if (err)
		return err;
	s->table_ok[t] = size;
	atomic_store_explicit(&s->head->table_size[t], size,
			      memory_order_release);
	return 0;
}

void *segment_ring(struct segment *s, unsigned slot)
{
	size_t offset = SEGMENT_RINGS_OFFSET +
			(size_t)slot % REGISTRY_SLOTS * SEGMENT_RING_SIZE;
	uint64_t bit = 1ull << (slot % 64);
	_Atomic uint64_t *ok =
		&s->rings_ok[slot / 64 % ARRAY_SIZE(s->rings_ok)];

	if (!(atomic_load_explicit(ok, memory_order_relaxed) & bit)) {
		if (segment_allocate(s->fd, offset, SEGMENT_RING_SIZE))
			return NULL;
		atomic_fetch_or(ok, bit);
	}
	return s->map + offset;
}

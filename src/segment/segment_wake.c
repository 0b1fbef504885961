/*
 * segment_wake.c - whether a process sleeps, and how it is woken
 *
 * Who sleeps does so with a FIFO among the descriptors that wake it, and has
 * said so in the segment's head.
 */
#include "segment_internal.h"

#include "base/fd_high.h"
#include "base/sys.h"
#include "os/owner.h"

/* One's own */

int segment_wake_fd(const struct segment *s)
{
	return s->fifo;
}

void segment_sleeps(struct segment *s)
{
	atomic_store(&s->head->asleep, 1);
	atomic_thread_fence(memory_order_seq_cst);
}

void segment_wakes(struct segment *s, bool called)
{
	char buf[64];

	atomic_store(&s->head->asleep, 0);
	while (called && sys_read(s->fifo, buf, sizeof(buf)) == sizeof(buf))
		;
}

/* What is written there means nothing; that there is something does. It is
 * full, or the process is gone, if this fails. */
static void fifo_write(int fd)
{
	if (fd >= 0 && sys_write(fd, "", 1) < 0)
		return;
}

void segment_poke_own(struct segment *s)
{
	fifo_write(s->fifo);
}

/* Whoever says it last has looked after all others had changed it. */
static void say_behind(struct segment *s)
{
	uint32_t n;

	do {
		n = atomic_load(&s->behind);
		atomic_store(&s->head->behind, n);
	} while (atomic_load(&s->behind) != n);
}

void segment_behind(struct segment *s, int n)
{
	atomic_fetch_add(&s->behind, (uint32_t)n);
	say_behind(s);
}

/* The same; a thread may begin or end to be the one that keeps it. */
static void say_keeper(struct segment *s)
{
	uint32_t id;

	do {
		id = atomic_load(&s->keeper);
		atomic_store(&s->head->keeper, id);
	} while (atomic_load(&s->keeper) != id);
}

void segment_say_again(struct segment *s)
{
	atomic_store(&s->head->poked, 0);
	say_keeper(s);
	copy_guard_repeat(s);
	say_behind(s);
}

/* Others' */

/* With a reading end, which we do not use: see make_fifo(). */
static int open_fifo(const struct segment_peer *p)
{
	char path[SEGMENT_PATH_MAX];
	struct stat st;
	int fd;

	segment_path(p->segment, p->slot, true, path);
	fd = fd_high(sys_open(path,
			      O_RDWR | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC, 0));
	if (fd >= 0 && (fstat(fd, &st) || !S_ISFIFO(st.st_mode) ||
			!owner_private(fd, &st))) {
		sys_close(fd);
		return -1;
	}
	return fd;
}

static int wake_fd(struct segment_peer *p)
{
	int fd = atomic_load(&p->wake_fd), none = -1;

	if (fd >= 0 || !segment_peer_current(p))
		return fd;
	fd = open_fifo(p);
	if (fd < 0 || atomic_compare_exchange_strong(&p->wake_fd, &none, fd))
		return fd;
	sys_close(fd);
	return none;
}

static void call_peer(struct segment_peer *p)
{
	fifo_write(p->self ? p->segment->fifo : wake_fd(p));
}

void segment_wake_slow(struct segment_peer *p)
{
	/* Of all who see it one does it. A full FIFO is readable as well. */
	if (atomic_exchange(&p->head->asleep, 0))
		call_peer(p);
}

void segment_poke(struct segment_peer *p)
{
	segment_say_producer(p);
	atomic_store(&p->head->poked, 1);
	call_peer(p);
}

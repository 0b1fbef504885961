/*
 * segment_wake.c - who sleeps, and how he is woken
 *
 * The thread sleeps in epoll, with a FIFO among its descriptors; programs sleep
 * on a futex. Both have said so in the segment's head.
 */
#include "segment_internal.h"

#include "base/aside.h"
#include "base/sys.h"
#include "owner.h"

#include <errno.h>
#include <string.h>

#ifdef SYS_futex_time64
#define SYS_FUTEX SYS_futex_time64
#else
#define SYS_FUTEX SYS_futex
#endif

#define WAKE '\0' /* in the FIFO; any other byte is as good */
#define POKE 'p'

/* One's own */

int segment_wake_fd(const struct segment *s)
{
	return s->fifo;
}

void segment_thread_sleeps(struct segment *s)
{
	atomic_fetch_or(&s->head->sleepers, SEGMENT_THREAD_SLEEPS);
	atomic_thread_fence(memory_order_seq_cst);
}

bool segment_thread_wakes(struct segment *s)
{
	bool poked = false;
	char buf[64];
	ssize_t n;

	atomic_fetch_and(&s->head->sleepers, ~SEGMENT_THREAD_SLEEPS);
	do {
		n = sys_read(s->fifo, buf, sizeof(buf));
		poked |= n > 0 && memchr(buf, POKE, (size_t)n);
	} while (n == sizeof(buf));
	return poked;
}

uint32_t segment_doze_begin(struct segment *s)
{
	uint32_t value = atomic_load(&s->head->signal);

	atomic_fetch_add(&s->head->sleepers, 1);
	atomic_thread_fence(memory_order_seq_cst);
	return value;
}

void segment_doze(struct segment *s, uint32_t value, uint64_t timeout_ns)
{
	const struct sys_time t = { (int64_t)(timeout_ns / 1000000000),
				    (int64_t)(timeout_ns % 1000000000) };

	syscall(SYS_FUTEX, &s->head->signal, FUTEX_WAIT, value,
		timeout_ns == UINT64_MAX ? NULL : &t, NULL, 0);
}

void segment_doze_end(struct segment *s)
{
	atomic_fetch_sub(&s->head->sleepers, 1);
}

bool segment_dozing(const struct segment *s)
{
	return atomic_load_explicit(&s->head->sleepers, memory_order_relaxed) &
	       ~SEGMENT_THREAD_SLEEPS;
}

static void rouse(struct segment_head *h)
{
	atomic_fetch_add(&h->signal, 1);
	syscall(SYS_FUTEX, &h->signal, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

void segment_rouse(struct segment *s)
{
	rouse(s->head);
}

/* Others' */

/* With a reading end, which we do not use: see make_fifo(). */
static int open_fifo(const struct segment_peer *p)
{
	char path[SEGMENT_PATH_MAX];
	struct stat st;
	int fd;

	segment_path(p->segment, p->slot, true, path);
	fd = fd_aside(sys_open(
		path, O_RDWR | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC, 0));
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

static void call(struct segment_peer *p, char byte)
{
	int fd = p->self ? p->segment->fifo : wake_fd(p);

	if (fd < 0 || sys_write(fd, &byte, 1) < 0)
		return; /* it is full, or the process is gone */
}

void segment_wake_slow(struct segment_peer *p)
{
	struct segment_head *h = p->head;
	uint32_t sleepers = atomic_load(&h->sleepers);

	if (sleepers & ~SEGMENT_THREAD_SLEEPS) {
		rouse(h);
		return;
	}
	/* Of all who see it one does it. A full FIFO is readable as well. */
	if (!(atomic_fetch_and(&h->sleepers, ~SEGMENT_THREAD_SLEEPS) &
	      SEGMENT_THREAD_SLEEPS))
		return;
	call(p, WAKE);
}

void segment_poke(struct segment_peer *p)
{
	call(p, POKE);
	rouse(p->head);
}

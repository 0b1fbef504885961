/*
 * trace.c - records events (trace.h)
 *
 * A ring's blocks are reserved when it begins: a mapped file that has none, on a
 * disk that is full, would end the program by SIGBUS. What a thread leaves at
 * its end is the next one's to go on with.
 *
 * Half of what an event costs is to know when it was. So events that are parts of
 * one share its time, and where the processor has a counter of time, each thread
 * reads that, and sets it right by the clock every few milliseconds.
 */
#include "trace.h"

#include "base/fd_high.h"
#include "base/sys.h"
#include "os/config.h"
#include "os/counter.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

#define RING_BYTES (TRACE_RING_RECORDS * sizeof(struct trace_rec))

struct slot {
	struct trace_ring *ring;
	struct trace_rec *rec;
	struct slot *next; /* free */
};

static struct {
	pthread_mutex_t lock; /* of what follows */
	struct trace_header *head;
	int fd;
	struct slot slot[TRACE_RINGS];
	struct slot *free;
	pthread_key_t key;
} file = { .lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1 };

static _Thread_local __attribute__((tls_model("initial-exec"))) struct {
	struct slot *slot;
	bool none; /* there is none for this thread */
	uint64_t last_ns;
	struct counter counter; /* rate 0: not known yet */
	uint64_t width; /* of the best reading of both */
	uint64_t set_cycles; /* when it is to be set right */
} mine;

#if defined(__x86_64__)

#define RATE_NS 1000000u /* so long it takes to know the counter's rate */
#define FIRST_READINGS 4

static bool counts_time; /* set before anything is recorded */

static void look_at_counter(void)
{
	unsigned a, b, c, d;

	counts_time = __get_cpuid(0x80000007, &a, &b, &c, &d) && d & 1u << 8;
}

static void note_error(uint64_t ns)
{
	uint64_t *most = &file.head->clock_error;
	uint64_t was = __atomic_load_n(most, __ATOMIC_RELAXED);

	while (ns > was &&
	       !__atomic_compare_exchange_n(most, &was, ns, true,
					    __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
}

/* The clock's time; from now on the counter shows it. */
__attribute__((noinline)) static uint64_t set_counter(void)
{
	struct counter *c = &mine.counter;
	uint64_t cycles, ns, width, is, next;
	bool good;

	/* A thread's first one faults pages in. */
	for (int i = mine.width ? 1 : FIRST_READINGS; i > 0; i--) {
		cycles = __rdtsc();
		ns = clock_ns();
		width = __rdtsc() - cycles;
		good = counter_is_good(&mine.width, width);
	}
	if (!good) /* the next event tries again */
		return ns;
	if (c->rate) {
		is = counter_ns(c, cycles);
		note_error((is > ns ? is - ns : ns - is) +
			   counter_scale(width, c->rate));
	}
	if (!c->first_ns) {
		c->first_cycles = cycles;
		c->first_ns = ns;
	} else if (ns - c->first_ns >= RATE_NS &&
		   (!c->rate || !counter_set(c, cycles, ns, __rdtsc()))) {
		counter_init(c, c->first_cycles, c->first_ns, cycles, ns);
	}
	if (c->rate) {
		/* A rate that is known for a short time is good for as long. */
		next = ns - c->first_ns;
		next = next < COUNTER_SET_NS ? next : COUNTER_SET_NS;
		mine.set_cycles = cycles + (next << 32) / c->rate;
	}
	return ns;
}

static uint64_t now(void)
{
	const uint64_t cycles = counts_time ? __rdtsc() : 0;

	if (!counts_time)
		return clock_ns();
	if (__builtin_expect(cycles >= mine.set_cycles, 0))
		return set_counter();
	return counter_ns(&mine.counter, cycles);
}

#else

static void look_at_counter(void)
{
}

static uint64_t now(void)
{
	return clock_ns();
}

#endif

static void forget(void)
{
	mine.last_ns = 0;
}

static void thread_ends(void *slot)
{
	struct slot *s = slot;

	pthread_mutex_lock(&file.lock);
	mine.slot = NULL;
	s->next = file.free;
	file.free = s;
	pthread_mutex_unlock(&file.lock);
}

/* The file's next ring, or NULL. Lock held. */
static struct slot *ring_new(void)
{
	const uint32_t n = file.head->nrings;
	const off_t at = (off_t)(TRACE_RINGS_AT + n * RING_BYTES);
	struct slot *s = &file.slot[n];
	void *mem;

	if (n == TRACE_RINGS || sys_file_limit((uint64_t)at + RING_BYTES) ||
	    syscall(SYS_fallocate, file.fd, 0, at, (off_t)RING_BYTES))
		return NULL;
	mem = mmap(NULL, RING_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED,
		   file.fd, at);
	if (mem == MAP_FAILED)
		return NULL;
	s->rec = mem;
	s->ring = &file.head->ring[n];
	__atomic_store_n(&file.head->nrings, n + 1, __ATOMIC_RELEASE);
	return s;
}

static void put_event(enum trace_type type, uint32_t num, uint32_t x,
		      uint64_t key, uint32_t psn_op, uint32_t len, uint64_t ns);

__attribute__((noinline, cold)) static struct slot *thread_begins(void)
{
	struct slot *s;

	if (mine.none)
		return NULL;
	pthread_mutex_lock(&file.lock);
	s = file.free;
	if (s)
		file.free = s->next;
	else
		s = ring_new();
	pthread_mutex_unlock(&file.lock);
	mine.slot = s;
	mine.none = !s;
	if (!s)
		return NULL;
	pthread_setspecific(file.key, s);
	s->ring->tid = (uint32_t)gettid();
	prctl(PR_GET_NAME, s->ring->name);
	put_event(TRACE_THREAD, 0, s->ring->tid, 0, 0, 0, 0);
	return s;
}

static inline void write_rec(struct slot *s, const struct trace_rec *r)
{
	const uint64_t n = s->ring->written;

	/* Who reads a part of this one finds the one before counted. */
	atomic_thread_fence(memory_order_release);
	s->rec[n & (TRACE_RING_RECORDS - 1)] = *r;
	__atomic_store_n(&s->ring->written, n + 1, __ATOMIC_RELEASE);
}

static void put_event(enum trace_type type, uint32_t num, uint32_t x,
		      uint64_t key, uint32_t psn_op, uint32_t len, uint64_t ns)
{
	struct slot *s = mine.slot;

	if (__builtin_expect(!s, 0))
		s = thread_begins();
	if (!s) {
		__atomic_fetch_add(&file.head->unrecorded, 1, __ATOMIC_RELAXED);
		return;
	}
	if (ns == TRACE_LAST)
		ns = mine.last_ns;
	mine.last_ns = ns = ns ? ns : now();
	write_rec(s, &(struct trace_rec){
			     .ns = ns,
			     .what = num << 8 | (uint32_t)type,
			     .x = x,
			     .key = key,
			     .psn_op = psn_op,
			     .len = len,
		     });
}

static void keep_rec(const struct trace_rec *r)
{
	pthread_mutex_lock(&file.lock);
	write_rec(&file.slot[0], r);
	pthread_mutex_unlock(&file.lock);
}

static void keep_event(enum trace_type type, uint32_t num, uint32_t x,
		       uint64_t key, uint32_t psn_op, uint32_t len)
{
	keep_rec(&(struct trace_rec){ .ns = clock_ns(),
				      .what = num << 8 | (uint32_t)type,
				      .x = x,
				      .key = key,
				      .psn_op = psn_op,
				      .len = len });
}

static void keep_bytes(enum trace_type type, uint32_t num, const void *bytes)
{
	struct trace_rec r = { .ns = clock_ns(),
			       .what = num << 8 | (uint32_t)type };

	memcpy(&r.key, bytes, sizeof(r) - offsetof(struct trace_rec, key));
	keep_rec(&r);
}

static uint64_t namespace_inode(const char *path)
{
	struct stat st;

	return stat(path, &st) ? 0 : (uint64_t)st.st_ino;
}

static void read_line(const char *path, char *to, size_t size)
{
	const int fd = sys_open(path, O_RDONLY | O_CLOEXEC, 0);
	ssize_t n = fd < 0 ? 0 : sys_read(fd, to, size - 1);

	if (fd >= 0)
		sys_close(fd);
	to[n > 0 ? n : 0] = '\0';
	to[strcspn(to, "\n")] = '\0';
}

static void describe_process(struct trace_header *h)
{
	struct timespec ts;

	h->version = TRACE_VERSION;
	h->header_size = TRACE_RINGS_AT;
	h->record_size = sizeof(struct trace_rec);
	h->ring_records = TRACE_RING_RECORDS;
	h->pid = (uint32_t)getpid();
	clock_gettime(CLOCK_REALTIME, &ts);
	h->real_ns = (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
	h->mono_ns = clock_ns();
	h->netns = namespace_inode("/proc/self/ns/net");
	h->timens = namespace_inode("/proc/self/ns/time");
	read_line("/proc/sys/kernel/random/boot_id", h->boot, sizeof(h->boot));
	read_line("/proc/self/comm", h->program, sizeof(h->program));
	if (gethostname(h->host, sizeof(h->host) - 1))
		h->host[0] = '\0';
	/* Whoever finds this finds the rest. */
	memcpy(h->magic, TRACE_MAGIC, sizeof(h->magic));
}

static int open_new(const char *dir)
{
	char path[4096], host[72] = "";
	int fd = -1, err;

	if (mkdir(dir, 0700) && errno != EEXIST)
		return -errno;
	if (gethostname(host, sizeof(host) - 1))
		host[0] = '\0';
	/* A program that has become another one has the number that it had. */
	for (unsigned n = 0; fd < 0 && n < 1000; n++) {
		const int len =
			snprintf(path, sizeof(path), "%s/%s-%d-%u" TRACE_SUFFIX,
				 dir, host, (int)getpid(), n);

		if (len < 0 || (size_t)len >= sizeof(path))
			return -ENAMETOOLONG;
		fd = sys_open(path,
			      O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC |
				      O_NOFOLLOW,
			      0600);
		if (fd < 0 && errno != EEXIST)
			return -errno;
	}
	if (fd < 0)
		return -EEXIST;
	fd = fd_high(fd);
	err = sys_file_limit(TRACE_RINGS_AT);
	if (!err &&
	    syscall(SYS_fallocate, fd, 0, (off_t)0, (off_t)TRACE_RINGS_AT))
		err = -errno;
	if (err) {
		sys_close(fd);
		unlink(path);
		return err;
	}
	return fd;
}

static const struct trace_ops ops = {
	.put = put_event,
	.keep = keep_event,
	.keep_bytes = keep_bytes,
	.forget = forget,
	.now = now,
};

int trace_begin(const char *dir)
{
	static bool have_key;
	void *mem;
	int fd;

	/* A child whose parent had no device when it forked. */
	if (file.head && file.head->pid != (uint32_t)getpid())
		trace_forked();
	if (file.head)
		return 0;
	if (!have_key && pthread_key_create(&file.key, thread_ends))
		return -EAGAIN;
	have_key = true;
	fd = open_new(dir);
	if (fd < 0)
		return fd;
	mem = mmap(NULL, sizeof(*file.head), PROT_READ | PROT_WRITE, MAP_SHARED,
		   fd, 0);
	if (mem == MAP_FAILED) {
		sys_close(fd);
		return -ENOMEM;
	}
	file.head = mem;
	file.fd = fd;
	if (!ring_new()) {
		trace_forked();
		return -ENOSPC;
	}
	describe_process(file.head);
	look_at_counter();
	trace_ops = &ops;
	trace_on = true;
	return 0;
}

void trace_forked(void)
{
	if (!file.head)
		return;
	/* Its parent's rings are its parent's. */
	trace_on = false;
	for (uint32_t i = 0; i < TRACE_RINGS; i++)
		if (file.slot[i].rec)
			munmap(file.slot[i].rec, RING_BYTES);
	munmap(file.head, sizeof(*file.head));
	sys_close(file.fd);
	memset(file.slot, 0, sizeof(file.slot));
	pthread_mutex_init(&file.lock, NULL);
	file.head = NULL;
	file.free = NULL;
	file.fd = -1;
	mine.slot = NULL;
	mine.none = false;
	pthread_setspecific(file.key, NULL);
}

/*
 * test_trace.c - the record of events: written, and read from files by anybody
 */
#include "unit.h"

#include "base/bytes.h"
#include "os/config.h"
#include "trace/read.h"
#include "trace/trace.h"
#include "wire/rdmap.h"
#include "wire/roce.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MSEC 1000000ull

static char dir[64];
static char said[8192];

static void bad(const char *path, const char *why)
{
	const size_t n = strlen(said);

	snprintf(said + n, sizeof(said) - n, "%s: %s\n", path, why);
}

static int read_dir(struct trace_set *t)
{
	said[0] = '\0';
	return trace_read(t, dir, bad);
}

static int setup(void **state)
{
	(void)state;
	snprintf(dir, sizeof(dir), "/tmp/test_trace.XXXXXX");
	return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
	char path[512];
	struct dirent *d;
	DIR *open = opendir(dir);

	(void)state;
	while (open && (d = readdir(open))) {
		snprintf(path, sizeof(path), "%s/%s", dir, d->d_name);
		unlink(path);
	}
	closedir(open);
	return rmdir(dir);
}

/* ---- written ----------------------------------------------------------- */

static void *one_event(void *arg)
{
	trace_put(TRACE_CQ_GOT, 0, 0, (uintptr_t)arg, 0, 0, 0);
	return NULL;
}

static void record(void)
{
	pthread_t thread;

	assert_false(tracing());
	assert_int_equal(trace_begin(dir), 0);
	assert_true(tracing());
	trace_keep(TRACE_QP_NEW, 0x11, IBV_QPT_RC, 0, 0, 0);
	for (uint64_t i = 1; i <= TRACE_RING_RECORDS + 99; i++)
		trace_put(TRACE_POST_SEND, 0x11, 0, i, 0, 0, i);
	/* One after the other they use one ring. */
	for (uintptr_t i = 0; i < 2 * TRACE_RINGS; i++) {
		assert_int_equal(
			pthread_create(&thread, NULL, one_event, (void *)i), 0);
		assert_int_equal(pthread_join(thread, NULL), 0);
	}
}

/* Ended by no call of anybody: all is there, but for the oldest of one ring. */
static void a_killed_process(void **state)
{
	struct trace_set t;
	struct stat st;
	char path[512];
	uint32_t first = 0, got = 0;
	int status;
	pid_t pid = fork();

	(void)state;
	if (!pid) {
		record();
		kill(getpid(), SIGKILL);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	assert_int_equal(read_dir(&t), 0);
	assert_string_equal(said, "");
	assert_int_equal(t.nprocs, 1);
	assert_int_equal(t.proc[0].head.pid, pid);
	assert_int_equal(t.proc[0].lost, 100); /* with the thread's own */
	assert_int_equal(t.proc[0].head.unrecorded, 0);
	assert_int_equal(t.proc[0].head.nrings, 3);
	assert_int_equal(t.nwrs, TRACE_RING_RECORDS);
	for (uint32_t i = 0; i < t.nevents; i++) {
		const struct trace_rec *r = &t.event[i].rec;

		if (trace_type(r) == TRACE_POST_SEND && !first)
			first = (uint32_t)r->key;
		got += trace_type(r) == TRACE_CQ_GOT;
	}
	assert_int_equal(first, 100);
	assert_int_equal(got, 2 * TRACE_RINGS);
	snprintf(path, sizeof(path), "%s/%s", dir, t.proc[0].name);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0600);
	trace_read_free(&t);
}

/* A child writes nothing to its parent's file, and has one of its own. */
static void a_forked_child(void **state)
{
	struct trace_set t;
	int status;
	pid_t pid = fork();

	(void)state;
	if (!pid) {
		assert_int_equal(trace_begin(dir), 0);
		trace_put(TRACE_CQ_GOT, 0, 0, 1, 0, 0, 0);
		if (!fork()) {
			trace_forked();
			assert_false(tracing());
			assert_int_equal(trace_begin(dir), 0);
			trace_put(TRACE_CQ_GOT, 0, 0, 2, 0, 0, 0);
			_exit(0);
		}
		wait(NULL);
		trace_put(TRACE_CQ_GOT, 0, 0, 3, 0, 0, 0);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(read_dir(&t), 0);
	assert_int_equal(t.nprocs, 2);
	assert_int_equal(t.nevents, 3);
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(t.proc[t.event[i].proc].head.pid ==
					 (uint32_t)pid,
				 t.event[i].rec.key != 2);
	trace_read_free(&t);
}

#define THREADS 16u
#define OFF_NS 300000u

/* How far the time of events is off, at most, while it is found out how fast
 * the counter is, and set right for the first times. What is not yet compared
 * with the clock when it ends does not count. */
static void *look_at_time(void *arg)
{
	const uint64_t begin = clock_ns();
	uint64_t before = begin, most = 0, off;
	_Atomic uint64_t *all = arg;

	while (before - begin < 8 * MSEC) {
		const uint64_t now = trace_now(), after = clock_ns();

		off = now < before ? before - now :
		      now > after  ? now - after :
				     0;
		most = off > most ? off : most;
		before = after;
	}
	while (clock_ns() - before < 6 * MSEC)
		usleep(1000);
	for (int i = 0; i < 100; i++)
		trace_now();
	off = atomic_load(all);
	while (most > off && !atomic_compare_exchange_weak(all, &off, most))
		;
	return NULL;
}

/* Threads that lose their processor to others at any time: not far, and not
 * farther than the file says. */
static void time_of_busy_threads(void **state)
{
	pthread_t thread[THREADS];
	struct trace_set t;
	_Atomic uint64_t *off = mmap(NULL, sizeof(*off), PROT_READ | PROT_WRITE,
				     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int status;
	pid_t pid = fork();

	(void)state;
	if (!pid) {
		assert_int_equal(trace_begin(dir), 0);
		trace_put(TRACE_CQ_GOT, 0, 0, 1, 0, 0, 0);
		for (int round = 0; round < 40; round++) {
			for (unsigned i = 0; i < THREADS; i++)
				assert_int_equal(pthread_create(&thread[i],
								NULL,
								look_at_time,
								(void *)off),
						 0);
			for (unsigned i = 0; i < THREADS; i++)
				assert_int_equal(pthread_join(thread[i], NULL),
						 0);
		}
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(read_dir(&t), 0);
	assert_true(*off < OFF_NS);
	assert_true(*off <= t.proc[0].head.clock_error);
	trace_read_free(&t);
	munmap((void *)off, sizeof(*off));
}

/* ---- read -------------------------------------------------------------- */

#define RECORDS 64u

struct file {
	union {
		struct trace_header h;
		uint8_t before_rings[TRACE_RINGS_AT];
	};
	struct trace_rec rec[RECORDS];
};

static void begin(struct file *f, const char *boot, uint32_t pid)
{
	memset(f, 0, sizeof(*f));
	memcpy(f->h.magic, TRACE_MAGIC, sizeof(f->h.magic));
	f->h.version = TRACE_VERSION;
	f->h.header_size = TRACE_RINGS_AT;
	f->h.record_size = sizeof(struct trace_rec);
	f->h.ring_records = RECORDS;
	f->h.nrings = 1;
	f->h.pid = pid;
	strcpy(f->h.boot, boot);
	strcpy(f->h.host, boot);
	strcpy(f->h.program, "program");
}

static struct trace_rec *add(struct file *f, enum trace_type type, uint32_t num,
			     uint64_t ns, uint32_t x, uint64_t key,
			     uint32_t psn, uint32_t op)
{
	struct trace_rec *r = &f->rec[f->h.ring[0].written++];

	*r = (struct trace_rec){ .ns = ns,
				 .what = num << 8 | type,
				 .x = x,
				 .key = key,
				 .psn_op = psn << 8 | op };
	return r;
}

static void write_file(const struct file *f, const char *name, size_t len)
{
	char path[512];
	FILE *to;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	to = fopen(path, "w");
	assert_non_null(to);
	assert_int_equal(fwrite(f, 1, len, to), len);
	assert_int_equal(fclose(to), 0);
}

/* num to dest, by addresses a and b. */
static void connect_to(struct file *f, uint32_t num, uint32_t dest, uint8_t a,
		       uint8_t b, uint64_t ns)
{
	struct trace_rec *r;

	add(f, TRACE_QP_NEW, num, ns, IBV_QPT_RC, 0, 0, 0);
	r = add(f, TRACE_QP_SGID, num, ns, 0, 0, 0, 0);
	memset(&r->key, a, 16);
	r = add(f, TRACE_QP_DGID, num, ns, 0, 0, 0, 0);
	memset(&r->key, b, 16);
	r = add(f, TRACE_QP_STATE, num, ns, IBV_QPS_RTR, dest, 0, 0);
	r->len = 1024;
}

#define ACK (ROCE_RC | ROCE_ACK)
#define ONLY (ROCE_RC | ROCE_SEND_ONLY)
#define SKEW (5000 * MSEC)

/*
 * Two sends from QP 0x11 of one host to 0x12 of another, whose clock is SKEW
 * ahead. A packet takes 10 us there and 14 us back, at best. The second send is
 * lost, which the third one shows, and sent again after a NAK.
 */
static void two_hosts(struct file *a, struct file *b)
{
	const uint64_t t = 1000 * MSEC;

	begin(a, "one", 1);
	begin(b, "two", 2);
	connect_to(a, 0x11, 0x12, 1, 2, t - MSEC);
	connect_to(b, 0x12, 0x11, 2, 1, t - MSEC + SKEW);
	add(a, TRACE_POST_SEND, 0x11, t, 100 << 8 | TRACE_SIGNALED, 7, 100,
	    IBV_WR_SEND);
	add(a, TRACE_POST_SEND, 0x11, t + 1000, 101 << 8 | TRACE_SIGNALED, 8,
	    101, IBV_WR_SEND);
	add(a, TRACE_PKT_OUT, 0x11, t + 2000, 100 << 8, 0x12, 100, ONLY);
	add(a, TRACE_PKT_OUT, 0x11, t + 3000, 101 << 8, 0x12, 101, ONLY);
	add(a, TRACE_POST_SEND, 0x11, t + 3100, 102 << 8 | TRACE_SIGNALED, 9,
	    102, IBV_WR_SEND);
	add(a, TRACE_PKT_OUT, 0x11, t + 3500, 102 << 8, 0x12, 102, ONLY);
	add(b, TRACE_PKT_IN, 0x12, t + 30000 + SKEW, 102 << 8, 0x11, 102, ONLY);
	add(b, TRACE_DROP, 0x12, t + 30100 + SKEW, 5, 0, 0, 0);
	add(b, TRACE_PKT_IN, 0x12, t + 12000 + SKEW, 100 << 8, 0x11, 100, ONLY);
	add(b, TRACE_PKT_OUT, 0x12, t + 20000 + SKEW, 100 << 8,
	    TRACE_KEY(0x11, ROCE_AETH_ACK, 1), 100, ACK);
	add(a, TRACE_PKT_IN, 0x11, t + 34000, 100 << 8,
	    TRACE_KEY(0x12, ROCE_AETH_ACK, 1), 100, ACK);
	add(a, TRACE_COMPLETE, 0x11, t + 35000, 0, 7, 0, IBV_WC_SEND);
	add(a, TRACE_POLLED, 0x11, t + 39000, 0, 7, 0, IBV_WC_SEND);
	add(a, TRACE_PKT_IN, 0x11, t + 50000, 101 << 8,
	    TRACE_KEY(0x12, ROCE_AETH_NAK, 1), 101, ACK);
	add(a, TRACE_PKT_OUT, 0x11, t + 60000, 101 << 8 | TRACE_AGAIN, 0x12,
	    101, ONLY);
	add(b, TRACE_PKT_IN, 0x12, t + 75000 + SKEW, 101 << 8, 0x11, 101, ONLY);
	add(a, TRACE_PKT_IN, 0x11, t + 90000, 101 << 8,
	    TRACE_KEY(0x12, ROCE_AETH_ACK, 2), 101, ACK);
	add(a, TRACE_COMPLETE, 0x11, t + 90100, 0, 8, 0, IBV_WC_SEND);
}

static void write_two(const struct file *a, const struct file *b)
{
	write_file(a, "a" TRACE_SUFFIX, sizeof(*a));
	write_file(b, "b" TRACE_SUFFIX, sizeof(*b));
}

/* By another thread: what is polled has the time of a packet that came before. */
static void polled_before_completed(void **state)
{
	const uint64_t t0 = 1000 * MSEC;
	struct trace_set t;
	struct file a;

	(void)state;
	begin(&a, "one", 1);
	connect_to(&a, 0x11, 0x12, 1, 2, t0 - MSEC);
	for (uint32_t i = 0; i < 3; i++)
		add(&a, TRACE_POST_RECV, 0x11, t0 + i, 0, 7, 0, 0);
	add(&a, TRACE_COMPLETE, 0x11, t0 + 1000, 0, 7, 0, IBV_WC_RECV);
	add(&a, TRACE_POLLED, 0x11, t0 + 400, 0, 7, 0, IBV_WC_RECV);
	add(&a, TRACE_POLLED, 0x11, t0 + 400, 0, 7, 0, IBV_WC_RECV);
	add(&a, TRACE_COMPLETE, 0x11, t0 + 2000, 0, 7, 0, IBV_WC_RECV);
	/* None is recorded for this one. */
	add(&a, TRACE_POLLED, 0x11, t0 + 3000, 0, 7, 0, IBV_WC_RECV);
	write_file(&a, "a" TRACE_SUFFIX, sizeof(a));
	assert_int_equal(read_dir(&t), 0);
	assert_int_equal(t.nwrs, 3);
	assert_int_equal(t.wr[0].polled - t.wr[0].posted, 1000);
	assert_int_equal(t.wr[1].polled - t.wr[1].posted, 1999);
	assert_int_equal(t.wr[2].completed, 0);
	assert_int_equal(t.wr[2].polled, 0);
	trace_read_free(&t);
}

static void clocks_of_two_hosts(void **state)
{
	struct trace_set t;
	struct file a, b;
	uint64_t ns[TRACE_PHASES];
	int64_t off;

	(void)state;
	two_hosts(&a, &b);
	a.h.clock_error = 300;
	b.h.clock_error = 5000;
	write_two(&a, &b);
	assert_int_equal(read_dir(&t), 0);
	assert_int_equal(t.nclocks, 2);
	assert_true(t.clock[1].known);
	/* Half the difference of the two ways is what cannot be known, and
	 * how far either is off itself. */
	off = t.clock[1].offset + (int64_t)SKEW;
	assert_int_equal(t.clock[1].error, 12000 + 5300);
	assert_true(off <= 12000 && off >= -12000);

	assert_int_equal(t.nwrs, 3);
	assert_int_equal(trace_phases(&t.wr[0], ns), 39000);
	assert_int_equal(ns[TRACE_P_WINDOW], 2000);
	assert_int_equal(ns[TRACE_P_SENDING], 0);
	assert_int_equal(ns[TRACE_P_ANSWER], 32000);
	assert_int_equal(ns[TRACE_P_COMPLETING], 1000);
	assert_int_equal(ns[TRACE_P_POLLING], 4000);
	assert_int_equal(t.wr[1].packets, 2);
	assert_int_equal(t.wr[1].again, 1);
	assert_int_equal(t.wr[1].naks, 1);
	assert_int_equal(t.wr[1].polled, 0);
	assert_int_equal(trace_phases(&t.wr[1], ns), 89100);
	assert_int_equal(ns[TRACE_P_SENDING], 57000);
	for (uint32_t i = 0; i < t.nevents; i++) {
		const struct trace_event *ev = &t.event[i];

		if (trace_type(&ev->rec) != TRACE_PKT_OUT)
			continue;
		/* The first of the second send is the one that was lost. */
		if (ev->wr == 1 && !(ev->rec.x & TRACE_AGAIN)) {
			assert_int_equal(ev->other, TRACE_NOTHING);
			continue;
		}
		if (ev->wr == 2)
			assert_int_equal(t.event[ev->other].dropped, 1 + 5);
		assert_int_not_equal(ev->other, TRACE_NOTHING);
		assert_int_equal(t.event[ev->other].other, i);
		assert_int_equal(ev->reason, ev->rec.x & TRACE_AGAIN ?
						     TRACE_R_NAK :
						     TRACE_R_UNKNOWN);
	}
	trace_read_free(&t);
}

/* The fastest packet, which the peer then gets once more: it counts. */
static void clocks_by_what_was_sent_again(void **state)
{
	const uint64_t t = 1000 * MSEC;
	struct trace_set set;
	struct file a, b;

	(void)state;
	two_hosts(&a, &b);
	add(&a, TRACE_PKT_OUT, 0x11, t + 95000, 100 << 8 | TRACE_AGAIN, 0x12,
	    100, ONLY);
	add(&b, TRACE_PKT_IN, 0x12, t + 195000 + SKEW, 100 << 8, 0x11, 100,
	    ONLY);
	write_two(&a, &b);
	assert_int_equal(read_dir(&set), 0);
	assert_true(set.clock[1].known);
	assert_int_equal(set.clock[1].error, 12000);
	for (uint32_t i = 0; i < set.nevents; i++)
		if (trace_type(&set.event[i].rec) == TRACE_PKT_IN &&
		    set.event[i].proc == 1)
			assert_int_not_equal(set.event[i].other, TRACE_NOTHING);
	trace_read_free(&set);
}

/* What was sent before the file begins tells nothing when it arrives. */
static void no_clock_by_a_second_packet(void **state)
{
	const uint64_t t = 1000 * MSEC;
	struct trace_set set;
	struct file a, b;

	(void)state;
	two_hosts(&a, &b);
	add(&b, TRACE_PKT_IN, 0x12, t + 5000 + SKEW, 99 << 8, 0x11, 99, ONLY);
	add(&a, TRACE_PKT_OUT, 0x11, t + 95000, 99 << 8 | TRACE_AGAIN, 0x12, 99,
	    ONLY);
	write_two(&a, &b);
	assert_int_equal(read_dir(&set), 0);
	assert_int_equal(set.clock[1].error, 12000);
	trace_read_free(&set);
}

/* A request that another process' memory took has no PSN. */
static void carried_out_without_packets(void **state)
{
	struct trace_set t;
	struct file f;

	(void)state;
	begin(&f, "one", 1);
	connect_to(&f, 0x11, 0x12, 1, 2, 1);
	for (uint32_t i = 0; i < 2; i++)
		add(&f, TRACE_POST_SEND, 0x11, 2 + i,
		    (10 + i) << 8 | TRACE_SIGNALED, i, 10 + i,
		    IBV_WR_RDMA_WRITE);
	add(&f, TRACE_DIRECT, 0x11, 5, 10 << 8, 0, 10, IBV_WR_RDMA_WRITE);
	add(&f, TRACE_COMPLETE, 0x11, 6, 0, 0, 0, IBV_WC_RDMA_WRITE);
	add(&f, TRACE_PKT_OUT, 0x11, 7, 10 << 8, 0x12, 10, ONLY);
	write_file(&f, "a" TRACE_SUFFIX, sizeof(f));
	assert_int_equal(read_dir(&t), 0);
	assert_true(t.wr[0].direct);
	assert_int_equal(t.wr[0].packets, 0);
	assert_int_equal(t.wr[0].completed, 6);
	assert_false(t.wr[1].direct);
	assert_int_equal(t.wr[1].packets, 1);
	assert_int_equal(t.wr[1].first_psn, 10);
	trace_read_free(&t);
}

/* ---- iWARP ------------------------------------------------------------- */

/* By TCP; neither knows the other's number. */
static void connect_iwarp(struct file *f, uint32_t num, uint8_t a, uint8_t b,
			  uint16_t ours, uint16_t peers, uint64_t ns)
{
	connect_to(f, num, 0, a, b, ns);
	add(f, TRACE_QP_STATE, num, ns, IBV_QPS_RTS, TRACE_PORTS(ours, peers),
	    0, 0);
}

/* An FPDU that leaves a, 0x11, or b, 0x99, and takes as long as in two_hosts(). */
static void fpdu(struct file *a, struct file *b, bool from_a, uint64_t ns,
		 uint32_t number, enum rdmap_opcode op, uint32_t flags,
		 uint64_t wr_id)
{
	add(from_a ? a : b, TRACE_PKT_OUT, from_a ? 0x11 : 0x99,
	    ns + (from_a ? 0 : SKEW), number << 8 | flags, wr_id, number,
	    TRACE_FPDU | op);
	add(from_a ? b : a, TRACE_PKT_IN, from_a ? 0x99 : 0x11,
	    ns + (from_a ? 10000 + SKEW : 14000),
	    number << 8 | (flags & TRACE_END), 0, number, TRACE_FPDU | op);
}

/*
 * A write in three FPDUs behind the initiator's first message, a read whose
 * answer comes in two, and a send that nobody is told the end of.
 */
static void by_iwarp(struct file *a, struct file *b)
{
	const uint64_t t = 1000 * MSEC;

	begin(a, "one", 1);
	begin(b, "two", 2);
	connect_iwarp(a, 0x11, 1, 2, 40000, 7174, t - MSEC);
	connect_iwarp(b, 0x99, 2, 1, 7174, 40000, t - MSEC + SKEW);
	/* Another one between the same hosts, whose FPDUs have these numbers. */
	connect_iwarp(b, 0x9a, 2, 1, 7174, 40001, t - MSEC + SKEW);
	fpdu(a, b, true, t - 1000, 0, RDMAP_WRITE, TRACE_END, 0);
	add(a, TRACE_POST_SEND, 0x11, t, TRACE_SIGNALED, 7, 0,
	    IBV_WR_RDMA_WRITE);
	add(a, TRACE_POST_SEND, 0x11, t, TRACE_LOCAL, 7, 0, IBV_WR_LOCAL_INV);
	add(a, TRACE_POST_SEND, 0x11, t, TRACE_SIGNALED, 7, 0,
	    IBV_WR_RDMA_READ);
	add(a, TRACE_POST_SEND, 0x11, t, 0, 9, 0, IBV_WR_SEND);
	add(a, TRACE_POST_SEND, 0x11, t, TRACE_SIGNALED, 7, 0, IBV_WR_SEND);
	fpdu(a, b, true, t + 1000, 1, RDMAP_WRITE, TRACE_OF_WR, 7);
	fpdu(a, b, true, t + 2000, 2, RDMAP_WRITE, TRACE_OF_WR, 7);
	fpdu(a, b, true, t + 3000, 3, RDMAP_WRITE, TRACE_OF_WR | TRACE_END, 7);
	add(a, TRACE_COMPLETE, 0x11, t + 3500, 0, 7, 0, IBV_WC_RDMA_WRITE);
	fpdu(a, b, true, t + 4000, 4, RDMAP_READ_REQUEST,
	     TRACE_OF_WR | TRACE_END, 7);
	fpdu(a, b, true, t + 5000, 5, RDMAP_SEND, TRACE_OF_WR | TRACE_END, 9);
	fpdu(a, b, true, t + 6000, 6, RDMAP_SEND, TRACE_OF_WR | TRACE_END, 7);
	fpdu(a, b, false, t + 20000, 0, RDMAP_READ_RESPONSE, 0, 0);
	fpdu(a, b, false, t + 21000, 1, RDMAP_READ_RESPONSE, TRACE_END, 0);
	add(a, TRACE_COMPLETE, 0x11, t + 36000, 0, 7, 0, IBV_WC_RDMA_READ);
	add(a, TRACE_COMPLETE, 0x11, t + 36100, 0, 7, 0, IBV_WC_SEND);
	add(a, TRACE_POLLED, 0x11, t + 40000, 0, 7, 0, IBV_WC_RDMA_WRITE);
}

static void fpdus_of_work_requests(void **state)
{
	static const uint32_t packets[] = { 3, 0, 1, 1, 1 };
	uint64_t ns[TRACE_PHASES];
	struct trace_set t;
	struct file a, b;
	uint32_t pairs = 0;

	(void)state;
	by_iwarp(&a, &b);
	write_two(&a, &b);
	assert_int_equal(read_dir(&t), 0);
	assert_int_equal(t.nqps, 3);
	assert_int_equal(t.qp[t.qp[0].peer].num, 0x99);
	assert_true(t.clock[1].known);
	assert_int_equal(t.clock[1].error, 12000);

	assert_int_equal(t.nwrs, ARRAY_SIZE(packets));
	for (uint32_t i = 0; i < t.nwrs; i++)
		assert_int_equal(t.wr[i].packets, packets[i]);
	/* Nobody acknowledges a write; the last data of a read do. */
	assert_int_equal(t.wr[0].acked, 0);
	trace_phases(&t.wr[0], ns);
	assert_int_equal(ns[TRACE_P_WINDOW], 1000);
	assert_int_equal(ns[TRACE_P_SENDING], 2000);
	assert_int_equal(ns[TRACE_P_COMPLETING], 500);
	assert_int_equal(ns[TRACE_P_POLLING], 36500);
	trace_phases(&t.wr[2], ns);
	assert_int_equal(ns[TRACE_P_WINDOW], 4000);
	assert_int_equal(ns[TRACE_P_ANSWER], 31000);
	assert_int_equal(ns[TRACE_P_COMPLETING], 1000);
	/* It is over when it has left. */
	assert_int_equal(t.wr[3].completed, t.wr[3].last);
	assert_int_equal(t.wr[4].completed - t.wr[4].posted, 36100);

	for (uint32_t i = 0; i < t.nevents; i++) {
		const struct trace_event *ev = &t.event[i];
		uint32_t op;

		if (trace_type(&ev->rec) != TRACE_PKT_IN)
			continue;
		assert_true(trace_is_fpdu(&ev->rec, &op));
		assert_int_not_equal(ev->other, TRACE_NOTHING);
		assert_int_equal(t.event[ev->other].other, i);
		assert_int_equal(t.event[ev->other].rec.psn_op, ev->rec.psn_op);
		if (op == RDMAP_READ_RESPONSE)
			assert_int_equal(ev->wr, 2);
		pairs++;
	}
	assert_int_equal(pairs, 9);
	trace_read_free(&t);
}

static void says(const struct file *f, size_t len, const char *what)
{
	struct trace_set t;

	write_file(f, "a" TRACE_SUFFIX, len);
	assert_int_equal(read_dir(&t), -EINVAL);
	assert_non_null(strstr(said, "a" TRACE_SUFFIX ": "));
	if (!strstr(said, what))
		fail_msg("%s: not: %s", said, what);
}

static void wrong_files_are_named(void **state)
{
	struct trace_set t;
	struct file a, b;

	(void)state;
	assert_int_equal(read_dir(&t), -ENOENT);
	two_hosts(&a, &b);
	says(&a, 0, "truncated");
	says(&a, sizeof(a.h) - 1, "truncated");
	says(&a, sizeof(a) - 1, "truncated: it has ");
	a.h.version = 1;
	says(&a, sizeof(a), "version 1; this softhca reads version 2");
	a.h.version = TRACE_VERSION;
	a.h.magic[0] = 0;
	says(&a, sizeof(a), "not a file of events");
	two_hosts(&a, &b);
	a.h.ring_records = 1u << 31;
	says(&a, sizeof(a), "header corrupt");
	a.h.ring_records = RECORDS;
	a.h.ring[0].written = UINT64_MAX;
	says(&a, sizeof(a), "ring corrupt");
	/* The others are read all the same. */
	write_file(&b, "b" TRACE_SUFFIX, sizeof(b));
	assert_int_equal(read_dir(&t), 0);
	assert_int_equal(t.nprocs, 1);
	assert_non_null(strstr(said, "a" TRACE_SUFFIX));
	trace_read_free(&t);
}

/* Whatever is in a file, reading it ends, and leaves indices within bounds. */
static void any_bytes(void **state)
{
	uint64_t seed = rnd_seed();

	(void)state;
	for (int i = 0; i < 3000; i++) {
		struct trace_set t;
		struct file f[2];
		uint8_t *bytes = (uint8_t *)f;
		int err;

		if (i % 2)
			by_iwarp(&f[0], &f[1]);
		else
			two_hosts(&f[0], &f[1]);
		for (int k = 0; k < 1 + i % 40; k++) {
			const size_t from = i % 3 ? TRACE_RINGS_AT : 0;
			const size_t at =
				from + rnd(&seed) % (sizeof(f[0]) - from);

			bytes[at] = (uint8_t)(rnd(&seed) >> 40);
		}
		/* Some that are random, but for the type. */
		for (uint32_t k = 0; k < RECORDS && i % 5 == 0; k++) {
			struct trace_rec *r = &f[1].rec[k];

			rnd_fill(&seed, r, sizeof(*r));
			r->ns >>= 30;
			r->what = (0x11 + (uint32_t)rnd(&seed) % 2) << 8 |
				  (uint32_t)(rnd(&seed) % TRACE_TYPES);
			r->psn_op &= 0x3ff;
			r->key &= i % 2 ? 3 : UINT64_MAX;
			f[1].h.ring[0].written = RECORDS;
		}
		write_two(&f[0], &f[1]);
		err = read_dir(&t);
		if (err) {
			assert_int_equal(err, -EINVAL);
			continue;
		}
		for (uint32_t k = 0; k < t.nevents; k++) {
			const struct trace_event *ev = &t.event[k];

			assert_true(ev->proc < t.nprocs);
			assert_true(ev->qp == TRACE_NOTHING || ev->qp < t.nqps);
			assert_true(ev->wr == TRACE_NOTHING || ev->wr < t.nwrs);
			assert_true(ev->other == TRACE_NOTHING ||
				    ev->other < t.nevents);
		}
		for (uint32_t k = 0; k < t.nwrs; k++) {
			uint64_t ns[TRACE_PHASES];

			assert_true(t.wr[k].qp < t.nqps);
			trace_phases(&t.wr[k], ns);
		}
		trace_read_free(&t);
	}
}

int main(void)
{
#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(a_killed_process),
		TEST(a_forked_child),
		TEST(time_of_busy_threads),
		TEST(polled_before_completed),
		TEST(clocks_of_two_hosts),
		TEST(clocks_by_what_was_sent_again),
		TEST(no_clock_by_a_second_packet),
		TEST(carried_out_without_packets),
		TEST(fpdus_of_work_requests),
		TEST(wrong_files_are_named),
		TEST(any_bytes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

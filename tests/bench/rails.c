/*
 * rails.c - what a transport over several rails pays for memory and for posting
 *
 *   softhca run --rails=4 -- rails register MIB 4k|2m REGIONS
 *   softhca run --rails=4 -- rails post QPS RAILS THREADS LIST SECONDS
 *
 * "register": memory that nobody has touched is touched, a byte of each page, then
 * as much of it registered as one region, then as so many; each once more, which
 * for regions is on a second rail, as a transport registers all on each. Prints
 * the microseconds of a processor, the KiB that the process has more than
 * before, beside the pages themselves, and those of its page tables; or "none:"
 * and why there are no such pages.
 *
 * "post": so many queue pairs on each of so many rails, each thread with its share
 * of them on all rails, write 64 bytes at a time to another process, posted as
 * lists; one of 256 writes is signaled, and no queue pair has more than 512 of them
 * on their way. Prints the writes per second, and the nanoseconds that a thread
 * spent posting each.
 */
#include "peer.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
	RAILS = 16,
	LANES = 256,
	BATCH = 256, /* writes; the last is signaled */
	BATCHES = 2, /* on their way, of a queue pair */
	BYTES = 64,
	WAIT_S = 30,
};

#define HUGE ((size_t)2 << 20)
#define ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)

static struct dev dev[RAILS];
static unsigned nrails;

static void open_rails(unsigned n)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	for (nrails = 0; nrails < n; nrails++) {
		if (!list || !list[nrails])
			die(EXIT_SETUP, "%u rails wanted, %u there", n, nrails);
		dev_open(&dev[nrails], ibv_get_device_name(list[nrails]), 0);
	}
	ibv_free_device_list(list);
}

static struct ibv_mr *reg(unsigned rail, void *at, size_t len)
{
	struct ibv_mr *mr = ibv_reg_mr(dev[rail].pd, at, len, ACCESS);

	if (!mr)
		die(EXIT_SETUP, "ibv_reg_mr: %m");
	return mr;
}

/* ---- registering ------------------------------------------------------- */

static size_t length, page;
static unsigned regions;
static bool hugetlb;

static long field_kib(const char *path, const char *field)
{
	const size_t len = strlen(field);
	FILE *f = fopen(path, "re");
	char line[256];
	long kib = 0;

	while (f && fgets(line, sizeof(line), f))
		if (!strncmp(line, field, len))
			kib = atol(line + len);
	if (f)
		fclose(f);
	return kib;
}

/* This process's, but for the kernel's pool of huge pages. */
static long memory_kib(void)
{
	return field_kib("/proc/self/smaps_rollup", "Anonymous:");
}

static long tables_kib(void)
{
	return field_kib("/proc/self/status", "VmPTE:");
}

/* Memory in pages of the size that is wanted, as far as the kernel has them. */
static uint8_t *untouched(void)
{
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS;
	const int prot = PROT_READ | PROT_WRITE;
	uint8_t *p = MAP_FAILED;

	if (page == HUGE)
		p = mmap(NULL, length, prot, flags | MAP_HUGETLB | 21 << 26, -1,
			 0);
	hugetlb = p != MAP_FAILED;
	if (hugetlb)
		return p;
	/* What is in front of the first huge page stays unused. */
	p = mmap(NULL, length + HUGE, prot, flags, -1, 0);
	if (p == MAP_FAILED)
		die(EXIT_SETUP, "mmap: %m");
	p += -(uintptr_t)p % HUGE;
	madvise(p, length, page == HUGE ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
	return p;
}

static void touch(uint8_t *p)
{
	for (size_t i = 0; i < length; i += page)
		((volatile uint8_t *)p)[i]++;
}

static void register_on(unsigned rail, uint8_t *p, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		reg(rail, p + length / n * i, length / n);
}

/* Processor time: others may run meanwhile. */
static uint64_t cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Of new memory; as so many regions, or 0: it is touched. */
static void measure(const char *what, unsigned n)
{
	uint8_t *p = untouched();
	const long pages = hugetlb ? 0 : (long)(length >> 10);
	const long before = memory_kib(), tables = tables_kib();

	for (unsigned i = 0; i < 2; i++) {
		const uint64_t t = cpu_ns();

		if (n)
			register_on(i, p, n);
		else
			touch(p);
		printf("%s_%s=%.0f ", what, i ? "again_us" : "us",
		       (double)(cpu_ns() - t) / 1e3);
		if (!i)
			printf("%s_kib=%ld %s_tables_kib=%ld ", what,
			       memory_kib() - before - pages, what,
			       tables_kib() - tables);
	}
	munmap(p, length);
}

static bool has_pages(void)
{
	const long kib = (long)(length >> 10);

	if (page != HUGE || hugetlb ||
	    field_kib("/proc/self/smaps_rollup", "AnonHugePages:") > kib / 2)
		return true;
	printf("none: no %ld pages of 2 MiB free (vm.nr_hugepages), nor "
	       "transparent ones by madvise(2)\n",
	       kib / 2048);
	return false;
}

static int registering(void)
{
	uint8_t *p = untouched();
	static uint8_t first[4096];

	open_rails(2);
	for (unsigned i = 0; i < 2; i++)
		reg(i, first, sizeof(first));
	/* A virtual machine may have to get them from its host. */
	touch(p);
	if (!has_pages())
		return 0;
	munmap(p, length);

	measure("touch", 0);
	measure("one", 1);
	measure("many", regions);
	putchar('\n');
	return 0;
}

/* ---- posting ----------------------------------------------------------- */

static unsigned qps, threads, list;
static double seconds;
static unsigned nlanes;
static uint8_t memory[LANES][BATCH][BYTES];

/* A queue pair, which is one thread's. */
static struct lane {
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_sge sge;
	struct ibv_send_wr wr[BATCH];
	unsigned out; /* batches on their way */
} lane[LANES];

static struct worker {
	pthread_t id;
	uint64_t batches, post_ns;
} worker[LANES];

static pthread_barrier_t start;
static atomic_bool over;

static void connect_lane(int fd, struct lane *l, struct dev *d,
			 const struct ibv_mr *mr)
{
	const struct conn_opts o = { .mtu = IBV_MTU_4096,
				     .timeout = 14,
				     .retry_cnt = 7,
				     .rnr_retry = 7,
				     .rd_atomic = 1,
				     .access = ACCESS };
	struct remote own = { .psn = 7,
			      .rkey = mr->rkey,
			      .addr = (uintptr_t)memory[l - lane],
			      .gid = d->gid };
	struct remote r;

	l->cq = ibv_create_cq(d->ctx, BATCHES, NULL, NULL, 0);
	if (!l->cq)
		die(EXIT_SETUP, "ibv_create_cq: %m");
	l->qp = qp_create_rc(d->pd, l->cq, BATCH * BATCHES, 1, 1);
	qp_to_init(l->qp, &o);
	own.qpn = l->qp->qp_num;
	word_put(fd, &own, sizeof(own));
	if (!word_get(fd, &r, sizeof(r), WAIT_S * 1000000000ull))
		die(EXIT_SETUP, "the other end: %m");
	qp_connect(d, l->qp, 7, &r, &o);
	l->sge = (struct ibv_sge){ own.addr, BYTES, mr->lkey };
	for (unsigned i = 0; i < BATCH; i++) {
		struct ibv_send_wr *wr = &l->wr[i];

		*wr = (struct ibv_send_wr){ .opcode = IBV_WR_RDMA_WRITE,
					    .sg_list = &l->sge,
					    .num_sge = 1 };
		wr->next = (i + 1) % list ? wr + 1 : NULL;
		wr->wr.rdma.remote_addr = r.addr + i * (uint64_t)BYTES;
		wr->wr.rdma.rkey = r.rkey;
	}
	l->wr[BATCH - 1].next = NULL;
	l->wr[BATCH - 1].send_flags = IBV_SEND_SIGNALED;
}

/* Of either end; both have the same. */
static void connect_lanes(int fd, unsigned rails)
{
	struct ibv_mr *mr[RAILS];

	open_rails(rails);
	for (unsigned i = 0; i < rails; i++)
		mr[i] = reg(i, memory, sizeof(memory));
	nlanes = qps * rails;
	/* Neighbours are on one rail, so that each thread has some on all. */
	for (unsigned i = 0; i < nlanes; i++)
		connect_lane(fd, &lane[i], &dev[i / qps], mr[i / qps]);
}

static unsigned rails_wanted;

static int target(int fd)
{
	char c = 0;

	connect_lanes(fd, rails_wanted);
	word_put(fd, &c, 1);
	/* Until the other end has ended. */
	word_get(fd, &c, 1, WAIT_S * 1000000000ull);
	return 0;
}

static void post(struct lane *l)
{
	struct ibv_send_wr *bad;

	for (unsigned i = 0; i < BATCH; i += list) {
		const int err = ibv_post_send(l->qp, &l->wr[i], &bad);

		if (err)
			die(EXIT_DATA, "ibv_post_send: %s", strerror(err));
	}
	l->out++;
}

/* How many batches have completed. */
static unsigned poll_lane(struct lane *l)
{
	struct ibv_wc wc;
	int n;

	if (!l->out)
		return 0;
	n = ibv_poll_cq(l->cq, 1, &wc);
	if (n < 0 || (n && wc.status))
		die(EXIT_WC, "completion: %s", ibv_wc_status_str(wc.status));
	l->out -= (unsigned)n;
	return (unsigned)n;
}

static void drain(struct lane *l)
{
	const uint64_t end = now_ns() + WAIT_S * 1000000000ull;

	while (l->out)
		if (!poll_lane(l) && now_ns() > end)
			die(EXIT_DATA, "no completion for %d s", WAIT_S);
}

static void *work(void *arg)
{
	struct worker *w = arg;
	const unsigned first = (unsigned)(w - worker);
	unsigned i;

	pthread_barrier_wait(&start);
	while (!atomic_load_explicit(&over, memory_order_relaxed))
		for (i = first; i < nlanes; i += threads) {
			if (lane[i].out < BATCHES) {
				const uint64_t t = now_ns();

				post(&lane[i]);
				w->post_ns += now_ns() - t;
				w->batches++;
			}
			poll_lane(&lane[i]);
		}
	for (i = first; i < nlanes; i += threads)
		drain(&lane[i]);
	return NULL;
}

static int posting(void)
{
	uint64_t t, batches = 0, post_ns = 0;
	struct end other;
	char c;

	end_start(&other, target);
	connect_lanes(other.fd, rails_wanted);
	if (!word_get(other.fd, &c, 1, WAIT_S * 1000000000ull))
		die(EXIT_SETUP, "the other end: %m");
	/* The first ones find their way. */
	for (unsigned i = 0; i < nlanes; i++) {
		post(&lane[i]);
		drain(&lane[i]);
	}
	pthread_barrier_init(&start, NULL, threads + 1);
	for (unsigned i = 0; i < threads; i++)
		if (pthread_create(&worker[i].id, NULL, work, &worker[i]))
			die(EXIT_SETUP, "pthread_create");
	pthread_barrier_wait(&start);
	t = now_ns();
	usleep((useconds_t)(seconds * 1e6));
	atomic_store(&over, true);
	for (unsigned i = 0; i < threads; i++) {
		pthread_join(worker[i].id, NULL);
		batches += worker[i].batches;
		post_ns += worker[i].post_ns;
	}
	t = now_ns() - t;
	close(other.fd);
	waitpid(other.pid, NULL, 0);
	printf("rate=%.0f post_ns=%.1f\n",
	       (double)(batches * BATCH) * 1e9 / (double)t,
	       (double)post_ns / (double)(batches * BATCH));
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 5 && !strcmp(argv[1], "register")) {
		length = (size_t)atoi(argv[2]) << 20;
		page = strcmp(argv[3], "4k") ? HUGE : 4096;
		regions = (unsigned)atoi(argv[4]);
		if (length && regions && length / regions >= HUGE)
			return registering();
	} else if (argc == 7 && !strcmp(argv[1], "post")) {
		qps = (unsigned)atoi(argv[2]);
		rails_wanted = (unsigned)atoi(argv[3]);
		threads = (unsigned)atoi(argv[4]);
		list = (unsigned)atoi(argv[5]);
		seconds = atof(argv[6]);
		if (qps && rails_wanted && rails_wanted <= RAILS &&
		    qps * rails_wanted <= LANES && threads &&
		    threads <= LANES && list && list <= BATCH)
			return posting();
	}
	die(EXIT_SETUP, "see the head of rails.c");
}

/*
 * scribbled.c - two processes move data while a third one of the same user
 * writes into what they share
 *
 *   scribbled -k rings|back|visits|keys|qps|head|all|registry [-n ROUNDS]
 *             [-X SEED] [-g GID_INDEX] [-w SECONDS]
 *
 * In each round the two connect and do everything that RC can do to each other:
 * sends, writes, reads and atomics of all sizes. What is scribbled on may come
 * out as wrong data or as completions with errors. But each request completes,
 * nobody crashes, and no memory changes that is in no memory region. Every wait
 * ends after -w seconds (40).
 *
 * Where to scribble follows from the layout of what the library shows to its
 * host, in $SOFTHCA_RUNDIR, which has to be set and to be these processes' own:
 *
 *   rings   records on their way        back   what a consumer says of them
 *   visits  who copies at the moment    keys   the table of memory keys
 *   qps     the table of queue pairs    head   who sleeps, locks, all others
 *   all     all of these               registry  the file of all processes
 *
 * All and the registry at once is left out: who seems to copy is waited for, and
 * is asked by what the registry has of it, so it can be neither.
 */
#include "peer.h"

#include "link/ring.h"
#include "registry/registry_internal.h"
#include "segment/segment.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define SLOTS 8 /* requests at a time */
#define RECVS 16
#define MOST (64u << 10) /* bytes of a message */
#define GUARD (256u << 10)
#define RECV_ID 0x8000u
#define GENERATION 5 /* rounds that processes live */
#define ENOUGH 400 /* completions in a round */

enum kind { RINGS, BACK, VISITS, KEYS, QPS, HEAD, ALL, REGISTRY, KINDS };
enum op { SEND, WRITE, WRITE_IMM, READ, FADD, OPS };

static const char *const kinds[KINDS] = {
	"rings", "back", "visits", "keys", "qps", "head", "all", "registry"
};

/* Between the parent and a process: one datagram each. */
struct word {
	char what; /* see play() */
	uint64_t seed;
	uint64_t good, bad; /* completions */
	struct remote at;
};

/* What is registered stands between memory that is not. */
struct mem {
	uint8_t before[GUARD];
	uint8_t recv[RECVS][MOST];
	uint8_t send[SLOTS][MOST];
	uint8_t between[GUARD];
	uint8_t shown[2 * MOST];
	uint64_t count[8];
	uint8_t pad[4096 - 64];
	uint8_t after[GUARD];
};

struct conn {
	struct ibv_comp_channel *chan;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr, *shown;
	struct remote to;
	unsigned busy; /* bits: slots that are in use */
	bool sleeps; /* in ibv_get_cq_event() */
	uint64_t good, bad;
};

static struct dev dev;
static enum kind kind = KINDS;
static uint64_t wait_ns = 40000000000u;
static int gid_index;
static struct mem *mem;
static pid_t scribbler_pid;
static int ctl; /* to the parent */

/* ---- an end -------------------------------------------------------------- */

static const struct conn_opts opts = {
	.mtu = IBV_MTU_1024,
	.timeout = 10, /* 4 ms */
	.retry_cnt = 5,
	.rnr_retry = 7,
	.rd_atomic = 4,
	.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
		  IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
};

static void post_recv(struct conn *c, unsigned i)
{
	recv_post(c->qp, c->mr, mem->recv[i], MOST, RECV_ID | i);
}

static void conn_make(struct conn *c, struct remote *own)
{
	memset(c, 0, sizeof(*c));
	c->sleeps = rnd(2);
	c->chan = ibv_create_comp_channel(dev.ctx);
	if (!c->chan)
		die(EXIT_SETUP, "ibv_create_comp_channel: %m");
	c->cq = ibv_create_cq(dev.ctx, SLOTS + RECVS, NULL, c->chan, 0);
	c->mr = ibv_reg_mr(dev.pd, mem->recv,
			   sizeof(mem->recv) + sizeof(mem->send),
			   IBV_ACCESS_LOCAL_WRITE);
	c->shown = ibv_reg_mr(dev.pd, mem->shown,
			      sizeof(mem->shown) + sizeof(mem->count),
			      opts.access);
	if (!c->cq || !c->mr || !c->shown)
		die(EXIT_SETUP, "ibv_create_cq, ibv_reg_mr: %m");
	c->qp = qp_create_rc(dev.pd, c->cq, SLOTS, RECVS, 1);
	qp_to_init(c->qp, &opts);
	for (unsigned i = 0; i < RECVS; i++)
		post_recv(c, i);
	*own = (struct remote){ .qpn = c->qp->qp_num,
				.psn = rnd(1 << 24),
				.rkey = c->shown->rkey,
				.addr = (uintptr_t)mem->shown,
				.gid = dev.gid,
				.mtu = opts.mtu };
}

static void conn_drop(struct conn *c)
{
	if (ibv_destroy_qp(c->qp) || ibv_dereg_mr(c->mr) ||
	    ibv_dereg_mr(c->shown) || ibv_destroy_cq(c->cq) ||
	    ibv_destroy_comp_channel(c->chan))
		die(EXIT_DATA, "cannot close what was open: %m");
}

static void post(struct conn *c)
{
	static const uint32_t sizes[] = {
		1, 8, 24, 100, 1024, 4000, 20000, MOST
	};
	static const enum ibv_wr_opcode codes[OPS] = {
		IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
		IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD
	};
	unsigned slot = (unsigned)__builtin_ctz(~c->busy);
	enum op op = (enum op)rnd(OPS);
	struct ibv_sge sge = { .addr = (uintptr_t)mem->send[slot],
			       .length = sizes[rnd(8)],
			       .lkey = c->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = slot,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = codes[op],
				  .send_flags = IBV_SEND_SIGNALED };
	struct ibv_send_wr *bad;
	int err;

	/* All of it, and to its very end. */
	wr.wr.rdma.remote_addr =
		c->to.addr + (rnd(2) ? 0 : 2 * MOST - sge.length);
	wr.wr.rdma.rkey = c->to.rkey;
	if (op == FADD) {
		sge.length = 8;
		wr.wr.atomic.remote_addr = c->to.addr + 2 * MOST + 8 * rnd(8);
		wr.wr.atomic.rkey = c->to.rkey;
		wr.wr.atomic.compare_add = 1;
	}
	err = ibv_post_send(c->qp, &wr, &bad);
	if (err)
		die(EXIT_SETUP, "ibv_post_send: %s", strerror(err));
	c->busy |= 1u << slot;
}

static unsigned reap(struct conn *c)
{
	struct ibv_wc wc[8];
	int n = ibv_poll_cq(c->cq, 8, wc);

	if (n < 0)
		die(EXIT_DATA, "ibv_poll_cq: %d", n);
	for (int i = 0; i < n; i++) {
		const unsigned slot = wc[i].wr_id & 0xff;

		c->bad += wc[i].status != 0;
		c->good += !wc[i].status;
		if (!(wc[i].wr_id & RECV_ID))
			c->busy &= ~(1u << slot);
		else if (!wc[i].status)
			post_recv(c, slot);
	}
	return (unsigned)n;
}

static void hangs(const struct conn *c, const char *what)
{
	die(EXIT_DATA,
	    "it hangs: %s; %u requests out, %" PRIu64 " completions, %" PRIu64
	    " of them with errors",
	    what, (unsigned)__builtin_popcount(c->busy), c->good + c->bad,
	    c->bad);
}

static void wait_event(struct conn *c)
{
	struct pollfd p[2] = { { .fd = c->chan->fd, .events = POLLIN },
			       { .fd = ctl, .events = POLLIN } };
	struct ibv_cq *cq;
	void *arg;

	if (ibv_req_notify_cq(c->cq, 0))
		die(EXIT_SETUP, "ibv_req_notify_cq");
	if (reap(c))
		return;
	if (!poll(p, 2, (int)(wait_ns / 1000000)))
		hangs(c, reap(c) ? "no event for a completion" : "no event");
	if (p[0].revents && !ibv_get_cq_event(c->chan, &cq, &arg))
		ibv_ack_cq_events(cq, 1);
}

/* As long as nothing goes wrong, until there is enough; then to the end. */
static void traffic(struct conn *c)
{
	uint64_t since = now_ns();
	unsigned depth = 1 + rnd(SLOTS), idle = 0;
	bool on;

	do {
		on = !c->bad && c->good < ENOUGH;
		while (on && (unsigned)__builtin_popcount(c->busy) < depth)
			post(c);
		if (reap(c)) {
			since = now_ns();
			idle = 0;
		} else if (c->sleeps && ++idle > 20) {
			wait_event(c);
		}
		if (now_ns() - since > wait_ns)
			hangs(c, "no completion");
	} while (on || c->busy);
}

static void check_guard(const uint8_t *p, const char *which)
{
	for (size_t i = 0; i < GUARD; i++)
		if (p[i] != 0x5c)
			die(EXIT_DATA,
			    "byte %zu %s, which is not registered, is %#x", i,
			    which, p[i]);
}

static void check_guards(void)
{
	check_guard(mem->before, "before all regions");
	check_guard(mem->between, "between two regions");
	check_guard(mem->after, "behind all regions");
	for (size_t i = 0; i < sizeof(mem->pad); i++)
		if (mem->pad[i] != 0x5c)
			die(EXIT_DATA, "byte %zu behind a region is %#x", i,
			    mem->pad[i]);
}

static void round_of_end(void)
{
	struct word w = { .what = 'a' };
	struct conn c;

	conn_make(&c, &w.at);
	word_put(ctl, &w, sizeof(w));
	if (!word_get(ctl, &w, sizeof(w), wait_ns) || w.what != 'a')
		die(EXIT_SETUP, "no address of the other end");
	c.to = w.at;
	qp_connect(&dev, c.qp, (uint32_t)w.seed, &c.to, &opts);
	w.what = 'b';
	word_put(ctl, &w, sizeof(w));
	if (!word_get(ctl, &w, sizeof(w), wait_ns) || w.what != 'g')
		die(EXIT_SETUP, "the other end is not ready");
	traffic(&c);
	w = (struct word){ .what = 'd', .good = c.good, .bad = c.bad };
	word_put(ctl, &w, sizeof(w));
	/* The other one is not done, perhaps. */
	while (recv(ctl, &w, sizeof(w), MSG_DONTWAIT) != sizeof(w))
		if (!reap(&c) && c.sleeps)
			wait_event(&c);
	conn_drop(&c);
	check_guards();
}

static int end_main(int fd)
{
	struct word w;

	ctl = fd;
	dev_open(&dev, NULL, gid_index);
	mem = mmap(NULL, sizeof(*mem), PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (mem == MAP_FAILED)
		die(EXIT_SETUP, "mmap: %m");
	memset(mem, 0x5c, sizeof(*mem));
	while (word_get(ctl, &w, sizeof(w), 10 * wait_ns) && w.what == 'r') {
		rng = w.seed;
		round_of_end();
	}
	ibv_dealloc_pd(dev.pd);
	return ibv_close_device(dev.ctx) ? EXIT_DATA : 0;
}

/* ---- the scribbler -------------------------------------------------------- */

#define SEGMENTS 8

static struct seg {
	uint8_t *p;
	size_t size[SEGMENT_TABLES]; /* that its tables have at least */
} segs[SEGMENTS];
static unsigned nsegs;
static struct shared *registry;

static void find_segments(void)
{
	const char *path = getenv("SOFTHCA_RUNDIR");
	DIR *d = path ? opendir(path) : NULL;
	struct dirent *de;
	struct stat st;
	int fd;

	if (!d)
		die(EXIT_SETUP, "SOFTHCA_RUNDIR: %m");
	while (nsegs)
		munmap(segs[--nsegs].p, SEGMENT_SIZE);
	if (registry)
		munmap(registry, sizeof(*registry));
	registry = NULL;
	while ((de = readdir(d)) && nsegs < SEGMENTS) {
		struct segment_head *h;

		fd = openat(dirfd(d), de->d_name, O_RDWR | O_NONBLOCK);
		if (fd < 0)
			continue;
		if (!fstat(fd, &st) && S_ISREG(st.st_mode) &&
		    st.st_size == SEGMENT_SIZE) {
			h = mmap(NULL, SEGMENT_SIZE, PROT_READ | PROT_WRITE,
				 MAP_SHARED, fd, 0);
			if (h == MAP_FAILED)
				die(EXIT_SETUP, "mmap: %m");
			segs[nsegs].p = (uint8_t *)h;
			for (int t = 0; t < SEGMENT_TABLES; t++)
				segs[nsegs].size[t] =
					h->table_size[t] ? SEGMENT_GROW : 0;
			nsegs++;
		} else if (S_ISREG(st.st_mode) &&
			   st.st_size == sizeof(*registry)) {
			registry =
				mmap(NULL, sizeof(*registry),
				     PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
			if (registry == MAP_FAILED)
				die(EXIT_SETUP, "mmap: %m");
		}
		close(fd);
	}
	closedir(d);
}

/* A ring that somebody produces into, or NULL. */
static struct ring_mem *some_ring(const struct seg *s)
{
	const struct segment_head *h = (struct segment_head *)s->p;
	unsigned slot = rnd(4);

	if (!(segment_producers(h, 0) >> slot & 1))
		return NULL;
	return (struct ring_mem *)(s->p + SEGMENT_RINGS_OFFSET +
				   slot * SEGMENT_RING_SIZE);
}

/* Something else than what is there, but perhaps not quite else. */
static void change(void *at)
{
	uint8_t *p = at;
	uint64_t v;

	memcpy(&v, p, sizeof(v));
	switch (rnd(5)) {
	case 0:
		v ^= 1ull << rnd(64);
		break;
	case 1:
		v += (uint64_t)(rnd(200000)) - 100000;
		break;
	case 2:
		v = (uint64_t)rnd(UINT32_MAX) << 32 | rnd(UINT32_MAX);
		break;
	case 3:
		v = rnd(2) ? 0 : UINT64_MAX;
		break;
	case 4:
		p[rnd(8)] = (uint8_t)rnd(256);
		return;
	}
	memcpy(p, &v, sizeof(v));
}

/* One of n bytes at p, at a multiple of 8. */
static void change_some(uint8_t *p, size_t n)
{
	if (n >= 8)
		change(p + 8 * rnd((uint32_t)(n / 8)));
}

static void scribble_registry(void)
{
	struct shared *r = registry;

	if (!r)
		return;
	if (rnd(3))
		change_some((uint8_t *)&r->slot[rnd(4)], sizeof(r->slot[0]));
	else if (rnd(3))
		change_some((uint8_t *)&r->addr[rnd(6)], sizeof(r->addr[0]));
	else if (rnd(3))
		change_some((uint8_t *)r->chunk, sizeof(r->chunk));
	else
		change_some((uint8_t *)&r->head, sizeof(r->head));
}

static void scribble(enum kind k, const struct seg *s)
{
	struct segment_head *h = (struct segment_head *)s->p;
	struct ring_mem *m = some_ring(s);
	uint32_t at;

	switch (k) {
	case RINGS:
		if (!m)
			break;
		at = (m->in.pos & 0xffff) + rnd(rnd(2) ? 4 : 64);
		change_some((uint8_t *)&m->unit[at % RING_UNITS],
			    rnd(4) ? 40 : 64);
		break;
	case BACK:
		if (!m)
			break;
		if (rnd(2))
			change_some((uint8_t *)m,
				    offsetof(struct ring_mem, unit));
		else
			change_some(
				(uint8_t *)&m->ack_note[m->in.pos % 992 & ~7u],
				16);
		break;
	case VISITS:
		change_some(s->p + SEGMENT_GUARDS_OFFSET, 64 * 4);
		break;
	case KEYS:
		change_some(s->p + SEGMENT_KEYS_OFFSET +
				    (rnd(8) ? SEGMENT_TABLE_HEAD : 0),
			    s->size[SEGMENT_KEYS] < 3000 ? 0 :
							   (rnd(2) ? 640 : 64));
		break;
	case QPS:
		change_some(s->p + SEGMENT_QPS_OFFSET, s->size[SEGMENT_QPS]);
		break;
	case HEAD:
		change_some((uint8_t *)&h->table_size,
			    sizeof(*h) -
				    offsetof(struct segment_head, table_size));
		break;
	case ALL:
	case KINDS:
		scribble((enum kind)rnd(ALL), s);
		break;
	case REGISTRY:
		scribble_registry();
		break;
	}
}

struct control {
	_Atomic bool on; /* asked for */
	_Atomic unsigned turn, heard; /* in which it has looked for segments */
};

static void scribbler(struct control *ctrl, uint64_t seed)
{
	rng = seed;
	for (;;) {
		if (ctrl->heard != ctrl->turn) {
			find_segments();
			ctrl->heard = ctrl->turn;
		}
		if (!ctrl->on || (!nsegs && !registry)) {
			usleep(100);
			continue;
		}
		if (nsegs)
			scribble(kind, &segs[rnd(nsegs)]);
		else
			scribble_registry();
		if (rnd(2))
			usleep(rnd(300));
		else
			sched_yield();
	}
}

/* ---- the parent ----------------------------------------------------------- */

static void end_quit(struct end *e, unsigned round)
{
	struct word w = { .what = 'q' };
	int status;

	word_put(e->fd, &w, sizeof(w));
	if (waitpid(e->pid, &status, 0) != e->pid)
		die(EXIT_SETUP, "waitpid: %m");
	close(e->fd);
	if (status)
		die(EXIT_DATA, "round %u: a process ended with status %#x",
		    round, status);
}

static void hear(struct end *e, char what, struct word *w, unsigned round)
{
	int status;

	if (word_get(e->fd, w, sizeof(*w), 2 * wait_ns) && w->what == what)
		return;
	if (waitpid(e->pid, &status, WNOHANG) == e->pid)
		die(EXIT_DATA, "round %u: a process ended with status %#x",
		    round, status);
	die(EXIT_DATA, "round %u: process %d does not answer", round,
	    (int)e->pid);
}

/*
 * One round: 'r' a round begins; 'a' one's address, and the other's; 'b'
 * connected, 'g' both are; 'd' done, 'e' both are. Returns how many requests
 * failed.
 */
static uint64_t play(struct end e[2], struct control *ctrl, unsigned round)
{
	struct word w[2];
	uint64_t bad = 0;
	int i;

	for (i = 0; i < 2; i++) {
		w[i] = (struct word){ .what = 'r',
				      .seed = (uint64_t)rnd(1u << 31) * 2 + 1 };
		word_put(e[i].fd, &w[i], sizeof(w[i]));
	}
	for (i = 0; i < 2; i++)
		hear(&e[i], 'a', &w[i], round);
	for (i = 0; i < 2; i++) {
		w[!i].seed = w[i].at.psn; /* one's own */
		word_put(e[i].fd, &w[!i], sizeof(w[!i]));
	}
	for (i = 0; i < 2; i++)
		hear(&e[i], 'b', &w[i], round);
	/* In some rounds what is there has been scribbled on at first. */
	ctrl->turn++;
	if (round % 2)
		ctrl->on = true;
	while (ctrl->heard != ctrl->turn) {
		if (waitpid(scribbler_pid, NULL, WNOHANG))
			die(EXIT_SETUP, "the scribbler has ended");
		usleep(100);
	}
	w[0].what = 'g';
	for (i = 0; i < 2; i++)
		word_put(e[i].fd, &w[0], sizeof(w[0]));
	ctrl->on = true;
	for (i = 0; i < 2; i++) {
		hear(&e[i], 'd', &w[i], round);
		bad += w[i].bad;
	}
	ctrl->on = false;
	w[0].what = 'e';
	for (i = 0; i < 2; i++)
		word_put(e[i].fd, &w[0], sizeof(w[0]));
	return bad;
}

int main(int argc, char **argv)
{
	uint64_t seed = now_ns(), start = now_ns();
	unsigned rounds = 30, failed = 0, k;
	struct control *ctrl;
	struct end e[2];
	int c;

	while ((c = getopt(argc, argv, "k:n:X:g:w:")) != -1) {
		if (c == 'k')
			for (k = 0; k < KINDS; k++)
				kind = strcmp(kinds[k], optarg) ? kind :
								  (enum kind)k;
		else if (c == 'n')
			rounds = (unsigned)atol(optarg);
		else if (c == 'X')
			seed = strtoull(optarg, NULL, 0);
		else if (c == 'g')
			gid_index = atoi(optarg);
		else if (c == 'w')
			wait_ns = strtoull(optarg, NULL, 0) * 1000000000u;
		else
			die(EXIT_SETUP, "see the head of scribbled.c");
	}
	if (kind == KINDS)
		die(EXIT_SETUP, "see the head of scribbled.c");
	printf("scribbled -k %s -n %u -X %" PRIu64 "\n", kinds[kind], rounds,
	       seed);
	fflush(stdout);
	rng = seed * 2 + 1;
	ctrl = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
		    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (ctrl == MAP_FAILED)
		die(EXIT_SETUP, "mmap: %m");
	scribbler_pid = fork();
	if (!scribbler_pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		scribbler(ctrl, seed * 2 + 3);
	}
	for (unsigned round = 0; round < rounds; round++) {
		if (round % GENERATION == 0) {
			end_start(&e[0], end_main);
			end_start(&e[1], end_main);
		}
		failed += play(e, ctrl, round) != 0;
		if (round % GENERATION == GENERATION - 1 ||
		    round == rounds - 1) {
			end_quit(&e[0], round);
			end_quit(&e[1], round);
		}
	}
	kill(scribbler_pid, SIGKILL);
	waitpid(scribbler_pid, NULL, 0);
	printf("%u rounds in %.1f s, errors in %u\n", rounds,
	       (double)(now_ns() - start) / 1e9, failed);
	return 0;
}

/*
 * dying.c - one end of a connection is killed, stopped or leaves at a random
 * moment, round after round; the other end stays, and is right every time
 *
 *   dying -k kill|exit|stop|dereg [-n ROUNDS] [-X SEED] [-s] [-g GID_INDEX]
 *         [-w SECONDS]
 *
 * The parent makes processes and uses no device itself. One process stays for
 * all rounds; in each a new one connects to it, and both do everything that RC
 * can do to each other: sends of all sizes, writes, reads, atomics. Then
 *
 *   kill   the new one is killed; the one that stays gets IBV_WC_RETRY_EXC_ERR
 *   exit   it leaves: by exit(), _exit(), exec, or with all things closed
 *   stop   one of the two is stopped for a while, some times; nothing fails and
 *          nothing is lost, whatever the local ACK timeout
 *   dereg  the one that stays takes its memory away; nothing is written there
 *          any more, and the other one gets IBV_WC_REM_ACCESS_ERR
 *
 * -s: it is the one that stays that is killed or leaves; its place is taken by
 * its partner. With SOFTHCA_RUNDIR set, that directory must not fill up; the
 * process that stays must not grow.
 *
 * What a lock that stays held, or memory that is still written to, does shows
 * in the rounds that follow. Every wait ends after -w seconds (40).
 */
#include "peer.h"

#include <dirent.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define SLOTS 8 /* requests at a time */
#define RECVS 16
#define MOST (64u << 10) /* bytes of a message */
#define RECV_ID 0x8000u
#define SETTLED 9 /* the round after which nothing grows for good */
#define MORE 12 /* processes that have died and are not yet let go, */
#define MAPS 5 /* and the maps of each, beside a descriptor */
#ifdef __SANITIZE_ADDRESS__
#define MORE_KB 300000 /* its quarantine */
#else
#define MORE_KB 3000
#endif
#define FILES 9 /* that may be in the directory: registry, 4 segments */

enum kind { KILL, EXIT, STOP, DEREG };
enum op { SEND, WRITE, WRITE_IMM, READ, FADD, OPS };

/* Between the parent and a process: one datagram each. */
struct word {
	char what; /* see play() */
	bool leaves; /* it is the one that the round is about */
	uint64_t seed;
	uint64_t sent, adds;
	struct remote at;
};

/* What we use, and what the other end uses. */
struct own_mem {
	uint8_t recv[RECVS][MOST];
	uint8_t send[SLOTS][MOST];
};

struct shown_mem {
	uint8_t read[MOST]; /* all 0xa5, for reads */
	uint8_t write[MOST]; /* for writes */
	uint64_t count; /* for atomics */
};

struct conn {
	struct dev *dev;
	struct ibv_comp_channel *chan;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr, *shown;
	struct remote to;
	unsigned busy; /* bits: slots that are in use */
	bool sleeps; /* in ibv_get_cq_event() */
	uint64_t sent, received; /* messages */
	uint64_t adds;
	enum ibv_wc_status error; /* the first */
};

static enum kind kind;
static unsigned rounds = 30;
static uint64_t wait_ns = 40000000000u;
static int gid_index;
static bool staying_one_dies;
static struct own_mem *mem;
static struct shown_mem *shown;
static int ctl; /* to the parent */

/* Of one end: setting up */

static const struct conn_opts opts = {
	.mtu = IBV_MTU_1024,
	.timeout = 10, /* 4 ms */
	.retry_cnt = 2,
	.rnr_retry = 7,
	.rd_atomic = 4,
	.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
		  IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
};

static void post_recv(struct conn *c, unsigned i)
{
	recv_post(c->qp, c->mr, mem->recv[i], MOST, RECV_ID | i);
}

static void conn_make(struct conn *c, struct dev *d, struct remote *own)
{
	memset(c, 0, sizeof(*c));
	memset(shown->read, 0xa5, sizeof(shown->read));
	shown->count = 0;
	c->dev = d;
	c->sleeps = rnd(2);
	c->chan = ibv_create_comp_channel(d->ctx);
	if (!c->chan)
		die(EXIT_SETUP, "ibv_create_comp_channel: %m");
	c->cq = ibv_create_cq(d->ctx, SLOTS + RECVS, NULL, c->chan, 0);
	c->mr = ibv_reg_mr(d->pd, mem, sizeof(*mem), IBV_ACCESS_LOCAL_WRITE);
	c->shown = ibv_reg_mr(d->pd, shown, sizeof(*shown), opts.access);
	if (!c->cq || !c->mr || !c->shown)
		die(EXIT_SETUP, "ibv_create_cq, ibv_reg_mr: %m");
	c->qp = qp_create_rc(d->pd, c->cq, SLOTS, RECVS, 1);
	qp_to_init(c->qp, &opts);
	for (unsigned i = 0; i < RECVS; i++)
		post_recv(c, i);
	*own = (struct remote){ .qpn = c->qp->qp_num,
				.psn = rnd(1 << 24),
				.rkey = c->shown->rkey,
				.addr = (uintptr_t)shown,
				.gid = d->gid,
				.mtu = opts.mtu };
}

static void conn_drop(struct conn *c)
{
	if (ibv_destroy_qp(c->qp) || ibv_dereg_mr(c->mr) ||
	    (c->shown && ibv_dereg_mr(c->shown)) || ibv_destroy_cq(c->cq) ||
	    ibv_destroy_comp_channel(c->chan))
		die(EXIT_DATA, "cannot close what was open: %m");
}

/* Of one end: requests and their completions */

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
	struct ibv_send_wr wr = { .wr_id = slot | op << 8,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = codes[op],
				  .send_flags = IBV_SEND_SIGNALED };
	struct ibv_send_wr *bad;
	uint64_t offset = op == READ ? offsetof(struct shown_mem, read) :
				       offsetof(struct shown_mem, write);
	int err;

	wr.wr_id |= (uint64_t)sge.length << 16;
	wr.wr.rdma.remote_addr = c->to.addr + offset;
	wr.wr.rdma.rkey = c->to.rkey;
	if (op == FADD) {
		sge.length = 8;
		wr.wr.atomic.remote_addr =
			c->to.addr + offsetof(struct shown_mem, count);
		wr.wr.atomic.rkey = c->to.rkey;
		wr.wr.atomic.compare_add = 1;
	}
	if (op != FADD && op != READ)
		memset(mem->send[slot], (int)(c->sent + 1), sge.length);
	err = ibv_post_send(c->qp, &wr, &bad);
	if (err)
		die(EXIT_SETUP, "ibv_post_send: %s", strerror(err));
	c->busy |= 1u << slot;
	c->sent += op == SEND || op == WRITE_IMM;
}

static void check_bytes(const uint8_t *p, size_t len, uint8_t is,
			const char *what)
{
	for (size_t i = 0; i < len; i++)
		if (p[i] != is)
			die(EXIT_DATA, "%s: byte %zu of %zu is %#x, not %#x",
			    what, i, len, p[i], is);
}

static void completed(struct conn *c, const struct ibv_wc *wc)
{
	unsigned slot = wc->wr_id & 0xff;

	/* Of those that failed only the number is told, which says whose. */
	if (wc->status) {
		if (!c->error)
			c->error = wc->status;
		if (!(wc->wr_id & RECV_ID))
			c->busy &= ~(1u << slot);
		return;
	}
	if (wc->opcode & IBV_WC_RECV) {
		c->received++;
		if (wc->opcode == IBV_WC_RECV)
			check_bytes(mem->recv[slot], wc->byte_len,
				    (uint8_t)c->received, "message");
		post_recv(c, slot);
		return;
	}
	c->busy &= ~(1u << slot);
	if (wc->opcode == IBV_WC_RDMA_READ)
		check_bytes(mem->send[slot], wc->wr_id >> 16, 0xa5, "read");
	c->adds += wc->opcode == IBV_WC_FETCH_ADD;
}

static unsigned reap(struct conn *c)
{
	struct ibv_wc wc[8];
	int n = ibv_poll_cq(c->cq, 8, wc);

	if (n < 0)
		die(EXIT_DATA, "ibv_poll_cq: %d", n);
	for (int i = 0; i < n; i++)
		completed(c, &wc[i]);
	return (unsigned)n;
}

/* Sleeps until there may be a completion, or a word of the parent's. */
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
		die(EXIT_DATA, "no event%s",
		    reap(c) ? ", but a completion" : "");
	if (p[0].revents && !ibv_get_cq_event(c->chan, &cq, &arg))
		ibv_ack_cq_events(cq, 1);
}

/* A word, if one is there. Not asked for each time. */
static bool told(struct word *w)
{
	static unsigned turn;

	return !(turn++ % 16) &&
	       recv(ctl, w, sizeof(*w), MSG_DONTWAIT) == sizeof(*w);
}

static void too_long(const struct conn *c, uint64_t since, const char *what)
{
	if (now_ns() - since > wait_ns)
		die(EXIT_DATA,
		    "waiting for %s: %u requests out, first error %s, %" PRIu64
		    " messages sent, %" PRIu64 " received",
		    what, (unsigned)__builtin_popcount(c->busy),
		    ibv_wc_status_str(c->error), c->sent, c->received);
}

/* Does things to the other end until told something, or an error, or for so
 * many completions. What it was told, or 0. */
static char traffic(struct conn *c, uint64_t most)
{
	uint64_t since = now_ns(), n = 0;
	unsigned depth = 1 + rnd(SLOTS), got, idle = 0;
	struct word w;

	while (!c->error && n < most) {
		if (told(&w))
			return w.what;
		while ((unsigned)__builtin_popcount(c->busy) < depth)
			post(c);
		got = reap(c);
		n += got;
		if (got) {
			since = now_ns();
			idle = 0;
		} else if (c->sleeps && ++idle > 20) {
			wait_event(c);
		}
		too_long(c, since, "any completion or word");
	}
	return 0;
}

/* The rounds: what each end does */

/* A partner that is gone, or an access that is refused. */
static void expect_error(struct conn *c, enum ibv_wc_status error)
{
	uint64_t since = now_ns();

	traffic(c, UINT64_MAX);
	if (c->error != error)
		die(EXIT_DATA, "the first error is %s, and not %s",
		    ibv_wc_status_str(c->error), ibv_wc_status_str(error));
	while (c->busy) { /* the rest is flushed */
		reap(c);
		too_long(c, since, "requests to be flushed");
	}
}

/* Both have stopped posting: everything arrives. */
static void settle(struct conn *c)
{
	struct word w = { .what = 'c' };
	uint64_t since = now_ns();

	while (c->busy && !c->error) {
		if (!reap(c) && c->sleeps)
			wait_event(c);
		too_long(c, since, "one's own completions");
	}
	w.sent = c->sent;
	w.adds = c->adds;
	word_put(ctl, &w, sizeof(w));
	do {
		if (!reap(c))
			sched_yield();
		too_long(c, since, "the other's count");
	} while (!c->error && !told(&w));
	while (!c->error && c->received < w.sent) {
		if (!reap(c) && c->sleeps)
			wait_event(c);
		too_long(c, since, "the other's messages");
	}
	if (c->error || c->received != w.sent || shown->count != w.adds)
		die(EXIT_DATA,
		    "%s; %" PRIu64 " messages of %" PRIu64 ", %" PRIu64
		    " additions of %" PRIu64,
		    ibv_wc_status_str(c->error), c->received, w.sent,
		    shown->count, w.adds);
	w = (struct word){ .what = 'd' };
	word_put(ctl, &w, sizeof(w));
	/* The other one may still wait for its last acknowledgement. */
	while (!told(&w) && !c->error) {
		reap(c);
		too_long(c, since, "the end of the round");
	}
}

static void take_memory_away(struct conn *c)
{
	static uint8_t was[MOST];
	struct word w = { .what = 'd' };
	uint64_t since = now_ns();

	traffic(c, 1 + rnd(200));
	while (c->busy && !c->error) {
		reap(c);
		too_long(c, since, "one's own completions");
	}
	if (c->error)
		die(EXIT_DATA, "error %s", ibv_wc_status_str(c->error));
	if (ibv_dereg_mr(c->shown))
		die(EXIT_DATA, "ibv_dereg_mr");
	c->shown = NULL;
	memset(shown->write, 0x77, MOST);
	memset(was, 0x77, MOST);
	/* Until the other one has had its error. */
	do {
		reap(c);
		if (memcmp(shown->write, was, MOST))
			die(EXIT_DATA, "written to after ibv_dereg_mr()");
		too_long(c, since, "the end of the round");
	} while (!told(&w));
}

static void leave(struct conn *c)
{
	switch (rnd(4)) {
	case 0:
		exit(0);
	case 1:
		_exit(0);
	case 2:
		execlp("true", "true", NULL);
		_exit(1);
	default:
		conn_drop(c);
		ibv_dealloc_pd(c->dev->pd);
		ibv_close_device(c->dev->ctx);
		_exit(0);
	}
}

/* One round of one end. */
static void take_part(struct conn *c, bool leaves)
{
	struct word w = { .what = 'd' };
	char word;

	switch (kind) {
	case KILL:
	case EXIT:
		if (!leaves) {
			expect_error(c, IBV_WC_RETRY_EXC_ERR);
			break;
		}
		traffic(c, kind == EXIT ? rnd(200) : UINT64_MAX);
		if (c->error)
			die(EXIT_DATA, "%s, and the other one is there",
			    ibv_wc_status_str(c->error));
		leave(c);
		break;
	case STOP:
		word = traffic(c, UINT64_MAX);
		if (word != 'f')
			die(EXIT_DATA, "error %s", ibv_wc_status_str(c->error));
		settle(c);
		return;
	case DEREG:
		if (leaves) {
			take_memory_away(c);
			return;
		}
		expect_error(c, IBV_WC_REM_ACCESS_ERR);
		break;
	}
	word_put(ctl, &w, sizeof(w));
}

/* False: the round is called off, as the other end has ended already. */
static bool connect_ends(struct conn *c, uint32_t psn)
{
	struct word w;

	if (!word_get(ctl, &w, sizeof(w), wait_ns))
		die(EXIT_SETUP, "no address of the other end");
	if (w.what != 'a')
		return false;
	c->to = w.at;
	qp_connect(c->dev, c->qp, psn, &c->to, &opts);
	w.what = 'b';
	word_put(ctl, &w, sizeof(w));
	if (!word_get(ctl, &w, sizeof(w), wait_ns) || w.what != 'g')
		die(EXIT_SETUP, "the other end is not ready");
	return true;
}

static void *memory(size_t len)
{
	void *p = mmap(NULL, len, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		die(EXIT_SETUP, "mmap: %m");
	return p;
}

/* A process: rounds as long as it is told of any. */
static int end_main(int fd)
{
	struct word round, w = { .what = 'a' };
	struct conn c;
	struct dev d;

	ctl = fd;
	dev_open(&d, NULL, gid_index);
	mem = memory(sizeof(*mem));
	shown = memory(sizeof(*shown));
	while (word_get(ctl, &round, sizeof(round), 10 * wait_ns) &&
	       round.what == 'r') {
		rng = round.seed;
		conn_make(&c, &d, &w.at);
		word_put(ctl, &w, sizeof(w));
		if (connect_ends(&c, w.at.psn))
			take_part(&c, round.leaves);
		conn_drop(&c);
	}
	ibv_dealloc_pd(d.pd);
	return ibv_close_device(d.ctx) ? EXIT_DATA : 0;
}

/* The parent */

/* It ends, by itself if it is not killed. */
static void end_wait(struct end *e, unsigned round, int signal)
{
	int status;

	if (waitpid(e->pid, &status, 0) != e->pid)
		die(EXIT_SETUP, "waitpid: %m");
	close(e->fd);
	if (WIFSIGNALED(status) ? WTERMSIG(status) != signal : status)
		die(EXIT_DATA, "round %u: a process ended with status %#x",
		    round, status);
	e->pid = 0;
}

static void end_quit(struct end *e, unsigned round)
{
	struct word w = { .what = 'q' };

	word_put(e->fd, &w, sizeof(w));
	end_wait(e, round, 0);
}

static void hear(struct end *e, char what, struct word *w, unsigned round)
{
	if (!word_get(e->fd, w, sizeof(*w), 2 * wait_ns))
		die(EXIT_DATA, "round %u: process %d does not answer", round,
		    (int)e->pid);
	if (w->what != what)
		die(EXIT_DATA, "round %u: it says %c, not %c", round, w->what,
		    what);
}

static void tell(struct end *e, char what)
{
	struct word w = { .what = what };

	word_put(e->fd, &w, sizeof(w));
}

/* At a random moment, soon. */
static void moment(void)
{
	static const useconds_t most[] = { 1, 100, 1000, 10000 };

	usleep(rnd(most[rnd(4)]));
}

/* Asks both ends for something, and tells each what the other has said. */
static void exchange(struct end e[2], char what, unsigned round)
{
	struct word w[2];

	hear(&e[0], what, &w[0], round);
	hear(&e[1], what, &w[1], round);
	word_put(e[0].fd, &w[1], sizeof(w[1]));
	word_put(e[1].fd, &w[0], sizeof(w[0]));
}

static void stop_some_times(struct end e[2], unsigned round)
{
	for (uint32_t n = 1 + rnd(3); n; n--) {
		pid_t pid = e[rnd(2)].pid;
		int status;

		moment();
		kill(pid, SIGSTOP);
		if (waitpid(pid, &status, WUNTRACED) != pid ||
		    !WIFSTOPPED(status))
			die(EXIT_DATA, "round %u: one has ended", round);
		usleep(rnd(30000)); /* seven times the local ACK timeout */
		kill(pid, SIGCONT);
	}
}

static void play_stop(struct end e[2], unsigned round)
{
	struct word w;

	stop_some_times(e, round);
	tell(&e[0], 'f');
	tell(&e[1], 'f');
	exchange(e, 'c', round);
	hear(&e[0], 'd', &w, round);
	hear(&e[1], 'd', &w, round);
	tell(&e[0], 'e');
	tell(&e[1], 'e');
}

/* Where killing comes before the two are connected. */
static bool killed_early(struct end e[2], int dies, unsigned round)
{
	struct end *left = &e[!dies];
	struct word w;

	if (kind != KILL || rnd(4))
		return false;
	hear(left, 'a', &w, round);
	moment();
	kill(e[dies].pid, SIGKILL);
	if (word_get(e[dies].fd, &w, sizeof(w), wait_ns) && w.what == 'a') {
		word_put(left->fd, &w, sizeof(w));
		hear(left, 'b', &w, round);
		tell(left, 'g');
		hear(left, 'd', &w, round);
	} else {
		tell(left, 'x');
	}
	return true;
}

/*
 * One round: 'r' a round begins; 'a' one's address, and the other's; 'b'
 * connected, 'g' both are. 'd' done. For a stop: 'f' finish, 'c' counts, one's
 * own and the other's; 'e' the other one has all, too.
 */
static void play(struct end e[2], unsigned round)
{
	int dies = staying_one_dies ? 0 : 1;
	struct word w;

	for (int i = 0; i < 2; i++) {
		w = (struct word){ .what = 'r',
				   .leaves = kind == DEREG ? i == 0 : i == dies,
				   .seed = (uint64_t)rnd(1u << 31) * 2 + 1 };
		word_put(e[i].fd, &w, sizeof(w));
	}
	if (!killed_early(e, dies, round)) {
		exchange(e, 'a', round);
		for (int i = 0; i < 2; i++)
			hear(&e[i], 'b', &w, round);
		tell(&e[0], 'g');
		tell(&e[1], 'g');
		if (kind == STOP) {
			play_stop(e, round);
		} else if (kind == DEREG) {
			hear(&e[1], 'd', &w, round);
			tell(&e[0], 'e');
		} else {
			moment();
			if (kind == KILL)
				kill(e[dies].pid, SIGKILL);
			hear(&e[!dies], 'd', &w, round);
		}
	}
	if (kind == KILL || kind == EXIT)
		end_wait(&e[dies], round, SIGKILL);
	else
		end_quit(&e[1], round);
	if (!e[0].pid)
		e[0] = e[1];
}

static unsigned entries(const char *path)
{
	DIR *d = opendir(path);
	struct dirent *de;
	unsigned n = 0;

	while (d && (de = readdir(d)))
		n += de->d_name[0] != '.';
	if (d)
		closedir(d);
	return n;
}

/* What the process that stays uses. */
struct room {
	unsigned fds, maps;
	long rss; /* KiB */
};

static struct room room_of(const struct end *e)
{
	struct room r = { 0 };
	char path[64], line[512];
	long all, resident = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)e->pid);
	r.fds = entries(path);
	snprintf(path, sizeof(path), "/proc/%d/maps", (int)e->pid);
	f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f))
		r.maps += strchr(line, '\n') != NULL;
	if (f)
		fclose(f);
	snprintf(path, sizeof(path), "/proc/%d/statm", (int)e->pid);
	f = fopen(path, "re");
	if (f && fscanf(f, "%ld %ld", &all, &resident) == 2)
		r.rss = resident * (sysconf(_SC_PAGESIZE) / 1024);
	if (f)
		fclose(f);
	return r;
}

/*
 * What is used by what lasts: the directory, and the process that stays. Who
 * has died is let go a while later.
 */
static void check_room(const struct end *e, unsigned round)
{
	const char *dir = getenv("SOFTHCA_RUNDIR");
	static struct room first;
	struct room is;
	unsigned n;

	if (dir && (n = entries(dir)) > FILES)
		die(EXIT_DATA, "round %u: %u files in %s", round, n, dir);
	if (staying_one_dies && (kind == KILL || kind == EXIT))
		return;
	is = room_of(e);
	if (round == SETTLED)
		first = is;
	if (round > SETTLED &&
	    (is.fds > first.fds + MORE || is.maps > first.maps + MORE * MAPS ||
	     is.rss > first.rss + MORE_KB))
		die(EXIT_DATA,
		    "round %u: %u descriptors, %u maps, %ld KiB; %u, %u, %ld "
		    "after %u",
		    round, is.fds, is.maps, is.rss, first.fds, first.maps,
		    first.rss, SETTLED + 1);
	if (round == rounds - 1 && round > SETTLED)
		printf("%u descriptors, %u maps, %ld KiB; %u, %u, %ld after "
		       "%u rounds\n",
		       is.fds, is.maps, is.rss, first.fds, first.maps,
		       first.rss, SETTLED + 1);
}

int main(int argc, char **argv)
{
	static const char *const kinds[] = { "kill", "exit", "stop", "dereg" };
	uint64_t seed = now_ns(), start;
	struct end e[2];
	int c, k = -1;

	while ((c = getopt(argc, argv, "k:n:X:sg:w:")) != -1) {
		if (c == 'k')
			for (k = 3; k >= 0 && strcmp(kinds[k], optarg);)
				k--;
		else if (c == 'n')
			rounds = (unsigned)atol(optarg);
		else if (c == 'X')
			seed = strtoull(optarg, NULL, 0);
		else if (c == 's')
			staying_one_dies = true;
		else if (c == 'g')
			gid_index = atoi(optarg);
		else if (c == 'w')
			wait_ns = strtoull(optarg, NULL, 0) * 1000000000u;
		else
			k = -1;
	}
	if (k < 0)
		die(EXIT_SETUP, "see the head of dying.c");
	kind = (enum kind)k;
	printf("dying -k %s -n %u -X %" PRIu64 "%s\n", kinds[k], rounds, seed,
	       staying_one_dies ? " -s" : "");
	rng = seed * 2 + 1;
	start = now_ns();
	end_start(&e[0], end_main);
	for (unsigned round = 0; round < rounds; round++) {
		end_start(&e[1], end_main);
		play(e, round);
		check_room(&e[0], round);
	}
	end_quit(&e[0], rounds);
	printf("%u rounds in %.1f s\n", rounds,
	       (double)(now_ns() - start) / 1e9);
	return 0;
}

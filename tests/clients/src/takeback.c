/*
 * takeback.c - a sender takes back what it has posted, and uses its memory for
 * something else at once
 *
 *   takeback [-n ROUNDS] [-X SEED] [-g GID_INDEX]
 *
 * In each round a process sends messages, writes, or lets the other end read,
 * and after a random time moves its QP to ERR or RESET, destroys it, or
 * deregisters the memory. As soon as that call has returned, the memory is
 * overwritten. Whatever the other end gets as complete is as it was before, as
 * it had left when the call returned; how many those are is not said.
 */
#include "peer.h"

#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define SLOTS 8
#define MOST (512u << 10)
#define AFTERWARDS 0x77
#define WAIT_NS 40000000000u
#define READS 4

enum way { TO_ERR, TO_RESET, DESTROY, DEREG, WAYS };

struct word {
	char what;
	uint64_t seed;
	struct remote at;
};

static unsigned rounds = 200, done, cut_off;
static int gid_index;
static uint8_t (*mem)[MOST]; /* of SLOTS */
static int ctl;

/* False: nothing has come. */
static bool get_word(struct word *w, uint64_t wait_ns)
{
	if (word_get(ctl, w, sizeof(*w), wait_ns))
		return true;
	if (errno == ECONNRESET)
		die(EXIT_DATA, "the other end has ended");
	return false;
}

static void expect(char what, struct word *w)
{
	if (!get_word(w, WAIT_NS) || w->what != what)
		die(EXIT_DATA, "the other end does not say '%c'", what);
}

static const struct conn_opts opts = {
	.mtu = IBV_MTU_4096,
	.timeout = 12,
	.retry_cnt = 7,
	.rnr_retry = 7,
	.rd_atomic = READS,
	.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
		  IBV_ACCESS_REMOTE_READ,
};

struct conn {
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	struct remote to;
};

static void conn_make(struct conn *c, struct dev *d)
{
	struct word w = { .what = 'a' };

	c->cq = ibv_create_cq(d->ctx, 2 * SLOTS, NULL, NULL, 0);
	c->mr = ibv_reg_mr(d->pd, mem, SLOTS * sizeof(*mem), opts.access);
	if (!c->cq || !c->mr)
		die(EXIT_SETUP, "ibv_create_cq, ibv_reg_mr: %m");
	c->qp = qp_create_rc(d->pd, c->cq, SLOTS, SLOTS, 2);
	qp_to_init(c->qp, &opts);
	w.at = (struct remote){ .qpn = c->qp->qp_num,
				.psn = rnd(1 << 24),
				.rkey = c->mr->rkey,
				.addr = (uintptr_t)mem,
				.gid = d->gid,
				.mtu = opts.mtu };
	word_put(ctl, &w, sizeof(w));
	c->to = w.at; /* for the PSN */
}

static void conn_connect(struct conn *c, struct dev *d)
{
	uint32_t psn = c->to.psn;
	struct word w;

	expect('a', &w);
	c->to = w.at;
	qp_connect(d, c->qp, psn, &c->to, &opts);
	word_put(ctl, &(struct word){ .what = 'b' }, sizeof(struct word));
	expect('b', &w);
}

static void conn_drop(struct conn *c)
{
	if ((c->qp && ibv_destroy_qp(c->qp)) ||
	    (c->mr && ibv_dereg_mr(c->mr)) || ibv_destroy_cq(c->cq))
		die(EXIT_DATA, "cannot close what was open: %m");
}

static void to_state(struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state };

	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE))
		die(EXIT_DATA, "ibv_modify_qp to %d", (int)state);
}

static void post_send(struct conn *c, unsigned i, enum ibv_wr_opcode op,
		      uint32_t len)
{
	/* In two pieces, at an odd place. */
	const uint32_t part = rnd(len);
	struct ibv_sge sge[2] = { { .addr = (uintptr_t)mem[i],
				    .length = part,
				    .lkey = c->mr->lkey },
				  { .addr = (uintptr_t)mem[i] + part,
				    .length = len - part,
				    .lkey = c->mr->lkey } };
	struct ibv_send_wr *bad, wr = { .wr_id = i | (uint64_t)len << 8,
					.sg_list = sge,
					.num_sge = 2,
					.opcode = op,
					.send_flags = IBV_SEND_SIGNALED };

	wr.wr.rdma.remote_addr = c->to.addr + i * MOST;
	wr.wr.rdma.rkey = c->to.rkey;
	wr.imm_data = len;
	if (ibv_post_send(c->qp, &wr, &bad))
		die(EXIT_SETUP, "ibv_post_send: %m");
}

/* The one that takes back */

static void take_back(struct conn *c)
{
	switch ((enum way)rnd(WAYS)) {
	case TO_ERR:
		to_state(c->qp, IBV_QPS_ERR);
		break;
	case TO_RESET:
		to_state(c->qp, IBV_QPS_RESET);
		break;
	case DESTROY:
		if (ibv_destroy_qp(c->qp))
			die(EXIT_DATA, "ibv_destroy_qp: %m");
		c->qp = NULL;
		break;
	case DEREG:
	case WAYS:
		if (ibv_dereg_mr(c->mr))
			die(EXIT_DATA, "ibv_dereg_mr: %m");
		c->mr = NULL;
		break;
	}
}

static void sender_round(struct dev *d, bool reads)
{
	const enum ibv_wr_opcode op =
		rnd(2) ? IBV_WR_SEND : IBV_WR_RDMA_WRITE_WITH_IMM;
	struct ibv_wc wc;
	struct conn c;
	uint64_t until;

	memset(mem, (int)(1 + rnd(100)), SLOTS * sizeof(*mem));
	conn_make(&c, d);
	conn_connect(&c, d);
	for (unsigned i = 0; i < SLOTS && !reads; i++)
		post_send(&c, i, op, 2 + rnd(MOST - 2));
	until = now_ns() + rnd(600000);
	while (now_ns() < until)
		ibv_poll_cq(c.cq, 1, &wc);
	take_back(&c);
	memset(mem, AFTERWARDS, SLOTS * sizeof(*mem));
	word_put(ctl, &(struct word){ .what = 'd' }, sizeof(struct word));
	conn_drop(&c);
}

static int sender_main(void)
{
	struct word w;
	struct dev d;

	dev_open(&d, NULL, gid_index);
	for (;;) {
		if (!get_word(&w, WAIT_NS))
			die(EXIT_DATA, "no word");
		if (w.what == 'q')
			break;
		rng = w.seed;
		sender_round(&d, w.what == 'r');
	}
	ibv_dealloc_pd(d.pd);
	return ibv_close_device(d.ctx) ? EXIT_DATA : 0;
}

/* The other one */

static void check(unsigned i, uint32_t len, const char *what)
{
	const uint8_t *p = mem[i];

	for (uint32_t k = 0; k < len; k++)
		if (p[k] == AFTERWARDS || p[k] != p[0])
			die(EXIT_DATA,
			    "%s: byte %u of %u is %#x, the first %#x", what, k,
			    len, p[k], p[0]);
}

/* Completions there are; false: there was none. */
static bool reap(struct conn *c)
{
	struct ibv_wc wc[SLOTS];
	int n = ibv_poll_cq(c->cq, SLOTS, wc);

	for (int i = 0; i < n; i++) {
		if (wc[i].status) {
			cut_off++;
			continue;
		}
		done++;
		if (wc[i].opcode == IBV_WC_RDMA_READ)
			check(wc[i].wr_id & 0xff, (uint32_t)(wc[i].wr_id >> 8),
			      "a read");
		else if (wc[i].opcode == IBV_WC_RECV)
			check((unsigned)wc[i].wr_id, wc[i].byte_len,
			      "a message");
		else
			check((unsigned)wc[i].wr_id, wc[i].imm_data, "a write");
	}
	return n > 0;
}

static void receiver_round(struct dev *d, bool reads)
{
	struct word w = { .what = reads ? 'r' : 's', .seed = rng + 7 };
	struct conn c;

	word_put(ctl, &w, sizeof(w));
	memset(mem, 0, SLOTS * sizeof(*mem));
	conn_make(&c, d);
	for (unsigned i = 0; i < SLOTS; i++)
		recv_post(c.qp, c.mr, mem[i], MOST, i);
	conn_connect(&c, d);
	for (unsigned i = 0; i < SLOTS && reads; i++)
		post_send(&c, i, IBV_WR_RDMA_READ, 2 + rnd(MOST - 2));
	/* What is not complete by now remains so. */
	while (!get_word(&w, 0))
		reap(&c);
	to_state(c.qp, IBV_QPS_ERR);
	while (reap(&c))
		;
	conn_drop(&c);
}

static void receiver_main(pid_t sender)
{
	struct dev d;
	int status;

	dev_open(&d, NULL, gid_index);
	for (unsigned i = 0; i < rounds; i++)
		receiver_round(&d, i % 2);
	word_put(ctl, &(struct word){ .what = 'q' }, sizeof(struct word));
	if (waitpid(sender, &status, 0) != sender || status)
		die(EXIT_DATA, "the sender has ended with %#x", status);
	ibv_dealloc_pd(d.pd);
	if (ibv_close_device(d.ctx))
		die(EXIT_DATA, "ibv_close_device");
	printf("%u rounds: %u complete, %u cut off\n", rounds, done, cut_off);
}

int main(int argc, char **argv)
{
	int opt, fd[2];
	pid_t pid;

	while ((opt = getopt(argc, argv, "n:X:g:")) != -1) {
		switch (opt) {
		case 'n':
			rounds = (unsigned)atoi(optarg);
			break;
		case 'X':
			rng = strtoull(optarg, NULL, 0) | 1;
			break;
		case 'g':
			gid_index = atoi(optarg);
			break;
		default:
			die(EXIT_SETUP, "takeback [-n N] [-X SEED] [-g INDEX]");
		}
	}
	mem = mmap(NULL, SLOTS * sizeof(*mem), PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (mem == MAP_FAILED ||
	    socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fd))
		die(EXIT_SETUP, "mmap, socketpair: %m");
	pid = fork();
	if (pid < 0)
		die(EXIT_SETUP, "fork: %m");
	ctl = fd[!pid];
	close(fd[!!pid]);
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		return sender_main();
	}
	receiver_main(pid);
	return 0;
}

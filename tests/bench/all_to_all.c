/*
 * all_to_all.c - processes that all send to each other, and all poll
 *
 *   softhca run -- all_to_all PROCESSES SECONDS [TIMEOUT]
 *
 * Each process has an RC queue pair with every other one and one completion
 * queue, keeps WINDOW sends of SIZE bytes under way on each, and polls without
 * ever giving its processor away, as most programs do. Prints how many
 * messages arrived per second, in all of them together.
 * TIMEOUT is the local ACK timeout of each QP, 4.096 us * 2^TIMEOUT (14): many
 * processes on few processors answer late.
 */
#include "../lib/qp_masks.h"
#include "measure.h"

#include <infiniband/verbs.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
	MOST = 128,
	SIZE = 64,
	WINDOW = 32, /* sends under way to a peer */
	SIGNALED = 8, /* every so many ask for a completion */
	RECEIVES = 512,
	GROUP = 16, /* completions polled, receives posted at once */
	RECV = 1u << 31, /* in a wr_id, beside the peer's number */
};

/* What the processes share: how to connect, when to begin and to end. */
struct shared {
	union ibv_gid gid[MOST];
	uint32_t qpn[MOST][MOST]; /* [of][towards] */
	_Atomic unsigned published, connected, done;
	_Atomic bool go, stop;
	uint8_t timeout;
	_Atomic uint64_t arrived[MOST];
};

struct node {
	struct shared *s;
	unsigned me, count;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	char *mem;
	struct ibv_qp *qp[MOST];
	unsigned under_way[MOST];
	unsigned to_post[MOST]; /* receives that were used */
	unsigned sent[MOST];
	uint64_t arrived;
};

static void nap(void)
{
	nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
}

static void post_receives(struct node *n, unsigned peer, unsigned count)
{
	struct ibv_sge sge = { (uintptr_t)n->mem + SIZE, SIZE, n->mr->lkey };
	struct ibv_recv_wr wr[GROUP], *bad;

	for (unsigned i = 0; i < count; i++)
		wr[i] = (struct ibv_recv_wr){
			.wr_id = RECV | peer,
			.next = i + 1 < count ? &wr[i + 1] : NULL,
			.sg_list = &sge,
			.num_sge = 1,
		};
	if (count && ibv_post_recv(n->qp[peer], wr, &bad))
		fail("ibv_post_recv");
}

static void create(struct node *n)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *ctx;

	ctx = list && list[0] ? ibv_open_device(list[0]) : NULL;
	if (!ctx)
		fail("no device");
	n->pd = ibv_alloc_pd(ctx);
	n->cq = ibv_create_cq(ctx, (int)n->count * (RECEIVES + WINDOW), NULL,
			      NULL, 0);
	n->mem = aligned_alloc(4096, 4096);
	if (!n->pd || !n->cq || !n->mem ||
	    ibv_query_gid(ctx, 1, 0, &n->s->gid[n->me]))
		fail("setup");
	memset(n->mem, 0, 4096);
	n->mr = ibv_reg_mr(n->pd, n->mem, 4096, IBV_ACCESS_LOCAL_WRITE);
	if (!n->mr)
		fail("ibv_reg_mr");
	for (unsigned p = 0; p < n->count; p++) {
		struct ibv_qp_init_attr attr = {
			.qp_type = IBV_QPT_RC,
			.send_cq = n->cq,
			.recv_cq = n->cq,
			.cap = { .max_send_wr = WINDOW,
				 .max_recv_wr = RECEIVES,
				 .max_send_sge = 1,
				 .max_recv_sge = 1,
				 .max_inline_data = SIZE },
		};

		if (p == n->me)
			continue;
		n->qp[p] = ibv_create_qp(n->pd, &attr);
		if (!n->qp[p])
			fail("ibv_create_qp");
		n->s->qpn[n->me][p] = n->qp[p]->qp_num;
	}
}

static void connect_to(struct node *n, unsigned peer)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = n->s->qpn[peer][n->me],
		.max_dest_rd_atomic = 1,
		.max_rd_atomic = 1,
		.min_rnr_timer = 1,
		.timeout = n->s->timeout,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.ah_attr = { .is_global = 1,
			     .port_num = 1,
			     .grh = { .dgid = n->s->gid[peer],
				      .hop_limit = 1 } },
	};
	struct ibv_qp *qp = n->qp[peer];

	if (ibv_modify_qp(qp, &attr, init_mask(IBV_QPT_RC)))
		fail("INIT");
	for (unsigned i = 0; i < RECEIVES / GROUP; i++)
		post_receives(n, peer, GROUP);
	attr.qp_state = IBV_QPS_RTR;
	if (ibv_modify_qp(qp, &attr, rtr_mask(IBV_QPT_RC)))
		fail("RTR");
	attr.qp_state = IBV_QPS_RTS;
	if (ibv_modify_qp(qp, &attr, rts_mask(IBV_QPT_RC)))
		fail("RTS");
}

static void send_to(struct node *n, unsigned peer)
{
	struct ibv_sge sge = { (uintptr_t)n->mem, SIZE, n->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = peer,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_INLINE },
			   *bad;

	while (n->under_way[peer] < WINDOW) {
		n->under_way[peer]++;
		if (++n->sent[peer] % SIGNALED == 0)
			wr.send_flags |= IBV_SEND_SIGNALED;
		else
			wr.send_flags &= ~(unsigned)IBV_SEND_SIGNALED;
		if (ibv_post_send(n->qp[peer], &wr, &bad))
			fail("ibv_post_send");
	}
}

static void poll_once(struct node *n)
{
	struct ibv_wc wc[GROUP];
	int got = ibv_poll_cq(n->cq, GROUP, wc);

	if (got < 0)
		fail("ibv_poll_cq");
	for (int i = 0; i < got; i++) {
		unsigned peer = (uint32_t)wc[i].wr_id & ~(unsigned)RECV;

		if (wc[i].status) {
			fprintf(stderr, "%u from %u: %s\n", n->me, peer,
				ibv_wc_status_str(wc[i].status));
			exit(1);
		}
		if (!(wc[i].wr_id & RECV)) {
			n->under_way[peer] -= SIGNALED;
			continue;
		}
		n->arrived++;
		if (++n->to_post[peer] == GROUP) {
			post_receives(n, peer, GROUP);
			n->to_post[peer] = 0;
		}
	}
}

static void child(struct shared *s, unsigned me, unsigned count)
{
	struct node n = { .s = s, .me = me, .count = count };
	bool told = false;

	create(&n);
	s->published++;
	while (s->published < count)
		nap();
	for (unsigned p = 0; p < count; p++)
		if (p != me)
			connect_to(&n, p);
	s->connected++;
	while (!s->go)
		nap();
	while (!s->stop) {
		for (unsigned p = 0; p < count; p++)
			if (p != me)
				send_to(&n, p);
		poll_once(&n);
	}
	s->arrived[me] = n.arrived;
	/* The rest of the last groups has no completion: a signalled one is
	 * acknowledged after all that was sent before. */
	while (s->done < count) {
		bool rest = false;

		poll_once(&n);
		for (unsigned p = 0; p < count; p++)
			rest |= n.under_way[p] >= SIGNALED;
		if (!rest && !told) {
			told = true;
			s->done++;
		}
	}
	exit(0);
}

/* False when a child has ended with an error: then all end. */
static bool all_well(pid_t *pids, unsigned count, int flags)
{
	bool well = true;
	int status;

	for (unsigned i = 0; i < count; i++) {
		if (pids[i] && waitpid(pids[i], &status, flags) == pids[i]) {
			pids[i] = 0;
			well &= WIFEXITED(status) && !WEXITSTATUS(status);
		}
	}
	if (!well)
		for (unsigned i = 0; i < count; i++)
			if (pids[i])
				kill(pids[i], SIGKILL);
	return well;
}

int main(int argc, char **argv)
{
	unsigned count = argc > 2 ? (unsigned)atoi(argv[1]) : 0;
	pid_t pids[MOST], parent = getpid();
	struct shared *s;
	double start, seconds;
	uint64_t sum = 0;

	if (count < 2 || count > MOST) {
		fputs("see the head of all_to_all.c\n", stderr);
		return 2;
	}
	seconds = atof(argv[2]);
	s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE,
		 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (s == MAP_FAILED)
		fail("mmap");
	s->timeout = (uint8_t)(argc > 3 ? atoi(argv[3]) : 14);
	for (unsigned i = 0; i < count; i++) {
		pids[i] = fork();
		if (pids[i] < 0)
			fail("fork");
		if (pids[i])
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() == parent)
			child(s, i, count);
		exit(1);
	}
	while (s->connected < count) {
		if (!all_well(pids, count, WNOHANG))
			return 1;
		nap();
	}
	s->go = true;
	for (start = now(); now() < start + seconds;) {
		if (!all_well(pids, count, WNOHANG))
			return 1;
		nap();
	}
	seconds = now() - start;
	s->stop = true;
	if (!all_well(pids, count, 0))
		return 1;
	for (unsigned i = 0; i < count; i++)
		sum += s->arrived[i];
	printf("%.0f\n", (double)sum / seconds);
	return 0;
}

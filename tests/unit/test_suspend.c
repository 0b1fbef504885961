/*
 * test_suspend.c - processes are suspended and resumed at any moment
 *
 * Two processes send each other bursts of writes, fetch-and-adds and messages of
 * RC over an SRQ, messages of UC, and datagrams, while one and then the other is
 * suspended for a moment. Every byte is checked, and that each request completes
 * once, in order. SUSPENDS in the environment: how often; SUSPEND_TEST: one case.
 */
#include "hostns.h"
#include "pair.h"
#include "taker.h"

#include <dirent.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <rdma/rsocket.h>
#include <softhca/migrate.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/socket.h>

#define BURST 8 /* rounds at most, of each end in its turn */
#define SIZE 40000 /* bytes written at most */
#define ROUND_WRS 3
#define RECVS (4 * BURST)
#define UD_LEN 64
#define UC_LEN 3000 /* several packets */
#define LOSSY_RECVS 64
#define LOSSY_ID 62 /* and one more for UC */
#define LOSSY_SENT (1u << 16) /* of node.nsent */

#ifdef __SANITIZE_THREAD__
#define TSAN true
#else
#define TSAN false
#endif

enum { WRITE_ID, ADD_ID, SEND_ID };
/* What need not arrive. */
enum { UD, UC, LOSSY };

/* What the peer needs to know. */
struct info {
	uint32_t qpn, lossy_qpn[LOSSY], rkey;
	uint64_t addr;
};

/* What is in a message. */
struct message {
	uint32_t burst, round, rounds, last;
};

struct memory {
	uint8_t target[2][BURST][SIZE]; /* written by the peer; by parity */
	uint8_t source[2][BURST][SIZE];
	struct message in[RECVS], out[2][BURST];
	uint8_t lossy_in[LOSSY][LOSSY_RECVS][40 + UC_LEN];
	uint8_t lossy_out[LOSSY][2][UC_LEN];
	_Alignas(8) uint64_t counter, results[BURST];
};

struct node {
	unsigned who; /* 0, 1 */
	bool sleeps;
	int fd; /* to the other process */
	struct ibv_comp_channel *ch;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct ibv_qp *qp, *lossy[LOSSY];
	struct ibv_ah *ah;
	struct ibv_mr *mr;
	struct memory *m;
	struct info peer;

	uint32_t burst, nsent; /* this burst; completions in it, */
	uint32_t ngot[2]; /* and messages of it, and of the next: by parity */
	uint64_t adds;
	uint32_t got[LOSSY], got_last[LOSSY]; /* how many, and of which burst */
	uint32_t last; /* the last burst, + 1; 0: there are more */
};

static _Atomic bool stop;
static struct taker taker; /* if it has a pid: see away() */

static uint32_t mix(uint32_t a, uint32_t b, uint32_t c)
{
	uint64_t x = ((uint64_t)a << 32 | b << 8 | c) * 0x9e3779b97f4a7c15u;

	x ^= x >> 29;
	return (uint32_t)((x * 0xbf58476d1ce4e5b9u) >> 33);
}

static uint32_t rounds_of(uint32_t burst, unsigned who)
{
	return 1 + mix(burst, 77, who) % BURST;
}

static uint32_t size_of(uint32_t burst, uint32_t round, unsigned who)
{
	const uint32_t n = mix(burst, round, who);

	return n % 4 ? n / 4 % 3000 : n / 4 % SIZE;
}

static uint8_t byte_of(uint32_t burst, uint32_t round, unsigned who, uint32_t i)
{
	return (uint8_t)(burst * 31 + round * 17 + who * 101 + i * 7 +
			 (i >> 8));
}

#define SGE(n, p, len) ((struct ibv_sge){ (uintptr_t)(p), len, (n)->mr->lkey })

static void post_in(struct node *n, uint32_t i)
{
	struct ibv_sge sge = SGE(n, &n->m->in[i], sizeof(n->m->in[i]));
	struct ibv_recv_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1 };
	struct ibv_recv_wr *bad;

	assert_int_equal(ibv_post_srq_recv(n->srq, &wr, &bad), 0);
}

static uint32_t lossy_len(int type)
{
	return type == UD ? UD_LEN : UC_LEN;
}

/* What is received begins with a GRH. */
static uint32_t lossy_grh(int type)
{
	return type == UD ? 40 : 0;
}

static void post_lossy_in(struct node *n, int type, uint32_t i)
{
	struct ibv_sge sge = SGE(n, n->m->lossy_in[type][i], 40 + UC_LEN);
	struct ibv_recv_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1 };
	struct ibv_recv_wr *bad;

	assert_int_equal(ibv_post_recv(n->lossy[type], &wr, &bad), 0);
}

static void post_round(struct node *n, uint32_t round)
{
	struct memory *m = n->m;
	const unsigned half = n->burst % 2;
	const uint32_t size = size_of(n->burst, round, n->who);
	uint8_t *from = m->source[half][round];
	struct ibv_sge data = SGE(n, from, size),
		       old = SGE(n, &m->results[round], 8),
		       note = SGE(n, &m->out[half][round],
				  sizeof(struct message));
	struct ibv_send_wr send = {
		.wr_id = n->burst * 64u + round * 4 + SEND_ID,
		.sg_list = &note,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
	};
	struct ibv_send_wr add = {
		.wr_id = n->burst * 64u + round * 4 + ADD_ID,
		.next = &send,
		.sg_list = &old,
		.num_sge = 1,
		.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.atomic = { .remote_addr = n->peer.addr +
					      offsetof(struct memory, counter),
			       .rkey = n->peer.rkey,
			       .compare_add = 1 },
	};
	struct ibv_send_wr write = {
		.wr_id = n->burst * 64u + round * 4 + WRITE_ID,
		.next = &add,
		.sg_list = &data,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { n->peer.addr +
				     (uint64_t)((uint8_t *)
							m->target[half][round] -
						(uint8_t *)m),
			     n->peer.rkey },
	};
	struct ibv_send_wr *bad;

	for (uint32_t i = 0; i < size; i++)
		from[i] = byte_of(n->burst, round, n->who, i);
	m->out[half][round] =
		(struct message){ n->burst, round, rounds_of(n->burst, n->who),
				  n->last == n->burst + 1 };
	assert_int_equal(ibv_post_send(n->qp, &write, &bad), 0);
}

static void post_lossy(struct node *n, int type)
{
	uint8_t *p = n->m->lossy_out[type][n->burst % 2];
	struct ibv_sge sge = SGE(n, p, lossy_len(type));
	struct ibv_send_wr wr = {
		.wr_id = n->burst * 64u + LOSSY_ID + (unsigned)type,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
	};
	struct ibv_send_wr *bad;

	if (!n->lossy[type]) {
		n->nsent += LOSSY_SENT;
		return;
	}
	if (type == UD) {
		wr.wr.ud.ah = n->ah;
		wr.wr.ud.remote_qpn = n->peer.lossy_qpn[UD];
		wr.wr.ud.remote_qkey = 0x11111111;
	}
	memcpy(p, &n->burst, 4);
	for (uint32_t i = 4; i < lossy_len(type); i++)
		p[i] = byte_of(n->burst, 62 + (unsigned)type, n->who, i);
	assert_int_equal(ibv_post_send(n->lossy[type], &wr, &bad), 0);
}

static void got_message(struct node *n, uint32_t i)
{
	const struct message msg = n->m->in[i];
	const unsigned peer = !n->who;
	const uint32_t size = size_of(msg.burst, msg.round, peer);
	const uint8_t *at = n->m->target[msg.burst % 2][msg.round];

	/* The peer may be ahead, where its acknowledgements are late. */
	assert_in_range(msg.burst, n->burst, n->burst + 1);
	assert_int_equal(msg.round, n->ngot[msg.burst % 2]);
	assert_int_equal(msg.rounds, rounds_of(msg.burst, peer));
	for (uint32_t k = 0; k < size; k++)
		if (at[k] != byte_of(msg.burst, msg.round, peer, k))
			fail_msg("byte %u of burst %u, round %u", k, msg.burst,
				 msg.round);
	n->ngot[msg.burst % 2]++;
	if (msg.last)
		n->last = msg.burst + 1;
	post_in(n, i);
}

static void got_lossy(struct node *n, int type, const struct ibv_wc *wc)
{
	const uint8_t *p = n->m->lossy_in[type][wc->wr_id] + lossy_grh(type);
	uint32_t burst;

	assert_int_equal(wc->byte_len, lossy_grh(type) + lossy_len(type));
	memcpy(&burst, p, 4);
	if (n->got[type] && burst <= n->got_last[type])
		fail_msg("%s: message %u after %u", type == UD ? "UD" : "UC",
			 burst, n->got_last[type]);
	for (uint32_t i = 4; i < lossy_len(type); i++)
		assert_int_equal(
			p[i], byte_of(burst, 62 + (unsigned)type, !n->who, i));
	n->got[type]++;
	n->got_last[type] = burst;
	post_lossy_in(n, type, (uint32_t)wc->wr_id);
}

static void got(struct node *n, const struct ibv_wc *wc)
{
	const uint32_t k = n->nsent % LOSSY_SENT;
	int type = 0;

	if (wc->status)
		fail_msg("end %u, burst %u: %s", n->who, n->burst,
			 ibv_wc_status_str(wc->status));
	while (type < LOSSY &&
	       (!n->lossy[type] || wc->qp_num != n->lossy[type]->qp_num))
		type++;
	if (type == LOSSY)
		assert_int_equal(wc->qp_num, n->qp->qp_num);
	if (wc->opcode == IBV_WC_RECV) {
		if (type < LOSSY)
			got_lossy(n, type, wc);
		else
			got_message(n, (uint32_t)wc->wr_id);
	} else if (type < LOSSY) {
		assert_int_equal(wc->wr_id,
				 n->burst * 64u + LOSSY_ID + (unsigned)type);
		n->nsent += LOSSY_SENT;
	} else {
		/* Each once, and in order. */
		assert_int_equal(wc->wr_id, n->burst * 64u + k / ROUND_WRS * 4 +
						    k % ROUND_WRS);
		if (wc->wr_id % 4 == ADD_ID)
			assert_int_equal(n->m->results[wc->wr_id / 4 % 16],
					 n->adds++);
		n->nsent++;
	}
}

/* Some completions. */
static void turn(struct node *n)
{
	struct ibv_cq *cq;
	struct ibv_wc wc;
	void *arg;
	int k = ibv_poll_cq(n->cq, 1, &wc);

	assert_true(k >= 0);
	if (!k && n->sleeps) {
		assert_int_equal(ibv_req_notify_cq(n->cq, 0), 0);
		k = ibv_poll_cq(n->cq, 1, &wc);
		if (!k) {
			assert_int_equal(ibv_get_cq_event(n->ch, &cq, &arg), 0);
			ibv_ack_cq_events(cq, 1);
		}
	}
	if (k)
		got(n, &wc);
}

static void traffic(struct node *n)
{
	while (!n->last || n->burst < n->last) {
		const uint32_t mine = rounds_of(n->burst, n->who);
		const uint32_t theirs = rounds_of(n->burst, !n->who);
		uint32_t posted = 0, *ngot = &n->ngot[n->burst % 2];

		n->nsent = 0;
		/* The second end follows the first: it has the last word. */
		if (n->who) {
			while (*ngot < theirs)
				turn(n);
		} else if (atomic_load(&stop)) {
			n->last = n->burst + 1;
		}
		for (int type = 0; type < LOSSY; type++)
			post_lossy(n, type);
		while (posted < mine)
			post_round(n, posted++);
		while (n->nsent != LOSSY * LOSSY_SENT + mine * ROUND_WRS ||
		       *ngot < theirs)
			turn(n);
		*ngot = 0;
		n->burst++;
	}
}

/* Setting up */

static void exchange(int fd, const void *out, void *in, size_t size)
{
	assert_int_equal(write(fd, out, size), size);
	assert_int_equal(recv(fd, in, size, MSG_WAITALL), size);
}

static void to_ud(struct ibv_qp *qp)
{
	struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR };
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .sq_psn = 5 };

	assert_int_equal(to_init(qp, 0), 0);
	assert_int_equal(ibv_modify_qp(qp, &rtr, IBV_QP_STATE), 0);
	assert_int_equal(ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_SQ_PSN),
			 0);
}

static void connect_rc(struct ibv_qp *qp, uint32_t dest)
{
	struct ibv_qp_attr rtr = rtr_attr(dest);
	struct ibv_qp_attr rts = {
		.qp_state = IBV_QPS_RTS,
		.sq_psn = 0xfffffe,
		.max_rd_atomic = 16,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.timeout = 14,
	};

	assert_int_equal(to_init(qp, ALL_ACCESS), 0);
	assert_int_equal(ibv_modify_qp(qp, &rtr, rtr_mask(IBV_QPT_RC)), 0);
	assert_int_equal(ibv_modify_qp(qp, &rts, rts_mask(IBV_QPT_RC)), 0);
}

static void connect_uc(struct ibv_qp *qp, uint32_t dest)
{
	struct ibv_qp_attr rtr = rtr_attr(dest);
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS,
				   .sq_psn = 0xfffffe };

	assert_int_equal(to_init(qp, ALL_ACCESS & ~IBV_ACCESS_REMOTE_READ &
					     ~IBV_ACCESS_REMOTE_ATOMIC),
			 0);
	assert_int_equal(ibv_modify_qp(qp, &rtr, rtr_mask(IBV_QPT_UC)), 0);
	assert_int_equal(ibv_modify_qp(qp, &rts, rts_mask(IBV_QPT_UC)), 0);
}

/* Theirs whose peers cannot be told of another number. */
static void lossy_init(struct node *n, struct ibv_qp_init_attr *init)
{
	init->srq = NULL;
	init->cap = (struct ibv_qp_cap){ 4, LOSSY_RECVS, 1, 1, 0 };
	for (int type = 0; type < LOSSY && !taker.pid; type++) {
		init->qp_type = type == UD ? IBV_QPT_UD : IBV_QPT_UC;
		n->lossy[type] = ibv_create_qp(pd, init);
		assert_non_null(n->lossy[type]);
	}
}

static void lossy_connect(struct node *n)
{
	to_ud(n->lossy[UD]);
	connect_uc(n->lossy[UC], n->peer.lossy_qpn[UC]);
	for (int type = 0; type < LOSSY; type++)
		for (uint32_t i = 0; i < LOSSY_RECVS; i++)
			post_lossy_in(n, type, i);
}

static void node_init(struct node *n, unsigned who, bool sleeps, int fd)
{
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = RECVS,
						   .max_sge = 1 } };
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.cap = { 4 * BURST, 0, 1, 1, 0 },
	};
	struct ibv_ah_attr av;
	struct info me;

	*n = (struct node){ .who = who, .sleeps = sleeps, .fd = fd };
	setup(NULL);
	n->m = mmap(NULL, sizeof(*n->m), PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(n->m != MAP_FAILED);
	n->mr = ibv_reg_mr(pd, n->m, sizeof(*n->m), ALL_ACCESS);
	assert_non_null(n->mr);
	n->ch = ibv_create_comp_channel(ctx);
	n->cq = ibv_create_cq(ctx, 256, NULL, n->ch, 0);
	assert_non_null(n->cq);
	n->srq = ibv_create_srq(pd, &srq);
	assert_non_null(n->srq);
	init.send_cq = init.recv_cq = n->cq;
	init.srq = n->srq;
	n->qp = ibv_create_qp(pd, &init);
	assert_non_null(n->qp);
	lossy_init(n, &init);
	av = rtr_attr(0).ah_attr;
	n->ah = ibv_create_ah(pd, &av);
	assert_non_null(n->ah);
	me = (struct info){ .qpn = n->qp->qp_num,
			    .rkey = n->mr->rkey,
			    .addr = (uintptr_t)n->m };
	for (int type = 0; type < LOSSY; type++)
		if (n->lossy[type])
			me.lossy_qpn[type] = n->lossy[type]->qp_num;
	exchange(fd, &me, &n->peer, sizeof(me));
	if (n->lossy[UD])
		lossy_connect(n);
	for (uint32_t i = 0; i < RECVS; i++)
		post_in(n, i);
	connect_rc(n->qp, n->peer.qpn);
	exchange(fd, &me, &n->peer, sizeof(me));
}

static void node_fini(struct node *n)
{
	assert_int_equal(ibv_destroy_qp(n->qp), 0);
	for (int type = 0; type < LOSSY; type++)
		if (n->lossy[type])
			assert_int_equal(ibv_destroy_qp(n->lossy[type]), 0);
	assert_int_equal(ibv_destroy_srq(n->srq), 0);
	assert_int_equal(ibv_destroy_ah(n->ah), 0);
	assert_int_equal(ibv_destroy_cq(n->cq), 0);
	assert_int_equal(ibv_destroy_comp_channel(n->ch), 0);
	assert_int_equal(ibv_dereg_mr(n->mr), 0);
	munmap(n->m, sizeof(*n->m));
	teardown(NULL);
}

static void child_succeeds(pid_t pid)
{
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

/* In a process of its own: rdma_cm keeps its device, and the thread of that. */
static void apart(void (*fn)(const void *arg), const void *arg)
{
	pid_t pid;

	fflush(NULL);
	pid = fork_child();
	if (!pid) {
		fn(arg);
		_exit(0);
	}
	child_succeeds(pid);
}

/* This end is ready; so is, where that is the parent, the other one. */
static void end_both(struct node *n, pid_t pid)
{
	node_fini(n);
	close(n->fd);
	if (!pid)
		_exit(0);
	child_succeeds(pid);
}

#define LOST_TRIES 10 /* of what nobody repeats, where packets get lost */

/* Whether one has completed within half a second. */
static bool completes(struct ibv_cq *cq, struct ibv_wc *wc)
{
	const uint64_t end = now_ns() + SECOND / 2;

	while (now_ns() < end)
		if (ibv_poll_cq(cq, 1, wc))
			return true;
	return false;
}

/* What UC loses it does not send again: that is left to the test. */
static void pair_talks(struct end *from, struct end *to)
{
	const bool lossy =
		to->qp->qp_type == IBV_QPT_UC && getenv("SOFTHCA_LOSS");
	int tries = lossy ? LOST_TRIES : 1;
	struct ibv_wc wc;

	post_recv(to, 1, 0, 8);
	do {
		assert_true(tries-- > 0);
		assert_int_equal(
			try_send(from,
				 &(struct ibv_send_wr){ .wr_id = 2,
							.opcode = IBV_WR_SEND },
				 0, 8),
			0);
		assert_int_equal(wait_wc(from->cq).wr_id, 2);
	} while (lossy && !completes(to->cq, &wc));
	assert_int_equal((lossy ? wc : wait_wc(to->cq)).wr_id, 1);
}

/* Who suspends: a thread in each end, told how long by the first one. */

struct order {
	uint32_t ms;
	bool ends;
};

static unsigned bad_calls;
static bool seated; /* peers wait: it may last for long */
static bool own_host; /* no other test has the same registry */

static void away(uint32_t ms)
{
	int seat, err;

	if (taker.pid)
		err = softhca_suspend_for(60, NULL);
	else if (seated)
		err = softhca_suspend_seated(&seat);
	else
		err = softhca_suspend();
	if (err) {
		bad_calls++;
		fprintf(stderr, "suspend: %s: %s\n", strerror(err),
			softhca_migrate_why());
		return;
	}
	if (taker.pid)
		taker_takes(&taker);
	if (ms)
		usleep(ms * 1000);
	err = softhca_resume();
	if (err) {
		bad_calls++;
		fprintf(stderr, "resume: %s: %s\n", strerror(err),
			softhca_migrate_why());
	}
}

static void *obey(void *arg)
{
	const int fd = *(int *)arg;
	struct order o;

	while (read(fd, &o, sizeof(o)) == sizeof(o) && !o.ends) {
		away(o.ms);
		if (write(fd, &o, sizeof(o)) != sizeof(o))
			break;
	}
	return NULL;
}

struct conductor {
	int fd;
	unsigned times;
};

static void *conduct(void *arg)
{
	const struct conductor *c = arg;
	struct order o = { 0 };

	for (unsigned i = 0; i < c->times; i++) {
		const uint32_t r = mix(i, (uint32_t)now_ns(), 3);

		usleep(r % 8000);
		o.ms = r / 8000 % 4 ? r / 8000 % 7 : r / 8000 % 40;
		if (i % 2) {
			away(o.ms);
		} else if (write(c->fd, &o, sizeof(o)) != sizeof(o) ||
			   read(c->fd, &o, sizeof(o)) != sizeof(o)) {
			break;
		}
	}
	o.ends = true;
	if (write(c->fd, &o, sizeof(o)) < 0)
		bad_calls++;
	atomic_store(&stop, true);
	return NULL;
}

static unsigned suspends(void)
{
	const char *times = getenv("SUSPENDS");

	return times ? (unsigned)atoi(times) : 16;
}

static void run(bool sleeps)
{
	struct conductor c = { .times = suspends() };
	int data[2], ctl[2];
	pthread_t thread;
	struct node n;
	pid_t pid;

	atomic_store(&stop, false);
	bad_calls = 0;
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, data), 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ctl), 0);
	fflush(NULL);
	pid = fork_child();
	close(data[!pid]);
	close(ctl[!pid]);
	node_init(&n, !pid, sleeps, data[!!pid]);
	c.fd = ctl[!!pid];
	assert_int_equal(pthread_create(&thread, NULL, pid ? conduct : obey,
					pid ? (void *)&c : (void *)&c.fd),
			 0);
	traffic(&n);
	join(thread);
	/* The peer may wait for an acknowledgement of its last message. */
	exchange(n.fd, &n.adds, &n.m->results[0], 8);
	assert_int_equal(n.m->counter, n.m->results[0]);
	assert_int_equal(bad_calls, 0);
	if (getenv("SUSPENDS"))
		fprintf(stderr, "end %u: %u bursts, lost %u of UD, %u of UC\n",
			n.who, n.burst, n.burst - n.got[UD],
			n.burst - n.got[UC]);
	close(c.fd);
	end_both(&n, pid);
}

static void polling(void **state)
{
	(void)state;
	run(false);
}

static void sleeping(void **state)
{
	(void)state;
	run(true);
}

/* A connection of rdma_cm(7), whose ends and listener are suspended. */

#define CM_TEXT 16

static const uint16_t cm_port = 17471;

static void away_once(void)
{
	assert_int_equal(softhca_suspend(), 0);
	usleep(5000);
	assert_int_equal(softhca_resume(), 0);
}

/* The other end, on this host, is not to take it for dead. */
static void away_seated(uint32_t ms)
{
	int seat;

	assert_int_equal(softhca_suspend_seated(&seat), 0);
	usleep(ms * 1000);
	assert_int_equal(softhca_resume(), 0);
}

/* One end of a connection. */
struct cm_end {
	struct rdma_event_channel *ch;
	struct rdma_cm_id *listener, *id;
	struct ibv_mr *mr;
	char text[CM_TEXT];
};

static struct rdma_cm_id *event_of(struct rdma_event_channel *ch,
				   enum rdma_cm_event_type type)
{
	struct rdma_cm_event *ev;
	struct rdma_cm_id *id;

	assert_true(readable(ch->fd, 10000));
	assert_int_equal(rdma_get_cm_event(ch, &ev), 0);
	assert_string_equal(rdma_event_str(ev->event), rdma_event_str(type));
	id = ev->id;
	rdma_ack_cm_event(ev);
	return id;
}

static void cm_qp(struct cm_end *e)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC,
					 .cap = { 4, 4, 1, 1, 0 } };

	assert_int_equal(rdma_create_qp(e->id, NULL, &init), 0);
	e->mr = rdma_reg_msgs(e->id, e->text, CM_TEXT);
	assert_non_null(e->mr);
}

static void cm_wc(struct ibv_cq *cq)
{
	struct ibv_wc wc = wait_wc(cq);

	assert_string_equal(ibv_wc_status_str(wc.status), "success");
}

static void cm_listens(struct cm_end *e, const struct sockaddr_in *at)
{
	*e = (struct cm_end){ .ch = rdma_create_event_channel() };
	assert_non_null(e->ch);
	assert_int_equal(rdma_create_id(e->ch, &e->listener, NULL, RDMA_PS_TCP),
			 0);
	assert_int_equal(rdma_bind_addr(e->listener, (struct sockaddr *)at), 0);
	assert_int_equal(rdma_listen(e->listener, 1), 0);
}

static void cm_connects(struct cm_end *e, const struct sockaddr_in *to)
{
	struct rdma_conn_param param = { .responder_resources = 1,
					 .retry_count = 7,
					 .rnr_retry_count = 7 };

	*e = (struct cm_end){ .ch = rdma_create_event_channel(),
			      .text = "hello" };
	assert_non_null(e->ch);
	assert_int_equal(rdma_create_id(e->ch, &e->id, NULL, RDMA_PS_TCP), 0);
	assert_int_equal(
		rdma_resolve_addr(e->id, NULL, (struct sockaddr *)to, 2000), 0);
	event_of(e->ch, RDMA_CM_EVENT_ADDR_RESOLVED);
	assert_int_equal(rdma_resolve_route(e->id, 2000), 0);
	event_of(e->ch, RDMA_CM_EVENT_ROUTE_RESOLVED);
	cm_qp(e);
	assert_int_equal(rdma_connect(e->id, &param), 0);
}

static void cm_accepts(struct cm_end *e)
{
	struct rdma_conn_param param = { .responder_resources = 1,
					 .rnr_retry_count = 7 };

	e->id = event_of(e->ch, RDMA_CM_EVENT_CONNECT_REQUEST);
	cm_qp(e);
	assert_int_equal(rdma_post_recv(e->id, NULL, e->text, CM_TEXT, e->mr),
			 0);
	assert_int_equal(rdma_accept(e->id, &param), 0);
}

static void cm_says(struct cm_end *e)
{
	assert_int_equal(rdma_post_send(e->id, NULL, e->text, CM_TEXT, e->mr,
					IBV_SEND_SIGNALED),
			 0);
}

static void cm_hears(struct cm_end *e)
{
	cm_wc(e->id->recv_cq);
	assert_string_equal(e->text, "hello");
}

/* The client ends it, whose communication ID is as it was. */
static void cm_ends(struct cm_end *e)
{
	event_of(e->ch, RDMA_CM_EVENT_DISCONNECTED);
	if (e->listener)
		assert_int_equal(rdma_disconnect(e->id), 0);
	rdma_dereg_mr(e->mr);
	rdma_destroy_qp(e->id);
	rdma_destroy_id(e->id);
	if (e->listener)
		rdma_destroy_id(e->listener);
	rdma_destroy_event_channel(e->ch);
}

static void cm_server(int fd, const struct sockaddr_in *at)
{
	struct cm_end e;
	char c = 'l';

	cm_listens(&e, at);
	away_seated(5);
	exchange(fd, &c, &c, 1);
	cm_accepts(&e);
	event_of(e.ch, RDMA_CM_EVENT_ESTABLISHED);
	away_seated(5);
	cm_hears(&e);
	exchange(fd, &c, &c, 1);
	cm_ends(&e);
	_exit(0);
}

static void cm_client(int fd, const struct sockaddr_in *to)
{
	struct cm_end e;
	char c = 'c';

	exchange(fd, &c, &c, 1);
	cm_connects(&e, to);
	event_of(e.ch, RDMA_CM_EVENT_ESTABLISHED);
	away_seated(5);
	cm_says(&e);
	cm_wc(e.id->send_cq);
	exchange(fd, &c, &c, 1);
	away_seated(5);
	assert_int_equal(rdma_disconnect(e.id), 0);
	cm_ends(&e);
}

/* Where connections are made; skips where there is no IPv4. */
static struct sockaddr_in cm_address(void)
{
	struct sockaddr_in at = { .sin_family = AF_INET,
				  .sin_port = htons(cm_port) };

	setup(NULL);
	memcpy(&at.sin_addr, gid0.raw + 12, 4);
	teardown(NULL);
	if (gid0.raw[10] != 0xff)
		skip();
	return at;
}

/* With a socket between parent and child; fd: this one's end. */
static pid_t fork_other_end(int *fd)
{
	int both[2];
	pid_t pid;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, both), 0);
	fflush(NULL);
	pid = fork_child();
	close(both[!pid]);
	*fd = both[!!pid];
	return pid;
}

static void connect_both(const void *at)
{
	int fd;
	pid_t pid = fork_other_end(&fd);

	if (!pid)
		cm_server(fd, at);
	cm_client(fd, at);
	close(fd);
	child_succeeds(pid);
}

static void connections(void **state)
{
	const struct sockaddr_in at = cm_address();

	(void)state;
	apart(connect_both, &at);
}

/* What is said to a process that is away is not answered by another one. */
static void disconnect_away(const void *at)
{
	struct cm_end e;
	int fd, place;
	char c = 'c';
	pid_t pid = fork_other_end(&fd);

	if (!pid) {
		cm_listens(&e, at);
		exchange(fd, &c, &c, 1);
		cm_accepts(&e);
		event_of(e.ch, RDMA_CM_EVENT_ESTABLISHED);
		assert_int_equal(softhca_suspend_seated(&place), 0);
		exchange(fd, &c, &c, 1);
		exchange(fd, &c, &c, 1);
		assert_int_equal(softhca_resume(), 0);
		cm_ends(&e);
		_exit(0);
	}
	exchange(fd, &c, &c, 1);
	cm_connects(&e, at);
	event_of(e.ch, RDMA_CM_EVENT_ESTABLISHED);
	exchange(fd, &c, &c, 1);
	assert_int_equal(rdma_disconnect(e.id), 0);
	assert_false(readable(e.ch->fd, 800));
	exchange(fd, &c, &c, 1);
	cm_ends(&e);
	close(fd);
	child_succeeds(pid);
}

static void disconnected_while_away(void **state)
{
	const struct sockaddr_in at = cm_address();

	(void)state;
	apart(disconnect_away, &at);
}

/* Both ends are in one process, so nobody misses it while it has no seat. */
static void connect_own(const void *at)
{
	struct cm_end s, c;

	cm_listens(&s, at);
	away_once();
	cm_connects(&c, at);
	away_once();
	cm_accepts(&s);
	away_once();
	event_of(c.ch, RDMA_CM_EVENT_ESTABLISHED);
	event_of(s.ch, RDMA_CM_EVENT_ESTABLISHED);
	away_once();
	cm_says(&c);
	away_once();
	cm_wc(c.id->send_cq);
	cm_hears(&s);
	assert_int_equal(rdma_disconnect(c.id), 0);
	away_once();
	cm_ends(&s);
	cm_ends(&c);
}

static void own_connections(void **state)
{
	const struct sockaddr_in at = cm_address();

	(void)state;
	apart(connect_own, &at);
}

/* What refers to the kernel or to other processes: nobody could save it. */

static unsigned sockets(void)
{
	DIR *d = opendir("/proc/self/fd");
	struct dirent *e;
	char to[256];
	unsigned n = 0;

	assert_non_null(d);
	while ((e = readdir(d))) {
		ssize_t len =
			readlinkat(dirfd(d), e->d_name, to, sizeof(to) - 1);

		to[len < 0 ? 0 : len] = '\0';
		n += strstr(to, "socket:") || strstr(to, "/softhca-");
	}
	closedir(d);
	return n;
}

static unsigned lines(const char *path, const char *with)
{
	FILE *f = fopen(path, "r");
	char line[512];
	unsigned n = 0;

	assert_non_null(f);
	while (fgets(line, sizeof(line), f))
		n += strstr(line, with) != NULL;
	fclose(f);
	return n;
}

static unsigned threads(void)
{
	char line[64] = "";
	unsigned n = 0;
	FILE *f = fopen("/proc/self/status", "r");

	assert_non_null(f);
	while (fgets(line, sizeof(line), f))
		sscanf(line, "Threads: %u", &n);
	fclose(f);
	return n;
}

static void nothing_is_left(void **state)
{
	char mine[32];
	const unsigned before = sockets(), alone = threads();
	struct end a, b;

	(void)state;
	snprintf(mine, sizeof(mine), "WRITE %d ", (int)getpid());
	setup(NULL);
	pair_init(&a, &b, IBV_QPT_RC);
	assert_true(sockets() > before);
	assert_int_equal(threads(), alone + 1);
	assert_int_equal(softhca_suspend(), 0);
	assert_int_equal(sockets(), before);
	assert_int_equal(threads(), alone);
	assert_int_equal(lines("/proc/self/maps", "/softhca-"), 0);
	assert_int_equal(lines("/proc/locks", mine), 0);
	/* What is posted waits. */
	post_recv(&b, 1, 0, 8);
	assert_int_equal(try_send(&a,
				  &(struct ibv_send_wr){
					  .wr_id = 2, .opcode = IBV_WR_SEND },
				  0, 8),
			 0);
	usleep(20000);
	assert_int_equal(ibv_poll_cq(a.cq, 1, &(struct ibv_wc){ 0 }), 0);
	assert_int_equal(ibv_poll_cq(b.cq, 1, &(struct ibv_wc){ 0 }), 0);
	assert_int_equal(softhca_resume(), 0);
	assert_int_equal(threads(), alone + 1);
	assert_int_equal(wait_wc(a.cq).wr_id, 2);
	assert_int_equal(wait_wc(b.cq).wr_id, 1);
	end_fini(&a);
	end_fini(&b);
	teardown(NULL);
}

/* No retry is used up, however long it lasts: the peer is in the same process. */
static void time_stands_still(void **state)
{
	struct end a, b;

	(void)state;
	setup(NULL);
	pair_init(&a, &b, IBV_QPT_RC);
	/* There is no receive: RNR retries, 7 of them for ever; the timeouts of
	 * what is sent take 7 times 16 ms. */
	assert_int_equal(try_send(&a,
				  &(struct ibv_send_wr){
					  .wr_id = 2, .opcode = IBV_WR_SEND },
				  0, 8),
			 0);
	assert_int_equal(softhca_suspend(), 0);
	sleep(1);
	assert_int_equal(softhca_resume(), 0);
	post_recv(&b, 1, 0, 8);
	assert_int_equal(wait_wc(a.cq).status, IBV_WC_SUCCESS);
	assert_int_equal(wait_wc(b.cq).status, IBV_WC_SUCCESS);
	end_fini(&a);
	end_fini(&b);
	teardown(NULL);
}

static void limit_files(rlim_t most)
{
	struct rlimit limit;

	assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
	limit.rlim_cur = most;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* The host has no room for what was there: nothing of it is left, and it can be
 * tried again. */
static void resumed_later(void **state)
{
	const unsigned alone = threads();
	struct end a, b;

	(void)state;
	if (getenv("SOFTHCA_WIRE"))
		skip(); /* nothing is large */
	setup(NULL);
	pair_init(&a, &b, IBV_QPT_RC);
	assert_int_equal(softhca_suspend(), 0);
	limit_files(2 << 20);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(softhca_resume(), EFBIG);
		assert_non_null(strstr(softhca_migrate_why(), "ulimit -f"));
		assert_int_equal(threads(), alone);
		assert_int_equal(lines("/proc/self/maps", "/softhca-"), 0);
	}
	limit_files(RLIM_INFINITY);
	assert_int_equal(softhca_resume(), 0);
	post_recv(&b, 1, 0, 8);
	assert_int_equal(try_send(&a,
				  &(struct ibv_send_wr){
					  .wr_id = 2, .opcode = IBV_WR_SEND },
				  0, 8),
			 0);
	assert_int_equal(wait_wc(a.cq).status, IBV_WC_SUCCESS);
	assert_int_equal(wait_wc(b.cq).status, IBV_WC_SUCCESS);
	end_fini(&a);
	end_fini(&b);
	teardown(NULL);
}

/* A child opens a device of its own; to exit takes no longer than it has to. */
static void forks_and_exits(void **state)
{
	struct end a, b;
	int status;
	pid_t pid;

	(void)state;
	setup(NULL);
	assert_int_equal(softhca_suspend(), 0);
	fflush(NULL);
	pid = fork_child();
	if (!pid) {
		setup(NULL);
		pair_init(&a, &b, IBV_QPT_RC);
		post_recv(&b, 1, 0, 8);
		assert_int_equal(
			try_send(&a,
				 &(struct ibv_send_wr){ .wr_id = 2,
							.opcode = IBV_WR_SEND },
				 0, 8),
			0);
		assert_int_equal(wait_wc(b.cq).status, IBV_WC_SUCCESS);
		assert_int_equal(softhca_suspend(), 0);
		exit(7);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(WEXITSTATUS(status), 7);
	assert_int_equal(softhca_resume(), 0);
	teardown(NULL);
}

/* Suspended for longer than its peer's retries take; and where its seat goes. */
static void seat(bool keeps)
{
	int fd, place;
	struct node n;
	char c = 0;
	pid_t pid;

	pid = fork_other_end(&fd);
	node_init(&n, !pid, false, fd);
	exchange(n.fd, &c, &c, 1);
	if (pid) {
		assert_int_equal(softhca_suspend_seated(&place), 0);
		assert_true(place >= 0);
		exchange(n.fd, &c, &c, 1);
		if (!keeps)
			close(place);
		usleep(2500000);
		assert_int_equal(softhca_resume(), 0);
	} else {
		exchange(n.fd, &c, &c, 1);
		post_round(&n, 0);
		while (n.nsent < ROUND_WRS) {
			struct ibv_wc wc = wait_wc(n.cq);

			if (!keeps) {
				assert_int_equal(wc.status,
						 IBV_WC_RETRY_EXC_ERR);
				break;
			}
			got(&n, &wc);
		}
	}
	exchange(n.fd, &c, &c, 1);
	end_both(&n, pid);
}

static void peers_wait_for_a_seat(void **state)
{
	(void)state;
	seat(true);
}

static void a_seat_that_nobody_has_is_free(void **state)
{
	(void)state;
	seat(false);
}

static void polling_seated(void **state)
{
	(void)state;
	seated = true;
	run(false);
}

static void sleeping_seated(void **state)
{
	(void)state;
	run(true);
}

/* Another process has the numbers of either end whenever it goes on, which gets
 * others. */
static void run_renumbered(bool sleeps)
{
	if (!own_host)
		skip();
	taker_begin(&taker);
	run(sleeps);
	taker_end(&taker);
	taker.pid = 0;
}

static void polling_renumbered(void **state)
{
	(void)state;
	run_renumbered(false);
}

static void sleeping_renumbered(void **state)
{
	(void)state;
	run_renumbered(true);
}

/* Both ends are in one process, and nobody has to be told; new queue pairs have
 * numbers that can be known. */
static void own_renumbered(void **state)
{
	static const enum ibv_qp_type types[] = { IBV_QPT_RC, IBV_QPT_UC };
	struct end a, b, c, d;

	(void)state;
	if (!own_host)
		skip();
	taker_begin(&taker);
	setup(NULL);
	for (unsigned i = 0; i < 2; i++) {
		pair_init(&a, &b, types[i]);
		for (unsigned k = 0; k < 3; k++) {
			assert_int_equal(softhca_suspend(), 0);
			taker_takes(&taker);
			assert_int_equal(softhca_resume(), 0);
			pair_talks(&a, &b);
			pair_talks(&b, &a);
			pair_init(&c, &d, IBV_QPT_RC);
			pair_talks(&c, &d);
			end_fini(&c);
			end_fini(&d);
		}
		end_fini(&a);
		end_fini(&b);
	}
	teardown(NULL);
	taker_end(&taker);
	taker.pid = 0;
}

/* Whose number somebody has who cannot be told keeps it, or stays where it is. */
static void numbers_that_are_known(void **state)
{
	static const struct {
		enum ibv_qp_type type;
		const char *why;
	} known[] = { { IBV_QPT_RC, "is not connected" },
		      { IBV_QPT_UD, "(UD)" } };
	struct end a;

	(void)state;
	if (!own_host)
		skip();
	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
		taker_begin(&taker);
		setup(NULL);
		end_init(&a, known[i].type, NULL);
		assert_int_equal(softhca_suspend_for(9, NULL), 0);
		taker_takes(&taker);
		assert_int_equal(softhca_resume(), EADDRINUSE);
		assert_non_null(strstr(softhca_migrate_why(), known[i].why));
		assert_non_null(
			strstr(softhca_migrate_why(), "another process"));
		taker_end(&taker);
		taker.pid = 0;
		assert_int_equal(softhca_resume(), 0);
		end_fini(&a);
		teardown(NULL);
	}
}

/* What needs no acknowledgement, sent before either end is suspended, and while
 * the sender is. */
static void volley(struct node *n, unsigned bursts)
{
	for (unsigned i = 0; i < bursts; i++, n->burst++) {
		n->nsent = 0;
		for (int type = 0; type < LOSSY; type++)
			post_lossy(n, type);
		while (n->nsent != LOSSY * LOSSY_SENT)
			turn(n);
	}
}

static void take_volley(struct node *n, unsigned bursts)
{
	const uint64_t end = now_ns() + 10 * SECOND;

	while (n->got[UD] < bursts || n->got[UC] < bursts) {
		turn(n);
		assert_true(now_ns() < end);
	}
}

static void nothing_is_lost(void **state)
{
	struct node n;
	char c = 0;
	pid_t pid;
	int fd;

	(void)state;
	if (getenv("SOFTHCA_LOSS"))
		skip();
	pid = fork_other_end(&fd);
	node_init(&n, !pid, false, fd);
	if (pid) {
		volley(&n, 16);
		exchange(n.fd, &c, &c, 1);
		exchange(n.fd, &c, &c, 1);
		/* These wait. */
		assert_int_equal(softhca_suspend(), 0);
		n.nsent = 0;
		post_lossy(&n, UC);
		post_lossy(&n, UD);
		for (int i = 0; i < 1000; i++)
			assert_int_equal(
				ibv_poll_cq(n.cq, 1, &(struct ibv_wc){ 0 }), 0);
		assert_int_equal(softhca_resume(), 0);
		while (n.nsent != LOSSY * LOSSY_SENT)
			turn(&n);
	} else {
		exchange(n.fd, &c, &c, 1);
		assert_int_equal(softhca_suspend(), 0);
		assert_int_equal(softhca_resume(), 0);
		take_volley(&n, 16);
		exchange(n.fd, &c, &c, 1);
		take_volley(&n, 17);
	}
	exchange(n.fd, &c, &c, 1);
	end_both(&n, pid);
}

/* A group that a process has joined it is in again. */

static bool group_says(struct end *from, const struct ibv_ah *ah,
		       struct end *to)
{
	struct ibv_send_wr wr = { .wr_id = 1, .opcode = IBV_WR_SEND };
	struct ibv_wc wc;

	wr.wr.ud.ah = (struct ibv_ah *)(uintptr_t)ah;
	wr.wr.ud.remote_qpn = 0xffffff;
	wr.wr.ud.remote_qkey = 0x11111111;
	assert_int_equal(try_send(from, &wr, 0, 100), 0);
	assert_int_equal(wait_wc(from->cq).status, IBV_WC_SUCCESS);
	if (!completes(to->cq, &wc))
		return false;
	expect_wc(&wc, 2, IBV_WC_SUCCESS);
	assert_memory_equal(to->buf + 40, from->buf, 100);
	post_recv(to, 2, 0, 200);
	return true;
}

static void group_hears(struct end *from, const struct ibv_ah *ah,
			struct end *to)
{
	int tries = getenv("SOFTHCA_LOSS") ? LOST_TRIES : 1;

	while (!group_says(from, ah, to))
		assert_true(--tries > 0);
}

/* The index of a GID that is, or is not, an IPv4 address; -1: there is none. */
static int gid_index(bool v4)
{
	union ibv_gid gid, none = { 0 };
	int i = 0;

	while (!ibv_query_gid(ctx, 1, i, &gid)) {
		const bool link_local = gid.raw[0] == 0xfe;

		if (memcmp(&gid, &none, sizeof(gid)) && !link_local &&
		    (gid.raw[10] == 0xff) == v4)
			return i;
		i++;
	}
	return -1;
}

static void group_of(bool v4, const union ibv_gid *group)
{
	struct ibv_ah *ah;
	struct end a, b;
	int index;

	setup(NULL);
	index = gid_index(v4);
	if (index < 0) {
		teardown(NULL);
		skip();
	}
	end_init(&a, IBV_QPT_UD, NULL);
	end_init(&b, IBV_QPT_UD, NULL);
	connect_to(a.qp, 0);
	connect_to(b.qp, 0);
	assert_int_equal(ibv_attach_mcast(b.qp, group, 0), 0);
	ah = ah_to(index, group);
	assert_non_null(ah);
	fill(a.buf, 100, 3);
	post_recv(&b, 2, 0, 200);
	for (int i = 0; i < 3; i++) {
		group_hears(&a, ah, &b);
		away_once();
	}
	group_hears(&a, ah, &b);
	assert_int_equal(ibv_detach_mcast(b.qp, group, 0), 0);
	away_once();
	assert_int_equal(ibv_destroy_ah(ah), 0);
	end_fini(&a);
	end_fini(&b);
	teardown(NULL);
}

static void group_v4(void **state)
{
	(void)state;
	group_of(true, &(union ibv_gid){
			       .raw = { [10] = 0xff, 0xff, 239, 7, 7, 7 } });
}

static void group_v6(void **state)
{
	(void)state;
	group_of(false, &(union ibv_gid){ .raw = { 0xff, 0x05, [15] = 0x77 } });
}

/* A thread joins a group while the process is away, and is in it afterwards. */

struct joining {
	struct ibv_qp *qp;
	union ibv_gid group;
};

static void *join_group(void *arg)
{
	struct joining *j = arg;

	return (void *)(intptr_t)ibv_attach_mcast(j->qp, &j->group, 0);
}

static void joined_meanwhile(void **state)
{
	struct joining j = {
		.group = { .raw = { [10] = 0xff, 0xff, 239, 7, 8 } }
	};
	pthread_t thread;
	struct ibv_ah *ah;
	struct end a, b;
	int index;

	(void)state;
	setup(NULL);
	index = gid_index(true);
	if (index < 0) {
		teardown(NULL);
		skip();
	}
	end_init(&a, IBV_QPT_UD, NULL);
	end_init(&b, IBV_QPT_UD, NULL);
	connect_to(a.qp, 0);
	connect_to(b.qp, 0);
	fill(a.buf, 100, 3);
	post_recv(&b, 2, 0, 200);
	j.qp = b.qp;
	for (unsigned i = 0; i < 12; i++) {
		j.group.raw[15] = (uint8_t)(i + 1);
		ah = ah_to(index, &j.group);
		assert_non_null(ah);
		assert_int_equal(softhca_suspend(), 0);
		assert_int_equal(pthread_create(&thread, NULL, join_group, &j),
				 0);
		usleep(i % 4 * 500);
		assert_int_equal(softhca_resume(), 0);
		assert_null(join(thread));
		group_hears(&a, ah, &b);
		assert_int_equal(ibv_detach_mcast(b.qp, &j.group, 0), 0);
		assert_int_equal(ibv_destroy_ah(ah), 0);
	}
	end_fini(&a);
	end_fini(&b);
	teardown(NULL);
}

/* rsockets: what one end says the other one says as well. */

#define RS_PORT 17472
#define RS_MOST 30000

static void rs_say(int s, const uint8_t *p, size_t len)
{
	while (len) {
		ssize_t n = rsend(s, p, len, 0);

		assert_true(n > 0);
		p += n;
		len -= (size_t)n;
	}
}

static void rs_serve(int fd, const struct sockaddr_in *at)
{
	static uint8_t buf[RS_MOST];
	int l = rsocket(AF_INET, SOCK_STREAM, 0), s;
	char c = 0;
	ssize_t n;

	assert_int_equal(rbind(l, (const struct sockaddr *)at, sizeof(*at)), 0);
	assert_int_equal(rlisten(l, 1), 0);
	exchange(fd, &c, &c, 1);
	s = raccept(l, NULL, NULL);
	assert_true(s >= 0);
	while ((n = rrecv(s, buf, sizeof(buf), 0)) > 0)
		rs_say(s, buf, (size_t)n);
	assert_int_equal(n, 0);
	rclose(s);
	rclose(l);
}

static void rs_ask(int fd, const struct sockaddr_in *to)
{
	static uint8_t buf[RS_MOST], back[RS_MOST];
	int s = rsocket(AF_INET, SOCK_STREAM, 0);
	char c = 0;

	exchange(fd, &c, &c, 1);
	assert_int_equal(rconnect(s, (const struct sockaddr *)to, sizeof(*to)),
			 0);
	for (uint32_t i = 0; !atomic_load(&stop); i++) {
		const uint32_t len = 1 + mix(i, 5, 5) % RS_MOST;

		for (uint32_t k = 0; k < len; k++)
			buf[k] = byte_of(i, 9, 0, k);
		rs_say(s, buf, len);
		assert_int_equal(rrecv(s, back, len, MSG_WAITALL), len);
		assert_memory_equal(buf, back, len);
	}
	assert_int_equal(rshutdown(s, SHUT_WR), 0);
	assert_int_equal(rrecv(s, back, 1, 0), 0);
	rclose(s);
}

/* Datagrams, of which some get lost. */

static void rs_serve_dgrams(int fd, const struct sockaddr_in *at)
{
	int s = rsocket(AF_INET, SOCK_DGRAM, 0);
	struct pollfd p = { .fd = s, .events = POLLIN };
	struct sockaddr_in from;
	uint8_t buf[2048];
	char c = 0;

	assert_int_equal(rbind(s, (const struct sockaddr *)at, sizeof(*at)), 0);
	exchange(fd, &c, &c, 1);
	for (;;) {
		socklen_t len = sizeof(from);
		ssize_t n;

		if (rpoll(&p, 1, 50) == 1) {
			n = rrecvfrom(s, buf, sizeof(buf), 0,
				      (struct sockaddr *)&from, &len);
			assert_true(n > 0);
			assert_int_equal(rsendto(s, buf, (size_t)n, 0,
						 (struct sockaddr *)&from, len),
					 n);
		} else if (readable(fd, 0)) {
			break;
		}
	}
	rclose(s);
}

static void rs_ask_dgrams(int fd, const struct sockaddr_in *to)
{
	int s = rsocket(AF_INET, SOCK_DGRAM, 0);
	struct pollfd p = { .fd = s, .events = POLLIN };
	uint32_t answered = 0, at = 0;
	uint8_t buf[1000];
	char c = 0;

	exchange(fd, &c, &c, 1);
	for (uint32_t i = 0; !atomic_load(&stop); i++) {
		memcpy(buf, &i, 4);
		for (uint32_t k = 4; k < sizeof(buf); k++)
			buf[k] = byte_of(i, 9, 0, k);
		assert_int_equal(rsendto(s, buf, sizeof(buf), 0,
					 (const struct sockaddr *)to,
					 sizeof(*to)),
				 sizeof(buf));
		if (rpoll(&p, 1, 100) != 1)
			continue;
		assert_int_equal(rrecv(s, buf, sizeof(buf), 0), sizeof(buf));
		memcpy(&at, buf, 4);
		assert_true(at <= i);
		for (uint32_t k = 4; k < sizeof(buf); k++)
			assert_int_equal(buf[k], byte_of(at, 9, 0, k));
		answered++;
	}
	assert_true(answered);
	rclose(s);
}

struct rs_ends {
	struct sockaddr_in at;
	void (*serve)(int fd, const struct sockaddr_in *at);
	void (*ask)(int fd, const struct sockaddr_in *to);
};

static void rs_run(const void *arg)
{
	const struct rs_ends *ends = arg;
	struct conductor c = { .times = suspends() };
	int data[2], ctl[2];
	pthread_t thread;
	char end = 0;
	pid_t pid;

	atomic_store(&stop, false);
	bad_calls = 0;
	seated = true;
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, data), 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ctl), 0);
	fflush(NULL);
	pid = fork_child();
	close(data[!pid]);
	close(ctl[!pid]);
	/* So that there is something to be suspended, all the time. */
	setup(NULL);
	c.fd = ctl[!!pid];
	assert_int_equal(pthread_create(&thread, NULL, pid ? conduct : obey,
					pid ? (void *)&c : (void *)&c.fd),
			 0);
	(pid ? ends->ask : ends->serve)(data[!!pid], &ends->at);
	join(thread);
	exchange(data[!!pid], &end, &end, 1);
	seated = false;
	assert_int_equal(bad_calls, 0);
	close(c.fd);
	close(data[!!pid]);
	teardown(NULL);
	if (!pid)
		_exit(0);
	child_succeeds(pid);
}

static void streams(void **state)
{
	struct rs_ends ends = { cm_address(), rs_serve, rs_ask };

	(void)state;
	ends.at.sin_port = htons(RS_PORT);
	apart(rs_run, &ends);
}

static void stream_datagrams(void **state)
{
	struct rs_ends ends = { cm_address(), rs_serve_dgrams, rs_ask_dgrams };

	(void)state;
	/* Queue pairs are made meanwhile: what the segment shows of one at the
	 * moment at which it is copied may be what was before. */
	if (TSAN)
		skip();
	ends.at.sin_port = htons(RS_PORT);
	apart(rs_run, &ends);
}

/* Calls that need the host wait, and do not keep the process from going on: a queue
 * pair for which there is no number left, and what is the first of its kind. */

#define QPS (REGISTRY_CHUNK * 3 / 4 + 1)

static struct ibv_qp *small_qp(struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = { .send_cq = cq,
					 .recv_cq = cq,
					 .qp_type = IBV_QPT_RC,
					 .cap = { 1, 1, 1, 1, 0 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	assert_non_null(qp);
	return qp;
}

static void *creates_qp(void *cq)
{
	return small_qp(cq);
}

static void number_waits(const void *arg)
{
	struct ibv_qp **qp = calloc(QPS + 1, sizeof(struct ibv_qp *));
	struct ibv_cq *cq;
	pthread_t thread;

	(void)arg;
	alarm(20);
	assert_non_null(qp);
	setup(NULL);
	cq = ibv_create_cq(ctx, 1, NULL, NULL, 0);
	assert_non_null(cq);
	for (uint32_t i = 0; i < QPS; i++)
		qp[i] = small_qp(cq);
	assert_int_equal(softhca_suspend(), 0);
	assert_int_equal(pthread_create(&thread, NULL, creates_qp, cq), 0);
	usleep(50000); /* it waits */
	assert_int_equal(softhca_resume(), 0);
	qp[QPS] = join(thread);
	for (uint32_t i = 0; i <= QPS; i++)
		ibv_destroy_qp(qp[i]);
	ibv_destroy_cq(cq);
	free(qp);
	teardown(NULL);
}

static void a_number_waits(void **state)
{
	(void)state;
	apart(number_waits, NULL);
}

static void *creates_channel(void *arg)
{
	struct rdma_event_channel *ch = rdma_create_event_channel();

	assert_non_null(ch);
	rdma_destroy_event_channel(ch);
	atomic_store(&stop, true);
	return arg;
}

static void channel_waits(const void *us)
{
	pthread_t thread;

	alarm(20);
	setup(NULL);
	atomic_store(&stop, false);
	assert_int_equal(pthread_create(&thread, NULL, creates_channel, NULL),
			 0);
	usleep(*(const unsigned *)us);
	while (!atomic_load(&stop)) {
		if (softhca_suspend())
			continue;
		usleep(1000);
		assert_int_equal(softhca_resume(), 0);
	}
	join(thread);
	teardown(NULL);
}

static void a_channel_waits(void **state)
{
	(void)state;
	for (unsigned us = 0; us < 2000; us += TSAN ? 200 : 10)
		apart(channel_waits, &us);
}

/* What cannot be suspended goes on. */

static void refused(const char *with)
{
	struct end a, b;

	assert_int_equal(softhca_suspend(), EOPNOTSUPP);
	assert_non_null(strstr(softhca_migrate_why(), with));
	pair_init(&a, &b, IBV_QPT_RC);
	end_fini(&a);
	end_fini(&b);
}

static void iwarp_is_refused(void **state)
{
	pid_t pid;

	(void)state;
	fflush(NULL);
	pid = fork_child();
	if (!pid) {
		setenv("SOFTHCA_IWARP", "both", 1);
		setup(NULL);
		refused("TCP_REPAIR");
		teardown(NULL);
		_exit(0);
	}
	child_succeeds(pid);
}

static void *suspend_unseated(void *arg)
{
	while (!atomic_load(&stop)) {
		if (softhca_suspend())
			continue;
		usleep(100); /* the other one is refused */
		assert_int_equal(softhca_resume(), 0);
	}
	return arg;
}

/* Who is refused a seat has none, whoever else suspends the process. */
static void calls_at_once(void **state)
{
	const uint64_t end = now_ns() + 3000000000u;
	unsigned suspended = 0;
	pthread_t thread;
	int seat;

	(void)state;
	setup(NULL);
	atomic_store(&stop, false);
	assert_int_equal(pthread_create(&thread, NULL, suspend_unseated, NULL),
			 0);
	while (suspended < 100 && now_ns() < end) {
		if (softhca_suspend_seated(&seat)) {
			assert_int_equal(seat, -1);
			usleep(20);
			continue;
		}
		assert_true(seat >= 0);
		assert_int_equal(softhca_resume(), 0); /* closes it */
		suspended++;
	}
	atomic_store(&stop, true);
	join(thread);
	teardown(NULL);
}

/* What is said where nothing can be done. */
static void refusals(void **state)
{
	(void)state;
	assert_int_equal(softhca_suspend(), ENODEV);
	assert_string_equal(softhca_migrate_why(), "no device is open");
	assert_int_equal(softhca_resume(), EINVAL);
	setup(NULL);
	assert_int_equal(softhca_suspend(), 0);
	assert_string_equal(softhca_migrate_why(), "");
	assert_int_equal(softhca_suspend(), EALREADY);
	assert_int_equal(softhca_resume(), 0);
	assert_int_equal(softhca_resume(), EINVAL);
	teardown(NULL);
}

static void *no_thread(void *arg)
{
	return arg;
}

int main(void)
{
	pthread_t first;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(iwarp_is_refused),
		cmocka_unit_test(refusals),
		cmocka_unit_test(calls_at_once),
		cmocka_unit_test(nothing_is_left),
		cmocka_unit_test(time_stands_still),
		cmocka_unit_test(connections),
		cmocka_unit_test(disconnected_while_away),
		cmocka_unit_test(own_connections),
		cmocka_unit_test(resumed_later),
		cmocka_unit_test(forks_and_exits),
		cmocka_unit_test(polling),
		cmocka_unit_test(sleeping),
		cmocka_unit_test(peers_wait_for_a_seat),
		cmocka_unit_test(a_seat_that_nobody_has_is_free),
		cmocka_unit_test(nothing_is_lost),
		cmocka_unit_test(group_v4),
		cmocka_unit_test(group_v6),
		cmocka_unit_test(joined_meanwhile),
		cmocka_unit_test(a_number_waits),
		cmocka_unit_test(a_channel_waits),
		cmocka_unit_test(streams),
		cmocka_unit_test(stream_datagrams),
		cmocka_unit_test(polling_renumbered),
		cmocka_unit_test(sleeping_renumbered),
		cmocka_unit_test(own_renumbered),
		cmocka_unit_test(numbers_that_are_known),
		cmocka_unit_test(polling_seated),
		cmocka_unit_test(sleeping_seated),
	};

	/* A sanitizer's own thread comes with the first one, and is counted. */
	if (!pthread_create(&first, NULL, no_thread, NULL))
		pthread_join(first, NULL);
	/* What a process without a seat has given up, another one may take. */
	own_host = own_netns();
	if (!own_host)
		fprintf(stderr, "there is no network of this test's own\n");
	cmocka_set_test_filter(getenv("SUSPEND_TEST"));
	return cmocka_run_group_tests(tests, NULL, NULL);
}

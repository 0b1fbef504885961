/*
 * test_stress.c - all verbs from many threads at a time
 *
 * Threads pick a pair of queue pairs and do something to it: post, poll,
 * iterate, arm, modify, reset and connect again, bind and invalidate windows,
 * re-register, resize, query. Nothing keeps them apart but what the manual
 * pages ask for: an object is destroyed when no other thread uses it, which a
 * lock per pair sees to that everything else takes shared. The test is that it
 * ends, that everything can be destroyed, and what sanitizers say.
 *
 * The XRC domain is one of an inode that another process has, too: some of the
 * messages are for an SRQ of that, which comes and goes.
 */
#include "pair.h"

#include <sched.h>

#define THREADS 6
#define PAIRS 5
#define SLOTS 32 /* of work requests */

/*
 * Of the buffer each part is written by one QP only, or by nobody, so that the
 * program has no races of its own; receives that two QPs share are small ones.
 */
#define MEM (1 << 20)
#define SOURCE 0
#define RESULT(i) (0x10000 + (i)*0x8000)
#define TARGET(i) (0x20000 + (i)*0x8000)
#define ATOMIC(i) (0x30000 + (i)*0x1000)
#define RECV(i) (0x40000 + (i)*0x10000)
#define SHARED(n) (0x80000 + (n) % 4096 * 64)

struct slot {
	pthread_rwlock_t alive;
	enum ibv_qp_type type;
	struct ibv_comp_channel *ch;
	struct ibv_cq_ex *cq; /* of both ends */
	struct ibv_srq *srq;
	struct ibv_qp *qp[2]; /* XRC: send, recv */
	struct ibv_mr *mr;
	struct ibv_mw *mw;
	struct ibv_ah *ah;
	uint32_t srqn;
	uint8_t *buf;
};

static struct slot slots[PAIRS];
static struct ibv_xrcd *xrcd;
static _Atomic bool stop;
static _Atomic unsigned long done, completed;

/* The other process. */
static pid_t other_pid;
static int other_in, other_out;
static _Atomic uint32_t other_srqn; /* the last that it told */
static unsigned long other_received; /* at its end */

/* Connects without caring whether another thread is at it, too. */
static void try_connect(struct ibv_qp *qp, uint32_t dest)
{
	struct ibv_qp_attr rtr = rtr_attr(dest), rts = {
		.qp_state = IBV_QPS_RTS,
		.sq_psn = 0xfffffe,
		.max_rd_atomic = 16,
		.retry_cnt = 1,
		.rnr_retry = 1,
		.timeout = 1,
	};
	int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	bool reliable = qp->qp_type != IBV_QPT_UC && qp->qp_type != IBV_QPT_UD;

	to_init(qp, ALL_ACCESS);
	ibv_modify_qp(qp, &rtr, rtr_mask(reliable ? IBV_QPT_RC : qp->qp_type));
	if (reliable)
		mask |= IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT |
			IBV_QP_RNR_RETRY | IBV_QP_TIMEOUT;
	ibv_modify_qp(qp, &rts, mask);
}

static void reconnect(struct slot *s)
{
	struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };
	int i;

	for (i = 0; i < 2; i++) {
		ibv_modify_qp(s->qp[i], &reset, IBV_QP_STATE);
		try_connect(s->qp[i], s->qp[!i]->qp_num);
	}
}

static void slot_make(struct slot *s)
{
	struct ibv_cq_init_attr_ex cqa = {
		.cqe = 4096,
		.wc_flags = IBV_WC_STANDARD_FLAGS,
	};
	struct ibv_srq_init_attr_ex srqa = {
		.attr = { .max_wr = SLOTS, .max_sge = 1 },
		.comp_mask = IBV_SRQ_INIT_ATTR_PD,
		.pd = pd,
	};
	struct ibv_qp_init_attr_ex qpa = {
		.qp_type = s->type,
		.cap = { SLOTS, SLOTS, 1, 1, 16 },
		.comp_mask = IBV_QP_INIT_ATTR_PD,
		.pd = pd,
	};
	struct ibv_ah_attr av = rtr_attr(0).ah_attr;
	int i;

	s->ch = ibv_create_comp_channel(ctx);
	cqa.channel = s->ch;
	s->cq = ibv_create_cq_ex(ctx, &cqa);
	assert_non_null(s->cq);
	qpa.send_cq = qpa.recv_cq = ibv_cq_ex_to_cq(s->cq);
	if (s->type == IBV_QPT_XRC_SEND) {
		srqa.comp_mask |= IBV_SRQ_INIT_ATTR_TYPE |
				  IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
		srqa.srq_type = IBV_SRQT_XRC;
		srqa.xrcd = xrcd;
		srqa.cq = qpa.send_cq;
	}
	s->srq = ibv_create_srq_ex(ctx, &srqa);
	assert_non_null(s->srq);
	s->srqn = 0;
	if (s->type == IBV_QPT_XRC_SEND)
		assert_int_equal(ibv_get_srq_num(s->srq, &s->srqn), 0);
	else if (s->type == IBV_QPT_RC)
		qpa.srq = s->srq;
	for (i = 0; i < 2; i++) {
		if (i && s->type == IBV_QPT_XRC_SEND) {
			qpa.qp_type = IBV_QPT_XRC_RECV;
			qpa.comp_mask = IBV_QP_INIT_ATTR_XRCD;
			qpa.xrcd = xrcd;
		}
		s->qp[i] = ibv_create_qp_ex(ctx, &qpa);
		assert_non_null(s->qp[i]);
	}
	s->buf = mmap(NULL, MEM, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(s->buf != MAP_FAILED);
	s->mr = ibv_reg_mr(pd, s->buf, MEM, ALL_ACCESS | IBV_ACCESS_MW_BIND);
	assert_non_null(s->mr);
	s->mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	assert_non_null(s->mw);
	s->ah = ibv_create_ah(pd, &av);
	assert_non_null(s->ah);
	reconnect(s);
}

static void slot_unmake(struct slot *s)
{
	int i;

	for (i = 0; i < 2; i++)
		assert_int_equal(ibv_destroy_qp(s->qp[i]), 0);
	assert_int_equal(ibv_destroy_ah(s->ah), 0);
	assert_int_equal(ibv_dealloc_mw(s->mw), 0);
	assert_int_equal(ibv_dereg_mr(s->mr), 0);
	assert_int_equal(ibv_destroy_srq(s->srq), 0);
	assert_int_equal(ibv_destroy_cq(ibv_cq_ex_to_cq(s->cq)), 0);
	assert_int_equal(ibv_destroy_comp_channel(s->ch), 0);
	munmap(s->buf, MEM);
}

/* Another thread may bind the window. */
static uint32_t mw_rkey(const struct ibv_mw *mw)
{
	return __atomic_load_n(&mw->rkey, __ATOMIC_RELAXED);
}

static void do_send(struct slot *s, unsigned r)
{
	static const enum ibv_wr_opcode ops[] = {
		IBV_WR_SEND,          IBV_WR_RDMA_WRITE,
		IBV_WR_RDMA_READ,     IBV_WR_ATOMIC_FETCH_AND_ADD,
		IBV_WR_BIND_MW,       IBV_WR_LOCAL_INV,
		IBV_WR_SEND_WITH_INV, IBV_WR_ATOMIC_WRITE,
	};
	const int me = s->type == IBV_QPT_XRC_SEND ? 0 : r & 1;
	const uint64_t buf = (uintptr_t)s->buf;
	struct ibv_sge sge = { buf + SOURCE, r % 7 ? 8 : 20000, s->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 1,
				  .opcode = ops[r / 8 % 8],
				  .send_flags = IBV_SEND_SIGNALED,
				  .sg_list = &sge,
				  .num_sge = 1 },
			   *bad;

	wr.wr.rdma.rkey = r % 16 ? s->mr->rkey : mw_rkey(s->mw);
	wr.wr.rdma.remote_addr = buf + (unsigned)TARGET(!me);
	if (wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.rkey = s->mr->rkey;
		wr.wr.atomic.remote_addr = buf + (unsigned)ATOMIC(!me);
		wr.wr.atomic.compare_add = 1;
		sge.addr = buf + (unsigned)RESULT(me);
	} else if (wr.opcode == IBV_WR_RDMA_READ) {
		wr.wr.rdma.remote_addr = buf + SOURCE;
		sge.addr = buf + (unsigned)RESULT(me);
	} else if (wr.opcode == IBV_WR_ATOMIC_WRITE) {
		wr.wr.rdma.remote_addr = buf + (unsigned)ATOMIC(!me);
	}
	wr.qp_type.xrc.remote_srqn = r % 3 ? s->srqn : other_srqn;
	if (s->type == IBV_QPT_XRC_SEND && r % 3 == 0 && r % 64)
		wr.opcode = IBV_WR_SEND; /* our keys would be an error there */
	if (wr.opcode == IBV_WR_BIND_MW) {
		wr.bind_mw.mw = s->mw;
		wr.bind_mw.rkey = mw_rkey(s->mw);
		wr.bind_mw.bind_info = (struct ibv_mw_bind_info){
			s->mr, buf + TARGET(0), 0x10000, IBV_ACCESS_REMOTE_WRITE
		};
	} else if (wr.opcode == IBV_WR_LOCAL_INV ||
		   wr.opcode == IBV_WR_SEND_WITH_INV) {
		wr.invalidate_rkey = mw_rkey(s->mw);
	}
	if (s->type == IBV_QPT_UD) {
		wr.opcode = IBV_WR_SEND;
		sge.length = 8;
		wr.wr.ud.ah = s->ah;
		wr.wr.ud.remote_qpn = s->qp[!me]->qp_num;
		wr.wr.ud.remote_qkey = 0x11111111;
	}
	ibv_post_send(s->qp[me], &wr, &bad);
}

static void do_recv(struct slot *s, unsigned r)
{
	static _Atomic unsigned shared;
	const int me = r & 1;
	struct ibv_sge sge = { (uintptr_t)s->buf + (unsigned)RECV(me), 0x10000,
			       s->mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	if (s->type == IBV_QPT_RC || s->type == IBV_QPT_XRC_SEND) {
		sge.addr = (uintptr_t)s->buf + SHARED(shared++);
		sge.length = 64;
		ibv_post_srq_recv(s->srq, &wr, &bad);
	} else {
		ibv_post_recv(s->qp[me], &wr, &bad);
	}
}

static void do_poll(struct slot *s, unsigned r)
{
	struct ibv_poll_cq_attr attr = { 0 };
	struct ibv_wc wc[8];
	int n = 0;

	if (r & 1) {
		n = ibv_poll_cq(ibv_cq_ex_to_cq(s->cq), 8, wc);
	} else if (!ibv_start_poll(s->cq, &attr)) {
		do {
			(void)ibv_wc_read_opcode(s->cq);
			n++;
		} while (!ibv_next_poll(s->cq));
		ibv_end_poll(s->cq);
	}
	if (n > 0)
		completed += (unsigned long)n;
}

static void do_event(struct slot *s)
{
	struct ibv_cq *cq = ibv_cq_ex_to_cq(s->cq), *got;
	void *context;

	ibv_req_notify_cq(cq, 0);
	if (readable(s->ch->fd, 0)) {
		fcntl(s->ch->fd, F_SETFL, O_NONBLOCK);
		if (!ibv_get_cq_event(s->ch, &got, &context))
			ibv_ack_cq_events(got, 1);
	}
}

static void do_admin(struct slot *s, unsigned r)
{
	struct ibv_modify_cq_attr mod = {
		.attr_mask = IBV_CQ_ATTR_MODERATE,
		.moderate = { (uint16_t)(r % 5), (uint16_t)(r % 200) },
	};
	struct ibv_qp_attr err = { .qp_state = IBV_QPS_ERR }, attr;
	struct ibv_srq_attr limit = { .srq_limit = 3 };
	struct ibv_qp_init_attr init;

	switch (r / 2 % 8) {
	case 0:
		ibv_modify_qp(s->qp[r & 1], &err, IBV_QP_STATE);
		break;
	case 1:
		ibv_query_qp(s->qp[r & 1], &attr, IBV_QP_STATE, &init);
		break;
	case 2:
		ibv_resize_cq(ibv_cq_ex_to_cq(s->cq), 4096 + (int)(r % 4096));
		break;
	case 3:
		ibv_modify_srq(s->srq, &limit, IBV_SRQ_LIMIT);
		break;
	case 4:
		ibv_modify_cq(ibv_cq_ex_to_cq(s->cq), &mod);
		break;
	case 5: {
		struct ibv_mr *mr = ibv_reg_mr(pd, s->buf, MEM, ALL_ACCESS);

		assert_non_null(mr);
		if (r & 1)
			ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL,
				     0, IBV_ACCESS_LOCAL_WRITE);
		assert_int_equal(ibv_dereg_mr(mr), 0);
		break;
	}
	case 6: {
		struct ibv_qp_open_attr open = {
			.comp_mask = IBV_QP_OPEN_ATTR_NUM |
				     IBV_QP_OPEN_ATTR_XRCD |
				     IBV_QP_OPEN_ATTR_TYPE,
			.qp_num = s->qp[1]->qp_num,
			.xrcd = xrcd,
			.qp_type = IBV_QPT_XRC_RECV,
		};
		struct ibv_qp *qp = ibv_open_qp(ctx, &open);

		assert_true(!qp == (s->type != IBV_QPT_XRC_SEND));
		if (qp)
			assert_int_equal(ibv_destroy_qp(qp), 0);
		break;
	}
	case 7: {
		struct ibv_alloc_dm_attr a = { .length = 1 + r % 9000 };
		struct ibv_dm *dm = ibv_alloc_dm(ctx, &a);

		assert_non_null(dm);
		assert_int_equal(ibv_free_dm(dm), 0);
		break;
	}
	}
}

static void *work(void *arg)
{
	unsigned seed = (unsigned)(uintptr_t)arg;

	while (!stop) {
		unsigned r = (unsigned)rand_r(&seed);
		struct slot *s = &slots[r % PAIRS];

		r /= PAIRS;
		if (r % 1000 == 0) {
			pthread_rwlock_wrlock(&s->alive);
			slot_unmake(s);
			slot_make(s);
			pthread_rwlock_unlock(&s->alive);
			continue;
		}
		pthread_rwlock_rdlock(&s->alive);
		if (r % 400 < 3)
			reconnect(s);
		else if (r % 20 == 7)
			do_admin(s, r / 20);
		else if (r % 20 == 8)
			do_event(s);
		else if (r % 3 == 0)
			do_send(s, r / 3);
		else if (r % 3 == 1)
			do_recv(s, r / 3);
		else
			do_poll(s, r / 3);
		pthread_rwlock_unlock(&s->alive);
		done++;
	}
	return NULL;
}

/* Events are taken all the time, or destroying would wait for them. */
static void *events(void *arg)
{
	struct ibv_async_event ev;

	(void)arg;
	fcntl(ctx->async_fd, F_SETFL, O_NONBLOCK);
	while (!stop) {
		uint32_t num;

		if (readable(other_in, 0) &&
		    read(other_in, &num, sizeof(num)) == sizeof(num))
			other_srqn = num;
		if (!readable(ctx->async_fd, 10))
			continue;
		if (!ibv_get_async_event(ctx, &ev))
			ibv_ack_async_event(&ev);
	}
	return NULL;
}

static struct ibv_xrcd *open_domain(const char *path)
{
	struct ibv_xrcd_init_attr attr = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
		.fd = open(path, O_RDONLY),
		.oflags = O_CREAT,
	};
	struct ibv_xrcd *d = ibv_open_xrcd(ctx, &attr);

	assert_non_null(d);
	close(attr.fd);
	return d;
}

/* Tells the number of each SRQ that it makes, until in is closed, and then how
 * much it has received. */
static int other_process(const char *path, int in, int out)
{
	struct ibv_srq_init_attr_ex attr = {
		.attr = { .max_wr = SLOTS, .max_sge = 1 },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
			     IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
		.srq_type = IBV_SRQT_XRC,
	};
	unsigned long received = 0;
	struct ibv_recv_wr *bad;
	struct ibv_wc wc;
	uint8_t *mem;
	uint32_t num;

	alarm(120);
	setup(NULL);
	attr.pd = pd;
	attr.cq = ibv_create_cq(ctx, 2 * SLOTS, NULL, NULL, 0);
	attr.xrcd = open_domain(path);
	mem = calloc(1, 0x10000);
	while (!readable(in, 0)) {
		struct ibv_mr *mr = ibv_reg_mr(pd, mem, 0x10000, ALL_ACCESS);
		struct ibv_sge sge = { (uintptr_t)mem, 0x10000, mr->lkey };
		struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 };
		struct ibv_srq *srq = ibv_create_srq_ex(ctx, &attr);
		uint64_t end = now_ns() + SECOND / 20;

		if (!srq || ibv_get_srq_num(srq, &num) ||
		    write(out, &num, sizeof(num)) != sizeof(num))
			return 1;
		while (now_ns() < end) {
			if (ibv_poll_cq(attr.cq, 1, &wc) == 1)
				received += !wc.status;
			else
				sched_yield();
			ibv_post_srq_recv(srq, &wr, &bad);
		}
		if (ibv_destroy_srq(srq) || ibv_dereg_mr(mr))
			return 2;
		while (ibv_poll_cq(attr.cq, 1, &wc) == 1)
			received += !wc.status;
	}
	if (ibv_close_xrcd(attr.xrcd) || ibv_destroy_cq(attr.cq))
		return 3;
	teardown(NULL);
	free(mem);
	num = 0;
	return write(out, &num, sizeof(num)) != sizeof(num) ||
	       write(out, &received, sizeof(received)) != sizeof(received);
}

static void other_start(const char *path)
{
	int to[2], from[2];

	assert_int_equal(pipe2(to, O_CLOEXEC), 0);
	assert_int_equal(pipe2(from, O_CLOEXEC), 0);
	other_pid = fork_child();
	assert_true(other_pid >= 0);
	if (!other_pid) {
		char in[12], out[12];

		snprintf(in, sizeof(in), "%d", dup(to[0]));
		snprintf(out, sizeof(out), "%d", dup(from[1]));
		/* A program of its own, as sanitizers want it. */
		execl("/proc/self/exe", "other", path, in, out, NULL);
		_exit(9);
	}
	close(to[0]);
	close(from[1]);
	other_out = to[1];
	other_in = from[0];
}

static void other_end(void)
{
	uint32_t num;
	int status;

	close(other_out);
	do
		assert_int_equal(read(other_in, &num, sizeof(num)),
				 sizeof(num));
	while (num);
	assert_int_equal(
		read(other_in, &other_received, sizeof(other_received)),
		sizeof(other_received));
	close(other_in);
	assert_int_equal(waitpid(other_pid, &status, 0), other_pid);
	assert_int_equal(status, 0);
}

static void everything(void **state)
{
	static const enum ibv_qp_type types[PAIRS] = {
		IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_SEND, IBV_QPT_RC
	};
	char path[] = "/tmp/softhca-stress-XXXXXX";
	int fd = mkstemp(path);
	pthread_t thread[THREADS + 1];
	uint64_t end;
	int i;

	(void)state;
	assert_true(fd >= 0);
	close(fd);
	xrcd = open_domain(path);
	other_start(path);
	for (i = 0; i < PAIRS; i++) {
		pthread_rwlock_init(&slots[i].alive, NULL);
		slots[i].type = types[i];
		slot_make(&slots[i]);
	}
	for (i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, work,
						(void *)(uintptr_t)(i + 1)),
				 0);
	assert_int_equal(pthread_create(&thread[i], NULL, events, NULL), 0);
	end = now_ns() + 4 * SECOND;
	while (now_ns() < end)
		usleep(20000);
	stop = true;
	for (i = 0; i <= THREADS; i++)
		assert_int_equal(pthread_join(thread[i], NULL), 0);
	for (i = 0; i < PAIRS; i++)
		slot_unmake(&slots[i]);
	assert_int_equal(ibv_close_xrcd(xrcd), 0);
	other_end();
	unlink(path);
	print_message("%lu calls, %lu completions, %lu elsewhere\n", done,
		      completed, other_received);
	/* It did do something. */
	assert_true(done > 1000 && completed > 100);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(everything, setup, teardown),
	};

	if (argc == 4)
		return other_process(argv[1], atoi(argv[2]), atoi(argv[3]));
	alarm(120);
	return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * test_races.c - objects that come and go while others use them
 */
#include "verbs/verbs.h"

#include "pair.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>

/* Numbers are unique, and come back late. */
static void many_qps(void **state)
{
	enum { N = 5000 };
	static struct ibv_qp *qp[N];
	static uint8_t seen[1 << 21];
	struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC,
					 .send_cq = cq,
					 .recv_cq = cq,
					 .cap = { 1, 1, 1, 1, 0 } };
	uint32_t last = 0;
	int i;

	(void)state;
	for (i = 0; i < N; i++) {
		qp[i] = ibv_create_qp(pd, &init);
		assert_non_null(qp[i]);
		assert_true(qp[i]->qp_num > 1 && qp[i]->qp_num < 0xffffff);
		assert_false(seen[qp[i]->qp_num / 8] >> qp[i]->qp_num % 8 & 1);
		seen[qp[i]->qp_num / 8] |= (uint8_t)(1 << qp[i]->qp_num % 8);
	}
	for (i = 0; i < N; i++)
		assert_int_equal(ibv_destroy_qp(qp[i]), 0);
	for (i = 0; i < 1000; i++) {
		qp[0] = ibv_create_qp(pd, &init);
		assert_non_null(qp[0]);
		assert_int_not_equal(qp[0]->qp_num, last);
		last = qp[0]->qp_num;
		assert_int_equal(ibv_destroy_qp(qp[0]), 0);
	}
	assert_int_equal(ibv_destroy_cq(cq), 0);
}

static int count_fds(void)
{
	char name[32];
	int n = 0;

	/* Opening none: TSan does not see when the library closes one. */
	for (int fd = 0; fd < 1 << 16; fd++) {
		snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
		n += !access(name, F_OK);
	}
	return n;
}

/*
 * What is left of connections that are gone keeps their socket, for some
 * seconds; so do more of them than are remembered.
 */
static void gone_connections_let_go(void **state)
{
	uint64_t end = now_ns() + 30 * SECOND;
	struct end a, b;
	int i, fds = 0;

	(void)state;
	end_init(&a, IBV_QPT_RC, NULL);
	end_init(&b, IBV_QPT_RC, NULL);
	for (i = 0; i < 300; i++) {
		struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE };
		struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC,
						 .cap = { 1, 1, 1, 1, 0 } };
		struct ibv_wc wc;

		if (i) {
			init.send_cq = init.recv_cq = a.cq;
			a.qp = ibv_create_qp(pd, &init);
			init.send_cq = init.recv_cq = b.cq;
			b.qp = ibv_create_qp(pd, &init);
			assert_true(a.qp && b.qp);
		}
		connect_to(a.qp, b.qp->qp_num);
		connect_to(b.qp, a.qp->qp_num);
		wr.wr.rdma.remote_addr = (uintptr_t)b.buf;
		wr.wr.rdma.rkey = b.mr->rkey;
		assert_int_equal(try_send(&a, &wr, 0, 8), 0);
		wc = wait_wc(a.cq);
		expect_wc(&wc, 0, IBV_WC_SUCCESS);
		if (!i)
			fds = count_fds();
		assert_int_equal(ibv_destroy_qp(a.qp), 0);
		assert_int_equal(ibv_destroy_qp(b.qp), 0);
	}
	for (; count_fds() >= fds; usleep(10000))
		assert_true(now_ns() < end);
	a.qp = b.qp = NULL;
	end_fini(&a);
	end_fini(&b);
}

struct worker {
	struct end a, b;
	pthread_t thread;
	unsigned rounds;
};

static void *work(void *arg)
{
	struct worker *w = arg;
	uint64_t end = now_ns() + 20 * SECOND;
	unsigned i;

	for (i = 0; i < 300; i++) {
		struct ibv_send_wr wr = { .wr_id = i, .opcode = IBV_WR_SEND };
		struct ibv_sge sge = sge_of(&w->a, 0, 3000);
		struct ibv_send_wr *bad;
		struct ibv_recv_wr rwr = { .wr_id = i, .num_sge = 1 }, *rbad;
		struct ibv_sge rsge = sge_of(&w->b, 0, 4000);
		struct ibv_wc wc;
		int got = 0;

		rwr.sg_list = &rsge;
		wr.sg_list = &sge;
		wr.num_sge = 1;
		wr.send_flags = IBV_SEND_SIGNALED;
		fill(w->a.buf, 3000, i);
		if (ibv_post_recv(w->b.qp, &rwr, &rbad) ||
		    ibv_post_send(w->a.qp, &wr, &bad))
			return NULL;
		while (got < 2) {
			struct ibv_cq *cq = got ? w->a.cq : w->b.cq;
			int n = ibv_poll_cq(cq, 1, &wc);

			if (n < 0 || (n && wc.status) || now_ns() > end)
				return NULL;
			got += n;
		}
		if (memcmp(w->a.buf, w->b.buf, 3000))
			return NULL;
		w->rounds++;
	}
	return NULL;
}

static void threads(void **state)
{
	struct worker w[4] = { 0 };
	int i;

	(void)state;
	for (i = 0; i < 4; i++)
		pair_init(&w[i].a, &w[i].b, IBV_QPT_RC);
	for (i = 0; i < 4; i++)
		assert_int_equal(
			pthread_create(&w[i].thread, NULL, work, &w[i]), 0);
	for (i = 0; i < 4; i++)
		pthread_join(w[i].thread, NULL);
	for (i = 0; i < 4; i++) {
		assert_int_equal(w[i].rounds, 300);
		end_fini(&w[i].a);
		end_fini(&w[i].b);
	}
}

/*
 * Queue pairs and regions go while peers send to them and others poll: nothing
 * may be touched afterwards, and nobody else may notice.
 */
static void *fire(void *arg)
{
	struct worker *w = arg;
	uint64_t end = now_ns() + 20 * SECOND;

	for (unsigned i = 0; i < 60 && now_ns() < end; i++) {
		struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE };
		struct ibv_wc wc[4];
		int k, n;

		pair_init(&w->a, &w->b, IBV_QPT_RC);
		wr.wr.rdma.remote_addr = (uintptr_t)w->b.buf;
		wr.wr.rdma.rkey = w->b.mr->rkey;
		for (k = 0; k < 8; k++)
			if (try_send(&w->a, &wr, 0, 20000))
				return NULL;
		for (k = 0; k < (int)(i % 8); k++) {
			n = ibv_poll_cq(w->a.cq, 4, wc);
			if (n < 0 || (n && wc[0].status))
				return NULL;
		}
		/* Some go with packets to them in flight, some regions too. */
		if (i & 1)
			end_fini(&w->b);
		end_fini(&w->a);
		if (!(i & 1))
			end_fini(&w->b);
		w->rounds++;
	}
	return NULL;
}

static void destroyed_under_fire(void **state)
{
	struct worker w[3] = { 0 };
	int i;

	(void)state;
	for (i = 0; i < 3; i++)
		assert_int_equal(
			pthread_create(&w[i].thread, NULL, fire, &w[i]), 0);
	for (i = 0; i < 3; i++)
		pthread_join(w[i].thread, NULL);
	for (i = 0; i < 3; i++)
		assert_int_equal(w[i].rounds, 60);
}

/* Until the receive side has something for a QP whose lock it found taken. */
static void wait_backlog(struct ibv_qp *locked, struct ibv_cq *other)
{
	uint64_t end = now_ns() + 10 * SECOND;
	struct ibv_wc wc;

	while (!atomic_load(&to_qp(locked)->sched.backlog)) {
		assert_true(now_ns() < end);
		ibv_poll_cq(other, 1, &wc);
	}
}

/*
 * A thread that has unlocked a QP, but not yet seen what was left behind for
 * it, is overtaken by one that ends the QP: an ACK that came before counts.
 */
static void ack_left_behind_counts(void **state)
{
	struct ibv_qp_attr err = { .qp_state = IBV_QPS_ERR };
	struct ibv_send_wr wr = { .wr_id = 1, .opcode = IBV_WR_SEND };
	struct end a, b;
	struct ibv_wc wc;

	(void)state;
	pair_init(&a, &b, IBV_QPT_RC);
	post_recv(&b, 2, 0, 64);
	shca_qp_lock(to_qp(b.qp));
	assert_int_equal(try_send(&a, &wr, 0, 64), 0);
	shca_qp_lock(to_qp(a.qp));
	shca_qp_unlock(to_qp(b.qp));
	wait_backlog(a.qp, b.cq);
	engine_qp_release(&to_qp(a.qp)->sched);
	assert_int_equal(ibv_modify_qp(a.qp, &err, IBV_QP_STATE), 0);
	wc = wait_wc(a.cq);
	expect_wc(&wc, 1, IBV_WC_SUCCESS);
	end_fini(&a);
	end_fini(&b);
}

/* And so does a request: it is acknowledged, though its QP goes. */
static void request_left_behind_is_acknowledged(void **state)
{
	struct ibv_send_wr wr = { .wr_id = 1, .opcode = IBV_WR_SEND };
	struct end a, b;
	struct ibv_wc wc;

	(void)state;
	pair_init(&a, &b, IBV_QPT_RC);
	post_recv(&b, 2, 0, 64);
	shca_qp_lock(to_qp(b.qp));
	assert_int_equal(try_send(&a, &wr, 0, 64), 0);
	wait_backlog(b.qp, a.cq);
	engine_qp_release(&to_qp(b.qp)->sched);
	assert_int_equal(ibv_destroy_qp(b.qp), 0);
	b.qp = NULL;
	wc = wait_wc(a.cq);
	expect_wc(&wc, 1, IBV_WC_SUCCESS);
	end_fini(&a);
	end_fini(&b);
}

/*
 * A request that was left to the holder of a QP, who waits for a processor, is
 * not lost: its time-out does not count, nor do those of its repetitions.
 */
static void request_left_behind_is_waited_for(void **state)
{
	struct ibv_send_wr wr = { .wr_id = 1, .opcode = IBV_WR_SEND };
	struct ibv_qp_attr rtr;
	struct end end[2], *a = &end[0], *b = &end[1];
	struct ibv_wc wc;
	uint64_t until;

	(void)state;
	for (int i = 0; i < 2; i++)
		end_init(&end[i], IBV_QPT_RC, NULL);
	for (int i = 0; i < 2; i++) {
		rtr = rtr_attr(end[!i].qp->qp_num);
		assert_int_equal(to_init(end[i].qp, 0), 0);
		assert_int_equal(
			ibv_modify_qp(end[i].qp, &rtr, rtr_mask(IBV_QPT_RC)),
			0);
		assert_int_equal(to_rts(end[i].qp, 1), 0); /* 34 ms in all */
	}
	post_recv(b, 2, 0, 64);
	shca_qp_lock(to_qp(b->qp));
	assert_int_equal(try_send(a, &wr, 0, 64), 0);
	wait_backlog(b->qp, a->cq);
	for (until = now_ns() + SECOND / 3; now_ns() < until;)
		assert_int_equal(ibv_poll_cq(a->cq, 1, &wc), 0);
	shca_qp_unlock(to_qp(b->qp));
	wc = wait_wc(a->cq);
	expect_wc(&wc, 1, IBV_WC_SUCCESS);
	wc = wait_wc(b->cq);
	expect_wc(&wc, 2, IBV_WC_SUCCESS);
	end_fini(a);
	end_fini(b);
}

static struct ibv_qp *watched;
static volatile sig_atomic_t events, taken;

static void look_at_lock(int sig)
{
	struct engine_qp *qp = &to_qp(watched)->sched;

	(void)sig;
	events++;
	if (engine_qp_seize(qp))
		engine_qp_release(qp);
	else
		taken++;
}

/* From now on who writes to fd interrupts this thread. */
static int interrupt_by(int fd)
{
	struct f_owner_ex me = { F_OWNER_TID, gettid() };
	int s[2];

	signal(SIGIO, look_at_lock);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, s), 0);
	assert_int_equal(dup2(s[1], fd), fd);
	close(s[1]);
	assert_int_equal(fcntl(s[0], F_SETOWN_EX, &me), 0);
	assert_int_equal(fcntl(s[0], F_SETFL, O_ASYNC), 0);
	return s[0];
}

/*
 * A program that an event wakes posts at once, perhaps on the CPU of the thread
 * that has raised it: that has let go of the QP before.
 */
static void whom_an_event_wakes_finds_the_qp_free(void **state)
{
	enum { N = 100 };
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND };
	struct ibv_cq *got;
	struct end a, b;
	struct ibv_wc wc;
	uint64_t token;
	void *context;
	int fd;

	(void)state;
	pair_init(&a, &b, IBV_QPT_RC);
	watched = b.qp;
	events = taken = 0;
	fd = interrupt_by(b.ch->fd);
	for (int i = 0; i < N; i++) {
		post_recv(&b, 0, 0, 64);
		assert_int_equal(ibv_req_notify_cq(b.cq, 0), 0);
		assert_int_equal(try_send(&a, &wr, 0, 64), 0);
		wc = wait_wc(a.cq);
		expect_wc(&wc, 0, IBV_WC_SUCCESS);
		assert_int_equal(read(fd, &token, sizeof(token)),
				 sizeof(token));
		assert_int_equal(write(fd, &token, sizeof(token)),
				 sizeof(token));
		assert_int_equal(ibv_get_cq_event(b.ch, &got, &context), 0);
		assert_ptr_equal(got, b.cq);
		wc = wait_wc(b.cq);
		expect_wc(&wc, 0, IBV_WC_SUCCESS);
	}
	signal(SIGIO, SIG_DFL);
	close(fd);
	ibv_ack_cq_events(b.cq, N);
	/* The thread may have written, and be on the way to the signal, or have
	 * the lock for another packet. */
	assert_in_range(events, N / 2, N);
	assert_in_range(taken, 0, N / 4);
	end_fini(&a);
	end_fini(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(ack_left_behind_counts),
		TEST(request_left_behind_is_acknowledged),
		TEST(request_left_behind_is_waited_for),
		TEST(whom_an_event_wakes_finds_the_qp_free),
		TEST(many_qps),
		TEST(gone_connections_let_go),
		TEST(threads),
		TEST(destroyed_under_fire),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

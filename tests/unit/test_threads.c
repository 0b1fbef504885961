/*
 * test_threads.c - threads that end, forks, and the thread of the library
 *
 * The program has more thread-local storage than the stack of a small thread,
 * as programs with large runtimes do: every thread's stack begins with it.
 */
#include "verbs/verbs.h"

#include "engine/idle_link.h"

#include "pair.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <rdma/rdma_cma.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define CANCELLED 200

#ifdef __SANITIZE_ADDRESS__
/* ASan calls sigaltstack() where a thread ends, from frames that it takes for
 * those which the cancelled thread was in. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
	return "use_sigaltstack=0";
}
#endif

static _Thread_local volatile char storage[1 << 20];

/* What the thread that is about to be cancelled has got to. */
static const char *_Atomic at = "";
static struct end a, b;
static struct rdma_event_channel *events; /* of verbs() */

static void data_path(void)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND };
	struct ibv_wc wc;
	int i, n = 0;

	at = "ibv_post_recv";
	post_recv(&b, 1, 0, 64);
	at = "ibv_req_notify_cq";
	assert_int_equal(ibv_req_notify_cq(b.cq, 0), 0);
	at = "ibv_post_send";
	assert_int_equal(try_send(&a, &wr, 0, 64), 0);
	at = "ibv_poll_cq";
	for (i = 0; i < 100 || n < 1; i++)
		n += ibv_poll_cq(b.cq, 1, &wc);
	while (!ibv_poll_cq(a.cq, 1, &wc))
		;
}

static void *verbs(void *arg)
{
	struct sockaddr_in sin = { .sin_family = AF_INET };
	struct rdma_cm_id *id;
	struct ibv_cq *cq;
	void *cq_arg;

	storage[0] = 1;
	pthread_cancel(pthread_self());
	at = "ibv_open_device";
	setup(NULL);
	at = "making objects";
	pair_init(&a, &b, IBV_QPT_RC);
	data_path();
	at = "rdma_create_id";
	events = rdma_create_event_channel();
	assert_non_null(events);
	assert_int_equal(rdma_create_id(events, &id, NULL, RDMA_PS_TCP), 0);
	at = "rdma_bind_addr";
	assert_int_equal(rdma_bind_addr(id, (struct sockaddr *)&sin), 0);
	at = "rdma_listen";
	assert_int_equal(rdma_listen(id, 1), 0);
	at = "rdma_destroy_id";
	assert_int_equal(rdma_destroy_id(id), 0);
	at = "ibv_get_cq_event";
	ibv_get_cq_event(b.ch, &cq, &cq_arg);
	return arg;
}

static void *verbs_to_the_end(void *arg)
{
	pthread_cancel(pthread_self());
	at = "destroying objects";
	end_fini(&a);
	end_fini(&b);
	at = "ibv_close_device";
	teardown(NULL);
	at = "end";
	return arg;
}

/*
 * A thread that has been cancelled ends where it waits for an event, and
 * nowhere else: it may have any lock of the library.
 */
static void no_cancellation_points(void **state)
{
	pthread_t thread;

	(void)state;
	assert_int_equal(pthread_create(&thread, NULL, verbs, NULL), 0);
	assert_ptr_equal(join(thread), PTHREAD_CANCELED);
	assert_string_equal((const char *)at, "ibv_get_cq_event");
	assert_int_equal(pthread_create(&thread, NULL, verbs_to_the_end, NULL),
			 0);
	assert_null(join(thread));
	assert_string_equal((const char *)at, "end");
	rdma_destroy_event_channel(events);
}

static void *busy(void *started)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE };
	struct ibv_wc wc;

	wr.wr.rdma.remote_addr = (uintptr_t)b.buf;
	wr.wr.rdma.rkey = b.mr->rkey;
	for (;;) {
		try_send(&a, &wr, 0, 1024);
		ibv_poll_cq(a.cq, 1, &wc);
		atomic_store((_Atomic bool *)started, true);
		pthread_testcancel();
	}
	return NULL;
}

/* Whenever it was cancelled, others go on. */
static void cancelled_while_busy(void **state)
{
	_Atomic bool started;
	struct ibv_wc wc;
	int i;

	(void)state;
	pair_init(&a, &b, IBV_QPT_RC);
	for (i = 0; i < CANCELLED; i++) {
		pthread_t thread;

		started = false;
		assert_int_equal(
			pthread_create(&thread, NULL, busy, (void *)&started),
			0);
		while (!started)
			;
		pthread_cancel(thread);
		assert_ptr_equal(join(thread), PTHREAD_CANCELED);
	}
	while (ibv_poll_cq(a.cq, 1, &wc))
		;
	data_path();
	end_fini(&a);
	end_fini(&b);
}

/* Descriptors that the library's thread is woken by. */
static unsigned watched(void)
{
	char path[64], line[256];
	unsigned n = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d",
		 to_ctx(ctx)->engine->epoll_fd);
	f = fopen(path, "re");
	assert_non_null(f);
	while (fgets(line, sizeof(line), f))
		n += !strncmp(line, "tfd:", 4);
	fclose(f);
	return n;
}

/*
 * A child has a copy of every descriptor. The timer of a CQ that is gone, which
 * the copy keeps alive, wakes nobody any more.
 */
static void timer_after_fork(void **state)
{
	struct ibv_modify_cq_attr attr = {
		.attr_mask = IBV_CQ_ATTR_MODERATE,
		.moderate = { .cq_count = 100, .cq_period = 1 },
	};
	unsigned before = watched();
	int fds[2], status;
	struct ibv_cq *cq;
	pid_t pid;

	(void)state;
	cq = ibv_create_cq(ctx, 8, NULL, NULL, 0);
	assert_non_null(cq);
	assert_int_equal(ibv_modify_cq(cq, &attr), 0);
	assert_int_equal(watched(), before + 1);
	assert_int_equal(pipe(fds), 0);
	pid = fork_child();
	assert_true(pid >= 0);
	if (!pid) {
		char c;

		close(fds[1]);
		_exit(read(fds[0], &c, 1) != 0);
	}
	assert_int_equal(ibv_destroy_cq(cq), 0);
	assert_int_equal(watched(), before);
	close(fds[0]);
	close(fds[1]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

/* The calling thread makes two system calls no more: they do what is said. */
static int forbid(uint32_t first, uint32_t second, uint32_t what)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
			 offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, first, 1, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, second, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, what),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = { sizeof(code) / sizeof(*code), code };

	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	       prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog);
}

/* As at the limit of processes: the errno is right, and a sentence says why. */
static void no_thread(void **state)
{
	char text[2048] = "";
	size_t len = 0;
	ssize_t n;
	int fds[2], status;
	pid_t pid;

	(void)state;
#ifdef __SANITIZE_THREAD__
	skip(); /* it forbids threads in a child of threads */
#endif
	assert_int_equal(pipe(fds), 0);
	pid = fork_child();
	assert_true(pid >= 0);
	if (!pid) {
		int err;

		alarm(20);
		dup2(fds[1], STDERR_FILENO);
		if (forbid(SYS_clone, SYS_clone3, SECCOMP_RET_ERRNO | EAGAIN))
			_exit(77);
		setup(NULL);
		end_init(&a, IBV_QPT_RC, NULL);
		err = to_init(a.qp, 0);
		_exit(err == EAGAIN ? 0 : 1);
	}
	close(fds[1]);
	while (len < sizeof(text) - 1 &&
	       (n = read(fds[0], text + len, sizeof(text) - 1 - len)) > 0)
		len += (size_t)n;
	close(fds[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	if (WEXITSTATUS(status) == 77)
		skip(); /* no seccomp here */
	assert_int_equal(WEXITSTATUS(status), 0);
	assert_non_null(strstr(text, "softhca: "));
	assert_non_null(strstr(text, "thread"));
	assert_non_null(strstr(text, "ulimit -u"));
}

static void poll_often(unsigned n)
{
	struct ibv_wc wc;

	while (n--)
		assert_int_equal(ibv_poll_cq(a.cq, 1, &wc), 0);
}

/* Where all goes by shared memory, a program that polls does not ask UDP. */
static void polls_ask_nobody(void **state)
{
	int status, i;
	pid_t pid;

	(void)state;
	pid = fork_child();
	assert_true(pid >= 0);
	if (!pid) {
		/* Where others compute, each of these polls may let them. */
		alarm(60);
		setup(NULL);
		pair_init(&a, &b, IBV_QPT_RC);
		if (!to_ctx(ctx)->engine->choice)
			_exit(77);
		data_path();
		poll_often(2 * IDLE_LINK_POLLS);
		if (forbid(SYS_epoll_pwait, SYS_recvmmsg,
			   SECCOMP_RET_KILL_PROCESS))
			_exit(77);
		for (i = 0; i < 20; i++) {
			poll_often(100);
			data_path();
		}
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		skip(); /* no seccomp here, or no shared memory */
	assert_int_equal(status, 0);
}

/* Somebody who waits for the lock of a QP, without a thread. */
static void waits(struct ibv_qp *qp, bool yes)
{
	uint32_t one = ENGINE_QP_WAITER;

	atomic_fetch_add(&to_qp(qp)->sched.lock, yes ? one : -one);
}

static uint32_t completions(struct ibv_cq *cq)
{
	return atomic_load(&to_cq(cq)->tail) - atomic_load(&to_cq(cq)->head);
}

/*
 * Who receives many packets for a QP lets go of it after the one at hand when
 * somebody waits, and leaves the others to him.
 */
static void waiter_comes_first(void **state)
{
	struct ibv_send_wr wr[8], *bad;
	struct ibv_sge sge;
	struct shca_qp *qp;
	int i, n = 8;

	(void)state;
	pair_init(&a, &b, IBV_QPT_RC);
	qp = to_qp(b.qp);
	sge = sge_of(&a, 0, 64);
	for (i = 0; i < n; i++) {
		post_recv(&b, (uint64_t)i, 0, 64);
		wr[i] = (struct ibv_send_wr){
			.sg_list = &sge,
			.num_sge = 1,
			.opcode = IBV_WR_SEND,
			.next = i + 1 < n ? &wr[i + 1] : NULL,
		};
	}
	/* The library's thread is held with the first packet: it sleeps there. */
	lock_take(&to_cq(b.cq)->lock);
	assert_int_equal(ibv_post_send(a.qp, wr, &bad), 0);
	for (uint64_t end = now_ns() + 10 * SECOND;
	     atomic_load(&to_cq(b.cq)->lock.word) != 2;) {
		assert_true(now_ns() < end);
		sched_yield();
	}
	waits(b.qp, true);
	lock_drop(&to_cq(b.cq)->lock);
	for (uint64_t end = now_ns() + 10 * SECOND;
	     atomic_load(&qp->sched.nbacklog) < 7u;) {
		assert_true(now_ns() < end);
		assert_true(completions(b.cq) <= 1);
		sched_yield();
	}
	assert_int_equal(completions(b.cq), 1);
	/* His turn. */
	shca_qp_lock(qp);
	waits(b.qp, false);
	shca_qp_unlock(qp);
	assert_int_equal(completions(b.cq), n);
	end_fini(&a);
	end_fini(&b);
}

static _Atomic bool unlocked;

/* Leaves something behind all the time, as a receiver of a flood does. */
static void *leaver(void *arg)
{
	uint64_t end = now_ns() + 10 * SECOND;
	struct shca_qp *qp = arg;

	while (!unlocked && now_ns() < end)
		for (int i = 0; i < 1000; i++)
			engine_qp_later(&qp->sched);
	if (shca_qp_trylock(qp))
		shca_qp_unlock(qp);
	return unlocked ? NULL : qp;
}

/* Whoever has had the lock does not do the work of others for ever. */
static void unlocking_ends(void **state)
{
	struct shca_qp *qp;
	pthread_t thread;

	(void)state;
	pair_init(&a, &b, IBV_QPT_RC);
	qp = to_qp(b.qp);
	unlocked = false;
	assert_int_equal(pthread_create(&thread, NULL, leaver, qp), 0);
	for (int i = 0; i < 100; i++) {
		shca_qp_lock(qp);
		shca_qp_unlock(qp);
	}
	unlocked = true;
	assert_null(join(thread));
	/* Somebody has done it all the same. */
	for (uint64_t end = now_ns() + 10 * SECOND;
	     atomic_load(&qp->sched.lock) & ENGINE_QP_PENDING;) {
		assert_true(now_ns() < end);
		sched_yield();
	}
	end_fini(&a);
	end_fini(&b);
}

static void *poll_once(void *cq)
{
	struct ibv_wc wc;

	ibv_poll_cq(cq, 1, &wc);
	return NULL;
}

/* Of many threads that find a timer due one runs it, and none waits. */
static void due_timers_need_one(void **state)
{
	struct engine *e = to_ctx(ctx)->engine;
	struct ibv_cq *cq = ibv_create_cq(ctx, 8, NULL, NULL, 0);
	pthread_t thread;
	uint64_t due;

	(void)state;
	assert_non_null(cq);
	pthread_mutex_lock(&e->timer_lock);
	due = atomic_exchange(&e->heap_due, 0);
	assert_int_equal(pthread_create(&thread, NULL, poll_once, cq), 0);
	assert_null(join(thread));
	atomic_store(&e->heap_due, due);
	pthread_mutex_unlock(&e->timer_lock);
	assert_int_equal(ibv_destroy_cq(cq), 0);
}

static void *set_alarm(void *arg)
{
	struct engine *e = arg;

	engine_alarm_set(e, &to_process(e)->timewait.alarm, UINT64_MAX - 1);
	engine_alarm_set(e, &to_process(e)->timewait.alarm, UINT64_MAX);
	return NULL;
}

/* exit() says goodbye to peers, and may have interrupted a lock's holder. */
static void alarms_wait_for_no_lock(void **state)
{
	struct engine *e = to_ctx(ctx)->engine;
	pthread_t thread;

	(void)state;
	pthread_mutex_lock(&e->timer_lock);
	assert_int_equal(pthread_create(&thread, NULL, set_alarm, e), 0);
	assert_null(join(thread));
	pthread_mutex_unlock(&e->timer_lock);
}

/* A link that somebody could take is not one that has been busy for long. */
static void busy_means_all_the_time(void **state)
{
	struct engine *e = to_ctx(ctx)->engine;
	struct ibv_cq *cq = ibv_create_cq(ctx, 8, NULL, NULL, 0);
	uint64_t end = now_ns() + 10 * SECOND;

	(void)state;
	assert_non_null(cq);
	atomic_store(&e->poller.blocked, 1);
	/* The thread may be at it just then. */
	do
		poll_once(cq);
	while (atomic_load(&e->poller.blocked) && now_ns() < end);
	assert_int_equal(atomic_load(&e->poller.blocked), 0);
	assert_int_equal(ibv_destroy_cq(cq), 0);
}

/* One that finds the lock taken, and so leaves its work behind. */
static void *comes_by(void *arg)
{
	return engine_qp_trylock(arg) ? arg : NULL;
}

static _Atomic(struct engine_qp *) looked_at;

static void look(struct engine_qp *qp, void *arg)
{
	pthread_t thread;

	if (qp != arg)
		return;
	assert_int_equal(pthread_create(&thread, NULL, comes_by, qp), 0);
	assert_null(join(thread));
	looked_at = qp;
}

/* What is left behind while a QP is only looked at is done all the same. */
static void looking_leaves_nothing_undone(void **state)
{
	uint64_t end = now_ns() + 10 * SECOND;
	struct engine_qp *qp;

	(void)state;
	pair_init(&a, &b, IBV_QPT_RC);
	data_path(); /* which has made room for timers */
	looked_at = NULL;
	qp = &to_qp(b.qp)->sched;
	while (!looked_at) {
		engine_qps_look(qp->engine, look, qp);
		assert_true(now_ns() < end);
	}
	while (atomic_load(&qp->lock) & ENGINE_QP_PENDING) {
		assert_true(now_ns() < end);
		sched_yield();
	}
	end_fini(&a);
	end_fini(&b);
}

/* An argument is the name of the one test to run. */
int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_thread),
		cmocka_unit_test(polls_ask_nobody),
		cmocka_unit_test(no_cancellation_points),
		TEST(cancelled_while_busy),
		TEST(timer_after_fork),
		TEST(waiter_comes_first),
		TEST(unlocking_ends),
		TEST(looking_leaves_nothing_undone),
		TEST(due_timers_need_one),
		TEST(alarms_wait_for_no_lock),
		TEST(busy_means_all_the_time),
	};

	if (argc == 2)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}

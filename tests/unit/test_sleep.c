/*
 * test_sleep.c - threads that wait in ibv_get_cq_event(), and what ends that
 *
 * To the program it is a read(2) of the channel's descriptor. shca_wait() is
 * the same as a poll(2) of any descriptor. Each test runs with the links that
 * the environment allows.
 */
#include "process/process.h"
#include "verbs/verbs.h"

#include "pair.h"

#include <signal.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/syscall.h>

#define ROUNDS 300

/* A thread that waits on a channel for so many events, and what it got. */
struct waiter {
	struct ibv_comp_channel *ch;
	unsigned rounds;
	struct end *answers; /* sends something back with each, or NULL */
	_Atomic pid_t tid;
	_Atomic unsigned events; /* so far */
	_Atomic int err; /* errno of the call that failed */
	struct ibv_cq *cq; /* of the last one */
	pthread_t thread;
};

static struct end a, b;
static _Atomic unsigned handled;
static sigjmp_buf jump;

static void take(struct end *e)
{
	struct ibv_wc wc[8];

	assert_int_equal(ibv_req_notify_cq(e->cq, 0), 0);
	while (ibv_poll_cq(e->cq, 8, wc) > 0)
		;
}

/* Arms a CQ and empties it. */
static void drain(struct ibv_cq *cq)
{
	struct ibv_wc wc;

	assert_int_equal(ibv_req_notify_cq(cq, 0), 0);
	while (ibv_poll_cq(cq, 1, &wc) > 0)
		;
}

static void *wait_events(void *arg)
{
	struct waiter *w = arg;
	void *context;

	atomic_store(&w->tid, (pid_t)syscall(SYS_gettid));
	while (w->rounds--) {
		if (ibv_get_cq_event(w->ch, &w->cq, &context)) {
			atomic_store(&w->err, errno);
			break;
		}
		ibv_ack_cq_events(w->cq, 1);
		take(context);
		atomic_fetch_add(&w->events, 1);
	}
	return w;
}

/* Whether a thread sleeps in a system call in which one waits for an event. */
static bool is_asleep(pid_t tid)
{
	char path[64], text[256] = "";
	FILE *f;
	long nr;

	snprintf(path, sizeof(path), "/proc/self/task/%d/syscall", tid);
	f = fopen(path, "re");
	if (!f || !fgets(text, sizeof(text), f))
		text[0] = 0;
	if (f)
		fclose(f);
	/* "running", or the number of the call. */
	nr = text[0] >= '0' && text[0] <= '9' ? strtol(text, NULL, 10) : -1;
	return nr == SYS_ppoll || nr == SYS_futex || nr == SYS_read;
}

static void wait_asleep(struct waiter *w)
{
	uint64_t end = now_ns() + 10 * SECOND;

	while (!atomic_load(&w->tid) || !is_asleep(atomic_load(&w->tid))) {
		assert_true(now_ns() < end);
		sched_yield();
	}
}

static void wait_events_of(struct waiter *w, unsigned n)
{
	uint64_t end = now_ns() + 10 * SECOND;

	while (atomic_load(&w->events) < n) {
		assert_int_equal(atomic_load(&w->err), 0);
		assert_true(now_ns() < end);
		sched_yield();
	}
}

static void start(struct waiter *w, struct ibv_comp_channel *ch, unsigned n)
{
	*w = (struct waiter){ .ch = ch, .rounds = n };
	assert_int_equal(pthread_create(&w->thread, NULL, wait_events, w), 0);
}

static void send_one(struct end *from, struct end *to)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND };

	post_recv(to, 1, 0, 64);
	assert_int_equal(try_send(from, &wr, 0, 64), 0);
}

/* Two ends whose CQs are armed. */
static void begin(void)
{
	pair_init(&a, &b, IBV_QPT_RC);
	assert_int_equal(ibv_req_notify_cq(a.cq, 0), 0);
	assert_int_equal(ibv_req_notify_cq(b.cq, 0), 0);
}

static void end(void)
{
	end_fini(&a);
	end_fini(&b);
}

/* Events come one after the other, and none is left. */
static void events_come(void **state)
{
	struct waiter w;
	unsigned i;

	(void)state;
	begin();
	start(&w, b.ch, ROUNDS);
	for (i = 1; i <= ROUNDS; i++) {
		if (i % 3)
			wait_asleep(&w);
		send_one(&a, &b);
		wait_events_of(&w, i);
		if (!(i % (DEPTH / 2)))
			take(&a);
	}
	assert_ptr_equal(join(w.thread), &w);
	assert_false(readable(b.ch->fd, 0));
	end();
}

/* Both ends wait, so nobody polls but who waits. */
static void both_wait(void **state)
{
	struct waiter w[2];
	unsigned i;

	(void)state;
	begin();
	start(&w[0], a.ch, ROUNDS);
	start(&w[1], b.ch, ROUNDS);
	for (i = 1; i <= ROUNDS; i++) {
		if (i % 3)
			wait_asleep(&w[i & 1]);
		/* Either end gets one: of the send, or of the receive. */
		send_one(&a, &b);
		wait_events_of(&w[0], i);
		wait_events_of(&w[1], i);
	}
	assert_ptr_equal(join(w[0].thread), &w[0]);
	assert_ptr_equal(join(w[1].thread), &w[1]);
	end();
}

/* Several threads wait for the events of one channel: each gets some. */
static void many_on_one_channel(void **state)
{
	struct waiter w[3];
	unsigned i, sum = 0;

	(void)state;
	begin();
	for (i = 0; i < 3; i++)
		start(&w[i], b.ch, UINT32_MAX);
	for (i = 0; i < 3; i++)
		wait_asleep(&w[i]);
	for (i = 1; i <= ROUNDS; i++) {
		uint64_t until = now_ns() + 10 * SECOND;

		send_one(&a, &b);
		do {
			sum = w[0].events + w[1].events + w[2].events;
			assert_true(now_ns() < until);
		} while (sum < i);
		if (!(i % (DEPTH / 2)))
			take(&a);
	}
	for (i = 0; i < 3; i++) {
		wait_asleep(&w[i]);
		pthread_cancel(w[i].thread);
		assert_ptr_equal(join(w[i].thread), PTHREAD_CANCELED);
	}
	assert_int_equal(sum, ROUNDS);
	assert_false(readable(b.ch->fd, 0));
	end();
}

/*
 * One channel for two CQs that both get an event at once, some times. What the
 * thread that takes the first leaves is there for poll(2), for whoever asks
 * next, or for one that waits already.
 */
static void second_event(bool in_poll, bool another)
{
	struct ibv_comp_channel *ch;
	struct ibv_cq *first, *second, *got;
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4,
			 .max_recv_wr = 4,
			 .max_send_sge = 1,
			 .max_recv_sge = 1 },
	};
	struct waiter w[2];
	void *context;
	unsigned i;

	begin();
	ch = ibv_create_comp_channel(ctx);
	first = ibv_create_cq(ctx, 4, &b, ch, 0);
	second = ibv_create_cq(ctx, 4, &b, ch, 0);
	assert_true(first && second);
	assert_int_equal(ibv_destroy_qp(b.qp), 0);
	init.send_cq = first;
	init.recv_cq = second;
	b.qp = ibv_create_qp(pd, &init);
	assert_non_null(b.qp);
	assert_int_equal(ibv_destroy_qp(a.qp), 0);
	init.send_cq = init.recv_cq = a.cq;
	a.qp = ibv_create_qp(pd, &init);
	connect_to(a.qp, b.qp->qp_num);
	connect_to(b.qp, a.qp->qp_num);
	for (i = 0; i < 50; i++) {
		take(&a);
		drain(first);
		drain(second);
		start(&w[0], ch, 1);
		wait_asleep(&w[0]);
		if (another) {
			start(&w[1], ch, 1);
			wait_asleep(&w[1]);
		}
		/* An acknowledgement and a message, at the same time if they
		 * can. */
		send_one(&b, &a);
		send_one(&a, &b);
		assert_ptr_equal(join(w[0].thread), &w[0]);
		assert_int_equal(w[0].events, 1);
		if (another) {
			assert_ptr_equal(join(w[1].thread), &w[1]);
			got = w[1].cq;
		} else {
			if (in_poll)
				assert_true(readable(ch->fd, 10000));
			assert_int_equal(ibv_get_cq_event(ch, &got, &context),
					 0);
			ibv_ack_cq_events(got, 1);
		}
		assert_ptr_equal(got, w[0].cq == first ? second : first);
		assert_false(readable(ch->fd, 0));
	}

	assert_int_equal(ibv_destroy_qp(b.qp), 0);
	b.qp = NULL;
	assert_int_equal(ibv_destroy_cq(first), 0);
	assert_int_equal(ibv_destroy_cq(second), 0);
	assert_int_equal(ibv_destroy_comp_channel(ch), 0);
	end();
}

static void second_event_is_counted(void **state)
{
	(void)state;
	second_event(true, false);
}

static void second_event_is_there_for_the_next(void **state)
{
	(void)state;
	second_event(false, false);
}

static void second_event_wakes_another(void **state)
{
	(void)state;
	second_event(false, true);
}

/* A thread that has waited here raises an event by posting: a request to a QP in
 * the error state completes at once. It is there for poll(2), or for the thread
 * when it waits again. */
static void own_event(bool in_poll)
{
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND };
	struct ibv_cq *got;
	void *context;

	begin();
	send_one(&a, &b);
	assert_int_equal(ibv_get_cq_event(b.ch, &got, &context), 0);
	ibv_ack_cq_events(got, 1);
	assert_int_equal(ibv_modify_qp(b.qp, &error, IBV_QP_STATE), 0);
	take(&b);
	if (readable(b.ch->fd, 0)) { /* what was flushed */
		assert_int_equal(ibv_get_cq_event(b.ch, &got, &context), 0);
		ibv_ack_cq_events(got, 1);
		take(&b);
	}
	for (unsigned i = 0; i < 50; i++) {
		assert_int_equal(try_send(&b, &wr, 0, 64), 0);
		if (in_poll)
			assert_true(readable(b.ch->fd, 10000));
		assert_int_equal(ibv_get_cq_event(b.ch, &got, &context), 0);
		assert_ptr_equal(got, b.cq);
		ibv_ack_cq_events(got, 1);
		take(&b);
		assert_false(readable(b.ch->fd, 0));
	}
	end();
}

static void own_event_is_counted(void **state)
{
	(void)state;
	own_event(true);
}

static void own_event_is_there(void **state)
{
	(void)state;
	own_event(false);
}

/* A program that has waited here now sleeps in poll(2): the thread receives. */
static void then_in_poll(void **state)
{
	struct ibv_cq *cq;
	struct waiter w;
	void *context;
	unsigned i;

	(void)state;
	begin();
	start(&w, b.ch, 10);
	for (i = 1; i <= 10; i++) {
		wait_asleep(&w);
		send_one(&a, &b);
		wait_events_of(&w, i);
	}
	join(w.thread);
	for (i = 0; i < 10; i++) {
		send_one(&a, &b);
		assert_true(readable(b.ch->fd, 10000));
		assert_int_equal(ibv_get_cq_event(b.ch, &cq, &context), 0);
		ibv_ack_cq_events(cq, 1);
		take(&b);
	}
	/* Nor does it wait where the descriptor does not. */
	assert_int_equal(fcntl(b.ch->fd, F_SETFL, O_NONBLOCK), 0);
	assert_int_equal(ibv_get_cq_event(b.ch, &cq, &context), -1);
	assert_int_equal(errno, EAGAIN);
	end();
}

/* A CQ goes, with an event, while a thread waits for another's. */
static void cq_goes_meanwhile(void **state)
{
	struct ibv_cq *other;
	struct waiter w;
	unsigned i;

	(void)state;
	begin();
	start(&w, b.ch, 1);
	for (i = 0; i < 20; i++) {
		wait_asleep(&w);
		other = ibv_create_cq(ctx, 4, NULL, b.ch, 0);
		assert_non_null(other);
		assert_int_equal(ibv_req_notify_cq(other, 0), 0);
		assert_int_equal(ibv_destroy_cq(other), 0);
	}
	send_one(&a, &b);
	assert_ptr_equal(join(w.thread), &w);
	assert_ptr_equal(w.cq, b.cq);
	end();
}

static void handle(int sig)
{
	(void)sig;
	atomic_fetch_add(&handled, 1);
}

static void set_handler(int sig, int flags)
{
	struct sigaction sa = { .sa_handler = handle, .sa_flags = flags };

	assert_int_equal(sigaction(sig, &sa, NULL), 0);
}

static void send_signal(struct waiter *w, int sig)
{
	unsigned before = atomic_load(&handled);
	uint64_t until = now_ns() + 10 * SECOND;

	wait_asleep(w);
	assert_int_equal(pthread_kill(w->thread, sig), 0);
	while (atomic_load(&handled) == before)
		assert_true(now_ns() < until);
}

/* As with read(2), whatever other handlers there are. */
static void signals(void **state)
{
	struct waiter w;
	int both, i;

	(void)state;
#ifdef __SANITIZE_THREAD__
	skip(); /* it delivers signals in its own way */
#endif
	begin();
	for (both = 0; both < 2; both++) {
		signal(SIGUSR1, SIG_DFL);
		signal(SIGUSR2, SIG_DFL);
		set_handler(SIGUSR1, SA_RESTART);
		if (both)
			set_handler(SIGUSR2, 0);
		start(&w, b.ch, 1);
		for (i = 0; i < 20; i++)
			send_signal(&w, SIGUSR1);
		wait_asleep(&w);
		assert_int_equal(atomic_load(&w.err), 0);
		send_one(&a, &b);
		join(w.thread);
		assert_int_equal(w.events, 1);

		if (!both)
			signal(SIGUSR1, SIG_DFL);
		set_handler(SIGUSR2, 0);
		start(&w, b.ch, 1);
		if (both)
			send_signal(&w, SIGUSR1);
		send_signal(&w, SIGUSR2);
		join(w.thread);
		assert_int_equal(w.events, 0);
		assert_int_equal(w.err, EINTR);
	}
	signal(SIGUSR1, SIG_DFL);
	signal(SIGUSR2, SIG_DFL);
	end();
}

/* A handler with SA_RESETHAND is gone when it has run. */
static void signal_once(void **state)
{
	struct waiter w;

	(void)state;
	begin();
	set_handler(SIGUSR2, (int)SA_RESETHAND);
	start(&w, b.ch, 1);
	send_signal(&w, SIGUSR2);
	join(w.thread);
	assert_int_equal(w.err, EINTR);
	end();
}

static void jump_out(int sig)
{
	siglongjmp(jump, sig);
}

static void *only_jump(void *arg)
{
	struct waiter *w = arg;
	struct ibv_cq *cq;
	void *context;

	if (!sigsetjmp(jump, 1)) {
		atomic_store(&w->tid, (pid_t)syscall(SYS_gettid));
		ibv_get_cq_event(w->ch, &cq, &context);
		return NULL;
	}
	return &jump;
}

static void *jump_and_wait(void *arg)
{
	struct waiter *w = arg;
	struct ibv_cq *cq;
	void *context;

	if (!only_jump(w))
		return NULL;
	atomic_store(&w->events, 1);
	/* From now on as if it had not been there. */
	take(&b);
	send_one(&a, &b);
	assert_int_equal(ibv_get_cq_event(w->ch, &cq, &context), 0);
	ibv_ack_cq_events(cq, 1);
	take(&b);
	return &jump;
}

/* Runs fn() in a thread that jumps from a handler out of waiting for b.ch. */
static void waits_and_jumps(void *(*fn)(void *))
{
	struct waiter w = { .ch = b.ch };

	signal(SIGUSR1, jump_out);
	assert_int_equal(pthread_create(&w.thread, NULL, fn, &w), 0);
	wait_asleep(&w);
	pthread_kill(w.thread, SIGUSR1);
	assert_ptr_equal(join(w.thread), &jump);
	signal(SIGUSR1, SIG_DFL);
}

/* A thread jumps from a handler out of the call; others receive then. */
static void jumps_out(void **state)
{
	struct waiter w;

	(void)state;
	begin();
	waits_and_jumps(jump_and_wait);
	start(&w, b.ch, 1);
	wait_asleep(&w);
	send_one(&a, &b);
	assert_ptr_equal(join(w.thread), &w);
	assert_int_equal(w.events, 1);
	end();
}

/* The same of one that waits behind another. The channel may be in use for all
 * that is known, and is no leak. */
static void second_jumps_out(void **state)
{
	struct waiter first;

	(void)state;
	begin();
	start(&first, b.ch, 1);
	wait_asleep(&first);
	waits_and_jumps(only_jump);
	send_one(&a, &b);
	assert_ptr_equal(join(first.thread), &first);
	assert_int_equal(first.events, 1);
	end();
}

/* Of threads that wait one is cancelled; the others go on. */
static void cancelled(void **state)
{
	struct waiter w, other;
	unsigned i;

	(void)state;
	begin();
	start(&other, a.ch, UINT32_MAX);
	for (i = 0; i < 50; i++) {
		start(&w, b.ch, 2);
		wait_asleep(&w);
		send_one(&a, &b);
		wait_events_of(&w, 1);
		if (i & 1)
			wait_asleep(&w);
		pthread_cancel(w.thread);
		assert_ptr_equal(join(w.thread), PTHREAD_CANCELED);
		wait_events_of(&other, i + 1);
	}
	pthread_cancel(other.thread);
	join(other.thread);
	start(&w, b.ch, 1);
	send_one(&a, &b);
	assert_ptr_equal(join(w.thread), &w);
	end();
}

/* A child of a fork has none of it, and the parent waits on. */
static void forks(void **state)
{
	struct ibv_cq *cq;
	struct waiter w;
	void *context;
	int status;
	pid_t pid;

	(void)state;
	begin();
	start(&w, b.ch, 2);
	wait_asleep(&w);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid)
		_exit(ibv_get_cq_event(b.ch, &cq, &context) && errno == EIO ?
			      0 :
			      1);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	send_one(&a, &b);
	wait_events_of(&w, 1);
	wait_asleep(&w);
	send_one(&a, &b);
	assert_ptr_equal(join(w.thread), &w);
	end();
}

static _Atomic bool stop;
static _Atomic unsigned polled;

static void *spin(void *arg)
{
	struct ibv_wc wc;

	while (!atomic_load(&stop))
		if (ibv_poll_cq(a.cq, 1, &wc) == 1)
			atomic_fetch_add(&polled, 1);
	return arg;
}

/* A thread polls while another one waits. */
static void beside_one_that_polls(void **state)
{
	pthread_t thread;
	struct waiter w;
	unsigned i;

	(void)state;
	begin();
	assert_int_equal(pthread_create(&thread, NULL, spin, NULL), 0);
	start(&w, b.ch, ROUNDS);
	for (i = 1; i <= ROUNDS; i++) {
		send_one(&a, &b);
		wait_events_of(&w, i);
		while (atomic_load(&polled) < i)
			sched_yield();
	}
	join(w.thread);
	atomic_store(&stop, true);
	join(thread);
	end();
}

/* The epoll instance of an event loop, with b's channel in it and a pipe. */
static int loop_begin(int pipes[2])
{
	struct epoll_event ev = { .events = EPOLLIN };
	int fd = epoll_create1(EPOLL_CLOEXEC);

	begin();
	assert_int_equal(fcntl(b.ch->fd, F_SETFL, O_NONBLOCK), 0);
	assert_int_equal(pipe(pipes), 0);
	assert_int_equal(epoll_ctl(fd, EPOLL_CTL_ADD, b.ch->fd, &ev), 0);
	assert_int_equal(epoll_ctl(fd, EPOLL_CTL_ADD, pipes[0], &ev), 0);
	return fd;
}

static void loop_end(int fd, const int pipes[2])
{
	close(fd);
	close(pipes[0]);
	close(pipes[1]);
	end();
}

static void take_event(void)
{
	struct ibv_cq *cq;
	void *context;

	assert_int_equal(ibv_get_cq_event(b.ch, &cq, &context), 0);
	ibv_ack_cq_events(cq, 1);
	take(&b);
}

/* Events, descriptors and times end the wait; then the same in poll(2). */
static void loop_waits(void **state)
{
	int pipes[2], fd = loop_begin(pipes);
	uint64_t until;
	char c = 0;
	unsigned i;

	(void)state;
	for (i = 0; i < ROUNDS; i++) {
		send_one(&a, &b);
		assert_int_equal(shca_wait(fd, UINT64_MAX, NULL, i & 1), 1);
		take_event();
		if (!(i % (DEPTH / 2)))
			take(&a);
	}
	take(&a);
	until = now_ns() + SECOND / 50;
	assert_int_equal(shca_wait(fd, until, NULL, true), 0);
	assert_true(now_ns() >= until);
	assert_int_equal(write(pipes[1], &c, 1), 1);
	assert_int_equal(shca_wait(fd, UINT64_MAX, NULL, true), 1);
	assert_int_equal(read(pipes[0], &c, 1), 1);
	for (i = 0; i < 10; i++) {
		send_one(&a, &b);
		assert_true(readable(b.ch->fd, 10000));
		take_event();
	}
	loop_end(fd, pipes);
}

struct loop {
	int fd;
	const sigset_t *mask;
	_Atomic pid_t tid;
	_Atomic int ret;
};

static void *wait_in_loop(void *arg)
{
	struct loop *l = arg;

	atomic_store(&l->tid, (pid_t)syscall(SYS_gettid));
	atomic_store(&l->ret, shca_wait(l->fd, UINT64_MAX, l->mask, true));
	return l;
}

/* Of two threads that wait, one receives for both; either may be cancelled. */
static void loops_share(void **state)
{
	int pipes[2], fd = loop_begin(pipes);
	struct waiter w;
	pthread_t thread;
	unsigned i;

	(void)state;
	for (i = 0; i < 20; i++) {
		struct loop l = { .fd = fd };

		start(&w, a.ch, 1);
		assert_int_equal(
			pthread_create(&thread, NULL, wait_in_loop, &l), 0);
		if (i & 1) {
			while (!atomic_load(&l.tid) || !is_asleep(l.tid))
				sched_yield();
			pthread_cancel(thread);
			assert_ptr_equal(join(thread), PTHREAD_CANCELED);
		}
		send_one(&a, &b);
		if (!(i & 1)) {
			assert_ptr_equal(join(thread), &l);
			assert_int_equal(l.ret, 1);
		}
		assert_ptr_equal(join(w.thread), &w);
		assert_true(readable(b.ch->fd, 10000));
		take_event();
	}
	loop_end(fd, pipes);
}

/* Every signal ends it; one that is blocked does where mask lets it through. */
static void loop_signals(void **state)
{
	int pipes[2], fd = loop_begin(pipes);
	sigset_t all, none;
	struct waiter w = { 0 };
	struct loop l = { .fd = fd };

	(void)state;
	set_handler(SIGUSR1, SA_RESTART);
	assert_int_equal(pthread_create(&w.thread, NULL, wait_in_loop, &l), 0);
	while (!atomic_load(&l.tid))
		sched_yield();
	w.tid = atomic_load(&l.tid);
	send_signal(&w, SIGUSR1);
	assert_ptr_equal(join(w.thread), &l);
	assert_int_equal(l.ret, -EINTR);

	sigemptyset(&none);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, NULL);
	pthread_kill(pthread_self(), SIGUSR1);
	assert_int_equal(shca_wait(fd, now_ns() + SECOND / 100, NULL, true), 0);
	assert_int_equal(shca_wait(fd, UINT64_MAX, &none, true), -EINTR);
	pthread_sigmask(SIG_SETMASK, &none, NULL);
	signal(SIGUSR1, SIG_DFL);
	loop_end(fd, pipes);
}

static bool is_there(void *arg)
{
	(void)arg;
	return true;
}

static void *sleep_on(void *fd)
{
	const int err =
		engine_sleep(to_ctx(ctx)->engine, *(int *)fd, is_there, NULL);

	/* Or the thread is just then receiving. */
	return err && err != -EBUSY ? NULL : fd;
}

/* What a waiter has done on its way to sleep may be what it waits for, and the
 * descriptor does not say so. */
static void there_before_it_sleeps(void **state)
{
	int pipefd[2];
	pthread_t thread;

	(void)state;
	begin();
	assert_int_equal(pipe(pipefd), 0);
	assert_int_equal(pthread_create(&thread, NULL, sleep_on, pipefd), 0);
	assert_ptr_equal(join(thread), pipefd);
	close(pipefd[0]);
	close(pipefd[1]);
	end();
}

/* A thread that polls has taken a nap: how many packets it has received. */
struct napper {
	uint64_t ns; /* for so long at most */
	_Atomic pid_t tid;
	int got;
	bool early; /* before that time */
	bool cancelled; /* before it naps */
	_Atomic bool awake;
	pthread_t thread;
};

static void *nap(void *arg)
{
	struct napper *n = arg;
	uint64_t until;

	if (n->cancelled)
		pthread_cancel(pthread_self());
	atomic_store(&n->tid, (pid_t)syscall(SYS_gettid));
	until = now_ns() + n->ns;
	n->got = engine_nap(to_ctx(ctx)->engine, until);
	n->early = now_ns() < until;
	atomic_store(&n->awake, true);
	pthread_testcancel();
	return n;
}

static void start_nap(struct napper *n)
{
	const uint64_t until = now_ns() + 10 * SECOND;

	atomic_store(&n->awake, false);
	atomic_store(&n->tid, 0);
	assert_int_equal(pthread_create(&n->thread, NULL, nap, n), 0);
	while (!atomic_load(&n->tid) || !is_asleep(atomic_load(&n->tid))) {
		assert_true(now_ns() < until);
		if (atomic_load(&n->awake))
			return;
		sched_yield();
	}
}

/* Two ends that have talked: a ring is found by its first record. */
static void talk(void)
{
	pair_init(&a, &b, IBV_QPT_RC);
	send_one(&a, &b);
	wait_wc(a.cq);
	wait_wc(b.cq);
}

/* Whether that is there, for who neither polls nor waits. */
static void wait_completions(const struct end *e, uint32_t n)
{
	const struct shca_cq *cq = (const struct shca_cq *)e->cq;
	const uint64_t until = now_ns() + 10 * SECOND;

	while (atomic_load(&cq->tail) - atomic_load(&cq->head) < n) {
		assert_true(now_ns() < until);
		sched_yield();
	}
}

/*
 * Packets wake a program that naps, and it receives them, unless the thread
 * does.
 */
static void packets_end_a_nap(void **state)
{
	struct napper n = { .ns = SECOND / 4 };
	unsigned i, got = 0;

	(void)state;
	talk();
	for (i = 0; i < ROUNDS / 10; i++) {
		start_nap(&n);
		send_one(&a, &b);
		wait_completions(&a, 1);
		wait_completions(&b, 1);
		join(n.thread);
		got += n.got > 0 && n.early;
		wait_wc(a.cq);
		wait_wc(b.cq);
	}
	assert_true(got > 0);
	end();
}

/* It ends by itself, and is nothing that a thread is cancelled in. */
static void naps_end(void **state)
{
	struct napper n = { .ns = SECOND / 1000, .cancelled = true };
	uint64_t begin_ns;
	void *ret;

	(void)state;
	talk();
	begin_ns = now_ns();
	start_nap(&n);
	ret = join(n.thread);
	assert_ptr_equal(ret, PTHREAD_CANCELED);
	assert_true(n.awake);
	assert_int_equal(n.got, 0);
	assert_true(now_ns() - begin_ns >= n.ns);
	end();
}

/* Of two threads one naps; events come after naps. */
static void one_at_a_time(void **state)
{
	struct napper n = { .ns = SECOND / 10 };

	(void)state;
	talk();
	start_nap(&n);
	if (!atomic_load(&n.awake))
		assert_int_equal(engine_nap(to_ctx(ctx)->engine, now_ns()),
				 -EBUSY);
	join(n.thread);
	end();
	events_come(state);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		TEST(packets_end_a_nap),
		TEST(naps_end),
		TEST(one_at_a_time),
		TEST(events_come),
		TEST(both_wait),
		TEST(many_on_one_channel),
		TEST(own_event_is_counted),
		TEST(own_event_is_there),
		TEST(second_event_is_counted),
		TEST(second_event_is_there_for_the_next),
		TEST(second_event_wakes_another),
		TEST(there_before_it_sleeps),
		TEST(then_in_poll),
		TEST(cq_goes_meanwhile),
		TEST(signals),
		TEST(signal_once),
		TEST(jumps_out),
		TEST(second_jumps_out),
		TEST(cancelled),
		TEST(forks),
		TEST(beside_one_that_polls),
		TEST(loop_waits),
		TEST(loops_share),
		TEST(loop_signals),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * test_lost_memory.c - memory that a program takes away under a region
 *
 * Each case runs in a process of its own, as this program with the case's name.
 */
#include "reach.h"

#include <signal.h>
#include <sys/resource.h>

/* Of a read as long as this the requester fetches the data, and asks again where
 * the memory is gone. */
#define LENGTH 32768
#define LOST (16 * PAGE)

/*
 * Memory that the program takes away under a region. Hardware has pinned it; it
 * costs the request that needs it, and no more, whoever stores or loads.
 */
enum how { UNMAPPED, TRUNCATED, PROTECTED, HOWS };

static uint8_t *lost;

static struct ibv_mr *lose_region(enum how how)
{
	int fd = how == TRUNCATED ? memfd_create("lost", MFD_CLOEXEC) : -1;
	struct ibv_mr *mr;

	if (fd >= 0)
		assert_int_equal(ftruncate(fd, LOST), 0);
	/* Far from where the kernel would put something else in its place. */
	lost = mmap((void *)0x200000000000, LOST, PROT_READ | PROT_WRITE,
		    fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, fd, 0);
	assert_true(lost != MAP_FAILED);
	mr = ibv_reg_mr(pd, lost, LOST, ALL_ACCESS);
	assert_non_null(mr);
	if (how == UNMAPPED)
		assert_int_equal(munmap(lost, LOST), 0);
	else if (how == TRUNCATED)
		assert_int_equal(ftruncate(fd, 0), 0);
	else
		assert_int_equal(mprotect(lost, LOST, PROT_NONE), 0);
	if (fd >= 0)
		close(fd);
	return mr;
}

static void find_region(struct ibv_mr *mr, enum how how)
{
	assert_int_equal(ibv_dereg_mr(mr), 0);
	if (how != UNMAPPED)
		assert_int_equal(munmap(lost, LOST), 0);
}

static uint32_t post_with(struct end *e, struct ibv_send_wr *wr,
			  const struct ibv_mr *mr, uint32_t len)
{
	struct ibv_sge sge = { (uintptr_t)lost + 8, len, mr->lkey };
	struct ibv_send_wr *bad;

	wr->sg_list = &sge;
	wr->num_sge = 1;
	wr->send_flags = IBV_SEND_SIGNALED;
	assert_int_equal(ibv_post_send(e->qp, wr, &bad), 0);
	return wait_wc(e->cq).status;
}

static void receive_at(struct end *e, const void *addr, const struct ibv_mr *mr)
{
	struct ibv_sge sge = { (uintptr_t)addr, LENGTH, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = 4, .sg_list = &sge, .num_sge = 1 };
	struct ibv_recv_wr *bad;

	assert_int_equal(ibv_post_recv(e->qp, &wr, &bad), 0);
}

static void lose_memory(enum how how, uint32_t len)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND };
	struct ibv_mr *mr = lose_region(how);
	const uint64_t at = (uintptr_t)lost + 8;
	struct end a, b, c;
	struct ibv_wc wc;

	pair_init(&a, &b, IBV_QPT_RC);
	/* The peer's. */
	assert_int_equal(try_write(&a, mr->rkey, at, len),
			 IBV_WC_REM_ACCESS_ERR);
	reconnect(&a, &b);
	assert_int_equal(try_read(&a, mr->rkey, at, len),
			 IBV_WC_REM_ACCESS_ERR);
	reconnect(&a, &b);
	wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
	wr.wr.atomic.remote_addr = at;
	wr.wr.atomic.rkey = mr->rkey;
	assert_int_equal(try_send(&a, &wr, 0, 8), 0);
	assert_int_equal(wait_wc(a.cq).status, IBV_WC_REM_ACCESS_ERR);
	reconnect(&a, &b);
	receive_at(&b, lost + 8, mr);
	wr.opcode = IBV_WR_SEND;
	assert_int_equal(try_send(&a, &wr, 0, len), 0);
	assert_int_equal(wait_wc(a.cq).status, IBV_WC_REM_OP_ERR);
	wc = wait_wc(b.cq);
	expect_wc(&wc, 4, IBV_WC_LOC_PROT_ERR);
	reconnect(&a, &b);

	/* Our own. What the peer fetches it fetches for a receive. */
	receive_at(&b, b.buf, b.mr);
	assert_int_equal(post_with(&a, &wr, mr, len), IBV_WC_LOC_PROT_ERR);
	reconnect(&a, &b);
	wr.opcode = IBV_WR_RDMA_READ;
	wr.wr.rdma.remote_addr = (uintptr_t)b.buf;
	wr.wr.rdma.rkey = b.mr->rkey;
	assert_int_equal(post_with(&a, &wr, mr, len), IBV_WC_LOC_PROT_ERR);
	reconnect(&a, &b);
	wr.opcode = IBV_WR_ATOMIC_WRITE;
	assert_int_equal(post_with(&a, &wr, mr, 8), IBV_WC_LOC_PROT_ERR);
	reconnect(&a, &b);

	/* What is there goes on. */
	assert_int_equal(try_write(&a, b.mr->rkey, (uintptr_t)b.buf, len), 0);

	end_init(&c, IBV_QPT_UD, NULL);
	connect_to(c.qp, 0);
	wr = (struct ibv_send_wr){ .opcode = IBV_WR_SEND };
	wr.wr.ud.ah = ibv_create_ah(
		pd, &(struct ibv_ah_attr){
			    .is_global = 1,
			    .port_num = 1,
			    .grh = { .dgid = gid0, .hop_limit = 64 } });
	wr.wr.ud.remote_qpn = c.qp->qp_num;
	wr.wr.ud.remote_qkey = 0x11111111;
	receive_at(&c, lost + 8, mr);
	assert_int_equal(try_send(&c, &wr, 0, 64), 0);
	assert_int_equal(wait_wc(c.cq).status, IBV_WC_SUCCESS);
	wc = wait_wc(c.cq);
	expect_wc(&wc, 4, IBV_WC_LOC_PROT_ERR);
	reset(c.qp);
	connect_to(c.qp, 0);
	assert_int_equal(post_with(&c, &wr, mr, 64), IBV_WC_LOC_PROT_ERR);
	assert_int_equal(ibv_destroy_ah(wr.wr.ud.ah), 0);
	end_fini(&a);
	end_fini(&b);
	end_fini(&c);
	find_region(mr, how);
}

static void lose_all(void)
{
	enum how how;

	for (how = 0; how < HOWS; how++) {
		lose_memory(how, 8);
		lose_memory(how, LENGTH);
	}
}

/* Nobody polls: the progress thread stores. */
static void lose_alone(void)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE };
	struct ibv_cq *cq;
	struct end a, b;
	enum how how;
	void *context;

	pair_init(&a, &b, IBV_QPT_RC);
	for (how = 0; how < HOWS; how++) {
		struct ibv_mr *mr = lose_region(how);

		wr.wr.rdma.remote_addr = (uintptr_t)lost;
		wr.wr.rdma.rkey = mr->rkey;
		assert_int_equal(ibv_req_notify_cq(a.cq, 0), 0);
		assert_int_equal(try_send(&a, &wr, 0, 64), 0);
		assert_true(readable(a.ch->fd, 10000));
		assert_int_equal(ibv_get_cq_event(a.ch, &cq, &context), 0);
		ibv_ack_cq_events(cq, 1);
		assert_int_equal(wait_wc(a.cq).status, IBV_WC_REM_ACCESS_ERR);
		reconnect(&a, &b);
		find_region(mr, how);
	}
	end_fini(&a);
	end_fini(&b);
}

/* Threads of many a program block all signals. */
static void *lose_blocked_run(void *arg)
{
	sigset_t all;

	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, NULL);
	lose_memory(UNMAPPED, 64);
	lose_memory(TRUNCATED, LENGTH);
	return arg;
}

static void lose_blocked(void)
{
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, lose_blocked_run, NULL),
			 0);
	pthread_join(thread, NULL);
}

static volatile sig_atomic_t handled;

static void handler(int sig, siginfo_t *info, void *context)
{
	(void)sig;
	(void)context;
	handled++;
	if (info->si_code == SEGV_ACCERR)
		mprotect(lost, LOST, PROT_READ | PROT_WRITE);
	else
		_exit(9);
}

/* What the program does with faults stays as it was. */
static void own_handler(void)
{
	struct sigaction sa = { .sa_sigaction = handler,
				.sa_flags = SA_SIGINFO };
	struct ibv_mr *mr;
	struct end a, b;

	sigaction(SIGSEGV, &sa, NULL);
	pair_init(&a, &b, IBV_QPT_RC);
	mr = lose_region(PROTECTED);
	/* It may be how the program learns of writes: it is asked. */
	assert_int_equal(try_write(&a, mr->rkey, (uintptr_t)lost, 64), 0);
	assert_int_equal(handled, 1);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	mr = lose_region(UNMAPPED);
	assert_int_equal(try_write(&a, mr->rkey, (uintptr_t)lost, 64),
			 IBV_WC_REM_ACCESS_ERR);
	assert_int_equal(handled, 1);
	/* Faults of its own are its own. */
	*(volatile uint8_t *)lost = 1;
}

static void own_fault(void)
{
	lose_region(UNMAPPED);
	*(volatile uint8_t *)lost = 1;
}

static void sent(void)
{
	lose_region(TRUNCATED);
	raise(SIGBUS);
}

static void ignored(void)
{
	signal(SIGSEGV, SIG_IGN);
	lose_region(UNMAPPED);
	raise(SIGSEGV);
	_exit(8);
}

/*
 * Each in a process of its own, since cmocka has a handler for faults: how it
 * is to end, as wait(2) says it.
 */
static const struct lost_case {
	const char *name;
	void (*run)(void);
	int status;
} lost_cases[] = {
	{ "all", lose_all, 0 },
	{ "alone", lose_alone, 0 },
	{ "blocked", lose_blocked, 0 },
	{ "own handler", own_handler, 9 << 8 },
	{ "own fault", own_fault, SIGSEGV },
	{ "sent", sent, SIGBUS },
	{ "ignored", ignored, 8 << 8 },
};

#define LOST_CASES (sizeof(lost_cases) / sizeof(lost_cases[0]))

static int lost_run(const char *name)
{
	size_t i;

	for (i = 0; i < LOST_CASES && strcmp(name, lost_cases[i].name); i++)
		;
	if (i == LOST_CASES)
		return 127;
	setup(NULL);
	lost_cases[i].run();
	teardown(NULL);
	return 0;
}

static void lose_memory_with(const char *wire)
{
	const struct rlimit no_core = { 0 };
	int status;
	pid_t pid;
	size_t i;

	for (i = 0; i < LOST_CASES; i++) {
		pid = fork_child();
		assert_true(pid >= 0);
		if (!pid) {
			setrlimit(RLIMIT_CORE, &no_core);
			setenv("SOFTHCA_WIRE", wire, 1);
			/* No handlers but ours. */
			setenv("ASAN_OPTIONS", "handle_segv=0:handle_sigbus=0",
			       1);
			execl("/proc/self/exe", "test_memory",
			      lost_cases[i].name, NULL);
			_exit(127);
		}
		assert_int_equal(waitpid(pid, &status, 0), pid);
		if ((status & ~0x80) != lost_cases[i].status)
			fail_msg("%s: %#x", lost_cases[i].name,
				 (unsigned)status);
	}
}

static void memory_lost(void **state)
{
	(void)state;
#ifdef __SANITIZE_THREAD__
	skip(); /* it delivers signals in its own way */
#endif
	lose_memory_with("0");
}

/* Between hosts a packet is put together before it is sent. */
static void memory_lost_on_the_wire(void **state)
{
	(void)state;
#ifdef __SANITIZE_THREAD__
	skip();
#endif
	lose_memory_with("1");
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(memory_lost),
		cmocka_unit_test(memory_lost_on_the_wire),
	};

	alarm(60);
	if (argc == 2)
		return lost_run(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * test_store_tail.c - payload goes into memory that a program watches, and that
 * may be gone: base/store_tail.h, os/guard.h
 *
 * A child places bytes in shared memory, one instruction at a time; after each
 * one the test looks at them, as a program might that runs just then.
 */
#include "child.h"
#include "unit.h"

#include "base/store_tail.h"
#include "os/guard.h"

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROOM 4096
#define STEPS 200000 /* sanitizers' memcpy() takes many */
#define ANSWER 0xee

/* Of copies that fault, one more than the longest. */
#ifdef __SANITIZE_THREAD__
#define LEN_FAULTS 129 /* it cannot follow the jump that ends longer ones */
#else
#define LEN_FAULTS 300
#endif

static uint8_t *shared;
static uint8_t payload[ROOM];

static int plainly(void *dst, const void *src, size_t len, const void *p)
{
	(void)p;
	store_tail_last(dst, src, len);
	return 0;
}

typedef int place_fn(void *dst, const void *src, size_t len, const void *p);

static void child_main(place_fn *fn, size_t len)
{
	uint8_t once;

	if (ptrace(PTRACE_TRACEME, 0, NULL, NULL))
		_exit(errno == EPERM ? 2 : 1);
	/* A thread's first copy asks for its signals. */
	fn(&once, payload, 1, &once);
	raise(SIGSTOP);
	fn(shared, payload, len, shared);
	raise(SIGSTOP);
	_exit(0);
}

static bool stopped(pid_t child, int sig)
{
	int status;

	assert_int_equal(waitpid(child, &status, 0), child);
	if (WIFEXITED(status)) {
		if (WEXITSTATUS(status) == 2)
			return false; /* no tracing in this sandbox */
		fail_msg("the child ended with status %d", WEXITSTATUS(status));
	}
	assert_true(WIFSTOPPED(status));
	return WSTOPSIG(status) == sig;
}

/* Answers in the place of the last bytes as soon as they are all there. */
static bool answer(size_t len)
{
	size_t tail = store_tail(len);

	if (shared[len - 1] != payload[len - 1])
		return false;
	assert_memory_equal(shared, payload, len);
	memset(shared + len - tail, ANSWER, tail);
	return true;
}

static void copy_stepwise(place_fn *fn, size_t len)
{
	size_t tail = store_tail(len);
	bool answered = false;
	pid_t child;
	int steps;

	memset(shared, 0, ROOM);
	child = fork_child();
	assert_true(child >= 0);
	if (!child)
		child_main(fn, len);
	if (!stopped(child, SIGSTOP)) {
		print_message("not allowed to trace a process here\n");
		skip();
	}
	for (steps = 0; steps < STEPS; steps++) {
		assert_int_equal(ptrace(PTRACE_SINGLESTEP, child, NULL, NULL),
				 0);
		if (stopped(child, SIGSTOP))
			break;
		if (!answered)
			answered = answer(len);
	}
	kill(child, SIGKILL);
	assert_int_equal(waitpid(child, NULL, 0), child);
	assert_true(steps < STEPS);
	assert_true(answered);
	for (size_t i = len - tail; i < len; i++)
		assert_int_equal(shared[i], ANSWER);
	for (size_t i = len; i < ROOM; i++)
		assert_int_equal(shared[i], 0);
}

/* The last bytes come last, and are not stored again. */
static void last_bytes_once(void **state)
{
	static const size_t lens[] = { 1,  2,  3,   4,   5,   7,   8,   9,
				       15, 16, 17,  31,  32,  33,  63,  64,
				       65, 96, 127, 128, 129, 256, 1024 };

	(void)state;
	for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
		copy_stepwise(plainly, lens[i]);
		copy_stepwise(guard_copy, lens[i]);
	}
}

/* Wherever it begins and ends. */
static void all_bytes(void **state)
{
	(void)state;
	for (size_t len = 0; len < 300; len++)
		for (size_t at = 0; at < 9; at++) {
			memset(shared, 0, ROOM);
			assert_int_equal(guard_copy(shared + at, payload, len,
						    shared + at),
					 0);
			assert_memory_equal(shared + at, payload, len);
			assert_int_equal(shared[at + len], 0);
			assert_true(!at || !shared[at - 1]);
		}
}

static uint8_t *nowhere;
static unsigned nested;

static void copy_nothing(void *unused)
{
	(void)unused;
	nested++;
}

/* A program's handler uses the library, too. */
static void on_signal(int sig)
{
	(void)sig;
	assert_int_equal(guard_run(copy_nothing, NULL, payload, 1), 0);
}

static void interrupted(void *unused)
{
	(void)unused;
	raise(SIGUSR1);
	*(volatile uint8_t *)nowhere = 1;
}

static void guard_within_a_guard(void)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);

	nowhere =
		mmap(NULL, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(nowhere, MAP_FAILED);
	assert_int_equal(munmap(nowhere, page), 0);
	assert_ptr_not_equal(signal(SIGUSR1, on_signal), SIG_ERR);
	assert_int_equal(guard_run(interrupted, NULL, nowhere, page), -EFAULT);
	assert_int_equal(nested, 1);
	signal(SIGUSR1, SIG_DFL);
}

/* Whichever byte is the first that is not there, on either side. */
static void missing_bytes(void **state)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	uint8_t *two = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint8_t to[LEN_FAULTS];

	(void)state;
	assert_ptr_not_equal(two, MAP_FAILED);
	assert_int_equal(munmap(two + page, page), 0);
	guard_install();
	for (size_t len = 1; len < sizeof(to); len++)
		for (size_t there = 0; there < len; there += 1 + len / 9) {
			uint8_t *p = two + page - there;

			assert_int_equal(guard_copy(p, payload, len, p),
					 -EFAULT);
			assert_int_equal(guard_copy(to, p, len, p), -EFAULT);
		}
	assert_int_equal(munmap(two, page), 0);
	/* In the same test: cmocka takes the signals at the next one. */
	guard_within_a_guard();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(last_bytes_once),
		cmocka_unit_test(all_bytes),
		cmocka_unit_test(missing_bytes),
	};

	shared = mmap(NULL, ROOM, PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		return 1;
	for (size_t i = 0; i < ROOM; i++)
		payload[i] = (uint8_t)(1 + i % 200);
	return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * test_dump_signal.c - SIGUSR1 under --explain, and programs that have their
 * own use of it
 *
 * Each case is a process of its own: what a program had on the signal when it
 * opened the device decides. A program that really hangs: tests/clients.
 */
#include "pair.h"

#include <signal.h>

static struct end a, b;
static volatile sig_atomic_t mine;

static void handler(int sig)
{
	(void)sig;
	mine = 1;
}

/* Runs fn() in a child whose stderr it returns; *status: how it ended. */
static char *run(void (*fn)(void), int *status)
{
	static char text[4096];
	size_t have = 0;
	ssize_t n;
	int fd[2];
	pid_t pid;

	assert_int_equal(pipe(fd), 0);
	pid = fork_child();
	assert_true(pid >= 0);
	if (!pid) {
		dup2(fd[1], STDERR_FILENO);
		close(fd[1]);
		alarm(30);
		fn();
		_exit(0);
	}
	close(fd[1]);
	while ((n = read(fd[0], text + have, sizeof(text) - 1 - have)) > 0)
		have += (size_t)n;
	close(fd[0]);
	text[have] = '\0';
	assert_int_equal(waitpid(pid, status, 0), pid);
	return text;
}

/* Until the thread has taken the signal's word. */
static void a_moment(void)
{
	poll(NULL, 0, 300);
}

static void nothing_connected(void)
{
	setup(NULL);
	raise(SIGUSR1);
}

static void two_connected(void)
{
	setup(NULL);
	pair_init(&a, &b, IBV_QPT_RC);
	fprintf(stderr, "QPs 0x%06x 0x%06x\n", a.qp->qp_num, b.qp->qp_num);
	raise(SIGUSR1);
	a_moment();
}

static void in_a_child(void)
{
	int status;
	pid_t pid;

	setup(NULL);
	pid = fork_child();
	if (!pid) {
		raise(SIGUSR1);
		_exit(0);
	}
	waitpid(pid, &status, 0);
	_exit(WIFSIGNALED(status) && WTERMSIG(status) == SIGUSR1 ? 7 : 8);
}

static void own_before(void)
{
	signal(SIGUSR1, handler);
	two_connected();
	_exit(mine ? 7 : 8);
}

static void own_after(void)
{
	setup(NULL);
	signal(SIGUSR1, handler);
	pair_init(&a, &b, IBV_QPT_RC);
	raise(SIGUSR1);
	a_moment();
	_exit(mine ? 7 : 8);
}

static void ignored(void)
{
	signal(SIGUSR1, SIG_IGN);
	two_connected();
	_exit(7);
}

static void is_answered(void **state)
{
	unsigned qpn[2];
	char line[64];
	char *text;
	int status;

	(void)state;
	text = run(nothing_connected, &status);
	assert_true(WIFEXITED(status));
	assert_non_null(strstr(text, "has no queue pair that is connected\n"));
	text = run(two_connected, &status);
	assert_true(WIFEXITED(status));
	assert_non_null(strstr(text, ": 2 queue pairs\n"));
	text = strstr(text, "QPs 0x");
	assert_non_null(text);
	assert_int_equal(sscanf(text, "QPs %x %x", &qpn[0], &qpn[1]), 2);
	for (int i = 0; i < 2; i++) {
		snprintf(line, sizeof(line),
			 "\nsofthca: QP 0x%06x (RC, RTS, peer ", qpn[i]);
		assert_non_null(strstr(text, line));
	}
}

/* Whose child it kills, as ever. */
static void is_not_inherited(void **state)
{
	int status;

	(void)state;
	run(in_a_child, &status);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 7);
}

/* Whenever it came, and so does who ignores the signal. */
static void own_handler_wins(void **state)
{
	void (*const own[])(void) = { own_before, own_after, ignored };
	int status;

	(void)state;
	for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++) {
		assert_null(strstr(run(own[i], &status), "queue pair"));
		assert_true(WIFEXITED(status));
		assert_int_equal(WEXITSTATUS(status), 7);
	}
}

/* Without --explain it is the program's end. */
static void is_left_alone(void **state)
{
	int status;

	(void)state;
	unsetenv("SOFTHCA_EXPLAIN");
	run(two_connected, &status);
	assert_true(WIFSIGNALED(status));
	assert_int_equal(WTERMSIG(status), SIGUSR1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(is_answered),
		cmocka_unit_test(is_not_inherited),
		cmocka_unit_test(own_handler_wins),
		cmocka_unit_test(is_left_alone),
	};

	setenv("SOFTHCA_EXPLAIN", "1", 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}

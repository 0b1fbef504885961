/*
 * test_why.c - reasons of failed calls: kept, reported once, not too often
 */
#include "unit.h"

#include "testclock.h"

#include "os/report.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

static int heard; /* a pipe that is stderr */

/* What has been said since the last time; "": nothing. */
static const char *said(void)
{
	static char text[8192];
	ssize_t n = read(heard, text, sizeof(text) - 1);

	text[n > 0 ? n : 0] = '\0';
	return text;
}

static int setup(void **state)
{
	int fd[2];

	(void)state;
	if (pipe(fd) || dup2(fd[1], STDERR_FILENO) < 0)
		return -1;
	heard = fd[0];
	return fcntl(heard, F_SETFL, O_NONBLOCK);
}

static void wanted_on_demand(void **state)
{
	(void)state;
	assert_int_equal(why(-EINVAL, "%s", "nobody asks"), -EINVAL);
	WHY_REPORT("ibv_x", -EINVAL);
	assert_string_equal(said(), "");
	why_begin();
	assert_true(why_wanted());
}

static void names_call_and_errno(void **state)
{
	(void)state;
	errno = 7;
	assert_int_equal(why(-EINVAL, "QP 0x%06x: because", 0x11), -EINVAL);
	why_report("slot_post_send", -EINVAL);
	assert_int_equal(errno, 7);
	assert_string_equal(said(), "softhca: ibv_post_send: EINVAL: "
				    "QP 0x000011: because\n");
	assert_int_equal(why(-EBUSY, "used"), -EBUSY);
	assert_int_equal(why_about(-EBUSY, "QP 0x%06x", 0x12), -EBUSY);
	why_report("ibv_destroy_qp", -EBUSY);
	assert_string_equal(said(), "softhca: ibv_destroy_qp: EBUSY: "
				    "QP 0x000012: used\n");
}

static void another_errno_is_another_error(void **state)
{
	(void)state;
	why(-EINVAL, "of something that was tried and is over");
	why_report("ibv_open_device", -EMFILE);
	assert_non_null(strstr(said(), "EMFILE: the process has too many"));
	why(-EINVAL, "dealt with");
	why_forget();
	why_report("ibv_query_port", -EINVAL);
	assert_null(strstr(said(), "dealt with"));
	why_report("ibv_get_cq_event", -EAGAIN);
	why_report("rdma_notify", -EISCONN);
	assert_string_equal(said(), "");
}

/* rdma_create_qp() fails since ibv_create_qp() did: one line. */
static void innermost_reports(void **state)
{
	(void)state;
	why(-EPERM, "inner");
	why_report("ibv_create_qp_ex", -EPERM);
	why_report("rdma_create_qp", -EPERM);
	assert_string_equal(said(),
			    "softhca: ibv_create_qp_ex: EPERM: inner\n");
}

static void *other_thread(void *arg)
{
	(void)arg;
	why_report("ibv_other", -ENXIO);
	return NULL;
}

static void reasons_are_of_their_thread(void **state)
{
	pthread_t t;

	(void)state;
	why(-ENXIO, "mine");
	assert_int_equal(pthread_create(&t, NULL, other_thread, NULL), 0);
	pthread_join(t, NULL);
	assert_null(strstr(said(), "mine"));
	why_report("ibv_mine", -ENXIO);
	assert_non_null(strstr(said(), "mine"));
}

static int full(unsigned n)
{
	return why(-ENOMEM, "queue %u is full", n);
}

static void repetition_is_limited(void **state)
{
	unsigned lines = 0;

	(void)state;
	for (int i = 0; i < 1000; i++)
		why_report("ibv_loop", full(1));
	assert_string_equal(said(),
			    "softhca: ibv_loop: ENOMEM: queue 1 is full\n");
	/* another object is another line, within limits */
	why_report("ibv_loop", full(2));
	assert_non_null(strstr(said(), "queue 2"));
	for (unsigned i = 3; i < 1000; i++) {
		why_report("ibv_loop", full(i));
		lines += said()[0] != '\0';
	}
	assert_in_range(lines, 1, 100);
	clock_forward(1000000000);
	why_report("ibv_loop", full(1));
	assert_non_null(strstr(said(), "queue 1 is full ("));
	clock_forward(1000000000);
	why_report("ibv_loop", full(1));
	assert_string_equal(said(),
			    "softhca: ibv_loop: ENOMEM: queue 1 is full\n");
}

static void long_reasons_are_cut(void **state)
{
	char text[3000];

	(void)state;
	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	why(-EINVAL, "%s", text);
	why_about(-EINVAL, "%s", text);
	why_report("ibv_long", -EINVAL);
	strcpy(text, said());
	assert_non_null(strstr(text, "xxx: xxx"));
	assert_true(strchr(text, '\n') == text + strlen(text) - 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(wanted_on_demand),
		cmocka_unit_test(names_call_and_errno),
		cmocka_unit_test(another_errno_is_another_error),
		cmocka_unit_test(innermost_reports),
		cmocka_unit_test(reasons_are_of_their_thread),
		cmocka_unit_test(repetition_is_limited),
		cmocka_unit_test(long_reasons_are_cut),
	};

	return cmocka_run_group_tests(tests, setup, NULL);
}

/*
 * test_threads.c - threads that are cancelled
 */
#include "objects/engine.h"

#include "pair.h"

#include <rdma/rdma_cma.h>

#define CANCELLED 200

/* What the thread that is about to be cancelled has got to. */
static const char *_Atomic at = "";
static struct end a, b;

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
	struct rdma_event_channel *events;
	struct sockaddr_in sin = { .sin_family = AF_INET };
	struct rdma_cm_id *id;
	struct ibv_cq *cq;
	void *cq_arg;

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

/* Ends the test if that takes for ever. */
static void *join(pthread_t thread)
{
	struct timespec until;
	void *ret;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 20;
	assert_int_equal(pthread_timedjoin_np(thread, &ret, &until), 0);
	return ret;
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

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

/* An argument is the name of the one test to run. */
int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_cancellation_points),
		TEST(cancelled_while_busy),
	};

	if (argc == 2)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}

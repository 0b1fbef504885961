/*
 * test_channels.c - event channels that are asked when they have been destroyed
 *
 * rdma-core reads nothing of a channel but its descriptor, so programs get away
 * with it: rping's thread asks once more when the main thread has ended. Memory
 * that is freed is filled here, so that a look into it does not go well.
 */
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <malloc.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <semaphore.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ROUNDS 200 /* more than are kept */

static _Atomic int held_fd = -1; /* who reads it waits first */
static sem_t reads, may_read;

/* The library's, too: it stops one thread where a scheduler might. */
ssize_t read(int fd, void *to, size_t n)
{
	if (fd == held_fd) {
		sem_post(&reads);
		sem_wait(&may_read);
	}
	return syscall(SYS_read, fd, to, n);
}

static void *asks(void *ch)
{
	struct rdma_cm_event *ev;

	return rdma_get_cm_event(ch, &ev) && errno == EBADF ? NULL : ch;
}

static pthread_t destroyed_while_one_asks(struct rdma_event_channel *ch)
{
	pthread_t t;

	assert_int_equal(sem_init(&reads, 0, 0), 0);
	assert_int_equal(sem_init(&may_read, 0, 0), 0);
	held_fd = ch->fd;
	assert_int_equal(pthread_create(&t, NULL, asks, ch), 0);
	assert_int_equal(sem_wait(&reads), 0);
	rdma_destroy_event_channel(ch);
	assert_int_equal(sem_post(&may_read), 0);
	return t;
}

/* As in rping's client, whose process would end with status 255. */
static void destroyed_as_one_is_about_to_sleep(void **state)
{
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct timespec soon;
	pthread_t t;
	void *ret;

	(void)state;
	assert_non_null(ch);
	t = destroyed_while_one_asks(ch);
	clock_gettime(CLOCK_REALTIME, &soon);
	soon.tv_sec += 1;
	assert_int_equal(pthread_timedjoin_np(t, &ret, &soon), ETIMEDOUT);
	held_fd = -1;
	assert_int_equal(pthread_cancel(t), 0);
	assert_int_equal(pthread_join(t, &ret), 0);
	assert_ptr_equal(ret, PTHREAD_CANCELED);
}

/* Who does not want to sleep is told. */
static void destroyed_as_one_looks(void **state)
{
	struct rdma_event_channel *ch = rdma_create_event_channel();
	void *ret;

	(void)state;
	assert_non_null(ch);
	assert_int_equal(fcntl(ch->fd, F_SETFL, O_NONBLOCK), 0);
	assert_int_equal(pthread_join(destroyed_while_one_asks(ch), &ret), 0);
	assert_ptr_equal(ret, NULL);
	held_fd = -1;
}

static void cm_channel(void **state)
{
	struct rdma_event_channel *ch;
	struct rdma_cm_event *ev;

	(void)state;
	for (int i = 0; i < ROUNDS; i++) {
		ch = rdma_create_event_channel();
		assert_non_null(ch);
		rdma_destroy_event_channel(ch);
		errno = 0;
		assert_int_equal(rdma_get_cm_event(ch, &ev), -1);
		assert_int_equal(errno, EBADF);
		rdma_destroy_event_channel(ch);
	}
}

static void completion_channel(void **state)
{
	int n;
	struct ibv_device **list = ibv_get_device_list(&n);
	struct ibv_comp_channel *ch;
	struct ibv_context *ctx;
	struct ibv_cq *cq;
	void *arg;

	(void)state;
	assert_non_null(list);
	assert_true(n > 0);
	for (int i = 0; i < ROUNDS; i++) {
		ctx = ibv_open_device(list[0]);
		assert_non_null(ctx);
		ch = ibv_create_comp_channel(ctx);
		assert_non_null(ch);
		assert_int_equal(ibv_destroy_comp_channel(ch), 0);
		assert_int_equal(ibv_close_device(ctx), 0);
		errno = 0;
		assert_int_equal(ibv_get_cq_event(ch, &cq, &arg), -1);
		assert_int_equal(errno, EBADF);
	}
	ibv_free_device_list(list);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(cm_channel),
		cmocka_unit_test(completion_channel),
		cmocka_unit_test(destroyed_as_one_is_about_to_sleep),
		cmocka_unit_test(destroyed_as_one_looks),
	};

	mallopt(M_PERTURB, 0xa5);
	return cmocka_run_group_tests(tests, NULL, NULL);
}

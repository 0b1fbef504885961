/*
 * test_stream.c - TCP sockets as a link: what a process that ends waits for
 */
#include "unit.h"

#include "link/stream.h"

#include <netinet/in.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <unistd.h>

#define SMALL 4096

static struct streams *streams;
static struct stream stream;
static int peer;

static int nothing_ready(struct stream *s, uint32_t events, uint8_t *buffer)
{
	(void)s;
	(void)events;
	(void)buffer;
	return 0;
}

static void nothing_to_free(struct stream *s)
{
	(void)s;
}

static const struct stream_ops ops = { nothing_ready, nothing_to_free };

/* A connection whose peer takes little before it reads. */
static int setup(void **state)
{
	struct sockaddr_in at = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(at);
	int listener = socket(AF_INET, SOCK_STREAM, 0), size = SMALL, fd;

	(void)state;
	assert_int_equal(bind(listener, (struct sockaddr *)&at, len), 0);
	assert_int_equal(listen(listener, 1), 0);
	assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &len),
			 0);
	peer = socket(AF_INET, SOCK_STREAM, 0);
	assert_int_equal(
		setsockopt(peer, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size)),
		0);
	assert_int_equal(connect(peer, (struct sockaddr *)&at, len), 0);
	fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
	assert_true(fd >= 0);
	close(listener);
	assert_int_equal(streams_create(&streams, NULL), 0);
	stream = (struct stream){ .ops = &ops };
	assert_int_equal(stream_open(streams, &stream, fd, EPOLLIN), 0);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	streams_link(streams)->ops->destroy(streams_link(streams));
	close(peer);
	return 0;
}

static size_t send_much(void)
{
	static char buf[16 * SMALL];
	struct iovec iov = { buf, sizeof(buf) };
	ssize_t n = stream_send(&stream, &iov, 1);

	assert_true(n > SMALL);
	return (size_t)n;
}

static uint64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

/* The peer sends, and reads all the same. */
static void *read_late(void *arg)
{
	size_t left = *(size_t *)arg;
	char buf[SMALL];
	ssize_t n;

	usleep(300000);
	assert_int_equal(send(peer, "x", 1, MSG_NOSIGNAL), 1);
	while (left && (n = recv(peer, buf, sizeof(buf), 0)) > 0)
		left -= (size_t)n;
	*(size_t *)arg = left;
	return NULL;
}

/* What has been sent is not lost when a process has ended, although the peer
 * sends meanwhile, which the kernel answers by a reset. */
static void what_was_sent_arrives(void **state)
{
	size_t left = send_much();
	pthread_t thread;

	(void)state;
	assert_false(stream_is_acknowledged(&stream));
	assert_int_equal(pthread_create(&thread, NULL, read_late, &left), 0);
	streams_settle(streams);
	assert_true(stream_is_acknowledged(&stream));
	stream_close(&stream, false);
	pthread_join(thread, NULL);
	assert_int_equal(left, 0);
}

static void nothing_to_wait_for(void **state)
{
	uint64_t begin = now_ms();

	(void)state;
	streams_settle(streams);
	stream_close(&stream, false);
	streams_settle(streams);
	streams_settle(NULL);
	assert_in_range(now_ms() - begin, 0, 1000);
}

/* A peer that takes nothing keeps no process from ending. */
static void a_peer_that_does_not_read(void **state)
{
	uint64_t begin = now_ms();

	(void)state;
	send_much();
	streams_settle(streams);
	assert_false(stream_is_acknowledged(&stream));
	assert_in_range(now_ms() - begin, 4000, 20000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(what_was_sent_arrives, setup,
						teardown),
		cmocka_unit_test_setup_teardown(nothing_to_wait_for, setup,
						teardown),
		cmocka_unit_test_setup_teardown(a_peer_that_does_not_read,
						setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

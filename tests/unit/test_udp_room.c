/*
 * test_udp_room.c - senders of one host wait for receivers that are slow,
 * and not for those that are dead
 */
#include "udp_node.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/*
 * A small receive buffer and a receiver that is slow: senders are held back,
 * and nothing is lost, on the private port and on the wire.
 */
static void no_overrun(const struct udp_config *cfg, size_t payload)
{
	struct udp_config small = *cfg;
	struct roce_path path = path_of("127.0.0.1", "127.0.0.2");
	static struct roce_batch b;
	struct node x, y;
	unsigned sent = 0, refused = 0;
	size_t n;
	int err;

	small.rcvbuf = 65536;
	node_start(&x, cfg);
	node_start(&y, &small);
	node_bind(&y, "127.0.0.2");
	while (sent < 3000) {
		b.n = b.data.n = 0;
		while (b.n < ROCE_BATCH)
			batch_add(&b, &path, y.qpn, RC_MIDDLE,
				  (uint32_t)(sent + b.n), payload);
		n = udp_send(x.u, &b, &err);
		assert_int_equal(err, 0);
		sent += (unsigned)n;
		if (n < b.n) {
			refused++;
			/* An ACK does not wait behind the data. */
			b.n = b.data.n = 0;
			batch_add(&b, &path, y.qpn, ROCE_ACK, sent++, 0);
			assert_int_equal(udp_send(x.u, &b, &err), 1);
			udp_poll(y.u, 7, node_rx, &y);
		}
	}
	assert_true(refused > 10);
	node_expect(&y, sent);
	assert_int_equal(udp_stats(y.u)->rx_overflow, 0);
	assert_int_equal(udp_stats(x.u)->tx_busy, refused);
	assert_int_equal(registry_backlog(y.r), 0);
	node_stop(&x);
	node_stop(&y);
}

static void slow_receivers_are_not_overrun(void **state)
{
	(void)state;
	no_overrun(&direct, 64);
	no_overrun(&direct, 4096);
	no_overrun(&wire, 64);
	no_overrun(&wire, 4096);
}

/* A sender that died between counting and sending leaves no one waiting. */
static void a_wrong_backlog_heals(void **state)
{
	struct udp_config small = { .rcvbuf = 65536 };
	struct roce_path path = path_of("127.0.0.1", "127.0.0.2");
	static struct roce_batch b;
	struct node x, y;
	uint64_t end;
	int err;

	(void)state;
	node_start(&x, &direct);
	node_start(&y, &small);
	node_bind(&y, "127.0.0.2");
	/* Polling receiver: at once. */
	assert_true(registry_charge(x.r, registry_slot(y.r), 1 << 30));
	for (int i = 0; i < 4; i++) {
		node_poll(&y);
		clock_forward(3000000);
	}
	assert_int_equal(registry_backlog(y.r), 0);
	registry_uncharge(x.r, registry_slot(y.r), 1 << 30);
	for (int i = 0; i < 4; i++) {
		node_poll(&y);
		clock_forward(3000000);
	}
	assert_int_equal(registry_backlog(y.r), 0);
	/* Sleeping receiver: it is woken before anything is sent. */
	assert_true(registry_charge(x.r, registry_slot(y.r), 1 << 30));
	b.n = b.data.n = 0;
	batch_add(&b, &path, y.qpn, RC_MIDDLE, 0, 64);
	end = clock_ns() + 5000000000u;
	while (!node_readable(&y) && clock_ns() < end)
		udp_send(x.u, &b, &err);
	assert_int_equal(udp_stats(x.u)->tx_pkts, 0);
	while (!y.count && clock_ns() < end) {
		if (udp_send(x.u, &b, &err))
			break;
		if (node_readable(&y))
			udp_poll(y.u, 64, node_rx, &y);
	}
	node_expect(&y, 1);
	assert_int_equal(udp_stats(y.u)->rx_malformed, 0);
	node_stop(&x);
	node_stop(&y);
}

static void killed_receiver_blocks_nobody(void **state)
{
	struct udp_config small = { .rcvbuf = 65536 };
	struct roce_path path = path_of("127.0.0.1", "127.0.0.2");
	static struct roce_batch b;
	struct shared *s = shared_new();
	unsigned refused = 0;
	struct node x;
	pid_t pid;
	size_t n = 64;
	int err;

	(void)state;
	node_start(&x, &direct);
	pid = receiver(s, &small, "127.0.0.2");
	assert_true(wait_for(&s->ready, 1));
	kill(pid, SIGSTOP);
	for (int i = 0; i < 100 && n == 64; i++) {
		b.n = b.data.n = 0;
		while (b.n < ROCE_BATCH)
			batch_add(&b, &path, s->qpn, RC_MIDDLE, (uint32_t)b.n,
				  1024);
		n = udp_send(x.u, &b, &err);
	}
	assert_true(n < 64); /* stopped, and its buffer is full */
	end_killed(pid);
	/* It is found dead some milliseconds after it was found full. */
	clock_by_readings(1000000);
	for (int i = 0; i < 50; i++)
		while (udp_send(x.u, &b, &err) < 64)
			assert_true(++refused < 10);
	clock_by_time();
	node_stop(&x);
}

/* What lies in our own socket may be the answer, from wherever it came; what
 * comes behind it does not count. */
static void own_unread_is_known(void **state)
{
	struct roce_path path = path_of("127.0.0.1", "127.0.0.2");
	struct roce_path back = path_of("127.0.0.2", "127.0.0.1");
	uint64_t mark[2] = { 0 };
	unsigned rounds = 0;
	struct node x, y;

	(void)state;
	node_start(&x, &wire);
	node_start(&y, &wire);
	node_bind(&x, "127.0.0.1");
	node_bind(&y, "127.0.0.2");
	x.any_order = true;
	assert_false(udp_unread(x.u, &path, y.qpn, mark));
	node_send(&y, NULL, &back, x.qpn, RC_MIDDLE, 100, 5);
	assert_true(udp_unread(x.u, &path, y.qpn, mark));
	assert_true(udp_unread(x.u, &path, y.qpn, mark));
	node_expect(&x, 5);
	assert_false(udp_unread(x.u, &path, y.qpn, mark));
	assert_int_equal(mark[0], 0);
	/* Read into our memory, and not handed over: that is still unread. */
	node_send(&y, NULL, &back, x.qpn, RC_MIDDLE, 100, 20);
	assert_int_equal(udp_poll(x.u, 1, node_rx, &x), 1);
	assert_true(udp_unread(x.u, &path, y.qpn, mark));
	/* There is always more. */
	do {
		node_send(&y, NULL, &back, x.qpn, RC_MIDDLE, 100, 5);
		for (int n = 0; n < 5;)
			n += udp_poll(x.u, 1, node_rx, &x);
	} while (udp_unread(x.u, &path, y.qpn, mark) && ++rounds < 20);
	assert_in_range(rounds, 1, 8);
	node_stop(&y);
	node_stop(&x);
}

/* Who has yet to read; what came later, was lost or is for a dead one is no
 * reason to wait. */
static void unread_is_known(void **state)
{
	struct udp_config lossy_cfg = { .loss = 1 };
	struct roce_path path = path_of("127.0.0.1", "127.0.0.2");
	struct roce_path back = path_of("127.0.0.2", "127.0.0.1");
	struct shared *s = shared_new();
	uint64_t mark[2] = { 0 };
	struct node x, y, z;
	pid_t pid;

	(void)state;
	path.local = true;
	node_start(&x, &direct);
	node_start(&y, &direct);
	node_bind(&x, "127.0.0.1");
	node_bind(&y, "127.0.0.2");
	x.any_order = y.any_order = true;
	assert_false(udp_unread(x.u, &path, y.qpn, mark));
	node_send(&x, NULL, &path, y.qpn, RC_MIDDLE, 100, 5);
	assert_true(udp_unread(x.u, &path, y.qpn, mark));
	assert_true(udp_unread(x.u, &path, y.qpn, mark));
	node_expect(&y, 5);
	node_send(&x, NULL, &path, y.qpn, RC_MIDDLE, 100, 5);
	assert_false(udp_unread(x.u, &path, y.qpn, mark));
	assert_true(udp_unread(x.u, &path, y.qpn, mark));
	node_expect(&y, 10);
	assert_false(udp_unread(x.u, &path, y.qpn, mark));
	/* The answer waits for ourselves. */
	node_send(&y, NULL, &back, x.qpn, RC_MIDDLE, 100, 1);
	assert_true(udp_unread(x.u, &path, y.qpn, mark));
	node_expect(&x, 1);
	assert_false(udp_unread(x.u, &path, y.qpn, mark));
	/* A mark of another process that had the slot. */
	mark[0] = 1u << 30;
	node_send(&x, NULL, &path, y.qpn, RC_MIDDLE, 100, 1);
	assert_false(udp_unread(x.u, &path, y.qpn, mark));
	node_expect(&y, 11);

	node_start(&z, &lossy_cfg);
	node_send(&z, NULL, &path, y.qpn, RC_MIDDLE, 100, 5);
	assert_false(udp_unread(z.u, &path, y.qpn, mark));
	node_stop(&z);
	node_start(&z, &wire);
	node_send(&z, NULL, &path, y.qpn, RC_MIDDLE, 100, 5);
	assert_false(udp_unread(z.u, &path, y.qpn, mark));
	node_stop(&z);
	node_stop(&y);

	pid = receiver(s, &direct, "127.0.0.2");
	assert_true(wait_for(&s->ready, 1));
	kill(pid, SIGSTOP);
	assert_int_equal(waitpid(pid, NULL, WUNTRACED), pid);
	node_send(&x, NULL, &path, s->qpn, RC_MIDDLE, 100, 5);
	assert_true(udp_unread(x.u, &path, s->qpn, mark));
	end_killed(pid);
	assert_false(udp_unread(x.u, &path, s->qpn, mark));
	munmap(s, sizeof(*s));
	node_stop(&x);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(slow_receivers_are_not_overrun),
		cmocka_unit_test(a_wrong_backlog_heals),
		cmocka_unit_test(killed_receiver_blocks_nobody),
		cmocka_unit_test(own_unread_is_known),
		cmocka_unit_test(unread_is_known),
	};

	return RUN_NODE_TESTS(tests, argc, argv);
}

/*
 * test_udp.c - packets between processes of one host
 */
#include "udp_node.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

/* Every size, both ways, both families: all arrive, in order and unharmed. */
static void round_trip(const struct udp_config *cfg, const char *a,
		       const char *b)
{
	static const size_t sizes[] = {
		0, 1, 2, 3, 4, 63, 256, 1024, 4093, 4096
	};
	struct roce_path path = path_of(a, b);
	struct node x, y;
	unsigned total = 0;

	node_start(&x, cfg);
	node_start(&y, cfg);
	node_bind(&x, a);
	node_bind(&y, b);
	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		y.next_psn = 0;
		node_send(&x, &y, &path, y.qpn + 5, RC_MIDDLE, sizes[i], 150);
		total += 150;
		node_expect(&y, total);
		assert_int_equal(y.last.len, sizes[i]);
		assert_int_equal(y.last.h.dest_qpn, y.qpn + 5);
		assert_memory_equal(&y.last.sgid, &path.sgid, 16);
		assert_memory_equal(&y.last.dgid, &path.dgid, 16);
		assert_null(y.last.grh);
	}
	assert_int_equal(udp_stats(x.u)->tx_pkts, total);
	assert_int_equal(udp_stats(y.u)->rx_pkts, total);
	assert_int_equal(udp_stats(y.u)->rx_bytes, udp_stats(x.u)->tx_bytes);
	assert_int_equal(udp_stats(y.u)->rx_bad_icrc, 0);
	assert_int_equal(udp_stats(y.u)->rx_malformed, 0);
	assert_int_equal(udp_stats(y.u)->rx_overflow, 0);
	assert_int_equal(registry_backlog(y.r), 0);
	node_stop(&x);
	node_stop(&y);
}

static void private_port_v4(void **state)
{
	(void)state;
	round_trip(&direct, "127.0.0.1", "127.0.0.2");
}

static void private_port_v6(void **state)
{
	(void)state;
	round_trip(&direct, "::1", "::1");
}

static void wire_v4(void **state)
{
	(void)state;
	round_trip(&wire, "127.0.0.1", "127.0.0.2");
}

static void wire_v6(void **state)
{
	(void)state;
	round_trip(&wire, "::1", "::1");
}

/* One process alone, without a registry, talks to itself over port 4791. */
static void alone(void **state)
{
	struct roce_path path = path_of("127.0.0.1", "127.0.0.1");
	union ibv_gid gid = gid_of("127.0.0.1");
	struct node n = { .forward_to = -1, .qpn = CHUNK_OF(0x777000) };
	struct udp *second;

	(void)state;
	assert_int_equal(udp_create(&n.u, &direct, NULL), 0);
	node_bind(&n, "127.0.0.1");
	node_send(&n, &n, &path, 0x777abc, RC_MIDDLE, 1000, 300);
	node_expect(&n, 300);
	assert_int_equal(udp_create(&second, &direct, NULL), 0);
	assert_int_equal(udp_bind(second, &gid, 0), -EADDRINUSE);
	assert_non_null(strstr(udp_why(second), "4791 of 127.0.0.1"));
	assert_non_null(strstr(udp_why(second), "test_udp"));
	udp_destroy(second);
	udp_destroy(n.u);
}

/* A datagram of 64 packets is handed over as slowly as the caller wants. */
static void budget_is_kept(void **state)
{
	struct roce_path path = path_of("127.0.0.1", "127.0.0.1");
	struct node n;

	(void)state;
	node_start(&n, &direct);
	node_bind(&n, "127.0.0.1");
	assert_false(node_readable(&n));
	node_send(&n, NULL, &path, n.qpn, RC_MIDDLE, 256, 128);
	for (unsigned before = 0; before < 128; before = n.count) {
		assert_true(node_readable(&n));
		assert_in_range(udp_poll(n.u, 5, node_rx, &n), 1, 5);
		assert_in_range(n.count, before + 1, before + 5);
	}
	assert_int_equal(n.count, 128);
	assert_int_equal(n.wrong, 0);
	assert_int_equal(udp_poll(n.u, 5, node_rx, &n), 0);
	assert_false(node_readable(&n));
	node_stop(&n);
}

static unsigned lossy(double loss, uint64_t seed, uint8_t *pattern_out)
{
	struct udp_config cfg = { .loss = loss, .seed = seed };
	struct roce_path path = path_of("127.0.0.1", "127.0.0.1");
	struct node n;
	unsigned count;

	node_start(&n, &cfg);
	node_bind(&n, "127.0.0.1");
	n.any_order = true;
	node_send(&n, &n, &path, n.qpn, RC_MIDDLE, 100, 1000);
	node_poll(&n);
	count = n.count;
	assert_int_equal(n.wrong, 0);
	assert_int_equal(udp_stats(n.u)->tx_dropped, 1000 - count);
	assert_int_equal(udp_stats(n.u)->tx_pkts, count);
	*pattern_out = (uint8_t)n.next_psn;
	node_stop(&n);
	return count;
}

static void loss_is_what_was_asked_for(void **state)
{
	uint8_t last[3];

	(void)state;
	assert_int_equal(lossy(1, 1, last), 0);
	assert_int_equal(lossy(0, 1, last), 1000);
	assert_in_range(lossy(0.5, 1, &last[0]), 400, 600);
	assert_int_equal(lossy(0.01, 7, &last[0]), lossy(0.01, 7, &last[1]));
	assert_int_equal(last[0], last[1]);
	assert_in_range(lossy(0.01, 8, &last[0]), 970, 999);
}

/* Packets of one batch to several places; each takes its way. */
static void mixed_batch(void **state)
{
	struct roce_path to_b = path_of("127.0.0.1", "127.0.0.2");
	struct roce_path to_c = path_of("127.0.0.1", "127.0.0.3");
	static struct roce_batch batch;
	struct node a, b, c;
	int err;

	(void)state;
	node_start(&a, &direct);
	node_start(&b, &direct);
	node_start(&c, &wire);
	node_bind(&b, "127.0.0.2");
	node_bind(&c, "127.0.0.3");
	batch.n = batch.data.n = 0;
	for (uint32_t i = 0; i < 60; i++)
		batch_add(&batch, i % 3 ? &to_b : &to_c, i % 3 ? b.qpn : c.qpn,
			  RC_MIDDLE, i / 3 * 2 + i % 3, i % 5 ? 512 : 99);
	b.any_order = c.any_order = true;
	assert_int_equal(udp_send(a.u, &batch, &err), 60);
	assert_int_equal(err, 0);
	node_expect(&b, 40);
	node_expect(&c, 20);
	node_stop(&a);
	node_stop(&b);
	node_stop(&c);
}

static void multicast(void **state)
{
	static const struct {
		const char *group, *src, *ifname;
	} cases[] = {
		{ "239.9.8.7", "127.0.0.1", "lo" },
		{ "224.0.0.99", "10.99.0.1", "sh0" },
		{ "ff12::4791", "fd99::1", "sh0" },
		{ "ff12::4791", "::1", "lo" },
	};
	struct node x, y;
	bool veth;

	(void)state;
	veth = ip("link add sh0 type veth peer name sh1") &&
	       ip("link set sh0 up") && ip("link set sh1 up") &&
	       ip("addr add 10.99.0.1/24 dev sh0") &&
	       ip("addr add fd99::1/64 dev sh0 nodad");
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct roce_path path = path_of(cases[i].src, cases[i].group);
		union ibv_gid group = path.dgid;
		unsigned ifindex = if_nametoindex(cases[i].ifname);

		if (!ifindex && !veth)
			continue;
		node_start(&x, &direct);
		node_start(&y, &direct);
		assert_int_equal(udp_bind(x.u, &group, ifindex), 0);
		assert_int_equal(udp_bind(y.u, &group, ifindex), 0);
		node_send(&x, NULL, &path, ROCE_MULTICAST_QPN, UD_ONLY, 200, 5);
		node_expect(&x, 5);
		node_expect(&y, 5);
		assert_memory_equal(&y.last.dgid, &group, 16);
		assert_memory_equal(&y.last.sgid, &path.sgid, 16);
		assert_non_null(y.last.grh);
		udp_unbind(y.u, &group, ifindex);
		node_send(&x, NULL, &path, ROCE_MULTICAST_QPN, UD_ONLY, 200, 5);
		x.next_psn = 0;
		node_expect(&x, 10);
		node_poll(&y);
		assert_int_equal(y.count, 5);
		node_stop(&x);
		node_stop(&y);
	}
	if (veth)
		ip("link del sh0");
}

/* However many groups one process is in, another's address finds a place. */
static void many_groups(void **state)
{
	union ibv_gid group = gid_of("239.8.0.0"), gid = gid_of("127.0.0.8");
	unsigned lo = if_nametoindex("lo");
	struct node x, y;
	int err = 0, n;

	(void)state;
	node_start(&x, &direct);
	node_start(&y, &direct);
	for (n = 0; n < REGISTRY_ADDRS + 1; n++) {
		put_be16(group.raw + 14, (uint32_t)n);
		assert_int_equal(udp_bind(x.u, &group, lo), 0);
	}
	assert_int_equal(udp_bind(y.u, &gid, 0), 0);
	assert_string_equal(udp_why(y.u), "");
	/* What is relayed needs places; who finds none is told. */
	group = gid_of("ff12::1:0");
	for (n = 0; n < REGISTRY_ADDRS && !err; n++) {
		put_be16(group.raw + 14, (uint32_t)n);
		err = udp_bind(x.u, &group, lo);
	}
	assert_int_equal(err, -ENOSPC);
	assert_int_equal(n, REGISTRY_GROUPS + 1);
	gid = gid_of("127.0.0.9");
	assert_int_equal(udp_bind(y.u, &gid, 0), 0);
	node_stop(&x);
	node_stop(&y);
}

/* Memory that is gone is said at its packet; those before it have left. */
static void bad_memory_ends_a_batch(void **state)
{
	struct roce_path path = path_of("127.0.0.1", "127.0.0.2");
	static struct roce_batch b;
	struct node x, y;
	int err;

	(void)state;
	node_start(&x, &direct);
	node_start(&y, &direct);
	node_bind(&y, "127.0.0.2");
	b.n = b.data.n = 0;
	for (uint32_t i = 0; i < 9; i++)
		batch_add(&b, &path, y.qpn, RC_MIDDLE, i, 100);
	b.data.iov[b.pkt[4].iov].iov_base =
		mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_int_equal(udp_send(x.u, &b, &err), 4);
	assert_int_equal(err, EFAULT);
	y.any_order = true;
	node_expect(&y, 4);
	munmap(b.data.iov[b.pkt[4].iov].iov_base, 4096);
	assert_int_equal(udp_stats(x.u)->tx_pkts, 4);
	assert_int_equal(registry_backlog(y.r), 0);
	node_stop(&x);
	node_stop(&y);
}

static void unreachable_places_are_lost_and_said(void **state)
{
	struct roce_path path = path_of("127.0.0.1", "203.0.113.5");
	static struct roce_batch b;
	struct node x;
	int err;

	(void)state;
	node_start(&x, &direct);
	b.n = b.data.n = 0;
	for (uint32_t i = 0; i < 3; i++)
		batch_add(&b, &path, 5, RC_MIDDLE, i, 100);
	assert_int_equal(udp_send(x.u, &b, &err), 3);
	assert_int_equal(err, ENETUNREACH);
	path = path_of("10.1.2.3", "127.0.0.1"); /* not our address */
	assert_int_equal(udp_send(x.u, &b, &err), 3);
	assert_true(err > 0);
	assert_int_equal(udp_stats(x.u)->tx_pkts, 0);
	node_stop(&x);
}

/* A message for QP1 that belongs to someone else on this host. */
static void forwarding(void **state)
{
	struct roce_path path = path_of("127.0.0.1", "127.0.0.2");
	struct node x, y, z;

	(void)state;
	node_start(&x, &direct);
	node_start(&y, &direct);
	node_start(&z, &direct);
	node_bind(&y, "127.0.0.2");
	y.forward_to = (int)registry_slot(z.r);
	path.tclass = 0x20;
	path.hop_limit = 9;
	node_send(&x, &y, &path, 1, UD_ONLY, 256, 20);
	node_poll(&y);
	assert_int_equal(y.wrong, 0);
	node_expect(&z, 20);
	assert_memory_equal(&z.last.sgid, &path.sgid, 16);
	assert_memory_equal(&z.last.dgid, &path.dgid, 16);
	assert_int_equal(z.last.tclass, 0x20);
	assert_int_equal(z.last_grh[28], 9);
	assert_int_equal(z.last_grh[21], 0x20);
	assert_int_equal(registry_backlog(z.r), 0);
	/* One that was kept for a while. */
	{
		uint8_t p[12 + 8 + 100];
		struct roce_hdr h = { .opcode = UD_ONLY, .dest_qpn = 1 };

		roce_encode(&h, p);
		for (size_t i = 0; i < 100; i++)
			p[20 + i] = pattern(0, i);
		z.next_psn = 0;
		assert_int_equal(udp_handover(y.u, registry_slot(z.r),
					      &path.sgid, &path.dgid, 0x40, p,
					      sizeof(p)),
				 0);
		assert_int_equal(udp_handover(y.u, 1000, &path.sgid, &path.dgid,
					      0, p, sizeof(p)),
				 -ENOENT);
		assert_int_equal(udp_handover(y.u, registry_slot(z.r),
					      &path.sgid, &path.dgid, 0, p,
					      65536),
				 -EMSGSIZE);
	}
	node_expect(&z, 21);
	assert_int_equal(z.last.len, 100);
	assert_int_equal(z.last.tclass, 0x40);
	assert_memory_equal(&z.last.sgid, &path.sgid, 16);
	node_stop(&x);
	node_stop(&y);
	node_stop(&z);
}

struct thread_arg {
	struct node *n;
	_Atomic bool stop;
	struct roce_path path;
	_Atomic unsigned sent;
};

static void *poll_thread(void *arg)
{
	struct thread_arg *t = arg;

	while (!t->stop) {
		struct pollfd pfd = { .fd = udp_fd(t->n->u), .events = POLLIN };

		poll(&pfd, 1, 5);
		udp_poll(t->n->u, 16, node_rx, t->n);
	}
	return NULL;
}

static void *send_thread(void *arg)
{
	struct thread_arg *t = arg;
	struct roce_batch *b = calloc(1, sizeof(*b));
	struct roce_hdr h = { .opcode = RC_MIDDLE, .dest_qpn = t->n->qpn };
	int err;

	for (int i = 0; i < 300; i++) {
		uint64_t end = clock_ns() + 1000000000u;
		size_t n = 0;

		b->n = (size_t)(1 + i % 8);
		for (size_t k = 0; k < b->n; k++) {
			b->pkt[k].path = &t->path;
			b->pkt[k].hash = (uint32_t)(uintptr_t)t >> 4;
			b->pkt[k].h = h;
		}
		while (!n && clock_ns() < end)
			n = udp_send(t->n->u, b, &err);
		t->sent += (unsigned)n;
	}
	free(b);
	return NULL;
}

static void threads(void **state)
{
	struct thread_arg poller = { 0 }, sender[3] = { 0 };
	pthread_t tp[2], ts[3];
	union ibv_gid other = gid_of("127.0.0.3");
	struct node n;
	unsigned sent = 0;

	(void)state;
	node_start(&n, &direct);
	node_bind(&n, "127.0.0.2");
	n.any_order = true;
	poller.n = &n;
	for (int i = 0; i < 2; i++)
		pthread_create(&tp[i], NULL, poll_thread, &poller);
	for (int i = 0; i < 3; i++) {
		sender[i].n = &n;
		sender[i].path = path_of("127.0.0.1", "127.0.0.2");
		pthread_create(&ts[i], NULL, send_thread, &sender[i]);
	}
	for (int i = 0; i < 100; i++) {
		assert_int_equal(udp_bind(n.u, &other, 0), 0);
		udp_unbind(n.u, &other, 0);
		udp_poll_wait(n.u);
		assert_true(registry_lease(n.r) > 0);
	}
	for (int i = 0; i < 3; i++) {
		pthread_join(ts[i], NULL);
		sent += sender[i].sent;
	}
	poller.stop = true;
	for (int i = 0; i < 2; i++)
		pthread_join(tp[i], NULL);
	node_poll(&n);
	assert_int_equal(n.count, sent);
	assert_int_equal(n.wrong, 0);
	node_stop(&n);
}

static void busy_rx(void *arg, const struct roce_rx *pkt)
{
	struct node *n = arg;

	/* Another poll while one is on: not now. Binding is no problem. */
	if (udp_poll(n->u, 1, busy_rx, n) != -EBUSY ||
	    udp_bind(n->u, &pkt->dgid, 0))
		n->wrong++;
	udp_unbind(n->u, &pkt->dgid, 0);
	n->count++;
}

static void polling_is_for_one_at_a_time(void **state)
{
	struct roce_path path = path_of("127.0.0.1", "127.0.0.2");
	struct node n;

	(void)state;
	node_start(&n, &direct);
	node_bind(&n, "127.0.0.2");
	node_send(&n, NULL, &path, n.qpn, RC_MIDDLE, 64, 3);
	assert_int_equal(udp_poll(n.u, 10, busy_rx, &n), 3);
	assert_int_equal(n.count, 3);
	assert_int_equal(n.wrong, 0);
	node_stop(&n);
}

static int forked(void *arg)
{
	struct node *parents = arg, n;
	struct roce_path path = path_of("127.0.0.2", "127.0.0.2");

	udp_abandon(parents->u);
	registry_abandon(parents->r);
	node_start(&n, &wire);
	node_bind(&n, "127.0.0.2");
	node_send(&n, &n, &path, n.qpn, RC_MIDDLE, 64, 30);
	node_expect(&n, 30);
	node_stop(&n);
	return 0;
}

static void fork_leaves_the_parent_alone(void **state)
{
	struct roce_path path = path_of("127.0.0.2", "127.0.0.2");
	struct node n;

	(void)state;
	node_start(&n, &wire);
	node_bind(&n, "127.0.0.2");
	assert_int_equal(in_child(forked, &n), 0);
	node_send(&n, &n, &path, n.qpn, RC_MIDDLE, 64, 30);
	node_expect(&n, 30);
	assert_int_equal(udp_stats(n.u)->rx_steered, 0);
	node_stop(&n);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(private_port_v4),
		cmocka_unit_test(private_port_v6),
		cmocka_unit_test(wire_v4),
		cmocka_unit_test(wire_v6),
		cmocka_unit_test(alone),
		cmocka_unit_test(budget_is_kept),
		cmocka_unit_test(loss_is_what_was_asked_for),
		cmocka_unit_test(mixed_batch),
		cmocka_unit_test(multicast),
		cmocka_unit_test(many_groups),
		cmocka_unit_test(bad_memory_ends_a_batch),
		cmocka_unit_test(unreachable_places_are_lost_and_said),
		cmocka_unit_test(forwarding),
		cmocka_unit_test(threads),
		cmocka_unit_test(polling_is_for_one_at_a_time),
		cmocka_unit_test(fork_leaves_the_parent_alone),
	};

	return RUN_NODE_TESTS(tests, argc, argv);
}

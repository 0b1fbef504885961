/*
 * test_udp_bind.c - port 4791: shared and steered among our processes, or taken
 * by others
 */
#include "udp_node.h"

#include "wire/mad.h"

#include <errno.h>
#include <netinet/udp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* After this a wrong place in the list may be put right, and a port that was
 * taken is tried again. */
#define SETTLED_NS 20000000u
#define RETRY_NS 1100000000u

/* What it has counted until now is in struct shared. */
static bool settled(struct shared *s)
{
	return wait_for(&s->polls, s->polls + 2);
}

static void steering_of_processes(const struct udp_config *cfg)
{
	struct roce_path path = path_of("127.0.0.1", "127.0.0.2");
	enum { N = 8, ROUNDS = 5 };
	struct shared *s[N];
	uint64_t seed = rnd_seed();
	uint32_t sent[N] = { 0 };
	uint64_t steered = 0;
	struct node x;
	pid_t pid[N];

	node_start(&x, cfg);
	for (int i = 0; i < N; i++) {
		s[i] = shared_new();
		pid[i] = receiver(s[i], cfg, "127.0.0.2");
	}
	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < N; i++)
			assert_true(wait_for(&s[i]->ready, 1));
		for (int k = 0; k < 5; k++) {
			for (int i = 0; i < N; i++) {
				node_send(&x, NULL, &path, s[i]->qpn + 1,
					  RC_MIDDLE, 512, 40);
				sent[i] += 40;
			}
			for (int i = 0; i < N; i++)
				assert_true(wait_for(&s[i]->count, sent[i]));
			/* Who was found wrong may be corrected by the next. */
			clock_forward(SETTLED_NS);
		}
		for (int i = 0; i < N; i++) {
			assert_true(settled(s[i]));
			assert_int_equal(s[i]->count, sent[i]);
			assert_int_equal(s[i]->wrong, 0);
			assert_int_equal(s[i]->overflow, 0);
			steered += s[i]->steered;
		}
		/* Some die together, others come; some leave properly. */
		for (int i = 0; i < N && round < ROUNDS - 1; i++) {
			if (rnd(&seed) % 2)
				continue;
			if (rnd(&seed) % 3) {
				kill(pid[i], SIGKILL);
				waitpid(pid[i], NULL, 0);
			} else {
				s[i]->stop = 1;
				end(pid[i]);
			}
			memset(s[i], 0, sizeof(*s[i]));
			sent[i] = 0;
			if (rnd(&seed) % 2) { /* two deaths in a row */
				pid[i] = receiver(s[i], cfg, "127.0.0.2");
				continue;
			}
			pid[i] = receiver(s[i], cfg, "127.0.0.2");
			assert_true(wait_for(&s[i]->ready, 1));
		}
	}
	for (int i = 0; i < N; i++) {
		s[i]->stop = 1;
		end(pid[i]);
	}
	print_message("handed over: %llu\n", (unsigned long long)steered);
	/* Far most packets find their way by themselves. */
	if (cfg->wire)
		assert_true(steered < N * ROUNDS * 200 / 2);
	else
		assert_int_equal(steered, 0);
	node_stop(&x);
}

static void steering(void **state)
{
	(void)state;
	steering_of_processes(&wire);
	steering_of_processes(&direct);
}

static void send_mad(struct node *x, const struct roce_path *path,
		     const struct mad *m)
{
	uint8_t mad[MAD_LEN];
	struct roce_batch b = { .n = 0 };
	int err = 0;

	batch_add(&b, path, 1, UD_ONLY, 0, 0);
	mad_encode(m, mad);
	b.data.iov[b.data.n++] = (struct iovec){ mad, MAD_LEN };
	b.pkt[0].niov = 1;
	b.pkt[0].payload = MAD_LEN;
	assert_int_equal(udp_send(x->u, &b, &err), 1);
}

/* What is for QP1 goes to the process whose communication ID it names. */
static void steering_of_messages(void **state)
{
	static const uint16_t attr[] = { MAD_CM_MRA,     MAD_CM_REJ,
					 MAD_CM_REP,     MAD_CM_RTU,
					 MAD_CM_DREQ,    MAD_CM_DREP,
					 MAD_CM_LAP,     MAD_CM_APR,
					 MAD_CM_SIDR_REP };
	struct roce_path path = path_of("127.0.0.1", "127.0.0.2");
	enum { N = 3 };
	struct shared *s[N];
	struct node x;
	pid_t pid[N];

	(void)state;
	node_start(&x, &wire);
	for (int i = 0; i < N; i++) {
		s[i] = shared_new();
		pid[i] = receiver(s[i], &wire, "127.0.0.2");
		assert_true(wait_for(&s[i]->ready, 1));
	}
	for (size_t a = 0; a < ARRAY_SIZE(attr); a++) {
		for (int i = 0; i < N; i++) {
			uint32_t id = 0xab000000 | (s[i]->qpn + 0x123);
			struct mad m = { .attr_id = attr[a] };

			if (attr[a] == MAD_CM_SIDR_REP)
				m.sidr_rep.request_id = id;
			else
				m.rtu.remote_comm_id = id;
			send_mad(&x, &path, &m);
		}
	}
	/* a request names none: the first socket's process finds its owner */
	send_mad(&x, &path, &(struct mad){ .attr_id = MAD_CM_REQ });
	send_mad(&x, &path, &(struct mad){ .attr_id = MAD_CM_SIDR_REQ });
	for (uint32_t i = 0; i < N; i++) {
		assert_true(
			wait_for(&s[i]->count, ARRAY_SIZE(attr) + (i ? 0 : 2)));
		assert_true(settled(s[i]));
		assert_int_equal(s[i]->wrong, i ? 0 : 2);
	}
	for (int i = 0; i < N; i++) {
		s[i]->stop = 1;
		end(pid[i]);
	}
	node_stop(&x);
}

/*
 * Deaths in an order that nobody saw: the list is then a guess, and packets
 * that go astray put it right.
 */
static void steering_is_repaired(void **state)
{
	struct roce_path path = path_of("127.0.0.1", "127.0.0.2");
	enum { N = 6 };
	struct shared *s[N];
	uint64_t steered[2] = { 0 };
	uint32_t want = 0;
	struct node x;
	pid_t pid[N];

	(void)state;
	node_start(&x, &wire);
	for (int i = 0; i < N; i++) {
		s[i] = shared_new();
		pid[i] = receiver(s[i], &wire, "127.0.0.2");
		assert_true(wait_for(&s[i]->ready, 1));
	}
	/* The list is swept in order of slots; this is the other order. */
	end_killed(pid[2]); /* kernel: 0 1 5 3 4 */
	end_killed(pid[1]); /* kernel: 0 4 5 3; swept: 0 5 4 3 or so */
	for (int round = 0; round < 2; round++) {
		for (int k = 0; k < 20; k++) {
			for (int i = 0; i < N; i++)
				if (i != 1 && i != 2)
					node_send(&x, NULL, &path, s[i]->qpn,
						  RC_MIDDLE, 64, 10);
			want += 10;
			for (int i = 0; i < N; i++)
				assert_true(i == 1 || i == 2 ||
					    wait_for(&s[i]->count, want));
			clock_forward(SETTLED_NS);
		}
		for (int i = 0; i < N; i++) {
			if (i == 1 || i == 2)
				continue;
			assert_true(settled(s[i]));
			assert_int_equal(s[i]->count, want);
			steered[round] += s[i]->steered;
		}
	}
	print_message("handed over: %llu, then %llu\n",
		      (unsigned long long)steered[0],
		      (unsigned long long)(steered[1] - steered[0]));
	assert_true(steered[0] > 0); /* else nothing has been tested */
	assert_int_equal(steered[1], steered[0]); /* all is well since */
	for (int i = 0; i < N; i++) {
		if (i == 1 || i == 2)
			continue;
		s[i]->stop = 1;
		end(pid[i]);
	}
	node_stop(&x);
}

static void many_sockets(void **state)
{
	enum { N = 64 };
	static struct node n[N];
	struct roce_path path = path_of("127.0.0.1", "127.0.0.2");
	struct udp_config small = { .wire = true, .rcvbuf = 65536 };

	(void)state;
	for (int i = 0; i < N; i++) {
		node_start(&n[i], &small);
		node_bind(&n[i], "127.0.0.2");
		/* Ranges that are no range: every other chunk. */
		assert_true(registry_lease(n[i / 2].r) > 0);
		assert_true(registry_lease(n[i / 3].r) > 0);
	}
	for (int i = 0; i < N; i++) {
		node_send(&n[(i + 1) % N], &n[i], &path, n[i].qpn, RC_MIDDLE,
			  100, 20);
		node_expect(&n[i], 20);
		assert_int_equal(udp_stats(n[i].u)->rx_steered, 0);
	}
	for (int i = 0; i < N; i += 2)
		node_stop(&n[i]);
	for (int i = 1; i < N; i += 2) {
		n[i].next_psn = 0;
		node_send(&n[i], &n[i], &path, n[i].qpn, RC_MIDDLE, 100, 20);
		node_expect(&n[i], 40);
		assert_int_equal(udp_stats(n[i].u)->rx_steered, 0);
		node_stop(&n[i]);
	}
}

/* The port is someone else's: said so, and this host still works. */
static void foreign_owner_of_the_port(void **state)
{
	struct roce_path path = path_of("127.0.0.1", "127.0.0.4");
	union ibv_gid gid = gid_of("127.0.0.4");
	struct node x, y;
	int fd, binds = 1;
	char name[64];

	(void)state;
	fd = plain_socket("127.0.0.4", ROCE_UDP_PORT);
	assert_true(fd >= 0);
	node_start(&x, &direct);
	node_start(&y, &direct);
	assert_int_equal(udp_bind(y.u, &gid, 0), 0);
	snprintf(name, sizeof(name), "process %d (", (int)getpid());
	assert_non_null(strstr(udp_why(y.u), name));
	assert_non_null(strstr(udp_why(y.u), "127.0.0.4"));
	node_send(&x, &y, &path, y.qpn, RC_MIDDLE, 100, 100);
	node_expect(&y, 100);
	/* When the other has gone, a bind a second later takes the port. */
	close(fd);
	clock_forward(RETRY_NS);
	assert_int_equal(udp_bind(y.u, &gid, 0), 0);
	binds++;
	assert_string_equal(udp_why(y.u), "");
	while (binds--) {
		fd = plain_socket("127.0.0.4", ROCE_UDP_PORT);
		assert_int_equal(fd, -EADDRINUSE);
		udp_unbind(y.u, &gid, 0);
	}
	fd = plain_socket("127.0.0.4", ROCE_UDP_PORT);
	assert_true(fd >= 0);
	close(fd);
	/* Wildcards, in both families, are in the way as well. */
	fd = plain_socket("0.0.0.0", ROCE_UDP_PORT);
	assert_true(fd >= 0);
	assert_int_equal(udp_bind(y.u, &gid, 0), 0);
	assert_non_null(strstr(udp_why(y.u), name));
	close(fd);
	udp_unbind(y.u, &gid, 0);
	/* So are sockets of the kernel, such as rxe's; here it is VXLAN's. */
	if (ip("link add sx0 type vxlan id 5 dstport 4791") &&
	    ip("link set sx0 up")) {
		assert_int_equal(udp_bind(y.u, &gid, 0), 0);
		assert_non_null(strstr(udp_why(y.u), "the kernel"));
		udp_unbind(y.u, &gid, 0);
	}
	ip("link del sx0");
	node_stop(&x);
	node_stop(&y);
}

/* Takes the registry's lock when go is odd, lets it go when it is even. */
static pid_t lock_holder(struct shared *s)
{
	struct registry *r;
	pid_t pid = fork_child();

	if (pid)
		return pid;
	if (registry_join(&r, dir, NULL))
		_exit(1);
	for (uint32_t n = 1; !s->stop; n++) {
		while (s->go < n && !s->stop)
			usleep(1000);
		if (s->stop)
			break;
		if (!(n & 1))
			registry_unlock(r);
		else if (registry_lock(r))
			_exit(2);
		s->ready = n;
	}
	registry_leave(r);
	_exit(0);
}

/*
 * Every QP binds its address. Where the port is taken, all but the first do
 * without the lock that all processes of the host share.
 */
static void a_taken_port_is_remembered(void **state)
{
	union ibv_gid gid = gid_of("127.0.0.7");
	struct shared *s = shared_new();
	struct node y;
	int fd, status;
	pid_t pid;

	(void)state;
	fd = plain_socket("127.0.0.7", ROCE_UDP_PORT);
	assert_true(fd >= 0);
	node_start(&y, &direct);
	pid = lock_holder(s);
	/* For a second, which does not pass here. */
	clock_by_readings(1000);
	assert_int_equal(udp_bind(y.u, &gid, 0), 0);
	s->go = 1;
	assert_true(wait_for(&s->ready, 1));
	assert_int_equal(udp_bind(y.u, &gid, 0), 0);
	s->go = 2;
	assert_true(wait_for(&s->ready, 2));
	clock_by_time();
	assert_non_null(strstr(udp_why(y.u), "test_udp"));
	s->stop = 1;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	close(fd);
	munmap(s, sizeof(*s));
	node_stop(&y);
}

static void addresses_of_others_cannot_be_bound(void **state)
{
	union ibv_gid gid = gid_of("192.0.2.77");
	struct node n;

	(void)state;
	node_start(&n, &direct);
	assert_int_equal(udp_bind(n.u, &gid, 0), -EADDRNOTAVAIL);
	assert_string_not_equal(udp_why(n.u), "");
	node_stop(&n);
}

/* Processes that do not know of each other's leases must not share a port. */
static void other_registries_are_kept_out(void **state)
{
	union ibv_gid gid = gid_of("127.0.0.5");
	char mine[64], other[64] = "/tmp/softhca-test-udp-XXXXXX";
	struct node x, y;

	(void)state;
	node_start(&x, &direct);
	node_bind(&x, "127.0.0.5");
	assert_non_null(mkdtemp(other));
	strcpy(mine, dir);
	strcpy(dir, other);
	node_start(&y, &direct);
	strcpy(dir, mine);
	assert_int_equal(udp_bind(y.u, &gid, 0), 0);
	assert_non_null(strstr(udp_why(y.u), "test_udp"));
	node_stop(&y);
	node_stop(&x);
	{
		char cmd[128];

		snprintf(cmd, sizeof(cmd), "rm -r %s", other);
		assert_int_equal(system(cmd), 0);
	}
}

static int as_other_user(void *arg)
{
	union ibv_gid gid = gid_of("127.0.0.6");
	char other[64] = "/tmp/softhca-test-udp-XXXXXX";
	struct roce_path path = path_of("127.0.0.6", "127.0.0.6");
	const char *why = "";
	struct node n;

	(void)arg;
	if (setresgid(54321, 54321, 54321) || setresuid(54321, 54321, 54321))
		return 77;
	/* The other's file is out of reach, and its place too. */
	if (!registry_join(&n.r, dir, &why) || !*why)
		return 1;
	if (!mkdtemp(other))
		return 2;
	strcpy(dir, other);
	node_start(&n, &direct);
	if (udp_bind(n.u, &gid, 0))
		return 3;
	if (!strstr(udp_why(n.u), "user 0"))
		return 4;
	/* Among themselves the user's processes can still talk. */
	node_send(&n, &n, &path, n.qpn, RC_MIDDLE, 100, 10);
	node_expect(&n, 10);
	node_stop(&n);
	{
		char cmd[128];

		snprintf(cmd, sizeof(cmd), "rm -r %s", other);
		return system(cmd) ? 5 : 0;
	}
}

static void another_user(void **state)
{
	struct node x;
	int status;

	(void)state;
	if (geteuid())
		skip();
	node_start(&x, &direct);
	node_bind(&x, "127.0.0.6");
	status = in_child(as_other_user, NULL);
	node_stop(&x);
	if (status == 77) /* one user is all this namespace has */
		skip();
	assert_int_equal(status, 0);
}

/*
 * Somebody else has the port. What is for our own processes reaches them, and
 * nothing else is sent there that could only be answered to him.
 */
static void a_stranger_gets_nothing(void **state)
{
	struct roce_path same = path_of("127.0.0.7", "127.0.0.7");
	struct roce_path other = path_of("127.0.0.1", "127.0.0.7");
	union ibv_gid gid = gid_of("127.0.0.7");
	struct node x, y, z;
	char buf[200];
	int fd;

	(void)state;
	fd = plain_socket("127.0.0.7", ROCE_UDP_PORT);
	assert_true(fd >= 0);
	node_start(&x, &direct);
	node_start(&y, &direct);
	assert_false(udp_taken(x.u, &gid, 0));
	assert_int_equal(udp_bind(x.u, &gid, 0), 0);
	assert_int_equal(udp_bind(y.u, &gid, 0), 0);
	assert_true(udp_taken(x.u, &gid, 0) && udp_astray(x.u, &same));
	assert_non_null(strstr(udp_why(x.u), "which does not share "));
	assert_non_null(strstr(udp_why(x.u), registry_path(x.r)));
	node_send(&x, &y, &same, y.qpn, RC_MIDDLE, 100, 5);
	node_expect(&y, 5);
	node_send(&x, NULL, &same, y.qpn + 10 * REGISTRY_CHUNK, RC_MIDDLE, 100,
		  5);
	node_send(&x, NULL, &same, 1, UD_ONLY, 100, 1);
	assert_int_equal(recv(fd, buf, sizeof(buf), MSG_DONTWAIT), -1);
	/* from an address of ours it is as from another host */
	node_bind(&x, "127.0.0.1");
	assert_false(udp_astray(x.u, &other));
	node_send(&x, NULL, &other, y.qpn + 10 * REGISTRY_CHUNK, RC_MIDDLE, 100,
		  1);
	assert_true(recv(fd, buf, sizeof(buf), 0) > 100);

	/* where all packets go by the port there is no way at all */
	node_start(&z, &wire);
	assert_int_equal(udp_bind(z.u, &gid, 0), -EADDRINUSE);
	assert_false(udp_taken(z.u, &gid, 0));
	close(fd);
	assert_int_equal(udp_bind(z.u, &gid, 0), 0);
	node_stop(&x);
	node_stop(&y);
	node_stop(&z);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(steering),
		cmocka_unit_test(steering_of_messages),
		cmocka_unit_test(steering_is_repaired),
		cmocka_unit_test(many_sockets),
		cmocka_unit_test(foreign_owner_of_the_port),
		cmocka_unit_test(a_taken_port_is_remembered),
		cmocka_unit_test(a_stranger_gets_nothing),
		cmocka_unit_test(addresses_of_others_cannot_be_bound),
		cmocka_unit_test(other_registries_are_kept_out),
		cmocka_unit_test(another_user),
	};

	return RUN_NODE_TESTS(tests, argc, argv);
}

/*
 * test_udp_private.c - private ports: whose they are, and who may use them
 */
#include "open_fds.h"
#include "udp_node.h"

#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

/* The port of a killed process may be anybody's by the next packet. */
static void port_of_the_killed_is_left_alone(void **state)
{
	struct roce_path path = path_of("127.0.0.1", "127.0.0.2");
	struct shared *s = shared_new();
	struct node x;
	uint16_t port;
	char byte;
	pid_t pid;
	int fd;

	(void)state;
	node_start(&x, &direct);
	pid = receiver(s, &direct, "127.0.0.2");
	assert_true(wait_for(&s->ready, 1));
	port = registry_port(x.r, s->slot);
	assert_true(port);
	end_killed(pid);
	fd = plain_socket("127.0.0.2", port);
	assert_true(fd >= 0);
	node_send(&x, NULL, &path, s->qpn, RC_MIDDLE, 100, 5);
	assert_int_equal(recv(fd, &byte, 1, MSG_DONTWAIT), -1);
	close(fd);
	munmap(s, sizeof(*s));
	node_stop(&x);
}

/* What another user of this machine may try. */
struct stranger {
	_Atomic uint32_t go, done;
	_Atomic uint32_t port, qpn; /* of the receiver */
	_Atomic uint32_t bound; /* how often the port was to be had */
	_Atomic uint32_t heard; /* datagrams that it got */
	_Atomic uint32_t sent;
};

static void inject(struct stranger *s)
{
	const char *const from[] = { "127.0.0.1", "127.0.0.2", "0.0.0.0" };
	/* A packet of the peer's address, a hand-over, a poke. */
	uint8_t p[3][100] = { { RC_MIDDLE }, { 0xff, 2 }, { 0xff } };
	static const size_t len[] = { 100, 100, 1 };
	struct sockaddr_in6 to = { .sin6_family = AF_INET6,
				   .sin6_port = htons((uint16_t)s->port),
				   .sin6_addr = IN6ADDR_LOOPBACK_INIT };
	int fd;

	put_be24(p[0] + 5, s->qpn);
	p[1][40] = RC_MIDDLE;
	put_be24(p[1] + 45, s->qpn);
	for (size_t i = 0; i < 3 * ARRAY_SIZE(from); i++) {
		fd = plain_socket(from[i / 3], 0);
		plain_send(fd, "127.0.0.2", (uint16_t)s->port, p[i % 3],
			   len[i % 3]);
		close(fd);
		s->sent++;
	}
	fd = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (sendto(fd, p[0], 100, 0, (struct sockaddr *)&to, sizeof(to)) == 100)
		s->sent++;
	close(fd);
}

static void stranger(struct stranger *s)
{
	static const int reuse[] = { 0, SO_REUSEPORT, SO_REUSEADDR };
	const char *const at[] = { "0.0.0.0", "127.0.0.1", "127.0.0.2" };
	char buf[2000];
	int fd, wire_fd;

	die_with_parent();
	while (!s->go)
		usleep(1000);
	inject(s);
	s->done = 1;
	while (s->go < 2)
		usleep(1000);
	for (size_t i = 0; i < ARRAY_SIZE(reuse) * ARRAY_SIZE(at); i++) {
		fd = socket_with(at[i / 3], (uint16_t)s->port, reuse[i % 3]);
		s->bound += fd >= 0;
		close(fd);
	}
	fd = plain_socket("0.0.0.0", (uint16_t)s->port);
	wire_fd = plain_socket("127.0.0.2", ROCE_UDP_PORT);
	s->done = 2;
	while (s->go < 3)
		usleep(1000);
	for (int i = 0; i < 2; i++) {
		int from = i ? wire_fd : fd;

		while (from >= 0 &&
		       recv(from, buf, sizeof(buf), MSG_DONTWAIT) > 0)
			s->heard++;
	}
	_exit(0);
}

/*
 * before: x has sent to the receiver while that lived. Then nobody else can
 * have its port; otherwise x notices.
 */
static void strangers_at_the_port(bool before)
{
	struct roce_path path = path_of("127.0.0.1", "127.0.0.2");
	struct shared *s = shared_new();
	struct stranger *o = mmap(NULL, sizeof(*o), PROT_READ | PROT_WRITE,
				  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	uint8_t packet[20] = { RC_MIDDLE };
	pid_t pid, other;
	struct node x;

	node_start(&x, &direct);
	pid = receiver(s, &direct, "127.0.0.2");
	assert_true(wait_for(&s->ready, 1));
	other = fork_child();
	if (!other) {
		if (setresgid(54321, 54321, 54321) ||
		    setresuid(54321, 54321, 54321)) {
			o->done = 77;
			_exit(0);
		}
		stranger(o);
	}
	o->port = registry_port(x.r, s->slot);
	o->qpn = s->qpn;
	o->go = 1;
	assert_true(wait_for(&o->done, 1));
	if (o->done == 77) {
		print_message("no second user to be had: skipped\n");
		end(other);
		end_killed(pid);
		node_stop(&x);
		skip();
	}
	assert_in_range(o->sent, 9, 10);
	if (before) {
		node_send(&x, NULL, &path, s->qpn, RC_MIDDLE, 100, 5);
		assert_true(wait_for(&s->count, 5));
		assert_int_equal(s->wrong, 0);
	}
	end_killed(pid);
	assert_int_equal(s->count, before ? 5 : 0);
	o->go = 2;
	assert_true(wait_for(&o->done, 2));
	/* With nobody who holds it the port is to be had. */
	if (before)
		assert_int_equal(o->bound, 0);
	else
		assert_true(o->bound > 0);
	node_send(&x, NULL, &path, s->qpn, RC_MIDDLE, 100, 5);
	udp_handover(x.u, s->slot, &path.sgid, &path.dgid, 0, packet,
		     sizeof(packet));
	o->go = 3;
	end(other);
	assert_int_equal(o->heard, 0);
	munmap(s, sizeof(*s));
	munmap(o, sizeof(*o));
	node_stop(&x);
}

static void other_users_neither_send_nor_hear(void **state)
{
	(void)state;
	if (geteuid()) {
		print_message("not root, no second user: skipped\n");
		skip();
	}
	strangers_at_the_port(true);
	strangers_at_the_port(false);
}

/* Port 4791 does where no more sockets can be had, if the peer is there. */
static void out_of_descriptors(void **state)
{
	struct roce_path path = path_of("127.0.0.1", "127.0.0.2");
	union ibv_gid gid = gid_of("127.0.0.2");
	struct rlimit old, none;
	struct node x, y;
	char buf[2000];
	int fd, lowest;

	(void)state;
	for (int i = 0; i < 2; i++) {
		node_start(&x, &direct);
		node_start(&y, &direct);
		fd = -1;
		if (i) {
			fd = plain_socket("127.0.0.2", ROCE_UDP_PORT);
			assert_true(fd >= 0);
			assert_int_equal(udp_bind(y.u, &gid, 0), 0);
		} else {
			node_bind(&y, "127.0.0.2");
		}
		lowest = dup(0);
		close(lowest);
		getrlimit(RLIMIT_NOFILE, &old);
		none = old;
		none.rlim_cur = (rlim_t)lowest;
		setrlimit(RLIMIT_NOFILE, &none);
		node_send(&x, &y, &path, y.qpn, RC_MIDDLE, 100, 5);
		setrlimit(RLIMIT_NOFILE, &old);
		node_expect(&y, i ? 0 : 5);
		if (fd >= 0) {
			assert_int_equal(
				recv(fd, buf, sizeof(buf), MSG_DONTWAIT), -1);
			close(fd);
		}
		node_stop(&x);
		node_stop(&y);
	}
}

/* A server of many short-lived processes keeps a socket per slot, no more. */
static void sockets_of_the_gone_are_closed(void **state)
{
	struct roce_path path = path_of("127.0.0.1", "127.0.0.2");
	unsigned before = 0;
	struct node x, y;

	(void)state;
	node_start(&x, &direct);
	for (int i = 0; i < 20; i++) {
		node_start(&y, &direct);
		node_bind(&y, "127.0.0.2");
		node_send(&x, &y, &path, y.qpn, RC_MIDDLE, 100, 5);
		node_expect(&y, 5);
		node_stop(&y);
		if (i == 1)
			before = open_fds();
	}
	assert_int_equal(open_fds(), before);
	node_stop(&x);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(port_of_the_killed_is_left_alone),
		cmocka_unit_test(other_users_neither_send_nor_hear),
		cmocka_unit_test(out_of_descriptors),
		cmocka_unit_test(sockets_of_the_gone_are_closed),
	};

	return RUN_NODE_TESTS(tests, argc, argv);
}

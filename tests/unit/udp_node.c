/*
 * udp_node.c - processes as far as the link is concerned, for its tests
 */
#include "udp_node.h"

#include "wire/mad.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/mman.h>

char dir[64];

uint8_t pattern(uint32_t psn, size_t i)
{
	return (uint8_t)(psn * 7 + i + (i >> 8));
}

void node_rx(void *arg, const struct roce_rx *pkt)
{
	struct node *n = arg;

	if (n->forward_to >= 0) {
		if (udp_forward(n->u, (unsigned)n->forward_to))
			n->wrong++;
		return;
	}
	n->count++;
	n->last = *pkt;
	n->last.payload = NULL;
	if (pkt->grh)
		memcpy(n->last_grh, pkt->grh, 40);
	if (CHUNK_OF(pkt->h.dest_qpn) != n->qpn &&
	    pkt->h.dest_qpn != ROCE_MULTICAST_QPN && pkt->h.dest_qpn != 1)
		n->wrong++;
	if (!n->any_order && pkt->h.psn != n->next_psn)
		n->wrong++;
	n->next_psn = psn_add(pkt->h.psn, 1);
	for (size_t i = 0; i < pkt->len; i++)
		if (pkt->payload[i] != pattern(pkt->h.psn, i))
			n->wrong++;
	memcpy(n->data, pkt->payload, pkt->len);
}

void node_start(struct node *n, const struct udp_config *cfg)
{
	const char *why = "";
	int q;

	memset(n, 0, sizeof(*n));
	n->forward_to = -1;
	if (registry_join(&n->r, dir, &why)) {
		print_message("%s\n", why);
		fail();
	}
	assert_int_equal(udp_create(&n->u, cfg, n->r), 0);
	q = registry_lease(n->r);
	assert_true(q > 0);
	n->qpn = (uint32_t)q;
}

void node_stop(struct node *n)
{
	udp_destroy(n->u);
	registry_leave(n->r);
}

void node_bind(struct node *n, const char *addr)
{
	union ibv_gid gid = gid_of(addr);

	assert_int_equal(udp_bind(n->u, &gid, 0), 0);
	assert_string_equal(udp_why(n->u), "");
}

struct roce_path path_of(const char *src, const char *dst)
{
	return (struct roce_path){ .sgid = gid_of(src),
				   .dgid = gid_of(dst),
				   .hop_limit = 64 };
}

void batch_add(struct roce_batch *b, const struct roce_path *path, uint32_t qpn,
	       uint8_t opcode, uint32_t psn, size_t payload)
{
	static uint8_t data[ROCE_BATCH][ROCE_MTU_MAX];
	struct roce_pkt *p = &b->pkt[b->n];
	struct roce_hdr h = {
		.opcode = opcode,
		.pad = (uint8_t)(-payload & 3),
		.pkey = ROCE_PKEY_DEFAULT,
		.dest_qpn = qpn,
		.psn = psn & PSN_MASK,
		.src_qpn = 0x1234,
		.qkey = 0x11111111,
	};

	for (size_t i = 0; i < payload; i++)
		data[b->n][i] = pattern(psn & PSN_MASK, i);
	*p = (struct roce_pkt){
		.h = h,
		.path = path,
		.hash = qpn,
		.iov = (uint32_t)b->data.n,
		.payload = (uint32_t)payload,
	};
	if (payload > 10) { /* in two pieces */
		b->data.iov[b->data.n++] = (struct iovec){ data[b->n], 10 };
		b->data.iov[b->data.n++] =
			(struct iovec){ data[b->n] + 10, payload - 10 };
		p->niov = 2;
	} else if (payload) {
		b->data.iov[b->data.n++] =
			(struct iovec){ data[b->n], payload };
		p->niov = 1;
	}
	b->n++;
}

bool node_readable(const struct node *n)
{
	struct pollfd pfd = { .fd = udp_fd(n->u), .events = POLLIN };

	return poll(&pfd, 1, 0) == 1;
}

void node_poll(struct node *n)
{
	for (int i = 0; i < 1000; i++)
		if (udp_poll(n->u, 64, node_rx, n) <= 0 && !node_readable(n))
			break;
}

void node_expect(struct node *n, unsigned count)
{
	uint64_t end = clock_ns() + 5000000000u;

	while (n->count < count && clock_ns() < end) {
		struct pollfd pfd = { .fd = udp_fd(n->u), .events = POLLIN };

		if (udp_poll(n->u, 64, node_rx, n) > 0)
			end = clock_ns() + 5000000000u;
		else
			poll(&pfd, 1, 20);
	}
	assert_int_equal(n->count, count);
	assert_int_equal(n->wrong, 0);
}

void node_send(struct node *from, struct node *to, const struct roce_path *path,
	       uint32_t qpn, uint8_t opcode, size_t payload, unsigned count)
{
	static struct roce_batch b;
	uint64_t end = clock_ns() + 5000000000u;
	unsigned done = 0;
	size_t n;
	int err;

	while (done < count && clock_ns() < end) {
		b.n = b.data.n = 0;
		while (b.n < ROCE_BATCH && done + b.n < count)
			batch_add(&b, path, qpn, opcode, (uint32_t)(done + b.n),
				  payload);
		err = 0;
		n = udp_send_part(from->u, &from->route, &b, 0, b.n, &err);
		assert_int_equal(err, 0);
		done += (unsigned)n;
		if (to)
			node_poll(to);
		else if (n < b.n)
			usleep(100);
	}
	assert_int_equal(done, count);
}

int socket_with(const char *addr, uint16_t port, int reuse)
{
	union ibv_gid gid = gid_of(addr);
	struct sockaddr_in sin = { .sin_family = AF_INET,
				   .sin_port = htons(port) };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), on = 1;

	memcpy(&sin.sin_addr, gid.raw + 12, 4);
	if (reuse)
		setsockopt(fd, SOL_SOCKET, reuse, &on, sizeof(on));
	if (bind(fd, (struct sockaddr *)&sin, sizeof(sin))) {
		close(fd);
		return -errno;
	}
	return fd;
}

int plain_socket(const char *addr, uint16_t port)
{
	return socket_with(addr, port, 0);
}

void plain_send(int fd, const char *addr, uint16_t port, const void *data,
		size_t len)
{
	union ibv_gid gid = gid_of(addr);
	struct sockaddr_in sin = { .sin_family = AF_INET,
				   .sin_port = htons(port) };

	memcpy(&sin.sin_addr, gid.raw + 12, 4);
	assert_int_equal(
		sendto(fd, data, len, 0, (struct sockaddr *)&sin, sizeof(sin)),
		len);
}

uint16_t ip_checksum(const uint8_t *p, size_t len)
{
	uint32_t sum = 0;

	for (size_t i = 0; i < len; i += 2)
		sum += get_be16(p + i);
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t)~sum;
}

struct shared *shared_new(void)
{
	struct shared *s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE,
				MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(s, MAP_FAILED);
	return s;
}

bool wait_for(_Atomic uint32_t *p, uint32_t value)
{
	for (int i = 0; i < 20000 && atomic_load(p) < value; i++)
		usleep(1000);
	return atomic_load(p) >= value;
}

void count_rx(void *arg, const struct roce_rx *pkt)
{
	struct shared *s = arg;
	uint32_t qpn = pkt->h.dest_qpn;
	struct mad m;

	if (qpn == 1 && !mad_decode(&m, pkt->payload, pkt->len))
		qpn = 0xffffff &
		      (m.attr_id == MAD_CM_SIDR_REP ? m.sidr_rep.request_id :
						      m.rtu.remote_comm_id);
	if (CHUNK_OF(qpn) != s->qpn && qpn != ROCE_MULTICAST_QPN)
		atomic_fetch_add(&s->wrong, 1);
	if (pkt->h.dest_qpn == s->qpn + PROBE)
		atomic_fetch_add(&s->probes, 1);
	else
		atomic_fetch_add(&s->count, 1);
}

pid_t receiver(struct shared *s, const struct udp_config *cfg, const char *addr)
{
	union ibv_gid gid = gid_of(addr);
	pid_t pid = fork_child();
	struct node n;

	if (pid)
		return pid;
	if (registry_join(&n.r, dir, NULL) || udp_create(&n.u, cfg, n.r) ||
	    udp_bind(n.u, &gid, 0))
		_exit(1);
	s->qpn = (uint32_t)registry_lease(n.r);
	s->slot = registry_slot(n.r);
	s->ready = 1;
	while (!s->stop) {
		struct pollfd pfd = { .fd = udp_fd(n.u), .events = POLLIN };

		poll(&pfd, 1, 5);
		while (udp_poll(n.u, 64, count_rx, s) > 0)
			;
		s->steered = udp_stats(n.u)->rx_steered;
		s->overflow = udp_stats(n.u)->rx_overflow;
		s->polls++;
	}
	udp_destroy(n.u);
	registry_leave(n.r);
	_exit(0);
}

void end(pid_t pid)
{
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status) && !WEXITSTATUS(status));
}

void end_killed(pid_t pid)
{
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}

bool nodes_ready(int argc, char **argv)
{
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	if (own_netns())
		return true;
	print_message("no network namespace to be had: skipped\n");
	return false;
}

int nodes_setup(void **state)
{
	(void)state;
	strcpy(dir, "/tmp/softhca-test-udp-XXXXXX");
	return mkdtemp(dir) ? 0 : -1;
}

int nodes_teardown(void **state)
{
	char cmd[128];

	(void)state;
	snprintf(cmd, sizeof(cmd), "rm -r %s", dir);
	return system(cmd);
}

/*
 * test_suspend_hosts.c - a process is suspended, and its peer is on another host:
 * told to wait, it does; and it follows to another address
 *
 * Two network namespaces and a cable between them. One process is the peer, which
 * sends and counts; its child is suspended.
 */
#include "hostns.h"
#include "pair.h"
#include "taker.h"

#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <softhca/migrate.h>
#include <sys/stat.h>

#define AT_ONCE SECOND /* not when the pause is over */

/* One end of the test, in its host. */
struct host {
	int fd; /* to the other one */
	bool peer;
	const char *at; /* by this address of IPv6; NULL: by GID 0 */
	bool got; /* what it says, before this end has asked for it */
	struct end e;
};

static char rundir[] = "/tmp/softhca-test-hosts-XXXXXX";

/* What the hosts have as SOFTHCA_MIGRATE_SECRET. */
static enum { NONE, SAME, DIFFERENT } secret;

static void secret_file(bool peer, mode_t mode)
{
	const char *text = secret == DIFFERENT && peer ? "0123456789abcdeX" :
							 "0123456789abcdef";
	static char path[] = "/tmp/softhca-test-secret-XXXXXX";
	int fd;

	strcpy(path + strlen(path) - 6, "XXXXXX");
	fd = mkstemp(path);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	assert_int_equal(fchmod(fd, mode), 0);
	close(fd);
	setenv("SOFTHCA_MIGRATE_SECRET", path, 1);
}

static void swap(struct host *h, void *mine, void *theirs, size_t len)
{
	assert_int_equal(write(h->fd, mine, len), (ssize_t)len);
	assert_int_equal(read(h->fd, theirs, len), (ssize_t)len);
}

static void meet(struct host *h)
{
	char c = 0;

	swap(h, &c, &c, 1);
}

struct info {
	union ibv_gid gid;
	uint32_t qpn;
};

/* Of an address of this host. */
static uint8_t gid_index(const char *text)
{
	union ibv_gid want, gid;

	assert_int_equal(inet_pton(AF_INET6, text, want.raw), 1);
	for (uint8_t i = 0; !ibv_query_gid(ctx, 1, i, &gid); i++)
		if (!memcmp(&gid, &want, sizeof(gid)))
			return i;
	fail_msg("no GID is %s", text);
	return 0;
}

static void connect_end(struct host *h, const struct info *to, uint8_t retry)
{
	struct ibv_qp_attr rtr = rtr_attr(to->qpn);
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS,
				   .sq_psn = rtr.rq_psn,
				   .max_rd_atomic = 16,
				   .retry_cnt = retry,
				   .rnr_retry = 7,
				   .timeout = 14 };

	rtr.ah_attr.grh.dgid = to->gid;
	rtr.ah_attr.grh.sgid_index = h->at ? gid_index(h->at) : 0;
	assert_int_equal(to_init(h->e.qp, ALL_ACCESS & ~1u), 0);
	assert_int_equal(ibv_modify_qp(h->e.qp, &rtr, rtr_mask(IBV_QPT_RC)), 0);
	assert_int_equal(ibv_modify_qp(h->e.qp, &rts, rts_mask(IBV_QPT_RC)), 0);
}

static void open_qp(struct host *h)
{
	struct info mine, theirs;

	end_init(&h->e, IBV_QPT_RC, NULL);
	mine = (struct info){ gid0, h->e.qp->qp_num };
	if (h->at)
		assert_int_equal(inet_pton(AF_INET6, h->at, mine.gid.raw), 1);
	swap(h, &mine, &theirs, sizeof(mine));
	connect_end(h, &theirs, 7);
	for (uint32_t i = 0; i < 16; i++)
		post_recv(&h->e, 100 + i, 1000 * i, 1000);
	meet(h);
}

/* What both do first. */
static void open_end(struct host *h)
{
	setup(NULL);
	open_qp(h);
}

static void close_qp(struct host *h)
{
	meet(h);
	end_fini(&h->e);
	h->e.qp = NULL;
}

static void close_end(struct host *h)
{
	close_qp(h);
	teardown(NULL);
}

static void say(struct host *h, uint64_t id)
{
	assert_int_equal(try_send(&h->e,
				  &(struct ibv_send_wr){
					  .wr_id = id, .opcode = IBV_WR_SEND },
				  32000, 900),
			 0);
}

/* One message each way, both by now. */
static void talk(struct host *h)
{
	struct ibv_wc wc;
	bool sent = false, got = h->got;

	h->got = false;
	say(h, 1);
	while (!sent || !got) {
		wc = wait_wc(h->e.cq);
		assert_string_equal(ibv_wc_status_str(wc.status),
				    ibv_wc_status_str(IBV_WC_SUCCESS));
		sent |= wc.wr_id == 1;
		got |= wc.wr_id >= 100;
		assert_int_equal(wc.qp_num, h->e.qp->qp_num);
	}
	meet(h);
}

/* The other one is away, and a message is sent to it: how long after its return it
 * takes. */
static uint64_t waits(struct host *h)
{
	struct ibv_wc wc = { 0 };
	uint64_t begin;

	meet(h); /* it is away */
	say(h, 2);
	while (!readable(h->fd, 0))
		assert_int_equal(ibv_poll_cq(h->e.cq, 1, &wc), 0);
	meet(h); /* it comes back */
	begin = now_ns();
	wc = wait_wc(h->e.cq);
	/* What the other one says next may come before its ACK. */
	if (wc.wr_id >= 100) {
		h->got = true;
		wc = wait_wc(h->e.cq);
	}
	expect_wc(&wc, 2, IBV_WC_SUCCESS);
	return now_ns() - begin;
}

static void told(struct host *h)
{
	struct softhca_peers peers;
	uint64_t ns;

	open_end(h);
	talk(h);
	if (h->peer) {
		ns = waits(h);
		assert_true(ns < AT_ONCE);
	} else {
		assert_int_equal(softhca_migrate_peers(&peers), 0);
		assert_int_equal(peers.all, 1);
		assert_int_equal(peers.wait, 1);
		assert_int_equal(peers.patience_ms, UINT32_MAX);
		assert_int_equal(softhca_suspend_for(20, NULL), 0);
		meet(h);
		sleep(5);
		meet(h);
		assert_int_equal(softhca_resume(), 0);
		assert_int_equal(wait_wc(h->e.cq).status, IBV_WC_SUCCESS);
	}
	talk(h);
	close_end(h);
}

/* The peer is told nothing, or too little: its retries run out. */
static void fails(struct host *h, unsigned seconds, unsigned least)
{
	struct ibv_wc wc;
	uint64_t begin;

	open_end(h);
	talk(h);
	if (h->peer) {
		meet(h);
		say(h, 2);
		begin = now_ns();
		wc = wait_wc(h->e.cq);
		expect_wc(&wc, 2, IBV_WC_RETRY_EXC_ERR);
		assert_true(now_ns() - begin > least * SECOND * 9 / 10);
		meet(h);
	} else {
		assert_int_equal(seconds ? softhca_suspend_for(seconds, NULL) :
					   softhca_suspend(),
				 0);
		meet(h);
		meet(h);
		assert_int_equal(softhca_resume(), 0);
	}
	close_end(h);
}

static void not_told(struct host *h)
{
	fails(h, 0, 1);
}

static void told_too_little(struct host *h)
{
	fails(h, 1, 2);
}

/* Both at once, and the one that was told last is back first. */
static void both(struct host *h)
{
	open_end(h);
	talk(h);
	assert_int_equal(softhca_suspend_for(20, NULL), 0);
	meet(h);
	sleep(h->peer ? 1 : 3);
	assert_int_equal(softhca_resume(), 0);
	meet(h);
	talk(h);
	close_end(h);
}

static void bad_times(struct host *h)
{
	open_end(h);
	assert_int_equal(softhca_suspend_for(0, NULL), EINVAL);
	assert_int_equal(softhca_suspend_for(3601, NULL), EINVAL);
	assert_non_null(strstr(softhca_migrate_why(), "3600"));
	talk(h);
	close_end(h);
}

/* One of the process's own host, which waits for it because of its seat. */

static int neighbour_fd;

static void neighbour(int fd)
{
	struct host h = { .fd = fd, .peer = true };
	char c;

	while (read(fd, &c, 1) == 1) {
		open_end(&h);
		talk(&h);
		assert_true(waits(&h) < AT_ONCE);
		talk(&h);
		close_end(&h);
	}
	_exit(0);
}

static void comes_back(struct host *h)
{
	assert_int_equal(wait_wc(h->e.cq).status, IBV_WC_SUCCESS);
	talk(h);
}

/* With a seat, and the peer elsewhere is told; the one of its host only if it has no
 * other secret. Both wait for longer than by their retries. */
static void seated(struct host *h)
{
	struct host n = { .fd = neighbour_fd };
	struct softhca_peers peers;
	int seat;

	open_end(h);
	talk(h);
	if (h->peer) {
		assert_true(waits(h) < AT_ONCE);
		talk(h);
		close_end(h);
		return;
	}
	assert_int_equal(write(n.fd, "", 1), 1);
	open_qp(&n);
	talk(&n);
	assert_int_equal(softhca_migrate_peers(&peers), 0);
	assert_int_equal(peers.all, 2);
	assert_int_equal(peers.wait, secret ? 1 : 2);
	assert_int_equal(softhca_suspend_for(20, &seat), 0);
	assert_true(seat >= 0);
	meet(h);
	meet(&n);
	sleep(4);
	meet(h);
	meet(&n);
	assert_int_equal(softhca_resume(), 0);
	comes_back(&n);
	comes_back(h);
	close_qp(&n);
	close_end(h);
}

/* Its address is another one when it goes on: both ends know. rest follows each. */
static void moves_among(struct host *h, const char *const at[2],
			const char *rest)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	union ibv_gid gid, now;
	uint8_t index;

	open_end(h);
	talk(h);
	index = h->at && !h->peer ? gid_index(h->at) : 0;
	for (unsigned i = 0; i < 4; i++) {
		const char *from = at[i % 2], *to = at[!(i % 2)];

		if (h->peer) {
			assert_true(waits(h) < AT_ONCE);
			assert_int_equal(
				ibv_query_qp(h->e.qp, &attr, IBV_QP_AV, &init),
				0);
			gid = attr.ah_attr.grh.dgid;
		} else {
			assert_int_equal(softhca_suspend_for(20, NULL), 0);
			meet(h);
			assert_true(ip("addr del %s%s", from, rest));
			/* There is none: not yet. */
			assert_int_equal(softhca_resume(), EADDRNOTAVAIL);
			assert_true(ip("addr add %s%s", to, rest));
			usleep(300000);
			meet(h);
			assert_int_equal(softhca_resume(), 0);
			assert_int_equal(wait_wc(h->e.cq).status,
					 IBV_WC_SUCCESS);
			assert_int_equal(ibv_query_gid(ctx, 1, index, &gid), 0);
		}
		now = (union ibv_gid){ .raw = { [10] = 0xff, [11] = 0xff } };
		assert_int_equal(h->at ? inet_pton(AF_INET6, to, now.raw) :
					 inet_pton(AF_INET, to, now.raw + 12),
				 1);
		assert_memory_equal(&gid, &now, sizeof(gid));
		talk(h);
	}
	close_end(h);
}

static void moves(struct host *h)
{
	static const char *const at[] = { "10.98.0.2", "10.98.0.3" };

	moves_among(h, at, "/24 dev sh1");
}

static void moves_v6(struct host *h)
{
	static const char *const at[] = { "fd98::2", "fd98::3" };
	const char *name = h->peer ? "sh0" : "sh1";

	h->at = h->peer ? "fd98::1" : at[0];
	assert_true(ip("addr add %s/64 dev %s nodad", h->at, name));
	moves_among(h, at, "/64 dev sh1 nodad");
	assert_true(ip("addr del %s/64 dev %s", h->at, name));
	h->at = NULL;
}

/* The same address on other hardware, and nobody is told by a message: neighbours
 * are, and the peer's next message arrives. */
static void other_hardware(struct host *h)
{
	struct ibv_wc wc;

	open_end(h);
	talk(h);
	if (h->peer) {
		meet(h); /* it is back */
		say(h, 2);
		wc = wait_wc(h->e.cq);
		expect_wc(&wc, 2, IBV_WC_SUCCESS);
	} else {
		assert_int_equal(softhca_suspend(), 0);
		assert_true(ip("link set sh1 address 02:00:00:98:00:77"));
		assert_int_equal(softhca_resume(), 0);
		meet(h);
		assert_int_equal(wait_wc(h->e.cq).status, IBV_WC_SUCCESS);
	}
	close_end(h);
}

/* Another process of its host has its number whenever it goes on: it gets others on
 * the wire, and its program and the peer's go on with the first. */
static void other_numbers(struct host *h)
{
	struct taker t;

	open_end(h);
	talk(h);
	if (!h->peer)
		taker_begin(&t);
	for (unsigned i = 0; i < 4; i++) {
		if (h->peer) {
			assert_true(waits(h) < AT_ONCE);
		} else {
			assert_int_equal(softhca_suspend_for(20, NULL), 0);
			meet(h);
			taker_takes(&t);
			usleep(300000);
			meet(h);
			assert_int_equal(softhca_resume(), 0);
			assert_int_equal(wait_wc(h->e.cq).status,
					 IBV_WC_SUCCESS);
		}
		talk(h);
	}
	close_end(h);
	if (!h->peer)
		taker_end(&t);
}

/* The peer is told nothing, so the number must be the same: it cannot go on before
 * the other process has ended. */
static void number_is_taken(struct host *h)
{
	struct taker t;

	open_end(h);
	talk(h);
	if (!h->peer) {
		taker_begin(&t);
		assert_int_equal(softhca_suspend(), 0);
		taker_takes(&t);
		for (unsigned i = 0; i < 2; i++) {
			assert_int_equal(softhca_resume(), EADDRINUSE);
			assert_non_null(strstr(softhca_migrate_why(),
					       "another process"));
			assert_non_null(strstr(softhca_migrate_why(),
					       "softhca_suspend_for()"));
		}
		taker_end(&t);
		assert_int_equal(softhca_resume(), 0);
	}
	talk(h);
	close_end(h);
}

/* A connection of rdma_cm follows, too, down to its end. */

static void cm_end(struct host *h, struct rdma_cm_id *id, bool sends)
{
	static char text[64];
	struct ibv_mr *mr = rdma_reg_msgs(id, text, sizeof(text));
	struct ibv_wc wc;

	assert_non_null(mr);
	if (!sends)
		assert_int_equal(
			rdma_post_recv(id, NULL, text, sizeof(text), mr), 0);
	meet(h);
	if (sends) {
		assert_int_equal(rdma_post_send(id, NULL, text, sizeof(text),
						mr, IBV_SEND_SIGNALED),
				 0);
		assert_int_equal(rdma_get_send_comp(id, &wc), 1);
	} else {
		assert_int_equal(rdma_get_recv_comp(id, &wc), 1);
	}
	assert_int_equal(wc.status, IBV_WC_SUCCESS);
	meet(h);
	rdma_dereg_mr(mr);
}

static struct ibv_qp_init_attr cm_qp(void)
{
	return (struct ibv_qp_init_attr){
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4,
			 .max_recv_wr = 4,
			 .max_send_sge = 1,
			 .max_recv_sge = 1 },
	};
}

static struct rdma_cm_id *cm_serves(struct host *h, struct rdma_cm_id **l)
{
	struct sockaddr_in at = { .sin_family = AF_INET,
				  .sin_port = htons(17472) };
	struct rdma_conn_param param = { .rnr_retry_count = 7 };
	struct ibv_qp_init_attr init = cm_qp();
	struct rdma_cm_id *id;

	assert_int_equal(rdma_create_id(NULL, l, NULL, RDMA_PS_TCP), 0);
	assert_int_equal(rdma_bind_addr(*l, (struct sockaddr *)&at), 0);
	assert_int_equal(rdma_listen(*l, 1), 0);
	meet(h);
	assert_int_equal(rdma_get_request(*l, &id), 0);
	assert_int_equal(rdma_create_qp(id, NULL, &init), 0);
	assert_int_equal(rdma_accept(id, &param), 0);
	return id;
}

static struct rdma_cm_id *cm_connects(struct host *h)
{
	struct sockaddr_in at = { .sin_family = AF_INET,
				  .sin_port = htons(17472),
				  .sin_addr.s_addr = inet_addr("10.98.0.2") };
	struct rdma_conn_param param = { .retry_count = 7,
					 .rnr_retry_count = 7 };
	struct ibv_qp_init_attr init = cm_qp();
	struct rdma_cm_id *id;

	meet(h);
	assert_int_equal(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP), 0);
	assert_int_equal(
		rdma_resolve_addr(id, NULL, (struct sockaddr *)&at, 3000), 0);
	assert_int_equal(rdma_resolve_route(id, 3000), 0);
	assert_int_equal(rdma_create_qp(id, NULL, &init), 0);
	assert_int_equal(rdma_connect(id, &param), 0);
	return id;
}

static void to_another_address(void)
{
	assert_true(ip("addr del 10.98.0.2/24 dev sh1"));
	assert_true(ip("addr add 10.98.0.4/24 dev sh1"));
}

static void back_to_the_address(void)
{
	assert_true(ip("addr del 10.98.0.4/24 dev sh1"));
	assert_true(ip("addr add 10.98.0.2/24 dev sh1"));
}

static void connection_goes_on(struct host *h, bool moves, bool renumbered)
{
	struct rdma_cm_id *id, *l = NULL;
	struct taker t;
	uint64_t begin;

	if (!h->peer && renumbered)
		taker_begin(&t);
	id = h->peer ? cm_connects(h) : cm_serves(h, &l);
	cm_end(h, id, h->peer);
	cm_end(h, id, !h->peer);
	if (!h->peer) {
		assert_int_equal(softhca_suspend_for(20, NULL), 0);
		if (moves)
			to_another_address();
		if (renumbered)
			taker_takes(&t);
		assert_int_equal(softhca_resume(), 0);
	}
	cm_end(h, id, h->peer);
	cm_end(h, id, !h->peer);
	/* Each answers the other's message. */
	begin = now_ns();
	assert_int_equal(rdma_disconnect(id), 0);
	assert_true(now_ns() - begin < 2 * SECOND);
	meet(h);
	rdma_destroy_qp(id);
	rdma_destroy_id(id);
	if (l)
		rdma_destroy_id(l);
	meet(h);
	if (!h->peer && moves)
		back_to_the_address();
	if (!h->peer && renumbered)
		taker_end(&t);
}

static void connection_moves(struct host *h)
{
	connection_goes_on(h, true, false);
}

/* Its queue pair's number and its communication IDs are others; those of the next
 * connection are of another process. */
static void connection_renumbered(struct host *h)
{
	connection_goes_on(h, false, true);
	connection_goes_on(h, false, true);
}

/* Another secret: the peer is not asked, and what it is told is not heeded. */
static void strangers(struct host *h)
{
	struct softhca_peers peers;

	open_end(h);
	talk(h);
	if (!h->peer) {
		assert_int_equal(softhca_migrate_peers(&peers), 0);
		assert_int_equal(peers.all, 1);
		assert_int_equal(peers.wait, 0);
		assert_true(peers.other_secret);
		assert_in_range(peers.patience_ms, 500, 600);
	}
	close_end(h);
	fails(h, 20, 1);
}

/* The other host */

static void (*const scenes[])(struct host *h) = {
	bad_times, told,          not_told,        told_too_little,
	both,      moves,         other_hardware,  connection_moves,
	strangers, other_numbers, number_is_taken, connection_renumbered,
	seated,    moves_v6,
};

/* Before there is a secret. */
static bool neighbour_begin(void)
{
	int both[2];
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, both))
		return false;
	fflush(NULL);
	pid = fork_child();
	close(both[!pid]);
	neighbour_fd = both[!!pid];
	if (!pid)
		neighbour(neighbour_fd);
	return pid > 0;
}

static int other_host(int fd)
{
	struct host h = { .fd = fd };
	char c;

	if (unshare(CLONE_NEWNET) || !loopback_up() || !mkdtemp(rundir))
		return 1;
	setenv("SOFTHCA_RUNDIR", rundir, 1);
	if (!neighbour_begin())
		return 1;
	if (secret)
		secret_file(false, 0600);
	if (write(fd, "", 1) != 1 || read(fd, &c, 1) != 1)
		return 2;
	if (!ip("addr add 10.98.0.2/24 dev sh1") || !ip("link set sh1 up"))
		return 3;
	meet(&h);
	for (size_t i = 0; i < sizeof(scenes) / sizeof(scenes[0]); i++) {
		if (read(fd, &c, 1) != 1)
			return 0;
		scenes[(unsigned char)c](&h);
	}
	if (secret)
		unlink(getenv("SOFTHCA_MIGRATE_SECRET"));
	rmdir(rundir);
	return 0;
}

static struct host here = { .peer = true };

/* Another process of the peer's host, which gets some of what is for QP1. */
static void bystander(int ready)
{
	struct end e;

	setup(NULL);
	end_init(&e, IBV_QPT_RC, NULL);
	connect_to(e.qp, 77);
	close(ready);
	for (;;)
		pause();
}

static int begin(void **state)
{
	int fd[2];
	pid_t pid;
	char c;

	(void)state;
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
	fflush(NULL);
	pid = fork_child();
	close(fd[!!pid]);
	if (!pid)
		_exit(other_host(fd[1]));
	here.fd = fd[0];
	assert_int_equal(read(here.fd, &c, 1), 1);
	assert_true(ip("link add sh0 type veth peer name sh1"));
	assert_true(ip("link set sh1 netns %d", (int)pid));
	assert_true(ip("addr add 10.98.0.1/24 dev sh0"));
	assert_true(ip("link set sh0 up"));
	if (secret)
		secret_file(true, 0600);
	fflush(NULL);
	assert_int_equal(pipe(fd), 0);
	for (int i = 0; i < 2; i++)
		if (!fork_child())
			bystander(fd[1]);
	close(fd[1]);
	assert_int_equal(read(fd[0], &c, 1), 0); /* both have closed it */
	close(fd[0]);
	assert_int_equal(write(here.fd, "", 1), 1);
	meet(&here);
	return 0;
}

static int finish(void **state)
{
	(void)state;
	if (secret)
		unlink(getenv("SOFTHCA_MIGRATE_SECRET"));
	return 0;
}

static void scene(void **state)
{
	const char i = (char)(uintptr_t)*state;

	assert_int_equal(write(here.fd, &i, 1), 1);
	scenes[(unsigned char)i](&here);
}

#define SCENE(fn, i)                                                           \
	{                                                                      \
#fn, scene, NULL, NULL, (void *)(uintptr_t)(i)                 \
	}

/* A file that others may read is as bad as none. */
static void open_secret(void **state)
{
	struct softhca_peers peers;
	int status;
	pid_t pid;

	(void)state;
	fflush(NULL);
	pid = fork_child();
	if (!pid) {
		secret_file(true, 0640);
		setup(NULL);
		assert_int_equal(softhca_migrate_peers(&peers), EPERM);
		assert_non_null(strstr(softhca_migrate_why(), "chmod 600"));
		assert_int_equal(softhca_suspend_for(9, NULL), EPERM);
		assert_int_equal(softhca_suspend(), 0);
		assert_int_equal(softhca_resume(), 0);
		teardown(NULL);
		unlink(getenv("SOFTHCA_MIGRATE_SECRET"));
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status) && !WEXITSTATUS(status));
}

/* Arguments: none, or "same" or "different", a secret of the hosts. */
int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		SCENE(bad_times, 0),
		SCENE(told, 1),
		SCENE(not_told, 2),
		SCENE(told_too_little, 3),
		SCENE(both, 4),
		SCENE(moves, 5),
		SCENE(moves_v6, 13),
		SCENE(seated, 12),
		SCENE(other_hardware, 6),
		SCENE(other_numbers, 9),
		SCENE(number_is_taken, 10),
		SCENE(connection_renumbered, 11),
		SCENE(connection_moves, 7), /* leaves an address bound */
	};
	/* The first one before there is a configuration. */
	const struct CMUnitTest same[] = {
		cmocka_unit_test(open_secret),
		SCENE(moves, 5),
		SCENE(seated, 12),
		SCENE(other_numbers, 9),
	};
	const struct CMUnitTest different[] = { SCENE(strangers, 8) };

	if (!own_netns() || !ip("link add shx type veth peer name shy") ||
	    !ip("link del shx")) {
		fprintf(stderr, "SKIPPED: there is no network of its own\n");
		return 0;
	}
	if (argc < 2)
		return cmocka_run_group_tests(tests, begin, finish);
	secret = !strcmp(argv[1], "same") ? SAME : DIFFERENT;
	return secret == SAME ?
		       cmocka_run_group_tests(same, begin, finish) :
		       cmocka_run_group_tests(different, begin, finish);
}

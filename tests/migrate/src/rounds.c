/*
 * rounds.c - two ends that send each other messages, and check every byte
 *
 *   rounds [-p PORT] [-g GID] [-s SIZE] [-t SECONDS] [-T TIMEOUT] [-r RETRIES]
 *     [-f FILE] [-m MIB] [-e] [HOST]
 *
 * In each round one end and then the other writes SIZE bytes into the other's
 * memory and sends it SIZE more, over one RC QP: what arrives is checked byte by
 * byte, and that each request completes once. Both end when the second one has run
 * for SECONDS (5), or either finds a FILE. TIMEOUT is that of the ACKs (14), RETRIES
 * this end's retry_cnt (7). -e: this end waits for events; -m: it has so much memory
 * that it does not write to. Nothing is between the two ends but the RDMA connection
 * (the one that has set it up is closed). Each end prints "round N" from time to
 * time, and in the end "ok N rounds, longest gap T ms".
 */
#include "peer.h"

#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SETUP_S 60
#define STOP 0xee /* first byte of the last message */

enum { RECV = 1, WRITE = 2, SEND = 3 };

static struct dev dev;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static struct remote it;
static uint8_t *buf; /* to send, received, to write, written by the other end */
static size_t size = 1000;
static bool first;
static uint8_t timeout = 14, retries = 7;
static const char *enough; /* or NULL */
static uint8_t *quiet; /* memory of -m */

/* Of the host: this end's own clock may stand for a while, and then be another. */
static double wall(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static uint8_t byte(uint64_t round, size_t i, unsigned what)
{
	return (uint8_t)(round * 31 + i * 7 + what * 101 + (round >> 8));
}

static void open_all(int gid_index, bool events)
{
	dev_open(&dev, NULL, gid_index);
	if (events)
		channel = ibv_create_comp_channel(dev.ctx);
	cq = ibv_create_cq(dev.ctx, 64, NULL, channel, 0);
	buf = aligned_alloc(4096, (4 * size + 4095) & ~(size_t)4095);
	if (!cq || !buf || (events && !channel))
		die(EXIT_SETUP, "no memory");
	memset(buf, 0, 4 * size);
	mr = ibv_reg_mr(dev.pd, buf, 4 * size,
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	if (!mr)
		die(EXIT_SETUP, "ibv_reg_mr: %m");
	qp = qp_create_rc(dev.pd, cq, 16, 16, 1);
}

static void connect_all(int fd)
{
	const struct conn_opts o = { .mtu = IBV_MTU_1024,
				     .timeout = timeout,
				     .retry_cnt = retries,
				     .rnr_retry = 7,
				     .rd_atomic = 4,
				     .access = IBV_ACCESS_LOCAL_WRITE |
					       IBV_ACCESS_REMOTE_WRITE };
	const struct remote us = { .qpn = qp->qp_num,
				   .psn = 100,
				   .rkey = mr->rkey,
				   .addr = (uintptr_t)buf,
				   .gid = dev.gid,
				   .mtu = IBV_MTU_1024 };

	qp_to_init(qp, &o);
	recv_post(qp, mr, buf + size, (uint32_t)size, RECV);
	remote_put(fd, &us);
	remote_get(fd, &it);
	qp_connect(&dev, qp, us.psn, &it, &o);
	ctrl_put(fd, "ready");
	if (!ctrl_get(fd, SETUP_S * 1000))
		die(EXIT_SETUP, "the other end is not ready");
}

/* One completion; false: there is none. */
static bool poll_one(struct ibv_wc *wc)
{
	int n = ibv_poll_cq(cq, 1, wc);

	if (n < 0)
		die(EXIT_DATA, "ibv_poll_cq: %d", n);
	return n;
}

static void next_one(struct ibv_wc *wc)
{
	struct ibv_cq *which;
	void *context;

	while (!poll_one(wc)) {
		if (!channel)
			continue;
		if (ibv_req_notify_cq(cq, 0))
			die(EXIT_DATA, "ibv_req_notify_cq");
		if (poll_one(wc))
			return;
		if (ibv_get_cq_event(channel, &which, &context))
			die(EXIT_DATA, "ibv_get_cq_event: %m");
		ibv_ack_cq_events(cq, 1);
	}
}

static void wait_for(uint64_t want, uint64_t round)
{
	static bool seen[4];
	struct ibv_wc wc;

	while (!seen[want]) {
		next_one(&wc);
		if (wc.status)
			die(EXIT_WC, "round %lu: %s", round,
			    ibv_wc_status_str(wc.status));
		if ((wc.wr_id != RECV && wc.wr_id != SEND) || seen[wc.wr_id])
			die(EXIT_DATA, "round %lu: unexpected completion %lu",
			    round, wc.wr_id);
		seen[wc.wr_id] = true;
	}
	seen[want] = false;
}

static void send_round(uint64_t round, bool stop)
{
	struct ibv_sge data = { (uintptr_t)buf, (uint32_t)size, mr->lkey };
	struct ibv_sge source = { (uintptr_t)buf + 2 * size, (uint32_t)size,
				  mr->lkey };
	struct ibv_send_wr *bad;
	struct ibv_send_wr send = { .wr_id = SEND,
				    .sg_list = &data,
				    .num_sge = 1,
				    .opcode = IBV_WR_SEND,
				    .send_flags = IBV_SEND_SIGNALED };
	struct ibv_send_wr write = { .wr_id = WRITE,
				     .next = &send,
				     .sg_list = &source,
				     .num_sge = 1,
				     .opcode = IBV_WR_RDMA_WRITE };

	write.wr.rdma.remote_addr = it.addr + 3 * size;
	write.wr.rdma.rkey = it.rkey;
	for (size_t i = 0; i < size; i++) {
		buf[i] = byte(round, i, first);
		buf[2 * size + i] = byte(round, i, 2 + first);
	}
	if (stop || buf[0] == STOP)
		buf[0] = stop ? STOP : 0;
	if (ibv_post_send(qp, &write, &bad))
		die(EXIT_DATA, "ibv_post_send");
	wait_for(SEND, round);
}

/* Whether it was the last. */
static bool receive_round(uint64_t round)
{
	const uint8_t *got = buf + size, *written = buf + 3 * size;
	bool stop;

	wait_for(RECV, round);
	stop = got[0] == STOP;
	for (size_t i = 0; i < size; i++) {
		if (i && got[i] != byte(round, i, !first))
			die(EXIT_DATA, "round %lu: wrong byte %zu received",
			    round, i);
		if (written[i] != byte(round, i, 2 + !first))
			die(EXIT_DATA, "round %lu: wrong byte %zu written",
			    round, i);
	}
	if (!stop)
		recv_post(qp, mr, buf + size, (uint32_t)size, RECV);
	return stop;
}

static void run(double seconds)
{
	const double begin = wall();
	double last = begin, said = begin, gap = 0, now;
	uint64_t round = 0;
	bool stop = false, ends = false;

	for (; !stop; round++) {
		if (first) {
			stop = receive_round(round);
			if (!stop)
				send_round(round, stop = ends);
		} else {
			stop = ends || wall() - begin > seconds;
			send_round(round, stop);
			if (!stop)
				stop = receive_round(round);
		}
		now = wall();
		gap = now - last > gap ? now - last : gap;
		last = now;
		if (now - said > 0.1) {
			printf("round %lu\n", round);
			said = now;
			ends = enough && !access(enough, F_OK);
		}
	}
	printf("ok %lu rounds, longest gap %.1f ms\n", round, gap * 1e3);
}

int main(int argc, char **argv)
{
	double seconds = 5;
	int port = 18600, gid_index = 0, c, fd;
	bool events = false;

	setvbuf(stdout, NULL, _IOLBF, 0);
	while ((c = getopt(argc, argv, "p:g:s:t:T:r:f:m:e")) != -1)
		switch (c) {
		case 'p':
			port = atoi(optarg);
			break;
		case 'g':
			gid_index = atoi(optarg);
			break;
		case 's':
			size = (size_t)atol(optarg);
			break;
		case 't':
			seconds = atof(optarg);
			break;
		case 'T':
			timeout = (uint8_t)atoi(optarg);
			break;
		case 'r':
			retries = (uint8_t)atoi(optarg);
			break;
		case 'f':
			enough = optarg;
			break;
		case 'm':
			quiet = calloc(1, (size_t)atol(optarg) << 20);
			if (!quiet)
				die(EXIT_SETUP, "-m %s", optarg);
			memset(quiet, 0x5a, (size_t)atol(optarg) << 20);
			break;
		case 'e':
			events = true;
			break;
		default:
			return EXIT_SETUP;
		}
	first = optind == argc;
	fd = ctrl_open(argv[optind], port, SETUP_S);
	open_all(gid_index, events);
	connect_all(fd);
	close(fd);
	run(seconds);
	return 0;
}

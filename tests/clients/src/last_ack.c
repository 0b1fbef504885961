/*
 * last_ack.c - a receiver that leaves as soon as it has everything
 *
 *   last_ack [-p PORT] [-g GID] [-n COUNT] destroy|close|exit
 *   last_ack [-p PORT] [-g GID] [-n COUNT] send HOST
 *
 * The first end receives COUNT messages of the second over one RC QP, and then
 * destroys the QP and waits for the other end; or destroys and closes
 * everything and ends; or just ends. The only packets that it sends are
 * acknowledgements: with "softhca run --loss=P --seed=N" it is the same ones
 * that are lost each time. The second end sends one message after the other
 * and wants each to complete.
 */
#include "peer.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIMIT_NS 20000000000u

static struct dev dev;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct ibv_qp *qp;
static char buf[4096] __attribute__((aligned(4096)));

static void wait_wc(const char *what)
{
	uint64_t end = now_ns() + LIMIT_NS;
	struct ibv_wc wc;
	int n;

	while (!(n = ibv_poll_cq(cq, 1, &wc)))
		if (now_ns() > end)
			die(EXIT_DATA, "%s: no completion", what);
	if (n < 0 || wc.status)
		die(EXIT_WC, "%s: %s", what, ibv_wc_status_str(wc.status));
}

static void post_send(void)
{
	struct ibv_sge sge = { (uintptr_t)buf, 64, mr->lkey };
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .send_flags = IBV_SEND_SIGNALED },
			   *bad;

	if (ibv_post_send(qp, &wr, &bad))
		die(EXIT_SETUP, "ibv_post_send");
}

static void tear_down(void)
{
	if (ibv_dereg_mr(mr) || ibv_destroy_cq(cq) || ibv_dealloc_pd(dev.pd) ||
	    ibv_close_device(dev.ctx))
		die(EXIT_SETUP, "tear-down: %m");
}

int main(int argc, char **argv)
{
	struct conn_opts o = { .mtu = IBV_MTU_1024,
			       .timeout = 14,
			       .retry_cnt = 7,
			       .rnr_retry = 7,
			       .rd_atomic = 1 };
	int c, fd, gid = 0, port = 18515, count = 1;
	struct remote mine = { .psn = 5, .mtu = IBV_MTU_1024 }, other;
	const char *how, *host;
	bool sends;

	while ((c = getopt(argc, argv, "p:g:n:")) > 0) {
		if (c == 'p')
			port = atoi(optarg);
		else if (c == 'g')
			gid = atoi(optarg);
		else if (c == 'n')
			count = atoi(optarg);
	}
	how = argv[optind];
	if (!how || count < 1 || count > 256)
		die(EXIT_SETUP, "see the head of last_ack.c");
	host = argv[optind + 1];
	sends = !strcmp(how, "send");
	dev_open(&dev, NULL, gid);
	cq = ibv_create_cq(dev.ctx, 512, NULL, NULL, 0);
	mr = ibv_reg_mr(dev.pd, buf, sizeof(buf), IBV_ACCESS_LOCAL_WRITE);
	if (!cq || !mr)
		die(EXIT_SETUP, "ibv_create_cq, ibv_reg_mr: %m");
	qp = qp_create_rc(dev.pd, cq, 16, 256, 1);
	fd = ctrl_open(host, port, 60);
	mine.qpn = qp->qp_num;
	mine.gid = dev.gid;
	qp_to_init(qp, &o);
	for (int i = 0; !sends && i < count; i++)
		recv_post(qp, mr, buf, sizeof(buf), 0);
	remote_put(fd, &mine);
	remote_get(fd, &other);
	qp_connect(&dev, qp, mine.psn, &other, &o);
	ctrl_put(fd, "connected");
	if (!ctrl_get(fd, 60000))
		die(EXIT_SETUP, "the other end is not connected: %m");
	for (int i = 0; i < count; i++) {
		if (sends)
			post_send();
		wait_wc(sends ? "send" : "receive");
	}
	if (sends) {
		ctrl_put(fd, "done");
	} else if (!strcmp(how, "exit")) {
		return 0;
	}
	if (ibv_destroy_qp(qp))
		die(EXIT_SETUP, "ibv_destroy_qp: %m");
	if (!strcmp(how, "destroy") && !ctrl_get(fd, 60000))
		die(EXIT_DATA, "the sender is not done: %m");
	tear_down();
	return 0;
}

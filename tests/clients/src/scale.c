/*
 * scale.c - what many queue pairs cost in memory and time
 *
 *   scale [-g GID] connected N DEPTH   N connected RC QPs, a write on each
 *   scale [-g GID] created N           N RC QPs created and destroyed
 *   scale [-g GID] time N              one 8-byte write at a time, on N QPs
 *                                      in random order
 *
 * Both ends of every connection are in this process. Prints one line with
 * name=value pairs.
 */
#include "peer.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct dev dev;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static char buf[4096] __attribute__((aligned(4096)));

static struct ibv_qp *new_qp(uint32_t depth)
{
	struct ibv_qp_init_attr ia = { .send_cq = cq,
				       .recv_cq = cq,
				       .qp_type = IBV_QPT_RC,
				       .cap = { depth, depth, 1, 1, 0 } };
	struct ibv_qp *qp = ibv_create_qp(dev.pd, &ia);

	if (!qp)
		die(EXIT_SETUP, "ibv_create_qp: %m");
	return qp;
}

static void connect_pair(struct ibv_qp *a, struct ibv_qp *b)
{
	struct conn_opts o = { .mtu = IBV_MTU_1024,
			       .timeout = 14,
			       .retry_cnt = 7,
			       .rnr_retry = 7,
			       .rd_atomic = 1,
			       .access = IBV_ACCESS_REMOTE_WRITE };
	struct remote ra = { .qpn = a->qp_num, .gid = dev.gid, .psn = 5 };
	struct remote rb = { .qpn = b->qp_num, .gid = dev.gid, .psn = 5 };

	qp_to_init(a, &o);
	qp_to_init(b, &o);
	qp_connect(&dev, a, 5, &rb, &o);
	qp_connect(&dev, b, 5, &ra, &o);
}

/* One write, waited for. */
static void write_once(struct ibv_qp *qp)
{
	struct ibv_sge sge = { (uintptr_t)buf, 8, mr->lkey };
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .send_flags = IBV_SEND_SIGNALED },
			   *bad;
	uint64_t end = now_ns() + 10000000000u;
	struct ibv_wc wc;
	int n;

	wr.wr.rdma.remote_addr = (uintptr_t)buf + 2048;
	wr.wr.rdma.rkey = mr->rkey;
	n = ibv_post_send(qp, &wr, &bad);
	if (n)
		die(EXIT_DATA, "post_send: %s", strerror(n));
	while (!(n = ibv_poll_cq(cq, 1, &wc)))
		if (now_ns() > end)
			die(EXIT_DATA, "no completion for 10 s");
	if (n < 0 || wc.status)
		die(EXIT_WC, "completion: %s", ibv_wc_status_str(wc.status));
}

int main(int argc, char **argv)
{
	uint32_t depth = 16;
	struct ibv_qp **qp;
	long before;
	uint64_t t;
	int c, n, gid = 0;

	while ((c = getopt(argc, argv, "g:")) == 'g')
		gid = atoi(optarg);
	if (argc - optind < 2)
		die(EXIT_SETUP, "see the head of scale.c");
	n = atoi(argv[optind + 1]);
	if (argc - optind > 2)
		depth = (uint32_t)atoi(argv[optind + 2]);
	dev_open(&dev, NULL, gid);
	cq = ibv_create_cq(dev.ctx, 1024, NULL, NULL, 0);
	mr = ibv_reg_mr(dev.pd, buf, sizeof(buf),
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	qp = calloc((size_t)n + 1, sizeof(*qp));
	if (!cq || !mr || !qp)
		die(EXIT_SETUP, "set-up: %m");

	before = rss_kib();
	t = now_ns();
	for (int i = 0; i < n + (n & 1); i++)
		qp[i] = new_qp(depth);
	t = now_ns() - t;
	if (!strcmp(argv[optind], "created")) {
		printf("created=%d us_each=%.2f rss_kib=%ld of_them_kib=%ld\n",
		       n, (double)t / 1e3 / n, rss_kib(), rss_kib() - before);
	} else {
		for (int i = 0; i < n; i += 2)
			connect_pair(qp[i], qp[i + 1]);
		for (int i = 0; i < n; i++)
			write_once(qp[i]);
		if (!strcmp(argv[optind], "connected")) {
			printf("connected=%d depth=%u rss_kib=%ld "
			       "of_them_kib=%ld\n",
			       n, depth, rss_kib(), rss_kib() - before);
		} else {
			enum { OPS = 20000, RUNS = 5 };
			uint64_t best = UINT64_MAX;
			uint32_t x = 1;

			for (int r = 0; r < RUNS; r++) {
				t = now_ns();
				for (int i = 0; i < OPS; i++) {
					x = x * 1664525u + 1013904223u;
					write_once(
						qp[(uint64_t)x * (uint32_t)n >>
						   32]);
				}
				t = now_ns() - t;
				if (t < best)
					best = t;
			}
			printf("qps=%d ns_per_op=%.0f rss_kib=%ld\n", n,
			       (double)best / OPS, rss_kib());
		}
	}
	for (int i = 0; i < n + (n & 1); i++)
		if (ibv_destroy_qp(qp[i]))
			die(EXIT_SETUP, "ibv_destroy_qp: %m");
	if (ibv_dereg_mr(mr) || ibv_destroy_cq(cq) || ibv_dealloc_pd(dev.pd) ||
	    ibv_close_device(dev.ctx))
		die(EXIT_SETUP, "tear-down");
	free(qp);
	return 0;
}

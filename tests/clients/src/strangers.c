/*
 * strangers.c - two processes that tell each other their queue pairs by files,
 * so that they connect whether or not their networks do
 *
 *   strangers DIR MINE ITS send|recv
 *
 * MINE and ITS are names in DIR, which both have. The one that sends sends a
 * message by RC, and some by UD, prints the status of the first, and makes
 * DIR/done; the other prints what has come until then.
 */
#include "peer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define QKEY 0x1234567
#define PSN 100
#define DATAGRAMS 10
#define LIMIT_NS 20000000000u

static const char *dir;

static const char *in_dir(const char *name)
{
	static char path[4096];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	return path;
}

/* Whole, or not at all. */
static void say_ours(const char *name, const struct remote r[2])
{
	char tmp[4096];
	FILE *f;

	snprintf(tmp, sizeof(tmp), "%s/%s.new", dir, name);
	f = fopen(tmp, "w");
	if (!f || fwrite(r, sizeof(*r), 2, f) != 2 || fclose(f) ||
	    rename(tmp, in_dir(name)))
		die(EXIT_SETUP, "%s: %m", tmp);
}

static void learn_theirs(const char *name, struct remote r[2])
{
	const uint64_t end = now_ns() + LIMIT_NS;
	FILE *f;

	while (!(f = fopen(in_dir(name), "r")))
		if (now_ns() > end || usleep(1000))
			die(EXIT_SETUP, "%s: %m", in_dir(name));
	if (fread(r, sizeof(*r), 2, f) != 2)
		die(EXIT_SETUP, "%s is short", in_dir(name));
	fclose(f);
}

static struct ibv_qp *qp_create_ud(struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr a = {
		.qp_type = IBV_QPT_UD,
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = DATAGRAMS,
			 .max_recv_wr = DATAGRAMS,
			 .max_send_sge = 1,
			 .max_recv_sge = 1 },
	};
	struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR };
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS };
	const struct conn_opts o = { .qkey = QKEY };
	struct ibv_qp *qp = ibv_create_qp(pd, &a);

	if (!qp)
		die(EXIT_SETUP, "ibv_create_qp: %m");
	qp_to_init(qp, &o);
	if (ibv_modify_qp(qp, &rtr, IBV_QP_STATE) ||
	    ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_SQ_PSN))
		die(EXIT_SETUP, "UD to RTS: %m");
	return qp;
}

static void send_one(struct ibv_qp *qp, const struct ibv_mr *mr,
		     struct ibv_ah *ah, uint32_t qpn)
{
	struct ibv_sge sge = { (uintptr_t)mr->addr, 64, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED },
			   *bad;

	if (ah) {
		wr.wr.ud.ah = ah;
		wr.wr.ud.remote_qpn = qpn;
		wr.wr.ud.remote_qkey = QKEY;
	}
	if (ibv_post_send(qp, &wr, &bad))
		die(EXIT_SETUP, "ibv_post_send: %m");
}

/* The next completion; false: none for so long. */
static bool wait_wc(struct ibv_cq *cq, struct ibv_wc *wc, uint64_t ns)
{
	const uint64_t end = now_ns() + ns;

	while (ibv_poll_cq(cq, 1, wc) != 1)
		if (now_ns() > end)
			return false;
	return true;
}

static void sender(struct dev *d, struct ibv_cq *cq, struct ibv_qp *rc,
		   struct ibv_qp *ud, const struct ibv_mr *mr,
		   const struct remote theirs[2])
{
	struct ibv_ah *ah = ah_create(d, &theirs[1]);
	struct ibv_wc wc;
	FILE *f;

	for (int i = 0; i < DATAGRAMS; i++)
		send_one(ud, mr, ah, theirs[1].qpn);
	send_one(rc, mr, NULL, 0);
	do {
		if (!wait_wc(cq, &wc, LIMIT_NS))
			die(EXIT_WC, "no completion");
	} while (wc.qp_num != rc->qp_num);
	printf("RC: %s\n", ibv_wc_status_str(wc.status));
	f = fopen(in_dir("done"), "w");
	if (!f || fclose(f))
		die(EXIT_SETUP, "%s: %m", in_dir("done"));
}

static void receiver(struct ibv_cq *cq, const struct ibv_qp *rc)
{
	const uint64_t limit = now_ns() + LIMIT_NS;
	unsigned n[2] = { 0, 0 };
	uint64_t end = limit;
	struct ibv_wc wc;

	/* What was sent before may come a little later. */
	while (now_ns() < end) {
		if (wait_wc(cq, &wc, 10000000))
			n[wc.qp_num != rc->qp_num]++;
		if (end == limit && !access(in_dir("done"), F_OK))
			end = now_ns() + 200000000;
	}
	printf("received by RC %u, by UD %u\n", n[0], n[1]);
}

int main(int argc, char **argv)
{
	const struct conn_opts o = { .mtu = IBV_MTU_1024,
				     .timeout = 12,
				     .retry_cnt = 2,
				     .rd_atomic = 1,
				     .access = IBV_ACCESS_REMOTE_WRITE };
	static uint8_t buf[4096];
	struct remote ours[2] = { 0 }, theirs[2];
	struct ibv_qp *rc, *ud;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct dev d;

	if (argc != 5)
		die(EXIT_SETUP, "strangers DIR MINE ITS send|recv");
	dir = argv[1];
	dev_open(&d, NULL, 0);
	cq = ibv_create_cq(d.ctx, 64, NULL, NULL, 0);
	mr = ibv_reg_mr(d.pd, buf, sizeof(buf), IBV_ACCESS_LOCAL_WRITE);
	if (!cq || !mr)
		die(EXIT_SETUP, "CQ and MR: %m");
	rc = qp_create_rc(d.pd, cq, 4, 4, 1);
	ud = qp_create_ud(d.pd, cq);
	qp_to_init(rc, &o);
	recv_post(rc, mr, buf, 64, 0);
	for (int i = 0; i < DATAGRAMS; i++)
		recv_post(ud, mr, buf + 256, 256, 0);
	for (int i = 0; i < 2; i++)
		ours[i] = (struct remote){ .qpn = i ? ud->qp_num : rc->qp_num,
					   .psn = PSN,
					   .gid = d.gid };
	say_ours(argv[2], ours);
	learn_theirs(argv[3], theirs);
	qp_connect(&d, rc, PSN, &theirs[0], &o);
	if (!strcmp(argv[4], "send"))
		sender(&d, cq, rc, ud, mr, theirs);
	else
		receiver(cq, rc);
	return 0;
}

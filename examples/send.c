/*
 * send.c - two queue pairs are connected (RC), and one sends the other a message
 *
 *   gcc -g -o send examples/send.c -libverbs
 *   softhca run -- ./send              the server, which receives
 *   softhca run -- ./send localhost    the client, which sends
 */
#include "example.h"

#define SIZE 4096

struct address {
	uint32_t qpn, psn;
	union ibv_gid gid;
};

/* INIT: receives can be posted. */
static void to_init(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };

	check(ibv_modify_qp(qp, &attr,
			    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
				    IBV_QP_ACCESS_FLAGS),
	      "ibv_modify_qp to INIT");
}

/* RTR, ready to receive: now it has a peer. RTS, ready to send as well. */
static void connect_qp(struct ibv_qp *qp, struct address own, struct address to)
{
	struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR,
				   .path_mtu = IBV_MTU_1024,
				   .dest_qp_num = to.qpn,
				   .rq_psn = to.psn,
				   .min_rnr_timer = 12,
				   .ah_attr = { .is_global = 1,
						.port_num = 1,
						.grh = { .dgid = to.gid,
							 .sgid_index = 0,
							 .hop_limit = 64 } } },
			   rts = { .qp_state = IBV_QPS_RTS,
				   .timeout = 14,
				   .retry_cnt = 7,
				   .rnr_retry = 7,
				   .sq_psn = own.psn };

	check(ibv_modify_qp(qp, &rtr,
			    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
				    IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				    IBV_QP_MAX_DEST_RD_ATOMIC |
				    IBV_QP_MIN_RNR_TIMER),
	      "ibv_modify_qp to RTR");
	check(ibv_modify_qp(qp, &rts,
			    IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
				    IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				    IBV_QP_MAX_QP_RD_ATOMIC),
	      "ibv_modify_qp to RTS");
}

int main(int argc, char *argv[])
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC,
					 .cap = { .max_send_wr = 1,
						  .max_recv_wr = 1,
						  .max_send_sge = 1,
						  .max_recv_sge = 1 } };
	static char buf[SIZE];
	struct ibv_sge sge = { .addr = (uintptr_t)buf, .length = SIZE };
	struct ibv_recv_wr *bad_recv, recv = { .sg_list = &sge, .num_sge = 1 };
	struct ibv_send_wr *bad_send,
		send = { .sg_list = &sge,
			 .num_sge = 1,
			 .opcode = IBV_WR_SEND,
			 .send_flags = IBV_SEND_SIGNALED };
	struct address own, peer;
	struct ibv_context *ctx = open_device();
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	int fd = meet(argc > 1 ? argv[1] : NULL);

	pd = made(ibv_alloc_pd(ctx), "ibv_alloc_pd");
	mr = made(ibv_reg_mr(pd, buf, SIZE, IBV_ACCESS_LOCAL_WRITE),
		  "ibv_reg_mr");
	cq = made(ibv_create_cq(ctx, 2, NULL, NULL, 0), "ibv_create_cq");
	init.send_cq = init.recv_cq = cq;
	qp = made(ibv_create_qp(pd, &init), "ibv_create_qp");
	to_init(qp);
	sge.lkey = mr->lkey;
	if (argc == 1) /* before the peer can send */
		check(ibv_post_recv(qp, &recv, &bad_recv), "ibv_post_recv");

	/* Verbs do not find the peer: its addresses have to be brought here. */
	own = (struct address){ .qpn = qp->qp_num,
				.psn = (uint32_t)getpid() & 0xffffff };
	check(ibv_query_gid(ctx, 1, 0, &own.gid), "ibv_query_gid");
	exchange(fd, &own, &peer, sizeof(own));
	connect_qp(qp, own, peer);
	barrier(fd); /* both are connected */

	if (argc > 1) {
		sge.length =
			(uint32_t)sprintf(buf, "Hello from the client") + 1;
		check(ibv_post_send(qp, &send, &bad_send), "ibv_post_send");
		completion(cq); /* the peer has it: buf is ours again */
	} else {
		uint32_t n = completion(cq).byte_len;

		printf("received %u bytes: %s\n", n, buf);
	}
	check(ibv_destroy_qp(qp), "ibv_destroy_qp");
	check(ibv_destroy_cq(cq), "ibv_destroy_cq");
	check(ibv_dereg_mr(mr), "ibv_dereg_mr");
	check(ibv_dealloc_pd(pd), "ibv_dealloc_pd");
	check(ibv_close_device(ctx), "ibv_close_device");
	close(fd);
	return 0;
}

/*
 * ud.c - datagrams: a queue pair that is connected to nobody asks another one,
 * which answers to wherever the question has come from
 *
 *   gcc -g -o ud examples/ud.c -libverbs
 *   softhca run -- ./ud                the server, which answers
 *   softhca run -- ./ud localhost      the client, which asks
 */
#include "example.h"

#define SIZE 1024
#define GRH 40 /* a datagram's first bytes: where it has come from */
#define QKEY 0x11223344 /* without it nothing is received */

struct address {
	uint32_t qpn;
	union ibv_gid gid;
};

static struct {
	char in[GRH + SIZE], out[SIZE];
} memory;

/* To RTS: all that a UD queue pair needs to know is its own. */
static void start(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT,
				    .port_num = 1,
				    .qkey = QKEY };

	check(ibv_modify_qp(qp, &attr,
			    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
				    IBV_QP_QKEY),
	      "ibv_modify_qp to INIT");
	attr.qp_state = IBV_QPS_RTR;
	check(ibv_modify_qp(qp, &attr, IBV_QP_STATE), "ibv_modify_qp to RTR");
	attr.qp_state = IBV_QPS_RTS;
	attr.sq_psn = 0;
	check(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN),
	      "ibv_modify_qp to RTS");
}

/* Each work request names its destination. */
static void send_to(struct ibv_qp *qp, struct ibv_mr *mr, struct ibv_ah *ah,
		    uint32_t qpn)
{
	struct ibv_sge sge = { .addr = (uintptr_t)memory.out,
			       .length = (uint32_t)strlen(memory.out) + 1,
			       .lkey = mr->lkey };
	struct ibv_send_wr *bad, wr = {
		.wr_id = 1,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.ud = { .ah = ah, .remote_qpn = qpn, .remote_qkey = QKEY }
	};

	check(ibv_post_send(qp, &wr, &bad), "ibv_post_send");
	completion(qp->send_cq);
}

int main(int argc, char *argv[])
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_UD,
					 .cap = { 1, 1, 1, 1, 0 } };
	struct ibv_sge sge = { (uintptr_t)memory.in, sizeof(memory.in), 0 };
	struct ibv_recv_wr *bad,
		wr = { .wr_id = 2, .sg_list = &sge, .num_sge = 1 };
	struct ibv_ah_attr to = { .is_global = 1,
				  .port_num = 1,
				  .grh = { .hop_limit = 64 } };
	struct ibv_context *ctx = open_device();
	int fd = meet(argc > 1 ? argv[1] : NULL);
	struct ibv_cq *sent, *received;
	struct address own, peer;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	struct ibv_qp *qp;
	struct ibv_ah *ah;
	struct ibv_wc wc;

	pd = made(ibv_alloc_pd(ctx), "ibv_alloc_pd");
	mr = made(
		ibv_reg_mr(pd, &memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE),
		"ibv_reg_mr");
	sent = made(ibv_create_cq(ctx, 1, NULL, NULL, 0), "ibv_create_cq");
	received = made(ibv_create_cq(ctx, 1, NULL, NULL, 0), "ibv_create_cq");
	init.send_cq = sent;
	init.recv_cq = received;
	qp = made(ibv_create_qp(pd, &init), "ibv_create_qp");
	start(qp);
	sge.lkey = mr->lkey;
	check(ibv_post_recv(qp, &wr, &bad), "ibv_post_recv");
	own.qpn = qp->qp_num;
	check(ibv_query_gid(ctx, 1, 0, &own.gid), "ibv_query_gid");
	exchange(fd, &own, &peer, sizeof(own));

	if (argc > 1) {
		strcpy(memory.out, "Who is there?");
		to.grh.dgid = peer.gid;
		ah = made(ibv_create_ah(pd, &to), "ibv_create_ah");
		send_to(qp, mr, ah, peer.qpn);
		wc = completion(received);
	} else {
		wc = completion(received);
		strcpy(memory.out, "The server.");
		ah = made(ibv_create_ah_from_wc(pd, &wc, (void *)memory.in, 1),
			  "ibv_create_ah_from_wc");
		send_to(qp, mr, ah, wc.src_qp);
	}
	printf("%u bytes: %s\n", wc.byte_len, memory.in + GRH);
	barrier(fd);
	check(ibv_destroy_ah(ah), "ibv_destroy_ah");
	check(ibv_destroy_qp(qp), "ibv_destroy_qp");
	check(ibv_destroy_cq(sent), "ibv_destroy_cq");
	check(ibv_destroy_cq(received), "ibv_destroy_cq");
	check(ibv_dereg_mr(mr), "ibv_dereg_mr");
	check(ibv_dealloc_pd(pd), "ibv_dealloc_pd");
	check(ibv_close_device(ctx), "ibv_close_device");
	close(fd);
	return 0;
}

/*
 * atomics.c - a write that the server is told of, by 32 bits of immediate data;
 * and atomics on 8 bytes of the server's memory
 *
 *   gcc -g -o atomics examples/atomics.c -libverbs
 *   softhca run -- ./atomics             the server
 *   softhca run -- ./atomics localhost   the client
 */
#include "rc.h"

#include <arpa/inet.h>

#define RIGHTS                                                                 \
	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |                    \
	 IBV_ACCESS_REMOTE_ATOMIC)

static struct {
	uint64_t counter; /* at the server */
	uint64_t old; /* at the client: what an atomic has found there */
	char text[64];
} memory;

static void post(struct rc *rc, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	wr->num_sge = 1;
	wr->send_flags = IBV_SEND_SIGNALED;
	check(ibv_post_send(rc->qp, wr, &bad), "ibv_post_send");
	completion(rc->cq);
}

static void atomic(struct rc *rc, struct ibv_mr *mr, enum ibv_wr_opcode opcode,
		   uint64_t compare_add, uint64_t swap)
{
	struct ibv_sge sge = { .addr = (uintptr_t)&memory.old,
			       .length = 8,
			       .lkey = mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = 1,
		.sg_list = &sge,
		.opcode = opcode,
		.wr.atomic = { .remote_addr = rc->peer.addr,
			       .rkey = rc->peer.rkey,
			       .compare_add = compare_add,
			       .swap = swap },
	};

	post(rc, &wr);
}

static void client(struct rc *rc, struct ibv_mr *mr)
{
	struct ibv_sge sge = { .addr = (uintptr_t)memory.text,
			       .length = sizeof(memory.text),
			       .lkey = mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = 2,
		.sg_list = &sge,
		.opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
		.imm_data = htonl(7), /* it travels as it is */
		.wr.rdma = { .remote_addr = rc->peer.addr + 16,
			     .rkey = rc->peer.rkey },
	};

	atomic(rc, mr, IBV_WR_ATOMIC_FETCH_AND_ADD, 5, 0);
	printf("5 added to %d\n", (int)memory.old);
	atomic(rc, mr, IBV_WR_ATOMIC_CMP_AND_SWP, 105, 1);
	printf("1 stored if it was 105: it was %d\n", (int)memory.old);
	strcpy(memory.text, "look at the counter");
	post(rc, &wr);
}

int main(int argc, char *argv[])
{
	struct ibv_recv_wr *bad,
		recv = { .wr_id = 3 }; /* of no memory at all */
	struct ibv_mr *mr;
	struct rc rc;

	memory.counter = 100;
	rc_open(&rc, argc > 1 ? argv[1] : NULL,
		IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
	mr = made(ibv_reg_mr(rc.pd, &memory, sizeof(memory), RIGHTS),
		  "ibv_reg_mr");
	if (argc == 1)
		check(ibv_post_recv(rc.qp, &recv, &bad), "ibv_post_recv");
	rc_connect(&rc, mr);
	if (argc > 1) {
		client(&rc, mr);
	} else {
		struct ibv_wc wc = completion(rc.cq);

		printf("%u bytes were written, immediate data %u: %s\n",
		       wc.byte_len, ntohl(wc.imm_data), memory.text);
		printf("the counter is %d\n", (int)memory.counter);
	}
	check(ibv_dereg_mr(mr), "ibv_dereg_mr");
	rc_close(&rc);
	return 0;
}

/*
 * onesided.c - the client writes to the server's memory and reads it, and the
 * server's program does nothing meanwhile
 *
 *   gcc -g -o onesided examples/onesided.c -libverbs
 *   softhca run -- ./onesided            the server, whose memory it is
 *   softhca run -- ./onesided localhost  the client
 */
#include "rc.h"

#define SIZE 4096
#define RIGHTS                                                                 \
	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |                    \
	 IBV_ACCESS_REMOTE_READ)

static char buf[SIZE];

/* length bytes between buf + at and the peer's memory + there, and waits. */
static void transfer(struct rc *rc, struct ibv_mr *mr,
		     enum ibv_wr_opcode opcode, size_t at, size_t there,
		     uint32_t length)
{
	struct ibv_sge sge = { .addr = (uintptr_t)(buf + at),
			       .length = length,
			       .lkey = mr->lkey };
	struct ibv_send_wr *bad, wr = {
		.wr_id = opcode == IBV_WR_RDMA_WRITE ? 1 : 2,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = opcode,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = rc->peer.addr + there,
			     .rkey = rc->peer.rkey },
	};

	check(ibv_post_send(rc->qp, &wr, &bad), "ibv_post_send");
	completion(rc->cq);
}

static void client(struct rc *rc, struct ibv_mr *mr)
{
	strcpy(buf, "written by the client");
	transfer(rc, mr, IBV_WR_RDMA_WRITE, 0, 1000, 22);
	transfer(rc, mr, IBV_WR_RDMA_READ, 2000, 0, 22);
	printf("read from the server: %s\n", buf + 2000);
}

int main(int argc, char *argv[])
{
	struct ibv_mr *mr;
	struct rc rc;

	/* Both say what the peer may do: the queue pair, and the memory. */
	rc_open(&rc, argc > 1 ? argv[1] : NULL,
		IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	mr = made(ibv_reg_mr(rc.pd, buf, SIZE, RIGHTS), "ibv_reg_mr");
	if (argc == 1)
		strcpy(buf, "memory of the server ");
	rc_connect(&rc, mr);
	if (argc > 1)
		client(&rc, mr);
	/* Nothing here tells the server that it is done, so the client does. */
	barrier(rc.fd);
	if (argc == 1)
		printf("at 1000: %s\n", buf + 1000);
	check(ibv_dereg_mr(mr), "ibv_dereg_mr");
	rc_close(&rc);
	return 0;
}

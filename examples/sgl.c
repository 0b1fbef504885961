/*
 * sgl.c - scatter and gather: a message is gathered from some pieces of memory,
 * and scattered to others; a list of work requests is posted by one call
 *
 *   gcc -g -o sgl examples/sgl.c -libverbs
 *   softhca run -- ./sgl               the server, which receives
 *   softhca run -- ./sgl localhost     the client, which sends
 */
#include "rc.h"

#define SIZE 8192

static char buf[SIZE];

/* length bytes of buf from there on. */
static struct ibv_sge piece(const struct ibv_mr *mr, size_t from,
			    uint32_t length)
{
	return (struct ibv_sge){ .addr = (uintptr_t)(buf + from),
				 .length = length,
				 .lkey = mr->lkey };
}

/* 2500 bytes of three pieces, and 300 bytes of one. */
static void gather(struct rc *rc, struct ibv_mr *mr)
{
	struct ibv_sge first[] = { piece(mr, 0, 100), piece(mr, 1000, 1400),
				   piece(mr, 4000, 1000) },
		       second[] = { piece(mr, 6000, 300) };
	struct ibv_send_wr *bad, wr[2] = {
		{ .wr_id = 1,
		  .next = &wr[1],
		  .sg_list = first,
		  .num_sge = 3,
		  .opcode = IBV_WR_SEND },
		{ .wr_id = 2,
		  .sg_list = second,
		  .num_sge = 1,
		  .opcode = IBV_WR_SEND,
		  .send_flags = IBV_SEND_SIGNALED },
	};

	memset(buf, 'A', 100);
	memset(buf + 1000, 'B', 1400);
	memset(buf + 4000, 'C', 1000);
	memset(buf + 6000, 'D', 300);
	check(ibv_post_send(rc->qp, wr, &bad), "ibv_post_send");
	/* Requests of a queue complete in order: both are done. */
	printf("sent, up to work request %d\n", (int)completion(rc->cq).wr_id);
}

/* Each message takes one receive, whose pieces it fills one after the other. */
static void post_receives(struct rc *rc, struct ibv_mr *mr)
{
	struct ibv_sge first[] = { piece(mr, 0, 2000), piece(mr, 3000, 600) },
		       second[] = { piece(mr, 5000, 200), piece(mr, 6000, 50),
				    piece(mr, 7000, 200) };
	struct ibv_recv_wr *bad, wr[2] = {
		{ .wr_id = 1, .next = &wr[1], .sg_list = first, .num_sge = 2 },
		{ .wr_id = 2, .sg_list = second, .num_sge = 3 },
	};

	check(ibv_post_recv(rc->qp, wr, &bad), "ibv_post_recv");
}

/* What has come to buf, and where. */
static void show(size_t from, size_t to)
{
	for (size_t i = from, run; i < to; i += run) {
		for (run = 1; i + run < to && buf[i + run] == buf[i];)
			run++;
		if (buf[i])
			printf("  %4zu bytes %c at %zu\n", run, buf[i], i);
	}
}

int main(int argc, char *argv[])
{
	struct ibv_mr *mr;
	struct rc rc;

	rc_open(&rc, argc > 1 ? argv[1] : NULL, 0);
	mr = made(ibv_reg_mr(rc.pd, buf, SIZE, IBV_ACCESS_LOCAL_WRITE),
		  "ibv_reg_mr");
	if (argc == 1)
		post_receives(&rc, mr);
	rc_connect(&rc, mr);
	if (argc > 1) {
		gather(&rc, mr);
	} else {
		for (int i = 0; i < 2; i++) {
			struct ibv_wc wc = completion(rc.cq);

			printf("receive %d: %u bytes\n", i + 1, wc.byte_len);
			show(i ? 5000 : 0, i ? SIZE : 5000);
		}
	}
	check(ibv_dereg_mr(mr), "ibv_dereg_mr");
	rc_close(&rc);
	return 0;
}

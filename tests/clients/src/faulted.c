/*
 * faulted.c - two connected queue pairs of one process, message by message
 *
 * faulted N: sends N messages, each when the one before has completed, and says
 * what became of them: for tests of faults on purpose. What fails is named, and
 * ends it with status 3. With "faulted N event" it waits for an asynchronous
 * event at the end.
 */
#include "qp_masks.h"

#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SIZE 1024u
#define DEPTH 512u

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct ibv_cq *cq[2]; /* of sends, of receives */
static struct ibv_qp *qp[2];
static uint8_t memory[2 * SIZE];

static void need(int good, const char *what, int err)
{
	if (good)
		return;
	printf("%s: %s\n", what, strerror(err));
	exit(3);
}

static void modify(struct ibv_qp *q, struct ibv_qp_attr *a, int mask)
{
	const int err = ibv_modify_qp(q, a, mask);

	need(!err, "modify_qp", err);
}

static void connect_to(struct ibv_qp *q, uint32_t peer, union ibv_gid gid)
{
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
	};

	modify(q, &a, init_mask(IBV_QPT_RC));
	a = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = { .is_global = 1,
			     .port_num = 1,
			     .grh = { .dgid = gid, .hop_limit = 1 } },
	};
	modify(q, &a, rtr_mask(IBV_QPT_RC));
	a = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS,
		.timeout = 12,
		.retry_cnt = 5,
		.rnr_retry = 7,
		.max_rd_atomic = 1,
	};
	modify(q, &a, rts_mask(IBV_QPT_RC));
}

static void begin(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	union ibv_gid gid;

	need(list && list[0], "get_device_list", ENODEV);
	ctx = ibv_open_device(list[0]);
	need(!!ctx, "open_device", errno);
	pd = ibv_alloc_pd(ctx);
	need(!!pd, "alloc_pd", errno);
	mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
	need(!!mr, "reg_mr", errno);
	need(!ibv_query_gid(ctx, 1, 0, &gid), "query_gid", errno);
	for (int i = 0; i < 2; i++) {
		cq[i] = ibv_create_cq(ctx, DEPTH, NULL, NULL, 0);
		need(!!cq[i], "create_cq", errno);
	}
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr a = {
			.send_cq = cq[0],
			.recv_cq = cq[1],
			.cap = { .max_send_wr = 4,
				 .max_recv_wr = 4,
				 .max_send_sge = 1,
				 .max_recv_sge = 1 },
			.qp_type = IBV_QPT_RC,
			.sq_sig_all = 1,
		};

		qp[i] = ibv_create_qp(pd, &a);
		need(!!qp[i], "create_qp", errno);
	}
	connect_to(qp[0], qp[1]->qp_num, gid);
	connect_to(qp[1], qp[0]->qp_num, gid);
}

static void post_recv(void)
{
	struct ibv_sge sge = { (uintptr_t)memory + SIZE, SIZE, mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	const int err = ibv_post_recv(qp[1], &wr, &bad);

	need(!err, "post_recv", err);
}

static void post_send(void)
{
	struct ibv_sge sge = { (uintptr_t)memory, SIZE, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_SEND },
			   *bad;
	const int err = ibv_post_send(qp[0], &wr, &bad);

	need(!err, "post_send", err);
}

/* Waits for a completion, for a minute. */
static enum ibv_wc_status completion(struct ibv_cq *q)
{
	const time_t end = time(NULL) + 60;
	struct ibv_wc wc;

	while (ibv_poll_cq(q, 1, &wc) != 1)
		need(time(NULL) < end, "no completion", ETIMEDOUT);
	return wc.status;
}

static void event(void)
{
	struct pollfd p = { .fd = ctx->async_fd, .events = POLLIN };
	struct ibv_async_event ev;

	need(poll(&p, 1, 60000) == 1, "no event", ETIMEDOUT);
	need(!ibv_get_async_event(ctx, &ev), "get_async_event", errno);
	printf("event: %s\n", ibv_event_type_str(ev.event_type));
	ibv_ack_async_event(&ev);
}

int main(int argc, char **argv)
{
	const int n = argc > 1 ? atoi(argv[1]) : 1;
	enum ibv_wc_status status = IBV_WC_SUCCESS;
	int sent = 0, wrong = 0;

	setvbuf(stdout, NULL, _IOLBF, 0);
	begin();
	while (sent < n) {
		memset(memory, sent + 1, SIZE);
		memset(memory + SIZE, 0, SIZE);
		post_recv();
		post_send();
		status = completion(cq[0]);
		if (status != IBV_WC_SUCCESS)
			break;
		need(completion(cq[1]) == IBV_WC_SUCCESS, "receive", EIO);
		wrong += memcmp(memory, memory + SIZE, SIZE) != 0;
		sent++;
	}
	printf("sent %d, wrong %d: %s\n", sent, wrong,
	       ibv_wc_status_str(status));
	if (status != IBV_WC_SUCCESS) {
		post_send();
		printf("then: %s\n", ibv_wc_status_str(completion(cq[0])));
	}
	if (argc > 2)
		event();
	return 0;
}

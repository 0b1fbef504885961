/*
 * lids.h - what the three programs share that know LIDs, and no GIDs
 *
 * They are written as the classic tutorials of InfiniBand are: the two ends tell
 * each other LID, QP number and PSN over a socket, and address vectors have no
 * GRH. Over RoCE they fail, as there.
 */
#ifndef SOFTHCA_TESTS_CLIENTS_LIDS_H
#define SOFTHCA_TESTS_CLIENTS_LIDS_H

#include "peer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIMIT_NS 20000000000u
#define SIZE 4096

/* One end's device, memory and queue pair. */
struct lid_end {
	struct ibv_context *ctx;
	struct ibv_port_attr port;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct ibv_qp *qp;
	uint8_t *buf;
	uint32_t psn;
};

/* What the other one tells. */
struct lid_peer {
	unsigned lid, qpn, psn, rkey;
	unsigned long long addr;
};

static inline void lid_end_open(struct lid_end *e, enum ibv_qp_type type)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_qp_init_attr init = {
		.qp_type = type,
		.cap = { .max_send_wr = 16,
			 .max_recv_wr = 16,
			 .max_send_sge = 1,
			 .max_recv_sge = 1 },
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT,
				    .port_num = 1,
				    .qkey = 0x11111111,
				    .qp_access_flags =
					    IBV_ACCESS_REMOTE_WRITE };
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;

	if (!list || !list[0] || !(e->ctx = ibv_open_device(list[0])) ||
	    ibv_query_port(e->ctx, 1, &e->port))
		die(EXIT_SETUP, "no device");
	ibv_free_device_list(list);
	if (e->port.link_layer != IBV_LINK_LAYER_INFINIBAND || !e->port.lid)
		die(EXIT_SETUP, "the port has no LID");
	e->buf = calloc(2, SIZE);
	e->pd = ibv_alloc_pd(e->ctx);
	e->cq = ibv_create_cq(e->ctx, 32, NULL, NULL, 0);
	e->mr = ibv_reg_mr(e->pd, e->buf, 2 * SIZE,
			   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	init.send_cq = init.recv_cq = e->cq;
	e->qp = ibv_create_qp(e->pd, &init);
	if (!e->mr || !e->qp)
		die(EXIT_SETUP, "no queue pair");
	e->psn = (uint32_t)now_ns() & 0xffffff;
	mask |= type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
	if (ibv_modify_qp(e->qp, &attr, mask))
		die(EXIT_SETUP, "INIT: %m");
}

static inline void lid_end_close(struct lid_end *e)
{
	if (ibv_destroy_qp(e->qp) || ibv_dereg_mr(e->mr) ||
	    ibv_destroy_cq(e->cq) || ibv_dealloc_pd(e->pd) ||
	    ibv_close_device(e->ctx))
		die(EXIT_SETUP, "tear-down: %m");
	free(e->buf);
}

static inline struct lid_peer lid_exchange(int fd, const struct lid_end *e)
{
	struct lid_peer p = { 0 };
	const char *line;

	ctrl_put(fd, "%x %x %x %x %llx", e->port.lid, e->qp->qp_num, e->psn,
		 e->mr->rkey, (unsigned long long)(uintptr_t)e->buf);
	line = ctrl_get(fd, 20000);
	if (!line || sscanf(line, "%x %x %x %x %llx", &p.lid, &p.qpn, &p.psn,
			    &p.rkey, &p.addr) != 5)
		die(EXIT_SETUP, "the other end said: %s", line ? line : "");
	return p;
}

static inline void lid_connect(struct lid_end *e, const struct lid_peer *p)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = e->port.active_mtu,
		.dest_qp_num = p->qpn,
		.rq_psn = p->psn,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = { .dlid = (uint16_t)p->lid, .port_num = 1 },
	};

	if (ibv_modify_qp(e->qp, &attr,
			  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
				  IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				  IBV_QP_MAX_DEST_RD_ATOMIC |
				  IBV_QP_MIN_RNR_TIMER))
		die(EXIT_SETUP, "RTR: %m");
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS,
				     .sq_psn = e->psn,
				     .timeout = 14,
				     .retry_cnt = 7,
				     .rnr_retry = 7,
				     .max_rd_atomic = 1 };
	if (ibv_modify_qp(e->qp, &attr,
			  IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT |
				  IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				  IBV_QP_MAX_QP_RD_ATOMIC))
		die(EXIT_SETUP, "RTS: %m");
}

static inline struct ibv_wc lid_wait(struct lid_end *e, const char *what)
{
	const uint64_t end = now_ns() + LIMIT_NS;
	struct ibv_wc wc;
	int n;

	while (!(n = ibv_poll_cq(e->cq, 1, &wc)))
		if (now_ns() > end)
			die(EXIT_DATA, "%s: no completion", what);
	if (n < 0 || wc.status)
		die(EXIT_WC, "%s: %s", what, ibv_wc_status_str(wc.status));
	return wc;
}

static inline void lid_recv(struct lid_end *e)
{
	struct ibv_sge sge = { (uintptr_t)e->buf, SIZE, e->mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	if (ibv_post_recv(e->qp, &wr, &bad))
		die(EXIT_SETUP, "ibv_post_recv: %m");
}

/* Of the buffer's second half. */
static inline void lid_post(struct lid_end *e, struct ibv_send_wr *wr,
			    uint32_t len)
{
	struct ibv_sge sge = { (uintptr_t)e->buf + SIZE, len, e->mr->lkey };
	struct ibv_send_wr *bad;

	wr->sg_list = &sge;
	wr->num_sge = 1;
	wr->send_flags = IBV_SEND_SIGNALED;
	if (ibv_post_send(e->qp, wr, &bad))
		die(EXIT_SETUP, "ibv_post_send: %m");
}

/* PROGRAM PORT [HOST]: the socket, on which the first end waits. */
static inline int lid_socket(int argc, char **argv)
{
	if (argc < 2)
		die(EXIT_SETUP, "usage: %s PORT [HOST]", argv[0]);
	return ctrl_open(argc > 2 ? argv[2] : NULL, atoi(argv[1]), 20);
}

#endif

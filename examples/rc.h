/*
 * rc.h - what send.c does to connect two queue pairs, as functions for the
 * examples that come after it
 */
#pragma once

#include "example.h"

struct remote { /* what an end tells the other one */
	uint32_t qpn, psn, rkey;
	union ibv_gid gid;
	uint64_t addr; /* of the memory that rkey is for */
};

struct rc {
	int fd; /* of the TCP connection */
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct remote peer;
};

/* The objects of a queue pair of a device. */
static inline void rc_make(struct rc *rc, struct ibv_context *ctx)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC,
					 .cap = { .max_send_wr = 8,
						  .max_recv_wr = 8,
						  .max_send_sge = 4,
						  .max_recv_sge = 4 } };

	rc->ctx = ctx;
	rc->pd = made(ibv_alloc_pd(ctx), "ibv_alloc_pd");
	rc->cq = made(ibv_create_cq(ctx, 16, NULL, NULL, 0), "ibv_create_cq");
	attr.send_cq = attr.recv_cq = rc->cq;
	rc->qp = made(ibv_create_qp(rc->pd, &attr), "ibv_create_qp");
}

/* With a device, and in the state INIT: the queue pair takes receives, and has
 * no peer yet. access: what that may do. */
static inline void rc_open(struct rc *rc, const char *host, unsigned access)
{
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT,
				    .port_num = 1,
				    .qp_access_flags = access };

	rc_make(rc, open_device());
	check(ibv_modify_qp(rc->qp, &init,
			    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
				    IBV_QP_ACCESS_FLAGS),
	      "ibv_modify_qp to INIT");
	rc->fd = meet(host);
}

/* Tells the other end about the queue pair and the memory mr, and connects. */
static inline void rc_connect(struct rc *rc, const struct ibv_mr *mr)
{
	struct remote own = { .qpn = rc->qp->qp_num,
			      .psn = (uint32_t)getpid() & 0xffffff,
			      .rkey = mr->rkey,
			      .addr = (uintptr_t)mr->addr };
	struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR,
				   .path_mtu = IBV_MTU_1024,
				   .max_dest_rd_atomic = 1,
				   .min_rnr_timer = 12 },
			   rts = { .qp_state = IBV_QPS_RTS,
				   .timeout = 14,
				   .retry_cnt = 7,
				   .rnr_retry = 7,
				   .sq_psn = own.psn,
				   .max_rd_atomic = 1 };

	check(ibv_query_gid(rc->ctx, 1, 0, &own.gid), "ibv_query_gid");
	exchange(rc->fd, &own, &rc->peer, sizeof(own));
	rtr.dest_qp_num = rc->peer.qpn;
	rtr.rq_psn = rc->peer.psn;
	rtr.ah_attr.is_global = 1;
	rtr.ah_attr.grh.dgid = rc->peer.gid;
	rtr.ah_attr.grh.hop_limit = 64;
	rtr.ah_attr.port_num = 1;
	check(ibv_modify_qp(rc->qp, &rtr,
			    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
				    IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				    IBV_QP_MAX_DEST_RD_ATOMIC |
				    IBV_QP_MIN_RNR_TIMER),
	      "ibv_modify_qp to RTR");
	check(ibv_modify_qp(rc->qp, &rts,
			    IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
				    IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				    IBV_QP_MAX_QP_RD_ATOMIC),
	      "ibv_modify_qp to RTS");
	barrier(rc->fd);
}

/* A receive into all of mr. */
static inline void rc_receive(struct rc *rc, const struct ibv_mr *mr)
{
	struct ibv_sge sge = { (uintptr_t)mr->addr, (uint32_t)mr->length,
			       mr->lkey };
	struct ibv_recv_wr *bad, wr = { .sg_list = &sge, .num_sge = 1 };

	check(ibv_post_recv(rc->qp, &wr, &bad), "ibv_post_recv");
}

/* Sends all of mr, and waits until the peer has it. */
static inline void rc_send(struct rc *rc, const struct ibv_mr *mr)
{
	struct ibv_sge sge = { (uintptr_t)mr->addr, (uint32_t)mr->length,
			       mr->lkey };
	struct ibv_send_wr *bad, wr = { .sg_list = &sge,
					.num_sge = 1,
					.opcode = IBV_WR_SEND,
					.send_flags = IBV_SEND_SIGNALED };

	check(ibv_post_send(rc->qp, &wr, &bad), "ibv_post_send");
	completion(rc->cq);
}

/* In the reverse order; memory regions of pd have to be gone by then. */
static inline void rc_free(struct rc *rc)
{
	check(ibv_destroy_qp(rc->qp), "ibv_destroy_qp");
	check(ibv_destroy_cq(rc->cq), "ibv_destroy_cq");
	check(ibv_dealloc_pd(rc->pd), "ibv_dealloc_pd");
}

static inline void rc_close(struct rc *rc)
{
	rc_free(rc);
	check(ibv_close_device(rc->ctx), "ibv_close_device");
	close(rc->fd);
}

/*
 * qp.h - queue pairs as programs call them, and multicast groups
 */
#ifndef SOFTHCA_VERBS_QP_H
#define SOFTHCA_VERBS_QP_H

#include "transport/shared.h"

/* What ibv_create_qp() asks for, as ibv_create_qp_ex() would. */
static inline struct ibv_qp_init_attr_ex
shca_qp_init_ex(const struct ibv_qp_init_attr *attr, struct ibv_pd *pd)
{
	return (struct ibv_qp_init_attr_ex){
		.qp_context = attr->qp_context,
		.send_cq = attr->send_cq,
		.recv_cq = attr->recv_cq,
		.srq = attr->srq,
		.cap = attr->cap,
		.qp_type = attr->qp_type,
		.sq_sig_all = attr->sq_sig_all,
		.comp_mask = IBV_QP_INIT_ATTR_PD,
		.pd = pd,
	};
}
int shca_qp_create(struct ibv_context *ctx, struct ibv_qp_init_attr_ex *attr,
		   struct ibv_qp **qp);
int shca_qp_modify(struct ibv_qp *qp, const struct ibv_qp_attr *attr, int mask);
int shca_qp_query(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask,
		  struct ibv_qp_init_attr *init);
int shca_qp_destroy(struct ibv_qp *qp);
int shca_qp_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr,
		      struct ibv_send_wr **bad);
/* Posts all of them or, after an error, none. */
int shca_qp_post_all(struct ibv_qp *qp, struct ibv_send_wr *wr);
int shca_qp_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr,
		      struct ibv_recv_wr **bad);
/* Whether completions of a QP in RTS wait to be polled. */
bool shca_qp_unpolled(struct ibv_qp *qp);
/* Adds its counters: what all transports count, and what its own does. Its lock
 * is held. */
void shca_qp_counts(struct stat_qp *q, struct qp *core);
int shca_mcast_attach(struct ibv_qp *qp, const union ibv_gid *gid,
		      uint16_t mlid);
int shca_mcast_detach(struct ibv_qp *qp, const union ibv_gid *gid);

/* wr.c: fills the slots of these operations; -EOPNOTSUPP if the QP's type does
 * not have one of them. */
int shca_wr_setup(struct shca_qp *qp, uint64_t send_ops);
void shca_wr_free(struct shca_qp *qp);

/* mcast.c: a packet to a group. False: no QP here is attached to it. */
bool shca_mcast_rx(struct engine *e, const struct roce_rx *pkt, uint64_t now);

/* For the process. */
int shca_mcast_init(struct engine *e);

#endif

/*
 * qp_attr.c - attributes for the queue pair of an identifier, per state
 *
 * They follow from what both ends of the connection have said. The number of
 * outstanding reads and atomics is the smaller of what one end issues and what
 * the other answers.
 */
#include "cma.h"

#include "base/bytes.h"

#include <errno.h>

uint8_t cma_ack_timeout(const struct cma_id *id)
{
	uint8_t delay = id->dev->ack_delay, t = CMA_PACKET_LIFE + 1;

	if (id->ack_timeout_set)
		return id->ack_timeout;
	/* 12.7.34: both ways and the peer's delay, to the next power of two */
	if (delay > t)
		t = (uint8_t)(delay + 1);
	else if (delay + 1 >= t)
		t++;
	return t;
}

static int attr_init(struct cma_id *id, struct ibv_qp_attr *attr, int *mask)
{
	*mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
	attr->pkey_index = 0;
	attr->port_num = CMA_PORT_NUM;
	if (id->id.qp_type == IBV_QPT_UD) {
		attr->qkey = cma_qkey(id);
		*mask |= IBV_QP_QKEY;
		return 0;
	}
	attr->qp_access_flags = 0;
	if (id->conn) {
		attr->qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
		if (id->local.responder_resources)
			attr->qp_access_flags |= IBV_ACCESS_REMOTE_READ |
						 IBV_ACCESS_REMOTE_ATOMIC;
	}
	*mask |= IBV_QP_ACCESS_FLAGS;
	return 0;
}

/* How many reads and atomics the peer may have outstanding. */
static uint8_t final_resources(const struct cma_id *id)
{
	return min_u8(id->passive ? id->local.responder_resources :
				    id->peer.initiator_depth,
		      id->dev->max_responder_resources);
}

static uint8_t final_depth(const struct cma_id *id)
{
	return min_u8(id->passive ? id->local.initiator_depth :
				    id->peer.responder_resources,
		      id->dev->max_initiator_depth);
}

static int attr_rtr(struct cma_id *id, struct ibv_qp_attr *attr, int *mask)
{
	if (!id->conn)
		return cma_not_connected(id);
	*mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
		IBV_QP_RQ_PSN;
	cma_ah_attr(id, &id->path, &attr->ah_attr);
	attr->path_mtu = (enum ibv_mtu)id->path_rec.mtu;
	attr->dest_qp_num = id->peer.qpn;
	/* The PSN in a REQ or REP is the one its sender expects (12.7.31). */
	attr->rq_psn = id->local.psn;
	if (id->id.qp_type == IBV_QPT_RC ||
	    (int)id->id.qp_type == IBV_QPT_XRC_RECV) {
		*mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
		attr->max_dest_rd_atomic = final_resources(id);
		attr->min_rnr_timer = 0;
	}
	return 0;
}

static int attr_rts(struct cma_id *id, struct ibv_qp_attr *attr, int *mask)
{
	if (!id->conn)
		return cma_not_connected(id);
	*mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	attr->sq_psn = id->peer.psn;
	switch ((int)id->id.qp_type) {
	case IBV_QPT_RC:
	case IBV_QPT_XRC_SEND:
		*mask |= IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			 IBV_QP_MAX_QP_RD_ATOMIC;
		attr->retry_cnt = id->passive ? id->peer.retry_count :
						id->local.retry_count;
		attr->rnr_retry = id->peer.rnr_retry_count;
		attr->max_rd_atomic = final_depth(id);
		/* fall through */
	case IBV_QPT_XRC_RECV:
		*mask |= IBV_QP_TIMEOUT;
		attr->timeout = id->passive && !id->ack_timeout_set ?
					id->peer.ack_timeout :
					cma_ack_timeout(id);
		break;
	default:
		break;
	}
	return 0;
}

int cma_qp_attr(struct cma_id *id, struct ibv_qp_attr *attr, int *mask)
{
	return id->dev->ops->attr(id, attr, mask);
}

int cma_roce_attr(struct cma_id *id, struct ibv_qp_attr *attr, int *mask)
{
	switch (attr->qp_state) {
	case IBV_QPS_INIT:
		return attr_init(id, attr, mask);
	case IBV_QPS_RTR:
		if (id->id.qp_type == IBV_QPT_UD) {
			*mask = IBV_QP_STATE;
			return 0;
		}
		return attr_rtr(id, attr, mask);
	case IBV_QPS_RTS:
		if (id->id.qp_type == IBV_QPT_UD) {
			*mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
			attr->sq_psn = 0;
			return 0;
		}
		return attr_rts(id, attr, mask);
	default:
		return why(-EINVAL, "qp_state %u: INIT, RTR or RTS",
			   (unsigned)attr->qp_state);
	}
}

int rdma_init_qp_attr(struct rdma_cm_id *ib, struct ibv_qp_attr *attr,
		      int *mask)
{
	if (engine_dead(cma_engine()))
		return cma_ret(-EIO);
	if (!attr || !mask || !to_id(ib)->dev)
		return cma_ret(cma_wrong_state(to_id(ib),
					       "attr and mask are needed, and "
					       "an identifier with a device"));
	return cma_ret(cma_qp_attr(to_id(ib), attr, mask));
}

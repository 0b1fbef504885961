/*
 * transport.c - what a device of RoCEv2 has
 */
#include "shared.h"

/* IB_UVERBS_DEVICE_ATOMIC_WRITE of <rdma/ib_user_verbs.h> since Linux 6.2. */
#define DEVICE_ATOMIC_WRITE (1ull << 40)

static const struct qp_env *env(struct engine *e)
{
	return &to_process(e)->env.base;
}

const struct shca_transport shca_roce = {
	.name = "RoCE",
	.prefix = "softhca",
	.node_type = IBV_NODE_CA,
	.type = IBV_TRANSPORT_IB,
	.qp_types = SHCA_TYPE(RC) | SHCA_TYPE(UC) | SHCA_TYPE(UD) |
		    SHCA_TYPE(XRC_SEND) | SHCA_TYPE(XRC_RECV),
	.qp_type_names = "RC, UC, UD, XRC_SEND and XRC_RECV",
	.send_ops = UINT64_MAX,
	.env = env,
	.ops = &shca_roce_ops,
	.sched = &shca_roce_sched,
	.sched_recorded = &shca_roce_sched_recorded,
	.gid_type = IBV_GID_TYPE_ROCE_V2,
	.shows_qps = true,
	.has_ah = true,
	.has_mcast = true,
	.has_xrc = true,
	.cap_flags = SHCA_CAPS | IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_XRC,
	.cap_flags_ex = DEVICE_ATOMIC_WRITE,
	.atomic = IBV_ATOMIC_HCA,
	.max_sge_rd = QP_MAX_SGE,
	.odp_rc = SHCA_ODP_RC | IBV_ODP_SUPPORT_ATOMIC,
	.odp_uc = SHCA_ODP_UC,
	.odp_ud = SHCA_ODP_UD,
	.port_caps = IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS,
};

const struct shca_transport *shca_transport_iwarp;

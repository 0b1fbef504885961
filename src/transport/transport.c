/*
 * transport.c - RoCEv2 and iWARP, side by side
 */
#include "shared.h"

/* IB_UVERBS_DEVICE_ATOMIC_WRITE of <rdma/ib_user_verbs.h> since Linux 6.2. */
#define DEVICE_ATOMIC_WRITE (1ull << 40)

#define CAPS                                                                   \
	(IBV_DEVICE_SYS_IMAGE_GUID | IBV_DEVICE_CURR_QP_STATE_MOD |            \
	 IBV_DEVICE_SRQ_RESIZE | IBV_DEVICE_PORT_ACTIVE_EVENT |                \
	 IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B |               \
	 IBV_DEVICE_MEM_MGT_EXTENSIONS)

#define SEND_OPS                                                               \
	(IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND |                     \
	 IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_LOCAL_INV |                 \
	 IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_SEND_WITH_INV)

/* Paging on demand is the same for all services. */
#define ODP_UD                                                                 \
	(IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV)
#define ODP_UC (ODP_UD | IBV_ODP_SUPPORT_WRITE)
#define ODP_RC (ODP_UC | IBV_ODP_SUPPORT_READ)

#define TYPE(name) (1u << IBV_QPT_##name)

const struct shca_transport shca_roce = {
	.name = "RoCE",
	.prefix = "softhca",
	.node_type = IBV_NODE_CA,
	.type = IBV_TRANSPORT_IB,
	.qp_types = TYPE(RC) | TYPE(UC) | TYPE(UD) | TYPE(XRC_SEND) |
		    TYPE(XRC_RECV),
	.qp_type_names = "RC, UC, UD, XRC_SEND and XRC_RECV",
	.send_ops = UINT64_MAX,
	.env = offsetof(struct shca_process, env.base),
	.ops = &shca_roce_ops,
	.sched = &shca_roce_sched,
	.sched_recorded = &shca_roce_sched_recorded,
	.ip_gids = true,
	.gid_type = IBV_GID_TYPE_ROCE_V2,
	.shows_qps = true,
	.has_ah = true,
	.has_mcast = true,
	.has_xrc = true,
	.cap_flags = CAPS | IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_XRC,
	.cap_flags_ex = DEVICE_ATOMIC_WRITE,
	.atomic = IBV_ATOMIC_HCA,
	.max_sge_rd = QP_MAX_SGE,
	.odp_rc = ODP_RC | IBV_ODP_SUPPORT_ATOMIC,
	.odp_uc = ODP_UC,
	.odp_ud = ODP_UD,
	.port_caps = IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS,
};

/*
 * RFC 5040's operations. A Read Request names one place for the data
 * (section 4.4), hence one SGE.
 */
const struct shca_transport shca_iwarp = {
	.name = "iWARP",
	.prefix = "softiw",
	.node_type = IBV_NODE_RNIC,
	.type = IBV_TRANSPORT_IWARP,
	.qp_types = TYPE(RC),
	.qp_type_names = "RC",
	.send_ops = SEND_OPS,
	.env = offsetof(struct shca_process, iw_env.base),
	.ops = &shca_iwarp_ops,
	.sched = &shca_iwarp_sched,
	.sched_recorded = &shca_iwarp_sched,
	.gid_type = IBV_GID_TYPE_IB,
	.cap_flags = CAPS,
	.atomic = IBV_ATOMIC_NONE,
	.max_sge_rd = 1,
	.odp_rc = ODP_RC,
	.port_caps = IBV_PORT_CM_SUP,
};

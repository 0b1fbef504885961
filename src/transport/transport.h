/*
 * transport.h - what a device has by the wire that it speaks
 *
 * RoCEv2, InfiniBand and iWARP share queues, memory and completions. What one has and the
 * other has not is in a table here, which a device points to: the types of QPs,
 * the operations of their core (qp/ops.h), and what ibv_query_device(3)
 * announces. What is not announced fails with the error of the kernel's driver
 * (rxe, siw).
 */
#ifndef SOFTHCA_TRANSPORT_TRANSPORT_H
#define SOFTHCA_TRANSPORT_TRANSPORT_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>

struct engine;
struct engine_qp_ops;
struct qp_env;
struct qp_ops;

struct shca_transport {
	const char *name; /* in messages */
	const char *prefix; /* of its devices' names */
	enum ibv_node_type node_type;
	enum ibv_transport_type type;

	uint32_t qp_types; /* 1 << enum ibv_qp_type */
	const char *qp_type_names;
	uint64_t send_ops; /* enum ibv_qp_create_send_ops_flags */
	const struct qp_env *(*env)(struct engine *e);
	const struct qp_ops *ops;
	const struct engine_qp_ops *sched, *sched_recorded;

	enum ibv_gid_type gid_type;
	bool shows_qps; /* to other processes of this host (qp/public.h) */

	/* Address handles, multicast groups and XRC domains. */
	bool has_ah, has_mcast, has_xrc;

	/* ibv_query_device(3), where transports differ */
	unsigned cap_flags;
	uint64_t cap_flags_ex;
	enum ibv_atomic_cap atomic;
	int max_sge_rd;
	uint32_t odp_rc, odp_uc, odp_ud;
	uint32_t port_caps;
};

/* What both have. */
#define SHCA_CAPS                                                              \
	(IBV_DEVICE_SYS_IMAGE_GUID | IBV_DEVICE_CURR_QP_STATE_MOD |            \
	 IBV_DEVICE_SRQ_RESIZE | IBV_DEVICE_PORT_ACTIVE_EVENT |                \
	 IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B |               \
	 IBV_DEVICE_MEM_MGT_EXTENSIONS)

/* Paging on demand is the same for all services. */
#define SHCA_ODP_UD                                                            \
	(IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV)
#define SHCA_ODP_UC (SHCA_ODP_UD | IBV_ODP_SUPPORT_WRITE)
#define SHCA_ODP_RC (SHCA_ODP_UC | IBV_ODP_SUPPORT_READ)

#define SHCA_TYPE(name) (1u << IBV_QPT_##name)

extern const struct shca_transport shca_roce;
/* That of iWARP (src/rnic), which the process attaches; NULL: there is none. */
extern const struct shca_transport *shca_transport_iwarp;

#endif

/*
 * transport.h - what a device has by the wire that it speaks
 *
 * RoCEv2 and iWARP share queues, memory and completions. What one has and the
 * other has not is in a table here, which a device points to: the types of QPs,
 * the operations of their core (qp/ops.h), and what ibv_query_device(3)
 * announces. What is not announced fails with the error of the kernel's driver
 * (rxe, siw).
 */
#ifndef SOFTHCA_TRANSPORT_TRANSPORT_H
#define SOFTHCA_TRANSPORT_TRANSPORT_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct engine_qp_ops;
struct qp_ops;

struct shca_transport {
	const char *name; /* in messages */
	const char *prefix; /* of its devices' names */
	enum ibv_node_type node_type;
	enum ibv_transport_type type;

	uint32_t qp_types; /* 1 << enum ibv_qp_type */
	const char *qp_type_names;
	uint64_t send_ops; /* enum ibv_qp_create_send_ops_flags */
	size_t env; /* where struct shca_process has it */
	const struct qp_ops *ops;
	const struct engine_qp_ops *sched, *sched_recorded;

	/* GIDs are the addresses of interfaces, else entry 0 is a MAC. */
	bool ip_gids;
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

extern const struct shca_transport shca_roce, shca_iwarp;

#endif

/*
 * layout.c - the offsets that compiled programs rely on
 *
 * What is asserted here never changes within libibverbs.so.1 and
 * librdmacm.so.1: programs read and call through the structures of
 * <infiniband/verbs.h> and <rdma/rdma_cma.h> in code inlined from those headers,
 * possibly of another release than ours. softhca cannot be built with a header
 * that disagrees. No code of this file runs.
 */
#include <assert.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stddef.h>

#if defined(__LP64__)

/* Structures hold a mutex of the C library, which is longer on arm64. */
#define MUTEX (sizeof(pthread_mutex_t) - 40)

#define AT(type, field, offset)                                                \
	static_assert(offsetof(type, field) == (offset),                       \
		      #type "." #field " is not at " #offset)
#define SIZE(type, size)                                                       \
	static_assert(sizeof(type) == (size), #type " is not " #size " bytes")
/* Later releases append fields. */
#define AT_LEAST(type, size)                                                   \
	static_assert(sizeof(type) >= (size), #type " is below " #size)

/* The context grows at its front: programs count back from its end. */
#define BEFORE_END(field, distance)                                            \
	static_assert(sizeof(struct verbs_context) -                           \
				      offsetof(struct verbs_context, field) == \
			      (distance),                                      \
		      "verbs_context." #field)

AT_LEAST(struct verbs_context, 648 + MUTEX);
SIZE(struct ibv_context, 328 + MUTEX);
BEFORE_END(query_port, 648 + MUTEX - 0);
BEFORE_END(advise_mr, 648 + MUTEX - 8);
BEFORE_END(alloc_null_mr, 648 + MUTEX - 16);
BEFORE_END(read_counters, 648 + MUTEX - 24);
BEFORE_END(attach_counters_point_flow, 648 + MUTEX - 32);
BEFORE_END(create_counters, 648 + MUTEX - 40);
BEFORE_END(destroy_counters, 648 + MUTEX - 48);
BEFORE_END(reg_dm_mr, 648 + MUTEX - 56);
BEFORE_END(alloc_dm, 648 + MUTEX - 64);
BEFORE_END(free_dm, 648 + MUTEX - 72);
BEFORE_END(modify_flow_action_esp, 648 + MUTEX - 80);
BEFORE_END(destroy_flow_action, 648 + MUTEX - 88);
BEFORE_END(create_flow_action_esp, 648 + MUTEX - 96);
BEFORE_END(modify_qp_rate_limit, 648 + MUTEX - 104);
BEFORE_END(alloc_parent_domain, 648 + MUTEX - 112);
BEFORE_END(dealloc_td, 648 + MUTEX - 120);
BEFORE_END(alloc_td, 648 + MUTEX - 128);
BEFORE_END(modify_cq, 648 + MUTEX - 136);
BEFORE_END(post_srq_ops, 648 + MUTEX - 144);
BEFORE_END(destroy_rwq_ind_table, 648 + MUTEX - 152);
BEFORE_END(create_rwq_ind_table, 648 + MUTEX - 160);
BEFORE_END(destroy_wq, 648 + MUTEX - 168);
BEFORE_END(modify_wq, 648 + MUTEX - 176);
BEFORE_END(create_wq, 648 + MUTEX - 184);
BEFORE_END(query_rt_values, 648 + MUTEX - 192);
BEFORE_END(create_cq_ex, 648 + MUTEX - 200);
BEFORE_END(priv, 648 + MUTEX - 208);
BEFORE_END(query_device_ex, 648 + MUTEX - 216);
BEFORE_END(ibv_destroy_flow, 648 + MUTEX - 224);
BEFORE_END(ibv_create_flow, 648 + MUTEX - 240);
BEFORE_END(open_qp, 648 + MUTEX - 256);
BEFORE_END(create_qp_ex, 648 + MUTEX - 264);
BEFORE_END(get_srq_num, 648 + MUTEX - 272);
BEFORE_END(create_srq_ex, 648 + MUTEX - 280);
BEFORE_END(open_xrcd, 648 + MUTEX - 288);
BEFORE_END(close_xrcd, 648 + MUTEX - 296);
BEFORE_END(sz, 648 + MUTEX - 312);
BEFORE_END(context, 648 + MUTEX - 320);

AT(struct ibv_context, device, 0);
AT(struct ibv_context, ops, 8);
AT(struct ibv_context, ops.alloc_mw, 8 + 56);
AT(struct ibv_context, ops.bind_mw, 8 + 64);
AT(struct ibv_context, ops.dealloc_mw, 8 + 72);
AT(struct ibv_context, ops.poll_cq, 8 + 88);
AT(struct ibv_context, ops.req_notify_cq, 8 + 96);
AT(struct ibv_context, ops.post_srq_recv, 8 + 160);
AT(struct ibv_context, ops.post_send, 8 + 200);
AT(struct ibv_context, ops.post_recv, 8 + 208);
AT(struct ibv_context, cmd_fd, 264);
AT(struct ibv_context, async_fd, 268);
AT(struct ibv_context, num_comp_vectors, 272);
AT(struct ibv_context, mutex, 280);
AT(struct ibv_context, abi_compat, 320 + MUTEX);

SIZE(struct ibv_device, 664);
AT(struct ibv_device, node_type, 16);
AT(struct ibv_device, transport_type, 20);
AT(struct ibv_device, name, 24);
AT(struct ibv_device, dev_name, 88);
AT(struct ibv_device, dev_path, 152);
AT(struct ibv_device, ibdev_path, 408);

AT_LEAST(struct ibv_port_attr, 52);
AT(struct ibv_port_attr, link_layer, 46);
AT(struct ibv_port_attr, flags, 47);
AT(struct ibv_port_attr, port_cap_flags2, 48);
SIZE(struct ibv_gid_entry, 32);
AT_LEAST(struct ibv_device_attr_ex, 400);

SIZE(struct ibv_pd, 16);
SIZE(struct ibv_mr, 48);
AT(struct ibv_mr, addr, 16);
AT(struct ibv_mr, length, 24);
AT(struct ibv_mr, lkey, 36);
AT(struct ibv_mr, rkey, 40);
SIZE(struct ibv_ah, 24);
SIZE(struct ibv_mw, 32);
AT(struct ibv_mw, rkey, 16);
AT(struct ibv_mw, type, 24);
SIZE(struct ibv_comp_channel, 16);
AT(struct ibv_comp_channel, fd, 8);
AT(struct ibv_comp_channel, refcnt, 12);

SIZE(struct ibv_cq, 128 + MUTEX);
AT(struct ibv_cq, channel, 8);
AT(struct ibv_cq, cq_context, 16);
AT(struct ibv_cq, cqe, 28);
AT_LEAST(struct ibv_cq_ex, 288);
AT(struct ibv_cq_ex, cqe, 28);
AT(struct ibv_cq_ex, comp_mask, 128 + MUTEX);
AT(struct ibv_cq_ex, status, 132 + MUTEX);
AT(struct ibv_cq_ex, wr_id, 136 + MUTEX);
AT(struct ibv_cq_ex, start_poll, 144 + MUTEX);
AT(struct ibv_cq_ex, next_poll, 152 + MUTEX);
AT(struct ibv_cq_ex, end_poll, 160 + MUTEX);
AT(struct ibv_cq_ex, read_opcode, 168 + MUTEX);
AT(struct ibv_cq_ex, read_vendor_err, 176 + MUTEX);
AT(struct ibv_cq_ex, read_byte_len, 184 + MUTEX);
AT(struct ibv_cq_ex, read_imm_data, 192 + MUTEX);
AT(struct ibv_cq_ex, read_qp_num, 200 + MUTEX);
AT(struct ibv_cq_ex, read_src_qp, 208 + MUTEX);
AT(struct ibv_cq_ex, read_wc_flags, 216 + MUTEX);
AT(struct ibv_cq_ex, read_slid, 224 + MUTEX);
AT(struct ibv_cq_ex, read_sl, 232 + MUTEX);
AT(struct ibv_cq_ex, read_dlid_path_bits, 240 + MUTEX);
AT(struct ibv_cq_ex, read_completion_ts, 248 + MUTEX);
AT(struct ibv_cq_ex, read_cvlan, 256 + MUTEX);
AT(struct ibv_cq_ex, read_flow_tag, 264 + MUTEX);
AT(struct ibv_cq_ex, read_tm_info, 272 + MUTEX);
AT(struct ibv_cq_ex, read_completion_wallclock_ns, 280 + MUTEX);

SIZE(struct ibv_qp, 160 + MUTEX);
AT(struct ibv_qp, qp_num, 52);
AT(struct ibv_qp, state, 56);
AT(struct ibv_qp, qp_type, 60);
AT_LEAST(struct ibv_qp_ex, 352);
AT(struct ibv_qp_ex, wr_id, 168 + MUTEX);
AT(struct ibv_qp_ex, wr_flags, 176 + MUTEX);
AT(struct ibv_qp_ex, wr_atomic_cmp_swp, 184 + MUTEX);
AT(struct ibv_qp_ex, wr_atomic_fetch_add, 192 + MUTEX);
AT(struct ibv_qp_ex, wr_bind_mw, 200 + MUTEX);
AT(struct ibv_qp_ex, wr_local_inv, 208 + MUTEX);
AT(struct ibv_qp_ex, wr_rdma_read, 216 + MUTEX);
AT(struct ibv_qp_ex, wr_rdma_write, 224 + MUTEX);
AT(struct ibv_qp_ex, wr_rdma_write_imm, 232 + MUTEX);
AT(struct ibv_qp_ex, wr_send, 240 + MUTEX);
AT(struct ibv_qp_ex, wr_send_imm, 248 + MUTEX);
AT(struct ibv_qp_ex, wr_send_inv, 256 + MUTEX);
AT(struct ibv_qp_ex, wr_send_tso, 264 + MUTEX);
AT(struct ibv_qp_ex, wr_set_ud_addr, 272 + MUTEX);
AT(struct ibv_qp_ex, wr_set_xrc_srqn, 280 + MUTEX);
AT(struct ibv_qp_ex, wr_set_inline_data, 288 + MUTEX);
AT(struct ibv_qp_ex, wr_set_inline_data_list, 296 + MUTEX);
AT(struct ibv_qp_ex, wr_set_sge, 304 + MUTEX);
AT(struct ibv_qp_ex, wr_set_sge_list, 312 + MUTEX);
AT(struct ibv_qp_ex, wr_start, 320 + MUTEX);
AT(struct ibv_qp_ex, wr_complete, 328 + MUTEX);
AT(struct ibv_qp_ex, wr_abort, 336 + MUTEX);
AT(struct ibv_qp_ex, wr_atomic_write, 344 + MUTEX);

SIZE(struct ibv_srq, 128 + MUTEX);
AT(struct ibv_srq, srq_context, 8);
AT(struct ibv_srq, pd, 16);
SIZE(struct ibv_wq, 152 + MUTEX);
AT(struct ibv_wq, post_recv, 48);
SIZE(struct ibv_xrcd, 8);
SIZE(struct ibv_td, 8);
AT(struct ibv_dm, memcpy_to_dm, 8);
AT(struct ibv_dm, memcpy_from_dm, 16);

SIZE(struct rdma_event_channel, 4);
SIZE(struct rdma_cm_event, 80);
AT(struct rdma_cm_event, id, 0);
AT(struct rdma_cm_event, listen_id, 8);
AT(struct rdma_cm_event, event, 16);
AT(struct rdma_cm_event, status, 20);
AT(struct rdma_cm_event, param, 24);
AT_LEAST(struct rdma_cm_id, 416);
AT(struct rdma_cm_id, verbs, 0);
AT(struct rdma_cm_id, channel, 8);
AT(struct rdma_cm_id, context, 16);
AT(struct rdma_cm_id, qp, 24);
AT(struct rdma_cm_id, route, 32);
AT(struct rdma_cm_id, ps, 344);
AT(struct rdma_cm_id, port_num, 348);
AT(struct rdma_cm_id, event, 352);
AT(struct rdma_cm_id, send_cq_channel, 360);
AT(struct rdma_cm_id, send_cq, 368);
AT(struct rdma_cm_id, recv_cq_channel, 376);
AT(struct rdma_cm_id, recv_cq, 384);
AT(struct rdma_cm_id, srq, 392);
AT(struct rdma_cm_id, pd, 400);
AT(struct rdma_cm_id, qp_type, 408);

#endif

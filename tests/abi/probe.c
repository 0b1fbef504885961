/*
 * probe.c - tries what docs/VERBS.md says, on the first device
 *
 * Prints a line "NAME works" or "NAME ERRNO" for each function that is called
 * through a slot, and for each enumerator that a call accepts.
 */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_xrcd *xrcd;
static char page[8192] __attribute__((aligned(4096)));

static void say(const char *name, int err)
{
	printf("%s %s\n", name, err ? strerrorname_np(err) : "works");
}

static int or_errno(const void *p)
{
	return p ? 0 : errno;
}

#define SAY(name, err) say(#name, err)

/* ---- functions behind slots -------------------------------------------- */

static void slots(void)
{
	const struct verbs_context *v = verbs_get_ctx(ctx);

#define SLOT(fn, slot) say(#fn, v->slot ? 0 : EOPNOTSUPP)
	SLOT(ibv_query_device_ex, query_device_ex);
	SLOT(ibv_query_rt_values_ex, query_rt_values);
	SLOT(ibv_advise_mr, advise_mr);
	SLOT(ibv_alloc_null_mr, alloc_null_mr);
	SLOT(ibv_alloc_dm, alloc_dm);
	SLOT(ibv_free_dm, free_dm);
	SLOT(ibv_reg_dm_mr, reg_dm_mr);
	SLOT(ibv_alloc_td, alloc_td);
	SLOT(ibv_dealloc_td, dealloc_td);
	SLOT(ibv_alloc_parent_domain, alloc_parent_domain);
	SLOT(ibv_create_cq_ex, create_cq_ex);
	SLOT(ibv_modify_cq, modify_cq);
	SLOT(ibv_create_qp_ex, create_qp_ex);
	SLOT(ibv_open_qp, open_qp);
	SLOT(ibv_create_srq_ex, create_srq_ex);
	SLOT(ibv_get_srq_num, get_srq_num);
	SLOT(ibv_open_xrcd, open_xrcd);
	SLOT(ibv_close_xrcd, close_xrcd);
	SLOT(ibv_post_srq_ops, post_srq_ops);
	SLOT(ibv_modify_qp_rate_limit, modify_qp_rate_limit);
	SLOT(ibv_create_wq, create_wq);
	SLOT(ibv_modify_wq, modify_wq);
	SLOT(ibv_destroy_wq, destroy_wq);
	SLOT(ibv_post_wq_recv, create_wq); /* of what is not made */
	SLOT(ibv_create_rwq_ind_table, create_rwq_ind_table);
	SLOT(ibv_destroy_rwq_ind_table, destroy_rwq_ind_table);
	SLOT(ibv_create_flow, ibv_create_flow);
	SLOT(ibv_destroy_flow, ibv_destroy_flow);
	SLOT(ibv_create_flow_action_esp, create_flow_action_esp);
	SLOT(ibv_modify_flow_action_esp, modify_flow_action_esp);
	SLOT(ibv_destroy_flow_action, destroy_flow_action);
	SLOT(ibv_create_counters, create_counters);
	SLOT(ibv_destroy_counters, destroy_counters);
	SLOT(ibv_attach_counters_point_flow, attach_counters_point_flow);
	SLOT(ibv_read_counters, read_counters);
	SAY(ibv_alloc_mw, ctx->ops.alloc_mw ? 0 : EOPNOTSUPP);
	SAY(ibv_dealloc_mw, ctx->ops.dealloc_mw ? 0 : EOPNOTSUPP);
	SAY(ibv_bind_mw, ctx->ops.bind_mw ? 0 : EOPNOTSUPP);
	SAY(ibv_poll_cq, ctx->ops.poll_cq ? 0 : EOPNOTSUPP);
	SAY(ibv_req_notify_cq, ctx->ops.req_notify_cq ? 0 : EOPNOTSUPP);
	SAY(ibv_post_send, ctx->ops.post_send ? 0 : EOPNOTSUPP);
	SAY(ibv_post_recv, ctx->ops.post_recv ? 0 : EOPNOTSUPP);
	SAY(ibv_post_srq_recv, ctx->ops.post_srq_recv ? 0 : EOPNOTSUPP);
}

/* ---- regions and windows ----------------------------------------------- */

static void access_flag(const char *name, unsigned flag)
{
	const unsigned remote = IBV_ACCESS_REMOTE_WRITE |
				IBV_ACCESS_REMOTE_ATOMIC;
	/* volatile: keeps the header from choosing the old entry point */
	volatile unsigned access =
		flag | (flag & remote ? IBV_ACCESS_LOCAL_WRITE : 0u);
	struct ibv_mr *mr = ibv_reg_mr(pd, page, sizeof(page), access);

	say(name, or_errno(mr));
	if (mr)
		ibv_dereg_mr(mr);
}

static void memory(void)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, page, 4096,
				       IBV_ACCESS_LOCAL_WRITE |
					       IBV_ACCESS_ON_DEMAND);
	struct ibv_sge sge = { (uintptr_t)page, 64, mr ? mr->lkey : 0 };
	struct ibv_device_attr_ex attr;
	struct ibv_mw *mw;

#define ACCESS(flag) access_flag(#flag, flag)
	ACCESS(IBV_ACCESS_LOCAL_WRITE);
	ACCESS(IBV_ACCESS_REMOTE_WRITE);
	ACCESS(IBV_ACCESS_REMOTE_READ);
	ACCESS(IBV_ACCESS_REMOTE_ATOMIC);
	ACCESS(IBV_ACCESS_MW_BIND);
	ACCESS(IBV_ACCESS_ZERO_BASED);
	ACCESS(IBV_ACCESS_ON_DEMAND);
	ACCESS(IBV_ACCESS_HUGETLB);
	ACCESS(IBV_ACCESS_RELAXED_ORDERING);
#define WINDOW(type)                                                           \
	mw = ibv_alloc_mw(pd, type);                                           \
	say(#type, or_errno(mw));                                              \
	if (mw)                                                                \
	ibv_dealloc_mw(mw)
	WINDOW(IBV_MW_TYPE_1);
	WINDOW(IBV_MW_TYPE_2);
#define ADVICE(advice) say(#advice, ibv_advise_mr(pd, advice, 0, &sge, 1))
	ADVICE(IBV_ADVISE_MR_ADVICE_PREFETCH);
	ADVICE(IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE);
	ADVICE(IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT);
	SAY(IBV_ADVISE_MR_FLAG_FLUSH,
	    ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH,
			  IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1));
#define REREG(flag, p, addr, len, acc)                                         \
	say(#flag, ibv_rereg_mr(mr, flag, p, addr, len, acc) ? EINVAL : 0)
	REREG(IBV_REREG_MR_CHANGE_TRANSLATION, NULL, page + 4096, 4096, 0);
	REREG(IBV_REREG_MR_CHANGE_PD, pd, NULL, 0, 0);
	REREG(IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 1);
	if (mr)
		ibv_dereg_mr(mr);
	if (ibv_query_device_ex(ctx, NULL, &attr))
		exit(2);
#define ODP(cap)                                                               \
	say(#cap, attr.odp_caps.general_caps & cap ? 0 : EOPNOTSUPP)
	ODP(IBV_ODP_SUPPORT);
	ODP(IBV_ODP_SUPPORT_IMPLICIT);
#define CAP(cap)                                                               \
	say(#cap, attr.device_cap_flags_ex & (uint64_t)cap ? 0 : EOPNOTSUPP)
	CAP(IBV_DEVICE_RESIZE_MAX_WR);
	CAP(IBV_DEVICE_BAD_PKEY_CNTR);
	CAP(IBV_DEVICE_BAD_QKEY_CNTR);
	CAP(IBV_DEVICE_RAW_MULTI);
	CAP(IBV_DEVICE_AUTO_PATH_MIG);
	CAP(IBV_DEVICE_CHANGE_PHY_PORT);
	CAP(IBV_DEVICE_UD_AV_PORT_ENFORCE);
	CAP(IBV_DEVICE_CURR_QP_STATE_MOD);
	CAP(IBV_DEVICE_SHUTDOWN_PORT);
	CAP(IBV_DEVICE_INIT_TYPE);
	CAP(IBV_DEVICE_PORT_ACTIVE_EVENT);
	CAP(IBV_DEVICE_SYS_IMAGE_GUID);
	CAP(IBV_DEVICE_RC_RNR_NAK_GEN);
	CAP(IBV_DEVICE_SRQ_RESIZE);
	CAP(IBV_DEVICE_N_NOTIFY_CQ);
	CAP(IBV_DEVICE_MEM_WINDOW);
	CAP(IBV_DEVICE_UD_IP_CSUM);
	CAP(IBV_DEVICE_XRC);
	CAP(IBV_DEVICE_MEM_MGT_EXTENSIONS);
	CAP(IBV_DEVICE_MEM_WINDOW_TYPE_2A);
	CAP(IBV_DEVICE_MEM_WINDOW_TYPE_2B);
	CAP(IBV_DEVICE_RC_IP_CSUM);
	CAP(IBV_DEVICE_RAW_IP_CSUM);
	CAP(IBV_DEVICE_MANAGED_FLOW_STEERING);
	/* <rdma/ib_user_verbs.h> has it since Linux 6.2. */
	say("IB_UVERBS_DEVICE_ATOMIC_WRITE",
	    attr.device_cap_flags_ex & 1ull << 40 ? 0 : EOPNOTSUPP);
}

/* ---- completion queues ------------------------------------------------- */

static struct ibv_cq_ex *cq_ex(uint64_t wc_flags, uint32_t mask, uint32_t flags,
			       struct ibv_pd *parent)
{
	struct ibv_cq_init_attr_ex a = { .cqe = 16,
					 .wc_flags = wc_flags,
					 .comp_mask = mask,
					 .flags = flags,
					 .parent_domain = parent };

	return ibv_create_cq_ex(ctx, &a);
}

static uint64_t wc_flag(const char *name, uint64_t flag)
{
	struct ibv_cq_ex *c = cq_ex(flag, 0, 0, NULL);

	say(name, or_errno(c));
	if (c)
		ibv_destroy_cq(ibv_cq_ex_to_cq(c));
	return c ? flag : 0;
}

static void completions(void)
{
	struct ibv_parent_domain_init_attr pa = { .pd = pd };
	struct ibv_pd *parent = ibv_alloc_parent_domain(ctx, &pa);
	struct ibv_modify_cq_attr mod = { IBV_CQ_ATTR_MODERATE, { 2, 2 } };
	uint64_t all = 0;
	struct ibv_cq_ex *c;

#define WC(flag) all |= wc_flag(#flag, flag)
	WC(IBV_WC_EX_WITH_BYTE_LEN);
	WC(IBV_WC_EX_WITH_IMM);
	WC(IBV_WC_EX_WITH_QP_NUM);
	WC(IBV_WC_EX_WITH_SRC_QP);
	WC(IBV_WC_EX_WITH_SLID);
	WC(IBV_WC_EX_WITH_SL);
	WC(IBV_WC_EX_WITH_DLID_PATH_BITS);
	WC(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP);
	WC(IBV_WC_EX_WITH_CVLAN);
	WC(IBV_WC_EX_WITH_FLOW_TAG);
	WC(IBV_WC_EX_WITH_TM_INFO);
	WC(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK);
#define CQ(name, mask, flags, p)                                               \
	c = cq_ex(0, mask, flags, p);                                          \
	say(#name, or_errno(c));                                               \
	if (c)                                                                 \
	ibv_destroy_cq(ibv_cq_ex_to_cq(c))
	CQ(IBV_CREATE_CQ_ATTR_SINGLE_THREADED, IBV_CQ_INIT_ATTR_MASK_FLAGS,
	   IBV_CREATE_CQ_ATTR_SINGLE_THREADED, NULL);
	CQ(IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN, IBV_CQ_INIT_ATTR_MASK_FLAGS,
	   IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN, NULL);
	CQ(IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CQ_INIT_ATTR_MASK_FLAGS, 0, NULL);
	CQ(IBV_CQ_INIT_ATTR_MASK_PD, IBV_CQ_INIT_ATTR_MASK_PD, 0, parent);
	if (parent)
		ibv_dealloc_pd(parent);
	SAY(IBV_CQ_ATTR_MODERATE, ibv_modify_cq(cq, &mod));
	c = cq_ex(all, 0, 0, NULL);
	if (!c)
		exit(2);
#define READER(fn, slot) say(#fn, c->slot ? 0 : EOPNOTSUPP)
	READER(ibv_start_poll, start_poll);
	READER(ibv_next_poll, next_poll);
	READER(ibv_end_poll, end_poll);
	READER(ibv_wc_read_opcode, read_opcode);
	READER(ibv_wc_read_vendor_err, read_vendor_err);
	READER(ibv_wc_read_byte_len, read_byte_len);
	READER(ibv_wc_read_imm_data, read_imm_data);
	READER(ibv_wc_read_invalidated_rkey, read_imm_data);
	READER(ibv_wc_read_qp_num, read_qp_num);
	READER(ibv_wc_read_src_qp, read_src_qp);
	READER(ibv_wc_read_wc_flags, read_wc_flags);
	READER(ibv_wc_read_slid, read_slid);
	READER(ibv_wc_read_sl, read_sl);
	READER(ibv_wc_read_dlid_path_bits, read_dlid_path_bits);
	READER(ibv_wc_read_completion_ts, read_completion_ts);
	READER(ibv_wc_read_completion_wallclock_ns,
	       read_completion_wallclock_ns);
	READER(ibv_wc_read_cvlan, read_cvlan);
	READER(ibv_wc_read_flow_tag, read_flow_tag);
	READER(ibv_wc_read_tm_info, read_tm_info);
	ibv_destroy_cq(ibv_cq_ex_to_cq(c));
}

/* ---- queue pairs ------------------------------------------------------- */

static struct ibv_qp *qp_of(enum ibv_qp_type type, uint32_t mask, uint64_t ops,
			    uint32_t create_flags)
{
	struct ibv_qp_init_attr_ex a = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { 4, 4, 1, 1, 16 },
		.qp_type = type,
		.comp_mask = mask | (type == IBV_QPT_XRC_RECV ?
					     IBV_QP_INIT_ATTR_XRCD :
					     IBV_QP_INIT_ATTR_PD),
		.pd = pd,
		.xrcd = xrcd,
		.send_ops_flags = ops,
		.create_flags = create_flags,
		.max_tso_header = 1,
		.source_qpn = 1,
	};

	if (type == IBV_QPT_XRC_RECV)
		memset(&a.cap, 0, sizeof(a.cap));
	return ibv_create_qp_ex(ctx, &a);
}

static void try_qp(const char *name, enum ibv_qp_type type, uint32_t mask,
		   uint64_t ops, uint32_t create_flags)
{
	struct ibv_qp *qp = qp_of(type, mask, ops, create_flags);

	say(name, or_errno(qp));
	if (qp)
		ibv_destroy_qp(qp);
}

/* Whether a request of this kind may be posted at all. */
static void try_wr(const char *name, enum ibv_qp_type type,
		   enum ibv_wr_opcode opcode, unsigned flags)
{
	struct ibv_sge sge = { (uintptr_t)page, 8, 0 };
	struct ibv_qp *qp = qp_of(type, 0, 0, 0);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.path_mtu = IBV_MTU_1024,
		.max_rd_atomic = 1,
		.max_dest_rd_atomic = 1,
		.ah_attr = { .is_global = 1, .port_num = 1 },
	};
	int uc = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
		 IBV_QP_RQ_PSN;
	struct ibv_send_wr wr = { .opcode = opcode,
				  .send_flags = flags,
				  .sg_list = &sge,
				  .num_sge = 1 },
			   *bad;
	int err;

	if (!qp || !mw || ibv_query_gid(ctx, 1, 0, &a.ah_attr.grh.dgid))
		exit(2);
	err = ibv_modify_qp(qp, &a,
			    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
				    (type == IBV_QPT_UD ? IBV_QP_QKEY :
							  IBV_QP_ACCESS_FLAGS));
	a.qp_state = IBV_QPS_RTR;
	a.dest_qp_num = qp->qp_num;
	if (!err)
		err = ibv_modify_qp(qp, &a,
				    type == IBV_QPT_UD ? IBV_QP_STATE :
				    uc | IBV_QP_MAX_DEST_RD_ATOMIC |
					    IBV_QP_MIN_RNR_TIMER);
	a.qp_state = IBV_QPS_RTS;
	if (!err)
		err = ibv_modify_qp(qp, &a,
				    IBV_QP_STATE | IBV_QP_SQ_PSN |
					    (type == IBV_QPT_UD ?
						     0 :
						     IBV_QP_TIMEOUT |
							     IBV_QP_RETRY_CNT |
							     IBV_QP_RNR_RETRY |
							     IBV_QP_MAX_QP_RD_ATOMIC));
	if (err)
		exit(2);
	if (opcode == IBV_WR_BIND_MW) {
		wr.bind_mw.mw = mw;
		wr.bind_mw.rkey = mw->rkey;
		wr.num_sge = 0;
	}
	say(name, ibv_post_send(qp, &wr, &bad));
	ibv_destroy_qp(qp);
	ibv_dealloc_mw(mw);
}

static void try_srq(const char *name, enum ibv_srq_type type)
{
	struct ibv_srq_init_attr_ex a = {
		.attr = { .max_wr = 4, .max_sge = 1 },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
			     IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ |
			     (type == IBV_SRQT_TM ? IBV_SRQ_INIT_ATTR_TM : 0u),
		.srq_type = type,
		.pd = pd,
		.xrcd = xrcd,
		.cq = cq,
		.tm_cap = { 4, 4 },
	};
	struct ibv_srq *srq = ibv_create_srq_ex(ctx, &a);

	say(name, or_errno(srq));
	if (srq)
		ibv_destroy_srq(srq);
}

/* Changing a QP in RTS. */
static void try_attr(const char *name, int mask)
{
	struct ibv_qp *qp = qp_of(IBV_QPT_RC, 0, 0, 0);
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.path_mtu = IBV_MTU_1024,
		.ah_attr = { .is_global = 1, .port_num = 1 },
	};

	if (!qp || ibv_query_gid(ctx, 1, 0, &a.ah_attr.grh.dgid) ||
	    ibv_modify_qp(qp, &a,
			  IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
				  IBV_QP_ACCESS_FLAGS))
		exit(2);
	a.alt_ah_attr = a.ah_attr;
	a.alt_port_num = 1;
	a.qp_state = IBV_QPS_RTR;
	say(name, ibv_modify_qp(qp, &a,
				IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
					IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					IBV_QP_MAX_DEST_RD_ATOMIC |
					IBV_QP_MIN_RNR_TIMER | mask));
	ibv_destroy_qp(qp);
}

static void queue_pairs(void)
{
	const uint32_t ops = IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	const uint32_t cf = IBV_QP_INIT_ATTR_CREATE_FLAGS;
	uint64_t all = 0;
	struct ibv_qp_ex *ex, *ud, *xs;
	struct ibv_qp *qp;

#define QPT(type) try_qp(#type, type, 0, 0, 0)
	QPT(IBV_QPT_RC);
	QPT(IBV_QPT_UC);
	QPT(IBV_QPT_UD);
	QPT(IBV_QPT_RAW_PACKET);
	QPT(IBV_QPT_XRC_SEND);
	QPT(IBV_QPT_XRC_RECV);
	QPT(IBV_QPT_DRIVER);
	try_srq("IBV_SRQT_BASIC", IBV_SRQT_BASIC);
	try_srq("IBV_SRQT_XRC", IBV_SRQT_XRC);
	try_srq("IBV_SRQT_TM", IBV_SRQT_TM);
#define OP(flag)                                                               \
	qp = qp_of(IBV_QPT_RC, ops, flag, 0);                                  \
	say(#flag, or_errno(qp));                                              \
	all |= qp ? flag : 0;                                                  \
	if (qp)                                                                \
	ibv_destroy_qp(qp)
	OP(IBV_QP_EX_WITH_RDMA_WRITE);
	OP(IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM);
	OP(IBV_QP_EX_WITH_SEND);
	OP(IBV_QP_EX_WITH_SEND_WITH_IMM);
	OP(IBV_QP_EX_WITH_RDMA_READ);
	OP(IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP);
	OP(IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD);
	OP(IBV_QP_EX_WITH_LOCAL_INV);
	OP(IBV_QP_EX_WITH_BIND_MW);
	OP(IBV_QP_EX_WITH_SEND_WITH_INV);
	OP(IBV_QP_EX_WITH_TSO);
	OP(IBV_QP_EX_WITH_ATOMIC_WRITE);
	ex = ibv_qp_to_qp_ex(qp_of(IBV_QPT_RC, ops, all, 0));
	ud = ibv_qp_to_qp_ex(qp_of(IBV_QPT_UD, ops, IBV_QP_EX_WITH_SEND, 0));
	xs = ibv_qp_to_qp_ex(
		qp_of(IBV_QPT_XRC_SEND, ops, IBV_QP_EX_WITH_SEND, 0));
#define BUILDER(q, name) say("ibv_" #name, q->name ? 0 : EOPNOTSUPP)
	BUILDER(ex, wr_start);
	BUILDER(ex, wr_complete);
	BUILDER(ex, wr_abort);
	BUILDER(ex, wr_atomic_cmp_swp);
	BUILDER(ex, wr_atomic_fetch_add);
	BUILDER(ex, wr_atomic_write);
	BUILDER(ex, wr_bind_mw);
	BUILDER(ex, wr_local_inv);
	BUILDER(ex, wr_rdma_read);
	BUILDER(ex, wr_rdma_write);
	BUILDER(ex, wr_rdma_write_imm);
	BUILDER(ex, wr_send);
	BUILDER(ex, wr_send_imm);
	BUILDER(ex, wr_send_inv);
	BUILDER(ex, wr_send_tso);
	BUILDER(ex, wr_set_inline_data);
	BUILDER(ex, wr_set_inline_data_list);
	BUILDER(ex, wr_set_sge);
	BUILDER(ex, wr_set_sge_list);
	BUILDER(ud, wr_set_ud_addr);
	BUILDER(xs, wr_set_xrc_srqn);
	ibv_destroy_qp(&ex->qp_base);
	ibv_destroy_qp(&ud->qp_base);
	ibv_destroy_qp(&xs->qp_base);
#define CREATE(flag) try_qp(#flag, IBV_QPT_UD, cf, 0, flag)
	CREATE(IBV_QP_CREATE_BLOCK_SELF_MCAST_LB);
	CREATE(IBV_QP_CREATE_SCATTER_FCS);
	CREATE(IBV_QP_CREATE_CVLAN_STRIPPING);
	CREATE(IBV_QP_CREATE_SOURCE_QPN);
	CREATE(IBV_QP_CREATE_PCI_WRITE_END_PADDING);
#define INIT(flag) try_qp(#flag, IBV_QPT_UD, flag, 0, 0)
	INIT(IBV_QP_INIT_ATTR_PD);
	try_qp("IBV_QP_INIT_ATTR_XRCD", IBV_QPT_XRC_RECV, 0, 0, 0);
	INIT(IBV_QP_INIT_ATTR_CREATE_FLAGS);
	INIT(IBV_QP_INIT_ATTR_MAX_TSO_HEADER);
	INIT(IBV_QP_INIT_ATTR_IND_TABLE);
	INIT(IBV_QP_INIT_ATTR_RX_HASH);
	try_qp("IBV_QP_INIT_ATTR_SEND_OPS_FLAGS", IBV_QPT_RC, ops, 4, 0);
#define WR(op) try_wr(#op, IBV_QPT_RC, op, 0)
	WR(IBV_WR_RDMA_WRITE);
	WR(IBV_WR_RDMA_WRITE_WITH_IMM);
	WR(IBV_WR_SEND);
	WR(IBV_WR_SEND_WITH_IMM);
	WR(IBV_WR_RDMA_READ);
	WR(IBV_WR_ATOMIC_CMP_AND_SWP);
	WR(IBV_WR_ATOMIC_FETCH_AND_ADD);
	WR(IBV_WR_LOCAL_INV);
	WR(IBV_WR_BIND_MW);
	WR(IBV_WR_SEND_WITH_INV);
	WR(IBV_WR_TSO);
	WR(IBV_WR_DRIVER1);
	WR(IBV_WR_ATOMIC_WRITE);
#define FLAG(flag) try_wr(#flag, IBV_QPT_RC, IBV_WR_SEND, flag)
	FLAG(IBV_SEND_FENCE);
	FLAG(IBV_SEND_SIGNALED);
	FLAG(IBV_SEND_SOLICITED);
	FLAG(IBV_SEND_INLINE);
	FLAG(IBV_SEND_IP_CSUM);
	try_attr("IBV_QP_ALT_PATH", IBV_QP_ALT_PATH);
	try_attr("IBV_QP_CAP", IBV_QP_CAP);
	try_attr("IBV_QP_RATE_LIMIT", IBV_QP_RATE_LIMIT);
}

int main(void)
{
	struct ibv_xrcd_init_attr xa = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
		.fd = -1,
		.oflags = O_CREAT,
	};
	struct ibv_device **list = ibv_get_device_list(NULL);

	if (!list || !list[0] || !(ctx = ibv_open_device(list[0])) ||
	    !(pd = ibv_alloc_pd(ctx)) ||
	    !(cq = ibv_create_cq(ctx, 16, NULL, NULL, 0)) ||
	    !(xrcd = ibv_open_xrcd(ctx, &xa)))
		return 2;
	slots();
	memory();
	completions();
	queue_pairs();
	/* All that was made can go: nothing is left of what was refused. */
	return ibv_close_xrcd(xrcd) || ibv_destroy_cq(cq) ||
	       ibv_dealloc_pd(pd) || ibv_close_device(ctx);
}

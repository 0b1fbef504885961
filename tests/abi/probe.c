/*
 * probe.c - tries what docs/VERBS.md says, on the first device
 *
 * Prints a line "NAME works" or "NAME ERRNO" for each function that is called
 * through a slot, and for each enumerator that a call accepts; of an attribute of
 * iWARP "NAME ignored" where ibv_query_qp() does not show what was accepted.
 */
#include "../lib/qp_masks.h"

#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_xrcd *xrcd;
static int xrcd_err; /* why there is none */
static bool iwarp; /* the device speaks that: connections are rdma_cm's */
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
	say("ibv_open_qp", v->open_qp ? xrcd_err : EOPNOTSUPP);
	SLOT(ibv_create_srq_ex, create_srq_ex);
	/* Nothing to call them with where there is no domain. */
	say("ibv_get_srq_num", v->get_srq_num ? xrcd_err : EOPNOTSUPP);
	say("ibv_open_xrcd", v->open_xrcd ? xrcd_err : EOPNOTSUPP);
	say("ibv_close_xrcd", v->close_xrcd ? xrcd_err : EOPNOTSUPP);
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
	const unsigned remote =
		IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
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
	struct ibv_mr *mr = ibv_reg_mr(
		pd, page, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND);
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
#define ODP(cap) say(#cap, attr.odp_caps.general_caps &cap ? 0 : EOPNOTSUPP)
	ODP(IBV_ODP_SUPPORT);
	ODP(IBV_ODP_SUPPORT_IMPLICIT);
#define CAP(cap)                                                               \
	say(#cap, attr.device_cap_flags_ex &(uint64_t)cap ? 0 : EOPNOTSUPP)
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
		.comp_mask = mask |
			     (type == IBV_QPT_XRC_RECV ? IBV_QP_INIT_ATTR_XRCD :
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

/* ---- connections of iWARP ---------------------------------------------- */

static struct rdma_event_channel *channel;

struct connection {
	struct rdma_cm_id *listener, *client, *server;
};

static struct rdma_cm_id *new_id(void)
{
	struct rdma_cm_id *id;

	if (rdma_create_id(channel, &id, NULL, RDMA_PS_TCP))
		exit(2);
	return id;
}

static struct ibv_srq *shared; /* of the next connection, or NULL */

static void add_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr a = { .send_cq = cq,
				      .recv_cq = cq,
				      .srq = shared,
				      .cap = { 4, 4, 1, 1, 16 },
				      .qp_type = IBV_QPT_RC };

	if (rdma_create_qp(id, pd, &a))
		exit(2);
}

/* An established connection to itself. */
static struct connection connect_both(void)
{
	struct sockaddr_in at = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct connection c = { new_id(), new_id(), NULL };
	struct rdma_conn_param param = { .initiator_depth = 1,
					 .responder_resources = 1 };
	struct rdma_cm_event *e;
	int established = 0;

	if (rdma_bind_addr(c.listener, (struct sockaddr *)&at) ||
	    rdma_listen(c.listener, 1))
		exit(2);
	at.sin_port = rdma_get_src_port(c.listener);
	if (rdma_resolve_addr(c.client, NULL, (struct sockaddr *)&at, 2000))
		exit(2);
	while (established < 2) {
		int err = 0;

		if (rdma_get_cm_event(channel, &e))
			exit(2);
		switch (e->event) {
		case RDMA_CM_EVENT_ADDR_RESOLVED:
			err = rdma_resolve_route(c.client, 2000);
			break;
		case RDMA_CM_EVENT_ROUTE_RESOLVED:
			add_qp(c.client);
			err = rdma_connect(c.client, &param);
			break;
		case RDMA_CM_EVENT_CONNECT_REQUEST:
			c.server = e->id;
			add_qp(c.server);
			err = rdma_accept(c.server, &param);
			break;
		case RDMA_CM_EVENT_ESTABLISHED:
			established++;
			break;
		default:
			err = 1;
		}
		rdma_ack_cm_event(e);
		if (err)
			exit(2);
	}
	return c;
}

static void disconnect_both(struct connection *c)
{
	struct rdma_cm_id *id[] = { c->client, c->server, c->listener };

	for (int i = 0; i < 3; i++) {
		if (id[i]->qp)
			rdma_destroy_qp(id[i]);
		rdma_destroy_id(id[i]);
	}
}

/* ---- requests and attributes ------------------------------------------- */

/* To RTS, connected to itself. */
static int to_rts(struct ibv_qp *qp)
{
	const enum ibv_qp_type type =
		qp->qp_type == IBV_QPT_UD ? IBV_QPT_UD : IBV_QPT_RC;
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.path_mtu = IBV_MTU_1024,
		.max_rd_atomic = 1,
		.max_dest_rd_atomic = 1,
		.ah_attr = { .is_global = 1, .port_num = 1 },
		.dest_qp_num = qp->qp_num,
	};
	int err = ibv_query_gid(ctx, 1, 0, &a.ah_attr.grh.dgid);

	if (!err)
		err = ibv_modify_qp(qp, &a, init_mask(type));
	a.qp_state = IBV_QPS_RTR;
	if (!err)
		err = ibv_modify_qp(qp, &a, rtr_mask(type));
	a.qp_state = IBV_QPS_RTS;
	if (!err)
		err = ibv_modify_qp(qp, &a, rts_mask(type));
	return err;
}

/* Whether a request of this kind may be posted at all. */
static void try_wr(const char *name, enum ibv_wr_opcode opcode, unsigned flags)
{
	struct ibv_sge sge = { (uintptr_t)page, 8, 0 };
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	struct ibv_send_wr wr = { .opcode = opcode,
				  .send_flags = flags,
				  .sg_list = &sge,
				  .num_sge = 1 },
			   *bad;
	struct connection c = { 0 };
	struct ibv_qp *qp;

	if (iwarp)
		c = connect_both();
	qp = iwarp ? c.client->qp : qp_of(IBV_QPT_RC, 0, 0, 0);
	if (!qp || !mw || (!iwarp && to_rts(qp)))
		exit(2);
	if (opcode == IBV_WR_BIND_MW) {
		wr.bind_mw.mw = mw;
		wr.bind_mw.rkey = mw->rkey;
		wr.num_sge = 0;
	}
	say(name, ibv_post_send(qp, &wr, &bad));
	if (iwarp)
		disconnect_both(&c);
	else
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
	    ibv_modify_qp(qp, &a, init_mask(IBV_QPT_RC)))
		exit(2);
	a.alt_ah_attr = a.ah_attr;
	a.alt_port_num = 1;
	a.qp_state = IBV_QPS_RTR;
	say(name, ibv_modify_qp(qp, &a, rtr_mask(IBV_QPT_RC) | mask));
	ibv_destroy_qp(qp);
}

static const struct attr_field {
	const char *name;
	int mask;
	size_t at, size;
} attr_fields[] = {
#define FIELD(mask, field)                                                     \
	{                                                                      \
#mask, mask, offsetof(struct ibv_qp_attr, field),              \
			sizeof(((struct ibv_qp_attr *)0)->field)               \
	}
	FIELD(IBV_QP_CUR_STATE, cur_qp_state),
	FIELD(IBV_QP_EN_SQD_ASYNC_NOTIFY, en_sqd_async_notify),
	FIELD(IBV_QP_ACCESS_FLAGS, qp_access_flags),
	FIELD(IBV_QP_PKEY_INDEX, pkey_index),
	FIELD(IBV_QP_PORT, port_num),
	FIELD(IBV_QP_QKEY, qkey),
	FIELD(IBV_QP_AV, ah_attr.is_global),
	FIELD(IBV_QP_PATH_MTU, path_mtu),
	FIELD(IBV_QP_TIMEOUT, timeout),
	FIELD(IBV_QP_RETRY_CNT, retry_cnt),
	FIELD(IBV_QP_RNR_RETRY, rnr_retry),
	FIELD(IBV_QP_RQ_PSN, rq_psn),
	FIELD(IBV_QP_SQ_PSN, sq_psn),
	FIELD(IBV_QP_MAX_QP_RD_ATOMIC, max_rd_atomic),
	FIELD(IBV_QP_MAX_DEST_RD_ATOMIC, max_dest_rd_atomic),
	FIELD(IBV_QP_MIN_RNR_TIMER, min_rnr_timer),
	FIELD(IBV_QP_DEST_QPN, dest_qp_num),
	FIELD(IBV_QP_PATH_MIG_STATE, path_mig_state),
	FIELD(IBV_QP_ALT_PATH, alt_port_num),
	FIELD(IBV_QP_CAP, cap.max_send_wr),
	FIELD(IBV_QP_RATE_LIMIT, rate_limit),
#undef FIELD
};

/* What becomes of an attribute where a QP has no path. */
static void try_field(const struct attr_field *f)
{
	struct ibv_qp *qp = qp_of(IBV_QPT_RC, 0, 0, 0);
	struct ibv_qp_attr set = { 0 }, got;
	struct ibv_qp_init_attr init;
	char *value = (char *)&set + f->at;
	int err;

	if (!qp)
		exit(2);
	/* 1: valid in all of them, and no QP's at first. */
	*value = 1;
	err = ibv_modify_qp(qp, &set, f->mask);
	if (!err && ibv_query_qp(qp, &got, f->mask, &init))
		exit(2);
	if (err || !memcmp(value, (char *)&got + f->at, f->size))
		say(f->name, err);
	else
		printf("%s ignored\n", f->name);
	ibv_destroy_qp(qp);
}

static void iwarp_attributes(void)
{
	struct connection c = connect_both();
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_ERR };

	SAY(IBV_QP_STATE, ibv_modify_qp(c.client->qp, &a, IBV_QP_STATE));
	disconnect_both(&c);
	for (size_t i = 0; i < sizeof(attr_fields) / sizeof(attr_fields[0]);
	     i++)
		try_field(&attr_fields[i]);
}

/* Whether it comes, perhaps behind others. */
static void event(const char *name, enum ibv_event_type type)
{
	struct pollfd p = { .fd = ctx->async_fd, .events = POLLIN };
	struct ibv_async_event e;
	bool found = false;

	while (!found && poll(&p, 1, 5000) == 1 &&
	       !ibv_get_async_event(ctx, &e)) {
		found = e.event_type == type;
		ibv_ack_async_event(&e);
	}
	printf("%s %s\n", name, found ? "works" : "never");
}

static void iwarp_events(void)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, page, sizeof(page), 0);
	struct ibv_srq_init_attr sa = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq_attr limit = { .srq_limit = 2 };
	struct ibv_sge sge = { (uintptr_t)page, 8, mr ? mr->lkey : 0 };
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND }, *bad;
	struct ibv_send_wr write = { .opcode = IBV_WR_RDMA_WRITE,
				     .sg_list = &sge,
				     .num_sge = 1 };
	struct ibv_recv_wr recv = { 0 }, *bad_recv;
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
	struct ibv_qp_init_attr many = { .cap = { 1, 64, 1, 1, 0 },
					 .qp_type = IBV_QPT_RC };
	struct connection c;
	struct ibv_cq *few = ibv_create_cq(ctx, 1, NULL, NULL, 0);
	struct ibv_qp *qp;

#define EVENT(type) event(#type, type)
	shared = ibv_create_srq(pd, &sa);
	if (!mr || !few || !shared ||
	    ibv_post_srq_recv(shared, &recv, &bad_recv) ||
	    ibv_post_srq_recv(shared, &recv, &bad_recv) ||
	    ibv_modify_srq(shared, &limit, IBV_SRQ_LIMIT))
		exit(2);
	c = connect_both();
	if (ibv_post_send(c.client->qp, &send, &bad))
		exit(2);
	EVENT(IBV_EVENT_SRQ_LIMIT_REACHED);
	if (ibv_modify_qp(c.server->qp, &error, IBV_QP_STATE))
		exit(2);
	EVENT(IBV_EVENT_QP_LAST_WQE_REACHED);
	disconnect_both(&c);
	ibv_destroy_srq(shared);
	shared = NULL;

	c = connect_both();
	if (ibv_post_send(c.client->qp, &write, &bad))
		exit(2);
	EVENT(IBV_EVENT_QP_ACCESS_ERR);
	disconnect_both(&c);

	c = connect_both();
	if (ibv_post_send(c.client->qp, &send, &bad))
		exit(2); /* no receive is posted */
	EVENT(IBV_EVENT_QP_FATAL);
	disconnect_both(&c);

	many.send_cq = many.recv_cq = few;
	qp = ibv_create_qp(pd, &many);
	if (!qp || ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PORT))
		exit(2);
	for (int i = 0; i < 64; i++)
		if (ibv_post_recv(qp, &recv, &bad_recv))
			exit(2);
	if (ibv_modify_qp(qp, &error, IBV_QP_STATE))
		exit(2);
	EVENT(IBV_EVENT_CQ_ERR);
	ibv_destroy_qp(qp);
	ibv_destroy_cq(few);
	ibv_dereg_mr(mr);
}

/* Datagrams' and groups' addresses. */
static void addresses(void)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1 };
	union ibv_gid group = { .raw = { 0xff, 0x0e, [15] = 0x77 } };
	const enum ibv_qp_type type = iwarp ? IBV_QPT_RC : IBV_QPT_UD;
	struct ibv_qp *qp = qp_of(type, 0, 0, 0);
	struct ibv_wc wc = { .wc_flags = IBV_WC_GRH };
	struct ibv_grh grh = { 0 };
	uint8_t mac[6];
	struct ibv_ah *ah;
	int err;

	if (!qp || ibv_query_gid(ctx, 1, 0, &attr.grh.dgid))
		exit(2);
	ah = ibv_create_ah(pd, &attr);
	err = or_errno(ah);
	SAY(ibv_create_ah, err);
	SAY(ibv_destroy_ah, ah ? ibv_destroy_ah(ah) : err);
	err = ibv_attach_mcast(qp, &group, 0);
	SAY(ibv_attach_mcast, err);
	SAY(ibv_detach_mcast, err ? err : ibv_detach_mcast(qp, &group, 0));
	SAY(ibv_resolve_eth_l2_from_gid,
	    ibv_resolve_eth_l2_from_gid(ctx, &attr, mac, NULL) ? errno : 0);
	if (iwarp) { /* of datagrams, which there are none of */
		SAY(ibv_create_ah_from_wc,
		    or_errno(ibv_create_ah_from_wc(pd, &wc, &grh, 1)));
		SAY(ibv_init_ah_from_wc,
		    ibv_init_ah_from_wc(ctx, 1, &wc, &grh, &attr) ? errno : 0);
	}
	ibv_destroy_qp(qp);
}

static void queue_pairs(void)
{
	const enum ibv_qp_type plain = iwarp ? IBV_QPT_RC : IBV_QPT_UD;
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
#define BUILDER(q, name) say("ibv_" #name, q && q->name ? 0 : EOPNOTSUPP)
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
	if (ud)
		ibv_destroy_qp(&ud->qp_base);
	if (xs)
		ibv_destroy_qp(&xs->qp_base);
#define CREATE(flag) try_qp(#flag, plain, cf, 0, flag)
	CREATE(IBV_QP_CREATE_BLOCK_SELF_MCAST_LB);
	CREATE(IBV_QP_CREATE_SCATTER_FCS);
	CREATE(IBV_QP_CREATE_CVLAN_STRIPPING);
	CREATE(IBV_QP_CREATE_SOURCE_QPN);
	CREATE(IBV_QP_CREATE_PCI_WRITE_END_PADDING);
#define INIT(flag) try_qp(#flag, plain, flag, 0, 0)
	INIT(IBV_QP_INIT_ATTR_PD);
	try_qp("IBV_QP_INIT_ATTR_XRCD", IBV_QPT_XRC_RECV, 0, 0, 0);
	INIT(IBV_QP_INIT_ATTR_CREATE_FLAGS);
	INIT(IBV_QP_INIT_ATTR_MAX_TSO_HEADER);
	INIT(IBV_QP_INIT_ATTR_IND_TABLE);
	INIT(IBV_QP_INIT_ATTR_RX_HASH);
	try_qp("IBV_QP_INIT_ATTR_SEND_OPS_FLAGS", IBV_QPT_RC, ops, 4, 0);
#define WR(op) try_wr(#op, op, 0)
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
#define FLAG(flag) try_wr(#flag, IBV_WR_SEND, flag)
	FLAG(IBV_SEND_FENCE);
	FLAG(IBV_SEND_SIGNALED);
	FLAG(IBV_SEND_SOLICITED);
	FLAG(IBV_SEND_INLINE);
	FLAG(IBV_SEND_IP_CSUM);
	if (iwarp) {
		iwarp_attributes();
		iwarp_events();
		return;
	}
	try_attr("IBV_QP_ALT_PATH", IBV_QP_ALT_PATH);
	try_attr("IBV_QP_CAP", IBV_QP_CAP);
	try_attr("IBV_QP_RATE_LIMIT", IBV_QP_RATE_LIMIT);
}

/* The first device: of iWARP rdma_cm's context of it, so that objects of both
 * belong together. */
static bool open_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct sockaddr_in at = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct rdma_cm_event *e;
	struct rdma_cm_id *id;

	if (!list || !list[0])
		return false;
	iwarp = list[0]->transport_type == IBV_TRANSPORT_IWARP;
	if (!iwarp)
		return (ctx = ibv_open_device(list[0]));
	channel = rdma_create_event_channel();
	if (!channel)
		return false;
	id = new_id(); /* to the end: it keeps the context */
	/* What is bound to a loopback address has no device yet. */
	if (rdma_resolve_addr(id, NULL, (struct sockaddr *)&at, 2000) ||
	    rdma_get_cm_event(channel, &e))
		return false;
	rdma_ack_cm_event(e);
	return (ctx = id->verbs);
}

int main(void)
{
	struct ibv_xrcd_init_attr xa = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
		.fd = -1,
		.oflags = O_CREAT,
	};

	if (!open_device() || !(pd = ibv_alloc_pd(ctx)) ||
	    !(cq = ibv_create_cq(ctx, 16, NULL, NULL, 0)))
		return 2;
	xrcd = ibv_open_xrcd(ctx, &xa);
	xrcd_err = or_errno(xrcd);
	slots();
	memory();
	completions();
	queue_pairs();
	addresses();
	/* All that was made can go: nothing is left of what was refused. */
	return (xrcd && ibv_close_xrcd(xrcd)) || ibv_destroy_cq(cq) ||
	       ibv_dealloc_pd(pd) || (!iwarp && ibv_close_device(ctx));
}

/*
 * badargs.c - the local cases of badinput: wrong calls of the basic verbs
 */
#include "badcalls.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

#define BUF 4096u
#define RW                                                                     \
	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |                    \
	 IBV_ACCESS_REMOTE_READ)
#define ALL (RW | IBV_ACCESS_REMOTE_ATOMIC)

struct rig {
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct ibv_qp *qp;
	char *buf;
};

static struct ibv_qp *new_qp(struct ibv_cq *cq, enum ibv_qp_type type,
			     struct ibv_srq *srq)
{
	struct ibv_qp_init_attr ia = {
		.send_cq = cq,
		.recv_cq = cq,
		.srq = srq,
		.qp_type = type,
		.cap = { .max_send_wr = 4,
			 .max_recv_wr = srq ? 0 : 4,
			 .max_send_sge = 2,
			 .max_recv_sge = srq ? 0 : 2 },
	};
	struct ibv_qp *qp = ibv_create_qp(dev.pd, &ia);

	if (!qp)
		die(EXIT_SETUP, "ibv_create_qp: %m");
	return qp;
}

static struct ibv_qp_attr good_attr(enum ibv_qp_state to)
{
	struct ibv_qp_attr a = { .qp_state = to,
				 .port_num = 1,
				 .qp_access_flags = ALL,
				 .qkey = 1,
				 .path_mtu = IBV_MTU_1024,
				 .max_dest_rd_atomic = 1,
				 .max_rd_atomic = 1,
				 .min_rnr_timer = 12,
				 .timeout = 14,
				 .retry_cnt = 7,
				 .rnr_retry = 7,
				 .ah_attr = { .is_global = 1, .port_num = 1 } };

	if (dev.port.active_mtu < a.path_mtu)
		a.path_mtu = dev.port.active_mtu;
	a.ah_attr.grh.dgid = dev.gid;
	a.ah_attr.grh.sgid_index = (uint8_t)dev.gid_index;
	a.ah_attr.grh.hop_limit = 1;
	return a;
}

#define INIT_MASK                                                              \
	(IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)
#define INIT_MASK_UD                                                           \
	(IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY)
#define RTR_MASK                                                               \
	(IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |        \
	 IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)
#define RTS_MASK                                                               \
	(IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |    \
	 IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC)

static void move(struct ibv_qp *qp, enum ibv_qp_state to)
{
	static const struct {
		enum ibv_qp_state s;
		int rc, uc, ud;
	} step[] = {
		{ IBV_QPS_INIT, INIT_MASK, INIT_MASK, INIT_MASK_UD },
		{ IBV_QPS_RTR, RTR_MASK,
		  RTR_MASK &
			  ~(IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
		  IBV_QP_STATE },
		{ IBV_QPS_RTS, RTS_MASK, IBV_QP_STATE | IBV_QP_SQ_PSN,
		  IBV_QP_STATE | IBV_QP_SQ_PSN },
	};

	for (int i = 0; i < 3 && step[i].s <= to; i++) {
		struct ibv_qp_attr a = good_attr(step[i].s);
		int rc;

		if (qp->qp_type == IBV_QPT_UC)
			a.qp_access_flags = RW;
		a.dest_qp_num = qp->qp_num;
		rc = ibv_modify_qp(qp, &a,
				   qp->qp_type == IBV_QPT_RC ? step[i].rc :
				   qp->qp_type == IBV_QPT_UC ? step[i].uc :
							       step[i].ud);
		if (rc)
			die(EXIT_SETUP, "modify_qp to %d: %s", step[i].s,
			    strerror(rc));
	}
}

static int or_errno(const void *p)
{
	return p ? 0 : errno;
}

static struct ibv_cq *new_cq(void)
{
	struct ibv_cq *cq = ibv_create_cq(dev.ctx, 16, NULL, NULL, 0);

	if (!cq)
		die(EXIT_SETUP, "ibv_create_cq: %m");
	return cq;
}

static int cq_zero(void)
{
	return or_errno(ibv_create_cq(dev.ctx, 0, NULL, NULL, 0));
}

static int cq_too_big(void)
{
	return or_errno(
		ibv_create_cq(dev.ctx, dev.attr.max_cqe + 1, NULL, NULL, 0));
}

static int cq_bad_vector(void)
{
	return or_errno(ibv_create_cq(dev.ctx, 16, NULL, NULL,
				      dev.ctx->num_comp_vectors));
}

static char page[BUF] __attribute__((aligned(4096)));

/* volatile: keeps the header from choosing the old entry point. */
static int reg(void *addr, size_t len, unsigned access)
{
	volatile unsigned a = access;
	struct ibv_mr *mr = ibv_reg_mr(dev.pd, addr, len, a);
	int rc = or_errno(mr);

	if (mr)
		ibv_dereg_mr(mr);
	return rc;
}

static int mr_remote_write_only(void)
{
	return reg(page, BUF, IBV_ACCESS_REMOTE_WRITE);
}

static int mr_atomic_only(void)
{
	return reg(page, BUF, IBV_ACCESS_REMOTE_ATOMIC);
}

static int mr_unmapped(void)
{
	char *p = mmap(NULL, 2 * BUF, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int rc;

	munmap(p + BUF, BUF);
	rc = reg(p, 2 * BUF, IBV_ACCESS_LOCAL_WRITE);
	munmap(p, BUF);
	return rc;
}

static int mr_read_only_memory(void)
{
	char *p =
		mmap(NULL, BUF, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int rc = reg(p, BUF, IBV_ACCESS_LOCAL_WRITE);

	munmap(p, BUF);
	return rc;
}

static int mr_wraps(void)
{
	return reg(page, SIZE_MAX - 100, IBV_ACCESS_LOCAL_WRITE);
}

static int pd_busy_mr(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(dev.ctx);
	struct ibv_mr *mr = ibv_reg_mr(pd, page, BUF, IBV_ACCESS_LOCAL_WRITE);
	int rc = ibv_dealloc_pd(pd);

	ibv_dereg_mr(mr);
	if (ibv_dealloc_pd(pd))
		return EIO;
	return rc;
}

static int pd_busy_ah(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(dev.ctx);
	struct ibv_qp_attr a = good_attr(IBV_QPS_RTR);
	struct ibv_ah *ah = ibv_create_ah(pd, &a.ah_attr);
	int rc;

	if (!ah)
		return EIO;
	rc = ibv_dealloc_pd(pd);
	ibv_destroy_ah(ah);
	if (ibv_dealloc_pd(pd))
		return EIO;
	return rc;
}

static int cq_busy(void)
{
	struct ibv_cq *cq = new_cq();
	struct ibv_qp *qp = new_qp(cq, IBV_QPT_RC, NULL);
	int rc = ibv_destroy_cq(cq);

	ibv_destroy_qp(qp);
	if (ibv_destroy_cq(cq))
		return EIO;
	return rc;
}

static int srq_busy(void)
{
	struct ibv_cq *cq = new_cq();
	struct ibv_srq_init_attr sa = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(dev.pd, &sa);
	struct ibv_qp *qp;
	int rc;

	if (!srq)
		return EIO;
	qp = new_qp(cq, IBV_QPT_RC, srq);
	rc = ibv_destroy_srq(srq);
	ibv_destroy_qp(qp);
	if (ibv_destroy_srq(srq) || ibv_destroy_cq(cq))
		return EIO;
	return rc;
}

static int channel_busy(void)
{
	struct ibv_comp_channel *ch = ibv_create_comp_channel(dev.ctx);
	struct ibv_cq *cq = ibv_create_cq(dev.ctx, 1, NULL, ch, 0);
	int rc = ibv_destroy_comp_channel(ch);

	if (ibv_destroy_cq(cq) || ibv_destroy_comp_channel(ch))
		return EIO;
	return rc;
}

static int channel_empty(void)
{
	struct ibv_comp_channel *ch = ibv_create_comp_channel(dev.ctx);
	struct ibv_cq *cq;
	void *arg;
	int rc;

	fcntl(ch->fd, F_SETFL, O_NONBLOCK);
	rc = ibv_get_cq_event(ch, &cq, &arg) ? errno : 0;
	ibv_destroy_comp_channel(ch);
	return rc;
}

static int async_empty(void)
{
	struct ibv_async_event e;
	int flags = fcntl(dev.ctx->async_fd, F_GETFL);
	int rc;

	fcntl(dev.ctx->async_fd, F_SETFL, flags | O_NONBLOCK);
	rc = ibv_get_async_event(dev.ctx, &e) ? errno : 0;
	fcntl(dev.ctx->async_fd, F_SETFL, flags);
	return rc;
}

/* create_qp with one thing wrong */
static int bad_qp(void (*spoil)(struct ibv_qp_init_attr *))
{
	struct ibv_cq *cq = new_cq();
	struct ibv_qp_init_attr ia = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = IBV_QPT_RC,
		.cap = { 4, 4, 1, 1, 0 },
	};
	struct ibv_qp *qp;
	int rc;

	spoil(&ia);
	qp = ibv_create_qp(dev.pd, &ia);
	rc = or_errno(qp);
	if (qp)
		ibv_destroy_qp(qp);
	ibv_destroy_cq(cq);
	return rc;
}

#define BAD_QP(name, ...)                                                      \
	static void name##_spoil(struct ibv_qp_init_attr *ia)                  \
	{                                                                      \
		__VA_ARGS__;                                                   \
	}                                                                      \
	static int name(void)                                                  \
	{                                                                      \
		return bad_qp(name##_spoil);                                   \
	}

BAD_QP(qp_send_wr, ia->cap.max_send_wr = (uint32_t)dev.attr.max_qp_wr + 1)
BAD_QP(qp_recv_wr, ia->cap.max_recv_wr = (uint32_t)dev.attr.max_qp_wr + 1)
BAD_QP(qp_send_sge, ia->cap.max_send_sge = (uint32_t)dev.attr.max_sge + 1)
BAD_QP(qp_recv_sge, ia->cap.max_recv_sge = (uint32_t)dev.attr.max_sge + 1)
BAD_QP(qp_inline, ia->cap.max_inline_data = 1u << 30)

static int srq_too_big(void)
{
	struct ibv_srq_init_attr sa = {
		.attr = { .max_wr = (uint32_t)dev.attr.max_srq_wr + 1,
			  .max_sge = 1 }
	};

	return or_errno(ibv_create_srq(dev.pd, &sa));
}

static int srq_limit_too_big(void)
{
	struct ibv_srq_init_attr sa = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(dev.pd, &sa);
	struct ibv_srq_attr a = { .srq_limit = sa.attr.max_wr + 1 };
	int rc = ibv_modify_srq(srq, &a, IBV_SRQ_LIMIT);

	ibv_destroy_srq(srq);
	return rc;
}

/* modify_qp from a state, with one thing wrong */
static int bad_modify(enum ibv_qp_type type, enum ibv_qp_state from,
		      enum ibv_qp_state to, int mask,
		      void (*spoil)(struct ibv_qp_attr *))
{
	struct ibv_cq *cq = new_cq();
	struct ibv_qp *qp = new_qp(cq, type, NULL);
	struct ibv_qp_attr a = good_attr(to), now;
	struct ibv_qp_init_attr ia;
	int rc;

	if (from != IBV_QPS_RESET)
		move(qp, from);
	if (type == IBV_QPT_UC)
		a.qp_access_flags = RW;
	a.dest_qp_num = qp->qp_num;
	if (spoil)
		spoil(&a);
	rc = ibv_modify_qp(qp, &a, mask);
	/* A refused change leaves everything as it was. */
	if (rc && (ibv_query_qp(qp, &now, IBV_QP_STATE, &ia) ||
		   now.qp_state != from || qp->state != from))
		rc = EIO;
	ibv_destroy_qp(qp);
	ibv_destroy_cq(cq);
	return rc;
}

#define BAD_MODIFY(name, type, from, to, mask, ...)                            \
	static void name##_spoil(struct ibv_qp_attr *a)                        \
	{                                                                      \
		(void)a;                                                       \
		__VA_ARGS__;                                                   \
	}                                                                      \
	static int name(void)                                                  \
	{                                                                      \
		return bad_modify(IBV_QPT_##type, IBV_QPS_##from,              \
				  IBV_QPS_##to, mask, name##_spoil);           \
	}

BAD_MODIFY(init_no_port, RC, RESET, INIT, INIT_MASK & ~IBV_QP_PORT)
BAD_MODIFY(init_no_pkey, RC, RESET, INIT, INIT_MASK & ~IBV_QP_PKEY_INDEX)
BAD_MODIFY(init_no_access, RC, RESET, INIT, INIT_MASK & ~IBV_QP_ACCESS_FLAGS)
BAD_MODIFY(init_ud_no_qkey, UD, RESET, INIT, INIT_MASK_UD & ~IBV_QP_QKEY)
BAD_MODIFY(init_extra, RC, RESET, INIT, INIT_MASK | IBV_QP_DEST_QPN)
BAD_MODIFY(init_bad_port, RC, RESET, INIT, INIT_MASK, a->port_num = 2)
BAD_MODIFY(init_bad_pkey, RC, RESET, INIT, INIT_MASK, a->pkey_index = 999)
BAD_MODIFY(reset_to_rtr, RC, RESET, RTR, RTR_MASK)
BAD_MODIFY(reset_to_rts, RC, RESET, RTS, RTS_MASK)
BAD_MODIFY(init_to_rts, RC, INIT, RTS, RTS_MASK)
BAD_MODIFY(rts_to_init, RC, RTS, INIT, INIT_MASK)
BAD_MODIFY(wrong_cur_state, RC, RTR, RTS, RTS_MASK | IBV_QP_CUR_STATE,
	   a->cur_qp_state = IBV_QPS_SQD)
/* An index of the GID table without an address. */
static int gid_hole(void)
{
	static const union ibv_gid none;
	union ibv_gid gid;

	for (int i = dev.port.gid_tbl_len - 1; i > 0; i--)
		if (!ibv_query_gid(dev.ctx, 1, i, &gid) &&
		    !memcmp(&gid, &none, sizeof(gid)))
			return i;
	return 255;
}

/* 2001:db8::7, or 192.0.2.7. */
static void other_family(struct ibv_qp_attr *a)
{
	static const uint8_t v4[16] = { [10] = 0xff, 0xff, 192, 0, 2, 7 };
	static const uint8_t v6[16] = { 0x20, 1, 0xd, 0xb8, [15] = 7 };
	uint8_t *dgid = a->ah_attr.grh.dgid.raw;

	memcpy(dgid, memcmp(dgid, v4, 12) ? v4 : v6, 16);
}

BAD_MODIFY(rtr_no_av, RC, INIT, RTR, RTR_MASK & ~IBV_QP_AV)
BAD_MODIFY(rtr_no_mtu, RC, INIT, RTR, RTR_MASK & ~IBV_QP_PATH_MTU)
BAD_MODIFY(rtr_no_dest, RC, INIT, RTR, RTR_MASK & ~IBV_QP_DEST_QPN)
BAD_MODIFY(rtr_no_psn, RC, INIT, RTR, RTR_MASK & ~IBV_QP_RQ_PSN)
BAD_MODIFY(rtr_no_rd_atomic, RC, INIT, RTR,
	   RTR_MASK & ~IBV_QP_MAX_DEST_RD_ATOMIC)
BAD_MODIFY(rtr_no_rnr, RC, INIT, RTR, RTR_MASK & ~IBV_QP_MIN_RNR_TIMER)
BAD_MODIFY(rtr_uc_extra, UC, INIT, RTR, RTR_MASK)
BAD_MODIFY(rtr_no_grh, RC, INIT, RTR, RTR_MASK, a->ah_attr.is_global = 0)
BAD_MODIFY(rtr_gid_index, RC, INIT, RTR, RTR_MASK,
	   a->ah_attr.grh.sgid_index = 255)
BAD_MODIFY(rtr_gid_hole, RC, INIT, RTR, RTR_MASK,
	   a->ah_attr.grh.sgid_index = (uint8_t)gid_hole())
BAD_MODIFY(rtr_ah_port, RC, INIT, RTR, RTR_MASK, a->ah_attr.port_num = 2)
BAD_MODIFY(rtr_no_dgid, RC, INIT, RTR, RTR_MASK,
	   memset(&a->ah_attr.grh.dgid, 0, sizeof(a->ah_attr.grh.dgid)))
BAD_MODIFY(rtr_families, RC, INIT, RTR, RTR_MASK, other_family(a))
BAD_MODIFY(rtr_dest, RC, INIT, RTR, RTR_MASK, a->dest_qp_num = 0x11000000)
BAD_MODIFY(rtr_mtu_zero, RC, INIT, RTR, RTR_MASK, a->path_mtu = 0)
BAD_MODIFY(rtr_mtu_unknown, RC, INIT, RTR, RTR_MASK, a->path_mtu = 6)
BAD_MODIFY(rtr_rd_atomic, RC, INIT, RTR, RTR_MASK,
	   a->max_dest_rd_atomic = (uint8_t)(dev.attr.max_qp_rd_atom + 1))
BAD_MODIFY(rtr_rnr_timer, RC, INIT, RTR, RTR_MASK, a->min_rnr_timer = 32)
BAD_MODIFY(rts_no_psn, RC, RTR, RTS, RTS_MASK & ~IBV_QP_SQ_PSN)
BAD_MODIFY(rts_no_timeout, RC, RTR, RTS, RTS_MASK & ~IBV_QP_TIMEOUT)
BAD_MODIFY(rts_no_retry, RC, RTR, RTS, RTS_MASK & ~IBV_QP_RETRY_CNT)
BAD_MODIFY(rts_no_rnr_retry, RC, RTR, RTS, RTS_MASK & ~IBV_QP_RNR_RETRY)
BAD_MODIFY(rts_no_rd_atomic, RC, RTR, RTS, RTS_MASK & ~IBV_QP_MAX_QP_RD_ATOMIC)
BAD_MODIFY(rts_rd_atomic, RC, RTR, RTS, RTS_MASK,
	   a->max_rd_atomic = (uint8_t)(dev.attr.max_qp_init_rd_atom + 1))
BAD_MODIFY(rts_timeout, RC, RTR, RTS, RTS_MASK, a->timeout = 32)
BAD_MODIFY(rts_retry, RC, RTR, RTS, RTS_MASK, a->retry_cnt = 8)

static int gid_out_of_range(void)
{
	union ibv_gid gid;

	return ibv_query_gid(dev.ctx, 1, dev.port.gid_tbl_len, &gid) ? EINVAL :
								       0;
}

static int gid_negative(void)
{
	union ibv_gid gid;

	return ibv_query_gid(dev.ctx, 1, -1, &gid) ? EINVAL : 0;
}

static int port_zero(void)
{
	struct ibv_port_attr a;

	return ibv_query_port(dev.ctx, 0, &a);
}

static int port_two(void)
{
	struct ibv_port_attr a;

	return ibv_query_port(dev.ctx, 2, &a);
}

static int pkey_out_of_range(void)
{
	__be16 pkey;

	return ibv_query_pkey(dev.ctx, 1, 999, &pkey) ? EINVAL : 0;
}

static int ah_no_grh(void)
{
	struct ibv_qp_attr a = good_attr(IBV_QPS_RTR);

	a.ah_attr.is_global = 0;
	return or_errno(ibv_create_ah(dev.pd, &a.ah_attr));
}

static int ah_gid_index(void)
{
	struct ibv_qp_attr a = good_attr(IBV_QPS_RTR);

	a.ah_attr.grh.sgid_index = 255;
	return or_errno(ibv_create_ah(dev.pd, &a.ah_attr));
}

static int ah_port(void)
{
	struct ibv_qp_attr a = good_attr(IBV_QPS_RTR);

	a.ah_attr.port_num = 3;
	return or_errno(ibv_create_ah(dev.pd, &a.ah_attr));
}

/* Posts n sends and m receives in a state; the first refusal counts, and
 * bad_wr must point at the work request refused. */
struct posting {
	enum ibv_qp_type type;
	enum ibv_qp_state state;
	int sends, recvs, sges;
	enum ibv_wr_opcode opcode;
	unsigned flags;
	uint32_t len;
	bool srq;
};

static int posting(const struct posting *o)
{
	struct ibv_cq *cq = new_cq();
	struct ibv_srq_init_attr sa = { .attr = { .max_wr = 4, .max_sge = 2 } };
	struct ibv_srq *srq = o->srq ? ibv_create_srq(dev.pd, &sa) : NULL;
	struct ibv_qp *qp = new_qp(cq, o->type, srq);
	struct ibv_mr *mr = ibv_reg_mr(dev.pd, page, BUF, RW);
	struct ibv_sge sge[64] = { 0 };
	int rc = 0;

	if (o->state == IBV_QPS_ERR) {
		struct ibv_qp_attr a = { .qp_state = IBV_QPS_ERR };

		move(qp, IBV_QPS_INIT);
		if (ibv_modify_qp(qp, &a, IBV_QP_STATE))
			die(EXIT_SETUP, "modify_qp to ERR");
	} else if (o->state != IBV_QPS_RESET) {
		move(qp, o->state);
	}
	for (int i = 0; i < 64; i++)
		sge[i] = (struct ibv_sge){ (uintptr_t)page, o->len ? o->len : 8,
					   mr->lkey };
	for (int i = 0; i < o->sends && !rc; i++) {
		struct ibv_send_wr wr = { .opcode = o->opcode,
					  .sg_list = sge,
					  .num_sge = o->sges ? o->sges : 1,
					  .send_flags = o->flags },
				   *bad = NULL;

		rc = ibv_post_send(qp, &wr, &bad);
		if (rc && bad != &wr)
			rc = EIO;
	}
	for (int i = 0; i < o->recvs && !rc; i++) {
		struct ibv_recv_wr wr = { .sg_list = sge,
					  .num_sge = o->sges ? o->sges : 1 },
				   *bad = NULL;

		rc = ibv_post_recv(qp, &wr, &bad);
		if (rc && bad != &wr)
			rc = EIO;
	}
	ibv_destroy_qp(qp);
	if (srq)
		ibv_destroy_srq(srq);
	ibv_destroy_cq(cq);
	ibv_dereg_mr(mr);
	return rc;
}

#define POSTING(name, ...)                                                     \
	static int name(void)                                                  \
	{                                                                      \
		struct posting o = { __VA_ARGS__ };                            \
		return posting(&o);                                            \
	}

POSTING(send_in_reset, .type = IBV_QPT_RC, .state = IBV_QPS_RESET, .sends = 1,
	.opcode = IBV_WR_SEND)
POSTING(send_in_init, .type = IBV_QPT_RC, .state = IBV_QPS_INIT, .sends = 1,
	.opcode = IBV_WR_SEND)
POSTING(send_in_rtr, .type = IBV_QPT_RC, .state = IBV_QPS_RTR, .sends = 1,
	.opcode = IBV_WR_SEND)
POSTING(send_in_err, .type = IBV_QPT_RC, .state = IBV_QPS_ERR, .sends = 1,
	.opcode = IBV_WR_SEND)
POSTING(recv_in_reset, .type = IBV_QPT_RC, .state = IBV_QPS_RESET, .sends = 0,
	.recvs = 1)
POSTING(recv_in_init, .type = IBV_QPT_RC, .state = IBV_QPS_INIT, .sends = 0,
	.recvs = 1)
POSTING(send_full, .type = IBV_QPT_RC, .state = IBV_QPS_RTS, .sends = 1000,
	.opcode = IBV_WR_SEND)
POSTING(recv_full, .type = IBV_QPT_RC, .state = IBV_QPS_INIT, .sends = 0,
	.recvs = 1000)
POSTING(send_sges, .type = IBV_QPT_RC, .state = IBV_QPS_RTS, .sends = 1,
	.recvs = 0, .sges = 60, .opcode = IBV_WR_SEND)
POSTING(recv_sges, .type = IBV_QPT_RC, .state = IBV_QPS_INIT, .sends = 0,
	.recvs = 1, .sges = 60)
POSTING(send_inline, .type = IBV_QPT_RC, .state = IBV_QPS_RTS, .sends = 1,
	.opcode = IBV_WR_SEND, .flags = IBV_SEND_INLINE, .len = BUF)
POSTING(bad_opcode, .type = IBV_QPT_RC, .state = IBV_QPS_RTS, .sends = 1,
	.opcode = 99)
POSTING(recv_with_srq, .type = IBV_QPT_RC, .state = IBV_QPS_INIT, .sends = 0,
	.recvs = 1, .srq = true)

static int srq_full(void)
{
	struct ibv_srq_init_attr sa = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(dev.pd, &sa);
	int rc = 0;

	for (int i = 0; i < 1000 && !rc; i++) {
		struct ibv_recv_wr wr = { .wr_id = 1 }, *bad = NULL;

		rc = ibv_post_srq_recv(srq, &wr, &bad);
		if (rc && bad != &wr)
			rc = EIO;
	}
	ibv_destroy_srq(srq);
	return rc;
}

static int mcast(enum ibv_qp_type type, bool group, bool attach)
{
	struct ibv_cq *cq = new_cq();
	struct ibv_qp *qp = new_qp(cq, type, NULL);
	union ibv_gid gid = { .raw = { 0xff, 0x0e, [10] = 0xff, 0xff, 239, 1, 2,
				       3 } };
	int rc;

	if (!group)
		gid = dev.gid;
	move(qp, IBV_QPS_RTR);
	rc = attach ? ibv_attach_mcast(qp, &gid, 0) :
		      ibv_detach_mcast(qp, &gid, 0);
	ibv_destroy_qp(qp);
	ibv_destroy_cq(cq);
	return rc;
}

static int mcast_rc(void)
{
	return mcast(IBV_QPT_RC, true, true);
}

static int mcast_unicast(void)
{
	return mcast(IBV_QPT_UD, false, true);
}

static int mcast_not_attached(void)
{
	return mcast(IBV_QPT_UD, true, false);
}

const struct local_case badargs[] = {
	C(cq_zero, "CQ of no entries", EINVAL),
	C(cq_too_big, "CQ larger than max_cqe", EINVAL),
	C(cq_bad_vector, "CQ with an unknown completion vector", EINVAL),
	C(mr_remote_write_only, "MR remote write without local write", EINVAL),
	C(mr_atomic_only, "MR remote atomic without local write", EINVAL),
	C(mr_unmapped, "MR over unmapped memory", EFAULT),
	C(mr_read_only_memory, "MR writable over read-only memory", EFAULT),
	C(mr_wraps, "MR that wraps round the address space", EINVAL, EFAULT),
	C(pd_busy_mr, "dealloc_pd with an MR", EBUSY),
	C(pd_busy_ah, "dealloc_pd with an AH", EBUSY),
	C(cq_busy, "destroy_cq with a QP", EBUSY),
	C(srq_busy, "destroy_srq with a QP", EBUSY),
	C(channel_busy, "destroy_comp_channel with a CQ", EBUSY),
	C(channel_empty, "get_cq_event, nothing there, O_NONBLOCK", EAGAIN),
	C(async_empty, "get_async_event, nothing there, O_NONBLOCK", EAGAIN),
	C(qp_send_wr, "QP with too many send requests", EINVAL),
	C(qp_recv_wr, "QP with too many receive requests", EINVAL),
	C(qp_send_sge, "QP with too many send SGEs", EINVAL),
	C(qp_recv_sge, "QP with too many receive SGEs", EINVAL),
	C(qp_inline, "QP with too much inline data", EINVAL),
	C(srq_too_big, "SRQ larger than max_srq_wr", EINVAL),
	C(srq_limit_too_big, "SRQ limit above its size", EINVAL),
	C(init_no_port, "INIT without port", EINVAL),
	C(init_no_pkey, "INIT without P_Key index", EINVAL),
	C(init_no_access, "INIT without access flags", EINVAL),
	C(init_ud_no_qkey, "INIT of UD without Q_Key", EINVAL),
	C(init_extra, "INIT with an attribute not allowed", EINVAL),
	C(init_bad_port, "INIT with port 2", EINVAL),
	C(init_bad_pkey, "INIT with a P_Key index out of range", EINVAL),
	C(reset_to_rtr, "RESET to RTR", EINVAL),
	C(reset_to_rts, "RESET to RTS", EINVAL),
	C(init_to_rts, "INIT to RTS", EINVAL),
	C(rts_to_init, "RTS to INIT", EINVAL),
	C(wrong_cur_state, "RTS from a state it is not in", EINVAL),
	C(rtr_no_av, "RTR without address vector", EINVAL),
	C(rtr_no_mtu, "RTR without path MTU", EINVAL),
	C(rtr_no_dest, "RTR without destination QPN", EINVAL),
	C(rtr_no_psn, "RTR without PSN", EINVAL),
	C(rtr_no_rd_atomic, "RTR without max_dest_rd_atomic", EINVAL),
	C(rtr_no_rnr, "RTR without min_rnr_timer", EINVAL),
	C(rtr_uc_extra, "RTR of UC with attributes of RC", EINVAL),
	C(rtr_no_grh, "RTR without GRH", EINVAL),
	C(rtr_gid_index, "RTR with a GID index out of range", EINVAL, ENODATA),
	C(rtr_gid_hole, "RTR with an empty entry of the GID table", EINVAL,
	  ENODATA),
	C(rtr_ah_port, "RTR with port 2 in the address", EINVAL),
	C(rtr_no_dgid, "RTR to a GID of zeros", EINVAL),
	C(rtr_families, "RTR from IPv4 to IPv6", EINVAL),
	C(rtr_dest, "RTR to a QPN of 25 bits", EINVAL),
	C(rtr_mtu_zero, "RTR with path MTU 0", EINVAL),
	C(rtr_mtu_unknown, "RTR with path MTU 6", EINVAL),
	C(rtr_rd_atomic, "RTR with too many responder resources", EINVAL),
	C(rtr_rnr_timer, "RTR with RNR timer 32", EINVAL),
	C(rts_no_psn, "RTS without PSN", EINVAL),
	C(rts_no_timeout, "RTS without timeout", EINVAL),
	C(rts_no_retry, "RTS without retry count", EINVAL),
	C(rts_no_rnr_retry, "RTS without RNR retry count", EINVAL),
	C(rts_no_rd_atomic, "RTS without max_rd_atomic", EINVAL),
	C(rts_rd_atomic, "RTS with too many outstanding reads", EINVAL),
	C(rts_timeout, "RTS with timeout 32", EINVAL),
	C(rts_retry, "RTS with retry count 8", EINVAL),
	C(gid_out_of_range, "query_gid out of range", EINVAL),
	C(gid_negative, "query_gid of index -1", EINVAL),
	C(port_zero, "query_port 0", EINVAL),
	C(port_two, "query_port 2", EINVAL),
	C(pkey_out_of_range, "query_pkey out of range", EINVAL),
	C(ah_no_grh, "AH without GRH", EINVAL),
	C(ah_gid_index, "AH with a GID index out of range", EINVAL, ENODATA),
	C(ah_port, "AH with port 3", EINVAL),
	C(send_in_reset, "post_send in RESET", EINVAL),
	C(send_in_init, "post_send in INIT", EINVAL),
	C(send_in_rtr, "post_send in RTR", EINVAL),
	C(send_in_err, "post_send in ERR is accepted, and flushed", 0),
	C(recv_in_reset, "post_recv in RESET", EINVAL),
	C(recv_in_init, "post_recv in INIT is accepted", 0),
	C(send_full, "post_send to a full queue", ENOMEM),
	C(recv_full, "post_recv to a full queue", ENOMEM),
	C(send_sges, "post_send with too many SGEs", EINVAL, ENOMEM),
	C(recv_sges, "post_recv with too many SGEs", EINVAL, ENOMEM),
	C(send_inline, "post_send with too much inline data", EINVAL, ENOMEM),
	C(bad_opcode, "unknown opcode", EINVAL, EOPNOTSUPP),
	C(recv_with_srq, "post_recv on a QP with an SRQ", EINVAL, ENOMEM),
	C(srq_full, "post_srq_recv to a full queue", ENOMEM),
	C(mcast_rc, "attach_mcast of an RC QP", EINVAL),
	C(mcast_unicast, "attach_mcast to a unicast GID", EINVAL),
	C(mcast_not_attached, "detach_mcast of a QP not attached", EINVAL),
};

const size_t nbadargs = sizeof(badargs) / sizeof(badargs[0]);

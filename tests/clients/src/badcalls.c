/*
 * badcalls.c - wrong calls of the extended verbs, and calls of what is not
 * there: windows, XRC, device memory, domains, imports, builders, offloads
 */
#include "badcalls.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define BUF 4096u
#define LOCAL IBV_ACCESS_LOCAL_WRITE
#define WINDOW (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND)

static char page[2 * BUF] __attribute__((aligned(4096)));

static int or_errno(const void *p)
{
	return p ? 0 : errno;
}

/* What a case needs could not be made. */
static void *need(void *p, const char *what)
{
	if (!p)
		die(EXIT_SETUP, "%s: %m", what);
	return p;
}

static struct ibv_mr *reg(struct ibv_pd *pd, unsigned access)
{
	/* volatile: keeps the header from choosing the old entry point */
	volatile unsigned a = access;

	return need(ibv_reg_mr(pd, page, BUF, a), "ibv_reg_mr");
}

static struct ibv_cq *new_cq(void)
{
	return need(ibv_create_cq(dev.ctx, 16, NULL, NULL, 0), "ibv_create_cq");
}

/* A QP in RTS that talks to itself. */
static struct ibv_qp *new_qp(struct ibv_cq *cq, enum ibv_qp_type type,
			     uint64_t ops)
{
	struct ibv_qp_init_attr_ex ia = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = type,
		.cap = { 4, 4, 2, 2, 16 },
		.comp_mask = IBV_QP_INIT_ATTR_PD |
			     (ops ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0),
		.pd = dev.pd,
		.send_ops_flags = ops,
	};
	struct conn_opts o = { .mtu = IBV_MTU_1024,
			       .timeout = 14,
			       .retry_cnt = 1,
			       .rd_atomic = 1,
			       .qkey = 1 };
	struct remote r = { .gid = dev.gid, .mtu = IBV_MTU_1024 };
	struct ibv_qp *qp = need(ibv_create_qp_ex(dev.ctx, &ia), "create_qp");

	r.qpn = qp->qp_num;
	qp_to_init(qp, &o);
	qp_connect(&dev, qp, 0, &r, &o);
	return qp;
}

/* What posting one request to a QP of a type says. */
static int post(enum ibv_qp_type type, struct ibv_send_wr *wr)
{
	struct ibv_cq *cq = new_cq();
	struct ibv_qp *qp = new_qp(cq, type, 0);
	struct ibv_send_wr *bad;
	int rc = ibv_post_send(qp, wr, &bad);

	if (ibv_destroy_qp(qp) || ibv_destroy_cq(cq))
		return EIO;
	return rc;
}

/* ---- memory windows ---------------------------------------------------- */

static int mw_type(void)
{
	return or_errno(ibv_alloc_mw(dev.pd, (enum ibv_mw_type)3));
}

static int mw_pd_busy(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(dev.ctx);
	struct ibv_mw *mw = need(ibv_alloc_mw(pd, IBV_MW_TYPE_1), "alloc_mw");
	int rc = ibv_dealloc_pd(pd);

	if (ibv_dealloc_mw(mw) || ibv_dealloc_pd(pd))
		return EIO;
	return rc;
}

/* ibv_bind_mw with one thing wrong. */
static int bind_wrong(enum ibv_mw_type type, enum ibv_qp_type qpt,
		      bool other_pd, uint64_t len, unsigned access)
{
	struct ibv_pd *pd = other_pd ? ibv_alloc_pd(dev.ctx) : NULL;
	struct ibv_mr *mr = reg(pd ? pd : dev.pd, WINDOW);
	struct ibv_mw *mw = need(ibv_alloc_mw(dev.pd, type), "alloc_mw");
	struct ibv_mw_bind b = { .bind_info = { len ? mr : NULL,
						(uintptr_t)page, len ? len : 8,
						access } };
	struct ibv_cq *cq = new_cq();
	struct ibv_qp *qp = new_qp(cq, qpt, 0);
	int rc = ibv_bind_mw(qp, mw, &b);

	if (ibv_destroy_qp(qp) || ibv_destroy_cq(cq) || ibv_dealloc_mw(mw) ||
	    ibv_dereg_mr(mr) || (pd && ibv_dealloc_pd(pd)))
		return EIO;
	return rc;
}

static int bind_type2(void)
{
	return bind_wrong(IBV_MW_TYPE_2, IBV_QPT_RC, false, 8, 0);
}

static int bind_ud(void)
{
	return bind_wrong(IBV_MW_TYPE_1, IBV_QPT_UD, false, 8, 0);
}

static int bind_pd(void)
{
	return bind_wrong(IBV_MW_TYPE_1, IBV_QPT_RC, true, 8, 0);
}

static int bind_no_mr(void)
{
	return bind_wrong(IBV_MW_TYPE_1, IBV_QPT_RC, false, 0, 0);
}

static int bind_access(void)
{
	return bind_wrong(IBV_MW_TYPE_1, IBV_QPT_RC, false, 8,
			  IBV_ACCESS_MW_BIND);
}

static int bind_wr_null(void)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_BIND_MW };

	return post(IBV_QPT_RC, &wr);
}

static int inv_ud(void)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_LOCAL_INV };

	return post(IBV_QPT_UD, &wr);
}

/* ---- requests that do not exist here ----------------------------------- */

static int wr_tso(void)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_TSO };

	return post(IBV_QPT_UD, &wr);
}

static int wr_driver(void)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_DRIVER1 };

	return post(IBV_QPT_RC, &wr);
}

static int wr_csum(void)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_IP_CSUM };

	return post(IBV_QPT_RC, &wr);
}

static int atomic_write_inline(void)
{
	struct ibv_sge sge = { (uintptr_t)page, 9, 0 };
	struct ibv_send_wr wr = { .opcode = IBV_WR_ATOMIC_WRITE,
				  .send_flags = IBV_SEND_INLINE,
				  .sg_list = &sge,
				  .num_sge = 1 };

	return post(IBV_QPT_RC, &wr);
}

/* ---- regions ----------------------------------------------------------- */

static int mr_iova(void)
{
	return or_errno(ibv_reg_mr_iova(dev.pd, page, BUF, 0x10001, LOCAL));
}

static int mr_implicit(void)
{
	volatile unsigned access = LOCAL;

	return or_errno(ibv_reg_mr(dev.pd, NULL, SIZE_MAX, access));
}

static int mr_implicit_addr(void)
{
	return or_errno(ibv_reg_mr(dev.pd, page, SIZE_MAX,
				   LOCAL | IBV_ACCESS_ON_DEMAND));
}

static int mr_huge(void)
{
	return or_errno(
		ibv_reg_mr(dev.pd, page, BUF,
			   LOCAL | IBV_ACCESS_ON_DEMAND | IBV_ACCESS_HUGETLB));
}

static int mr_unknown_flag(void)
{
	volatile unsigned access = 1u << 15;

	return or_errno(ibv_reg_mr(dev.pd, page, BUF, access));
}

/* Which class of errors, as a number of its own. */
static int rereg(int flags, bool pd, void *addr, size_t len, int access)
{
	struct ibv_mr *mr = reg(dev.pd, LOCAL);
	int rc = ibv_rereg_mr(mr, flags, pd ? dev.pd : NULL, addr, len, access);

	if (ibv_dereg_mr(mr))
		return EIO;
	return -rc;
}

static int rereg_flags(void)
{
	return rereg(16, false, NULL, 0, 0);
}

static int rereg_no_addr(void)
{
	return rereg(IBV_REREG_MR_CHANGE_TRANSLATION, false, NULL, BUF, 0);
}

static int rereg_no_len(void)
{
	return rereg(IBV_REREG_MR_CHANGE_TRANSLATION, false, page, 0, 0);
}

static int rereg_access(void)
{
	return rereg(IBV_REREG_MR_CHANGE_PD, true, NULL, 0, LOCAL);
}

static int rereg_remote(void)
{
	return rereg(IBV_REREG_MR_CHANGE_ACCESS, false, NULL, 0,
		     IBV_ACCESS_REMOTE_WRITE);
}

static int rereg_nothing(void)
{
	return rereg(0, false, NULL, 0, 0);
}

static int advise(int advice, uint32_t flags, unsigned access, uint32_t len,
		  uint32_t key, uint32_t n)
{
	struct ibv_mr *mr = reg(dev.pd, access);
	struct ibv_sge sge = { (uintptr_t)page, len, mr->lkey ^ key };
	int rc = ibv_advise_mr(dev.pd, (enum ibv_advise_mr_advice)advice, flags,
			       &sge, n);

	ibv_dereg_mr(mr);
	return rc;
}

#define ODP (LOCAL | IBV_ACCESS_ON_DEMAND)

static int advise_unknown(void)
{
	return advise(77, 0, ODP, 8, 0, 1);
}

static int advise_flags(void)
{
	return advise(IBV_ADVISE_MR_ADVICE_PREFETCH, 4, ODP, 8, 0, 1);
}

static int advise_none(void)
{
	return advise(IBV_ADVISE_MR_ADVICE_PREFETCH, 0, ODP, 8, 0, 0);
}

static int advise_key(void)
{
	return advise(IBV_ADVISE_MR_ADVICE_PREFETCH, 0, ODP, 8, 1, 1);
}

static int advise_plain(void)
{
	return advise(IBV_ADVISE_MR_ADVICE_PREFETCH, 0, LOCAL, 8, 0, 1);
}

static int advise_range(void)
{
	return advise(IBV_ADVISE_MR_ADVICE_PREFETCH, 0, ODP, BUF + 1, 0, 1);
}

static int advise_write(void)
{
	return advise(IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 0,
		      IBV_ACCESS_ON_DEMAND, 8, 0, 1);
}

static int dmabuf(int fd)
{
	return or_errno(ibv_reg_dmabuf_mr(dev.pd, 0, BUF, 0, fd, LOCAL));
}

static int dmabuf_fd(void)
{
	return dmabuf(-1);
}

static int dmabuf_file(void)
{
	int fd = open("/dev/zero", O_RDWR), rc = dmabuf(fd);

	close(fd);
	return rc;
}

/* ---- device memory ----------------------------------------------------- */

static int dm_alloc(size_t len, uint32_t comp_mask)
{
	struct ibv_alloc_dm_attr a = { .length = len, .comp_mask = comp_mask };

	return or_errno(ibv_alloc_dm(dev.ctx, &a));
}

static int dm_nothing(void)
{
	return dm_alloc(0, 0);
}

static int dm_mask(void)
{
	return dm_alloc(64, 1);
}

static int dm_too_big(void)
{
	struct ibv_device_attr_ex a;

	if (ibv_query_device_ex(dev.ctx, NULL, &a))
		return EIO;
	return dm_alloc(a.max_dm_size + 1, 0);
}

/* Device memory of 64 bytes, used wrongly. */
static int dm_use(uint64_t offset, size_t copy, size_t reg_len, unsigned access)
{
	struct ibv_alloc_dm_attr a = { .length = 64 };
	struct ibv_dm *dm = need(ibv_alloc_dm(dev.ctx, &a), "alloc_dm");
	char buf[128] = "";
	int rc;

	rc = copy ? ibv_memcpy_to_dm(dm, offset, buf, copy) :
		    or_errno(
			    ibv_reg_dm_mr(dev.pd, dm, offset, reg_len, access));
	if (ibv_free_dm(dm))
		return EIO;
	return rc;
}

static int dm_odd_offset(void)
{
	return dm_use(1, 4, 0, 0);
}

static int dm_odd_length(void)
{
	return dm_use(0, 5, 0, 0);
}

static int dm_copy_past(void)
{
	return dm_use(4, 64, 0, 0);
}

static int dm_not_zero_based(void)
{
	return dm_use(0, 0, 64, LOCAL);
}

static int dm_reg_past(void)
{
	return dm_use(4, 0, 64, LOCAL | IBV_ACCESS_ZERO_BASED);
}

static int dm_busy(void)
{
	struct ibv_alloc_dm_attr a = { .length = 64 };
	struct ibv_dm *dm = need(ibv_alloc_dm(dev.ctx, &a), "alloc_dm");
	struct ibv_mr *mr = need(
		ibv_reg_dm_mr(dev.pd, dm, 0, 64, LOCAL | IBV_ACCESS_ZERO_BASED),
		"reg_dm_mr");
	int rc = ibv_free_dm(dm);

	if (ibv_dereg_mr(mr) || ibv_free_dm(dm))
		return EIO;
	return rc;
}

/* ---- XRC --------------------------------------------------------------- */

static struct ibv_xrcd *xrcd_of(int fd, int oflags, uint32_t mask)
{
	struct ibv_xrcd_init_attr a = { mask, fd, oflags };

	return ibv_open_xrcd(dev.ctx, &a);
}

#define BOTH (IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS)

static struct ibv_xrcd *new_xrcd(void)
{
	return need(xrcd_of(-1, O_CREAT, BOTH), "open_xrcd");
}

static int xrcd_mask(void)
{
	return or_errno(xrcd_of(-1, O_CREAT, IBV_XRCD_INIT_ATTR_FD));
}

static int xrcd_fd(void)
{
	return or_errno(xrcd_of(4000, O_CREAT, BOTH));
}

static int xrcd_absent(void)
{
	FILE *f = tmpfile();
	int rc = or_errno(xrcd_of(fileno(f), 0, BOTH));

	fclose(f);
	return rc;
}

static int xrcd_excl(void)
{
	FILE *f = tmpfile();
	struct ibv_xrcd *x = need(xrcd_of(fileno(f), O_CREAT, BOTH), "xrcd");
	int rc = or_errno(xrcd_of(fileno(f), O_CREAT | O_EXCL, BOTH));

	fclose(f);
	if (ibv_close_xrcd(x))
		return EIO;
	return rc;
}

static struct ibv_srq *srq_of(enum ibv_srq_type type, struct ibv_xrcd *x,
			      struct ibv_cq *cq)
{
	struct ibv_srq_init_attr_ex a = {
		.attr = { .max_wr = 4, .max_sge = 1 },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
			     (x ? IBV_SRQ_INIT_ATTR_XRCD : 0u) |
			     (cq ? IBV_SRQ_INIT_ATTR_CQ : 0u),
		.srq_type = type,
		.pd = dev.pd,
		.xrcd = x,
		.cq = cq,
	};

	return ibv_create_srq_ex(dev.ctx, &a);
}

static int xsrq_no_cq(void)
{
	struct ibv_xrcd *x = new_xrcd();
	int rc = or_errno(srq_of(IBV_SRQT_XRC, x, NULL));

	return ibv_close_xrcd(x) ? EIO : rc;
}

static int xsrq_no_domain(void)
{
	struct ibv_cq *cq = new_cq();
	int rc = or_errno(srq_of(IBV_SRQT_XRC, NULL, cq));

	return ibv_destroy_cq(cq) ? EIO : rc;
}

static int srq_tm(void)
{
	struct ibv_cq *cq = new_cq();
	int rc = or_errno(srq_of(IBV_SRQT_TM, NULL, cq));

	return ibv_destroy_cq(cq) ? EIO : rc;
}

static int xrcd_busy(void)
{
	struct ibv_xrcd *x = new_xrcd();
	struct ibv_cq *cq = new_cq();
	struct ibv_srq *srq = need(srq_of(IBV_SRQT_XRC, x, cq), "srq");
	int rc = ibv_close_xrcd(x);

	if (ibv_destroy_srq(srq) || ibv_close_xrcd(x) || ibv_destroy_cq(cq))
		return EIO;
	return rc;
}

static int srq_num(void)
{
	struct ibv_srq *srq = need(srq_of(IBV_SRQT_BASIC, NULL, NULL), "srq");
	uint32_t num;
	int rc = ibv_get_srq_num(srq, &num);

	return ibv_destroy_srq(srq) ? EIO : rc;
}

static int xqp(enum ibv_qp_type type, struct ibv_xrcd *x, uint64_t ops)
{
	struct ibv_cq *cq = new_cq();
	struct ibv_qp_init_attr_ex a = {
		.qp_type = type,
		.send_cq = cq,
		.cap = { .max_send_wr = 1, .max_send_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD |
			     (x ? IBV_QP_INIT_ATTR_XRCD : 0u) |
			     (ops ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0u),
		.pd = dev.pd,
		.xrcd = x,
		.send_ops_flags = ops,
	};
	int rc = or_errno(ibv_create_qp_ex(dev.ctx, &a));

	return ibv_destroy_cq(cq) ? EIO : rc;
}

static int xrecv_no_domain(void)
{
	return xqp(IBV_QPT_XRC_RECV, NULL, 0);
}

static int xrecv_ops(void)
{
	struct ibv_xrcd *x = new_xrcd();
	int rc = xqp(IBV_QPT_XRC_RECV, x, IBV_QP_EX_WITH_SEND);

	return ibv_close_xrcd(x) ? EIO : rc;
}

static int open_qp(void)
{
	struct ibv_xrcd *x = new_xrcd();
	struct ibv_qp_open_attr a = {
		.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD |
			     IBV_QP_OPEN_ATTR_TYPE,
		.qp_num = 0x123456,
		.xrcd = x,
		.qp_type = IBV_QPT_XRC_RECV,
	};
	int rc = or_errno(ibv_open_qp(dev.ctx, &a));

	return ibv_close_xrcd(x) ? EIO : rc;
}

/* ---- domains and imports ----------------------------------------------- */

static int td_mask(void)
{
	struct ibv_td_init_attr a = { 1 };

	return or_errno(ibv_alloc_td(dev.ctx, &a));
}

static int parent(struct ibv_pd *pd, uint32_t mask)
{
	struct ibv_parent_domain_init_attr a = { .pd = pd, .comp_mask = mask };

	return or_errno(ibv_alloc_parent_domain(dev.ctx, &a));
}

static int parent_no_pd(void)
{
	return parent(NULL, 0);
}

static int parent_no_alloc(void)
{
	return parent(dev.pd, IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS);
}

static int parent_mask(void)
{
	return parent(dev.pd, 1u << 9);
}

static int parent_busy(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(dev.ctx), *par;
	struct ibv_parent_domain_init_attr a = { .pd = pd };
	int rc;

	par = need(ibv_alloc_parent_domain(dev.ctx, &a), "parent domain");
	rc = ibv_dealloc_pd(pd);
	if (ibv_dealloc_pd(par) || ibv_dealloc_pd(pd))
		return EIO;
	return rc;
}

static int import_bad_fd(void)
{
	return or_errno(ibv_import_device(-1));
}

static int import_file(void)
{
	int fd = open("/dev/null", O_RDONLY);
	int rc = or_errno(ibv_import_device(fd));

	close(fd);
	return rc;
}

static int import_no_pd(void)
{
	return or_errno(ibv_import_pd(dev.ctx, 0xfffffff0));
}

static int import_no_mr(void)
{
	return or_errno(ibv_import_mr(dev.pd, 0xfffffff0));
}

static int import_no_dm(void)
{
	return or_errno(ibv_import_dm(dev.ctx, 0xfffffff0));
}

/* ---- completion queues ------------------------------------------------- */

static int cq_ex(uint64_t wc_flags, uint32_t mask, uint32_t flags,
		 struct ibv_pd *pd)
{
	struct ibv_cq_init_attr_ex a = {
		.cqe = 4,
		.wc_flags = wc_flags,
		.comp_mask = mask,
		.flags = flags,
		.parent_domain = pd,
	};

	return or_errno(ibv_create_cq_ex(dev.ctx, &a));
}

static int cq_cvlan(void)
{
	return cq_ex(IBV_WC_EX_WITH_CVLAN, 0, 0, NULL);
}

static int cq_flow_tag(void)
{
	return cq_ex(IBV_WC_EX_WITH_FLOW_TAG, 0, 0, NULL);
}

static int cq_tm(void)
{
	return cq_ex(IBV_WC_EX_WITH_TM_INFO, 0, 0, NULL);
}

static int cq_flags(void)
{
	return cq_ex(0, IBV_CQ_INIT_ATTR_MASK_FLAGS, 1u << 9, NULL);
}

static int cq_mask(void)
{
	return cq_ex(0, 1u << 9, 0, NULL);
}

static int cq_plain_pd(void)
{
	return cq_ex(0, IBV_CQ_INIT_ATTR_MASK_PD, 0, dev.pd);
}

static int cq_modify_mask(void)
{
	struct ibv_modify_cq_attr a = { .attr_mask = 1u << 9 };
	struct ibv_cq *cq = new_cq();
	int rc = ibv_modify_cq(cq, &a);

	return ibv_destroy_cq(cq) ? EIO : rc;
}

static int cq_poll_mask(void)
{
	struct ibv_cq_init_attr_ex a = { .cqe = 4 };
	struct ibv_poll_cq_attr p = { .comp_mask = 1 };
	struct ibv_cq_ex *cq = need(ibv_create_cq_ex(dev.ctx, &a), "cq_ex");
	int rc = ibv_start_poll(cq, &p);

	return ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) ? EIO : rc;
}

/* ---- queue pairs and builders ------------------------------------------ */

static int qp_ex(enum ibv_qp_type type, uint32_t mask, uint64_t ops)
{
	struct ibv_cq *cq = new_cq();
	struct ibv_qp_init_attr_ex a = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = type,
		.cap = { 1, 1, 1, 1, 0 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | mask,
		.pd = dev.pd,
		.create_flags = IBV_QP_CREATE_SCATTER_FCS,
		.source_qpn = 1,
		.max_tso_header = 1,
		.send_ops_flags = ops,
	};
	int rc = or_errno(ibv_create_qp_ex(dev.ctx, &a));

	return ibv_destroy_cq(cq) ? EIO : rc;
}

#define OPS IBV_QP_INIT_ATTR_SEND_OPS_FLAGS

static int qp_tso(void)
{
	return qp_ex(IBV_QPT_UD, OPS, IBV_QP_EX_WITH_TSO);
}

static int qp_flush(void)
{
	return qp_ex(IBV_QPT_RC, OPS, 1 << 11 /* flush, of later headers */);
}

static int qp_uc_read(void)
{
	return qp_ex(IBV_QPT_UC, OPS, IBV_QP_EX_WITH_RDMA_READ);
}

static int qp_create_flags(void)
{
	return qp_ex(IBV_QPT_UD, IBV_QP_INIT_ATTR_CREATE_FLAGS, 0);
}

static int qp_tso_header(void)
{
	return qp_ex(IBV_QPT_UD, IBV_QP_INIT_ATTR_MAX_TSO_HEADER, 0);
}

static int qp_rss(void)
{
	return qp_ex(IBV_QPT_UD,
		     IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH, 0);
}

static int qp_raw(void)
{
	return qp_ex(IBV_QPT_RAW_PACKET, 0, 0);
}

static int qp_driver(void)
{
	return qp_ex(IBV_QPT_DRIVER, 0, 0);
}

static int build(void (*fn)(struct ibv_qp_ex *))
{
	struct ibv_cq *cq = new_cq();
	struct ibv_qp *qp = new_qp(cq, IBV_QPT_RC, IBV_QP_EX_WITH_SEND);
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	struct ibv_wc wc;
	int rc;

	ibv_wr_start(ex);
	ex->wr_id = 1;
	ex->wr_flags = IBV_SEND_SIGNALED;
	fn(ex);
	rc = ibv_wr_complete(ex);
	/* Nothing of it was posted. */
	if (ibv_poll_cq(cq, 1, &wc) || ibv_destroy_qp(qp) || ibv_destroy_cq(cq))
		return EIO;
	return rc;
}

/* Given up: nothing is posted, and the next one begins afresh. */
static int wr_abort(void)
{
	struct ibv_cq *cq = new_cq();
	struct ibv_qp *qp = new_qp(cq, IBV_QPT_RC, IBV_QP_EX_WITH_SEND);
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	struct ibv_wc wc;
	int rc;

	ibv_wr_start(ex);
	ibv_wr_set_sge(ex, 0, 0, 8); /* a mistake, forgotten as well */
	ibv_wr_abort(ex);
	ibv_wr_start(ex);
	rc = ibv_wr_complete(ex);
	if (ibv_poll_cq(cq, 1, &wc) || ibv_destroy_qp(qp) || ibv_destroy_cq(cq))
		return EIO;
	return rc;
}

static int resize(int cqe)
{
	struct ibv_cq *cq = new_cq();
	int rc = ibv_resize_cq(cq, cqe);

	return ibv_destroy_cq(cq) ? EIO : rc;
}

static int resize_none(void)
{
	return resize(0);
}

static int resize_too_large(void)
{
	return resize(1 << 30);
}

/* Two flushed receives are in it. */
static int resize_below(void)
{
	struct ibv_qp_attr err = { .qp_state = IBV_QPS_ERR };
	struct ibv_recv_wr wr = { 0 }, *bad;
	struct ibv_cq *cq = new_cq();
	struct ibv_qp *qp = new_qp(cq, IBV_QPT_RC, 0);
	struct ibv_wc wc[3];
	int rc;

	if (ibv_post_recv(qp, &wr, &bad) || ibv_post_recv(qp, &wr, &bad) ||
	    ibv_modify_qp(qp, &err, IBV_QP_STATE))
		return EIO;
	rc = ibv_resize_cq(cq, 1);
	if (ibv_poll_cq(cq, 3, wc) != 2)
		return EIO;
	return ibv_destroy_qp(qp) || ibv_destroy_cq(cq) ? EIO : rc;
}

static int rate_mult(void)
{
	return ibv_rate_to_mult((enum ibv_rate)99) == -1 &&
			       ibv_rate_to_mbps((enum ibv_rate)99) == -1 &&
			       mult_to_ibv_rate(7) == IBV_RATE_MAX &&
			       mbps_to_ibv_rate(7) == IBV_RATE_MAX ?
		       EINVAL :
		       0;
}

/* Of values it does not know it gives none. */
static int rt_values(void)
{
	struct ibv_values_ex v = { .comp_mask = 1 << 7 };

	return ibv_query_rt_values_ex(dev.ctx, &v) || v.comp_mask ? 0 : ENOENT;
}

static int query_ex_mask(void)
{
	struct ibv_query_device_ex_input in = { .comp_mask = 1 };
	struct ibv_device_attr_ex attr;

	return ibv_query_device_ex(dev.ctx, &in, &attr);
}

static int gid_ex_flags(void)
{
	struct ibv_gid_entry e;

	return ibv_query_gid_ex(dev.ctx, 1, (uint32_t)dev.gid_index, &e, 1);
}

static int gid_ex_index(void)
{
	struct ibv_gid_entry e;

	return ibv_query_gid_ex(dev.ctx, 1, 1 << 20, &e, 0);
}

static int gid_table_flags(void)
{
	struct ibv_gid_entry e[4];
	ssize_t n = ibv_query_gid_table(dev.ctx, e, 4, 1);

	return n < 0 ? (int)-n : 0;
}

static void setter_first(struct ibv_qp_ex *ex)
{
	ibv_wr_set_sge(ex, 0, 0, 8);
}

static void long_inline(struct ibv_qp_ex *ex)
{
	ibv_wr_send(ex);
	ibv_wr_set_inline_data(ex, page, BUF);
}

static void long_list(struct ibv_qp_ex *ex)
{
	static const struct ibv_sge sge[300];

	ibv_wr_send(ex);
	ibv_wr_set_sge_list(ex, 300, sge);
}

static void too_many(struct ibv_qp_ex *ex)
{
	for (int i = 0; i < 5; i++)
		ibv_wr_send(ex);
}

static int wr_setter_first(void)
{
	return build(setter_first);
}

static int wr_long_inline(void)
{
	return build(long_inline);
}

static int wr_long_list(void)
{
	return build(long_list);
}

static int wr_too_many(void)
{
	return build(too_many);
}

static int ece(uint32_t vendor, uint32_t mask, bool late)
{
	struct ibv_ece e = { .vendor_id = vendor, .comp_mask = mask };
	struct ibv_cq *cq = new_cq();
	struct ibv_qp_init_attr a = { .send_cq = cq,
				      .recv_cq = cq,
				      .qp_type = IBV_QPT_RC,
				      .cap = { 1, 1, 1, 1, 0 } };
	struct ibv_qp *qp =
		late ? new_qp(cq, IBV_QPT_RC, 0) : ibv_create_qp(dev.pd, &a);
	int rc = ibv_set_ece(qp, &e);

	return ibv_destroy_qp(qp) || ibv_destroy_cq(cq) ? EIO : rc;
}

static int ece_mask(void)
{
	return ece(0, 1, false);
}

static int ece_late(void)
{
	return ece(0, 0, true);
}

static int ece_foreign(void)
{
	return ece(0x15b3, 0, false);
}

static int resolve(bool grh, uint8_t index)
{
	struct ibv_ah_attr a = { .is_global = grh,
				 .port_num = 1,
				 .grh = { .dgid = dev.gid,
					  .sgid_index = index } };
	uint8_t mac[6];
	uint16_t vid;

	return ibv_resolve_eth_l2_from_gid(dev.ctx, &a, mac, &vid) ? errno : 0;
}

static int resolve_no_grh(void)
{
	return resolve(false, (uint8_t)dev.gid_index);
}

static int resolve_no_gid(void)
{
	return resolve(true, 255);
}

static int rate_limit(void)
{
	struct ibv_qp_rate_limit_attr a = { .rate_limit = 1000 };
	struct ibv_cq *cq = new_cq();
	struct ibv_qp *qp = new_qp(cq, IBV_QPT_RC, 0);
	int rc = ibv_modify_qp_rate_limit(qp, &a);

	return ibv_destroy_qp(qp) || ibv_destroy_cq(cq) ? EIO : rc;
}

/* ---- offloads of Ethernet ---------------------------------------------- */

static int wq(void)
{
	struct ibv_wq_init_attr a = { .max_wr = 1, .max_sge = 1, .pd = dev.pd };

	return or_errno(ibv_create_wq(dev.ctx, &a));
}

static int rwq_table(void)
{
	struct ibv_rwq_ind_table_init_attr a = { 0 };

	return or_errno(ibv_create_rwq_ind_table(dev.ctx, &a));
}

static int flow(void)
{
	struct ibv_flow_attr a = { .size = sizeof(a), .port = 1 };
	struct ibv_cq *cq = new_cq();
	struct ibv_qp *qp = new_qp(cq, IBV_QPT_UD, 0);
	int rc = or_errno(ibv_create_flow(qp, &a));

	return ibv_destroy_qp(qp) || ibv_destroy_cq(cq) ? EIO : rc;
}

static int flow_action(void)
{
	struct ibv_flow_action_esp_attr a = { 0 };

	return or_errno(ibv_create_flow_action_esp(dev.ctx, &a));
}

static int counters(void)
{
	struct ibv_counters_init_attr a = { 0 };

	return or_errno(ibv_create_counters(dev.ctx, &a));
}

static int srq_ops(void)
{
	struct ibv_srq *srq = need(srq_of(IBV_SRQT_BASIC, NULL, NULL), "srq");
	struct ibv_ops_wr op = { 0 }, *bad;
	int rc = ibv_post_srq_ops(srq, &op, &bad);

	return ibv_destroy_srq(srq) ? EIO : rc;
}

const struct local_case badcalls[] = {
	C(mw_type, "MW of an unknown type", EINVAL),
	C(mw_pd_busy, "dealloc_pd with an MW", EBUSY),
	C(bind_type2, "bind_mw of an MW of type 2", EINVAL),
	C(bind_ud, "bind_mw on a UD QP", EINVAL),
	C(bind_pd, "bind_mw to an MR of another PD", EPERM),
	C(bind_no_mr, "bind_mw to no MR", EINVAL),
	C(bind_access, "bind_mw with an access flag of MRs", EINVAL),
	C(bind_wr_null, "BIND_MW without an MW", EINVAL),
	C(inv_ud, "LOCAL_INV on a UD QP", EINVAL),
	C(wr_tso, "TSO", EINVAL),
	C(wr_driver, "DRIVER1", EINVAL),
	C(wr_csum, "a send with IP_CSUM", EINVAL),
	C(atomic_write_inline, "ATOMIC_WRITE of 9 bytes inline", EINVAL),
	C(mr_iova, "MR with an iova elsewhere in its page", EINVAL),
	C(mr_implicit, "MR of everything without ODP", EINVAL, EFAULT),
	C(mr_implicit_addr, "implicit ODP MR with an address", EINVAL),
	C(mr_huge, "ODP MR of huge pages that are small", EINVAL),
	C(mr_unknown_flag, "MR with an unknown access flag", EINVAL,
	  EOPNOTSUPP),
	C(rereg_flags, "rereg_mr with an unknown flag",
	  -IBV_REREG_MR_ERR_INPUT),
	C(rereg_no_addr, "rereg_mr without an address",
	  -IBV_REREG_MR_ERR_INPUT),
	C(rereg_no_len, "rereg_mr to no bytes", -IBV_REREG_MR_ERR_INPUT),
	C(rereg_access, "rereg_mr with access but not its flag",
	  -IBV_REREG_MR_ERR_INPUT),
	C(rereg_remote, "rereg_mr to remote write without local",
	  -IBV_REREG_MR_ERR_CMD),
	C(rereg_nothing, "rereg_mr without a flag", -IBV_REREG_MR_ERR_CMD),
	C(advise_unknown, "advise_mr, unknown advice", ENOTSUP),
	C(advise_flags, "advise_mr, unknown flag", EINVAL),
	C(advise_none, "advise_mr without an SGE", EINVAL),
	C(advise_key, "advise_mr, wrong lkey", ENOENT, EFAULT),
	C(advise_plain, "advise_mr of an MR that is pinned", EINVAL),
	C(advise_range, "advise_mr past the end", EFAULT),
	C(advise_write, "advise_mr for writing what is not writable", EPERM),
	C(dmabuf_fd, "dma-buf MR of a bad descriptor", EBADF),
	C(dmabuf_file, "dma-buf MR of another file", EINVAL),
	C(dm_nothing, "DM of no bytes", EINVAL),
	C(dm_mask, "DM with an unknown comp_mask", EINVAL),
	C(dm_too_big, "DM larger than max_dm_size", ENOMEM),
	C(dm_odd_offset, "memcpy_to_dm at an odd offset", EINVAL),
	C(dm_odd_length, "memcpy_to_dm of an odd length", EINVAL),
	C(dm_copy_past, "memcpy_to_dm past the end", EINVAL, EFAULT),
	C(dm_not_zero_based, "DM MR that is not zero based", EINVAL),
	C(dm_reg_past, "DM MR past the end", EINVAL),
	C(dm_busy, "free_dm with an MR", EBUSY),
	C(xrcd_mask, "XRCD without open flags", EINVAL),
	C(xrcd_fd, "XRCD of a bad descriptor", EBADF),
	C(xrcd_absent, "XRCD that does not exist, no O_CREAT", EAGAIN),
	C(xrcd_excl, "XRCD that exists, O_EXCL", EINVAL),
	C(xsrq_no_cq, "XRC SRQ without a CQ", EINVAL),
	C(xsrq_no_domain, "XRC SRQ without an XRCD", EINVAL),
	C(srq_tm, "SRQ that matches tags", EOPNOTSUPP),
	C(xrcd_busy, "close_xrcd with an SRQ", EBUSY),
	C(srq_num, "get_srq_num of a basic SRQ", EINVAL, EOPNOTSUPP),
	C(xrecv_no_domain, "XRC_RECV QP without an XRCD", EINVAL),
	C(xrecv_ops, "XRC_RECV QP with send operations", EINVAL, EOPNOTSUPP),
	C(open_qp, "open_qp of no QP", EINVAL),
	C(td_mask, "thread domain with an unknown comp_mask", EINVAL),
	C(parent_no_pd, "parent domain of no PD", EINVAL),
	C(parent_no_alloc, "parent domain without its allocators", EINVAL),
	C(parent_mask, "parent domain with an unknown comp_mask", EINVAL),
	C(parent_busy, "dealloc_pd with a parent domain", EBUSY),
	C(import_bad_fd, "import_device of a bad descriptor", EBADF),
	C(import_file, "import_device of another file", EINVAL),
	C(import_no_pd, "import_pd of no PD", ENOENT),
	C(import_no_mr, "import_mr of no MR", ENOENT),
	C(import_no_dm, "import_dm of no DM", ENOENT),
	C(cq_cvlan, "CQ with the VLAN of packets", EOPNOTSUPP),
	C(cq_flow_tag, "CQ with flow tags", EOPNOTSUPP),
	C(cq_tm, "CQ with matched tags", EOPNOTSUPP),
	C(cq_flags, "CQ with an unknown flag", EOPNOTSUPP, EINVAL),
	C(cq_mask, "CQ with an unknown comp_mask", EOPNOTSUPP, EINVAL),
	C(cq_plain_pd, "CQ with a PD that is no parent domain", EINVAL),
	C(cq_modify_mask, "modify_cq with an unknown mask", EINVAL),
	C(cq_poll_mask, "start_poll with an unknown comp_mask", EINVAL),
	C(qp_tso, "QP with TSO", EOPNOTSUPP),
	C(qp_flush, "QP with flush", EOPNOTSUPP),
	C(qp_uc_read, "UC QP with reads", EOPNOTSUPP),
	C(qp_create_flags, "QP with FCS", EOPNOTSUPP),
	C(qp_tso_header, "QP with a TSO header", EOPNOTSUPP),
	C(qp_rss, "QP with an indirection table", EOPNOTSUPP),
	C(qp_raw, "QP for raw packets", EOPNOTSUPP),
	C(qp_driver, "QP of a driver's own type", EOPNOTSUPP),
	C(wr_setter_first, "wr_set_sge before a builder", EINVAL),
	C(wr_long_inline, "wr_set_inline_data of too much", EINVAL, ENOMEM),
	C(wr_long_list, "wr_set_sge_list of too many", EINVAL, ENOMEM),
	C(wr_too_many, "more built than the queue holds", ENOMEM),
	C(wr_abort, "wr_abort of a mistake", 0),
	C(resize_none, "resize_cq to no entries", EINVAL),
	C(resize_too_large, "resize_cq to more than max_cqe", EINVAL),
	C(resize_below, "resize_cq below what is in it", EINVAL, EBUSY),
	C(rate_mult, "rates that do not exist", EINVAL),
	C(rt_values, "query_rt_values_ex of unknown values", ENOENT),
	C(query_ex_mask, "query_device_ex with an unknown input", EINVAL),
	C(gid_ex_flags, "query_gid_ex with flags", EINVAL, EOPNOTSUPP),
	C(gid_ex_index, "query_gid_ex out of range", EINVAL),
	C(gid_table_flags, "query_gid_table with flags", EINVAL, EOPNOTSUPP),
	C(ece_mask, "set_ece with an unknown comp_mask", EINVAL),
	C(ece_late, "set_ece in RTS", EINVAL),
	C(ece_foreign, "set_ece of another vendor", EOPNOTSUPP, EINVAL),
	C(resolve_no_grh, "resolve_eth_l2 without a GRH", EINVAL),
	C(resolve_no_gid, "resolve_eth_l2 from an empty GID", EINVAL),
	C(rate_limit, "modify_qp_rate_limit", EOPNOTSUPP),
	C(wq, "create_wq", EOPNOTSUPP),
	C(rwq_table, "create_rwq_ind_table", EOPNOTSUPP),
	C(flow, "create_flow", EOPNOTSUPP),
	C(flow_action, "create_flow_action_esp", EOPNOTSUPP),
	C(counters, "create_counters", EOPNOTSUPP),
	C(srq_ops, "post_srq_ops", EOPNOTSUPP),
};

const size_t nbadcalls = sizeof(badcalls) / sizeof(badcalls[0]);

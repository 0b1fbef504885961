/*
 * end.c - one end: a device, its objects, and the verbs that make them
 *
 * Both ends are interpreters of a small language: a line is the name of a verb
 * and numbers in hexadecimal; the reply is numbers, or an error. This file
 * makes objects and moves QPs between states; end_work.c does work requests.
 */
#include "../../lib/qp_masks.h"
#include "peer.h"

struct end here;

void refuse(struct reply *r, int err, const char *what)
{
	r->unsupported = err == EOPNOTSUPP || err == ENOSYS;
	snprintf(r->err, sizeof(r->err), "%s: %s", what, strerror(err));
}

void answer(struct reply *r, uint64_t v)
{
	r->v[r->n++] = v;
}

bool in_buf(uint64_t off, uint64_t len)
{
	return off >= GUARD && off <= BUF_LEN - GUARD &&
	       len <= BUF_LEN - GUARD - off;
}

int gid_of(const char *addr, union ibv_gid *gid)
{
	memset(gid, 0, sizeof(*gid));
	if (inet_pton(AF_INET, addr, gid->raw + 12) == 1)
		gid->raw[10] = gid->raw[11] = 0xff;
	else if (inet_pton(AF_INET6, addr, gid->raw) != 1)
		return -EINVAL;
	return 0;
}

static int find_gid(void)
{
	union ibv_gid want;
	struct ibv_gid_entry e;

	if (gid_of(opt_addr, &want))
		return -EINVAL;
	for (int i = 0; i < here.port.gid_tbl_len; i++) {
		if (ibv_query_gid_ex(here.ctx, 1, (uint32_t)i, &e, 0))
			continue;
		if (e.gid_type == IBV_GID_TYPE_ROCE_V2 &&
		    !memcmp(&e.gid, &want, sizeof(want))) {
			here.gid_index = i;
			here.gid = want;
			return 0;
		}
	}
	return -ENOENT;
}

/* The device that has the address as a GID. */
static int open_by_gid(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	int err = -ENODEV;

	for (int i = 0; list && list[i]; i++) {
		if (opt_dev && strcmp(ibv_get_device_name(list[i]), opt_dev))
			continue;
		here.ctx = ibv_open_device(list[i]);
		if (!here.ctx)
			continue;
		if (!ibv_query_port(here.ctx, 1, &here.port) &&
		    !ibv_query_device(here.ctx, &here.attr))
			err = find_gid();
		if (!err)
			break;
		ibv_close_device(here.ctx);
		here.ctx = NULL;
	}
	if (list)
		ibv_free_device_list(list);
	return err;
}

/* Opens the device that has the address, whatever its name, and a CQ on it. */
int open_end(void)
{
	struct ibv_device_attr_ex attr_ex;
	int err = -ENODEV;

	if (!opt_iwarp)
		err = open_by_gid();
	else if ((here.ctx = open_by_cm()) &&
		 !ibv_query_port(here.ctx, 1, &here.port))
		err = -ibv_query_device(here.ctx, &here.attr);
	if (err) {
		fprintf(stderr, "peer: no RDMA device has the address %s: %s\n",
			opt_addr, strerror(-err));
		return err;
	}
	here.caps = here.attr.device_cap_flags;
	if (!ibv_query_device_ex(here.ctx, NULL, &attr_ex))
		here.caps |= attr_ex.device_cap_flags_ex;
	here.pd = ibv_alloc_pd(here.ctx);
	here.channel = ibv_create_comp_channel(here.ctx);
	if (!here.pd || !here.channel)
		return -errno;
	here.cq = ibv_create_cq(here.ctx, 1024, NULL, here.channel, 0);
	if (!here.cq)
		return -errno;
	/* Not touched yet: user-mode Linux takes long for each page. */
	here.buf = mmap(NULL, BUF_LEN, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (here.buf == MAP_FAILED)
		return -ENOMEM;
	here.mr[0] =
		ibv_reg_mr(here.pd, here.buf, BUF_LEN,
			   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				   IBV_ACCESS_REMOTE_READ |
				   (opt_iwarp ? 0 :
						IBV_ACCESS_REMOTE_ATOMIC |
							IBV_ACCESS_MW_BIND));
	if (!here.mr[0])
		return -errno;
	here.nmr = 1;
	return 0;
}

enum kind kind_of_device(void)
{
	const char *name = ibv_get_device_name(here.ctx->device);

	return !strncmp(name, "rxe", 3) ? RXE :
	       !strncmp(name, "siw", 3) ? SIW :
					  SOFTHCA;
}

/* What this end is: kind, GID, MTU, buffer, key. */
static void do_info(const uint64_t *a, struct reply *r)
{
	uint64_t hi, lo;

	(void)a;
	memcpy(&hi, here.gid.raw, 8);
	memcpy(&lo, here.gid.raw + 8, 8);
	answer(r, kind_of_device());
	answer(r, be64toh(hi));
	answer(r, be64toh(lo));
	answer(r, here.port.active_mtu);
	answer(r, (uintptr_t)here.buf);
	answer(r, here.mr[0]->rkey);
	answer(r, (uint64_t)here.attr.max_qp_rd_atom);
	answer(r, here.caps);
}

/* srq max_wr */
static void do_srq(const uint64_t *a, struct reply *r)
{
	struct ibv_srq_init_attr init = {
		.attr = { .max_wr = (uint32_t)a[0], .max_sge = 4 },
	};

	here.srq = ibv_create_srq(here.pd, &init);
	if (!here.srq)
		refuse(r, errno, "ibv_create_srq");
}

/* limit n: an event once fewer than n receives are left in the SRQ */
static void do_limit(const uint64_t *a, struct reply *r)
{
	struct ibv_srq_attr attr = { .srq_limit = (uint32_t)a[0] };
	int err = ibv_modify_srq(here.srq, &attr, IBV_SRQ_LIMIT);

	if (err)
		refuse(r, err, "ibv_modify_srq");
}

/*
 * qp type use_srq -> index qpn max_inline
 * An RC QP can write atomically where the device can.
 */
static void do_qp(const uint64_t *a, struct reply *r)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = here.cq,
		.recv_cq = here.cq,
		.srq = a[1] ? here.srq : NULL,
		.qp_type = (enum ibv_qp_type)a[0],
		.cap = { .max_send_wr = 128,
			 .max_recv_wr = 128,
			 .max_send_sge = 4,
			 .max_recv_sge = 4,
			 .max_inline_data = 64 },
		.comp_mask = IBV_QP_INIT_ATTR_PD,
		.pd = here.pd,
	};
	struct ibv_qp *qp;

	if (here.nqp == MAX_OBJ)
		return refuse(r, ENOSPC, "qp");
	if (init.qp_type == IBV_QPT_RC && (here.caps & CAP_ATOMIC_WRITE)) {
		init.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
		init.send_ops_flags = IBV_QP_EX_WITH_ATOMIC_WRITE;
	}
	qp = ibv_create_qp_ex(here.ctx, &init);
	if (!qp)
		return refuse(r, errno, "ibv_create_qp");
	here.qp[here.nqp] = qp;
	answer(r, here.nqp++);
	answer(r, qp->qp_num);
	answer(r, init.cap.max_inline_data);
}

struct ibv_qp *qp_of(uint64_t i, struct reply *r)
{
	if (i < here.nqp && here.qp[i])
		return here.qp[i];
	refuse(r, EINVAL, "no such QP");
	return NULL;
}

/* init qp access */
static void do_init(const uint64_t *a, struct reply *r)
{
	struct ibv_qp *qp = qp_of(a[0], r);
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qkey = QKEY,
		.qp_access_flags = (unsigned)a[1],
	};
	int err;

	if (!qp)
		return;
	err = ibv_modify_qp(qp, &attr, init_mask(qp->qp_type));
	if (err)
		refuse(r, err, "INIT");
}

static struct ibv_ah_attr path_to(uint64_t hi, uint64_t lo, uint64_t tclass,
				  uint64_t hops, uint64_t flow)
{
	struct ibv_ah_attr ah = {
		.is_global = 1,
		.port_num = 1,
		.grh = { .sgid_index = (uint8_t)here.gid_index,
			 .traffic_class = (uint8_t)tclass,
			 .hop_limit = (uint8_t)hops,
			 .flow_label = (uint32_t)flow },
	};

	hi = htobe64(hi);
	lo = htobe64(lo);
	memcpy(ah.grh.dgid.raw, &hi, 8);
	memcpy(ah.grh.dgid.raw + 8, &lo, 8);
	return ah;
}

/* rtr qp dest_qpn psn mtu rd_atomic rnr_timer gid_hi gid_lo tclass hops flow */
static void do_rtr(const uint64_t *a, struct reply *r)
{
	struct ibv_qp *qp = qp_of(a[0], r);
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.dest_qp_num = (uint32_t)a[1],
		.rq_psn = (uint32_t)a[2],
		.path_mtu = (enum ibv_mtu)a[3],
		.max_dest_rd_atomic = (uint8_t)a[4],
		.min_rnr_timer = (uint8_t)a[5],
		.ah_attr = path_to(a[6], a[7], a[8], a[9], a[10]),
	};
	int err;

	if (!qp)
		return;
	err = ibv_modify_qp(qp, &attr, rtr_mask(qp->qp_type));
	if (err)
		refuse(r, err, "RTR");
}

/* rts qp psn rd_atomic timeout retry rnr_retry */
static void do_rts(const uint64_t *a, struct reply *r)
{
	struct ibv_qp *qp = qp_of(a[0], r);
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTS,
		.sq_psn = (uint32_t)a[1],
		.max_rd_atomic = (uint8_t)a[2],
		.timeout = (uint8_t)a[3],
		.retry_cnt = (uint8_t)a[4],
		.rnr_retry = (uint8_t)a[5],
	};
	int err;

	if (!qp)
		return;
	err = ibv_modify_qp(qp, &attr, rts_mask(qp->qp_type));
	if (err)
		refuse(r, err, "RTS");
}

/* to qp state: ERR or RESET, which need no attributes */
static void do_to(const uint64_t *a, struct reply *r)
{
	struct ibv_qp *qp = qp_of(a[0], r);
	struct ibv_qp_attr attr = { .qp_state = (enum ibv_qp_state)a[1] };
	int err;

	if (!qp)
		return;
	err = ibv_modify_qp(qp, &attr, IBV_QP_STATE);
	if (err)
		refuse(r, err, "ERR or RESET");
}

/* state qp -> state */
static void do_state(const uint64_t *a, struct reply *r)
{
	struct ibv_qp *qp = qp_of(a[0], r);
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	int err;

	if (!qp)
		return;
	err = ibv_query_qp(qp, &attr, IBV_QP_STATE, &init);
	if (err)
		refuse(r, err, "ibv_query_qp");
	else
		answer(r, attr.qp_state);
}

/* ah gid_hi gid_lo tclass hops flow -> index */
static void do_ah(const uint64_t *a, struct reply *r)
{
	struct ibv_ah_attr attr = path_to(a[0], a[1], a[2], a[3], a[4]);

	if (here.nah == MAX_OBJ)
		return refuse(r, ENOSPC, "ah");
	here.ah[here.nah] = ibv_create_ah(here.pd, &attr);
	if (!here.ah[here.nah])
		return refuse(r, errno, "ibv_create_ah");
	answer(r, here.nah++);
}

/* mr access off len -> index lkey rkey */
static void do_mr(const uint64_t *a, struct reply *r)
{
	struct ibv_mr *mr;

	if (here.nmr == MAX_OBJ || !in_buf(a[1], a[2]))
		return refuse(r, EINVAL, "mr");
	mr = ibv_reg_mr(here.pd, here.buf + a[1], a[2], (unsigned)a[0]);
	if (!mr)
		return refuse(r, errno, "ibv_reg_mr");
	here.mr[here.nmr] = mr;
	answer(r, here.nmr++);
	answer(r, mr->lkey);
	answer(r, mr->rkey);
}

/* mw type -> index rkey */
static void do_mw(const uint64_t *a, struct reply *r)
{
	struct ibv_mw *mw;

	if (here.nmw == MAX_OBJ)
		return refuse(r, ENOSPC, "mw");
	mw = ibv_alloc_mw(here.pd, (enum ibv_mw_type)a[0]);
	if (!mw)
		return refuse(r, errno, "ibv_alloc_mw");
	here.mw[here.nmw] = mw;
	answer(r, here.nmw++);
	answer(r, mw->rkey);
}

static const struct verb {
	const char *name;
	unsigned args;
	void (*run)(const uint64_t *a, struct reply *r);
} verbs[] = {
	{ "info", 0, do_info },       { "srq", 1, do_srq },
	{ "qp", 2, do_qp },           { "init", 2, do_init },
	{ "rtr", 11, do_rtr },        { "rts", 6, do_rts },
	{ "to", 2, do_to },           { "state", 1, do_state },
	{ "ah", 5, do_ah },           { "mr", 3, do_mr },
	{ "mw", 1, do_mw },           { "bind", 6, do_bind },
	{ "recv", 6, do_recv },       { "post", 15, do_post },
	{ "wc", 1, do_wc },           { "fill", 3, do_fill },
	{ "guard", 2, do_guard },     { "check", 4, do_check },
	{ "get", 1, do_get },         { "put", 2, do_put },
	{ "arm", 1, do_arm },         { "event", 1, do_event },
	{ "write", 4, do_write },     { "limit", 1, do_limit },
	{ "async", 1, do_async },     { "listen", 1, do_listen },
	{ "connect", 4, do_connect }, { "accept", 3, do_accept },
	{ "cm", 1, do_cm },           { "peers", 0, do_peers },
	{ "away", 0, do_away },
};

/* Runs one line: a name and hexadecimal numbers. */
void interpret(char *line, struct reply *r)
{
	uint64_t arg[MAX_ARGS] = { 0 };
	unsigned n = 0;
	char *save, *name = strtok_r(line, " \n", &save), *tok;

	memset(r, 0, sizeof(*r));
	for (size_t i = 0; name && i < sizeof(verbs) / sizeof(*verbs); i++) {
		if (strcmp(name, verbs[i].name))
			continue;
		while (n < MAX_ARGS && (tok = strtok_r(NULL, " \n", &save)))
			arg[n++] = strtoull(tok, NULL, 16);
		if (n != verbs[i].args)
			return refuse(r, E2BIG, name);
		return verbs[i].run(arg, r);
	}
	refuse(r, ENOSYS, "unknown verb");
}

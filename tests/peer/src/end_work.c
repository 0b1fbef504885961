/*
 * end_work.c - one end: work requests, completions, events, and its buffer
 */
#include "peer.h"

static uint8_t pattern(uint64_t i, uint64_t seed)
{
	return (uint8_t)(((i + 1) * 2654435761u + seed * 40503u) >> 13);
}

/* n pieces of odd lengths that together are [off, off + len) */
static int cut(struct ibv_sge *sge, uint64_t off, uint64_t len, uint64_t n,
	       uint32_t lkey)
{
	int k = 0;

	if (n == ZERO_PIECES) {
		const uint64_t part[] = { 0, len / 2, 0, len - len / 2 };

		for (; k < 4; k++) {
			sge[k] = (struct ibv_sge){
				.addr = (uintptr_t)here.buf + off,
				.length = (uint32_t)part[k],
				.lkey = lkey,
			};
			off += part[k];
		}
		return k;
	}
	while (len || (uint64_t)k < n) {
		uint64_t part = (uint64_t)k + 1 >= n ? len : len / 3 + (k == 0);

		if (part > len)
			part = len;
		sge[k++] = (struct ibv_sge){
			.addr = (uintptr_t)here.buf + off,
			.length = (uint32_t)part,
			.lkey = lkey,
		};
		off += part;
		len -= part;
		if ((uint64_t)k >= n)
			break;
	}
	return k;
}

/* recv qp|-1 off len nsge wr_id lkey|0 */
void do_recv(const uint64_t *a, struct reply *r)
{
	struct ibv_sge sge[4];
	struct ibv_recv_wr wr = { .wr_id = a[4], .sg_list = sge }, *bad;
	struct ibv_qp *qp = NULL;
	int err;

	if (!in_buf(a[1], a[2]) || (a[3] > 4 && a[3] != ZERO_PIECES))
		return refuse(r, EINVAL, "recv");
	wr.num_sge = cut(sge, a[1], a[2], a[3],
			 a[5] ? (uint32_t)a[5] : here.mr[0]->lkey);
	if (a[0] == UINT64_MAX) {
		err = ibv_post_srq_recv(here.srq, &wr, &bad);
	} else {
		qp = qp_of(a[0], r);
		if (!qp)
			return;
		err = ibv_post_recv(qp, &wr, &bad);
	}
	if (err)
		refuse(r, err, "ibv_post_recv");
}

/*
 * post qp opcode flags off len nsge imm rkey raddr cmp_add swap ah qpn qkey
 *	lkey|0 -> errno
 */
void do_post(const uint64_t *a, struct reply *r)
{
	struct ibv_sge sge[4];
	struct ibv_send_wr wr = {
		.wr_id = 0x5000 + a[1],
		.sg_list = sge,
		.opcode = (enum ibv_wr_opcode)a[1],
		.send_flags = (unsigned)a[2],
		.imm_data = htonl((uint32_t)a[6]),
	}, *bad;
	struct ibv_qp *qp = qp_of(a[0], r);

	if (!qp)
		return;
	if (!in_buf(a[3], a[4]) || (a[5] > 4 && a[5] != ZERO_PIECES))
		return refuse(r, EINVAL, "post");
	wr.num_sge = cut(sge, a[3], a[4], a[5],
			 a[14] ? (uint32_t)a[14] : here.mr[0]->lkey);
	switch (wr.opcode) {
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		wr.wr.atomic.remote_addr = a[8];
		wr.wr.atomic.rkey = (uint32_t)a[7];
		wr.wr.atomic.compare_add = a[9];
		wr.wr.atomic.swap = a[10];
		break;
	case IBV_WR_SEND_WITH_INV:
	case IBV_WR_LOCAL_INV:
		wr.invalidate_rkey = (uint32_t)a[6];
		break;
	default:
		wr.wr.rdma.remote_addr = a[8];
		wr.wr.rdma.rkey = (uint32_t)a[7];
	}
	if (qp->qp_type == IBV_QPT_UD) {
		if (a[11] >= here.nah)
			return refuse(r, EINVAL, "no such AH");
		wr.wr.ud.ah = here.ah[a[11]];
		wr.wr.ud.remote_qpn = (uint32_t)a[12];
		wr.wr.ud.remote_qkey = (uint32_t)a[13];
	}
	answer(r, (uint64_t)ibv_post_send(qp, &wr, &bad));
	/* An inline send has taken its data by now. */
	if (wr.send_flags & IBV_SEND_INLINE)
		memset(here.buf + a[3], 0x55, a[4]);
}

/* write qp rkey raddr value -> errno: eight bytes at once, or not at all */
void do_write(const uint64_t *a, struct reply *r)
{
	struct ibv_qp *qp = qp_of(a[0], r);
	struct ibv_qp_ex *ex;

	if (!qp)
		return;
	ex = ibv_qp_to_qp_ex(qp);
	if (!ex || !ex->wr_atomic_write)
		return refuse(r, EOPNOTSUPP, "atomic write");
	ibv_wr_start(ex);
	ex->wr_id = 0x500f;
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_atomic_write(ex, (uint32_t)a[1], a[2], &a[3]);
	answer(r, (uint64_t)ibv_wr_complete(ex));
}

/* Waits for an event of the channel. Returns 1, or 0 after ms. */
static int wait_event(uint64_t ms)
{
	struct pollfd p = { .fd = here.channel->fd, .events = POLLIN };
	struct ibv_cq *cq;
	void *context;

	if (poll(&p, 1, (int)ms) <= 0)
		return 0;
	if (ibv_get_cq_event(here.channel, &cq, &context))
		return 0;
	ibv_ack_cq_events(cq, 1);
	return 1;
}

uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static int next_wc(struct ibv_wc *wc, uint64_t ms)
{
	uint64_t until = now_ms() + ms;

	for (;;) {
		uint64_t now;
		int n = ibv_poll_cq(here.cq, 1, wc);

		if (n)
			return n;
		if (ibv_req_notify_cq(here.cq, 0))
			return -1;
		n = ibv_poll_cq(here.cq, 1, wc);
		if (n)
			return n;
		now = now_ms();
		if (now >= until)
			return 0;
		wait_event(until - now);
	}
}

/*
 * wc ms -> n [status opcode byte_len imm|rkey flags qpn wr_id src_qp pkey_index
 *	      slid dlid_path_bits]
 * The values that an error leaves undefined are answered as 0.
 */
void do_wc(const uint64_t *a, struct reply *r)
{
	struct ibv_wc wc;
	int n = next_wc(&wc, a[0]);
	bool ok;

	if (n < 0)
		return refuse(r, EIO, "ibv_poll_cq");
	answer(r, (uint64_t)n);
	if (!n)
		return;
	ok = wc.status == IBV_WC_SUCCESS;
	/* rxe hands out the kernel's flag for it, which here says csum ok */
	if (ok && kind_of_device() == RXE && (wc.wc_flags & IBV_WC_IP_CSUM_OK))
		wc.wc_flags ^= IBV_WC_IP_CSUM_OK | IBV_WC_WITH_INV;
	answer(r, wc.status);
	answer(r, ok ? wc.opcode : 0);
	answer(r, ok ? wc.byte_len : 0);
	if (ok && (wc.wc_flags & IBV_WC_WITH_INV))
		answer(r, wc.invalidated_rkey);
	else
		answer(r, ok && (wc.wc_flags & IBV_WC_WITH_IMM) ?
				  ntohl(wc.imm_data) :
				  0);
	answer(r, ok ? wc.wc_flags : 0);
	answer(r, wc.qp_num);
	answer(r, wc.wr_id);
	answer(r, ok ? wc.src_qp : 0);
	answer(r, ok ? wc.pkey_index : 0);
	answer(r, ok ? wc.slid : 0);
	answer(r, ok ? wc.dlid_path_bits : 0);
}

/* bind qp mw mr off len access -> rkey; takes its completion too */
void do_bind(const uint64_t *a, struct reply *r)
{
	struct ibv_qp *qp = qp_of(a[0], r);
	struct ibv_mw_bind_info info = { .addr = (uintptr_t)here.buf + a[3],
					 .length = a[4],
					 .mw_access_flags = (unsigned)a[5] };
	struct ibv_send_wr wr = { .wr_id = 0xb1,
				  .opcode = IBV_WR_BIND_MW,
				  .send_flags = IBV_SEND_SIGNALED },
			   *bad;
	struct ibv_mw_bind bind = { .wr_id = 0xb1,
				    .send_flags = IBV_SEND_SIGNALED };
	struct ibv_mw *mw;
	struct ibv_wc wc;
	uint32_t rkey;
	int err;

	if (!qp)
		return;
	if (a[1] >= here.nmw || a[2] >= here.nmr || !in_buf(a[3], a[4]))
		return refuse(r, EINVAL, "bind");
	mw = here.mw[a[1]];
	info.mr = here.mr[a[2]];
	if (mw->type == IBV_MW_TYPE_1) {
		bind.bind_info = info;
		err = ibv_bind_mw(qp, mw, &bind);
		rkey = mw->rkey;
	} else {
		rkey = ibv_inc_rkey(mw->rkey);
		wr.bind_mw.mw = mw;
		wr.bind_mw.rkey = rkey;
		wr.bind_mw.bind_info = info;
		err = ibv_post_send(qp, &wr, &bad);
		if (!err)
			mw->rkey = rkey;
	}
	if (err)
		return refuse(r, err, "bind");
	if (next_wc(&wc, 10000) != 1 || wc.status != IBV_WC_SUCCESS ||
	    wc.opcode != IBV_WC_BIND_MW)
		return refuse(r, EIO, "completion of the bind");
	answer(r, rkey);
}

/* fill off len seed */
void do_fill(const uint64_t *a, struct reply *r)
{
	if (!in_buf(a[0], a[1]))
		return refuse(r, EINVAL, "fill");
	for (uint64_t i = 0; i < a[1]; i++)
		here.buf[a[0] + i] = pattern(i, a[2]);
}

/* guard off len: what is to be overwritten, and an edge that is not */
void do_guard(const uint64_t *a, struct reply *r)
{
	if (!in_buf(a[0], a[1]))
		return refuse(r, EINVAL, "guard");
	memset(here.buf + a[0] - GUARD, 0xee, a[1] + 2 * GUARD);
}

/* check off len seed edges -> 0, or 1 + offset of the first wrong byte */
void do_check(const uint64_t *a, struct reply *r)
{
	const uint8_t *p = here.buf + a[0];

	if (!in_buf(a[0], a[1]))
		return refuse(r, EINVAL, "check");
	for (uint64_t i = 0; i < a[1]; i++)
		if (p[i] != pattern(i, a[2]))
			return answer(r, 1 + i);
	for (uint64_t i = 1; a[3] && i <= GUARD; i++)
		if (*(p - i) != 0xee || p[a[1] + i - 1] != 0xee)
			return answer(r, 1 + a[1] + i);
	answer(r, 0);
}

/* get off -> the 64-bit word there; put off value */
void do_get(const uint64_t *a, struct reply *r)
{
	uint64_t v;

	if (!in_buf(a[0], 8))
		return refuse(r, EINVAL, "get");
	memcpy(&v, here.buf + a[0], 8);
	answer(r, v);
}

void do_put(const uint64_t *a, struct reply *r)
{
	if (!in_buf(a[0], 8))
		return refuse(r, EINVAL, "put");
	memcpy(here.buf + a[0], &a[1], 8);
}

/* arm solicited_only; event ms -> 1 or 0 */
void do_arm(const uint64_t *a, struct reply *r)
{
	int err = ibv_req_notify_cq(here.cq, (int)a[0]);

	if (err)
		refuse(r, err, "ibv_req_notify_cq");
}

void do_event(const uint64_t *a, struct reply *r)
{
	answer(r, (uint64_t)wait_event(a[0]));
}

/* async ms -> n [type qpn]: the next event of the device; qpn 0: not a QP's */
void do_async(const uint64_t *a, struct reply *r)
{
	struct pollfd p = { .fd = here.ctx->async_fd, .events = POLLIN };
	struct ibv_async_event ev;

	if (poll(&p, 1, (int)a[0]) <= 0 || ibv_get_async_event(here.ctx, &ev))
		return answer(r, 0);
	answer(r, 1);
	answer(r, ev.event_type);
	switch (ev.event_type) {
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		answer(r, ev.element.qp->qp_num);
		break;
	default:
		answer(r, 0);
	}
	ibv_ack_async_event(&ev);
}

/*
 * iwarp_fuzz.c - the input chooses what two iWARP queue pairs and a hostile peer
 * do
 *
 * As core_fuzz.c: whatever the input, no access is outside the registered memory
 * (the sanitizers check), every work request completes at most once, no key stays
 * held, and the QP can be destroyed. Segments are made from the input; what their
 * acceptance depends on (version, queue, MSN, offset, STag, CRC) is right most of
 * the time.
 */
#include "fuzz.h"
#include "input.h"

#include "iwarp_pair.h"

#include "base/bytes.h"
#include "iwarp/iwarp_internal.h"

#include <assert.h>

/* A window of each node, and the rkey that it had last. */
static uint32_t window[2];

static uint32_t *window_of(const struct iw_end *e)
{
	return &window[e != e->pair->end];
}

/* An STag of this end, good or not. */
static uint32_t stag(struct input *in, const struct iw_end *e)
{
	switch (byte(in) & 15) {
	case 1:
		return e->q->node->rkey ^ 1;
	case 2:
	case 3:
		return *window_of(e);
	case 4:
		return word(in);
	case 5:
		return e->q->node->lkey;
	default:
		return e->q->node->rkey;
	}
}

static uint64_t place(struct input *in, const struct iw_end *e)
{
	const uint8_t how = byte(in);

	if (how == 255)
		return UINT64_MAX - byte(in);
	return (uintptr_t)e->q->node->mem + word(in) % (SIM_MEM + 64) -
	       (how == 254 ? 64 : 0);
}

static void fuzz_segment(struct input *in, struct iw_end *e)
{
	const struct iwarp_rx *r = &e->qp->rx;
	const uint8_t how = byte(in);
	const unsigned opcode = byte(in) & (how & 1 ? 15 : 7);
	struct ddp_hdr h = {
		.tagged = rdmap_is_tagged(opcode),
		.last = how & 2,
		.version = DDP_VERSION,
		.ulp = rdmap_control((enum rdmap_opcode)opcode),
		.qn = opcode == RDMAP_READ_REQUEST ? RDMAP_Q_READ :
		      opcode == RDMAP_TERMINATE    ? RDMAP_Q_TERMINATE :
						     RDMAP_Q_SEND,
	};
	uint32_t len = word(in) >> (byte(in) & 31);
	struct iwarp_wqe *w;
	uint8_t *u;
	size_t n;

	switch (how >> 4) { /* seldom something is wrong */
	case 1:
		h.version = byte(in) & 3;
		break;
	case 2:
		h.ulp = byte(in);
		break;
	case 3:
		h.qn = word(in);
		break;
	case 4:
		h.tagged = !h.tagged;
		break;
	default:
		break;
	}
	h.msn = r->msn[h.qn % RDMAP_QUEUES] + (how == 0xf0 ? byte(in) : 0);
	h.mo = h.qn == RDMAP_Q_SEND ? r->offset[RDMAP_Q_SEND] : 0;
	h.mo += how == 0xf1 ? word(in) : 0;
	h.ulp_data = *window_of(e);
	h.stag = stag(in, e);
	h.to = place(in, e);
	w = opcode == RDMAP_READ_RESPONSE && how & 4 ? tx_read_first(e->qp) :
						       NULL;
	if (w && w->base.num_sge) {
		const struct ibv_sge *sge =
			qp_wqe_sge(&e->qp->base.sq, &w->base);

		h.stag = sge->lkey;
		h.to = sge->addr + r->read_offset;
		len = min_u32(len, w->base.length - r->read_offset);
		h.last = r->read_offset + len == w->base.length;
	}
	if (opcode == RDMAP_READ_REQUEST && !(how & 8))
		len = RDMAP_READ_LEN;
	len %= 60000;
	u = calloc(1, DDP_HDR_MAX + len + RDMAP_TERMINATE_MAX);
	n = ddp_encode(&h, u);
	if (opcode == RDMAP_READ_REQUEST) {
		const struct rdmap_read read = {
			.sink_stag = stag(in, e->peer),
			.sink_to = place(in, e->peer),
			.size = word(in) >> (byte(in) & 31),
			.src_stag = stag(in, e),
			.src_to = place(in, e),
		};

		rdmap_read_encode(&read, u + n);
	} else if (opcode == RDMAP_TERMINATE) {
		for (size_t i = 0; i < RDMAP_TERMINATE_MAX; i++)
			u[n + i] = byte(in);
	}
	iw_inject_ulpdu(e, u, n + len);
	free(u);
}

/* Bytes of no meaning, or an FPDU whose CRC is wrong. */
static void fuzz_bytes(struct input *in, struct iw_end *e)
{
	uint8_t b[64];
	size_t n = byte(in) & 63;

	for (size_t i = 0; i < n; i++)
		b[i] = byte(in);
	iw_inject(e, b, n);
}

static void fuzz_post(struct input *in, struct iw_end *e, uint64_t id)
{
	struct ibv_sge sge[2];
	struct ibv_send_wr wr = {
		.wr_id = id,
		.sg_list = sge,
		.opcode = (enum ibv_wr_opcode)(byte(in) % 16),
		.send_flags = byte(in) & 15,
		.num_sge = byte(in) % 3,
	};
	struct ibv_recv_wr rr = { .wr_id = id,
				  .sg_list = sge,
				  .num_sge = wr.num_sge };
	struct ibv_mw mw = { .handle = keys_slot(&e->q->node->keys,
						 *window_of(e)) };
	struct ibv_mr mr;

	for (int i = 0; i < 2; i++) {
		uint32_t off = word(in) % (SIM_MEM + 64);

		sge[i].addr = (uintptr_t)e->q->node->mem + off;
		sge[i].length = word(in) >> (byte(in) & 31);
		sge[i].lkey = e->q->node->lkey ^ (byte(in) == 1);
		/* Inline data is read at once: it must be there. */
		if (off + (uint64_t)sge[i].length > SIM_MEM)
			wr.send_flags &= ~(unsigned)IBV_SEND_INLINE;
	}
	wr.wr.rdma.remote_addr = place(in, e->peer);
	wr.wr.rdma.rkey = stag(in, e->peer);
	mr.lkey = sge[0].lkey;
	if (wr.opcode == IBV_WR_BIND_MW) {
		*window_of(e) = ibv_inc_rkey(*window_of(e));
		wr.bind_mw.mw = &mw;
		wr.bind_mw.rkey = *window_of(e);
		wr.bind_mw.bind_info = (struct ibv_mw_bind_info){
			&mr, (uintptr_t)e->q->node->mem, SIM_MEM, byte(in) & 15
		};
	} else if (wr.opcode == IBV_WR_LOCAL_INV) {
		wr.invalidate_rkey = *window_of(e);
	} else if (wr.opcode == IBV_WR_SEND_WITH_INV) {
		wr.invalidate_rkey = *window_of(e->peer);
	}
	if (byte(in) & 1 && wr.opcode != IBV_WR_BIND_MW)
		qp_post_recv(iwarp_qp_base(e->qp), &rr);
	else
		iwarp_post_send(e->qp, &wr);
}

static void fuzz_end(struct input *in, struct iw_end *e)
{
	struct ibv_qp_attr a = { .qp_state = (enum ibv_qp_state)(byte(in) % 8),
				 .qp_access_flags = byte(in) };
	uint32_t max;

	switch (byte(in) & 7) {
	case 0:
		iw_reset(e->pair);
		break;
	case 1:
		e->in.fin = true;
		break;
	case 2:
		max = word(in);
		iwarp_set_fpdu_max(e->qp, max);
		break;
	case 3:
		iwarp_fail_setup(e->qp, IWARP_SETUP_IRD);
		break;
	case 4: /* the region goes */
		if (!keys_busy(&e->q->node->keys, (uint32_t)e->q->node->slot))
			keys_kill(&e->q->node->keys,
				  (uint32_t)e->q->node->slot);
		break;
	default:
		iwarp_qp_modify(e->qp, &a, (int)word(in));
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };
	struct iw_opts o = iw_default;
	uint8_t how = byte(&in);
	uint64_t posted = 0;
	struct iw_pair *p;

	o.offer[0].crc = o.offer[1].crc = how & 1;
	o.offer[1].markers = how & 2;
	o.offer[0].enhanced = how & 4;
	o.offer[0].peer_to_peer = how & 8;
	o.fpdu_max = IWARP_FPDU_MIN << (how >> 4);
	o.cap = (struct ibv_qp_cap){ 16, 16, 2, 2, 64 };
	o.sig_all = true;
	p = iw_pair_new(byte(&in), &o);
	for (int i = 0; i < 2; i++)
		window[i] = sim_mw_new(&p->sim->node[i]);
	while (in.left && posted < 4096) {
		uint8_t what = byte(&in);
		struct iw_end *e = &p->end[what & 1];

		switch (what >> 1 & 7) {
		case 0:
		case 1:
			/* Where what came before is not in the way. */
			if (e->in.len < 100000)
				fuzz_segment(&in, e);
			break;
		case 2:
			if (byte(&in) < 32 && e->in.len < 100000)
				fuzz_bytes(&in, e);
			break;
		case 3:
		case 4:
			fuzz_post(&in, e, posted++);
			break;
		case 5:
			if (byte(&in) < 64)
				fuzz_end(&in, e);
			break;
		default:
			for (uint32_t n = byte(&in); n && iw_step(p); n--)
				;
		}
	}
	for (int n = 0; n < 3000 && iw_step(p); n++)
		;
	for (int i = 0; i < 2; i++) {
		const struct sim_qp *q = p->end[i].q;

		assert(q->send->n + q->recv->n <= posted);
		assert(p->end[i].ended <= 1);
	}
	assert(iw_keys_free(p));
	iw_pair_free(p);
	return 0;
}

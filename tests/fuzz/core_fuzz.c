/*
 * core_fuzz.c - the input chooses what two queue pairs and a hostile peer do
 *
 * Whatever the input, no access is outside the registered memory (the
 * sanitizers check), every work request completes at most once, and the QP can
 * be destroyed. The input is a program: post this, receive that packet, let time
 * pass. Headers of packets are made from the input; the fields on which their
 * acceptance depends (QPN, PSN, rkey) are correct most of the time.
 */
#include "input.h"
#include "sim.h"

#include "base/bytes.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A window of each node, and the rkey that it had last. */
static uint32_t window[2];

static uint32_t *window_of(const struct sim_qp *q)
{
	return &window[q->node != q->node->sim->node];
}

static uint8_t payload[1 << 16];

struct source {
	struct qp_source base;
	int err;
};

static int source_read(const struct qp_source *base, uint64_t offset,
		       const struct iovec *to, size_t n)
{
	static const int errors[] = { 0, -ESTALE, -EAGAIN, -EFAULT };
	const struct source *s = (const struct source *)(const void *)base;

	for (size_t i = 0; i < n; i++) {
		assert(offset + to[i].iov_len <= sizeof(payload));
		memcpy(to[i].iov_base, payload + offset, to[i].iov_len);
		offset += to[i].iov_len;
	}
	return errors[s->err];
}

/* It came within the host, from a process that may send anything. */
static void fuzz_host(struct input *in, struct sim_qp *q, struct roce_rx *rx,
		      struct source *s)
{
	const uint32_t f = roce_opcode(rx->h.opcode)->flags;
	uint8_t how = byte(in);

	rx->host = true;
	rx->path_hash = roce_path_hash(&rx->sgid, &rx->dgid) ^ (how == 255);
	rx->large = how & 1;
	if (rx->large && f & ROCE_F_PAYLOAD && how & 2)
		rx->len = word(in) % (sizeof(payload) + 1);
	if (f & ROCE_F_PAYLOAD && how & 4) {
		*s = (struct source){ { source_read, sizeof(*s) },
				      how >> 3 & 3 };
		rx->source = &s->base;
		rx->payload = NULL;
	}
	if (how & 0x20)
		roce_acked(q->qp, psn_add(rx->h.psn, byte(in)), how & 0x40,
			   q->node->sim->now);
}

static void fuzz_packet(struct input *in, struct sim_qp *q)
{
	uint8_t how = byte(in), op = byte(in);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	struct roce_timewait gone;
	struct roce_batch b;
	struct source source;
	bool acked;
	struct roce_rx rx = {
		.sgid = q->peer->node->gid,
		.dgid = q->node->gid,
		.payload = payload,
	};

	q->forged = true;
	roce_qp_query(q->qp, &attr, &init);
	rx.h.opcode = how & 1 ? op : (uint8_t)(op % 0x18);
	if (roce_qp_type(q->qp) == IBV_QPT_UC && !(how & 1))
		rx.h.opcode |= ROCE_UC;
	if (init.qp_type == IBV_QPT_XRC_SEND ||
	    init.qp_type == IBV_QPT_XRC_RECV)
		rx.h.opcode = (rx.h.opcode & 0x1f) | ROCE_XRC;
	rx.h.pkey = how & 2 && how & 4 && how & 8 ? (uint16_t)word(in) : 0xffff;
	rx.h.dest_qpn = roce_qp_num(q->qp);
	rx.h.psn = psn_add(how & 0x10 ? attr.sq_psn : attr.rq_psn,
			   (uint32_t)(int8_t)byte(in) & PSN_MASK);
	if (how & 0x20)
		rx.h.psn = attr.rq_psn;
	rx.h.ack_req = how & 0x40;
	rx.sport = SIM_SPORT;
	rx.h.mig_req = true;
	rx.h.solicited = how & 0x80;
	rx.h.va = (uintptr_t)q->node->mem + word(in) - 4096;
	switch (byte(in)) {
	case 1:
		rx.h.rkey = q->node->rkey ^ 1;
		break;
	case 2:
		rx.h.rkey = *window_of(q);
		break;
	default:
		rx.h.rkey = q->node->rkey;
	}
	rx.h.dma_len = word(in) >> (byte(in) & 15);
	rx.h.syndrome = byte(in);
	rx.h.msn = byte(in);
	rx.h.inv_rkey = how & 4 ? *window_of(q) : q->node->rkey;
	rx.h.xrc_srqn = how & 8 && how & 4 ? byte(in) : SIM_XRC_SRQN;
	rx.len = byte(in) & 1 ? attr.path_mtu ? 128u << attr.path_mtu : 0 :
				word(in) % (ROCE_MTU_MAX + 1);
	if (!(roce_opcode(rx.h.opcode)->flags & ROCE_F_PAYLOAD))
		rx.len = 0; /* as roce_decode() guarantees */
	if (byte(in) & 1)
		fuzz_host(in, q, &rx, &source);
	rx.acked = rx.host ? &acked : NULL;
	/* Were the QP gone, it would answer what is old, in one packet. */
	if (roce_timewait_init(&gone, q->qp) &&
	    roce_timewait_rx(&gone, &rx, &b, q->node->sim->now))
		assert(b.n <= 1 && !b.data.n &&
		       psn_diff(rx.h.psn, attr.rq_psn) < 0);
	roce_rx(q->qp, &rx, q->node->sim->now);
	sim_pull(q);
}

static void fuzz_post(struct input *in, struct sim_qp *q, uint64_t id)
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

	for (int i = 0; i < 2; i++) {
		uint32_t off = word(in) % (SIM_MEM + 64);

		sge[i].addr = (uintptr_t)q->node->mem + off;
		sge[i].length = word(in) >> (byte(in) & 15);
		sge[i].lkey = q->node->lkey ^ (byte(in) == 1);
		/* Inline data is read at once, as ibv_post_send(3) says: the
		 * program's own memory must be there. */
		if (off + (uint64_t)sge[i].length > SIM_MEM)
			wr.send_flags &= ~(unsigned)IBV_SEND_INLINE;
	}
	wr.wr.rdma.remote_addr = (uintptr_t)q->peer->node->mem + word(in);
	wr.wr.rdma.rkey = q->peer->node->rkey;
	if (wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
	    wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
		wr.wr.atomic.rkey = q->peer->node->rkey;
	wr.qp_type.xrc.remote_srqn = SIM_XRC_SRQN;
	if (wr.opcode == IBV_WR_BIND_MW) {
		struct ibv_mw mw = { .handle = keys_slot(&q->node->keys,
							 *window_of(q)) };
		struct ibv_mr mr = { .lkey = sge[0].lkey };

		*window_of(q) = ibv_inc_rkey(*window_of(q));
		wr.bind_mw.mw = &mw;
		wr.bind_mw.rkey = *window_of(q);
		wr.bind_mw.bind_info =
			(struct ibv_mw_bind_info){ &mr, (uintptr_t)q->node->mem,
						   SIM_MEM, byte(in) & 15 };
		sim_post_send(q, &wr);
		return;
	}
	if (wr.opcode == IBV_WR_LOCAL_INV)
		wr.invalidate_rkey = *window_of(q);
	else if (wr.opcode == IBV_WR_SEND_WITH_INV)
		wr.invalidate_rkey = *window_of(q->peer);
	if (!(byte(in) & 1))
		sim_post_send(q, &wr);
	else if (roce_qp_type(q->qp) == IBV_QPT_XRC_RECV)
		qp_rq_post(&q->node->srq, &rr);
	else
		sim_post_recv(q, &rr);
}

static void fuzz_modify(struct input *in, struct sim_qp *q)
{
	struct ibv_qp_attr a = {
		.qp_state = (enum ibv_qp_state)(byte(in) % 8),
		.cur_qp_state = (enum ibv_qp_state)(byte(in) % 8),
		.port_num = 1,
		.path_mtu = (enum ibv_mtu)(byte(in) % 7),
		.dest_qp_num = roce_qp_num(q->peer->qp),
		.max_dest_rd_atomic = byte(in),
		.max_rd_atomic = byte(in),
		.qp_access_flags = byte(in),
		.timeout = byte(in) & 31,
		.min_rnr_timer = 1,
	};
	struct roce_path path = sim_path(q->node, q->peer->node);

	roce_qp_modify(q->qp, &a, (int)word(in), &path);
	sim_pull(q);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const enum ibv_qp_type types[] = { IBV_QPT_RC, IBV_QPT_RC,
						  IBV_QPT_UC, IBV_QPT_UD,
						  IBV_QPT_XRC_SEND };
	struct input in = { data, size };
	struct sim_qp_opts qo = {
		.type = types[byte(&in) % 5],
		.cap = { 16, 16, 2, 2, 64 },
		.sig_all = true,
	};
	struct sim *sim = sim_new(byte(&in));
	struct sim_qp *q[2];
	uint64_t posted = 0;
	uint8_t ways = byte(&in);

	sim->way[0] = (enum sim_way)(ways % 5);
	sim->way[1] = (enum sim_way)(ways / 5 % 5);
	sim->unreadable = ways / 25 * 0.02;
	for (int i = 0; i < 2; i++) {
		q[i] = sim_qp_new(sim, i, &qo);
		window[i] = sim_mw_new(&sim->node[i]);
		if (qo.type == IBV_QPT_XRC_SEND)
			qo = (struct sim_qp_opts){ .type = IBV_QPT_XRC_RECV };
	}
	q[0]->peer = q[1];
	q[1]->peer = q[0];
	if (qo.type == IBV_QPT_UD) {
		sim_ud_up(q[0], 0);
		sim_ud_up(q[1], 0);
	} else {
		sim_connect(q[0], q[1], &sim_conn_default);
	}
	while (in.left && posted < 4096) {
		uint8_t what = byte(&in);
		struct sim_qp *t = q[what & 1];

		switch (what >> 1 & 7) {
		case 0:
		case 1:
		case 2:
			fuzz_packet(&in, t);
			break;
		case 3:
		case 4:
		case 5:
			fuzz_post(&in, t, posted++);
			break;
		case 6:
			sim_run(sim, (word(&in) & 0xffff) * 64ull);
			break;
		default:
			if (byte(&in) < 32)
				fuzz_modify(&in, t);
		}
	}
	sim_run(sim, SIM_SEC / 500);
	for (int i = 0; i < 2; i++)
		assert(q[i]->send->n + q[i]->recv->n <= posted);
	sim_free(sim);
	return 0;
}

/*
 * scripted.c - see scripted.h
 */
#include "scripted.h"

#include <stdlib.h>
#include <string.h>

/* The jitter of the network is that of seed 1, or of SIM_SEED. */
static uint64_t seed(void)
{
	const char *e = getenv("SIM_SEED");

	return e ? strtoull(e, NULL, 0) : 1;
}

struct pair pair_opts(enum ibv_qp_type type, const struct sim_conn_opts *co)
{
	struct sim_qp_opts qo = {
		.type = type,
		.cap = { .max_send_wr = 32,
			 .max_recv_wr = 32,
			 .max_send_sge = 2,
			 .max_recv_sge = 2,
			 .max_inline_data = 64 },
		.sig_all = true,
	};
	struct pair p = { .sim = sim_new(seed()) };

	p.a = sim_qp_new(p.sim, 0, &qo);
	p.b = sim_qp_new(p.sim, 1, &qo);
	if (type == IBV_QPT_UD) {
		p.a->peer = p.b;
		p.b->peer = p.a;
		sim_ud_up(p.a, 0x11);
		sim_ud_up(p.b, 0x11);
	} else {
		sim_connect(p.a, p.b, co);
	}
	return p;
}

struct pair pair_new(enum ibv_qp_type type)
{
	return pair_opts(type, &sim_conn_default);
}

int post(struct sim_qp *q, enum ibv_wr_opcode op, uint32_t off, uint32_t len,
	 uint64_t raddr, uint32_t rkey, unsigned flags)
{
	struct ibv_sge sge = { (uintptr_t)q->node->mem + off, len,
			       q->node->lkey };
	struct ibv_send_wr wr = {
		.wr_id = off,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = op,
		.send_flags = flags,
	};

	if (op == IBV_WR_ATOMIC_FETCH_AND_ADD ||
	    op == IBV_WR_ATOMIC_CMP_AND_SWP) {
		wr.wr.atomic.remote_addr = raddr;
		wr.wr.atomic.rkey = rkey;
		wr.wr.atomic.compare_add = 1;
	} else if (roce_qp_type(q->qp) == IBV_QPT_UD) {
		wr.wr.ud.remote_qpn = roce_qp_num(q->peer->qp);
		wr.wr.ud.remote_qkey = rkey;
	} else {
		wr.wr.rdma.remote_addr = raddr;
		wr.wr.rdma.rkey = rkey;
	}
	if (roce_qp_type(q->qp) == IBV_QPT_XRC_SEND)
		wr.qp_type.xrc.remote_srqn = SIM_XRC_SRQN;
	return sim_post_send(q, &wr);
}

uint64_t remote(struct sim_qp *q, uint32_t off)
{
	return (uintptr_t)q->peer->node->mem + off;
}

int post_to(struct sim_qp *q, enum ibv_wr_opcode op, uint32_t off, uint32_t len)
{
	return post(q, op, off, len, remote(q, off), q->peer->node->rkey, 0);
}

int recv_into(struct sim_qp *q, uint32_t off, uint32_t len)
{
	struct ibv_sge sge = { (uintptr_t)q->node->mem + off, len,
			       q->node->lkey };
	struct ibv_recv_wr wr = { .wr_id = off, .sg_list = &sge, .num_sge = 1 };

	return sim_post_recv(q, &wr);
}

void expect(struct sim_wcs *w, enum ibv_wc_status status)
{
	const struct ibv_wc *wc = sim_poll(w);

	assert_non_null(wc);
	if (wc->status != status)
		fail_msg("status %d where %d was due", wc->status, status);
}

void settle(struct pair *p)
{
	sim_run(p->sim, 100 * SIM_SEC);
}

int set_state(struct sim_qp *q, enum ibv_qp_state s)
{
	struct ibv_qp_attr a = { .qp_state = s };

	return roce_qp_modify(q->qp, &a, IBV_QP_STATE, NULL);
}

static bool drop_scripted(struct sim *s, const struct roce_hdr *h, int from)
{
	struct script *sc = s->user;

	(void)from;
	if (h->opcode == sc->opcode && sc->count > 0) {
		sc->count--;
		return true;
	}
	return false;
}

static void tap_count(struct sim *s, const struct roce_hdr *h, size_t payload,
		      int from)
{
	struct script *sc = s->user;

	(void)payload;
	(void)from;
	sc->seen[h->opcode]++;
	if (h->opcode == ROCE_ACK &&
	    (h->syndrome & ROCE_AETH_KIND) == ROCE_AETH_NAK)
		sc->naks++;
}

void script(struct pair *p, struct script *sc)
{
	p->sim->user = sc;
	p->sim->direct = 0;
	p->sim->link.drop = drop_scripted;
	p->sim->link.tap = tap_count;
}

void packets_of_mtu(struct pair *p)
{
	p->sim->direct = 0;
	for (int i = 0; i < 2; i++)
		if (p->sim->way[i] != SIM_UDP)
			p->sim->way[i] = SIM_REF;
}

static void tap_seen(struct sim *s, const struct roce_hdr *h, size_t payload,
		     int from)
{
	struct seen *w = s->user;

	assert_true(w->n < 4096);
	w->pkt[w->n].h = *h;
	w->pkt[w->n].len = payload;
	w->pkt[w->n++].from = from;
}

static bool drop_gaps(struct sim *s, const struct roce_hdr *h, int from)
{
	struct seen *w = s->user;

	for (size_t i = 0; i < w->gaps && from == 0; i++)
		if (h->psn == w->gap[i] && w->tries[i]++ == i)
			return true;
	return false;
}

struct seen *watch(struct pair *p)
{
	static struct seen w;

	memset(&w, 0, sizeof(w));
	p->sim->user = &w;
	p->sim->direct = 0;
	p->sim->link.tap = tap_seen;
	p->sim->link.drop = drop_gaps;
	return &w;
}

bool is_nak_psn(const struct roce_hdr *h)
{
	return h->opcode == ROCE_ACK &&
	       h->syndrome == (ROCE_AETH_NAK | ROCE_NAK_PSN);
}

void b_gets(struct pair *p, struct roce_hdr h)
{
	struct roce_rx rx = { .h = h,
			      .sgid = p->a->node->gid,
			      .dgid = p->b->node->gid };

	rx.h.pkey = 0xffff;
	rx.h.dest_qpn = roce_qp_num(p->b->qp);
	roce_rx(p->b->qp, &rx, p->sim->now);
}

bool drop_all(struct sim *s, const struct roce_hdr *h, int from)
{
	(void)s;
	(void)h;
	(void)from;
	return true;
}

uint64_t drops[ROCE_DROPS];

void count_drops(struct qp *qp, enum roce_drop why)
{
	(void)qp;
	assert_in_range(why, 0, ROCE_DROPS - 1);
	drops[why]++;
}

void answer(struct pair *p, uint32_t psn, uint8_t syndrome, uint32_t msn)
{
	struct roce_rx rx = {
		.h = { .opcode = ROCE_ACK,
		       .pkey = 0xffff,
		       .psn = psn,
		       .dest_qpn = roce_qp_num(p->a->qp),
		       .syndrome = syndrome,
		       .msn = msn },
		.sgid = p->b->node->gid,
		.dgid = p->a->node->gid,
	};

	roce_rx(p->a->qp, &rx, p->sim->now);
	sim_pull(p->a);
}

struct pair host_opts(const struct sim_conn_opts *co, enum sim_way ab,
		      enum sim_way ba)
{
	struct pair p = pair_opts(IBV_QPT_RC, co);

	p.sim->way[0] = ab;
	p.sim->way[1] = ba;
	p.sim->max_payload = 64 << 10;
	p.sim->max_copy = 0;
	return p;
}

struct pair host_pair(void)
{
	return host_opts(&sim_conn_default, SIM_HOST, SIM_HOST);
}

void sim_pattern(uint8_t *p, size_t n, uint32_t seed)
{
	for (size_t i = 0; i < n; i++)
		p[i] = (uint8_t)((i + seed) * 2654435761u >> 24);
}

uint8_t some_data[300000];

int noting_read(const struct qp_source *base, uint64_t offset,
		const struct iovec *to, size_t n)
{
	const struct noting *s = (const struct noting *)(const void *)base;

	assert_true(n && n <= QP_MAX_SGE + 1);
	s->note->offset[s->note->calls++ % 4] = offset;
	s->note->n = n;
	memcpy(s->note->to, to, n * sizeof(*to));
	for (size_t i = 0; i < n; i++) {
		memcpy(to[i].iov_base, s->data + offset, to[i].iov_len);
		offset += to[i].iov_len;
	}
	return s->note->err;
}

/*
 * iwarp_random.c - random programs over a stream, and an oracle
 *
 * As test_random.c, with what iWARP has: two connected QPs post random work
 * requests at once, and the oracle knows from the order of posting what every
 * byte of memory and every completion must be at the end. Streams are cut
 * anywhere; CRCs, markers, FPDU sizes and the room between the ends differ from
 * run to run. In some runs the connection ends in the middle, in one of the ways
 * it can.
 */
#include "iwarp_pair.h"
#include "random.h"

#include "base/bytes.h"

#define OPS 60
#define MAX_LEN 20000u

/* How a node's memory is used, the same on both ends. */
enum {
	WRITE_AT = 0, /* the peer writes here */
	WRITE_SIZE = 256 << 10,
	CONST_AT = 512 << 10, /* never written: the peer reads here */
	CONST_SIZE = 256 << 10,
	SRC_AT = 1 << 20, /* what is sent; one slot per operation */
	DST_AT = 2 << 20, /* where reads and receives go */
};

struct op {
	enum ibv_wr_opcode opcode;
	uint32_t len;
	bool signaled, solicited;
	uint8_t *expect; /* reads and sends: expected bytes, len of them */
	uint8_t *dst;
};

struct side {
	struct iw_end *end;
	uint8_t *shadow; /* of the peer's WRITE area, as it must become */
	struct op op[OPS];
	size_t posted, src_used, dst_used;
	size_t recvs_needed, recvs_posted;
	struct op *recv_of[OPS]; /* peer's ops that consume a receive */
	uint8_t *recv_buf[OPS];
};

/* One more operation of side s: decides, updates the model, posts. */
static void post_one(struct sim *sim, struct side *s, struct side *o)
{
	struct sim_node *me = s->end->q->node, *peer = o->end->q->node;
	struct op *op = &s->op[s->posted];
	uint8_t *src = me->mem + SRC_AT + s->src_used;
	struct sim_rng *r = &sim->rng;
	struct ibv_sge sge[3];
	struct ibv_send_wr wr = { .wr_id = s->posted, .sg_list = sge };
	uint32_t off;

	*op = (struct op){ .len = random_len(r, 128, MAX_LEN),
			   .signaled = sim_chance(r, 0.7),
			   .solicited = sim_chance(r, 0.3) };
	/* Who sends to nobody that receives ends the connection. */
	switch (sim_below(r, o->recvs_posted > o->recvs_needed ? 3 : 2)) {
	case 0:
		op->opcode = IBV_WR_RDMA_WRITE;
		off = sim_below(r, WRITE_SIZE - op->len);
		fill(r, src, op->len);
		memcpy(s->shadow + off, src, op->len);
		wr.wr.rdma.remote_addr = (uintptr_t)peer->mem + WRITE_AT + off;
		wr.wr.rdma.rkey = peer->rkey;
		break;
	case 1:
		op->opcode = IBV_WR_RDMA_READ;
		off = sim_below(r, CONST_SIZE - op->len);
		op->expect = peer->mem + CONST_AT + off;
		op->dst = me->mem + DST_AT + s->dst_used;
		s->dst_used += op->len;
		wr.wr.rdma.remote_addr = (uintptr_t)op->expect;
		wr.wr.rdma.rkey = peer->rkey;
		break;
	default:
		op->opcode = IBV_WR_SEND;
		fill(r, src, op->len);
		op->expect = src;
		o->recv_of[o->recvs_needed++] = op;
		break;
	}
	wr.opcode = op->opcode;
	wr.num_sge = op->dst ? 1 : pieces(r, sge, src, op->len, me->lkey);
	if (op->dst)
		sge[0] = (struct ibv_sge){ (uintptr_t)op->dst, op->len,
					   me->lkey };
	wr.send_flags = (op->signaled ? IBV_SEND_SIGNALED : 0u) |
			(op->solicited ? IBV_SEND_SOLICITED : 0u) |
			(sim_chance(r, 0.2) ? IBV_SEND_FENCE : 0u);
	if (!op->dst && op->len <= 64 && sim_chance(r, 0.5))
		wr.send_flags |= IBV_SEND_INLINE;
	CHECK(iwarp_post_send(s->end->qp, &wr) == 0);
	s->src_used += op->len;
	s->posted++;
}

static void post_recv(struct sim *sim, struct side *s)
{
	struct sim_node *me = s->end->q->node;
	struct ibv_sge sge[3];
	struct ibv_recv_wr wr = { .wr_id = s->recvs_posted, .sg_list = sge };
	uint8_t *buf = me->mem + DST_AT + s->dst_used;

	s->dst_used += MAX_LEN;
	s->recv_buf[s->recvs_posted++] = buf;
	wr.num_sge = pieces(&sim->rng, sge, buf, MAX_LEN, me->lkey);
	if (s->end->pair->opts.srq)
		CHECK(qp_rq_post(&me->srq, &wr) == 0);
	else
		CHECK(qp_post_recv(iwarp_qp_base(s->end->qp), &wr) == 0);
}

/* Requests complete once each, in order: some, then, where the connection has
 * ended, all others as flushed. */
static void check_sends(struct side *s, bool cut)
{
	const struct ibv_wc *wc;
	bool flushed = false;
	size_t i = 0;

	while ((wc = sim_poll(s->end->q->send))) {
		flushed |= wc->status != IBV_WC_SUCCESS;
		while (!flushed && i < s->posted && !s->op[i].signaled)
			i++;
		/* Those that need not say so may have been done before. */
		while (flushed && i < s->posted && !s->op[i].signaled &&
		       wc->wr_id != i)
			i++;
		CHECK(i < s->posted && wc->wr_id == i);
		if (flushed)
			CHECK(cut && wc->status == IBV_WC_WR_FLUSH_ERR);
		else if (s->op[i].opcode == IBV_WR_RDMA_READ)
			CHECK(!memcmp(s->op[i].dst, s->op[i].expect,
				      s->op[i].len));
		i++;
	}
	while (i < s->posted && !s->op[i].signaled && !flushed)
		i++;
	CHECK(i == s->posted);
}

static void check_recvs(struct side *s, bool cut)
{
	const struct sim_wcs *w = s->end->q->recv;
	size_t i = 0;

	for (; i < w->n && w->wc[i].status == IBV_WC_SUCCESS; i++) {
		const struct op *op = s->recv_of[i];

		CHECK(i < s->recvs_needed);
		CHECK(w->wc[i].wr_id == i && w->wc[i].byte_len == op->len);
		CHECK(w->wc[i].opcode == IBV_WC_RECV);
		CHECK(w->solicited[i] == op->solicited);
		CHECK(!memcmp(s->recv_buf[i], op->expect, op->len));
	}
	CHECK(cut || i == s->recvs_needed);
	if (cut && s->end->pair->opts.srq) /* its others stay there */
		CHECK(w->n <= i + 1);
	else
		CHECK(w->n == (cut ? s->recvs_posted : i));
	for (; i < w->n; i++)
		CHECK(w->wc[i].wr_id == i &&
		      w->wc[i].status == IBV_WC_WR_FLUSH_ERR);
}

static struct iw_opts random_opts(struct sim_rng *r)
{
	static const uint32_t sizes[] = { IWARP_FPDU_MIN, 256, 1448, 9000,
					  IWARP_FPDU_MAX };
	static const size_t rooms[] = { 0, 1, 100, 5000, 70000 };
	struct iw_opts o = iw_default;

	for (int i = 0; i < 2; i++) {
		o.offer[i].crc = sim_chance(r, 0.3);
		o.offer[i].markers = sim_chance(r, 0.2);
		o.offer[i].ird = 1 + sim_below(r, 5);
		o.offer[i].ord = 1 + sim_below(r, 5);
	}
	o.offer[0].enhanced = sim_chance(r, 0.8);
	o.offer[0].peer_to_peer = sim_chance(r, 0.8);
	if (!o.offer[0].enhanced) {
		o.offer[0].ord = o.offer[1].ird;
		o.offer[1].ord = o.offer[0].ird;
	}
	o.fpdu_max = sizes[sim_below(r, ARRAY_SIZE(sizes))];
	o.room = rooms[sim_below(r, ARRAY_SIZE(rooms))];
	o.sig_all = false;
	o.srq = sim_chance(r, 0.2);
	return o;
}

/* How a run ends. */
enum end { COMPLETE, RESET, CLOSE, TERMINATE, FLIP };

static void flip(struct iw_pair *p, int from, uint8_t *bytes, size_t len)
{
	uint32_t *left = p->user;

	(void)from;
	if (*left && *left <= len)
		bytes[*left - 1] ^= 0x10;
	*left = *left > len ? *left - (uint32_t)len : 0;
}

static void end_now(struct iw_pair *p, enum end how)
{
	struct ibv_qp_attr attr = { .qp_state = how == TERMINATE ?
							IBV_QPS_SQE :
							IBV_QPS_SQD };

	if (how == RESET)
		iw_reset(p);
	else
		CHECK(iwarp_qp_modify(p->end[sim_below(&p->sim->rng, 2)].qp,
				      &attr, IBV_QP_STATE) == 0);
}

static void run(uint64_t seed, enum end how, uint32_t cut)
{
	struct sim_rng choose = { seed * 7 + how };
	struct iw_opts o = random_opts(&choose);
	struct side side[2] = { 0 };
	uint32_t when = sim_below(&choose, 2000), flip_at;
	struct iw_pair *p;
	bool ended = false, done = how == COMPLETE || how == FLIP;

	current_seed = seed;
	o.cut = cut;
	if (cut)
		o.room = 0;
	if (how == FLIP)
		o.offer[0].crc = true;
	p = iw_pair_new(seed, &o);
	for (int i = 0; i < 2; i++) {
		side[i].end = &p->end[i];
		side[i].shadow = calloc(1, WRITE_SIZE);
		fill(&p->sim->rng, p->sim->node[i].mem + CONST_AT, CONST_SIZE);
	}
	if (how == FLIP) {
		flip_at = 1 + sim_below(&choose, 100000);
		p->user = &flip_at;
		p->opts.tap = flip;
	}
	for (uint32_t step = 0; !ended && step < 1000000; step++) {
		struct side *s = &side[sim_below(&p->sim->rng, 2)];
		struct side *other = s == &side[0] ? &side[1] : &side[0];

		if (!done && step == when)
			break;
		ended = p->end[0].ended || p->end[1].ended;
		if (s->posted < OPS && sim_chance(&p->sim->rng, 0.2))
			post_one(p->sim, s, other);
		else if (s->recvs_posted < OPS && sim_chance(&p->sim->rng, 0.2))
			post_recv(p->sim, s);
		else if (!iw_step(p) && s->posted == OPS &&
			 other->posted == OPS && s->recvs_posted == OPS &&
			 other->recvs_posted == OPS)
			break;
	}
	if (!done)
		end_now(p, how);
	iw_run(p);
	ended = p->end[0].ended || p->end[1].ended;
	CHECK(ended == (how != COMPLETE) || how == FLIP);
	for (int i = 0; i < 2; i++) {
		const struct iw_end *e = &p->end[i];

		CHECK(e->ended == ended && e->established <= 1);
		CHECK(iwarp_shut(e->qp) == (!ended       ? IWARP_OPEN :
					    how == RESET ? IWARP_RESET :
							   IWARP_FIN));
		check_sends(&side[i], ended);
		check_recvs(&side[i], ended);
		if (!ended)
			CHECK(!memcmp(side[i].shadow,
				      p->sim->node[!i].mem + WRITE_AT,
				      WRITE_SIZE));
		free(side[i].shadow);
	}
	CHECK(iw_keys_free(p));
	iw_pair_free(p);
}

static void many(enum end how, uint32_t cut, uint64_t base, unsigned n)
{
	uint64_t seed, end;

	for (seeds(base, runs(n), &seed, &end); seed < end; seed++)
		run(seed, how, cut);
}

static void complete(void **state)
{
	(void)state;
	many(COMPLETE, 0, 1000, 100);
}

/* Each piece is one byte, or a few. */
static void cut_small(void **state)
{
	(void)state;
	many(COMPLETE, 1, 2000, 3);
	many(COMPLETE, 7, 3000, 8);
}

static void torn(void **state)
{
	(void)state;
	many(RESET, 0, 4000, 80);
}

static void closed(void **state)
{
	(void)state;
	many(CLOSE, 0, 5000, 80);
}

static void terminated(void **state)
{
	(void)state;
	many(TERMINATE, 0, 6000, 80);
}

/* One bit is wrong, in either direction: with CRCs nothing wrong completes. */
static void flipped(void **state)
{
	(void)state;
	many(FLIP, 0, 7000, 80);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(complete),   cmocka_unit_test(cut_small),
		cmocka_unit_test(torn),       cmocka_unit_test(closed),
		cmocka_unit_test(terminated), cmocka_unit_test(flipped),
	};

	cmocka_set_test_filter(getenv("SIM_TEST"));
	return cmocka_run_group_tests_name("sim_iwarp_random", tests, NULL,
					   NULL);
}

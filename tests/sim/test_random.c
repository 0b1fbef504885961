/*
 * test_random.c - random programs on both ends of a bad network, and an oracle
 *
 * Each run makes two connected QPs post random work requests in both
 * directions at once. The oracle knows, from the order of posting alone, what
 * every byte of memory, every result and every completion must be at the end.
 * SIM_WAY=host, copy, ref or mixed sends the packets within the host.
 */
#include "random.h"

#include "base/bytes.h"

#include <errno.h>

#define OPS 60
#define MAX_LEN 20000u

/* How a node's memory is used, the same on both ends. */
enum {
	WRITE_AT = 0, /* the peer writes here */
	WRITE_SIZE = 256 << 10,
	CONST_AT = 512 << 10, /* never written: the peer reads here */
	CONST_SIZE = 256 << 10,
	ATOMIC_AT = 1 << 20, /* 8 words for atomics */
	SRC_AT = 2 << 20, /* what is sent; one slot per operation */
	DST_AT = 3 << 20, /* where reads and receives go */
};

struct op {
	enum ibv_wr_opcode opcode;
	uint32_t len;
	uint64_t result; /* atomics: expected original value */
	bool signaled;
	uint8_t *expect; /* reads and sends: expected bytes, len of them */
	uint32_t imm;
	uint8_t *dst;
};

struct side {
	struct sim_qp *q;
	struct sim_qp *rq; /* where it receives: q, or XRC's other half */
	uint8_t *shadow; /* of the peer's WRITE area, as it must become */
	uint64_t word[8];
	struct op op[OPS];
	size_t nops, posted;
	size_t src_used, dst_used;
	size_t recvs_needed, recvs_posted;
	struct op
		*recv_of[OPS]; /* peer's ops that consume a receive, in order */
	uint8_t *recv_buf[OPS];
	bool no_atomics;
};

static bool is_fetching(const struct op *op)
{
	return op->opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
	       op->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

/* One more operation of side s: decides, updates the model, posts. */
static void post_one(struct sim *sim, struct side *s, struct side *o)
{
	static const enum ibv_wr_opcode kinds[] = {
		IBV_WR_SEND,
		IBV_WR_SEND_WITH_IMM,
		IBV_WR_RDMA_WRITE,
		IBV_WR_RDMA_WRITE_WITH_IMM,
		IBV_WR_RDMA_READ,
		IBV_WR_ATOMIC_CMP_AND_SWP,
		IBV_WR_ATOMIC_FETCH_AND_ADD,
		IBV_WR_ATOMIC_WRITE,
	};
	struct sim_rng *r = &sim->rng;
	struct sim_node *me = s->q->node, *peer = o->q->node;
	struct op *op = &s->op[s->posted];
	struct ibv_sge sge[3];
	struct ibv_send_wr wr = {
		.wr_id = s->posted,
		.sg_list = sge,
		.qp_type.xrc.remote_srqn = SIM_XRC_SRQN,
	};
	uint8_t *src = me->mem + SRC_AT + s->src_used;
	uint32_t off;
	int err;

	/* The atomics are the last three. */
	*op = (struct op){
		.opcode = kinds[sim_below(r, ARRAY_SIZE(kinds) -
						     (s->no_atomics ? 3 : 0))]
	};
	op->len = random_len(r, 1024, MAX_LEN);
	op->signaled = sim_chance(r, 0.7);
	op->imm = (uint32_t)sim_rand(r);
	wr.opcode = op->opcode;
	wr.send_flags = (op->signaled ? IBV_SEND_SIGNALED : 0u) |
			(sim_chance(r, 0.2) ? IBV_SEND_FENCE : 0u);
	wr.imm_data = op->imm;

	switch (op->opcode) {
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		off = sim_below(r, WRITE_SIZE - op->len);
		fill(r, src, op->len);
		memcpy(s->shadow + off, src, op->len);
		wr.wr.rdma.remote_addr = (uintptr_t)peer->mem + WRITE_AT + off;
		wr.wr.rdma.rkey = peer->rkey;
		break;
	case IBV_WR_RDMA_READ:
		off = sim_below(r, CONST_SIZE - op->len);
		op->expect = peer->mem + CONST_AT + off;
		wr.wr.rdma.remote_addr = (uintptr_t)op->expect;
		wr.wr.rdma.rkey = peer->rkey;
		break;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		op->len = 8;
		off = sim_below(r, 8);
		op->result = s->word[off];
		wr.wr.atomic.remote_addr =
			(uintptr_t)peer->mem + ATOMIC_AT + 8 * off;
		wr.wr.atomic.rkey = peer->rkey;
		if (op->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
			wr.wr.atomic.compare_add = sim_rand(r);
			s->word[off] += wr.wr.atomic.compare_add;
		} else {
			wr.wr.atomic.swap = sim_rand(r);
			wr.wr.atomic.compare_add =
				s->word[off] + (sim_chance(r, 0.3) ? 1 : 0);
			if (wr.wr.atomic.compare_add == s->word[off])
				s->word[off] = wr.wr.atomic.swap;
		}
		break;
	case IBV_WR_ATOMIC_WRITE:
		op->len = 8;
		fill(r, src, 8);
		off = sim_below(r, 8);
		memcpy(&s->word[off], src, 8);
		wr.wr.rdma.remote_addr =
			(uintptr_t)peer->mem + ATOMIC_AT + 8 * off;
		wr.wr.rdma.rkey = peer->rkey;
		break;
	default:
		fill(r, src, op->len);
		op->expect = src;
		if (op->len <= 64 && sim_chance(r, 0.5))
			wr.send_flags |= IBV_SEND_INLINE;
		break;
	}
	if (op->opcode == IBV_WR_RDMA_READ || is_fetching(op)) {
		op->dst = me->mem + DST_AT + s->dst_used;
		s->dst_used += op->len;
	}
	wr.num_sge = pieces(r, sge, op->dst ? op->dst : src, op->len, me->lkey);
	if (op->opcode == IBV_WR_ATOMIC_WRITE) {
		sge[0] = (struct ibv_sge){ (uintptr_t)src, 8, me->lkey };
		wr.num_sge = 1;
	}
	err = sim_post_send(s->q, &wr);
	CHECK(err == 0);
	s->src_used += op->len;
	if (op->opcode == IBV_WR_SEND || op->opcode == IBV_WR_SEND_WITH_IMM ||
	    op->opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
		o->recv_of[o->recvs_needed++] = op;
	s->posted++;
}

static void post_recv(struct sim *sim, struct side *s)
{
	struct sim_node *me = s->q->node;
	struct ibv_sge sge[3];
	struct ibv_recv_wr wr = { .wr_id = s->recvs_posted, .sg_list = sge };
	uint8_t *buf = me->mem + DST_AT + s->dst_used;

	s->dst_used += MAX_LEN;
	s->recv_buf[s->recvs_posted++] = buf;
	wr.num_sge = pieces(&sim->rng, sge, buf, MAX_LEN, me->lkey);
	if (s->rq == s->q)
		CHECK(sim_post_recv(s->q, &wr) == 0);
	else
		CHECK(qp_rq_post(&me->srq, &wr) == 0);
}

static void check_sends(struct side *s)
{
	size_t i = 0;
	const struct ibv_wc *wc;

	while ((wc = sim_poll(s->q->send))) {
		CHECK(wc->status == IBV_WC_SUCCESS);
		while (i < s->posted && !s->op[i].signaled)
			i++;
		CHECK(i < s->posted && wc->wr_id == i);
		i++;
	}
	while (i < s->posted && !s->op[i].signaled)
		i++;
	CHECK(i == s->posted);
	for (i = 0; i < s->posted; i++) {
		struct op *op = &s->op[i];

		if (op->opcode == IBV_WR_RDMA_READ)
			CHECK(!memcmp(op->dst, op->expect, op->len));
		else if (is_fetching(op))
			CHECK(!memcmp(op->dst, &op->result, 8));
	}
}

static void check_recvs(struct side *s)
{
	for (size_t i = 0; i < s->recvs_needed; i++) {
		const struct ibv_wc *wc = sim_poll(s->rq->recv);
		const struct op *op = s->recv_of[i];

		CHECK(wc && wc->status == IBV_WC_SUCCESS && wc->wr_id == i);
		CHECK(wc->byte_len == op->len);
		if (op->opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
			CHECK(wc->opcode == IBV_WC_RECV_RDMA_WITH_IMM);
		} else {
			CHECK(wc->opcode == IBV_WC_RECV);
			CHECK(!memcmp(s->recv_buf[i], op->expect, op->len));
		}
		if (op->opcode != IBV_WR_SEND)
			CHECK(wc->wc_flags & IBV_WC_WITH_IMM &&
			      wc->imm_data == op->imm);
	}
	CHECK(!sim_poll(s->rq->recv));
}

enum how { RC, RC_SUSPENDED, XRC, XRC_MOVING };

/* One end, for a moment or for less than the other one's retries take. */
static void suspend(struct sim *sim)
{
	const int i = (int)sim_below(&sim->rng, 2);

	if (!sim->node[i].away)
		sim_suspend(
			sim, i,
			1 + sim_below(&sim->rng, sim_chance(&sim->rng, 0.5) ?
							 10000 :
							 100000000));
}

static void run_reliable(uint64_t seed, const struct sim_link *link,
			 enum how how)
{
	const bool xrc = how >= XRC;
	struct sim_qp_opts qo = {
		.type = xrc ? IBV_QPT_XRC_SEND : IBV_QPT_RC,
		.cap = { .max_send_wr = OPS,
			 .max_recv_wr = OPS,
			 .max_send_sge = 3,
			 .max_recv_sge = 3,
			 .max_inline_data = 64 },
	};
	struct sim_conn_opts co = sim_conn_default;
	struct sim *sim = sim_new(seed);
	struct side side[2] = { 0 };

	current_seed = seed;
	sim->link = *link;
	sim->unreadable = link->loss;
	if (sim->way[0] == SIM_MIXED || sim->way[1] == SIM_MIXED)
		sim->direct = sim->many = 0.3;
	co.mtu = IBV_MTU_256 + sim_below(&sim->rng, 5);
	co.psn_a = (uint32_t)sim_rand(&sim->rng) & PSN_MASK;
	sim->hold = sim_chance(&sim->rng, 0.5) ? 0.7 : 0;
	sim->hold_ns = 300000;
	co.rd_atomic = (uint8_t)(1 + sim_below(&sim->rng, 8));
	co.dest_rd_atomic = co.rd_atomic;
	co.min_rnr_timer = (uint8_t)(1 + sim_below(&sim->rng, 12));
	for (int i = 0; i < 2; i++) {
		side[i].q = side[i].rq = sim_qp_new(sim, i, &qo);
		side[i].shadow = calloc(1, WRITE_SIZE);
		side[i].no_atomics = how == XRC_MOVING;
		fill(&sim->rng, sim->node[i].mem + CONST_AT, CONST_SIZE);
	}
	if (xrc) {
		qo = (struct sim_qp_opts){ .type = IBV_QPT_XRC_RECV };
		for (int i = 0; i < 2; i++)
			side[i].rq = sim_qp_new(sim, i, &qo);
		sim_connect(side[1].q, side[0].rq, &co);
	}
	sim_connect(side[0].q, side[1].rq, &co);

	for (int step = 0; step < 100000; step++) {
		struct side *s = &side[sim_below(&sim->rng, 2)];
		struct side *o = s == &side[0] ? &side[1] : &side[0];

		if (s->posted < OPS && sim_chance(&sim->rng, 0.6))
			post_one(sim, s, o);
		else if (s->recvs_posted < OPS && sim_chance(&sim->rng, 0.5))
			post_recv(sim, s);
		else
			sim_run(sim, sim_below(&sim->rng, 100000));
		if (how == XRC_MOVING)
			sim_qp_move(s->rq);
		if (how == RC_SUSPENDED && sim_chance(&sim->rng, 0.03))
			suspend(sim);
		if (s->posted == OPS && o->posted == OPS &&
		    s->recvs_posted == OPS && o->recvs_posted == OPS)
			break;
	}
	for (int i = 0; how == XRC_MOVING && i < 200; i++) {
		sim_run(sim, sim_below(&sim->rng, 100000));
		sim_qp_move(side[i % 2].rq);
	}
	sim_run(sim, 1000 * SIM_SEC);
	for (int i = 0; i < 2; i++) {
		check_sends(&side[i]);
		check_recvs(&side[i]);
		CHECK(!memcmp(side[i].shadow, sim->node[!i].mem + WRITE_AT,
			      WRITE_SIZE));
		CHECK(!memcmp(side[i].word, sim->node[!i].mem + ATOMIC_AT,
			      sizeof(side[i].word)));
		free(side[i].shadow);
	}
	sim_free(sim);
}

static void run_rc(uint64_t seed, const struct sim_link *link)
{
	run_reliable(seed, link, RC);
}

static void run_suspended(uint64_t seed, const struct sim_link *link)
{
	run_reliable(seed, link, RC_SUSPENDED);
}

static void run_xrc(uint64_t seed, const struct sim_link *link)
{
	run_reliable(seed, link, XRC);
}

static void run_moving(uint64_t seed, const struct sim_link *link)
{
	run_reliable(seed, link, XRC_MOVING);
}

/* ---- windows: bound, told, used, invalidated, again and again ----------- */

/*
 * The owner binds a window to a random place and sends its key, in one go. The
 * peer writes there, reads it back, and invalidates the key with a send, or
 * tells the owner to. Each key is good for its place and for one round.
 */
static void run_windows(uint64_t seed, const struct sim_link *link)
{
	enum { ROUNDS = 20, LEN = 3000 };
	struct sim_qp_opts qo = {
		.type = IBV_QPT_RC,
		.sig_all = true,
		.cap = { .max_send_wr = 64,
			 .max_recv_wr = 64,
			 .max_send_sge = 1,
			 .max_recv_sge = 1 },
	};
	struct sim *sim = sim_new(seed);
	struct sim_qp *own = sim_qp_new(sim, 0, &qo);
	struct sim_qp *use = sim_qp_new(sim, 1, &qo);
	uint8_t *om = own->node->mem, *um = use->node->mem;
	struct ibv_mr mr = { .lkey = own->node->lkey };
	uint32_t first = sim_mw_new(own->node);
	struct ibv_mw mw = { .handle = keys_slot(&own->node->keys, first) };

	current_seed = seed;
	sim->link = *link;
	sim->unreadable = link->loss;
	sim_connect(own, use, &sim_conn_default);
	for (uint32_t i = 0; i < ROUNDS; i++) {
		uint32_t key = (first & ~0xffu) | ((first + i) & 0xff);
		uint64_t at = (uintptr_t)om + WRITE_AT +
			      sim_below(&sim->rng, WRITE_SIZE - LEN);
		bool remote = sim_chance(&sim->rng, 0.5);
		struct ibv_sge say = { (uintptr_t)om + SRC_AT, 8,
				       own->node->lkey };
		struct ibv_sge hear = { (uintptr_t)um + DST_AT, 8,
					use->node->lkey };
		struct ibv_sge bye = { (uintptr_t)om + DST_AT, 64,
				       own->node->lkey };
		struct ibv_sge data = { (uintptr_t)um + SRC_AT, LEN,
					use->node->lkey };
		struct ibv_sge back = { (uintptr_t)um + CONST_AT, LEN,
					use->node->lkey };
		struct ibv_recv_wr rwr = { .sg_list = &hear, .num_sge = 1 };
		struct ibv_send_wr wr = {
			.opcode = IBV_WR_BIND_MW,
			.bind_mw = { &mw,
				     key,
				     { &mr, at, LEN,
				       IBV_ACCESS_REMOTE_WRITE |
					       IBV_ACCESS_REMOTE_READ } },
		};
		const struct ibv_wc *wc;

		CHECK(sim_post_recv(use, &rwr) == 0);
		rwr.sg_list = &bye;
		CHECK(sim_post_recv(own, &rwr) == 0);
		CHECK(sim_post_send(own, &wr) == 0);
		memcpy(om + SRC_AT, &key, 4);
		wr = (struct ibv_send_wr){ .opcode = IBV_WR_SEND,
					   .sg_list = &say,
					   .num_sge = 1 };
		CHECK(sim_post_send(own, &wr) == 0);
		sim_run(sim, 10 * SIM_SEC);
		wc = sim_poll(use->recv);
		CHECK(wc && wc->status == IBV_WC_SUCCESS);
		CHECK(!memcmp(um + DST_AT, &key, 4));

		fill(&sim->rng, um + SRC_AT, LEN);
		wr = (struct ibv_send_wr){ .opcode = IBV_WR_RDMA_WRITE,
					   .sg_list = &data,
					   .num_sge = 1,
					   .wr.rdma = { at, key } };
		CHECK(sim_post_send(use, &wr) == 0);
		wr = (struct ibv_send_wr){ .opcode = IBV_WR_RDMA_READ,
					   .sg_list = &back,
					   .num_sge = 1,
					   .wr.rdma = { at, key } };
		CHECK(sim_post_send(use, &wr) == 0);
		hear.length = 8;
		/* Fenced: a read of what is invalidated next would be late. */
		wr = (struct ibv_send_wr){
			.opcode = remote ? IBV_WR_SEND_WITH_INV : IBV_WR_SEND,
			.send_flags = IBV_SEND_FENCE,
			.sg_list = &hear,
			.num_sge = 1,
		};
		if (remote)
			wr.invalidate_rkey = key;
		CHECK(sim_post_send(use, &wr) == 0);
		sim_run(sim, 10 * SIM_SEC);
		wc = sim_poll(own->recv);
		CHECK(wc && wc->status == IBV_WC_SUCCESS);
		CHECK(!remote == !(wc->wc_flags & IBV_WC_WITH_INV));
		CHECK(sim_mw_bound(own->node, key) == !remote);
		CHECK(!memcmp((void *)(uintptr_t)at, um + SRC_AT, LEN));
		CHECK(!memcmp(um + CONST_AT, um + SRC_AT, LEN));
		if (!remote) {
			wr = (struct ibv_send_wr){ .opcode = IBV_WR_LOCAL_INV };
			wr.invalidate_rkey = key;
			CHECK(sim_post_send(own, &wr) == 0);
			sim_run(sim, 10 * SIM_SEC);
			CHECK(!sim_mw_bound(own->node, key));
		}
		while ((wc = sim_poll(use->send)))
			CHECK(wc->status == IBV_WC_SUCCESS);
		while ((wc = sim_poll(own->send)))
			CHECK(wc->status == IBV_WC_SUCCESS);
	}
	sim_free(sim);
}

/* ---- unreliable services: what arrives is whole and in order ------------ */

static void run_lossy(uint64_t seed, enum ibv_qp_type type, bool write)
{
	enum { MSGS = 200, TARGET = 2 << 20 };
	struct sim_qp_opts qo = {
		.type = type,
		.cap = { .max_send_wr = 64,
			 .max_recv_wr = MSGS,
			 .max_send_sge = 1,
			 .max_recv_sge = 1 },
	};
	struct sim *sim = sim_new(seed);
	struct sim_qp *a, *b;
	uint32_t last = 0, got = 0, len[MSGS + 1];
	const struct ibv_wc *wc;
	int err;

	current_seed = seed;
	sim->link.loss = 0.1;
	sim->link.dup = 0.05;
	sim->link.corrupt = 0.05;
	sim->link.reorder = type == IBV_QPT_UC ? 0.1 : 0;
	a = sim_qp_new(sim, 0, &qo);
	b = sim_qp_new(sim, 1, &qo);
	if (type == IBV_QPT_UC) {
		sim_connect(a, b, &sim_conn_default);
	} else {
		a->peer = b;
		sim_ud_up(a, 7);
		sim_ud_up(b, 7);
	}
	for (uint32_t i = 0; i < MSGS; i++) {
		struct ibv_sge sge = { (uintptr_t)b->node->mem + i * 8192u,
				       8192, b->node->lkey };
		struct ibv_recv_wr wr = { .wr_id = i,
					  .sg_list = &sge,
					  .num_sge = 1 };

		CHECK(sim_post_recv(b, &wr) == 0);
	}
	for (uint32_t i = 1; i <= MSGS; i++) {
		uint8_t *m = a->node->mem + i * 8192u;
		struct ibv_sge sge = { (uintptr_t)m, 0, a->node->lkey };
		struct ibv_send_wr wr = {
			.wr_id = i,
			.sg_list = &sge,
			.num_sge = 1,
			.opcode = write ? IBV_WR_RDMA_WRITE_WITH_IMM :
					  IBV_WR_SEND_WITH_IMM,
			.imm_data = i,
			.send_flags = IBV_SEND_SIGNALED,
			.wr.ud = { .remote_qpn = roce_qp_num(b->qp),
				   .remote_qkey = 7 },
		};

		len[i] = sge.length =
			1 +
			sim_below(&sim->rng, type == IBV_QPT_UD ? 4000 : 8000);
		memset(m, (int)i, len[i]);
		if (write) {
			wr.wr.rdma.remote_addr =
				(uintptr_t)b->node->mem + TARGET + i * 8192u;
			wr.wr.rdma.rkey = b->node->rkey;
		}
		/* Full when the pace of unacknowledged services holds it back. */
		while ((err = sim_post_send(a, &wr)) == -ENOMEM)
			sim_run(sim, 10000);
		CHECK(err == 0);
		sim_run(sim, sim_below(&sim->rng, 3000));
	}
	sim_run(sim, SIM_SEC);
	for (uint32_t i = 1; i <= MSGS; i++) {
		wc = sim_poll(a->send);
		CHECK(wc && wc->status == IBV_WC_SUCCESS && wc->wr_id == i);
	}
	while ((wc = sim_poll(b->recv))) {
		uint8_t *m = b->node->mem + wc->wr_id * 8192u;
		uint32_t hdr = type == IBV_QPT_UD ? 40 : 0;

		CHECK(wc->status == IBV_WC_SUCCESS);
		CHECK(wc->imm_data >= 1 && wc->imm_data <= MSGS);
		/* What the network puts out of order comes so. */
		CHECK(wc->imm_data >= last || sim->link.reorder > 0);
		CHECK(wc->byte_len == len[wc->imm_data] + hdr);
		/* What is reported written is written, all of it. */
		if (write) {
			CHECK(wc->opcode == IBV_WC_RECV_RDMA_WITH_IMM);
			m = b->node->mem + TARGET + wc->imm_data * 8192u;
		}
		for (uint32_t k = 0; k < len[wc->imm_data]; k++)
			CHECK(m[hdr + k] == (uint8_t)wc->imm_data);
		last = wc->imm_data;
		got++;
	}
	CHECK(got > MSGS / 5 && got < MSGS + MSGS / 4);
	sim_free(sim);
}

/* ---- the runs ---------------------------------------------------------- */

static void many_of(void (*run)(uint64_t seed, const struct sim_link *link),
		    const struct sim_link *link, uint64_t base, unsigned n)
{
	uint64_t seed, end;

	for (seeds(base, n, &seed, &end); seed < end; seed++)
		run(seed, link);
}

static void many(const struct sim_link *link, uint64_t base, unsigned n)
{
	many_of(run_rc, link, base, n);
}

static const struct sim_link good = { .delay_ns = 2000 };

static void rc_clean(void **state)
{
	(void)state;
	many(&good, 1000, runs(30));
}

static void rc_loss(void **state)
{
	struct sim_link l = good;

	(void)state;
	l.loss = 0.05;
	many(&l, 2000, runs(60));
}

static void rc_heavy_loss(void **state)
{
	struct sim_link l = good;

	(void)state;
	l.loss = 0.25;
	/* Seed 3061: a rate of no time, at which the pace stood still. A read of
	 * one seed in some hundreds is lost eight times in a row. */
	many(&l, 3040, runs(30));
}

static void rc_reorder_duplicate(void **state)
{
	struct sim_link l = good;

	(void)state;
	l.dup = 0.1;
	l.reorder = 0.1;
	l.jitter_ns = 30000;
	many(&l, 4000, runs(60));
}

static void rc_everything(void **state)
{
	struct sim_link l = good;

	(void)state;
	l.loss = 0.05;
	l.dup = 0.05;
	l.reorder = 0.05;
	l.jitter_ns = 50000;
	l.corrupt = 0.03;
	l.busy = 0.2;
	many(&l, 5000, runs(100));
}

static void rc_busy_link(void **state)
{
	struct sim_link l = good;

	(void)state;
	l.busy = 0.7;
	many(&l, 6000, runs(30));
}

static const struct sim_link awful = {
	.delay_ns = 2000,
	.loss = 0.05,
	.dup = 0.05,
	.reorder = 0.05,
	.jitter_ns = 50000,
	.corrupt = 0.03,
	.busy = 0.2,
};

static void rc_suspended(void **state)
{
	(void)state;
	many_of(run_suspended, &good, 16000, runs(20));
	many_of(run_suspended, &awful, 17000, runs(40));
}

static void xrc_everything(void **state)
{
	(void)state;
	many_of(run_xrc, &good, 10000, runs(10));
	many_of(run_xrc, &awful, 11000, runs(60));
}

/* The responder goes from one QP to another between messages. */
static void xrc_moves(void **state)
{
	(void)state;
	many_of(run_moving, &good, 14000, runs(10));
	many_of(run_moving, &awful, 15000, runs(60));
}

static void windows(void **state)
{
	(void)state;
	many_of(run_windows, &good, 12000, runs(5));
	many_of(run_windows, &awful, 13000, runs(60));
}

static void uc_never_torn(void **state)
{
	(void)state;
	for (unsigned i = 0; i < runs(20); i++)
		run_lossy(7000 + i, IBV_QPT_UC, false);
}

static void uc_writes(void **state)
{
	(void)state;
	for (unsigned i = 0; i < runs(20); i++)
		run_lossy(9000 + i, IBV_QPT_UC, true);
}

static void ud_never_torn(void **state)
{
	(void)state;
	for (unsigned i = 0; i < runs(20); i++)
		run_lossy(8000 + i, IBV_QPT_UD, false);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rc_clean),
		cmocka_unit_test(rc_loss),
		cmocka_unit_test(rc_heavy_loss),
		cmocka_unit_test(rc_reorder_duplicate),
		cmocka_unit_test(rc_everything),
		cmocka_unit_test(rc_busy_link),
		cmocka_unit_test(rc_suspended),
		cmocka_unit_test(xrc_everything),
		cmocka_unit_test(xrc_moves),
		cmocka_unit_test(windows),
		cmocka_unit_test(uc_never_torn),
		cmocka_unit_test(uc_writes),
		cmocka_unit_test(ud_never_torn),
	};

	cmocka_set_test_filter(getenv("SIM_TEST"));
	return cmocka_run_group_tests_name("sim_random", tests, NULL, NULL);
}

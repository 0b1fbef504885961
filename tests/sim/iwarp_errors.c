/*
 * iwarp_errors.c - what ends a connection, one thing at a time: the Terminate
 * message with its layer, type and code, the completions, and the event
 *
 * A peer that breaks a rule is one whose stream gets FPDUs that it has not sent
 * (iw_inject_ulpdu()), behind those that it has.
 */
#include "iwarp_pair.h"

#include "base/bytes.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define RECV 100u /* bytes in each receive */
#define EVENT(type) (1u << IBV_EVENT_QP_##type)

static struct iw_pair *connected(void)
{
	struct iw_pair *p = iw_pair_new(1, &iw_default);

	iw_run(p);
	assert_int_equal(p->end[1].established, 1);
	return p;
}

static uint64_t addr(const struct iw_end *e, uint32_t off)
{
	return (uintptr_t)e->q->node->mem + off;
}

static int post(struct iw_end *e, enum ibv_wr_opcode op, uint32_t len,
		uint64_t raddr, uint32_t rkey)
{
	struct ibv_sge sge = { addr(e, 4096), len, e->q->node->lkey };
	struct ibv_send_wr wr = { .wr_id = 7,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = op,
				  .send_flags = IBV_SEND_SIGNALED };

	wr.wr.rdma.remote_addr = raddr;
	wr.wr.rdma.rkey = rkey;
	if (op == IBV_WR_SEND_WITH_INV)
		wr.invalidate_rkey = rkey;
	return iwarp_post_send(e->qp, &wr);
}

static void receive(struct iw_end *e, uint64_t wr_id, uint32_t lkey)
{
	struct ibv_sge sge = { addr(e, 8192), RECV, lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id,
				  .sg_list = &sge,
				  .num_sge = 1 };

	assert_int_equal(qp_post_recv(iwarp_qp_base(e->qp), &wr), 0);
}

static void expect(struct sim_wcs *w, enum ibv_wc_status status)
{
	const struct ibv_wc *wc = sim_poll(w);

	assert_non_null(wc);
	assert_int_equal(wc->status, status);
}

/* e has sent that Terminate, its peer has it, and nothing is left. */
static void ended_by(struct iw_end *e, enum rdmap_error error, uint32_t events)
{
	const struct rdmap_terminate *t;
	bool sent;

	iw_run(e->pair);
	t = iwarp_terminated(e->qp, &sent);
	assert_non_null(t);
	assert_true(sent);
	assert_int_equal(t->error, error);
	t = iwarp_terminated(e->peer->qp, &sent);
	assert_non_null(t);
	assert_false(sent);
	assert_int_equal(t->error, error);
	for (int i = 0; i < 2; i++) {
		struct iw_end *end = &e->pair->end[i];

		assert_int_equal(iwarp_qp_base(end->qp)->state, IBV_QPS_ERR);
		assert_int_equal(iwarp_shut(end->qp), IWARP_FIN);
		assert_int_equal(end->ended, 1);
	}
	assert_int_equal(e->q->events, events);
	assert_true(iw_keys_free(e->pair));
	iw_pair_free(e->pair);
}

/* ---- segments that break a rule ---------------------------------------- */

#define V (DDP_VERSION)
#define RV(opcode) (RDMAP_VERSION << 6 | (opcode))

/* clang-format off */
static const struct broken {
	const char *name;
	enum rdmap_error error;
	struct ddp_hdr h;
	uint32_t payload;
	bool named; /* the Terminate has the segment's header */
} broken[] = {
	{ "tagged, DDP version", DDP_E_TAGGED_VERSION,
	  { .tagged = true, .last = true, .version = 2, .ulp = RV(RDMAP_WRITE) },
	  0, false },
	{ "untagged, DDP version", DDP_E_UNTAGGED_VERSION,
	  { .last = true, .version = 0, .ulp = RV(RDMAP_SEND), .msn = 1 },
	  0, false },
	{ "RDMAP version", RDMAP_E_VERSION,
	  { .last = true, .version = V, .ulp = RDMAP_SEND, .msn = 1 },
	  0, true },
	{ "opcode that is none", RDMAP_E_OPCODE,
	  { .last = true, .version = V, .ulp = RV(8), .msn = 1 }, 0, true },
	{ "send, tagged", RDMAP_E_OPCODE,
	  { .tagged = true, .last = true, .version = V, .ulp = RV(RDMAP_SEND) },
	  0, true },
	{ "write, untagged", RDMAP_E_OPCODE,
	  { .last = true, .version = V, .ulp = RV(RDMAP_WRITE), .msn = 1 },
	  4, true },
	{ "send on the queue of reads", RDMAP_E_OPCODE,
	  { .last = true, .version = V, .ulp = RV(RDMAP_SEND), .qn = 1,
	    .msn = 1 }, 4, true },
	{ "response that nobody waits for", RDMAP_E_OPCODE,
	  { .tagged = true, .last = true, .version = V,
	    .ulp = RV(RDMAP_READ_RESPONSE), .stag = 1 }, 4, true },
	{ "queue that is none", DDP_E_QUEUE,
	  { .last = true, .version = V, .ulp = RV(RDMAP_SEND), .qn = 3,
	    .msn = 1 }, 4, true },
	{ "MSN before", DDP_E_MSN,
	  { .last = true, .version = V, .ulp = RV(RDMAP_SEND), .msn = 0 },
	  4, true },
	{ "MSN ahead", DDP_E_MSN,
	  { .last = true, .version = V, .ulp = RV(RDMAP_SEND), .msn = 2 },
	  4, true },
	{ "MSN of reads", DDP_E_MSN,
	  { .last = true, .version = V, .ulp = RV(RDMAP_READ_REQUEST), .qn = 1,
	    .msn = 2 }, RDMAP_READ_LEN, true },
	{ "offset", DDP_E_OFFSET,
	  { .last = true, .version = V, .ulp = RV(RDMAP_SEND), .msn = 1,
	    .mo = 4 }, 4, true },
	{ "offset of a read", DDP_E_OFFSET,
	  { .last = true, .version = V, .ulp = RV(RDMAP_READ_REQUEST), .qn = 1,
	    .msn = 1, .mo = 4 }, RDMAP_READ_LEN, true },
	{ "read request, too short", RDMAP_E_THIS_STREAM,
	  { .last = true, .version = V, .ulp = RV(RDMAP_READ_REQUEST), .qn = 1,
	    .msn = 1 }, RDMAP_READ_LEN - 1, false },
	{ "read request, in parts", RDMAP_E_THIS_STREAM,
	  { .version = V, .ulp = RV(RDMAP_READ_REQUEST), .qn = 1, .msn = 1 },
	  RDMAP_READ_LEN, false },
};
/* clang-format on */

static void inject(struct iw_end *e, const struct ddp_hdr *h, uint32_t payload)
{
	uint8_t *u = calloc(1, DDP_HDR_MAX + payload);
	size_t n = ddp_encode(h, u);

	iw_inject_ulpdu(e, u, n + payload);
	free(u);
}

static void rules(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(broken); i++) {
		const struct broken *b = &broken[i];
		struct iw_pair *p = connected();
		struct iw_end *e = &p->end[1];
		const struct rdmap_terminate *t;
		bool sent;

		print_message("%s\n", b->name);
		receive(e, 3, e->q->node->lkey);
		inject(e, &b->h, b->payload);
		iw_run(p);
		t = iwarp_terminated(p->end[0].qp, &sent);
		assert_non_null(t);
		assert_int_equal(t->has_ddp, b->named);
		if (b->named)
			assert_memory_equal(&t->ddp, &b->h, sizeof(b->h));
		expect(e->q->recv, IBV_WC_WR_FLUSH_ERR);
		ended_by(e, b->error, EVENT(FATAL));
	}
}

/* An FPDU whose length is less than that of its header. */
static void too_short(void **state)
{
	(void)state;
	for (uint32_t n = 0; n < DDP_UNTAGGED_LEN; n++) {
		const uint8_t u[DDP_UNTAGGED_LEN] = { 0x41, 0x43 };
		struct iw_pair *p = connected();

		iw_inject_ulpdu(&p->end[1], u, n);
		/* What has no header says that it is tagged, or not, by its
		 * pad. */
		ended_by(&p->end[1], RDMAP_E_THIS_STREAM, EVENT(FATAL));
	}
}

/* ---- sends ------------------------------------------------------------- */

static void no_receive(void **state)
{
	struct iw_pair *p = connected();

	(void)state;
	assert_int_equal(post(&p->end[0], IBV_WR_SEND, 10, 0, 0), 0);
	iw_run(p);
	/* It has left, so it is a success here, as with every RNIC. */
	expect(p->end[0].q->send, IBV_WC_SUCCESS);
	assert_int_equal(p->end[0].q->events, EVENT(FATAL));
	assert_int_equal(iwarp_qp_stats(p->end[1].qp)->no_recv, 1);
	ended_by(&p->end[1], DDP_E_NO_BUFFER, EVENT(FATAL));
}

static void too_long(void **state)
{
	struct iw_pair *p = connected();
	struct iw_end *e = &p->end[1];

	(void)state;
	receive(e, 1, e->q->node->lkey);
	receive(e, 2, e->q->node->lkey);
	assert_int_equal(post(&p->end[0], IBV_WR_SEND, RECV, 0, 0), 0);
	assert_int_equal(post(&p->end[0], IBV_WR_SEND, RECV + 1, 0, 0), 0);
	receive(e, 3, e->q->node->lkey);
	iw_run(p);
	expect(e->q->recv, IBV_WC_SUCCESS);
	expect(e->q->recv, IBV_WC_LOC_LEN_ERR);
	expect(e->q->recv, IBV_WC_WR_FLUSH_ERR);
	ended_by(e, DDP_E_TOO_LONG, 0);
}

/* Too long by its second segment only. */
static void too_long_later(void **state)
{
	struct iw_pair *p = connected();
	struct iw_end *e = &p->end[1];
	struct ddp_hdr h = { .version = V, .ulp = RV(RDMAP_SEND), .msn = 1 };

	(void)state;
	receive(e, 1, e->q->node->lkey);
	inject(e, &h, RECV - 1);
	h.mo = RECV - 1;
	inject(e, &h, 2);
	iw_run(p);
	expect(e->q->recv, IBV_WC_LOC_LEN_ERR);
	ended_by(e, DDP_E_TOO_LONG, 0);
}

static void mixed(void **state)
{
	struct iw_pair *p = connected();
	struct iw_end *e = &p->end[1];
	struct ddp_hdr h = { .version = V, .ulp = RV(RDMAP_SEND), .msn = 1 };

	(void)state;
	receive(e, 1, e->q->node->lkey);
	inject(e, &h, 10);
	h.ulp = RV(RDMAP_SEND_SE);
	h.mo = 10;
	inject(e, &h, 10);
	iw_run(p);
	expect(e->q->recv, IBV_WC_WR_FLUSH_ERR);
	ended_by(e, RDMAP_E_OPCODE, EVENT(FATAL));
}

static void receive_key(void **state)
{
	struct iw_pair *p = connected();
	struct iw_end *e = &p->end[1];

	(void)state;
	receive(e, 1, e->q->node->lkey ^ 1);
	assert_int_equal(post(&p->end[0], IBV_WR_SEND, 10, 0, 0), 0);
	iw_run(p);
	expect(e->q->recv, IBV_WC_LOC_PROT_ERR);
	ended_by(e, DDP_E_CATASTROPHIC, 0);
}

static void invalidate(void **state)
{
	struct iw_pair *p = connected();
	struct iw_end *e = &p->end[1];

	(void)state;
	/* A region's key is not one that a peer may invalidate. */
	receive(e, 1, e->q->node->lkey);
	assert_int_equal(
		post(&p->end[0], IBV_WR_SEND_WITH_INV, 10, 0, e->q->node->rkey),
		0);
	iw_run(p);
	expect(e->q->recv, IBV_WC_REM_INV_REQ_ERR);
	ended_by(e, RDMAP_E_INVALIDATE, 0);
}

/* ---- remote memory ----------------------------------------------------- */

/* What is wrong with a key, or with what is asked of it. */
enum wrong { NO_KEY, BOUNDS, RIGHTS, QP_RIGHTS, OTHER_PD, OTHER_QP, WRAP, ALL };

static uint32_t key_of(struct iw_end *e, enum wrong w, uint64_t *va)
{
	struct sim_node *n = e->q->node;
	struct key_entry k = {
		.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			  IBV_ACCESS_REMOTE_READ,
		.pd = 1,
		.kind = KEY_MR,
		.iova = (uintptr_t)n->mem,
		.addr = (uintptr_t)n->mem,
		.length = 10000,
	};

	*va = k.iova + 100;
	if (w == RIGHTS)
		k.access = IBV_ACCESS_LOCAL_WRITE;
	else if (w == OTHER_PD)
		k.pd = 2;
	else if (w == OTHER_QP)
		k.kind = KEY_MW2; /* of QP 0 */
	else if (w == BOUNDS)
		*va = k.iova + 10000 - 9;
	else if (w == WRAP)
		*va = UINT64_MAX - 5;
	return atomic_load(&n->keys.entry[keys_add(&n->keys, &k)].rkey) ^
	       (w == NO_KEY ? 0x1000 : 0);
}

static struct iw_pair *with_rights(bool rights)
{
	struct iw_opts o = iw_default;
	struct iw_pair *p;

	if (!rights)
		o.access = 0;
	p = iw_pair_new(2, &o);
	iw_run(p);
	return p;
}

static void writes(void **state)
{
	static const enum rdmap_error errors[ALL] = {
		[NO_KEY] = DDP_E_STAG,     [BOUNDS] = DDP_E_BOUNDS,
		[RIGHTS] = RDMAP_E_ACCESS, [QP_RIGHTS] = RDMAP_E_ACCESS,
		[OTHER_PD] = DDP_E_STREAM, [OTHER_QP] = DDP_E_STREAM,
		[WRAP] = DDP_E_WRAP,
	};

	(void)state;
	for (enum wrong w = NO_KEY; w < ALL; w++) {
		struct iw_pair *p = with_rights(w != QP_RIGHTS);
		struct iw_end *e = &p->end[1];
		uint8_t *mem = e->q->node->mem;
		uint64_t va;
		uint32_t rkey = key_of(e, w, &va);

		memset(mem, 0x11, 20000);
		assert_int_equal(
			post(&p->end[0], IBV_WR_RDMA_WRITE, 10, va, rkey), 0);
		iw_run(p);
		for (int i = 0; i < 20000; i++)
			assert_int_equal(mem[i], 0x11);
		expect(p->end[0].q->send, IBV_WC_SUCCESS);
		assert_int_equal(iwarp_qp_stats(e->qp)->access_tx, 1);
		assert_int_equal(p->end[0].q->events, EVENT(FATAL));
		ended_by(e, errors[w], EVENT(ACCESS_ERR));
	}
}

static void reads(void **state)
{
	static const enum rdmap_error errors[ALL] = {
		[NO_KEY] = RDMAP_E_STAG,     [BOUNDS] = RDMAP_E_BOUNDS,
		[RIGHTS] = RDMAP_E_ACCESS,   [QP_RIGHTS] = RDMAP_E_ACCESS,
		[OTHER_PD] = RDMAP_E_STREAM, [OTHER_QP] = RDMAP_E_STREAM,
		[WRAP] = RDMAP_E_WRAP,
	};

	(void)state;
	for (enum wrong w = NO_KEY; w < ALL; w++) {
		struct iw_pair *p = with_rights(w != QP_RIGHTS);
		struct iw_end *e = &p->end[1];
		const struct rdmap_terminate *t;
		bool sent;
		uint64_t va;
		uint32_t rkey = key_of(e, w, &va);

		/* One that is right is answered, and what is behind the one
		 * that is not is flushed. */
		assert_int_equal(post(&p->end[0], IBV_WR_RDMA_READ, 10,
				      addr(e, 0), e->q->node->rkey),
				 0);
		assert_int_equal(
			post(&p->end[0], IBV_WR_RDMA_READ, 10, va, rkey), 0);
		assert_int_equal(post(&p->end[0], IBV_WR_RDMA_READ, 10,
				      addr(e, 0), e->q->node->rkey),
				 0);
		iw_run(p);
		if (w != QP_RIGHTS)
			expect(p->end[0].q->send, IBV_WC_SUCCESS);
		expect(p->end[0].q->send, IBV_WC_REM_ACCESS_ERR);
		expect(p->end[0].q->send, IBV_WC_WR_FLUSH_ERR);
		/* The error is in the completion. */
		assert_int_equal(p->end[0].q->events, 0);
		t = iwarp_terminated(p->end[0].qp, &sent);
		assert_true(t->has_ddp && t->has_read);
		if (w != QP_RIGHTS)
			assert_int_equal(t->read.src_stag, rkey);
		ended_by(e, errors[w], EVENT(ACCESS_ERR));
	}
}

/* Nothing is looked at where there are no bytes (RFC 5040 5.1). */
static void no_bytes(void **state)
{
	struct iw_pair *p = connected();
	struct iw_end *e = &p->end[1];

	(void)state;
	receive(e, 1, 0);
	assert_int_equal(post(&p->end[0], IBV_WR_RDMA_WRITE, 0, 1, 2), 0);
	assert_int_equal(post(&p->end[0], IBV_WR_RDMA_READ, 0, 1, 2), 0);
	assert_int_equal(post(&p->end[0], IBV_WR_SEND, 0, 0, 0), 0);
	iw_run(p);
	for (int i = 0; i < 3; i++)
		expect(p->end[0].q->send, IBV_WC_SUCCESS);
	expect(e->q->recv, IBV_WC_SUCCESS);
	iw_pair_free(p);
}

/* More reads than was agreed on. */
static void too_many_reads(void **state)
{
	const struct rdmap_read read = { .sink_stag = 1, .src_stag = 1 };
	struct iw_pair *p = connected();
	struct iw_end *e = &p->end[1];
	uint8_t u[DDP_UNTAGGED_LEN + RDMAP_READ_LEN];
	struct ddp_hdr h = { .last = true,
			     .version = V,
			     .ulp = RV(RDMAP_READ_REQUEST),
			     .qn = 1 };

	(void)state;
	for (uint32_t i = 0; i < 5; i++) {
		h.msn = 1 + i;
		rdmap_read_encode(&read, u + ddp_encode(&h, u));
		iw_inject_ulpdu(e, u, sizeof(u));
	}
	/* All of them at once, before the first is answered. */
	while (e->in.len) {
		uint8_t b[1024];
		size_t n = 0;

		for (; e->in.len && n < sizeof(b); n++, e->in.len--)
			b[n] = e->in.buf[e->in.head++ % IW_PIPE];
		iwarp_rx(e->qp, b, n);
	}
	ended_by(e, DDP_E_NO_BUFFER, EVENT(FATAL));
}

/* ---- responses that are not those of the read -------------------------- */

static void responses(void **state)
{
	(void)state;
	for (int i = 0; i < 6; i++) {
		struct iw_pair *p = connected();
		struct iw_end *a = &p->end[0];
		struct ddp_hdr h = { .tagged = true,
				     .last = true,
				     .version = V,
				     .ulp = RV(RDMAP_READ_RESPONSE),
				     .stag = a->q->node->lkey,
				     .to = addr(a, 4096) };
		struct iwarp_batch b;
		uint32_t len = 10;

		assert_int_equal(post(a, IBV_WR_RDMA_READ, 10,
				      addr(&p->end[1], 0),
				      p->end[1].q->node->rkey),
				 0);
		/* The request leaves, and gets lost. */
		iwarp_tx(a->qp, &b, 1000);
		iwarp_tx_done(a->qp, &b, b.bytes);
		if (i == 0)
			h.stag ^= 1;
		else if (i == 1)
			h.to++;
		else if (i == 2)
			len = 9;
		else if (i == 3)
			len = 11;
		else if (i == 4)
			h.last = false;
		else
			h.to = 0;
		inject(a, &h, len);
		iw_run(p);
		expect(a->q->send, IBV_WC_WR_FLUSH_ERR);
		ended_by(a, i ? DDP_E_BOUNDS : DDP_E_STAG, EVENT(FATAL));
	}
}

/* A response in the middle of a write. */
static void mixed_tagged(void **state)
{
	struct iw_pair *p = connected();
	struct iw_end *a = &p->end[0];
	struct ddp_hdr h = { .tagged = true,
			     .version = V,
			     .ulp = RV(RDMAP_WRITE),
			     .stag = a->q->node->rkey,
			     .to = addr(a, 0) };
	struct iwarp_batch b;

	(void)state;
	assert_int_equal(post(a, IBV_WR_RDMA_READ, 10, addr(&p->end[1], 0),
			      p->end[1].q->node->rkey),
			 0);
	iwarp_tx(a->qp, &b, 1000);
	iwarp_tx_done(a->qp, &b, b.bytes);
	inject(a, &h, 8);
	h = (struct ddp_hdr){ .tagged = true,
			      .last = true,
			      .version = V,
			      .ulp = RV(RDMAP_READ_RESPONSE),
			      .stag = a->q->node->lkey,
			      .to = addr(a, 4096) };
	inject(a, &h, 10);
	ended_by(a, RDMAP_E_OPCODE, EVENT(FATAL));
}

/* The read's memory has been deregistered, once its request had left. */
static void read_sink(void **state)
{
	struct iw_pair *p = connected();
	struct iw_end *a = &p->end[0];
	const struct key_entry k = {
		.access = IBV_ACCESS_LOCAL_WRITE,
		.pd = 1,
		.kind = KEY_MR,
		.iova = addr(a, 0),
		.addr = addr(a, 0),
		.length = 4096,
	};
	const uint32_t slot = (uint32_t)keys_add(&a->q->node->keys, &k);
	struct ibv_sge sge = {
		k.iova, 100, atomic_load(&a->q->node->keys.entry[slot].lkey)
	};
	struct ibv_send_wr wr = { .wr_id = 7,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_RDMA_READ };
	struct iwarp_batch b;
	struct ddp_hdr h = { .tagged = true,
			     .last = true,
			     .version = V,
			     .ulp = RV(RDMAP_READ_RESPONSE),
			     .stag = sge.lkey,
			     .to = sge.addr };

	(void)state;
	wr.wr.rdma.remote_addr = addr(&p->end[1], 0);
	wr.wr.rdma.rkey = p->end[1].q->node->rkey;
	assert_int_equal(iwarp_post_send(a->qp, &wr), 0);
	iwarp_tx(a->qp, &b, 1000);
	iwarp_tx_done(a->qp, &b, b.bytes);
	keys_kill(&a->q->node->keys, slot);
	inject(a, &h, 100);
	iw_run(p);
	expect(a->q->send, IBV_WC_LOC_PROT_ERR);
	ended_by(a, DDP_E_CATASTROPHIC, 0);
}

/* ---- local errors ------------------------------------------------------ */

static void local_key(void **state)
{
	struct iw_pair *p = connected();
	struct iw_end *a = &p->end[0];
	struct ibv_sge sge = { addr(a, 0), 10, a->q->node->lkey ^ 1 };
	struct ibv_send_wr wr = {
		.wr_id = 7, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND
	};

	(void)state;
	/* What was posted before it is sent, a read answered; what is behind it
	 * is flushed. */
	receive(&p->end[1], 1, p->end[1].q->node->lkey);
	assert_int_equal(post(a, IBV_WR_RDMA_READ, 5000, addr(&p->end[1], 0),
			      p->end[1].q->node->rkey),
			 0);
	assert_int_equal(post(a, IBV_WR_SEND, 10, 0, 0), 0);
	assert_int_equal(iwarp_post_send(a->qp, &wr), 0);
	assert_int_equal(post(a, IBV_WR_SEND, 10, 0, 0), 0);
	iw_run(p);
	expect(a->q->send, IBV_WC_SUCCESS);
	expect(a->q->send, IBV_WC_SUCCESS);
	expect(a->q->send, IBV_WC_LOC_PROT_ERR);
	expect(a->q->send, IBV_WC_WR_FLUSH_ERR);
	expect(p->end[1].q->recv, IBV_WC_SUCCESS);
	ended_by(a, RDMAP_E_CATASTROPHIC, 0);
}

/* All parts of a message have to be there before its first one leaves. */
static void local_key_later(void **state)
{
	struct iw_pair *p = connected();
	struct iw_end *a = &p->end[0];
	struct ibv_sge sge[2] = { { addr(a, 0), 5000, a->q->node->lkey },
				  { addr(a, 0), 10, a->q->node->lkey ^ 1 } };
	struct ibv_send_wr wr = { .sg_list = sge,
				  .num_sge = 2,
				  .opcode = IBV_WR_RDMA_WRITE };

	(void)state;
	memset(a->q->node->mem, 0x11, 5000);
	wr.wr.rdma.remote_addr = addr(&p->end[1], 0);
	wr.wr.rdma.rkey = p->end[1].q->node->rkey;
	assert_int_equal(iwarp_post_send(a->qp, &wr), 0);
	iw_run(p);
	expect(a->q->send, IBV_WC_LOC_PROT_ERR);
	for (int i = 0; i < 5000; i++)
		assert_int_equal(p->end[1].q->node->mem[i], 0);
	ended_by(a, RDMAP_E_CATASTROPHIC, 0);
}

static void local_read_key(void **state)
{
	struct iw_pair *p = connected();
	struct iw_end *a = &p->end[0];
	struct ibv_sge sge = { addr(a, 0), 10, a->q->node->lkey ^ 1 };
	struct ibv_send_wr wr = { .wr_id = 7,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_RDMA_READ };

	(void)state;
	assert_int_equal(iwarp_post_send(a->qp, &wr), 0);
	iw_run(p);
	expect(a->q->send, IBV_WC_LOC_PROT_ERR);
	ended_by(a, RDMAP_E_CATASTROPHIC, 0);
}

static int full(struct qp *qp, void *cq, const struct ibv_wc *wc,
		bool solicited)
{
	struct sim_wcs *w = cq;

	(void)solicited;
	(void)qp;
	if (w->n == 1 && wc->status == IBV_WC_SUCCESS)
		return -ENOSPC;
	w->wc[w->n++] = *wc;
	return 0;
}

static void full_cq(void **state)
{
	(void)state;
	for (int receives = 0; receives < 2; receives++) {
		struct iw_pair *p = connected();
		struct iw_end *e = &p->end[receives];

		e->env.base.complete = full;
		for (int i = 0; i < 3; i++) {
			receive(&p->end[1], 1, p->end[1].q->node->lkey);
			assert_int_equal(
				post(&p->end[0], IBV_WR_SEND, 10, 0, 0), 0);
		}
		ended_by(e, RDMAP_E_CATASTROPHIC, 0);
	}
}

/* ---- MPA --------------------------------------------------------------- */

static void crc(void **state)
{
	const uint8_t fpdu[] = { 0, 14, 0xc1, 0x40, 0, 0, 0, 0, 0, 0,
				 0, 0,  0,    0,    0, 0, 1, 2, 3, 4 };
	struct iw_pair *p = connected();

	(void)state;
	iw_inject(&p->end[1], fpdu, sizeof(fpdu));
	iw_run(p);
	assert_int_equal(iwarp_qp_stats(p->end[1].qp)->crc_errors, 1);
	ended_by(&p->end[1], MPA_E_CRC, EVENT(FATAL));
}

static void marker(void **state)
{
	struct ddp_hdr h = { .tagged = true,
			     .last = true,
			     .version = V,
			     .ulp = RV(RDMAP_WRITE) };
	uint8_t fpdu[512] = { 0x01, 0xf8 };
	const uint8_t wrong[] = { 0, 0, 1, 0xf0 }; /* 0x1e8 is right */
	struct iw_opts o = iw_default;
	struct iw_pair *p;

	(void)state;
	o.offer[1].markers = true;
	o.offer[0].crc = o.offer[1].crc = false;
	p = iw_pair_new(3, &o);
	iw_run(p);
	assert_int_equal(p->end[1].established, 1);
	/* Before it: a marker, and a write of 20 bytes. */
	h.stag = p->end[1].q->node->rkey;
	h.to = addr(&p->end[1], 0);
	ddp_encode(&h, fpdu + MPA_LEN_LEN);
	iw_inject(&p->end[1], fpdu, 512 - 24);
	iw_inject(&p->end[1], wrong, sizeof(wrong));
	ended_by(&p->end[1], MPA_E_MARKER, EVENT(FATAL));
}

static void setup(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		struct iw_pair *p = connected();

		iwarp_fail_setup(p->end[0].qp,
				 i ? IWARP_SETUP_RTR : IWARP_SETUP_IRD);
		ended_by(&p->end[0], i ? MPA_E_RTR : MPA_E_IRD, 0);
	}
}

/* ---- Terminate messages that come in ----------------------------------- */

static void terminate_in(void **state)
{
	const struct ddp_hdr h = { .last = true,
				   .version = V,
				   .ulp = RV(RDMAP_TERMINATE),
				   .qn = 2,
				   .msn = 1 };
	uint8_t u[DDP_HDR_MAX + RDMAP_TERMINATE_MAX + 200] = { 0 };

	(void)state;
	/* Cut, whole, and with more than it should have. */
	for (size_t n = 0; n <= RDMAP_TERMINATE_MAX + 200; n += 7) {
		struct rdmap_terminate t = { .error = DDP_E_BOUNDS,
					     .has_ddp = true };
		struct iw_pair *p = connected();
		struct iw_end *e = &p->end[1];
		const struct rdmap_terminate *got;
		size_t at = ddp_encode(&h, u);
		bool sent;

		receive(e, 1, e->q->node->lkey);
		rdmap_terminate_encode(&t, u + at);
		iw_inject_ulpdu(e, u, at + n);
		iw_run(p);
		got = iwarp_terminated(e->qp, &sent);
		assert_true(got && !sent);
		assert_int_equal(got->error,
				 n < 4 ? RDMAP_E_UNSPECIFIED : DDP_E_BOUNDS);
		expect(e->q->recv, IBV_WC_WR_FLUSH_ERR);
		assert_int_equal(e->q->events, EVENT(FATAL));
		/* There is no answer but the end of the stream. */
		assert_null(iwarp_terminated(p->end[0].qp, &sent));
		assert_int_equal(iwarp_shut(e->qp), IWARP_FIN);
		iw_pair_free(p);
	}
}

/* siw's of a refused read: with the size in place of the MSN. */
static void quirk_siw_names_read_by_size(void **state)
{
	const struct ddp_hdr h = { .last = true,
				   .version = V,
				   .ulp = RV(RDMAP_TERMINATE),
				   .qn = 2,
				   .msn = 1 };
	uint8_t u[DDP_HDR_MAX + RDMAP_TERMINATE_MAX];
	struct iw_pair *p = connected();
	struct iw_end *a = &p->end[0];
	const uint32_t rkey = p->end[1].q->node->rkey;
	struct rdmap_terminate t = {
		.error = RDMAP_E_ACCESS,
		.has_ddp = true,
		.has_read = true,
		.ddp = { .last = true,
			 .version = V,
			 .ulp = RV(RDMAP_READ_REQUEST),
			 .qn = 1 },
		.read = { .sink_stag = a->q->node->lkey,
			  .sink_to = addr(a, 4096),
			  .src_stag = rkey,
			  .src_to = addr(&p->end[1], 0) },
	};
	struct iwarp_batch b;
	size_t at = ddp_encode(&h, u);

	(void)state;
	/* The size of the second one is the MSN of the first. */
	for (uint32_t len = 2; len; len--)
		assert_int_equal(
			post(a, IBV_WR_RDMA_READ, len, t.read.src_to, rkey), 0);
	iwarp_tx(a->qp, &b, 1000);
	iwarp_tx_done(a->qp, &b, b.bytes);
	t.ddp.msn = t.read.size = 1;
	at += rdmap_terminate_encode(&t, u + at);
	iw_inject_ulpdu(a, u, at);
	iw_run(p);
	expect(a->q->send, IBV_WC_WR_FLUSH_ERR);
	expect(a->q->send, IBV_WC_REM_ACCESS_ERR);
	assert_int_equal(a->q->events, 0);
	iw_pair_free(p);
}

/* In the middle of a message, whose FPDU is completed first. */
static void terminate_in_the_middle(void **state)
{
	struct iw_opts o = iw_default;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_SQE };
	struct iw_pair *p;

	(void)state;
	o.fpdu_max = 9000;
	o.room = 1000;
	p = iw_pair_new(4, &o);
	iw_run(p);
	assert_int_equal(post(&p->end[0], IBV_WR_RDMA_WRITE, 100000,
			      addr(&p->end[1], 1 << 20),
			      p->end[1].q->node->rkey),
			 0);
	while (p->end[1].in.len < 100)
		iw_step(p);
	assert_int_equal(iwarp_qp_modify(p->end[0].qp, &attr, IBV_QP_STATE), 0);
	assert_int_equal(iwarp_shut(p->end[0].qp), IWARP_DRAIN);
	/* The program may do with its memory what it wants. */
	expect(p->end[0].q->send, IBV_WC_WR_FLUSH_ERR);
	memset(p->sim->node[0].mem + 4096, 0xee, 100000);
	iw_run(p);
	for (int i = 0; i < 100000; i++)
		assert_int_equal(p->sim->node[1].mem[(1 << 20) + i], 0);
	ended_by(&p->end[0], RDMAP_E_CATASTROPHIC, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rules),
		cmocka_unit_test(too_short),
		cmocka_unit_test(no_receive),
		cmocka_unit_test(too_long),
		cmocka_unit_test(too_long_later),
		cmocka_unit_test(mixed),
		cmocka_unit_test(receive_key),
		cmocka_unit_test(invalidate),
		cmocka_unit_test(writes),
		cmocka_unit_test(reads),
		cmocka_unit_test(no_bytes),
		cmocka_unit_test(too_many_reads),
		cmocka_unit_test(responses),
		cmocka_unit_test(mixed_tagged),
		cmocka_unit_test(read_sink),
		cmocka_unit_test(local_key),
		cmocka_unit_test(local_key_later),
		cmocka_unit_test(local_read_key),
		cmocka_unit_test(full_cq),
		cmocka_unit_test(crc),
		cmocka_unit_test(marker),
		cmocka_unit_test(setup),
		cmocka_unit_test(terminate_in),
		cmocka_unit_test(quirk_siw_names_read_by_size),
		cmocka_unit_test(terminate_in_the_middle),
	};

	cmocka_set_test_filter(getenv("SIM_TEST"));
	return cmocka_run_group_tests_name("sim_iwarp_errors", tests, NULL,
					   NULL);
}

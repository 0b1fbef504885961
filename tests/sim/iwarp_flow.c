/*
 * iwarp_flow.c - what leaves when, in which order it completes, what may be
 * posted, and memory that goes away in the middle
 */
#include "iwarp_pair.h"

#include "base/bytes.h"
#include "base/store_tail.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define READ_FPDU (2u + 18 + 28 + 4) /* bytes of a request */
#define BIG 100000u

static uint64_t addr(const struct iw_end *e, uint32_t off)
{
	return (uintptr_t)e->q->node->mem + off;
}

static struct iw_pair *connected(const struct iw_opts *o)
{
	struct iw_pair *p = iw_pair_new(1, o);

	iw_run(p);
	return p;
}

static int post_sge(struct iw_end *e, enum ibv_wr_opcode op,
		    const struct ibv_sge *sge, unsigned flags)
{
	struct ibv_send_wr wr = { .wr_id = e->q->send->n,
				  .sg_list = (struct ibv_sge *)(uintptr_t)sge,
				  .num_sge = 1,
				  .opcode = op,
				  .send_flags = IBV_SEND_SIGNALED | flags };

	wr.wr.rdma.remote_addr = addr(e->peer, 1 << 20);
	wr.wr.rdma.rkey = e->peer->q->node->rkey;
	return iwarp_post_send(e->qp, &wr);
}

static int post(struct iw_end *e, enum ibv_wr_opcode op, uint32_t len,
		unsigned flags)
{
	const struct ibv_sge sge = { addr(e, 2 << 20), len, e->q->node->lkey };

	return post_sge(e, op, &sge, flags);
}

static void receive(struct iw_end *e, uint32_t len)
{
	struct ibv_sge sge = { addr(e, 3 << 20), len, e->q->node->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 };

	assert_int_equal(qp_post_recv(iwarp_qp_base(e->qp), &wr), 0);
}

/* All that e has to send goes into the stream, which nobody reads. */
static size_t send_all(struct iw_end *e)
{
	const size_t before = e->peer->in.len;

	while (iwarp_tx_ready(e->qp)) {
		struct iwarp_batch b;

		iwarp_tx(e->qp, &b, 65536);
		for (size_t i = 0; i < b.data.n; i++)
			iw_inject(e->peer, b.data.iov[i].iov_base,
				  b.data.iov[i].iov_len);
		iwarp_tx_done(e->qp, &b, b.bytes);
	}
	return e->peer->in.len - before;
}

static void expect(struct sim_wcs *w, enum ibv_wc_status status,
		   enum ibv_wc_opcode opcode)
{
	const struct ibv_wc *wc = sim_poll(w);

	assert_non_null(wc);
	assert_int_equal(wc->status, status);
	assert_int_equal(wc->opcode, opcode);
}

/* ---- order ------------------------------------------------------------- */

/* A write that has left completes behind the read before it. */
static void in_order(void **state)
{
	struct iw_pair *p = connected(&iw_default);
	struct iw_end *a = &p->end[0];

	(void)state;
	assert_int_equal(post(a, IBV_WR_RDMA_READ, 100, 0), 0);
	assert_int_equal(post(a, IBV_WR_RDMA_WRITE, 100, 0), 0);
	assert_true(send_all(a) > READ_FPDU);
	assert_null(sim_poll(a->q->send));
	iw_run(p);
	expect(a->q->send, IBV_WC_SUCCESS, IBV_WC_RDMA_READ);
	expect(a->q->send, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE);
	iw_pair_free(p);
}

static void fence(void **state)
{
	struct iw_pair *p = connected(&iw_default);
	struct iw_end *a = &p->end[0];

	(void)state;
	assert_int_equal(post(a, IBV_WR_RDMA_READ, 100, 0), 0);
	assert_int_equal(post(a, IBV_WR_RDMA_WRITE, 100, IBV_SEND_FENCE), 0);
	assert_int_equal(send_all(a), READ_FPDU);
	iw_run(p);
	expect(a->q->send, IBV_WC_SUCCESS, IBV_WC_RDMA_READ);
	expect(a->q->send, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE);
	iw_pair_free(p);
}

/* No more reads are under way than was agreed on. */
static void reads_at_a_time(void **state)
{
	struct iw_opts o = iw_default;
	struct iw_pair *p;
	struct iw_end *a;

	(void)state;
	o.offer[1].ird = 2;
	p = connected(&o);
	a = &p->end[0];
	for (int i = 0; i < 7; i++)
		assert_int_equal(post(a, IBV_WR_RDMA_READ, 100, 0), 0);
	assert_int_equal(send_all(a), 2 * READ_FPDU);
	iw_run(p);
	for (int i = 0; i < 7; i++)
		expect(a->q->send, IBV_WC_SUCCESS, IBV_WC_RDMA_READ);
	iw_pair_free(p);
}

/* Requests and responses take turns, message by message. */
static void turns(void **state)
{
	struct iw_pair *p = connected(&iw_default);
	struct iw_end *a = &p->end[0], *b = &p->end[1];
	uint8_t bytes[4 * READ_FPDU];

	(void)state;
	for (int i = 0; i < 4; i++) {
		assert_int_equal(post(a, IBV_WR_RDMA_READ, 1000, 0), 0);
		assert_int_equal(post(b, IBV_WR_RDMA_WRITE, 1000, 0), 0);
	}
	assert_int_equal(send_all(a), sizeof(bytes));
	memcpy(bytes, b->in.buf + b->in.head, sizeof(bytes));
	b->in.head += sizeof(bytes);
	b->in.len = 0;
	iwarp_rx(b->qp, bytes, sizeof(bytes));
	send_all(b);
	/* The opcode of each FPDU. */
	for (unsigned i = 0; i < 8; i++)
		assert_int_equal(a->in.buf[a->in.head + i * 1020 + 3] & 15,
				 i % 2 ? RDMAP_WRITE : RDMAP_READ_RESPONSE);
	iw_run(p);
	iw_pair_free(p);
}

/* ---- who may begin ----------------------------------------------------- */

static void ready_to_receive(void **state)
{
	static const enum iwarp_rtr kinds[] = { IWARP_RTR_NONE, IWARP_RTR_WRITE,
						IWARP_RTR_READ };

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
		struct iw_opts o = iw_default;
		struct iwarp_agreed agreed;
		struct iw_pair *p;
		struct iw_end *b;

		o.offer[0].peer_to_peer = kinds[i] != IWARP_RTR_NONE;
		p = iw_pair_new(1, &o);
		agreed = *iwarp_agreed(p->end[0].qp);
		if (kinds[i] == IWARP_RTR_READ) {
			/* Two QPs for which the responder has chosen so. */
			for (int k = 0; k < 2; k++) {
				struct iw_end *e = &p->end[k];
				struct ibv_qp_attr attr = {
					.qp_state = IBV_QPS_RESET
				};

				iwarp_qp_modify(e->qp, &attr, IBV_QP_STATE);
				attr.qp_state = IBV_QPS_INIT;
				attr.qp_access_flags = o.access;
				iwarp_qp_modify(e->qp, &attr,
						IBV_QP_STATE |
							IBV_QP_ACCESS_FLAGS);
				agreed.initiator = !k;
				agreed.rtr = IWARP_RTR_READ;
				assert_int_equal(
					iwarp_qp_start(e->qp, &agreed, 1448),
					0);
			}
		}
		b = &p->end[1];
		assert_int_equal(agreed.rtr, kinds[i]);
		assert_int_equal(post(b, IBV_WR_RDMA_WRITE, 100, 0), 0);
		/* Not before the peer has, or might have. */
		assert_false(iwarp_tx_ready(b->qp));
		assert_int_equal(iwarp_tx_waits(b->qp),
				 kinds[i] == IWARP_RTR_NONE);
		iwarp_tx_begin(b->qp);
		assert_int_equal(iwarp_tx_ready(b->qp),
				 kinds[i] == IWARP_RTR_NONE);
		assert_int_equal(b->established, 0);
		iw_run(p);
		assert_int_equal(b->established, kinds[i] != IWARP_RTR_NONE);
		assert_int_equal(p->end[0].established, 0);
		expect(b->q->send, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE);
		/* That message was no program's. */
		assert_null(sim_poll(p->end[0].q->send));
		assert_null(sim_poll(b->q->recv));
		/* And a read of a program's is the first of its own. */
		assert_int_equal(post(&p->end[0], IBV_WR_RDMA_READ, 100, 0), 0);
		iw_run(p);
		expect(p->end[0].q->send, IBV_WC_SUCCESS, IBV_WC_RDMA_READ);
		iw_pair_free(p);
	}
}

/* siw may have missed that message: it leaves again until the peer has sent. */
static void ready_again(void **state)
{
	struct iw_opts o = iw_default;
	struct iw_pair *p;
	struct iw_end *a, *b;

	(void)state;
	for (int siw = 0; siw < 2; siw++) {
		o.offer[1].large = siw;
		p = iw_pair_new(1, &o);
		a = &p->end[0];
		b = &p->end[1];
		iw_run(p);
		assert_int_equal(b->established, 1);
		assert_false(iwarp_tx_ready(a->qp));
		assert_int_equal(iwarp_tx_asks(a->qp), siw);
		assert_false(iwarp_tx_asks(b->qp));
		iwarp_tx_ask_again(a->qp);
		assert_int_equal(iwarp_tx_ready(a->qp), siw);
		iw_run(p);
		assert_int_equal(iwarp_qp_stats(b->qp)->rx_pkts, 1 + siw);
		assert_int_equal(b->established, 1);
		assert_int_equal(post(b, IBV_WR_RDMA_WRITE, 100, 0), 0);
		iw_run(p);
		assert_false(iwarp_tx_asks(a->qp));
		iwarp_tx_ask_again(a->qp);
		assert_false(iwarp_tx_ready(a->qp));
		iw_pair_free(p);
	}
}

/* ---- posting, states --------------------------------------------------- */

static void refused(void **state)
{
	static const enum ibv_wr_opcode none[] = {
		IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND_WITH_IMM,
		IBV_WR_ATOMIC_CMP_AND_SWP,  IBV_WR_ATOMIC_FETCH_AND_ADD,
		IBV_WR_ATOMIC_WRITE,        IBV_WR_TSO,
	};
	struct iw_pair *p = connected(&iw_default);
	struct iw_end *a = &p->end[0];
	struct ibv_sge sge[2] = { { addr(a, 0), 4, a->q->node->lkey },
				  { addr(a, 0), 4, a->q->node->lkey } };
	struct ibv_send_wr wr = { .sg_list = sge,
				  .num_sge = 2,
				  .opcode = IBV_WR_RDMA_READ };
	const struct sim_qp_opts ud = { .type = IBV_QPT_UD };
	struct qp_init init = sim_qp_init(a->q, &ud);
	struct iwarp_qp *qp;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(none); i++)
		assert_int_equal(post(a, none[i], 8, 0), -EINVAL);
	assert_int_equal(iwarp_post_send(a->qp, &wr), -EINVAL);
	wr.num_sge = 1;
	assert_int_equal(iwarp_post_send(a->qp, &wr), 0);
	wr.send_flags = IBV_SEND_INLINE;
	assert_int_equal(iwarp_post_send(a->qp, &wr), -EINVAL);
	init.env = &a->env.base;
	assert_int_equal(iwarp_qp_create(&qp, &init), -EOPNOTSUPP);
	iw_pair_free(p);
}

/* From which state to which a program may move a QP by itself. */
static void moves(void **state)
{
	/* RESET INIT RTR RTS SQD SQE ERR */
	static const char *const may[] = {
		[IBV_QPS_RESET] = "yyynnny", [IBV_QPS_INIT] = "yyynnny",
		[IBV_QPS_RTR] = "yyynnny",   [IBV_QPS_RTS] = "ynnyyyy",
		[IBV_QPS_ERR] = "ynnnnny",
	};
	static const enum ibv_qp_state froms[] = { IBV_QPS_RESET, IBV_QPS_INIT,
						   IBV_QPS_RTR, IBV_QPS_RTS,
						   IBV_QPS_ERR };

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(froms); i++)
		for (unsigned to = 0; to <= IBV_QPS_ERR; to++) {
			struct iw_pair *p = connected(&iw_default);
			struct iwarp_qp *qp = p->end[0].qp;
			struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
			struct ibv_qp_init_attr init;
			enum ibv_qp_state got;

			if (froms[i] != IBV_QPS_RTS) {
				iwarp_qp_modify(qp, &attr, IBV_QP_STATE);
				attr.qp_state = froms[i];
				assert_int_equal(iwarp_qp_modify(qp, &attr,
								 IBV_QP_STATE),
						 0);
			}
			attr.qp_state = (enum ibv_qp_state)to;
			assert_int_equal(
				iwarp_qp_modify(qp, &attr, IBV_QP_STATE),
				may[froms[i]][to] == 'y' ? 0 : -EINVAL);
			iwarp_qp_query(qp, &attr, &init);
			got = may[froms[i]][to] != 'y' ? froms[i] :
			      to == IBV_QPS_SQD || to == IBV_QPS_SQE ?
							 IBV_QPS_ERR :
							 (enum ibv_qp_state)to;
			assert_int_equal(attr.qp_state, got);
			iw_pair_free(p);
		}
}

/* Attributes of other transports do nothing; those of none are refused. */
static void attributes(void **state)
{
	struct iw_pair *p = connected(&iw_default);
	struct ibv_qp_attr attr = { .path_mtu = IBV_MTU_1024, .timeout = 14 };

	(void)state;
	assert_int_equal(iwarp_qp_modify(p->end[0].qp, &attr, 0), 0);
	assert_int_equal(
		iwarp_qp_modify(p->end[0].qp, &attr,
				IBV_QP_PATH_MTU | IBV_QP_TIMEOUT | IBV_QP_AV),
		0);
	assert_int_equal(
		iwarp_qp_modify(p->end[0].qp, &attr, IBV_QP_RATE_LIMIT),
		-EOPNOTSUPP);
	iw_pair_free(p);
}

/* What is posted after the end is flushed. */
static void after_the_end(void **state)
{
	struct iw_pair *p = connected(&iw_default);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_SQD };
	struct iw_end *a = &p->end[0];

	(void)state;
	assert_int_equal(iwarp_qp_modify(a->qp, &attr, IBV_QP_STATE), 0);
	assert_int_equal(iwarp_shut(a->qp), IWARP_FIN);
	assert_int_equal(post(a, IBV_WR_SEND, 10, 0), 0);
	receive(a, 10);
	expect(a->q->send, IBV_WC_WR_FLUSH_ERR, IBV_WC_SEND);
	expect(a->q->recv, IBV_WC_WR_FLUSH_ERR, IBV_WC_RECV);
	iw_run(p);
	/* The peer has seen the end of the stream. */
	assert_int_equal(p->end[1].ended, 1);
	assert_int_equal(p->end[1].q->events, 0);
	/* RESET, and it is used again. */
	attr.qp_state = IBV_QPS_RESET;
	assert_int_equal(iwarp_qp_modify(a->qp, &attr, IBV_QP_STATE), 0);
	assert_int_equal(iwarp_shut(a->qp), IWARP_OPEN);
	assert_false(iwarp_tx_ready(a->qp));
	iw_pair_free(p);
}

/* ---- windows ----------------------------------------------------------- */

static void windows(void **state)
{
	struct iw_opts o = iw_default;
	struct iw_pair *p;
	struct iw_end *own, *use;
	uint32_t key;
	struct ibv_mw mw;
	struct ibv_mr mr;
	struct ibv_sge sge;
	struct ibv_send_wr wr = { .opcode = IBV_WR_BIND_MW };

	(void)state;
	o.sig_all = true;
	p = connected(&o);
	own = &p->end[0];
	use = &p->end[1];
	key = sim_mw_new(own->q->node);
	mw.handle = keys_slot(&own->q->node->keys, key);
	mr.lkey = own->q->node->lkey;
	for (int local = 0; local < 2; local++) {
		key = ibv_inc_rkey(key);
		wr = (struct ibv_send_wr){
			.opcode = IBV_WR_BIND_MW,
			.bind_mw = { &mw,
				     key,
				     { &mr, addr(own, 0), 5000,
				       IBV_ACCESS_REMOTE_WRITE } },
		};
		assert_int_equal(iwarp_post_send(own->qp, &wr), 0);
		iw_run(p);
		expect(own->q->send, IBV_WC_SUCCESS, IBV_WC_BIND_MW);
		assert_true(sim_mw_bound(own->q->node, key));

		memset(use->q->node->mem, 0x40 + local, 5000);
		sge = (struct ibv_sge){ addr(use, 0), 5000,
					use->q->node->lkey };
		wr = (struct ibv_send_wr){ .opcode = IBV_WR_RDMA_WRITE,
					   .sg_list = &sge,
					   .num_sge = 1,
					   .wr.rdma = { addr(own, 0), key } };
		assert_int_equal(iwarp_post_send(use->qp, &wr), 0);
		receive(own, 10);
		wr = (struct ibv_send_wr){
			.opcode = local ? IBV_WR_SEND : IBV_WR_SEND_WITH_INV,
		};
		wr.invalidate_rkey = key;
		assert_int_equal(iwarp_post_send(use->qp, &wr), 0);
		iw_run(p);
		assert_memory_equal(own->q->node->mem, use->q->node->mem, 5000);
		expect(own->q->recv, IBV_WC_SUCCESS, IBV_WC_RECV);
		assert_int_equal(own->q->recv->wc[local].wc_flags,
				 local ? 0 : IBV_WC_WITH_INV);
		if (!local)
			assert_int_equal(own->q->recv->wc[0].invalidated_rkey,
					 key);
		assert_int_equal(sim_mw_bound(own->q->node, key), local);
	}
	wr = (struct ibv_send_wr){ .opcode = IBV_WR_LOCAL_INV };
	wr.invalidate_rkey = key;
	assert_int_equal(iwarp_post_send(own->qp, &wr), 0);
	iw_run(p);
	expect(own->q->send, IBV_WC_SUCCESS, IBV_WC_LOCAL_INV);
	/* Once more: there is no such key any more. */
	assert_int_equal(iwarp_post_send(own->qp, &wr), 0);
	iw_run(p);
	expect(own->q->send, IBV_WC_MW_BIND_ERR, IBV_WC_LOCAL_INV);
	assert_int_equal(own->ended, 1);
	iw_pair_free(p);
}

/* What has been made of a window's memory leaves before the window goes. */
static void invalidate_waits(void **state)
{
	struct iw_pair *p = connected(&iw_default);
	struct iw_end *own = &p->end[0], *use = &p->end[1];
	uint32_t key = sim_mw_new(own->q->node);
	struct ibv_mw mw = { .handle = keys_slot(&own->q->node->keys, key) };
	struct ibv_mr mr = { .lkey = own->q->node->lkey };
	struct ibv_sge sge = { addr(use, 0), 1000, use->q->node->lkey };
	struct ibv_send_wr wr = {
		.opcode = IBV_WR_BIND_MW,
		.bind_mw = { &mw,
			     key,
			     { &mr, addr(own, 0), 1000,
			       IBV_ACCESS_REMOTE_READ } },
	};
	struct iwarp_batch b;

	(void)state;
	assert_int_equal(iwarp_post_send(own->qp, &wr), 0);
	iw_run(p);
	wr = (struct ibv_send_wr){ .opcode = IBV_WR_RDMA_READ,
				   .num_sge = 1,
				   .sg_list = &sge,
				   .send_flags = IBV_SEND_SIGNALED };
	wr.wr.rdma.remote_addr = addr(own, 0);
	wr.wr.rdma.rkey = key;
	assert_int_equal(iwarp_post_send(use->qp, &wr), 0);
	while (!iwarp_tx_ready(own->qp))
		assert_true(iw_step(p));
	iwarp_tx(own->qp, &b, 100); /* the socket has no room */
	iwarp_tx_done(own->qp, &b, 0);
	wr = (struct ibv_send_wr){ .opcode = IBV_WR_LOCAL_INV };
	wr.invalidate_rkey = key;
	assert_int_equal(iwarp_post_send(own->qp, &wr), 0);
	iwarp_tx(own->qp, &b, 5000);
	iwarp_tx_done(own->qp, &b, 0);
	assert_true(sim_mw_bound(own->q->node, key));
	iw_run(p);
	expect(use->q->send, IBV_WC_SUCCESS, IBV_WC_RDMA_READ);
	assert_false(sim_mw_bound(own->q->node, key));
	assert_int_equal(own->ended, 0);
	iw_pair_free(p);
}

/* ---- sizes ------------------------------------------------------------- */

/* Each FPDU, with its markers, fits into a segment; and all but the last of a
 * message fill it. */
static void segments(void **state)
{
	static const uint32_t sizes[] = { 128,  536,   1448, 1460,
					  8948, 65483, 65536 };

	(void)state;
	for (size_t i = 0; i < 2 * ARRAY_SIZE(sizes); i++) {
		const uint32_t max = sizes[i / 2];
		struct iw_opts o = iw_default;
		struct iw_pair *p;
		size_t bytes;
		uint64_t fpdus;

		o.fpdu_max = max;
		o.offer[1].markers = i % 2;
		p = connected(&o);
		fpdus = iwarp_qp_stats(p->end[0].qp)->tx_pkts;
		assert_int_equal(post(&p->end[0], IBV_WR_RDMA_WRITE, BIG, 0),
				 0);
		bytes = send_all(&p->end[0]);
		fpdus = iwarp_qp_stats(p->end[0].qp)->tx_pkts - fpdus;
		assert_true(bytes <= fpdus * max);
		assert_true(bytes > (fpdus - 1) * (max - max / 100 - 20));
		iw_run(p);
		assert_memory_equal(p->sim->node[1].mem + (1 << 20),
				    p->sim->node[0].mem + (2 << 20), BIG);
		iw_pair_free(p);
	}
}

/* A region of all addresses that reads as zeros. */
static void null_key(void **state)
{
	const struct key_entry k = { .access = IBV_ACCESS_LOCAL_WRITE,
				     .pd = 1,
				     .kind = KEY_NULL,
				     .length = UINT64_MAX };
	struct iw_opts o = iw_default;
	struct iw_pair *p;
	struct iw_end *a;
	struct ibv_sge sge = { 12345, BIG, 0 };

	(void)state;
	for (int i = 0; i < 2; i++) {
		o.fpdu_max = i ? IWARP_FPDU_MAX : 1448;
		p = connected(&o);
		a = &p->end[0];
		sge.lkey = atomic_load(
			&a->q->node->keys.entry[keys_add(&a->q->node->keys, &k)]
				 .lkey);
		memset(p->sim->node[1].mem + (1 << 20), 1, BIG + 1);
		assert_int_equal(post_sge(a, IBV_WR_RDMA_WRITE, &sge, 0), 0);
		iw_run(p);
		expect(a->q->send, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE);
		for (uint32_t n = 0; n < BIG; n++)
			assert_int_equal(p->sim->node[1].mem[(1 << 20) + n], 0);
		assert_int_equal(p->sim->node[1].mem[(1 << 20) + BIG], 1);
		iw_pair_free(p);
	}
}

/* Payload that the socket places: the last bytes of a segment are a piece of
 * their own, behind all others; or none where that is not enough
 * (base/store_tail.h). */
static void direct(void **state)
{
	struct iw_opts o = iw_default;
	struct iw_pair *p;
	struct iw_end *b;
	struct iovec iov[4];
	uint8_t head[100];

	(void)state;
	o.offer[0].crc = o.offer[1].crc = false;
	o.fpdu_max = IWARP_FPDU_MAX;
	p = connected(&o);
	b = &p->end[1];
	assert_int_equal(post(&p->end[0], IBV_WR_RDMA_WRITE, 50000, 0), 0);
	assert_int_equal(send_all(&p->end[0]), 50020);
	assert_int_equal(iwarp_rx_direct(b->qp, iov, 4), 0);
	memcpy(head, b->in.buf + b->in.head, 26);
	iwarp_rx(b->qp, head, 26);
	assert_int_equal(iwarp_rx_direct(b->qp, iov, 4),
			 STORE_IN_ORDER ? 2 : 1);
	assert_int_equal(iov[0].iov_len, 50000 - 10 - 8);
	assert_true((uintptr_t)iov[0].iov_base == addr(b, (1 << 20) + 10));
	if (STORE_IN_ORDER)
		assert_int_equal(iov[1].iov_len, 8);
	iwarp_rx_placed(b->qp, 50000 - 10 - (STORE_IN_ORDER ? 3 : 8));
	/* Too little for the direct way. */
	assert_int_equal(iwarp_rx_direct(b->qp, iov, 4), 0);
	assert_int_equal(iwarp_qp_stats(b->qp)->rx_direct,
			 50000 - 10 - (STORE_IN_ORDER ? 3 : 8));
	assert_true(iw_keys_free(p));
	iw_pair_free(p);
}

/* ---- memory that goes away --------------------------------------------- */

/* A region of its own, at 2 MiB. */
static uint32_t region(struct iw_end *e, struct ibv_sge *sge)
{
	const struct key_entry k = {
		.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ,
		.pd = 1,
		.kind = KEY_MR,
		.iova = addr(e, 2 << 20),
		.addr = addr(e, 2 << 20),
		.length = BIG,
	};
	const uint32_t slot = (uint32_t)keys_add(&e->q->node->keys, &k);

	*sge = (struct ibv_sge){
		k.iova, BIG, atomic_load(&e->q->node->keys.entry[slot].lkey)
	};
	return slot;
}

/* Sends until so many bytes have been taken. */
static void send_some(struct iw_end *e, size_t n)
{
	while (n) {
		struct iwarp_batch b;
		size_t taken;

		iwarp_tx(e->qp, &b, n);
		taken = min_u64(n, b.bytes);
		for (size_t i = 0, left = taken; left; i++) {
			size_t k = min_u64(left, b.data.iov[i].iov_len);

			iw_inject(e->peer, b.data.iov[i].iov_base, k);
			left -= k;
		}
		iwarp_tx_done(e->qp, &b, taken);
		n -= taken;
	}
}

/* Between two FPDUs there is a Terminate, within one only a reset. */
static void source_goes(void **state)
{
	(void)state;
	for (int within = 0; within < 2; within++) {
		struct iw_pair *p = connected(&iw_default);
		struct iw_end *a = &p->end[0];
		struct ibv_sge sge;
		uint32_t slot = region(a, &sge);

		assert_int_equal(post_sge(a, IBV_WR_RDMA_WRITE, &sge, 0), 0);
		assert_int_equal(post(a, IBV_WR_RDMA_WRITE, 10, 0), 0);
		send_some(a, 10 * 1448 + 700 * within);
		keys_kill(&a->q->node->keys, slot);
		iw_run(p);
		expect(a->q->send, IBV_WC_LOC_PROT_ERR, IBV_WC_RDMA_WRITE);
		expect(a->q->send, IBV_WC_WR_FLUSH_ERR, IBV_WC_RDMA_WRITE);
		assert_int_equal(iwarp_shut(a->qp),
				 within ? IWARP_RESET : IWARP_FIN);
		assert_int_equal(p->end[1].ended, !within);
		assert_true(iw_keys_free(p));
		iw_pair_free(p);
	}
}

/* The second of three that have been made, before the socket takes any. */
static void made_in_vain(void **state)
{
	struct iw_pair *p = connected(&iw_default);
	struct iw_end *a = &p->end[0];
	struct iwarp_batch b;
	struct ibv_sge sge;
	uint32_t slot = region(a, &sge);

	(void)state;
	sge.length = 1000;
	memset(a->q->node->mem + (2 << 20), 7, 1000);
	assert_int_equal(post(a, IBV_WR_RDMA_WRITE, 1000, 0), 0);
	assert_int_equal(post_sge(a, IBV_WR_RDMA_WRITE, &sge, 0), 0);
	assert_int_equal(post(a, IBV_WR_RDMA_READ, 1000, 0), 0);
	iwarp_tx(a->qp, &b, 100000);
	iwarp_tx_done(a->qp, &b, 0);
	keys_kill(&a->q->node->keys, slot);
	iw_run(p);
	expect(a->q->send, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE);
	expect(a->q->send, IBV_WC_LOC_PROT_ERR, IBV_WC_RDMA_WRITE);
	expect(a->q->send, IBV_WC_WR_FLUSH_ERR, IBV_WC_RDMA_READ);
	assert_int_equal(p->end[1].q->node->mem[(1 << 20) + 999], 7);
	assert_int_equal(iwarp_shut(a->qp), IWARP_FIN);
	assert_true(iw_keys_free(p));
	iw_pair_free(p);
}

static void read_goes(void **state)
{
	struct iw_pair *p = connected(&iw_default);
	struct iw_end *a = &p->end[0], *b = &p->end[1];
	struct ibv_sge sge, sink = { addr(a, 0), BIG, a->q->node->lkey };
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_READ,
				  .sg_list = &sink,
				  .num_sge = 1 };
	uint32_t slot = region(b, &sge);
	const struct rdmap_terminate *t;
	bool sent;

	(void)state;
	wr.wr.rdma.remote_addr = sge.addr;
	wr.wr.rdma.rkey = atomic_load(&b->q->node->keys.entry[slot].rkey);
	assert_int_equal(iwarp_post_send(a->qp, &wr), 0);
	while (!iwarp_tx_ready(b->qp))
		assert_true(iw_step(p));
	send_some(b, 10 * 1448);
	keys_kill(&b->q->node->keys, slot);
	iw_run(p);
	expect(a->q->send, IBV_WC_REM_ACCESS_ERR, IBV_WC_RDMA_READ);
	t = iwarp_terminated(a->qp, &sent);
	assert_true(t && !sent);
	assert_int_equal(t->error, RDMAP_E_STAG);
	assert_int_equal(b->q->events, 1u << IBV_EVENT_QP_ACCESS_ERR);
	iw_pair_free(p);
}

static int no_memory(const void *mem, size_t len, bool write)
{
	(void)mem;
	(void)len;
	(void)write;
	return -EFAULT;
}

/* The socket found memory missing: it is looked for, and is. */
static void doubt(void **state)
{
	struct iw_opts o = iw_default;
	struct iw_pair *p;
	struct iwarp_batch b;
	struct iw_end *a;

	(void)state;
	o.offer[0].crc = o.offer[1].crc = false;
	p = connected(&o);
	a = &p->end[0];
	a->env.base.odp_touch = no_memory;
	assert_int_equal(post(a, IBV_WR_RDMA_WRITE, BIG, 0), 0);
	iwarp_tx(a->qp, &b, 10000);
	assert_true(b.bytes > 0);
	assert_true(iwarp_tx_doubt(a->qp));
	iwarp_tx_done(a->qp, &b, 0);
	iw_run(p);
	expect(a->q->send, IBV_WC_LOC_PROT_ERR, IBV_WC_RDMA_WRITE);
	assert_int_equal(iwarp_shut(a->qp), IWARP_FIN);
	iw_pair_free(p);
}

/* ---- what is told ------------------------------------------------------ */

#define TOLD 64

static struct told {
	struct iwarp_fpdu f[TOLD];
	size_t n;
} told[2][2]; /* by end, and whether it left there */

static void note(struct qp *qp, const struct iwarp_fpdu *f)
{
	struct sim_qp *q = qp->owner;
	const struct iw_pair *p = q->node->sim->user;
	struct told *t = &told[q == p->end[1].q][f->outbound];

	assert_true(t->n < TOLD);
	assert_int_equal(f->number, t->n);
	t->f[t->n++] = *f;
}

/* Each that leaves comes, as the same; and says what it is of. */
static void expect_told(int end, size_t i, uint8_t opcode, uint32_t len,
			bool last, int wr_id)
{
	const struct iwarp_fpdu *f = &told[end][true].f[i];
	const struct iwarp_fpdu *to = &told[!end][false].f[i];

	assert_int_equal(f->opcode, opcode);
	assert_int_equal(f->len, len);
	assert_int_equal(f->last, last);
	assert_int_equal(f->has_wr, wr_id >= 0);
	if (f->has_wr)
		assert_int_equal(f->wr_id, wr_id);
	assert_int_equal(to->opcode, opcode);
	assert_int_equal(to->len, len);
	assert_int_equal(to->last, last);
}

static void every_fpdu_is_told(void **state)
{
	const uint32_t room = 1448 - 2 - 14 - 4; /* in a tagged one */
	struct iw_opts o = iw_default;
	struct iw_pair *p;
	struct iw_end *a;

	(void)state;
	memset(told, 0, sizeof(told));
	p = iw_pair_new(1, &o);
	a = &p->end[0];
	p->end[0].env.fpdu = p->end[1].env.fpdu = note;
	iw_run(p); /* the message that no program sees */
	receive(&p->end[1], 1000);
	/* Each has the number of those that are complete. */
	post(a, IBV_WR_RDMA_WRITE, 3 * room - 5, 0);
	iw_run(p);
	post(a, IBV_WR_RDMA_READ, room + 100, 0);
	iw_run(p);
	post(a, IBV_WR_SEND, 50, 0);
	iw_run(p);
	expect_told(0, 0, RDMAP_WRITE, 0, true, -1);
	for (int i = 0; i < 3; i++)
		expect_told(0, 1 + (size_t)i, RDMAP_WRITE,
			    i < 2 ? room : room - 5, i == 2, 0);
	expect_told(0, 4, RDMAP_READ_REQUEST, RDMAP_READ_LEN, true, 1);
	expect_told(0, 5, RDMAP_SEND, 50, true, 2);
	expect_told(1, 0, RDMAP_READ_RESPONSE, room, false, -1);
	expect_told(1, 1, RDMAP_READ_RESPONSE, 100, true, -1);
	/* The first receive was the only one: this send is refused, not got. */
	post(a, IBV_WR_SEND, 10, 0);
	iw_run(p);
	assert_int_equal(told[0][true].f[6].wr_id, 3);
	assert_int_equal(told[1][false].n, 6);
	expect_told(1, 2, RDMAP_TERMINATE, 4 + 2 + 18, true, -1);
	assert_int_equal(told[0][true].n, 7);
	assert_int_equal(told[1][true].n, 3);
	iw_pair_free(p);
}

/* ---- what the peer changes --------------------------------------------- */

static struct {
	size_t bytes, calls, first, last, arrived, first_arrived;
	const uint8_t *next;
	bool open;
} changes;

/* Before it is stored, piece by piece. */
static void changing(struct qp *qp, const struct qp_change *c)
{
	(void)qp;
	assert_false(changes.open);
	assert_int_equal(c->kind, QP_CHANGE_WRITE);
	assert_non_null(c->data);
	assert_true(c->first || c->p == changes.next);
	assert_memory_not_equal(c->p, c->data, c->len);
	changes.open = true;
	changes.next = (const uint8_t *)c->p + c->len;
	changes.bytes += c->len;
	changes.calls++;
	changes.first += c->first;
	changes.last += c->last;
}

static void changed(struct qp *qp, bool done)
{
	(void)qp;
	assert_true(changes.open && done);
	changes.open = false;
}

static void arriving(struct qp *qp, struct qp_wqe *w, bool first)
{
	(void)qp;
	assert_int_equal(w->opcode, IBV_WR_RDMA_READ);
	changes.arrived++;
	changes.first_arrived += first;
}

static void changes_are_told(void **state)
{
	struct iw_opts o = iw_default;
	struct iw_pair *p;
	struct iw_end *a, *b;

	(void)state;
	memset(&changes, 0, sizeof(changes));
	o.offer[0].crc = o.offer[1].crc = false;
	o.direct = 1; /* if it may */
	p = connected(&o);
	a = &p->end[0];
	b = &p->end[1];
	for (int i = 0; i < 2; i++) {
		p->end[i].env.base.changing = changing;
		p->end[i].env.base.changed = changed;
		p->end[i].env.base.arriving = arriving;
	}
	memset((void *)(uintptr_t)addr(a, 2 << 20), 0x55, BIG);
	memset((void *)(uintptr_t)addr(b, 1 << 20), 0xaa, BIG);
	post(a, IBV_WR_RDMA_WRITE, BIG, 0);
	post(a, IBV_WR_RDMA_WRITE, 0, 0);
	iw_run(p);
	expect(a->q->send, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE);
	expect(a->q->send, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE);
	assert_int_equal(changes.bytes, BIG);
	assert_int_equal(changes.first, 1);
	assert_int_equal(changes.last, 1);
	assert_true(changes.calls >= BIG / 1448);
	assert_false(changes.open);
	assert_int_equal(changes.arrived, 0);

	post(a, IBV_WR_RDMA_READ, BIG, 0);
	iw_run(p);
	expect(a->q->send, IBV_WC_SUCCESS, IBV_WC_RDMA_READ);
	assert_int_equal(changes.first_arrived, 1);
	assert_true(changes.arrived >= BIG / 1448);
	assert_int_equal(changes.bytes, BIG);
	assert_int_equal(iwarp_qp_stats(a->qp)->rx_direct, 0);
	assert_int_equal(iwarp_qp_stats(b->qp)->rx_direct, 0);
	iw_pair_free(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(in_order),
		cmocka_unit_test(fence),
		cmocka_unit_test(reads_at_a_time),
		cmocka_unit_test(turns),
		cmocka_unit_test(ready_to_receive),
		cmocka_unit_test(ready_again),
		cmocka_unit_test(refused),
		cmocka_unit_test(moves),
		cmocka_unit_test(attributes),
		cmocka_unit_test(after_the_end),
		cmocka_unit_test(windows),
		cmocka_unit_test(invalidate_waits),
		cmocka_unit_test(segments),
		cmocka_unit_test(null_key),
		cmocka_unit_test(direct),
		cmocka_unit_test(source_goes),
		cmocka_unit_test(made_in_vain),
		cmocka_unit_test(read_goes),
		cmocka_unit_test(doubt),
		cmocka_unit_test(every_fpdu_is_told),
		cmocka_unit_test(changes_are_told),
	};

	cmocka_set_test_filter(getenv("SIM_TEST"));
	return cmocka_run_group_tests_name("sim_iwarp_flow", tests, NULL, NULL);
}

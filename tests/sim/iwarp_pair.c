/*
 * iwarp_pair.c - moves bytes between two ends, in pieces of any size
 */
#include "iwarp_pair.h"

#include "base/bytes.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

const struct iw_opts iw_default = {
	.offer = { { .crc = true,
		     .enhanced = true,
		     .peer_to_peer = true,
		     .ird = 4,
		     .ord = 4 },
		   { .crc = true, .ird = 4, .ord = 4 } },
	.fpdu_max = 1448,
	.cap = { .max_send_wr = 64,
		 .max_recv_wr = 64,
		 .max_send_sge = 3,
		 .max_recv_sge = 3,
		 .max_inline_data = 64 },
	.access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
	.direct = 0.5,
};

/* ---- pipes ------------------------------------------------------------- */

static size_t pipe_room(const struct iw_pair *p, const struct iw_pipe *pipe)
{
	const size_t room = p->opts.room ? p->opts.room : IW_PIPE;

	return pipe->fin || pipe->len >= room ? 0 : room - pipe->len;
}

/* Bytes that lie in a row there, of n from offset on. */
static size_t in_a_row(const struct iw_pipe *pipe, size_t offset, size_t n,
		       size_t *at)
{
	*at = (pipe->head + offset) % IW_PIPE;
	return min_u64(n, IW_PIPE - *at);
}

static void pipe_put(struct iw_end *to, const uint8_t *bytes, size_t len)
{
	struct iw_pipe *pipe = &to->in;
	struct iw_pair *p = to->pair;

	while (len) {
		size_t at, n = in_a_row(pipe, pipe->len, len, &at);

		memcpy(pipe->buf + at, bytes, n);
		if (p->opts.tap)
			p->opts.tap(p, to == &p->end[0], pipe->buf + at, n);
		pipe->len += n;
		bytes += n;
		len -= n;
	}
}

static size_t pipe_get(struct iw_pipe *pipe, uint8_t *out, size_t len)
{
	size_t got = 0;

	len = min_u64(len, pipe->len);
	while (got < len) {
		size_t at, n = in_a_row(pipe, 0, len - got, &at);

		memcpy(out + got, pipe->buf + at, n);
		pipe->head = (pipe->head + n) % IW_PIPE;
		pipe->len -= n;
		got += n;
	}
	return got;
}

/* As many bytes as go at a time: all of n often, fewer else. */
static size_t some(struct iw_pair *p, size_t n)
{
	struct sim_rng *r = &p->sim->rng;

	if (p->opts.whole)
		return n;
	if (p->opts.cut && n > p->opts.cut)
		n = 1 + sim_below(r, p->opts.cut);
	else if (n > 1 && sim_chance(r, 0.5))
		n = 1 + sim_below(r, (uint32_t)n);
	return n;
}

/* ---- what an end does -------------------------------------------------- */

static bool end_send(struct iw_end *e)
{
	struct iw_pair *p = e->pair;
	struct iwarp_batch b;
	size_t room, left;

	if (!iwarp_tx_ready(e->qp)) {
		if (iwarp_shut(e->qp) == IWARP_FIN && !e->peer->in.fin) {
			e->peer->in.fin = true;
			return true;
		}
		return false;
	}
	room = pipe_room(p, &e->peer->in);
	if (!room)
		return false;
	iwarp_tx(e->qp, &b, 1 + sim_below(&p->sim->rng, 100000));
	left = min_u64(some(p, room), b.bytes);
	room = left;
	for (size_t i = 0; i < b.data.n && left; i++) {
		size_t n = min_u64(b.data.iov[i].iov_len, left);

		pipe_put(e->peer, b.data.iov[i].iov_base, n);
		left -= n;
	}
	assert(!left);
	iwarp_tx_done(e->qp, &b, room);
	return true;
}

static size_t receive_direct(struct iw_end *e, size_t n)
{
	struct iovec iov[8];
	size_t got = 0;
	size_t pieces = iwarp_rx_direct(e->qp, iov,
					1 + sim_below(&e->pair->sim->rng, 8));

	if (!pieces)
		return 0;
	for (size_t i = 0; i < pieces && n; i++) {
		size_t k = pipe_get(&e->in, iov[i].iov_base,
				    min_u64(iov[i].iov_len, n));

		got += k;
		n -= k;
	}
	iwarp_rx_placed(e->qp, got);
	return got;
}

static bool end_receive(struct iw_end *e)
{
	struct iw_pair *p = e->pair;
	uint8_t *exact;
	size_t n;

	if (!e->in.len) {
		if (!e->in.fin || e->eof)
			return false;
		e->eof = true;
		iwarp_rx_eof(e->qp);
		return true;
	}
	n = some(p, e->in.len);
	if (sim_chance(&p->sim->rng, p->opts.direct) && receive_direct(e, n))
		return true;
	/* Of the very size, so that a sanitizer sees a byte too far. */
	exact = malloc(n);
	pipe_get(&e->in, exact, n);
	iwarp_rx(e->qp, exact, n);
	free(exact);
	return true;
}

bool iw_step(struct iw_pair *p)
{
	const uint32_t first = sim_below(&p->sim->rng, 4);

	for (uint32_t i = 0; i < 4; i++) {
		const uint32_t k = (first + i) % 4;
		struct iw_end *e = &p->end[k & 1];

		if (k & 2 ? end_send(e) : end_receive(e))
			return true;
	}
	return false;
}

void iw_run(struct iw_pair *p)
{
	for (int steps = 0; iw_step(p); steps++)
		assert(steps < 50000000);
}

void iw_reset(struct iw_pair *p)
{
	for (int i = 0; i < 2; i++) {
		p->end[i].in.len = 0;
		p->end[i].in.fin = p->end[i].eof = true;
		iwarp_lost(p->end[i].qp, "reset on purpose");
	}
}

void iw_inject(struct iw_end *e, const uint8_t *bytes, size_t len)
{
	assert(e->in.len + len <= IW_PIPE);
	pipe_put(e, bytes, len);
}

void iw_inject_ulpdu(struct iw_end *e, const uint8_t *ulpdu, size_t len)
{
	const uint32_t pad = mpa_pad((uint32_t)len);
	uint8_t *fpdu = calloc(1, mpa_fpdu_len((uint32_t)len));
	uint8_t *end = fpdu + MPA_LEN_LEN + len + pad;

	put_be16(fpdu, (uint32_t)len);
	memcpy(fpdu + MPA_LEN_LEN, ulpdu, len);
	if (iwarp_agreed(e->qp)->crc)
		mpa_crc_put(end,
			    mpa_crc(MPA_CRC_INIT, fpdu, (size_t)(end - fpdu)));
	iw_inject(e, fpdu, (size_t)(end + MPA_CRC_LEN - fpdu));
	free(fpdu);
}

/* ---- pairs ------------------------------------------------------------- */

static void env_established(struct qp *qp)
{
	struct sim_qp *q = qp->owner;
	struct iw_pair *p = q->node->sim->user;

	p->end[q == p->end[1].q].established++;
}

static void env_ended(struct qp *qp)
{
	struct sim_qp *q = qp->owner;
	struct iw_pair *p = q->node->sim->user;

	p->end[q == p->end[1].q].ended++;
}

static void end_init(struct iw_pair *p, int i)
{
	struct iw_end *e = &p->end[i];
	const struct sim_qp_opts o = {
		.type = IBV_QPT_RC,
		.cap = p->opts.cap,
		.sig_all = p->opts.sig_all,
		.srq = p->opts.srq,
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT,
				    .qp_access_flags = p->opts.access };
	struct qp_init init;
	int err;

	e->pair = p;
	e->peer = &p->end[!i];
	e->q = sim_qp_slot(p->sim, i);
	e->env = (struct iwarp_env){
		.base = e->q->node->env.base,
		.established = env_established,
		.ended = env_ended,
	};
	init = sim_qp_init(e->q, &o);
	init.env = &e->env.base;
	err = iwarp_qp_create(&e->qp, &init);
	assert(!err);
	err = iwarp_qp_modify(e->qp, &attr, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS);
	assert(!err);
	(void)err;
}

/* A frame, cut anywhere. */
static void pass(struct iw_pair *p, int from, struct iwarp_setup *to,
		 const uint8_t *frame, int len)
{
	int at = 0, err = -EAGAIN;

	assert(len > 0);
	if (p->opts.tap)
		p->opts.tap(p, from, (uint8_t *)(uintptr_t)frame, (size_t)len);
	while (at < len) {
		size_t n = some(
			p, min_u64(iwarp_setup_want(to), (uint64_t)(len - at)));

		assert(n && err == -EAGAIN);
		err = iwarp_setup_rx(to, frame + at, n);
		at += (int)n;
	}
	assert(!err && !iwarp_setup_want(to));
}

static void connect(struct iw_pair *p)
{
	struct iwarp_setup *s = calloc(2, sizeof(*s));
	uint8_t frame[MPA_FRAME_MAX];
	int len, err;

	for (int i = 0; i < 2; i++)
		iwarp_setup_init(&s[i], !i);
	len = iwarp_setup_request(&s[0], &p->opts.offer[0], "hi", 2, frame);
	pass(p, 0, &s[1], frame, len);
	len = iwarp_setup_reply(&s[1], &p->opts.offer[1], "ho", 2, frame);
	pass(p, 1, &s[0], frame, len);
	for (int i = 0; i < 2; i++) {
		struct iwarp_agreed agreed;

		err = iwarp_setup_agreed(&s[i], &agreed);
		assert(!err);
		err = iwarp_qp_start(p->end[i].qp, &agreed, p->opts.fpdu_max);
		assert(!err);
	}
	(void)err;
	free(s);
}

struct iw_pair *iw_pair_new(uint64_t seed, const struct iw_opts *opts)
{
	struct iw_pair *p = calloc(1, sizeof(*p));

	p->opts = *opts;
	p->sim = sim_new(seed);
	p->sim->user = p;
	end_init(p, 0);
	end_init(p, 1);
	connect(p);
	return p;
}

void iw_pair_free(struct iw_pair *p)
{
	iwarp_qp_destroy(p->end[0].qp);
	iwarp_qp_destroy(p->end[1].qp);
	sim_free(p->sim);
	free(p);
}

bool iw_keys_free(const struct iw_pair *p)
{
	for (int i = 0; i < 2; i++) {
		const struct keys *k = &p->sim->node[i].keys;

		for (uint32_t slot = 0; slot < k->used; slot++)
			if (atomic_load(&k->entry[slot].users) & ~KEY_DYING)
				return false;
	}
	return true;
}

/*
 * stay.c - the end that is told: its peer is suspended, and comes back
 *
 * Nothing is kept of a HELLO: our nonce is a function of what it says, by a secret
 * of this process, and PAUSE and RESUME say that again. So strangers cost no memory,
 * and a key lasts as long as both processes. A queue pair keeps the last counter that
 * it has accepted. What has another MAC, an old counter, other ends or PSNs that
 * cannot be changes nothing, and is not answered; a message that comes twice is
 * answered twice.
 */
#include "move_internal.h"

/* PSNs that may be on their way, as many as the requester allows itself; so far
 * may what a PAUSE says be behind, since it is sent while both ends work. */
#define WINDOW (1 << 18)

static void our_nonce(const struct move *m, uint8_t out[MOVE_NONCE],
		      const struct move_message *msg)
{
	uint8_t text[16 + 8 + MOVE_NONCE];

	memcpy(text, msg->was.raw, 16);
	put_be64(text + 16, msg->process);
	memcpy(text + 24, msg->nonce, MOVE_NONCE);
	siphash128(out, m->cfg.secret, text, sizeof(text));
}

static void session_key(const struct move *m, uint8_t key[SIPHASH_KEY],
			const struct move_message *msg)
{
	uint8_t ours[MOVE_NONCE];

	our_nonce(m, ours, msg);
	move_key(m, key, msg->nonce, ours, msg->process);
}

static void answer(struct move *m, const struct move_in *in,
		   struct move_message *a, const uint8_t key[SIPHASH_KEY])
{
	const struct roce_path path = { .sgid = *in->dgid,
					.dgid = *in->sgid,
					.sgid_scope = in->scope,
					.hop_limit = 64 };
	uint8_t mad[MAD_LEN];

	a->kind = in->m->kind + 1;
	a->keyed = m->cfg.keyed;
	a->to = in->m->from;
	a->from = in->m->to;
	a->counter = in->m->counter;
	a->process = in->m->process;
	memcpy(a->nonce, in->m->nonce, MOVE_NONCE);
	a->was = in->m->was;
	move_encode(a, key, mad);
	m->cfg.send(m->cfg.arg, &path, mad);
}

/* Only the peer of one of our queue pairs gets an answer. */
static void hello(struct move *m, const struct move_in *in)
{
	const struct move_message *msg = in->m;
	struct move_message a = { 0 };
	uint8_t key[SIPHASH_KEY];
	struct move_qp qp;

	if (!gid_equal(&msg->was, in->sgid) ||
	    !m->cfg.look(m->cfg.arg, msg->to, &qp) || qp.peer != msg->from ||
	    !gid_equal(&qp.path.dgid, in->sgid) ||
	    !gid_equal(&qp.path.sgid, in->dgid))
		return;
	our_nonce(m, a.now.raw, msg);
	session_key(m, key, msg);
	answer(m, in, &a, key);
}

static bool between(uint32_t psn, uint32_t from, uint32_t to)
{
	return psn_diff(psn, from) >= 0 && psn_diff(to, psn) >= 0;
}

/* Whether the two ends may be at these places. */
static bool psns_fit(enum move_kind kind, const struct move_entry *e,
		     const struct move_qp *qp)
{
	const uint32_t slack = kind == MOVE_PAUSE ? WINDOW : 0;

	/* An end that only receives has said none. */
	return (qp->unheard ||
		between(qp->epsn, psn_add(e->una, PSN_MASK + 1 - slack),
			psn_add(e->una, WINDOW))) &&
	       (qp->silent ||
		between(e->epsn, psn_add(qp->una, PSN_MASK + 1 - slack),
			psn_add(qp->end_psn, slack)));
}

enum verdict { WRONG, NEW, AGAIN };

static enum verdict judge(struct move *m, const struct move_in *in,
			  const struct move_entry *e)
{
	const struct move_message *msg = in->m;
	const bool resume = msg->kind == MOVE_RESUME;
	struct move_qp qp;
	bool again;

	if (!m->cfg.look(m->cfg.arg, e->peer, &qp) ||
	    !gid_equal(&qp.path.sgid, in->dgid))
		return WRONG;
	again = qp.said.process == msg->process &&
		qp.said.counter == msg->counter;
	if (qp.peer != (again && resume ? e->now : e->was) ||
	    !gid_equal(&qp.path.dgid, again && resume ? &msg->now : &msg->was))
		return WRONG;
	if (again)
		return AGAIN;
	if (qp.said.process == msg->process && qp.said.counter > msg->counter)
		return WRONG;
	return psns_fit(msg->kind, e, &qp) ? NEW : WRONG;
}

static void carry_out(struct move *m, const struct move_in *in,
		      const struct move_entry *e)
{
	const struct move_said said = { in->m->process, in->m->counter };
	const struct move_news news = { e->now, in->m->now,
					in->m->value >> MOVE_CHUNK_BITS,
					in->m->value & (MOVE_CHUNKS - 1) };

	if (in->m->kind == MOVE_RESUME) {
		m->cfg.follow(m->cfg.arg, e->peer, &news, &said);
		leave_followed(m, e->peer);
	} else {
		m->cfg.pause(m->cfg.arg, e->peer,
			     in->now_ns + in->m->value * UINT64_C(1000000000),
			     &said);
	}
}

/* It comes from where it says, which is an address of the same kind. */
static bool comes_from_there(const struct move_in *in)
{
	const struct move_message *msg = in->m;

	return gid_equal(&msg->now, in->sgid) &&
	       roce_gid_is_v4(&msg->was) == roce_gid_is_v4(&msg->now) &&
	       (msg->kind == MOVE_RESUME || gid_equal(&msg->was, &msg->now)) &&
	       !roce_gid_is_multicast(&msg->now);
}

static void asked(struct move *m, const struct move_in *in)
{
	struct move_message a = { 0 };
	uint8_t key[SIPHASH_KEY];

	if (!comes_from_there(in))
		return;
	session_key(m, key, in->m);
	if (!move_sealed(in->mad, key))
		return;
	for (unsigned i = 0; i < in->m->n; i++) {
		const struct move_entry *e = &in->m->entry[i];
		const enum verdict v = judge(m, in, e);

		if (v == NEW)
			carry_out(m, in, e);
		if (v != WRONG)
			a.value |= 1u << i;
	}
	answer(m, in, &a, key);
}

void stay_rx(struct move *m, const struct move_in *in)
{
	if (in->m->kind == MOVE_HELLO)
		hello(m, in);
	else
		asked(m, in);
}

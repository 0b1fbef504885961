/*
 * frame.c - an FPDU's bytes: header, payload by reference, pad and CRC
 *
 * The payload of a large FPDU stays where the program has it. That of a small
 * one is copied behind its header, so that it is one piece and not three, and
 * with markers, which hardly a peer asks for, all of it is.
 */
#include "iwarp_internal.h"

#include <stdlib.h>

uint32_t frame_room(const struct iwarp_qp *qp, uint32_t hdr_len)
{
	return qp->tx.fpdu_max - MPA_LEN_LEN - hdr_len - MPA_CRC_LEN;
}

struct fpdu *frame_new(struct iwarp_qp *qp, const struct ddp_hdr *h,
		       const uint8_t *own, uint32_t own_len, uint32_t len)
{
	struct fpdu *f = fpdu_at(qp, qp->tx.tail++);
	uint32_t ulpdu, n = MPA_LEN_LEN;

	n += (uint32_t)ddp_encode(h, f->bytes + n);
	if (own_len)
		memcpy(f->bytes + n, own, own_len);
	n += own_len;
	ulpdu = n - MPA_LEN_LEN + len;
	put_be16(f->bytes, ulpdu);
	f->head = f->bytes;
	f->head_len = n;
	f->len = len;
	f->tail_len = mpa_pad(ulpdu) + MPA_CRC_LEN;
	f->tail_at = (uint8_t)n;
	memset(f->bytes + n, 0, f->tail_len);
	f->sealed = f->last = false;
	f->end = h->last;
	f->opcode = (uint8_t)rdmap_opcode(h->ulp);
	f->payload = (uint16_t)(own_len + len);
	f->from = FROM_NOWHERE;
	qp->stats.tx_bytes += len;
	return f;
}

/* ---- payload ----------------------------------------------------------- */

/* n bytes of the payload, from at on. */
static int gather_some(struct iwarp_qp *qp, struct qp_pieces *to,
		       const struct fpdu *f, uint32_t at, uint32_t n)
{
	struct qp_sq *sq = &qp->base.sq;
	struct qp_wqe *w;
	uint32_t bad;

	if (f->from == FROM_KEY)
		return qp_gather_remote(&qp->base, to, qp->base.pd, f->stag,
					f->va + at, n);
	w = qp_sq_slot(sq, f->wqe);
	if (w->flags & IBV_SEND_INLINE) {
		qp_piece_add(to, qp_wqe_data(sq, w) + f->offset + at, n, true);
		return 0;
	}
	return qp_gather(&qp->base, to, qp_wqe_sge(sq, w), w->num_sge,
			 f->offset + at, n, &bad);
}

/* All of it from at on: of a null key in steps, since there are no more zeros
 * in one place. */
static int gather_payload(struct iwarp_qp *qp, struct qp_pieces *to,
			  const struct fpdu *f, uint32_t at)
{
	uint32_t step = f->len;

	while (at < f->len) {
		const uint32_t n = min_u32(f->len - at, step);
		const size_t before = to->n;
		int err = gather_some(qp, to, f, at, n);

		if (err == -E2BIG && step > QP_PIECE_MAX) {
			to->n = before;
			step = QP_PIECE_MAX;
			continue;
		}
		if (err)
			return err;
		at += n;
	}
	return 0;
}

/* Pieces that the payload may have at most, or keys. */
static uint32_t gather_max(const struct iwarp_qp *qp, const struct fpdu *f)
{
	uint32_t n = f->len / QP_PIECE_MAX + 1;

	if (f->from == FROM_WQE)
		n += qp_sq_slot(&qp->base.sq, f->wqe)->num_sge;
	return n;
}

/* ---- pad and CRC ------------------------------------------------------- */

struct crc_run {
	uint32_t crc;
	struct iovec v;
};

static void crc_run(void *arg)
{
	struct crc_run *c = arg;

	c->crc = mpa_crc(c->crc, c->v.iov_base, c->v.iov_len);
}

static int seal_crc(struct iwarp_qp *qp, struct fpdu *f, const struct iovec *v,
		    size_t n)
{
	const uint32_t pad = f->tail_len - MPA_CRC_LEN;
	uint8_t *tail = f->bytes + f->tail_at;
	struct crc_run c = { mpa_crc(MPA_CRC_INIT, f->head, f->head_len), *v };

	for (size_t i = 0; i < n; i++) {
		int err;

		c.v = v[i];
		err = qp_access(&qp->base, crc_run, &c, c.v.iov_base,
				c.v.iov_len);
		if (err)
			return err;
	}
	mpa_crc_put(tail + pad, mpa_crc(c.crc, tail, pad));
	return 0;
}

/* The payload follows the header, and all of it is one piece. */
static int seal_small(struct iwarp_qp *qp, struct fpdu *f,
		      const struct iovec *v, size_t n)
{
	const uint32_t pad = f->tail_len - MPA_CRC_LEN;
	uint8_t *p = f->bytes + f->head_len;

	for (size_t i = 0; i < n; i++) {
		int err = qp_fetch(&qp->base, p, v[i].iov_base, v[i].iov_len);

		if (err)
			return err;
		p += v[i].iov_len;
	}
	memset(p, 0, f->tail_len);
	p += pad;
	if (qp->agreed.crc)
		mpa_crc_put(p, mpa_crc(MPA_CRC_INIT, f->bytes,
				       (size_t)(p - f->bytes)));
	f->head_len += f->len + f->tail_len;
	f->len = f->tail_len = 0;
	return 0;
}

/* Bytes on their way into a stream that has markers. */
struct marked {
	struct iwarp_qp *qp;
	uint8_t *begin, *p;
	uint64_t pos; /* in the stream, of *p */
	uint64_t fpdu_pos; /* and of the FPDU's length, once that is there */
	bool any;
};

static void put_marker(struct marked *m)
{
	if (m->pos % MPA_MARKER_STEP)
		return;
	put_be32(m->p, m->any ? (uint32_t)(m->pos - m->fpdu_pos) : 0);
	m->p += MPA_MARKER_LEN;
	m->pos += MPA_MARKER_LEN;
}

static int put_marked(struct marked *m, const uint8_t *src, size_t len)
{
	while (len) {
		size_t n;
		int err;

		put_marker(m);
		if (!m->any)
			m->fpdu_pos = m->pos;
		m->any = true;
		n = MPA_MARKER_STEP - m->pos % MPA_MARKER_STEP;
		if (n > len)
			n = len;
		err = qp_fetch(&m->qp->base, m->p, src, n);
		if (err)
			return err;
		m->p += n;
		m->pos += n;
		src += n;
		len -= n;
	}
	return 0;
}

static int seal_marked(struct iwarp_qp *qp, struct fpdu *f,
		       const struct iovec *v, size_t n)
{
	const uint32_t pad = f->tail_len - MPA_CRC_LEN;
	uint8_t small[FPDU_BYTES];
	/* A small one has at most two markers; so what was left of another,
	 * when the QP ended, is not in its way. */
	const bool is_small =
		frame_len(f) + 2 * MPA_MARKER_LEN <= sizeof(small);
	struct marked m = { .qp = qp, .pos = qp->tx.pos };
	int err;

	m.begin = m.p = is_small ? small : qp->tx.flat;
	err = put_marked(&m, f->head, f->head_len);
	for (size_t i = 0; i < n && !err; i++)
		err = put_marked(&m, v[i].iov_base, v[i].iov_len);
	if (!err)
		err = put_marked(&m, f->bytes + f->tail_at, pad);
	if (err)
		return err;
	put_marker(&m);
	memset(m.p, 0, MPA_CRC_LEN);
	if (qp->agreed.crc)
		mpa_crc_put(m.p, mpa_crc(MPA_CRC_INIT, m.begin,
					 (size_t)(m.p - m.begin)));
	m.p += MPA_CRC_LEN;
	qp->tx.pos = m.pos + MPA_CRC_LEN;
	f->head_len = (uint32_t)(m.p - m.begin);
	f->len = f->tail_len = 0;
	if (is_small)
		memcpy(f->bytes, small, f->head_len);
	f->head = is_small ? f->bytes : qp->tx.flat;
	return 0;
}

static int seal_fpdu(struct iwarp_qp *qp, struct qp_pieces *data,
		     struct fpdu *f)
{
	const size_t before = data->n, keys = data->nkeys;
	int err = 0;

	if (f->len > FPDU_SMALL && !qp->agreed.crc && !qp->agreed.tx_markers) {
		f->sealed = true;
		return 0;
	}
	err = gather_payload(qp, data, f, 0);
	if (!err) {
		const struct iovec *v = data->iov + before;
		const size_t n = data->n - before;

		if (qp->agreed.tx_markers)
			err = seal_marked(qp, f, v, n);
		else if (f->len > FPDU_SMALL)
			err = seal_crc(qp, f, v, n);
		else
			err = seal_small(qp, f, v, n);
	}
	data->n = before;
	while (data->nkeys > keys)
		keys_put(data->key[--data->nkeys]);
	f->sealed = !err;
	return err;
}

/* ---- into a batch ------------------------------------------------------ */

static bool has_room(const struct iwarp_qp *qp, const struct qp_pieces *data,
		     const struct fpdu *f)
{
	const uint32_t n = gather_max(qp, f);

	_Static_assert(IWARP_FPDU_MAX / QP_PIECE_MAX + 1 + QP_MAX_SGE <=
			       QP_PIECES_KEYS,
		       "an empty batch has room for any FPDU");
	return data->n + n + 2 <= QP_PIECES &&
	       data->nkeys + n <= QP_PIECES_KEYS;
}

int frame_append(struct iwarp_qp *qp, struct iwarp_batch *b, struct fpdu *f,
		 uint32_t skip)
{
	struct qp_pieces *data = &b->data;
	const size_t before = data->n;
	uint32_t left;
	int err;

	if (!has_room(qp, data, f))
		return -EAGAIN;
	err = f->sealed ? 0 : seal_fpdu(qp, data, f);
	if (err)
		return err;
	left = frame_len(f) - skip;
	if (skip < f->head_len) {
		qp_piece_add(data, (uint8_t *)(uintptr_t)f->head + skip,
			     f->head_len - skip, true);
		skip = f->head_len;
	}
	skip -= f->head_len;
	if (skip < f->len) {
		err = gather_payload(qp, data, f, skip);
		if (err) {
			data->n = before;
			return err;
		}
		skip = f->len;
	}
	skip -= f->len;
	if (skip < f->tail_len)
		qp_piece_add(data, f->bytes + f->tail_at + skip,
			     f->tail_len - skip, true);
	b->bytes += left;
	return 0;
}

bool frame_freeze(struct iwarp_qp *qp)
{
	struct iwarp_tx *t = &qp->tx;
	struct iwarp_batch b;
	struct fpdu *f;
	uint8_t *p;
	bool ok;

	if (tx_empty(qp) || !t->sent) {
		t->tail = t->head;
		return true;
	}
	t->tail = t->head + 1;
	f = fpdu_at(qp, t->head);
	f->last = false;
	if (!f->len)
		return true;
	b.bytes = b.data.n = b.data.nkeys = 0;
	ok = !frame_append(qp, &b, f, t->sent);
	/* With markers there is no FPDU that has its payload elsewhere. */
	p = ok ? malloc(b.bytes) : NULL;
	t->flat = p;
	for (size_t i = 0; p && ok && i < b.data.n; i++) {
		const struct iovec *v = &b.data.iov[i];

		ok = !qp_fetch(&qp->base, p, v->iov_base, v->iov_len);
		p += v->iov_len;
	}
	qp_pieces_put(&b.data);
	if (!ok || !p) {
		t->tail = t->head;
		return false;
	}
	f->head = t->flat;
	f->head_len = (uint32_t)b.bytes;
	f->len = f->tail_len = 0;
	t->sent = 0;
	return true;
}

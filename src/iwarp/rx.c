/*
 * rx.c - from bytes to FPDUs
 *
 * The stream comes in cut anywhere. An FPDU's header is collected, its payload
 * goes on to its place as it comes, its pad and CRC are collected; only then
 * does it count: nothing completes because of an FPDU whose CRC was wrong,
 * though its payload may have been stored. Where all of an FPDU is there, which
 * is usual, its CRC is looked at first, and not even that happens.
 */
#include "iwarp_internal.h"

#define HEAD_FIRST (MPA_LEN_LEN + 2u) /* says how long the header is */
#define DIRECT_MIN 2048u /* bytes of payload for which it pays */

static void fpdu_start(struct iwarp_rx *r)
{
	r->in = RX_HEAD;
	r->have = 0;
	r->need = HEAD_FIRST;
	r->crc = MPA_CRC_INIT;
	r->verified = false;
}

void rx_start(struct iwarp_qp *qp)
{
	fpdu_start(&qp->rx);
}

static bool crc_wrong(struct iwarp_qp *qp)
{
	qp->stats.crc_errors++;
	explain(qp, "the CRC of an FPDU is wrong: its bytes changed on their "
		    "way, or before they left");
	iwarp_end_error(qp, MPA_E_CRC);
	return false;
}

/* Looks at the CRC of an FPDU that is there as a whole. */
static bool verify_crc(struct iwarp_qp *qp, const uint8_t *p, size_t len)
{
	const size_t end = mpa_fpdu_len(get_be16(p)) - MPA_CRC_LEN;

	if (len < end + MPA_CRC_LEN)
		return true;
	if (!mpa_crc_is(p + end, mpa_crc(MPA_CRC_INIT, p, end)))
		return crc_wrong(qp);
	qp->rx.verified = true;
	return true;
}

/* Counts bytes into the CRC as they come. */
static void crc_add(struct iwarp_qp *qp, const uint8_t *p, size_t n)
{
	if (qp->agreed.crc && !qp->rx.verified)
		qp->rx.crc = mpa_crc(qp->rx.crc, p, n);
}

static void payload_done(struct iwarp_rx *r)
{
	r->in = RX_TAIL;
	r->have = 0;
	r->need = mpa_pad(r->ulpdu) + MPA_CRC_LEN;
}

/* What has come of the header; how long it is turns out on the way. */
static bool head_more(struct iwarp_qp *qp)
{
	struct iwarp_rx *r = &qp->rx;

	if (r->need == HEAD_FIRST) {
		r->need = MPA_LEN_LEN +
			  (uint32_t)ddp_hdr_len(r->head[MPA_LEN_LEN]);
		r->ulpdu = get_be16(r->head);
		if (r->ulpdu + MPA_LEN_LEN < r->need) {
			explain(qp,
				"an FPDU of %u bytes is too short for its "
				"header",
				r->ulpdu);
			iwarp_end_error(qp, RDMAP_E_THIS_STREAM);
			return false;
		}
		return true;
	}
	r->left = r->ulpdu + MPA_LEN_LEN - r->need;
	r->in = RX_PAYLOAD;
	if (!segment_begin(qp))
		return false;
	if (!r->left)
		payload_done(r);
	return true;
}

uint32_t iwarp_rx_payload(const struct iwarp_qp *qp)
{
	const struct iwarp_rx *r = &qp->rx;

	return r->ulpdu - (r->h.tagged ? DDP_TAGGED_LEN : DDP_UNTAGGED_LEN);
}

static void report_fpdu(struct iwarp_qp *qp)
{
	const struct iwarp_rx *r = &qp->rx;

	iwarp_env(qp)->fpdu(&qp->base,
			    &(struct iwarp_fpdu){
				    .last = r->h.last,
				    .opcode = r->opcode,
				    .number = (uint32_t)(qp->stats.rx_pkts -
							 r->fpdus_before),
				    .len = iwarp_rx_payload(qp),
			    });
}

static bool tail_done(struct iwarp_qp *qp)
{
	struct iwarp_rx *r = &qp->rx;
	const uint32_t pad = r->need - MPA_CRC_LEN;

	if (qp->agreed.crc && !r->verified &&
	    !mpa_crc_is(r->tail + pad, r->crc))
		return crc_wrong(qp);
	if (iwarp_env(qp)->fpdu)
		report_fpdu(qp);
	qp->stats.rx_pkts++;
	qp->stats.rx_bytes += iwarp_rx_payload(qp);
	fpdu_start(r);
	return segment_end(qp);
}

/* Some of n bytes that are no marker; how many, or 0: the connection has
 * ended. */
static size_t feed_bytes(struct iwarp_qp *qp, const uint8_t *p, size_t n)
{
	struct iwarp_rx *r = &qp->rx;
	const uint32_t pad = r->need - MPA_CRC_LEN;

	switch ((enum rx_in)r->in) {
	case RX_HEAD:
		if (!r->have) {
			r->fpdu_pos = r->pos;
			if (qp->agreed.crc && !qp->agreed.rx_markers &&
			    n >= MPA_LEN_LEN && !verify_crc(qp, p, n))
				return 0;
		}
		n = min_u64(n, r->need - r->have);
		memcpy(r->head + r->have, p, n);
		crc_add(qp, p, n);
		r->have += (uint32_t)n;
		return r->have < r->need || head_more(qp) ? n : 0;
	case RX_PAYLOAD:
		n = min_u64(n, r->left);
		crc_add(qp, p, n);
		if (!segment_place(qp, p, (uint32_t)n))
			return 0;
		r->left -= (uint32_t)n;
		if (!r->left)
			payload_done(r);
		return n;
	case RX_TAIL:
		n = min_u64(n, r->need - r->have);
		memcpy(r->tail + r->have, p, n);
		if (r->have < pad)
			crc_add(qp, p, min_u64(n, pad - r->have));
		r->have += (uint32_t)n;
		return r->have < r->need || tail_done(qp) ? n : 0;
	}
	return 0;
}

/* ---- markers ----------------------------------------------------------- */

/* Some bytes of a marker; how many, or 0: the connection has ended. */
static size_t marker_feed(struct iwarp_qp *qp, const uint8_t *p, size_t n)
{
	struct iwarp_rx *r = &qp->rx;
	const uint64_t at = r->pos - r->marker_have;
	uint32_t back;

	n = min_u64(n, MPA_MARKER_LEN - r->marker_have);
	memcpy(r->marker + r->marker_have, p, n);
	crc_add(qp, p, n);
	r->marker_have += (uint32_t)n;
	if (r->marker_have < MPA_MARKER_LEN)
		return n;
	r->marker_have = 0;
	back = get_be16(r->marker + 2);
	if (back == (r->in == RX_HEAD && !r->have ? 0 : at - r->fpdu_pos))
		return n;
	explain(qp,
		"a marker gives a wrong start of its FPDU, %u bytes before it",
		back);
	iwarp_end_error(qp, MPA_E_MARKER);
	return 0;
}

static size_t feed_marked(struct iwarp_qp *qp, const uint8_t *p, size_t n)
{
	struct iwarp_rx *r = &qp->rx;
	const uint32_t at = r->pos % MPA_MARKER_STEP;

	n = at < MPA_MARKER_LEN ?
		    marker_feed(qp, p, n) :
		    feed_bytes(qp, p, min_u64(n, MPA_MARKER_STEP - at));
	r->pos += n;
	return n;
}

void iwarp_rx(struct iwarp_qp *qp, const uint8_t *p, size_t len)
{
	while (len && qp->up) {
		const size_t n = qp->agreed.rx_markers ?
					 feed_marked(qp, p, len) :
					 feed_bytes(qp, p, len);

		if (!n)
			return;
		p += n;
		len -= n;
	}
}

/* ---- the direct way ---------------------------------------------------- */

size_t iwarp_rx_direct(struct iwarp_qp *qp, struct iovec *iov, size_t max)
{
	struct iwarp_rx *r = &qp->rx;

	r->placing.n = 0;
	if (!qp->up || r->in != RX_PAYLOAD || r->left < DIRECT_MIN ||
	    qp->agreed.crc || qp->agreed.rx_markers || qp_is_noted(&qp->base))
		return 0;
	segment_pieces(qp, iov, max);
	return r->placing.n;
}

void iwarp_rx_placed(struct iwarp_qp *qp, size_t n)
{
	struct iwarp_rx *r = &qp->rx;
	struct placing *pl = &r->placing;
	uint32_t got = (uint32_t)min_u64(n, pl->bytes);

	while (pl->nkeys)
		keys_put(pl->key[--pl->nkeys]);
	pl->n = pl->bytes = 0;
	segment_placed(qp, got);
	qp->stats.rx_direct += got;
	r->left -= got;
	if (!r->left)
		payload_done(r);
}

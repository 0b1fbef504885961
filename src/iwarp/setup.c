/*
 * setup.c - what two MPA frames settle
 */
#include "setup.h"

#include <errno.h>
#include <string.h>

const char *iwarp_setup_error_str(enum iwarp_setup_error e)
{
	static const char *const words[] = {
		[IWARP_SETUP_OK] = "nothing is wrong",
		[IWARP_SETUP_KEY] = "the peer does not speak MPA (iWARP)",
		[IWARP_SETUP_REVISION] =
			"the peer's MPA revision is not supported",
		[IWARP_SETUP_LENGTH] =
			"the peer's MPA frame has a length that cannot be",
		[IWARP_SETUP_REJECTED] = "the peer has rejected the connection",
		[IWARP_SETUP_PLAIN] =
			"the peer does not answer IRD and ORD (RFC 6581)",
		[IWARP_SETUP_IRD] = "the peer asks for more reads at a time "
				    "than this end answers",
		[IWARP_SETUP_RTR] = "the peer asks for a ready-to-receive "
				    "message that was not offered",
	};

	_Static_assert(ARRAY_SIZE(words) == IWARP_SETUP_RTR + 1, "one each");
	return words[e];
}

void iwarp_setup_init(struct iwarp_setup *s, bool initiator)
{
	*s = (struct iwarp_setup){ .initiator = initiator };
}

static uint16_t rd_max(uint32_t n)
{
	return (uint16_t)min_u32(n, MPA_RD_MAX);
}

/* Our frame, with its private data. */
static int put_frame(struct iwarp_setup *s, struct mpa_frame *f,
		     const void *priv, size_t priv_len, uint8_t *out)
{
	size_t len;

	if (priv_len > MPA_PRIVATE_MAX - (f->enhanced ? MPA_ENHANCED_LEN : 0))
		return -EINVAL;
	f->private_len = (uint16_t)priv_len;
	s->sent = *f;
	len = mpa_frame_encode(f, out);
	if (priv_len)
		memcpy(out + len, priv, priv_len);
	return (int)(len + priv_len);
}

int iwarp_setup_request(struct iwarp_setup *s, const struct iwarp_offer *offer,
			const void *priv, size_t priv_len, uint8_t *out)
{
	struct mpa_frame f = {
		.markers = offer->markers,
		.crc = offer->crc,
		.large = offer->large,
		.enhanced = offer->enhanced,
		.revision = offer->enhanced ? 2 : 1,
		.ird = rd_max(offer->ird),
		.ord = rd_max(offer->ord),
		.peer_to_peer = offer->peer_to_peer,
		.rtr_write = offer->peer_to_peer,
		/* A read needs one that may be under way. */
		.rtr_read = offer->peer_to_peer && offer->ord,
	};

	s->offer = *offer;
	return put_frame(s, &f, priv, priv_len, out);
}

size_t iwarp_setup_want(const struct iwarp_setup *s)
{
	int len;

	if (s->done || s->error)
		return 0;
	len = mpa_frame_len(s->initiator, s->buf, s->have);
	return len < 0 ? 0 : (size_t)len - s->have;
}

static int setup_failed(struct iwarp_setup *s, enum iwarp_setup_error e)
{
	s->error = e;
	return e == IWARP_SETUP_REJECTED ? -ECONNREFUSED : -EPROTO;
}

static int setup_complete(struct iwarp_setup *s)
{
	/* What is left of mpa_frame_len()'s errors is a length. */
	if (mpa_frame_decode(&s->peer, s->initiator, s->buf, s->have))
		return setup_failed(s, IWARP_SETUP_LENGTH);
	s->done = true;
	/* 0 is what was there before RFC 5044. */
	if (!s->peer.revision || s->peer.revision > MPA_REVISION)
		return setup_failed(s, IWARP_SETUP_REVISION);
	if (s->initiator && s->peer.reject)
		return setup_failed(s, IWARP_SETUP_REJECTED);
	return 0;
}

int iwarp_setup_rx(struct iwarp_setup *s, const uint8_t *p, size_t len)
{
	const bool reply = s->initiator;
	size_t room;
	int want;

	if (s->error)
		return setup_failed(s, s->error);
	if (s->done)
		return setup_failed(s, IWARP_SETUP_LENGTH); /* what is this? */
	do {
		room = iwarp_setup_want(s);
		if (room > len)
			room = len;
		memcpy(s->buf + s->have, p, room);
		s->have += room;
		p += room;
		len -= room;
		want = mpa_frame_len(reply, s->buf, s->have);
		if (want < 0)
			return setup_failed(s, want == -EMSGSIZE ?
						       IWARP_SETUP_LENGTH :
						       IWARP_SETUP_KEY);
	} while (len && s->have < (size_t)want);
	if (len)
		return setup_failed(s, IWARP_SETUP_LENGTH);
	return s->have < (size_t)want ? -EAGAIN : setup_complete(s);
}

const uint8_t *iwarp_setup_private(const struct iwarp_setup *s, size_t *len)
{
	*len = s->done ? s->peer.private_len : 0;
	return s->buf + s->have - *len;
}

/* What an enhanced frame says, as far as we can do it. */
static uint32_t reads_asked(uint16_t theirs, uint32_t limit)
{
	return theirs == MPA_RD_ANY ? limit : min_u32(theirs, limit);
}

void iwarp_setup_asked(const struct iwarp_setup *s, uint32_t limit,
		       uint32_t *ird, uint32_t *ord)
{
	const bool known = s->done && s->peer.enhanced;

	*ird = known ? reads_asked(s->peer.ird, limit) : limit;
	*ord = known ? reads_asked(s->peer.ord, limit) : limit;
}

int iwarp_setup_reply(struct iwarp_setup *s, const struct iwarp_offer *offer,
		      const void *priv, size_t priv_len, uint8_t *out)
{
	const struct mpa_frame *q = &s->peer;
	struct mpa_frame f = {
		.reply = true,
		.markers = offer->markers,
		.crc = offer->crc || q->crc,
		.large = offer->large,
		.enhanced = q->enhanced,
		.revision = q->revision ? q->revision : 1,
	};

	if (q->enhanced) {
		/* Ours is what is used: no more than the peer asks for, or can
		 * answer. */
		f.ird = rd_max(reads_asked(q->ord, offer->ird));
		f.ord = rd_max(reads_asked(q->ird, offer->ord));
		f.peer_to_peer = q->peer_to_peer;
		/* Where it offers neither it is to say that itself. */
		f.rtr_write = q->peer_to_peer && (q->rtr_write || !q->rtr_read);
		f.rtr_read = q->peer_to_peer && !f.rtr_write;
		/* To answer that read. */
		if (f.rtr_read && !f.ird)
			f.ird = 1;
	}
	s->offer = *offer;
	s->answered = true;
	return put_frame(s, &f, priv, priv_len, out);
}

int iwarp_setup_reject(struct iwarp_setup *s, const void *priv, size_t priv_len,
		       uint8_t *out)
{
	struct mpa_frame f = {
		.reply = true,
		.reject = true,
		.crc = s->peer.crc,
		.enhanced = s->peer.enhanced,
		.revision = s->done && s->peer.revision &&
					    s->peer.revision <= MPA_REVISION ?
				    s->peer.revision :
				    1,
	};

	return put_frame(s, &f, priv, priv_len, out);
}

static int agree_reads(struct iwarp_setup *s, struct iwarp_agreed *a)
{
	const struct mpa_frame *p = &s->peer;

	if (!a->enhanced) {
		/* The programs have to know. */
		a->ird = s->offer.ird;
		a->ord = s->offer.ord;
		return 0;
	}
	if (!s->initiator) {
		a->ird = s->sent.ird;
		a->ord = s->sent.ord;
		return 0;
	}
	a->ird = reads_asked(p->ord, s->offer.ird);
	a->ord = reads_asked(p->ird, s->offer.ord);
	return p->ord != MPA_RD_ANY && p->ord > s->offer.ird ?
		       setup_failed(s, IWARP_SETUP_IRD) :
		       0;
}

static int agree_rtr(struct iwarp_setup *s, struct iwarp_agreed *a)
{
	const struct mpa_frame *reply = s->initiator ? &s->peer : &s->sent;

	if (!a->enhanced || !s->sent.peer_to_peer)
		return 0;
	/* A responder that does not know of it need not wait for it. */
	if (!reply->peer_to_peer)
		return 0;
	if (reply->rtr_write && s->sent.rtr_write)
		a->rtr = IWARP_RTR_WRITE;
	else if (reply->rtr_read && s->sent.rtr_read)
		a->rtr = IWARP_RTR_READ;
	else
		return setup_failed(s, IWARP_SETUP_RTR);
	if (a->rtr == IWARP_RTR_READ && s->initiator && !a->ord)
		a->ord = 1;
	return 0;
}

int iwarp_setup_agreed(struct iwarp_setup *s, struct iwarp_agreed *a)
{
	int err;

	*a = (struct iwarp_agreed){ .initiator = s->initiator };
	if (s->error || !s->done || (!s->initiator && !s->answered))
		return -EPROTO;
	if (s->initiator && s->sent.enhanced && !s->peer.enhanced)
		return setup_failed(s, IWARP_SETUP_PLAIN);
	a->enhanced = s->sent.enhanced && s->peer.enhanced;
	a->crc = s->sent.crc || s->peer.crc;
	a->rx_markers = s->sent.markers;
	a->tx_markers = s->peer.markers;
	a->tx_large = s->peer.large;
	err = agree_reads(s, a);
	return err ? err : agree_rtr(s, a);
}

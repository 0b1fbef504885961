/*
 * mpa.c - encodes and decodes MPA's frames
 */
#include "mpa.h"

#include <errno.h>
#include <string.h>

#define KEY_LEN 16
#define KEY_REQUEST "MPA ID Req Frame"
#define KEY_REPLY "MPA ID Rep Frame"

enum {
	F_MARKERS = 0x80,
	F_CRC = 0x40,
	F_REJECT = 0x20,
	F_ENHANCED = 0x10,
	F_LARGE = 0x08,
};

/* In the IRD and in the ORD field. */
#define F_PEER_TO_PEER 0x8000u
#define F_RTR_SEND 0x4000u
#define F_RTR_WRITE 0x8000u
#define F_RTR_READ 0x4000u
#define RD_MASK 0x3fffu

static const char *frame_key(bool reply)
{
	return reply ? KEY_REPLY : KEY_REQUEST;
}

int mpa_frame_len(bool reply, const uint8_t *p, size_t len)
{
	uint32_t priv;

	if (memcmp(p, frame_key(reply), len < KEY_LEN ? len : KEY_LEN) != 0)
		return -EPROTO;
	if (len < MPA_HDR_LEN)
		return MPA_HDR_LEN;
	priv = get_be16(p + KEY_LEN + 2);
	return priv > MPA_PRIVATE_MAX ? -EMSGSIZE : (int)(MPA_HDR_LEN + priv);
}

int mpa_frame_decode(struct mpa_frame *f, bool reply, const uint8_t *p,
		     size_t len)
{
	const int want = mpa_frame_len(reply, p, len);
	uint8_t bits;

	if (want < 0)
		return want;
	if (len != (size_t)want)
		return -EPROTO;
	bits = p[KEY_LEN];
	*f = (struct mpa_frame){
		.reply = reply,
		.markers = bits & F_MARKERS,
		.crc = bits & F_CRC,
		.reject = bits & F_REJECT,
		.large = bits & F_LARGE,
		.revision = p[KEY_LEN + 1],
		.private_len = get_be16(p + KEY_LEN + 2),
	};
	f->enhanced = bits & F_ENHANCED && f->revision >= 2;
	if (!f->enhanced)
		return 0;
	if (f->private_len < MPA_ENHANCED_LEN)
		return -EMSGSIZE;
	f->private_len = (uint16_t)(f->private_len - MPA_ENHANCED_LEN);
	p += MPA_HDR_LEN;
	f->ird = get_be16(p) & RD_MASK;
	f->peer_to_peer = get_be16(p) & F_PEER_TO_PEER;
	f->rtr_send = get_be16(p) & F_RTR_SEND;
	f->ord = get_be16(p + 2) & RD_MASK;
	f->rtr_write = get_be16(p + 2) & F_RTR_WRITE;
	f->rtr_read = get_be16(p + 2) & F_RTR_READ;
	return 0;
}

size_t mpa_frame_encode(const struct mpa_frame *f, uint8_t *p)
{
	const uint32_t extra = f->enhanced ? MPA_ENHANCED_LEN : 0;

	memcpy(p, frame_key(f->reply), KEY_LEN);
	p[KEY_LEN] =
		(uint8_t)((f->markers ? F_MARKERS : 0) | (f->crc ? F_CRC : 0) |
			  (f->reject ? F_REJECT : 0) |
			  (f->enhanced ? F_ENHANCED : 0) |
			  (f->large ? F_LARGE : 0));
	p[KEY_LEN + 1] = f->revision;
	put_be16(p + KEY_LEN + 2, f->private_len + extra);
	if (!f->enhanced)
		return MPA_HDR_LEN;
	p += MPA_HDR_LEN;
	put_be16(p, (f->ird & RD_MASK) |
			    (f->peer_to_peer ? F_PEER_TO_PEER : 0) |
			    (f->rtr_send ? F_RTR_SEND : 0));
	put_be16(p + 2, (f->ord & RD_MASK) | (f->rtr_write ? F_RTR_WRITE : 0) |
				(f->rtr_read ? F_RTR_READ : 0));
	return MPA_HDR_LEN + MPA_ENHANCED_LEN;
}

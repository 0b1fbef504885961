/*
 * mad.c - the common MAD header, and CM messages by table
 *
 * Numbers are read and written at the bit positions that the tables give. A
 * number never spans more than eight bytes, since those of 64 bits are aligned
 * to bytes.
 */
#include "mad.h"

#include "base/bytes.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

/* One table per message, from the lists in mad.h. */
#define OFFSET(msg, member) offsetof(struct mad, msg.member)
#define SIZE(msg, member) sizeof(((struct mad *)NULL)->msg.member)
#define NUMBER(msg, member, at, first, bits)                                   \
	{ .name = #member,                                                     \
	  .byte = (at),                                                        \
	  .bit = (first),                                                      \
	  .width = (bits),                                                     \
	  .offset = OFFSET(msg, member),                                       \
	  .size = SIZE(msg, member) },
#define BYTES(msg, member, at, len)                                            \
	{ .name = #member,                                                     \
	  .byte = (at),                                                        \
	  .width = 8 * (len),                                                  \
	  .offset = OFFSET(msg, member),                                       \
	  .size = SIZE(msg, member) },

/* clang-format off */
#define F(type, name, byte, bit, width) NUMBER(MSG, name, byte, bit, width)
#define B(name, byte, len) BYTES(MSG, name, byte, len)
#define MSG req
static const struct mad_field req_fields[] = { CM_REQ_FIELDS(F, B) };
#undef MSG
#define MSG mra
static const struct mad_field mra_fields[] = { CM_MRA_FIELDS(F, B) };
#undef MSG
#define MSG rej
static const struct mad_field rej_fields[] = { CM_REJ_FIELDS(F, B) };
#undef MSG
#define MSG rep
static const struct mad_field rep_fields[] = { CM_REP_FIELDS(F, B) };
#undef MSG
#define MSG rtu
static const struct mad_field rtu_fields[] = { CM_RTU_FIELDS(F, B) };
#undef MSG
#define MSG dreq
static const struct mad_field dreq_fields[] = { CM_DREQ_FIELDS(F, B) };
#undef MSG
#define MSG drep
static const struct mad_field drep_fields[] = { CM_DREP_FIELDS(F, B) };
#undef MSG
#define MSG lap
static const struct mad_field lap_fields[] = { CM_LAP_FIELDS(F, B) };
#undef MSG
#define MSG apr
static const struct mad_field apr_fields[] = { CM_APR_FIELDS(F, B) };
#undef MSG
#define MSG sidr_req
static const struct mad_field sidr_req_fields[] = { CM_SIDR_REQ_FIELDS(F, B) };
#undef MSG
#define MSG sidr_rep
static const struct mad_field sidr_rep_fields[] = { CM_SIDR_REP_FIELDS(F, B) };
#undef MSG

#define ROW(id, label, table) \
	[MAD_CM_##id - MAD_CM_REQ] = { label, table, ARRAY_SIZE(table) }

static const struct message {
	const char *name;
	const struct mad_field *fields;
	size_t count;
} messages[] = {
	ROW(REQ, "REQ", req_fields),
	ROW(MRA, "MRA", mra_fields),
	ROW(REJ, "REJ", rej_fields),
	ROW(REP, "REP", rep_fields),
	ROW(RTU, "RTU", rtu_fields),
	ROW(DREQ, "DREQ", dreq_fields),
	ROW(DREP, "DREP", drep_fields),
	ROW(SIDR_REQ, "SIDR_REQ", sidr_req_fields),
	ROW(SIDR_REP, "SIDR_REP", sidr_rep_fields),
	ROW(LAP, "LAP", lap_fields),
	ROW(APR, "APR", apr_fields),
};
/* clang-format on */

static const struct message *message_of(uint16_t attr_id)
{
	if (attr_id < MAD_CM_REQ ||
	    attr_id - MAD_CM_REQ >= (int)ARRAY_SIZE(messages))
		return NULL;
	return &messages[attr_id - MAD_CM_REQ];
}

static uint64_t width_mask(unsigned width)
{
	return width == 64 ? UINT64_MAX : (UINT64_C(1) << width) - 1;
}

/* The bytes that a number spans; *below: bits after it in the last one. */
static unsigned field_span(const struct mad_field *f, unsigned *below)
{
	unsigned bits = f->bit + f->width;
	unsigned n = (bits + 7) / 8;

	assert(n <= 8);
	*below = 8 * n - bits;
	return n;
}

static uint64_t get_number(const uint8_t *p, const struct mad_field *f)
{
	uint64_t v = 0;
	unsigned below;
	unsigned n = field_span(f, &below);

	for (unsigned i = 0; i < n; i++)
		v = v << 8 | p[f->byte + i];
	return v >> below & width_mask(f->width);
}

/* The bits of the number in p must be zero. */
static void put_number(uint8_t *p, const struct mad_field *f, uint64_t v)
{
	unsigned below;
	unsigned n = field_span(f, &below);

	v = (v & width_mask(f->width)) << below;
	for (unsigned i = n; i-- > 0; v >>= 8)
		p[f->byte + i] |= (uint8_t)v;
}

uint64_t mad_field_get(const struct mad *m, const struct mad_field *f)
{
	const uint8_t *at = (const uint8_t *)m + f->offset;

	switch (f->size) {
	case 1:
		return *at;
	case 2:
		return *(const uint16_t *)(const void *)at;
	case 4:
		return *(const uint32_t *)(const void *)at;
	default:
		return *(const uint64_t *)(const void *)at;
	}
}

static void store_field(struct mad *m, const struct mad_field *f, uint64_t v)
{
	uint8_t *at = (uint8_t *)m + f->offset;

	switch (f->size) {
	case 1:
		*at = (uint8_t)v;
		break;
	case 2:
		*(uint16_t *)(void *)at = (uint16_t)v;
		break;
	case 4:
		*(uint32_t *)(void *)at = (uint32_t)v;
		break;
	default:
		*(uint64_t *)(void *)at = v;
	}
}

int mad_decode(struct mad *m, const uint8_t *p, size_t len)
{
	const struct message *msg;

	if (len != MAD_LEN || p[0] != MAD_BASE_VERSION || p[1] != MAD_CLASS_CM)
		return -EINVAL;
	msg = message_of(get_be16(p + 16));
	if (!msg)
		return -EINVAL;

	*m = (struct mad){
		.class_version = p[2],
		.method = p[3],
		.status = get_be16(p + 4),
		.class_specific = get_be16(p + 6),
		.tid = get_be64(p + 8),
		.attr_id = get_be16(p + 16),
		.attr_mod = get_be32(p + 20),
	};
	p += MAD_HDR_LEN;
	for (size_t i = 0; i < msg->count; i++) {
		const struct mad_field *f = &msg->fields[i];

		if (f->width > 64)
			memcpy((uint8_t *)m + f->offset, p + f->byte, f->size);
		else
			store_field(m, f, get_number(p, f));
	}
	return 0;
}

void mad_encode(const struct mad *m, uint8_t p[MAD_LEN])
{
	const struct message *msg = message_of(m->attr_id);

	assert(msg);
	memset(p, 0, MAD_LEN);
	p[0] = MAD_BASE_VERSION;
	p[1] = MAD_CLASS_CM;
	p[2] = m->class_version;
	p[3] = m->method;
	put_be16(p + 4, m->status);
	put_be16(p + 6, m->class_specific);
	put_be64(p + 8, m->tid);
	put_be16(p + 16, m->attr_id);
	put_be32(p + 20, m->attr_mod);
	p += MAD_HDR_LEN;
	for (size_t i = 0; i < msg->count; i++) {
		const struct mad_field *f = &msg->fields[i];

		if (f->width > 64)
			memcpy(p + f->byte, (const uint8_t *)m + f->offset,
			       f->size);
		else
			put_number(p, f, mad_field_get(m, f));
	}
}

const struct mad_field *mad_fields(uint16_t attr_id, size_t *count)
{
	const struct message *msg = message_of(attr_id);

	*count = msg ? msg->count : 0;
	return msg ? msg->fields : NULL;
}

const char *mad_attr_name(uint16_t attr_id)
{
	const struct message *msg = message_of(attr_id);

	return msg ? msg->name : "?";
}

const char *cm_rej_str(unsigned reason)
{
	switch (reason) {
#define X(name, code, words)                                                   \
	case CM_REJ_##name:                                                    \
		return words;
		CM_REJ_REASONS(X)
#undef X
	default:
		return "unknown reason";
	}
}

static bool all_zero(const uint8_t *p, size_t len)
{
	while (len && !*p)
		p++, len--;
	return !len;
}

int ipcm_decode(struct ipcm_hdr *h, const uint8_t p[IPCM_HDR_LEN])
{
	*h = (struct ipcm_hdr){
		.major = p[0] >> 4,
		.minor = p[0] & 0xf,
		.ipv = p[1] >> 4,
		.port = get_be16(p + 2),
	};
	memcpy(h->src, p + 4, 16);
	memcpy(h->dst, p + 20, 16);
	if (h->major || h->minor || (h->ipv != 4 && h->ipv != 6))
		return -EINVAL;
	if (h->ipv == 4 && !(all_zero(h->src, 12) && all_zero(h->dst, 12)))
		return -EINVAL;
	return 0;
}

void ipcm_encode(const struct ipcm_hdr *h, uint8_t p[IPCM_HDR_LEN])
{
	p[0] = (uint8_t)(h->major << 4 | h->minor);
	p[1] = (uint8_t)(h->ipv << 4);
	put_be16(p + 2, h->port);
	memcpy(p + 4, h->src, 16);
	memcpy(p + 20, h->dst, 16);
}

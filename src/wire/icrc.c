/*
 * icrc.c - the invariant CRC, and the IPv4 identification that it covers
 *
 * A CRC is the remainder of the message, taken as a polynomial over GF(2),
 * modulo G. Two messages of one length that differ by D(x), n bytes before
 * their end, have CRCs that differ by D(x) * x^(8n + 32) mod G, whatever else
 * is in them. So when a packet's CRC does not fit the identification that was
 * guessed, multiplying the difference by x^-(8n + 32) gives the one D that
 * would explain it; only if that is a polynomial of 16 bits has the sender
 * used another identification, and D says which. x has an inverse modulo G
 * because G has a constant term.
 *
 * Polynomials are kept as the CRC is, reflected: bit 31 is x^0.
 */
#include "icrc.h"

#include "crc.h"
#include "lrh.h"

#include "base/bytes.h"
#include "base/gid.h"

#include <stdatomic.h>
#include <string.h>

#define G 0xedb88320u
#define X0 0x80000000u

#define V4_LEN 20
#define V6_LEN 40
#define UDP_LEN 8
#define V4_ID_OFFSET 4 /* of the identification in an IPv4 header */
#define UDP_MAX 65507u /* bytes in the largest IPv4 datagram */

static uint32_t mul_x(uint32_t a)
{
	return (a >> 1) ^ (G & (0 - (a & 1)));
}

static uint32_t div_x(uint32_t a)
{
	return a & X0 ? (a ^ G) << 1 | 1 : a << 1;
}

static uint32_t poly_mul(uint32_t a, uint32_t b)
{
	uint32_t r = 0;

	for (; a; a <<= 1) {
		r ^= b & (0 - (a >> 31));
		b = mul_x(b);
	}
	return r;
}

/* x^(-8n) */
static uint32_t x_to_minus_bytes(size_t n)
{
	uint32_t base = X0, r = X0;
	int i;

	for (i = 0; i < 8; i++)
		base = div_x(base);
	for (; n; n >>= 1) {
		if (n & 1)
			r = poly_mul(base, r);
		base = poly_mul(base, base);
	}
	return r;
}

/*
 * x^-(8n + 32) for the n bytes between the identification and the ICRC of a
 * packet of len bytes from BTH to ICRC. The powers are cached for the lengths
 * that packets have. No power is 0, so 0 marks one that is not known yet;
 * threads that compute the same one at the same time store the same value.
 */
static uint32_t id_factor(size_t len)
{
	static _Atomic uint32_t known[(ROCE_HDR_MAX + ROCE_MTU_MAX) / 4];
	size_t n = V4_LEN - V4_ID_OFFSET - 2 + UDP_LEN + len - ROCE_ICRC_LEN;
	_Atomic uint32_t *slot = NULL;
	uint32_t f = 0;

	if (len % 4 == 0 && len / 4 < ARRAY_SIZE(known)) {
		slot = &known[len / 4];
		f = atomic_load_explicit(slot, memory_order_relaxed);
	}
	if (!f) {
		f = x_to_minus_bytes(n + 4);
		if (slot)
			atomic_store_explicit(slot, f, memory_order_relaxed);
	}
	return f;
}

uint32_t icrc_begin(const union ibv_gid *src, const union ibv_gid *dst,
		    uint16_t sport, uint16_t dport, size_t transport_len,
		    uint16_t ip_id)
{
	uint8_t buf[LRH_LEN + V6_LEN + UDP_LEN];
	uint32_t udp_len = (uint32_t)(UDP_LEN + transport_len);
	uint8_t *p = buf + LRH_LEN;

	memset(buf, 0xff, LRH_LEN);
	if (roce_gid_is_v4(src)) {
		p[0] = 0x45;
		p[1] = 0xff; /* type of service */
		put_be16(p + 2, V4_LEN + udp_len);
		put_be16(p + V4_ID_OFFSET, ip_id);
		put_be16(p + 6, 0x4000); /* DF */
		p[8] = 0xff; /* time to live */
		p[9] = 17;
		put_be16(p + 10, 0xffff); /* header checksum */
		memcpy(p + 12, src->raw + 12, 4);
		memcpy(p + 16, dst->raw + 12, 4);
		p += V4_LEN;
	} else {
		put_be32(p, 0x6fffffff); /* traffic class, flow label */
		put_be16(p + 4, udp_len);
		p[6] = 17;
		p[7] = 0xff; /* hop limit */
		memcpy(p + 8, src->raw, 16);
		memcpy(p + 24, dst->raw, 16);
		p += V6_LEN;
	}
	put_be16(p, sport);
	put_be16(p + 2, dport);
	put_be16(p + 4, udp_len);
	put_be16(p + 6, 0xffff); /* checksum */
	p += UDP_LEN;
	return crc32_gzip_refl(0, buf, (uint64_t)(p - buf));
}

uint32_t icrc_grh(const uint8_t grh[GRH_LEN])
{
	uint8_t buf[LRH_LEN + GRH_LEN];

	memset(buf, 0xff, LRH_LEN);
	memcpy(buf + LRH_LEN, grh, GRH_LEN);
	put_be32(buf + LRH_LEN, 0x6fffffff); /* traffic class, flow label */
	buf[LRH_LEN + 7] = 0xff; /* hop limit */
	return icrc_update(0, buf, sizeof(buf));
}

uint32_t icrc_bth(uint32_t crc, const uint8_t *hdr, size_t len)
{
	uint8_t buf[ROCE_HDR_MAX];
	size_t n = len < sizeof(buf) ? len : sizeof(buf);

	memcpy(buf, hdr, n);
	buf[4] = 0xff; /* resv8a: FECN, BECN */
	crc = crc32_gzip_refl(crc, buf, n);
	return icrc_update(crc, hdr + n, len - n);
}

uint32_t icrc_bth_own(uint32_t crc, uint8_t *hdr, size_t len)
{
	const uint8_t was = hdr[4];

	hdr[4] = 0xff;
	crc = icrc_update(crc, hdr, len);
	hdr[4] = was;
	return crc;
}

uint32_t icrc_update(uint32_t crc, const void *p, size_t len)
{
	if (!len)
		return crc;
	crc = crc32_gzip_refl(crc, p, len);
	crc_done(len);
	return crc;
}

void icrc_put(uint8_t out[ROCE_ICRC_LEN], uint32_t crc)
{
	crc_put(out, crc);
}

/* A message and its acknowledgement differ in length by little, flows in their
 * ports. */
static size_t memo_index(size_t transport_len, uint16_t sport)
{
	return (transport_len / 4 ^ sport) % ICRC_MEMOS;
}

/* k is of this source and destination. */
static uint32_t begin_known(struct icrc_known *k, const union ibv_gid *src,
			    const union ibv_gid *dst, uint16_t sport,
			    uint16_t dport, size_t transport_len,
			    uint16_t ip_id)
{
	if (k->len == transport_len && k->sport == sport && k->dport == dport &&
	    k->ip_id == ip_id)
		return k->crc;
	*k = (struct icrc_known){
		.len = (uint32_t)transport_len,
		.sport = sport,
		.dport = dport,
		.ip_id = ip_id,
		.crc = icrc_begin(src, dst, sport, dport, transport_len, ip_id),
	};
	return k->crc;
}

uint32_t icrc_begin_flow(struct icrc_flow *f, const union ibv_gid *src,
			 const union ibv_gid *dst, uint16_t sport,
			 uint16_t dport, size_t transport_len, uint16_t ip_id)
{
	return begin_known(&f->known[memo_index(transport_len, sport)], src,
			   dst, sport, dport, transport_len, ip_id);
}

uint32_t icrc_begin_known(struct icrc_memo *m, const union ibv_gid *src,
			  const union ibv_gid *dst, uint16_t sport,
			  uint16_t dport, size_t transport_len, uint16_t ip_id)
{
	__auto_type k = &m->known[memo_index(transport_len, sport)];

	if (!gid_equal(&k->src, src) || !gid_equal(&k->dst, dst)) {
		k->src = *src;
		k->dst = *dst;
		k->of.len = 0;
	}
	return begin_known(&k->of, src, dst, sport, dport, transport_len,
			   ip_id);
}

bool icrc_is(uint32_t crc, const uint8_t *pkt, size_t len)
{
	return crc == crc_get(pkt + len - ROCE_ICRC_LEN);
}

/* crc: of the packet, computed with *id. */
static bool crc_fits(uint32_t crc, bool v4, const uint8_t *pkt, size_t len,
		     uint16_t *id)
{
	uint32_t diff = crc ^ crc_get(pkt + len - ROCE_ICRC_LEN);

	if (diff == 0)
		return true;
	if (!v4)
		return false;

	/* The bits of D, low byte of the identification in the top byte. */
	diff = poly_mul(diff, id_factor(len));
	if (diff & 0xffff)
		return false;
	*id ^= (uint16_t)(diff >> 24 | (diff >> 8 & 0xff00));
	return true;
}

static bool length_is_good(size_t len)
{
	return len >= ROCE_BTH_LEN + ROCE_ICRC_LEN && len <= UDP_MAX;
}

bool icrc_check(const union ibv_gid *src, const union ibv_gid *dst,
		uint16_t sport, uint16_t dport, const uint8_t *pkt, size_t len,
		uint16_t *ip_id)
{
	uint16_t none = 0, *id = ip_id ? ip_id : &none;
	uint32_t crc;

	if (!length_is_good(len))
		return false;
	crc = icrc_begin(src, dst, sport, dport, len, *id);
	crc = icrc_bth(crc, pkt, len - ROCE_ICRC_LEN);
	return crc_fits(crc, roce_gid_is_v4(src), pkt, len, id);
}

bool icrc_check_own(struct icrc_memo *m, const union ibv_gid *src,
		    const union ibv_gid *dst, uint16_t sport, uint16_t dport,
		    uint8_t *pkt, size_t len, uint16_t *ip_id)
{
	uint32_t crc;

	if (!length_is_good(len))
		return false;
	crc = icrc_begin_known(m, src, dst, sport, dport, len, *ip_id);
	crc = icrc_bth_own(crc, pkt, len - ROCE_ICRC_LEN);
	return crc_fits(crc, roce_gid_is_v4(src), pkt, len, ip_id);
}

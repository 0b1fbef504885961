/*
 * decode_fuzz.c - any bytes as a packet from BTH to ICRC, or as a frame of RoCE
 * v1: what can be decoded is encoded to the same bytes, and the ICRC check accepts
 * only correct ICRCs
 */
#include "fuzz.h"

#include "base/bytes.h"
#include "link/rocev1.h"
#include "wire/grh.h"
#include "wire/icrc.h"

#include <errno.h>
#include <string.h>

/* Sets the reserved bits of the headers at p to zero, as a sender does. */
static void clear_reserved(uint8_t *p)
{
	uint32_t flags = roce_opcode(p[0])->flags;

	p[4] &= 0xc0;
	p[8] &= 0x80;
	if (flags & ROCE_F_XRCETH)
		p[12] = 0;
	if (flags & ROCE_F_DETH)
		p[16] = 0;
	if (p[0] == ROCE_CNP)
		memset(p + ROCE_BTH_LEN, 0, 16);
}

static void round_trip(const uint8_t *data, size_t size)
{
	uint8_t want[ROCE_HDR_MAX], out[ROCE_HDR_MAX + 8], again[sizeof(out)];
	const struct roce_opcode *op;
	struct roce_hdr h, h2;
	size_t len, i;
	int n;

	n = roce_decode(&h, data, size);
	if (n < 0)
		return;
	len = (size_t)n;
	op = roce_opcode(data[0]);
	FUZZ_CHECK(op->name && len == op->hdr_len);
	FUZZ_CHECK(len <= size && size % 4 == 0);
	FUZZ_CHECK(h.pad <= size - len);
	FUZZ_CHECK((op->flags & ROCE_F_PAYLOAD) || size == len);
	FUZZ_CHECK((h.dest_qpn | h.psn | h.src_qpn | h.xrc_srqn | h.msn) <=
		   0xffffff);

	memset(out, 0xee, sizeof(out));
	FUZZ_CHECK(roce_encode(&h, out) == len);
	for (i = len; i < sizeof(out); i++)
		FUZZ_CHECK(out[i] == 0xee);
	memcpy(want, data, len);
	clear_reserved(want);
	FUZZ_CHECK(memcmp(out, want, len) == 0);

	/* No field is lost on the way: padding allows no comparison of h. */
	memcpy(again, data, len);
	clear_reserved(again);
	FUZZ_CHECK(roce_decode(&h2, again, len + (h.pad ? 4 : 0)) == n);
	FUZZ_CHECK(roce_encode(&h2, out) == len);
	FUZZ_CHECK(memcmp(out, want, len) == 0);
}

static uint32_t icrc_of(const union ibv_gid *gid, const uint8_t *p, size_t len,
			uint16_t id)
{
	uint32_t crc =
		icrc_begin(&gid[0], &gid[1], 49152, ROCE_UDP_PORT, len, id);

	return icrc_bth(crc, p, len - ROCE_ICRC_LEN);
}

static void icrc(const union ibv_gid *gid, const uint8_t *data, size_t size)
{
	bool v4 = roce_gid_is_v4(&gid[0]);
	uint16_t id = 0x55aa, found;
	uint8_t out[ROCE_ICRC_LEN];
	uint8_t *p;

	found = id;
	if (icrc_check(&gid[0], &gid[1], 49152, ROCE_UDP_PORT, data, size,
		       &found)) {
		icrc_put(out, icrc_of(gid, data, size, found));
		FUZZ_CHECK(memcmp(out, data + size - 4, 4) == 0);
		FUZZ_CHECK(v4 || found == id);
	} else {
		FUZZ_CHECK(found == id);
	}
	if (size < ROCE_BTH_LEN + ROCE_ICRC_LEN || size > 65507)
		return;

	p = malloc(size);
	FUZZ_CHECK(p);
	memcpy(p, data, size);
	id = get_be16(data + 10);
	icrc_put(p + size - 4, icrc_of(gid, p, size, id));
	found = get_be16(data + 2);
	FUZZ_CHECK(icrc_check(&gid[0], &gid[1], 49152, ROCE_UDP_PORT, p, size,
			      &found));
	FUZZ_CHECK(!v4 || found == id);
	/* One wrong bit, where no identification can explain it. */
	if (!v4) {
		p[size - 1 - data[9] % 4] ^= (uint8_t)(1u << data[11] % 8);
		FUZZ_CHECK(!icrc_check(&gid[0], &gid[1], 49152, ROCE_UDP_PORT,
				       p, size, NULL));
	}
	free(p);
}

/* p: as long as it says, so that a sanitizer sees what is read beyond. */
static void frame_of(uint8_t *p, size_t size, bool good)
{
	uint8_t *before = malloc(size ? size : 1);
	struct roce_rx pkt;
	int err;

	FUZZ_CHECK(before);
	memcpy(before, p, size);
	err = rocev1_decode(&pkt, p, size);
	FUZZ_CHECK(!memcmp(before, p, size));
	FUZZ_CHECK(!good || err != -EBADMSG);
	if (!err) {
		FUZZ_CHECK(pkt.v1 && pkt.grh == p && !pkt.source);
		FUZZ_CHECK(pkt.payload >= p + GRH_LEN + ROCE_BTH_LEN);
		FUZZ_CHECK(pkt.payload + pkt.len + ROCE_ICRC_LEN <= p + size);
	}
	free(before);
}

static void frame(const uint8_t *data, size_t size)
{
	uint8_t *p = malloc(size ? size : 1);
	size_t len;

	FUZZ_CHECK(p);
	memcpy(p, data, size);
	frame_of(p, size, false);
	/* A header that lets the rest be looked at. */
	len = size < GRH_LEN ? 0 : size - GRH_LEN;
	if (len >= ROCE_BTH_LEN + ROCE_ICRC_LEN && len < 65536) {
		struct grh g = { .pay_len = (uint16_t)len };

		memcpy(g.sgid.raw, data + 8, 16);
		memcpy(g.dgid.raw, data + 24, 16);
		grh_put(p, &g);
		icrc_put(p + size - 4,
			 icrc_bth(icrc_grh(p), p + GRH_LEN, len - 4));
		frame_of(p, size, true);
	}
	free(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const union ibv_gid v4[2] = {
		{ .raw = { [10] = 0xff, 0xff, 10, 77, 2, 1 } },
		{ .raw = { [10] = 0xff, 0xff, 10, 77, 2, 2 } },
	};
	static const union ibv_gid v6[2] = {
		{ .raw = { 0xfd, 0x77, 0, 2, [15] = 1 } },
		{ .raw = { 0xfd, 0x77, 0, 2, [15] = 2 } },
	};

	round_trip(data, size);
	if (size >= ROCE_ICRC_LEN)
		round_trip(data, size - ROCE_ICRC_LEN);
	icrc(v4, data, size);
	icrc(v6, data, size);
	frame(data, size);
	return 0;
}

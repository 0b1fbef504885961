/*
 * test_rocev1_frames.c - frames of RoCE v1: their header, their ICRC, and which of
 * them the filter in the kernel lets a process have
 */
#include "unit.h"

#include "base/bytes.h"
#include "link/rocev1.h"
#include "registry/registry.h"
#include "wire/grh.h"
#include "wire/icrc.h"

#include <errno.h>
#include <linux/if_packet.h>

#define PAYLOAD 6u
#define SIZE (ROCE_BTH_LEN + 8u /* with the pad */ + ROCE_ICRC_LEN)
#define FRAME (GRH_LEN + SIZE)
#define QPN 0x123456u

static const union ibv_gid ours = { .raw = {
					    [10] = 0xff, 0xff, 10, 91, 0, 1 } };
static const union ibv_gid theirs = {
	.raw = { [10] = 0xff, 0xff, 10, 91, 0, 2 }
};

/* Of bytes, bit by bit, as 7.8.1 has it: by another hand than ISA-L's. */
static uint32_t slow_crc(uint32_t crc, const uint8_t *p, size_t len)
{
	while (len--) {
		crc ^= *p++;
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
	}
	return crc;
}

/* Of a frame: annex A16 with 7.8.1, over a copy whose variant fields are ones. */
static uint32_t slow_icrc(const uint8_t *frame, size_t len)
{
	uint8_t copy[8 + 256];

	assert_true(len <= sizeof(copy) - 8);
	memset(copy, 0xff, 8); /* LRH */
	memcpy(copy + 8, frame, len - ROCE_ICRC_LEN);
	copy[8] |= 0x0f; /* traffic class and flow label */
	memset(copy + 9, 0xff, 3);
	copy[8 + 7] = 0xff; /* hop limit */
	copy[8 + GRH_LEN + 4] = 0xff; /* resv8a */
	return ~slow_crc(0xffffffff, copy, 8 + len - ROCE_ICRC_LEN);
}

static void frame_make(uint8_t frame[FRAME], uint32_t qpn)
{
	const struct roce_hdr h = {
		.opcode = ROCE_RC | ROCE_SEND_ONLY,
		.pad = 8 - PAYLOAD,
		.pkey = 0xffff,
		.dest_qpn = qpn,
		.psn = 77,
	};
	uint8_t *p = frame + GRH_LEN;
	uint32_t crc;

	memset(frame, 0, FRAME);
	grh_put(frame, &(struct grh){ .sgid = theirs,
				      .dgid = ours,
				      .flow_label = 0x12345,
				      .tclass = 0x60,
				      .hop_limit = 64,
				      .pay_len = SIZE });
	roce_encode(&h, p);
	memcpy(p + ROCE_BTH_LEN, "abcdef", PAYLOAD);
	crc = icrc_bth(icrc_grh(frame), p, SIZE - ROCE_ICRC_LEN);
	icrc_put(p + SIZE - ROCE_ICRC_LEN, crc);
}

static void icrc_is_the_specifications(void **state)
{
	uint8_t frame[FRAME];
	uint32_t crc;

	(void)state;
	for (uint32_t i = 0; i < 100; i++) {
		frame_make(frame, QPN + i);
		crc = slow_icrc(frame, FRAME);
		/* The least significant byte first. */
		for (unsigned k = 0; k < 4; k++)
			assert_int_equal(frame[FRAME - 4 + k],
					 (uint8_t)(crc >> 8 * k));
	}
}

static void decodes(void **state)
{
	uint8_t frame[FRAME + 20];
	struct roce_rx pkt;

	(void)state;
	frame_make(frame, QPN);
	/* Behind a short frame there is padding. */
	memset(frame + FRAME, 0xee, 20);
	assert_int_equal(rocev1_decode(&pkt, frame, sizeof(frame)), 0);
	assert_int_equal(pkt.h.dest_qpn, QPN);
	assert_int_equal(pkt.len, PAYLOAD);
	assert_memory_equal(pkt.payload, "abcdef", PAYLOAD);
	assert_memory_equal(&pkt.sgid, &theirs, 16);
	assert_memory_equal(&pkt.dgid, &ours, 16);
	assert_ptr_equal(pkt.grh, frame);
	assert_int_equal(pkt.tclass, 0x60);
	assert_true(pkt.v1);
	assert_false(pkt.host || pkt.handed || pkt.ecn_ce || pkt.sport);
}

/* Each bit, but for those that routers may change. */
static void wrong_bits_are_noticed(void **state)
{
	static const uint8_t variant[] = { 1, 2, 3, 7, GRH_LEN + 4 };
	uint8_t frame[FRAME], copy[FRAME];
	struct roce_rx pkt;
	int err;

	(void)state;
	frame_make(frame, QPN);
	for (size_t bit = 0; bit < 8 * FRAME; bit++) {
		bool good = bit < 8 && (bit & 7) < 4; /* traffic class */

		for (size_t i = 0; i < sizeof(variant); i++)
			good |= bit / 8 == variant[i];
		memcpy(copy, frame, FRAME);
		copy[bit / 8] ^= (uint8_t)(1u << bit % 8);
		err = rocev1_decode(&pkt, copy, FRAME);
		if (good)
			assert_int_equal(err, 0);
		else
			assert_true(err == -EINVAL || err == -EBADMSG);
	}
}

static void what_is_no_packet(void **state)
{
	uint8_t frame[FRAME];
	struct roce_rx pkt;

	(void)state;
	frame_make(frame, QPN);
	for (size_t len = 0; len < FRAME; len++)
		assert_int_equal(rocev1_decode(&pkt, frame, len), -EINVAL);
	for (uint32_t n = 0; n < 0x10000; n += n < SIZE ? 1 : 251) {
		frame_make(frame, QPN);
		put_be16(frame + 4, n);
		if (n != SIZE)
			assert_true(rocev1_decode(&pkt, frame, FRAME) < 0);
	}
	frame_make(frame, QPN);
	frame[6] = 17; /* UDP */
	assert_int_equal(rocev1_decode(&pkt, frame, FRAME), -EINVAL);
	frame_make(frame, QPN);
	frame[0] = 0x45;
	assert_int_equal(rocev1_decode(&pkt, frame, FRAME), -EINVAL);
}

/* The filter */

#define IF 7u
#define LO 1u

/* What the kernel does with a program, as far as this one uses it. */
static bool takes(const struct sock_filter *p, size_t n, const uint8_t *frame,
		  size_t len, uint32_t ifindex, uint32_t type)
{
	uint32_t a = 0;

	for (size_t i = 0; i < n; i++) {
		const struct sock_filter *f = &p[i];
		const uint32_t size = BPF_SIZE(f->code) == BPF_B ? 1 : 4;

		switch (f->code) {
		case BPF_LD | BPF_ABS | BPF_W:
		case BPF_LD | BPF_ABS | BPF_B:
			if (f->k == (uint32_t)(SKF_AD_OFF + SKF_AD_IFINDEX))
				a = ifindex;
			else if (f->k ==
				 (uint32_t)(SKF_AD_OFF + SKF_AD_PKTTYPE))
				a = type;
			else if (f->k + size > len)
				return false;
			else
				a = size == 1 ? frame[f->k] :
						get_be32(frame + f->k);
			break;
		case BPF_ALU | BPF_AND | BPF_K:
			a &= f->k;
			break;
		case BPF_ALU | BPF_RSH | BPF_K:
			a >>= f->k;
			break;
		case BPF_JMP | BPF_JA:
			i += f->k;
			break;
		case BPF_JMP | BPF_JEQ | BPF_K:
			i += a == f->k ? f->jt : f->jf;
			break;
		case BPF_JMP | BPF_JGT | BPF_K:
			i += a > f->k ? f->jt : f->jf;
			break;
		case BPF_RET | BPF_K:
			return f->k;
		default:
			fail_msg("code 0x%x", f->code);
		}
	}
	fail_msg("it does not end");
	return false;
}

struct table {
	struct rocev1_addr addr[ROCEV1_ADDRS];
	size_t n;
	uint16_t chunk[ROCEV1_CHUNKS];
	size_t nchunks;
};

static bool gets(const struct table *t, uint32_t qpn, uint32_t ifindex)
{
	struct sock_filter prog[ROCEV1_FILTER_MAX];
	uint8_t frame[FRAME];
	size_t n = rocev1_filter(prog, t->addr, t->n, LO, t->chunk, t->nchunks);

	assert_true(n <= ROCEV1_FILTER_MAX);
	frame_make(frame, qpn);
	/* Neither too short, nor for others, nor of UDP. */
	for (size_t len = 0; len < GRH_LEN + 8; len++)
		assert_false(takes(prog, n, frame, len, ifindex, PACKET_HOST));
	assert_false(takes(prog, n, frame, FRAME, ifindex, PACKET_OTHERHOST));
	frame[6] = 17;
	assert_false(takes(prog, n, frame, FRAME, ifindex, PACKET_HOST));
	frame[6] = GRH_NEXT_BTH;
	return takes(prog, n, frame, FRAME, ifindex, PACKET_HOST);
}

static void filter_by_address(void **state)
{
	struct table t = { .n = 0 };

	(void)state;
	assert_false(gets(&t, QPN, IF));
	t.addr[t.n++] = (struct rocev1_addr){ .gid = theirs, .ifindex = IF };
	assert_false(gets(&t, QPN, IF));
	t.addr[t.n++] = (struct rocev1_addr){ .gid = ours, .ifindex = IF + 1 };
	assert_false(gets(&t, QPN, IF));
	t.addr[1].ifindex = IF;
	assert_true(gets(&t, QPN, IF));
	assert_true(gets(&t, QPN, LO));
	assert_false(gets(&t, QPN, IF + 1));
	/* Each place of a full table. */
	for (size_t at = 0; at < ROCEV1_ADDRS; at++) {
		for (t.n = 0; t.n < ROCEV1_ADDRS; t.n++)
			t.addr[t.n] = (struct rocev1_addr){
				.gid = t.n == at ? ours : theirs, .ifindex = IF
			};
		assert_true(gets(&t, QPN, IF));
		t.addr[at].gid.raw[15] ^= 0x10;
		assert_false(gets(&t, QPN, IF));
	}
	/* One that differs in one word. */
	for (size_t i = 0; i < 16; i += 4) {
		t.n = 1;
		t.addr[0].gid = ours;
		t.addr[0].gid.raw[i] ^= 1;
		assert_false(gets(&t, QPN, IF));
	}
}

static void filter_by_number(void **state)
{
	struct table t = { .n = 1, .addr = { { .gid = ours, .ifindex = IF } } };

	(void)state;
	/* QP1 and multicast are RoCE v2's. */
	assert_false(gets(&t, 0, IF));
	assert_false(gets(&t, 1, IF));
	assert_false(gets(&t, 0xffffff, IF));
	assert_true(gets(&t, 2, IF));
	assert_true(gets(&t, 0xfffffe, IF));
	t.chunk[t.nchunks++] = 0x400;
	assert_false(gets(&t, QPN, IF));
	for (; t.nchunks < ROCEV1_CHUNKS; t.nchunks++)
		t.chunk[t.nchunks] = (uint16_t)(0x500 + t.nchunks);
	assert_false(gets(&t, QPN, IF));
	t.chunk[ROCEV1_CHUNKS - 1] = QPN / REGISTRY_CHUNK;
	assert_true(gets(&t, QPN, IF));
	assert_true(gets(&t, 0x400fff, IF));
	assert_false(gets(&t, 0x401000, IF));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(icrc_is_the_specifications),
		cmocka_unit_test(decodes),
		cmocka_unit_test(wrong_bits_are_noticed),
		cmocka_unit_test(what_is_no_packet),
		cmocka_unit_test(filter_by_address),
		cmocka_unit_test(filter_by_number),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

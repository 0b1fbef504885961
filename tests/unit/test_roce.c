/*
 * test_roce.c - transport headers against vectors written by hand from the
 * figures of chapter 9 and annexes A14, A17 and A19
 */
#include "unit.h"

#include "base/bytes.h"
#include "wire/roce.h"

#include <errno.h>

/*
 * Lengths of BTH and extended headers as table 38 implies, and whether payload
 * may follow. Written down a second time on purpose: opcode.c computes them.
 */
/* clang-format off */
static const struct {
	uint8_t opcode, len;
	bool payload;
} lengths[] = {
	{ 0x00, 12, true },  { 0x01, 12, true },  { 0x02, 12, true },
	{ 0x03, 16, true },  { 0x04, 12, true },  { 0x05, 16, true },
	{ 0x06, 28, true },  { 0x07, 12, true },  { 0x08, 12, true },
	{ 0x09, 16, true },  { 0x0a, 28, true },  { 0x0b, 32, true },
	{ 0x0c, 28, false }, { 0x0d, 16, true },  { 0x0e, 12, true },
	{ 0x0f, 16, true },  { 0x10, 16, true },  { 0x11, 16, false },
	{ 0x12, 24, false }, { 0x13, 40, false }, { 0x14, 40, false },
	{ 0x16, 16, true },  { 0x17, 16, true },  { 0x1d, 28, true },

	{ 0x20, 12, true },  { 0x21, 12, true },  { 0x22, 12, true },
	{ 0x23, 16, true },  { 0x24, 12, true },  { 0x25, 16, true },
	{ 0x26, 28, true },  { 0x27, 12, true },  { 0x28, 12, true },
	{ 0x29, 16, true },  { 0x2a, 28, true },  { 0x2b, 32, true },

	{ 0x64, 20, true },  { 0x65, 24, true },

	{ 0x81, 28, false },

	{ 0xa0, 16, true },  { 0xa1, 16, true },  { 0xa2, 16, true },
	{ 0xa3, 20, true },  { 0xa4, 16, true },  { 0xa5, 20, true },
	{ 0xa6, 32, true },  { 0xa7, 16, true },  { 0xa8, 16, true },
	{ 0xa9, 20, true },  { 0xaa, 32, true },  { 0xab, 36, true },
	{ 0xac, 32, false }, { 0xad, 16, true },  { 0xae, 12, true },
	{ 0xaf, 16, true },  { 0xb0, 16, true },  { 0xb1, 16, false },
	{ 0xb2, 24, false }, { 0xb3, 44, false }, { 0xb4, 44, false },
	{ 0xb6, 20, true },  { 0xb7, 20, true },  { 0xbd, 32, true },
};
/* clang-format on */

static void opcodes(void **state)
{
	const struct roce_opcode *op;
	unsigned code, i;

	(void)state;
	for (code = 0; code < 256; code++) {
		op = roce_opcode((uint8_t)code);
		assert_non_null(op);
		for (i = 0; i < ARRAY_SIZE(lengths); i++)
			if (lengths[i].opcode == code)
				break;
		if (i == ARRAY_SIZE(lengths)) {
			assert_null(op->name);
			continue;
		}
		assert_non_null(op->name);
		assert_int_equal(op->hdr_len, lengths[i].len);
		assert_int_equal(!!(op->flags & ROCE_F_PAYLOAD),
				 lengths[i].payload);
		assert_true(op->hdr_len <= ROCE_HDR_MAX);
		if (code != ROCE_CNP)
			assert_true(!(op->flags & ROCE_F_REQUEST) !=
				    !(op->flags & ROCE_F_RESPONSE));
	}
	assert_string_equal(roce_opcode(0x0b)->name,
			    "RC RDMA WRITE Only with Immediate");
	assert_string_equal(roce_opcode(0x65)->name,
			    "UD SEND Only with Immediate");
}

/* First and last by name, so that no row has a flag too many or too few. */
static void message_bounds(void **state)
{
	const struct roce_opcode *op;
	bool first, last, middle;
	unsigned i;

	(void)state;
	for (i = 0; i < ARRAY_SIZE(lengths); i++) {
		op = roce_opcode(lengths[i].opcode);
		if (lengths[i].opcode == ROCE_CNP) {
			assert_int_equal(op->flags, 0);
			continue;
		}
		middle = strstr(op->name, "Middle");
		first = !middle && !strstr(op->name, " Last");
		last = !middle && !strstr(op->name, " First");
		assert_int_equal(!!(op->flags & ROCE_F_FIRST), first);
		assert_int_equal(!!(op->flags & ROCE_F_LAST), last);
		assert_int_equal(!!(op->flags & ROCE_F_SEND),
				 !!strstr(op->name, "SEND"));
		assert_int_equal(!!(op->flags & ROCE_F_WRITE),
				 !!strstr(op->name, "RDMA WRITE"));
		assert_int_equal(!!(op->flags & ROCE_F_READ),
				 !!strstr(op->name, "READ"));
		assert_int_equal(!!(op->flags & ROCE_F_ATOMIC),
				 strstr(op->name, "ATOMIC") ||
					 strstr(op->name, "CmpSwap") ||
					 strstr(op->name, "FetchAdd"));
		assert_int_equal(!!(op->flags & ROCE_F_IMM),
				 !!strstr(op->name, "Immediate"));
		assert_int_equal(!!(op->flags & ROCE_F_IETH),
				 !!strstr(op->name, "Invalidate"));
		assert_int_equal(!!(op->flags & ROCE_F_RESPONSE),
				 strstr(op->name, "response") ||
					 strstr(op->name, "Acknowledge"));
		assert_int_equal(!!(op->flags & ROCE_F_DETH),
				 !strncmp(op->name, "UD", 2));
		assert_int_equal(!!(op->flags & ROCE_F_XRCETH),
				 !strncmp(op->name, "XRC", 3) &&
					 (op->flags & ROCE_F_REQUEST));
	}
}

struct vector {
	const char *name;
	const char *hex;
	size_t payload; /* bytes that follow the headers, pad included */
	struct roce_hdr h;
};

/* clang-format off */
static const struct vector vectors[] = {
	{
		.name = "all bits of the BTH",
		.hex = "04 f0 8001 c0 a1b2c3 80 d4e5f6  11223300",
		.payload = 4,
		.h = { .opcode = 0x04, .solicited = true, .mig_req = true,
		       .pad = 3, .pkey = 0x8001, .fecn = true, .becn = true,
		       .dest_qpn = 0xa1b2c3, .ack_req = true,
		       .psn = 0xd4e5f6 },
	},
	{
		.name = "transport version",
		.hex = "24 0f ffff 00 000011 00 000000",
		.h = { .opcode = 0x24, .tver = 15, .pkey = 0xffff,
		       .dest_qpn = 0x11 },
	},
	{
		.name = "FECN alone",
		.hex = "01 00 ffff 80 ffffff 00 ffffff  00000000",
		.payload = 4,
		.h = { .opcode = 0x01, .pkey = 0xffff, .fecn = true,
		       .dest_qpn = 0xffffff, .psn = 0xffffff },
	},
	{
		.name = "RETH and ImmDt",
		.hex = "0b 40 ffff 00 000012 80 000001"
		       "0011223344556677 8899aabb ccddeeff  01020304  deadbeef",
		.payload = 4,
		.h = { .opcode = 0x0b, .mig_req = true, .pkey = 0xffff,
		       .dest_qpn = 0x12, .ack_req = true, .psn = 1,
		       .va = 0x0011223344556677, .rkey = 0x8899aabb,
		       .dma_len = 0xccddeeff,
		       .imm = 0x01020304 /* swapped below */ },
	},
	{
		.name = "RETH of a read",
		.hex = "0c 00 ffff 00 000012 80 000002"
		       "fedcba9876543210 00000101 80000000",
		.h = { .opcode = 0x0c, .pkey = 0xffff, .dest_qpn = 0x12,
		       .ack_req = true, .psn = 2, .va = 0xfedcba9876543210,
		       .rkey = 0x101, .dma_len = 0x80000000 },
	},
	{
		.name = "AETH",
		.hex = "11 00 ffff 00 000012 00 000003  63 abcdef",
		.h = { .opcode = 0x11, .pkey = 0xffff, .dest_qpn = 0x12,
		       .psn = 3, .syndrome = 0x63, .msn = 0xabcdef },
	},
	{
		.name = "AETH of a read response",
		.hex = "10 20 ffff 00 000012 00 000003  1f 000001  61620000",
		.payload = 4,
		.h = { .opcode = 0x10, .pad = 2, .pkey = 0xffff,
		       .dest_qpn = 0x12, .psn = 3, .syndrome = 0x1f,
		       .msn = 1 },
	},
	{
		.name = "AETH and AtomicAckETH",
		.hex = "12 00 ffff 00 000012 00 000004  1f 000002"
		       "8070605040302010",
		.h = { .opcode = 0x12, .pkey = 0xffff, .dest_qpn = 0x12,
		       .psn = 4, .syndrome = 0x1f, .msn = 2,
		       .atomic_orig = 0x8070605040302010 },
	},
	{
		.name = "AtomicETH",
		.hex = "13 00 ffff 00 000012 80 000005"
		       "0000aaaabbbbcccc 12345678 1111111122222222"
		       "3333333344444444",
		.h = { .opcode = 0x13, .pkey = 0xffff, .dest_qpn = 0x12,
		       .ack_req = true, .psn = 5, .va = 0x0000aaaabbbbcccc,
		       .rkey = 0x12345678, .swap_add = 0x1111111122222222,
		       .compare = 0x3333333344444444 },
	},
	{
		.name = "IETH",
		.hex = "17 00 ffff 00 000012 80 000006  87654321",
		.h = { .opcode = 0x17, .pkey = 0xffff, .dest_qpn = 0x12,
		       .ack_req = true, .psn = 6, .inv_rkey = 0x87654321 },
	},
	{
		.name = "DETH and ImmDt",
		.hex = "65 80 ffff 00 000001 00 000007"
		       "80010000 00 fedcba  0a0b0c0d",
		.h = { .opcode = 0x65, .solicited = true, .pkey = 0xffff,
		       .dest_qpn = 1, .psn = 7, .qkey = 0x80010000,
		       .src_qpn = 0xfedcba, .imm = 0x0a0b0c0d },
	},
	{
		.name = "XRCETH, RETH and ImmDt",
		.hex = "ab 00 ffff 00 000012 80 000008  00 345678"
		       "0000000000001000 00000102 00000004  0a0b0c0d 01020304",
		.payload = 4,
		.h = { .opcode = 0xab, .pkey = 0xffff, .dest_qpn = 0x12,
		       .ack_req = true, .psn = 8, .xrc_srqn = 0x345678,
		       .va = 0x1000, .rkey = 0x102, .dma_len = 4,
		       .imm = 0x0a0b0c0d },
	},
	{
		.name = "XRCETH and AtomicETH",
		.hex = "b4 00 ffff 00 000012 80 000009  00 345678"
		       "0000000000001008 00000102 0000000000000001"
		       "0000000000000000",
		.h = { .opcode = 0xb4, .pkey = 0xffff, .dest_qpn = 0x12,
		       .ack_req = true, .psn = 9, .xrc_srqn = 0x345678,
		       .va = 0x1008, .rkey = 0x102, .swap_add = 1 },
	},
	{
		.name = "XRCETH and IETH",
		.hex = "b6 00 ffff 00 000012 80 00000a  00 000001  00000203",
		.h = { .opcode = 0xb6, .pkey = 0xffff, .dest_qpn = 0x12,
		       .ack_req = true, .psn = 10, .xrc_srqn = 1,
		       .inv_rkey = 0x203 },
	},
	{
		.name = "XRC acknowledge",
		.hex = "b1 00 ffff 00 000012 00 00000b  00 000001",
		.h = { .opcode = 0xb1, .pkey = 0xffff, .dest_qpn = 0x12,
		       .psn = 11, .msn = 1 },
	},
	{
		.name = "RETH of an atomic write",
		.hex = "1d 00 ffff 00 000012 80 00000c"
		       "0000000000001010 00000102 00000008  1122334455667788",
		.payload = 8,
		.h = { .opcode = 0x1d, .pkey = 0xffff, .dest_qpn = 0x12,
		       .ack_req = true, .psn = 12, .va = 0x1010, .rkey = 0x102,
		       .dma_len = 8 },
	},
	{
		.name = "CNP",
		.hex = "81 00 ffff 40 000012 00 000000"
		       "00000000 00000000 00000000 00000000",
		.h = { .opcode = 0x81, .pkey = 0xffff, .becn = true,
		       .dest_qpn = 0x12 },
	},
};
/* clang-format on */

static size_t from_hex(const char *hex, uint8_t *out)
{
	size_t n = 0;
	int used;

	while (sscanf(hex, " %2hhx%n", out + n, &used) == 1) {
		hex += used;
		n++;
	}
	return n;
}

static void assert_same(const struct roce_hdr *a, const struct roce_hdr *b)
{
	assert_int_equal(a->opcode, b->opcode);
	assert_int_equal(a->solicited, b->solicited);
	assert_int_equal(a->mig_req, b->mig_req);
	assert_int_equal(a->pad, b->pad);
	assert_int_equal(a->tver, b->tver);
	assert_int_equal(a->pkey, b->pkey);
	assert_int_equal(a->fecn, b->fecn);
	assert_int_equal(a->becn, b->becn);
	assert_int_equal(a->dest_qpn, b->dest_qpn);
	assert_int_equal(a->ack_req, b->ack_req);
	assert_int_equal(a->psn, b->psn);
	assert_int_equal(a->qkey, b->qkey);
	assert_int_equal(a->src_qpn, b->src_qpn);
	assert_int_equal(a->xrc_srqn, b->xrc_srqn);
	assert_int_equal(a->va, b->va);
	assert_int_equal(a->rkey, b->rkey);
	assert_int_equal(a->dma_len, b->dma_len);
	assert_int_equal(a->swap_add, b->swap_add);
	assert_int_equal(a->compare, b->compare);
	assert_int_equal(a->syndrome, b->syndrome);
	assert_int_equal(a->msn, b->msn);
	assert_int_equal(a->atomic_orig, b->atomic_orig);
	assert_int_equal(a->imm, b->imm);
	assert_int_equal(a->inv_rkey, b->inv_rkey);
}

static void known_bytes(void **state)
{
	uint8_t bytes[128], out[ROCE_HDR_MAX], imm[4];
	struct roce_hdr h, want;
	size_t i, len, hdr_len;
	int n;

	(void)state;
	for (i = 0; i < ARRAY_SIZE(vectors); i++) {
		const struct vector *v = &vectors[i];

		print_message("  %s\n", v->name);
		len = from_hex(v->hex, bytes);
		hdr_len = len - v->payload;
		want = v->h;
		put_be32(imm, want.imm);
		memcpy(&want.imm, imm, 4);

		memset(&h, 0xa5, sizeof(h));
		n = roce_decode(&h, bytes, len);
		assert_int_equal(n, hdr_len);
		assert_same(&h, &want);

		memset(out, 0xa5, sizeof(out));
		assert_int_equal(roce_encode(&want, out), hdr_len);
		assert_memory_equal(out, bytes, hdr_len);
	}
}

/*
 * 9.2 (BTH), 9.3 (DETH), A14 (XRCETH), A17.9.3 (CNP): reserved bits do not
 * matter on receipt and are zero on sending. RETH, AETH, AtomicETH, ImmDt and
 * IETH have none.
 */
static void reserved_bits(void **state)
{
	uint8_t bytes[128], dirty[128], out[ROCE_HDR_MAX];
	struct roce_hdr h;
	size_t i, len;
	int n;

	(void)state;
	for (i = 0; i < ARRAY_SIZE(vectors); i++) {
		const struct roce_opcode *op;

		len = from_hex(vectors[i].hex, bytes);
		op = roce_opcode(bytes[0]);
		memcpy(dirty, bytes, len);
		dirty[4] |= 0x3f;
		dirty[8] |= 0x7f;
		if (op->flags & ROCE_F_XRCETH)
			dirty[12] = 0xff;
		if (op->flags & ROCE_F_DETH)
			dirty[16] = 0xff;
		if (bytes[0] == ROCE_CNP)
			memset(dirty + 12, 0xff, 16);
		n = roce_decode(&h, dirty, len);
		assert_true(n > 0);
		assert_int_equal(roce_encode(&h, out), n);
		assert_memory_equal(out, bytes, (size_t)n);
	}
}

/* Every opcode with every length and pad: only what table 38 has passes. */
static void every_length(void **state)
{
	unsigned code, pad, i;
	struct roce_hdr h;
	size_t len, spare;
	int want, got;

	(void)state;
	for (code = 0; code < 256; code++) {
		for (i = 0; i < ARRAY_SIZE(lengths); i++)
			if (lengths[i].opcode == code)
				break;
		for (len = 0; len <= 64; len++) {
			/* As long as it says, so that ASan sees an overrun. */
			uint8_t *p = calloc(1, len ? len : 1);

			assert_non_null(p);
			for (pad = 0; pad < 4; pad++) {
				if (len > 0)
					p[0] = (uint8_t)code;
				if (len > 1)
					p[1] = (uint8_t)(pad << 4);
				want = -EINVAL;
				if (i < ARRAY_SIZE(lengths) && len % 4 == 0 &&
				    len >= lengths[i].len) {
					spare = len - lengths[i].len;
					if (lengths[i].payload ? pad <= spare :
								 !pad && !spare)
						want = lengths[i].len;
				}
				memset(&h, 0x5a, sizeof(h));
				got = roce_decode(&h, p, len);
				assert_int_equal(got, want);
				if (got < 0)
					assert_int_equal(h.opcode, 0x5a);
			}
			free(p);
		}
	}
}

static void psn_arithmetic(void **state)
{
	(void)state;
	assert_int_equal(psn_add(0xffffff, 1), 0);
	assert_int_equal(psn_add(0, 0xffffff), 0xffffff);
	assert_int_equal(psn_diff(0, 0xffffff), 1);
	assert_int_equal(psn_diff(0xffffff, 0), -1);
	assert_int_equal(psn_diff(5, 5), 0);
	assert_int_equal(psn_diff(0x7fffff, 0), 0x7fffff);
	assert_int_equal(psn_diff(0x800000, 0), -0x800000);
}

static void byte_order(void **state)
{
	uint8_t b[8];

	(void)state;
	put_be64(b, 0x0123456789abcdef);
	assert_memory_equal(b, "\x01\x23\x45\x67\x89\xab\xcd\xef", 8);
	assert_true(get_be64(b) == 0x0123456789abcdef);
	assert_int_equal(get_be32(b + 4), 0x89abcdef);
	assert_int_equal(get_be24(b + 5), 0xabcdef);
	assert_int_equal(get_be16(b + 6), 0xcdef);
	put_be24(b, 0xff000001);
	assert_memory_equal(b, "\x00\x00\x01\x67", 4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(opcodes),
		cmocka_unit_test(message_bounds),
		cmocka_unit_test(known_bytes),
		cmocka_unit_test(reserved_bits),
		cmocka_unit_test(every_length),
		cmocka_unit_test(psn_arithmetic),
		cmocka_unit_test(byte_order),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

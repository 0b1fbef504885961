/*
 * test_iwarp_wire.c - MPA, DDP and RDMAP against bytes written by hand from the
 * figures of RFC 5040, 5041, 5044 and 6581
 */
#include "unit.h"

#include "wire/mpa.h"
#include "wire/rdmap.h"

#include <errno.h>

/* ---- CRC --------------------------------------------------------------- */

static uint32_t finished(const void *p, size_t len)
{
	uint8_t out[MPA_CRC_LEN];

	mpa_crc_put(out, mpa_crc(MPA_CRC_INIT, p, len));
	assert_true(mpa_crc_is(out, mpa_crc(MPA_CRC_INIT, p, len)));
	return (uint32_t)out[3] << 24 | (uint32_t)out[2] << 16 |
	       (uint32_t)out[1] << 8 | out[0];
}

/* RFC 3720 (iSCSI), B.4, whose CRC RFC 5044 4.4 takes: as they are stored. */
static void crc_of_iscsi(void **state)
{
	uint8_t buf[32], stored[4];

	(void)state;
	assert_int_equal(finished("123456789", 9), 0xe3069283);
	memset(buf, 0, sizeof(buf));
	mpa_crc_put(stored, mpa_crc(MPA_CRC_INIT, buf, 32));
	assert_memory_equal(stored, "\xaa\x36\x91\x8a", 4);
	memset(buf, 0xff, sizeof(buf));
	mpa_crc_put(stored, mpa_crc(MPA_CRC_INIT, buf, 32));
	assert_memory_equal(stored, "\x43\xab\xa8\x62", 4);
	for (uint8_t i = 0; i < 32; i++)
		buf[i] = i;
	mpa_crc_put(stored, mpa_crc(MPA_CRC_INIT, buf, 32));
	assert_memory_equal(stored, "\x4e\x79\xdd\x46", 4);
}

/* In pieces as at once, whichever of the library's ways each takes. */
static void crc_of_pieces(void **state)
{
	static uint8_t buf[70000];
	uint64_t seed = rnd_seed();

	(void)state;
	rnd_fill(&seed, buf, sizeof(buf));
	for (int i = 0; i < 200; i++) {
		size_t len = rnd(&seed) % sizeof(buf);
		uint32_t crc = MPA_CRC_INIT;

		for (size_t at = 0, n; at < len; at += n) {
			n = 1 + rnd(&seed) % (len - at);
			crc = mpa_crc(crc, buf + at, n);
		}
		assert_int_equal(crc, mpa_crc(MPA_CRC_INIT, buf, len));
	}
}

/* ---- frames ------------------------------------------------------------ */

static const char request[] = "MPA ID Req Frame\xd0\x02\x00\x07"
			      "\xc0\x05\xff\xff"
			      "xyz";
static const char reply[] = "MPA ID Rep Frame\x40\x01\x00\x00";

static const uint8_t *bytes(const char *s)
{
	return (const uint8_t *)s;
}

static void frame_decodes(void **state)
{
	struct mpa_frame f;

	(void)state;
	assert_int_equal(mpa_frame_decode(&f, false, bytes(request),
					  sizeof(request) - 1),
			 0);
	assert_true(!f.reply && f.markers && f.crc && !f.reject && f.enhanced);
	assert_int_equal(f.revision, 2);
	assert_int_equal(f.private_len, 3);
	assert_int_equal(f.ird, 5);
	assert_int_equal(f.ord, MPA_RD_ANY);
	assert_true(f.peer_to_peer && f.rtr_send && f.rtr_write && f.rtr_read);

	assert_int_equal(
		mpa_frame_decode(&f, true, bytes(reply), sizeof(reply) - 1), 0);
	assert_true(f.reply && !f.markers && f.crc && !f.enhanced);
	assert_int_equal(f.private_len, 0);
	assert_int_equal(
		mpa_frame_decode(&f, false, bytes(reply), sizeof(reply) - 1),
		-EPROTO);
}

static void frame_encodes(void **state)
{
	struct mpa_frame f;
	uint8_t out[MPA_FRAME_MAX];

	(void)state;
	mpa_frame_decode(&f, false, bytes(request), sizeof(request) - 1);
	assert_int_equal(mpa_frame_encode(&f, out), 24);
	assert_memory_equal(out, request, 24);
	mpa_frame_decode(&f, true, bytes(reply), sizeof(reply) - 1);
	assert_int_equal(mpa_frame_encode(&f, out), 20);
	assert_memory_equal(out, reply, 20);
}

static void frame_lengths(void **state)
{
	uint8_t b[MPA_HDR_LEN + 4];
	struct mpa_frame f;

	(void)state;
	/* What cannot become a frame is known by its first wrong byte. */
	assert_int_equal(mpa_frame_len(false, bytes("MPA ID Re"), 9), 20);
	assert_int_equal(mpa_frame_len(false, bytes("MPA ID Rep"), 10),
			 -EPROTO);
	assert_int_equal(mpa_frame_len(false, bytes("GET / HTTP"), 1), -EPROTO);
	assert_int_equal(mpa_frame_len(false, bytes(""), 0), 20);
	memcpy(b, request, sizeof(b));
	put_be16(b + 18, MPA_PRIVATE_MAX);
	assert_int_equal(mpa_frame_len(false, b, 20), MPA_FRAME_MAX);
	put_be16(b + 18, MPA_PRIVATE_MAX + 1);
	assert_int_equal(mpa_frame_len(false, b, 20), -EMSGSIZE);
	/* Enhanced, but without room for what that means. */
	put_be16(b + 18, 3);
	assert_int_equal(mpa_frame_decode(&f, false, b, 23), -EMSGSIZE);
	put_be16(b + 18, 4);
	assert_int_equal(mpa_frame_decode(&f, false, b, 24), 0);
	assert_int_equal(f.private_len, 0);
	/* Before revision 2 the bit is reserved. */
	b[17] = 1;
	assert_int_equal(mpa_frame_decode(&f, false, b, 24), 0);
	assert_false(f.enhanced);
	assert_int_equal(f.private_len, 4);
}

/* length + ULPDU + pad are a multiple of four (RFC 5044 4.1). */
static void fpdu_lengths(void **state)
{
	(void)state;
	assert_int_equal(mpa_pad(14), 0);
	assert_int_equal(mpa_pad(15), 3);
	assert_int_equal(mpa_pad(16), 2);
	assert_int_equal(mpa_pad(17), 1);
	assert_int_equal(mpa_fpdu_len(14), 20);
	assert_int_equal(mpa_fpdu_len(15), 24);
	assert_int_equal(mpa_fpdu_len(MPA_ULPDU_MAX), 2 + 65535 + 3 + 4);
}

/* ---- segments ---------------------------------------------------------- */

static void tagged_header(void **state)
{
	/* T, L, DV 1; RV 1, opcode 0: the last segment of a write. */
	static const uint8_t b[] = { 0xc1, 0x40, 0x12, 0x34, 0x56, 0x78, 0x01,
				     0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08 };
	struct ddp_hdr h;
	uint8_t out[DDP_HDR_MAX];

	(void)state;
	assert_int_equal(ddp_decode(&h, b, sizeof(b)), DDP_TAGGED_LEN);
	assert_true(h.tagged && h.last);
	assert_int_equal(h.version, DDP_VERSION);
	assert_int_equal(rdmap_version(h.ulp), RDMAP_VERSION);
	assert_int_equal(rdmap_opcode(h.ulp), RDMAP_WRITE);
	assert_int_equal(h.stag, 0x12345678);
	assert_true(h.to == 0x0102030405060708);
	assert_int_equal(ddp_encode(&h, out), sizeof(b));
	assert_memory_equal(out, b, sizeof(b));
	for (size_t n = 0; n < sizeof(b); n++)
		assert_int_equal(ddp_decode(&h, b, n), -EINVAL);
}

static void untagged_header(void **state)
{
	/* A segment, not the last, of a send that invalidates. */
	static const uint8_t b[] = { 0x01, 0x44, 0xaa, 0xbb, 0xcc, 0xdd,
				     0,    0,    0,    0,    0,    0,
				     0x01, 0x02, 0,    0,    0x10, 0 };
	struct ddp_hdr h;
	uint8_t out[DDP_HDR_MAX];

	(void)state;
	assert_int_equal(ddp_decode(&h, b, sizeof(b)), DDP_UNTAGGED_LEN);
	assert_true(!h.tagged && !h.last);
	assert_int_equal(rdmap_opcode(h.ulp), RDMAP_SEND_INV);
	assert_int_equal(h.ulp_data, 0xaabbccdd);
	assert_int_equal(h.qn, RDMAP_Q_SEND);
	assert_int_equal(h.msn, 0x102);
	assert_int_equal(h.mo, 0x1000);
	assert_int_equal(h.ulp, rdmap_control(RDMAP_SEND_INV));
	assert_int_equal(ddp_encode(&h, out), sizeof(b));
	assert_memory_equal(out, b, sizeof(b));
	for (size_t n = 0; n < sizeof(b); n++)
		assert_int_equal(ddp_decode(&h, b, n), -EINVAL);
}

static void read_request(void **state)
{
	static const uint8_t b[RDMAP_READ_LEN] = {
		1,    2,    3,    4,    0x11, 0x12, 0x13, 0x14, 0x15, 0x16,
		0x17, 0x18, 0x21, 0x22, 0x23, 0x24, 0x31, 0x32, 0x33, 0x34,
		0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48,
	};
	struct rdmap_read r;
	uint8_t out[RDMAP_READ_LEN];

	(void)state;
	rdmap_read_decode(&r, b);
	assert_int_equal(r.sink_stag, 0x01020304);
	assert_true(r.sink_to == 0x1112131415161718);
	assert_int_equal(r.size, 0x21222324);
	assert_int_equal(r.src_stag, 0x31323334);
	assert_true(r.src_to == 0x4142434445464748);
	rdmap_read_encode(&r, out);
	assert_memory_equal(out, b, sizeof(b));
}

/* RFC 5040 figure 9: the whole of it, for a read that is refused. */
static void terminate(void **state)
{
	static const uint8_t b[RDMAP_TERMINATE_MAX] = {
		/* RDMAP, remote protection, access; M D R */
		0x01, 0x02, 0xe0, 0x00, 0x00, 0x2e, /* the segment's length: 18 + 28 */
		0x41, 0x41, 0,    0,    0,    0,    0,    0,    0,    1,
		0,    0,    0,    9,    0,    0,    0,    0,    1,    2,
		3,    4,    0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18,
		0x21, 0x22, 0x23, 0x24, 0x31, 0x32, 0x33, 0x34, 0x41, 0x42,
		0x43, 0x44, 0x45, 0x46, 0x47, 0x48,
	};
	struct rdmap_terminate t;
	uint8_t out[RDMAP_TERMINATE_MAX];

	(void)state;
	assert_int_equal(rdmap_terminate_decode(&t, b, sizeof(b)), 0);
	assert_int_equal(t.error, RDMAP_E_ACCESS);
	assert_true(t.has_ddp && t.has_read);
	assert_int_equal(t.segment_len, 46);
	assert_int_equal(t.ddp.msn, 9);
	assert_int_equal(t.read.src_stag, 0x31323334);
	assert_int_equal(rdmap_terminate_encode(&t, out), sizeof(b));
	assert_memory_equal(out, b, sizeof(b));
	/* Cut anywhere, what is there counts. */
	for (size_t n = 0; n < sizeof(b); n++) {
		assert_int_equal(rdmap_terminate_decode(&t, b, n),
				 n < 4 ? -EINVAL : 0);
		if (n < 4)
			continue;
		assert_int_equal(t.error, RDMAP_E_ACCESS);
		assert_int_equal(t.has_ddp, n >= 4 + 2 + 18);
		assert_false(t.has_read);
	}
	/* An error of no message; of a tagged one. */
	t = (struct rdmap_terminate){ .error = MPA_E_CRC };
	assert_int_equal(rdmap_terminate_encode(&t, out), 4);
	assert_memory_equal(out, "\x20\x02\x00\x00", 4);
	t = (struct rdmap_terminate){ .error = DDP_E_BOUNDS,
				      .has_ddp = true,
				      .segment_len = 14,
				      .ddp = { .tagged = true } };
	assert_int_equal(rdmap_terminate_encode(&t, out), 4 + 2 + 14);
	assert_memory_equal(out, "\x11\x01\xc0\x00\x00\x0e", 6);
}

/* The codes that RFC 6580's registry has. */
/* What siw of Linux 6.1 (x86-64) sent: a write, a read and a send refused. */
static void quirk_siw_terminate(void **state)
{
	static const uint8_t write[] = {
		0x11, 0x00, 0x03, 0x00, 0x00, 0x40, 0xc1, 0x40, 0xdb, 0xd5,
		0x13, 0x00, 0x00, 0x00, 0x00, 0x00, 0x40, 0x53, 0xd0, 0x00,
	};
	static const uint8_t read[] = {
		0x10, 0x00, 0x07, 0x00, 0x00, 0x00, 0x41, 0x41, 0x00,
		0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00,
		0x00, 0x40, 0x00, 0x00, 0x00, 0x00, 0x19, 0x0a, 0xe3,
		0x37, 0x00, 0x00, 0x7f, 0x5e, 0xdc, 0x30, 0x00, 0x00,
		0x00, 0x00, 0x00, 0x40, 0xdb, 0xd5, 0x13, 0x00, 0x00,
		0x00, 0x00, 0x00, 0x40, 0x53, 0xd0, 0x00,
	};
	static const uint8_t send[] = {
		0x21, 0x02, 0x03, 0x00, 0x00, 0x41, 0x41, 0x43,
		0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
		0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00,
	};
	struct rdmap_terminate t;

	(void)state;
	assert_int_equal(rdmap_terminate_decode(&t, write, sizeof(write)), 0);
	assert_int_equal(t.error, DDP_E_STAG);
	assert_true(t.has_ddp && !t.has_read);
	assert_true(t.ddp.tagged && t.ddp.stag == 0xdbd51300);
	assert_int_equal(t.ddp.to, 0x4053d000);

	assert_int_equal(rdmap_terminate_decode(&t, read, sizeof(read)), 0);
	assert_int_equal(t.error, RDMAP_E_STAG);
	assert_true(t.has_ddp && t.has_read);
	assert_int_equal(rdmap_opcode(t.ddp.ulp), RDMAP_READ_REQUEST);
	assert_int_equal(t.ddp.msn, 0x40); /* which is its size */
	assert_int_equal(t.read.sink_stag, 0x190ae337);
	assert_int_equal(t.read.size, 0x40);
	assert_int_equal(t.read.src_stag, 0xdbd51300);

	assert_int_equal(rdmap_terminate_decode(&t, send, sizeof(send)), 0);
	assert_int_equal(t.error, DDP_E_NO_BUFFER);
	assert_true(t.has_ddp && !t.has_read && !t.ddp.tagged);
	assert_int_equal(t.ddp.msn, 1);
}

static void error_codes(void **state)
{
	static const uint16_t codes[] = {
		0x0100, 0x0101, 0x0102, 0x0103, 0x0104, 0x0109, 0x01ff, 0x0205,
		0x0206, 0x0207, 0x0208, 0x0209, 0x02ff, 0x1100, 0x1101, 0x1102,
		0x1103, 0x1104, 0x1201, 0x1202, 0x1203, 0x1204, 0x1205, 0x1206,
		0x2001, 0x2002, 0x2003, 0x2004, 0x2005, 0x2006, 0x2007,
	};
	unsigned named = 0;

	(void)state;
	for (unsigned e = 0; e < 0x10000; e++)
		named += !!strcmp(rdmap_error_str(e), "unknown error");
	/* Local errors have no codes of their own. */
	assert_int_equal(named, ARRAY_SIZE(codes) + 2 * 256);
	for (size_t i = 0; i < ARRAY_SIZE(codes); i++)
		assert_string_not_equal(rdmap_error_str(codes[i]),
					"unknown error");
	assert_string_equal(rdmap_opcode_name(RDMAP_READ_RESPONSE),
			    "RDMA Read Response");
	assert_null(rdmap_opcode_name(RDMAP_OPCODES));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(crc_of_iscsi),
		cmocka_unit_test(crc_of_pieces),
		cmocka_unit_test(frame_decodes),
		cmocka_unit_test(frame_encodes),
		cmocka_unit_test(frame_lengths),
		cmocka_unit_test(fpdu_lengths),
		cmocka_unit_test(tagged_header),
		cmocka_unit_test(untagged_header),
		cmocka_unit_test(read_request),
		cmocka_unit_test(terminate),
		cmocka_unit_test(error_codes),
		cmocka_unit_test(quirk_siw_terminate),
	};

	return cmocka_run_group_tests_name("iwarp_wire", tests, NULL, NULL);
}

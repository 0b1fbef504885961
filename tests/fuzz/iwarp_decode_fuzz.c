/*
 * iwarp_decode_fuzz.c - any bytes as what MPA, DDP and RDMAP have on the wire
 *
 * What decodes encodes to bytes that decode to the same, and two frames that
 * arrive in any pieces settle something, or say why not.
 */
#include "fuzz.h"

#include "iwarp/setup.h"
#include "wire/rdmap.h"

#include <errno.h>
#include <string.h>

static void frame(bool reply, const uint8_t *data, size_t size)
{
	struct mpa_frame f, again;
	uint8_t out[MPA_FRAME_MAX], twice[MPA_FRAME_MAX];
	size_t n;

	if (mpa_frame_decode(&f, reply, data, size))
		return;
	FUZZ_CHECK(f.private_len <= size);
	n = mpa_frame_encode(&f, out);
	FUZZ_CHECK(n + f.private_len == size);
	memcpy(out + n, data + n, f.private_len);
	FUZZ_CHECK(!mpa_frame_decode(&again, reply, out, size));
	FUZZ_CHECK(mpa_frame_encode(&again, twice) == n);
	FUZZ_CHECK(!memcmp(out, twice, n));
}

static void segment(const uint8_t *data, size_t size)
{
	struct ddp_hdr h, again;
	uint8_t out[DDP_HDR_MAX], twice[DDP_HDR_MAX];
	int n = ddp_decode(&h, data, size);

	if (n < 0)
		return;
	FUZZ_CHECK((size_t)n <= size && ddp_encode(&h, out) == (size_t)n);
	FUZZ_CHECK(ddp_decode(&again, out, (size_t)n) == n);
	FUZZ_CHECK(ddp_encode(&again, twice) == (size_t)n);
	FUZZ_CHECK(!memcmp(out, twice, (size_t)n));
}

static void terminate(const uint8_t *data, size_t size)
{
	struct rdmap_terminate t, again;
	uint8_t out[RDMAP_TERMINATE_MAX];
	size_t n;

	if (rdmap_terminate_decode(&t, data, size))
		return;
	FUZZ_CHECK(rdmap_error_str(t.error));
	n = rdmap_terminate_encode(&t, out);
	FUZZ_CHECK(n <= sizeof(out));
	FUZZ_CHECK(!rdmap_terminate_decode(&again, out, n));
	FUZZ_CHECK(t.error == again.error && t.has_ddp == again.has_ddp &&
		   t.has_read == again.has_read);
}

/* The bytes are the peer's frame, after the first two, which choose. */
static void setup(const uint8_t *data, size_t size)
{
	const struct iwarp_offer offer = {
		.crc = data[0] & 1,
		.enhanced = data[0] & 2,
		.peer_to_peer = data[0] & 4,
		.markers = data[0] & 8,
		.ird = data[0] >> 6,
		.ord = data[0] >> 4 & 3,
	};
	const bool initiator = data[1] & 1;
	const size_t step = data[1] / 2u + 1;
	uint8_t out[MPA_FRAME_MAX];
	struct iwarp_agreed agreed;
	struct iwarp_setup s;
	int err = -EAGAIN;

	iwarp_setup_init(&s, initiator);
	if (initiator)
		iwarp_setup_request(&s, &offer, "x", 1, out);
	for (size_t at = 2, n; err == -EAGAIN && at < size; at += n) {
		n = iwarp_setup_want(&s);
		FUZZ_CHECK(n && s.have + n <= MPA_FRAME_MAX);
		n = n < step ? n : step;
		n = n < size - at ? n : size - at;
		err = iwarp_setup_rx(&s, data + at, n);
	}
	if (err == -EPROTO)
		FUZZ_CHECK(s.error && iwarp_setup_error_str(s.error));
	if (err)
		return;
	FUZZ_CHECK(s.done && !iwarp_setup_want(&s));
	if (!initiator)
		FUZZ_CHECK(iwarp_setup_reply(&s, &offer, NULL, 0, out) > 0);
	err = iwarp_setup_agreed(&s, &agreed);
	FUZZ_CHECK(err ? s.error :
			 agreed.ord <= offer.ord + 1 &&
				   agreed.ird <= offer.ird + 1);
	FUZZ_CHECK(err || agreed.crc >= offer.crc);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char keys[2][17] = { "MPA ID Req Frame",
					  "MPA ID Rep Frame" };
	uint8_t with_key[2 + 16 + 1024];
	size_t n = size < 1024 ? size : 1024;

	frame(false, data, size);
	frame(true, data, size);
	segment(data, size);
	terminate(data, size);
	if (n < 2)
		return 0;
	setup(data, size);
	/* Random bytes hardly begin with a key. */
	memcpy(with_key, data, 2);
	memcpy(with_key + 2, keys[data[1] & 1], 16);
	memcpy(with_key + 18, data + 2, n - 2);
	setup(with_key, 16 + n);
	frame(data[1] & 1, with_key + 2, 14 + n);
	return 0;
}

/*
 * rmpp_fuzz.c - any segments from any peer, and any acknowledgements of what is
 * sent: messages stay within their bounds, and so does what is kept
 *
 * The file of libibumad is compiled in here: the library exports libibumad's
 * names alone.
 */
#include "fuzz.h"

#include "input.h"

#include "ibumad/rmpp.c"

#include <stdlib.h>

static void put_header(struct input *in, uint8_t *mad)
{
	static const uint8_t classes[] = { 0x03, 0x10, 0x12, 0x30, 0x4f };
	const unsigned kind = byte(in);

	memset(mad, (int)kind, MAD_LEN);
	mad[0] = UMAD_BASE_VERSION;
	mad[1] = classes[kind % 5];
	mad[3] = kind & 0x40 ? UMAD_METHOD_GET : UMAD_METHOD_GET_RESP;
	put_be64(mad + 8, byte(in) % 40u);
	mad[VERSION_AT] = kind & 0x20 ? byte(in) : UMAD_RMPP_VERSION;
	mad[TYPE_AT] = kind & 0x80 ? byte(in) : TYPE_DATA;
	mad[FLAGS_AT] = (uint8_t)(FLAG_ACTIVE | byte(in));
	put_be32(mad + SEGMENT_AT, byte(in) % 8u);
	put_be32(mad + LENGTH_AT, byte(in));
	if (kind == 0xff)
		put_be32(mad + SEGMENT_AT, UINT32_MAX - byte(in));
}

/* Reads all of it, for who watches memory. */
static unsigned sum(const uint8_t *p, size_t len)
{
	unsigned n = 0;

	while (len--)
		n += *p++;
	return n;
}

static void receive_all(struct input *in)
{
	const union ibv_gid from[2] = { { .raw = { 1 } }, { .raw = { 2 } } };
	uint8_t mad[MAD_LEN], answer[MAD_LEN], *message;
	struct port p = { 0 };
	uint64_t now = 1;
	size_t len;

	while (in->left) {
		put_header(in, mad);
		now += (uint64_t)byte(in) * byte(in) * 1000000;
		len = rmpp_rx(&p, &from[mad[8 + 7] & 1], mad, now, answer,
			      &message);
		FUZZ_CHECK(len <= RMPP_MAX);
		FUZZ_CHECK(p.nrmpp <= RX_MAX && p.rmpp_bytes <= RMPP_BYTES);
		FUZZ_CHECK(!answer[0] || answer[1] == mad[1]);
		if (!len)
			continue;
		FUZZ_CHECK(len >= mad_data_offset(mad[1]));
		FUZZ_CHECK(sum(message, len) != UINT32_MAX);
		free(message);
	}
	rmpp_rx_free(&p);
	FUZZ_CHECK(!p.nrmpp && !p.rmpp_bytes);
}

static void send_one(struct input *in)
{
	const size_t len = 256u + byte(in) * 16u;
	struct sent *s = calloc(1, sizeof(*s) + len);
	uint8_t mad[MAD_LEN];
	uint64_t now = 1;

	FUZZ_CHECK(s);
	s->len = len;
	put_header(in, s->mad);
	if (!rmpp_tx_new(s)) {
		for (unsigned i = 0; i < 200; i++) {
			while (rmpp_tx_next(s, now, mad))
				FUZZ_CHECK(get_be32(mad + SEGMENT_AT) &&
					   get_be32(mad + SEGMENT_AT) <=
						   s->rmpp->segments);
			if (rmpp_tx_ended(s))
				break;
			FUZZ_CHECK(s->due_ns != UINT64_MAX);
			now = max_u64(now, s->due_ns);
			if (!in->left)
				continue;
			put_header(in, mad);
			rmpp_tx_answer(s, mad, now);
		}
		/* Nobody has answered for long. */
		FUZZ_CHECK(in->left || rmpp_tx_ended(s));
	}
	rmpp_tx_free(s->rmpp);
	free(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };

	if (byte(&in) & 1)
		receive_all(&in);
	else
		send_one(&in);
	return 0;
}

/*
 * test_iwarp_setup.c - what two MPA frames settle, and frames that settle nothing
 */
#include "unit.h"

#include "iwarp/setup.h"

#include <errno.h>

static const struct iwarp_offer both = {
	.crc = true,
	.enhanced = true,
	.peer_to_peer = true,
	.ird = 8,
	.ord = 4,
};

/* Two ends, and what they settled on. */
struct two {
	struct iwarp_setup a, b;
	struct iwarp_agreed at_a, at_b;
	uint8_t frame[MPA_FRAME_MAX];
};

/* A frame, so many bytes at a time; as iwarp_setup_rx(). */
static int give(struct iwarp_setup *to, const uint8_t *p, size_t len,
		size_t step)
{
	int err = -EAGAIN;

	while (len && err == -EAGAIN) {
		size_t n = iwarp_setup_want(to);

		n = n < step ? n : step;
		n = n < len ? n : len;
		assert_true(n > 0);
		err = iwarp_setup_rx(to, p, n);
		p += n;
		len -= n;
	}
	assert_true(err || !len);
	return err;
}

/* The request arrives; b has it. */
static void ask(struct two *t, const struct iwarp_offer *offer)
{
	int n;

	iwarp_setup_init(&t->a, true);
	iwarp_setup_init(&t->b, false);
	n = iwarp_setup_request(&t->a, offer, "hello", 5, t->frame);
	assert_true(n > 0);
	assert_int_equal(give(&t->b, t->frame, (size_t)n, 3), 0);
}

static void settle(struct two *t, const struct iwarp_offer *a,
		   const struct iwarp_offer *b)
{
	int n;

	ask(t, a);
	n = iwarp_setup_reply(&t->b, b, "good day", 8, t->frame);
	assert_true(n > 0);
	assert_int_equal(give(&t->a, t->frame, (size_t)n, 7), 0);
	assert_int_equal(iwarp_setup_agreed(&t->a, &t->at_a), 0);
	assert_int_equal(iwarp_setup_agreed(&t->b, &t->at_b), 0);
}

static void private_data(void **state)
{
	uint8_t big[MPA_PRIVATE_MAX + 1] = { 0 };
	const uint8_t *p;
	struct two t;
	size_t len;
	int n;

	(void)state;
	settle(&t, &both, &both);
	p = iwarp_setup_private(&t.b, &len);
	assert_int_equal(len, 5);
	assert_memory_equal(p, "hello", 5);
	p = iwarp_setup_private(&t.a, &len);
	assert_int_equal(len, 8);
	assert_memory_equal(p, "good day", 8);

	/* As much as there may be, and a byte more. */
	assert_int_equal(iwarp_setup_request(&t.a, &both, big, 509, t.frame),
			 -EINVAL);
	iwarp_setup_init(&t.a, true);
	iwarp_setup_init(&t.b, false);
	memset(big, 0x5a, sizeof(big));
	n = iwarp_setup_request(&t.a, &both, big, 508, t.frame);
	assert_int_equal(n, MPA_FRAME_MAX);
	assert_int_equal(give(&t.b, t.frame, (size_t)n, 1), 0);
	p = iwarp_setup_private(&t.b, &len);
	assert_int_equal(len, 508);
	assert_memory_equal(p, big, 508);
}

/* RFC 5044 7.1: CRCs if either wants them; markers as each receiver says. */
static void options(void **state)
{
	struct iwarp_offer a = both, b = both;
	struct two t;

	(void)state;
	for (unsigned i = 0; i < 16; i++) {
		a.crc = i & 1;
		b.crc = i & 2;
		a.markers = i & 4;
		b.markers = i & 8;
		settle(&t, &a, &b);
		assert_int_equal(t.at_a.crc, (i & 3) != 0);
		assert_int_equal(t.at_b.crc, (i & 3) != 0);
		assert_int_equal(t.at_a.rx_markers, a.markers);
		assert_int_equal(t.at_b.tx_markers, a.markers);
		assert_int_equal(t.at_b.rx_markers, b.markers);
		assert_int_equal(t.at_a.tx_markers, b.markers);
	}
	a.large = true;
	settle(&t, &a, &b);
	assert_true(t.at_b.tx_large && !t.at_a.tx_large);
}

/* RFC 6581 9.1: neither asks for more than the other answers. */
static void reads(void **state)
{
	struct iwarp_offer a = both, b = both;
	uint32_t ird, ord;
	struct two t;

	(void)state;
	for (a.ird = 0; a.ird < 4; a.ird++)
		for (a.ord = 0; a.ord < 4; a.ord++)
			for (b.ird = 1; b.ird < 4; b.ird++)
				for (b.ord = 0; b.ord < 4; b.ord++) {
					settle(&t, &a, &b);
					assert_int_equal(t.at_a.ird,
							 t.at_b.ord);
					assert_int_equal(t.at_a.ord,
							 t.at_b.ird);
					assert_true(t.at_a.ird <= a.ird);
					assert_true(t.at_a.ord <= a.ord);
					assert_int_equal(t.at_b.ird,
							 min_u32(b.ird, a.ord));
				}
	ask(&t, &both);
	iwarp_setup_asked(&t.b, 6, &ird, &ord);
	assert_int_equal(ird, 6);
	assert_int_equal(ord, 4);
	/* Without the fields both ends do as they are told. */
	a = both;
	a.enhanced = false;
	ask(&t, &a);
	iwarp_setup_asked(&t.b, 6, &ird, &ord);
	assert_true(ird == 6 && ord == 6);
	settle(&t, &a, &both);
	assert_true(!t.at_a.enhanced && t.at_a.ird == 8 && t.at_b.ord == 4);
	assert_int_equal(t.at_b.rtr, IWARP_RTR_NONE);
}

/* A reply that is made by hand. */
static int reply_with(struct two *t, struct mpa_frame f)
{
	size_t n;

	f.reply = true;
	n = mpa_frame_encode(&f, t->frame);
	return give(&t->a, t->frame, n, 100);
}

static void ready_to_receive(void **state)
{
	struct mpa_frame f = { .enhanced = true,
			       .revision = 2,
			       .ird = 4,
			       .ord = 4,
			       .peer_to_peer = true };
	struct iwarp_offer offer = both;
	struct iwarp_agreed got;
	struct two t;
	int n;

	(void)state;
	/* A write is what is preferred, a read if it is all that is wanted. */
	settle(&t, &both, &both);
	assert_int_equal(t.at_a.rtr, IWARP_RTR_WRITE);
	assert_int_equal(t.at_b.rtr, IWARP_RTR_WRITE);
	f.rtr_read = true;
	ask(&t, &both);
	assert_int_equal(reply_with(&t, f), 0);
	assert_int_equal(iwarp_setup_agreed(&t.a, &got), 0);
	assert_int_equal(got.rtr, IWARP_RTR_READ);
	/* It was not offered: no read may be under way. */
	offer.ord = 0;
	ask(&t, &offer);
	assert_int_equal(reply_with(&t, f), 0);
	assert_int_equal(iwarp_setup_agreed(&t.a, &got), -EPROTO);
	assert_int_equal(t.a.error, IWARP_SETUP_RTR);
	/* Nor was a send. */
	f.rtr_read = false;
	f.rtr_send = true;
	ask(&t, &both);
	assert_int_equal(reply_with(&t, f), 0);
	assert_int_equal(iwarp_setup_agreed(&t.a, &got), -EPROTO);
	assert_int_equal(t.a.error, IWARP_SETUP_RTR);
	/* The peer needs none. */
	f.peer_to_peer = f.rtr_send = false;
	ask(&t, &both);
	assert_int_equal(reply_with(&t, f), 0);
	assert_int_equal(iwarp_setup_agreed(&t.a, &got), 0);
	assert_int_equal(got.rtr, IWARP_RTR_NONE);

	/* As responder: an initiator that can do reads only. */
	f = (struct mpa_frame){ .enhanced = true,
				.revision = 2,
				.ord = 1,
				.peer_to_peer = true,
				.rtr_read = true };
	iwarp_setup_init(&t.b, false);
	n = (int)mpa_frame_encode(&f, t.frame);
	assert_int_equal(give(&t.b, t.frame, (size_t)n, 5), 0);
	offer.ird = 0;
	iwarp_setup_reply(&t.b, &offer, NULL, 0, t.frame);
	assert_int_equal(iwarp_setup_agreed(&t.b, &got), 0);
	assert_int_equal(got.rtr, IWARP_RTR_READ);
	assert_int_equal(got.ird, 1); /* it has to be answered */
}

static void asks_for_too_much(void **state)
{
	struct mpa_frame f = {
		.enhanced = true, .revision = 2, .ird = 4, .ord = 9
	};
	struct iwarp_agreed got;
	struct two t;

	(void)state;
	ask(&t, &both);
	assert_int_equal(reply_with(&t, f), 0);
	assert_int_equal(iwarp_setup_agreed(&t.a, &got), -EPROTO);
	assert_int_equal(t.a.error, IWARP_SETUP_IRD);
	/* For the Terminate that says so. */
	assert_true(got.crc && got.initiator);
	/* It says nothing of reads, though it was asked. */
	f.enhanced = false;
	f.revision = 1;
	ask(&t, &both);
	assert_int_equal(reply_with(&t, f), 0);
	assert_int_equal(iwarp_setup_agreed(&t.a, &got), -EPROTO);
	assert_int_equal(t.a.error, IWARP_SETUP_PLAIN);
}

/* 0 is what was there before RFC 5044; of those to come nobody knows. */
static void other_revisions(void **state)
{
	static const uint8_t refused[] = { 0, 3, 255 };

	(void)state;
	for (size_t i = 0; i < sizeof(refused); i++) {
		struct mpa_frame f = { .revision = refused[i] };
		struct two t;
		size_t n;

		iwarp_setup_init(&t.b, false);
		n = (size_t)mpa_frame_encode(&f, t.frame);
		assert_int_equal(give(&t.b, t.frame, n, n), -EPROTO);
		assert_int_equal(t.b.error, IWARP_SETUP_REVISION);
	}
}

static void rejection(void **state)
{
	struct iwarp_agreed got;
	const uint8_t *p;
	struct two t;
	size_t len;
	int n;

	(void)state;
	ask(&t, &both);
	n = iwarp_setup_reject(&t.b, "no", 2, t.frame);
	assert_int_equal(give(&t.a, t.frame, (size_t)n, 4), -ECONNREFUSED);
	assert_int_equal(t.a.error, IWARP_SETUP_REJECTED);
	p = iwarp_setup_private(&t.a, &len);
	assert_int_equal(len, 2);
	assert_memory_equal(p, "no", 2);
	assert_int_equal(iwarp_setup_agreed(&t.a, &got), -EPROTO);
	assert_int_equal(iwarp_setup_agreed(&t.b, &got), -EPROTO);
}

/* Whatever comes: an error at the first byte that shows it, and no byte of
 * anything behind the frame is asked for. */
static void hostile(void **state)
{
	uint64_t seed = rnd_seed();
	struct two t;
	int n;

	(void)state;
	for (int i = 0; i < 20000; i++) {
		struct iwarp_agreed got;
		int err = -EAGAIN;
		size_t at = 0;

		iwarp_setup_init(&t.a, true);
		iwarp_setup_init(&t.b, false);
		n = iwarp_setup_request(&t.a, &both, "hello", 5, t.frame);
		for (uint64_t k = 1 + rnd(&seed) % 3; k; k--)
			t.frame[rnd(&seed) % 29] = (uint8_t)rnd(&seed);
		while (err == -EAGAIN && at < sizeof(t.frame)) {
			size_t want = iwarp_setup_want(&t.b);

			assert_true(want && at + want <= sizeof(t.frame));
			want = 1 + rnd(&seed) % want;
			err = iwarp_setup_rx(&t.b, t.frame + at, want);
			at += want;
		}
		if (!err) {
			assert_int_equal(iwarp_setup_want(&t.b), 0);
			iwarp_setup_reply(&t.b, &both, NULL, 0, t.frame);
			assert_int_equal(iwarp_setup_agreed(&t.b, &got), 0);
			assert_true(got.ird <= both.ird && got.ord <= both.ord);
		} else if (err == -EPROTO) {
			assert_true(t.b.error != IWARP_SETUP_OK);
			assert_non_null(iwarp_setup_error_str(t.b.error));
			assert_int_equal(iwarp_setup_want(&t.b), 0);
			/* It stays so. */
			assert_int_equal(iwarp_setup_rx(&t.b, t.frame, 1),
					 -EPROTO);
			n = iwarp_setup_reject(&t.b, NULL, 0, t.frame);
			assert_true(n >= MPA_HDR_LEN);
		}
	}
	iwarp_setup_init(&t.b, false);
	assert_int_equal(iwarp_setup_rx(&t.b, (const uint8_t *)"GET", 3),
			 -EPROTO);
	assert_int_equal(t.b.error, IWARP_SETUP_KEY);
	iwarp_setup_init(&t.b, false);
	assert_int_equal(
		give(&t.b, (const uint8_t *)"MPA ID Req Frame\x40\x03\x00\x00",
		     20, 20),
		-EPROTO);
	assert_int_equal(t.b.error, IWARP_SETUP_REVISION);
	iwarp_setup_init(&t.b, false);
	assert_int_equal(
		give(&t.b, (const uint8_t *)"MPA ID Req Frame\x50\x02\x02\x01",
		     20, 20),
		-EPROTO);
	assert_int_equal(t.b.error, IWARP_SETUP_LENGTH);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(private_data),
		cmocka_unit_test(options),
		cmocka_unit_test(reads),
		cmocka_unit_test(ready_to_receive),
		cmocka_unit_test(asks_for_too_much),
		cmocka_unit_test(other_revisions),
		cmocka_unit_test(rejection),
		cmocka_unit_test(hostile),
	};

	return cmocka_run_group_tests_name("iwarp_setup", tests, NULL, NULL);
}

/*
 * test_stat.c - counters of queue pairs that are gone
 *
 * What softhca stat prints of those that live, tests/clients/test_stat.py looks
 * at, from another process.
 */
#include "objects/process.h"
#include "pair.h"

static struct end a, b;

static uint64_t ended(enum stat_counter c)
{
	return atomic_load(&to_ctx(ctx)->dev->ended[c]);
}

/* Their device keeps what they have counted, and nothing before they go. */
static void device_keeps_the_sums(void **state)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND };
	uint64_t before = ended(STAT_TX_BYTES), received = ended(STAT_RX_BYTES);
	struct ibv_wc wc;

	(void)state;
	pair_init(&a, &b, IBV_QPT_RC);
	post_recv(&b, 1, 0, 64);
	assert_int_equal(try_send(&a, &wr, 0, 64), 0);
	wc = wait_wc(b.cq);
	expect_wc(&wc, 1, IBV_WC_SUCCESS);
	wc = wait_wc(a.cq);
	expect_wc(&wc, 0, IBV_WC_SUCCESS);
	assert_int_equal(ended(STAT_TX_BYTES), before);
	end_fini(&a);
	assert_int_equal(ended(STAT_TX_BYTES), before + 64);
	assert_int_equal(ended(STAT_RX_BYTES), received);
	end_fini(&b);
	assert_int_equal(ended(STAT_RX_BYTES), received + 64);
}

int main(void)
{
	const struct CMUnitTest tests[] = { TEST(device_keeps_the_sums) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * test_stat.c - counters of queue pairs that are gone
 *
 * What softhca stat prints of those that live, tests/clients/test_stat.py looks
 * at, from another process.
 */
#include "verbs/verbs.h"

#include "pair.h"

static struct end a, b;

static uint64_t ended(enum stat_counter c)
{
	return atomic_load(&to_ctx(ctx)->dev->ended[c]);
}

/* What a queue pair that fails flushes, and what it fails for. */
static void errors_are_counted(void **state)
{
	struct ibv_qp_attr err = { .qp_state = IBV_QPS_ERR };
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE };
	uint64_t was[STAT_COUNTERS];
	struct ibv_wc wc;

	(void)state;
	for (int c = 0; c < STAT_COUNTERS; c++)
		was[c] = ended((enum stat_counter)c);
	pair_init(&a, &b, IBV_QPT_RC);
	post_recv(&b, 1, 0, 64);
	post_recv(&a, 2, 0, 64);
	wr.wr.rdma.rkey = b.mr->rkey ^ 0x555;
	wr.wr.rdma.remote_addr = (uintptr_t)b.buf;
	assert_int_equal(try_send(&a, &wr, 0, 64), 0);
	wc = wait_wc(a.cq);
	expect_wc(&wc, 0, IBV_WC_REM_ACCESS_ERR);
	wc = wait_wc(a.cq);
	expect_wc(&wc, 2, IBV_WC_WR_FLUSH_ERR);
	assert_int_equal(ibv_modify_qp(b.qp, &err, IBV_QP_STATE), 0);
	wc = wait_wc(b.cq);
	expect_wc(&wc, 1, IBV_WC_WR_FLUSH_ERR);
	end_fini(&a);
	end_fini(&b);
	assert_int_equal(ended(STAT_SQ_ERRORS), was[STAT_SQ_ERRORS] + 1);
	assert_int_equal(ended(STAT_SQ_FLUSHED), was[STAT_SQ_FLUSHED]);
	assert_int_equal(ended(STAT_RQ_ERRORS), was[STAT_RQ_ERRORS]);
	assert_int_equal(ended(STAT_RQ_FLUSHED), was[STAT_RQ_FLUSHED] + 2);
	assert_int_equal(ended(STAT_ACCESS_RX), was[STAT_ACCESS_RX] + 1);
	assert_int_equal(ended(STAT_ACCESS_TX), was[STAT_ACCESS_TX] + 1);
}

/* Their device keeps what they have counted, and nothing before they go. */
static void device_keeps_the_sums(void **state)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND };
	uint64_t before = ended(STAT_TX_BYTES), received = ended(STAT_RX_BYTES);
	/* On a slow machine it is sent again. */
	uint64_t again = ended(STAT_RETRANSMITS),
		 twice = ended(STAT_DUPLICATES);
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
	again = ended(STAT_RETRANSMITS) - again;
	assert_int_equal(ended(STAT_TX_BYTES), before + 64 + 64 * again);
	assert_int_equal(ended(STAT_RX_BYTES), received);
	end_fini(&b);
	twice = ended(STAT_DUPLICATES) - twice;
	assert_int_equal(ended(STAT_RX_BYTES), received + 64 + 64 * twice);
}

int main(void)
{
	const struct CMUnitTest tests[] = { TEST(device_keeps_the_sums),
					    TEST(errors_are_counted) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * test_answers.c - a program hears of the end of what it has sent before it
 * hears the answer, as with hardware
 *
 * The peer acknowledges a SEND before its program can answer it. Programs rely on
 * that order, though the specification has none between the two. Each test runs
 * over each of the ways between processes. On the wire the answer and its ACK are
 * one datagram for as long as nothing parts them: where other processes join or
 * leave meanwhile a packet may be handed on by one of them, alone.
 */
#include "pair.h"

#define ROUNDS 200
#define MANY 8

static struct end a, b;
static unsigned early; /* answers that came first */

static void send_to(struct end *from, uint64_t id, uint32_t len)
{
	struct ibv_send_wr wr = { .wr_id = id,
				  .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED };

	assert_int_equal(try_send(from, &wr, 0, len), 0);
}

/* The next completion, and that it is of this kind. */
static void next_is(struct end *e, enum ibv_wc_opcode opcode)
{
	const struct ibv_wc wc = wait_wc(e->cq);

	assert_int_equal(wc.status, IBV_WC_SUCCESS);
	assert_int_equal(wc.opcode, opcode);
}

/* Two completions, of a SEND and of the answer. */
static void next_two(struct end *e)
{
	const struct ibv_wc first = wait_wc(e->cq);

	assert_int_equal(first.status, IBV_WC_SUCCESS);
	early += first.opcode == IBV_WC_RECV;
	next_is(e, first.opcode == IBV_WC_RECV ? IBV_WC_SEND : IBV_WC_RECV);
}

static void end_pair(void)
{
	end_fini(&a);
	end_fini(&b);
	assert_true(early <= (getenv("SOFTHCA_WIRE") ? ROUNDS / 10 : 0));
}

static void ping_pong(uint32_t len)
{
	early = 0;
	pair_init(&a, &b, IBV_QPT_RC);
	for (unsigned i = 0; i < ROUNDS; i++) {
		post_recv(&a, i, 0, len);
		post_recv(&b, i, 0, len);
		send_to(&a, i, len);
		next_is(&b, IBV_WC_RECV);
		send_to(&b, i, len);
		next_two(&a);
		next_is(&b, IBV_WC_SEND);
	}
	end_pair();
}

static void small(void **state)
{
	(void)state;
	ping_pong(8);
}

static void of_several_packets(void **state)
{
	(void)state;
	ping_pong(3000);
}

/* Shorter than an acknowledgement. */
static void empty(void **state)
{
	(void)state;
	ping_pong(0);
}

/* Several, which are answered at once. */
static void many(void **state)
{
	unsigned i;

	(void)state;
	early = 0;
	pair_init(&a, &b, IBV_QPT_RC);
	for (unsigned round = 0; round < ROUNDS; round++) {
		for (i = 0; i < MANY; i++) {
			post_recv(&a, i, 0, 64);
			post_recv(&b, i, 0, 64);
		}
		for (i = 0; i < MANY; i++)
			send_to(&a, i, 64);
		for (i = 0; i < MANY; i++)
			next_is(&b, IBV_WC_RECV);
		for (i = 0; i < MANY; i++)
			send_to(&b, i, 64);
		for (i = 0; i < 2 * MANY; i++) {
			const struct ibv_wc wc = wait_wc(a.cq);

			assert_int_equal(wc.status, IBV_WC_SUCCESS);
			early += i < MANY && wc.opcode == IBV_WC_RECV;
		}
		for (i = 0; i < MANY; i++)
			next_is(&b, IBV_WC_SEND);
	}
	end_pair();
}

/* A read that is answered in its turn holds nothing up, nor gets lost. */
static void beside_reads(void **state)
{
	struct ibv_send_wr read = { .opcode = IBV_WR_RDMA_READ,
				    .send_flags = IBV_SEND_SIGNALED };

	(void)state;
	early = 0;
	pair_init(&a, &b, IBV_QPT_RC);
	read.wr.rdma.remote_addr = (uintptr_t)b.buf;
	read.wr.rdma.rkey = b.mr->rkey;
	for (unsigned i = 0; i < ROUNDS; i++) {
		post_recv(&a, i, 0, 64);
		post_recv(&b, i, 0, 64);
		send_to(&a, i, 64);
		assert_int_equal(try_send(&a, &read, 1024, 2048), 0);
		send_to(&a, i, 0); /* waits for a receive */
		next_is(&b, IBV_WC_RECV);
		send_to(&b, i, 64);
		post_recv(&b, i, 0, 64);
		for (unsigned left = 4; left--;) {
			const struct ibv_wc wc = wait_wc(a.cq);

			assert_int_equal(wc.status, IBV_WC_SUCCESS);
			early += left == 3 && wc.opcode == IBV_WC_RECV;
		}
		for (unsigned left = 2; left--;)
			assert_int_equal(wait_wc(b.cq).status, IBV_WC_SUCCESS);
	}
	end_pair();
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		TEST(small), TEST(of_several_packets), TEST(empty),
		TEST(many),  TEST(beside_reads),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}

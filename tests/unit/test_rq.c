/*
 * test_rq.c - receive queues: first in, first out, and no more than promised
 */
#include "unit.h"

#include "base/bytes.h"
#include "qp/rq.h"

#include <errno.h>

static int post(struct qp_rq *rq, uint64_t id, int num_sge)
{
	struct ibv_sge sge[QP_MAX_SGE + 1];
	struct ibv_recv_wr wr = { .wr_id = id,
				  .sg_list = sge,
				  .num_sge = num_sge };
	int i;

	for (i = 0; i < num_sge; i++)
		sge[i] = (struct ibv_sge){ .addr = id + (uint64_t)i,
					   .length = (uint32_t)i + 1,
					   .lkey = (uint32_t)id };
	return qp_rq_post(rq, &wr);
}

static void expect(struct qp_rq *rq, uint64_t id, uint32_t num_sge)
{
	struct qp_recv r;
	uint32_t i;

	memset(&r, 0xee, sizeof(r));
	assert_int_equal(qp_rq_take(rq, 0, &r), 0);
	assert_int_equal(r.wr_id, id);
	assert_int_equal(r.pd, rq->pd);
	assert_int_equal(r.num_sge, num_sge);
	assert_int_equal(r.length, (uint64_t)num_sge * (num_sge + 1) / 2);
	for (i = 0; i < num_sge; i++) {
		assert_int_equal(r.sge[i].addr, id + i);
		assert_int_equal(r.sge[i].length, i + 1);
		assert_int_equal(r.sge[i].lkey, (uint32_t)id);
	}
}

static void limits(void **state)
{
	struct qp_recv r;
	struct qp_rq rq;
	uint64_t i;

	(void)state;
	assert_int_equal(qp_rq_init(&rq, 5, 3, 9, NULL), 0);
	assert_int_equal(qp_rq_take(&rq, 0, &r), -EAGAIN);
	for (i = 0; i < 5; i++)
		assert_int_equal(post(&rq, i, (int)i % 4), 0);
	assert_int_equal(post(&rq, 5, 1), -ENOMEM);
	assert_int_equal(qp_rq_count(&rq), 5);
	for (i = 0; i < 5; i++)
		expect(&rq, i, (uint32_t)i % 4);
	assert_int_equal(qp_rq_take(&rq, 0, &r), -EAGAIN);

	assert_int_equal(post(&rq, 0, 4), -EINVAL);
	assert_int_equal(post(&rq, 0, -1), -EINVAL);
	assert_int_equal(qp_rq_count(&rq), 0);
	assert_int_equal(qp_rq_post(&rq, &(struct ibv_recv_wr){ .wr_id = 3 }),
			 0); /* no SGE, no list */
	expect(&rq, 3, 0);
	qp_rq_fini(&rq);

	assert_int_equal(qp_rq_init(&rq, 1, QP_MAX_SGE + 1, 0, NULL), -EINVAL);
	assert_int_equal(qp_rq_init(&rq, UINT32_MAX, 1, 0, NULL), -EINVAL);
	assert_int_equal(qp_rq_init(&rq, 2, QP_MAX_SGE, 0, NULL), 0);
	assert_int_equal(post(&rq, 77, QP_MAX_SGE), 0);
	expect(&rq, 77, QP_MAX_SGE);
	qp_rq_fini(&rq);
}

static void none(void **state)
{
	struct qp_recv r;
	struct qp_rq rq;

	(void)state;
	assert_int_equal(qp_rq_init(&rq, 0, 0, 0, NULL), 0);
	assert_int_equal(post(&rq, 0, 0), -ENOMEM);
	assert_int_equal(qp_rq_take(&rq, 0, &r), -EAGAIN);
	assert_int_equal(qp_rq_resize(&rq, 2), 0);
	assert_int_equal(post(&rq, 1, 0), 0);
	expect(&rq, 1, 0);
	qp_rq_fini(&rq);
}

/* The port's largest message is 2 GiB; SGE lengths add up without wrapping. */
static void length_limit(void **state)
{
	struct ibv_sge sge[4] = { { .length = 0x80000000 } };
	struct ibv_recv_wr wr = { .sg_list = sge, .num_sge = 2 };
	struct qp_recv r;
	struct qp_rq rq;

	(void)state;
	assert_int_equal(qp_rq_init(&rq, 4, 4, 0, NULL), 0);
	assert_int_equal(qp_rq_post(&rq, &wr), 0);
	sge[1].length = 1;
	assert_int_equal(qp_rq_post(&rq, &wr), -EINVAL);
	sge[0].length = sge[1].length = sge[2].length = sge[3].length =
		0x40000000;
	wr.num_sge = 4;
	assert_int_equal(qp_rq_post(&rq, &wr), -EINVAL);
	assert_int_equal(qp_rq_take(&rq, 0x80000001, &r), -EMSGSIZE);
	assert_int_equal(qp_rq_take(&rq, 0x80000000, &r), 0);
	assert_int_equal(r.length, 0x80000000);
	assert_int_equal(qp_rq_take(&rq, 0, &r), -EAGAIN);
	qp_rq_fini(&rq);
}

/* Random calls against the simplest queue there is: two counters. */
static void random_use(void **state)
{
	uint64_t rng = rnd_seed(), first = 0, next = 0;
	struct qp_recv r;
	struct qp_rq rq;
	uint32_t max = 7;
	int i, err;

	(void)state;
	assert_int_equal(qp_rq_init(&rq, max, 4, 1, NULL), 0);
	/* Near the end of the counters, so that they wrap. */
	rq.head = rq.tail = UINT32_MAX - 100;
	for (i = 0; i < 200000; i++) {
		uint32_t to;

		switch (rnd(&rng) % 64) {
		case 0:
			to = (uint32_t)(rnd(&rng) % 40);
			err = qp_rq_resize(&rq, to);
			if (to < next - first) {
				assert_int_equal(err, -EINVAL);
			} else {
				assert_int_equal(err, 0);
				max = to;
			}
			assert_int_equal(rq.max_wr, max);
			break;
		case 1 ... 32:
			err = post(&rq, next, (int)(next % 5));
			if (next - first == max) {
				assert_int_equal(err, -ENOMEM);
			} else {
				assert_int_equal(err, 0);
				next++;
			}
			break;
		default:
			if (first == next) {
				assert_int_equal(qp_rq_take(&rq, 0, &r),
						 -EAGAIN);
			} else {
				expect(&rq, first, (uint32_t)(first % 5));
				first++;
			}
			break;
		}
		assert_int_equal(qp_rq_count(&rq), next - first);
	}
	qp_rq_fini(&rq);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(limits),
		cmocka_unit_test(none),
		cmocka_unit_test(length_limit),
		cmocka_unit_test(random_use),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * test_cqs.c - completion queues and channels
 */
#include "pair.h"

#include "../lib/sleeps.h"

/* Each way of arming, and what does and does not set it off. */
static void cq_events(void **state)
{
	struct ibv_send_wr plain = { .opcode = IBV_WR_SEND };
	struct ibv_send_wr solicited = { .opcode = IBV_WR_SEND,
					 .send_flags = IBV_SEND_SOLICITED };
	struct ibv_cq *cq;
	struct end a, b;
	void *context;
	int i;

	(void)state;
	pair_init(&a, &b, IBV_QPT_RC);
	for (i = 0; i < 8; i++)
		post_recv(&b, (uint64_t)i, 0, 64);

	/* Not armed: no event. */
	assert_int_equal(try_send(&a, &plain, 0, 8), 0);
	wait_wc(b.cq);
	wait_wc(a.cq);
	assert_false(readable(b.ch->fd, 0));

	/* Armed: the thread delivers it while nobody polls. One shot. */
	assert_int_equal(ibv_req_notify_cq(b.cq, 0), 0);
	assert_int_equal(try_send(&a, &plain, 0, 8), 0);
	assert_true(readable(b.ch->fd, 5000));
	assert_int_equal(ibv_get_cq_event(b.ch, &cq, &context), 0);
	assert_ptr_equal(cq, b.cq);
	assert_ptr_equal(context, &b);
	wait_wc(b.cq);
	wait_wc(a.cq);
	assert_int_equal(try_send(&a, &plain, 0, 8), 0);
	wait_wc(b.cq);
	wait_wc(a.cq);
	assert_false(readable(b.ch->fd, 0));

	/* Solicited only. */
	assert_int_equal(ibv_req_notify_cq(b.cq, 1), 0);
	assert_int_equal(try_send(&a, &plain, 0, 8), 0);
	wait_wc(b.cq);
	wait_wc(a.cq);
	assert_false(readable(b.ch->fd, 0));
	assert_int_equal(try_send(&a, &solicited, 0, 8), 0);
	assert_true(readable(b.ch->fd, 5000));
	wait_wc(a.cq);

	/* Destroying takes the event along that was not fetched; the one that
	 * was has to be acknowledged. */
	ibv_ack_cq_events(b.cq, 1);
	assert_int_equal(ibv_destroy_cq(b.cq), EBUSY);
	assert_int_equal(ibv_destroy_qp(b.qp), 0);
	b.qp = NULL;
	assert_int_equal(ibv_destroy_cq(b.cq), 0);
	assert_false(readable(b.ch->fd, 0));
	b.cq = ibv_create_cq(ctx, 1, NULL, b.ch, 0);
	end_fini(&a);
	end_fini(&b);
}

static _Atomic bool acked;

/* Once destroying it waits for that. */
static void *ack_later(void *arg)
{
	for (int i = 0; i < 5000 && !thread_sleeps(getpid()); i++)
		usleep(1000);
	acked = true;
	ibv_ack_cq_events(arg, 1);
	return NULL;
}

static void cq_destroy_waits(void **state)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND };
	struct end a, b;
	struct ibv_cq *cq;
	pthread_t thread;
	void *context;

	(void)state;
	pair_init(&a, &b, IBV_QPT_RC);
	post_recv(&b, 1, 0, 64);
	ibv_req_notify_cq(b.cq, 0);
	assert_int_equal(try_send(&a, &wr, 0, 8), 0);
	assert_int_equal(ibv_get_cq_event(b.ch, &cq, &context), 0);
	ibv_destroy_qp(b.qp);
	b.qp = NULL;
	acked = false;
	assert_int_equal(pthread_create(&thread, NULL, ack_later, b.cq), 0);
	assert_int_equal(ibv_destroy_cq(b.cq), 0);
	assert_true(acked);
	pthread_join(thread, NULL);
	b.cq = ibv_create_cq(ctx, 1, NULL, b.ch, 0);
	end_fini(&a);
	end_fini(&b);
}

/* As hardware: an ib_send_lat -e that has asked for one entry needs more. */
static void cq_rounded_up(void **state)
{
	struct ibv_cq *cq = ibv_create_cq(ctx, 1, NULL, NULL, 0);

	(void)state;
	assert_non_null(cq);
	assert_true(cq->cqe > 1);
	assert_int_equal(ibv_resize_cq(cq, 300), 0);
	assert_true(cq->cqe >= 300);
	assert_int_equal(ibv_resize_cq(cq, 1), 0);
	assert_in_range(cq->cqe, 2, 299);
	assert_int_equal(ibv_destroy_cq(cq), 0);
}

static void cq_overrun(void **state)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND };
	struct ibv_async_event ev;
	struct ibv_wc wc[64];
	struct end a, b;
	uint32_t room;
	int i;

	(void)state;
	pair_init(&a, &b, IBV_QPT_RC);
	/* A queue with room for one completion less than there are receives. */
	assert_int_equal(ibv_destroy_qp(b.qp), 0);
	assert_int_equal(ibv_destroy_cq(b.cq), 0);
	b.cq = ibv_create_cq(ctx, 1, NULL, b.ch, 0);
	room = (uint32_t)b.cq->cqe;
	assert_in_range(room, 1, 63);
	b.qp = ibv_create_qp(pd, &(struct ibv_qp_init_attr){
					 .qp_type = IBV_QPT_RC,
					 .send_cq = b.cq,
					 .recv_cq = b.cq,
					 .cap = { 4, room + 1, 1, 1, 0 } });
	assert_non_null(b.qp);
	assert_int_equal(ibv_modify_qp(a.qp,
				       &(struct ibv_qp_attr){
					       .qp_state = IBV_QPS_RESET },
				       IBV_QP_STATE),
			 0);
	connect_to(a.qp, b.qp->qp_num);
	connect_to(b.qp, a.qp->qp_num);
	for (i = 0; i <= (int)room; i++)
		post_recv(&b, (uint64_t)i, 0, 64);
	for (i = 0; i <= (int)room; i++)
		assert_int_equal(try_send(&a, &wr, 0, 8), 0);
	assert_true(readable(ctx->async_fd, 5000));
	assert_int_equal(ibv_get_async_event(ctx, &ev), 0);
	assert_int_equal(ev.event_type, IBV_EVENT_CQ_ERR);
	assert_ptr_equal(ev.element.cq, b.cq);
	ibv_ack_async_event(&ev);
	assert_int_equal(ibv_poll_cq(b.cq, 64, wc), (int)room);
	for (i = 0; i < (int)room; i++)
		expect_wc(&wc[i], (uint64_t)i, IBV_WC_SUCCESS);
	end_fini(&b);
	end_fini(&a);
}

/* Nothing of a QP that is gone stays in a CQ that is not. */
static void cq_cleaned(void **state)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND };
	struct ibv_wc wc;
	struct end a, b;

	(void)state;
	pair_init(&a, &b, IBV_QPT_RC);
	post_recv(&b, 0, 0, 64);
	assert_int_equal(try_send(&a, &wr, 0, 8), 0);
	wait_wc(b.cq);
	post_recv(&b, 0, 0, 64);
	assert_int_equal(
		ibv_modify_qp(b.qp,
			      &(struct ibv_qp_attr){ .qp_state = IBV_QPS_ERR },
			      IBV_QP_STATE),
		0);
	assert_int_equal(ibv_destroy_qp(b.qp), 0);
	b.qp = NULL;
	assert_int_equal(ibv_poll_cq(b.cq, 1, &wc), 0);
	end_fini(&a);
	end_fini(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(cq_events),  TEST(cq_destroy_waits), TEST(cq_rounded_up),
		TEST(cq_overrun), TEST(cq_cleaned),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * test_ring.c - a ring of records: what is put comes out whole, in order and
 * once, whoever produces, and what is overwritten breaks it
 */
#include "unit.h"

#include "ring_ends.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>

static void nothing_there(struct ends *e)
{
	struct ring_rec rec = { .word = 0 };

	assert_false(ring_get(&e->in, &rec));
	assert_null(e->in.broken);
}

static void one_line(void **arg)
{
	struct ends *e = ends_new();

	(void)arg;
	assert_int_equal(ring_units(RING_SMALL), 1);
	assert_int_equal(ring_units(RING_SMALL + 1), 2);
	nothing_there(e);
	assert_false(ring_publish(&e->out));
	assert_true(put(e, 8, 0));
	nothing_there(e);
	assert_true(ring_publish(&e->out));
	assert_false(ring_publish(&e->out));
	assert_int_equal(ring_unread(&e->out), 1);
	take(e, 8, RING_DONE);
	nothing_there(e);
	reap_nothing(e);
	assert_int_equal(ring_unread(&e->out), 0);
	ends_free(e);
}

static void every_length(void **arg)
{
	struct ends *e = ends_new();
	uint32_t n;

	(void)arg;
	for (n = 0; n <= RING_DATA_MAX; n += n < 4200 ? 1 : 61) {
		assert_true(put(e, n, 0));
		assert_true(ring_publish(&e->out));
		take(e, n, RING_DONE);
		nothing_there(e);
		reap_nothing(e);
		assert_int_equal(ring_unread(&e->out), 0);
	}
	assert_true(put(e, RING_DATA_MAX, 0));
	ends_free(e);
}

/* From each place in the ring on, to the brim, with each of some lengths. */
static void full(void **arg)
{
	static const uint32_t lengths[] = {
		0, 24, 25, 152, 4096, RING_DATA_MAX
	};
	struct ends *e = ends_new();
	uint32_t i, at, bytes, room;

	(void)arg;
	for (i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
		bytes = lengths[i];
		for (at = 1; at < RING_UNITS; at += at % 100 ? 3 : 1) {
			while ((e->in.pos & 0xffff) != at) {
				assert_true(put(e, 0, 0));
				ring_publish(&e->out);
				take(e, 0, RING_DONE);
				reap_nothing(e);
			}
			while (put(e, bytes, 0))
				;
			ring_publish(&e->out);
			room = RING_UNITS - ring_unread(&e->out);
			assert_in_range(room, 1, 2 * ring_units(bytes));
			while (e->got < e->put - 1)
				take(e, bytes, RING_DONE);
			/* Until it is reaped, all of it is in use. */
			assert_false(put(e, bytes, 0));
			reap_nothing(e);
			assert_true(put(e, bytes, 0));
			ring_publish(&e->out);
			take(e, bytes, RING_DONE);
			take(e, bytes, RING_DONE);
			nothing_there(e);
			reap_nothing(e);
		}
	}
	ends_free(e);
}

static void batch(void **arg)
{
	struct ends *e = ends_new();
	uint32_t round, i;

	(void)arg;
	for (round = 0; round < 500; round++) {
		for (i = 0; i < 17; i++)
			assert_true(put(e, i * 5, 0));
		nothing_there(e);
		assert_true(ring_publish(&e->out));
		for (i = 0; i < 17; i++)
			take(e, i * 5, RING_DONE);
		nothing_there(e);
		reap_nothing(e);
	}
	ends_free(e);
}

/* What was written for a record that was given up is no record. */
static void given_up(void **arg)
{
	struct ends *e = ends_new();
	struct ring_rec *rec;
	uint32_t i;

	(void)arg;
	for (i = 0; i < 20 * RING_UNITS; i++) {
		rec = ring_begin(&e->out, 4096);
		if (rec)
			memset(ring_data(rec), 1, 4096);
		if (i % 3 == 0) {
			ring_publish(&e->out); /* a skip record, it may be */
			nothing_there(e);
		}
		if (i % 2 ? put(e, i % 100, 0) : put_now(e, i % 100, 0)) {
			ring_publish(&e->out);
			take(e, i % 100, RING_DONE);
		}
		nothing_there(e);
		if (i % 301 == 0)
			reap_nothing(e);
	}
	assert_true(e->got > i / 2);
	ends_free(e);
}

/*
 * Numbers of laps come again after 127 laps: where records rarely begin, what
 * the consumer has said long ago is not taken for what it says now.
 */
static void laps(void **arg)
{
	struct ends *e = ends_new();
	uint32_t lap, at, bytes;

	(void)arg;
	for (lap = 0; lap < 3 * 127; lap++) {
		bytes = lap % 127 ? 2 * RING_UNIT : 0;
		do {
			at = e->out.at;
			assert_true(put_now(e, bytes, 0));
			reap_nothing(e);
			assert_true(ring_unread(&e->out) > 0);
			take(e, bytes, RING_DONE);
			reap_nothing(e);
			assert_int_equal(ring_unread(&e->out), 0);
		} while (e->out.at > at);
	}
	ends_free(e);
}

static void acked(struct ends *e, uint32_t qpn, uint32_t psn)
{
	struct ring_ack ack;

	assert_true(ring_reap(&e->out, &ack));
	assert_int_equal(ack.qpn, qpn);
	assert_int_equal(ack.psn, psn);
	assert_int_equal(ack.cookie, psn * 17);
}

static void ack_notes(void **arg)
{
	struct ends *e = ends_new();
	uint32_t n, mark;

	(void)arg;
	for (n = 0; n < 3 * RING_UNITS; n = e->put) {
		assert_true(put(e, 1, 0xfffffe));
		assert_true(put(e, 100, 0xfffffe));
		assert_true(put(e, 2, 3));
		assert_true(put(e, 3, 0));
		assert_true(put(e, 4, 3));
		mark = ring_mark(&e->out);
		assert_true(put(e, 5, 5));
		ring_publish(&e->out);
		reap_nothing(e);
		take(e, 1, RING_ACKED);
		take(e, 100, RING_ACKED);
		take(e, 2, RING_ACKED);
		take(e, 3, RING_ACKED); /* of nobody */
		assert_false(ring_mark_taken(&e->out, mark));
		take(e, 4, RING_ACKED);
		/* One QP's as one, others between them. */
		acked(e, 0xfffffe, (n + 1) & 0xffffff);
		assert_false(ring_mark_taken(&e->out, mark));
		acked(e, 3, (n + 4) & 0xffffff);
		assert_true(ring_mark_taken(&e->out, mark));
		reap_nothing(e);
		assert_true(ring_unread(&e->out) > 0);
		take(e, 5, RING_DONE);
		reap_nothing(e);
		assert_int_equal(ring_unread(&e->out), 0);
	}
	ends_free(e);
}

/* A producer that ends anywhere: what it had published comes, no more. */
static void succession(struct ends *e, uint64_t *state)
{
	uint32_t published, n;

	published = e->put;
	for (n = (uint32_t)(rnd(state) % 5); n; n--)
		put(e, bytes_of(e->put, 4200), 1);
	e->put = published;
	if (rnd(state) % 2)
		ring_begin(&e->out, (uint32_t)(rnd(state) % RING_DATA_MAX));
	assert_int_equal(ring_out_attach(&e->out, e->mem, LIFE), 0);
}

static void random_steps(void **arg)
{
	uint64_t state = rnd_seed();
	uint32_t i, n, qpn, acks = 0, reaped = 0;
	struct ends *e = ends_new();
	enum ring_ack_note v;
	struct ring_ack ack;

	(void)arg;
	for (i = 0; i < 300000; i++) {
		switch (rnd(&state) % 4) {
		case 0:
			for (n = (uint32_t)(rnd(&state) % 20); n; n--) {
				qpn = e->put % 3 ? 1 : 2;
				if (rnd(&state) % 4)
					put(e, bytes_of(e->put, 4200), qpn);
				else
					put_now(e, bytes_of(e->put, 4200), qpn);
			}
			ring_publish(&e->out);
			break;
		case 1:
			for (n = (uint32_t)(rnd(&state) % 20); n; n--) {
				if (e->got == e->put)
					break;
				v = rnd(&state) % 2 ? RING_ACKED : RING_DONE;
				acks += v == RING_ACKED;
				take(e, bytes_of(e->got, 4200), v);
			}
			break;
		case 2:
			while (ring_reap(&e->out, &ack)) {
				n = ack.psn;
				assert_int_equal(ack.qpn, n % 3 ? 1 : 2);
				assert_int_equal(ack.cookie, n * 17);
				assert_true(n < e->got);
				reaped++;
			}
			break;
		case 3:
			if (e->got == e->put)
				nothing_there(e);
			if (rnd(&state) % 64 == 0)
				succession(e, &state);
			if (rnd(&state) % 64 == 0)
				assert_true(ring_out_check(&e->out));
			if (rnd(&state) % 64 == 0)
				ring_in_check(&e->in);
			break;
		}
	}
	assert_true(e->got > 100000);
	assert_true(reaped && reaped <= acks);
	ends_free(e);
}

static void is_broken(struct ends *e)
{
	struct ring_ack ack;
	struct ring_rec rec = { .word = 0 };

	assert_false(ring_get(&e->in, &rec));
	assert_non_null(e->in.broken);
	assert_false(ring_ready(&e->in));
	assert_false(ring_reap(&e->out, &ack));
	assert_true(ring_out_broken(&e->out) || !ring_unread(&e->out));
	assert_false(ring_out_check(&e->out));
	assert_true(ring_mark_taken(&e->out, ring_mark(&e->out)));
	while (e->out.at + 1 < e->out.limit)
		put(e, 0, 0);
	assert_null(ring_begin(&e->out, 0));
	assert_int_equal(ring_out_attach(&e->out, e->mem, LIFE), -EPIPE);
}

static void starts_again(struct ends *e)
{
	ring_in_reset(&e->in);
	assert_int_equal(ring_out_attach(&e->out, e->mem, LIFE), 0);
	e->got = e->put = 0;
	while (e->put < 2 * RING_UNITS) {
		assert_true(put(e, 30, 0));
		assert_true(ring_publish(&e->out));
		take(e, 30, RING_DONE);
		nothing_there(e);
		reap_nothing(e);
	}
}

#define MOST ((RING_DATA_MAX + RING_HDR + RING_UNIT - 1) / RING_UNIT)

static void overwritten(void **arg)
{
	static const struct {
		uint32_t at, word;
	} bad[] = {
		{ 0, 0x0000ffff },
		{ 0, 0x0007ffff },
		{ 500, 0x0007ffff },
		{ 0, LIFE << 16 | (RING_DATA_MAX + 1) },
		{ 999, LIFE << 16 },
		{ 998, LIFE << 16 | 25 },
		{ RING_UNITS - MOST, LIFE << 16 | RING_DATA_MAX },
		{ RING_UNITS - MOST - 1, 0x0007ffff },
		{ 0, 0xffffffff },
		{ 0, LIFE << 16 | 0xfffe },
	};
	struct ends *e;
	uint32_t i;

	(void)arg;
	for (i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		e = ends_new();
		while (e->put < bad[i].at) {
			assert_true(put(e, 0, 0));
			ring_publish(&e->out);
			take(e, 0, RING_DONE);
			reap_nothing(e);
		}
		put(e, 0, 0);
		e->mem->unit[bad[i].at].word = bad[i].word;
		e->out.unpublished = NULL;
		is_broken(e);
		starts_again(e);
		ends_free(e);
	}
}

/* Overwritten so that nothing looks wrong but one waits for the other. */
static void stuck(void **arg)
{
	struct ends *e = ends_new();
	struct ring_rec rec = { .word = 0 };

	(void)arg;
	assert_true(put(e, 8, 0));
	assert_true(ring_out_check(&e->out));
	ring_publish(&e->out);
	assert_true(ring_out_check(&e->out));
	e->mem->unit[0].word = 0;
	nothing_there(e);
	assert_false(ring_out_check(&e->out));
	assert_true(ring_out_broken(&e->out));
	ends_free(e);

	/* A record got shorter: the consumer waits where none begins. */
	e = ends_new();
	memset(e->data, 0, RING_DATA_MAX);
	assert_true(put_now(e, 100, 0));
	assert_true(put_now(e, 8, 0));
	e->mem->unit[0].word = LIFE << 16;
	assert_true(ring_get(&e->in, &rec));
	ring_release(&e->in, RING_DONE);
	nothing_there(e);
	assert_true(ring_out_check(&e->out)); /* there is something to reap */
	reap_nothing(e);
	assert_false(ring_out_check(&e->out));
	ends_free(e);

	e = ends_new();
	while (e->put < RING_UNITS + 10) {
		assert_true(put(e, 8, 0));
		ring_publish(&e->out);
		take(e, 8, RING_DONE);
		if (e->put == 500 || e->put == RING_UNITS + 5)
			memset(e->mem->ack_note, 0xa7, RING_UNITS);
		if (e->put == 500 || e->put == RING_UNITS + 5) {
			reap_nothing(e);
			assert_int_equal(ring_unread(&e->out), 1);
			ring_in_check(&e->in);
		}
		reap_nothing(e);
		assert_int_equal(ring_unread(&e->out), 0);
	}
	memset(&e->mem->in, 0xff, sizeof(e->mem->in));
	assert_true(ring_out_attach(&e->out, e->mem, LIFE) < 0);
	ring_in_check(&e->in);
	assert_int_equal(ring_out_attach(&e->out, e->mem, LIFE), 0);
	assert_true(put(e, 8, 0));
	ring_publish(&e->out);
	take(e, 8, RING_DONE);
	ends_free(e);
}

/* What is there on attaching may be anything. */
static void attach_to_noise(void **arg)
{
	uint64_t state = rnd_seed();
	struct ends *e = ends_new();
	uint32_t i, ok = 0;
	int err;

	(void)arg;
	for (i = 0; i < 2000; i++) {
		rnd_fill(&state, e->mem, sizeof(*e->mem) - i % 64 * 1024);
		e->mem->in.broken = 0;
		e->mem->in.pos = (uint32_t)(rnd(&state) % RING_UNITS);
		e->mem->unit[e->mem->in.pos].word &= i % 2 ? 0 : 0xffff00ff;
		err = ring_out_attach(&e->out, e->mem, LIFE);
		assert_true(err == 0 || err == -EPROTO);
		ok += err == 0;
	}
	assert_true(ok > 500);
	ends_free(e);
}

/* ---- Two threads -------------------------------------------------------- */

#define THREAD_RECORDS 60000u

static void *produce(void *arg)
{
	struct ends *e = arg;
	uint64_t state = 1;
	bool room;

	while (e->put < THREAD_RECORDS) {
		room = (rnd(&state) % 8 ? put : put_now)(
			e, bytes_of(e->put, 4200), 1 + e->put % 2);
		if (!room) {
			ring_publish(&e->out);
			sched_yield();
		}
	}
	ring_publish(&e->out);
	return NULL;
}

static void *reap(void *arg)
{
	struct ends *e = arg;
	struct ring_ack ack;
	uint32_t last[2] = { 0 }, n = 0;

	while (__atomic_load_n(&e->out.taken, __ATOMIC_RELAXED) == 0 ||
	       n < THREAD_RECORDS - 2) {
		if (!ring_reap(&e->out, &ack)) {
			sched_yield();
			continue;
		}
		if (ack.psn < last[ack.qpn - 1] || ack.psn % 2 != ack.qpn - 1)
			return arg;
		n = last[ack.qpn - 1] = ack.psn;
	}
	return NULL;
}

static void threads(void **arg)
{
	struct ends *e = ends_new();
	pthread_t thread[2];
	void *wrong[2];
	uint32_t n = 0;

	(void)arg;
	pthread_create(&thread[0], NULL, produce, e);
	pthread_create(&thread[1], NULL, reap, e);
	while (n < THREAD_RECORDS) {
		if (!ring_ready(&e->in)) {
			sched_yield();
			continue;
		}
		take(e, bytes_of(n++, 4200), RING_ACKED);
	}
	nothing_there(e);
	pthread_join(thread[0], &wrong[0]);
	pthread_join(thread[1], &wrong[1]);
	assert_null(wrong[0]);
	assert_null(wrong[1]);
	ends_free(e);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_line),
		cmocka_unit_test(every_length),
		cmocka_unit_test(full),
		cmocka_unit_test(batch),
		cmocka_unit_test(given_up),
		cmocka_unit_test(laps),
		cmocka_unit_test(ack_notes),
		cmocka_unit_test(random_steps),
		cmocka_unit_test(overwritten),
		cmocka_unit_test(stuck),
		cmocka_unit_test(attach_to_noise),
		cmocka_unit_test(threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

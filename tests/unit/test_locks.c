/*
 * test_locks.c - locks of one word: base/lock.h, and that of a QP
 *
 * Threads take them in all the ways there are, often enough that each finds the
 * others in every state. What a thread must see of the others it counts. On a busy
 * machine a round may take as long as others have the processors: there a part ends
 * when its time is over, with fewer rounds.
 */
#include "base/lock.h"
#include "engine/engine.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define THREADS 4
#define ROUNDS 20000
#define PART_NS 1000000000u

static pthread_t thread[THREADS];
static uint64_t end_ns; /* of a part */
static _Atomic uint64_t rounds; /* of all threads */

/* Whether a thread goes on, in its round i. */
static bool goes_on(int i)
{
	if (i >= ROUNDS || (i % 64 == 0 && sys_now_ns() > end_ns))
		return false;
	atomic_fetch_add(&rounds, 1);
	return true;
}

static void run_threads(void *(*fn)(void *), void *arg)
{
	end_ns = sys_now_ns() + PART_NS;
	atomic_store(&rounds, 0);
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, fn, arg), 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
}

/* Now and then longer than others spin, so that they sleep. */
static void linger(int round)
{
	if (round % 500 == 0)
		sys_sleep(50000);
	else if (round % 64 == 0)
		sched_yield();
}

static struct lock lock;
static uint64_t counted; /* under the lock, whichever it is */

static void *count(void *arg)
{
	for (int i = 0; goes_on(i); i++) {
		if (i % 3 || !lock_try(&lock))
			lock_take(&lock);
		counted++;
		linger(i);
		lock_drop(&lock);
	}
	return arg;
}

static void one_at_a_time(void **state)
{
	(void)state;
	counted = 0;
	run_threads(count, NULL);
	assert_int_equal(counted, atomic_load(&rounds));
	assert_int_equal(lock.word, 0);
}

/* A QP: what is asked for is numbered, and done up to a number. */

static struct engine engine;
static struct engine_qp qp;
static _Atomic uint64_t asked;
static uint64_t done; /* its lock */

static void qp_run(struct engine_qp *q, uint64_t now)
{
	(void)q;
	(void)now;
	done = atomic_load(&asked);
}

static const struct engine_qp_ops ops = { .run = qp_run };

/* By turns a program, and a receiver that waits for nobody. */
static void *use(void *arg)
{
	for (int i = 0; goes_on(i); i++) {
		if (i % 2) {
			engine_qp_lock(&qp);
			counted++;
			linger(i - 1);
			engine_qp_unlock(&qp);
			continue;
		}
		atomic_fetch_add(&asked, 1);
		if (engine_qp_trylock(&qp)) {
			qp_run(&qp, 0);
			engine_qp_unlock(&qp);
		}
	}
	return arg;
}

/* As whoever runs timers. */
static void timer(void)
{
	engine_timer_drop(&engine, &qp);
	assert_true(engine_qp_trylock(&qp));
	qp_run(&qp, 0);
	engine_qp_unlock(&qp);
}

static void nothing_is_left_behind(void **state)
{
	(void)state;
	pthread_mutex_init(&engine.timer_lock, NULL);
	engine_qp_init(&qp, &engine, &ops);
	qp.dead = false;
	for (int i = 0; i < 5; i++) {
		counted = 0;
		run_threads(use, NULL);
		/* Of each thread's rounds, an even number, every other one. */
		assert_int_equal(counted, atomic_load(&rounds) / 2);
		/* The last one does it, or leaves it to the timers. */
		if (atomic_load(&qp.timer_due) != UINT64_MAX)
			timer();
		assert_int_equal(done, atomic_load(&asked));
		assert_int_equal(qp.lock, 0);
	}
}

/* Two threads that begin each round together, by turns one a bit later. The first
 * says which is the last one. */
static _Atomic int at[2];
static _Atomic bool last;

static void meet(int i, int round)
{
	atomic_store(&at[i], round);
	for (int n = 1; atomic_load(&at[!i]) < round; n++)
		if (n % 1000 == 0)
			sched_yield();
	for (int n = round / 2 % 40 * (round % 2 == i); n--;)
		cpu_relax();
}

static void *receiver(void *arg)
{
	for (int i = 1;; i++) {
		meet(1, 2 * i - 1);
		if (atomic_load(&last))
			break;
		atomic_fetch_add(&asked, 1);
		if (engine_qp_trylock(&qp)) {
			qp_run(&qp, 0);
			engine_qp_unlock(&qp);
		}
		meet(1, 2 * i);
	}
	return arg;
}

/* One that leaves its work behind has no other to fall back on. */
static void done_each_time(void **state)
{
	uint64_t undone = 0;

	(void)state;
	engine_qp_init(&qp, &engine, &ops);
	qp.dead = false;
	at[0] = at[1] = 0;
	atomic_store(&last, false);
	end_ns = sys_now_ns() + PART_NS;
	assert_int_equal(pthread_create(&thread[0], NULL, receiver, NULL), 0);
	for (int i = 1;; i++) {
		atomic_store(&last, i > 2 * ROUNDS || sys_now_ns() > end_ns);
		meet(0, 2 * i - 1);
		if (atomic_load(&last))
			break;
		engine_qp_lock(&qp);
		engine_qp_unlock(&qp);
		meet(0, 2 * i);
		undone += done != atomic_load(&asked);
	}
	pthread_join(thread[0], NULL);
	assert_int_equal(undone, 0);
}

/* What may not be done by who looks stays for the next holder. */
static void seized_and_released(void **state)
{
	(void)state;
	engine_qp_init(&qp, &engine, &ops);
	qp.dead = false;
	done = 0;
	assert_true(engine_qp_seize(&qp));
	assert_false(engine_qp_seize(&qp));
	assert_false(engine_qp_release(&qp));
	assert_true(engine_qp_seize(&qp));
	atomic_store(&asked, 7);
	assert_false(engine_qp_trylock(&qp));
	assert_true(engine_qp_release(&qp));
	assert_int_equal(done, 0);
	engine_qp_lock(&qp);
	assert_int_equal(done, 7);
	engine_qp_unlock(&qp);
	assert_int_equal(qp.lock, 0);
}

/* What a packet is left behind with, when its link has forgotten it. */
struct source {
	struct qp_source base;
	uint8_t byte;
};

static int source_read(const struct qp_source *base, uint64_t offset,
		       const struct iovec *to, size_t n)
{
	const struct source *s = (const struct source *)(const void *)base;

	assert_int_equal(n, 1);
	*(uint8_t *)to->iov_base = (uint8_t)(s->byte + offset);
	return 0;
}

static unsigned received;

static void note_rx(struct engine_qp *q, const struct roce_rx *pkt,
		    uint64_t now)
{
	uint8_t got = 0;

	(void)q;
	(void)now;
	received++;
	assert_null(pkt->acked);
	if (!pkt->source) {
		assert_memory_equal(pkt->payload, "abc", pkt->len);
		return;
	}
	assert_null(pkt->payload);
	assert_int_equal(pkt->source->read(pkt->source, 5,
					   &(struct iovec){ &got, 1 }, 1),
			 0);
	assert_int_equal(got, 0x25);
}

static void packets_are_left_whole(void **state)
{
	static const struct engine_qp_ops rx_ops = { .rx = note_rx,
						     .run = qp_run };
	struct source s = { { source_read, sizeof(s) }, 0x20 };
	uint8_t bytes[] = "abc";
	bool acked;
	struct roce_rx elsewhere = { .source = &s.base,
				     .len = 100000,
				     .acked = &acked };
	struct roce_rx here = { .payload = bytes, .len = 3, .acked = &acked };

	(void)state;
	engine_qp_init(&qp, &engine, &rx_ops);
	qp.dead = false;
	engine_qp_lock(&qp);
	assert_false(engine_qp_defer(&qp, &elsewhere));
	assert_false(engine_qp_defer(&qp, &here));
	memset(&s, 0, sizeof(s));
	memset(bytes, 0, sizeof(bytes));
	assert_int_equal(received, 0);
	engine_qp_unlock(&qp);
	assert_int_equal(received, 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_at_a_time),
		cmocka_unit_test(nothing_is_left_behind),
		cmocka_unit_test(done_each_time),
		cmocka_unit_test(seized_and_released),
		cmocka_unit_test(packets_are_left_whole),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

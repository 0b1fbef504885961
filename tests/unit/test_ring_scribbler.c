/*
 * test_ring_scribbler.c - another process writes in the ring while it is used:
 * nothing crashes or hangs, and what does not go on is reported as broken
 */
#include "ring_ends.h"

#include "child.h"

#include "base/cpu.h"

#include <pthread.h>
#include <sched.h>
#include <sys/wait.h>

#define ROUNDS 30u /* or SOFTHCA_TEST_ROUNDS */
#define ROUNDS_MAX 3000
#define RECORDS 1000u
#define LONG 200u /* turns with nothing to do, after which one checks, */
#define TOO_LONG 200u /* and checks after which it hangs */

struct scribble {
	_Atomic bool on, off; /* asked for; is so */
};

static void scribble(struct ring_mem *mem, uint64_t *state)
{
	uint8_t *any = (uint8_t *)mem + rnd(state) % RING_BYTES;
	struct ring_rec *rec = &mem->unit[rnd(state) % RING_UNITS];
	uint32_t word = (uint32_t)rnd(state);

	switch (rnd(state) % 8) {
	case 0:
		*any = (uint8_t)word;
		break;
	case 1: /* a record of another length, or none */
		word = rnd(state) % 4 ? LIFE << 16 | word % 200 : 0;
		__atomic_store_n(&rec->word, word, __ATOMIC_RELAXED);
		break;
	case 2:
		rnd_fill(state, rec, sizeof(*rec));
		break;
	case 3:
		mem->ack_note[word % RING_UNITS] = (uint8_t)rnd(state);
		break;
	case 4: /* what the next lap, or this one, will say */
		mem->ack_note[word % RING_UNITS] =
			(uint8_t)((mem->in.pos >> 16) + (word >> 30));
		break;
	case 5:
		mem->in.pos = word % RING_UNITS | (mem->in.pos & 0xff0000);
		break;
	case 6:
		mem->in.pos = word;
		break;
	case 7:
		if (word % 64 == 0)
			mem->in.broken = word;
		break;
	}
}

static void scribbler(struct ring_mem *mem, struct scribble *s, uint64_t state)
{
	uint64_t n;

	for (;;) {
		while (!s->on) {
			s->off = true;
			sched_yield();
		}
		s->off = false;
		scribble(mem, &state);
		for (n = rnd(&state) % 20000; n; n--)
			cpu_relax();
		if (rnd(&state) % 4 == 0)
			sched_yield();
	}
}

struct run {
	struct ends *e;
	struct scribble *s;
	_Atomic bool done;
	_Atomic uint32_t looks; /* of the consumer, at what it has said */
	const char *wrong;
};

/* Until all is taken, the ring is broken, or it hangs. */
static void *produce(void *arg)
{
	struct run *r = arg;
	struct ends *e = r->e;
	uint32_t idle = 0, checks = 0, looks = 0;
	struct ring_ack ack;
	bool some;

	for (e->put = 0; !ring_out_broken(&e->out);) {
		some = e->put < RECORDS &&
		       put_now(e, bytes_of(e->put, 4200), 1);
		while (ring_reap(&e->out, &ack)) {
			some = true;
			if (ack.qpn != 1 || ack.cookie != ack.psn * 17)
				r->wrong = "not what was put";
		}
		if (e->put == RECORDS && !ring_unread(&e->out))
			break;
		if (some) {
			idle = 0;
			continue;
		}
		sched_yield();
		if (++idle % LONG || looks == r->looks)
			continue;
		looks = r->looks;
		ring_out_check(&e->out);
		if (++checks == 3) /* nor is it the noise that ends it */
			r->s->on = false;
		if (checks == TOO_LONG) {
			r->wrong = "it hangs";
			break;
		}
	}
	r->done = true;
	return NULL;
}

static void consume(struct run *r, uint8_t *copy)
{
	struct ring_in *in = &r->e->in;
	const uint8_t *data, *end = (uint8_t *)r->e->mem + RING_BYTES;
	uint32_t idle = 0, bytes;
	struct ring_rec rec = { .word = 0 };

	while (!r->done) {
		if (!ring_get(in, &rec)) {
			sched_yield();
			if (++idle % LONG == 0) {
				ring_in_check(in);
				r->looks++;
			}
			continue;
		}
		bytes = ring_bytes(&rec);
		data = ring_in_data(in);
		assert_true(bytes <= RING_DATA_MAX);
		assert_true(data == rec.small || data + bytes <= end);
		memcpy(copy, data, bytes);
		ring_release(in, RING_ACKED);
	}
}

static void scribbled(void **arg)
{
	struct ends *e = ends_new();
	struct run r = { .e = e };
	const char *env = getenv("SOFTHCA_TEST_ROUNDS");
	unsigned long rounds = env ? strtoul(env, NULL, 0) : ROUNDS, round;
	unsigned broken = 0, whole = 0;
	uint64_t state = rnd_seed();
	uint8_t *copy = malloc(RING_DATA_MAX);
	pthread_t thread;
	pid_t pid;

	(void)arg;
#ifdef __SANITIZE_THREAD__
	skip(); /* it makes producer and consumer race, rightly */
#endif
	r.s = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
		   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(r.s, MAP_FAILED);
	pid = fork_child();
	assert_true(pid >= 0);
	if (!pid)
		scribbler(e->mem, r.s, state);
	/* Where the transfer is over before much is written, more of them. */
	for (round = 0; round < rounds || (!broken && round < ROUNDS_MAX);
	     round++) {
		while (!r.s->off)
			sched_yield();
		memset(e->mem, 0, sizeof(*e->mem));
		ring_in_init(&e->in, e->mem);
		assert_int_equal(ring_out_attach(&e->out, e->mem, LIFE), 0);
		r.done = false;
		r.s->off = false;
		r.s->on = true;
		assert_int_equal(pthread_create(&thread, NULL, produce, &r), 0);
		consume(&r, copy);
		pthread_join(thread, NULL);
		r.s->on = false;
		if (r.wrong)
			fail_msg("round %lu: %s", round, r.wrong);
		broken += ring_out_broken(&e->out);
		whole += !ring_out_broken(&e->out);
	}
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	print_message("broken in %u rounds, to the end in %u\n", broken, whole);
	assert_true(broken > 0);
	munmap(r.s, 4096);
	free(copy);
	ends_free(e);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(scribbled),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
